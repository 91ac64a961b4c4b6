//! The beginning of a packing job: its directory, and what a killed job left in it.

use super::PackOptions;
use super::journal::{self, Finished, Journal};
use super::scratch::Scratch;
use crate::coo::{Extent, Source};
use crate::error::{Error, Result};
use crate::publish::finished;
use crate::store::{Staging, Store, partial_path};
use crate::sys::{SPILL_PREFIX, Sys};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// A job that is ready to read its input.
pub struct Prepared {
    /// Where the store is written.
    pub staging: Staging,
    /// Where temporary files go, with those that are there.
    pub scratch: Scratch,
    /// The input's extent, where an earlier job has read all of it.
    pub extent: Option<Extent>,
    /// The job.
    pub job: journal::Job,
}

/// How a job begins.
pub enum Beginning {
    /// There is work to do.
    Ready(Box<Prepared>),
    /// The job that was to be resumed had published this store, and was killed while it cleaned up.
    Complete(Complete, Box<Store>),
}

/// What a job notes when it publishes: what tells whether another is the same, and what no store holds.
#[derive(Serialize, Deserialize)]
pub struct Complete {
    /// The job.
    pub job: journal::Job,
    /// The store id.
    pub digest: String,
    /// Nonzeros of the input.
    pub input_nnz: u64,
    /// Nonzeros that were added to one with the same coordinates.
    pub summed: u64,
    /// Nonzeros kept though one with the same coordinates is there.
    pub kept: u64,
}

impl Complete {
    /// What the killed job noted that has published the store at `target`, and that store.
    fn find(sys: &Sys, target: &Path) -> Result<Option<(Self, Store)>> {
        let noted = finished(sys, target)?.and_then(|facts| serde_json::from_value::<Self>(facts).ok());
        let Some(noted) = noted else { return Ok(None) };
        let store = Store::open(sys, target)?;
        Ok((noted.digest == format!("{:016x}", store.id())).then_some((noted, store)))
    }
}

/// What a killed job left.
struct Left {
    job: journal::Job,
    finished: Finished,
    /// Bytes of the journal that count.
    journal_bytes: u64,
    /// Where its temporary files are.
    spill_dir: PathBuf,
}

impl Left {
    /// What is left in `partial`. A journal that cannot be read is an error, unless it would be discarded.
    fn read(sys: &Sys, partial: &Path, options: &PackOptions) -> Result<Option<Self>> {
        match Journal::read(sys, partial) {
            Err(Error::Corrupt { .. }) if options.replace && !options.resume => Ok(None),
            read => Ok(read?.map(|(job, finished, journal_bytes)| {
                let spill_dir = partial.join(&job.spill_dir);
                Self { job, finished, journal_bytes, spill_dir }
            })),
        }
    }

    fn is_of_this_version(&self) -> bool {
        self.job.version == journal::VERSION
    }

    /// Whether its files are there: a job that was killed while it removed them has left nothing to resume.
    fn is_there(&self) -> bool {
        self.finished.is_in(&self.spill_dir)
    }
}

/// Where the temporary files of the pack in `partial` go: in there, or in a directory of `--temp-dir` whose name no other target's
/// pack takes.
fn spill_dir(options: &PackOptions, partial: &Path) -> Result<PathBuf> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(Error::io(path, "resolve"));
    let name = format!("{SPILL_PREFIX}{:016x}", xxh3_64(absolute(partial)?.as_os_str().as_encoded_bytes()));
    options.temp_dir.as_deref().map_or_else(|| Ok(name.clone().into()), |dir| Ok(absolute(dir)?.join(&name)))
}

/// Opens the directory of the job, and with it what a killed job left, if this one is to resume it.
pub fn prepare(sys: &Sys, source: &dyn Source, options: &PackOptions) -> Result<Beginning> {
    let partial = partial_path(&options.target);
    let job = journal::Job {
        version: journal::VERSION,
        input: source.name(),
        identity: source.identity()?,
        options: options.decisive(),
        spill_dir: spill_dir(options, &partial)?,
    };
    if options.resume
        && let Some((complete, store)) = Complete::find(sys, &options.target)?
    {
        same_request(&complete.job, &job, true)?;
        discard(sys, &partial.join(&complete.job.spill_dir))?;
        Staging::clean_up(sys, &options.target)?;
        return Ok(Beginning::Complete(complete, Box::new(store)));
    }
    let (resumed, discarded) = match Left::read(sys, &partial, options)? {
        Some(left) if left.finished.nnz() == 0 => (None, Some(left.spill_dir)),
        Some(left) if options.resume => {
            same_job(&left, &job)?;
            (Some(left), None)
        }
        Some(left) if options.replace || left.is_of_this_version() && !left.is_there() => {
            (None, Some(left.spill_dir))
        }
        Some(left) => return Err(unfinished(&partial, &left)),
        None => (None, None),
    };
    let resume = resumed.is_some();
    let staging = Staging::create(sys, &options.target, options.replace, resume, options.codec)?;
    if let Some(dir) = discarded {
        discard(sys, &dir)?;
    }
    let (spill_dir, finished, journal) = if let Some(left) = resumed {
        let journal = Journal::resume(sys, staging.partial(), left.journal_bytes)?;
        (left.spill_dir, left.finished, journal)
    } else {
        let journal = Journal::create(sys, staging.partial(), &job)?;
        (partial.join(&job.spill_dir), Finished::default(), journal)
    };
    let scratch = Scratch::new(sys, spill_dir, journal, &finished);
    Ok(Beginning::Ready(Box::new(Prepared { staging, scratch, extent: finished.extent, job })))
}

