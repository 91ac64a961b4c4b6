//! A group: [`GROUP_TILES`](super::GROUP_TILES) tiles of the store, the unit of work of MTTKRP on the host. One thread
//! adds up what its nonzeros contribute to each row. For a short mode, it adds to one of [`COPIES`] copies of the
//! result. For a long mode whose rows repeat, it adds to slots of its own, which are then added to the result.

use super::kernel::{self, Shared, Single};
use super::path::{Path, Walked};
use super::rows::{AHEAD, AlignedRows, Ids, OwnNonzeros, OwnRows, RowMap, touch};
use crate::backend::host::Tiles;
use crate::dense::{MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::DecodedTile;
use crate::shape::{ModeOrder, ORDER_MAX};
use crate::store::Manifest;
use crate::sys::Sys;
use serde::Serialize;
use std::ops::Range;

/// The number of copies of a short mode's result. Group g adds to copy g modulo this.
pub const COPIES: usize = 16;
/// The largest result that is accumulated in copies, in bytes, with its rows padded to whole vectors of f64.
const COPY_BYTES_MAX: usize = 2 << 20;

/// How threads share the sums of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Copies of the whole result.
    Copies,
    /// Slots for the rows that a group meets.
    Slots,
    /// One writer per row, from lists sorted by blocks of rows.
    Lists,
}

/// If groups of [`super::GROUP_NNZ`] nonzeros have at least this many distinct rows per nonzero, lists save more than
/// slots.
const LISTS_FROM: f64 = 0.5;

impl Strategy {
    /// The most rows of a mode with copies.
    pub(super) fn short_rows(rank: usize) -> usize {
        COPY_BYTES_MAX / (kernel::stride::<f64>(rank) * size_of::<f64>())
    }

    /// The strategy for `mode`, from 0, of a store. (Manifests of version 1 do not record how often rows
    /// repeat.)
    #[must_use]
    pub fn of(manifest: &Manifest, mode: usize, rank: usize) -> Self {
        if manifest.shape.dims()[mode] as usize <= Self::short_rows(rank) {
            return Self::Copies;
        }
        let distinct = manifest.distinct(mode, super::GROUP_TILES.ilog2() as usize);
        if distinct.is_some_and(|rows| rows >= LISTS_FROM) { Self::Lists } else { Self::Slots }
    }

    /// Its name in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Slots => "slots",
            Self::Lists => "lists",
        }
    }
}

/// A group's sums for a mode with slots; empty for other modes.
#[derive(Debug)]
pub struct ModeSums {
    /// The row of each slot, in order of first occurrence.
    pub rows: Vec<u32>,
    /// The slots, each a row of the kernel's stride.
    pub sums: AlignedRows<f64>,
    /// Slots sorted by ranges of rows, and the end of each range: see [`ModeSums::sort`].
    by_range: Vec<u16>,
    ends: Vec<u16>,
}

impl ModeSums {
    /// Sorts slots by ranges of `rows` rows each.
    pub fn sort(&mut self, rows: usize, ranges: usize) {
        self.by_range.clear();
        self.ends.clear();
        if ranges == 1 {
            self.by_range.extend((0..).zip(&self.rows).map(|(slot, _)| slot));
            self.ends.extend(u16::try_from(self.rows.len()));
            return;
        }
        let range_of = |row: u32| row as usize / rows;
        self.ends.resize(ranges, 0);
        self.rows.iter().for_each(|&row| self.ends[range_of(row)] += 1);
        let mut end = 0;
        for of_range in &mut self.ends {
            (*of_range, end) = (end, end + *of_range);
        }
        self.by_range.resize(self.rows.len(), 0);
        for (slot, &row) in (0..).zip(&self.rows) {
            let at = &mut self.ends[range_of(row)];
            self.by_range[*at as usize] = slot;
            *at += 1;
        }
    }
}

/// A group, complete or still growing.
#[derive(Debug)]
pub struct Group {
    pub number: u64,
    /// Nonzeros so far.
    pub nnz: usize,
    /// Its tiles among those that are decoded.
    pub tiles: Range<usize>,
    /// In the order of the computed modes.
    pub modes: Vec<ModeSums>,
    /// The state of each mode's walk, if nonzeros form trees.
    pub paths: Vec<Path>,
}

