//! Several processes: the share of a store that each gets, and what all but process 0 do.
//!
//! **To the bit.** With `deterministic`, every process has all chunks and adds up its own rows of each mode, in the order of one process;
//! the others' sums are zero ([`Mttkrp::with_own_rows`]). Reducing the sums adds zeros, which changes nothing, since a sum that begins at
//! zero never is the negative zero. The rest is the same for any number of processes ([`crate::decomp::collective`]).

use super::parts::unite;
use super::{Demand, Device, Engine, ExecutionPlan, gpu};
use crate::backend::device::DeviceLimits;
use crate::backend::devices::cut;
use crate::backend::plan::DevicePlan;
use crate::decomp::host::HostAls;
#[cfg(feature = "cuda")]
use crate::decomp::hybrid::HybridAls;
#[cfg(feature = "cuda")]
use crate::decomp::linked::{self, LinkedAls};
use crate::decomp::members::{MembersAls, Order, tell};
use crate::dense::{Precision, Real};
use crate::error::{Error, Result};
use crate::members::{Group, SCRATCH_BYTES};
use crate::op::mttkrp::Mttkrp;
#[cfg(feature = "cuda")]
use crate::op::mttkrp::cuda::DeviceMttkrp;
use crate::store::Store;
use crate::stream::Limits;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What process 0 tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// Hold the parts of a tensor together.
    Unite,
    /// Prepare an operation on factors in f32 or f64, in place of an earlier one.
    Prepare { rank: usize, single: bool, on_gpu: bool, cp: Option<CpPasses> },
    /// A step of the prepared operation.
    #[serde(untagged)]
    Step(Order),
}

/// What a decomposition asks of passes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct CpPasses {
    pub starts: u32,
    pub max_iters: u32,
    pub nonneg: bool,
}

/// The last message.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct End(bool);

/// The prepared operation, in either precision.
enum Prepared {
    F64(Box<MembersAls<f64>>),
    F32(Box<MembersAls<f32>>),
}

impl Engine {
    pub(super) fn members(&self) -> Option<&Group> {
        self.inner.members.as_ref()
    }

    /// Opens the store of a computation, in process 0. See [`Engine::unite`].
    pub(crate) fn open_together(&self, path: &Path) -> Result<Store> {
        let store = self.open(path)?;
        Ok(self.unite(&store)?.unwrap_or(store))
    }

    /// In process 0: if `store` is a part, and not united yet, has all processes hold theirs together. The store that is returned says of the
    /// whole what [`Store::within`] does.
    #[doc(hidden)]
    pub fn unite(&self, store: &Store) -> Result<Option<Store>> {
        let is_apart = store.whole().part.as_ref().is_some_and(|part| store.manifest().nnz != part.nnz);
        let Some(group) = self.members().filter(|_| is_apart) else { return Ok(None) };
        tell(group, &Message::Unite)?;
        unite(group, store.clone()).map(Some)
    }

    /// This process's share of `store`, if there are several: consecutive chunks. All shares have about the same number of nonzeros. To
    /// the bit, it is all chunks; of a divided tensor, a part.
    pub(super) fn share(&self, store: &Store) -> Result<Option<Store>> {
        let Some(group) = self.members() else { return Ok(None) };
        let options = self.options();
        if options.devices.is_some() {
            return Err(Error::request("each of several processes has one GPU; leave out `devices`"));
        }
        let store = &options.on_cpu(store);
        if let Some(part) = &store.whole().part {
            return self.share_of_part(store, part).map(Some);
        }
        if options.deterministic {
            return Ok(Some(store.clone()));
        }
        let nnz: Vec<u64> = store.manifest().chunks.iter().map(|chunk| chunk.nnz).collect();
        if nnz.len() < group.count() {
            let what = format!("the store has {} chunks for {} processes", nnz.len(), group.count());
            return Err(Error::request(format!("{what}; take fewer, or pack it with smaller `chunk_bytes`")));
        }
        let shares = vec![1.0 / group.count() as f64; group.count()];
        Ok(Some(store.of_chunks(cut(&nnz, &shares)[group.number()].clone())))
    }

