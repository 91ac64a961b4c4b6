//! Mode-sorted copies of a backend's parts: built once all chunks are there, as far as the plan's room goes.

use super::driver::{Device, Memory};
use super::mode_sorted::{self, CopyPlan, SortKernels, SortedCopy};
use super::resident::{chunks_at, list};
use super::{CudaBackend, DeviceOp, plan};
use crate::backend::plan::{Place, Shortfall};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A copy on the device, as a part launches it.
#[derive(Debug)]
pub(super) struct PartCopy {
    /// What `list` names.
    pub(super) copy: SortedCopy,
    pub(super) list: Memory,
    pub(super) images: u32,
    pub(super) blocks: u32,
    /// Bytes of device memory, with what the operation holds for it.
    held_bytes: u64,
}

impl PartCopy {
    fn new(device: &Arc<Device>, copy: SortedCopy, tiles_per_block: u32, first_number: u32) -> Result<Self> {
        let (chunks, blocks) = copy.chunks(tiles_per_block, first_number);
        let images = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let held_bytes = copy.memory().bytes() + copy.empty.bytes();
        Ok(Self { list: list(device, &chunks)?, copy, images, blocks, held_bytes })
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
        for p in 0..self.parts.len() {
            if self.plan.copy(p) != Some(Place::Device) || self.parts[p].sorted.is_some() {
                continue;
            }
            match self.build_for(p) {
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
        let numbers = u32::try_from(resident.offsets.len()).unwrap_or(u32::MAX);
        let held: u64 = self.parts.iter().flat_map(|part| &part.sorted).map(|copy| copy.held_bytes).sum();
        let nnz = self.store.manifest().chunks[chunks.clone()].iter().map(|chunk| chunk.nnz).sum();
        let sorted_bytes = self.op.sorted_bytes(nnz);
        let group = self.plan.build.as_ref().map_or(0, |build| build.group_of(&chunks));
        let copy = self.build(p, group, (at, &offsets), held + sorted_bytes)?;
        let mut copy = PartCopy::new(&self.device, copy, self.op.tiles_per_block(true), numbers)?;
        copy.held_bytes += sorted_bytes;
        self.op.sort(p, copy.blocks, copy.copy.stretch.as_ref())?;
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
        let (store, device, manifest) = (&self.store, &self.device, self.store.manifest());
        let planned = self.plan.build.as_ref().expect("copies are the plan's");
        let copy = CopyPlan::of_group(&device.facts, manifest, planned, number, self.plan.modes[p].mode - 1)?;
        let (needed, room) = (copy.peak_bytes(), planned.room_bytes.saturating_sub(held));
        if needed > room {
            return Err(Error::request(format!("it takes {needed} bytes of device memory, {room} are left")));
        }
        let list = list(device, &chunks_at(at, offsets, manifest, planned.groups[number].start, 1))?;
        let chunks = (list.address(), u32::try_from(offsets.len()).unwrap_or(u32::MAX));
        if self.sort_kernels.is_none() {
            self.sort_kernels = Some(SortKernels::load(device)?);
        }
        let kernels = self.sort_kernels.as_ref().expect("loaded just now, or before");
        let (stream, share) = (&self.parts[p].resident, self.plan.share());
        let copy = mode_sorted::build(device, kernels, stream, store, &copy, chunks, share)?;
        self.log.pass.build_seconds += copy.seconds.all();
        Ok(copy)
    }
}
