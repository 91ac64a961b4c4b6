//! Sums by coordinates within a memory budget: the packer's runs and its rule for duplicates, without a store.

use super::SpillReport;
use super::budget::Budget;
use super::combine::Combiner;
use super::runs::Runs;
use super::scratch::ScratchDir;
use crate::coo::{Batch, Extent};
use crate::error::Result;
use crate::format::PENDING_NNZ;
use crate::linear::{BitLayout, Key, Nonzero, Wide};
use crate::shape::Shape;
use crate::sys::Sys;
use std::path::Path;

/// A run, at least.
const RUN_BYTES_MIN: u64 = 8 << 20;
/// Slices of merged runs whose duplicates are settled, and what each thread that sorts and merges scratches on.
const SLICES_BYTES: u64 = 8 << 20;
const THREAD_BYTES: u64 = 384 << 10;
/// Slices where no runs are merged.
const UNMERGED_BYTES: u64 = 3 << 20;

/// What a [`ExternalSum`]'s memory depends on.
#[derive(Clone, Copy, Debug)]
pub struct ExternalSumMemory {
    /// Values that come, at most.
    pub nnz: u64,
    /// The tensor's order.
    pub order: usize,
    /// Bytes of a value with its linear index.
    pub nonzero_bytes: u64,
    /// Threads of the pool on which it runs.
    pub threads: usize,
}

impl ExternalSumMemory {
    /// Of `nnz` values of tensors of `shape` at most, on `threads` threads.
    #[must_use]
    pub fn new(shape: &Shape, nnz: u64, threads: usize) -> Self {
        if shape.linear_bits() <= u64::BITS {
            Self::by::<u64>(shape.order(), nnz, threads)
        } else {
            Self::by::<Wide>(shape.order(), nnz, threads)
        }
    }

    fn by<K>(order: usize, nnz: u64, threads: usize) -> Self {
        Self { nnz, order, nonzero_bytes: size_of::<Nonzero<K>>() as u64, threads }
    }

    /// Bytes of the batches that come: those of what waits to be linearized are a part of the run.
    fn batches(&self) -> u64 {
        2 * (PENDING_NNZ as u64).min(self.nnz) * (4 * self.order as u64 + 8)
    }

    /// Bytes of what merged runs come through.
    fn slices(&self) -> u64 {
        SLICES_BYTES + THREAD_BYTES * self.threads as u64
    }

    /// Bytes of all values and of their scratch.
    fn values(&self) -> u64 {
        // A run is three quarters of what there is for one.
        (self.nnz.saturating_mul(self.nonzero_bytes) / 3).saturating_mul(4).saturating_add(1 << 10)
    }

    /// Bytes with which no runs are written.
    fn unmerged(&self) -> u64 {
        self.values().saturating_add(self.batches().max(UNMERGED_BYTES))
    }

    /// Bytes that serve: with less it takes as much.
    #[must_use]
    pub fn least(&self) -> u64 {
        (self.slices().max(self.batches()) + RUN_BYTES_MIN).min(self.unmerged())
    }

    /// Bytes, of `memory`, that it takes while values come, and afterwards.
    #[must_use]
    pub fn taken(&self, memory: u64) -> [u64; 2] {
        if memory >= self.unmerged() {
            // What sorting scratches on is not there while values come.
            return [self.values() / 4 * 3 + self.batches(), self.unmerged()];
        }
        let between = self.slices().saturating_sub(self.batches());
        [memory.saturating_sub(between), memory]
    }

    fn budget(&self, memory: u64) -> Budget {
        if memory >= self.unmerged() {
            return Budget::new(memory, self.batches().max(UNMERGED_BYTES), UNMERGED_BYTES);
        }
        Budget::new(memory, self.batches().max(self.slices()), self.slices())
    }
}

/// Adds up values that have the same coordinates.
///
/// What comes out is in the order of the layout, each sum taken in the total order of its values, starting from the
/// first: it depends neither on the order in which they came nor on the memory.
#[derive(Debug)]
pub struct ExternalSum<K> {
    sys: Sys,
    layout: BitLayout,
    runs: Runs<K>,
    nnz: u64,
}

impl<K: Key> ExternalSum<K> {
    /// A sum of at most `nnz` values by the linear index of `layout`, which `K` must hold. It takes at most `memory` bytes (less than
    /// [`ExternalSumMemory::least`] is exceeded), and writes what exceeds them to files in a private directory in `temporary`, which
    /// is made when it is needed and goes with this; what killed programs left in `temporary` goes too. Runs on the current
    /// rayon pool.
    #[must_use]
    pub fn new(sys: &Sys, layout: &BitLayout, nnz: u64, memory: u64, temporary: &Path) -> Self {
        let takes = ExternalSumMemory::by::<K>(layout.order(), nnz, rayon::current_num_threads());
        let runs = Runs::new(sys, takes.budget(memory), ScratchDir::passing(sys, temporary), layout);
        Self { sys: sys.clone(), layout: layout.clone(), runs, nnz: 0 }
    }

    /// Takes the next values, at coordinates of all the layout's modes; indices of modes that have no bits do not count.
    pub fn push(&mut self, batch: Batch) -> Result<()> {
        self.nnz += batch.nnz() as u64;
        self.runs.push(batch)
    }

    /// Hands the sums over, in order; one that exceeds all numbers is not finite.
    pub fn finish(self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()> + Send) -> Result<SpillReport> {
        let Self { sys, layout, mut runs, nnz } = self;
        runs.drained(&Extent { dims: Vec::new(), nnz })?;
        let sorted = runs.sort()?;
        let mut combiner = Combiner::of_sums(&layout);
        sorted.for_each_slice(|slice| {
            combiner.push(slice, |settled, _| {
                sys.check_cancelled()?;
                sink(settled)
            })
        })?;
        combiner.finish(sink)?;
        Ok(sorted.spilled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::ModeOrder;

    /// The same sums, to the bit, from memory and from runs, and nothing is left of those.
    #[test]
    fn sums_do_not_depend_on_memory_or_order() {
        let shape = Shape::new(&[40, 5, 300]).unwrap();
        let layout = BitLayout::concatenated(&shape, &ModeOrder::new(&[2, 0]).unwrap());
        let row = |i: u32| [i * 7 % 40, i % 5, i * 13 % 300];
        let sums = |memory, backwards: bool| {
            let dir = tempfile::tempdir().unwrap();
            let mut sum = ExternalSum::<u64>::new(&Sys::default(), &layout, 40_000, memory, dir.path());
            for part in 0..40u32 {
                let part = if backwards { 39 - part } else { part };
                let rows = part * 1000..(part + 1) * 1000;
                let indices = rows.clone().flat_map(row).collect();
                let values = rows.map(|i| f64::from(i % 17) * 0.1 - 0.7).collect();
                sum.push(Batch { indices, values }).unwrap();
            }
            let mut all = Vec::new();
            let take = |slice: &[Nonzero<u64>]| {
                all.extend(slice.iter().map(|n| (n.linear, n.value.to_bits())));
                Ok(())
            };
            let report = sum.finish(take).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
            (all, report.runs)
        };
        let (in_memory, runs) = sums(u64::MAX, false);
        assert!(runs == 0 && in_memory.len() == 600 && in_memory.is_sorted_by_key(|n| n.0));
        let (from_runs, runs) = sums(0, true);
        assert!(runs > 1 && from_runs == in_memory, "{runs} runs");
    }
}
