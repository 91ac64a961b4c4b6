//! CSF, compressed sparse fibers (Smith et al., "SPLATT", IPDPS 2015; formats-spec/formats.md): a tree for each mode, or one for all.

use super::partitions::{PartitionRecord, check_own_cover};
use super::trees::{TreeKind, TreeOf, key_of};
use super::{Checked, Format, Scheme, Trees};
use crate::shape::{ModeOrder, Shape};

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Csf;

impl TreeKind for Csf {
    const CODE: u32 = 3;
    const NAME: &'static str = "csf";

    fn read(parameters: &[u8]) -> Checked<Self> {
        if parameters.is_empty() { Ok(Self) } else { Err("parameters of a partition") }
    }

    fn of_chunk() -> Self {
        Self
    }

    fn parameters(&self) -> Vec<u8> {
        Vec::new()
    }

    fn check_among(all: &[PartitionRecord], at: usize) -> Checked<()> {
        check_own_cover(all, at)
    }

    fn cover_key(levels: &ModeOrder) -> u32 {
        key_of(levels)
    }
}

/// The partitions of a tensor of `shape`: a cover per tree. If there are several trees, each serves the mode at its
/// root.
#[must_use]
pub fn scheme(shape: &Shape, trees: Trees) -> Scheme {
    let format = |levels| Format::new(TreeOf { levels, kind: Csf });
    let formats = trees.orders(shape).into_iter().map(format).collect();
    Scheme::covers(formats, shape.order())
}
