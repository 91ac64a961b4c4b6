//! The CUDA backend: copies chunk images to the device on several lanes and launches an operation's kernels on
//! them in chunk order (Nguyen et al., ICS 2022, section 4.2; lanes are the paper's device queues).
//!
//! **Ordering.** A lane is a device buffer and a stream for what follows a copy into it; all copies to the device go one behind the other, on
//! one stream ([`lanes`]). An operation computes independent parts (for MTTKRP, a
//! part for each mode). Parts that read the store's order share a launch for each chunk, which decodes it while caches hold it;
//! a part with an order of its own has a launch and a stream of its own. A copy waits until the kernel has used
//! what the lane's buffer held before; the kernel waits for the copy. Chunks are launched in order on two streams in turn: a chunk's thread
//! blocks begin where the last ones of the chunk before leave room. Nothing waits for the whole device inside a pass.
//!
//! **Residency.** The plan's first chunks are copied into memory of their own in the first pass and stay. Later
//! passes launch one kernel over all of them (of each cover and layout), on a stream of low priority, so that it fills the gaps between
//! the kernels of streamed chunks.
//!
//! **Copies.** If all chunks stay and the plan says so, the second pass begins with building mode-sorted copies
//! ([`mode_sorted`]), which serve their parts from then on. If chunks do not stay, copies can be kept in host memory
//! and streamed instead (`host_copies`). If results must be deterministic, the first pass only loads the chunks; it
//! ends with building copies and working on them. If nonzeros share fibers, sums of these are computed once in a pass for several parts
//! ([`mode_sorted::FiberKernels`]). If the plan turns out to be wrong, a new one is made
//! ([`plan::again`]).
//!
//! **Trees and segments** are read as they lie if the plan says so ([`Reads`](crate::backend::plan::Reads)).
//!
//! **Coordinates, and other trees and segments,** are copied into a second buffer of a lane, as soon as the chunk before is converted. A kernel on the lane's stream, which waits for the copy and until the lane's buffer is free, converts them
//! to `tiled` images ([`expand`]).
//!
//! **Covers.** A part works on the chunks of the cover that serves its mode ([`ModePlan::chunks`](crate::backend::plan::ModePlan)); what
//! no part of a pass needs is not brought.
//!
//! **Results** stay on the device until the pass ends, or leave it chunk by chunk (`results`).
//!
//! **Checks.** A worker opens every image ([`ChunkView::open_for_device`]) before it is copied: sections, tile records and
//! BLCO blocks hold, no fiber is padding alone. Numbers inside columns are checked by the kernels, which put them inside the dims and
//! note the chunk; the pass then ends with an error.

pub mod abi;
mod cache;
mod clock;
mod copies;
pub mod dense;
mod device_op;
pub mod devices;
pub mod driver;
pub mod expand;
pub mod fault;
mod host_copies;
pub mod kernels;
mod lanes;
mod log;
pub mod mode_sorted;
pub mod nvrtc;
pub mod plan;
mod resident;
mod results;
pub mod ttm;
pub mod ttv;

use super::Squares;
use crate::backend::plan::{DevicePlan, Reads, Shortfall};
use crate::error::Result;
use crate::store::{ChunkEntry, Store};
use crate::stream::{Backend, DevicePass, Free, Inspector, LoadedChunk, Owner, Span, Stage};
use abi::Chunk;
use copies::{Fibers, PartCopy};
use driver::{Device, Event, Memory, Pinned, Priority, Stream, Upload};
use expand::{Expander, Work, blocks_there, layout_there, resident_bytes};
use host_copies::{Gathering, HostCopy, image_blocks, make_gathering};
use kernels::KernelLayout;
use lanes::{CopyLanes, LaunchTurns};
use log::{PassLog, inspector, out_of_range};
use mode_sorted::SortKernels;
use resident::{Resident, ResidentList, make_resident};
use results::Results;
use std::collections::VecDeque;
use std::sync::Arc;

pub use device_op::{DeviceOp, Launch, Look, Nonzeros};
pub use plan::plan;

