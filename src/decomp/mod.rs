//! Decompositions of stored tensors: CP by alternating least squares (Nguyen et al., ICS 2022, Algorithm 1).
//!
//! A CP **model** of rank R approximates a tensor by R **components**: for each a weight, `lambda`, and a column of
//! length one in each mode's factor. [`run`] is the main path: it starts from given or seeded factors, iterates
//! ([`Als::iterate`]), keeps the best of several **starts** and writes **checkpoints**.
//!
//! An [`AlsBackend`] holds the factors and runs the passes: [`host`], or a GPU (`cuda`). Outside a backend, this module
//! sees only rank x rank matrices. Backends that share a tensor use a [`Collective`](collective::Collective) to add up
//! sums and exchange updated rows: processes ([`members`]), on CPUs or with a GPU each (`linked`, or `hybrid` without NCCL).
//! Several GPUs of one process do the same in
//! their memory (`devices`).

pub mod checkpoint;
pub mod collective;
mod cp_als;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
pub mod devices;
pub mod extended;
pub mod host;
#[cfg(feature = "cuda")]
pub mod hybrid;
#[cfg(feature = "cuda")]
pub mod linked;
pub mod members;
mod products;
mod run;
pub mod score;
pub mod solve;
mod starts;
pub mod update;

pub use cp_als::{Als, AlsBackend, CpStep, Iteration, Problem, Settings};
pub use run::{CpJob, CpWatch, CpWatchers, Decomposition, Init, run, run_watched};
pub use starts::{StartReport, Stop, stability};

use crate::dense::{Matrix, Real, factor_axes, mode_file};
use crate::error::{Error, Result};
use crate::publish;
use crate::shape::{ORDER_MAX, Shape};
use crate::sys::{Dir, Sys};
use rayon::prelude::*;
use solve::Columns;
use std::path::Path;

/// The file of the weights beside the factors' `mode-1.npy` …
pub const LAMBDA_FILE: &str = "lambda.npy";

/// A CP model: components in order of their weights, the largest first.
///
/// **Signs.** A component does not change if two of its columns are multiplied by -1. [`Model::new`] chooses signs: in every mode, the
/// number of largest magnitude is positive. If it was negative in an odd number of modes, the last of these is the exception.
#[derive(Clone, Debug, PartialEq)]
pub struct Model<T> {
    /// The weights, a column of rank numbers.
    pub lambda: Matrix<f64>,
    /// `factors[m]` is `dims[m]` x rank. Its columns have length one, or are zero if the weight is zero.
    pub factors: Vec<Matrix<T>>,
}

#[doc(hidden)]
impl<T: Real> Model<T> {
    /// The model with weights `lambda` and factors whose columns are scaled to length one. Numbers of magnitude `zero`
    /// or less become zero.
    #[must_use]
    pub fn new(lambda: &[f64], mut factors: Vec<Matrix<T>>, columns: &[Columns], zero: f64) -> Self {
        let rank = lambda.len();
        let mut order: Vec<usize> = (0..rank).collect();
        order.sort_by(|&a, &b| lambda[b].total_cmp(&lambda[a]));
        let signs = signs(&factors, rank);
        for ((factor, columns), signs) in factors.iter_mut().zip(columns).zip(signs) {
            let norms: Vec<f64> = order.iter().map(|&r| signs[r] * columns.norms[r]).collect();
            factor.data_mut().par_chunks_mut(rank * 1024).for_each_init(
                || vec![0.0; rank],
                |old, rows| {
                    for row in rows.chunks_exact_mut(rank) {
                        old.iter_mut().zip(&*row).for_each(|(old, x)| *old = x.widen());
                        for (x, (&r, &norm)) in row.iter_mut().zip(order.iter().zip(&norms)) {
                            *x = T::nearest(if old[r].abs() > zero { old[r] / norm } else { 0.0 });
                        }
                    }
                },
            );
        }
        let lambda = order.iter().map(|&r| lambda[r]).collect();
        Self { lambda: Matrix::from_rows(rank, 1, lambda), factors }
    }
}

/// For each mode and column, 1 or -1: what makes the signs those of a [`Model`]. An even number of a component's are -1.
fn signs<T: Real>(factors: &[Matrix<T>], rank: usize) -> Vec<Vec<f64>> {
    let mut signs: Vec<Vec<f64>> = factors.iter().map(|f| vec![1.0; f.columns()]).collect();
    let peaks: Vec<Vec<f64>> = factors.iter().map(peaks).collect();
    for r in 0..rank {
        let negative: Vec<usize> = (0..factors.len()).filter(|&m| peaks[m][r] < 0.0).collect();
        for &m in &negative[..negative.len() / 2 * 2] {
            signs[m][r] = -1.0;
        }
    }
    signs
}

/// The number of largest magnitude of each column; the first, if several are equal.
fn peaks<T: Real>(factor: &Matrix<T>) -> Vec<f64> {
    let rank = factor.columns();
    let raise = |peak: &mut f64, x: f64| *peak = if x.abs() > peak.abs() { x } else { *peak };
    let of_rows = |rows: &[T]| {
        let mut peaks = vec![0.0; rank];
        for row in rows.chunks_exact(rank) {
            peaks.iter_mut().zip(row).for_each(|(peak, x)| raise(peak, x.widen()));
        }
        peaks
    };
    let parts: Vec<Vec<f64>> = factor.data().par_chunks(rank * 1024).map(of_rows).collect();
    parts.into_iter().fold(vec![0.0; rank], |mut peaks, part| {
        peaks.iter_mut().zip(part).for_each(|(peak, x)| raise(peak, x));
        peaks
    })
}

