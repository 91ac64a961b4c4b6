//! The start of a packing job: its directory, and the leftovers of a killed job in it.

use super::PackOptions;
use super::journal::{self, Finished, Found, Journal};
use super::scratch::{Place, ScratchDir};
use crate::coo::{Extent, Source};
use crate::error::{Error, Result};
use crate::publish::finished;
use crate::store::{Formats, Staging, Store, digest_of, part_name, partial_path, parts_in};
use crate::sys::{SpillDir, Sys};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A job that is ready to read its input.
pub struct Prepared {
    /// Where the store is written.
    pub staging: Staging,
    /// Where temporary files go, with those that are there.
    pub scratch: ScratchDir,
    /// The input's extent, where an earlier job has read all of it.
    pub extent: Option<Extent>,
    /// The job.
    pub job: journal::Job,
}

/// How a job begins.
pub enum Beginning {
    /// There is work to do.
    Ready(Box<Prepared>),
    /// The job that was to be resumed had published this store, or these parts, and was killed while it cleaned up.
    Complete(Complete, Vec<Store>),
}

/// What a job notes when it publishes: what tells whether another is the same, and what no store holds.
#[derive(Serialize, Deserialize)]
pub struct Complete {
    /// The job.
    pub job: journal::Job,
    /// The store id, or the digest of the parts.
    pub digest: String,
    /// Nonzeros of the input.
    pub input_nnz: u64,
    /// Nonzeros that were added to one with the same coordinates.
    pub summed: u64,
    /// Nonzeros kept though one with the same coordinates is there.
    pub kept: u64,
}

impl Complete {
    /// What the killed job noted that has published the store at `target`, or all parts of a tensor, and these stores.
    fn find(sys: &Sys, formats: &Formats, target: &Path) -> Result<Option<(Self, Vec<Store>)>> {
        let noted = finished(sys, target)?.and_then(|facts| serde_json::from_value::<Self>(facts).ok());
        let Some(noted) = noted else { return Ok(None) };
        let parts =
            parts_in(target)?.into_iter().map(|(number, parts)| target.join(part_name(number, parts)));
        let mut paths: Vec<PathBuf> = parts.collect();
        if paths.is_empty() {
            paths.push(target.to_path_buf());
        }
        let open = |path: &PathBuf| Store::open_if(sys, formats, path, |_| Ok(()));
        let stores = paths.iter().map(open).collect::<Result<Vec<Store>>>()?;
        let digest = digest_of(&stores.iter().map(Store::id).collect::<Vec<u64>>());
        Ok((noted.digest == format!("{digest:016x}")).then_some((noted, stores)))
    }
}

/// What a killed job left.
struct Left {
    /// What the job was.
    job: journal::Job,
    /// Its journal and its temporary files, if these are its own and whole.
    kept: Option<Kept>,
    /// Whether it had finished something.
    is_bare: bool,
}

/// What a job can go on with.
struct Kept {
    found: Found,
    finished: Finished,
    dir: SpillDir,
}

impl Left {
    /// What is left in `partial`. A journal that cannot be used is an error, unless it would be discarded.
    fn read(sys: &Sys, partial: &Path, options: &PackOptions) -> Result<Option<Self>> {
        match Self::read_journal(sys, partial) {
            Err(_) if options.replace && !options.resume => Ok(None),
            read => read,
        }
    }

    fn read_journal(sys: &Sys, partial: &Path) -> Result<Option<Self>> {
        let Some(found) = Found::read(sys, partial)? else { return Ok(None) };
        let (job, is_bare) = (found.job.clone(), found.is_bare());
        let mut left = Self { job, kept: None, is_bare };
        if !left.is_of_this_version() {
            return Ok(Some(left));
        }
        // What is not this user's, or not this job's, is as if it were not there.
        let path = left.job.spill_path(partial);
        let dir = path.map(|path| sys.open_spill_dir(&path)).transpose()?.flatten();
        if let Some(dir) = dir.filter(|dir| found.is_of(dir.owner().key)) {
            let finished = found.finished(dir.owner().key)?;
            left.kept = Some(Kept { found, finished, dir });
        }
        Ok(Some(left))
    }

    fn is_of_this_version(&self) -> bool {
        self.job.version == journal::VERSION
    }

    /// What it finished.
    fn finished(&self) -> Option<&Finished> {
        self.kept.as_ref().map(|kept| &kept.finished)
    }

