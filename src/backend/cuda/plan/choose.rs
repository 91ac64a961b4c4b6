//! Chooses what each mode of a resident store is computed from: its chunks, or a copy sorted by the mode's rows and
//! built on the device ([`crate::backend::cuda::mode_sorted`]).
//!
//! In the store's order, a thread block updates a row for every group of tiles in which it occurs, but finds rows of
//! the other modes in its cache. In a mode-sorted copy, rows are updated once, and rows of the other modes are loaded
//! again. A sample of the store shows how many distinct rows a group has. The rest is a model of the device with
//! measured rates (docs/performance.md).

use crate::backend::cuda::expand::is_expanded;
use crate::backend::cuda::kernels::Matrices;
use crate::backend::cuda::mode_sorted::{CopyPlan, check_layouts, value_encoding};
use crate::backend::device::{DeviceOrder, Facts};
use crate::backend::plan::{BuildPlan, FibersPlan, ModePlan, ModeSeconds, Operation, Place};
use crate::dense::Precision;
use crate::encoding::TILE_NNZ;
use crate::encoding::values::ValueEncoding;
use crate::error::{Error, Result};
use crate::format::tree::Recent;
use crate::format::{ChunkView, Decoder, PartitionStatistics};
use crate::shape::Shape;
use crate::store::{Manifest, Partition, Store};
use std::collections::BTreeSet;
use std::ops::Range;

/// What serves a mode.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub mode: ModePlan,
    /// The place of the copy that serves the mode, if there is one.
    pub place: Option<Place>,
}

impl Choice {
    /// The choice of no copy for `mode`, from 0, among the chunks of `store` that are read.
    pub fn none(store: &Store, mode: usize, why: &str) -> Self {
        let (cover, chunks) = (store.whole().cover_for(mode), store.chunks_for(mode));
        let mode = ModePlan { mode: mode + 1, cover, chunks, why: why.to_owned(), ..ModePlan::default() };
        Self { mode, place: None }
    }
}

/// Bytes that `operation` also holds if copies are streamed.
pub(super) fn held(operation: &Operation, build: &BuildPlan) -> u64 {
    operation.modes.len() as u64 * (operation.sorted_bytes)(build.image_nnz.into(), operation.rank)
}

/// Statistics of a store's nonzeros, known without reading all of them.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Distinct rows of each mode in a group of tiles, per nonzero.
    pub rows_per_nonzero: Vec<f64>,
}

/// The encoding of the values of all chunks in copies. It follows from each chunk's header, since chunks differ.
pub(super) fn values(store: &Store, precision: Precision) -> Result<ValueEncoding> {
    let manifest = store.manifest();
    let encoding = |number: usize| {
        if is_expanded(&manifest.partitions[store.part_of(number)].format) {
            return Ok(ValueEncoding::F64);
        }
        let code = match manifest.chunks[number].value_encoding {
            Some(code) => code,
            None => store.read_header(number)?.codes.value_encoding,
        };
        ValueEncoding::from_code(code).ok_or_else(|| {
            Error::corrupt(store.chunk_path(number), format!("corrupt: value encoding {code}"))
        })
    };
    let encodings = (0..manifest.chunks.len()).map(encoding).collect::<Result<BTreeSet<_>>>()?;
    Ok(value_encoding(manifest, precision, encodings))
}

/// Tiles in a group of a thread block.
const GROUP_TILES: usize = 4;
/// The number of sampled chunks, and of groups in each.
const SAMPLED_CHUNKS: usize = 3;
const SAMPLED_GROUPS: usize = 16;
/// If chunks are larger than this, one is sampled: more would take long compared with a pass.
const SAMPLED_BYTES: usize = 64 << 20;

