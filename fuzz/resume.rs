//! Killed packs whose journal or temporary files hold what an input says, and what `--resume` makes of them: the store that
//! an undisturbed pack writes, or an error.

use super::pass;
use blco::internals::coo::{Batch, Extent, Source};
use blco::internals::error::Result;
use blco::internals::op::verify::verify;
use blco::internals::pack::{PackOptions, pack};
use blco::internals::random::Counter;
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Of the tensor that the packs read: nonzeros for two staged files.
pub const NNZ: u64 = 17_000;
pub const DIMS: [u64; 3] = [64, 1000, 70_000];
/// The directory for temporary files and its key, in the place of random ones.
pub const SPILL_DIR: &str = "blco-spill-0123456789abcdef0123456789abcdef";
pub const KEY: u128 = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
/// Bytes of a frame's header.
pub const FRAME_HEADER: usize = 16;

/// A store's files.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The tensor.
struct Rows;

impl Source for Rows {
    fn name(&self) -> String {
        "rows".into()
    }

    fn identity(&self) -> Result<Option<String>> {
        Ok(Some("rows".into()))
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let random = [0, 1, 2].map(|mode| Counter::new(5, mode));
        let index = |m: usize, i: u64| if i == 0 { DIMS[m] - 1 } else { random[m].bits(i / 2) % DIMS[m] };
        let row = |i: u64| [0, 1, 2].map(|m| u32::try_from(index(m, i)).expect("short dims"));
        let indices = (0..NNZ).flat_map(row).collect();
        sink(Batch { indices, values: (0..NNZ).map(|i| (i % 7) as f64 - 3.0).collect() })?;
        Ok(Extent { dims: DIMS.to_vec(), nnz: NNZ })
    }
}

/// What a pack left that was killed when it had made a run of its first staged file.
pub struct Killed {
    /// The JSON of the journal's lines.
    pub journal: Vec<String>,
    /// The temporary files.
    pub files: Files,
    /// The store that was to come out.
    pub store: Files,
}

fn files(dir: &Path) -> Files {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let file = |path: std::path::PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read(&path).expect("a file"))
    };
    entries.filter(|path| path.is_file()).map(file).collect()
}

fn options(dir: &Path) -> PackOptions {
    PackOptions { memory: 0, resume: true, ..PackOptions::new(dir.join("t.blco")) }
}

/// The killed pack, made once.
pub fn killed() -> &'static Killed {
    static KILLED: OnceLock<Killed> = OnceLock::new();
    KILLED.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let partial = dir.path().join("t.blco.partial");
        let left = Mutex::new(None);
        // A kill at this moment leaves just these files.
        let copy = |what: &str, done: u64, _: Option<u64>| {
            if what == "sorting" && done == NNZ {
                let text = String::from_utf8(files(&partial)["journal"].clone()).expect("text");
                let name = std::fs::read_dir(&partial)
                    .expect("a directory")
                    .flatten()
                    .map(|entry| entry.file_name());
                let name = name
                    .filter_map(|name| name.into_string().ok())
                    .find(|name| name.starts_with("blco-spill-"));
                let name = name.expect("it spills");
                let json = text.lines().map(|line| line[17..].replace(&name, SPILL_DIR)).collect();
                *left.lock().expect("unharmed") = Some((json, files(&partial.join(name))));
            }
        };
        pack(&Sys::default(), &mut Rows, &options(dir.path()), &copy).expect("an undisturbed pack");
        let (journal, mut files_left): (Vec<String>, Files) =
            left.into_inner().expect("unharmed").expect("it comes there");
        files_left.remove("owner");
        assert!(journal.len() == 5 && files_left.keys().eq(["run-2", "staged-1"]));
        Killed { journal, files: files_left, store: files(&dir.path().join("t.blco")) }
    })
}

/// The lines of a journal, each with its checksum.
pub fn signed(lines: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut chain = xxh3_64(&KEY.to_le_bytes());
    let mut text = Vec::new();
    for line in lines {
        chain = xxh3_64_with_seed(line.as_ref(), chain);
        text.extend([format!("{chain:016x} ").as_bytes(), line.as_ref(), b"\n"].concat());
    }
    text
}

