//! A GPU as requests and reports have it: data, there in every build.

use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What a device is.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The name that the driver gives.
    pub name: String,
    /// Its number on this machine.
    pub number: usize,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory that it has.
    pub total_bytes: u64,
    /// The driver's interface version: 12080 for CUDA 12.8.
    pub driver_version: u32,
    /// Bytes of its L2 cache; 0 where the driver does not tell.
    pub l2_bytes: u64,
    /// Bytes a second that its memory moves, by its clock and width; 0 where the driver does not tell them.
    pub memory_bytes_per_second: f64,
}

impl Facts {
    /// An H100, which forecasts assume if there is no GPU.
    #[must_use]
    pub fn assumed() -> Self {
        Self {
            name: "H100, assumed".to_owned(),
            number: 0,
            capability: (9, 0),
            multiprocessors: 132,
            total_bytes: 80 << 30,
            driver_version: 12_000,
            l2_bytes: 50 << 20,
            memory_bytes_per_second: 3.35e12,
        }
    }

    /// Bytes a second that its memory moves; an H100's where the driver does not tell.
    #[must_use]
    pub fn memory_rate(&self) -> f64 {
        let told = self.memory_bytes_per_second;
        if told > 0.0 && told.is_finite() { told } else { Self::assumed().memory_bytes_per_second }
    }

    /// What part `bytes` are of all that its memory can move in `seconds`; 0 where the driver does not tell.
    #[must_use]
    pub fn memory_share(&self, bytes: f64, seconds: f64) -> f64 {
        let most = self.memory_bytes_per_second * seconds;
        if most > 0.0 { bytes / most } else { 0.0 }
    }
}

/// Bytes of pinned host memory through which factors and results of `bytes` bytes go to and from a device: none where that saves less than
/// pinning takes.
#[must_use]
pub fn staging_bytes(bytes: u64) -> u64 {
    if bytes < 256 << 20 { 0 } else { 64 << 20 }
}

/// The requested order of nonzeros for computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceOrder {
    /// For each mode, what takes less time over the passes that are to come.
    #[default]
    Auto,
    /// The store's. On a CPU, sums grow along the trees of a format that has them, with other last bits.
    Store,
    /// A copy sorted by row for each mode, where memory allows.
    Target,
    /// The same, in host memory, whatever the device has room for.
    Host,
    /// As [`DeviceOrder::Target`], and on a single GPU the sums of the fibers along one mode, computed once for all others.
    Fibers,
}

/// What passes may use of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceLimits {
    /// Bytes of device memory to use; `None` for the free memory.
    pub memory: Option<u64>,
    /// Lanes; `None` to choose.
    pub lanes: Option<usize>,
    /// Bytes of host memory that copies may be kept in.
    pub host_memory: u64,
    /// Passes that are to come: chunks stay on the device only for a second one.
    pub passes: u32,
    /// Which order of the nonzeros.
    pub order: DeviceOrder,
    /// Whether results must have the same bits in every run: all modes are sorted, from the first pass on.
    pub deterministic: bool,
}

/// Where kernels are to come from.
#[derive(Clone, Debug, Default)]
pub struct KernelSource {
    /// Compiled kernels: `None` where NVRTC is installed, otherwise always or never.
    pub compile: Option<bool>,
    /// The directory that keeps what was compiled.
    pub cache: Option<PathBuf>,
    /// The variant to compile, instead of the fastest known: for measurements.
    pub variant: Option<MttkrpVariant>,
    /// Where an L2 cache cannot hold the factors: rows that a mode has in a group of tiles for each nonzero, on average.
    pub rows_per_nonzero: Option<f64>,
    /// Whether kernels read trees and segments as they lie; a plan says so.
    pub as_they_lie: bool,
}

/// Where an kernel comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Compiled just now.
    Compiled,
    /// Compiled in an earlier run.
    Cache,
    /// Embedded PTX, which the driver compiles.
    Embedded,
}

/// Which kernels were loaded.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// The MTTKRP kernel.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why it is not one that was compiled for this order and rank, or why the cache was of no use.
    pub why: Option<String>,
}

/// How an MTTKRP kernel divides its work among threads. It changes results only through the order of additions. As
/// text, `t4l16c2b4`: tiles, lanes, columns, batch; `t4l16c1b4s`: split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MttkrpVariant {
    /// Tiles of a thread block, ordered together: 1, 2 or 4, with 128 threads each.
    pub tiles: u32,
    /// Threads that share a nonzero.
    pub lanes: u32,
    /// Columns that a thread computes in one sweep over the rank.
    pub columns: u32,
    /// Nonzeros whose rows are loaded before any is added.
    pub batch: u32,
    /// Whether each sweep over the rank goes over all tiles before the next: tiles are decoded for each of them, but less of each row
    /// competes for the L2 cache.
    pub split: bool,
}

impl fmt::Display for MttkrpVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tiles, lanes, columns, batch, split } = self;
        write!(f, "t{tiles}l{lanes}c{columns}b{batch}{}", if *split { "s" } else { "" })
    }
}

impl FromStr for MttkrpVariant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rest = text;
        let mut number = |letter: char| {
            let digits = rest.strip_prefix(letter)?;
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let number = digits[..end].parse().ok()?;
            rest = &digits[end..];
            Some(number)
        };
        let mut all = || {
            Some(Self {
                tiles: number('t')?,
                lanes: number('l')?,
                columns: number('c')?,
                batch: number('b')?,
                split: text.ends_with('s'),
            })
        };
        let variant = all().filter(|v| v.to_string() == text);
        variant.ok_or_else(|| format!("{text}: not like t4l16c2b4 (tiles, lanes, columns, batch; s: split)"))
    }
}

/// How fibers are shared among threads: what does not change a bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TtvVariant {
    /// Leaves are divided evenly. The default, because no lengths of fibers or slices slow it down.
    #[default]
    Balanced,
    /// The paper's grid: slices over one dimension, fibers of a slice over the other, a thread for each fiber.
    TwoLevel,
}

impl TtvVariant {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::TwoLevel => "two-level",
        }
    }
}

impl fmt::Display for TtvVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TtvVariant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let variant = [Self::Balanced, Self::TwoLevel].into_iter().find(|variant| variant.name() == text);
        variant.ok_or_else(|| format!("{text}: not balanced or two-level"))
    }
}
