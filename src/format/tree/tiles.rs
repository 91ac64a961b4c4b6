//! A tree as nonzeros: tiles of the store, cut by position, as columns of coordinates or fiber by fiber, and walks
//! along a level that know the indices above it.

use super::PADDING;
use super::view::{Leaves, Nodes, TreeView};
use crate::encoding::TILE_NNZ;
use crate::encoding::column::Numbers;
use crate::error::Result;
use crate::format::{DecodedTile, partition_point};
use crate::shape::ORDER_MAX;
use std::ops::Range;

impl TreeView<'_> {
    /// The number of the node of `level` whose children include `child`. Its tile is decoded then.
    #[inline(always)]
    fn parent(&self, level: usize, child: u32, decoded: &mut Decoded<Nodes>) -> Result<usize> {
        let begins = |tile: usize| self.record(level, tile).base <= child.into();
        let tile = partition_point(self.tiles_of(level), begins).saturating_sub(1);
        let nodes = self.decoded_nodes(level, tile, decoded)?;
        let inside = nodes.starts[..nodes.len].partition_point(|&start| start <= child);
        Ok(tile * TILE_NNZ + inside.saturating_sub(1))
    }

    /// A tile of a level above the leaves, which may be `decoded` already.
    #[inline(always)]
    fn decoded_nodes<'d>(
        &self,
        level: usize,
        tile: usize,
        decoded: &'d mut Decoded<Nodes>,
    ) -> Result<&'d Nodes> {
        // No closure decodes: it would not be compiled for the machine's vectors.
        if decoded.number != Some(tile) {
            decoded.number = None;
            self.nodes(level, tile, &mut decoded.tile)?;
            decoded.number = Some(tile);
        }
        Ok(&decoded.tile)
    }

    /// Nonzeros of the store's first tile that are in the previous chunk.
    fn skipped(&self) -> usize {
        usize::try_from(self.first_nonzero() % TILE_NNZ as u64).unwrap_or(0)
    }

    /// The chunk's nonzeros in tile `t` of the store.
    fn positions(&self, t: usize) -> Range<usize> {
        let skipped = self.skipped();
        let start = (t * TILE_NNZ).saturating_sub(skipped);
        start..((t + 1) * TILE_NNZ - skipped).min(self.nnz())
    }

    /// Tiles of the store that have nonzeros here.
    #[must_use]
    pub fn tiles(&self) -> usize {
        (self.skipped() + self.nnz()).div_ceil(TILE_NNZ)
    }

    /// The number in the store of the first.
    #[must_use]
    pub fn first_tile(&self) -> u64 {
        self.first_nonzero() / TILE_NNZ as u64
    }

    /// Nonzeros of tile `t`.
    #[must_use]
    pub fn tile_nnz(&self, t: usize) -> usize {
        self.positions(t).len()
    }

    /// Decodes the part of the store's tile `t` that is in the chunk into `indices` (one column of [`TILE_NNZ`] per
    /// mode) and `values`.
    #[inline(always)]
    pub fn decode<'b>(
        &self,
        t: usize,
        recent: &mut Recent,
        indices: &'b mut [u32],
        values: &'b mut [f64],
    ) -> Result<DecodedTile<'b>> {
        let positions = self.positions(t);
        let nnz = positions.len();
        let mut below = Below { nodes: [0; TILE_NNZ], firsts: [0; TILE_NNZ], len: nnz };
        below.firsts.iter_mut().zip(0..).for_each(|(first, nonzero)| *first = nonzero);
        let leaf = self.order() - 1;
        let column = |level: usize| self.levels().mode(level) * TILE_NNZ;
        let leaves = &mut indices[column(leaf)..][..TILE_NNZ];
        let Recent { leaves: decoded, nodes } = recent.of(leaf);
        self.leaves_at(positions, decoded, leaves, &mut values[..TILE_NNZ], &mut below.nodes)?;
        for level in (0..leaf).rev() {
            self.climb(level, &mut nodes[level], &mut indices[column(level)..][..nnz], &mut below)?;
        }
        let mut tile =
            DecodedTile { nnz, low: [0; ORDER_MAX], high: [0; ORDER_MAX], indices: &[], values: &[] };
        for (m, column) in indices.chunks_exact_mut(TILE_NNZ).enumerate() {
            let (used, rest) = column.split_at_mut(nnz);
            tile.low[m] = used.iter().copied().min().unwrap_or(0);
            tile.high[m] = used.iter().copied().max().unwrap_or(0);
            rest.fill(tile.low[m]);
        }
        tile.indices = indices;
        tile.values = &values[..nnz];
        Ok(tile)
    }

    /// Decodes the chunk's nonzeros `positions`, a tile at most, fiber by fiber.
    #[inline(always)]
    pub(crate) fn fibers(
        &self,
        positions: Range<usize>,
        recent: &mut Recent,
        out: &mut FiberTile,
    ) -> Result<()> {
        let nnz = positions.len();
        let mut below = Below { nodes: [0; TILE_NNZ], firsts: [0; TILE_NNZ], len: nnz };
        let fiber = self.order() - 2;
        out.nnz = nnz;
        let Recent { leaves, nodes } = recent.of(fiber + 1);
        self.leaves_at(positions, leaves, &mut out.leaves, &mut out.values, &mut below.nodes)?;
        let Some(last) = nnz.checked_sub(1) else {
            out.fibers = 0;
            return Ok(());
        };
        if below.nodes[last] as usize - below.nodes[0] as usize == last {
            self.fibers_from(below.nodes[0], &mut nodes[fiber], &mut out.indices[fiber], &mut below)?;
        } else {
            // Padding lies between them.
            below.firsts.iter_mut().zip(0..).for_each(|(first, nonzero)| *first = nonzero);
            let mut column = [0; TILE_NNZ];
            self.climb(fiber, &mut nodes[fiber], &mut column[..nnz], &mut below)?;
            let indices = out.indices[fiber].iter_mut().zip(&below.firsts[..below.len]);
            indices.for_each(|(index, &first)| *index = column[usize::from(first) % TILE_NNZ]);
        }
        out.fibers = below.len;
        out.starts = below.firsts;
        below.firsts.iter_mut().zip(0..).for_each(|(first, fiber)| *first = fiber);
        for level in (0..fiber).rev() {
            self.climb(level, &mut nodes[level], &mut out.indices[level][..out.fibers], &mut below)?;
        }
        Ok(())
    }

    /// The fibers of as many consecutive leaves as are `below`, from slot `first` on: their indices, their nodes and the
    /// first leaf of each.
    #[inline(always)]
    fn fibers_from(
        &self,
        first: u32,
        decoded: &mut Decoded<Nodes>,
        indices: &mut Numbers<u32>,
        below: &mut Below,
    ) -> Result<()> {
        let level = self.order() - 2;
        let end = u64::from(first) + below.len as u64;
        let mut node = self.parent(level, first, decoded)?;
        let mut fibers = 0;
        loop {
            let nodes = self.decoded_nodes(level, node / TILE_NNZ, decoded)?;
            let from = node % TILE_NNZ;
            let begun = nodes.starts[from..nodes.len].partition_point(|&start| u64::from(start) < end);
            let to = (fibers + begun).min(TILE_NNZ);
            indices[fibers..to].iter_mut().zip(&nodes.indices[from..]).for_each(|(to, from)| *to = *from);
            let firsts = below.firsts[fibers..to].iter_mut().zip(&nodes.starts[from..]);
            #[expect(clippy::cast_possible_truncation, reason = "less than a tile from the first")]
            firsts.for_each(|(to, start)| *to = start.saturating_sub(first) as u16);
            let numbers = below.nodes[fibers..to].iter_mut().zip(u32::try_from(node).unwrap_or(u32::MAX)..);
            numbers.for_each(|(to, number)| *to = number);
            fibers = to;
            if u64::from(nodes.starts[nodes.len]) >= end {
                break;
            }
            node = (node / TILE_NNZ + 1) * TILE_NNZ;
            if node >= self.level_nodes(level) {
                return Err(self.damaged(level, node / TILE_NNZ));
            }
        }
        below.len = fibers;
        Ok(())
    }

    /// Gathers the leaves of nonzeros `positions`, and the slot of each.
    #[inline(always)]
    fn leaves_at(
        &self,
        positions: Range<usize>,
        decoded: &mut Decoded<Leaves>,
        indices: &mut [u32],
        values: &mut [f64],
        slots: &mut Numbers<u32>,
    ) -> Result<()> {
        let tiles = self.tiles_of(self.order() - 1);
        let mut tile = partition_point(tiles, |tile| self.before(tile) <= positions.start) - 1;
        let mut done = 0;
        while done < positions.len() && tile < tiles {
            if decoded.number != Some(tile) {
                decoded.number = None;
                self.leaves(tile, &mut decoded.tile)?;
                self.check_fibers(tile, &decoded.tile)?;
                decoded.number = Some(tile);
            }
            let leaves = &decoded.tile;
            let mut position = self.before(tile);
            if !leaves.padded {
                // Take all leaves of the tile that are among the positions.
                let from = (positions.start + done).saturating_sub(position).min(leaves.len);
                let some = from..leaves.len.min(positions.end.saturating_sub(position)).max(from);
                let ends = done + some.len();
                indices[done..ends].copy_from_slice(&leaves.indices[some.clone()]);
                values[done..ends].copy_from_slice(&leaves.values[some.clone()]);
                let first = u32::try_from(tile * TILE_NNZ + some.start).unwrap_or(u32::MAX);
                slots[done..ends].iter_mut().zip(first..).for_each(|(slot, number)| *slot = number);
                done = ends;
                tile += 1;
                continue;
            }
            for slot in 0..leaves.len {
                let pad = leaves.indices[slot] == PADDING;
                if !pad && positions.contains(&position) {
                    indices[done] = leaves.indices[slot];
                    values[done] = leaves.values[slot];
                    slots[done] = u32::try_from(tile * TILE_NNZ + slot).unwrap_or(u32::MAX);
                    done += 1;
                }
                position += usize::from(!pad);
            }
            tile += 1;
        }
        if done == positions.len() { Ok(()) } else { Err(self.damaged(self.order() - 1, tile)) }
    }

    /// Replaces nodes of the level below by their parents in `level`, and gives each nonzero the index of its own.
    #[inline(always)]
    fn climb(
        &self,
        level: usize,
        decoded: &mut Decoded<Nodes>,
        indices: &mut [u32],
        below: &mut Below,
    ) -> Result<()> {
        /// Most nodes have no more nonzeros. Writing this number takes no branch; the next node overwrites the rest.
        const FEW: usize = 16;
        let Below { nodes: children, firsts, len } = below;
        let (first, all) = (children[0], *len);
        if all == 0 {
            return Ok(());
        }
        let mut node = self.parent(level, first, decoded)?;
        let mut nodes = &decoded.tile;
        let mut column = [0; TILE_NNZ + FEW];
        let (mut child, mut from) = (0, 0);
        *len = 0;
        loop {
            let end = nodes.starts[node % TILE_NNZ + 1];
            // Nodes are consecutive; slots are not where there is padding.
            let mut next = (end.saturating_sub(first) as usize).min(all);
            if next < all && children[next] != end || next == all && children[all - 1] >= end {
                next = child + children[child..all].partition_point(|&child| child < end);
            }
            if next > child {
                let to = if next < all { usize::from(firsts[next]) } else { indices.len() };
                let index = nodes.indices[node % TILE_NNZ];
                column[from..from + FEW].fill(index);
                if to - from > FEW {
                    column[from + FEW..to].fill(index);
                }
                children[*len] = u32::try_from(node).unwrap_or(u32::MAX);
                firsts[*len] = u16::try_from(from).unwrap_or(u16::MAX);
                *len += 1;
                (child, from) = (next, to);
            }
            if child == all {
                break;
            }
            node += 1;
            if node >= self.level_nodes(level) {
                return Err(self.damaged(level, node / TILE_NNZ));
            }
            if node.is_multiple_of(TILE_NNZ) {
                nodes = self.decoded_nodes(level, node / TILE_NNZ, decoded)?;
            }
        }
        indices.copy_from_slice(&column[..indices.len()]);
        Ok(())
    }
}

