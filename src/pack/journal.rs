//! The journal of a packing job that spills: what has been finished, so that a killed job can be resumed.
//!
//! `STORE.partial/journal` is lines of JSON: first what the job is, then what was finished, in order. A line that
//! was cut off is as if it had not been written. Temporary files carry their own checksums; the journal says
//! only which of them are complete.

use crate::coo::Extent;
use crate::error::{Error, Result};
use crate::sys::{File, Sys};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What journals say now. 2: where dims are declared, nothing is staged. 3: temporary files are found from any working directory.
pub const VERSION: u32 = 3;
/// The journal's file name.
const NAME: &str = "journal";
/// No journal is longer.
const BYTES_MAX: u64 = 1 << 28;

/// What a job is: a resumed one must be the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The journal's version.
    pub version: u32,
    /// What the messages call the input.
    pub input: String,
    /// What tells this input from another, or from itself after a change; `None` where it cannot be read twice.
    pub identity: Option<String>,
    /// Options that decide the store's bytes.
    pub options: String,
    /// Where the temporary files are: an absolute path, or one within the journal's directory.
    pub spill_dir: PathBuf,
}

/// A finished temporary file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Its name in the spill directory.
    pub name: String,
    /// Its nonzeros.
    pub nnz: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// One thing that was finished.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A staged file.
    Staged(Done),
    /// The input: everything is in staged files and runs.
    Drained {
        /// The tensor's dims.
        dims: Vec<u64>,
        /// The input's nonzeros.
        nnz: u64,
    },
    /// A run, made from the files named, which are not needed any more.
    Run {
        /// The run.
        run: Done,
        /// What it was made from: nothing but the input, staged files, or runs.
        from: Vec<String>,
    },
}

/// What a journal says is there.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Staged files that have not become runs, in order.
    pub staged: Vec<Done>,
    /// Runs.
    pub runs: Vec<Done>,
    /// The tensor's extent, once the input has been read to its end.
    pub extent: Option<Extent>,
}

impl Finished {
    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Staged(done) => self.staged.push(done),
            Entry::Drained { dims, nnz } => self.extent = Some(Extent { dims, nnz }),
            Entry::Run { run, from } => {
                self.staged.retain(|done| !from.contains(&done.name));
                self.runs.retain(|done| !from.contains(&done.name));
                self.runs.push(run);
            }
        }
    }

    fn files(&self) -> impl Iterator<Item = &Done> {
        self.staged.iter().chain(&self.runs)
    }

    /// Whether the files are in `dir`, as long as they were: they go before the journal does when a job ends.
    pub fn is_in(&self, dir: &Path) -> bool {
        let there =
            |done: &Done| std::fs::metadata(dir.join(&done.name)).is_ok_and(|f| f.len() == done.bytes);
        self.files().all(there)
    }

    /// A number that is in no file's name, nor is any above it.
    pub fn next_number(&self) -> usize {
        let number = |done: &Done| done.name.rsplit_once('-')?.1.parse::<usize>().ok();
        self.files().filter_map(number).max().map_or(0, |last| last + 1)
    }

    /// Nonzeros in finished files.
    pub fn nnz(&self) -> u64 {
        self.files().map(|done| done.nnz).sum()
    }

    /// Bytes of finished files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|done| done.bytes).sum()
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    bytes: u64,
}

impl Journal {
    /// Starts the journal of `job` in `dir`.
    pub fn create(sys: &Sys, dir: &Path, job: &Job) -> Result<Self> {
        let mut journal = Self { file: sys.create(&dir.join(NAME))?, bytes: 0 };
        journal.line(job)?;
        Ok(journal)
    }

    /// Reads the journal in `dir`, if there is a whole first line of one: what the job was and what it finished.
    pub fn read(sys: &Sys, dir: &Path) -> Result<Option<(Job, Finished, u64)>> {
        let path = dir.join(NAME);
        if !path.is_file() {
            return Ok(None);
        }
        let file = sys.open(&path, false)?;
        let bytes = file.metadata()?.len().min(BYTES_MAX);
        let mut text = sys.vec(0u8, usize::try_from(bytes).unwrap_or(0))?;
        let read = file.read_at(&mut text, 0)?;
        let whole = text[..read].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        let mut lines = text[..whole].split(|&b| b == b'\n').filter(|line| !line.is_empty());
        let Some(job) = lines.next().and_then(|line| serde_json::from_slice::<Job>(line).ok()) else {
            return Ok(None);
        };
        let mut finished = Finished::default();
        for line in lines {
            let entry = serde_json::from_slice(line)
                .map_err(|e| Error::unusable(&path, format!("corrupt: {e}; pack again with --force")))?;
            finished.add(entry);
        }
        Ok(Some((job, finished, whole as u64)))
    }

    /// Goes on with the journal in `dir` after its first `bytes` bytes.
    pub fn resume(sys: &Sys, dir: &Path, bytes: u64) -> Result<Self> {
        Ok(Self { file: sys.open_existing(&dir.join(NAME))?, bytes })
    }

    /// Adds what was finished.
    pub fn add(&mut self, entry: &Entry) -> Result<()> {
        self.line(entry)
    }

    fn line(&mut self, record: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(record)
            .map_err(|e| Error::request(format!("the journal cannot be written: {e}")))?;
        line.push(b'\n');
        self.file.write_all_at(&line, self.bytes)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_finished_comes_back_and_a_torn_line_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let job = Job {
            version: VERSION,
            input: "t.tns".into(),
            identity: Some("17 bytes".into()),
            options: "tiled".into(),
            spill_dir: "spill".into(),
        };
        assert!(Journal::read(&sys, dir.path()).unwrap().is_none());
        let mut journal = Journal::create(&sys, dir.path(), &job).unwrap();
        let done = |name: &str| Done { name: name.into(), nnz: 10, bytes: 99 };
        journal.add(&Entry::Staged(done("staged-0"))).unwrap();
        journal.add(&Entry::Staged(done("staged-1"))).unwrap();
        journal.add(&Entry::Drained { dims: vec![4, 5], nnz: 20 }).unwrap();
        journal.add(&Entry::Run { run: done("run-0"), from: vec!["staged-0".into()] }).unwrap();
        let (read, finished, bytes) = Journal::read(&sys, dir.path()).unwrap().unwrap();
        assert_eq!(read, job);
        assert_eq!((finished.staged, finished.runs), (vec![done("staged-1")], vec![done("run-0")]));
        assert_eq!(finished.extent, Some(Extent { dims: vec![4, 5], nnz: 20 }));

        let path = dir.path().join(NAME);
        let text = std::fs::read(&path).unwrap();
        assert_eq!(bytes, text.len() as u64);
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        let (_, finished, bytes) = Journal::read(&sys, dir.path()).unwrap().unwrap();
        assert_eq!((finished.staged.len(), finished.runs.len()), (2, 0));
        let mut journal = Journal::resume(&sys, dir.path(), bytes).unwrap();
        journal.add(&Entry::Run { run: done("run-0"), from: vec!["staged-1".into()] }).unwrap();
        let (_, finished, _) = Journal::read(&sys, dir.path()).unwrap().unwrap();
        assert_eq!((finished.staged, finished.runs.len()), (vec![done("staged-0")], 1));
        for length in 0..text.len() {
            std::fs::write(&path, &text[..length]).unwrap();
            assert!(Journal::read(&sys, dir.path()).is_ok());
        }
    }
}
