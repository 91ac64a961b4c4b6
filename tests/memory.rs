//! Every program's memory, by the kernel's count (`VmHWM`), is within `--memory`, whatever the options. What cannot run within it is
//! refused in one line before anything is read, and the least that the line names is enough, but not much too large.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![allow(clippy::print_stderr, reason = "says what was skipped")]
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

/// What a plan counts for pages of code. How many a run has beyond that depends on the build and the machine: they are not its data.
const CODE: u64 = 9 * MIB;

/// The difference between a program's other pages (those of threads, and of variables) and what a plan counts for them, by build and machine.
const UNCOUNTED: u64 = 4 * MIB;

/// Runs a program to its end; its output, and the bytes that it held at its peak, with at most [`CODE`] of code.
fn peak(dir: &Path, program: &str, arguments: &[&str]) -> (Output, u64) {
    let path = cargo_bin(program);
    let mut command = Command::new(&path);
    command.current_dir(dir).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let process = format!("/proc/{}", child.id());
    let about = |what: &str| std::fs::read_to_string(format!("{process}/{what}")).unwrap_or_default();
    let (mut peak, mut code) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        let text = about("status");
        peak = text.lines().find_map(|line| kibibytes(line, "VmHWM:")).unwrap_or(peak);
        // Pages of code stay.
        code = code.max(code_bytes(&about("smaps"), path.to_str().unwrap()));
        std::thread::sleep(Duration::from_millis(1));
    }
    (child.wait_with_output().unwrap(), peak - code.saturating_sub(CODE))
}

/// The bytes of a line of /proc with this name.
fn kibibytes(line: &str, name: &str) -> Option<u64> {
    let number = line.strip_prefix(name)?.trim().trim_end_matches(" kB");
    Some(number.parse::<u64>().unwrap() << 10)
}

/// The bytes of a program and its libraries that are in memory as they lie in their files, by its `smaps`.
fn code_bytes(smaps: &str, program: &str) -> u64 {
    let (mut is_code, mut bytes) = (false, 0);
    for line in smaps.lines() {
        if line.split(' ').next().is_some_and(|word| !word.ends_with(':')) {
            is_code = line.ends_with(program) || line.contains(".so");
        } else if is_code {
            bytes += kibibytes(line, "Rss:").unwrap_or(0);
            // Variables, which are written to.
            bytes -= kibibytes(line, "Anonymous:").unwrap_or(0);
        }
    }
    bytes
}

/// Packs within `memory` MiB and the few per cent that the allocator keeps, at least once in three times: the memory that waiting
/// threads make it keep depends on the load of the machine.
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

/// Refuses with one line that has each of `words`, with little memory, and leaves nothing behind.
fn refuses(dir: &Path, program: &str, arguments: &[&str], words: &[&str]) {
    let before = tree(dir);
    refuses_in_one_line(dir, program, arguments, words);
    assert!(tree(dir) == before);
}

