//! A group: [`GROUP_TILES`] tiles of the store, the unit of work of MTTKRP on the host. One thread adds up what its nonzeros contribute to
//! the rows that they meet, in slots of its own; whole groups are then added to the results in order.

use super::kernel::{self, Shared, Single};
use super::slots::{Finder, Ids, Rows};
use crate::backend::host::Batch;
use crate::dense::{Matrix, Precision, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::DecodedTile;
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use std::ops::Range;

/// Tiles of a group, which is cut by position in the store.
pub const GROUP_TILES: usize = 4;
/// Nonzeros of a whole group.
pub const GROUP_NNZ: usize = GROUP_TILES * TILE_NNZ;
/// The longest chain of additions in f32: a row that has taken as many nonzeros goes on in another slot, and slots are added up in
/// f64.
pub const CHAIN: u32 = 64;

/// The most slots of a mode of `rows` rows in a group.
pub fn slots_max<T: Real>(rows: usize) -> usize {
    let again = if T::PRECISION == Precision::F32 { GROUP_NNZ / CHAIN as usize } else { 0 };
    (rows + again).min(GROUP_NNZ)
}

/// What a group adds to one mode.
#[derive(Debug)]
pub struct ModeSums<T> {
    /// The row of each slot, in the order in which they were met.
    pub rows: Vec<u32>,
    /// Nonzeros in each slot, kept for a group that is not whole yet.
    counts: Vec<u8>,
    /// The slots, each a row of the kernel's stride.
    pub sums: Rows<T>,
}

/// A group, as far as its nonzeros have come.
#[derive(Debug)]
pub struct Group<T> {
    pub number: u64,
    /// Nonzeros so far.
    pub nnz: usize,
    /// Its tiles in the batch at hand.
    pub tiles: Range<usize>,
    /// In the order of the modes that are computed.
    pub modes: Vec<ModeSums<T>>,
}

impl<T: Real> Group<T> {
    /// Room for a group, for modes of at most so many slots.
    pub fn new(sys: &Sys, slots: &[usize], rank: usize) -> Result<Self> {
        let mode = |&slots: &usize| {
            let (mut rows, mut counts) = (Vec::new(), Vec::new());
            sys.reserve(&mut rows, slots, slots)?;
            sys.reserve(&mut counts, slots, slots)?;
            Ok(ModeSums { rows, counts, sums: Rows::new(sys, slots * kernel::stride::<T>(rank))? })
        };
        let modes = slots.iter().map(mode).collect::<Result<_>>()?;
        Ok(Self { number: 0, nnz: 0, tiles: 0..0, modes })
    }

    /// Bytes of that room.
    pub fn bytes(slots: &[usize], rank: usize) -> u64 {
        let mode = |&slots: &usize| Rows::<T>::bytes(slots * kernel::stride::<T>(rank)) + 5 * slots as u64;
        slots.iter().map(mode).sum()
    }

    /// Begins group `number`.
    pub fn begin(&mut self, number: u64) {
        (self.number, self.nnz) = (number, 0);
        for mode in &mut self.modes {
            mode.rows.clear();
            mode.counts.clear();
            mode.sums.clear();
        }
    }
}

/// What a thread needs beside the group that it works on.
#[derive(Debug)]
pub struct Scratch<T> {
    finders: Vec<Finder>,
    ids: Vec<Ids>,
    /// Rows of the factors in slots, when all modes are computed.
    factors: Vec<Rows<T>>,
}

impl<T: Real> Scratch<T> {
    /// For modes of at most so many slots; with `all`, for all modes at once.
    pub fn new(sys: &Sys, slots: &[usize], rank: usize, all: bool) -> Result<Self> {
        let factors = if all { slots } else { &[] };
        Ok(Self {
            finders: slots.iter().map(|&slots| Finder::new(sys, slots)).collect::<Result<_>>()?,
            ids: sys.vec([0; TILE_NNZ], slots.len())?,
            factors: factors
                .iter()
                .map(|&slots| Rows::new(sys, slots * kernel::stride::<T>(rank)))
                .collect::<Result<_>>()?,
        })
    }

    /// Bytes that it takes.
    pub fn bytes(slots: &[usize], rank: usize, all: bool) -> u64 {
        let factor = |slots: usize| if all { Rows::<T>::bytes(slots * kernel::stride::<T>(rank)) } else { 0 };
        let mode = |&slots: &usize| Finder::bytes(slots) + size_of::<Ids>() as u64 + factor(slots);
        slots.iter().map(mode).sum()
    }
}

/// What all groups are computed from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    pub batch: &'a Batch<'a>,
    pub factors: &'a [Matrix<T>],
    pub rank: usize,
    /// The modes that are computed.
    pub modes: &'a [usize],
    /// Whether these are all modes, in order.
    pub all: bool,
}

/// Adds a group's nonzeros of a batch to its slots.
pub struct Work<'a, T> {
    pub group: &'a mut Group<T>,
    pub scratch: &'a mut Scratch<T>,
    pub inputs: Inputs<'a, T>,
}

/// Compiled for the vectors that the machine has; not a closure, for the reason that stands in `backend::host`.
impl<T: Real> pulp::WithSimd for Work<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, _: S) {
        self.start();
        for t in self.group.tiles.clone() {
            let tile = self.inputs.batch.tile(t);
            self.group.nnz += tile.nnz;
            self.find_slots(&tile);
            if self.inputs.all { self.add_all(&tile) } else { self.add_each(&tile) }
        }
        self.stop();
    }
}

