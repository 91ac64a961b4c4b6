//! Mode-sorted copies: the store's nonzeros sorted for each mode by row blocks, and kept between passes. Every row has
//! one writer and is in its cache when its nonzeros arrive, so threads wait neither for each other nor for rows that
//! another thread wrote.
//!
//! The first pass collects the nonzeros ([`Gathered`]). At its end they are sorted ([`ModeSorted::build`]); later
//! passes need neither chunks nor decoding. A row block's nonzeros are cut into runs of one row each ([`RowRun`])
//! wherever the mode's [`Strategy`] begins a new sum, so results have the same bits as those of passes over chunks.
//! Within a row block, runs of modes with slots or copies follow the groups, whose nonzeros are close to each other in
//! all modes; other runs are sorted by row. A short mode's row has a sum in each copy meanwhile, in the thread's [`Room`].
//!
//! **Segments.** Row blocks end where segments of [`segment_rows`] end. A caller that needs each row of a result once ([`TakeSums`]) gets
//! it a segment at a time, while it is in a core's cache; the whole result is then neither written to memory nor read from it.
//!
//! **Hot rows.** A row with more nonzeros than a thread's share is a row block of its own, which all threads sort. They also compute it together: first
//! the sums of its runs that start at zero, which are then added to the row in order.

use super::GROUP_NNZ;
use super::group::{COPIES, Strategy};
use super::kernel::{self, PastCaches, RowRun, RunList, Single, prefetch};
use super::lists::{CACHED_BYTES, Inputs, PIECE_NNZ, STRETCH_NNZ};
use super::rows::{AHEAD, OwnRows};
use crate::backend::host::Tiles;
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::shape::ORDER_MAX;
use crate::sys::sync::{Mutex, MutexGuard};
use crate::sys::{PageBuf, Sys};
use rayon::prelude::*;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most bytes of a segment's result rows. They fit a core's cache beside rows of factors.
const SEGMENT_BYTES: usize = 512 << 10;
/// The most rows in a segment.
const ROWS_MAX: usize = 1 << 12;
/// The most nonzeros in a block, except that of a single row. The more a block has, the more often it meets a row of another mode again
/// while a core's cache has it.
const BLOCK_NNZ_MAX: usize = 1 << 20;
/// Bytes of a shelf without its last block. Threads populate the pages of different shelves in parallel.
const SHELF_BYTES: usize = 16 << 20;
/// The most and the fewest nonzeros of a sheet. Sheets consist of whole groups.
const SHEET_NNZ_MAX: usize = 1 << 18;
const SHEET_NNZ_MIN: usize = GROUP_NNZ;
/// About as many parts for each thread, where all share nonzeros that are sorted.
const PARTS: usize = 4;
/// A thread takes this fraction of the limit for hot rows at a time.
const HOT_SHARES: usize = 4;
/// Fewer nonzeros than this are not worth sharing.
const BLOCK_NNZ: usize = 1 << 13;
/// A row is hot if it has more nonzeros than one of this many shares per thread.
const SHARES: usize = 8;
/// Rows in the cache in which a thread counts.
const COUNTED: usize = 512;
/// The number of groups whose runs are stored together in a block of a mode with slots or copies.
const WINDOW: usize = 4;

/// Rows of a segment of results with `rank` columns: a power of two.
#[must_use]
pub fn segment_rows(rank: usize) -> usize {
    let rows = (SEGMENT_BYTES / (8 * rank)).clamp(1, ROWS_MAX);
    1 << rows.ilog2()
}

/// Takes the sums of a mode, a segment at a time.
pub trait TakeSums<T>: Debug + Send + Sync {
    /// `sums` are those of all rows of a segment, `factor` the same rows of the mode's factor, which it may change; `filled` has a bit for
    /// each row, set if it has nonzeros. Threads take different segments at once.
    fn take(&self, segment: usize, sums: &mut [f64], filled: &[u64], factor: &mut [T]);
}

/// The most rows in a row block of a short mode: each has sums in [`COPIES`] copies.
fn copied_rows(rank: usize) -> usize {
    (segment_rows(rank) / COPIES).max(1)
}

/// What a thread needs to compute blocks.
#[derive(Debug)]
struct Room {
    /// The sums of a segment, and which of its rows have nonzeros.
    sums: Vec<f64>,
    filled: Vec<u64>,
    /// The copies of a short mode's block.
    copies: Vec<f64>,
}

/// That of all threads, kept between passes.
#[derive(Debug)]
pub struct Rooms(Vec<Mutex<Room>>);

impl Rooms {
    /// For passes on the current pool, with at most `rank` columns.
    pub fn new(sys: &Sys, rank: usize) -> Result<Self> {
        let (rows, copied) = (segment_rows(rank), COPIES * copied_rows(rank));
        let room = |_| {
            let (sums, filled) = (sys.vec(0.0, rows * rank)?, sys.vec(0, rows.div_ceil(64))?);
            Ok(Mutex::new(Room { sums, filled, copies: sys.vec(0.0, copied * rank)? }))
        };
        Ok(Self((0..rayon::current_num_threads()).map(room).collect::<Result<_>>()?))
    }

    /// Bytes for `threads` threads.
    pub fn bytes(rank: usize, threads: usize) -> usize {
        let (rows, copied) = (segment_rows(rank), COPIES * copied_rows(rank));
        threads * ((rows + copied) * rank * size_of::<f64>() + rows)
    }

