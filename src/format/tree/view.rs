//! A checked view of a tree's image. Opening it checks everything that takes time proportional to the number of tiles;
//! decoding a tile checks its nodes. It never returns a coordinate outside the shape or a place outside a level.

use super::PADDING;
use super::record::{HEAD_BYTES, LevelRecord, RECORD_BYTES, TreeHead, level_bytes, u32_at};
use crate::chunk::{ChunkHeader, SectionKind};
use crate::encoding::column::{self, Numbers};
use crate::encoding::tile::reach_at_most;
use crate::encoding::values::ValueEncoding;
use crate::encoding::{LeafRule, TILE_NNZ};
use crate::error::{Error, Result};
use crate::format::{Checked, ValueSection, WRONG_SECTIONS, check_frame, wrong_section};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use std::ops::Range;
use std::path::PathBuf;

/// What decoding the chunks of one store needs. Made once.
#[derive(Debug)]
pub struct TreeDecoder {
    shape: Shape,
    levels: ModeOrder,
    leaf: LeafRule,
}

impl TreeDecoder {
    /// A decoder for stores of `shape`. Level l holds mode `levels.mode(l)`.
    #[must_use]
    pub fn new(shape: &Shape, levels: &ModeOrder, leaf: LeafRule) -> Self {
        Self { shape: shape.clone(), levels: *levels, leaf }
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

/// The modes of levels and the leaf rule in a chunk's LEVELS section.
pub(crate) fn told_by(header: &ChunkHeader, image: &[u8]) -> Checked<(ModeOrder, LeafRule)> {
    let section = header.section(SectionKind::Levels).and_then(|section| image.get(section));
    let head = section.and_then(TreeHead::read).ok_or("LEVELS section")?;
    let leaf = LeafRule::from_code(head.leaf_rule).ok_or("unknown leaf rule")?;
    let split = head.level_modes.split_at_checked(header.order.into());
    let (modes, beyond) = split.ok_or("modes of levels")?;
    let modes: Vec<usize> = modes.iter().map(|&mode| mode.into()).collect();
    let known = modes.iter().all(|&mode| mode < modes.len()) && beyond.iter().all(|&mode| mode == 0);
    Ok((ModeOrder::new(&modes).filter(|_| known).ok_or("modes of levels")?, leaf))
}

/// A tile of an inner level, decoded.
#[derive(Debug)]
pub struct Nodes {
    /// The number of nodes.
    pub len: usize,
    /// Their indices; slots beyond the nodes hold the smallest.
    pub indices: Numbers<u32>,
    /// Where their children begin; slot `len` holds where the last one's end.
    pub starts: [u32; TILE_NNZ + 1],
}

impl Default for Nodes {
    fn default() -> Self {
        Self { len: 0, indices: [0; TILE_NNZ], starts: [0; TILE_NNZ + 1] }
    }
}

/// A tile of leaves, decoded.
#[derive(Debug)]
pub struct Leaves {
    /// The number of slots, padding included.
    pub len: usize,
    /// Their indices; [`u32::MAX`] marks padding.
    pub indices: Numbers<u32>,
    /// Their values; arbitrary for padding.
    pub values: Numbers<f64>,
    /// Whether there is padding.
    pub padded: bool,
}

impl Default for Leaves {
    fn default() -> Self {
        Self { len: 0, indices: [0; TILE_NNZ], values: [0.0; TILE_NNZ], padded: false }
    }
}

/// A chunk's image, checked down to its tiles.
#[derive(Debug)]
pub struct TreeView<'a> {
    decoder: &'a TreeDecoder,
    path: PathBuf,
    number: u32,
    image: &'a [u8],
    payload_at: usize,
    nnz: usize,
    first_nonzero: u64,
    nodes: [u32; ORDER_MAX],
    /// The number of each level's first record and, after the last level's, the number of records.
    first_record: [usize; ORDER_MAX + 1],
    records: Range<usize>,
    codes: Range<usize>,
    columns: Range<usize>,
    values: ValueSection,
}

impl<'a> TreeView<'a> {
    /// Checks `image`, whose header `header` has been checked by the store. `path` is for messages.
    pub fn open(
        decoder: &'a TreeDecoder,
        header: &ChunkHeader,
        image: &'a [u8],
        path: PathBuf,
    ) -> Result<Self> {
        let wrong = |what: &'static str| wrong_section(&path, header, what);
        let kinds = [SectionKind::Columns, SectionKind::Levels];
        check_frame(&decoder.shape, header, image, kinds).map_err(wrong)?;
        let (columns, levels) = (header.section(SectionKind::Columns), header.section(SectionKind::Levels));
        let (Some(columns), Some(levels)) = (columns, levels) else {
            return Err(wrong(WRONG_SECTIONS));
        };
        let head = TreeHead::read(&image[levels.clone()]).ok_or_else(|| wrong("LEVELS section"))?;
        let order = decoder.shape.order();
        let due = (level_bytes(&decoder.levels), decoder.leaf as u32);
        if (head.level_modes, head.leaf_rule) != due {
            return Err(wrong("LEVELS section differs from the manifest"));
        }
        // Every fiber has a nonzero, so there are at most as many sums as nonzeros.
        let fibers = head.nodes[order - 2];
        let counted = head.nodes[..order].is_sorted() && head.nodes[0] > 0 && fibers <= header.nnz;
        let slots = head.nodes[order - 1];
        let held =
            (u64::from(header.nnz)..=decoder.leaf.slots_max(header.nnz.into())).contains(&slots.into());
        let beyond = head.nodes[order..].iter().all(|&n| n == 0);
        let mut first_record = [0; ORDER_MAX + 1];
        for level in 0..ORDER_MAX {
            first_record[level + 1] = first_record[level] + (head.nodes[level] as usize).div_ceil(TILE_NNZ);
        }
        let records = levels.start + HEAD_BYTES;
        let codes = records + RECORD_BYTES * first_record[ORDER_MAX];
        let end = codes + 4 * (head.nodes[0] as usize).div_ceil(32);
        if !counted || !held || !beyond || end != levels.end || header.nnz == 0 {
            return Err(wrong("LEVELS section"));
        }
        let view = Self {
            decoder,
            number: header.number,
            image,
            payload_at: header.header_bytes(),
            nnz: header.nnz as usize,
            first_nonzero: header.first_nonzero,
            nodes: head.nodes,
            first_record,
            records: records..codes,
            codes: codes..end,
            columns,
            values: ValueSection::open(header, image, slots as usize).map_err(wrong)?,
            path: PathBuf::new(),
        };
        view.check_records().map_err(wrong)?;
        let view = Self { path, ..view };
        view.check_padding(|view, tile| view.nonzeros_of(tile) == 0)?;
        Ok(view)
    }

