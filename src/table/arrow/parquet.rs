//! Parquet files, read page by page.

use super::{damaged, piece_rows};
use crate::error::{Error, Result};
use crate::sys::File;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};
use std::io::{BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a page that are planned for: most writers make pages of 1 MiB, some one page of each column and row group.
const PAGE_BYTES: u64 = 8 << 20;

/// A Parquet file.
pub struct ParquetRows {
    name: String,
    file: ParquetFile,
    metadata: ArrowReaderMetadata,
    reader: Option<ParquetRecordBatchReader>,
}

impl ParquetRows {
    /// Reads the footer.
    pub fn open(name: &str, file: File) -> Result<(SchemaRef, Self)> {
        let length = file.metadata()?.len();
        let file = ParquetFile { file: Arc::new(file), length, failure: Arc::default() };
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new());
        let metadata = metadata.map_err(|error| file.error(name, &error))?;
        Ok((metadata.schema().clone(), Self { name: name.to_owned(), file, metadata, reader: None }))
    }

    /// Bytes of each column's largest chunk, and of all chunks, for these columns of the schema.
    fn chunk_bytes(&self, wanted: &[usize]) -> (Vec<u64>, u64) {
        let file = self.metadata.metadata();
        let schema = file.file_metadata().schema_descr();
        let leaves =
            (0..schema.num_columns()).filter(|&leaf| wanted.contains(&schema.get_column_root_idx(leaf)));
        let bytes = |leaf: usize| {
            let chunks = file.row_groups().iter().filter_map(move |group| group.columns().get(leaf));
            chunks.map(|chunk| u64::try_from(chunk.uncompressed_size()).unwrap_or(0))
        };
        leaves.fold((Vec::new(), 0), |(mut largest, all), leaf| {
            largest.push(bytes(leaf).max().unwrap_or(0));
            (largest, bytes(leaf).fold(all, u64::saturating_add))
        })
    }

    /// Bytes of memory that reading these columns takes: a page of each, as it is stored and decoded.
    pub fn decoder_bytes(&self, wanted: &[usize]) -> u64 {
        let (largest, _) = self.chunk_bytes(wanted);
        2 * largest.iter().map(|&bytes| bytes.min(PAGE_BYTES)).sum::<u64>()
            + self.metadata.metadata().memory_size() as u64
    }

    /// Reads these columns of the schema alone, ascending.
    pub fn take_only(&mut self, wanted: &[usize]) -> Result<()> {
        let (_, bytes) = self.chunk_bytes(wanted);
        let rows: i64 = self.metadata.metadata().row_groups().iter().map(RowGroupMetaData::num_rows).sum();
        let rows = piece_rows(bytes, u64::try_from(rows).unwrap_or(0));
        let builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.clone(), self.metadata.clone());
        let mask = ProjectionMask::roots(builder.parquet_schema(), wanted.iter().copied());
        let reader = builder.with_projection(mask).with_batch_size(rows).build();
        self.reader = Some(reader.map_err(|error| self.file.error(&self.name, &error))?);
        Ok(())
    }

    /// The next rows.
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        let batch = self.reader.as_mut().and_then(Iterator::next).transpose();
        batch.map_err(|error| self.file.error(&self.name, &error))
    }
}

/// A file as the crate reads it. The first failure to read waits here, since the crate makes texts of errors.
#[derive(Clone)]
struct ParquetFile {
    file: Arc<File>,
    length: u64,
    failure: Arc<Mutex<Option<Error>>>,
}

impl ParquetFile {
    /// The failure to read, if there was one, or what the crate says of the file.
    fn error(&self, name: &str, error: &dyn std::fmt::Display) -> Error {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.unwrap_or_else(|| damaged(name, error))
    }

    fn fill(&self, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
        self.file.read_at(buffer, at).map_err(|error| {
            let told = std::io::Error::other(error.to_string());
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            told
        })
    }
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(From { file: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        // Before memory is taken for it.
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(ParquetError::EOF(format!("{length} bytes at byte {start} of {}", self.length)));
        }
        let mut bytes = vec![0; length];
        let read = self.fill(&mut bytes, start)?;
        if read < length {
            return Err(ParquetError::EOF(format!("{length} bytes at byte {start}, and {read} are there")));
        }
        Ok(bytes.into())
    }
}

/// The bytes of a file from some place on.
struct From {
    file: ParquetFile,
    at: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.fill(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
