//! The size of a tensor in the formats that the HOCFS paper compares (Li et al., TKDD 2019, section 5 and Tables 4 to
//! 6), in its units: stored numbers of any width.
//!
//! As in those tables, "mode n" is the mode that TTV contracts. Fibers run along it; slices are those of the next mode
//! (for the last mode, the first).

use crate::backend::host::{HostOp, Tiles, computing_bytes};
use crate::coo::Batch;
use crate::error::Result;
use crate::linear::{BitLayout, Key, Linearizer};
use crate::pack::ExternalSum;
use crate::shape::{ModeOrder, Shape};
use crate::sys::Sys;
use rayon::prelude::*;
use serde::Serialize;
use std::path::Path;

/// Units of one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StorageUnits {
    /// The contracted mode, from 1.
    pub mode: usize,
    /// The mode of the slices, from 1.
    pub main_mode: usize,
    /// Nonempty slices.
    pub slices: u64,
    /// Nonempty fibers.
    pub fibers: u64,
    /// Coordinates: every index of every nonzero, and the value.
    pub hocoo: u64,
    /// A pointer per row of the unfolded tensor, empty rows included, and an index and a value per nonzero; `None` if
    /// that exceeds 2^64.
    pub hocsr: Option<u64>,
    /// A number and a length per fiber, an index and a value per nonzero.
    pub cfb: u64,
    /// An index and a count per node of each level, an index and a value per nonzero.
    pub hocfs: u64,
}

impl StorageUnits {
    /// The units of a tensor of `nnz` nonzeros and these `dims` if `mode`, from 0, is contracted. `nodes` has the
    /// nodes of each level above the leaves, slices first and fibers last.
    #[must_use]
    pub fn new(dims: &[u32], nnz: u64, mode: usize, nodes: &[u64]) -> Self {
        let others = dims.iter().enumerate().filter(|&(m, _)| m != mode);
        let rows = others.map(|(_, &dim)| u64::from(dim)).try_fold(1u64, u64::checked_mul);
        let fibers = nodes.last().copied().unwrap_or(0);
        Self {
            mode: mode + 1,
            main_mode: (mode + 1) % dims.len() + 1,
            slices: nodes.first().copied().unwrap_or(0),
            fibers,
            hocoo: (dims.len() as u64 + 1) * nnz,
            hocsr: rows.and_then(|rows| rows.checked_add(2 * nnz)),
            cfb: 2 * fibers + 2 * nnz,
            hocfs: 2 * nodes.iter().sum::<u64>() + 2 * nnz,
        }
    }
}

/// Counts the nodes of every level for every mode. `K` holds the linear index.
#[derive(Debug)]
pub struct Storage<K> {
    shape: Shape,
    nnz: u64,
    counters: Vec<LevelCounts<K>>,
}

/// The levels of one mode.
#[derive(Debug)]
struct LevelCounts<K> {
    mode: usize,
    layout: BitLayout,
    /// The modes of the levels above the leaves.
    levels: Vec<usize>,
    sum: ExternalSum<K>,
}

impl<K: Key> Storage<K> {
    /// A counter of `modes` for tensors of `shape` with at most `nnz` nonzeros. It uses at most `memory` bytes; the
    /// rest goes to files in directories in `temporary`. Runs on the current rayon pool.
    #[must_use]
    pub fn new(
        sys: &Sys,
        (shape, nnz): (&Shape, u64),
        modes: &[usize],
        memory: u64,
        temporary: &Path,
    ) -> Self {
        let (order, memory) = (shape.order(), memory / modes.len().max(1) as u64);
        let counter = |mode: usize| {
            let levels: Vec<usize> = (1..order).map(|at| (mode + at) % order).collect();
            let modes = ModeOrder::new(&levels).expect("modes of a shape, each once");
            let layout = BitLayout::concatenated(shape, &modes);
            let sum = ExternalSum::new(sys, &layout, nnz, memory, temporary);
            LevelCounts { mode, layout, levels, sum }
        };
        Self { shape: shape.clone(), nnz: 0, counters: modes.iter().copied().map(counter).collect() }
    }

