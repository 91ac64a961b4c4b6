//! MTTKRP, on the CPU or a GPU.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod gpus;
mod host;
mod processes;

use super::plan::Subject;
use super::{Demand, Engine, ExecutionPlan};
use crate::backend::device::{KernelReport, staging_bytes};
use crate::backend::devices::{DevicesPass, DevicesPlan};
use crate::backend::host::decoded_bytes;
use crate::backend::plan::DevicePlan;
use crate::dense::{DeviceMatrix, FactorView, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::{ModeMatrix, ModeSortedDemand, serving, serving_bytes};
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::{PassReport, Span};

/// The modes to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Modes<'a> {
    /// All, from one pass.
    All,
    /// These, from 0, from one pass.
    Only(&'a [usize]),
}

impl Modes<'_> {
    pub(super) fn of(self, order: usize) -> Vec<usize> {
        match self {
            Self::All => (0..order).collect(),
            Self::Only(modes) => modes.to_vec(),
        }
    }
}

/// Bytes of factors of `rank` columns, and of results for `modes`.
fn matrices_bytes<T>(shape: &Shape, modes: &[usize], rank: usize) -> u64 {
    let rows = |m: usize| u64::from(shape.dims()[m]);
    let all: u64 = (0..shape.order()).map(rows).sum::<u64>() + modes.iter().map(|&m| rows(m)).sum::<u64>();
    all * rank as u64 * size_of::<T>() as u64
}

impl<'a> Demand<'a> {
    /// What `passes` MTTKRPs of `modes` need.
    #[must_use]
    pub fn mttkrp<T: Real>(
        store: &Store,
        modes: &'a [usize],
        rank: usize,
        threads: usize,
        passes: u32,
    ) -> Self {
        let manifest = store.manifest();
        let shape = &manifest.shape;
        let matrices = matrices_bytes::<T>(shape, modes, rank);
        Self {
            modes,
            rank,
            passes,
            mode_sorted: ModeSortedDemand::new::<T>(manifest, modes, rank, threads, false),
            on_cpu: serving_bytes::<T>(store.whole(), modes, rank, threads)
                + decoded_bytes(shape.order(), threads),
            beside_gpu: matrices + staging_bytes(matrices),
            afterwards: 0,
            starts: None,
        }
    }

    /// The same if results are checked afterwards, with `bytes` more bytes, while factors and results are still held.
    #[must_use]
    pub fn checked<T: Real>(self, shape: &Shape, bytes: u64) -> Self {
        Self { afterwards: matrices_bytes::<T>(shape, self.modes, self.rank) + bytes, ..self }
    }
}

/// Computes MTTKRP on some modes of a store again and again. Buffers and chunks in memory stay between calls, so that a second call costs
/// one pass. A call that fails or is cancelled ends the session.
#[derive(Debug)]
pub struct MttkrpSession<T: Real> {
    engine: Engine,
    store: Store,
    modes: Vec<usize>,
    rank: usize,
    /// What is used, and what was planned.
    plan: ExecutionPlan,
    planned: ExecutionPlan,
    at: Box<dyn Passes<T>>,
    passes: Vec<PassReport>,
    /// Nonzeros that a pass reads.
    nnz: u64,
}

/// The destination of results.
enum Results<'r, 'm, T> {
    /// Newly allocated memory.
    Owned,
    OnHost(&'r mut [&'m mut [T]]),
    OnDevice(&'r [DeviceMatrix<T>]),
}

