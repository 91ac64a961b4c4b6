//! The container: a directory with one manifest and its chunk files, published whole or not at all
//! (formats-spec/container.md). Knows bytes, checksums and durability; what the sections mean is `format`'s.

pub mod chunk;
mod file;
mod format;
pub mod manifest;
mod publish;

pub use chunk::{ChunkHeader, ImageWriter, SectionKind};
pub use file::{LoneReader, read_provenance};
pub use format::{Format, TREE_CODE, level_bytes};
pub use manifest::{ChunkEntry, Codec, Manifest};
pub use publish::{Published, Staging, partial_path};

use crate::error::{Error, Result};
use crate::sys::{File, PAGE, PageBuf, Sys};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

/// The smallest bound on a chunk's image: room for a tile of eight modes, whatever its values.
pub const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// The largest bound on a chunk's image.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// No chunk file or image is longer: the largest bound with room for a codec that does not help.
const FILE_BYTES_MAX: u64 = CHUNK_BYTES_MAX + (CHUNK_BYTES_MAX >> 4);
/// No manifest is longer.
const MANIFEST_BYTES_MAX: u64 = i32::MAX as u64;

/// The manifest's file name.
pub(crate) const MANIFEST: &str = "manifest";
/// The name of the file that is not part of the store's identity.
const PROVENANCE: &str = "provenance.json";
/// What is read and verified at a time where reads go through the page cache: half of a core's L2 cache or less.
const PIECE_BYTES: usize = 256 << 10;
/// The file name of chunk `number`.
pub(crate) fn chunk_name(number: usize) -> String {
    format!("chunk-{number:06}.bin")
}

/// An open store: its manifest has been read and checked; chunks are checked as they are read.
#[derive(Debug)]
pub struct Store {
    sys: Sys,
    path: PathBuf,
    manifest: Manifest,
    id: u64,
    direct: bool,
}

/// What undoing the codec needs besides the buffer; made once per reader, empty without a codec.
pub struct Scratch {
    file: PageBuf,
    zstd: Option<file::Zstd>,
}

/// How long the steps of reading a chunk took.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTimes {
    /// Reading the file.
    pub read: Duration,
    /// Verifying its checksums.
    pub verify: Duration,
    /// Undoing the codec.
    pub decode: Duration,
}

impl Store {
    /// Opens the store at `path` and checks its manifest.
    pub fn open(sys: &Sys, path: &Path) -> Result<Self> {
        let at = path.join(MANIFEST);
        if !path.is_dir() || !at.is_file() {
            let what = if path.is_file() { "a file, not a store" } else { "no store here" };
            let hint = "a store is a directory that blco-pack makes, with a file `manifest` in it";
            return Err(Error::request(format!("{}: {what}; {hint}", path.display())));
        }
        let file = sys.open(&at, false)?;
        let bytes = file.metadata()?.len();
        if bytes > MANIFEST_BYTES_MAX {
            return Err(Error::corrupt(&at, format!("{bytes} bytes; no manifest is that long")));
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
        let mut buffer = sys.page_buf(bytes as usize + 1)?;
        let read = file.read_at(&mut buffer, 0)?;
        let (manifest, id) = Manifest::decode(&buffer[..read], &at)?;
        Ok(Self { sys: sys.clone(), path: path.to_path_buf(), manifest, id, direct: false })
    }

    /// Reads chunks past the page cache from now on: for stores that the cache cannot hold.
    #[must_use]
    pub fn with_direct_reads(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// What the store is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The store id, which is also its digest.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle that it reads through.
    #[must_use]
    pub fn sys(&self) -> &Sys {
        &self.sys
    }

    /// The file of chunk `number`.
    #[must_use]
    pub fn chunk_path(&self, number: usize) -> PathBuf {
        self.path.join(chunk_name(number))
    }

    /// The file of chunk `number` of the store in `directory`.
    #[must_use]
    pub fn chunk_path_in(directory: &Path, number: usize) -> PathBuf {
        directory.join(chunk_name(number))
    }

    /// Bytes that hold any chunk of the store, as a file or as an image.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        (0..self.manifest.chunks.len()).map(|n| self.chunk_buffer_bytes(n)).max().unwrap_or(0)
    }

    /// Bytes that hold chunk `number`, as a file or as an image.
    #[must_use]
    pub fn chunk_buffer_bytes(&self, number: usize) -> usize {
        let entry = &self.manifest.chunks[number];
        usize::try_from(entry.file_bytes.max(entry.image_bytes))
            .map_or(usize::MAX, |b| b.next_multiple_of(PAGE))
    }

    /// An error where long chunks are not there as the manifest says: memory for their lengths is better not taken.
    pub(crate) fn check_long_chunks(&self) -> Result<()> {
        /// Buffers below this size are not worth a look.
        const LONG: u64 = 32 << 20;
        for (number, entry) in self.manifest.chunks.iter().enumerate() {
            if entry.file_bytes.max(entry.image_bytes) > LONG {
                let path = self.chunk_path(number);
                let bytes = std::fs::metadata(&path).map_or(0, |found| found.len());
                let holds = if self.manifest.codec == Codec::None { bytes } else { file::frame_holds(bytes) };
                if bytes != entry.file_bytes || entry.image_bytes > holds {
                    let what = format!("corrupt: {bytes} bytes cannot hold what the manifest says");
                    return Err(Error::corrupt(path, what));
                }
            }
        }
        Ok(())
    }

    /// Bytes of the scratch that [`Store::load`] needs: 0 without a codec.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        if self.manifest.codec == Codec::None { 0 } else { self.buffer_bytes() }
    }

