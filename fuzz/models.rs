//! What the fuzz targets for checkpoints and for `--score` do with an input, and tests/stores/corpora.rs with the inputs that are
//! kept. An input is files that take the place of those of a valid directory: of each its number, the bytes that it has
//! (two, little-endian) and these.

#![allow(dead_code, reason = "every target uses a part")]

use blco::cli::Program;
use blco::cli::cpd::Cpd;
use blco::internals::coo::generate::{GenerateSpec, Generator};
use blco::internals::decomp::Model;
use blco::internals::decomp::score::score;
use blco::internals::dense::Matrix;
use blco::internals::error::{Error, Result};
use blco::internals::pack::{PackOptions, pack};
use blco::internals::sys::Sys;
use clap::Parser;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64;

/// Of a tensor of these dims.
const DIMS: [u64; 3] = [4, 3, 2];

/// Contents by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The files that can be replaced in a checkpoint, by number.
const CHECKPOINT: [&str; 13] = [
    "checkpoint.json",
    "mode-1.npy",
    "mode-2.npy",
    "mode-3.npy",
    "gram-1.npy",
    "gram-2.npy",
    "gram-3.npy",
    "start-1/mode-1.npy",
    "start-1/mode-2.npy",
    "start-1/mode-3.npy",
    "start-1/gram-1.npy",
    "start-1/gram-2.npy",
    "start-1/gram-3.npy",
];

/// The same of two models.
const MODELS: [&str; 8] = [
    "a/mode-1.npy",
    "a/mode-2.npy",
    "a/mode-3.npy",
    "a/lambda.npy",
    "b/mode-1.npy",
    "b/mode-2.npy",
    "b/mode-3.npy",
    "b/lambda.npy",
];

/// `files` with those of the input instead; a number that none has removes one.
fn replaced(files: &Files, names: &[&str], mut data: &[u8]) -> Files {
    let mut files = files.clone();
    while let [number, low, high, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (contents, rest) = rest.split_at(length);
        let name = names[usize::from(*number) % names.len()];
        if usize::from(*number) < 2 * names.len() {
            files.insert(name.to_owned(), contents.to_vec());
        } else {
            files.remove(name);
        }
        data = rest;
    }
    files
}

fn read_files(dir: &Path, at: &str, files: &mut Files) {
    for entry in std::fs::read_dir(dir.join(at)).expect("a directory").map(|e| e.expect("an entry")) {
        let name = format!("{at}{}", entry.file_name().to_str().expect("an ordinary name"));
        if entry.path().is_dir() {
            read_files(dir, &format!("{name}/"), files);
        } else {
            files.insert(name, std::fs::read(entry.path()).expect("a file"));
        }
    }
}

fn write_files(dir: &Path, files: &Files) {
    for (name, contents) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().expect("it is in a directory")).expect("a directory");
        std::fs::write(path, contents).expect("a file");
    }
}

/// Decomposes `dir/s` with checkpoints in `dir/c`, which are continued with `resume`.
fn decompose(dir: &Path, iterations: &str, resume: bool) -> Result<()> {
    let path = |name: &str| dir.join(name).to_str().expect("an ordinary name").to_owned();
    let mut arguments =
        ["blco-cpd", "--quiet", "--backend", "cpu", "--threads", "1", "--rank", "2", "--starts", "2"]
            .map(str::to_owned)
            .to_vec();
    arguments
        .extend(["--tol", "0", "--every", "1", "--max-iters", iterations, "--checkpoint"].map(str::to_owned));
    arguments.extend([path("c"), path("s"), "--no-output".into(), "--report".into(), path("page.html")]);
    arguments.extend(resume.then(|| "--resume".to_owned()));
    Cpd::try_parse_from(arguments).expect("right arguments").run(&Sys::default()).map(drop)
}

/// A store in `s` and a checkpoint of its decomposition in `c`.
fn checkpointed() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let (dir, sys) = (tempfile::tempdir().expect("a temporary directory"), Sys::default());
        let spec = GenerateSpec { dims: DIMS.to_vec(), nnz: 12, ..GenerateSpec::default() };
        let mut tensor = Generator::new(&sys, spec).expect("a small tensor");
        pack(&sys, &mut tensor, &PackOptions::new(dir.path().join("s")), &|_, _, _| ()).expect("packed");
        decompose(dir.path(), "2", false).expect("decomposed");
        let mut files = Files::new();
        for at in ["s/", "c/"] {
            read_files(dir.path(), at, &mut files);
        }
        let whole = sealed(&files);
        assert!(resumes(&files).is_ok() && resumes(&whole).is_ok(), "what was not changed can be continued");
        files
    })
}

