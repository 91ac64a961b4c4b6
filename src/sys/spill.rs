//! Directories for temporary files. They have random names, belong to this user alone and carry a marker, so that the
//! leftovers of a killed program can be told from everything else.
//!
//! A directory is accepted as one only if it belongs to this user, no one else can write to it, and it has a valid
//! marker. It is abandoned once its lock is free.

use super::temporary::remove;
use super::{File, PrivateDir, Sys, Temporary};
use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The prefix of their names.
pub const SPILL_PREFIX: &str = "blco-spill-";
/// The number of hexadecimal digits after the prefix, and in a key.
const DIGITS: usize = 32;
/// The file that names a directory's owner.
const MARKER: &str = "owner";
/// The start of that file. A key, a newline and the path of the job to resume follow.
const MARKER_MAGIC: &[u8] = b"blco temporary files ";
/// The longest marker: a path has at most 4096 bytes.
const MARKER_BYTES_MAX: usize = 8192;

/// 128 random bits.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// The owner of a directory for temporary files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillOwner {
    /// A random key of one job, known to those who can read its directory.
    pub key: u128,
    /// The directory from which the job can resume; `None` for a job that cannot.
    pub resumed_from: Option<PathBuf>,
}

impl SpillOwner {
    /// A new owner.
    #[must_use]
    pub fn new(resumed_from: Option<PathBuf>) -> Self {
        Self { key: random(), resumed_from }
    }

    fn encode(&self) -> Vec<u8> {
        let from = self.resumed_from.as_ref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
        [MARKER_MAGIC, format!("{:032x}\n", self.key).as_bytes(), from].concat()
    }

    fn decode(marker: &[u8]) -> Option<Self> {
        let (key, from) = marker.strip_prefix(MARKER_MAGIC)?.split_at_checked(DIGITS)?;
        let from = from.strip_prefix(b"\n")?;
        let key = is_hexadecimal(key).then(|| u128::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok());
        let from = (!from.is_empty()).then(|| std::ffi::OsString::from_vec(from.to_vec()).into());
        Some(Self { key: key??, resumed_from: from })
    }
}

fn is_hexadecimal(digits: &[u8]) -> bool {
    digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A new unique name for such a directory.
#[must_use]
pub fn spill_name() -> String {
    format!("{SPILL_PREFIX}{:032x}", random())
}

/// Whether `name` has the form of [`spill_name`].
#[must_use]
pub fn is_spill_name(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(SPILL_PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && is_hexadecimal(digits))
}

/// An open directory for temporary files. If this owns the directory, dropping it removes the directory and
/// its contents.
#[derive(Debug)]
pub struct SpillDir {
    directory: PrivateDir,
    owner: SpillOwner,
    charge: Option<Temporary>,
}

impl SpillDir {
    /// Its owner.
    #[must_use]
    pub fn owner(&self) -> &SpillOwner {
        &self.owner
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Takes ownership. Returns false if another program owns it or it no longer exists.
    pub fn take(&mut self) -> Result<bool> {
        let mine = self.directory.file().try_lock()? && self.directory.file().is_at(self.path());
        if mine {
            self.charge = Some(Temporary::at(self.directory.sys(), self.path().to_path_buf()));
        }
        Ok(mine)
    }

    /// Leaves the directory behind as a killed program would.
    #[cfg(test)]
    pub(crate) fn leave(mut self) {
        self.charge.take().into_iter().for_each(Temporary::renamed);
    }

    /// Creates the file `name`, replacing an existing one.
    pub fn create(&self, name: &str) -> Result<File> {
        self.directory.remove_if_there(name)?;
        self.directory.create(name)
    }

    /// Opens the file `name` for reading. Fails unless it is a regular file of this user that no one else can write
    /// to.
    pub fn open(&self, name: &str) -> Result<File> {
        self.directory.open_own(name)
    }

    /// Removes the file `name`.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }
}

impl Drop for SpillDir {
    fn drop(&mut self) {
        if self.charge.is_some() {
            // Remove the marker last, so that the leftovers of a kill during removal are recognized. The
            // directory itself is removed with the ownership.
            self.directory.empty(MARKER);
        }
    }
}

impl Sys {
    /// Creates the directory `path` for `owner` and takes ownership. It must not exist.
    pub fn make_spill_dir(&self, path: &Path, owner: &SpillOwner) -> Result<SpillDir> {
        let make = || self.make(path, || std::fs::DirBuilder::new().mode(0o700).create(path));
        let is_gone =
            |e: &Error| matches!(e, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
        let (directory, charge) = loop {
            let charge = Temporary::made(self, path, remove, make)?;
            // Until it is locked, another program may take it for a killed program's, lock it and remove it.
            let directory = match self.open_private_dir(path) {
                Err(error) if is_gone(&error) => {
                    charge.renamed();
                    continue;
                }
                opened => opened?,
            };
            // If files cannot be locked, no program treats any directory as abandoned.
            while !directory.file().try_lock().unwrap_or(true) {
                std::thread::yield_now();
            }
            if directory.file().is_at(path) {
                break (directory, charge);
            }
            charge.renamed();
        };
        let made = SpillDir { directory, owner: owner.clone(), charge: Some(charge) };
        made.directory.create(MARKER)?.write_all_at(&owner.encode(), 0)?;
        Ok(made)
    }

    /// Opens the directory for temporary files at `path` without taking ownership. `None` if there is none, or if it is
    /// not verifiably this user's.
    pub fn open_spill_dir(&self, path: &Path) -> Result<Option<SpillDir>> {
        if !path.file_name().is_some_and(is_spill_name) {
            return Ok(None);
        }
        let open = || {
            let directory = self.open_private_dir(path)?;
            let owner = SpillOwner::decode(&directory.read(MARKER, MARKER_BYTES_MAX)?);
            Ok(owner.map(|owner| SpillDir { directory, owner, charge: None }))
        };
        let not_ours = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EACCES];
        match open() {
            Err(Error::Io { source, .. }) if source.raw_os_error().is_some_and(|e| not_ours.contains(&e)) => {
                Ok(None)
            }
            Err(Error::Request(_) | Error::Corrupt { .. }) => Ok(None),
            opened => opened,
        }
    }

    /// Removes directories in `parent` that killed programs of this user left, except those `needed` to resume. Errors
    /// are not reported, as leftovers are harmless: all this uses a quiet handle, which `needed` also gets.
    pub fn remove_abandoned_spill_dirs(&self, parent: &Path, needed: impl Fn(&Self, &SpillDir) -> bool) {
        let Ok(entries) = parent.read_dir() else { return };
        let (sys, paths) = (self.quiet(), entries.flatten().map(|entry| entry.path()));
        for path in paths.filter(|path| path.file_name().is_some_and(is_spill_name)) {
            match sys.open_spill_dir(&path) {
                Ok(Some(mut dir)) if !needed(&sys, &dir) => drop(dir.take()),
                Ok(None) => sys.remove_unmarked(&path),
                _ => {}
            }
        }
    }

    /// Removes the directory `path` of a program that was killed before marking it. It is empty except for an
    /// incomplete marker, so no data is lost.
    fn remove_unmarked(&self, path: &Path) {
        // It stays locked until it is removed.
        if let Ok(dir) = self.open_private_dir(path)
            && dir.file().try_lock().unwrap_or(false)
            && dir.file().is_at(path)
        {
            if dir.read(MARKER, 0).is_ok() {
                drop(dir.remove(MARKER));
            }
            drop(std::fs::remove_dir(path));
        }
    }
}
