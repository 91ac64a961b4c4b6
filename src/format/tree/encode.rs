//! A chunk's image of a tree.

use super::measure::{other_bytes, section_bytes};
use super::record::{Head, LevelRecord};
use super::{PADDING, Tree};
use crate::encoding::column::{self, Numbers};
use crate::encoding::values::{
    Costs, TileValues, ValueBytes, ValueEncoding, dictionary_width, pack_entries, pack_integers,
};
use crate::encoding::{LeafRule, TILE_NNZ, width};
use crate::format::{BuiltChunk, value_section};
use crate::linear::{BitLayout, Linearizer};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use crate::store::{ChunkEntry, ImageWriter, SectionKind, TREE_CODE};

/// Makes images of trees of one shape and order of modes.
#[derive(Debug)]
pub struct TreeEncoder {
    shape: Shape,
    levels: ModeOrder,
    leaf: LeafRule,
    linearizer: Linearizer<u128>,
}

/// Leaves as they are stored: slots, some of them padding.
struct Slots {
    /// [`PADDING`] in padding.
    indices: Vec<u32>,
    /// Padding repeats the value before it.
    values: Vec<f64>,
    /// Where each fiber's slots begin.
    starts: Vec<u32>,
    /// Whether each slice is padded to its longest fiber.
    ell: Vec<bool>,
}

/// Tile records and packed columns while they grow.
#[derive(Default)]
struct Columns {
    records: Vec<LevelRecord>,
    bytes: Vec<u8>,
}

impl TreeEncoder {
    /// An encoder for tensors of `shape` whose level l has mode `levels.mode(l)`.
    #[must_use]
    pub fn new(shape: &Shape, levels: &ModeOrder, leaf: LeafRule) -> Self {
        let linearizer = Linearizer::new(&BitLayout::concatenated(shape, levels));
        Self { shape: shape.clone(), levels: *levels, leaf, linearizer }
    }

    /// The chunk of `tree`, which holds a nonzero. Padded by the leaf rule, unless that takes more than `bytes_max`.
    #[must_use]
    pub fn encode(&self, tree: &Tree, bytes_max: u64) -> BuiltChunk {
        let padded = self.image(tree, self.leaf);
        let too_long = padded.image.len() as u64 > bytes_max && self.leaf != LeafRule::Csr;
        if too_long { self.image(tree, LeafRule::Csr) } else { padded }
    }

    fn image(&self, tree: &Tree, rule: LeafRule) -> BuiltChunk {
        let slots = Slots::new(tree, rule);
        let order = tree.order();
        let inner: Vec<Columns> = (0..order - 1)
            .map(|l| {
                let starts = if l == order - 2 { &slots.starts } else { &tree.levels[l].starts };
                inner_columns(&tree.levels[l].indices, starts)
            })
            .collect();
        let costs = slots
            .values
            .chunks(TILE_NNZ)
            .fold(Costs::default(), |costs, tile| costs.with(&TileValues::new(tile), tile.len()));
        let leaf_indices: Vec<(LevelRecord, Vec<u8>)> = slots.index_columns();
        let index_bytes = inner.iter().map(|columns| columns.bytes.len()).sum::<usize>()
            + leaf_indices.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let cost = |v: ValueBytes| section_bytes(index_bytes as u64 + v.columns, v.section);
        let (value_encoding, dictionary) = costs.choose(&slots.values, cost);
        let mut all = Columns::default();
        for columns in inner {
            all.append(columns);
        }
        for ((record, bytes), values) in leaf_indices.into_iter().zip(slots.values.chunks(TILE_NNZ)) {
            all.append_leaves(record, &bytes, values, value_encoding, &dictionary);
        }
        let mut nodes = [0; ORDER_MAX];
        for (l, n) in nodes.iter_mut().enumerate().take(order) {
            let count = if l == order - 1 { slots.indices.len() } else { tree.level_nodes(l) };
            *n = u32::try_from(count).expect("a chunk has fewer than 2^32 nodes");
        }
        let head = Head::new(&self.levels, self.leaf, nodes);
        let mut image = ImageWriter::with_capacity(all.bytes.len() + 8 * slots.values.len());
        image.section(SectionKind::Shape, |out| {
            out.extend(self.shape.dims().iter().flat_map(|d| d.to_le_bytes()));
        });
        let records = std::mem::take(&mut all.records);
        image.section(SectionKind::Columns, |out| out.append(&mut all.bytes));
        value_section(&mut image, value_encoding, &slots.values, &dictionary);
        image.section(SectionKind::Levels, |out| {
            head.write(out);
            for record in &records {
                record.write(out);
            }
            out.extend(slots.codes().flat_map(u32::to_le_bytes));
        });
        let nnz = u32::try_from(tree.nnz()).expect("a chunk has fewer than 2^32 nonzeros");
        let order = u8::try_from(order).expect("at most 8 modes");
        let (header, image) = image.finish(order, nnz, TREE_CODE, value_encoding as u8);
        debug_assert!(image.len() as u64 >= other_bytes(order.into(), records.len() as u64, nodes[0].into()));
        BuiltChunk { header, image, entry: self.ranges(tree) }
    }

