//! Builds chunk images. Tiles are encoded independently, in parallel, then assembled in order into chunks of
//! bounded size.

use super::Blco;
use crate::chunk::{ALIGN, ImageWriter, SectionKind, Version};
use crate::encoding::column::Numbers;
use crate::encoding::tile::{TileRecord, pack_mode, record_bytes};
use crate::encoding::values::{ChosenValues, Costs, TileValues, ValueBytes};
use crate::encoding::{IndexEncoding, TILE_NNZ, column};
use crate::error::Result;
use crate::format::{
    BuiltChunk, ChunkBuilder, ChunkFormat, ChunkRanges, ChunkSink, ClosedChunk, Made, SortedTile, TileWorker,
    value_section,
};
use crate::linear::{BLOCK_BITS, BitLayout, Linearizer, Reencoding};
use crate::shape::{ORDER_MAX, Shape};
use std::sync::{Arc, Mutex, MutexGuard};

/// Sections of an image, at most.
const SECTIONS: usize = 4;

/// Packs the columns of single tiles, on any thread.
#[derive(Debug)]
struct TilePacker {
    order: usize,
    encoding: IndexEncoding,
    /// Computes linear indices and, for `raw`, keys from them.
    linearizer: Linearizer<u128>,
    reencoding: Reencoding,
}

/// An encoded tile.
#[derive(Debug, Default)]
pub struct TileColumns {
    record: TileRecord,
    costs: TileValues,
    /// Packed columns of the modes (`tiled`).
    columns: Vec<u8>,
    /// Re-encoded indices, and each new key with its start position (`raw`).
    raw: Vec<u64>,
    keys: Vec<(u64, u32)>,
}

impl TileWorker for TilePacker {
    fn work(&self, tile: &SortedTile, made: &mut Made) {
        let made = made.get_or_insert_with(|| Box::<TileColumns>::default());
        let made: &mut TileColumns = made.downcast_mut().expect("made by this");
        let SortedTile { low, high, .. } = *tile;
        made.record = TileRecord { columns_at: 0, value_width: 0, value_base: 0, low, high };
        made.costs = TileValues::new(&tile.values);
        made.columns.clear();
        made.raw.clear();
        made.keys.clear();
        match self.encoding {
            IndexEncoding::Tiled => self.pack_columns(tile, made),
            IndexEncoding::Raw => self.reencode(tile, made),
        }
    }
}

impl TilePacker {
    fn pack_columns(&self, tile: &SortedTile, made: &mut TileColumns) {
        for m in 0..self.order {
            let numbers: &Numbers<u32> =
                tile.indices[m * TILE_NNZ..][..TILE_NNZ].try_into().expect("a column holds a tile");
            pack_mode(&made.record, m, tile.values.len(), numbers, &mut made.columns);
        }
    }

    fn reencode(&self, tile: &SortedTile, made: &mut TileColumns) {
        let [first, last] = tile.linear.map(|linear| self.reencoding.key(linear));
        for i in 0..tile.values.len() {
            let at: [u32; ORDER_MAX] =
                std::array::from_fn(|m| if m < self.order { tile.indices[m * TILE_NNZ + i] } else { 0 });
            let at = &at[..self.order];
            made.raw.push(self.reencoding.encode(at));
            let key = if first == last { first } else { self.reencoding.key(self.linearizer.scatter(at)) };
            if made.keys.last().is_none_or(|known| known.0 != key) {
                made.keys.push((key, u32::try_from(i).expect("a position in a tile")));
            }
        }
    }
}

/// Assembles tiles into chunks by the rules of formats-spec/blco.md, "Cutting".
#[derive(Debug)]
pub struct BlcoBuilder {
    encoder: Arc<Encoder>,
    chunk_bytes: u64,
    nnz_max: usize,
    open: OpenChunk,
}

/// Makes images of closed chunks.
#[derive(Debug)]
struct Encoder {
    version: Version,
    shape: Shape,
    encoding: IndexEncoding,
    /// Buffers of finished chunks, for reuse.
    spare: Mutex<Vec<OpenChunk>>,
}

/// The data of a chunk's image.
#[derive(Debug)]
struct OpenChunk {
    tiles: Vec<TileRecord>,
    columns: Vec<u8>,
    raw: Vec<u64>,
    keys: Vec<(u64, u32)>,
    values: Vec<f64>,
    costs: Costs,
    ranges: ChunkRanges,
}

