//! Cutting: sorted nonzeros to the chunks of any format; statistics on the way. Tiles are encoded in parallel, chunks
//! assembled in order.

use super::blco::{BlcoBuilder, EncodedTile, TileEncoder};
use super::gathered::GatheredTile;
use super::hocfs::{ChunkSink, HocfsBuilder};
use super::{BuiltChunk, Statistics};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::linear::{Key, Linearizer, Nonzero};
use crate::shape::{ORDER_MAX, Shape};
use crate::store::{Format, Version};
use rayon::prelude::*;

/// Nonzeros of the tiles that are encoded at once: enough for every thread, little memory.
pub(crate) const PENDING_NNZ: usize = 128 * TILE_NNZ;

/// What threads make of a tile.
#[derive(Debug)]
enum CutPiece {
    Blco(Box<EncodedTile>),
    Tree(GatheredTile),
}

/// Makes pieces.
#[derive(Debug)]
enum Encoder<K> {
    Blco(TileEncoder<K>),
    Tree(Linearizer<K>, usize),
}

impl<K: Key> Encoder<K> {
    /// A piece without nonzeros.
    fn piece(&self) -> CutPiece {
        match self {
            Self::Blco(_) => CutPiece::Blco(Box::default()),
            Self::Tree(..) => CutPiece::Tree(GatheredTile::default()),
        }
    }

    /// Makes `piece` that of `tile`.
    fn encode(&self, tile: &[Nonzero<K>], piece: &mut CutPiece) {
        match (self, piece) {
            (Self::Blco(encoder), CutPiece::Blco(piece)) => encoder.encode(tile, piece),
            (Self::Tree(linearizer, order), CutPiece::Tree(piece)) => piece.gather(linearizer, *order, tile),
            _ => unreachable!("pieces are of the encoder's format"),
        }
    }
}

/// Makes chunks of pieces, in order.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one")]
enum ChunkBuilder {
    Blco(BlcoBuilder),
    Hocfs(HocfsBuilder),
}

impl ChunkBuilder {
    fn push(&mut self, piece: &CutPiece, statistics: &mut Statistics, sink: ChunkSink<'_>) -> Result<()> {
        match (self, piece) {
            (Self::Blco(builder), CutPiece::Blco(tile)) => {
                statistics.add(tile.gathered());
                builder.push(tile).map_or(Ok(()), sink)
            }
            (Self::Hocfs(builder), CutPiece::Tree(tile)) => {
                statistics.add(tile);
                let order = tile.indices.len() / TILE_NNZ;
                let mut at = [0; ORDER_MAX];
                tile.values.iter().enumerate().try_for_each(|(i, &value)| {
                    at.iter_mut().take(order).enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
                    builder.push(&at[..order], value, sink)
                })
            }
            _ => unreachable!("pieces are of the builder's format"),
        }
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        match self {
            Self::Blco(builder) => builder.close().map_or(Ok(()), sink),
            Self::Hocfs(builder) => builder.finish(sink),
        }
    }
}

/// Cuts sorted nonzeros into chunks. A group of tiles is assembled while the next one is encoded.
#[derive(Debug)]
pub struct Cutter<K> {
    encoder: Encoder<K>,
    builder: ChunkBuilder,
    statistics: Statistics,
    pending: Vec<Nonzero<K>>,
    /// The first `filled` wait to be assembled.
    encoded: Vec<CutPiece>,
    filled: usize,
    /// What the next group goes into. Pieces are used again: what a thread allocates anew and another one frees stays with
    /// the first, for each thread.
    next: Vec<CutPiece>,
}

impl<K: Key> Cutter<K> {
    /// A cutter for tensors of `shape` into chunks of `format`, by the rules of `version`, whose images have at most `chunk_bytes`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, format: &Format, chunk_bytes: u64) -> Self {
        let layout = format.bit_layout(shape);
        let (encoder, builder) = match format {
            Format::Blco(encoding) => (
                Encoder::Blco(TileEncoder::new(&layout, *encoding)),
                ChunkBuilder::Blco(BlcoBuilder::new(version, shape, *encoding, chunk_bytes)),
            ),
            Format::Hocfs { levels, leaf } => (
                Encoder::Tree(Linearizer::new(&layout), shape.order()),
                ChunkBuilder::Hocfs(HocfsBuilder::new(version, shape, levels, *leaf, chunk_bytes)),
            ),
        };
        let levels = match format {
            Format::Blco(_) => None,
            Format::Hocfs { levels, .. } => Some(levels),
        };
        let statistics = Statistics::new(shape.order(), levels);
        Self {
            encoder,
            builder,
            statistics,
            pending: Vec::new(),
            encoded: Vec::new(),
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
        self.encode(whole, sink)
    }

    /// Encodes the first `nnz` pending nonzeros, and assembles what was encoded before.
    fn encode(&mut self, nnz: usize, sink: &mut (dyn FnMut(BuiltChunk) -> Result<()> + Send)) -> Result<()> {
        let Self { encoder, builder, statistics, pending, encoded, filled, next } = self;
        let tiles = nnz.div_ceil(TILE_NNZ);
        next.resize_with(tiles.max(next.len()), || encoder.piece());
        let pieces = pending[..nnz].par_chunks(TILE_NNZ).zip(&mut next[..tiles]);
        let assemble =
            || encoded[..*filled].iter().try_for_each(|piece| builder.push(piece, statistics, sink));
        let encode = || pieces.for_each(|(tile, piece)| encoder.encode(tile, piece));
        let (assembled, ()) = rayon::join(assemble, encode);
        std::mem::swap(encoded, next);
        *filled = tiles;
        pending.drain(..nnz);
        assembled
    }

    /// Hands over what is left; the statistics of all nonzeros.
    pub fn finish(mut self, sink: &mut (dyn FnMut(BuiltChunk) -> Result<()> + Send)) -> Result<Statistics> {
        self.encode(self.pending.len(), sink)?;
        let Self { mut builder, mut statistics, encoded, filled, .. } = self;
        encoded[..filled].iter().try_for_each(|piece| builder.push(piece, &mut statistics, sink))?;
        builder.finish(sink)?;
        Ok(statistics)
    }
}
