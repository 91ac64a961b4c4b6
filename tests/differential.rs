//! Establishes that all readers agree on false stores: small stores of several chunks of every format, changed in
//! one to three ways and with correct checksums again (fuzz/stores), are refused by export, MTTKRP, TTV and the second reader alike, or give all of them
//! the same nonzeros. The verifier refuses the same stores as the second reader's verifier, and at least those that readers refuse. Salvage gives
//! the nonzeros of intact chunks, of the cover that has lost the fewest. Every cover is read.
//!
//! `BLCO_MUTANTS=250000` sets the number of mutants, `BLCO_SEED=7` takes others; the test uses all threads. A disagreement is
//! reported with the seed and number of its mutant. `BLCO_MUTANT=NUMBER` repeats it alone, and `BLCO_KEEP=DIR` keeps its files.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![allow(clippy::print_stderr, reason = "says what was counted and skipped")]

mod common;
#[path = "common/programs.rs"]
mod programs;
#[path = "common/ttv.rs"]
mod runner;
#[path = "../fuzz/stores/mod.rs"]
mod stores;

use blco::internals::sys::Sys;
use common::Tensor;
use programs::python;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use stores::agree::{Judgement, judge};
use stores::{Lying, Seeded, bases, mutant};
use xxhash_rust::xxh3::xxh3_64;

/// The second reader, which reads one store after the other: the faults for every reader, those for a verifier, a checksum of the nonzeros.
const READER: &str = "
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import blco_reader
np.seterr(all='ignore')
for line in sys.stdin:
    try:
        store = blco_reader.read_store(line.rstrip('\\n'), verifying=False)
        data = b''.join(c.astype('<u4').tobytes() for c in store.columns) + store.values.astype('<f8').tobytes()
        wrong = store.wrong
        answer = '%016x' % blco_reader.xxh3_64(data), wrong
    except blco_reader.StoreError as error:
        answer = 'refused', str(error)
    except Exception as error:
        answer = 'failed', repr(error)
    print(*(part.replace('\\n', ' ') for part in answer), sep='\\t', flush=True)
";

/// A Python that reads stores.
struct Reader {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Reader {
    fn start(python: &str) -> Self {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
        let mut command = Command::new(python);
        command.args(["-c", READER]).arg(tools).env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
    }

