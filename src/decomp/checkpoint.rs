//! Checkpoints: everything that a decomposition needs to continue after an iteration as if it had not
//! stopped.
//!
//! ```text
//! DIR/current/   checkpoint.json, mode-1.npy …, gram-1.npy …; start-1/ … with the same matrices of each start before
//! DIR/next/      the next one while it is written
//! DIR/old/       the last one, between two renames, where the file system cannot exchange names
//! ```
//!
//! A checkpoint is written to `next`, synced, and replaces `current` as described in [`crate::publish`]; however a
//! program ends, the last complete one remains. Each has a marker from the start. Directories with these names but
//! without a marker are not touched, except for complete checkpoints from before there were markers. Factors are stored
//! unchanged, numbers in JSON exactly. `checkpoint.json` holds checksums of its own fields and of every matrix. A
//! program locks the directory while it uses it.

use super::cp_als::{Als, Iteration, Problem, Settings};
use super::starts::{Start, StartReport};
use crate::dense::{Matrix, Real, mode_file};
use crate::error::{Error, Result};
use crate::publish::{self, Found, Kind, MARKER, Marker, Place, first_foreign};
use crate::shape::Shape;
use crate::store::MANIFEST;
use crate::sys::{File, Sys, Temporary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const CURRENT: &str = "current";
const NEXT: &str = "next";
const OLD: &str = "old";
/// The directory of the best start in version 2.
const BEST: &str = "best";
const FACTS: &str = "checkpoint.json";
const VERSION: u32 = 3;
/// The most bytes of `checkpoint.json`. A hundred thousand iterations take a quarter of it.
const FACTS_BYTES_MAX: u64 = 64 << 20;

/// Checkpoints that programs make and replace.
static CHECKPOINT: Kind =
    Kind { name: "checkpoint", marker: FACTS, exists: "is a checkpoint", look, beside: &[] };

fn look(sys: &Sys, path: &Path) -> Result<Found> {
    let other =
        |what: String| Ok(Found::Other(format!("{what}; move it, or name another `checkpoint` directory")));
    if !path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return other("is no checkpoint".into());
    }
    let is_part = |name: &OsStr| name.to_str().is_some_and(is_part);
    let mut foreign = first_foreign(path, |name| is_start(name) || is_part(name))?;
    for dir in starts_in(path)? {
        foreign = foreign.map_or_else(|| first_foreign(&dir, is_part), |name| Ok(Some(name)))?;
    }
    match foreign {
        Some(name) => other(format!("holds {name:?}, which is no part of a checkpoint")),
        None if first_foreign(path, |_| false)?.is_none() => Ok(Found::Empty),
        // Earlier versions wrote complete checkpoints without a marker.
        None if Marker::is_in(sys, path, &CHECKPOINT)? || path.join(FACTS).is_file() => Ok(Found::Made),
        None => other("has no mark of a checkpoint".into()),
    }
}

/// Removes a checkpoint and ignores errors.
fn discard(sys: &Sys, path: &Path) {
    if path.is_dir() {
        drop(publish::remove(sys, &CHECKPOINT, path));
    }
}

/// Whether `name` is that of a directory for an earlier start.
fn is_start(name: &OsStr) -> bool {
    let number = |name: &str| name.strip_prefix("start-")?.parse::<u32>().ok();
    name == BEST || name.to_str().and_then(number).is_some()
}

/// The directories of earlier starts in `path`.
fn starts_in(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = path.read_dir().map_err(Error::io(path, "list"))?;
    let entries: std::io::Result<Vec<_>> = entries.collect();
    let paths = entries.map_err(Error::io(path, "list"))?.into_iter().map(|entry| entry.path());
    let is_dir = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    Ok(paths.filter(|path| path.file_name().is_some_and(is_start) && is_dir(path)).collect())
}

fn start_dir(start: u32) -> String {
    format!("start-{}", start + 1)
}

/// Whether `name` is that of a file of a checkpoint.
fn is_part(name: &str) -> bool {
    let number = |kind: &str| name.strip_prefix(kind)?.strip_suffix(".npy")?.parse::<usize>().ok();
    [FACTS, MARKER].contains(&name) || ["mode-", "gram-"].iter().any(|kind| number(kind).is_some())
}

