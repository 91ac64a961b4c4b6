//! Sorting within a memory budget: takes batches, returns nonzeros in linear order.
//!
//! Batches are linearized when they arrive. Nonzeros that fit the budget are sorted in memory without touching the
//! disk. When the budget is full they are sorted and written as a run; at the end the runs are merged.

use super::budget::Budget;
use super::leading::sort_batches;
use super::merge::Merge;
use super::scratch::{ScratchDir, SpillReport};
use super::sort::sort;
use super::spill::{FRAME_NNZ, SpillReader, SpillWriter, run_frame};
use super::spilled::{RUN, SpilledFile};
use super::split::split;
use crate::coo::{Batch, Extent};
use crate::error::Result;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::Sys;
use rayon::prelude::*;

/// Nonzeros that wait for each thread, at most, to be linearized in parallel.
const PENDING_NNZ: usize = 1 << 17;

/// Nonzeros with their linear index, on their way into runs.
#[derive(Debug)]
pub struct Runs<K> {
    sys: Sys,
    budget: Budget,
    scratch: ScratchDir,
    linearizer: Linearizer<K>,
    pending: Vec<Batch>,
    pending_nnz: usize,
    /// The first `filled` are those of the next run.
    nonzeros: Vec<Nonzero<K>>,
    filled: usize,
    /// Whether these are sorted already.
    sorted: bool,
    /// Nonzeros of a run, at most.
    run_nnz: usize,
}

impl<K: Key> Runs<K> {
    /// Nothing but the runs in `scratch`.
    pub fn new(sys: &Sys, budget: Budget, scratch: ScratchDir, layout: &BitLayout) -> Self {
        Self {
            sys: sys.clone(),
            budget,
            scratch,
            linearizer: Linearizer::new(layout),
            pending: Vec::new(),
            pending_nnz: 0,
            nonzeros: Vec::new(),
            filled: 0,
            sorted: false,
            run_nnz: budget.run_nnz::<K>(),
        }
    }

    /// Lets runs have at least `nnz` nonzeros.
    pub fn hold(&mut self, nnz: usize) {
        self.run_nnz = self.run_nnz.max(nnz);
    }

    /// Whether the next run has room for `nnz` more nonzeros.
    pub fn holds(&self, nnz: u64) -> bool {
        (self.filled + self.pending_nnz) as u64 + nnz <= self.run_nnz as u64
    }

    /// Reads a finished staged file.
    pub fn open_staged(&self, file: &SpilledFile) -> Result<SpillReader> {
        self.scratch.open(file)
    }

    /// Takes all of the tensor, `nnz` nonzeros, where nothing came before and memory holds them beside `batches`.
    pub fn take_all(&mut self, batches: Vec<Batch>, nnz: usize, layout: &BitLayout) -> Result<()> {
        self.nonzeros = sort_batches(&self.sys, batches, nnz, layout)?;
        (self.filled, self.sorted) = (nnz, true);
        Ok(())
    }

    /// Takes the next batch.
    pub fn push(&mut self, batch: Batch) -> Result<()> {
        if !self.holds(batch.nnz() as u64) && self.filled + self.pending_nnz > 0 {
            self.spill(Vec::new())?;
        }
        self.sorted = false;
        self.pending_nnz += batch.nnz();
        self.pending.push(batch);
        let most = (rayon::current_num_threads() * PENDING_NNZ).min(self.run_nnz / 8);
        if self.pending_nnz < most { Ok(()) } else { self.linearize() }
    }

    /// Linearizes the pending batches in parallel.
    fn linearize(&mut self) -> Result<()> {
        let filled = self.filled + self.pending_nnz;
        if filled > self.nonzeros.len() {
            self.sys.reserve(&mut self.nonzeros, filled, self.run_nnz)?;
            let more = filled - self.nonzeros.len();
            self.nonzeros.par_extend(rayon::iter::repeat_n(Nonzero::default(), more));
        }
        let batches = std::mem::take(&mut self.pending);
        let targets = split(&mut self.nonzeros[self.filled..filled], batches.iter().map(Batch::nnz));
        let linearizer = &self.linearizer;
        let work = batches.into_par_iter().zip(targets);
        work.for_each(|(batch, target)| linearize(linearizer, &batch, target));
        (self.filled, self.pending_nnz) = (filled, 0);
        Ok(())
    }

