//! Nonzeros sorted by fiber, and the kernels of SpTTM on them (kernels/ttm.cuh).

use super::abi::{
    AppendArgs, DIGIT_BITS, FiberKeysArgs, ROW_THREADS, RangeArgs, SCAN_ROW, SORT_PORTION, SORT_THREADS,
    SortArgs, TILE_THREADS, TtmArgs,
};
use super::driver::{Device, Kernel, Memory, Stream};
use super::kernels::{KernelLayout, embedded_ptx};
use super::mode_sorted::{SORT_BLOCKS, SortSteps};
use crate::dense::Precision;
use crate::error::Result;
use std::sync::Arc;

/// Their names, without those of the sort.
pub const KERNELS: [&str; 31] = [
    "ttm_append_tiled_f64",
    "ttm_append_tiled_f32",
    "ttm_append_raw_f64",
    "ttm_append_raw_f32",
    "ttm_append_tree_f64",
    "ttm_append_tree_f32",
    "ttm_append_segments_f64",
    "ttm_append_segments_f32",
    "ttm_count_tiled",
    "ttm_count_raw",
    "ttm_count_tree",
    "ttm_count_segments",
    "ttm_within_tiled",
    "ttm_within_raw",
    "ttm_within_tree",
    "ttm_within_segments",
    "ttm_places",
    "ttm_take_tiled_f64",
    "ttm_take_tiled_f32",
    "ttm_take_raw_f64",
    "ttm_take_raw_f32",
    "ttm_take_tree_f64",
    "ttm_take_tree_f32",
    "ttm_take_segments_f64",
    "ttm_take_segments_f32",
    "ttm_keys",
    "ttm_ends",
    "ttm_rows_f64",
    "ttm_rows_f32",
    "ttm_fix_up_f64",
    "ttm_fix_up_f32",
];

/// The kernels of one precision and layout.
#[derive(Debug)]
pub struct TtmKernels {
    append: Kernel,
    count: Kernel,
    within: Kernel,
    places: Kernel,
    take: Kernel,
    keys: Kernel,
    ends: Kernel,
    rows: Kernel,
    fix_up: Kernel,
    sort: SortSteps,
}

/// Memory of a sort: keys and positions, each before and after a step, and counts of digits.
#[derive(Debug)]
pub struct SortMemory {
    keys: [Memory; 2],
    positions: [Memory; 2],
    counts: Memory,
    totals: Memory,
    blocks: u32,
}

impl SortMemory {
    /// Of `nnz` nonzeros.
    pub fn new(device: &Arc<Device>, nnz: u32) -> Result<Self> {
        let blocks = sort_blocks(device.facts.multiprocessors, nnz);
        let column = || device.memory(4 * nnz as usize);
        Ok(Self {
            keys: [column()?, column()?],
            positions: [column()?, column()?],
            counts: device.memory((4 * blocks as usize) << DIGIT_BITS)?,
            totals: device.memory(4 << DIGIT_BITS)?,
            blocks,
        })
    }

    /// Bytes of each nonzero.
    pub const BYTES_OF_ONE: u64 = 16;

    /// Bytes besides, on a device of this many multiprocessors.
    #[must_use]
    pub fn fixed_bytes(multiprocessors: u32, nnz: u32) -> u64 {
        (4 * (u64::from(sort_blocks(multiprocessors, nnz)) + 1)) << DIGIT_BITS
    }
}

fn sort_blocks(multiprocessors: u32, nnz: u32) -> u32 {
    nnz.div_ceil(SORT_PORTION).clamp(1, SORT_BLOCKS * multiprocessors.max(1))
}

/// Rows of the scan that numbers fibers, of tiles and one more.
#[must_use]
pub fn scan_rows(tiles: u32) -> u32 {
    (tiles + 1).div_ceil(SCAN_ROW)
}

