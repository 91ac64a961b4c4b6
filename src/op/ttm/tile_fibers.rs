//! The fibers of some nonzeros.

use crate::format::DecodedTile;

/// The fibers of at most 512 consecutive nonzeros, restricted to these.
#[derive(Debug, Default)]
pub(super) struct TileFibers {
    /// Indices along the mode.
    pub leaves: Vec<u32>,
    pub values: Vec<f64>,
    /// Where each fiber begins.
    pub starts: Vec<u32>,
    /// Indices of each fiber in the other modes.
    pub coordinates: Vec<u32>,
    /// A row for each fiber.
    pub sums: Vec<f64>,
}

impl TileFibers {
    /// The fibers of a tile of a store whose nonzeros have the order of the fibers.
    pub fn of_tile(tile: &DecodedTile<'_>, mode: usize) -> Self {
        let others: Vec<usize> = (0..tile.order()).filter(|&m| m != mode).collect();
        let begins = |i: usize| i == 0 || others.iter().any(|&m| tile.column(m)[i] != tile.column(m)[i - 1]);
        let starts: Vec<u32> = (0u32..).take(tile.nnz).filter(|&i| begins(i as usize)).collect();
        let of_fiber = |&start: &u32| others.iter().map(move |&m| tile.column(m)[start as usize]);
        Self {
            coordinates: starts.iter().flat_map(of_fiber).collect(),
            leaves: tile.column(mode).to_vec(),
            values: tile.values.to_vec(),
            starts,
            sums: Vec::new(),
        }
    }
}
