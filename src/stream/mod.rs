//! The executor: moves the chunks of a store, in order, through worker threads to a backend. [`Executor::pass`] is the
//! main path of running; read it first.
//!
//! Each worker reads, verifies and decodes every W-th chunk into its own buffers (`worker`). The calling thread takes
//! the chunks in order, submits each to the backend and returns free buffers. The number of buffers limits how far
//! workers run ahead. Memory is planned before the pass; nothing that grows with the data is allocated during it.
//! Chunks that the backend holds from an earlier pass are not loaded again. Chunks that the plan keeps in host memory
//! have their own buffers and are read from their files once, in the first pass. The executor handles bytes and order;
//! it knows neither tensors nor devices.

pub mod pipeline;
pub mod plan;
mod report;
mod worker;

pub use pipeline::{Pipeline, StepSeconds};
pub use plan::{Limits, Plan, buffers_bytes, default_workers, enough, plan, program_bytes, too_little};
pub use report::{DevicePass, PassReport, Span, Stage};

use crate::error::{Error, Result};
use crate::store::{ChunkHeader, Store};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use worker::{Line, Worker};

/// Inspects a chunk's image in the worker that loaded it.
pub type Inspector = Arc<dyn Fn(&ChunkHeader, &[u8]) -> Result<()> + Send + Sync>;

/// What the executor needs of a backend: memory for chunks, and ordered work on them.
pub trait Backend {
    /// A page-aligned buffer that workers fill.
    type Buffer: AsMut<[u8]> + Send;

    /// A buffer of at least `bytes`.
    fn buffer(&mut self, bytes: usize) -> Result<Self::Buffer>;

    /// Called by workers for each chunk that they have loaded.
    fn inspector(&self) -> Option<Inspector> {
        None
    }

    /// Whether the backend holds chunk `number`, so that a pass need not load it.
    fn holds(&self, _number: usize) -> bool {
        false
    }

    /// Called when a pass begins. The backend can start work on the chunks that it holds.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Starts or does the work on the next chunk in order. Keeps its buffer until [`Backend::take_free`].
    fn submit(&mut self, chunk: LoadedChunk<Self::Buffer>) -> Result<()>;

    /// A buffer whose work is done. With `wait`, waits for one if any is in use. `None` if there is none.
    fn take_free(&mut self, wait: bool) -> Result<Option<Free<Self::Buffer>>>;

    /// Called when all chunks have been submitted. Returns when their work is done, with a device's report.
    /// Adds its activity to `spans`, in seconds since [`Backend::begin`].
    fn end(&mut self, _spans: &mut Vec<Span>) -> Result<Option<DevicePass>> {
        Ok(None)
    }
}

/// A chunk handed over by a worker.
#[derive(Debug)]
pub struct LoadedChunk<B> {
    /// Its checked header.
    pub header: ChunkHeader,
    /// Holds the image in its first `header.image_bytes` bytes.
    pub buffer: B,
    /// The owner of the buffer.
    pub owner: Owner,
}

/// A buffer on its way back to its owner.
#[derive(Debug)]
pub struct Free<B> {
    /// The buffer.
    pub buffer: B,
    /// Its owner.
    pub owner: Owner,
}

/// The owner of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A worker, which fills it repeatedly.
    Worker(usize),
    /// The chunk with this number, which stays in it.
    Chunk(usize),
}

/// A buffer that keeps a chunk between passes.
#[derive(Debug)]
struct KeptChunk<B> {
    /// `None` until the chunk is loaded.
    header: Option<ChunkHeader>,
    /// `None` while it is with a worker or the backend.
    buffer: Option<B>,
}

/// Streams a store to a backend any number of times, through the same buffers of type `B`.
#[derive(Debug)]
pub struct Executor<B> {
    store: Store,
    plan: Plan,
    /// Free buffers of each worker between passes.
    buffers: Vec<Vec<B>>,
    /// By chunk number; `None` for chunks that are read in each pass.
    kept: Vec<Option<Box<KeptChunk<B>>>>,
    spans: Vec<Span>,
}

impl<B: AsMut<[u8]> + Send> Executor<B> {
    /// Allocates the buffers of `plan`.
    pub fn new(store: &Store, plan: &Plan, backend: &mut impl Backend<Buffer = B>) -> Result<Self> {
        store.check_long_chunks()?;
        let entries = &store.manifest().chunks;
        let mut kept: Vec<Option<Box<KeptChunk<_>>>> = Vec::new();
        kept.resize_with(entries.len(), || None);
        for &number in &plan.kept {
            let buffer = Some(backend.buffer(store.chunk_buffer_bytes(number))?);
            kept[number] = Some(Box::new(KeptChunk { header: None, buffer }));
        }
        let mut worker =
            |_| (0..plan.buffers_per_worker).map(|_| backend.buffer(plan.buffer_bytes)).collect();
        let buffers = (0..plan.workers).map(&mut worker).collect::<Result<_>>()?;
        Ok(Self { store: store.clone(), plan: plan.clone(), buffers, kept, spans: Vec::new() })
    }

