//! Directories of this user alone, for data that a program trusts in later runs.

use super::fault::Call;
use super::{File, Sys, Temporary};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An open directory that belongs to this user and that no one else can write to. Files are found through it,
/// whatever its path names later.
#[derive(Debug)]
pub struct PrivateDir {
    directory: File,
}

/// Refuses files that another user owns or can write to. Access control lists show in the group's bits.
fn require_private(path: &Path, facts: &Metadata) -> Result<()> {
    let path = path.display();
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::request(format!("{path}: not used, it belongs to another user")));
    }
    if facts.mode() & 0o022 != 0 {
        return Err(Error::request(format!("{path}: not used, other users can write to it (chmod go-w)")));
    }
    Ok(())
}

impl Sys {
    /// Opens the directory `path`; creates it and its parents for this user alone if missing. [`Error::Request`]
    /// if it belongs to another user or others can write to it. Symbolic links are refused.
    pub fn private_dir(&self, path: &Path) -> Result<PrivateDir> {
        // With a trailing slash, a link would be followed.
        let path: PathBuf = path.components().collect();
        self.pass(Call::Open)
            .and_then(|_| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path))
            .map_err(Error::io(&path, "create"))?;
        self.open_private_dir(&path)
    }

    /// Opens the existing directory `path` with the same checks.
    pub(super) fn open_private_dir(&self, path: &Path) -> Result<PrivateDir> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let inner = self
            .pass(Call::Open)
            .and_then(|_| std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path))
            .map_err(Error::io(path, "open"))?;
        let directory = File { inner, path: path.to_path_buf(), sys: self.clone() };
        require_private(path, &directory.metadata()?)?;
        Ok(PrivateDir { directory })
    }
}

impl Sys {
    /// Creates a file that must not exist yet, for this user only.
    pub fn create_own(&self, path: &Path) -> Result<File> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        self.pass(Call::Open)
            .and_then(|_| options.open(path))
            .inspect(|_| self.record(|r| r.created(path)))
            .map(|inner| File { inner, path: path.to_path_buf(), sys: self.clone() })
            .map_err(Error::io(path, "create"))
    }

    /// Opens an existing file for reading and writing. [`Error::Request`] if it belongs to another user or others can
    /// write to it. Symbolic links are refused.
    pub fn open_own(&self, path: &Path) -> Result<File> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = self
            .pass(Call::Open)
            .and_then(|_| options.open(path))
            .map(|inner| File { inner, path: path.to_path_buf(), sys: self.clone() })
            .map_err(Error::io(path, "open"))?;
        require_private(path, &file.metadata()?)?;
        Ok(file)
    }
}

impl PrivateDir {
    pub(super) fn path(&self) -> &Path {
        &self.directory.path
    }

    pub(super) fn sys(&self) -> &Sys {
        &self.directory.sys
    }

    /// The directory itself, to lock it.
    pub(super) fn file(&self) -> &File {
        &self.directory
    }