/// Gives the frames in `bytes` payloads that are there and checksums that fit; their nonzeros and the file's checksum.
pub fn seal_frames(bytes: &mut Vec<u8>) -> (u64, u64) {
    let (mut at, mut nnz, mut checksum) = (0, 0, 0);
    while at < bytes.len() {
        if bytes.len() - at < FRAME_HEADER {
            bytes.resize(at + FRAME_HEADER, 0);
        }
        let word = |k: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + k + i]));
        let (said, count) = (word(0) as usize, word(4));
        let end = (at + FRAME_HEADER).saturating_add(said).min(bytes.len());
        let payload = u32::try_from(end - at - FRAME_HEADER).expect("inputs are short");
        let frame = xxh3_64_with_seed(&bytes[at + FRAME_HEADER..end], count.into()).to_le_bytes();
        bytes[at..at + 4].copy_from_slice(&payload.to_le_bytes());
        bytes[at + 8..at + FRAME_HEADER].copy_from_slice(&frame);
        checksum = xxh3_64_with_seed(&frame, checksum);
        nnz += u64::from(count);
        at = end;
    }
    (nnz, checksum)
}

/// Resumes a killed pack that left these files, in a new directory: the store, or the error.
pub fn resume(journal: &[u8], temporaries: &Files) -> Result<Files> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let partial = dir.path().join("t.blco.partial");
    let spill = partial.join(SPILL_DIR);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&spill).expect("a directory");
    let write = |path: &Path, bytes: &[u8]| {
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        std::io::Write::write_all(&mut file.expect("a file"), bytes).expect("room");
    };
    write(&partial.join("journal"), journal);
    let owner = format!("blco temporary files {KEY:032x}\n{}", partial.display());
    write(&spill.join("owner"), owner.as_bytes());
    for (name, bytes) in temporaries {
        write(&spill.join(name), bytes);
    }
    let options = options(dir.path());
    let packed = pack(&Sys::default(), &mut Rows, &options, &|_, _, _| ());
    if let Err(error) = packed {
        assert!(!options.target.exists(), "{error}");
        return Err(error);
    }
    let store = Store::open(&Sys::default(), &options.target).expect("a store");
    verify(&store, |part, op| pass(part, op)).expect("a store that verifies");
    assert!(!partial.exists());
    Ok(files(&options.target))
}

/// A journal: as it is, and with its lines signed.
pub fn journal(data: &[u8]) {
    let Killed { files, store, .. } = killed();
    if let Ok(packed) = resume(data, files) {
        assert!(packed == *store, "another store");
    }
    let lines: Vec<&[u8]> = data.split(|&b| b == b'\n').filter(|line| !line.is_empty()).collect();
    drop(resume(&signed(&lines), files));
}

/// A file of frames, the first byte says of which kind, that holds all of a tensor: as it is, and sealed.
pub fn spill(data: &[u8]) {
    let Some((&kind, frames)) = data.split_first() else { return };
    let mut sealed = frames.to_vec();
    let (nnz, checksum) = seal_frames(&mut sealed);
    for frames in [frames.to_vec(), sealed] {
        let name = if kind % 2 == 0 { "run-0" } else { "staged-0" };
        let done =
            format!(r#"{{"name":"{name}","nnz":{nnz},"bytes":{},"checksum":{checksum}}}"#, frames.len());
        let finished = if kind % 2 == 0 {
            format!(r#"{{"run":{{"run":{done},"from":[]}}}}"#)
        } else {
            format!(r#"{{"staged":{done}}}"#)
        };
        let drained = format!(r#"{{"drained":{{"dims":{DIMS:?},"nnz":{nnz}}}}}"#);
        let journal = signed(&[&killed().journal[0], &finished, &drained]);
        drop(resume(&journal, &Files::from([(name.to_owned(), frames)])));
    }
}
