//! SpTTM on a GPU (kernels/ttm.cuh). The pass appends the nonzeros of every chunk to columns on the device, from trees and segments as
//! they lie, unless trees may have slots without a nonzero. There they are sorted by
//! fiber, unless the store has that order; then fibers are computed in windows of consecutive tiles. A window is copied back and
//! handed over while the next one is computed.
//!
//! **Several passes.** If the device does not hold all nonzeros, a first pass counts them (`super::ranges`), and each later pass takes
//! those of a range of fibers. Fibers ascend, so the ranges' results follow one another.
//!
//! **Order of additions.** The host's ([`super`]), so bits are the same for any chunks, lanes, windows and passes, and as on the host unless
//! coordinates repeat: these are added one by one, not first to each other. Tiles are counted from the first of all nonzeros: a range
//! leaves as many places of its first tile empty as nonzeros of that tile belong to the range before.

use super::ranges::{Bins, Cut, KeyBits, bins_bits};
use super::{FiberSink, is_in_order};
use crate::backend::cuda::abi::{AppendArgs, MttkrpArgs, RangeArgs, TILE, TtmArgs};
use crate::backend::cuda::driver::{Device, Download, Event, Memory, Pinned, Priority, Stream};
use crate::backend::cuda::expand::layouts_there;
use crate::backend::cuda::fault::Fault;
use crate::backend::cuda::kernels::KernelLayout;
use crate::backend::cuda::ttm::{SortMemory, TtmKernels, scan_rows};
use crate::backend::cuda::{DeviceOp, Launch};
use crate::backend::plan::{DevicePlan, Gathers, Operation, Reads};
use crate::dense::{MatrixRef, Real};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::op::mttkrp::cuda::chunk_arguments;
use crate::store::{Manifest, Store};
use crate::sys::Sys;
use bytemuck::Pod;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a window's fibers, and of what its tiles leave to each other, unless a single tile takes more.
pub const WINDOW_BYTES: u64 = 16 << 20;
/// Windows at a time: one is computed and one is copied back, while others wait to be handed over, so that the link always has work.
const WINDOWS: usize = 4;
/// Fibers of a piece that is handed over: threads share a window's pieces.
const FIBERS_TOGETHER: usize = 4096;

/// What there is of everything.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    order: u64,
    /// Nonzeros at a time, and their tiles.
    nnz: u32,
    tiles: u32,
    rank: u64,
    /// Bytes of a number.
    element: u64,
    /// Tiles and fibers of a window, at most.
    window_tiles: u32,
    window_fibers: u64,
    is_in_order: bool,
}

/// Nonzeros at a time, at most: kernels count them, with tiles that are partly empty, in 32 bits.
const NONZEROS: u32 = u32::MAX - 4 * TILE;

impl Sizes {
    /// With this many nonzeros at a time.
    fn new<T: Real>(manifest: &Manifest, mode: usize, rank: usize, nnz: u64, window_bytes: u64) -> Self {
        let (order, rank, element) = (manifest.shape.order() as u64, rank as u64, size_of::<T>() as u64);
        let nnz = u32::try_from(nnz).unwrap_or(u32::MAX).min(NONZEROS);
        // A range begins inside a tile.
        let tiles = nnz.div_ceil(TILE) + u32::from(u64::from(nnz) < manifest.nnz);
        let fiber = 4 * (order - 1) + element * rank;
        let fibers = (window_bytes / fiber).max(TILE.into()).min(nnz.into());
        let fitting = u32::try_from(window_bytes / (16 * rank)).unwrap_or(u32::MAX);
        Self {
            order,
            nnz,
            tiles,
            rank,
            element,
            window_tiles: fitting.clamp(1, tiles.max(1)),
            window_fibers: fibers.max(1),
            is_in_order: is_in_order(manifest, mode),
        }
    }

    /// Bytes of a window's coordinates and rows.
    fn window_bytes(&self) -> [u64; 2] {
        [4 * (self.order - 1), self.element * self.rank].map(|bytes| bytes * self.window_fibers)
    }

