//! CP decompositions, on the CPU or a GPU.

use super::members::CpPasses;
use super::plan::Subject;
use super::{Demand, Engine, ExecutionPlan};
use crate::backend::device::{KernelReport, staging_bytes};
use crate::backend::host::decoded_bytes;
use crate::decomp::checkpoint::Checkpointer;
#[cfg(feature = "cuda")]
use crate::decomp::cuda::DeviceAls;
#[cfg(feature = "cuda")]
use crate::decomp::devices::DevicesAls;
use crate::decomp::host::{HostAls, host_bytes};
use crate::decomp::members::MembersAls;
use crate::decomp::score::match_bytes;
use crate::decomp::{
    self, CpJob, CpWatch, CpWatchers, Decomposition, Init, Iteration, Problem, Settings, factor_bytes, solve,
};
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::{ModeSortedDemand, Mttkrp};
#[cfg(feature = "cuda")]
use crate::op::mttkrp::{cuda::DeviceMttkrp, serving_view};
use crate::store::{Manifest, Store};
use std::ops::ControlFlow;

/// A callback after each iteration: see [`Engine::cp_als_each`].
pub(crate) type EachIteration<'a> = dyn Fn(u32, &Iteration) -> Result<ControlFlow<()>> + Sync + 'a;

/// The options of a CP decomposition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cp {
    pub(crate) settings: Settings,
    pub(crate) tol: f64,
    pub(crate) max_iters: u32,
    seed: u64,
    starts: u32,
}

impl Cp {
    /// `rank` components, one start with seed 0, at most 50 iterations, tolerance 1e-5.
    #[must_use]
    pub fn rank(rank: usize) -> Self {
        let settings = Settings { rank, ridge: 0.0, nonneg: false };
        Self { settings, tol: 1e-5, max_iters: 50, seed: 0, starts: 1 }
    }

    /// Whether to keep factors nonnegative (HALS).
    #[must_use]
    pub fn nonneg(mut self, nonneg: bool) -> Self {
        self.settings.nonneg = nonneg;
        self
    }

    /// The ridge term: added to the diagonal of the Hadamard product of the other modes' Gram matrices.
    #[must_use]
    pub fn ridge(mut self, ridge: f64) -> Self {
        self.settings.ridge = ridge;
        self
    }

    /// Stops when the fit changes by less than `tol`; 0 runs all iterations.
    #[must_use]
    pub fn tol(mut self, tol: f64) -> Self {
        self.tol = tol;
        self
    }

    /// The most iterations of each start.
    #[must_use]
    pub fn max_iters(mut self, iterations: u32) -> Self {
        self.max_iters = iterations;
        self
    }

    /// The same with `rank` components.
    #[must_use]
    pub(crate) fn with_rank(mut self, rank: usize) -> Self {
        self.settings.rank = rank;
        self
    }

    /// Makes `starts` starts with consecutive seeds from `seed`, and keeps the best fit.
    #[must_use]
    pub fn starts(mut self, seed: u64, starts: u32) -> Self {
        (self.seed, self.starts) = (seed, starts);
        self
    }
}

impl Cp {
    /// The same from these factors, if there are any: then there is one start.
    fn starting_from<T: Copy>(self, factors: Option<&[Matrix<T>]>, store: &Store) -> Result<Self> {
        let Some(factors) = factors else { return Ok(self) };
        let views: Vec<_> = factors.iter().map(Into::into).collect();
        super::mttkrp::check_factors(&views, &store.manifest().shape, self.settings.rank)?;
        Ok(Self { starts: 1, ..self })
    }

    fn check(&self) -> Result<()> {
        super::mttkrp::check_rank(self.settings.rank)?;
        for (name, amount) in [("tol", self.tol), ("ridge", self.settings.ridge)] {
            if !(amount >= 0.0 && amount.is_finite()) {
                return Err(Error::request(format!("`{name}` {amount}: give a finite number, 0 or more")));
            }
        }
        for (name, count) in [("max_iters", self.max_iters), ("starts", self.starts)] {
            if count == 0 {
                return Err(Error::request(format!("`{name}` 0: give 1 or more")));
            }
        }
        Ok(())
    }
}

