//! What passes over a store use of a GPU, and why: data, in every build, made before anything is taken and never changed.
//!
//! A plan names **image sets**: the store's chunks, and copies of the nonzeros that are sorted by a mode's rows and built from them. Of each set
//! it says where every image lies between passes, and which modes are computed from it; of each mode, which set serves it, what that is
//! expected to save, and why. What turns out otherwise when passes run (memory that was promised is not there) is a [`Shortfall`]: a new
//! plan is made from the same [`DeviceRequest`] with one shortfall more.

use super::device::{DeviceLimits, Facts, KernelSource};
use crate::dense::Precision;
use crate::encoding::TILE_NNZ;
use crate::encoding::values::ValueEncoding;
use crate::stream::enough;
use serde::Serialize;
use std::ops::Range;

/// What an operation asks of a device.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Bytes of device memory that it holds: factors, sums, results.
    pub bytes: u64,
    /// Bytes that come back for each chunk, at most; `None` where results stay on the device until a pass ends.
    pub result_bytes: Option<u64>,
    /// Its target modes, from 0: a part for each.
    pub modes: Vec<usize>,
    /// Columns of its results, at most.
    pub rank: usize,
    /// Columns of each mode's factor, if they are not that many.
    pub factor_columns: Option<Vec<usize>>,
    /// Their precision.
    pub precision: Precision,
    /// Bytes per part for sorting the given number of nonzeros.
    pub sorted_bytes: fn(u64, usize) -> u64,
    /// Whether sums of fibers may serve it ([`FibersPlan`]).
    pub takes_fibers: bool,
    /// Whether a pass computes one of the modes, each in turn, instead of all.
    pub alternating: bool,
    /// What its kernels read of trees and segments.
    pub reads: Reads,
    /// The work of this device, if several hold all chunks and divide modes by ranges of rows.
    pub share: Option<Share>,
    /// What it gathers on the device in a pass, beside `bytes`.
    pub gathers: Option<Gathers>,
}

/// What kernels read of chunks that are trees or segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Nonzeros, to which chunks are converted behind the copy.
    Nonzeros,
    /// The chunks as they lie.
    AsTheyLie,
    /// Either: the plan chooses.
    Either,
}

/// Nonzeros that an operation gathers on the device: all in one pass, or a range of them in each of several.
#[derive(Clone, Copy, Debug)]
pub struct Gathers {
    /// All nonzeros.
    pub nnz: u64,
    /// The most at a time, whatever the memory.
    pub most: u64,
    /// Bytes for each [`TILE_NNZ`] of them that have begun.
    pub tile_bytes: u64,
    /// More bytes if they are gathered in ranges.
    pub ranges_bytes: u64,
}

impl Gathers {
    /// Nonzeros at a time for which passes are planned, unless there are fewer.
    const LEAST: u64 = TILE_NNZ as u64;

    /// Bytes for this many nonzeros at a time. A range leaves places of its first tile empty.
    #[must_use]
    pub fn bytes(&self, nonzeros: u64) -> u64 {
        let tiles = nonzeros.div_ceil(TILE_NNZ as u64);
        if nonzeros >= self.nnz {
            return tiles.saturating_mul(self.tile_bytes);
        }
        (tiles + 1).saturating_mul(self.tile_bytes).saturating_add(self.ranges_bytes)
    }

    /// The fewest nonzeros at a time.
    #[must_use]
    pub fn least(&self) -> u64 {
        Self::LEAST.min(self.nnz)
    }

    /// The fewest bytes for some nonzeros at a time.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        self.bytes(self.least()).min(self.bytes(self.nnz))
    }

    /// The most nonzeros at a time that `bytes` hold; `None` if they are too few for any plan.
    #[must_use]
    pub fn fitting(&self, bytes: u64) -> Option<u64> {
        if self.nnz <= self.most && self.bytes(self.nnz) <= bytes {
            return Some(self.nnz);
        }
        let tiles = bytes.saturating_sub(self.ranges_bytes) / self.tile_bytes;
        let nonzeros = (tiles.saturating_sub(1) * TILE_NNZ as u64).min(self.most).min(self.nnz - 1);
        (nonzeros >= Self::LEAST).then_some(nonzeros)
    }
}

/// The work of one of several devices, all of which hold all chunks.
///
/// The first pass only loads the chunks. At its end, each device sorts them by the rows of a mode and finds the same row ranges as the
/// others: from the rows in order and what their nonzeros cost ([`RowCost`]). It keeps the tiles of its own range, whole ones, so that
/// every row is added up in the order of one device that has all. Results of other rows mean nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The range of each mode's cost that it has, as fractions: where one device's range ends, the next one's begins.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// What a row costs.
    pub cost: RowCost,
    /// The modes, from 0, that are divided by rows.
    pub by_rows: Vec<usize>,
    /// The chunks from which it computes the other modes, in the store's order.
    pub chunks: Range<usize>,
}

