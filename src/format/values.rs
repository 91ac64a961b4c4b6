//! The VALUES section of an image, and checks shared by all formats.

use crate::chunk::{ALIGN, ChunkHeader, ImageWriter, SectionKind, Version};
use crate::encoding::TILE_NNZ;
use crate::encoding::column::Numbers;
use crate::encoding::decimal::{self, DECIMAL_MAX, DECIMAL_WIDTH_MAX, EXPONENT_MAX, TILE_EXCEPTIONS_MAX};
use crate::encoding::tile::TileRecord;
use crate::encoding::values::{
    ChosenValues, DICTIONARY_MAX, ValueBytes, ValueEncoding, dictionary_width, exceptions_bytes,
    unpack_entries, unpack_integers,
};
use crate::error::Error;
use crate::shape::Shape;
use std::ops::Range;
use std::path::Path;

/// How an image's values are encoded, and where those outside columns are.
#[derive(Debug)]
pub(super) struct ValueSection {
    pub encoding: ValueEncoding,
    /// The section; empty if there is none.
    pub section: Range<usize>,
    pub dictionary: Vec<f64>,
    /// Of decimals.
    decimals: Decimals,
}

/// The divisor of a chunk's decimals, and the places of its exceptions and their values in the image.
#[derive(Debug, Default)]
struct Decimals {
    power: f64,
    values: Range<usize>,
    places: Range<usize>,
}

impl Decimals {
    /// Reads and checks a VALUES section of a chunk of `count` values.
    fn open(image: &[u8], section: &Range<usize>, count: usize) -> Option<Self> {
        let bytes = image.get(section.clone())?;
        let field =
            |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes(std::array::from_fn(|i| b[i])));
        let (e, exceptions) = (field(0)? as usize, field(4)?);
        if e > EXPONENT_MAX || bytes.len() as u64 != exceptions_bytes(exceptions.into()) {
            return None;
        }
        let values = section.start + 8..section.start + 8 + 8 * exceptions as usize;
        let decimals = Self { power: decimal::power(e), places: values.end..section.end, values };
        let places = decimals.places(image);
        let inside =
            places.is_sorted_by(|a, b| a < b) && places.last().is_none_or(|&last| (last as usize) < count);
        let tile = |&place: &u32| place as usize / TILE_NNZ;
        let mut tiles = places.chunk_by(|a, b| tile(a) == tile(b));
        (inside && tiles.all(|tile| tile.len() <= TILE_EXCEPTIONS_MAX)).then_some(decimals)
    }

    fn places<'a>(&self, image: &'a [u8]) -> &'a [u32] {
        bytemuck::cast_slice(&image[self.places.clone()])
    }

    fn exceptions<'a>(&self, image: &'a [u8]) -> &'a [f64] {
        bytemuck::cast_slice(&image[self.values.clone()])
    }

    /// Converts the integers of the slots from `first` on to values.
    #[inline(always)]
    fn finish(&self, image: &[u8], first: usize, values: &mut Numbers<f64>) {
        for v in values.iter_mut() {
            *v /= self.power;
        }
        let places = self.places(image);
        let from = places.partition_point(|&place| (place as usize) < first);
        for (&place, &value) in places[from..].iter().zip(&self.exceptions(image)[from..]) {
            let Some(slot) = values.get_mut(place as usize - first) else { return };
            *slot = value;
        }
    }
}

