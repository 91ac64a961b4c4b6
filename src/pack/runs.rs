//! Sorting: batches in, nonzeros in linear order out, within a memory budget.
//!
//! While they come, batches are kept in memory; when the budget does not hold them they are staged on disk, a
//! file for each future run, because their linear index cannot be known before the last batch has settled the
//! shape. Then each staged file is linearized, sorted and written as a run, and the runs are merged. A tensor
//! that fits is sorted in memory and touches no disk.

use super::budget::Budget;
use super::journal::{Done, Entry, Finished, Journal};
use super::merge::Merge;
use super::plan::no_room;
use super::sort::sort;
use super::spill::{FRAME_NNZ, STAGE_NNZ, SpillFile, SpillReader, SpillWriter, run_frame, stage_frame};
use super::{Phase, Watch};
use crate::coo::{Batch, Extent};
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
    order: usize,
    batches: Vec<Batch>,
    kept_nnz: u64,
    nnz: u64,
    /// Nonzeros of the input that a job before this one has staged.
    skip_nnz: u64,
    spill: Spill,
}

/// Batches on disk, and the journal of what is there.
#[derive(Debug)]
struct Spill {
    sys: Sys,
    /// The directory, once something is in it.
    scratch: Option<Temporary>,
    dir: PathBuf,
    journal: Journal,
    staged: Vec<SpillFile>,
    runs: Vec<SpillFile>,
    open: Option<SpillWriter>,
    run_nnz: u64,
    /// The number in the name of the next file.
    files: usize,
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
    /// Nonzeros that an earlier, killed job had brought to disk.
    pub resumed_nnz: u64,
}

impl Runs {
    /// Nothing but what `finished` says is there. Temporary files go into the directory `dir`, which is created when
    /// it is needed; `journal` is told of them.
    pub fn new(sys: &Sys, budget: Budget, dir: PathBuf, journal: Journal, finished: &Finished) -> Self {
        let file = |done: &Done| SpillFile::finished(dir.join(&done.name), done.nnz, done.bytes);
        let spill = Spill {
            sys: sys.clone(),
            scratch: dir.is_dir().then(|| Temporary::at(sys, dir.clone())),
            journal,
            staged: finished.staged.iter().map(file).collect(),
            runs: finished.runs.iter().map(file).collect(),
            open: None,
            // The type of the key is not known yet: room for the wider one.
            run_nnz: budget.run_nnz(size_of::<Nonzero<u128>>()),
            files: finished.next_number(),
            dir,
        };
        let (sys, skip_nnz) = (sys.clone(), finished.nnz());
        Self { sys, budget, order: 0, batches: Vec::new(), kept_nnz: 0, nnz: 0, skip_nnz, spill }
    }

    /// Nonzeros so far.
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// Takes the next batch of the input, which begins where it always began.
    pub fn push(&mut self, mut batch: Batch) -> Result<()> {
        if batch.nnz() == 0 {
            return Ok(());
        }
        self.order = batch.indices.len() / batch.nnz();
        let staged_before = self.skip_nnz.saturating_sub(self.nnz).min(batch.nnz() as u64);
        self.nnz += batch.nnz() as u64;
        let skip = usize::try_from(staged_before).unwrap_or(usize::MAX);
        batch.indices.drain(..skip * self.order);
        batch.values.drain(..skip);
        self.kept_nnz += batch.nnz() as u64;
        self.batches.push(batch);
        if self.spill.is_empty() {
            let fits = self.budget.in_memory(self.kept_nnz, self.order, size_of::<Nonzero<u64>>());
            return if fits { Ok(()) } else { self.stage() };
        }
        if self.kept_nnz < self.budget.stage_nnz(self.order) { Ok(()) } else { self.stage() }
    }

    /// Moves the kept batches to disk: packed in parallel, written in order.
    fn stage(&mut self) -> Result<()> {
        let order = self.order;
        for batches in std::mem::take(&mut self.batches).chunks(4 * rayon::current_num_threads()) {
            let frames: Vec<Vec<Vec<u8>>> = batches
                .par_iter()
                .map(|batch| {
                    let parts = batch.indices.chunks(STAGE_NNZ * order).zip(batch.values.chunks(STAGE_NNZ));
                    parts.map(|(indices, values)| stage_frame(indices, values, order)).collect()
                })
                .collect();
            frames.iter().flatten().try_for_each(|frame| self.spill.stage(frame))?;
        }
        self.kept_nnz = 0;
        Ok(())
    }

