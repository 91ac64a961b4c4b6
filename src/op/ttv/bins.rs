//! The records of TTV's oracle, within a memory budget. Records are in bins by a hash of their place, so that each bin
//! can be processed alone. Records that do not fit in memory go to one file, in pieces of one bin each.

use crate::error::Result;
use crate::sys::{File, SpillDir, SpillOwner, Sys, spill_name};
use std::path::PathBuf;

/// A partial sum of one element.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct BinRecord {
    /// The element's number among all coordinates, low and high half.
    place: [u64; 2],
    /// A sum of its products, and over their absolute values.
    pub sum: f64,
    pub absolute: f64,
    /// The number of products in it.
    pub added: u64,
}

/// Bytes of records per element while a bin is processed: computed and expected ones, each with as many that are not
/// added up yet.
const ELEMENT_BYTES: u64 = 4 * size_of::<BinRecord>() as u64;
/// The most bins.
const BINS_MAX: u64 = 1 << 12;
/// The fewest records of a bin per read.
const READ_RECORDS: usize = 1 << 12;

impl BinRecord {
    pub fn new(place: u128, sum: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "halves")]
        let place = [place as u64, (place >> 64) as u64];
        Self { place, sum, absolute: sum.abs(), added: 1 }
    }

    /// The number of its element.
    pub fn place(&self) -> u128 {
        u128::from(self.place[1]) << 64 | u128::from(self.place[0])
    }

    /// The bin of its element, out of `bins`.
    fn bin(&self, bins: u64) -> usize {
        let mixed = (self.place[0] ^ self.place[1].rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        #[expect(clippy::cast_possible_truncation, reason = "below the number of bins")]
        let bin = ((u128::from(mixed) * u128::from(bins)) >> 64) as usize;
        bin
    }
}

/// Sorts records by bin, out of `bins`, and place, and adds up those of one element in their original order.
fn add_up(records: &mut Vec<BinRecord>, bins: u64) {
    records.sort_by_key(|record| (record.bin(bins), record.place()));
    records.dedup_by(|next, first| {
        let same = next.place == first.place;
        if same {
            first.sum += next.sum;
            first.absolute += next.absolute;
            first.added += next.added;
        }
        same
    });
}

/// The file for records that do not fit in memory.
#[derive(Debug)]
pub(super) struct Overflow {
    sys: Sys,
    parent: PathBuf,
    open: Option<(File, SpillDir)>,
    bytes: u64,
}

impl Overflow {
    /// A file in a private directory in `parent`. The directory is created on demand and removed with this.
    pub fn new(sys: &Sys, parent: PathBuf) -> Self {
        Self { sys: sys.clone(), parent, open: None, bytes: 0 }
    }

    fn write(&mut self, records: &[BinRecord]) -> Result<u64> {
        if self.open.is_none() {
            let owner = SpillOwner::new(None);
            let directory = self.sys.make_spill_dir(&self.parent.join(spill_name()), &owner)?;
            self.open = Some((directory.create("bins")?, directory));
        }
        let (at, bytes) = (self.bytes, bytemuck::cast_slice(records));
        if let Some((file, _)) = &self.open {
            file.write_all_at(bytes, at)?;
        }
        self.bytes += bytes.len() as u64;
        Ok(at)
    }

    /// Fills `records` from byte `at` on.
    fn read(&self, at: u64, records: &mut [BinRecord]) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut(records);
        let Some((file, _)) = &self.open else { return Ok(()) };
        let read = file.read_at(bytes, at)?;
        let cut = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        if read == bytes.len() { Ok(()) } else { Err(crate::error::Error::io(file.path(), "read")(cut)) }
    }
}

/// Records by bins.
#[derive(Debug)]
pub(super) struct Bins {
    /// The records in memory, and the most that may be there.
    held: Vec<BinRecord>,
    room: usize,
    /// For each bin, the offset and the number of records of each of its pieces in the file.
    pieces: Vec<Vec<(u64, usize)>>,
}

