//! A checked view of a chunk image. Opening it checks everything that takes time proportional to the number
//! of tiles; decoding a tile checks its nonzeros. It never returns a coordinate outside the shape.

use crate::chunk::{ChunkHeader, SectionKind};
use crate::encoding::tile::{TileRecord, record_bytes, unpack_mode};
use crate::encoding::values::ValueEncoding;
use crate::encoding::{IndexEncoding, TILE_NNZ, column};
use crate::error::{Error, Result};
use crate::format::{DecodedTile, ValueSection, check_frame, partition_point, wrong_section};
use crate::linear::{BLOCK_BITS, BitLayout, Reencoding};
use crate::shape::{ORDER_MAX, Shape};
use std::ops::Range;
use std::path::PathBuf;

/// What decoding the chunks of one store needs. Made once.
#[derive(Debug)]
pub struct BlcoDecoder {
    shape: Shape,
    encoding: IndexEncoding,
    reencoding: Reencoding,
}

impl BlcoDecoder {
    /// A decoder for stores of `shape`.
    #[must_use]
    pub fn new(shape: &Shape, encoding: IndexEncoding) -> Self {
        Self {
            shape: shape.clone(),
            encoding,
            reencoding: Reencoding::new(&BitLayout::new(shape), BLOCK_BITS),
        }
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

/// A chunk's image, checked down to its tiles.
#[derive(Debug)]
pub struct BlcoView<'a> {
    decoder: &'a BlcoDecoder,
    path: PathBuf,
    number: u32,
    image: &'a [u8],
    payload_at: usize,
    nnz: usize,
    first_tile: u64,
    index: IndexSections,
    values: ValueSection,
}

#[derive(Debug)]
enum IndexSections {
    Raw { blocks: Range<usize>, index: Range<usize> },
    Tiled { tiles: Range<usize>, columns: Range<usize> },
}

impl<'a> BlcoView<'a> {
    /// Checks `image`, whose header `header` has been checked by the store. `path` is for messages.
    pub fn open(
        decoder: &'a BlcoDecoder,
        header: &ChunkHeader,
        image: &'a [u8],
        path: PathBuf,
    ) -> Result<Self> {
        let wrong = |what: &'static str| wrong_section(&path, header, what);
        let kinds = match decoder.encoding {
            IndexEncoding::Raw => [SectionKind::Blocks, SectionKind::Index],
            IndexEncoding::Tiled => [SectionKind::Tiles, SectionKind::Columns],
        };
        check_frame(&decoder.shape, header, image, kinds).map_err(wrong)?;
        let index =
            Self::index_sections(decoder, header).ok_or_else(|| wrong("length of a section of the index"))?;
        let nnz = header.nnz as usize;
        let values = ValueSection::open(header, image, nnz).map_err(wrong)?;
        let raw = matches!(index, IndexSections::Raw { .. });
        if raw && values.encoding != ValueEncoding::F64 {
            return Err(wrong("VALUES section"));
        }
        let view = Self {
            decoder,
            number: header.number,
            image,
            payload_at: header.header_bytes(),
            nnz,
            first_tile: header.first_nonzero / TILE_NNZ as u64,
            index,
            values,
            path: PathBuf::new(),
        };
        view.check_index().map_err(wrong)?;
        Ok(Self { path, ..view })
    }

    fn index_sections(decoder: &BlcoDecoder, header: &ChunkHeader) -> Option<IndexSections> {
        let nnz = header.nnz as usize;
        let section = |kind| header.section(kind);
        match decoder.encoding {
            IndexEncoding::Raw => {
                let (blocks, index) = (section(SectionKind::Blocks)?, section(SectionKind::Index)?);
                let fits = blocks.len() % 16 == 0 && !blocks.is_empty() && index.len() == 8 * nnz;
                fits.then_some(IndexSections::Raw { blocks, index })
            }
            IndexEncoding::Tiled => {
                let (tiles, columns) = (section(SectionKind::Tiles)?, section(SectionKind::Columns)?);
                let fits = tiles.len() == nnz.div_ceil(TILE_NNZ) * record_bytes(decoder.shape.order());
                fits.then_some(IndexSections::Tiled { tiles, columns })
            }
        }
    }

    /// Checks that blocks ascend, or that tile records are inside the shape and their columns follow one
    /// another.
    fn check_index(&self) -> std::result::Result<(), &'static str> {
        match &self.index {
            IndexSections::Raw { blocks, .. } => {
                let mut previous: Option<(u64, u32)> = None;
                for record in self.image[blocks.clone()].chunks_exact(16) {
                    let (key, start) = block(record);
                    let follows = previous.map_or(start == 0, |(k, s)| key > k && start > s);
                    let layout_bits = self.decoder.shape.linear_bits();
                    let key_bits = layout_bits.saturating_sub(BLOCK_BITS);
                    let in_range = key_bits == 64 || key >> key_bits == 0;
                    if !follows || !in_range || start as usize >= self.nnz || record[12..] != [0; 4] {
                        return Err("BLOCKS section");
                    }
                    previous = Some((key, start));
                }
            }
            IndexSections::Tiled { columns, .. } => {
                let shape = &self.decoder.shape;
                let values_fit = |r: &TileRecord| self.values.column_fits(r.value_width, r.value_base);
                let mut at = 0u64;
                for t in 0..self.tiles() {
                    let record = self.record(t);
                    let inside = (0..shape.order())
                        .all(|m| record.low[m] <= record.high[m] && record.high[m] < shape.dims()[m]);
                    if !inside || u64::from(record.columns_at) != at || !values_fit(&record) {
                        return Err("TILES section");
                    }
                    at += u64::from(record.widths(shape.order()));
                }
                if columns.len() as u64 != at * column::bytes(1) as u64 {
                    return Err("length of the COLUMNS section");
                }
            }
        }
        Ok(())
    }

