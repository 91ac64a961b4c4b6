//! Establishes that what `blco-run --op ttv` writes is what numpy computes from the same text (`tools/ttv_oracle.py`, which knows
//! nothing of the engine): generated tensors of orders 2, 3, 5 and 8, difficult shapes, and tensors of `../shared/data` if it exists; every
//! mode, `blco` and `hocfs` with each leaf code, on the CPU and on a GPU or the mock driver, whatever the chunks, threads, lanes and memory.
//!
//! Precisions and options are random. With `BLCO_LARGE=1` every run is made in both precisions, and the largest tensors are tested too.

use crate::programs::{backends, program, python, script};
use assert_cmd::cargo::cargo_bin;
use blco::internals::random::Counter;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A tensor's text in its own directory, with its stores and results.
struct Bench {
    dir: tempfile::TempDir,
    python: String,
    input: PathBuf,
    index_base: &'static str,
    /// Runs so far.
    runs: u64,
    /// Directories of results, by precision.
    results: [Vec<String>; 2],
}

fn large() -> bool {
    std::env::var_os("BLCO_LARGE").is_some_and(|value| value == "1")
}

const PRECISIONS: [&str; 2] = ["f64", "f32"];

impl Bench {
    /// `None` without numpy.
    fn new(input: &Path, index_base: &'static str) -> Option<Self> {
        let (dir, input) = (tempfile::tempdir().unwrap(), input.to_path_buf());
        Some(Self { dir, python: python()?, input, index_base, runs: 0, results: Default::default() })
    }

    /// Packs the input and returns its dims.
    fn pack(&self, store: &str, options: &[&str]) -> Vec<String> {
        let input = self.input.to_str().unwrap();
        let args = [input, "-o", store, "--force", "--index-base", self.index_base];
        let report = program("blco-pack", self.dir.path(), &[&args, options].concat());
        report["dims"].as_array().unwrap().iter().map(ToString::to_string).collect()
    }

    /// Runs TTV on each backend that computes it, with random options for each run.
    fn run(&mut self, store: &str, mode: usize, streamed: bool) {
        for backend in backends().into_iter().filter(|&backend| streamed || backend == "cpu") {
            self.runs += 1;
            let drawn = self.draw(2);
            for precision in if large() { 0..2 } else { drawn..drawn + 1 } {
                let result = format!("{store}-{backend}-{}", PRECISIONS[precision]);
                self.run_once((store, streamed), mode, (backend, PRECISIONS[precision]), &result);
                if !self.results[precision].contains(&result) {
                    self.results[precision].push(result);
                }
            }
        }
    }

    /// A number below `n` for this run.
    fn draw(&self, n: usize) -> usize {
        usize::try_from(Counter::new(self.runs, n as u64).bits(0) % n as u64).unwrap()
    }

    fn run_once(
        &self,
        (store, streamed): (&str, bool),
        mode: usize,
        (backend, precision): (&str, &str),
        result: &str,
    ) {
        let output = self.dir.path().join(result).join(format!("mode-{mode}"));
        std::fs::create_dir_all(&output).unwrap();
        let drawn = |n| (1 + self.draw(n)).to_string();
        let (threads, workers, lanes) = (drawn(3), drawn(4), drawn(5));
        // Products are merged once.
        let repeat = if streamed { ["1", "1", "2"][self.draw(6) % 3] } else { "1" };
        let vector = format!("vectors/mode-{mode}.npy");
        let (mode, output) = (mode.to_string(), output.to_str().unwrap());
        let memory = self.memory(store, &mode, &threads);
        let mut args = vec![store, "--op", "ttv", "--modes", &mode, "--vector", &vector];
        args.extend(["--output", output, "--force", "--backend", backend, "--precision", precision]);
        args.extend(["--threads", &threads, "--workers", &workers, "--repeat", repeat]);
        if backend == "cuda" {
            args.extend(["--streams", &lanes, "--kernel", ["balanced", "two-level"][self.draw(7) % 2]]);
        } else if self.draw(8) < 4 {
            // So little memory that some of a hundred thousand products go to files, if elements do not stream.
            args.extend(["--memory", &memory]);
        }
        let report = program("blco-run", self.dir.path(), &args);
        assert_eq!(report["backend"], backend);
    }

