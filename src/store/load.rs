//! Reading chunks: from a file to a verified image.
//!
//! [`Store::load`] does all of it, piece by piece, so that what was just read is verified while a core's caches hold it.
//! Where a disk is waited for, [`Store::read`] and [`Store::check`] do it in two steps, which two threads can take at once.

use super::{Codec, Store, file};
use crate::chunk::ChunkHeader;
use crate::error::{Error, Result};
use crate::sys::{File, PAGE, PageBuf};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

/// What is read and verified at a time where reads go through the page cache: half of a core's L2 cache or less.
const PIECE_BYTES: usize = 256 << 10;

/// What undoing the codec needs besides the buffer; made once per worker, empty without a codec.
pub struct DecodeScratch {
    file: PageBuf,
    zstd: Option<file::Zstd>,
}

/// How long the steps of bringing a chunk took.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTimes {
    /// Reading the file.
    pub read: Duration,
    /// Verifying its checksums.
    pub verify: Duration,
    /// Undoing the codec.
    pub decode: Duration,
}

/// Verifies the file of a chunk, front to back, as its bytes come.
struct Verifier<'a> {
    store: &'a Store,
    number: usize,
    path: &'a Path,
    /// `None` before the first bytes.
    header: Option<ChunkHeader>,
    hash: Xxh3,
    seconds: Duration,
}

#[doc(hidden)]
impl Store {
    /// Bytes of the scratch that [`Store::load`] needs: 0 without a codec.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        if self.manifest.codec == Codec::None { 0 } else { self.buffer_bytes() }
    }

    /// Scratch for one worker.
    pub fn scratch(&self) -> Result<DecodeScratch> {
        let zstd = match self.manifest.codec {
            Codec::None => None,
            Codec::Zstd(_) => Some(file::zstd_decoder()?),
        };
        Ok(DecodeScratch { file: self.sys.page_buf(self.scratch_bytes())?, zstd })
    }

    /// Reads chunk `number` into the page-aligned `buffer`, verifies it, undoes the codec, and returns its
    /// header; the image is `buffer[..header.image_bytes]`. `scratch` is this store's.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Store::chunk_buffer_bytes`] or `number` is not a chunk.
    pub fn load(
        &self,
        number: usize,
        buffer: &mut [u8],
        scratch: &mut DecodeScratch,
    ) -> Result<(ChunkHeader, LoadTimes)> {
        let path = self.chunk_path(number);
        let start = Instant::now();
        let target = if scratch.zstd.is_some() { &mut scratch.file[..] } else { &mut *buffer };
        let (file, bytes) = self.open_chunk(number, &path)?;
        let target = &mut target[..bytes];
        let piece = if self.direct { bytes.max(1) } else { PIECE_BYTES };
        let mut verifier = Verifier::new(self, number, &path);
        for at in (0..bytes).step_by(piece) {
            let piece = at..bytes.min(at + piece);
            read_piece(&file, target, piece.clone())?;
            verifier.take(target, piece)?;
        }
        let (header, verify) = verifier.finish(target)?;
        let header = self.in_cover(header, number);
        let read = start.elapsed().saturating_sub(verify);
        scratch.decode(bytes, &header, buffer, &path)?;
        let decode = start.elapsed().saturating_sub(read + verify);
        Ok((header, LoadTimes { read, verify, decode }))
    }

    /// Reads the file of chunk `number` into the page-aligned `buffer`, at once. Of what is in it only the length is
    /// verified: the rest is for [`Store::check`].
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Store::chunk_buffer_bytes`] or `number` is not a chunk.
    pub fn read(&self, number: usize, buffer: &mut [u8]) -> Result<()> {
        let path = self.chunk_path(number);
        let (file, bytes) = self.open_chunk(number, &path)?;
        read_piece(&file, &mut buffer[..bytes], 0..bytes)
    }

    /// Verifies the file of chunk `number`, which [`Store::read`] has put into `buffer`, undoes the codec, and returns the
    /// chunk's header; the image is `buffer[..header.image_bytes]`. `scratch` is this store's. No time is for reading.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Store::chunk_buffer_bytes`] or `number` is not a chunk.
    pub fn check(
        &self,
        number: usize,
        buffer: &mut [u8],
        scratch: &mut DecodeScratch,
    ) -> Result<(ChunkHeader, LoadTimes)> {
        let path = self.chunk_path(number);
        let bytes = usize::try_from(self.manifest.chunks[number].file_bytes).unwrap_or(usize::MAX);
        let mut verifier = Verifier::new(self, number, &path);
        verifier.take(&buffer[..bytes], 0..bytes)?;
        let (header, verify) = verifier.finish(&buffer[..bytes])?;
        let header = self.in_cover(header, number);
        let start = Instant::now();
        if scratch.zstd.is_some() {
            // Copying what is compressed takes little beside decoding it, and saves scratch for a second file.
            scratch.file[..bytes].copy_from_slice(&buffer[..bytes]);
            scratch.decode(bytes, &header, buffer, &path)?;
        }
        Ok((header, LoadTimes { read: Duration::ZERO, verify, decode: start.elapsed() }))
    }

    /// The header of chunk `number`, and nothing else of it.
    ///
    /// # Panics
    /// If `number` is not a chunk.
    pub fn read_header(&self, number: usize) -> Result<ChunkHeader> {
        let path = self.chunk_path(number);
        let (file, _) = self.open_chunk(number, &path)?;
        let mut page = self.sys.page_buf(PAGE)?;
        let read = file.read_at(&mut page, 0)?;
        self.header(number, &page[..read], &path)
    }

    /// The file of chunk `number`, and its bytes, which must be the manifest's.
    fn open_chunk(&self, number: usize, path: &Path) -> Result<(File, usize)> {
        let name = self.file_name(number);
        if self.dir.file_bytes(&name)?.is_none() {
            return Err(Error::corrupt(path, "missing").breaks("chunk-missing"));
        }
        let file = self.dir.file(&name, self.direct)?;
        let (bytes, expected) = (file.metadata()?.len(), self.manifest.chunks[number].file_bytes);
        if bytes != expected {
            let what = format!("corrupt: {bytes} bytes, the manifest says {expected}");
            return Err(Error::corrupt(path, what).breaks("chunk-length"));
        }
        Ok((file, usize::try_from(bytes).map_or(usize::MAX, |b| b)))
    }

    /// The header that `file` begins with, which must be that of chunk `number`.
    fn header(&self, number: usize, file: &[u8], path: &Path) -> Result<ChunkHeader> {
        let own = (self.manifest.version as u32).to_le_bytes();
        let header = ChunkHeader::decode(file, path).map_err(|error| match error.rule() {
            // What comes behind the checksum is read by the rules of the version that it says.
            Some("chunk-sections") if file.get(8..12) != Some(&own) => other_version(path),
            _ => error,
        })?;
        self.check_identity(&header, number, path)?;
        Ok(header)
    }

    /// The header must be that of this chunk of this store.
    ///
    /// # Panics
    /// If `number` is not a chunk.
    pub fn check_identity(&self, header: &ChunkHeader, number: usize, path: &Path) -> Result<()> {
        let (entry, manifest) = (&self.manifest.chunks[number], &self.manifest);
        let format = &manifest.partitions[self.part_of(number)].format;
        let (file_number, partition) = self.identity(number);
        if header.version != manifest.version {
            return Err(other_version(path));
        }
        let same = header.store_id == self.id
            && header.number as usize == file_number
            && header.first_nonzero == entry.first_nonzero
            && u64::from(header.nnz) == entry.nnz
            && u64::from(header.image_bytes) == entry.image_bytes
            && header.payload_checksum == entry.payload_checksum
            && usize::from(header.order) == manifest.shape.order()
            && header.partition as usize == partition
            && header.codes == format.record().chunk_codes(header.version, header.codes.value_encoding)
            && entry.value_encoding.is_none_or(|code| header.codes.value_encoding == code)
            && header.codec == manifest.codec.code();
        if !same {
            let what = format!(
                "not chunk {file_number} of this store: its header differs from the manifest's entry"
            );
            return Err(Error::corrupt(path, what).breaks("chunk-identity"));
        }
        let bytes = header.file_bytes() == entry.file_bytes;
        if !file::stored_fits(header) || !bytes {
            // With a codec, lengths that the file bears out, and no frame has, are the frame's fault.
            let rule = if bytes && header.codec > 0 { "chunk-frame" } else { "chunk-stored" };
            return Err(Error::corrupt(path, "corrupt: stored bytes at byte 40").breaks(rule));
        }
        Ok(())
    }
}

