//! Temporary files and directories. They are removed when their owner is dropped, for whatever reason. The
//! handle also knows them, so that a program that must end at once can remove them.

use super::Sys;
use super::sync::{Mutex, thread_local};
use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// Capacity for names from the start: more than any program has at a time, so that no allocation happens while the lock
/// is held and memory runs out.
const NAMES: usize = 256;

thread_local! {
    /// Whether this thread is inside [`Registry::publish`].
    static PUBLISHES: Cell<bool> = const { Cell::new(false) };
}

/// Removes what is at a path. It reports no error: the caller has one of its own, or no one to report to.
type Removal = fn(&Sys, &Path);

/// The temporary names in use.
#[derive(Debug)]
pub(super) struct Registry {
    paths: Mutex<Vec<(PathBuf, Removal)>>,
    /// Whether everything has been or is being removed. From then on nothing temporary gets its final name. Locked by
    /// whichever of the two is in progress.
    ended: Mutex<bool>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { paths: Mutex::new(Vec::with_capacity(NAMES)), ended: Mutex::new(false) }
    }
}

impl Registry {
    fn with<T>(&self, use_paths: impl FnOnce(&mut Vec<(PathBuf, Removal)>) -> T) -> T {
        use_paths(&mut self.paths.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes everything registered. For ending a program that cannot unwind.
    pub(super) fn remove_all(&self, sys: &Sys) {
        // A thread that is publishing and ends the program in the middle of it already holds the lock.
        let mut ended =
            (!Self::is_publishing()).then(|| self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(ended) = &mut ended {
            **ended = true;
        }
        self.with(|paths| paths.drain(..).for_each(|(path, removal)| removal(sys, &path)));
    }

    /// Whether this thread is inside [`Registry::publish`].
    pub(super) fn is_publishing() -> bool {
        PUBLISHES.with(Cell::get)
    }

    /// Runs `name`, which gives final names, unless temporary files are being removed: removal would follow a directory
    /// to its new name, and miss a file that gets a name meanwhile. A nested call on the same thread is part of the
    /// outer one.
    pub(super) fn publish<T>(&self, name: impl FnOnce() -> Result<T>) -> Result<T> {
        if Self::is_publishing() {
            return name();
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Err(Error::Cancelled);
        }
        PUBLISHES.with(|publishes| publishes.set(true));
        let named = name();
        PUBLISHES.with(|publishes| publishes.set(false));
        named
    }
}

/// Removes whatever is at `path`.
pub(super) fn remove(sys: &Sys, path: &Path) {
    drop(if path.is_dir() { sys.remove_tree(path) } else { sys.remove_file(path) });
}

/// A temporary file or directory. Dropping this removes it and its contents, unless it was renamed.
#[derive(Debug)]
pub struct Temporary {
    sys: Sys,
    path: PathBuf,
    removal: Removal,
    /// Whether the path no longer belongs to this.
    gone: bool,
}

impl Temporary {
    /// Takes ownership of `path`, where a file or directory is about to be created.
    #[must_use]
    pub fn at(sys: &Sys, path: PathBuf) -> Self {
        Self::removed_by(sys, path, remove)
    }

    /// The same, removed by `removal`, which may remove only part of a directory.
    #[must_use]
    pub fn removed_by(sys: &Sys, path: PathBuf, removal: fn(&Sys, &Path)) -> Self {
        let noted = path.clone();
        sys.temporaries.with(|paths| paths.push((noted, removal)));
        Self { sys: sys.clone(), path, removal, gone: false }
    }

    /// Creates something at `path` with `make` and takes ownership of it, as one step for [`Sys::abandon`].
    pub fn made(
        sys: &Sys,
        path: &Path,
        removal: fn(&Sys, &Path),
        make: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        sys.publish(|| make().map(|()| Self::removed_by(sys, path.to_path_buf(), removal)))
    }

    /// Keeps it: it has another name or owner now.
    pub fn renamed(mut self) {
        self.gone = true;
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.gone {
            (self.removal)(&self.sys.quiet(), &self.path);
        }
        self.sys.temporaries.with(|paths| paths.retain(|(path, _)| *path != self.path));
    }
}
