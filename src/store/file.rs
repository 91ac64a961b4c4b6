//! Chunk files: the checks that every reader makes of a payload, and reading a file alone, without the manifest
//! that describes it.

use super::{CHUNK_BYTES_MAX, FILE_BYTES_MAX, PROVENANCE};
use crate::chunk::ChunkHeader;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::shape::{ORDER_MAX, ORDER_MIN};
use crate::sys::{File, PAGE, PageBuf, Sys};
use bytesize::ByteSize;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// The longest provenance that is read, in bytes.
const PROVENANCE_BYTES_MAX: u64 = 16 << 20;

/// A decoder of zstd frames.
pub(super) type Zstd = zstd::bulk::Decompressor<'static>;

/// Makes a decoder of zstd frames.
pub(super) fn zstd_decoder() -> Result<Zstd> {
    Zstd::new().map_err(|source| Error::Resource { action: "start a zstd decoder", source })
}

/// Where the stored payload lies in a file.
pub(super) fn payload(header: &ChunkHeader) -> Range<usize> {
    let start = header.header_bytes();
    start..start + header.stored_bytes as usize
}

/// Checks that the stored payload's hash equals the header's checksum and that the padding after it is zero. `file` is
/// the whole file; its length has been checked against the header.
pub(super) fn check_payload(file: &[u8], header: &ChunkHeader, hash: u64, path: &Path) -> Result<()> {
    let (number, Range { start, end: stored }) = (header.number, payload(header));
    if hash != header.payload_checksum {
        let what = format!("chunk {number}: corrupt: payload checksum of bytes {start} to {stored}");
        return Err(Error::corrupt(path, what).breaks("chunk-payload"));
    }
    if file[stored..].iter().any(|&b| b != 0) {
        let what = format!("chunk {number}: corrupt: padding from byte {stored} on");
        return Err(Error::corrupt(path, what).breaks("chunk-padding"));
    }
    Ok(())
}

/// Undoes the codec: fills `image` with `header.image_bytes` bytes decoded from the whole file.
pub(super) fn undo_codec(
    zstd: &mut Zstd,
    file: &[u8],
    header: &ChunkHeader,
    image: &mut [u8],
    path: &Path,
) -> Result<()> {
    let (head, image) = image.split_at_mut(header.header_bytes());
    head.copy_from_slice(&file[..head.len()]);
    let payload = &file[payload(header)];
    if is_one_frame(payload) && zstd.decompress_to_buffer(payload, image).ok() == Some(image.len()) {
        return Ok(());
    }
    let what = format!("chunk {}: corrupt: zstd frame at byte {}", header.number, header.header_bytes());
    Err(Error::corrupt(path, what).breaks("chunk-frame"))
}

/// Whether `payload` is exactly one zstd frame (RFC 8878): not skippable, nothing after it, and a window that streaming
/// decoders accept.
fn is_one_frame(payload: &[u8]) -> bool {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const SINGLE_SEGMENT: u8 = 1 << 5;
    const WINDOW_BYTES_MAX: u64 = 1 << 27;
    let [m0, m1, m2, m3, descriptor, window, ..] = *payload else { return false };
    let base = 1u64 << (10 + (window >> 3));
    let window_fits = base + base / 8 * u64::from(window & 7) <= WINDOW_BYTES_MAX;
    [m0, m1, m2, m3] == MAGIC
        && (descriptor & SINGLE_SEGMENT != 0 || window_fits)
        && zstd::zstd_safe::find_frame_compressed_size(payload).ok() == Some(payload.len())
}

/// Whether the stored bytes can hold the image. Without a codec they are the image.
pub(super) fn stored_fits(header: &ChunkHeader) -> bool {
    let (stored, image) = (u64::from(header.stored_bytes), u64::from(header.image_bytes));
    if header.codec == 0 {
        header.header_bytes() as u64 + stored == image
    } else {
        image <= frame_holds(stored)
    }
}

/// The most bytes that a zstd frame of `bytes` bytes can hold: a block has at least 4 bytes and at most 128
/// KiB of contents.
pub(super) fn frame_holds(bytes: u64) -> u64 {
    bytes << 15
}

/// Reads chunk files one at a time, without a manifest. Its buffers grow to the largest file and image met.
pub struct LoneReader {
    sys: Sys,
    file: PageBuf,
    image: PageBuf,
    zstd: Zstd,
    /// The most bytes that both buffers may take together.
    bytes_max: u64,
}

impl LoneReader {
    /// A reader without buffers.
    pub fn new(sys: &Sys) -> Result<Self> {
        let (file, image) = (sys.page_buf(0)?, sys.page_buf(0)?);
        Ok(Self { sys: sys.clone(), file, image, zstd: zstd_decoder()?, bytes_max: u64::MAX })
    }

