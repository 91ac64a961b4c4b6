//! The oracle: MTTKRP and SpTTMc by their definitions, one nonzero after the other in f64, directly from a source of
//! coordinates. It shares no code with stores, decoding or kernels, and everything is compared with it.
//!
//! The bound of the comparison is derived, not chosen. A result may differ from the oracle's by
//! `roundoff * (order + 2 + L) * S + (order + 1) * row nnz * least`, where S is the same sum over absolute values and L the longest chain of
//! additions in the precision of the result: for f64, the row's nonzeros; for f32, whose longer sums are in f64,
//! `chain + row nnz * 2^-29` with the `chain` that the backend states. That bounds the result's own rounding errors. The
//! oracle's errors, at worst as large in f64, get no allowance, so the check is stricter than the worst case.
//!
//! The second term is for subnormal numbers, where each rounding can be off by half of the smallest positive number,
//! `least`. Sums of subnormal numbers are exact. Rounded are each nonzero's value, its `order - 1` products and, once,
//! the row: at most `order + 1` roundings per nonzero. The oracle's roundings take the other half. The error of a
//! product must not grow: later factors above one in magnitude, which seeded ones are not, get no allowance.

use crate::coo::Source;
use crate::dense::{Matrix, Precision, Real};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::sys::Sys;
use serde::Serialize;

/// MTTKRP of one mode, with the sums for the bound.
#[derive(Debug)]
pub struct OracleMode {
    mode: usize,
    sums: Vec<f64>,
    absolute: Vec<f64>,
    row_nnz: Vec<u64>,
}

/// How a result compares with the oracle's.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The mode, from 1.
    pub mode: usize,
    /// The largest error relative to its bound: at most 1 for a correct result.
    pub worst: f64,
    /// The largest error.
    pub largest_error: f64,
    /// Whether every element is within its bound.
    pub holds: bool,
}

impl Comparison {
    /// Adds a number with this `error` and `bound`.
    pub(super) fn add(&mut self, error: f64, bound: f64) {
        let error = error.abs();
        // A NaN compares false and so fails.
        self.holds &= error <= bound;
        self.largest_error = self.largest_error.max(error);
        self.worst = self.worst.max(if error == 0.0 { 0.0 } else { error / bound });
        if error.is_nan() {
            self.worst = f64::INFINITY;
        }
    }
}

/// Bytes of memory of the oracle of `modes`.
#[must_use]
pub fn host_bytes(shape: &Shape, modes: &[usize], rank: usize) -> u64 {
    modes.iter().map(|&m| mode_bytes(shape, m, rank)).sum()
}

/// The same for `mode`, with `width` numbers per row.
fn mode_bytes(shape: &Shape, mode: usize, width: usize) -> u64 {
    let row = (2 * size_of::<f64>() as u64).saturating_mul(width as u64) + size_of::<u64>() as u64;
    u64::from(shape.dims()[mode]).saturating_mul(row)
}

/// Bytes of memory of the oracle of SpTTMc of `modes` with factors of these ranks.
#[must_use]
pub fn ttmc_bytes(shape: &Shape, modes: &[usize], ranks: &[usize]) -> u64 {
    modes.iter().map(|&m| mode_bytes(shape, m, kronecker_width(ranks, m))).fold(0, u64::saturating_add)
}

/// Numbers of a row of SpTTMc's result for `mode`: the product of the other modes' ranks.
fn kronecker_width(ranks: &[usize], mode: usize) -> usize {
    let others = ranks.iter().enumerate().filter(|&(m, _)| m != mode);
    others.fold(1, |width, (_, &rank)| width.saturating_mul(rank))
}

/// Computes MTTKRP of `modes` by the definition. The source's dims must be those of the factors.
pub fn mttkrp<T: Real>(
    source: &mut dyn Source,
    factors: &[Matrix<T>],
    modes: &[usize],
) -> Result<Vec<OracleMode>> {
    let rank = factors[0].columns();
    let product = |value: f64, at: &[u32], mode: usize, r: usize| {
        let others = (0..factors.len()).filter(|&m| m != mode);
        others.fold(value, |p, m| p * factors[m].row(at[m] as usize)[r].widen())
    };
    drain(source, factors, modes, |_| rank, product)
}