    /// The checksum of the nonzeros and a verifier's refusal, or every reader's refusal.
    fn read(&mut self, store: &Path) -> Result<(u64, String), String> {
        writeln!(self.to, "{}", store.display()).unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let (first, rest) = line.trim_end_matches('\n').split_once('\t').unwrap();
        match first {
            "refused" => Err(rest.to_owned()),
            "failed" => panic!("the second reader fails: {rest}"),
            checksum => Ok((u64::from_str_radix(checksum, 16).unwrap(), rest.to_owned())),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The second reader's checksum of these nonzeros.
fn checksum(tensor: &Tensor) -> u64 {
    let order = tensor.order();
    let columns = (0..order).flat_map(|m| tensor.indices.iter().skip(m).step_by(order));
    let mut bytes: Vec<u8> = columns.flat_map(|index| index.to_le_bytes()).collect();
    bytes.extend(tensor.values.iter().flat_map(|v| v.to_le_bytes()));
    xxh3_64(&bytes)
}

/// Compares the second reader's verdict about a store with the engine's.
fn compare(ours: &Judgement, theirs: Result<(u64, String), String>) -> Result<(), String> {
    match (ours.read_all(), theirs) {
        (Err(_), Err(_)) => Ok(()),
        (Ok(_), Err(e)) => Err(format!("read, where the second reader refuses: {e}")),
        (Err(e), Ok(_)) => Err(format!("refused, where the second reader reads: {e}")),
        (Ok(tensor), Ok((sum, _))) if sum != checksum(tensor) => {
            Err("the second reader finds other nonzeros".into())
        }
        (Ok(_), Ok((_, wrong))) => match (&ours.unverified, wrong.is_empty()) {
            (Some(_), false) | (None, true) => Ok(()),
            (Some(e), true) => Err(format!("a verifier refuses, the second one does not: {e}")),
            (None, false) => Err(format!("the second verifier refuses: {wrong}")),
        },
    }
}

/// Counts of mutants, by their first change.
#[derive(Debug, Default)]
struct Tally {
    /// Refused by readers, refused only by verifiers, accepted by all.
    kinds: BTreeMap<String, [u64; 3]>,
    disagreements: Vec<String>,
}

impl Tally {
    fn count(&mut self, lying: &Lying, judgement: &Judgement) {
        let at = match (judgement.read_all(), &judgement.unverified) {
            (Err(_), _) => 0,
            (Ok(_), Some(_)) => 1,
            (Ok(_), None) => 2,
        };
        self.kinds.entry(lying.story[1].clone()).or_default()[at] += 1;
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Judges one mutant and compares with the second reader.
fn try_one(lying: &Lying, dir: &Path, reader: Option<&mut Reader>) -> Result<Judgement, String> {
    let judged = catch_unwind(AssertUnwindSafe(|| judge(dir))).unwrap_or_else(|_| Err("a panic".into()));
    let judgement = judged.map_err(|e| format!("{}: {e}", lying.story.join("; ")))?;
    if let Some(reader) = reader {
        compare(&judgement, reader.read(dir)).map_err(|e| format!("{}: {e}", lying.story.join("; ")))?;
    }
    Ok(judgement)
}

/// The directory of mutants: in memory if possible.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Keeps a mutant's files if requested.
fn keep(lying: &Lying, number: u64) {
    if let Some(dir) = std::env::var_os("BLCO_KEEP") {
        let dir = PathBuf::from(dir).join(format!("mutant-{number}"));
        std::fs::create_dir_all(&dir).unwrap();
        lying.write(&dir);
    }
}

#[test]
fn every_reader_agrees_on_stores_that_lie() {
    let seed = number("BLCO_SEED").unwrap_or(1);
    let only = number("BLCO_MUTANT");
    let all = only.map_or(0..number("BLCO_MUTANTS").unwrap_or(3000), |n| n..n + 1);
    let (bases, python) = (bases(), python());
    let (next, tally) = (AtomicU64::new(all.start), Mutex::new(Tally::default()));
    let work = || {
        let (dir, mut reader) = (scratch(), python.as_deref().map(Reader::start));
        let pool = Sys::default().pool(1).unwrap();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= all.end || tally.lock().unwrap().disagreements.len() >= 20 {
                return;
            }
            let lying = mutant(&bases, &mut Seeded::new(seed, number));
            let at = dir.path().join("store");
            std::fs::create_dir(&at).unwrap();
            lying.write(&at);
            let tried = pool.install(|| try_one(&lying, &at, reader.as_mut()));
            std::fs::remove_dir_all(&at).unwrap();
            let mut tally = tally.lock().unwrap();
            match tried {
                Ok(judgement) => tally.count(&lying, &judgement),
                Err(what) => {
                    keep(&lying, number);
                    eprintln!("mutant {number} of seed {seed}: {what}");
                    tally.disagreements.push(format!("mutant {number}: {what}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let tally = tally.into_inner().unwrap();
    let sum = |at: usize| tally.kinds.values().map(|counts| counts[at]).sum::<u64>();
    eprintln!("refused, refused by verifiers alone, accepted: {:#?}", tally.kinds);
    eprintln!("{} refused, {} by verifiers alone, {} accepted", sum(0), sum(1), sum(2));
    assert!(tally.disagreements.is_empty(), "seed {seed}: {:#?}", tally.disagreements);
    // Enough of each kind for a meaningful comparison.
    if only.is_none() {
        let few = (all.end - all.start) / 50;
        assert!((0..3).all(|at| sum(at) >= few), "{tally:?}");
    }
}

/// Every reader agrees with the index of the specification's vectors.
#[test]
fn vectors_are_judged_as_their_index_says() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("formats-spec/vectors");
    judged_as_listed(&all.join("version-1"), false);
    judged_as_listed(&all, true);
}

/// If the rule has a name, the message has it.
fn judged_as_listed(vectors: &Path, named: bool) {
    let text = std::fs::read_to_string(vectors.join("index.json")).unwrap();
    let mut unnamed = Vec::new();
    for vector in serde_json::from_str::<serde_json::Value>(&text).unwrap().as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        let kind = if vector["valid"] == true { "valid" } else { "invalid" };
        let judgement = judge(&vectors.join(kind).join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (read, unverified) = (judgement.read_all(), judgement.unverified.clone());
        if unverified.as_ref().is_some_and(|e| e.contains("which this program does not know")) {
            // The vector is about this rule.
            continue;
        }
        if name.starts_with("draft-") {
            // Vectors older than their formats: readers accept them, although chunks end elsewhere than the packer's.
            assert!(read.is_ok(), "{name}: {unverified:?}");
            continue;
        }
        let refuses = if unverified.is_none() { None } else { Some(read.map_or("reader", |_| "verifier")) };
        assert_eq!(refuses, vector["level"].as_str(), "{name}: {unverified:?}");
        if named
            && let Some((rule, said)) = vector["rule"].as_str().zip(unverified)
            && !said.ends_with(&format!("({rule})"))
            // The engine only finds that the nonzeros have other bytes when encoded again.
            && !(said.ends_with("(encoding)") && ["order", "ranges", "slots"].contains(&rule))
        {
            unnamed.push(format!("{name}: {rule}: {said}"));
        }
    }
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}
