//! Establishes that the counts of `blco-info --compare` equal a plain count of the text, by the papers' formulas and in the bytes of stores that
//! `blco-pack` writes; that `blco-run --compare` computes from every format, checks, keeps only the stores that `--keep` asks for.

use crate::common::tree;
use crate::programs::{command, interrupt, program};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const DIMS: [u64; 3] = [40, 7, 90];

/// A tensor of about 3,000 nonzeros, with fibers of many lengths, as text and as a store.
fn tensor() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let made =
        ["--dims", "40,7,90", "--nnz", "3000", "--skew", "2", "--values", "1..5", "--seed", "5", "t.tns"];
    program("blco-gen", dir.path(), &made);
    program("blco-pack", dir.path(), &["t.tns", "-o", "t.blco", "--dims", "40,7,90"]);
    std::fs::create_dir(dir.path().join("temporary")).unwrap();
    dir
}

fn rows(dir: &Path) -> Vec<[u64; 3]> {
    let text = std::fs::read_to_string(dir.join("t.tns")).unwrap();
    let row = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        std::array::from_fn(|_| numbers.next().unwrap())
    };
    // Repeated coordinates are added up.
    let rows: BTreeSet<[u64; 3]> = text.lines().filter(|line| !line.starts_with('#')).map(row).collect();
    rows.into_iter().collect()
}

/// The number of nonzeros for each choice of indices in `modes`, from 0.
fn lengths(rows: &[[u64; 3]], modes: &[usize]) -> BTreeMap<Vec<u64>, u64> {
    let mut found = BTreeMap::new();
    for row in rows {
        *found.entry(modes.iter().map(|&mode| row[mode]).collect()).or_default() += 1;
    }
    found
}

fn format<'r>(report: &'r Value, name: &str) -> &'r Value {
    report["formats"].as_array().unwrap().iter().find(|format| format["format"] == name).unwrap()
}

#[test]
fn slices_fibers_and_bytes_are_those_of_a_plain_count() {
    let dir = tensor();
    let rows = rows(dir.path());
    let nnz = rows.len() as u64;
    let args = ["t.tns", "--dims", "40,7,90", "--compare", "--storage-dir", "temporary"];
    let report = program("blco-info", dir.path(), &args);
    assert_eq!(report["nnz"], nnz);
    // The order of modes of each tree of csf: the root, then the others by dims.
    let (mut words, mut split) = (0, 0);
    for (tree, levels) in [[0, 1, 2], [1, 0, 2], [2, 1, 0]].into_iter().enumerate() {
        let found = &format(&report, "csf")["trees"][tree];
        assert_eq!(found["levels"], serde_json::json!(levels.map(|mode| mode + 1)));
        let (slices, fibers) = (lengths(&rows, &levels[..1]), lengths(&rows, &levels[..2]));
        assert_eq!((&found["slices"], &found["fibers"]), (&slices.len().into(), &fibers.len().into()));
        assert_eq!(found["longest"], *fibers.values().max().unwrap());
        let mut by_length = vec![0; found["lengths"].as_array().unwrap().len()];
        for length in fibers.values() {
            by_length[length.ilog2() as usize] += 1;
        }
        assert_eq!(found["lengths"], serde_json::json!(by_length));
        words += 2 * (slices.len() + fibers.len()) as u64 + nnz;
        split += 2 * fibers.values().map(|length| length.div_ceil(128) - 1).sum::<u64>();
    }
    let paper = |name: &str| format(&report, name)["paper_index_bytes"].as_u64().unwrap();
    assert_eq!((paper("csf"), paper("bcsf")), (4 * words, 4 * (words + split)));
    assert_eq!(paper("blco"), 8 * nnz);
    assert_eq!(paper("fcoo"), 3 * (8 * nnz + nnz.div_ceil(8) + nnz.div_ceil(64)));
    let hybrid: u64 =
        [[0, 1, 2], [1, 0, 2], [2, 1, 0]].iter().map(|levels| hybrid_words(&rows, *levels)).sum();
    assert_eq!(paper("hbcsf"), 4 * hybrid);
    let assigned = &format(&report, "mmcsf");
    let of_trees: u64 =
        assigned["trees"].as_array().unwrap().iter().map(|t| t["nnz"].as_u64().unwrap()).sum();
    assert_eq!((of_trees, paper("mmcsf")), (nnz, 4 * (3 * assigned["fibers"].as_u64().unwrap() + nnz)));
    for (name, options) in
        [("blco", &[][..]), ("csf", &[]), ("csf-one", &["--trees", "one"]), ("mmcsf", &[]), ("fcoo", &[])]
    {
        let target = format!("a-{name}.blco");
        let all = ["t.blco", "-o", &target, "--format", name.trim_end_matches("-one")];
        let packed = program("blco-pack", dir.path(), &[&all, options].concat());
        assert_eq!(format(&report, name)["bytes"], packed["bytes"], "{name}");
        let index = format(&report, name)["index_bytes"].as_u64().unwrap();
        assert!(index > 0 && index < packed["bytes"].as_u64().unwrap());
    }
    let reason = report["reason"].as_str().unwrap();
    assert!(report["recommended"].is_string() && reason.contains("nonzeros") || reason.contains("one copy"));
    // The store gives the same as its text, and no file stays.
    let of_store = program("blco-info", dir.path(), &["t.blco", "--compare", "--storage-dir", "temporary"]);
    assert_eq!(of_store["formats"], report["formats"]);
    assert!(tree(&dir.path().join("temporary")).is_empty());
}

