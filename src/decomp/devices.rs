//! Factors in the memory of several GPUs. Each GPU has some of the store's chunks and all of every factor. If a mode is divided by rows, each
//! has all chunks and owns the rows of which it has all sums; then nothing is added up. For deterministic results, all GPUs gather sums
//! instead of new rows, and each updates all rows as one would: the Gram matrix is then added up in one order for any number of GPUs.
//!
//! It is the scheme of [`collective`](super::collective) with matrices on devices. Each row's sums are added up on the
//! device that owns the row, the owner updates it, and all devices gather it. The owners' parts of the Gram matrix are
//! added up here, in the devices' order. `Collective` itself is not used, because it works on host memory.

use super::collective::sum;
use super::cp_als::AlsBackend;
use super::cuda::Dense;
use super::extended::Double;
use super::update::{Gram, Rule};
use crate::backend::Squares;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::abi::DenseArgs;
use crate::backend::cuda::devices::{Group, Partial, Team};
use crate::backend::cuda::driver::{Device, Staging};
use crate::backend::device::{KernelReport, KernelSource};
use crate::backend::devices::{DevicesPlan, owned};
use crate::backend::plan::DevicePlan;
use crate::dense::{Matrix, Real};
use crate::error::Result;
use crate::op::mttkrp::cuda::{DeviceMttkrp, Update};
use crate::store::Store;
use bytemuck::Pod;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Passes and factors on several GPUs.
#[derive(Debug)]
pub struct DevicesAls<T: Real + Pod> {
    team: Team<DeviceMttkrp<T>>,
    group: Group,
    dense: Vec<Dense>,
    store: Store,
    rank: usize,
    planned: DevicesPlan,
    /// What the first pass is to check when all devices have ended it.
    squares: Option<Squares>,
}

impl<T: Real + Pod> DevicesAls<T> {
    /// A backend for a decomposition of `store` by `plan` with factors of `rank` columns, which may have negative numbers unless
    /// `nonneg`; `kernels` says for a device's plan where its kernels come from.
    pub fn new(
        devices: &[Arc<Device>],
        store: &Store,
        plan: &DevicesPlan,
        (rank, nonneg): (usize, bool),
        kernels: impl Fn(&DevicePlan) -> KernelSource + Sync,
    ) -> Result<Self> {
        let dense = dense::<T>(devices, rank, nonneg)?;
        let squares = Squares::of(store);
        let team = Team::new(devices, store, plan, |device, part, plan| {
            let op = DeviceMttkrp::alternating(device, part, rank, &kernels(plan))?.of_several();
            Ok(CudaBackend::new(device, part, plan, op)?.with_squares(squares.part()))
        })?;
        let group = Group::new(devices, &plan.exchange)?;
        let (store, planned) = (store.clone(), plan.clone());
        Ok(Self { team, group, dense, store, rank, planned, squares: Some(squares) })
    }

    /// The same for factors of another rank, at most that of the first, or of another sign. What is on the devices of the store stays.
    pub fn with_rank(
        self,
        rank: usize,
        nonneg: bool,
        kernels: impl Fn(&DevicePlan) -> KernelSource + Sync,
    ) -> Result<Self> {
        let Self { mut team, group, dense: old, store, planned, squares, .. } = self;
        // Room for the next.
        drop(old);
        team.each(|number, member| {
            let kernels = kernels(&planned.parts[number].device);
            member.backend.remake(|op| op.set_rank(&store, rank, &kernels))
        })?;
        let devices: Vec<_> = team.members().iter().map(|member| Arc::clone(&member.device)).collect();
        let dense = dense::<T>(&devices, rank, nonneg)?;
        Ok(Self { team, group, dense, store, rank, planned, squares })
    }

    /// Which kernels serve, on the first device.
    pub fn kernels(&mut self) -> Option<KernelReport> {
        self.team.members().first_mut().map(|member| member.backend.op().kernels().clone())
    }

    /// What was allocated, and where that was less than planned.
    #[must_use]
    pub fn used(&self) -> (DevicesPlan, Vec<String>) {
        let (mut plan, mut notes) = self.team.used(&self.planned);
        plan.exchange = self.group.plan().clone();
        notes.extend(self.group.notes().iter().cloned());
        (plan, notes)
    }

    fn rows(&self, mode: usize) -> usize {
        self.store.manifest().shape.dims()[mode] as usize
    }

    /// The rows of `mode` of which each device has all sums, if it is divided by rows.
    fn own_rows(&mut self, mode: usize) -> Option<Vec<Range<usize>>> {
        self.team.members().iter_mut().map(|member| member.backend.op().own_rows(mode)).collect()
    }
}

fn dense<T: Real>(devices: &[Arc<Device>], rank: usize, nonneg: bool) -> Result<Vec<Dense>> {
    devices.iter().map(|device| Dense::new(device, T::PRECISION, rank, nonneg)).collect()
}

