//! The inner loop: the fibers of a tile times the matrix.

use super::are_finite;
use super::tile_rows::{Nonzeros, TileRows};
use crate::dense::{MatrixRef, Precision, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::tree::FiberTile;
use crate::op::mttkrp::prefetch;
use std::ops::Range;

/// A matrix with more bytes than this has rows that are prefetched: a core's cache may not hold them.
const FAR_BYTES: usize = 1 << 20;
/// How many nonzeros ahead.
const AHEAD: usize = 16;

/// Computes the rows of some nonzeros' fibers.
pub(super) struct AddTile<'a, T, N: Nonzeros> {
    pub matrix: MatrixRef<'a, T>,
    /// Modes but the matrix'.
    pub others: usize,
    pub nonzeros: &'a N,
    pub range: Range<usize>,
    /// The fiber that the first nonzero continues if it has these coordinates, with its sum so far.
    pub begun: Option<(&'a [u32], &'a [f64])>,
    /// Scratch.
    pub recent: &'a mut N::Recent,
    pub tile: &'a mut FiberTile,
    pub rows: &'a mut TileRows<T>,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<T: Real, N: Nonzeros> pulp::WithSimd for AddTile<'_, T, N> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let Self { matrix, others, nonzeros, range, begun, recent, tile, rows } = self;
        nonzeros.fill(range, recent, tile)?;
        rows.begin(tile, [others, matrix.columns()], begun);
        // Compiled with the number of columns as a constant.
        let finite = match matrix.columns() {
            8 => add(matrix.data(), 8, tile, rows),
            16 => add(matrix.data(), 16, tile, rows),
            32 => add(matrix.data(), 32, tile, rows),
            rank => add(matrix.data(), rank, tile, rows),
        };
        let between = matrix.columns()..(matrix.columns() * tile.fibers).saturating_sub(matrix.columns());
        rows.finite = finite || rows.rows.get(between).is_none_or(are_finite);
        Ok(())
    }
}

/// Adds up each fiber of a tile, as many columns at a time as registers hold. Returns whether all that was stored is known to be finite.
#[inline(always)]
fn add<T: Real>(matrix: &[T], rank: usize, tile: &FiberTile, rows: &mut TileRows<T>) -> bool {
    let leaves = &tile.leaves[..tile.nnz];
    let is_far = size_of_val(matrix) > FAR_BYTES;
    let ahead = if is_far { leaves.get(AHEAD..).unwrap_or_default() } else { &[] };
    if is_far {
        leaves.iter().take(AHEAD).for_each(|&leaf| prefetch(&matrix[leaf as usize * rank..][..rank]));
    }
    let (values, starts) = (&tile.values[..tile.nnz], &tile.starts[..tile.fibers]);
    let block = |at, columns| Block { matrix, rank, at, columns, leaves, ahead, values, starts };
    let (mut at, mut finite) = (0, true);
    while at + 32 <= rank {
        finite &= block(at, 32).add::<32>(rows);
        at += 32;
    }
    if at + 16 <= rank {
        finite &= block(at, 16).add::<16>(rows);
        at += 16;
    }
    if at + 8 <= rank {
        finite &= block(at, 8).add::<8>(rows);
        at += 8;
    }
    if at < rank {
        finite &= block(at, rank - at).add::<8>(rows);
    }
    finite
}

/// `columns` columns from `at` on of the matrix, and the nonzeros of a tile.
struct Block<'a, T> {
    matrix: &'a [T],
    rank: usize,
    at: usize,
    columns: usize,
    leaves: &'a [u32],
    /// The leaves whose rows are fetched meanwhile, the first with the first nonzero.
    ahead: &'a [u32],
    values: &'a [f64],
    /// The first nonzero of each fiber.
    starts: &'a [u16],
}

