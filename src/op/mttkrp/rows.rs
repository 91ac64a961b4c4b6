//! Slots: a group's sums, or the factor rows that it reads, stored close together. A row gets a slot when it first
//! occurs, so a group's data fit a core's cache, aligned, however far apart the rows are.

use super::GROUP_NNZ;
use super::kernel::LINE_BYTES;
use crate::dense::{MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::DecodedTile;
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use rayon::prelude::*;

/// Entries of a [`RowMap`]: four times the most rows of a group.
const ENTRIES: usize = 4 * GROUP_NNZ;
/// Marks an entry without a slot.
const NONE: u16 = u16::MAX;
/// A multiplier that spreads neighboring rows over all entries (Knuth's Fibonacci hashing).
const SPREAD: u32 = 0x9E37_79B1;
/// The slot of each nonzero of a tile.
pub type Ids = [u32; TILE_NNZ];

/// How many rows ahead are touched before use.
pub const AHEAD: usize = 16;

/// The rows of every mode that this operation computes, one of several that divide them. The sums of other rows stay zero. Rows are
/// divided by a hash, since neighboring rows often have many nonzeros.
#[derive(Clone, Copy, Debug)]
pub struct OwnRows {
    number: u32,
    count: u32,
}

impl OwnRows {
    pub const ALL: Self = Self { number: 0, count: 1 };

    /// Those of number `number` of `count`, at least 1.
    pub fn new(number: usize, count: usize) -> Self {
        let [number, count] = [number, count].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Self { number, count }
    }

    #[inline(always)]
    pub fn is_all(self) -> bool {
        self.count == 1
    }

    #[inline(always)]
    pub fn has(self, row: u32) -> bool {
        // The hash's share of 2^32, so the same part of all rows for each number.
        let hash = u64::from(row.wrapping_mul(SPREAD));
        (hash * u64::from(self.count)) >> u32::BITS == u64::from(self.number)
    }
}

/// The nonzeros of a tile in own rows.
#[derive(Debug)]
pub struct OwnNonzeros {
    nnz: usize,
    low: [u32; ORDER_MAX],
    high: [u32; ORDER_MAX],
    indices: [u32; ORDER_MAX * TILE_NNZ],
    values: [f64; TILE_NNZ],
}

impl OwnNonzeros {
    /// Those of `tile` in own rows of `mode`.
    #[inline(always)]
    pub fn of(tile: &DecodedTile<'_>, mode: usize, own: OwnRows) -> Self {
        let (mut places, mut nnz) = ([0; TILE_NNZ], 0);
        for (i, &row) in tile.column(mode).iter().enumerate() {
            places[nnz] = i;
            nnz += usize::from(own.has(row));
        }
        let (indices, values) = ([0; ORDER_MAX * TILE_NNZ], [0.0; TILE_NNZ]);
        let mut all = Self { nnz, low: tile.low, high: tile.high, indices, values };
        for (m, to) in (0..tile.order()).zip(all.indices.chunks_exact_mut(TILE_NNZ)) {
            let from = tile.column(m);
            to.iter_mut().zip(&places[..nnz]).for_each(|(to, &i)| *to = from[i]);
        }
        all.values.iter_mut().zip(&places[..nnz]).for_each(|(to, &i)| *to = tile.values[i]);
        all
    }

    /// As a tile, with the bounds of the whole one.
    #[inline(always)]
    pub fn tile(&self) -> DecodedTile<'_> {
        let Self { nnz, low, high, ref indices, ref values } = *self;
        DecodedTile { nnz, low, high, indices, values: &values[..nnz] }
    }
}

/// Reads one number of each cache line of rows that will be used soon, so that their memory accesses overlap.
#[inline(always)]
pub fn touch<T: Real>(table: &[T], rows: &[u32], rank: usize) {
    for &row in rows {
        for line in table[row as usize * rank..][..rank].chunks(LINE_BYTES / size_of::<T>()) {
            std::hint::black_box(line[0]);
        }
    }
}

/// Whether data begin at a cache line.
pub fn is_aligned<T>(data: &[T]) -> bool {
    data.as_ptr().align_offset(LINE_BYTES) == 0
}

/// Finds the slot of a row: by the row's last bits if the rows span fewer than its entries, otherwise in an open hash
/// table.
#[derive(Debug)]
pub struct RowMap {
    slots: Vec<u16>,
    /// The row of each entry with a slot, if rows span more than the entries.
    rows: Vec<u32>,
    near: bool,
}

impl RowMap {
    /// An empty map.
    pub fn new(sys: &Sys) -> Result<Self> {
        Ok(Self { slots: sys.vec(NONE, ENTRIES)?, rows: sys.vec(0, ENTRIES)?, near: true })
    }

    /// Bytes of a map.
    pub const BYTES: u64 = (ENTRIES * (size_of::<u16>() + size_of::<u32>())) as u64;

