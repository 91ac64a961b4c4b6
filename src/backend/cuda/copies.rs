//! Mode-sorted copies of a backend's parts: built once all chunks are there, as far as the plan's room goes. If sums of fibers pay, the copies of
//! the modes that they serve have an entry for each fiber instead of nonzeros ([`FiberKernels::along`]).

use super::abi::SORTED_TILES;
use super::driver::{Device, Memory, Priority};
use super::expand::blocks_there;
use super::mode_sorted::{
    self, BuildInput, CopyPlan, FiberKernels, FiberLists, SortKernels, SortedCopy, Source,
};
use super::resident::{chunks_at, list};
use super::{CudaBackend, DeviceOp, plan};
use crate::backend::plan::{Place, Reads, Shortfall};
use crate::encoding::values::ValueEncoding;
use crate::error::{Error, Result};
use crate::store::Store;
use std::sync::Arc;

/// A copy on the device, as a part launches it.
#[derive(Debug)]
pub(super) struct PartCopy {
    /// What `list` names.
    pub(super) copy: SortedCopy,
    pub(super) list: Memory,
    pub(super) images: u32,
    pub(super) blocks: u32,
    /// Whether it has an entry for each fiber.
    pub(super) along_fibers: bool,
    /// Bytes of device memory, with what the operation holds for it.
    held_bytes: u64,
}

impl PartCopy {
    fn new(device: &Arc<Device>, copy: SortedCopy, first_number: u32) -> Result<Self> {
        let (chunks, blocks) = copy.chunks(SORTED_TILES, first_number);
        let images = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let held_bytes = copy.memory().bytes() + copy.empty.bytes();
        Ok(Self { list: list(device, &chunks)?, copy, images, blocks, along_fibers: false, held_bytes })
    }

    /// Whether it serves a pass that can take sums of fibers, or cannot.
    pub(super) fn serves(&self, takes_fibers: bool) -> bool {
        takes_fibers || !self.along_fibers
    }

    /// Its nonzeros.
    fn nnz(&self) -> u64 {
        self.copy.images.iter().map(|image| u64::from(image.nnz)).sum()
    }
}

/// Fibers whose sums serve some parts.
#[derive(Debug)]
pub(super) struct Fibers {
    /// The nonzeros, by fiber.
    pub(super) nonzeros: PartCopy,
    /// The mode along which they lie, from 0, and how many there are.
    pub(super) leaf: usize,
    pub(super) count: u32,
}

impl Fibers {
    /// Gives them to an operation.
    pub(super) fn lend(&self, op: &mut impl DeviceOp) -> Result<()> {
        op.take_fibers(self.leaf, (self.count, self.nonzeros.nnz()), self.nonzeros.blocks)
    }
}

/// Why a copy is not built, where the store's order can serve instead; other errors end the pass.
pub(super) fn refused(error: Error) -> Result<String> {
    match error {
        Error::Device { out_of_memory: true, .. } => {
            Ok("the device has less memory than the plan said".into())
        }
        Error::Request(why) => Ok(why),
        error @ Error::Resource { .. } => Ok(error.to_string()),
        error => Err(error),
    }
}

impl<O: DeviceOp> CudaBackend<O> {
    /// Builds the copies that the plan has on the device, once all chunks are there. Where memory is short after all, the store's order
    /// serves, and a note says so.
    pub(super) fn build_copies(&mut self) -> Result<()> {
        let entries = self.build_fibers()?;
        for p in 0..self.parts.len() {
            if self.plan.copy(p) != Some(Place::Device) || self.parts[p].sorted.is_some() {
                continue;
            }
            let built = match &entries {
                Some(entries) if !self.is_leaf(p) => self.build_along_fibers(p, entries),
                _ => self.build_for(p),
            };
            match built {
                Ok(copy) => self.parts[p].sorted = Some(copy),
                Err(error) => {
                    let (mode, why) = (self.plan.modes[p].mode, refused(error)?);
                    if self.plan.loads_first() {
                        return Err(Error::request(format!("mode {mode} cannot be sorted: {why}")));
                    }
                    self.give_up_copy(p, why)?;
                }
            }
        }
        Ok(())
    }

    /// Whether fibers lie along the mode of part `p`.
    fn is_leaf(&self, p: usize) -> bool {
        self.fibers.as_ref().is_some_and(|fibers| fibers.leaf + 1 == self.plan.modes[p].mode)
    }

    /// The copy that serves part `p` in the next pass.
    pub(super) fn copy_of(&self, p: usize) -> Option<&PartCopy> {
        self.parts[p].sorted.as_ref().filter(|copy| copy.serves(self.op.can_take_fibers()))
    }

