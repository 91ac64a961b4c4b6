//! Comma-separated values, and values separated by anything else.
//!
//! One thread cuts the text into pieces of whole records, and all threads parse pieces. The splitter therefore reports
//! where fields are, distinguishes an empty field from an empty quoted text, and names the row of a wrong quote.

mod sniff;
mod split;

pub use sniff::{CsvOptions, Sniffed, sniff};
pub use split::{Dialect, Fault, Field, append_field};

use crate::coo::tns::TextInput;
use crate::error::{Error, Result};
use crate::sys::Sys;

/// The longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// Bytes of the first lines, which tell how the table is written.
const HEAD_BYTES: usize = 1 << 18;

/// Some whole records. Of a record that is too long, or whose quote is not closed, the last piece may hold the beginning.
#[derive(Debug)]
pub struct CsvPiece {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl CsvPiece {
    /// The records, each ended by a newline.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The buffer, to be filled again.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// A table's text, read piece by piece.
#[derive(Debug)]
pub struct CsvPieces {
    sys: Sys,
    input: TextInput,
    piece_bytes: usize,
    dialect: Dialect,
    /// What has been read and not been handed on.
    carry: Vec<u8>,
    ended: bool,
    failure: Option<Error>,
}

impl CsvPieces {
    /// Of `input`, in pieces of about `piece_bytes`.
    #[must_use]
    pub fn new(sys: &Sys, input: TextInput, piece_bytes: usize) -> Self {
        let dialect = Dialect { delimiter: b',', quote: Some(b'"') };
        Self { sys: sys.clone(), input, piece_bytes, dialect, carry: Vec::new(), ended: false, failure: None }
    }

    /// The first bytes, without a byte order mark.
    pub fn head(&mut self) -> Result<&[u8]> {
        self.carry = self.sys.vec(0, HEAD_BYTES)?;
        let (read, failure) = self.input.fill(&mut self.carry);
        self.carry.truncate(read);
        (self.ended, self.failure) = (failure.is_some() || read < HEAD_BYTES, failure);
        if self.carry.starts_with(b"\xef\xbb\xbf") {
            self.carry.drain(..3);
        }
        if self.carry.is_empty()
            && let Some(failure) = self.failure.take()
        {
            return Err(failure);
        }
        Ok(&self.carry)
    }

    /// What follows is written so.
    pub fn divide_by(&mut self, dialect: Dialect) {
        self.dialect = dialect;
    }

    /// The next records, read into `buffer`; `None` at the end. A failure of the input comes after what is whole without it.
    pub fn next(&mut self, mut buffer: Vec<u8>) -> Result<Option<CsvPiece>> {
        let mut len = self.carry.len();
        let bytes = self.piece_bytes.max(len) + 1;
        if buffer.len() < bytes {
            buffer = self.sys.vec(0, bytes)?;
        }
        buffer[..len].copy_from_slice(&self.carry);
        self.carry.clear();
        loop {
            // One byte stays free for a missing last newline.
            let free = buffer.len() - 1;
            if !self.ended {
                let (read, failure) = self.input.fill(&mut buffer[len..free]);
                len += read;
                (self.ended, self.failure) = (failure.is_some() || len < free, failure);
            }
            if self.ended {
                return self.last(buffer, len);
            }
            if let Some(end) = self.dialect.last_end(&buffer[..len]) {
                self.carry.extend_from_slice(&buffer[end..len]);
                return Ok(Some(CsvPiece { buffer, start: 0, end }));
            }
            if len > RECORD_BYTES_MAX {
                self.ended = true;
                return Ok(Some(CsvPiece { buffer, start: 0, end: len }));
            }
            let mut longer = self.sys.vec(0, 2 * buffer.len())?;
            longer[..len].copy_from_slice(&buffer[..len]);
            buffer = longer;
        }
    }

    /// What is left when the input has ended.
    fn last(&mut self, mut buffer: Vec<u8>, len: usize) -> Result<Option<CsvPiece>> {
        let mut end = len;
        if self.failure.is_some() {
            end = self.dialect.last_end(&buffer[..len]).unwrap_or(0);
        } else if len > 0 && buffer[len - 1] != b'\n' {
            buffer[len] = b'\n';
            end = len + 1;
        }
        if end > 0 {
            return Ok(Some(CsvPiece { buffer, start: 0, end }));
        }
        self.failure.take().map_or(Ok(None), Err)
    }
}
