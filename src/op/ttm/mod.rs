//! SpTTM, a sparse tensor times a dense matrix along one mode (Liu et al., CLUSTER 2017, equation 3): for mode m and a matrix U of
//! `dims[m]` x rank, `Y(i without i_m, :) = sum over i_m of value * U(i_m, :)`. The result is semi-sparse: every nonempty fiber along
//! the mode has a dense row, and fibers are as sparse as they were.
//!
//! Fibers are returned in ascending order of the other modes. If a store's nonzeros already have that order (a tree
//! with the other modes ascending above mode m), it is computed while it streams: [`FiberRows`] takes its tiles. The
//! nonzeros of other stores are sorted first ([`Sorted`]), in the packer's runs, on disk if memory is short. Either way
//! memory holds the matrix and some fibers, never the result.
//!
//! **Order of additions.** Products are in the precision of the matrix, sums in f64. Nonzeros are counted in the order
//! of the fibers. A row is the sum of the partial sums of each 512 of them, counted from the first. Results depend only
//! on the nonzeros, the matrix and the precision: not on chunks, threads or memory, nor, unless coordinates repeat, on
//! the format.

#[cfg(feature = "cuda")]
pub mod cuda;
mod fiber_rows;
mod kernel;
mod oracle;
#[cfg(feature = "cuda")]
mod ranges;
mod sorted;
mod tile_fibers;

pub use fiber_rows::FiberRows;
pub use oracle::{Oracle, oracle_bytes};
pub use sorted::{Sorted, layout};

use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::store::Manifest;

/// Some fibers of a semi-sparse tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fibers<T> {
    /// For each fiber, its indices in all modes but the dense one, ascending, from 0.
    pub coordinates: Vec<u32>,
    /// For each fiber its row of `rank` numbers.
    pub values: Vec<T>,
}

impl<T> Fibers<T> {
    /// Coordinates and values, as a sink of fibers gets them.
    #[must_use]
    pub fn as_slices(&self) -> (&[u32], &[T]) {
        (&self.coordinates, &self.values)
    }
}

/// Receives fibers in order. Each piece has the coordinates and the values of consecutive fibers, as in [`Fibers`].
pub type FiberSink<'a, T> = &'a mut (dyn FnMut(&[(&[u32], &[T])]) -> Result<()> + Send);

/// Whether the nonzeros of a store have the order of the fibers along `mode`, from 0.
#[must_use]
pub fn is_in_order(manifest: &Manifest, mode: usize) -> bool {
    let order = manifest.shape.order();
    let wanted = (0..order).filter(|&m| m != mode).chain([mode]);
    // Each partition of a cover starts again.
    let is_one = manifest.partitions.len() == 1;
    is_one
        && manifest.format().tree_levels().is_some_and(|levels| {
            levels.modes().len() == order && levels.modes().iter().map(|&m| usize::from(m)).eq(wanted)
        })
}

/// Tiles whose fibers `threads` threads compute at once.
fn tiles_at_once(order: usize, rank: usize, threads: usize) -> usize {
    const BYTES: usize = 16 << 20;
    (BYTES / tile_bytes(order, rank)).clamp(threads, 128.max(threads))
}

/// The most bytes of a tile's nonzeros and fibers. The second copy is in the precision of the result.
fn tile_bytes(order: usize, rank: usize) -> usize {
    (16 + 4 * order + 12 * rank) * TILE_NNZ
}

/// Bytes that [`FiberRows`] holds for a store besides the matrix and the receiver of fibers.
#[must_use]
pub fn fibers_bytes(manifest: &Manifest, rank: usize, threads: usize) -> u64 {
    let order = manifest.shape.order();
    let tiles = (tiles_at_once(order, rank, threads) as u64).min(manifest.nnz.div_ceil(TILE_NNZ as u64) + 1);
    tiles.saturating_mul(tile_bytes(order, rank) as u64)
}

/// Bytes of a matrix of `dims[mode]` x `rank` numbers.
#[must_use]
pub fn matrix_bytes<T: Real>(manifest: &Manifest, mode: usize, rank: usize) -> u64 {
    u64::from(manifest.shape.dims()[mode]).saturating_mul((rank * size_of::<T>()) as u64)
}