    /// Counts fibers if that is worth it and, if sums of them pay, finds them. Returns a list of them, from which copies are built. Where
    /// memory is short after all, other copies serve, and a note says so.
    fn build_fibers(&mut self) -> Result<Option<SortedCopy>> {
        if !self.plan.counts_fibers || self.op.fiber_bytes(0, 1, 1).is_none() {
            return Ok(None);
        }
        self.find_fibers().or_else(|error| {
            let why = refused(error)?;
            self.notes.push(format!("no sums of fibers: {why}"));
            self.plan = plan::again(&self.store, &self.plan, Shortfall::NoFibers(why))?;
            Ok(None)
        })
    }

    fn find_fibers(&mut self) -> Result<Option<SortedCopy>> {
        let chunks = self.plan.chunks_of(0);
        let group = self.plan.build.as_ref().map_or(0, |build| build.group_of(&chunks));
        let resident = self.resident.as_ref().expect("copies are built from resident chunks");
        let (at, offsets) = (resident.memory.address(), resident.offsets[chunks.clone()].to_vec());
        self.load_sort_kernels()?;
        let (store, device, manifest) = (&self.store, &self.device, self.store.manifest());
        let planned = self.plan.build.as_ref().expect("copies are the plan's");
        let copy = CopyPlan::of_group(&device.facts, manifest, planned, group, 0)?;
        let numbered = (planned.groups[group].start..).zip(offsets.iter().copied());
        let list = list(device, &chunks_at(at, numbered, tiles_of(store)).0)?;
        let chunks = (list.address(), u32::try_from(offsets.len()).unwrap_or(u32::MAX));
        let kernels = self.sort_kernels.as_ref().expect("just loaded");
        let (stream, room, finder) =
            (device.stream(Priority::Highest)?, planned.room_bytes, FiberKernels::load(device)?);
        let input = BuildInput { device, kernels, stream: &stream, store, plan: &copy, chunks };
        let counts = finder.estimate(input)?;
        let plan = plan::again(store, &self.plan, Shortfall::Fibers(counts))?;
        let Some(leaf) = plan.fibers.as_ref().map(|fibers| fibers.mode - 1) else {
            self.plan = plan;
            return Ok(None);
        };
        let beside = |count| self.op.fiber_bytes(leaf, count, copy.nnz().into()).unwrap_or(0);
        let found = finder.along(input, leaf, (room, beside));
        self.plan = plan;
        let FiberLists { count, nonzeros, entries, seconds, .. } = found?;
        let mut nonzeros = PartCopy::new(&self.device, nonzeros, self.chunk_count())?;
        let nnz = nonzeros.nnz();
        nonzeros.held_bytes += self.op.fiber_bytes(leaf, count, nnz).unwrap_or(0);
        let fibers = Fibers { nonzeros, leaf, count };
        fibers.lend(&mut self.op)?;
        self.log.pass.build_seconds += seconds;
        self.fibers = Some(fibers);
        Ok(Some(entries))
    }

    /// Bytes of device memory of all copies that are there.
    fn held_bytes(&self) -> u64 {
        let fibers = self.fibers.iter().map(|fibers| &fibers.nonzeros);
        self.parts.iter().flat_map(|part| &part.sorted).chain(fibers).map(|copy| copy.held_bytes).sum()
    }

    /// An [`Error::Request`] if the plan's room, of which `held` bytes are taken, is too small for building a copy.
    fn check_room(&self, copy: &CopyPlan, held: u64) -> Result<()> {
        let room = self.plan.build.as_ref().map_or(0, |build| build.room_bytes).saturating_sub(held);
        let needed = copy.peak_bytes();
        if needed <= room {
            return Ok(());
        }
        Err(Error::request(format!("it takes {needed} bytes of device memory, {room} are left")))
    }

    /// The number of the first image that is none of the store's chunks.
    fn chunk_count(&self) -> u32 {
        u32::try_from(self.store.manifest().chunks.len()).unwrap_or(u32::MAX)
    }

    fn load_sort_kernels(&mut self) -> Result<()> {
        if self.sort_kernels.is_none() {
            self.sort_kernels = Some(SortKernels::load(&self.device)?);
        }
        Ok(())
    }

