//! Sorting: batches in, nonzeros in linear order out, within a memory budget.
//!
//! While they come, batches are kept in memory; when the budget does not hold them they are staged on disk, a
//! file for each future run, because their linear index cannot be known before the last batch has settled the
//! shape. Then each staged file is linearized, sorted and written as a run, and the runs are merged. A tensor
//! that fits is sorted in memory and touches no disk.

use super::budget::Budget;
use super::merge::Merge;
use super::sort::sort;
use super::spill::{FRAME_NNZ, STAGE_NNZ, SpillFile, SpillReader, SpillWriter, run_frame, stage_frame};
use super::{Phase, Watch};
use crate::coo::Batch;
use crate::error::{Error, Result};
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::{Sys, Temporary};
use crossbeam_channel::bounded;
use rayon::prelude::*;
use std::path::PathBuf;

/// Nonzeros of the slices that are handed on.
const SLICE_NNZ: usize = 1 << 16;
/// Slices on their way from the merge to the encoder.
const SLICES: usize = 3;

/// Batches as they came, before the shape is known.
#[derive(Debug)]
pub struct Runs {
    sys: Sys,
    budget: Budget,
    spill_dir: PathBuf,
    order: usize,
    batches: Vec<Batch>,
    kept_nnz: u64,
    nnz: u64,
    staged: Option<Staged>,
}

/// Batches on disk.
#[derive(Debug)]
struct Staged {
    scratch: Temporary,
    files: Vec<SpillFile>,
    open: Option<SpillWriter>,
    run_nnz: u64,
}

/// What went to disk.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct SpillReport {
    /// Runs that were merged; 0 where everything was sorted in memory.
    pub runs: usize,
    /// Bytes of all temporary files together.
    pub bytes: u64,
    /// The most bytes of temporary files at one time.
    pub bytes_peak: u64,
}

impl Runs {
    /// Nothing yet. Temporary files go into a new directory in `spill_dir`.
    pub fn new(sys: &Sys, budget: Budget, spill_dir: PathBuf) -> Self {
        let sys = sys.clone();
        Self { sys, budget, spill_dir, order: 0, batches: Vec::new(), kept_nnz: 0, nnz: 0, staged: None }
    }

    /// Nonzeros so far.
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// Takes a batch.
    pub fn push(&mut self, batch: Batch) -> Result<()> {
        if batch.nnz() == 0 {
            return Ok(());
        }
        self.order = batch.indices.len() / batch.nnz();
        self.nnz += batch.nnz() as u64;
        self.kept_nnz += batch.nnz() as u64;
        self.batches.push(batch);
        let nonzero_bytes = size_of::<Nonzero<u128>>();
        match self.staged {
            None if self.budget.in_memory(self.kept_nnz, self.order, nonzero_bytes / 2) => Ok(()),
            Some(_) if self.kept_nnz < self.budget.stage_nnz(self.order) => Ok(()),
            _ => self.stage(),
        }
    }

    /// Moves the kept batches to disk: packed in parallel, written in order.
    fn stage(&mut self) -> Result<()> {
        if self.staged.is_none() {
            self.staged = Some(Staged {
                scratch: Temporary::dir(&self.sys, &self.spill_dir)?,
                files: Vec::new(),
                open: None,
                // The type of the key is not known yet: room for the wider one.
                run_nnz: self.budget.run_nnz(size_of::<Nonzero<u128>>()),
            });
        }
        let Some(staged) = &mut self.staged else { return Ok(()) };
        let order = self.order;
        for batches in std::mem::take(&mut self.batches).chunks(4 * rayon::current_num_threads()) {
            let frames: Vec<Vec<Vec<u8>>> = batches
                .par_iter()
                .map(|batch| {
                    let parts = batch.indices.chunks(STAGE_NNZ * order).zip(batch.values.chunks(STAGE_NNZ));
                    parts.map(|(indices, values)| stage_frame(indices, values, order)).collect()
                })
                .collect();
            frames.iter().flatten().try_for_each(|frame| staged.write(&self.sys, frame))?;
        }
        self.kept_nnz = 0;
        Ok(())
    }

    /// Linearizes and sorts by linear index, then by the total order of the values, so that the order of
    /// the input leaves no trace.
    pub fn sort<K: Key>(mut self, layout: &BitLayout, watch: Watch<'_>) -> Result<Sorted<K>> {
        if self.staged.is_some() {
            self.stage()?;
        }
        let linearizer = Linearizer::<K>::new(layout);
        let Some(staged) = self.staged.take() else {
            return Ok(Sorted::InMemory(sorted(&self.sys, &linearizer, self.batches)?));
        };
        let mut merger =
            Merger { sys: self.sys.clone(), runs: Vec::new(), report: SpillReport::default(), staged };
        merger.make_runs(&linearizer, self.order, self.nnz, watch)?;
        merger.reduce::<K>(self.budget.fan_in::<K>())?;
        Ok(Sorted::Runs(Box::new(merger)))
    }
}

