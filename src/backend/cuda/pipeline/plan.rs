//! Planning the memory of a pipeline, before anything is allocated.

use crate::backend::cuda::driver::Device;
use crate::backend::cuda::room::Room;
use crate::backend::device::{DeviceLimits, PipelinePlan};
use crate::error::Result;
use crate::store::Store;
use std::sync::Arc;

/// What an operation asks of a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct PipelineDemand {
    /// Bytes that it holds all the time.
    pub operation_bytes: u64,
    /// Bytes that come out of a chunk at most.
    pub result_bytes: u64,
}

/// Plans passes over `store` on `device`.
pub fn plan(
    device: &Arc<Device>,
    store: &Store,
    demand: &PipelineDemand,
    limits: &DeviceLimits,
) -> Result<PipelinePlan> {
    let images = || store.manifest().chunks.iter().map(|c| c.image_bytes);
    let (there, copied_bytes) = (Room::of(device, store, limits)?, images().sum());
    let mut plan = PipelinePlan {
        device: device.facts.clone(),
        free_bytes: there.free_bytes,
        link_bytes_per_second: there.link_bytes_per_second,
        operation_bytes: demand.operation_bytes,
        lanes: there.lanes,
        image_bytes: images().max().unwrap_or(0),
        result_bytes: demand.result_bytes,
        memory_bytes: 0,
        copied_bytes,
        copy_seconds: copied_bytes as f64 / there.link_bytes_per_second,
    };
    let parts = [
        ("the operation", plan.operation_bytes),
        ("a chunk", plan.image_bytes),
        ("its results", plan.result_bytes),
    ];
    plan.lanes = there.fit(plan.lanes, |lanes| plan.bytes_with(lanes), &parts, &[])?;
    plan.memory_bytes = plan.bytes_with(plan.lanes);
    Ok(plan)
}

impl PipelinePlan {
    /// Bytes with so many lanes.
    pub(super) fn bytes_with(&self, lanes: usize) -> u64 {
        let lane = self.image_bytes.saturating_add(self.result_bytes);
        self.operation_bytes.saturating_add(lane.saturating_mul(lanes as u64))
    }
}
