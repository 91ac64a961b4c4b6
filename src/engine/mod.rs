//! The facade. An [`Engine`] knows the device, the number of threads and the memory, and has a function for each
//! operation. It is the only module below the programs that looks at the machine.
//!
//! An operation is first planned ([`ExecutionPlan`]) from the store's manifest and the machine, before it allocates
//! anything. Then it runs. `plan_*` returns only the plan. [`Engine::prepare_mttkrp`] and [`Engine::prepare_cp_als`]
//! return sessions, which keep buffers and chunks in host and device memory between calls.

pub(crate) mod compare;
mod cp;
mod demand;
mod devices;
mod forecast;
pub(crate) mod gpu;
mod inner;
pub(crate) mod machine;
pub(crate) mod members;
mod mttkrp;
mod options;
mod pack;
mod parts;
mod plan;
mod stream;
mod ttm;
mod ttmc;
mod ttv;

pub use cp::{Cp, CpSession};
pub use demand::Demand;
pub use devices::DeviceSet;
pub(crate) use forecast::{Estimate, Forecast, MACHINES_MAX, Machines};
pub(crate) use inner::NumberOutcome;
pub(crate) use mttkrp::chain;
pub use mttkrp::{Modes, MttkrpSession};
pub use options::{Device, Options};
pub(crate) use pack::repacking;
pub use plan::{ExecutionPlan, ModeSortedPlan};
pub(crate) use ttm::{TtmOutcome, TtmPlan, TtmRequest, Way};
pub(crate) use ttmc::TtmcRequest;
pub(crate) use ttv::{TtvOutcome, TtvPlan, TtvRequest};

use crate::backend::device::DeviceOrder;
use crate::backend::devices::Divide;
use crate::error::Result;
use crate::format::ChunkFormat;
use crate::members::{Group, Links};
use crate::store::{Formats, Store};
use crate::stream::{program_bytes, too_little};
use crate::sys::Sys;
use gpu::Gpu;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step, in one word.
    pub what: &'static str,
    /// Nonzeros done.
    pub done: u64,
    /// All nonzeros of the step, if known.
    pub total: Option<u64>,
}

/// Receives progress, on any thread.
type ProgressWatch = Box<dyn Fn(Progress) + Send + Sync>;

/// Cancels an engine's operations.
#[derive(Clone, Debug)]
pub struct Cancel(Sys);

impl Cancel {
    /// Cancels running operations, and new ones until [`Cancel::reset`]. They return [`Error::Cancelled`](crate::Error::Cancelled) and
    /// leave nothing half-written.
    pub fn cancel(&self) {
        self.0.cancel_flag().store(true, Ordering::Relaxed);
    }

    /// Allows operations again.
    pub fn reset(&self) {
        self.0.cancel_flag().store(false, Ordering::Relaxed);
    }
}

/// Where and how to compute, with its own thread pool. Clones share the same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    sys: Sys,
    formats: Formats,
    options: Options,
    pool: Arc<rayon::ThreadPool>,
    /// Opened on first use.
    gpu: Arc<Mutex<Option<Gpu>>>,
    /// The same for several GPUs, by their numbers.
    gpus: Arc<Mutex<Vec<(usize, Gpu)>>>,
    /// The processes that compute together, if there are several.
    members: Option<Group>,
    watch: Option<ProgressWatch>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Builds an [`Engine`]. Every option has a default.
#[derive(Default)]
pub struct EngineBuilder {
    sys: Sys,
    formats: Formats,
    options: Options,
    members: Option<Group>,
    watch: Option<ProgressWatch>,
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

impl EngineBuilder {
    /// The device [default: a GPU if one is present and large enough, else the CPU].
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.options.device = device;
        self
    }

    /// The number of the GPU, from 0 [default: 0].
    #[must_use]
    pub fn device_number(mut self, number: usize) -> Self {
        self.options.device_number = number;
        self
    }

    /// Which GPUs compute MTTKRP and CP decompositions together [default: one]. What is said of the GPU's memory holds for each.
    /// [Deterministic](Self::deterministic) results have the bits of one.
    #[must_use]
    pub fn devices(mut self, devices: DeviceSet) -> Self {
        self.options.devices = Some(devices);
        self
    }

