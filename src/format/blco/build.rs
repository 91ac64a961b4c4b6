//! Building chunk images. Tiles are encoded independently (in parallel, by the packer), then assembled in
//! order into chunks of bounded bytes.

use crate::encoding::column::Numbers;
use crate::encoding::tile::{TileRecord, pack_mode, record_bytes};
use crate::encoding::values::{ChosenValues, Costs, TileValues, ValueBytes};
use crate::encoding::{IndexEncoding, TILE_NNZ, column};
use crate::format::gathered::GatheredTile;
use crate::format::{BuiltChunk, value_section};
use crate::linear::{BLOCK_BITS, BitLayout, Key, Linearizer, Nonzero, Reencoding};
use crate::shape::{ORDER_MAX, Shape};
use crate::store::chunk::ALIGN;
use crate::store::{ChunkEntry, Format, ImageWriter, SectionKind, Version};

/// Sections of an image, at most.
const SECTIONS: usize = 4;

/// Encodes single tiles.
#[derive(Debug)]
pub struct TileEncoder<K> {
    order: usize,
    encoding: IndexEncoding,
    linearizer: Linearizer<K>,
    reencoding: Reencoding,
}

/// One tile, ready to be assembled.
#[derive(Debug, Default)]
pub struct EncodedTile {
    record: TileRecord,
    /// The nonzeros as they came.
    gathered: GatheredTile,
    costs: TileValues,
    linear: [u128; 2],
    /// Packed columns of the modes (`tiled`).
    columns: Vec<u8>,
    /// Re-encoded indices, and each new key with the position where it starts (`raw`).
    raw: Vec<u64>,
    keys: Vec<(u64, u32)>,
}

impl EncodedTile {
    /// The nonzeros in coordinates.
    #[must_use]
    pub fn gathered(&self) -> &GatheredTile {
        &self.gathered
    }
}

impl<K: Key> TileEncoder<K> {
    /// An encoder for tensors of `layout`.
    #[must_use]
    pub fn new(layout: &BitLayout, encoding: IndexEncoding) -> Self {
        Self {
            order: layout.order(),
            encoding,
            linearizer: Linearizer::new(layout),
            reencoding: Reencoding::new(layout, BLOCK_BITS),
        }
    }

    /// Makes `tile` that of 1 to [`TILE_NNZ`] nonzeros in linear order.
    pub fn encode(&self, nonzeros: &[Nonzero<K>], tile: &mut EncodedTile) {
        tile.gathered.gather(&self.linearizer, self.order, nonzeros);
        let gathered = &tile.gathered;
        let mut record = TileRecord {
            columns_at: 0,
            value_width: 0,
            value_base: 0,
            low: [0; ORDER_MAX],
            high: [0; ORDER_MAX],
        };
        for m in 0..self.order {
            let column = gathered.column(m);
            record.low[m] = column.iter().copied().min().unwrap_or(0);
            record.high[m] = column.iter().copied().max().unwrap_or(0);
        }
        let linear = |n: Option<&Nonzero<K>>| n.map_or(0, |n| n.linear.widen());
        tile.record = record;
        tile.costs = TileValues::new(&gathered.values);
        tile.linear = [linear(nonzeros.first()), linear(nonzeros.last())];
        tile.columns.clear();
        tile.raw.clear();
        tile.keys.clear();
        match self.encoding {
            IndexEncoding::Tiled => self.pack_columns(tile),
            IndexEncoding::Raw => self.reencode(nonzeros, tile),
        }
    }

    fn pack_columns(&self, tile: &mut EncodedTile) {
        for m in 0..self.order {
            let numbers: &Numbers<u32> =
                tile.gathered.indices[m * TILE_NNZ..][..TILE_NNZ].try_into().expect("a column holds a tile");
            pack_mode(&tile.record, m, tile.gathered.values.len(), numbers, &mut tile.columns);
        }
    }

    fn reencode(&self, nonzeros: &[Nonzero<K>], tile: &mut EncodedTile) {
        for (i, nonzero) in (0..).zip(nonzeros) {
            let at: [u32; ORDER_MAX] = std::array::from_fn(|m| match m {
                m if m < self.order => tile.gathered.indices[m * TILE_NNZ + i as usize],
                _ => 0,
            });
            tile.raw.push(self.reencoding.encode(&at[..self.order]));
            let key = self.reencoding.key(nonzero.linear.widen());
            if tile.keys.last().is_none_or(|last| last.0 != key) {
                tile.keys.push((key, i));
            }
        }
    }
}

