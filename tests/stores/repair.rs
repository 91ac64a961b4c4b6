//! Establishes what `blco-info --repair` does: whichever single file of a store of several chunks is deleted, truncated or
//! has a bit flipped, the new store holds exactly the nonzeros of the intact chunks and verifies, and the report counts what is
//! lost. An undamaged store, with or without its manifest, is unchanged. Chunks of other stores are never
//! taken. If nothing is intact, nothing is written.

use crate::common::{
    BLCO_KINDS, KINDS, Kind, SMALL_CHUNKS, Tensor, exported, identity, options, packed, tree, values,
};
use blco::internals::error::Error;
use blco::internals::op::salvage::Salvage;
use blco::internals::pack::{Duplicates, PackOptions};
use blco::internals::random::Counter;
use blco::internals::store::{Formats, Store};
use blco::internals::sys::Sys;
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the header of a chunk of three or four sections.
const HEADER_BYTES: usize = 256;

/// A directory with a store, its nonzeros, and the ranges of its chunks.
struct Case {
    dir: TempDir,
    tensor: Tensor,
    chunks: Vec<Range<usize>>,
    id: String,
}

fn chunk_file(number: usize) -> String {
    format!("chunk-{number:06}.bin")
}

impl Case {
    fn new(tensor: &Tensor, change: impl FnOnce(PackOptions) -> PackOptions, kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = packed(tensor, &change(options(&dir.path().join("old"), kind, SMALL_CHUNKS)));
        let at = |n: u64| usize::try_from(n).unwrap();
        let chunk = |c: &blco::internals::store::ChunkEntry| at(c.first_nonzero)..at(c.first_nonzero + c.nnz);
        let chunks = store.manifest().chunks.iter().map(chunk).collect();
        Self { tensor: exported(&store).unwrap(), chunks, id: format!("{:016x}", store.id()), dir }
    }

    /// Several chunks of a kind; nothing repeats, and the last tile is not full.
    fn several(kind: Kind) -> Self {
        let nnz = if kind == Kind::Raw { 13_000 } else { 24_000 };
        let case = Self::new(&Tensor::random(&[300, 200, 500], nnz, 5, values::fraction), |o| o, kind);
        assert!(case.chunks.len() >= 4 && !case.tensor.nnz().is_multiple_of(512), "{:?}", case.chunks);
        case
    }

    fn old(&self) -> PathBuf {
        self.dir.path().join("old")
    }

    fn new_store(&self) -> PathBuf {
        self.dir.path().join("new")
    }

    fn info(&self, args: &[&str]) -> Output {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_blco-info"));
        command.current_dir(self.dir.path()).args(args).env_remove("BLCO_FAULT").output().unwrap()
    }

