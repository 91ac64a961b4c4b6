//! Builds the image of a chunk from a tree.

use super::measure::{SECTIONS, other_bytes};
use super::record::{LevelRecord, TreeHead};
use super::{PADDING, Tree};
use crate::chunk::{ChunkCodes, ImageWriter, SectionKind, Version};
use crate::encoding::column::{self, Numbers};
use crate::encoding::values::{ChosenValues, Costs, TileValues, ValueBytes};
use crate::encoding::{LeafRule, TILE_NNZ, width};
use crate::format::{BuiltChunk, ChunkRanges, Layout, value_cost, value_section};
use crate::linear::{BitLayout, Linearizer};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};

/// Builds images of trees with one shape and order of modes.
#[derive(Debug)]
pub struct TreeEncoder {
    version: Version,
    shape: Shape,
    levels: ModeOrder,
    leaf: LeafRule,
    /// The code of the trees' format.
    format: u32,
    linearizer: Linearizer<u128>,
}

/// Leaves as stored: slots, some of them padding. They are laid out a tile at a time, so that memory holds the
/// leaves only once, in the tree.
struct Slots<'a> {
    tree: &'a Tree,
    /// Where each fiber's slots begin.
    starts: Vec<u32>,
    /// The number of slots.
    count: usize,
    /// Whether each slice is padded to its longest fiber.
    ell: Vec<bool>,
}

/// Tile records and packed columns being built.
#[derive(Default)]
struct LevelColumns {
    records: Vec<LevelRecord>,
    bytes: Vec<u8>,
}

impl TreeEncoder {
    /// An encoder for chunks of the format with code `format`, for tensors of `shape`. Level l holds mode
    /// `levels.mode(l)`.
    #[must_use]
    pub fn new(version: Version, shape: &Shape, levels: &ModeOrder, leaf: LeafRule, format: u32) -> Self {
        let linearizer = Linearizer::new(&BitLayout::concatenated(shape, levels));
        let format = if version == Version::One { 0 } else { format };
        Self { version, shape: shape.clone(), levels: *levels, leaf, format, linearizer }
    }

    /// The chunk of the nonempty `tree`. Padded by the leaf rule unless that takes more than `bytes_max`.
    #[must_use]
    pub fn encode(&self, tree: &Tree, bytes_max: u64) -> BuiltChunk {
        let padded = self.image(tree, self.leaf);
        let too_long = padded.image.len() as u64 > bytes_max && self.leaf != LeafRule::Csr;
        if too_long { self.image(tree, LeafRule::Csr) } else { padded }
    }

    fn image(&self, tree: &Tree, rule: LeafRule) -> BuiltChunk {
        let slots = Slots::new(tree, rule);
        let order = tree.order();
        let inner: Vec<LevelColumns> = (0..order - 1)
            .map(|l| {
                let starts = if l == order - 2 { &slots.starts } else { &tree.levels[l].starts };
                inner_columns(&tree.levels[l].indices, starts)
            })
            .collect();
        let mut leaves = Vec::with_capacity(slots.count.div_ceil(TILE_NNZ));
        let mut costs = Costs::new(self.version.has_decimals());
        let mut units = 0;
        slots.for_each_tile(|indices, values| {
            let before =
                leaves.last().map_or(0, |(record, nnz): &(LevelRecord, u32)| record.stride_or_before + nnz);
            let (record, nnz) = leaf_record(indices, before);
            units += record.index_width(nnz as usize != indices.len());
            leaves.push((record, nnz));
            costs = costs.with(&TileValues::new(values), values.len());
        });
        let index_bytes =
            inner.iter().map(|columns| columns.bytes.len()).sum::<usize>() + column::bytes(units);
        let cost = value_cost(index_bytes as u64);
        let chosen = costs.choose(&tree.values, slots.count, &cost);
        let mut nodes = [0; ORDER_MAX];
        for (l, n) in nodes.iter_mut().enumerate().take(order) {
            let count = if l == order - 1 { slots.count } else { tree.level_nodes(l) };
            *n = u32::try_from(count).expect("a chunk has fewer than 2^32 nodes");
        }
        let head = TreeHead::new(&self.levels, self.leaf, nodes);
        let tiles = leaves.len() + inner.iter().map(|columns| columns.records.len()).sum::<usize>();
        let value_bytes = match &chosen {
            ChosenValues::Dictionary(entries) => 8 * entries.len() as u64,
            _ => 8 * slots.count as u64,
        };
        let other = other_bytes(self.version, order, tiles as u64, nodes[0].into());
        let bytes = other + cost(ValueBytes { columns: value_bytes, section: value_bytes });
        let sections = SECTIONS - usize::from(!chosen.encoding().has_section());
        let mut image =
            ImageWriter::with_capacity(self.version, sections, usize::try_from(bytes).unwrap_or(0));
        image.section(SectionKind::Shape, |out| {
            out.extend(self.shape.dims().iter().flat_map(|d| d.to_le_bytes()));
        });
        let mut records = Vec::with_capacity(tiles);
        image.section(SectionKind::Columns, |out| {
            let mut columns_at = 0;
            for level in inner {
                for mut record in level.records {
                    record.columns_at = columns_at;
                    columns_at += record.index_width(false) + record.second_width;
                    records.push(record);
                }
                out.extend_from_slice(&level.bytes);
            }
            let mut leaves = leaves.iter();
            slots.for_each_tile(|indices, values| {
                let Some(&(mut record, nnz)) = leaves.next() else { return };
                let width = record.index_width(nnz as usize != indices.len());
                pack_leaves(&mut record, width, indices, values, &chosen, out);
                record.columns_at = columns_at;
                columns_at += width + record.second_width;
                records.push(record);
            });
        });
        value_section(&mut image, &chosen, |put| {
            slots.for_each_tile(|_, values| put(values));
        });
        image.section(SectionKind::Levels, |out| {
            head.write(out);
            for record in &records {
                record.write(out);
            }
            out.extend(slots.codes().flat_map(u32::to_le_bytes));
        });
        let nnz = u32::try_from(tree.nnz()).expect("a chunk has fewer than 2^32 nonzeros");
        let order = u8::try_from(order).expect("at most 8 modes");
        let value_encoding = chosen.encoding() as u8;
        let codes = ChunkCodes { format: self.format, layout: Layout::TREE.0, value_encoding };
        let (header, image) = image.finish(order, nnz, codes);
        BuiltChunk { header, image, ranges: self.ranges(tree) }
    }