    /// The current thread's.
    fn own(&self) -> MutexGuard<'_, Room> {
        self.0[rayon::current_thread_index().unwrap_or(0)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nonzeros of a store, collected during a pass.
#[derive(Debug)]
pub struct Gathered {
    sys: Sys,
    dims: Vec<u32>,
    /// The rows whose nonzeros are sorted.
    own: OwnRows,
    /// The expected number of nonzeros, and the number so far.
    nnz_all: usize,
    nnz: usize,
    /// Whether there were more than expected.
    is_over: bool,
    /// For each nonzero its indices, then the two halves of its value.
    sheets: Vec<PageBuf>,
    /// Nonzeros of a sheet.
    sheet_nnz: usize,
}

/// Nonzeros of a sheet of `nnz`, which `threads` sort.
fn sheet_nnz(nnz: usize, threads: usize) -> usize {
    (nnz / (PARTS * threads)).next_power_of_two().clamp(SHEET_NNZ_MIN, SHEET_NNZ_MAX)
}

impl Gathered {
    /// Room for the `nnz` nonzeros of a tensor, of which copies get those in own rows.
    pub fn new(sys: &Sys, dims: &[u32], nnz: u64, own: OwnRows) -> Result<Self> {
        let nnz = usize::try_from(nnz).unwrap_or(usize::MAX);
        let sheet_nnz = sheet_nnz(nnz, rayon::current_num_threads());
        let sheet = |s: usize| sys.page_buf((nnz - s * sheet_nnz).min(sheet_nnz) * 4 * (dims.len() + 2));
        let sheets = (0..nnz.div_ceil(sheet_nnz)).into_par_iter().map(sheet).collect::<Result<_>>()?;
        let (sys, dims) = (sys.clone(), dims.to_vec());
        Ok(Self { sys, dims, own, nnz_all: nnz, nnz: 0, is_over: false, sheets, sheet_nnz })
    }

    /// What it allocates with.
    pub fn sys(&self) -> &Sys {
        &self.sys
    }

    /// Discards the nonzeros.
    pub fn clear(&mut self) {
        (self.nnz, self.is_over) = (0, false);
    }

    /// Whether exactly the expected number has arrived.
    pub fn is_whole(&self) -> bool {
        self.nnz == self.nnz_all && !self.is_over
    }

    /// 32-bit numbers per nonzero.
    fn width(&self) -> usize {
        self.dims.len() + 2
    }

    /// Takes the next nonzeros. Takes none beyond the expected number.
    pub fn take(&mut self, batch: &Tiles<'_>) {
        let nnz: usize = (0..batch.tiles()).map(|t| batch.tile(t).nnz).sum();
        self.is_over |= self.nnz + nnz > self.nnz_all;
        if self.is_over {
            return;
        }
        let (order, width, sheet_nnz) = (self.dims.len(), self.width(), self.sheet_nnz);
        let (sheet, done) = (self.nnz / sheet_nnz, self.nnz % sheet_nnz * width);
        let mut sheets = self.sheets.get_mut(sheet..).unwrap_or_default().iter_mut().map(|sheet| {
            let numbers: &mut [u32] = bytemuck::cast_slice_mut(sheet);
            let len = numbers.len().min(sheet_nnz * width);
            &mut numbers[..len]
        });
        let mut rest = sheets.next().map_or_else(Default::default, |sheet| &mut sheet[done..]);
        let mut rooms = Vec::with_capacity(batch.tiles() + 1);
        for t in 0..batch.tiles() {
            let (nnz_of_tile, mut taken) = (batch.tile(t).nnz, 0);
            while taken < nnz_of_tile {
                if rest.is_empty() {
                    rest = sheets.next().expect("there is room for them");
                }
                let nnz = (nnz_of_tile - taken).min(rest.len() / width);
                let (room, behind) = rest.split_at_mut(nnz * width);
                rooms.push((room, t, taken..taken + nnz));
                (rest, taken) = (behind, taken + nnz);
            }
            self.nnz += nnz_of_tile;
        }
        rooms.into_par_iter().with_min_len(8).for_each(|(room, t, range)| {
            let tile = batch.tile(t);
            for (i, entry) in range.zip(room.chunks_exact_mut(width)) {
                (0..order).for_each(|m| entry[m] = tile.column(m)[i]);
                entry[order..].copy_from_slice(&bytemuck::cast::<f64, [u32; 2]>(tile.values[i]));
            }
        });
    }

    /// The filled part of sheet `s`.
    fn sheet(&self, s: usize) -> &[u32] {
        let nnz = (self.nnz - s * self.sheet_nnz).min(self.sheet_nnz);
        &bytemuck::cast_slice(&self.sheets[s])[..nnz * self.width()]
    }

    #[inline(always)]
    fn entry(&self, position: usize) -> &[u32] {
        // A power of two.
        let (shift, mask) = (self.sheet_nnz.trailing_zeros(), self.sheet_nnz - 1);
        let sheet: &[u32] = bytemuck::cast_slice(&self.sheets[position >> shift]);
        &sheet[(position & mask) * self.width()..][..self.width()]
    }
}

/// The nonzeros of a store, sorted for one mode.
#[derive(Debug)]
pub struct ModeSorted {
    sys: Sys,
    mode: usize,
    shelves: Vec<Shelf>,
    /// The sums of hot rows' runs.
    hot_sums: Vec<f64>,
    /// Nonzeros of a hot row that a thread takes at a time.
    share: usize,
    /// No row block has rows on both sides of a multiple of this.
    block_rows: usize,
}

/// Consecutive blocks and their nonzeros: for each block the values, then the indices in the other modes, one mode
/// after the other.
#[derive(Debug)]
struct Shelf {
    blocks: Vec<RowBlock>,
    nonzeros: PageBuf,
}

/// The nonzeros of some rows.
#[derive(Debug)]
struct RowBlock {
    rows: Range<u32>,
    /// Whether threads share its runs.
    is_hot: bool,
    /// The number of sums that each row has, one in each copy of a short mode's block; added up in the end.
    copies: u32,
    nnz: usize,
    runs: Vec<RowRun>,
    /// The offset of its nonzeros on the shelf.
    first_byte: usize,
}

impl RowBlock {
    /// Bytes of its nonzeros for a tensor of `order`, rounded up to whole values.
    fn bytes(&self, order: usize) -> usize {
        8 * self.nnz + (4 * (order - 1) * self.nnz).next_multiple_of(8)
    }
}

/// The most bytes of copies for `modes` modes of a tensor of `dims`, with what they are built from; `None` if positions
/// do not fit 32 bits.
pub fn bytes(dims: &[u32], modes: usize, nnz: u64, rank: usize, threads: usize) -> Option<u64> {
    let (order, rows) = (dims.len(), dims.iter().max().map_or(0, |&dim| dim as usize));
    let nnz = usize::try_from(u32::try_from(nnz).ok()?).ok()?;
    let limits = Limits::new(rows, nnz, rank, threads, Strategy::Lists);
    // Of two adjacent blocks, the first ends at a multiple of rows or they exceed the nonzeros, unless one is hot.
    // Copies for a larger rank serve modes that are short at a smaller one.
    let of_rows = (rows / limits.rows).max(rows.min(Strategy::short_rows(1)) / copied_rows(rank));
    let blocks = 2 * (of_rows + nnz / limits.nnz + SHARES * threads) + 2;
    let copy = 4 * (order - 1) + 8 + size_of::<RowRun>();
    let hot_runs = SHARES * threads * (nnz / GROUP_NNZ + COPIES);
    let hot_tasks = 2 * HOT_SHARES * SHARES * threads;
    let of_copy = blocks * (size_of::<RowBlock>() + size_of::<(BlockTask<'_>, &mut [f64])>())
        + hot_tasks * size_of::<BlockWork<'_, f64>>();
    // While one is sorted: the collected nonzeros, places and keys; where each block's places are in each sheet; the
    // block of each row.
    let sheets = nnz.div_ceil(sheet_nnz(nnz, threads));
    let building = nnz * (4 * (order + 2) + 8 + 16) + 4 * blocks * sheets + 4 * rows;
    // Hot rows: groups, three times while they are gathered and sorted, and runs; parts; shares.
    let of_hot = size_of::<&[RowPlace]>() * sheets + PARTS * threads * (64 + 16 * order);
    let hot = hot_runs * (3 * size_of::<&[RowPlace]>() + size_of::<RowRun>()) + SHARES * threads * of_hot;
    // Per thread: runs, two sets of keys, counts. (A row with more nonzeros than a block that is not hot takes of what `building` has for keys.)
    let of_thread = (size_of::<RowRun>() + 16) * limits.nnz.min(nnz) + 4 * COPIES * limits.rows;
    let hot_sums = hot_runs.saturating_mul(8 * rank).saturating_mul(modes);
    let all =
        modes * (nnz * copy + of_copy) + building + hot + threads * of_thread + Rooms::bytes(rank, threads);
    Some(hot_sums.saturating_add(all) as u64)
}

/// The limits of a row block that has several rows.
#[derive(Clone, Copy)]
struct Limits {
    /// Blocks end at multiples of this.
    rows: usize,
    nnz: usize,
    /// Nonzeros beyond which a row is hot.
    hot: usize,
}

impl Limits {
    fn new(rows: usize, nnz: usize, rank: usize, threads: usize, strategy: Strategy) -> Self {
        let hot = (nnz / (SHARES * threads)).max(BLOCK_NNZ);
        let rows = match strategy {
            Strategy::Copies => copied_rows(rank),
            // At most about 2^16 blocks because of the limit on rows.
            Strategy::Slots | Strategy::Lists => segment_rows(rank).max(rows >> 16),
        };
        Self { rows, nnz: hot.min(BLOCK_NNZ_MAX), hot }
    }

    fn share(self) -> usize {
        (self.hot / HOT_SHARES).max(PIECE_NNZ)
    }
}

/// A nonzero's row, then its position in the store.
type RowPlace = u64;

/// The nonzeros of a sheet, by blocks, and where each block's end.
#[derive(Debug, Default)]
struct Sorted {
    places: Vec<RowPlace>,
    ends: Vec<u32>,
}

impl Sorted {
    fn of_block(&self, block: usize) -> &[RowPlace] {
        let begin = if block == 0 { 0 } else { self.ends[block - 1] };
        &self.places[begin as usize..self.ends[block] as usize]
    }
}

impl ModeSorted {
    /// Sorts the collected nonzeros for each of `modes`.
    pub fn build(gathered: &Gathered, modes: &[(usize, Strategy)], rank: usize) -> Result<Vec<Self>> {
        let mut sheets: Vec<Sorted> = gathered.sheets.iter().map(|_| Sorted::default()).collect();
        let rooms: FillingRooms =
            (0..rayon::current_num_threads()).map(|_| Mutex::new(Filling::default())).collect();
        let build = |&(mode, strategy)| Self::build_one(gathered, &mut sheets, &rooms, mode, strategy, rank);
        modes.iter().map(build).collect()
    }

    fn build_one(
        gathered: &Gathered,
        sheets: &mut [Sorted],
        rooms: &FillingRooms,
        mode: usize,
        strategy: Strategy,
        rank: usize,
    ) -> Result<Self> {
        let (sys, order, width, own) = (&gathered.sys, gathered.dims.len(), gathered.width(), gathered.own);
        let (rows, threads) = (gathered.dims[mode] as usize, rayon::current_num_threads());
        // Nonzeros of each row, then the block of each.
        let of_row: Vec<AtomicU32> = sys.par_vec(rows, |_| AtomicU32::new(0))?;
        (0..sheets.len()).into_par_iter().with_max_len(1).for_each(|s| {
            let add = |&(row, nnz): &(u32, u32)| {
                if nnz > 0 {
                    of_row[row as usize].fetch_add(nnz, Ordering::Relaxed);
                }
            };
            // Threads would wait for each other at rows with many nonzeros.
            let mut counts = [(0, 0); COUNTED];
            for entry in gathered.sheet(s).chunks_exact(width) {
                let (row, count) = (entry[mode], &mut counts[entry[mode] as usize % COUNTED]);
                if count.0 != row {
                    add(count);
                    *count = (row, 0);
                }
                count.1 += u32::from(own.has(row));
            }
            counts.iter().for_each(add);
        });
        let limits = Limits::new(rows, gathered.nnz, rank, threads, strategy);
        let blocks = cut(&of_row, limits, strategy);
        sheets.par_iter_mut().enumerate().with_max_len(1).try_for_each(|(s, sorted)| {
            sys.check_cancelled()?;
            let entries = gathered.sheet(s);
            let block_of = |entry: &[u32]| of_row[entry[mode] as usize].load(Ordering::Relaxed) as usize;
            let Sorted { places, ends } = sorted;
            ends.clear();
            sys.reserve(ends, blocks.len(), blocks.len())?;
            ends.resize(blocks.len(), 0);
            entries
                .chunks_exact(width)
                .for_each(|entry| ends[block_of(entry)] += u32::from(own.has(entry[mode])));
            let mut end = 0;
            for of_block in &mut *ends {
                (*of_block, end) = (end, end + *of_block);
            }
            sys.reserve(places, end as usize, gathered.sheet_nnz)?;
            places.resize(end as usize, 0);
            let entries = ((s * gathered.sheet_nnz) as u64..).zip(entries.chunks_exact(width));
            for (position, entry) in entries.filter(|(_, entry)| own.has(entry[mode])) {
                let at = &mut ends[block_of(entry)];
                places[*at as usize] = u64::from(entry[mode]) << 32 | position;
                *at += 1;
            }
            Ok(())
        })?;
        drop(of_row);
        let sheets = &*sheets;
        let shelves = shelves(blocks, order).into_par_iter().with_max_len(1).map(|(first, mut blocks)| {
            let mut nonzeros = sys.page_buf(blocks.iter().map(|block| block.bytes(order)).sum())?;
            let mut rest = &mut nonzeros[..];
            let mut tasks = Vec::with_capacity(blocks.len());
            for (b, block) in (first..).zip(&mut blocks) {
                let (bytes, behind) = rest.split_at_mut(block.bytes(order));
                rest = behind;
                tasks.push((b, block, bytes));
            }
            tasks.into_par_iter().with_max_len(1).try_for_each(|(b, block, bytes)| {
                sys.check_cancelled()?;
                let parts = sheets.iter().map(|sheet| sheet.of_block(b));
                if block.is_hot {
                    return block.fill_hot(gathered, mode, strategy, parts.collect(), bytes);
                }
                let room = &rooms[rayon::current_thread_index().unwrap_or(0)];
                let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
                room.fill(block, gathered, mode, strategy, parts, bytes)
            })?;
            Ok(Shelf { blocks, nonzeros })
        });
        let shelves: Vec<Shelf> = shelves.collect::<Result<_>>()?;
        let hot = shelves.iter().flat_map(|shelf| &shelf.blocks).filter(|block| block.is_hot);
        let hot_sums = sys.vec(0.0, hot.flat_map(|block| &block.runs).count() * rank)?;
        let (share, block_rows) = (limits.share(), limits.rows);
        Ok(Self { sys: sys.clone(), mode, shelves, hot_sums, share, block_rows })
    }

    /// Whether each of its row blocks lies in a segment of `rows` rows.
    pub fn fits_segments(&self, rows: usize) -> bool {
        rows.is_multiple_of(self.block_rows)
    }

    /// All rows, in order.
    fn blocks(&self) -> impl Iterator<Item = (&Shelf, &RowBlock)> {
        self.shelves.iter().flat_map(|shelf| shelf.blocks.iter().map(move |block| (shelf, block)))
    }
}

impl Shelf {
    /// The nonzeros `range` of a block, which belong to `runs`, for `mode`.
    fn part<'a, T: Real>(
        &'a self,
        mode: usize,
        inputs: Inputs<'a, T>,
        block: &'a RowBlock,
        runs: &'a [RowRun],
        range: Range<usize>,
    ) -> RunList<'a, T> {
        let Inputs { factors: matrices, rank, .. } = inputs;
        let order = matrices.len();
        let of_block = &self.nonzeros[block.first_byte..][..block.bytes(order)];
        let (values, indices) = of_block.split_at(8 * block.nnz);
        let indices: &[u32] = bytemuck::cast_slice(indices);
        let (mut columns, mut factors, mut far) =
            ([&[][..]; ORDER_MAX], [&[][..]; ORDER_MAX], [false; ORDER_MAX]);
        for (k, m) in (0..order).filter(|&m| m != mode).enumerate() {
            columns[k] = &indices[k * block.nnz..][range.clone()];
            factors[k] = matrices[m].data();
            far[k] = size_of_val(factors[k]) > CACHED_BYTES;
        }
        let values = &bytemuck::cast_slice(values)[range];
        RunList { list: runs, values, rank, columns, factors, far, before: mode, others: order - 1 }
    }
}

/// Distributes blocks to shelves, each with the number of its first block, and assigns their offsets.
fn shelves(blocks: Vec<RowBlock>, order: usize) -> Vec<(usize, Vec<RowBlock>)> {
    let mut shelves: Vec<(usize, Vec<RowBlock>)> = Vec::new();
    let mut bytes = usize::MAX;
    for (number, mut block) in blocks.into_iter().enumerate() {
        if bytes >= SHELF_BYTES {
            shelves.push((number, Vec::new()));
            bytes = 0;
        }
        block.first_byte = bytes;
        bytes += block.bytes(order);
        if let Some((_, blocks)) = shelves.last_mut() {
            blocks.push(block);
        }
    }
    shelves
}

/// Cuts rows into blocks, hot rows apart. `of_row` holds the nonzeros of each row and receives its block.
fn cut(of_row: &[AtomicU32], limits: Limits, strategy: Strategy) -> Vec<RowBlock> {
    let mut blocks: Vec<RowBlock> = Vec::new();
    for (row, of_row) in (0u32..).zip(of_row) {
        let nnz = of_row.load(Ordering::Relaxed) as usize;
        let is_hot = nnz > limits.hot;
        let ends = (row as usize).is_multiple_of(limits.rows);
        let fits = |last: &RowBlock| !last.is_hot && last.nnz + nnz <= limits.nnz && !ends;
        if is_hot || !blocks.last().is_some_and(fits) {
            let copies = if strategy == Strategy::Copies && !is_hot { 1 << COPIES.ilog2() } else { 1 };
            let (rows, runs) = (row..row, Vec::new());
            blocks.push(RowBlock { rows, is_hot, copies, nnz: 0, runs, first_byte: 0 });
        }
        let last = blocks.len() - 1;
        blocks[last].nnz += nnz;
        blocks[last].rows.end = row + 1;
        of_row.store(u32::try_from(last).expect("no more than rows"), Ordering::Relaxed);
    }
    blocks
}

/// A position in the store, or a row, as an index. Both are below 2^32.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "less than 2^32")]
fn usize_of(place: u64) -> usize {
    place as usize
}

/// The buffers in which each thread sorts blocks for all modes. They are reused: otherwise all threads would populate
/// and release pages at once, which the system serializes.
type FillingRooms = Vec<Mutex<Filling>>;

/// The buffers of a thread that sorts blocks.
#[derive(Debug, Default)]
struct Filling {
    keys: Vec<u64>,
    sorted: Vec<u64>,
    counts: Vec<u32>,
    runs: Vec<RowRun>,
}

impl Filling {
    /// Sorts the nonzeros of a block that is not hot into `room`. Each of `parts` has some of them in linear order.
    fn fill<'a>(
        &mut self,
        block: &mut RowBlock,
        gathered: &Gathered,
        mode: usize,
        strategy: Strategy,
        parts: impl Iterator<Item = &'a [RowPlace]>,
        room: &mut [u8],
    ) -> Result<()> {
        let (sys, nnz) = (&gathered.sys, block.nnz);
        let bits = |n: usize| usize::BITS - n.leading_zeros();
        // A key is the row, the number of the copy for short modes, and the position.
        let (of_position, of_copy) =
            (bits(gathered.nnz), if strategy == Strategy::Copies { COPIES.ilog2() } else { 0 });
        let Self { keys, sorted, counts, runs } = self;
        keys.clear();
        sys.reserve(keys, nnz, nnz)?;
        let position_of = |key: u64| usize_of(key & ((1 << of_position) - 1));
        for part in parts {
            keys.extend(part.iter().map(|&place| {
                let (row, position) =
                    ((place >> 32) - u64::from(block.rows.start), place & u64::from(u32::MAX));
                let copy = if of_copy > 0 { (usize_of(position) / GROUP_NNZ % COPIES) as u64 } else { 0 };
                (row << of_copy | copy) << of_position | position
            }));
        }
        let window_of = |key: u64| position_of(key) / (WINDOW * GROUP_NNZ);
        let is_together = |a: &u64, b: &u64| window_of(*a) == window_of(*b);
        if strategy == Strategy::Slots {
            keys.chunk_by_mut(is_together).for_each(<[u64]>::sort_unstable);
        } else {
            // Counting sort: keys arrive in order of their positions.
            let buckets = block.rows.len() << of_copy;
            sys.reserve(counts, buckets, buckets)?;
            sys.reserve(sorted, nnz, nnz)?;
            sorted.resize(nnz.max(sorted.len()), 0);
            let mut end = 0;
            for keys in keys.chunk_by(|a, b| block.copies == 1 || is_together(a, b)) {
                counts.clear();
                counts.resize(buckets, 0);
                for key in keys {
                    counts[usize_of(key >> of_position)] += 1;
                }
                for count in &mut *counts {
                    (*count, end) = (end, end + *count);
                }
                for &key in keys {
                    let at = &mut counts[usize_of(key >> of_position)];
                    sorted[*at as usize] = key;
                    *at += 1;
                }
            }
            std::mem::swap(keys, sorted);
            keys.truncate(nnz);
        }
        let mut room = Columns::of(room, nnz);
        let (mut before, mut sums) = (None, 0..0);
        let of_sum = of_position + of_copy - block.copies.ilog2();
        runs.clear();
        for (i, &key) in keys.iter().enumerate() {
            if let Some(&ahead) = keys.get(i + AHEAD) {
                prefetch(gathered.entry(position_of(ahead)));
            }
            let position = position_of(key);
            room.put(i, mode, gathered.entry(position));
            match runs.last_mut() {
                Some(run) if before == Some(key >> of_position) && sums.contains(&position) => run.nnz += 1,
                _ => {
                    sums = match strategy {
                        Strategy::Copies => 0..usize::MAX,
                        Strategy::Slots => multiple_around(position, GROUP_NNZ),
                        Strategy::Lists => multiple_around(position, STRETCH_NNZ),
                    };
                    let apart = strategy != Strategy::Lists && block.copies == 1;
                    let row = u32::try_from(key >> of_sum).expect("less than rows times copies");
                    sys.reserve(runs, runs.len() + 1, nnz)?;
                    runs.push(RowRun { row, nnz: 1, apart });
                }
            }
            before = Some(key >> of_position);
        }
        block.runs = if strategy == Strategy::Lists { pieces(runs) } else { runs.clone() };
        Ok(())
    }
}

/// Room for nonzeros of a block: their values, and their indices in each of the other modes.
struct Columns<'a> {
    values: &'a mut [f64],
    indices: Vec<&'a mut [u32]>,
}