impl ValueSection {
    /// Checks the section of an image with `count` values.
    pub fn open(header: &ChunkHeader, image: &[u8], count: usize) -> Result<Self, &'static str> {
        let encoding = ValueEncoding::from_code(header.codes.value_encoding)
            .filter(|&e| e != ValueEncoding::Decimal || header.version > Version::One);
        let encoding = encoding.ok_or("unknown value encoding")?;
        let section = header.section(SectionKind::Values);
        let length = section.as_ref().map_or(0, Range::len);
        if section.is_some() != encoding.has_section() {
            return Err(WRONG_SECTIONS);
        }
        let fits = match encoding {
            ValueEncoding::Integer | ValueEncoding::Decimal => true,
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
            if dictionary.iter().any(|v| !v.is_finite()) {
                return Err(NOT_FINITE);
            }
            if !dictionary.is_sorted_by(|a, b| a.total_cmp(b).is_lt()) {
                return Err("dictionary");
            }
        }
        let decimals = match encoding {
            ValueEncoding::Decimal => Decimals::open(image, &section, count).ok_or("exceptions")?,
            _ => Decimals::default(),
        };
        if !decimals.exceptions(image).iter().all(|v| v.is_finite()) {
            return Err(NOT_FINITE);
        }
        Ok(Self { encoding, section, dictionary, decimals })
    }

    /// Whether a tile's record may have such a value column.
    pub fn column_fits(&self, width: u32, base: i64) -> bool {
        const INTEGER_MAX: i64 = 1 << 53;
        match self.encoding {
            ValueEncoding::Integer => width <= 55 && (-INTEGER_MAX..=INTEGER_MAX).contains(&base),
            ValueEncoding::Dictionary => width == dictionary_width(self.dictionary.len()) && base == 0,
            ValueEncoding::Decimal => {
                width <= DECIMAL_WIDTH_MAX && (-DECIMAL_MAX..=DECIMAL_MAX).contains(&base)
            }
            ValueEncoding::F32 | ValueEncoding::F64 => width == 0 && base == 0,
        }
    }

    /// The values of `slots`, at most a tile. `words` is their column with this base and width. Returns false if an
    /// entry number is outside the dictionary or a value is not finite.
    #[inline(always)]
    pub fn unpack(
        &self,
        image: &[u8],
        slots: Range<usize>,
        words: &[u32],
        (base, width): (i64, u32),
        values: &mut Numbers<f64>,
    ) -> bool {
        match self.encoding {
            ValueEncoding::Integer => {
                unpack_integers(words, base, width, values);
                true
            }
            ValueEncoding::Dictionary => unpack_entries(words, &self.dictionary, &mut values[..slots.len()]),
            ValueEncoding::Decimal => {
                unpack_integers(words, base, width, values);
                self.decimals.finish(image, slots.start, values);
                true
            }
            ValueEncoding::F32 | ValueEncoding::F64 => self.stored(image, slots, values),
        }
    }

    /// The rule that is broken by values that [`ValueSection::unpack`] refuses: they name a missing entry or are not
    /// finite.
    pub fn refused_rule(&self) -> &'static str {
        if self.encoding == ValueEncoding::Dictionary { "image-section" } else { "image-value" }
    }

    /// Whether all values of a dictionary or an f64 section are in the range. Does not check columns and f32 sections.
    pub fn within(&self, image: &[u8], low: f64, high: f64) -> bool {
        let inside = |v: &f64| (low..=high).contains(v);
        match self.encoding {
            ValueEncoding::Integer | ValueEncoding::F32 => true,
            ValueEncoding::F64 => bytemuck::cast_slice(&image[self.section.clone()]).iter().all(inside),
            ValueEncoding::Decimal => self.decimals.exceptions(image).iter().all(inside),
            ValueEncoding::Dictionary => {
                self.dictionary.first().is_some_and(inside) && self.dictionary.last().is_some_and(inside)
            }
        }
    }

    /// Values `range` of an f32 or f64 section, at most a tile; false if one is not finite.
    #[inline(always)]
    fn stored(&self, image: &[u8], range: Range<usize>, values: &mut Numbers<f64>) -> bool {
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

/// What a section of `bytes` takes in an image.
pub(super) fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN as u64)
}

/// The bytes of COLUMNS and VALUES in an image whose index columns take `columns`.
pub(super) fn value_cost(columns: u64) -> impl Fn(ValueBytes) -> u64 {
    move |values| aligned(columns + values.columns) + aligned(values.section)
}

/// The records of tiles with these ranges of `modes` modes and these values. Each tile's value column follows those of
/// its modes.
pub(super) fn tile_records<'a>(
    tiles: impl Iterator<Item = (&'a TileRecord, &'a [f64])>,
    modes: usize,
    chosen: &ChosenValues,
) -> Vec<TileRecord> {
    let mut at = 0;
    let record = |(ranges, values): (&TileRecord, &[f64])| {
        let (value_base, value_width) = chosen.column_of(values);
        let record = TileRecord { columns_at: at, value_width, value_base, ..*ranges };
        at += record.widths(modes);
        record
    };
    tiles.map(record).collect()
}

