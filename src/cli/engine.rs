//! What the programs that stream a store share: where to compute, with how much memory and which precision.

use super::progress::Bar;
use super::{Common, counted, machine, size, thread_count};
use crate::backend::device::{DeviceOrder, MttkrpVariant, TtvVariant};
use crate::engine::{self, Device, Engine, Options};
use crate::error::{Error, Result};
use crate::stream::Plan;
use crate::sys::Sys;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use std::str::FromStr;

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

/// A kernel's variant by name.
#[derive(Clone, Copy, Debug)]
pub enum KernelVariant {
    Mttkrp(MttkrpVariant),
    Ttv(TtvVariant),
}

impl FromStr for KernelVariant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        text.parse().map(Self::Ttv).or_else(|_| text.parse().map(Self::Mttkrp))
    }
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

impl EngineArgs {
    /// The engine that is asked for, with this many threads and a bar.
    pub fn engine(&self, sys: &Sys, common: Common, progress: &Bar) -> Result<Engine> {
        let (mttkrp_kernel, ttv_kernel) = match self.kernel {
            Some(KernelVariant::Mttkrp(variant)) => (Some(variant), None),
            Some(KernelVariant::Ttv(variant)) => (None, Some(variant)),
            None => (None, None),
        };
        let options = Options {
            device: match self.backend {
                BackendArg::Auto => Device::Auto,
                BackendArg::Cpu => Device::Cpu,
                BackendArg::Cuda => Device::Cuda,
            },
            device_number: self.device.unwrap_or(0),
            device_memory: self.device_memory,
            lanes: self.streams.map(usize::from),
            device_order: match self.device_order {
                OrderArg::Auto => DeviceOrder::Auto,
                OrderArg::Store => DeviceOrder::Store,
                OrderArg::Target => DeviceOrder::Target,
                OrderArg::Host => DeviceOrder::Host,
            },
            deterministic: self.deterministic,
            compile_kernels: match self.kernels {
                KernelsArg::Auto => None,
                KernelsArg::Compiled => Some(true),
                KernelsArg::Embedded => Some(false),
            },
            kernel_cache: None,
            mttkrp_kernel,
            ttv_kernel,
            threads: thread_count(common.threads),
            workers: self.workers.map(usize::from),
            memory: self.memory,
            direct_reads: self.direct,
            temp_dir: None,
            vectors: machine::vectors()?,
        };
        let bar = progress.clone();
        let show = move |at: engine::Progress| bar.show(at.what, at.done, at.total);
        Engine::builder().sys(sys).options(options).progress(show).build()
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

    /// An error where --kernel names a kernel of TTV.
    pub fn refuse_ttv_kernel(&self) -> Result<()> {
        let of_ttv = matches!(self.kernel, Some(KernelVariant::Ttv(_)));
        if of_ttv { Err(Error::request("--kernel names a kernel of TTV")) } else { Ok(()) }
    }

    /// An error where it names one of MTTKRP.
    pub fn refuse_mttkrp_kernel(&self) -> Result<()> {
        let of_mttkrp = matches!(self.kernel, Some(KernelVariant::Mttkrp(_)));
        if of_mttkrp { Err(Error::request("--kernel names a kernel of MTTKRP")) } else { Ok(()) }
    }
}

/// An engine on the CPU, for programs that only look at nonzeros.
pub fn host_engine(sys: &Sys, common: Common, memory: Option<u64>, progress: &Bar) -> Result<Engine> {
    let threads = thread_count(common.threads);
    let options = Options { device: Device::Cpu, threads, memory, ..Options::default() };
    let bar = progress.clone();
    let show = move |at: engine::Progress| bar.show(at.what, at.done, at.total);
    Engine::builder().sys(sys).options(options).progress(show).build()
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