    /// Sorts what is there and writes it as a run, which holds what was in the staged files `from`.
    pub fn spill(&mut self, from: Vec<SpilledFile>) -> Result<()> {
        self.linearize()?;
        let nonzeros = &mut self.nonzeros[..self.filled];
        sort(nonzeros);
        self.scratch.check_room(nonzeros.len() as u64)?;
        let mut writer = self.scratch.create(RUN)?;
        write_frames(&mut writer, nonzeros, &self.budget)?;
        self.filled = 0;
        self.scratch.add_run(writer.finish(), from)
    }

    /// Takes note that the input has been read to its end, where it came here at once.
    pub fn drained(&mut self, extent: &Extent) -> Result<()> {
        self.linearize()?;
        if self.scratch.is_empty() && self.budget.writes_from_memory::<K>(self.filled) {
            return Ok(());
        }
        if self.filled > 0 {
            self.spill(Vec::new())?;
        }
        self.scratch.drained(extent)
    }

    /// Sorts by linear index, then by the total order of the values, so that the order of the input leaves no trace.
    pub fn sort(mut self) -> Result<SortedRuns<K>> {
        self.linearize()?;
        if self.scratch.is_empty() {
            self.nonzeros.truncate(self.filled);
            if !self.sorted {
                sort(&mut self.nonzeros);
            }
            return Ok(SortedRuns::InMemory(self.nonzeros));
        }
        let mut merger = Merger { sys: self.sys, budget: self.budget, scratch: self.scratch };
        drop(self.nonzeros);
        merger.reduce::<K>()?;
        Ok(SortedRuns::Runs(Box::new(merger)))
    }
}

fn linearize<K: Key>(linearizer: &Linearizer<K>, batch: &Batch, target: &mut [Nonzero<K>]) {
    let order = batch.order();
    let rows = batch.indices.chunks_exact(order.max(1)).zip(&batch.values);
    for (nonzero, (row, &value)) in target.iter_mut().zip(rows) {
        *nonzero = Nonzero { linear: linearizer.scatter(row), value };
    }
}

/// Appends sorted nonzeros to a run: frames packed in parallel, written in order while the next are packed.
pub fn write_frames<K: Key>(
    writer: &mut SpillWriter,
    nonzeros: &[Nonzero<K>],
    budget: &Budget,
) -> Result<()> {
    let pack = |part: &[Nonzero<K>]| -> Vec<Vec<u8>> { part.par_chunks(FRAME_NNZ).map(run_frame).collect() };
    let mut packed: Vec<Vec<u8>> = Vec::new();
    for part in nonzeros.chunks(FRAME_NNZ * budget.frames_at_once()) {
        let write = || packed.iter().try_for_each(|frame| writer.write(frame));
        let (written, next) = rayon::join(write, || pack(part));
        written?;
        packed = next;
    }
    packed.iter().try_for_each(|frame| writer.write(frame))
}

/// Runs on disk, on their way to be merged.
#[derive(Debug)]
pub struct Merger {
    sys: Sys,
    budget: Budget,
    scratch: ScratchDir,
}

impl Merger {
    /// Merges runs into longer ones until as many are left as can be merged at once.
    fn reduce<K: Key>(&mut self) -> Result<()> {
        let fan_in = self.budget.fan_in::<K>();
        while self.scratch.runs.len() > fan_in {
            self.merge_first::<K>(fan_in)?;
        }
        Ok(())
    }

    /// Merges the first `count` runs into one.
    fn merge_first<K: Key>(&mut self, count: usize) -> Result<()> {
        let some: Vec<SpilledFile> = self.scratch.runs.drain(..count).collect();
        let mut writer = self.scratch.create(RUN)?;
        let merge = self.merge::<K>(&some)?;
        merge.for_each_slice(|slice| {
            self.sys.check_cancelled()?;
            write_frames(&mut writer, slice, &self.budget)
        })?;
        self.scratch.add_run(writer.finish(), some)
    }

