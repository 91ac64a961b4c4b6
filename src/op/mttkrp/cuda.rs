//! MTTKRP on a GPU: a part per mode, and one kernel for all parts that read the same chunk (kernels/mttkrp.cuh; of trees as they lie
//! kernels/branches.cuh, of segments also segments.cuh). Also SpTTMc, whose products have other columns ([`Columns`],
//! kernels/kronecker.cuh; of sorted nonzeros also `kernels/tensor_cores.cuh`). Its parts have a launch each, since their results differ in width.
//!
//! Products are in the precision of the factors or, if a pass requests it, in f64 ([`DeviceMttkrp::aim`]). At most
//! [`SHARE`](crate::backend::cuda::abi::SHARE) additions are in that precision; longer sums, and those of tensor cores, are in f64.
//!
//! **Determinism.** In the store's order, several thread blocks update one row in any order, so the last bits of
//! results differ from run to run, within the oracle's bound. Sorted nonzeros (kernels/sorted.cuh) are added up in one
//! order and give the same bits in every run, for any chunks and lanes. So do several devices that have a range of rows each: the carry-outs
//! of a device's thread blocks are added up in the groups in which one device adds them up, as if those before them were zeros.
//!
//! **Conflicts** (Nguyen et al., ICS 2022, section 5). Every group of tiles is ordered by target row and reduced in
//! registers first. A mode of few rows, which all multiprocessors would update at once, also gets several copies of
//! its sums, like the paper's hierarchical resolution for modes shorter than the number of multiprocessors.
//! [`copies`] makes enough copies to spread updates over many rows.

mod carries;
mod columns;
mod families;

use self::carries::{CarryOut, launch_rows, sorted_bytes, warps};
use self::columns::Columns;
use self::families::Families;
use super::ModeMatrix;
use crate::backend::cuda::abi::{self, ClearArgs, DenseArgs, MttkrpArgs, ROW_THREADS, TILE_THREADS};
use crate::backend::cuda::devices::Partial;
use crate::backend::cuda::driver::{Device, ForeignMemory, Memory, Priority, Staging, Stream};
use crate::backend::cuda::fault::Fault;
use crate::backend::cuda::kernels::{FiberSumKernels, KernelLayout, Specialisation, WideKernels};
use crate::backend::cuda::mode_sorted::{Stretch, fiber_mode};
use crate::backend::cuda::{DeviceOp, Launch, Nonzeros};
use crate::backend::device::{KernelReport, KernelSource};
use crate::backend::plan::{Operation, Reads};
use crate::dense::{DeviceMatrix, FactorView, Matrix, Precision, Real};
use crate::error::{Error, Result};
use crate::linear::{BLOCK_BITS, BitLayout};
use crate::shape::{ORDER_MAX, Shape};
use crate::store::Store;
use crate::sys::Sys;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use std::sync::Arc;

/// Rows over which updates of a short mode are spread. With this many, the device's atomic units keep up.
const SPREAD_ROWS: usize = 1024;
/// The most rows of a mode that gets copies.
const SHORT_ROWS: usize = 256;

/// The number of copies of a mode's sums: 1 except for short modes.
#[must_use]
pub fn copies(rows: usize) -> usize {
    if rows <= SHORT_ROWS { SPREAD_ROWS.div_ceil(rows) } else { 1 }
}

/// The most columns of a Kronecker product. Kernels count in 32 bits, up to eight for each.
const KRONECKER_MAX: usize = 1 << 28;

/// The device memory and work of MTTKRP of `modes`: factors, sums and results.
#[must_use]
pub fn operation<T: Real>(shape: &Shape, modes: &[usize], rank: usize) -> Operation {
    operation_of::<T>(shape, modes, &Columns::KhatriRao(rank))
}

/// The same for SpTTMc of `modes` with factors of `ranks` columns.
#[must_use]
pub fn ttmc_operation<T: Real>(shape: &Shape, modes: &[usize], ranks: &[usize]) -> Operation {
    operation_of::<T>(shape, modes, &Columns::Kronecker(ranks.to_vec()))
}

fn operation_of<T: Real>(shape: &Shape, modes: &[usize], columns: &Columns) -> Operation {
    let rank = columns.widest(modes);
    Operation {
        bytes: device_bytes::<T>(shape, modes, columns),
        result_bytes: None,
        modes: modes.to_vec(),
        rank,
        factor_columns: match columns {
            Columns::KhatriRao(_) => None,
            Columns::Kronecker(ranks) => Some(ranks.clone()),
        },
        precision: T::PRECISION,
        sorted_bytes,
        takes_fibers: true,
        alternating: false,
        reads: Reads::Either,
        share: None,
        gathers: None,
    }
}

