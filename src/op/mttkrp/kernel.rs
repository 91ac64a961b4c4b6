//! The inner loops, over the nonzeros of one tile. [`all_modes`] loads a nonzero's rows once and adds to a row of every mode; [`one_mode`]
//! adds to a row of one. Each has one body, specialised by order (3 and 4, or any) and rank (8, 16, 32 and 64, or any). Callers
//! compile them for the vectors that the machine has; products and sums are written out separately, so that every build gives the same
//! bits.
//!
//! The product for mode m is `(value * a_0 * ... * a_(m-1)) * (a_(n-1) * ... * a_(m+1))`, each bracket from left to right, so that modes share their
//! parts: 8 multiplications for four modes, not 12.

use crate::dense::Real;
use crate::shape::ORDER_MAX;

/// Bytes of a cache line and of the widest vector.
pub const LINE_BYTES: usize = 64;

/// Elements of a row that are worked on together.
const LANES: usize = 8;

/// What all modes of a tile are computed from.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a, T> {
    pub values: &'a [f64],
    /// Elements from one row to the next, in factors and sums: [`stride`].
    pub stride: usize,
    /// Where each nonzero's rows are, in factors and sums, by mode.
    pub places: [&'a [u32]; ORDER_MAX],
    pub factors: [&'a [T]; ORDER_MAX],
}

/// What one mode of a tile is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Single<'a, T> {
    pub values: &'a [f64],
    pub rank: usize,
    /// Elements from one row of sums to the next: [`stride`].
    pub stride: usize,
    /// Where each nonzero's row of sums is.
    pub places: &'a [u32],
    /// Index columns and whole factors of the other modes, ascending, rows of `rank`.
    pub columns: [&'a [u32]; ORDER_MAX],
    pub factors: [&'a [T]; ORDER_MAX],
    /// How many of them come before the mode.
    pub before: usize,
    pub others: usize,
}

/// Elements from one row to the next at `rank`, where rows start at multiples of a group of lanes.
pub fn stride(rank: usize) -> usize {
    rank.next_multiple_of(LANES)
}

/// Calls a body with order and rank as constants.
macro_rules! by_rank {
    ($body:ident, [$($modes:literal),*], $rank:expr, ($($argument:expr),*)) => {
        match $rank {
            8 => $body::<T, $($modes,)* 8>($($argument),*),
            16 => $body::<T, $($modes,)* 16>($($argument),*),
            32 => $body::<T, $($modes,)* 32>($($argument),*),
            64 => $body::<T, $($modes,)* 64>($($argument),*),
            _ => $body::<T, $($modes,)* 0>($($argument),*),
        }
    };
}

/// Adds every nonzero to its row of `sums` in every mode.
#[inline(always)]
pub fn all_modes<T: Real>(tile: &Shared<'_, T>, sums: &mut [&mut [f64]]) {
    match sums.len() {
        3 => by_rank!(all, [3], tile.stride, (tile, sums)),
        4 => by_rank!(all, [4], tile.stride, (tile, sums)),
        _ => by_rank!(all, [0], tile.stride, (tile, sums)),
    }
}

/// Adds every nonzero to its row of `sums`.
#[inline(always)]
pub fn one_mode<T: Real>(tile: &Single<'_, T>, sums: &mut [f64]) {
    match (tile.others, tile.before) {
        (2, 0) => by_rank!(one, [2, 0], tile.rank, (tile, sums)),
        (2, 1) => by_rank!(one, [2, 1], tile.rank, (tile, sums)),
        (2, 2) => by_rank!(one, [2, 2], tile.rank, (tile, sums)),
        (3, 0) => by_rank!(one, [3, 0], tile.rank, (tile, sums)),
        (3, 1) => by_rank!(one, [3, 1], tile.rank, (tile, sums)),
        (3, 2) => by_rank!(one, [3, 2], tile.rank, (tile, sums)),
        (3, 3) => by_rank!(one, [3, 3], tile.rank, (tile, sums)),
        _ => by_rank!(one, [0, 0], tile.rank, (tile, sums)),
    }
}

#[inline(always)]
fn load<T: Copy>(row: &[T], at: usize) -> [T; LANES] {
    *row[at..].first_chunk().expect("a whole group of lanes")
}

#[inline(always)]
fn times<T: Real>(mut a: [T; LANES], b: [T; LANES]) -> [T; LANES] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = *a * b;
    }
    a
}

