//! The archive in a manifest of version 1 (formats-spec/container-1.md). It is read but no longer written.

use super::{ChunkEntry, Codec, Manifest, Partition, Refusal, check};
use crate::chunk::Version;
use crate::encoding::{TILE_NNZ, width};
use crate::format::{FormatRecord, Formats, Layout};
use crate::linear::BLOCK_BITS;
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use rkyv::{Archive, rancor};

/// The root.
#[derive(Archive)]
#[allow(dead_code, reason = "says how an archive lies; it is read in place")]
struct Root {
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
    chunks: Vec<Chunk>,
}

/// One mode.
#[derive(Archive)]
struct Mode {
    dim: u32,
    bits: u32,
    longest_row_bound: u64,
}

/// One chunk.
#[derive(Archive)]
struct Chunk {
    first_nonzero: u64,
    nnz: u64,
    file_bytes: u64,
    image_bytes: u64,
    payload_checksum: u64,
    first_linear: [u64; 2],
    last_linear: [u64; 2],
    row_low: [u32; ORDER_MAX],
    row_high: [u32; ORDER_MAX],
}

/// Reads and checks an archive.
pub(super) fn decode(formats: &Formats, archive: &[u8]) -> Result<Manifest, Refusal> {
    let root = rkyv::access::<ArchivedRoot, rancor::Error>(archive);
    let root = root.map_err(|_| "the archive is not well formed")?;
    let format = root.format.to_native();
    if !(1..=2).contains(&format) {
        let what = "unknown format; a newer program may read it";
        return Err(Refusal::Unknown("manifest-format", what.into()));
    }
    let codec = Codec::from_codes(root.codec.into(), root.codec_level.into()).ok_or("unknown codec")?;
    check(root.duplicates <= 1, "field duplicates")?;
    check(u32::from(root.tile_nnz) as usize == TILE_NNZ, "field tile nnz")?;
    let dims: Vec<u64> = root.modes.iter().map(|m| u32::from(m.dim).into()).collect();
    let shape = Shape::new(&dims).map_err(|_| "dims")?;
    let format = formats.read(&record(root, shape.order())?, shape.order())?;
    check(root.modes.iter().all(|m| m.bits == width(u64::from(u32::from(m.dim)) - 1)), "bits of a mode")?;
    check(format.bit_layout(&shape).bit_modes() == root.bit_modes.as_slice(), "bit modes")?;
    let nnz = root.nnz.to_native();
    let chunks: Vec<_> = root.chunks.iter().map(entry).collect();
    let manifest = Manifest {
        version: Version::One,
        shape,
        codec,
        may_repeat: root.duplicates == 1,
        chunk_bytes: root.chunk_bytes.into(),
        nnz,
        sum_squares: root.sum_squares.into(),
        value_min: root.value_min.into(),
        value_max: root.value_max.into(),
        longest_row_bounds: root.modes.iter().map(|m| m.longest_row_bound.into()).collect(),
        partitions: vec![Partition::whole(format, dims.len(), chunks.len() as u64, nnz, None, None)],
        chunks,
        part: None,
        modes: None,
    };
    manifest.check_common()?;
    Ok(manifest)
}

/// The format's record, from fields that version 1 has for it.
fn record(root: &ArchivedRoot, order: usize) -> Result<FormatRecord, &'static str> {
    let layout = root.index_encoding.to_native();
    let levels = root.level_modes.to_native().to_le_bytes();
    let tree = root.format == 2;
    let known = if tree { layout == u32::from(Layout::TREE.0) } else { (1..=2).contains(&layout) };
    check(known, "unknown index encoding")?;
    check(root.block_bits == if tree { 0 } else { BLOCK_BITS }, "field block bits")?;
    let reserved =
        levels[order..].iter().any(|&mode| mode != 0) || !tree && (levels[0] != 0 || levels != [0; 8]);
    check(!reserved, if tree { "modes of levels" } else { "reserved fields of the archive" })?;
    check(tree || root.leaf_rule == 0, "reserved fields of the archive")?;
    let (mut modes, mut parameters) = (None, Vec::new());
    if tree {
        let named: Vec<usize> = levels[..order].iter().map(|&mode| mode.into()).collect();
        modes = Some(ModeOrder::new(&named).ok_or("modes of levels")?);
        parameters.extend(u64::from(root.leaf_rule.to_native()).to_le_bytes());
    }
    let layout = Layout(u8::try_from(layout).map_err(|_| "unknown index encoding")?);
    Ok(FormatRecord { code: root.format.into(), layout, levels: modes, parameters })
}

fn entry(chunk: &ArchivedChunk) -> ChunkEntry {
    ChunkEntry {
        first_nonzero: chunk.first_nonzero.into(),
        nnz: chunk.nnz.into(),
        file_bytes: chunk.file_bytes.into(),
        image_bytes: chunk.image_bytes.into(),
        payload_checksum: chunk.payload_checksum.into(),
        first_linear: chunk.first_linear.map(u64::from),
        last_linear: chunk.last_linear.map(u64::from),
        row_low: chunk.row_low.map(u32::from),
        row_high: chunk.row_high.map(u32::from),
        value_encoding: None,
    }
}