    /// How several GPUs divide the work [default: as is expected to take the least time].
    #[must_use]
    pub fn divide(mut self, divide: Divide) -> Self {
        self.options.divide = divide;
        self
    }

    /// How long a thread waits for a GPU before the run ends with an error [default: ten minutes]. What the engine has on a GPU that does not
    /// answer is not released before the process ends.
    #[must_use]
    pub fn device_timeout(mut self, timeout: Duration) -> Self {
        self.options.device_timeout = Some(timeout);
        self
    }

    /// The most bytes of GPU memory to use [default: what is free].
    #[must_use]
    pub fn device_memory(mut self, bytes: u64) -> Self {
        self.options.device_memory = Some(bytes);
        self
    }

    /// The order of nonzeros over several passes [default: the one that is expected to be fastest].
    #[must_use]
    pub fn device_order(mut self, order: DeviceOrder) -> Self {
        self.options.device_order = order;
        self
    }

    /// The number of compute threads [default: one per processor].
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = threads;
        self
    }

    /// Whether to pin each compute thread to a processor [default: no]. This helps on machines with several sockets, where memory lies
    /// near the thread that touched it first.
    #[must_use]
    pub fn pin_threads(mut self, pin: bool) -> Self {
        self.options.pin_threads = pin;
        self
    }

    /// The most bytes of memory for each operation and each session [default: the available memory].
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.options.memory = Some(bytes);
        self
    }

    /// The number of reading threads [default: one per compute thread, 2 to 12, or to 4 if files are read past the page cache].
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = Some(workers.max(1));
        self
    }

    /// The number of lanes: copies to the GPU in flight [default: 4].
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.options.lanes = Some(lanes.max(1));
        self
    }

    /// Whether NVRTC compiles GPU kernels for an operation [default: if NVRTC is installed].
    #[must_use]
    pub fn compile_kernels(mut self, compile: bool) -> Self {
        self.options.compile_kernels = Some(compile);
        self
    }

    /// The directory of compiled kernels [default: `$XDG_CACHE_HOME/blco` or `~/.cache/blco`].
    #[must_use]
    pub fn kernel_cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.options.kernel_cache = Some(directory.into());
        self
    }

    /// The directory for temporary files [default: the system's].
    #[must_use]
    pub fn temp_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.options.temp_dir = Some(directory.into());
        self
    }

    /// Whether results on a GPU have the same bits in every run, and those of several processes the bits of one [default: no]. On the CPU
    /// of one process they always have.
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.options.deterministic = deterministic;
        self
    }

    /// Has several processes compute MTTKRP and CP decompositions together, on CPUs or a GPU each. Process 0 calls the engine; the others
    /// call [`Engine::serve`].
    #[doc(hidden)]
    #[must_use]
    pub fn links(mut self, links: Arc<dyn Links>) -> Self {
        self.members = (links.count() > 1).then(|| Group::new(links));
        self
    }

    /// Registers a format, so that its stores can be opened.
    #[must_use]
    pub fn format<F: ChunkFormat>(mut self) -> Self {
        self.formats.register::<F>();
        self
    }

    /// Replaces all options.
    #[must_use]
    pub(crate) fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Calls `progress` with the progress of operations, on any thread.
    #[must_use]
    pub fn progress(mut self, watch: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// Uses this handle to the system.
    #[must_use]
    pub(crate) fn sys(mut self, sys: &Sys) -> Self {
        self.sys = sys.clone();
        self
    }

    /// Starts the threads. A GPU is opened when the first operation is planned.
    pub fn build(self) -> Result<Engine> {
        let Self { sys, formats, mut options, members, watch } = self;
        formats.check()?;
        if options.threads == 0 {
            options.threads = machine::processors().clamp(1, 1024);
        }
        options.kernel_cache = options.kernel_cache.or_else(machine::cache_directory);
        let pool = Arc::new(start(&sys, &options, options.threads)?);
        Ok(Engine {
            inner: Arc::new(Inner {
                sys,
                formats,
                options,
                pool,
                gpu: Arc::default(),
                gpus: Arc::default(),
                members,
                watch,
            }),
        })
    }
}

