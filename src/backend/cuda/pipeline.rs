//! A pipeline of three steps over the chunks of a store: a chunk's image is copied to the device, kernels compute, what came out is
//! copied back (Li et al., TKDD 2019, section 6.2, steps 3.1 to 3.3).
//!
//! **Ordering.** Each step has a stream of its own, so that the results of chunk i leave while chunk i + 1 is computed and chunk
//! i + 2 comes. A **lane** is the buffers that a chunk goes through: its image and its results on the device, and its results on
//! the host. A lane is used again when its results have been handed to the operation, in the chunks' order. With one lane no step
//! overlaps another.
//!
//! **Checks.** A worker opens every image ([`ChunkView`]) before it is copied, and notes what the operation asks of it; numbers inside
//! columns are checked by the kernels, and the pass then ends with an error.

use super::driver::{Device, Download, Memory, Pinned, Stream, Upload};
use super::lanes::as_many;
use super::log::{PassLog, inspector, out_of_range, settle};
use super::plan::again;
use crate::backend::plan::{DevicePlan, LanesPlan, Shortfall};
use crate::error::Result;
use crate::format::{ChunkView, Decoder};
use crate::store::{ChunkHeader, Store};
use crate::stream::{Backend, DevicePass, Free, Inspector, LoadedChunk, Owner, Span, Stage};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What an operation notes of a chunk, on the worker that has loaded it.
pub type Noter<N> = Arc<dyn Fn(&ChunkView<'_>) -> Result<N> + Send + Sync>;

/// A chunk on its way through the pipeline.
#[derive(Debug)]
pub struct PipelineChunk<'a, N> {
    /// Its header.
    pub header: &'a ChunkHeader,
    /// What a worker noted of it.
    pub note: &'a N,
}

/// What a pipeline asks of an operation.
pub trait PipelineOp {
    /// What it notes of a chunk.
    type Note: Clone + Send + 'static;

    /// What workers do with a chunk.
    fn noter(&self) -> Noter<Self::Note>;

    /// A pass begins; nothing is under way.
    fn begin(&mut self) -> Result<()>;

    /// Starts the work on the next chunk, whose image lies at `image`, behind that on the chunks before. Gives the bytes that
    /// will come out, to `results`.
    fn launch(
        &mut self,
        stream: &Stream,
        chunk: &PipelineChunk<'_, Self::Note>,
        image: u64,
        results: u64,
    ) -> Result<usize>;

    /// Whether [`PipelineOp::take`] gets views of the images in this pass, whose buffers are then held until results have come.
    fn takes_views(&self) -> bool;

    /// Takes what came out of the next chunk in order.
    fn take(
        &mut self,
        chunk: &PipelineChunk<'_, Self::Note>,
        view: Option<&ChunkView<'_>>,
        results: &[u8],
    ) -> Result<()>;

    /// The smallest number of a chunk in which a number was out of range. All work is done when this is asked.
    fn damaged_chunk(&self) -> Result<Option<u32>>;
}

/// The buffers that a chunk goes through.
#[derive(Debug)]
struct PipelineLane {
    image: Memory,
    results: Memory,
    /// Where results come to on the host; `None` while they do.
    arrived: Option<Pinned>,
}

/// A chunk whose results have not been handed over.
struct Passing<N> {
    header: ChunkHeader,
    note: N,
    lane: usize,
    /// The image on the host, until its buffer is given back.
    image: Option<(Upload, Owner)>,
    results: Download,
    result_bytes: usize,
}

/// What workers have noted, by chunk.
type Notes<N> = Arc<Mutex<Vec<Option<N>>>>;

/// Runs an operation on a GPU whose results leave as they come.
pub struct PipelineBackend<O: PipelineOp> {
    // Dropped first: copies wait for the streams below.
    passing: VecDeque<Passing<O::Note>>,
    freed: VecDeque<Free<Pinned>>,
    device: Arc<Device>,
    store: Store,
    decoder: Arc<Decoder>,
    op: O,
    inward: Stream,
    compute: Stream,
    outward: Stream,
    lanes: Vec<PipelineLane>,
    next_lane: usize,
    notes_of_chunks: Notes<O::Note>,
    log: PassLog,
    plan: DevicePlan,
    notes: Vec<String>,
}

