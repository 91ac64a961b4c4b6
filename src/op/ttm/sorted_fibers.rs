//! SpTTM of a tree whose leaves are the mode, whatever the order of the modes above. Its nonzeros come fiber by fiber, so they stay
//! where they are and the fibers are sorted.

use super::fiber_rows::FiberRows;
use super::sorted::layout;
use super::tile_rows::Nonzeros;
use crate::backend::host::{HostOp, Tiles, Vectors};
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::{FiberTile, TreeView};
use crate::linear::{Key, Linearizer};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use crate::store::Manifest;
use crate::sys::Sys;
use rayon::prelude::*;
use rdst::{RadixKey, RadixSort};
use std::ops::Range;

/// Nonzeros of a block.
const BLOCK_NNZ: usize = 1 << 15;
/// Bytes of a nonzero.
const NONZERO_BYTES: u64 = 12;

/// A fiber.
#[derive(Clone, Copy, Debug)]
struct Fiber<K> {
    /// The linear index of its nonzero with index 0.
    linear: K,
    /// The place of its first nonzero.
    first: u64,
    /// How many there are; once fibers are sorted, how many there are up to its last.
    nnz: u64,
}

/// Radix by the bytes of the linear index.
impl<K: Key> RadixKey for Fiber<K> {
    const LEVELS: usize = K::BYTES;

    #[inline]
    fn get_level(&self, level: usize) -> u8 {
        self.linear.byte(level)
    }
}

/// Consecutive nonzeros, and their fibers.
#[derive(Debug, Default)]
struct Block<K> {
    leaves: Vec<u32>,
    values: Vec<f64>,
    fibers: Vec<Fiber<K>>,
    /// Whether a fiber has nonzeros that do not ascend: coordinates repeat.
    repeats: bool,
}

/// The operation while nonzeros arrive. `K` holds their linear index.
#[derive(Debug)]
pub struct SortedFibers<K> {
    sys: Sys,
    mode: usize,
    order: usize,
    linearizer: Linearizer<K>,
    /// All but the last are full.
    blocks: Vec<Block<K>>,
}

/// Bytes that it holds for a store of one tree, besides what [`FiberRows`] does; none if the number of fibers is not known.
#[must_use]
pub fn sorted_fibers_bytes<K: Key>(manifest: &Manifest) -> Option<u64> {
    let fibers = fibers_of(manifest)?;
    let nonzeros = manifest.nnz.div_ceil(BLOCK_NNZ as u64).saturating_mul(BLOCK_NNZ as u64 * NONZERO_BYTES);
    // Lists grow to twice what they hold; after that, all fibers are in one list and sorted.
    Some(nonzeros.saturating_add(fibers.saturating_mul(2 * size_of::<Fiber<K>>() as u64)))
}

/// Fibers along the leaf mode of a store of one tree, if its manifest says.
#[must_use]
pub fn fibers_of(manifest: &Manifest) -> Option<u64> {
    let [partition] = &manifest.partitions[..] else { return None };
    let nodes = partition.statistics.as_ref()?.nodes;
    Some(nodes[manifest.shape.order() - 2]).filter(|&fibers| fibers > 0)
}

impl<K: Key> SortedFibers<K> {
    /// SpTTM along `mode`, from 0, the leaf mode of the trees of a tensor of `shape`. Runs on the current rayon pool.
    #[must_use]
    pub fn new(sys: &Sys, shape: &Shape, mode: usize) -> Self {
        let linearizer = Linearizer::new(&layout(shape, mode));
        Self { sys: sys.clone(), mode, order: shape.order(), linearizer, blocks: Vec::new() }
    }

