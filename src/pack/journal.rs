//! The journal of a packing job that spills. It records what is finished, so that a killed job can be resumed.
//!
//! Each line of `STORE.partial/journal` is a checksum, a space, and JSON. The first line describes the job; the others
//! record what was finished, in order. A truncated line is ignored. Each checksum is seeded by the previous one, the
//! first by a key that only the job's directory for temporary files holds ([`crate::sys::SpillOwner`]). The lines and
//! that directory are therefore trusted together or not at all.

use super::spilled::{RUN, STAGED, SpilledFile};
use crate::coo::Extent;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::sys::{File, Sys, is_spill_name};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What journals say now. 2: where dims are declared, nothing is staged. 3: temporary files are found from any working
/// directory. 4: lines and files have checksums.
pub const VERSION: u32 = 4;
/// The journal's file name.
const NAME: &str = "journal";
/// No journal is longer: 100,000 files and more.
const BYTES_MAX: u64 = 1 << 24;
/// Hexadecimal digits of a line's checksum.
const DIGITS: usize = 16;

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
    /// Where the temporary files are: an absolute path, or the name of a directory beside the journal.
    pub spill_dir: PathBuf,
}

impl Job {
    /// Where the temporary files of the job in `partial` are; `None` if that is no place for a job's.
    pub fn spill_path(&self, partial: &Path) -> Option<PathBuf> {
        let mut parts = self.spill_dir.components();
        let beside = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        let named = self.spill_dir.file_name().is_some_and(is_spill_name);
        (named && (beside || self.spill_dir.is_absolute())).then(|| partial.join(&self.spill_dir))
    }
}

/// One thing that was finished.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A staged file.
    Staged(SpilledFile),
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
        run: SpilledFile,
        /// What it was made from: nothing but the input, staged files, or runs.
        from: Vec<String>,
    },
}

/// What a journal says is there.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Staged files that have not become runs, in order.
    pub staged: Vec<SpilledFile>,
    /// Runs.
    pub runs: Vec<SpilledFile>,
    /// The tensor's extent, once the input has been read to its end.
    pub extent: Option<Extent>,
    /// A number that is in no file's name, nor is any above it.
    pub next_number: u32,
}

impl Finished {
    fn files(&self) -> impl Iterator<Item = &SpilledFile> {
        self.staged.iter().chain(&self.runs)
    }

    /// Nonzeros in finished files.
    pub fn nnz(&self) -> u64 {
        self.files().map(|done| done.nnz).sum()
    }

    /// Bytes of finished files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|done| done.bytes).sum()
    }

    /// Whether `length` gives every file's length.
    pub fn is_there(&self, length: impl Fn(&str) -> Option<u64>) -> bool {
        self.files().all(|done| length(&done.name) == Some(done.bytes))
    }
}

/// Entries that are being put together to what is there, each checked against those before it.
#[derive(Default)]
struct Tally {
    /// Files in the order in which they were finished, with whether they are runs; `None` where one became part of a run.
    files: Vec<Option<(bool, SpilledFile)>>,
    /// Where in `files` a name is.
    places: HashMap<String, usize>,
    extent: Option<Extent>,
    next_number: u32,
}

