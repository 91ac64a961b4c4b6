//! The temporary files of a packing job: their places, their journal entries, their sizes.

use super::journal::{self, Entry, Finished, Journal};
use super::plan::no_room;
use super::spill::{SpillReader, SpillWriter};
use super::spilled::{self, SpilledFile};
use crate::coo::Extent;
use crate::error::{Error, Result};
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::{SpillDir, SpillOwner, Sys, spill_name};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

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

impl SpillReport {
    /// Adds what went to disk beside `beside`.
    pub(super) fn add(&mut self, beside: Self, more: Self) {
        self.runs = self.runs.max(more.runs);
        self.bytes += more.bytes;
        self.bytes_peak = self.bytes_peak.max(beside.bytes_peak + more.bytes_peak);
    }
}

/// Where the temporary files of a job go.
#[derive(Debug)]
pub struct Place {
    /// A directory, which is made when it is needed.
    pub path: PathBuf,
    /// Whose it is.
    pub owner: SpillOwner,
}

impl Place {
    /// In a new directory in `parent`, for a job that may be resumed from `resumed_from`. What killed programs left in `parent` goes.
    pub fn new(sys: &Sys, parent: &Path, resumed_from: Option<PathBuf>) -> Self {
        sys.remove_abandoned_spill_dirs(parent, |sys, dir| {
            let job = dir.owner().resumed_from.as_deref();
            job.is_some_and(|partial| journal::may_name(sys, partial, dir.path()))
        });
        Self { path: parent.join(spill_name()), owner: SpillOwner::new(resumed_from) }
    }
}

/// Makes a directory in `parent` for what is needed for a while, which goes with what is returned. What killed programs left in `parent`
/// goes too.
pub fn passing_dir(sys: &Sys, parent: &Path) -> Result<SpillDir> {
    let place = Place::new(sys, parent, None);
    sys.make_spill_dir(&place.path, &place.owner)
}

/// Finished temporary files. Each is in the journal before what it was made from is removed.
#[derive(Debug)]
pub struct ScratchDir {
    sys: Sys,
    place: Place,
    /// The directory, once something is in it.
    made: Option<SpillDir>,
    /// `None` for a job that cannot be resumed.
    journal: Option<Journal>,
    /// Batches that wait to become runs.
    pub staged: Vec<SpilledFile>,
    /// Sorted nonzeros.
    pub runs: Vec<SpilledFile>,
    /// The number in the name of the next file.
    next_number: u32,
    on_disk: u64,
    report: SpillReport,
}

impl ScratchDir {
    /// For a job that cannot be resumed: no files yet. New ones go to a directory in `parent`.
    pub fn passing(sys: &Sys, parent: &Path) -> Self {
        Self::new(sys, Place::new(sys, parent, None), None)
    }

    /// For a new job: no files yet. `journal`, for a job that can be resumed, records new files.
    pub fn new(sys: &Sys, place: Place, journal: Option<Journal>) -> Self {
        Self {
            sys: sys.clone(),
            place,
            made: None,
            journal,
            staged: Vec::new(),
            runs: Vec::new(),
            next_number: 0,
            on_disk: 0,
            report: SpillReport::default(),
        }
    }