    /// Computes the fibers after all nonzeros have arrived. Returns their number. Values with equal coordinates are added up
    /// first, in f64.
    pub fn finish<T: Real>(mut self, mut rows: FiberRows<'_, '_, T>) -> Result<u64> {
        let mut repeats = self.blocks.iter().any(|block| block.repeats);
        let mut fibers: Vec<Fiber<K>> = Vec::new();
        let count = self.blocks.iter().map(|block| block.fibers.len()).sum();
        self.sys.reserve(&mut fibers, count, count)?;
        let mut last_leaf = None;
        for block in &mut self.blocks {
            let mut more = std::mem::take(&mut block.fibers).into_iter();
            // A fiber may go on in the next block.
            match (fibers.last_mut(), more.as_slice().first()) {
                (Some(open), Some(next)) if open.linear == next.linear => {
                    open.nnz += next.nnz;
                    repeats |= last_leaf >= block.leaves.first().copied();
                    more.next();
                }
                _ => {}
            }
            fibers.extend(more);
            last_leaf = block.leaves.last().copied();
        }
        if repeats {
            for fiber in &mut fibers {
                self.add_up(fiber);
            }
        }
        fibers.radix_sort_builder().with_low_mem_tuner().sort();
        let mut nnz = 0;
        for fiber in &mut fibers {
            nnz += fiber.nnz;
            fiber.nnz = nnz;
        }
        let Self { mode, order, linearizer, blocks, .. } = self;
        let nonzeros =
            FibersInOrder { blocks, fibers, linearizer, others: (0..order).filter(|&m| m != mode).collect() };
        rows.put(usize::try_from(nnz).expect("they are in memory"), &nonzeros)?;
        rows.finish()
    }

    /// Adds up values of a fiber with equal coordinates, as [`Sorted`](super::Sorted) does.
    fn add_up(&mut self, fiber: &mut Fiber<K>) {
        let place = |at: u64| {
            let at = usize::try_from(at).expect("in memory");
            (at / BLOCK_NNZ, at % BLOCK_NNZ)
        };
        let end = fiber.first + fiber.nnz;
        let (mut from, mut to, mut equal) = (fiber.first, fiber.first, Vec::new());
        while from < end {
            equal.clear();
            let (block, at) = place(from);
            let leaf = self.blocks[block].leaves[at];
            while from < end {
                let (block, at) = place(from);
                let Block { leaves, values, .. } = &self.blocks[block];
                if leaves[at] != leaf {
                    break;
                }
                equal.push(values[at]);
                from += 1;
            }
            equal.sort_unstable_by(f64::total_cmp);
            let (block, at) = place(to);
            self.blocks[block].leaves[at] = leaf;
            self.blocks[block].values[at] = equal[1..].iter().fold(equal[0], |sum, value| sum + value);
            to += 1;
        }
        fiber.nnz = to - fiber.first;
    }

    /// Adds nonzeros `range` of a chunk to a block, whose first nonzero has place `first`.
    fn fill(&self, block: &mut Block<K>, first: u64, view: &TreeView<'_>, range: Range<usize>) -> Result<()> {
        let nnz = block.leaves.len() + range.len();
        self.sys.reserve(&mut block.leaves, nnz, nnz)?;
        self.sys.reserve(&mut block.values, nnz, nnz)?;
        let (mut tile, arch) = (Box::<FiberTile>::default(), Vectors::Widest.arch());
        let mut from = range.start;
        while from < range.end {
            let to = range.end.min((from / TILE_NNZ + 1) * TILE_NNZ);
            arch.dispatch(Decode { view, positions: from..to, tile: &mut tile })?;
            self.append(block, first, view.levels(), &tile);
            from = to;
        }
        Ok(())
    }

    fn append(&self, block: &mut Block<K>, first: u64, levels: &ModeOrder, tile: &FiberTile) {
        let (leaves, starts) = (&tile.leaves[..tile.nnz], &tile.starts[..tile.fibers]);
        let falls = |pair: &[u32]| pair[0] >= pair[1];
        let mut fallen = leaves.windows(2).filter(|pair| falls(pair)).count();
        let before = block.leaves.len();
        let mut at = [0; ORDER_MAX];
        for (f, &start) in starts.iter().enumerate() {
            let start = usize::from(start);
            let end = starts.get(f + 1).map_or(tile.nnz, |&end| end.into());
            for (level, column) in tile.indices[..self.order - 1].iter().enumerate() {
                at[levels.mode(level)] = column[f];
            }
            let linear = self.linearizer.scatter(&at[..self.order]);
            let nnz = (end - start) as u64;
            if f > 0 {
                fallen -= usize::from(falls(&leaves[start - 1..=start]));
            } else if let Some(open) = block.fibers.last_mut().filter(|open| open.linear == linear) {
                open.nnz += nnz;
                block.repeats |= block.leaves.last() >= leaves.first();
                continue;
            }
            block.fibers.push(Fiber { linear, first: first + (before + start) as u64, nnz });
        }
        block.repeats |= fallen > 0;
        block.leaves.extend_from_slice(leaves);
        block.values.extend_from_slice(&tile.values[..tile.nnz]);
    }
}

