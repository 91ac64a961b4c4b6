//! Planning the memory of a pipeline, before anything is allocated.

use crate::backend::cuda::driver::Device;
use crate::backend::device::{DeviceLimits, PipelinePlan};
use crate::error::{Error, Result};
use crate::store::Store;
use bytesize::ByteSize;
use std::sync::Arc;

/// Lanes where nobody asks: one for each step, and one whose results are being handed over.
const LANES: usize = 4;
/// Part of the free memory that is left to the driver and to others.
const RESERVE: u64 = 16;
/// The largest copy that the link is measured with.
const PROBE_BYTES: usize = 16 << 20;

/// What an operation asks of a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct PipelineDemand {
    /// Bytes that it holds all the time.
    pub operation_bytes: u64,
    /// Bytes that come out of a chunk at most.
    pub result_bytes: u64,
}

/// Plans passes over `store` on `device`. Measures the link with copies of a chunk's size, at most 16 MiB, which it frees again.
pub fn plan(
    device: &Arc<Device>,
    store: &Store,
    demand: &PipelineDemand,
    limits: &DeviceLimits,
) -> Result<PipelinePlan> {
    let images = || store.manifest().chunks.iter().map(|c| c.image_bytes);
    let probe = store.buffer_bytes().clamp(1, PROBE_BYTES);
    let (free_bytes, copied_bytes) = (device.free_bytes()?, images().sum());
    let link_bytes_per_second = device.link_bytes_per_second(store.sys(), probe)?;
    let mut plan = PipelinePlan {
        device: device.facts.clone(),
        free_bytes,
        link_bytes_per_second,
        operation_bytes: demand.operation_bytes,
        lanes: limits.lanes.unwrap_or(LANES).clamp(1, images().len().max(1)),
        image_bytes: images().max().unwrap_or(0),
        result_bytes: demand.result_bytes,
        memory_bytes: 0,
        copied_bytes,
        copy_seconds: copied_bytes as f64 / link_bytes_per_second,
    };
    let bound = limits.memory.unwrap_or(u64::MAX).min(free_bytes - free_bytes / RESERVE);
    while plan.bytes() > bound {
        if plan.lanes == 1 {
            return Err(too_large(&plan, bound, limits.memory));
        }
        plan.lanes -= 1;
    }
    plan.memory_bytes = plan.bytes();
    Ok(plan)
}

impl PipelinePlan {
    pub(super) fn bytes(&self) -> u64 {
        let lane = self.image_bytes.saturating_add(self.result_bytes);
        self.operation_bytes.saturating_add(lane.saturating_mul(self.lanes as u64))
    }
}

fn too_large(plan: &PipelinePlan, bound: u64, asked: Option<u64>) -> Error {
    let limit =
        if asked.is_some_and(|a| a <= bound) { "--device-memory allows" } else { "the device has free" };
    Error::request(format!(
        "needs {} of device memory: for the operation {}, for a chunk {} and its results {}; {limit} {}: {}--backend cpu",
        ByteSize(plan.bytes()),
        ByteSize(plan.operation_bytes),
        ByteSize(plan.image_bytes),
        ByteSize(plan.result_bytes),
        ByteSize(bound),
        if asked.is_some() { "raise it, or take " } else { "take " },
    ))
}
