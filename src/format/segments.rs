//! Layout `segments` (formats-spec/formats.md; after Liu, Wen, Sarwate and Mehri Dehnavi, CLUSTER 2017, section IV).
//! Each nonzero has its indices in the product modes. A segment is a run of nonzeros with equal indices in all index
//! modes; it stores these indices once, and a flag marks its first nonzero.

use super::values::{ValueSection, WRONG_SECTIONS, check_frame, value_section};
use super::{
    BuiltChunk, Checked, ChunkBuilder, ChunkDecoder, ChunkRanges, ChunkSink, ClosedChunk, Made, NonzeroView,
    SortedTile, TileWorker, aligned, chunk_nnz_max, tile_records, value_cost,
};
use crate::chunk::{ChunkCodes, ChunkHeader, ImageWriter, SectionKind, Version};
use crate::encoding::column::{self, Numbers};
use crate::encoding::tile::{TileRecord, pack_mode, reach_at_most, record_bytes};
use crate::encoding::values::{ChosenValues, Costs, TileValues};
use crate::encoding::{TILE_NNZ, width};
use crate::error::Result;
use crate::shape::{ORDER_MAX, Shape};
use std::ops::Range;
use std::sync::Arc;

/// Sections of an image, at most.
const SECTIONS: usize = 4;
/// Bytes of SEGMENTS before its records.
const HEAD_BYTES: usize = 8;
/// Words of a tile's flags.
const FLAG_WORDS: usize = TILE_NNZ / 32;

/// The modes of a tensor by role, ascending.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub shape: Shape,
    pub product: Vec<usize>,
    pub index: Vec<usize>,
}

impl Parts {
    /// Bytes of a record of a tile of nonzeros, and of a tile of segments.
    fn record_bytes(&self) -> [usize; 2] {
        [record_bytes(self.product.len()), 8 + 8 * self.index.len()]
    }

    /// Bytes of SEGMENTS.
    fn segments_bytes(&self, nnz: usize, segments: usize) -> usize {
        let [of_tile, of_group] = self.record_bytes();
        let records = nnz.div_ceil(TILE_NNZ) * of_tile + segments.div_ceil(TILE_NNZ) * of_group;
        HEAD_BYTES + records + 4 * nnz.div_ceil(32)
    }

    /// Bytes of an image, not counting a dictionary of values.
    fn image_bytes(&self, version: Version, sizes: Sizes, costs: &Costs) -> u64 {
        let Sizes { nnz, segments, columns } = sizes;
        version.header_bytes(SECTIONS) as u64
            + aligned(4 * self.shape.order() as u64)
            + aligned(self.segments_bytes(nnz, segments) as u64)
            + costs.cheapest(value_cost(columns)).1
    }
}

/// What determines the size of an image, but for the values.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    nnz: usize,
    segments: usize,
    /// Bytes of the packed columns of indices.
    columns: u64,
}

/// Bytes that an open chunk of at most `chunk_bytes` takes: columns, values, records and flags, then its image.
pub(super) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    // Records in memory have room for all modes: some 60 bytes a tile more than in the image.
    let records = chunk_bytes / 32;
    let waiting = 4 * TILE_NNZ * ORDER_MAX;
    2 * chunk_bytes + 8 * chunk_nnz_max(chunk_bytes) as u64 + records + waiting as u64
}

/// The most bytes that a worker produces per nonzero of a tensor of `order`: an index in each mode; flags, ranges and
/// costs take less than a byte.
pub(super) fn made_bytes(order: usize) -> usize {
    4 * order + 1
}

/// Smallest and largest of some indices. The first exceeds the second while there are none.
#[derive(Clone, Copy, Debug)]
struct Span([u32; 2]);

impl Span {
    const EMPTY: Self = Self([u32::MAX, 0]);

    fn with(self, indices: &[u32]) -> Self {
        let Self([low, high]) = self;
        Self(indices.iter().fold([low, high], |[low, high], &i| [low.min(i), high.max(i)]))
    }

    /// Bytes of a packed column of these indices.
    fn column_bytes(self) -> usize {
        let Self([low, high]) = self;
        column::bytes(width(high.saturating_sub(low).into()))
    }
}

/// Packs the product modes' columns of single tiles and finds where segments begin, on any thread.
#[derive(Debug)]
struct TilePacker(Parts);

