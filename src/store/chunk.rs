//! The chunk: header, section table, image and file (formats-spec/container.md).

use crate::error::{Error, Result};
use crate::sys::PAGE;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a chunk's header.
pub const HEADER_BYTES: usize = 128;
/// What sections and images are aligned to, in bytes.
pub const ALIGN: usize = 128;
/// Entries of the section table.
const SECTIONS: usize = 4;
const MAGIC: [u8; 8] = *b"BLCOCHNK";
/// The version of the container that this code writes and the only one that it reads.
pub const VERSION: u32 = 1;

/// The kinds of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SectionKind {
    /// The dims.
    Shape = 1,
    /// BLCO blocks of a `raw` chunk.
    Blocks = 2,
    /// Re-encoded indices of a `raw` chunk.
    Index = 3,
    /// Tile records.
    Tiles = 4,
    /// Packed columns.
    Columns = 5,
    /// Values or a dictionary.
    Values = 6,
    /// The levels of a tree: how many nodes, tile records, slices' leaf codes.
    Levels = 7,
}

/// Where a section lies in the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Section {
    kind: u32,
    offset: u32,
    bytes: u32,
}

/// A chunk's header, checked or to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The chunk's number in its store.
    pub number: u32,
    /// The store that it belongs to.
    pub store_id: u64,
    /// Position of its first nonzero in the store.
    pub first_nonzero: u64,
    /// Its nonzeros.
    pub nnz: u32,
    /// Bytes of the image.
    pub image_bytes: u32,
    /// Bytes of the payload as stored.
    pub stored_bytes: u32,
    /// The tensor's order.
    pub order: u8,
    /// Code of the index encoding.
    pub index_encoding: u8,
    /// Code of the value encoding.
    pub value_encoding: u8,
    /// Code of the codec.
    pub codec: u8,
    /// Checksum of the payload as stored.
    pub payload_checksum: u64,
    sections: [Section; SECTIONS],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

impl ChunkHeader {
    /// The header, whose place in a store is still open, of an image with sections of these lengths, in ascending order of
    /// kind.
    ///
    /// # Panics
    /// With more than four sections or an image of 4 GiB: who asks bounds both.
    #[must_use]
    pub fn of_sections(
        order: u8,
        nnz: u32,
        index_encoding: u8,
        value_encoding: u8,
        lengths: &[(SectionKind, u64)],
    ) -> Self {
        let field = |x: u64| u32::try_from(x).expect("an image stays below 4 GiB");
        let mut sections = [Section::default(); SECTIONS];
        let mut end = HEADER_BYTES as u64;
        for (n, &(kind, bytes)) in lengths.iter().enumerate() {
            sections[n] = Section { kind: kind as u32, offset: field(end), bytes: field(bytes) };
            end = (end + bytes).next_multiple_of(ALIGN as u64);
        }
        Self::unplaced(order, nnz, index_encoding, value_encoding, field(end), sections)
    }

    /// A header whose place in a store is still open.
    fn unplaced(
        order: u8,
        nnz: u32,
        index_encoding: u8,
        value_encoding: u8,
        image_bytes: u32,
        sections: [Section; SECTIONS],
    ) -> Self {
        Self {
            number: 0,
            store_id: 0,
            first_nonzero: 0,
            nnz,
            image_bytes,
            stored_bytes: 0,
            order,
            index_encoding,
            value_encoding,
            codec: 0,
            payload_checksum: 0,
            sections,
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.store_id.to_le_bytes());
        put(&self.first_nonzero.to_le_bytes());
        put(&self.nnz.to_le_bytes());
        put(&self.image_bytes.to_le_bytes());
        put(&self.stored_bytes.to_le_bytes());
        put(&[self.order, self.index_encoding, self.value_encoding, self.codec]);
        put(&self.payload_checksum.to_le_bytes());
        for section in self.sections {
            for field in [section.kind, section.offset, section.bytes, 0] {
                put(&field.to_le_bytes());
            }
        }
        let checksum = xxh3_64(&out[..HEADER_BYTES - 8]);
        out[HEADER_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads and checks a header: magic, checksum, version, the section table's rules.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let wrong = |what: String| Err(Error::corrupt(path, what));
        if bytes.len() < HEADER_BYTES {
            return wrong(format!("{} bytes; a chunk has at least {HEADER_BYTES}", bytes.len()));
        }
        if bytes[..8] != MAGIC {
            return wrong("not a chunk: wrong magic at byte 0".into());
        }
        if u64_at(bytes, HEADER_BYTES - 8) != xxh3_64(&bytes[..HEADER_BYTES - 8]) {
            return wrong("corrupt: header checksum at byte 120".into());
        }
        check_version(u32_at(bytes, 8), path)?;
        let section = |i: usize| Section {
            kind: u32_at(bytes, 56 + 16 * i),
            offset: u32_at(bytes, 60 + 16 * i),
            bytes: u32_at(bytes, 64 + 16 * i),
        };
        let header = Self {
            number: u32_at(bytes, 12),
            store_id: u64_at(bytes, 16),
            first_nonzero: u64_at(bytes, 24),
            nnz: u32_at(bytes, 32),
            image_bytes: u32_at(bytes, 36),
            stored_bytes: u32_at(bytes, 40),
            order: bytes[44],
            index_encoding: bytes[45],
            value_encoding: bytes[46],
            codec: bytes[47],
            payload_checksum: u64_at(bytes, 48),
            sections: std::array::from_fn(section),
        };
        let reserved = (0..SECTIONS).any(|i| u32_at(bytes, 68 + 16 * i) != 0);
        if reserved || !header.sections_follow_rules() {
            return wrong("corrupt: section table at byte 56".into());
        }
        Ok(header)
    }

    /// Sections in ascending order of kind, one after the other at aligned offsets, filling the image.
    fn sections_follow_rules(&self) -> bool {
        let mut end = HEADER_BYTES as u64;
        let mut kind = 0;
        let mut there = true;
        for section in self.sections {
            there &= section.kind != 0;
            let known = section.kind <= SectionKind::Levels as u32;
            let follows = known && section.kind > kind && u64::from(section.offset) == end;
            if there && !follows || !there && section != Section::default() {
                return false;
            }
            if there {
                kind = section.kind;
                end = (u64::from(section.offset) + u64::from(section.bytes)).next_multiple_of(ALIGN as u64);
            }
        }
        end == u64::from(self.image_bytes)
    }

    /// Where the section lies in the image, if it is there.
    #[must_use]
    pub fn section(&self, kind: SectionKind) -> Option<Range<usize>> {
        let section = self.sections.iter().find(|s| s.kind == kind as u32)?;
        Some(section.offset as usize..(section.offset as usize + section.bytes as usize))
    }

    /// The gaps between sections, which hold zeros.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.sections.iter().filter(|s| s.kind != 0).map(|s| {
            let end = s.offset as usize + s.bytes as usize;
            end..end.next_multiple_of(ALIGN)
        })
    }

    /// Bytes of the file: header and stored payload, rounded up to pages.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        (HEADER_BYTES as u64 + u64::from(self.stored_bytes)).next_multiple_of(PAGE as u64)
    }
}

