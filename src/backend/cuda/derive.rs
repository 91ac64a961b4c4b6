//! Target-major orders of a backend's parts: derived once all chunks are there, as far as the plan's room goes.

use super::driver::{Device, Memory};
use super::order::{self, Derived, OrderKernels, OrderPlan};
use super::resident::{chunks_at, list};
use super::{CudaBackend, DeviceOp, Part, choose};
use crate::backend::device::ModeOrder;
use crate::error::{Error, Result};
use std::sync::Arc;

/// A derived order as a part launches it.
#[derive(Debug)]
pub(super) struct PartOrder {
    /// What `list` names.
    pub(super) derived: Derived,
    pub(super) list: Memory,
    pub(super) images: u32,
    pub(super) blocks: u32,
    /// Bytes of device memory, with what the operation holds for it.
    pub(super) held_bytes: u64,
}

impl PartOrder {
    fn new(device: &Arc<Device>, derived: Derived, tiles_per_block: u32, first_number: u32) -> Result<Self> {
        let (chunks, blocks) = derived.chunks(tiles_per_block, first_number);
        let images = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let held_bytes = derived.memory().bytes() + derived.empty.bytes();
        Ok(Self { list: list(device, &chunks)?, derived, images, blocks, held_bytes })
    }
}

/// The kernels that derive orders, loaded when they are needed first.
pub(super) fn order_kernels<'k>(
    loaded: &'k mut Option<OrderKernels>,
    device: &Arc<Device>,
) -> Result<&'k OrderKernels> {
    match loaded {
        Some(kernels) => Ok(kernels),
        None => Ok(loaded.insert(OrderKernels::load(device)?)),
    }
}

impl<O: DeviceOp> CudaBackend<O> {
    /// Derives the orders that the plan names, once all chunks are there. Where memory is short after all, the store's order
    /// serves, and a note says so.
    pub(super) fn derive(&mut self) -> Result<()> {
        let wanted = |(order, part): &(&ModeOrder, &Part)| {
            order.target && !order.in_host_memory && part.derived.is_none()
        };
        let orders = || self.plan.orders.iter().zip(&self.parts);
        let parts: Vec<usize> = orders().enumerate().filter(|(_, o)| wanted(o)).map(|(p, _)| p).collect();
        for p in parts {
            let refused = match self.derive_part(p) {
                Ok(order) => {
                    self.parts[p].derived = Some(order);
                    continue;
                }
                Err(Error::Device { out_of_memory: true, .. }) => {
                    "the device has less memory than the plan said".into()
                }
                Err(Error::Request(why)) => why,
                Err(e) => return Err(e),
            };
            let order = &mut self.plan.orders[p];
            if self.plan.deterministic {
                return Err(Error::request(format!("mode {} cannot be sorted: {refused}", order.mode)));
            }
            order.target = false;
            order.why = format!("mode {} stays in the store's order: {refused}", order.mode);
            self.notes.push(order.why.clone());
        }
        Ok(())
    }

    /// Derives the order of part `p`. An [`Error::Request`] where the plan's room is too small for it.
    fn derive_part(&mut self, p: usize) -> Result<PartOrder> {
        let resident = self.resident.as_ref().expect("orders are derived from resident chunks");
        let (store, device, manifest) = (&self.store, &self.device, self.store.manifest());
        let values = order::value_encoding(manifest, self.op.precision(), self.encodings.iter().copied());
        let (all, mode) = (0..manifest.chunks.len(), self.plan.orders[p].mode - 1);
        let plan = OrderPlan::new(&device.facts, manifest, all, mode, values, choose::IMAGE_NNZ)?;
        let held: u64 = self.parts.iter().flat_map(|part| &part.derived).map(|order| order.held_bytes).sum();
        let room = self.plan.order_room_bytes.saturating_sub(held);
        let sorted_bytes = self.op.sorted_bytes(manifest.nnz);
        let needed = plan.peak_bytes() + sorted_bytes;
        if needed > room {
            return Err(Error::request(format!("it takes {needed} bytes of device memory, {room} are left")));
        }
        let at = resident.memory.address();
        let list = list(device, &chunks_at(at, &resident.offsets, manifest, 0, 1))?;
        let chunks = (list.address(), u32::try_from(resident.offsets.len()).unwrap_or(u32::MAX));
        let kernels = order_kernels(&mut self.order_kernels, device)?;
        let derived = order::derive(device, kernels, &self.parts[p].resident, store, &plan, chunks)?;
        self.log.pass.derive_seconds += derived.seconds.all();
        let mut order = PartOrder::new(device, derived, self.op.tiles_per_block(true), chunks.1)?;
        order.held_bytes += sorted_bytes;
        self.op.sort(p, order.blocks)?;
        Ok(order)
    }
}
