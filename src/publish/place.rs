//! A name, what had it when the work began, and how a new output gets it.

use super::{Found, Kind};
use crate::error::{Error, Result};
use crate::sys::{Held, Sys, directory, is_unsupported};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The prefix of names used to test what the file system supports.
pub(super) const PROBE: &str = ".blco-probe-";
/// The name for something that could not get its name back.
pub(super) const DISPLACED: &str = "displaced";

/// A name to be given.
#[derive(Debug)]
pub struct Place {
    sys: Sys,
    kind: &'static Kind,
    target: PathBuf,
    /// The path in messages.
    called: PathBuf,
    /// What has the name and will be replaced.
    before: Option<Held>,
}

/// Whether the system refused with an error of this kind.
pub(super) fn is(error: &Error, kind: ErrorKind) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == kind)
}

pub(super) fn lacks(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_unsupported(source))
}

impl Place {
    /// Inspects `target`, which messages call `called`. Fails if it is not of `kind`, or if it is and must not be
    /// replaced.
    pub fn look(sys: &Sys, kind: &'static Kind, target: &Path, called: &Path, replace: bool) -> Result<Self> {
        let (target_path, called_path) = (target.to_path_buf(), called.to_path_buf());
        let place =
            |before| Self { sys: sys.clone(), kind, target: target_path, called: called_path, before };
        let Some(before) = sys.hold(target)? else { return Ok(place(None)) };
        let what = match (kind.look)(sys, target)? {
            Found::Other(what) => what,
            Found::Made if !replace => kind.exists.to_owned(),
            Found::Made | Found::Empty => return place(Some(before)).on_this_file_system(),
        };
        Err(Error::request(format!("{}: {what}", called.display())))
    }

    /// Fails if `target` is the root of another file system, which cannot be renamed.
    fn on_this_file_system(self) -> Result<Self> {
        let around = directory(&self.target).metadata().map_or(0, |found| found.dev());
        if self.before.as_ref().is_none_or(|before| before.facts().dev() == around) {
            return Ok(self);
        }
        let what = "is where a file system is mounted; name something in it";
        Err(Error::request(format!("{}: {what}", self.called.display())))
    }

    /// What gets the name.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// What has the name now, identified by its inode.
    pub(super) fn before(&self) -> Option<&Held> {
        self.before.as_ref()
    }

    /// Tests in advance whether what is there can be replaced. Tries to exchange two names in `dir`, where the new one
    /// will be; if the file system cannot do that, or not for everything, renames the old one to `aside` and back.
    pub fn try_out(&self, dir: &Path, aside: &Path) -> Result<()> {
        if self.before.is_none() {
            return Ok(());
        }
        let [a, b] = ["a", "b"].map(|end| dir.join(format!("{PROBE}{end}")));
        for probe in [&a, &b] {
            // A killed program may have left one.
            drop(self.sys.quiet().remove_dir(probe));
            self.sys.create_dir(probe)?;
        }
        let tried = self.sys.exchange(&a, &b);
        for probe in [&a, &b] {
            self.sys.remove_tree(probe)?;
        }
        match tried {
            Ok(()) if !is_layered(dir) => Ok(()),
            Err(e) if !lacks(&e) => Err(e),
            _ => {
                let moved = self.sys.publish(|| {
                    self.sys.rename_new(&self.target, aside)?;
                    self.sys.rename_new(aside, &self.target)
                });
                moved.map_err(|e| if lacks(&e) { self.immovable() } else { e })
            }
        }
    }

    /// Keeps `new`, while it is being written, from users who could not read the old one.
    pub fn guard(&self, new: &Path) -> Result<()> {
        let Some(before) = &self.before else { return Ok(()) };
        let owner = if before.facts().is_dir() { 0o700 } else { 0 };
        self.sys.permit(new, before.facts().mode() | owner)
    }