/// Facts that must be the same to continue a checkpoint: names and values, as messages show them.
pub type Identity = BTreeMap<String, String>;

/// Writes and reads the checkpoints of one decomposition.
#[derive(Debug)]
pub struct Checkpointer {
    sys: Sys,
    dir: PathBuf,
    every: usize,
    identity: Identity,
    resume: bool,
    _lock: File,
}

/// The contents of a checkpoint.
pub(super) struct Saved<T> {
    pub current: Start<T>,
    pub finished: Vec<StartReport>,
    pub models: Vec<Start<T>>,
}

/// `checkpoint.json`.
#[derive(Serialize, Deserialize)]
struct Checkpoint {
    version: u32,
    /// The checksum of the facts as written here, without white space.
    checksum: String,
    facts: CheckpointFacts,
}

#[derive(Serialize, Deserialize)]
struct CheckpointFacts {
    identity: Identity,
    finished: Vec<StartReport>,
    current: CheckpointState,
    models: Vec<CheckpointState>,
}

/// A start without its matrices.
#[derive(Serialize, Deserialize)]
struct CheckpointState {
    start: u32,
    lambda: Vec<f64>,
    history: Vec<Iteration>,
    /// Checksums of each mode's factor and Gram matrix.
    matrices: Vec<[String; 2]>,
}

impl CheckpointFacts {
    /// Whether the starts are those of a possible run. Later code trusts these numbers.
    fn is_consistent(&self) -> bool {
        let start = self.current.start;
        self.finished.len() == start as usize
            && self.models.len() == self.finished.len()
            && (0..).zip(&self.models).all(|(number, state)| state.start == number)
            && self.models.iter().chain([&self.current]).all(|state| !state.history.is_empty())
    }
}

impl CheckpointState {
    fn of<T: Real>(start: u32, als: &Als, factors: &[Matrix<T>]) -> Self {
        let each = factors.iter().zip(&als.columns);
        let matrices = each.map(|(factor, columns)| [checksum(factor.data()), checksum(&columns.gram)]);
        Self { start, lambda: als.lambda.clone(), history: als.history.clone(), matrices: matrices.collect() }
    }
}

/// XXH3-64 of the bytes, in hexadecimal digits.
fn checksum<T: bytemuck::NoUninit>(numbers: &[T]) -> String {
    format!("{:016x}", xxh3_64(bytemuck::cast_slice(numbers)))
}

/// The error for a damaged file of a checkpoint.
fn damaged(path: &Path) -> Error {
    Error::unusable(path, "corrupt: its checksum differs; start again with another `checkpoint` directory")
}

fn gram_file(mode: usize) -> String {
    format!("gram-{}.npy", mode + 1)
}

/// The decomposition that a checkpoint must belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub sys: &'a Sys,
    pub shape: &'a Shape,
    pub problem: Problem,
    pub settings: Settings,
}

impl Checkpointer {
    /// Checkpoints in `dir`, which is created if missing, after every `every` iterations. With `resume`, an existing checkpoint
    /// is continued; otherwise it is an error.
    pub fn open(sys: &Sys, dir: &Path, every: usize, identity: Identity, resume: bool) -> Result<Self> {
        if dir.join(MANIFEST).exists() {
            return Err(Error::request(format!("{}: is a store; name another directory", dir.display())));
        }
        if !dir.is_dir() {
            sys.create_dir(dir)?;
            sys.sync_name(dir)?;
        }
        let lock = sys.open_dir(dir)?;
        if !lock.try_lock()? {
            let what = "another program uses this directory now";
            return Err(Error::request(format!("{}: {what}", dir.display())));
        }
        let checkpointer =
            Self { sys: sys.clone(), dir: dir.to_path_buf(), every, identity, resume, _lock: lock };
        checkpointer.clear()?;
        let place = checkpointer.place()?;
        if !resume && dir.join(CURRENT).exists() {
            let what = "holds a checkpoint; `resume` continues it, another directory leaves it alone";
            return Err(Error::request(format!("{}: {what}", dir.display())));
        }
        place.try_out(dir, &dir.join(OLD))?;
        Ok(checkpointer)
    }