impl<T: Real + Pod> AlsBackend<T> for DevicesAls<T> {
    fn set_factors(&mut self, factors: Vec<Matrix<T>>) -> Result<()> {
        let members = self.team.members().par_iter_mut().with_max_len(1);
        members.try_for_each(|member| member.backend.op().put(&factors))
    }

    fn factors(&mut self) -> Result<Cow<'_, [Matrix<T>]>> {
        self.take().map(Cow::Owned)
    }

    /// Every device has all of them: each brings the rows that it owns.
    fn take(&mut self) -> Result<Vec<Matrix<T>>> {
        let (rank, dims) = (self.rank, self.store.manifest().shape.dims().to_vec());
        let sys = self.store.sys().clone();
        let zeros = |&dim: &u32| sys.par_vec(dim as usize * rank, |_| T::zeroed());
        let mut data = dims.iter().map(zeros).collect::<Result<Vec<Vec<T>>>>()?;
        let members = self.team.members();
        let mut pieces: Vec<Vec<(usize, &mut [T])>> = Vec::new();
        pieces.resize_with(members.len(), Vec::new);
        for data in &mut data {
            let mut rest = &mut data[..];
            for (own, pieces) in owned(rest.len() / rank, members.len()).into_iter().zip(&mut pieces) {
                let (piece, behind) = rest.split_at_mut(own.len() * rank);
                rest = behind;
                pieces.push((own.start * rank * size_of::<T>(), piece));
            }
        }
        members.par_iter_mut().zip(pieces).with_max_len(1).try_for_each(|(member, pieces)| {
            let bytes = pieces.iter().map(|(_, piece)| size_of_val(&**piece) as u64).sum();
            let mut staging = Staging::worth(&member.device, &sys, bytes);
            let op: &DeviceMttkrp<T> = member.backend.op();
            pieces.into_iter().enumerate().try_for_each(|(mode, (at, piece))| match &mut staging {
                Some(staging) => staging.read_at(op.factor(mode), at, piece),
                None => op.factor(mode).read_at(at, piece),
            })
        })?;
        let matrix = |(&dim, data): (&u32, Vec<T>)| Matrix::from_rows(dim as usize, rank, data);
        Ok(dims.iter().zip(data).map(matrix).collect())
    }

    fn mttkrp(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        for member in self.team.members() {
            member.backend.op().aim(mode, wide)?;
        }
        self.team.pass(progress)?;
        self.squares.take().map_or(Ok(()), |squares| squares.check())?;
        let rows = self.rows(mode);
        if self.own_rows(mode).is_some() {
            return Ok(());
        }
        let partials: Vec<Partial<'_>> =
            self.team.members().iter_mut().map(|member| member.backend.op().partial(mode)).collect();
        self.group.reduce_scatter(&[(partials, rows)], self.rank)
    }

    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram> {
        let (rows, rank) = (self.rows(mode), self.rank);
        let owned = self.own_rows(mode).unwrap_or_else(|| self.group.owned(rows));
        let alike = self.planned.parts.iter().all(|part| part.device.deterministic);
        let updated = if alike { owned.iter().map(|_| 0..rows).collect() } else { owned.clone() };
        if alike {
            let bytes = self.team.members()[0].backend.op().update(mode).bytes::<T>();
            let sums: Vec<_> =
                self.team.members().iter_mut().map(|m| m.backend.op().partial(mode).sums).collect();
            self.group.gather(&sums, &owned, rank * bytes)?;
        }
        let mut work: Vec<(&mut Dense, DenseArgs)> = Vec::with_capacity(owned.len());
        for ((member, dense), own) in self.team.members().iter_mut().zip(&mut self.dense).zip(updated) {
            let reduced = Update { copies: 1, ..member.backend.op().update(mode) };
            work.push((dense, reduced.of_rows::<T>(&own, rank)));
        }
        let work = work.into_iter().filter(|(_, arguments)| arguments.rows > 0);
        let mut parts = Dense::update_all(work.collect(), rule)?;
        if alike {
            parts.truncate(1);
        }
        let parts = parts.into_iter().map(Gram::numbers);
        if !alike {
            let factors: Vec<_> =
                self.team.members().iter_mut().map(|m| m.backend.op().factor(mode)).collect();
            self.group.gather(&factors, &owned, rank * size_of::<T>())?;
        }
        Ok(Gram::of_numbers(sum(parts, rank * (rank + 1)), rank))
    }

    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>> {
        // Every device has all rows; one is enough.
        let (rows, rank) = (0..self.rows(mode), self.rank);
        let member = &mut self.team.members()[0];
        let arguments = member.backend.op().update(mode).of_rows::<T>(&rows, rank);
        let device = Arc::clone(&member.device);
        self.dense[0].extended_gram(&device, T::PRECISION, arguments)
    }
}
