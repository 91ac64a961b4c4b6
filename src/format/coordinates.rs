//! Layout `coordinates`: uncompressed indices and values (formats-spec/formats.md), for nonzeros that share no
//! indices.

use super::values::{ValueSection, WRONG_SECTIONS, check_frame, value_section};
use super::{
    BuiltChunk, Checked, ChunkBuilder, ChunkDecoder, ChunkRanges, ChunkSink, ClosedChunk, Made, NonzeroView,
    SortedTile,
};
use crate::chunk::{ChunkCodes, ChunkHeader, ImageWriter, SectionKind, Version};
use crate::encoding::TILE_NNZ;
use crate::encoding::values::{ChosenValues, ValueEncoding};
use crate::error::Result;
use crate::shape::Shape;
use std::ops::Range;

/// Bytes of an image besides indices and values: header and SHAPE.
const FIXED_BYTES: u64 = 384;

/// The most nonzeros in a chunk: whole tiles, with every value an f64.
fn chunk_nnz(order: usize, chunk_bytes: u64) -> usize {
    let tile = (TILE_NNZ * nonzero_bytes(order)) as u64;
    usize::try_from((chunk_bytes - FIXED_BYTES) / tile).unwrap_or(usize::MAX).saturating_mul(TILE_NNZ)
}

fn nonzero_bytes(order: usize) -> usize {
    4 * order + size_of::<f64>()
}

/// Bytes that an open chunk takes: waiting nonzeros and the image.
pub(super) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    2 * chunk_bytes
}

/// Puts nonzeros into chunks.
#[derive(Debug)]
pub(super) struct CoordinatesBuilder {
    version: Version,
    shape: Shape,
    format: u32,
    layout: u8,
    most: usize,
    ranges: ChunkRanges,
    columns: Vec<Vec<u32>>,
    values: Vec<f64>,
}

impl CoordinatesBuilder {
    /// A builder for chunks of the format with code `format`, whose images have at most `chunk_bytes`.
    pub fn new(version: Version, shape: &Shape, format: u32, layout: u8, chunk_bytes: u64) -> Self {
        let (order, ranges) = (shape.order(), ChunkRanges::default());
        let (most, columns) = (chunk_nnz(order, chunk_bytes), vec![Vec::new(); order]);
        Self { version, shape: shape.clone(), format, layout, most, ranges, columns, values: Vec::new() }
    }

    fn close(&mut self) -> ClosedChunk {
        let columns: Vec<Vec<u32>> = self.columns.iter_mut().map(std::mem::take).collect();
        let (values, ranges) = (std::mem::take(&mut self.values), std::mem::take(&mut self.ranges));
        let (version, shape, format, layout) = (self.version, self.shape.clone(), self.format, self.layout);
        ClosedChunk::new(move || {
            let codes = |chosen: &ChosenValues| ChunkCodes {
                format,
                layout,
                value_encoding: chosen.encoding() as u8,
            };
            image(version, &shape, &columns, &values, codes, ranges)
        })
    }
}

/// The chunk with these columns and values.
fn image(
    version: Version,
    shape: &Shape,
    columns: &[Vec<u32>],
    values: &[f64],
    codes: impl Fn(&ChosenValues) -> ChunkCodes,
    ranges: ChunkRanges,
) -> BuiltChunk {
    #[expect(clippy::cast_possible_truncation, reason = "whether it loses something is the question")]
    let is_single = |v: &f64| f64::from(*v as f32).to_bits() == v.to_bits();
    let chosen = if values.iter().all(is_single) { ChosenValues::F32 } else { ChosenValues::F64 };
    let mut image = ImageWriter::with_capacity(version, 3, values.len() * nonzero_bytes(columns.len()));
    image.section(SectionKind::Shape, |out| out.extend(shape.dims().iter().flat_map(|d| d.to_le_bytes())));
    value_section(&mut image, &chosen, |put| put(values));
    image.section(SectionKind::Coordinates, |out| {
        out.extend(columns.iter().flatten().flat_map(|index| index.to_le_bytes()));
    });
    let nnz = u32::try_from(values.len()).expect("a chunk has fewer than 2^32 nonzeros");
    let order = u8::try_from(shape.order()).expect("at most 8 modes");
    let (header, image) = image.finish(order, nnz, codes(&chosen));
    BuiltChunk { header, image, ranges }
}

impl ChunkBuilder for CoordinatesBuilder {
    fn push(&mut self, tile: &SortedTile, _: &mut Made, sink: ChunkSink<'_>) -> Result<()> {
        if self.ranges.nnz + tile.values.len() > self.most {
            sink(self.close())?;
        }
        self.ranges.add(tile);
        self.columns.iter_mut().enumerate().for_each(|(m, column)| column.extend_from_slice(tile.column(m)));
        self.values.extend_from_slice(&tile.values);
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        if self.ranges.nnz > 0 { sink(self.close()) } else { Ok(()) }
    }
}

/// Reads such chunks.
#[derive(Debug)]
pub(super) struct CoordinatesDecoder(pub Shape);

/// The nonzeros of one.
#[derive(Debug)]
struct View<'a> {
    order: usize,
    nnz: usize,
    image: &'a [u8],
    indices: &'a [u32],
    values: ValueSection,
}

impl ChunkDecoder for CoordinatesDecoder {
    fn open<'a>(&'a self, header: &ChunkHeader, image: &'a [u8]) -> Checked<Box<dyn NonzeroView + 'a>> {
        check_frame(&self.0, header, image, [SectionKind::Coordinates; 2])?;
        let (order, nnz) = (self.0.order(), header.nnz as usize);
        let section = header.section(SectionKind::Coordinates).ok_or(WRONG_SECTIONS)?;
        let values = ValueSection::open(header, image, nnz)?;
        if ![ValueEncoding::F32, ValueEncoding::F64].contains(&values.encoding) {
            return Err("unknown value encoding");
        }
        if section.len() != 4 * order * nnz {
            return Err("length of the COORDINATES section");
        }
        let indices = bytemuck::cast_slice(&image[section]);
        Ok(Box::new(View { order, nnz, image, indices, values }))
    }
}

impl NonzeroView for View<'_> {
    fn decode(&self, range: Range<usize>, indices: &mut [u32], values: &mut [f64]) -> bool {
        for m in 0..self.order {
            let column = &self.indices[m * self.nnz..][range.clone()];
            indices[m * TILE_NNZ..][..column.len()].copy_from_slice(column);
        }
        let mut numbers = [0.0; TILE_NNZ];
        // The caller checks for values that are not finite.
        self.values.unpack(self.image, range.clone(), &[], (0, 0), &mut numbers);
        values[..range.len()].copy_from_slice(&numbers[..range.len()]);
        true
    }

    fn stored_values_within(&self, low: f64, high: f64) -> bool {
        self.values.within(self.image, low, high)
    }

    fn value_bytes(&self) -> u64 {
        self.values.section.len() as u64
    }

    fn index_bytes(&self) -> u64 {
        size_of_val(self.indices) as u64
    }
}
