//! Cuts trees into chunks: whole slices if they fit, by the rules of formats-spec/hocfs.md, "Cutting". All tree formats
//! share it.

use super::{Meter, Tree, TreeEncoder, nodes_max};
use crate::chunk::{ChunkHeader, Version};
use crate::encoding::LeafRule;
use crate::error::Result;
use crate::format::{ChunkBuilder, ChunkSink, ClosedChunk, Made, SortedTile};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The most nodes in a chunk, leaves included.
pub(crate) fn chunk_nodes_max(chunk_bytes: u64) -> usize {
    usize::try_from(chunk_bytes / 2).unwrap_or(usize::MAX)
}

/// Bytes that an open chunk of at most `chunk_bytes` takes.
pub(crate) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    tree_bytes(chunk_nodes_max(chunk_bytes) as u64, 0) + built_bytes(chunk_bytes)
}

/// Bytes of a tree in memory and of its fibers' slot starts: at most 12 per node. (A list grows without a second copy:
/// see `cli::memory`.)
fn tree_bytes(leaves: u64, inner: u64) -> u64 {
    12 * leaves + 8 * inner + 4 * leaves.min(inner)
}

/// Bytes of the columns above the leaves, and of an image of at most `image_bytes`.
fn built_bytes(image_bytes: u64) -> u64 {
    image_bytes + image_bytes / 2
}

/// The most bytes of an image before padding: leaves room for the padding that the rule allows, and for slightly wider
/// columns.
fn unpadded_bytes_max(leaf: LeafRule, chunk_bytes: u64) -> u64 {
    match leaf {
        LeafRule::Csr => chunk_bytes,
        LeafRule::Auto => chunk_bytes / 4 * 3,
        LeafRule::Ell => chunk_bytes / 8 * 3,
    }
}

/// The most chunks' worth of data that is open when a chunk is closed: the chunk, the slice after it, and its
/// last fiber.
pub(crate) const OPEN_CHUNKS: usize = 3;

/// Bytes that rebuilding takes per chunk, for a store whose chunks have these headers. If a chunk ends with a slice,
/// much of the next ones is open too, up to the capacity of a chunk. The densest of them gives the bound.
pub(crate) fn rebuilt_chunk_bytes(
    leaf: LeafRule,
    chunk_bytes: u64,
    mut headers: impl Iterator<Item = Result<ChunkHeader>>,
) -> Result<u64> {
    let full = u128::from(unpadded_bytes_max(leaf, chunk_bytes));
    let (mut trees, mut image) = (0, 0);
    // The trees of the last chunks, and each scaled to a full chunk.
    let mut last = VecDeque::with_capacity(OPEN_CHUNKS);
    headers.try_for_each(|header| {
        let header = header?;
        let leaves = u64::from(header.nnz);
        let tree = u128::from(tree_bytes(leaves, nodes_max(&header).saturating_sub(leaves)));
        if last.len() == OPEN_CHUNKS {
            last.pop_front();
        }
        last.push_back((tree, tree * full / u128::from(header.image_bytes.max(1))));
        let open: u128 = last.iter().map(|&(tree, _)| tree).sum();
        trees = open.min(last.iter().map(|&(_, full)| full).max().unwrap_or(0)).max(trees);
        image = u64::from(header.image_bytes).max(image);
        Ok(())
    })?;
    let trees = u64::try_from(trees).unwrap_or(u64::MAX);
    Ok(trees.saturating_add(built_bytes(image.min(chunk_bytes))).min(open_chunk_bytes(chunk_bytes)))
}

/// Puts nonzeros, in order, into chunks: whole slices if they fit, by the rules of formats-spec/hocfs.md, "Cutting".
#[derive(Debug)]
pub struct TreeBuilder {
    version: Version,
    levels: ModeOrder,
    encoder: Arc<TreeEncoder>,
    chunk_bytes: u64,
    /// The most bytes of a chunk before padding.
    bytes_max: u64,
    nodes_max: usize,
    tree: Tree,
    meter: Meter,
    /// Nonzeros that can be added without measuring.
    room: usize,
}

