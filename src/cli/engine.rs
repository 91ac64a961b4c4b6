//! Options shared by the programs that stream a store: where to compute, memory, precision.

use super::progress::Bar;
use super::{Common, machine, one_of, size, thread_count};
use crate::backend::device::{DeviceOrder, MttkrpVariant, TtvVariant};
use crate::backend::devices::Divide;
use crate::dense::Precision;
use crate::engine::{self, Device, DeviceSet, Engine, EngineBuilder, Options};
use crate::error::{Error, Result};
use crate::sys::Sys;
use clap::Args;
use std::str::FromStr;
use std::time::Duration;

/// The options of programs that stream a store.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where and how to compute")]
pub struct EngineArgs {
    /// Compute on the CPU or on an NVIDIA GPU. With auto, on a GPU if one is present and large enough
    #[arg(long, default_value = "auto", value_parser = one_of([("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda", Device::Cuda)]))]
    pub backend: Device,
    /// Number of the GPU, from 0 [default: 0]
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Compute MTTKRP or a decomposition on several GPUs together: all, or a list such as 0,1,3
    #[arg(long, value_name = "LIST", conflicts_with = "device", group = "several", value_parser = devices)]
    devices: Option<DeviceSet>,
    /// How several GPUs divide the work. chunks: each has some of them, and sums are added up after each pass. rows: each has all chunks and
    /// computes a range of each mode's rows. auto: the one expected to be fastest; with --deterministic, rows
    #[arg(long, default_value = "auto", requires = "several", value_parser = one_of(DIVISIONS))]
    divide: Divide,
    /// End with an error if a GPU does not answer for this many seconds [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    device_timeout: Option<u32>,
    /// Use at most this much GPU memory [default: all that is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    device_memory: Option<u64>,
    /// Number of lanes: copies to the GPU in flight [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: Option<u16>,
    /// Precision of factors, products and results
    #[arg(long, default_value = "f64", value_parser = one_of([Precision::F64, Precision::F32].map(|p| (p.name(), p))))]
    pub precision: Precision,
    /// Reading threads [default: one per compute thread, 2 to 12, or to 4 if files are read past the page cache]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// Use at most this much memory [default: the available memory, half of it for data kept between passes]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Order of nonzeros. store: the store's; on a CPU, sums then grow along the trees of `csf` and its kin, with other last bits.
    /// target: if there are several passes, a copy sorted by row for each target mode, in GPU or host memory. host: the same, with
    /// a GPU's copies in host memory. fibers: the same as target, and a GPU computes the sums of fibers along one mode once for all other
    /// modes. auto: what is expected to be fastest
    #[arg(long, default_value = "auto", value_parser = one_of(ORDERS))]
    device_order: DeviceOrder,
    /// Give the same bits in every run on a GPU. For this, mode-sorted copies of all nonzeros must fit into GPU memory. On the CPU,
    /// results always have the same bits; with this option, those of one process also if MPI starts several
    #[arg(long)]
    deterministic: bool,
    /// GPU kernels: compiled by NVRTC for this order and rank, then cached; or embedded in the program. auto compiles if NVRTC is
    /// installed
    #[arg(long, default_value = "auto", value_parser = one_of([("auto", None), ("compiled", Some(true)), ("embedded", Some(false))]))]
    kernels: Compiled,
    /// GPU kernel, for measurements. MTTKRP and SpTTMc: tiles, lanes, columns and batch, as in t4l16c2b4, or t4l16c1b4s for split columns;
    /// trees take fewer tiles where shared memory holds no more. TTV: balanced or two-level
    #[arg(long, value_name = "VARIANT")]
    kernel: Option<KernelVariant>,
    /// Read the store without the page cache [default: if the cache cannot hold it]
    #[arg(long)]
    direct: bool,
}

/// What `--divide` takes.
const DIVISIONS: [(&str, Divide); 3] =
    [("auto", Divide::Auto), ("rows", Divide::Rows), ("chunks", Divide::Chunks)];

/// What `--device-order` takes.
const ORDERS: [(&str, DeviceOrder); 5] = [
    ("auto", DeviceOrder::Auto),
    ("store", DeviceOrder::Store),
    ("target", DeviceOrder::Target),
    ("host", DeviceOrder::Host),
    ("fibers", DeviceOrder::Fibers),
];

