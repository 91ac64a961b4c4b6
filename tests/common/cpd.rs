//! CP-ALS by the definition, for tests: dense, in f64, nothing normalised; models as dense tensors; decompositions on the host.

#![allow(dead_code, reason = "every test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use super::Tensor;
use blco::decomp::checkpoint::{Checkpointer, Identity};
use blco::decomp::host::{HostPlace, host_bytes};
use blco::decomp::{Init, Job, Model, Outcome, Problem, Settings, run};
use blco::dense::{Matrix, Real};
use blco::op::mttkrp::Mttkrp;
use blco::store::Store;
use blco::stream::{Limits, plan};
use std::path::PathBuf;

/// A small tensor with all its elements: mode 0 slowest.
pub struct Dense {
    pub dims: Vec<usize>,
    pub values: Vec<f64>,
}

/// Each multi-index of `dims`, the last mode fastest.
pub fn indices(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..dims.iter().product::<usize>()).map(move |mut i| {
        let mut at = vec![0; dims.len()];
        for m in (0..dims.len()).rev() {
            at[m] = i % dims[m];
            i /= dims[m];
        }
        at
    })
}

impl Dense {
    pub fn of(tensor: &Tensor) -> Self {
        let dims: Vec<usize> = tensor.dims.iter().map(|&d| usize::try_from(d).unwrap()).collect();
        let mut values = vec![0.0; dims.iter().product()];
        for (row, value) in tensor.rows() {
            values[row.iter().zip(&dims).fold(0, |at, (&i, dim)| at * dim + i as usize)] += value;
        }
        Self { dims, values }
    }

    /// The elements of a model.
    pub fn of_model<T: Real>(model: &Model<T>) -> Self {
        let factors: Vec<_> = model.factors.iter().map(rows).collect();
        Self::of_factors(&factors, model.lambda.data())
    }

    pub fn of_factors(factors: &[Vec<Vec<f64>>], lambda: &[f64]) -> Self {
        let dims: Vec<usize> = factors.iter().map(Vec::len).collect();
        let element = |at: Vec<usize>| {
            let component = |r: usize| factors.iter().zip(&at).fold(lambda[r], |p, (f, &i)| p * f[i][r]);
            (0..lambda.len()).map(component).sum()
        };
        let values = indices(&dims).map(element).collect();
        Self { dims, values }
    }

    pub fn square(&self) -> f64 {
        self.values.iter().map(|x| x * x).sum()
    }

    /// The squared distance, relative to the square of `other`.
    pub fn distance(&self, other: &Self) -> f64 {
        let squares = self.values.iter().zip(&other.values).map(|(a, b)| (a - b) * (a - b));
        squares.sum::<f64>() / other.square()
    }
}

pub fn rows<T: Real>(factor: &Matrix<T>) -> Vec<Vec<f64>> {
    (0..factor.rows()).map(|i| factor.row(i).iter().map(|x| x.widen()).collect()).collect()
}

/// One iteration: every factor in turn is the solution of its normal equations, with `ridge` where the other factors have
/// columns of length one.
pub fn naive_iteration(tensor: &Dense, factors: &mut [Vec<Vec<f64>>], ridge: f64) {
    let rank = factors[0][0].len();
    for mode in 0..factors.len() {
        for factor in factors.iter_mut().enumerate().filter(|(m, _)| *m != mode).map(|(_, f)| f) {
            for r in 0..rank {
                let length = factor.iter().map(|row| row[r] * row[r]).sum::<f64>().sqrt();
                for row in factor.iter_mut() {
                    row[r] /= length;
                }
            }
        }
        let mut gram = vec![vec![1.0; rank]; rank];
        for factor in factors.iter().enumerate().filter(|(m, _)| *m != mode).map(|(_, f)| f) {
            for (r, line) in gram.iter_mut().enumerate() {
                for (q, x) in line.iter_mut().enumerate() {
                    *x *= factor.iter().map(|row| row[r] * row[q]).sum::<f64>();
                }
            }
        }
        (0..rank).for_each(|r| gram[r][r] += ridge);
        let mut sums = vec![vec![0.0; rank]; tensor.dims[mode]];
        for (at, value) in indices(&tensor.dims).zip(&tensor.values) {
            for (r, sum) in sums[at[mode]].iter_mut().enumerate() {
                let others = (0..at.len()).filter(|&m| m != mode);
                *sum += others.fold(*value, |p, m| p * factors[m][at[m]][r]);
            }
        }
        factors[mode] = sums.into_iter().map(|sums| solve(gram.clone(), sums)).collect();
    }
}

/// Gaussian elimination with pivots.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for k in 0..n {
        let pivot = (k..n).max_by(|&i, &j| a[i][k].abs().total_cmp(&a[j][k].abs())).unwrap();
        a.swap(k, pivot);
        b.swap(k, pivot);
        for i in k + 1..n {
            let by = a[i][k] / a[k][k];
            let line = a[k].clone();
            a[i].iter_mut().zip(&line).for_each(|(x, y)| *x -= by * y);
            b[i] -= by * b[k];
        }
    }
    for k in (0..n).rev() {
        let known: f64 = (k + 1..n).map(|j| a[k][j] * b[j]).sum();
        b[k] = (b[k] - known) / a[k][k];
    }
    b
}

/// A decomposition without end but `max_iters`; a checkpoint after each iteration where one is named, resumed or not.
pub fn job(
    store: &Store,
    settings: Settings,
    max_iters: usize,
    checkpoint: Option<(PathBuf, bool)>,
) -> Job<'_> {
    let open = |(dir, resume): (PathBuf, bool)| {
        Checkpointer::open(store.sys(), &dir, 1, Identity::new(), resume).unwrap()
    };
    Job {
        sys: store.sys(),
        shape: &store.manifest().shape,
        problem: Problem::of(store.manifest()).unwrap(),
        settings,
        tol: 0.0,
        max_iters,
        checkpoint: checkpoint.map(open),
    }
}

/// Decomposes on the host with two threads.
pub fn on_host<T: Real>(store: &Store, settings: Settings, init: Init<T>, max_iters: usize) -> Outcome<T> {
    let shape = &store.manifest().shape;
    let plan = plan(store, host_bytes::<T>(shape, settings.rank, 2), &Limits::default()).unwrap();
    let mut op = Mttkrp::alternating(store.sys(), shape, settings.rank, 2).unwrap();
    let mut place = HostPlace::new(store, &plan, &mut op).unwrap();
    run(&mut job(store, settings, max_iters, None), init, &mut place, &|_| ()).unwrap()
}