impl Group {
    /// Allocates a group for modes of at most `slots` slots of `stride` elements and, if nonzeros form trees, for
    /// `levels` levels.
    pub fn new(sys: &Sys, slots: &[usize], stride: usize, levels: Option<usize>) -> Result<Self> {
        let mode = |&slots: &usize| {
            let mut rows = Vec::new();
            sys.reserve(&mut rows, slots, slots)?;
            let sums = AlignedRows::new(sys, slots * stride)?;
            Ok(ModeSums { rows, sums, by_range: Vec::with_capacity(slots), ends: Vec::new() })
        };
        let modes = slots.iter().map(mode).collect::<Result<_>>()?;
        let path = |_| Path::new(sys, levels.unwrap_or(0), stride, levels.is_some());
        let paths = slots.iter().map(path).collect::<Result<_>>()?;
        Ok(Self { number: 0, nnz: 0, tiles: 0..0, modes, paths })
    }

    /// Bytes of such a group.
    pub fn bytes(slots: &[usize], stride: usize, levels: Option<usize>) -> u64 {
        let path = Path::bytes(levels.unwrap_or(0), stride);
        let mode = |&slots: &usize| AlignedRows::<f64>::bytes(slots * stride) + 6 * slots as u64 + path;
        slots.iter().map(mode).sum()
    }

    /// Begins group `number`.
    pub fn begin(&mut self, number: u64) {
        (self.number, self.nnz) = (number, 0);
        self.paths.iter_mut().for_each(Path::forget);
        for mode in &mut self.modes {
            mode.rows.clear();
            mode.sums.clear();
        }
    }
}

/// What a thread needs besides its group.
#[derive(Debug)]
pub struct Tables<T> {
    row_maps: Vec<RowMap>,
    ids: Vec<Ids>,
    /// Rows of the factors in slots, if all modes are computed.
    factors: Vec<AlignedRows<T>>,
}

impl<T: Real> Tables<T> {
    /// For modes of at most `slots` slots of `stride` elements; with `all`, for all modes at once.
    pub fn new(sys: &Sys, slots: &[usize], stride: usize, all: bool) -> Result<Self> {
        let factor = |&slots: &usize| AlignedRows::new(sys, if all { slots * stride } else { 0 });
        Ok(Self {
            row_maps: slots.iter().map(|_| RowMap::new(sys)).collect::<Result<_>>()?,
            ids: sys.vec([0; TILE_NNZ], slots.len())?,
            factors: slots.iter().map(factor).collect::<Result<_>>()?,
        })
    }

    /// Bytes that it takes.
    pub fn bytes(slots: &[usize], stride: usize, all: bool) -> u64 {
        let elements = |slots: usize| if all { slots * stride } else { 0 };
        let mode = |&slots: &usize| {
            RowMap::BYTES + size_of::<Ids>() as u64 + AlignedRows::<T>::bytes(elements(slots))
        };
        slots.iter().map(mode).sum()
    }
}

/// The inputs of all groups.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    pub factors: &'a [MatrixRef<'a, T>],
    /// The factors of modes with copies, with aligned rows, if all modes are computed.
    pub aligned: &'a [AlignedRows<T>],
    pub rank: usize,
    /// The kernel's stride.
    pub stride: usize,
    /// The computed modes and their strategies.
    pub modes: &'a [(usize, Strategy)],
    /// Whether these are all modes, in order.
    pub all: bool,
    /// Whether products of a single mode are in f64 whatever the factors are in.
    pub wide: bool,
    /// The order of modes of the tree that nonzeros form.
    pub tree: Option<ModeOrder>,
    /// Whether groups end here.
    pub ends: bool,
    /// The rows of a single mode that are computed.
    pub own: OwnRows,
}

