//! Passes on a GPU, factors and updates in host memory: a process with a GPU, among several that have no NCCL
//! ([`linked`](super::linked)). After each pass the mode's sums are copied to
//! the host, and after each update its factor to the device; what crosses between processes is what crosses between those on CPUs
//! ([`members`](super::members)).

use super::collective::Collective;
use super::cp_als::AlsBackend;
use super::extended::{self, Double};
use super::members::Share;
use super::update::{self, Gram, Rule};
use crate::backend::Squares;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::driver::{Device, Pinned};
use crate::backend::device::KernelReport;
use crate::backend::plan::{DevicePlan, Operation};
use crate::dense::{Matrix, Real};
use crate::error::Result;
use crate::op::mttkrp::cuda::{DeviceMttkrp, alternating_operation};
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::{Executor, PassReport, Plan};
use bytemuck::Pod;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Passes on a GPU, the rest on the current rayon pool.
#[derive(Debug)]
pub struct HybridAls<T: Real + Pod> {
    // Dropped first: its buffers are the backend's.
    executor: Executor<Pinned>,
    backend: CudaBackend<DeviceMttkrp<T>>,
    factors: Vec<Matrix<T>>,
    /// Room for any mode's sums; the first numbers are those of the last pass.
    sums: Vec<f64>,
    /// Numbers of each mode's sums.
    numbers: Vec<usize>,
    mode: usize,
    members: Box<dyn Collective>,
    notes: Vec<String>,
}

/// The device memory and work of passes for factors of `rank` columns.
#[must_use]
pub fn operation<T: Real>(shape: &Shape, rank: usize) -> Operation {
    alternating_operation::<T>(shape, rank, 0)
}

/// Bytes that it holds on the host beside factors: sums, and an update's.
#[must_use]
pub fn host_bytes(shape: &Shape, rank: usize) -> u64 {
    let dims = || shape.dims().iter().map(|&dim| dim as usize);
    let sums = dims().map(|rows| (rows * rank * size_of::<f64>()) as u64).max();
    let update = dims().map(|rows| update::host_bytes(rows, rank)).max();
    sums.unwrap_or(0).saturating_add(update.unwrap_or(0))
}

impl<T: Real + Pod> HybridAls<T> {
    /// For a process that has the chunks of `store`, by the plans of its passes. `op` is one of [`DeviceMttkrp::alternating`] and
    /// [`DeviceMttkrp::of_several`]; `squares` get those of the chunks, `notes` what is not as planned.
    pub fn new(
        device: &Arc<Device>,
        store: &Store,
        (plan, device_plan): (&Plan, &DevicePlan),
        (op, rank): (DeviceMttkrp<T>, usize),
        squares: Squares,
        members: Box<dyn Collective>,
        mut notes: Vec<String>,
    ) -> Result<Self> {
        let mut backend = CudaBackend::new(device, store, device_plan, op)?.with_squares(squares);
        let executor = Executor::new(store, plan, &mut backend)?;
        let dims = store.manifest().shape.dims();
        let numbers: Vec<usize> = dims.iter().map(|&dim| dim as usize * rank).collect();
        let sums = store.sys().par_vec(numbers.iter().copied().max().unwrap_or(0), |_| 0.0)?;
        notes.extend_from_slice(backend.notes());
        Ok(Self { executor, backend, factors: Vec::new(), sums, numbers, mode: 0, members, notes })
    }
}

impl<T: Real + Pod> Share<T> for HybridAls<T> {
    fn pass(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport> {
        self.backend.op().aim(mode, wide)?;
        let passed = self.executor.pass(&mut self.backend, progress)?;
        self.mode = mode;
        self.backend.op().read_sums(mode, &mut self.sums[..self.numbers[mode]])?;
        Ok(passed)
    }

    fn reduced(&mut self) -> Result<(&mut [f64], Range<usize>)> {
        let sums = &mut self.sums[..self.numbers[self.mode]];
        let own = self.members.owned(sums.len());
        self.members.reduce_scatter(sums, own.clone())?;
        Ok((sums, own))
    }

    fn used(&self) -> Option<(&DevicePlan, &[String])> {
        Some((self.backend.plan(), &self.notes))
    }

    fn kernels(&mut self) -> Option<KernelReport> {
        Some(self.backend.op().kernels().clone())
    }
}

impl<T: Real + Pod> AlsBackend<T> for HybridAls<T> {
    fn set_factors(&mut self, factors: Vec<Matrix<T>>) -> Result<()> {
        self.backend.op().put(&factors)?;
        self.factors = factors;
        Ok(())
    }

    fn factors(&mut self) -> Result<Cow<'_, [Matrix<T>]>> {
        Ok(Cow::Borrowed(&self.factors))
    }

    fn take(&mut self) -> Result<Vec<Matrix<T>>> {
        Ok(std::mem::take(&mut self.factors))
    }

    fn mttkrp(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        self.pass(mode, wide, progress).map(drop)
    }

    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram> {
        let (sums, factor) = (&mut self.sums[..self.numbers[mode]], &mut self.factors[mode]);
        // The next pass sets the sums.
        let gram = update::update(sums, factor, rule, false, &mut *self.members)?;
        self.backend.op().put_factor(mode, factor)?;
        Ok(gram)
    }

    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>> {
        Ok(extended::gram(&self.factors[mode]))
    }
}
