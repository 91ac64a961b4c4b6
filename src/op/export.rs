//! Processes every nonzero in the store's order, one after the other, for exports and other sequential work.

use crate::backend::host::{HostOp, Tiles};
use crate::coo::tns::{append_row, row_bytes_max};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use rayon::prelude::*;
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

/// Tiles whose text is formatted in parallel.
const GROUP_TILES: usize = 16;

/// Bytes of memory of a [`WriteText`] for a tensor of any order.
pub const WRITER_BYTES: u64 = 1 << 20;

/// Writes nonzeros as text, formatted on the current rayon pool.
pub struct WriteText<'a, W: Write> {
    append: &'a (dyn Fn(&DecodedTile<'_>, &mut Vec<u8>) + Sync),
    out: W,
    path: &'a Path,
    texts: Vec<Vec<u8>>,
}

impl<W: Write> std::fmt::Debug for WriteText<'_, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteText").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<'a, W: Write> WriteText<'a, W> {
    /// Writes to `out`, named `path` in messages.
    pub fn new(out: W, path: &'a Path) -> Self {
        Self::with(&append_tile, out, path)
    }

    /// The same with `append`, which appends the text of a tile.
    pub fn with(append: &'a (dyn Fn(&DecodedTile<'_>, &mut Vec<u8>) + Sync), out: W, path: &'a Path) -> Self {
        Self { append, out, path, texts: vec![Vec::new(); GROUP_TILES] }
    }

    /// Flushes the output.
    pub fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(Error::io(self.path, "write"))
    }
}

impl<W: Write> HostOp for WriteText<'_, W> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let Self { append, out, path, texts } = self;
        for first in (0..batch.tiles()).step_by(GROUP_TILES) {
            let texts = &mut texts[..GROUP_TILES.min(batch.tiles() - first)];
            texts.par_iter_mut().enumerate().for_each(|(t, text)| {
                text.clear();
                append(&batch.tile(first + t), text);
            });
            texts.iter().try_for_each(|text| out.write_all(text).map_err(Error::io(&*path, "write")))?;
        }
        Ok(())
    }
}

/// Replaces `text` by that of a tile.
fn append_tile(tile: &DecodedTile<'_>, text: &mut Vec<u8>) {
    let order = tile.order();
    text.reserve_exact(TILE_NNZ * row_bytes_max(order));
    for (i, &value) in tile.values.iter().enumerate() {
        append_row((0..order).map(|m| tile.indices[m * TILE_NNZ + i]), value, text);
    }
}
