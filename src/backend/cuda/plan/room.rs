//! The device memory that passes may use, as every plan finds it.

use crate::backend::cuda::driver::Device;
use crate::backend::device::DeviceLimits;
use crate::backend::plan::Room;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::enough;
use bytesize::ByteSize;
use std::sync::Arc;

/// The default number of lanes: one copies, one computes, and one waits for either or hands over results.
pub(super) const LANES: usize = 4;
/// The fraction (one in this many) of free memory that is left to the driver and to others.
const RESERVE: u64 = 16;
/// The size of the largest copy that measures the link: larger copies are no faster.
const PROBE_BYTES: usize = 16 << 20;

impl Room {
    /// The memory of `device` that is free for passes over `store`. Measures the link with copies of a chunk's size, at most 16 MiB, and
    /// frees their memory again.
    pub(super) fn of(device: &Arc<Device>, store: &Store, limits: &DeviceLimits) -> Result<Self> {
        let free_bytes = device.free_bytes()?;
        let probe = store.buffer_bytes().clamp(1, PROBE_BYTES);
        let link = device.link_bytes_per_second(store.sys(), probe)?;
        Ok(Self::new(free_bytes, link, store, limits))
    }

    /// The memory of a device that has `free_bytes` free.
    pub(super) fn new(
        free_bytes: u64,
        link_bytes_per_second: f64,
        store: &Store,
        limits: &DeviceLimits,
    ) -> Self {
        Self {
            free_bytes,
            bound: limits.memory.unwrap_or(u64::MAX).min(free_bytes - free_bytes / RESERVE),
            asked: limits.memory,
            link_bytes_per_second,
            lanes: limits.lanes.unwrap_or(LANES).clamp(1, store.manifest().chunks.len().max(1)),
        }
    }

    /// The most lanes, up to `lanes`, with which a plan fits if `bytes` gives its size. Otherwise an error that names
    /// `parts` and what needs less: `instead`, or no GPU.
    pub(super) fn fit(
        &self,
        lanes: usize,
        bytes: impl Fn(usize) -> u64,
        parts: &[(&str, u64)],
        instead: &[&str],
    ) -> Result<usize> {
        if let Some(fitting) = (1..=lanes).rev().find(|&lanes| bytes(lanes) <= self.bound) {
            return Ok(fitting);
        }
        let least = bytes(1);
        let parts: Vec<String> =
            parts.iter().map(|(what, bytes)| format!("{what} {}", ByteSize(*bytes))).collect();
        let more = self.asked.map(|_| "more of it");
        let instead: Vec<&str> = instead.iter().copied().chain(more).chain(["`Device::Cpu`"]).collect();
        let is_asked = self.asked.is_some_and(|asked| asked <= self.bound);
        Err(Error::request(format!(
            "needs {} of device memory: {}; {} {}, {} too little: take {}",
            enough(least),
            parts.join(", "),
            if is_asked { "`device_memory` allows" } else { "the device has free" },
            ByteSize(self.bound),
            ByteSize(least - self.bound),
            instead.join(" or "),
        )))
    }
}