    /// Scratch for one reader.
    pub fn scratch(&self) -> Result<Scratch> {
        let zstd = match self.manifest.codec {
            Codec::None => None,
            Codec::Zstd(_) => Some(file::zstd_decoder()?),
        };
        Ok(Scratch { file: self.sys.page_buf(self.scratch_bytes())?, zstd })
    }

    /// Bytes of the store's files without provenance: manifest and chunks.
    pub fn bytes(&self) -> Result<u64> {
        let at = self.path.join(MANIFEST);
        let manifest = std::fs::metadata(&at).map_err(Error::io(&at, "inspect"))?.len();
        Ok(manifest + self.manifest.chunks.iter().map(|c| c.file_bytes).sum::<u64>())
    }

    /// Reads chunk `number` into the page-aligned `buffer`, verifies it, undoes the codec, and returns its
    /// header; the image is `buffer[..header.image_bytes]`. `scratch` is this store's.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Store::buffer_bytes`] or `number` is not a chunk.
    pub fn load(
        &self,
        number: usize,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(ChunkHeader, LoadTimes)> {
        let path = self.chunk_path(number);
        let target = if scratch.zstd.is_some() { &mut scratch.file[..] } else { &mut *buffer };
        let start = Instant::now();
        let (header, file_bytes, verify) = self.read_verified(number, &path, target)?;
        let read = start.elapsed().saturating_sub(verify);
        if let Some(zstd) = &mut scratch.zstd {
            let image = &mut buffer[..header.image_bytes as usize];
            file::undo_codec(zstd, &scratch.file[..file_bytes], &header, image, &path)?;
        }
        let decode = start.elapsed().saturating_sub(read + verify);
        Ok((header, LoadTimes { read, verify, decode }))
    }

    /// Reads the whole file of chunk `number` and verifies it piece by piece, while a core's caches hold what was just read: its header, its
    /// bytes, and how long verifying took.
    fn read_verified(
        &self,
        number: usize,
        path: &Path,
        target: &mut [u8],
    ) -> Result<(ChunkHeader, usize, Duration)> {
        let (file, bytes) = self.open_chunk(number, path)?;
        let piece = if self.direct { bytes.max(1) } else { PIECE_BYTES };
        let (mut header, mut hash, mut verify) = (None, Xxh3::new(), Duration::ZERO);
        for at in (0..bytes).step_by(piece) {
            let end = bytes.min(at + piece);
            let read = file.read_at(&mut target[at..end], at as u64)?;
            if read != end - at {
                return Err(Error::corrupt(path, format!("corrupt: ends at byte {} of {bytes}", at + read)));
            }
            let start = Instant::now();
            let header = match &header {
                Some(header) => header,
                None => header.insert(self.header(number, &target[..end], path)?),
            };
            let payload = file::payload(header);
            hash.update(&target[payload.start.clamp(at, end)..payload.end.clamp(at, end)]);
            verify += start.elapsed();
        }
        let header = header.ok_or_else(|| Error::corrupt(path, "corrupt: empty"))?;
        let start = Instant::now();
        file::check_payload(&target[..bytes], &header, hash.digest(), path)?;
        Ok((header, bytes, verify + start.elapsed()))
    }

    /// The file of chunk `number`, and its bytes, which must be the manifest's.
    fn open_chunk(&self, number: usize, path: &Path) -> Result<(File, usize)> {
        if !path.is_file() {
            return Err(Error::corrupt(path, "missing"));
        }
        let file = self.sys.open(path, self.direct)?;
        let (bytes, expected) = (file.metadata()?.len(), self.manifest.chunks[number].file_bytes);
        if bytes != expected {
            return Err(Error::corrupt(
                path,
                format!("corrupt: {bytes} bytes, the manifest says {expected}"),
            ));
        }
        Ok((file, usize::try_from(bytes).map_or(usize::MAX, |b| b)))
    }

    /// The header that `file` begins with, which must be that of chunk `number`.
    fn header(&self, number: usize, file: &[u8], path: &Path) -> Result<ChunkHeader> {
        let header = ChunkHeader::decode(file, path)?;
        self.check_identity(&header, number, path)?;
        Ok(header)
    }

    /// The header must be that of this chunk of this store.
    ///
    /// # Panics
    /// If `number` is not a chunk.
    pub fn check_identity(&self, header: &ChunkHeader, number: usize, path: &Path) -> Result<()> {
        let (entry, manifest) = (&self.manifest.chunks[number], &self.manifest);
        let same = header.store_id == self.id
            && header.number as usize == number
            && header.first_nonzero == entry.first_nonzero
            && u64::from(header.nnz) == entry.nnz
            && u64::from(header.image_bytes) == entry.image_bytes
            && header.payload_checksum == entry.payload_checksum
            && usize::from(header.order) == manifest.shape.order()
            && header.index_encoding == manifest.format.index_code()
            && header.codec == manifest.codec.code();
        if !same {
            let what =
                format!("not chunk {number} of this store: its header differs from the manifest's entry");
            return Err(Error::corrupt(path, what));
        }
        if !file::stored_fits(header) || header.file_bytes() != entry.file_bytes {
            return Err(Error::corrupt(path, "corrupt: stored bytes at byte 40"));
        }
        Ok(())
    }
}
