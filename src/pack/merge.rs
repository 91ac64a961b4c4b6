//! Merging runs: a loser tree (Knuth, TAOCP 3, section 5.4.1) over one cursor for each run.

use super::spill::{FRAME_NNZ, SpillFile, SpillReader, SpillWriter, run_frame};
use crate::error::Result;
use crate::linear::{Key, Nonzero};
use crate::sys::Sys;
use std::path::Path;

/// Where a run has got to.
#[derive(Debug)]
struct Cursor<K> {
    reader: SpillReader,
    frame: Vec<Nonzero<K>>,
    at: usize,
}

/// Merges runs into one stream in the order of stores. What comes out does not depend on how the nonzeros are
/// divided between runs: nonzeros that compare equal are equal to the bit.
#[derive(Debug)]
pub struct Merge<K> {
    cursors: Vec<Cursor<K>>,
    /// `losers[0]` is the run whose head is next; `losers[n]` the loser of the match at inner node n.
    losers: Vec<usize>,
}

impl<K: Key> Merge<K> {
    /// Starts at the beginning of every run.
    pub fn open(sys: &Sys, runs: &[SpillFile]) -> Result<Self> {
        let open = |run: &SpillFile| {
            let mut cursor = Cursor { reader: SpillReader::open(sys, run)?, frame: Vec::new(), at: 0 };
            cursor.reader.read_run(&mut cursor.frame)?;
            Ok(cursor)
        };
        let cursors: Vec<Cursor<K>> = runs.iter().map(open).collect::<Result<_>>()?;
        let mut merge = Self { losers: vec![0; cursors.len()], cursors };
        if !merge.cursors.is_empty() {
            merge.losers[0] = merge.play(1);
        }
        Ok(merge)
    }

    /// Plays all matches below inner node `node`, leaves following the inner nodes; the winner.
    fn play(&mut self, node: usize) -> usize {
        let runs = self.cursors.len();
        if node >= runs {
            return node - runs;
        }
        let (a, b) = (self.play(2 * node), self.play(2 * node + 1));
        let (winner, loser) = if self.beats(a, b) { (a, b) } else { (b, a) };
        self.losers[node] = loser;
        winner
    }

    /// Whether the head of run `a` comes before that of run `b`. An exhausted run loses.
    fn beats(&self, a: usize, b: usize) -> bool {
        let head = |run: usize| self.cursors[run].frame.get(self.cursors[run].at);
        match (head(a), head(b)) {
            (Some(a), Some(b)) => a.order(b).is_le(),
            (a, _) => a.is_some(),
        }
    }

    /// Replaces `out` by the next nonzeros, at most `out`'s capacity; none at the end.
    pub fn next_slice(&mut self, out: &mut Vec<Nonzero<K>>) -> Result<()> {
        out.clear();
        while out.len() < out.capacity() && !self.losers.is_empty() {
            let mut winner = self.losers[0];
            let cursor = &mut self.cursors[winner];
            let Some(nonzero) = cursor.frame.get(cursor.at) else { break };
            out.push(*nonzero);
            cursor.at += 1;
            if cursor.at == cursor.frame.len() {
                cursor.at = 0;
                cursor.reader.read_run(&mut cursor.frame)?;
            }
            let mut node = usize::midpoint(winner, self.cursors.len());
            while node > 0 {
                if self.beats(self.losers[node], winner) {
                    std::mem::swap(&mut self.losers[node], &mut winner);
                }
                node /= 2;
            }
            self.losers[0] = winner;
        }
        Ok(())
    }

    /// Merges everything into a new run at `path`.
    pub fn into_run(mut self, sys: &Sys, path: &Path) -> Result<SpillFile> {
        let mut writer = SpillWriter::create(sys, path)?;
        let mut slice = Vec::with_capacity(FRAME_NNZ);
        loop {
            self.next_slice(&mut slice)?;
            if slice.is_empty() {
                return Ok(writer.finish());
            }
            sys.check_cancelled()?;
            writer.write(&run_frame(&slice))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    #[test]
    fn any_number_of_runs_merges() {
        let sys = Sys::default();
        for runs in [1usize, 2, 3, 5, 8, 13] {
            let dir = tempfile::tempdir().unwrap();
            let random = Counter::new(runs as u64, 0);
            let mut all = Vec::new();
            let spilled: Vec<SpillFile> = (0..runs as u64)
                .map(|run| {
                    let nnz = if run == 1 { 1 } else { 9000 };
                    let nonzero =
                        |i| Nonzero { linear: random.bits(run << 32 | i) % 20_000, value: (i % 7) as f64 };
                    let mut nonzeros: Vec<Nonzero<u64>> = (0..nnz).map(nonzero).collect();
                    nonzeros.sort_by(Nonzero::order);
                    all.extend_from_slice(&nonzeros);
                    let mut writer = SpillWriter::create(&sys, &dir.path().join(run.to_string())).unwrap();
                    nonzeros.chunks(FRAME_NNZ).for_each(|part| writer.write(&run_frame(part)).unwrap());
                    writer.finish()
                })
                .collect();
            all.sort_by(Nonzero::order);
            let mut merge = Merge::<u64>::open(&sys, &spilled).unwrap();
            let (mut slice, mut merged) = (Vec::with_capacity(777), Vec::new());
            while {
                merge.next_slice(&mut slice).unwrap();
                !slice.is_empty()
            } {
                merged.extend_from_slice(&slice);
            }
            assert_eq!(merged, all, "{runs} runs");
        }
    }
}