/// Parses the value of `--devices`.
fn devices(text: &str) -> std::result::Result<DeviceSet, String> {
    if text == "all" {
        return Ok(DeviceSet::All);
    }
    let numbers: std::result::Result<Vec<usize>, _> = text.split(',').map(|n| n.trim().parse()).collect();
    numbers.map(DeviceSet::Only).map_err(|_| "give all, or numbers from 0 such as 0,1,3".into())
}

/// A kernel's variant by name.
#[derive(Clone, Copy, Debug)]
enum KernelVariant {
    Mttkrp(MttkrpVariant),
    Ttv(TtvVariant),
}

impl FromStr for KernelVariant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        text.parse().map(Self::Ttv).or_else(|_| text.parse().map(Self::Mttkrp))
    }
}

/// Whether kernels are compiled; `None` if the engine decides.
type Compiled = Option<bool>;

impl EngineArgs {
    /// Makes the engine of these options, with a progress bar. Options for a GPU are an error with `--backend cpu`.
    pub fn engine(&self, sys: &Sys, common: Common, progress: &Bar) -> Result<Engine> {
        let of_gpu = [
            (self.device.is_some(), "--device"),
            (self.devices.is_some(), "--devices"),
            (self.divide != Divide::Auto, "--divide"),
            (self.device_timeout.is_some(), "--device-timeout"),
            (self.device_memory.is_some(), "--device-memory"),
            (self.streams.is_some(), "--streams"),
            (self.device_order == DeviceOrder::Host, "--device-order host"),
            (self.device_order == DeviceOrder::Fibers, "--device-order fibers"),
            (self.kernels.is_some(), "--kernels"),
        ];
        if let (Device::Cpu, Some((_, option))) = (self.backend, of_gpu.iter().find(|(given, _)| *given)) {
            return Err(not_on_cpu(option));
        }
        let (mttkrp_kernel, ttv_kernel) = match self.kernel {
            Some(KernelVariant::Mttkrp(variant)) => (Some(variant), None),
            Some(KernelVariant::Ttv(variant)) => (None, Some(variant)),
            None => (None, None),
        };
        let options = Options {
            device: self.backend,
            device_number: self.device.unwrap_or(0),
            devices: self.devices.clone(),
            divide: self.divide,
            device_timeout: self.device_timeout.map(|seconds| Duration::from_secs(seconds.into())),
            device_memory: self.device_memory,
            lanes: self.streams.map(usize::from),
            device_order: self.device_order,
            deterministic: self.deterministic,
            compile_kernels: self.kernels,
            kernel_cache: None,
            mttkrp_kernel,
            ttv_kernel,
            threads: thread_count(common.threads),
            pin_threads: common.pin_threads,
            workers: self.workers.map(usize::from),
            memory: self.memory,
            packing_memory_min: None,
            direct_reads: self.direct,
            temp_dir: None,
            vectors: machine::vectors()?,
        };
        build(sys, options, progress)
    }

    /// Fails if --kernel names a kernel of another operation, or if this runs on the CPU.
    pub fn check_kernel(&self, operation: &str, on_gpu: bool) -> Result<()> {
        let named = match self.kernel {
            None => return Ok(()),
            Some(KernelVariant::Mttkrp(_)) => &["MTTKRP", "SpTTMc"][..],
            Some(KernelVariant::Ttv(_)) => &["TTV"],
        };
        match named.contains(&operation) {
            false => Err(Error::request(format!("--kernel names a kernel of {}", named.join(" or ")))),
            true if !on_gpu => Err(not_on_cpu("--kernel")),
            true => Ok(()),
        }
    }
}

fn not_on_cpu(option: &str) -> Error {
    Error::request(format!("{option} is for a GPU, and this runs on the CPU"))
}

fn build(sys: &Sys, options: Options, progress: &Bar) -> Result<Engine> {
    let bar = progress.clone();
    let show = move |at: engine::Progress| bar.show(at.what, at.done, at.total);
    let builder = Engine::builder().sys(sys).options(options).progress(show);
    super::processes::links().into_iter().fold(builder, EngineBuilder::links).build()
}

/// An engine on the CPU, for programs that read nonzeros and compute little.
pub fn host_engine(sys: &Sys, common: Common, memory: Option<u64>, progress: &Bar) -> Result<Engine> {
    let options = Options {
        device: Device::Cpu,
        threads: thread_count(common.threads),
        pin_threads: common.pin_threads,
        memory,
        packing_memory_min: machine::memory_min(),
        ..Options::default()
    };
    // Packing takes half of what is available by default.
    super::memory::make_arenas_whole(
        memory.unwrap_or_else(|| machine::available_memory() / 2),
        options.threads,
    );
    build(sys, options, progress)
}
