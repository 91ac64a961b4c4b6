//! Fails every call of every kind that each program makes, in every way: the program ends with that error and exit
//! status 2, leaves nothing new and succeeds when it is run again. If a transfer can be continued,
//! it succeeds at once. `BLCO_SWEEP=all cargo test --test sweep -- --nocapture` takes every call and prints the table
//! of benches/runs (a name in place of `all` selects the commands whose names begin with it). Without it, some calls
//! of each kind are taken.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![allow(clippy::print_stdout, reason = "a record of what was tried")]

#[path = "../common/mod.rs"]
mod common;

use assert_cmd::cargo::cargo_bin;
use common::{Tensor, system_words, tree, values};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CALLS: [&str; 9] =
    ["open", "read", "write", "sync", "rename", "exchange", "remove", "spawn", "allocate"];
const FAULTS: [(&str, &str); 5] =
    [("EIO", "5"), ("ENOSPC", "28"), ("EMFILE", "24"), ("EINTR", "4"), ("short", "short")];

/// A command whose calls fail. It runs in a directory with the tensors `t.tns` and (smaller) `u.tns`; the stores `s` and `h` (`hocfs`) of
/// the first, `c` (`csf`, a cover for each mode) and `m` (`mmcsf`) of the second; the damaged stores `damaged` and `damaged-c`; and an
/// empty directory `temp`. It writes into `out`.
struct Case {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    /// Whether it replaces a store in `out`.
    replaces: bool,
    /// Whether it reports losses of the medium instead of failing.
    reports: bool,
    /// Whether calls take turns with faults, unless all are taken.
    takes_turns: bool,
}

const fn case(
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    replaces: bool,
    reports: bool,
) -> Case {
    Case { name, program, arguments, replaces, reports, takes_turns: false }
}

/// A command on a format that shares most code with others.
const fn of_format(name: &'static str, program: &'static str, arguments: &'static [&'static str]) -> Case {
    let reports = matches!(program.as_bytes(), b"blco-info");
    Case { takes_turns: true, ..case(name, program, arguments, false, reports) }
}

const SMALL: &str = "64KiB";
#[rustfmt::skip]
const CASES: [Case; 28] = [
    case("pack", "blco-pack", &["t.tns", "-o", "out/s", "--chunk-bytes", SMALL], false, false),
    case("pack, spilling", "blco-pack", &["t.tns", "-o", "out/s", "--memory", "0"], false, false),
    case("pack, spilling, declared dims", "blco-pack",
        &["t.tns", "-o", "out/s", "--memory", "0", "--dims", "600,50,400"], false, false),
    case("pack, spilling elsewhere, replacing", "blco-pack",
        &["t.tns", "-o", "out/s", "--memory", "0", "--temp-dir", "temp", "--zstd", "1", "--force"], true, false),
    case("run", "blco-run", &["s", "--rank", "2", "--output", "out/results"], false, false),
    case("pack, hocfs", "blco-pack",
        &["t.tns", "-o", "out/s", "--format", "hocfs", "--slice", "ell", "--chunk-bytes", "256KiB"], false, false),
    case("ttv, streamed", "blco-run", &["h", "--op", "ttv", "--modes", "3", "--output", "out/results"], false, false),
    case("ttv, merged in runs", "blco-run",
        &["s", "--op", "ttv", "--modes", "2", "--output", "out/results", "--memory", "15872KiB"], false, false),
    case("ttm, streamed", "blco-run",
        &["h", "--op", "ttm", "--modes", "3", "--rank", "2", "--output", "out/results"], false, false),
    case("ttm, sorted in runs", "blco-run",
        &["s", "--op", "ttm", "--modes", "2", "--rank", "2", "--output", "out/results", "--memory", "15872KiB"], false, false),
    case("ttmc", "blco-run", &["s", "--op", "ttmc", "--ranks", "2,1,2", "--output", "out/results"], false, false),
    case("inner", "blco-run", &["s", "--op", "inner", "--with", "h"], false, false),
    case("cpd", "blco-cpd", &["s", "--rank", "2", "--max-iters", "2", "--output", "out/results"], false, false),
    case("info --verify", "blco-info", &["s", "--verify"], false, true),
    case("export, text", "blco-export", &["s", "out/t.tns"], false, false),
    case("export, npz", "blco-export", &["s", "out/t.npz"], false, false),
    case("info --repair", "blco-info", &["damaged", "--repair", "out/s"], false, true),
    case("info --repair, spilling", "blco-info", &["damaged", "--repair", "out/s", "--memory", "0"], false, true),
    of_format("pack, csf", "blco-pack", &["u.tns", "-o", "out/s", "--format", "csf", "--chunk-bytes", SMALL]),
    of_format("pack, bcsf, spilling", "blco-pack", &["u.tns", "-o", "out/s", "--format", "bcsf", "--memory", "0"]),
    of_format("pack, hbcsf", "blco-pack", &["u.tns", "-o", "out/s", "--format", "hbcsf", "--chunk-bytes", SMALL]),
    of_format("pack, mmcsf", "blco-pack", &["u.tns", "-o", "out/s", "--format", "mmcsf", "--chunk-bytes", SMALL]),
    of_format("pack, mmcsf static, spilling", "blco-pack",
        &["v.tns", "-o", "out/s", "--format", "mmcsf", "--assign", "static", "--memory", "0"]),
    of_format("pack, fcoo", "blco-pack", &["u.tns", "-o", "out/s", "--format", "fcoo", "--chunk-bytes", SMALL]),
    of_format("pack, 3 parts", "blco-pack", &["u.tns", "-o", "out/s", "--split", "3", "--chunk-bytes", SMALL]),
    of_format("run, mmcsf", "blco-run", &["m", "--rank", "2", "--output", "out/results"]),
    of_format("info --verify, csf", "blco-info", &["c", "--verify"]),
    of_format("info --repair, csf", "blco-info", &["damaged-c", "--repair", "out/s"]),
];