    /// Takes note that the input has been read to its end.
    pub fn drained(&mut self, extent: &Extent) -> Result<()> {
        (self.order, self.nnz) = (extent.dims.len(), extent.nnz);
        if self.spill.is_empty() {
            return Ok(());
        }
        self.stage()?;
        self.spill.close_staged()?;
        self.spill.journal.add(&Entry::Drained { dims: extent.dims.clone(), nnz: extent.nnz })
    }

    /// Linearizes and sorts by linear index, then by the total order of the values, so that the order of
    /// the input leaves no trace.
    pub fn sort<K: Key>(self, layout: &BitLayout, watch: Watch<'_>) -> Result<Sorted<K>> {
        let linearizer = Linearizer::<K>::new(layout);
        if self.spill.is_empty() {
            return Ok(Sorted::InMemory(sorted(&self.sys, &linearizer, self.batches)?));
        }
        let report = SpillReport { resumed_nnz: self.skip_nnz, ..SpillReport::default() };
        let mut merger = Merger { sys: self.sys.clone(), report, spill: self.spill };
        merger.make_runs(&linearizer, self.order, self.nnz, watch)?;
        merger.reduce::<K>(self.budget.fan_in::<K>())?;
        Ok(Sorted::Runs(Box::new(merger)))
    }
}

