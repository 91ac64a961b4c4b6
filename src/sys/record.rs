//! Records of changes to the file system, step by step, from which a test builds the states that a loss of power may
//! leave.
//!
//! Opens, reads and allocations are not recorded, since they change nothing stored. A step is recorded after it
//! succeeds and before the call returns, so a thread's steps are in order.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One change of the file system. Paths are absolute. A file or directory is identified by its inode number from its
/// creation on, whatever its name. The number may be reused after the file is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An empty file or directory got a name.
    Create {
        /// Its name.
        path: PathBuf,
        /// Its number.
        inode: u64,
        /// Whether it is a directory.
        directory: bool,
    },
    /// Bytes were written to a file.
    Write {
        /// The file.
        inode: u64,
        /// Where the bytes begin.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A file's contents, or a directory's entries, were synced.
    Sync {
        /// The file or directory.
        inode: u64,
    },
    /// Everything before was synced.
    SyncAll,
    /// A file or directory was renamed, replacing what had the new name.
    Rename {
        /// The old name.
        from: PathBuf,
        /// The new name.
        to: PathBuf,
    },
    /// Two names were exchanged.
    Exchange {
        /// One.
        a: PathBuf,
        /// The other.
        b: PathBuf,
    },
    /// A file, or a directory with its contents, was removed.
    Remove {
        /// The name.
        path: PathBuf,
    },
}

/// The steps recorded through a [`Sys`](super::Sys) made by [`Sys::recorded`](super::Sys::recorded).
#[derive(Debug, Default)]
pub struct Recorder {
    steps: Mutex<Vec<Step>>,
}

/// The inode number of what a call has just created, written or synced. It exists, since the call succeeded.
fn number(found: io::Result<fs::Metadata>) -> u64 {
    found.expect("what has just been used can be inspected").ino()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).expect("a path that names something is not empty")
}

impl Recorder {
    /// The steps so far.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of steps so far.
    #[must_use]
    pub fn step_count(&self) -> usize {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn add(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    pub(super) fn created(&self, path: &Path) {
        let facts = fs::symlink_metadata(path);
        let directory = facts.as_ref().is_ok_and(fs::Metadata::is_dir);
        self.add(Step::Create { path: absolute(path), inode: number(facts), directory });
    }

    pub(super) fn wrote(&self, file: &fs::File, offset: u64, bytes: &[u8]) {
        self.add(Step::Write { inode: number(file.metadata()), offset, bytes: bytes.to_vec() });
    }

    /// Records bytes written at the file's current position.
    pub(super) fn appended(&self, mut file: &fs::File, bytes: &[u8]) {
        let end = io::Seek::stream_position(&mut file).expect("a file that was written to has a position");
        self.wrote(file, end - bytes.len() as u64, bytes);
    }

    pub(super) fn synced(&self, file: &fs::File) {
        self.add(Step::Sync { inode: number(file.metadata()) });
    }

    pub(super) fn synced_all(&self) {
        self.add(Step::SyncAll);
    }

    pub(super) fn renamed(&self, from: &Path, to: &Path) {
        self.add(Step::Rename { from: absolute(from), to: absolute(to) });
    }

    pub(super) fn exchanged(&self, a: &Path, b: &Path) {
        self.add(Step::Exchange { a: absolute(a), b: absolute(b) });
    }

    pub(super) fn removed(&self, path: &Path) {
        self.add(Step::Remove { path: absolute(path) });
    }
}
