//! Builds chunk images. Tiles are encoded independently, in parallel, then assembled in order into chunks of
//! bounded size.

use super::Blco;
use crate::chunk::{ImageWriter, SectionKind, Version};
use crate::encoding::column::Numbers;
use crate::encoding::tile::{TileRecord, pack_mode, record_bytes};
use crate::encoding::values::{ChosenValues, Costs, TileValues};
use crate::encoding::{IndexEncoding, TILE_NNZ, column};
use crate::error::Result;
use crate::format::{
    BuiltChunk, ChunkBuilder, ChunkFormat, ChunkRanges, ChunkSink, ClosedChunk, Made, SortedTile, TileWorker,
    aligned, chunk_nnz_max, tile_records, value_cost, value_section,
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

/// What a worker makes of a tile.
#[derive(Debug, Default)]
struct MadeTile {
    encoded: EncodedTile,
    costs: TileValues,
}

/// All that a chunk needs of a tile. It takes this over, so that nothing is copied by the thread that assembles chunks.
#[derive(Debug, Default)]
struct EncodedTile {
    record: TileRecord,
    values: Vec<f64>,
    /// Packed columns of the modes (`tiled`).
    columns: Vec<u8>,
    /// Re-encoded indices, and each new key with its start position (`raw`).
    raw: Vec<u64>,
    keys: Vec<(u64, u32)>,
}

impl TileWorker for TilePacker {
    fn work(&self, tile: &SortedTile, made: &mut Made) {
        let made = made.get_or_insert_with(|| Box::<MadeTile>::default());
        let MadeTile { encoded, costs } = made.downcast_mut().expect("made by this");
        let SortedTile { low, high, .. } = *tile;
        encoded.record = TileRecord { columns_at: 0, value_width: 0, value_base: 0, low, high };
        encoded.values.clone_from(&tile.values);
        *costs = TileValues::new(&tile.values);
        encoded.columns.clear();
        encoded.raw.clear();
        encoded.keys.clear();
        match self.encoding {
            IndexEncoding::Tiled => self.pack_columns(tile, encoded),
            IndexEncoding::Raw => self.reencode(tile, encoded),
        }
    }
}

impl TilePacker {
    fn pack_columns(&self, tile: &SortedTile, made: &mut EncodedTile) {
        made.columns.reserve_exact(column::bytes(made.record.widths(self.order)));
        for m in 0..self.order {
            let numbers: &Numbers<u32> =
                tile.indices[m * TILE_NNZ..][..TILE_NNZ].try_into().expect("a column holds a tile");
            pack_mode(&made.record, m, tile.values.len(), numbers, &mut made.columns);
        }
    }

    fn reencode(&self, tile: &SortedTile, made: &mut EncodedTile) {
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
    /// Tiles of finished chunks, for reuse.
    spare: Vec<EncodedTile>,
}

/// Makes images of closed chunks.
#[derive(Debug)]
struct Encoder {
    version: Version,
    shape: Shape,
    encoding: IndexEncoding,
    /// Tiles of finished chunks, until the builder takes them.
    spare: Mutex<Vec<EncodedTile>>,
}

/// The data of a chunk's image.
#[derive(Debug)]
struct OpenChunk {
    tiles: Vec<EncodedTile>,
    sizes: Sizes,
    costs: Costs,
    ranges: ChunkRanges,
}

/// What determines the size of an image, but for the values.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    tiles: usize,
    nnz: usize,
    /// Blocks (`raw`).
    blocks: usize,
    /// Bytes of packed columns (`tiled`).
    columns: usize,
}

/// Bytes that an open chunk of at most `chunk_bytes` takes: columns and values, then its image.
pub(crate) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    2 * chunk_bytes + 8 * chunk_nnz_max(chunk_bytes) as u64
}

impl BlcoBuilder {
    /// A builder of chunks whose images have at most `chunk_bytes`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, encoding: IndexEncoding, chunk_bytes: u64) -> Self {
        let encoder = Encoder { version, shape: shape.clone(), encoding, spare: Mutex::default() };
        let open = OpenChunk::new(version);
        let nnz_max = chunk_nnz_max(chunk_bytes);
        Self { encoder: Arc::new(encoder), chunk_bytes, nnz_max, open, spare: Vec::new() }
    }

    /// Whether a chunk stays within its bounds.
    fn fits(&self, sizes: Sizes, costs: &Costs) -> bool {
        sizes.nnz <= self.nnz_max && self.encoder.image_bytes(sizes, costs) <= self.chunk_bytes
    }

    /// Closes the open chunk unless it is empty.
    fn close(&mut self) -> Option<ClosedChunk> {
        if self.open.tiles.is_empty() {
            return None;
        }
        let closed = std::mem::replace(&mut self.open, OpenChunk::new(self.encoder.version));
        let encoder = Arc::clone(&self.encoder);
        Some(ClosedChunk::new(move || {
            let built = encoder.encode(&closed);
            encoder.spare().extend(closed.tiles);
            built
        }))
    }

    /// Memory for a tile that comes later.
    fn spare(&mut self) -> EncodedTile {
        if self.spare.is_empty() {
            std::mem::swap(&mut self.spare, &mut self.encoder.spare());
        }
        self.spare.pop().unwrap_or_default()
    }
}

impl OpenChunk {
    fn new(version: Version) -> Self {
        Self {
            tiles: Vec::new(),
            sizes: Sizes::default(),
            costs: Costs::new(version.has_decimals()),
            ranges: ChunkRanges::default(),
        }
    }

