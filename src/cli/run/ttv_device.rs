//! TTV on a GPU as `blco-run` uses it. Without the feature `cuda` the same names, with nothing behind them.

#[cfg(feature = "cuda")]
pub use with_cuda::*;
#[cfg(not(feature = "cuda"))]
pub use without_cuda::*;

use crate::op::ttv::Sink;
use crate::store::Store;
use crate::stream::{PassReport, Plan, Span};

/// Passes of TTV along the leaves' mode of a store of trees.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of a GPU only"))]
pub struct Passes<'a, T> {
    pub store: &'a Store,
    pub plan: &'a Plan,
    pub vector: &'a [T],
    pub repeat: u32,
}

/// How they went.
pub struct Ran {
    pub elements: u64,
    pub passes: Vec<PassReport>,
    pub spans: Vec<Span>,
    /// What was allocated.
    pub plan: PipelinePlan,
    /// Where that was less than planned.
    pub notes: Vec<String>,
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use super::{Passes, Ran, Sink};
    use crate::backend::cuda::pipeline::{self, PipelineBackend};
    use crate::backend::cuda::{DeviceLimits, driver};
    use crate::cli::device::{Device, DeviceRequest, Real, TtvVariant};
    use crate::error::Result;
    use crate::op::ttv::cuda::{DeviceTtv, beside_device_bytes, device_demand};
    use crate::store::Store;
    use crate::stream::Executor;
    use bytesize::ByteSize;

    pub use crate::backend::cuda::pipeline::PipelinePlan;

    /// Opens the GPU and plans what to use of it.
    pub fn find<T: Real>(
        request: &DeviceRequest,
        store: &Store,
        mode: usize,
    ) -> Result<(Device, PipelinePlan)> {
        let device = driver::Device::open(request.number)?;
        let DeviceRequest { memory, lanes, passes, .. } = *request;
        let limits = DeviceLimits { memory, lanes, passes, ..DeviceLimits::default() };
        let plan = pipeline::plan(&device, store, &device_demand::<T>(store.manifest(), mode), &limits)?;
        Ok((device, plan))
    }

    /// The kernel that is asked for, or the one that serves where nobody asks.
    pub fn kernel(_: &Device, asked: Option<TtvVariant>) -> TtvVariant {
        asked.unwrap_or_default()
    }

    /// Bytes of host memory that passes by `plan` hold.
    pub fn host_bytes<T: Real>(store: &Store, mode: usize, threads: usize, plan: &PipelinePlan) -> u64 {
        beside_device_bytes::<T>(store.manifest(), mode, threads) + plan.host_bytes()
    }

    impl<T: Real> Passes<'_, T> {
        /// Streams elements out of the last pass.
        pub fn run(
            &self,
            (device, plan): (&Device, &PipelinePlan),
            variant: TtvVariant,
            sink: Option<Sink<'_>>,
            progress: &(dyn Fn(u64) + Sync),
        ) -> Result<Ran> {
            let op = DeviceTtv::new(device, self.store, self.vector, variant, sink)?;
            let mut backend = PipelineBackend::new(device, self.store, plan, op)?;
            let mut executor = Executor::new(self.store, self.plan, &mut backend)?;
            let mut passes = Vec::new();
            for pass in 1..=self.repeat {
                backend.op().reset(pass == self.repeat);
                passes.push(executor.pass(&mut backend, progress)?);
            }
            let spans = executor.spans().to_vec();
            let (plan, notes) = (backend.plan().clone(), backend.notes().to_vec());
            drop(executor);
            Ok(Ran { elements: backend.op().finish()?, passes, spans, plan, notes })
        }
    }

    /// What the GPU is called.
    pub fn name(plan: &PipelinePlan) -> &str {
        &plan.device.name
    }

    /// What `--plan` prints of the device.
    pub fn plan_text(plan: &PipelinePlan) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with two digits")]
        let link = plan.link_bytes_per_second as u64;
        format!(
            "  device  {} = vector and parts of sums {} + {} lanes of {} and results of at most {}; over the link ({}/s) {} in a pass: {:.4} s \
             at least\n",
            ByteSize(plan.memory_bytes),
            ByteSize(plan.operation_bytes),
            plan.lanes,
            ByteSize(plan.image_bytes),
            ByteSize(plan.result_bytes),
            ByteSize(link),
            ByteSize(plan.copied_bytes),
            plan.copy_seconds,
        )
    }
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, clippy::unused_self, reason = "the shapes of `with_cuda`")]
mod without_cuda {
    use super::{Passes, Ran, Sink};
    use crate::cli::device::{Device, DeviceRequest, Nothing, Real, TtvVariant};
    use crate::error::{Error, Result};
    use crate::store::Store;

    pub type PipelinePlan = Nothing;

    pub fn find<T>(_: &DeviceRequest, _: &Store, _: usize) -> Result<(Device, PipelinePlan)> {
        Err(Error::request("this program was built without CUDA (feature `cuda`)"))
    }

    pub fn kernel(device: &Device, _: Option<TtvVariant>) -> TtvVariant {
        match *device {}
    }

    pub fn host_bytes<T>(_: &Store, _: usize, _: usize, plan: &PipelinePlan) -> u64 {
        match *plan {}
    }

    impl<T: Real> Passes<'_, T> {
        pub fn run(
            &self,
            (device, _): (&Device, &PipelinePlan),
            _: TtvVariant,
            _: Option<Sink<'_>>,
            _: &(dyn Fn(u64) + Sync),
        ) -> Result<Ran> {
            match *device {}
        }
    }

    pub fn name(plan: &PipelinePlan) -> &str {
        match *plan {}
    }

    pub fn plan_text(plan: &PipelinePlan) -> String {
        match *plan {}
    }
}