fn resumes(files: &Files) -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    write_files(dir.path(), files);
    decompose(dir.path(), "3", true)
}

/// A checkpoint: it is continued or refused.
pub fn checkpoint(data: &[u8]) {
    let names = CHECKPOINT.map(|name| format!("c/current/{name}"));
    let names = names.each_ref().map(String::as_str);
    let files = replaced(checkpointed(), &names, data);
    for files in [sealed(&files), files] {
        match resumes(&files) {
            Ok(()) | Err(Error::Corrupt { .. } | Error::Input { .. } | Error::Request(_)) => {}
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// The files with checksums in `checkpoint.json` that fit what is there.
fn sealed(files: &Files) -> Files {
    const MATRICES: [&str; 2] = ["\"matrices\":[[", "]]"];
    const FACTS: [&str; 2] = ["\"checksum\":\"", "\",\"facts\":"];
    let at = "c/current/checkpoint.json";
    let Some(Ok(text)) = files.get(at).map(|bytes| std::str::from_utf8(bytes)) else { return files.clone() };
    let (mut whole, mut rest) = (String::new(), text);
    for dir in ["", "start-1/"] {
        let Some((before, after)) = rest.split_once(MATRICES[0]) else { break };
        let Some((_, after)) = after.split_once(MATRICES[1]) else { break };
        let of_mode = |m: usize| {
            ["mode", "gram"].map(|kind| checksum(files, &format!("{dir}{kind}-{m}.npy"))).join(",")
        };
        let all = (1..=DIMS.len()).map(of_mode).collect::<Vec<_>>().join("],[");
        whole = [&whole, before, MATRICES[0], &all, MATRICES[1]].concat();
        rest = after;
    }
    whole += rest;
    if let Some((before, after)) = whole.split_once(FACTS[0])
        && let Some((_, facts)) = after.split_once(FACTS[1])
        && let Some(text) = facts.strip_suffix('}')
    {
        let sum = xxh3_64(text.as_bytes());
        whole = format!("{before}{}{sum:016x}{}{facts}", FACTS[0], FACTS[1]);
    }
    let mut files = files.clone();
    files.insert(at.to_owned(), whole.into_bytes());
    files
}

/// Of a matrix's numbers, in quotes, as a checkpoint has it.
fn checksum(files: &Files, name: &str) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("matrix.npy");
    let contents = files.get(&format!("c/current/{name}")).map_or(&[][..], Vec::as_slice);
    std::fs::write(&path, contents).expect("a file");
    let sys = Sys::default();
    let bytes = sys
        .open(&path, false)
        .and_then(|file| Matrix::<f64>::read(&sys, file, None))
        .map_or(Vec::new(), |m| m.data().iter().flat_map(|x| x.to_le_bytes()).collect());
    format!("\"{:016x}\"", xxh3_64(&bytes))
}

/// Two models: they are refused, or their score is one, in both directions, and each agrees with itself.
pub fn models(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    write_files(dir.path(), &replaced(two_models(), &MODELS, data));
    let load = |name: &str| Model::load(&Sys::default(), &dir.path().join(name)).ok();
    let models = [load("a"), load("b")];
    for a in models.iter().flatten() {
        for b in models.iter().flatten() {
            let Ok(found) = score(a, b) else { continue };
            let is_score = |x: f64| (0.0..=1.0).contains(&x);
            assert!(
                is_score(found.score) && found.pairs.iter().all(|pair| is_score(pair.score)),
                "{found:?}"
            );
            assert_eq!(found.pairs.len(), a.lambda.rows().min(b.lambda.rows()));
            assert!(!std::ptr::eq(a, b) || found.score > 1.0 - 1e-9, "a model and itself: {found:?}");
        }
    }
}

fn two_models() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let (dir, sys) = (tempfile::tempdir().expect("a temporary directory"), Sys::default());
        let mut files = Files::new();
        for (seed, name) in MODELS.iter().enumerate() {
            let path = dir.path().join("matrix.npy");
            let file = sys.create(&path).expect("a file");
            let written = match DIMS.get(seed % 4) {
                Some(&rows) => {
                    let rows = usize::try_from(rows).expect("a few");
                    let factor = Matrix::<f64>::seeded(&sys, rows, 2, seed % 4, seed as u64);
                    factor.and_then(|factor| factor.write(&file))
                }
                None => Matrix::from_rows(2, 1, vec![2.0, 1.0]).write_vector(&file),
            };
            written.expect("a small matrix");
            files.insert((*name).to_owned(), std::fs::read(&path).expect("a file"));
            std::fs::remove_file(&path).expect("a file");
        }
        files
    })
}
