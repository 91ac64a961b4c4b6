//! Formats: how sorted nonzeros become chunk images, and checked views that give them back.
//!
//! [`Cutter`] makes the chunks of any format, [`ChunkView`] reads them; both are dispatches over the formats below, so
//! that packer, verifier and host operations know none of them. An operation that uses what a format has beyond
//! nonzeros takes the view's variant.

pub mod blco;
mod cut;
mod gathered;
pub mod hocfs;
mod statistics;
pub mod tree;
mod values;

pub use cut::Cutter;
pub(crate) use cut::PENDING_NNZ;
pub use statistics::{Neumaier, Statistics};

use crate::encoding::values::ValueEncoding;
use crate::encoding::{IndexEncoding, TILE_NNZ};
use crate::error::{Error, Result};
use crate::shape::{ORDER_MAX, Shape};
use crate::store::{ChunkEntry, ChunkHeader, Format, SectionKind, TREE_CODE};
use std::path::{Path, PathBuf};
use values::{ValueSection, check_frame, value_section};

/// The nonzeros of one tile of the store, or of the part of it that a chunk holds, decoded: what operations on the host
/// work on.
///
/// `indices` has one column of 512 for each mode; slots from `nnz` on hold indices that are inside
/// the dims and values that mean nothing.
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

/// Bytes that an open chunk of `format`, whose image has at most `chunk_bytes`, takes while it grows.
pub(crate) fn open_chunk_bytes(format: &Format, chunk_bytes: u64) -> u64 {
    match format {
        Format::Blco(_) => blco::open_chunk_bytes(chunk_bytes),
        Format::Hocfs { .. } => hocfs::open_chunk_bytes(chunk_bytes),
    }
}

/// Bytes that a chunk of a store of `format` takes while it is built again: no more than chunks of at most `chunk_bytes` do,
/// nor than those whose headers these are.
pub(crate) fn rebuilt_chunk_bytes(
    format: &Format,
    chunk_bytes: u64,
    mut headers: impl Iterator<Item = Result<ChunkHeader>>,
) -> Result<u64> {
    match format {
        Format::Blco(_) => {
            let images = headers.try_fold(0, |sum, header| Ok(sum + u64::from(header?.image_bytes)))?;
            Ok(blco::open_chunk_bytes(images.min(chunk_bytes)))
        }
        Format::Hocfs { leaf, .. } => hocfs::rebuilt_chunk_bytes(*leaf, chunk_bytes, headers),
    }
}

/// A finished chunk: header, image, and the ranges that the manifest lists.
#[derive(Debug)]
pub struct BuiltChunk {
    /// The header; its place in the store is still open.
    pub header: ChunkHeader,
    /// The image, the header's bytes still zero.
    pub image: Vec<u8>,
    /// Linear and row ranges; the rest is still open.
    pub entry: ChunkEntry,
}

/// What decoding the chunks of one store needs, made once.
#[derive(Debug)]
pub enum Decoder {
    /// Of a BLCO store.
    Blco(blco::BlcoDecoder),
    /// Of a store of trees.
    Tree(tree::TreeDecoder),
}

impl Decoder {
    /// A decoder for stores of `shape` and `format`.
    #[must_use]
    pub fn new(shape: &Shape, format: &Format) -> Self {
        match format {
            Format::Blco(encoding) => Self::Blco(blco::BlcoDecoder::new(shape, *encoding)),
            Format::Hocfs { levels, leaf } => Self::Tree(tree::TreeDecoder::new(shape, levels, *leaf)),
        }
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Blco(decoder) => decoder.shape(),
            Self::Tree(decoder) => decoder.shape(),
        }
    }
}

