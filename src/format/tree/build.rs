//! Cuts trees into chunks: whole slices if they fit, by the rules of formats-spec/hocfs.md, "Cutting". All tree formats
//! share it.

use super::{Meter, Tree, TreeEncoder, nodes_max};
use crate::chunk::{ChunkHeader, Version};
use crate::encoding::LeafRule;
use crate::error::Result;
use crate::format::{ChunkBuilder, ChunkSink, ClosedChunk, Made, SortedTile};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use std::collections::VecDeque;
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
        let first = self.tree.push(path, value);
        let surprise = self.meter.pushed(&self.tree, first);
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
        let (levels, order) = (self.levels, tile.order());
        let mut path = [0; ORDER_MAX];
        tile.values.iter().enumerate().try_for_each(|(i, &value)| {
            for (index, &mode) in path.iter_mut().zip(levels.modes()) {
                *index = tile.column(mode.into())[i];
            }
            self.push_path(&path[..order], value, sink)
        })
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