    /// Of a job that goes on with what `finished` says is in `dir`, which it has taken.
    pub fn resumed(sys: &Sys, dir: SpillDir, journal: Journal, finished: Finished) -> Self {
        let (on_disk, resumed_nnz) = (finished.bytes(), finished.nnz());
        let runs = finished.runs.len();
        let report = SpillReport { runs, bytes: on_disk, bytes_peak: on_disk, resumed_nnz };
        let place = Place { path: dir.path().to_path_buf(), owner: dir.owner().clone() };
        Self {
            made: Some(dir),
            staged: finished.staged,
            runs: finished.runs,
            next_number: finished.next_number,
            on_disk,
            report,
            ..Self::new(sys, place, Some(journal))
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

    /// The directory, created if it does not exist yet.
    fn dir(&mut self) -> Result<&SpillDir> {
        if self.made.is_none() {
            self.made = Some(self.sys.make_spill_dir(&self.place.path, &self.place.owner)?);
        }
        self.existing()
    }

    fn existing(&self) -> Result<&SpillDir> {
        let missing = || Error::unusable(&self.place.path, "there are no temporary files");
        self.made.as_ref().ok_or_else(missing)
    }

    /// Leaves everything as a killed job does.
    #[cfg(test)]
    pub fn leave(mut self) {
        if let Some(dir) = self.made.take() {
            dir.leave();
        }
    }

    /// A new file, whose name no finished one has. What a killed job left unfinished under that name is of no use, and goes.
    pub fn create(&mut self, kind: &str) -> Result<SpillWriter> {
        let name = spilled::file_name(kind, self.next_number);
        self.next_number =
            self.next_number.checked_add(1).ok_or_else(|| Error::request("too many temporary files"))?;
        let file = self.dir()?.create(&name)?;
        Ok(SpillWriter::new(file, name))
    }

    /// Reads a finished file.
    pub fn open(&self, done: &SpilledFile) -> Result<SpillReader> {
        Ok(SpillReader::new(self.existing()?.open(&done.name)?, done))
    }

    /// Reads all runs, which another process made: an error unless their nonzeros ascend in the order of stores and are
    /// within `dims`.
    pub fn check_runs<K: Key>(&self, dims: &[u64], layout: &BitLayout) -> Result<()> {
        let linearizer = Linearizer::<K>::new(layout);
        let is_inside = |nonzero: &Nonzero<K>| {
            let at = linearizer.gather(nonzero.linear);
            linearizer.scatter(&at[..dims.len()]) == nonzero.linear
                && at.iter().zip(dims).all(|(&index, &dim)| u64::from(index) < dim)
        };
        self.runs.par_iter().try_for_each(|run| {
            let mut reader = self.open(run)?;
            let (mut frame, mut last) = (Vec::new(), None);
            while reader.read_run(&mut frame)? {
                self.sys.check_cancelled()?;
                let ascend = frame.is_sorted_by(|a, b| a.order(b).is_le())
                    && last
                        .zip(frame.first())
                        .is_none_or(|(last, first): (Nonzero<K>, _)| last.order(first).is_le());
                if !ascend || !frame.iter().all(is_inside) {
                    return Err(reader.changed());
                }
                last = frame.last().copied();
                frame.clear();
            }
            Ok(())
        })
    }

    /// An error if the disk has no room for a file of `nnz` nonzeros: as many bytes each as in the files so far.
    pub fn check_room(&mut self, nnz: u64) -> Result<()> {
        self.dir()?;
        let files = || self.staged.iter().chain(&self.runs);
        let (bytes, of): (u64, u64) = files().fold((0, 0), |(b, n), file| (b + file.bytes, n + file.nnz));
        let needed = u128::from(bytes) * u128::from(nnz) / u128::from(of.max(1));
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        let free = self.sys.free_bytes(&self.place.path)?;
        if needed > free { Err(no_room(needed, free, &self.place.path)) } else { Ok(()) }
    }

    /// Takes note of a finished staged file.
    pub fn add_staged(&mut self, file: SpilledFile) -> Result<()> {
        self.note(|| Entry::Staged(file.clone()))?;
        self.grow(file.bytes);
        self.staged.push(file);
        Ok(())
    }

    /// Takes note of a finished run, then removes what it was made from: staged files, runs, or, where it comes
    /// straight from the input, nothing.
    pub fn add_run(&mut self, run: SpilledFile, from: Vec<SpilledFile>) -> Result<()> {
        let names = from.iter().map(|file| file.name.clone()).collect();
        self.note(|| Entry::Run { run: run.clone(), from: names })?;
        self.grow(run.bytes);
        self.runs.push(run);
        for file in from {
            self.on_disk -= file.bytes;
            self.existing()?.remove(&file.name)?;
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