    /// Refuses files that need more than `bytes` to load.
    pub fn limit(&mut self, bytes: u64) {
        self.bytes_max = bytes;
    }

    /// Frees the buffers.
    pub fn release(&mut self) -> Result<()> {
        (self.file, self.image) = (self.sys.page_buf(0)?, self.sys.page_buf(0)?);
        Ok(())
    }

    /// Bytes that the buffers take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.file.len() + self.image.len()) as u64
    }

    /// Reads and checks the header: its checksum, its section table, and the range of every field.
    /// [`LoneReader::load`] checks the file's length and payload.
    pub fn header(&self, path: &Path) -> Result<ChunkHeader> {
        let (file, _) = open_file(&self.sys, path)?;
        let mut bytes = [0; PAGE];
        let read = file.read_at(&mut bytes, 0)?;
        let header = ChunkHeader::decode(&bytes[..read], path)?;
        let in_range = (ORDER_MIN..=ORDER_MAX).contains(&usize::from(header.order))
            && Layout(header.codes.layout).is_known(header.version)
            && header.codec <= 1
            && header.nnz > 0
            && u64::from(header.image_bytes) <= CHUNK_BYTES_MAX
            && header.file_bytes() <= FILE_BYTES_MAX
            && stored_fits(&header);
        if in_range { Ok(header) } else { Err(Error::corrupt(path, "corrupt: a field of the header")) }
    }

    /// Reads the file whose header [`LoneReader::header`] has returned, verifies it, undoes the codec and returns
    /// the image. The format checks the sections' contents.
    pub fn load(&mut self, path: &Path, header: &ChunkHeader) -> Result<&[u8]> {
        let (file, bytes) = open_file(&self.sys, path)?;
        let wanted = header.file_bytes();
        if bytes != wanted {
            let what = format!("corrupt: {bytes} bytes, its header says {wanted}");
            return Err(Error::corrupt(path, what).breaks("chunk-length"));
        }
        let image = if header.codec == 0 { 0 } else { u64::from(header.image_bytes) };
        let takes = wanted + image.next_multiple_of(PAGE as u64);
        if takes > self.bytes_max {
            let what = format!("takes {} of memory, more than `memory` leaves: raise it", ByteSize(takes));
            return Err(Error::request(format!("{}: {what}", path.display())));
        }
        let length = usize::try_from(wanted).unwrap_or(usize::MAX);
        room(&self.sys, &mut self.file, length)?;
        let contents = &mut self.file[..length];
        let read = file.read_at(contents, 0)?;
        if read != length {
            return Err(Error::corrupt(path, format!("corrupt: ends at byte {read} of {length}")));
        }
        if contents[..header.header_bytes()] != header.encode() {
            return Err(Error::unusable(path, "changes while it is read"));
        }
        check_payload(contents, header, xxh3_64(&contents[payload(header)]), path)?;
        let image_bytes = header.image_bytes as usize;
        if header.codec == 0 {
            return Ok(&self.file[..image_bytes]);
        }
        room(&self.sys, &mut self.image, image_bytes)?;
        let image = &mut self.image[..image_bytes];
        undo_codec(&mut self.zstd, &self.file[..length], header, image, path)?;
        Ok(image)
    }
}

/// Makes `buffer` at least `bytes` long. Its contents are lost.
fn room(sys: &Sys, buffer: &mut PageBuf, bytes: usize) -> Result<()> {
    if buffer.len() < bytes {
        // Free the old buffer first, so that memory never holds both.
        *buffer = sys.page_buf(0)?;
        *buffer = sys.page_buf(bytes)?;
    }
    Ok(())
}

/// Opens a file of a store and returns it with its length; [`Error::Corrupt`] if it does not exist.
fn open_file(sys: &Sys, path: &Path) -> Result<(File, u64)> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(Error::unusable(path, "not a file")),
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::corrupt(path, "missing")),
        other => other.map_err(Error::io(path, "inspect"))?,
    };
    let file = sys.open(path, false)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// The contents of the provenance of the store at `store`; [`Error::Corrupt`] if there is none.
pub fn read_provenance(sys: &Sys, store: &Path) -> Result<Vec<u8>> {
    let path = store.join(PROVENANCE);
    let (file, bytes) = open_file(sys, &path)?;
    if bytes > PROVENANCE_BYTES_MAX {
        return Err(Error::unusable(&path, format!("{bytes} bytes; no provenance is that long")));
    }
    let mut contents = sys.vec(0, usize::try_from(bytes).unwrap_or(usize::MAX))?;
    let read = file.read_at(&mut contents, 0)?;
    contents.truncate(read);
    Ok(contents)
}
