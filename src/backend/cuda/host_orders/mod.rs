//! Target-major orders of a store that the device has no room for: kept in host memory, and streamed.
//!
//! The first pass gathers its chunks on the device, as many as leave room to sort them: a *group*. When a group is there and worked on, its
//! order by row of each such mode is derived ([`super::order`]) and copied to pinned host memory, image by image. Later passes copy
//! a mode's images through the lanes instead of chunks, and launch them one after another: an image meets a row once, so that
//! rows are updated as often as groups (and ends of images) meet them, not for every group of tiles. Nothing of the store is read again where all
//! modes are served so.
//!
//! The order in which a row is added up follows from the groups, and these from the memory of the device: bits are the same in
//! every run with the same plan, not for all plans.

mod plan;

use super::abi::{Chunk, SORTED_TILES};
use super::derive::order_kernels;
use super::driver::{Device, Memory, Pinned, Stream};
use super::order::{self, Derived, SortedImage};
use super::resident::{blocks_of, chunks_at, list};
use super::{CudaBackend, DeviceOp, Launch, Nonzeros};
use crate::backend::device::{DevicePlan, HostOrdersPlan};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::Stage;
use crate::sys::Sys;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

pub(super) use plan::{HostRoom, Planner};

/// Threads that copy images to host memory, at most.
const KEEPERS_MAX: usize = 8;

/// A group of chunks that is gathered on the device, until its orders are derived.
#[derive(Debug)]
pub(super) struct Gathering {
    memory: Memory,
    /// The groups that are left, that which is gathered first.
    groups: VecDeque<Range<usize>>,
    /// Where its chunks lie.
    offsets: Vec<usize>,
    bytes: usize,
    /// What came out so far, for each part.
    sorted: Vec<HostOrder>,
}

impl Gathering {
    fn new(device: &Arc<Device>, plan: &HostOrdersPlan, parts: usize) -> Result<Self> {
        let memory = device.memory(usize::try_from(plan.gathered_bytes).unwrap_or(usize::MAX))?;
        let groups = plan.groups.iter().cloned().collect();
        let sorted = (0..parts).map(|_| HostOrder::default()).collect();
        Ok(Self { memory, groups, offsets: Vec::new(), bytes: 0, sorted })
    }

    /// Whether chunk `number` belongs to a later group.
    pub(super) fn is_full(&self, number: usize) -> bool {
        self.groups.front().is_some_and(|group| number >= group.end)
    }

    fn next_group(&mut self) {
        self.groups.pop_front();
        self.offsets.clear();
        self.bytes = 0;
    }

    /// Where the next chunk goes.
    pub(super) fn place(&mut self, bytes: u64) -> (&Memory, usize) {
        let at = self.bytes;
        self.offsets.push(at);
        self.bytes += usize::try_from(bytes).unwrap_or(usize::MAX);
        (&self.memory, at)
    }
}

/// Sorted nonzeros of all groups, in images.
#[derive(Debug, Default)]
pub(super) struct HostOrder {
    images: Vec<HostImage>,
}

/// An image in host memory.
#[derive(Debug)]
struct HostImage {
    /// `None` while it is being copied.
    buffer: Option<Pinned>,
    bytes: usize,
    nnz: u32,
}

/// Memory for the plan's groups; where the device has too little, the store's order serves, and a note says so.
pub(super) fn make_gathering(
    device: &Arc<Device>,
    store: &Store,
    plan: &mut DevicePlan,
    notes: &mut Vec<String>,
) -> Result<Option<Gathering>> {
    let Some(of_orders) = &plan.host_orders else { return Ok(None) };
    match Gathering::new(device, of_orders, plan.orders.len()) {
        Err(Error::Device { out_of_memory: true, .. }) => {
            notes.push("no device memory to sort chunks: they stay in the store's order".into());
            for part in 0..plan.orders.len() {
                plan.give_up_host_order(store, part, "no device memory to sort chunks");
            }
            Ok(None)
        }
        made => made.map(Some),
    }
}

