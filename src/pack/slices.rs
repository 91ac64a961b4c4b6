//! Slices by kind. Each partition of HB-CSF takes slices of one kind (Nisa et al., IPDPS 2019, section V).
//!
//! (Their Algorithm 5 as printed never resets a counter and keeps flags of slices in scalars; this follows the text.)
//! The kind of a slice is known at its end. Its nonzeros wait until then, except those of slices too long to wait,
//! which are [`SliceKind::Fibers`] whatever their fibers are.

use crate::error::Result;
use crate::format::{PartitionPlan, SliceKind, Takes};
use crate::linear::{Key, Nonzero};
use crate::shape::Shape;

/// Nonzeros of a slice that wait, at most.
const WAITING_NNZ: usize = 1 << 16;

/// Takes nonzeros of a store's slices, and lets those of slices of one kind through.
#[derive(Debug)]
pub struct SliceFilter<K> {
    kind: SliceKind,
    /// Bits of the linear index below the main mode's, and those of the leaves' mode.
    below_slice: u32,
    below_fiber: u32,
    waiting: Vec<Nonzero<K>>,
    /// The last nonzero, and whether its slice is known to be [`SliceKind::Fibers`].
    last: Option<Nonzero<K>>,
    has_fibers: bool,
}

/// Takes nonzeros that were let through.
type Sink<'a, K> = &'a mut dyn FnMut(&[Nonzero<K>]) -> Result<()>;

impl<K: Key> SliceFilter<K> {
    /// What `plan` lets through of a tensor of `shape`; `None` where that is all.
    pub fn of(plan: &PartitionPlan, shape: &Shape) -> Option<Self> {
        let Takes::Slices(kind) = plan.takes else { return None };
        let levels = plan.format.record().levels?;
        let below_slice = shape.linear_bits() - shape.bits(levels.mode(0));
        let below_fiber = shape.bits(levels.last());
        let (waiting, last) = (Vec::new(), None);
        Some(Self { kind, below_slice, below_fiber, waiting, last, has_fibers: false })
    }

    /// Takes the next nonzeros.
    pub fn push(&mut self, nonzeros: &[Nonzero<K>], sink: Sink<'_, K>) -> Result<()> {
        for &next in nonzeros {
            let same = |below: u32, last: &Nonzero<K>| {
                let differs = last.linear.widen() ^ next.linear.widen();
                differs.checked_shr(below).unwrap_or(0) == 0
            };
            let last = self.last.replace(next);
            if last.as_ref().is_some_and(|last| !same(self.below_slice, last)) {
                self.close(sink)?;
            } else if last.as_ref().is_some_and(|last| same(self.below_fiber, last)) {
                self.has_fibers = true;
            }
            if self.waiting.len() == WAITING_NNZ {
                self.has_fibers = true;
                self.release(sink)?;
            }
            self.waiting.push(next);
        }
        Ok(())
    }

    /// Lets go of what waits, once no more nonzeros come.
    pub fn finish(&mut self, sink: Sink<'_, K>) -> Result<()> {
        self.close(sink)
    }

    /// Lets go of what waits of a slice that has fibers.
    fn release(&mut self, sink: Sink<'_, K>) -> Result<()> {
        if self.kind == SliceKind::Fibers {
            sink(&self.waiting)?;
        }
        self.waiting.clear();
        Ok(())
    }

    /// The slice has ended.
    fn close(&mut self, sink: Sink<'_, K>) -> Result<()> {
        let kind = match self.waiting.len() {
            _ if self.has_fibers => SliceKind::Fibers,
            1 => SliceKind::Single,
            _ => SliceKind::Singletons,
        };
        if kind == self.kind && !self.waiting.is_empty() {
            sink(&self.waiting)?;
        }
        self.waiting.clear();
        self.has_fibers = false;
        Ok(())
    }
}