    /// A merge of finished runs, from their beginnings.
    fn merge<K: Key>(&self, runs: &[SpilledFile]) -> Result<Merge<K>> {
        self.merge_within(runs, self.budget)
    }

    fn merge_within<K: Key>(&self, runs: &[SpilledFile], budget: Budget) -> Result<Merge<K>> {
        let readers = runs.iter().map(|run| self.scratch.open(run)).collect::<Result<_>>()?;
        Ok(Merge::new(readers, budget))
    }
}

/// Nonzeros in linear order.
#[derive(Debug)]
pub enum SortedRuns<K> {
    /// All of them.
    InMemory(Vec<Nonzero<K>>),
    /// Runs that are merged while they are read.
    Runs(Box<Merger>),
}

impl<K: Key> SortedRuns<K> {
    /// Hands over all nonzeros in order.
    pub fn for_each_slice(&self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()> + Send) -> Result<()> {
        match self {
            Self::InMemory(nonzeros) => sink(nonzeros),
            Self::Runs(merger) => merger.merge(&merger.scratch.runs)?.for_each_slice(&mut sink),
        }
    }

    /// The same with other buffers.
    pub fn for_each_slice_within(
        &self,
        budget: Budget,
        mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()> + Send,
    ) -> Result<()> {
        match self {
            Self::InMemory(nonzeros) => sink(nonzeros),
            Self::Runs(merger) => {
                merger.merge_within(&merger.scratch.runs, budget)?.for_each_slice(&mut sink)
            }
        }
    }

