//! The manifest: what a store is. The archive's layout is pinned by rkyv's features and described in
//! formats-spec/container.md; a test holds the two together.

use super::chunk::{VERSION, check_version};
use super::format::{Codes, Format};
use crate::encoding::{TILE_NNZ, width};
use crate::error::{Error, Result};
use crate::shape::{ORDER_MAX, Shape};
use rkyv::rancor;
use rkyv::{Archive, Deserialize, Serialize};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"BLCOSTOR";
/// What is said of a file that is no manifest.
pub(super) const WRONG_MAGIC: &str = "not a manifest: wrong magic at byte 0";
/// Bytes of the preamble.
pub const PREAMBLE_BYTES: usize = 64;
/// The preamble's field for where the archive starts.
const ARCHIVE_AT: u32 = 64;
const _: () = assert!(ARCHIVE_AT as usize == PREAMBLE_BYTES);
/// The root's field for the nonzeros of a tile.
const TILE_NNZ_CODE: u32 = 512;
const _: () = assert!(TILE_NNZ_CODE as usize == TILE_NNZ);

/// The archive's root, version 1.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq)]
struct ArchiveV1 {
    format: u32,
    index_encoding: u32,
    codec: u32,
    codec_level: i32,
    duplicates: u32,
    tile_nnz: u32,
    block_bits: u32,
    leaf_rule: u32,
    chunk_bytes: u64,
    nnz: u64,
    sum_squares: f64,
    value_min: f64,
    value_max: f64,
    level_modes: u64,
    modes: Vec<Mode>,
    bit_modes: Vec<u8>,
    chunks: Vec<ChunkEntry>,
}

/// One mode.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq)]
struct Mode {
    dim: u32,
    bits: u32,
    longest_row_bound: u64,
}

/// One chunk, as the manifest lists it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
pub struct ChunkEntry {
    /// Position of its first nonzero in the store.
    pub first_nonzero: u64,
    /// Its nonzeros.
    pub nnz: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Bytes of its image.
    pub image_bytes: u64,
    /// Checksum of its payload as stored.
    pub payload_checksum: u64,
    /// Linear index of the first nonzero, low and high half.
    pub first_linear: [u64; 2],
    /// Linear index of the last nonzero.
    pub last_linear: [u64; 2],
    /// Smallest index of each mode.
    pub row_low: [u32; ORDER_MAX],
    /// Largest index of each mode.
    pub row_high: [u32; ORDER_MAX],
}

/// How payloads are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// As they are.
    None,
    /// One zstd frame, made at this level.
    Zstd(i32),
}

impl Codec {
    /// The code that stores hold.
    #[must_use]
    pub fn code(self) -> u8 {
        u8::from(self != Self::None)
    }

    /// Zstd's level.
    #[must_use]
    pub fn level(self) -> Option<i32> {
        let Self::Zstd(level) = self else { return None };
        Some(level)
    }
}

/// What a store is, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The tensor's shape.
    pub shape: Shape,
    /// What chunks hold.
    pub format: Format,
    /// How payloads are stored.
    pub codec: Codec,
    /// Whether a coordinate may occur several times.
    pub may_repeat: bool,
    /// The bound on a chunk's image, bytes.
    pub chunk_bytes: u64,
    /// Nonzeros in all.
    pub nnz: u64,
    /// Sum of the values' squares.
    pub sum_squares: f64,
    /// The smallest value.
    pub value_min: f64,
    /// The largest value.
    pub value_max: f64,
    /// For each mode, a number of nonzeros that no row exceeds.
    pub longest_row_bounds: Vec<u64>,
    /// The chunks, in order.
    pub chunks: Vec<ChunkEntry>,
}