/// Section V of the paper: slices of one nonzero as coordinates, of fibers of one as slices of coordinates, the rest as trees.
fn hybrid_words(rows: &[[u64; 3]], levels: [usize; 3]) -> u64 {
    let fibers = lengths(rows, &levels[..2]);
    let of_slice = |slice: &[u64]| -> Vec<u64> {
        fibers.iter().filter(|(at, _)| at[..1] == *slice).map(|(_, &length)| length).collect()
    };
    let words = |(slice, &nnz): (&Vec<u64>, &u64)| match &of_slice(slice)[..] {
        [1] => 3,
        each if each.iter().all(|&length| length == 1) => 2 + 2 * nnz,
        each => 2 + 2 * each.iter().map(|length| length.div_ceil(128)).sum::<u64>() + nnz,
    };
    lengths(rows, &levels[..1]).iter().map(words).sum()
}

#[test]
fn text_is_read_as_it_is_told_and_nothing_else_is() {
    let dir = tensor();
    let last = |mode: usize| rows(dir.path()).iter().map(|row| row[mode]).max().unwrap();
    let base = program("blco-info", dir.path(), &["t.tns", "--compare", "--index-base", "0"]);
    assert_eq!(base["dims"], serde_json::json!([0, 1, 2].map(|mode| last(mode) + 1)));
    for (args, said) in [
        (&["t.blco", "--compare", "--index-base", "0"][..], "--index-base describes coordinate text"),
        (&["t.blco", "--dims", "3,3"], "--dims describes coordinate text"),
        (&["t.blco", "--storage-dir", "."], "--storage-dir is for"),
        (&["t.tns", "--compare", "--memory", "1MiB"], "--memory"),
    ] {
        let output = command("blco-info", dir.path(), args).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.contains(said), "{args:?}: {told}");
    }
}

/// `blco-run` with temporary files in `temporary`.
fn run(dir: &Path, args: &[&str]) -> std::process::Output {
    let mut run = command("blco-run", dir, args);
    run.args(["--backend", "cpu"]).env("TMPDIR", dir.join("temporary")).output().unwrap()
}

