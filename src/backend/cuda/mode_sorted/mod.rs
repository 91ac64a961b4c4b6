//! Builds mode-sorted copies on the device. A copy holds all nonzeros of the resident chunks, which are `tiled` on the device, sorted by
//! row of one mode (nonzeros of the same row keep the store's order). It is encoded as `tiled` images, which every kernel reads like the
//! store's own.
//!
//! A kernel decodes the mode's column to rows, and a stable radix sort moves positions along with the rows. Two more kernels measure and
//! pack the tiles of the new order and read each nonzero where it is (`kernels/mode_sorted.cuh`). The bytes depend only on the chunks, the
//! mode and the [`CopyPlan`].

mod fibers;
mod plan;

use super::abi::{BuildArgs, Chunk, SORT_THREADS, ScanArgs, SortArgs, TILE, TILE_THREADS};
use super::driver::{Device, Event, Kernel, Memory, Module, Stream};
use super::expand::blocks_of;
use super::fault::Fault;
use super::kernels::embedded_ptx;
use super::log::out_of_range;
use crate::backend::plan::Share;
use crate::error::{Error, Result};
use crate::store::Store;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use fibers::{FIBER_KERNELS, FiberKernels, FiberLists, entry_dims, fiber_mode};
pub use plan::{CopyPlan, Source, value_encoding};
pub(super) use plan::{SORT_BLOCKS, check_layouts};

/// Names of the kernels.
pub const KERNELS: [&str; 6] =
    ["build_keys", "build_count", "build_scan", "build_scatter", "build_measure", "build_pack"];

/// The loaded kernels.
#[derive(Debug)]
pub struct SortKernels {
    keys: Kernel,
    sort: SortSteps,
    measure: Kernel,
    pack: Kernel,
}

/// The kernels of a sort (kernels/sort.cuh).
#[derive(Debug)]
pub struct SortSteps {
    count: Kernel,
    scan: Kernel,
    scatter: Kernel,
}

impl SortSteps {
    /// Their names.
    pub const KERNELS: [&str; 3] = ["build_count", "build_scan", "build_scatter"];

    /// Those of a module that has them.
    pub fn of(module: &Arc<Module>) -> Result<Self> {
        let [count, scan, scatter] = Self::KERNELS.map(|name| module.kernel(name));
        Ok(Self { count: count?, scan: scan?, scatter: scatter? })
    }

    /// Sorts by one digit, with `blocks` thread blocks.
    pub fn step(&self, stream: &Stream, blocks: u32, arguments: &SortArgs) -> Result<()> {
        stream.launch(&self.count, blocks, SORT_THREADS, arguments)?;
        self.scan(stream, arguments.counts, arguments.totals, blocks << arguments.bits, blocks)?;
        stream.launch(&self.scatter, blocks, SORT_THREADS, arguments)
    }

    /// Scans `count` numbers in rows of `row` numbers.
    pub fn scan(&self, stream: &Stream, numbers: u64, totals: u64, count: u32, row: u32) -> Result<()> {
        let arguments = ScanArgs { numbers, totals, count, row };
        stream.launch(&self.scan, count.div_ceil(row), SORT_THREADS, &arguments)
    }
}

impl SortKernels {
    /// Loads them from the embedded PTX.
    pub fn load(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&embedded_ptx(&KERNELS))?;
        let [keys, measure, pack] =
            ["build_keys", "build_measure", "build_pack"].map(|name| module.kernel(name));
        Ok(Self { keys: keys?, sort: SortSteps::of(&module)?, measure: measure?, pack: pack? })
    }
}

/// A part of a copy.
#[derive(Clone, Copy, Debug)]
pub struct SortedImage {
    /// Its address on the device.
    pub address: u64,
    /// Its nonzeros.
    pub nnz: u32,
    /// Its bytes.
    pub bytes: u64,
}