impl Staged {
    fn write(&mut self, sys: &Sys, frame: &[u8]) -> Result<()> {
        let mut writer = match self.open.take() {
            Some(writer) => writer,
            None => {
                SpillWriter::create(sys, &self.scratch.path().join(format!("staged-{}", self.files.len())))?
            }
        };
        writer.write(frame)?;
        if writer.nnz() + STAGE_NNZ as u64 > self.run_nnz {
            self.files.push(writer.finish());
        } else {
            self.open = Some(writer);
        }
        Ok(())
    }
}

/// Linearizes batches in parallel and sorts them.
fn sorted<K: Key>(sys: &Sys, linearizer: &Linearizer<K>, batches: Vec<Batch>) -> Result<Vec<Nonzero<K>>> {
    let total: usize = batches.iter().map(Batch::nnz).sum();
    let mut nonzeros = sys.vec(Nonzero { linear: K::default(), value: 0.0 }, total)?;
    let mut rest = &mut nonzeros[..];
    let mut targets = Vec::with_capacity(batches.len());
    for batch in batches {
        let (target, behind) = std::mem::take(&mut rest).split_at_mut(batch.nnz());
        targets.push((batch, target));
        rest = behind;
    }
    targets.into_par_iter().for_each(|(batch, target)| linearize(linearizer, &batch, target));
    sort(&mut nonzeros);
    Ok(nonzeros)
}

fn linearize<K: Key>(linearizer: &Linearizer<K>, batch: &Batch, target: &mut [Nonzero<K>]) {
    let order = batch.indices.len() / batch.nnz().max(1);
    let rows = batch.indices.chunks_exact(order).zip(&batch.values);
    for (nonzero, (row, &value)) in target.iter_mut().zip(rows) {
        *nonzero = Nonzero { linear: linearizer.scatter(row), value };
    }
}

/// Runs on disk, on their way to be merged.
#[derive(Debug)]
pub struct Merger {
    sys: Sys,
    staged: Staged,
    runs: Vec<SpillFile>,
    report: SpillReport,
}

impl Merger {
    /// Turns each staged file into a run, and removes it.
    fn make_runs<K: Key>(
        &mut self,
        linearizer: &Linearizer<K>,
        order: usize,
        total: u64,
        watch: Watch<'_>,
    ) -> Result<()> {
        let last = self.staged.open.take().map(SpillWriter::finish);
        let files: Vec<SpillFile> = std::mem::take(&mut self.staged.files).into_iter().chain(last).collect();
        let mut on_disk: u64 = files.iter().map(|f| f.bytes).sum();
        self.report.bytes = on_disk;
        let largest = files.iter().map(|f| f.nnz).max().unwrap_or(0);
        let largest =
            usize::try_from(largest).map_err(|_| Error::request("a run exceeds the address space"))?;
        let mut nonzeros = self.sys.vec(Nonzero { linear: K::default(), value: 0.0 }, largest)?;
        let mut done = 0;
        for staged in files {
            self.sys.check_cancelled()?;
            nonzeros.clear();
            let mut reader = SpillReader::open(&self.sys, &staged)?;
            let mut batch = Batch::default();
            while reader.read_stage(order, &mut batch)? {
                let start = nonzeros.len();
                nonzeros.resize(start + batch.nnz(), Nonzero { linear: K::default(), value: 0.0 });
                linearize(linearizer, &batch, &mut nonzeros[start..]);
                batch.indices.clear();
                batch.values.clear();
            }
            sort(&mut nonzeros);
            let run = self.write_run(&nonzeros)?;
            on_disk += run.bytes;
            self.report.bytes += run.bytes;
            self.report.bytes_peak = self.report.bytes_peak.max(on_disk);
            on_disk -= staged.bytes;
            staged.remove(&self.sys)?;
            self.runs.push(run);
            done += nonzeros.len() as u64;
            watch(Phase::Sort, done, Some(total));
        }
        self.report.runs = self.runs.len();
        Ok(())
    }

    fn next_path(&self) -> PathBuf {
        self.staged.scratch.path().join(format!("run-{}", self.report.runs + self.runs.len()))
    }

    /// Writes sorted nonzeros as a run: frames packed in parallel, written in order.
    fn write_run<K: Key>(&self, nonzeros: &[Nonzero<K>]) -> Result<SpillFile> {
        let mut writer = SpillWriter::create(&self.sys, &self.next_path())?;
        for part in nonzeros.chunks(FRAME_NNZ * 4 * rayon::current_num_threads()) {
            let frames: Vec<Vec<u8>> = part.par_chunks(FRAME_NNZ).map(run_frame).collect();
            frames.iter().try_for_each(|frame| writer.write(frame))?;
        }
        Ok(writer.finish())
    }