    /// Plans passes over this process's share, on a device.
    pub(super) fn plan_share<T: Real>(
        &self,
        share: &Store,
        demand: &Demand<'_>,
        device: Device,
    ) -> Result<ExecutionPlan> {
        let manifest = share.whole();
        if self.options().deterministic
            && demand.starts.is_none()
            && demand.modes.iter().any(|&mode| manifest.cover_for(mode) > 0)
        {
            let what = "the store has several orders of its nonzeros for MTTKRP of different modes";
            return Err(Error::request(format!(
                "{what}, of which several processes use the first; run one process for `deterministic` results"
            )));
        }
        // MTTKRP copies the caller's factors, and collects sums of all processes.
        let copies = if demand.starts.is_none() { 2 } else { 1 };
        let of_gpu = demand.beside_gpu.saturating_add(gpu::share_bytes(&manifest.shape, demand.rank));
        let of_gpu = of_gpu.saturating_mul(copies);
        let (device, mut notes) = self.choose_by(device, demand.passes, |limits| {
            self.check_own_gpu()?;
            let host_memory = limits.host_memory.saturating_sub(of_gpu);
            let limits = DeviceLimits { host_memory, ..*limits };
            gpu::plan_share::<T>(&self.gpu()?, share, demand, &limits)
        })?;
        let held = device.as_ref().map_or(0, DevicePlan::held_chunks);
        let limits = Limits { held, ..self.limits(demand.passes) };
        let bytes = match &device {
            Some(plan) => of_gpu.saturating_add(plan.host_bytes),
            None => demand.on_cpu.saturating_add(demand.beside_gpu),
        };
        let bytes = bytes.saturating_add(SCRATCH_BYTES as u64);
        let (host, mode_sorted) = match demand.starts {
            Some(_) if device.is_none() => {
                let (host, copies) = self.plan_mode_sorted(share, demand, bytes, &limits)?;
                (host, Some(copies))
            }
            _ => (self.plan_host(share, bytes, &limits)?, None),
        };
        let processes = self.members().map_or(1, Group::count);
        let (chunks, nnz) = (share.manifest().chunks.len(), share.manifest().nnz);
        let of_rows =
            if self.options().deterministic { ", and of every mode a part of the rows" } else { "" };
        let on = match &device {
            Some(_) => format!(", each on a GPU of its own; {}", gpu::exchange_of_processes()),
            None => String::new(),
        };
        notes.push(format!(
            "{processes} processes compute{on}; this is the plan of process 0: {chunks} chunks, {nnz} nonzeros{of_rows}"
        ));
        let made_for = Some(demand.subject::<T>(share));
        Ok(ExecutionPlan { host, device, devices: None, notes, mode_sorted, made_for })
    }

    /// An error unless there is a GPU for each process of this machine, and processes may use them.
    fn check_own_gpu(&self) -> Result<()> {
        if self.options().deterministic {
            let what = "several processes with GPUs have no `deterministic` results; take `Device::Cpu`";
            return Err(Error::request(what));
        }
        let (_, processes) = self.members().map_or((0, 1), Group::on_machine);
        let gpus = gpu::count()?.saturating_sub(self.options().device_number);
        if processes > gpus {
            let what = format!("this machine has {gpus} GPUs for {processes} processes");
            return Err(Error::request(format!("{what}; start fewer here, or take `Device::Cpu`")));
        }
        Ok(())
    }