/// Adds a group's nonzeros to its slots and its copy.
pub struct GroupWork<'a, T> {
    pub group: &'a mut Group,
    /// The copy of each computed mode; empty for modes without copies.
    pub copy: &'a mut [AlignedRows<f64>],
    pub tables: &'a mut Tables<T>,
    /// Decoded tiles, among which are the group's.
    pub tiles: &'a Tiles<'a>,
    pub inputs: Inputs<'a, T>,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<T: Real> pulp::WithSimd for GroupWork<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        if self.group.tiles.is_empty() {
            return self.close_paths();
        }
        self.start();
        for t in self.group.tiles.clone() {
            let tile = self.tiles.tile(t);
            self.group.nnz += tile.nnz;
            let own_nonzeros;
            let tile = if self.inputs.own.is_all() {
                tile
            } else {
                own_nonzeros = OwnNonzeros::of(&tile, self.inputs.modes[0].0, self.inputs.own);
                own_nonzeros.tile()
            };
            if tile.nnz == 0 {
                continue;
            }
            self.find_slots(&tile);
            match self.inputs.tree {
                Some(levels) => self.walk_each(simd, &tile, levels),
                None if self.inputs.all => self.add_all(simd, &tile),
                None => self.add_each(simd, &tile),
            }
        }
        if self.group.nnz == super::GROUP_NNZ || self.inputs.ends {
            self.close_paths();
        }
        for (row_map, sums) in self.tables.row_maps.iter_mut().zip(&self.group.modes) {
            row_map.stop(&sums.rows);
        }
    }
}

