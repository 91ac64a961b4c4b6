//! Numbers with twice f64's digits, for rank x rank matrices whose condition leaves too few digits in f64.
//!
//! If components are nearly collinear, they differ only in the last digits of their inner products. At condition 1e12,
//! f64 has four digits of the difference left, and the model's norm, in which large terms cancel, has none beyond 1e-5
//! of the tensor's norm. Iterative refinement in f64 does not restore what the Gram matrices have lost. So they are
//! added up ([`gram`]), multiplied ([`hadamard`]), solved ([`inverse`]) and summed ([`square`]) with twice the digits.
//! The inverse is rounded to f64 at the end, which loses no more than rounding the sums does.
//!
//! The arithmetic is Dekker's (Numerische Mathematik 18, 1971); inner products are Ogita, Rump and Oishi's Dot2 (SIAM
//! J. Sci. Comput. 26, 2005). Errors of products are exact, so machines with and without fused instructions compute the
//! same bits.

use super::solve::{Inverse, norm};
use super::update::part_numbers;
use crate::dense::{Matrix, Real};
use rayon::prelude::*;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// The condition from which these matrices are used. Below it, f64 has eight digits left.
pub const CONDITION: f64 = 1e8;

/// The sum of two f64, of which `low` is at most half a unit in the last place of `high`.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Double {
    /// The sum, rounded.
    pub high: f64,
    /// The rounding error.
    pub low: f64,
}

/// The rounded sum and its error.
#[inline(always)]
fn sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let of_b = s - a;
    (s, (a - (s - of_b)) + (b - of_b))
}

/// The rounded product and its error.
#[inline(always)]
fn product(a: f64, b: f64) -> (f64, f64) {
    let p = a * b;
    (p, a.mul_add(b, -p))
}

impl Double {
    /// `high + low`, whatever their sizes.
    #[must_use]
    pub fn new(high: f64, low: f64) -> Self {
        let (high, low) = sum(high, low);
        Self { high, low }
    }

    fn sqrt(self) -> Self {
        let root = self.high.sqrt();
        let rest = self - Self::from(root) * Self::from(root);
        Self::new(root, rest.high / (2.0 * root))
    }
}

impl From<f64> for Double {
    fn from(high: f64) -> Self {
        Self { high, low: 0.0 }
    }
}

impl Add for Double {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let (high, error) = sum(self.high, other.high);
        let (low, lower) = sum(self.low, other.low);
        let (high, error) = sum(high, error + low);
        Self::new(high, error + lower)
    }
}

impl Neg for Double {
    type Output = Self;
    fn neg(self) -> Self {
        Self { high: -self.high, low: -self.low }
    }
}

impl Sub for Double {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Double {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let (high, error) = product(self.high, other.high);
        Self::new(high, error + (self.high * other.low + self.low * other.high))
    }
}

impl Div for Double {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let first = self.high / other.high;
        let rest = self - other * Self::from(first);
        let second = rest.high / other.high;
        let rest = rest - other * Self::from(second);
        Self::new(first, second) + Self::from(rest.high / other.high)
    }
}

/// The Gram matrix of `factor`, rank x rank, on the current pool. It does not depend on threads.
#[must_use]
pub fn gram<T: Real>(factor: &Matrix<T>) -> Vec<Double> {
    let (rank, chunk) = (factor.columns(), part_numbers(factor.rows(), factor.columns()));
    let part = |rows: &[T]| {
        let mut sums = DoubleSums { high: vec![0.0; rank * rank], low: vec![0.0; rank * rank] };
        let mut row = vec![0.0; rank];
        pulp::Arch::new().dispatch(AddRows { rows, row: &mut row, sums: &mut sums });
        sums
    };
    let all: Vec<DoubleSums> = factor.data().par_chunks(chunk).with_max_len(1).map(part).collect();
    let element = |i: usize| {
        let (r, q) = (i / rank, i % rank);
        let at = r.min(q) * rank + r.max(q);
        all.iter().fold(Double::default(), |sum, part| sum + Double::new(part.high[at], part.low[at]))
    };
    (0..rank * rank).map(element).collect()
}

