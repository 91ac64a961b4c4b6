//! SpTTM of a tree whose leaves are the mode, whatever the order of the modes above. Its nonzeros come fiber by fiber, so they stay
//! where they are and the fibers are sorted. If the tree's root is the first of the other modes, that is done slice by slice while they
//! come; otherwise when all have come.

use super::fiber_rows::FiberRows;
use super::sorted::layout;
use super::tile_rows::{Nonzeros, coordinates};
use super::{Delivered, tree_of};
use crate::backend::host::{HostOp, Tiles, Vectors};
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::{FiberTile, Recent, TreeView};
use crate::linear::{Key, Linearizer};
use crate::shape::{ModeOrder, ORDER_MAX};
use crate::store::Manifest;
use crate::sys::Sys;
use rayon::prelude::*;
use rdst::{RadixKey, RadixSort};
use std::ops::Range;

/// Nonzeros that a thread takes at a time: whole tiles.
const PIECE_NNZ: usize = 1 << 15;
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

/// The fibers of consecutive nonzeros.
#[derive(Debug)]
struct Piece<K> {
    fibers: Vec<Fiber<K>>,
    /// Whether a fiber has nonzeros that do not ascend: coordinates repeat.
    repeats: bool,
}

/// The operation while nonzeros arrive. `K` holds their linear index.
pub struct SortedFibers<'a, 's, T, K> {
    sys: Sys,
    finder: FiberFinder<K>,
    /// The other modes.
    others: Vec<usize>,
    /// Whether slices are complete when the next one begins: the root is the first of the other modes.
    by_slices: bool,
    /// How many nonzeros will come.
    nnz: usize,
    /// Those that are not computed yet, the first `held` of each list: their index in the mode, and their value. Lists have room for all, so
    /// that huge pages hold long ones: making small ones be there takes longer than filling them.
    leaves: Vec<u32>,
    values: Vec<f64>,
    held: usize,
    pieces: Vec<Piece<K>>,
    rows: FiberRows<'a, 's, T>,
}