impl<'a> Columns<'a> {
    /// The bytes of a block of `nnz` nonzeros.
    fn of(bytes: &'a mut [u8], nnz: usize) -> Self {
        let (values, indices) = bytes.split_at_mut(8 * nnz);
        let indices = bytemuck::cast_slice_mut(indices).chunks_exact_mut(nnz.max(1)).collect();
        Self { values: bytemuck::cast_slice_mut(values), indices }
    }

    /// Takes the first `nnz` off.
    fn split(&mut self, nnz: usize) -> Self {
        let whole = "there is room for all nonzeros";
        let indices =
            self.indices.iter_mut().map(|column| column.split_off_mut(..nnz).expect(whole)).collect();
        Self { values: self.values.split_off_mut(..nnz).expect(whole), indices }
    }

    /// Puts a collected nonzero at `i`, for `mode`.
    #[inline(always)]
    fn put(&mut self, i: usize, mode: usize, entry: &[u32]) {
        let (indices, value) = entry.split_at(entry.len() - 2);
        let others = indices[..mode].iter().chain(&indices[mode + 1..]);
        self.indices.iter_mut().zip(others).for_each(|(column, &index)| column[i] = index);
        self.values[i] = bytemuck::cast([value[0], value[1]]);
    }
}

impl RowBlock {
    /// Stores the nonzeros of a hot row in `room`, all threads together. Each of `parts` has some of them in linear order.
    fn fill_hot(
        &mut self,
        gathered: &Gathered,
        mode: usize,
        strategy: Strategy,
        parts: Vec<&[RowPlace]>,
        room: &mut [u8],
    ) -> Result<()> {
        let position_of = |place: RowPlace| usize_of(place & u64::from(u32::MAX));
        let group_of = |place: &RowPlace| position_of(*place) / GROUP_NNZ;
        let is_together = |a: &RowPlace, b: &RowPlace| group_of(a) == group_of(b);
        let mut groups: Vec<&[RowPlace]> =
            parts.into_par_iter().flat_map_iter(|part| part.chunk_by(is_together)).collect();
        let sum_of = |group: &[RowPlace]| match strategy {
            Strategy::Copies => group_of(&group[0]) % COPIES,
            Strategy::Slots => group_of(&group[0]),
            Strategy::Lists => position_of(group[0]) / STRETCH_NNZ,
        };
        // Groups of a copy stay in order.
        groups.sort_by_key(|group| sum_of(group));
        let nnz_of = |groups: &[&[RowPlace]]| groups.iter().map(|group| group.len()).sum::<usize>();
        let runs = groups.chunk_by(|a, b| sum_of(a) == sum_of(b)).map(|groups| {
            let nnz = u32::try_from(nnz_of(groups)).expect("positions fit 32 bits");
            RowRun { row: 0, nnz, apart: strategy != Strategy::Lists }
        });
        let mut runs: Vec<RowRun> = runs.collect();
        runs.shrink_to_fit();
        self.runs = if strategy == Strategy::Lists { pieces(&runs) } else { runs };
        let mut rest = Columns::of(room, self.nnz);
        let share = groups.len().div_ceil(PARTS * rayon::current_num_threads()).max(1);
        let shares: Vec<_> =
            groups.chunks(share).map(|groups| (groups, rest.split(nnz_of(groups)))).collect();
        shares.into_par_iter().with_max_len(1).try_for_each(|(groups, mut room)| {
            gathered.sys.check_cancelled()?;
            for (i, &place) in groups.iter().copied().flatten().enumerate() {
                room.put(i, mode, gathered.entry(position_of(place)));
            }
            Ok(())
        })
    }
}