/// What a worker makes of a tile.
#[derive(Debug, Default)]
struct MadeTile {
    packed: PackedTile,
    /// Packed columns of the product modes.
    columns: Vec<u8>,
    costs: TileValues,
    /// Nonzeros that begin a segment.
    segments: usize,
    /// Their indices, a column for each index mode.
    index: Vec<u32>,
}

/// The ranges of a tile's product modes, in the order of [`Parts::product`], and its flags.
#[derive(Clone, Copy, Debug, Default)]
struct PackedTile {
    ranges: TileRecord,
    flags: [u32; FLAG_WORDS],
}

impl TileWorker for TilePacker {
    fn work(&self, tile: &SortedTile, made: &mut Made) {
        let made = made.get_or_insert_with(|| Box::<MadeTile>::default());
        let made: &mut MadeTile = made.downcast_mut().expect("made by this");
        made.costs = TileValues::new(&tile.values);
        self.pack_columns(tile, made);
        self.find_segments(tile, made);
    }
}

impl TilePacker {
    fn pack_columns(&self, tile: &SortedTile, made: &mut MadeTile) {
        let MadeTile { packed: PackedTile { ranges, .. }, columns, .. } = made;
        columns.clear();
        for (k, &mode) in self.0.product.iter().enumerate() {
            (ranges.low[k], ranges.high[k]) = (tile.low[mode], tile.high[mode]);
            let numbers: &Numbers<u32> =
                tile.indices[mode * TILE_NNZ..][..TILE_NNZ].try_into().expect("a column holds a tile");
            pack_mode(ranges, k, tile.values.len(), numbers, columns);
        }
    }

    /// The first nonzero begins a segment here, whatever comes before the tile.
    fn find_segments(&self, tile: &SortedTile, made: &mut MadeTile) {
        let mut begins = [false; TILE_NNZ];
        begins[0] = true;
        for &mode in &self.0.index {
            for (begins, pair) in begins[1..].iter_mut().zip(tile.column(mode).windows(2)) {
                *begins |= pair[0] != pair[1];
            }
        }
        let word =
            |begins: &[bool]| begins.iter().rev().fold(0, |word, &begins| word << 1 | u32::from(begins));
        made.packed.flags = std::array::from_fn(|w| word(&begins[32 * w..][..32]));
        made.segments = begins.iter().filter(|begins| **begins).count();
        made.index.clear();
        for &mode in &self.0.index {
            let column = tile.column(mode).iter().zip(&begins);
            made.index.extend(column.filter(|(_, begins)| **begins).map(|(index, _)| index));
        }
    }
}

impl MadeTile {
    /// Column `k` of the segments that begin here. If the first nonzero `continues` one, its indices are left out.
    fn segments(&self, k: usize, continues: bool) -> &[u32] {
        &self.index[k * self.segments..][usize::from(continues)..self.segments]
    }
}

/// Puts nonzeros into chunks of whole tiles.
#[derive(Debug)]
pub(super) struct SegmentsBuilder {
    version: Version,
    parts: Parts,
    codes: ChunkCodes,
    chunk_bytes: u64,
    nnz_max: usize,
    open: Open,
}

/// A chunk while it grows.
#[derive(Debug)]
struct Open {
    ranges: ChunkRanges,
    tiles: Vec<PackedTile>,
    /// Packed columns of the product modes, tile after tile.
    columns: Vec<u8>,
    values: Vec<f64>,
    costs: Costs,
    groups: Groups,
    /// The last nonzero's indices in the index modes.
    last: [u32; ORDER_MAX],
}

/// The segments of a chunk in tiles.
#[derive(Debug)]
struct Groups {
    /// Segments in all.
    count: usize,
    /// Packed columns and ranges of full tiles.
    columns: Vec<u8>,
    ranges: Vec<TileRecord>,
    /// The tile that is not full: indices in each index mode, and their spans.
    waiting: Vec<Numbers<u32>>,
    spans: Vec<Span>,
}

impl Groups {
    /// No segments with `modes` index modes.
    fn new(modes: usize) -> Self {
        let (waiting, spans) = (vec![[0; TILE_NNZ]; modes], vec![Span::EMPTY; modes]);
        Self { count: 0, columns: Vec::new(), ranges: Vec::new(), waiting, spans }
    }

    /// Segments in the tile that is not full.
    fn waiting(&self) -> usize {
        self.count % TILE_NNZ
    }