/// The streams of a part, and its copy. Parts that share a launch on resident chunks use the stream of the first such part for it.
#[derive(Debug)]
struct Part {
    /// The stream on which results are cleared and completed.
    streamed: Stream,
    resident: Stream,
    cleared: Event,
    /// Marks the end of the launch on resident chunks.
    resident_done: Option<Arc<Event>>,
    /// Marks the end of the part's work in a pass.
    ended: Event,
    /// The copy sorted by row of the part's mode, once it is built.
    sorted: Option<PartCopy>,
    /// A copy in host memory.
    kept: Option<HostCopy>,
}

/// Runs an operation on a GPU.
#[derive(Debug)]
pub struct CudaBackend<O> {
    // Dropped first: copies wait for the streams below.
    results: Results,
    uploads: VecDeque<(Upload, Owner)>,
    /// Images in host memory that are being copied, with their part and number.
    lent: VecDeque<(Upload, usize, usize)>,
    device: Arc<Device>,
    store: Store,
    op: O,
    lanes: CopyLanes,
    parts: Vec<Part>,
    turns: LaunchTurns,
    /// The parts that read the store's order in this pass.
    sharing: Vec<usize>,
    resident: Option<Resident>,
    log: PassLog,
    /// Bytes of all images, counted once per part that reads them.
    image_bytes: u64,
    sort_kernels: Option<SortKernels>,
    /// Fibers whose sums serve some parts.
    fibers: Option<Fibers>,
    /// Set in the first pass if copies will be kept in host memory.
    gathering: Option<Gathering>,
    expander: Option<Expander>,
    /// The check that the next pass makes.
    squares: Option<Squares>,
    plan: DevicePlan,
    notes: Vec<String>,
}

/// After a failed pass, work may still be running. It ends before the memory that it uses is freed.
impl<O> Drop for CudaBackend<O> {
    fn drop(&mut self) {
        let of_parts = self.parts.iter().flat_map(|part| [&part.streamed, &part.resident]);
        for stream in of_parts.chain(&self.turns.streams).chain(self.lanes.streams()) {
            // After an error of the device, no work is running.
            let _ = stream.synchronize();
        }
    }
}

impl<O: DeviceOp> CudaBackend<O> {
    /// Allocates the resources of `plan`. If the device has less memory than the plan says, allocates fewer lanes and resident chunks, and
    /// adds a note.
    pub fn new(device: &Arc<Device>, store: &Store, plan: &DevicePlan, op: O) -> Result<Self> {
        let (mut plan, mut notes) = (plan.clone(), Vec::new());
        let reads = plan.request.operation.reads;
        assert_eq!(op.as_they_lie(), reads == Reads::AsTheyLie, "kernels read what the plan says");
        let part = |_| {
            let (streamed, resident) = (device.stream(Priority::Highest)?, device.stream(Priority::Lowest)?);
            Ok(Part {
                streamed,
                resident,
                cleared: device.event(false)?,
                resident_done: None,
                ended: device.event(true)?,
                sorted: None,
                kept: None,
            })
        };
        let parts = (0..op.parts()).map(part).collect::<Result<Vec<_>>>()?;
        let mut lanes = CopyLanes::new(device, store.sys(), &plan.lanes, &mut notes)?;
        // If there is no memory for it, chunks stay on the device instead.
        let gathering = make_gathering(device, store, &mut plan, &mut notes)?;
        let (tiles, in_order) = (|layout| op.tiles_per_block(layout), op.in_order());
        let mut resident = make_resident(device, store, &mut plan, &tiles, &mut notes)?;
        if lanes.all.iter().any(|lane| lane.memory.is_none()) && plan.lanes.image_bytes > 0 {
            // Not all chunks fit after all: lanes come first, and chunks get the rest.
            drop((lanes, resident));
            lanes = CopyLanes::new(device, store.sys(), &plan.lanes, &mut notes)?;
            resident = make_resident(device, store, &mut plan, &tiles, &mut notes)?;
        }
        let count = lanes.all.len();
        if count < plan.lanes.count {
            plan = plan::again(store, &plan, Shortfall::Lanes(count))?;
        }
        let chunks = &store.manifest().chunks;
        let of_part = |chunks: &[ChunkEntry]| chunks.iter().map(|chunk| chunk.image_bytes).sum::<u64>();
        let image_bytes = (0..parts.len()).map(|p| of_part(&chunks[plan.chunks_of(p)])).sum();
        let mut made = Self {
            results: Results::new(store),
            uploads: VecDeque::with_capacity(count),
            lent: VecDeque::new(),
            device: Arc::clone(device),
            store: store.clone(),
            op,
            lanes,
            parts,
            turns: LaunchTurns::new(device, plan.lanes.result_bytes > 0 || in_order)?,
            sharing: Vec::new(),
            resident,
            log: PassLog::new(device)?,
            image_bytes,
            sort_kernels: None,
            fibers: None,
            gathering,
            expander: Expander::new(device, store, reads)?,
            squares: None,
            plan,
            notes,
        };
        made.log.clock.reserve(device, made.pairs())?;
        Ok(made)
    }

