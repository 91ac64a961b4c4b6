//! A packer that is killed (SIGKILL) at any moment leaves no store, a complete one, or an unfinished one that
//! `--resume` completes to the bytes of an undisturbed pack, or that `--force` discards. A store to be
//! replaced always exists, old or new, and so do results and files of the other programs. `BLCO_KILLS=1000 cargo test --test kills -- --nocapture` sets
//! the number of kills and prints the table of benches/runs.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../common/mod.rs"]
mod common;

use assert_cmd::cargo::cargo_bin;
use blco::internals::random::Counter;
use common::{identity, tree};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(dir: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin(program));
    // On a GPU sums differ from run to run.
    command.current_dir(dir).args(arguments).env("BLCO_MEMORY_MIN", "0").env("CUDA_VISIBLE_DEVICES", "");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
fn run(dir: &Path, program: &str, arguments: &[&str]) -> Output {
    command(dir, program, arguments).output().unwrap()
}

fn succeeds(dir: &Path, program: &str, arguments: &[&str]) -> Output {
    let output = run(dir, program, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A tensor with more nonzeros than fit in 64 MiB.
fn generate(dir: &Path) {
    let (dims, nnz) = ("300000,2000,70000", "2500000");
    succeeds(dir, "blco-gen", &["--dims", dims, "--nnz", nnz, "--skew", "2", "--values", "1..5", "t.tns"]);
}

const PACK: [&str; 5] = ["t.tns", "-o", "s", "--memory", "64MiB"];

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A pack to be killed. It writes `out/s`.
struct Case {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Whether it replaces another store.
    replaces: bool,
    /// Whether it resumes an unfinished pack.
    resumes: bool,
}

const SPILLING: [&str; 7] = ["t.tns", "-o", "out/s", "--memory", "0", "--chunk-bytes", "256KiB"];
const CASES: [Case; 10] = [
    Case { name: "in memory", arguments: &["t.tns", "-o", "out/s"], replaces: false, resumes: false },
    Case { name: "spilling", arguments: &SPILLING, replaces: false, resumes: false },
    Case {
        name: "spilling, declared dims",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--dims", "30000,2000,7000"],
        replaces: false,
        resumes: false,
    },
    Case {
        name: "spilling elsewhere, zstd",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--temp-dir", "temp", "--zstd", "3"],
        replaces: false,
        resumes: false,
    },
    Case {
        name: "spilling, hocfs",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--format", "hocfs", "--main-mode", "2"],
        replaces: false,
        resumes: false,
    },
    Case {
        name: "spilling, csf of all modes",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--format", "csf"],
        replaces: false,
        resumes: false,
    },
    Case {
        name: "spilling, hbcsf",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--format", "hbcsf"],
        replaces: false,
        resumes: false,
    },
    Case {
        name: "spilling, fcoo",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--format", "fcoo", "--for", "ttm"],
        replaces: false,
        resumes: false,
    },
    Case {
        name: "replacing",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--encoding", "raw", "--force"],
        replaces: true,
        resumes: false,
    },
    Case {
        name: "resuming",
        arguments: &["t.tns", "-o", "out/s", "--memory", "0", "--chunk-bytes", "256KiB", "--resume"],
        replaces: false,
        resumes: true,
    },
];

type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The state after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// No store, and nothing to resume: packing again succeeds.
    Absent,
    /// No store, but finished files: packing again says so, `--resume` gives the same bytes.
    Resumable,
    /// The old store, complete.
    Old,
    /// The new store, complete and verified.
    Complete,
}

/// The directory in which packs of `case` are killed.
struct Killing<'a> {
    dir: &'a Path,
    case: &'a Case,
    /// The new store, and the one that it replaces.
    expected: Tree,
    old: Option<Tree>,
    /// The time of an undisturbed pack.
    duration: Duration,
}

impl<'a> Killing<'a> {
    fn new(dir: &'a Path, case: &'a Case) -> Self {
        let mut killing = Self { dir, case, expected: Tree::new(), old: None, duration: Duration::ZERO };
        killing.prepare();
        killing.old = case.replaces.then(|| identity(&dir.join("out/s")));
        let start = Instant::now();
        succeeds(dir, "blco-pack", case.arguments);
        killing.duration = start.elapsed();
        killing.expected = identity(&dir.join("out/s"));
        killing
    }