fn device_bytes<T: Real>(shape: &Shape, modes: &[usize], columns: &Columns) -> u64 {
    let matrix = |m: usize, columns: usize, element: usize| {
        u64::from(shape.dims()[m]).saturating_mul(columns as u64).saturating_mul(element as u64)
    };
    let factors = (0..shape.order()).map(|m| matrix(m, columns.of_factor(m), size_of::<T>()));
    let sums =
        |m: usize| matrix(m, columns.of_result(m), 8).saturating_mul(copies(shape.dims()[m] as usize) as u64);
    let results =
        |m: usize| if size_of::<T>() == 8 { 0 } else { matrix(m, columns.of_result(m), size_of::<T>()) };
    let of_modes = modes.iter().map(|&m| sums(m).saturating_add(results(m)));
    factors.chain(of_modes).fold(0, u64::saturating_add)
}

/// The same for [`DeviceMttkrp::alternating`], with `more` bytes besides: all factors and the largest sums.
#[must_use]
pub fn alternating_operation<T: Real>(shape: &Shape, rank: usize, more: u64) -> Operation {
    let modes: Vec<usize> = (0..shape.order()).collect();
    let bytes = alternating_bytes::<T>(shape, rank) + more;
    Operation { bytes, alternating: true, ..operation::<T>(shape, &modes, rank) }
}

fn alternating_bytes<T: Real>(shape: &Shape, rank: usize) -> u64 {
    let elements = |&dim: &u32| u64::from(dim) * rank as u64;
    let factors: u64 = shape.dims().iter().map(elements).sum();
    let sums = shape.dims().iter().map(|d| elements(d) * copies(*d as usize) as u64).max();
    factors * size_of::<T>() as u64 + sums.unwrap_or(0) * size_of::<f64>() as u64
}

/// MTTKRP of some modes on a GPU.
#[derive(Debug)]
pub struct DeviceMttkrp<T> {
    arguments: MttkrpArgs,
    factors: Vec<Memory>,
    fault: Fault,
    /// The memory of the targets' sums.
    sums: Vec<Memory>,
    targets: Vec<ModeSums>,
    /// The only target that passes compute; `None` for all.
    active: Option<usize>,
    kernels: Families,
    /// Sums of fibers, which serve some targets.
    fibers: Option<FiberSums>,
    /// Whether other devices compute parts of the sums. Then sums stay in f64, and this device does not
    /// complete results.
    is_partial: bool,
    /// Whether products of the next pass are in f64 though factors are in f32.
    is_wide: bool,
    device: Arc<Device>,
    sys: Sys,
    columns: Columns,
    marker: std::marker::PhantomData<T>,
}

/// Sums of fibers: a row for each, in the precision of the factors.
#[derive(Debug)]
struct FiberSums {
    /// The mode along which they lie, and how many there are.
    leaf: usize,
    count: u32,
    memory: Memory,
    carries: [CarryOut; 2],
    kernels: FiberSumKernels,
    /// Fibers for each nonzero.
    per_nonzero: f64,
    /// Whether the sums are those of the leaf mode's factor.
    are_computed: bool,
}

/// The growing sums of one mode.
#[derive(Debug)]
struct ModeSums {
    mode: usize,
    rows: usize,
    columns: usize,
    copies: u32,
    /// The index of its sums in memory: its own, or one shared by all targets that are computed one at a
    /// time.
    sums: usize,
    /// `None` if the sums' memory becomes the result's.
    result: Option<Memory>,
    /// Exists once nonzeros are sorted.
    carries: Option<[CarryOut; 2]>,
    /// The product modes of the chunks that serve it, if they are segments.
    product: u32,
    /// The part that this device computes, if others compute other rows.
    stretch: Option<Stretch>,
    /// Whether its sorted nonzeros are an entry for each fiber.
    along_fibers: bool,
    /// Whether the last pass has written the result itself rather than sums.
    written: bool,
}

impl ModeSums {
    /// Bytes of all copies of its sums.
    fn sum_bytes(&self) -> usize {
        self.copies as usize * self.rows * self.columns * size_of::<f64>()
    }
}

/// The MTTKRP of a mode on the device, with the mode's factor, as addresses.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The address of `copies` matrices, to be added up.
    pub sums: u64,
    /// The number of matrices.
    pub copies: u32,
    /// Whether they are in the precision of the factors rather than f64.
    pub rounded: bool,
    /// The factor.
    pub factor: u64,
}

impl Update {
    /// Bytes of a sum; factors are in `T`.
    #[must_use]
    pub fn bytes<T>(&self) -> usize {
        if self.rounded { size_of::<T>() } else { size_of::<f64>() }
    }

