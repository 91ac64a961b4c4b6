//! Cutting: turns sorted nonzeros into chunks of any format and gathers statistics. Tiles are encoded in parallel;
//! chunks are assembled in order.

use super::{ChunkBuilder, ClosedChunk, Format, Made, Neumaier, SortedTile, Statistics, TileWorker};
use crate::chunk::Version;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::linear::{Key, Linearizer, Nonzero};
use crate::shape::Shape;
use rayon::prelude::*;
use std::sync::Arc;

/// Nonzeros of the tiles encoded together: enough work for every thread in little memory.
pub(crate) const PENDING_NNZ: usize = 128 * TILE_NNZ;

/// Bytes that a cutter for `format` holds outside its open chunk: waiting nonzeros of `nonzero_bytes` each, and two
/// groups of tiles.
pub(crate) fn waiting_bytes(format: &Format, order: usize, nonzero_bytes: usize) -> usize {
    let piece = 4 * order + size_of::<f64>() + format.made_bytes(order);
    PENDING_NNZ * (nonzero_bytes + 2 * piece)
}

/// The most nonzeros in a chunk of whole tiles.
pub(super) fn chunk_nnz_max(chunk_bytes: u64) -> usize {
    let tiles = (chunk_bytes / 4 / TILE_NNZ as u64).max(1);
    usize::try_from(tiles).map_or(usize::MAX, |t| t * TILE_NNZ)
}

/// The smallest bound on a chunk's image that allows `nnz` nonzeros of whole tiles in `image_bytes`.
pub(super) fn chunk_bytes_least(nnz: u32, image_bytes: u32) -> u64 {
    (4 * u64::from(nnz)).max(image_bytes.into())
}

/// Tiles, and what was made of each. The first `filled` wait to be assembled; all are reused, because memory that one thread
/// allocates and another frees stays with the first thread's allocator.
#[derive(Debug, Default)]
struct Group {
    tiles: Vec<SortedTile>,
    made: Vec<Made>,
    filled: usize,
}

/// Receives finished chunks in order.
type Sink<'a> = &'a mut (dyn FnMut(ClosedChunk) -> Result<()> + Send);

/// Cuts sorted nonzeros into chunks. One group of tiles is assembled and counted while the next one is encoded.
#[derive(Debug)]
pub struct Cutter<K> {
    order: usize,
    linearizer: Linearizer<K>,
    worker: Option<Arc<dyn TileWorker>>,
    builder: Box<dyn ChunkBuilder>,
    statistics: Statistics,
    /// Nonzeros of a group, at most.
    group_nnz: usize,
    pending: Vec<Nonzero<K>>,
    /// The group that waits to be assembled, and the next one.
    ready: Group,
    next: Group,
}

impl Group {
    /// Assembles its tiles into chunks and counts them.
    fn assemble(
        &mut self,
        builder: &mut dyn ChunkBuilder,
        statistics: &mut Statistics,
        sink: Sink<'_>,
    ) -> Result<()> {
        let tiles = &self.tiles[..self.filled];
        let mut pieces = tiles.iter().zip(&mut self.made);
        let build = || pieces.try_for_each(|(tile, made)| builder.push(tile, made, sink));
        rayon::join(build, || statistics.add(tiles.iter())).0
    }
}

impl<K: Key> Cutter<K> {
    /// A cutter for tensors of `shape` into chunks of `format`, by the rules of `version`, with images of at most
    /// `chunk_bytes`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, format: &Format, chunk_bytes: u64) -> Self {
        let record = format.record();
        let builder = format.builder(version, shape, chunk_bytes);
        let levels = format.tree_levels();
        Self {
            order: shape.order(),
            linearizer: Linearizer::new(&record.bit_layout(shape)),
            worker: builder.worker(),
            builder,
            statistics: Statistics::new(shape.order(), levels.as_ref()),
            group_nnz: PENDING_NNZ,
            pending: Vec::new(),
            ready: Group::default(),
            next: Group::default(),
        }
    }

    /// The same for a partition whose sum of squares continues that of the cover's earlier partitions.
    #[must_use]
    pub fn following(self, squares: Neumaier) -> Self {
        Self { statistics: self.statistics.following(squares), ..self }
    }

    /// Works on groups of up to `group_nnz` nonzeros, a multiple of [`TILE_NNZ`], instead of [`PENDING_NNZ`].
    #[must_use]
    pub fn in_groups_of(self, group_nnz: usize) -> Self {
        Self { group_nnz, ..self }
    }

    /// Takes the next nonzeros in the format's order; chunks that are cut go to `sink`. Half a group and more is worked on where it lies; fewer
    /// nonzeros wait for others.
    pub fn push(&mut self, mut nonzeros: &[Nonzero<K>], sink: Sink<'_>) -> Result<()> {
        while self.pending.len() + nonzeros.len() >= self.group_nnz / 2 {
            let mut pending = std::mem::take(&mut self.pending);
            // What waits is filled up to whole tiles.
            let fill = pending.len().next_multiple_of(TILE_NNZ) - pending.len();
            let (fill, rest) = nonzeros.split_at(fill);
            pending.extend_from_slice(fill);
            let room = self.group_nnz - pending.len();
            let (whole, rest) = rest.split_at(rest.len().min(room) / TILE_NNZ * TILE_NNZ);
            self.work(&pending, whole, sink)?;
            pending.clear();
            (self.pending, nonzeros) = (pending, rest);
        }
        self.pending.extend_from_slice(nonzeros);
        Ok(())
    }

    /// Works on tiles of `waiting` and of `nonzeros` behind them, and assembles those before.
    fn work(&mut self, waiting: &[Nonzero<K>], nonzeros: &[Nonzero<K>], sink: Sink<'_>) -> Result<()> {
        let Self { order, linearizer, worker, builder, statistics, ready, next, .. } = self;
        next.filled = waiting.len().div_ceil(TILE_NNZ) + nonzeros.len().div_ceil(TILE_NNZ);
        let room = next.filled.max(next.tiles.len());
        next.tiles.resize_with(room, SortedTile::default);
        next.made.resize_with(room, Made::default);
        let sorted = waiting.par_chunks(TILE_NNZ).chain(nonzeros.par_chunks(TILE_NNZ));
        let pieces = sorted.zip(&mut next.tiles).zip(&mut next.made);
        let assemble = || ready.assemble(&mut **builder, statistics, sink);
        let work = || {
            pieces.for_each(|((nonzeros, tile), made)| {
                tile.gather(linearizer, *order, nonzeros);
                if let Some(worker) = &*worker {
                    worker.work(tile, made);
                }
            });
        };
        let (assembled, ()) = rayon::join(assemble, work);
        std::mem::swap(ready, next);
        assembled
    }

    /// Finishes the last chunk. Returns the statistics of all nonzeros.
    pub fn finish(mut self, sink: Sink<'_>) -> Result<Statistics> {
        let pending = std::mem::take(&mut self.pending);
        self.work(&pending, &[], sink)?;
        let Self { mut builder, mut statistics, mut ready, .. } = self;
        ready.assemble(&mut *builder, &mut statistics, sink)?;
        builder.finish(sink)?;
        Ok(statistics)
    }
}