    /// What went to disk.
    pub fn spilled(&self) -> SpillReport {
        match self {
            Self::InMemory(_) => SpillReport::default(),
            Self::Runs(merger) => merger.scratch.report(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::{Found, Job, Journal, VERSION};
    use super::super::leading::THREADS_MIN;
    use super::super::scratch::Place;
    use super::super::stage::StagedBatches;
    use super::*;
    use crate::linear::Wide;
    use crate::random::Counter;
    use crate::shape::Shape;
    use std::path::Path;

    /// Batches of uneven length with a few coordinates that repeat.
    fn batches(dims: &[u64], nnz: u64) -> Vec<Batch> {
        let order = dims.len();
        let random: Vec<Counter> = (0..=order as u64).map(|stream| Counter::new(9, stream)).collect();
        let row = |i: u64| (0..order).map(move |m| (m, i));
        let index = |(m, i): (usize, u64)| u32::try_from(random[m].bits(i / 2) % dims[m]).unwrap();
        let mut batches = Vec::new();
        let mut from = 0;
        while from < nnz {
            let to = (from + 1 + random[0].bits(from) % 9000).min(nnz);
            let indices = (from..to).flat_map(row).map(index).collect();
            let values = (from..to).map(|i| (random[order].bits(i) % 5) as f64 - 2.0).collect();
            batches.push(Batch { indices, values });
            from = to;
        }
        batches
    }

    /// Of a new job in `dir`.
    fn begun(sys: &Sys, dir: &Path) -> ScratchDir {
        let place = Place::new(sys, dir, Some(dir.to_path_buf()));
        let (input, options, spill_dir) = (String::new(), String::new(), place.path.clone());
        let job = Job { version: VERSION, input, identity: None, options, spill_dir };
        let journal = Journal::create(sys, dir, &job, place.owner.key).unwrap();
        ScratchDir::new(sys, place, Some(journal))
    }

    fn collect<K: Key>(
        dims: &[u64],
        nnz: u64,
        memory: u64,
        declared: bool,
    ) -> (Vec<(u128, u64)>, SpillReport) {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let budget = Budget::new(memory, 16 << 20, 14 << 20);
        let scratch = begun(&sys, dir.path());
        let layout = BitLayout::new(&Shape::new(dims).unwrap());
        let extent = Extent { dims: dims.to_vec(), nnz };
        let runs = if declared {
            let mut runs = Runs::<K>::new(&sys, budget, scratch, &layout);
            batches(dims, nnz).into_iter().try_for_each(|batch| runs.push(batch)).unwrap();
            runs.drained(&extent).unwrap();
            runs
        } else {
            let mut stage = StagedBatches::new(&sys, budget, scratch);
            batches(dims, nnz).into_iter().try_for_each(|batch| stage.push(batch)).unwrap();
            stage.drained(&extent).unwrap();
            stage.into_runs::<K>(&extent, &layout, &|_, _, _| {}).unwrap()
        };
        let sorted = runs.sort().unwrap();
        let mut all = Vec::new();
        sorted
            .for_each_slice(|slice| {
                all.extend(slice.iter().map(|n| (n.linear.widen(), n.value.to_bits())));
                Ok(())
            })
            .unwrap();
        let report = sorted.spilled();
        drop(sorted);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the journal is left");
        (all, report)
    }

    /// A job that is killed and resumed again and again, after each of its merges: names of finished files are not given
    /// twice, or a merge would remove what it is about to read.
    #[test]
    fn a_resumed_job_keeps_its_files() {
        let dims = [1000, 3, 70_000];
        let nnz = 200_000;
        let (dir, sys) = (tempfile::tempdir().unwrap(), Sys::default());
        let layout = BitLayout::new(&Shape::new(&dims).unwrap());
        let budget = Budget::new(0, 0, 1 << 16);
        for round in 0.. {
            let scratch = if round == 0 {
                let mut runs = Runs::<u64>::new(&sys, budget, begun(&sys, dir.path()), &layout);
                batches(&dims, nnz).into_iter().try_for_each(|batch| runs.push(batch)).unwrap();
                runs.drained(&Extent { dims: dims.to_vec(), nnz }).unwrap();
                runs.scratch
            } else {
                let found = Found::read(&sys, dir.path()).unwrap().unwrap();
                let spill_path = found.job.spill_path(dir.path()).unwrap();
                let mut spill_dir = sys.open_spill_dir(&spill_path).unwrap().unwrap();
                assert!(spill_dir.take().unwrap());
                let finished = found.finished(spill_dir.owner().key).unwrap();
                let runs = finished.runs.len();
                let scratch = ScratchDir::resumed(&sys, spill_dir, found.resume(), finished);
                assert_eq!(scratch.report().runs, runs, "the report counts those that were there");
                scratch.check_runs::<u64>(&dims, &layout).unwrap();
                scratch
            };
            let mut merger = Merger { sys: sys.clone(), budget, scratch };
            let left = &merger.scratch.runs;
            assert_eq!(left.iter().map(|run| run.nnz).sum::<u64>(), nnz, "round {round}");
            if left.len() == 2 {
                assert!(round > 1, "{round} merges");
                break;
            }
            // One merge of two, then the job is killed.
            merger.merge_first::<u64>(2).unwrap();
            merger.scratch.leave();
        }
    }

    #[test]
    fn what_comes_out_does_not_depend_on_memory_or_declared_dims() {
        let narrow = [1000, 3, 70_000];
        let wide = [1 << 30, 1 << 31, 1 << 20];
        let (expected, report) = collect::<u64>(&narrow, 200_000, u64::MAX, false);
        assert_eq!((expected.len(), report.runs), (200_000, 0));
        assert!(expected.is_sorted_by_key(|n| n.0));
        assert!(collect::<u64>(&narrow, 200_000, u64::MAX, true).0 == expected);
        for threads in [1, THREADS_MIN] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let sorted = pool.install(|| collect::<u64>(&narrow, 200_000, u64::MAX, false).0);
            assert!(sorted == expected, "{threads} threads");
        }
        for declared in [false, true] {
            for memory in [0, 1 << 20, 4 << 20] {
                let (all, report) = collect::<u64>(&narrow, 200_000, memory, declared);
                assert!(report.runs >= 1 && report.bytes_peak > 0, "{report:?}");
                assert!(all == expected, "{memory} bytes");
            }
            // No memory at all: runs of one staged frame, merged two at a time.
            let (all, report) = collect::<Wide>(&wide, 200_000, 0, declared);
            assert!(report.runs > 10, "{report:?}");
            assert!(all == collect::<Wide>(&wide, 200_000, u64::MAX, declared).0);
        }
    }
}
