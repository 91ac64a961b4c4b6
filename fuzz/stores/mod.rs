//! Stores that lie: small stores of several chunks, changed and signed again, and what everything that reads stores must
//! make of them. tests/differential.rs makes mutants from seeds, the fuzz target `store` from its input,
//! `tests/gpu/mutants.rs` runs those that are accepted on a GPU.
//!
//! The including file has `mod common` and `mod runner` (tests/common/mod.rs and ttv.rs) beside this module.

#![allow(dead_code, reason = "every user takes a part")]

pub mod agree;
mod change;
mod image;

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use blco::internals::chunk::{ChunkHeader, FIXED_BYTES};
use blco::internals::pack::{Duplicates, PackOptions};
use blco::internals::random::Counter;
use blco::internals::store::Manifest;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a manifest's preamble.
const PREAMBLE: usize = 64;
/// What chunk files are rounded up to.
const PAGE: usize = 4096;

/// Where decisions come from.
pub trait Choices {
    /// Some random bits.
    fn bits(&mut self) -> u64;

    /// A number below `n`, 0 where that is 0.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() % (n.max(1) as u64)).unwrap()
    }

    /// Whether one of `n` equal chances has come.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Decisions from a seed.
pub struct Seeded {
    random: Counter,
    at: u64,
}

impl Seeded {
    /// Those of mutant `number` under `seed`.
    pub fn new(seed: u64, number: u64) -> Self {
        Self { random: Counter::new(seed, number), at: 0 }
    }
}

impl Choices for Seeded {
    fn bits(&mut self) -> u64 {
        self.at += 1;
        self.random.bits(self.at)
    }
}

/// Decisions from a fuzzer's input: three bytes each, zeros behind its end.
pub struct Given<'a>(pub &'a [u8]);

impl Choices for Given<'_> {
    fn bits(&mut self) -> u64 {
        let (now, later) = self.0.split_at(self.0.len().min(3));
        self.0 = later;
        now.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
    }
}

/// A chunk's file without its padding.
#[derive(Clone)]
pub struct Part {
    header: Vec<u8>,
    payload: Vec<u8>,
}

/// A store in memory.
#[derive(Clone)]
pub struct Lying {
    /// Which store it was, and what has been done to it.
    pub story: Vec<String>,
    manifest: Manifest,
    parts: Vec<Part>,
    /// Bytes of the archive that are changed before it is signed, from its end.
    archive: Vec<(usize, u8)>,
    /// Bytes of files that are changed after all is signed: chunk or, behind the last, manifest; place; bits.
    unsigned: Vec<(usize, usize, u8)>,
    /// Chunks whose file is cut or extended after all is signed.
    resized: Vec<(usize, isize)>,
    /// Chunks whose header says other stored bytes than there are.
    stored: Vec<(usize, u32)>,
}

