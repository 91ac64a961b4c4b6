//! False lengths and counts: every length field of a manifest and of a chunk's header is set to values around the
//! limits of 32 and 64 bits, with correct checksums, and refused before memory of that size is allocated.
//! (These tests have their own process, so that its peak memory shows this.)

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

mod common;

use blco::internals::backend::host::HostBackend;
use blco::internals::coo::generate::{GenerateSpec, Generator};
use blco::internals::error::Result;
use blco::internals::op::inspect::Inspect;
use blco::internals::op::verify;
use blco::internals::pack::PackOptions;
use blco::internals::store::{LoneReader, Store};
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use common::{KINDS, Kind, options, pack};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a manifest's preamble, of an entry of its table, and of a chunk's header before its table: formats-spec/container.md.
const PREAMBLE: usize = 64;
const ENTRY: usize = 32;
const FIXED: usize = 128;
/// Bytes of the header of a chunk of three or four sections.
const HEADER: usize = 256;

const VALUES: [u64; 10] = [
    0,
    1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    (1 << 32) - 1,
    (1 << 32) + 1,
    1 << 63,
    (1 << 63) - 1,
    u64::MAX,
];

/// Opens the store and reads every nonzero.
fn read(path: &Path) -> Result<()> {
    let store = Store::open(&Sys::default(), path)?;
    let plan = plan(&store, 0, &Limits::default())?;
    let mut inspect = Inspect::new(store.sys(), &store.manifest().shape)?;
    let mut backend = HostBackend::new(&store, &mut inspect)?;
    Executor::new(&store, &plan, &mut backend)?.pass(&mut backend, &|_| ()).map(drop)
}

/// Replaces a little-endian field; false if it already has that value or cannot hold it.
fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) -> bool {
    let new = &value.to_le_bytes()[..width];
    let fits = width == 8 || value >> (8 * width) == 0;
    let differs = &bytes[at..at + width] != new;
    bytes[at..at + width].copy_from_slice(new);
    fits && differs
}

/// Corrects the checksums of a manifest, and stamps the chunks with the new store id. Returns their number.
fn seal(store: &Path, mut manifest: Vec<u8>) -> usize {
    let id = xxh3_64(&manifest[PREAMBLE..]);
    manifest[24..32].copy_from_slice(&id.to_le_bytes());
    let checksum = xxh3_64(&manifest[..56]);
    manifest[56..64].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(store.join("manifest"), manifest).unwrap();
    let chunks = (0..).map(|number| store.join(format!("chunk-{number:06}.bin"))).take_while(|c| c.exists());
    let stamp = |chunk: PathBuf| {
        let mut bytes = std::fs::read(&chunk).unwrap();
        bytes[16..24].copy_from_slice(&id.to_le_bytes());
        seal_chunk(&chunk, bytes);
    };
    chunks.map(stamp).count()
}

/// The offset of a section of a manifest.
fn section(manifest: &[u8], name: &str) -> usize {
    let entry = |k: usize| &manifest[PREAMBLE + 8 + ENTRY * k..][..ENTRY];
    let found = (0..6).map(entry).find(|entry| entry.starts_with(name.as_bytes()) && entry[name.len()] == 0);
    PREAMBLE + usize::try_from(u64::from_le_bytes(found.unwrap()[16..24].try_into().unwrap())).unwrap()
}

fn seal_chunk(chunk: &Path, mut bytes: Vec<u8>) {
    let table = xxh3_64(&bytes[FIXED..HEADER]);
    bytes[72..80].copy_from_slice(&table.to_le_bytes());
    let checksum = xxh3_64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(chunk, bytes).unwrap();
}

/// Lengths that are within the limits of their fields but beyond the file's length, with a codec and without.
fn chunks_of_a_gibibyte_that_are_not_there(path: &Path) {
    for kind in [Kind::Tiled, Kind::TiledZstd, Kind::HocfsCsr, Kind::HocfsZstd] {
        let spec = GenerateSpec { dims: vec![40, 30, 20], nnz: 3000, ..GenerateSpec::default() };
        let mut options = options(path, kind, 1 << 30);
        options.replace = true;
        pack(&Sys::default(), &mut Generator::new(&Sys::default(), spec).unwrap(), &options).unwrap();
        let manifest = std::fs::read(path.join("manifest")).unwrap();
        let entry = section(&manifest, "chunks");
        for field in [entry + 16, entry + 24] {
            let mut bytes = manifest.clone();
            assert!(put(&mut bytes, field, 8, 1 << 30));
            seal(path, bytes);
            let message = read(path).unwrap_err().to_string();
            assert!(message.contains("cannot hold what the manifest says"), "{kind:?}: {message}");
        }
        // The chunk alone, as a repair reads it: its header says a gibibyte.
        let chunk = path.join("chunk-000000.bin");
        let mut bytes = std::fs::read(&chunk).unwrap();
        put(&mut bytes, 36, 4, 1 << 30);
        let sections = (0..4).map(|i| FIXED + 16 * i).filter(|&at| bytes[at] != 0).max().unwrap();
        let offset = u32::from_le_bytes(bytes[sections + 4..sections + 8].try_into().unwrap());
        put(&mut bytes, sections + 8, 4, (1 << 30) - u64::from(offset));
        seal_chunk(&chunk, bytes);
        assert!(LoneReader::new(&Sys::default()).unwrap().header(&chunk).is_err(), "{kind:?}");
    }
}

