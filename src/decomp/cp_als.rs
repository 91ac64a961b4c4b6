//! An iteration of CP-ALS: Algorithm 1 of Nguyen et al., ICS 2022, with columns normalised, a ridge, and HALS where factors may
//! not be negative.
//!
//! **Columns keep their length.** A factor is stored as its update leaves it, with columns of any length `d`;
//! only their Gram matrix is normalised. With `s` the product of the other modes' lengths and `V` the Hadamard product of
//! their normalised Gram matrices, the new factor of a mode with sums `M` is
//!
//! ```text
//! A = M W,   W = diag(1 / s) (V + ridge I)^-1 diag(1 / p),   lambda = p * lengths of A's columns
//! ```
//!
//! which reads and writes the factor once ([`super::update`]). `p` holds powers of two near the weights before, so that
//! columns stay near length one and products of many modes neither overflow nor lose digits; scaling by them
//! is exact.
//!
//! **Precision.** Gram matrices and all that is made of them are in f64 or more, whatever the factors are in: they are those of the
//! factors as stored, so that an update is the least-squares solution for these. From condition [`extended::CONDITION`] on they are
//! added up again in twice the digits. Sums of products in f32 have seven digits: where the condition takes all of them, passes
//! multiply in f64 ([`AlsBackend::mttkrp`]).
//!
//! **Fit.** `1 - |X - model| / |X|` with `|X - model|^2 = |X|^2 + |model|^2 - 2 <X, model>`; the inner product is that of the last
//! mode's sums with its new factor, so no pass is needed for it. Where the model is close, these terms cancel: what rounding
//! leaves is [`Iteration::fit_floor`].

use super::extended::{self, Double};
use super::solve::{Columns, EXTENDED_RANK_MAX, Inverse, hadamard, inverse};
use super::update::{Gram, Rule};
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Instant;

/// The weight, relative to the largest, at which a component counts as vanished.
const VANISHED: f64 = 1e-12;

/// Holds factors, runs passes and updates factors.
pub trait AlsBackend<T: Real> {
    /// Takes factors of the tensor's shape and the backend's rank, in place of earlier ones.
    fn set_factors(&mut self, factors: Vec<Matrix<T>>) -> Result<()>;

    /// The current factors.
    fn factors(&mut self) -> Result<Cow<'_, [Matrix<T>]>>;

    /// Moves the factors out.
    fn take(&mut self) -> Result<Vec<Matrix<T>>>;

    /// Computes the MTTKRP of `mode`, from 0, in one pass, and keeps its sums. With `wide`, products are in f64 and not in `T`,
    /// if the backend can. `progress` gets the nonzeros done.
    fn mttkrp(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<()>;

    /// Makes the factor of the mode whose MTTKRP was last computed, from its sums, by `rule`.
    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram>;

    /// Does both in one, where the backend can and gains by it: rows of the factor are made in the pass, and the sums not kept.
    /// Otherwise it does nothing.
    fn mttkrp_with_update(
        &mut self,
        _mode: usize,
        _wide: bool,
        _rule: &Rule,
        _progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<Gram>> {
        Ok(None)
    }

    /// The Gram matrix of the factor of `mode` in twice f64's digits, rank x rank: [`extended::gram`].
    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>>;
}

/// The facts of a tensor that an iteration needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Its modes.
    pub order: usize,
    /// Its norm: the square root of the sum of the squares of its values.
    pub norm: f64,
}

/// The options of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Components.
    pub rank: usize,
    /// Added to the diagonal of `V`: penalises the squared norm of the factor that is updated, the other modes' columns
    /// having length one.
    pub ridge: f64,
    /// Whether factors may hold no negative numbers.
    pub nonneg: bool,
}