    fn parts_bytes(&self) -> u64 {
        16 * self.rank * u64::from(self.window_tiles)
    }

    /// Bytes of device memory for a tile of nonzeros.
    fn tile_bytes(&self) -> u64 {
        let columns = 4 * self.order + self.element;
        let sorting = if self.is_in_order { 0 } else { SortMemory::BYTES_OF_ONE };
        (columns + sorting) * u64::from(TILE) + u64::from(TILE / 8) + 4
    }

    /// Bytes of device memory besides.
    fn fixed_bytes(&self, multiprocessors: u32, rows: u64) -> u64 {
        let sorting = if self.is_in_order { 0 } else { SortMemory::fixed_bytes(multiprocessors, self.nnz) };
        let fibers = 4 + 4 * (u64::from(scan_rows(self.tiles)) + 1);
        let windows = self.window_bytes().iter().sum::<u64>() * WINDOWS as u64;
        let sums = self.parts_bytes() + 16 * self.rank;
        let matrix = rows.saturating_mul(self.rank * self.element);
        (sorting + fibers + windows + sums).saturating_add(matrix)
    }
}

/// The device memory and work of SpTTM along `mode`, from 0, with a matrix of `rank` columns, on a device of this many multiprocessors.
#[must_use]
pub fn operation<T: Real>(manifest: &Manifest, mode: usize, rank: usize, multiprocessors: u32) -> Operation {
    let rows = manifest.shape.dims()[mode].into();
    let sizes = Sizes::new::<T>(manifest, mode, rank, manifest.nnz, WINDOW_BYTES);
    Operation {
        bytes: sizes.fixed_bytes(multiprocessors, rows),
        result_bytes: None,
        modes: vec![mode],
        rank,
        factor_columns: None,
        precision: T::PRECISION,
        sorted_bytes: |_, _| 0,
        takes_fibers: false,
        alternating: false,
        reads: reads(manifest),
        share: None,
        gathers: Some(Gathers {
            nnz: manifest.nnz,
            most: NONZEROS.into(),
            tile_bytes: sizes.tile_bytes(),
            ranges_bytes: counts_bytes(manifest, mode) + 4 * (u64::from(longest(manifest)) + 1),
        }),
    }
}

/// What kernels read of trees and segments. A slot of a tree is the place of a nonzero, if all have one.
fn reads(manifest: &Manifest) -> Reads {
    let formats = || manifest.partitions.iter().map(|partition| &partition.format);
    let can_lie = formats().any(|format| matches!(format.layout(), Layout::TREE | Layout::SEGMENTS));
    let is_padded = formats().any(|format| format.slots_max(manifest.nnz) > manifest.nnz);
    if can_lie && !is_padded { Reads::AsTheyLie } else { Reads::Nonzeros }
}

/// Bytes of the counts of nonzeros.
fn counts_bytes(manifest: &Manifest, mode: usize) -> u64 {
    8 << bins_bits(&KeyBits::new(&manifest.shape, mode), manifest.nnz)
}

/// Bytes of all that the host holds at a time: those of a bin that is divided, and of bins inside it.
fn host_counts_bytes(manifest: &Manifest, mode: usize) -> u64 {
    let key = KeyBits::new(&manifest.shape, mode);
    let divided = key.all.div_ceil(bins_bits(&key, manifest.nnz).max(1));
    u64::from(divided.max(1)) * counts_bytes(manifest, mode)
}

/// Tiles of the longest chunk.
fn longest(manifest: &Manifest) -> u32 {
    let nnz = manifest.chunks.iter().map(|chunk| chunk.nnz).max();
    u32::try_from(nnz.unwrap_or(0).div_ceil(TILE.into())).unwrap_or(u32::MAX)
}

