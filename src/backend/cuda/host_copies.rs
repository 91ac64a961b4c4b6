//! Mode-sorted copies that do not fit on the device: they are kept in host memory and streamed.
//!
//! The first pass gathers its chunks on the device in *groups*, as large as sorting allows. It works on a complete group, builds the
//! group's copies sorted by row for each mode that has copies ([`super::mode_sorted`]), and copies them to pinned host memory, image by
//! image. Later passes copy a mode's images through the lanes instead of chunks, and launch them one after another. An image contains a row
//! once, so a row is updated once per group (and end of an image) that contains it, not once per group of tiles. If all modes have copies,
//! the store is not read again.
//!
//! The additions to a row follow the order of the groups, which depends on the device's memory. Runs with the same plan give the same bits;
//! other plans may not.

use super::abi::{Chunk, SORTED_TILES};
use super::copies::refused;
use super::driver::{Device, Memory, Pinned, Stream};
use super::expand::blocks_of;
use super::kernels::KernelLayout;
use super::mode_sorted::{SortedCopy, SortedImage};
use super::plan::again;
use super::{CudaBackend, DeviceOp, Launch, Nonzeros};
use crate::backend::plan::{BuildPlan, DevicePlan, Place, Shortfall};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::Stage;
use crate::sys::Sys;
use std::ops::Range;
use std::sync::Arc;

/// The most threads that copy images to host memory.
const KEEPERS_MAX: usize = 8;

/// A group of chunks that is gathered on the device, until its copies are built.
#[derive(Debug)]
pub(super) struct Gathering {
    memory: Memory,
    groups: Vec<Range<usize>>,
    /// The number of the group that is being gathered.
    group: usize,
    /// The offsets of its chunks.
    offsets: Vec<usize>,
    bytes: usize,
    /// The images of earlier groups, for each part.
    sorted: Vec<HostCopy>,
}

impl Gathering {
    fn new(device: &Arc<Device>, plan: &BuildPlan, parts: usize) -> Result<Self> {
        let memory = device.memory(usize::try_from(plan.gathered_bytes).unwrap_or(usize::MAX))?;
        let sorted = (0..parts).map(|_| HostCopy::default()).collect();
        Ok(Self { memory, groups: plan.groups.clone(), group: 0, offsets: Vec::new(), bytes: 0, sorted })
    }

    /// Whether chunk `number` belongs to a later group.
    pub(super) fn is_full(&self, number: usize) -> bool {
        self.groups.get(self.group).is_some_and(|group| number >= group.end)
    }

    fn next_group(&mut self) {
        self.group += 1;
        self.offsets.clear();
        self.bytes = 0;
    }

    /// The place of the next chunk.
    pub(super) fn place(&mut self, bytes: u64) -> (&Memory, usize) {
        let at = self.bytes;
        self.offsets.push(at);
        self.bytes += usize::try_from(bytes).unwrap_or(usize::MAX);
        (&self.memory, at)
    }
}

