//! Directories for temporary files: made anew under random names, for this user alone, and marked, so that what a killed
//! program left is told from everything else.
//!
//! A directory is believed to be such a one only if it belongs to this user, nobody else can write to it, and its marker
//! says so; it is nobody's once its lock is free.

use super::temporary::remove;
use super::{File, PrivateDir, Sys, Temporary};
use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How the names of directories for temporary files begin.
pub const SPILL_PREFIX: &str = "blco-spill-";
/// Hexadecimal digits that follow, and those of a key.
const DIGITS: usize = 32;
/// The file that says whose a directory is.
const MARKER: &str = "owner";
/// How that file begins; a key, a newline and the path of what may resume follow.
const MARKER_MAGIC: &[u8] = b"blco temporary files ";
/// No marker is longer: a path has at most 4096 bytes.
const MARKER_BYTES_MAX: usize = 8192;

/// 128 random bits.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// Whose a directory for temporary files is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillOwner {
    /// Random: of one job, and known to who can read its directory.
    pub key: u128,
    /// Where what is needed to go on with the job is; `None` for a job that nobody will resume.
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

/// A name that no other directory for temporary files has.
#[must_use]
pub fn spill_name() -> String {
    format!("{SPILL_PREFIX}{:032x}", random())
}

/// Whether `name` is one that [`spill_name`] gives.
#[must_use]
pub fn is_spill_name(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(SPILL_PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && is_hexadecimal(digits))
}

/// An open directory for temporary files. Who has it in charge and drops it removes it with all that is in it.
#[derive(Debug)]
pub struct SpillDir {
    directory: PrivateDir,
    owner: SpillOwner,
    charge: Option<Temporary>,
}

impl SpillDir {
    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> &SpillOwner {
        &self.owner
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Takes charge of it. False if another program has it, or it is gone.
    pub fn take(&mut self) -> Result<bool> {
        let mine = self.directory.file().try_lock()? && self.directory.file().is_at(self.path());
        if mine {
            self.charge = Some(Temporary::at(self.directory.sys(), self.path().to_path_buf()));
        }
        Ok(mine)
    }

    /// Leaves it as a killed program does.
    #[cfg(test)]
    pub(crate) fn leave(mut self) {
        self.charge.take().into_iter().for_each(Temporary::renamed);
    }

    /// A new file `name`, in the place of one that is there.
    pub fn create(&self, name: &str) -> Result<File> {
        self.directory.remove_if_there(name)?;
        self.directory.create(name)
    }

    /// The file `name`, for reading. An error where it is not a regular file of this user that nobody else can write.
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
            // The marker last: what a kill leaves now is known too. The directory itself goes with the charge.
            self.directory.empty(MARKER);
        }
    }
}

impl Sys {
    /// Makes the directory `path` of `owner`, which must not exist, and takes charge of it.
    pub fn make_spill_dir(&self, path: &Path, owner: &SpillOwner) -> Result<SpillDir> {
        let make = || self.make(path, || std::fs::DirBuilder::new().mode(0o700).create(path));
        let is_gone =
            |e: &Error| matches!(e, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
        let (directory, charge) = loop {
            let charge = Temporary::made(self, path, remove, make)?;
            // Until it is locked another program may take it for a killed one's, lock it and remove it.
            let directory = match self.open_private_dir(path) {
                Err(error) if is_gone(&error) => {
                    charge.renamed();
                    continue;
                }
                opened => opened?,
            };
            // Where files cannot be locked, nobody takes anything for a killed program's.
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

    /// Opens the directory for temporary files at `path` and leaves it to its owner. `None` if there is none, or not one that
    /// can be believed to be this user's.
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

    /// Removes directories for temporary files in `parent` that killed programs of this user left, but for those that are
    /// `needed` to resume. Quietly: they are in nobody's way.
    pub fn remove_abandoned_spill_dirs(&self, parent: &Path, needed: impl Fn(&SpillDir) -> bool) {
        let Ok(entries) = parent.read_dir() else { return };
        let paths = entries.flatten().map(|entry| entry.path());
        for path in paths.filter(|path| path.file_name().is_some_and(is_spill_name)) {
            match self.open_spill_dir(&path) {
                Ok(Some(mut dir)) if !needed(&dir) => drop(dir.take()),
                Ok(None) => self.remove_unmarked(&path),
                _ => {}
            }
        }
    }

    /// Removes the directory `path` of a program that was killed before it was marked: it is empty, but for a marker that was not
    /// written to its end, so that nobody loses anything.
    fn remove_unmarked(&self, path: &Path) {
        // It stays locked until it is gone.
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