/// An iteration, for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Its number, from 1.
    pub iteration: usize,
    /// `1 - |X - model| / |X|`.
    pub fit: f64,
    /// The change of the fit from the iteration before; in the first, the fit.
    pub change: f64,
    /// An estimate of the relative residual `1 - fit` that rounding leaves of a perfect model. Smaller residuals mean nothing.
    pub fit_floor: f64,
    /// Updates with a pseudo-inverse, because the other modes' columns depend on each other.
    pub pseudo_inverses: usize,
    /// The largest condition number of a Hadamard product of Gram matrices.
    pub condition: f64,
    /// Components whose weight is negligible beside the largest.
    pub vanished: usize,
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of passes, those included that make a factor at once.
    pub mttkrp_seconds: f64,
    /// Seconds of other updates of factors.
    pub update_seconds: f64,
    /// Seconds of rank x rank algebra, Gram matrices in twice the digits included.
    pub solve_seconds: f64,
}

/// The step of an iteration, for progress.
#[derive(Clone, Copy, Debug)]
pub struct CpStep {
    /// The mode, from 0.
    pub mode: usize,
    /// Nonzeros that its pass has done.
    pub nnz: u64,
}

/// The update of a mode, as the Gram matrices determine it.
struct Solution {
    rule: Rule,
    /// Powers of two by which its columns are divided.
    scale: Vec<f64>,
    /// The condition number of the inverted matrix.
    condition: f64,
    /// Whether it was inverted in twice the digits.
    extended: bool,
}

/// A running decomposition, without the factors.
#[derive(Clone, Debug, PartialEq)]
pub struct Als {
    problem: Problem,
    settings: Settings,
    /// The columns of the factors as stored.
    pub(super) columns: Vec<Columns>,
    /// Their Gram matrices in twice the digits, if needed.
    extended: Vec<Option<Vec<Double>>>,
    /// The weights of the model with columns of length one.
    pub(super) lambda: Vec<f64>,
    /// All iterations so far.
    pub(super) history: Vec<Iteration>,
}

/// The largest power of two that is at most `x`; 1 for zero.
fn power_of_two(x: f64) -> f64 {
    const EXPONENT: u64 = 0x7ff << 52;
    if x.is_normal() { f64::from_bits(x.to_bits() & EXPONENT) } else { 1.0 }
}

impl Als {
    /// A decomposition that starts from factors with the Gram matrices `grams`, not normalized.
    #[must_use]
    #[doc(hidden)]
    pub fn new(problem: Problem, settings: Settings, grams: Vec<Vec<f64>>) -> Self {
        let rank = settings.rank;
        let columns: Vec<_> = grams.into_iter().map(|gram| Columns::of(gram, rank)).collect();
        let length = |r: usize| columns.iter().map(|c| c.norms[r]).product();
        let lambda = (0..rank).map(length).collect();
        let extended = vec![None; columns.len()];
        Self { problem, settings, columns, extended, lambda, history: Vec::new() }
    }

    /// The same, continued after `history`.
    pub(super) fn resumed(self, lambda: Vec<f64>, history: Vec<Iteration>) -> Self {
        Self { lambda, history, ..self }
    }

    /// The iterations so far.
    #[must_use]
    pub fn history(&self) -> &[Iteration] {
        &self.history
    }

    /// The fit so far; 0 before the first iteration.
    #[must_use]
    pub fn fit(&self) -> f64 {
        self.history.last().map_or(0.0, |last| last.fit)
    }

