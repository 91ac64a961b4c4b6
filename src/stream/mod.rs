//! The executor: moves the chunks of a store, in order, through worker threads to a backend. [`Executor::pass`]
//! is the main path of running; read it first.
//!
//! Each worker reads, verifies and decodes every W-th chunk into buffers that it owns; the thread that called
//! takes the chunks in order, hands each to the backend and returns free buffers. Back-pressure is the number
//! of buffers; memory is planned before the pass and nothing that grows with the data is allocated in it.
//! The executor knows bytes and order, neither tensors nor devices.

pub mod plan;

pub use plan::{Limits, Plan, plan};

use crate::error::{Error, Result};
use crate::store::{ChunkHeader, LoadTimes, Store};
use crate::sys::Sys;
use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Serialize;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// What the executor asks of a backend: memory for chunks, and ordered work on them.
pub trait Backend {
    /// A page-aligned buffer that workers fill.
    type Buffer: AsMut<[u8]> + Send;

    /// A buffer of at least `bytes`.
    fn buffer(&mut self, bytes: usize) -> Result<Self::Buffer>;

    /// Starts or does the work on the next chunk in order, and keeps its buffer until [`Backend::take_free`].
    fn submit(&mut self, chunk: Loaded<Self::Buffer>) -> Result<()>;

    /// A buffer whose work is done; with `wait`, waits for one if any is at work. `None` if there is none.
    fn take_free(&mut self, wait: bool) -> Result<Option<Free<Self::Buffer>>>;
}

/// A chunk as a worker hands it over.
#[derive(Debug)]
pub struct Loaded<B> {
    /// Its checked header.
    pub header: ChunkHeader,
    /// Holds the image in its first `header.image_bytes` bytes.
    pub buffer: B,
    /// The worker that the buffer belongs to.
    pub worker: usize,
}

/// A buffer on its way back to its worker.
#[derive(Debug)]
pub struct Free<B> {
    /// The buffer.
    pub buffer: B,
    /// Its worker.
    pub worker: usize,
}

/// What a pass did. Seconds of workers are sums over the workers.
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
    /// Nonzeros a second, wall-clock.
    pub nnz_per_second: f64,
    /// Workers: seconds of reading.
    pub read_seconds: f64,
    /// Workers: seconds of verifying checksums.
    pub verify_seconds: f64,
    /// Workers: seconds of undoing the codec.
    pub decode_seconds: f64,
    /// Workers: seconds of waiting for a free buffer.
    pub worker_stall_seconds: f64,
    /// Backend: seconds of submitting and computing.
    pub compute_seconds: f64,
    /// Backend: seconds of waiting for the next chunk.
    pub compute_stall_seconds: f64,
}

/// Both ends of the channels between the caller and one worker.
struct Line<'scope, B> {
    full: Receiver<Result<(Loaded<B>, LoadTimes, Duration)>>,
    empty: Sender<B>,
    /// Buffers that the backend holds.
    at_work: usize,
    thread: ScopedJoinHandle<'scope, Vec<B>>,
}

/// Streams a store to a backend, again and again, in the same buffers.
#[derive(Debug)]
pub struct Executor<'a, B: Backend> {
    store: &'a Store,
    plan: Plan,
    /// Free buffers of each worker between passes.
    buffers: Vec<Vec<B::Buffer>>,
}

impl<'a, B: Backend> Executor<'a, B> {
    /// Allocates the buffers of `plan`.
    pub fn new(store: &'a Store, plan: &Plan, backend: &mut B) -> Result<Self> {
        store.check_long_chunks()?;
        let mut worker =
            |_| (0..plan.buffers_per_worker).map(|_| backend.buffer(plan.buffer_bytes)).collect();
        let buffers = (0..plan.workers).map(&mut worker).collect::<Result<_>>()?;
        Ok(Self { store, plan: plan.clone(), buffers })
    }

