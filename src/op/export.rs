//! Writes a store's nonzeros back as text or as a NumPy archive, in linear order.

use crate::backend::host::{Batch, HostOp};
use crate::coo::tns::TnsWriter;
use crate::error::{Error, Result};
use std::io::Write;
use std::path::PathBuf;

/// Export as FROSTT text: indices from 1, shortest values that read back the same bits.
#[derive(Debug)]
pub struct ExportText<W: Write> {
    writer: TnsWriter<W>,
    path: PathBuf,
}

impl<W: Write> ExportText<W> {
    /// Writes to `below`; `path` is for messages.
    pub fn new(below: W, path: PathBuf) -> Self {
        Self { writer: TnsWriter::new(below), path }
    }

    /// Flushes and gives the writer back.
    pub fn finish(self) -> Result<W> {
        self.writer.finish().map_err(Error::io(self.path, "write"))
    }
}

impl<W: Write> HostOp for ExportText<W> {
    fn batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut at = [0; crate::shape::ORDER_MAX];
        for t in 0..batch.tiles() {
            let tile = batch.tile(t);
            let order = tile.order();
            for (i, &value) in tile.values.iter().enumerate() {
                at[..order].iter_mut().enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
                self.writer.write_row(&at[..order], value).map_err(Error::io(&self.path, "write"))?;
            }
        }
        Ok(())
    }
}

/// Export into arrays: `indices` (nnz x order, from 0) and `values`.
#[derive(Debug, Default)]
pub struct ExportArrays {
    /// Row after row.
    pub indices: Vec<u32>,
    /// One for each row.
    pub values: Vec<f64>,
}

impl HostOp for ExportArrays {
    fn batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        for t in 0..batch.tiles() {
            let tile = batch.tile(t);
            for i in 0..tile.nnz {
                self.indices.extend((0..tile.order()).map(|m| tile.column(m)[i]));
            }
            self.values.extend_from_slice(tile.values);
        }
        Ok(())
    }
}