impl Tally {
    /// Adds what an entry says; in words why it cannot be so.
    fn add(&mut self, entry: Entry) -> std::result::Result<(), &'static str> {
        match entry {
            Entry::Staged(_) | Entry::Drained { .. } if self.extent.is_some() => {
                Err("the input goes on behind its end")
            }
            Entry::Staged(done) => self.insert(STAGED, done),
            Entry::Drained { dims, nnz } => {
                Shape::new(&dims).map_err(|_| "no tensor has such dims")?;
                self.extent = Some(Extent { dims, nnz });
                Ok(())
            }
            Entry::Run { run, from } => {
                let mut nnz = 0u64;
                for name in &from {
                    let place =
                        self.places.remove(name).ok_or("a run was made from a file that is not there")?;
                    let part = self.files[place].take().map_or(0, |(_, done)| done.nnz);
                    nnz = part.saturating_add(nnz);
                }
                if !from.is_empty() && nnz != run.nnz {
                    return Err("a run does not hold what it was made from");
                }
                self.insert(RUN, run)
            }
        }
    }

    fn insert(&mut self, kind: &str, done: SpilledFile) -> std::result::Result<(), &'static str> {
        let number = done.number(kind).ok_or("no temporary file has such a name")?;
        // Numbers are given once.
        if number < self.next_number {
            return Err("two files have one name");
        }
        if !done.is_plausible() {
            return Err("no file of so many nonzeros has so many bytes");
        }
        self.next_number = number.checked_add(1).ok_or("no temporary file has such a name")?;
        self.places.insert(done.name.clone(), self.files.len());
        self.files.push(Some((kind == RUN, done)));
        Ok(())
    }

    fn finish(self) -> std::result::Result<Finished, &'static str> {
        let (runs, staged): (Vec<_>, Vec<_>) = self.files.into_iter().flatten().partition(|(run, _)| *run);
        let done = |files: Vec<(bool, SpilledFile)>| files.into_iter().map(|(_, done)| done).collect();
        let (extent, next_number) = (self.extent, self.next_number);
        let finished = Finished { staged: done(staged), runs: done(runs), extent, next_number };
        let add = |sum: u64, n: u64| sum.checked_add(n).ok_or("no files hold so much");
        let nnz = finished.files().try_fold(0, |sum, done| add(sum, done.nnz))?;
        finished.files().try_fold(0, |sum, done| add(sum, done.bytes))?;
        match &finished.extent {
            Some(extent) if extent.nnz != nnz => Err("files and input differ in their nonzeros"),
            _ => Ok(finished),
        }
    }
}

/// The first line's seed.
fn seed(key: u128) -> u64 {
    xxh3_64(&key.to_le_bytes())
}

/// A line's checksum and JSON.
fn parts(line: &[u8]) -> Option<(u64, &[u8])> {
    let (digits, rest) = line.split_at_checked(DIGITS)?;
    let checksum = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((checksum, rest.strip_prefix(b" ")?))
}

/// A journal that was found, not believed yet but for what the job was.
#[derive(Debug)]
pub struct Found {
    file: File,
    /// Whole lines.
    text: Vec<u8>,
    /// What the job was.
    pub job: Job,
}

impl Found {
    /// Reads the journal in `dir`, if there is a whole first line of one.
    pub fn read(sys: &Sys, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(NAME);
        let Ok(facts) = path.symlink_metadata() else { return Ok(None) };
        let unusable = |what: &str| Error::unusable(&path, format!("{what}; `replace` starts again"));
        if !facts.is_file() {
            return Err(unusable("not a regular file"));
        }
        let file = sys.open_own(&path).map_err(|e| match e {
            Error::Request(_) => unusable("not used, other users can write to it"),
            e => e,
        })?;
        let bytes = file.metadata()?.len();
        if bytes > BYTES_MAX {
            return Err(unusable("too long for a journal"));
        }
        let mut text = sys.vec(0u8, usize::try_from(bytes).unwrap_or(0))?;
        let read = file.read_at(&mut text, 0)?;
        text.truncate(text[..read].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1));
        let first = text.split(|&b| b == b'\n').next().unwrap_or_default();
        // Versions before 4 had no checksums.
        let json = parts(first).map_or(first, |(_, json)| json);
        let job = serde_json::from_slice(json).ok();
        Ok(job.map(|job| Self { file, text, job }))
    }

    /// Whether nothing was finished.
    pub fn is_bare(&self) -> bool {
        memchr::memchr_iter(b'\n', &self.text).nth(1).is_none()
    }

    /// Whether the job is that of the key.
    pub fn is_of(&self, key: u128) -> bool {
        let first = self.text.split(|&b| b == b'\n').next().and_then(parts);
        first.is_some_and(|(checksum, json)| xxh3_64_with_seed(json, seed(key)) == checksum)
    }

    /// What was finished by the job of the key.
    pub fn finished(&self, key: u128) -> Result<Finished> {
        let corrupt = |what: &str| {
            Error::unusable(self.file.path(), format!("corrupt: {what}; `replace` starts again"))
        };
        let mut tally = Tally::default();
        let mut chain = seed(key);
        for (number, line) in self.text.split(|&b| b == b'\n').filter(|line| !line.is_empty()).enumerate() {
            let (checksum, json) = parts(line).ok_or_else(|| corrupt("a line without a checksum"))?;
            if xxh3_64_with_seed(json, chain) != checksum {
                return Err(corrupt("a line's checksum is wrong"));
            }
            chain = checksum;
            if number > 0 {
                let entry = serde_json::from_slice(json).map_err(|e| corrupt(&e.to_string()))?;
                tally.add(entry).map_err(corrupt)?;
            }
        }
        tally.finish().map_err(corrupt)
    }

    /// Goes on with the journal behind what was found.
    pub fn resume(self) -> Journal {
        let mut lines = self.text.rsplit(|&b| b == b'\n');
        let chain = lines.find_map(parts).map_or(0, |(checksum, _)| checksum);
        Journal { file: self.file, bytes: self.text.len() as u64, chain }
    }
}

