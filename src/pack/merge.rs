//! Merges runs in rounds. A round is everything up to the smallest of the last nonzeros read from each run. Splitters
//! divide it into parts that fit a core's cache. Each part, made of a stretch of every run, is sorted separately, all
//! in parallel.

use super::budget::Budget;
use super::spill::SpillReader;
use super::split::split;
use crate::error::Result;
use crate::linear::{Key, Nonzero};
use rayon::prelude::*;

/// Nonzeros of a part, about.
const PART_NNZ: usize = 1 << 14;
/// One in this many nonzeros is sampled to choose splitters.
const SAMPLE: usize = 1 << 9;

/// Where a run has got to.
#[derive(Debug)]
struct Cursor<K> {
    reader: SpillReader,
    /// What has been read, in order; the first `at` have been taken.
    ahead: Vec<Nonzero<K>>,
    at: usize,
    ended: bool,
}

impl<K: Key> Cursor<K> {
    /// Reads until `nnz` nonzeros are ahead, or the run ends.
    fn refill(&mut self, nnz: usize) -> Result<()> {
        if self.ahead.len() - self.at >= nnz {
            return Ok(());
        }
        self.ahead.drain(..self.at);
        self.at = 0;
        while self.ahead.len() < nnz && !self.ended {
            self.ended = !self.reader.read_run(&mut self.ahead)?;
        }
        Ok(())
    }

    /// What is ahead and at most `bound`; all without a bound.
    fn until(&self, bound: Option<&Nonzero<K>>) -> &[Nonzero<K>] {
        let ahead = &self.ahead[self.at..];
        let end = bound.map_or(ahead.len(), |bound| ahead.partition_point(|n| n.order(bound).is_le()));
        &ahead[..end]
    }
}

/// Merges runs into one stream in the order of stores. What comes out does not depend on how the nonzeros are
/// divided between runs: nonzeros that compare equal are equal to the bit.
#[derive(Debug)]
pub struct Merge<K> {
    cursors: Vec<Cursor<K>>,
    ahead_nnz: usize,
}

impl<K: Key> Merge<K> {
    /// Of runs that have just been opened.
    pub fn new(runs: Vec<SpillReader>, budget: Budget) -> Self {
        let ahead_nnz = budget.ahead_nnz::<K>(runs.len());
        let cursor = |reader| Cursor { reader, ahead: Vec::new(), at: 0, ended: false };
        Self { cursors: runs.into_iter().map(cursor).collect(), ahead_nnz }
    }

    /// Hands everything to `sink` in order, a round at a time, while the next round is merged.
    pub fn for_each_slice(mut self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()> + Send) -> Result<()> {
        let (mut current, mut next) = (Vec::new(), Vec::new());
        self.next_round(&mut current)?;
        while !current.is_empty() {
            let (sunk, merged) = rayon::join(|| sink(&current), || self.next_round(&mut next));
            sunk.and(merged)?;
            std::mem::swap(&mut current, &mut next);
        }
        Ok(())
    }

    /// Replaces `out` by the next nonzeros; none at the end.
    fn next_round(&mut self, out: &mut Vec<Nonzero<K>>) -> Result<()> {
        let Self { cursors, ahead_nnz } = self;
        cursors.par_iter_mut().try_for_each(|cursor| cursor.refill(*ahead_nnz))?;
        let unread = cursors.iter().filter(|cursor| !cursor.ended);
        let bound = unread.filter_map(|cursor| cursor.ahead.last().copied()).min_by(Nonzero::order);
        let stretches: Vec<&[Nonzero<K>]> = cursors.iter().map(|c| c.until(bound.as_ref())).collect();
        let lengths: Vec<usize> = stretches.iter().map(|stretch| stretch.len()).collect();
        out.resize(lengths.iter().sum(), Nonzero::default());
        let parts = parts(stretches);
        let targets = split(out, parts.iter().map(|part| part.iter().map(|stretch| stretch.len()).sum()));
        let work = parts.par_iter().zip(targets);
        work.for_each_init(Vec::new, |ends, (part, target)| merge(part, target, ends));
        cursors.iter_mut().zip(lengths).for_each(|(cursor, taken)| cursor.at += taken);
        Ok(())
    }
}

