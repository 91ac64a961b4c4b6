//! Copies between devices.

use super::{Device, Kernel, Memory, Stream, failed, is_installed};
use crate::error::{Error, Result};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{DriverError, result, sys};
use std::ffi::{c_int, c_void};

impl Device {
    /// The number of GPUs.
    pub fn count() -> Result<usize> {
        let missing = |what: String| Error::request(format!("no CUDA device: {what}"));
        if !is_installed() {
            return Err(missing("the driver's library (libcuda.so.1) is not installed".into()));
        }
        result::init().map_err(|e| missing(format!("the driver does not start: {}", failed("start")(e))))?;
        let count = result::device::get_count().map_err(failed("count the devices"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Enables direct copies from `other` to this device and returns whether that is possible. Otherwise the driver copies through the
    /// host.
    pub fn reach(&self, other: &Self) -> Result<bool> {
        let mut can: c_int = 0;
        // SAFETY: the pointer is to a live integer, both devices are open.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.ordinal, other.ordinal) }
            .result()
            .map_err(failed("ask whether devices reach each other"))?;
        if can == 0 {
            return Ok(false);
        }
        self.bind()?;
        // SAFETY: the other context is retained while `other` lives; the driver ends the access with either context.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) }.result() {
            Ok(()) | Err(DriverError(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => Ok(true),
            // A device supports a limited number of such connections; further pairs copy through the host.
            Err(DriverError(CUresult::CUDA_ERROR_TOO_MANY_PEERS)) => Ok(false),
            Err(e) => Err(failed("let devices reach each other")(e)),
        }
    }
}

impl Stream {
    /// Copies `bytes` of `from`, on any device, to `to`, which is on this stream's device.
    pub fn copy_from(
        &self,
        (from, from_at): (&Memory, usize),
        (to, to_at): (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        let fits = |memory: &Memory, at: usize| at.checked_add(bytes).is_some_and(|end| end <= memory.bytes);
        assert!(fits(from, from_at) && fits(to, to_at), "a copy fits the device memory");
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let (source, target) = (from.at + from_at as u64, to.at + to_at as u64);
        let (to_context, from_context) = (to.device.context, from.device.context);
        // SAFETY: both ranges are inside their allocations, whose contexts are retained while these live.
        unsafe { sys::cuMemcpyPeerAsync(target, to_context, source, from_context, bytes, self.stream) }
            .result()
            .map_err(failed("copy from device to device"))
    }

    /// Starts `finish` on parts of memory: adds up `copies` of `elements` sums, which follow one another from byte `sums_at` on, into the
    /// sums at byte `result_at` of `result`.
    pub fn launch_finish_at(
        &self,
        kernel: &Kernel,
        (sums, sums_at): (&Memory, usize),
        copies: u32,
        elements: usize,
        (result, result_at): (&Memory, usize),
    ) -> Result<()> {
        const THREADS: u32 = 256;
        let (mut from, mut to) = (sums.at + sums_at as u64, result.at + result_at as u64);
        let (mut copies, mut count) = (copies, elements as u64);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut from).cast(), (&raw mut copies).cast(), (&raw mut count).cast(), (&raw mut to).cast()];
        let grid = u32::try_from(count.div_ceil(THREADS.into()).clamp(1, 1 << 16)).unwrap_or(1);
        self.launch_with(kernel, (grid, 1), THREADS, &mut parameters)
    }
}
