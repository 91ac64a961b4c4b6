//! Coordinate form: batches of nonzeros, where they come from, and text.
//!
//! A [`Source`] hands over [`Batch`]es in a fixed order; the packer, the oracle and the exporter's tests
//! take any source. [`tns`] reads text, [`generate`] and [`low_rank`] make tensors.

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

    /// Indices of each row.
    #[must_use]
    pub fn order(&self) -> usize {
        self.indices.len() / self.nnz().max(1)
    }
}

/// What a source turned out to hold, known when its last batch has been handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Indices of each mode: declared by the user or a header, otherwise the largest index met plus one.
    pub dims: Vec<u64>,
    /// Nonzeros handed over, duplicates counted each time.
    pub nnz: u64,
}

/// How large a source is, as far as that can be told without draining it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Nonzeros: exact, or an estimate.
    pub nnz: u64,
    /// The number of modes.
    pub order: usize,
}

/// Bytes of memory that draining a source takes, beside the batches that its sink keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceMemory {
    /// Less is not possible.
    pub least: u64,
    /// More is of no use.
    pub most: u64,
    /// What would lower the least, as the end of a message; empty where nothing would.
    pub help: &'static str,
}

/// Nonzeros in a fixed order, handed over in batches.
pub trait Source {
    /// What messages call it: the path, or `standard input`.
    fn name(&self) -> String;

    /// What tells this source from others, and from itself after a change: sources of equal identity hand over the same
    /// nonzeros. `None` where it can be drained only once, ever.
    fn identity(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// How large it is, where that can be told.
    fn size(&self) -> Result<Option<Size>> {
        Ok(None)
    }

    /// The shape, where it is declared before the first nonzero: of the dims that [`Source::drain`] will return.
    fn declared(&mut self) -> Result<Option<Shape>> {
        Ok(None)
    }

    /// What draining on `threads` threads takes.
    fn memory(&self, threads: usize) -> SourceMemory {
        let _ = threads;
        SourceMemory::default()
    }

    /// Holds [`Source::drain`] to `bytes` of memory, or the least that it can do with. What it hands over stays the same.
    fn limit(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether it is known that what it hands over is as [`Source::drain`] says.
    #[doc(hidden)]
    fn is_checked(&self) -> bool {
        false
    }

    /// Hands every batch to `sink`, in order, on the calling thread, and returns what was there.
    /// Every index is below its dim, every value finite. An error, its own or the sink's, ends it. A source is drained once.
    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent>;
}
