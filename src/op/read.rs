//! Nonzeros as batches of coordinates, in the store's order: all of them, or those inside a range per mode.

use crate::backend::host::{HostOp, Tiles};
use crate::coo::Batch;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use crate::store::Manifest;
use std::ops::Range;

/// The fewest nonzeros in a batch, except the last.
const BATCH_NNZ: usize = 128 * TILE_NNZ;

/// The operation. Chunks and tiles without a nonzero inside the ranges are skipped.
pub struct ReadBatches<'a> {
    ranges: Vec<Range<u32>>,
    /// Whether the ranges contain every index.
    all: bool,
    /// For each chunk, whether it may have a nonzero inside the ranges.
    wanted: Vec<bool>,
    open: Batch,
    sink: &'a mut (dyn FnMut(Batch) -> Result<()> + Send),
}

impl<'a> ReadBatches<'a> {
    /// Reads the nonzeros inside `ranges`, one per mode, or all if `ranges` is empty.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for a wrong number of ranges, or one that exceeds its mode.
    pub fn new(
        manifest: &Manifest,
        ranges: &[Range<u32>],
        sink: &'a mut (dyn FnMut(Batch) -> Result<()> + Send),
    ) -> Result<Self> {
        let dims = manifest.shape.dims();
        let whole: Vec<Range<u32>> = dims.iter().map(|&dim| 0..dim).collect();
        let ranges = if ranges.is_empty() { whole.clone() } else { ranges.to_vec() };
        let inside = |(range, &dim): (&Range<u32>, &u32)| range.end <= dim;
        if ranges.len() != dims.len() || !ranges.iter().zip(dims).all(inside) {
            return Err(Error::request(format!(
                "ranges {ranges:?} of dims {dims:?}: give one within each mode"
            )));
        }
        let wanted =
            manifest.chunks.iter().map(|chunk| meet(&ranges, &chunk.row_low, &chunk.row_high)).collect();
        Ok(Self { all: ranges == whole, ranges, wanted, open: Batch::default(), sink })
    }

    /// Bytes of memory for tensors of `order`, including a batch that the caller still holds.
    #[must_use]
    pub fn host_bytes(order: usize) -> u64 {
        (2 * 2 * BATCH_NNZ * (4 * order + 8)) as u64
    }

    fn add(&mut self, tile: &DecodedTile<'_>) {
        let Self { ranges, open, .. } = self;
        let is_within =
            |i: usize| ranges.iter().enumerate().all(|(m, range)| range.contains(&tile.column(m)[i]));
        for (i, &value) in tile.values.iter().enumerate() {
            if self.all || is_within(i) {
                open.indices.extend((0..ranges.len()).map(|m| tile.indices[m * TILE_NNZ + i]));
                open.values.push(value);
            }
        }
    }

    fn hand_over(&mut self) -> Result<()> {
        if self.open.values.is_empty() { Ok(()) } else { (self.sink)(std::mem::take(&mut self.open)) }
    }
}

/// Whether the box from `low` to `high` overlaps the ranges.
fn meet(ranges: &[Range<u32>], low: &[u32], high: &[u32]) -> bool {
    ranges.iter().zip(low).zip(high).all(|((range, &low), &high)| range.start <= high && low < range.end)
}

impl HostOp for ReadBatches<'_> {
    fn skips(&self, number: usize) -> bool {
        !self.wanted[number]
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        for t in 0..batch.tiles() {
            let tile = batch.tile(t);
            if self.all || meet(&self.ranges, &tile.low, &tile.high) {
                self.add(&tile);
            }
            if self.open.nnz() >= BATCH_NNZ {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.hand_over()
    }
}