impl<'a> Demand<'a> {
    /// What a decomposition needs, with `starts` starts of at most `max_iters` iterations. `modes` are all modes.
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
        // Factors of the earlier starts, besides those of the current one.
        let earlier = factors.saturating_mul(starts.saturating_sub(1).into());
        let matching = if starts > 1 { match_bytes(shape, rank) } else { 0 };
        let held = earlier + matching + solve::host_bytes(shape.order(), rank, starts);
        Self {
            modes,
            rank,
            // An iteration makes several passes, so keeping data in memory pays even in the first.
            passes: starts.saturating_mul(max_iters).max(2),
            mode_sorted: ModeSortedDemand::new::<T>(manifest, modes, rank, threads, true),
            on_cpu: host_bytes::<T>(manifest, rank, threads) + decoded_bytes(shape.order(), threads) + held,
            beside_gpu: factors + staging_bytes(factors) + held,
            afterwards: 0,
            starts: Some(starts),
        }
    }
}

impl Engine {
    /// Plans a CP decomposition with factors in the precision `T`.
    pub fn plan_cp_als<T: Real>(&self, store: &Store, cp: &Cp) -> Result<ExecutionPlan> {
        let modes: Vec<usize> = (0..store.manifest().shape.order()).collect();
        self.plan::<T>(store, &self.cp_demand::<T>(store, cp, &modes)?)
    }

    /// What a CP decomposition needs; `modes` are all modes.
    pub(crate) fn cp_demand<'a, T: Real>(
        &self,
        store: &Store,
        cp: &Cp,
        modes: &'a [usize],
    ) -> Result<Demand<'a>> {
        cp.check()?;
        let count = (cp.starts, cp.max_iters);
        let store = &self.options().on_cpu(store);
        Ok(Demand::cp_als::<T>(store.manifest(), modes, cp.settings.rank, self.threads(), count))
    }

    /// Decomposes a store by alternating least squares, from seeded factors (Nguyen et al., ICS 2022, Algorithm 1). `T` is the precision
    /// of the factors. Columns of the factors have length one; weights are the components' lengths.
    ///
    /// On the CPU, the result has the same bits for any number of threads, memory and chunks.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) if coordinates may repeat in the store, or its norm is zero or not finite.
    pub fn cp_als<T: Real>(&self, store: &Store, cp: &Cp) -> Result<Decomposition<T>> {
        self.cp_als_each(store, cp, None, &|_, _| Ok(ControlFlow::Continue(())))
    }

    /// Like [`Engine::cp_als`], from these factors: `factors[m]` is `dims[m]` x rank. Seed and number of starts are ignored.
    pub fn cp_als_with<T: Real>(
        &self,
        store: &Store,
        cp: &Cp,
        factors: Vec<Matrix<T>>,
    ) -> Result<Decomposition<T>> {
        self.cp_als_each(store, cp, Some(factors), &|_, _| Ok(ControlFlow::Continue(())))
    }

    /// Like [`Engine::cp_als`], from these factors or seeded ones, and calls `each` after every iteration, with the number of its start
    /// from 0, on a thread of this engine. `Break` ends the decomposition and returns the best model so far; an error ends it without a
    /// result.
    pub fn cp_als_each<T: Real>(
        &self,
        store: &Store,
        cp: &Cp,
        factors: Option<Vec<Matrix<T>>>,
        each: &EachIteration<'_>,
    ) -> Result<Decomposition<T>> {
        let cp = &cp.starting_from(factors.as_deref(), store)?;
        Problem::of(store.manifest())?;
        self.prepare_cp_als(store, cp, self.plan_cp_als::<T>(store, cp)?)?.cp_als_each(cp, factors, each)
    }

    /// Allocates what `plan` says, which [`Engine::plan_cp_als`] made for the same options. The session decomposes with at most that rank
    /// and that number of starts.
    pub fn prepare_cp_als<T: Real>(
        &self,
        store: &Store,
        cp: &Cp,
        plan: ExecutionPlan,
    ) -> Result<CpSession<T>> {
        let problem = Problem::of(store.manifest())?;
        let (modes, rank) = ((0..store.manifest().shape.order()).collect(), cp.settings.rank);
        let (id, precision, starts) = (store.id(), T::PRECISION, Some(cp.starts));
        plan.check_made_for(&Subject { store: id, modes, rank, precision, starts })?;
        let store = store.clone().with_direct_reads(plan.host.direct_reads).with_sys(self.sys());
        let at = self.install(|| self.place(&store, cp, &plan))?;
        let (engine, planned, most) = (self.clone(), plan.clone(), *cp);
        let mut session = CpSession { engine, store, problem, plan, planned, most, at: Some((*cp, at)) };
        session.settle();
        Ok(session)
    }
}

