//! The GPU as `blco-run` uses it. Without the feature `cuda` the same names, with nothing behind them.

#[cfg(feature = "cuda")]
pub use with_cuda::*;
#[cfg(not(feature = "cuda"))]
pub use without_cuda::*;

use crate::shape::Shape;
use crate::store::Store;
use crate::stream::{PassReport, Plan, Span};
use std::str::FromStr;

/// What is asked of the GPU.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of a GPU only"))]
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest {
    /// Which one.
    pub number: usize,
    /// Bytes of its memory.
    pub memory: Option<u64>,
    /// Lanes.
    pub lanes: Option<usize>,
    /// Bytes of host memory that the command may take.
    pub host_memory: u64,
    /// Passes that are to come.
    pub passes: u32,
    /// Which order of the nonzeros.
    pub order: DeviceOrder,
    /// Whether results must have the same bits in every run.
    pub deterministic: bool,
}

/// A kernel's variant by name.
#[derive(Clone, Copy, Debug)]
pub enum KernelVariant {
    Mttkrp(Variant),
    Ttv(TtvVariant),
}

impl FromStr for KernelVariant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::Ttv).or_else(|_| text.parse().map(Self::Mttkrp))
    }
}

/// Passes over a store on a GPU.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of a GPU only"))]
pub struct Passes<'a> {
    pub store: &'a Store,
    pub plan: &'a Plan,
    pub device_plan: &'a DevicePlan,
    pub repeat: u32,
    pub kernels: &'a KernelSource,
}

/// How passes went.
pub struct Ran {
    pub passes: Vec<PassReport>,
    pub spans: Vec<Span>,
    /// What was allocated.
    pub plan: DevicePlan,
    /// Where that was less than planned.
    pub notes: Vec<String>,
    pub kernels: KernelReport,
}