/// What runs its passes.
trait Passes<T: Real>: std::fmt::Debug + Send {
    /// Runs `times` passes with these factors and appends their reports to `passes`. Returns the results of the last, or nothing if they
    /// are in the caller's memory.
    fn compute(
        &mut self,
        factors: &[FactorView<'_, T>],
        times: u32,
        results: Results<'_, '_, T>,
        passes: &mut Vec<PassReport>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<ModeMatrix<T>>>;

    /// The timeline of the last pass.
    fn spans(&self) -> &[Span];

    /// The use of a GPU now, and what is smaller than planned.
    fn used(&self) -> Option<(&DevicePlan, &[String])> {
        None
    }

    /// The same for several GPUs.
    fn used_devices(&self) -> Option<(DevicesPlan, Vec<String>)> {
        None
    }

    /// Reports of the last pass on each of several GPUs.
    fn devices_pass(&self) -> Option<&DevicesPass> {
        None
    }

    /// The kernels in use there.
    fn kernels(&mut self) -> Option<KernelReport> {
        None
    }
}

impl Engine {
    /// Plans `calls` calls of MTTKRP on `modes`, with factors of `rank` columns in the precision `T`.
    pub fn plan_mttkrp<T: Real>(
        &self,
        store: &Store,
        rank: usize,
        modes: Modes<'_>,
        calls: u32,
    ) -> Result<ExecutionPlan> {
        let shape = &store.manifest().shape;
        let modes = modes.of(shape.order());
        check_modes(&modes, shape.order())?;
        check_rank(rank)?;
        self.plan::<T>(store, &self.mttkrp_demand::<T>(store, &modes, rank, calls))
    }

    /// What `calls` calls of MTTKRP on `modes`, from 0, need.
    pub(crate) fn mttkrp_demand<'a, T: Real>(
        &self,
        store: &Store,
        modes: &'a [usize],
        rank: usize,
        calls: u32,
    ) -> Demand<'a> {
        Demand::mttkrp::<T>(&self.options().on_cpu(store), modes, rank, self.threads(), calls)
    }

    /// The rank of factors that suit `store`: one for each mode, all with the same number of columns.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] names the first factor that does not suit it.
    pub fn check_factors<T: Copy>(&self, store: &Store, factors: &[FactorView<'_, T>]) -> Result<usize> {
        let rank = factors.first().map_or(0, |factor| factor.shape().1);
        check_factors(factors, &store.manifest().shape, rank)?;
        Ok(rank)
    }

    /// Allocates what `plan` says, which [`Engine::plan_mttkrp`] made for the same options.
    pub fn prepare_mttkrp<T: Real>(
        &self,
        store: &Store,
        rank: usize,
        modes: Modes<'_>,
        plan: ExecutionPlan,
    ) -> Result<MttkrpSession<T>> {
        let modes = modes.of(store.manifest().shape.order());
        MttkrpSession::new(self, store, modes, rank, plan)
    }

    /// For each of `modes` with its number, from 0: `M[i, :]`, the sum over the nonzeros with index i in this mode of their values
    /// times the product, over the other modes, of the rows of their factors. `factors[m]` is `dims[m]` x rank, row-major, a
    /// [`Matrix`](crate::Matrix) or a view of the caller's memory, a GPU's too; so is each result.
    ///
    /// On the CPU, results have the same bits for any number of threads, memory and chunks; on a GPU if the engine is
    /// [deterministic](super::EngineBuilder::deterministic). (Nguyen et al., ICS 2022, section 2.3.)
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for factors of other shapes; errors of reading the store.
    pub fn mttkrp<'f, T: Real>(
        &self,
        store: &Store,
        factors: impl IntoIterator<Item = impl Into<FactorView<'f, T>>>,
        modes: Modes<'_>,
    ) -> Result<Vec<ModeMatrix<T>>> {
        let factors: Vec<FactorView<'f, T>> = factors.into_iter().map(Into::into).collect();
        let rank = self.check_factors(store, &factors)?;
        let plan = self.plan_mttkrp::<T>(store, rank, modes, 1)?;
        self.prepare_mttkrp(store, rank, modes, plan)?.mttkrp(factors)
    }
}

/// The largest rank that an operation accepts.
const RANK_MAX: usize = 1 << 20;

pub(super) fn check_rank(rank: usize) -> Result<()> {
    let what = || Error::request(format!("rank {rank}: give 1 to {RANK_MAX}"));
    if (1..=RANK_MAX).contains(&rank) { Ok(()) } else { Err(what()) }
}