/// Where a decomposition runs.
#[derive(Debug)]
enum Place<T: Real> {
    Host(Box<HostAls<T>>),
    Members(Box<MembersAls<T>>),
    #[cfg(feature = "cuda")]
    Gpu(Box<DeviceAls<T>>),
    #[cfg(feature = "cuda")]
    Gpus(Box<DevicesAls<T>>),
}

impl Engine {
    fn place<T: Real>(&self, store: &Store, cp: &Cp, plan: &ExecutionPlan) -> Result<Place<T>> {
        let rank = cp.settings.rank;
        let Cp { starts, max_iters, settings: Settings { nonneg, .. }, .. } = *cp;
        if let Some(als) = self.conduct(store, rank, Some(CpPasses { starts, max_iters, nonneg }), plan)? {
            return Ok(Place::Members(Box::new(als)));
        }
        #[cfg(feature = "cuda")]
        if let Some(plan) = &plan.devices {
            let numbers: Vec<usize> = plan.parts.iter().map(|part| part.device.device.number).collect();
            let kind = (rank, cp.settings.nonneg);
            let als = DevicesAls::new(&self.gpus(&numbers)?, store, plan, kind, |plan| self.kernels(plan))?;
            return Ok(Place::Gpus(Box::new(als)));
        }
        #[cfg(feature = "cuda")]
        if let Some(device_plan) = &plan.device {
            let gpu = &self.gpu()?;
            let modes: Vec<usize> = (0..store.manifest().shape.order()).collect();
            let store = &serving_view(store, &modes);
            let op = DeviceMttkrp::alternating(gpu, store, rank, &self.kernels(device_plan))?;
            let als = DeviceAls::new(gpu, store, (&plan.host, device_plan), op, rank, cp.settings.nonneg)?;
            return Ok(Place::Gpu(Box::new(als)));
        }
        let store = &self.options().on_cpu(store);
        let mut op = Mttkrp::alternating(store, rank, plan.host.threads)?;
        if plan.has_mode_sorted() {
            op = op.keep_mode_sorted(store)?;
        }
        Ok(Place::Host(Box::new(HostAls::new(store, &plan.host, op)?)))
    }

    /// The same for another rank and sign.
    fn place_again<T: Real>(
        &self,
        place: Place<T>,
        store: &Store,
        cp: &Cp,
        plan: &ExecutionPlan,
    ) -> Result<Place<T>> {
        let rank = cp.settings.rank;
        match place {
            Place::Host(als) => {
                let als = als.with_rank(&self.options().on_cpu(store), rank, plan.host.threads)?;
                Ok(Place::Host(Box::new(als)))
            }
            Place::Members(als) => {
                drop(als);
                self.place(store, cp, plan)
            }
            #[cfg(feature = "cuda")]
            Place::Gpu(als) => {
                let device_plan = plan.device.as_ref().expect("a GPU's plan has it");
                let als = als.with_rank(rank, cp.settings.nonneg, &self.kernels(device_plan))?;
                Ok(Place::Gpu(Box::new(als)))
            }
            #[cfg(feature = "cuda")]
            Place::Gpus(als) => {
                let als = als.with_rank(rank, cp.settings.nonneg, |plan| self.kernels(plan))?;
                Ok(Place::Gpus(Box::new(als)))
            }
        }
    }
}

/// Decomposes a store again and again. Buffers, chunks in memory and mode-sorted copies stay between calls. A call that fails or is
/// cancelled ends the session.
#[derive(Debug)]
pub struct CpSession<T: Real> {
    engine: Engine,
    store: Store,
    problem: Problem,
    /// What is used, and what was planned.
    plan: ExecutionPlan,
    planned: ExecutionPlan,
    /// The options that it has room for.
    most: Cp,
    /// Where it runs, and the options of the last call; `None` after a call has failed.
    at: Option<(Cp, Place<T>)>,
}

impl<T: Real> CpSession<T> {
    /// See [`Engine::cp_als`]. Rank and starts are limited to those that the session was prepared for.
    pub fn cp_als(&mut self, cp: &Cp) -> Result<Decomposition<T>> {
        self.cp_als_each(cp, None, &|_, _| Ok(ControlFlow::Continue(())))
    }

