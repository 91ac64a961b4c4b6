//! Checkpoints: what a decomposition needs to go on after an iteration, as if it had not ended.
//!
//! ```text
//! DIR/current/   checkpoint.json, mode-1.npy …, gram-1.npy …; best/ with the same of the best start before
//! DIR/next/      the next one while it is written
//! ```
//!
//! A checkpoint is written to `next`, made durable, and takes the place of `current` in one step; whatever ends a program, the last
//! complete one stays. Factors are stored as they are, numbers in JSON to the bit. `checkpoint.json` holds checksums of its own facts and
//! of every matrix's numbers. The directory is locked while a program uses it.

use super::cp_als::{Als, Iteration};
use super::run::{Best, Job, StartReport};
use crate::dense::{Matrix, Real, mode_file};
use crate::error::{Error, Result};
use crate::store::MANIFEST;
use crate::sys::{File, Sys, Temporary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const CURRENT: &str = "current";
const NEXT: &str = "next";
const BEST: &str = "best";
const FACTS: &str = "checkpoint.json";
const VERSION: u32 = 2;
/// No `checkpoint.json` is longer: a hundred thousand iterations take a quarter of it.
const FACTS_BYTES_MAX: u64 = 64 << 20;

/// What must be the same for a checkpoint to be continued: names and values, as people call them.
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

/// What a checkpoint holds.
pub(super) struct Saved<T> {
    pub start: u32,
    pub als: Als,
    pub factors: Vec<Matrix<T>>,
    pub finished: Vec<StartReport>,
    pub best: Option<Best<T>>,
}

/// `checkpoint.json`.
#[derive(Serialize, Deserialize)]
struct Checkpoint {
    version: u32,
    /// Of the facts as they are written here, without white space.
    checksum: String,
    facts: Facts,
}

#[derive(Serialize, Deserialize)]
struct Facts {
    identity: Identity,
    finished: Vec<StartReport>,
    current: State,
    best: Option<State>,
}

/// A start, but for its matrices.
#[derive(Serialize, Deserialize)]
struct State {
    start: u32,
    lambda: Vec<f64>,
    history: Vec<Iteration>,
    /// Checksums of each mode's factor and Gram matrix.
    matrices: Vec<[String; 2]>,
}

impl State {
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

/// What a damaged file of a checkpoint is told with.
fn damaged(path: &Path) -> Error {
    Error::unusable(path, "corrupt: its checksum differs; start again with another --checkpoint directory")
}

fn gram_file(mode: usize) -> String {
    format!("gram-{}.npy", mode + 1)
}

impl Checkpointer {
    /// Checkpoints in `dir`, which is made where it is missing, after every `every` iterations. With `resume` the one that is
    /// there is continued; without, one that is there is an error.
    pub fn open(sys: &Sys, dir: &Path, every: usize, identity: Identity, resume: bool) -> Result<Self> {
        if dir.join(MANIFEST).exists() {
            return Err(Error::request(format!("{}: is a store; name another directory", dir.display())));
        }
        if !dir.is_dir() {
            sys.create_dir(dir)?;
        }
        let lock = sys.open_dir(dir)?;
        if !lock.try_lock()? {
            return Err(Error::request(format!(
                "{}: another program uses this directory now",
                dir.display()
            )));
        }
        if !resume && dir.join(CURRENT).exists() {
            let what = "holds a checkpoint; --resume continues it, another directory leaves it alone";
            return Err(Error::request(format!("{}: {what}", dir.display())));
        }
        let checkpointer =
            Self { sys: sys.clone(), dir: dir.to_path_buf(), every, identity, resume, _lock: lock };
        checkpointer.clear_next()?;
        Ok(checkpointer)
    }

    /// Removes what a killed program left of the one that it wrote, or of the one that was replaced.
    fn clear_next(&self) -> Result<()> {
        let next = self.dir.join(NEXT);
        if next.exists() { self.sys.remove_tree(&next) } else { Ok(()) }
    }

    /// Whether one is to be written after the last iteration.
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
        best: Option<&Best<T>>,
    ) -> Result<()> {
        let (sys, next, current) = (&self.sys, self.dir.join(NEXT), self.dir.join(CURRENT));
        self.clear_next()?;
        sys.create_dir(&next)?;
        let next = Temporary::at(sys, next);
        write_matrices(sys, next.path(), als, factors)?;
        if let Some(best) = best {
            let dir = next.path().join(BEST);
            sys.create_dir(&dir)?;
            write_matrices(sys, &dir, &best.als, &best.factors)?;
        }
        let facts = Facts {
            identity: self.identity.clone(),
            finished: finished.to_vec(),
            current: State::of(start, als, factors),
            best: best.map(|best| State::of(best.start, &best.als, &best.factors)),
        };
        let checksum = checksum(&json(&facts)?);
        let text = json(&Checkpoint { version: VERSION, checksum, facts })?;
        let file = sys.create(&next.path().join(FACTS))?;
        file.write_all_at(&text, 0)?;
        file.sync()?;
        sys.sync_dir(next.path())?;
        sys.check_cancelled()?;
        sys.publish(|| {
            if current.exists() {
                // The old one has the temporary name then, and goes with it.
                sys.exchange(next.path(), &current)
            } else {
                sys.rename(next.path(), &current)
            }
        })?;
        sys.sync_dir(&self.dir)
    }

    /// The checkpoint to be continued, checked against `job`; `None` where the start is to be from nothing.
    pub(super) fn load<T: Real>(&self, job: &Job<'_>) -> Result<Option<Saved<T>>> {
        let dir = self.dir.join(CURRENT);
        if !self.resume {
            return Ok(None);
        }
        if !dir.exists() {
            return Err(Error::request(format!("{}: holds no checkpoint to resume", self.dir.display())));
        }
        let facts = self.read_facts(&dir.join(FACTS))?;
        for (name, here) in &self.identity {
            let there = facts.identity.get(name).map_or("unknown", String::as_str);
            if there != here {
                let what = format!("its {name} is {there}, that of this command is {here}");
                return Err(Error::request(format!("{}: {what}; repeat the options", self.dir.display())));
            }
        }
        let (als, factors) = read_matrices(job, &dir, &facts.current)?;
        let best = match &facts.best {
            Some(state) => {
                let (als, factors) = read_matrices(job, &dir.join(BEST), state)?;
                Some(Best { start: state.start, als, factors })
            }
            None => None,
        };
        Ok(Some(Saved { start: facts.current.start, als, factors, finished: facts.finished, best }))
    }

    fn read_facts(&self, path: &Path) -> Result<Facts> {
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

/// Factors and Gram matrices, durable.
fn write_matrices<T: Real>(sys: &Sys, dir: &Path, als: &Als, factors: &[Matrix<T>]) -> Result<()> {
    for (mode, (factor, columns)) in factors.iter().zip(&als.columns).enumerate() {
        let file = sys.create(&dir.join(mode_file(mode)))?;
        factor.write(&file)?;
        file.sync()?;
        let file = sys.create(&dir.join(gram_file(mode)))?;
        let rank = factor.columns();
        Matrix::from_rows(rank, rank, columns.gram.clone()).write(&file)?;
        file.sync()?;
    }
    sys.sync_dir(dir)
}

/// The reverse.
fn read_matrices<T: Real>(job: &Job<'_>, dir: &Path, state: &State) -> Result<(Als, Vec<Matrix<T>>)> {
    let (mut factors, mut grams) = (Vec::new(), Vec::new());
    let rank = job.settings.rank;
    if state.matrices.len() != job.shape.order() {
        return Err(damaged(&dir.join(FACTS)));
    }
    for (mode, (&dim, [of_factor, of_gram])) in job.shape.dims().iter().zip(&state.matrices).enumerate() {
        let path = dir.join(mode_file(mode));
        let factor: Matrix<T> = Matrix::load_exact(job.sys, &path, dim as usize, rank)?;
        if checksum(factor.data()) != *of_factor {
            return Err(damaged(&path));
        }
        factors.push(factor);
        let path = dir.join(gram_file(mode));
        let gram = Matrix::<f64>::load_exact(job.sys, &path, rank, rank)?;
        if checksum(gram.data()) != *of_gram {
            return Err(damaged(&path));
        }
        grams.push(gram.data().to_vec());
    }
    if state.lambda.len() != rank {
        return Err(Error::unusable(
            dir.join(FACTS),
            format!("has {} weights, not {rank}", state.lambda.len()),
        ));
    }
    let als = Als::new(job.problem, job.settings, grams);
    Ok((als.resumed(state.lambda.clone(), state.history.clone()), factors))
}