    /// 16 MiB, or the least memory of TTV if that is more.
    fn memory(&self, store: &str, mode: &str, threads: &str) -> String {
        let mut plan = Command::new(cargo_bin("blco-run"));
        plan.current_dir(self.dir.path()).env("BLCO_MEMORY_MIN", "0");
        plan.args([
            store,
            "--op",
            "ttv",
            "--modes",
            mode,
            "--threads",
            threads,
            "--backend",
            "cpu",
            "--plan",
        ]);
        let told = String::from_utf8(plan.args(["--memory", "16MiB"]).output().unwrap().stderr).unwrap();
        let least = told.split("needs at least ").nth(1).and_then(|rest| rest.split_once(" MiB"));
        least.map_or("16MiB".into(), |(least, _)| format!("{least}MiB"))
    }

    /// Makes vectors, and the stores that serve every mode. Returns the order.
    fn prepare(&self) -> usize {
        let dims = self.pack("blco", &[]);
        let made = ["--make-vectors", "vectors", "--seed", "7", "--dims", &dims.join(",")];
        let made = script(&self.python, "ttv_oracle.py", self.dir.path(), &made);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        self.pack("auto", &["--format", "hocfs", "--chunk-bytes", "300000"]);
        dims.len()
    }

    /// One mode, from every kind of store.
    fn run_mode(&mut self, order: usize, mode: usize) {
        // The leaves' mode is the one before the main mode.
        let main_mode = (mode % order + 1).to_string();
        for (leaf, chunk_bytes) in [("csr", "64KiB"), ("ell", "1MiB")] {
            let options = ["--slice", leaf, "--chunk-bytes", chunk_bytes, "--main-mode", &main_mode];
            self.pack(leaf, &[&["--format", "hocfs"], &options[..]].concat());
            self.run(leaf, mode, true);
        }
        self.run("auto", mode, mode == order);
        self.run("blco", mode, false);
    }

    /// Compares all results with numpy.
    fn oracle(&self) -> Output {
        let mut args = vec![self.input.to_str().unwrap(), "--vectors", "vectors"];
        args.extend(["--index-base", self.index_base]);
        for (option, results) in ["--f64", "--f32"].into_iter().zip(&self.results) {
            args.push(option);
            args.extend(results.iter().map(String::as_str));
        }
        script(&self.python, "ttv_oracle.py", self.dir.path(), &args)
    }

