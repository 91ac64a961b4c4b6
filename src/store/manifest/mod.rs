//! The manifest, which describes a store. formats-spec/container.md describes its bytes, container-1.md those of
//! version 1.

mod one;
mod two;

use crate::chunk::Version;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::{ChunkRanges, Format, Formats, PartitionRecord, PartitionStatistics, all_modes};
use crate::shape::{ORDER_MAX, Shape};
use crate::store::labels::ModesInfo;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"BLCOSTOR";
/// The message for a file that is not a manifest.
pub(super) const WRONG_MAGIC: &str = "not a manifest: wrong magic at byte 0";
/// Bytes of the preamble.
pub const PREAMBLE_BYTES: usize = 64;
/// The preamble's field for the offset of the body.
const BODY_AT: u32 = 64;
const _: () = assert!(BODY_AT as usize == PREAMBLE_BYTES);

/// One chunk, as the manifest lists it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChunkEntry {
    /// Position of its first nonzero in its partition.
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
    /// Code of the value encoding; `None` in version 1.
    pub value_encoding: Option<u8>,
}

impl ChunkEntry {
    /// An entry with a chunk's ranges; the other fields are still open.
    #[must_use]
    pub fn of(ranges: &ChunkRanges) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "halves of a 128-bit number")]
        let [first_linear, last_linear] = ranges.linear.map(|x| [x as u64, (x >> 64) as u64]);
        let ChunkRanges { row_low, row_high, .. } = *ranges;
        Self { first_linear, last_linear, row_low, row_high, ..Self::default() }
    }
}

/// How payloads are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Uncompressed.
    None,
    /// One zstd frame, compressed at this level.
    Zstd(i32),
}

impl Codec {
    /// The code in stores.
    #[must_use]
    pub fn code(self) -> u8 {
        u8::from(self != Self::None)
    }

    /// The codec with these codes.
    fn from_codes(code: u32, level: i32) -> Option<Self> {
        match (code, level) {
            (0, 0) => Some(Self::None),
            (1, level @ 1..=22) => Some(Self::Zstd(level)),
            _ => None,
        }
    }

    /// Zstd's level.
    #[must_use]
    pub fn level(self) -> Option<i32> {
        let Self::Zstd(level) = self else { return None };
        Some(level)
    }
}

/// Nonzeros in one sort order and layout, cut into chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The format of its chunks.
    pub format: Format,
    /// Bit m is set if results of mode m can be computed from it.
    pub targets: u32,
    /// Bit c is set if it belongs to cover c.
    pub covers: u32,
    /// The number of its chunks.
    pub chunks: u64,
    /// Its nonzeros.
    pub nnz: u64,
    /// Their hash; `None` in version 1.
    pub hash: Option<u64>,
    /// Statistics for plans.
    pub statistics: Option<PartitionStatistics>,
}

/// Which part of a divided tensor a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOf {
    /// Its number, from 0.
    pub number: u32,
    /// The number of parts.
    pub parts: u32,
    /// Nonzeros of the whole tensor.
    pub nnz: u64,
    /// Their hash.
    pub hash: u64,
    /// A lower bound on the linear indices of this part (low and high half).
    pub from: [u64; 2],
    /// An upper bound.
    pub to: [u64; 2],
}

/// The contents of a manifest, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The version of the container.
    pub version: Version,
    /// The tensor's shape.
    pub shape: Shape,
    /// How payloads are stored.
    pub codec: Codec,
    /// Whether a coordinate may occur several times.
    pub may_repeat: bool,
    /// The bound on a chunk's image, bytes.
    pub chunk_bytes: u64,
    /// Nonzeros in total.
    pub nnz: u64,
    /// Sum of the squared values.
    pub sum_squares: f64,
    /// The smallest value.
    pub value_min: f64,
    /// The largest value.
    pub value_max: f64,
    /// For each mode, an upper bound on the nonzeros of a row.
    pub longest_row_bounds: Vec<u64>,
    /// The partitions, in order.
    pub partitions: Vec<Partition>,
    /// The chunks, partition after partition.
    pub chunks: Vec<ChunkEntry>,
    /// Which part of a tensor this is; `None` for a whole tensor.
    pub part: Option<PartOf>,
    /// Names, kinds and labels of the modes.
    pub modes: Option<ModesInfo>,
}

