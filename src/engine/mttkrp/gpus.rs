//! MTTKRP's passes on several GPUs.
//!
//! A mode is divided by chunks or by rows ([`Divide`](crate::backend::devices::Divide)). Sums of the first kind are added up on the owners of
//! their rows, equal numbers each; of the second kind, every GPU has all of some rows' sums.

use super::{Passes, Results};
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::devices::{Group, Partial, Team, TeamMember};
use crate::backend::cuda::driver::{Memory, Staging};
use crate::backend::device::KernelReport;
use crate::backend::devices::{DevicesPass, DevicesPlan, owned};
use crate::dense::{FactorView, Matrix, Real};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::op::mttkrp::ModeMatrix;
use crate::op::mttkrp::cuda::DeviceMttkrp;
use crate::store::Store;
use crate::stream::{PassReport, Span};
use rayon::prelude::*;
use std::ops::Range;
use std::time::Instant;

/// Passes on several GPUs.
#[derive(Debug)]
pub struct OnGpus<T: Real> {
    team: Team<DeviceMttkrp<T>>,
    group: Group,
    store: Store,
    modes: Vec<usize>,
    rank: usize,
    planned: DevicesPlan,
    last: DevicesPass,
}

impl<T: Real> OnGpus<T> {
    pub fn new(
        engine: &Engine,
        store: &Store,
        (modes, rank): (&[usize], usize),
        plan: &DevicesPlan,
    ) -> Result<Self> {
        let numbers: Vec<usize> = plan.parts.iter().map(|part| part.device.device.number).collect();
        let gpus = engine.gpus(&numbers)?;
        let team = Team::new(&gpus, store, plan, |gpu, part, plan| {
            let op = DeviceMttkrp::prepare(gpu, part, rank, modes, &engine.kernels(plan))?.of_several();
            CudaBackend::new(gpu, part, plan, op)
        })?;
        let group = Group::new(&gpus, &plan.exchange)?;
        let (store, planned) = (store.clone(), plan.clone());
        Ok(Self { team, group, store, modes: modes.to_vec(), rank, planned, last: DevicesPass::default() })
    }