/// The aligned range of `nnz` positions that contains `position`.
fn multiple_around(position: usize, nnz: usize) -> Range<usize> {
    let begin = position - position % nnz;
    begin..begin + nnz
}

/// Cuts long runs of stretches into pieces, and joins the others of a row.
fn pieces(of_stretches: &[RowRun]) -> Vec<RowRun> {
    let mut runs: Vec<RowRun> = Vec::with_capacity(of_stretches.len());
    for run in of_stretches {
        if run.nnz as usize > PIECE_NNZ {
            let piece =
                |from: u32| RowRun { nnz: (run.nnz - from).min(1 << PIECE_NNZ.ilog2()), apart: true, ..*run };
            runs.extend((0..run.nnz).step_by(PIECE_NNZ).map(piece));
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.row == run.row && !last.apart => last.nnz += run.nnz,
            _ => runs.push(*run),
        }
    }
    runs.shrink_to_fit();
    runs
}

/// One thread's work on a mode.
struct BlockWork<'a, T> {
    wide: bool,
    runs: RunList<'a, T>,
    /// Whether each run has its own row of sums.
    each: bool,
    sums: &'a mut [f64],
}

impl<T: Real> pulp::WithSimd for BlockWork<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        if self.wide {
            self.add_wide();
        } else {
            kernel::runs(simd, &self.runs, self.each, self.sums);
        }
    }
}