    /// Updates each mode's factor once, in order.
    ///
    /// After an error, the factors are unspecified.
    #[doc(hidden)]
    pub fn iterate<T: Real>(
        &mut self,
        backend: &mut impl AlsBackend<T>,
        progress: &(dyn Fn(CpStep) + Sync),
    ) -> Result<()> {
        let begun = Instant::now();
        let mut done =
            Iteration { iteration: self.history.len() + 1, condition: 1.0, ..Iteration::default() };
        for mode in 0..self.problem.order {
            let started = Instant::now();
            let solution = self.solve(mode, backend, &mut done)?;
            let wide = solution.condition * self.settings.rank as f64 * 2.0 * T::ROUNDOFF > 1.0;
            let solved = Instant::now();
            let progress = |nnz| progress(CpStep { mode, nnz });
            let made = backend.mttkrp_with_update(mode, wide, &solution.rule, &progress)?;
            if made.is_none() {
                backend.mttkrp(mode, wide, &progress)?;
            }
            let passed = Instant::now();
            let found = made.map_or_else(|| backend.update(mode, &solution.rule), Ok)?;
            done.update_seconds += passed.elapsed().as_secs_f64();
            done.mttkrp_seconds += (passed - solved).as_secs_f64();
            done.solve_seconds += (solved - started).as_secs_f64();
            if !found.gram.iter().chain(&found.inner).all(|x| x.is_finite()) {
                return Err(self.overflow(mode));
            }
            self.columns[mode] = Columns::of(found.gram, self.settings.rank);
            self.extended[mode] = None;
            let lengths = &self.columns[mode].norms;
            self.lambda = solution.scale.iter().zip(lengths).map(|(p, d)| p * d).collect();
            if mode + 1 == self.problem.order {
                let square = if solution.extended { Some(self.extended_square(backend)?) } else { None };
                self.measure::<T>(&solution.scale, &found.inner, square, &mut done);
            }
        }
        let largest = self.lambda.iter().copied().fold(0.0, f64::max);
        done.vanished = self.lambda.iter().filter(|&&l| l <= VANISHED * largest).count();
        done.change = (done.fit - self.fit()).abs();
        done.seconds = begun.elapsed().as_secs_f64();
        self.history.push(done);
        Ok(())
    }

    /// The product of the lengths of the other modes' columns `r`.
    fn others(&self, mode: usize, r: usize) -> f64 {
        let others = self.columns.iter().enumerate().filter(|(m, _)| *m != mode);
        others.map(|(_, columns)| columns.norms[r]).product()
    }

    /// The update of `mode`.
    fn solve<T: Real>(
        &mut self,
        mode: usize,
        backend: &mut impl AlsBackend<T>,
        done: &mut Iteration,
    ) -> Result<Solution> {
        let Settings { rank, ridge, nonneg } = self.settings;
        let others = self.columns.iter().enumerate().filter(|(m, _)| *m != mode).map(|(_, c)| c);
        let mut gram = hadamard(others, rank);
        (0..rank).for_each(|r| gram[r * rank + r] += ridge);
        // A column of zeros adds nothing to the sums, whatever its multiplier.
        let inverse_or_zero = |x: f64| if x > 0.0 { 1.0 / x } else { 0.0 };
        let of_sums: Vec<f64> = (0..rank).map(|r| inverse_or_zero(self.others(mode, r))).collect();
        // Before the first update the weights are unknown, and the tensor's norm has their magnitude. A component that has
        // vanished can come back.
        let (first, least) = (self.history.is_empty() && mode == 0, VANISHED * self.problem.norm);
        let weight = |r: usize| if first { self.problem.norm } else { self.lambda[r].max(least) };
        let scale: Vec<f64> = (0..rank).map(|r| power_of_two(weight(r))).collect();
        let of_new: Vec<f64> = scale.iter().map(|p| 1.0 / p).collect();
        if nonneg {
            let old = self.lambda.iter().zip(&self.columns[mode].norms);
            let of_old = old.map(|(l, d)| l * inverse_or_zero(*d)).collect();
            let rule = Rule::NonNegative { gram, of_sums, of_old, of_new };
            return Ok(Solution { rule, scale, condition: 1.0, extended: false });
        }
        let mut inverse = inverse(&gram, rank, f64::EPSILON)?;
        let mut extended = false;
        if rank <= EXTENDED_RANK_MAX && (inverse.kept.is_some() || inverse.condition > extended::CONDITION) {
            let mut gram = self.extended_hadamard(backend, |m| m != mode)?;
            (0..rank).for_each(|r| gram[r * rank + r] = gram[r * rank + r] + ridge.into());
            if let Some(better) = extended::inverse(&gram, rank) {
                (inverse, extended) = (better, true);
            }
        }
        let Inverse { mut matrix, condition, kept } = inverse;
        done.pseudo_inverses += usize::from(kept.is_some());
        done.condition = done.condition.max(condition);
        for (i, x) in matrix.iter_mut().enumerate() {
            *x = of_sums[i / rank] * *x * of_new[i % rank];
        }
        Ok(Solution { rule: Rule::Linear { matrix }, scale, condition, extended })
    }