    /// The activity of the last pass.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Loads every chunk once, in order, and submits it to `backend`. `progress` receives the nonzeros done
    /// so far.
    ///
    /// The first error in chunk order ends the pass. It returns only when all threads are joined. After an
    /// error the executor has lost buffers and refuses further passes.
    pub fn pass(
        &mut self,
        backend: &mut impl Backend<Buffer = B>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PassReport> {
        // Clone the store handle, because `self` is borrowed mutably below.
        let (store, start) = (&self.store.clone(), Instant::now());
        let sys = store.sys();
        sys.check_cancelled()?;
        let mut buffers: Vec<_> = self.buffers.drain(..).collect();
        if buffers.len() != self.plan.workers {
            return Err(Error::request("an earlier pass failed; prepare again"));
        }
        self.spans.clear();
        let mut report = PassReport::default();
        let numbers: Vec<usize> = (0..self.kept.len()).filter(|&n| !backend.holds(n)).collect();
        report.add_held(store, &numbers);
        let mut to_load: VecDeque<usize> = numbers.iter().copied().filter(|&n| !self.is_loaded(n)).collect();
        // Start no thread without chunks to load: that takes longer than a short pass over chunks that are
        // already in memory.
        let idle = buffers.split_off(buffers.len().min(to_load.len()));
        let parts = self.part(&to_load, buffers.len());
        self.buffers = crate::sys::sync::scope(|scope| {
            let mut lines = Vec::with_capacity(buffers.len());
            for (number, (buffers, chunks)) in buffers.into_iter().zip(parts).enumerate() {
                let worker = Worker { number, chunks, buffers, inspect: backend.inspector() };
                lines.push(worker::start(sys, scope, store, worker)?);
            }
            let begun = start.elapsed().as_secs_f64();
            backend.begin()?;
            let mut next_line = 0;
            for number in numbers {
                sys.check_cancelled()?;
                let chunk = if to_load.front() == Some(&number) {
                    to_load.pop_front();
                    let line = next_line;
                    next_line = (next_line + 1) % lines.len();
                    while self.lacks_buffers(&lines[line])
                        && self.give_back(&mut lines, backend.take_free(true)?)
                    {}
                    let (chunk, steps) = report.next_chunk(&lines[line])?;
                    Span::add_worker(&mut self.spans, start, line, number, &steps);
                    lines[line].at_work += usize::from(chunk.owner == Owner::Worker(line));
                    self.loaded(number, &chunk);
                    chunk
                } else {
                    self.take_kept(number)
                };
                report.nnz += u64::from(chunk.header.nnz);
                let submitted = Instant::now();
                backend.submit(chunk)?;
                while self.give_back(&mut lines, backend.take_free(false)?) {}
                report.compute_seconds += submitted.elapsed().as_secs_f64();
                progress(report.nnz);
            }
            while self.give_back(&mut lines, backend.take_free(true)?) {}
            let of_workers = self.spans.len();
            let ended = Instant::now();
            report.device = backend.end(&mut self.spans)?;
            if report.device.is_none() {
                report.compute_seconds += ended.elapsed().as_secs_f64();
            }
            self.spans[of_workers..].iter_mut().for_each(|span| span.shift(begun));
            report.finish(start.elapsed(), lines.len());
            Ok::<_, Error>(lines.into_iter().map(Line::collect).chain(idle).collect())
        })?;
        Ok(report)
    }

    /// Whether chunk `number` is already in its buffer.
    fn is_loaded(&self, number: usize) -> bool {
        self.kept[number].as_ref().is_some_and(|kept| kept.header.is_some())
    }

    /// Deals chunks to workers in turn. Kept chunks come with their buffers.
    fn part(&mut self, numbers: &VecDeque<usize>, workers: usize) -> Vec<Vec<(usize, Option<B>)>> {
        let mut parts: Vec<Vec<_>> = Vec::new();
        parts.resize_with(workers, Vec::new);
        for (i, &number) in numbers.iter().enumerate() {
            let buffer = self.kept[number].as_mut().and_then(|kept| kept.buffer.take());
            parts[i % workers].push((number, buffer));
        }
        parts
    }

    /// Records the header of a kept chunk that its worker has just loaded.
    fn loaded(&mut self, number: usize, chunk: &LoadedChunk<B>) {
        if let (Owner::Chunk(_), Some(kept)) = (chunk.owner, &mut self.kept[number]) {
            kept.header = Some(chunk.header.clone());
        }
    }

    /// Takes a loaded kept chunk with its buffer.
    fn take_kept(&mut self, number: usize) -> LoadedChunk<B> {
        let kept = self.kept[number].as_mut().expect("only loaded chunks are not loaded");
        let header = kept.header.clone().expect("loaded in an earlier pass");
        let buffer = kept.buffer.take().expect("given back at the end of that pass");
        LoadedChunk { header, buffer, owner: Owner::Chunk(number) }
    }

    /// Whether the next chunk of a line may be waiting for buffers that the backend holds. A reader that runs ahead of
    /// its checker needs each buffer as soon as its work is done.
    fn lacks_buffers(&self, line: &Line<B>) -> bool {
        line.full.is_empty() && (self.store.reads_directly() || line.at_work == self.plan.buffers_per_worker)
    }

    /// Returns a free buffer to its owner. Returns false if there was none.
    fn give_back(&mut self, lines: &mut [Line<B>], free: Option<Free<B>>) -> bool {
        let Some(Free { buffer, owner }) = free else { return false };
        match owner {
            Owner::Worker(worker) => {
                lines[worker].at_work -= 1;
                // The worker outlives the line's sender unless it has failed. Then the pass ends with its error.
                drop(lines[worker].empty.send(buffer));
            }
            Owner::Chunk(number) => {
                self.kept[number].as_mut().expect("a kept chunk").buffer = Some(buffer);
            }
        }
        true
    }
}
