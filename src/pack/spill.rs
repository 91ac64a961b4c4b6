//! Temporary files of the packer: frames of packed nonzeros, each with its checksum. Their layout is private to
//! one packing job. A resumed job reads files of another process, which may contain anything, so everything that
//! the packer cannot have written is an error.
//!
//! There are two kinds. *Staged* files hold batches in input order, with coordinates as packed columns, while the
//! shape is unknown. *Runs* hold nonzeros in linear order, as packed differences.

use super::spilled::{FRAME_HEADER, SpilledFile};
use crate::coo::Batch;
use crate::encoding::TILE_NNZ;
use crate::encoding::column::{self, Numbers};
use crate::encoding::values::{ChosenValues, TileValues, unpack_integers};
use crate::encoding::width;
use crate::error::{Error, Result};
use crate::linear::{Key, Nonzero};
use crate::shape::ORDER_MAX;
use crate::sys::File;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Nonzeros of a frame of a run.
pub const FRAME_NNZ: usize = 8 * TILE_NNZ;
/// Nonzeros of a staged frame, at most.
pub const STAGE_NNZ: usize = 32 * TILE_NNZ;

/// No payload is longer: of a staged frame, each tile with an index column for every mode and 64-bit values.
const PAYLOAD_MAX: usize = STAGE_NNZ / TILE_NNZ * (ORDER_MAX * (5 + 4 * TILE_NNZ) + 9 + 8 * TILE_NNZ);
/// Marks differences that 64 bits do not hold, and values that are not integers.
const WIDE: u8 = u8::MAX;

/// A frame's checksum added to that of the frames before.
fn chained(checksum: u64, frame: [u8; 8]) -> u64 {
    xxh3_64_with_seed(&frame, checksum)
}

/// Writes frames to a new file.
#[derive(Debug)]
pub struct SpillWriter {
    file: File,
    done: SpilledFile,
}

impl SpillWriter {
    /// Writes to `file`, which is empty and called `name`.
    pub fn new(file: File, name: String) -> Self {
        Self { file, done: SpilledFile { name, nnz: 0, bytes: 0, checksum: 0 } }
    }

    /// Nonzeros so far.
    pub fn nnz(&self) -> u64 {
        self.done.nnz
    }

    /// Appends a frame that [`stage_frame`] or [`run_frame`] made.
    pub fn write(&mut self, frame: &[u8]) -> Result<()> {
        let done = &mut self.done;
        self.file.write_all_at(frame, done.bytes)?;
        done.bytes += frame.len() as u64;
        done.nnz += u64::from(u32::from_le_bytes(std::array::from_fn(|i| frame[4 + i])));
        done.checksum = chained(done.checksum, std::array::from_fn(|i| frame[8 + i]));
        Ok(())
    }

    /// The finished file.
    pub fn finish(self) -> SpilledFile {
        self.done
    }
}

/// Reads the frames of a file, in order.
#[derive(Debug)]
pub struct SpillReader {
    file: File,
    /// What it is to hold.
    done: SpilledFile,
    /// What has been read of it.
    read: SpilledFile,
    payload: Vec<u8>,
    /// The last linear index of a run.
    last: u128,
}

impl SpillReader {
    /// Starts at the first frame of the finished file `done`.
    pub fn new(file: File, done: &SpilledFile) -> Self {
        let read = SpilledFile { nnz: 0, bytes: 0, checksum: 0, ..done.clone() };
        Self { file, done: done.clone(), read, payload: Vec::new(), last: 0 }
    }

