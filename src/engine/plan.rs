//! The resources of an operation, decided before it allocates anything.

use super::demand::Demand;
use super::gpu::{self, Gpu};
use super::{Device, Engine, devices, machine};
#[cfg(feature = "cuda")]
use crate::backend::device::KernelSource;
use crate::backend::device::{DeviceLimits, DeviceOrder};
use crate::backend::devices::DevicesPlan;
use crate::backend::plan::DevicePlan;
use crate::dense::{Precision, Real};
use crate::error::{Error, Result};
use crate::op::mttkrp::{ModeSortedDemand, serving_view};
use crate::store::Store;
use crate::stream::{Limits, Plan, buffers_bytes, plan};
use serde::Serialize;

/// What an operation will use of the host and the GPU, and why.
#[derive(Clone, Debug, Serialize)]
pub struct ExecutionPlan {
    pub(crate) host: Plan,
    pub(crate) device: Option<DevicePlan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<DevicesPlan>,
    pub(crate) notes: Vec<String>,
    pub(crate) mode_sorted: Option<ModeSortedPlan>,
    /// The operation that it was made for; it serves no other.
    #[serde(skip)]
    pub(crate) made_for: Option<Subject>,
}

/// Whether MTTKRP on the CPU uses mode-sorted copies in memory. The first pass builds them; later passes use them.
#[derive(Clone, Debug, Serialize)]
pub struct ModeSortedPlan {
    /// Whether they are used.
    pub built: bool,
    /// Bytes that they take or would take, with what they are built from; 0 if there can be none.
    pub bytes: u64,
    /// The fewest passes that do not take more time with them, the first included, by the estimates of `op::mttkrp::Costs`; `None` if no number does.
    pub pays_from: Option<u32>,
    /// The estimated time of a later pass from them, in passes without them; `None` if there can be none.
    pub pass: Option<f64>,
    /// The same of building them.
    pub building: Option<f64>,
    /// The reason.
    pub why: String,
}

/// The subject of an operation on factors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub store: u64,
    pub modes: Vec<usize>,
    pub rank: usize,
    pub precision: Precision,
    /// The starts of a decomposition.
    pub starts: Option<u32>,
}

impl ExecutionPlan {
    /// An error unless it was made for this.
    pub(crate) fn check_made_for(&self, subject: &Subject) -> Result<()> {
        if self.made_for.as_ref() == Some(subject) {
            return Ok(());
        }
        Err(Error::request(
            "the plan is of another operation, store, rank, precision, number of starts, or other modes",
        ))
    }

    /// The same, with the use of a GPU now, and what is smaller than planned.
    pub(crate) fn with_used(&self, (device, notes): (&DevicePlan, &[String])) -> Self {
        let notes = self.notes.iter().chain(notes).cloned().collect();
        Self { device: Some(device.clone()), notes, ..self.clone() }
    }

    /// The same for several GPUs.
    pub(crate) fn with_devices(&self, (devices, notes): (DevicesPlan, Vec<String>)) -> Self {
        let notes = self.notes.iter().cloned().chain(notes).collect();
        Self { devices: Some(devices), notes, ..self.clone() }
    }

    /// Whether one GPU or several compute.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.device.is_some() || self.devices.is_some()
    }

    /// Workers, buffers, and chunks kept in host memory.
    #[must_use]
    pub fn host(&self) -> &Plan {
        &self.host
    }

    /// The use of several GPUs; `None` if one or none computes.
    #[must_use]
    pub fn devices(&self) -> Option<&DevicesPlan> {
        self.devices.as_ref()
    }

    /// The plan of the GPU; `None` on the CPU, and on several GPUs.
    #[must_use]
    pub fn device(&self) -> Option<&DevicePlan> {
        self.device.as_ref()
    }

    /// Mode-sorted copies in host memory, if several passes run on the CPU.
    #[must_use]
    pub fn mode_sorted(&self) -> Option<&ModeSortedPlan> {
        self.mode_sorted.as_ref()
    }

    /// Whether mode-sorted copies are built.
    pub(crate) fn has_mode_sorted(&self) -> bool {
        self.mode_sorted.as_ref().is_some_and(|copies| copies.built)
    }

    /// Why the GPU is not used although it could be, and what was smaller than planned.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The plan of one GPU or of several, with notes.
