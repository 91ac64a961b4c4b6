//! With any amount of memory (`ulimit -v`, from too little for the start to enough), every program succeeds, or ends with exit status 2,
//! one line and nothing left: no panic, no abort, no temporary file. `BLCO_SWEEP=all` takes smaller steps.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

use assert_cmd::cargo::cargo_bin;
use common::tree;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a program with `kib` KiB of address space; without a bound if 0.
fn within(dir: &Path, kib: u64, program: &str, arguments: &[&str]) -> Output {
    let limit = if kib == 0 { "unlimited".to_owned() } else { kib.to_string() };
    let script = "ulimit -c 0; ulimit -v $0; exec \"$@\"";
    let mut command = Command::new("sh");
    command.current_dir(dir).env("TMPDIR", dir).args(["-c", script, &limit]);
    command.arg(cargo_bin(program)).args(arguments).output().unwrap()
}

/// A tensor as text, plain and compressed, as stores of both formats, and a model for it.
fn inputs(dir: &Path) {
    let succeeds = |program: &str, arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = within(dir, 0, program, &arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    succeeds("blco-gen", "--dims 3000,2000,500 --nnz 120000 --skew 2 --values 1..9 t.tns");
    succeeds("blco-pack", "t.tns -o t.blco --zstd 1");
    succeeds("blco-pack", "t.tns -o t.hocfs --chunk-bytes 128KiB");
    succeeds("blco-gen", "--dims 3000,2000,500 --planted-rank 3 --support 3 --model model m.tns");
    let text = std::fs::read(dir.join("t.tns")).unwrap();
    std::fs::write(dir.join("t.tns.zst"), zstd::encode_all(&text[..], 1).unwrap()).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &text).unwrap();
    std::fs::write(dir.join("t.tns.gz"), gzip.finish().unwrap()).unwrap();
}

/// Calls of every program. All write to `out`. They compute on the CPU: where memory ends, NVIDIA's libraries write lines of their own.
const CALLS: [(&str, &str); 16] = [
    ("blco-info", "t.hocfs"),
    ("blco-info", "t.blco --verify"),
    ("blco-info", "t.blco --storage --storage-dir ."),
    ("blco-info", "t.blco --repair out"),
    ("blco-export", "t.blco out.npz"),
    ("blco-export", "t.hocfs out.tns"),
    ("blco-gen", "--dims 900,900,900 --nnz 100000 out.tns"),
    ("blco-gen", "--dims 900,900,900 --nnz 100000 out.blco"),
    ("blco-pack", "t.tns.zst -o out.hocfs"),
    ("blco-pack", "t.tns.gz -o out.blco --zstd 3"),
    ("blco-run", "t.blco --modes all --output out --check t.tns --backend cpu"),
    ("blco-run", "t.hocfs --modes 1 --factors model --output out --backend cpu"),
    ("blco-run", "t.hocfs --op ttv --modes 3 --output out --check t.tns --backend cpu"),
    ("blco-run", "t.blco --op ttv --modes 1 --output out --backend cpu"),
    ("blco-cpd", "t.blco --rank 4 --max-iters 2 --output out --checkpoint points --backend cpu"),
    ("blco-cpd", "--score model model"),
];

/// Removes the output of a run.
fn without_output(dir: &Path) {
    for name in ["out", "out.blco", "out.hocfs", "out.tns", "out.npz", "points"] {
        drop(std::fs::remove_dir_all(dir.join(name)));
        drop(std::fs::remove_file(dir.join(name)));
    }
}

/// The contents of `dir` without empty directories.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    tree(dir).into_iter().filter(|(_, contents)| contents.is_some()).map(|(path, _)| path).collect()
}

#[test]
fn programs_end_in_one_line_where_memory_ends() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    inputs(dir);
    let steps = if std::env::var_os("BLCO_SWEEP").is_some() { 50 } else { 5 };
    for (program, call) in CALLS {
        let arguments: Vec<&str> = call.split(' ').chain(["--quiet"]).collect();
        let whole = within(dir, 0, program, &arguments);
        assert!(whole.status.success(), "{program} {call}: {}", String::from_utf8_lossy(&whole.stderr));
        without_output(dir);
        let before = files(dir);
        let (mut kib, mut refused, mut successes) = (8 << 10, 0, 0);
        while successes < 2 {
            let output = within(dir, kib, program, &arguments);
            let message = String::from_utf8_lossy(&output.stderr);
            let what = format!("{program} {call} in {kib} KiB: {:?}, {message}", output.status);
            if output.status.success() {
                successes += 1;
            } else if within(dir, kib, program, &["--version"]).status.success() {
                assert_eq!(output.status.code(), Some(2), "{what}");
                assert!(message.lines().count() == 1 && message.starts_with(program), "{what}");
                assert_eq!(files(dir), before, "{what}");
                refused += 1;
            }
            without_output(dir);
            kib += kib / steps;
            assert!(kib < 4 << 20, "{what}");
        }
        assert!(refused > 0, "{program} {call}: never without memory");
    }
}

/// If the C library has no memory for itself it aborts, and the program ends as in other cases. Other aborts kill it.
#[test]
fn an_abort_ends_a_program_that_has_no_memory() {
    for starved in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        let fifo = dir.join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        let mut command = Command::new(cargo_bin("blco-pack"));
        command.current_dir(dir).args(["fifo", "-o", "s"]).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // The program has begun when it has opened the other end.
        let _input = std::fs::File::options().write(true).open(&fifo).unwrap();
        let pid = Pid::from_child(&child);
        if starved {
            let least = Rlimit { current: Some(1), maximum: Some(1) };
            prlimit(Some(pid), Resource::As, least).unwrap();
        }
        kill_process(pid, Signal::ABORT).unwrap();
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        let ended = (output.status.code(), output.status.signal());
        assert_eq!(ended, if starved { (Some(2), None) } else { (None, Some(6)) }, "{message}");
        // The program reports this itself if one of its threads asks for memory first.
        assert!(message.lines().count() <= usize::from(starved), "{message}");
        let left = std::fs::read_dir(dir).unwrap().count();
        assert!(!starved || left == 1, "{left} names, of which one is the input's");
    }
}