fn prepare(dir: &Path) {
    // Six runs of one staged frame each, merged two at a time.
    let tensor = Tensor::random(&[600, 50, 400], 90_000, 1, values::integer);
    std::fs::write(dir.join("t.tns"), tensor.text()).unwrap();
    // Two such runs.
    let tensor = Tensor::random(&[300, 50, 200], 20_000, 2, values::integer);
    std::fs::write(dir.join("u.tns"), tensor.text()).unwrap();
    // One such run, as often as fibers are sorted.
    let tensor = Tensor::random(&[30, 5, 20], 400, 3, values::integer);
    std::fs::write(dir.join("v.tns"), tensor.text()).unwrap();
    std::fs::write(dir.join("other.tns"), "1 1 1\n2 2 4\n").unwrap();
    for name in ["out", "temp"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let stores = [
        ("t.tns", "s", "blco"),
        ("t.tns", "damaged", "blco"),
        ("t.tns", "h", "hocfs"),
        ("u.tns", "c", "csf"),
        ("u.tns", "damaged-c", "csf"),
        ("u.tns", "m", "mmcsf"),
    ];
    for (text, store, format) in stores {
        let arguments = [text, "-o", store, "--chunk-bytes", SMALL, "--format", format];
        assert!(finish(command(dir, "blco-pack", &arguments, None)).status.success());
    }
    for store in ["damaged", "damaged-c"] {
        std::fs::remove_file(dir.join(store).join("chunk-000001.bin")).unwrap();
    }
}

fn command(dir: &Path, program: &str, arguments: &[&str], fault: Option<&str>) -> Command {
    let mut command = Command::new(cargo_bin(program));
    command.current_dir(dir).args(arguments).args(["--threads", "2", "--quiet"]);
    // Another plan, other calls and other memory where there is a GPU.
    if ["blco-run", "blco-cpd"].contains(&program) {
        command.args(["--backend", "cpu"]);
    }
    command.env("BLCO_MEMORY_MIN", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
    match fault {
        Some(fault) => command.env("BLCO_FAULT", fault),
        None => command.env_remove("BLCO_FAULT"),
    };
    command
}

/// Runs a command that must end.
fn finish(mut command: Command) -> Output {
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_mins(1), "{command:?} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The contents of `out` and `temp`, without files that hold times: a store's provenance, a decomposition's report.
fn state(dir: &Path) -> Tree {
    let mut all = tree(&dir.join("out"));
    all.retain(|path, _| {
        path.file_name()
            .is_none_or(|name| name != "provenance.json" && name != "report.json" && name != "report.html")
    });
    all.extend(tree(&dir.join("temp")));
    all
}

/// Puts `out` into the state before the command.
fn reset(dir: &Path, case: &Case) {
    std::fs::remove_dir_all(dir.join("out")).unwrap();
    std::fs::create_dir(dir.join("out")).unwrap();
    if case.replaces {
        assert!(finish(command(dir, "blco-pack", &["other.tns", "-o", "out/s"], None)).status.success());
    }
}

/// Counts of failing calls by outcome.
#[derive(Debug, Default)]
struct Counts {
    /// Calls that failed.
    struck: u64,
    /// Status 2, the error is reported, everything is as before.
    error: u64,
    /// Status 2, the error is reported, the output is whole: the call failed after the rename.
    complete: u64,
    /// Success: the transfer was continued.
    continued: u64,
    /// Status 1 or 0: the error is part of what a verification or a repair reports.
    reported: u64,
}

/// One command with its expected output.
struct Sweep<'a> {
    dir: &'a Path,
    case: &'a Case,
    before: Tree,
    wanted: Tree,
    status: Option<i32>,
}

impl<'a> Sweep<'a> {
    fn new(dir: &'a Path, case: &'a Case) -> Self {
        reset(dir, case);
        let before = state(dir);
        let output = finish(command(dir, case.program, case.arguments, None));
        assert!(output.status.code() <= Some(1), "{}: {output:?}", case.name);
        Self { dir, case, before, wanted: state(dir), status: output.status.code() }
    }

    fn again(&self) -> Result<(), String> {
        reset(self.dir, self.case);
        let output = finish(command(self.dir, self.case.program, self.case.arguments, None));
        let same = output.status.code() == self.status && state(self.dir) == self.wanted;
        if same { Ok(()) } else { Err(format!("does not succeed again: {output:?}")) }
    }

    /// Fails one call and judges the outcome; false if there was no such call.
    fn fail(&self, order: &str, errno: &str, counts: &mut Counts) -> Result<bool, String> {
        let output = finish(command(self.dir, self.case.program, self.case.arguments, Some(order)));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let after = state(self.dir);
        if said.contains("there was no such call") {
            return Ok(false);
        }
        counts.struck += 1;
        let told = system_words(errno);
        let one_line = said.lines().count() == 1 && said.contains(&told);
        let reported = String::from_utf8_lossy(&output.stdout).contains(&told);
        let transfer = order.starts_with("read") || order.starts_with("write");
        let continues = transfer && ["4", "short"].contains(&errno);
        match output.status.code() {
            Some(2) if one_line && after == self.before => counts.error += 1,
            Some(2) if one_line && after == self.wanted => counts.complete += 1,
            code if continues && code == self.status && after == self.wanted => counts.continued += 1,
            Some(0 | 1) if self.case.reports && reported => counts.reported += 1,
            code => {
                let names: Vec<_> = after.keys().filter(|path| !self.before.contains_key(*path)).collect();
                return Err(format!("status {code:?}, {said:?}, left {names:?}"));
            }
        }
        self.again()?;
        Ok(true)
    }
}

/// The calls to fail out of those from 0 on: each, or the first few and some of the rest.
fn next_call(nth: u64, all: bool) -> u64 {
    if all || nth < 2 { nth + 1 } else { nth * 2 + 3 }
}

/// Fails the calls of one kind that a command makes, prints how they ended, and returns what was wrong.
fn sweep(dir: &Path, case: &Case, call: &str, all: bool) -> Vec<String> {
    let sweep = Sweep::new(dir, case);
    let (mut counts, mut calls, mut wrong) = (Counts::default(), 0, Vec::new());
    let faults = if ["read", "write"].contains(&call) { &FAULTS[..] } else { &FAULTS[..4] };
    let (mut nth, mut is_there) = (0, true);
    for turn in (0..faults.len()).cycle() {
        if !is_there {
            break;
        }
        is_there = false;
        let own = if case.takes_turns && !all { turn..turn + 1 } else { 0..faults.len() };
        for (name, errno) in &faults[own] {
            reset(dir, case);
            match sweep.fail(&format!("{call}:{nth}:{errno}"), errno, &mut counts) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(what) => wrong.push(format!("{}, {call} {nth}, {name}: {what}", case.name)),
            }
            (calls, is_there) = (nth + 1, true);
        }
        nth = next_call(nth, all);
    }
    let Counts { struck, error, complete, continued, reported } = counts;
    println!("| {} | {call} | {calls} | {error} | {complete} | {continued} | {reported} |", case.name);
    let judged = error + complete + continued + reported;
    assert!(judged == struck || !wrong.is_empty(), "{struck} failures, {judged} judged");
    wrong
}

/// Rows of the table come in the order in which they end. Each thread has a directory of its own.
#[test]
fn every_failing_call_ends_every_program_with_its_error() {
    let which = std::env::var("BLCO_SWEEP").ok();
    let wanted =
        |case: &&Case| which.as_ref().is_none_or(|w| w == "all" || case.name.starts_with(w.as_str()));
    let of_case = |case| CALLS.map(|call| (case, call));
    let jobs: Vec<(&Case, &str)> = CASES.iter().filter(wanted).flat_map(of_case).collect();
    println!(
        "| command | call | calls | error | complete | continued | reported |\n|---|---|---|---|---|---|---|"
    );
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        while let Some((case, call)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = sweep(dir.path(), case, call, which.is_some());
            wrong.lock().unwrap().extend(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