impl<T: Real> Work<'_, T> {
    /// Makes the tables ready for the rows that are to come and those that were met before.
    #[inline(always)]
    fn start(&mut self) {
        let Inputs { batch, factors, rank, modes, .. } = self.inputs;
        for ((&m, sums), finder) in modes.iter().zip(&self.group.modes).zip(&mut self.scratch.finders) {
            let (mut low, mut high) = (u32::MAX, 0);
            for t in self.group.tiles.clone() {
                let (first, last) = batch.range(t, m);
                (low, high) = (low.min(first), high.max(last));
            }
            for &row in &sums.rows {
                (low, high) = (low.min(row), high.max(row));
            }
            finder.start(low, high, &sums.rows, &sums.counts);
        }
        for ((rows, sums), factor) in self.scratch.factors.iter_mut().zip(&self.group.modes).zip(factors) {
            rows.clear();
            for &row in &sums.rows {
                rows.push(factor.row(row as usize), kernel::stride::<T>(rank));
            }
        }
    }

    /// Gives every nonzero a slot in each mode, and new slots zeros and, for all modes, their row of the factor.
    #[inline(always)]
    fn find_slots(&mut self, tile: &DecodedTile<'_>) {
        let Inputs { factors, rank, modes, .. } = self.inputs;
        let stride = kernel::stride::<T>(rank);
        let Scratch { finders, ids, factors: factor_rows } = &mut *self.scratch;
        for (k, (&m, sums)) in modes.iter().zip(&mut self.group.modes).enumerate() {
            let met = sums.rows.len();
            match T::PRECISION {
                Precision::F64 => finders[k].assign::<0>(tile.column(m), &mut sums.rows, &mut ids[k]),
                Precision::F32 => {
                    finders[k].assign::<{ CHAIN as usize }>(tile.column(m), &mut sums.rows, &mut ids[k]);
                }
            }
            sums.sums.grow(sums.rows.len() * stride);
            if let Some(rows) = factor_rows.get_mut(k) {
                for &row in &sums.rows[met..] {
                    rows.push(factors[m].row(row as usize), stride);
                }
            }
        }
    }

    #[inline(always)]
    fn add_all(&mut self, tile: &DecodedTile<'_>) {
        let Scratch { ids, factors, .. } = &*self.scratch;
        let mut modes = self.group.modes.iter_mut();
        let mut sums: [&mut [T]; ORDER_MAX] =
            std::array::from_fn(|_| modes.next().map_or(&mut [][..], |mode| mode.sums.data_mut()));
        let shared = Shared {
            values: tile.values,
            stride: kernel::stride::<T>(self.inputs.rank),
            ids,
            factors: std::array::from_fn(|m| factors.get(m).map_or(&[][..], Rows::data)),
        };
        kernel::all_modes(&shared, &mut sums[..ids.len()]);
    }

    #[inline(always)]
    fn add_each(&mut self, tile: &DecodedTile<'_>) {
        let Inputs { factors: matrices, rank, modes, .. } = self.inputs;
        for ((&mode, ids), sums) in modes.iter().zip(&self.scratch.ids).zip(&mut self.group.modes) {
            let (mut columns, mut factors) = ([&[][..]; ORDER_MAX], [&[][..]; ORDER_MAX]);
            for (k, m) in (0..matrices.len()).filter(|&m| m != mode).enumerate() {
                (columns[k], factors[k]) = (tile.column(m), matrices[m].data());
            }
            let single = Single {
                values: tile.values,
                rank,
                stride: kernel::stride::<T>(rank),
                ids,
                columns,
                factors,
                before: mode,
                others: matrices.len() - 1,
            };
            kernel::one_mode(&single, sums.sums.data_mut());
        }
    }

    /// Keeps what a group that is not whole goes on with.
    #[inline(always)]
    fn stop(&mut self) {
        for (sums, finder) in self.group.modes.iter_mut().zip(&self.scratch.finders) {
            sums.counts.clear();
            sums.counts.extend_from_slice(finder.counts(sums.rows.len()));
        }
    }
}

/// Adds whole groups, in order, to some rows of a result.
pub struct Commit<'a, T> {
    pub groups: &'a [Group<T>],
    /// The place of the mode among those that are computed.
    pub mode: usize,
    pub rank: usize,
    pub first_row: usize,
    /// Rows `first_row` and on.
    pub sums: &'a mut [f64],
}

impl<T: Real> pulp::WithSimd for Commit<'_, T> {
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

impl<T: Real> Commit<'_, T> {
    #[inline(always)]
    fn run<const RANK: usize>(self) {
        let rank = if RANK > 0 { RANK } else { self.rank };
        let stride = kernel::stride::<T>(rank);
        let rows = self.first_row..self.first_row + self.sums.len() / rank;
        for group in self.groups {
            let mode = &group.modes[self.mode];
            for (&row, slot) in mode.rows.iter().zip(mode.sums.data().chunks_exact(stride)) {
                if rows.contains(&(row as usize)) {
                    let sum = &mut self.sums[(row as usize - rows.start) * rank..][..rank];
                    for (s, x) in sum.iter_mut().zip(&slot[..rank]) {
                        *s += x.widen();
                    }
                }
            }
        }
    }
}
