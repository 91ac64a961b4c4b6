//! The chunk: header, section table, image and file (formats-spec/container.md and, for version 1, container-1.md).

mod version;

pub use version::{ALIGN, FIXED_BYTES, Version};

use crate::error::{Error, Result};
use crate::sys::PAGE;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of an entry of the section table.
const ENTRY_BYTES: usize = 16;
/// Where the section table of version 1 begins, inside the fixed bytes.
const SECTIONS_1_AT: usize = 56;
/// Sections of version 1 at most.
const SECTIONS_1_MAX: usize = (FIXED_BYTES - 8 - SECTIONS_1_AT) / ENTRY_BYTES;
/// The most sections: a header fits in a page.
pub const SECTIONS_MAX: usize = (PAGE - FIXED_BYTES) / ENTRY_BYTES;
const MAGIC: [u8; 8] = *b"BLCOCHNK";

/// The kind of a section. Kinds of private formats start at 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SectionKind(pub u32);

#[expect(non_upper_case_globals, reason = "one of them is meant, as of an enum's variants")]
impl SectionKind {
    /// The dims.
    pub const Shape: Self = Self(1);
    /// BLCO blocks of a `raw` chunk.
    pub const Blocks: Self = Self(2);
    /// Re-encoded indices of a `raw` chunk.
    pub const Index: Self = Self(3);
    /// Tile records.
    pub const Tiles: Self = Self(4);
    /// Packed columns.
    pub const Columns: Self = Self(5);
    /// Values, a dictionary, or exceptions.
    pub const Values: Self = Self(6);
    /// The levels of a tree: node counts, tile records, leaf codes of slices.
    pub const Levels: Self = Self(7);
    /// Records and flags of segments.
    pub const Segments: Self = Self(8);
    /// Uncompressed indices.
    pub const Coordinates: Self = Self(9);
    /// The last kind of version 1.
    const LAST_1: Self = Self::Levels;
}

/// Where a section lies in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    kind: SectionKind,
    offset: u32,
    bytes: u32,
}

impl Section {
    fn entry(self) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        for (at, field) in [self.kind.0, self.offset, self.bytes].into_iter().enumerate() {
            entry[4 * at..4 * at + 4].copy_from_slice(&field.to_le_bytes());
        }
        entry
    }

    /// Reads an entry; `None` if its reserved field is not zero.
    fn read(entry: &[u8]) -> Option<Self> {
        let section =
            Self { kind: SectionKind(u32_at(entry, 0)), offset: u32_at(entry, 4), bytes: u32_at(entry, 8) };
        (u32_at(entry, 12) == 0).then_some(section)
    }

    /// Where the next section begins.
    fn end(self) -> u64 {
        (u64::from(self.offset) + u64::from(self.bytes)).next_multiple_of(ALIGN as u64)
    }
}

/// Codes that say how to read a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCodes {
    /// Of the format; 0 in version 1, where the layout determines it.
    pub format: u32,
    /// Of the layout.
    pub layout: u8,
    /// Of the value encoding.
    pub value_encoding: u8,
}

/// A chunk's header: either checked or about to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The version of the container.
    pub version: Version,
    /// The chunk's number in its store.
    pub number: u32,
    /// The store that it belongs to.
    pub store_id: u64,
    /// The partition that it belongs to.
    pub partition: u32,
    /// Position of its first nonzero in its partition.
    pub first_nonzero: u64,
    /// Its nonzeros.
    pub nnz: u32,
    /// Bytes of the image.
    pub image_bytes: u32,
    /// Bytes of the payload as stored.
    pub stored_bytes: u32,
    /// The tensor's order.
    pub order: u8,
    /// Codes that say how to read it.
    pub codes: ChunkCodes,
    /// Code of the codec.
    pub codec: u8,
    /// Checksum of the payload as stored.
    pub payload_checksum: u64,
    sections: Vec<Section>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

impl ChunkHeader {
    /// A header for an image with sections of these lengths, in ascending order of kind. Its place in a store is still
    /// open.
    ///
    /// # Panics With more sections than the version allows, or an image of 4 GiB or more. The caller bounds both.
    #[must_use]
    pub fn of_sections(
        version: Version,
        order: u8,
        nnz: u32,
        codes: ChunkCodes,
        lengths: &[(SectionKind, u64)],
    ) -> Self {
        let most = if version == Version::One { SECTIONS_1_MAX } else { SECTIONS_MAX };
        assert!(lengths.len() <= most, "sections of a header");
        let field = |x: u64| u32::try_from(x).expect("an image stays below 4 GiB");
        let mut end = version.header_bytes(lengths.len()) as u64;
        let section = |&(kind, bytes): &(SectionKind, u64)| {
            let section = Section { kind, offset: field(end), bytes: field(bytes) };
            end = section.end();
            section
        };
        let sections = lengths.iter().map(section).collect();
        Self {
            version,
            number: 0,
            store_id: 0,
            partition: 0,
            first_nonzero: 0,
            nnz,
            image_bytes: field(end),
            stored_bytes: 0,
            order,
            codes,
            codec: 0,
            payload_checksum: 0,
            sections,
        }
    }

