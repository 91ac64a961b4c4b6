//! A chunk's image to be changed: sections as they are, then put together again.

use super::{Part, put, u32_at};
use blco::internals::chunk::FIXED_BYTES;
use blco::internals::store::Version;

/// What images are aligned to.
const ALIGN: usize = 128;
/// Sections by the codes of formats-spec/container.md.
pub const SHAPE: u32 = 1;
pub const VALUES: u32 = 6;
pub const LEVELS: u32 = 7;

/// The sections of an image.
pub struct Image {
    pub sections: Vec<(u32, Vec<u8>)>,
}

impl Image {
    /// The image of `part`; `None` where an earlier change keeps it from being read.
    pub fn of(part: &Part) -> Option<Self> {
        let bytes = u32_at(&part.header, 36) as usize;
        let plain = if part.header[47] == 0 {
            part.payload.clone()
        } else {
            zstd::bulk::decompress(&part.payload, bytes.min(1 << 22)).ok()?
        };
        let section = |n: usize| {
            let entry = part.header.get(FIXED_BYTES + 16 * n..FIXED_BYTES + 16 * n + 12)?;
            let [kind, offset, length] = [0, 4, 8].map(|at| u32_at(entry, at));
            let start = (offset as usize).checked_sub(part.header.len())?;
            Some((kind, plain.get(start..start.checked_add(length as usize)?)?.to_vec()))
        };
        let count = u32_at(&part.header, 64) as usize;
        let sections = (0..count).map(section).collect::<Option<Vec<_>>>()?;
        (!sections.is_empty()).then_some(Self { sections })
    }

    /// Puts it together again, with a section table and lengths that fit; its bytes.
    pub fn store(&self, part: &mut Part) -> u64 {
        let mut plain = Vec::new();
        let start = Version::NEWEST.header_bytes(self.sections.len());
        part.header.truncate(FIXED_BYTES);
        part.header.resize(start, 0);
        part.set(64, number(self.sections.len()).to_le_bytes());
        for (n, (kind, bytes)) in self.sections.iter().enumerate() {
            let fields = [*kind, number(start + plain.len()), number(bytes.len())];
            let at = FIXED_BYTES + 16 * n;
            fields.iter().zip([0, 4, 8]).for_each(|(x, to)| put(&mut part.header, at + to, x.to_le_bytes()));
            plain.extend_from_slice(bytes);
            plain.resize(plain.len().next_multiple_of(ALIGN), 0);
        }
        let image_bytes = start + plain.len();
        part.set(36, number(image_bytes).to_le_bytes());
        part.payload = if part.header[47] == 0 { plain } else { zstd::bulk::compress(&plain, 1).unwrap() };
        image_bytes as u64
    }

    /// The section of that kind.
    pub fn section(&mut self, kind: u32) -> Option<&mut Vec<u8>> {
        self.sections.iter_mut().find(|(of, _)| *of == kind).map(|(_, bytes)| bytes)
    }
}

fn number(x: usize) -> u32 {
    u32::try_from(x).unwrap()
}
