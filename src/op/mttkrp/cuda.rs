//! MTTKRP on a GPU: a part for each mode, one kernel for all parts that read the same chunk (kernels/mttkrp.cuh).
//!
//! Products are in the precision of the factors, with at most [`CHAIN`](crate::backend::cuda::abi::CHAIN) additions in
//! it; longer sums are in f64.
//! Updates of one row by several thread blocks come in any order, so that results differ in the last bits from run
//! to run, within the oracle's bound.
//!
//! **Conflicts** (Nguyen et al., ICS 2022, section 5). Every group of tiles is ordered by target row and reduced in
//! registers first. A mode of few rows, which all multiprocessors would update at once, gets several copies of
//! its sums besides, as the paper's hierarchical resolution does for modes shorter than the device has
//! multiprocessors; [`copies`] goes by what copies are for, enough rows to spread updates over.

use super::ModeMatrix;
use crate::backend::cuda::abi::{self, MttkrpArgs, TILE_THREADS};
use crate::backend::cuda::driver::{Device, Memory, Stream};
use crate::backend::cuda::kernels::{Loaded, LoadedReport, Source, Specialisation};
use crate::backend::cuda::{DeviceOp, Work};
use crate::dense::{Matrix, Precision, Real};
use crate::error::{Error, Result};
use crate::linear::{BLOCK_BITS, BitLayout};
use crate::shape::{ORDER_MAX, Shape};
use crate::store::Store;
use crate::sys::Sys;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;

/// Rows over which updates of a short mode are spread: from here on the device's atomic units keep up.
const SPREAD_ROWS: usize = 1024;
/// The largest number of rows that gets copies.
const SHORT_ROWS: usize = 256;

/// The copies of a mode's sums: 1 for all but short modes.
#[must_use]
pub fn copies(rows: usize) -> usize {
    if rows <= SHORT_ROWS { SPREAD_ROWS.div_ceil(rows) } else { 1 }
}

/// Bytes of device memory that MTTKRP of `modes` holds: factors, sums and results.
#[must_use]
pub fn device_bytes<T: Real>(shape: &Shape, modes: &[usize], rank: usize) -> u64 {
    let matrix = |m: usize, element: usize| u64::from(shape.dims()[m]) * rank as u64 * element as u64;
    let factors: u64 = (0..shape.order()).map(|m| matrix(m, size_of::<T>())).sum();
    let sums = |m: usize| matrix(m, 8) * copies(shape.dims()[m] as usize) as u64;
    let results = |m: usize| if size_of::<T>() == 8 { 0 } else { matrix(m, size_of::<T>()) };
    factors + modes.iter().map(|&m| sums(m) + results(m)).sum::<u64>()
}

/// MTTKRP of some modes on a GPU.
#[derive(Debug)]
pub struct DeviceMttkrp<T> {
    arguments: MttkrpArgs,
    /// Held for their addresses.
    _factors: Vec<Memory>,
    fault: Memory,
    targets: Vec<Target>,
    kernels: Loaded,
    rank: usize,
    marker: std::marker::PhantomData<T>,
}

/// The sums of one mode while they grow.
#[derive(Debug)]
struct Target {
    mode: usize,
    rows: usize,
    copies: u32,
    sums: Memory,
    /// `None` where the first copy of the sums becomes the result.
    result: Option<Memory>,
    /// Whether rows are so short that sorted nonzeros are added up in the result itself.
    short: bool,
}

impl Target {
    /// Where sorted nonzeros are added up in the factors' precision.
    fn short_sums(&self, sorted: bool) -> Option<&Memory> {
        self.result.as_ref().filter(|_| sorted && self.short)
    }
}

impl<T: Real + Pod> DeviceMttkrp<T> {
    /// MTTKRP of `modes`, from 0, with `factors[m]` `dims[m]` x rank, on `store`.
    pub fn new(
        device: &Arc<Device>,
        store: &Store,
        factors: &[Matrix<T>],
        modes: &[usize],
        kernels: &Source,
    ) -> Result<Self> {
        let (sys, shape, encoding) = (store.sys(), &store.manifest().shape, store.manifest().index_encoding);
        let (rank, order) = (factors[0].columns(), shape.order());
        let spec = Specialisation { layout: encoding, precision: T::PRECISION, order, rank };
        let factor_bytes = factors.iter().map(|f| size_of_val(f.data()) as u64).sum();
        let kernels = kernels.load(device, sys, &spec, factor_bytes)?;
        let mut arguments = arguments(shape, rank)?;
        let mut on_device = Vec::with_capacity(order);
        for (factor, address) in factors.iter().zip(&mut arguments.factors) {
            let mut memory = device.memory(size_of_val(factor.data()))?;
            memory.write(factor.data())?;
            *address = memory.address();
            on_device.push(memory);
        }
        let fault = device.memory(size_of::<u32>())?;
        arguments.fault = fault.address();
        let target = |&mode: &usize| {
            let rows = factors[mode].rows();
            let copies = copies(rows);
            let sums = device.memory(copies * rows * rank * size_of::<f64>())?;
            let separate = size_of::<T>() < size_of::<f64>();
            let result = separate.then(|| device.memory(rows * rank * size_of::<T>())).transpose()?;
            let longest_row = store.manifest().longest_row_bounds[mode];
            let short = kernels.short.is_some() && copies == 1 && longest_row <= kernels.variant.short_row();
            let copies = u32::try_from(copies).unwrap_or(1);
            Ok(Target { mode, rows, copies, sums, result, short })
        };
        let targets = modes.iter().map(target).collect::<Result<_>>()?;
        let marker = std::marker::PhantomData;
        Ok(Self { arguments, _factors: on_device, fault, targets, kernels, rank, marker })
    }

