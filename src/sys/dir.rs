//! Directories that stay open: their files are found through them even if the path later names something
//! else.

use super::fault::Call;
use super::{File, Sys, is_unsupported};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, statat};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    inner: File,
}

impl Dir {
    /// Opens the directory `path`. Execute permission without read permission suffices for opening its files.
    pub fn open(sys: &Sys, path: &Path) -> Result<Self> {
        let open = |flags: i32| {
            let flags = flags | libc::O_DIRECTORY;
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
        };
        sys.pass(Call::Open)
            .and_then(|_| match open(0) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => open(libc::O_PATH),
                opened => opened,
            })
            .map(|inner| Self { inner: File { inner, path: path.to_path_buf(), sys: sys.clone() } })
            .map_err(Error::io(path, "open"))
    }

    /// The path that it was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inner.path()
    }

    /// The same directory, named `path` in messages.
    #[must_use]
    pub fn called(mut self, path: &Path) -> Self {
        self.inner.path = path.to_path_buf();
        self
    }

    /// Whether `path` still names this directory.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        self.inner.is_at(path)
    }

    /// Takes a shared lock, which keeps this project's programs from removing its files. Returns false if another
    /// process holds an exclusive lock, and true if the directory cannot be locked at all.
    pub fn share(&self) -> Result<bool> {
        match self.inner.inner.try_lock_shared() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            // A directory with execute permission only cannot be locked.
            Err(std::fs::TryLockError::Error(e))
                if is_unsupported(&e) || e.raw_os_error() == Some(libc::EBADF) =>
            {
                Ok(true)
            }
            Err(std::fs::TryLockError::Error(e)) => Err(Error::io(self.path(), "lock")(e)),
        }
    }

    /// The path of the file `name`.
    fn path_of(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn facts(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.inner.inner, name, AtFlags::empty())?)
    }

    /// The length of the regular file `name`; `None` if there is none. Fails if it cannot be inspected.
    pub fn file_bytes(&self, name: &str) -> Result<Option<u64>> {
        match self.facts(name) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                Err(Error::io(self.path_of(name), "inspect")(e))
            }
            Ok(facts) if FileType::from_raw_mode(facts.st_mode).is_file() => {
                Ok(Some(u64::try_from(facts.st_size).unwrap_or(0)))
            }
            _ => Ok(None),
        }
    }

    /// Whether the name `name` exists, even as a dangling link.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        statat(&self.inner.inner, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Opens the file `name` for reading. With `direct`, past the page cache if the file system supports
    /// that.
    pub fn file(&self, name: &str, direct: bool) -> Result<File> {
        let (sys, path) = (&self.inner.sys, self.path_of(name));
        let open = |flags: OFlags| {
            sys.pass(Call::Open)?;
            let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
            openat(&self.inner.inner, name, flags, Mode::empty()).map_err(io::Error::from)
        };
        let opened = match open(if direct { OFlags::DIRECT } else { OFlags::empty() }) {
            Err(e) if direct && e.raw_os_error() == Some(libc::EINVAL) => open(OFlags::empty()),
            other => other,
        };
        opened
            .map(|fd| File { inner: fd.into(), path: path.clone(), sys: sys.clone() })
            .map_err(Error::io(path, "open"))
    }
}
