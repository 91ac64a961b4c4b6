//! Temporary files and directories: gone when their owner is dropped, whatever happened, and known to the
//! handle, so that a program that must end at once can remove them too.

use super::Sys;
use super::sync::{Mutex, thread_local};
use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// Names that there is room for from the beginning: more than any program has at a time, so that none is noted with the lock held
/// while memory ends, and with it the program.
const NAMES: usize = 256;

thread_local! {
    /// Whether the thread is in [`Registry::publish`].
    static PUBLISHES: Cell<bool> = const { Cell::new(false) };
}

/// How what is at a path is removed, quietly: the caller has an error of its own to tell, or nobody to tell.
type Removal = fn(&Sys, &Path);

/// The temporary names in use.
#[derive(Debug)]
pub(super) struct Registry {
    paths: Mutex<Vec<(PathBuf, Removal)>>,
    /// Whether all have been removed, or are being removed: nothing temporary is to get its name from then on. Locked by whoever
    /// does either.
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

    /// Removes everything that is registered. For the end of a program that cannot unwind.
    pub(super) fn remove_all(&self, sys: &Sys) {
        // A thread that publishes, and ends the program in the middle of it, has locked it.
        let mut ended =
            (!Self::is_publishing()).then(|| self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(ended) = &mut ended {
            **ended = true;
        }
        self.with(|paths| paths.drain(..).for_each(|(path, removal)| removal(sys, &path)));
    }

    /// Whether this thread is in [`Registry::publish`].
    pub(super) fn is_publishing() -> bool {
        PUBLISHES.with(Cell::get)
    }

    /// Has `name` give things names, unless temporary ones are being removed: who removes a directory goes on in it where it has another
    /// name, and misses what gets one then. Within another call on this thread it is part of that.
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

/// Whatever is at `path`.
pub(super) fn remove(sys: &Sys, path: &Path) {
    drop(if path.is_dir() { sys.remove_tree(path) } else { sys.remove_file(path) });
}

/// A temporary file or directory. When this is dropped, what is at its path goes, with all that is in it, unless it
/// was renamed.
#[derive(Debug)]
pub struct Temporary {
    sys: Sys,
    path: PathBuf,
    removal: Removal,
    /// Nothing at the path is this one's any more.
    gone: bool,
}

impl Temporary {
    /// Takes charge of `path`, where a file or directory is about to be created.
    #[must_use]
    pub fn at(sys: &Sys, path: PathBuf) -> Self {
        Self::removed_by(sys, path, remove)
    }

    /// The same of what `removal` removes: not all that is in a directory need go.
    #[must_use]
    pub fn removed_by(sys: &Sys, path: PathBuf, removal: fn(&Sys, &Path)) -> Self {
        let noted = path.clone();
        sys.temporaries.with(|paths| paths.push((noted, removal)));
        Self { sys: sys.clone(), path, removal, gone: false }
    }

    /// Takes charge of what `make` makes at `path`, in one step for [`Sys::abandon`].
    pub fn made(
        sys: &Sys,
        path: &Path,
        removal: fn(&Sys, &Path),
        make: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        sys.publish(|| make().map(|()| Self::removed_by(sys, path.to_path_buf(), removal)))
    }

    /// It has another name or another owner now, and stays.
    pub fn renamed(mut self) {
        self.gone = true;
    }

    /// Where it is.
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
