//! SpTTM of any store: the packer's runs sort its nonzeros by fiber.

use super::Delivered;
use super::fiber_rows::FiberRows;
use super::tile_rows::{Nonzeros, coordinates};
use crate::backend::host::{HostOp, Tiles};
use crate::coo::Batch;
use crate::dense::Real;
use crate::error::Result;
use crate::format::tree::FiberTile;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::op::rows_of;
use crate::pack::{ExternalSum, SpillReport};
use crate::shape::{ModeOrder, Shape};
use crate::sys::Sys;
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;

/// The operation while nonzeros arrive. `K` holds their linear index.
#[derive(Debug)]
pub struct Sorted<K> {
    mode: usize,
    shape: Shape,
    layout: BitLayout,
    nonzeros: ExternalSum<K>,
}

/// The layout for sorting nonzeros: the modes except `mode`, ascending, then `mode`.
#[must_use]
pub fn layout(shape: &Shape, mode: usize) -> BitLayout {
    let modes: Vec<usize> = (0..shape.order()).filter(|&m| m != mode).chain([mode]).collect();
    BitLayout::concatenated(shape, &ModeOrder::new(&modes).expect("modes of a shape, each once"))
}

impl<K: Key> Sorted<K> {
    /// SpTTM along `mode`, from 0, of a tensor of `shape` with at most `nnz` nonzeros. They take at most `memory`
    /// bytes; the rest goes to files in a directory in `temporary`. Runs on the current rayon pool.
    #[must_use]
    pub fn new(sys: &Sys, (shape, nnz): (&Shape, u64), mode: usize, memory: u64, temporary: &Path) -> Self {
        let layout = layout(shape, mode);
        let nonzeros = ExternalSum::new(sys, &layout, nnz, memory, temporary);
        Self { mode, shape: shape.clone(), layout, nonzeros }
    }

    /// Computes the fibers after all nonzeros have arrived. Returns their number and whether they are finite, and what was written to files. Values
    /// with equal coordinates are added up first, in f64.
    pub fn finish<T: Real>(self, mut rows: FiberRows<'_, '_, T>) -> Result<(Delivered, SpillReport)> {
        let Self { mode, shape, layout, nonzeros } = self;
        let linearizer = Linearizer::<K>::new(&layout);
        let spilled = nonzeros.finish(|sorted| {
            rows.put(sorted.len(), &SortedNonzeros { sorted, linearizer: &linearizer, shape: &shape, mode })
        })?;
        Ok((rows.finish()?, spilled))
    }
}

/// Nonzeros with their linear index, ascending.
struct SortedNonzeros<'a, K> {
    sorted: &'a [Nonzero<K>],
    linearizer: &'a Linearizer<K>,
    shape: &'a Shape,
    mode: usize,
}

impl<K: Key> Nonzeros for SortedNonzeros<'_, K> {
    type Recent = ();

    #[inline(always)]
    fn fill(&self, range: Range<usize>, (): &mut (), tile: &mut FiberTile) -> Result<()> {
        let (order, leaf_bits) = (self.shape.order(), self.shape.bits(self.mode));
        (tile.nnz, tile.fibers) = (range.len(), 0);
        let mut before = None;
        for (i, nonzero) in (0u16..).zip(&self.sorted[range]) {
            let linear = nonzero.linear.widen();
            let fiber = linear >> leaf_bits;
            if before.replace(fiber) != Some(fiber) {
                let at = coordinates(self.linearizer, nonzero.linear);
                tile.starts[tile.fibers] = i;
                let others = (0..order).filter(|&m| m != self.mode);
                tile.indices.iter_mut().zip(others).for_each(|(column, m)| column[tile.fibers] = at[m]);
                tile.fibers += 1;
            }
            #[expect(clippy::cast_possible_truncation, reason = "an index has at most 32 bits")]
            let leaf = (linear ^ (fiber << leaf_bits)) as u32;
            tile.leaves[usize::from(i)] = leaf;
            tile.values[usize::from(i)] = nonzero.value;
        }
        Ok(())
    }
}

impl<K: Key> HostOp for Sorted<K> {
    fn batch(&mut self, tiles: &Tiles<'_>) -> Result<()> {
        let batch = |t: usize| {
            let tile = tiles.tile(t);
            Batch { indices: rows_of(&tile), values: tile.values.to_vec() }
        };
        let batches: Vec<Batch> = (0..tiles.tiles()).into_par_iter().map(batch).collect();
        batches.into_iter().try_for_each(|batch| self.nonzeros.push(batch))
    }
}