/// Bytes that it holds for a store of one tree, besides what [`FiberRows`] does; none if the number of fibers is not known.
#[must_use]
pub fn sorted_fibers_bytes<K: Key>(manifest: &Manifest) -> Option<u64> {
    let fibers = fibers_of(manifest)?;
    let nonzeros = manifest.nnz.saturating_mul(NONZERO_BYTES);
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

impl<'a, 's, T: Real, K: Key> SortedFibers<'a, 's, T, K> {
    /// SpTTM along `mode`, from 0, the leaf mode of a store of one tree. Runs on the current rayon pool.
    #[must_use]
    pub fn new(sys: &Sys, manifest: &Manifest, mode: usize, rows: FiberRows<'a, 's, T>) -> Self {
        let shape = &manifest.shape;
        let others: Vec<usize> = (0..shape.order()).filter(|&m| m != mode).collect();
        let by_slices = tree_of(manifest).is_some_and(|levels| levels.mode(0) == others[0]);
        let nnz = usize::try_from(manifest.nnz).unwrap_or(usize::MAX);
        let finder = FiberFinder { order: shape.order(), linearizer: Linearizer::new(&layout(shape, mode)) };
        let (leaves, values, pieces) = (Vec::new(), Vec::new(), Vec::new());
        Self { sys: sys.clone(), finder, others, by_slices, nnz, leaves, values, held: 0, pieces, rows }
    }

    /// Computes the fibers that are left, after all nonzeros have arrived. Returns the number of all and whether they are finite. Values with equal coordinates are
    /// added up first, in f64.
    pub fn finish(mut self) -> Result<Delivered> {
        self.compute(true)?;
        self.rows.finish()
    }

    /// Computes the fibers of complete slices, or, if there are no more nonzeros, of `all`.
    fn compute(&mut self, all: bool) -> Result<()> {
        let (mut fibers, repeats) = self.joined()?;
        let slice = |fiber: &Fiber<K>| self.finder.linearizer.gather(fiber.linear)[self.others[0]];
        let complete = match fibers.last().map(slice) {
            Some(last) if !all => fibers.partition_point(|fiber| slice(fiber) < last),
            _ => fibers.len(),
        };
        let mut open = fibers.split_off(complete);
        let end = open.first().map_or(self.held, |fiber| place(fiber.first));
        if repeats {
            for fiber in &mut fibers {
                add_up((&mut self.leaves, &mut self.values), fiber);
            }
        }
        fibers.radix_sort_builder().with_low_mem_tuner().sort();
        let mut nnz = 0;
        for fiber in &mut fibers {
            nnz += fiber.nnz;
            fiber.nnz = nnz;
        }
        let (lists, linearizer) = ((&self.leaves[..], &self.values[..]), &self.finder.linearizer);
        let nonzeros = FibersInOrder { lists, fibers: &fibers, linearizer, others: &self.others };
        self.rows.put(place(nnz), &nonzeros)?;
        self.leaves.copy_within(end..self.held, 0);
        self.values.copy_within(end..self.held, 0);
        self.held -= end;
        for fiber in &mut open {
            fiber.first -= end as u64;
        }
        self.pieces = vec![Piece { fibers: open, repeats }];
        Ok(())
    }

    /// The fibers of all pieces, and whether coordinates repeat.
    fn joined(&mut self) -> Result<(Vec<Fiber<K>>, bool)> {
        let mut repeats = self.pieces.iter().any(|piece| piece.repeats);
        let count = self.pieces.iter().map(|piece| piece.fibers.len()).sum();
        let mut pieces = std::mem::take(&mut self.pieces).into_iter();
        // A slice of many chunks is joined as often.
        let mut fibers = pieces.next().map(|piece| piece.fibers).unwrap_or_default();
        self.sys.reserve(&mut fibers, count, self.nnz.max(count))?;
        for piece in pieces {
            let mut more = piece.fibers.into_iter();
            // A fiber may go on in the next piece.
            match (fibers.last_mut(), more.as_slice().first()) {
                (Some(open), Some(next)) if open.linear == next.linear => {
                    open.nnz += next.nnz;
                    let first = place(next.first);
                    repeats |= self.leaves[first - 1] >= self.leaves[first];
                    more.next();
                }
                _ => {}
            }
            fibers.extend(more);
        }
        Ok((fibers, repeats))
    }
}

/// Adds up values of a fiber with equal coordinates, as [`Sorted`](super::Sorted) does.
fn add_up<K>((leaves, values): (&mut [u32], &mut [f64]), fiber: &mut Fiber<K>) {
    let (mut from, mut to, mut equal) = (place(fiber.first), place(fiber.first), Vec::new());
    let end = from + place(fiber.nnz);
    while from < end {
        let leaf = leaves[from];
        let more = leaves[from..end].iter().take_while(|&&other| other == leaf).count();
        equal.clear();
        equal.extend_from_slice(&values[from..from + more]);
        equal.sort_unstable_by(f64::total_cmp);
        (leaves[to], values[to]) = (leaf, equal[1..].iter().fold(equal[0], |sum, value| sum + value));
        (from, to) = (from + more, to + 1);
    }
    fiber.nnz = to as u64 - fiber.first;
}

/// Finds fibers in a chunk.
struct FiberFinder<K> {
    order: usize,
    linearizer: Linearizer<K>,
}

impl<K: Key> FiberFinder<K> {
    /// Puts nonzeros from `begin` on of a chunk into `leaves` and `values`, the first of which have place `first`.
    fn fill(
        &self,
        (leaves, values): (&mut [u32], &mut [f64]),
        first: usize,
        view: &TreeView<'_>,
        begin: usize,
    ) -> Result<Piece<K>> {
        let mut piece = Piece { fibers: Vec::new(), repeats: false };
        let (mut recent, mut tile) = (Recent::default(), Box::<FiberTile>::default());
        let arch = Vectors::Widest.arch();
        for from in (0..leaves.len()).step_by(TILE_NNZ) {
            let to = leaves.len().min(from + TILE_NNZ);
            let positions = begin + from..begin + to;
            arch.dispatch(Decode { view, positions, recent: &mut recent, tile: &mut tile })?;
            leaves[from..to].copy_from_slice(&tile.leaves[..tile.nnz]);
            values[from..to].copy_from_slice(&tile.values[..tile.nnz]);
            let before = from.checked_sub(1).map(|last| leaves[last]);
            self.append(&mut piece, before, (first + from) as u64, view.levels(), &tile);
        }
        Ok(piece)
    }

    /// Appends the fibers of a tile, whose first nonzero has place `first`; the leaf `before` it is one of the piece's, if there is one.
    fn append(
        &self,
        piece: &mut Piece<K>,
        before: Option<u32>,
        first: u64,
        levels: &ModeOrder,
        tile: &FiberTile,
    ) {
        let (leaves, starts) = (&tile.leaves[..tile.nnz], &tile.starts[..tile.fibers]);
        let falls = |pair: &[u32]| pair[0] >= pair[1];
        let mut fallen = leaves.windows(2).filter(|pair| falls(pair)).count();
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
            } else if let Some(open) = piece.fibers.last_mut().filter(|open| open.linear == linear) {
                open.nnz += nnz;
                piece.repeats |= before >= leaves.first().copied();
                continue;
            }
            piece.fibers.push(Fiber { linear, first: first + start as u64, nnz });
        }
        piece.repeats |= fallen > 0;
    }
}

