//! Cutting: settled nonzeros to tiles (encoded in parallel), tiles to chunks (in order), chunks to the store;
//! statistics on the way.

use super::{Duplicates, PackOptions};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::blco::{BuiltChunk, ChunkBuilder, EncodedTile, Statistics, TileEncoder};
use crate::linear::{BitLayout, Key, Nonzero};
use crate::shape::Shape;
use crate::store::{Manifest, Staging};
use rayon::prelude::*;

/// Nonzeros of the tiles that are encoded at once: enough for every thread, little memory.
pub const GROUP_NNZ: usize = 128 * TILE_NNZ;

/// Cuts settled nonzeros into the chunks of a store. A group of tiles is assembled while the next one is encoded.
#[derive(Debug)]
pub struct Cutter<K> {
    encoder: TileEncoder<K>,
    assembler: Assembler,
    pending: Vec<Nonzero<K>>,
    encoded: Vec<EncodedTile>,
    shape: Shape,
}

/// Puts encoded tiles, in order, into chunks, and chunks into the store.
#[derive(Debug)]
struct Assembler {
    builder: ChunkBuilder,
    statistics: Statistics,
    staging: Staging,
}

impl Assembler {
    fn push(&mut self, tiles: &[EncodedTile]) -> Result<()> {
        tiles.iter().try_for_each(|tile| {
            self.statistics.add(tile);
            let closed = self.builder.push(tile);
            self.store(closed)
        })
    }

    fn store(&mut self, chunk: Option<BuiltChunk>) -> Result<()> {
        chunk.map_or(Ok(()), |chunk| self.staging.add(chunk.header, chunk.image, chunk.entry))
    }
}

impl<K: Key> Cutter<K> {
    pub fn new(shape: &Shape, layout: &BitLayout, options: &PackOptions, staging: Staging) -> Self {
        Self {
            encoder: TileEncoder::new(layout, options.index_encoding),
            assembler: Assembler {
                builder: ChunkBuilder::new(shape, options.index_encoding, options.chunk_bytes),
                statistics: Statistics::new(shape.order()),
                staging,
            },
            pending: Vec::new(),
            encoded: Vec::new(),
            shape: shape.clone(),
        }
    }

    /// Takes the next nonzeros in linear order.
    pub fn push(&mut self, nonzeros: &[Nonzero<K>]) -> Result<()> {
        self.pending.extend_from_slice(nonzeros);
        if self.pending.len() < GROUP_NNZ {
            return Ok(());
        }
        let whole = self.pending.len() / TILE_NNZ * TILE_NNZ;
        self.encode(whole)
    }

    /// Encodes the first `nnz` pending nonzeros, and assembles what was encoded before.
    fn encode(&mut self, nnz: usize) -> Result<()> {
        let Self { encoder, assembler, pending, encoded, .. } = self;
        let tiles = pending[..nnz].par_chunks(TILE_NNZ).map(|tile| encoder.encode(tile));
        let (assembled, next) = rayon::join(|| assembler.push(encoded), || tiles.collect());
        *encoded = next;
        pending.drain(..nnz);
        assembled
    }

    /// Writes what is left; the store, ready to be published, and its manifest.
    pub fn finish(mut self, options: &PackOptions) -> Result<(Staging, Manifest)> {
        self.encode(self.pending.len())?;
        let mut assembler = self.assembler;
        assembler.push(&self.encoded)?;
        let last = assembler.builder.close();
        assembler.store(last)?;
        let Assembler { statistics, staging, .. } = assembler;
        if statistics.nnz() == 0 {
            return Err(Error::request("no nonzeros"));
        }
        let manifest = Manifest {
            shape: self.shape,
            index_encoding: options.index_encoding,
            codec: options.codec,
            may_repeat: options.duplicates == Duplicates::Keep,
            chunk_bytes: options.chunk_bytes,
            nnz: statistics.nnz(),
            sum_squares: statistics.sum_squares(),
            value_min: statistics.value_min(),
            value_max: statistics.value_max(),
            longest_row_bounds: statistics.longest_row_bounds(),
            chunks: staging.entries().to_vec(),
        };
        Ok((staging, manifest))
    }
}