impl Sample {
    /// Statistics of these chunks, which are whole partitions: from the manifest or, for version 1, from some chunks that are read.
    fn new(store: &Store, chunks: &Range<usize>) -> Result<Self> {
        let manifest = store.manifest();
        let order = manifest.shape.order();
        let recorded: Option<Vec<(f64, &PartitionStatistics)>> = partitions_of(store, chunks)
            .map(|partition| Some((partition.nnz as f64, partition.statistics.as_ref()?)))
            .collect();
        if let Some(recorded) = recorded {
            let all: f64 = recorded.iter().map(|(nnz, _)| nnz).sum();
            let rows = |mode: usize| {
                let of_partition = |(nnz, statistics): &(f64, &PartitionStatistics)| {
                    let rows = statistics.distinct[mode][GROUP_TILES.ilog2() as usize] as f64;
                    nnz * rows / statistics.sampled.max(1) as f64
                };
                recorded.iter().map(of_partition).sum::<f64>() / all.max(1.0)
            };
            return Ok(Self { rows_per_nonzero: (0..order).map(rows).collect() });
        }
        let mut sample = Self { rows_per_nonzero: vec![0.0; order] };
        let (mut rows, mut nnz) = (vec![0; order], 0);
        let decoder = Decoder::new(&manifest.shape, manifest.format());
        let mut scratch = store.scratch()?;
        for number in sampled(manifest.chunks.len()) {
            if store.chunk_buffer_bytes(number) > SAMPLED_BYTES && nnz > 0 {
                continue;
            }
            let mut buffer = store.sys().page_buf(store.chunk_buffer_bytes(number))?;
            let (header, _) = store.load(number, &mut buffer, &mut scratch)?;
            let image = &buffer[..header.image_bytes as usize];
            let view = ChunkView::open(&decoder, &header, image, store.chunk_path(number))?;
            nnz += count(&view, order, &mut rows)?;
        }
        if nnz > 0 {
            sample.rows_per_nonzero = rows.iter().map(|&r| r as f64 / nnz as f64).collect();
        }
        Ok(sample)
    }

    /// The mean over the modes.
    fn mean(&self) -> f64 {
        self.rows_per_nonzero.iter().sum::<f64>() / self.rows_per_nonzero.len() as f64
    }
}

/// Samples of the chunks from which each mode is computed.
#[derive(Clone, Debug)]
pub(super) struct Samples(Vec<(Range<usize>, Sample)>);

impl Samples {
    pub fn new(store: &Store, operation: &Operation) -> Result<Self> {
        let mut samples: Vec<(Range<usize>, Sample)> = Vec::new();
        for chunks in operation.modes.iter().map(|&mode| store.chunks_for(mode)) {
            if !samples.iter().any(|(known, _)| *known == chunks) {
                let sample = Sample::new(store, &chunks)?;
                samples.push((chunks, sample));
            }
        }
        Ok(Self(samples))
    }

    /// The sample of the chunks for `mode`.
    pub fn of(&self, store: &Store, mode: usize) -> &Sample {
        let chunks = store.chunks_for(mode);
        let of_mode = self.0.iter().find(|(known, _)| *known == chunks);
        &of_mode.expect("one for each mode of the operation").1
    }

    /// The mean over covers and modes.
    pub fn mean_rows_per_nonzero(&self) -> f64 {
        self.0.iter().map(|(_, sample)| sample.mean()).sum::<f64>() / self.0.len().max(1) as f64
    }
}

/// Chunks spread over a store.
fn sampled(chunks: usize) -> impl Iterator<Item = usize> {
    let all = SAMPLED_CHUNKS.min(chunks);
    (0..all).map(move |i| (2 * i + 1) * chunks / (2 * all))
}

/// Adds to `rows` the distinct rows of each mode in groups spread over a chunk. Returns the nonzeros of these groups.
fn count(view: &ChunkView<'_>, order: usize, rows: &mut [usize]) -> Result<usize> {
    let groups = view.tiles().div_ceil(GROUP_TILES);
    let step = groups.div_ceil(SAMPLED_GROUPS).max(1);
    let (mut indices, mut values) = (vec![0; order * TILE_NNZ], vec![0.0; TILE_NNZ]);
    let mut recent = Recent::default();
    let mut nnz = 0;
    for first in (0..groups).step_by(step).map(|group| group * GROUP_TILES) {
        let mut of_modes = vec![Vec::new(); order];
        for t in first..(first + GROUP_TILES).min(view.tiles()) {
            let tile = view.decode(t, &mut recent, &mut indices, &mut values)?;
            nnz += tile.values.len();
            of_modes.iter_mut().enumerate().for_each(|(m, rows)| rows.extend_from_slice(tile.column(m)));
        }
        for (of_mode, count) in of_modes.iter_mut().zip(&mut *rows) {
            of_mode.sort_unstable();
            of_mode.dedup();
            *count += of_mode.len();
        }
    }
    Ok(nnz)
}