    /// Bytes of all columns with these segments, at most a tile, too. `column` returns those of an index mode.
    fn bytes_with<'a>(&self, column: impl Fn(usize) -> &'a [u32]) -> u64 {
        let room = TILE_NNZ - self.waiting();
        let of_mode = |(k, span): (usize, &Span)| {
            let (here, next) = column(k).split_at(room.min(column(k).len()));
            span.with(here).column_bytes() + Span::EMPTY.with(next).column_bytes()
        };
        (self.columns.len() + self.spans.iter().enumerate().map(of_mode).sum::<usize>()) as u64
    }

    /// Adds `count` segments. `column` returns their indices in an index mode.
    fn add<'a>(&mut self, count: usize, column: impl Fn(usize) -> &'a [u32]) {
        let mut at = 0;
        while at < count {
            let waiting = self.waiting();
            let some = at..count.min(at + TILE_NNZ - waiting);
            for (k, (own, span)) in self.waiting.iter_mut().zip(&mut self.spans).enumerate() {
                let indices = &column(k)[some.clone()];
                own[waiting..][..indices.len()].copy_from_slice(indices);
                *span = span.with(indices);
            }
            self.count += some.len();
            if self.waiting() == 0 {
                self.pack(TILE_NNZ);
            }
            at = some.end;
        }
    }

    /// Packs the `count` segments that wait.
    fn pack(&mut self, count: usize) {
        let mut ranges = TileRecord::default();
        for (k, (own, span)) in self.waiting.iter().zip(&mut self.spans).enumerate() {
            let Span([low, high]) = std::mem::replace(span, Span::EMPTY);
            (ranges.low[k], ranges.high[k]) = (low, high);
            pack_mode(&ranges, k, count, own, &mut self.columns);
        }
        self.ranges.push(ranges);
    }

    /// Packs all that wait. Nothing can be added any more.
    fn finish(&mut self) {
        if self.waiting() > 0 {
            self.pack(self.waiting());
        }
    }
}

impl Open {
    fn new(version: Version, parts: &Parts) -> Self {
        Self {
            ranges: ChunkRanges::default(),
            tiles: Vec::new(),
            columns: Vec::new(),
            values: Vec::new(),
            costs: Costs::new(version.has_decimals()),
            groups: Groups::new(parts.index.len()),
            last: [0; ORDER_MAX],
        }
    }

    /// Whether the first nonzero of `tile`, which comes next, is in the last segment so far.
    fn continues_in(&self, parts: &Parts, tile: &SortedTile) -> bool {
        let mut indices = self.last.iter().zip(&parts.index);
        !self.tiles.is_empty() && indices.all(|(last, &mode)| tile.column(mode).first() == Some(last))
    }

    /// Sizes and costs with one more tile.
    fn with(&self, tile: &SortedTile, made: &MadeTile, continues: bool) -> (Sizes, Costs) {
        let groups = self.groups.bytes_with(|k| made.segments(k, continues));
        let sizes = Sizes {
            nnz: self.values.len() + tile.values.len(),
            segments: self.groups.count + made.segments - usize::from(continues),
            columns: (self.columns.len() + made.columns.len()) as u64 + groups,
        };
        (sizes, self.costs.with(&made.costs, tile.values.len()))
    }

    fn add(&mut self, parts: &Parts, tile: &SortedTile, made: &MadeTile, continues: bool) {
        let mut packed = made.packed;
        packed.flags[0] ^= u32::from(continues);
        self.tiles.push(packed);
        self.columns.extend_from_slice(&made.columns);
        self.values.extend_from_slice(&tile.values);
        self.groups.add(made.segments - usize::from(continues), |k| made.segments(k, continues));
        for (last, &mode) in self.last.iter_mut().zip(&parts.index) {
            *last = tile.column(mode).last().copied().unwrap_or_default();
        }
        self.ranges.add(tile);
    }
}

impl SegmentsBuilder {
    /// A builder for chunks with these codes, apart from the value encoding, whose images have at most
    /// `chunk_bytes`.
    pub fn new(version: Version, parts: Parts, codes: ChunkCodes, chunk_bytes: u64) -> Self {
        let (open, nnz_max) = (Open::new(version, &parts), chunk_nnz_max(chunk_bytes));
        Self { version, parts, codes, chunk_bytes, nnz_max, open }
    }

