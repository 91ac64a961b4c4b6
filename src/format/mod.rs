//! Formats: turn sorted nonzeros into chunk images, and read them back through checked views.
//!
//! A format is one file or folder that implements [`ChunkFormat`]: what manifests record about it, a [`ChunkBuilder`]
//! that cuts sorted nonzeros into chunks, and a [`Decoder`] that reads them. [`Formats`] knows all formats, including
//! those that the caller registers. [`Cutter`] makes chunks of any format and [`ChunkView`] returns the nonzeros of any
//! format in tiles, so packer, verifier and operations depend on none of them. Code that can use more than nonzeros
//! asks for it: [`ChunkView::tree`], [`Format::layout`]. Decoding of built-in formats is inlined; a registered format's
//! [`NonzeroView`] is called once per tile.

pub mod bcsf;
pub mod blco;
mod coordinates;
pub mod csf;
mod cut;
pub mod fcoo;
mod fiber_counts;
mod gathered;
pub mod hbcsf;
pub mod hocfs;
pub mod mmcsf;
mod other;
mod partitions;
mod registry;
mod segments;
mod statistics;
pub mod tree;
mod trees;
mod values;

pub use cut::Cutter;
pub(crate) use cut::{PENDING_NNZ, waiting_bytes};
use cut::{chunk_bytes_least, chunk_nnz_max};
pub use fiber_counts::FiberCounts;
pub use gathered::SortedTile;
pub use partitions::{PartitionPlan, PartitionRecord, Scheme, SliceKind, Takes, Trees, all_modes};
pub use registry::{Format, FormatRecord, Formats, Layout, PRIVATE_CODE};
pub use statistics::{FIBER_LENGTHS, GROUP_SIZES, Neumaier, PartitionStatistics, Statistics, Totals};

use crate::chunk::{ChunkCodes, ChunkHeader, ImageWriter, SectionKind, Version};
use crate::encoding::TILE_NNZ;
use crate::encoding::values::ValueEncoding;
use crate::error::{Error, Result};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use std::any::Any;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use values::{
    ValueSection, WRONG_SECTIONS, aligned, check_dims, check_frame, tile_records, value_cost, value_section,
    wrong_section,
};

