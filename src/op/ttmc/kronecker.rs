//! The inner loops. Nonzeros that share a row and all other indices but one are added up along that mode. The sum is
//! multiplied by the rows that they share and added to the row of the result.

use crate::dense::{MatrixRef, Real};
use crate::op::mttkrp::lists::{CACHED_BYTES, Entries, RowProduct};
use crate::op::mttkrp::rows::{AHEAD, touch};
use crate::shape::ORDER_MAX;

/// The Kronecker product of the other modes' rows.
#[derive(Clone, Copy, Debug)]
pub struct Kronecker<'a, T> {
    pub factors: &'a [MatrixRef<'a, T>],
    pub vectors: pulp::Arch,
}

impl<T: Real> Kronecker<'_, T> {
    /// Bytes of a thread's working memory if rows have at most `width` numbers.
    pub fn scratch_bytes(ranks: &[usize], width: usize) -> usize {
        let rank = ranks.iter().max().copied().unwrap_or(0);
        size_of::<f64>().saturating_mul(width.saturating_add(2 * rank))
    }
}

impl<T: Real> RowProduct for Kronecker<'_, T> {
    fn width(&self, mode: usize) -> usize {
        let others = self.factors.iter().enumerate().filter(|&(m, _)| m != mode);
        others.map(|(_, factor)| factor.columns()).product()
    }

    fn arch(&self) -> pulp::Arch {
        self.vectors
    }

    #[inline(always)]
    fn add<S: pulp::Simd>(self, _: S, mode: usize, entries: Entries<'_>, sums: &mut [f64]) {
        let mut factors = [MatrixRef::from_rows(0, 0, &[]); ORDER_MAX];
        let others = (0..self.factors.len()).filter(|&m| m != mode);
        let order = factors.iter_mut().zip(others).map(|(factor, m)| *factor = self.factors[m]).count();
        let (factors, nnz) = (&factors[..order], entries.values.len());
        let width = self.width(mode);
        let rank = factors.iter().map(MatrixRef::columns).max().unwrap_or(0);
        let (mut shared, mut along, mut last) = (Vec::with_capacity(width), vec![0.0; rank], vec![0.0; rank]);
        let (mut at, mut touched) = (0, 0);
        while at < nnz {
            if at >= touched {
                touched = nnz.min(at + AHEAD);
                for (factor, column) in factors.iter().zip(entries.columns) {
                    if size_of_val(factor.data()) > CACHED_BYTES {
                        touch(factor.data(), &column[at..touched], factor.columns());
                    }
                }
            }
            let run = Run::from(&entries, order, at);
            add_up(factors[run.mode], &entries, &run, &mut along);
            let row = |k: usize| factors[k].row(entries.columns[k][at] as usize);
            shared.clear();
            shared.push(1.0);
            for k in 0..order - 1 {
                if k == run.mode {
                    multiply(&mut shared, &along[..factors[k].columns()]);
                } else {
                    multiply(&mut shared, row(k));
                }
            }
            let k = order - 1;
            let last = &mut last[..factors[k].columns()];
            if k == run.mode {
                last.copy_from_slice(&along[..last.len()]);
            } else {
                last.iter_mut().zip(row(k)).for_each(|(to, x)| *to = x.widen());
            }
            add_product(&shared, last, &mut sums[entries.places[at] as usize * width..][..width]);
            at = run.end;
        }
    }
}

/// Adjacent nonzeros that differ only in one mode.
struct Run {
    start: usize,
    end: usize,
    /// That mode's number among the other modes.
    mode: usize,
}

impl Run {
    /// The longest run from `start` on. A nonzero without such a neighbor is a run along the last mode.
    #[inline(always)]
    fn from(entries: &Entries<'_>, order: usize, start: usize) -> Self {
        let Entries { places, columns, .. } = entries;
        let alone = Self { start, end: start + 1, mode: order - 1 };
        if places.get(start + 1) != Some(&places[start]) {
            return alone;
        }
        let mut differing = (0..order).filter(|&k| columns[k][start] != columns[k][start + 1]);
        let (mode, None) = (differing.next().unwrap_or(order - 1), differing.next()) else { return alone };
        let goes_on = |i: &usize| {
            places[*i] == places[start]
                && (0..order).all(|k| k == mode || columns[k][*i] == columns[k][start])
        };
        let more = (start + 2..places.len()).take_while(goes_on).count();
        Self { start, end: start + 2 + more, mode }
    }
}

/// Sets `sum` to the sum of the run's values times the rows of its mode's factor.
#[inline(always)]
fn add_up<T: Real>(factor: MatrixRef<'_, T>, entries: &Entries<'_>, run: &Run, sum: &mut [f64]) {
    let nonzeros = run.start..run.end;
    let (column, values) = (&entries.columns[run.mode][nonzeros.clone()], &entries.values[nonzeros]);
    match factor.columns() {
        4 => add_up_by::<T, 4>(factor, column, values, sum),
        8 => add_up_by::<T, 8>(factor, column, values, sum),
        16 => add_up_by::<T, 16>(factor, column, values, sum),
        32 => add_up_by::<T, 32>(factor, column, values, sum),
        rank => {
            let sum = &mut sum[..rank];
            sum.fill(0.0);
            for (&index, &value) in column.iter().zip(values) {
                let value = T::nearest(value).widen();
                for (sum, x) in sum.iter_mut().zip(factor.row(index as usize)) {
                    *sum += value * x.widen();
                }
            }
        }
    }
}

#[inline(always)]
fn add_up_by<T: Real, const RANK: usize>(
    factor: MatrixRef<'_, T>,
    column: &[u32],
    values: &[f64],
    sum: &mut [f64],
) {
    let (rows, mut added) = (factor.data().as_chunks::<RANK>().0, [0.0; RANK]);
    for (&index, &value) in column.iter().zip(values) {
        let value = T::nearest(value).widen();
        for (sum, x) in added.iter_mut().zip(&rows[index as usize]) {
            *sum += value * x.widen();
        }
    }
    sum[..RANK].copy_from_slice(&added);
}

/// Replaces `product` by its Kronecker product with `row`.
#[inline(always)]
fn multiply<T: Real>(product: &mut Vec<f64>, row: &[T]) {
    let (before, rank) = (product.len(), row.len());
    product.resize(before * rank, 0.0);
    // From the end, so that no number is overwritten before it is used.
    for i in (0..before).rev() {
        let x = product[i];
        for (to, y) in product[i * rank..][..rank].iter_mut().zip(row) {
            *to = x * y.widen();
        }
    }
}

/// Adds the Kronecker product of two rows to `sum`.
#[inline(always)]
fn add_product(shared: &[f64], last: &[f64], sum: &mut [f64]) {
    match last.len() {
        4 => add_product_by::<4>(shared, last, sum),
        8 => add_product_by::<8>(shared, last, sum),
        16 => add_product_by::<16>(shared, last, sum),
        32 => add_product_by::<32>(shared, last, sum),
        rank => {
            for (x, sum) in shared.iter().zip(sum.chunks_exact_mut(rank)) {
                sum.iter_mut().zip(last).for_each(|(sum, y)| *sum += x * y);
            }
        }
    }
}

#[inline(always)]
fn add_product_by<const RANK: usize>(shared: &[f64], last: &[f64], sum: &mut [f64]) {
    let Ok(last) = <[f64; RANK]>::try_from(last) else { unreachable!("as long as it was found to be") };
    for (x, sum) in shared.iter().zip(sum.as_chunks_mut::<RANK>().0) {
        sum.iter_mut().zip(last).for_each(|(sum, y)| *sum += x * y);
    }
}
