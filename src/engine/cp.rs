//! CP decompositions on whatever there is.

use super::{Demand, Engine, ExecutionPlan};
use crate::backend::device::KernelReport;
use crate::backend::host::decoded_bytes;
use crate::decomp::checkpoint::Checkpointer;
use crate::decomp::host::{HostAls, host_bytes};
use crate::decomp::score::match_bytes;
use crate::decomp::{self, CpJob, CpWatch, Decomposition, Init, Problem, Settings, factor_bytes, solve};
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::{ModeSortedDemand, Mttkrp};
use crate::store::{Manifest, Store};

/// What a CP decomposition is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cp {
    pub(crate) settings: Settings,
    pub(crate) tol: f64,
    pub(crate) max_iters: u32,
    seed: u64,
    starts: u32,
}

impl Cp {
    /// Of `rank` components: at most 50 iterations, until the fit changes by less than 1e-4, from one start with seed 0.
    #[must_use]
    pub fn rank(rank: usize) -> Self {
        let settings = Settings { rank, ridge: 0.0, nonneg: false };
        Self { settings, tol: 1e-4, max_iters: 50, seed: 0, starts: 1 }
    }

    /// Whether factors may have no negative numbers (HALS).
    #[must_use]
    pub fn nonneg(mut self, nonneg: bool) -> Self {
        self.settings.nonneg = nonneg;
        self
    }

    /// Added to the diagonal of the Hadamard product of the other modes' Gram matrices, whose columns have length one.
    #[must_use]
    pub fn ridge(mut self, ridge: f64) -> Self {
        self.settings.ridge = ridge;
        self
    }

    /// Stop after an iteration that changes the fit by less; 0 never does.
    #[must_use]
    pub fn tol(mut self, tol: f64) -> Self {
        self.tol = tol;
        self
    }

    /// Iterations of each start, at most.
    #[must_use]
    pub fn max_iters(mut self, iterations: u32) -> Self {
        self.max_iters = iterations;
        self
    }

    /// Starts with seeds from `seed` on, of which the best fit is kept.
    #[must_use]
    pub fn starts(mut self, seed: u64, starts: u32) -> Self {
        (self.seed, self.starts) = (seed, starts);
        self
    }
}

impl Cp {
    fn check(&self) -> Result<()> {
        super::mttkrp::check_rank(self.settings.rank)?;
        let is_amount = |x: f64| x >= 0.0 && x.is_finite();
        if is_amount(self.tol) && is_amount(self.settings.ridge) && self.max_iters > 0 && self.starts > 0 {
            return Ok(());
        }
        let what = "tolerance and ridge are finite and not negative, iterations and starts at least 1";
        Err(Error::request(format!("{what}: {self:?}")))
    }
}

impl<'a> Demand<'a> {
    /// What a decomposition of `starts` starts with `max_iters` iterations at most asks for; `modes` are all.
    #[must_use]
    pub fn cp_als<T: Real>(
        manifest: &Manifest,
        modes: &'a [usize],
        rank: usize,
        threads: usize,
        (starts, max_iters): (u32, u32),
    ) -> Self {
        let shape = &manifest.shape;
        let factors = factor_bytes::<T>(shape, rank);
        // The best start's factors, besides those of the present one.
        let best = if starts > 1 { factors } else { 0 };
        let matching = if starts > 1 { match_bytes(shape, rank) } else { 0 };
        let held = best + matching + solve::host_bytes(shape.order(), rank, starts);
        Self {
            modes,
            rank,
            // Each iteration is several passes: what stays in memory pays from the first on.
            passes: starts.saturating_mul(max_iters).max(2),
            mode_sorted: ModeSortedDemand::new::<T>(manifest, modes, rank, threads, true),
            on_cpu: host_bytes::<T>(manifest, rank, threads) + decoded_bytes(shape.order(), threads) + held,
            beside_gpu: factors + held,
            afterwards: 0,
            alternating: true,
        }
    }
}

impl Engine {
    /// Plans a CP decomposition with factors in the precision `T`.
    pub fn plan_cp_als<T: Real>(&self, store: &Store, cp: &Cp) -> Result<ExecutionPlan> {
        cp.check()?;
        let shape = &store.manifest().shape;
        let modes: Vec<usize> = (0..shape.order()).collect();
        let count = (cp.starts, cp.max_iters);
        self.plan::<T>(
            store,
            &Demand::cp_als::<T>(store.manifest(), &modes, cp.settings.rank, self.threads(), count),
        )
    }