    /// Bytes of the header, where the payload begins.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.version.header_bytes(self.sections.len())
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let ChunkCodes { format, layout, value_encoding } = self.codes;
        let mut out = vec![0; self.header_bytes()];
        let table_at = match self.version {
            Version::One => SECTIONS_1_AT,
            Version::Two => FIXED_BYTES,
        };
        for (section, entry) in self.sections.iter().zip(out[table_at..].chunks_exact_mut(ENTRY_BYTES)) {
            entry.copy_from_slice(&section.entry());
        }
        let table_checksum = xxh3_64(&out[FIXED_BYTES..]);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&(self.version as u32).to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.store_id.to_le_bytes());
        put(&self.first_nonzero.to_le_bytes());
        put(&self.nnz.to_le_bytes());
        put(&self.image_bytes.to_le_bytes());
        put(&self.stored_bytes.to_le_bytes());
        put(&[self.order, layout, value_encoding, self.codec]);
        put(&self.payload_checksum.to_le_bytes());
        if self.version > Version::One {
            put(&format.to_le_bytes());
            put(&self.partition.to_le_bytes());
            put(&u32::try_from(self.sections.len()).expect("a header fits a page").to_le_bytes());
            put(&[0; 4]);
            put(&table_checksum.to_le_bytes());
        }
        let checksum = xxh3_64(&out[..FIXED_BYTES - 8]);
        out[FIXED_BYTES - 8..FIXED_BYTES].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads and checks the header at the start of `bytes`: magic, checksums, version, and the rules of the section
    /// table. One page of bytes is always enough.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let wrong = |rule, what: String| Err(Error::corrupt(path, what).breaks(rule));
        if bytes.len() < FIXED_BYTES {
            return wrong(
                "chunk-length",
                format!("{} bytes; a chunk has at least {FIXED_BYTES}", bytes.len()),
            );
        }
        if bytes[..8] != MAGIC {
            return wrong("chunk-magic", "not a chunk: wrong magic at byte 0".into());
        }
        if u64_at(bytes, FIXED_BYTES - 8) != xxh3_64(&bytes[..FIXED_BYTES - 8]) {
            return wrong("chunk-header", "corrupt: header checksum at byte 120".into());
        }
        let version = Version::of_file(u32_at(bytes, 8), path, "chunk-version")?;
        let (format, partition, table) = match version {
            Version::One => (0, 0, &bytes[SECTIONS_1_AT..FIXED_BYTES - 8]),
            Version::Two => {
                let (count, checksum) = (u32_at(bytes, 64) as usize, u64_at(bytes, 72));
                let table = bytes.get(FIXED_BYTES..version.header_bytes(count.min(SECTIONS_MAX + 1)));
                let reserved = u32_at(bytes, 68) != 0 || bytes[80..FIXED_BYTES - 8].iter().any(|&b| b != 0);
                let Some(table) = table.filter(|_| (1..=SECTIONS_MAX).contains(&count) && !reserved) else {
                    return wrong("chunk-sections", "corrupt: section table at byte 64".into());
                };
                if xxh3_64(table) != checksum {
                    return wrong("chunk-header", "corrupt: section table's checksum at byte 72".into());
                }
                let (table, rest) = table.split_at(ENTRY_BYTES * count);
                if rest.iter().any(|&b| b != 0) {
                    return wrong("chunk-sections", "corrupt: section table at byte 128".into());
                }
                (u32_at(bytes, 56), u32_at(bytes, 60), table)
            }
        };
        let mut entries = table.chunks_exact(ENTRY_BYTES);
        let there = |entry: &&[u8]| version > Version::One || u32_at(entry, 0) != 0;
        let sections: Option<Vec<_>> = entries.by_ref().take_while(there).map(Section::read).collect();
        // In version 1, unused entries are zero. The first of them has been checked.
        let used = sections.as_ref().map_or(0, Vec::len);
        let rest_is_zero = table[ENTRY_BYTES * used..].iter().all(|&b| b == 0);
        let header = Self {
            version,
            number: u32_at(bytes, 12),
            store_id: u64_at(bytes, 16),
            partition,
            first_nonzero: u64_at(bytes, 24),
            nnz: u32_at(bytes, 32),
            image_bytes: u32_at(bytes, 36),
            stored_bytes: u32_at(bytes, 40),
            order: bytes[44],
            codes: ChunkCodes { format, layout: bytes[45], value_encoding: bytes[46] },
            codec: bytes[47],
            payload_checksum: u64_at(bytes, 48),
            sections: sections.unwrap_or_default(),
        };
        if used == 0 || !rest_is_zero || !header.sections_follow_rules() {
            let at = if version == Version::One { SECTIONS_1_AT } else { FIXED_BYTES };
            return wrong("chunk-sections", format!("corrupt: section table at byte {at}"));
        }
        Ok(header)
    }

    /// Whether sections have ascending kinds, lie at aligned offsets one after the other, and fill the image.
    fn sections_follow_rules(&self) -> bool {
        let mut end = self.header_bytes() as u64;
        let mut last = SectionKind(0);
        for section in &self.sections {
            let known = self.version > Version::One || section.kind <= SectionKind::LAST_1;
            if !known || section.kind <= last || u64::from(section.offset) != end {
                return false;
            }
            (last, end) = (section.kind, section.end());
        }
        end == u64::from(self.image_bytes)
    }

    /// Where the section lies in the image; `None` if there is no such section.
    #[must_use]
    pub fn section(&self, kind: SectionKind) -> Option<Range<usize>> {
        let section = self.sections.iter().find(|s| s.kind == kind)?;
        Some(section.offset as usize..(section.offset as usize + section.bytes as usize))
    }

    /// The kinds of the sections present, ascending.
    pub fn kinds(&self) -> impl Iterator<Item = SectionKind> + '_ {
        self.sections.iter().map(|s| s.kind)
    }

    /// The gaps between sections, which must hold zeros.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.sections.iter().map(|s| {
            let end = s.offset as usize + s.bytes as usize;
            end..end.next_multiple_of(ALIGN)
        })
    }

    /// Bytes of the file: header and stored payload, rounded up to pages.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        (self.header_bytes() as u64 + u64::from(self.stored_bytes)).next_multiple_of(PAGE as u64)
    }
}

