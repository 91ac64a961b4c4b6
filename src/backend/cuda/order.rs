//! Target-major orders, derived on the device: the nonzeros of resident `tiled` chunks once more, by row of one mode (in the
//! store's order where rows are equal), encoded as `tiled` images that every kernel reads like a store's own.
//!
//! A kernel decodes the mode's column to rows, a stable radix sort carries their positions along, and two more kernels
//! measure and pack the tiles of the new order, reading each nonzero where it lies (kernels/order.cuh). The bytes
//! depend on the chunks, the mode and the [`OrderPlan`] alone.

use super::abi::{
    Chunk, DIGIT_BITS, OrderArgs, OrderTile, SORT_PORTION, SORT_THREADS, ScanArgs, SortArgs, TILE,
    TILE_THREADS,
};
use super::driver::{Device, Event, Facts, Kernel, Memory, Stream};
use super::kernels::embedded_ptx;
use super::resident::blocks_of;
use crate::dense::Precision;
use crate::encoding::tile::record_bytes;
use crate::encoding::values::ValueEncoding;
use crate::encoding::{IndexEncoding, column, width};
use crate::error::{Error, Result};
use crate::store::chunk::ALIGN;
use crate::store::{ChunkHeader, Format, Manifest, SectionKind, Store};
use std::ops::Range;
use std::sync::Arc;

/// The names of the kernels.
pub const KERNELS: [&str; 6] =
    ["order_keys", "order_count", "order_scan", "order_scatter", "order_measure", "order_pack"];

/// What images start at a multiple of, in bytes.
const IMAGE_ALIGN: u64 = 256;
/// Most nonzeros of an image: whatever their widths, it stays below 4 GiB.
const IMAGE_NNZ_MAX: u32 = 1 << 26;
/// Thread blocks that sort at the same time on a multiprocessor.
const SORT_BLOCKS: u32 = 4;

/// The kernels, loaded.
#[derive(Debug)]
pub struct OrderKernels {
    keys: Kernel,
    count: Kernel,
    scan: Kernel,
    scatter: Kernel,
    measure: Kernel,
    pack: Kernel,
}

impl OrderKernels {
    /// Loads them from what is embedded.
    pub fn load(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&embedded_ptx(&KERNELS))?;
        let [keys, count, scan, scatter, measure, pack] = KERNELS.map(|name| module.kernel(name));
        Ok(Self {
            keys: keys?,
            count: count?,
            scan: scan?,
            scatter: scatter?,
            measure: measure?,
            pack: pack?,
        })
    }
}

/// The value encoding of images derived from chunks of `encodings`: integers where all of them are, otherwise what factors of
/// `precision` are multiplied by. (f64 all the same where f32 holds a value as infinite only: images hold finite values.)
#[must_use]
pub fn value_encoding(
    manifest: &Manifest,
    precision: Precision,
    encodings: impl IntoIterator<Item = ValueEncoding>,
) -> ValueEncoding {
    #[expect(clippy::cast_possible_truncation, reason = "whether it fits is the question")]
    let fits = |v: f64| (v as f32).is_finite();
    if encodings.into_iter().all(|e| e == ValueEncoding::Integer) {
        ValueEncoding::Integer
    } else if precision == Precision::F32 && fits(manifest.value_min) && fits(manifest.value_max) {
        ValueEncoding::F32
    } else {
        ValueEncoding::F64
    }
}

/// How an order is derived, and the device memory that it takes.
#[derive(Clone, Debug)]
pub struct OrderPlan {
    mode: usize,
    order: usize,
    nnz: u32,
    tiles: u32,
    image_tiles: u32,
    values: ValueEncoding,
    /// Digits of a row, and bits of each.
    digits: u32,
    digit_bits: u32,
    sort_blocks: u32,
    /// Bytes of device memory while nonzeros are sorted: 12 or 16 a nonzero and some.
    pub sort_bytes: u64,
    /// Bytes of device memory while they are packed, besides the result: 8 a nonzero and some.
    pub pack_bytes: u64,
    /// Bytes that the result takes at most.
    pub result_bytes_max: u64,
    /// Rows of the mode.
    rows: u32,
}