    /// Whether a chunk stays within its bounds.
    fn fits(&self, sizes: Sizes, costs: &Costs) -> bool {
        sizes.nnz <= self.nnz_max && self.parts.image_bytes(self.version, sizes, costs) <= self.chunk_bytes
    }

    fn close(&mut self) -> ClosedChunk {
        let open = std::mem::replace(&mut self.open, Open::new(self.version, &self.parts));
        let (version, parts, codes) = (self.version, self.parts.clone(), self.codes);
        ClosedChunk::new(move || image(version, &parts, codes, open))
    }
}

impl ChunkBuilder for SegmentsBuilder {
    fn worker(&self) -> Option<Arc<dyn TileWorker>> {
        Some(Arc::new(TilePacker(self.parts.clone())))
    }

    fn push(&mut self, tile: &SortedTile, made: &mut Made, sink: ChunkSink<'_>) -> Result<()> {
        let made: Option<&MadeTile> = made.as_ref().and_then(|made| made.downcast_ref());
        let made = made.expect("made by the worker of this builder");
        let mut continues = self.open.continues_in(&self.parts, tile);
        let (sizes, mut costs) = self.open.with(tile, made, continues);
        if !self.open.tiles.is_empty() && !self.fits(sizes, &costs) {
            sink(self.close())?;
            continues = false;
            costs = self.open.costs.with(&made.costs, tile.values.len());
        }
        self.open.costs = costs;
        self.open.add(&self.parts, tile, made, continues);
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        if self.open.tiles.is_empty() { Ok(()) } else { sink(self.close()) }
    }
}

/// The numbers of tile `t`, out of `count`.
fn tile_of(t: usize, count: usize) -> Range<usize> {
    t * TILE_NNZ..count.min((t + 1) * TILE_NNZ)
}

fn image(version: Version, parts: &Parts, codes: ChunkCodes, mut open: Open) -> BuiltChunk {
    open.groups.finish();
    let Open { ranges, tiles, columns, values, costs, groups, .. } = open;
    let (nnz, index_bytes) = (values.len(), (columns.len() + groups.columns.len()) as u64);
    let chosen = costs.choose(&values, nnz, value_cost(index_bytes));
    let sizes = Sizes { nnz, segments: groups.count, columns: index_bytes };
    let bytes = parts.image_bytes(version, sizes, &costs);
    let with_values = tiles.iter().map(|tile| &tile.ranges).zip(values.chunks(TILE_NNZ));
    let records = tile_records(with_values, parts.product.len(), &chosen);
    let sections = SECTIONS - usize::from(!chosen.encoding().has_section());
    let mut image = ImageWriter::with_capacity(version, sections, usize::try_from(bytes).unwrap_or(0));
    image.section(SectionKind::Shape, |out| {
        out.extend(parts.shape.dims().iter().flat_map(|d| d.to_le_bytes()));
    });
    image.section(SectionKind::Columns, |out| {
        interleave(parts, &columns, &records, &values, &chosen, out);
        out.extend_from_slice(&groups.columns);
    });
    value_section(&mut image, &chosen, |put| values.chunks(TILE_NNZ).for_each(put));
    image.section(SectionKind::Segments, |out| segments_section(parts, &groups, &records, &tiles, nnz, out));
    let order = u8::try_from(parts.shape.order()).expect("at most 8 modes");
    let nnz = u32::try_from(nnz).expect("a chunk has fewer than 2^32 nonzeros");
    let codes = ChunkCodes { value_encoding: chosen.encoding() as u8, ..codes };
    let (header, image) = image.finish(order, nnz, codes);
    BuiltChunk { header, image, ranges }
}

/// Writes the packed `columns` of tiles, each tile's value column behind those of its product modes.
fn interleave(
    parts: &Parts,
    mut columns: &[u8],
    records: &[TileRecord],
    values: &[f64],
    chosen: &ChosenValues,
    out: &mut Vec<u8>,
) {
    for (record, values) in records.iter().zip(values.chunks(TILE_NNZ)) {
        let units = record.widths(parts.product.len()) - record.value_width;
        let (own, rest) = columns.split_at(column::bytes(units));
        out.extend_from_slice(own);
        chosen.pack(values, record.value_base, record.value_width, out);
        columns = rest;
    }
}

