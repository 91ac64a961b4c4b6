//! The factor-match score of two CP models: how well their components agree, whatever their order and signs.
//!
//! The score of two components is the product over the modes of the absolute cosines of their columns, times `1 - |a - b| / max(a, b)` of their
//! weights. Components are matched greedily, the best pair first, as the Tensor Toolbox's `score` does by default;
//! the models' score is the mean over the components of the model with fewer. 1 means equality.
//!
//! **Vanished components**, of weight zero or with a column of zeros, are zero tensors, whatever their other columns: two of them agree
//! entirely; a vanished and another component do not agree at all. In the Tensor Toolbox, too, the weights of two vanished components agree.

use super::{Model, peaks};
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::shape::Shape;
use rayon::prelude::*;
use serde::Serialize;

/// A pair of matched components.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The component of the first model, from 1.
    pub a: usize,
    /// The component of the second model, from 1.
    pub b: usize,
    /// How well they agree, from 0 to 1.
    pub score: f64,
}

/// The agreement of two models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// From 0 to 1.
    pub score: f64,
    /// The matched components, the best pair first.
    pub pairs: Vec<Pair>,
}

/// Rows that are added up together.
const ROWS: usize = 1 << 14;

/// Bytes for comparing two models of `models` bytes, whose ranks have the product `ranks`: the models, the scores of all pairs, their order,
/// and the products of each part of the rows.
#[must_use]
pub fn host_bytes(models: u64, ranks: u64) -> u64 {
    let parts = models / (2 * ROWS * size_of::<f64>()) as u64 + 2;
    models.saturating_add(ranks.saturating_mul((4 + parts) * size_of::<f64>() as u64))
}

/// Bytes for matching the components of two models of `shape` and `rank`, beside the models.
#[must_use]
pub fn match_bytes(shape: &Shape, rank: usize) -> u64 {
    let longest = shape.dims().iter().max().map_or(0, |&dim| u64::from(dim));
    let parts = longest / ROWS as u64 + 2;
    (rank * rank * size_of::<f64>()) as u64 * (4 + parts)
}

/// A magnitude `number * 2^exponent`, so that products of any magnitudes neither overflow nor vanish. `number` is in [1, 2), or 0.
#[derive(Clone, Copy, Debug)]
struct Magnitude {
    number: f64,
    exponent: i64,
}

impl Magnitude {
    /// The magnitude of a finite number.
    fn of(x: f64) -> Self {
        const FRACTION: u64 = (1 << 52) - 1;
        let (x, raised) = if x.is_normal() { (x.abs(), 0) } else { (x.abs() * 2f64.powi(64), 64) };
        if x == 0.0 {
            return Self { number: 0.0, exponent: i64::MIN / 16 };
        }
        let exponent = (x.to_bits() >> 52).cast_signed() - 1023;
        Self { number: f64::from_bits(1f64.to_bits() | x.to_bits() & FRACTION), exponent: exponent - raised }
    }

    fn times(self, other: Self) -> Self {
        let product = Self::of(self.number * other.number);
        Self { exponent: product.exponent + self.exponent + other.exponent, ..product }
    }

    /// `1 - |x - y| / max(x, y)`; `None` if both are zero.
    fn agreement(self, other: Self) -> Option<f64> {
        let most = self.exponent.max(other.exponent);
        let shift = |x: Self| x.number * 2f64.powi(i32::try_from(x.exponent - most).unwrap_or(i32::MIN));
        let (x, y) = (shift(self), shift(other));
        (x.max(y) > 0.0).then(|| 1.0 - (x - y).abs() / x.max(y))
    }
}

/// Facts about a factor's columns.
struct ScoreColumns {
    /// Powers of two that bring each column's number of largest magnitude near 1.
    scales: Vec<f64>,
    /// Their lengths after multiplying by these powers.
    lengths: Vec<f64>,
}

impl ScoreColumns {
    fn of<T: Real>(factor: &Matrix<T>) -> Self {
        let scale = |&peak: &f64| {
            2f64.powi(-i32::try_from(Magnitude::of(peak).exponent.clamp(-1022, 1022)).unwrap_or(0))
        };
        let scales: Vec<f64> = peaks(factor).iter().map(scale).collect();
        let mut squares = vec![0.0; factor.columns()];
        for row in factor.data().chunks_exact(factor.columns()) {
            for ((square, x), scale) in squares.iter_mut().zip(row).zip(&scales) {
                let x = x.widen() * scale;
                *square += x * x;
            }
        }
        Self { scales, lengths: squares.into_iter().map(f64::sqrt).collect() }
    }

