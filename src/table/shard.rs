//! A shard of a column's labels, with their numbers.
//!
//! A lookup waits for memory twice: for the slot of the hash, and for the label's record, which holds its text and number. Labels are
//! therefore looked up in groups, whose slots and records are fetched first. Those reads do not depend on each other, so they overlap.

use std::hint::black_box;

/// Bytes of a block of records; a longer record has a block of its own.
const BLOCK_BYTES: usize = 64 << 10;
/// Records begin at multiples of this.
const UNIT: usize = 4;
/// Bits of a place for the record's offset in its block, in units.
const WITHIN_BITS: u32 = (BLOCK_BYTES / UNIT).ilog2();
/// Bytes of a record's length and number, which come before its text.
const HEAD: usize = 8;
/// Slots of a new table.
const SLOTS: usize = 64;
/// A shard with this many blocks is full: a quarter of what a place can address.
const BLOCKS_FULL: usize = 1 << (30 - WITHIN_BITS);

/// Labels, numbered from 0 in order of arrival.
#[derive(Debug)]
pub struct Shard {
    /// A hash table with linear probing, at most five sixths full. A slot holds the low half of a label's hash and, above it, the place of
    /// its record, counted from 1; 0 if free.
    slots: Vec<u64>,
    /// Places of the records.
    places: Vec<u32>,
    /// The records: length, number, text.
    blocks: Vec<Vec<u8>>,
    /// How often each label occurred, if that is wanted.
    counts: Vec<u64>,
    block_bytes: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "the low half")]
fn low(x: u64) -> u32 {
    x as u32
}

