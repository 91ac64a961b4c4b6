//! The packer's memory: how a budget in bytes becomes buffer sizes.
//!
//! Resident at once is at most
//!
//! ```text
//! program + threads + the larger of
//!     reading: reader + a run, sorted in place, or batches that are kept or wait to be staged
//!     writing: cutter + chunks that are built at once, with a codec each + what is ahead of each run and two rounds of merged nonzeros
//! ```
//!
//! * **program**, **threads**: code, stacks, what each thread scratches on and its allocator keeps;
//! * **reader**: the decoder's window, pieces of text, parsed batches: what the [`Source`] says, and is held to;
//! * **cutter**: nonzeros that are pending, tiles being encoded, row counters;
//! * **chunks**, **codec**: what the format takes to build each, and zstd to compress it.
//!
//! What memory allows decides how long runs are, how much is read ahead, how many threads work. What it takes at least
//! follows from the options and the source alone; less is refused before anything is read.

use super::PackOptions;
use super::spill::{FRAME_NNZ, STAGE_NNZ};
use crate::coo::Source;
use crate::error::{Error, Result};
use crate::format::PENDING_NNZ;
use crate::format::mmcsf::{Assign, Fibers};
use crate::linear::{Nonzero, Wide};
use bytesize::ByteSize;

/// No smaller budget can be kept: buffers take more than that.
pub const MEMORY_MIN: u64 = 64 << 20;
/// The program without any data.
const PROGRAM_BYTES: u64 = 8 << 20;
/// What a thread takes.
const THREAD_BYTES: u64 = 2 << 20;
/// Nonzeros that are pending, tiles being encoded, row counters.
const CUTTER_BYTES: u64 = 16 << 20;
/// An open chunk whose buffers leave nothing behind while they grow; and what those of any other leave, at most.
const OPEN_CHUNK_BYTES: u64 = 32 << 20;
/// The least for a run while the input is read.
const RUN_BYTES_MIN: u64 = 8 << 20;
/// The least for merging.
const MERGE_BYTES_MIN: u64 = 4 << 20;
/// A batch of the reader's, at most.
const BATCH_BYTES: u64 = 3 << 20;
/// A packed frame of a run, at most.
const FRAME_BYTES: u64 = (FRAME_NNZ * (size_of::<Nonzero<Wide>>() + 1)) as u64;

/// Nonzeros of a batch that is sorted again.
pub const BATCH_NNZ: usize = 1 << 16;

/// Nonzeros of a round of a merge: enough work for every thread.
const ROUND_NNZ: usize = 1 << 19;

/// Buffer sizes of one packing job.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes beside the program and its threads.
    room: u64,
    /// What the source takes.
    reader: u64,
    /// What the source would take, at most, if there were more memory.
    reader_most: u64,
    /// What cutter, open chunk, codec and chunks that wait take.
    writer: u64,
    /// Chunks that are built and written at once.
    chunks_at_once: usize,
    /// Nonzeros that are settled, and made tiles of, at once.
    group_nnz: usize,
}

/// What cutter, open chunk and codec take.
fn writer(options: &PackOptions) -> u64 {
    CUTTER_BYTES.saturating_add(chunk(options))
}

/// What an open chunk and the codec take. Buffers of a large chunk grow: what they leave behind may be an eighth again.
fn chunk(options: &PackOptions) -> u64 {
    let open_chunk = options.format.open_chunk_bytes(options.chunk_bytes);
    let left = (open_chunk.saturating_sub(OPEN_CHUNK_BYTES) / 8).min(OPEN_CHUNK_BYTES);
    open_chunk.saturating_add(left + options.codec.encoder_bytes(options.chunk_bytes))
}

/// The least memory in which `source` can be packed with `options` on `threads` threads.
#[must_use]
pub fn memory_least(source: &dyn Source, options: &PackOptions, threads: usize) -> u64 {
    let reading = source.memory(threads).least + RUN_BYTES_MIN;
    let writing = writer(options) + MERGE_BYTES_MIN;
    PROGRAM_BYTES + THREAD_BYTES * threads as u64 + reading.max(writing)
}

/// How many of `threads` threads the memory of `options` allows.
#[must_use]
pub fn threads_within(source: &dyn Source, options: &PackOptions, threads: usize) -> usize {
    let spare = options.memory.saturating_sub(memory_least(source, options, 1));
    let more = usize::try_from(spare / THREAD_BYTES).unwrap_or(usize::MAX);
    threads.min(more.saturating_add(1))
}