    /// Gives `new`, its directories, and the files in both the permissions of the old one.
    pub fn keep_permissions(&self, new: &Path) -> Result<()> {
        let Some(before) = &self.before else { return Ok(()) };
        if before.facts().is_dir() {
            let mode = self.mode_of_files();
            let permit_file = |path: &Path| match mode {
                Some(mode) if path.is_file() => self.sys.permit(path, mode),
                _ => Ok(()),
            };
            for path in inside(new)? {
                if path.is_dir() {
                    inside(&path)?.iter().try_for_each(|file| permit_file(file))?;
                    self.sys.permit(&path, before.facts().mode())?;
                }
                permit_file(&path)?;
            }
        }
        self.sys.permit(new, before.facts().mode())
    }

    /// The permissions of the old one's marker, which may be in a directory of it.
    fn mode_of_files(&self) -> Option<u32> {
        let mode = |dir: &Path| Some(dir.join(self.kind.marker).metadata().ok()?.permissions().mode());
        mode(&self.target).or_else(|| inside(&self.target).ok()?.iter().find_map(|dir| mode(dir)))
    }

    /// Whether `path` is the old one, without new files in it.
    fn is_what_was(&self, path: &Path) -> Result<bool> {
        let same = self.before.as_ref().is_some_and(|before| before.is_at(path));
        Ok(same && !matches!((self.kind.look)(&self.sys, path)?, Found::Other(_)))
    }

    /// Gives `new` the name. Returns the path of the old one, if there was one: `new` or, if names cannot be
    /// exchanged, `aside` in the same directory. All or nothing; not synced.
    pub fn give(&self, new: &Path, aside: &Path) -> Result<Option<PathBuf>> {
        if self.before.is_none() {
            return self.rename(new).map(|()| None);
        }
        match self.sys.exchange(new, &self.target) {
            Ok(()) => {
                let right = self.is_what_was(new);
                if matches!(right, Ok(true)) {
                    return Ok(Some(new.to_path_buf()));
                }
                if let Err(stuck) = self.sys.exchange(new, &self.target) {
                    self.sys.rename_new(new, &new.with_file_name(DISPLACED))?;
                    return Err(stuck);
                }
                right.and(Err(self.changed()))
            }
            // The old one has disappeared.
            Err(e) if is(&e, ErrorKind::NotFound) => self.rename(new).map(|()| None),
            Err(e) if lacks(&e) => self.give_by_renames(new, aside),
            Err(e) => Err(e),
        }
    }

    fn give_by_renames(&self, new: &Path, aside: &Path) -> Result<Option<PathBuf>> {
        if !self.is_what_was(&self.target)? {
            return Err(self.changed());
        }
        self.sys.rename_new(&self.target, aside)?;
        let named = self.finish_renames(new, aside);
        if named.is_err() {
            self.sys.rename_new(aside, &self.target)?;
        }
        named.map(|()| Some(aside.to_path_buf()))
    }

    fn finish_renames(&self, new: &Path, aside: &Path) -> Result<()> {
        if !self.is_what_was(aside)? {
            return Err(self.changed());
        }
        // Sync the old one's new entry before anything else gets the name.
        self.sys.sync_name(aside)?;
        self.sys.sync_name(&self.target)?;
        self.rename(new)
    }

    fn rename(&self, new: &Path) -> Result<()> {
        self.sys.rename_new(new, &self.target).map_err(|e| match e {
            e if is(&e, ErrorKind::AlreadyExists) => self.changed(),
            e => e,
        })
    }

    fn immovable(&self) -> Error {
        let what =
            "cannot be replaced on this file system, which neither exchanges nor renames it; name another";
        Error::request(format!("{}: {what}", self.called.display()))
    }

    fn changed(&self) -> Error {
        let what = "has changed since the work began, and stays; nothing was written";
        Error::request(format!("{}: {what}", self.called.display()))
    }
}

/// What is in a directory.
fn inside(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(Error::io(dir, "read"))?;
    entries.map(|entry| Ok(entry.map_err(Error::io(dir, "read"))?.path())).collect()
}

/// Whether `path` is on a layered file system, as in containers. It cannot rename directories of a lower layer.
fn is_layered(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    // OVERLAYFS_SUPER_MAGIC.
    return rustix::fs::statfs(path).is_ok_and(|found| found.f_type == 0x794c_7630);
    #[cfg(not(target_os = "linux"))]
    false
}
