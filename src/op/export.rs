//! Every nonzero, in the store's order, one after the other: what exporting and other sequential work are made of.

use crate::backend::host::{HostOp, Tiles};
use crate::coo::tns::TnsWriter;
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use crate::shape::ORDER_MAX;
use std::io::Write;
use std::path::Path;

/// An operation that calls a function with each tile, in the store's order, on one thread.
#[derive(Debug)]
pub struct EachTile<F>(pub F);

impl<F: FnMut(&DecodedTile<'_>) -> Result<()>> HostOp for EachTile<F> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        (0..batch.tiles()).try_for_each(|t| (self.0)(&batch.tile(t)))
    }
}

/// What a [`WriteText`] holds, in bytes.
pub const WRITER_BYTES: u64 = 384 << 10;

/// Writes nonzeros as text.
#[derive(Debug)]
pub struct WriteText<'a, W: Write> {
    writer: TnsWriter<W>,
    path: &'a Path,
}

impl<'a, W: Write> WriteText<'a, W> {
    /// Writes to `out`, which messages call `path`.
    pub fn new(out: W, path: &'a Path) -> Self {
        Self { writer: TnsWriter::new(out), path }
    }

    /// Writes what waits.
    pub fn finish(self) -> Result<()> {
        self.writer.finish().map(drop).map_err(Error::io(self.path, "write"))
    }
}

impl<W: Write> HostOp for WriteText<'_, W> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        for t in 0..batch.tiles() {
            let tile = batch.tile(t);
            let (order, mut at) = (tile.order(), [0; ORDER_MAX]);
            for (i, &value) in tile.values.iter().enumerate() {
                at[..order].iter_mut().enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
                self.writer.write_row(&at[..order], value).map_err(Error::io(self.path, "write"))?;
            }
        }
        Ok(())
    }
}
