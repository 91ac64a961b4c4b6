//! Matrix products of a block of rows that stays in a core's first caches. They take a third of the time of faer's general product, which
//! is slow for so few rows. Every element is one sum in the order of the steps, with fused operations if the machine has them, so the
//! bits are faer's.

use pulp::Simd;

/// The largest rank of these products; for others there is faer.
const RANK_MAX: usize = 64;
/// Ranks are multiples of this many numbers.
const LANES: usize = 8;
/// Rows of the result that are computed together.
const ROWS: usize = 4;

/// Whether [`Product`] can be used for this rank.
pub(super) fn is_small(rank: usize) -> bool {
    rank <= RANK_MAX && rank.is_multiple_of(LANES)
}

/// `c = a b`, or `c += a b`. Rows of `b` and `c` have `rank` numbers.
pub(super) struct Product<'a> {
    pub rank: usize,
    pub a: &'a [f64],
    /// The beginning of each row in `a`.
    pub rows: &'a [usize],
    /// The distance in `a` between what meets one row of `b` and the next.
    pub step: usize,
    pub b: &'a [f64],
    pub c: &'a mut [f64],
    /// Whether this adds to the upper triangle of a square `c`. What lies below is then not defined.
    pub adds_upper: bool,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl pulp::WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let rows = self.rows.len();
        let whole = rows - rows % ROWS;
        (0..whole).step_by(ROWS).for_each(|row| self.rows::<S, ROWS>(simd, row));
        match rows - whole {
            3 => self.rows::<S, 3>(simd, whole),
            2 => self.rows::<S, 2>(simd, whole),
            1 => self.rows::<S, 1>(simd, whole),
            _ => {}
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, simd: S, row: usize) {
        let mut column = if self.adds_upper { row / LANES * LANES } else { 0 };
        while column < self.rank {
            column += match S::F64_LANES {
                8 => match (self.rank - column) / LANES {
                    4.. => self.tile::<S, R, 4>(simd, row, column),
                    3 => self.tile::<S, R, 3>(simd, row, column),
                    2 => self.tile::<S, R, 2>(simd, row, column),
                    _ => self.tile::<S, R, 1>(simd, row, column),
                },
                4 => self.tile::<S, R, 2>(simd, row, column),
                2 => self.tile::<S, R, 4>(simd, row, column),
                _ => self.tile::<S, R, LANES>(simd, row, column),
            };
        }
    }

    /// Computes `R` rows of `V` vectors. Returns the number of their columns.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(&mut self, simd: S, row: usize, column: usize) -> usize {
        let columns = V * S::F64_LANES;
        let mut sums = [[simd.splat_f64s(0.0); V]; R];
        let rows: [&[f64]; R] = std::array::from_fn(|r| &self.a[self.rows[row + r]..]);
        for (k, b) in self.b.chunks_exact(self.rank).enumerate() {
            let b = S::as_simd_f64s(&b[column..][..columns]).0;
            for (sums, a) in sums.iter_mut().zip(rows) {
                let a = simd.splat_f64s(a[k * self.step]);
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum = simd.mul_add_e_f64s(a, b, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let c = &mut self.c[(row + r) * self.rank + column..][..columns];
            for (c, &sum) in S::as_mut_simd_f64s(c).0.iter_mut().zip(sums) {
                *c = if self.adds_upper { simd.add_f64s(*c, sum) } else { sum };
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;
    use faer::linalg::matmul::matmul;
    use faer::linalg::matmul::triangular::{self, BlockStructure};
    use faer::{Accum, MatMut, MatRef, Par};

    /// Both products of an update, against faer's.
    #[test]
    fn the_bits_are_those_of_faer() {
        let random = |n: usize, stream| -> Vec<f64> {
            (0..n as u64).map(|i| Counter::new(7, stream).unit(i) - 0.5).collect()
        };
        let simd = pulp::Arch::new();
        for (rows, rank) in
            [(128, 8), (128, 16), (127, 24), (128, 32), (3, 32), (128, 40), (37, 64), (128, 64)]
        {
            let (x, w) = (random(rows * rank, 0), random(rank * rank, 1));
            let (mut c, mut expected) = (vec![f64::NAN; rows * rank], vec![f64::NAN; rows * rank]);
            let starts: Vec<usize> = (0..rows).map(|row| row * rank).collect();
            let product =
                Product { rank, a: &x, rows: &starts, step: 1, b: &w, c: &mut c, adds_upper: false };
            simd.dispatch(product);
            let of = |x, rows| MatRef::from_row_major_slice(x, rows, rank);
            let into = MatMut::from_row_major_slice_mut(&mut expected, rows, rank);
            matmul(into, Accum::Replace, of(&x, rows), of(&w, rank), 1.0, Par::Seq);
            assert!(c == expected, "{rows} x {rank}");

            let (mut c, mut expected) = (w.clone(), w.clone());
            let starts: Vec<usize> = (0..rank).collect();
            let product =
                Product { rank, a: &x, rows: &starts, step: rank, b: &x, c: &mut c, adds_upper: true };
            simd.dispatch(product);
            let whole = BlockStructure::Rectangular;
            triangular::matmul(
                MatMut::from_row_major_slice_mut(&mut expected, rank, rank),
                BlockStructure::TriangularUpper,
                Accum::Add,
                of(&x, rows).transpose(),
                whole,
                of(&x, rows),
                whole,
                1.0,
                Par::Seq,
            );
            let upper = |x: &[f64]| -> Vec<f64> {
                (0..rank).flat_map(|r| x[r * rank + r..][..rank - r].to_vec()).collect()
            };
            assert!(upper(&c) == upper(&expected), "{rows} x {rank}");
        }
    }
}