/// Sums of the upper triangle, rounded, and their rounding errors.
struct DoubleSums {
    high: Vec<f64>,
    low: Vec<f64>,
}

/// Adds the inner products of the columns of `rows` to `sums`; `row` has room for one.
struct AddRows<'a, T> {
    rows: &'a [T],
    row: &'a mut [f64],
    sums: &'a mut DoubleSums,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<T: Real> pulp::WithSimd for AddRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { rows, row, sums } = self;
        let rank = row.len();
        for narrow in rows.chunks_exact(rank) {
            row.iter_mut().zip(narrow).for_each(|(x, a)| *x = a.widen());
            let lines = sums.high.chunks_exact_mut(rank).zip(sums.low.chunks_exact_mut(rank));
            for (r, (high, low)) in lines.enumerate() {
                let x = row[r];
                for ((high, low), y) in high[r..].iter_mut().zip(&mut low[r..]).zip(&row[r..]) {
                    let (p, rounded) = product(x, *y);
                    let (s, lost) = sum(*high, p);
                    *high = s;
                    *low += lost + rounded;
                }
            }
        }
    }
}

/// The Hadamard product of the cosines between columns of `grams`, rank x rank; `norms` are the columns' lengths.
pub fn hadamard<'a>(factors: impl Iterator<Item = (&'a [Double], &'a [f64])>, rank: usize) -> Vec<Double> {
    let mut all = vec![Double::from(1.0); rank * rank];
    for (gram, norms) in factors {
        for (i, (product, dot)) in all.iter_mut().zip(gram).enumerate() {
            let (x, y) = (norms[i / rank], norms[i % rank]);
            // Divides by one length after the other, because their product can overflow.
            let cosine = *dot / Double::from(x) / Double::from(y);
            *product = if x * y == 0.0 { Double::default() } else { *product * cosine };
        }
    }
    all
}

/// The sum of `weights[r] weights[q] matrix[r][q]`.
#[must_use]
pub fn square(matrix: &[Double], weights: &[f64]) -> f64 {
    let rank = weights.len();
    let term =
        |(i, x): (usize, &Double)| *x * Double::from(weights[i / rank]) * Double::from(weights[i % rank]);
    let sum = matrix.iter().enumerate().map(term).fold(Double::default(), Add::add);
    sum.high
}

/// The inverse of the symmetric positive definite `v`, rank x rank, rounded to f64; `None` if its condition exceeds
/// `1 / (rank epsilon)` of f64, for which the sums have too few digits.
#[must_use]
pub fn inverse(v: &[Double], rank: usize) -> Option<Inverse> {
    let factor = cholesky(v, rank)?;
    let mut columns = vec![0.0; rank * rank];
    let solve = |(c, column): (usize, &mut [f64])| {
        let mut x = vec![Double::default(); rank];
        x[c] = Double::from(1.0);
        // Forward substitution from the first nonzero row, then back substitution.
        for i in c..rank {
            let line = &factor[i * rank..];
            let known = (c..i).fold(x[i], |sum, k| sum - line[k] * x[k]);
            x[i] = known / line[i];
        }
        for i in (0..rank).rev() {
            let known = (i + 1..rank).fold(x[i], |sum, k| sum - factor[k * rank + i] * x[k]);
            x[i] = known / factor[i * rank + i];
        }
        column.iter_mut().zip(x).for_each(|(to, x)| *to = x.high);
    };
    columns.par_chunks_exact_mut(rank).enumerate().for_each(solve);
    let rounded: Vec<f64> = v.iter().map(|x| x.high).collect();
    let condition = norm(&rounded, rank) * norm(&columns, rank);
    // A NaN compares false.
    let good = condition * rank as f64 * f64::EPSILON <= 1.0;
    good.then_some(Inverse { matrix: columns, condition, kept: None })
}