/// How fast a device moves rows.
pub(super) struct Rates {
    memory: f64,
    l2_bytes: f64,
    multiprocessors: f64,
    /// Whether tensor cores multiply Kronecker products.
    matrices: bool,
}

/// Rates of row reads and row updates, relative to the device memory's clock times width, for tables of different sizes
/// in multiples of the L2 cache. Measured on an H100 at rank 32.
const ROW_RATES: [(f64, [f64; 2]); 4] =
    [(0.5, [2.7, 0.63]), (1.3, [1.76, 0.5]), (5.0, [1.05, 0.35]), (20.0, [0.92, 0.32])];

/// What a multiprocessor of an H100 takes for a nonzero and each mode of its index whatever its rows: seconds, and more for each column up to
/// this many; beyond, rows take longer than that (benches/runs/2026-11-25-model).
const LEAST: [f64; 2] = [132.0 * 2.7e-12, 132.0 * 0.44e-12];
const LEAST_COLUMNS: f64 = 16.0;
/// The same for each column of a Kronecker product: f64, f32 (benches/runs/2026-11-26-spttmc).
const LEAST_KRONECKER: [f64; 2] = [132.0 * 0.65e-12, 132.0 * 0.36e-12];

impl Rates {
    /// If the driver does not report the memory or the cache, the H100's values are used. Decisions depend on ratios,
    /// in which the memory's rate cancels, and no estimate may be infinite.
    pub fn of(facts: &Facts) -> Self {
        let l2_bytes = if facts.l2_bytes > 0 { facts.l2_bytes } else { Facts::assumed().l2_bytes };
        let multiprocessors = facts.multiprocessors.max(1).into();
        let matrices = Matrices::suit(facts);
        Self { memory: facts.memory_rate(), l2_bytes: l2_bytes as f64, multiprocessors, matrices }
    }

    /// Bytes per second of row reads from a table of `bytes`.
    fn reads(&self, bytes: f64) -> f64 {
        self.rows(bytes, 0)
    }

    /// Bytes per second of row updates in a table of `bytes`.
    fn updates(&self, bytes: f64) -> f64 {
        self.rows(bytes, 1)
    }

    fn rows(&self, bytes: f64, which: usize) -> f64 {
        let size = bytes / self.l2_bytes;
        let above = ROW_RATES.iter().position(|&(at, _)| size <= at).unwrap_or(ROW_RATES.len());
        let rate = match above {
            0 => ROW_RATES[0].1[which],
            4 => ROW_RATES[3].1[which],
            i => {
                let ((a, from), (b, to)) = (ROW_RATES[i - 1], ROW_RATES[i]);
                from[which] + (to[which] - from[which]) * (size / a).ln() / (b / a).ln()
            }
        };
        self.memory * rate
    }

    /// Bytes per second of sequential reads or writes.
    fn streams(&self) -> f64 {
        0.85 * self.memory
    }

    /// Seconds to build a copy: the pairs of each digit are read twice and written once, and the columns of each nonzero are gathered
    /// twice, a sector of 32 bytes each.
    pub fn build(&self, (shape, nnz): (&Shape, u64), mode: usize) -> f64 {
        let (digits, columns) = (shape.bits(mode).div_ceil(8), shape.order() + 1);
        let bytes = 20.0 * f64::from(digits) + 64.0 * columns as f64 + 30.0;
        nnz as f64 * bytes / (0.65 * self.memory)
    }