    /// Restores the name of the last checkpoint if a program was killed between two renames, and removes its unfinished next one.
    fn clear(&self) -> Result<()> {
        let (current, old) = (self.dir.join(CURRENT), self.dir.join(OLD));
        if self.is_made(&old)? && current.symlink_metadata().is_err() {
            self.sys.publish(|| self.sys.rename_new(&old, &current))?;
            self.sys.sync_dir(&self.dir)?;
        }
        self.remove(&old)?;
        self.remove(&self.dir.join(NEXT))
    }

    /// Whether `path` is a checkpoint or part of one; an error if it is something else.
    fn is_made(&self, path: &Path) -> Result<bool> {
        if path.symlink_metadata().is_err() {
            return Ok(false);
        }
        match look(&self.sys, path)? {
            Found::Other(what) => Err(Error::request(format!("{}: {what}", path.display()))),
            Found::Made | Found::Empty => Ok(true),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if self.is_made(path)? { publish::remove(&self.sys, &CHECKPOINT, path) } else { Ok(()) }
    }

    /// The path of the next checkpoint.
    fn place(&self) -> Result<Place> {
        let current = self.dir.join(CURRENT);
        Place::look(&self.sys, &CHECKPOINT, &current, &current, true)
    }

    /// Whether a checkpoint is due after the last iteration.
    pub(super) fn is_due(&self, als: &Als) -> bool {
        als.history().len().is_multiple_of(self.every)
    }

    /// Replaces the checkpoint, in one step.
    pub(super) fn save<T: Real>(
        &mut self,
        start: u32,
        als: &Als,
        factors: &[Matrix<T>],
        finished: &[StartReport],
        models: &[Start<T>],
    ) -> Result<()> {
        let (sys, old) = (&self.sys, self.dir.join(OLD));
        let place = self.place()?;
        self.remove(&self.dir.join(NEXT))?;
        let next = self.dir.join(NEXT);
        let next = Temporary::made(sys, &next, discard, || sys.create_dir(&next))?;
        Marker::new(&CHECKPOINT, Vec::new()).write(sys, next.path())?;
        place.guard(next.path())?;
        write_matrices(sys, next.path(), als, factors)?;
        for model in models {
            let dir = next.path().join(start_dir(model.number));
            sys.create_dir(&dir)?;
            write_matrices(sys, &dir, &model.als, &model.factors)?;
        }
        let facts = CheckpointFacts {
            identity: self.identity.clone(),
            finished: finished.to_vec(),
            current: CheckpointState::of(start, als, factors),
            models: models.iter().map(|m| CheckpointState::of(m.number, &m.als, &m.factors)).collect(),
        };
        let checksum = checksum(&json(&facts)?);
        let text = json(&Checkpoint { version: VERSION, checksum, facts })?;
        let file = sys.create(&next.path().join(FACTS))?;
        file.write_all_at(&text, 0)?;
        file.sync()?;
        place.keep_permissions(next.path())?;
        sys.sync_dir(next.path())?;
        sys.check_cancelled()?;
        let replaced = sys.publish(|| {
            let replaced = place.give(next.path(), &old)?;
            // After an exchange the old one has the temporary name, and is removed with it.
            Ok(replaced.filter(|r| *r == old).map(|old| Temporary::removed_by(sys, old, discard)))
        })?;
        sys.sync_dir(&self.dir)?;
        drop(replaced);
        Ok(())
    }

    /// The checkpoint to continue, checked against `expected`; `None` to start from the beginning.
    pub(super) fn load<T: Real>(&self, expected: &Expected<'_>) -> Result<Option<Saved<T>>> {
        let dir = self.dir.join(CURRENT);
        if !self.resume {
            return Ok(None);
        }
        if !dir.exists() {
            return Err(Error::request(format!("{}: holds no checkpoint to resume", self.dir.display())));
        }
        let facts = self.read_facts(&dir.join(FACTS))?;
        if !facts.is_consistent() {
            return Err(damaged(&dir.join(FACTS)));
        }
        for (name, here) in &self.identity {
            let there = facts.identity.get(name).map_or("unknown", String::as_str);
            if there != here {
                let what = format!("its {name} is {there}, that of this command is {here}");
                return Err(Error::request(format!("{}: {what}; repeat the options", self.dir.display())));
            }
        }
        let current = read_matrices(expected, &dir, facts.current)?;
        let model =
            |state: CheckpointState| read_matrices(expected, &dir.join(start_dir(state.start)), state);
        let models = facts.models.into_iter().map(model).collect::<Result<_>>()?;
        Ok(Some(Saved { current, finished: facts.finished, models }))
    }

    fn read_facts(&self, path: &Path) -> Result<CheckpointFacts> {
        let file = self.sys.open(path, false)?;
        let bytes = file.metadata()?.len();
        if bytes > FACTS_BYTES_MAX {
            return Err(Error::unusable(path, format!("{bytes} bytes; no checkpoint says that much")));
        }
        let mut text = self.sys.vec(0, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let read = file.read_at(&mut text, 0)?;
        let text: serde_json::Value = serde_json::from_slice(&text[..read])
            .map_err(|e| Error::unusable(path, format!("not a checkpoint: {e}")))?;
        let version = &text["version"];
        if *version != VERSION {
            let what = format!("a checkpoint of version {version}; this program continues {VERSION}");
            return Err(Error::unusable(path, what));
        }
        let found: Checkpoint = serde_json::from_value(text).map_err(|_| damaged(path))?;
        if checksum(&json(&found.facts)?) != found.checksum {
            return Err(damaged(path));
        }
        Ok(found.facts)
    }
}

fn json(what: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(what).map_err(|e| Error::request(format!("a checkpoint: {e}")))
}

/// Writes factors and Gram matrices durably.
fn write_matrices<T: Real>(sys: &Sys, dir: &Path, als: &Als, factors: &[Matrix<T>]) -> Result<()> {
    for (mode, (factor, columns)) in factors.iter().zip(&als.columns).enumerate() {
        let rank = factor.columns();
        write_matrix(sys, &dir.join(mode_file(mode)), factor)?;
        write_matrix(sys, &dir.join(gram_file(mode)), &Matrix::from_rows(rank, rank, columns.gram.clone()))?;
    }
    sys.sync_dir(dir)
}

fn write_matrix<T: Real>(sys: &Sys, path: &Path, matrix: &Matrix<T>) -> Result<()> {
    let file = sys.create(path)?;
    matrix.write(&file)?;
    file.sync()
}

/// Reads a matrix and compares it with its checksum.
fn read_matrix<T: Real>(sys: &Sys, path: &Path, [rows, columns]: [usize; 2], sum: &str) -> Result<Matrix<T>> {
    let matrix: Matrix<T> = Matrix::load_exact(sys, path, rows, columns)?;
    if checksum(matrix.data()) == sum { Ok(matrix) } else { Err(damaged(path)) }
}

/// Reads them.
fn read_matrices<T: Real>(expected: &Expected<'_>, dir: &Path, state: CheckpointState) -> Result<Start<T>> {
    let (mut factors, mut grams) = (Vec::new(), Vec::new());
    let rank = expected.settings.rank;
    if state.matrices.len() != expected.shape.order() {
        return Err(damaged(&dir.join(FACTS)));
    }
    for (mode, (&dim, [of_factor, of_gram])) in expected.shape.dims().iter().zip(&state.matrices).enumerate()
    {
        let axes = [dim as usize, rank];
        factors.push(read_matrix(expected.sys, &dir.join(mode_file(mode)), axes, of_factor)?);
        let path = dir.join(gram_file(mode));
        grams.push(read_matrix::<f64>(expected.sys, &path, [rank; 2], of_gram)?.data().to_vec());
    }
    if state.lambda.len() != rank {
        let what = format!("has {} weights, not {rank}", state.lambda.len());
        return Err(Error::unusable(dir.join(FACTS), what));
    }
    let als = Als::new(expected.problem, expected.settings, grams).resumed(state.lambda, state.history);
    Ok(Start { number: state.start, als, factors })
}