#[doc(hidden)]
impl Model<f64> {
    /// Opens the directory of a model and counts its modes. All files come from this directory, even if another takes its place.
    fn open(sys: &Sys, path: &Path) -> Result<(Dir, usize)> {
        let none = || {
            let what = format!("holds no model: {} and {} are to be there", mode_file(0), mode_file(1));
            Error::input(path.display().to_string(), what)
        };
        let dir = publish::open(sys, path).map_err(|e| if path.is_dir() { e } else { none() })?;
        let mut order = 0;
        while order < ORDER_MAX && dir.file_bytes(&mode_file(order))?.is_some() {
            order += 1;
        }
        if order < 2 { Err(none()) } else { Ok((dir, order)) }
    }

    /// Bytes that [`Model::load`] takes for the model in `dir`, and its rank, by the headers of its files.
    pub fn bytes_and_rank(sys: &Sys, dir: &Path) -> Result<(u64, u64)> {
        let (mut bytes, mut rank) = (0u64, 0);
        let (dir, order) = Self::open(sys, dir)?;
        for mode in 0..order {
            let [rows, columns] = factor_axes(dir.file(&mode_file(mode), false)?)?;
            bytes =
                bytes.saturating_add(rows.saturating_mul(columns).saturating_mul(size_of::<f64>() as u64));
            rank = columns.max(rank);
        }
        Ok((bytes, rank))
    }

    /// Reads `mode-1.npy` … and `lambda.npy` from `path`. Without `lambda.npy` all weights are 1.
    pub fn load(sys: &Sys, path: &Path) -> Result<Self> {
        let (dir, order) = Self::open(sys, path)?;
        let load = |m| Matrix::read(sys, dir.file(&mode_file(m), false)?, None);
        let factors: Vec<Matrix<f64>> = (0..order).map(load).collect::<Result<_>>()?;
        let rank = factors[0].columns();
        if let Some(mode) = factors.iter().position(|f| f.columns() != rank) {
            let what = format!("has rank {}, {} has {rank}", factors[mode].columns(), mode_file(0));
            return Err(Error::input(path.join(mode_file(mode)).display().to_string(), what));
        }
        let lambda = if dir.file_bytes(LAMBDA_FILE)?.is_some() {
            let lambda = Matrix::read_column(sys, dir.file(LAMBDA_FILE, false)?, rank)?;
            if lambda.rows() != rank {
                let what = format!("has {} weights; factors of rank {rank} have {rank}", lambda.rows());
                return Err(Error::input(path.join(LAMBDA_FILE).display().to_string(), what));
            }
            lambda
        } else {
            Matrix::from_rows(rank, 1, vec![1.0; rank])
        };
        Ok(Self { lambda, factors })
    }
}

/// An error if `factors` have negative numbers and the decomposition must not.
pub fn check_non_negative<T: Real>(factors: &[Matrix<T>]) -> Result<()> {
    for (mode, factor) in factors.iter().enumerate() {
        if let Some(at) = factor.data().iter().position(|x| x.widen() < 0.0) {
            let (row, x) = (at / factor.columns() + 1, factor.data()[at].widen());
            let what =
                format!("row {row} of mode {}'s initial factor holds {x}, which is negative", mode + 1);
            return Err(Error::request(format!("{what}; `nonneg` starts from numbers that are not")));
        }
    }
    Ok(())
}

/// Bytes of the factors of a model.
#[must_use]
pub fn factor_bytes<T: Real>(shape: &Shape, rank: usize) -> u64 {
    let rows: u64 = shape.dims().iter().map(|&d| u64::from(d)).sum();
    rows * rank as u64 * size_of::<T>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Components whose number of largest magnitude is negative in none, some or all of three modes.
    #[test]
    fn signs_are_chosen_in_pairs() {
        let negative =
            [[false; 3], [true, false, false], [false, true, true], [true, true, false], [true; 3]];
        let column = |m: usize, r: usize| {
            let peak = if negative[r][m] { -4.0 } else { 4.0 };
            // The first of equal numbers decides. Another part of the rows has the same number with the other sign.
            [1.0, peak, 2.0, -peak]
        };
        let factor = |m: usize| {
            let rows = (0..4).flat_map(|i| (0..5).map(move |r| column(m, r)[i]));
            Matrix::<f64>::from_rows(4, 5, rows.collect())
        };
        let factors: Vec<_> = (0..3).map(factor).collect();
        let columns: Vec<_> = factors.iter().map(|f| Columns::of(update::gram(f), 5)).collect();
        let model = Model::new(&[5.0, 4.0, 3.0, 2.0, 1.0], factors, &columns, 0.0);
        let positive = |m: usize, r: usize| model.factors[m].row(1)[r] > 0.0;
        for (r, last) in [None, Some(0), None, None, Some(2)].into_iter().enumerate() {
            (0..3).for_each(|m| assert_eq!(positive(m, r), last != Some(m), "component {r}, mode {m}"));
        }
    }
}
