//! MTTKRP's passes on a GPU.

use super::{Passes, Results};
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::driver::Pinned;
use crate::backend::device::KernelReport;
use crate::backend::plan::DevicePlan;
use crate::dense::{FactorView, Real};
use crate::engine::Engine;
use crate::error::Result;
use crate::op::mttkrp::ModeMatrix;
use crate::op::mttkrp::cuda::DeviceMttkrp;
use crate::store::Store;
use crate::stream::{Executor, PassReport, Plan, Span};

/// Passes on a GPU.
#[derive(Debug)]
pub struct OnGpu<T: Real> {
    // Dropped first: its buffers are the backend's.
    executor: Executor<Pinned>,
    backend: CudaBackend<DeviceMttkrp<T>>,
    store: Store,
}

impl<T: Real> OnGpu<T> {
    pub fn new(
        engine: &Engine,
        store: &Store,
        (modes, rank): (&[usize], usize),
        plan: &Plan,
        device_plan: &DevicePlan,
    ) -> Result<Self> {
        let gpu = &engine.gpu()?;
        let store = &engine.options().on_gpu(store, modes);
        let op = DeviceMttkrp::prepare(gpu, store, rank, modes, &engine.kernels(device_plan))?;
        let mut backend = CudaBackend::new(gpu, store, device_plan, op)?;
        let executor = Executor::new(store, plan, &mut backend)?;
        Ok(Self { executor, backend, store: store.clone() })
    }
}

impl<T: Real> Passes<T> for OnGpu<T> {
    fn compute(
        &mut self,
        factors: &[FactorView<'_, T>],
        times: u32,
        results: Results<'_, '_, T>,
        passes: &mut Vec<PassReport>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<ModeMatrix<T>>> {
        self.backend.op().put(factors.iter().copied())?;
        for _ in 0..times {
            passes.push(self.executor.pass(&mut self.backend, progress)?);
        }
        match results {
            Results::Owned => self.backend.op().results(self.store.sys()),
            Results::OnHost(results) => self.backend.op().read_results(results).map(|()| Vec::new()),
            Results::OnDevice(results) => self.backend.op().copy_results(results).map(|()| Vec::new()),
        }
    }

    fn spans(&self) -> &[Span] {
        self.executor.spans()
    }

    fn used(&self) -> Option<(&DevicePlan, &[String])> {
        Some((self.backend.plan(), self.backend.notes()))
    }

    fn kernels(&mut self) -> Option<KernelReport> {
        Some(self.backend.op().kernels().clone())
    }
}
