//! The kernels of TTV along the leaves' mode of trees (kernels/ttv.cuh), by variant and precision.

use super::abi::{TILE, TTV_SEGMENT, TTV_THREADS, TtvArgs};
use super::driver::{Device, Kernel, Stream};
use super::kernels::embedded_ptx;
use crate::backend::device::TtvVariant;
use crate::dense::Precision;
use crate::error::Result;
use std::sync::Arc;

/// All of them.
pub const KERNELS: [&str; 6] = [
    "ttv_two_level_f64",
    "ttv_two_level_f32",
    "ttv_balanced_f64",
    "ttv_balanced_f32",
    "ttv_fix_up_f64",
    "ttv_fix_up_f32",
];

/// Slices and fibers of a thread block of the two-level grid.
const SLICES: u32 = 4;
const FIBERS: u32 = TTV_THREADS / SLICES;
/// The largest two-level grid over slices and fibers of a slice. Each thread block takes several if there are more.
const GRID_MAX: (u32, u32) = (1 << 16, 1 << 12);

/// Windows of [`TTV_SEGMENT`] spots in a chunk of this many slots, including those of a fiber that continues from the
/// previous chunk.
#[must_use]
pub fn windows(slots: u64) -> u64 {
    slots.div_ceil(TILE.into()) * u64::from(TILE / TTV_SEGMENT) + 1
}

/// The kernels of a variant and precision.
#[derive(Debug)]
pub struct TtvKernels {
    kernel: Kernel,
    /// Of [`TtvVariant::Balanced`]: adds up the segments of long fibers.
    fix_up: Option<Kernel>,
}

impl TtvKernels {
    /// Loads them from what is embedded.
    pub fn load(device: &Arc<Device>, precision: Precision, variant: TtvVariant) -> Result<Self> {
        let real = precision.name();
        let (name, fix_up) = match variant {
            TtvVariant::TwoLevel => (format!("ttv_two_level_{real}"), None),
            TtvVariant::Balanced => (format!("ttv_balanced_{real}"), Some(format!("ttv_fix_up_{real}"))),
        };
        let names: Vec<&str> = [&name].into_iter().chain(&fix_up).map(String::as_str).collect();
        let module = device.module(&embedded_ptx(&names))?;
        let fix_up = fix_up.map(|name| module.kernel(&name)).transpose()?;
        Ok(Self { kernel: module.kernel(&name)?, fix_up })
    }

    /// Launches the work on a chunk of this many slices and fibers.
    pub fn launch(&self, stream: &Stream, slices: u32, fibers: u32, arguments: &TtvArgs) -> Result<()> {
        let Some(fix_up) = &self.fix_up else {
            let rows = slices.div_ceil(SLICES).min(GRID_MAX.0 - 1);
            let columns = (fibers / slices).div_ceil(FIBERS).clamp(1, GRID_MAX.1);
            return stream.launch_grid(&self.kernel, (columns, rows), TTV_THREADS, arguments);
        };
        let tiles = arguments.end.div_ceil(TILE);
        stream.launch(&self.kernel, tiles, TTV_THREADS, arguments)?;
        let windows = u32::try_from(windows(arguments.end.into())).unwrap_or(u32::MAX);
        stream.launch(fix_up, windows.div_ceil(TTV_THREADS), TTV_THREADS, arguments)
    }
}