    /// The arguments of a dense update of `rows`, each of `rank` numbers in `T`.
    #[must_use]
    pub fn of_rows<T>(&self, rows: &Range<usize>, rank: usize) -> DenseArgs {
        let from = (rows.start * rank) as u64;
        DenseArgs {
            sums: self.sums + from * self.bytes::<T>() as u64,
            copies: self.copies,
            rounded: self.rounded.into(),
            factor: self.factor + from * size_of::<T>() as u64,
            rows: rows.len() as u64,
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            ..Zeroable::zeroed()
        }
    }
}

/// The product modes of the chunks that serve `mode`, if they are segments.
fn product_modes(store: &Store, mode: usize) -> u32 {
    let of = |number| store.manifest().partitions[store.part_of(number)].format.product_modes();
    let mut masks = store.chunks_for(mode).map(of);
    let first = masks.next().unwrap_or(0);
    debug_assert!(masks.all(|mask| mask == first), "a cover of segments is one partition");
    first
}

impl<T: Real + Pod> DeviceMttkrp<T> {
    /// MTTKRP of `modes`, from 0, with `factors[m]` `dims[m]` x rank, on `store`.
    pub fn new(
        device: &Arc<Device>,
        store: &Store,
        factors: &[Matrix<T>],
        modes: &[usize],
        kernels: &KernelSource,
    ) -> Result<Self> {
        let mut made = Self::prepare(device, store, factors[0].columns(), modes, kernels)?;
        made.put(factors)?;
        Ok(made)
    }

    /// The same, with room for factors of `rank` columns, which [`DeviceMttkrp::put`] copies.
    pub fn prepare(
        device: &Arc<Device>,
        store: &Store,
        rank: usize,
        modes: &[usize],
        kernels: &KernelSource,
    ) -> Result<Self> {
        Self::with_columns(device, store, Columns::KhatriRao(rank), modes, kernels)
    }

    /// SpTTMc of `modes`, from 0, with room for factors of `ranks` columns.
    pub fn ttmc(
        device: &Arc<Device>,
        store: &Store,
        ranks: &[usize],
        modes: &[usize],
        kernels: &KernelSource,
    ) -> Result<Self> {
        let columns = Columns::Kronecker(ranks.to_vec());
        let widest = columns.widest(modes);
        if widest > KRONECKER_MAX {
            return Err(Error::request(format!(
                "SpTTMc of results with {widest} columns; a GPU computes up to {KRONECKER_MAX}: take `Device::Cpu`"
            )));
        }
        Self::with_columns(device, store, columns, modes, kernels)
    }

    fn with_columns(
        device: &Arc<Device>,
        store: &Store,
        columns: Columns,
        modes: &[usize],
        kernels: &KernelSource,
    ) -> Result<Self> {
        let mut made = Self::without_targets(device, store, columns, modes, kernels)?;
        let target = |&mode: &usize| {
            let rows = store.manifest().shape.dims()[mode] as usize;
            let (copies, columns) = (copies(rows), made.columns.of_result(mode));
            made.sums.push(device.memory(copies * rows * columns * size_of::<f64>())?);
            let separate = size_of::<T>() < size_of::<f64>();
            let result = separate.then(|| device.memory(rows * columns * size_of::<T>())).transpose()?;
            let copies = u32::try_from(copies).unwrap_or(1);
            Ok(ModeSums {
                mode,
                rows,
                columns,
                copies,
                sums: made.sums.len() - 1,
                result,
                carries: None,
                product: product_modes(store, mode),
                stretch: None,
                along_fibers: false,
                written: false,
            })
        };
        made.targets = modes.iter().map(target).collect::<Result<_>>()?;
        Ok(made)
    }

    /// MTTKRP of one mode at a time, selected by [`DeviceMttkrp::aim`], with factors of `rank` columns that change
    /// between passes. Part m is mode m. Sums stay on the device, in one memory for all modes: see
    /// [`DeviceMttkrp::update`].
    pub fn alternating(
        device: &Arc<Device>,
        store: &Store,
        rank: usize,
        kernels: &KernelSource,
    ) -> Result<Self> {
        let mut made = Self::without_targets(device, store, Columns::KhatriRao(rank), &[], kernels)?;
        let target = |(mode, &dim): (usize, &u32)| {
            let rows = dim as usize;
            let copies = u32::try_from(copies(rows)).unwrap_or(1);
            let columns = rank;
            ModeSums {
                mode,
                rows,
                columns,
                copies,
                sums: 0,
                result: None,
                carries: None,
                product: product_modes(store, mode),
                stretch: None,
                along_fibers: false,
                written: false,
            }
        };
        made.targets = store.manifest().shape.dims().iter().enumerate().map(target).collect();
        let bytes = made.targets.iter().map(ModeSums::sum_bytes).max();
        made.sums.push(device.memory(bytes.unwrap_or(0))?);
        made.active = Some(0);
        Ok(made)
    }