    /// Whether its files are there: a job that was killed while it removed them has left nothing to resume.
    fn is_there(&self) -> bool {
        self.kept.as_ref().is_some_and(|Kept { finished, dir, .. }| {
            finished.is_there(|name| Some(dir.open(name).ok()?.metadata().ok()?.len()))
        })
    }

    /// Whether there is nothing to go on with.
    fn is_empty(&self) -> bool {
        self.is_of_this_version() && self.finished().map_or(self.is_bare, |finished| finished.nnz() == 0)
    }
}

/// Where the temporary files of the pack in `partial` go, a directory of `--temp-dir` or in there, and what the journal says of that.
fn place(sys: &Sys, options: &PackOptions, partial: &Path) -> Result<(Place, PathBuf)> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(Error::io(path, "resolve"));
    let resumed_from = Some(absolute(partial)?);
    if let Some(dir) = &options.temp_dir {
        let place = Place::new(sys, &absolute(dir)?, resumed_from);
        let named = place.path.clone();
        return Ok((place, named));
    }
    let place = Place::new(sys, partial, resumed_from);
    let named = place.path.file_name().map(PathBuf::from).unwrap_or_default();
    Ok((place, named))
}

/// Opens the directory of the job, and with it what a killed job left, if this one is to resume it.
pub fn prepare(sys: &Sys, source: &dyn Source, options: &PackOptions) -> Result<Beginning> {
    let partial = partial_path(&options.target);
    let mut job = journal::Job {
        version: journal::VERSION,
        input: source.name(),
        identity: source.identity()?,
        options: options.decisive(),
        spill_dir: PathBuf::new(),
    };
    if options.resume
        && let Some((complete, stores)) = Complete::find(sys, &options.formats, &options.target)?
    {
        same_request(&complete.job, true, &job)?;
        // A journal that still stands says whose its temporary files are.
        if let Some(mut kept) = Left::read(sys, &partial, options).ok().flatten().and_then(|left| left.kept) {
            kept.dir.take()?;
        }
        Staging::clean_up(sys, &options.target)?;
        return Ok(Beginning::Complete(complete, stores));
    }
    let left = Left::read(sys, &partial, options)?;
    let resumes = match &left {
        Some(left) if left.is_empty() => false,
        Some(left) if options.resume => same_job(left, &job).map(|()| true)?,
        Some(left) if options.replace || left.is_of_this_version() && !left.is_there() => false,
        Some(left) => return Err(unfinished(&partial, left)),
        None => false,
    };
    let staging = Staging::create(sys, &options.target, options.replace, resumes, options.codec)?;
    if resumes {
        // Only now is the directory this program's: what was in it before may have changed.
        let kept = Left::read(sys, &partial, options)?.filter(Left::is_there).and_then(|left| left.kept);
        let changed = || Error::request("`resume`: another program has gone on with the unfinished pack");
        let Kept { found, finished, mut dir } = kept.ok_or_else(changed)?;
        if !dir.take()? {
            return Err(changed());
        }
        let extent = finished.extent.clone();
        let found_job = found.job.clone();
        let scratch = ScratchDir::resumed(sys, dir, found.resume(), finished);
        return Ok(Beginning::Ready(Box::new(Prepared { staging, scratch, extent, job: found_job })));
    }
    // The job will not be resumed: removes its temporary files, wherever they are.
    if let Some(mut kept) = left.and_then(|left| left.kept) {
        kept.dir.take()?;
    }
    let (place, named) = place(sys, options, staging.partial())?;
    job.spill_dir = named;
    let journal = Journal::create(sys, staging.partial(), &job, place.owner.key)?;
    let scratch = ScratchDir::new(sys, place, Some(journal));
    Ok(Beginning::Ready(Box::new(Prepared { staging, scratch, extent: None, job })))
}

/// The message for a job that another version left.
const OTHER_VERSION: &str =
    "was begun by another version of this program and cannot be resumed; `replace` starts again";

/// An error unless `new` would do what the job that left `old` did, on the same input, and what it left is there.
fn same_job(old: &Left, new: &journal::Job) -> Result<()> {
    if !old.is_of_this_version() {
        return Err(Error::request(format!("`resume`: the unfinished pack {OTHER_VERSION}")));
    }
    if !old.is_there() {
        let what = "its temporary files are not there any more";
        return Err(Error::request(format!("`resume`: {what}; without `resume` it starts again")));
    }
    let has_all = old.finished().is_some_and(|finished| finished.extent.is_some());
    same_request(&old.job, has_all, new)
}

