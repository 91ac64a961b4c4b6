//! The CUDA driver behind types that release what they hold. It covers everything that the engine needs of a GPU, and is the only unsafe
//! code of the backend besides loading NVRTC.
//!
//! The library is loaded on first use; a build does not need it. Device memory is not memory to Rust: kernels that race on it compute wrong
//! results but cannot corrupt the host. A copy from a host buffer that is reused or freed could. [`Upload`] prevents this, since it owns
//! the buffer until the copy has ended. Every call is made with the device's context current on the calling thread.
//!
//! **A device that hangs.** Threads wait for events and streams by polling, for as long as [`Device::set_patience`] says. After that the device is
//! lost: waits end with an error at once, and nothing of it is released, since the driver would wait for it. What it may still write to is
//! left to the end of the process.

#![expect(unsafe_code, reason = "the driver is a C library")]

pub mod nccl;
mod peer;
mod staging;
mod transfer;

use crate::backend::device::Facts;
use crate::error::{Error, Result};
use bytemuck::Pod;
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUevent_flags_enum as Flags};
use cudarc::driver::{DriverError, result, sys};
use libloading::Library;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

pub use staging::Staging;
pub use transfer::{Download, Pinned, Upload};

/// The oldest supported driver interface: CUDA 12.0.
const DRIVER_MIN: i32 = 12000;
/// How long a thread waits for a device, unless an engine says otherwise.
const PATIENCE: Duration = Duration::from_mins(10);
/// For how long a thread asks without a pause, and how long the pauses are after that.
const BUSY: Duration = Duration::from_micros(500);
const PAUSE: Duration = Duration::from_micros(50);
/// The oldest supported compute capability.
const CAPABILITY_MIN: (u32, u32) = (7, 0);

/// Turns a driver's error into ours.
fn failed(action: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |e| {
        let out_of_memory = e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let remedy = if out_of_memory {
            ": less is free than was planned; run again, or with a lower `device_memory`"
        } else {
            ""
        };
        Error::Device { action, what: words(e) + remedy, out_of_memory }
    }
}