    /// Prepares one of [`DeviceMttkrp::alternating`] for factors of another rank.
    pub fn set_rank(&mut self, store: &Store, rank: usize, kernels: &KernelSource) -> Result<()> {
        // Free the old factors first.
        self.factors.clear();
        self.sums.clear();
        self.targets.clear();
        self.fibers = None;
        let is_partial = self.is_partial;
        let kernels = KernelSource { as_they_lie: self.as_they_lie(), ..kernels.clone() };
        *self = Self::alternating(&Arc::clone(&self.device), store, rank, &kernels)?;
        self.is_partial = is_partial;
        Ok(())
    }

    /// The same on one of several devices. The result of a pass is [`DeviceMttkrp::partial`], or of some rows all.
    #[must_use]
    pub fn of_several(self) -> Self {
        Self { is_partial: true, ..self }
    }

    /// The part's sums after a pass, for one of [`DeviceMttkrp::of_several`].
    #[must_use]
    pub fn partial(&self, part: usize) -> Partial<'_> {
        let target = &self.targets[part];
        Partial { sums: &self.sums[target.sums], copies: target.copies, rounded: target.result.as_ref() }
    }

    /// The rows of part `part` whose results are complete on this device, if modes are divided by rows.
    #[must_use]
    pub fn own_rows(&self, part: usize) -> Option<Range<usize>> {
        let rows = &self.targets[part].stretch.as_ref()?.rows;
        Some(rows.start as usize..rows.end as usize)
    }

    /// Whether other devices complete the part's sums.
    fn is_partial(&self, part: usize) -> bool {
        self.is_partial && self.targets[part].stretch.is_none()
    }

    /// The results of part `part`, its mode and rows.
    #[must_use]
    pub fn result_of(&self, part: usize) -> (&Memory, usize, usize) {
        let target = &self.targets[part];
        (self.result(target), target.mode, target.rows)
    }

    /// The factor of `mode` on the device.
    #[must_use]
    pub fn factor(&self, mode: usize) -> &Memory {
        &self.factors[mode]
    }

    /// Has room for factors but no targets yet; `modes` are those of a Kronecker product.
    fn without_targets(
        device: &Arc<Device>,
        store: &Store,
        columns: Columns,
        modes: &[usize],
        kernels: &KernelSource,
    ) -> Result<Self> {
        let (sys, shape) = (store.sys(), &store.manifest().shape);
        let spec = Specialisation {
            layout: KernelLayout::Tiled,
            precision: T::PRECISION,
            order: shape.order(),
            rank: columns.of_factor(0),
            kronecker: columns.kronecker(&device.facts, T::PRECISION, modes),
            decimals: true,
        };
        let dims = shape.dims().iter().enumerate();
        let bytes: Vec<usize> =
            dims.map(|(mode, &dim)| dim as usize * columns.of_factor(mode) * size_of::<T>()).collect();
        let kernels =
            Families::load(device, store, &spec, kernels, bytes.iter().map(|&bytes| bytes as u64).sum())?;
        let mut arguments = chunk_arguments(shape)?;
        let mut factors = Vec::with_capacity(shape.order());
        for (&bytes, address) in bytes.iter().zip(&mut arguments.factors) {
            let memory = device.memory(bytes)?;
            *address = memory.address();
            factors.push(memory);
        }
        let fault = Fault::new(device)?;
        arguments.fault = fault.address();
        let (device, marker) = (Arc::clone(device), std::marker::PhantomData);
        let (sums, targets, active) = (Vec::new(), Vec::new(), None);
        Ok(Self {
            arguments,
            factors,
            fault,
            sums,
            targets,
            active,
            fibers: None,
            is_partial: false,
            kernels,
            is_wide: false,
            device,
            sys: sys.clone(),
            columns,
            marker,
        })
    }

    /// Copies `factors` to the device and replaces the previous ones.
    pub fn put<'f>(&mut self, factors: impl IntoIterator<Item = impl Into<FactorView<'f, T>>>) -> Result<()> {
        self.forget_fiber_sums();
        let bytes = self.factors.iter().map(Memory::bytes).sum();
        let mut staging = Staging::worth(&self.device, &self.sys, bytes);
        let mut on_device = Vec::new();
        for (memory, factor) in self.factors.iter_mut().zip(factors) {
            match (factor.into(), &mut staging) {
                (FactorView::Host(factor), Some(staging)) => staging.write(memory, factor.data())?,
                (FactorView::Host(factor), None) => memory.write(factor.data())?,
                (FactorView::Device(factor), _) => on_device.push((foreign(&self.device, &factor)?, memory)),
            }
        }
        if on_device.is_empty() {
            return Ok(());
        }
        let mut copies = on_device.into_iter();
        self.device.finish_default_stream()?;
        self.device
            .stream(Priority::Highest)?
            .finish(|stream| copies.try_for_each(|(from, to)| stream.copy_in(from, to)))
    }

    /// Copies the factor of `mode` to the device.
    pub fn put_factor(&mut self, mode: usize, factor: &Matrix<T>) -> Result<()> {
        self.forget_fiber_sums();
        let memory = &mut self.factors[mode];
        match Staging::worth(&self.device, &self.sys, memory.bytes()) {
            Some(mut staging) => staging.write(memory, factor.data()),
            None => memory.write(factor.data()),
        }
    }

    /// Copies the sums of `mode` after a pass, `dims[mode]` x rank numbers. For one of [`DeviceMttkrp::alternating`] and
    /// [`DeviceMttkrp::of_several`].
    pub fn read_sums(&self, mode: usize, sums: &mut [f64]) -> Result<()> {
        let target = &self.targets[mode];
        let memory = &self.sums[target.sums];
        if target.copies > 1 {
            let mut copies = vec![0.0; sums.len() * target.copies as usize];
            memory.read(&mut copies)?;
            sums.fill(0.0);
            for copy in copies.chunks_exact(sums.len()) {
                sums.iter_mut().zip(copy).for_each(|(sum, x)| *sum += x);
            }
            return Ok(());
        }
        match Staging::worth(&self.device, &self.sys, size_of_val(sums) as u64) {
            Some(mut staging) => staging.read(memory, sums),
            None => memory.read(sums),
        }
    }

    /// The same if they are in the precision of the factors: [`Update::rounded`].
    pub fn read_rounded(&self, mode: usize, sums: &mut [T]) -> Result<()> {
        self.sums[self.targets[mode].sums].read(sums)
    }

    /// Copies the results of the last pass to the caller's device memory, `dims[mode]` x rank numbers per mode.
    pub fn copy_results(&self, results: &[DeviceMatrix<T>]) -> Result<()> {
        let to = results.iter().map(|result| foreign(&self.device, result)).collect::<Result<Vec<_>>>()?;
        let mut copies = self.targets.iter().zip(to);
        self.device.finish_default_stream()?;
        self.device
            .stream(Priority::Highest)?
            .finish(|stream| copies.try_for_each(|(target, to)| stream.copy_out(self.result(target), to)))
    }

    /// Copies the factors from the device. For one of [`DeviceMttkrp::alternating`].
    pub fn factors(&self, sys: &Sys) -> Result<Vec<Matrix<T>>> {
        let matrices = self.factors.iter().zip(&self.targets);
        let columns = |target: &ModeSums| self.columns.of_factor(target.mode);
        let matrices: Vec<_> =
            matrices.map(|(memory, target)| (memory, (target.rows, columns(target)))).collect();
        self.read(sys, &matrices)
    }

    /// Copies matrices with these numbers of rows and columns from the device.
    fn read(&self, sys: &Sys, matrices: &[(&Memory, (usize, usize))]) -> Result<Vec<Matrix<T>>> {
        let zeroed = |(rows, columns): (usize, usize)| sys.par_vec(rows * columns, |_| T::zeroed());
        let mut data = matrices.iter().map(|&(_, shape)| zeroed(shape)).collect::<Result<Vec<_>>>()?;
        let read = matrices.iter().map(|&(memory, _)| memory).zip(data.iter_mut().map(|data| &mut data[..]));
        self.read_into(read.collect())?;
        Ok(matrices
            .iter()
            .zip(data)
            .map(|(&(_, (rows, columns)), data)| Matrix::from_rows(rows, columns, data))
            .collect())
    }

    /// Copies matrices from the device.
    fn read_into(&self, mut matrices: Vec<(&Memory, &mut [T])>) -> Result<()> {
        let bytes = matrices.iter().map(|(_, data)| size_of_val(&**data) as u64).sum();
        let mut staging = Staging::worth(&self.device, &self.sys, bytes);
        matrices.iter_mut().try_for_each(|(memory, data)| match &mut staging {
            Some(staging) => staging.read(memory, data),
            None => memory.read(data),
        })
    }

    /// Selects `mode` for the next pass; with `wide`, products are in f64. For one of
    /// [`DeviceMttkrp::alternating`].
    pub fn aim(&mut self, mode: usize, wide: bool) -> Result<()> {
        self.active = Some(mode);
        if self.fibers.as_ref().is_some_and(|fibers| fibers.leaf == mode) {
            // The pass is followed by a new factor.
            self.forget_fiber_sums();
        }
        self.is_wide = wide && T::PRECISION == Precision::F32;
        if self.is_wide { self.kernels.load_wide(&self.device) } else { Ok(()) }
    }

    /// Sums of fibers are those of a factor that is replaced.
    fn forget_fiber_sums(&mut self) {
        self.fibers.iter_mut().for_each(|fibers| fibers.are_computed = false);
    }

    /// The kernels with products in f64 for chunks of a layout, if the pass uses them.
    fn wide(&self, layout: KernelLayout) -> Option<&WideKernels> {
        self.kernels.of(layout).wide.as_ref().filter(|_| self.is_wide)
    }

    /// The sums of `mode` after a pass. For one of [`DeviceMttkrp::alternating`].
    #[must_use]
    pub fn update(&self, mode: usize) -> Update {
        let target = &self.targets[mode];
        let (sums, factor) = (self.sums[target.sums].address(), self.factors[mode].address());
        let copies = if target.written { 1 } else { target.copies };
        Update { sums, copies, rounded: target.written && !self.is_wide, factor }
    }

    /// The memory of the result, `dims[mode]` x rank numbers in the precision of the factors.
    fn result<'s>(&'s self, target: &'s ModeSums) -> &'s Memory {
        target.result.as_ref().unwrap_or(&self.sums[target.sums])
    }

    /// Reports the kernels in use.
    #[must_use]
    pub fn kernels(&self) -> &KernelReport {
        &self.kernels.first().kernels.report
    }

    /// Copies the results of the last pass to `results`, `dims[mode]` x rank numbers per mode.
    pub fn read_results(&self, results: &mut [&mut [T]]) -> Result<()> {
        let both = self.targets.iter().zip(results);
        self.read_into(both.map(|(target, data)| (self.result(target), &mut **data)).collect())
    }

    /// The results of the last pass, with their modes.
    pub fn results(&self, sys: &Sys) -> Result<Vec<ModeMatrix<T>>> {
        let shape = |target: &ModeSums| (target.rows, target.columns);
        let results: Vec<_> =
            self.targets.iter().map(|target| (self.result(target), shape(target))).collect();
        Ok(self.targets.iter().map(|target| target.mode).zip(self.read(sys, &results)?).collect())
    }
}