impl OrderPlan {
    /// For the nonzeros of some consecutive chunks by row of `mode`, in images of at most `image_nnz` nonzeros (rounded down to
    /// whole tiles, within what an image can hold) with values as [`value_encoding`] says.
    ///
    /// An error where positions have more than 32 bits, or the chunks are not `tiled`.
    ///
    /// # Panics
    /// If there is no such chunk or mode.
    pub fn new(
        facts: &Facts,
        manifest: &Manifest,
        chunks: Range<usize>,
        mode: usize,
        values: ValueEncoding,
        image_nnz: u32,
    ) -> Result<Self> {
        if manifest.format != Format::Blco(IndexEncoding::Tiled) {
            return Err(Error::request("only `tiled` chunks are put in another order"));
        }
        let nnz: u64 = manifest.chunks[chunks].iter().map(|c| c.nnz).sum();
        let nnz = u32::try_from(nnz).map_err(|_| {
            Error::request(format!("{nnz} nonzeros at once are too many to put in another order"))
        })?;
        let (shape, tiles) = (&manifest.shape, blocks_of(nnz.into(), 1));
        let bits = shape.bits(mode);
        let digits = bits.div_ceil(DIGIT_BITS).max(1);
        let mut plan = Self {
            mode,
            order: shape.order(),
            nnz,
            tiles,
            image_tiles: image_nnz.min(IMAGE_NNZ_MAX) / TILE,
            values,
            digits,
            digit_bits: bits.div_ceil(digits).max(1),
            sort_blocks: nnz.div_ceil(SORT_PORTION).clamp(1, SORT_BLOCKS * facts.multiprocessors.max(1)),
            sort_bytes: 0,
            pack_bytes: 0,
            result_bytes_max: 0,
            rows: shape.dims()[mode],
        };
        plan.image_tiles = plan.image_tiles.clamp(1, tiles);
        let column = 4 * u64::from(nnz);
        let tile_bytes = plan.tile_bytes();
        let counts = (4 * (u64::from(plan.sort_blocks) + 1)) << plan.digit_bits;
        plan.sort_bytes = tile_bytes + counts + column * if digits > 1 { 4 } else { 3 };
        plan.pack_bytes =
            tile_bytes + plan.record_bytes() + 2 * column + u64::from(tiles + 3 * plan.images()) * 4;
        plan.result_bytes_max = plan.result_bytes_max(manifest);
        Ok(plan)
    }

    /// Bytes of device memory that deriving takes at most, the result included.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.sort_bytes.max(self.pack_bytes + self.result_bytes_max)
    }

    /// Nonzeros.
    #[must_use]
    pub fn nnz(&self) -> u32 {
        self.nnz
    }

    /// Images of the result.
    #[must_use]
    pub fn images(&self) -> u32 {
        self.tiles.div_ceil(self.image_tiles)
    }

    fn tile_bytes(&self) -> u64 {
        u64::from(self.tiles) * size_of::<OrderTile>() as u64
    }

    fn record_bytes(&self) -> u64 {
        u64::from(self.tiles) * record_bytes(self.order) as u64
    }

    /// Tiles of image `number`, and nonzeros.
    fn image(&self, number: u32) -> (u32, u32) {
        let first = number * self.image_tiles;
        let tiles = self.image_tiles.min(self.tiles - first);
        (tiles, (tiles * TILE).min(self.nnz - first * TILE))
    }

    /// The header of image `number`, whose columns take `units` of 64 bytes.
    fn header(&self, number: u32, units: u64) -> ChunkHeader {
        let (tiles, nnz) = self.image(number);
        let value_bytes = match self.values {
            ValueEncoding::F32 => 4 * u64::from(nnz),
            ValueEncoding::F64 => 8 * u64::from(nnz),
            ValueEncoding::Integer | ValueEncoding::Dictionary => 0,
        };
        let mut sections = vec![
            (SectionKind::Shape, 4 * self.order as u64),
            (SectionKind::Tiles, u64::from(tiles) * record_bytes(self.order) as u64),
            (SectionKind::Columns, units * column::bytes(1) as u64),
        ];
        if value_bytes > 0 {
            sections.push((SectionKind::Values, value_bytes));
        }
        let order = u8::try_from(self.order).expect("at most 8 modes");
        ChunkHeader::of_sections(order, nnz, IndexEncoding::Tiled as u8, self.values as u8, &sections)
    }

    fn image_bytes(&self, number: u32, units: u64) -> u64 {
        u64::from(self.header(number, units).image_bytes).next_multiple_of(IMAGE_ALIGN)
    }

    /// A column is at most as wide as its mode; in the target mode's, the rows of all tiles together pass each row once.
    fn result_bytes_max(&self, manifest: &Manifest) -> u64 {
        let of_values = match self.values {
            ValueEncoding::Integer => {
                width(integer(manifest.value_max).abs_diff(integer(manifest.value_min)))
            }
            _ => 0,
        };
        let shape = &manifest.shape;
        let of_others = (0..shape.order()).filter(|&m| m != self.mode).map(|m| shape.bits(m)).sum::<u32>();
        let rest = u64::from(of_others + of_values);
        let target = most_units(u64::from(shape.dims()[self.mode] - 1), self.tiles.into());
        let images: u64 =
            (0..self.images()).map(|i| self.image_bytes(i, u64::from(self.image(i).0) * rest)).sum();
        let rounding = u64::from(self.images()) * (IMAGE_ALIGN + ALIGN as u64);
        images + target * column::bytes(1) as u64 + rounding + self.empty_bytes()
    }

    /// A bit for each row.
    fn empty_bytes(&self) -> u64 {
        u64::from(self.rows.div_ceil(32)) * 4
    }
}

