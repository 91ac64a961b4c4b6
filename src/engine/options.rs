//! The options of an engine.

use super::devices::DeviceSet;
use crate::backend::device::{DeviceOrder, MttkrpVariant, TtvVariant};
use crate::backend::devices::Divide;
use crate::backend::host::Vectors;
use crate::op::mttkrp::{serving, serving_view};
use crate::store::Store;
use std::path::PathBuf;
use std::time::Duration;

/// The device to compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// A GPU if one is present and large enough, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; an error if there is none.
    Cuda,
}

/// All options, as plain data.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The device to compute on.
    pub device: Device,
    /// The number of the GPU, from 0.
    pub device_number: usize,
    /// The GPUs, if several compute; `None` for the one above.
    pub devices: Option<DeviceSet>,
    /// How they divide the work.
    pub divide: Divide,
    /// How long a thread waits for a GPU before the run ends with an error; `None` for ten minutes.
    pub device_timeout: Option<Duration>,
    /// The most bytes of GPU memory to use; `None` for all that is free.
    pub device_memory: Option<u64>,
    /// Lanes: copies to the GPU in flight.
    pub lanes: Option<usize>,
    /// The order of nonzeros over several passes.
    pub device_order: DeviceOrder,
    /// Whether results on a GPU must have the same bits in every run, and those of several processes the bits of one.
    pub deterministic: bool,
    /// Whether NVRTC compiles GPU kernels for an operation; `None` to compile if it is installed.
    pub compile_kernels: Option<bool>,
    /// The directory of compiled kernels; `None` for the user's cache.
    pub kernel_cache: Option<PathBuf>,
    /// The GPU kernel of MTTKRP, for measurements.
    pub mttkrp_kernel: Option<MttkrpVariant>,
    /// The GPU kernel of TTV.
    pub ttv_kernel: Option<TtvVariant>,
    /// Compute threads; 0 for one per processor.
    pub threads: usize,
    /// Whether to pin each compute thread to a processor.
    pub pin_threads: bool,
    /// Reading threads.
    pub workers: Option<usize>,
    /// The most bytes of memory to use; `None` for the available memory, half of it for data kept between passes.
    pub memory: Option<u64>,
    /// The least `memory` for packing; `None` for 64 MiB. Tests lower it, so that small tensors spill.
    pub packing_memory_min: Option<u64>,
    /// Whether to read stores without the page cache even if it could hold them.
    pub direct_reads: bool,
    /// The directory for temporary files; `None` for the system's.
    pub temp_dir: Option<PathBuf>,
    /// The widest vector instructions to use. Results do not depend on them.
    pub vectors: Vectors,
}

impl Options {
    /// What MTTKRP on the CPU reads of a store: one cover, whose nonzeros are multiplied one by one. In the store's order, if that was asked
    /// for, sums grow along its trees instead.
    #[must_use]
    pub fn on_cpu(&self, store: &Store) -> Store {
        if self.device_order == DeviceOrder::Store { store.clone() } else { store.flat() }
    }

    /// What MTTKRP or SpTTMc of `modes`, from 0, in one pass on a GPU reads of a store. If several covers serve the modes, it is one of them: fewer chunks
    /// are copied, and copies sorted by mode take the place of other covers. In the store's order, if that was asked for, it is all.
    #[must_use]
    pub fn on_gpu(&self, store: &Store, modes: &[usize]) -> Store {
        let is_one = serving(store.whole(), modes).len() == 1;
        let all = is_one || self.device_order == DeviceOrder::Store;
        serving_view(&if all { store.clone() } else { store.flat() }, modes)
    }
}