/// The lower triangle of the Cholesky factor; `None` if a pivot is not positive.
fn cholesky(v: &[Double], rank: usize) -> Option<Vec<Double>> {
    let mut factor = vec![Double::default(); rank * rank];
    for i in 0..rank {
        for j in 0..=i {
            let (line, other) = (&factor[i * rank..], &factor[j * rank..]);
            let rest = (0..j).fold(v[i * rank + j], |rest, k| rest - line[k] * other[k]);
            if i == j && !(rest.high > 0.0 && rest.high.is_finite()) {
                return None;
            }
            factor[i * rank + j] = if i == j { rest.sqrt() } else { rest / factor[j * rank + j] };
        }
    }
    Some(factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    /// Numbers such as 1 + 2^-80: each operation keeps the digits that f64 does not hold, and its inverse removes them again.
    #[test]
    fn operations_keep_twice_the_digits() {
        let tiny = 2f64.powi(-80);
        let x = Double::new(1.0, tiny);
        assert_eq!((x - Double::from(1.0)).high.to_bits(), tiny.to_bits());
        for k in 1..200 {
            let y = Double::new(f64::from(k) / 7.0, f64::from(k) * 2f64.powi(-70));
            let unit = y.high.abs() * 2f64.powi(-102);
            let same = |z: Double| assert!((z - y).high.abs() <= unit, "{k}: {z:?} {y:?}");
            same(y + x - x);
            same(y * x / x);
            same(y.sqrt() * y.sqrt());
            same(-(-y));
        }
    }

    /// Columns that differ by 2^-30: the squared length of their difference has many correct digits.
    #[test]
    fn a_gram_matrix_tells_near_columns_apart() {
        for rows in [1, 300, 9000] {
            let numbers = Counter::new(3, 0);
            let column: Vec<f64> = (0..rows as u64).map(|i| numbers.unit(i) - 0.5).collect();
            let far: Vec<f64> = (0..rows as u64).map(|i| 2f64.powi(-30) * numbers.unit(i + 10_000)).collect();
            let pairs = column.iter().zip(&far).flat_map(|(x, d)| [*x, x + d]).collect();
            let factor = Matrix::<f64>::from_rows(rows, 2, pairs);
            let got = gram(&factor);
            let difference = |i: usize| factor.row(i)[1] - factor.row(i)[0];
            let wanted: f64 = (0..rows).map(|i| difference(i) * difference(i)).sum();
            let square = got[0] - got[1] - got[2] + got[3];
            assert!((square.high / wanted - 1.0).abs() < 1e-10, "{rows}: {} {wanted}", square.high);
        }
    }

    /// Hilbert's matrix of order 9, condition 1e12, has an inverse of integers; one of order 12 is beyond f64.
    #[test]
    fn an_inverse_has_all_digits() {
        let hilbert = |n: usize| -> Vec<Double> {
            let element = |i: usize| Double::from(1.0) / Double::from((i / n + i % n + 1) as f64);
            (0..n * n).map(element).collect()
        };
        let got = inverse(&hilbert(9), 9).unwrap();
        assert!(got.condition > 1e11 && got.condition < 2e12, "{}", got.condition);
        let choose = |n: usize, k: usize| (0..k).fold(1.0, |p, i| p * (n - i) as f64 / (i + 1) as f64);
        for (at, x) in got.matrix.iter().enumerate() {
            let (i, j) = (at / 9 + 1, at % 9 + 1);
            let sign = if (i + j) % 2 == 0 { 1.0 } else { -1.0 };
            let wanted = sign
                * (i + j - 1) as f64
                * choose(8 + i, 9 - j)
                * choose(8 + j, 9 - i)
                * choose(i + j - 2, i - 1).powi(2);
            assert!((x / wanted - 1.0).abs() < 4.0 * f64::EPSILON, "{i} {j}: {x} {wanted}");
        }
        assert!(inverse(&hilbert(12), 12).is_none());
        assert!(inverse(&[Double::from(1.0); 4], 2).is_none());
    }
}
