//! How long a pipeline of three steps takes: in, compute, out (Yang et al., TKDD 2019, section 6.2).

use serde::Serialize;

/// Seconds of one chunk's steps: bringing it, computing, handing over what came out.
pub type StepSeconds = [f64; 3];

/// What the steps of all chunks take, one after the other and overlapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pipeline {
    /// `T_s`: every step of every chunk waits for the one before.
    pub sequential_seconds: f64,
    /// `T_p`: while chunk i is handed over, chunk i + 1 is computed and chunk i + 2 brought.
    pub pipelined_seconds: f64,
}

impl Pipeline {
    /// Of chunks whose steps take these seconds.
    ///
    /// `T_s` is the sum of all steps. `T_p` is a sum over cycles: in cycle i the three steps of chunks i, i - 1 and i - 2 go
    /// on at once, as far as there are such chunks, and the longest of them counts. (The paper's equation writes out the
    /// first and last two cycles, and prints the two steps of the second as one step twice.)
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
        // As printed, mended: t11 + max(t12, t21) + max(t13, t22, t31) + max(t23, t32) + t33.
        let three = [[1.0, 5.0, 2.0], [3.0, 1.0, 4.0], [2.0, 6.0, 1.0]];
        assert_eq!(times(&three), (25.0, 1.0 + 5.0 + 2.0 + 6.0 + 1.0));
        // Balanced steps: a third, but for filling and draining.
        let (sequential, pipelined) = times(&vec![[1.0; 3]; 100]);
        assert_eq!((sequential, pipelined), (300.0, 102.0));
    }
}
