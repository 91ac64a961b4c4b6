//! The host backend: decodes chunks a batch of tiles at a time on the current rayon pool and hands each
//! batch to an operation. Tiles are decoded once, whatever the operation computes from them. An operation may take a whole
//! chunk instead and decode it itself, as MTTKRP's threads do with the tiles of their groups (`TileRoom`).

use super::Squares;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::tree::Recent;
use crate::format::{ChunkView, DecodedTile, Decoder};
use crate::shape::ORDER_MAX;
use crate::store::{ChunkHeader, Partition, Store};
use crate::stream::{Backend, DevicePass, Free, Inspector, LoadedChunk, Span, Stage};
use crate::sys::{PageBuf, Sys};
use rayon::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Tiles in a batch that `threads` threads share. The decoded tiles fit the threads' caches, and each thread has enough
/// that none waits long for the last.
fn batch_tiles(threads: usize) -> usize {
    (64 * threads).clamp(128, 1024)
}

/// An operation on a store's nonzeros, on the CPU.
pub trait HostOp {
    /// The chunks that come now are of another partition: at this place among those of the store's view. A pass begins with it.
    #[doc(hidden)]
    fn part(&mut self, _part: usize) -> Result<()> {
        Ok(())
    }

    /// Looks at the next chunk before its tiles come.
    #[doc(hidden)]
    fn chunk(&mut self, _chunk: &ChunkView<'_>) -> Result<()> {
        Ok(())
    }

    /// Whether [`HostOp::batch`] is to get the tiles of the chunks that come now: not where [`HostOp::chunk`] takes all that it needs.
    #[doc(hidden)]
    fn takes_tiles(&self) -> bool {
        true
    }

    /// Processes the next tiles, in order. A tile that spans two chunks arrives in two parts. The result must not
    /// depend on how tiles are divided into batches, nor on the number of threads.
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()>;

    /// Whether it holds everything that it needs of all chunks from earlier passes. Then no chunks are
    /// loaded.
    #[doc(hidden)]
    fn holds_store(&self) -> bool {
        false
    }

    /// Whether it needs nothing of chunk `number`: that one does not come.
    #[doc(hidden)]
    fn skips(&self, _number: usize) -> bool {
        false
    }

    /// The pass's last tiles have come.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An operation that is lent.
impl<O: HostOp> HostOp for &mut O {
    fn part(&mut self, part: usize) -> Result<()> {
        (**self).part(part)
    }

    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        (**self).chunk(chunk)
    }

    fn takes_tiles(&self) -> bool {
        (**self).takes_tiles()
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        (**self).batch(batch)
    }

    fn holds_store(&self) -> bool {
        (**self).holds_store()
    }

    fn skips(&self, number: usize) -> bool {
        (**self).skips(number)
    }

    fn end(&mut self) -> Result<()> {
        (**self).end()
    }
}

/// Two operations from one pass.
impl<A: HostOp, B: HostOp> HostOp for (A, B) {
    fn part(&mut self, part: usize) -> Result<()> {
        self.0.part(part)?;
        self.1.part(part)
    }

    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        self.0.chunk(chunk)?;
        self.1.chunk(chunk)
    }

    fn takes_tiles(&self) -> bool {
        self.0.takes_tiles() || self.1.takes_tiles()
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        self.0.batch(batch)?;
        self.1.batch(batch)
    }

    fn holds_store(&self) -> bool {
        self.0.holds_store() && self.1.holds_store()
    }

    fn skips(&self, number: usize) -> bool {
        self.0.skips(number) && self.1.skips(number)
    }

    fn end(&mut self) -> Result<()> {
        self.0.end()?;
        self.1.end()
    }
}

/// Vector instructions that inner loops are compiled for. Results are the same with all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vectors {
    /// The widest that the machine has.
    #[default]
    Widest,
    /// AVX2, where the machine has it.
    Avx2,
    /// Those of every machine of the architecture.
    Baseline,
}

impl Vectors {
    /// These, or AVX2 in place of wider ones.
    #[must_use]
    pub fn narrow(self) -> Self {
        if self == Self::Widest { Self::Avx2 } else { self }
    }

