//! CP-ALS by its definition, for tests: dense, in f64, without normalization; models as dense tensors; decompositions on the host; planted tensors
//! with nearly collinear components.

#![allow(dead_code, reason = "every test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use crate::common::Tensor;
use blco::internals::decomp::checkpoint::{Checkpointer, Identity};
use blco::internals::decomp::host::{HostAls, host_bytes};
use blco::internals::decomp::{CpJob, Decomposition, Init, Model, Problem, Settings, run};
use blco::internals::dense::{Matrix, Real};
use blco::internals::op::mttkrp::Mttkrp;
use blco::internals::random::Counter;
use blco::internals::store::Store;
use blco::internals::stream::{Limits, plan};
use std::collections::BTreeMap;
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

/// One iteration: every factor in turn solves its normal equations, with `ridge`, while the other factors have
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

/// A decomposition that ends only at `max_iters`, with a checkpoint after each iteration if one is named, resumed or not.
pub fn job(
    store: &Store,
    settings: Settings,
    max_iters: usize,
    checkpoint: Option<(PathBuf, bool)>,
) -> CpJob<'_> {
    let open = |(dir, resume): (PathBuf, bool)| {
        Checkpointer::open(store.sys(), &dir, 1, Identity::new(), resume).unwrap()
    };
    CpJob {
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
pub fn on_host<T: Real>(
    store: &Store,
    settings: Settings,
    init: Init<T>,
    max_iters: usize,
) -> Decomposition<T> {
    let plan = plan(store, host_bytes::<T>(store.manifest(), settings.rank, 2), &Limits::default()).unwrap();
    let op = Mttkrp::alternating(store, settings.rank, 2).unwrap();
    let mut place = HostAls::new(store, &plan, op).unwrap();
    run(&mut job(store, settings, max_iters, None), init, &mut place, &|_| ()).unwrap()
}

pub fn widened(factor: &Matrix<f32>) -> Matrix<f64> {
    Matrix::from_rows(factor.rows(), factor.columns(), factor.data().iter().map(|&x| x.into()).collect())
}

/// The nearest f32 number.
fn rounded(x: f64) -> f64 {
    f64::from(f32::nearest(x))
}

/// Numbers of mean 0 and variance 1, approximately normal.
struct Numbers(Counter, u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(Counter::new(seed, 0), 0)
    }

    fn next(&mut self) -> f64 {
        self.1 += 12;
        (self.1 - 12..self.1).map(|i| self.0.unit(i)).sum::<f64>() - 6.0
    }

    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        usize::try_from(self.0.bits(self.1) % n as u64).unwrap()
    }
}

/// A planted tensor and its components, exact in f32.
pub struct Planted {
    pub tensor: Tensor,
    pub factors: Vec<Matrix<f32>>,
}

/// Dims of real data for which f32 once lost digits of the fit.
pub const DIMS: [u64; 6] = [3, 66, 11, 3300, 10725, 23];

impl Planted {
    /// Pairs of components whose columns differ by `distance`, each pair on its own support, with noise. The weights of a pair are of
    /// one magnitude, or with `cancel` each other's negatives, so that the tensor is their difference.
    pub fn new(dims: &[u64], rank: usize, support: &[usize], distance: f64, cancel: bool) -> Self {
        let mut numbers = Numbers::new(7);
        let order = dims.len();
        let mut factors: Vec<Vec<f64>> =
            dims.iter().map(|&dim| vec![0.0; usize::try_from(dim).unwrap() * rank]).collect();
        let mut nonzeros = BTreeMap::new();
        for pair in (0..rank).step_by(2) {
            let places: Vec<Vec<usize>> = (0..order)
                .map(|m| {
                    let dim = usize::try_from(dims[m]).unwrap();
                    let first = numbers.below(dim);
                    let step = dim / support[m];
                    (0..support[m]).map(|k| (first + k * step) % dim).collect()
                })
                .collect();
            for (factor, places) in factors.iter_mut().zip(&places) {
                for &i in places {
                    let x = rounded(numbers.next());
                    factor[i * rank + pair] = x;
                    factor[i * rank + pair + 1] = rounded(x + distance * numbers.next());
                }
            }
            let weight = numbers.next();
            let weights = [weight, if cancel { -weight } else { numbers.next() }];
            let block: Vec<(Vec<u32>, f64)> = indices(support)
                .map(|at| {
                    let at: Vec<usize> = at.iter().zip(&places).map(|(&k, places)| places[k]).collect();
                    let term = |c: usize| {
                        let numbers = at.iter().zip(&factors).map(|(&i, f)| f[i * rank + pair + c]);
                        weights[c] * numbers.product::<f64>()
                    };
                    (at.iter().map(|&i| u32::try_from(i).unwrap()).collect(), term(0) + term(1))
                })
                .collect();
            let square: f64 = block.iter().map(|(_, x)| x * x).sum();
            let size = (square / block.len() as f64).sqrt();
            for (at, x) in block {
                nonzeros.insert(at, rounded(x / size + 0.3 * numbers.next()));
            }
        }
        let tensor = Tensor {
            dims: dims.to_vec(),
            indices: nonzeros.keys().flatten().copied().collect(),
            values: nonzeros.values().copied().collect(),
        };
        let narrow = |f: Vec<f64>| {
            Matrix::from_rows(f.len() / rank, rank, f.iter().map(|&x| f32::nearest(x)).collect())
        };
        Self { tensor, factors: factors.into_iter().map(narrow).collect() }
    }

    pub fn wide(&self) -> Vec<Matrix<f64>> {
        self.factors.iter().map(widened).collect()
    }
}