/// The integer next to `v` toward 0, at most 2^53 from it: no integer value lies between.
fn integer(v: f64) -> i64 {
    const LARGEST: f64 = (1u64 << 53) as f64;
    #[expect(clippy::cast_possible_truncation, reason = "inside the range that f64 and i64 share exactly")]
    let integer = v.clamp(-LARGEST, LARGEST) as i64;
    integer
}

/// The largest sum of the widths of `tiles` numbers whose sum is at most `rows`.
fn most_units(rows: u64, tiles: u64) -> u64 {
    // The first bit of a number costs 1, the second 1 more, and each next one twice as much: the cheapest are taken first.
    let (mut left, mut units, mut cost) = (rows, 0, 1);
    for bit in 0..u32::BITS {
        let wider = tiles.min(left / cost);
        units += wider;
        left -= wider * cost;
        if wider < tiles {
            break;
        }
        cost = 1 << bit;
    }
    units
}

/// A part of an order.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Its address on the device.
    pub address: u64,
    /// Its nonzeros.
    pub nnz: u32,
}

/// Nonzeros in another order, on the device.
#[derive(Debug)]
pub struct Derived {
    memory: Memory,
    /// A bit for each row of the mode, set where it has no nonzero: bit r % 32 of 32-bit word r / 32.
    pub empty: Memory,
    /// The images, in order; all but the last have whole tiles.
    pub images: Vec<Image>,
    /// Bytes of device memory that the images take.
    pub bytes: u64,
    /// How long it took.
    pub seconds: OrderSeconds,
}

impl Derived {
    /// The images as a launch of thread blocks with so many tiles lists them, and its thread blocks.
    #[must_use]
    pub fn chunks(&self, tiles_per_block: u32) -> (Vec<Chunk>, u32) {
        let (mut chunks, mut blocks) = (Vec::with_capacity(self.images.len()), 0);
        for (number, image) in (0..).zip(&self.images) {
            chunks.push(Chunk { image: image.address, first_block: blocks, number });
            blocks += blocks_of(image.nnz.into(), tiles_per_block);
        }
        (chunks, blocks)
    }

    /// The memory that holds the images.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// Seconds of the device for each step.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct OrderSeconds {
    /// Decoding rows.
    pub keys: f64,
    /// Sorting by each digit.
    pub sort: Vec<f64>,
    /// Measuring tiles.
    pub measure: f64,
    /// Packing them.
    pub pack: f64,
}

impl OrderSeconds {
    /// Of all steps.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.keys + self.sort.iter().sum::<f64>() + self.measure + self.pack
    }
}

/// Derives what `plan` says from the `chunks` (address and length of a list of [`Chunk`]s on the device, with a thread block for each
/// tile) that it was made for, which are there and stay while this runs. Returns when all is done.
///
/// A number out of range in a chunk (or values that are not integers, where the plan says so) is an [`Error::Corrupt`], too
/// little memory an [`Error::Device`] that says so; in either case nothing is left behind.
pub fn derive(
    device: &Arc<Device>,
    kernels: &OrderKernels,
    stream: &Stream,
    store: &Store,
    plan: &OrderPlan,
    chunks: (u64, u32),
) -> Result<Derived> {
    let mut job = Job::new(device, kernels, stream, store, plan, chunks)?;
    let (rows, positions) = job.sort()?;
    (job.arguments.rows, job.arguments.positions) = (rows.address(), positions.address());
    let records = device.memory(bytes(plan.record_bytes()))?;
    let offsets = device.memory(bytes(4 * u64::from(plan.tiles)))?;
    (job.arguments.records, job.arguments.offsets) = (records.address(), offsets.address());
    let mut empty = device.memory(bytes(plan.empty_bytes()))?;
    job.run(|job| job.stream.fill(&mut empty, 0xff))?;
    job.arguments.empty = empty.address();
    let units = job.measure()?;
    let (mut derived, list) = job.allocate(&units, empty)?;
    job.arguments.images = list.address();
    job.pack()?;
    derived.seconds = job.clock.read(plan.digits as usize)?;
    Ok(derived)
}

