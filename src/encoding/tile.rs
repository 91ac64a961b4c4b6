//! Tile records and a tile's columns: the `tiled` index encoding (formats-spec/encodings.md).

use super::column::{self, Numbers};
use super::{TILE_NNZ, width};
use crate::shape::ORDER_MAX;

/// Bytes of a tile's record in the TILES section.
#[must_use]
pub const fn record_bytes(order: usize) -> usize {
    16 + 8 * order
}

/// What a tile's record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileRecord {
    /// Where its columns start in COLUMNS, in units of 64 bytes.
    pub columns_at: u32,
    /// Width of the value column.
    pub value_width: u32,
    /// Smallest value, for integer values.
    pub value_base: i64,
    /// Smallest index of each mode.
    pub low: [u32; ORDER_MAX],
    /// Largest index of each mode.
    pub high: [u32; ORDER_MAX],
}

impl TileRecord {
    /// Appends the record of a tile of `order` modes.
    pub fn write(&self, order: usize, out: &mut Vec<u8>) {
        out.extend(self.columns_at.to_le_bytes());
        out.extend(self.value_width.to_le_bytes());
        out.extend(self.value_base.to_le_bytes());
        self.write_ranges(order, out);
    }

    /// Appends the smallest and the largest index of each of `order` modes.
    pub fn write_ranges(&self, order: usize, out: &mut Vec<u8>) {
        for (low, high) in self.low.iter().zip(&self.high).take(order) {
            out.extend(low.to_le_bytes());
            out.extend(high.to_le_bytes());
        }
    }

    /// Reads a record of [`record_bytes`] bytes without checking it.
    #[must_use]
    pub fn read(record: &[u8], order: usize) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| record[at + i]));
        let mut tile = Self {
            columns_at: u32_at(0),
            value_width: u32_at(4),
            value_base: i64::from_le_bytes(std::array::from_fn(|i| record[8 + i])),
            low: [0; ORDER_MAX],
            high: [0; ORDER_MAX],
        };
        for m in 0..order {
            tile.low[m] = u32_at(16 + 8 * m);
            tile.high[m] = u32_at(20 + 8 * m);
        }
        tile
    }

    /// Width of the column of `mode`.
    #[must_use]
    pub fn width(&self, mode: usize) -> u32 {
        width(u64::from(self.high[mode].wrapping_sub(self.low[mode])))
    }

    /// Sum of the widths of the tile's columns: their length in units of 64 bytes.
    #[must_use]
    pub fn widths(&self, order: usize) -> u32 {
        (0..order).map(|m| self.width(m)).sum::<u32>() + self.value_width
    }
}

/// Packs the indices of `mode` of a tile of `nnz` nonzeros; `numbers` beyond them are ignored.
pub fn pack_mode(record: &TileRecord, mode: usize, nnz: usize, numbers: &Numbers<u32>, out: &mut Vec<u8>) {
    let mut offsets = [0; TILE_NNZ];
    for (offset, number) in offsets.iter_mut().zip(&numbers[..nnz]) {
        *offset = number - record.low[mode];
    }
    column::pack32(&offsets, record.width(mode), out);
}

/// Unpacks the indices of `mode`; slots without a nonzero hold `low`. Returns false if an index exceeds
/// `high`.
#[must_use]
#[inline(always)]
pub fn unpack_mode(
    record: &TileRecord,
    mode: usize,
    words: &[u32],
    nnz: usize,
    out: &mut Numbers<u32>,
) -> bool {
    let low = record.low[mode];
    column::unpack32(words, record.width(mode), low, out);
    reach_at_most(out, nnz, low, record.high[mode] - low)
}

/// Whether the first `nnz` of a tile's indices are at most `span` above `low`. If not, slots from `nnz` on are set to
/// `low` first. Their contents are not an error here; verification checks them.
#[inline(always)]
pub fn reach_at_most(indices: &mut Numbers<u32>, nnz: usize, low: u32, span: u32) -> bool {
    let furthest =
        |indices: &Numbers<u32>| indices.iter().fold(0, |far: u32, &index| far.max(index.wrapping_sub(low)));
    furthest(indices) <= span || {
        indices[nnz..].fill(low);
        furthest(indices) <= span
    }
}