/// The memory of a matrix that the caller holds on `device`.
fn foreign<T>(device: &Device, matrix: &DeviceMatrix<T>) -> Result<ForeignMemory> {
    let (number, of) = (device.facts.number, matrix.device());
    if of != number {
        return Err(Error::request(format!("a matrix in the memory of GPU {of}; GPU {number} computes")));
    }
    device.foreign(matrix.address(), matrix.bytes().unwrap_or(usize::MAX))
}

impl<T: Real + Pod> DeviceMttkrp<T> {
    /// Sets the widths of a Kronecker product's columns in a launch for `mode`; the last mode varies fastest.
    fn set_widths(&self, arguments: &mut MttkrpArgs, mode: usize) -> Result<()> {
        let Columns::Kronecker(ranks) = &self.columns else { return Ok(()) };
        let mut stride = 1;
        for (m, &rank) in ranks.iter().enumerate().rev() {
            (arguments.widths[m], arguments.strides[m]) = (narrow(rank)?, stride);
            if m != mode {
                stride *= narrow(rank)?;
            }
        }
        Ok(())
    }

    /// Launches the work on sorted nonzeros.
    fn launch_sorted(
        &self,
        target: &ModeSums,
        stream: &Stream,
        work: &Launch,
        mut arguments: MttkrpArgs,
    ) -> Result<()> {
        let family = self.kernels.of(work.layout);
        let (sorted, fix_up) = match self.wide(work.layout) {
            Some(wide) => (&wide.sorted, &wide.fix_up),
            None => (&family.kernels.sorted, &family.kernels.fix_up),
        };
        let (Some(kernel), Some(carries)) = (sorted, &target.carries) else {
            return Err(Error::request("no nonzeros were sorted"));
        };
        let result = match work.nonzeros {
            Nonzeros::SortedPart => &self.sums[target.sums],
            _ => self.result(target),
        };
        arguments.add = u32::from(work.nonzeros == Nonzeros::SortedPart);
        arguments.targets[0].sums = result.address();
        if let (true, Some(fibers)) = (target.along_fibers, &self.fibers) {
            arguments.dims[fibers.leaf] = fibers.count;
            arguments.factors[fibers.leaf] = fibers.memory.address();
        }
        launch_rows([kernel, fix_up], carries, target.stretch.as_ref(), stream, work, arguments)
    }
}

