//! Arrow IPC: files, whose footer lists the batches, and streams.

use super::damaged;
use crate::coo::tns::TextInput;
use crate::error::{Error, Result};
use crate::sys::File;
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::{FileDecoder, StreamDecoder, read_footer_length};
use arrow_ipc::{Block, root_as_footer};
use arrow_schema::SchemaRef;
use bytesize::ByteSize;
use std::sync::Arc;

/// Bytes of a stream that are read at once.
const READ_BYTES: usize = 1 << 18;
/// The least that a stream's batches may take.
const STREAM_BYTES_MIN: u64 = 16 << 20;
/// The magic and the length of the footer, at the end of a file.
const END_BYTES: usize = 10;

/// An Arrow file.
#[derive(Debug)]
pub struct IpcFile {
    name: String,
    file: File,
    decoder: FileDecoder,
    blocks: std::vec::IntoIter<Block>,
    block_bytes_max: u64,
}

impl IpcFile {
    /// Reads the footer and the dictionaries.
    pub fn open(name: &str, file: File) -> Result<(SchemaRef, Self)> {
        let broken = |error: &dyn std::fmt::Display| damaged(name, error);
        let length = file.metadata()?.len();
        let read = |bytes: usize, before_end: u64| -> Result<Vec<u8>> {
            let at = length.checked_sub(before_end).ok_or_else(|| broken(&"it is too short"))?;
            let mut found = vec![0; bytes];
            if file.read_at(&mut found, at)? < bytes {
                return Err(broken(&"it has become shorter"));
            }
            Ok(found)
        };
        let end = read(END_BYTES, END_BYTES as u64)?;
        let bytes = read_footer_length(std::array::from_fn(|i| end[i])).map_err(|e| broken(&e))?;
        let before_end = (bytes + END_BYTES) as u64;
        if before_end > length {
            return Err(broken(&"its footer is longer than the file"));
        }
        let footer = read(bytes, before_end)?;
        let footer = root_as_footer(&footer).map_err(|e| broken(&e))?;
        let schema = footer.schema().ok_or_else(|| broken(&"it has no schema"))?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err(Error::input(name, "is big-endian; write it on this machine, or as Parquet"));
        }
        let schema: SchemaRef = Arc::new(arrow_ipc::convert::fb_to_schema(schema));
        let mut decoder = FileDecoder::new(schema.clone(), footer.version());
        let dictionaries: Vec<Block> = footer.dictionaries().into_iter().flatten().copied().collect();
        let blocks: Vec<Block> = footer.recordBatches().into_iter().flatten().copied().collect();
        for block in dictionaries.iter().chain(&blocks) {
            check_block(block, length).map_err(|what| broken(&what))?;
        }
        let block_bytes_max = dictionaries.iter().chain(&blocks).map(block_bytes).max().unwrap_or(0);
        for block in &dictionaries {
            let buffer = read_block(&file, block, name)?;
            decoder.read_dictionary(block, &buffer).map_err(|e| broken(&e))?;
        }
        let blocks = blocks.into_iter();
        Ok((schema, Self { name: name.to_owned(), file, decoder, blocks, block_bytes_max }))
    }

    /// Bytes of memory that reading takes: batches as they are stored, and two of them decoded.
    pub fn decoder_bytes(&self) -> u64 {
        3 * self.block_bytes_max
    }

    /// Decodes these columns of the schema alone, ascending.
    pub fn take_only(&mut self, wanted: &[usize]) {
        let none = FileDecoder::new(Arc::new(arrow_schema::Schema::empty()), arrow_ipc::MetadataVersion::V5);
        self.decoder = std::mem::replace(&mut self.decoder, none).with_projection(wanted.to_vec());
    }

    /// The next batch.
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        for block in self.blocks.by_ref() {
            let buffer = read_block(&self.file, &block, &self.name)?;
            let batch = self.decoder.read_record_batch(&block, &buffer);
            if let Some(batch) = batch.map_err(|error| damaged(&self.name, &error))? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

fn block_bytes(block: &Block) -> u64 {
    let length = |n: i64| u64::try_from(n).unwrap_or(0);
    length(block.metaDataLength().into()) + length(block.bodyLength())
}

/// An error unless the block lies in a file of `length` bytes.
fn check_block(block: &Block, length: u64) -> std::result::Result<(), &'static str> {
    let (Ok(at), Ok(meta), Ok(body)) = (
        u64::try_from(block.offset()),
        u64::try_from(block.metaDataLength()),
        u64::try_from(block.bodyLength()),
    ) else {
        return Err("a batch has a length below 0");
    };
    let end = at.checked_add(meta).and_then(|end| end.checked_add(body));
    if end.is_some_and(|end| end <= length) { Ok(()) } else { Err("a batch ends behind the file") }
}