    /// Merges runs into longer ones until `fan_in` are left.
    fn reduce<K: Key>(&mut self, fan_in: usize) -> Result<()> {
        while self.runs.len() > fan_in {
            let some: Vec<SpillFile> = self.runs.drain(..fan_in).collect();
            let path = self.staged.scratch.path().join(format!("merged-{}", self.report.bytes));
            let merged = Merge::<K>::open(&self.sys, &some)?.into_run(&self.sys, &path)?;
            some.into_iter().try_for_each(|run| run.remove(&self.sys))?;
            self.report.bytes += merged.bytes;
            self.runs.push(merged);
        }
        Ok(())
    }

    /// Merges on a thread of its own and hands the slices to `sink`, in order, on this one.
    fn for_each_slice<K: Key>(&self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        let mut merge = Merge::<K>::open(&self.sys, &self.runs)?;
        std::thread::scope(|scope| {
            let (full_sender, full) = bounded::<Result<Vec<Nonzero<K>>>>(SLICES);
            let (empty, empty_receiver) = bounded(SLICES);
            for _ in 0..SLICES {
                // The channel has room for all of them, and its receiver is right here.
                drop(empty.send(Vec::with_capacity(SLICE_NNZ)));
            }
            self.sys.spawn(scope, "merge".into(), move || {
                // A closed channel means that the other side has ended with an error of its own.
                while let Ok(mut slice) = empty_receiver.recv() {
                    let merged = merge.next_slice(&mut slice).map(|()| slice);
                    let last = merged.as_ref().map_or(true, Vec::is_empty);
                    if full_sender.send(merged).is_err() || last {
                        return;
                    }
                }
            })?;
            for slice in &full {
                let slice = slice?;
                if !slice.is_empty() {
                    sink(&slice)?;
                }
                // After its last slice the merging thread has gone.
                drop(empty.send(slice));
            }
            Ok(())
        })
    }
}

/// Nonzeros in linear order.
#[derive(Debug)]
pub enum Sorted<K> {
    /// All of them.
    InMemory(Vec<Nonzero<K>>),
    /// Runs that are merged while they are read.
    Runs(Box<Merger>),
}

impl<K: Key> Sorted<K> {
    /// Hands over all nonzeros in order, in slices of bounded length.
    pub fn for_each_slice(&self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        match self {
            Self::InMemory(nonzeros) => nonzeros.chunks(SLICE_NNZ).try_for_each(sink),
            Self::Runs(merger) => merger.for_each_slice(&mut sink),
        }
    }

    /// What went to disk.
    pub fn spilled(&self) -> SpillReport {
        match self {
            Self::InMemory(_) => SpillReport::default(),
            Self::Runs(merger) => merger.report,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;
    use crate::shape::Shape;

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

    fn collect<K: Key>(dims: &[u64], nnz: u64, memory: u64) -> (Vec<(u128, u64)>, SpillReport) {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let mut runs = Runs::new(&sys, Budget::new(memory, 2, 1 << 16), dir.path().to_path_buf());
        for batch in batches(dims, nnz) {
            runs.push(batch).unwrap();
        }
        let layout = BitLayout::new(&Shape::new(dims).unwrap());
        let sorted = runs.sort::<K>(&layout, &|_, _, _| {}).unwrap();
        let mut all = Vec::new();
        sorted
            .for_each_slice(|slice| {
                all.extend(slice.iter().map(|n| (n.linear.widen(), n.value.to_bits())));
                Ok(())
            })
            .unwrap();
        let report = sorted.spilled();
        drop(sorted);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "temporary files are gone");
        (all, report)
    }

    #[test]
    fn what_comes_out_does_not_depend_on_memory() {
        let narrow = [1000, 3, 70_000];
        let wide = [1 << 30, 1 << 31, 1 << 20];
        let (expected, report) = collect::<u64>(&narrow, 200_000, u64::MAX);
        assert_eq!((expected.len(), report.runs), (200_000, 0));
        assert!(expected.is_sorted_by_key(|n| n.0));
        for memory in [0, 1 << 20, 4 << 20] {
            let (all, report) = collect::<u64>(&narrow, 200_000, memory);
            assert!(report.runs >= 2 && report.bytes_peak > 0, "{report:?}");
            assert!(all == expected, "{memory} bytes");
        }
        // No memory at all: runs of one staged frame, merged two at a time.
        let (all, report) = collect::<u128>(&wide, 200_000, 0);
        assert!(report.runs > 10, "{report:?}");
        assert!(all == collect::<u128>(&wide, 200_000, u64::MAX).0);
    }
}