    /// Makes an empty `out` and `temp`, or a store to replace or a pack to resume.
    fn prepare(&self) {
        for name in ["out", "temp"] {
            drop(std::fs::remove_dir_all(self.dir.join(name)));
            std::fs::create_dir(self.dir.join(name)).unwrap();
        }
        if self.case.replaces {
            succeeds(self.dir, "blco-pack", &["other.tns", "-o", "out/s"]);
        }
        let journal = self.dir.join("out/s.partial/journal");
        while self.case.resumes
            && !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("staged-1"))
        {
            drop(std::fs::remove_dir_all(self.dir.join("out/s")));
            let mut child = command(self.dir, "blco-pack", &SPILLING).spawn().unwrap();
            while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("staged-1"))
                && child.try_wait().unwrap().is_none()
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Kills a pack after `moment`, inspects what is left, and finishes the job.
    fn kill(&self, moment: Duration) -> Outcome {
        self.prepare();
        let mut child = command(self.dir, "blco-pack", self.case.arguments).spawn().unwrap();
        std::thread::sleep(moment);
        child.kill().unwrap();
        child.wait().unwrap();
        let store = self.dir.join("out/s");
        let outcome = if store.symlink_metadata().is_ok() {
            succeeds(self.dir, "blco-info", &["out/s", "--verify"]);
            let found = identity(&store);
            assert!(
                found == self.expected || self.old.as_ref() == Some(&found),
                "{}: {moment:?}",
                self.case.name
            );
            if found == self.expected { Outcome::Complete } else { Outcome::Old }
        } else {
            assert!(!self.case.replaces, "{moment:?}: neither the old store nor the new is there");
            self.without_store(moment)
        };
        if outcome == Outcome::Old {
            succeeds(self.dir, "blco-pack", self.case.arguments);
        }
        if outcome == Outcome::Complete && tree(&self.dir.join("out")).contains_key(Path::new("s.partial")) {
            // Killed between the rename and the end: the next pack clears it away.
            if !self.case.replaces && moment.subsec_nanos().is_multiple_of(2) {
                self.is_found_complete();
                return outcome;
            }
            let mut again = self.case.arguments.to_vec();
            again.retain(|&argument| argument != "--resume");
            again.extend((!self.case.replaces).then_some("--force"));
            succeeds(self.dir, "blco-pack", &again);
        }
        assert!(identity(&store) == self.expected, "{}: {moment:?}", self.case.name);
        assert_eq!(names(&self.dir.join("out")), ["s"], "{}: {moment:?}", self.case.name);
        assert!(names(&self.dir.join("temp")).is_empty(), "{}: {moment:?}", self.case.name);
        outcome
    }

    /// The store exists, and the killed program had only to clean up: `--resume` reports and does that.
    fn is_found_complete(&self) {
        let mut again = self.case.arguments.to_vec();
        again.retain(|&argument| argument != "--resume");
        again.push("--resume");
        let output = run(self.dir, "blco-pack", &again);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        // If only the empty directory was left, nothing of that pack remains.
        let nothing_left = said.contains("a store already exists");
        assert!(nothing_left || output.status.success() && said.contains("was complete"), "{said}");
        if nothing_left {
            again.retain(|&argument| argument != "--resume");
            succeeds(self.dir, "blco-pack", &[&again[..], &["--force"]].concat());
        }
        assert!(identity(&self.dir.join("out/s")) == self.expected, "{}", self.case.name);
        assert_eq!(names(&self.dir.join("out")), ["s"], "{}", self.case.name);
        assert!(names(&self.dir.join("temp")).is_empty(), "{}", self.case.name);
    }