/// Where a pass has failed, work can be under way: it ends before the memory that it uses goes.
impl<O: PipelineOp> Drop for PipelineBackend<O> {
    fn drop(&mut self) {
        settle([&self.inward, &self.compute, &self.outward]);
    }
}

impl<O: PipelineOp> PipelineBackend<O> {
    /// Allocates what `plan` says; where the device or the host has less than it said, fewer lanes, and a note.
    pub fn new(device: &Arc<Device>, store: &Store, plan: &DevicePlan, op: O) -> Result<Self> {
        let (manifest, sys) = (store.manifest(), store.sys());
        let (mut plan, mut notes) = (plan.clone(), Vec::new());
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let LanesPlan { count, image_bytes, result_bytes, .. } = plan.lanes;
        let lanes = as_many(count, &mut notes, || {
            let image = device.memory(bytes(image_bytes))?;
            let results = device.zeros(bytes(result_bytes))?;
            let arrived = Some(device.pinned(sys, bytes(result_bytes))?);
            Ok(PipelineLane { image, results, arrived })
        })?;
        if lanes.len() < count {
            plan = again(store, &plan, Shortfall::Lanes(lanes.len()))?;
        }
        let chunks = manifest.chunks.len();
        Ok(Self {
            passing: VecDeque::with_capacity(lanes.len()),
            freed: VecDeque::with_capacity(lanes.len()),
            device: Arc::clone(device),
            store: store.clone(),
            decoder: Arc::new(Decoder::new(&manifest.shape, manifest.format())),
            op,
            inward: device.stream(true)?,
            compute: device.stream(true)?,
            outward: device.stream(true)?,
            lanes,
            next_lane: 0,
            notes_of_chunks: Arc::new(Mutex::new(sys.vec(None, chunks)?)),
            log: PassLog::new(device, 3 * chunks)?,
            plan,
            notes,
        })
    }

    /// The operation.
    pub fn op(&mut self) -> &mut O {
        &mut self.op
    }

    /// What was allocated.
    #[must_use]
    pub fn plan(&self) -> &DevicePlan {
        &self.plan
    }

    /// Where there was less memory than the plan said.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Hands the results of the first chunk over, when they have come; then its lane is free, and its image's buffer.
    fn hand_over(&mut self) -> Result<()> {
        let Some(mut first) = self.passing.pop_front() else { return Ok(()) };
        let arrived = first.results.finish()?;
        let image = first.image.take().map(|(upload, owner)| upload.finish().map(|buffer| (buffer, owner)));
        let image = image.transpose()?;
        let view = match &image {
            Some((buffer, _)) if self.op.takes_views() => {
                let image = &buffer.as_ref()[..first.header.image_bytes as usize];
                let path = self.store.chunk_path(first.header.number as usize);
                Some(ChunkView::open(&self.decoder, &first.header, image, path)?)
            }
            _ => None,
        };
        let chunk = PipelineChunk { header: &first.header, note: &first.note };
        self.op.take(&chunk, view.as_ref(), &arrived.as_ref()[..first.result_bytes])?;
        drop(view);
        self.freed.extend(image.map(|(buffer, owner)| Free { buffer, owner }));
        self.lanes[first.lane].arrived = Some(arrived);
        Ok(())
    }

    /// Hands over what has come.
    fn hand_over_what_is_done(&mut self) -> Result<()> {
        while let Some(first) = self.passing.front() {
            if !first.results.is_done()? {
                break;
            }
            self.hand_over()?;
        }
        Ok(())
    }

    /// The buffer of the first image that is still held, once it has been copied.
    fn copied(&mut self, wait: bool) -> Result<Option<Free<Pinned>>> {
        let Some(held) = self.passing.iter_mut().find(|chunk| chunk.image.is_some()) else { return Ok(None) };
        if let Some((upload, _)) = &held.image
            && !wait
            && !upload.is_done()?
        {
            return Ok(None);
        }
        let Some((upload, owner)) = held.image.take() else { return Ok(None) };
        Ok(Some(Free { buffer: upload.finish()?, owner }))
    }
}