    /// Estimates the times of `operation` for `mode` of a store.
    pub fn of_store(
        &self,
        store: &Store,
        operation: &Operation,
        samples: &Samples,
        mode: usize,
    ) -> ModeSeconds {
        let manifest = store.manifest();
        let nnz = manifest.chunks[store.chunks_for(mode)].iter().map(|chunk| chunk.nnz).sum();
        let sample = samples.of(store, mode);
        let mut seconds = self.of_mode((&manifest.shape, nnz), operation, sample, mode);
        if is_by_row(store, mode) {
            seconds.in_store_order = seconds.in_store_order.max(BY_ROW * seconds.sorted);
        }
        // Where tensor cores multiply sorted nonzeros, the least is another one for each order.
        if seconds.least_sorted.is_none() { seconds } else { seconds.at_least() }
    }

    /// Estimates the times of `operation` for `mode`.
    pub fn of_mode(
        &self,
        (shape, nnz): (&Shape, u64),
        operation: &Operation,
        sample: &Sample,
        mode: usize,
    ) -> ModeSeconds {
        let (all, nnz, rank) = (nnz, nnz as f64, operation.rank as f64);
        let rows = |m: usize| f64::from(shape.dims()[m]);
        let sum_bytes = rank * 8.0;
        let update = sum_bytes / self.updates(rows(mode) * sum_bytes);
        let updated = sample.rows_per_nonzero[mode] * update;
        let (element, rounded_bytes) = match operation.precision {
            Precision::F64 => (8.0, 0.0),
            Precision::F32 => (4.0, rank * 12.0),
        };
        let row_bytes = rank * element;
        let others = (0..shape.order()).filter(|&m| m != mode);
        let (mut met, mut read) = (0.0, 0.0);
        for m in others {
            let columns = operation.factor_columns.as_ref().map_or(rank, |columns| columns[m] as f64);
            let row = columns * element / self.reads(rows(m) * columns * element);
            met += sample.rows_per_nonzero[m] * row;
            read += row;
        }
        let together = operation.modes.len() > 1 && !operation.alternating;
        let alone = if together { 1.0 - SHARED } else { 1.0 };
        ModeSeconds {
            in_store_order: nnz * (updated + met) * alone,
            sorted: nnz * read,
            update,
            cleared: rows(mode) * (sum_bytes + rounded_bytes) / self.streams(),
            written: rows(mode) * row_bytes / self.streams(),
            built: self.build((shape, all), mode),
            least: nnz * least(operation, shape.order(), mode) / self.multiprocessors,
            least_sorted: self.least_sorted(operation, mode).map(|least| nnz * least / self.multiprocessors),
        }
    }

    /// What a multiprocessor takes for a sorted nonzero that tensor cores multiply, whatever its rows, in seconds.
    fn least_sorted(&self, operation: &Operation, mode: usize) -> Option<f64> {
        let ranks = operation.factor_columns.as_ref().filter(|_| self.matrices)?;
        let matrices = Matrices::fastest(operation.precision, ranks, &operation.modes)?;
        Some(132.0 * matrices.seconds(ranks, mode))
    }

    /// Seconds to read rows of `mode` for `nnz` nonzeros that find none in their cache.
    fn read(&self, store: &Store, operation: &Operation, mode: usize, nnz: f64) -> f64 {
        let bytes = row_bytes(operation, mode) as f64;
        nnz * bytes / self.reads(f64::from(store.manifest().shape.dims()[mode]) * bytes)
    }
}

/// Bytes of a row of a mode's factor.
fn row_bytes(operation: &Operation, mode: usize) -> u64 {
    let columns = operation.factor_columns.as_ref().map_or(operation.rank, |columns| columns[mode]);
    let element = if operation.precision == Precision::F64 { 8 } else { 4 };
    (columns * element) as u64
}

/// What a multiprocessor takes for a nonzero whatever its rows, in seconds.
fn least(operation: &Operation, order: usize, mode: usize) -> f64 {
    let of_indices = order as f64 * (LEAST[0] + LEAST[1] * (operation.rank as f64).min(LEAST_COLUMNS));
    let Some(columns) = &operation.factor_columns else { return of_indices };
    let of_result: f64 = (0..order).filter(|&m| m != mode).map(|m| columns[m] as f64).product();
    of_indices.max(of_result * LEAST_KRONECKER[usize::from(operation.precision == Precision::F32)])
}