/// At most a tile of consecutive nonzeros, fiber by fiber.
#[derive(Debug)]
pub(crate) struct FiberTile {
    /// Nonzeros, and fibers that have any of them.
    pub nnz: usize,
    pub fibers: usize,
    /// The index of each nonzero in the last level's mode, and its value.
    pub leaves: Numbers<u32>,
    pub values: Numbers<f64>,
    /// The first nonzero of each fiber.
    pub starts: Numbers<u16>,
    /// The index of each fiber in the mode of each level above.
    pub indices: [Numbers<u32>; ORDER_MAX - 1],
}

impl Default for FiberTile {
    fn default() -> Self {
        Self {
            nnz: 0,
            fibers: 0,
            leaves: [0; TILE_NNZ],
            values: [0.0; TILE_NNZ],
            starts: [0; TILE_NNZ],
            indices: [[0; TILE_NNZ]; ORDER_MAX - 1],
        }
    }
}

/// Nodes of a level that have nonzeros in a tile, ascending.
struct Below {
    nodes: Numbers<u32>,
    /// The first nonzero of each.
    firsts: Numbers<u16>,
    len: usize,
}

/// The tiles of a chunk that were decoded last: one of leaves and one of each level above. Neighbours among the tiles of nonzeros share most
/// of them.
#[derive(Debug, Default)]
pub struct Recent {
    leaves: Decoded<Leaves>,
    nodes: Vec<Decoded<Nodes>>,
}

