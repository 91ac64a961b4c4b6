//! Sorting: batches in, nonzeros in linear order out. All in memory for now; this is the seam that spilled
//! runs and a merge will fill.

use crate::coo::Batch;
use crate::error::Result;
use super::sort::sort;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::Sys;
use rayon::prelude::*;

/// Batches as they came, before the shape is known.
#[derive(Debug, Default)]
pub struct Runs {
    batches: Vec<Batch>,
    nnz: u64,
}

impl Runs {
    /// Takes a batch.
    pub fn push(&mut self, batch: Batch) {
        self.nnz += batch.nnz() as u64;
        self.batches.push(batch);
    }

    /// Nonzeros so far.
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// Linearizes and sorts by linear index, then by the total order of the values, so that the order of
    /// the input leaves no trace.
    pub fn sort<K: Key>(self, sys: &Sys, layout: &BitLayout) -> Result<Sorted<K>> {
        let linearizer = Linearizer::<K>::new(layout);
        let order = layout.order();
        let total: usize = self.batches.iter().map(Batch::nnz).sum();
        let mut nonzeros = sys.vec(Nonzero { linear: K::default(), value: 0.0 }, total)?;
        let mut rest = &mut nonzeros[..];
        let mut targets = Vec::with_capacity(self.batches.len());
        for batch in self.batches {
            let (target, behind) = std::mem::take(&mut rest).split_at_mut(batch.nnz());
            targets.push((batch, target));
            rest = behind;
        }
        targets.into_par_iter().for_each(|(batch, target)| {
            let rows = batch.indices.chunks_exact(order).zip(&batch.values);
            for (nonzero, (row, &value)) in target.iter_mut().zip(rows) {
                *nonzero = Nonzero { linear: linearizer.scatter(row), value };
            }
        });
        sort(&mut nonzeros);
        Ok(Sorted { nonzeros })
    }
}

/// Nonzeros in linear order.
#[derive(Debug)]
pub struct Sorted<K> {
    nonzeros: Vec<Nonzero<K>>,
}

impl<K: Key> Sorted<K> {
    /// Hands over all nonzeros in order, in slices of bounded length.
    pub fn for_each_slice(&self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        const SLICE_NNZ: usize = 1 << 17;
        self.nonzeros.chunks(SLICE_NNZ).try_for_each(&mut sink)
    }
}
