//! SpTTMc, a sparse tensor times a chain of matrices (Liu et al., CLUSTER 2017, equation 4): for mode m, `Y[i_m, :] +=
//! value * A_1[i_1, :] (x) ... (x) A_n[i_n, :]`, the Kronecker product over the modes except m, for every nonzero.
//! `A_k` is `dims[k]` x `ranks[k]`; `Y` is `dims[m]` x the product of the other ranks, with the last mode's rank
//! fastest. HOOI, the iteration of the Tucker decomposition, computes it for each mode.
//!
//! Rows are long, so each has one writer: nonzeros are sorted to their rows by the lists of MTTKRP
//! ([`crate::op::mttkrp`]), in stretches cut by position in the store. Neighbors in a list that differ in one mode only
//! are added up before the product: a row of that mode's rank holds their sum, which is multiplied once by the rows
//! that they share. Trees, whose fibers are contiguous, gain most.
//!
//! **Order of additions.** Each row gets its lists' sums in order, as in MTTKRP. Products and sums are in f64 whatever
//! the factors are in. Results depend only on the store's nonzeros, the factors and the precision: not on threads,
//! workers, chunks or the other modes computed.

mod kronecker;

use crate::backend::host::{HostOp, Tiles, Vectors, computing_bytes};
use crate::dense::{Matrix, MatrixRef, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::lists::Stretch;
use crate::store::{Manifest, Store};
use kronecker::Kronecker;
use rayon::prelude::*;

/// SpTTMc of some modes.
#[derive(Debug)]
pub struct Ttmc<'a, T> {
    factors: Vec<MatrixRef<'a, T>>,
    /// Each mode, from 0, with its growing result.
    results: Vec<(usize, Vec<f64>)>,
    stretch: Stretch,
    vectors: Vectors,
}

/// Numbers per row of the result for `mode`: the product of the other modes' ranks; `None` on overflow.
#[must_use]
pub fn width(ranks: &[usize], mode: usize) -> Option<usize> {
    let others = ranks.iter().enumerate().filter(|&(m, _)| m != mode);
    others.map(|(_, &rank)| rank).try_fold(1usize, usize::checked_mul).filter(|&width| width < 1 << 40)
}

/// The widest row of the results for `modes`.
fn widest(ranks: &[usize], modes: &[usize]) -> Option<usize> {
    modes.iter().map(|&mode| width(ranks, mode)).try_fold(1, |widest, width| Some(widest.max(width?)))
}

/// Bytes of factors of these ranks, and of results for `modes`.
#[must_use]
pub fn matrices_bytes<T: Real>(manifest: &Manifest, modes: &[usize], ranks: &[usize]) -> u64 {
    let matrix = |mode: usize, width: usize, element: usize| {
        u64::from(manifest.shape.dims()[mode]).saturating_mul(width as u64).saturating_mul(element as u64)
    };
    let factors = ranks.iter().enumerate().map(|(mode, &rank)| matrix(mode, rank, size_of::<T>()));
    // Sums in f64 are rounded at the end.
    let element = if size_of::<T>() == size_of::<f64>() { 8 } else { 8 + size_of::<T>() };
    let results = modes.iter().map(|&mode| matrix(mode, width(ranks, mode).unwrap_or(usize::MAX), element));
    factors.chain(results).fold(0, u64::saturating_add)
}

/// Bytes of SpTTMc of `modes` on `threads` threads, factors and results included.
#[must_use]
pub fn host_bytes<T: Real>(manifest: &Manifest, modes: &[usize], ranks: &[usize], threads: usize) -> u64 {
    let order = manifest.shape.order();
    let Some(widest) = widest(ranks, modes) else { return u64::MAX };
    let lists = Stretch::bytes(order, manifest.nnz, widest);
    let scratch = (Kronecker::<T>::scratch_bytes(ranks, widest) * threads) as u64;
    let room = lists.saturating_add(scratch).saturating_add(computing_bytes(threads));
    matrices_bytes::<T>(manifest, modes, ranks).saturating_add(room)
}

impl<'a, T: Real> Ttmc<'a, T> {
    /// SpTTMc of `modes`, from 0. `factors[m]` is `dims[m]` x a rank of its own. Runs on the current rayon pool.
    pub fn new(store: &Store, factors: &[MatrixRef<'a, T>], modes: &[usize]) -> Result<Self> {
        let (sys, manifest) = (store.sys(), store.manifest());
        let ranks: Vec<usize> = factors.iter().map(MatrixRef::columns).collect();
        let too_wide = || Error::request(format!("ranks {ranks:?} make rows that no memory holds"));
        let zeros = |&mode: &usize| {
            let width = width(&ranks, mode).ok_or_else(too_wide)?;
            let numbers = (manifest.shape.dims()[mode] as usize).checked_mul(width).ok_or_else(too_wide)?;
            Ok((mode, sys.par_vec(numbers, |_| 0.0)?))
        };
        let results = modes.iter().map(zeros).collect::<Result<_>>()?;
        let widest = widest(&ranks, modes).ok_or_else(too_wide)?;
        let stretch = Stretch::new(sys, factors.len(), manifest.nnz, widest)?;
        Ok(Self { factors: factors.to_vec(), results, stretch, vectors: Vectors::Widest })
    }

    /// The same with narrower vector instructions; results are the same.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors;
        self
    }

    /// Zeroes the results before another pass.
    pub fn reset(&mut self) {
        self.stretch.clear();
        for (_, sums) in &mut self.results {
            sums.par_iter_mut().for_each(|sum| *sum = 0.0);
        }
    }

    /// Adds the contributions of the waiting nonzeros.
    fn add(&mut self) {
        let product = Kronecker { factors: &self.factors, vectors: self.vectors.arch() };
        for (mode, sums) in &mut self.results {
            self.stretch.add(*mode, product, sums);
        }
        self.stretch.clear();
    }

    /// The results with their modes.
    #[must_use]
    pub fn finish(self) -> Vec<(usize, Matrix<T>)> {
        let matrix = |(mode, sums): (usize, Vec<f64>)| {
            let rows = self.factors[mode].rows();
            (mode, Matrix::from_rows(rows, sums.len() / rows, T::from_f64s(sums)))
        };
        self.results.into_iter().map(matrix).collect()
    }
}

impl<T: Real> HostOp for Ttmc<'_, T> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let mut from = 0;
        while from < batch.tiles() {
            let (next, is_whole) = self.stretch.take(batch, from);
            from = next;
            if is_whole {
                self.add();
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.add();
        Ok(())
    }
}
