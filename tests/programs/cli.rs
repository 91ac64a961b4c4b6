//! Establishes how the real programs behave, in temporary directories: every bad input and request ends with
//! status 2 and one line that says where, what and what to do, and leaves nothing behind; what `--json`
//! reports; standard input, compressed input, a broken pipe; stores that exist, are in use or were left by
//! a killed packer; interrupts.

use crate::common::{identity, system_words, tree};
use crate::programs::PROGRAMS;
use std::cell::OnceCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A small tensor, 3 x 3 x 4.
const ROWS: &str = "1 2 3 4.5\n3 1 1 -1\n2 3 4 0\n2 2 2 7\n";

fn binary(program: &str) -> &'static str {
    match program {
        "blco-pack" => env!("CARGO_BIN_EXE_blco-pack"),
        "blco-run" => env!("CARGO_BIN_EXE_blco-run"),
        "blco-cpd" => env!("CARGO_BIN_EXE_blco-cpd"),
        "blco-info" => env!("CARGO_BIN_EXE_blco-info"),
        "blco-export" => env!("CARGO_BIN_EXE_blco-export"),
        "blco-gen" => env!("CARGO_BIN_EXE_blco-gen"),
        other => panic!("no program {other}"),
    }
}

/// A directory to run programs in.
struct Place {
    dir: TempDir,
    /// Copies of programs that another user may run.
    unprivileged: OnceCell<TempDir>,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), unprivileged: OnceCell::new() }
    }

    /// A directory with `t.tns` and its store `t.blco`.
    fn with_store() -> Self {
        let place = Self::new();
        place.write("t.tns", ROWS);
        place.succeeds("blco-pack", &["t.tns"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    fn command(&self, program: &str, args: &[&str]) -> assert_cmd::Command {
        let mut command = assert_cmd::Command::new(binary(program));
        command.current_dir(self.dir.path()).args(args).env_remove("BLCO_FAULT");
        command
    }

    fn chmod(&self, name: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Runs as a user whom permissions bind: as another user if this is the superuser, who may do everything. `None` and
    /// a message if that is impossible.
    fn run_unprivileged(&self, program: &str, args: &[&str]) -> Option<Output> {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(binary(program));
        if rustix::process::geteuid().is_root() {
            // Outside this directory, because that user may not enter the build's directory, and this one must stay unchanged.
            let here = self.unprivileged.get_or_init(|| tempfile::tempdir().unwrap()).path().join(program);
            if !here.exists() {
                std::fs::copy(binary(program), &here).unwrap();
                std::fs::set_permissions(here.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
            }
            command = std::process::Command::new(here);
            command.uid(65_534).gid(65_534);
        }
        let output = command.current_dir(self.dir.path()).args(args).env_remove("BLCO_FAULT").output();
        output.inspect_err(|e| eprintln!("skipped: no program can be run as an unprivileged user: {e}")).ok()
    }

    /// For cases beyond [`assert_cmd`]: pipes that stay open, signals.
    fn start(&self, program: &str, args: &[&str]) -> Child {
        let mut command = std::process::Command::new(binary(program));
        command.current_dir(self.dir.path()).args(args).env_remove("BLCO_FAULT");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs successfully, without standard error, and returns standard output.
    fn succeeds(&self, program: &str, args: &[&str]) -> String {
        succeeded(self.command(program, args).output().unwrap(), args)
    }

    fn json(&self, program: &str, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.succeeds(program, args)).unwrap()
    }

    /// Fails with status 2 and one line that holds all of `wanted`; the directory stays unchanged.
    fn refuses(&self, program: &str, args: &[&str], wanted: &[&str]) {
        self.refuses_as(&mut self.command(program, args), program, wanted);
    }

    fn refuses_as(&self, command: &mut assert_cmd::Command, program: &str, wanted: &[&str]) {
        let before = tree(self.dir.path());
        let output = command.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {message}");
        assert_eq!(output.stdout, b"", "{command:?}");
        let one_line = message.lines().count() == 1 && message.ends_with('\n');
        assert!(one_line && message.starts_with(&format!("{program}: ")), "{command:?}: {message}");
        for part in wanted {
            assert!(message.contains(part), "{command:?}: {part:?} is not in: {message}");
        }
        let after = tree(self.dir.path());
        assert!(before == after, "{command:?} left {:?}, before {:?}", after.keys(), before.keys());
    }
}

fn succeeded(output: Output, what: &[&str]) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && message.is_empty(), "{what:?}: {:?}: {message}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// Waits until `holds`, or fails.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = std::process::Command::new("kill").args([format!("-{name}"), pid]).status().unwrap();
    assert!(status.success());
}

/// Waits for the end and returns status and standard error.
fn end(mut child: Child) -> (ExitStatus, String) {
    let mut message = String::new();
    drop(child.stdin.take());
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    (child.wait().unwrap(), message)
}

#[test]
fn bad_lines_are_named() {
    let index_hint = "--index-base 0";
    let cases: [(&str, &str, &[&str]); 15] = [
        ("a short row", "1 1\n", &["t.tns:5: ", "short row"]),
        ("a long row", "1 1 1 1 1\n", &["t.tns:5: ", "long row"]),
        ("a word for an index", "1 one 1 1\n", &["t.tns:5: ", "`one`", "mode 2"]),
        ("a word for a value", "1 1 1 x\n", &["t.tns:5: ", "`x`"]),
        ("a fraction for an index", "1 1.5 1 1\n", &["t.tns:5: ", "`1.5`"]),
        ("index 0", "1 1 0 1\n", &["t.tns:5: ", "mode 3", index_hint]),
        ("a negative index", "-1 1 1 1\n", &["t.tns:5: ", "negative"]),
        ("an index above 2^32-1", "1 1 4294967296 1\n", &["t.tns:5: ", "4294967295"]),
        ("an index above 2^64", "1 1 99999999999999999999999 1\n", &["t.tns:5: ", "4294967295"]),
        ("NaN", "1 1 1 NaN\n", &["t.tns:5: ", "not finite"]),
        ("infinity", "1 1 1 -inf\n", &["t.tns:5: ", "not finite"]),
        ("a value that overflows", "1 1 1 1e999\n", &["t.tns:5: ", "1e999"]),
        ("an integer that f64 does not hold", "1 1 1 9007199254740993\n", &["t.tns:5: ", "9007199254740993"]),
        ("bytes that are not text", "1 \0 1 1\n", &["t.tns:5: "]),
        ("a short row at the end, without newline", "1 1", &["t.tns:5: ", "short row"]),
    ];
    for (name, line, wanted) in cases {
        let place = Place::new();
        place.write("t.tns", format!("{ROWS}{line}"));
        place.refuses("blco-pack", &["t.tns"], wanted);
        // Compressed or from a pipe, the line is the same.
        place.write("t.tns", gzip(format!("{ROWS}{line}").as_bytes()));
        place.refuses("blco-pack", &["t.tns"], wanted);
        let piped = [wanted, &["standard input"]].concat();
        let piped: Vec<&str> =
            piped.iter().map(|w| if w.starts_with("t.tns") { ":5: " } else { w }).collect();
        let mut command = place.command("blco-pack", &["-", "-o", "t.blco"]);
        command.write_stdin(format!("{ROWS}{line}"));
        place.refuses_as(&mut command, "blco-pack", &piped);
        assert!(!place.path("t.blco").exists(), "{name}");
    }
}

#[test]
fn bad_files_are_named() {
    let place = Place::new();
    let many = ROWS.repeat(1000);
    let (gz, zst) = (gzip(many.as_bytes()), zst(many.as_bytes()));
    for (name, contents) in [
        ("empty.tns", &b""[..]),
        ("comments.tns", b"# nothing\n\n# at all\n"),
        ("header.tns", b"sptensor\n3\n2 2 2\n0\n"),
        ("beyond.tns", b"3\n3 3 3\n1 1 1 1\n1 1 4 1\n"),
        ("missing-rows.tns", b"sptensor\n3\n3 3 3\n4\n1 1 1 1\n"),
        ("commas.tns", b"1,1,1,2.0\n"),
        ("one-mode.tns", b"1 1\n2 1\n"),
        ("nine-modes.tns", b"1 1 1 1 1 1 1 1 1 1\n"),
        ("wide.tns", b"4294967295 4294967295 4294967295 4294967295 3 1\n"),
        ("twice.tns", b"1 1 1\n2 2 2\n1 1 3\n"),
        ("huge.tns", b"1 1 1e308\n2 2 2\n1 1 1e308\n"),
        ("cut.gz", &gz[..gz.len() - 9]),
        ("cut.zst", &zst[..zst.len() - 5]),
    ] {
        place.write(name, contents);
    }
    std::fs::create_dir(place.path("directory.tns")).unwrap();
    let cases: [(&[&str], &[&str]); 16] = [
        (&["commas.tns"], &["commas.tns:1: ", "not commas"]),
        (&["empty.tns"], &["empty.tns: ", "no nonzeros"]),
        (&["comments.tns"], &["comments.tns: ", "no nonzeros"]),
        (&["header.tns"], &["header.tns: ", "no nonzeros"]),
        (&["beyond.tns"], &["beyond.tns:4: ", "mode 3"]),
        (&["missing-rows.tns"], &["missing-rows.tns: ", "declares 4"]),
        (&["one-mode.tns"], &["one-mode.tns:1: ", "one index and a value", "--no-values"]),
        (&["nine-modes.tns"], &["nine-modes.tns:1: ", "order 9"]),
        (&["wide.tns"], &["wide.tns: ", "130 bits", "128"]),
        (&["twice.tns", "--dims", "2,1"], &["twice.tns:2: ", "mode 2", "--dims"]),
        (&["twice.tns", "--duplicates", "error"], &["twice.tns: ", "(1, 1)", "--duplicates sum"]),
        (&["huge.tns"], &["huge.tns: ", "(1, 1)", "infinity"]),
        (&["cut.gz"], &["cut.gz: ", "gzip", "cut short"]),
        (&["cut.zst"], &["cut.zst: ", "zstd", "cut short"]),
        (&["none.tns"], &["none.tns: no such file"]),
        (&["directory.tns"], &["directory.tns: is a directory"]),
    ];
    for (args, wanted) in cases {
        place.refuses("blco-pack", args, wanted);
    }
}

#[test]
fn bad_outputs_and_options_of_pack_are_named() {
    let place = Place::with_store();
    place.write("file", "some text");
    std::fs::create_dir(place.path("full")).unwrap();
    place.write("full/notes", "not a store");
    let cases: [(&[&str], &[&str]); 11] = [
        (&["-o", "t.blco/u"], &["t.blco/u", "inside another store"]),
        (&["-o", "n", "--format", "hocfs", "--main-mode", "4"], &["main mode 4", "modes 1 to 3"]),
        (&["-o", "none/t.blco"], &["none/t.blco", "no such file", "check the path"]),
        (&["-o", "file/t.blco"], &["file/t.blco", "not a directory", "check the path"]),
        (&[], &["t.blco: a store already exists", "--force", "-o"]),
        (&["-o", "file"], &["file: exists and is not a store"]),
        (&["-o", "file", "--force"], &["file: exists and is not a store"]),
        (&["-o", "full", "--force"], &["full: exists and is not a store"]),
        (&["-o", "n", "--chunk-bytes", "1KiB"], &["--chunk-bytes", "64.0 KiB"]),
        (&["-o", "n", "--dims", "3,3"], &["t.tns:1: ", "as --dims says"]),
        (&["-o", "n", "--dims", "4294967295,4294967295,4294967295,4294967295,4"], &["--dims", "130 bits"]),
    ];
    for (args, wanted) in cases {
        place.refuses("blco-pack", &[&["t.tns"], args].concat(), wanted);
    }
    let mut piped = place.command("blco-pack", &["-"]);
    piped.write_stdin(ROWS);
    place.refuses_as(&mut piped, "blco-pack", &["-o"]);
    // The system refuses to write, to sync and to rename.
    for fault in ["write:0:28", "sync:0:5", "rename:0:13", "open:2:13"] {
        let number = fault.rsplit(':').next().unwrap();
        let mut command = place.command("blco-pack", &["t.tns", "-o", "n"]);
        place.refuses_as(command.env("BLCO_FAULT", fault), "blco-pack", &[&system_words(number)]);
    }
}

#[test]
fn bad_requests_of_the_other_programs_are_named() {
    let place = Place::with_store();
    place.write("file", "some text");
    for dir in ["empty", "other-rank", "other-rows"] {
        std::fs::create_dir(place.path(dir)).unwrap();
    }
    place.succeeds("blco-run", &["t.blco", "--output", "f4", "--rank", "4"]);
    place.succeeds("blco-run", &["t.blco", "--output", "f5", "--rank", "5"]);
    for (from, to) in [
        ("f4/mode-1.npy", "other-rank/mode-1.npy"),
        ("f5/mode-2.npy", "other-rank/mode-2.npy"),
        ("f4/mode-3.npy", "other-rank/mode-3.npy"),
        ("f4/mode-3.npy", "other-rows/mode-1.npy"),
    ] {
        std::fs::copy(place.path(from), place.path(to)).unwrap();
    }
    let npy = std::fs::read(place.path("f4/mode-2.npy")).unwrap();
    place.write("f5/mode-2.npy", &npy[..npy.len() - 3]);
    let cases: [(&str, &[&str], &[&str]); 34] = [
        (
            "blco-run",
            &["t.blco", "--op", "ttv", "--modes", "1", "--output", "t.blco"],
            &["t.blco: is a store"],
        ),
        ("blco-cpd", &["t.blco", "--memory", "1KiB"], &["too little: take a smaller rank, or raise it"]),
        ("blco-run", &["t.blco", "--modes", "1,1"], &["--modes 1,1", "twice"]),
        ("blco-run", &["t.blco", "--modes", "x"], &["--modes x", "all"]),
        ("blco-run", &["t.blco", "--modes", ""], &["--modes", "all"]),
        ("blco-run", &["t.blco", "--memory", "1KiB"], &["--memory", "too little", "rank"]),
        ("blco-run", &["t.blco", "--factors", "empty"], &["empty/mode-1.npy"]),
        ("blco-run", &["t.blco", "--factors", "file"], &["file/mode-1.npy"]),
        ("blco-run", &["t.blco", "--factors", "other-rank"], &["other-rank/mode-2.npy", "rank 5"]),
        ("blco-run", &["t.blco", "--factors", "other-rows"], &["other-rows/mode-1.npy", "4 x 4", "3 x rank"]),
        ("blco-run", &["t.blco", "--factors", "f5"], &["f5/mode-2.npy"]),
        ("blco-run", &["t.blco", "--output", "file"], &["file"]),
        ("blco-run", &["t.blco", "--output", "none/out"], &["none/out"]),
        ("blco-run", &["t.blco", "--output", "out", "--check", "none.tns"], &["none.tns: no such file"]),
        ("blco-run", &["t.blco", "--backend", "cuda", "--device", "99"], &["no CUDA device: "]),
        ("blco-run", &["file"], &["file: ", "not a store"]),
        ("blco-run", &["empty"], &["empty: no store here"]),
        ("blco-info", &["none"], &["none: no store here"]),
        ("blco-export", &["none", "x.tns"], &["none: no store here"]),
        ("blco-export", &["t.blco", "t.tns"], &["t.tns: already exists", "--force"]),
        ("blco-export", &["t.blco", "empty"], &["empty: is a directory"]),
        ("blco-export", &["t.blco", "none/x.npz"], &["none/"]),
        ("blco-gen", &["--dims", "3,3", "--nnz", "9", "t.tns"], &["t.tns: already exists", "--force"]),
        ("blco-gen", &["--dims", "3,3", "--nnz", "0", "g.tns"], &["--nnz"]),
        (
            "blco-gen",
            &["--dims", "3,3", "--nnz", "9", "--format", "hocfs", "g.tns"],
            &["g.tns", "--format", ".hocfs"],
        ),
        (
            "blco-gen",
            &["--dims", "3,3", "--nnz", "9", "--chunk-bytes", "1MiB", "-"],
            &["--chunk-bytes", ".blco"],
        ),
        // Nothing is written, not even the model.
        (
            "blco-gen",
            &["--dims", "3,3", "--planted-rank", "1", "--support", "2", "--model", "m", "-", "--json"],
            &["--json"],
        ),
        (
            "blco-gen",
            &["--dims", "3,3", "--planted-rank", "1", "--support", "2", "--model", "m", "t.tns"],
            &["t.tns"],
        ),
        ("blco-run", &["t.blco", "--vector", "f4/mode-1.npy"], &["--vector", "--op mttkrp"]),
        ("blco-run", &["t.blco", "--op", "ttv", "--modes", "1", "--rank", "3"], &["--rank", "--op ttv"]),
        (
            "blco-run",
            &["t.blco", "--op", "ttv", "--modes", "1", "--repeat", "2"],
            &["--repeat", "mode 1", "runs once"],
        ),
        ("blco-run", &["t.blco", "--backend", "cpu", "--streams", "2"], &["--streams is for a GPU"]),
        ("blco-run", &["t.blco", "--backend", "cpu", "--kernel", "t4l16c2b4"], &["--kernel", "CPU"]),
        ("blco-cpd", &["t.blco", "--backend", "cpu", "--kernel", "t4l16c2b4"], &["--kernel", "CPU"]),
    ];
    for (program, args, wanted) in cases {
        place.refuses(program, args, wanted);
    }
    for (program, args) in
        [("blco-run", &["t.blco", "--output", "out"][..]), ("blco-export", &["t.blco", "x.tns"])]
    {
        let mut command = place.command(program, args);
        place.refuses_as(
            command.env("BLCO_FAULT", "read:3:5"),
            program,
            &["chunk-000000.bin", "input/output error"],
        );
        let mut command = place.command(program, args);
        place.refuses_as(command.env("BLCO_FAULT", "write:0:28"), program, &["no space left on device"]);
    }
    let mut command = place.command("blco-run", &["t.blco", "--trace", "x.json"]);
    place.refuses_as(
        command.env("BLCO_FAULT", "write:0:28"),
        "blco-run",
        &["x.json", "no space left on device"],
    );
    let model = ["--dims", "9,9", "--nnz", "20", "--planted-rank", "2", "--model", "M", "g.tns"];
    place.refuses("blco-gen", &model, &["--model", "--support"]);
}

/// Messages of the argument parser are one line, too.
#[test]
fn usage_errors_have_status_2() {
    let place = Place::with_store();
    let cases: [(&str, &[&str]); 14] = [
        ("blco-cpd", &["--score", "a", "b", "--output", "o"]),
        ("blco-cpd", &["--score", "a", "b", "--tol", "1e-4"]),
        ("blco-pack", &[]),
        ("blco-pack", &["t.tns", "--threads", "0"]),
        ("blco-cpd", &["t.blco", "--tol", "-1"]),
        ("blco-gen", &["--dims", "3,3", "--nnz", "3.3", "-"]),
        ("blco-pack", &["t.tns", "--bogus"]),
        ("blco-pack", &["t.tns", "--zstd", "99"]),
        ("blco-run", &["t.blco", "--rank", "0"]),
        ("blco-run", &["t.blco", "--precision", "f16"]),
        ("blco-info", &["t.blco", "--verify", "--quick"]),
        ("blco-info", &["t.blco", "--verify", "--repair", "new.blco"]),
        ("blco-info", &["t.blco", "--force"]),
        ("blco-gen", &["--dims", "3,x", "--nnz", "4", "-"]),
    ];
    for (program, args) in cases {
        place.refuses(program, args, &[&format!("; see {program} --help")]);
    }
}

#[test]
fn help_has_examples_and_version_is_told() {
    let place = Place::new();
    for program in PROGRAMS {
        let help = place.succeeds(program, &["--help"]);
        assert!(help.contains("Examples:") && help.matches(program).count() >= 3, "{program}: {help}");
        let short = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(place.succeeds(program, &["-V"]), short);
        let version = place.succeeds(program, &["--version"]);
        assert!(version.starts_with(&short), "{version}");
        for what in ["features: ", "CUDA: ", "containers: "] {
            assert!(version.contains(what), "{version}");
        }
    }
}

/// Forecasts for machines that compute on their CPUs: more of them exchange more, compute less and pay up to a number; one exchanges nothing.
#[test]
fn other_machines_are_forecast() {
    let place = Place::new();
    let tensor =
        ["--dims", "300,200,2000", "--nnz", "300k", "--seed", "3", "--chunk-bytes", "64KiB", "t.blco"];
    place.succeeds("blco-gen", &tensor);
    let nodes = ["t.blco", "--plan", "--json", "--backend", "cpu", "--threads", "2", "--nodes"];
    for program in ["blco-run", "blco-cpd"] {
        let forecast = |more: &[&str]| place.json(program, &[&nodes[..], more].concat())["forecast"].clone();
        let of = |at: &serde_json::Value, name: &str| at[name].as_f64().unwrap();
        let all = forecast(&["16", "--link", "100MB/s"]);
        let counts = all["counts"].as_array().unwrap();
        let machines: Vec<u64> = counts.iter().map(|at| at["machines"].as_u64().unwrap()).collect();
        assert!(machines.starts_with(&[1, 2, 4, 8, 16]), "{all}");
        assert_eq!(counts[0]["exchanged_bytes"], 0.0);
        // One machine computes all modes of MTTKRP together, several compute one at a time.
        assert!(of(&counts[2]["stages"], "kernel") < 0.6 * of(&counts[1]["stages"], "kernel"), "{all}");
        for pair in counts.windows(2) {
            assert!(of(&pair[1], "exchanged_bytes") > of(&pair[0], "exchanged_bytes"), "{all}");
            assert!(of(&pair[1]["stages"], "kernel") <= of(&pair[0]["stages"], "kernel"), "{all}");
            assert!(of(&pair[1]["stages"], "exchange") > of(&pair[0]["stages"], "exchange"), "{all}");
        }
        // The rule, by the numbers that are given.
        let pays = |forecast: &serde_json::Value| forecast["pays_up_to"].as_u64().unwrap();
        for (pair, &before) in counts.windows(2).zip(&machines) {
            let saves = of(&pair[1], "seconds") <= 0.9 * of(&pair[0], "seconds");
            assert!(if saves { before != pays(&all) } else { before >= pays(&all) }, "{all}");
        }
        // Faster links make more machines pay; one machine needs none.
        assert!(pays(&forecast(&["16", "--link", "100GB/s"])) > pays(&all), "{all}");
        let one = forecast(&["1"]);
        assert_eq!(one["counts"], serde_json::json!([counts[0]]));
        assert!(one["pays_up_to"].is_null(), "{one}");
        let text =
            place.succeeds(program, &["t.blco", "--plan", "--backend", "cpu", "--nodes", "2", "--link=9GB"]);
        assert!(text.contains("on 2 machines (") && text.contains("  pays    up to "), "{text}");
    }
}

/// The keys of the reports, sorted.
mod keys {
    pub const PACK: &[&str] = &[
        "bytes",
        "bytes_per_nnz",
        "chunks",
        "digest",
        "dims",
        "duplicates_kept",
        "duplicates_summed",
        "encoding",
        "format",
        "input_nnz",
        "input_read",
        "linear_bits",
        "nnz",
        "parts",
        "program",
        "seconds",
        "spilled",
        "store",
        "version",
        "was_complete",
    ];
    pub const RUN: &[&str] = &[
        "backend",
        "check",
        "device",
        "digest",
        "dims",
        "kernels",
        "mode_sorted",
        "modes",
        "nnz",
        "notes",
        "op",
        "passes",
        "plan",
        "precision",
        "program",
        "rank",
        "served",
        "store",
        "strategies",
        "version",
    ];
    pub const PASS: &[&str] = &[
        "bytes",
        "chunks",
        "compute_seconds",
        "compute_stall_seconds",
        "decode_seconds",
        "device",
        "nnz",
        "nnz_per_second",
        "read_seconds",
        "readers_busy",
        "seconds",
        "verify_seconds",
        "worker_stall_seconds",
    ];
    pub const PLAN: &[&str] = &[
        "afterwards_bytes",
        "buffer_bytes",
        "buffers_per_worker",
        "chunks",
        "direct_reads",
        "file_bytes",
        "kept",
        "kept_bytes",
        "memory_bytes",
        "operation_bytes",
        "program_bytes",
        "scratch_bytes",
        "threads",
        "workers",
    ];
    pub const INFO: &[&str] = &[
        "bit_modes",
        "bytes",
        "bytes_per_nnz",
        "chunk_bytes",
        "chunks",
        "container_version",
        "density",
        "digest",
        "dims",
        "duplicates_may_occur",
        "encoding",
        "format",
        "hash",
        "levels",
        "linear_bits",
        "longest_row_bounds",
        "modes",
        "nnz",
        "norm",
        "part",
        "partitions",
        "problem",
        "program",
        "statistics",
        "storage",
        "store",
        "value_max",
        "value_min",
        "value_name",
        "verified",
        "version",
        "zstd_level",
    ];
    pub const REPAIR: &[&str] = &[
        "chunk_bytes",
        "chunks_intact",
        "chunks_lost",
        "digest",
        "duplicates_may_occur",
        "labels_lost",
        "losses",
        "manifest_problem",
        "misplaced_files",
        "new_digest",
        "new_store",
        "nnz_lost",
        "nnz_salvaged",
        "program",
        "provenance_problem",
        "store",
        "unused_files",
        "version",
        "zstd_level",
    ];
    pub const EXPORT: &[&str] = &["bytes", "digest", "nnz", "output", "program", "store", "version"];
    pub const GEN: &[&str] = &["dims", "nnz", "output", "program", "seed", "version"];
}

#[test]
fn json_has_exactly_these_keys() {
    let place = Place::new();
    place.write("t.tns", ROWS);
    let has = |value: &serde_json::Value, wanted: &[&str]| {
        let found: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, wanted);
    };
    let report = |program: &str, args: &[&str], wanted: &[&str]| {
        let report = place.json(program, args);
        has(&report, wanted);
        assert_eq!(
            (&report["program"], &report["version"]),
            (&program.into(), &env!("CARGO_PKG_VERSION").into())
        );
        report
    };
    // Reports about text may have notes.
    let mut of_text = [keys::PACK, &["notes"]].concat();
    of_text.sort_unstable();
    let packed = report("blco-pack", &["t.tns", "--json"], &of_text);
    assert_eq!((&packed["nnz"], &packed["dims"]), (&4.into(), &serde_json::json!([3, 3, 4])));
    let run = report("blco-run", &["t.blco", "--json", "--check", "t.tns", "--repeat", "2"], keys::RUN);
    assert_eq!(run["digest"], packed["digest"]);
    assert_eq!(run["passes"].as_array().unwrap().len(), 2);
    has(&run["passes"][0], keys::PASS);
    has(&run["plan"], keys::PLAN);
    has(&run["check"][0], &["holds", "largest_error", "mode", "worst"]);
    let plan = report("blco-run", &["t.blco", "--json", "--plan"], keys::RUN);
    assert_eq!(plan["passes"], serde_json::json!([]));
    let info = report("blco-info", &["t.blco", "--json", "--verify"], keys::INFO);
    assert_eq!((&info["verified"], &info["digest"]), (&true.into(), &packed["digest"]));
    let quick = report("blco-info", &["t.blco", "--json", "--quick"], keys::INFO);
    assert!(quick["statistics"].is_null() && quick["verified"].is_null());
    let repair = report("blco-info", &["t.blco", "--json", "--repair", "new.blco"], keys::REPAIR);
    assert_eq!((&repair["nnz_lost"], &repair["new_digest"]), (&0.into(), &packed["digest"]));
    report("blco-export", &["t.blco", "x.tns", "--json"], keys::EXPORT);
    report("blco-export", &["t.blco", "x.npz", "--json"], keys::EXPORT);
    report("blco-gen", &["--dims", "9,9", "--nnz", "20", "g.tns", "--json"], keys::GEN);
    report("blco-gen", &["--dims", "9,9", "--nnz", "20", "g.blco", "--json"], keys::PACK);
    for (program, args) in [
        ("blco-export", &["t.blco", "-", "--json"][..]),
        ("blco-gen", &["--dims", "9,9", "--nnz", "2", "-", "--json"]),
    ] {
        place.refuses(program, args, &["--json", "standard output"]);
    }
}

#[test]
fn standard_input_and_compression_make_the_same_store() {
    let place = Place::with_store();
    let wanted = identity(&place.path("t.blco"));
    let forms = [ROWS.as_bytes().to_vec(), gzip(ROWS.as_bytes()), zst(ROWS.as_bytes())];
    for (n, contents) in forms.into_iter().enumerate() {
        // By content and not by name, so names may end in anything.
        for end in ["", ".gz", ".zst"] {
            place.write(&format!("f{n}.tns{end}"), &contents);
            place.succeeds("blco-pack", &[&format!("f{n}.tns{end}"), "--force"]);
            assert!(identity(&place.path(&format!("f{n}.blco"))) == wanted, "form {n} in *.tns{end}");
        }
        let store = format!("piped-{n}");
        let mut command = place.command("blco-pack", &["-", "-o", &store]);
        succeeded(command.write_stdin(contents).output().unwrap(), &["piped"]);
        assert!(identity(&place.path(&store)) == wanted, "form {n} from a pipe");
    }
}

/// Members of gzip data, as from `cat a.gz b.gz`, are one text. Other data after a member is reported.
#[test]
fn gzip_data_may_have_members_and_nothing_else() {
    let place = Place::with_store();
    let wanted = identity(&place.path("t.blco"));
    let (first, second) = ROWS.split_at(ROWS.find('\n').unwrap() + 3);
    let members = [gzip(first.as_bytes()), gzip(b""), gzip(second.as_bytes())].concat();
    place.write("m.tns.gz", &members);
    place.succeeds("blco-pack", &["m.tns.gz"]);
    assert!(identity(&place.path("m.blco")) == wanted);
    for behind in [&b"x"[..], b"\0", b"\n", b"1 1 1 1\n", &[0; 5000], b"trailing garbage of some length"] {
        place.write("g.tns.gz", [&members, behind].concat());
        place.refuses("blco-pack", &["g.tns.gz"], &["g.tns.gz: other bytes follow the gzip data"]);
    }
    for length in [1, 5, 12, members.len() - 1] {
        place.write("g.tns.gz", [&members, &members[..length]].concat());
        place.refuses("blco-pack", &["g.tns.gz"], &["g.tns.gz: ", "cut short"]);
    }
}

/// Names of files are bytes.
#[test]
fn names_need_not_be_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = Place::with_store();
    let name = |end: &str| OsStr::from_bytes(&[b"n\xff", end.as_bytes()].concat()).to_owned();
    std::fs::write(place.dir.path().join(name(".tns")), ROWS).unwrap();
    let all: [(&str, &[&OsStr]); 8] = [
        ("blco-pack", &[&name(".tns")]),
        ("blco-pack", &[&name(".tns"), OsStr::new("--plan")]),
        ("blco-info", &[&name(".blco")]),
        ("blco-info", &[&name(".blco"), OsStr::new("--repair"), &name("2.blco")]),
        ("blco-run", &[&name(".blco"), OsStr::new("--output"), &name("M")]),
        ("blco-cpd", &[&name(".blco"), OsStr::new("--output"), &name("A")]),
        ("blco-export", &[&name(".blco"), &name("2.tns")]),
        ("blco-gen", &[OsStr::new("--dims=3,3"), OsStr::new("--nnz=4"), &name("3.tns")]),
    ];
    for (program, args) in all {
        let output = place.command(program, &["--json"]).args(args).output().unwrap();
        let report: serde_json::Value = serde_json::from_str(&succeeded(output, &[program])).unwrap();
        let named = ["store", "output"]
            .iter()
            .any(|key| report[key].as_str().is_some_and(|s| s.contains("n\u{fffd}")));
        assert!(named || args.contains(&OsStr::new("--plan")), "{program}: {report}");
    }
    assert!(identity(&place.dir.path().join(name(".blco"))) == identity(&place.path("t.blco")));
}

/// A name that ends in .hocfs selects that format, and the format selects such a name.
#[test]
fn names_and_formats_go_together() {
    let place = Place::new();
    place.write("t.tns", ROWS);
    let format = |store: &str| place.json("blco-info", &[store, "--quick", "--json"])["format"].clone();
    let hocfs = ["--format", "hocfs", "--main-mode", "2"];
    for (arguments, store, wanted) in [
        (&["t.tns"][..], "t.blco", "blco"),
        (&[&["t.tns"], &hocfs[..]].concat(), "t.hocfs", "hocfs"),
        (&["t.tns", "-o", "u.hocfs"], "u.hocfs", "hocfs"),
        (&["t.tns", "-o", "v.hocfs", "--format", "blco"], "v.hocfs", "blco"),
    ] {
        place.succeeds("blco-pack", arguments);
        assert_eq!(format(store), wanted, "{arguments:?}");
    }
    place.succeeds("blco-gen", &["--dims", "9,9", "--nnz", "20", "g.hocfs"]);
    assert_eq!(format("g.hocfs"), "hocfs");
}

/// Every chunk is in the timeline of every pass, also of a pass over kept chunks.
#[test]
fn a_trace_on_the_cpu_has_reading_and_computing() {
    let place = Place::with_store();
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &["read", "verify", "compute"]),
        (&["--direct"], &["read", "verify", "compute"]),
        (&["--repeat", "2"], &["compute"]),
    ];
    for (more, wanted) in cases {
        let args = ["t.blco", "--backend", "cpu", "--trace", "trace.json", "--force", "--json"];
        let report = place.json("blco-run", &[&args[..], more].concat());
        let spans: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path("trace.json")).unwrap()).unwrap();
        let spans = spans.as_array().unwrap();
        let stages: Vec<_> = spans.iter().map(|span| span["stage"].as_str().unwrap()).collect();
        assert_eq!(stages, wanted);
        let pass = report["passes"].as_array().unwrap().last().unwrap();
        for span in spans {
            let at = ["start", "end"].map(|name| span[name].as_f64().unwrap());
            assert!(0.0 <= at[0] && at[0] <= at[1] && at[1] <= pass["seconds"].as_f64().unwrap(), "{span}");
            assert_eq!(span["chunk"], 0);
        }
    }
}