impl Spill {
    /// Whether nothing is on disk.
    fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.runs.is_empty() && self.open.is_none()
    }

    /// A path that no finished file has.
    fn next_path(&mut self, kind: &str) -> Result<PathBuf> {
        if self.scratch.is_none() {
            self.sys.create_dir(&self.dir)?;
            self.scratch = Some(Temporary::at(&self.sys, self.dir.clone()));
        }
        let path = self.dir.join(format!("{kind}-{}", self.files));
        self.files += 1;
        // What a killed job left unfinished under this name is of no use.
        if path.symlink_metadata().is_ok() {
            self.sys.remove_file(&path)?;
        }
        Ok(path)
    }

    /// An error if the disk has no room for a file of `nnz` nonzeros: as many bytes each as in the files so far.
    fn check_room(&self, nnz: u64) -> Result<()> {
        let files = || self.staged.iter().chain(&self.runs);
        let (bytes, of): (u64, u64) = files().fold((0, 0), |(b, n), file| (b + file.bytes, n + file.nnz));
        let needed = u128::from(bytes) * u128::from(nnz) / u128::from(of.max(1));
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        let free = self.sys.free_bytes(&self.dir)?;
        if needed > free { Err(no_room(needed, free, &self.dir)) } else { Ok(()) }
    }

    /// Appends a staged frame.
    fn stage(&mut self, frame: &[u8]) -> Result<()> {
        let mut writer = if let Some(writer) = self.open.take() {
            writer
        } else {
            let path = self.next_path("staged")?;
            self.check_room(self.run_nnz)?;
            SpillWriter::create(&self.sys, &path)?
        };
        writer.write(frame)?;
        let full = writer.nnz() + STAGE_NNZ as u64 > self.run_nnz;
        self.open = Some(writer);
        if full { self.close_staged() } else { Ok(()) }
    }

    /// Finishes the open staged file.
    fn close_staged(&mut self) -> Result<()> {
        let Some(writer) = self.open.take() else { return Ok(()) };
        let file = writer.finish();
        self.journal.add(&Entry::Staged(file.done()))?;
        self.staged.push(file);
        Ok(())
    }

    /// Takes note of a finished run, then removes what it was made from.
    fn add_run(&mut self, run: SpillFile, from: Vec<SpillFile>) -> Result<()> {
        let names = from.iter().map(|file| file.done().name).collect();
        self.journal.add(&Entry::Run { run: run.done(), from: names })?;
        self.runs.push(run);
        from.into_iter().try_for_each(|file| file.remove(&self.sys))
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
    spill: Spill,
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
        let files = std::mem::take(&mut self.spill.staged);
        let mut on_disk: u64 = files.iter().chain(&self.spill.runs).map(|f| f.bytes).sum();
        self.report.bytes = on_disk;
        self.report.bytes_peak = on_disk;
        let largest = files.iter().map(|f| f.nnz).max().unwrap_or(0);
        let largest =
            usize::try_from(largest).map_err(|_| Error::request("a run exceeds the address space"))?;
        let mut nonzeros = self.sys.vec(Nonzero { linear: K::default(), value: 0.0 }, largest)?;
        let mut done: u64 = self.spill.runs.iter().map(|run| run.nnz).sum();
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
            self.spill.add_run(run, vec![staged])?;
            done += nonzeros.len() as u64;
            watch(Phase::Sort, done, Some(total));
        }
        self.report.runs = self.spill.runs.len();
        Ok(())
    }

    /// Writes sorted nonzeros as a run: frames packed in parallel, written in order.
    fn write_run<K: Key>(&mut self, nonzeros: &[Nonzero<K>]) -> Result<SpillFile> {
        let path = self.spill.next_path("run")?;
        self.spill.check_room(nonzeros.len() as u64)?;
        let mut writer = SpillWriter::create(&self.sys, &path)?;
        for part in nonzeros.chunks(FRAME_NNZ * 4 * rayon::current_num_threads()) {
            let frames: Vec<Vec<u8>> = part.par_chunks(FRAME_NNZ).map(run_frame).collect();
            frames.iter().try_for_each(|frame| writer.write(frame))?;
        }
        Ok(writer.finish())
    }

    /// Merges runs into longer ones until `fan_in` are left.
    fn reduce<K: Key>(&mut self, fan_in: usize) -> Result<()> {
        while self.spill.runs.len() > fan_in {
            let some: Vec<SpillFile> = self.spill.runs.drain(..fan_in).collect();
            let path = self.spill.next_path("run")?;
            let merged = Merge::<K>::open(&self.sys, &some)?.into_run(&self.sys, &path)?;
            self.report.bytes += merged.bytes;
            self.spill.add_run(merged, some)?;
        }
        Ok(())
    }

    /// Merges on a thread of its own and hands the slices to `sink`, in order, on this one.
    fn for_each_slice<K: Key>(&self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        let mut merge = Merge::<K>::open(&self.sys, &self.spill.runs)?;
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
    use super::super::journal::Job;
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
        let job = Job {
            version: 1,
            input: String::new(),
            identity: None,
            options: String::new(),
            spill_dir: dir.path().join("spill"),
        };
        let journal = Journal::create(&sys, dir.path(), &job).unwrap();
        let budget = Budget::new(memory, 2, 1 << 16);
        let mut runs = Runs::new(&sys, budget, job.spill_dir, journal, &Finished::default());
        for batch in batches(dims, nnz) {
            runs.push(batch).unwrap();
        }
        runs.drained(&Extent { dims: dims.to_vec(), nnz }).unwrap();
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
        let spill_dir = dir.path().join("spill");
        let (input, options) = (String::new(), String::new());
        let job = Job { version: 1, input, identity: None, options, spill_dir: spill_dir.clone() };
        let layout = BitLayout::new(&Shape::new(&dims).unwrap());
        let linearizer = Linearizer::<u64>::new(&layout);
        drop(Journal::create(&sys, dir.path(), &job).unwrap());
        for round in 0.. {
            let (_, finished, bytes) = Journal::read(&sys, dir.path()).unwrap().unwrap();
            let journal = Journal::resume(&sys, dir.path(), bytes).unwrap();
            let mut runs = Runs::new(&sys, Budget::new(0, 2, 1 << 16), spill_dir.clone(), journal, &finished);
            if round == 0 {
                for batch in batches(&dims, nnz) {
                    runs.push(batch).unwrap();
                }
            }
            runs.drained(&Extent { dims: dims.to_vec(), nnz }).unwrap();
            let (order, report) = (runs.order, SpillReport::default());
            let mut merger = Merger { sys: sys.clone(), report, spill: runs.spill };
            merger.make_runs(&linearizer, order, nnz, &|_, _, _| {}).unwrap();
            let left = merger.spill.runs.len();
            assert_eq!(merger.spill.runs.iter().map(|run| run.nnz).sum::<u64>(), nnz, "round {round}");
            if left == 2 {
                assert!(round > 5, "{round} merges");
                break;
            }
            // One merge of two, then the job is killed.
            let rest = merger.spill.runs.split_off(3);
            merger.reduce::<u64>(2).unwrap();
            merger.spill.runs.extend(rest);
            std::mem::forget(merger);
        }
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