/// Computes SpTTMc of `modes` by the definition (Liu et al., CLUSTER 2017, equation 4). The numbers of a row enumerate
/// columns of the other modes' factors; the last mode varies fastest.
pub fn ttmc<T: Real>(
    source: &mut dyn Source,
    factors: &[Matrix<T>],
    modes: &[usize],
) -> Result<Vec<OracleMode>> {
    let ranks: Vec<usize> = factors.iter().map(Matrix::columns).collect();
    let product = |value: f64, at: &[u32], mode: usize, r: usize| {
        let (mut product, mut left) = (value, r);
        for m in (0..factors.len()).rev().filter(|&m| m != mode) {
            product *= factors[m].row(at[m] as usize)[left % ranks[m]].widen();
            left /= ranks[m];
        }
        product
    };
    drain(source, factors, modes, |mode| kronecker_width(&ranks, mode), product)
}

/// Adds up the contribution of each nonzero to its row of `width` numbers, for each of `modes`. `product` computes it
/// from the value, the coordinates, the mode and the number of an element.
fn drain<T: Real>(
    source: &mut dyn Source,
    factors: &[Matrix<T>],
    modes: &[usize],
    width: impl Fn(usize) -> usize,
    product: impl Fn(f64, &[u32], usize, usize) -> f64,
) -> Result<Vec<OracleMode>> {
    let order = factors.len();
    // A separate handle: injected failures do not reach it, but a lack of memory is an error.
    let sys = Sys::default();
    let start = |&mode: &usize| {
        let (rows, width) = (factors[mode].rows(), width(mode));
        let (sums, absolute) = (sys.vec(0.0, rows * width)?, sys.vec(0.0, rows * width)?);
        Ok(OracleMode { mode, sums, absolute, row_nnz: sys.vec(0, rows)? })
    };
    let mut results: Vec<OracleMode> = modes.iter().map(start).collect::<Result<_>>()?;
    let name = source.name();
    source.drain(&mut |batch| {
        if batch.indices.len() != order * batch.values.len() {
            return Err(Error::input(&name, format!("is not of order {order}, as the store is")));
        }
        for (at, &value) in batch.indices.chunks_exact(order).zip(&batch.values) {
            if let Some(mode) = (0..order).find(|&m| at[m] as usize >= factors[m].rows()) {
                let what = format!("index {} of mode {} is outside the store's dims", at[mode] + 1, mode + 1);
                return Err(Error::input(&name, what));
            }
            for result in &mut results {
                let (row, width) = (at[result.mode] as usize, width(result.mode));
                result.row_nnz[row] += 1;
                for r in 0..width {
                    let product = product(value, at, result.mode, r);
                    result.sums[row * width + r] += product;
                    result.absolute[row * width + r] += product.abs();
                }
            }
        }
        Ok(())
    })?;
    Ok(results)
}

impl OracleMode {
    /// The mode, from 0.
    #[must_use]
    pub fn mode(&self) -> usize {
        self.mode
    }

    /// Compares a result with this one. `order` is the tensor's, `chain` the longest chain of additions in f32,
    /// which is 1 on the host.
    ///
    /// # Panics If the shapes differ.
    #[must_use]
    pub fn compare<T: Real>(&self, result: &Matrix<T>, order: usize, chain: u32) -> Comparison {
        assert_eq!(result.data().len(), self.sums.len(), "a result has the oracle's shape");
        let rank = result.columns();
        let mut comparison = Comparison { mode: self.mode + 1, worst: 0.0, largest_error: 0.0, holds: true };
        for (i, (&got, (&sum, &absolute))) in
            result.data().iter().zip(self.sums.iter().zip(&self.absolute)).enumerate()
        {
            let (nnz, order) = (self.row_nnz[i / rank] as f64, order as f64);
            let chain = match T::PRECISION {
                Precision::F64 => nnz,
                Precision::F32 => f64::from(chain) + nnz / f64::from(1u32 << 29),
            };
            let subnormal = (order + 1.0) * nnz * T::LEAST;
            let bound = T::ROUNDOFF * (order + 2.0 + chain) * absolute + subnormal;
            comparison.add(got.widen() - sum, bound);
        }
        comparison
    }
}
