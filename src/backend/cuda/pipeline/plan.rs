//! Planning the memory of a pipeline, before anything is allocated.

use crate::backend::cuda::DeviceLimits;
use crate::backend::cuda::driver::{Device, Facts};
use crate::error::{Error, Result};
use crate::store::Store;
use bytesize::ByteSize;
use serde::Serialize;
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

/// What passes will use of a device. Memory is `operation + lanes * (image + result)`; on the host, `lanes * result` is pinned.
#[derive(Clone, Debug, Serialize)]
pub struct PipelinePlan {
    /// The device.
    pub device: Facts,
    /// Bytes that are free on it.
    pub free_bytes: u64,
    /// Bytes a second that the link to it moves, as measured.
    pub link_bytes_per_second: f64,
    /// Bytes that the operation holds.
    pub operation_bytes: u64,
    /// Lanes.
    pub lanes: usize,
    /// Bytes of a lane's image.
    pub image_bytes: u64,
    /// Bytes of a lane's results, on the device as on the host.
    pub result_bytes: u64,
    /// Bytes in all.
    pub memory_bytes: u64,
    /// Bytes that cross the link to the device in a pass.
    pub copied_bytes: u64,
    /// Seconds that this takes at least.
    pub copy_seconds: f64,
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

    /// Bytes of host memory that lanes hold.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.result_bytes.saturating_mul(self.lanes as u64)
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
