//! Planning the memory of a GPU, before anything is allocated.

use super::driver::Facts;
use crate::error::{Error, Result};
use crate::store::Store;
use bytesize::ByteSize;
use serde::Serialize;

/// What images on the device are aligned to, in bytes.
const ALIGN: u64 = 256;
/// Lanes where nobody asks: one copies, one computes, one waits for either.
const LANES: usize = 4;
/// Part of the free memory that is left to the driver and to others.
const RESERVE: u64 = 16;

/// What passes may use of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceLimits {
    /// Bytes of device memory; `None` for what is free.
    pub memory: Option<u64>,
    /// Lanes; `None` to choose.
    pub lanes: Option<usize>,
    /// Passes that are to come: chunks stay on the device only for a second one.
    pub passes: u32,
}

/// What passes will use of a device. Memory is `operation + lanes * lane + resident`.
#[derive(Clone, Debug, Serialize)]
pub struct DevicePlan {
    /// The device.
    pub device: Facts,
    /// Bytes that are free on it.
    pub free_bytes: u64,
    /// Factors, sums, results.
    pub operation_bytes: u64,
    /// Lanes, each with a device buffer for a chunk.
    pub lanes: usize,
    /// Bytes of a lane's buffer; 0 where no chunk needs one.
    pub lane_bytes: u64,
    /// The first chunks, which stay on the device after the first pass.
    pub resident_chunks: usize,
    /// Bytes that they take.
    pub resident_bytes: u64,
    /// Bytes in all.
    pub memory_bytes: u64,
    /// Bytes that cross the link in the first pass.
    pub first_pass_bytes: u64,
    /// Bytes that cross the link in each later pass.
    pub later_pass_bytes: u64,
}

/// Bytes that chunk `number` takes among the resident ones.
pub(super) fn resident_bytes(store: &Store, number: usize) -> u64 {
    store.manifest().chunks[number].image_bytes.next_multiple_of(ALIGN)
}

/// Plans passes over `store` on a device with `free_bytes`, for an operation that holds `operation_bytes` there.
pub fn plan(
    device: &Facts,
    free_bytes: u64,
    store: &Store,
    operation_bytes: u64,
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    let images = || store.manifest().chunks.iter().map(|c| c.image_bytes);
    let all: u64 = images().sum();
    let mut plan = DevicePlan {
        device: device.clone(),
        free_bytes,
        operation_bytes,
        lanes: limits.lanes.unwrap_or(LANES).clamp(1, images().len().max(1)),
        lane_bytes: images().max().unwrap_or(0),
        resident_chunks: 0,
        resident_bytes: 0,
        memory_bytes: 0,
        first_pass_bytes: all,
        later_pass_bytes: all,
    };
    let bound = limits.memory.unwrap_or(u64::MAX).min(free_bytes - free_bytes / RESERVE);
    if limits.passes > 1 {
        plan.make_resident(store, bound);
    }
    while plan.bytes() > bound {
        if plan.lanes == 1 {
            return Err(too_large(&plan, bound, limits.memory));
        }
        plan.lanes -= 1;
    }
    plan.memory_bytes = plan.bytes();
    Ok(plan)
}

impl DevicePlan {
    fn bytes(&self) -> u64 {
        let lanes = self.lane_bytes.saturating_mul(self.lanes as u64);
        self.operation_bytes.saturating_add(lanes).saturating_add(self.resident_bytes)
    }

    /// Keeps all chunks where they fit, otherwise as many of the first as lanes leave room for.
    fn make_resident(&mut self, store: &Store, bound: u64) {
        let chunks = store.manifest().chunks.len();
        let sizes = |n| resident_bytes(store, n);
        let all: u64 = (0..chunks).map(sizes).sum();
        if self.operation_bytes.saturating_add(all) <= bound {
            (self.resident_chunks, self.resident_bytes) = (chunks, all);
            (self.lane_bytes, self.later_pass_bytes) = (0, 0);
            return;
        }
        for number in 0..chunks {
            if self.bytes() + sizes(number) > bound {
                break;
            }
            self.hold(store, number);
        }
    }

    fn hold(&mut self, store: &Store, number: usize) {
        self.resident_chunks = number + 1;
        self.resident_bytes += resident_bytes(store, number);
        self.later_pass_bytes -= store.manifest().chunks[number].image_bytes;
    }

    /// Holds the first `chunks` chunks only, fewer than before.
    pub(super) fn shrink(&mut self, store: &Store, chunks: usize) {
        let images = || store.manifest().chunks.iter().map(|c| c.image_bytes);
        (self.resident_chunks, self.resident_bytes) = (0, 0);
        self.later_pass_bytes = images().sum();
        self.lane_bytes = images().max().unwrap_or(0);
        (0..chunks).for_each(|number| self.hold(store, number));
        self.memory_bytes = self.bytes();
    }
}

fn too_large(plan: &DevicePlan, bound: u64, asked: Option<u64>) -> Error {
    let limit =
        if asked.is_some_and(|a| a <= bound) { "--device-memory allows" } else { "the device has free" };
    Error::request(format!(
        "needs {} of device memory: factors and results {}, a chunk {}; {limit} {}, {} too little: take fewer modes at \
         a time, a smaller rank or --precision f32{}",
        ByteSize(plan.bytes()),
        ByteSize(plan.operation_bytes),
        ByteSize(plan.lane_bytes),
        ByteSize(bound),
        ByteSize(plan.bytes() - bound),
        if asked.is_some() { ", or raise it" } else { ", or --backend cpu" },
    ))
}
