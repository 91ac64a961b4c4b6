//! Establishes how a disturbed decomposition ends: killed at any moment, interrupted, or at a failing call of the operating
//! system or the CUDA driver. It leaves no result, only whole checkpoints. `--resume` (or, without a checkpoint
//! yet, the same command) gives the bits of an undisturbed run. `BLCO_KILLS=1000` sets the number of kills; `BLCO_EVERY_CALL=1`
//! fails every call instead of a selection.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![allow(clippy::print_stderr, reason = "says what was skipped")]

#[path = "../common/mod.rs"]
mod common;

use assert_cmd::cargo::cargo_bin;
use blco::internals::random::Counter;
use common::{SMALL_CHUNKS, system_words, tree};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// Backends to test: the CPU, and the mock GPU if it was built, or the machine's with `BLCO_REAL_CUDA=1`. Runs on a GPU are
/// deterministic, so that bits can be compared.
fn backends() -> Vec<&'static [&'static str]> {
    const CPU: &[&str] = &["--backend", "cpu"];
    const GPU: &[&str] = &["--backend", "cuda", "--deterministic"];
    let has_gpu = mock().is_some() || std::env::var_os("BLCO_REAL_CUDA").is_some();
    if has_gpu && cfg!(feature = "cuda") {
        return vec![CPU, GPU];
    }
    eprintln!("skipped on a GPU: BLCO_MOCK_CUDA does not name the mock driver; tools/test.sh builds it");
    vec![CPU]
}

/// The mock driver's directory, if it is used.
fn mock() -> Option<PathBuf> {
    let real = std::env::var_os("BLCO_REAL_CUDA").is_some();
    std::env::var_os("BLCO_MOCK_CUDA").filter(|_| !real).map(PathBuf::from)
}

type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// A directory with the store `t.blco` of several chunks, from which `blco-cpd` writes `o`, `r.html` and checkpoints in `c`.
struct Place {
    dir: TempDir,
    backend: &'static [&'static str],
}

/// The common options of all runs. Two starts, so that checkpoints hold the best one too.
const ALWAYS: &str =
    "t.blco --seed 3 --starts 2 --tol 0 --checkpoint c --every 1 --output o --report r.html --force -q";

