//! SpTTM, a sparse tensor times a dense matrix along one mode (Liu et al., CLUSTER 2017, equation 3): for mode m and a matrix U of
//! `dims[m]` x rank, `Y(i without i_m, :) = sum over i_m of value * U(i_m, :)`. The result is semi-sparse: every nonempty fiber along
//! the mode has a dense row, and fibers are as sparse as they were.
//!
//! Fibers are returned in ascending order of the other modes. If a store's nonzeros already have that order (a tree
//! with the other modes ascending above mode m), it is computed while it streams: [`FiberRows`] takes its tree. A tree
//! with the other modes in another order has each fiber's nonzeros together: they stay in memory as they are, and the
//! fibers are sorted ([`SortedFibers`]), if these are long enough; slice by slice, if the first of the other modes is the root. All other nonzeros are sorted first ([`Sorted`]), in
//! the packer's runs, on disk if memory is short. Memory never holds the result.
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
mod sorted_fibers;
mod tile_rows;

pub use fiber_rows::FiberRows;
pub use oracle::{Oracle, oracle_bytes};
pub use sorted::{Sorted, layout};
pub use sorted_fibers::{SortedFibers, fibers_of, sorted_fibers_bytes};

use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::tree::{FiberTile, Recent};
use crate::shape::ModeOrder;
use crate::store::{Manifest, Store};

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

/// The fibers that were computed.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// How many.
    pub fibers: u64,
    /// Whether all values that a sink got are finite.
    pub finite: bool,
}

/// Whether all are. Looks at each, so that vectors do it: 0 times a number that is not finite is not 0.
#[inline(always)]
pub(crate) fn are_finite<T: Real>(values: &[T]) -> bool {
    let zero = T::nearest(0.0);
    let (some, rest) = values.as_chunks::<32>();
    let mut sums = [zero; 32];
    for values in some {
        sums.iter_mut().zip(values).for_each(|(sum, &x)| *sum = *sum + x * zero);
    }
    sums.iter().chain(rest).all(|&x| x * zero == zero)
}

/// Receives fibers in order. Each piece has the coordinates and the values of consecutive fibers, as in [`Fibers`].
pub type FiberSink<'a, T> = &'a mut (dyn FnMut(&[(&[u32], &[T])]) -> Result<()> + Send);

/// Whether the nonzeros of a store have the order of the fibers along `mode`, from 0.
#[must_use]
pub fn is_in_order(manifest: &Manifest, mode: usize) -> bool {
    let order = manifest.shape.order();
    let wanted = (0..order).filter(|&m| m != mode).chain([mode]);
    tree_of(manifest).is_some_and(|levels| levels.modes().iter().map(|&m| usize::from(m)).eq(wanted))
}

/// The levels of a store of one tree. Each partition of a cover starts again.
fn tree_of(manifest: &Manifest) -> Option<ModeOrder> {
    let is_one = manifest.partitions.len() == 1;
    manifest.format().tree_levels().filter(|_| is_one)
}

/// Nonzeros of a fiber, on average, from which sorting fibers takes less time than sorting nonzeros.
const FIBER_NNZ_LEAST: u64 = 2;

/// Whether fibers along `mode`, from 0, are long enough to be sorted by [`SortedFibers`], which the store must allow.
#[must_use]
pub fn sorts_fibers(manifest: &Manifest, mode: usize) -> bool {
    let is_leaf = tree_of(manifest).is_some_and(|levels| levels.last() == mode);
    let is_long = |fibers: u64| fibers.saturating_mul(FIBER_NNZ_LEAST) <= manifest.nnz;
    is_leaf && fibers_of(manifest).is_some_and(is_long)
}

/// The view of `store` that serves `mode`, from 0, on the host: of the covers, one that is in order, or else one whose fibers can be
/// sorted; the store as it is if there is none.
#[must_use]
pub fn serving_view(store: &Store, mode: usize) -> Store {
    let covers = 0..store.whole().covers();
    let views: Vec<Store> =
        if covers.len() > 1 { covers.map(|cover| store.view(&[cover])).collect() } else { Vec::new() };
    let found = [is_in_order, sorts_fibers]
        .into_iter()
        .find_map(|serves| views.iter().find(|view| serves(view.manifest(), mode)));
    found.unwrap_or(store).clone()
}

/// Tiles whose fibers `threads` threads compute at once: a core's cache holds its own.
fn tiles_at_once(order: usize, rank: usize, threads: usize) -> usize {
    const THREAD_BYTES: usize = 1 << 20;
    (threads * THREAD_BYTES / tile_bytes(order, rank)).clamp(2 * threads, 64 * threads)
}

/// The most bytes of a tile's fibers.
fn tile_bytes(order: usize, rank: usize) -> usize {
    (4 * order + 8 * rank) * TILE_NNZ + 16 * rank
}

/// Bytes that [`FiberRows`] holds for a store besides the matrix and the receiver of fibers.
#[must_use]
pub fn fibers_bytes(manifest: &Manifest, rank: usize, threads: usize) -> u64 {
    let order = manifest.shape.order();
    let tiles = (tiles_at_once(order, rank, threads) as u64).min(manifest.nnz.div_ceil(TILE_NNZ as u64) + 1);
    let scratch = (threads * (size_of::<FiberTile>() + Recent::bytes(order))) as u64;
    tiles.saturating_mul(tile_bytes(order, rank) as u64).saturating_add(scratch)
}

/// Bytes of a matrix of `dims[mode]` x `rank` numbers.
#[must_use]
pub fn matrix_bytes<T: Real>(manifest: &Manifest, mode: usize, rank: usize) -> u64 {
    u64::from(manifest.shape.dims()[mode]).saturating_mul((rank * size_of::<T>()) as u64)
}