impl TreeBuilder {
    /// A builder for chunks of the format with code `format`, whose images have at most `chunk_bytes`.
    #[must_use]
    pub fn new(
        version: Version,
        shape: &Shape,
        levels: &ModeOrder,
        leaf: LeafRule,
        format: u32,
        chunk_bytes: u64,
    ) -> Self {
        Self {
            version,
            levels: *levels,
            encoder: Arc::new(TreeEncoder::new(version, shape, levels, leaf, format)),
            chunk_bytes,
            bytes_max: unpadded_bytes_max(leaf, chunk_bytes),
            nodes_max: chunk_nodes_max(chunk_bytes),
            tree: Tree::new(shape.order()),
            meter: Meter::new(version, shape.order()),
            room: 0,
        }
    }

    fn push_path(&mut self, path: &[u32], value: f64, sink: ChunkSink<'_>) -> Result<()> {
        self.tree.push(path, value);
        let surprise = self.meter.pushed(&self.tree);
        if self.room > 0 && !surprise {
            self.room -= 1;
            return Ok(());
        }
        if self.is_full() {
            return self.cut(sink);
        }
        self.look_ahead();
        Ok(())
    }

    /// A chunk of this tree.
    fn closed(&self, tree: Tree) -> ClosedChunk {
        let (encoder, bytes_max) = (Arc::clone(&self.encoder), self.chunk_bytes);
        ClosedChunk::new(move || encoder.encode(&tree, bytes_max))
    }

    fn is_full(&self) -> bool {
        self.tree.nodes() > self.nodes_max || self.meter.bytes() > self.bytes_max
    }

    fn look_ahead(&mut self) {
        let nodes = (self.nodes_max - self.tree.nodes()) / self.tree.order();
        self.room = self.meter.room(self.bytes_max).min(nodes);
    }

    /// Closes the chunk, which its last nonzero has overfilled. Cuts before the last slice; if that is also the first,
    /// before the last fiber; if that is also the first, before the nonzero.
    fn cut(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        let tree = &mut self.tree;
        let places = [tree.last_start(0), tree.last_start(tree.order() - 2), tree.nnz() - 1];
        let Some(at) = places.into_iter().find(|&at| at > 0) else { return Ok(()) };
        let rest = tree.split_off(at);
        let closed = std::mem::replace(tree, rest);
        sink(self.closed(closed))?;
        self.meter = Meter::of(self.version, &self.tree);
        if !self.is_full() {
            self.look_ahead();
            return Ok(());
        }
        // Tiles that begin elsewhere can be wider, so the rest is measured again nonzero by nonzero.
        let rest = std::mem::replace(&mut self.tree, Tree::new(self.levels.modes().len()));
        self.meter = Meter::new(self.version, rest.order());
        self.room = 0;
        rest.for_each(|path, value| self.push_path(path, value, sink))
    }
}