/// A verification of the store.
fn verify(path: &Path) -> Result<()> {
    let store = Store::open(&Sys::default(), path)?;
    verify::verify(&store, |part, op| {
        let plan = plan(part, 0, &Limits::default())?;
        let mut backend = HostBackend::new(part, op)?;
        Executor::new(part, &plan, &mut backend)?.pass(&mut backend, &|_| ()).map(drop)
    })
}

/// Chunks that end long before the data that is open when they are closed: slices of 250,000 nonzeros, one and much of another per
/// chunk. They are correct.
fn chunks_before_long_slices(path: &Path) {
    let spec = GenerateSpec { dims: vec![4, 2000, 2000], nnz: 1_000_000, ..GenerateSpec::default() };
    let options = options(path, Kind::HocfsCsr, 928 << 10);
    pack(&Sys::default(), &mut Generator::new(&Sys::default(), spec).unwrap(), &options).unwrap();
    verify(path).unwrap();
}

/// Chunks shorter than their bound: a verifier computes its memory from them and does not build a longer one.
fn chunks_cut_too_short(path: &Path) {
    let sys = Sys::default();
    for kind in [Kind::Tiled, Kind::HocfsCsr] {
        let spec = GenerateSpec { dims: vec![40, 3000, 2000], nnz: 600_000, ..GenerateSpec::default() };
        let options = PackOptions { replace: true, ..options(path, kind, 1 << 18) };
        pack(&sys, &mut Generator::new(&sys, spec).unwrap(), &options).unwrap();
        let mut manifest = std::fs::read(path.join("manifest")).unwrap();
        let storage = section(&manifest, "storage");
        assert!(put(&mut manifest, storage + 8, 8, 64 << 20));
        let chunks = seal(path, manifest);
        assert!(chunks > 3, "{chunks} chunks");
        let message = verify(path).unwrap_err().to_string();
        assert!(message.contains("chunk 0: cut at") && message.contains("more"), "{kind:?}: {message}");
    }
}

#[test]
fn lengths_that_lie_are_refused_without_their_memory() {
    let dir = tempfile::tempdir().unwrap();
    let sys = Sys::default();
    for kind in KINDS {
        let path = dir.path().join(format!("{kind:?}"));
        let spec = GenerateSpec { dims: vec![40, 30, 20], nnz: 3000, ..GenerateSpec::default() };
        pack(&sys, &mut Generator::new(&sys, spec).unwrap(), &options(&path, kind, 1 << 16)).unwrap();
        read(&path).unwrap();
        let manifest = std::fs::read(path.join("manifest")).unwrap();
        let chunk = std::fs::read(path.join("chunk-000000.bin")).unwrap();
        let [tensor, partition, entry] =
            ["tensor", "partitions", "chunks"].map(|name| section(&manifest, name));
        // Order and nnz, the partition's counts and lengths, the chunk entry's, the preamble's, those of the table of sections.
        let fields = [
            (12, 4),
            (16, 8),
            (tensor, 4),
            (tensor + 8, 8),
            (partition + 16, 8),
            (partition + 24, 8),
            (partition + 48, 8),
            (partition + 56, 8),
            (entry, 8),
            (entry + 8, 8),
            (entry + 16, 8),
            (entry + 24, 8),
            (PREAMBLE, 4),
        ];
        let table =
            (0..6).map(|k| PREAMBLE + 8 + ENTRY * k).flat_map(|entry| [(entry + 16, 8), (entry + 24, 8)]);
        for (at, width) in fields.into_iter().chain(table) {
            for value in VALUES {
                let mut bytes = manifest.clone();
                if put(&mut bytes, at, width, value) {
                    seal(&path, bytes);
                    assert!(read(&path).is_err(), "{kind:?}: manifest byte {at} = {value}");
                }
            }
        }
        seal(&path, manifest);
        read(&path).unwrap();
        // Number, nnz, image and stored bytes, how many sections, and their kinds, offsets and lengths.
        let fields = [12, 32, 36, 40, 64].into_iter().chain((FIXED..HEADER).step_by(4));
        for at in fields {
            for value in VALUES {
                let mut bytes = chunk.clone();
                if put(&mut bytes, at, 4, value) {
                    seal_chunk(&path.join("chunk-000000.bin"), bytes);
                    assert!(read(&path).is_err(), "{kind:?}: chunk byte {at} = {value}");
                }
            }
        }
    }
    chunks_before_long_slices(&dir.path().join("long"));
    chunks_cut_too_short(&dir.path().join("short"));
    chunks_of_a_gibibyte_that_are_not_there(&dir.path().join("gibibyte"));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 256 << 10, "{peak} KiB at peak");
}