/// Bytes of host memory, without the matrix: windows that are copied back, pinned, and handed over there; how many fibers end before each
/// tile, or how many nonzeros are in each bin.
#[must_use]
pub fn beside_device_bytes<T: Real>(manifest: &Manifest, mode: usize, rank: usize, plan: &DevicePlan) -> u64 {
    let nonzeros = plan.ranges.as_ref().map(|ranges| ranges.nonzeros);
    let counts = nonzeros.map_or(0, |_| host_counts_bytes(manifest, mode));
    let sizes = Sizes::new::<T>(manifest, mode, rank, nonzeros.unwrap_or(manifest.nnz), WINDOW_BYTES);
    let ended = 4 * (u64::from(sizes.tiles) + 1);
    sizes.window_bytes().iter().sum::<u64>() * WINDOWS as u64 + ended.max(counts)
}

/// Buffers of a window.
#[derive(Debug)]
struct Window {
    /// Coordinates and rows, on the device and once they are copied.
    memory: [Memory; 2],
    arrived: Option<[Pinned; 2]>,
    computed: Event,
    copied: [Arc<Event>; 2],
}

/// What the next pass does.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// Appends all nonzeros.
    All,
    /// Counts nonzeros.
    Count(Bins),
    /// Appends those of the range with this number, which `nnz` others precede.
    Take { number: usize, before: u64 },
    /// There is none.
    Ended,
}

/// Nonzeros that are taken in ranges.
#[derive(Debug)]
struct Ranges {
    cut: Cut,
    arguments: RangeArgs,
    bins: Memory,
    taken: Memory,
    _places: Memory,
}

/// The operation.
#[derive(Debug)]
pub struct DeviceTtm<T> {
    /// Those of each layout that chunks have. What follows on the nonzeros is the same in all.
    kernels: Vec<(KernelLayout, TtmKernels)>,
    reads: Reads,
    /// The product modes of each chunk, if it is segments.
    products: Vec<u32>,
    sizes: Sizes,
    append: AppendArgs,
    arguments: TtmArgs,
    /// Where the first nonzero of each chunk goes.
    firsts: Vec<u64>,
    /// Modes by which nonzeros are sorted, the least significant first, with their bits.
    keys: Vec<(usize, u32)>,
    fault: Fault,
    turn: Turn,
    /// `None` if the device holds all nonzeros.
    ranges: Option<Ranges>,
    /// The plan, for messages.
    plan: DevicePlan,
    sorting: Option<SortMemory>,
    before: Memory,
    totals: Memory,
    carries: [Memory; 2],
    windows: Vec<Window>,
    /// Kept for their addresses.
    _memory: Vec<Memory>,
    device: Arc<Device>,
    sys: Sys,
    marker: std::marker::PhantomData<T>,
}