impl<T: Real> BlockWork<'_, T> {
    fn add_wide(self) {
        let RunList { list, values, rank, columns, factors, before, others, .. } = self.runs;
        let (mut apart, mut at) = (vec![0.0; rank], 0);
        for (number, run) in list.iter().enumerate() {
            let range = at..at + run.nnz as usize;
            at = range.end;
            let sum = &mut self.sums[if self.each { number } else { run.row as usize } * rank..][..rank];
            let is_apart = run.apart || self.each;
            apart.fill(0.0);
            for i in range {
                let columns = columns.map(|column| column.get(i..=i).unwrap_or(&[]));
                let (values, places) = (&values[i..=i], &[0][..]);
                let one = Single { values, rank, stride: rank, places, columns, factors, before, others };
                kernel::one_mode_wide(&one, if is_apart { &mut apart } else { sum });
            }
            if is_apart {
                sum.iter_mut().zip(&apart).for_each(|(sum, x)| *sum += x);
            }
        }
    }
}

/// A row block with its mode and shelf, and the sums of its runs if it is hot.
#[derive(Clone, Copy)]
struct BlockTask<'a> {
    mode: usize,
    /// Whether the mode's result exceeds the caches.
    is_large: bool,
    shelf: &'a Shelf,
    block: &'a RowBlock,
    of_runs: &'a [f64],
}

