//! F-COO, flagged coordinates (Liu, Wen, Sarwate and Mehri Dehnavi, "A unified optimization approach for sparse tensor
//! operations on GPUs", CLUSTER 2017, section IV; formats-spec/formats.md). Each nonzero stores its indices in the
//! product modes, and flags mark where the indices in the other modes change.
//!
//! The format as published cannot be decoded, since it does not store the index modes. Here each segment stores them.

use super::partitions::{PartitionRecord, check_own_cover};
use super::segments::{self, Parts, SegmentsBuilder, SegmentsDecoder};
use super::trees::key_of;
use super::{
    Checked, ChunkBuilder, ChunkFormat, Decoder, FiberCounts, Format, FormatRecord, Layout, Scheme, Trees,
    chunk_bytes_least,
};
use crate::chunk::{ChunkCodes, ChunkHeader, Version};
use crate::encoding::values::ValueEncoding;
use crate::shape::{ModeOrder, Shape};

/// The operation that a store is laid out for (the paper's Table I).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FcooFor {
    /// MTTKRP, and a tensor times matrices along all modes but one: for mode m, the other modes are product
    /// modes.
    Mttkrp,
    /// A tensor times a matrix: along mode m, only mode m is a product mode.
    Ttm,
}

/// Nonzeros that share a start flag unless a packer chooses: the least that the paper tries.
const THREAD_NNZ: u32 = 8;
/// The most that it may choose.
pub const THREAD_NNZ_MAX: u32 = 1 << 16;

/// A partition of the format.
#[derive(Clone, Copy, Debug)]
pub struct Fcoo {
    /// The order of modes, index modes first.
    pub levels: ModeOrder,
    /// Bit m: mode m is a product mode.
    pub product: u32,
    /// Nonzeros that a thread takes, which share a start flag, at most [`THREAD_NNZ_MAX`]; 0 stands for 8. It changes no byte of a chunk.
    pub thread_nnz: u32,
}

impl Fcoo {
    fn nnz_of_thread(&self) -> u32 {
        if self.thread_nnz == 0 { THREAD_NNZ } else { self.thread_nnz }
    }

    fn parts(&self, shape: &Shape) -> Parts {
        let is_product = |mode: &usize| self.product >> mode & 1 != 0;
        let (product, index) = (0..shape.order()).partition(is_product);
        Parts { shape: shape.clone(), product, index }
    }
}

impl ChunkFormat for Fcoo {
    fn code() -> u32 {
        7
    }

    fn read(record: &FormatRecord, order: usize) -> Checked<Self> {
        let levels = record.levels.filter(|levels| levels.modes().len() == order).ok_or("modes of levels")?;
        let parameters: [u8; 8] =
            record.parameters[..].try_into().map_err(|_| "parameters of a partition")?;
        let [product, thread_nnz] = bytemuck::cast::<_, [u32; 2]>(parameters).map(u32::from_le);
        let is_product = |mode: &u8| product >> mode & 1 != 0;
        let known = product >> order == 0 && product != 0 && product.count_ones() < 8;
        let index_modes = order.saturating_sub(product.count_ones() as usize);
        let ordered = !levels.modes()[..index_modes].iter().any(is_product);
        if known && index_modes > 0 && ordered && thread_nnz <= THREAD_NNZ_MAX {
            Ok(Self { levels, product, thread_nnz })
        } else {
            Err("parameters of a partition")
        }
    }

    fn of_chunk(_: &ChunkHeader, _: &[u8]) -> Checked<Self> {
        Err("segments, which do not tell their product modes; the manifest does")
    }

    fn record(&self) -> FormatRecord {
        let parameters = [self.product, self.thread_nnz].map(u32::to_le_bytes).concat();
        FormatRecord { code: Self::code(), layout: Layout::SEGMENTS, levels: Some(self.levels), parameters }
    }