/// Bytes of memory that it takes to assign `nnz` nonzeros of `order` modes in memory.
pub fn assigning_bytes<K>(order: usize, nnz: u64) -> u64 {
    let each = size_of::<Nonzero<K>>() as u64 + 1;
    (order as u64).saturating_mul(Fibers::host_bytes(nnz)).saturating_add(nnz.saturating_mul(each))
}

/// What chunks may take that a repair looks at, within `memory`; nothing bounds it where that is less than
/// [`MEMORY_MIN`].
#[must_use]
pub fn scan_bytes(memory: u64) -> u64 {
    if memory < MEMORY_MIN { u64::MAX } else { memory - PROGRAM_BYTES - RUN_BYTES_MIN }
}

impl Budget {
    /// Of `room` bytes for everything that grows with it; the source takes `reader`, and writing `writer`, of them.
    pub fn new(room: u64, reader: u64, writer: u64) -> Self {
        Self { room, reader, reader_most: reader, writer, chunks_at_once: 1, group_nnz: PENDING_NNZ }
    }

    /// For packing `source` with `options` on the current rayon pool. Holds the source to its part. An error where the
    /// memory is too little, unless it is less than [`MEMORY_MIN`].
    pub fn of(source: &mut dyn Source, options: &PackOptions) -> Result<Self> {
        let threads = rayon::current_num_threads();
        let least = memory_least(source, options, threads);
        if (MEMORY_MIN..least).contains(&options.memory) {
            return Err(too_little(source, options, threads, least));
        }
        let fixed = PROGRAM_BYTES + THREAD_BYTES * threads as u64;
        let room = options.memory.saturating_sub(fixed).max(options.memory / 8);
        let takes = source.memory(threads);
        // An eighth of what is left keeps all threads busy where that matters.
        let reader = (takes.least + room.saturating_sub(takes.least) / 8).min(takes.most);
        source.limit(reader);
        // Chunks that are built at once may take as much.
        let chunks =
            usize::try_from(room / 8 / chunk(options).max(1)).unwrap_or(usize::MAX).clamp(1, threads);
        let waiting = (chunks as u64 - 1) * chunk(options);
        // Threads wait for one another at the end of a group, and longer groups make that rarer.
        let groups = usize::try_from(room / 8 / CUTTER_BYTES).unwrap_or(usize::MAX).min(threads / 4).max(1);
        let waiting = waiting + (groups as u64 - 1) * CUTTER_BYTES;
        let (chunks_at_once, group_nnz) = (chunks, groups * PENDING_NNZ);
        let reader_most = takes.most;
        Ok(Self {
            reader_most,
            chunks_at_once,
            group_nnz,
            ..Self::new(room, reader, writer(options) + waiting)
        })
    }

    /// For nonzeros that are sorted again while those that were sorted are read: each gets half.
    pub fn shared(&self) -> (Self, Self) {
        (self.half(), Self { reader: self.room / 2, ..*self })
    }

    /// What remains besides this many bytes.
    pub fn beside(&self, bytes: u64) -> Self {
        Self { room: self.room.saturating_sub(bytes), ..*self }
    }

    /// Half of it, for sorting or for reading what is sorted.
    pub fn half(&self) -> Self {
        Self::new(self.room / 2, 0, 0)
    }

    /// Bytes that assigning nonzeros by their fibers in memory may take: all but what reading takes.
    pub fn assigning(&self, assign: Assign) -> u64 {
        /// Less than half of the room beside any memory that is allowed: for tests, which are allowed less.
        const LEAST: u64 = 16 << 20;
        let least = if assign == Assign::Dynamic { LEAST } else { 0 };
        self.room.saturating_sub(self.reader).max(least)
    }

    /// What is left beside `nnz` nonzeros if they are in memory; otherwise for what is made of them while they are read.
    pub fn beside_sorted<K>(&self, in_memory: bool, nnz: u64) -> Self {
        if in_memory {
            self.beside(nnz.saturating_mul(size_of::<Nonzero<K>>() as u64))
        } else {
            self.shared().1
        }
    }

    /// Nonzeros of a piece that is sorted again: each is in memory a few times.
    pub fn piece_nnz<K>(&self) -> usize {
        let most = self.room / (8 * size_of::<Nonzero<K>>() as u64);
        let all = BATCH_NNZ * rayon::current_num_threads();
        usize::try_from(most).unwrap_or(usize::MAX).clamp(BATCH_NNZ, all)
    }

