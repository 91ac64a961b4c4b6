//! Formats: how sorted nonzeros become chunk images, and checked views that give them back.

pub mod blco;

use crate::encoding::TILE_NNZ;
use crate::shape::ORDER_MAX;

/// The nonzeros of one tile, decoded: what operations on the host work on.
///
/// `indices` has one column of [`TILE_NNZ`] for each mode; slots from `nnz` on hold indices that are inside
/// the dims and values that mean nothing.
#[derive(Debug)]
pub struct DecodedTile<'a> {
    /// Nonzeros in the tile.
    pub nnz: usize,
    /// Smallest index of each mode.
    pub low: [u32; ORDER_MAX],
    /// Largest index of each mode.
    pub high: [u32; ORDER_MAX],
    /// Column after column.
    pub indices: &'a [u32],
    /// The values.
    pub values: &'a [f64],
}

impl DecodedTile<'_> {
    /// The indices of `mode`, in linear order.
    #[must_use]
    pub fn column(&self, mode: usize) -> &[u32] {
        &self.indices[mode * TILE_NNZ..][..self.nnz]
    }

    /// The number of modes.
    #[must_use]
    pub fn order(&self) -> usize {
        self.indices.len() / TILE_NNZ
    }
}
