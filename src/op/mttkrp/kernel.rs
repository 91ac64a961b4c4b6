//! The inner loops. One body, specialised by the number of other modes (1 to 3, or any) and by the number of
//! lane groups of a row (those of ranks 8, 16, 32 and 64, or any). Callers compile it for the vectors that
//! the machine has; products and sums are written out separately, so that every build gives the same bits.

use crate::dense::{Matrix, Real};
use crate::format::DecodedTile;
use crate::shape::ORDER_MAX;

/// Elements of a row that are worked on together.
const LANES: usize = 8;

/// What a tile's nonzeros are added to.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub mode: usize,
    /// The row that `sums` starts with.
    pub first_row: usize,
    pub rank: usize,
}

/// The other modes of a tile: index columns and factors, in ascending order of mode.
struct Others<'a, T> {
    columns: [&'a [u32]; ORDER_MAX - 1],
    factors: [&'a [T]; ORDER_MAX - 1],
    count: usize,
}

/// Adds the nonzeros of `tile`, all or the `listed` ones, to `sums`: rows of `rank` from `first_row` on, which
/// hold every row that occurs.
#[inline(always)]
pub fn add_tile<T: Real>(
    tile: &DecodedTile<'_>,
    factors: &[Matrix<T>],
    target: Target,
    listed: Option<&[u16]>,
    sums: &mut [f64],
) {
    let mut others = Others { columns: [&[]; ORDER_MAX - 1], factors: [&[]; ORDER_MAX - 1], count: 0 };
    for m in (0..tile.order()).filter(|&m| m != target.mode) {
        others.columns[others.count] = tile.column(m);
        others.factors[others.count] = factors[m].data();
        others.count += 1;
    }
    match others.count {
        1 => by_rank::<T, 1>(tile, &others, target, listed, sums),
        2 => by_rank::<T, 2>(tile, &others, target, listed, sums),
        3 => by_rank::<T, 3>(tile, &others, target, listed, sums),
        _ => by_rank::<T, 0>(tile, &others, target, listed, sums),
    }
}

#[inline(always)]
fn by_rank<T: Real, const OTHERS: usize>(
    tile: &DecodedTile<'_>,
    others: &Others<'_, T>,
    target: Target,
    listed: Option<&[u16]>,
    sums: &mut [f64],
) {
    match target.rank {
        8 => by_list::<T, OTHERS, 1>(tile, others, target, listed, sums),
        16 => by_list::<T, OTHERS, 2>(tile, others, target, listed, sums),
        32 => by_list::<T, OTHERS, 4>(tile, others, target, listed, sums),
        64 => by_list::<T, OTHERS, 8>(tile, others, target, listed, sums),
        _ => by_list::<T, OTHERS, 0>(tile, others, target, listed, sums),
    }
}

#[inline(always)]
fn by_list<T: Real, const OTHERS: usize, const GROUPS: usize>(
    tile: &DecodedTile<'_>,
    others: &Others<'_, T>,
    target: Target,
    listed: Option<&[u16]>,
    sums: &mut [f64],
) {
    match listed {
        None => add::<T, OTHERS, GROUPS>(tile, others, target, 0..tile.nnz, sums),
        Some(listed) => {
            let positions = listed.iter().map(|&i| i as usize);
            add::<T, OTHERS, GROUPS>(tile, others, target, positions, sums);
        }
    }
}

#[inline(always)]
fn add<T: Real, const OTHERS: usize, const GROUPS: usize>(
    tile: &DecodedTile<'_>,
    others: &Others<'_, T>,
    target: Target,
    positions: impl Iterator<Item = usize>,
    sums: &mut [f64],
) {
    let rank = if GROUPS > 0 { GROUPS * LANES } else { target.rank };
    let n = if OTHERS > 0 { OTHERS } else { others.count };
    let rows = tile.column(target.mode);
    for i in positions {
        let value = T::nearest(tile.values[i]);
        let sum = &mut sums[(rows[i] as usize - target.first_row) * rank..][..rank];
        let mut factor_rows: [&[T]; ORDER_MAX - 1] = [&[]; ORDER_MAX - 1];
        for (row, (factor, column)) in
            factor_rows.iter_mut().zip(others.factors.iter().zip(&others.columns)).take(n)
        {
            *row = &factor[column[i] as usize * rank..][..rank];
        }
        for group in 0..rank / LANES {
            let at = group * LANES;
            let mut products = [value; LANES];
            for row in &factor_rows[..n] {
                let row: &[T; LANES] = row[at..].first_chunk().expect("a whole group");
                for (p, x) in products.iter_mut().zip(row) {
                    *p = *p * *x;
                }
            }
            let sum: &mut [f64; LANES] = sum[at..].first_chunk_mut().expect("a whole group");
            for (s, p) in sum.iter_mut().zip(products) {
                *s += p.widen();
            }
        }
        for r in rank / LANES * LANES..rank {
            let product = factor_rows[..n].iter().fold(value, |p, row| p * row[r]);
            sum[r] += product.widen();
        }
    }
}
