//! Reading chunks: from a file to a verified image.
//!
//! [`Store::load`] does it in one call. It verifies each piece right after reading it, while the piece is in a core's
//! cache. If the disk is the bottleneck, [`Store::read`] and [`Store::check`] split the work into two steps that two
//! threads can overlap.

use super::{Codec, Store, file};
use crate::chunk::ChunkHeader;
use crate::error::{Error, Result};
use crate::sys::{File, PAGE, PageBuf};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

/// Bytes read and then verified at a time if reads go through the page cache: half of a core's L2 cache or less.
const PIECE_BYTES: usize = 256 << 10;

/// Memory for undoing the codec, besides the buffer. Made once per worker; empty without a codec.
pub struct DecodeScratch {
    file: PageBuf,
    zstd: Option<file::Zstd>,
}

/// How long each step of loading a chunk took.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTimes {
    /// Reading the file.
    pub read: Duration,
    /// Verifying its checksums.
    pub verify: Duration,
    /// Undoing the codec.
    pub decode: Duration,
}

/// Verifies a chunk file front to back as its bytes arrive.
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
    /// header. The image is `buffer[..header.image_bytes]`. `scratch` must come from this store.
    ///
    /// # Panics If `buffer` is shorter than [`Store::chunk_buffer_bytes`] or `number` is not a chunk.
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

    /// Reads the file of chunk `number` into the page-aligned `buffer` with one read. Verifies only the length;
    /// [`Store::check`] verifies the rest.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Store::chunk_buffer_bytes`] or `number` is not a chunk.
    pub fn read(&self, number: usize, buffer: &mut [u8]) -> Result<()> {
        let path = self.chunk_path(number);
        let (file, bytes) = self.open_chunk(number, &path)?;
        read_piece(&file, &mut buffer[..bytes], 0..bytes)
    }

    /// Verifies the file of chunk `number`, which [`Store::read`] has put into `buffer`, undoes the codec, and returns
    /// the chunk's header. The image is `buffer[..header.image_bytes]`. `scratch` must come from this store. The
    /// returned read time is zero.
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
            // Copying compressed bytes is cheap beside decoding them, and saves scratch memory for a second
            // file.
            scratch.file[..bytes].copy_from_slice(&buffer[..bytes]);
            scratch.decode(bytes, &header, buffer, &path)?;
        }
        Ok((header, LoadTimes { read: Duration::ZERO, verify, decode: start.elapsed() }))
    }

    /// The header of chunk `number`, without reading the rest of the chunk.
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

    /// Opens the file of chunk `number` and returns it with its length, which must match the manifest.
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

    /// The header at the start of `file`, which must be that of chunk `number`.
    fn header(&self, number: usize, file: &[u8], path: &Path) -> Result<ChunkHeader> {
        let own = (self.manifest.version as u32).to_le_bytes();
        let header = ChunkHeader::decode(file, path).map_err(|error| match error.rule() {
            // The bytes after the checksum follow the rules of the version that the header names.
            Some("chunk-sections") if file.get(8..12) != Some(&own) => other_version(path),
            _ => error,
        })?;
        self.check_identity(&header, number, path)?;
        Ok(header)
    }

    /// Checks that the header is that of chunk `number` of this store.
    ///
    /// # Panics If `number` is not a chunk.
    pub fn check_identity(&self, header: &ChunkHeader, number: usize, path: &Path) -> Result<()> {
        let (entry, manifest) = (&self.manifest.chunks[number], &self.manifest);
        let format = &manifest.partitions[self.part_of(number)].format;
        let (file_number, partition) = self.identity(number);
        if header.version != manifest.version {
            return Err(other_version(path));
        }
        let same = header.store_id == self.stamp
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
            // With a codec, if the file has the stated lengths but no frame can decode to them, the frame is
            // at fault.
            let rule = if bytes && header.codec > 0 { "chunk-frame" } else { "chunk-stored" };
            return Err(Error::corrupt(path, "corrupt: stored bytes at byte 40").breaks(rule));
        }
        Ok(())
    }
}

/// The error for a chunk whose version differs from the manifest's.
fn other_version(path: &Path) -> Error {
    Error::corrupt(path, "corrupt: of another version of the container than the manifest")
        .breaks("chunk-version")
}

impl DecodeScratch {
    /// Undoes the codec: decodes the file of `bytes` bytes held here into `buffer`. Does nothing without a codec.
    fn decode(&mut self, bytes: usize, header: &ChunkHeader, buffer: &mut [u8], path: &Path) -> Result<()> {
        let Some(zstd) = &mut self.zstd else { return Ok(()) };
        file::undo_codec(zstd, &self.file[..bytes], header, &mut buffer[..header.image_bytes as usize], path)
    }
}

impl<'a> Verifier<'a> {
    fn new(store: &'a Store, number: usize, path: &'a Path) -> Self {
        Self { store, number, path, header: None, hash: Xxh3::new(), seconds: Duration::ZERO }
    }

    /// Verifies the bytes `piece` of `file`, which have just arrived. Pieces arrive in order.
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

    /// Finishes after all of `file` has arrived. Returns its header and the time that verification took.
    fn finish(self, file: &[u8]) -> Result<(ChunkHeader, Duration)> {
        let start = Instant::now();
        let header = self.header.ok_or_else(|| Error::corrupt(self.path, "corrupt: empty"))?;
        file::check_payload(file, &header, self.hash.digest(), self.path)?;
        Ok((header, self.seconds + start.elapsed()))
    }
}

/// Reads the bytes `piece` of a file into their place in `target`, which is as long as the file.
fn read_piece(file: &File, target: &mut [u8], piece: Range<usize>) -> Result<()> {
    let (at, bytes) = (piece.start, target.len());
    let read = file.read_at(&mut target[piece.clone()], at as u64)?;
    if read == piece.len() {
        return Ok(());
    }
    Err(Error::corrupt(file.path(), format!("corrupt: ends at byte {} of {bytes}", at + read)))
}