    /// The number of tiles.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.nnz.div_ceil(TILE_NNZ)
    }

    /// Nonzeros of tile `t`.
    #[must_use]
    pub fn tile_nnz(&self, t: usize) -> usize {
        (self.nnz - t * TILE_NNZ).min(TILE_NNZ)
    }

    /// The number of the first tile in the store.
    #[must_use]
    pub fn first_tile(&self) -> u64 {
        self.first_tile
    }

    /// The chunk's value encoding.
    #[must_use]
    pub fn value_encoding(&self) -> ValueEncoding {
        self.values.encoding
    }

    /// The image without its header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.image[self.payload_at..]
    }

    /// Bytes of the image that values take: their columns and the VALUES section.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        let column = |t| column::bytes(self.record(t).value_width) as u64;
        let columns = match &self.index {
            IndexSections::Raw { .. } => 0,
            IndexSections::Tiled { .. } => (0..self.tiles()).map(column).sum(),
        };
        columns + self.values.section.len() as u64
    }

    /// Bytes of the image that index columns, or the `raw` index, take.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        match &self.index {
            IndexSections::Raw { index, .. } => index.len() as u64,
            IndexSections::Tiled { columns, .. } => {
                (columns.len() + self.values.section.len()) as u64 - self.value_bytes()
            }
        }
    }

    /// BLCO blocks that have nonzeros in a `raw` chunk.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match &self.index {
            IndexSections::Raw { blocks, .. } => blocks.len() / 16,
            IndexSections::Tiled { .. } => 0,
        }
    }

    /// The record of tile `t` of a `tiled` chunk.
    fn record(&self, t: usize) -> TileRecord {
        let IndexSections::Tiled { tiles, .. } = &self.index else {
            unreachable!("only `tiled` chunks have records");
        };
        let bytes = record_bytes(self.decoder.shape.order());
        TileRecord::read(&self.image[tiles.start + t * bytes..][..bytes], self.decoder.shape.order())
    }

    /// Decodes tile `t` into `indices` (one column of [`TILE_NNZ`] per mode) and `values`.
    #[inline(always)]
    pub fn decode<'b>(
        &self,
        t: usize,
        indices: &'b mut [u32],
        values: &'b mut [f64],
    ) -> Result<DecodedTile<'b>> {
        let nnz = self.tile_nnz(t);
        let mut tile =
            DecodedTile { nnz, low: [0; ORDER_MAX], high: [0; ORDER_MAX], indices: &[], values: &[] };
        let decoded = match &self.index {
            IndexSections::Raw { blocks, index } => {
                self.decode_raw(t, blocks, index, indices, &mut tile)
                    && self.section_values(t, values.first_chunk_mut().expect("room for a tile"))
            }
            IndexSections::Tiled { columns, .. } => self.decode_tiled(t, columns, indices, values, &mut tile),
        };
        if !decoded {
            return Err(self.damaged(t));
        }
        tile.indices = indices;
        tile.values = &values[..nnz];
        Ok(tile)
    }

    #[inline(always)]
    fn decode_tiled(
        &self,
        t: usize,
        columns: &Range<usize>,
        indices: &mut [u32],
        values: &mut [f64],
        tile: &mut DecodedTile<'_>,
    ) -> bool {
        let order = self.decoder.shape.order();
        let record = self.record(t);
        (tile.low, tile.high) = (record.low, record.high);
        let mut words = self.words(&record, columns);
        let mut inside = true;
        for (m, column) in indices.chunks_exact_mut(TILE_NNZ).enumerate().take(order) {
            let column = column.try_into().expect("a column holds a tile");
            inside &= unpack_mode(&record, m, words, tile.nnz, column);
            words = &words[column::bytes(record.width(m)) / 4..];
        }
        inside && self.tiled_values(t, &record, words, values.first_chunk_mut().expect("room for a tile"))
    }

    /// The words of a tile's columns.
    #[inline(always)]
    fn words(&self, record: &TileRecord, columns: &Range<usize>) -> &'a [u32] {
        let start = columns.start + column::bytes(record.columns_at);
        let length = column::bytes(record.widths(self.decoder.shape.order()));
        bytemuck::cast_slice(&self.image[start..start + length])
    }

    /// Values of tile `t` of a `tiled` chunk with the value column `words`. Returns false if one is out of
    /// range.
    #[inline(always)]
    fn tiled_values(
        &self,
        t: usize,
        record: &TileRecord,
        words: &[u32],
        values: &mut [f64; TILE_NNZ],
    ) -> bool {
        let (from, column) = (t * TILE_NNZ, (record.value_base, record.value_width));
        self.values.unpack(self.image, from..from + self.tile_nnz(t), words, column, values)
    }

    /// Whether all values of a dictionary or an f64 section are in the range.
    #[must_use]
    pub fn stored_values_within(&self, low: f64, high: f64) -> bool {
        self.values.within(self.image, low, high)
    }

    /// Passes the values of all nonzeros to `take`, in order, at most a tile at a time.
    pub fn for_each_values(&self, mut take: impl FnMut(&[f64])) -> Result<()> {
        let mut values = [0.0; TILE_NNZ];
        for t in 0..self.tiles() {
            if !self.decoded_values(t, &mut values) {
                return Err(self.damaged(t));
            }
            take(&values[..self.tile_nnz(t)]);
        }
        Ok(())
    }

    /// The values of tile `t`. Returns false if one is out of range.
    fn decoded_values(&self, t: usize, values: &mut [f64; TILE_NNZ]) -> bool {
        match &self.index {
            IndexSections::Raw { .. } => self.section_values(t, values),
            IndexSections::Tiled { columns, .. } => {
                let record = self.record(t);
                let words = self.words(&record, columns);
                let of_values = words.len() - column::bytes(record.value_width) / 4;
                self.tiled_values(t, &record, &words[of_values..], values)
            }
        }
    }

    fn damaged(&self, t: usize) -> Error {
        let what = format!("chunk {}: corrupt: tile {t}: a number out of range", self.number);
        let values = self.decoded_values(t, &mut [0.0; TILE_NNZ]);
        let rule = match &self.index {
            _ if !values => self.values.refused_rule(),
            IndexSections::Raw { index, .. } if !self.used_bits_alone(t, index) => "image-section",
            _ => "image-index",
        };
        Error::corrupt(&self.path, what).breaks(rule)
    }

    /// Values of tile `t` from the VALUES section. Returns false if one is not finite.
    #[inline(always)]
    fn section_values(&self, t: usize, values: &mut [f64; TILE_NNZ]) -> bool {
        let from = t * TILE_NNZ;
        self.values.unpack(self.image, from..from + self.tile_nnz(t), &[], (0, 0), values)
    }

    /// Whether the re-encoded indices of tile `t` use only bits that belong to modes.
    fn used_bits_alone(&self, t: usize, index: &Range<usize>) -> bool {
        let stored: &[u64] = bytemuck::cast_slice(&self.image[index.clone()]);
        let tile = &stored[t * TILE_NNZ..][..self.tile_nnz(t)];
        tile.iter().fold(0, |all, s| all | s) & !self.decoder.reencoding.used_bits() == 0
    }

    fn decode_raw(
        &self,
        t: usize,
        blocks: &Range<usize>,
        index: &Range<usize>,
        indices: &mut [u32],
        tile: &mut DecodedTile<'_>,
    ) -> bool {
        let shape = &self.decoder.shape;
        let blocks = &self.image[blocks.clone()];
        let record = |b: usize| block(&blocks[16 * b..16 * b + 16]);
        let stored: &[u64] = bytemuck::cast_slice(&self.image[index.clone()]);
        let (mut at, end) = (t * TILE_NNZ, t * TILE_NNZ + tile.nnz);
        let count = blocks.len() / 16;
        // The last block that starts at or before the tile.
        let mut b = partition_point(count, |b| record(b).1 as usize <= at) - 1;
        let mut inside = self.used_bits_alone(t, index);
        while at < end {
            let stop = if b + 1 < count { (record(b + 1).1 as usize).min(end) } else { end };
            let upper = self.decoder.reencoding.upper(record(b).0);
            let slot = at - t * TILE_NNZ;
            for m in 0..shape.order() {
                let column = &mut indices[m * TILE_NNZ + slot..][..stop - at];
                for (index, &stored) in column.iter_mut().zip(&stored[at..stop]) {
                    *index = self.decoder.reencoding.decode(stored, &upper, m);
                }
            }
            (at, b) = (stop, b + 1);
        }
        for m in 0..shape.order() {
            let column = &mut indices[m * TILE_NNZ..][..TILE_NNZ];
            let (used, rest) = column.split_at_mut(tile.nnz);
            tile.low[m] = used.iter().copied().min().unwrap_or(0);
            tile.high[m] = used.iter().copied().max().unwrap_or(0);
            rest.fill(tile.low[m]);
            inside &= tile.high[m] < shape.dims()[m];
        }
        inside
    }
}

/// Key and start of a record of the BLOCKS section.
fn block(record: &[u8]) -> (u64, u32) {
    let key = u64::from_le_bytes(std::array::from_fn(|i| record[i]));
    (key, u32::from_le_bytes(std::array::from_fn(|i| record[8 + i])))
}