enum Found {
    One(Box<DevicePlan>),
    Several(Box<(DevicesPlan, Vec<String>)>),
}

impl Demand<'_> {
    pub(super) fn subject<T: Real>(&self, store: &Store) -> Subject {
        let (modes, rank, precision) = (self.modes.to_vec(), self.rank, T::PRECISION);
        Subject { store: store.id(), modes, rank, precision, starts: self.starts }
    }
}

/// The device of an operation.
pub(crate) type Chosen = (Option<DevicePlan>, Vec<String>);

impl Engine {
    /// The GPU, with the plan of `find`, if it is requested; with `auto`, if one is present and large enough.
    pub(crate) fn choose(
        &self,
        passes: u32,
        find: impl FnOnce(&Gpu, &DeviceLimits) -> Result<DevicePlan>,
    ) -> Result<Chosen> {
        self.choose_by(self.options().device, passes, |limits| {
            self.refuse_several()?;
            find(&self.gpu()?, limits)
        })
    }

    /// The plan of `find` for GPUs, by the same rule.
    pub(super) fn choose_by<P>(
        &self,
        device: Device,
        passes: u32,
        find: impl FnOnce(&DeviceLimits) -> Result<P>,
    ) -> Result<(Option<P>, Vec<String>)> {
        let options = self.options();
        let found = match device {
            Device::Cpu => return Ok((None, Vec::new())),
            // Without a GPU no note is needed, unless an option was meant for one.
            Device::Auto if !gpu::is_installed() => {
                let note = "no GPU driver is installed: `device_memory` has no effect";
                return Ok((None, options.device_memory.map(|_| note.to_owned()).into_iter().collect()));
            }
            Device::Cuda | Device::Auto => find(&DeviceLimits {
                memory: options.device_memory,
                lanes: options.lanes,
                host_memory: self.host_room(),
                passes,
                order: options.device_order,
                deterministic: options.deterministic,
            }),
        };
        match found {
            Ok(found) => Ok((Some(found), Vec::new())),
            Err(e) if device == Device::Auto => {
                self.close_gpu();
                Ok((None, vec![format!("on the CPU: {e}")]))
            }
            Err(e) if !gpu::is_installed() => {
                Err(Error::request(format!("{e}; install a driver, or take `Device::Cpu`")))
            }
            Err(e) => Err(e),
        }
    }

    /// Where a GPU's kernels come from, by `plan`.
    #[cfg(feature = "cuda")]
    pub(crate) fn kernels(&self, plan: &DevicePlan) -> KernelSource {
        let options = self.options();
        KernelSource {
            compile: options.compile_kernels,
            cache: options.kernel_cache.clone(),
            variant: options.mttkrp_kernel,
            rows_per_nonzero: plan.rows_per_nonzero,
            as_they_lie: plan.as_they_lie,
        }
    }

    /// The limits on host memory for `passes` passes.
    pub(crate) fn limits(&self, passes: u32) -> Limits {
        let options = self.options();
        Limits {
            memory: options.memory,
            threads: self.threads(),
            workers: options.workers,
            available: machine::available_memory(),
            passes,
            ..Limits::default()
        }
    }

