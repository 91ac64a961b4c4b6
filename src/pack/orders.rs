//! The nonzeros of a tensor in one sort order after the other, for stores of several partitions.
//!
//! Nonzeros in memory are sorted again in place. Spilled ones stay in their runs in the first order and are sorted from
//! these into other runs, one order at a time. The input is read once.

use super::budget::Budget;
use super::runs::{Runs, SortedRuns};
use super::scratch::{ScratchDir, SpillReport};
use super::sort::sort;
use crate::coo::{Batch, Extent};
use crate::error::{Error, Result};
use crate::format::mmcsf::{Assign, Assigner, Fibers};
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::Sys;
use bytesize::ByteSize;
use rayon::prelude::*;
use std::path::PathBuf;

/// Nonzeros of a batch that is sorted again.
const BATCH_NNZ: usize = 1 << 16;

/// All nonzeros, duplicates too, in one order at a time.
pub struct Orders<K> {
    sys: Sys,
    budget: Budget,
    /// Where temporary files go.
    parent: PathBuf,
    /// As they came, or in memory in the order of `layout`.
    sorted: SortedRuns<K>,
    layout: BitLayout,
    /// In another order.
    again: Option<(BitLayout, SortedRuns<K>)>,
    /// The leaf mode of each nonzero, in the order of `layout`, where they are assigned to one.
    leaves: Vec<u8>,
    spilled: SpillReport,
}

impl<K: Key> Orders<K> {
    /// Of nonzeros that are `sorted` by `layout`.
    pub fn new(
        sys: &Sys,
        budget: Budget,
        parent: PathBuf,
        sorted: SortedRuns<K>,
        layout: &BitLayout,
    ) -> Self {
        let spilled = sorted.spilled();
        Self {
            sys: sys.clone(),
            budget,
            parent,
            sorted,
            layout: layout.clone(),
            again: None,
            leaves: Vec::new(),
            spilled,
        }
    }

    /// What went to disk so far.
    pub fn spilled(&self) -> SpillReport {
        self.spilled
    }

    /// All nonzeros in the order of `layout`.
    pub fn by(&mut self, layout: &BitLayout) -> Result<&SortedRuns<K>> {
        if self.layout == *layout {
            self.again = None;
            return Ok(&self.sorted);
        }
        if let SortedRuns::InMemory(nonzeros) = &mut self.sorted {
            rekey(nonzeros, &self.layout, layout);
            self.layout = layout.clone();
            return Ok(&self.sorted);
        }
        if self.again.as_ref().is_none_or(|(other, _)| other != layout) {
            // Room for the next one.
            self.again = None;
            let sorted = self.sort_again(layout)?;
            let SpillReport { bytes, bytes_peak, .. } = sorted.spilled();
            self.spilled.bytes += bytes;
            self.spilled.bytes_peak =
                self.spilled.bytes_peak.max(self.sorted.spilled().bytes_peak + bytes_peak);
            self.again = Some((layout.clone(), sorted));
        }
        Ok(self.again.as_ref().map_or(&self.sorted, |(_, sorted)| sorted))
    }

    /// Assigns every nonzero, of `total`, to a leaf mode, in the order in which they are sorted now. `by_leaf` holds for each mode
    /// a layout in which its bits are lowest. Returns how many there are; none are assigned if that is not `total`.
    pub fn assign(&mut self, assign: Assign, by_leaf: &[BitLayout], total: u64) -> Result<u64> {
        let (reading, counting) = self.halves();
        let takes = assigning_bytes::<K>(by_leaf.len(), total);
        if total > u32::MAX.into() {
            return Err(Error::request(format!("format mmcsf takes at most {} nonzeros", u32::MAX)));
        }
        if takes > counting.assigning() {
            // What is spilled leaves half of the memory.
            let shares = if matches!(self.sorted, SortedRuns::InMemory(_)) { 1 } else { 2 };
            return Err(too_much_to_assign(takes, counting.lacks(takes).saturating_mul(shares)));
        }
        let nnz = usize::try_from(total).unwrap_or(usize::MAX);
        let mut come = 0;
        // The value of each is its number.
        let mut numbered: Vec<Nonzero<K>> = Vec::new();
        self.sys.reserve(&mut numbered, nnz, nnz)?;
        self.sorted.for_each_slice_within(reading, |slice| {
            self.sys.check_cancelled()?;
            let from = numbered.len();
            come += slice.len() as u64;
            if come > total {
                return Ok(());
            }
            let number =
                |(at, nonzero): (usize, &Nonzero<K>)| Nonzero { value: (from + at) as f64, ..*nonzero };
            numbered.par_extend(slice.par_iter().enumerate().map(number));
            Ok(())
        })?;
        if come != total {
            return Ok(come);
        }
        let mut layout = &self.layout;
        let mut fibers = Vec::with_capacity(by_leaf.len());
        for (mode, by_leaf) in by_leaf.iter().enumerate() {
            self.sys.check_cancelled()?;
            rekey(&mut numbered, layout, by_leaf);
            layout = by_leaf;
            let leaf_bits = by_leaf.bit_modes().iter().filter(|of| usize::from(**of) == mode).count();
            fibers.push(Fibers::of(&numbered, u32::try_from(leaf_bits).unwrap_or(u32::MAX)));
        }
        drop(numbered);
        let mut assigner = Assigner::new(assign, fibers);
        let mut leaves = Vec::new();
        self.sys.reserve(&mut leaves, nnz, nnz)?;
        for from in (0..nnz).step_by(BATCH_NNZ) {
            self.sys.check_cancelled()?;
            assigner.choose(from..nnz.min(from + BATCH_NNZ), &mut leaves);
        }
        self.leaves = leaves;
        Ok(come)
    }