    /// Builds the copy of part `p` from the list of fibers.
    fn build_along_fibers(&mut self, p: usize, entries: &SortedCopy) -> Result<PartCopy> {
        let (store, device) = (&self.store, &self.device);
        let fibers = self.fibers.as_ref().expect("there is a list of them");
        let planned = self.plan.build.as_ref().expect("copies are the plan's");
        let dims = mode_sorted::entry_dims(store.manifest().shape.dims(), fibers.leaf, fibers.count);
        let nnz: Vec<u64> = entries.images.iter().map(|image| image.nnz.into()).collect();
        let source = Source { dims: &dims, nnz: &nnz, values: ValueEncoding::Integer, range: (1.0, 1.0) };
        let copy = CopyPlan::of(&device.facts, &source, self.plan.modes[p].mode - 1, planned.image_nnz)?;
        self.check_room(&copy, self.held_bytes() + entries.memory().bytes())?;
        let (chunks, _) = entries.chunks(1, 0);
        let list = list(device, &chunks)?;
        let chunks = (list.address(), u32::try_from(chunks.len()).unwrap_or(u32::MAX));
        let kernels = self.sort_kernels.as_ref().expect("fibers were found with them");
        let stream = &self.parts[p].resident;
        let copy =
            mode_sorted::build(BuildInput { device, kernels, stream, store, plan: &copy, chunks }, None)?;
        self.log.pass.build_seconds += copy.seconds.all();
        let mut copy = PartCopy::new(device, copy, self.chunk_count())?;
        copy.along_fibers = true;
        copy.held_bytes += self.op.sorted_bytes(nnz.iter().sum());
        self.op.sort(p, copy.blocks, None, true)?;
        Ok(copy)
    }

    /// Goes on with the store's order for part `p`, by a plan that knows why.
    pub(super) fn give_up_copy(&mut self, p: usize, why: String) -> Result<()> {
        let shortfall = Shortfall::NoCopy(self.plan.modes[p].mode, why);
        self.plan = plan::again(&self.store, &self.plan, shortfall)?;
        self.notes.push(self.plan.modes[p].why.clone());
        Ok(())
    }

    /// Builds the copy of part `p` from what is resident.
    fn build_for(&mut self, p: usize) -> Result<PartCopy> {
        let resident = self.resident.as_ref().expect("copies are built from resident chunks");
        let (at, chunks) = (resident.memory.address(), self.plan.chunks_of(p));
        let offsets = resident.offsets[chunks.clone()].to_vec();
        let numbers = self.chunk_count();
        let held = self.held_bytes();
        let nnz = self.store.manifest().chunks[chunks.clone()].iter().map(|chunk| chunk.nnz).sum();
        let sorted_bytes = self.op.sorted_bytes(nnz);
        let group = self.plan.build.as_ref().map_or(0, |build| build.group_of(&chunks));
        let copy = self.build(p, group, (at, &offsets), held + sorted_bytes)?;
        let mut copy = PartCopy::new(&self.device, copy, numbers)?;
        copy.held_bytes += sorted_bytes;
        self.op.sort(p, copy.blocks, copy.copy.stretch.as_ref(), false)?;
        Ok(copy)
    }

    /// Builds the copy for part `p` of group `number` of the plan's, whose chunks lie at these offsets from an address. An
    /// [`Error::Request`] where the plan's room, of which `held` bytes are taken, is too small for it.
    pub(super) fn build(
        &mut self,
        p: usize,
        number: usize,
        (at, offsets): (u64, &[usize]),
        held: u64,
    ) -> Result<SortedCopy> {
        self.load_sort_kernels()?;
        let (store, device, manifest) = (&self.store, &self.device, self.store.manifest());
        let planned = self.plan.build.as_ref().expect("copies are the plan's");
        let copy = CopyPlan::of_group(&device.facts, manifest, planned, number, self.plan.modes[p].mode - 1)?;
        self.check_room(&copy, held)?;
        let numbered = (planned.groups[number].start..).zip(offsets.iter().copied());
        let list = list(device, &chunks_at(at, numbered, tiles_of(store)).0)?;
        let chunks = (list.address(), u32::try_from(offsets.len()).unwrap_or(u32::MAX));
        let kernels = self.sort_kernels.as_ref().expect("loaded just now, or before");
        let (stream, share) = (&self.parts[p].resident, self.plan.share());
        let copy =
            mode_sorted::build(BuildInput { device, kernels, stream, store, plan: &copy, chunks }, share)?;
        self.log.pass.build_seconds += copy.seconds.all();
        Ok(copy)
    }
}

/// The tiles of each chunk that copies are built of: a thread block for each.
fn tiles_of(store: &Store) -> impl Fn(usize) -> u32 {
    |number| blocks_there(store, number, Reads::Nonzeros, 1)
}