/// Removes the temporary files of a job that nobody will resume, wherever they are.
fn discard(sys: &Sys, dir: &Path) -> Result<()> {
    let name = dir.file_name().unwrap_or_default().as_encoded_bytes();
    if name.starts_with(SPILL_PREFIX.as_bytes()) && dir.is_dir() { sys.remove_tree(dir) } else { Ok(()) }
}

/// What is told of a job that another version has left.
const OTHER_VERSION: &str =
    "was begun by another version of this program and cannot be resumed; --force starts again";

/// An error unless `new` would do what the job that left `old` did, on the same input, and what it left is there.
fn same_job(old: &Left, new: &journal::Job) -> Result<()> {
    if !old.is_of_this_version() {
        return Err(Error::request(format!("--resume: the unfinished pack {OTHER_VERSION}")));
    }
    if !old.is_there() {
        let dir = old.spill_dir.display();
        let what = format!("temporary files of the unfinished pack are not in {dir} any more");
        return Err(Error::request(format!("--resume: {what}; without --resume it starts again")));
    }
    same_request(&old.job, new, old.finished.extent.is_some())
}

/// An error unless `new` is to do what `old` did, on the same input, of which that had `read_all`.
fn same_request(old: &journal::Job, new: &journal::Job, read_all: bool) -> Result<()> {
    if old.options != new.options {
        let what = format!("the unfinished pack had other options ({})", old.options);
        return Err(Error::request(format!("--resume: {what}; give the same, or start again with --force")));
    }
    // Of two pipes nothing tells whether they say the same: the second serves where none of it will be read.
    let unreadable = new.identity.is_none() && !read_all;
    if unreadable || old.identity != new.identity {
        let now = new.identity.as_deref().unwrap_or("read from a pipe, which cannot be read again");
        let then = old.identity.as_deref().unwrap_or("read from a pipe");
        let what = format!("the input is not what the unfinished pack read: it was {then}, it is {now}");
        return Err(Error::input(&new.input, format!("{what}; give that one, or start again with --force")));
    }
    Ok(())
}

/// What to say about what a killed job has left.
fn unfinished(partial: &Path, left: &Left) -> Error {
    let (shown, input, finished) = (partial.display(), &left.job.input, &left.finished);
    if !left.is_of_this_version() {
        return Error::request(format!(
            "{shown}: an unfinished pack of {input} is here, which {OTHER_VERSION}"
        ));
    }
    let read = if finished.extent.is_some() { "all" } else { "part" };
    Error::request(format!(
        "{shown}: an unfinished pack of {input} is here: {read} of its input read, {} nonzeros in {} runs and {} staged \
         files ({}); --resume continues it, --force starts again",
        finished.nnz(),
        finished.runs.len(),
        finished.staged.len(),
        ByteSize(finished.bytes()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(version: u32) -> Left {
        let job = journal::Job {
            version,
            input: "t.tns".into(),
            identity: Some("1".into()),
            options: String::new(),
            spill_dir: "spill".into(),
        };
        Left { job, finished: Finished::default(), journal_bytes: 0, spill_dir: "spill".into() }
    }

    #[test]
    fn a_journal_of_another_version_is_not_resumed_and_nobody_is_told_to() {
        let now = left(journal::VERSION);
        assert!(same_job(&now, &now.job).is_ok());
        let old = left(journal::VERSION - 1);
        for refused in [same_job(&old, &now.job).unwrap_err(), unfinished(Path::new("s.partial"), &old)] {
            let refused = refused.to_string();
            assert!(refused.contains("another version") && refused.contains("--force"), "{refused}");
            assert!(!refused.contains("--resume continues"), "{refused}");
        }
    }

    /// Once the input has been read to its end, the input of the job that resumes is not looked at any more.
    #[test]
    fn a_pipe_is_not_taken_for_a_file_nor_a_file_for_a_pipe() {
        let extent = || Some(Extent { dims: vec![2, 2], nnz: 1 });
        let finished = |extent| Finished { extent, ..Finished::default() };
        let of = |identity: Option<&str>, extent| {
            let mut left = Left { finished: finished(extent), ..left(journal::VERSION) };
            left.job.identity = identity.map(Into::into);
            left
        };
        let accepts = |old: &Left, new: Option<&str>| same_job(old, &of(new, None).job).is_ok();
        assert!(accepts(&of(Some("1"), extent()), Some("1")) && accepts(&of(Some("1"), None), Some("1")));
        assert!(!accepts(&of(Some("1"), extent()), Some("2")));
        assert!(!accepts(&of(Some("1"), extent()), None), "a pipe, after a file");
        assert!(!accepts(&of(None, extent()), Some("1")), "a file, after a pipe");
        assert!(accepts(&of(None, extent()), None), "a pipe, all of which had been read");
        assert!(!accepts(&of(None, None), None));
    }

    #[test]
    fn each_target_has_temporary_files_of_its_own_wherever_a_program_stands() {
        let at = |target: &str, temp_dir: Option<&str>| {
            let mut options = PackOptions::new(target.into());
            options.temp_dir = temp_dir.map(Into::into);
            spill_dir(&options, &partial_path(&options.target)).unwrap()
        };
        let here = std::env::current_dir().unwrap();
        let whole = here.join("t.blco");
        assert_eq!(at("t.blco", Some("scratch")), at(whole.to_str().unwrap(), Some("scratch")));
        assert!(at("t.blco", Some("scratch")).starts_with(here.join("scratch")));
        assert_ne!(at("t.blco", Some("/scratch")), at("/elsewhere/t.blco", Some("/scratch")));
        assert!(at("t.blco", None).is_relative(), "moves with the directory that it is in");
    }
}
