//! The inner loop: the fibers of a tile times the matrix.

use super::tile_rows::{Nonzeros, TileRows};
use crate::dense::{MatrixRef, Real};
use crate::error::Result;
use crate::format::tree::FiberTile;
use crate::op::mttkrp::prefetch;
use std::ops::Range;

/// A matrix with more bytes than this has rows that are prefetched: a core's cache may not hold them.
const FAR_BYTES: usize = 1 << 20;
/// How many nonzeros ahead.
const AHEAD: usize = 16;

/// Computes the rows of some nonzeros' fibers.
pub(super) struct AddTile<'a, T, N> {
    pub matrix: MatrixRef<'a, T>,
    /// Modes but the matrix'.
    pub others: usize,
    pub nonzeros: &'a N,
    pub range: Range<usize>,
    /// The fiber that the first nonzero continues if it has these coordinates, with its sum so far.
    pub begun: Option<(&'a [u32], &'a [f64])>,
    /// Scratch.
    pub tile: &'a mut FiberTile,
    pub rows: &'a mut TileRows<T>,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<T: Real, N: Nonzeros> pulp::WithSimd for AddTile<'_, T, N> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let Self { matrix, others, nonzeros, range, begun, tile, rows } = self;
        nonzeros.fill(range, tile)?;
        rows.begin(tile, [others, matrix.columns()], begun);
        // Compiled with the number of columns as a constant.
        match matrix.columns() {
            8 => add(matrix.data(), 8, tile, rows),
            16 => add(matrix.data(), 16, tile, rows),
            32 => add(matrix.data(), 32, tile, rows),
            rank => add(matrix.data(), rank, tile, rows),
        }
        Ok(())
    }
}

/// Adds up each fiber of a tile, as many columns at a time as registers hold.
#[inline(always)]
fn add<T: Real>(matrix: &[T], rank: usize, tile: &FiberTile, rows: &mut TileRows<T>) {
    let (leaves, values) = (&tile.leaves[..tile.nnz], &tile.values[..tile.nnz]);
    let starts = &tile.starts[..tile.fibers];
    let is_far = size_of_val(matrix) > FAR_BYTES;
    let fetch = |leaf: &u32| prefetch(&matrix[*leaf as usize * rank..][..rank]);
    if is_far {
        leaves.iter().take(AHEAD).for_each(fetch);
    }
    let [first, last] = &mut rows.ends;
    for (fiber, row) in rows.rows.chunks_exact_mut(rank).enumerate() {
        let nonzeros =
            starts[fiber].into()..starts.get(fiber + 1).map_or(leaves.len(), |&end| usize::from(end));
        let ahead = if is_far { leaves.get(nonzeros.start + AHEAD..).unwrap_or_default() } else { &[] };
        let mut fiber = Fiber {
            matrix,
            rank,
            leaves: &leaves[nonzeros.clone()],
            ahead,
            values: &values[nonzeros],
            row,
            first: (fiber == 0).then_some(&mut first[..]),
            last: (fiber + 1 == starts.len()).then_some(&mut last[..]),
        };
        let mut at = 0;
        while at + 32 <= rank {
            fiber.add::<32>(at, 32);
            at += 32;
        }
        if at + 16 <= rank {
            fiber.add::<16>(at, 16);
            at += 16;
        }
        if at + 8 <= rank {
            fiber.add::<8>(at, 8);
            at += 8;
        }
        if at < rank {
            fiber.add::<8>(at, rank - at);
        }
    }
}

/// A fiber of a tile.
struct Fiber<'a, T> {
    matrix: &'a [T],
    rank: usize,
    leaves: &'a [u32],
    /// The leaves whose rows are fetched meanwhile, one with each of the fiber's.
    ahead: &'a [u32],
    values: &'a [f64],
    row: &'a mut [T],
    /// Of the tile's first fiber, its sum before this tile's nonzeros, and after them.
    first: Option<&'a mut [f64]>,
    /// Of the tile's last fiber, its sum.
    last: Option<&'a mut [f64]>,
}

impl<T: Real> Fiber<'_, T> {
    /// Computes `columns` columns from `at` on, at most `MOST`. Their sums stay in registers.
    #[inline(always)]
    fn add<const MOST: usize>(&mut self, at: usize, columns: usize) {
        let mut sums = [0.0; MOST];
        if let Some(first) = &self.first {
            sums[..columns].copy_from_slice(&first[at..at + columns]);
        }
        let mut ahead = self.ahead.iter();
        for (&leaf, &value) in self.leaves.iter().zip(self.values) {
            if let Some(&next) = ahead.next() {
                prefetch(&self.matrix[next as usize * self.rank + at..][..columns]);
            }
            let (row, value) = (&self.matrix[leaf as usize * self.rank + at..][..columns], T::nearest(value));
            for (sum, &u) in sums[..columns].iter_mut().zip(row) {
                *sum += (value * u).widen();
            }
        }
        let row = &mut self.row[at..at + columns];
        row.iter_mut().zip(&sums).for_each(|(x, &sum)| *x = T::nearest(sum));
        for end in [&mut self.first, &mut self.last].into_iter().flatten() {
            end[at..at + columns].copy_from_slice(&sums[..columns]);
        }
    }
}