    /// There is no store: packs again, and resumes if the message offers it.
    fn without_store(&self, moment: Duration) -> Outcome {
        let mut plain = self.case.arguments.to_vec();
        plain.retain(|&argument| argument != "--resume");
        let again = run(self.dir, "blco-pack", &plain);
        if again.status.success() {
            return Outcome::Absent;
        }
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(said.contains("--resume continues it"), "{}: {moment:?}: {said}", self.case.name);
        plain.extend(["--resume", "--json"]);
        let report = succeeds(self.dir, "blco-pack", &plain);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        assert!(report["spilled"]["resumed_nnz"].as_u64().unwrap() > 0);
        Outcome::Resumable
    }
}

#[test]
fn a_killed_pack_is_absent_resumable_or_complete() {
    let kills = std::env::var("BLCO_KILLS").map_or(40, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Ten runs of one staged frame each.
    let small = ["--dims", "30000,2000,7000", "--nnz", "160000", "--skew", "2", "--values", "1..5", "t.tns"];
    succeeds(dir, "blco-gen", &small);
    std::fs::write(dir.join("other.tns"), "1 1 1\n2 2 4\n").unwrap();
    println!(
        "| pack | undisturbed, ms | kills | absent | resumable | old | complete |\n|---|---|---|---|---|---|---|"
    );
    let random = Counter::new(u64::from(std::process::id()), 0);
    let mut all = Vec::new();
    for (i, case) in CASES.iter().enumerate() {
        let killing = Killing::new(dir, case);
        let mut outcomes = Vec::new();
        for kill in (i..kills).step_by(CASES.len()) {
            outcomes.push(killing.kill(killing.duration.mul_f64(1.1 * random.unit(kill as u64))));
        }
        let count = |outcome| outcomes.iter().filter(|&&o| o == outcome).count();
        let counts = [Outcome::Absent, Outcome::Resumable, Outcome::Old, Outcome::Complete].map(count);
        let [absent, resumable, old, complete] = counts;
        let (name, ms, kills) = (case.name, killing.duration.as_millis(), outcomes.len());
        println!("| {name} | {ms} | {kills} | {absent} | {resumable} | {old} | {complete} |");
        all.extend(outcomes);
    }
    assert!(all.contains(&Outcome::Resumable) && all.contains(&Outcome::Old), "{all:?}");
}

/// Kills a pack during its clean-up, when the store has its name.
#[test]
fn a_pack_that_was_killed_as_it_cleaned_up_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let small = ["--dims", "30000,2000,7000", "--nnz", "160000", "--skew", "2", "--values", "1..5", "t.tns"];
    succeeds(dir, "blco-gen", &small);
    let killing = Killing::new(dir, &CASES[1]);
    let (store, partial) = (dir.join("out/s"), dir.join("out/s.partial"));
    let mut found = 0;
    for _ in 0..40 {
        if found == 3 {
            break;
        }
        killing.prepare();
        let mut child = command(dir, "blco-pack", killing.case.arguments).spawn().unwrap();
        while !store.exists() && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();
        if partial.join("publishing").exists() {
            found += 1;
            let other = [killing.case.arguments, &["--resume", "--zstd", "3"]].concat();
            let refused = run(dir, "blco-pack", &other);
            assert_eq!(refused.status.code(), Some(2));
            assert!(String::from_utf8_lossy(&refused.stderr).contains("other options"));
        }
        if partial.exists() {
            killing.is_found_complete();
        }
    }
    assert!(found > 0, "none was killed in time");
}

/// A program that replaces the output of its earlier run, `out/r`.
struct Replacing {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    /// The earlier output instead.
    old: &'static [&'static str],
}

const REPLACING: [Replacing; 4] = [
    Replacing {
        name: "run",
        program: "blco-run",
        arguments: &["s", "--rank", "24", "--output", "out/r"],
        old: &["s4", "--rank", "2", "--output", "out/r"],
    },
    Replacing {
        name: "cpd",
        program: "blco-cpd",
        arguments: &["s", "--rank", "8", "--max-iters", "2", "--output", "out/r"],
        old: &["s4", "--rank", "2", "--max-iters", "1", "--output", "out/r"],
    },
    Replacing {
        name: "ttv",
        program: "blco-run",
        arguments: &["s", "--op", "ttv", "--modes", "2", "--output", "out/r"],
        old: &["s4", "--op", "ttv", "--modes", "2", "--output", "out/r"],
    },
    Replacing { name: "export", program: "blco-export", arguments: &["s", "out/r"], old: &["s4", "out/r"] },
];

