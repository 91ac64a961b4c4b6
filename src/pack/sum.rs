//! Sums by coordinates within a memory budget: the packer's runs and its rule for duplicates, without a store.

use super::budget::Budget;
use super::combine::Combiner;
use super::runs::{self, Runs};
use super::scratch::Scratch;
use super::{Duplicates, SpillReport};
use crate::coo::{Batch, Extent};
use crate::error::Result;
use crate::format::PENDING_NNZ;
use crate::linear::{BitLayout, Key, Nonzero};
use crate::sys::Sys;
use std::path::Path;

/// A run, at least.
const RUN_BYTES_MIN: u64 = 8 << 20;
/// Slices of nonzeros whose duplicates are settled.
const SLICES_BYTES: u64 = 10 << 20;

/// Bytes of what waits to be linearized, and of the batches of which it comes.
fn waiting_bytes(order: usize) -> u64 {
    2 * PENDING_NNZ as u64 * (4 * order as u64 + 8) + runs::PENDING_NNZ as u64 * (4 * order as u64 + 8)
}

/// Bytes that serve for a [`Summer`] of `order` modes: with less it takes as much.
#[must_use]
pub fn summer_bytes_min(order: usize) -> u64 {
    SLICES_BYTES.max(waiting_bytes(order)) + RUN_BYTES_MIN
}

/// Adds up values that have the same coordinates.
///
/// What comes out is in the order of the layout, each sum taken in the total order of its values, starting from the
/// first: it depends neither on the order in which they came nor on the memory.
#[derive(Debug)]
pub struct Summer<K> {
    sys: Sys,
    layout: BitLayout,
    runs: Runs<K>,
    nnz: u64,
}

impl<K: Key> Summer<K> {
    /// A summer by the linear index of `layout`, which `K` must hold. It takes at most `memory` bytes (less than
    /// [`summer_bytes_min`] is exceeded), and writes what exceeds them to files in a private directory in `temporary`, which
    /// is made when it is needed and goes with this; what killed programs left in `temporary` goes too. Runs on the current
    /// rayon pool.
    #[must_use]
    pub fn new(sys: &Sys, layout: &BitLayout, memory: u64, temporary: &Path) -> Self {
        let budget = Budget::new(memory, waiting_bytes(layout.order()), SLICES_BYTES);
        let runs = Runs::new(sys, budget, Scratch::passing(sys, temporary), layout);
        Self { sys: sys.clone(), layout: layout.clone(), runs, nnz: 0 }
    }

    /// Takes the next values, at coordinates of all the layout's modes; indices of modes that have no bits do not count.
    pub fn push(&mut self, batch: Batch) -> Result<()> {
        self.nnz += batch.nnz() as u64;
        self.runs.push(batch)
    }

    /// Hands the sums over, in order. An error where one is not finite.
    pub fn finish(self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()> + Send) -> Result<SpillReport> {
        let Self { sys, layout, mut runs, nnz } = self;
        runs.drained(&Extent { dims: Vec::new(), nnz })?;
        let sorted = runs.sort()?;
        let mut combiner = Combiner::new(&layout, Duplicates::Sum);
        sorted.for_each_slice(|slice| {
            slice.chunks(PENDING_NNZ).try_for_each(|part| {
                sys.check_cancelled()?;
                sink(combiner.push(part)?)
            })
        })?;
        sink(combiner.finish())?;
        Ok(sorted.spilled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{ModeOrder, Shape};

    /// The same sums, to the bit, from memory and from runs, and nothing is left of those.
    #[test]
    fn sums_do_not_depend_on_memory_or_order() {
        let shape = Shape::new(&[40, 5, 300]).unwrap();
        let layout = BitLayout::concatenated(&shape, &ModeOrder::new(&[2, 0]).unwrap());
        let row = |i: u32| [i * 7 % 40, i % 5, i * 13 % 300];
        let sums = |memory, backwards: bool| {
            let dir = tempfile::tempdir().unwrap();
            let mut summer = Summer::<u64>::new(&Sys::default(), &layout, memory, dir.path());
            for part in 0..40u32 {
                let part = if backwards { 39 - part } else { part };
                let rows = part * 1000..(part + 1) * 1000;
                let indices = rows.clone().flat_map(row).collect();
                let values = rows.map(|i| f64::from(i % 17) * 0.1 - 0.7).collect();
                summer.push(Batch { indices, values }).unwrap();
            }
            let mut all = Vec::new();
            let take = |slice: &[Nonzero<u64>]| {
                all.extend(slice.iter().map(|n| (n.linear, n.value.to_bits())));
                Ok(())
            };
            let report = summer.finish(take).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
            (all, report.runs)
        };
        let (in_memory, runs) = sums(u64::MAX, false);
        assert!(runs == 0 && in_memory.len() == 600 && in_memory.is_sorted_by_key(|n| n.0));
        let (from_runs, runs) = sums(0, true);
        assert!(runs > 1 && from_runs == in_memory, "{runs} runs");
    }
}