#[test]
fn every_format_computes_the_same_and_nothing_stays() {
    let dir = tensor();
    for precision in ["f64", "f32"] {
        let args = [
            "t.blco",
            "--compare",
            "all",
            "--rank",
            "5",
            "--precision",
            precision,
            "--repeat",
            "2",
            "--json",
        ];
        let output = run(dir.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let formats = report["formats"].as_array().unwrap();
        assert_eq!(formats.len(), 8);
        for format in formats {
            let modes = format["modes"].as_array().unwrap();
            assert_eq!(modes.len(), DIMS.len());
            assert!(
                modes
                    .iter()
                    .all(|mode| mode["check"]["holds"] == true && mode["seconds"].as_f64() > Some(0.0))
            );
            assert_eq!(format["build_seconds"].is_null(), format["format"] == "blco");
            assert!(format["all_seconds"].as_f64() > Some(0.0) && format["backend"] == "cpu");
        }
    }
    assert!(tree(&dir.path().join("temporary")).is_empty());
}

#[test]
fn kept_stores_are_used_again_and_those_of_others_are_refused() {
    let dir = tensor();
    let args = ["t.blco", "--compare", "csf-one,mmcsf", "--keep", "kept", "--modes", "1,3"];
    let output = run(dir.path(), &args);
    assert!(output.status.success());
    let kept = tree(&dir.path().join("kept"));
    let told = String::from_utf8(run(dir.path(), &args).stdout).unwrap();
    assert!(told.contains("mmcsf") && told.contains("mode 3") && !told.contains(" s  "), "{told}");
    assert!(!kept.is_empty() && tree(&dir.path().join("kept")) == kept);
    program("blco-gen", dir.path(), &["--dims", "40,7,90", "--nnz", "300", "u.blco"]);
    let refused = run(dir.path(), &["u.blco", "--compare", "mmcsf", "--keep", "kept"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && told.contains("holds another tensor or format"), "{told}");
    for (list, said) in [("csf,csf", "names csf twice"), ("coo", "\"coo\" is not one of blco")] {
        let refused = run(dir.path(), &["t.blco", "--compare", list]);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && told.contains(said), "{told}");
    }
    let refused = run(dir.path(), &["t.blco", "--compare", "all", "--op", "norm"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// A full disk while stores are packed, and an interrupt while passes run, leave nothing.
#[test]
fn a_full_disk_and_an_interrupt_leave_nothing() {
    let dir = tensor();
    let before = tree(dir.path());
    for nth in [0, 2, 5, 9] {
        let mut full = command("blco-run", dir.path(), &["t.blco", "--compare", "all", "--backend", "cpu"]);
        full.env("TMPDIR", dir.path().join("temporary")).env("BLCO_FAULT", format!("write:{nth}:28"));
        let output = full.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tree(dir.path()) == before, "write {nth}");
    }
    let forever = ["t.blco", "--compare", "csf", "--repeat", "4000000000", "--quiet", "--backend", "cpu"];
    let mut command = command("blco-run", dir.path(), &forever);
    let mut child = command.env("TMPDIR", dir.path().join("temporary")).spawn().unwrap();
    let is_packed = || {
        let dirs = std::fs::read_dir(dir.path().join("temporary")).unwrap().flatten();
        dirs.into_iter().any(|of| of.path().join("csf.blco/manifest").exists())
    };
    for _ in 0..2000 {
        if is_packed() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(is_packed());
    let signal = format!("-{}", interrupt());
    assert!(
        std::process::Command::new("kill")
            .args([&signal, &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(tree(dir.path()) == before);
}

/// A store of trees to which nonzeros are assigned by the whole tensor's fibers has the same bytes whether memory holds them or not; by
/// what is left of them, that is refused. A comparison takes what memory allows.
#[test]
fn fibers_of_the_whole_tensor_take_no_more_memory_than_sorting() {
    let dir = tempfile::tempdir().unwrap();
    let store = ["--dims", "600,600,6000", "--nnz", "1500k", "--skew", "2", "m.blco"];
    program("blco-gen", dir.path(), &store);
    let packed = |target: &str, assign: &str, memory: &str| {
        let words = ["m.blco", "-o", target, "--format", "mmcsf", "--assign", assign, "--memory", memory];
        program("blco-pack", dir.path(), &[&words[..], &["--chunk-bytes", "1MiB"]].concat())
    };
    let [little, much] =
        [("little", "64MiB"), ("much", "1GiB")].map(|(to, memory)| packed(to, "static", memory));
    assert_eq!(little["digest"], much["digest"]);
    assert_ne!(packed("dynamic", "dynamic", "1GiB")["digest"], much["digest"]);
    let spilled = |of: &Value| ["runs", "bytes"].map(|what| of["spilled"][what].as_u64().unwrap());
    // Once for each mode, and in the order of the store again, with lengths and with leaf modes, at two bytes each.
    let [runs, bytes] = spilled(&little);
    assert!(runs > 1 && bytes > 5 * 2 * little["nnz"].as_u64().unwrap(), "{little}");
    assert_eq!(spilled(&much), [0, 0]);
    let planned = |memory: &str| {
        let words = ["m.blco", "-o", "x", "--format", "mmcsf", "--assign", "static", "--memory", memory];
        let plan =
            program("blco-pack", dir.path(), &[&words[..], &["--chunk-bytes", "1MiB", "--plan"]].concat());
        (plan["in_memory"].as_bool().unwrap(), plan["temporary_bytes"].as_u64().unwrap())
    };
    let (in_memory, temporary_bytes) = planned("64MiB");
    assert!(!in_memory && temporary_bytes >= little["spilled"]["bytes_peak"].as_u64().unwrap() / 2);
    assert_eq!(planned("1GiB"), (true, 0));
    program("blco-info", dir.path(), &["little", "--verify"]);
    let compared = |memory: &str| {
        let report = program("blco-info", dir.path(), &["m.blco", "--compare", "--memory", memory]);
        format(&report, "mmcsf")["fibers"].as_u64().unwrap()
    };
    assert_ne!(
        compared("95MiB"),
        compared("1GiB"),
        "fewer fibers are left where each is looked at as it is then"
    );
}

/// The memory that is said to lack is enough, and where memory holds the nonzeros not a little less is.
#[test]
fn what_assigning_lacks_is_the_least_that_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let lacks = |store: &str, mib: u64| -> Option<u64> {
        let words = ["-o", "x.blco", "--force", "--format", "mmcsf", "--chunk-bytes", "64KiB"];
        let mut pack = command("blco-pack", dir.path(), &words);
        let output = pack.args([store, "--threads", "2", "--memory", &format!("{mib}MiB")]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let more = said
            .strip_suffix(".0 MiB more\n")
            .and_then(|said| said.rsplit_once("; choose --assign static, or give "));
        assert!(output.status.success() || more.is_some(), "{mib} MiB: {said}");
        more.map(|(_, more)| more.parse().unwrap())
    };
    // A reader of text takes part of what more memory there is.
    for (store, nnz, is_least) in
        [("held.blco", "1500k", true), ("spilled.blco", "3M", false), ("text.tns", "1500k", false)]
    {
        program("blco-gen", dir.path(), &["--dims", "600,600,6000", "--nnz", nnz, store]);
        let more = lacks(store, 64).unwrap();
        assert_eq!(lacks(store, 64 + more), None, "{store}");
        assert!(!is_least || lacks(store, 64 + more - 2).is_some(), "{store}");
    }
}