/// Assembles tiles into chunks, by the rule of formats-spec/blco.md, "Cutting".
#[derive(Debug)]
pub struct BlcoBuilder {
    version: Version,
    shape: Shape,
    encoding: IndexEncoding,
    chunk_bytes: u64,
    nnz_max: usize,
    tiles: Vec<TileRecord>,
    columns: Vec<u8>,
    raw: Vec<u64>,
    keys: Vec<(u64, u32)>,
    values: Vec<f64>,
    costs: Costs,
    linear: [u128; 2],
}

/// The nonzeros that a chunk can hold at most.
pub(crate) fn chunk_nnz_max(chunk_bytes: u64) -> usize {
    let tiles = (chunk_bytes / 4 / TILE_NNZ as u64).max(1);
    usize::try_from(tiles).map_or(usize::MAX, |t| t * TILE_NNZ)
}

/// Bytes that an open chunk of at most `chunk_bytes` takes: columns and values while it grows, then its image.
pub(crate) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    2 * chunk_bytes + 8 * chunk_nnz_max(chunk_bytes) as u64
}

/// The least bound on a chunk's image that allows `nnz` nonzeros in `image_bytes`.
pub(crate) fn chunk_bytes_least(nnz: u32, image_bytes: u32) -> u64 {
    (4 * u64::from(nnz)).max(image_bytes.into())
}

/// Bytes that COLUMNS and VALUES take in an image whose index columns take `columns`.
fn value_cost(columns: usize) -> impl Fn(ValueBytes) -> u64 {
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN as u64);
    move |values| aligned(columns as u64 + values.columns) + aligned(values.section)
}