/// The part of a copy that one of several devices keeps.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The rows whose nonzeros are all there.
    pub rows: Range<u32>,
    /// The tiles of the whole copy: those with nonzeros of these rows, and one behind if the last one ends with them.
    pub tiles: Range<u32>,
}

/// Nonzeros sorted by a mode's rows, on the device.
#[derive(Debug)]
pub struct SortedCopy {
    memory: Memory,
    /// One bit per row of the mode, set if the row has no nonzero: bit r % 32 of 32-bit word r / 32.
    pub empty: Memory,
    /// Which part of the copy this is; `None` for all of it.
    pub stretch: Option<Stretch>,
    /// The images, in order; all but the last have whole tiles.
    pub images: Vec<SortedImage>,
    /// Device memory of the images, in bytes.
    pub bytes: u64,
    /// Time of the build.
    pub seconds: BuildSeconds,
}

impl SortedCopy {
    /// The images and thread blocks of a launch with this many tiles per thread block. Images are numbered from
    /// `first_number` on, after the store's chunks.
    #[must_use]
    pub fn chunks(&self, tiles_per_block: u32, first_number: u32) -> (Vec<Chunk>, u32) {
        let (mut chunks, mut blocks) = (Vec::with_capacity(self.images.len()), 0);
        for (number, image) in (first_number..).zip(&self.images) {
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

/// Device time of each step, in seconds.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct BuildSeconds {
    /// Decoding rows.
    pub keys: f64,
    /// Sorting by each digit.
    pub sort: Vec<f64>,
    /// Measuring tiles.
    pub measure: f64,
    /// Packing them.
    pub pack: f64,
}

impl BuildSeconds {
    /// The time of all steps.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.keys + self.sort.iter().sum::<f64>() + self.measure + self.pack
    }
}

/// What copies are built from, and with.
#[derive(Clone, Copy, Debug)]
pub struct BuildInput<'a> {
    /// The device.
    pub device: &'a Arc<Device>,
    /// The kernels that sort.
    pub kernels: &'a SortKernels,
    /// The stream for all of the work.
    pub stream: &'a Stream,
    /// The store.
    pub store: &'a Store,
    /// The plan.
    pub plan: &'a CopyPlan,
    /// The chunks for which it was made: address and length of a list of [`Chunk`]s on the device, with a thread block for each tile. These are
    /// on the device and stay while this runs.
    pub chunks: (u64, u32),
}

/// Builds the copy of a plan. Of several devices, each keeps its `share` of the copy. Returns when all is done.
///
/// [`Error::Corrupt`] if a chunk holds a number out of range, if a value is not an integer although the plan says so, or if values take
/// more bytes than the manifest's range of values implies. [`Error::Device`], which says so, if there is too little memory. After either
/// error, nothing is left behind.
pub fn build(input: BuildInput<'_>, share: Option<&Share>) -> Result<SortedCopy> {
    let own;
    let (mut job, mut plan) = (BuildJob::new(input)?, input.plan);
    let (rows, positions) = job.sort(&[plan.mode], None)?;
    job.arguments.mode = narrow(plan.mode);
    (job.arguments.rows, job.arguments.positions) = (rows.address(), positions.address());
    let stretch = share.map(|share| SortedRows { rows: &rows, plan }.stretch(share)).transpose()?;
    if let Some(stretch) = &stretch {
        own = plan.of_tiles(&stretch.tiles);
        let skipped = u64::from(stretch.tiles.start) * 4 * u64::from(TILE);
        job.arguments.rows += skipped;
        job.arguments.positions += skipped;
        plan = &own;
    }
    let mut copy = job.write(plan)?;
    copy.stretch = stretch;
    copy.seconds = job.clock.read(plan.digits as usize)?;
    Ok(copy)
}

/// The error if chunks hold values outside of the range in the manifest, by which copies are planned.
pub(super) fn beyond_the_range(store: &Path) -> Error {
    Error::corrupt(store.join("manifest"), "corrupt: value min and max are not those of the nonzeros")
}