    /// The manifest entry's linear and row ranges.
    fn ranges(&self, tree: &Tree) -> ChunkRanges {
        let mut ranges = ChunkRanges { nnz: tree.nnz(), ..ChunkRanges::default() };
        let (mut first, mut last) = ([0; ORDER_MAX], [0; ORDER_MAX]);
        for (l, &mode) in self.levels.modes().iter().enumerate() {
            let mode = usize::from(mode);
            let indices = tree.levels.get(l).map_or(&tree.leaves, |level| &level.indices);
            (first[mode], last[mode]) = (indices[0], indices[indices.len() - 1]);
            ranges.row_low[mode] = indices.iter().copied().min().unwrap_or(0);
            ranges.row_high[mode] = indices.iter().copied().max().unwrap_or(0);
        }
        ranges.linear = [first, last].map(|at| self.linearizer.scatter(&at[..tree.order()]));
        ranges
    }
}

impl<'a> Slots<'a> {
    /// Lays out the leaves of `tree` by `rule`.
    fn new(tree: &'a Tree, rule: LeafRule) -> Self {
        let fibers = tree.level_nodes(tree.levels.len() - 1);
        let mut slots = Self {
            tree,
            starts: Vec::with_capacity(fibers),
            count: 0,
            ell: Vec::with_capacity(tree.level_nodes(0)),
        };
        for slice in 0..tree.level_nodes(0) {
            let range = fibers_of(tree, slice);
            let length = |f: usize| leaves_of(tree, f).len();
            let nnz: usize = range.clone().map(length).sum();
            let longest = range.clone().map(length).max().unwrap_or(0);
            let padded = longest * range.len();
            let ell = rule != LeafRule::Csr && padded as u64 <= rule.slots_max(nnz as u64);
            slots.ell.push(ell);
            for f in range {
                slots.starts.push(u32::try_from(slots.count).expect("a chunk has fewer than 2^32 slots"));
                slots.count += if ell { longest } else { length(f) };
            }
        }
        slots
    }