pub(super) fn check_modes(modes: &[usize], order: usize) -> Result<()> {
    let wrong = |(i, m): (usize, &usize)| *m >= order || modes[..i].contains(m);
    if modes.is_empty() || modes.iter().enumerate().any(wrong) {
        let modes: Vec<usize> = modes.iter().map(|mode| mode.saturating_add(1)).collect();
        let what = format!("modes {modes:?} of a tensor of order {order}: give some of its modes, each once");
        return Err(Error::request(what));
    }
    Ok(())
}

pub(super) fn check_factors<T: Copy>(
    factors: &[FactorView<'_, T>],
    shape: &Shape,
    rank: usize,
) -> Result<()> {
    if factors.len() != shape.order() || rank == 0 {
        let what =
            format!("{} factors of rank {rank} for a tensor of order {}", factors.len(), shape.order());
        return Err(Error::request(what));
    }
    for (mode, (factor, &dim)) in factors.iter().zip(shape.dims()).enumerate() {
        let (rows, columns) = factor.shape();
        if (rows, columns) != (dim as usize, rank) {
            let turned = if columns == dim as usize { "; factors are dims x rank: transpose it" } else { "" };
            let is = format!("is {rows} x {columns}, not {dim} x {rank}{turned}");
            return Err(Error::request(format!("the factor of mode {} {is}", mode + 1)));
        }
    }
    Ok(())
}

impl<T: Real> MttkrpSession<T> {
    pub(crate) fn new(
        engine: &Engine,
        store: &Store,
        modes: Vec<usize>,
        rank: usize,
        plan: ExecutionPlan,
    ) -> Result<Self> {
        let order = store.manifest().shape.order();
        check_modes(&modes, order)?;
        let (id, precision) = (store.id(), T::PRECISION);
        plan.check_made_for(&Subject { store: id, modes: modes.clone(), rank, precision, starts: None })?;
        let store = store.clone().with_direct_reads(plan.host.direct_reads).with_sys(engine.sys());
        let at = engine.install(|| -> Result<Box<dyn Passes<T>>> {
            if let Some(als) = engine.conduct(&store, rank, None, &plan)? {
                return Ok(Box::new(processes::OnProcesses::new(als, &store, &modes, rank)));
            }
            #[cfg(feature = "cuda")]
            if let Some(devices) = &plan.devices {
                return Ok(Box::new(gpus::OnGpus::new(engine, &store, (&modes[..], rank), devices)?));
            }
            #[cfg(feature = "cuda")]
            if let Some(device_plan) = &plan.device {
                let modes = (&modes[..], rank);
                return Ok(Box::new(gpu::OnGpu::new(engine, &store, modes, &plan.host, device_plan)?));
            }
            let store = engine.options().on_cpu(&store);
            Ok(Box::new(host::OnHost::new(engine, &store, &modes, rank, &plan)?))
        })?;
        let (engine, planned) = (engine.clone(), plan.clone());
        let covers =
            if plan.is_on_gpu() { 1 } else { serving(engine.options().on_cpu(&store).whole(), &modes).len() };
        let nnz = store.manifest().nnz * covers as u64;
        let mut session = Self { engine, store, modes, rank, plan, planned, at, passes: Vec::new(), nnz };
        session.settle();
        Ok(session)
    }

    /// Records what is used now.
    fn settle(&mut self) {
        if let Some(used) = self.at.used() {
            self.plan = self.planned.with_used(used);
        } else if let Some(used) = self.at.used_devices() {
            self.plan = self.planned.with_devices(used);
        }
    }

    /// See [`Engine::mttkrp`].
    pub fn mttkrp<'f>(
        &mut self,
        factors: impl IntoIterator<Item = impl Into<FactorView<'f, T>>>,
    ) -> Result<Vec<ModeMatrix<T>>> {
        let factors: Vec<FactorView<'f, T>> = factors.into_iter().map(Into::into).collect();
        self.repeat(&factors, 1)
    }

    /// Like [`MttkrpSession::mttkrp`], into the caller's memory: `dims[mode]` x rank numbers for each mode, row-major. In `f64` this
    /// makes no copy. After an error the contents are unspecified.
    pub fn mttkrp_into<'f>(
        &mut self,
        factors: impl IntoIterator<Item = impl Into<FactorView<'f, T>>>,
        results: &mut [&mut [T]],
    ) -> Result<()> {
        let factors: Vec<FactorView<'f, T>> = factors.into_iter().map(Into::into).collect();
        let dims = self.store.manifest().shape.dims();
        let lengths = || self.modes.iter().map(|&m| dims[m] as usize * self.rank);
        if !lengths().eq(results.iter().map(|result| result.len())) {
            let what = format!("results take {:?} numbers", lengths().collect::<Vec<_>>());
            return Err(Error::request(what));
        }
        self.compute(&factors, 1, Results::OnHost(results)).map(drop)
    }

    /// Like [`MttkrpSession::mttkrp`], into memory of the GPU that computes: `dims[mode]` x rank for each mode. Factors and results there
    /// do not pass through the host. The engine waits for work on the GPU's default stream before it reads and writes them; the caller must
    /// not use them meanwhile.
    pub fn mttkrp_on_device<'f>(
        &mut self,
        factors: impl IntoIterator<Item = impl Into<FactorView<'f, T>>>,
        results: &[DeviceMatrix<T>],
    ) -> Result<()> {
        let factors: Vec<FactorView<'f, T>> = factors.into_iter().map(Into::into).collect();
        let dims = self.store.manifest().shape.dims();
        let shapes = || self.modes.iter().map(|&m| (dims[m] as usize, self.rank));
        if !shapes().eq(results.iter().map(DeviceMatrix::shape)) {
            let what = format!("results are of rows and columns {:?}", shapes().collect::<Vec<_>>());
            return Err(Error::request(what));
        }
        self.compute(&factors, 1, Results::OnDevice(results)).map(drop)
    }

    /// What is used.
    #[must_use]
    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    /// The same if no more calls follow.
    pub(crate) fn into_plan(self) -> ExecutionPlan {
        self.plan
    }

    /// Reports of the last call's passes.
    #[must_use]
    pub fn passes(&self) -> &[PassReport] {
        &self.passes
    }

    /// Reports of the last pass on each of several GPUs; `None` if one or none computes.
    #[must_use]
    pub fn devices_pass(&self) -> Option<&DevicesPass> {
        self.at.devices_pass()
    }

    /// The timeline of the last pass; of several GPUs, the first one's.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        self.at.spans()
    }

    /// The GPU kernels in use.
    pub(crate) fn kernels(&mut self) -> Option<KernelReport> {
        self.at.kernels()
    }

    /// The results of the last of `times` passes with these factors.
    pub(crate) fn repeat(&mut self, factors: &[FactorView<'_, T>], times: u32) -> Result<Vec<ModeMatrix<T>>> {
        self.compute(factors, times, Results::Owned)
    }

    /// The same, or into `results`.
    fn compute(
        &mut self,
        factors: &[FactorView<'_, T>],
        times: u32,
        results: Results<'_, '_, T>,
    ) -> Result<Vec<ModeMatrix<T>>> {
        check_factors(factors, &self.store.manifest().shape, self.rank)?;
        self.passes.clear();
        let Self { engine, at, passes, nnz, .. } = self;
        let progress = |done| engine.tell("computing", done, Some(*nnz));
        let computed = engine.install(|| at.compute(factors, times, results, passes, &progress))?;
        self.settle();
        Ok(computed)
    }
}

/// The longest chain of additions in the precision of the factors, from which a check derives its bound.
pub(crate) fn chain(plan: &ExecutionPlan) -> u32 {
    if plan.is_on_gpu() { super::gpu::CHAIN } else { 1 }
}