    /// What `pulp` calls it.
    #[must_use]
    pub fn arch(self) -> pulp::Arch {
        match self {
            Self::Widest => pulp::Arch::new(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().map_or(pulp::Arch::Scalar, pulp::Arch::V3),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 => pulp::Arch::new(),
            Self::Baseline => pulp::Arch::Scalar,
        }
    }
}

/// What is known about a decoded tile.
#[derive(Clone, Copy, Debug, Default)]
struct TileMeta {
    nnz: usize,
    low: [u32; ORDER_MAX],
    high: [u32; ORDER_MAX],
}

/// Consecutive decoded tiles.
#[derive(Debug)]
pub struct Tiles<'a> {
    /// The number of the first tile in the store.
    pub first_tile: u64,
    order: usize,
    metas: &'a [TileMeta],
    indices: &'a [u32],
    values: &'a [f64],
}

impl<'a> Tiles<'a> {
    /// None, of a tensor of `order`.
    #[must_use]
    pub(crate) fn none(order: usize) -> Self {
        Self { first_tile: 0, order, metas: &[], indices: &[], values: &[] }
    }

    /// The number of tiles.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.metas.len()
    }

    /// The smallest and the largest index of `mode` in tile `t`.
    #[must_use]
    #[inline(always)]
    pub fn range(&self, t: usize, mode: usize) -> (u32, u32) {
        (self.metas[t].low[mode], self.metas[t].high[mode])
    }

    /// Tile `t` of the batch.
    #[must_use]
    pub fn tile(&self, t: usize) -> DecodedTile<'a> {
        let meta = &self.metas[t];
        DecodedTile {
            nnz: meta.nnz,
            low: meta.low,
            high: meta.high,
            indices: &self.indices[t * self.order * TILE_NNZ..][..self.order * TILE_NNZ],
            values: &self.values[t * TILE_NNZ..][..meta.nnz],
        }
    }
}

/// Room for decoded tiles of a tensor.
#[derive(Debug)]
pub(crate) struct TileRoom {
    order: usize,
    metas: Vec<TileMeta>,
    indices: Vec<u32>,
    values: Vec<f64>,
    recent: Recent,
}

impl TileRoom {
    /// For `tiles` tiles of a tensor of `order`.
    pub(crate) fn new(sys: &Sys, order: usize, tiles: usize) -> Result<Self> {
        Ok(Self {
            order,
            metas: sys.vec(TileMeta::default(), tiles)?,
            indices: sys.vec(0, tiles * order * TILE_NNZ)?,
            values: sys.vec(0.0, tiles * TILE_NNZ)?,
            recent: Recent::default(),
        })
    }

    /// Bytes of such a room.
    pub(crate) fn bytes(order: usize, tiles: usize) -> u64 {
        (tiles * (TILE_NNZ * (4 * order + 8) + size_of::<TileMeta>()) + Recent::bytes(order)) as u64
    }

    /// Decodes consecutive tiles of a chunk on this thread.
    pub(crate) fn decode(
        &mut self,
        view: &ChunkView<'_>,
        tiles: Range<usize>,
        vectors: pulp::Arch,
    ) -> Result<Tiles<'_>> {
        let indices = self.indices.chunks_exact_mut(self.order * TILE_NNZ);
        let rooms = indices.zip(self.values.chunks_exact_mut(TILE_NNZ)).zip(&mut self.metas);
        let recent = &mut self.recent;
        recent.clear();
        for (t, ((indices, values), meta)) in tiles.clone().zip(rooms) {
            vectors.dispatch(DecodeTile { view, t, recent, indices, values, meta })?;
        }
        Ok(self.tiles(view, tiles))
    }

    /// The same on all threads.
    fn par_decode(
        &mut self,
        view: &ChunkView<'_>,
        tiles: Range<usize>,
        vectors: pulp::Arch,
    ) -> Result<Tiles<'_>> {
        let indices = self.indices.par_chunks_exact_mut(self.order * TILE_NNZ);
        let rooms = indices.zip(self.values.par_chunks_exact_mut(TILE_NNZ)).zip(&mut self.metas);
        let rooms = rooms.zip(tiles.clone());
        rooms.try_for_each_init(Recent::default, |recent, (((indices, values), meta), t)| {
            vectors.dispatch(DecodeTile { view, t, recent, indices, values, meta })
        })?;
        Ok(self.tiles(view, tiles))
    }

    fn tiles(&self, view: &ChunkView<'_>, tiles: Range<usize>) -> Tiles<'_> {
        Tiles {
            first_tile: view.first_tile() + tiles.start as u64,
            order: self.order,
            metas: &self.metas[..tiles.len()],
            indices: &self.indices,
            values: &self.values,
        }
    }
}

