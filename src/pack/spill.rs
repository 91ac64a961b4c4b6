//! Temporary files of the packer: frames of packed nonzeros, each with its checksum. Their layout is
//! private; nothing outside one run of the packer reads them.
//!
//! Two kinds: *staged* files hold batches in input order, coordinates as packed columns, while the shape is not
//! known yet; *runs* hold nonzeros in linear order, as packed differences.

use super::journal::Done;
use crate::coo::Batch;
use crate::encoding::TILE_NNZ;
use crate::encoding::column::{self, Numbers};
use crate::encoding::values::{TileValues, pack_integers, unpack_integers};
use crate::encoding::width;
use crate::error::{Error, Result};
use crate::linear::{Key, Nonzero};
use crate::sys::{File, Sys};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Nonzeros of a frame of a run.
pub const FRAME_NNZ: usize = 8 * TILE_NNZ;
/// Nonzeros of a staged frame, at most.
pub const STAGE_NNZ: usize = 32 * TILE_NNZ;

/// Bytes of a frame's header: payload bytes, nonzeros, checksum.
const FRAME_HEADER: usize = 16;
/// Marks differences that 64 bits do not hold, and values that are not integers.
const WIDE: u8 = u8::MAX;

/// A finished temporary file.
#[derive(Debug)]
pub struct SpillFile {
    path: PathBuf,
    /// Bytes.
    pub bytes: u64,
    /// Nonzeros.
    pub nnz: u64,
}

impl SpillFile {
    /// A file that an earlier job finished.
    pub fn finished(path: PathBuf, nnz: u64, bytes: u64) -> Self {
        Self { path, bytes, nnz }
    }

    /// What the journal says of it.
    pub fn done(&self) -> Done {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Done { name, nnz: self.nnz, bytes: self.bytes }
    }

    /// Removes the file.
    pub fn remove(self, sys: &Sys) -> Result<()> {
        sys.remove_file(&self.path)
    }
}

/// Writes frames to a new file.
#[derive(Debug)]
pub struct SpillWriter {
    file: File,
    bytes: u64,
    nnz: u64,
}

impl SpillWriter {
    /// A new file at `path`.
    pub fn create(sys: &Sys, path: &Path) -> Result<Self> {
        Ok(Self { file: sys.create(path)?, bytes: 0, nnz: 0 })
    }

    /// Nonzeros so far.
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// Appends a frame that [`stage_frame`] or [`run_frame`] made.
    pub fn write(&mut self, frame: &[u8]) -> Result<()> {
        self.file.write_all_at(frame, self.bytes)?;
        self.bytes += frame.len() as u64;
        self.nnz += u64::from(u32::from_le_bytes(std::array::from_fn(|i| frame[4 + i])));
        Ok(())
    }

    /// The finished file.
    pub fn finish(self) -> SpillFile {
        SpillFile { path: self.file.path().to_path_buf(), bytes: self.bytes, nnz: self.nnz }
    }
}

/// Reads the frames of a file, in order.
#[derive(Debug)]
pub struct SpillReader {
    file: File,
    at: u64,
    end: u64,
    payload: Vec<u8>,
}

impl SpillReader {
    /// Starts at the first frame.
    pub fn open(sys: &Sys, spilled: &SpillFile) -> Result<Self> {
        Ok(Self { file: sys.open(&spilled.path, false)?, at: 0, end: spilled.bytes, payload: Vec::new() })
    }

