//! The executor: moves the chunks of a store, in order, through worker threads to a backend. [`Executor::pass`]
//! is the main path of running; read it first.
//!
//! Each worker reads, verifies and decodes every W-th chunk into buffers that it owns (`worker`); the thread that called
//! takes the chunks in order, hands each to the backend and returns free buffers. Back-pressure is the number
//! of buffers; memory is planned before the pass and nothing that grows with the data is allocated in it.
//! Chunks that the backend holds from an earlier pass are not brought again; chunks that the plan keeps in host
//! memory have a buffer of their own and are read from their files once, in the first pass.
//! The executor knows bytes and order, neither tensors nor devices.

pub mod pipeline;
pub mod plan;
mod report;
mod worker;

pub use pipeline::{Pipeline, StepSeconds};
pub use plan::{Limits, Plan, buffers_bytes, plan, program_bytes, too_little};
pub use report::{DevicePass, PassReport, Span, Stage};

use crate::error::{Error, Result};
use crate::store::{ChunkHeader, Store};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use worker::{Line, Worker};

/// Looks at a chunk's image in the worker that loaded it.
pub type Inspector = Arc<dyn Fn(&ChunkHeader, &[u8]) -> Result<()> + Send + Sync>;

/// What the executor asks of a backend: memory for chunks, and ordered work on them.
pub trait Backend {
    /// A page-aligned buffer that workers fill.
    type Buffer: AsMut<[u8]> + Send;

    /// A buffer of at least `bytes`.
    fn buffer(&mut self, bytes: usize) -> Result<Self::Buffer>;

    /// What workers do with each chunk that they have loaded, if anything.
    fn inspector(&self) -> Option<Inspector> {
        None
    }

    /// Whether the backend holds chunk `number`, so that a pass need not bring it.
    fn holds(&self, _number: usize) -> bool {
        false
    }

    /// A pass starts: work on what the backend holds can start with it.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Starts or does the work on the next chunk in order, and keeps its buffer until [`Backend::take_free`].
    fn submit(&mut self, chunk: LoadedChunk<Self::Buffer>) -> Result<()>;

    /// A buffer whose work is done; with `wait`, waits for one if any is at work. `None` if there is none.
    fn take_free(&mut self, wait: bool) -> Result<Option<Free<Self::Buffer>>>;

    /// All chunks have been submitted: returns when their work is done, with what a device has to tell. It adds
    /// what it did when to `spans`, in seconds since [`Backend::begin`].
    fn end(&mut self, _spans: &mut Vec<Span>) -> Result<Option<DevicePass>> {
        Ok(None)
    }
}

/// A chunk as a worker hands it over.
#[derive(Debug)]
pub struct LoadedChunk<B> {
    /// Its checked header.
    pub header: ChunkHeader,
    /// Holds the image in its first `header.image_bytes` bytes.
    pub buffer: B,
    /// Where the buffer belongs.
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

/// Where a buffer belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// To a worker, which fills it again and again.
    Worker(usize),
    /// To the chunk of that number, which is kept in it.
    Chunk(usize),
}

/// A buffer that keeps a chunk between passes.
#[derive(Debug)]
struct KeptChunk<B> {
    /// `None` until it was loaded.
    header: Option<ChunkHeader>,
    /// `None` while it is with a worker or the backend.
    buffer: Option<B>,
}

/// Streams a store to a backend, again and again, in the same buffers, which are of `B`.
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

    /// What went on when in the last pass.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Brings every chunk to `backend` once, in order. `progress` gets the nonzeros done so far.
    ///
    /// The first error in chunk order ends the pass; it returns when all threads are joined. After an error
    /// the executor has lost buffers and refuses further passes.
    pub fn pass(
        &mut self,
        backend: &mut impl Backend<Buffer = B>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PassReport> {
        // Another handle: what follows changes this.
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
        // No thread is started for nothing: that takes longer than a short pass over what is there already.
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

    /// Whether chunk `number` lies in its buffer already.
    fn is_loaded(&self, number: usize) -> bool {
        self.kept[number].as_ref().is_some_and(|kept| kept.header.is_some())
    }

    /// Deals chunks to workers in turn, with the buffers of those that are to be kept.
    fn part(&mut self, numbers: &VecDeque<usize>, workers: usize) -> Vec<Vec<(usize, Option<B>)>> {
        let mut parts: Vec<Vec<_>> = Vec::new();
        parts.resize_with(workers, Vec::new);
        for (i, &number) in numbers.iter().enumerate() {
            let buffer = self.kept[number].as_mut().and_then(|kept| kept.buffer.take());
            parts[i % workers].push((number, buffer));
        }
        parts
    }

    /// Notes what a kept chunk is, when its worker has loaded it.
    fn loaded(&mut self, number: usize, chunk: &LoadedChunk<B>) {
        if let (Owner::Chunk(_), Some(kept)) = (chunk.owner, &mut self.kept[number]) {
            kept.header = Some(chunk.header.clone());
        }
    }

    /// A chunk that is kept in its buffer.
    fn take_kept(&mut self, number: usize) -> LoadedChunk<B> {
        let kept = self.kept[number].as_mut().expect("only loaded chunks are not loaded");
        let header = kept.header.clone().expect("loaded in an earlier pass");
        let buffer = kept.buffer.take().expect("given back at the end of that pass");
        LoadedChunk { header, buffer, owner: Owner::Chunk(number) }
    }

    /// Whether the next chunk of a line may wait for buffers that the backend holds. A reader that goes on while a chunk is
    /// checked needs each as soon as its work is done.
    fn lacks_buffers(&self, line: &Line<B>) -> bool {
        line.full.is_empty() && (self.store.reads_directly() || line.at_work == self.plan.buffers_per_worker)
    }

    /// Takes a free buffer to its owner; false if there was none.
    fn give_back(&mut self, lines: &mut [Line<B>], free: Option<Free<B>>) -> bool {
        let Some(Free { buffer, owner }) = free else { return false };
        match owner {
            Owner::Worker(worker) => {
                lines[worker].at_work -= 1;
                // The worker outlives the line's sender unless it has failed, and then the pass ends with its error.
                drop(lines[worker].empty.send(buffer));
            }
            Owner::Chunk(number) => {
                self.kept[number].as_mut().expect("a kept chunk").buffer = Some(buffer);
            }
        }
        true
    }
}
