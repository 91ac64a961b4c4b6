//! How what a program makes gets its name: stores, results, checkpoints and files.
//!
//! All of them come about in the same way. They are written beside their name, made durable, and get the name in one step, so
//! that they are there whole or not at all, whatever ends a program. A program replaces and removes only what a
//! program here has made and what it can tell by a [`Kind`]'s mark: a store by its manifest, results, checkpoints and
//! directories for what is not finished by the file [`MARKER`].
//!
//! ```text
//! NAME               what readers see: nothing, the old one, or the new one
//! NAME.partial/      there while NAME is written, locked by the program that writes it
//!   .made-by-blco    says that a program here made the directory
//!   store            (or result, or file) the new one; after an exchange, the old one
//!   publishing       what gets the name, and what had it: written before the names change
//!   old              the old one, between two renames, where the file system cannot exchange names
//!   replaced-ID      an old one that a program still reads; the next program that writes NAME removes it
//!   displaced        what no program here made, lost its name and could not get it back; nobody removes it
//! ```
//!
//! **A name is given** ([`Place::give`]) by a rename that replaces nothing where nothing was at the start. Otherwise the new one and the
//! old one exchange names, and what came out must be what was there at the start: another thing that has taken
//! the place meanwhile gets its name back, and the program refuses. Where names cannot be exchanged the old one is
//! renamed to `old` first. Killed between the two renames, a program leaves the old one there: the next one to write NAME gives it
//! its name back, and readers ([`open`]) find it meanwhile.
//!
//! **An old one goes** when nobody reads it: readers of directories hold a shared lock on what they read, and a
//! program removes only what it can lock for itself.
//!
//! **Durable** before the name is given: the contents, the directory that holds them, `publishing`, `NAME.partial` and its name. After
//! it: the directory of NAME, and `NAME.partial`, before anything of the old one is removed.

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

/// The file that says that a program here made the directory that it is in.
pub const MARKER: &str = ".made-by-blco";
/// No marker is longer.
const MARKER_BYTES_MAX: u64 = 1 << 20;

/// A kind of things that a program makes.
#[derive(Debug)]
pub struct Kind {
    /// What it is called in `NAME.partial`.
    pub name: &'static str,
    /// The file of a directory of this kind whose permissions all files of one that replaces it get.
    pub marker: &'static str,
    /// What is said where one is there and is not to be replaced.
    pub exists: &'static str,
    /// Whether `path`, where something is, is one.
    pub look: fn(&Sys, &Path) -> Result<Found>,
    /// How names begin that its makers have in `NAME.partial` besides.
    pub beside: &'static [&'static str],
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// One of the kind, with nothing in it that is not.
    Made,
    /// An empty directory where the kind takes one for nothing.
    Empty,
    /// Something else: why it is in the way, and what to do.
    Other(String),
}

/// What stands in a [`MARKER`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Marker {
    made_by: String,
    kind: String,
    /// Everything that the program put beside the marker, where that says what is the program's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// What [`Marker::made_by`] is.
const MADE_BY: &str = "blco";

impl Marker {
    /// The marker of a directory of kind `kind` with these files.
    #[must_use]
    pub fn new(kind: &Kind, files: Vec<String>) -> Self {
        Self { made_by: MADE_BY.into(), kind: kind.name.into(), files }
    }

    /// Marks `dir`, durably but for its name.
    pub fn write(&self, sys: &Sys, dir: &Path) -> Result<()> {
        let failed = |e: serde_json::Error| Error::request(format!("{}: {e}", dir.display()));
        let mut text = serde_json::to_vec(self).map_err(failed)?;
        text.push(b'\n');
        let file = sys.create(&dir.join(MARKER))?;
        file.write_all_at(&text, 0)?;
        file.sync()?;
        sys.sync_dir(dir)
    }

    /// Whether `dir` is marked as one of `kind`'s, or has nothing in it but a marker that a program was killed over.
    pub fn is_in(sys: &Sys, dir: &Path, kind: &Kind) -> Result<bool> {
        Ok(Self::read(sys, dir, kind)?.is_some() || first_foreign(dir, |name| name == MARKER)?.is_none())
    }

    /// The marker of `dir` if it is one of `kind`'s.
    pub fn read(sys: &Sys, dir: &Path, kind: &Kind) -> Result<Option<Self>> {
        Ok(read_json::<Self>(sys, &dir.join(MARKER))?.filter(|m| m.made_by == MADE_BY && m.kind == kind.name))
    }
}

/// What stands in a short file; `None` where it is no such file.
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

/// The first name in `dir` that is not one that `holds` knows.
pub fn first_foreign(dir: &Path, holds: impl Fn(&OsStr) -> bool) -> Result<Option<String>> {
    let mut foreign = None;
    each_name(dir, |name| {
        foreign = (!holds(name)).then(|| name.to_string_lossy().into_owned());
        foreign.is_none()
    })
    .map_err(Error::io(dir, "read"))?;
    Ok(foreign)
}

/// Removes the directory `dir` of `kind`. What tells that a program here made it goes last, durably: whatever ends the program, the
/// rest is known again.
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

/// Opens the directory called `path` for reading and shares it: while this lives, a program that replaces it leaves its files alone.
/// Where a replacement stands between two renames, this is the old one.
pub fn open(sys: &Sys, path: &Path) -> Result<Dir> {
    /// How often names may change while they are looked at.
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
        // A program here locks for itself only what has lost its name.
        dir.share()?;
        if dir.is_at(path) {
            return Ok(dir);
        }
    }
    Dir::open(sys, path)
}