/// Writes the VALUES section, if the encoding has one. `each` passes all values, in order, to its argument.
pub(super) fn value_section(
    image: &mut ImageWriter,
    chosen: &ChosenValues,
    each: impl FnOnce(&mut dyn FnMut(&[f64])),
) {
    let put_f64 = |out: &mut Vec<u8>, values: &[f64]| out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    match chosen {
        ChosenValues::Integer => {}
        #[expect(clippy::cast_possible_truncation, reason = "chosen because f32 holds every value")]
        ChosenValues::F32 => image.section(SectionKind::Values, |out| {
            each(&mut |values| out.extend(values.iter().flat_map(|&v| (v as f32).to_le_bytes())));
        }),
        ChosenValues::F64 => {
            image.section(SectionKind::Values, |out| each(&mut |values| put_f64(out, values)));
        }
        ChosenValues::Dictionary(entries) => image.section(SectionKind::Values, |out| put_f64(out, entries)),
        ChosenValues::Decimal(e) => image.section(SectionKind::Values, |out| {
            let (mut values, mut places, mut at) = (Vec::new(), Vec::new(), 0u32);
            each(&mut |all| {
                let exceptions = all.iter().zip(at..).filter(|(v, _)| decimal::as_decimal(**v, *e).is_none());
                for (value, place) in exceptions {
                    values.push(*value);
                    places.push(place);
                }
                at += u32::try_from(all.len()).expect("at most a chunk's values");
            });
            out.extend(u32::try_from(*e).expect("at most 10").to_le_bytes());
            out.extend(u32::try_from(places.len()).expect("fewer than values").to_le_bytes());
            put_f64(out, &values);
            out.extend(places.iter().flat_map(|place| place.to_le_bytes()));
        }),
    }
}

/// The message for wrong dims, and for nonzero bytes between sections.
const WRONG_DIMS: &str = "SHAPE section differs from the manifest";
const WRONG_GAP: &str = "bytes between sections are not zero";
/// The message for unexpected sections.
const NO_SHAPE: &str = "no SHAPE section";
pub(super) const WRONG_SECTIONS: &str = "a section is missing, or has no place here";
/// The message for a VALUES section with a value that is not finite.
const NOT_FINITE: &str = "a value that is not finite";

/// The error for an image with this defect.
pub(super) fn wrong_section(path: &Path, header: &ChunkHeader, what: &'static str) -> Error {
    let rule = match what {
        WRONG_DIMS => "image-shape",
        WRONG_GAP => "image-gap",
        NO_SHAPE | WRONG_SECTIONS => "chunk-sections",
        NOT_FINITE => "image-value",
        _ => "image-section",
    };
    Error::corrupt(path, format!("chunk {}: corrupt: {what}", header.number)).breaks(rule)
}

/// Checks what every image has: the dims, and zeros between sections.
pub(super) fn check_dims(shape: &Shape, header: &ChunkHeader, image: &[u8]) -> Result<(), &'static str> {
    let section = header.section(SectionKind::Shape).ok_or(NO_SHAPE)?;
    let dims = shape.dims().iter().flat_map(|d| d.to_le_bytes());
    if image.len() != header.image_bytes as usize || !image[section].iter().copied().eq(dims) {
        return Err(WRONG_DIMS);
    }
    if header.gaps().any(|gap| image[gap].iter().any(|&b| b != 0)) {
        return Err(WRONG_GAP);
    }
    Ok(())
}

/// Also checks that the image has no sections other than SHAPE, index sections of `kinds`, and VALUES.
pub(super) fn check_frame(
    shape: &Shape,
    header: &ChunkHeader,
    image: &[u8],
    kinds: [SectionKind; 2],
) -> Result<(), &'static str> {
    check_dims(shape, header, image)?;
    let others = [SectionKind::Shape, SectionKind::Values];
    let known = header.kinds().all(|kind| others.contains(&kind) || kinds.contains(&kind));
    if !known || kinds.iter().any(|&kind| header.section(kind).is_none()) {
        return Err(WRONG_SECTIONS);
    }
    Ok(())
}