fn narrow(x: usize) -> Result<u32> {
    u32::try_from(x).map_err(|_| Error::request(format!("rank {x} is too large")))
}

/// The arguments common to all launches, except columns.
pub(in crate::op) fn chunk_arguments(shape: &Shape) -> Result<MttkrpArgs> {
    let mut arguments = MttkrpArgs { order: narrow(shape.order())?, ..Zeroable::zeroed() };
    arguments.dims[..shape.order()].copy_from_slice(shape.dims());
    let layout = BitLayout::new(shape);
    let (inside, above) = layout.bit_modes().split_at(layout.bit_modes().len().min(BLOCK_BITS as usize));
    for &mode in inside {
        arguments.block_bits[usize::from(mode)] += 1;
    }
    arguments.key_bits = narrow(above.len())?;
    arguments.key_modes[..above.len()].copy_from_slice(above);
    debug_assert!(shape.order() <= ORDER_MAX, "a shape is valid");
    Ok(arguments)
}

impl<T: Real + Pod> DeviceOp for DeviceMttkrp<T> {
    fn parts(&self) -> usize {
        self.targets.len()
    }

    fn as_they_lie(&self) -> bool {
        self.kernels.as_they_lie()
    }

    fn sorted_bytes(&self, nnz: u64) -> u64 {
        sorted_bytes(nnz, self.targets.iter().map(|target| target.columns).max().unwrap_or(1))
    }