    /// Checks that records are inside the shape and that columns and children follow one another.
    fn check_records(&self) -> std::result::Result<(), &'static str> {
        let leaf = self.order() - 1;
        let mut at = 0u64;
        for level in 0..self.order() {
            let dim = self.decoder.shape.dims()[self.decoder.levels.mode(level)];
            let mut previous: Option<LevelRecord> = None;
            for tile in 0..self.tiles_of(level) {
                let record = self.record(level, tile);
                let follows = if level == leaf {
                    self.leaf_record_fits(&record, tile, previous.as_ref())
                } else {
                    self.inner_record_fits(&record, level, tile, previous.as_ref())
                };
                let inside = record.low <= record.high && record.high < dim;
                let place = u64::from(record.columns_at) == at;
                let reserved = self.record_bytes(level, tile)[28..] == [0; 4];
                if !(follows && inside && place && reserved) {
                    return Err("a record of the LEVELS section");
                }
                let padded = level == leaf && self.is_padded(tile);
                at += u64::from(record.index_width(padded)) + u64::from(record.second_width);
                previous = Some(record);
            }
        }
        if self.columns.len() as u64 != at * column::bytes(1) as u64 {
            return Err("length of the COLUMNS section");
        }
        let used = self.nodes[0] % 32;
        let last = u32_at(self.image, self.codes.end - 4);
        if used > 0 && last >> used != 0 { Err("leaf codes of the LEVELS section") } else { Ok(()) }
    }

    fn inner_record_fits(
        &self,
        record: &LevelRecord,
        level: usize,
        tile: usize,
        previous: Option<&LevelRecord>,
    ) -> bool {
        let rises = previous.map_or(record.base == 0, |previous| record.base > previous.base);
        let len = self.len(level, tile) as u64;
        // Where the last node's children begin if all are at the smallest distance: inside the next level.
        let last =
            u64::try_from(record.base).map(|base| base + u64::from(record.stride_or_before) * (len - 1));
        rises
            && record.second_width <= u32::BITS
            && last.is_ok_and(|last| last < self.nodes[level + 1].into())
    }

    fn leaf_record_fits(&self, record: &LevelRecord, tile: usize, previous: Option<&LevelRecord>) -> bool {
        let before = record.stride_or_before;
        let follows = match previous {
            None => before == 0,
            Some(last) => (0..=TILE_NNZ).contains(&(before.wrapping_sub(last.stride_or_before) as usize)),
        };
        let nnz = (self.nnz as u64).checked_sub(before.into());
        let at_end = tile + 1 == self.tiles_of(self.order() - 1);
        let ends = nnz.is_some_and(|nnz| !at_end || nnz <= self.len(self.order() - 1, tile) as u64);
        follows && ends && self.values.column_fits(record.second_width, record.base)
    }