    /// Changes the operation, whose parts stay the same. Chunks on the device and copies are reused.
    pub fn remake(&mut self, change: impl FnOnce(&mut O) -> Result<()>) -> Result<()> {
        change(&mut self.op)?;
        if let Some(resident) = &mut self.resident {
            let tiles = |layout| self.op.tiles_per_block(layout);
            resident.set_tiles_per_block(&self.device, &self.store, &tiles)?;
        }
        if let Some(fibers) = &self.fibers {
            fibers.lend(&mut self.op)?;
        }
        for (p, part) in self.parts.iter().enumerate() {
            if let Some(copy) = &part.sorted {
                self.op.sort(p, copy.blocks, copy.copy.stretch.as_ref(), copy.along_fibers)?;
            } else if part.kept.is_some() {
                self.op.sort(p, image_blocks(&self.plan), None, false)?;
            }
        }
        Ok(())
    }

    /// Makes the next pass, which loads every chunk from its file, check the store's sum of squares.
    #[must_use]
    pub fn with_squares(mut self, squares: Squares) -> Self {
        self.squares = Some(squares);
        self
    }

    /// Whether an earlier pass, or this one, has loaded the resident chunks.
    fn is_there(&self) -> bool {
        self.resident.as_ref().is_some_and(|r| r.there)
    }

    /// Clears results, and starts the work on resident chunks.
    fn begin_parts(&mut self) -> Result<()> {
        let takes_fibers = self.op.can_take_fibers();
        for (p, part) in self.parts.iter_mut().enumerate() {
            part.resident_done = None;
            if !self.op.is_active(p) {
                continue;
            }
            // All timed work starts after the pass's zero.
            part.streamed.wait(&self.log.clock.base)?;
            let copy = part.sorted.as_ref().filter(|copy| copy.serves(takes_fibers));
            self.op.begin(p, copy.map(|copy| &copy.copy.empty), &part.streamed)?;
            part.cleared.record(&part.streamed)?;
        }
        let shares =
            |&p: &usize| self.op.is_active(p) && self.copy_of(p).is_none() && self.parts[p].kept.is_none();
        self.sharing = (0..self.parts.len()).filter(shares).collect();
        for stream in &self.turns.streams {
            for &p in &self.sharing {
                stream.wait(&self.parts[p].cleared)?;
            }
        }
        self.begin_resident()?;
        self.begin_kept()
    }