/// Runs an operation on the host.
#[derive(Debug)]
pub struct HostBackend<O> {
    op: O,
    host: Host,
}

/// All of a backend but the operation.
#[derive(Debug)]
struct Host {
    sys: Sys,
    /// Of each partition of the store's view, by its number in the store; the one at `part` decodes.
    decoders: Arc<[(u32, Decoder)]>,
    part: Option<usize>,
    store_path: PathBuf,
    room: TileRoom,
    free: Option<Free<PageBuf>>,
    vectors: pulp::Arch,
    /// What the next pass is to check.
    squares: Option<Squares>,
    /// When the pass began, and what was computed when since then.
    begun: Instant,
    spans: Vec<Span>,
}

/// Bytes that `threads` threads take where they compute an operation, beside their stacks: what the allocator keeps for each.
#[must_use]
pub fn computing_bytes(threads: usize) -> u64 {
    (1 << 20) + threads as u64 * (128 << 10)
}

/// Bytes of memory of a host backend with `threads` threads for tensors of `order`; 1 for one made by
/// [`HostBackend::new`]. Does not count the tiles of trees that each other thread keeps ([`Recent`]).
#[must_use]
pub fn decoded_bytes(order: usize, threads: usize) -> u64 {
    TileRoom::bytes(order, batch_tiles(threads))
}

impl<O: HostOp> HostBackend<O> {
    /// A backend that hands the tiles of `store` to `op`.
    pub fn new(store: &Store, op: O) -> Result<Self> {
        Self::for_threads(store, op, 1)
    }

    /// Like [`HostBackend::new`], with batches for an operation that `threads` threads share.
    pub fn for_threads(store: &Store, op: O, threads: usize) -> Result<Self> {
        let (sys, order) = (store.sys(), store.manifest().shape.order());
        let host = Host {
            sys: sys.clone(),
            decoders: decoders(store),
            part: None,
            store_path: store.path().to_path_buf(),
            room: TileRoom::new(sys, order, batch_tiles(threads))?,
            free: None,
            vectors: Vectors::Widest.arch(),
            squares: None,
            begun: Instant::now(),
            spans: Vec::new(),
        };
        Ok(Self { op, host })
    }

    /// The same, decoding with other vector instructions than the widest.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.host.vectors = vectors.arch();
        self
    }

    /// Has the next pass, which brings every chunk from its file, check the store's sum of squares.
    #[must_use]
    pub fn with_squares(mut self, squares: Squares) -> Self {
        self.host.squares = Some(squares);
        self
    }

    /// The same with another operation in place of this one, which it may be made of.
    pub fn try_map<P>(self, make: impl FnOnce(O) -> Result<P>) -> Result<HostBackend<P>> {
        Ok(HostBackend { op: make(self.op)?, host: self.host })
    }

    /// The operation.
    pub fn op(&mut self) -> &mut O {
        &mut self.op
    }

    /// The operation alone.
    pub fn into_op(self) -> O {
        self.op
    }
}

/// Decoders of the partitions of a store's view, each with its number in the store.
fn decoders(store: &Store) -> Arc<[(u32, Decoder)]> {
    let manifest = store.manifest();
    let numbers = store.parts().map(|(partition, _)| u32::try_from(partition).unwrap_or(u32::MAX));
    let decoder =
        |(number, partition): (u32, &Partition)| (number, Decoder::new(&manifest.shape, &partition.format));
    numbers.zip(&manifest.partitions).map(decoder).collect()
}