impl Bins {
    /// For about `elements` elements in `memory` bytes. The records of one bin should not exceed these
    /// either.
    pub fn new(elements: u64, memory: u64) -> Self {
        let bins = (elements.saturating_mul(ELEMENT_BYTES) / memory.max(1) + 1).min(BINS_MAX);
        // Sorting takes half as much memory again.
        let room = memory / 3 * 2 / size_of::<BinRecord>() as u64;
        let pieces = vec![Vec::new(); usize::try_from(bins).unwrap_or(1)];
        // A growing list would leave its old memory behind.
        let held = Vec::with_capacity(usize::try_from(room.min(elements)).unwrap_or(0));
        Self { held, room: usize::try_from(room).unwrap_or(usize::MAX).max(1), pieces }
    }

    /// The number of bins.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Adds a record.
    pub fn push(&mut self, record: BinRecord, overflow: &mut Overflow) -> Result<()> {
        self.held.push(record);
        if self.held.len() < self.room { Ok(()) } else { self.shed(overflow) }
    }

    /// Adds up the records in memory. If that frees little, writes them to the file.
    fn shed(&mut self, overflow: &mut Overflow) -> Result<()> {
        add_up(&mut self.held, self.pieces.len() as u64);
        if self.held.len() < self.room / 2 { Ok(()) } else { self.write(overflow) }
    }

    /// Writes the added-up records.
    fn write(&mut self, overflow: &mut Overflow) -> Result<()> {
        let bins = self.pieces.len() as u64;
        for bin in self.held.chunk_by(|a, b| a.bin(bins) == b.bin(bins)) {
            self.pieces[bin[0].bin(bins)].push((overflow.write(bin)?, bin.len()));
        }
        self.held.clear();
        Ok(())
    }

    /// Prepares for processing bins one by one: if some of the records are in the file, all others go there too.
    pub fn end(&mut self, overflow: &mut Overflow) -> Result<()> {
        add_up(&mut self.held, self.pieces.len() as u64);
        if self.pieces.iter().all(Vec::is_empty) {
            return Ok(());
        }
        self.write(overflow)?;
        self.held = Vec::new();
        Ok(())
    }

    /// The records of a bin in the order of their places, one per element, after [`Bins::end`]. They are removed from
    /// here.
    pub fn take(&mut self, bin: usize, overflow: &Overflow) -> Result<Vec<BinRecord>> {
        let bins = self.pieces.len() as u64;
        if bins == 1 && self.pieces[0].is_empty() {
            return Ok(std::mem::take(&mut self.held));
        }
        let first = self.held.partition_point(|record| record.bin(bins) < bin);
        let end = self.held.partition_point(|record| record.bin(bins) <= bin);
        let mut records = self.held[first..end].to_vec();
        let mut read_to = READ_RECORDS.max(2 * records.len());
        for (mut at, mut count) in std::mem::take(&mut self.pieces[bin]) {
            while count > 0 {
                let some = count.min(READ_RECORDS);
                let before = records.len();
                records.resize(before + some, BinRecord::default());
                overflow.read(at, &mut records[before..])?;
                (at, count) = (at + (some * size_of::<BinRecord>()) as u64, count - some);
                if records.len() >= read_to {
                    add_up(&mut records, bins);
                    read_to = READ_RECORDS.max(2 * records.len());
                }
            }
        }
        add_up(&mut records, bins);
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any amount of memory, each element is returned once, with the sums of all its records.
    #[test]
    fn records_come_back_added_up_whatever_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let taken = |memory: u64| {
            let mut overflow = Overflow::new(&Sys::default(), dir.path().to_path_buf());
            let mut bins = Bins::new(5000, memory);
            for i in 0..40_000u64 {
                let place = u128::from(i * 7919 % 5000) << 60;
                bins.push(BinRecord::new(place, (i % 9) as f64 - 3.0), &mut overflow).unwrap();
            }
            let mut all = Vec::new();
            bins.end(&mut overflow).unwrap();
            for bin in 0..bins.count() {
                all.extend(bins.take(bin, &overflow).unwrap());
            }
            all.sort_by_key(BinRecord::place);
            (all, bins.count(), overflow.bytes)
        };
        let (in_memory, bins, bytes) = taken(1 << 30);
        assert!((in_memory.len(), bins, bytes) == (5000, 1, 0) && in_memory.iter().all(|r| r.added == 8));
        let (from_file, bins, bytes) = taken(64 << 10);
        assert!(bins > 10 && bytes > 0, "{bins} bins, {bytes} bytes");
        assert!(from_file == in_memory);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the file goes");
    }
}