impl BlockTask<'_> {
    /// Sets `sums` to the results of its rows; `copies` is that of the thread's [`Room`].
    fn run<T: Real>(&self, inputs: Inputs<'_, T>, copies: &mut [f64], sums: &mut [f64]) {
        let Self { mode, shelf, block, of_runs, .. } = *self;
        let Inputs { rank, wide, vectors, .. } = inputs;
        sums.fill(0.0);
        if !block.is_hot {
            let runs = shelf.part(mode, inputs, block, &block.runs, 0..block.nnz);
            if block.copies == 1 {
                return vectors.dispatch(BlockWork { wide, runs, each: false, sums });
            }
            let of_row = block.copies as usize * rank;
            let copies = &mut copies[..block.rows.len() * of_row];
            copies.fill(0.0);
            vectors.dispatch(BlockWork { wide, runs, each: false, sums: &mut *copies });
            for (sum, copies) in sums.chunks_exact_mut(rank).zip(copies.chunks_exact(of_row)) {
                for copy in copies.chunks_exact(rank) {
                    sum.iter_mut().zip(copy).for_each(|(sum, x)| *sum += x);
                }
            }
            return;
        }
        let mut at = 0;
        for (run, of_run) in block.runs.iter().zip(of_runs.chunks_exact(rank)) {
            let range = at..at + run.nnz as usize;
            at = range.end;
            if run.apart {
                sums.iter_mut().zip(of_run).for_each(|(sum, x)| *sum += x);
            } else {
                let runs = shelf.part(mode, inputs, block, std::slice::from_ref(run), range);
                vectors.dispatch(BlockWork { wide, runs, each: false, sums: &mut *sums });
            }
        }
    }

    /// [`BlockTask::run`] for all, in parallel.
    fn run_all<T: Real>(
        tasks: Vec<(Self, &mut [f64])>,
        inputs: Inputs<'_, T>,
        rooms: &Rooms,
        sys: &Sys,
    ) -> Result<()> {
        tasks.into_par_iter().with_max_len(1).try_for_each(|(task, sums)| {
            sys.check_cancelled()?;
            let Room { sums: own, copies, .. } = &mut *rooms.own();
            match own.get_mut(..sums.len()) {
                Some(own) if task.is_large => {
                    task.run(inputs, copies, own);
                    PastCaches::begin().copy(own, sums);
                }
                _ => task.run(inputs, copies, sums),
            }
            Ok(())
        })
    }
}

