//! The VALUES section of an image, and the checks that all formats share.

use crate::encoding::TILE_NNZ;
use crate::encoding::values::{DICTIONARY_MAX, ValueEncoding, dictionary_width};
use crate::shape::Shape;
use crate::store::{ChunkHeader, ImageWriter, SectionKind};
use std::ops::Range;

/// How an image's values are encoded, and where those are that no column holds.
#[derive(Debug)]
pub(super) struct ValueSection {
    pub encoding: ValueEncoding,
    /// The section; empty where there is none.
    pub section: Range<usize>,
    pub dictionary: Vec<f64>,
}

impl ValueSection {
    /// Checks the section of an image with `count` values.
    pub fn open(header: &ChunkHeader, image: &[u8], count: usize) -> Result<Self, &'static str> {
        let encoding = ValueEncoding::from_code(header.value_encoding).ok_or("unknown value encoding")?;
        let section = header.section(SectionKind::Values);
        let length = section.as_ref().map_or(0, Range::len);
        let fits = match encoding {
            ValueEncoding::Integer => section.is_none(),
            ValueEncoding::F32 => length == 4 * count,
            ValueEncoding::F64 => length == 8 * count,
            ValueEncoding::Dictionary => {
                length.is_multiple_of(8) && (1..=DICTIONARY_MAX).contains(&(length / 8))
            }
        };
        if !fits || count == 0 {
            return Err("VALUES section");
        }
        let section = section.unwrap_or(0..0);
        let mut dictionary = Vec::new();
        if encoding == ValueEncoding::Dictionary {
            let entry = |b: &[u8]| f64::from_le_bytes(std::array::from_fn(|i| b[i]));
            dictionary.extend(image[section.clone()].chunks_exact(8).map(entry));
            if !dictionary.is_sorted_by(|a, b| a.total_cmp(b).is_lt())
                || dictionary.iter().any(|v| !v.is_finite())
            {
                return Err("dictionary");
            }
        }
        Ok(Self { encoding, section, dictionary })
    }

    /// Whether a tile's record can say this of its value column.
    pub fn column_fits(&self, width: u32, base: i64) -> bool {
        const INTEGER_MAX: i64 = 1 << 53;
        match self.encoding {
            ValueEncoding::Integer => width <= 55 && (-INTEGER_MAX..=INTEGER_MAX).contains(&base),
            ValueEncoding::Dictionary => width == dictionary_width(self.dictionary.len()) && base == 0,
            ValueEncoding::F32 | ValueEncoding::F64 => width == 0 && base == 0,
        }
    }

    /// Whether no value of a dictionary or of an f64 section is outside of the range. What columns and f32 sections hold is not
    /// looked at.
    pub fn within(&self, image: &[u8], low: f64, high: f64) -> bool {
        let inside = |v: &f64| (low..=high).contains(v);
        match self.encoding {
            ValueEncoding::Integer | ValueEncoding::F32 => true,
            ValueEncoding::F64 => bytemuck::cast_slice(&image[self.section.clone()]).iter().all(inside),
            ValueEncoding::Dictionary => {
                self.dictionary.first().is_some_and(inside) && self.dictionary.last().is_some_and(inside)
            }
        }
    }

    /// Values `range` of an f32 or f64 section, at most a tile; false if one is not finite.
    #[inline(always)]
    pub fn stored(&self, image: &[u8], range: Range<usize>, values: &mut [f64; TILE_NNZ]) -> bool {
        let nnz = range.len();
        let section = &image[self.section.clone()];
        match self.encoding {
            ValueEncoding::F32 => {
                let stored: &[f32] = bytemuck::cast_slice(section);
                for (v, s) in values.iter_mut().zip(&stored[range]) {
                    *v = f64::from(*s);
                }
            }
            _ => values[..nnz].copy_from_slice(&bytemuck::cast_slice(section)[range]),
        }
        values[..nnz].iter().fold(true, |finite, v| finite & v.is_finite())
    }
}

/// Writes the VALUES section, where `encoding` has one. `each` hands all values, in order, to what it is given.
pub(super) fn value_section(
    image: &mut ImageWriter,
    encoding: ValueEncoding,
    dictionary: &[f64],
    each: impl FnOnce(&mut dyn FnMut(&[f64])),
) {
    let put_f64 = |out: &mut Vec<u8>, values: &[f64]| out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    match encoding {
        ValueEncoding::Integer => {}
        #[expect(clippy::cast_possible_truncation, reason = "chosen because f32 holds every value")]
        ValueEncoding::F32 => image.section(SectionKind::Values, |out| {
            each(&mut |values| out.extend(values.iter().flat_map(|&v| (v as f32).to_le_bytes())));
        }),
        ValueEncoding::F64 => {
            image.section(SectionKind::Values, |out| each(&mut |values| put_f64(out, values)));
        }
        ValueEncoding::Dictionary => image.section(SectionKind::Values, |out| put_f64(out, dictionary)),
    }
}

/// What the sections of every format's image have in common: the dims, and zeros between them.
pub(super) fn check_frame(shape: &Shape, header: &ChunkHeader, image: &[u8]) -> Result<(), &'static str> {
    let section = header.section(SectionKind::Shape).ok_or("no SHAPE section")?;
    let dims = shape.dims().iter().flat_map(|d| d.to_le_bytes());
    if image.len() != header.image_bytes as usize || !image[section].iter().copied().eq(dims) {
        return Err("SHAPE section differs from the manifest");
    }
    if header.gaps().any(|gap| image[gap].iter().any(|&b| b != 0)) {
        return Err("bytes between sections are not zero");
    }
    Ok(())
}
