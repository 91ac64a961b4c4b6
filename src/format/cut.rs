//! Cutting: sorted nonzeros to the chunks of any format; statistics on the way. Tiles are worked on in parallel, chunks
//! assembled in order.

use super::{BuiltChunk, ChunkBuilder, Format, Made, SortedTile, Statistics, TileWorker};
use crate::chunk::Version;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::linear::{Key, Linearizer, Nonzero};
use crate::shape::Shape;
use rayon::prelude::*;
use std::sync::Arc;

/// Nonzeros of the tiles that are worked on at once: enough for every thread, little memory.
pub(crate) const PENDING_NNZ: usize = 128 * TILE_NNZ;

/// Bytes that a cutter of chunks of `format` holds outside its open chunk: nonzeros that wait, as `nonzero_bytes` each, and two groups of tiles.
pub(crate) fn waiting_bytes(format: &Format, order: usize, nonzero_bytes: usize) -> usize {
    let piece = 4 * order + size_of::<f64>() + format.made_bytes(order);
    PENDING_NNZ * (nonzero_bytes + 2 * piece)
}

/// A tile, and what threads made of it.
#[derive(Debug, Default)]
struct Piece {
    tile: SortedTile,
    made: Made,
}

/// Cuts sorted nonzeros into chunks. A group of tiles is assembled while the next one is worked on.
#[derive(Debug)]
pub struct Cutter<K> {
    order: usize,
    linearizer: Linearizer<K>,
    worker: Option<Arc<dyn TileWorker>>,
    assembler: Assembler,
    pending: Vec<Nonzero<K>>,
    /// The first `filled` wait to be assembled.
    ready: Vec<Piece>,
    filled: usize,
    /// What the next group goes into. Pieces are used again: what a thread allocates anew and another one frees stays with
    /// the first, for each thread.
    next: Vec<Piece>,
}

/// Takes pieces in order.
#[derive(Debug)]
struct Assembler {
    builder: Box<dyn ChunkBuilder>,
    statistics: Statistics,
}

impl Assembler {
    fn add(
        &mut self,
        pieces: &[Piece],
        sink: &mut (dyn FnMut(BuiltChunk) -> Result<()> + Send),
    ) -> Result<()> {
        pieces.iter().try_for_each(|Piece { tile, made }| {
            self.statistics.add(tile);
            self.builder.push(tile, made, sink)
        })
    }
}

impl<K: Key> Cutter<K> {
    /// A cutter for tensors of `shape` into chunks of `format`, by the rules of `version`, whose images have at most `chunk_bytes`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, format: &Format, chunk_bytes: u64) -> Self {
        let record = format.record();
        let builder = format.builder(version, shape, chunk_bytes);
        let levels = format.tree_levels();
        Self {
            order: shape.order(),
            linearizer: Linearizer::new(&record.bit_layout(shape)),
            worker: builder.worker(),
            assembler: Assembler { builder, statistics: Statistics::new(shape.order(), levels.as_ref()) },
            pending: Vec::new(),
            ready: Vec::new(),
            filled: 0,
            next: Vec::new(),
        }
    }

    /// Takes the next nonzeros in the format's order; finished chunks go to `sink`.
    pub fn push(
        &mut self,
        nonzeros: &[Nonzero<K>],
        sink: &mut (dyn FnMut(BuiltChunk) -> Result<()> + Send),
    ) -> Result<()> {
        self.pending.extend_from_slice(nonzeros);
        if self.pending.len() < PENDING_NNZ {
            return Ok(());
        }
        let whole = self.pending.len() / TILE_NNZ * TILE_NNZ;
        self.work(whole, sink)
    }

    /// Works on the first `nnz` pending nonzeros, and assembles those before.
    fn work(&mut self, nnz: usize, sink: &mut (dyn FnMut(BuiltChunk) -> Result<()> + Send)) -> Result<()> {
        let Self { order, linearizer, worker, assembler, pending, ready, filled, next } = self;
        let tiles = nnz.div_ceil(TILE_NNZ);
        next.resize_with(tiles.max(next.len()), Piece::default);
        let pieces = pending[..nnz].par_chunks(TILE_NNZ).zip(&mut next[..tiles]);
        let assemble = || assembler.add(&ready[..*filled], sink);
        let work = || {
            pieces.for_each(|(nonzeros, Piece { tile, made })| {
                tile.gather(linearizer, *order, nonzeros);
                if let Some(worker) = &*worker {
                    worker.work(tile, made);
                }
            });
        };
        let (assembled, ()) = rayon::join(assemble, work);
        std::mem::swap(ready, next);
        *filled = tiles;
        pending.drain(..nnz);
        assembled
    }

    /// Hands over what is left; the statistics of all nonzeros.
    pub fn finish(mut self, sink: &mut (dyn FnMut(BuiltChunk) -> Result<()> + Send)) -> Result<Statistics> {
        self.work(self.pending.len(), sink)?;
        let Self { mut assembler, ready, filled, .. } = self;
        assembler.add(&ready[..filled], sink)?;
        assembler.builder.finish(sink)?;
        Ok(assembler.statistics)
    }
}
