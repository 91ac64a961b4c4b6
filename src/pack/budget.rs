//! The packer's memory: how a budget in bytes becomes buffer sizes.
//!
//! Resident at once, beside about 10 MiB for the program itself:
//!
//! * reading: the reader's pieces and batches, and one run, sorted in place; where the dims are not declared, first
//!   the batches that are kept or wait to be staged;
//! * writing: what is ahead of each run, two rounds of merged nonzeros, tiles being encoded, one open chunk.

use super::PackOptions;
use super::spill::{FRAME_NNZ, STAGE_NNZ};
use crate::linear::{Nonzero, Wide};

/// No smaller budget can be kept: buffers take more than that.
pub const MEMORY_MIN: u64 = 64 << 20;
/// What reading takes beside the batches that are kept, for each thread: pieces of text and parsed batches.
const READER_BYTES_PER_THREAD: u64 = 8 << 20;
/// Slices, tiles being encoded, row counters.
const CUTTER_BYTES: u64 = 14 << 20;

/// Nonzeros of a round of a merge: enough work for every thread.
const ROUND_NNZ: usize = 1 << 19;

/// Buffer sizes of one packing job.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    memory: u64,
    threads: u64,
    /// What the open chunk takes.
    open_chunk: u64,
}

impl Budget {
    /// `memory` bytes for a job on `threads` threads whose open chunk takes `open_chunk` bytes.
    pub fn new(memory: u64, threads: usize, open_chunk: u64) -> Self {
        Self { memory, threads: threads as u64, open_chunk }
    }

    /// Of a job with `options` on the current rayon pool.
    pub fn of(options: &PackOptions) -> Self {
        let open_chunk = options.format.open_chunk_bytes(options.chunk_bytes);
        Self::new(options.memory, rayon::current_num_threads(), open_chunk)
    }

    /// Bytes of batches that may be kept while reading.
    fn reading(&self) -> u64 {
        let reader = READER_BYTES_PER_THREAD * self.threads;
        self.memory.saturating_sub(reader).max(self.memory / 8)
    }

    /// Bytes that writing takes beside frames or sorted nonzeros.
    fn writing(&self) -> u64 {
        CUTTER_BYTES + self.open_chunk
    }

    /// Whether `nnz` nonzeros of `order` modes can be kept as batches and be sorted in memory in the end.
    pub fn keeps(&self, nnz: u64, order: usize) -> bool {
        let batches = nnz * (4 * order as u64 + 8);
        let sorted = nnz * size_of::<Nonzero<Wide>>() as u64;
        batches <= self.reading()
            && batches + sorted <= self.memory / 4 * 3
            && sorted + self.writing() <= self.memory
    }

    /// Whether a store can be written while `nnz` nonzeros are in memory.
    pub fn writes_from_memory<K>(&self, nnz: usize) -> bool {
        nnz.saturating_mul(size_of::<Nonzero<K>>()) as u64 + self.writing() <= self.memory
    }

    /// Nonzeros of a run, at least as many as in a staged frame.
    pub fn run_nnz<K>(&self) -> usize {
        let nnz = self.reading() / 4 * 3 / size_of::<Nonzero<K>>() as u64;
        usize::try_from(nnz).unwrap_or(usize::MAX).max(STAGE_NNZ)
    }

    /// Nonzeros of a staged file, whatever their key will be: a run can hold it. A multiple of what a frame holds.
    pub fn staged_nnz(&self) -> u64 {
        let nnz = self.memory / 2 / size_of::<Nonzero<Wide>>() as u64;
        (nnz / STAGE_NNZ as u64).max(1) * STAGE_NNZ as u64
    }

    /// Nonzeros that wait to be staged.
    pub fn stage_nnz(&self, order: usize) -> u64 {
        self.reading() / 4 / (4 * order as u64 + 8)
    }

    /// Bytes for what is ahead of runs, and for two rounds of it.
    fn merging(&self) -> u64 {
        self.memory.saturating_sub(self.writing()).max(self.memory / 8)
    }

    /// Runs that are merged at once.
    pub fn fan_in<K>(&self) -> usize {
        let least = 2 * FRAME_NNZ * size_of::<[Nonzero<K>; 3]>();
        usize::try_from(self.merging() / least as u64).unwrap_or(usize::MAX).clamp(2, 512)
    }

    /// Nonzeros that are read ahead of each of `runs` runs; what is read beyond them is less than a frame.
    pub fn ahead_nnz<K>(&self, runs: usize) -> usize {
        let room = self.merging() / (runs.max(1) * size_of::<[Nonzero<K>; 3]>()) as u64;
        let room = usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(FRAME_NNZ);
        room.min(ROUND_NNZ / runs.max(1)).max(1)
    }
}