/// The contents of `out/r`, without times in reports; `None` if it does not exist.
fn written(dir: &Path) -> Option<Tree> {
    let path = dir.join("out/r");
    if path.is_file() {
        return Some(Tree::from([(PathBuf::new(), Some(std::fs::read(path).unwrap()))]));
    }
    path.exists().then(|| {
        let mut all = tree(&path);
        all.remove(Path::new("report.html"));
        if let Some(report) = all.get_mut(Path::new("report.json")) {
            let text: serde_json::Value = serde_json::from_slice(report.as_ref().unwrap()).unwrap();
            *report = Some(text["lambda"].to_string().into_bytes());
        }
        all
    })
}

impl Replacing {
    /// Kills at random moments, alternately with and without earlier output, and with names that can and cannot be exchanged.
    fn kill(&self, dir: &Path, kills: usize, random: Counter) -> String {
        let forced = [self.arguments, &["--force"]].concat();
        let reset = |replaces: bool| {
            drop(std::fs::remove_dir_all(dir.join("out")));
            std::fs::create_dir(dir.join("out")).unwrap();
            if replaces {
                succeeds(dir, self.program, self.old);
            }
        };
        reset(true);
        let old = written(dir);
        let start = Instant::now();
        succeeds(dir, self.program, &forced);
        let (duration, new) = (start.elapsed(), written(dir));
        assert!(old != new);
        let (mut kept, mut complete, mut between) = (0, 0, 0);
        for kill in 0..kills {
            let (replaces, exchanges) = (kill % 3 != 0, kill % 2 == 0);
            reset(replaces);
            let mut command = command(dir, self.program, &forced);
            if !exchanges {
                command.env("BLCO_FAULT", "exchange:all:22");
            }
            let mut child = command.spawn().unwrap();
            std::thread::sleep(duration.mul_f64(1.2 * random.unit(kill as u64)));
            child.kill().unwrap();
            child.wait().unwrap();
            let what = format!("{}, kill {kill}", self.name);
            if replaces && written(dir).is_none() {
                // Between two renames: the next program, which does not replace, finds the old one.
                assert!(!exchanges, "{what}: neither the old one nor the new is there");
                assert_eq!(run(dir, self.program, self.arguments).status.code(), Some(2), "{what}");
                assert!(written(dir) == old, "{what}");
                between += 1;
            }
            let found = written(dir);
            complete += usize::from(found == new);
            kept += usize::from(found != new);
            let before = if replaces { old.clone() } else { None };
            assert!(found == new || found == before, "{what}: neither the old one nor the new");
            succeeds(dir, self.program, &forced);
            assert!(written(dir) == new, "{what}: other results");
            assert_eq!(names(&dir.join("out")), ["r"], "{what}");
        }
        let ms = duration.as_millis();
        format!("| {} | {ms} | {kills} | {kept} | {between} | {complete} |", self.name)
    }
}