    /// The manifest entry's linear and row ranges.
    fn ranges(&self, tree: &Tree) -> ChunkEntry {
        let mut entry = ChunkEntry::default();
        let (mut first, mut last) = ([0; ORDER_MAX], [0; ORDER_MAX]);
        for (l, &mode) in self.levels.modes().iter().enumerate() {
            let mode = usize::from(mode);
            let indices = tree.levels.get(l).map_or(&tree.leaves, |level| &level.indices);
            (first[mode], last[mode]) = (indices[0], indices[indices.len() - 1]);
            entry.row_low[mode] = indices.iter().copied().min().unwrap_or(0);
            entry.row_high[mode] = indices.iter().copied().max().unwrap_or(0);
        }
        let order = tree.order();
        #[expect(clippy::cast_possible_truncation, reason = "halves of a 128-bit number")]
        let halves = |at: &[u32]| {
            let linear = self.linearizer.scatter(at);
            [linear as u64, (linear >> 64) as u64]
        };
        entry.first_linear = halves(&first[..order]);
        entry.last_linear = halves(&last[..order]);
        entry
    }
}

impl Slots {
    /// The leaves of `tree` by `rule`.
    fn new(tree: &Tree, rule: LeafRule) -> Self {
        let fibers = &tree.levels[tree.levels.len() - 1];
        let fiber_end = |f: usize| fibers.starts.get(f + 1).map_or(tree.nnz(), |&start| start as usize);
        let length = |f: usize| fiber_end(f) - fibers.starts[f] as usize;
        let mut slots = Self {
            indices: Vec::with_capacity(tree.nnz()),
            values: Vec::with_capacity(tree.nnz()),
            starts: Vec::with_capacity(fibers.starts.len()),
            ell: Vec::with_capacity(tree.level_nodes(0)),
        };
        for slice in 0..tree.level_nodes(0) {
            let range = fibers_of(tree, slice);
            let nnz: usize = range.clone().map(length).sum();
            let longest = range.clone().map(length).max().unwrap_or(0);
            let padded = longest * range.len();
            let ell = rule != LeafRule::Csr && padded as u64 <= rule.slots_max(nnz as u64);
            slots.ell.push(ell);
            for f in range {
                let leaves = fibers.starts[f] as usize..fiber_end(f);
                slots.push(tree, leaves, if ell { longest } else { length(f) });
            }
        }
        slots
    }

    /// Adds a fiber, padded to `length`.
    fn push(&mut self, tree: &Tree, leaves: std::ops::Range<usize>, length: usize) {
        self.starts.push(u32::try_from(self.indices.len()).expect("a chunk has fewer than 2^32 slots"));
        let last = tree.values[leaves.end - 1];
        let end = self.indices.len() + length;
        self.indices.extend_from_slice(&tree.leaves[leaves.clone()]);
        self.indices.resize(end, PADDING);
        self.values.extend_from_slice(&tree.values[leaves]);
        self.values.resize(end, last);
    }

    /// Records, without their place and values, and packed indices of the leaves' tiles.
    fn index_columns(&self) -> Vec<(LevelRecord, Vec<u8>)> {
        let mut before = 0;
        let tile = |slots: &[u32]| {
            let there = || slots.iter().copied().filter(|&index| index != PADDING);
            let nnz = u32::try_from(there().count()).expect("at most a tile");
            let record = LevelRecord {
                low: there().min().unwrap_or(0),
                high: there().max().unwrap_or(0),
                stride_or_before: before,
                ..LevelRecord::default()
            };
            before += nnz;
            let pads = nnz as usize != slots.len();
            let mut numbers: Numbers<u32> = [0; TILE_NNZ];
            for (number, &index) in numbers.iter_mut().zip(slots) {
                *number = if index == PADDING { record.high - record.low + 1 } else { index - record.low };
            }
            let mut bytes = Vec::new();
            column::pack32(&numbers, record.index_width(pads), &mut bytes);
            (record, bytes)
        };
        self.indices.chunks(TILE_NNZ).map(tile).collect()
    }

    /// A bit for each slice, 1 where it is padded, in words of 32.
    fn codes(&self) -> impl Iterator<Item = u32> + '_ {
        let word = |bits: &[bool]| bits.iter().rev().fold(0, |word, &bit| word << 1 | u32::from(bit));
        self.ell.chunks(32).map(word)
    }
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
fn inner_columns(indices: &[u32], starts: &[u32]) -> Columns {
    let mut columns = Columns::default();
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

impl Columns {
    fn place(&self) -> u32 {
        u32::try_from(self.bytes.len() / column::bytes(1)).expect("an image stays below 4 GiB")
    }

    /// Adds a level behind those that are there.
    fn append(&mut self, level: Columns) {
        let mut at = self.place();
        for mut record in level.records {
            record.columns_at = at;
            at += record.index_width(false) + record.second_width;
            self.records.push(record);
        }
        self.bytes.extend_from_slice(&level.bytes);
    }

    /// Adds a tile of leaves with packed `indices`.
    fn append_leaves(
        &mut self,
        mut record: LevelRecord,
        indices: &[u8],
        values: &[f64],
        encoding: ValueEncoding,
        dictionary: &[f64],
    ) {
        record.columns_at = self.place();
        self.bytes.extend_from_slice(indices);
        match encoding {
            ValueEncoding::Integer => {
                let integer = TileValues::new(values).integer;
                (record.base, record.second_width) = integer.expect("chosen because all are integers");
                pack_integers(values, record.base, record.second_width, &mut self.bytes);
            }
            ValueEncoding::Dictionary => {
                record.second_width = dictionary_width(dictionary.len());
                pack_entries(values, dictionary, &mut self.bytes);
            }
            ValueEncoding::F32 | ValueEncoding::F64 => {}
        }
        self.records.push(record);
    }
}