    /// Sizes and costs with one more tile.
    fn with(&self, tile: &EncodedTile, values: &TileValues) -> (Sizes, Costs) {
        let Sizes { tiles, nnz, blocks, columns } = self.sizes;
        let sizes = Sizes {
            tiles: tiles + 1,
            nnz: nnz + tile.values.len(),
            blocks: blocks + tile.keys.len() - usize::from(self.continues_in(tile)),
            columns: columns + tile.columns.len(),
        };
        (sizes, self.costs.with(values, tile.values.len()))
    }

    /// Whether the first block of `tile`, which comes next, is the last one so far.
    fn continues_in(&self, tile: &EncodedTile) -> bool {
        let last = self.tiles.last().and_then(|last| last.keys.last());
        last.zip(tile.keys.first()).is_some_and(|(last, first)| last.0 == first.0)
    }

    /// The values, in order.
    fn values(&self) -> impl Iterator<Item = &f64> {
        self.tiles.iter().flat_map(|tile| &tile.values)
    }
}

impl Encoder {
    fn spare(&self) -> MutexGuard<'_, Vec<EncodedTile>> {
        self.spare.lock().expect("no thread panicked")
    }

    fn image_bytes(&self, sizes: Sizes, costs: &Costs) -> u64 {
        let Sizes { tiles, nnz, blocks, columns } = sizes;
        let order = self.shape.order();
        let sections = match self.encoding {
            IndexEncoding::Raw => aligned(16 * blocks as u64) + 2 * aligned(8 * nnz as u64),
            IndexEncoding::Tiled => {
                let records = aligned((record_bytes(order) * tiles) as u64);
                records + costs.cheapest(value_cost(columns as u64)).1
            }
        };
        self.version.header_bytes(SECTIONS) as u64 + aligned(4 * order as u64) + sections
    }

    fn encode(&self, chunk: &OpenChunk) -> BuiltChunk {
        let OpenChunk { sizes, costs, .. } = chunk;
        let Sizes { nnz, columns, .. } = *sizes;
        let chosen = match self.encoding {
            IndexEncoding::Raw => ChosenValues::F64,
            IndexEncoding::Tiled => costs.choose(chunk.values(), nnz, value_cost(columns as u64)),
        };
        let bytes = self.image_bytes(*sizes, costs);
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
        value_section(&mut image, &chosen, |put| chunk.tiles.iter().for_each(|tile| put(&tile.values)));
        let nnz = u32::try_from(nnz).expect("a chunk has fewer than 2^32 nonzeros");
        let order = u8::try_from(self.shape.order()).expect("at most 8 modes");
        let codes = Blco(self.encoding).record().chunk_codes(self.version, chosen.encoding() as u8);
        let (header, image) = image.finish(order, nnz, codes);
        BuiltChunk { header, image, ranges: chunk.ranges.clone() }
    }

    /// Writes tile records and columns. Each tile's value column follows those of its modes.
    fn tiled_sections(&self, chunk: &OpenChunk, image: &mut ImageWriter, chosen: &ChosenValues) {
        let order = self.shape.order();
        let tiles = chunk.tiles.iter().map(|tile| (&tile.record, &tile.values[..]));
        let records = tile_records(tiles, order, chosen);
        image.section(SectionKind::Tiles, |out| records.iter().for_each(|r| r.write(order, out)));
        image.section(SectionKind::Columns, |out| {
            out.reserve(column::bytes(records.iter().map(|record| record.widths(order)).sum()));
            for (record, tile) in records.iter().zip(&chunk.tiles) {
                out.extend_from_slice(&tile.columns);
                chosen.pack(&tile.values, record.value_base, record.value_width, out);
            }
        });
    }
}

/// Writes blocks and re-encoded indices.
fn raw_sections(chunk: &OpenChunk, image: &mut ImageWriter) {
    image.section(SectionKind::Blocks, |out| {
        let (mut start, mut last) = (0u32, None);
        for tile in &chunk.tiles {
            for &(key, at) in &tile.keys {
                if last != Some(key) {
                    out.extend(key.to_le_bytes());
                    out.extend((start + at).to_le_bytes());
                    out.extend([0; 4]);
                }
                last = Some(key);
            }
            start += u32::try_from(tile.values.len()).expect("a chunk has fewer than 2^32 nonzeros");
        }
    });
    let raw = || chunk.tiles.iter().flat_map(|tile| &tile.raw);
    image.section(SectionKind::Index, |out| out.extend(raw().flat_map(|i| i.to_le_bytes())));
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

    fn push(&mut self, tile: &SortedTile, made: &mut Made, sink: ChunkSink<'_>) -> Result<()> {
        let made: Option<&mut MadeTile> = made.as_mut().and_then(|made| made.downcast_mut());
        let MadeTile { encoded, costs: values } = made.expect("made by the worker of this builder");
        let encoded = std::mem::replace(encoded, self.spare());
        let (mut sizes, mut costs) = self.open.with(&encoded, values);
        if !self.open.tiles.is_empty() && !self.fits(sizes, &costs) {
            self.close().map_or(Ok(()), &mut *sink)?;
            (sizes, costs) = self.open.with(&encoded, values);
        }
        (self.open.sizes, self.open.costs) = (sizes, costs);
        self.open.ranges.add(tile);
        self.open.tiles.push(encoded);
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        self.close().map_or(Ok(()), sink)
    }
}