/// The driver's description of an error.
fn words(e: DriverError) -> String {
    let text = |s: std::result::Result<&CStr, DriverError>| {
        s.map_or_else(|_| String::from("unknown"), |s| s.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(e.error_name()), text(e.error_string()))
}

/// A GPU with its context. Everything created on it holds a reference to it.
#[derive(Debug)]
pub struct Device {
    ordinal: c_int,
    context: sys::CUcontext,
    /// Properties of the GPU.
    pub facts: Facts,
    /// In milliseconds.
    patience: AtomicU64,
    is_lost: AtomicBool,
}

// SAFETY: a context may be used from any thread; each call makes it current first.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Device {}

/// Whether a driver is installed at all. Its library then stays loaded: where memory ends, loading it once more could fail, which
/// cudarc answers with a panic.
#[must_use]
pub fn is_installed() -> bool {
    static DRIVER: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: loading the library runs its initializers, as for any program that is linked to it.
    let load = |name: String| unsafe { Library::new(name) }.ok();
    let driver = DRIVER.get_or_init(|| cudarc::get_lib_name_candidates("cuda").into_iter().find_map(load));
    driver.is_some()
}

impl Device {
    /// Opens GPU `number`, from 0. The error says what is missing.
    pub fn open(number: usize) -> Result<Arc<Self>> {
        let missing = |what: String| Error::request(format!("no CUDA device: {what}"));
        let count = c_int::try_from(Self::count()?).unwrap_or(c_int::MAX);
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(failed("ask for its version"))?;
        if version < DRIVER_MIN {
            let has = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
            return Err(missing(format!("the driver is of {has}; this program needs CUDA 12.0 or newer")));
        }
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        if ordinal >= count {
            return Err(missing(format!("device {number} of {count}; they are counted from 0")));
        }
        let device = result::device::get(ordinal).map_err(failed("open the device"))?;
        let attribute = |which| {
            // SAFETY: `device` is what the driver has just given.
            let value = unsafe { result::device::get_attribute(device, which) };
            value.map(|v| u32::try_from(v).unwrap_or(0)).map_err(failed("ask for the device's properties"))
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < CAPABILITY_MIN {
            let (major, minor) = capability;
            return Err(missing(format!(
                "device {number} has compute capability {major}.{minor}; the kernels need 7.0"
            )));
        }
        let facts = Facts {
            name: result::device::get_name(device).map_err(failed("ask for the device's name"))?,
            number,
            capability,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            // SAFETY: as above.
            total_bytes: unsafe { result::device::total_mem(device) }
                .map_err(failed("ask for the device's memory"))? as u64,
            driver_version: u32::try_from(version).unwrap_or(0),
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            // The clock is in kHz and the width in bits; memory transfers data on both edges.
            memory_bytes_per_second: f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?)
                * f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?)
                * (2.0 * 1000.0 / 8.0),
        };
        // SAFETY: as above; released once, on drop.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(failed("start work on the device"))?;
        let device = Self {
            ordinal: device,
            context,
            facts,
            patience: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
        };
        device.set_patience(PATIENCE);
        Ok(Arc::new(device))
    }

    /// Makes the context current on this thread.
    fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained while `self` lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("use the device"))
    }

    /// Makes the context current before a release, which nothing is of a lost device. Otherwise it is tried in any case: on a thread that made
    /// a call before, the context is current already.
    fn bind_to_release(&self) -> bool {
        if self.is_lost() {
            return false;
        }
        let _ = self.bind();
        true
    }

    /// How long threads wait for the device before it is lost.
    pub fn set_patience(&self, patience: Duration) {
        let milliseconds = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.patience.store(milliseconds, Ordering::Relaxed);
    }

    /// Whether a thread has waited in vain.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Waits until `ask` says that the device is done.
    fn wait(&self, action: &'static str, ask: impl Fn() -> sys::CUresult) -> Result<()> {
        self.bind()?;
        let begun = Instant::now();
        loop {
            match ask() {
                sys::CUresult::CUDA_SUCCESS => return Ok(()),
                sys::CUresult::CUDA_ERROR_NOT_READY => {}
                error => return Err(failed(action)(DriverError(error))),
            }
            let (waited, patience) = (begun.elapsed(), self.patience.load(Ordering::Relaxed));
            if self.is_lost() || waited.as_millis() > patience.into() {
                self.is_lost.store(true, Ordering::Relaxed);
                let seconds = Duration::from_millis(patience).as_secs_f64();
                let what = format!(
                    "no answer within {seconds} s (`device_timeout`): it hangs, or waits for one that hangs"
                );
                return Err(Error::Device { action, what, out_of_memory: false });
            }
            if waited < BUSY { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
    }

    /// Bytes of free device memory.
    pub fn free_bytes(&self) -> Result<u64> {
        self.bind()?;
        result::mem_get_info().map(|(free, _)| free as u64).map_err(failed("ask for free device memory"))
    }

    /// Allocates device memory.
    pub fn memory(self: &Arc<Self>, bytes: usize) -> Result<Memory> {
        self.bind()?;
        let bytes = bytes.max(1);
        // SAFETY: plain allocation; freed once, on drop.
        let at = unsafe { result::malloc_sync(bytes) }.map_err(failed("allocate device memory"))?;
        Ok(Memory { device: Arc::clone(self), at, bytes })
    }

    /// Allocates device memory that holds zeros.
    pub fn zeros(self: &Arc<Self>, bytes: usize) -> Result<Memory> {
        let (mut memory, stream) = (self.memory(bytes)?, self.stream(Priority::Highest)?);
        stream.fill(&mut memory, 0)?;
        stream.synchronize()?;
        Ok(memory)
    }

    /// Memory of this device that the caller holds, `bytes` from `address` on. Fails if the driver does not know it.
    /// (Memory that the host can access too is refused, since its owner may not expect a device to write it.)
    pub fn foreign(&self, address: u64, bytes: usize) -> Result<ForeignMemory> {
        use sys::CUpointer_attribute as Pointer;
        self.bind()?;
        let ask = |which| {
            let mut value = 0u64;
            // SAFETY: no attribute that is asked for is longer than the integer, which lives.
            let asked = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), which, address) };
            match asked.result() {
                Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)) => Ok(None),
                asked => asked.map(|()| Some(value)).map_err(failed("ask for an address")),
            }
        };
        let is = |which, wanted: u64| Ok::<_, Error>(ask(which)? == Some(wanted));
        let there =
            is(Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u64)?
                && is(Pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED, 0)?
                && is(Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, self.facts.number as u64)?;
        let begin = ask(Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?;
        let size = ask(Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?;
        let end = begin.zip(size).and_then(|(begin, size)| begin.checked_add(size));
        let wanted = address.checked_add(bytes as u64);
        if there && wanted.zip(end).is_some_and(|(wanted, end)| wanted <= end) {
            return Ok(ForeignMemory { at: address, bytes });
        }
        let number = self.facts.number;
        Err(Error::request(format!("GPU {number} has no {bytes} bytes of memory of its own at {address:#x}")))
    }

    /// Waits for all work on the default stream. Streams of [`Device::stream`] do not wait for it.
    pub fn finish_default_stream(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the default stream always exists.
        unsafe { result::stream::synchronize(std::ptr::null_mut()) }
            .map_err(failed("finish work on the default stream"))
    }

    /// A queue of work.
    pub fn stream(self: &Arc<Self>, priority: Priority) -> Result<Stream> {
        self.bind()?;
        let make = || {
            let (lowest, highest) = result::stream::get_priority_range()?;
            let priority = match priority {
                Priority::Highest => highest,
                // Lower numbers go first: of two priorities this is the higher one.
                Priority::Middle => (lowest + highest).div_euclid(2),
                Priority::Lowest => lowest,
            };
            result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority)
        };
        let stream = make().map_err(failed("create a stream"))?;
        Ok(Stream { device: Arc::clone(self), stream })
    }

    /// A mark in a stream that others can wait for. With `timed`, its time can be read.
    pub fn event(self: &Arc<Self>, timed: bool) -> Result<Event> {
        self.bind()?;
        let flags = if timed { Flags::CU_EVENT_DEFAULT } else { Flags::CU_EVENT_DISABLE_TIMING };
        let event = result::event::create(flags).map_err(failed("create an event"))?;
        Ok(Event { device: Arc::clone(self), event })
    }

    /// Loads kernels: a cubin, or PTX that ends in a zero byte.
    pub fn module(self: &Arc<Self>, image: &[u8]) -> Result<Arc<Module>> {
        self.bind()?;
        assert!(image.starts_with(b"\x7fELF") || image.ends_with(b"\0"), "PTX ends in a zero byte");
        // SAFETY: a cubin carries its length, PTX ends in a zero byte.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(failed("load the kernels"))?;
        Ok(Arc::new(Module { device: Arc::clone(self), module }))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_lost() {
            return;
        }
        // SAFETY: retained in `open`; nothing that uses the context is left.
        let _ = unsafe { result::primary_ctx::release(self.ordinal) };
    }
}