    /// In process 0: prepares passes of all processes, of MTTKRP without `cp`.
    pub(super) fn conduct<T: Real>(
        &self,
        store: &Store,
        rank: usize,
        cp: Option<CpPasses>,
        plan: &ExecutionPlan,
    ) -> Result<Option<MembersAls<T>>> {
        let (Some(group), Some(share)) = (self.members(), self.share(store)?) else { return Ok(None) };
        let (single, on_gpu) = (T::PRECISION == Precision::F32, plan.device.is_some());
        tell(group, &Message::Prepare { rank, single, on_gpu, cp })?;
        self.take_share((store, &share), rank, cp, plan).map(Some)
    }

    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "GPUs prepare for `cp`"))]
    fn take_share<T: Real>(
        &self,
        (store, share): (&Store, &Store),
        rank: usize,
        cp: Option<CpPasses>,
        plan: &ExecutionPlan,
    ) -> Result<MembersAls<T>> {
        let Some(group) = self.members() else { return Err(Error::request("one process has no share")) };
        group.agree("store", store.id())?;
        let deterministic = self.options().deterministic;
        group.agree("setting of `deterministic`", u64::from(deterministic))?;
        MembersAls::new((store, share), rank, group, |squares, members| {
            #[cfg(feature = "cuda")]
            if let Some(device_plan) = &plan.device {
                let gpu = &self.gpu()?;
                let kernels = self.kernels(device_plan);
                let op = DeviceMttkrp::alternating(gpu, share, rank, &kernels)?.of_several();
                let plans = (&plan.host, device_plan);
                return match linked::connect(gpu, group)? {
                    (Some(linked), _) => {
                        let op = (op, rank, cp.map(|cp| cp.nonneg));
                        let als = LinkedAls::new((gpu, linked), share, plans, op, squares, group.clone())?;
                        Ok(Box::new(als))
                    }
                    (None, notes) => {
                        let als = HybridAls::new(gpu, share, plans, (op, rank), squares, members, notes)?;
                        Ok(Box::new(als))
                    }
                };
            }
            let mut op = Mttkrp::alternating(share, rank, plan.host.threads)?;
            if deterministic {
                op = op.with_own_rows(group.number(), group.count());
            }
            if plan.has_mode_sorted() {
                op = op.keep_mode_sorted(share)?;
            }
            Ok(Box::new(HostAls::among(share, &plan.host, op, squares, members)?))
        })
    }

    /// In other processes: follows process 0's orders, with this process's copy of the store, until process 0 ends.
    #[doc(hidden)]
    pub fn serve(&self, store: &Path) -> Result<()> {
        let Some(group) = self.members() else { return Ok(()) };
        let mut store = self.open(store)?;
        let (mut prepared, mut bytes): (Option<Prepared>, _) = (None, Vec::new());
        loop {
            group.broadcast_vec(&mut bytes)?;
            if serde_json::from_slice::<End>(&bytes).is_ok() {
                return Ok(());
            }
            let message: Message = serde_json::from_slice(&bytes)
                .map_err(|_| Error::request("processes run different versions of this program"))?;
            self.install(|| match (message, &mut prepared) {
                (Message::Unite, _) => {
                    store = unite(group, store.clone())?;
                    Ok(())
                }
                (Message::Prepare { rank, single, on_gpu, cp }, prepared) => {
                    *prepared = None;
                    let device = if on_gpu { Device::Cuda } else { Device::Cpu };
                    *prepared = Some(if single {
                        Prepared::F32(Box::new(self.serving(&store, rank, cp, device)?))
                    } else {
                        Prepared::F64(Box::new(self.serving(&store, rank, cp, device)?))
                    });
                    Ok(())
                }
                (Message::Step(order), Some(Prepared::F64(als))) => als.obey(order),
                (Message::Step(order), Some(Prepared::F32(als))) => als.obey(order),
                (Message::Step(_), None) => Err(Error::request("process 0 has prepared nothing")),
            })?;
        }
    }

    /// On rank 0: the others return from [`Engine::serve`].
    #[doc(hidden)]
    pub fn end_serving(&self) -> Result<()> {
        self.members().map_or(Ok(()), end_serving)
    }

    fn serving<T: Real>(
        &self,
        store: &Store,
        rank: usize,
        cp: Option<CpPasses>,
        device: Device,
    ) -> Result<MembersAls<T>> {
        let cover = &self.options().on_cpu(store);
        let (manifest, threads) = (cover.manifest(), self.threads());
        let modes: Vec<usize> = (0..manifest.shape.order()).collect();
        let demand = match cp {
            Some(CpPasses { starts, max_iters, .. }) => {
                Demand::cp_als::<T>(manifest, &modes, rank, threads, (starts, max_iters))
            }
            None => Demand::mttkrp::<T>(cover, &modes, rank, threads, 2),
        };
        let Some(share) = self.share(store)? else { return Err(Error::request("one process has no share")) };
        let plan = self.plan_share::<T>(&share, &demand, device)?;
        self.take_share((store, &share), rank, cp, &plan)
    }
}

/// In process 0: ends the others.
pub(crate) fn end_serving(group: &Group) -> Result<()> {
    tell(group, &End(true))
}