impl Manifest {
    /// The manifest's bytes and the store id.
    pub fn encode(&self) -> Result<(Vec<u8>, u64)> {
        let (codec, codec_level) = match self.codec {
            Codec::None => (0, 0),
            Codec::Zstd(level) => (1, level),
        };
        let mode = |m: usize| Mode {
            dim: self.shape.dims()[m],
            bits: self.shape.bits(m),
            longest_row_bound: self.longest_row_bounds[m],
        };
        let codes = self.format.codes();
        let root = ArchiveV1 {
            format: codes.format,
            index_encoding: codes.index_encoding,
            codec,
            codec_level,
            duplicates: u32::from(self.may_repeat),
            tile_nnz: TILE_NNZ_CODE,
            block_bits: codes.block_bits,
            leaf_rule: codes.leaf_rule,
            chunk_bytes: self.chunk_bytes,
            nnz: self.nnz,
            sum_squares: self.sum_squares,
            value_min: self.value_min,
            value_max: self.value_max,
            level_modes: codes.level_modes,
            modes: (0..self.shape.order()).map(mode).collect(),
            bit_modes: self.format.bit_layout(&self.shape).bit_modes().to_vec(),
            chunks: self.chunks.clone(),
        };
        let archive = rkyv::to_bytes::<rancor::Error>(&root)
            .map_err(|e| Error::request(format!("the manifest cannot be encoded: {e}")))?;
        let id = xxh3_64(&archive);
        let mut out = Vec::with_capacity(PREAMBLE_BYTES + archive.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(ARCHIVE_AT.to_le_bytes());
        out.extend((archive.len() as u64).to_le_bytes());
        out.extend(id.to_le_bytes());
        out.extend([0; 24]);
        out.extend(xxh3_64(&out).to_le_bytes());
        out.extend_from_slice(&archive);
        Ok((out, id))
    }

    /// Reads and checks the bytes of a manifest file; the second result is the store id.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<(Self, u64)> {
        let wrong = |what: &str| Error::corrupt(path, what);
        check_preamble(bytes, bytes.len() as u64, path)?;
        let (preamble, archive) = bytes.split_at(PREAMBLE_BYTES);
        let id = xxh3_64(archive);
        if preamble[24..32] != id.to_le_bytes() {
            return Err(wrong("corrupt: archive checksum at byte 24"));
        }
        let root = rkyv::from_bytes::<ArchiveV1, rancor::Error>(archive)
            .map_err(|_| wrong("corrupt: the archive is not well formed"))?;
        if !Codes::KNOWN.contains(&root.format) {
            return Err(Error::unusable(path, "unknown format; a newer program may read it"));
        }
        Ok((root.check().map_err(|what| wrong(&format!("corrupt: {what}")))?, id))
    }
}

/// Checks the preamble that `head` begins with, which is that of a file of `length` bytes.
pub(super) fn check_preamble(head: &[u8], length: u64, path: &Path) -> Result<()> {
    let wrong = |what: &str| Err(Error::corrupt(path, what));
    if !head.starts_with(&MAGIC[..head.len().min(MAGIC.len())]) {
        return Err(Error::unusable(path, WRONG_MAGIC));
    }
    let Some(preamble) = head.first_chunk::<PREAMBLE_BYTES>() else {
        return wrong("corrupt: shorter than its preamble of 64 bytes; it was cut off");
    };
    let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| preamble[at + i]));
    let version = u32::from_le_bytes(std::array::from_fn(|i| preamble[8 + i]));
    let archive_at = u32::from_le_bytes(std::array::from_fn(|i| preamble[12 + i]));
    if field(56) != xxh3_64(&preamble[..56]) {
        return wrong("corrupt: preamble checksum at byte 56");
    }
    check_version(version, path)?;
    if archive_at != ARCHIVE_AT || preamble[32..56].iter().any(|&b| b != 0) {
        return wrong("corrupt: reserved fields of the preamble");
    }
    if field(16) != length - PREAMBLE_BYTES as u64 {
        return wrong("corrupt: the file's length differs from the preamble's; it was cut off or extended");
    }
    Ok(())
}

impl ArchiveV1 {
    fn codes(&self) -> Codes {
        Codes {
            format: self.format,
            index_encoding: self.index_encoding,
            block_bits: self.block_bits,
            leaf_rule: self.leaf_rule,
            level_modes: self.level_modes,
        }
    }

