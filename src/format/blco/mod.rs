//! BLCO (formats-spec/blco.md): [`BlcoBuilder`] makes chunk images from sorted nonzeros; [`BlcoView`] checks
//! them and returns the nonzeros tile by tile.

mod build;
mod view;

pub use build::BlcoBuilder;
pub use view::{BlcoDecoder, BlcoView};

use super::{
    Checked, ChunkBuilder, ChunkFormat, Decoder, FiberCounts, FormatRecord, Layout, chunk_bytes_least,
};
use crate::chunk::{ChunkHeader, Version};
use crate::encoding::IndexEncoding;
use crate::encoding::values::ValueEncoding;
use crate::error::Result;
use crate::shape::Shape;

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Blco(pub IndexEncoding);

impl ChunkFormat for Blco {
    fn code() -> u32 {
        1
    }

    fn read(record: &FormatRecord, _: usize) -> Checked<Self> {
        IndexEncoding::from_code(record.layout.0.into()).map(Self).ok_or("unknown layout")
    }

    fn of_chunk(header: &ChunkHeader, _: &[u8]) -> Checked<Self> {
        IndexEncoding::from_code(header.codes.layout.into()).map(Self).ok_or("unknown layout")
    }

    fn record(&self) -> FormatRecord {
        let layout = Layout(self.0 as u8);
        FormatRecord { code: Self::code(), layout, levels: None, parameters: Vec::new() }
    }

    fn name(&self) -> &'static str {
        "blco"
    }

    fn encoding(&self) -> &'static str {
        match self.0 {
            IndexEncoding::Raw => "raw",
            IndexEncoding::Tiled => "tiled",
        }
    }

    fn options(&self) -> String {
        format!("--encoding {}", self.encoding())
    }

    fn nonzero_bytes_min(&self) -> u64 {
        4
    }

    fn has_value_encoding(&self, code: u8) -> bool {
        match self.0 {
            IndexEncoding::Raw => code == ValueEncoding::F64 as u8,
            IndexEncoding::Tiled => ValueEncoding::from_code(code).is_some(),
        }
    }

    fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        build::open_chunk_bytes(chunk_bytes)
    }

    fn rebuilt_chunk_bytes(
        &self,
        chunk_bytes: u64,
        headers: &mut dyn Iterator<Item = Result<ChunkHeader>>,
    ) -> Result<u64> {
        let images = headers.map(|header| Ok(u64::from(header?.image_bytes))).sum::<Result<u64>>()?;
        Ok(build::open_chunk_bytes(images.min(chunk_bytes)))
    }

    fn made_bytes(&self, order: usize) -> usize {
        match self.0 {
            // A value, an index, and a key with its start position.
            IndexEncoding::Raw => 32,
            IndexEncoding::Tiled => 8 + 4 * order,
        }
    }

    fn chunk_bytes_least(&self, nnz: u32, image_bytes: u32) -> u64 {
        chunk_bytes_least(nnz, image_bytes)
    }

    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
        Box::new(BlcoBuilder::new(version, shape, self.0, chunk_bytes))
    }

    fn decoder(&self, shape: &Shape) -> Decoder {
        Decoder::Blco(BlcoDecoder::new(shape, self.0))
    }

    /// A 64-bit index a nonzero; the keys of BLCO blocks are not counted.
    fn paper_index_bytes(&self, counts: &FiberCounts) -> Option<u64> {
        Some(8 * counts.nnz)
    }
}
