//! Padding among leaves. It follows a fiber's leaves, so no fiber consists of padding alone.

use super::PADDING;
use super::view::{Leaves, Nodes, TreeView};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::partition_point;

impl Leaves {
    /// Whether a fiber whose first slot is `slot`, one of these, begins with padding, so that it has no nonzeros.
    #[inline]
    pub(crate) fn begins_with_padding(&self, slot: usize) -> bool {
        self.padded && self.indices[slot % TILE_NNZ] == PADDING
    }
}

impl TreeView<'_> {
    /// Fails if a tile of leaves with padding has a fiber without nonzeros, or other padding than its record says.
    /// Decoding all of a chunk's nonzeros finds the same errors; this is for callers that decode none.
    pub fn check_padded_tiles(&self) -> Result<()> {
        self.check_padding(Self::is_padded)
    }

    /// Checks the tiles of leaves that are `chosen`.
    pub(super) fn check_padding(&self, chosen: impl Fn(&Self, usize) -> bool) -> Result<()> {
        let mut leaves = Leaves::default();
        for tile in (0..self.tiles_of(self.order() - 1)).filter(|&tile| chosen(self, tile)) {
            self.leaves(tile, &mut leaves)?;
            self.check_fibers(tile, &leaves)?;
        }
        Ok(())
    }

    /// Fails if a fiber that begins in tile `tile`, with these leaves, begins with padding.
    pub(super) fn check_fibers(&self, tile: usize, leaves: &Leaves) -> Result<()> {
        if !leaves.padded {
            return Ok(());
        }
        let (leaf, fiber) = (self.order() - 1, self.order() - 2);
        let slots = tile * TILE_NNZ..tile * TILE_NNZ + leaves.len;
        let base = |tile: usize| usize::try_from(self.record(fiber, tile).base).unwrap_or(usize::MAX);
        let tiles = self.tiles_of(fiber);
        let first = partition_point(tiles, |tile| base(tile) <= slots.start).saturating_sub(1);
        let mut nodes = Nodes::default();
        for of_fibers in (first..tiles).take_while(|&tile| base(tile) < slots.end) {
            self.starts(fiber, of_fibers, &mut nodes)?;
            let mut starts = nodes.starts[..nodes.len].iter().map(|&start| start as usize);
            if starts.any(|start| slots.contains(&start) && leaves.begins_with_padding(start)) {
                return Err(self.damaged(leaf, tile).breaks("image-tree"));
            }
        }
        Ok(())
    }
}