    /// A pass on each device, and their sums to the owners of their rows.
    fn pass(&mut self, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport> {
        let begun = Instant::now();
        let parts = self.team.pass(progress)?;
        let passed = Instant::now();
        let dims = self.store.manifest().shape.dims();
        let ops: Vec<&DeviceMttkrp<T>> =
            self.team.members().iter_mut().map(|member| &*member.backend.op()).collect();
        let partials = |part: usize| ops.iter().map(|op| op.partial(part)).collect::<Vec<Partial<'_>>>();
        let adds = |part: usize| ops.iter().any(|op| op.own_rows(part).is_none());
        let modes: Vec<_> = self
            .modes
            .iter()
            .enumerate()
            .filter(|(part, _)| adds(*part))
            .map(|(part, &mode)| (partials(part), dims[mode] as usize))
            .collect();
        self.group.reduce_scatter(&modes, self.rank)?;
        self.last = DevicesPass { parts, exchange_seconds: passed.elapsed().as_secs_f64() };
        Ok(self.last.as_one(self.store.manifest().nnz, begun.elapsed().as_secs_f64()))
    }

    /// Has each owner bring its rows to `results`, one matrix for each mode; all links move at once.
    fn read(&mut self, results: &mut [&mut [T]]) -> Result<()> {
        let rank = self.rank;
        let members = self.team.members();
        let count = members.len();
        let mut pieces: Vec<Vec<(Range<usize>, &mut [T])>> = Vec::new();
        pieces.resize_with(count, Vec::new);
        for (part, result) in results.iter_mut().enumerate() {
            let mut rest = &mut **result;
            for (own, pieces) in rows_of(members, part, rest.len() / rank).into_iter().zip(&mut pieces) {
                let (piece, behind) = rest.split_at_mut(own.len() * rank);
                rest = behind;
                pieces.push((own, piece));
            }
        }
        let sys = self.store.sys();
        members.par_iter_mut().zip(pieces).with_max_len(1).try_for_each(|(member, pieces)| {
            let TeamMember { backend, device, .. } = member;
            let op: &DeviceMttkrp<T> = backend.op();
            let bytes = pieces.iter().map(|(_, piece)| size_of_val(&**piece) as u64).sum();
            let mut staging = Staging::worth(device, sys, bytes);
            pieces.into_iter().enumerate().try_for_each(|(part, (own, piece))| {
                let (memory, ..) = op.result_of(part);
                read_rows(&mut staging, memory, own.start * rank, piece)
            })
        })
    }
}

/// The rows of part `part`, of `rows`, whose results each of `members` has.
fn rows_of<T: Real>(
    members: &mut [TeamMember<DeviceMttkrp<T>>],
    part: usize,
    rows: usize,
) -> Vec<Range<usize>> {
    let own: Option<Vec<_>> = members.iter_mut().map(|member| member.backend.op().own_rows(part)).collect();
    own.unwrap_or_else(|| owned(rows, members.len()))
}

/// Reads numbers of `memory` from number `from` on.
fn read_rows<T: Real>(
    staging: &mut Option<Staging>,
    memory: &Memory,
    from: usize,
    piece: &mut [T],
) -> Result<()> {
    let at = from * size_of::<T>();
    match staging {
        Some(staging) => staging.read_at(memory, at, piece),
        None => memory.read_at(at, piece),
    }
}

impl<T: Real> Passes<T> for OnGpus<T> {
    fn compute(
        &mut self,
        factors: &[FactorView<'_, T>],
        times: u32,
        results: Results<'_, '_, T>,
        passes: &mut Vec<PassReport>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<ModeMatrix<T>>> {
        let in_device_memory = matches!(results, Results::OnDevice(_))
            || factors.iter().any(|factor| matches!(factor, FactorView::Device(_)));
        if in_device_memory {
            let what = "matrices in a GPU's memory are for one GPU that computes";
            return Err(Error::request(format!(
                "{what}; name it with `device`, or give matrices of the host"
            )));
        }
        let members = self.team.members().par_iter_mut().with_max_len(1);
        members.try_for_each(|member| member.backend.op().put(factors.iter().copied()))?;
        for _ in 0..times {
            passes.push(self.pass(progress)?);
        }
        match results {
            Results::OnHost(results) => self.read(results).map(|()| Vec::new()),
            Results::Owned | Results::OnDevice(_) => {
                let (rank, dims) = (self.rank, self.store.manifest().shape.dims().to_vec());
                let (sys, modes) = (self.store.sys().clone(), self.modes.clone());
                let zeros = |&mode: &usize| sys.par_vec(dims[mode] as usize * rank, |_| T::zeroed());
                let mut data = modes.iter().map(zeros).collect::<Result<Vec<Vec<T>>>>()?;
                self.read(&mut data.iter_mut().map(|data| &mut data[..]).collect::<Vec<_>>())?;
                let matrix = |(mode, data): (usize, Vec<T>)| {
                    (mode, Matrix::from_rows(dims[mode] as usize, rank, data))
                };
                Ok(modes.into_iter().zip(data).map(matrix).collect())
            }
        }
    }

    fn spans(&self) -> &[Span] {
        self.team.spans(0)
    }

    fn used_devices(&self) -> Option<(DevicesPlan, Vec<String>)> {
        let (mut plan, mut notes) = self.team.used(&self.planned);
        plan.exchange = self.group.plan().clone();
        notes.extend(self.group.notes().iter().cloned());
        Some((plan, notes))
    }

    fn devices_pass(&self) -> Option<&DevicesPass> {
        Some(&self.last)
    }

    fn kernels(&mut self) -> Option<KernelReport> {
        self.team.members().first_mut().map(|member| member.backend.op().kernels().clone())
    }
}