/// Sorted nonzeros of all groups, in images.
#[derive(Debug, Default)]
pub(super) struct HostCopy {
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

/// The most thread blocks of a launch on an image.
pub(super) fn image_blocks(plan: &DevicePlan) -> u32 {
    let image_nnz = plan.build.as_ref().map_or(0, |build| build.image_nnz);
    blocks_of(image_nnz.into(), SORTED_TILES)
}

/// Allocates memory for the plan's groups. If the device has too little, the store's order is used, and a note says so.
pub(super) fn make_gathering(
    device: &Arc<Device>,
    store: &Store,
    plan: &mut DevicePlan,
    notes: &mut Vec<String>,
) -> Result<Option<Gathering>> {
    let Some(build) = plan.build.as_ref().filter(|_| plan.streams_copies()) else { return Ok(None) };
    match Gathering::new(device, build, plan.modes.len()) {
        Err(Error::Device { out_of_memory: true, .. }) => {
            notes.push("no device memory to sort chunks: they stay in the store's order".into());
            let copies: Vec<usize> = plan.copies().map(|(mode, _)| mode).collect();
            for mode in copies {
                *plan =
                    again(store, plan, Shortfall::NoCopy(mode, "no device memory to sort chunks".into()))?;
            }
            Ok(None)
        }
        made => made.map(Some),
    }
}

/// Copies the images of a copy to host memory, with several threads, because allocating that memory takes longer than copying.
fn keep(device: &Arc<Device>, sys: &Sys, copy: &SortedCopy) -> Result<Vec<HostImage>> {
    let memory = copy.memory();
    let keep = |image: &SortedImage| {
        let bytes = usize::try_from(image.bytes).unwrap_or(usize::MAX);
        let offset = usize::try_from(image.address - memory.address()).unwrap_or(usize::MAX);
        let mut buffer = device.pinned(sys, bytes)?;
        memory.read_at(offset, &mut buffer.as_mut()[..bytes])?;
        Ok(HostImage { buffer: Some(buffer), bytes, nnz: image.nnz })
    };
    // A thread outside of a pool, as when several devices work, uses fewer.
    let threads = rayon::current_thread_index().map_or(2, |_| rayon::current_num_threads().min(KEEPERS_MAX));
    let each = copy.images.len().div_ceil(threads).max(1);
    crate::sys::sync::scope(|scope| {
        let start = |(number, images): (usize, &[SortedImage])| {
            let images = images.to_vec();
            let keep = &keep;
            sys.spawn(scope, format!("keep-{number}"), move || {
                images.iter().map(keep).collect::<Result<Vec<_>>>()
            })
        };
        let threads = copy.images.chunks(each).enumerate().map(start).collect::<Result<Vec<_>>>()?;
        let kept =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(kept.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

impl<O: DeviceOp> CudaBackend<O> {
    /// Builds the copies of the gathered group and moves them to host memory. After the last group, they serve their parts.
    pub(super) fn sort_group(&mut self) -> Result<()> {
        // All of the group is on the device, and the pass has worked on it.
        self.lanes.streams().chain(&self.turns.streams).try_for_each(Stream::synchronize)?;
        let Some(mut gathering) = self.gathering.take() else { return Ok(()) };
        for p in 0..self.parts.len() {
            if self.plan.copy(p) != Some(Place::Host) {
                continue;
            }
            match self.sort_part(p, &gathering) {
                Ok(images) => gathering.sorted[p].images.extend(images),
                Err(error) => {
                    gathering.sorted[p] = HostCopy::default();
                    self.give_up_copy(p, refused(error)?)?;
                }
            }
        }
        gathering.next_group();
        // If no copy is left, chunks go through the lanes again.
        if gathering.group < gathering.groups.len() && self.plan.streams_copies() {
            self.gathering = Some(gathering);
            return Ok(());
        }
        for (p, sorted) in gathering.sorted.into_iter().enumerate() {
            self.parts[p].kept = (self.plan.copy(p) == Some(Place::Host)).then_some(sorted);
        }
        Ok(())
    }

    /// The images of part `p` for the gathered group.
    fn sort_part(&mut self, p: usize, gathering: &Gathering) -> Result<Vec<HostImage>> {
        if gathering.sorted[p].images.is_empty() {
            self.op.sort(p, image_blocks(&self.plan), None, false)?;
        }
        let at = (gathering.memory.address(), &gathering.offsets[..]);
        let copy = self.build(p, gathering.group, at, 0)?;
        keep(&self.device, self.store.sys(), &copy)
    }

    /// Starts copying the images of all parts that have some, and the launches on them.
    pub(super) fn begin_kept(&mut self) -> Result<()> {
        for p in 0..self.parts.len() {
            if !self.op.is_active(p) {
                continue;
            }
            let part = &mut self.parts[p];
            let Some(HostCopy { images }) = &mut part.kept else { continue };
            for (image_number, image) in images.iter_mut().enumerate() {
                let number = self.store.manifest().chunks.len() + image_number;
                let (at, copied) = self.lanes.start(&mut self.log.clock, number, false)?;
                let lane = &mut self.lanes.all[at];
                let (Some(buffer), Some(memory)) = (image.buffer.take(), &lane.memory) else {
                    return Err(Error::request("an earlier pass failed; prepare again"));
                };
                let upload = self.lanes.copies.upload(buffer, image.bytes, memory, 0, &copied)?;
                self.lent.push_back((upload, p, image_number));
                self.log.pass.copied_chunks += 1;
                self.log.pass.copied_bytes += image.bytes as u64;
                let one = Chunk {
                    image: memory.address(),
                    first_block: 0,
                    number: u32::try_from(number).unwrap_or(u32::MAX),
                };
                let blocks = blocks_of(image.nnz.into(), SORTED_TILES);
                let (chunks, layout) = ((0, 0), KernelLayout::Tiled);
                let work = Launch { blocks, chunks, one, layout, nonzeros: Nonzeros::SortedPart, results: 0 };
                let (op, stream) = (&mut self.op, &part.streamed);
                stream.wait(&copied)?;
                let launch = || op.launch(&[p], stream, &work).map(drop);
                lane.used = Some(self.log.clock.time(Stage::Kernel, p, Some(number), stream, launch)?);
                self.log.clock.look()?;
            }
        }
        Ok(())
    }

    /// Takes back images that have been copied; all work is done.
    pub(super) fn take_back(&mut self) -> Result<()> {
        for (upload, p, number) in self.lent.drain(..) {
            let image = self.parts[p].kept.as_mut().and_then(|copy| copy.images.get_mut(number));
            image.expect("it was lent from there").buffer = Some(upload.finish()?);
        }
        Ok(())
    }

    /// Pairs of events that a pass needs.
    pub(super) fn pairs(&self) -> usize {
        let images = self.parts.iter().flat_map(|part| &part.kept).map(|copy| copy.images.len());
        let chunks = self.store.manifest().chunks.len();
        let steps = 2 + usize::from(self.expander.is_some()) + usize::from(self.plan.lanes.result_bytes > 0);
        let lists = self.resident.as_ref().map_or(0, |resident| resident.lists.len());
        steps * chunks + lists + self.parts.len() + 1 + 2 * images.sum::<usize>()
    }
}
