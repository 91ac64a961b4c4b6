//! The nonzeros of a tensor in one sort order after the other, for stores of several partitions.
//!
//! Nonzeros in memory are sorted again in place. Spilled ones stay in their runs in the first order and are sorted from
//! these into other runs, one order at a time. The input is read once.

use super::PackWatch;
use super::budget::Budget;
use super::leaves::{Assigning, Leaves};
use super::resort::{Resort, for_each_piece, rekey};
use super::runs::SortedRuns;
use super::scratch::SpillReport;
use crate::error::{Error, Result};
use crate::format::mmcsf::Assign;
use crate::linear::{BitLayout, Key, Nonzero};
use crate::sys::Sys;
use rayon::prelude::*;
use std::path::PathBuf;

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
    /// The leaf modes, in the order of `layout`, where nonzeros are assigned to one.
    leaves: Leaves,
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
            leaves: Leaves::default(),
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
            let sorted = self.sort_some(layout, None)?;
            self.spilled.add(self.sorted.spilled(), sorted.spilled());
            self.again = Some((layout.clone(), sorted));
        }
        Ok(self.again.as_ref().map_or(&self.sorted, |(_, sorted)| sorted))
    }

    /// Assigns every nonzero, of `total`, to a leaf mode, in the order in which they are sorted now. `by_leaf` holds for each mode
    /// a layout in which its bits are lowest. Returns how many there are; none are assigned if that is not `total`.
    pub fn assign(
        &mut self,
        assign: Assign,
        by_leaf: &[BitLayout],
        total: u64,
        watch: PackWatch<'_>,
    ) -> Result<u64> {
        let (reading, counting) = self.halves();
        let (sys, sorted, layout) = (&self.sys, &self.sorted, &self.layout);
        let assigning = Assigning { sys, sorted, layout, by_leaf, total };
        let takes = assigning.bytes();
        let (come, leaves) = if assigning.is_countable() && takes <= counting.assigning(assign) {
            assigning.in_memory(assign, reading)?
        } else if assign != Assign::Dynamic {
            let (come, leaves, spilled) = assigning.by_sorting(&self.parent, counting.half(), watch)?;
            self.spilled.add(self.sorted.spilled(), spilled);
            (come, leaves)
        } else if assigning.is_countable() {
            // What is spilled leaves half of the memory.
            let shares = if matches!(self.sorted, SortedRuns::InMemory(_)) { 1 } else { 2 };
            return Err(assigning.too_much(counting.lacks(takes).saturating_mul(shares)));
        } else {
            let most = u32::MAX;
            let what = format!("assigns at most {most} nonzeros by what is left of their fibers");
            return Err(Error::request(format!("format mmcsf {what}; choose `assign` static")));
        };
        self.leaves = leaves;
        Ok(come)
    }

    /// The nonzeros that are assigned to a leaf mode, in the order of `layout`; the others are forgotten until the next one is asked for.
    pub fn assigned(&mut self, layout: &BitLayout, leaf: usize) -> Result<&SortedRuns<K>> {
        self.again = None;
        let sorted = self.sort_some(layout, Some(leaf))?;
        let mut beside = self.sorted.spilled();
        beside.bytes_peak += self.leaves.spilled().bytes_peak;
        self.spilled.add(beside, sorted.spilled());
        Ok(&self.again.insert((layout.clone(), sorted)).1)
    }

    /// Budgets for reading what is sorted, and for what is made of it meanwhile.
    fn halves(&self) -> (Budget, Budget) {
        let left = self.budget.beside(self.leaves.bytes());
        match &self.sorted {
            // Nothing is taken to read it.
            SortedRuns::InMemory(nonzeros) => {
                let left = left.beside(size_of_val(&nonzeros[..]) as u64);
                (left, left)
            }
            SortedRuns::Runs(_) => left.shared(),
        }
    }

    /// Sorts by `layout` what is assigned to a leaf mode, or all.
    fn sort_some(&self, layout: &BitLayout, leaf: Option<usize>) -> Result<SortedRuns<K>> {
        let (reading, sorting) = self.halves();
        let mut sort = Resort::new(&self.sys, &self.parent, sorting, &self.layout, layout);
        let mut leaves = self.leaves.read::<K>()?;
        for_each_piece(&self.sys, &self.sorted, reading, |piece| {
            let Some(leaf) = leaf else { return sort.push(piece) };
            let of_piece = piece.par_iter().zip(leaves.next(piece)?);
            let own: Vec<Nonzero<K>> =
                of_piece.filter(|(_, of)| usize::from(**of) == leaf).map(|(nonzero, _)| *nonzero).collect();
            sort.push(&own)
        })?;
        sort.finish()
    }
}
