//! Coordinate form: batches of nonzeros, their sources, and text.
//!
//! A [`Source`] hands over [`Batch`]es in a fixed order. The packer and the oracle accept any source. [`tns`]
//! reads text; [`generate`] and [`low_rank`] generate tensors.

pub mod generate;
pub mod low_rank;
pub mod tns;

use crate::error::Result;
use crate::shape::Shape;

/// Some nonzeros in coordinate form. Indices count from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// `values.len()` rows of `order` indices each, row after row.
    pub indices: Vec<u32>,
    /// One value for each row of indices.
    pub values: Vec<f64>,
}

impl Batch {
    /// The number of nonzeros.
    #[must_use]
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// The number of indices in each row.
    #[must_use]
    pub fn order(&self) -> usize {
        self.indices.len() / self.nnz().max(1)
    }
}

/// The contents of a source, known after its last batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Indices of each mode: declared by the user or a header, otherwise the largest index met plus one.
    pub dims: Vec<u64>,
    /// Nonzeros handed over, duplicates counted each time.
    pub nnz: u64,
}

/// The size of a source, as far as it is known without draining it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Nonzeros: exact, or an estimate.
    pub nnz: u64,
    /// The number of modes.
    pub order: usize,
}

/// Memory in bytes for draining a source, besides the batches that its sink keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceMemory {
    /// The minimum.
    pub least: u64,
    /// The most that is useful.
    pub most: u64,
    /// How to lower the minimum, as the end of a message; empty if nothing does.
    pub help: &'static str,
}

/// A sequence of nonzeros in a fixed order, handed over in batches.
pub trait Source {
    /// Its name in messages: the path, or `standard input`.
    fn name(&self) -> String;

    /// Identifies this source and its state: sources with equal identities hand over the same nonzeros. `None` if it
    /// can be drained only once, ever.
    fn identity(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Its size, if known.
    fn size(&self) -> Result<Option<Size>> {
        Ok(None)
    }

    /// The shape, if it is declared before the first nonzero. [`Source::drain`] will return the same dims.
    fn declared(&mut self) -> Result<Option<Shape>> {
        Ok(None)
    }

    /// The memory that draining on `threads` threads takes.
    fn memory(&self, threads: usize) -> SourceMemory {
        let _ = threads;
        SourceMemory::default()
    }

    /// Limits the memory of [`Source::drain`] to `bytes` or its minimum. Its batches do not change.
    fn limit(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether the batches are known to satisfy the promises of [`Source::drain`].
    #[doc(hidden)]
    fn is_checked(&self) -> bool {
        false
    }

    /// Hands every batch to `sink`, in order, on the calling thread, and returns the extent. Every index is below its
    /// dim and every value is finite. An error of the source or the sink ends it. A source can be drained once.
    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent>;
}