/// Adds `product` to lanes `at` and on of a row of sums.
#[inline(always)]
fn add_to<T: Real>(row: &mut [f64], at: usize, product: [T; LANES]) {
    let lanes: &mut [f64; LANES] = row[at..].first_chunk_mut().expect("a whole group of lanes");
    let mut sum = *lanes;
    for (s, p) in sum.iter_mut().zip(product) {
        *s += p.widen();
    }
    *lanes = sum;
}

#[inline(always)]
fn all<T: Real, const ORDER: usize, const RANK: usize>(tile: &Shared<'_, T>, sums: &mut [&mut [f64]]) {
    let stride = if RANK > 0 { RANK } else { tile.stride };
    let order = if ORDER > 0 { ORDER } else { sums.len() };
    for (i, &value) in tile.values.iter().enumerate() {
        let value = [T::nearest(value); LANES];
        let mut starts = [0; ORDER_MAX];
        let mut rows: [&[T]; ORDER_MAX] = [&[]; ORDER_MAX];
        for m in 0..order {
            starts[m] = tile.places[m][i] as usize * stride;
            rows[m] = &tile.factors[m][starts[m]..][..stride];
        }
        for at in (0..stride).step_by(LANES) {
            // The products of the modes behind each, and of the value and the modes before.
            let mut behind = [value; ORDER_MAX];
            behind[order - 2] = load(rows[order - 1], at);
            for m in (1..order - 1).rev() {
                behind[m - 1] = times(behind[m], load(rows[m], at));
            }
            let mut before = value;
            for m in 0..order {
                let product = if m + 1 < order { times(before, behind[m]) } else { before };
                add_to(&mut sums[m][starts[m]..][..stride], at, product);
                if m + 1 < order {
                    before = times(before, load(rows[m], at));
                }
            }
        }
    }
}

#[inline(always)]
fn one<T: Real, const OTHERS: usize, const BEFORE: usize, const RANK: usize>(
    tile: &Single<'_, T>,
    sums: &mut [f64],
) {
    let (rank, stride) = if RANK > 0 { (RANK, RANK) } else { (tile.rank, tile.stride) };
    let (others, split) = if OTHERS > 0 { (OTHERS, BEFORE) } else { (tile.others, tile.before) };
    let whole = rank / LANES * LANES;
    for (i, &value) in tile.values.iter().enumerate() {
        let value = T::nearest(value);
        let mut rows: [&[T]; ORDER_MAX] = [&[]; ORDER_MAX];
        for (row, (factor, column)) in
            rows.iter_mut().zip(tile.factors.iter().zip(&tile.columns)).take(others)
        {
            *row = &factor[column[i] as usize * rank..][..rank];
        }
        let sum = &mut sums[tile.places[i] as usize * stride..][..stride];
        for at in (0..whole).step_by(LANES) {
            let mut before = [value; LANES];
            for row in &rows[..split] {
                before = times(before, load(row, at));
            }
            if split < others {
                let mut behind = load(rows[others - 1], at);
                for row in rows[split..others - 1].iter().rev() {
                    behind = times(behind, load(row, at));
                }
                before = times(before, behind);
            }
            add_to(sum, at, before);
        }
        for r in whole..rank {
            let mut product = rows[..split].iter().fold(value, |p, row| p * row[r]);
            if split < others {
                let behind = rows[split..others - 1].iter().rev();
                product = product * behind.fold(rows[others - 1][r], |p, row| p * row[r]);
            }
            sum[r] += product.widen();
        }
    }
}
