//! The programs as users run them, and a Python to check their output.

#![allow(dead_code, reason = "every test uses a part")]
#![allow(clippy::print_stderr, reason = "says what was skipped")]

use assert_cmd::cargo::cargo_bin;
use std::path::Path;
use std::process::{Command, Output};

/// All programs.
pub const PROGRAMS: [&str; 6] = ["blco-pack", "blco-run", "blco-cpd", "blco-info", "blco-export", "blco-gen"];

/// A program with arguments, in `dir`.
pub fn command(name: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin(name));
    command.current_dir(dir).args(args);
    command
}

/// Runs shell lines in `dir`, with the programs on the path. It ends at the first line that fails.
pub fn shell(lines: &str, dir: &Path) -> Output {
    let programs = cargo_bin("blco-pack").parent().unwrap().to_path_buf();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&others))).unwrap();
    Command::new("sh").args(["-e", "-c", lines]).current_dir(dir).env("PATH", path).output().unwrap()
}

/// Backends to test: the CPU, and the mock GPU if it was built, or the machine's with `BLCO_REAL_CUDA=1`.
pub fn backends() -> Vec<&'static str> {
    let has_gpu =
        std::env::var_os("BLCO_MOCK_CUDA").is_some() || std::env::var_os("BLCO_REAL_CUDA").is_some();
    if !has_gpu {
        eprintln!("skipped on a GPU: BLCO_MOCK_CUDA does not name the mock driver; tools/test.sh builds it");
    }
    if has_gpu && cfg!(feature = "cuda") { vec!["cpu", "cuda"] } else { vec!["cpu"] }
}

/// Runs a program in `dir`, which must succeed, and returns its report.
pub fn program(name: &str, dir: &Path, args: &[&str]) -> serde_json::Value {
    let mut command = Command::new(cargo_bin(name));
    command.current_dir(dir).args(args).arg("--json").env("BLCO_MEMORY_MIN", "0");
    if let (Some(mock), None) = (std::env::var_os("BLCO_MOCK_CUDA"), std::env::var_os("BLCO_REAL_CUDA")) {
        command.env("LD_LIBRARY_PATH", mock);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A Python with numpy and zstandard: `BLCO_PYTHON`, or `python3`. `None` if there is none and `BLCO_PYTHON` is not set.
pub fn python() -> Option<String> {
    let promised = std::env::var("BLCO_PYTHON").ok();
    let python = promised.clone().unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", "import numpy, zstandard"]).output();
    let works = found.is_ok_and(|o| o.status.success());
    assert!(works || promised.is_none(), "{python} has no numpy and zstandard");
    if !works {
        eprintln!("skipped: no Python with numpy; tools/test.sh installs one");
    }
    works.then_some(python)
}

/// Runs a script of tools/ in `dir`.
pub fn script(python: &str, name: &str, dir: &Path, args: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(name);
    Command::new(python).current_dir(dir).arg(script).args(args).output().unwrap()
}

/// Whether this test was started with signal `number` ignored, as SIGINT is for a shell's background commands. Programs that it
/// starts ignore the signal too.
pub fn is_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (number - 1) & 1 == 1)
}

/// The signal that asks a program to stop: SIGINT, or SIGTERM if that is ignored.
pub fn interrupt() -> &'static str {
    if is_ignored(2) { "TERM" } else { "INT" }
}
