//! `NAME.partial`: the directory in which one program at a time writes what will be named NAME.

use super::place::{DISPLACED, PROBE, is, lacks};
use super::{Found, Kind, MARKER, Marker, Place, first_foreign, read_json, remove_any};
use crate::error::{Error, Result};
use crate::sys::{File, Sys, Temporary, behind_links, directory, each_name};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The old one, between two renames.
pub(super) const OLD: &str = "old";
/// The prefix of old ones that are still being read.
const REPLACED: &str = "replaced-";
const RECORD: &str = "publishing";

/// The kind of `NAME.partial` itself.
const PARTIAL: Kind =
    Kind { name: "partial", marker: MARKER, exists: "", look: |_, _| Ok(Found::Made), beside: &[] };

/// The record written before names change.
#[derive(Serialize, Deserialize)]
struct NameRecord<F> {
    /// The inode numbers of what gets the name and of what has it, if anything.
    inodes: Vec<u64>,
    /// The maker's own data.
    facts: F,
}

/// The directory in which NAME is written. Dropping this removes it, with everything that has not got its
/// name.
#[derive(Debug)]
pub struct Partial {
    sys: Sys,
    kind: &'static Kind,
    place: Place,
    dir: Temporary,
    /// Locked while this process writes.
    _lock: File,
}

/// The path of `NAME.partial` for `target`: beside the target of a symbolic link.
#[must_use]
pub fn partial_path(target: &Path) -> PathBuf {
    // A dangling link is refused by `Partial::create`.
    let target = &behind_links(target).unwrap_or_else(|_| target.to_path_buf());
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    directory(target).join(name)
}

/// The final name: the target of a symbolic link, and the real name of a directory given as `.` or `..`.
fn resolve(target: &Path) -> Result<PathBuf> {
    if target.file_name().is_some() {
        return behind_links(target);
    }
    target.canonicalize().map_err(Error::io(target, "find"))
}

/// The facts that the maker of `target` recorded when it named it, if it was killed before it finished.
pub fn finished(sys: &Sys, target: &Path) -> Result<Option<serde_json::Value>> {
    let record: Option<NameRecord<serde_json::Value>> = read_json(sys, &partial_path(target).join(RECORD))?;
    let named = behind_links(target)?.symlink_metadata().map(|found| found.ino()).ok();
    Ok(record.filter(|record| named.is_some() && record.inodes.first().copied() == named).map(|r| r.facts))
}

impl Partial {
    /// Prepares to write `target`, or the target of that symbolic link. Something of this kind with that name is an
    /// error unless `replace` is set; anything else always is. Removes what a killed program left; with `keep`, removes
    /// only what was about to get the name.
    pub fn create(sys: &Sys, kind: &'static Kind, target: &Path, replace: bool, keep: bool) -> Result<Self> {
        let (called, target) = (target, &resolve(target)?);
        // Checked before anything is touched, and again when no other program can name it.
        Place::look(sys, kind, target, called, replace)?;
        let (path, made, lock) = take(sys, kind, target)?;
        put_back(sys, &path, target)?;
        let place = Place::look(sys, kind, target, called, replace)?;
        let dir = made.unwrap_or_else(|| Temporary::removed_by(sys, path, discard));
        clear(sys, kind, dir.path(), keep)?;
        if Marker::read(sys, dir.path(), &PARTIAL)?.is_none() {
            drop(sys.quiet().remove_file(&dir.path().join(MARKER)));
            Marker::new(&PARTIAL, Vec::new()).write(sys, dir.path()).map_err(|e| e.about(target))?;
        }
        place.try_out(dir.path(), &dir.path().join(OLD)).map_err(|e| e.about(target))?;
        Ok(Self { sys: sys.clone(), kind, place, dir, _lock: lock })
    }

    /// Removes what a killed program has left of writing `target`, which has been named.
    pub fn clean_up(sys: &Sys, kind: &'static Kind, target: &Path) -> Result<()> {
        let (path, made, _lock) = take(sys, kind, target)?;
        drop(made.unwrap_or_else(|| Temporary::removed_by(sys, path, discard)));
        Ok(())
    }

    /// The directory. The maker may keep files with the prefixes of [`Kind::beside`] in it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The path where the output is written.
    #[must_use]
    pub fn new_one(&self) -> PathBuf {
        self.dir.path().join(self.kind.name)
    }

