//! SpTTMc on the CPU or a GPU.

use super::gpu::{self, Gpu};
use super::mttkrp::{Modes, check_modes, check_rank};
use super::{Engine, ExecutionPlan};
#[cfg(feature = "cuda")]
use crate::backend::cuda::CudaBackend;
use crate::backend::device::{DeviceLimits, KernelReport, staging_bytes};
use crate::backend::host::{HostBackend, decoded_bytes};
use crate::backend::plan::DevicePlan;
#[cfg(feature = "cuda")]
use crate::dense::FactorView;
use crate::dense::{MatrixRef, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::ModeMatrix;
#[cfg(feature = "cuda")]
use crate::op::mttkrp::cuda::DeviceMttkrp;
use crate::op::ttmc::{Ttmc, host_bytes, matrices_bytes};
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::{Limits, PassReport, Span, buffers_bytes};

/// A request for SpTTMc.
#[derive(Clone, Debug)]
pub(crate) struct TtmcRequest {
    /// The modes, from 0.
    pub modes: Vec<usize>,
    /// Columns of each mode's factor.
    pub ranks: Vec<usize>,
    pub passes: u32,
    /// Bytes that a check holds beside factors and results.
    pub checked: Option<u64>,
}

/// The outcome of an SpTTMc.
pub(crate) struct TtmcOutcome<T> {
    pub results: Vec<ModeMatrix<T>>,
    pub passes: Vec<PassReport>,
    pub spans: Vec<Span>,
    /// What was used in the end.
    pub plan: ExecutionPlan,
    /// The kernels, on a GPU.
    pub kernels: Option<KernelReport>,
}

impl Engine {
    /// For each of `modes` with its number, from 0: `Y[i, :]`, the sum over the nonzeros with index i in this mode of their values times
    /// the Kronecker product, over the other modes, of the rows of their factors: `dims[mode]` x the product of the other ranks, the last
    /// mode's rank fastest. `factors[m]` is `dims[m]` x a rank of its own. (Liu et al., CLUSTER 2017, equation 4.)
    ///
    /// On the CPU, results have the same bits for any number of threads, memory and chunks; on a GPU, if the engine is
    /// [deterministic](super::EngineBuilder::deterministic).
    ///
    /// ```
    /// # use blco::{Engine, Matrix, Modes, PackOptions, ReadOptions};
    /// # fn main() -> blco::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (text, path) = (dir.path().join("movies.tns"), dir.path().join("movies.blco"));
    /// # std::fs::write(&text, "1 1 1 5\n2 1 3 3\n2 2 1 1\n2 2 2 4\n").unwrap();
    /// # let engine = Engine::new()?;
    /// # engine.pack(&mut engine.read_text(&text, ReadOptions::default())?, &PackOptions::new(path.clone()))?;
    /// let store = engine.open(&path)?; // 2 x 2 x 3
    /// let ones = |rows, rank| Matrix::from_rows(rows, rank, vec![1.0; rows * rank]);
    /// let factors = [ones(2, 4), ones(2, 3), ones(3, 2)];
    /// let results = engine.ttmc(&store, &factors, Modes::Only(&[0]))?;
    /// let (mode, result) = &results[0];
    /// assert_eq!((*mode, result.rows(), result.columns()), (0, 2, 6));
    /// assert_eq!(result.row(1), [8.0; 6]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for factors of other shapes, or if memory cannot hold the results; errors of reading the store.
    pub fn ttmc<'f, T: Real>(
        &self,
        store: &Store,
        factors: impl IntoIterator<Item = impl Into<MatrixRef<'f, T>>>,
        modes: Modes<'_>,
    ) -> Result<Vec<ModeMatrix<T>>> {
        let factors: Vec<MatrixRef<'f, T>> = factors.into_iter().map(Into::into).collect();
        let ranks: Vec<usize> = factors.iter().map(MatrixRef::columns).collect();
        let request = ttmc_request(store, ranks, modes)?;
        for (mode, (factor, &dim)) in factors.iter().zip(store.manifest().shape.dims()).enumerate() {
            if factor.rows() != dim as usize {
                let what = format!("the factor of mode {} has {} rows, not {dim}", mode + 1, factor.rows());
                return Err(Error::request(what));
            }
        }
        let plan = self.settle_ttmc::<T>(store, &request)?;
        Ok(self.run_ttmc(store, &request, &plan, &factors)?.results)
    }

    /// Plans SpTTMc of `modes` with factors of these ranks, one for each mode of the tensor, in the precision `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] if memory is too small.
    pub fn plan_ttmc<T: Real>(
        &self,
        store: &Store,
        ranks: &[usize],
        modes: Modes<'_>,
    ) -> Result<ExecutionPlan> {
        self.settle_ttmc::<T>(store, &ttmc_request(store, ranks.to_vec(), modes)?)
    }

    pub(crate) fn settle_ttmc<T: Real>(&self, store: &Store, request: &TtmcRequest) -> Result<ExecutionPlan> {
        let TtmcRequest { modes, ranks, passes, checked } = request;
        let (manifest, threads) = (store.manifest(), self.threads());
        let served = self.options().on_gpu(store, modes);
        let matrices = matrices_bytes::<T>(manifest, modes, ranks);
        let beside_gpu = matrices.saturating_add(staging_bytes(matrices));
        let find = |gpu: &Gpu, limits: &DeviceLimits| {
            let taken = beside_gpu.saturating_add(buffers_bytes(store, threads));
            let limits = DeviceLimits { host_memory: limits.host_memory.saturating_sub(taken), ..*limits };
            gpu::plan_ttmc::<T>(gpu, &served, (modes, ranks), &limits)
        };
        let (device, notes) = self.choose(*passes, find)?;
        let (store, bytes) = if let Some(plan) = &device {
            (&served, beside_gpu.saturating_add(plan.host_bytes))
        } else {
            let decoded = decoded_bytes(manifest.shape.order(), threads);
            (store, host_bytes::<T>(manifest, modes, ranks, threads).saturating_add(decoded))
        };
        let checking = |bytes: u64| matrices_bytes::<T>(manifest, modes, ranks).saturating_add(bytes);
        let less = if modes.len() > 1 {
            "take fewer modes at a time or smaller ranks"
        } else {
            "take smaller ranks"
        };
        let held = device.as_ref().map_or(0, DevicePlan::held_chunks);
        let limits = Limits { held, afterwards: checked.map_or(0, checking), less, ..self.limits(*passes) };
        let host = self.plan_host(store, bytes, &limits)?;
        Ok(ExecutionPlan { host, device, devices: None, notes, mode_sorted: None, made_for: None })
    }

    /// Runs it by `plan`.
    pub(crate) fn run_ttmc<T: Real>(
        &self,
        store: &Store,
        request: &TtmcRequest,
        plan: &ExecutionPlan,
        factors: &[MatrixRef<'_, T>],
    ) -> Result<TtmcOutcome<T>> {
        let store = &store.clone().with_direct_reads(plan.host.direct_reads).with_sys(self.sys());
        let vectors = self.options().vectors;
        #[cfg(feature = "cuda")]
        if let Some(device) = &plan.device {
            return self.install(|| self.run_ttmc_on_gpu(store, request, (plan, device), factors));
        }
        self.install(|| {
            let op = Ttmc::new(store, factors, &request.modes)?.with_vectors(vectors);
            let mut backend = HostBackend::for_threads(store, op, self.threads())?;
            let again = |backend: &mut HostBackend<Ttmc<'_, T>>, _| backend.op().reset();
            let passes = (store, request.passes);
            let (passes, spans) = self.passes(passes, &plan.host, &mut backend, again)?;
            let (results, plan) = (backend.into_op().finish(), plan.clone());
            Ok(TtmcOutcome { results, passes, spans, plan, kernels: None })
        })
    }
}

#[cfg(feature = "cuda")]
impl Engine {
    fn run_ttmc_on_gpu<T: Real>(
        &self,
        store: &Store,
        request: &TtmcRequest,
        (plan, device): (&ExecutionPlan, &DevicePlan),
        factors: &[MatrixRef<'_, T>],
    ) -> Result<TtmcOutcome<T>> {
        let TtmcRequest { modes, ranks, passes, .. } = request;
        let (gpu, store) = (&self.gpu()?, &self.options().on_gpu(store, modes));
        let mut op = DeviceMttkrp::ttmc(gpu, store, ranks, modes, &self.kernels(device))?;
        op.put(factors.iter().map(|factor| FactorView::Host(*factor)))?;
        let mut backend = CudaBackend::new(gpu, store, device, op)?;
        let (passes, spans) = self.passes((store, *passes), &plan.host, &mut backend, |_, _| ())?;
        let plan = plan.with_used((backend.plan(), backend.notes()));
        let (results, kernels) = (backend.op().results(self.sys())?, Some(backend.op().kernels().clone()));
        Ok(TtmcOutcome { results, passes, spans, plan, kernels })
    }
}

fn ttmc_request(store: &Store, ranks: Vec<usize>, modes: Modes<'_>) -> Result<TtmcRequest> {
    let shape: &Shape = &store.manifest().shape;
    let modes = modes.of(shape.order());
    check_modes(&modes, shape.order())?;
    if ranks.len() != shape.order() {
        let what = format!("{} factors for a tensor of order {}", ranks.len(), shape.order());
        return Err(Error::request(what));
    }
    ranks.iter().try_for_each(|&rank| check_rank(rank))?;
    Ok(TtmcRequest { modes, ranks, passes: 1, checked: None })
}