/// Messages about damage say what to do.
#[test]
fn damage_is_told_with_the_way_out() {
    let place = Place::with_store();
    let whole = std::fs::read(place.path("t.blco/chunk-000000.bin")).unwrap();
    place.write("t.blco/chunk-000000.bin", &whole[..whole.len() - 1]);
    let wanted = ["t.blco/chunk-000000.bin", "; blco-info t.blco --repair NEWSTORE writes what is intact"];
    for (program, args) in
        [("blco-run", &["t.blco"][..]), ("blco-export", &["t.blco", "x.tns"]), ("blco-cpd", &["t.blco"])]
    {
        place.refuses(program, args, &wanted);
    }
    let output = place.command("blco-info", &["t.blco", "--verify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(&format!("{}\n", wanted[1])));
}

/// Only if something is lost: not if a store has another version or format, or if a file does not belong to it.
#[test]
fn what_is_no_damage_is_not_to_be_repaired() {
    const REPAIR: &str = "; blco-info t.blco --repair NEWSTORE writes what is intact";
    let place = Place::with_store();
    let (manifest, chunk) = ("t.blco/manifest", "t.blco/chunk-000000.bin");
    let [whole, first] = [manifest, chunk].map(|name| std::fs::read(place.path(name)).unwrap());
    let seal = |file: &mut [u8], range: std::ops::Range<usize>, at: usize| {
        let checksum = xxhash_rust::xxh3::xxh3_64(&file[range]);
        file[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
    };
    let refused = |name: &str, file: &[u8], wanted: &str, damaged: bool| {
        place.write(name, file);
        let output = place.command("blco-run", &["t.blco"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(name) && error.contains(wanted), "{error}");
        assert_eq!(error.trim_end().ends_with(REPAIR), damaged, "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        place.write(manifest, &whole);
        place.write(chunk, &first);
    };
    // A flipped bit in the version; another version.
    for (name, whole, checksum, what) in
        [(manifest, &whole, 56, "preamble checksum"), (chunk, &first, 120, "header checksum")]
    {
        let mut other = whole.clone();
        other[8] ^= 1;
        refused(name, &other, &format!("corrupt: {what}"), true);
        seal(&mut other, 0..checksum, checksum);
        refused(name, &other, "format version 3; this program reads versions 1 to 2", false);
    }
    // Another format; no manifest at all.
    let mut other = whole.clone();
    // After the preamble: the table of six sections and one chunk.
    let partition = 64 + 8 + 6 * 32 + 144;
    assert_eq!(other[partition..partition + 8], [1, 0, 0, 0, 2, 0, 0, 0]);
    other[partition] = 9;
    let all = 64..other.len();
    seal(&mut other, all, 24);
    seal(&mut other, 0..56, 56);
    refused(manifest, &other, "format 9, which this program does not know; use a newer one", false);
    // Another file in its place.
    refused(manifest, b"all that is on board", "not a manifest", true);
    // The remains of one after a full disk or a crash.
    refused(manifest, b"", "corrupt: shorter than its preamble", true);
    refused(manifest, &whole[..5], "corrupt: shorter than its preamble", true);
    refused(manifest, &whole[..63], "corrupt: shorter than its preamble", true);
    refused(manifest, &whole[..whole.len() - 1], "corrupt: the file's length differs", true);
    // The chunk of another store in place of this one's, and a file that is no chunk.
    place.write("u.tns", b"1 1 5\n7 7 8\n");
    place.succeeds("blco-pack", &["u.tns"]);
    let of_another = std::fs::read(place.path("u.blco/chunk-000000.bin")).unwrap();
    assert_eq!(of_another.len(), first.len());
    refused(chunk, &of_another, "not chunk 0 of this store", true);
    refused(chunk, &vec![7; first.len()], "not a chunk: wrong magic", true);
    refused(chunk, b"", "corrupt: 0 bytes", true);
    std::fs::remove_file(place.path(chunk)).unwrap();
    place.refuses("blco-run", &["t.blco"], &[chunk, "missing", REPAIR]);
    // Chunks without a manifest are damage; without chunks there is no store.
    place.write(chunk, &first);
    std::fs::remove_file(place.path(manifest)).unwrap();
    place.refuses("blco-run", &["t.blco"], &["t.blco/manifest: missing", REPAIR]);
    std::fs::create_dir(place.path(manifest)).unwrap();
    place.refuses("blco-run", &["t.blco"], &["t.blco/manifest: not a file", REPAIR]);
    std::fs::remove_dir(place.path(manifest)).unwrap();
    std::fs::remove_file(place.path(chunk)).unwrap();
    place.refuses("blco-run", &["t.blco"], &["t.blco: no store here"]);
    refused(manifest, b"all that is on board", "not a manifest", false);
}

/// A user who may not enter a store gets that message, and not that there is none.
#[test]
fn a_store_that_may_not_be_entered_is_told() {
    let place = Place::with_store();
    place.chmod("", 0o777);
    place.chmod("t.blco", 0);
    let all: [(&str, &[&str]); 3] = [
        ("blco-info", &["t.blco"]),
        ("blco-info", &["t.blco", "--repair", "new"]),
        ("blco-pack", &["t.tns", "--force"]),
    ];
    for (program, args) in all {
        let Some(output) = place.run_unprivileged(program, args) else { break };
        let message = String::from_utf8(output.stderr).unwrap();
        let told = message.contains("t.blco") && message.contains("permission denied");
        assert!(output.status.code() == Some(2) && told, "{program} {args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    place.chmod("t.blco", 0o755);
}

/// A drop box: users who may not read it can put results there.
#[test]
fn a_directory_that_may_not_be_read_takes_results() {
    let place = Place::with_store();
    place.chmod("", 0o777);
    std::fs::create_dir(place.path("box")).unwrap();
    place.chmod("box", 0o333);
    let all: [(&str, &[&str]); 6] = [
        ("blco-pack", &["t.tns", "-o", "box/a.blco"]),
        ("blco-pack", &["t.tns", "-o", "box/a.blco", "--force"]),
        ("blco-info", &["t.blco", "--repair", "box/b.blco"]),
        ("blco-export", &["t.blco", "box/c.tns"]),
        ("blco-run", &["t.blco", "--output", "box/d", "--trace", "box/d.json"]),
        ("blco-cpd", &["t.blco", "--rank", "2", "--output", "box/e", "--report", "box/f.html"]),
    ];
    for (program, args) in all {
        let Some(output) = place.run_unprivileged(program, args) else { break };
        succeeded(output, args);
    }
    place.chmod("box", 0o755);
    // A store is not repaired if its directory cannot be written.
    std::fs::create_dir(place.path("closed")).unwrap();
    place.chmod("closed", 0o555);
    if let Some(output) = place.run_unprivileged("blco-info", &["t.blco", "--repair", "closed/b.blco"]) {
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("cannot create closed/b.blco: permission denied"), "{message}");
    }
    place.chmod("closed", 0o755);
}

/// A symbolic link stays, and its target is replaced.
#[test]
fn links_are_followed_to_what_is_replaced() {
    use std::os::unix::fs::symlink;
    let place = Place::with_store();
    place.write("new.tns", "1 1 1\n2 2 2\n");
    place.succeeds("blco-pack", &["new.tns", "-o", "wanted.blco"]);
    let wanted = identity(&place.path("wanted.blco"));
    std::fs::create_dir(place.path("disk")).unwrap();
    place.succeeds("blco-pack", &["t.tns", "-o", "disk/big.blco"]);
    place.write("disk/text", "old");
    symlink("disk/big.blco", place.path("link.blco")).unwrap();
    symlink("disk/text", place.path("text.tns")).unwrap();
    symlink("disk/nothing", place.path("nowhere")).unwrap();
    let links = ["link.blco", "text.tns", "nowhere"];

    place.refuses("blco-pack", &["new.tns", "-o", "link.blco"], &["link.blco: a store already exists"]);
    place.refuses("blco-export", &["t.blco", "text.tns"], &["text.tns: already exists", "--force"]);
    for name in ["link.blco", "link.blco/"] {
        place.succeeds("blco-pack", &["new.tns", "-o", name, "--force"]);
        assert!(identity(&place.path("disk/big.blco")) == wanted, "{name}");
        place.succeeds("blco-pack", &["t.tns", "-o", name, "--force"]);
        assert!(identity(&place.path("disk/big.blco")) != wanted, "{name}");
    }
    place.succeeds("blco-info", &["wanted.blco", "--repair", "link.blco", "--force"]);
    assert!(identity(&place.path("disk/big.blco")) == wanted);
    place.succeeds("blco-export", &["wanted.blco", "text.tns", "--force"]);
    assert_eq!(std::fs::read_to_string(place.path("disk/text")).unwrap(), "1 1 1\n2 2 2\n");
    for name in links {
        assert!(place.path(name).is_symlink(), "{name}");
    }
    assert_eq!(std::fs::read_dir(place.path("disk")).unwrap().count(), 2);

    let nowhere = ["nowhere: is a symbolic link to nothing; remove it, or name another output"];
    for force in [&[][..], &["--force"]] {
        place.refuses("blco-pack", &[&["new.tns", "-o", "nowhere"], force].concat(), &nowhere);
        place.refuses("blco-info", &[&["t.blco", "--repair", "nowhere"], force].concat(), &nowhere);
    }
    place.refuses("blco-export", &["t.blco", "nowhere", "--force"], &nowhere);
}

/// A name that promises another kind of output is refused. Endings are compared without case.
#[test]
fn names_of_outputs_are_what_is_written() {
    let place = Place::with_store();
    for (name, compressor) in
        [("x.tns.gz", "gzip"), ("x.ZST", "zstd"), ("x.npz.Bz2", "bzip2"), ("x.tns.xz", "xz")]
    {
        let wanted = [name, "would not be compressed; write to -", compressor];
        place.refuses("blco-export", &["t.blco", name], &wanted);
        place.refuses("blco-gen", &["--dims", "3,3", "--nnz", "9", name], &wanted);
    }
    place.refuses("blco-export", &["t.blco", "x.mtx"], &["a Matrix Market file holds a matrix", "order 3"]);
    for name in ["x.mtx", "x.csv"] {
        place.refuses(
            "blco-gen",
            &["--dims", "3,3", "--nnz", "9", name],
            &[name, "is not an ending of coordinate text"],
        );
    }
    for name in ["x.npy", "x.BLCO", "x.hocfs", "x.feather"] {
        place.refuses("blco-export", &["t.blco", name], &[name, "is not an ending of coordinate text"]);
    }
    let npz = [
        "x.npz: .npz is not an ending of coordinate text; end it in .tns, or in .blco or .hocfs for a store",
    ];
    place.refuses("blco-gen", &["--dims", "3,3", "--nnz", "9", "x.npz"], &npz);
    // Before everything is written.
    place.refuses("blco-export", &["t.blco", "x/"], &["x/: is a directory; name a file"]);
    place.succeeds("blco-export", &["t.blco", "x.NPZ"]);
    assert!(std::fs::read(place.path("x.NPZ")).unwrap().starts_with(b"PK"));
    place.write("U.TNS.GZ", gzip(ROWS.as_bytes()));
    place.succeeds("blco-pack", &["U.TNS.GZ"]);
    assert!(identity(&place.path("U.blco")) == identity(&place.path("t.blco")));
    place.refuses("blco-run", &["t.blco", "--trace", "-"], &["--trace -: is written to a file; name one"]);
    place.refuses("blco-cpd", &["t.blco", "--report", "-"], &["--report -: is written to a file; name one"]);
    place.refuses(
        "blco-export",
        &["t.blco", "/dev/full"],
        &["not a regular file; name one, or use - for text"],
    );
    place.refuses("blco-run", &["t.blco", "--trace", "/dev/full"], &["not a regular file; name one\n"]);
}

/// `-` is standard output if one text is written, and no name of a directory.
#[test]
fn a_dash_is_standard_output_or_refused() {
    let place = Place::with_store();
    place.succeeds("blco-pack", &["t.tns", "-o", "t.hocfs"]);
    let model = ["--dims", "3,3", "--planted-rank", "1", "--support", "2", "--model", "-", "g.tns"];
    let all: [(&str, &[&str], &str); 7] = [
        ("blco-pack", &["t.tns", "-o", "-"], "-o -: a store is files in a directory; name one"),
        ("blco-pack", &["t.tns", "-o", "-", "--plan"], "-o -: a store is files in a directory; name one"),
        ("blco-info", &["t.blco", "--repair", "-"], "--repair -: a store is files in a directory; name one"),
        ("blco-run", &["t.blco", "--output", "-"], "--output -: results are files in a directory; name one"),
        ("blco-cpd", &["t.blco", "--output", "-"], "--output -: results are files in a directory; name one"),
        (
            "blco-cpd",
            &["t.blco", "--checkpoint", "-"],
            "--checkpoint -: checkpoints are files in a directory",
        ),
        ("blco-gen", &model, "--model -: factors are files in a directory; name one"),
    ];
    for (program, args, wanted) in all {
        place.refuses(program, args, &[wanted]);
    }
    // Along a mode that streams, and along one that does not.
    for (store, mode) in [("t.hocfs", "3"), ("t.hocfs", "1"), ("t.blco", "2")] {
        let ttv = [store, "--op", "ttv", "--modes", mode, "--backend", "cpu"];
        place.succeeds("blco-run", &[&ttv[..], &["--output", "out", "--force"]].concat());
        let before = tree(place.dir.path());
        let piped = place.succeeds("blco-run", &[&ttv[..], &["--output", "-"]].concat());
        assert_eq!(piped.as_bytes(), std::fs::read(place.path("out/result.tns")).unwrap());
        assert!(piped.lines().count() >= 3, "{piped}");
        assert!(tree(place.dir.path()) == before);
        for (option, value) in [("--json", &[][..]), ("--check", &["t.tns"])] {
            let args = [&ttv[..], &["--output", "-", option], value].concat();
            place.refuses("blco-run", &args, &[option, "on standard output, where - writes the"]);
        }
        assert!(
            place.succeeds("blco-run", &[&ttv[..], &["--output", "-", "--plan"]].concat()).contains(store)
        );
    }
}

/// Refusals say what is possible.
#[test]
fn refusals_name_the_way_on() {
    let place = Place::with_store();
    let int = b"\x93NUMPY\x01\0\x38\0{'descr': '<i8', 'fortran_order': False, 'shape': (3,)}\n";
    place.write("int.npy", int);
    let cases: [(&str, &[&str], &[&str]); 10] = [
        (
            "blco-run",
            &["t.blco", "--modes", "3", "--rank", "64", "--memory", "64KiB"],
            &["too little: take a smaller rank, or raise it"],
        ),
        (
            "blco-run",
            &["t.blco", "--op", "ttv", "--modes", "1", "--memory", "1KiB"],
            &["too little: raise it"],
        ),
        (
            "blco-run",
            &["t.blco", "--op", "ttv", "--modes", "1", "--vector", "int.npy"],
            &["int.npy: holds '<i8'; factors and vectors hold f8 or f4", "astype"],
        ),
        ("blco-gen", &["--dims", "9,9", "g.tns"], &["--nnz", "--planted-rank and --support"]),
        ("blco-cpd", &[], &["--score"]),
        ("blco-run", &["t.blco", "--index-base", "0"], &["--index-base", "--check"]),
        ("blco-run", &["t.blco", "--dims", "9,9,9"], &["--dims", "--check"]),
        ("blco-run", &["t.blco", "--device", "7", "--backend", "cpu"], &["--device is for a GPU"]),
        ("blco-pack", &["cr.tns"], &["cr.tns:1: lines end in CR alone; make line feeds of them"]),
        ("blco-pack", &["count.tns"], &["count.tns:3: `2` looks like a count", "remove the line"]),
    ];
    place.write("cr.tns", "1 2 3 4.5\r3 1 1 -1\r");
    place.write("count.tns", "3\n9 9 9\n2\n1 1 1 1\n2 2 2 2\n");
    for (program, args, wanted) in cases {
        place.refuses(program, args, wanted);
    }
    let nowhere = "none: is not a directory; create it, or name another";
    let pack = ["t.tns", "-o", "n.blco", "--temp-dir", "none"];
    let ttv = ["t.blco", "--op", "ttv", "--modes", "1", "--temp-dir", "none"];
    let all: [(&str, &[&str]); 4] = [
        ("blco-pack", &pack),
        ("blco-info", &["t.blco", "--repair", "n.blco", "--temp-dir", "none"]),
        ("blco-info", &["t.blco", "--storage", "--storage-dir", "none"]),
        ("blco-run", &ttv),
    ];
    for (program, args) in all {
        place.refuses(program, args, &["-dir none", nowhere]);
    }
    // A message does not ask for both of two exclusive options.
    let output = place.command("blco-gen", &["--dims", "9,9", "--model", "m", "g.tns"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--support") && !message.contains("--nnz"), "{message}");
    let mut without_driver = place.command("blco-run", &["t.blco", "--backend", "cuda"]);
    let without_driver = without_driver.env_remove("LD_LIBRARY_PATH").output().unwrap();
    let message = String::from_utf8(without_driver.stderr).unwrap();
    if message.contains("is not installed") {
        assert!(message.contains("install a driver, or take --backend cpu"), "{message}");
    }
}

#[test]
fn a_check_with_another_tensor_says_so() {
    let place = Place::with_store();
    place.write("other.tns", "1 1 1 3\n");
    for more in [&[][..], &["--op", "ttv", "--modes", "1"]] {
        let args = [&["t.blco", "--check", "other.tns", "--json"], more].concat();
        let output = place.command("blco-run", &args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let wanted =
            ["other.tns has dims 1 x 1 x 1, the store 3 x 3 x 4", "other.tns has 1 nonzero, the store 4"];
        assert_eq!(report["notes"], serde_json::json!(wanted));
    }
}

/// Numbers near the limits of f64: results that overflow f32, values and norms with an exponent.
#[test]
fn large_and_small_numbers_are_told() {
    let place = Place::new();
    place.write("big.tns", "1 1 1e300\n2 2 -1e300\n");
    place.write("small.tns", "1 1 1e-300\n2 2 -3e-300\n");
    place.succeeds("blco-pack", &["big.tns"]);
    place.succeeds("blco-pack", &["small.tns"]);
    let note = "results of modes 1, 2 overflow f32; take --precision f64";
    let run = ["big.blco", "--precision", "f32", "--backend", "cpu"];
    assert!(place.succeeds("blco-run", &run).contains(&format!("  note: {note}\n")));
    let report = place.json("blco-run", &[&run[..], &["--json"]].concat());
    assert_eq!(report["notes"], serde_json::json!([note]));
    let report = place.json("blco-run", &["big.blco", "--backend", "cpu", "--json"]);
    assert_eq!(report["notes"], serde_json::json!([]));

    assert!(
        place.succeeds("blco-info", &["big.blco"]).contains("values    -1e300 to 1e300, norm 1.4142e300")
    );
    let norm = |args: &[&str]| place.json("blco-info", args)["norm"].as_f64();
    let near = |found: Option<f64>, wanted: f64| (found.unwrap() / wanted - 1.0).abs() < 1e-14;
    assert!(near(norm(&["big.blco", "--json"]), 2f64.sqrt() * 1e300));
    assert!(near(norm(&["small.blco", "--json", "--verify"]), 10f64.sqrt() * 1e-300));
    assert_eq!(norm(&["small.blco", "--json", "--quick"]), None);
    assert!(place.succeeds("blco-info", &["small.blco", "--quick"]).contains("norm unknown"));
}

#[test]
fn generated_tensors_come_back() {
    let place = Place::new();
    let tensor = ["--dims", "60,9,40", "--nnz", "3k", "--skew", "1,2,1.5", "--values", "1..5", "--seed", "7"];
    place.succeeds("blco-gen", &[&tensor[..], &["g.tns"]].concat());
    assert_eq!(
        place.succeeds("blco-gen", &[&tensor[..], &["-"]].concat()).as_bytes(),
        std::fs::read(place.path("g.tns")).unwrap()
    );
    place.succeeds("blco-gen", &[&tensor[..], &["direct.blco"]].concat());
    place.succeeds("blco-pack", &["g.tns", "--dims", "60,9,40"]);
    let wanted = identity(&place.path("g.blco"));
    assert!(identity(&place.path("direct.blco")) == wanted, "a store directly, or by way of text");
    place.succeeds("blco-export", &["g.blco", "back.tns"]);
    let piped = place.succeeds("blco-export", &["g.blco", "-"]);
    assert_eq!(piped.as_bytes(), std::fs::read(place.path("back.tns")).unwrap());
    place.succeeds("blco-pack", &["back.tns", "--dims", "60,9,40"]);
    assert!(identity(&place.path("back.blco")) == wanted, "exported and packed again");
    place.succeeds("blco-export", &["g.blco", "back.npz"]);
    assert!(std::fs::read(place.path("back.npz")).unwrap().starts_with(b"PK"));
    for args in [&["g.blco", "--verify"][..], &["g.blco"], &["g.blco", "--quick"]] {
        assert!(place.succeeds("blco-info", args).contains("60 x 9 x 40"));
    }
}

#[test]
fn one_is_not_told_as_several() {
    let place = Place::new();
    place.write("t.tns", "1 1 1\n1 1 2\n");
    let said = place.succeeds("blco-pack", &["t.tns"]);
    assert!(said.starts_with("t.blco: 1 x 1, 1 nonzero, 1 duplicate added up\n"), "{said}");
    assert!(place.succeeds("blco-info", &["t.blco"]).contains("1 x 1, 1 nonzero, density"));
    let said = place.succeeds("blco-info", &["t.blco", "--repair", "u.blco"]);
    assert!(said.contains("salvaged  1 chunk, 1 nonzero; lost: 0 of chunks"), "{said}");
    assert!(place.succeeds("blco-export", &["t.blco", "u.tns"]).starts_with("u.tns: 1 nonzero, "));
    assert_eq!(place.succeeds("blco-gen", &["--dims", "3,3", "--nnz", "1", "g.tns"]), "g.tns: 1 nonzero\n");
    let kept = place.succeeds("blco-pack", &["t.tns", "-o", "k", "--duplicates", "keep"]);
    assert!(kept.starts_with("k: 1 x 1, 2 nonzeros, "), "{kept}");
}

/// Status 1 is for checks that fail; errors have 2.
#[test]
fn a_check_that_fails_has_status_1() {
    let place = Place::with_store();
    place.succeeds("blco-run", &["t.blco", "--check", "t.tns"]);
    place.write("other.tns", ROWS.replace("4.5", "4.75"));
    let output = place.command("blco-run", &["t.blco", "--check", "other.tns"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("DIFFERS"));

    let chunk = place.path("t.blco/chunk-000000.bin");
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[300] ^= 1;
    std::fs::write(&chunk, bytes).unwrap();
    let output = place.command("blco-info", &["t.blco", "--verify", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verified"], false);
    assert!(report["problem"].as_str().unwrap().contains("payload checksum"), "{report}");
    place.refuses("blco-info", &["t.blco"], &["chunk-000000.bin", "chunk 0: corrupt: payload checksum"]);
    place.refuses("blco-run", &["t.blco", "--output", "out"], &["chunk 0: corrupt: payload checksum"]);
    place.refuses("blco-export", &["t.blco", "x.tns"], &["chunk 0: corrupt: payload checksum"]);
}

#[test]
fn factors_that_were_written_give_the_same_results() {
    let place = Place::with_store();
    place.succeeds("blco-run", &["t.blco", "--output", "a", "--rank", "3"]);
    let first = tree(&place.path("a"));
    assert_eq!(
        first.keys().collect::<Vec<_>>(),
        [".made-by-blco", "mode-1.npy", "mode-2.npy", "mode-3.npy"].map(Path::new)
    );
    place.succeeds("blco-run", &["t.blco", "--output", "some", "--rank", "3", "--modes", "3,1"]);
    let mut some = tree(&place.path("some"));
    some.remove(Path::new(".made-by-blco")).unwrap();
    assert_eq!(some.keys().collect::<Vec<_>>(), ["mode-1.npy", "mode-3.npy"].map(Path::new));
    assert!(some.iter().all(|(name, bytes)| first[name] == *bytes));
    for out in ["b", "c"] {
        place.succeeds("blco-run", &["t.blco", "--factors", "a", "--output", out, "--threads", "1"]);
    }
    assert!(tree(&place.path("b")) == tree(&place.path("c")) && tree(&place.path("b")) != first);
}

#[test]
fn force_replaces_in_one_step_or_not_at_all() {
    let place = Place::with_store();
    let old = identity(&place.path("t.blco"));
    place.write("new.tns", "1 1 1\n2 2 2\n");
    place.write("bad.tns", "1 1 1\n2 2\n");
    place.refuses("blco-pack", &["bad.tns", "-o", "t.blco", "--force"], &["bad.tns:2: "]);
    for fault in ["write:0:28", "sync:0:5", "exchange:0:5", "exchange:1:5"] {
        let mut command = place.command("blco-pack", &["new.tns", "-o", "t.blco", "--force"]);
        let number = fault.rsplit(':').next().unwrap();
        place.refuses_as(command.env("BLCO_FAULT", fault), "blco-pack", &[&system_words(number)]);
    }
    assert!(identity(&place.path("t.blco")) == old);
    let before: Vec<PathBuf> = tree(place.dir.path()).into_keys().collect();
    place.succeeds("blco-pack", &["new.tns", "-o", "t.blco", "--force"]);
    assert!(identity(&place.path("t.blco")) != old);
    assert_eq!(tree(place.dir.path()).into_keys().collect::<Vec<_>>(), before, "the old store is gone");
    place.succeeds("blco-run", &["t.blco", "--check", "new.tns"]);
}

/// A closed pipe at the output is success, without a message.
#[test]
fn a_broken_pipe_is_success() {
    let place = Place::new();
    let generate = ["--dims", "1000,1000", "--nnz", "100k"];
    place.succeeds("blco-gen", &[&generate[..], &["g.blco"]].concat());
    for (program, args) in
        [("blco-export", vec!["g.blco", "-"]), ("blco-gen", [&generate[..], &["-"]].concat())]
    {
        let mut child = place.start(program, &args);
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.split_whitespace().count(), 3, "{line}");
        let (status, message) = end(child);
        assert_eq!((status.code(), message.as_str()), (Some(0), ""), "{program}");
    }
    // A report into a closed pipe.
    for program in ["blco-info", "blco-run"] {
        let mut child = place.start(program, &["g.blco"]);
        drop(child.stdout.take());
        let (status, message) = end(child);
        assert_eq!((status.code(), message.as_str()), (Some(0), ""), "{program}");
    }
}

/// Sends rows without end to `child` until it stops reading.
fn feed(child: &mut Child) -> std::thread::JoinHandle<()> {
    let mut input = child.stdin.take().unwrap();
    std::thread::spawn(move || {
        let rows = ROWS.repeat(10_000);
        while input.write_all(rows.as_bytes()).is_ok() {}
    })
}

#[test]
fn an_interrupt_of_packing_leaves_nothing() {
    for name in [crate::programs::interrupt(), "TERM"] {
        let place = Place::new();
        let mut child = place.start("blco-pack", &["-", "-o", "store"]);
        let feeder = feed(&mut child);
        wait_until("the packer to write", || place.path("store.partial").exists());
        signal(&child, name);
        let (status, message) = end(child);
        feeder.join().unwrap();
        assert_eq!(
            (status.code(), message.as_str()),
            (Some(130), "blco-pack: interrupted; no result was written\n")
        );
        assert!(tree(place.dir.path()).is_empty(), "{:?}", tree(place.dir.path()).keys());
    }
}

#[test]
fn an_interrupt_while_nothing_comes_in_ends_within_the_grace() {
    let place = Place::new();
    let mut child = place.start("blco-pack", &["-", "-o", "store"]);
    // A pipe that stays open and empty.
    let mut input = child.stdin.take().unwrap();
    input.write_all(ROWS.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, crate::programs::interrupt());
    let start = Instant::now();
    // The input stays open while the program ends.
    let (status, message) = end(child);
    assert_eq!(
        (status.code(), message.as_str()),
        (Some(130), "blco-pack: interrupted; no result was written\n")
    );
    assert!(start.elapsed().as_secs() < 10);
    drop(input);
    assert!(tree(place.dir.path()).is_empty(), "{:?}", tree(place.dir.path()).keys());
}

#[test]
fn an_interrupt_of_a_run_leaves_nothing() {
    let place = Place::with_store();
    let before = tree(place.dir.path());
    let child = place.start("blco-run", &["t.blco", "--repeat", "4000000000", "--output", "out"]);
    wait_until("the run to begin", || place.path("out.partial/result/mode-1.npy").exists());
    signal(&child, crate::programs::interrupt());
    let (status, _) = end(child);
    assert_eq!(status.code(), Some(130));
    assert_eq!(tree(place.dir.path()), before);
}

#[test]
fn a_killed_packer_is_cleaned_up_after() {
    let place = Place::new();
    place.write("t.tns", ROWS);
    let mut child = place.start("blco-pack", &["-", "-o", "t.blco"]);
    let feeder = feed(&mut child);
    let journal = place.path("t.blco.partial/journal");
    wait_until("the packer to write", || journal.metadata().is_ok_and(|facts| facts.len() > 0));
    // While it runs, no other program can write this store.
    place.refuses("blco-pack", &["t.tns"], &["t.blco", "another program writes this store now"]);
    signal(&child, "KILL");
    assert_eq!(end(child).0.code(), None);
    feeder.join().unwrap();
    assert!(place.path("t.blco.partial").exists());
    place.succeeds("blco-pack", &["t.tns"]);
    let names: Vec<_> =
        std::fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn the_plan_of_a_pack_estimates_and_writes_nothing() {
    let place = Place::new();
    place.write("t.tns", ROWS.repeat(1000));
    let before = tree(place.dir.path());
    let plan = place.json("blco-pack", &["t.tns", "--plan", "--json"]);
    assert_eq!(tree(place.dir.path()), before);
    let rows = (ROWS.lines().count() * 1000) as u64;
    let nnz = plan["nnz"].as_u64().unwrap();
    assert!(nnz.abs_diff(rows) <= rows / 50, "{nnz} for {rows}");
    assert_eq!((&plan["in_memory"], &plan["temporary_bytes"]), (&true.into(), &0.into()));
    assert!(plan["store_free_bytes"].as_u64().unwrap() > 0);
    place.refuses("blco-pack", &["t.tns", "--memory", "1MiB"], &["packing takes at least 64.0 MiB"]);
}