    /// Starts the work on resident chunks: one launch for each layout for all parts that read a cover in the store's order, and one for each
    /// other part.
    fn begin_resident(&mut self) -> Result<()> {
        let Some(resident) = self.resident.as_ref().filter(|r| r.there) else { return Ok(()) };
        self.log.pass.resident_chunks = resident.offsets.len();
        let work = |list: &Memory, images, blocks, (layout, nonzeros)| Launch {
            blocks,
            chunks: (list.address(), images),
            one: Chunk::default(),
            layout,
            nonzeros,
            results: 0,
        };
        let mut launches = Vec::with_capacity(self.parts.len());
        for ResidentList { chunks, layout, list, images, blocks } in &resident.lists {
            let parts = self.sharing.iter().copied().filter(|&p| self.plan.chunks_of(p) == *chunks);
            let parts: Vec<usize> = parts.collect();
            if !parts.is_empty() && *images > 0 {
                launches.push((parts, work(list, *images, *blocks, (*layout, Nonzeros::InStoreOrder))));
            }
        }
        let sorted_tiles = (KernelLayout::Tiled, Nonzeros::Sorted);
        let sorted = |copy: &PartCopy| work(&copy.list, copy.images, copy.blocks, sorted_tiles);
        launches.extend(
            active(&self.op, &self.parts).filter_map(|(p, _)| Some((vec![p], sorted(self.copy_of(p)?)))),
        );
        let along = |&p: &usize| self.copy_of(p).is_some_and(|copy| copy.along_fibers);
        let along: Vec<usize> = launches.iter().map(|(parts, _)| parts[0]).filter(along).collect();
        if let (&[p, ..], Some(fibers), true) = (&along[..], &self.fibers, self.op.needs_fiber_sums()) {
            let (stream, work, op) = (&self.parts[p].resident, sorted(&fibers.nonzeros), &mut self.op);
            stream.wait(&self.log.clock.base)?;
            let launch = || op.launch_fibers(stream, &work);
            let done = self.log.clock.time(Stage::Kernel, p, None, stream, launch)?;
            for &p in &along[1..] {
                self.parts[p].resident.wait(&done)?;
            }
        }
        for (parts, work) in launches {
            let stream = &self.parts[parts[0]].resident;
            for &p in &parts {
                stream.wait(&self.parts[p].cleared)?;
            }
            let op = &mut self.op;
            let launch = || op.launch(&parts, stream, &work).map(drop);
            let done = self.log.clock.time(Stage::Kernel, parts[0], None, stream, launch)?;
            // Streamed chunks do not wait for this; only the ends of the parts do.
            for p in parts {
                self.parts[p].resident_done = Some(Arc::clone(&done));
            }
        }
        Ok(())
    }

    /// The operation.
    pub fn op(&mut self) -> &mut O {
        &mut self.op
    }

    /// The plan with what was actually allocated.
    #[must_use]
    pub fn plan(&self) -> &DevicePlan {
        &self.plan
    }

    /// Where the device had less memory than planned.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The parts that this pass computes, with their numbers.
fn active<'p, O: DeviceOp>(op: &'p O, parts: &'p [Part]) -> impl Iterator<Item = (usize, &'p Part)> {
    parts.iter().enumerate().filter(|(p, _)| op.is_active(*p))
}

impl<O: DeviceOp> Backend for CudaBackend<O> {
    type Buffer = Pinned;

    fn buffer(&mut self, bytes: usize) -> Result<Pinned> {
        self.device.pinned(self.store.sys(), bytes)
    }

    fn inspector(&self) -> Option<Inspector> {
        let (manifest, squares) = (self.store.manifest(), self.squares.clone());
        // The range of the values determines the encoding in copies.
        let sorts = self.plan.copies().next().is_some();
        let range = sorts.then_some((manifest.value_min, manifest.value_max));
        let (directory, look) = (self.store.path().to_path_buf(), self.op.look());
        // Each nonzero is squared once, on one device.
        let own = self.plan.share().map(|share| share.chunks.clone());
        let (store, squared) = (self.store.clone(), own.unwrap_or_else(|| self.plan.chunks_of(0)));
        Some(inspector(&self.store, move |header, view| {
            look.as_ref().map_or(Ok(()), |look| look(header, view))?;
            if range.is_some_and(|(low, high)| !view.stored_values_within(low, high)) {
                return Err(mode_sorted::beyond_the_range(&directory));
            }
            let squares =
                squares.as_ref().filter(|_| squared.contains(&store.number_in_view(header.number as usize)));
            squares.map_or(Ok(()), |squares| squares.add(view))
        }))
    }