impl TtmKernels {
    /// Loads them from what is embedded.
    pub fn load(device: &Arc<Device>, precision: Precision, layout: KernelLayout) -> Result<Self> {
        let real = precision.name();
        let layout = layout.name();
        let own = [
            format!("ttm_append_{layout}_{real}"),
            format!("ttm_count_{layout}"),
            format!("ttm_within_{layout}"),
            "ttm_places".to_owned(),
            format!("ttm_take_{layout}_{real}"),
            format!("ttm_rows_{real}"),
            format!("ttm_fix_up_{real}"),
            "ttm_keys".to_owned(),
            "ttm_ends".to_owned(),
        ];
        let names: Vec<&str> = own.iter().map(String::as_str).chain(SortSteps::KERNELS).collect();
        let module = device.module(&embedded_ptx(&names))?;
        let [append, count, within, places, take, rows, fix_up, keys, ends] =
            own.map(|name| module.kernel(&name));
        Ok(Self {
            append: append?,
            count: count?,
            within: within?,
            places: places?,
            take: take?,
            keys: keys?,
            ends: ends?,
            rows: rows?,
            fix_up: fix_up?,
            sort: SortSteps::of(&module)?,
        })
    }

    /// Appends a chunk of this many tiles.
    pub fn append(&self, stream: &Stream, tiles: u32, arguments: &AppendArgs) -> Result<()> {
        stream.launch(&self.append, tiles, TILE_THREADS, arguments)
    }

    /// Counts a chunk's nonzeros in bins.
    pub fn count(&self, stream: &Stream, arguments: &RangeArgs) -> Result<()> {
        stream.launch(&self.count, arguments.tiles, TILE_THREADS, arguments)
    }

    /// Appends those of a chunk's nonzeros that belong to a range, behind those of earlier chunks.
    pub fn take(&self, stream: &Stream, arguments: &RangeArgs) -> Result<()> {
        stream.launch(&self.within, arguments.tiles, TILE_THREADS, arguments)?;
        stream.launch(&self.places, 1, SORT_THREADS, arguments)?;
        stream.launch(&self.take, arguments.tiles, TILE_THREADS, arguments)
    }

    /// Sorts nonzeros by `columns`, addresses of indices with their bits, the least significant first; equal ones keep their order.
    /// Returns the address of the place of each; 0 where nothing had to move.
    pub fn sort(
        &self,
        stream: &Stream,
        columns: &[(u64, u32)],
        nnz: u32,
        memory: &SortMemory,
    ) -> Result<u64> {
        let SortMemory { keys, positions, counts, totals, blocks } = memory;
        let (mut from, mut has_moved) = (0, false);
        for &(column, bits) in columns {
            let digits = bits.div_ceil(DIGIT_BITS);
            for digit in 0..digits {
                let of_digit = bits.div_ceil(digits);
                let position = positions[from].address();
                if digit == 0 && has_moved {
                    let keys = keys[from].address();
                    let arguments = FiberKeysArgs { column, positions: position, keys, nnz: nnz.into() };
                    stream.launch(&self.keys, nnz.div_ceil(ROW_THREADS), ROW_THREADS, &arguments)?;
                }
                let to = 1 - from;
                let arguments = SortArgs {
                    rows_in: if has_moved { keys[from].address() } else { column },
                    positions_in: if has_moved { position } else { 0 },
                    rows_out: keys[to].address(),
                    positions_out: positions[to].address(),
                    counts: counts.address(),
                    totals: totals.address(),
                    nnz,
                    shift: digit * of_digit,
                    bits: of_digit,
                    unused: 0,
                };
                self.sort.step(stream, *blocks, &arguments)?;
                (from, has_moved) = (to, true);
            }
        }
        Ok(if has_moved { positions[from].address() } else { 0 })
    }

    /// Finds the ends of fibers, and how many end before each tile. `totals` has room for one number more than there are rows of tiles:
    /// their own sum.
    pub fn number(&self, stream: &Stream, arguments: &TtmArgs) -> Result<()> {
        let TtmArgs { tiles, before, totals, .. } = *arguments;
        stream.launch(&self.ends, tiles, TILE_THREADS, arguments)?;
        let rows = scan_rows(tiles);
        self.sort.scan(stream, before, totals, tiles + 1, SCAN_ROW)?;
        self.sort.scan(stream, totals, totals + 4 * u64::from(rows), rows, rows)
    }

    /// Computes a window.
    pub fn window(&self, stream: &Stream, arguments: &TtmArgs) -> Result<()> {
        let tiles = arguments.end_tile - arguments.first_tile;
        stream.launch(&self.rows, tiles, TILE_THREADS, arguments)?;
        stream.launch(&self.fix_up, (tiles + 1).div_ceil(ROW_THREADS / 32), ROW_THREADS, arguments)
    }
}
