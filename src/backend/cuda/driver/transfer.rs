//! Copies between pinned host memory and the device.

use super::{Device, Event, Memory, Priority, Stream, failed, words};
use crate::error::{Error, Result};
use crate::sys::{PageBuf, Sys};
use cudarc::driver::{DriverError, result, sys};
use std::io;
use std::sync::Arc;

impl Device {
    /// The speed of the link to the device in bytes per second: the best of several copies of `bytes` bytes.
    pub fn link_bytes_per_second(self: &Arc<Self>, sys: &Sys, bytes: usize) -> Result<f64> {
        const COPIES: usize = 5;
        let (memory, stream) = (self.memory(bytes)?, self.stream(Priority::Highest)?);
        let mut buffer = self.pinned(sys, bytes)?;
        let mut best = f64::INFINITY;
        for _ in 0..COPIES {
            let (start, end) = (self.event(true)?, Arc::new(self.event(true)?));
            start.record(&stream)?;
            buffer = stream.upload(buffer, bytes, &memory, 0, &end)?.finish()?;
            best = end.seconds_since(&start)?.min(best);
        }
        Ok(bytes as f64 / best.max(1e-9))
    }

    /// A host buffer of at least `bytes` bytes from which the device copies without staging. [`Error::Resource`] if the host has too little
    /// memory.
    pub fn pinned(self: &Arc<Self>, sys: &Sys, bytes: usize) -> Result<Pinned> {
        let mut buffer = sys.page_buf(bytes)?;
        self.bind()?;
        // SAFETY: the buffer's memory stays where it is until `Pinned` has taken the registration back.
        let registered = unsafe { sys::cuMemHostRegister_v2(buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        registered.result().map_err(not_pinned)?;
        Ok(Pinned { device: Arc::clone(self), buffer: Some(buffer) })
    }
}

/// If pinning fails, it is host memory that is short.
fn not_pinned(e: DriverError) -> Error {
    const ACTION: &str = "pin a host buffer";
    if e.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return failed(ACTION)(e);
    }
    let what = format!("{}: the host lets no more be pinned; lower `memory` or `workers`", words(e));
    Error::Resource { action: ACTION, source: io::Error::new(io::ErrorKind::OutOfMemory, what) }
}

/// A pinned host buffer.
#[derive(Debug)]
pub struct Pinned {
    device: Arc<Device>,
    /// `None` only while it is dropped.
    buffer: Option<PageBuf>,
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.device.bind_to_release() {
            // The device may still write to it.
            std::mem::forget(self.buffer.take());
            return;
        }
        if let Some(buffer) = &mut self.buffer {
            // SAFETY: registered in `Device::pinned`; no copy is under way, `Upload` owns buffers that are copied.
            let _ = unsafe { sys::cuMemHostUnregister(buffer.as_mut_ptr().cast()) };
        }
    }
}

impl Stream {
    /// Copies the first `bytes` of `buffer` to `memory` at `offset`. Holds the buffer until `done`, which is recorded after the copy, has
    /// occurred.
    pub fn upload(
        &self,
        buffer: Pinned,
        bytes: usize,
        memory: &Memory,
        offset: usize,
        done: &Arc<Event>,
    ) -> Result<Upload> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes), "a copy fits");
        self.device.bind()?;
        let source = buffer.buffer.as_deref().unwrap_or_default();
        let source = &source[..bytes];
        // From here on `Upload` waits before it lets the buffer go, also where a call fails.
        // SAFETY: the buffer does not move or change while `Upload` owns it.
        let copied = unsafe { result::memcpy_htod_async(memory.at + offset as u64, source, self.stream) };
        let upload = Upload { buffer: Some(buffer), done: Arc::clone(done), stream: self.stream };
        copied.map_err(failed("copy a chunk to the device"))?;
        done.record(self)?;
        Ok(upload)
    }

    /// Copies `bytes` of `memory` at `offset` to `buffer`. Holds the buffer until `done`, which is recorded after the copy, has occurred.
    pub fn download(
        &self,
        memory: &Memory,
        offset: usize,
        bytes: usize,
        mut buffer: Pinned,
        done: &Arc<Event>,
    ) -> Result<Download> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes), "a copy fits");
        self.device.bind()?;
        let target = &mut buffer.as_mut()[..bytes];
        // From here on `Download` waits before it releases the buffer, even if a call fails.
        // SAFETY: the buffer does not move and is not read while `Download` owns it.
        let copied = unsafe { result::memcpy_dtoh_async(target, memory.at + offset as u64, self.stream) };
        let download = Download(Upload { buffer: Some(buffer), done: Arc::clone(done), stream: self.stream });
        copied.map_err(failed("copy results from the device"))?;
        done.record(self)?;
        Ok(download)
    }
}

/// A copy from a host buffer in progress.
#[derive(Debug)]
pub struct Upload {
    /// `None` after the buffer was taken.
    buffer: Option<Pinned>,
    done: Arc<Event>,
    stream: sys::CUstream,
}

// SAFETY: streams may be used from any thread; each call makes the context current first.
unsafe impl Send for Upload {}

impl Upload {
    /// Whether the copy is complete.
    pub fn is_done(&self) -> Result<bool> {
        self.done.is_done()
    }

    /// Waits for the copy and returns the buffer.
    pub fn finish(mut self) -> Result<Pinned> {
        self.done.wait_for("copy between the host and the device")?;
        Ok(self.buffer.take().expect("taken once"))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(buffer) = &self.buffer
            && buffer.device.bind_to_release()
        {
            // An upload ends early only where a run fails. After an error of the device nothing runs on it any
            // more, so that the buffer can go in either case; that of a lost one stays.
            // SAFETY: streams outlive uploads: the backend drops them later.
            let _ = buffer.device.wait("finish a copy", || unsafe { sys::cuStreamQuery(self.stream) });
        }
    }
}

/// A copy into a host buffer in progress.
#[derive(Debug)]
pub struct Download(Upload);

impl Download {
    /// Whether the copy is complete.
    pub fn is_done(&self) -> Result<bool> {
        self.0.is_done()
    }

    /// Waits for the copy and returns the buffer.
    pub fn finish(self) -> Result<Pinned> {
        self.0.finish()
    }
}
