//! Chunks that stay on the device, and lists of chunks for launches.

use super::abi::Chunk;
use super::driver::{Device, Memory};
use super::expand::{blocks_there, layout_there, layouts_there, resident_bytes};
use super::kernels::KernelLayout;
use super::plan::again;
use crate::backend::plan::{DevicePlan, Reads, Shortfall};
use crate::error::{Error, Result};
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// The tiles of chunks of a layout that a thread block takes.
pub(super) type TilesPerBlock<'a> = dyn Fn(KernelLayout) -> u32 + 'a;

/// Chunks that stay on the device.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) memory: Memory,
    /// Where each chunk lies.
    pub(super) offsets: Vec<usize>,
    /// Of each cover that is read, those of its chunks that stay, by layout.
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
    pub(super) layout: KernelLayout,
    pub(super) list: Memory,
    pub(super) images: u32,
    pub(super) blocks: u32,
}

/// Memory for the resident chunks: half as many again and again where the device has less.
pub(super) fn make_resident(
    device: &Arc<Device>,
    store: &Store,
    plan: &mut DevicePlan,
    tiles_per_block: &TilesPerBlock<'_>,
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
        tiles_per_block: &TilesPerBlock<'_>,
    ) -> Result<Self> {
        let memory = device.memory(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let (mut offsets, mut at) = (Vec::with_capacity(count), 0);
        for number in 0..count {
            offsets.push(usize::try_from(at).unwrap_or(usize::MAX));
            at += resident_bytes(store, number, plan.request.operation.reads);
        }
        let mut made =
            Self { memory, offsets, lists: Vec::new(), reads: plan.request.operation.reads, there: false };
        let layouts = layouts_there(store, made.reads);
        for chunks in plan.modes.iter().map(|mode| mode.chunks.clone()) {
            if !made.lists.iter().any(|list| list.chunks == chunks) {
                for &layout in &layouts {
                    let list = made.listed(device, store, (chunks.clone(), layout), tiles_per_block)?;
                    made.lists.push(list);
                }
            }
        }
        Ok(made)
    }

    /// Sets the number of tiles per thread block for launches.
    pub(super) fn set_tiles_per_block(
        &mut self,
        device: &Arc<Device>,
        store: &Store,
        tiles_per_block: &TilesPerBlock<'_>,
    ) -> Result<()> {
        for at in 0..self.lists.len() {
            let of = (self.lists[at].chunks.clone(), self.lists[at].layout);
            self.lists[at] = self.listed(device, store, of, tiles_per_block)?;
        }
        Ok(())
    }

    /// The list of those of `chunks` that stay and have this layout.
    fn listed(
        &self,
        device: &Arc<Device>,
        store: &Store,
        (chunks, layout): (Range<usize>, KernelLayout),
        tiles_per_block: &TilesPerBlock<'_>,
    ) -> Result<ResidentList> {
        let (there, tiles) = (self.offsets.len(), tiles_per_block(layout));
        let stay = chunks.start.min(there)..chunks.end.min(there);
        let own = stay.filter(|&number| layout_there(store, number, self.reads) == layout);
        let own = own.map(|number| (number, self.offsets[number]));
        let blocks_of = |number| blocks_there(store, number, self.reads, tiles);
        let (own, blocks) = chunks_at(self.memory.address(), own, blocks_of);
        let images = u32::try_from(own.len()).unwrap_or(u32::MAX);
        Ok(ResidentList { chunks, layout, list: list(device, &own)?, images, blocks })
    }
}

/// Chunks with these numbers, at offsets from `address`, for a launch with these thread blocks for each, and the number of all.
pub(super) fn chunks_at(
    address: u64,
    chunks: impl Iterator<Item = (usize, usize)>,
    blocks_of: impl Fn(usize) -> u32,
) -> (Vec<Chunk>, u32) {
    let mut blocks = 0;
    let chunk = |(number, offset)| {
        let first_block = blocks;
        blocks += blocks_of(number);
        let narrow = u32::try_from(number).unwrap_or(u32::MAX);
        Chunk { image: address + offset as u64, first_block, number: narrow }
    };
    let chunks = chunks.map(chunk).collect();
    (chunks, blocks)
}

/// A list of chunks on the device.
pub(super) fn list(device: &Arc<Device>, chunks: &[Chunk]) -> Result<Memory> {
    let mut list = device.memory(size_of_val(chunks))?;
    list.write(chunks)?;
    Ok(list)
}
