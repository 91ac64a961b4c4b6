//! Sorting nonzeros again, by another linear index.

use super::budget::{BATCH_NNZ, Budget};
use super::runs::{Runs, SortedRuns};
use super::scratch::ScratchDir;
use super::sort::sort;
use crate::coo::{Batch, Extent};
use crate::error::Result;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::Sys;
use rayon::prelude::*;
use std::path::Path;

/// Hands over all of `sorted` in pieces: memory may hold all of them in one slice.
pub fn for_each_piece<K: Key>(
    sys: &Sys,
    sorted: &SortedRuns<K>,
    reading: Budget,
    mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()> + Send,
) -> Result<()> {
    sorted.for_each_slice_within(reading, |slice| {
        slice.chunks(reading.piece_nnz::<K>()).try_for_each(|piece| {
            sys.check_cancelled()?;
            sink(piece)
        })
    })
}

/// Sorts nonzeros that are known by one layout by another.
pub struct Resort<K> {
    linearizer: Linearizer<K>,
    order: usize,
    runs: Runs<K>,
    nnz: u64,
}

impl<K: Key> Resort<K> {
    /// From the linear index of `from` to that of `to`, with files in `parent`.
    pub fn new(sys: &Sys, parent: &Path, budget: Budget, from: &BitLayout, to: &BitLayout) -> Self {
        let runs = Runs::new(sys, budget, ScratchDir::passing(sys, parent), to);
        Self { linearizer: Linearizer::new(from), order: from.order(), runs, nnz: 0 }
    }

    /// Takes the next nonzeros.
    pub fn push(&mut self, nonzeros: &[Nonzero<K>]) -> Result<()> {
        self.nnz += nonzeros.len() as u64;
        let batch = |nonzeros: &[Nonzero<K>]| gather(&self.linearizer, self.order, nonzeros);
        let batches: Vec<Batch> = nonzeros.par_chunks(BATCH_NNZ).map(batch).collect();
        batches.into_iter().try_for_each(|batch| self.runs.push(batch))
    }

    /// All of them, sorted.
    pub fn finish(mut self) -> Result<SortedRuns<K>> {
        // Their dims are known to be those of the shape.
        self.runs.drained(&Extent { dims: Vec::new(), nnz: self.nnz })?;
        self.runs.sort()
    }
}

fn gather<K: Key>(linearizer: &Linearizer<K>, order: usize, nonzeros: &[Nonzero<K>]) -> Batch {
    let mut indices = Vec::with_capacity(nonzeros.len() * order);
    for nonzero in nonzeros {
        indices.extend_from_slice(&linearizer.gather(nonzero.linear)[..order]);
    }
    Batch { indices, values: nonzeros.iter().map(|nonzero| nonzero.value).collect() }
}

/// Sorts `nonzeros`, which are sorted by `from`, by `to`.
pub fn rekey<K: Key>(nonzeros: &mut [Nonzero<K>], from: &BitLayout, to: &BitLayout) {
    let (from, to, order) = (Linearizer::<K>::new(from), Linearizer::<K>::new(to), to.order());
    nonzeros.par_iter_mut().for_each(|nonzero| {
        nonzero.linear = to.scatter(&from.gather(nonzero.linear)[..order]);
    });
    sort(nonzeros);
}