/// Device memory.
#[derive(Debug)]
pub struct Memory {
    device: Arc<Device>,
    at: sys::CUdeviceptr,
    bytes: usize,
}

impl Memory {
    /// The address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.at
    }

    /// The length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Writes `data` to the start of the memory, and waits.
    pub fn write<T: Pod>(&mut self, data: &[T]) -> Result<()> {
        self.write_at(0, data)
    }

    /// Writes `data` from byte `offset` on, and waits.
    pub fn write_at<T: Pod>(&mut self, offset: usize, data: &[T]) -> Result<()> {
        let end = offset.checked_add(size_of_val(data));
        assert!(end.is_some_and(|end| end <= self.bytes), "a copy fits the device memory");
        self.device.bind()?;
        // SAFETY: the range is inside the allocation; the call returns when `data` has been read.
        unsafe { result::memcpy_htod_sync(self.at + offset as u64, data) }
            .map_err(failed("copy to the device"))?;
        // The copy may still be under way: it is work of the default stream, for which other streams do not wait.
        self.device.finish_default_stream()
    }

    /// Reads from the start of the memory, and waits.
    pub fn read<T: Pod>(&self, data: &mut [T]) -> Result<()> {
        self.read_at(0, data)
    }

    /// Reads from byte `offset` on, and waits.
    pub fn read_at<T: Pod>(&self, offset: usize, data: &mut [T]) -> Result<()> {
        let end = offset.checked_add(size_of_val(data));
        assert!(end.is_some_and(|end| end <= self.bytes), "a copy fits the device memory");
        self.device.bind()?;
        // SAFETY: as above; any bytes are a valid `T`.
        unsafe { result::memcpy_dtoh_sync(data, self.at + offset as u64) }
            .map_err(failed("copy from the device"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.device.bind_to_release() {
            return;
        }
        // SAFETY: allocated by `Device::memory`, freed here only. The driver waits for work that uses it.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

/// Device memory that the caller holds.
#[derive(Clone, Copy, Debug)]
pub struct ForeignMemory {
    at: sys::CUdeviceptr,
    bytes: usize,
}

/// Whose work goes first where queues compete for the device.
#[derive(Clone, Copy, Debug)]
pub enum Priority {
    /// What other work waits for.
    Highest,
    /// What a chunk's buffer waits for.
    Middle,
    /// What can wait.
    Lowest,
}

/// A queue of work on the device.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    stream: sys::CUstream,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes later work on this stream wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.device.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.stream, event.event, flags) }
            .map_err(failed("wait for an event"))
    }

    /// Waits until all work on this stream is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives.
        self.device.wait("finish work on the device", || unsafe { sys::cuStreamQuery(self.stream) })
    }

    /// Starts some work and waits until it is done, even if a part of it cannot be started.
    pub fn finish(&self, start: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let (started, ended) = (start(self), self.synchronize());
        started.and(ended)
    }

    /// Sets the bytes of `memory` to `byte`.
    pub fn fill(&self, memory: &mut Memory, byte: u8) -> Result<()> {
        self.fill_first(memory, memory.bytes, byte)
    }

    /// Sets the first `bytes` of `memory` to `byte`.
    pub fn fill_first(&self, memory: &mut Memory, bytes: usize, byte: u8) -> Result<()> {
        assert!(bytes <= memory.bytes, "what is cleared is inside the device memory");
        self.device.bind()?;
        // SAFETY: the range is inside the allocation.
        unsafe { result::memset_d8_async(memory.at, byte, bytes, self.stream) }
            .map_err(failed("clear device memory"))
    }

    /// Copies all of `from` to the beginning of `to`.
    pub fn copy_in(&self, from: ForeignMemory, to: &mut Memory) -> Result<()> {
        assert!(from.bytes <= to.bytes, "a copy fits the device memory");
        self.copy(from.at, to.at, from.bytes)
    }

    /// Copies the beginning of `from` to all of `to`.
    pub fn copy_out(&self, from: &Memory, to: ForeignMemory) -> Result<()> {
        assert!(to.bytes <= from.bytes, "a copy fits the device memory");
        self.copy(from.at, to.at, to.bytes)
    }

    fn copy(&self, from: sys::CUdeviceptr, to: sys::CUdeviceptr, bytes: usize) -> Result<()> {
        self.device.bind()?;
        // SAFETY: both lie in device memory, by an allocation or the driver's word; what others do with theirs meanwhile makes
        // wrong numbers.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }
            .map_err(failed("copy on the device"))
    }

    /// Starts `grid` thread blocks of `threads` threads.
    pub fn launch<A: Pod>(&self, kernel: &Kernel, grid: u32, threads: u32, arguments: &A) -> Result<()> {
        self.launch_grid(kernel, (grid, 1), threads, arguments)
    }

    /// Starts a two-dimensional grid of thread blocks.
    pub fn launch_grid<A: Pod>(
        &self,
        kernel: &Kernel,
        grid: (u32, u32),
        threads: u32,
        arguments: &A,
    ) -> Result<()> {
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast()];
        self.launch_with(kernel, grid, threads, &mut parameters)
    }

    /// Starts `finish`: adds up `copies` of `elements` sums into `result`.
    pub fn launch_finish(
        &self,
        kernel: &Kernel,
        sums: &Memory,
        copies: u32,
        elements: u64,
        result: &Memory,
    ) -> Result<()> {
        const THREADS: u32 = 256;
        let (mut from, mut to, mut copies, mut count) = (sums.at, result.at, copies, elements);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut from).cast(), (&raw mut copies).cast(), (&raw mut count).cast(), (&raw mut to).cast()];
        let grid = u32::try_from(elements.div_ceil(THREADS.into()).clamp(1, 1 << 16)).unwrap_or(1);
        self.launch_with(kernel, (grid, 1), THREADS, &mut parameters)
    }

    fn launch_with(
        &self,
        kernel: &Kernel,
        grid: (u32, u32),
        threads: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the module lives as long as `kernel`; the driver copies the parameters before it returns. Kernels
        // touch device memory only.
        unsafe {
            result::launch_kernel(
                kernel.function,
                (grid.0, grid.1, 1),
                (threads, 1, 1),
                0,
                self.stream,
                parameters,
            )
        }
        .map_err(failed("start a kernel"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.device.bind_to_release() {
            return;
        }
        // SAFETY: created by `Device::stream`, destroyed here only; the driver finishes queued work.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    event: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: the driver locks.
unsafe impl Sync for Event {}

impl Event {
    /// Marks the end of all work on `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.device.bind()?;
        // SAFETY: both live.
        unsafe { result::event::record(self.event, stream.stream) }.map_err(failed("record an event"))
    }

    /// Whether that work is done; true if nothing was recorded.
    pub fn is_done(&self) -> Result<bool> {
        self.device.bind()?;
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(failed("ask for an event")(e)),
        }
    }

    /// Waits until that work is done.
    pub fn synchronize(&self) -> Result<()> {
        self.wait_for("finish work on the device")
    }

    /// Waits; an error says for what, by `action`.
    fn wait_for(&self, action: &'static str) -> Result<()> {
        // SAFETY: the event lives.
        self.device.wait(action, || unsafe { sys::cuEventQuery(self.event) })
    }

    /// Seconds from `start` to this event. Both must be timed and done.
    pub fn seconds_since(&self, start: &Self) -> Result<f64> {
        self.device.bind()?;
        // SAFETY: both live.
        let milliseconds = unsafe { result::event::elapsed(start.event, self.event) };
        milliseconds.map(|ms| f64::from(ms) / 1e3).map_err(failed("ask for a time"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.device.bind_to_release() {
            return;
        }
        // SAFETY: created by `Device::event`, destroyed here only.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

/// Loaded kernels.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    module: sys::CUmodule,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: the driver locks.
unsafe impl Sync for Module {}

impl Module {
    /// The kernel called `name`.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        self.device.bind()?;
        let name = CString::new(name).map_err(|e| Error::request(e.to_string()))?;
        // SAFETY: the module lives.
        let function =
            unsafe { result::module::get_function(self.module, name) }.map_err(failed("find a kernel"))?;
        Ok(Kernel { _module: Arc::clone(self), function })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if !self.device.bind_to_release() {
            return;
        }
        // SAFETY: loaded by `Device::module`, unloaded here only.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    _module: Arc<Module>,
    function: sys::CUfunction,
}

// SAFETY: functions may be used from any thread.
unsafe impl Send for Kernel {}