/// A file whose checksum is right must be of this version.
pub(super) fn check_version(version: u32, path: &Path) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let what = format!(
        "format version {version}; this program reads version {VERSION}: use a newer one, or pack again"
    );
    Err(Error::unusable(path, what))
}

/// A chunk's image while it is built: a header's room, then sections.
#[derive(Debug)]
pub struct ImageWriter {
    bytes: Vec<u8>,
    sections: [Section; SECTIONS],
    used: usize,
}

impl ImageWriter {
    /// An image of about `bytes`, for which, as a file, it will have room without growing.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let mut image = Vec::with_capacity(bytes + PAGE);
        image.resize(HEADER_BYTES, 0);
        Self { bytes: image, sections: [Section::default(); SECTIONS], used: 0 }
    }

    /// Appends a section; kinds come in ascending order.
    ///
    /// # Panics
    /// With more than four sections or an image of 4 GiB: the builder bounds both.
    pub fn section(&mut self, kind: SectionKind, fill: impl FnOnce(&mut Vec<u8>)) {
        let offset = self.bytes.len();
        fill(&mut self.bytes);
        let field = |x: usize| u32::try_from(x).expect("an image stays below 4 GiB");
        self.sections[self.used] =
            Section { kind: kind as u32, offset: field(offset), bytes: field(self.bytes.len() - offset) };
        self.used += 1;
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    /// The image's bytes (the header's still zero) and a header whose place in a store is still open.
    #[must_use]
    pub fn finish(
        self,
        order: u8,
        nnz: u32,
        index_encoding: u8,
        value_encoding: u8,
    ) -> (ChunkHeader, Vec<u8>) {
        let bytes = u32::try_from(self.bytes.len()).expect("an image stays below 4 GiB");
        let header = ChunkHeader::unplaced(order, nnz, index_encoding, value_encoding, bytes, self.sections);
        (header, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_every_flip_is_caught() {
        let mut image = ImageWriter::with_capacity(0);
        image.section(SectionKind::Shape, |out| out.extend([1, 2, 3]));
        image.section(SectionKind::Values, |out| out.extend([9; 200]));
        let (mut header, bytes) = image.finish(3, 7, 2, 1);
        let lengths = [(SectionKind::Shape, 3), (SectionKind::Values, 200)];
        assert_eq!(ChunkHeader::of_sections(3, 7, 2, 1, &lengths), header);
        assert_eq!(bytes.len(), 128 + 128 + 256);
        header.number = 5;
        header.store_id = 99;
        let path = Path::new("chunk");
        let mut encoded = header.encode();
        assert_eq!(ChunkHeader::decode(&encoded, path).unwrap(), header);
        assert_eq!(header.section(SectionKind::Values), Some(256..456));
        assert_eq!(header.section(SectionKind::Tiles), None);
        for bit in 0..HEADER_BYTES * 8 {
            encoded[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::decode(&encoded, path).is_err(), "bit {bit}");
            encoded[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