    /// The nonzeros that are assigned to a leaf mode, in the order of `layout`; the others are forgotten until the next one is asked for.
    pub fn assigned(&mut self, layout: &BitLayout, leaf: usize) -> Result<&SortedRuns<K>> {
        self.again = None;
        let sorted = self.sort_some(layout, Some(leaf))?;
        let SpillReport { bytes, bytes_peak, .. } = sorted.spilled();
        self.spilled.bytes += bytes;
        self.spilled.bytes_peak = self.spilled.bytes_peak.max(self.sorted.spilled().bytes_peak + bytes_peak);
        Ok(&self.again.insert((layout.clone(), sorted)).1)
    }

    /// Budgets for reading what is sorted, and for what is made of it meanwhile.
    fn halves(&self) -> (Budget, Budget) {
        let left = self.budget.beside(self.leaves.len() as u64);
        match &self.sorted {
            // Nothing is taken to read it.
            SortedRuns::InMemory(nonzeros) => {
                let left = left.beside(size_of_val(&nonzeros[..]) as u64);
                (left, left)
            }
            SortedRuns::Runs(_) => left.shared(),
        }
    }

    /// Sorts what was spilled by `layout`.
    fn sort_again(&self, layout: &BitLayout) -> Result<SortedRuns<K>> {
        self.sort_some(layout, None)
    }

    /// Sorts by `layout` what is assigned to a leaf mode, or all.
    fn sort_some(&self, layout: &BitLayout, leaf: Option<usize>) -> Result<SortedRuns<K>> {
        let (reading, sorting) = self.halves();
        let scratch = ScratchDir::passing(&self.sys, &self.parent);
        let mut runs = Runs::new(&self.sys, sorting, scratch, layout);
        let linearizer = Linearizer::<K>::new(&self.layout);
        let (order, mut nnz, mut at) = (self.layout.order(), 0, 0);
        self.sorted.for_each_slice_within(reading, |slice| {
            // Memory may hold all of them in one slice.
            for slice in slice.chunks(BATCH_NNZ * rayon::current_num_threads()) {
                self.sys.check_cancelled()?;
                let leaves = self.leaves.get(at..at + slice.len()).unwrap_or_default();
                at += slice.len();
                let batch = |(number, nonzeros): (usize, &[Nonzero<K>])| match leaf {
                    None => gather(&linearizer, order, nonzeros),
                    Some(leaf) => {
                        let leaves = &leaves[number * BATCH_NNZ..];
                        let own = nonzeros.iter().zip(leaves).filter(|(_, of)| usize::from(**of) == leaf);
                        let own: Vec<Nonzero<K>> = own.map(|(nonzero, _)| *nonzero).collect();
                        gather(&linearizer, order, &own)
                    }
                };
                let batches: Vec<Batch> = slice.par_chunks(BATCH_NNZ).enumerate().map(batch).collect();
                nnz += batches.iter().map(|batch| batch.nnz() as u64).sum::<u64>();
                batches.into_iter().filter(|batch| batch.nnz() > 0).try_for_each(|batch| runs.push(batch))?;
            }
            Ok(())
        })?;
        // Their dims are known to be those of the shape.
        runs.drained(&Extent { dims: Vec::new(), nnz })?;
        runs.sort()
    }
}

/// Bytes that assigning `nnz` nonzeros of `order` modes takes.
fn assigning_bytes<K>(order: usize, nnz: u64) -> u64 {
    let each = size_of::<Nonzero<K>>() as u64 + 1;
    (order as u64).saturating_mul(Fibers::host_bytes(nnz)).saturating_add(nnz.saturating_mul(each))
}

/// The error where assigning nonzeros takes so much that `memory` would have to be larger by `more`.
fn too_much_to_assign(takes: u64, more: u64) -> Error {
    let (takes, more) = (ByteSize(takes), ByteSize::mib((more >> 20) + 1));
    let what = format!("takes {takes} of `memory`; give {more} more");
    Error::request(format!("assigning nonzeros by the lengths of their fibers {what}"))
}

fn gather<K: Key>(linearizer: &Linearizer<K>, order: usize, nonzeros: &[Nonzero<K>]) -> Batch {
    let mut indices = Vec::with_capacity(nonzeros.len() * order);
    for nonzero in nonzeros {
        indices.extend_from_slice(&linearizer.gather(nonzero.linear)[..order]);
    }
    Batch { indices, values: nonzeros.iter().map(|nonzero| nonzero.value).collect() }
}

/// Sorts `nonzeros`, which are sorted by `from`, by `to`.
fn rekey<K: Key>(nonzeros: &mut [Nonzero<K>], from: &BitLayout, to: &BitLayout) {
    let (from, to, order) = (Linearizer::<K>::new(from), Linearizer::<K>::new(to), to.order());
    nonzeros.par_iter_mut().for_each(|nonzero| {
        nonzero.linear = to.scatter(&from.gather(nonzero.linear)[..order]);
    });
    sort(nonzeros);
}
