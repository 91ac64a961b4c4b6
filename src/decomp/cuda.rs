//! Factors in device memory, passes on the CUDA backend, updates by kernels/dense.cuh. Between loading and returning
//! the factors, only rank x rank matrices cross the link.
//!
//! The dense update adds in an order that depends only on the device, so a decomposition is as deterministic as its
//! passes ([`crate::op::mttkrp::cuda`]): in the store's order the last bits differ from run to run; with sorted
//! nonzeros they do not.

use super::cp_als::AlsBackend;
use super::extended::Double;
use super::update::{Gram, Rule};
use crate::backend::Squares;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::abi::{DENSE_THREADS, DENSE_TILE, DenseArgs};
use crate::backend::cuda::dense::{DenseKernels, ExtendedKernels, FUSED_RANK_MAX, HALS_RANK_MAX};
use crate::backend::cuda::driver::{Device, Memory, Pinned, Priority, Stream};
use crate::backend::device::{KernelReport, KernelSource};
use crate::backend::plan::{DevicePlan, Operation};
use crate::dense::{Matrix, Precision, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::cuda::{DeviceMttkrp, alternating_operation};
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::{Executor, Plan};
use bytemuck::Pod;
use std::borrow::Cow;
use std::sync::Arc;

/// Thread blocks per multiprocessor, of a kernel that does the whole update.
const BLOCKS: usize = 4;
/// The most parts of a factor's rows whose inner products are added up separately, for larger ranks.
const SLABS: usize = 64;
/// The most bytes of such sums, unless one part needs more.
const PARTIAL_BYTES_MAX: usize = 256 << 20;

/// Passes and factors on a GPU. Chunks that the plans keep stay from pass to pass.
#[derive(Debug)]
pub struct DeviceAls<T: Real + Pod> {
    executor: Executor<Pinned>,
    backend: CudaBackend<DeviceMttkrp<T>>,
    store: Store,
    rank: usize,
    dense: Dense,
    device: Arc<Device>,
}

/// Device memory of the dense update besides sums and factors.
#[derive(Debug)]
pub(super) struct Dense {
    stream: Stream,
    kernels: DenseKernels,
    /// Loaded when they are first needed.
    extended: Option<ExtendedKernels>,
    slabs: usize,
    multiprocessors: usize,
    matrix: Memory,
    scales: Memory,
    partials: Memory,
}

/// The numbers of a partial sum: inner products of columns with each other and with the sums'.
fn numbers(rank: usize) -> usize {
    rank * (rank + 1)
}

/// The number of partial sums of an update.
fn slabs(rank: usize, multiprocessors: usize) -> usize {
    if rank <= FUSED_RANK_MAX {
        return BLOCKS * multiprocessors;
    }
    (PARTIAL_BYTES_MAX / (numbers(rank) * size_of::<f64>())).clamp(1, SLABS)
}

/// The device memory and work of a decomposition on a device with this many multiprocessors.
#[must_use]
pub fn operation<T: Real>(shape: &Shape, rank: usize, multiprocessors: usize) -> Operation {
    let own = rank * rank + 3 * rank + slabs(rank, multiprocessors) * numbers(rank);
    alternating_operation::<T>(shape, rank, (own * size_of::<f64>()) as u64)
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Dense {
    pub(super) fn new(device: &Arc<Device>, precision: Precision, rank: usize, nonneg: bool) -> Result<Self> {
        if nonneg && rank > HALS_RANK_MAX {
            let what = format!("`nonneg` on a GPU goes up to rank {HALS_RANK_MAX}; take `Device::Cpu`");
            return Err(Error::request(what));
        }
        let multiprocessors = device.facts.multiprocessors as usize;
        let slabs = slabs(rank, multiprocessors);
        let memory = |numbers: usize| device.memory(numbers * size_of::<f64>());
        Ok(Self {
            stream: device.stream(Priority::Highest)?,
            kernels: DenseKernels::load(device, precision, rank, nonneg)?,
            extended: None,
            slabs,
            multiprocessors,
            matrix: memory(rank * rank)?,
            scales: memory(3 * rank)?,
            partials: memory(slabs * numbers(rank))?,
        })
    }

    /// Runs the update that `arguments` describe, by `rule`.
    pub(super) fn update(&mut self, arguments: DenseArgs, rule: &Rule) -> Result<Gram> {
        Self::update_all(vec![(self, arguments)], rule)?
            .pop()
            .ok_or_else(|| Error::request("an update of nothing"))
    }

    /// The same on several devices in parallel, each with its own rows. Returns the sums of each.
    pub(super) fn update_all(mut work: Vec<(&mut Self, DenseArgs)>, rule: &Rule) -> Result<Vec<Gram>> {
        // If an update fails, its memory is freed. So kernels must have ended, also if one of them has not started.
        let started = work.iter_mut().try_for_each(|(dense, arguments)| dense.begin(*arguments, rule));
        let ended: Vec<_> = work.iter().map(|(dense, _)| dense.stream.synchronize()).collect();
        started.and(ended.into_iter().collect::<Result<()>>())?;
        work.iter().map(|(dense, arguments)| dense.partial_sums(arguments.rank as usize)).collect()
    }

    fn begin(&mut self, mut arguments: DenseArgs, rule: &Rule) -> Result<()> {
        match rule {
            Rule::Linear { matrix } => self.matrix.write(matrix)?,
            Rule::NonNegative { gram, of_sums, of_old, of_new } => {
                self.matrix.write(gram)?;
                self.scales.write(&[&of_sums[..], of_old, of_new].concat())?;
                arguments.scales = self.scales.address();
            }
        }
        (arguments.matrix, arguments.partials) = (self.matrix.address(), self.partials.address());
        self.start(arguments)
    }

    /// The sums of an update.
    fn partial_sums(&self, rank: usize) -> Result<Gram> {
        let mut gram = vec![0.0; numbers(rank)];
        self.partials.read(&mut gram)?;
        Ok(Gram::of_numbers(gram, rank))
    }

    /// The Gram matrix of the factor that `arguments` describe, in twice f64's digits.
    pub(super) fn extended_gram(
        &mut self,
        device: &Arc<Device>,
        precision: Precision,
        mut arguments: DenseArgs,
    ) -> Result<Vec<Double>> {
        let kernels = match self.extended.take() {
            Some(kernels) => kernels,
            None => ExtendedKernels::load(device, precision)?,
        };
        let square = (arguments.rank as usize).pow(2);
        // Pairs of numbers, in the memory of an update's partial sums.
        let slabs = self.slabs * numbers(arguments.rank as usize) / (2 * square);
        arguments.slabs = narrow(arguments.rows.min(slabs as u64));
        arguments.partials = self.partials.address();
        let groups = (square as u64).div_ceil(DENSE_THREADS.into());
        let blocks = narrow(groups * u64::from(arguments.slabs));
        self.stream.finish(|stream| {
            stream.launch(&kernels.gram, blocks, DENSE_THREADS, &arguments)?;
            stream.launch(&kernels.reduce, narrow(groups), DENSE_THREADS, &arguments)
        })?;
        self.extended = Some(kernels);
        let mut pairs = vec![Double::default(); square];
        self.partials.read(&mut pairs)?;
        Ok(pairs.into_iter().map(|pair| Double::new(pair.high, pair.low)).collect())
    }

    /// Starts the kernels of an update.
    fn start(&self, mut arguments: DenseArgs) -> Result<()> {
        let rank = arguments.rank as usize;
        let threads = u64::from(DENSE_THREADS);
        let reduce = match &self.kernels {
            DenseKernels::Fused { update, reduce } => {
                let columns = if rank <= 16 { 16 } else { rank.next_power_of_two() as u64 };
                let tiles = arguments.rows.div_ceil(u64::from(DENSE_TILE) / columns);
                arguments.slabs = narrow(tiles.min(self.slabs as u64));
                self.stream.launch(update, arguments.slabs, DENSE_THREADS, &arguments)?;
                reduce
            }
            DenseKernels::Apart { rows, gram, reduce } => {
                arguments.slabs = narrow(arguments.rows.min(self.slabs as u64));
                let blocks = (arguments.rows * rank as u64).div_ceil(threads);
                let blocks = blocks.min((8 * self.multiprocessors) as u64);
                self.stream.launch(rows, narrow(blocks), DENSE_THREADS, &arguments)?;
                let blocks = (numbers(rank) as u64).div_ceil(threads) * u64::from(arguments.slabs);
                self.stream.launch(gram, narrow(blocks), DENSE_THREADS, &arguments)?;
                reduce
            }
        };
        let blocks = narrow((numbers(rank) as u64).div_ceil(threads));
        self.stream.launch(reduce, blocks, DENSE_THREADS, &arguments)
    }
}

impl<T: Real + Pod> DeviceAls<T> {
    /// A backend for a decomposition of `store` by these plans; `op` is one of [`DeviceMttkrp::alternating`] for factors of `rank`
    /// columns, which may have negative numbers unless `nonneg`.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for `nonneg` and a rank above 4096.
    pub fn new(
        device: &Arc<Device>,
        store: &Store,
        (plan, device_plan): (&Plan, &DevicePlan),
        op: DeviceMttkrp<T>,
        rank: usize,
        nonneg: bool,
    ) -> Result<Self> {
        let dense = Dense::new(device, T::PRECISION, rank, nonneg)?;
        let mut backend = CudaBackend::new(device, store, device_plan, op)?.with_squares(Squares::of(store));
        let executor = Executor::new(store, plan, &mut backend)?;
        let (device, store) = (Arc::clone(device), store.clone());
        Ok(Self { executor, backend, store, rank, dense, device })
    }

    /// The same for factors of another rank, at most the first one's, or another sign. The store's data on the device stays.
    pub fn with_rank(self, rank: usize, nonneg: bool, kernels: &KernelSource) -> Result<Self> {
        let Self { executor, mut backend, store, dense, device, .. } = self;
        // Makes room for the next.
        drop(dense);
        backend.remake(|op| op.set_rank(&store, rank, kernels))?;
        let dense = Dense::new(&device, T::PRECISION, rank, nonneg)?;
        Ok(Self { executor, backend, store, rank, dense, device })
    }

    /// The arguments of an update of `mode`.
    fn arguments(&mut self, mode: usize) -> DenseArgs {
        let rows = 0..self.store.manifest().shape.dims()[mode] as usize;
        self.backend.op().update(mode).of_rows::<T>(&rows, self.rank)
    }

    /// The kernels in use.
    pub fn kernels(&mut self) -> &KernelReport {
        self.backend.op().kernels()
    }

    /// What was allocated, and what is smaller than planned.
    #[must_use]
    pub fn allocated(&self) -> (&DevicePlan, &[String]) {
        (self.backend.plan(), self.backend.notes())
    }
}

impl<T: Real + Pod> AlsBackend<T> for DeviceAls<T> {
    fn set_factors(&mut self, factors: Vec<Matrix<T>>) -> Result<()> {
        self.backend.op().put(&factors)
    }

    fn factors(&mut self) -> Result<Cow<'_, [Matrix<T>]>> {
        self.take().map(Cow::Owned)
    }

    fn take(&mut self) -> Result<Vec<Matrix<T>>> {
        self.backend.op().factors(self.store.sys())
    }

    fn mttkrp(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        self.backend.op().aim(mode, wide)?;
        self.executor.pass(&mut self.backend, progress).map(drop)
    }

    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram> {
        let arguments = self.arguments(mode);
        self.dense.update(arguments, rule)
    }

    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>> {
        let arguments = self.arguments(mode);
        self.dense.extended_gram(&self.device, T::PRECISION, arguments)
    }
}
