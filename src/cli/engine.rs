//! What the programs that stream a store share: where to compute, with how much memory and which precision.

use super::device::{
    Device, DeviceOrder, DevicePlan, DeviceRequest, KernelSource, KernelVariant, Real, TtvVariant,
};
use super::{counted, device, machine, size};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::{Limits, Plan, plan, program_bytes, too_little};
use crate::sys::Sys;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use std::path::Path;

/// The options of programs that stream a store.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Where to compute: on a GPU, on the CPU, or on a GPU where there is one that has room
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub backend: BackendArg,
    /// Which GPU, from 0 [default: 0]
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Take at most this much memory of the GPU
    #[arg(long, value_name = "SIZE", value_parser = size)]
    device_memory: Option<u64>,
    /// Lanes: copies to the GPU under way at once [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: Option<u16>,
    /// Precision of factors, products and results
    #[arg(long, value_enum, default_value_t = PrecisionArg::F64)]
    pub precision: PrecisionArg,
    /// Reading threads [default: as many as compute threads, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: Option<u16>,
    /// Take at most this much memory [default: what is available, half of it for chunks that are kept between passes]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Order of the nonzeros on the GPU for several passes: the store's, or sorted by the row of each target mode, which is derived
    /// there and stays there, or in host memory (host: in any case); auto takes what is expected to take least time
    #[arg(long, value_enum, default_value_t = OrderArg::Auto)]
    device_order: OrderArg,
    /// Results with the same bits in every run, for any lanes and chunk size: on a GPU, from nonzeros sorted for each mode, all of
    /// which have to stay there; on the CPU they always are
    #[arg(long)]
    deterministic: bool,
    /// GPU kernels: compiled for this order and rank by an installed NVRTC and kept in the user's cache, or the embedded ones
    #[arg(long, value_enum, default_value_t = KernelsArg::Auto)]
    kernels: KernelsArg,
    /// GPU kernel to measure: of MTTKRP to compile, by tiles, lanes, columns and batch, such as t4l16c2b4, or t4l16c1b4s: columns split;
    /// of TTV balanced or two-level
    #[arg(long, value_name = "VARIANT")]
    pub kernel: Option<KernelVariant>,
    /// Read the store past the page cache [default: where the cache could not hold it]
    #[arg(long)]
    pub direct: bool,
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// On a GPU where there is one that has room.
    Auto,
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Cuda,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    Auto,
    Store,
    Target,
    Host,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KernelsArg {
    Auto,
    Compiled,
    Embedded,
}

/// The precision of factors.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PrecisionArg {
    /// 64-bit floats.
    F64,
    /// 32-bit floats.
    F32,
}

/// Opens a store, where `memory`, or without it what is available, holds its list of chunks: in a pass, or for a look at the list alone.
pub fn open_store(
    sys: &Sys,
    path: &Path,
    memory: Option<u64>,
    threads: usize,
    passes: bool,
) -> Result<Store> {
    /// The plan of a pass counts shorter lists.
    const LONG: u64 = 4 << 20;
    /// Room for buffers and an operation beside a long list.
    const PASS: u64 = 24 << 20;
    Store::open_if(sys, path, |bytes| {
        let bound = memory.unwrap_or_else(machine::available_memory);
        let held = if passes { Store::listed_bytes(bytes) + PASS } else { 0 };
        let least = program_bytes(threads) + Store::opening_bytes(bytes).max(held);
        let what = format!(", most of which the list of chunks of {} takes", path.display());
        let fits = bytes < LONG || least <= bound;
        if fits { Ok(()) } else { Err(too_little(least, bound, memory.is_some(), &what, "")) }
    })
}

/// What an operation asks of a machine.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of a GPU only"))]
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Its modes, from 0.
    pub modes: &'a [usize],
    /// Columns of its factors.
    pub rank: usize,
    /// How often each mode is to be computed.
    pub passes: u32,
    /// Bytes of host memory that it holds where it runs on the CPU.
    pub on_cpu: u64,
    /// The same where it runs on a GPU.
    pub beside_gpu: u64,
    /// Bytes that are held when the passes have ended, where those are more.
    pub afterwards: u64,
    /// What a GPU's memory is to hold.
    pub operation: StreamedOp,
}

/// The operations that stream a store.
#[derive(Clone, Copy, Debug)]
pub enum StreamedOp {
    /// MTTKRP of all its modes from each pass.
    Mttkrp,
    /// A CP decomposition: one mode in a pass.
    CpAls,
}

/// What an operation runs on.
pub struct ChosenBackend<P = DevicePlan> {
    /// The GPU with what is to be used of it; `None` for the CPU.
    pub device: Option<(Device, P)>,
    /// Why not on a GPU.
    pub notes: Vec<String>,
}

impl EngineArgs {
    /// The GPU where it is asked for, or where nobody asks, there is one and it has room.
    pub fn choose_backend<T: Real>(&self, store: &Store, demand: &Demand<'_>) -> Result<ChosenBackend> {
        let chosen = self.choose(demand.passes, |request| device::find::<T>(request, store, demand))?;
        self.refuse_on_cpu(chosen.device.is_none())?;
        Ok(chosen)
    }