fn bytes(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

/// A derivation under way. Nothing is left on the stream when one of its functions returns.
struct Job<'a> {
    device: &'a Arc<Device>,
    kernels: &'a OrderKernels,
    stream: &'a Stream,
    store: &'a Store,
    plan: &'a OrderPlan,
    arguments: OrderArgs,
    fault: Memory,
    /// Held for its address.
    _tiles: Memory,
    clock: Clock<'a>,
}

impl<'a> Job<'a> {
    fn new(
        device: &'a Arc<Device>,
        kernels: &'a OrderKernels,
        stream: &'a Stream,
        store: &'a Store,
        plan: &'a OrderPlan,
        (chunks, chunk_count): (u64, u32),
    ) -> Result<Self> {
        let tiles = device.memory(bytes(plan.tile_bytes()))?;
        let mut fault = device.memory(size_of::<u32>())?;
        fault.write(&[u32::MAX])?;
        let arguments = OrderArgs {
            chunks,
            tiles: tiles.address(),
            fault: fault.address(),
            chunk_count,
            nnz: plan.nnz,
            order: u32::try_from(plan.order).unwrap_or(0),
            mode: u32::try_from(plan.mode).unwrap_or(0),
            image_tiles: plan.image_tiles,
            value_encoding: plan.values as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        let clock = Clock { device, stream, events: Vec::new() };
        Ok(Self { device, kernels, stream, store, plan, arguments, fault, _tiles: tiles, clock })
    }

    /// Starts `work`, and waits until the device has done it, also where starting some of it has failed: what it uses
    /// may be freed then.
    fn run(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let started = work(self);
        let ended = self.stream.synchronize();
        started?;
        ended
    }

    /// Finds where the chunks' tiles lie, and sorts their nonzeros: rows and positions in the new order.
    fn sort(&mut self) -> Result<(Memory, Memory)> {
        let plan = self.plan;
        let column = || self.device.memory(4 * plan.nnz as usize);
        let counts = self.device.memory((4 * plan.sort_blocks as usize) << plan.digit_bits)?;
        let totals = self.device.memory(4 << plan.digit_bits)?;
        let rows = [column()?, column()?];
        // The first step's positions need no memory.
        let positions = [(plan.digits > 1).then(column).transpose()?, Some(column()?)];
        let address = |memory: &Option<Memory>| memory.as_ref().map_or(0, Memory::address);
        self.arguments.rows = rows[0].address();
        self.run(|job| {
            job.clock.mark()?;
            job.stream.launch(&job.kernels.keys, plan.tiles, TILE_THREADS, &job.arguments)?;
            job.clock.mark()?;
            for step in 0..plan.digits {
                let (from, to) = (step as usize % 2, (step as usize + 1) % 2);
                job.sort_step(&SortArgs {
                    rows_in: rows[from].address(),
                    positions_in: if step == 0 { 0 } else { address(&positions[from]) },
                    rows_out: rows[to].address(),
                    positions_out: address(&positions[to]),
                    counts: counts.address(),
                    totals: totals.address(),
                    nnz: plan.nnz,
                    shift: step * plan.digit_bits,
                    bits: plan.digit_bits,
                    unused: 0,
                })?;
                job.clock.mark()?;
            }
            Ok(())
        })?;
        let last = plan.digits as usize % 2;
        let [rows, positions] = [rows.map(Some), positions].map(|pair| pair.into_iter().nth(last).flatten());
        Ok((rows.expect("both are there"), positions.expect("the last step has written them")))
    }

    fn sort_step(&self, arguments: &SortArgs) -> Result<()> {
        let (kernels, blocks) = (self.kernels, self.plan.sort_blocks);
        self.stream.launch(&kernels.count, blocks, SORT_THREADS, arguments)?;
        self.scan(arguments.counts, arguments.totals, blocks << arguments.bits, blocks)?;
        self.stream.launch(&kernels.scatter, blocks, SORT_THREADS, arguments)
    }

    /// Scans `count` numbers in rows of `row`.
    fn scan(&self, numbers: u64, totals: u64, count: u32, row: u32) -> Result<()> {
        let arguments = ScanArgs { numbers, totals, count, row };
        self.stream.launch(&self.kernels.scan, count.div_ceil(row), SORT_THREADS, &arguments)
    }

    /// Makes the new tiles' records; gives the length of each image's columns, in units of 64 bytes.
    fn measure(&mut self) -> Result<Vec<u32>> {
        let plan = self.plan;
        let mut units = vec![0; plan.images() as usize];
        let totals = self.device.memory(size_of_val(&units[..]))?;
        self.run(|job| {
            job.clock.mark()?;
            job.stream.launch(&job.kernels.measure, plan.tiles, TILE_THREADS, &job.arguments)?;
            job.scan(job.arguments.offsets, totals.address(), plan.tiles, plan.image_tiles)?;
            job.clock.mark()
        })?;
        self.check()?;
        totals.read(&mut units)?;
        Ok(units)
    }

    /// Memory for the images, with their headers and shapes, and a list of their addresses.
    fn allocate(&mut self, units: &[u32], empty: Memory) -> Result<(Derived, Memory)> {
        let plan = self.plan;
        let each = || (0..plan.images()).zip(units.iter().map(|&u| u64::from(u)));
        let all = each().map(|(number, units)| plan.image_bytes(number, units)).sum();
        let mut memory = self.device.memory(bytes(all))?;
        let mut list = self.device.memory(size_of::<u64>() * units.len())?;
        // Gaps between sections hold zeros.
        self.run(|job| job.stream.fill(&mut memory, 0))?;
        let dims: Vec<u8> = self.store.manifest().shape.dims().iter().flat_map(|d| d.to_le_bytes()).collect();
        let (mut images, mut at) = (Vec::with_capacity(units.len()), 0);
        for (number, units) in each() {
            let mut header = plan.header(number, units);
            header.number = number;
            header.store_id = self.store.id();
            header.first_nonzero = u64::from(number) * u64::from(plan.image_tiles * TILE);
            memory.write_at(bytes(at), &[&header.encode()[..], &dims].concat())?;
            images.push(Image { address: memory.address() + at, nnz: header.nnz });
            at += plan.image_bytes(number, units);
        }
        let addresses: Vec<u64> = images.iter().map(|image| image.address).collect();
        list.write(&addresses)?;
        Ok((Derived { memory, empty, images, bytes: all, seconds: OrderSeconds::default() }, list))
    }

    /// Fills the images.
    fn pack(&mut self) -> Result<()> {
        let plan = self.plan;
        self.run(|job| {
            job.clock.mark()?;
            job.stream.launch(&job.kernels.pack, plan.tiles, TILE_THREADS, &job.arguments)?;
            job.clock.mark()
        })?;
        self.check()
    }

    /// An error where a chunk held a number out of range.
    fn check(&self) -> Result<()> {
        let mut number = [0];
        self.fault.read(&mut number)?;
        if number[0] == u32::MAX {
            return Ok(());
        }
        let path = self.store.chunk_path(number[0] as usize);
        Err(Error::corrupt(path, format!("chunk {}: corrupt: a number out of range", number[0])))
    }
}

/// Events between the steps.
struct Clock<'a> {
    device: &'a Arc<Device>,
    stream: &'a Stream,
    events: Vec<Event>,
}

