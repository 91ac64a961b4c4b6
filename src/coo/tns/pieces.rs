//! Cuts text into pieces of whole lines.

use super::decode::TextInput;
use crate::error::{Error, Result};
use crate::sys::Sys;
use memchr::memrchr;

/// The longest line, in bytes without its newline.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// Some whole lines, each ended by a newline. If a line exceeds [`LINE_BYTES_MAX`], the piece may end inside
/// it and is the last one.
#[derive(Debug)]
pub(super) struct TextPiece {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl TextPiece {
    /// The lines from byte `start` of `buffer` to `end`.
    pub(super) fn new(buffer: Vec<u8>, start: usize, end: usize) -> Self {
        Self { buffer, start, end }
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Drops the first `bytes` of the text.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// The buffer, for reuse.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// An input that is read piece by piece.
#[derive(Debug)]
pub(super) struct Pieces {
    sys: Sys,
    input: TextInput,
    piece_bytes: usize,
    /// Bytes of the text that have been read.
    read: u64,
    /// The start of a line whose end has not been read yet.
    carry: Vec<u8>,
    ended: bool,
    /// An error that is returned after the whole lines read before it.
    failure: Option<Error>,
}

impl Pieces {
    pub(super) fn new(sys: Sys, input: TextInput, piece_bytes: usize) -> Self {
        Self { sys, input, piece_bytes, read: 0, carry: Vec::new(), ended: false, failure: None }
    }

    /// The offset of the next line in the text; `None` once the end has been read.
    pub(super) fn next_at(&self) -> Option<u64> {
        (!self.ended).then(|| self.read - self.carry.len() as u64)
    }

    /// Reads the next lines into `buffer`; `None` at the end. If the input fails, the lines before the
    /// failure come first.
    pub(super) fn next(&mut self, mut buffer: Vec<u8>) -> Result<Option<TextPiece>> {
        let mut len = self.carry.len();
        if buffer.len() < len + 1 {
            buffer = self.sys.vec(0, (len + 1).max(self.piece_bytes + 1))?;
        }
        buffer[..len].copy_from_slice(&self.carry);
        self.carry.clear();
        while !self.ended {
            // One byte stays free for a missing final newline.
            if len + 1 >= buffer.len() {
                let mut longer = self.sys.vec(0, buffer.len() + self.piece_bytes)?;
                longer[..len].copy_from_slice(&buffer[..len]);
                buffer = longer;
            }
            let free = buffer.len() - 1;
            let (read, failure) = self.input.fill(&mut buffer[len..free]);
            self.read += read as u64;
            let fresh = len;
            len += read;
            self.ended = failure.is_some() || len < free;
            self.failure = failure;
            if self.ended {
                break;
            }
            if let Some(newline) = memrchr(b'\n', &buffer[fresh..len]) {
                let end = fresh + newline + 1;
                self.carry.extend_from_slice(&buffer[end..len]);
                return Ok(Some(TextPiece { buffer, start: 0, end }));
            }
            self.ended = len > LINE_BYTES_MAX;
        }
        self.last(buffer, len)
    }

    /// After the end of input: returns whole lines, the last line, then the failure or `None`.
    fn last(&mut self, mut buffer: Vec<u8>, len: usize) -> Result<Option<TextPiece>> {
        let mut end = len;
        if self.failure.is_some() {
            end = memrchr(b'\n', &buffer[..len]).map_or(0, |newline| newline + 1);
        } else if len > 0 && buffer[len - 1] != b'\n' {
            buffer[len] = b'\n';
            end = len + 1;
        }
        if end > 0 {
            return Ok(Some(TextPiece { buffer, start: 0, end }));
        }
        self.failure.take().map_or(Ok(None), Err)
    }
}
