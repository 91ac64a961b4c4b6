//! Looks at every nonzero of a store: that the store is what it says, and statistics of its tiles and rows.
//! Its figures do not depend on batches or threads.

use crate::backend::host::{Batch, HostOp};
use crate::error::{Error, Result};
use crate::linear::{BitLayout, Linearizer};
use crate::store::Manifest;
use serde::Serialize;
use std::path::PathBuf;

/// Rows beyond which they are not counted one by one: 2^28 counters take 1 GiB.
const COUNTED_ROWS_MAX: u32 = 1 << 28;

/// Statistics of one mode.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModeStatistics {
    /// Rows with at least one nonzero.
    pub rows: u64,
    /// The most nonzeros of a row.
    pub longest_row: u64,
    /// Average over the tiles of the bits of an index.
    pub tile_bits: f64,
    /// Average over the tiles of the rows spanned.
    pub tile_span: f64,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Statistics {
    /// Nonzeros met.
    pub nnz: u64,
    /// Tiles met.
    pub tiles: u64,
    /// Pairs of neighbours with the same coordinates.
    pub duplicates: u64,
    /// Explicit zeros.
    pub zeros: u64,
    /// For each mode; rows are counted only where they can be.
    pub modes: Vec<ModeStatistics>,
}

/// The operation.
#[derive(Debug)]
pub struct Inspect<'a> {
    manifest: &'a Manifest,
    path: PathBuf,
    linearizer: Linearizer<u128>,
    previous: Option<(u128, f64)>,
    row_nnz: Vec<Vec<u32>>,
    statistics: Statistics,
    sum_squares: f64,
}

impl<'a> Inspect<'a> {
    /// An inspection of the store at `path`.
    #[must_use]
    pub fn new(manifest: &'a Manifest, path: PathBuf) -> Self {
        let shape = &manifest.shape;
        let counters = |&dim: &u32| if dim <= COUNTED_ROWS_MAX { vec![0; dim as usize] } else { Vec::new() };
        Self {
            manifest,
            path,
            linearizer: Linearizer::new(&BitLayout::new(shape)),
            previous: None,
            row_nnz: shape.dims().iter().map(counters).collect(),
            statistics: Statistics {
                modes: vec![ModeStatistics::default(); shape.order()],
                ..Statistics::default()
            },
            sum_squares: 0.0,
        }
    }

    /// Host bytes that it holds.
    #[must_use]
    pub fn host_bytes(manifest: &Manifest) -> u64 {
        let dims = manifest.shape.dims().iter();
        dims.filter(|&&dim| dim <= COUNTED_ROWS_MAX).map(|&dim| 4 * u64::from(dim)).sum()
    }

    /// Checks the totals against the manifest.
    pub fn finish(mut self) -> Result<Statistics> {
        let manifest = self.manifest;
        let tiles = self.statistics.tiles.max(1) as f64;
        for (mode, rows) in self.statistics.modes.iter_mut().zip(&self.row_nnz) {
            mode.rows = rows.iter().filter(|&&n| n > 0).count() as u64;
            mode.longest_row = rows.iter().copied().max().unwrap_or(0).into();
            mode.tile_bits /= tiles;
            mode.tile_span /= tiles;
        }
        let close = (self.sum_squares - manifest.sum_squares).abs() <= 1e-9 * manifest.sum_squares;
        let bounded = self.statistics.modes.iter().zip(&manifest.longest_row_bounds);
        if self.statistics.nnz != manifest.nnz
            || manifest.sum_squares.is_finite() && !close
            || bounded.into_iter().any(|(mode, &bound)| mode.longest_row > bound)
        {
            return Err(Error::corrupt(self.path, "the manifest's statistics differ from the nonzeros"));
        }
        Ok(self.statistics)
    }
}

impl HostOp for Inspect<'_> {
    fn batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        for t in 0..batch.tiles() {
            let tile = batch.tile(t);
            let order = tile.order();
            self.statistics.tiles += 1;
            self.statistics.nnz += tile.nnz as u64;
            for m in 0..order {
                let column = tile.column(m);
                let exact = column.iter().min() == Some(&tile.low[m]) && column.iter().max() == Some(&tile.high[m]);
                if !exact || tile.high[m] >= self.manifest.shape.dims()[m] {
                    let what = format!("tile {}: mode {}: row range", batch.first_tile + t as u64, m + 1);
                    return Err(Error::corrupt(&self.path, what));
                }
                let span = f64::from(tile.high[m] - tile.low[m]);
                self.statistics.modes[m].tile_span += span + 1.0;
                self.statistics.modes[m].tile_bits += f64::from(crate::encoding::width(span as u64));
                for &row in column {
                    if let Some(count) = self.row_nnz[m].get_mut(row as usize) {
                        *count = count.saturating_add(1);
                    }
                }
            }
            let mut at = vec![0; order];
            for (i, &value) in tile.values.iter().enumerate() {
                at.iter_mut().enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
                let linear = self.linearizer.scatter(&at);
                let place = || format!("tile {}, nonzero {i}", batch.first_tile + t as u64);
                match self.previous {
                    Some((last, last_value)) if last == linear => {
                        self.statistics.duplicates += 1;
                        if !self.manifest.may_repeat || last_value.total_cmp(&value).is_gt() {
                            let what = format!("{}: a coordinate is repeated", place());
                            return Err(Error::corrupt(&self.path, what));
                        }
                    }
                    Some((last, _)) if last > linear => {
                        return Err(Error::corrupt(&self.path, format!("{}: out of linear order", place())));
                    }
                    _ => {}
                }
                self.statistics.zeros += u64::from(value == 0.0);
                self.sum_squares += value * value;
                self.previous = Some((linear, value));
            }
        }
        Ok(())
    }
}