/// What sums of fibers would do for the modes of an operation.
pub(super) struct AlongFibers<'a> {
    pub rates: Rates,
    pub store: &'a Store,
    pub samples: &'a Samples,
    pub operation: &'a Operation,
    /// What serves the modes without them.
    pub choices: &'a [Choice],
    pub passes: u32,
    /// Whether they were asked for.
    pub asked: bool,
}

impl AlongFibers<'_> {
    /// The fewest nonzeros a fiber, on average, that sums are kept for: with fewer, entries take as long as nonzeros.
    const NNZ_OF_FIBER: f64 = 2.0;
    /// Seconds to load the kernels that count fibers, if no copies are built anyway.
    const LOADED: f64 = 0.07;

    /// Whether counting them is worth its time: sums could save all but one reading of one mode's rows.
    pub fn is_worth_counting(&self) -> bool {
        let served: f64 = self.choices.iter().map(|choice| self.now(choice)).sum();
        let has_copies = self.choices.iter().any(|choice| choice.place == Some(Place::Device));
        self.asked || has_copies || served * f64::from(self.passes - 1) > Self::LOADED
    }

    /// The mode along which sums of fibers save most, if that pays. `counts` has the fibers along each.
    pub fn best(&self, counts: &[u64]) -> Option<FibersPlan> {
        let plans = counts.iter().enumerate().filter_map(|(mode, &fibers)| self.along(mode, fibers));
        let best = plans.max_by(|a, b| a.saved_seconds.total_cmp(&b.saved_seconds))?;
        let pays = best.saved_seconds * f64::from(self.passes - 1) > best.build_seconds;
        (self.asked || pays).then_some(best)
    }

    /// Seconds of a mode's work in a pass without them.
    fn now(&self, choice: &Choice) -> f64 {
        let seconds = self.seconds(choice);
        if choice.place.is_some() {
            seconds.sorted + seconds.written
        } else {
            seconds.in_store_order + seconds.cleared
        }
    }

    fn seconds(&self, choice: &Choice) -> ModeSeconds {
        self.rates.of_store(self.store, self.operation, self.samples, choice.mode.mode - 1).at_least()
    }

    fn along(&self, mode: usize, fibers: u64) -> Option<FibersPlan> {
        let Self { rates, store, operation, .. } = self;
        let (nnz, shape) = (store.manifest().nnz, &store.manifest().shape);
        let (fibers, row) = (fibers.min(nnz), row_bytes(operation, mode));
        let few = fibers as f64 / nnz.max(1) as f64;
        let served = || self.choices.iter().filter(|choice| choice.mode.mode != mode + 1);
        if few * Self::NNZ_OF_FIBER > 1.0 || served().next().is_none() {
            return None;
        }
        let saved = |choice: &Choice| {
            let seconds = self.seconds(choice);
            self.now(choice) - seconds.sorted * few - seconds.written
        };
        // The sums have order 2.
        let of_sums = nnz as f64 * 2.0 * (LEAST[0] + LEAST[1] * LEAST_COLUMNS) / rates.multiprocessors;
        let written = (fibers * row) as f64 / rates.streams();
        let of_sums = rates.read(store, operation, mode, nnz as f64).max(of_sums) + written;
        let others = (0..shape.order()).filter(|&m| m != mode);
        Some(FibersPlan {
            mode: mode + 1,
            fibers,
            bytes: fibers * (row + 8) + nnz * 12,
            saved_seconds: served().map(saved).sum::<f64>() - of_sums,
            build_seconds: others.map(|m| rates.build((shape, nnz), m)).sum(),
        })
    }
}

/// The part of a mode's time in the store's order that is saved if other modes are computed from the same tiles.
const SHARED: f64 = 0.12;