/// Each of `tasks`, whose rows follow each other, with its rows of `sums`.
fn with_rows<'a, 'b>(
    tasks: impl IntoIterator<Item = BlockTask<'a>>,
    mut sums: &'b mut [f64],
    rank: usize,
) -> impl Iterator<Item = (BlockTask<'a>, &'b mut [f64])> {
    tasks.into_iter().map(move |task| {
        let (own, behind) = std::mem::take(&mut sums).split_at_mut(task.block.rows.len() * rank);
        sums = behind;
        (task, own)
    })
}

impl ModeSorted {
    /// Computes the sums of hot rows' runs, all threads together; those of `copies[i]` replace `hot_sums[i]`.
    fn add_hot<T: Real>(
        copies: &[&mut Self],
        inputs: Inputs<'_, T>,
        hot_sums: &mut [Vec<f64>],
    ) -> Result<()> {
        let Inputs { rank, wide, vectors, .. } = inputs;
        let mut tasks = Vec::new();
        for (copy, hot_sums) in copies.iter().zip(hot_sums) {
            let mut rest = &mut hot_sums[..];
            for (shelf, block) in copy.blocks().filter(|(_, block)| block.is_hot) {
                let (mut run, mut at) = (0, 0);
                while run < block.runs.len() {
                    let (first, from) = (run, at);
                    while run < block.runs.len() && at - from < copy.share {
                        at += block.runs[run].nnz as usize;
                        run += 1;
                    }
                    let (sums, behind) = rest.split_at_mut((run - first) * rank);
                    rest = behind;
                    let runs = shelf.part(copy.mode, inputs, block, &block.runs[first..run], from..at);
                    tasks.push(BlockWork { wide, runs, each: true, sums });
                }
            }
        }
        tasks.into_par_iter().with_max_len(1).try_for_each(|task| {
            copies[0].sys.check_cancelled()?;
            task.sums.fill(0.0);
            vectors.dispatch(task);
            Ok::<_, Error>(())
        })
    }