impl Place {
    fn new(backend: &'static [&'static str], dims: &str, nnz: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap(), backend };
        let mut command = Command::new(cargo_bin("blco-gen"));
        let chunk_bytes = SMALL_CHUNKS.to_string();
        command.current_dir(place.dir.path()).args(["--dims", dims, "--nnz", nnz, "--values", "1..9"]);
        command.args(["--chunk-bytes", &chunk_bytes, "--quiet", "t.blco"]);
        assert!(command.output().unwrap().status.success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, more: &str) -> Command {
        let mut command = Command::new(cargo_bin("blco-cpd"));
        command.current_dir(self.dir.path()).args(ALWAYS.split(' ')).args(self.backend);
        command.args(more.split(' ').filter(|word| !word.is_empty())).env_remove("BLCO_FAULT");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(mock) = mock() {
            command.env("LD_LIBRARY_PATH", mock);
            if !self.backend.contains(&"cpu") {
                command.args(["--kernels", "embedded"]);
            }
        }
        command
    }

    /// Removes the output of runs.
    fn reset(&self) {
        for name in ["o", "c"] {
            drop(std::fs::remove_dir_all(self.path(name)));
        }
        drop(std::fs::remove_file(self.path("r.html")));
    }

    /// A run that must succeed. Returns its results.
    fn results(&self, more: &str) -> Tree {
        let output = self.command(more).output().unwrap();
        assert!(output.status.success(), "{more}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(self.path("r.html").exists() && !self.path("c/next").exists());
        self.written()
    }

    /// The existing results.
    fn written(&self) -> Tree {
        let mut results = tree(&self.path("o"));
        // The page has times, too.
        assert!(results.remove(&PathBuf::from("report.html")).is_some());
        let report = results.remove(&PathBuf::from("report.json")).unwrap().unwrap();
        let mut report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        for start in report["starts"].as_array_mut().unwrap() {
            assert!(start.as_object_mut().unwrap().remove("seconds").is_some());
        }
        let same = ["fit", "lambda", "starts", "best", "stop"].map(|name| report[name].to_string());
        results.insert(PathBuf::from("report.json"), Some(same.join("\n").into_bytes()));
        results
    }

    /// Continues from the checkpoint with only these options. Returns the results.
    fn resume_alone(&self, more: &str) -> Tree {
        let mut command = Command::new(cargo_bin("blco-cpd"));
        // Also from elsewhere.
        command.current_dir(std::env::temp_dir()).arg("--resume").arg(self.path("c")).args(more.split(' '));
        if let (Some(mock), None) = (std::env::var_os("BLCO_MOCK_CUDA"), std::env::var_os("BLCO_REAL_CUDA")) {
            command.env("LD_LIBRARY_PATH", mock);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.written()
    }

    /// Continues from the checkpoint, or starts again if there is none. Returns the results, and whether it continued.
    fn finish(&self, more: &str) -> (Tree, bool) {
        let resumes = self.path("c/current").exists();
        (self.results(&format!("{more}{}", if resumes { " --resume" } else { "" })), resumes)
    }

    /// There are only whole checkpoints and, if a call failed after they got their names, whole results.
    fn is_whole(&self, when: &str, wanted: &Tree) {
        assert!(!self.path("o").exists() || self.written() == *wanted, "{when}: other results");
        assert!(self.path("o").exists() || !self.path("r.html").exists(), "{when}: a page alone");
        for name in ["o.partial", "r.html.partial", "c/next"] {
            assert!(!self.path(name).exists(), "{when}: {name} is there");
        }
    }

    /// There are only whole checkpoints.
    fn is_clean(&self, when: &str) {
        for name in ["o", "r.html", "c/next"] {
            assert!(!self.path(name).exists(), "{when}: {name} is there");
        }
    }
}

fn until(what: &str, child: &mut Child, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "{what} does not come");
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// At moments of all kinds, and while checkpoints are written.
#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let kills: u64 = std::env::var("BLCO_KILLS").map_or(24, |text| text.parse().unwrap());
    let random = Counter::new(u64::from(std::process::id()), 0);
    for backend in backends() {
        let place = Place::new(backend, "200,300,50", "30000");
        let start = Instant::now();
        let wanted = place.results("--max-iters 5");
        let duration = start.elapsed();
        let (mut resumed, mut writing) = (0, 0);
        for kill in 0..kills {
            place.reset();
            let mut child = place.command("--max-iters 5").spawn().unwrap();
            let part = random.unit(kill);
            if kill % 2 == 0 {
                std::thread::sleep(duration.mul_f64(1.1 * part));
            } else {
                let next = place.path("c/next");
                for _ in 0..kill % 6 {
                    until("a checkpoint", &mut child, || next.exists());
                    until("its end", &mut child, || !next.exists());
                }
                until("a checkpoint", &mut child, || next.exists());
                std::thread::sleep(Duration::from_micros(500).mul_f64(part));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            writing += u64::from(place.path("c/next").exists());
            let (results, continued) = place.finish("--max-iters 5");
            assert!(results == wanted, "{backend:?}, kill {kill}: other results");
            resumed += u64::from(continued);
        }
        eprintln!("{backend:?}: {kills} kills, {writing} while a checkpoint was written, {resumed} resumed");
        assert!(resumed > kills / 4 && writing > 0, "{resumed} resumed, {writing} while writing");
    }
}

#[test]
fn an_interrupted_run_leaves_its_checkpoint() {
    for (backend, signal) in backends().into_iter().flat_map(|b| [(b, "-INT"), (b, "-TERM")]) {
        let place = Place::new(backend, "20,30,40", "3000");
        let mut child = place.command("--max-iters 1000000").spawn().unwrap();
        assert!(until("a checkpoint", &mut child, || place.path("c/current").exists()));
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{said}");
        let told = "blco-cpd: interrupted; no result was written; c is a checkpoint, from which this continues: blco-cpd --resume c\n";
        assert_eq!(said, told);
        assert_eq!(said.lines().count(), 1);
        place.is_clean(signal);
        let facts = std::fs::read(place.path("c/current/checkpoint.json")).unwrap();
        let facts: serde_json::Value = serde_json::from_slice(&facts).unwrap();
        let done = facts["facts"]["current"]["history"].as_array().unwrap().len();
        let more = format!("--max-iters {}", done + 2);
        // The state after a kill between replacing a checkpoint and removing the old one.
        std::fs::create_dir(place.path("c/next")).unwrap();
        let resumed = if signal == "-INT" { place.finish(&more) } else { (place.resume_alone(&more), true) };
        place.reset();
        assert!(resumed == (place.results(&more), true), "{backend:?} {signal}: other results");
    }
}

/// A command with a name that is not UTF-8 is not recorded, so continuing needs the whole command.
#[test]
fn an_interrupt_names_a_command_that_works() {
    let place = Place::new(&["--backend", "cpu"], "20,30,40", "3000");
    std::os::unix::fs::symlink("t.blco", place.dir.path().join(OsStr::from_bytes(b"t\xe9.blco"))).unwrap();
    let options = " --tol 0 --max-iters 1000000 --backend cpu --no-output -q --checkpoint c --every 1";
    let said = format!("continues: blco-cpd $'t\\xe9.blco'{options} --resume\n");
    for more in [options.to_owned(), format!("{options} --resume")] {
        let mut command = Command::new(cargo_bin("blco-cpd"));
        command.current_dir(place.dir.path()).arg(OsStr::from_bytes(b"t\xe9.blco"));
        let start = SystemTime::now();
        let mut child = command.args(more.split_whitespace()).stderr(Stdio::piped()).spawn().unwrap();
        let is_new = |at: SystemTime| at > start + Duration::from_millis(20);
        let checkpoint = || std::fs::metadata(place.path("c/current")).and_then(|facts| facts.modified());
        assert!(until("a checkpoint", &mut child, || checkpoint().is_ok_and(is_new)));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let told = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert!(told.ends_with(&said), "{told}");
    }
}

/// The numbers of calls to fail: all, or the first and some of the others.
fn next_call(nth: u64) -> u64 {
    let every = std::env::var_os("BLCO_EVERY_CALL").is_some();
    if every || nth < 2 { nth + 1 } else { nth * 3 / 2 + 1 }
}

/// With the error's number, in one line.
#[test]
fn every_failing_call_ends_a_run_with_its_error() {
    let place = Place::new(&["--backend", "cpu"], "20,30,40", "3000");
    let wanted = place.results("--max-iters 2");
    let (mut failed, mut resumed) = (0, 0);
    for call in ["open", "read", "write", "sync", "rename", "exchange", "remove", "spawn", "allocate"] {
        for errno in ["5", "28"] {
            let mut nth = 0;
            loop {
                place.reset();
                let fault = format!("{call}:{nth}:{errno}");
                let Output { status, stderr, .. } =
                    place.command("--max-iters 2").env("BLCO_FAULT", &fault).output().unwrap();
                let said = String::from_utf8_lossy(&stderr).into_owned();
                if said.contains("there was no such call") {
                    break;
                }
                assert_eq!((status.code(), said.lines().count()), (Some(2), 1), "{fault}: {said}");
                assert!(said.contains(&system_words(errno)), "{fault}: {said}");
                place.is_whole(&fault, &wanted);
                let (results, continued) = place.finish("--max-iters 2");
                assert!(results == wanted, "{fault}: other results");
                (failed, resumed, nth) = (failed + 1, resumed + u64::from(continued), next_call(nth));
            }
        }
    }
    assert!(failed > 60 && resumed > 20, "{failed} calls failed, {resumed} resumed");
}

/// The mock's record of the last run, which is then removed. No object in it is alive.
fn account(place: &Place, when: &str) -> HashMap<String, String> {
    let text = std::fs::read_to_string(place.path("log")).unwrap();
    std::fs::remove_file(place.path("log")).unwrap();
    let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
    let account: HashMap<String, String> = text.split_whitespace().map(pair).collect();
    for what in ["device_bytes", "pinned_bytes", "registered_bytes", "streams", "events", "modules"] {
        assert_eq!(account[what], "0", "{when}: {what} left: {text}");
    }
    account
}

/// If a kernel does not start, earlier ones are still running. They end before their memory is freed.
#[test]
fn every_failing_launch_ends_a_run_with_its_error() {
    if mock().is_none() {
        return eprintln!("skipped: BLCO_MOCK_CUDA does not name the mock driver; tools/test.sh builds it");
    }
    for (rank, more) in [(4, "--streams 2 --device-order store"), (70, "--streams 2 --nonneg")] {
        let place = Place::new(&["--backend", "cuda"], "40,60,30", "9000");
        let more = format!("{more} --rank {rank} --max-iters 1");
        let run = |nth: u64| {
            place.reset();
            let mut command = place.command("");
            command
                .args(more.split(' '))
                .env("BLCO_MOCK_LOG", place.path("log"))
                .env("BLCO_MOCK_SLOW", "100");
            command.env("BLCO_MOCK_FAIL", nth.to_string()).env("BLCO_MOCK_ERROR", "701");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let account = account(&place, &said);
            (output.status.code(), said, account)
        };
        let (status, said, mut account) = run(0);
        assert_eq!(status, Some(0), "{said}");
        let launches: u64 = account.remove("launches").unwrap().parse().unwrap();
        assert!(launches > 10, "{launches} launches");
        // The second start does the same again.
        for nth in 1..=launches.div_ceil(2) {
            let (status, said, account) = run(nth);
            assert_eq!((status, said.lines().count()), (Some(2), 1), "launch {nth}: {said}");
            assert_eq!(account["failed"], "cuLaunchKernel", "launch {nth}: {said}");
            assert!(said.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "launch {nth}: {said}");
            place.is_clean(&said);
        }
    }
}

/// Chunks streamed and partly resident, or all sorted; linear updates and HALS, in one kernel and in three.
#[test]
fn every_failing_driver_call_ends_a_run_with_its_error() {
    if mock().is_none() {
        return eprintln!("skipped: BLCO_MOCK_CUDA does not name the mock driver; tools/test.sh builds it");
    }
    for (rank, more) in [(4, "--streams 2 --device-order store"), (70, "--deterministic --nonneg")] {
        let place = Place::new(&["--backend", "cuda"], "40,60,30", "9000");
        let more = format!("{more} --rank {rank} --max-iters 1");
        let run = |nth: u64, error: &str| {
            place.reset();
            let mut command = place.command("");
            command.args(more.split(' ')).env("BLCO_MOCK_LOG", place.path("log")).env("BLCO_MOCK_SLOW", "5");
            command.env("BLCO_MOCK_FAIL", nth.to_string()).env("BLCO_MOCK_ERROR", error);
            command.output().unwrap()
        };
        let output = run(0, "700");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let calls: u64 = account(&place, "no failure")["calls"].parse().unwrap();
        let (mut failed, mut nth) = (0, 1);
        while nth <= calls {
            let output = run(nth, "700");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let call = account(&place, &said).remove("failed").unwrap();
            if output.status.success() {
                // Calls that poll vary in number; calls that free resources may fail unnoticed.
                let mut released =
                    "Free Destroy Release Unload Unregister SetCurrent Synchronize StreamQuery".split(' ');
                assert!(call == "-" || released.any(|name| call.contains(name)), "call {nth}, {call}");
                assert!(place.path("o/report.json").exists());
            } else {
                failed += 1;
                assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "call {nth}: {said}");
                assert!(said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "call {nth}, {call}: {said}");
                place.is_clean(&said);
            }
            nth = if nth < 20 { nth + 1 } else { next_call(nth).min(nth + calls / 40 + 1) };
        }
        assert!(failed > 40, "{failed} calls failed");
    }
}