    /// Bytes of memory besides its sums, on `threads` threads.
    #[must_use]
    pub fn kept_bytes(threads: usize) -> u64 {
        computing_bytes(threads)
    }

    /// The units for each of its modes.
    pub fn finish(self) -> Result<Vec<StorageUnits>> {
        let Self { shape, nnz, counters } = self;
        let units = |counter: LevelCounts<K>| {
            Ok(StorageUnits::new(shape.dims(), nnz, counter.mode, &counter.finish()?))
        };
        counters.into_iter().map(units).collect()
    }
}

impl<K: Key> LevelCounts<K> {
    /// The nodes of each level. A node begins where the indices of its level and those above differ from the
    /// previous nonzero's.
    fn finish(self) -> Result<Vec<u64>> {
        let Self { layout, levels, sum, .. } = self;
        let linearizer = Linearizer::<K>::new(&layout);
        let mut nodes = vec![0; levels.len()];
        let mut last = None;
        sum.finish(|fibers| {
            for fiber in fibers {
                let at = linearizer.gather(fiber.linear);
                let same = |last: [u32; 8]| levels.iter().take_while(|&&m| at[m] == last[m]).count();
                let first = last.replace(at).map_or(0, same);
                nodes[first..].iter_mut().for_each(|n| *n += 1);
            }
            Ok(())
        })?;
        Ok(nodes)
    }
}

impl<K: Key> HostOp for Storage<K> {
    fn batch(&mut self, tiles: &Tiles<'_>) -> Result<()> {
        let order = self.shape.order();
        let nnz = (0..tiles.tiles()).map(|t| tiles.tile(t).nnz).sum();
        let mut batch = Batch { indices: vec![0; nnz * order], values: vec![0.0; nnz] };
        let mut rest = &mut batch.indices[..];
        let parts = (0..tiles.tiles())
            .map(|t| rest.split_off_mut(..tiles.tile(t).nnz * order).expect("a part of it"));
        let parts: Vec<&mut [u32]> = parts.collect();
        parts.into_par_iter().enumerate().for_each(|(t, part)| {
            let tile = tiles.tile(t);
            for (i, at) in part.chunks_exact_mut(order).enumerate() {
                at.iter_mut().enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
            }
        });
        self.nnz += nnz as u64;
        let Some((last, others)) = self.counters.split_last_mut() else { return Ok(()) };
        others.iter_mut().try_for_each(|counter| counter.sum.push(batch.clone()))?;
        last.sum.push(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with rows of Tables 4 to 6, from the dims, nonzeros, slices and fibers printed there.
    #[test]
    fn units_are_those_of_the_papers_tables() {
        let first = [71_534, 65_133, 60];
        let rows = [
            (first, 855_598, 0, [10_109, 165_687], [3_422_392, 5_619_176, 2_042_570, 2_062_788]),
            (first, 855_598, 1, [60, 27_567], [3_422_392, 6_003_236, 1_766_330, 1_766_450]),
            (first, 855_598, 2, [2113, 855_598], [3_422_392, 4_660_935_218, 3_422_392, 3_426_618]),
            ([2100, 18_745, 60], 186_479, 0, [12_523, 13_788], [745_916, 1_497_658, 400_534, 425_580]),
        ];
        for (dims, nnz, mode, nodes, [hocoo, hocsr, cfb, hocfs]) in rows {
            let units = StorageUnits::new(&dims, nnz, mode, &nodes);
            assert_eq!((units.mode, units.main_mode), (mode + 1, (mode + 1) % 3 + 1));
            assert_eq!((units.hocoo, units.hocsr), (hocoo, Some(hocsr)), "mode {}", mode + 1);
            assert_eq!((units.cfb, units.hocfs), (cfb, hocfs), "mode {}", mode + 1);
        }
        assert_eq!(StorageUnits::new(&[u32::MAX; 4], 1, 0, &[1, 1, 1]).hocsr, None);
    }
}