/// A chunk's image being built: room for a header, then sections.
#[derive(Debug)]
pub struct ImageWriter {
    version: Version,
    bytes: Vec<u8>,
    lengths: Vec<(SectionKind, u64)>,
    room: usize,
}

impl ImageWriter {
    /// An image for `sections` sections and about `bytes` bytes. Reserves room for the whole file, so that it does
    /// not grow later.
    #[must_use]
    pub fn with_capacity(version: Version, sections: usize, bytes: usize) -> Self {
        let mut image = Vec::with_capacity(bytes + PAGE);
        image.resize(version.header_bytes(sections), 0);
        Self { version, bytes: image, lengths: Vec::with_capacity(sections), room: sections }
    }

    /// Appends a section. Kinds must ascend.
    pub fn section(&mut self, kind: SectionKind, fill: impl FnOnce(&mut Vec<u8>)) {
        let offset = self.bytes.len();
        fill(&mut self.bytes);
        self.lengths.push((kind, (self.bytes.len() - offset) as u64));
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    /// The image's bytes, with the header's bytes still zero, and a header whose place in a store is still
    /// open.
    ///
    /// # Panics If the number of sections differs from the number announced, or with an image of 4 GiB or
    /// more. The builder bounds both.
    #[must_use]
    pub fn finish(self, order: u8, nnz: u32, codes: ChunkCodes) -> (ChunkHeader, Vec<u8>) {
        assert_eq!(self.lengths.len(), self.room, "sections of an image");
        let header = ChunkHeader::of_sections(self.version, order, nnz, codes, &self.lengths);
        assert_eq!(header.image_bytes as usize, self.bytes.len(), "bytes of an image");
        (header, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: ChunkCodes = ChunkCodes { format: 1, layout: 2, value_encoding: 1 };

    #[test]
    fn headers_round_trip_and_every_flip_is_caught() {
        for version in [Version::One, Version::Two] {
            let codes = ChunkCodes { format: u32::from(version > Version::One), ..CODES };
            let mut image = ImageWriter::with_capacity(version, 2, 0);
            image.section(SectionKind::Shape, |out| out.extend([1, 2, 3]));
            image.section(SectionKind::Values, |out| out.extend([9; 200]));
            let (mut header, bytes) = image.finish(3, 7, codes);
            let h = header.header_bytes();
            assert_eq!(bytes.len(), h + 128 + 256);
            (header.number, header.store_id) = (5, 99);
            let path = Path::new("chunk");
            let mut encoded = header.encode();
            assert_eq!((encoded.len(), h), (h, if version == Version::One { 128 } else { 256 }));
            assert_eq!(ChunkHeader::decode(&encoded, path).unwrap(), header);
            assert_eq!(header.section(SectionKind::Values), Some(h + 128..h + 328));
            assert_eq!(header.section(SectionKind::Tiles), None);
            for bit in 0..encoded.len() * 8 {
                encoded[bit / 8] ^= 1 << (bit % 8);
                assert!(ChunkHeader::decode(&encoded, path).is_err(), "bit {bit}");
                encoded[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// A table can have as many sections as a page holds, of private kinds.
    #[test]
    fn a_table_has_any_length() {
        assert_eq!(SECTIONS_MAX, 248);
        for (count, header_bytes) in [(8, 256), (9, 384), (248, PAGE)] {
            let lengths: Vec<_> = (0..count).map(|n| (SectionKind(1 << 31 | n), n.into())).collect();
            let header = ChunkHeader::of_sections(Version::Two, 2, 1, CODES, &lengths);
            let encoded = header.encode();
            assert_eq!(encoded.len(), header_bytes);
            assert_eq!(ChunkHeader::decode(&encoded, Path::new("chunk")).unwrap(), header);
        }
    }
}