/// The cost of a row, apart from its nonzeros, in nonzeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowCost(pub f64);

impl RowCost {
    /// A nonzero reads a row of every other factor. A row is written once; in a decomposition it is also updated and sent to the others.
    #[must_use]
    pub fn of(order: usize, decomposes: bool) -> Self {
        let rows = if decomposes { 4.0 } else { 1.0 };
        Self(rows / (order.max(2) - 1) as f64)
    }

    /// The cost of the first `rows` rows, which have `nnz` nonzeros.
    #[must_use]
    pub fn before(self, rows: u32, nnz: u32) -> f64 {
        f64::from(nnz) + self.0 * f64::from(rows)
    }
}

/// Estimated seconds of a mode's passes on one device, for all nonzeros of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModeSeconds {
    /// Reading and updating rows for the nonzeros in the store's order. Each group updates the rows that it contains, and finds rows of the
    /// other modes in its cache when it meets them again. If other modes are computed in the same pass, modes share decoded tiles and
    /// cached rows.
    pub in_store_order: f64,
    /// Reading factor rows for the nonzeros sorted by the mode's rows: no row is cached.
    pub sorted: f64,
    /// Updating a row.
    pub update: f64,
    /// Clearing sums and, from f64 to f32, reading and writing them again.
    pub cleared: f64,
    /// Writing each row once.
    pub written: f64,
    /// Sorting the nonzeros, once.
    pub built: f64,
    /// The least for all nonzeros: decoding and instructions, whatever the rows.
    pub least: f64,
    /// The same for sorted ones, if tensor cores multiply them.
    pub least_sorted: Option<f64>,
}

impl ModeSeconds {
    /// The time per pass that a mode-sorted copy saves if the whole copy is on the device: rows are written once instead of cleared and
    /// updated.
    #[must_use]
    pub fn saved(&self) -> f64 {
        self.in_store_order + self.cleared - self.sorted - self.written
    }

    /// The same with the least counted, which forecasts state. Plans compare orders and devices, and it is the same
    /// for all of them unless tensor cores multiply sorted nonzeros.
    #[must_use]
    pub fn at_least(&self) -> Self {
        let (in_store_order, sorted) =
            (self.in_store_order.max(self.least), self.sorted.max(self.least_sorted.unwrap_or(self.least)));
        Self { in_store_order, sorted, ..*self }
    }

    /// Seconds of a pass on one device.
    #[must_use]
    pub fn on_one(&self) -> f64 {
        (self.in_store_order + self.cleared).min(self.sorted + self.written)
    }
}

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct DeviceRequest {
    /// The operation.
    pub operation: Operation,
    /// The limits of what it may use.
    pub limits: DeviceLimits,
    /// What there is of the device.
    pub room: Room,
    /// What has turned out since, in order.
    pub shortfalls: Vec<Shortfall>,
}

/// How much of a device's memory passes may take, as every plan of them finds it.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that passes may take.
    pub bound: u64,
    /// Bytes that were asked for.
    pub asked: Option<u64>,
    /// Bytes a second that the link moves.
    pub link_bytes_per_second: f64,
    /// Lanes that were asked for, but no more than there are chunks.
    pub lanes: usize,
}

/// What turned out otherwise than planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shortfall {
    /// There is memory for this many lanes.
    Lanes(usize),
    /// Device memory has room for this many of the first chunks to stay.
    Resident(usize),
    /// No copy serves the mode, from 1, because of this.
    NoCopy(usize, String),
    /// There is memory for this many nonzeros at a time.
    Nonzeros(u64),
    /// There are about this many fibers along each mode: they are counted once all nonzeros are on the device.
    Fibers(Vec<u64>),
    /// Sums of fibers cannot be kept because of this.
    NoFibers(String),
}

/// Where images lie between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// On the device.
    Device,
    /// In pinned host memory: they are streamed from there.
    Host,
    /// In the store's files, or what the host keeps of them: they are streamed.
    Store,
}

/// Images of a set that lie in the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Residence {
    /// Their numbers; of a copy's images, which are counted when they are built, all.
    pub images: Option<Range<usize>>,
    /// Where they lie from the second pass on.
    pub place: Place,
    /// Bytes that they take there, at most.
    pub bytes: u64,
}

/// What a set's images are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Images {
    /// The store's chunks.
    Chunks,
    /// A mode-sorted copy: all nonzeros, by row of this mode, from 1, and in the store's order where rows are equal.
    SortedBy(usize),
}

/// Images that hold every nonzero once.
#[derive(Clone, Debug, Serialize)]
pub struct ImageSet {
    /// What they are.
    pub images: Images,
    /// The number of the device on which work is done on them.
    pub device: usize,
    /// Where each lies.
    pub residence: Vec<Residence>,
    /// The modes, from 1, that are computed from it in the first pass.
    pub first_pass: Vec<usize>,
    /// The same in later passes.
    pub later_passes: Vec<usize>,
}