impl BlcoBuilder {
    /// A builder of chunks whose images have at most `chunk_bytes`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, encoding: IndexEncoding, chunk_bytes: u64) -> Self {
        Self {
            version,
            shape: shape.clone(),
            encoding,
            chunk_bytes,
            nnz_max: chunk_nnz_max(chunk_bytes),
            tiles: Vec::new(),
            columns: Vec::new(),
            raw: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            costs: Costs::new(version.has_decimals()),
            linear: [0; 2],
        }
    }

    /// Adds the next tile; the chunk that was closed before it, if one was.
    pub fn push(&mut self, tile: &EncodedTile) -> Option<BuiltChunk> {
        let closed = if self.has_room(tile) { None } else { self.close() };
        if self.tiles.is_empty() {
            self.linear[0] = tile.linear[0];
        }
        self.linear[1] = tile.linear[1];
        let start = u32::try_from(self.values.len()).expect("a chunk has fewer than 2^32 nonzeros");
        let continues = |key: u64| self.keys.last().is_some_and(|last| last.0 == key);
        let skip = usize::from(tile.keys.first().is_some_and(|first| continues(first.0)));
        self.keys.extend(tile.keys[skip..].iter().map(|&(key, at)| (key, start + at)));
        self.costs = self.costs.with(&tile.costs, tile.gathered.values.len());
        self.tiles.push(tile.record);
        self.columns.extend_from_slice(&tile.columns);
        self.raw.extend_from_slice(&tile.raw);
        self.values.extend_from_slice(&tile.gathered.values);
        closed
    }

    /// Whether the open chunk with `tile` added stays within its bounds.
    fn has_room(&self, tile: &EncodedTile) -> bool {
        if self.tiles.is_empty() {
            return true;
        }
        let nnz = self.values.len() + tile.gathered.values.len();
        let continues =
            tile.keys.first().is_some_and(|first| self.keys.last().is_some_and(|k| k.0 == first.0));
        let blocks = self.keys.len() + tile.keys.len() - usize::from(continues);
        let costs = self.costs.with(&tile.costs, tile.gathered.values.len());
        let (tiles, columns) = (self.tiles.len() + 1, self.columns.len() + tile.columns.len());
        nnz <= self.nnz_max && self.image_bytes(nnz, blocks, tiles, columns, &costs) <= self.chunk_bytes
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

    /// Closes the open chunk, if it holds anything.
    pub fn close(&mut self) -> Option<BuiltChunk> {
        if self.tiles.is_empty() {
            return None;
        }
        let chosen = match self.encoding {
            IndexEncoding::Raw => ChosenValues::F64,
            IndexEncoding::Tiled => {
                self.costs.choose(&self.values, self.values.len(), value_cost(self.columns.len()))
            }
        };
        let (nnz, blocks, tiles) = (self.values.len(), self.keys.len(), self.tiles.len());
        let bytes = self.image_bytes(nnz, blocks, tiles, self.columns.len(), &self.costs);
        let sections = SECTIONS - usize::from(!chosen.encoding().has_section());
        let mut image =
            ImageWriter::with_capacity(self.version, sections, usize::try_from(bytes).unwrap_or(0));
        image.section(SectionKind::Shape, |out| {
            out.extend(self.shape.dims().iter().flat_map(|d| d.to_le_bytes()));
        });
        match self.encoding {
            IndexEncoding::Raw => self.raw_sections(&mut image),
            IndexEncoding::Tiled => self.tiled_sections(&mut image, &chosen),
        }
        value_section(&mut image, &chosen, |put| put(&self.values));
        let entry = self.ranges();
        let nnz = u32::try_from(self.values.len()).expect("a chunk has fewer than 2^32 nonzeros");
        let order = u8::try_from(self.shape.order()).expect("at most 8 modes");
        let codes = Format::Blco(self.encoding).chunk_codes(self.version, chosen.encoding() as u8);
        let (header, image) = image.finish(order, nnz, codes);
        self.clear();
        Some(BuiltChunk { header, image, entry })
    }

    fn raw_sections(&self, image: &mut ImageWriter) {
        image.section(SectionKind::Blocks, |out| {
            for (key, start) in &self.keys {
                out.extend(key.to_le_bytes());
                out.extend(start.to_le_bytes());
                out.extend([0; 4]);
            }
        });
        image.section(SectionKind::Index, |out| out.extend(self.raw.iter().flat_map(|i| i.to_le_bytes())));
    }

    /// Tile records and columns, each tile's value column behind those of its modes.
    fn tiled_sections(&self, image: &mut ImageWriter, chosen: &ChosenValues) {
        let order = self.shape.order();
        let mut records = self.tiles.clone();
        let mut at = 0;
        for (record, values) in records.iter_mut().zip(self.values.chunks(TILE_NNZ)) {
            (record.value_base, record.value_width) = chosen.column_of(values);
            record.columns_at = at;
            at += record.widths(order);
        }
        image.section(SectionKind::Tiles, |out| records.iter().for_each(|r| r.write(order, out)));
        image.section(SectionKind::Columns, |out| {
            out.reserve(column::bytes(at));
            let mut done = 0;
            for (record, values) in records.iter().zip(self.values.chunks(TILE_NNZ)) {
                let bytes = column::bytes(record.widths(order) - record.value_width);
                out.extend_from_slice(&self.columns[done..done + bytes]);
                done += bytes;
                chosen.pack(values, record.value_base, record.value_width, out);
            }
        });
    }

    /// The manifest entry's linear and row ranges.
    fn ranges(&self) -> ChunkEntry {
        let order = self.shape.order();
        let over = |m: usize, of: fn(&TileRecord) -> &[u32; ORDER_MAX], pick: fn(u32, u32) -> u32| {
            if m < order { self.tiles.iter().map(|t| of(t)[m]).reduce(pick).unwrap_or(0) } else { 0 }
        };
        #[expect(clippy::cast_possible_truncation, reason = "halves of a 128-bit number")]
        let halves = |x: u128| [x as u64, (x >> 64) as u64];
        ChunkEntry {
            first_linear: halves(self.linear[0]),
            last_linear: halves(self.linear[1]),
            row_low: std::array::from_fn(|m| over(m, |t| &t.low, u32::min)),
            row_high: std::array::from_fn(|m| over(m, |t| &t.high, u32::max)),
            ..ChunkEntry::default()
        }
    }

    fn clear(&mut self) {
        self.tiles.clear();
        self.columns.clear();
        self.raw.clear();
        self.keys.clear();
        self.values.clear();
        self.costs = Costs::new(self.version.has_decimals());
    }
}