    /// Reads the next frame's payload, and returns its nonzeros; `None` at the end.
    fn frame(&mut self) -> Result<Option<usize>> {
        let rest = self.done.bytes - self.read.bytes;
        if rest == 0 {
            return if self.read == self.done { Ok(None) } else { Err(self.changed()) };
        }
        let mut header = [0; FRAME_HEADER];
        if self.file.read_at(&mut header, self.read.bytes)? != FRAME_HEADER {
            return Err(self.changed());
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i])) as usize;
        let (bytes, nnz) = (word(0), word(4));
        let checksum = std::array::from_fn(|i| header[8 + i]);
        let whole = (FRAME_HEADER + bytes) as u64;
        if bytes > PAYLOAD_MAX || whole > rest || !(1..=STAGE_NNZ).contains(&nnz) {
            return Err(self.changed());
        }
        self.payload.resize(bytes, 0);
        let read = self.file.read_at(&mut self.payload, self.read.bytes + FRAME_HEADER as u64)?;
        if read != bytes || xxh3_64_with_seed(&self.payload, nnz as u64) != u64::from_le_bytes(checksum) {
            return Err(self.changed());
        }
        self.read.bytes += whole;
        self.read.nnz += nnz as u64;
        self.read.checksum = chained(self.read.checksum, checksum);
        Ok(Some(nnz))
    }

    /// The error of a file that does not hold what was written.
    pub fn changed(&self) -> Error {
        Error::unusable(self.file.path(), "a temporary file is not as it was written; start again")
    }

    /// The next frame's coordinates and values, within `dims`; `None` at the end.
    pub fn read_stage(&mut self, dims: &[u64]) -> Result<Option<Batch>> {
        let Some(nnz) = self.frame()? else { return Ok(None) };
        let batch = stage_batch(Frame { rest: &self.payload }, nnz, dims);
        batch.map(Some).ok_or_else(|| self.changed())
    }

    /// Appends the nonzeros of the next frame to `out`, their linear indices ascending; false, and none, at the end.
    pub fn read_run<K: Key>(&mut self, out: &mut Vec<Nonzero<K>>) -> Result<bool> {
        let Some(nnz) = self.frame()? else { return Ok(false) };
        let start = out.len();
        out.resize(start + nnz, Nonzero::default());
        let last = run_nonzeros(Frame { rest: &self.payload }, self.last, &mut out[start..]);
        self.last = last.ok_or_else(|| self.changed())?;
        Ok(true)
    }
}

/// The nonzeros of a staged frame, all within `dims`; `None` if the frame is invalid.
fn stage_batch(mut frame: Frame<'_>, nnz: usize, dims: &[u64]) -> Option<Batch> {
    let order = dims.len();
    let mut batch = Batch { indices: vec![0; nnz * order], values: vec![0.0; nnz] };
    let rows = batch.indices.chunks_mut(TILE_NNZ * order);
    let mut column: Numbers<u32> = [0; TILE_NNZ];
    for (rows, values) in rows.zip(batch.values.chunks_mut(TILE_NNZ)) {
        for (m, &dim) in dims.iter().enumerate() {
            let (low, bits) = (frame.u32()?, frame.byte()?);
            frame.column32(bits, low, &mut column)?;
            if column[..values.len()].iter().any(|&index| u64::from(index) >= dim) {
                return None;
            }
            rows.chunks_exact_mut(order).zip(&column).for_each(|(row, &index)| row[m] = index);
        }
        frame.values(values)?;
    }
    frame.end()?;
    Some(batch)
}

/// Fills `out` with the nonzeros of a frame of a run, the first of which must not precede `last`. Returns the last
/// linear index; `None` if the frame is invalid.
fn run_nonzeros<K: Key>(mut frame: Frame<'_>, mut last: u128, out: &mut [Nonzero<K>]) -> Option<u128> {
    let mut values = [0.0; TILE_NNZ];
    let mut differences: Numbers<u64> = [0; TILE_NNZ];
    for tile in out.chunks_mut(TILE_NNZ) {
        let first = frame.u128()?;
        let mut linear = first;
        let bits = frame.byte()?;
        let mut ascend = first >= last;
        if bits == WIDE {
            for nonzero in &mut *tile {
                let next = frame.u128()?;
                ascend &= next >= linear;
                linear = next;
                nonzero.linear = K::narrow(linear);
            }
        } else {
            frame.column64(bits, &mut differences)?;
            for (nonzero, &difference) in tile.iter_mut().zip(&differences) {
                linear = linear.checked_add(difference.into())?;
                nonzero.linear = K::narrow(linear);
            }
        }
        // They ascend: if the key holds the last, it holds all.
        if !ascend || K::narrow(linear).widen() != linear {
            return None;
        }
        last = linear;
        frame.values(&mut values[..tile.len()])?;
        tile.iter_mut().zip(&values).for_each(|(nonzero, &value)| nonzero.value = value);
    }
    frame.end()?;
    Some(last)
}