/// The same without a look at what is left, because files are too long.
fn refuses_in_one_line(dir: &Path, program: &str, arguments: &[&str], words: &[&str]) {
    let (output, bytes) = peak(dir, program, arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(bytes <= 64 * MIB, "{arguments:?}: {bytes} bytes");
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
    // Fibers that memory does not hold.
    let of_fibers =
        ["t.tns", "-o", "m.blco", "--format", "mmcsf", "--assign", "static", "--chunk-bytes", "2MiB"];
    packs(dir, 64, &of_fibers);
    let assigned = identity(&dir.join("m.blco"));
    for (memory, threads) in [(64, "16"), (160, "32"), (1024, "2")] {
        packs(dir, memory, &[&of_fibers[..], &["--threads", threads]].concat());
        assert!(identity(&dir.join("m.blco")) == assigned, "{memory} MiB, {threads} threads");
    }
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

/// A window that exceeds the memory is refused, in the first frame and in a later one. A window that fits
/// is counted.
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

/// A chunk that exceeds the memory is not loaded.
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

/// The size after `at least` in a message.
fn least_named(message: &str) -> String {
    let named = message.split_once("at least ").unwrap().1;
    let words: Vec<&str> = named.split([' ', ',', ';', '\n']).take(2).collect();
    words.concat()
}

/// Removes the output of an earlier run.
fn without_output(dir: &Path) {
    for name in ["out", "out.tns", "out.npz", "points"] {
        drop(std::fs::remove_dir_all(dir.join(name)));
        drop(std::fs::remove_file(dir.join(name)));
    }
}

/// A call without memory is refused, and succeeds with the least that was named. It takes that, up to a fifth and differences by build.
fn names_the_least(dir: &Path, program: &str, arguments: &[&str]) {
    without_output(dir);
    refuses(dir, program, &[arguments, &["--memory", "1MiB"]].concat(), &["at least", "raise it"]);
    let (output, _) = peak(dir, program, &[arguments, &["--memory", "1MiB"]].concat());
    let least = least_named(&String::from_utf8_lossy(&output.stderr));
    let bytes = parse_size::parse_size(&least).unwrap();
    let mut peaks = Vec::new();
    let keeps = |_| {
        without_output(dir);
        let (output, peak) = peak(dir, program, &[arguments, &["--quiet", "--memory", &least]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{program} {arguments:?} in {least}: {message}");
        peaks.push(peak / 1024);
        peak <= bytes + UNCOUNTED && peak + UNCOUNTED >= bytes / 5 * 4
    };
    assert!((0..3).any(keeps), "{program} {arguments:?}: {least}, {peaks:?} KiB");
}

/// Tables whose labels alone exceed it, in epochs that are merged.
#[test]
fn tables_keep_to_their_memory() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let mut out = std::io::BufWriter::new(File::create(dir.join("t.csv")).unwrap());
    writeln!(out, "user,item,at,x").unwrap();
    for i in 0..1_000_000u64 {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let (user, item, at) = (mixed % 700_003, mixed % 350_003, 1_400_000_000 + i);
        writeln!(out, "a user of number {user},an item that is {item},{at},{}", i % 5).unwrap();
    }
    out.into_inner().unwrap().sync_all().unwrap();
    for memory in [64, 96, 256] {
        packs(dir, memory, &["t.csv", "--modes", "user,item,at:day", "--value", "x"]);
    }
    let least =
        ["t.csv", "--modes", "user,item,at:day", "--threads", "64", "--memory", "64MiB", "-o", "o.blco"];
    refuses(dir, "blco-pack", &least, &["--memory", "reading t.csv takes at least"]);
}

/// A tensor as text, as stores of both formats, and two models for it.
fn stores(dir: &Path) {
    let succeeds = |program: &str, arguments: &[&str]| {
        let (output, _) = peak(dir, program, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let dims = ["--dims", "30000,60000,700"];
    let nonzeros = ["--nnz", "400000", "--skew", "2", "--values", "1..9", "t.tns"];
    succeeds("blco-gen", &[&dims[..], &nonzeros].concat());
    succeeds("blco-pack", &["t.tns", "-o", "t.blco", "--chunk-bytes", "2MiB"]);
    succeeds("blco-pack", &["t.tns", "-o", "z.blco", "--chunk-bytes", "2MiB", "--zstd", "1"]);
    succeeds("blco-pack", &["t.tns", "-o", "t.hocfs", "--chunk-bytes", "2MiB"]);
    for seed in ["1", "2"] {
        let model =
            ["--planted-rank", "24", "--support", "3", "--seed", seed, "--model", seed, "m.tns", "--force"];
        succeeds("blco-gen", &[&dims[..], &model].concat());
    }
}

#[test]
fn looking_and_exporting_take_what_they_name() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    stores(dir);
    names_the_least(dir, "blco-info", &["t.blco"]);
    names_the_least(dir, "blco-info", &["z.blco", "--threads", "1"]);
    names_the_least(dir, "blco-info", &["t.blco", "--verify"]);
    names_the_least(dir, "blco-info", &["t.hocfs", "--verify"]);
    names_the_least(dir, "blco-info", &["t.blco", "--storage", "--storage-dir", "."]);
    names_the_least(dir, "blco-export", &["t.blco", "out.tns"]);
    names_the_least(dir, "blco-export", &["z.blco", "out.npz"]);
}

#[test]
fn running_takes_what_it_names() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    stores(dir);
    let run = |arguments: &[&str]| {
        names_the_least(dir, "blco-run", &[arguments, &["--backend", "cpu"]].concat());
    };
    run(&["t.blco", "--modes", "all", "--output", "out"]);
    run(&["t.hocfs", "--modes", "2", "--rank", "40", "--precision", "f32"]);
    run(&["t.blco", "--modes", "all", "--factors", "1"]);
    run(&["t.blco", "--modes", "2", "--check", "t.tns"]);
    let ttv = |arguments: &[&str]| run(&[&["--op", "ttv", "--temp-dir", "."], arguments].concat());
    ttv(&["t.hocfs", "--modes", "3", "--output", "out"]);
    ttv(&["t.hocfs", "--modes", "3", "--output", "out", "--check", "t.tns"]);
    ttv(&["t.blco", "--modes", "1", "--output", "out"]);
    ttv(&["t.blco", "--modes", "1", "--check", "t.tns"]);
    ttv(&["t.blco", "--modes", "1,3", "--output", "out"]);
    ttv(&["t.blco", "--modes", "all"]);
    let ttm = |arguments: &[&str]| run(&[&["--op", "ttm", "--temp-dir", "."], arguments].concat());
    ttm(&["t.blco", "--modes", "1", "--output", "out"]);
    ttm(&["t.hocfs", "--modes", "3", "--rank", "40", "--output", "out"]);
    ttm(&["t.blco", "--modes", "3", "--precision", "f32", "--check", "t.tns"]);
    run(&["t.blco", "--op", "ttmc", "--ranks", "2,3,4", "--output", "out"]);
    run(&["t.hocfs", "--op", "ttmc", "--modes", "3", "--ranks", "16,16,1", "--precision", "f32"]);
    run(&["t.blco", "--op", "norm"]);
    run(&["t.blco", "--op", "inner", "--with", "t.hocfs"]);
}

/// A result of SpTTM that is many times larger than the memory.
#[test]
fn results_that_memory_does_not_hold_are_written() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    stores(dir);
    for store in ["t.blco", "t.hocfs"] {
        without_output(dir);
        let arguments =
            [store, "--op", "ttm", "--modes", "3", "--rank", "256", "--threads", "2", "--output", "out"];
        let more = ["--memory", "96MiB", "--backend", "cpu", "--quiet"];
        let (output, bytes) = peak(dir, "blco-run", &[&arguments[..], &more].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{store}: {message}");
        let written = std::fs::metadata(dir.join("out/values.npy")).unwrap().len();
        assert!(written > 400 * MIB, "{store}: {written} bytes are too few for this test");
        assert!(bytes <= 96 * MIB + UNCOUNTED, "{store}: {bytes} bytes");
    }
}

/// Passes from mode-sorted copies, and building these, stay within their plan.
#[test]
fn mode_sorted_copies_keep_within_their_memory() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    stores(dir);
    // Few nonzeros in many rows.
    let long = ["--dims", "9000,8000000", "--nnz", "20000", "--seed", "3", "long.blco"];
    assert!(peak(dir, "blco-gen", &long).0.status.success());
    let keeps = |program: &str, arguments: &[&str]| {
        let arguments = [&["--backend", "cpu", "--device-order", "target"], arguments].concat();
        let (plan, _) = peak(dir, program, &[&arguments[..], &["--plan", "--json"]].concat());
        let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
        assert_eq!(plan["mode_sorted"]["built"], true, "{plan}");
        let bytes = plan["plan"]["memory_bytes"].as_u64().unwrap();
        let given = bytes.to_string();
        let mut peaks = Vec::new();
        let keeps = |_| {
            let (output, peak) =
                peak(dir, program, &[&arguments[..], &["--memory", &given, "--json"]].concat());
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["mode_sorted"]["built"], true, "{report}");
            peaks.push(peak);
            peak <= bytes + UNCOUNTED
        };
        assert!((0..3).any(keeps), "{arguments:?}: {peaks:?} of {bytes} bytes");
        let less = (bytes - plan["mode_sorted"]["bytes"].as_u64().unwrap()).to_string();
        let (plan, _) =
            peak(dir, program, &[&arguments[..], &["--plan", "--json", "--memory", &less]].concat());
        let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
        assert_eq!(plan["mode_sorted"]["why"], "there is no room for them", "{plan}");
    };
    for threads in ["1", "2", "16"] {
        keeps("blco-run", &["t.blco", "--modes", "all", "--repeat", "3", "--threads", threads]);
    }
    keeps("blco-run", &["t.blco", "--modes", "2", "--repeat", "3", "--precision", "f32", "--rank", "32"]);
    keeps("blco-run", &["long.blco", "--modes", "2", "--repeat", "3", "--rank", "1"]);
    keeps("blco-cpd", &["t.blco", "--rank", "8", "--max-iters", "3", "--no-output"]);
}

#[test]
fn decomposing_takes_what_it_names() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    stores(dir);
    let cpd = |arguments: &[&str]| names_the_least(dir, "blco-cpd", arguments);
    let run = |arguments: &[&str]| {
        cpd(&[&["t.blco", "--max-iters", "1", "--backend", "cpu", "--force"], arguments].concat());
    };
    run(&["--rank", "24", "--output", "out"]);
    run(&["--rank", "24", "--precision", "f32", "--nonneg"]);
    run(&["--rank", "24", "--starts", "2", "--checkpoint", "points"]);
    run(&["--factors", "1"]);
    cpd(&["--score", "1", "2"]);
}