    /// The work on each of its blocks, in the order of rows.
    fn tasks<'a>(
        &'a self,
        hot_sums: &'a [f64],
        rank: usize,
        is_large: bool,
    ) -> impl Iterator<Item = BlockTask<'a>> {
        let mut rest = hot_sums;
        self.blocks().map(move |(shelf, block)| {
            let (of_runs, behind) = rest.split_at(if block.is_hot { block.runs.len() * rank } else { 0 });
            rest = behind;
            BlockTask { mode: self.mode, is_large, shelf, block, of_runs }
        })
    }
}

/// Sets `sums[i]`, with rows of `rank` numbers, to the results of the mode of `copies[i]`.
pub fn compute<T: Real>(
    copies: &mut [&mut ModeSorted],
    inputs: Inputs<'_, T>,
    sums: &mut [&mut [f64]],
    rooms: &Rooms,
) -> Result<()> {
    let sys = copies[0].sys.clone();
    let mut hot_sums: Vec<_> = copies.iter_mut().map(|copy| std::mem::take(&mut copy.hot_sums)).collect();
    ModeSorted::add_hot(copies, inputs, &mut hot_sums)?;
    let mut tasks = Vec::new();
    for ((copy, hot_sums), sums) in copies.iter().zip(&hot_sums).zip(sums) {
        let is_large = size_of_val(&**sums) > PastCaches::FROM_BYTES;
        tasks.extend(with_rows(copy.tasks(hot_sums, inputs.rank, is_large), sums, inputs.rank));
    }
    BlockTask::run_all(tasks, inputs, rooms, &sys)?;
    copies.iter_mut().zip(hot_sums).for_each(|(copy, sums)| copy.hot_sums = sums);
    Ok(())
}

/// Computes the mode of `copy`, whose blocks lie in segments, and hands each segment to `taker` with its rows of `factor`. Segments with
/// many nonzeros are computed by several threads, in `sums`.
pub fn compute_segments<T: Real>(
    copy: &mut ModeSorted,
    inputs: Inputs<'_, T>,
    sums: &mut [f64],
    factor: &mut [T],
    taker: &dyn TakeSums<T>,
    rooms: &Rooms,
) -> Result<()> {
    let (rank, sys) = (inputs.rank, copy.sys.clone());
    let (rows, threads) = (segment_rows(rank), rayon::current_num_threads());
    let mut hot_sums = [std::mem::take(&mut copy.hot_sums)];
    ModeSorted::add_hot(&[&mut *copy], inputs, &mut hot_sums)?;
    let tasks: Vec<BlockTask<'_>> = copy.tasks(&hot_sums[0], rank, false).collect();
    let segments: Vec<&[BlockTask<'_>]> = tasks
        .chunk_by(|a, b| a.block.rows.start as usize / rows == b.block.rows.start as usize / rows)
        .collect();
    let nnz: usize = tasks.iter().map(|task| task.block.nnz).sum();
    let share = (nnz / (SHARES * threads)).max(BLOCK_NNZ);
    let is_shared = |tasks: &[BlockTask<'_>]| tasks.iter().map(|task| task.block.nnz).sum::<usize>() > share;
    let mut shared = Vec::new();
    for (tasks, sums) in
        segments.iter().zip(sums.chunks_mut(rows * rank)).filter(|(tasks, _)| is_shared(tasks))
    {
        shared.extend(with_rows(tasks.iter().copied(), sums, rank));
    }
    BlockTask::run_all(shared, inputs, rooms, &sys)?;
    let parts = sums.chunks_mut(rows * rank).zip(factor.chunks_mut(rows * rank));
    let work: Vec<_> = segments.into_iter().zip(parts).enumerate().collect();
    work.into_par_iter().with_max_len(1).try_for_each(|(segment, (tasks, (sums, factor)))| {
        sys.check_cancelled()?;
        let Room { sums: own, filled, copies } = &mut *rooms.own();
        filled.fill(0);
        for BlockTask { block, .. } in tasks {
            let rows_of = block.runs.iter().map(|run| block.rows.start + run.row / block.copies);
            for row in rows_of.map(|row| row as usize % rows) {
                filled[row / 64] |= 1 << (row % 64);
            }
        }
        if is_shared(tasks) {
            taker.take(segment, sums, filled, factor);
            return Ok(());
        }
        let own = &mut own[..sums.len()];
        with_rows(tasks.iter().copied(), own, rank).for_each(|(task, sums)| task.run(inputs, copies, sums));
        taker.take(segment, own, filled, factor);
        Ok::<_, Error>(())
    })?;
    let [sums] = hot_sums;
    copy.hot_sums = sums;
    Ok(())
}
