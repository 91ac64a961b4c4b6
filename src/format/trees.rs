//! Formats whose chunks are trees with `csr` leaves: CSF, B-CSF, MM-CSF, and two of the three roles of HB-CSF. They
//! differ in parameters and in the partitions that they make.

use super::partitions::PartitionRecord;
use super::tree::{self, TreeBuilder, TreeDecoder};
use super::{
    Checked, ChunkBuilder, ChunkFormat, Decoder, FiberCounts, FormatRecord, Layout, PartitionPlan, Takes,
};
use crate::chunk::{ChunkHeader, Version};
use crate::encoding::LeafRule;
use crate::encoding::values::ValueEncoding;
use crate::error::Result;
use crate::shape::{ModeOrder, Shape};
use std::fmt::Debug;

/// The differences between these formats.
pub trait TreeKind: Clone + Copy + Debug + Send + Sync + 'static {
    /// The format's code.
    const CODE: u32;
    /// The name that users see.
    const NAME: &'static str;

    /// Reads the parameters.
    fn read(parameters: &[u8]) -> Checked<Self>;

    /// The kind that a chunk reveals. Chunks hold no parameters.
    fn of_chunk() -> Self;

    /// The parameters.
    fn parameters(&self) -> Vec<u8>;

    /// See [`ChunkFormat::check_among`].
    fn check_among(all: &[PartitionRecord], at: usize) -> Checked<()>;

    /// See [`ChunkFormat::cover_key`].
    fn cover_key(levels: &ModeOrder) -> u32;

    /// See [`ChunkFormat::takes`].
    fn takes(_levels: &ModeOrder) -> Takes {
        Takes::All
    }

    /// See [`ChunkFormat::paper_index_bytes`].
    fn paper_index_bytes(counts: &FiberCounts) -> u64 {
        counts.tree_bytes()
    }

    /// See [`ChunkFormat::beside`].
    fn beside(_plan: &PartitionPlan, _levels: &ModeOrder) -> Vec<PartitionPlan> {
        Vec::new()
    }
}

/// A partition of trees.
#[derive(Clone, Copy, Debug)]
pub struct TreeOf<K> {
    /// The mode of each level.
    pub levels: ModeOrder,
    /// What its format adds.
    pub kind: K,
}

impl<K: TreeKind> ChunkFormat for TreeOf<K> {
    fn code() -> u32 {
        K::CODE
    }

    fn read(record: &FormatRecord, order: usize) -> Checked<Self> {
        let levels = record.levels.filter(|levels| levels.modes().len() == order).ok_or("modes of levels")?;
        Ok(Self { levels, kind: K::read(&record.parameters)? })
    }

    fn of_chunk(header: &ChunkHeader, image: &[u8]) -> Checked<Self> {
        match tree::told_by(header, image)? {
            (levels, LeafRule::Csr) => Ok(Self { levels, kind: K::of_chunk() }),
            _ => Err("unknown leaf rule"),
        }
    }

    fn record(&self) -> FormatRecord {
        let (levels, parameters) = (Some(self.levels), self.kind.parameters());
        FormatRecord { code: K::CODE, layout: Layout::TREE, levels, parameters }
    }

    fn name(&self) -> &'static str {
        K::NAME
    }

    fn options(&self) -> String {
        format!("--format {} {:?}, levels of modes {:?}", K::NAME, self.kind, self.levels.modes())
    }

    fn cuts_at_tiles(&self) -> bool {
        false
    }

    fn nonzero_bytes_min(&self) -> u64 {
        2
    }

    fn has_value_encoding(&self, code: u8) -> bool {
        ValueEncoding::from_code(code).is_some()
    }

    fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        tree::open_chunk_bytes(chunk_bytes)
    }

    fn rebuilt_chunk_bytes(
        &self,
        chunk_bytes: u64,
        headers: &mut dyn Iterator<Item = Result<ChunkHeader>>,
    ) -> Result<u64> {
        tree::rebuilt_chunk_bytes(LeafRule::Csr, chunk_bytes, headers)
    }

    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
        let builder = TreeBuilder::new(version, shape, &self.levels, LeafRule::Csr, K::CODE, chunk_bytes);
        Box::new(builder)
    }

    fn decoder(&self, shape: &Shape) -> Decoder {
        Decoder::Tree(TreeDecoder::new(shape, &self.levels, LeafRule::Csr))
    }

    fn check_among(&self, all: &[PartitionRecord], at: usize, _order: usize) -> Checked<()> {
        K::check_among(all, at)
    }

    fn distance(&self, mode: usize) -> usize {
        self.levels.modes().iter().position(|&of_level| usize::from(of_level) == mode).unwrap_or(0)
    }

    fn traversal(&self) -> Option<ModeOrder> {
        Some(self.levels)
    }

    fn cover_key(&self) -> u32 {
        K::cover_key(&self.levels)
    }

    fn takes(&self) -> Takes {
        K::takes(&self.levels)
    }

    fn paper_index_bytes(&self, counts: &FiberCounts) -> Option<u64> {
        Some(K::paper_index_bytes(counts))
    }

    fn beside(&self, plan: &PartitionPlan) -> Vec<PartitionPlan> {
        K::beside(plan, &self.levels)
    }
}

/// A number that distinguishes orders of modes.
pub(super) fn key_of(levels: &ModeOrder) -> u32 {
    levels.modes().iter().fold(0, |key, &mode| key << 3 | u32::from(mode))
}

/// Reads parameters of 8 bytes: a number and a reserved field.
pub(super) fn one_number(parameters: &[u8]) -> Checked<u32> {
    let bytes: [u8; 8] = parameters.try_into().map_err(|_| "parameters of a partition")?;
    u32::try_from(u64::from_le_bytes(bytes)).map_err(|_| "parameters of a partition")
}