/// Factors of 300 MB, a check's text with an element per nonzero, chunks whose elements come all at once: none of it is held.
#[test]
fn little_memory_is_kept_or_refused_before_anything_is_held() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    stores(dir);
    let write = |name: &str, rows: u64| {
        std::fs::create_dir_all(dir.join("large")).unwrap();
        let text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 400), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.as_bytes());
        let file = File::create(dir.join("large").join(name)).unwrap();
        (&file).write_all(&bytes).unwrap();
        file.set_len(bytes.len() as u64 + rows * 400 * 8).unwrap();
    };
    write("mode-1.npy", 30_000);
    write("mode-2.npy", 60_000);
    write("mode-3.npy", 700);
    let given = ["--factors", "large", "--memory", "64MiB"];
    refuses_in_one_line(
        dir,
        "blco-run",
        &[&["t.blco"], &given[..]].concat(),
        &["needs at least", "smaller rank"],
    );
    refuses_in_one_line(
        dir,
        "blco-cpd",
        &[&["t.blco"], &given[..]].concat(),
        &["needs at least", "smaller rank"],
    );
    refuses_in_one_line(
        dir,
        "blco-cpd",
        &["--score", "large", "large", "--memory", "64MiB"],
        &["needs at least", "models"],
    );
    for arguments in [
        &["t.hocfs", "--op", "ttv", "--modes", "3", "--check", "t.tns", "--output", "out"][..],
        &["t.blco", "--op", "ttv", "--modes", "1", "--check", "t.tns", "--output", "out"],
    ] {
        without_output(dir);
        let arguments = [arguments, &["--memory", "64MiB", "--temp-dir", ".", "--backend", "cpu"]].concat();
        let (output, bytes) = peak(dir, "blco-run", &arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && bytes <= 64 * MIB, "{arguments:?}: {bytes} bytes, {message}");
    }
}

