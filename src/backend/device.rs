//! A GPU as requests, plans and reports have it: data, there in every build.

use crate::encoding::values::ValueEncoding;
use crate::store::Store;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::Range;
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
    /// What part `bytes` are of all that its memory can move in `seconds`; 0 where the driver does not tell.
    #[must_use]
    pub fn memory_share(&self, bytes: f64, seconds: f64) -> f64 {
        let most = self.memory_bytes_per_second * seconds;
        if most > 0.0 { bytes / most } else { 0.0 }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceOrder {
    /// For each mode, what takes less time over the passes that are to come.
    #[default]
    Auto,
    /// The store's.
    Store,
    /// Target-major for each mode, where memory allows.
    Target,
    /// The same, in host memory, whatever the device has room for.
    Host,
}

/// The order that serves a mode, and why.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModeOrder {
    /// The mode, from 1.
    pub mode: usize,
    /// Whether nonzeros are sorted by its rows.
    pub target: bool,
    /// Whether the sorted nonzeros lie in host memory and are streamed in each pass.
    pub in_host_memory: bool,
    /// Why, in one line.
    pub why: String,
    /// Distinct rows of the mode in a group of tiles, for each nonzero, in the store's order: of a sample.
    pub rows_per_nonzero: f64,
    /// Seconds that the target-major order is expected to save in a pass; negative where it costs more.
    pub saved_seconds: f64,
    /// Seconds that deriving it is expected to take, once.
    pub derive_seconds: f64,
    /// Bytes that it takes at most.
    pub bytes: u64,
    /// Bytes of device memory while it is derived, at most, `bytes` included.
    pub peak_bytes: u64,
}

/// What passes may use of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceLimits {
    /// Bytes of device memory; `None` for what is free.
    pub memory: Option<u64>,
    /// Lanes; `None` to choose.
    pub lanes: Option<usize>,
    /// Bytes of host memory that orders may be kept in.
    pub host_memory: u64,
    /// Passes that are to come: chunks stay on the device only for a second one.
    pub passes: u32,
    /// Which order of the nonzeros.
    pub order: DeviceOrder,
    /// Whether results must have the same bits in every run: all modes are sorted, from the first pass on.
    pub deterministic: bool,
}

/// What passes will use of a device. Memory is `operation + lanes * (lane + staging) + resident + derived`.
#[derive(Clone, Debug, Serialize)]
pub struct DevicePlan {
    /// The device.
    pub device: Facts,
    /// Bytes that are free on it.
    pub free_bytes: u64,
    /// Bytes a second that the link to it moves, as measured.
    pub link_bytes_per_second: f64,
    /// Factors, sums, results.
    pub operation_bytes: u64,
    /// Lanes, each with a device buffer for a chunk.
    pub lanes: usize,
    /// Bytes of a lane's buffer; 0 where no chunk needs one.
    pub lane_bytes: u64,
    /// Bytes of a lane's second buffer, in which trees wait until they are nonzeros; 0 for other formats.
    pub staging_bytes: u64,
    /// The first chunks, which stay on the device after the first pass.
    pub resident_chunks: usize,
    /// Bytes that they take.
    pub resident_bytes: u64,
    /// Rows that a mode has in a group of tiles for each nonzero, on average over the modes, in a sample; `None` where factors stay in a
    /// cache.
    pub rows_per_nonzero: Option<f64>,
    /// The order that serves each mode from the second pass on; empty where it is the store's for all.
    pub orders: Vec<ModeOrder>,
    /// Whether results have the same bits in every run: all modes are sorted, from the first pass on.
    pub deterministic: bool,
    /// What orders in host memory take, where modes are served so.
    pub host_orders: Option<HostOrdersPlan>,
    /// Bytes that orders take at most which are derived, while the last of them is made too.
    pub derived_bytes: u64,
    /// Bytes that they may take.
    pub order_room_bytes: u64,
    /// Bytes in all.
    pub memory_bytes: u64,
    /// Bytes that cross the link in the first pass.
    pub first_pass_bytes: u64,
    /// Bytes that cross the link in each later pass.
    pub later_pass_bytes: u64,
    /// Seconds that this takes at least.
    pub later_pass_copy_seconds: f64,
}

impl DevicePlan {
    /// The first chunks, which are not needed from the second pass on: they stay on the device, or orders serve all modes.
    #[must_use]
    pub fn held_chunks(&self, store: &Store) -> usize {
        let all = self.host_orders.as_ref().is_some_and(|orders| !orders.with_chunks);
        if all { store.manifest().chunks.len() } else { self.resident_chunks }
    }

    /// Bytes of host memory that orders take.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.host_orders.as_ref().map_or(0, |orders| orders.host_bytes)
    }
}

/// What sorted nonzeros in host memory take.
#[derive(Clone, Debug, Serialize)]
pub struct HostOrdersPlan {
    /// Chunks that are gathered on the device and sorted together.
    #[serde(serialize_with = "count")]
    pub groups: Vec<Range<usize>>,
    /// How values are encoded in images.
    #[serde(skip)]
    pub values: ValueEncoding,
    /// Nonzeros of an image, at most.
    pub image_nnz: u32,
    /// Bytes of an image, at most.
    pub image_bytes: u64,
    /// Bytes of device memory for the chunks of a group.
    pub gathered_bytes: u64,
    /// Bytes of device memory to derive their orders.
    pub derive_bytes: u64,
    /// Bytes of device memory for both, and for what the operation holds besides.
    pub device_bytes: u64,
    /// Bytes of host memory for all images, at most.
    pub host_bytes: u64,
    /// Whether passes need chunks of the store besides.
    pub with_chunks: bool,
}

fn count<S: Serializer>(groups: &[Range<usize>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(groups.len() as u64)
}

/// What passes will use of a device. Memory is `operation + lanes * (image + result)`; on the host, `lanes * result` is pinned.
#[derive(Clone, Debug, Serialize)]
pub struct PipelinePlan {
    /// The device.
    pub device: Facts,
    /// Bytes that are free on it.
    pub free_bytes: u64,
    /// Bytes a second that the link to it moves, as measured.
    pub link_bytes_per_second: f64,
    /// Bytes that the operation holds.
    pub operation_bytes: u64,
    /// Lanes.
    pub lanes: usize,
    /// Bytes of a lane's image.
    pub image_bytes: u64,
    /// Bytes of a lane's results, on the device as on the host.
    pub result_bytes: u64,
    /// Bytes in all.
    pub memory_bytes: u64,
    /// Bytes that cross the link to the device in a pass.
    pub copied_bytes: u64,
    /// Seconds that this takes at least.
    pub copy_seconds: f64,
}

impl PipelinePlan {
    /// Bytes of host memory that lanes hold.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.result_bytes.saturating_mul(self.lanes as u64)
    }
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

/// How an MTTKRP kernel shares the work among threads: what does not change its results but for the order of additions.
/// As text, `t4l16c2b4`: tiles, lanes, columns, batch; `t4l16c1b4s`: split.
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
    /// Leaves are shared out evenly: what serves where nobody asks, because no lengths of fibers or slices slow it down.
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
