//! TTV along all modes of any store: a number.

use super::{Along, check_finite, values_times};
use crate::backend::host::{HostOp, Tiles};
use crate::coo::Batch;
use crate::dense::Real;
use crate::error::Result;
use crate::op::inner::SharedSum;
use rayon::prelude::*;

/// The operation.
#[derive(Debug)]
pub struct Scalar<'a, T> {
    along: Vec<Along<'a, T>>,
    sum: SharedSum,
}

impl<'a, T: Real> Scalar<'a, T> {
    /// TTV along all modes of a tensor. Runs on the current rayon pool.
    #[must_use]
    pub fn new(along: &[Along<'a, T>]) -> Self {
        Self { along: along.to_vec(), sum: SharedSum::new() }
    }

    /// The sum of all products, rounded to `T`.
    ///
    /// # Errors
    ///
    /// If the sum or a product overflows.
    pub fn finish(self) -> Result<f64> {
        let sum = T::nearest(self.sum.total()).widen();
        check_finite(&Batch { indices: Vec::new(), values: vec![sum] }, 0).map(|()| sum)
    }
}

impl<T: Real> HostOp for Scalar<'_, T> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let Self { along, sum } = self;
        let add = |t: usize| sum.add(values_times(&batch.tile(t), along).map(Real::widen));
        (0..batch.tiles()).into_par_iter().for_each(add);
        Ok(())
    }
}