    /// A CP decomposition by alternating least squares, with factors in the precision `T`, from seeded factors (Nguyen et al., ICS
    /// 2022, Algorithm 1): the tensor's approximation by weights and columns of length one.
    ///
    /// On one machine's CPU the result has the same bits for any number of threads, memory and chunks.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) for a store in which coordinates may repeat, or whose norm is zero or not finite.
    pub fn cp_als<T: Real>(&self, store: &Store, cp: &Cp) -> Result<Decomposition<T>> {
        self.cp_als_from(store, cp, Init::Seeded { seed: cp.seed, starts: cp.starts })
    }

    /// The same from these factors, `factors[m]` being `dims[m]` x rank; the seed and the number of starts mean nothing.
    pub fn cp_als_with<T: Real>(
        &self,
        store: &Store,
        cp: &Cp,
        factors: Vec<Matrix<T>>,
    ) -> Result<Decomposition<T>> {
        let views: Vec<_> = factors.iter().map(Into::into).collect();
        super::mttkrp::check_factors(&views, &store.manifest().shape, cp.settings.rank)?;
        self.cp_als_from(store, &Cp { starts: 1, ..*cp }, Init::Given(factors))
    }

    fn cp_als_from<T: Real>(&self, store: &Store, cp: &Cp, init: Init<T>) -> Result<Decomposition<T>> {
        Problem::of(store.manifest())?;
        let plan = self.plan_cp_als::<T>(store, cp)?;
        let watch = |at: &CpWatch<'_>| self.tell("decomposing", at.nnz, Some(store.manifest().nnz));
        Ok(self.decompose(store, cp, plan, init, None, &watch)?.outcome)
    }

    /// Decomposes by `plan`, which `cp` was planned to take, and leaves checkpoints.
    pub(crate) fn decompose<T: Real>(
        &self,
        store: &Store,
        cp: &Cp,
        plan: ExecutionPlan,
        init: Init<T>,
        checkpoint: Option<Checkpointer>,
        watch: &(dyn Fn(&CpWatch<'_>) + Sync),
    ) -> Result<Decomposed<T>> {
        let (shape, problem) = (&store.manifest().shape, Problem::of(store.manifest())?);
        let (sys, settings) = (self.sys(), cp.settings);
        let (tol, max_iters) = (cp.tol, cp.max_iters as usize);
        let job = &mut CpJob { sys, shape, problem, settings, tol, max_iters, checkpoint };
        let store = &store.clone().with_direct_reads(plan.host.direct_reads).with_sys(sys);
        self.install(|| match &plan.device {
            #[cfg(feature = "cuda")]
            Some(device_plan) => {
                use crate::decomp::cuda::DeviceAls;
                use crate::op::mttkrp::cuda::DeviceMttkrp;
                let Settings { rank, nonneg, .. } = settings;
                let gpu = &self.gpu()?;
                let op = DeviceMttkrp::alternating(gpu, store, rank, &self.kernels(device_plan))?;
                let mut backend = DeviceAls::new(gpu, store, (&plan.host, device_plan), op, rank, nonneg)?;
                let outcome = decomp::run(job, init, &mut backend, watch)?;
                let (device, notes) = backend.allocated();
                let kernels = Some(backend.kernels().clone());
                let notes = plan.notes.iter().cloned().chain(notes).collect();
                let plan = ExecutionPlan { device: Some(device), notes, ..plan };
                Ok(Decomposed { outcome, plan, kernels })
            }
            _ => {
                let threads = plan.host.threads;
                let mut op = Mttkrp::alternating(store, settings.rank, threads)?;
                if plan.has_mode_sorted() {
                    op = op.keep_mode_sorted(store)?;
                }
                let mut backend = HostAls::new(store, &plan.host, op)?;
                let outcome = decomp::run(job, init, &mut backend, watch)?;
                Ok(Decomposed { outcome, plan, kernels: None })
            }
        })
    }
}

/// A decomposition, and what it took.
#[derive(Debug)]
pub(crate) struct Decomposed<T> {
    pub outcome: Decomposition<T>,
    /// What was used.
    pub plan: ExecutionPlan,
    /// Which kernels served on a GPU.
    pub kernels: Option<KernelReport>,
}