    /// Repairs, compares the new store with the chunks except `lost`, and removes it. Returns the report.
    fn repairs(&self, lost: &[usize], what: &str) -> Value {
        let before = tree(&self.old());
        let output = self.info(&["old", "--repair", "new", "--json"]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let status = i32::from(!lost.is_empty());
        assert_eq!((output.status.code(), &message[..]), (Some(status), ""), "{what}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(before == tree(&self.old()), "{what}: the old store stays as it was");

        let verified = self.info(&["new", "--verify", "--json"]);
        assert!(verified.status.success(), "{what}: {}", String::from_utf8_lossy(&verified.stdout));
        let order = self.tensor.order();
        let kept = (0..self.chunks.len()).filter(|n| !lost.contains(n)).map(|n| self.chunks[n].clone());
        let mut wanted = Tensor { dims: self.tensor.dims.clone(), ..Tensor::default() };
        for chunk in kept.clone() {
            wanted.indices.extend(&self.tensor.indices[chunk.start * order..chunk.end * order]);
            wanted.values.extend(&self.tensor.values[chunk]);
        }
        let store = Store::open(&Sys::default(), &self.new_store()).unwrap();
        assert!(exported(&store).unwrap() == wanted, "{what}: the nonzeros of the intact chunks");
        assert_eq!(report["chunks_intact"], kept.count(), "{what}");
        assert_eq!(report["nnz_salvaged"], wanted.nnz(), "{what}");
        assert_eq!(report["digest"], self.id, "{what}");
        assert_eq!(report["new_digest"], format!("{:016x}", store.id()), "{what}");
        assert_eq!(report["new_digest"] == report["digest"], lost.is_empty(), "{what}");
        std::fs::remove_dir_all(self.new_store()).unwrap();
        report
    }

    /// The same, if everything that is lost is known.
    fn repairs_and_knows(&self, lost: &[usize], what: &str) -> Value {
        let report = self.repairs(lost, what);
        let nnz: usize = lost.iter().map(|&n| self.chunks[n].len()).sum();
        assert_eq!(
            (&report["chunks_lost"], &report["nnz_lost"]),
            (&lost.len().into(), &nnz.into()),
            "{what}"
        );
        if let [only] = lost {
            let loss = &report["losses"][0];
            assert_eq!(loss["first_chunk"], *only, "{what}");
            assert_eq!(loss["last_chunk"], *only, "{what}");
            assert_eq!(loss["first_nonzero"], self.chunks[*only].start, "{what}");
            assert_eq!(loss["nnz"], nnz, "{what}");
        }
        assert_eq!(report["losses"].as_array().unwrap().is_empty(), lost.is_empty(), "{what}");
        report
    }

    /// Deletes, truncates and flips bits of `file`, and calls `check` each time. The file is whole again at the end.
    fn damage(&self, file: &str, check: &dyn Fn(&str)) {
        let path = self.old().join(file);
        let whole = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        check(&format!("without {file}"));
        for length in [0, 1, 100, 130, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            check(&format!("{file} cut to {length} bytes"));
        }
        std::fs::write(&path, [&whole[..], &[0; 4096]].concat()).unwrap();
        check(&format!("{file} with 4096 more bytes"));
        let random = Counter::new(whole.len() as u64, 0);
        let bit = |n: u64| usize::try_from(random.bits(n)).unwrap() % (whole.len() * 8);
        let in_header = |n: u64| bit(n) % (HEADER_BYTES.min(whole.len()) * 8);
        for bit in (0..4).map(bit).chain((4..8).map(in_header)).chain([whole.len() * 8 - 1]) {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            check(&format!("bit {bit} of {file} flipped"));
        }
        std::fs::write(&path, &whole).unwrap();
    }
}

fn any_file_may_be_damaged(kind: Kind) {
    let case = Case::several(kind);
    let report = case.repairs_and_knows(&[], "undamaged");
    assert_eq!([&report["manifest_problem"], &report["provenance_problem"]], [&Value::Null; 2]);
    case.damage("manifest", &|what| {
        let report = case.repairs_and_knows(&[], what);
        assert!(report["manifest_problem"].is_string(), "{what}");
    });
    for number in 0..case.chunks.len() {
        let file = chunk_file(number);
        case.damage(&file, &|what| {
            let report = case.repairs_and_knows(&[number], what);
            let reason = &report["losses"][0]["reason"];
            assert_eq!(reason == "missing", what.starts_with("without"), "{what}: {reason}");
            if reason != "missing" {
                assert_eq!(report["unused_files"][0]["file"], file, "{what}");
                assert_eq!(&report["unused_files"][0]["reason"], reason, "{what}");
            }
        });
    }
    case.repairs_and_knows(&[], "whole again");
}

#[test]
fn any_file_of_a_raw_store_may_be_damaged() {
    any_file_may_be_damaged(Kind::Raw);
}

#[test]
fn any_file_of_a_tiled_store_may_be_damaged() {
    any_file_may_be_damaged(Kind::Tiled);
}

#[test]
fn any_file_of_a_zstd_store_may_be_damaged() {
    any_file_may_be_damaged(Kind::TiledZstd);
}

#[test]
fn any_file_of_a_store_of_trees_may_be_damaged() {
    any_file_may_be_damaged(Kind::HocfsEll);
}

/// Without the manifest, gaps are known from their neighbours; the end only from a chunk, or its header, that ends in a
/// tile. Chunks of trees end anywhere, so if one of theirs is lost, more may be.
#[test]
fn losses_without_a_manifest() {
    for kind in KINDS {
        let case = Case::several(kind);
        let last = case.chunks.len() - 1;
        std::fs::remove_file(case.old().join("manifest")).unwrap();
        let whole: Vec<_> =
            (0..=last).map(|n| std::fs::read(case.old().join(chunk_file(n))).unwrap()).collect();
        let restore = || {
            for (n, contents) in whole.iter().enumerate() {
                std::fs::write(case.old().join(chunk_file(n)), contents).unwrap();
            }
        };
        let remove = |n: usize| std::fs::remove_file(case.old().join(chunk_file(n))).unwrap();
        let ends_show = BLCO_KINDS.contains(&kind);
        let repairs = |lost: &[usize], what: &str| {
            if ends_show {
                return case.repairs_and_knows(lost, what);
            }
            let report = case.repairs(lost, what);
            assert_eq!([&report["chunks_lost"], &report["nnz_lost"]], [&Value::Null; 2], "{what}");
            assert_eq!(report["losses"][0]["first_nonzero"], case.chunks[lost[0]].start, "{what}");
            report
        };
        for number in 0..last {
            remove(number);
            repairs(&[number], "a gap");
            restore();
        }
        remove(0);
        std::fs::write(case.old().join(chunk_file(1)), b"x").unwrap();
        let report = repairs(&[0, 1], "two chunks at the start");
        let loss = &report["losses"][0];
        assert_eq!([&loss["first_chunk"], &loss["last_chunk"]], [0, 1]);
        let reason = loss["reason"].as_str().unwrap();
        assert!(reason.contains("chunk-000001.bin: ") && reason.contains("1 missing"), "{reason}");
        restore();

        remove(last);
        let report = case.repairs(&[last], "no end");
        assert_eq!([&report["chunks_lost"], &report["nnz_lost"]], [&Value::Null; 2]);
        assert_eq!(report["losses"][0]["first_chunk"], last);
        assert_eq!(report["losses"][0]["last_chunk"], Value::Null);
        let mut flipped = whole[last].clone();
        flipped[300] ^= 1;
        std::fs::write(case.old().join(chunk_file(last)), &flipped).unwrap();
        repairs(&[last], "the header of the last chunk tells where it ends");
        restore();
        case.repairs_and_knows(&[], "whole again");
    }
}

/// If a store's last tile is full, only the digest shows that it ends there.
#[test]
fn a_full_last_tile_and_repeated_coordinates_come_back_without_a_manifest() {
    let once = Tensor::random(&[3000, 2000, 5000], 40 * 512, 6, values::fraction);
    for kind in KINDS {
        let case = Case::new(&once, |o| o, kind);
        assert_eq!(case.tensor.nnz() % 512, 0);
        std::fs::remove_file(case.old().join("manifest")).unwrap();
        let report = case.repairs_and_knows(&[], "a full last tile");
        assert_eq!(report["duplicates_may_occur"], false);

        let dense = Tensor::random(&[20, 20, 20], 13_000, 7, values::fraction);
        let case = Case::new(&dense, |o| PackOptions { duplicates: Duplicates::Keep, ..o }, kind);
        case.repairs_and_knows(&[], "repeated coordinates");
        std::fs::remove_file(case.old().join("manifest")).unwrap();
        let report = case.repairs_and_knows(&[], "repeated coordinates without a manifest");
        assert_eq!(report["duplicates_may_occur"], true);
    }
    // Chunks with the most nonzeros, in a quarter of the bytes.
    let dense = Tensor::random(&[40, 40, 40], 60_000, 8, values::one);
    let case = Case::new(&dense, |o| PackOptions { chunk_bytes: 128 << 10, ..o }, Kind::Tiled);
    assert!(case.chunks.len() > 1);
    std::fs::remove_file(case.old().join("manifest")).unwrap();
    case.repairs_and_knows(&[], "small chunks");
    // One chunk does not show the bound on chunks, which is then the default.
    let one = Tensor::random(&[30, 20, 10], 512, 8, values::one);
    let case = Case::new(&one, |o| PackOptions { chunk_bytes: 8 << 20, ..o }, Kind::Tiled);
    assert_eq!(case.chunks.len(), 1);
    std::fs::remove_file(case.old().join("manifest")).unwrap();
    case.repairs_and_knows(&[], "one chunk");
}

/// Chunks of another store, in place of a chunk or beside them, are named and not taken, however many there are;
/// chunks under other names are.
#[test]
fn chunks_of_other_stores_are_not_used() {
    let case = Case::several(Kind::Tiled);
    let other = case.dir.path().join("other");
    let more = Tensor::random(&[300, 200, 500], 12_000, 9, values::fraction);
    let foreign = packed(&more, &options(&other, Kind::Tiled, SMALL_CHUNKS));
    let copy = |from: &Path, name: &str| std::fs::copy(from, case.old().join(name)).unwrap();
    let count = case.chunks.len();
    let theirs = format!("{:016x}", foreign.id());
    for with_manifest in [true, false] {
        if !with_manifest {
            std::fs::remove_file(case.old().join("manifest")).unwrap();
        }
        copy(&other.join(chunk_file(0)), &chunk_file(count));
        let report = case.repairs_and_knows(&[], "a chunk of another store beside");
        assert_eq!(report["unused_files"].as_array().unwrap().len(), 1);
        assert!(report["unused_files"][0]["reason"].as_str().unwrap().contains(&theirs), "{report}");

        let kept = std::fs::read(case.old().join(chunk_file(1))).unwrap();
        copy(&other.join(chunk_file(1)), &chunk_file(1));
        let report = case.repairs_and_knows(&[1], "a chunk of another store in place of one");
        let reason = report["losses"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("another store") || reason.contains(&theirs), "{reason}");
        std::fs::write(case.old().join(chunk_file(1)), kept).unwrap();
        std::fs::remove_file(case.old().join(chunk_file(count))).unwrap();

        let path = |n: usize| case.old().join(chunk_file(n));
        std::fs::rename(path(0), path(77)).unwrap();
        std::fs::rename(path(2), path(0)).unwrap();
        std::fs::rename(path(77), path(2)).unwrap();
        std::fs::copy(path(1), path(50)).unwrap();
        let report = case.repairs_and_knows(&[], "chunks under each other's names, and a copy");
        assert_eq!(report["unused_files"].as_array().unwrap().len(), 1);
        std::fs::rename(path(0), path(77)).unwrap();
        std::fs::rename(path(2), path(0)).unwrap();
        std::fs::rename(path(77), path(2)).unwrap();
        std::fs::remove_file(path(50)).unwrap();
    }
}

/// Refused with status 2 and one line that holds `wanted`; nothing changes.
fn refuses(case: &Case, args: &[&str], wanted: &str) {
    let before = tree(case.dir.path());
    let output = case.info(args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert!(message.lines().count() == 1 && message.contains(wanted), "{args:?}: {message}");
    assert_eq!(output.stdout, b"", "{args:?}");
    assert!(before == tree(case.dir.path()), "{args:?}: nothing changes");
}

#[test]
fn nothing_is_written_where_nothing_is_intact_or_something_is_in_the_way() {
    let case = Case::several(Kind::Tiled);
    let repair = ["old", "--repair", "new"];
    refuses(&case, &["none", "--repair", "new"], "none: no store here");
    refuses(&case, &["old", "--repair", "old", "--force"], "old: is the old store");
    refuses(&case, &["old", "--repair", "new", "--memory", "1MiB"], "at least");
    refuses(&case, &["old", "--repair", "no/where"], "cannot create no/where");
    std::fs::create_dir(case.new_store()).unwrap();
    refuses(&case, &repair, "new: exists and is not a store");
    refuses(&case, &["new", "--repair", "newer"], "new: no store here");
    std::fs::remove_dir(case.new_store()).unwrap();

    let one = Tensor::of([2, 2], &[([1, 1], 4.0)]);
    packed(&one, &options(&case.new_store(), Kind::Tiled, SMALL_CHUNKS));
    refuses(&case, &repair, "new: a store already exists; replace it with --force");
    assert!(case.info(&["old", "--repair", "new", "--force"]).status.success());
    assert!(identity(&case.new_store()) == identity(&case.old()), "replaced by the old store's equal");
    std::fs::remove_dir_all(case.new_store()).unwrap();

    for number in 0..case.chunks.len() {
        let path = case.old().join(chunk_file(number));
        let mut contents = std::fs::read(&path).unwrap();
        contents[300] ^= 1;
        std::fs::write(&path, contents).unwrap();
    }
    refuses(&case, &repair, "nothing can be salvaged: none of ");
    std::fs::remove_file(case.old().join("manifest")).unwrap();
    refuses(&case, &repair, "chunk-000000.bin: chunk 0: corrupt: payload checksum");
}

#[test]
fn the_report_says_what_is_damaged() {
    let case = Case::several(Kind::Tiled);
    let text = |status: i32| {
        let output = case.info(&["old", "--repair", "new", "--force"]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = |text: &str| text.lines().next().unwrap().to_owned();
    assert_eq!(first(&text(0)), "old: nothing is damaged");
    std::fs::write(case.old().join("provenance.json"), b"{").unwrap();
    let told = text(0);
    assert_eq!(first(&told), "old: only provenance.json is damaged");
    assert!(told.contains("provenance.json: not JSON"), "{told}");
    std::fs::remove_file(case.old().join("provenance.json")).unwrap();
    assert!(text(0).contains("provenance.json: missing"));
    std::fs::remove_file(case.old().join("manifest")).unwrap();
    assert_eq!(first(&text(0)), "old: the manifest is damaged: missing; no nonzero is lost");
    std::fs::remove_file(case.old().join(chunk_file(1))).unwrap();
    let told = text(1);
    assert_eq!(first(&told), "old: DAMAGED; the manifest: missing");
    assert!(told.contains("provenance.json: missing"), "{told}");
    let chunk = &case.chunks[1];
    let line =
        format!("lost      chunk 1, nonzeros {} to {}, counted from 0: missing", chunk.start, chunk.end - 1);
    assert!(told.contains(&line), "{told}");
}

/// Chunk files with each other's names: the store is refused, and nothing is lost.
#[test]
fn chunk_files_that_are_not_where_they_should_be_are_told() {
    let case = Case::several(Kind::Tiled);
    let [a, b, aside] = [chunk_file(0), chunk_file(1), "aside".into()].map(|name| case.old().join(name));
    std::fs::rename(&a, &aside).unwrap();
    std::fs::rename(&b, &a).unwrap();
    std::fs::rename(&aside, &b).unwrap();
    let output = case.info(&["old", "--repair", "new"]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = told.lines().take(3).collect();
    let wanted = [
        "old: chunk files are not where they should be; no nonzero is lost",
        "  misplaced chunk-000001.bin: holds chunk 0",
        "  misplaced chunk-000000.bin: holds chunk 1",
    ];
    assert_eq!(lines, wanted);
    // A copy beside the right one changes nothing.
    std::fs::rename(&a, &aside).unwrap();
    std::fs::rename(&b, &a).unwrap();
    std::fs::rename(&aside, &b).unwrap();
    std::fs::copy(&b, case.old().join("chunk-1.bin")).unwrap();
    let told = String::from_utf8(case.info(&["old", "--repair", "new", "--force"]).stdout).unwrap();
    assert!(told.starts_with("old: nothing is damaged\n") && !told.contains("misplaced"), "{told}");
}

/// A loss's reason is not repeated for the file.
#[test]
fn a_reason_is_told_once() {
    let case = Case::several(Kind::Tiled);
    let path = case.old().join(chunk_file(1));
    let mut contents = std::fs::read(&path).unwrap();
    contents[400] ^= 1;
    std::fs::write(&path, contents).unwrap();
    let told = String::from_utf8(case.info(&["old", "--repair", "new"]).stdout).unwrap();
    assert_eq!(told.matches("payload checksum").count(), 1, "{told}");
    assert_eq!(told.matches("chunk 1").count(), 1, "{told}");
}

/// A chunk that the medium fails to read is lost. Any other failure ends the repair and leaves nothing.
#[test]
fn failing_reads_lose_a_chunk_or_end_the_repair() {
    let case = Case::several(Kind::TiledZstd);
    let before = tree(case.dir.path());
    for (fault, lossy) in [("5", true), ("13", false)] {
        let (mut losses, mut errors) = (0, 0);
        for nth in 0.. {
            let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_blco-info"));
            command.current_dir(case.dir.path()).args(["old", "--repair", "new", "--json"]);
            let output = command.env("BLCO_FAULT", format!("read:{nth}:{fault}")).output().unwrap();
            let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
            match output.status.code() {
                Some(0) => {
                    let report = report.unwrap();
                    std::fs::remove_dir_all(case.new_store()).unwrap();
                    let told = |problem: &str| report[problem].is_string();
                    if !told("manifest_problem") && !told("provenance_problem") {
                        break;
                    }
                }
                Some(1) => {
                    assert_eq!(report.unwrap()["chunks_lost"], 1, "read {nth}");
                    std::fs::remove_dir_all(case.new_store()).unwrap();
                    losses += 1;
                }
                status => {
                    assert_eq!(status, Some(2), "read {nth}: {output:?}");
                    errors += 1;
                }
            }
            assert!(before == tree(case.dir.path()), "read {nth}: nothing is left");
        }
        let chunks = case.chunks.len();
        assert_eq!(losses, if lossy { 2 * chunks } else { 0 }, "header and contents of each chunk");
        assert!(errors >= if lossy { chunks } else { 3 * chunks }, "{errors} errors: reading again, to pack");
    }
}

/// Whatever a chunk with correct checksums claims, without a manifest to contradict it: an error or nonzeros inside
/// the shape, never a panic.
#[test]
fn chunks_with_matching_checksums_that_lie_are_harmless() {
    let tensor = Tensor::random(&[30, 20, 10], 180, 1, values::few);
    for kind in KINDS {
        let case = Case::new(&tensor, |o| o, kind);
        std::fs::remove_file(case.old().join("manifest")).unwrap();
        let path = case.old().join(chunk_file(0));
        let whole = std::fs::read(&path).unwrap();
        let (mut refused, mut accepted) = (0, 0);
        for bit in 0..whole.len() * 8 {
            if bit / 8 >= 1024 && !bit.is_multiple_of(13) {
                continue;
            }
            let mut file = whole.clone();
            file[bit / 8] ^= 1 << (bit % 8);
            let stored = u32::from_le_bytes(file[40..44].try_into().unwrap()) as usize;
            let checksum = xxh3_64(&file[128..HEADER_BYTES]);
            file[72..80].copy_from_slice(&checksum.to_le_bytes());
            if let Some(payload) = file.get(HEADER_BYTES..HEADER_BYTES.saturating_add(stored)) {
                let checksum = xxh3_64(payload);
                file[48..56].copy_from_slice(&checksum.to_le_bytes());
            }
            let checksum = xxh3_64(&file[..120]);
            file[120..128].copy_from_slice(&checksum.to_le_bytes());
            std::fs::write(&path, &file).unwrap();
            match Salvage::scan(
                &Sys::default(),
                &Formats::default(),
                &case.old(),
                8 << 20,
                u64::MAX,
                &|_, _| (),
            ) {
                Err(Error::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("{kind:?}, bit {bit}: {other}"),
                Ok(mut salvage) => {
                    let found = Tensor::read(&mut salvage).unwrap();
                    let inside = |row: &[u32]| row.iter().zip(&found.dims).all(|(&i, &d)| u64::from(i) < d);
                    assert!(found.rows().all(|(row, value)| inside(row) && value.is_finite()), "bit {bit}");
                    accepted += 1;
                }
            }
        }
        assert!(refused > 0 && accepted > 0, "{kind:?}: {refused} refused, {accepted} accepted");
    }
}