/// Writes the records of tiles of nonzeros and of segments, and the flags of `nnz` nonzeros.
fn segments_section(
    parts: &Parts,
    groups: &Groups,
    records: &[TileRecord],
    tiles: &[PackedTile],
    nnz: usize,
    out: &mut Vec<u8>,
) {
    let [p, q] = [parts.product.len(), parts.index.len()];
    let count = u32::try_from(groups.count).expect("fewer than nonzeros");
    out.extend([count, 0].iter().flat_map(|field| field.to_le_bytes()));
    for record in records {
        record.write(p, out);
    }
    let mut at = records.last().map_or(0, |record| record.columns_at + record.widths(p));
    for group in &groups.ranges {
        out.extend([at, 0].iter().flat_map(|field| field.to_le_bytes()));
        group.write_ranges(q, out);
        at += group.widths(q);
    }
    let flags = tiles.iter().flat_map(|tile| tile.flags).take(nnz.div_ceil(32));
    out.extend(flags.flat_map(u32::to_le_bytes));
}

/// Reads such chunks.
#[derive(Debug)]
pub(super) struct SegmentsDecoder(pub Parts);

/// The nonzeros of a chunk, checked down to its records.
#[derive(Debug)]
struct View<'a> {
    parts: &'a Parts,
    image: &'a [u8],
    columns: &'a [u32],
    nnz: usize,
    segments: usize,
    /// Records of tiles of nonzeros, of tiles of segments, flags.
    tiles: &'a [u32],
    groups: &'a [u32],
    flags: &'a [u32],
    /// Segments that begin before each word of flags.
    before: Vec<u32>,
    values: ValueSection,
}

impl ChunkDecoder for SegmentsDecoder {
    fn open<'a>(&'a self, header: &ChunkHeader, image: &'a [u8]) -> Checked<Box<dyn NonzeroView + 'a>> {
        const WRONG: &str = "SEGMENTS section";
        let parts = &self.0;
        check_frame(&parts.shape, header, image, [SectionKind::Columns, SectionKind::Segments])?;
        let section = |kind| header.section(kind).ok_or(WRONG_SECTIONS);
        let (columns, records) = (section(SectionKind::Columns)?, section(SectionKind::Segments)?);
        let nnz = header.nnz as usize;
        let values = ValueSection::open(header, image, nnz)?;
        let words: &[u32] = bytemuck::try_cast_slice(&image[records]).map_err(|_| WRONG)?;
        let columns: &[u32] = bytemuck::try_cast_slice(&image[columns]).map_err(|_| "COLUMNS section")?;
        let &[segments, 0, ref words @ ..] = words else { return Err(WRONG) };
        let segments = segments as usize;
        let [of_tile, of_group] = parts.record_bytes().map(|bytes| bytes / 4);
        let (tiles, groups) = (nnz.div_ceil(TILE_NNZ) * of_tile, segments.div_ceil(TILE_NNZ) * of_group);
        if !(1..=nnz).contains(&segments) || words.len() != tiles + groups + nnz.div_ceil(32) {
            return Err(WRONG);
        }
        let (tiles, words) = words.split_at(tiles);
        let (groups, flags) = words.split_at(groups);
        let mut count = 0u32;
        let mut before = Vec::with_capacity(flags.len());
        for word in flags {
            before.push(count);
            count += word.count_ones();
        }
        let beyond = if nnz.is_multiple_of(32) { 0 } else { flags[nnz / 32] >> (nnz % 32) };
        if flags[0] & 1 == 0 || count as usize != segments || beyond != 0 {
            return Err("flags of the SEGMENTS section");
        }
        let view = View { parts, image, columns, nnz, segments, tiles, groups, flags, before, values };
        view.check_records()?;
        Ok(Box::new(view))
    }
}

/// The contents of a record: where its columns begin, its value column, low and high of each mode.
struct Record<'a> {
    at: u32,
    base: i64,
    value_width: u32,
    ranges: &'a [u32],
}

impl Record<'_> {
    fn range(&self, k: usize) -> [u32; 2] {
        [self.ranges[2 * k], self.ranges[2 * k + 1]]
    }

    fn width(&self, k: usize) -> u32 {
        let [low, high] = self.range(k);
        width(u64::from(high.wrapping_sub(low)))
    }

    /// Units before column `k`; the value column follows the last mode's.
    fn place(&self, k: usize) -> usize {
        self.at as usize + (0..k).map(|k| self.width(k) as usize).sum::<usize>()
    }
}