    fn holds(&self, number: usize) -> bool {
        if !self.op.needs(number) {
            return true;
        }
        if let Some(resident) = self.resident.as_ref().filter(|r| number < r.offsets.len()) {
            return resident.there;
        }
        let serves = |p: usize| self.plan.chunks_of(p).contains(&number);
        active(&self.op, &self.parts).all(|(p, part)| part.kept.is_some() || !serves(p))
    }

    fn begin(&mut self) -> Result<()> {
        self.log.begin();
        if self.resident.is_none() {
            // No chunk was resident until the pass before gave up copies in host memory.
            let (plan, tiles) = (&mut self.plan, |layout| self.op.tiles_per_block(layout));
            self.resident = make_resident(&self.device, &self.store, plan, &tiles, &mut self.notes)?;
        }
        if self.is_there() {
            self.build_copies()?;
        }
        if let Some(expander) = &mut self.expander {
            expander.begin()?;
        }
        self.log.clock.reserve(&self.device, self.pairs())?;
        self.log.clock.begin(&self.lanes.copies)?;
        self.lanes.begin(&self.log.clock.base)?;
        self.sharing.clear();
        if self.plan.loads_first() && !self.is_there() { Ok(()) } else { self.begin_parts() }
    }

    fn submit(&mut self, chunk: LoadedChunk<Pinned>) -> Result<()> {
        let LoadedChunk { mut header, buffer, owner } = chunk;
        // From here on, this is the number in the view, which counts from 0.
        let number = self.store.number_in_view(header.number as usize);
        header.number = u32::try_from(number).unwrap_or(u32::MAX);
        if self.gathering.as_ref().is_some_and(|g| g.is_full(number)) {
            self.sort_group()?;
        }
        while self.results.len() >= self.lanes.all.len() {
            self.hand_over()?;
        }
        let reads = self.plan.request.operation.reads;
        let (work, layout) =
            (expand::work(&self.store, number, reads), layout_there(&self.store, number, reads));
        let staged = work == Work::Expand;
        let (at, copied) = self.lanes.start(&mut self.log.clock, number, staged)?;
        let lane = &self.lanes.all[at];
        let stays = self.resident.as_ref().filter(|r| number < r.offsets.len());
        let (memory, offset) = match (stays, &mut self.gathering, &lane.memory) {
            (Some(resident), ..) => (&resident.memory, resident.offsets[number]),
            (None, Some(gathering), _) => gathering.place(resident_bytes(&self.store, number, reads)),
            (None, None, Some(memory)) => (memory, 0),
            (None, None, None) => unreachable!("lanes have memory unless all chunks are resident"),
        };
        let bytes = header.image_bytes as usize;
        let staging =
            staged.then(|| lane.staging.as_ref().expect("the plan has a place for what is converted"));
        let (to, at_offset) = staging.map_or((memory, offset), |staging| (staging, 0));
        let upload = self.lanes.copies.upload(buffer, bytes, to, at_offset, &copied)?;
        let image = Some((upload, owner));
        let image = if self.op.takes_views() {
            image
        } else {
            self.uploads.extend(image);
            None
        };
        self.log.copied(bytes);
        let one = Chunk {
            image: memory.address() + offset as u64,
            first_block: 0,
            number: u32::try_from(number).unwrap_or(u32::MAX),
        };
        let results = lane.out.as_ref().map_or(0, |out| out.memory.address());
        let ready = match &self.expander {
            Some(expander) if work != Work::Nothing => {
                let from = staging.map_or(one.image, Memory::address);
                lane.follows(&copied, staged)?;
                let expand = || expander.launch(&lane.stream, number, &header, from, one.image);
                let row = self.parts.len() + self.turns.streams.len() + at;
                let ready = self.log.clock.time(Stage::Kernel, row, Some(number), &lane.stream, expand)?;
                self.lanes.all[at].expanded = Some(Arc::clone(&ready));
                ready
            }
            _ => copied,
        };
        let blocks = blocks_there(&self.store, number, reads, self.op.tiles_per_block(layout));
        let work = Launch { blocks, chunks: (0, 0), one, layout, nonzeros: Nonzeros::InStoreOrder, results };
        let sharing = self.sharing.iter().copied().filter(|&p| self.plan.chunks_of(p).contains(&number));
        let sharing: Vec<usize> = sharing.collect();
        let passes = stays.is_none() && self.gathering.is_none();
        // No part works on the chunk if copies are built first, or if it is only loaded to stay.
        if sharing.is_empty() {
            self.lanes.all[at].used = passes.then_some(ready);
            return Ok(());
        }
        let turn = self.turns.next;
        self.turns.next = (turn + 1) % self.turns.streams.len();
        let stream = &self.turns.streams[turn];
        stream.wait(&ready)?;
        let (op, mut result_bytes) = (&mut self.op, 0);
        let launch = || op.launch(&sharing, stream, &work).map(|bytes| result_bytes = bytes);
        let done =
            self.log.clock.time(Stage::Kernel, self.parts.len() + turn, Some(number), stream, launch)?;
        self.lanes.all[at].used = passes.then(|| Arc::clone(&done));
        self.send_results(header, at, image, result_bytes, &done)?;
        self.log.clock.look()
    }