    /// The length of column `r`.
    fn length(&self, r: usize) -> Magnitude {
        let (length, scale) = (Magnitude::of(self.lengths[r]), Magnitude::of(self.scales[r]));
        Magnitude { exponent: length.exponent - scale.exponent, ..length }
    }
}

/// Inner products of the columns of `a` with those of `b`, multiplied by their scales: rank of `a` x rank of `b`.
fn products<T: Real>(a: &Matrix<T>, b: &Matrix<T>, scales: [&[f64]; 2]) -> Vec<f64> {
    let (p, q) = (a.columns(), b.columns());
    let parts = a.data().par_chunks(ROWS * p).zip(b.data().par_chunks(ROWS * q)).map(|(a, b)| {
        let (mut sums, mut scaled) = (vec![0.0; p * q], vec![0.0; q]);
        for (a, b) in a.chunks_exact(p).zip(b.chunks_exact(q)) {
            scaled.iter_mut().zip(b).zip(scales[1]).for_each(|((to, y), scale)| *to = y.widen() * scale);
            for ((sums, x), scale) in sums.chunks_exact_mut(q).zip(a).zip(scales[0]) {
                let x = x.widen() * scale;
                sums.iter_mut().zip(&scaled).for_each(|(s, y)| *s += x * y);
            }
        }
        sums
    });
    let parts: Vec<Vec<f64>> = parts.collect();
    parts.into_iter().fold(vec![0.0; p * q], |mut all, part| {
        all.iter_mut().zip(part).for_each(|(a, x)| *a += x);
        all
    })
}

/// The score of every component of `a` with every one of `b`: rank of `a` x rank of `b`. With `weights`, weights count.
pub(crate) fn similarities<T: Real>(a: &Model<T>, b: &Model<T>, weights: bool) -> Vec<f64> {
    let (p, q) = (a.lambda.rows(), b.lambda.rows());
    let mut scores = vec![1.0; p * q];
    let of = |model: &Model<T>| model.lambda.data().iter().map(|&w| Magnitude::of(w)).collect();
    let (mut of_a, mut of_b): (Vec<Magnitude>, Vec<Magnitude>) = (of(a), of(b));
    for (a, b) in a.factors.iter().zip(&b.factors) {
        let (columns_a, columns_b) = (ScoreColumns::of(a), ScoreColumns::of(b));
        let dots = products(a, b, [&columns_a.scales, &columns_b.scales]);
        for (i, (score, dot)) in scores.iter_mut().zip(dots).enumerate() {
            let length = columns_a.lengths[i / q] * columns_b.lengths[i % q];
            *score *= if length > 0.0 { (dot / length).abs().min(1.0) } else { 0.0 };
        }
        of_a.iter_mut().enumerate().for_each(|(r, w)| *w = w.times(columns_a.length(r)));
        of_b.iter_mut().enumerate().for_each(|(r, w)| *w = w.times(columns_b.length(r)));
    }
    if weights {
        for (i, score) in scores.iter_mut().enumerate() {
            *score = of_a[i / q].agreement(of_b[i % q]).map_or(1.0, |agreement| *score * agreement);
        }
    }
    scores
}

/// Compares two models, which must be of the same shape. Columns need not have length one.
pub fn score(a: &Model<f64>, b: &Model<f64>) -> Result<Score> {
    let dims = |model: &Model<f64>| -> Vec<usize> { model.factors.iter().map(Matrix::rows).collect() };
    if dims(a) != dims(b) {
        return Err(Error::request(format!(
            "models of {:?} and {:?} rows cannot be compared",
            dims(a),
            dims(b)
        )));
    }
    Ok(matched(a, b, true))
}