/// The most nonzeros in a chunk.
pub(crate) fn chunk_nnz_max(chunk_bytes: u64) -> usize {
    let tiles = (chunk_bytes / 4 / TILE_NNZ as u64).max(1);
    usize::try_from(tiles).map_or(usize::MAX, |t| t * TILE_NNZ)
}

/// Bytes that an open chunk of at most `chunk_bytes` takes: columns and values while it grows, then its image.
pub(crate) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    2 * chunk_bytes + 8 * chunk_nnz_max(chunk_bytes) as u64
}

/// The smallest bound on a chunk's image that allows `nnz` nonzeros in `image_bytes`.
pub(crate) fn chunk_bytes_least(nnz: u32, image_bytes: u32) -> u64 {
    (4 * u64::from(nnz)).max(image_bytes.into())
}

/// The bytes of COLUMNS and VALUES in an image whose index columns take `columns`.
fn value_cost(columns: usize) -> impl Fn(ValueBytes) -> u64 {
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN as u64);
    move |values| aligned(columns as u64 + values.columns) + aligned(values.section)
}

impl BlcoBuilder {
    /// A builder of chunks whose images have at most `chunk_bytes`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, encoding: IndexEncoding, chunk_bytes: u64) -> Self {
        let encoder = Encoder { version, shape: shape.clone(), encoding, spare: Mutex::default() };
        let open = OpenChunk::new(version);
        Self { encoder: Arc::new(encoder), chunk_bytes, nnz_max: chunk_nnz_max(chunk_bytes), open }
    }

    /// Whether the open chunk stays within its bounds if `tile`, with `nnz` nonzeros, is added.
    fn has_room(&self, tile: &TileColumns, nnz: usize) -> bool {
        let open = &self.open;
        if open.tiles.is_empty() {
            return true;
        }
        let costs = open.costs.with(&tile.costs, nnz);
        let nnz = open.values.len() + nnz;
        let continues =
            tile.keys.first().is_some_and(|first| open.keys.last().is_some_and(|k| k.0 == first.0));
        let blocks = open.keys.len() + tile.keys.len() - usize::from(continues);
        let (tiles, columns) = (open.tiles.len() + 1, open.columns.len() + tile.columns.len());
        nnz <= self.nnz_max
            && self.encoder.image_bytes(nnz, blocks, tiles, columns, &costs) <= self.chunk_bytes
    }

    /// Closes the open chunk unless it is empty.
    fn close(&mut self) -> Option<ClosedChunk> {
        if self.open.tiles.is_empty() {
            return None;
        }
        let mut closed = std::mem::replace(&mut self.open, OpenChunk::new(self.encoder.version));
        let encoder = Arc::clone(&self.encoder);
        Some(ClosedChunk::new(move || {
            let built = encoder.encode(&closed);
            closed.clear(encoder.version);
            encoder.spare().push(closed);
            built
        }))
    }
}

impl OpenChunk {
    fn new(version: Version) -> Self {
        Self {
            tiles: Vec::new(),
            columns: Vec::new(),
            raw: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            costs: Costs::new(version.has_decimals()),
            ranges: ChunkRanges::default(),
        }
    }

    fn clear(&mut self, version: Version) {
        self.tiles.clear();
        self.columns.clear();
        self.raw.clear();
        self.keys.clear();
        self.values.clear();
        self.costs = Costs::new(version.has_decimals());
        self.ranges = ChunkRanges::default();
    }

    /// Adds the next tile.
    fn add(&mut self, sorted: &SortedTile, tile: &TileColumns) {
        self.ranges.add(sorted);
        let start = u32::try_from(self.values.len()).expect("a chunk has fewer than 2^32 nonzeros");
        let continues = |key: u64| self.keys.last().is_some_and(|last| last.0 == key);
        let skip = usize::from(tile.keys.first().is_some_and(|first| continues(first.0)));
        self.keys.extend(tile.keys[skip..].iter().map(|&(key, at)| (key, start + at)));
        self.costs = self.costs.with(&tile.costs, sorted.values.len());
        self.tiles.push(tile.record);
        self.columns.extend_from_slice(&tile.columns);
        self.raw.extend_from_slice(&tile.raw);
        self.values.extend_from_slice(&sorted.values);
    }
}