/// Bytes of host memory that MTTKRP on a GPU holds: factors and results.
pub fn host_bytes<T>(shape: &Shape, modes: &[usize], rank: usize) -> u64 {
    let rows = |m: usize| u64::from(shape.dims()[m]);
    let all: u64 = (0..shape.order()).map(rows).sum::<u64>() + modes.iter().map(|&m| rows(m)).sum::<u64>();
    all * rank as u64 * size_of::<T>() as u64
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use super::{DeviceRequest, Passes, Ran};
    use crate::backend::cuda::{self, CudaBackend, DeviceLimits, ModeOrder, Operation, abi};
    use crate::cli::engine::{Demand, StreamedOp, kept_text, memory_text};
    use crate::decomp::cuda::{DevicePlace, device_bytes as cpd_bytes};
    use crate::decomp::{Init, Job, Outcome, Settings, Watch};
    use crate::dense::Matrix;
    use crate::error::Result;
    use crate::op::mttkrp::ModeMatrix;
    use crate::op::mttkrp::cuda::{DeviceMttkrp, device_bytes, sorted_bytes};
    use crate::store::Store;
    use crate::stream::{Executor, Plan, buffers_bytes};
    use bytesize::ByteSize;
    use std::path::Path;
    use std::sync::Arc;

    pub use crate::backend::cuda::driver::is_installed;
    pub use crate::backend::cuda::kernels::{LoadedReport as KernelReport, Source as KernelSource, Variant};
    pub use crate::backend::cuda::ttv::Variant as TtvVariant;
    pub use crate::backend::cuda::{DeviceOrder, DevicePlan};

    /// An open GPU.
    pub type Device = Arc<cuda::driver::Device>;

    /// A number that can go to a GPU.
    pub trait Real: crate::dense::Real + bytemuck::Pod {}
    impl<T: crate::dense::Real + bytemuck::Pod> Real for T {}

    /// Opens the GPU and plans what to use of it.
    pub fn find<T: Real>(
        request: &DeviceRequest,
        store: &Store,
        demand: &Demand<'_>,
    ) -> Result<(Device, DevicePlan)> {
        let device = cuda::driver::Device::open(request.number)?;
        let DeviceRequest { memory, lanes, passes, order, deterministic, .. } = *request;
        let Demand { modes, rank, beside_gpu, .. } = *demand;
        let shape = &store.manifest().shape;
        let bytes = match demand.operation {
            StreamedOp::Mttkrp => device_bytes::<T>(shape, modes, rank),
            StreamedOp::CpAls => cpd_bytes::<T>(shape, rank, device.facts.multiprocessors as usize),
        };
        let alternating = matches!(demand.operation, StreamedOp::CpAls);
        let operation = Operation { bytes, modes, rank, precision: T::PRECISION, sorted_bytes, alternating };
        let host_memory = request.host_memory.saturating_sub(beside_gpu + buffers_bytes(store));
        let limits = DeviceLimits { memory, lanes, host_memory, passes, order, deterministic };
        let plan = cuda::plan(&device, store, &operation, &limits)?;
        Ok((device, plan))
    }

    /// The longest chain of additions in the precision of the factors.
    pub const CHAIN: u32 = abi::SHARE;

    /// What the GPU is called.
    pub fn name(plan: &DevicePlan) -> &str {
        &plan.device.name
    }

    /// The first chunks, which are not needed from the host from the second pass on.
    pub fn held(store: &Store, plan: &DevicePlan) -> usize {
        plan.held_chunks(store)
    }

    /// Bytes of host memory that sorted nonzeros take.
    pub fn host_order_bytes(plan: &DevicePlan) -> u64 {
        plan.host_bytes()
    }

    impl Passes<'_> {
        /// Where kernels come from, with what the plan knows.
        fn kernels(&self) -> KernelSource {
            KernelSource { rows_per_nonzero: self.device_plan.rows_per_nonzero, ..self.kernels.clone() }
        }

        /// MTTKRP of `modes`: the results of the last pass.
        pub fn mttkrp<T: Real>(
            &self,
            device: &Device,
            factors: &[Matrix<T>],
            modes: &[usize],
            progress: &(dyn Fn(u64) + Sync),
        ) -> Result<(Vec<ModeMatrix<T>>, Ran)> {
            let op = DeviceMttkrp::new(device, self.store, factors, modes, &self.kernels())?;
            let mut backend = CudaBackend::new(device, self.store, self.device_plan, op)?;
            let mut executor = Executor::new(self.store, self.plan, &mut backend)?;
            let passes =
                (0..self.repeat).map(|_| executor.pass(&mut backend, progress)).collect::<Result<_>>()?;
            let spans = executor.spans().to_vec();
            let (plan, notes) = (backend.plan().clone(), backend.notes().to_vec());
            let op = backend.op();
            let kernels = op.kernels().clone();
            Ok((op.results(self.store.sys())?, Ran { passes, spans, plan, notes, kernels }))
        }
    }

    impl Passes<'_> {
        /// A CP decomposition.
        pub fn decompose<T: Real>(
            &self,
            device: &Device,
            job: &mut Job<'_>,
            init: Init<T>,
            watch: &(dyn Fn(&Watch<'_>) + Sync),
        ) -> Result<(Outcome<T>, Ran)> {
            let Settings { rank, nonneg, .. } = job.settings;
            let op = DeviceMttkrp::alternating(device, self.store, rank, &self.kernels())?;
            let plans = (self.plan, self.device_plan);
            let mut place = DevicePlace::new(device, self.store, plans, op, rank, nonneg)?;
            let outcome = crate::decomp::run(job, init, &mut place, watch)?;
            let (plan, notes) = place.allocated();
            let kernels = place.kernels().clone();
            Ok((outcome, Ran { passes: Vec::new(), spans: Vec::new(), plan, notes, kernels }))
        }
    }

    /// What `--plan` prints of `what` is to be done to a store; `passes` says how many that takes.
    pub fn plan_text(store: &Path, what: &str, passes: &str, plan: &Plan, device: &DevicePlan) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with two digits")]
        let link = device.link_bytes_per_second as u64;
        let held = match device.host_bytes() {
            0 => "factors and results",
            _ => "factors, results and sorted nonzeros",
        };
        format!(
            "{}: {what}, on {}\n  device  {} = factors, sums and results {} + {} lanes of {} + {} \
             of {} chunks that stay, {} + orders {}\n  host    {} + {}\n  a pass  {} in {} chunks, {passes}; over the link ({}/s) {} in the first, {} in later ones: \
             {:.4} s at least\n{}",
            store.display(),
            device.device.name,
            ByteSize(device.memory_bytes),
            ByteSize(device.operation_bytes),
            device.lanes,
            ByteSize(device.lane_bytes + device.staging_bytes),
            device.resident_chunks,
            plan.chunks,
            ByteSize(device.resident_bytes),
            ByteSize(device.derived_bytes),
            memory_text(plan, held, "pinned buffers"),
            kept_text(plan),
            ByteSize(plan.file_bytes),
            plan.chunks,
            ByteSize(link),
            ByteSize(device.first_pass_bytes),
            ByteSize(device.later_pass_bytes),
            device.later_pass_copy_seconds,
            orders_text(device),
        )
    }

    /// Which order serves each mode, a line each.
    pub fn orders_text(device: &DevicePlan) -> String {
        let line = |order: &ModeOrder| {
            let which = match (order.target, order.in_host_memory) {
                (true, true) => "sorted by row, streamed from host memory",
                (true, false) => "sorted by row",
                (false, _) => "the store's",
            };
            let since = if device.deterministic { "" } else { ", from the second pass on" };
            format!("  order   mode {}: {which}{since}; {}\n", order.mode, order.why)
        };
        device.orders.iter().map(line).collect()
    }
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, clippy::unused_self, reason = "the shapes of `with_cuda`")]
mod without_cuda {
    use super::{DeviceRequest, Passes, Ran};
    use crate::cli::engine::Demand;
    use crate::decomp::{Init, Job, Outcome, Watch};
    use crate::dense::Matrix;
    use crate::error::{Error, Result};
    use crate::op::mttkrp::ModeMatrix;
    use crate::store::Store;
    use crate::stream::Plan;
    use std::path::Path;

