//! Chunks that stay on the device, and lists of chunks for launches.

use super::abi::Chunk;
use super::driver::{Device, Memory};
use super::expand::{blocks_there, resident_bytes};
use super::plan::again;
use crate::backend::plan::{DevicePlan, Reads, Shortfall};
use crate::error::{Error, Result};
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// Chunks that stay on the device.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) memory: Memory,
    /// Where each chunk lies.
    pub(super) offsets: Vec<usize>,
    /// Of each cover that is read, those of its chunks that stay.
    pub(super) lists: Vec<ResidentList>,
    /// What of trees and segments stays.
    reads: Reads,
    /// Whether a pass has brought them.
    pub(super) there: bool,
}

/// Chunks for one launch.
#[derive(Debug)]
pub(super) struct ResidentList {
    /// All of their cover, as parts have them.
    pub(super) chunks: Range<usize>,
    pub(super) list: Memory,
    pub(super) images: u32,
    pub(super) blocks: u32,
}

/// Memory for the resident chunks: half as many again and again where the device has less.
pub(super) fn make_resident(
    device: &Arc<Device>,
    store: &Store,
    plan: &mut DevicePlan,
    tiles_per_block: u32,
    notes: &mut Vec<String>,
) -> Result<Option<Resident>> {
    let (planned, _) = plan.resident();
    loop {
        let (chunks, bytes) = plan.resident();
        if chunks == 0 {
            break;
        }
        match Resident::new(device, store, plan, (chunks, bytes), tiles_per_block) {
            Err(Error::Device { out_of_memory: true, .. }) => {
                *plan = again(store, plan, Shortfall::Resident(chunks / 2))?;
            }
            made => {
                let made = made?;
                if chunks < planned {
                    let what = format!("device memory for {chunks} of {planned} chunks only");
                    notes.push(format!("{what} to stay there"));
                }
                return Ok(Some(made));
            }
        }
    }
    if planned > 0 {
        notes.push("no device memory for chunks to stay there".into());
    }
    Ok(None)
}

impl Resident {
    fn new(
        device: &Arc<Device>,
        store: &Store,
        plan: &DevicePlan,
        (count, bytes): (usize, u64),
        tiles_per_block: u32,
    ) -> Result<Self> {
        let memory = device.memory(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let (mut offsets, mut at) = (Vec::with_capacity(count), 0);
        for number in 0..count {
            offsets.push(usize::try_from(at).unwrap_or(usize::MAX));
            at += resident_bytes(store, number, plan.request.operation.reads);
        }
        let mut made =
            Self { memory, offsets, lists: Vec::new(), reads: plan.request.operation.reads, there: false };
        for chunks in plan.modes.iter().map(|mode| mode.chunks.clone()) {
            if !made.lists.iter().any(|list| list.chunks == chunks) {
                let list = made.listed(device, store, chunks, tiles_per_block)?;
                made.lists.push(list);
            }
        }
        Ok(made)
    }

    /// Sets the number of tiles per thread block for launches.
    pub(super) fn set_tiles_per_block(
        &mut self,
        device: &Arc<Device>,
        store: &Store,
        tiles: u32,
    ) -> Result<()> {
        for at in 0..self.lists.len() {
            self.lists[at] = self.listed(device, store, self.lists[at].chunks.clone(), tiles)?;
        }
        Ok(())
    }

    /// The list of those of `chunks` that stay.
    fn listed(
        &self,
        device: &Arc<Device>,
        store: &Store,
        chunks: Range<usize>,
        tiles_per_block: u32,
    ) -> Result<ResidentList> {
        let there = self.offsets.len();
        let stay = chunks.start.min(there)..chunks.end.min(there);
        let blocks_of = |number| blocks_there(store, number, self.reads, tiles_per_block);
        let blocks = stay.clone().map(blocks_of).sum();
        let (address, offsets) = (self.memory.address(), &self.offsets[stay.clone()]);
        let own = chunks_at(address, offsets, stay.start, blocks_of);
        let images = u32::try_from(own.len()).unwrap_or(u32::MAX);
        Ok(ResidentList { chunks, list: list(device, &own)?, images, blocks })
    }
}

/// Chunks from number `first` on, at `offsets` from `address`, for a launch with these thread blocks for each.
pub(super) fn chunks_at(
    address: u64,
    offsets: &[usize],
    first: usize,
    blocks_of: impl Fn(usize) -> u32,
) -> Vec<Chunk> {
    let (mut chunks, mut first_block) = (Vec::with_capacity(offsets.len()), 0);
    for (number, &offset) in (first..).zip(offsets) {
        let narrow = u32::try_from(number).unwrap_or(u32::MAX);
        chunks.push(Chunk { image: address + offset as u64, first_block, number: narrow });
        first_block += blocks_of(number);
    }
    chunks
}

/// A list of chunks on the device.
pub(super) fn list(device: &Arc<Device>, chunks: &[Chunk]) -> Result<Memory> {
    let mut list = device.memory(size_of_val(chunks))?;
    list.write(chunks)?;
    Ok(list)
}