/// Matches the components of two models of the same shape. With `weights`, weights count.
pub(crate) fn matched<T: Real>(a: &Model<T>, b: &Model<T>, weights: bool) -> Score {
    let (p, q) = (a.lambda.rows(), b.lambda.rows());
    let scores = similarities(a, b, weights);
    let (mut free_a, mut free_b) = (vec![true; p], vec![true; q]);
    let mut pairs = Vec::with_capacity(p.min(q));
    let mut order: Vec<usize> = (0..p * q).collect();
    order.sort_by(|&x, &y| scores[y].total_cmp(&scores[x]));
    for i in order {
        let (r, s) = (i / q, i % q);
        if free_a[r] && free_b[s] {
            (free_a[r], free_b[s]) = (false, false);
            pairs.push(Pair { a: r + 1, b: s + 1, score: scores[i] });
        }
    }
    let mean = pairs.iter().map(|pair| pair.score).sum::<f64>() / pairs.len() as f64;
    Score { score: mean, pairs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    fn model(rank: usize, seed: u64) -> Model<f64> {
        let factor = |(m, &rows): (usize, &usize)| {
            let numbers = Counter::new(seed, m as u64);
            Matrix::from_rows(rows, rank, (0..rows * rank).map(|i| numbers.unit(i as u64) - 0.5).collect())
        };
        let factors = [30, 20, 10].iter().enumerate().map(factor).collect();
        Model { lambda: Matrix::from_rows(rank, 1, (1..=rank).map(|r| r as f64).collect()), factors }
    }

    /// The columns in the order `order`, those of the first mode multiplied by `scale`, the weights divided by it.
    fn disguised(model: &Model<f64>, order: &[usize], scale: f64) -> Model<f64> {
        let pick = |matrix: &Matrix<f64>, scale: f64| {
            let row = |i: usize| order.iter().map(move |&r| matrix.row(i)[r] * scale);
            Matrix::from_rows(matrix.rows(), order.len(), (0..matrix.rows()).flat_map(row).collect())
        };
        let factors =
            model.factors.iter().enumerate().map(|(m, f)| pick(f, if m == 0 { scale } else { 1.0 }));
        let lambda = order.iter().map(|&r| model.lambda.data()[r] / scale.abs()).collect();
        Model { lambda: Matrix::from_rows(order.len(), 1, lambda), factors: factors.collect() }
    }

    #[test]
    fn order_sign_and_length_do_not_matter() {
        let a = model(4, 1);
        let same = score(&a, &disguised(&a, &[2, 0, 3, 1], -8.0)).unwrap();
        assert!((same.score - 1.0).abs() < 1e-12, "{}", same.score);
        let matched = |a: usize| same.pairs.iter().find(|p| p.a == a).unwrap().b;
        assert_eq!([matched(1), matched(2), matched(3), matched(4)], [2, 4, 1, 3]);
        assert!((score(&a, &disguised(&a, &[3, 1], 1.0)).unwrap().score - 1.0).abs() < 1e-12);
    }

    /// Components of weight zero, with a column of zeros, or both. A model equals itself, but not one in which other components vanished.
    #[test]
    fn vanished_components_match_each_other() {
        let whole = model(3, 1);
        let without_weight = |r: usize| {
            let mut model = whole.clone();
            model.lambda.data_mut()[r] = 0.0;
            model
        };
        let without_column = |r: usize| {
            let mut model = whole.clone();
            model.factors[1].data_mut().chunks_exact_mut(3).for_each(|row| row[r] = 0.0);
            model
        };
        let both = without_column(0);
        let mut none = Model { factors: both.factors.clone(), lambda: without_weight(0).lambda };
        for vanished in [without_weight(0), without_weight(2), without_column(1), none.clone()] {
            let same = score(&vanished, &vanished).unwrap();
            assert!((same.score - 1.0).abs() < 1e-12, "{}", same.score);
            assert!(score(&whole, &vanished).unwrap().score < 0.7);
        }
        assert!((score(&without_weight(1), &without_column(1)).unwrap().score - 1.0).abs() < 1e-12);
        none.lambda.data_mut().fill(0.0);
        assert!((score(&none, &none).unwrap().score - 1.0).abs() < 1e-12);
        assert!(score(&none, &whole).unwrap().score.to_bits() == 0);
    }

    /// Numbers whose squares or products exceed the range of f64.
    #[test]
    fn magnitude_does_not_matter() {
        let a = model(3, 1);
        for scale in [1e300, 1e-300, 1e160, 1e-160, 5e-324] {
            let mut large = a.clone();
            large.factors[0].data_mut().iter_mut().for_each(|x| *x = if *x > 0.0 { scale } else { -scale });
            large.lambda.data_mut()[1] *= 1e200;
            large.factors[1].data_mut().iter_mut().for_each(|x| *x *= scale.max(1e-290));
            let same = score(&large, &large).unwrap();
            assert!((same.score - 1.0).abs() < 1e-12, "{scale:e}: {}", same.score);
            let other = score(&a, &large).unwrap().score;
            assert!((0.0..0.1).contains(&other), "{scale:e}: {other}");
        }
    }

    #[test]
    fn other_models_score_less() {
        let (a, b) = (model(3, 1), model(3, 2));
        assert!(score(&a, &b).unwrap().score < 0.2);
        let mut heavier = a.clone();
        heavier.lambda = Matrix::from_rows(3, 1, vec![2.0, 4.0, 6.0]);
        assert!((score(&a, &heavier).unwrap().score - 0.5).abs() < 1e-12);
        let short = Model { lambda: a.lambda.clone(), factors: a.factors[..2].to_vec() };
        assert!(score(&a, &short).unwrap_err().to_string().contains("cannot be compared"));
    }
}