/// A format with its parameters.
///
/// [`EngineBuilder::format`](crate::EngineBuilder::format) registers one;
/// [`PackOptions::format`](crate::PackOptions::format) packs a tensor in it. tests/formats.rs in the repository has a
/// complete example: plain coordinates.
pub trait ChunkFormat: Debug + Send + Sync + 'static {
    /// Its code; 2^31 or more for a private format.
    fn code() -> u32
    where
        Self: Sized;

    /// Reads the format from a manifest's record, for a tensor of `order`, or returns what is wrong.
    fn read(record: &FormatRecord, order: usize) -> Checked<Self>
    where
        Self: Sized;

    /// Reads the format from a chunk, for a store whose manifest is lost, or returns what is wrong. If a chunk does not
    /// reveal all parameters, such a store cannot be salvaged. The header has been checked, its sections have not.
    fn of_chunk(header: &ChunkHeader, image: &[u8]) -> Checked<Self>
    where
        Self: Sized;

    /// What manifests record about it.
    fn record(&self) -> FormatRecord;

    /// The name that users see.
    fn name(&self) -> &'static str;

    /// How indices are encoded, as users see it.
    fn encoding(&self) -> &'static str {
        self.name()
    }

    /// All parameters as on a command line. Jobs with equal text must make equal chunks.
    fn options(&self) -> String {
        format!("--format {} {:?}", self.name(), self.record())
    }

    /// Whether all chunks of a store except the last hold whole tiles.
    fn cuts_at_tiles(&self) -> bool {
        true
    }

    /// The fewest bytes of an image per nonzero. Bounds a chunk's nonzeros.
    fn nonzero_bytes_min(&self) -> u64;

    /// Whether chunks may have the value encoding of this code, one of [`ValueEncoding`]'s.
    fn has_value_encoding(&self, code: u8) -> bool;

    /// Bytes that a builder takes for an open chunk whose image has at most `chunk_bytes`, including buffers of
    /// constant size.
    fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64;

    /// The same for rebuilding chunks with these headers and images of at most `chunk_bytes`.
    #[doc(hidden)]
    fn rebuilt_chunk_bytes(
        &self,
        chunk_bytes: u64,
        _headers: &mut dyn Iterator<Item = Result<ChunkHeader>>,
    ) -> Result<u64> {
        Ok(self.open_chunk_bytes(chunk_bytes))
    }

    /// The most bytes that a [`TileWorker`] produces per nonzero of a tensor of `order`.
    fn made_bytes(&self, _order: usize) -> usize {
        0
    }

    /// The smallest bound on images that allows a chunk of `nnz` nonzeros with an image of `image_bytes`.
    fn chunk_bytes_least(&self, _nnz: u32, image_bytes: u32) -> u64 {
        image_bytes.into()
    }

    /// A builder of chunks for a tensor of `shape`, by the rules of a container version, with images of at most
    /// `chunk_bytes`.
    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder>;

    /// A decoder for chunks of a tensor of `shape`.
    fn decoder(&self, shape: &Shape) -> Decoder;

    /// Checks the partition at index `at`, which has this format, against all partitions of a store of a tensor of
    /// `order`.
    #[doc(hidden)]
    fn check_among(&self, all: &[PartitionRecord], _at: usize, order: usize) -> Checked<()> {
        partitions::check_alone(all, order)
    }

    /// How far its sort order is from `mode`: 0 if the nonzeros of a row are contiguous. The nearest cover serves a
    /// mode.
    #[doc(hidden)]
    fn distance(&self, _mode: usize) -> usize {
        0
    }

    /// The order of modes of the tree along which the CPU adds up sums. `None` multiplies out each nonzero.
    #[doc(hidden)]
    fn traversal(&self) -> Option<ModeOrder> {
        None
    }

    /// For layout `segments`: bit m is set if mode m is a product mode.
    #[doc(hidden)]
    fn product_modes(&self) -> u32 {
        0
    }

    /// The most slots that `nnz` nonzeros of a chunk take. Of formats without padding: as many.
    #[doc(hidden)]
    fn slots_max(&self, nnz: u64) -> u64 {
        nnz
    }

    /// Of F-COO: the nonzeros of a thread, which share a start flag.
    fn thread_nnz(&self) -> Option<u32> {
        None
    }

    /// Partitions with equal keys form one cover if no manifest lists the covers.
    #[doc(hidden)]
    fn cover_key(&self) -> u32 {
        self.record().layout.0.into()
    }

    /// The modes that a partition serves if there are several covers.
    #[doc(hidden)]
    fn target_alone(&self) -> u32 {
        self.record().levels.map_or(u32::MAX, |levels| 1 << levels.mode(0))
    }

    /// The nonzeros that a partition takes when a store is packed again.
    #[doc(hidden)]
    fn takes(&self) -> Takes {
        Takes::All
    }

    /// Bytes that a partition's indices take by the formula of the format's paper; none where the format has no paper.
    #[doc(hidden)]
    fn paper_index_bytes(&self, _counts: &FiberCounts) -> Option<u64> {
        None
    }

    /// The partitions that may share a cover with one of `plan`, which has this format, and that may be empty.
    #[doc(hidden)]
    fn beside(&self, _plan: &PartitionPlan) -> Vec<PartitionPlan> {
        Vec::new()
    }
}

/// A checked value, or what is wrong.
pub type Checked<T> = std::result::Result<T, &'static str>;

/// The output of a [`TileWorker`] for a tile. What a builder leaves there is passed in again for another tile, so that its memory is
/// reused.
pub type Made = Option<Box<dyn Any + Send + Sync>>;

/// Receives finished chunks.
pub type ChunkSink<'a> = &'a mut dyn FnMut(ClosedChunk) -> Result<()>;

/// Cuts a partition's nonzeros into chunks.
pub trait ChunkBuilder: Debug + Send {
    /// The part of the work that needs only one tile and that any thread can do before tiles are pushed.
    fn worker(&self) -> Option<Arc<dyn TileWorker>> {
        None
    }