    fn sort(
        &mut self,
        part: usize,
        blocks: u32,
        stretch: Option<&Stretch>,
        along_fibers: bool,
    ) -> Result<()> {
        let target = &mut self.targets[part];
        target.carries = Some(CarryOut::levels(&self.device, blocks, target.columns, stretch)?);
        (target.stretch, target.along_fibers) = (stretch.cloned(), along_fibers);
        Ok(())
    }

    fn fiber_bytes(&self, leaf: usize, count: u32, nnz: u64) -> Option<u64> {
        let columns = self.columns.of_factor(leaf);
        let sums = u64::from(count) * (columns * size_of::<T>()) as u64;
        (!self.is_partial && self.factors.len() > 2).then_some(sums + sorted_bytes(nnz, columns))
    }

    fn take_fibers(&mut self, leaf: usize, (count, nnz): (u32, u64), blocks: u32) -> Result<()> {
        let columns = self.columns.of_factor(leaf);
        self.fibers = Some(FiberSums {
            leaf,
            count,
            memory: self.device.memory(count as usize * columns * size_of::<T>())?,
            carries: CarryOut::levels(&self.device, blocks, columns, None)?,
            kernels: FiberSumKernels::load(&self.device, T::PRECISION, columns)?,
            per_nonzero: f64::from(count) / nnz.max(1) as f64,
            are_computed: false,
        });
        Ok(())
    }

    fn can_take_fibers(&self) -> bool {
        !self.is_wide
    }

    fn needs_fiber_sums(&self) -> bool {
        // In a decomposition, several passes follow with the same factor.
        self.active.is_none() || self.fibers.as_ref().is_some_and(|fibers| !fibers.are_computed)
    }

    fn launch_fibers(&mut self, stream: &Stream, work: &Launch) -> Result<()> {
        let Some(fibers) = &mut self.fibers else { return Ok(()) };
        let (chunks, chunk_count) = work.chunks;
        let (rows, leaf) = (fiber_mode(fibers.leaf), 1 - fiber_mode(fibers.leaf));
        let mut arguments = MttkrpArgs {
            order: 2,
            rank: narrow(self.columns.of_factor(fibers.leaf))?,
            chunks,
            chunk_count,
            fault: self.arguments.fault,
            target_count: 1,
            ..Zeroable::zeroed()
        };
        (arguments.dims[rows], arguments.dims[leaf]) = (fibers.count, self.arguments.dims[fibers.leaf]);
        arguments.factors[leaf] = self.factors[fibers.leaf].address();
        let mode = u32::try_from(rows).unwrap_or(0);
        arguments.targets[0] = abi::Target { sums: fibers.memory.address(), mode, copies: 1 };
        fibers.are_computed = true;
        let kernels = [&fibers.kernels.sums, &fibers.kernels.fix_up];
        launch_rows(kernels, &fibers.carries, None, stream, work, arguments)
    }

    fn is_active(&self, part: usize) -> bool {
        self.active.is_none_or(|active| active == part)
    }

