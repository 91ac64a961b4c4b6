//! Factors in device memory: a process with a GPU, among several that NCCL connects. Sums and new rows pass from device to device, as
//! between [several devices of one process](super::devices); Gram matrices and orders pass between processes
//! ([`members`](super::members)).

use super::collective::Collective;
use super::cp_als::AlsBackend;
use super::cuda::Dense;
use super::extended::Double;
use super::members::Share;
use super::update::{Gram, Rule};
use crate::backend::Squares;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::devices::Group;
use crate::backend::cuda::driver::nccl::{Nccl, UniqueId};
use crate::backend::cuda::driver::{Device, Pinned, Staging};
use crate::backend::device::KernelReport;
use crate::backend::plan::DevicePlan;
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::members;
use crate::op::mttkrp::cuda::{DeviceMttkrp, Update};
use crate::store::Store;
use crate::stream::{Executor, PassReport, Plan};
use bytemuck::{Pod, Zeroable, bytes_of, bytes_of_mut};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Passes and factors on this process's GPU.
#[derive(Debug)]
pub struct LinkedAls<T: Real + Pod> {
    // Dropped first: its buffers are the backend's.
    executor: Executor<Pinned>,
    backend: CudaBackend<DeviceMttkrp<T>>,
    /// For a decomposition.
    dense: Option<Dense>,
    linked: Group,
    group: members::Group,
    store: Store,
    device: Arc<Device>,
    rank: usize,
    mode: usize,
    /// Room for any mode's sums in host memory, once they are asked for.
    sums: Vec<f64>,
}

/// Connects the GPUs of all processes by NCCL; every process calls it. Nothing where one of them has no NCCL, or it does not start: then
/// there is a note in those that have it.
pub fn connect(device: &Arc<Device>, group: &members::Group) -> Result<(Option<Group>, Vec<String>)> {
    let mut found = Nccl::find().ok();
    let version = found.as_ref().map_or(0, Nccl::version);
    let versions = group.all_gather(&version.to_le_bytes())?;
    let all_have = version > 0 && versions.iter().all(|other| *other == versions[0]);
    let Some(nccl) = found.as_mut().filter(|_| all_have) else {
        let notes = found.iter().map(|nccl| through_host(&format!("not all processes have {}", nccl.name())));
        return Ok((None, notes.collect()));
    };
    let mut id = UniqueId::zeroed();
    let mut made = if group.number() == 0 { nccl.unique_id().map(|made| id = made) } else { Ok(()) };
    group.broadcast(bytes_of_mut(&mut id))?;
    // An id of zeros: process 0 has none.
    if bytes_of(&id) != bytes_of(&UniqueId::zeroed()) {
        made = nccl.join(device, id, (group.number(), group.count()))?;
    }
    let failed = group.all_gather(&[u8::from(made.is_err())])?;
    let failed = failed.iter().position(|failed| failed[0] > 0);
    match (made, failed, found) {
        (Err(why), ..) => Ok((None, vec![through_host(&why)])),
        (_, None, Some(nccl)) => {
            let linked = Group::across(device, nccl, (group.number(), group.count()))?;
            Ok((Some(linked), Vec::new()))
        }
        (_, process, _) => {
            let why = format!("NCCL does not start in process {}", process.unwrap_or(0));
            Ok((None, vec![through_host(&why)]))
        }
    }
}

/// For people: how processes exchange sums and rows, as far as this one knows.
#[must_use]
pub fn exchange() -> String {
    match Nccl::find() {
        Ok(nccl) => format!("{} exchanges sums and rows of factors", nccl.name()),
        Err(why) => through_host(&why),
    }
}

fn through_host(why: &str) -> String {
    format!("{why}: sums and rows of factors pass through the host and MPI")
}