/// A frame's payload while it is taken apart; each part is `None` where it cannot be.
struct Frame<'a> {
    rest: &'a [u8],
}

impl<'a> Frame<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    /// Nothing follows.
    fn end(&self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }

    /// The bytes of a column of `bits` bits, of at most `bits_max`.
    fn column(&mut self, bits: u8, bits_max: u32) -> Option<&'a [u8]> {
        let bytes = (u32::from(bits) <= bits_max).then(|| column::bytes(bits.into()))?;
        let (column, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(column)
    }

    fn column32(&mut self, bits: u8, base: u32, out: &mut Numbers<u32>) -> Option<()> {
        let mut words = [0; TILE_NNZ];
        let column = self.column(bits, u32::BITS)?;
        for (word, bytes) in words.iter_mut().zip(column.chunks_exact(4)) {
            *word = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        }
        column::unpack32(&words, bits.into(), base, out);
        Some(())
    }

    fn column64(&mut self, bits: u8, out: &mut Numbers<u64>) -> Option<()> {
        if u32::from(bits) <= u32::BITS {
            let mut narrow = [0; TILE_NNZ];
            self.column32(bits, 0, &mut narrow)?;
            *out = narrow.map(u64::from);
        } else {
            let mut words = [0; TILE_NNZ];
            let column = self.column(bits, u64::BITS)?;
            for (word, bytes) in words.iter_mut().zip(column.chunks_exact(8)) {
                *word = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            }
            column::unpack64(&words, bits.into(), 0, out);
        }
        Some(())
    }

    /// Finite values.
    fn values(&mut self, out: &mut [f64]) -> Option<()> {
        let bits = self.byte()?;
        if bits == WIDE {
            for value in &mut *out {
                *value = f64::from_le_bytes(self.take()?);
            }
            return out.iter().all(|value| value.is_finite()).then_some(());
        }
        let base = i64::from_le_bytes(self.take()?);
        let mut words = [0u32; 2 * TILE_NNZ];
        let column = self.column(bits, u64::BITS)?;
        for (word, bytes) in words.iter_mut().zip(column.chunks_exact(4)) {
            *word = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        }
        let mut values = [0.0; TILE_NNZ];
        unpack_integers(&words, base, bits.into(), &mut values);
        out.copy_from_slice(&values[..out.len()]);
        Some(())
    }
}

