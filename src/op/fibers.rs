//! Counts slices, fibers and index bytes of every partition of a store in one pass. Counts are exact and do not depend on threads or
//! chunks.

use crate::backend::host::{HostOp, Tiles};
use crate::error::Result;
use crate::format::{ChunkView, FiberCounts};
use crate::shape::ModeOrder;
use crate::store::{Format, Store};

/// The counts of a partition.
#[derive(Clone, Debug)]
pub struct PartitionFibers {
    /// Its format.
    pub format: Format,
    /// The order of modes that it is sorted by.
    pub levels: Option<ModeOrder>,
    /// Slices and fibers.
    pub counts: FiberCounts,
    /// Bytes of its indices in chunk images.
    pub index_bytes: u64,
}

/// Counts the partitions of a view of all ([`Store::partitions`]).
#[derive(Debug)]
pub struct CountFibers {
    parts: Vec<PartitionFibers>,
    now: usize,
}

impl CountFibers {
    /// Starts counting the partitions of `view`.
    #[must_use]
    pub fn new(view: &Store) -> Self {
        let manifest = view.manifest();
        let parts = manifest.partitions.iter().map(|partition| {
            let levels = partition.format.record().levels;
            let counts = FiberCounts::new(manifest.shape.order(), levels.as_ref());
            PartitionFibers { format: partition.format.clone(), levels, counts, index_bytes: 0 }
        });
        Self { parts: parts.collect(), now: 0 }
    }

    /// The counts of each partition.
    #[must_use]
    pub fn finish(mut self) -> Vec<PartitionFibers> {
        self.parts.iter_mut().for_each(|part| part.counts.close());
        self.parts
    }
}

impl HostOp for CountFibers {
    fn part(&mut self, part: usize) -> Result<()> {
        self.now = part;
        Ok(())
    }

    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        self.parts[self.now].index_bytes += chunk.index_bytes();
        Ok(())
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let PartitionFibers { levels, counts, .. } = &mut self.parts[self.now];
        (0..batch.tiles()).for_each(|t| counts.add(&batch.tile(t), levels.as_ref()));
        Ok(())
    }
}
