//! Establishes that what `blco-run --op ttm`, `ttmc`, `ttv` along several modes, `inner` and `norm` write is what numpy computes from the same text
//! (`tools/products_oracle.py`, which is independent of the engine), whatever the format, threads, chunks and memory; that a wrong result is
//! detected; and that impossible requests end in one line.

use crate::common::tree;
use crate::programs::{program, python, script};
use assert_cmd::cargo::cargo_bin;
use std::path::Path;
use std::process::Command;

/// A tensor's text, its stores, and factors for it, in a directory.
struct Bench {
    dir: tempfile::TempDir,
    python: String,
    order: usize,
}

impl Bench {
    /// `None` without numpy.
    fn new(dims: &str, nnz: &str, ranks: &str) -> Option<Self> {
        let bench =
            Self { dir: tempfile::tempdir().unwrap(), python: python()?, order: dims.split(',').count() };
        for (name, seed, nnz) in [("t", "3", nnz), ("u", "4", "5000")] {
            let made = ["--dims", dims, "--nnz", nnz, "--values", "uniform", "--skew", "2", "--seed", seed];
            let text = format!("{name}.tns");
            program("blco-gen", bench.path(), &[&made[..], &[&text]].concat());
            for (format, main_mode, store) in
                [("blco", "", "blco"), ("hocfs", "1", "main1"), ("hocfs", "2", "main2")]
            {
                let store = format!("{name}-{store}");
                let mut args = vec![
                    &text[..],
                    "-o",
                    &store,
                    "--dims",
                    dims,
                    "--format",
                    format,
                    "--chunk-bytes",
                    "300000",
                ];
                if format == "hocfs" {
                    args.extend(["--main-mode", main_mode]);
                }
                program("blco-pack", bench.path(), &args);
            }
        }
        bench.oracle(&["make", "f", "--dims", dims, "--ranks", ranks]);
        Some(bench)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs the oracle, which must agree.
    fn oracle(&self, args: &[&str]) {
        let output = script(&self.python, "products_oracle.py", self.path(), args);
        let told = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&told));
    }

    fn run(&self, args: &[&str]) -> serde_json::Value {
        program("blco-run", self.path(), &[args, &["--backend", "cpu"]].concat())
    }

    /// One mode of every operation that has one.
    fn check_mode(&self, mode: usize) {
        let (number, matrix) = (mode.to_string(), format!("f/mode-{mode}.npy"));
        let mut wanted: Option<[Vec<u8>; 2]> = None;
        for (n, store) in ["t-blco", "t-main1", "t-main2"].into_iter().enumerate() {
            for precision in ["f64", "f32"] {
                let threads = (1 + (n + mode) % 3).to_string();
                let mut args =
                    vec![store, "--op", "ttm", "--modes", &number, "--matrix", &matrix, "--output", "ttm"];
                args.extend(["--force", "--precision", precision, "--threads", &threads]);
                // So little memory that nonzeros go to files.
                args.extend(if n == 0 { &["--memory", "24MiB"][..] } else { &[] });
                let report = self.run(&args);
                // Their leaves, with the other modes ascending above.
                let streams = [("t-main1", self.order), ("t-main2", 1)].contains(&(store, mode));
                assert_eq!(report["streamed"], streams, "{store}, mode {mode}");
                self.oracle(&[
                    "ttm",
                    "t.tns",
                    "--mode",
                    &number,
                    "--matrix",
                    &matrix,
                    "--result",
                    "ttm",
                    "--precision",
                    precision,
                ]);
                let files = ["coords", "values"]
                    .map(|name| std::fs::read(self.path().join(format!("ttm/{name}.npy"))).unwrap());
                if precision == "f64" {
                    let wanted = wanted.get_or_insert_with(|| files.clone());
                    assert!(files == *wanted, "{store}, mode {mode}: the same bytes");
                }
            }
        }
    }

    fn check(&self) {
        for mode in 1..=self.order {
            self.check_mode(mode);
        }
        for (store, precision) in [("t-blco", "f64"), ("t-main1", "f32"), ("t-main2", "f64")] {
            let args =
                [store, "--op", "ttmc", "--modes", "all", "--factors", "f", "--output", "ttmc", "--force"];
            self.run(&[&args[..], &["--precision", precision, "--threads", "3"]].concat());
            self.oracle(&["ttmc", "t.tns", "--factors", "f", "--result", "ttmc", "--precision", precision]);
        }
        // All modes but one, all of them, and two in another order than theirs.
        let sets: [Vec<usize>; 3] = [(2..=self.order).collect(), (1..=self.order).collect(), vec![2, 1]];
        for modes in sets {
            let names: Vec<String> = modes.iter().map(ToString::to_string).collect();
            let (names, vectors) =
                (names.join(","), modes.iter().map(|m| format!("f/vector-{m}.npy")).collect::<Vec<_>>());
            let vectors: Vec<&str> = vectors.iter().flat_map(|vector| ["--vector", vector]).collect();
            let args =
                [&["t-blco", "--op", "ttv", "--modes", &names, "--output", "ttv", "--force"], &vectors[..]]
                    .concat();
            let report = self.run(&[&args[..], &["--check", "t.tns", "--memory", "48MiB"]].concat());
            assert_eq!(report["check"]["holds"], true);
            let args =
                [&["ttv", "t.tns", "--modes", &names, "--result", "ttv/result.tns"], &vectors[..]].concat();
            self.oracle(&args);
        }
        for store in ["t-blco", "t-main2"] {
            let norm = self.run(&[store, "--op", "norm"]);
            let (result, recorded) = (norm["result"].as_f64().unwrap(), norm["recorded"].as_f64().unwrap());
            assert!((result - recorded).abs() <= 1e-12 * result);
            self.oracle(&["norm", "t.tns", &format!("--result={result}")]);
            let results: Vec<serde_json::Value> = ["u-main1", "u-blco"]
                .iter()
                .flat_map(|other| [[store, other], [other, store]])
                .map(|[a, b]| self.run(&[a, "--op", "inner", "--with", b])["result"].clone())
                .collect();
            assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
            self.oracle(&["inner", "t.tns", "u.tns", &format!("--result={}", results[0])]);
        }
    }
}