fn fit(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Default for Shard {
    /// An empty shard.
    fn default() -> Self {
        let (places, blocks, counts) = (Vec::new(), Vec::new(), Vec::new());
        Self { slots: vec![0; SLOTS], places, blocks, counts, block_bytes: 0 }
    }
}

impl Shard {
    /// Its memory in bytes.
    pub fn bytes(&self) -> u64 {
        let lists = self.slots.capacity() * 8 + self.places.capacity() * 4 + self.counts.capacity() * 8;
        self.block_bytes + lists as u64
    }

    /// Whether it should get no more labels.
    pub fn is_full(&self) -> bool {
        self.blocks.len() >= BLOCKS_FULL
    }

    /// The number of labels.
    pub fn labels(&self) -> u32 {
        fit(self.places.len())
    }

    /// How often a label occurred.
    pub fn count(&self, local: u32) -> u64 {
        self.counts.get(local as usize).copied().unwrap_or(0)
    }

    /// The same without its hash table, if no more labels follow.
    pub fn without_table(self) -> Self {
        Self { slots: Vec::new(), ..self }
    }

    /// A label's text.
    pub fn text(&self, local: u32) -> &[u8] {
        self.record(self.places[local as usize]).1
    }

    /// The block of a place, and the byte in it.
    fn parts(place: u32) -> (usize, usize) {
        ((place >> WITHIN_BITS) as usize, (place & ((1 << WITHIN_BITS) - 1)) as usize * UNIT)
    }

    /// The number and the text of the record at `place`.
    fn record(&self, place: u32) -> (u32, &[u8]) {
        let (block, within) = Self::parts(place);
        let record = &self.blocks[block][within..];
        let (head, rest) = record.split_at(HEAD);
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        (number(4), &rest[..number(0) as usize])
    }

    /// Reads the memory that lookups of labels with these hashes and lengths need, so that it is in the caches.
    pub fn fetch(&self, labels: impl Iterator<Item = (u64, usize)> + Clone) {
        let mask = self.slots.len() - 1;
        // No branch depends on the slots, so the reads overlap.
        black_box(labels.clone().fold(0, |all, (hash, _)| all ^ self.slots[low(hash) as usize & mask]));
        // Nor on the records: where they begin and where they end.
        black_box(labels.fold(0, |all, (hash, length)| {
            let (_, slot) = self.find(low(hash), low(hash) as usize & mask);
            let Some(place) = (slot >> 32).checked_sub(1) else { return all };
            let (block, within) = Self::parts(low(place));
            let block = &self.blocks[block];
            all ^ block[within] ^ block[(within + HEAD + length).min(block.len()) - 1]
        }));
    }

    /// From slot `at` on, the first that is free, or has this hash: where, and what it holds.
    fn find(&self, hash: u32, mut at: usize) -> (usize, u64) {
        let mask = self.slots.len() - 1;
        loop {
            let slot = self.slots[at];
            if slot == 0 || low(slot) == hash {
                return (at, slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// The number of `label`, and whether it is new.
    pub fn intern(&mut self, label: &[u8], hash: u64, counted: bool) -> (u32, bool) {
        let hash = low(hash);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        let known = loop {
            let (found, slot) = self.find(hash, at);
            at = found;
            if slot == 0 {
                break None;
            }
            let (local, text) = self.record(low((slot >> 32) - 1));
            if text == label {
                break Some(local);
            }
            at = (at + 1) & mask;
        };
        let local = known.unwrap_or_else(|| self.add(label, hash, at));
        if counted {
            self.counts.resize(self.places.len(), 0);
            self.counts[local as usize] += 1;
        }
        (local, known.is_none())
    }

    /// Adds a label in the free slot `at`.
    fn add(&mut self, label: &[u8], hash: u32, at: usize) -> u32 {
        let bytes = (HEAD + label.len()).next_multiple_of(UNIT);
        if self.blocks.last().is_none_or(|block| block.capacity() - block.len() < bytes) {
            let room = bytes.max(BLOCK_BYTES);
            self.blocks.push(Vec::with_capacity(room));
            self.block_bytes += room as u64;
        }
        let block = self.blocks.len() - 1;
        let records = &mut self.blocks[block];
        let place = fit(block) << WITHIN_BITS | fit(records.len() / UNIT);
        let local = fit(self.places.len());
        let end = records.len() + bytes;
        records.extend(fit(label.len()).to_le_bytes());
        records.extend(local.to_le_bytes());
        records.extend_from_slice(label);
        records.resize(end, 0);
        self.places.push(place);
        self.slots[at] = u64::from(hash) | (u64::from(place) + 1) << 32;
        if self.places.len() * 6 > self.slots.len() * 5 {
            self.grow();
        }
        local
    }

    /// Doubles the hash table.
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        let mask = 2 * old.len() - 1;
        self.slots = vec![0; mask + 1];
        for slot in old.into_iter().filter(|&slot| slot != 0) {
            let mut at = low(slot) as usize & mask;
            while self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Compares with a map: labels of all lengths, and many hashes that are equal in the half that is kept.
    #[test]
    fn labels_keep_their_numbers() {
        let label = |n: u64| vec![b'a' + (n % 26) as u8; [0, 1, 7, 8, 40, 70_000][(n % 6) as usize]];
        let label = |n: u64| [n.to_string().into_bytes(), label(n)].concat();
        let (mut shard, mut known) = (Shard::default(), HashMap::new());
        let numbers = (0..6000).map(|i| i * i % 1511);
        for group in numbers.collect::<Vec<u64>>().chunks(50) {
            let hash = |n: u64| (n / 3) | (n << 40);
            shard.fetch(group.iter().map(|&n| (hash(n), label(n).len())));
            for &n in group {
                let next = fit(known.len());
                let is_new = !known.contains_key(&n);
                let (local, times) = known.entry(n).or_insert((next, 0));
                *times += 1;
                assert_eq!(shard.intern(&label(n), hash(n), true), (*local, is_new));
            }
        }
        assert_eq!(shard.labels() as usize, known.len());
        for (n, (local, times)) in known {
            assert_eq!((shard.text(local), shard.count(local)), (&label(n)[..], times));
        }
    }
}
