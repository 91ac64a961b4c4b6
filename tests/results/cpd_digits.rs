//! Establishes how many digits a fit has if components are nearly collinear: on planted tensors with six modes, signed values
//! and pairs of nearly equal components, f64 has the fits of the same algorithm in twice the digits, and f32 those of f64. Also shows
//! the effect of a last bit that iterations amplify. `BLCO_LARGE=1` takes larger tensors, more conditions, and the real tensors.

use crate::common::{Kind, Tensor, options, packed};
use crate::naive::{DIMS, Planted, on_host, widened};
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::decomp::extended::Double;
use blco::internals::decomp::{Init, Iteration, Settings};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use std::path::Path;

fn large() -> bool {
    std::env::var_os("BLCO_LARGE").is_some()
}

fn store_of(tensor: &Tensor) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = packed(tensor, &options(&dir.path().join("s"), Kind::Tiled, 8 << 20));
    (dir, store)
}

fn history<T: Real>(store: &Store, factors: &[Matrix<T>], settings: Settings, n: usize) -> Vec<Iteration> {
    on_host(store, settings, Init::Given(factors.to_vec()), n).als.history().to_vec()
}

fn plain(rank: usize) -> Settings {
    Settings { rank, ridge: 0.0, nonneg: false }
}

/// CP-ALS by its definition in twice f64's digits, factors and sums included. Returns the fit after each iteration.
struct Reference<'a> {
    tensor: &'a Tensor,
    rank: usize,
    factors: Vec<Vec<Double>>,
}

impl Reference<'_> {
    fn fits(tensor: &Tensor, factors: &[Matrix<f32>], iterations: usize) -> Vec<f64> {
        let wide = |f: &Matrix<f32>| f.data().iter().map(|&x| Double::from(f64::from(x))).collect();
        let rank = factors[0].columns();
        let mut reference = Reference { tensor, rank, factors: factors.iter().map(wide).collect() };
        (0..iterations).map(|_| reference.iterate()).collect()
    }

    fn gram(&self, mode: usize) -> Vec<Double> {
        let mut gram = vec![Double::default(); self.rank * self.rank];
        for row in self.factors[mode].chunks_exact(self.rank) {
            for (i, sum) in gram.iter_mut().enumerate() {
                *sum = *sum + row[i / self.rank] * row[i % self.rank];
            }
        }
        gram
    }

    fn hadamard(&self, of: impl Fn(usize) -> bool) -> Vec<Double> {
        let mut all = vec![Double::from(1.0); self.rank * self.rank];
        for mode in (0..self.factors.len()).filter(|&m| of(m)) {
            all.iter_mut().zip(self.gram(mode)).for_each(|(p, x)| *p = *p * x);
        }
        all
    }

    fn iterate(&mut self) -> f64 {
        let (rank, order) = (self.rank, self.factors.len());
        let mut inner = Double::default();
        for mode in 0..order {
            let mut sums = vec![Double::default(); self.factors[mode].len()];
            for (at, value) in self.tensor.rows() {
                for r in 0..rank {
                    let others = (0..order).filter(|&m| m != mode);
                    let number = |m: usize| self.factors[m][at[m] as usize * rank + r];
                    let product = others.fold(Double::from(value), |p, m| p * number(m));
                    let sum = &mut sums[at[mode] as usize * rank + r];
                    *sum = *sum + product;
                }
            }
            let factor = factored(self.hadamard(|m| m != mode), rank);
            let mut new = sums.clone();
            new.chunks_exact_mut(rank).for_each(|row| solve(&factor, row));
            inner = sums.iter().zip(&new).fold(Double::default(), |sum, (m, a)| sum + *m * *a);
            self.factors[mode] = new;
        }
        let model = self.hadamard(|_| true).into_iter().fold(Double::default(), |sum, x| sum + x);
        let square = self
            .tensor
            .values
            .iter()
            .fold(Double::default(), |sum, &x| sum + Double::from(x) * Double::from(x));
        let residual = square + model - inner - inner;
        1.0 - (residual.high.max(0.0) / square.high).sqrt()
    }
}

/// `L D L^T` of a symmetric matrix, in place: below the diagonal L, on it D.
fn factored(mut a: Vec<Double>, n: usize) -> Vec<Double> {
    for k in 0..n {
        for i in k + 1..n {
            let by = a[i * n + k] / a[k * n + k];
            for j in k + 1..=i {
                a[i * n + j] = a[i * n + j] - by * a[j * n + k];
            }
        }
        for i in k + 1..n {
            a[i * n + k] = a[i * n + k] / a[k * n + k];
        }
    }
    a
}

fn solve(factor: &[Double], x: &mut [Double]) {
    let n = x.len();
    for i in 0..n {
        x[i] = (0..i).fold(x[i], |sum, k| sum - factor[i * n + k] * x[k]);
    }
    for i in 0..n {
        x[i] = x[i] / factor[i * n + i];
    }
    for i in (0..n).rev() {
        x[i] = (i + 1..n).fold(x[i], |sum, k| sum - factor[k * n + i] * x[k]);
    }
}

/// The largest condition, and the largest difference of fits of the same iteration.
fn worst(history: &[Iteration], fits: &[f64]) -> (f64, f64) {
    assert_eq!(history.len(), fits.len());
    let condition = history.iter().map(|i| i.condition).fold(0.0, f64::max);
    (condition, history.iter().zip(fits).map(|(i, fit)| (i.fit - fit).abs()).fold(0.0, f64::max))
}

