//! The oracle: MTTKRP by the definition, one nonzero after the other in f64, straight from a source of
//! coordinates. It shares nothing with stores, decoding or kernels; everything is compared with it.
//!
//! The comparison's bound is derived, not chosen: a result may differ from the oracle's by
//! `roundoff * (order + 2 + L) * S + (order + 1) * row nnz * least`, where S is the same sum over absolute values and L the
//! longest chain of additions in the precision of the result: the row's nonzeros for f64; for f32, whose longer sums are in
//! f64, `chain + row nnz * 2^-29`, with the `chain` that the backend states. That is what the result's own roundings can add
//! up to; the oracle's, at worst as many again in f64, get no allowance, which makes the check stricter than the worst case.
//!
//! The second term is for subnormal numbers, where a rounding errs by up to half of the least positive one, `least`, however
//! small the number is. Sums of subnormal numbers are exact; what is rounded is each nonzero's value, its `order - 1`
//! products and, once, the row: at most `order + 1` roundings a nonzero. As many of the oracle's take the other half. What
//! a product has lost is not allowed to grow: later factors above one in magnitude, which seeded ones are not, get nothing.

use crate::coo::Source;
use crate::dense::{Matrix, Precision, Real};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::sys::Sys;
use serde::Serialize;

/// MTTKRP of one mode with what the bound needs.
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
    /// The largest error relative to its bound: at most 1 where the result is right.
    pub worst: f64,
    /// The largest error.
    pub largest_error: f64,
    /// Whether every element is within its bound.
    pub holds: bool,
}

/// Bytes that the oracle of `modes` holds.
#[must_use]
pub fn host_bytes(shape: &Shape, modes: &[usize], rank: usize) -> u64 {
    let row = (2 * size_of::<f64>() * rank + size_of::<u64>()) as u64;
    modes.iter().map(|&m| u64::from(shape.dims()[m]) * row).sum()
}

/// Computes MTTKRP of `modes` by the definition. The source's dims must be those of the factors.
pub fn mttkrp<T: Real>(
    source: &mut dyn Source,
    factors: &[Matrix<T>],
    modes: &[usize],
) -> Result<Vec<OracleMode>> {
    let (order, rank) = (factors.len(), factors[0].columns());
    // A handle of its own: no order to fail reaches it, but too little memory is an error.
    let sys = Sys::default();
    let start = |&mode: &usize| {
        let rows = factors[mode].rows();
        let (sums, absolute) = (sys.vec(0.0, rows * rank)?, sys.vec(0.0, rows * rank)?);
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
                let row = at[result.mode] as usize;
                result.row_nnz[row] += 1;
                for r in 0..rank {
                    let others = (0..order).filter(|&m| m != result.mode);
                    let product =
                        others.fold(value, |p, m| p * factors[m].data()[at[m] as usize * rank + r].widen());
                    result.sums[row * rank + r] += product;
                    result.absolute[row * rank + r] += product.abs();
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

    /// Compares a result with this one. `order` is the tensor's, `chain` the longest chain of additions in f32: 1 on
    /// the host.
    ///
    /// # Panics
    /// If the shapes differ.
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
            let error = (got.widen() - sum).abs();
            // A NaN compares false and so fails.
            comparison.holds &= error <= bound;
            comparison.largest_error = comparison.largest_error.max(error);
            comparison.worst = comparison.worst.max(if error == 0.0 { 0.0 } else { error / bound });
            if error.is_nan() {
                comparison.worst = f64::INFINITY;
            }
        }
        comparison
    }
}
