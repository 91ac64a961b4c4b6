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
pub const GROUP_NNZ: usize = 256 * TILE_NNZ;

/// Cuts settled nonzeros into the chunks of a store.
#[derive(Debug)]
pub struct Cutter<K> {
    encoder: TileEncoder<K>,
    builder: ChunkBuilder,
    statistics: Statistics,
    staging: Staging,
    pending: Vec<Nonzero<K>>,
    shape: Shape,
}

impl<K: Key> Cutter<K> {
    pub fn new(shape: &Shape, layout: &BitLayout, options: &PackOptions, staging: Staging) -> Self {
        Self {
            encoder: TileEncoder::new(layout, options.index_encoding),
            builder: ChunkBuilder::new(shape, options.index_encoding, options.chunk_bytes),
            statistics: Statistics::new(shape.order()),
            staging,
            pending: Vec::new(),
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

    /// Encodes and assembles the first `nnz` pending nonzeros.
    fn encode(&mut self, nnz: usize) -> Result<()> {
        let tiles: Vec<EncodedTile> =
            self.pending[..nnz].par_chunks(TILE_NNZ).map(|tile| self.encoder.encode(tile)).collect();
        for tile in &tiles {
            self.statistics.add(tile);
            let closed = self.builder.push(tile);
            self.store(closed)?;
        }
        self.pending.drain(..nnz);
        Ok(())
    }

    fn store(&mut self, chunk: Option<BuiltChunk>) -> Result<()> {
        chunk.map_or(Ok(()), |chunk| self.staging.add(chunk.header, chunk.image, chunk.entry))
    }

    /// Writes what is left; the store, ready to be published, and its manifest.
    pub fn finish(mut self, options: &PackOptions) -> Result<(Staging, Manifest)> {
        self.encode(self.pending.len())?;
        let last = self.builder.close();
        self.store(last)?;
        if self.statistics.nnz() == 0 {
            return Err(Error::request("no nonzeros"));
        }
        let statistics = self.statistics;
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
            chunks: self.staging.entries().to_vec(),
        };
        Ok((self.staging, manifest))
    }
}