/// A pool of `threads` compute threads.
fn start(sys: &Sys, options: &Options, threads: usize) -> Result<rayon::ThreadPool> {
    if options.pin_threads { sys.pinned_pool(threads) } else { sys.pool(threads) }
}

impl Engine {
    /// An engine with default options.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A builder, for other options than the defaults.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// A handle to the same threads, memory bound and GPU with a cancel handle and progress of its own. Callers that share an engine, such
    /// as threads of a server, can each cancel and follow their own work.
    #[must_use]
    pub fn separate(&self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        let Inner { sys, formats, options, pool, gpu, gpus, members, .. } = &*self.inner;
        let inner = Inner {
            sys: sys.with_own_cancel(),
            formats: formats.clone(),
            options: options.clone(),
            pool: Arc::clone(pool),
            gpu: Arc::clone(gpu),
            gpus: Arc::clone(gpus),
            members: members.clone(),
            watch: Some(Box::new(progress)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A handle that cancels this engine's operations.
    #[must_use]
    pub fn cancel_handle(&self) -> Cancel {
        Cancel(self.inner.sys.clone())
    }

    /// The options.
    #[must_use]
    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Compute threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.options.threads
    }

    /// Opens a store.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) if there is no store, or memory cannot hold its list of chunks;
    /// [`Error::Corrupt`](crate::Error::Corrupt) if its manifest is damaged.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store> {
        self.open_for(path.as_ref(), true)
    }

    /// The same, for a pass or only to read the list of chunks. One of several processes opens its part if the tensor is divided.
    pub(crate) fn open_for(&self, path: &Path, pass: bool) -> Result<Store> {
        /// The plan of a pass already counts shorter lists.
        const LONG: u64 = 4 << 20;
        /// Leaves room for buffers and an operation beside a long list.
        const PASS: u64 = 24 << 20;
        let path = &*self.own_part(path)?;
        Store::open_if(self.sys(), self.formats(), path, |bytes| {
            let memory = self.options().memory;
            let bound = memory.unwrap_or_else(machine::available_memory);
            let held = if pass { Store::listed_bytes(bytes) + PASS } else { 0 };
            let least = program_bytes(self.threads()) + Store::opening_bytes(bytes).max(held);
            let what = format!(", most of which the list of chunks of {} takes", path.display());
            let fits = bytes < LONG || least <= bound;
            if fits { Ok(()) } else { Err(too_little(least, bound, memory.is_some(), &what, "")) }
        })
    }

    /// Runs `work` on this engine's threads.
    pub(crate) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.inner.pool.install(work)
    }

    /// The formats of stores that it opens.
    pub(crate) fn formats(&self) -> &Formats {
        &self.inner.formats
    }

    pub(crate) fn sys(&self) -> &Sys {
        &self.inner.sys
    }

    /// The GPU, which is opened on first use.
    pub(crate) fn gpu(&self) -> Result<Gpu> {
        let mut gpu = self.inner.gpu.lock().unwrap_or_else(PoisonError::into_inner);
        match &*gpu {
            Some(gpu) => Ok(gpu.clone()),
            None => Ok(gpu.insert(gpu::open(self.device_number(), self.options().device_timeout)?).clone()),
        }
    }

    /// The GPUs with these numbers, which are opened on first use.
    pub(crate) fn gpus(&self, numbers: &[usize]) -> Result<Vec<Gpu>> {
        let mut gpus = self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = |&number: &usize| {
            if let Some((_, gpu)) = gpus.iter().find(|(of, _)| *of == number) {
                return Ok(gpu.clone());
            }
            let gpu = gpu::open(number, self.options().device_timeout)?;
            gpus.push((number, gpu.clone()));
            Ok(gpu)
        };
        numbers.iter().map(&mut open).collect()
    }

    /// Closes the GPUs.
    pub(crate) fn close_gpu(&self) {
        self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.inner.gpu.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Reports progress.
    pub(crate) fn tell(&self, what: &'static str, done: u64, total: Option<u64>) {
        if let Some(watch) = &self.inner.watch {
            watch(Progress { what, done, total });
        }
    }
}