/// The stores that mutants are made of: every format and encoding, orders 2 to 6, of two chunks or more, with one cover or several.
pub fn bases() -> Vec<Lying> {
    type Case = (&'static [u64], usize, Kind, fn(u64) -> f64, Duplicates);
    const CASES: [Case; 25] = [
        (&[900, 700], 18_000, Kind::Tiled, values::integer, Duplicates::Sum),
        (&[300, 200, 100], 6_000, Kind::Raw, values::fraction, Duplicates::Sum),
        (&[70, 60, 50], 20_000, Kind::TiledZstd, values::few, Duplicates::Sum),
        (&[9, 8, 700, 6], 14_000, Kind::Tiled, values::single, Duplicates::Sum),
        (&[30, 20, 15, 12, 10], 8_000, Kind::Tiled, values::fraction, Duplicates::Sum),
        (&[12, 10, 8], 18_000, Kind::TiledZstd, values::with_zeros, Duplicates::Keep),
        (&[2048, 2048, 2048, 2048, 2048, 2048], 6_000, Kind::Raw, values::few, Duplicates::Sum),
        (&[400, 300], 9_000, Kind::HocfsCsr, values::fraction, Duplicates::Sum),
        (&[60, 20, 40], 24_000, Kind::HocfsEll, values::integer, Duplicates::Sum),
        (&[50, 30, 12], 9_000, Kind::HocfsEll, values::single, Duplicates::Sum),
        (&[40, 12, 9, 8], 24_000, Kind::HocfsEll, values::few, Duplicates::Sum),
        (&[8, 7, 6, 5, 30], 18_000, Kind::HocfsZstd, values::fraction, Duplicates::Sum),
        (&[9, 8, 7, 6, 5, 4], 16_000, Kind::HocfsCsr, values::wide_integer, Duplicates::Sum),
        (&[20, 15, 10], 16_000, Kind::HocfsCsr, values::fraction, Duplicates::Keep),
        (&[80, 60, 50], 24_000, Kind::Tiled, values::decimal, Duplicates::Sum),
        (&[60, 20, 40], 24_000, Kind::HocfsEll, values::decimal, Duplicates::Sum),
        (&[60, 30, 40], 18_000, Kind::CsfOne, values::fraction, Duplicates::Sum),
        (&[30, 9, 200], 18_000, Kind::BcsfRoot, values::fraction, Duplicates::Sum),
        (&[2000, 40, 30], 20_000, Kind::HbcsfRoot, values::fraction, Duplicates::Sum),
        (&[40, 30, 20, 10], 16_000, Kind::Mmcsf, values::fraction, Duplicates::Sum),
        (&[50, 300, 40], 24_000, Kind::FcooRoot, values::single, Duplicates::Keep),
        (&[40, 30, 20], 8_000, Kind::CsfAll, values::fraction, Duplicates::Sum),
        (&[30, 9, 40], 6_000, Kind::BcsfAllZstd, values::decimal, Duplicates::Keep),
        (&[40, 300, 30], 8_000, Kind::Hbcsf, values::integer, Duplicates::Sum),
        (&[20, 12, 15, 9], 6_000, Kind::FcooMttkrp, values::few, Duplicates::Sum),
    ];
    let dir = tempfile::tempdir().unwrap();
    let base = |(n, &(dims, nnz, kind, value, duplicates)): (usize, &Case)| {
        let tensor = Tensor::random(dims, nnz, n as u64, value);
        let target = dir.path().join(format!("{n}"));
        let options = PackOptions { duplicates, ..options(&target, kind, SMALL_CHUNKS) };
        let store = packed(&tensor, &options).partitions();
        let manifest = store.whole().clone();
        assert!(manifest.chunks.len() > 1, "{dims:?}: one chunk");
        let parts = (0..manifest.chunks.len()).map(|n| Part::read(&store.chunk_path(n))).collect();
        Lying {
            story: vec![format!("{kind:?} {dims:?}")],
            manifest,
            parts,
            archive: Vec::new(),
            unsigned: Vec::new(),
            resized: Vec::new(),
            stored: Vec::new(),
        }
    };
    CASES.iter().enumerate().map(base).collect()
}

/// A mutant of one of `bases`: some changes, one after the other.
pub fn mutant(bases: &[Lying], choices: &mut impl Choices) -> Lying {
    let base = choices.below(bases.len());
    let mut lying = bases[base].clone();
    let changes = 1 + choices.below(8) / 6 + choices.below(8) / 7;
    (0..changes).for_each(|_| lying.change(bases, choices));
    lying
}

impl Part {
    fn read(path: &Path) -> Self {
        let file = std::fs::read(path).unwrap();
        let start = ChunkHeader::decode(&file, path).unwrap().header_bytes();
        let header = file[..start].to_vec();
        let stored = u32_at(&header, 40) as usize;
        Self { header, payload: file[start..start + stored].to_vec() }
    }

    /// Overwrites a field of the header.
    fn set<const N: usize>(&mut self, at: usize, field: [u8; N]) {
        self.header[at..at + N].copy_from_slice(&field);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

impl Lying {
    /// Writes the store to the empty directory `dir`, signed: with lengths, checksums and store id that fit what is there,
    /// but for those that are to be wrong.
    pub fn write(&self, dir: &Path) {
        let mut manifest = self.manifest.clone();
        let mut parts = self.parts.clone();
        for (n, (part, entry)) in parts.iter_mut().zip(&mut manifest.chunks).enumerate() {
            let stored = self.stored.iter().find(|(chunk, _)| *chunk == n).map(|(_, bytes)| *bytes);
            part.set(40, stored.unwrap_or(u32::try_from(part.payload.len()).unwrap()).to_le_bytes());
            let checksum = xxh3_64(&part.payload);
            part.set(48, checksum.to_le_bytes());
            entry.payload_checksum = checksum;
            entry.file_bytes = (part.header.len() + part.payload.len()).next_multiple_of(PAGE) as u64;
        }
        let (mut encoded, _) = manifest.encode();
        for &(from_end, bits) in &self.archive {
            let end = encoded.len();
            encoded[end - 1 - from_end % (end - PREAMBLE)] ^= bits;
        }
        let id = xxh3_64(&encoded[PREAMBLE..]).to_le_bytes();
        put(&mut encoded, 24, id);
        let checksum = xxh3_64(&encoded[..PREAMBLE - 8]);
        put(&mut encoded, PREAMBLE - 8, checksum.to_le_bytes());
        let signed = |part: &mut Part| {
            part.set(16, id);
            part.set(72, xxh3_64(&part.header[FIXED_BYTES..]).to_le_bytes());
            let checksum = xxh3_64(&part.header[..FIXED_BYTES - 8]);
            part.set(FIXED_BYTES - 8, checksum.to_le_bytes());
            let mut file = part.header.clone();
            file.extend_from_slice(&part.payload);
            file.resize(file.len().next_multiple_of(PAGE), 0);
            file
        };
        let mut files: Vec<Vec<u8>> = parts.iter_mut().map(signed).collect();
        files.push(encoded);
        let count = files.len();
        for &(file, at, bits) in &self.unsigned {
            let file = &mut files[file % count];
            let length = file.len();
            file[at % length] ^= bits;
        }
        for &(file, by) in &self.resized {
            let file = &mut files[file % count];
            file.resize(file.len().saturating_add_signed(by), 0);
        }
        for (n, file) in files.iter().enumerate() {
            let name = if n + 1 == count { "manifest".into() } else { format!("chunk-{n:06}.bin") };
            std::fs::write(dir.join(name), file).unwrap();
        }
    }
}
