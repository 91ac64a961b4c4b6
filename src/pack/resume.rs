//! The beginning of a packing job: its directory, and what a killed job left in it.

use super::PackOptions;
use super::journal::{self, Journal};
use super::scratch::Scratch;
use crate::coo::{Extent, Source};
use crate::error::{Error, Result};
use crate::store::{Staging, partial_path};
use crate::sys::{SPILL_PREFIX, Sys};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// A job that is ready to read its input.
pub struct Prepared {
    /// Where the store is written.
    pub staging: Staging,
    /// Where temporary files go, with those that are there.
    pub scratch: Scratch,
    /// The input's extent, where an earlier job has read all of it.
    pub extent: Option<Extent>,
}

/// Opens the directory of the job, and with it what a killed job left, if this one is to resume it.
pub fn prepare(sys: &Sys, source: &dyn Source, options: &PackOptions) -> Result<Prepared> {
    let partial = partial_path(&options.target);
    let identity = source.identity()?;
    let spill_name = format!("{SPILL_PREFIX}{:016x}", xxh3_64(partial.as_os_str().as_encoded_bytes()));
    let job = journal::Job {
        version: journal::VERSION,
        input: source.name(),
        identity,
        options: options.decisive(),
        spill_dir: options.temp_dir.as_deref().unwrap_or(&partial).join(spill_name),
    };
    let left = Journal::read(sys, &partial)?.filter(|(_, finished, _)| finished.nnz() > 0);
    let left = match left {
        Some((old, finished, _)) if !finished.is_in(&old.spill_dir) => {
            gone(&old, options.resume)?;
            None
        }
        left => left,
    };
    let resumed = match left {
        Some((old, finished, bytes)) if options.resume => {
            same_job(&old, &job, &finished)?;
            Some((old.spill_dir, finished, bytes))
        }
        Some((old, finished, _)) if !options.replace => return Err(unfinished(&partial, &old, &finished)),
        _ => None,
    };
    let resume = resumed.is_some();
    let staging = Staging::create(sys, &options.target, options.replace, resume, options.codec)?;
    let (spill_dir, finished, journal) = if let Some((dir, finished, bytes)) = resumed {
        (dir, finished, Journal::resume(sys, staging.partial(), bytes)?)
    } else {
        let journal = Journal::create(sys, staging.partial(), &job)?;
        (job.spill_dir, journal::Finished::default(), journal)
    };
    let scratch = Scratch::new(sys, spill_dir, journal, &finished);
    Ok(Prepared { staging, scratch, extent: finished.extent })
}

/// An error unless `new` would do what `old` did, on the same input.
fn same_job(old: &journal::Job, new: &journal::Job, finished: &journal::Finished) -> Result<()> {
    if old.version != new.version {
        let what = "the unfinished pack was begun by another version of this program";
        return Err(Error::request(format!("--resume: {what}; start again with --force")));
    }
    if old.options != new.options {
        let what = format!("the unfinished pack had other options ({})", old.options);
        return Err(Error::request(format!("--resume: {what}; give the same, or start again with --force")));
    }
    let unreadable = new.identity.is_none() && finished.extent.is_none();
    if unreadable || new.identity.is_some() && old.identity != new.identity {
        let now = new.identity.as_deref().unwrap_or("read from a pipe, which cannot be read again");
        let then = old.identity.as_deref().unwrap_or("read from a pipe");
        let what = format!("the input is not what the unfinished pack read: it was {then}, it is {now}");
        return Err(Error::input(&new.input, format!("{what}; start again with --force")));
    }
    Ok(())
}

/// A job was killed while it removed its temporary files: there is nothing to resume.
fn gone(old: &journal::Job, resume: bool) -> Result<()> {
    if !resume {
        return Ok(());
    }
    let dir = old.spill_dir.display();
    let what = format!("temporary files of the unfinished pack are not in {dir} any more");
    Err(Error::request(format!("--resume: {what}; without --resume it starts again")))
}

/// What to say about what a killed job has left.
fn unfinished(partial: &Path, old: &journal::Job, finished: &journal::Finished) -> Error {
    let read = if finished.extent.is_some() { "all" } else { "part" };
    Error::request(format!(
        "{}: an unfinished pack of {} is here: {read} of its input read, {} nonzeros in {} runs and {} staged files \
         ({} bytes); --resume continues it, --force starts again",
        partial.display(),
        old.input,
        finished.nnz(),
        finished.runs.len(),
        finished.staged.len(),
        finished.bytes(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_of_another_version_is_not_resumed() {
        let job = |version| journal::Job {
            version,
            input: "t.tns".into(),
            identity: Some("1".into()),
            options: String::new(),
            spill_dir: "spill".into(),
        };
        let finished = journal::Finished::default();
        let now = journal::VERSION;
        assert!(same_job(&job(now), &job(now), &finished).is_ok());
        let refused = same_job(&job(now - 1), &job(now), &finished).unwrap_err().to_string();
        assert!(refused.contains("another version"), "{refused}");
    }
}
