//! The packer's memory: how a budget in bytes becomes buffer sizes.
//!
//! Resident at once, beside about 10 MiB for the program itself:
//!
//! * reading: the reader's pieces and batches, and batches that wait to be staged;
//! * sorting: one run, sorted in place;
//! * writing: a frame of each run, slices on their way, tiles being encoded, one open chunk.

use super::spill::{FRAME_NNZ, STAGE_NNZ};
use crate::format::blco::chunk_nnz_max;
use crate::linear::Nonzero;

/// No smaller budget can be kept: buffers take more than that.
pub const MEMORY_MIN: u64 = 64 << 20;
/// What reading takes beside the batches that are kept, for each thread: pieces of text and parsed batches.
const READER_BYTES_PER_THREAD: u64 = 8 << 20;
/// Slices, tiles being encoded, row counters.
const CUTTER_BYTES: u64 = 14 << 20;

/// Buffer sizes of one packing job.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    memory: u64,
    threads: u64,
    chunk_bytes: u64,
}

impl Budget {
    /// `memory` bytes for a job on `threads` threads that writes chunks of `chunk_bytes`.
    pub fn new(memory: u64, threads: usize, chunk_bytes: u64) -> Self {
        Self { memory, threads: threads as u64, chunk_bytes }
    }

    /// Bytes of batches that may be kept while reading.
    fn reading(&self) -> u64 {
        let reader = READER_BYTES_PER_THREAD * self.threads;
        self.memory.saturating_sub(reader).max(self.memory / 8)
    }

    /// Bytes that writing takes beside frames or sorted nonzeros.
    fn writing(&self) -> u64 {
        // The open chunk: columns and values while it grows, then its image.
        let chunk = 2 * self.chunk_bytes + 8 * chunk_nnz_max(self.chunk_bytes) as u64;
        CUTTER_BYTES + chunk
    }

    /// Whether `nnz` nonzeros of `order` modes can be packed without temporary files.
    pub fn in_memory(&self, nnz: u64, order: usize, nonzero_bytes: usize) -> bool {
        let batches = nnz * (4 * order as u64 + 8);
        let sorted = nnz * nonzero_bytes as u64;
        batches <= self.reading()
            && batches + sorted <= self.memory / 4 * 3
            && sorted + self.writing() <= self.memory
    }

    /// Nonzeros of a run: what half of the memory can sort. A multiple of what a staged frame holds.
    pub fn run_nnz(&self, nonzero_bytes: usize) -> u64 {
        let nnz = self.memory / 2 / nonzero_bytes as u64;
        (nnz / STAGE_NNZ as u64).max(1) * STAGE_NNZ as u64
    }

    /// Nonzeros that wait to be staged.
    pub fn stage_nnz(&self, order: usize) -> u64 {
        self.reading() / 4 / (4 * order as u64 + 8)
    }

    /// Runs that are merged at once.
    pub fn fan_in<K>(&self) -> usize {
        let frame = (FRAME_NNZ * (2 * size_of::<Nonzero<K>>() + 8)) as u64;
        let left = self.memory.saturating_sub(self.writing()).max(self.memory / 8);
        usize::try_from(left / frame).unwrap_or(usize::MAX).clamp(2, 1024)
    }
}