fn supports() -> (usize, [usize; 6], usize) {
    if large() { (16, [2, 5, 4, 7, 7, 4], 10) } else { (6, [2, 4, 3, 5, 5, 3], 4) }
}

/// Within 1e-6 up to condition 1e13, at which Gram matrices in f64 lose up to 1e-4.
#[test]
fn f64_has_the_fits_of_twice_the_digits() {
    let (rank, support, iterations) = supports();
    for cancel in [false, true] {
        for (distance, least) in [(1e-2, 1e3), (1e-4, 1e7), (1e-5, 1e9), (1e-6, 1e11), (3e-7, 1e12)] {
            let planted = Planted::new(&DIMS, rank, &support, distance, cancel);
            let (_dir, store) = store_of(&planted.tensor);
            let wanted = Reference::fits(&planted.tensor, &planted.factors, iterations);
            let got = history(&store, &planted.wide(), plain(rank), iterations);
            let (condition, off) = worst(&got, &wanted);
            eprintln!("distance {distance:e}, cancel {cancel}: condition {condition:.1e}, off by {off:.1e}");
            assert!(condition > least && off < 1e-6, "{distance:e} {cancel}: {condition:e}, {off:e}");
            assert!(got.iter().all(|i| i.pseudo_inverses == 0));
        }
    }
}

/// Within 1e-5. A pseudo-inverse at f32's condition lost 3e-4 and more.
#[test]
fn f32_has_the_fits_of_f64() {
    let (rank, support, iterations) = supports();
    for (distance, least) in [(1e-2, 1e3), (1e-3, 1e5), (1e-4, 1e7), (1e-5, 1e9), (1e-6, 1e11), (3e-7, 1e12)]
    {
        let planted = Planted::new(&DIMS, rank, &support, distance, false);
        let (_dir, store) = store_of(&planted.tensor);
        let wide = history(&store, &planted.wide(), plain(rank), iterations);
        let wanted: Vec<f64> = wide.iter().map(|i| i.fit).collect();
        let got = history(&store, &planted.factors, plain(rank), iterations);
        let (condition, off) = worst(&got, &wanted);
        eprintln!("distance {distance:e}: condition {condition:.1e}, off by {off:.1e}");
        assert!(condition > least && off < 1e-5, "{distance:e}: {condition:e}, {off:e}");
        assert!(got.iter().all(|i| i.pseudo_inverses == 0));
    }
}

/// Within 1e-5 on real tensors too.
#[test]
fn f32_has_the_fits_of_f64_on_real_tensors() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if !large() || !data.exists() {
        eprintln!("skipped: BLCO_LARGE is not set, or there is no shared data");
        return;
    }
    for name in ["uber-aprjun2014-4d", "darpa-midas-src-dst-minute", "kg-icews14-subj-rel-obj-time"] {
        let path = data.join(format!("{name}.tns.zst"));
        let mut reader = TnsReader::open(&Sys::default(), &path, ReadOptions::default()).unwrap();
        let (_dir, store) = store_of(&Tensor::read(&mut reader).unwrap());
        for rank in [4, 16, 64] {
            let of = |iterations: usize| {
                let shape = &store.manifest().shape;
                let narrow = seeded_factors::<f32>(&Sys::default(), shape, rank, 1).unwrap();
                let wide: Vec<_> = narrow.iter().map(widened).collect();
                let wide = history(&store, &wide, plain(rank), iterations);
                (history(&store, &narrow, plain(rank), iterations), wide)
            };
            let (got, wanted) = of(15);
            let fits: Vec<f64> = wanted.iter().map(|i| i.fit).collect();
            let (condition, off) = worst(&got, &fits);
            eprintln!("{name}, rank {rank}: condition {condition:.1e}, off by {off:.1e}");
            assert!(off < 1e-5, "{name}, rank {rank}: {condition:e}, {off:e}");
        }
    }
}

/// If values have signs and factors do not, components vanish in the first update and come back. From some starts, a last bit decides how: two
/// runs on one machine with one order of additions end differently. So do two backends.
#[test]
fn nonneg_iterations_amplify_a_last_bit() {
    let (nnz, iterations) = if large() { (200_000, 15) } else { (20_000, 3) };
    let tensor = Tensor::random(&[3, 3, 34, 4157], nnz, 9, crate::common::values::fraction);
    let (_dir, store) = store_of(&tensor);
    let settings = Settings { rank: 33, ridge: 0.0, nonneg: true };
    let mut furthest: f64 = 0.0;
    for seed in 1..=6 {
        let start = seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, 33, seed).unwrap();
        let mut other = start.clone();
        for factor in &mut other {
            factor.data_mut().iter_mut().for_each(|x| *x = x.next_up());
        }
        let both = [start, other].map(|start| history(&store, &start, settings, iterations));
        let apart: Vec<f64> = both[0].iter().zip(&both[1]).map(|(a, b)| (a.fit - b.fit).abs()).collect();
        let most = apart.iter().copied().fold(0.0, f64::max);
        eprintln!("seed {seed}: apart {:.1e} at first, then up to {most:.1e}", apart[0]);
        assert!(apart[0] < 1e-12, "{apart:?}");
        furthest = furthest.max(most);
        if furthest > 1e-6 && !large() {
            break;
        }
    }
    assert!(furthest > 1e-6, "{furthest:e}");
}
