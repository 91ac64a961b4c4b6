//! Verification: encodes the decoded nonzeros again and compares with what is stored, so that order, ranges,
//! widths, encodings, cuts and statistics are all held against the rules that a packer follows.

use crate::backend::host::{Batch, HostOp};
use crate::error::{Error, Result};
use crate::format::blco::{BuiltChunk, ChunkBuilder, ChunkView, EncodedTile, Statistics, TileEncoder};
use crate::linear::{BitLayout, Linearizer, Nonzero};
use crate::shape::ORDER_MAX;
use crate::store::chunk::HEADER_BYTES;
use crate::store::{Manifest, Store};
use rayon::prelude::*;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// The operation.
#[derive(Debug)]
pub struct Verify<'a> {
    store: &'a Store,
    linearizer: Linearizer<u128>,
    encoder: TileEncoder<u128>,
    builder: ChunkBuilder,
    statistics: Statistics,
    previous: Option<Nonzero<u128>>,
    /// Value encoding and checksum of each stored image's payload.
    stored: Vec<(u8, u64)>,
    /// Chunks that have been built again.
    built: usize,
}

impl<'a> Verify<'a> {
    /// A verification of `store`.
    #[must_use]
    pub fn new(store: &'a Store) -> Self {
        let Manifest { shape, index_encoding, chunk_bytes, .. } = store.manifest();
        let layout = BitLayout::new(shape);
        Self {
            store,
            linearizer: Linearizer::new(&layout),
            encoder: TileEncoder::new(&layout, *index_encoding),
            builder: ChunkBuilder::new(shape, *index_encoding, *chunk_bytes),
            statistics: Statistics::new(shape.order()),
            previous: None,
            stored: Vec::with_capacity(store.manifest().chunks.len()),
            built: 0,
        }
    }

    fn path(&self) -> PathBuf {
        self.store.chunk_path(self.stored.len().saturating_sub(1))
    }

    /// Compares the last chunk and the statistics.
    pub fn finish(mut self) -> Result<()> {
        let last = self.builder.close();
        self.compare(last)?;
        let (manifest, found) = (self.store.manifest(), &self.statistics);
        let same = self.built == manifest.chunks.len()
            && found.nnz() == manifest.nnz
            && found.sum_squares().to_bits() == manifest.sum_squares.to_bits()
            && found.value_min().to_bits() == manifest.value_min.to_bits()
            && found.value_max().to_bits() == manifest.value_max.to_bits()
            && found.longest_row_bounds() == manifest.longest_row_bounds;
        let path = self.store.path().join("manifest");
        if same { Ok(()) } else { Err(Error::corrupt(path, "the statistics are not those of the nonzeros")) }
    }

    /// Checks the order within a tile and with the one before, and gathers its nonzeros.
    fn nonzeros(&mut self, batch: &Batch<'_>, t: usize) -> Result<Vec<Nonzero<u128>>> {
        let tile = batch.tile(t);
        let order = tile.order();
        let mut nonzeros = Vec::with_capacity(tile.nnz);
        let mut at = [0; ORDER_MAX];
        for (i, &value) in tile.values.iter().enumerate() {
            at[..order].iter_mut().enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
            let linear = self.linearizer.scatter(&at[..order]);
            let place = || format!("tile {} of the store, nonzero {i}", batch.first_tile + t as u64);
            let nonzero = Nonzero { linear, value };
            let rises = self.previous.is_none_or(|last| last.linear < linear);
            let repeats =
                self.previous.is_some_and(|last| last.linear == linear && last.order(&nonzero).is_le());
            if !rises && !repeats {
                return Err(Error::corrupt(self.path(), format!("{}: out of order", place())));
            }
            if repeats && !self.store.manifest().may_repeat {
                return Err(Error::corrupt(self.path(), format!("{}: a coordinate is repeated", place())));
            }
            self.previous = Some(nonzero);
            nonzeros.push(nonzero);
        }
        Ok(nonzeros)
    }

    /// Holds a chunk that was built again against the stored one.
    fn compare(&mut self, built: Option<BuiltChunk>) -> Result<()> {
        let Some(built) = built else { return Ok(()) };
        let number = self.built;
        self.built += 1;
        let path = self.store.chunk_path(number);
        let wrong = |what: &str| Error::corrupt(&path, format!("chunk {number}: {what}"));
        let (Some(entry), Some(&(encoding, checksum))) =
            (self.store.manifest().chunks.get(number), self.stored.get(number))
        else {
            return Err(wrong("the store is cut into fewer chunks than it should be"));
        };
        if u64::from(built.header.nnz) != entry.nnz {
            return Err(wrong(&format!("cut at {} nonzeros, it should be {}", entry.nnz, built.header.nnz)));
        }
        let ranges = [built.entry.first_linear, built.entry.last_linear]
            == [entry.first_linear, entry.last_linear]
            && built.entry.row_low == entry.row_low
            && built.entry.row_high == entry.row_high;
        if !ranges {
            let what = format!("chunk {number}: linear and row ranges are not those of the nonzeros");
            return Err(Error::corrupt(self.store.path().join("manifest"), what));
        }
        if built.header.value_encoding != encoding || xxh3_64(&built.image[HEADER_BYTES..]) != checksum {
            return Err(wrong("the nonzeros are not encoded as they should be"));
        }
        Ok(())
    }
}

impl HostOp for Verify<'_> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        self.stored.push((chunk.value_encoding() as u8, xxh3_64(&chunk.image()[HEADER_BYTES..])));
        Ok(())
    }

    fn batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let tiles: Vec<_> = (0..batch.tiles()).map(|t| self.nonzeros(batch, t)).collect::<Result<_>>()?;
        let encoded: Vec<EncodedTile> = tiles.par_iter().map(|tile| self.encoder.encode(tile)).collect();
        for tile in &encoded {
            self.statistics.add(tile);
            let closed = self.builder.push(tile);
            self.compare(closed)?;
        }
        Ok(())
    }
}