    /// Which kernels serve.
    #[must_use]
    pub fn kernels(&self) -> &LoadedReport {
        &self.kernels.report
    }

    /// The results of the last pass, with their modes.
    pub fn results(&self, sys: &Sys) -> Result<Vec<ModeMatrix<T>>> {
        let read = |target: &Target| {
            let mut data = sys.vec(T::zeroed(), target.rows * self.rank)?;
            target.result.as_ref().unwrap_or(&target.sums).read(&mut data)?;
            Ok((target.mode, Matrix::from_rows(target.rows, self.rank, data)))
        };
        self.targets.iter().map(read).collect()
    }
}

/// The arguments that all launches share.
fn arguments(shape: &Shape, rank: usize) -> Result<MttkrpArgs> {
    let narrow = |x: usize| u32::try_from(x).map_err(|_| Error::request(format!("rank {x} is too large")));
    let mut arguments =
        MttkrpArgs { order: narrow(shape.order())?, rank: narrow(rank)?, ..Zeroable::zeroed() };
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

    fn begin(&mut self, part: usize, sorted: bool, stream: &Stream) -> Result<()> {
        if part == 0 {
            self.fault.write(&[u32::MAX])?;
        }
        let target = &mut self.targets[part];
        match &mut target.result {
            Some(result) if sorted && target.short => stream.fill(result, 0),
            _ => stream.fill(&mut target.sums, 0),
        }
    }

    fn launch(&self, parts: &[usize], stream: &Stream, work: &Work) -> Result<()> {
        let (chunks, chunk_count) = work.chunks;
        let short = |target: &Target| target.short_sums(work.sorted).map(Memory::address);
        let mut targets = [abi::Target::default(); ORDER_MAX];
        for (to, target) in targets.iter_mut().zip(parts.iter().map(|&p| &self.targets[p])) {
            let sums = short(target).unwrap_or(target.sums.address());
            *to = abi::Target { sums, mode: target.mode.try_into().unwrap_or(0), copies: target.copies };
        }
        let is_short = parts.iter().all(|&p| short(&self.targets[p]).is_some());
        let kernel = self.kernels.short.as_ref().filter(|_| is_short).unwrap_or(&self.kernels.mttkrp);
        let target_count = u32::try_from(parts.len()).unwrap_or(0);
        let sorted = work.sorted.into();
        let arguments = MttkrpArgs {
            targets,
            target_count,
            chunks,
            chunk_count,
            one: work.one,
            sorted,
            ..self.arguments
        };
        // Sorted nonzeros meet their target rows once, whatever the caches hold.
        let sweeps = if work.sorted { 1 } else { self.kernels.variant.sweeps(self.rank) };
        let grid = (work.blocks * target_count, sweeps);
        stream.launch_grid(kernel, grid, TILE_THREADS * self.tiles_per_block(), &arguments)
    }

    fn finish(&mut self, part: usize, sorted: bool, stream: &Stream) -> Result<()> {
        let target = &self.targets[part];
        if target.short_sums(sorted).is_some() {
            return Ok(());
        }
        let result = target.result.as_ref().unwrap_or(&target.sums);
        if target.copies == 1 && target.result.is_none() {
            return Ok(());
        }
        let elements = (target.rows * self.rank) as u64;
        stream.launch_finish(&self.kernels.finish, &target.sums, target.copies, elements, result)
    }

    fn precision(&self) -> Precision {
        T::PRECISION
    }

    fn tiles_per_block(&self) -> u32 {
        self.kernels.variant.tiles
    }

    fn bytes_per_nonzero(&self) -> f64 {
        let rows = self.targets.len() as f64 * (f64::from(self.arguments.order) - 1.0);
        rows * (self.rank * size_of::<T>()) as f64
    }

    fn damaged_chunk(&self) -> Result<Option<u32>> {
        let mut number = [0];
        self.fault.read(&mut number)?;
        Ok((number[0] != u32::MAX).then_some(number[0]))
    }
}