/// Found by hostile tests: counters for every row of every mode took 4.2 GB.
#[test]
fn rows_that_do_not_occur_take_no_memory() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let last = "268435456 268435456 268435456 268435456 1\n";
    std::fs::write(dir.join("one.tns"), last).unwrap();
    std::fs::write(dir.join("two.tns"), format!("1 1 1 1 1\n{last}")).unwrap();
    for name in ["one", "two"] {
        let (text, store) = (format!("{name}.tns"), format!("{name}.blco"));
        assert!(peak(dir, "blco-pack", &[&text]).0.status.success());
        let (output, bytes) = peak(dir, "blco-info", &[&store, "--verify", "--json", "--memory", "64MiB"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["verified"], true);
        assert_eq!(report["statistics"]["modes"][3]["rows"], if name == "one" { 1 } else { 2 });
        assert!(bytes <= 64 * MIB, "{name}: {bytes} bytes");
    }
}

/// A manifest's length is not trusted before its preamble is. If it does not fit, the refusal names the least that does.
#[test]
fn long_manifests_take_no_memory_that_is_not_there() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    assert!(peak(dir, "blco-gen", &["--dims", "9,9,9", "--nnz", "99", "s.blco"]).0.status.success());
    let path = dir.join("s.blco/manifest");
    let whole = std::fs::read(&path).unwrap();
    let lengthen = |bytes: u64| {
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(bytes).unwrap();
    };
    lengthen(2_000_000_000);
    let programs: [(&str, &[&str]); 4] = [
        ("blco-info", &["s.blco", "--quick"]),
        ("blco-export", &["s.blco", "-"]),
        ("blco-run", &["s.blco"]),
        ("blco-cpd", &["s.blco"]),
    ];
    for (program, arguments) in programs {
        refuses_in_one_line(dir, program, arguments, &["length differs"]);
    }
    // A manifest that claims to be that long: two million chunks.
    let mut preamble = whole[..64].to_vec();
    preamble[16..24].copy_from_slice(&(272_000_000u64 - 64).to_le_bytes());
    let checksum = xxhash_rust::xxh3::xxh3_64(&preamble[..56]);
    preamble[56..64].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, [&preamble[..], &whole[64..]].concat()).unwrap();
    lengthen(272_000_000);
    for (program, arguments) in programs {
        let arguments = [arguments, &["--memory", "64MiB"]].concat();
        refuses_in_one_line(dir, program, &arguments, &["needs at least", "list of chunks"]);
    }
    let repair = ["s.blco", "--repair", "new.blco", "--memory", "64MiB"];
    refuses_in_one_line(dir, "blco-info", &repair, &["manifest: takes 518", "raise it"]);
}