    /// How much more memory assigning nonzeros would need, where that takes `bytes`. (Of more memory an eighth goes to reading,
    /// until that has its most.)
    pub fn lacks(&self, bytes: u64) -> u64 {
        let lacks = bytes.saturating_add(self.reader).saturating_sub(self.room);
        lacks + lacks.div_ceil(7).min(self.reader_most.saturating_sub(self.reader))
    }

    /// Bytes of batches that may be kept while reading.
    fn reading(&self) -> u64 {
        self.room.saturating_sub(self.reader).max(self.room / 8)
    }

    /// Whether `nnz` nonzeros of `order` modes can be kept as batches and be sorted in memory in the end.
    pub fn keeps(&self, nnz: u64, order: usize) -> bool {
        let batches = nnz * (4 * order as u64 + 8);
        let sorted = nnz * size_of::<Nonzero<Wide>>() as u64;
        batches <= self.reading()
            && batches + sorted <= self.room / 4 * 3
            && sorted + self.writer <= self.room
    }

    /// Whether a store can be written while `nnz` nonzeros are in memory.
    pub fn writes_from_memory<K>(&self, nnz: usize) -> bool {
        nnz.saturating_mul(size_of::<Nonzero<K>>()) as u64 + self.writer <= self.room
    }

    /// Nonzeros of a run, at least the number in a staged frame.
    pub fn run_nnz<K>(&self) -> usize {
        let nnz = self.reading() / 4 * 3 / size_of::<Nonzero<K>>() as u64;
        usize::try_from(nnz).unwrap_or(usize::MAX).max(STAGE_NNZ)
    }

    /// Nonzeros of a staged file, whatever their key will be: a run can hold it. A multiple of what a frame holds.
    pub fn staged_nnz(&self) -> u64 {
        let nnz = self.room / 2 / size_of::<Nonzero<Wide>>() as u64;
        (nnz / STAGE_NNZ as u64).max(1) * STAGE_NNZ as u64
    }

    /// Nonzeros that wait to be staged.
    pub fn stage_nnz(&self, order: usize) -> u64 {
        self.reading() / 4 / (4 * order as u64 + 8)
    }

    /// Batches that are packed at once, before they are staged.
    pub fn batches_at_once(&self) -> usize {
        at_once(self.room / 8 / BATCH_BYTES)
    }

    /// Frames of a run that are packed at once, while as many are written.
    pub fn frames_at_once(&self) -> usize {
        at_once(self.room / 16 / (2 * FRAME_BYTES))
    }

    /// Bytes for what is ahead of runs, and for two rounds of it.
    fn merging(&self) -> u64 {
        self.room.saturating_sub(self.writer).max(self.room / 8)
    }

    /// Chunks that are built and written at once.
    pub fn chunks_at_once(&self) -> usize {
        self.chunks_at_once
    }

    /// Nonzeros that are settled, and made tiles of, at once.
    pub fn group_nnz(&self) -> usize {
        self.group_nnz
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

/// The number that fits into `room`, and at most four per thread of the current rayon pool.
fn at_once(room: u64) -> usize {
    usize::try_from(room).unwrap_or(usize::MAX).clamp(1, 4 * rayon::current_num_threads())
}

/// The error where `least` bytes are needed, with what would need less.
fn too_little(source: &dyn Source, options: &PackOptions, threads: usize, least: u64) -> Error {
    let takes = source.memory(threads);
    let (mut help, fixed) = (Vec::new(), PROGRAM_BYTES + THREAD_BYTES * threads as u64);
    if fixed + takes.least + RUN_BYTES_MIN > options.memory {
        help.push(takes.help);
    }
    if fixed + writer(options) + MERGE_BYTES_MIN > options.memory {
        let codec = options.codec.encoder_bytes(options.chunk_bytes);
        help.push("a smaller `chunk_bytes`");
        help.push(if codec > options.chunk_bytes + MERGE_BYTES_MIN { "a lower `zstd`" } else { "" });
    }
    help.push(if THREAD_BYTES * threads as u64 > MERGE_BYTES_MIN { "fewer `threads`" } else { "" });
    help.retain(|what| !what.is_empty());
    let help =
        if help.is_empty() { String::new() } else { format!("; less would do with {}", help.join(", or ")) };
    // Rounded up, so that what is said is enough.
    let least = ByteSize(least.next_multiple_of(1 << 20));
    Error::request(format!(
        "`memory` {} is too little: packing {} takes at least {least}{help}",
        ByteSize(options.memory),
        source.name()
    ))
}