    /// Prepares it for rows between `low` and `high`. `rows` already have slots.
    pub fn start(&mut self, low: u32, high: u32, rows: &[u32]) {
        self.near = ((high - low) as usize) < ENTRIES;
        for (slot, &row) in (0..).zip(rows) {
            let at = if self.near { self.find::<true>(row) } else { self.find::<false>(row) };
            (self.slots[at], self.rows[at]) = (slot, row);
        }
    }

    /// Clears it. `rows` must be all rows with slots.
    pub fn stop(&mut self, rows: &[u32]) {
        if self.near {
            for &row in rows {
                self.slots[row as usize % ENTRIES] = NONE;
            }
        } else {
            self.slots.fill(NONE);
        }
    }

    /// The entry of `row`, or the free entry for it.
    #[inline(always)]
    fn find<const NEAR: bool>(&self, row: u32) -> usize {
        if NEAR {
            return row as usize % ENTRIES;
        }
        let mut at = (row.wrapping_mul(SPREAD) >> (u32::BITS - ENTRIES.trailing_zeros())) as usize % ENTRIES;
        while self.slots[at] != NONE && self.rows[at] != row {
            at = (at + 1) % ENTRIES;
        }
        at
    }

    /// Looks up the slots of `column`. A new row gets the next slot and is appended to `rows`.
    #[inline(always)]
    pub fn assign(&mut self, column: &[u32], rows: &mut Vec<u32>, ids: &mut Ids) {
        if self.near {
            self.assign_by::<true>(column, rows, ids);
        } else {
            self.assign_by::<false>(column, rows, ids);
        }
    }

    #[inline(always)]
    fn assign_by<const NEAR: bool>(&mut self, column: &[u32], rows: &mut Vec<u32>, ids: &mut Ids) {
        for (id, &row) in ids.iter_mut().zip(column) {
            let at = self.find::<NEAR>(row);
            let mut slot = self.slots[at];
            if slot == NONE {
                slot = u16::try_from(rows.len()).expect("a group has fewer slots");
                (self.slots[at], self.rows[at]) = (slot, row);
                rows.push(row);
            }
            *id = slot.into();
        }
    }
}

/// Consecutive rows of `stride` elements, starting at a cache line.
#[derive(Clone, Debug)]
pub struct AlignedRows<T> {
    data: Vec<T>,
    /// Elements before the first row.
    before: usize,
    room: usize,
}

impl<T: Real> AlignedRows<T> {
    /// No rows yet, with room for `elements`. Its pages are not touched before they are used.
    pub fn new(sys: &Sys, elements: usize) -> Result<Self> {
        let mut data: Vec<T> = Vec::new();
        let room = elements + LINE_BYTES / size_of::<T>();
        sys.reserve(&mut data, room, room)?;
        let before = data.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES / size_of::<T>());
        data.resize(before, T::nearest(0.0));
        Ok(Self { data, before, room })
    }

    /// Bytes of one with room for `elements`.
    pub fn bytes(elements: usize) -> u64 {
        (elements * size_of::<T>() + LINE_BYTES) as u64
    }

    pub fn clear(&mut self) {
        self.data.truncate(self.before);
    }

    #[inline(always)]
    pub fn data(&self) -> &[T] {
        &self.data[self.before..]
    }

    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [T] {
        &mut self.data[self.before..]
    }

    /// Extends it with zeros to `elements`.
    #[inline(always)]
    pub fn grow(&mut self, elements: usize) {
        debug_assert!(self.before + elements <= self.room, "the room was reserved");
        self.data.resize(self.before + elements, T::nearest(0.0));
    }

    /// Whether it has room for `data`.
    pub fn has_room_for(&self, data: &[T]) -> bool {
        self.room == data.len() + LINE_BYTES / size_of::<T>()
    }

    /// Copies all rows, on all threads.
    pub fn copy_all(&mut self, data: &[T]) {
        /// Elements that justify another thread.
        const ELEMENTS: usize = 1 << 14;
        self.grow(data.len());
        let parts = self.data_mut().par_chunks_mut(ELEMENTS).zip(data.par_chunks(ELEMENTS));
        parts.for_each(|(to, from)| to.copy_from_slice(from));
    }

    /// Copies the rows of a matrix and pads each with zeros to `stride` elements, on all threads.
    pub fn copy_from(&mut self, matrix: MatrixRef<'_, T>, stride: usize) {
        /// Rows that justify another thread.
        const ROWS: usize = 1 << 9;
        let rank = matrix.columns();
        self.grow(matrix.rows() * stride);
        let parts = self.data_mut().par_chunks_mut(ROWS * stride).zip(matrix.data().par_chunks(ROWS * rank));
        parts.for_each(|(to, from)| {
            let rows = to.chunks_exact_mut(stride).zip(from.chunks_exact(rank));
            rows.for_each(|(to, from)| to[..rank].copy_from_slice(from));
        });
    }

    /// Appends a row, padded with zeros to `stride` elements.
    #[inline(always)]
    pub fn push(&mut self, row: &[T], stride: usize) {
        self.data.extend_from_slice(row);
        let end = self.data.len() - row.len() + stride;
        self.data.resize(end, T::nearest(0.0));
    }
}