impl<O: PipelineOp> Backend for PipelineBackend<O> {
    type Buffer = Pinned;

    fn buffer(&mut self, bytes: usize) -> Result<Pinned> {
        self.device.pinned(self.store.sys(), bytes)
    }

    fn inspector(&self) -> Option<Inspector> {
        let (noter, notes) = (self.op.noter(), Arc::clone(&self.notes_of_chunks));
        Some(inspector(&self.store, move |header, view| {
            let note = noter(view)?;
            notes.lock().unwrap_or_else(PoisonError::into_inner)[header.number as usize] = Some(note);
            Ok(())
        }))
    }

    fn begin(&mut self) -> Result<()> {
        self.log.begin();
        self.next_lane = 0;
        self.op.begin()?;
        self.log.clock.begin(&self.inward)?;
        self.compute.wait(&self.log.clock.base)?;
        self.outward.wait(&self.log.clock.base)
    }

    fn submit(&mut self, chunk: LoadedChunk<Pinned>) -> Result<()> {
        let LoadedChunk { header, buffer, owner } = chunk;
        let number = header.number as usize;
        let note = self.notes_of_chunks.lock().unwrap_or_else(PoisonError::into_inner)[number].clone();
        let note = note.expect("a worker has looked at each chunk that it has loaded");
        while self.passing.len() >= self.lanes.len() {
            self.hand_over()?;
        }
        let at = self.next_lane;
        self.next_lane = (at + 1) % self.lanes.len();
        let lane = &mut self.lanes[at];
        let image_bytes = header.image_bytes as usize;
        let (start, copied) = self.log.clock.pair(Stage::Copy, at, Some(number));
        start.record(&self.inward)?;
        let upload = self.inward.upload(buffer, image_bytes, &lane.image, 0, &copied)?;
        self.compute.wait(&copied)?;
        let (op, compute) = (&mut self.op, &self.compute);
        let chunk = PipelineChunk { header: &header, note: &note };
        let (image, results) = (lane.image.address(), lane.results.address());
        let mut result_bytes = 0;
        let computed = self.log.clock.time(Stage::Kernel, 0, Some(number), compute, || {
            result_bytes = op.launch(compute, &chunk, image, results)?;
            Ok(())
        })?;
        self.outward.wait(&computed)?;
        let (start, returned) = self.log.clock.pair(Stage::Return, at, Some(number));
        start.record(&self.outward)?;
        let arrived = lane.arrived.take().expect("a lane's results have been handed over");
        let results = self.outward.download(&lane.results, result_bytes, arrived, &returned)?;
        let image = Some((upload, owner));
        self.passing.push_back(Passing { header, note, lane: at, image, results, result_bytes });
        self.log.copied(image_bytes);
        self.log.pass.returned_bytes += result_bytes as u64;
        Ok(())
    }

    fn take_free(&mut self, wait: bool) -> Result<Option<Free<Pinned>>> {
        self.hand_over_what_is_done()?;
        if let Some(free) = self.freed.pop_front() {
            return Ok(Some(free));
        }
        if !self.op.takes_views() {
            return self.copied(wait);
        }
        if wait {
            self.hand_over()?;
        }
        Ok(self.freed.pop_front())
    }

    fn end(&mut self, spans: &mut Vec<Span>) -> Result<Option<DevicePass>> {
        while !self.passing.is_empty() {
            self.hand_over()?;
        }
        if let Some(number) = self.op.damaged_chunk()? {
            return Err(out_of_range(&self.store, number));
        }
        let (first, log) = (spans.len(), &mut self.log);
        log.clock.read(spans, &mut log.pass)?;
        log.pass.device_seconds = spans[first..].iter().map(|span| span.end).fold(0.0, f64::max);
        let moved = (log.pass.copied_bytes + log.pass.returned_bytes) as f64;
        Ok(Some(log.end(&self.plan.device, self.plan.link_bytes_per_second, moved)))
    }
}