    /// What only a GPU has: nothing.
    #[derive(Clone, Debug, serde::Serialize)]
    pub enum Nothing {}
    /// No kernel has a name.
    #[derive(Clone, Copy, Debug, serde::Serialize)]
    pub enum NoKernel {}

    pub type Device = Nothing;
    pub type DevicePlan = Nothing;
    pub type KernelReport = Nothing;
    /// Nothing is put in another order.
    #[derive(Clone, Copy, Debug)]
    pub enum DeviceOrder {
        Auto,
        Store,
        Target,
        Host,
    }
    /// Nothing is loaded.
    #[derive(Default)]
    #[expect(dead_code, reason = "asked of a GPU only")]
    pub struct KernelSource {
        pub compile: Option<bool>,
        pub cache: Option<std::path::PathBuf>,
        pub variant: Option<Variant>,
        pub rows_per_nonzero: Option<f64>,
    }
    pub type Variant = NoKernel;
    pub type TtvVariant = NoKernel;

    impl std::str::FromStr for NoKernel {
        type Err = String;

        fn from_str(_: &str) -> std::result::Result<Self, String> {
            Err("this program was built without CUDA (feature `cuda`)".into())
        }
    }
    pub use crate::dense::Real;

    pub fn is_installed() -> bool {
        false
    }

    pub fn find<T>(_: &DeviceRequest, _: &Store, _: &Demand<'_>) -> Result<(Device, DevicePlan)> {
        Err(Error::request("this program was built without CUDA (feature `cuda`)"))
    }

    pub const CHAIN: u32 = 1;

    pub fn name(plan: &DevicePlan) -> &str {
        match *plan {}
    }

    pub fn held(_: &Store, plan: &DevicePlan) -> usize {
        match *plan {}
    }

    pub fn host_order_bytes(plan: &DevicePlan) -> u64 {
        match *plan {}
    }

    impl Passes<'_> {
        pub fn mttkrp<T>(
            &self,
            device: &Device,
            _: &[Matrix<T>],
            _: &[usize],
            _: &(dyn Fn(u64) + Sync),
        ) -> Result<(Vec<ModeMatrix<T>>, Ran)> {
            match *device {}
        }
    }

    impl Passes<'_> {
        pub fn decompose<T: Real>(
            &self,
            device: &Device,
            _: &mut Job<'_>,
            _: Init<T>,
            _: &(dyn Fn(&Watch<'_>) + Sync),
        ) -> Result<(Outcome<T>, Ran)> {
            match *device {}
        }
    }

    pub fn plan_text(_: &Path, _: &str, _: &str, _: &Plan, device: &DevicePlan) -> String {
        match *device {}
    }
}