fn bytes(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

fn narrow(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

/// A copy being built. Nothing is left on the stream when one of its functions returns.
struct BuildJob<'a> {
    device: &'a Arc<Device>,
    kernels: &'a SortKernels,
    stream: &'a Stream,
    store: &'a Store,
    plan: &'a CopyPlan,
    arguments: BuildArgs,
    fault: Fault,
    /// Kept alive for its address.
    _tiles: Memory,
    clock: BuildClock<'a>,
}

impl<'a> BuildJob<'a> {
    fn new(input: BuildInput<'a>) -> Result<Self> {
        let BuildInput { device, kernels, stream, store, plan, chunks: (chunks, chunk_count) } = input;
        let tiles = device.memory(bytes(plan.tile_bytes()))?;
        let mut fault = Fault::new(device)?;
        fault.clear()?;
        let arguments = BuildArgs {
            chunks,
            tiles: tiles.address(),
            fault: fault.address(),
            chunk_count,
            nnz: plan.nnz,
            positions_end: plan.positions_end,
            order: narrow(plan.dims.len()),
            kept: (1 << plan.dims.len()) - 1,
            value_encoding: plan.values as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        let clock = BuildClock { device, stream, events: Vec::new() };
        Ok(Self { device, kernels, stream, store, plan, arguments, fault, _tiles: tiles, clock })
    }

    /// Starts `work` and waits until the device has done it, even if starting a part of it has failed. Its memory may be freed after that.
    fn run(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let stream = self.stream;
        stream.finish(|_| work(self))
    }

    /// Locates the tiles of the chunks and sorts their nonzeros by the rows of `modes`, the least significant first: returns the rows of the
    /// last one, and positions, in the new order. `next_keys` serves all modes but the first.
    fn sort(&mut self, modes: &[usize], next_keys: Option<&Kernel>) -> Result<(Memory, Memory)> {
        let plan = self.plan;
        let padded = plan.positions_end > plan.nnz;
        let digits: Vec<_> = modes.iter().map(|&mode| plan::digits_of(plan.dims[mode], padded)).collect();
        let (steps, widest) = digits.iter().fold((0, 0), |(n, w), (count, bits)| (n + count, w.max(*bits)));
        let column = || self.device.memory(4 * plan.positions_end as usize);
        let counts = self.device.memory((4 * plan.sort_blocks as usize) << widest)?;
        let totals = self.device.memory(4 << widest)?;
        let rows = [column()?, column()?];
        // The first step needs no memory for positions.
        let positions = [(steps > 1).then(column).transpose()?, Some(column()?)];
        let address = |memory: &Option<Memory>| memory.as_ref().map_or(0, Memory::address);
        let mut from = 0;
        self.run(|job| {
            job.clock.mark()?;
            for (&mode, (digits, bits)) in modes.iter().zip(digits) {
                job.arguments.mode = narrow(mode);
                (job.arguments.rows, job.arguments.positions) =
                    (rows[from % 2].address(), address(&positions[from % 2]));
                let (kernel, blocks) = match next_keys {
                    Some(next) if from > 0 => (next, plan.positions_end.div_ceil(TILE_THREADS)),
                    _ => (&job.kernels.keys, plan.source_tiles),
                };
                job.stream.launch(kernel, blocks, TILE_THREADS, &job.arguments)?;
                job.clock.mark()?;
                for digit in 0..digits {
                    let (rows_in, to) = (rows[from % 2].address(), (from + 1) % 2);
                    let arguments = SortArgs {
                        rows_in,
                        positions_in: if from == 0 { 0 } else { address(&positions[from % 2]) },
                        rows_out: rows[to].address(),
                        positions_out: address(&positions[to]),
                        counts: counts.address(),
                        totals: totals.address(),
                        nnz: plan.positions_end,
                        shift: digit * bits,
                        bits,
                        unused: 0,
                    };
                    job.kernels.sort.step(job.stream, plan.sort_blocks, &arguments)?;
                    job.clock.mark()?;
                    from += 1;
                }
            }
            Ok(())
        })?;
        let [rows, positions] =
            [rows.map(Some), positions].map(|pair| pair.into_iter().nth(from % 2).flatten());
        Ok((rows.expect("both are there"), positions.expect("the last step has written them")))
    }

    /// Writes the images of `plan`, by the rows and positions of the arguments.
    fn write(&mut self, plan: &CopyPlan) -> Result<SortedCopy> {
        let records = self.device.memory(bytes(plan.record_bytes()))?;
        let offsets = self.device.memory(bytes(4 * u64::from(plan.tiles)))?;
        let mut empty = self.device.memory(bytes(plan.empty_bytes()))?;
        self.run(|job| job.stream.fill(&mut empty, 0xff))?;
        self.arguments = BuildArgs {
            records: records.address(),
            offsets: offsets.address(),
            empty: empty.address(),
            nnz: plan.nnz,
            image_tiles: plan.image_tiles,
            ..self.arguments
        };
        let units = self.measure(plan)?;
        let (copy, list) = self.allocate(plan, &units, empty)?;
        self.arguments.images = list.address();
        self.pack(plan)?;
        Ok(copy)
    }

    /// Writes the records of the new tiles. Returns the length of each image's columns, in units of 64 bytes.
    fn measure(&mut self, plan: &CopyPlan) -> Result<Vec<u32>> {
        let mut units = vec![0; plan.images() as usize];
        let totals = self.device.memory(size_of_val(&units[..]))?;
        self.run(|job| {
            job.clock.mark()?;
            job.stream.launch(&job.kernels.measure, plan.tiles, TILE_THREADS, &job.arguments)?;
            let (sort, offsets) = (&job.kernels.sort, job.arguments.offsets);
            sort.scan(job.stream, offsets, totals.address(), plan.tiles, plan.image_tiles)?;
            job.clock.mark()
        })?;
        self.check()?;
        totals.read(&mut units)?;
        Ok(units)
    }

    /// Allocates the images, with their headers and shapes, and a list of their addresses.
    fn allocate(&mut self, plan: &CopyPlan, units: &[u32], empty: Memory) -> Result<(SortedCopy, Memory)> {
        let each = || (0..plan.images()).zip(units.iter().map(|&u| u64::from(u)));
        let lengths = || each().map(|(number, units)| plan.image_bytes(number, units));
        let all = lengths().sum();
        // Indices are inside the dims, so only values can be wider than planned.
        if all > plan.result_bytes_max || lengths().any(|bytes| bytes > plan.image_bytes_max) {
            return Err(beyond_the_range(self.store.path()));
        }
        let mut memory = self.device.memory(bytes(all))?;
        let mut list = self.device.memory(size_of::<u64>() * units.len())?;
        // Gaps between sections hold zeros.
        self.run(|job| job.stream.fill(&mut memory, 0))?;
        let dims: Vec<u8> = plan.dims.iter().flat_map(|d| d.to_le_bytes()).collect();
        let (mut images, mut at) = (Vec::with_capacity(units.len()), 0);
        for (number, units) in each() {
            let mut header = plan.header(number, units);
            header.number = number;
            header.store_id = self.store.id();
            header.first_nonzero = u64::from(number) * u64::from(plan.image_tiles * TILE);
            memory.write_at(bytes(at), &[&header.encode()[..], &dims].concat())?;
            let bytes = plan.image_bytes(number, units);
            images.push(SortedImage { address: memory.address() + at, nnz: header.nnz, bytes });
            at += bytes;
        }
        let addresses: Vec<u64> = images.iter().map(|image| image.address).collect();
        list.write(&addresses)?;
        let seconds = BuildSeconds::default();
        Ok((SortedCopy { memory, empty, stretch: None, images, bytes: all, seconds }, list))
    }

    /// Fills the images.
    fn pack(&mut self, plan: &CopyPlan) -> Result<()> {
        self.run(|job| {
            job.clock.mark()?;
            job.stream.launch(&job.kernels.pack, plan.tiles, TILE_THREADS, &job.arguments)?;
            job.clock.mark()
        })?;
        self.check()
    }

    /// Fails if a chunk held a number out of range.
    fn check(&self) -> Result<()> {
        self.fault.chunk()?.map_or(Ok(()), |number| Err(out_of_range(self.store, number)))
    }
}

/// The rows of a copy's nonzeros, in order, on the device.
struct SortedRows<'a> {
    rows: &'a Memory,
    plan: &'a CopyPlan,
}

impl SortedRows<'_> {
    /// What a device keeps for its share.
    fn stretch(&self, share: &Share) -> Result<Stretch> {
        let rows = self.cut(share, share.from)?..self.cut(share, share.to)?;
        let last = self.plan.tiles - 1;
        // Without rows, one tile, so that nothing behind this has to know.
        let first = (self.first_of(rows.start)? / TILE).min(last);
        Ok(Stretch { tiles: first..(self.first_of(rows.end)? / TILE).min(last) + 1, rows })
    }

    /// The row before which this fraction of the cost lies: as near as rows allow to where a tile begins.
    fn cut(&self, share: &Share, fraction: f64) -> Result<u32> {
        let (plan, cost) = (self.plan, share.cost);
        let wanted = fraction * cost.before(plan.rows, plan.nnz);
        if fraction <= 0.0 || fraction >= 1.0 {
            return Ok(if fraction <= 0.0 { 0 } else { plan.rows });
        }
        let tile = first(plan.tiles, |tile| Ok(cost.before(self.row(tile * TILE)?, tile * TILE) >= wanted))?;
        if tile == plan.tiles {
            return Ok(plan.rows);
        }
        let row = self.row(tile * TILE)?;
        let distance = |row| Ok::<_, Error>((cost.before(row, self.first_of(row)?) - wanted).abs());
        Ok(if distance(row + 1)? < distance(row)? { row + 1 } else { row })
    }

    /// The number of nonzeros before the first one of `row`.
    fn first_of(&self, row: u32) -> Result<u32> {
        first(self.plan.nnz, |nonzero| Ok(self.row(nonzero)? >= row))
    }

    fn row(&self, nonzero: u32) -> Result<u32> {
        let mut row = [0];
        self.rows.read_at(nonzero as usize * size_of::<u32>(), &mut row)?;
        Ok(row[0])
    }
}

