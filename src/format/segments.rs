//! Layout `segments` (formats-spec/formats.md; after Liu, Wen, Sarwate and Mehri Dehnavi, CLUSTER 2017, section IV).
//! Each nonzero has its indices in the product modes. A segment is a run of nonzeros with equal indices in all index
//! modes; it stores these indices once, and a flag marks its first nonzero.

use super::values::{ValueSection, WRONG_SECTIONS, check_frame, value_section};
use super::{
    BuiltChunk, Checked, ChunkBuilder, ChunkDecoder, ChunkRanges, ChunkSink, ClosedChunk, Made, NonzeroView,
    SortedTile,
};
use crate::chunk::{ALIGN, ChunkCodes, ChunkHeader, ImageWriter, SectionKind, Version};
use crate::encoding::column::{self, Numbers};
use crate::encoding::tile::reach_at_most;
use crate::encoding::values::{Costs, TileValues, ValueBytes};
use crate::encoding::{TILE_NNZ, width};
use crate::error::Result;
use crate::shape::Shape;
use std::ops::Range;

/// The most bytes of an image besides COLUMNS, SEGMENTS and VALUES and the gaps between them.
const FIXED_BYTES: u64 = 768;
/// Bytes of SEGMENTS before its records.
const HEAD_BYTES: usize = 8;

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
        [16 + 8 * self.product.len(), 8 + 8 * self.index.len()]
    }

    /// The most bytes of an image with this many tiles of nonzeros and segments.
    fn bytes_max(&self, tiles: u64, segments: u64) -> u64 {
        let bits = |modes: &[usize]| -> u64 { modes.iter().map(|&m| u64::from(self.shape.bits(m))).sum() };
        let [of_tile, of_segments] = self.record_bytes().map(|bytes| bytes as u64);
        let groups = segments.div_ceil(TILE_NNZ as u64);
        let flags = tiles * (TILE_NNZ / 8) as u64;
        let columns = 64 * (tiles * (bits(&self.product) + 64) + groups * bits(&self.index));
        FIXED_BYTES + HEAD_BYTES as u64 + tiles * of_tile + groups * of_segments + flags + columns
    }
}

/// Bytes that an open chunk takes: waiting nonzeros and the data for its image.
pub(super) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    // A nonzero has at least a flag in the image; while it waits, it takes its indices and value.
    3 * chunk_bytes + chunk_bytes / 64 * (4 * 8 + 8)
}

/// Puts nonzeros into chunks of whole tiles.
#[derive(Debug)]
pub(super) struct SegmentsBuilder {
    version: Version,
    parts: Parts,
    codes: ChunkCodes,
    chunk_bytes: u64,
    open: Open,
}

/// A chunk while it grows.
#[derive(Debug, Default)]
struct Open {
    ranges: ChunkRanges,
    /// In product modes, of each nonzero; in index modes, of each segment.
    product: Vec<Vec<u32>>,
    index: Vec<Vec<u32>>,
    values: Vec<f64>,
    /// The first nonzero of each segment.
    starts: Vec<u32>,
}

impl Open {
    fn new(parts: &Parts) -> Self {
        let (product, index) = (vec![Vec::new(); parts.product.len()], vec![Vec::new(); parts.index.len()]);
        Self { product, index, ..Self::default() }
    }

    /// Which nonzeros of `tile` begin a segment, given those already here.
    fn begins(&self, parts: &Parts, tile: &SortedTile) -> Vec<bool> {
        let mut begins = vec![self.starts.is_empty()];
        begins.resize(tile.values.len(), false);
        for (own, &mode) in self.index.iter().zip(&parts.index) {
            let column = tile.column(mode);
            begins[0] |= own.last() != column.first();
            for (begins, pair) in begins[1..].iter_mut().zip(column.windows(2)) {
                *begins |= pair[0] != pair[1];
            }
        }
        begins
    }

    fn add(&mut self, parts: &Parts, tile: &SortedTile, begins: &[bool]) {
        for (i, _) in begins.iter().enumerate().filter(|(_, begins)| **begins) {
            self.starts
                .push(u32::try_from(self.values.len() + i).expect("a chunk has fewer than 2^32 nonzeros"));
            self.index.iter_mut().zip(&parts.index).for_each(|(own, &mode)| own.push(tile.column(mode)[i]));
        }
        self.product
            .iter_mut()
            .zip(&parts.product)
            .for_each(|(own, &m)| own.extend_from_slice(tile.column(m)));
        self.values.extend_from_slice(&tile.values);
        self.ranges.add(tile);
    }
}

impl SegmentsBuilder {
    /// A builder for chunks with these codes, apart from the value encoding, whose images have at most
    /// `chunk_bytes`.
    pub fn new(version: Version, parts: Parts, codes: ChunkCodes, chunk_bytes: u64) -> Self {
        let open = Open::new(&parts);
        Self { version, parts, codes, chunk_bytes, open }
    }

    fn close(&mut self) -> ClosedChunk {
        let open = std::mem::replace(&mut self.open, Open::new(&self.parts));
        let (version, parts, codes) = (self.version, self.parts.clone(), self.codes);
        ClosedChunk::new(move || image(version, &parts, codes, open))
    }
}