/// Cuts stretches at common splitters, so that all of a part comes before all of the next one.
fn parts<K: Key>(mut stretches: Vec<&[Nonzero<K>]>) -> Vec<Vec<&[Nonzero<K>]>> {
    let mut samples: Vec<Nonzero<K>> =
        stretches.iter().flat_map(|stretch| stretch.iter().step_by(SAMPLE).copied()).collect();
    samples.sort_unstable_by(Nonzero::order);
    let mut parts = Vec::new();
    for splitter in samples.iter().step_by(PART_NNZ / SAMPLE).skip(1) {
        let cut = |stretch: &&[Nonzero<K>]| stretch.partition_point(|n| n.order(splitter).is_lt());
        let (part, rest) = stretches.iter().map(|stretch| stretch.split_at(cut(stretch))).unzip();
        parts.push(part);
        stretches = rest;
    }
    parts.push(stretches);
    parts
}

/// Sorts a part, made of sorted stretches, into `target`. `ends` is scratch.
fn merge<K: Key>(part: &[&[Nonzero<K>]], target: &mut [Nonzero<K>], ends: &mut Vec<usize>) {
    let low = part.iter().filter_map(|stretch| stretch.first()).map(|n| n.linear.widen()).min();
    let high = part.iter().filter_map(|stretch| stretch.last()).map(|n| n.linear.widen()).max();
    if let Some((low, high)) = low.zip(high) {
        spread(part, [low, high], target, ends);
    }
}

/// Sorts nonzeros from linear index `low` to `high` into `target`. They are spread over about as many buckets of equal width as there are of them, so
/// that a bucket holds few; where it holds many, they are sorted all the same. `ends` is scratch.
pub(super) fn spread<K: Key>(
    part: &[&[Nonzero<K>]],
    [low, high]: [u128; 2],
    target: &mut [Nonzero<K>],
    ends: &mut Vec<usize>,
) {
    let bits = u128::BITS - (high - low).leading_zeros();
    let shift = bits.saturating_sub(target.len().ilog2());
    let bucket = |n: &Nonzero<K>| ((n.linear.widen() - low) >> shift) as usize;
    // Bucket b is counted at b + 1, so that its beginning, and when it is filled its end, stands at b.
    ends.clear();
    ends.resize(((high - low) >> shift) as usize + 2, 0);
    part.iter().copied().flatten().for_each(|n| ends[bucket(n) + 1] += 1);
    let mut sum = 0;
    for end in &mut *ends {
        sum += *end;
        *end = sum;
    }
    for n in part.iter().copied().flatten() {
        let end = &mut ends[bucket(n)];
        target[*end] = *n;
        *end += 1;
    }
    let mut start = 0;
    for &end in &*ends {
        if end - start > 1 {
            target[start..end].sort_unstable_by(Nonzero::order);
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::super::spill::{FRAME_NNZ, SpillReader, SpillWriter, run_frame};
    use super::super::spilled::SpilledFile;
    use super::*;
    use crate::random::Counter;
    use crate::sys::Sys;

    #[test]
    fn any_number_of_runs_merges() {
        let sys = Sys::default();
        for runs in [1usize, 2, 3, 5, 8, 13] {
            let dir = tempfile::tempdir().unwrap();
            let random = Counter::new(runs as u64, 0);
            let mut all = Vec::new();
            let spilled: Vec<SpilledFile> = (0..runs as u64)
                .map(|run| {
                    let nnz = if run == 1 { 1 } else { 9000 };
                    // Ranges that overlap in part, so that runs end at different times.
                    let nonzero = |i| Nonzero {
                        linear: 3000 * run + random.bits(run << 32 | i) % 20_000,
                        value: (i % 7) as f64,
                    };
                    let mut nonzeros: Vec<Nonzero<u64>> = (0..nnz).map(nonzero).collect();
                    nonzeros.sort_by(Nonzero::order);
                    all.extend_from_slice(&nonzeros);
                    let file = sys.create(&dir.path().join(run.to_string())).unwrap();
                    let mut writer = SpillWriter::new(file, run.to_string());
                    nonzeros.chunks(FRAME_NNZ).for_each(|part| writer.write(&run_frame(part)).unwrap());
                    writer.finish()
                })
                .collect();
            all.sort_by(Nonzero::order);
            for memory in [0, 1 << 30] {
                let budget = Budget::new(memory, 0, 1 << 16);
                let mut merged = Vec::new();
                let open = |run: &SpilledFile| {
                    SpillReader::new(sys.open(&dir.path().join(&run.name), false).unwrap(), run)
                };
                Merge::<u64>::new(spilled.iter().map(open).collect(), budget)
                    .for_each_slice(|slice| {
                        merged.extend_from_slice(slice);
                        Ok(())
                    })
                    .unwrap();
                assert!(merged == all, "{runs} runs");
            }
        }
    }
}