/// A chunk's image, checked down to its tiles.
#[derive(Debug)]
pub enum ChunkView<'a> {
    /// Of a BLCO store.
    Blco(blco::BlcoView<'a>),
    /// Of a store of trees.
    Tree(tree::TreeView<'a>),
}

/// Calls a method that both views have.
macro_rules! either {
    ($self:expr, $view:ident => $call:expr) => {
        match $self {
            ChunkView::Blco($view) => $call,
            ChunkView::Tree($view) => $call,
        }
    };
}

impl<'a> ChunkView<'a> {
    /// Checks `image`, whose header `header` has been checked by the store. `path` is for messages.
    pub fn open(decoder: &'a Decoder, header: &ChunkHeader, image: &'a [u8], path: PathBuf) -> Result<Self> {
        match decoder {
            Decoder::Blco(decoder) => blco::BlcoView::open(decoder, header, image, path).map(Self::Blco),
            Decoder::Tree(decoder) => tree::TreeView::open(decoder, header, image, path).map(Self::Tree),
        }
    }

    /// The same for a device, whose kernels check numbers and not how a tree pads its fibers: that is done here.
    pub fn open_for_device(
        decoder: &'a Decoder,
        header: &ChunkHeader,
        image: &'a [u8],
        path: PathBuf,
    ) -> Result<Self> {
        let view = Self::open(decoder, header, image, path)?;
        if let Self::Tree(tree) = &view {
            tree.check_padded_tiles()?;
        }
        Ok(view)
    }

    /// Tiles of the store that have nonzeros in the chunk.
    #[must_use]
    pub fn tiles(&self) -> usize {
        either!(self, view => view.tiles())
    }

    /// The number of the first tile in the store.
    #[must_use]
    pub fn first_tile(&self) -> u64 {
        either!(self, view => view.first_tile())
    }

    /// Nonzeros of tile `t` that are in the chunk.
    #[must_use]
    pub fn tile_nnz(&self, t: usize) -> usize {
        either!(self, view => view.tile_nnz(t))
    }

    /// The chunk's value encoding.
    #[must_use]
    pub fn value_encoding(&self) -> ValueEncoding {
        either!(self, view => view.value_encoding())
    }

    /// The image without its header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        either!(self, view => view.payload())
    }

    /// Bytes of the image that values take.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        either!(self, view => view.value_bytes())
    }

    /// Bytes of the image that indices take.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        either!(self, view => view.index_bytes())
    }

    /// Whether no value of a dictionary or of an f64 section is outside of the range. What columns and f32 sections hold is not
    /// looked at.
    #[must_use]
    pub fn stored_values_within(&self, low: f64, high: f64) -> bool {
        either!(self, view => view.stored_values_within(low, high))
    }

    /// Hands over the values of all nonzeros, in order, at most a tile's at a time.
    pub fn for_each_values(&self, take: impl FnMut(&[f64])) -> Result<()> {
        either!(self, view => view.for_each_values(take))
    }

    /// Decodes tile `t`, as far as it is in the chunk, into `indices` (one column of [`TILE_NNZ`] per mode) and
    /// `values`.
    #[inline(always)]
    pub fn decode<'b>(
        &self,
        t: usize,
        indices: &'b mut [u32],
        values: &'b mut [f64],
    ) -> Result<DecodedTile<'b>> {
        either!(self, view => view.decode(t, indices, values))
    }
}

/// The shape that the SHAPE section of an image gives: what is known of a chunk without its store's manifest.
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

/// The format that an image tells of: what is known of a chunk without its store's manifest.
pub fn chunk_format(header: &ChunkHeader, image: &[u8], path: &Path) -> Result<Format> {
    if header.codes.layout == TREE_CODE {
        return tree::chunk_format(header, image, path);
    }
    let encoding = IndexEncoding::from_code(header.codes.layout.into());
    encoding.map(Format::Blco).ok_or_else(|| Error::unusable(path, "unknown layout"))
}

/// The least bound on a chunk's image that allows such a chunk.
#[must_use]
pub fn chunk_bytes_least(format: &Format, nnz: u32, image_bytes: u32) -> u64 {
    match format {
        Format::Blco(_) => blco::chunk_bytes_least(nnz, image_bytes),
        Format::Hocfs { .. } => u64::from(image_bytes),
    }
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