    /// Calls `take` with the indices and values of each tile of slots, in order. Padding has index [`PADDING`] and the
    /// value of the leaf before it.
    fn for_each_tile(&self, mut take: impl FnMut(&[u32], &[f64])) {
        let tree = self.tree;
        if self.count == tree.nnz() {
            let tiles = tree.leaves.chunks(TILE_NNZ).zip(tree.values.chunks(TILE_NNZ));
            return tiles.for_each(|(indices, values)| take(indices, values));
        }
        let (mut indices, mut values) = (Vec::with_capacity(TILE_NNZ), Vec::with_capacity(TILE_NNZ));
        let mut put = |some: &[u32], their: &[f64]| {
            indices.extend_from_slice(some);
            values.extend_from_slice(their);
            if indices.len() == TILE_NNZ {
                take(&indices, &values);
                indices.clear();
                values.clear();
            }
            TILE_NNZ - indices.len()
        };
        let mut room = TILE_NNZ;
        for (f, &start) in self.starts.iter().enumerate() {
            let mut leaves = leaves_of(tree, f);
            let end = self.starts.get(f + 1).map_or(self.count, |&start| start as usize);
            let mut padding = end - start as usize - leaves.len();
            let last = tree.values[leaves.end - 1];
            while !leaves.is_empty() {
                let some = leaves.start..leaves.end.min(leaves.start + room);
                leaves.start = some.end;
                room = put(&tree.leaves[some.clone()], &tree.values[some]);
            }
            while padding > 0 {
                let some = padding.min(room);
                padding -= some;
                room = put(&[PADDING; TILE_NNZ][..some], &[last; TILE_NNZ][..some]);
            }
        }
        if !indices.is_empty() {
            take(&indices, &values);
        }
    }

    /// A bit per slice, 1 if it is padded, in words of 32.
    fn codes(&self) -> impl Iterator<Item = u32> + '_ {
        let word = |bits: &[bool]| bits.iter().rev().fold(0, |word, &bit| word << 1 | u32::from(bit));
        self.ell.chunks(32).map(word)
    }
}

/// The record of a tile of slots without its place and values, and the number of leaves among the slots. `before`
/// counts the leaves of earlier tiles.
fn leaf_record(indices: &[u32], before: u32) -> (LevelRecord, u32) {
    let there = || indices.iter().copied().filter(|&index| index != PADDING);
    let nnz = u32::try_from(there().count()).expect("at most a tile");
    let record = LevelRecord {
        low: there().min().unwrap_or(0),
        high: there().max().unwrap_or(0),
        stride_or_before: before,
        ..LevelRecord::default()
    };
    (record, nnz)
}

/// Packs a tile of slots whose indices take `width` bits, and fills in the value fields of the record.
fn pack_leaves(
    record: &mut LevelRecord,
    width: u32,
    indices: &[u32],
    values: &[f64],
    chosen: &ChosenValues,
    out: &mut Vec<u8>,
) {
    let mut numbers: Numbers<u32> = [0; TILE_NNZ];
    for (number, &index) in numbers.iter_mut().zip(indices) {
        *number = if index == PADDING { record.high - record.low + 1 } else { index - record.low };
    }
    column::pack32(&numbers, width, out);
    (record.base, record.second_width) = chosen.column_of(values);
    chosen.pack(values, record.base, record.second_width, out);
}

/// The leaves of a fiber.
fn leaves_of(tree: &Tree, fiber: usize) -> std::ops::Range<usize> {
    let starts = &tree.levels[tree.levels.len() - 1].starts;
    let end = starts.get(fiber + 1).map_or(tree.nnz(), |&start| start as usize);
    starts[fiber] as usize..end
}

/// The fibers of a slice.
fn fibers_of(tree: &Tree, slice: usize) -> std::ops::Range<usize> {
    let descend = |node: usize| {
        let inner = &tree.levels[..tree.levels.len() - 1];
        inner.iter().enumerate().fold(node, |node, (l, level)| {
            level.starts.get(node).map_or(tree.level_nodes(l + 1), |&start| start as usize)
        })
    };
    descend(slice)..descend(slice + 1)
}

/// Records and columns of an inner level.
fn inner_columns(indices: &[u32], starts: &[u32]) -> LevelColumns {
    let mut columns = LevelColumns::default();
    for (indices, starts) in indices.chunks(TILE_NNZ).zip(starts.chunks(TILE_NNZ)) {
        let stride = starts.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(0);
        let low = indices.iter().copied().min().unwrap_or(0);
        let mut record = LevelRecord {
            low,
            high: indices.iter().copied().max().unwrap_or(0),
            stride_or_before: stride,
            base: starts[0].into(),
            ..LevelRecord::default()
        };
        let (mut offsets, mut numbers): (Numbers<u32>, Numbers<u32>) = ([0; TILE_NNZ], [0; TILE_NNZ]);
        offsets.iter_mut().zip(indices).for_each(|(offset, index)| *offset = index - low);
        for ((number, start), i) in numbers.iter_mut().zip(starts).zip(0..) {
            *number = start - starts[0] - stride * i;
        }
        record.second_width = width(numbers[starts.len() - 1].into());
        column::pack32(&offsets, record.index_width(false), &mut columns.bytes);
        column::pack32(&numbers, record.second_width, &mut columns.bytes);
        columns.records.push(record);
    }
    columns
}
