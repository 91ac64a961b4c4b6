//! Slots: a group's sums, or the rows of a factor that it reads, close together. A row gets a slot when it is first met, so that what a
//! group works on lies in a core's cache, aligned, however far apart the rows are.

use super::kernel::LINE_BYTES;
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::sys::Sys;

/// Entries of a [`Finder`]: four times the most rows of a group.
const ENTRIES: usize = 8192;
/// Multiplying by it spreads neighbouring rows over all entries (Knuth's Fibonacci hashing).
const SPREAD: u32 = 0x9E37_79B1;

/// The slot of each nonzero of a tile.
pub type Ids = [u16; TILE_NNZ];

/// Finds the slot of a row: an open hash table. Rows that span fewer than its entries never collide.
#[derive(Debug)]
pub struct Finder {
    /// `(row + 1) << 16 | slot`, or 0.
    entries: Vec<u64>,
    multiplier: u32,
    shift: u32,
    /// Nonzeros in each slot so far.
    counts: Vec<u8>,
}

impl Finder {
    /// An empty one, for at most `slots` slots.
    pub fn new(sys: &Sys, slots: usize) -> Result<Self> {
        Ok(Self { entries: sys.vec(0, ENTRIES)?, multiplier: 1, shift: 0, counts: sys.vec(0, slots)? })
    }

    /// Bytes that one for `slots` slots takes.
    pub fn bytes(slots: usize) -> u64 {
        (ENTRIES * size_of::<u64>() + slots) as u64
    }

    #[inline(always)]
    fn home(&self, row: u32) -> usize {
        (row.wrapping_mul(self.multiplier) >> self.shift) as usize % ENTRIES
    }

    /// Empties it and makes it ready for rows between `low` and `high`, of which those of `slots` have one. It is
    /// found again how often each occurs in `counts`.
    #[inline(always)]
    pub fn start(&mut self, low: u32, high: u32, slots: &[u32], counts: &[u8]) {
        self.entries.fill(0);
        let near = ((high - low) as usize) < ENTRIES;
        (self.multiplier, self.shift) =
            if near { (1, 0) } else { (SPREAD, u32::BITS - ENTRIES.trailing_zeros()) };
        for (slot, (&row, &count)) in slots.iter().zip(counts).enumerate() {
            // A row's later slots take the place of its earlier ones.
            let at = self.find(row);
            self.entries[at] = entry(row, slot);
            self.counts[slot] = count;
        }
    }

    /// The entry of `row`, or the empty one where it belongs.
    #[inline(always)]
    fn find(&self, row: u32) -> usize {
        let mut at = self.home(row);
        while self.entries[at] != 0 && self.entries[at] >> 16 != u64::from(row) + 1 {
            at = (at + 1) % ENTRIES;
        }
        at
    }

    /// Looks up the slots of `column`. A row that is new, or whose slot has taken `limit` nonzeros, gets another, which is
    /// appended to `rows`.
    #[inline(always)]
    pub fn assign<const LIMIT: usize>(&mut self, column: &[u32], rows: &mut Vec<u32>, ids: &mut Ids) {
        for (id, &row) in ids.iter_mut().zip(column) {
            let at = self.find(row);
            let mut slot = (self.entries[at] & 0xFFFF) as usize;
            let full = LIMIT > 0 && usize::from(self.counts[slot]) == LIMIT;
            if self.entries[at] == 0 || full {
                slot = rows.len();
                self.entries[at] = entry(row, slot);
                rows.push(row);
                self.counts[slot] = 0;
            }
            if LIMIT > 0 {
                self.counts[slot] += 1;
            }
            #[expect(clippy::cast_possible_truncation, reason = "a group has fewer slots")]
            let found = slot as u16;
            *id = found;
        }
    }

    /// Nonzeros in each of the first `slots` slots.
    pub fn counts(&self, slots: usize) -> &[u8] {
        &self.counts[..slots]
    }
}

#[inline(always)]
fn entry(row: u32, slot: usize) -> u64 {
    (u64::from(row) + 1) << 16 | slot as u64
}

/// Rows of `stride` elements one behind the other, the first at the start of a cache line.
#[derive(Clone, Debug)]
pub struct Rows<T> {
    data: Vec<T>,
    /// Elements before the first row.
    before: usize,
    room: usize,
}

impl<T: Real> Rows<T> {
    /// None yet, with room for `elements`, which is not touched before it is used.
    pub fn new(sys: &Sys, elements: usize) -> Result<Self> {
        let mut data: Vec<T> = Vec::new();
        let room = elements + LINE_BYTES / size_of::<T>();
        sys.reserve(&mut data, room, room)?;
        let before = data.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES / size_of::<T>());
        data.resize(before, T::nearest(0.0));
        Ok(Self { data, before, room })
    }

    /// Bytes that one with room for `elements` takes.
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

    /// Lengthens it to `elements`, zeros behind.
    #[inline(always)]
    pub fn grow(&mut self, elements: usize) {
        debug_assert!(self.before + elements <= self.room, "the room was reserved");
        self.data.resize(self.before + elements, T::nearest(0.0));
    }

    /// Appends a row, zeros behind up to `stride` elements.
    #[inline(always)]
    pub fn push(&mut self, row: &[T], stride: usize) {
        self.data.extend_from_slice(row);
        let end = self.data.len() - row.len() + stride;
        self.data.resize(end, T::nearest(0.0));
    }
}
