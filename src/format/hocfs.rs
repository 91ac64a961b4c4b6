//! HOCFS, the high-order compressed format of slices, after Yang et al., "A pipeline computing method of `SpTV` for
//! three-order tensors on CPU and GPU", TKDD 2019, section 5.4, Algorithms 1 and 2: trees of the main mode's slices
//! (formats-spec/hocfs.md), over [`super::tree`].

use super::tree::{self, TreeBuilder, TreeDecoder};
use super::{Checked, ChunkBuilder, ChunkFormat, Decoder, FiberCounts, FormatRecord, Layout};
use crate::chunk::{ChunkHeader, Version};
use crate::encoding::LeafRule;
use crate::encoding::values::ValueEncoding;
use crate::error::Result;
use crate::shape::{ModeOrder, Shape};

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Hocfs {
    /// The mode of each level, the main mode first.
    pub levels: ModeOrder,
    /// How leaves are laid out.
    pub leaf: LeafRule,
}

impl ChunkFormat for Hocfs {
    fn code() -> u32 {
        2
    }

    fn read(record: &FormatRecord, order: usize) -> Checked<Self> {
        let parameters = record.parameters.as_slice().try_into().map_err(|_| "parameters of a partition")?;
        let leaf = u32::try_from(u64::from_le_bytes(parameters)).ok().and_then(LeafRule::from_code);
        let leaf = leaf.ok_or("unknown leaf rule")?;
        let levels = record.levels.filter(|levels| levels.modes().len() == order).ok_or("modes of levels")?;
        Ok(Self { levels, leaf })
    }

    fn of_chunk(header: &ChunkHeader, image: &[u8]) -> Checked<Self> {
        let (levels, leaf) = tree::told_by(header, image)?;
        Ok(Self { levels, leaf })
    }

    fn record(&self) -> FormatRecord {
        let parameters = u64::from(self.leaf as u32).to_le_bytes().to_vec();
        FormatRecord { code: Self::code(), layout: Layout::TREE, levels: Some(self.levels), parameters }
    }

    fn name(&self) -> &'static str {
        "hocfs"
    }

    fn encoding(&self) -> &'static str {
        self.leaf.name()
    }

    fn options(&self) -> String {
        format!("--format hocfs --slice {}, levels of modes {:?}", self.leaf.name(), self.levels.modes())
    }

    fn slots_max(&self, nnz: u64) -> u64 {
        self.leaf.slots_max(nnz)
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
        tree::rebuilt_chunk_bytes(self.leaf, chunk_bytes, headers)
    }

    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
        Box::new(TreeBuilder::new(version, shape, &self.levels, self.leaf, Self::code(), chunk_bytes))
    }

    fn decoder(&self, shape: &Shape) -> Decoder {
        Decoder::Tree(TreeDecoder::new(shape, &self.levels, self.leaf))
    }

    /// An index and a count a node, an index a nonzero.
    fn paper_index_bytes(&self, counts: &FiberCounts) -> Option<u64> {
        Some(counts.tree_bytes())
    }
}