    /// Takes the next tile, in order, with its worker's output, which it may keep, and passes finished chunks to `sink`. All
    /// tiles but the last are full. Where chunks end must depend only on the nonzeros. The builder may hold at most three
    /// chunks' worth of nonzeros.
    fn push(&mut self, tile: &SortedTile, made: &mut Made, sink: ChunkSink<'_>) -> Result<()>;

    /// Closes the last chunk.
    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()>;
}

/// Work on single tiles, on any thread.
pub trait TileWorker: Debug + Send + Sync {
    /// Prepares `tile` for the builder.
    fn work(&self, tile: &SortedTile, made: &mut Made);
}

/// A chunk whose nonzeros are final. Any thread can build its image later.
pub struct ClosedChunk(Box<dyn FnOnce() -> BuiltChunk + Send>);

impl ClosedChunk {
    /// A chunk built by `build`.
    #[must_use]
    pub fn new(build: impl FnOnce() -> BuiltChunk + Send + 'static) -> Self {
        Self(Box::new(build))
    }

    /// Makes its image.
    #[must_use]
    pub fn build(self) -> BuiltChunk {
        (self.0)()
    }
}

/// A chunk that is already built.
impl From<BuiltChunk> for ClosedChunk {
    fn from(chunk: BuiltChunk) -> Self {
        Self::new(|| chunk)
    }
}

impl Debug for ClosedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClosedChunk").finish_non_exhaustive()
    }
}

/// A finished chunk.
#[derive(Debug)]
pub struct BuiltChunk {
    /// The header; its place in the store is still open.
    pub header: ChunkHeader,
    /// The image; the header's bytes are still zero.
    pub image: Vec<u8>,
    /// What the manifest lists about its nonzeros.
    pub ranges: ChunkRanges,
}

/// The ranges of a chunk's nonzeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkRanges {
    /// Nonzeros.
    pub nnz: usize,
    /// Linear indices of the first and the last nonzero.
    pub linear: [u128; 2],
    /// Smallest index of each mode.
    pub row_low: [u32; ORDER_MAX],
    /// Largest index of each mode.
    pub row_high: [u32; ORDER_MAX],
}

impl ChunkRanges {
    /// Extends the ranges by one tile.
    pub fn add(&mut self, tile: &SortedTile) {
        if self.nnz == 0 {
            *self = Self { nnz: 0, linear: tile.linear, row_low: tile.low, row_high: tile.high };
        }
        self.nnz += tile.values.len();
        self.linear[1] = tile.linear[1];
        self.row_low.iter_mut().zip(tile.low).for_each(|(low, index)| *low = index.min(*low));
        self.row_high.iter_mut().zip(tile.high).for_each(|(high, index)| *high = index.max(*high));
    }
}

impl BuiltChunk {
    /// A chunk of a registered format with the nonzeros of `ranges` in these sections. Their kinds must ascend and be
    /// private, from 2^31 up.
    ///
    /// # Panics If the kinds are invalid, or if there are more nonzeros, bytes or sections than a chunk can have.
    #[must_use]
    pub fn new(
        version: Version,
        shape: &Shape,
        codes: ChunkCodes,
        ranges: ChunkRanges,
        sections: &[(SectionKind, &[u8])],
    ) -> Self {
        let bytes: usize = sections.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut image = ImageWriter::with_capacity(version, 1 + sections.len(), bytes);
        image
            .section(SectionKind::Shape, |out| out.extend(shape.dims().iter().flat_map(|d| d.to_le_bytes())));
        let mut last = PRIVATE_CODE - 1;
        for &(kind, bytes) in sections {
            assert!(kind.0 > last, "private kinds, ascending");
            last = kind.0;
            image.section(kind, |out| out.extend_from_slice(bytes));
        }
        let nnz = u32::try_from(ranges.nnz).expect("a chunk has fewer than 2^32 nonzeros");
        let (header, image) = image.finish(u8::try_from(shape.order()).expect("at most 8 modes"), nnz, codes);
        Self { header, image, ranges }
    }
}

