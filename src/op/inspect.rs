//! Statistics of a store's chunks, tiles and rows, computed from every nonzero. They do not depend on batches, threads
//! or memory.

use super::rows::RowCounts;
use crate::backend::host::{HostOp, Tiles};
use crate::encoding::width;
use crate::error::Result;
use crate::format::ChunkView;
use crate::format::tree::TreeView;
use crate::shape::Shape;
use crate::sys::Sys;
use serde::Serialize;
use std::collections::BTreeMap;

/// Statistics of one mode.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModeStatistics {
    /// Rows with at least one nonzero; `None` above 2^28 rows.
    pub rows: Option<u64>,
    /// The most nonzeros of a row; `None` above 2^28 rows.
    pub longest_row: Option<u64>,
    /// Average over the tiles of the bits of an index.
    pub tile_bits: f64,
    /// Average over the tiles of the rows spanned.
    pub tile_span: f64,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreStatistics {
    /// Nonzeros met.
    pub nnz: u64,
    /// Tiles met.
    pub tiles: u64,
    /// Explicit zeros.
    pub zeros: u64,
    /// Bytes of images for indices: columns, or the `raw` index.
    pub index_bytes: u64,
    /// Bytes of images for values.
    pub value_bytes: u64,
    /// BLCO blocks of `raw` chunks. One that continues in the next chunk counts in both.
    pub blocks: u64,
    /// Padded slices of trees. One that continues in the next chunk counts in both.
    pub ell_slices: u64,
    /// Chunks of each value encoding.
    pub value_encodings: BTreeMap<&'static str, u64>,
    /// For each mode.
    pub modes: Vec<ModeStatistics>,
}

/// The operation.
#[derive(Debug)]
pub struct Inspect {
    rows: RowCounts,
    /// Whether a previous pass has collected everything except rows.
    seen: bool,
    statistics: StoreStatistics,
    scaled: Option<Scaled>,
}

/// A sum of squares of scaled numbers, whose squares neither overflow nor underflow.
#[derive(Debug)]
struct Scaled {
    by: f64,
    sum: f64,
}

impl Inspect {
    /// Statistics of a store of `shape` from one pass. Fails if memory is short.
    pub fn new(sys: &Sys, shape: &Shape) -> Result<Self> {
        Self::within(sys, shape, u64::MAX, u64::MAX)
    }

    /// The same for a store of `nnz` nonzeros, in [`Inspect::host_bytes`] of memory and as many passes as
    /// [`Inspect::goes_on`] requires.
    pub fn within(sys: &Sys, shape: &Shape, nnz: u64, room: u64) -> Result<Self> {
        let modes = vec![ModeStatistics::default(); shape.order()];
        Ok(Self {
            rows: RowCounts::new(sys, shape, nnz, room)?,
            seen: false,
            statistics: StoreStatistics { modes, ..StoreStatistics::default() },
            scaled: None,
        })
    }

    /// Also computes the norm. Values are divided by `largest`, the largest absolute value; `None` for no norm.
    #[must_use]
    pub fn with_norm(self, largest: Option<f64>) -> Self {
        Self { scaled: largest.map(|by| Scaled { by, sum: 0.0 }), ..self }
    }

    /// Bytes of host memory for a store of `nnz` nonzeros: at most `room`, if that suffices for a few counters.
    #[must_use]
    pub fn host_bytes(shape: &Shape, nnz: u64, room: u64) -> u64 {
        RowCounts::host_bytes(shape, nnz, room)
    }

    /// Ends a pass. Returns whether another pass must count remaining rows.
    pub fn goes_on(&mut self) -> bool {
        self.seen = true;
        self.rows.goes_on()
    }

    /// The results of all passes, and the norm if requested.
    #[must_use]
    pub fn finish(mut self) -> (StoreStatistics, Option<f64>) {
        let norm = self.scaled.map(|scaled| scaled.by * scaled.sum.sqrt());
        let tiles = self.statistics.tiles.max(1) as f64;
        if !self.seen {
            self.rows.goes_on();
        }
        for (mode, found) in self.statistics.modes.iter_mut().zip(self.rows.found()) {
            (mode.rows, mode.longest_row) = found.unzip();
            mode.tile_bits /= tiles;
            mode.tile_span /= tiles;
        }
        (self.statistics, norm)
    }
}

impl HostOp for Inspect {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        if self.seen {
            return Ok(());
        }
        let statistics = &mut self.statistics;
        statistics.index_bytes += chunk.index_bytes();
        statistics.value_bytes += chunk.value_bytes();
        statistics.blocks += chunk.blocks();
        statistics.ell_slices += chunk.tree().map_or(0, TreeView::ell_slices);
        *statistics.value_encodings.entry(chunk.value_encoding().name()).or_default() += 1;
        Ok(())
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let statistics = &mut self.statistics;
        for t in 0..batch.tiles() {
            let tile = batch.tile(t);
            (0..statistics.modes.len()).for_each(|m| self.rows.count(m, tile.column(m)));
            if self.seen {
                continue;
            }
            statistics.tiles += 1;
            statistics.nnz += tile.nnz as u64;
            if let Some(scaled) = &mut self.scaled {
                scaled.sum = tile.values.iter().fold(scaled.sum, |sum, v| sum + (v / scaled.by).powi(2));
            }
            statistics.zeros += tile.values.iter().filter(|&&v| v == 0.0).count() as u64;
            for (m, mode) in statistics.modes.iter_mut().enumerate() {
                let span = tile.high[m] - tile.low[m];
                mode.tile_span += f64::from(span) + 1.0;
                mode.tile_bits += f64::from(width(span.into()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::sys::fault::{Call, Fault, Faults};
    use std::sync::Arc;

    #[test]
    fn counters_that_memory_does_not_hold_are_an_error() {
        let shape = Shape::new(&[4, 5, 1 << 29]).unwrap();
        assert_eq!(Inspect::host_bytes(&shape, u64::MAX, u64::MAX), 4 * 9);
        let faults = Faults::new(Some(Call::Allocate), 0, Fault::Errno(libc::ENOMEM));
        let failed = Inspect::new(&Sys::with_faults(Arc::new(faults)), &shape).unwrap_err();
        assert!(matches!(failed, Error::Resource { .. }), "{failed}");
        let counted = Inspect::new(&Sys::default(), &shape).unwrap().finish();
        assert_eq!(counted.0.modes.iter().map(|m| m.rows).collect::<Vec<_>>(), [Some(0), Some(0), None]);
    }
}
