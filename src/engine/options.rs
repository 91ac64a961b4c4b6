//! What whoever makes an engine chooses.

use super::devices::DeviceSet;
use crate::backend::device::{DeviceOrder, MttkrpVariant, TtvVariant};
use crate::backend::host::Vectors;
use std::path::PathBuf;

/// Where to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// On a GPU where there is one that has room, otherwise on the CPU.
    #[default]
    Auto,
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Cuda,
}

/// All of it: plain data, of which each part has a default.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where to compute.
    pub device: Device,
    /// Which GPU, from 0.
    pub device_number: usize,
    /// Which GPUs, where several are to compute; without it, that one.
    pub devices: Option<DeviceSet>,
    /// Bytes of the GPU's memory to take at most; without it, what is free.
    pub device_memory: Option<u64>,
    /// Copies to the GPU under way at once.
    pub lanes: Option<usize>,
    /// Order of the nonzeros on the GPU for several passes.
    pub device_order: DeviceOrder,
    /// Whether results on a GPU must have the same bits in every run; on the CPU they always have.
    pub deterministic: bool,
    /// Whether GPU kernels are to be compiled for an operation by an installed NVRTC; without it, where there is one.
    pub compile_kernels: Option<bool>,
    /// Where compiled kernels are kept between runs; without it, in the user's cache.
    pub kernel_cache: Option<PathBuf>,
    /// The kernel of MTTKRP on a GPU, for measurements.
    pub mttkrp_kernel: Option<MttkrpVariant>,
    /// The kernel of TTV on a GPU.
    pub ttv_kernel: Option<TtvVariant>,
    /// Compute threads; 0 for one for each processor.
    pub threads: usize,
    /// Whether each compute thread is kept on a processor.
    pub pin_threads: bool,
    /// Reading threads.
    pub workers: Option<usize>,
    /// Bytes of memory to take at most; without it, what is available, half of it for what is kept between passes.
    pub memory: Option<u64>,
    /// The least that `memory` may be for packing; without it, 64 MiB. Less has small tensors spill, for tests.
    pub packing_memory_min: Option<u64>,
    /// Whether stores are read past the page cache also where it could hold them.
    pub direct_reads: bool,
    /// Where directories for temporary files are made; without it, in the system's directory for them.
    pub temp_dir: Option<PathBuf>,
    /// Vector instructions to take; results are the same with all.
    pub vectors: Vectors,
}