impl Partition {
    /// A store of a whole tensor of `order` modes.
    #[must_use]
    pub fn whole(
        format: Format,
        order: usize,
        chunks: u64,
        nnz: u64,
        hash: Option<u64>,
        statistics: Option<PartitionStatistics>,
    ) -> Self {
        Self { format, targets: (1 << order) - 1, covers: 1, chunks, nnz, hash, statistics }
    }
}

impl Manifest {
    /// The format of the first partition, which gives the store's format its name.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.partitions[0].format
    }

    /// The square root of the sum of squared values; `None` if the squares are too large or too small for f64, so that
    /// their sum is meaningless.
    #[must_use]
    pub fn norm(&self) -> Option<f64> {
        let is_exact = self.largest() == 0.0 || (1e-280..=f64::MAX).contains(&self.sum_squares);
        is_exact.then(|| self.sum_squares.sqrt())
    }

    /// The largest absolute value.
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.value_min.abs().max(self.value_max.abs())
    }

    /// Distinct indices in `mode`, from 0, for each nonzero of a group of 512 * 2^`size` nonzeros, which are consecutive in the store; `None` if it
    /// does not say.
    #[must_use]
    pub fn distinct(&self, mode: usize, size: usize) -> Option<f64> {
        let statistics = self.partitions.iter().map(|partition| partition.statistics.as_ref());
        let [distinct, sampled] = statistics.into_iter().try_fold([0, 0], |[distinct, sampled], of| {
            Some([distinct + of?.distinct[mode][size], sampled + of?.sampled])
        })?;
        Some(if sampled > 0 { distinct as f64 / sampled as f64 } else { 1.0 })
    }

    /// The hash of all nonzeros; `None` in version 1.
    #[must_use]
    pub fn hash(&self) -> Option<u64> {
        let first = self.partitions.iter().filter(|partition| partition.covers & 1 != 0);
        first.map(|partition| partition.hash).reduce(|a, b| Some(a?.wrapping_add(b?)))?
    }

    /// The manifest's bytes in the newest version, and the store id.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, u64) {
        let body = two::encode(self);
        let id = xxh3_64(&body);
        let mut out = Vec::with_capacity(PREAMBLE_BYTES + body.len());
        out.extend(MAGIC);
        out.extend((Version::NEWEST as u32).to_le_bytes());
        out.extend(BODY_AT.to_le_bytes());
        out.extend((body.len() as u64).to_le_bytes());
        out.extend(id.to_le_bytes());
        out.extend([0; 24]);
        out.extend(xxh3_64(&out).to_le_bytes());
        out.extend_from_slice(&body);
        (out, id)
    }

    /// Reads and checks the bytes of a manifest file. Returns it with the store id.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<(Self, u64)> {
        Self::decode_of(&Formats::default(), bytes, path)
    }

    /// Like [`Manifest::decode`], for stores in one of `formats`.
    pub fn decode_of(formats: &Formats, bytes: &[u8], path: &Path) -> Result<(Self, u64)> {
        let corrupt = |rule, what: &str| Error::corrupt(path, format!("corrupt: {what}")).breaks(rule);
        let version = check_preamble(bytes, bytes.len() as u64, path)?;
        let (preamble, body) = bytes.split_at(PREAMBLE_BYTES);
        let id = xxh3_64(body);
        if preamble[24..32] != id.to_le_bytes() {
            return Err(corrupt("manifest-checksum", "checksum at byte 24"));
        }
        let decoded = match version {
            Version::One => one::decode(formats, body),
            Version::Two => two::decode(formats, body),
        };
        let manifest = decoded.map_err(|refusal| match refusal {
            Refusal::Corrupt(rule, what) => corrupt(rule, what),
            Refusal::Unknown(rule, what) => Error::unusable(path, what).breaks(rule),
        })?;
        Ok((manifest, id))
    }

    /// Checks the rules that both versions share.
    fn check_common(&self) -> std::result::Result<(), Refusal> {
        let bounds = super::CHUNK_BYTES_MIN..=super::CHUNK_BYTES_MAX;
        check(bounds.contains(&self.chunk_bytes), "field chunk bytes")?;
        check(self.nnz > 0 && !self.sum_squares.is_nan(), "statistics")?;
        check(self.value_min.is_finite() && self.value_max.is_finite(), "statistics")?;
        let mut chunks = &self.chunks[..];
        for partition in &self.partitions {
            let count = usize::try_from(partition.chunks).ok();
            let own = count.and_then(|count| chunks.split_at_checked(count));
            let (own, rest) = own.ok_or(Refusal::Corrupt("manifest-covers", "chunks of a partition"))?;
            self.check_chunks(partition, own)?;
            chunks = rest;
        }
        check_cover(chunks.is_empty(), "chunks of a partition")?;
        self.check_covers()
    }

    /// Checks the rules between partitions.
    fn check_covers(&self) -> std::result::Result<(), Refusal> {
        let (records, order) = (self.records(), self.shape.order());
        let all = records.iter().fold(0, |all, record| all | record.covers);
        check_cover(all & all.wrapping_add(1) == 0, "covers")?;
        for (at, record) in records.iter().enumerate() {
            let fits = record.format.check_among(&records, at, order);
            fits.map_err(|what| Refusal::Corrupt("manifest-covers", what))?;
        }
        let mut served = 0;
        for cover in 0..self.covers() {
            let members = || self.cover(cover).into_iter().map(|partition| &self.partitions[partition]);
            let nnz = members().try_fold(0u64, |sum, partition| sum.checked_add(partition.nnz));
            check_cover(nnz == Some(self.nnz), "nnz")?;
            let hash = |partition: &Partition| partition.hash.unwrap_or(0);
            let hashes = members().map(hash).fold(0, u64::wrapping_add);
            let first = self.cover(0).into_iter().map(|partition| hash(&self.partitions[partition]));
            check_cover(hashes == first.fold(0, u64::wrapping_add), "hash")?;
            served |= members().fold(all_modes(order), |modes, partition| modes & partition.targets);
        }
        check_cover(served == all_modes(order), "a mode that no cover serves")
    }

    /// The records of partitions that formats check.
    #[must_use]
    pub fn records(&self) -> Vec<PartitionRecord> {
        let record = |partition: &Partition| PartitionRecord {
            format: partition.format.clone(),
            targets: partition.targets,
            covers: partition.covers,
        };
        self.partitions.iter().map(record).collect()
    }

    /// The number of covers.
    #[must_use]
    pub fn covers(&self) -> u32 {
        self.partitions.iter().map(|p| u32::BITS - p.covers.leading_zeros()).max().unwrap_or(0)
    }

    /// The partitions of a cover, in order.
    #[must_use]
    pub fn cover(&self, cover: u32) -> Vec<usize> {
        let belongs = |&p: &usize| self.partitions[p].covers >> cover & 1 != 0;
        (0..self.partitions.len()).filter(belongs).collect()
    }

    /// The best cover for computing `mode`, from 0: of the covers that serve it, the one whose sort order is closest to
    /// the mode's; on ties, the first.
    #[must_use]
    pub fn cover_for(&self, mode: usize) -> u32 {
        let serves =
            |&cover: &u32| self.cover(cover).iter().all(|&p| self.partitions[p].targets >> mode & 1 != 0);
        let away = |&cover: &u32| -> u128 {
            let members = self.cover(cover).into_iter().map(|p| &self.partitions[p]);
            members.map(|p| u128::from(p.nnz) * p.format.distance(mode) as u128).sum()
        };
        (0..self.covers()).filter(serves).min_by_key(away).unwrap_or(0)
    }

    /// The manifest of a store with only `partitions` and their chunks, in one cover.
    #[must_use]
    pub fn select(&self, partitions: &[usize]) -> Self {
        let mut starts = vec![0];
        for partition in &self.partitions {
            starts.push(starts[starts.len() - 1] + usize::try_from(partition.chunks).unwrap_or(0));
        }
        let chunks =
            partitions.iter().flat_map(|&p| &self.chunks[starts[p]..starts[p + 1]]).cloned().collect();
        let own = |&p: &usize| Partition { covers: 1, ..self.partitions[p].clone() };
        let own: Vec<Partition> = partitions.iter().map(own).collect();
        self.with(own, chunks)
    }

    /// The same, of which the CPU multiplies out each nonzero.
    #[must_use]
    pub(super) fn flat(mut self) -> Self {
        for partition in &mut self.partitions {
            partition.format = partition.format.clone().flat();
        }
        self
    }

    /// The manifest with only these chunks, which belong to these partitions.
    #[must_use]
    pub(super) fn of_chunks(&self, chunks: Range<usize>, partitions: Vec<Partition>) -> Self {
        self.with(partitions, self.chunks[chunks].to_vec())
    }

    /// The manifest with other partitions, which have these chunks.
    fn with(&self, partitions: Vec<Partition>, chunks: Vec<ChunkEntry>) -> Self {
        Self {
            version: self.version,
            shape: self.shape.clone(),
            codec: self.codec,
            may_repeat: self.may_repeat,
            chunk_bytes: self.chunk_bytes,
            nnz: partitions.iter().map(|partition| partition.nnz).sum(),
            sum_squares: self.sum_squares,
            value_min: self.value_min,
            value_max: self.value_max,
            longest_row_bounds: self.longest_row_bounds.clone(),
            partitions,
            chunks,
            part: self.part.clone(),
            modes: self.modes.clone(),
        }
    }

    /// Checks the rules of a partition's chunks.
    fn check_chunks(&self, partition: &Partition, chunks: &[ChunkEntry]) -> std::result::Result<(), Refusal> {
        let cuts_at_tiles = partition.format.cuts_at_tiles();
        let least = if cuts_at_tiles { 4 } else { 2 };
        let nnz_max = super::CHUNK_BYTES_MAX / partition.format.nonzero_bytes_min().max(least);
        let mut next = 0u64;
        for chunk in chunks {
            check(chunk.nnz > 0, "nnz of a chunk")?;
            check_cover(chunk.first_nonzero == next, "first nonzero of a chunk")?;
            check(chunk.nnz <= nnz_max, "nnz of a chunk")?;
            next = next.checked_add(chunk.nnz).ok_or("nnz of a chunk")?;
            let whole = !cuts_at_tiles || chunk.nnz.is_multiple_of(TILE_NNZ as u64);
            check_cover(next == partition.nnz || whole, "nnz of a chunk")?;
            let bytes_fit =
                chunk.file_bytes <= super::FILE_BYTES_MAX && chunk.image_bytes <= self.chunk_bytes;
            check(bytes_fit && chunk.file_bytes.is_multiple_of(4096), "bytes of a chunk")?;
            let dims = self.shape.dims().iter().chain(&[1; ORDER_MAX]);
            for ((low, high), dim) in chunk.row_low.iter().zip(&chunk.row_high).zip(dims) {
                check(low <= high && high < dim, "row range of a chunk")?;
            }
            let known = chunk.value_encoding.is_none_or(|code| partition.format.has_value_encoding(code));
            check(known, "value encoding of a chunk")?;
        }
        check_cover(next == partition.nnz, "nnz")
    }
}

