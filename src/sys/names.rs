//! Renaming without replacing, and recognizing a file after it has lost its name.

use super::fault::Call;
use super::{File, Sys};
use crate::error::{Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Whether `error` means that the file system does not support the call: exchanging names, renaming without
/// replacement, or locking.
#[must_use]
pub fn is_unsupported(error: &io::Error) -> bool {
    let codes = [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP, libc::EXDEV, libc::ENOLCK];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// A file or directory that had a name when it was inspected. While this lives, the system does not reuse its inode
/// number, so it can be recognized under any name.
#[derive(Debug)]
pub struct Held {
    facts: Metadata,
    _open: std::fs::File,
}

impl Held {
    /// Whether `path` names it now. A symbolic link is compared itself, not its target.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|m| (m.dev(), m.ino()) == (self.facts.dev(), self.facts.ino()))
    }

    /// The metadata from that time.
    #[must_use]
    pub fn facts(&self) -> &Metadata {
        &self.facts
    }
}

impl Sys {
    /// Holds what is at `path` without opening or following it, so a FIFO does not block. `None` if nothing is
    /// there.
    pub fn hold(&self, path: &Path) -> Result<Option<Held>> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let opened = self
            .pass(Call::Open)
            .and_then(|_| std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path));
        match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened
                .and_then(|open| Ok(Some(Held { facts: open.metadata()?, _open: open })))
                .map_err(Error::io(path, "inspect")),
        }
    }

    /// Renames within a file system to a name that must be free; fails with `AlreadyExists` otherwise. If the file
    /// system does not support this, a directory may replace an empty one.
    pub fn rename_new(&self, from: &Path, to: &Path) -> Result<()> {
        let renamed = self.pass(Call::Rename).and_then(|_| {
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(io::Error::from) {
                Err(e) if is_unsupported(&e) => rename_otherwise(from, to),
                renamed => renamed,
            }
        });
        renamed.inspect(|()| self.record(|r| r.renamed(from, to))).map_err(Error::io(to, "rename to"))
    }

    /// Sets the permission bits of what is at `path`.
    pub fn permit(&self, path: &Path, mode: u32) -> Result<()> {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o7777))
            .map_err(Error::io(path, "set the permissions of"))
    }

    /// Opens a file for reading that is no link and does not block, as a FIFO would; the caller looks at what it is.
    pub fn open_plain(&self, path: &Path) -> Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        self.pass(Call::Open)
            .and_then(|_| std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path))
            .map(|inner| File { inner, path: PathBuf::from(path), sys: self.clone() })
            .map_err(Error::io(path, "open"))
    }
}

/// The same with older calls: a plain rename of a directory replaces nothing but an empty one, a link replaces nothing.
fn rename_otherwise(from: &Path, to: &Path) -> io::Result<()> {
    if from.symlink_metadata()?.is_dir() {
        return std::fs::rename(from, to).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOTEMPTY | libc::ENOTDIR) => io::ErrorKind::AlreadyExists.into(),
            _ => e,
        });
    }
    std::fs::hard_link(from, to)?;
    std::fs::remove_file(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_takes_nobodys_place() {
        type Rename = fn(&Path, &Path) -> io::Result<()>;
        let new: Rename = |from, to| match Sys::default().rename_new(from, to) {
            Err(Error::Io { source, .. }) => Err(source),
            other => other.map_err(io::Error::other),
        };
        for rename in [new, rename_otherwise] {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            for name in ["d", "full", "file"] {
                std::fs::create_dir_all(at("full/x")).unwrap();
                std::fs::write(at("file"), name).unwrap();
                std::fs::create_dir_all(at("d/y")).unwrap();
            }
            std::fs::write(at("f"), "mine").unwrap();
            for (from, to) in [("f", "file"), ("f", "full"), ("d", "full"), ("d", "file")] {
                let refused = rename(&at(from), &at(to)).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{from} to {to}");
            }
            rename(&at("f"), &at("g")).unwrap();
            rename(&at("d"), &at("e")).unwrap();
            assert!(!at("f").exists() && !at("d").exists());
            assert_eq!(std::fs::read(at("g")).unwrap(), b"mine");
            assert!(at("e/y").is_dir() && at("full/x").is_dir());
        }
    }

    #[test]
    fn what_is_held_is_known_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let sys = Sys::default();
        assert!(sys.hold(&a).unwrap().is_none());
        std::fs::create_dir(&a).unwrap();
        let held = sys.hold(&a).unwrap().unwrap();
        std::fs::rename(&a, &b).unwrap();
        std::fs::create_dir(&a).unwrap();
        assert!(held.is_at(&b) && !held.is_at(&a));
        std::fs::remove_dir(&b).unwrap();
        std::fs::create_dir(&b).unwrap();
        assert!(!held.is_at(&b), "the system has given its number away");
    }
}
