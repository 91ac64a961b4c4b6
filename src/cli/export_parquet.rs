//! Nonzeros as a Parquet file: a column of labels for each mode, and the values.

use super::export_table::TableRows;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use crate::sys::File;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

/// Tiles that are handed over together.
const TILES: usize = 16;
/// Rows of a row group, and the limit on bytes of encoded pages and dictionaries that its columns hold.
const GROUP_ROWS: usize = 1 << 17;
const GROUP_BYTES: usize = 32 << 20;
/// Memory of the writer beside labels: a row group that is held, the next rows, and dictionaries.
pub const WRITER_BYTES: u64 = 2 * GROUP_BYTES as u64;

/// Writes tiles as rows.
pub struct ParquetWriter<'a> {
    rows: &'a TableRows,
    schema: SchemaRef,
    writer: ArrowWriter<BufWriter<&'a File>>,
    target: &'a Path,
    /// Indices by mode, and values, that are not written yet.
    indices: Vec<Vec<u32>>,
    values: Vec<f64>,
}

impl<'a> ParquetWriter<'a> {
    /// Begins the file.
    pub fn new(rows: &'a TableRows, file: &'a File, target: &'a Path) -> Result<Self> {
        let (names, order) = (rows.names(), rows.names().len() - 1);
        let kind = |at: usize| match at {
            at if at == order => DataType::Float64,
            at if rows.label(at, 0).is_some() => DataType::Utf8,
            _ => DataType::UInt32,
        };
        let fields = names.iter().enumerate().map(|(at, name)| Field::new(name, kind(at), false));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let out = BufWriter::with_capacity(1 << 18, file);
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties));
        let writer = writer.map_err(|error| failed(target, error))?;
        Ok(Self { rows, schema, writer, target, indices: vec![Vec::new(); order], values: Vec::new() })
    }

    /// Adds a tile.
    pub fn push(&mut self, tile: &DecodedTile<'_>) -> Result<()> {
        for (mode, indices) in self.indices.iter_mut().enumerate() {
            indices.extend_from_slice(tile.column(mode));
        }
        self.values.extend_from_slice(tile.values);
        if self.values.len() >= TILES * TILE_NNZ { self.write() } else { Ok(()) }
    }

    /// Writes the rows that are held.
    fn write(&mut self) -> Result<()> {
        let target = self.target;
        let column = |(mode, indices): (usize, &Vec<u32>)| -> ArrayRef {
            if self.rows.label(mode, 0).is_none() {
                return Arc::new(UInt32Array::from_iter_values(indices.iter().map(|index| index + 1)));
            }
            let label = |&index: &u32| self.rows.label(mode, index).unwrap_or_default();
            Arc::new(StringArray::from_iter_values(indices.iter().map(label)))
        };
        let mut columns: Vec<ArrayRef> = self.indices.iter().enumerate().map(column).collect();
        columns.push(Arc::new(Float64Array::from_iter_values(self.values.iter().copied())));
        let batch = RecordBatch::try_new(self.schema.clone(), columns);
        let batch = batch.map_err(|error| failed(target, error.into()))?;
        self.writer.write(&batch).map_err(|error| failed(target, error))?;
        if self.writer.in_progress_size() > GROUP_BYTES {
            self.writer.flush().map_err(|error| failed(target, error))?;
        }
        self.indices.iter_mut().for_each(Vec::clear);
        self.values.clear();
        Ok(())
    }

    /// Writes the rest and the footer.
    pub fn finish(mut self) -> Result<()> {
        if !self.values.is_empty() {
            self.write()?;
        }
        let target = self.target;
        self.writer.close().map(drop).map_err(|error| failed(target, error))
    }
}

/// The error of a file that cannot be written: the system's own if it is one.
fn failed(target: &Path, error: ParquetError) -> Error {
    let source = match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(source) => *source,
            Err(error) => std::io::Error::other(error),
        },
        error => std::io::Error::other(error),
    };
    Error::io(target, "write")(source)
}