    /// The Hadamard product of the cosines of the factors of some modes, in twice the digits.
    fn extended_hadamard<T: Real>(
        &mut self,
        backend: &mut impl AlsBackend<T>,
        of: impl Fn(usize) -> bool,
    ) -> Result<Vec<Double>> {
        let modes: Vec<usize> = (0..self.problem.order).filter(|&m| of(m)).collect();
        for &m in &modes {
            if self.extended[m].is_none() {
                self.extended[m] = Some(backend.extended_gram(m)?);
            }
        }
        let grams =
            modes.iter().filter_map(|&m| Some((self.extended[m].as_deref()?, &self.columns[m].norms[..])));
        Ok(extended::hadamard(grams, self.settings.rank))
    }

    /// The squared norm of the model, in twice the digits until it is rounded.
    fn extended_square<T: Real>(&mut self, backend: &mut impl AlsBackend<T>) -> Result<f64> {
        let gram = self.extended_hadamard(backend, |_| true)?;
        Ok(extended::square(&gram, &self.lambda))
    }

    /// The fit after the last mode's update, whose columns were divided by `scale` and have the inner products `inner`
    /// with the sums. `exact` is the model's squared norm, given if f64 has too few digits for its terms.
    fn measure<T: Real>(&self, scale: &[f64], inner: &[f64], exact: Option<f64>, done: &mut Iteration) {
        let (rank, order) = (self.settings.rank, self.problem.order);
        let square = self.problem.norm * self.problem.norm;
        let product: f64 = (0..rank)
            .map(|r| match self.others(order - 1, r) {
                0.0 => 0.0,
                s => inner[r] * scale[r] / s,
            })
            .sum();
        let gram = hadamard(self.columns.iter(), rank);
        let term = |i: usize| self.lambda[i / rank] * self.lambda[i % rank] * gram[i];
        let (mut model, mut absolute) = (0.0, 0.0);
        for i in 0..rank * rank {
            model += term(i);
            absolute += term(i).abs();
        }
        // Each of the three terms has its own rounding error. The inner product is at most the product of the norms.
        let inner_size = 2.0 * self.problem.norm * absolute.sqrt();
        let (model, model_size) = exact.map_or((model, absolute), |exact| (exact, exact));
        let residual = (square + model - 2.0 * product).max(0.0);
        let size = square + model_size + inner_size;
        done.fit = 1.0 - residual.sqrt() / self.problem.norm;
        done.fit_floor = ((order + 2) as f64 * T::ROUNDOFF * size).sqrt() / self.problem.norm;
    }

    fn overflow(&self, mode: usize) -> Error {
        let number = self.history.len() + 1;
        let what =
            format!("iteration {number}: the factor of mode {} has numbers that are not finite", mode + 1);
        Error::request(format!("{what}; try a `ridge`, `f64` or another start"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_below() {
        for (x, wanted) in
            [(1.0, 1.0), (3.9, 2.0), (4.0, 4.0), (0.3, 0.25), (1e300, 2f64.powi(996)), (0.0, 1.0)]
        {
            assert_eq!(power_of_two(x).to_bits(), wanted.to_bits(), "{x}");
        }
    }
}
