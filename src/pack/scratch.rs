//! The temporary files of a packing job: where they are, what the journal says of them, how much there is.

use super::journal::{Done, Entry, Finished, Journal};
use super::plan::no_room;
use super::spill::SpillFile;
use crate::coo::Extent;
use crate::error::Result;
use crate::sys::{Sys, Temporary};
use std::path::PathBuf;

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

/// Finished temporary files. Each is in the journal before what it was made from is removed.
#[derive(Debug)]
pub struct Scratch {
    sys: Sys,
    /// The directory, once something is in it.
    made: Option<Temporary>,
    dir: PathBuf,
    /// `None` for a job that nobody will resume.
    journal: Option<Journal>,
    /// Batches that wait to become runs.
    pub staged: Vec<SpillFile>,
    /// Sorted nonzeros.
    pub runs: Vec<SpillFile>,
    /// The number in the name of the next file.
    files: usize,
    on_disk: u64,
    report: SpillReport,
}

impl Scratch {
    /// Of a job that nobody will resume: nothing yet, and what comes goes to the directory `dir`.
    pub fn passing(sys: &Sys, dir: PathBuf) -> Self {
        Self::of(sys, dir, None, &Finished::default())
    }

    /// What `finished` says is in the directory `dir`, which is created when it is needed; `journal` is told of what
    /// is added.
    pub fn new(sys: &Sys, dir: PathBuf, journal: Journal, finished: &Finished) -> Self {
        Self::of(sys, dir, Some(journal), finished)
    }

    fn of(sys: &Sys, dir: PathBuf, journal: Option<Journal>, finished: &Finished) -> Self {
        let file = |done: &Done| SpillFile::finished(dir.join(&done.name), done.nnz, done.bytes);
        let on_disk = finished.bytes();
        Self {
            sys: sys.clone(),
            made: dir.is_dir().then(|| Temporary::at(sys, dir.clone())),
            journal,
            staged: finished.staged.iter().map(file).collect(),
            runs: finished.runs.iter().map(file).collect(),
            files: finished.next_number(),
            on_disk,
            report: SpillReport {
                runs: finished.runs.len(),
                bytes: on_disk,
                bytes_peak: on_disk,
                resumed_nnz: finished.nnz(),
            },
            dir,
        }
    }

    /// What went to disk so far.
    pub fn report(&self) -> SpillReport {
        self.report
    }

    /// Whether no file is finished.
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.runs.is_empty()
    }

    /// A path that no finished file has.
    pub fn next_path(&mut self, kind: &str) -> Result<PathBuf> {
        if self.made.is_none() {
            self.sys.create_dir(&self.dir)?;
            self.made = Some(Temporary::at(&self.sys, self.dir.clone()));
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
    pub fn check_room(&self, nnz: u64) -> Result<()> {
        let files = || self.staged.iter().chain(&self.runs);
        let (bytes, of): (u64, u64) = files().fold((0, 0), |(b, n), file| (b + file.bytes, n + file.nnz));
        let needed = u128::from(bytes) * u128::from(nnz) / u128::from(of.max(1));
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        let free = self.sys.free_bytes(&self.dir)?;
        if needed > free { Err(no_room(needed, free, &self.dir)) } else { Ok(()) }
    }

    /// Takes note of a finished staged file.
    pub fn add_staged(&mut self, file: SpillFile) -> Result<()> {
        self.note(|| Entry::Staged(file.done()))?;
        self.grow(file.bytes);
        self.staged.push(file);
        Ok(())
    }

    /// Takes note of a finished run, then removes what it was made from: staged files, runs, or, where it comes
    /// straight from the input, nothing.
    pub fn add_run(&mut self, run: SpillFile, from: Vec<SpillFile>) -> Result<()> {
        let names = from.iter().map(|file| file.done().name).collect();
        self.note(|| Entry::Run { run: run.done(), from: names })?;
        self.grow(run.bytes);
        self.runs.push(run);
        for file in from {
            self.on_disk -= file.bytes;
            file.remove(&self.sys)?;
        }
        self.report.runs = self.report.runs.max(self.runs.len());
        Ok(())
    }

    /// Takes note that the input has been read to its end and that all of it is in finished files.
    pub fn drained(&mut self, extent: &Extent) -> Result<()> {
        self.note(|| Entry::Drained { dims: extent.dims.clone(), nnz: extent.nnz })
    }

    fn note(&mut self, entry: impl FnOnce() -> Entry) -> Result<()> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.add(&entry()))
    }

    fn grow(&mut self, bytes: u64) {
        self.on_disk += bytes;
        self.report.bytes += bytes;
        self.report.bytes_peak = self.report.bytes_peak.max(self.on_disk);
    }
}
