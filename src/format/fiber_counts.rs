//! Counts the slices and fibers of sorted nonzeros, and measures their lengths.

use super::{DecodedTile, FIBER_LENGTHS};
use crate::shape::{ModeOrder, ORDER_MAX};

/// Slices and fibers of a partition, counted from its tiles in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FiberCounts {
    /// Nonzeros.
    pub nnz: u64,
    /// The number of nodes of each level above the leaves, from slices to fibers. Empty if the nonzeros have no order of modes.
    pub nodes: Vec<u64>,
    /// The number of pieces after B-CSF's default splitting of long fibers.
    pub split_fibers: u64,
    /// Nonzeros of the longest fiber.
    pub longest: u64,
    /// Fibers with 2^k to 2^(k+1) - 1 nonzeros.
    pub lengths: [u64; FIBER_LENGTHS],
    /// The open fiber: its indices, and its number of nonzeros so far.
    at: [u32; ORDER_MAX],
    open: u64,
}

impl FiberCounts {
    /// Starts counting for a tensor of `order`, sorted in the order `levels` if there is one.
    #[must_use]
    pub fn new(order: usize, levels: Option<&ModeOrder>) -> Self {
        Self { nodes: levels.map_or_else(Vec::new, |_| vec![0; order - 1]), ..Self::default() }
    }

    /// Slices; 0 without an order of modes.
    #[must_use]
    pub fn slices(&self) -> u64 {
        self.nodes.first().copied().unwrap_or(0)
    }

    /// Fibers; 0 without an order of modes.
    #[must_use]
    pub fn fibers(&self) -> u64 {
        self.nodes.last().copied().unwrap_or(0)
    }

    /// Adds the next tile, whose nonzeros are sorted by `levels`.
    pub fn add(&mut self, tile: &DecodedTile<'_>, levels: Option<&ModeOrder>) {
        self.nnz += tile.nnz as u64;
        let Some(levels) = levels else { return };
        let above = self.nodes.len();
        let columns: [&[u32]; ORDER_MAX] =
            std::array::from_fn(|level| if level < above { tile.column(levels.mode(level)) } else { &[] });
        (0..tile.nnz).for_each(|i| {
            let stays = |level: &usize| self.open > 0 && columns[*level][i] == self.at[*level];
            let same = (0..above).take_while(stays).count();
            if same < above {
                self.close();
                self.nodes[same..].iter_mut().for_each(|nodes| *nodes += 1);
                (same..above).for_each(|level| self.at[level] = columns[level][i]);
            }
            self.open += 1;
        });
    }

    /// Closes the open fiber. Must be called after the last tile.
    pub fn close(&mut self) {
        let length = std::mem::take(&mut self.open);
        if length > 0 {
            self.split_fibers += length.div_ceil(super::bcsf::FIBER_SPLIT.into());
            self.longest = self.longest.max(length);
            self.lengths[(length.ilog2() as usize).min(FIBER_LENGTHS - 1)] += 1;
        }
    }

    /// Bytes of the indices of a tree with 32-bit words: an index and a pointer a node, an index a leaf.
    #[must_use]
    pub(super) fn tree_bytes(&self) -> u64 {
        4 * (2 * self.nodes.iter().sum::<u64>() + self.nnz)
    }
}