#[test]
fn what_a_killed_program_replaces_is_the_old_or_the_new() {
    let kills = std::env::var("BLCO_KILLS").map_or(24, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let dims = ["--dims", "3000,200,700", "--nnz", "40000", "--values", "1..5", "--seed", "3"];
    succeeds(dir, "blco-gen", &[&dims[..], &["s.blco"]].concat());
    std::fs::rename(dir.join("s.blco"), dir.join("s")).unwrap();
    std::fs::write(dir.join("s4.tns"), "1 1 1 1 2\n3 2 2 2 5\n").unwrap();
    succeeds(dir, "blco-pack", &["s4.tns", "-o", "s4"]);
    println!(
        "| program | undisturbed, ms | kills | before | between two renames | complete |\n|---|---|---|---|---|---|"
    );
    for (i, replacing) in REPLACING.iter().enumerate() {
        println!("{}", replacing.kill(dir, kills, Counter::new(u64::from(std::process::id()), i as u64)));
    }
}

/// Starts [`PACK`] with `more` options, kills it once a staged file is finished, and checks that it left something.
fn kill_when_staged(dir: &Path, more: &[&str]) {
    let mut child = command(dir, "blco-pack", &[&PACK, more].concat()).spawn().unwrap();
    let journal = dir.join("s.partial/journal");
    let start = Instant::now();
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("staged-")) {
        assert!(start.elapsed() < Duration::from_mins(2));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_changed_input_or_other_options_are_noticed_and_force_discards() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    generate(dir);
    kill_when_staged(dir, &[]);
    let other = run(dir, "blco-pack", &["t.tns", "-o", "s", "--encoding", "raw", "--resume"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("other options"));

    let text = std::fs::read_to_string(dir.join("t.tns")).unwrap();
    std::fs::write(dir.join("t.tns"), text.replacen('\n', " # changed\n", 1)).unwrap();
    let mut arguments = PACK.to_vec();
    arguments.push("--resume");
    let changed = run(dir, "blco-pack", &arguments);
    assert_eq!(changed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&changed.stderr).contains("not what the unfinished pack read"));

    let mut arguments = PACK.to_vec();
    arguments.push("--force");
    succeeds(dir, "blco-pack", &arguments);
    assert_eq!(names(dir), ["s", "t.tns"]);
    succeeds(dir, "blco-info", &["s", "--verify"]);
}

#[test]
fn a_pack_is_resumed_from_wherever_a_program_stands() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, elsewhere) = (dir.path(), dir.path().join("elsewhere"));
    std::fs::create_dir(&elsewhere).unwrap();
    generate(dir);
    succeeds(dir, "blco-pack", &["t.tns", "-o", "whole", "--memory", "64MiB"]);
    for more in [&[][..], &["--temp-dir", "elsewhere"]] {
        kill_when_staged(dir, more);
        let resumed = succeeds(&elsewhere, "blco-pack", &["../t.tns", "-o", "../s", "--resume", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&resumed.stdout).unwrap();
        assert!(report["spilled"]["resumed_nnz"].as_u64().unwrap() > 0, "{report}");
        assert!(identity(&dir.join("s")) == identity(&dir.join("whole")), "{more:?}");
        std::fs::remove_dir_all(dir.join("s")).unwrap();
        assert_eq!(names(dir), ["elsewhere", "t.tns", "whole"]);
        assert!(names(&elsewhere).is_empty());
    }
}

#[test]
fn force_discards_a_damaged_journal_and_temporary_files_in_another_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, scratch) = (dir.path(), dir.path().join("scratch"));
    std::fs::create_dir(&scratch).unwrap();
    generate(dir);
    kill_when_staged(dir, &["--temp-dir", "scratch"]);
    assert_eq!(names(&scratch).len(), 1);
    succeeds(dir, "blco-pack", &["t.tns", "-o", "s", "--force"]);
    assert!(names(&scratch).is_empty(), "{:?}", names(&scratch));
    std::fs::remove_dir_all(dir.join("s")).unwrap();

    kill_when_staged(dir, &[]);
    let journal = dir.join("s.partial/journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replacen("{\"staged", "{{\"staged", 1)).unwrap();
    let refused = run(dir, "blco-pack", &PACK);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("; --force starts again"));
    succeeds(dir, "blco-pack", &["t.tns", "-o", "s", "--force"]);
    assert_eq!(names(dir), ["s", "scratch", "t.tns"]);
}

/// Two packs whose targets have the same name in different directories, at the same time.
#[test]
fn packs_of_equal_names_share_a_directory_for_temporary_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    generate(dir);
    for name in ["a", "b", "scratch"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let arguments = ["../t.tns", "-o", "s", "--memory", "64MiB", "--temp-dir", "../scratch"];
    let children = ["a", "b"].map(|name| command(&dir.join(name), "blco-pack", &arguments).spawn().unwrap());
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(identity(&dir.join("a/s")) == identity(&dir.join("b/s")));
    assert!(names(&dir.join("scratch")).is_empty());
}