/// A place or number of nonzeros, which are in memory.
fn place(of: u64) -> usize {
    usize::try_from(of).expect("in memory")
}

/// Decodes nonzeros, compiled for the machine's vectors.
struct Decode<'a, 'v> {
    view: &'a TreeView<'v>,
    positions: Range<usize>,
    recent: &'a mut Recent,
    tile: &'a mut FiberTile,
}

impl pulp::WithSimd for Decode<'_, '_> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        self.view.fibers(self.positions, self.recent, self.tile)
    }
}

impl<T: Real, K: Key> HostOp for SortedFibers<'_, '_, T, K> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        let view = chunk.tree().ok_or_else(|| Error::request("fibers are sorted by those of trees alone"))?;
        let (first, nnz) = (self.held, self.held + view.nnz());
        let most = self.nnz.max(nnz);
        self.sys.reserve(&mut self.leaves, most, most)?;
        self.sys.reserve(&mut self.values, most, most)?;
        if self.leaves.len() < nnz {
            self.leaves.resize(nnz, 0);
            self.values.resize(nnz, 0.0);
        }
        self.held = nnz;
        let (leaves, values) = (&mut self.leaves[first..nnz], &mut self.values[first..nnz]);
        let lists = leaves.par_chunks_mut(PIECE_NNZ).zip(values.par_chunks_mut(PIECE_NNZ));
        let (finder, place) = (&self.finder, |piece: usize| piece * PIECE_NNZ);
        let pieces = lists.enumerate().map(|(p, lists)| finder.fill(lists, first + place(p), view, place(p)));
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        self.pieces.extend(pieces);
        if self.by_slices { self.compute(false) } else { Ok(()) }
    }

    fn takes_tiles(&self) -> bool {
        false
    }

    fn batch(&mut self, _: &Tiles<'_>) -> Result<()> {
        Ok(())
    }
}

/// Fibers, ascending.
struct FibersInOrder<'a, K> {
    /// Leaves and values.
    lists: (&'a [u32], &'a [f64]),
    fibers: &'a [Fiber<K>],
    linearizer: &'a Linearizer<K>,
    /// The other modes.
    others: &'a [usize],
}

impl<K: Key> Nonzeros for FibersInOrder<'_, K> {
    type Recent = ();

    #[inline(always)]
    fn fill(&self, range: Range<usize>, (): &mut (), tile: &mut FiberTile) -> Result<()> {
        (tile.nnz, tile.fibers) = (0, 0);
        let mut at = range.start as u64;
        let end = range.end as u64;
        let first = self.fibers.partition_point(|fiber| fiber.nnz <= at);
        let mut begins = first.checked_sub(1).map_or(0, |before| self.fibers[before].nnz);
        for fiber in &self.fibers[first..] {
            if at >= end {
                break;
            }
            let indices = coordinates(self.linearizer, fiber.linear);
            let columns = tile.indices.iter_mut().zip(self.others);
            columns.for_each(|(column, &mode)| column[tile.fibers] = indices[mode]);
            #[expect(clippy::cast_possible_truncation, reason = "less than a tile")]
            let start = tile.nnz as u16;
            tile.starts[tile.fibers] = start;
            tile.fibers += 1;
            let from = place(fiber.first + (at - begins));
            let nnz = place(fiber.nnz.min(end) - at);
            let to = tile.nnz..tile.nnz + nnz;
            tile.leaves[to.clone()].copy_from_slice(&self.lists.0[from..from + nnz]);
            tile.values[to].copy_from_slice(&self.lists.1[from..from + nnz]);
            tile.nnz += nnz;
            (at, begins) = (fiber.nnz.min(end), fiber.nnz);
        }
        Ok(())
    }
}
