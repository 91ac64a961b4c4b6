//! A packer that is killed (SIGKILL) at any moment leaves no store, a complete one, or an unfinished one that
//! `--resume` turns into the very bytes of an undisturbed pack, or that `--force` discards. The tensor exceeds the
//! smallest memory budget, so that runs go to disk. The fault sweeps at the end fail every n-th call of a
//! spilling pack.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use assert_cmd::cargo::cargo_bin;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nonzeros of the tensor: more than 64 MiB hold.
const NNZ: &str = "2500000";

fn command(dir: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin(program));
    command.current_dir(dir).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
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

fn generate(dir: &Path) {
    let dims = "300000,2000,70000";
    succeeds(dir, "blco-gen", &["--dims", dims, "--nnz", NNZ, "--skew", "2", "--values", "1..5", "t.tns"]);
}

const PACK: [&str; 5] = ["t.tns", "-o", "s", "--memory", "64MiB"];

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_killed_pack_is_absent_resumable_or_complete() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    generate(dir);
    let start = Instant::now();
    let whole = succeeds(dir, "blco-pack", &["t.tns", "-o", "whole", "--memory", "64MiB", "--json"]);
    let duration = start.elapsed();
    let whole: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert!(whole["spilled"]["runs"].as_u64().unwrap() > 1, "{whole}");
    let expected = std::fs::read(dir.join("whole/manifest")).unwrap();

    let mut resumed = 0;
    for round in 1..=9u32 {
        let mut child = command(dir, "blco-pack", &PACK).spawn().unwrap();
        std::thread::sleep(duration * round / 10);
        child.kill().unwrap();
        child.wait().unwrap();
        if dir.join("s").exists() {
            // It had finished: complete, and nothing else.
            assert_eq!(std::fs::read(dir.join("s/manifest")).unwrap(), expected);
        } else {
            let plain = run(dir, "blco-pack", &PACK);
            let said = String::from_utf8_lossy(&plain.stderr).into_owned();
            if plain.status.success() {
                // Nothing was finished; what was left has been cleaned up.
                assert_eq!(std::fs::read(dir.join("s/manifest")).unwrap(), expected);
            } else {
                assert!(said.contains("--resume continues it"), "{said}");
                let mut arguments = PACK.to_vec();
                arguments.extend(["--resume", "--json"]);
                let report = succeeds(dir, "blco-pack", &arguments);
                let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
                assert!(report["spilled"]["resumed_nnz"].as_u64().unwrap() > 0);
                assert_eq!(std::fs::read(dir.join("s/manifest")).unwrap(), expected);
                resumed += 1;
            }
        }
        succeeds(dir, "blco-info", &["s", "--quick"]);
        std::fs::remove_dir_all(dir.join("s")).unwrap();
        if dir.join("s.partial").exists() {
            std::fs::remove_dir_all(dir.join("s.partial")).unwrap();
        }
    }
    assert!(resumed > 0, "no kill met finished files");
}

/// Where the dims are declared, runs come straight from the input: the killed pack goes on behind the finished ones.
#[test]
fn a_killed_pack_with_declared_dims_resumes_from_its_runs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    generate(dir);
    succeeds(dir, "blco-pack", &["t.tns", "-o", "whole"]);
    let expected = std::fs::read(dir.join("whole/manifest")).unwrap();
    let mut direct = PACK.to_vec();
    direct.extend(["--dims", "300000,2000,70000"]);
    let mut child = command(dir, "blco-pack", &direct).spawn().unwrap();
    let journal = dir.join("s.partial/journal");
    let start = Instant::now();
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("run-0")) {
        assert!(start.elapsed() < Duration::from_mins(2));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!std::fs::read_to_string(&journal).unwrap().contains("staged-"));
    direct.extend(["--resume", "--json"]);
    let report = succeeds(dir, "blco-pack", &direct);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(report["spilled"]["resumed_nnz"].as_u64().unwrap() > 0, "{report}");
    assert!(report["spilled"]["runs"].as_u64().unwrap() > 1, "{report}");
    assert_eq!(std::fs::read(dir.join("s/manifest")).unwrap(), expected);
    succeeds(dir, "blco-info", &["s", "--verify"]);
}

/// Starts a pack, kills it once a staged file is finished, and checks that it left something.
fn kill_when_staged(dir: &Path) {
    let mut child = command(dir, "blco-pack", &PACK).spawn().unwrap();
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
    kill_when_staged(dir);
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
fn failing_calls_of_a_spilling_pack_end_with_their_error_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    generate(dir);
    let faulty = |fault: &str| command(dir, "blco-pack", &PACK).env("BLCO_FAULT", fault).output().unwrap();
    // Kinds with few calls are struck at each of the first ones, kinds with many at some.
    let strikes: [(&str, &[u64]); 7] = [
        ("sync", &[0, 1, 2, 3]),
        ("rename", &[0]),
        ("remove", &[0, 1]),
        ("spawn", &[0, 1]),
        ("allocate", &[0, 1, 2]),
        ("open", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 12]),
        ("write", &[0, 1, 2, 3, 50, 200]),
    ];
    for (call, numbers) in strikes {
        for number in numbers {
            let output = faulty(&format!("{call}:{number}:28"));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{call}:{number}: {said}");
            assert!(said.contains("os error 28") && said.lines().count() == 1, "{call}:{number}: {said}");
            // A failure after the rename (of the last sync) leaves a whole store.
            if dir.join("s").exists() {
                succeeds(dir, "blco-info", &["s", "--verify"]);
                std::fs::remove_dir_all(dir.join("s")).unwrap();
            }
            assert_eq!(names(dir), ["t.tns"], "{call}:{number}");
        }
    }
    for fault in ["read:20:4", "write:20:4", "read:30:short", "write:30:short"] {
        let output = faulty(fault);
        assert!(output.status.success(), "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_dir_all(dir.join("s")).unwrap();
    }
}