impl<T: Real> GroupWork<'_, T> {
    /// Prepares the tables for the rows to come and those already met.
    #[inline(always)]
    fn start(&mut self) {
        let Inputs { factors, stride, modes, all, .. } = self.inputs;
        for (k, (&(m, strategy), sums)) in modes.iter().zip(&self.group.modes).enumerate() {
            if strategy != Strategy::Slots {
                continue;
            }
            let (mut low, mut high) = (u32::MAX, 0);
            let of_tiles = self.group.tiles.clone().map(|t| self.tiles.range(t, m));
            for (first, last) in of_tiles.chain(sums.rows.iter().map(|&row| (row, row))) {
                (low, high) = (low.min(first), high.max(last));
            }
            self.tables.row_maps[k].start(low, high, &sums.rows);
            self.tables.factors[k].clear();
            if all {
                for &row in &sums.rows {
                    self.tables.factors[k].push(factors[m].row(row as usize), stride);
                }
            }
        }
    }

    /// Assigns every nonzero a slot in each mode with slots. New slots get zeros and, if all modes are computed, their
    /// factor row.
    #[inline(always)]
    fn find_slots(&mut self, tile: &DecodedTile<'_>) {
        let Inputs { factors, stride, modes, all, .. } = self.inputs;
        let Tables { row_maps, ids, factors: factor_rows } = &mut *self.tables;
        for (k, (&(m, strategy), sums)) in modes.iter().zip(&mut self.group.modes).enumerate() {
            if strategy != Strategy::Slots {
                continue;
            }
            let met = sums.rows.len();
            row_maps[k].assign(tile.column(m), &mut sums.rows, &mut ids[k]);
            sums.sums.grow(sums.rows.len() * stride);
            if all {
                for rows in sums.rows[met..].chunks(AHEAD) {
                    touch(factors[m].data(), rows, factors[m].columns());
                    for &row in rows {
                        factor_rows[k].push(factors[m].row(row as usize), stride);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn add_all<S: pulp::Simd>(&mut self, simd: S, tile: &DecodedTile<'_>) {
        let Inputs { aligned, stride, modes, .. } = self.inputs;
        let Tables { ids, factors, .. } = &*self.tables;
        let mut sums: [&mut [f64]; ORDER_MAX] = std::array::from_fn(|_| &mut [][..]);
        let mut shared =
            Shared { values: tile.values, stride, places: [&[]; ORDER_MAX], factors: [&[]; ORDER_MAX] };
        for (m, (slots, copy)) in self.group.modes.iter_mut().zip(&mut *self.copy).enumerate() {
            (shared.places[m], shared.factors[m], sums[m]) = match modes[m].1 {
                Strategy::Copies => (tile.column(m), aligned[m].data(), copy.data_mut()),
                Strategy::Slots => (&ids[m][..tile.nnz], factors[m].data(), slots.sums.data_mut()),
                Strategy::Lists => unreachable!("modes that have lists are not worked on together"),
            };
        }
        kernel::all_modes(simd, &shared, &mut sums[..modes.len()]);
    }

    #[inline(always)]
    fn walk_each<S: pulp::Simd>(&mut self, simd: S, tile: &DecodedTile<'_>, levels: ModeOrder) {
        let Inputs { factors, rank, stride, wide, modes, .. } = self.inputs;
        for (k, &(mode, strategy)) in modes.iter().enumerate() {
            let walked = Walked { levels, mode, factors, rank, stride, wide };
            let Group { modes, paths, .. } = &mut *self.group;
            let (places, sums) = match strategy {
                Strategy::Copies => (tile.column(mode), self.copy[k].data_mut()),
                Strategy::Slots => (&self.tables.ids[k][..tile.nnz], modes[k].sums.data_mut()),
                Strategy::Lists => continue,
            };
            paths[k].walk(simd, &walked, tile, places, sums);
        }
    }

    /// Adds the sums of open tree nodes to their rows.
    #[inline(always)]
    fn close_paths(&mut self) {
        let Inputs { factors, rank, stride, wide, modes, tree: Some(levels), .. } = self.inputs else {
            return;
        };
        for (k, &(mode, strategy)) in modes.iter().enumerate() {
            let walked = Walked { levels, mode, factors, rank, stride, wide };
            let Group { modes, paths, .. } = &mut *self.group;
            let sums = match strategy {
                Strategy::Copies => self.copy[k].data_mut(),
                Strategy::Slots => modes[k].sums.data_mut(),
                Strategy::Lists => continue,
            };
            paths[k].close(factors, &walked, sums);
        }
    }

    #[inline(always)]
    fn add_each<S: pulp::Simd>(&mut self, simd: S, tile: &DecodedTile<'_>) {
        let Inputs { factors: matrices, rank, stride, modes, wide, .. } = self.inputs;
        for (k, &(mode, strategy)) in modes.iter().enumerate() {
            let (places, sums) = match strategy {
                Strategy::Copies => (tile.column(mode), self.copy[k].data_mut()),
                Strategy::Slots => (&self.tables.ids[k][..tile.nnz], self.group.modes[k].sums.data_mut()),
                Strategy::Lists => continue,
            };
            let (mut columns, mut factors) = ([&[][..]; ORDER_MAX], [&[][..]; ORDER_MAX]);
            for (k, m) in (0..matrices.len()).filter(|&m| m != mode).enumerate() {
                (columns[k], factors[k]) = (tile.column(m), matrices[m].data());
            }
            let others = matrices.len() - 1;
            let (values, before) = (tile.values, mode);
            let tile = Single { values, rank, stride, places, columns, factors, before, others };
            if wide { kernel::one_mode_wide(&tile, sums) } else { kernel::one_mode(simd, &tile, sums) }
        }
    }
}

/// Adds a group's slots to a range of a result's rows.
pub struct Commit<'a> {
    pub group: &'a Group,
    /// The index of the mode among the computed modes.
    pub mode: usize,
    pub range: usize,
    pub first_row: u32,
    pub rank: usize,
    /// The kernel's stride.
    pub stride: usize,
    /// The range's sums.
    pub sums: &'a mut [f64],
}

impl pulp::WithSimd for Commit<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match self.rank {
            16 => self.run::<16>(),
            32 => self.run::<32>(),
            64 => self.run::<64>(),
            _ => self.run::<0>(),
        }
    }
}

impl Commit<'_> {
    #[inline(always)]
    fn run<const RANK: usize>(self) {
        let rank = if RANK > 0 { RANK } else { self.rank };
        let ModeSums { rows, sums: slots, by_range, ends } = &self.group.modes[self.mode];
        let begin = if self.range > 0 { ends[self.range - 1] } else { 0 };
        for slots_ahead in by_range[begin as usize..ends[self.range] as usize].chunks(AHEAD) {
            let mut places = [0; AHEAD];
            let places = &mut places[..slots_ahead.len()];
            for (place, &slot) in places.iter_mut().zip(slots_ahead) {
                *place = rows[slot as usize] - self.first_row;
            }
            touch(self.sums, places, rank);
            for (&place, &slot) in places.iter().zip(slots_ahead) {
                let sum = &mut self.sums[place as usize * rank..][..rank];
                let slot = &slots.data()[slot as usize * self.stride..][..rank];
                for (s, x) in sum.iter_mut().zip(slot) {
                    *s += x;
                }
            }
        }
    }
}