/// The decoded nonzeros of one tile of the store, or of the part of it in a chunk. Host operations work on these.
///
/// `indices` has one column of 512 for each mode. Slots from `nnz` on hold indices inside the dims and arbitrary
/// values.
#[derive(Debug)]
pub struct DecodedTile<'a> {
    /// Nonzeros in the tile.
    pub nnz: usize,
    /// Smallest index of each mode.
    pub low: [u32; ORDER_MAX],
    /// Largest index of each mode.
    pub high: [u32; ORDER_MAX],
    /// Column after column.
    pub indices: &'a [u32],
    /// The values.
    pub values: &'a [f64],
}

impl DecodedTile<'_> {
    /// The indices of `mode`, in the store's order.
    #[must_use]
    pub fn column(&self, mode: usize) -> &[u32] {
        &self.indices[mode * TILE_NNZ..][..self.nnz]
    }

    /// The number of modes.
    #[must_use]
    pub fn order(&self) -> usize {
        self.indices.len() / TILE_NNZ
    }
}

/// Reads the chunks of a registered format.
pub trait ChunkDecoder: Debug + Send + Sync {
    /// Checks a chunk's sections as far as that takes time proportional to the number of tiles, or returns what is
    /// wrong: exactly the expected sections exist, with lengths for `header.nnz` nonzeros, even in a hostile file. The
    /// header, checksums and SHAPE have been checked.
    fn open<'a>(&'a self, header: &ChunkHeader, image: &'a [u8]) -> Checked<Box<dyn NonzeroView + 'a>>;
}

/// The nonzeros of a chunk of a registered format.
pub trait NonzeroView: Debug + Send + Sync {
    /// Decodes nonzeros `range` of the chunk, at most [`TILE_NNZ`], into the start of each column of `indices` (one of
    /// [`TILE_NNZ`] per mode) and the start of `values`. Returns false if a number is out of range. The caller checks
    /// for indices outside the dims and values that are not finite.
    fn decode(&self, range: Range<usize>, indices: &mut [u32], values: &mut [f64]) -> bool;

    /// Whether all values of a dictionary or an f64 section are in the range. Asked before a GPU sorts the chunk's nonzeros, so never of
    /// formats that no kernel reads.
    fn stored_values_within(&self, _low: f64, _high: f64) -> bool {
        true
    }

    /// Bytes of the image that values take.
    fn value_bytes(&self) -> u64;

    /// Bytes of the image that indices take.
    fn index_bytes(&self) -> u64;
}

/// What decoding the chunks of one partition needs. Made once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Decoder {
    /// Of BLCO.
    #[doc(hidden)]
    Blco(blco::BlcoDecoder),
    /// Of trees.
    #[doc(hidden)]
    Tree(tree::TreeDecoder),
    /// Of a registered format, for tensors of this shape.
    Other(Shape, Box<dyn ChunkDecoder>),
}

impl Decoder {
    /// A decoder for chunks of `format` of a tensor of `shape`.
    #[must_use]
    pub fn new(shape: &Shape, format: &Format) -> Self {
        match format.decoder(shape) {
            Self::Other(_, decoder) => Self::Other(shape.clone(), decoder),
            own => own,
        }
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Blco(decoder) => decoder.shape(),
            Self::Tree(decoder) => decoder.shape(),
            Self::Other(shape, _) => shape,
        }
    }
}