impl Encoder {
    fn spare(&self) -> MutexGuard<'_, Vec<OpenChunk>> {
        self.spare.lock().expect("no thread panicked")
    }

    fn image_bytes(&self, nnz: usize, blocks: usize, tiles: usize, columns: usize, costs: &Costs) -> u64 {
        let order = self.shape.order();
        let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN as u64);
        let sections = match self.encoding {
            IndexEncoding::Raw => aligned(16 * blocks as u64) + 2 * aligned(8 * nnz as u64),
            IndexEncoding::Tiled => {
                let records = aligned((record_bytes(order) * tiles) as u64);
                records + costs.cheapest(value_cost(columns)).1
            }
        };
        self.version.header_bytes(SECTIONS) as u64 + aligned(4 * order as u64) + sections
    }

    fn encode(&self, chunk: &OpenChunk) -> BuiltChunk {
        let OpenChunk { tiles, columns, keys, values, costs, .. } = chunk;
        let chosen = match self.encoding {
            IndexEncoding::Raw => ChosenValues::F64,
            IndexEncoding::Tiled => costs.choose(values, values.len(), value_cost(columns.len())),
        };
        let bytes = self.image_bytes(values.len(), keys.len(), tiles.len(), columns.len(), costs);
        let sections = SECTIONS - usize::from(!chosen.encoding().has_section());
        let mut image =
            ImageWriter::with_capacity(self.version, sections, usize::try_from(bytes).unwrap_or(0));
        image.section(SectionKind::Shape, |out| {
            out.extend(self.shape.dims().iter().flat_map(|d| d.to_le_bytes()));
        });
        match self.encoding {
            IndexEncoding::Raw => raw_sections(chunk, &mut image),
            IndexEncoding::Tiled => self.tiled_sections(chunk, &mut image, &chosen),
        }
        value_section(&mut image, &chosen, |put| put(values));
        let nnz = u32::try_from(values.len()).expect("a chunk has fewer than 2^32 nonzeros");
        let order = u8::try_from(self.shape.order()).expect("at most 8 modes");
        let codes = Blco(self.encoding).record().chunk_codes(self.version, chosen.encoding() as u8);
        let (header, image) = image.finish(order, nnz, codes);
        BuiltChunk { header, image, ranges: chunk.ranges.clone() }
    }

    /// Writes tile records and columns. Each tile's value column follows those of its modes.
    fn tiled_sections(&self, chunk: &OpenChunk, image: &mut ImageWriter, chosen: &ChosenValues) {
        let order = self.shape.order();
        let mut records = chunk.tiles.clone();
        let mut at = 0;
        for (record, values) in records.iter_mut().zip(chunk.values.chunks(TILE_NNZ)) {
            (record.value_base, record.value_width) = chosen.column_of(values);
            record.columns_at = at;
            at += record.widths(order);
        }
        image.section(SectionKind::Tiles, |out| records.iter().for_each(|r| r.write(order, out)));
        image.section(SectionKind::Columns, |out| {
            out.reserve(column::bytes(at));
            let mut done = 0;
            for (record, values) in records.iter().zip(chunk.values.chunks(TILE_NNZ)) {
                let bytes = column::bytes(record.widths(order) - record.value_width);
                out.extend_from_slice(&chunk.columns[done..done + bytes]);
                done += bytes;
                chosen.pack(values, record.value_base, record.value_width, out);
            }
        });
    }
}

/// Writes blocks and re-encoded indices.
fn raw_sections(chunk: &OpenChunk, image: &mut ImageWriter) {
    image.section(SectionKind::Blocks, |out| {
        for (key, start) in &chunk.keys {
            out.extend(key.to_le_bytes());
            out.extend(start.to_le_bytes());
            out.extend([0; 4]);
        }
    });
    image.section(SectionKind::Index, |out| out.extend(chunk.raw.iter().flat_map(|i| i.to_le_bytes())));
}

impl ChunkBuilder for BlcoBuilder {
    fn worker(&self) -> Option<Arc<dyn TileWorker>> {
        let Encoder { shape, encoding, .. } = &*self.encoder;
        let layout = BitLayout::new(shape);
        Some(Arc::new(TilePacker {
            order: shape.order(),
            encoding: *encoding,
            linearizer: Linearizer::new(&layout),
            reencoding: Reencoding::new(&layout, BLOCK_BITS),
        }))
    }

    fn push(&mut self, tile: &SortedTile, made: &Made, sink: ChunkSink<'_>) -> Result<()> {
        let columns: Option<&TileColumns> = made.as_ref().and_then(|made| made.downcast_ref());
        let columns = columns.expect("made by the worker of this builder");
        if !self.has_room(columns, tile.values.len()) {
            self.close().map_or(Ok(()), &mut *sink)?;
        }
        if self.open.tiles.is_empty()
            && let Some(spare) = self.encoder.spare().pop()
        {
            self.open = spare;
        }
        self.open.add(tile, columns);
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        self.close().map_or(Ok(()), sink)
    }
}