/// Chooses what serves each mode of `operation` on a store, for `passes` passes. The first pass loads the chunks, all of which stay on the
/// device. `room` is the memory for copies, including during their construction.
pub(super) fn choose(
    facts: &Facts,
    store: &Store,
    samples: &Samples,
    operation: &Operation,
    which: DeviceOrder,
    passes: u32,
    room: u64,
) -> Result<(Vec<Choice>, Option<BuildPlan>)> {
    let manifest = store.manifest();
    let rates = Rates::of(facts);
    let build = BuildPlan {
        groups: samples.0.iter().map(|(chunks, _)| chunks.clone()).collect(),
        values: values(store, operation.precision)?,
        image_nnz: IMAGE_NNZ,
        image_bytes: 0,
        gathered_bytes: 0,
        room_bytes: room,
    };
    let mut choices = Vec::with_capacity(operation.modes.len());
    let mut left = room;
    for &mode in &operation.modes {
        if let Some(share) = operation.share.as_ref().filter(|share| !share.by_rows.contains(&mode)) {
            let mut own = Choice::none(store, mode, "");
            own.mode.chunks = share.chunks.clone();
            choices.push(own);
            continue;
        }
        let (sample, chunks) = (samples.of(store, mode), store.chunks_for(mode));
        let group = build.group_of(&chunks);
        let copy = match CopyPlan::of_group(facts, manifest, &build, group, mode) {
            Ok(copy) => copy,
            Err(e) if which == DeviceOrder::Auto => {
                choices.push(Choice::none(store, mode, &e.to_string()));
                continue;
            }
            Err(e) => return Err(e),
        };
        let nnz = copy.nnz().into();
        let seconds = rates.of_store(store, operation, samples, mode);
        let sorted_bytes = (operation.sorted_bytes)(nnz, operation.rank);
        let mut plan = ModePlan {
            rows_per_nonzero: sample.rows_per_nonzero[mode],
            saved_seconds: seconds.saved(),
            build_seconds: seconds.built,
            copy_bytes: copy.result_bytes_max + sorted_bytes,
            peak_bytes: copy.peak_bytes() + sorted_bytes,
            ..Choice::none(store, mode, "").mode
        };
        let gain = plan.saved_seconds * f64::from(passes - 1);
        let expected = format!(
            "{:.2} rows a nonzero in the store's order: sorted by row, a pass takes {:.2} ms {}, once {:.1} ms to sort",
            plan.rows_per_nonzero,
            plan.saved_seconds.abs() * 1e3,
            if plan.saved_seconds > 0.0 { "less" } else { "more" },
            plan.build_seconds * 1e3
        );
        let serves;
        (serves, plan.why) = if plan.peak_bytes > left {
            (false, format!("{expected}; no room for {} bytes", plan.peak_bytes))
        } else if matches!(which, DeviceOrder::Target | DeviceOrder::Fibers) {
            (true, format!("{expected}; as asked"))
        } else {
            (gain > plan.build_seconds, expected)
        };
        if serves {
            left -= plan.copy_bytes;
        }
        choices.push(Choice { mode: plan, place: serves.then_some(Place::Device) });
    }
    Ok((choices, Some(build)))
}

/// The least ratio of the time of chunks to that of a copy if the chunks' nonzeros are in order of the target's rows: thread blocks that
/// run at the same time then update the same rows (measured: 1.08 to 1.8).
const BY_ROW: f64 = 1.15;

/// Whether the chunks from which `mode` is computed are in order of its rows.
fn is_by_row(store: &Store, mode: usize) -> bool {
    partitions_of(store, &store.chunks_for(mode))
        .all(|partition| partition.format.record().levels.is_some_and(|levels| levels.mode(0) == mode))
}

/// The partitions of these chunks, which are whole partitions.
fn partitions_of<'s>(store: &'s Store, chunks: &'s Range<usize>) -> impl Iterator<Item = &'s Partition> {
    let parts = store.parts().zip(&store.manifest().partitions);
    parts.filter(|((_, of), _)| chunks.contains(&of.start)).map(|(_, partition)| partition)
}

/// Nonzeros of an image of a copy on the device.
const IMAGE_NNZ: u32 = 1 << 24;