    /// The number of levels, leaves included.
    #[must_use]
    pub fn order(&self) -> usize {
        self.decoder.shape.order()
    }

    /// The mode of each level.
    #[must_use]
    pub fn levels(&self) -> &ModeOrder {
        &self.decoder.levels
    }

    /// Nodes of `level`. For the last level, slots, padding included.
    #[must_use]
    pub fn level_nodes(&self, level: usize) -> usize {
        self.nodes[level] as usize
    }

    /// Tiles of `level`.
    #[must_use]
    pub fn tiles_of(&self, level: usize) -> usize {
        (self.nodes[level] as usize).div_ceil(TILE_NNZ)
    }

    /// Position of the first nonzero in the store.
    pub(super) fn first_nonzero(&self) -> u64 {
        self.first_nonzero
    }

    /// Nonzeros.
    #[must_use]
    pub fn nnz(&self) -> usize {
        self.nnz
    }

    /// Slices that are padded to their longest fiber.
    #[must_use]
    pub fn ell_slices(&self) -> u64 {
        self.image[self.codes.clone()].iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Nodes of a tile.
    #[inline]
    fn len(&self, level: usize, tile: usize) -> usize {
        (self.nodes[level] as usize - tile * TILE_NNZ).min(TILE_NNZ)
    }

    #[inline]
    fn record_bytes(&self, level: usize, tile: usize) -> &'a [u8] {
        let at = self.records.start + RECORD_BYTES * (self.first_record[level] + tile);
        &self.image[at..at + RECORD_BYTES]
    }

    #[inline]
    pub(super) fn record(&self, level: usize, tile: usize) -> LevelRecord {
        LevelRecord::read(self.record_bytes(level, tile))
    }

    /// Nonzeros before leaf tile `tile`; after the last tile, all of them.
    #[inline]
    pub(crate) fn before(&self, tile: usize) -> usize {
        let leaf = self.order() - 1;
        if tile < self.tiles_of(leaf) { self.record(leaf, tile).stride_or_before as usize } else { self.nnz }
    }

    /// Nonzeros of leaf tile `tile`.
    #[inline]
    pub(crate) fn nonzeros_of(&self, tile: usize) -> usize {
        self.before(tile + 1).wrapping_sub(self.before(tile))
    }

    /// Whether leaf tile `tile` holds padding.
    #[inline]
    pub(super) fn is_padded(&self, tile: usize) -> bool {
        self.nonzeros_of(tile) != self.len(self.order() - 1, tile)
    }

    pub(crate) fn damaged(&self, level: usize, tile: usize) -> Error {
        let what =
            format!("chunk {}: corrupt: level {level}, tile {tile}: a number out of range", self.number);
        Error::corrupt(&self.path, what).breaks("image-index")
    }

