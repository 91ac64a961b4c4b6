//! What a pass did, and when.

use super::LoadedChunk;
use super::worker::{Line, Steps};
use crate::error::{Error, Result};
use crate::store::Store;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What a pass did. Workers' seconds are summed over workers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PassReport {
    /// Chunks.
    pub chunks: usize,
    /// Nonzeros.
    pub nnz: u64,
    /// Bytes read from files.
    pub bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Nonzeros per second of wall-clock time.
    pub nnz_per_second: f64,
    /// The share of workers' time spent reading: near 1 if the disk is the bottleneck.
    pub readers_busy: f64,
    /// Workers: seconds of reading.
    pub read_seconds: f64,
    /// Workers: seconds of verifying checksums and inspecting images.
    pub verify_seconds: f64,
    /// Workers: seconds of undoing the codec.
    pub decode_seconds: f64,
    /// Workers: seconds of waiting for a free buffer.
    pub worker_stall_seconds: f64,
    /// Backend: seconds of submitting and computing.
    pub compute_seconds: f64,
    /// Backend: seconds of waiting for the next chunk.
    pub compute_stall_seconds: f64,
    /// What the device did, if there is one.
    pub device: Option<DevicePass>,
}

/// What a device did in a pass. Seconds are by the device's clock.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DevicePass {
    /// Chunks copied to it.
    pub copied_chunks: usize,
    /// Bytes copied to it.
    pub copied_bytes: u64,
    /// Chunks that it held already.
    pub resident_chunks: usize,
    /// Seconds of building mode-sorted copies.
    pub build_seconds: f64,
    /// Seconds from the first thing that the device did for the pass to the last: clearing, copies, kernels, results.
    pub device_seconds: f64,
    /// Seconds in which at least one lane copied.
    pub copy_seconds: f64,
    /// Seconds in which at least one kernel ran.
    pub kernel_seconds: f64,
    /// Seconds in which both overlapped.
    pub overlap_seconds: f64,
    /// Bytes of results that were copied from it during the pass.
    pub returned_bytes: u64,
    /// Seconds of these copies.
    pub return_seconds: f64,
    /// Bytes moved, as a share of what the link can move in the pass's time.
    pub link_share: f64,
    /// Bytes of tiles and factor rows that the kernels request, as a share of what device memory can move in the
    /// kernels' time. More than 1 if caches serve them.
    pub memory_share: f64,
}

/// One activity in a pass, in seconds since its beginning.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Span {
    /// The kind of activity.
    pub stage: Stage,
    /// Which worker, lane or stream.
    pub lane: usize,
    /// The chunk or, numbered after the store's chunks, the image of sorted nonzeros. `None` for everything that the
    /// device, or the host in mode-sorted copies, already held.
    pub chunk: Option<usize>,
    /// When it began.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// The kinds of [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stage {
    /// A worker reads a file.
    Read,
    /// A worker verifies and decodes a chunk; where files are read directly, while it reads the next.
    Verify,
    /// The host's compute threads work on a chunk.
    Compute,
    /// A lane copies a chunk to the device.
    Copy,
    /// A kernel works on a chunk.
    Kernel,
    /// Results of a chunk are copied from the device.
    Return,
}

impl Span {
    /// The same span, `seconds` later.
    pub(super) fn shift(&mut self, seconds: f64) {
        self.start += seconds;
        self.end += seconds;
    }

    /// Adds what a worker did with a chunk.
    pub(super) fn add_worker(
        spans: &mut Vec<Self>,
        begin: Instant,
        lane: usize,
        chunk: usize,
        steps: &Steps,
    ) {
        let mut add = |stage, from: Instant, took: Duration| {
            let start = from.saturating_duration_since(begin).as_secs_f64();
            spans.push(Self { stage, lane, chunk: Some(chunk), start, end: start + took.as_secs_f64() });
        };
        add(Stage::Read, steps.read, steps.times.read);
        add(Stage::Verify, steps.verify, steps.times.verify + steps.times.decode);
    }
}

impl PassReport {
    /// Counts the chunks that the backend holds: all except `brought`.
    pub(super) fn add_held(&mut self, store: &Store, brought: &[usize]) {
        let chunks = &store.manifest().chunks;
        self.chunks = chunks.len();
        let all: u64 = chunks.iter().map(|c| c.nnz).sum();
        self.nnz = all - brought.iter().map(|&n| chunks[n].nnz).sum::<u64>();
    }

    /// Waits for the next chunk of a line and accounts for the time.
    pub(super) fn next_chunk<B>(&mut self, line: &Line<B>) -> Result<(LoadedChunk<B>, Steps)> {
        let start = Instant::now();
        let received = line.full.recv().map_err(|_| Error::Resource {
            action: "continue: a reading thread ended early",
            source: std::io::ErrorKind::BrokenPipe.into(),
        })?;
        let (chunk, steps) = received?;
        self.compute_stall_seconds += start.elapsed().as_secs_f64();
        self.read_seconds += steps.times.read.as_secs_f64();
        self.verify_seconds += steps.times.verify.as_secs_f64();
        self.decode_seconds += steps.times.decode.as_secs_f64();
        self.worker_stall_seconds += steps.stall.as_secs_f64();
        self.bytes += chunk.header.file_bytes();
        Ok((chunk, steps))
    }

    /// This pass's report and the next one's, combined. The device's part is that of the last.
    #[must_use]
    pub fn followed_by(&self, next: &Self) -> Self {
        let (seconds, nnz) = (self.seconds + next.seconds, self.nnz + next.nnz);
        let busy = self.readers_busy * self.seconds + next.readers_busy * next.seconds;
        Self {
            chunks: self.chunks + next.chunks,
            nnz,
            bytes: self.bytes + next.bytes,
            seconds,
            nnz_per_second: nnz as f64 / seconds.max(1e-9),
            readers_busy: busy / seconds.max(1e-9),
            read_seconds: self.read_seconds + next.read_seconds,
            verify_seconds: self.verify_seconds + next.verify_seconds,
            decode_seconds: self.decode_seconds + next.decode_seconds,
            worker_stall_seconds: self.worker_stall_seconds + next.worker_stall_seconds,
            compute_seconds: self.compute_seconds + next.compute_seconds,
            compute_stall_seconds: self.compute_stall_seconds + next.compute_stall_seconds,
            device: next.device.or(self.device),
        }
    }

    pub(super) fn finish(&mut self, wall: Duration, workers: usize) {
        self.seconds = wall.as_secs_f64();
        self.readers_busy = self.read_seconds / (self.seconds * workers as f64).max(1e-9);
        self.nnz_per_second = self.nnz as f64 / self.seconds.max(1e-9);
    }
}