fn bytes(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

impl<T: Real + Pod> DeviceTtm<T> {
    /// SpTTM of `store` along `mode`, from 0, by `plan`. `matrix` has a row for each index of the mode. Windows take about
    /// `window_bytes`, [`WINDOW_BYTES`] except in tests.
    pub fn new(
        device: &Arc<Device>,
        store: &Store,
        mode: usize,
        matrix: MatrixRef<'_, T>,
        plan: &DevicePlan,
        window_bytes: u64,
    ) -> Result<Self> {
        let (manifest, sys) = (store.manifest(), store.sys());
        let (shape, order) = (&manifest.shape, manifest.shape.order());
        let nonzeros = plan.ranges.as_ref().map_or(manifest.nnz, |ranges| ranges.nonzeros);
        let sizes = Sizes::new::<T>(manifest, mode, matrix.columns(), nonzeros, window_bytes);
        let memory = |size: u64| device.memory(bytes(size));
        let (nnz, tiles) = (u64::from(sizes.nnz), u64::from(sizes.tiles));
        let mut held = Vec::with_capacity(order + 4);
        let mut hold = |memory: Memory| {
            held.push(memory);
            held.last().map_or(0, Memory::address)
        };
        let fault = Fault::new(device)?;
        let mut arguments = TtmArgs {
            nnz: sizes.nnz,
            tiles: sizes.tiles,
            order: u32::try_from(order).unwrap_or(0),
            mode: u32::try_from(mode).unwrap_or(0),
            rank: u32::try_from(sizes.rank).unwrap_or(u32::MAX),
            lanes: sizes.rank.next_power_of_two().trailing_zeros().min(5),
            ..TtmArgs::default()
        };
        for column in &mut arguments.columns[..order] {
            *column = hold(memory(4 * nnz)?);
        }
        arguments.values = hold(memory(sizes.element * nnz)?);
        let mut on_device = memory(size_of_val(matrix.data()) as u64)?;
        on_device.write(matrix.data())?;
        arguments.matrix = hold(on_device);
        arguments.ends = hold(memory(u64::from(TILE / 8) * tiles)?);
        arguments.parts = hold(memory(sizes.parts_bytes())?);
        let before = memory(4 * (tiles + 1))?;
        let totals = memory(4 * (u64::from(scan_rows(sizes.tiles)) + 1))?;
        (arguments.before, arguments.totals) = (before.address(), totals.address());
        let chunk = MttkrpArgs { fault: fault.address(), ..chunk_arguments(shape)? };
        let append = AppendArgs { chunk, columns: arguments.columns, values: arguments.values, first: 0 };
        let ranges = plan.ranges.is_some().then(|| Ranges::new(device, manifest, mode, (append, sizes.nnz)));
        let ranges = ranges.transpose()?;
        let firsts = manifest.chunks.iter().scan(0, |end, chunk| {
            *end += chunk.nnz;
            Some(*end - chunk.nnz)
        });
        let window = |_| {
            let [coordinates, rows] = sizes.window_bytes();
            let event = || device.event(false).map(Arc::new);
            Ok(Window {
                memory: [memory(coordinates)?, memory(rows)?],
                arrived: Some([device.pinned(sys, bytes(coordinates))?, device.pinned(sys, bytes(rows))?]),
                computed: device.event(false)?,
                copied: [event()?, event()?],
            })
        };
        // Inside a partition, nonzeros that differ in the mode alone ascend: linear indices do.
        let least = (manifest.partitions.len() > 1).then_some(mode);
        let keys = least.into_iter().chain((0..order).rev().filter(|&m| m != mode));
        let reads = plan.request.operation.reads;
        let kernels = |layout| Ok((layout, TtmKernels::load(device, T::PRECISION, layout)?));
        let format = |number| &manifest.partitions[store.part_of(number)].format;
        Ok(Self {
            kernels: layouts_there(store, reads).into_iter().map(kernels).collect::<Result<_>>()?,
            reads,
            products: (0..manifest.chunks.len()).map(|number| format(number).product_modes()).collect(),
            sizes,
            append,
            arguments,
            firsts: firsts.collect(),
            keys: keys.map(|mode| (mode, shape.bits(mode))).collect(),
            fault,
            turn: ranges.as_ref().map_or(Turn::All, Ranges::first),
            ranges,
            plan: plan.clone(),
            sorting: (!sizes.is_in_order).then(|| SortMemory::new(device, sizes.nnz)).transpose()?,
            before,
            totals,
            carries: [memory(8 * sizes.rank)?, memory(8 * sizes.rank)?],
            windows: (0..WINDOWS).map(window).collect::<Result<_>>()?,
            _memory: held,
            device: Arc::clone(device),
            sys: sys.clone(),
            marker: std::marker::PhantomData,
        })
    }

    /// Works on what the pass has brought, then turns to the next pass. Fibers go to `sink`, in order; without one they are counted.
    /// Returns their number.
    pub fn finish(&mut self, sink: Option<&mut FiberSink<'_, T>>) -> Result<u64> {
        let (Some(ranges), turn) = (&mut self.ranges, self.turn) else { return self.compute(sink) };
        match turn {
            Turn::Count(_) => {
                self.turn = ranges.counted(&self.sys)?.map_err(|nonzeros| self.does_not_fit(nonzeros))?;
                Ok(0)
            }
            Turn::Take { number, before } => {
                let nnz = ranges.cut.ranges()[number].nnz;
                ranges.check_taken(nnz)?;
                #[expect(clippy::cast_possible_truncation, reason = "less than a tile")]
                let skip = (before % u64::from(TILE)) as u32;
                self.arguments.skip = skip;
                self.arguments.nnz = skip + u32::try_from(nnz).unwrap_or(u32::MAX);
                self.arguments.tiles = self.arguments.nnz.div_ceil(TILE);
                self.turn = ranges.take(number + 1, before + nnz);
                self.compute(sink)
            }
            Turn::All | Turn::Ended => Ok(0),
        }
    }

    /// Whether there is another pass.
    #[must_use]
    pub fn needs_pass(&self) -> bool {
        matches!(self.turn, Turn::Count(_) | Turn::Take { .. })
    }

    /// The error for more nonzeros that stay together than there is room for.
    fn does_not_fit(&self, nonzeros: u64) -> Error {
        let most = u64::from(NONZEROS);
        if nonzeros > most {
            return Error::request(format!(
                "{nonzeros} nonzeros of a fiber are sorted at a time, at most {most} on a GPU: take `Device::Cpu`"
            ));
        }
        Error::request(format!(
            "needs {} of device memory: {nonzeros} nonzeros of a fiber are sorted at a time, and there is room for {}; take more of it or \
             `Device::Cpu`",
            self.plan.enough_for(nonzeros),
            self.sizes.nnz,
        ))
    }

    /// Sorts the nonzeros on the device and computes.
    fn compute(&mut self, sink: Option<&mut FiberSink<'_, T>>) -> Result<u64> {
        if self.arguments.nnz == 0 {
            return Ok(0);
        }
        let (computing, copying) =
            (self.device.stream(Priority::Highest)?, self.device.stream(Priority::Highest)?);
        let ended = self.sort(&computing)?;
        if let Some(sink) = sink {
            // Where one cannot be started, what is under way ends first.
            computing.finish(|computing| {
                copying.finish(|copying| self.compute_windows(&ended, computing, copying, sink))
            })?;
        }
        Ok(ended[self.arguments.tiles as usize].into())
    }

    /// Computes windows one after another and hands their fibers over. `ended` counts fibers before each tile.
    fn compute_windows(
        &mut self,
        ended: &[u32],
        computing: &Stream,
        copying: &Stream,
        sink: &mut FiberSink<'_, T>,
    ) -> Result<()> {
        let mut on_the_way = VecDeque::with_capacity(WINDOWS);
        let (mut first_tile, mut number, mut sent) = (0, 0, 0);
        while first_tile < self.arguments.tiles {
            self.sys.check_cancelled()?;
            let end_tile = self.end_of_window(ended, first_tile);
            let (at, carry) = (sent % WINDOWS, number % self.carries.len());
            if on_the_way.len() == WINDOWS {
                self.hand_over(&mut on_the_way, sink)?;
            }
            let window = &self.windows[at];
            (self.arguments.first_tile, self.arguments.end_tile) = (first_tile, end_tile);
            self.arguments.first_fiber = ended[first_tile as usize];
            self.arguments.coordinates = window.memory[0].address();
            self.arguments.results = window.memory[1].address();
            self.arguments.carry_in = self.carries[carry].address();
            self.arguments.carry_out = self.carries[1 - carry].address();
            self.kernels[0].1.window(computing, &self.arguments)?;
            let fibers = ended[end_tile as usize] - ended[first_tile as usize];
            if fibers > 0 {
                window.computed.record(computing)?;
                copying.wait(&window.computed)?;
                on_the_way.push_back((at, self.send(at, fibers, copying)?));
                sent += 1;
            }
            (first_tile, number) = (end_tile, number + 1);
        }
        while !on_the_way.is_empty() {
            self.hand_over(&mut on_the_way, sink)?;
        }
        Ok(())
    }

    /// Sorts nonzeros by fiber. Returns how many fibers end before each tile, and how many there are.
    fn sort(&mut self, stream: &Stream) -> Result<Vec<u32>> {
        let columns: Vec<(u64, u32)> =
            self.keys.iter().map(|&(mode, bits)| (self.arguments.columns[mode], bits)).collect();
        let TtmArgs { tiles, nnz, skip, .. } = self.arguments;
        let nnz = nnz - skip;
        stream.finish(|stream| {
            if let Some(memory) = &self.sorting {
                self.arguments.positions = self.kernels[0].1.sort(stream, &columns, nnz, memory)?;
            }
            self.kernels[0].1.number(stream, &self.arguments)
        })?;
        let mut ended: Vec<u32> = self.sys.vec(0, tiles as usize + 1)?;
        let mut totals = vec![0; scan_rows(tiles) as usize];
        self.before.read(&mut ended)?;
        self.totals.read(&mut totals)?;
        let rows = ended.chunks_mut(crate::backend::cuda::abi::SCAN_ROW as usize);
        rows.zip(&totals).for_each(|(row, total)| row.iter_mut().for_each(|count| *count += total));
        Ok(ended)
    }

    /// The tile behind the last one of the window that begins at `first`.
    fn end_of_window(&self, ended: &[u32], first: u32) -> u32 {
        let most = (first + self.sizes.window_tiles).min(self.arguments.tiles);
        let fits =
            |&end: &u32| u64::from(ended[end as usize] - ended[first as usize]) <= self.sizes.window_fibers;
        // Fibers of one tile always fit.
        let (mut low, mut high) = (first + 1, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(&middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Starts the way back of the fibers of window `at`.
    fn send(&mut self, at: usize, fibers: u32, stream: &Stream) -> Result<(u32, [Download; 2])> {
        let each = self.sizes.window_bytes().map(|all| bytes(all / self.sizes.window_fibers));
        let window = &mut self.windows[at];
        let [coordinates, rows] = window.arrived.take().expect("a window has been handed over");
        let copy = |which: usize, to| {
            let length = each[which] * fibers as usize;
            stream.download(&window.memory[which], 0, length, to, &window.copied[which])
        };
        Ok((fibers, [copy(0, coordinates)?, copy(1, rows)?]))
    }

    /// Hands over the fibers of the first window, once they have come.
    fn hand_over(
        &mut self,
        on_the_way: &mut VecDeque<(usize, (u32, [Download; 2]))>,
        sink: &mut FiberSink<'_, T>,
    ) -> Result<()> {
        let Some((at, (fibers, [coordinates, rows]))) = on_the_way.pop_front() else { return Ok(()) };
        let arrived = [coordinates.finish()?, rows.finish()?];
        let (others, rank) = (bytes(self.sizes.order - 1), bytes(self.sizes.rank));
        let coordinates: &[u32] = bytemuck::cast_slice(&arrived[0].as_ref()[..4 * others * fibers as usize]);
        let values: &[u8] = &arrived[1].as_ref()[..size_of::<T>() * rank * fibers as usize];
        let values: &[T] = bytemuck::cast_slice(values);
        let values = values.chunks(rank * FIBERS_TOGETHER);
        let pieces: Vec<_> = coordinates.chunks(others * FIBERS_TOGETHER).zip(values).collect();
        let taken = sink(&pieces);
        self.windows[at].arrived = Some(arrived);
        taken
    }
}

impl Ranges {
    fn new(
        device: &Arc<Device>,
        manifest: &Manifest,
        mode: usize,
        (append, room): (AppendArgs, u32),
    ) -> Result<Self> {
        let key = KeyBits::new(&manifest.shape, mode);
        let bins = device.memory(bytes(counts_bytes(manifest, mode)))?;
        let places = device.memory(4 * longest(manifest) as usize)?;
        let taken = device.memory(size_of::<u32>())?;
        let arguments = RangeArgs {
            append,
            bins: bins.address(),
            places: places.address(),
            taken: taken.address(),
            bits: key.bits,
            dropped: key.dropped,
            room,
            ..RangeArgs::default()
        };
        let cut = Cut::new(key.all, bins_bits(&key, manifest.nnz), room.into());
        Ok(Self { cut, arguments, bins, taken, _places: places })
    }

    /// The first pass.
    fn first(&self) -> Turn {
        self.cut.bins().map_or(Turn::Ended, Turn::Count)
    }

    /// The pass of a range, which `before` nonzeros precede.
    fn take(&self, number: usize, before: u64) -> Turn {
        if number < self.cut.ranges().len() { Turn::Take { number, before } } else { Turn::Ended }
    }

    /// Takes the counts of a pass. Returns the next pass, or the nonzeros of a key that do not fit.
    fn counted(&mut self, sys: &Sys) -> Result<std::result::Result<Turn, u64>> {
        let mut counts: Vec<u64> = sys.vec(0, bytes(self.bins.bytes() / 8))?;
        self.bins.read(&mut counts)?;
        let put = self.cut.put(counts);
        Ok(put.map(|()| self.cut.bins().map_or_else(|| self.take(0, 0), Turn::Count)))
    }

    /// An error unless a range has the nonzeros that were counted.
    fn check_taken(&self, nnz: u64) -> Result<()> {
        let mut taken = [0u32];
        self.taken.read(&mut taken)?;
        if u64::from(taken[0]) == nnz {
            return Ok(());
        }
        Err(Error::request("the store has changed since its nonzeros were counted; run again"))
    }
}

impl<T: Real + Pod> DeviceOp for DeviceTtm<T> {
    fn as_they_lie(&self) -> bool {
        self.reads == Reads::AsTheyLie
    }

    fn in_order(&self) -> bool {
        self.ranges.is_some()
    }

    fn needs(&self, number: usize) -> bool {
        let (Some(ranges), Turn::Take { number: range, before }) = (&self.ranges, self.turn) else {
            return true;
        };
        // If fibers come in the store's order, so do ranges.
        let end = self.firsts.get(number + 1).copied().unwrap_or(u64::MAX);
        let ends = before + ranges.cut.ranges()[range].nnz;
        !self.sizes.is_in_order || (self.firsts[number] < ends && before < end)
    }

    fn begin(&mut self, _part: usize, _empty: Option<&Memory>, stream: &Stream) -> Result<()> {
        if let Some(ranges) = &mut self.ranges {
            match self.turn {
                Turn::Count(_) => stream.fill(&mut ranges.bins, 0)?,
                _ => stream.fill(&mut ranges.taken, 0)?,
            }
        }
        self.fault.clear()
    }

    fn launch(&mut self, _parts: &[usize], stream: &Stream, work: &Launch) -> Result<usize> {
        let first = self.firsts[work.one.number as usize];
        let product = self.products[work.one.number as usize];
        let chunk = MttkrpArgs { one: work.one, product, ..self.append.chunk };
        let of_layout = self.kernels.iter().find(|(layout, _)| *layout == work.layout);
        let (_, kernels) = of_layout.expect("kernels for each layout of the store");
        let append = AppendArgs { chunk, first, ..self.append };
        let Some(ranges) = &self.ranges else {
            kernels.append(stream, work.blocks, &append)?;
            return Ok(0);
        };
        let arguments = RangeArgs { append, tiles: work.blocks, ..ranges.arguments };
        match self.turn {
            Turn::Count(Bins { low, high, shift }) => {
                kernels.count(stream, &RangeArgs { low, high, shift, ..arguments })?;
            }
            Turn::Take { number, .. } => {
                let range = ranges.cut.ranges()[number];
                kernels.take(stream, &RangeArgs { low: range.low, high: range.high, ..arguments })?;
            }
            Turn::All | Turn::Ended => {}
        }
        Ok(0)
    }

    fn bytes_per_nonzero(&self) -> f64 {
        (4 * self.sizes.order + self.sizes.element) as f64
    }

    fn damaged_chunk(&self) -> Result<Option<u32>> {
        self.fault.chunk()
    }
}