/// Why a body was refused.
enum Refusal {
    /// Damaged: the rule that it breaks, and how.
    Corrupt(&'static str, &'static str),
    /// Made for other programs.
    Unknown(&'static str, String),
}

impl From<&'static str> for Refusal {
    fn from(what: &'static str) -> Self {
        Self::Corrupt("manifest-field", what)
    }
}

/// Fails unless covers add up.
fn check_cover(holds: bool, what: &'static str) -> std::result::Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Refusal::Corrupt("manifest-covers", what)) }
}

/// Fails unless the rule of a field `holds`.
fn check(holds: bool, what: &'static str) -> std::result::Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}

/// Checks the preamble at the start of `head`, of a file of `length` bytes. Returns the version that it names.
pub(super) fn check_preamble(head: &[u8], length: u64, path: &Path) -> Result<Version> {
    let wrong = |rule, what: &str| Err(Error::corrupt(path, what).breaks(rule));
    if !head.starts_with(&MAGIC[..head.len().min(MAGIC.len())]) {
        return Err(Error::unusable(path, WRONG_MAGIC).breaks("manifest-magic"));
    }
    let Some(preamble) = head.first_chunk::<PREAMBLE_BYTES>() else {
        return wrong("manifest-short", "corrupt: shorter than its preamble of 64 bytes; it was cut off");
    };
    let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| preamble[at + i]));
    let code = u32::from_le_bytes(std::array::from_fn(|i| preamble[8 + i]));
    let body_at = u32::from_le_bytes(std::array::from_fn(|i| preamble[12 + i]));
    if field(56) != xxh3_64(&preamble[..56]) {
        return wrong("manifest-preamble", "corrupt: preamble checksum at byte 56");
    }
    let version = Version::of_file(code, path, "manifest-version")?;
    if body_at != BODY_AT || preamble[32..56].iter().any(|&b| b != 0) {
        return wrong("manifest-reserved", "corrupt: reserved fields of the preamble");
    }
    if field(16) != length - PREAMBLE_BYTES as u64 {
        return wrong(
            "manifest-length",
            "corrupt: the file's length differs from the preamble's; it was cut off or extended",
        );
    }
    Ok(version)
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
            value_encoding: Some(3),
        };
        let statistics = PartitionStatistics { sampled: 12, distinct: vec![[9; 8]; 3], ..Default::default() };
        let format = Format::blco(IndexEncoding::Tiled);
        Manifest {
            version: Version::Two,
            shape: Shape::new(&[4, 3, 2]).unwrap(),
            codec: Codec::Zstd(3),
            may_repeat: false,
            chunk_bytes: 1 << 20,
            nnz: 12,
            sum_squares: 2.5,
            value_min: -1.0,
            value_max: 2.0,
            longest_row_bounds: vec![3, 4, 6],
            partitions: vec![Partition::whole(format, 3, 1, 12, Some(5), Some(statistics))],
            chunks: vec![entry],
            part: None,
            modes: None,
        }
    }

    fn of_format(format: Format, nnz: u64) -> Manifest {
        let mut manifest = Manifest { nnz, ..example() };
        let partition = &mut manifest.partitions[0];
        (partition.format, partition.nnz, manifest.chunks[0].nnz) = (format, nnz, nnz);
        manifest
    }

    /// A tree's level order and leaf rule survive the round trip, as do optional sections.
    #[test]
    fn all_of_it_comes_back() {
        let tree = Format::hocfs(ModeOrder::rotated(3, 1), LeafRule::Auto);
        let part = PartOf { number: 1, parts: 4, nnz: 99, hash: 7, from: [1, 0], to: [63, 0] };
        for (format, part) in [(example().format().clone(), None), (tree, Some(part))] {
            let mut manifest = Manifest { part, ..of_format(format, 12) };
            for _ in 0..2 {
                let (bytes, id) = manifest.encode();
                assert_eq!(Manifest::decode(&bytes, Path::new("manifest")).unwrap(), (manifest.clone(), id));
                manifest.partitions[0].statistics = None;
            }
        }
    }

    /// Sums and products with a chunk's nonzeros stay far below the limits of 64 bits.
    #[test]
    fn a_chunk_has_no_more_nonzeros_than_fit_its_image() {
        let tree = Format::hocfs(ModeOrder::rotated(3, 1), LeafRule::Auto);
        for (format, most) in [(example().format().clone(), 1 << 28), (tree, 1 << 29)] {
            for (nnz, accepted) in [(most, true), (most + 1, false), (u64::MAX, false)] {
                let manifest = of_format(format.clone(), nnz);
                let read = Manifest::decode(&manifest.encode().0, Path::new("manifest"));
                assert_eq!(read.is_ok(), accepted, "{nnz}");
                assert!(accepted || read.unwrap_err().to_string().contains("nnz of a chunk"));
            }
        }
    }

    #[test]
    fn every_flip_and_truncation_is_an_error() {
        let path = Path::new("manifest");
        let (mut bytes, _) = example().encode();
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
        let (mut bytes, _) = example().encode();
        let message = |bytes: &[u8]| Manifest::decode(bytes, Path::new("m")).unwrap_err().to_string();
        bytes[8] = 3;
        // If the preamble is damaged, the version is not reported.
        assert!(message(&bytes).contains("corrupt: preamble checksum"), "{}", message(&bytes));
        let checksum = xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&checksum.to_le_bytes());
        assert!(
            message(&bytes).contains("version 3") && message(&bytes).contains("newer"),
            "{}",
            message(&bytes)
        );
    }
}