/// Copies derived images to host memory, with some threads: it is allocated on the way, which takes longer than the copies.
fn keep(device: &Arc<Device>, sys: &Sys, derived: &Derived) -> Result<Vec<HostImage>> {
    let memory = derived.memory();
    let keep = |image: &SortedImage| {
        let bytes = usize::try_from(image.bytes).unwrap_or(usize::MAX);
        let offset = usize::try_from(image.address - memory.address()).unwrap_or(usize::MAX);
        let mut buffer = device.pinned(sys, bytes)?;
        memory.read_at(offset, &mut buffer.as_mut()[..bytes])?;
        Ok(HostImage { buffer: Some(buffer), bytes, nnz: image.nnz })
    };
    let threads = rayon::current_num_threads().min(KEEPERS_MAX);
    let each = derived.images.len().div_ceil(threads).max(1);
    crate::sys::sync::scope(|scope| {
        let start = |(number, images): (usize, &[SortedImage])| {
            let images = images.to_vec();
            let keep = &keep;
            sys.spawn(scope, format!("keep-{number}"), move || {
                images.iter().map(keep).collect::<Result<Vec<_>>>()
            })
        };
        let threads = derived.images.chunks(each).enumerate().map(start).collect::<Result<Vec<_>>>()?;
        let kept =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(kept.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

impl<O: DeviceOp> CudaBackend<O> {
    /// Derives the orders of the group that has been gathered, and copies them to host memory. After the last one they serve their parts.
    pub(super) fn sort_group(&mut self) -> Result<()> {
        // All of it is there, and has been worked on.
        let of_lanes = self.lanes.all.iter().map(|lane| &lane.copy);
        of_lanes.chain(&self.turns.streams).try_for_each(Stream::synchronize)?;
        let Some(mut gathering) = self.gathering.take() else { return Ok(()) };
        for p in 0..self.parts.len() {
            if !self.plan.orders[p].in_host_memory {
                continue;
            }
            let refused = match self.sort_part(p, &gathering) {
                Ok(images) => {
                    gathering.sorted[p].images.extend(images);
                    continue;
                }
                Err(Error::Device { out_of_memory: true, .. }) => {
                    "the device has less memory than the plan said".into()
                }
                Err(Error::Request(why)) => why,
                Err(e @ Error::Resource { .. }) => e.to_string(),
                Err(e) => return Err(e),
            };
            gathering.sorted[p] = HostOrder::default();
            self.plan.give_up_host_order(&self.store, p, &refused);
            self.notes.push(self.plan.orders[p].why.clone());
        }
        gathering.next_group();
        // Without any order left, chunks go through the lanes again.
        if !gathering.groups.is_empty() && self.plan.host_orders.is_some() {
            self.gathering = Some(gathering);
            return Ok(());
        }
        for ((part, order), sorted) in self.parts.iter_mut().zip(&self.plan.orders).zip(gathering.sorted) {
            part.kept = order.in_host_memory.then_some(sorted);
        }
        Ok(())
    }

    /// The images of part `p` for the gathered group. An [`Error::Request`] where they take more than the plan said.
    fn sort_part(&mut self, p: usize, gathering: &Gathering) -> Result<Vec<HostImage>> {
        let (store, device, manifest) = (&self.store, &self.device, self.store.manifest());
        let planned = self.plan.host_orders.as_ref().expect("groups are the plan's");
        let group = gathering.groups.front().expect("there is a group");
        let mode = self.plan.orders[p].mode - 1;
        let plan = planned.order(&device.facts, store, group.clone(), mode)?;
        let room = planned.derive_bytes;
        if plan.peak_bytes() > room || plan.image_bytes_max > planned.image_bytes {
            let needed = plan.peak_bytes();
            return Err(Error::request(format!("it takes {needed} bytes of device memory, {room} are left")));
        }
        if gathering.sorted[p].images.is_empty() {
            self.op.sort(p, blocks_of(planned.image_nnz.into(), SORTED_TILES))?;
        }
        let chunks = chunks_at(gathering.memory.address(), &gathering.offsets, manifest, group.start, 1);
        let list = list(device, &chunks)?;
        let chunks = (list.address(), u32::try_from(chunks.len()).unwrap_or(u32::MAX));
        let kernels = order_kernels(&mut self.order_kernels, device)?;
        let derived = order::derive(device, kernels, &self.parts[p].resident, store, &plan, chunks)?;
        self.log.pass.derive_seconds += derived.seconds.all();
        keep(device, store.sys(), &derived)
    }

    /// Starts copies of and launches on all images of the parts that have them.
    pub(super) fn begin_kept(&mut self) -> Result<()> {
        for p in 0..self.parts.len() {
            if !self.op.is_active(p) {
                continue;
            }
            let part = &mut self.parts[p];
            let Some(HostOrder { images }) = &mut part.kept else { continue };
            for (image_number, image) in images.iter_mut().enumerate() {
                let number = self.store.manifest().chunks.len() + image_number;
                let (at, copied) = self.lanes.start(&mut self.log.clock, number)?;
                let lane = &mut self.lanes.all[at];
                let (Some(buffer), Some(memory)) = (image.buffer.take(), &lane.memory) else {
                    return Err(Error::request("an earlier pass failed; prepare again"));
                };
                let upload = lane.copy.upload(buffer, image.bytes, memory, 0, &copied)?;
                self.lent.push_back((upload, p, image_number));
                self.log.pass.copied_chunks += 1;
                self.log.pass.copied_bytes += image.bytes as u64;
                let one = Chunk {
                    image: memory.address(),
                    first_block: 0,
                    number: u32::try_from(number).unwrap_or(u32::MAX),
                };
                let blocks = blocks_of(image.nnz.into(), SORTED_TILES);
                let work = Launch { blocks, chunks: (0, 0), one, nonzeros: Nonzeros::SortedPart };
                let (op, stream) = (&self.op, &part.streamed);
                stream.wait(&copied)?;
                let launch = || op.launch(&[p], stream, &work);
                lane.used = Some(self.log.clock.time(Stage::Kernel, p, Some(number), stream, launch)?);
            }
        }
        Ok(())
    }

    /// Takes images back that have been copied: all work is done.
    pub(super) fn take_back(&mut self) -> Result<()> {
        for (upload, p, number) in self.lent.drain(..) {
            let image = self.parts[p].kept.as_mut().and_then(|order| order.images.get_mut(number));
            image.expect("it was lent from there").buffer = Some(upload.finish()?);
        }
        Ok(())
    }

    /// Pairs of events that a pass takes.
    pub(super) fn pairs(&self) -> usize {
        let images = self.parts.iter().flat_map(|part| &part.kept).map(|order| order.images.len());
        let chunks = self.store.manifest().chunks.len();
        let expansions = if self.expander.is_some() { chunks } else { 0 };
        2 * chunks + expansions + self.parts.len() + 2 * images.sum::<usize>()
    }
}