    /// All results must equal numpy's. Removes them.
    fn hold(&mut self, name: &str) {
        let output = self.oracle();
        let (table, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {error}{table}");
        let mut written = 0;
        for result in std::mem::take(&mut self.results).iter().flatten() {
            let result = self.dir.path().join(result);
            written += std::fs::read_dir(&result).unwrap().count();
            std::fs::remove_dir_all(&result).unwrap();
        }
        assert_eq!(table.lines().count(), 1 + written, "{name}: all are compared");
    }
}

/// Every mode and every kind of store gives numpy's results.
fn check(name: &str, input: &Path, index_base: &'static str) {
    let Some(mut bench) = Bench::new(input, index_base) else { return };
    let order = bench.prepare();
    for mode in 1..=order {
        bench.run_mode(order, mode);
        // Results of all modes of the largest tensors would fill a disk. For others, numpy starts once.
        if large() || mode == order {
            bench.hold(name);
        }
    }
}

/// Generates a tensor and checks it.
fn check_generated(name: &str, options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    program("blco-gen", dir.path(), &[options, &["--seed", "3", "t.tns"]].concat());
    check(name, &dir.path().join("t.tns"), "1");
}

fn check_text(name: &str, text: &str) {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("t.tns");
    std::fs::write(&input, text).unwrap();
    check(name, &input, "1");
}

#[test]
fn every_order() {
    check_generated("order 2", &["--dims", "300,4000", "--nnz", "30000", "--values", "uniform"]);
    let skewed = ["--dims", "70,500,900", "--nnz", "40000", "--values", "1..9", "--skew", "2"];
    check_generated("order 3, with duplicates", &skewed);
    check_generated("order 5", &["--dims", "9,1,8,11,300", "--nnz", "20000", "--values", "uniform"]);
    check_generated("order 8", &["--dims", "3,4,2,5,3,4,2,60", "--nnz", "9000", "--values", "uniform"]);
}

#[test]
fn the_shapes_that_are_hard() {
    check_generated("empty slices", &["--dims", "4000000,20,30", "--nnz", "3000", "--values", "uniform"]);
    check_generated("one slice", &["--dims", "1,700,900", "--nnz", "30000", "--values", "uniform"]);
    check_generated("one fiber", &["--dims", "1,1,900000", "--nnz", "30000", "--values", "uniform"]);
    let short = (1..=20_000).fold(String::new(), |mut text, i| {
        writeln!(text, "{i} {} {i} {}.25", i * 7 % 20_011 + 1, i % 13).unwrap();
        text
    });
    check_text("fibers of length one", &short);
}

#[test]
fn what_differs_is_seen() {
    let text = "1 1 1 2\n1 1 3 0.5\n2 3 1 -1\n2 3 2 1\n3 1 2 4\n";
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("t.tns");
    std::fs::write(&input, text).unwrap();
    let Some(mut bench) = Bench::new(&input, "1") else { return };
    let order = bench.prepare();
    bench.run_mode(order, 3);
    assert!(bench.oracle().status.success());
    let results = bench.results[0].iter().map(|dir| bench.dir.path().join(dir).join("mode-3/result.tns"));
    let result = results.into_iter().find(|path| path.exists()).unwrap();
    let written = std::fs::read_to_string(&result).unwrap();
    let first = written.lines().next().unwrap();
    let value = first.rsplit(' ').next().unwrap();
    let off = value.parse::<f64>().unwrap() * (1.0 + 1e-14);
    let wrong = [
        written.replacen(value, &off.to_string(), 1),
        written.replacen(value, "nan", 1),
        written.replacen("2 3 ", "2 2 ", 1),
        written.replacen("2 3 ", "1 1 ", 1),
        written.replacen("2 3 ", "2 9 ", 1),
        written.lines().skip(1).fold(String::new(), |text, line| text + line + "\n"),
        format!("{written}{first}\n"),
        format!("{written}2 1 0\n"),
    ];
    for wrong in wrong {
        std::fs::write(&result, &wrong).unwrap();
        let status = bench.oracle().status.code();
        assert!(status == Some(1) || wrong.contains("nan") && status == Some(2), "{status:?}: {wrong}");
    }
}

/// A file of `../shared/data`.
fn check_shared(name: &str, index_base: &'static str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data").join(name);
    if path.exists() {
        check(name, &path, index_base);
    } else {
        eprintln!("skipped: no {name}");
    }
}

#[test]
fn small_tensors_of_others() {
    for name in ["mttkrp_b", "small", "small4", "med4", "headered_3d_7", "plain_4d_3_16", "toolbox_header"] {
        check_shared(&format!("small/{name}.tns"), "1");
    }
    check_shared("small/small4_zeroidx.tns", "0");
    check_shared("small/toolbox_header_zero_based.tns", "0");
}

#[test]
fn real_tensors() {
    check_shared("kg-icews14-subj-rel-obj-time.tns.zst", "1");
    check_shared("kg-fb15k237-head-rel-tail.tns.zst", "1");
    check_shared("darpa-midas-src-dst-minute.tns.zst", "1");
}

/// The larger ones take a minute.
#[test]
fn large_tensors() {
    if !large() {
        eprintln!("skipped: BLCO_LARGE=1 tests the largest tensors");
        return;
    }
    check_shared("uber-aprjun2014-4d.tns.zst", "1");
    check_shared("uber-aprjun2014-4d-rawdup.tns.zst", "1");
    check_shared("gitlog-author-file-token-month.tns.zst", "1");
}