/// What serves a mode, and why.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModePlan {
    /// The mode, from 1.
    pub mode: usize,
    /// The store's cover from which it is computed, and that cover's chunks among those that are read.
    pub cover: u32,
    #[serde(skip)]
    #[doc(hidden)]
    pub chunks: Range<usize>,
    /// Which of the sets serves it from the second pass on.
    pub set: usize,
    /// Why, in one line; empty where there was no choice.
    pub why: String,
    /// Distinct rows of the mode in a group of tiles, for each nonzero, in the store's order: of a sample.
    pub rows_per_nonzero: f64,
    /// Seconds that a mode-sorted copy is expected to save in a pass; negative where it costs more.
    pub saved_seconds: f64,
    /// Seconds that building it is expected to take, once.
    pub build_seconds: f64,
    /// Bytes of the copy, at most.
    pub copy_bytes: u64,
    /// Bytes of device memory while it is built, at most.
    pub peak_bytes: u64,
}

/// Buffers that images go through. Device memory is `count * (image + staging + results)`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LanesPlan {
    /// Lanes.
    pub count: usize,
    /// Bytes of a lane's buffer for an image; 0 where none needs one.
    pub image_bytes: u64,
    /// Bytes of its second buffer, in which chunks wait that are converted to tiles; 0 if none are.
    pub staging_bytes: u64,
    /// Bytes of its buffers for results, on the device and, pinned, on the host.
    pub result_bytes: u64,
}

impl LanesPlan {
    /// Bytes of device memory for this many lanes.
    #[must_use]
    pub fn bytes_of(&self, count: usize) -> u64 {
        let each = self.image_bytes.saturating_add(self.staging_bytes).saturating_add(self.result_bytes);
        each.saturating_mul(count as u64)
    }
}

/// How mode-sorted copies are built.
#[derive(Clone, Debug, Serialize)]
pub struct BuildPlan {
    /// Chunks that are sorted together: all of a cover, or as many as fit while they are gathered and sorted.
    pub groups: Vec<Range<usize>>,
    /// How values are encoded in images.
    #[serde(skip)]
    pub values: ValueEncoding,
    /// Nonzeros of an image, at most.
    pub image_nnz: u32,
    /// Bytes of an image that is streamed, at most.
    pub image_bytes: u64,
    /// Bytes of device memory in which the chunks of a group are gathered; 0 where they stay there.
    pub gathered_bytes: u64,
    /// Bytes of device memory that building may take: all copies that stay there, or one of a group.
    pub room_bytes: u64,
}

impl BuildPlan {
    /// Which of the groups has these chunks: the cover's of a mode whose copy stays on the device.
    #[must_use]
    pub fn group_of(&self, chunks: &Range<usize>) -> usize {
        self.groups.iter().position(|group| group == chunks).unwrap_or(0)
    }
}

/// Sums of fibers, which several modes share: the values of all nonzeros that are equal in all modes but one, times the rows of that mode's factor.
/// Copies for the other modes then have an entry for each fiber (`backend::cuda::mode_sorted`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FibersPlan {
    /// The mode along which fibers lie, from 1.
    pub mode: usize,
    /// About how many fibers there are.
    pub fibers: u64,
    /// Bytes of device memory of the sums and of the copy that they are computed from, about.
    pub bytes: u64,
    /// Seconds that they are expected to save in a pass of all modes.
    pub saved_seconds: f64,
    /// Seconds that finding the fibers is expected to take, once.
    pub build_seconds: f64,
}

/// Bytes that cross the link to the device in a pass.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LinkPlan {
    /// Bytes.
    pub bytes: u64,
    /// Seconds that this takes at least.
    pub seconds: f64,
}

/// Lanes take at most one part in this many of what is left for them and for ranges of nonzeros, unless that is less than one lane:
/// the more nonzeros there are at a time, the fewer passes.
pub(crate) const LANES_SHARE: u64 = 4;

/// How an operation that gathers nonzeros on the device does so in ranges, because not all have room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangesPlan {
    /// Nonzeros at a time, at most.
    pub nonzeros: u64,
    /// Passes over the store, at least: one that counts nonzeros, and one for each range.
    pub passes: u64,
    /// Why, in one line.
    pub why: String,
}