#[test]
fn every_operation_equals_numpy() {
    for (dims, nnz, ranks) in [
        ("300,4000", "30000", "3,5"),
        ("70,500,90", "40000", "4,2,8"),
        ("9,7,8,11", "5000", "2,3,1,4"),
        ("3,4,2,5,3,4,2,6", "3000", "2,1,3,2,1,2,2,3"),
    ] {
        if let Some(bench) = Bench::new(dims, nnz, ranks) {
            bench.check();
        }
    }
}

/// The oracle detects a slightly wrong number, missing or moved fibers, and wrong types.
#[test]
fn what_differs_is_seen() {
    let Some(bench) = Bench::new("30,40,50", "3000", "2,3,4") else { return };
    bench.run(&["t-blco", "--op", "ttm", "--modes", "2", "--matrix", "f/mode-2.npy", "--output", "ttm"]);
    bench.run(&["t-blco", "--op", "ttmc", "--modes", "2", "--factors", "f", "--output", "ttmc"]);
    let status =
        |args: &[&str]| script(&bench.python, "products_oracle.py", bench.path(), args).status.code();
    let ttm = ["ttm", "t.tns", "--mode", "2", "--matrix", "f/mode-2.npy", "--result", "ttm"];
    let ttmc = ["ttmc", "t.tns", "--factors", "f", "--result", "ttmc"];
    assert_eq!((status(&ttm), status(&ttmc)), (Some(0), Some(0)));
    let change = |file: &str, at: usize, args: &[&str]| {
        let path = bench.path().join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        std::fs::write(&path, changed).unwrap();
        assert_eq!(status(args), Some(1), "{file}, byte {at}");
        std::fs::write(&path, whole).unwrap();
    };
    // A number's second byte: off by 2^-40 or so. A fiber's coordinate.
    change("ttm/values.npy", 128 + 8 * 30 + 1, &ttm);
    change("ttm/coords.npy", 128 + 4 * 41, &ttm);
    change("ttmc/mode-2.npy", 128 + 8 * 7 + 1, &ttmc);
    assert_eq!(status(&[&ttm[..], &["--precision", "f32"]].concat()), Some(1));
    assert_eq!(status(&["norm", "t.tns", "--result=1"]), Some(1));
    assert_eq!(status(&["inner", "t.tns", "u.tns", "--result=nan"]), Some(1));
}