    /// Plans passes over `store` for an operation on factors.
    pub(crate) fn plan<T: Real>(&self, store: &Store, demand: &Demand<'_>) -> Result<ExecutionPlan> {
        if let Some(share) = self.share(store)? {
            return self.plan_share::<T>(&share, demand, self.options().device);
        }
        // In a decomposition on a GPU, each mode is computed from the cover that serves it best.
        let served = match demand.starts {
            Some(_) => serving_view(store, demand.modes),
            None => self.options().on_gpu(store, demand.modes),
        };
        let find = |limits: &DeviceLimits| {
            let numbers = self.several()?;
            let devices = numbers.as_ref().map_or(1, Vec::len);
            let taken =
                devices::beside(demand, devices) + buffers_bytes(store, self.threads()) * devices as u64;
            let limits = DeviceLimits { host_memory: limits.host_memory.saturating_sub(taken), ..*limits };
            match numbers {
                None => {
                    gpu::plan::<T>(&self.gpu()?, &served, demand, &limits).map(|plan| Found::One(plan.into()))
                }
                Some(numbers) => self
                    .plan_devices::<T>(store, demand, &numbers, &limits)
                    .map(|found| Found::Several(found.into())),
            }
        };
        let (found, mut notes) = self.choose_by(self.options().device, demand.passes, find)?;
        let made_for = Some(demand.subject::<T>(store));
        let device = match found {
            None => None,
            Some(Found::One(plan)) => Some(*plan),
            Some(Found::Several(found)) => {
                let (plan, more) = *found;
                notes.extend(more);
                let host = self.host_of_all(&plan, demand)?;
                let (device, devices, mode_sorted) = (None, Some(plan), None);
                return Ok(ExecutionPlan { host, device, devices, notes, mode_sorted, made_for });
            }
        };
        let limits = Limits {
            held: device.as_ref().map_or(0, DevicePlan::held_chunks),
            afterwards: demand.afterwards,
            less: if demand.modes.len() > 1 && demand.starts.is_none() {
                "take fewer modes at a time or a smaller rank"
            } else {
                "take a smaller rank"
            },
            ..self.limits(demand.passes)
        };
        let bytes = match &device {
            Some(plan) => demand.beside_gpu.saturating_add(plan.host_bytes),
            None => demand.on_cpu,
        };
        let store = &match (&device, demand.starts) {
            (Some(_), _) => served,
            (None, Some(_)) => self.options().on_cpu(store),
            (None, None) => serving_view(&self.options().on_cpu(store), demand.modes),
        };
        if device.is_none() && demand.passes > 1 {
            let (host, mode_sorted) = self.plan_mode_sorted(store, demand, bytes, &limits)?;
            let (devices, mode_sorted) = (None, Some(mode_sorted));
            return Ok(ExecutionPlan { host, device, devices, notes, mode_sorted, made_for });
        }
        let host = self.plan_host(store, bytes, &limits)?;
        Ok(ExecutionPlan { host, device, devices: None, notes, mode_sorted: None, made_for })
    }

    /// Plans passes on the CPU, with mode-sorted copies if they pay and fit.
    pub(super) fn plan_mode_sorted(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        bytes: u64,
        limits: &Limits,
    ) -> Result<(Plan, ModeSortedPlan)> {
        let (ModeSortedDemand { bytes: taken, costs }, order) =
            (demand.mode_sorted, self.options().device_order);
        let (wanted, why) = demand.mode_sorted.wanted(demand.passes, order);
        let bound = self.memory_with_copies(limits.available);
        let built = wanted.then(|| {
            // With copies, no chunk is needed again.
            let once = Limits { passes: 1, ..*limits };
            let plan = self.plan_host(store, bytes.saturating_add(taken?), &once).ok()?;
            (plan.memory_bytes <= bound).then_some(plan)
        });
        let built = built.flatten();
        let why = if wanted && built.is_none() { "there is no room for them" } else { why };
        let copies = ModeSortedPlan {
            built: built.is_some(),
            bytes: taken.unwrap_or(0),
            pays_from: taken.and(costs.pays_from()),
            pass: taken.map(|_| costs.from_copies / costs.in_store_order),
            building: taken.map(|_| costs.building / costs.in_store_order),
            why: why.to_owned(),
        };
        Ok((built.map_or_else(|| self.plan_host(store, bytes, limits), Ok)?, copies))
    }

    /// The most memory that a plan with mode-sorted copies takes, of `available` bytes.
    pub(super) fn memory_with_copies(&self, available: u64) -> u64 {
        // Without a limit or a request from the user, half of the memory is left to other programs.
        let asked = self.options().device_order != DeviceOrder::Auto;
        self.options().memory.unwrap_or(if asked { available } else { available / 2 })
    }

    /// Bytes that an operation may take beside a pass that holds `held` bytes: of the limit, or else of half the available memory.
    pub(crate) fn room(&self, store: &Store, held: u64) -> Result<u64> {
        let memory = self.options().memory.unwrap_or_else(|| machine::available_memory() / 2);
        let limits = Limits { threads: self.threads(), ..Limits::default() };
        Ok(memory.saturating_sub(plan(store, held, &limits)?.least_bytes()))
    }

    /// Plans the host memory of passes over `store`, for an operation that holds `bytes` there.
    pub(crate) fn plan_host(&self, store: &Store, bytes: u64, limits: &Limits) -> Result<Plan> {
        let mut plan = plan(store, bytes, limits)?;
        plan.direct_reads |= self.options().direct_reads;
        Ok(plan)
    }
}
