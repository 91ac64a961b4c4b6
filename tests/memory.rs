//! What `blco-pack` and `blco-info --repair` take of memory, by the kernel's count (`VmHWM`), is within `--memory`, whatever
//! the options; and what cannot be is refused in one line before anything is read.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![cfg(target_os = "linux")]

mod common;

use assert_cmd::cargo::cargo_bin;
use common::{identity, tree};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Runs a program to its end; its output, and the bytes that it held at its peak.
fn peak(dir: &Path, program: &str, arguments: &[&str]) -> (Output, u64) {
    let mut command = Command::new(cargo_bin(program));
    command.current_dir(dir).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.map_or(peak, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10);
        std::thread::sleep(Duration::from_millis(1));
    }
    (child.wait_with_output().unwrap(), peak)
}

/// Packs within `memory` MiB and the few per cent that the allocator keeps: at least once in three times, for what threads that
/// wait for each other make it keep depends on what else the machine does.
fn packs(dir: &Path, memory: u64, arguments: &[&str]) {
    let given = format!("{memory}MiB");
    let arguments = [arguments, &["--force", "--memory", &given]].concat();
    let mut peaks = Vec::new();
    let keeps = |_| {
        let (output, bytes) = peak(dir, "blco-pack", &arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        peaks.push(bytes);
        bytes <= memory * MIB / 20 * 21
    };
    assert!((0..3).any(keeps), "{arguments:?}: {peaks:?} bytes");
}

/// Refuses with one line that has each of `words`, having taken little, and leaves nothing behind.
fn refuses(dir: &Path, program: &str, arguments: &[&str], words: &[&str]) {
    let before = tree(dir);
    let (output, bytes) = peak(dir, program, arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(bytes <= 64 * MIB, "{arguments:?}: {bytes} bytes");
    assert!(tree(dir) == before);
}

/// 5 million nonzeros of four modes, as text.
fn text(dir: &Path) {
    let (dims, nnz) = ("8000,90000,500,240", "5000000");
    let arguments = ["--dims", dims, "--nnz", nnz, "--skew", "2", "--values", "1..9", "t.tns"];
    assert!(peak(dir, "blco-gen", &arguments).0.status.success());
}

#[test]
fn packing_keeps_within_its_memory() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    text(dir);
    packs(dir, 64, &["t.tns"]);
    let expected = identity(&dir.join("t.blco"));
    for threads in ["1", "16", "64"] {
        packs(dir, 64, &["t.tns", "--threads", threads]);
        assert!(identity(&dir.join("t.blco")) == expected, "{threads} threads");
    }
    packs(dir, 64, &["t.tns", "--dims", "8000,90000,500,240"]);
    packs(dir, 64, &["t.tns", "--chunk-bytes", "2MiB", "--zstd", "3"]);
    packs(dir, 64, &["t.tns", "-o", "t.hocfs", "--chunk-bytes", "2MiB"]);
    packs(dir, 160, &["t.tns", "-o", "t.hocfs"]);
    packs(dir, 160, &["t.tns", "-o", "t.hocfs", "--slice", "csr", "--threads", "16"]);
    let needed = "takes at least";
    refuses(dir, "blco-pack", &["t.tns", "-o", "u.hocfs", "--memory", "64MiB"], &[needed, "--chunk-bytes"]);
    let arguments = ["t.tns", "-o", "u", "--memory", "64MiB", "--zstd", "19"];
    refuses(dir, "blco-pack", &arguments, &[needed, "--chunk-bytes", "--zstd"]);
    refuses(
        dir,
        "blco-pack",
        &["t.tns", "-o", "u", "--memory", "256MiB", "--chunk-bytes", "64MiB"],
        &[needed],
    );
    let arguments = ["t.tns", "-o", "u", "--memory", "64MiB", "--chunk-bytes", "64MiB", "--plan"];
    refuses(dir, "blco-pack", &arguments, &[needed]);
}

/// A window that the memory does not hold is refused, where the first frame has it and where a later one does; one that it
/// holds is counted.
#[test]
fn windows_of_zstd_are_counted() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    text(dir);
    let rows = std::fs::read(dir.join("t.tns")).unwrap();
    let frame = |file: File, rows: &[u8], window_log| {
        let mut encoder = zstd::Encoder::new(file, 1).unwrap();
        encoder.window_log(window_log).unwrap();
        encoder.write_all(rows).unwrap();
        encoder.finish().unwrap()
    };
    frame(File::create(dir.join("long.tns.zst")).unwrap(), &rows, 27);
    let help = ["takes at least", "window", "through -"];
    refuses(dir, "blco-pack", &["long.tns.zst", "--memory", "64MiB"], &help);
    packs(dir, 192, &["long.tns.zst"]);
    let half = rows[..rows.len() / 2].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
    let first = frame(File::create(dir.join("two.tns.zst")).unwrap(), &rows[..half], 20);
    frame(first, &rows[half..], 27);
    refuses(
        dir,
        "blco-pack",
        &["two.tns.zst", "--memory", "64MiB"],
        &["window of more than 8.0 MiB", "through -"],
    );
}

/// A chunk that the memory does not hold is not loaded.
#[test]
fn repairs_keep_within_their_memory() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let arguments = [
        "--dims",
        "8000,90000,500",
        "--nnz",
        "6000000",
        "--values",
        "uniform",
        "--chunk-bytes",
        "128MiB",
        "g.blco",
    ];
    assert!(peak(dir, "blco-gen", &arguments).0.status.success());
    let repair = ["g.blco", "--repair", "new.blco", "--memory"];
    refuses(
        dir,
        "blco-info",
        &[&repair[..], &["64MiB"]].concat(),
        &["chunk-000000", "of memory", "raise it"],
    );
    let (output, _) = peak(dir, "blco-info", &[&repair[..], &["256MiB"]].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("take at least"), "{message}");
    let (output, bytes) = peak(dir, "blco-info", &[&repair[..], &["640MiB"]].concat());
    assert!(output.status.success() && bytes <= 640 * MIB, "{bytes} bytes");
}