impl Clock<'_> {
    fn mark(&mut self) -> Result<()> {
        let event = self.device.event(true)?;
        event.record(self.stream)?;
        self.events.push(event);
        Ok(())
    }

    /// Seconds between the marks, of which `digits` stand around sorts; between steps the host works.
    fn read(&self, digits: usize) -> Result<OrderSeconds> {
        let after = |i: usize| self.events[i + 1].seconds_since(&self.events[i]);
        let sort = (1..=digits).map(after).collect::<Result<_>>()?;
        Ok(OrderSeconds { keys: after(0)?, sort, measure: after(digits + 2)?, pack: after(digits + 4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against every way to choose few small numbers.
    #[test]
    fn no_numbers_of_that_sum_are_wider() {
        for rows in 0..40u64 {
            for tiles in 1..4u32 {
                let choices = (rows + 1).pow(tiles);
                let digits = |choice: u64| (0..tiles).map(move |t| choice / (rows + 1).pow(t) % (rows + 1));
                let fitting = (0..choices).filter(|&c| digits(c).sum::<u64>() <= rows);
                let widest = fitting.map(|c| digits(c).map(width).sum::<u32>()).max();
                assert_eq!(widest.map(u64::from), Some(most_units(rows, tiles.into())), "{rows} {tiles}");
            }
        }
    }
}