    /// The final name.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.place.target()
    }

    /// Creates the output as a directory.
    pub fn create_dir(&self) -> Result<()> {
        self.sys.create_dir(&self.new_one()).map_err(|e| e.about(self.target()))?;
        self.place.guard(&self.new_one())
    }

    /// Creates the output as a file.
    pub fn create_file(&self) -> Result<File> {
        let file = self.sys.create(&self.new_one()).map_err(|e| e.about(self.target()))?;
        self.place.guard(&self.new_one())?;
        Ok(file)
    }

    /// Prepares the output for its name: sets permissions, and syncs its entries and the record. Its contents are
    /// already synced. [`finished`] returns `facts`.
    pub fn prepare(&self, facts: &impl Serialize) -> Result<()> {
        let (sys, new) = (&self.sys, &self.new_one());
        self.place.keep_permissions(new)?;
        let kind = new.symlink_metadata().map_err(Error::io(new, "inspect"))?;
        if kind.is_dir() {
            sys.sync_dir(new)?;
        }
        let before = self.place.before().map(|held| held.facts().ino());
        let inodes = std::iter::once(kind.ino()).chain(before).collect();
        write_record(sys, self.path(), &NameRecord { inodes, facts })?;
        sys.sync_name(self.path())
    }

    /// Gives the prepared output its name, and syncs that. What it replaces is removed unless it is being read. Other
    /// files in the directory stay until this is dropped.
    pub fn publish(&self) -> Result<()> {
        let (sys, new) = (&self.sys, &self.new_one());
        sys.check_cancelled()?;
        let replaced = sys.publish(|| {
            let old = self.place.give(new, &self.path().join(OLD))?;
            Ok(old.map(|old| set_aside(sys, &old)))
        })?;
        sys.sync_name(self.target())?;
        if let Some(replaced) = replaced {
            sys.sync_dir(self.path())?;
            remove_unread(sys, &replaced);
        }
        Ok(())
    }
}

fn write_record(sys: &Sys, dir: &Path, record: &NameRecord<impl Serialize>) -> Result<()> {
    let text = serde_json::to_vec(record).map_err(|e| Error::request(format!("{}: {e}", dir.display())))?;
    let file = sys.create(&dir.join(RECORD))?;
    file.write_all_at(&text, 0)?;
    file.sync()?;
    sys.sync_dir(dir)
}

/// Creates or takes over the directory for `target`, and locks it.
fn take(sys: &Sys, kind: &Kind, target: &Path) -> Result<(PathBuf, Option<Temporary>, File)> {
    let path = partial_path(target);
    loop {
        // Inspect it at once: another program may be removing it.
        let found = path.symlink_metadata().ok();
        if found.as_ref().is_some_and(|found| !found.is_dir()) {
            return Err(in_the_way(&path));
        }
        let left = found.is_some();
        let made = match (!left).then(|| Temporary::made(sys, &path, discard, || sys.create_dir(&path))) {
            // Another program was faster.
            Some(Err(e)) if is(&e, ErrorKind::AlreadyExists) => continue,
            made => made.transpose().map_err(|e| e.about(target))?,
        };
        let lock = match sys.open_dir(&path) {
            // Another program had it and has finished.
            Err(e) if is(&e, ErrorKind::NotFound) => {
                made.into_iter().for_each(Temporary::renamed);
                continue;
            }
            opened => opened?,
        };
        let locked = match lock.try_lock() {
            // No other program has created it meanwhile.
            Err(e) if lacks(&e) && !left => true,
            locked => locked?,
        };
        if locked && lock.is_at(&path) {
            check_ours(sys, kind, &path)?;
            return Ok((path, made, lock));
        }
        made.into_iter().for_each(Temporary::renamed);
        if !locked {
            let what = format!("another program writes this {} now", kind.name);
            return Err(Error::request(format!("{}: {what}", target.display())));
        }
    }
}

fn in_the_way(path: &Path) -> Error {
    let what = "is in the way, and blco did not make it; move it or remove it";
    Error::request(format!("{}: {what}", path.display()))
}