impl ChunkBuilder for SegmentsBuilder {
    fn push(&mut self, tile: &SortedTile, _: &mut Made, sink: ChunkSink<'_>) -> Result<()> {
        let mut begins = self.open.begins(&self.parts, tile);
        let tiles = (self.open.values.len() / TILE_NNZ + 1) as u64;
        let segments = self.open.starts.len() + begins.iter().filter(|begins| **begins).count();
        if tiles > 1 && self.parts.bytes_max(tiles, segments as u64) > self.chunk_bytes {
            sink(self.close())?;
            begins[0] = true;
        }
        self.open.add(&self.parts, tile, &begins);
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> Result<()> {
        if self.open.values.is_empty() { Ok(()) } else { sink(self.close()) }
    }
}

/// Packed columns being built, and the records that locate them.
#[derive(Default)]
struct Packed {
    columns: Vec<u8>,
    units: u32,
    records: Vec<u8>,
}

impl Packed {
    /// Packs a tile's column; its low and high go to `ranges`.
    fn column(&mut self, indices: &[u32], ranges: &mut Vec<u8>) {
        let (low, high) = indices.iter().fold((u32::MAX, 0), |(low, high), &i| (i.min(low), i.max(high)));
        let mut numbers: Numbers<u32> = [0; TILE_NNZ];
        numbers.iter_mut().zip(indices).for_each(|(number, index)| *number = index - low);
        let bits = width(u64::from(high - low));
        column::pack32(&numbers, bits, &mut self.columns);
        self.units += bits;
        ranges.extend([low, high].iter().flat_map(|field| field.to_le_bytes()));
    }
}

/// The numbers of tile `t`, out of `count`.
fn tile_of(t: usize, count: usize) -> Range<usize> {
    t * TILE_NNZ..count.min((t + 1) * TILE_NNZ)
}

/// Packed bytes of a tile's indices.
fn packed_bytes(columns: &[Vec<u32>]) -> u64 {
    let of_tile = |tile: &[u32]| {
        let (low, high) = tile.iter().fold((u32::MAX, 0), |(low, high), &i| (i.min(low), i.max(high)));
        column::bytes(width(u64::from(high - low))) as u64
    };
    columns.iter().flat_map(|column| column.chunks(TILE_NNZ)).map(of_tile).sum()
}

fn image(version: Version, parts: &Parts, codes: ChunkCodes, open: Open) -> BuiltChunk {
    let Open { ranges, product, index, values, starts } = open;
    let (nnz, segments) = (values.len(), starts.len());
    let mut costs = Costs::new(version.has_decimals());
    for tile in values.chunks(TILE_NNZ) {
        costs = costs.with(&TileValues::new(tile), tile.len());
    }
    let index_bytes = packed_bytes(&product) + packed_bytes(&index);
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN as u64);
    let cost = |v: ValueBytes| aligned(index_bytes + v.columns) + aligned(v.section);
    let chosen = costs.choose(&values, nnz, cost);
    let mut packed = Packed::default();
    for t in 0..nnz.div_ceil(TILE_NNZ) {
        let (range, at) = (tile_of(t, nnz), packed.units);
        let mut indices = Vec::new();
        for column in &product {
            packed.column(&column[range.clone()], &mut indices);
        }
        let (base, bits) = chosen.column_of(&values[range.clone()]);
        chosen.pack(&values[range], base, bits, &mut packed.columns);
        packed.units += bits;
        packed.records.extend([at, bits].iter().flat_map(|field| field.to_le_bytes()));
        packed.records.extend(base.to_le_bytes());
        packed.records.append(&mut indices);
    }
    for t in 0..segments.div_ceil(TILE_NNZ) {
        let (range, at) = (tile_of(t, segments), packed.units);
        let mut indices = Vec::new();
        for column in &index {
            packed.column(&column[range.clone()], &mut indices);
        }
        packed.records.extend([at, 0].iter().flat_map(|field| field.to_le_bytes()));
        packed.records.append(&mut indices);
    }
    let mut flags = vec![0u32; nnz.div_ceil(32)];
    for start in &starts {
        flags[*start as usize / 32] |= 1 << (start % 32);
    }
    let sections = 3 + usize::from(chosen.encoding().has_section());
    let bytes = packed.columns.len() + packed.records.len() + 12 * nnz;
    let mut image = ImageWriter::with_capacity(version, sections, bytes);
    image.section(SectionKind::Shape, |out| {
        out.extend(parts.shape.dims().iter().flat_map(|d| d.to_le_bytes()));
    });
    image.section(SectionKind::Columns, |out| out.extend_from_slice(&packed.columns));
    value_section(&mut image, &chosen, |put| values.chunks(TILE_NNZ).for_each(put));
    image.section(SectionKind::Segments, |out| {
        let count = u32::try_from(segments).expect("fewer than nonzeros");
        out.extend([count, 0].iter().flat_map(|field| field.to_le_bytes()));
        out.extend_from_slice(&packed.records);
        out.extend(flags.iter().flat_map(|word| word.to_le_bytes()));
    });
    let order = u8::try_from(parts.shape.order()).expect("at most 8 modes");
    let nnz = u32::try_from(nnz).expect("a chunk has fewer than 2^32 nonzeros");
    let codes = ChunkCodes { value_encoding: chosen.encoding() as u8, ..codes };
    let (header, image) = image.finish(order, nnz, codes);
    BuiltChunk { header, image, ranges }
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
