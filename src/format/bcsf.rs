//! B-CSF, balanced compressed sparse fibers (Nisa, Li, Sukumaran-Rajam, Vuduc and Sadayappan, "Load-balanced sparse
//! MTTKRP on GPUs", IPDPS 2019; formats-spec/formats.md): CSF whose long fibers are split among workers.

use super::partitions::{PartitionRecord, check_own_cover};
use super::trees::{TreeKind, TreeOf, key_of, one_number};
use super::{Checked, FiberCounts, Format, Scheme, Trees};
use crate::shape::{ModeOrder, Shape};

/// The default for the most leaves of a fiber that one worker takes: the paper's.
pub const FIBER_SPLIT: u32 = 128;

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Bcsf {
    /// The most leaves of a fiber that one worker takes, at least 1.
    pub fiber_split: u32,
}

impl TreeKind for Bcsf {
    const CODE: u32 = 4;
    const NAME: &'static str = "bcsf";

    fn read(parameters: &[u8]) -> Checked<Self> {
        match one_number(parameters)? {
            0 => Err("parameters of a partition"),
            fiber_split => Ok(Self { fiber_split }),
        }
    }

    fn of_chunk() -> Self {
        Self { fiber_split: FIBER_SPLIT }
    }

    fn parameters(&self) -> Vec<u8> {
        u64::from(self.fiber_split).to_le_bytes().to_vec()
    }

    fn check_among(all: &[PartitionRecord], at: usize) -> Checked<()> {
        check_own_cover(all, at)
    }

    fn cover_key(levels: &ModeOrder) -> u32 {
        key_of(levels)
    }

    /// Each piece of a split fiber has an index and a pointer.
    fn paper_index_bytes(counts: &FiberCounts) -> u64 {
        counts.tree_bytes() + 8 * (counts.split_fibers - counts.fibers())
    }
}

/// The partitions of a tensor of `shape`, which are those of CSF.
#[must_use]
pub fn scheme(shape: &Shape, trees: Trees, fiber_split: u32) -> Scheme {
    let format = |levels| Format::new(TreeOf { levels, kind: Bcsf { fiber_split } });
    let formats = trees.orders(shape).into_iter().map(format).collect();
    Scheme::covers(formats, shape.order())
}