impl<'a> View<'a> {
    fn tile(&self, t: usize) -> Record<'a> {
        let words = 4 + 2 * self.parts.product.len();
        let record = &self.tiles[t * words..][..words];
        let base = u64::from(record[2]) | u64::from(record[3]) << 32;
        Record { at: record[0], base: base.cast_signed(), value_width: record[1], ranges: &record[4..] }
    }

    fn group(&self, t: usize) -> Record<'a> {
        let words = 2 + 2 * self.parts.index.len();
        let record = &self.groups[t * words..][..words];
        Record { at: record[0], base: 0, value_width: record[1], ranges: &record[2..] }
    }

    /// Checks that records are inside the shape and that their columns follow one another.
    fn check_records(&self) -> Checked<()> {
        let dims = self.parts.shape.dims();
        let mut end = 0u64;
        let mut check = |record: Record<'_>, modes: &[usize], value: bool| {
            let inside = modes.iter().enumerate().all(|(k, &mode)| {
                let [low, high] = record.range(k);
                low <= high && high < dims[mode]
            });
            let follows = u64::from(record.at) == end;
            end += (0..modes.len()).map(|k| u64::from(record.width(k))).sum::<u64>()
                + u64::from(record.value_width);
            if inside && follows && value { Ok(()) } else { Err("a record of the SEGMENTS section") }
        };
        for t in 0..self.nnz.div_ceil(TILE_NNZ) {
            let record = self.tile(t);
            let value = self.values.column_fits(record.value_width, record.base);
            check(record, &self.parts.product, value)?;
        }
        for t in 0..self.segments.div_ceil(TILE_NNZ) {
            let record = self.group(t);
            let reserved = record.value_width == 0;
            check(record, &self.parts.index, reserved)?;
        }
        if size_of_val(self.columns) as u64 == end * column::bytes(1) as u64 {
            Ok(())
        } else {
            Err("length of the COLUMNS section")
        }
    }

    fn words(&self, unit: usize, width: u32) -> &'a [u32] {
        let unit_words = column::bytes(1) / 4;
        &self.columns[unit * unit_words..][..width as usize * unit_words]
    }

    /// Unpacks column `k` of a tile of `count` numbers. Returns false if one is out of range.
    fn unpack(&self, record: &Record<'_>, k: usize, count: usize, out: &mut Numbers<u32>) -> bool {
        let [low, high] = record.range(k);
        column::unpack32(self.words(record.place(k), record.width(k)), record.width(k), low, out);
        reach_at_most(out, count, low, high - low)
    }

    /// The segment of nonzero `i`.
    fn segment_of(&self, i: usize) -> usize {
        let word = self.flags[i / 32] & (u32::MAX >> (31 - i % 32));
        (self.before[i / 32] + word.count_ones()) as usize - 1
    }
}