fn put_values(values: &[f64], out: &mut Vec<u8>) {
    if let Some((base, bits)) = TileValues::integers(values) {
        out.push(u8::try_from(bits).expect("at most 55 bits"));
        out.extend(base.to_le_bytes());
        ChosenValues::Integer.pack(values, base, bits, out);
    } else {
        out.push(WIDE);
        out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
}

/// Fills in the header of a frame whose payload is complete.
fn seal(mut frame: Vec<u8>, nnz: usize) -> Vec<u8> {
    let payload = u32::try_from(frame.len() - FRAME_HEADER).expect("frames are small");
    let nnz = u32::try_from(nnz).expect("frames are small");
    // The count is the checksum's seed, so that it is covered too.
    let checksum = xxh3_64_with_seed(&frame[FRAME_HEADER..], nnz.into());
    frame[..4].copy_from_slice(&payload.to_le_bytes());
    frame[4..8].copy_from_slice(&nnz.to_le_bytes());
    frame[8..16].copy_from_slice(&checksum.to_le_bytes());
    frame
}

/// A frame of coordinates: rows of `order` indices with their values.
pub fn stage_frame(indices: &[u32], values: &[f64], order: usize) -> Vec<u8> {
    let mut out = vec![0; FRAME_HEADER];
    for (rows, values) in indices.chunks(TILE_NNZ * order).zip(values.chunks(TILE_NNZ)) {
        for m in 0..order {
            let column = || rows.iter().skip(m).step_by(order);
            let low = column().copied().min().unwrap_or(0);
            let high = column().copied().max().unwrap_or(0);
            let mut offsets: Numbers<u32> = [0; TILE_NNZ];
            offsets.iter_mut().zip(column()).for_each(|(offset, index)| *offset = index - low);
            let bits = width(u64::from(high - low));
            out.extend(low.to_le_bytes());
            out.push(u8::try_from(bits).expect("at most 32 bits"));
            column::pack32(&offsets, bits, &mut out);
        }
        put_values(values, &mut out);
    }
    seal(out, values.len())
}

/// A frame of nonzeros in linear order.
pub fn run_frame<K: Key>(nonzeros: &[Nonzero<K>]) -> Vec<u8> {
    let mut out = vec![0; FRAME_HEADER];
    for tile in nonzeros.chunks(TILE_NNZ) {
        let first = tile[0].linear.widen();
        let mut differences: Numbers<u64> = [0; TILE_NNZ];
        let mut wide = false;
        for (difference, pair) in differences[1..].iter_mut().zip(tile.windows(2)) {
            match u64::try_from(pair[1].linear.widen() - pair[0].linear.widen()) {
                Ok(d) => *difference = d,
                Err(_) => wide = true,
            }
        }
        out.extend(first.to_le_bytes());
        if wide {
            out.push(WIDE);
            out.extend(tile.iter().flat_map(|n| n.linear.widen().to_le_bytes()));
        } else {
            let bits = width(differences.iter().fold(0, |all, d| all | d));
            out.push(u8::try_from(bits).expect("at most 64 bits"));
            if bits <= u32::BITS {
                let narrow = differences.map(|d| u32::try_from(d).expect("at most 32 bits"));
                column::pack32(&narrow, bits, &mut out);
            } else {
                column::pack64(&differences, bits, &mut out);
            }
        }
        let values: Vec<f64> = tile.iter().map(|n| n.value).collect();
        put_values(&values, &mut out);
    }
    seal(out, nonzeros.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Wide;
    use crate::random::Counter;
    use crate::sys::Sys;
    use std::path::Path;

    fn values(nnz: usize) -> Vec<f64> {
        let random = Counter::new(3, 0);
        let value = |i: usize| match i / 700 % 3 {
            0 => (random.bits(i as u64) % 1000) as f64 - 500.0,
            1 => random.unit(i as u64),
            _ => (random.bits(i as u64) >> 11) as f64,
        };
        (0..nnz).map(value).collect()
    }

    /// A file of these frames, and a reader of it.
    fn written(dir: &Path, frames: &[Vec<u8>]) -> (SpilledFile, SpillReader) {
        let (path, sys) = (dir.join("file"), Sys::default());
        drop(std::fs::remove_file(&path));
        let mut writer = SpillWriter::new(sys.create(&path).unwrap(), "file".into());
        frames.iter().try_for_each(|frame| writer.write(frame)).unwrap();
        let done = writer.finish();
        let reader = SpillReader::new(sys.open(&path, false).unwrap(), &done);
        (done, reader)
    }

    #[test]
    fn staged_batches_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (order, nnz) = (3, 5000);
        let random = Counter::new(1, 1);
        let shift = |i: u64| 32 + 8 * (i % 3);
        let indices: Vec<u32> =
            (0..(nnz * order) as u64).map(|i| u32::try_from(random.bits(i) >> shift(i)).unwrap()).collect();
        let values = values(nnz);
        let parts = indices.chunks(1300 * order).zip(values.chunks(1300));
        let frames: Vec<_> = parts.map(|(rows, values)| stage_frame(rows, values, order)).collect();
        let (done, mut reader) = written(dir.path(), &frames);
        assert_eq!(done.nnz, nnz as u64);
        let mut back = Batch::default();
        while let Some(batch) = reader.read_stage(&[1 << 32, 1 << 24, 1 << 16]).unwrap() {
            back.indices.extend(batch.indices);
            back.values.extend(batch.values);
        }
        assert_eq!(back, Batch { indices, values });
        assert!(
            written(dir.path(), &frames).1.read_stage(&[1 << 32, 1 << 24, 1 << 15]).is_err(),
            "beyond a dim"
        );
    }

    fn runs_come_back<K: Key>(step_bits: u32) {
        let dir = tempfile::tempdir().unwrap();
        let random = Counter::new(2, 2);
        let mut linear = 0u128;
        let mut nonzeros = Vec::new();
        for (i, value) in (0..).zip(values(3000)) {
            let wide = u128::from(random.bits(i)) << 64 | u128::from(random.bits(!i));
            linear += wide >> (128 - step_bits);
            nonzeros.push(Nonzero { linear: K::narrow(linear), value });
        }
        let frames: Vec<_> = nonzeros.chunks(1100).map(run_frame).collect();
        let (_, mut reader) = written(dir.path(), &frames);
        let mut back = Vec::new();
        while reader.read_run(&mut back).unwrap() {}
        assert_eq!(back, nonzeros);
    }

    #[test]
    fn runs_come_back_at_every_width() {
        for bits in [1, 7, 31, 33, 50] {
            runs_come_back::<u64>(bits);
        }
        for bits in [5, 63, 70, 110] {
            runs_come_back::<Wide>(bits);
        }
    }

    fn run(nnz: u64) -> Vec<Nonzero<u64>> {
        (0..nnz).map(|i| Nonzero { linear: i * i, value: 0.5 }).collect()
    }

    /// Reads all of a run.
    fn read_all<K: Key>(mut reader: SpillReader) -> Result<usize> {
        let mut all = Vec::<Nonzero<K>>::new();
        while reader.read_run(&mut all)? {}
        Ok(all.len())
    }

    #[test]
    fn damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let (done, reader) = written(dir.path(), &[run_frame(&run(100))]);
        assert_eq!(read_all::<u64>(reader).unwrap(), 100);
        let read = |done: &SpilledFile| {
            read_all::<u64>(SpillReader::new(Sys::default().open(&path, false).unwrap(), done))
        };
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert!(read(&done).is_err(), "byte {at}");
        }
        std::fs::write(&path, &bytes).unwrap();
        for lie in [
            SpilledFile { nnz: 99, ..done.clone() },
            SpilledFile { checksum: done.checksum ^ 1, ..done.clone() },
            SpilledFile { bytes: done.bytes - 1, ..done.clone() },
            SpilledFile { bytes: done.bytes + 8, ..done.clone() },
        ] {
            assert!(read(&lie).is_err(), "{lie:?}");
        }
    }

    /// Frames whose checksums are right.
    #[test]
    fn frames_that_lie_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let sealed = |payload: &[u8], nnz: usize| seal([&[0; FRAME_HEADER], payload].concat(), nnz);
        let refused = |frame: Vec<u8>| read_all::<u64>(written(dir.path(), &[frame]).1).is_err();
        let good = run_frame(&run(100));
        let payload = good[FRAME_HEADER..].to_vec();
        assert!(!refused(sealed(&payload, 100)));
        let twice = written(dir.path(), &[good.clone(), good.clone()]).1;
        assert!(read_all::<u64>(twice).is_err(), "the second frame is not behind the first");
        for nnz in [0, 99, 101, 513, STAGE_NNZ + 1, u32::MAX as usize] {
            assert!(refused(sealed(&payload, nnz)), "{nnz} nonzeros");
        }
        for length in 0..payload.len() {
            assert!(refused(sealed(&payload[..length], 100)), "{length} bytes");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut payload = payload.clone();
            payload[at..at + bytes.len()].copy_from_slice(bytes);
            sealed(&payload, 100)
        };
        assert!(refused(with(0, &u128::MAX.to_le_bytes())), "the sum overflows");
        assert!(refused(with(8, &[1])), "64 bits do not hold it");
        for bits in [0, 33, 65, 200, WIDE] {
            assert!(refused(with(16, &[bits])), "differences of {bits} bits");
        }
        let values = payload.len() - 800;
        assert_eq!(payload[values - 1], WIDE);
        for bits in [0, 64, 65, 200] {
            assert!(refused(with(values - 1, &[bits])), "values of {bits} bits");
        }
        assert!(refused(with(values, &f64::NAN.to_le_bytes())));
        assert!(refused(sealed(&vec![0; PAYLOAD_MAX + 1], 100)), "no payload is so long");
        let backwards = [9, 3].map(u128::to_le_bytes).concat();
        let head = [&3u128.to_le_bytes()[..], &[WIDE], &backwards, &[0], &0i64.to_le_bytes()].concat();
        assert!(refused(sealed(&head, 2)), "out of order");
    }
}