/// The git log in 64 MiB: `BLCO_LARGE=1`.
#[test]
fn sixteen_million_nonzeros_fit_in_little_memory() {
    let data = "../shared/data/gitlog-author-file-token-month.tns.zst";
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join(data);
    if std::env::var_os("BLCO_LARGE").is_none() || !data.is_file() {
        eprintln!("skipped: BLCO_LARGE=1 takes the git log, where that is");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let mut decoder = zstd::Decoder::new(File::open(data).unwrap()).unwrap();
    decoder.window_log_max(31).unwrap();
    std::io::copy(&mut decoder, &mut File::create(dir.join("t.tns")).unwrap()).unwrap();
    let calls: [(&str, &[&str]); 11] = [
        ("blco-pack", &["t.tns", "-o", "t.blco"]),
        ("blco-pack", &["t.tns", "-o", "t.hocfs", "--chunk-bytes", "2MiB"]),
        ("blco-info", &["t.blco", "--verify"]),
        ("blco-info", &["t.hocfs", "--verify"]),
        ("blco-info", &["t.blco", "--storage", "--storage-dir", "."]),
        ("blco-info", &["t.hocfs", "--repair", "new.hocfs"]),
        ("blco-export", &["t.blco", "out.tns"]),
        ("blco-export", &["t.hocfs", "out.npz"]),
        ("blco-run", &["t.hocfs", "--op", "ttv", "--modes", "4", "--output", "out", "--backend", "cpu"]),
        ("blco-run", &["t.blco", "--op", "ttv", "--modes", "1", "--output", "out", "--backend", "cpu"]),
        ("blco-run", &["t.blco", "--op", "ttv", "--modes", "4", "--check", "t.tns", "--backend", "cpu"]),
    ];
    for (program, arguments) in calls {
        without_output(dir);
        let (output, bytes) = peak(dir, program, &[arguments, &["--quiet", "--memory", "64MiB"]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && bytes < 80 * MIB, "{program} {arguments:?}: {bytes}, {message}");
    }
    names_the_least(dir, "blco-run", &["t.blco", "--modes", "all", "--backend", "cpu"]);
    names_the_least(dir, "blco-cpd", &["t.blco", "--max-iters", "1", "--backend", "cpu", "--no-output"]);
}