    /// See [`Engine::cp_als_with`]. The rank is limited to the one that the session was prepared for.
    pub fn cp_als_with(&mut self, cp: &Cp, factors: Vec<Matrix<T>>) -> Result<Decomposition<T>> {
        self.cp_als_each(cp, Some(factors), &|_, _| Ok(ControlFlow::Continue(())))
    }

    /// See [`Engine::cp_als_each`]. Rank and starts are limited to those that the session was prepared for.
    pub fn cp_als_each(
        &mut self,
        cp: &Cp,
        factors: Option<Vec<Matrix<T>>>,
        each: &EachIteration<'_>,
    ) -> Result<Decomposition<T>> {
        let cp = &cp.starting_from(factors.as_deref(), &self.store)?;
        let init = factors.map_or(Init::Seeded { seed: cp.seed, starts: cp.starts }, Init::Given);
        let (engine, nnz) = (self.engine.clone(), self.store.manifest().nnz);
        let progress = |at: &CpWatch<'_>| engine.tell("decomposing", at.nnz, Some(nnz));
        self.decompose(cp, init, None, CpWatchers { progress: &progress, iteration: each })
    }

    /// What is used.
    #[must_use]
    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    /// The same if no more decompositions follow. Includes the GPU kernels that were used.
    pub(crate) fn into_plan(self) -> (ExecutionPlan, Option<KernelReport>) {
        let kernels = match self.at {
            Some((_, Place::Members(mut als))) => als.kernels(),
            #[cfg(feature = "cuda")]
            Some((_, Place::Gpu(mut als))) => Some(als.kernels().clone()),
            #[cfg(feature = "cuda")]
            Some((_, Place::Gpus(mut als))) => als.kernels(),
            _ => None,
        };
        (self.plan, kernels)
    }

    /// Decomposes, and leaves checkpoints.
    pub(crate) fn decompose(
        &mut self,
        cp: &Cp,
        init: Init<T>,
        checkpoint: Option<Checkpointer>,
        watchers: CpWatchers<'_>,
    ) -> Result<Decomposition<T>> {
        cp.check()?;
        let (rank, starts) = (self.most.settings.rank, self.most.starts);
        if cp.settings.rank > rank || cp.starts > starts {
            return Err(Error::request(format!(
                "the session has room for rank {rank}, {starts} starts: prepare another"
            )));
        }
        let (made_for, place) =
            self.at.take().ok_or_else(|| Error::request("an earlier call failed; prepare again"))?;
        let (engine, store, plan) = (&self.engine, &self.store, &self.planned);
        let (sys, shape, problem, settings) =
            (engine.sys(), &store.manifest().shape, self.problem, cp.settings);
        let (tol, max_iters) = (cp.tol, cp.max_iters as usize);
        let mut job = CpJob { sys, shape, problem, settings, tol, max_iters, checkpoint };
        let of = |cp: &Cp| (cp.settings.rank, cp.settings.nonneg);
        let (outcome, place) = engine.install(|| {
            let mut place =
                if of(&made_for) == of(cp) { place } else { engine.place_again(place, store, cp, plan)? };
            let outcome = match &mut place {
                Place::Host(als) => decomp::run_watched(&mut job, init, &mut **als, watchers),
                Place::Members(als) => decomp::run_watched(&mut job, init, &mut **als, watchers),
                #[cfg(feature = "cuda")]
                Place::Gpu(als) => decomp::run_watched(&mut job, init, &mut **als, watchers),
                #[cfg(feature = "cuda")]
                Place::Gpus(als) => decomp::run_watched(&mut job, init, &mut **als, watchers),
            };
            Ok((outcome?, place))
        })?;
        self.at = Some((*cp, place));
        self.settle();
        Ok(outcome)
    }

    /// Records what is used now.
    fn settle(&mut self) {
        if let Some((_, Place::Members(als))) = &self.at
            && let Some(used) = als.used()
        {
            self.plan = self.planned.with_used(used);
        }
        #[cfg(feature = "cuda")]
        if let Some((_, Place::Gpu(als))) = &self.at {
            self.plan = self.planned.with_used(als.allocated());
        }
        #[cfg(feature = "cuda")]
        if let Some((_, Place::Gpus(als))) = &self.at {
            self.plan = self.planned.with_devices(als.used());
        }
    }
}
