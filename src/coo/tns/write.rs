//! Writes FROSTT text that reads back bit for bit.

use crate::coo::Batch;
use std::io::{self, Write};

/// Bytes collected before a write.
const BUFFER_BYTES: usize = 1 << 18;

/// Appends the shortest decimal digits that read back as the same bits.
///
/// A whole number below 2^53 in magnitude has no decimal point (`5`, `-0`). Everything else is formatted by
/// `ryu` (`0.1`, `1e-7`, `9007199254740992.0`). NaN and infinities become `NaN`, `inf`, `-inf`, which a
/// [`TnsReader`](super::TnsReader) refuses.
pub fn decimal(value: f64, out: &mut Vec<u8>) {
    const WHOLE_LIMIT: f64 = (1u64 << 53) as f64;
    if value.abs() < WHOLE_LIMIT && value.fract() == 0.0 {
        if value.is_sign_negative() {
            out.push(b'-');
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, from 0 to 2^53")]
        let magnitude = value.abs() as u64;
        out.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
    } else {
        out.extend_from_slice(ryu::Buffer::new().format(value).as_bytes());
    }
}

/// The most bytes of a nonzero's text.
#[must_use]
pub fn row_bytes_max(order: usize) -> usize {
    "4294967295 ".len() * order + "-2.2250738585072014e-308\n".len()
}

/// Appends the text of a nonzero: its indices, passed from 0 and written from 1, then its value as
/// [`decimal`] writes it.
pub fn append_row(indices: impl IntoIterator<Item = u32>, value: f64, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    for index in indices {
        out.extend_from_slice(digits.format(u64::from(index) + 1).as_bytes());
        out.push(b' ');
    }
    decimal(value, out);
    out.push(b'\n');
}

/// The text of a batch.
#[must_use]
pub fn text_of(batch: &Batch) -> Vec<u8> {
    let mut writer = TnsWriter::new(Vec::new());
    let written = writer.write_batch(batch).and_then(|()| writer.finish());
    written.expect("writing to memory does not fail")
}

/// Writes nonzeros, one per line: the indices from 1, then the value as [`decimal`] writes it.
///
/// It buffers its output. Call [`TnsWriter::finish`], because dropping it loses buffered text. Errors are
/// those of the underlying writer; a broken pipe is [`io::ErrorKind::BrokenPipe`].
#[derive(Debug)]
pub struct TnsWriter<W: Write> {
    below: W,
    buffer: Vec<u8>,
}

impl<W: Write> TnsWriter<W> {
    /// Writes to `below`.
    pub fn new(below: W) -> Self {
        Self { below, buffer: Vec::with_capacity(BUFFER_BYTES + 512) }
    }

    /// Writes one nonzero. `indices` count from 0.
    ///
    /// # Errors
    ///
    /// Those of the writer below.
    pub fn write_row(&mut self, indices: &[u32], value: f64) -> io::Result<()> {
        append_row(indices.iter().copied(), value, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES { self.write_out() } else { Ok(()) }
    }

    /// Writes the nonzeros of a batch in order. A value without indices is a line of its own.
    ///
    /// # Errors
    ///
    /// Those of the writer below.
    pub fn write_batch(&mut self, batch: &Batch) -> io::Result<()> {
        let order = batch.order();
        let row = |i: usize| &batch.indices[i * order..][..order];
        batch.values.iter().enumerate().try_for_each(|(i, &value)| self.write_row(row(i), value))
    }

    /// Writes the buffered text, flushes, and returns the underlying writer.
    ///
    /// # Errors
    ///
    /// Those of the writer below.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_out()?;
        self.below.flush()?;
        Ok(self.below)
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.below.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}