fn read_block(file: &File, block: &Block, name: &str) -> Result<Buffer> {
    let bytes = usize::try_from(block_bytes(block)).map_err(|error| damaged(name, &error))?;
    let mut buffer = vec![0; bytes];
    let at = u64::try_from(block.offset()).unwrap_or(0);
    if file.read_at(&mut buffer, at)? < bytes {
        return Err(damaged(name, &"it has become shorter"));
    }
    Ok(buffer.into())
}

/// An Arrow stream.
#[derive(Debug)]
pub struct IpcStream {
    name: String,
    text: TextInput,
    decoder: StreamDecoder,
    /// Read, not decoded.
    waiting: Buffer,
    failure: Option<Error>,
    ended: bool,
    /// Bytes since the last batch, and how many there may be.
    taken: u64,
    most: u64,
}

impl IpcStream {
    /// Reads the schema. Batches may take a quarter of `memory`.
    pub fn open(name: &str, text: TextInput, memory: u64) -> Result<(SchemaRef, Self)> {
        let mut stream = Self {
            name: name.to_owned(),
            text,
            decoder: StreamDecoder::new(),
            waiting: Buffer::from(Vec::<u8>::new()),
            failure: None,
            ended: false,
            taken: 0,
            most: (memory / 4).max(STREAM_BYTES_MIN),
        };
        while stream.decoder.schema().is_none() {
            if stream.waiting.is_empty() && !stream.read()? {
                return Err(damaged(name, &"it ends before its schema"));
            }
            // Byte by byte, since no batch is wanted yet; the schema's message is a few hundred.
            let mut one = stream.waiting.slice_with_length(0, 1);
            stream.decoder.decode(&mut one).map_err(|error| damaged(name, &error))?;
            stream.waiting.advance(1);
        }
        let schema = stream.decoder.schema().ok_or_else(|| damaged(name, &"it has no schema"))?;
        Ok((schema, stream))
    }

    /// Bytes of memory that its batches may take.
    pub fn decoder_bytes(&self) -> u64 {
        self.most + READ_BYTES as u64
    }

    /// Reads some bytes; false at the end.
    fn read(&mut self) -> Result<bool> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.ended {
            return Ok(false);
        }
        let mut buffer = vec![0; READ_BYTES];
        let (read, failure) = self.text.fill(&mut buffer);
        buffer.truncate(read);
        (self.ended, self.failure) = (failure.is_some() || read < READ_BYTES, failure);
        self.waiting = buffer.into();
        self.taken += read as u64;
        if self.taken > self.most {
            let most = ByteSize(self.most);
            let what = format!("a batch of more than {most}; write smaller ones, or give a larger --memory");
            return Err(Error::input(&self.name, what));
        }
        if read == 0 { self.failure.take().map_or(Ok(false), Err) } else { Ok(true) }
    }

    /// The next batch.
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.waiting.is_empty() && !self.read()? {
                return self.decoder.finish().map(|()| None).map_err(|error| damaged(&self.name, &error));
            }
            let batch = self.decoder.decode(&mut self.waiting);
            if let Some(batch) = batch.map_err(|error| damaged(&self.name, &error))? {
                self.taken = self.waiting.len() as u64;
                return Ok(Some(batch));
            }
        }
    }
}