impl Recent {
    /// Bytes for a tensor of `order`.
    #[must_use]
    pub const fn bytes(order: usize) -> usize {
        size_of::<Self>() + (order - 1) * size_of::<Decoded<Nodes>>()
    }

    /// The same with a tile for each of `levels` levels above the leaves.
    fn of(&mut self, levels: usize) -> &mut Self {
        self.nodes.resize_with(levels, Decoded::default);
        self
    }

    /// Forgets its tiles, so that another chunk can be read.
    pub fn clear(&mut self) {
        self.leaves.number = None;
        self.nodes.iter_mut().for_each(|nodes| nodes.number = None);
    }
}

/// Room for a decoded tile.
#[derive(Debug, Default)]
struct Decoded<T> {
    /// The number of the tile that is there.
    number: Option<usize>,
    tile: T,
}

/// The state of a walk over the nodes of one level: the index of each ancestor.
pub(crate) struct Walk {
    nodes: Vec<Decoded<Nodes>>,
    /// The number of the ancestor in each level above.
    at: Vec<usize>,
}

/// Starts a walk over the nodes of `level` at `node`.
pub(crate) fn walk(view: &TreeView<'_>, level: usize, node: usize) -> Result<Walk> {
    let mut walk = Walk { nodes: Vec::with_capacity(level), at: vec![0; level] };
    walk.nodes.resize_with(level, Decoded::default);
    let mut child = u32::try_from(node).unwrap_or(u32::MAX);
    for above in (0..level).rev() {
        walk.at[above] = view.parent(above, child, &mut walk.nodes[above])?;
        child = u32::try_from(walk.at[above]).unwrap_or(u32::MAX);
    }
    Ok(walk)
}

impl Walk {
    /// Advances to `node`, the same or a later one, and writes the index of its ancestor in each level above.
    pub fn go(&mut self, view: &TreeView<'_>, node: usize, indices: &mut [u32]) -> Result<()> {
        let mut child = node;
        for above in (0..self.at.len()).rev() {
            let (at, decoded) = (&mut self.at[above], &mut self.nodes[above]);
            let mut nodes = &decoded.tile;
            while child >= nodes.starts[*at % TILE_NNZ + 1] as usize {
                *at += 1;
                if *at >= view.level_nodes(above) {
                    return Err(view.damaged(above, *at / TILE_NNZ));
                }
                if at.is_multiple_of(TILE_NNZ) {
                    nodes = view.decoded_nodes(above, *at / TILE_NNZ, decoded)?;
                }
            }
            indices[above] = nodes.indices[*at % TILE_NNZ];
            child = *at;
        }
        Ok(())
    }
}