impl<T: Real + Pod> LinkedAls<T> {
    /// For a process that has the chunks of `store`, by the plans of its passes. `op` is one of [`DeviceMttkrp::alternating`] and
    /// [`DeviceMttkrp::of_several`]; `squares` get those of the chunks. `linked` is of all processes in `group`. `nonneg` is that of a
    /// decomposition.
    pub fn new(
        (device, linked): (&Arc<Device>, Group),
        store: &Store,
        (plan, device_plan): (&Plan, &DevicePlan),
        (op, rank, nonneg): (DeviceMttkrp<T>, usize, Option<bool>),
        squares: Squares,
        group: members::Group,
    ) -> Result<Self> {
        let dense = nonneg.map(|nonneg| Dense::new(device, T::PRECISION, rank, nonneg)).transpose()?;
        let mut backend = CudaBackend::new(device, store, device_plan, op)?.with_squares(squares);
        let executor = Executor::new(store, plan, &mut backend)?;
        let (store, device, sums) = (store.clone(), Arc::clone(device), Vec::new());
        Ok(Self { executor, backend, dense, linked, group, store, device, rank, mode: 0, sums })
    }

    fn dense(&mut self) -> Result<&mut Dense> {
        self.dense.as_mut().ok_or_else(|| Error::request("no decomposition was prepared"))
    }

    fn rows(&self, mode: usize) -> usize {
        self.store.manifest().shape.dims()[mode] as usize
    }

    /// Has the device add up its own rows of the sums. Returns which they are.
    fn reduce(&mut self, mode: usize) -> Result<Range<usize>> {
        // Devices wait for each other as long as a kernel may take, and not as long as a pass may.
        self.group.meet()?;
        let (rows, rank) = (self.rows(mode), self.rank);
        self.linked.reduce_scatter(&[(vec![self.backend.op().partial(mode)], rows)], rank)?;
        Ok(self.linked.owned(rows)[self.group.number()].clone())
    }
}

impl<T: Real + Pod> Share<T> for LinkedAls<T> {
    fn pass(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport> {
        self.mode = mode;
        self.backend.op().aim(mode, wide)?;
        self.executor.pass(&mut self.backend, progress)
    }

    fn reduced(&mut self) -> Result<(&mut [f64], Range<usize>)> {
        let (mode, rank) = (self.mode, self.rank);
        let own = self.reduce(mode)?;
        let own = own.start * rank..own.end * rank;
        let numbers = self.rows(mode) * rank;
        if self.sums.len() < numbers {
            self.sums = self.store.sys().par_vec(numbers, |_| 0.0)?;
        }
        let memory = self.backend.op().partial(mode).sums;
        let (at, sums) = (own.start * size_of::<f64>(), &mut self.sums[own.clone()]);
        match Staging::worth(&self.device, self.store.sys(), size_of_val(sums) as u64) {
            Some(mut staging) => staging.read_at(memory, at, sums)?,
            None => memory.read_at(at, sums)?,
        }
        Ok((&mut self.sums[..numbers], own))
    }

    fn used(&self) -> Option<(&DevicePlan, &[String])> {
        Some((self.backend.plan(), self.backend.notes()))
    }

    fn kernels(&mut self) -> Option<KernelReport> {
        Some(self.backend.op().kernels().clone())
    }
}

impl<T: Real + Pod> AlsBackend<T> for LinkedAls<T> {
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
        self.pass(mode, wide, progress).map(drop)
    }

    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram> {
        let (own, rank) = (self.reduce(mode)?, self.rank);
        let reduced = Update { copies: 1, ..self.backend.op().update(mode) };
        let mut parts = Vec::new();
        if !own.is_empty() {
            parts.push(self.dense()?.update(reduced.of_rows::<T>(&own, rank), rule)?.numbers());
        }
        let total = self.group.all_reduce(parts, rank * (rank + 1))?;
        let owned = self.linked.owned(self.rows(mode));
        self.linked.gather(&[self.backend.op().factor(mode)], &owned, rank * size_of::<T>())?;
        Ok(Gram::of_numbers(total, rank))
    }

    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>> {
        let rows = 0..self.rows(mode);
        let arguments = self.backend.op().update(mode).of_rows::<T>(&rows, self.rank);
        let device = Arc::clone(&self.device);
        self.dense()?.extended_gram(&device, T::PRECISION, arguments)
    }
}