/// Fails if the request asks for copies that cannot be built.
pub(super) fn check(which: DeviceOrder, manifest: &Manifest) -> Result<()> {
    if matches!(which, DeviceOrder::Target | DeviceOrder::Host | DeviceOrder::Fibers) {
        check_layouts(manifest)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::plan::Reads;

    #[test]
    fn rows_of_larger_tables_move_slower() {
        let rates = Rates { memory: 3.0e12, l2_bytes: 5.0e7, multiprocessors: 132.0, matrices: false };
        for which in 0..2 {
            let sizes = [1.0, 2.4e7, 2.6e7, 6.4e7, 6.6e7, 2.4e8, 2.6e8, 9.9e8, 1.1e9, 1.0e12];
            let all: Vec<f64> = sizes.iter().map(|&bytes| rates.rows(bytes, which)).collect();
            assert!(all.windows(2).all(|pair| pair[0] >= pair[1]), "{all:?}");
            assert!((all[0] / 3.0e12 - ROW_RATES[0].1[which]).abs() < 1e-12);
            assert!((all[9] / 3.0e12 - ROW_RATES[3].1[which]).abs() < 1e-12);
            assert!((rates.rows(6.5e7, which) / 3.0e12 - ROW_RATES[1].1[which]).abs() < 1e-12);
        }
    }

    /// Three modes of equal dims.
    fn shape() -> Shape {
        Shape::new(&[1000; 3]).unwrap()
    }

    /// Rows fit in the cache; a tenth of the nonzeros in a group of tiles have a new row.
    fn of_first_mode(rates: &Rates, modes: &[usize], alternating: bool) -> ModeSeconds {
        let operation = Operation {
            bytes: 0,
            result_bytes: None,
            modes: modes.to_vec(),
            rank: 32,
            factor_columns: None,
            precision: Precision::F64,
            sorted_bytes: |_, _| 0,
            takes_fibers: false,
            alternating,
            reads: Reads::Nonzeros,
            share: None,
            gathers: None,
        };
        let sample = Sample { rows_per_nonzero: vec![0.1; 3] };
        rates.of_mode((&shape(), 1_000_000), &operation, &sample, 0)
    }

    /// Modes computed in passes of their own share nothing. What other modes share is a part of the time that they take.
    #[test]
    fn only_modes_of_one_pass_share_tiles() {
        let rates = Rates { memory: 3.0e12, l2_bytes: 5.0e7, multiprocessors: 132.0, matrices: false };
        let (alone, together) =
            (of_first_mode(&rates, &[0], false), of_first_mode(&rates, &[0, 1, 2], false));
        let alternating = of_first_mode(&rates, &[0, 1, 2], true);
        assert!((alone.in_store_order - alternating.in_store_order).abs() < 1e-15);
        assert!((together.in_store_order / alone.in_store_order - (1.0 - SHARED)).abs() < 1e-12);
        assert!((alone.sorted - together.sorted).abs() < 1e-15);
    }

    /// Drivers may not report the memory's clock.
    #[test]
    fn estimates_are_finite_on_every_device() {
        for (memory_bytes_per_second, l2_bytes) in
            [(0.0, 0), (3.0e12, 0), (0.0, 50 << 20), (3.0e12, 50 << 20)]
        {
            let facts = Facts {
                name: "one that tells little".into(),
                number: 0,
                capability: (9, 0),
                multiprocessors: 1,
                total_bytes: 1 << 30,
                driver_version: 13_000,
                l2_bytes,
                memory_bytes_per_second,
            };
            let (rates, share) = (Rates::of(&facts), facts.memory_share(3.0e9, 0.002));
            assert!((share - if memory_bytes_per_second > 0.0 { 0.5 } else { 0.0 }).abs() < 1e-12);
            let ModeSeconds { in_store_order, sorted, update, cleared, written, built, least, least_sorted } =
                of_first_mode(&rates, &[0, 1, 2], false);
            for seconds in [
                in_store_order,
                sorted,
                update,
                cleared,
                written,
                built,
                least,
                least_sorted.unwrap_or(least),
            ] {
                assert!(
                    seconds.is_finite() && seconds > 0.0,
                    "{memory_bytes_per_second} {l2_bytes}: {seconds}"
                );
            }
        }
    }

    #[test]
    fn sampled_chunks_are_there_and_apart() {
        assert_eq!(sampled(1).collect::<Vec<_>>(), [0]);
        assert_eq!(sampled(2).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(sampled(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(sampled(100).collect::<Vec<_>>(), [16, 50, 83]);
    }
}