/// Runs `blco-run` in `dir`. Returns its status and output.
fn blco_run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(cargo_bin("blco-run"))
        .current_dir(dir)
        .args(args)
        .env_remove("BLCO_FAULT")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A NumPy file of f8 of these axes, all numbers `number`.
fn npy(dir: &Path, name: &str, shape: &str, numbers: usize, number: f64) {
    let text =
        format!("{:<117}\n", format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"));
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(text.as_bytes());
    bytes.extend(std::iter::repeat_n(number.to_le_bytes(), numbers).flatten());
    std::fs::write(dir.join(name), bytes).unwrap();
}

fn small() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.tns"), "1 1 1 2\n1 1 3 0.5\n2 3 1 -1\n2 3 2 0\n3 1 2 4\n").unwrap();
    std::fs::write(dir.path().join("o.tns"), "1 1 1 2\n1 1 4 0.5\n").unwrap();
    program("blco-pack", dir.path(), &["t.tns", "-o", "t.blco"]);
    program("blco-pack", dir.path(), &["t.tns", "-o", "h", "--format", "hocfs"]);
    program("blco-pack", dir.path(), &["o.tns", "-o", "o.blco"]);
    npy(dir.path(), "U.npy", "(3, 2)", 6, 0.5);
    npy(dir.path(), "row.npy", "(3,)", 3, 1.0);
    npy(dir.path(), "large.npy", "(3, 2)", 6, 3e38);
    npy(dir.path(), "short.npy", "(2, 2)", 4, 1.0);
    npy(dir.path(), "nan.npy", "(3, 2)", 6, f64::NAN);
    npy(dir.path(), "wide.npy", "(3, 2000000)", 0, 0.0);
    std::fs::create_dir(dir.path().join("f")).unwrap();
    for (mode, rank) in [(1, 2), (2, 1), (3, 4)] {
        npy(dir.path(), &format!("f/mode-{mode}.npy"), &format!("(3, {rank})"), 3 * rank, 1.0);
    }
    dir
}