impl ChunkBuilder for TreeBuilder {
    fn push(&mut self, tile: &SortedTile, _: &mut Made, sink: ChunkSink<'_>) -> Result<()> {
        let (levels, order, nnz) = (self.levels, tile.order(), tile.values.len());
        let columns = |at: Range<usize>| {
            let mut columns = [&[][..]; ORDER_MAX];
            let modes = columns.iter_mut().zip(levels.modes());
            modes.for_each(|(column, &mode)| *column = &tile.column(mode.into())[at.clone()]);
            columns
        };
        let mut at = 0;
        while at < nnz {
            // As many as fit whatever they are; otherwise nonzero by nonzero.
            let some = at..nnz.min(at + self.room.max(1));
            let (columns, values) = (columns(some.clone()), &tile.values[some.clone()]);
            at = some.end;
            if self.room > 0 && self.meter.extend(&mut self.tree, &columns[..order], values) {
                self.room -= some.len();
                continue;
            }
            let mut path = [0; ORDER_MAX];
            values.iter().enumerate().try_for_each(|(i, &value)| {
                path.iter_mut().zip(&columns[..order]).for_each(|(index, column)| *index = column[i]);
                self.push_path(&path[..order], value, sink)
            })?;
        }
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        let order = self.levels.modes().len();
        let closed = std::mem::replace(&mut self.tree, Tree::new(order));
        self.meter = Meter::new(self.version, order);
        self.room = 0;
        if closed.nnz() == 0 {
            return Ok(());
        }
        sink(self.closed(closed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::TILE_NNZ;
    use crate::random::Counter;

    type Path = ([u32; ORDER_MAX], f64);

    /// Sorted nonzeros with fibers of some lengths. Values change their kind from one stretch to the next.
    fn paths(order: usize, seed: u64) -> Vec<Path> {
        let random = Counter::new(seed, order as u64);
        let mut at = [0; ORDER_MAX];
        let next = |i: u32| {
            let bits = random.bits(i.into());
            // Mostly the leaves' level moves on.
            let small = |from: u32, below: u64| u32::try_from((bits >> from) % below).unwrap();
            let level = (order - 1).saturating_sub(bits.trailing_ones() as usize / 2);
            at[level] += 1 + small(40, 7);
            at[level + 1..order].fill(small(50, 3));
            let count = f64::from(small(20, 256));
            let value = match i / 1500 % 8 {
                0 | 2 => count,
                1 => count / 4.0,
                3 => -count * 1e9,
                4 => 1.0 / (1.0 + count),
                5 => -0.0,
                6 => count / 100.0,
                _ => f64::from(1.0 / (1.0 + f32::from(u8::try_from(small(20, 256)).unwrap()))),
            };
            (at, value)
        };
        (0..150_000).map(next).collect()
    }

    fn builder(shape: &Shape, levels: &ModeOrder, leaf: LeafRule, bytes: u64) -> TreeBuilder {
        TreeBuilder::new(Version::Two, shape, levels, leaf, 3, bytes)
    }

    /// Nonzeros go into the same chunks a tile at a time as one at a time.
    #[test]
    fn tiles_are_cut_where_single_nonzeros_are() {
        for order in [2, 3, 4, 5, 8] {
            for (seed, leaf) in
                [(0, LeafRule::Csr), (1, LeafRule::Auto), (2, LeafRule::Csr), (3, LeafRule::Ell)]
            {
                let paths = paths(order, seed);
                // The room of some widest possible tiles, before padding.
                let unpadded = 6 * 6_240 * order as u64;
                let bytes = match leaf {
                    LeafRule::Csr => unpadded,
                    LeafRule::Auto => unpadded / 3 * 4,
                    LeafRule::Ell => unpadded / 3 * 8,
                };
                let shape = Shape::new(&vec![1 << 16; order]).unwrap();
                // Levels are not in the order of modes.
                let modes: Vec<usize> = (0..order).map(|l| (l + 1) % order).collect();
                let levels = ModeOrder::new(&modes).unwrap();
                let (mut one_by_one, mut tiles): (Vec<Vec<u8>>, Vec<Vec<u8>>) = Default::default();
                let mut own = builder(&shape, &levels, leaf, bytes);
                let mut sink = |chunk: ClosedChunk| {
                    one_by_one.push(chunk.build().image);
                    Ok(())
                };
                paths.iter().try_for_each(|(path, v)| own.push_path(&path[..order], *v, &mut sink)).unwrap();
                own.finish(&mut sink).unwrap();
                let mut own = builder(&shape, &levels, leaf, bytes);
                let mut sink = |chunk: ClosedChunk| {
                    tiles.push(chunk.build().image);
                    Ok(())
                };
                let mut with_room = 0;
                for paths in paths.chunks(TILE_NNZ) {
                    with_room += usize::from(own.room >= TILE_NNZ);
                    let mut tile = SortedTile { indices: vec![0; order * TILE_NNZ], ..SortedTile::default() };
                    for (i, (path, value)) in paths.iter().enumerate() {
                        let columns = modes.iter().zip(path);
                        columns.for_each(|(mode, index)| tile.indices[mode * TILE_NNZ + i] = *index);
                        tile.values.push(*value);
                    }
                    own.push(&tile, &mut Made::default(), &mut sink).unwrap();
                }
                own.finish(&mut sink).unwrap();
                let what = format!("order {order}, {bytes} bytes, seed {seed}");
                assert!(tiles.len() > 2 && with_room > 20, "{what}: {} chunks, {with_room}", tiles.len());
                assert!(tiles == one_by_one, "{what}");
            }
        }
    }
}