    /// An error where options of a GPU are given for a run on the CPU: a kernel's name in any case, the others where the CPU was
    /// asked for.
    pub fn refuse_on_cpu(&self, on_cpu: bool) -> Result<()> {
        let asked = self.backend == BackendArg::Cpu;
        let options = [
            (on_cpu && self.kernel.is_some(), "--kernel"),
            (asked && self.device.is_some(), "--device"),
            (asked && self.device_memory.is_some(), "--device-memory"),
            (asked && self.streams.is_some(), "--streams"),
            (asked && !matches!(self.device_order, OrderArg::Auto), "--device-order"),
            (asked && !matches!(self.kernels, KernelsArg::Auto), "--kernels"),
        ];
        let Some((_, option)) = options.iter().find(|(refused, _)| *refused) else { return Ok(()) };
        Err(Error::request(format!("{option} is for a GPU, and this runs on the CPU")))
    }

    /// The same by what `find` plans.
    pub fn choose<P>(
        &self,
        passes: u32,
        find: impl FnOnce(&DeviceRequest) -> Result<(Device, P)>,
    ) -> Result<ChosenBackend<P>> {
        let request = DeviceRequest {
            number: self.device.unwrap_or(0),
            memory: self.device_memory,
            lanes: self.streams.map(usize::from),
            host_memory: self.memory.unwrap_or_else(|| machine::available_memory() / 2),
            passes,
            deterministic: self.deterministic,
            order: match self.device_order {
                OrderArg::Auto => DeviceOrder::Auto,
                OrderArg::Store => DeviceOrder::Store,
                OrderArg::Target => DeviceOrder::Target,
                OrderArg::Host => DeviceOrder::Host,
            },
        };
        let found = match self.backend {
            BackendArg::Cpu => return Ok(ChosenBackend { device: None, notes: Vec::new() }),
            // Nobody who has no GPU wants to read about it.
            BackendArg::Auto if !device::is_installed() => {
                return Ok(ChosenBackend { device: None, notes: Vec::new() });
            }
            BackendArg::Cuda | BackendArg::Auto => find(&request),
        };
        match found {
            Ok(device) => Ok(ChosenBackend { device: Some(device), notes: Vec::new() }),
            Err(e) if self.backend == BackendArg::Auto => {
                Ok(ChosenBackend { device: None, notes: vec![format!("on the CPU: {e}")] })
            }
            Err(e) if !device::is_installed() => {
                Err(Error::request(format!("{e}; install a driver, or take --backend cpu")))
            }
            Err(e) => Err(e),
        }
    }

    /// What `passes` passes may use of the host.
    pub fn limits(&self, threads: usize, passes: u32) -> Limits {
        let workers = self.workers.map(usize::from);
        let available = machine::available_memory();
        Limits { memory: self.memory, threads, workers, available, passes, ..Limits::default() }
    }

    /// What passes will use of the host.
    pub fn plan(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        threads: usize,
        chosen: &ChosenBackend,
    ) -> Result<Plan> {
        let limits = Limits {
            held: chosen.device.as_ref().map_or(0, |(_, plan)| device::held(store, plan)),
            afterwards: demand.afterwards,
            less: match demand.operation {
                StreamedOp::Mttkrp if demand.modes.len() > 1 => {
                    "take fewer modes at a time or a smaller rank"
                }
                StreamedOp::Mttkrp | StreamedOp::CpAls => "take a smaller rank",
            },
            ..self.limits(threads, demand.passes)
        };
        let bytes = match &chosen.device {
            Some((_, plan)) => demand.beside_gpu.saturating_add(device::host_order_bytes(plan)),
            None => demand.on_cpu,
        };
        let mut plan = plan(store, bytes, &limits)?;
        plan.direct_reads |= self.direct;
        Ok(plan)
    }

    /// Where a GPU's kernels come from.
    pub fn kernels(&self) -> Result<KernelSource> {
        let variant = match self.kernel {
            Some(KernelVariant::Ttv(_)) => return Err(Error::request("--kernel names a kernel of TTV")),
            Some(KernelVariant::Mttkrp(variant)) => Some(variant),
            None => None,
        };
        let compile = match self.kernels {
            KernelsArg::Auto => None,
            KernelsArg::Compiled => Some(true),
            KernelsArg::Embedded => Some(false),
        };
        Ok(KernelSource { compile, cache: machine::cache_directory(), variant, ..KernelSource::default() })
    }

    /// The kernel of TTV that is asked for.
    pub fn ttv_kernel(&self) -> Result<Option<TtvVariant>> {
        match self.kernel {
            Some(KernelVariant::Mttkrp(_)) => Err(Error::request("--kernel names a kernel of MTTKRP")),
            Some(KernelVariant::Ttv(variant)) => Ok(Some(variant)),
            None => Ok(None),
        }
    }
}

/// Where a run goes on: `gpu` by its name, or the CPU.
pub fn backend_text(gpu: Option<&str>, threads: usize) -> String {
    gpu.map_or_else(|| format!("the CPU with {}", counted(threads, "thread")), str::to_owned)
}

/// What `--plan` says of host memory: what is held for the operation, and the workers' `buffers`.
pub fn memory_text(plan: &Plan, held: &str, buffers: &str) -> String {
    format!(
        "{} = program {} + {held} {} + {} x {} {buffers} of {}",
        ByteSize(plan.memory_bytes),
        ByteSize(plan.program_bytes),
        ByteSize(plan.operation_bytes),
        counted(plan.workers, "worker"),
        plan.buffers_per_worker,
        ByteSize(plan.buffer_bytes as u64),
    )
}

/// What `--plan` says of chunks that stay in host memory.
pub fn kept_text(plan: &Plan) -> String {
    format!("{} kept, {}", counted(plan.kept.len(), "chunk"), ByteSize(plan.kept_bytes))
}
