//! The time of a three-step pipeline: in, compute, out (Yang et al., TKDD 2019, section 6.2).

use serde::Serialize;

/// Seconds of one chunk's steps: loading, computing, and copying out results.
pub type StepSeconds = [f64; 3];

/// The time of all chunks' steps, in sequence and overlapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pipeline {
    /// `T_s`: every step of every chunk waits for the previous one.
    pub sequential_seconds: f64,
    /// `T_p`: while the results of chunk i are copied out, chunk i + 1 is computed and chunk i + 2 is loaded.
    pub pipelined_seconds: f64,
}

impl Pipeline {
    /// The times for chunks whose steps take these seconds.
    ///
    /// `T_s` is the sum of all steps. `T_p` is a sum over cycles. In cycle i, the three steps of chunks i,
    /// i - 1 and i - 2 run at once, as far as these chunks exist, and the longest counts. (The paper's equation writes out the
    /// first two and last two cycles, and prints the two steps of the second as the same step twice.)
    #[must_use]
    pub fn of(chunks: &[StepSeconds]) -> Self {
        let step = |chunk: Option<usize>, step: usize| {
            chunk.and_then(|chunk| chunks.get(chunk)).map_or(0.0, |steps| steps[step])
        };
        let cycle = |i: usize| step(Some(i), 0).max(step(i.checked_sub(1), 1)).max(step(i.checked_sub(2), 2));
        let cycles = if chunks.is_empty() { 0 } else { chunks.len() + 2 };
        Self {
            sequential_seconds: chunks.iter().flatten().sum(),
            pipelined_seconds: (0..cycles).map(cycle).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recurrence_of_section_6_2() {
        let times = |chunks: &[StepSeconds]| {
            let Pipeline { sequential_seconds, pipelined_seconds } = Pipeline::of(chunks);
            (sequential_seconds, pipelined_seconds)
        };
        assert_eq!(times(&[]), (0.0, 0.0));
        assert_eq!(times(&[[1.0, 2.0, 4.0]]), (7.0, 7.0));
        // 1 + max(2, 8) + max(4, 16) + 32.
        assert_eq!(times(&[[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]), (63.0, 1.0 + 8.0 + 16.0 + 32.0));
        // The paper's equation, corrected: t11 + max(t12, t21) + max(t13, t22, t31) + max(t23, t32) + t33.
        let three = [[1.0, 5.0, 2.0], [3.0, 1.0, 4.0], [2.0, 6.0, 1.0]];
        assert_eq!(times(&three), (25.0, 1.0 + 5.0 + 2.0 + 6.0 + 1.0));
        // Balanced steps take a third of the time, apart from filling and draining.
        let (sequential, pipelined) = times(&vec![[1.0; 3]; 100]);
        assert_eq!((sequential, pipelined), (300.0, 102.0));
    }
}