    fn open_as(&self, name: &str, flags: OFlags, action: &'static str) -> Result<File> {
        let path = self.directory.path.join(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        self.sys()
            .pass(Call::Open)
            .and_then(|_| Ok(openat(&self.directory.inner, name, flags, Mode::RUSR | Mode::WUSR)?))
            .map(|fd| File { inner: fd.into(), path: path.clone(), sys: self.directory.sys.clone() })
            .map_err(Error::io(&path, action))
    }

    /// Creates file `name`, which must not exist, for this user only.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        self.sys().publish(|| {
            let file = self.open_as(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, "create")?;
            self.sys().record(|r| r.created(file.path()));
            Ok(file)
        })
    }

    /// Opens file `name` for reading. Fails unless it is a regular file of this user that no one else can write to.
    pub(super) fn open_own(&self, name: &str) -> Result<File> {
        let file = self.open_as(name, OFlags::RDONLY, "open")?;
        let facts = file.metadata()?;
        require_private(file.path(), &facts)?;
        if facts.is_file() { Ok(file) } else { Err(Error::unusable(file.path(), "not a regular file")) }
    }

    /// Removes file `name`.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.sys()
            .pass(Call::Remove)
            .and_then(|_| Ok(unlinkat(&self.directory.inner, name, AtFlags::empty())?))
            .inspect(|()| self.sys().record(|r| r.removed(&self.path().join(name))))
            .map_err(Error::io(self.directory.path.join(name), "remove"))
    }

    /// Removes file `name` if it exists.
    pub(super) fn remove_if_there(&self, name: &str) -> Result<()> {
        match self.remove(name) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Removes the directory's files, `last` after the others. Errors are not reported.
    pub(super) fn empty(&self, last: &str) {
        let Ok(entries) = Dir::read_from(&self.directory.inner) else { return };
        let names = entries.flatten().map(|entry| entry.file_name().to_owned());
        let others = names.filter(|name| name.to_bytes() != last.as_bytes());
        let last = std::ffi::CString::new(last).into_iter();
        for name in others.collect::<Vec<_>>().into_iter().chain(last) {
            if unlinkat(&self.directory.inner, &name, AtFlags::empty()).is_ok() {
                self.sys().record(|r| r.removed(&self.path().join(OsStr::from_bytes(name.to_bytes()))));
            }
        }
    }

    /// The contents of file `name`. Fails if it does not exist, is not a regular file of this user that no
    /// one else can write to, or has more than `bytes_max` bytes.
    pub fn read(&self, name: &str, bytes_max: usize) -> Result<Vec<u8>> {
        let file = self.open_own(name)?;
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if bytes > bytes_max {
            return Err(Error::unusable(file.path(), "not a file of the expected length"));
        }
        let mut contents = self.directory.sys.vec(0, bytes)?;
        let read = file.read_at(&mut contents, 0)?;
        contents.truncate(read);
        Ok(contents)
    }

    /// Writes `contents` to the file `name` atomically, readable by this user only. Not synced: after a loss of
    /// power the file may be empty or torn.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<()> {
        let (directory, sys) = (&self.directory, &self.directory.sys);
        // A random name, which no other process uses, nor one that died with the same process id.
        let other = format!("{name}.{:016x}.tmp", RandomState::new().build_hasher().finish());
        let temporary = Temporary::at(sys, directory.path.join(&other));
        self.create(&other)?.write_all_at(contents, 0)?;
        sys.pass(Call::Rename)
            .and_then(|_| renameat(&directory.inner, &other, &directory.inner, name).map_err(io::Error::from))
            .inspect(|()| sys.record(|r| r.renamed(&directory.path.join(&other), &directory.path.join(name))))
            .map_err(Error::io(directory.path.join(name), "rename to"))?;
        temporary.renamed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn permit(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_written_is_read_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let private = Sys::default().private_dir(&path).unwrap();
        private.write("x", b"one").unwrap();
        private.write("x", b"two").unwrap();
        assert_eq!(private.read("x", 3).unwrap(), b"two");
        assert!(private.read("x", 2).is_err(), "longer than the limit");
        assert!(private.read("y", 3).is_err());
        assert_eq!((mode(&path), mode(&dir.path().join("a")), mode(&path.join("x"))), (0o700, 0o700, 0o600));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "something temporary stayed");
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let open = || Sys::default().private_dir(&path);
        open().unwrap().write("x", b"one").unwrap();
        for (bits, trusted) in [(0o702, false), (0o720, false), (0o1777, false), (0o755, true), (0o700, true)]
        {
            permit(&path, bits);
            assert_eq!(open().is_ok(), trusted, "directory {bits:o}");
        }
        for (bits, trusted) in [(0o602, false), (0o620, false), (0o644, true), (0o600, true)] {
            permit(&path.join("x"), bits);
            assert_eq!(open().unwrap().read("x", 9).is_ok(), trusted, "file {bits:o}");
        }
    }

    #[test]
    fn links_and_other_kinds_of_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        let private = Sys::default().private_dir(&real).unwrap();
        private.write("x", b"one").unwrap();
        symlink(&real, &link).unwrap();
        assert!(Sys::default().private_dir(&link).is_err());
        assert!(Sys::default().private_dir(&link.join("")).is_err(), "the slash at the end follows the link");

        symlink("x", real.join("y")).unwrap();
        fs::create_dir(real.join("z")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, real.join("p"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        for name in ["y", "z", "p"] {
            assert!(private.read(name, 9).is_err(), "{name}");
        }
        private.write("y", b"two").unwrap();
        assert_eq!(private.read("x", 9).unwrap(), b"one", "written through a link");
        assert_eq!(private.read("y", 9).unwrap(), b"two");
        assert!(private.write("z", b"two").is_err());
        assert_eq!(fs::read_dir(&real).unwrap().count(), 4, "something temporary stayed");
    }

    /// Only root can give a file away. Without root, the test looks for another user's directory.
    #[test]
    fn what_belongs_to_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        Sys::default().private_dir(&path).unwrap().write("x", b"one").unwrap();
        let root = rustix::process::geteuid().is_root();
        let theirs = if root { path.as_path() } else { Path::new("/usr") };
        if root {
            std::os::unix::fs::chown(path.join("x"), Some(65534), None).unwrap();
            assert!(Sys::default().private_dir(&path).unwrap().read("x", 9).is_err());
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        }
        let refused = Sys::default().private_dir(theirs).unwrap_err().to_string();
        assert!(refused.contains("belongs to another user"), "{refused}");
    }
}