/// The first of `count` numbers that `is_behind`, as all after it are; `count` if none is.
fn first(count: u32, is_behind: impl Fn(u32) -> Result<bool>) -> Result<u32> {
    let (mut from, mut to) = (0, count);
    while from < to {
        let middle = from + (to - from) / 2;
        if is_behind(middle)? { to = middle } else { from = middle + 1 }
    }
    Ok(from)
}

/// Events between the steps.
struct BuildClock<'a> {
    device: &'a Arc<Device>,
    stream: &'a Stream,
    events: Vec<Event>,
}

impl BuildClock<'_> {
    fn mark(&mut self) -> Result<()> {
        let event = self.device.event(true)?;
        event.record(self.stream)?;
        self.events.push(event);
        Ok(())
    }

    /// Seconds from the first mark to the last.
    fn all(&self) -> Result<f64> {
        match &self.events[..] {
            [first, .., last] => last.seconds_since(first),
            _ => Ok(0.0),
        }
    }

    /// Seconds between the marks; `digits` of them are around sorts. The host works between steps.
    fn read(&self, digits: usize) -> Result<BuildSeconds> {
        let after = |i: usize| self.events[i + 1].seconds_since(&self.events[i]);
        let sort = (1..=digits).map(after).collect::<Result<_>>()?;
        Ok(BuildSeconds { keys: after(0)?, sort, measure: after(digits + 2)?, pack: after(digits + 4)? })
    }
}