impl NonzeroView for View<'_> {
    fn decode(&self, range: Range<usize>, indices: &mut [u32], values: &mut [f64]) -> bool {
        let mut sound = true;
        let mut numbers: Numbers<u32> = [0; TILE_NNZ];
        // A tile of the store spans two tiles of the chunk unless the chunk begins with a whole tile.
        let mut at = range.start;
        while at < range.end {
            let t = at / TILE_NNZ;
            let (tile, to) = (tile_of(t, self.nnz), at - range.start);
            let part = at - tile.start..range.end.min(tile.end) - tile.start;
            let record = self.tile(t);
            for (k, &mode) in self.parts.product.iter().enumerate() {
                sound &= self.unpack(&record, k, tile.len(), &mut numbers);
                let column = &mut indices[mode * TILE_NNZ + to..][..part.len()];
                column.copy_from_slice(&numbers[part.clone()]);
            }
            let words = self.words(record.place(self.parts.product.len()), record.value_width);
            let mut unpacked = [0.0; TILE_NNZ];
            let column = (record.base, record.value_width);
            let known = self.values.unpack(self.image, tile.clone(), words, column, &mut unpacked);
            // The caller checks for values that are not finite.
            sound &= known || self.values.refused_rule() == "image-value";
            values[to..][..part.len()].copy_from_slice(&unpacked[part.clone()]);
            at += part.len();
        }
        for (k, &mode) in self.parts.index.iter().enumerate() {
            let mut group = usize::MAX;
            for (i, index) in range.clone().zip(&mut indices[mode * TILE_NNZ..]) {
                let segment = self.segment_of(i);
                if segment / TILE_NNZ != group {
                    group = segment / TILE_NNZ;
                    let count = tile_of(group, self.segments).len();
                    sound &= self.unpack(&self.group(group), k, count, &mut numbers);
                }
                *index = numbers[segment % TILE_NNZ];
            }
        }
        sound
    }

    fn stored_values_within(&self, low: f64, high: f64) -> bool {
        self.values.within(self.image, low, high)
    }

    fn value_bytes(&self) -> u64 {
        let tiles = (0..self.nnz.div_ceil(TILE_NNZ)).map(|t| column::bytes(self.tile(t).value_width) as u64);
        tiles.sum::<u64>() + self.values.section.len() as u64
    }

    fn index_bytes(&self) -> u64 {
        (size_of_val(self.columns) + self.values.section.len()) as u64 - self.value_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::values::ValueEncoding;
    use crate::format::fcoo::Fcoo;
    use crate::format::{Cutter, Format, Layout, PENDING_NNZ};
    use crate::linear::{BitLayout, Linearizer, Nonzero};
    use crate::random::Counter;
    use crate::shape::ModeOrder;

    /// Nonzeros of a partition, sorted.
    struct Sorted {
        shape: Shape,
        format: Fcoo,
        nonzeros: Vec<Nonzero<u128>>,
    }

    /// Long and short segments, of one and of several index modes, and nonzeros of few bytes.
    const SHAPES: [(&[u64], &[usize], u32); 5] = [
        (&[40, 3000, 700], &[0, 2, 1], 0b110),
        (&[90_000, 300, 5000], &[0, 1, 2], 0b110),
        (&[60, 700, 4000], &[0, 1, 2], 0b100),
        (&[9, 8, 7, 3000], &[0, 1, 2, 3], 0b1000),
        (&[30, 20, 10], &[1, 0, 2], 0b101),
    ];

    /// Integers, decimals, numbers of 64 bits, and all of them in turn.
    const VALUES: [fn(u64) -> f64; 4] = [
        |bits| (bits % 100_000) as f64,
        |bits| (bits % 1_000_000) as f64 / 100.0,
        |bits| 1.0 / (3.0 + (bits % 10_000_000) as f64),
        |bits| if bits % 1_000_003 < 50 { 1.0 / (bits as f64) } else { (bits % 3_000_000) as f64 / 8.0 },
    ];

    impl Sorted {
        fn new((dims, levels, product): (&[u64], &[usize], u32), value: fn(u64) -> f64, nnz: u64) -> Self {
            let shape = Shape::new(dims).unwrap();
            let levels = ModeOrder::new(levels).unwrap();
            let linearizer = Linearizer::new(&BitLayout::concatenated(&shape, &levels));
            let random = Counter::new(nnz, product.into());
            let nonzero = |i: u64| {
                let bits = |mode: u64| random.bits(9 * i + mode);
                let index = |(&dim, mode): (&u64, u64)| u32::try_from(bits(mode) % dim).unwrap();
                let at: Vec<u32> = dims.iter().zip(0..).map(index).collect();
                Nonzero { linear: linearizer.scatter(&at), value: value(bits(8)) }
            };
            let mut nonzeros: Vec<Nonzero<u128>> = (0..nnz).map(nonzero).collect();
            nonzeros.sort_unstable_by(Nonzero::order);
            Self { shape, format: Fcoo { levels, product, thread_nnz: 0 }, nonzeros }
        }

        /// The chunks of nonzeros of this partition, worked on in groups.
        fn chunks(&self, nonzeros: &[Nonzero<u128>], chunk_bytes: u64, group_nnz: usize) -> Vec<BuiltChunk> {
            let format = Format::new(self.format);
            let mut chunks = Vec::new();
            let mut sink = |chunk: ClosedChunk| {
                chunks.push(chunk.build());
                Ok(())
            };
            let mut cutter =
                Cutter::new(Version::Two, &self.shape, &format, chunk_bytes).in_groups_of(group_nnz);
            cutter.push(nonzeros, &mut sink).unwrap();
            cutter.finish(&mut sink).unwrap();
            chunks
        }

        fn parts(&self) -> Parts {
            let modes = 0..self.shape.order();
            let (product, index) = modes.partition(|mode| self.format.product >> mode & 1 != 0);
            Parts { shape: self.shape.clone(), product, index }
        }
    }

    fn encoding(chunk: &BuiltChunk) -> ValueEncoding {
        ValueEncoding::from_code(chunk.header.codes.value_encoding).unwrap()
    }

    /// With its next tile, a chunk has more nonzeros or bytes than it may. Groups of tiles make no difference.
    #[test]
    fn a_chunk_has_no_room_for_its_next_tile() {
        let mut bound_by = [0; 2];
        for (shape, value) in SHAPES.into_iter().flat_map(|shape| VALUES.map(|value| (shape, value))) {
            let sorted = Sorted::new(shape, value, 40_000);
            for chunk_bytes in [1 << 16, 100_000, 150_000] {
                let chunks = sorted.chunks(&sorted.nonzeros, chunk_bytes, PENDING_NNZ);
                let others = sorted.chunks(&sorted.nonzeros, chunk_bytes, 3 * TILE_NNZ);
                assert!(chunks.iter().map(|c| &c.image).eq(others.iter().map(|c| &c.image)));
                let (mut rest, nnz_max) = (&sorted.nonzeros[..], chunk_nnz_max(chunk_bytes));
                for chunk in &chunks {
                    let nnz = chunk.ranges.nnz;
                    assert!(chunk.image.len() as u64 <= chunk_bytes && nnz <= nnz_max);
                    if nnz < rest.len() {
                        assert!(nnz.is_multiple_of(TILE_NNZ));
                        let more = &rest[..rest.len().min(nnz + TILE_NNZ)];
                        let [ref longer] = sorted.chunks(more, 1 << 30, PENDING_NNZ)[..] else {
                            panic!("one")
                        };
                        assert_ne!(encoding(longer), ValueEncoding::Dictionary);
                        let exceeded = [more.len() > nnz_max, longer.image.len() as u64 > chunk_bytes];
                        assert!(exceeded.contains(&true), "{shape:?}, {chunk_bytes}: {nnz} nonzeros");
                        bound_by.iter_mut().zip(exceeded).for_each(|(count, is)| *count += i32::from(is));
                    }
                    rest = &rest[nnz..];
                }
                assert!(rest.is_empty());
            }
        }
        assert!(bound_by.iter().all(|&chunks| chunks > 5), "{bound_by:?}");
    }

    /// The size by which chunks are cut is that of the image, unless a dictionary makes it smaller.
    #[test]
    fn images_have_the_predicted_size() {
        for (shape, value) in SHAPES.into_iter().flat_map(|shape| VALUES.map(|value| (shape, value))) {
            let sorted = Sorted::new(shape, value, 9 * TILE_NNZ as u64 + 77);
            let (parts, order) = (sorted.parts(), sorted.shape.order());
            let linearizer = Linearizer::new(&BitLayout::concatenated(&sorted.shape, &sorted.format.levels));
            for nnz in [1, 500, 512, 513, 1024, 3000, sorted.nonzeros.len()] {
                let codes = ChunkCodes { format: 7, layout: Layout::SEGMENTS.0, value_encoding: 0 };
                let mut builder = SegmentsBuilder::new(Version::Two, parts.clone(), codes, 1 << 30);
                let (worker, mut predicted) = (builder.worker().unwrap(), 0);
                for nonzeros in sorted.nonzeros[..nnz].chunks(TILE_NNZ) {
                    let (mut tile, mut made) = (SortedTile::default(), Made::default());
                    tile.gather(&linearizer, order, nonzeros);
                    worker.work(&tile, &mut made);
                    let of_tile: &MadeTile = made.as_ref().unwrap().downcast_ref().unwrap();
                    let continues = builder.open.continues_in(&parts, &tile);
                    let (sizes, costs) = builder.open.with(&tile, of_tile, continues);
                    predicted = parts.image_bytes(Version::Two, sizes, &costs);
                    builder.push(&tile, &mut made, &mut |_| panic!("one chunk")).unwrap();
                }
                let chunk = builder.close().build();
                let smaller = encoding(&chunk) == ValueEncoding::Dictionary;
                let bytes = chunk.image.len() as u64;
                assert!(bytes == predicted || smaller && bytes < predicted, "{shape:?}, {nnz}: {bytes}");
            }
        }
    }
}
