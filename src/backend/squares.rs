//! The sum of the values' squares, from the values that a pass brings: held against what the store's manifest records, where
//! a result depends on that.

use crate::error::{Error, Result};
use crate::format::{ChunkView, Neumaier};
use crate::store::{Manifest, Store};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A sum that the workers of a pass make, of each chunk once.
#[derive(Clone, Debug)]
pub struct Squares {
    sum: Arc<Mutex<Neumaier>>,
    recorded: f64,
    nnz: u64,
    manifest: PathBuf,
    /// Whether other members' sums must be added before the sum is checked.
    is_part: bool,
}

/// Adds up the squares of at most a tile's values, in several sums, so that they are made a vector at a time.
fn of_tile(values: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    for part in values.chunks(LANES) {
        sums.iter_mut().zip(part).for_each(|(sum, v)| *sum += v * v);
    }
    sums.iter().sum()
}

impl Squares {
    /// Of a store of which no chunk has come.
    #[must_use]
    pub fn of(store: &Store) -> Self {
        let Manifest { sum_squares: recorded, nnz, .. } = *store.manifest();
        let manifest = store.path().join("manifest");
        Self { sum: Arc::default(), recorded, nnz, manifest, is_part: false }
    }

    /// For one of several members that load some of the chunks each. Its squares go into the same sum, which only this
    /// one checks.
    #[must_use]
    pub fn part(&self) -> Self {
        Self { is_part: true, ..self.clone() }
    }

    /// Adds a chunk's.
    pub fn add(&self, chunk: &ChunkView<'_>) -> Result<()> {
        let mut of_chunk = Neumaier::default();
        chunk.for_each_values(|values| of_chunk.add(of_tile(values)))?;
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).add(of_chunk.total());
        Ok(())
    }

    /// The sum of the chunks that have come.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).total()
    }

    /// An error where the manifest records another sum than that of all chunks.
    pub fn check(&self) -> Result<()> {
        if self.is_part {
            return Ok(());
        }
        self.check_total(self.total())
    }

    /// An error where the manifest records another sum than `found`, that of all members.
    pub fn check_total(&self, found: f64) -> Result<()> {
        if (found - self.recorded).abs() <= roundings(found, self.nnz) {
            return Ok(());
        }
        let what = format!(
            "corrupt: the sum of squares is {:e} there, that of the values is {found:e}",
            self.recorded
        );
        Err(Error::corrupt(&self.manifest, what))
    }
}

/// By how much two sums of the same `nnz` squares can differ. None of either's terms goes through more roundings than the square's, 511
/// of a tile's sum and three of the sums of tiles and of chunks; where squares are subnormal, each errs by up to half of the
/// least positive number.
fn roundings(sum: f64, nnz: u64) -> f64 {
    const EACH: f64 = (1 + 511 + 3) as f64 * f64::EPSILON / 2.0;
    const LEAST: f64 = f64::from_bits(1);
    2.0 * EACH * sum + nnz as f64 * LEAST
}