/// The place among the view's partitions of a chunk's, which was checked when it was loaded.
fn part_of(decoders: &[(u32, Decoder)], header: &ChunkHeader) -> usize {
    decoders.iter().position(|(number, _)| *number == header.partition).unwrap_or(0)
}

/// Decodes a tile of a chunk into its room.
struct DecodeTile<'a, 'v> {
    view: &'a ChunkView<'v>,
    t: usize,
    recent: &'a mut Recent,
    indices: &'a mut [u32],
    values: &'a mut [f64],
    meta: &'a mut TileMeta,
}

/// Compiled for the machine's vectors. (A closure called through a shim would not be: its body is inlined into the
/// shim, which `pulp` does not compile for these vectors.)
impl pulp::WithSimd for DecodeTile<'_, '_> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let tile = self.view.decode(self.t, self.recent, self.indices, self.values)?;
        *self.meta = TileMeta { nnz: tile.nnz, low: tile.low, high: tile.high };
        Ok(())
    }
}

impl<O: HostOp> Backend for HostBackend<O> {
    type Buffer = PageBuf;

    fn buffer(&mut self, bytes: usize) -> Result<PageBuf> {
        self.host.sys.page_buf(bytes)
    }

    fn holds(&self, number: usize) -> bool {
        self.op.holds_store() || self.op.skips(number)
    }

    fn inspector(&self) -> Option<Inspector> {
        let squares = self.host.squares.clone()?;
        let (decoders, directory) = (Arc::clone(&self.host.decoders), self.host.store_path.clone());
        Some(Arc::new(move |header, image| {
            let path = Store::chunk_path_in(&directory, header.number as usize);
            let decoder = &decoders[part_of(&decoders, header)].1;
            squares.add(&ChunkView::open(decoder, header, image, path)?)
        }))
    }

    fn begin(&mut self) -> Result<()> {
        self.host.begun = Instant::now();
        self.host.part = None;
        self.host.spans.clear();
        Ok(())
    }

    fn submit(&mut self, chunk: LoadedChunk<PageBuf>) -> Result<()> {
        let LoadedChunk { header, buffer, owner } = chunk;
        let Self { op, host } = self;
        let start = host.begun.elapsed().as_secs_f64();
        let image = &buffer[..header.image_bytes as usize];
        let path = Store::chunk_path_in(&host.store_path, header.number as usize);
        let (decoders, part) = (Arc::clone(&host.decoders), part_of(&host.decoders, &header));
        let view = ChunkView::open(&decoders[part].1, &header, image, path)?;
        if host.part.replace(part) != Some(part) {
            op.part(part)?;
        }
        op.chunk(&view)?;
        let tiles_of_chunk = if op.takes_tiles() { view.tiles() } else { 0 };
        let most = host.room.metas.len();
        for first in (0..tiles_of_chunk).step_by(most) {
            let tiles = first..tiles_of_chunk.min(first + most);
            op.batch(&host.room.par_decode(&view, tiles, host.vectors)?)?;
        }
        drop(view);
        host.free = Some(Free { buffer, owner });
        let (chunk, end) = (Some(header.number as usize), host.begun.elapsed().as_secs_f64());
        host.spans.push(Span { stage: Stage::Compute, lane: 0, chunk, start, end });
        Ok(())
    }

    fn take_free(&mut self, _wait: bool) -> Result<Option<Free<PageBuf>>> {
        Ok(self.host.free.take())
    }

    fn end(&mut self, spans: &mut Vec<Span>) -> Result<Option<DevicePass>> {
        let (begun, holds) = (self.host.begun, self.op.holds_store());
        let start = begun.elapsed().as_secs_f64();
        self.op.end()?;
        if holds {
            let end = begun.elapsed().as_secs_f64();
            self.host.spans.push(Span { stage: Stage::Compute, lane: 0, chunk: None, start, end });
        }
        spans.append(&mut self.host.spans);
        self.host.squares.take().map_or(Ok(()), |squares| squares.check())?;
        Ok(None)
    }
}