impl<T: Real> Block<'_, T> {
    /// Whether registers have room for more than sums. With 32 columns of f32, more takes 1.3 to 2.5 times as long.
    const fn has_room(columns: usize) -> bool {
        columns < 32 || matches!(T::PRECISION, Precision::F64)
    }

    /// Computes the columns, at most `MOST`, of all rows. Sums stay in registers. Returns whether all that was stored, also sums of some of
    /// a fiber's nonzeros, is known to be finite.
    #[inline(always)]
    fn add<const MOST: usize>(self, rows: &mut TileRows<T>) -> bool {
        let [first, last] = &mut rows.ends;
        let (first, last) = (&mut first[self.at..][..self.columns], &mut last[self.at..][..self.columns]);
        let rows = &mut rows.rows[..];
        // Zeros until a number is stored that is not finite.
        let mut zeros = [T::nearest(0.0); MOST];
        let mut sums = [0.0; MOST];
        sums[..self.columns].copy_from_slice(first);
        let (nnz, fibers) = (self.leaves.len(), self.starts.len());
        if 2 * fibers > nnz && Self::has_room(MOST) {
            // Where short fibers begin cannot be predicted, so no branch depends on it. A row is stored after each nonzero, so that the
            // sum of the fiber's last one stays.
            let mut masks = [u64::MAX; TILE_NNZ];
            for &start in &self.starts[1..] {
                masks[usize::from(start) % TILE_NNZ] = 0;
            }
            let mut fiber = 0;
            for (i, &mask) in masks[..nnz].iter().enumerate() {
                let (value, row) = self.nonzero(i);
                for (sum, &u) in sums[..self.columns].iter_mut().zip(row) {
                    *sum = f64::from_bits(sum.to_bits() & mask) + (value * u).widen();
                }
                fiber += usize::from(mask == 0);
                self.put::<MOST>(&sums, fiber, rows, &mut zeros);
                if fiber == 0 {
                    first.copy_from_slice(&sums[..self.columns]);
                }
            }
        } else {
            for fiber in 0..fibers {
                let end = self.starts.get(fiber + 1).map_or(nnz, |&start| start.into());
                if fiber > 0 {
                    sums = [0.0; MOST];
                }
                for i in self.starts[fiber].into()..end {
                    let (value, row) = self.nonzero(i);
                    sums[..self.columns]
                        .iter_mut()
                        .zip(row)
                        .for_each(|(sum, &u)| *sum += (value * u).widen());
                }
                self.put::<MOST>(&sums, fiber, rows, &mut zeros);
                if fiber == 0 {
                    first.copy_from_slice(&sums[..self.columns]);
                }
            }
        }
        last.copy_from_slice(&sums[..self.columns]);
        Self::has_room(MOST) && zeros.iter().all(|&zero| zero == T::nearest(0.0))
    }

    /// The value and the row of a nonzero. Fetches the row of a later one.
    #[inline(always)]
    fn nonzero(&self, i: usize) -> (T, &[T]) {
        if let Some(&leaf) = self.ahead.get(i) {
            prefetch(self.row(leaf));
        }
        (T::nearest(self.values[i]), self.row(self.leaves[i]))
    }

    #[inline(always)]
    fn row(&self, leaf: u32) -> &[T] {
        &self.matrix[leaf as usize * self.rank + self.at..][..self.columns]
    }

    /// Stores sums in the row of a fiber. If there is room, adds zero times each to `zeros`: a second look at the rows would find them in a
    /// farther cache.
    #[inline(always)]
    fn put<const MOST: usize>(&self, sums: &[f64], fiber: usize, rows: &mut [T], zeros: &mut [T; MOST]) {
        let row = &mut rows[fiber * self.rank + self.at..][..self.columns];
        for ((x, &sum), zero) in row.iter_mut().zip(sums).zip(zeros) {
            *x = T::nearest(sum);
            if Self::has_room(MOST) {
                *zero = *zero + *x * T::nearest(0.0);
            }
        }
    }
}