    fn name(&self) -> &'static str {
        "fcoo"
    }

    fn options(&self) -> String {
        let Self { levels, product, thread_nnz } = self;
        let levels = levels.modes();
        format!(
            "--format fcoo --thread-nnz {thread_nnz}, product modes {product:#b}, order of modes {levels:?}"
        )
    }

    fn cuts_at_tiles(&self) -> bool {
        false
    }

    fn nonzero_bytes_min(&self) -> u64 {
        4
    }

    fn has_value_encoding(&self, code: u8) -> bool {
        ValueEncoding::from_code(code).is_some()
    }

    fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        segments::open_chunk_bytes(chunk_bytes)
    }

    fn made_bytes(&self, order: usize) -> usize {
        segments::made_bytes(order)
    }

    fn chunk_bytes_least(&self, nnz: u32, image_bytes: u32) -> u64 {
        chunk_bytes_least(nnz, image_bytes)
    }

    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
        let (format, layout) = (Self::code(), Layout::SEGMENTS.0);
        let codes = ChunkCodes { format, layout, value_encoding: 0 };
        Box::new(SegmentsBuilder::new(version, self.parts(shape), codes, chunk_bytes))
    }

    fn decoder(&self, shape: &Shape) -> Decoder {
        Decoder::Other(shape.clone(), Box::new(SegmentsDecoder(self.parts(shape))))
    }

    fn check_among(&self, all: &[PartitionRecord], at: usize, _order: usize) -> Checked<()> {
        check_own_cover(all, at)
    }

    fn distance(&self, mode: usize) -> usize {
        self.levels.modes().iter().position(|&of_level| usize::from(of_level) == mode).unwrap_or(0)
    }

    fn traversal(&self) -> Option<ModeOrder> {
        Some(self.levels)
    }

    fn product_modes(&self) -> u32 {
        self.product
    }

    fn thread_nnz(&self) -> Option<u32> {
        Some(self.nnz_of_thread())
    }

    fn cover_key(&self) -> u32 {
        key_of(&self.levels)
    }

    /// An index for each product mode, a bit flag, and a start flag for the nonzeros of each thread.
    fn paper_index_bytes(&self, counts: &FiberCounts) -> Option<u64> {
        let flags = counts.nnz.div_ceil(8) + counts.nnz.div_ceil(8 * u64::from(self.nnz_of_thread()));
        Some(4 * u64::from(self.product.count_ones()) * counts.nnz + flags)
    }

    /// The only index mode, or the only product mode, as a bit.
    fn target_alone(&self) -> u32 {
        let index = !self.product & ((1 << self.levels.modes().len()) - 1);
        if index.is_power_of_two() { index } else { self.product }
    }
}

/// The partitions of a tensor of `shape`: a cover for each mode, or for one mode.
#[must_use]
pub fn scheme(shape: &Shape, operation: FcooFor, trees: Trees, thread_nnz: u32) -> Scheme {
    let order = shape.order();
    let all = (1u32 << order) - 1;
    // One number for the default, whether it was chosen or not: the same bytes.
    let thread_nnz = if thread_nnz == THREAD_NNZ { 0 } else { thread_nnz };
    let format = |levels: ModeOrder| {
        let mode = levels.mode(0);
        let modes: Vec<usize> = levels.modes().iter().map(|&mode| mode.into()).collect();
        match operation {
            FcooFor::Mttkrp => Format::new(Fcoo { levels, product: all & !(1 << mode), thread_nnz }),
            FcooFor::Ttm => {
                let last: Vec<usize> = modes[1..].iter().chain(&modes[..1]).copied().collect();
                let levels = ModeOrder::new(&last).expect("the same modes");
                Format::new(Fcoo { levels, product: 1 << mode, thread_nnz })
            }
        }
    };
    Scheme::covers(trees.orders(shape).into_iter().map(format).collect(), order)
}

/// Bytes that a builder takes for an open chunk.
#[must_use]
pub(crate) fn open_chunk_bytes(chunk_bytes: u64) -> u64 {
    segments::open_chunk_bytes(chunk_bytes)
}

/// The paper's flags of sorted nonzeros, with `per_thread` nonzeros to a partition. `begins` marks the first nonzero of
/// each segment. Returns the bit flags (0 for the last nonzero of a segment, otherwise 1) and the start flags (1 if a
/// segment begins in the partition).
#[must_use]
pub fn flags(begins: &[bool], per_thread: usize) -> (Vec<bool>, Vec<bool>) {
    let ends = begins.iter().skip(1).chain([&true]);
    let starts = begins.chunks(per_thread.max(1)).map(|partition| partition.contains(&true));
    (ends.map(|end| !end).collect(), starts.collect())
}