/// Whether the journal in `partial` names the directory for temporary files `dir`, or may do so.
pub fn may_name(sys: &Sys, partial: &Path, dir: &Path) -> bool {
    match Found::read(sys, partial) {
        Ok(Some(found)) => found.job.spill_dir.file_name() == dir.file_name(),
        // What cannot be looked at, as where a file system is not mounted, may be there.
        Ok(None) => !partial.parent().is_some_and(Path::is_dir),
        Err(_) => true,
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    bytes: u64,
    /// The last line's checksum.
    chain: u64,
}

impl Journal {
    /// Starts the journal of `job` in `dir`; `key` is its directory's.
    pub fn create(sys: &Sys, dir: &Path, job: &Job, key: u128) -> Result<Self> {
        let file = sys.create_own(&dir.join(NAME))?;
        let mut journal = Self { file, bytes: 0, chain: seed(key) };
        journal.add(job)?;
        Ok(journal)
    }

    /// Adds what was finished, an [`Entry`].
    pub fn add(&mut self, record: &impl Serialize) -> Result<()> {
        let json = serde_json::to_vec(record)
            .map_err(|e| Error::request(format!("the journal cannot be written: {e}")))?;
        self.chain = xxh3_64_with_seed(&json, self.chain);
        let line = [format!("{:016x} ", self.chain).as_bytes(), &json, b"\n"].concat();
        self.file.write_all_at(&line, self.bytes)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;

    fn job() -> Job {
        Job {
            version: VERSION,
            input: "t.tns".into(),
            identity: Some("17 bytes".into()),
            options: "tiled".into(),
            spill_dir: crate::sys::spill_name().into(),
        }
    }

    fn done(name: &str) -> SpilledFile {
        SpilledFile { name: name.into(), nnz: 10, bytes: 99, checksum: 7 }
    }

    fn run(name: &str, from: &[&str]) -> Entry {
        let nnz = 10 * from.len().max(1) as u64;
        Entry::Run {
            run: SpilledFile { nnz, ..done(name) },
            from: from.iter().map(ToString::to_string).collect(),
        }
    }

    fn read(dir: &Path) -> Result<Finished> {
        Found::read(&Sys::default(), dir)?.unwrap().finished(KEY)
    }

    #[test]
    fn what_was_finished_comes_back_and_a_torn_line_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, sys) = (dir.path(), Sys::default());
        assert!(Found::read(&sys, dir).unwrap().is_none());
        let mut journal = Journal::create(&sys, dir, &job(), KEY).unwrap();
        journal.add(&Entry::Staged(done("staged-0"))).unwrap();
        journal.add(&Entry::Staged(done("staged-1"))).unwrap();
        journal.add(&Entry::Drained { dims: vec![4, 5], nnz: 20 }).unwrap();
        journal.add(&run("run-2", &["staged-0"])).unwrap();
        let finished = read(dir).unwrap();
        assert_eq!((finished.staged, finished.runs), (vec![done("staged-1")], vec![done("run-2")]));
        assert_eq!(finished.extent, Some(Extent { dims: vec![4, 5], nnz: 20 }));
        assert_eq!(finished.next_number, 3);

        let path = dir.join(NAME);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        let found = Found::read(&sys, dir).unwrap().unwrap();
        let finished = found.finished(KEY).unwrap();
        assert_eq!((finished.staged.len(), finished.runs.len()), (2, 0));
        let mut journal = found.resume();
        journal.add(&run("run-2", &["staged-1"])).unwrap();
        let finished = read(dir).unwrap();
        assert_eq!((finished.staged, finished.runs.len()), (vec![done("staged-0")], 1));
        for length in 0..text.len() {
            std::fs::write(&path, &text[..length]).unwrap();
            let found = Found::read(&sys, dir).unwrap();
            assert!(found.is_none_or(|found| found.finished(KEY).is_ok()), "{length} bytes");
        }
        // Any byte that is changed, and any other key, is noticed.
        for at in 0..text.len() {
            let mut text = text.clone();
            text[at] ^= 1;
            std::fs::write(&path, &text).unwrap();
            let believed = Found::read(&sys, dir).unwrap().filter(|found| found.is_of(KEY));
            assert!(
                believed.is_none_or(|found| found.finished(KEY).is_err() || at + 1 == text.len()),
                "byte {at}"
            );
        }
        std::fs::write(&path, &text).unwrap();
        let found = Found::read(&sys, dir).unwrap().unwrap();
        assert!(found.is_of(KEY) && !found.is_of(KEY + 1) && found.finished(KEY + 1).is_err());
    }

    /// Lines whose checksums are right and that contradict each other, or what there can be.
    #[test]
    fn entries_that_cannot_be_are_errors() {
        let staged = |name: &str| Entry::Staged(done(name));
        let of = |nnz, bytes| Entry::Staged(SpilledFile { nnz, bytes, ..done("staged-0") });
        let drained = |dims: &[u64], nnz| Entry::Drained { dims: dims.to_vec(), nnz };
        let huge = 1 << 58;
        let cases: [(&[Entry], &str); 17] = [
            (&[staged("../staged-0")], "no temporary file has such a name"),
            (&[staged("staged-00")], "no temporary file has such a name"),
            (&[staged("staged-+1")], "no temporary file has such a name"),
            (&[staged("run-0")], "no temporary file has such a name"),
            (&[staged("owner")], "no temporary file has such a name"),
            (&[staged("staged-4294967295")], "no temporary file has such a name"),
            (&[staged("staged-3"), run("run-3", &[])], "two files have one name"),
            (&[of(0, 99)], "so many bytes"),
            (&[of(u64::MAX, 99)], "so many bytes"),
            (&[of(1, 16)], "so many bytes"),
            (&[run("run-0", &["staged-9"])], "a file that is not there"),
            (&[staged("staged-0"), run("run-1", &["staged-0", "staged-0"])], "a file that is not there"),
            (
                &[
                    staged("staged-0"),
                    Entry::Run {
                        run: SpilledFile { nnz: 11, ..done("run-1") },
                        from: vec!["staged-0".into()],
                    },
                ],
                "does not hold what it was made from",
            ),
            (&[drained(&[4, 0], 5)], "no tensor has such dims"),
            (&[staged("staged-0"), drained(&[4, 4], 11)], "files and input differ"),
            (&[drained(&[4, 4], 0), staged("staged-0")], "goes on behind its end"),
            (
                &(0..64)
                    .map(|i| Entry::Staged(SpilledFile { bytes: huge, ..done(&format!("staged-{i}")) }))
                    .collect::<Vec<_>>(),
                "no files hold so much",
            ),
        ];
        for (entries, said) in cases {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::create(&Sys::default(), dir.path(), &job(), KEY).unwrap();
            entries.iter().try_for_each(|entry| journal.add(entry)).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(said) && error.ends_with("`replace` starts again"), "{said}: {error}");
        }
    }

    #[test]
    fn only_a_directory_for_temporary_files_is_named() {
        let path = |dir: &str| Job { spill_dir: dir.into(), ..job() }.spill_path(Path::new("s.partial"));
        let name = crate::sys::spill_name();
        assert_eq!(path(&name), Some(Path::new("s.partial").join(&name)));
        assert_eq!(path(&format!("/tmp/{name}")), Some(Path::new("/tmp").join(&name)));
        for no in [
            "",
            ".",
            "..",
            "/",
            "/tmp",
            "store",
            "blco-spill-1",
            &format!("../{name}"),
            &format!("{name}/.."),
        ] {
            assert_eq!(path(no), None, "{no}");
        }
    }
}
