//! How a program's outputs get their names: stores, results, checkpoints and files.
//!
//! Every output is written beside its final name, synced, and renamed in one step, so that it exists whole or not at
//! all, however the program ends. A program replaces and removes only what this project's programs have made, which it
//! recognizes by the mark of a [`Kind`]: a store by its manifest; results, checkpoints and directories of unfinished
//! work by the file [`MARKER`].
//!
//! ```text
//! NAME               what readers see: nothing, the old one, or the new one
//! NAME.partial/      there while NAME is written, locked by the program that writes it
//!   .made-by-blco    says that a program here made the directory
//!   store            (or result, or file) the new one; after an exchange, the old one
//!   publishing       what gets the name, and what had it: written before the names change
//!   old              the old one, between two renames, where the file system cannot exchange names
//!   replaced-ID      an old one that is still being read; the next program that writes NAME removes it
//!   displaced        something foreign that lost its name and could not get it back; never removed
//! ```
//!
//! **Naming** ([`Place::give`]). If the name was free at the start, a rename that replaces nothing. Otherwise the new
//! and the old one exchange names. If the exchanged one is not what was there at the start, because something else took
//! the name meanwhile, it gets its name back and the program refuses. If the file system cannot exchange names, the old
//! one is first renamed to `old`. A program killed between these two renames leaves it there; the next program that
//! writes NAME restores it, and readers ([`open`]) find it meanwhile.
//!
//! **Removal.** The old one is removed when no one reads it. Readers of directories hold a shared lock, and a program
//! removes only what it can lock exclusively.
//!
//! **Durability.** Before naming, these are synced: the contents, the directory that holds them, `publishing`,
//! `NAME.partial` and its entry. After naming, and before anything of the old one is removed: the directory of NAME,
//! and `NAME.partial`.

mod partial;
mod place;

pub use partial::{Partial, finished, partial_path};
pub use place::Place;

use crate::error::{Error, Result};
use crate::sys::{Dir, Sys, each_name};
use partial::OLD;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

/// The file that marks its directory as made by this project's programs.
pub const MARKER: &str = ".made-by-blco";
/// The longest marker.
const MARKER_BYTES_MAX: u64 = 1 << 20;

/// A kind of output.
#[derive(Debug)]
pub struct Kind {
    /// Its name in `NAME.partial`.
    pub name: &'static str,
    /// A file in directories of this kind. Its permissions apply to all files of a directory that replaces
    /// one.
    pub marker: &'static str,
    /// The message if one exists and must not be replaced.
    pub exists: &'static str,
    /// Inspects what is at `path`, which must exist.
    pub look: fn(&Sys, &Path) -> Result<Found>,
    /// Prefixes of the other names that its makers use in `NAME.partial`.
    pub beside: &'static [&'static str],
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// One of the kind, with no foreign files in it.
    Made,
    /// An empty directory, if the kind accepts one as absent.
    Empty,
    /// Something else: why it is in the way, and what to do.
    Other(String),
}

/// The contents of a [`MARKER`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Marker {
    made_by: String,
    kind: String,
    /// Every file that the program put beside the marker, for kinds that list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// The value of [`Marker::made_by`].
const MADE_BY: &str = "blco";

impl Marker {
    /// The marker of a directory of kind `kind` with these files.
    #[must_use]
    pub fn new(kind: &Kind, files: Vec<String>) -> Self {
        Self { made_by: MADE_BY.into(), kind: kind.name.into(), files }
    }

    /// Marks `dir`. Syncs everything except the directory's own entry.
    pub fn write(&self, sys: &Sys, dir: &Path) -> Result<()> {
        let failed = |e: serde_json::Error| Error::request(format!("{}: {e}", dir.display()));
        let mut text = serde_json::to_vec(self).map_err(failed)?;
        text.push(b'\n');
        let file = sys.create(&dir.join(MARKER))?;
        file.write_all_at(&text, 0)?;
        file.sync()?;
        sys.sync_dir(dir)
    }

    /// Whether `dir` is marked as one of `kind`, or contains only a marker that a killed program left incomplete.
    pub fn is_in(sys: &Sys, dir: &Path, kind: &Kind) -> Result<bool> {
        Ok(Self::read(sys, dir, kind)?.is_some() || first_foreign(dir, |name| name == MARKER)?.is_none())
    }

    /// The marker of `dir` if it is one of `kind`'s.
    pub fn read(sys: &Sys, dir: &Path, kind: &Kind) -> Result<Option<Self>> {
        Ok(read_json::<Self>(sys, &dir.join(MARKER))?.filter(|m| m.made_by == MADE_BY && m.kind == kind.name))
    }
}

/// Parses a short JSON file; `None` if it does not exist or does not parse.
fn read_json<T: for<'a> Deserialize<'a>>(sys: &Sys, path: &Path) -> Result<Option<T>> {
    if !path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() <= MARKER_BYTES_MAX) {
        return Ok(None);
    }
    let file = sys.open_plain(path)?;
    let bytes = file.metadata()?.len().min(MARKER_BYTES_MAX);
    let mut text = sys.vec(0, usize::try_from(bytes).unwrap_or(0))?;
    let read = file.read_at(&mut text, 0)?;
    Ok(serde_json::from_slice(&text[..read]).ok())
}

/// The first name in `dir` that `holds` does not accept.
pub fn first_foreign(dir: &Path, holds: impl Fn(&OsStr) -> bool) -> Result<Option<String>> {
    let mut foreign = None;
    each_name(dir, |name| {
        foreign = (!holds(name)).then(|| name.to_string_lossy().into_owned());
        foreign.is_none()
    })
    .map_err(Error::io(dir, "read"))?;
    Ok(foreign)
}

/// Removes the directory `dir` of `kind`. Its mark goes last, after a sync, so that leftovers are recognized however
/// the program ends.
pub fn remove(sys: &Sys, kind: &Kind, dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir, "read"))? {
        let entry = entry.map_err(Error::io(dir, "read"))?;
        if ![MARKER, kind.marker].iter().any(|kept| entry.file_name() == *kept) {
            remove_any(sys, &entry.path())?;
        }
    }
    sys.sync_dir(dir)?;
    sys.remove_tree(dir)
}

/// Removes a file, or a directory and all that is in it.
fn remove_any(sys: &Sys, path: &Path) -> Result<()> {
    if path.is_dir() && !path.is_symlink() { sys.remove_tree(path) } else { sys.remove_file(path) }
}

/// Opens the directory named `path` for reading and shares it: while this lives, a program that replaces it keeps its
/// files. During a replacement by two renames, this is the old one.
pub fn open(sys: &Sys, path: &Path) -> Result<Dir> {
    /// How often names may change while they are inspected.
    const TRIES: usize = 100;
    for _ in 1..TRIES {
        let dir = match Dir::open(sys, path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                match Dir::open(sys, &partial_path(path).join(OLD)) {
                    Ok(old) if old.share()? => return Ok(old.called(path)),
                    _ if path.symlink_metadata().is_ok() => continue,
                    _ => break,
                }
            }
            opened => opened?,
        };
        // Programs lock exclusively only what has lost its name.
        dir.share()?;
        if dir.is_at(path) {
            return Ok(dir);
        }
    }
    Dir::open(sys, path)
}
