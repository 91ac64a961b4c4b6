//! The form of a table, text or Arrow data, and its pieces.

#[cfg(feature = "arrow")]
use super::arrow::{self, ArrowRows};
use super::csv::{CsvPiece, CsvPieces};
use super::json;
use super::options::TableOptions;
use super::piece::{self, Piece, Rules, Written};
use crate::coo::tns::{OpenedFile, TextInput};
use crate::error::Result;
use crate::sys::Sys;
use std::path::Path;

/// A table that is open.
#[derive(Debug)]
pub enum TableInput {
    /// Text.
    Text(TextInput),
    /// Columns.
    #[cfg(feature = "arrow")]
    Arrow(Box<ArrowRows>),
}

impl TableInput {
    /// Opens `path`, or standard input if it is `-`: what messages call it, the table, and the file with its state if it is
    /// one.
    pub fn open(
        sys: &Sys,
        path: &Path,
        options: &TableOptions,
    ) -> Result<(String, Self, Option<OpenedFile>)> {
        #[cfg(feature = "arrow")]
        if let Some((file, state)) = arrow::open_file(sys, path)? {
            let name = path.display().to_string();
            let rows = ArrowRows::of_file(&name, file.duplicate()?, options)?;
            return Ok((name, Self::Arrow(Box::new(rows)), Some((file, state))));
        }
        let (name, mut text, file) = TextInput::open(sys, path)?;
        #[cfg(feature = "arrow")]
        if text.begins_with(&arrow::STREAM_MAGIC) {
            let rows = ArrowRows::of_stream(&name, text, options)?;
            return Ok((name, Self::Arrow(Box::new(rows)), file));
        }
        let _ = (options, &mut text);
        Ok((name, Self::Text(text), file))
    }

    /// Bytes of memory that decoding takes.
    pub fn decoder_bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.decoder_bytes(),
            #[cfg(feature = "arrow")]
            Self::Arrow(rows) => rows.decoder_bytes(),
        }
    }
}

/// A table, read piece by piece.
#[derive(Debug)]
pub enum Pieces {
    /// Records of a text.
    Text(CsvPieces),
    /// Rows of columns.
    #[cfg(feature = "arrow")]
    Arrow(Box<ArrowRows>),
}

impl Pieces {
    /// Only these columns are read.
    #[allow(clippy::unnecessary_wraps, reason = "text alone has nothing to refuse")]
    pub fn take_only(&mut self, columns: impl Iterator<Item = usize>) -> Result<()> {
        match self {
            Self::Text(_) => {
                drop(columns);
                Ok(())
            }
            #[cfg(feature = "arrow")]
            Self::Arrow(rows) => rows.take_only(columns),
        }
    }

    /// The next rows; text is read into `buffer`.
    pub fn next(&mut self, buffer: Vec<u8>) -> Result<Option<RawPiece>> {
        match self {
            Self::Text(pieces) => Ok(pieces.next(buffer)?.map(RawPiece::Text)),
            #[cfg(feature = "arrow")]
            Self::Arrow(rows) => Ok(rows.next()?.map(RawPiece::Arrow)),
        }
    }
}

/// Some rows that have not been taken apart.
#[derive(Debug)]
pub enum RawPiece {
    /// Records.
    Text(CsvPiece),
    /// Columns.
    #[cfg(feature = "arrow")]
    Arrow(arrow::ArrowPiece),
}

impl RawPiece {
    /// Takes it apart into `piece`, which is empty, but for the first `skip` bytes of a text.
    pub fn parse(&self, rules: &Rules, skip: usize, piece: &mut Piece) {
        match (self, rules.written) {
            (Self::Text(text), Some(Written::Csv { dialect, .. })) => {
                piece::parse(rules, dialect, &text.text()[skip..], piece);
            }
            (Self::Text(text), Some(Written::JsonLines)) => json::parse(rules, text.text(), piece),
            #[cfg(feature = "arrow")]
            (Self::Arrow(rows), _) => rows.parse(rules, piece),
            _ => {}
        }
    }

    /// A text's buffer, to be filled again.
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Self::Text(piece) => piece.into_buffer(),
            #[cfg(feature = "arrow")]
            Self::Arrow(_) => Vec::new(),
        }
    }
}