/// An error unless the options and inputs of both jobs are the same; `has_all`: all of the input is in the old one's files.
fn same_request(old: &journal::Job, has_all: bool, new: &journal::Job) -> Result<()> {
    if old.options != new.options {
        let what = format!("the unfinished pack had other options ({})", old.options);
        return Err(Error::request(format!(
            "`resume`: {what}; give the same, or start again with `replace`"
        )));
    }
    // Of two pipes nothing tells whether they say the same: the second serves where none of it will be read.
    let unreadable = new.identity.is_none() && !has_all;
    if unreadable || old.identity != new.identity {
        let now = new.identity.as_deref().unwrap_or("read from a pipe, which cannot be read again");
        let then = old.identity.as_deref().unwrap_or("read from a pipe");
        let what = format!("the input is not what the unfinished pack read: it was {then}, it is {now}");
        return Err(Error::input(
            &new.input,
            format!("{what}; give that one, or start again with `replace`"),
        ));
    }
    Ok(())
}

/// What to say about what a killed job has left.
fn unfinished(partial: &Path, left: &Left) -> Error {
    let (shown, input) = (partial.display(), &left.job.input);
    let Some(finished) = left.finished() else {
        return Error::request(format!(
            "{shown}: an unfinished pack of {input} is here, which {OTHER_VERSION}"
        ));
    };
    let read = if finished.extent.is_some() { "all" } else { "part" };
    Error::request(format!(
        "{shown}: an unfinished pack of {input} is here: {read} of its input read, {} nonzeros in {} runs and {} staged \
         files ({}); `resume` continues it, `replace` starts again",
        finished.nnz(),
        finished.runs.len(),
        finished.staged.len(),
        ByteSize(finished.bytes()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(version: u32) -> journal::Job {
        journal::Job {
            version,
            input: "t.tns".into(),
            identity: Some("1".into()),
            options: String::new(),
            spill_dir: "spill".into(),
        }
    }

    #[test]
    fn a_journal_of_another_version_is_not_resumed_and_nobody_is_told_to() {
        let new = job(journal::VERSION);
        assert!(same_request(&new, false, &new).is_ok());
        let old = Left { job: job(journal::VERSION - 1), kept: None, is_bare: false };
        for refused in [same_job(&old, &new).unwrap_err(), unfinished(Path::new("s.partial"), &old)] {
            let refused = refused.to_string();
            assert!(refused.contains("another version") && refused.contains("`replace`"), "{refused}");
            assert!(!refused.contains("`resume` continues"), "{refused}");
        }
    }

    /// Once the input has been read to its end, the input of the job that resumes is not looked at any more.
    #[test]
    fn a_pipe_is_not_taken_for_a_file_nor_a_file_for_a_pipe() {
        let of = |identity: Option<&str>| journal::Job {
            identity: identity.map(Into::into),
            ..job(journal::VERSION)
        };
        let accepts = |old, has_all, new| same_request(&of(old), has_all, &of(new)).is_ok();
        assert!(accepts(Some("1"), true, Some("1")) && accepts(Some("1"), false, Some("1")));
        assert!(!accepts(Some("1"), true, Some("2")));
        assert!(!accepts(Some("1"), true, None), "a pipe, after a file");
        assert!(!accepts(None, true, Some("1")), "a file, after a pipe");
        assert!(accepts(None, true, None), "a pipe, all of which had been read");
        assert!(!accepts(None, false, None));
    }

    #[test]
    fn temporary_files_are_found_wherever_a_program_stands() {
        let named = |temp_dir: Option<&str>| {
            let mut options = PackOptions::new("t.blco".into());
            options.temp_dir = temp_dir.map(Into::into);
            let (place, spill_dir) = place(&Sys::default(), &options, Path::new("t.blco.partial")).unwrap();
            let job = journal::Job { spill_dir, ..job(journal::VERSION) };
            assert_eq!(job.spill_path(Path::new("t.blco.partial")).unwrap(), place.path);
            job.spill_dir
        };
        let here = std::env::current_dir().unwrap();
        assert!(named(Some("no scratch")).starts_with(here.join("no scratch")));
        assert!(named(None).is_relative(), "moves with the directory that it is in");
        assert_ne!(named(None), named(None), "each job has one of its own");
    }
}
