//! Hands every tile, in order, to a function: what exporting and other sequential work are made of.

use crate::backend::host::{HostOp, Tiles};
use crate::error::Result;
use crate::format::DecodedTile;

/// An operation that calls a function with each tile, in the store's order, on one thread.
#[derive(Debug)]
pub struct EachTile<F>(pub F);

impl<F: FnMut(&DecodedTile<'_>) -> Result<()>> HostOp for EachTile<F> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        (0..batch.tiles()).try_for_each(|t| (self.0)(&batch.tile(t)))
    }
}