/// Fails unless a program made `dir` and it contains only what programs put there. A directory without a marker is
/// accepted if a program was killed while creating or removing it, or if it has the journal of a packer older than
/// markers.
fn check_ours(sys: &Sys, kind: &Kind, dir: &Path) -> Result<()> {
    let ours = |name: &OsStr| {
        name.to_str().is_some_and(|name| {
            [MARKER, RECORD, OLD, kind.name].contains(&name)
                || [REPLACED, PROBE].iter().chain(kind.beside).any(|prefix| name.starts_with(prefix))
        })
    };
    let journal = kind.beside.first().is_some_and(|journal| dir.join(journal).is_file());
    let ended = || Ok::<_, Error>(first_foreign(dir, |name| name == RECORD)?.is_none());
    let made = journal || Marker::is_in(sys, dir, &PARTIAL)? || ended()?;
    if made && first_foreign(dir, ours)?.is_none() { Ok(()) } else { Err(in_the_way(dir)) }
}

/// Restores the name of an old one if a program was killed between two renames. If the new one has the name, the old
/// one is finished with.
fn put_back(sys: &Sys, dir: &Path, target: &Path) -> Result<()> {
    let old = dir.join(OLD);
    if old.symlink_metadata().is_err() {
        return Ok(());
    }
    if target.symlink_metadata().is_ok() {
        remove_unread(sys, &set_aside(sys, &old));
        return Ok(());
    }
    sys.publish(|| sys.rename_new(&old, target))?;
    sys.sync_name(target)
}

/// Removes what a killed program left in `dir`; with `keep`, only what it was about to publish.
fn clear(sys: &Sys, kind: &Kind, dir: &Path, keep: bool) -> Result<()> {
    let new = dir.join(kind.name);
    if let Ok(found) = new.symlink_metadata()
        && let Some(record) = read_json::<NameRecord<serde_json::Value>>(sys, &dir.join(RECORD))?
    {
        // After an exchange this is what had the name, and a killed program may not have checked it.
        match record.inodes.iter().position(|&inode| inode == found.ino()) {
            Some(0) => {}
            Some(_) => remove_unread(sys, &set_aside(sys, &new)),
            None => return Err(in_the_way(&new)),
        }
    }
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir, "read"))? {
        let entry = entry.map_err(Error::io(dir, "read"))?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_new = name == kind.name || name == RECORD || starts_with(&name, PROBE);
        if starts_with(&name, REPLACED) {
            remove_unread(sys, &path);
        } else if name != MARKER && name != OLD && (is_new || !keep) {
            remove_any(sys, &path)?;
        }
    }
    Ok(())
}

fn starts_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

/// Renames an old one that is still being read.
fn set_aside(sys: &Sys, old: &Path) -> PathBuf {
    let id = RandomState::new().build_hasher().finish();
    let replaced = old.with_file_name(format!("{REPLACED}{id:016x}"));
    if sys.quiet().rename(old, &replaced).is_ok() { replaced } else { old.to_path_buf() }
}

/// Removes what no one reads. Errors are not reported: leftovers are harmless.
fn remove_unread(sys: &Sys, path: &Path) {
    let sys = sys.quiet();
    if !path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        drop(sys.remove_file(path));
    } else if let Ok(open) = std::fs::File::open(path)
        && !matches!(open.try_lock(), Err(std::fs::TryLockError::WouldBlock))
    {
        // New readers find that it has lost its name.
        drop(sys.remove_tree(path));
    }
}

/// Removes `NAME.partial` except what is still being read or is the only copy. Errors are not reported. The record of a
/// published store goes last, so that a resuming program finds it.
fn discard(sys: &Sys, dir: &Path) {
    drop(each_name(dir, |name| {
        let path = dir.join(name);
        if starts_with(name, REPLACED) {
            remove_unread(sys, &path);
        } else if ![MARKER, RECORD, OLD, DISPLACED].iter().any(|kept| name == *kept) {
            drop(remove_any(sys, &path));
        }
        true
    }));
    if matches!(first_foreign(dir, |name| name == MARKER || name == RECORD), Ok(None)) {
        // Without its mark, a directory with leftovers would belong to no one.
        drop(sys.sync_dir(dir));
        drop(sys.remove_file(&dir.join(MARKER)));
    }
    drop(sys.remove_file(&dir.join(RECORD)));
    // Fails, as intended, if anything is left.
    drop(sys.remove_dir(dir));
}
