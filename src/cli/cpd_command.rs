//! Records the command in a checkpoint, so that `--resume DIR` needs no other option.

use super::conventions::lenient;
use super::outputs::Pending;
use crate::error::{Error, Result};
use crate::sys::Sys;
use clap::{CommandFactory, FromArgMatches};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const FILE: &str = "command.json";
/// The most bytes of a recorded command.
const BYTES_MAX: u64 = 4 << 20;

/// A command: its working directory and its arguments.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckpointCommand {
    directory: PathBuf,
    arguments: Vec<String>,
}

/// `words` without `--resume` and the directory behind it.
fn without_resume(words: impl Iterator<Item = String>, dir: Option<&Path>) -> Vec<String> {
    let mut words = words.peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == "--resume" {
            words.next_if(|next| dir.is_some_and(|dir| Path::new(next) == dir));
        } else if !word.starts_with("--resume=") {
            kept.push(word);
        }
    }
    kept
}

/// This program's arguments; `None` if some are not UTF-8.
fn arguments() -> Option<Vec<String>> {
    std::env::args_os().skip(1).map(OsString::into_string).collect::<std::result::Result<_, _>>().ok()
}

impl CheckpointCommand {
    /// This program's command, whose checkpoint is `dir`; `None` if it cannot be recorded.
    pub fn here(dir: &Path) -> Option<Self> {
        let arguments = without_resume(arguments()?.into_iter(), Some(dir));
        Some(Self { directory: std::env::current_dir().ok()?, arguments })
    }

    /// Reads the command from the checkpoint `dir` and appends this program's other options.
    pub fn read(sys: &Sys, dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let repeat = "repeat the whole command, with --resume";
        if !dir.is_dir() {
            let what = "no such directory; --resume takes the directory of a checkpoint";
            return Err(Error::request(format!("{}: {what}", dir.display())));
        }
        if !path.exists() {
            let what = "holds no checkpoint with its command; name another directory, or";
            return Err(Error::request(format!("{}: {what} {repeat}", dir.display())));
        }
        let file = sys.open(&path, false)?;
        let damaged = || Error::unusable(&path, format!("does not hold a command; {repeat}"));
        let bytes = file.metadata()?.len();
        if bytes > BYTES_MAX {
            return Err(damaged());
        }
        let mut text = sys.vec(0, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let read = file.read_at(&mut text, 0)?;
        let mut command: Self = serde_json::from_slice(&text[..read]).map_err(|_| damaged())?;
        let given = arguments().unwrap_or_default();
        command.arguments.extend(without_resume(given.into_iter(), Some(dir)));
        Ok(command)
    }

    /// Changes to the command's directory and parses its options, to resume from the checkpoint `dir`, an absolute path.
    pub fn again<P: CommandFactory + FromArgMatches>(&self, dir: &Path) -> Result<P> {
        let shown = dir.display();
        std::env::set_current_dir(&self.directory).map_err(|_| {
            let directory = self.directory.display();
            Error::request(format!(
                "{shown}: its command was given in {directory}, which cannot be entered; repeat the whole command, with --resume"
            ))
        })?;
        let words = std::iter::once(OsString::from("blco-cpd"))
            .chain(self.arguments.iter().map(OsString::from))
            .chain([OsString::from("--checkpoint"), dir.into(), "--resume".into()]);
        let parser = lenient(P::command()).args_override_self(true);
        let parsed = parser.try_get_matches_from(words).and_then(|matches| P::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Error::request(format!("{shown}: {line}"))
        })
    }

    /// Writes it into the checkpoint `dir`.
    pub fn write(&self, sys: &Sys, dir: &Path) -> Result<()> {
        let pending = Pending::create(sys, &dir.join(FILE), true)?;
        let json = serde_json::to_string_pretty(self).map_err(|e| Error::request(e.to_string()))?;
        pending.file().write_all_at(format!("{json}\n").as_bytes(), 0)?;
        pending.publish()
    }
}