    fn begin(&mut self, part: usize, empty: Option<&Memory>, stream: &Stream) -> Result<()> {
        if part == self.active.unwrap_or(0) {
            self.fault.clear()?;
        }
        // Sums that others complete are added to, like the sums of only some of the nonzeros.
        let empty = empty.filter(|_| !self.is_partial(part));
        self.targets[part].written = empty.is_some();
        let target = &self.targets[part];
        let Some(empty) = empty else {
            let bytes = target.sum_bytes();
            return stream.fill_first(&mut self.sums[target.sums], bytes, 0);
        };
        let all = 0..u32::try_from(target.rows).unwrap_or(u32::MAX);
        let own = target.stretch.as_ref().map_or(all, |stretch| stretch.rows.clone());
        // From a whole word of bits on; rows before the device's own mean nothing.
        let (first, rank) = (own.start / 32 * 32, narrow(target.columns)?);
        let (rows, bytes) = (own.end - first, if self.is_wide { 8 } else { size_of::<T>() as u64 });
        let result = self.result(target).address() + u64::from(first) * u64::from(rank) * bytes;
        let arguments = ClearArgs { empty: empty.address() + u64::from(first / 8), result, rows, rank };
        if rows == 0 {
            return Ok(());
        }
        let family = self.kernels.first();
        let clear = family.wide.as_ref().filter(|_| self.is_wide);
        let clear = clear.map_or(&family.kernels.clear, |wide| &wide.clear);
        stream.launch(clear, warps(u64::from(rows).div_ceil(32)), ROW_THREADS, &arguments)
    }

    fn launch(&mut self, parts: &[usize], stream: &Stream, work: &Launch) -> Result<usize> {
        let nonzeros = match work.nonzeros {
            // Other devices have the remaining nonzeros.
            Nonzeros::Sorted if self.is_partial(parts[0]) => Nonzeros::SortedPart,
            nonzeros => nonzeros,
        };
        let work = &Launch { nonzeros, ..*work };
        if let (Columns::Kronecker(_), [_, _, ..]) = (&self.columns, parts) {
            return parts
                .iter()
                .try_for_each(|part| self.launch(&[*part], stream, work).map(drop))
                .map(|()| 0);
        }
        let columns = self.targets[parts[0]].columns;
        let (chunks, chunk_count) = work.chunks;
        let mut arguments = MttkrpArgs { chunks, chunk_count, one: work.one, ..self.arguments };
        for (to, target) in arguments.targets.iter_mut().zip(parts.iter().map(|&p| &self.targets[p])) {
            let mode = u32::try_from(target.mode).unwrap_or(0);
            *to = abi::Target { sums: self.sums[target.sums].address(), mode, copies: target.copies };
        }
        arguments.target_count = u32::try_from(parts.len()).unwrap_or(0);
        arguments.rank = narrow(columns)?;
        arguments.product = self.targets[parts[0]].product;
        self.set_widths(&mut arguments, self.targets[parts[0]].mode)?;
        if let (Nonzeros::Sorted | Nonzeros::SortedPart, &[part]) = (work.nonzeros, parts) {
            return self.launch_sorted(&self.targets[part], stream, work, arguments).map(|()| 0);
        }
        // A thread block that reads a tree computes all modes of a launch.
        let of_tiles = if work.layout == KernelLayout::Tree { 1 } else { arguments.target_count };
        let kernels = &self.kernels.of(work.layout).kernels;
        let grid = (work.blocks * of_tiles, kernels.variant.sweeps(columns));
        let (kernel, threads) = match self.wide(work.layout) {
            Some(wide) => (&wide.mttkrp, wide.threads),
            None => (&kernels.mttkrp, TILE_THREADS * kernels.variant.tiles),
        };
        stream.launch_grid(kernel, grid, threads, &arguments).map(|()| 0)
    }

    fn finish(&mut self, part: usize, written: bool, stream: &Stream) -> Result<()> {
        let target = &self.targets[part];
        if written
            || self.active.is_some()
            || self.is_partial
            || (target.copies == 1 && target.result.is_none())
        {
            return Ok(());
        }
        let elements = (target.rows * target.columns) as u64;
        let sums = &self.sums[target.sums];
        stream.launch_finish(
            &self.kernels.first().kernels.finish,
            sums,
            target.copies,
            elements,
            self.result(target),
        )
    }

    fn tiles_per_block(&self, layout: KernelLayout) -> u32 {
        self.kernels.of(layout).kernels.variant.tiles
    }

    fn bytes_per_nonzero(&self) -> f64 {
        let targets = if self.active.is_some() { &self.targets[..1] } else { &self.targets[..] };
        let all: usize = (0..self.factors.len()).map(|mode| self.columns.of_factor(mode)).sum();
        let read = |target: &ModeSums| {
            let of_entry = (all - self.columns.of_factor(target.mode)) as f64;
            // Of entries and sums; the sums themselves read the leaf mode's factor.
            let few = self.fibers.as_ref().filter(|_| target.along_fibers).map(|fibers| fibers.per_nonzero);
            of_entry * few.unwrap_or(1.0)
        };
        let of_sums = self.fibers.as_ref().map_or(0, |fibers| self.columns.of_factor(fibers.leaf));
        (targets.iter().map(read).sum::<f64>() + of_sums as f64) * size_of::<T>() as f64
    }

    fn damaged_chunk(&self) -> Result<Option<u32>> {
        self.fault.chunk()
    }
}