/// The error about a chunk of another version than its store's manifest.
fn other_version(path: &Path) -> Error {
    Error::corrupt(path, "corrupt: of another version of the container than the manifest")
        .breaks("chunk-version")
}

impl DecodeScratch {
    /// Undoes the codec: the image into `buffer`, from the file of `bytes` bytes that lies here. Nothing without a codec.
    fn decode(&mut self, bytes: usize, header: &ChunkHeader, buffer: &mut [u8], path: &Path) -> Result<()> {
        let Some(zstd) = &mut self.zstd else { return Ok(()) };
        file::undo_codec(zstd, &self.file[..bytes], header, &mut buffer[..header.image_bytes as usize], path)
    }
}

impl<'a> Verifier<'a> {
    fn new(store: &'a Store, number: usize, path: &'a Path) -> Self {
        Self { store, number, path, header: None, hash: Xxh3::new(), seconds: Duration::ZERO }
    }

    /// The bytes `piece` of `file` have come; those before were taken.
    fn take(&mut self, file: &[u8], piece: Range<usize>) -> Result<()> {
        let start = Instant::now();
        let header = match &self.header {
            Some(header) => header,
            None => self.header.insert(self.store.header(self.number, &file[..piece.end], self.path)?),
        };
        let payload = file::payload(header);
        let inside = |at: usize| at.clamp(piece.start, piece.end);
        self.hash.update(&file[inside(payload.start)..inside(payload.end)]);
        self.seconds += start.elapsed();
        Ok(())
    }

    /// All of `file` has come: its header, and how long verifying took.
    fn finish(self, file: &[u8]) -> Result<(ChunkHeader, Duration)> {
        let start = Instant::now();
        let header = self.header.ok_or_else(|| Error::corrupt(self.path, "corrupt: empty"))?;
        file::check_payload(file, &header, self.hash.digest(), self.path)?;
        Ok((header, self.seconds + start.elapsed()))
    }
}

/// Reads the bytes `piece` of a file of the length of `target` to where they belong in it.
fn read_piece(file: &File, target: &mut [u8], piece: Range<usize>) -> Result<()> {
    let (at, bytes) = (piece.start, target.len());
    let read = file.read_at(&mut target[piece.clone()], at as u64)?;
    if read == piece.len() {
        return Ok(());
    }
    Err(Error::corrupt(file.path(), format!("corrupt: ends at byte {} of {bytes}", at + read)))
}