    fn take_free(&mut self, wait: bool) -> Result<Option<Free<Pinned>>> {
        self.hand_over_what_is_done()?;
        if wait && self.results.freed.is_empty() && self.results.hold_buffers() {
            self.hand_over()?;
        }
        if let Some(free) = self.results.freed.pop_front() {
            return Ok(Some(free));
        }
        if wait {
            self.log.clock.look()?;
        }
        let Some((upload, _)) = self.uploads.front() else { return Ok(None) };
        if !wait && !upload.is_done()? {
            return Ok(None);
        }
        let Some((upload, owner)) = self.uploads.pop_front() else { return Ok(None) };
        Ok(Some(Free { buffer: upload.finish()?, owner }))
    }

    fn end(&mut self, spans: &mut Vec<Span>) -> Result<Option<DevicePass>> {
        while self.results.len() > 0 {
            self.hand_over()?;
        }
        if self.plan.loads_first() && !self.is_there() {
            self.lanes.streams().try_for_each(Stream::synchronize)?;
            self.resident.iter_mut().for_each(|resident| resident.there = true);
            self.build_copies()?;
            self.begin_parts()?;
        }
        for (stream, done) in self.turns.streams.iter().zip(&self.turns.done) {
            done.record(stream)?;
            for &p in &self.sharing {
                self.parts[p].streamed.wait(done)?;
            }
        }
        for (p, part) in self.parts.iter().enumerate() {
            if !self.op.is_active(p) {
                continue;
            }
            if let Some(done) = &part.resident_done {
                part.streamed.wait(done)?;
            }
            let written = self.copy_of(p).is_some();
            self.op.finish(p, written, &part.streamed)?;
            part.ended.record(&part.streamed)?;
        }
        let before = spans.len();
        self.log.clock.read(spans, &mut self.log.pass)?;
        for part in &self.parts {
            part.streamed.synchronize()?;
        }
        self.take_back()?;
        if self.gathering.is_some() {
            self.sort_group()?;
        }
        let of_expander = self.expander.as_ref().map(Expander::damaged_chunk).transpose()?.flatten();
        if let Some(number) = of_expander.into_iter().chain(self.op.damaged_chunk()?).min() {
            return Err(out_of_range(&self.store, number));
        }
        self.squares.take().map_or(Ok(()), |squares| squares.check())?;
        self.resident.iter_mut().for_each(|resident| resident.there = true);
        let log = &mut self.log;
        log.pass.device_seconds = spans[before..].iter().map(|span| span.end).fold(0.0, f64::max);
        for (_, part) in active(&self.op, &self.parts) {
            let ended = part.ended.seconds_since(&log.clock.base)?;
            log.pass.device_seconds = log.pass.device_seconds.max(ended);
        }
        let streamed = self.image_bytes + log.pass.returned_bytes;
        let own = self.plan.share().map_or(1.0, |share| share.to - share.from);
        let moved = self.op.bytes_per_nonzero() * own * self.store.manifest().nnz as f64 + streamed as f64;
        Ok(Some(log.end(&self.plan.device, self.plan.link_bytes_per_second, moved)))
    }
}
