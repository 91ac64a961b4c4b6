//! The LEVELS section: its head, a record for each tile of each level, and the slices' leaf codes
//! (formats-spec/hocfs.md).

use crate::chunk::{ChunkHeader, SectionKind};
use crate::encoding::{LeafRule, TILE_NNZ, width};
use crate::shape::{ModeOrder, ORDER_MAX};

/// Bytes of the section's head.
pub const HEAD_BYTES: usize = 64;
/// Bytes of a tile's record.
pub const RECORD_BYTES: usize = 32;

/// The mode of each level; 0 beyond the last.
#[must_use]
pub fn level_bytes(levels: &ModeOrder) -> [u8; ORDER_MAX] {
    std::array::from_fn(|level| levels.modes().get(level).copied().unwrap_or(0))
}

/// The section's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHead {
    /// The mode of each level; 0 beyond the last.
    pub level_modes: [u8; ORDER_MAX],
    /// The code of the leaf rule.
    pub leaf_rule: u32,
    /// Nodes of each level (slots for the leaves); 0 beyond the last.
    pub nodes: [u32; ORDER_MAX],
}

/// The most nodes in the tree of a chunk with this header, leaves and padding included, according to its
/// records.
pub(crate) fn nodes_max(header: &ChunkHeader) -> u64 {
    let section = header.section(SectionKind::Levels).map_or(0, |section| section.len());
    (section.saturating_sub(HEAD_BYTES) / RECORD_BYTES * TILE_NNZ) as u64
}

impl TreeHead {
    /// The head of a tree of these levels.
    pub fn new(levels: &ModeOrder, leaf: LeafRule, nodes: [u32; ORDER_MAX]) -> Self {
        Self { level_modes: level_bytes(levels), leaf_rule: leaf as u32, nodes }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.level_modes);
        out.extend(self.leaf_rule.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.nodes.iter().flat_map(|n| n.to_le_bytes()));
        out.extend([0; 16]);
    }

    /// Reads the head of a section; `None` if it is too short or a reserved field is not zero.
    pub fn read(section: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = section.first_chunk()?;
        let reserved = head[12..16].iter().chain(&head[48..]);
        let nodes = std::array::from_fn(|l| u32_at(head, 16 + 4 * l));
        let level_modes = std::array::from_fn(|l| head[l]);
        let read = Self { level_modes, leaf_rule: u32_at(head, 8), nodes };
        reserved.copied().all(|byte| byte == 0).then_some(read)
    }
}

/// The record of a tile: 512 nodes of one level, fewer in the last tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelRecord {
    /// Where its columns start in COLUMNS, in units of 64 bytes.
    pub columns_at: u32,
    /// The smallest index.
    pub low: u32,
    /// The largest index.
    pub high: u32,
    /// For an inner level: the children of node i of the tile begin at `base + stride * i + number`. For leaves:
    /// nonzeros of the chunk before the tile.
    pub stride_or_before: u32,
    /// Where the first node's children begin; for leaves, the smallest value if values are integers.
    pub base: i64,
    /// Width of the second column: starts or values.
    pub second_width: u32,
}

impl LevelRecord {
    pub fn write(&self, out: &mut Vec<u8>) {
        for field in [self.columns_at, self.low, self.high, self.stride_or_before] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.base.to_le_bytes());
        out.extend(self.second_width.to_le_bytes());
        out.extend([0; 4]);
    }

    /// Reads a record of [`RECORD_BYTES`]. Does not check the reserved last field.
    #[inline]
    pub fn read(record: &[u8]) -> Self {
        let record: &[u8; RECORD_BYTES] = record.first_chunk().expect("a whole record");
        Self {
            columns_at: u32_at(record, 0),
            low: u32_at(record, 4),
            high: u32_at(record, 8),
            stride_or_before: u32_at(record, 12),
            base: i64::from_le_bytes(std::array::from_fn(|i| record[16 + i])),
            second_width: u32_at(record, 24),
        }
    }

    /// Width of the index column. `padding` needs one more number.
    pub fn index_width(&self, padding: bool) -> u32 {
        width(u64::from(self.high.wrapping_sub(self.low)) + u64::from(padding))
    }
}

#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