/// A chunk's image, checked down to its tiles.
#[derive(Debug)]
pub enum ChunkView<'a> {
    /// Of BLCO.
    Blco(blco::BlcoView<'a>),
    /// Of a tree.
    Tree(tree::TreeView<'a>),
    /// Of a registered format.
    Other(other::OtherView<'a>),
}

/// Calls a method that all views have.
macro_rules! each {
    ($self:expr, $view:ident => $call:expr) => {
        match $self {
            ChunkView::Blco($view) => $call,
            ChunkView::Tree($view) => $call,
            ChunkView::Other($view) => $call,
        }
    };
}

impl<'a> ChunkView<'a> {
    /// Checks `image`, whose header `header` has been checked by the store. `path` is for messages.
    pub fn open(decoder: &'a Decoder, header: &ChunkHeader, image: &'a [u8], path: PathBuf) -> Result<Self> {
        match decoder {
            Decoder::Blco(decoder) => blco::BlcoView::open(decoder, header, image, path).map(Self::Blco),
            Decoder::Tree(decoder) => tree::TreeView::open(decoder, header, image, path).map(Self::Tree),
            Decoder::Other(shape, decoder) => {
                other::OtherView::open(shape, &**decoder, header, image, path).map(Self::Other)
            }
        }
    }

    /// Like [`ChunkView::open`], for a device. Its kernels check numbers but not the padding of a tree's fibers,
    /// so this does.
    pub fn open_for_device(
        decoder: &'a Decoder,
        header: &ChunkHeader,
        image: &'a [u8],
        path: PathBuf,
    ) -> Result<Self> {
        let view = Self::open(decoder, header, image, path)?;
        view.tree().map_or(Ok(()), tree::TreeView::check_padded_tiles)?;
        Ok(view)
    }

    /// The tree, if the chunk holds one.
    #[must_use]
    pub fn tree(&self) -> Option<&tree::TreeView<'a>> {
        if let Self::Tree(view) = self { Some(view) } else { None }
    }

    /// BLCO blocks that have nonzeros in a `raw` chunk.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        if let Self::Blco(view) = self { view.blocks() as u64 } else { 0 }
    }

    /// Tiles of the store that have nonzeros in the chunk.
    #[must_use]
    pub fn tiles(&self) -> usize {
        each!(self, view => view.tiles())
    }

    /// The number of the first tile in the store.
    #[must_use]
    pub fn first_tile(&self) -> u64 {
        each!(self, view => view.first_tile())
    }

    /// Nonzeros of tile `t` that are in the chunk.
    #[must_use]
    pub fn tile_nnz(&self, t: usize) -> usize {
        each!(self, view => view.tile_nnz(t))
    }

    /// The chunk's value encoding.
    #[must_use]
    pub fn value_encoding(&self) -> ValueEncoding {
        each!(self, view => view.value_encoding())
    }

    /// The image without its header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        each!(self, view => view.payload())
    }

    /// Bytes of the image that values take.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        each!(self, view => view.value_bytes())
    }

    /// Bytes of the image that indices take.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        each!(self, view => view.index_bytes())
    }

    /// Whether all values of a dictionary or an f64 section are in the range. Does not check columns and f32 sections.
    #[must_use]
    pub fn stored_values_within(&self, low: f64, high: f64) -> bool {
        each!(self, view => view.stored_values_within(low, high))
    }

    /// Passes the values of all nonzeros to `take`, in order, at most a tile at a time.
    pub fn for_each_values(&self, take: impl FnMut(&[f64])) -> Result<()> {
        each!(self, view => view.for_each_values(take))
    }

    /// Decodes the part of tile `t` that is in the chunk into `indices` (one column of [`TILE_NNZ`] per mode)
    /// and `values`. `recent` holds what earlier calls decoded of the same chunk: [`clear`](tree::Recent::clear) it before
    /// another one.
    #[inline(always)]
    pub fn decode<'b>(
        &self,
        t: usize,
        recent: &mut tree::Recent,
        indices: &'b mut [u32],
        values: &'b mut [f64],
    ) -> Result<DecodedTile<'b>> {
        match self {
            Self::Blco(view) => view.decode(t, indices, values),
            Self::Tree(view) => view.decode(t, recent, indices, values),
            Self::Other(view) => view.decode(t, indices, values),
        }
    }
}

/// The shape in the SHAPE section of an image, for a chunk whose store has lost its manifest.
pub fn chunk_shape(header: &ChunkHeader, image: &[u8], path: &Path) -> Result<Shape> {
    let wrong = |what: &str| Error::corrupt(path, format!("chunk {}: corrupt: {what}", header.number));
    let section = header.section(SectionKind::Shape).and_then(|section| image.get(section));
    let section = section.ok_or_else(|| wrong("no SHAPE section"))?;
    if section.len() != 4 * usize::from(header.order) {
        return Err(wrong("length of the SHAPE section"));
    }
    let dim = |b: &[u8]| u32::from_le_bytes(std::array::from_fn(|i| b[i])).into();
    let dims: Vec<u64> = section.chunks_exact(4).map(dim).collect();
    Shape::new(&dims).map_err(|e| wrong(&format!("SHAPE section: {e}")))
}

/// The number of leading positions below `n` for which `holds` is true.
fn partition_point(n: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