/// What passes use of a device. Memory is `operation + lanes + chunks that stay + copies`.
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
    /// Lanes.
    pub lanes: LanesPlan,
    /// The sets of images: the store's chunks, then copies.
    pub sets: Vec<ImageSet>,
    /// What serves each mode.
    pub modes: Vec<ModePlan>,
    /// How copies are built, if there are any.
    pub build: Option<BuildPlan>,
    /// Sums of fibers, if they serve some modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fibers: Option<FibersPlan>,
    /// Whether fibers are counted before copies are built.
    #[serde(skip)]
    pub(crate) counts_fibers: bool,
    /// The ranges of nonzeros, if the operation takes one in each pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges: Option<RangesPlan>,
    /// Bytes of device memory that copies take at most, while the last of them is built too.
    pub copies_bytes: u64,
    /// Rows that a mode has in a group of tiles for each nonzero, on average over the modes, in a sample; `None` where factors stay in a
    /// cache.
    pub rows_per_nonzero: Option<f64>,
    /// Whether kernels read chunks that are trees or segments as they lie. Otherwise such chunks are converted to nonzeros behind the copy.
    pub as_they_lie: bool,
    /// Whether results have the same bits in every run: all modes are computed from copies, from the first pass on.
    pub deterministic: bool,
    /// Bytes of device memory in all.
    pub memory_bytes: u64,
    /// Bytes of pinned host memory that copies and results take, at most.
    pub host_bytes: u64,
    /// The first pass over the link.
    pub first_pass: LinkPlan,
    /// Each later one.
    pub later_pass: LinkPlan,
    /// What turned out otherwise than planned at first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shortfalls: Vec<Shortfall>,
    #[serde(skip)]
    pub(crate) request: Box<DeviceRequest>,
}

impl DevicePlan {
    /// Bytes of device memory with which a plan of the same operation has this many nonzeros on the device at a time.
    #[must_use]
    pub fn bytes_for(&self, nonzeros: u64) -> u64 {
        let DeviceRequest { operation, room, .. } = &*self.request;
        let gathered = operation.gathers.map_or(0, |gathers| gathers.bytes(nonzeros));
        let lanes = self.lanes.bytes_of(1).max(gathered / (LANES_SHARE - 1));
        let lanes = lanes.min(self.lanes.bytes_of(room.lanes));
        operation.bytes.saturating_add(gathered).saturating_add(lanes)
    }

    /// The same, as messages name it.
    #[must_use]
    pub fn enough_for(&self, nonzeros: u64) -> String {
        enough(self.bytes_for(nonzeros))
    }

    /// The device's work, if several hold all chunks.
    pub(crate) fn share(&self) -> Option<&Share> {
        self.request.operation.share.as_ref()
    }

    /// Whether the first pass only loads chunks, and work begins at its end.
    pub(crate) fn loads_first(&self) -> bool {
        self.deterministic || self.share().is_some()
    }

    /// The same plan with what `other` says about its modes. Neither has copies.
    pub(crate) fn with_reasons_of(mut self, other: &Self) -> Self {
        (self.modes, self.rows_per_nonzero) = (other.modes.clone(), other.rows_per_nonzero);
        self
    }

    /// Where the kernels for its passes come from.
    #[must_use]
    pub fn kernels(&self, source: &KernelSource) -> KernelSource {
        KernelSource { as_they_lie: self.as_they_lie, ..source.clone() }
    }

    /// The store's chunks.
    #[must_use]
    pub fn chunks(&self) -> &ImageSet {
        &self.sets[0]
    }

    /// The first chunks, which stay on the device, and their bytes.
    #[must_use]
    pub fn resident(&self) -> (usize, u64) {
        let there = self.chunks().residence.iter().find(|part| part.place == Place::Device);
        there.map_or((0, 0), |part| (part.images.as_ref().map_or(0, |images| images.end), part.bytes))
    }

    /// The first chunks, which are not needed from the second pass on: they stay on the device, or copies serve all modes.
    #[must_use]
    pub fn held_chunks(&self) -> usize {
        let all = self.chunks().residence.iter().filter_map(|part| Some(part.images.as_ref()?.end)).max();
        if self.chunks().later_passes.is_empty() { all.unwrap_or(0) } else { self.resident().0 }
    }

    /// The chunks that part `part` of the operation works on, of those that are read.
    pub(crate) fn chunks_of(&self, part: usize) -> Range<usize> {
        self.modes[part].chunks.clone()
    }

    /// Where the copy lies that serves part `part` of the operation, if one does.
    #[must_use]
    pub fn copy(&self, part: usize) -> Option<Place> {
        let mode = self.modes[part].mode;
        self.copies().find(|(of, _)| *of == mode).map(|(_, place)| place)
    }

    /// The modes, from 1, that are computed from copies, and where these lie.
    pub fn copies(&self) -> impl Iterator<Item = (usize, Place)> {
        self.sets.iter().filter_map(|set| match set.images {
            Images::SortedBy(mode) => Some((mode, set.residence.first()?.place)),
            Images::Chunks => None,
        })
    }

    /// Whether any copies lie in host memory.
    #[must_use]
    pub fn streams_copies(&self) -> bool {
        self.copies().any(|(_, place)| place == Place::Host)
    }
}