    /// The words of a tile's columns.
    #[inline]
    fn words(&self, record: &LevelRecord, padded: bool) -> &'a [u32] {
        let start = self.columns.start + column::bytes(record.columns_at);
        let length = column::bytes(record.index_width(padded) + record.second_width);
        bytemuck::cast_slice(&self.image[start..start + length])
    }

    /// Decodes a tile of an inner level.
    #[inline(always)]
    pub fn nodes(&self, level: usize, tile: usize, out: &mut Nodes) -> Result<()> {
        let record = self.record(level, tile);
        let width = record.index_width(false);
        column::unpack32(self.words(&record, false), width, record.low, &mut out.indices);
        let span = record.high - record.low;
        if !reach_at_most(&mut out.indices, self.len(level, tile), record.low, span) {
            return Err(self.damaged(level, tile));
        }
        self.starts(level, tile, out)
    }

    /// The packed words that [`TreeView::starts`] reads for a tile; none if there is no such tile.
    #[inline(always)]
    pub(crate) fn start_words(&self, level: usize, tile: usize) -> &'a [u32] {
        if tile >= self.tiles_of(level) {
            return &[];
        }
        let record = self.record(level, tile);
        &self.words(&record, false)[column::bytes(record.index_width(false)) / 4..]
    }

    /// The packed words that [`TreeView::leaves`] reads for a tile; none if there is no such tile.
    #[inline(always)]
    pub(crate) fn leaf_words(&self, tile: usize) -> &'a [u32] {
        let leaf = self.order() - 1;
        if tile >= self.tiles_of(leaf) {
            &[]
        } else {
            self.words(&self.record(leaf, tile), self.is_padded(tile))
        }
    }

    /// Decodes a tile of an inner level except its indices, which keep their contents.
    #[inline(always)]
    pub fn starts(&self, level: usize, tile: usize, out: &mut Nodes) -> Result<()> {
        let record = self.record(level, tile);
        let words = self.start_words(level, tile);
        let wrong = || self.damaged(level, tile).breaks("image-section");
        let base = u32::try_from(record.base).map_err(|_| wrong())?;
        let starts = out.starts.first_chunk_mut().expect("one more than a tile's nodes");
        column::unpack32(words, record.second_width, base, starts);
        out.len = self.len(level, tile);
        // A start that does not fit 32 bits becomes smaller than its record allows, which is an error.
        let mut beyond = 0;
        for ((start, i), slot) in starts.iter_mut().zip(0u32..).zip(0..) {
            let above = record.stride_or_before.wrapping_mul(i);
            *start = start.wrapping_add(above);
            beyond |= u32::from(slot < out.len && *start < base.wrapping_add(above));
        }
        out.starts[out.len] = self.start_behind(level, tile);
        let falls =
            out.starts[..=out.len].windows(2).fold(0, |falls, pair| falls | u32::from(pair[0] >= pair[1]));
        if falls | beyond == 0 && out.starts[0] == base { Ok(()) } else { Err(wrong()) }
    }

    /// Where the children of a tile's last node end.
    #[inline]
    fn start_behind(&self, level: usize, tile: usize) -> u32 {
        if tile + 1 == self.tiles_of(level) {
            return self.nodes[level + 1];
        }
        // A base that does not fit 32 bits is found when its tile is decoded.
        u32::try_from(self.record(level, tile + 1).base).unwrap_or(0)
    }

    /// Decodes a tile of leaves.
    #[inline(always)]
    pub fn leaves(&self, tile: usize, out: &mut Leaves) -> Result<()> {
        let leaf = self.order() - 1;
        let record = self.record(leaf, tile);
        out.padded = self.is_padded(tile);
        out.len = self.len(leaf, tile);
        let words = self.words(&record, out.padded);
        let index_width = record.index_width(out.padded);
        column::unpack32(words, index_width, record.low, &mut out.indices);
        let words = &words[column::bytes(index_width) / 4..];
        let span = record.high - record.low;
        let most = span + u32::from(out.padded);
        let inside = reach_at_most(&mut out.indices, out.len, record.low, most);
        let mut padding = true;
        if out.padded {
            let mut pads = 0;
            for index in &mut out.indices[..out.len] {
                let pad = index.wrapping_sub(record.low) == span + 1;
                pads += usize::from(pad);
                *index = if pad { PADDING } else { *index };
            }
            padding = out.len - pads == self.nonzeros_of(tile);
        }
        let (slots, column) = (tile * TILE_NNZ, (record.base, record.second_width));
        let values = self.values.unpack(self.image, slots..slots + out.len, words, column, &mut out.values);
        if inside & padding & values {
            return Ok(());
        }
        let rule = match (inside, padding) {
            (false, _) => "image-index",
            (_, false) => "image-tree",
            _ => self.values.refused_rule(),
        };
        Err(self.damaged(leaf, tile).breaks(rule))
    }

    /// Whether all values of a dictionary or an f64 section are in the range.
    #[must_use]
    pub fn stored_values_within(&self, low: f64, high: f64) -> bool {
        self.values.within(self.image, low, high)
    }

    /// Passes the values of all nonzeros to `take`, in order, at most a tile at a time.
    pub fn for_each_values(&self, mut take: impl FnMut(&[f64])) -> Result<()> {
        let mut leaves = Leaves::default();
        for tile in 0..self.tiles_of(self.order() - 1) {
            self.leaves(tile, &mut leaves)?;
            let mut nnz = 0;
            for slot in 0..leaves.len {
                leaves.values[nnz] = leaves.values[slot];
                nnz += usize::from(!leaves.padded || leaves.indices[slot] != PADDING);
            }
            take(&leaves.values[..nnz]);
        }
        Ok(())
    }

    /// The image without its header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.image[self.payload_at..]
    }

    /// The chunk's value encoding.
    #[must_use]
    pub fn value_encoding(&self) -> ValueEncoding {
        self.values.encoding
    }

    /// Bytes of the image that values take: their columns and the VALUES section.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        let leaf = self.order() - 1;
        let columns =
            (0..self.tiles_of(leaf)).map(|t| column::bytes(self.record(leaf, t).second_width) as u64);
        columns.sum::<u64>() + self.values.section.len() as u64
    }

    /// Bytes of the image that columns of indices and starts take.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        (self.columns.len() + self.values.section.len()) as u64 - self.value_bytes()
    }
}