/// The results and report of a tensor that can be checked by hand.
#[test]
fn results_and_reports() {
    let dir = small();
    let run = |args: &[&str]| program("blco-run", dir.path(), args);
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    for (store, streamed) in [("t.blco", false), ("h", true)] {
        let args = [store, "--op", "ttm", "--modes", "3", "--matrix", "U.npy", "--output", "y", "--force"];
        let report = run(&[&args[..], &["--check", "t.tns"]].concat());
        assert_eq!((&report["fibers"], &report["rank"], &report["mode"]), (&3.into(), &2.into(), &3.into()));
        assert_eq!((&report["streamed"], &report["check"]["holds"]), (&streamed.into(), &true.into()));
        let (coordinates, values) = (read("y/coords.npy"), read("y/values.npy"));
        assert!(
            String::from_utf8_lossy(&coordinates[..128])
                .contains("'<u4', 'fortran_order': False, 'shape': (3, 2)")
        );
        assert!(
            String::from_utf8_lossy(&values[..128])
                .contains("'<f8', 'fortran_order': False, 'shape': (3, 2)")
        );
        let rows: Vec<u32> =
            coordinates[128..].chunks(4).map(|x| u32::from_le_bytes(x.try_into().unwrap())).collect();
        let values: Vec<f64> =
            values[128..].chunks(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect();
        assert_eq!((rows, values), (vec![0, 0, 1, 2, 2, 0], vec![1.25, 1.25, -0.5, -0.5, 2.0, 2.0]));
        for (precision, overflows) in [("f32", true), ("f64", false)] {
            let report = run(&[
                store,
                "--op",
                "ttm",
                "--modes",
                "3",
                "--matrix",
                "large.npy",
                "--precision",
                precision,
            ]);
            let notes = report["notes"].as_array().unwrap();
            assert_eq!(notes.iter().any(|note| note == "the result overflows f32"), overflows, "{notes:?}");
        }
        let report = run(&[
            store,
            "--op",
            "ttmc",
            "--factors",
            "f",
            "--output",
            "y",
            "--force",
            "--check",
            "t.tns",
            "--repeat",
            "2",
        ]);
        assert_eq!(
            (&report["ranks"], &report["widths"]),
            (&serde_json::json!([2, 1, 4]), &serde_json::json!([4, 8, 2]))
        );
        assert!(report["check"].as_array().unwrap().iter().all(|check| check["holds"] == true));
        let values: Vec<f64> = read("y/mode-1.npy")[128..]
            .chunks(8)
            .map(|x| f64::from_le_bytes(x.try_into().unwrap()))
            .collect();
        assert_eq!(values, [[2.5; 4], [-1.0; 4], [4.0; 4]].concat());
        let report = run(&[
            store, "--op", "ttv", "--modes", "all", "--vector", "row.npy", "--vector", "row.npy", "--vector",
            "row.npy", "--output", "y", "--force",
        ]);
        assert_eq!((&report["elements"], &report["modes"]), (&1.into(), &serde_json::json!([1, 2, 3])));
        assert_eq!(read("y/result.tns"), b"5.5\n");
        assert_eq!(run(&[store, "--op", "norm"])["result"], 21.25f64.sqrt());
        assert_eq!(run(&[store, "--op", "inner", "--with", "t.blco"])["result"], 21.25);
        for (op, more) in [
            ("ttm", &["--modes", "2", "--rank", "3"][..]),
            ("ttmc", &[]),
            ("norm", &[]),
            ("inner", &["--with", "h"]),
        ] {
            let plan = run(&[&[store, "--op", op, "--plan"], more].concat());
            assert!(plan["plan"]["memory_bytes"].as_u64().unwrap() > 1 << 20 && plan["op"] == op, "{plan}");
            let text = blco_run(dir.path(), &[&[store, "--op", op, "--plan"], more].concat());
            assert!(text.0 == Some(0) && text.1.contains(&format!("{store}: {op}")), "{text:?}");
        }
    }
    // Another tensor than the text's: status 1.
    std::fs::write(dir.path().join("u.tns"), "1 1 1 2\n1 1 3 0.5\n2 3 1 -1\n2 3 2 1\n3 1 2 4\n").unwrap();
    for op in [&["--op", "ttm", "--modes", "3"][..], &["--op", "ttmc"], &["--op", "ttv", "--modes", "2,3"]] {
        let (status, out, error) = blco_run(dir.path(), &[&["t.blco", "--check", "u.tns"], op].concat());
        assert!(status == Some(1) && out.contains("DIFFERS") && error.is_empty(), "{out}{error}");
    }
}

/// Every impossible request ends with status 2 and one line, and leaves nothing.
#[test]
fn requests_that_cannot_be_are_refused() {
    let dir = small();
    let refuses = |args: &[&str], wanted: &str| {
        let before = tree(dir.path());
        let (status, out, error) = blco_run(dir.path(), args);
        assert_eq!((status, error.lines().count(), &out[..]), (Some(2), 1, ""), "{args:?}: {error}");
        assert!(error.starts_with("blco-run: ") && error.contains(wanted), "{args:?}: {error}");
        assert!(tree(dir.path()) == before, "{args:?}");
    };
    let misused = |args: &[&str], wanted: &str| {
        let before = tree(dir.path());
        let (status, _, error) = blco_run(dir.path(), args);
        assert!(status == Some(2) && error.contains(wanted), "{args:?}: {error}");
        assert!(tree(dir.path()) == before, "{args:?}");
    };
    let ttm = |more: &[&str], wanted: &str| {
        refuses(&[&["t.blco", "--op", "ttm", "--output", "z"], more].concat(), wanted);
    };
    ttm(&["--matrix", "U.npy"], "goes along one mode");
    ttm(&["--modes", "1,2"], "goes along one mode");
    ttm(&["--modes", "4"], "is not a mode");
    ttm(&["--modes", "3", "--matrix", "none.npy"], "none.npy");
    ttm(&["--modes", "3", "--matrix", "short.npy"], "is 2 x 2; a matrix for mode 3 has 3 rows");
    ttm(&["--modes", "3", "--matrix", "row.npy"], "has 1 axes; a factor has 2");
    ttm(&["--modes", "3", "--matrix", "nan.npy"], "holds NaN in row 0");
    ttm(&["--modes", "3", "--matrix", "wide.npy"], "cut off");
    ttm(&["--modes", "3", "--repeat", "2"], "--repeat is not an option of --op ttm");
    ttm(&["--modes", "3", "--vector", "row.npy"], "--vector is not an option of --op ttm");
    ttm(&["--modes", "3", "--with", "h"], "--with is not an option of --op ttm");
    ttm(&["--modes", "3", "--temp-dir", "none"], "--temp-dir none");
    ttm(&["--modes", "3", "--kernel", "balanced"], "--kernel names a kernel of TTV");
    ttm(&["--modes", "3", "--memory", "1KiB"], "needs at least");
    refuses(&["t.blco", "--op", "ttm", "--modes", "3", "--output", "-"], "results are files");
    let ttm = ["t.blco", "--op", "ttm", "--modes", "3", "--output", "z"];
    for more in
        [&["--matrix", "U.npy", "--rank", "3"][..], &["--matrix", "U.npy", "--seed", "2"], &["--rank", "0"]]
    {
        misused(&[&ttm[..], more].concat(), more[more.len() - 2]);
    }
    for more in [&["--ranks", "2,0,3"][..], &["--factors", "f", "--ranks", "2,3,4"]] {
        misused(&[&["t.blco", "--op", "ttmc", "--output", "z"], more].concat(), "--ranks");
    }
    let ttmc = |more: &[&str], wanted: &str| {
        refuses(&[&["t.blco", "--op", "ttmc", "--output", "z"], more].concat(), wanted);
    };
    ttmc(&["--ranks", "2,3"], "--ranks has 2 numbers; this store has 3 modes");
    ttmc(&["--rank", "4"], "--rank is not an option of --op ttmc");
    ttmc(&["--factors", "none"], "none");
    ttmc(&["--ranks", "1000000,1000000,1000000"], "needs at least");
    ttmc(&["--modes", "1,1"], "names mode 1 twice");
    let ttv = |more: &[&str], wanted: &str| {
        refuses(&[&["t.blco", "--op", "ttv", "--output", "z"], more].concat(), wanted);
    };
    ttv(&[], "goes along modes: give them with --modes");
    ttv(&["--modes", "1,2", "--vector", "row.npy"], "1 vector for --modes 1,2; give one for each mode");
    ttv(&["--modes", "1", "--matrix", "U.npy"], "--matrix is not an option of --op ttv");
    for op in ["norm", "inner"] {
        for option in [
            &["--output", "z"][..],
            &["--check", "t.tns"],
            &["--modes", "1"],
            &["--repeat", "2"],
            &["--trace", "z"],
        ] {
            let wanted = format!("{} is not an option of --op {op}", option[0]);
            refuses(&[&["t.blco", "--op", op], option].concat(), &wanted);
        }
        refuses(&["t.blco", "--op", op, "--factors", "f"], "--factors is not an option");
    }
    refuses(&["t.blco", "--op", "norm", "--with", "h"], "--with is not an option of --op norm");
    refuses(&["t.blco", "--op", "inner"], "name the other store with --with");
    refuses(&["t.blco", "--op", "inner", "--with", "none"], "none");
    refuses(
        &["t.blco", "--op", "inner", "--with", "o.blco"],
        "o.blco: has dims 1 x 1 x 4, t.blco has 3 x 3 x 3",
    );
    refuses(&["t.blco", "--with", "h"], "--with is not an option of --op mttkrp");
}

/// An interrupt while fibers are written, and one while passes run, leave nothing.
#[test]
fn interrupts_leave_nothing() {
    let dir = small();
    program("blco-gen", dir.path(), &["--dims", "3000,4", "--nnz", "9000", "g.blco"]);
    let ttm = ["g.blco", "--op", "ttm", "--modes", "2", "--rank", "20000", "--output", "z"];
    let ttmc = ["t.blco", "--op", "ttmc", "--repeat", "4000000000", "--output", "z"];
    for (args, file) in [(&ttm[..], "values.npy"), (&ttmc[..], "mode-1.npy")] {
        let before = tree(dir.path());
        let mut command = Command::new(cargo_bin("blco-run"));
        let mut child =
            command.current_dir(dir.path()).args(args).args(["--threads", "1", "--quiet"]).spawn().unwrap();
        let path = dir.path().join("z.partial/result").join(file);
        let is_there = || path.metadata().is_ok_and(|facts| file != "values.npy" || facts.len() > 0);
        for _ in 0..6000 {
            if is_there() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let signal = format!("-{}", crate::programs::interrupt());
        assert!(Command::new("kill").args([&signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{args:?}");
        assert!(tree(dir.path()) == before, "{args:?}");
    }
}