    /// Streams every chunk once, in order, through `backend`. `progress` gets the nonzeros done so far.
    ///
    /// The first error in chunk order ends the pass; it returns when all threads are joined. After an error
    /// the executor has lost buffers and refuses further passes.
    pub fn pass(&mut self, backend: &mut B, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport> {
        let (sys, store, start) = (self.store.sys(), self.store, Instant::now());
        let buffers: Vec<_> = self.buffers.drain(..).collect();
        if buffers.len() != self.plan.workers {
            return Err(Error::request("an earlier pass failed; open the store again"));
        }
        let mut report = PassReport::default();
        self.buffers = std::thread::scope(|scope| {
            let mut lines = Vec::with_capacity(buffers.len());
            for (worker, buffers) in buffers.into_iter().enumerate() {
                lines.push(start_worker(sys, scope, store, &self.plan, worker, buffers)?);
            }
            for number in 0..store.manifest().chunks.len() {
                sys.check_cancelled()?;
                let worker = number % lines.len();
                while lines[worker].at_work == self.plan.buffers_per_worker {
                    give_back(&mut lines, backend.take_free(true)?);
                }
                let chunk = report.next_chunk(&lines[worker])?;
                let submitted = Instant::now();
                lines[worker].at_work += 1;
                backend.submit(chunk)?;
                while give_back(&mut lines, backend.take_free(false)?) {}
                report.compute_seconds += submitted.elapsed().as_secs_f64();
                progress(report.nnz);
            }
            while give_back(&mut lines, backend.take_free(true)?) {}
            report.finish(start.elapsed());
            Ok::<_, Error>(lines.into_iter().map(Line::collect).collect())
        })?;
        Ok(report)
    }
}

/// Starts the worker that loads chunks `worker`, `worker + W`, … and hands it its buffers.
fn start_worker<'scope, B: Send + AsMut<[u8]> + 'scope>(
    sys: &Sys,
    scope: &'scope Scope<'scope, '_>,
    store: &'scope Store,
    plan: &Plan,
    worker: usize,
    buffers: Vec<B>,
) -> Result<Line<'scope, B>> {
    let (full_sender, full) = bounded(plan.buffers_per_worker);
    let (empty, empty_receiver) = bounded(plan.buffers_per_worker);
    for buffer in buffers {
        // The channel has room for every buffer, and its receiver is right here.
        drop(empty.send(buffer));
    }
    let step = plan.workers;
    let mut scratch = store.scratch()?;
    let thread = sys.spawn(scope, format!("read-{worker}"), move || {
        for number in (worker..store.manifest().chunks.len()).step_by(step) {
            let start = Instant::now();
            // A closed channel means that the pass has ended early: nothing is left to do or to tell.
            let Ok(mut buffer) = empty_receiver.recv() else { return Vec::new() };
            let stall = start.elapsed();
            let loaded = store.load(number, buffer.as_mut(), &mut scratch);
            let failed = loaded.is_err();
            let message = loaded.map(|(header, times)| (Loaded { header, buffer, worker }, times, stall));
            if full_sender.send(message).is_err() || failed {
                return Vec::new();
            }
        }
        drop(full_sender);
        empty_receiver.into_iter().collect()
    })?;
    Ok(Line { full, empty, at_work: 0, thread })
}

impl<B> Line<'_, B> {
    /// The worker's buffers, once it has loaded its last chunk and the backend holds none.
    fn collect(self) -> Vec<B> {
        drop(self.empty);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Sends a free buffer back to its worker; false if there was none.
fn give_back<B>(lines: &mut [Line<B>], free: Option<Free<B>>) -> bool {
    free.is_some_and(|Free { buffer, worker }| {
        lines[worker].at_work -= 1;
        // The worker outlives the line's sender unless it has failed, and then the pass ends with its error.
        drop(lines[worker].empty.send(buffer));
        true
    })
}

impl PassReport {
    /// Waits for the next chunk of a line and books where the time went.
    fn next_chunk<B>(&mut self, line: &Line<B>) -> Result<Loaded<B>> {
        let start = Instant::now();
        let received = line.full.recv().map_err(|_| Error::Resource {
            action: "continue: a reading thread ended early",
            source: std::io::ErrorKind::BrokenPipe.into(),
        })?;
        let (chunk, times, stall) = received?;
        self.compute_stall_seconds += start.elapsed().as_secs_f64();
        self.read_seconds += times.read.as_secs_f64();
        self.verify_seconds += times.verify.as_secs_f64();
        self.decode_seconds += times.decode.as_secs_f64();
        self.worker_stall_seconds += stall.as_secs_f64();
        self.chunks += 1;
        self.nnz += u64::from(chunk.header.nnz);
        self.bytes += chunk.header.file_bytes();
        Ok(chunk)
    }

    fn finish(&mut self, wall: Duration) {
        self.seconds = wall.as_secs_f64();
        self.nnz_per_second = self.nnz as f64 / self.seconds.max(1e-9);
    }
}