    /// The next frame's nonzeros and payload; `None` at the end.
    fn frame(&mut self) -> Result<Option<(usize, Frame<'_>)>> {
        let changed = || Error::unusable(self.file.path(), "a temporary file changed while it was in use");
        if self.at == self.end {
            return Ok(None);
        }
        let mut header = [0; FRAME_HEADER];
        if self.file.read_at(&mut header, self.at)? != FRAME_HEADER {
            return Err(changed());
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i])) as usize;
        let (bytes, nnz) = (word(0), word(4));
        let checksum = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i]));
        if bytes as u64 > self.end - self.at {
            return Err(changed());
        }
        self.payload.resize(bytes, 0);
        let read = self.file.read_at(&mut self.payload, self.at + FRAME_HEADER as u64)?;
        if read != bytes || xxh3_64_with_seed(&self.payload, nnz as u64) != checksum {
            return Err(changed());
        }
        self.at += (FRAME_HEADER + bytes) as u64;
        Ok(Some((nnz, Frame { rest: &self.payload })))
    }

    /// The next frame's coordinates and values; `None` at the end.
    pub fn read_stage(&mut self, order: usize) -> Result<Option<Batch>> {
        let Some((nnz, mut frame)) = self.frame()? else { return Ok(None) };
        let mut batch = Batch { indices: vec![0; nnz * order], values: vec![0.0; nnz] };
        let rows = batch.indices.chunks_mut(TILE_NNZ * order);
        let mut column: Numbers<u32> = [0; TILE_NNZ];
        for (rows, values) in rows.zip(batch.values.chunks_mut(TILE_NNZ)) {
            for m in 0..order {
                let (low, bits) = (frame.u32(), frame.byte());
                frame.column32(bits.into(), low, &mut column);
                rows.chunks_exact_mut(order).zip(&column).for_each(|(row, &index)| row[m] = index);
            }
            frame.values(values);
        }
        Ok(Some(batch))
    }

    /// Appends the nonzeros of the next frame to `out`; false, and none, at the end.
    pub fn read_run<K: Key>(&mut self, out: &mut Vec<Nonzero<K>>) -> Result<bool> {
        let Some((nnz, mut frame)) = self.frame()? else { return Ok(false) };
        let start = out.len();
        out.resize(start + nnz, Nonzero::default());
        let mut values = [0.0; TILE_NNZ];
        let mut differences: Numbers<u64> = [0; TILE_NNZ];
        for tile in out[start..].chunks_mut(TILE_NNZ) {
            let mut linear = frame.u128();
            let bits = frame.byte();
            if bits == WIDE {
                for nonzero in &mut *tile {
                    nonzero.linear = K::narrow(frame.u128());
                }
            } else {
                frame.column64(bits.into(), &mut differences);
                for (nonzero, &difference) in tile.iter_mut().zip(&differences) {
                    linear += u128::from(difference);
                    nonzero.linear = K::narrow(linear);
                }
            }
            frame.values(&mut values[..tile.len()]);
            tile.iter_mut().zip(&values).for_each(|(nonzero, &value)| nonzero.value = value);
        }
        Ok(true)
    }
}

/// A frame's payload while it is taken apart. It has passed its checksum, so it is as it was written.
struct Frame<'a> {
    rest: &'a [u8],
}

impl Frame<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.rest.split_first_chunk().expect("a frame is as it was written");
        self.rest = rest;
        *taken
    }

    fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }

    /// The words of a column of `bits` bits.
    fn words(&mut self, bits: u32, words: &mut Numbers<u32>) {
        let (column, rest) = self.rest.split_at(column::bytes(bits));
        self.rest = rest;
        for (word, bytes) in words.iter_mut().zip(column.chunks_exact(4)) {
            *word = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        }
    }

    fn column32(&mut self, bits: u32, base: u32, out: &mut Numbers<u32>) {
        let mut words = [0; TILE_NNZ];
        self.words(bits, &mut words);
        column::unpack32(&words, bits, base, out);
    }

    fn column64(&mut self, bits: u32, out: &mut Numbers<u64>) {
        if bits <= u32::BITS {
            let mut narrow = [0; TILE_NNZ];
            self.column32(bits, 0, &mut narrow);
            *out = narrow.map(u64::from);
        } else {
            let (column, rest) = self.rest.split_at(column::bytes(bits));
            self.rest = rest;
            let mut words = [0; TILE_NNZ];
            for (word, bytes) in words.iter_mut().zip(column.chunks_exact(8)) {
                *word = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            }
            column::unpack64(&words, bits, 0, out);
        }
    }

    fn values(&mut self, out: &mut [f64]) {
        let bits = self.byte();
        if bits == WIDE {
            for value in out {
                *value = f64::from_le_bytes(self.take());
            }
            return;
        }
        let base = i64::from_le_bytes(self.take());
        let (column, rest) = self.rest.split_at(column::bytes(bits.into()));
        self.rest = rest;
        let mut words = [0u32; 2 * TILE_NNZ];
        for (word, bytes) in words.iter_mut().zip(column.chunks_exact(4)) {
            *word = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        }
        let mut values = [0.0; TILE_NNZ];
        unpack_integers(&words, base, bits.into(), &mut values);
        out.copy_from_slice(&values[..out.len()]);
    }
}