    /// Every rule of the specification that the archive alone can break.
    fn check(self) -> std::result::Result<Manifest, &'static str> {
        let rule = |holds: bool, what: &'static str| if holds { Ok(()) } else { Err(what) };
        let codec = match (self.codec, self.codec_level) {
            (0, 0) => Codec::None,
            (1, level @ 1..=22) => Codec::Zstd(level),
            _ => return Err("unknown codec"),
        };
        rule(self.duplicates <= 1, "field duplicates")?;
        rule(self.tile_nnz == TILE_NNZ_CODE, "field tile nnz")?;
        let bounds = super::CHUNK_BYTES_MIN..=super::CHUNK_BYTES_MAX;
        rule(bounds.contains(&self.chunk_bytes), "field chunk bytes")?;
        let dims: Vec<u64> = self.modes.iter().map(|m| m.dim.into()).collect();
        let shape = Shape::new(&dims).map_err(|_| "dims")?;
        let format = Format::from_codes(self.codes(), shape.order())?;
        rule(self.modes.iter().all(|m| m.bits == width(u64::from(m.dim) - 1)), "bits of a mode")?;
        rule(format.bit_layout(&shape).bit_modes() == self.bit_modes, "bit modes")?;
        rule(self.nnz > 0 && !self.sum_squares.is_nan(), "statistics")?;
        rule(self.value_min.is_finite() && self.value_max.is_finite(), "statistics")?;
        let nnz_max = super::CHUNK_BYTES_MAX / if format.cuts_at_tiles() { 4 } else { 2 };
        let mut next = 0u64;
        for chunk in &self.chunks {
            rule(chunk.first_nonzero == next && chunk.nnz > 0, "first nonzero of a chunk")?;
            rule(chunk.nnz <= nnz_max, "nnz of a chunk")?;
            next = next.checked_add(chunk.nnz).ok_or("nnz of a chunk")?;
            let whole = !format.cuts_at_tiles() || chunk.nnz.is_multiple_of(TILE_NNZ as u64);
            rule(next == self.nnz || whole, "nnz of a chunk")?;
            let bytes_fit =
                chunk.file_bytes <= super::FILE_BYTES_MAX && chunk.image_bytes <= self.chunk_bytes;
            rule(bytes_fit && chunk.file_bytes.is_multiple_of(4096), "bytes of a chunk")?;
            let rows =
                chunk.row_low.iter().zip(&chunk.row_high).zip(shape.dims().iter().chain(&[1; ORDER_MAX]));
            for ((low, high), dim) in rows {
                rule(low <= high && high < dim, "row range of a chunk")?;
            }
        }
        rule(next == self.nnz, "nnz")?;
        Ok(Manifest {
            shape,
            format,
            codec,
            may_repeat: self.duplicates == 1,
            chunk_bytes: self.chunk_bytes,
            nnz: self.nnz,
            sum_squares: self.sum_squares,
            value_min: self.value_min,
            value_max: self.value_max,
            longest_row_bounds: self.modes.iter().map(|m| m.longest_row_bound).collect(),
            chunks: self.chunks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{IndexEncoding, LeafRule};
    use crate::shape::ModeOrder;

    fn example() -> Manifest {
        let entry = ChunkEntry {
            first_nonzero: 0,
            nnz: 12,
            file_bytes: 4096,
            image_bytes: 512,
            payload_checksum: 77,
            first_linear: [1, 0],
            last_linear: [63, 0],
            row_low: [0; 8],
            row_high: [3, 2, 1, 0, 0, 0, 0, 0],
        };
        Manifest {
            shape: Shape::new(&[4, 3, 2]).unwrap(),
            format: Format::Blco(IndexEncoding::Tiled),
            codec: Codec::Zstd(3),
            may_repeat: false,
            chunk_bytes: 1 << 20,
            nnz: 12,
            sum_squares: 2.5,
            value_min: -1.0,
            value_max: 2.0,
            longest_row_bounds: vec![3, 4, 6],
            chunks: vec![entry],
        }
    }

    /// Reads the archive by the offsets that formats-spec/container.md prints.
    #[test]
    fn archive_lies_as_the_specification_says() {
        let (bytes, id) = example().encode().unwrap();
        let archive = &bytes[64..];
        assert_eq!(u64::from_le_bytes(bytes[24..32].try_into().unwrap()), id);
        let u32_at = |at: usize| u32::from_le_bytes(archive[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(archive[at..at + 8].try_into().unwrap());
        let list = |at: usize| {
            let offset = u32_at(at).cast_signed() as isize;
            (at.checked_add_signed(offset).unwrap(), u32_at(at + 4))
        };
        let root = archive.len() - 104;
        assert_eq!([u32_at(root), u32_at(root + 4), u32_at(root + 8)], [1, 2, 1]);
        assert_eq!(u32_at(root + 12), 3);
        assert_eq!([u32_at(root + 20), u32_at(root + 24)], [512, 64]);
        assert_eq!([u64_at(root + 32), u64_at(root + 40)], [1 << 20, 12]);
        assert_eq!(u64_at(root + 48), 2.5f64.to_bits());
        let (modes, n_modes) = list(root + 80);
        assert_eq!(n_modes, 3);
        assert_eq!([u32_at(modes + 16), u32_at(modes + 20), u32_at(modes + 24)], [3, 2, 4]);
        let (bits, n_bits) = list(root + 88);
        assert_eq!((&archive[bits..bits + 5], n_bits), (&[2, 1, 0, 1, 0][..], 5));
        let (chunks, n_chunks) = list(root + 96);
        assert_eq!(n_chunks, 1);
        assert_eq!([u64_at(chunks + 8), u64_at(chunks + 16), u64_at(chunks + 32)], [12, 4096, 77]);
        assert_eq!([u64_at(chunks + 40), u64_at(chunks + 56)], [1, 63]);
        assert_eq!([u32_at(chunks + 104), u32_at(chunks + 108)], [3, 2]);
    }

    /// The fields that BLCO leaves zero say of a tree how its leaves are laid out and which mode each level has.
    #[test]
    fn a_tree_is_recorded_where_blco_has_zeros() {
        let format = Format::Hocfs { levels: ModeOrder::rotated(3, 1), leaf: LeafRule::Auto };
        let manifest = Manifest { format, ..example() };
        let (bytes, _) = manifest.encode().unwrap();
        let root = &bytes[bytes.len() - 104..];
        assert_eq!(root[..8], [2, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(root[24..32], [0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(root[72..80], [1, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Manifest::decode(&bytes, Path::new("manifest")).unwrap().0, manifest);
    }

    /// Sums and products with a chunk's nonzeros stay far from the limits of 64 bits.
    #[test]
    fn a_chunk_has_no_more_nonzeros_than_fit_its_image() {
        let tree = Format::Hocfs { levels: ModeOrder::rotated(3, 1), leaf: LeafRule::Auto };
        for (format, most) in [(example().format, 1 << 28), (tree, 1 << 29)] {
            for (nnz, accepted) in [(most, true), (most + 1, false), (u64::MAX, false)] {
                let mut manifest = Manifest { format, nnz, ..example() };
                manifest.chunks[0].nnz = nnz;
                let read = Manifest::decode(&manifest.encode().unwrap().0, Path::new("manifest"));
                assert_eq!(read.is_ok(), accepted, "{nnz}");
                assert!(accepted || read.unwrap_err().to_string().contains("nnz of a chunk"));
            }
        }
    }

    #[test]
    fn every_flip_and_truncation_is_an_error() {
        let path = Path::new("manifest");
        let (mut bytes, _) = example().encode().unwrap();
        assert_eq!(Manifest::decode(&bytes, path).unwrap().0, example());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bytes, path).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..length], path).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_newer_version_says_so() {
        let (mut bytes, _) = example().encode().unwrap();
        let message = |bytes: &[u8]| Manifest::decode(bytes, Path::new("m")).unwrap_err().to_string();
        bytes[8] = 2;
        // Not where it is damage.
        assert!(message(&bytes).contains("corrupt: preamble checksum"), "{}", message(&bytes));
        let checksum = xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&checksum.to_le_bytes());
        assert!(
            message(&bytes).contains("version 2") && message(&bytes).contains("newer"),
            "{}",
            message(&bytes)
        );
    }
}