/// Decodes nonzeros, compiled for the machine's vectors.
struct Decode<'a, 'v> {
    view: &'a TreeView<'v>,
    positions: Range<usize>,
    tile: &'a mut FiberTile,
}

impl pulp::WithSimd for Decode<'_, '_> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        self.view.fibers(self.positions, self.tile)
    }
}

impl<K: Key> HostOp for SortedFibers<K> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        let view = chunk.tree().ok_or_else(|| Error::request("fibers are sorted by those of trees alone"))?;
        // The last block may have room.
        let last = self.blocks.pop_if(|block| block.leaves.len() < BLOCK_NNZ).unwrap_or_default();
        let filled = last.leaves.len();
        let blocks = (filled + view.nnz()).div_ceil(BLOCK_NNZ);
        let mut of_chunk: Vec<Block<K>> = std::iter::once(last).collect();
        of_chunk.resize_with(blocks, Block::default);
        let before = self.blocks.len();
        of_chunk.par_iter_mut().enumerate().try_for_each(|(b, block)| {
            let place = |place: usize| place.saturating_sub(filled).min(view.nnz());
            let range = place(b * BLOCK_NNZ)..place((b + 1) * BLOCK_NNZ);
            self.fill(block, ((before + b) * BLOCK_NNZ) as u64, view, range)
        })?;
        self.blocks.append(&mut of_chunk);
        Ok(())
    }

    fn takes_tiles(&self) -> bool {
        false
    }

    fn batch(&mut self, _: &Tiles<'_>) -> Result<()> {
        Ok(())
    }
}

/// All fibers, ascending.
struct FibersInOrder<K> {
    blocks: Vec<Block<K>>,
    fibers: Vec<Fiber<K>>,
    linearizer: Linearizer<K>,
    /// The other modes.
    others: Vec<usize>,
}

impl<K: Key> Nonzeros for FibersInOrder<K> {
    #[inline(always)]
    fn fill(&self, range: Range<usize>, tile: &mut FiberTile) -> Result<()> {
        (tile.nnz, tile.fibers) = (0, 0);
        let mut at = range.start as u64;
        let end = range.end as u64;
        let first = self.fibers.partition_point(|fiber| fiber.nnz <= at);
        let mut begins = first.checked_sub(1).map_or(0, |before| self.fibers[before].nnz);
        for fiber in &self.fibers[first..] {
            if at >= end {
                break;
            }
            let indices = self.linearizer.gather(fiber.linear);
            let columns = tile.indices.iter_mut().zip(&self.others);
            columns.for_each(|(column, &mode)| column[tile.fibers] = indices[mode]);
            #[expect(clippy::cast_possible_truncation, reason = "less than a tile")]
            let start = tile.nnz as u16;
            tile.starts[tile.fibers] = start;
            tile.fibers += 1;
            let place = fiber.first + (at - begins);
            self.copy(place..place + fiber.nnz.min(end) - at, tile);
            (at, begins) = (fiber.nnz.min(end), fiber.nnz);
        }
        Ok(())
    }
}

impl<K: Key> FibersInOrder<K> {
    /// Appends the nonzeros in these places.
    #[inline(always)]
    fn copy(&self, places: Range<u64>, tile: &mut FiberTile) {
        #[expect(clippy::cast_possible_truncation, reason = "places in memory")]
        let (mut from, end) = (places.start as usize, places.end as usize);
        while from < end {
            let (block, at) = (&self.blocks[from / BLOCK_NNZ], from % BLOCK_NNZ);
            let nnz = (end - from).min(BLOCK_NNZ - at);
            let to = tile.nnz..tile.nnz + nnz;
            tile.leaves[to.clone()].copy_from_slice(&block.leaves[at..at + nnz]);
            tile.values[to].copy_from_slice(&block.values[at..at + nnz]);
            (from, tile.nnz) = (from + nnz, tile.nnz + nnz);
        }
    }
}