fn put_values(values: &[f64], out: &mut Vec<u8>) {
    if let Some((base, bits)) = TileValues::new(values).integer {
        out.push(u8::try_from(bits).expect("at most 55 bits"));
        out.extend(base.to_le_bytes());
        pack_integers(values, base, bits, out);
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

    fn values(nnz: usize) -> Vec<f64> {
        let random = Counter::new(3, 0);
        let value = |i: usize| match i / 700 % 3 {
            0 => (random.bits(i as u64) % 1000) as f64 - 500.0,
            1 => random.unit(i as u64),
            _ => (random.bits(i as u64) >> 11) as f64,
        };
        (0..nnz).map(value).collect()
    }

    #[test]
    fn staged_batches_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let (order, nnz) = (3, 5000);
        let random = Counter::new(1, 1);
        let shift = |i: u64| 32 + 8 * (i % 3);
        let indices: Vec<u32> =
            (0..(nnz * order) as u64).map(|i| u32::try_from(random.bits(i) >> shift(i)).unwrap()).collect();
        let values = values(nnz);
        let mut writer = SpillWriter::create(&sys, &dir.path().join("staged")).unwrap();
        for (rows, values) in indices.chunks(1300 * order).zip(values.chunks(1300)) {
            writer.write(&stage_frame(rows, values, order)).unwrap();
        }
        let file = writer.finish();
        assert_eq!(file.nnz, nnz as u64);
        let mut back = Batch::default();
        let mut reader = SpillReader::open(&sys, &file).unwrap();
        while let Some(batch) = reader.read_stage(order).unwrap() {
            back.indices.extend(batch.indices);
            back.values.extend(batch.values);
        }
        assert_eq!(back, Batch { indices, values });
    }

    fn runs_come_back<K: Key>(step_bits: u32) {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let random = Counter::new(2, 2);
        let mut linear = 0u128;
        let mut nonzeros = Vec::new();
        for (i, value) in (0..).zip(values(3000)) {
            let wide = u128::from(random.bits(i)) << 64 | u128::from(random.bits(!i));
            linear += wide >> (128 - step_bits);
            nonzeros.push(Nonzero { linear: K::narrow(linear), value });
        }
        let mut writer = SpillWriter::create(&sys, &dir.path().join("run")).unwrap();
        nonzeros.chunks(1100).for_each(|part| writer.write(&run_frame(part)).unwrap());
        let file = writer.finish();
        let mut reader = SpillReader::open(&sys, &file).unwrap();
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

    #[test]
    fn damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let path = dir.path().join("run");
        let mut writer = SpillWriter::create(&sys, &path).unwrap();
        let nonzeros: Vec<_> = (0..100u64).map(|i| Nonzero { linear: i * i, value: 0.5 }).collect();
        writer.write(&run_frame(&nonzeros)).unwrap();
        let file = writer.finish();
        let mut bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let read = SpillReader::open(&sys, &file).unwrap().read_run::<u64>(&mut Vec::new());
            assert!(read.is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
