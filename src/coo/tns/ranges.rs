//! Reading an uncompressed file in ranges, each by the thread that parses it.

use super::pieces::{LINE_BYTES_MAX, TextPiece};
use crate::error::Result;
use crate::sys::{File, Sys};
use memchr::memchr;

/// Bytes read after a range in the first attempt to find the end of its last line.
const BEHIND_BYTES: usize = 1 << 12;

/// Consecutive bytes of a file. A line belongs to the range in which it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextRange {
    start: u64,
    bytes: usize,
    /// Whether the range is known to start at the beginning of a line.
    begins: bool,
}

/// Divides a file into ranges, from the beginning of a line to the end of the file.
#[derive(Debug)]
pub(super) struct Ranges<'f> {
    file: &'f File,
    first: u64,
    next: u64,
    end: u64,
    bytes: usize,
}

impl<'f> Ranges<'f> {
    /// Ranges of `bytes` each, from byte `first` on, which must begin a line.
    pub(super) fn new(file: &'f File, first: u64, bytes: usize) -> Result<Self> {
        Ok(Self { file, first, next: first, end: file.metadata()?.len(), bytes })
    }

    pub(super) fn file(&self) -> &'f File {
        self.file
    }
}

impl Iterator for Ranges<'_> {
    type Item = TextRange;

    fn next(&mut self) -> Option<TextRange> {
        let (start, begins) = (self.next, self.next == self.first);
        let bytes = self.end.checked_sub(start).filter(|&left| left > 0)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.bytes);
        self.next += bytes as u64;
        Some(TextRange { start, bytes, begins })
    }
}

impl TextRange {
    /// Reads the range's lines into `buffer`. If the last one exceeds [`LINE_BYTES_MAX`], the piece may end inside it.
    pub(super) fn read(self, sys: &Sys, file: &File, mut buffer: Vec<u8>) -> Result<TextPiece> {
        // The byte before the range shows whether the range begins with a line.
        let before = usize::from(!self.begins);
        let (from, own) = (self.start - before as u64, before + self.bytes);
        let (mut len, mut behind) = (0, BEHIND_BYTES);
        let end = loop {
            let wanted = own + behind;
            // One byte stays free for a missing last newline.
            if buffer.len() <= wanted {
                let mut longer = sys.vec(0, wanted + 1)?;
                longer[..len].copy_from_slice(&buffer[..len]);
                buffer = longer;
            }
            len += file.read_at(&mut buffer[len..wanted], from + len as u64)?;
            // The last line of the range ends at its last byte or later.
            let last = len.min(own - 1);
            if !self.begins && memchr(b'\n', &buffer[..last]).is_none() {
                break 0;
            }
            if let Some(newline) = memchr(b'\n', &buffer[last..len]) {
                break last + newline + 1;
            }
            if len < wanted {
                buffer[len] = b'\n';
                break if len > 0 && buffer[len - 1] != b'\n' { len + 1 } else { len };
            }
            if behind > LINE_BYTES_MAX {
                break len;
            }
            behind = LINE_BYTES_MAX + 1;
        };
        let begins = |newline| newline + 1;
        let start = if self.begins { 0 } else { memchr(b'\n', &buffer[..end]).map_or(end, begins) };
        Ok(TextPiece::new(buffer, start, end))
    }
}
