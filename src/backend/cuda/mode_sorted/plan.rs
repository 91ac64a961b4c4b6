//! The resources for building a mode-sorted copy, and bounds on its size.

use super::super::abi::{DIGIT_BITS, SORT_PORTION, SourceTile, TILE};
use super::super::expand::{blocks_of, is_expanded};
use crate::backend::device::Facts;
use crate::backend::plan::BuildPlan;
use crate::chunk::ALIGN;
use crate::dense::Precision;
use crate::encoding::tile::record_bytes;
use crate::encoding::values::ValueEncoding;
use crate::encoding::{IndexEncoding, column, width};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::store::{ChunkHeader, Format, Manifest, Partition, SectionKind, Version};
use std::ops::Range;

/// The alignment of images in bytes.
const IMAGE_ALIGN: u64 = 256;
/// The most nonzeros in an image. With any column widths, it stays below 4 GiB.
const IMAGE_NNZ_MAX: u32 = 1 << 26;
/// Thread blocks that sort at the same time on a multiprocessor.
pub const SORT_BLOCKS: u32 = 4;

/// The value encoding of images built from chunks of `encodings`: integers if all chunks have integers, otherwise the type by which factors
/// of `precision` are multiplied. (That is f64 if f32 would turn a value into infinity, since images hold finite values.)
#[must_use]
pub fn value_encoding(
    manifest: &Manifest,
    precision: Precision,
    encodings: impl IntoIterator<Item = ValueEncoding>,
) -> ValueEncoding {
    #[expect(clippy::cast_possible_truncation, reason = "whether it fits is the question")]
    let fits = |v: f64| (v as f32).is_finite();
    if encodings.into_iter().all(|e| e == ValueEncoding::Integer) {
        ValueEncoding::Integer
    } else if precision == Precision::F32 && fits(manifest.value_min) && fits(manifest.value_max) {
        ValueEncoding::F32
    } else {
        ValueEncoding::F64
    }
}

/// The plan of a copy, and the device memory that building it takes.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    pub(super) mode: usize,
    /// The dims of images.
    pub(super) dims: Vec<u32>,
    /// The most units of a tile's columns, without the target mode's.
    rest_units: u64,
    pub(super) nnz: u32,
    pub(super) tiles: u32,
    /// Tiles of the chunks, and the end of the last tile: positions count whole tiles, except for the last.
    pub(super) source_tiles: u32,
    pub(super) positions_end: u32,
    pub(super) image_tiles: u32,
    pub(super) values: ValueEncoding,
    /// The number of digits of a row, and the bits of each digit.
    pub(super) digits: u32,
    pub(super) digit_bits: u32,
    pub(super) sort_blocks: u32,
    /// Bytes of device memory while nonzeros are sorted: 12 or 16 per nonzero, and some more.
    pub sort_bytes: u64,
    /// Bytes of device memory while nonzeros are packed, besides the result: 8 per nonzero, and some more.
    pub pack_bytes: u64,
    /// The most bytes of the result.
    pub result_bytes_max: u64,
    /// The most bytes of one of its images.
    pub image_bytes_max: u64,
    /// Rows of the mode.
    pub(super) rows: u32,
}

/// Images that a copy is built from.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// Their dims.
    pub dims: &'a [u32],
    /// The nonzeros of each.
    pub nnz: &'a [u64],
    /// The value encoding of the copy.
    pub values: ValueEncoding,
    /// The range of values.
    pub range: (f64, f64),
}

impl CopyPlan {
    /// Plans a copy of some consecutive chunks, sorted by row of `mode`, in images of at most `image_nnz` nonzeros (rounded down to whole
    /// tiles, within the limit of an image). [`value_encoding`] gives the encoding of values. Fails if positions have more than 32 bits, or
    /// if the sorting kernels do not read the chunks' layout.
    ///
    /// # Panics
    /// If there is no such chunk or mode.
    pub fn new(
        facts: &Facts,
        manifest: &Manifest,
        chunks: Range<usize>,
        mode: usize,
        values: ValueEncoding,
        image_nnz: u32,
    ) -> Result<Self> {
        check_layouts(manifest)?;
        let nnz: Vec<u64> = manifest.chunks[chunks].iter().map(|chunk| chunk.nnz).collect();
        let range = (manifest.value_min, manifest.value_max);
        let source = Source { dims: manifest.shape.dims(), nnz: &nnz, values, range };
        Self::of(facts, &source, mode, image_nnz)
    }

    /// Plans a copy of these images.
    pub(in crate::backend::cuda) fn of(
        facts: &Facts,
        source: &Source<'_>,
        mode: usize,
        image_nnz: u32,
    ) -> Result<Self> {
        let Source { dims, nnz: of_images, values, range } = *source;
        let nnz: u64 = of_images.iter().sum();
        let source_tiles: u64 = of_images.iter().map(|&nnz| u64::from(blocks_of(nnz, 1))).sum();
        let tile = u64::from(TILE);
        let missing = of_images.last().map_or(0, |last| last.next_multiple_of(tile) - last);
        let positions_end = source_tiles * tile - missing;
        let too_many = |_| Error::request(format!("{nnz} nonzeros at once are too many to sort"));
        let positions_end = u32::try_from(positions_end).map_err(too_many)?;
        let source_tiles = u32::try_from(source_tiles).map_err(too_many)?;
        let nnz = u32::try_from(nnz).map_err(too_many)?;
        let tiles = blocks_of(nnz.into(), 1);
        let (digits, digit_bits) = digits_of(dims[mode], positions_end > nnz);
        let mut plan = Self {
            mode,
            dims: dims.to_vec(),
            rest_units: rest_units(dims, mode, values, range),
            nnz,
            tiles,
            source_tiles,
            positions_end,
            image_tiles: image_nnz.min(IMAGE_NNZ_MAX) / TILE,
            values,
            digits,
            digit_bits,
            sort_blocks: positions_end
                .div_ceil(SORT_PORTION)
                .clamp(1, SORT_BLOCKS * facts.multiprocessors.max(1)),
            sort_bytes: 0,
            pack_bytes: 0,
            result_bytes_max: 0,
            image_bytes_max: 0,
            rows: dims[mode],
        };
        plan.image_tiles = plan.image_tiles.clamp(1, tiles);
        let column = 4 * u64::from(positions_end);
        let tile_bytes = plan.tile_bytes();
        let counts = (4 * (u64::from(plan.sort_blocks) + 1)) << plan.digit_bits;
        plan.sort_bytes = tile_bytes + counts + column * if digits > 1 { 4 } else { 3 };
        plan.pack_bytes =
            tile_bytes + plan.record_bytes() + 2 * column + u64::from(tiles + 3 * plan.images()) * 4;
        plan.result_bytes_max = plan.result_bytes_max();
        let widest = plan.rest_units + u64::from(bits_of(dims[mode]));
        plan.image_bytes_max = plan.image_bytes(0, u64::from(plan.image_tiles) * widest);
        Ok(plan)
    }

    /// Plans the copy of group `number` of `build`.
    pub(in crate::backend::cuda) fn of_group(
        facts: &Facts,
        manifest: &Manifest,
        build: &BuildPlan,
        number: usize,
        mode: usize,
    ) -> Result<Self> {
        let group = build.groups[number].clone();
        Self::new(facts, manifest, group, mode, build.values, build.image_nnz)
    }

    /// The plan of a part of this copy, of some of its tiles; sorting is that of all.
    pub(super) fn of_tiles(&self, tiles: &Range<u32>) -> Self {
        let nnz = (tiles.end * TILE).min(self.nnz) - tiles.start * TILE;
        let tiles = tiles.end - tiles.start;
        let mut own = Self { nnz, tiles, image_tiles: self.image_tiles.min(tiles), ..self.clone() };
        own.result_bytes_max = own.result_bytes_max();
        own
    }

    /// The most device memory that building takes, in bytes, including the result.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.sort_bytes.max(self.pack_bytes + self.result_bytes_max)
    }

    /// Nonzeros of an image, at most.
    pub(super) fn image_nnz(&self) -> u32 {
        self.image_tiles * TILE
    }

    /// Nonzeros.
    #[must_use]
    pub fn nnz(&self) -> u32 {
        self.nnz
    }

    /// Images of the result.
    #[must_use]
    pub fn images(&self) -> u32 {
        self.tiles.div_ceil(self.image_tiles)
    }

    pub(super) fn tile_bytes(&self) -> u64 {
        u64::from(self.source_tiles) * size_of::<SourceTile>() as u64
    }

    pub(super) fn record_bytes(&self) -> u64 {
        u64::from(self.tiles) * record_bytes(self.dims.len()) as u64
    }

    /// Tiles of image `number`, and nonzeros.
    pub(super) fn image(&self, number: u32) -> (u32, u32) {
        let first = number * self.image_tiles;
        let tiles = self.image_tiles.min(self.tiles - first);
        (tiles, (tiles * TILE).min(self.nnz - first * TILE))
    }

    /// The header of image `number`, whose columns take `units` of 64 bytes.
    pub(super) fn header(&self, number: u32, units: u64) -> ChunkHeader {
        let (tiles, nnz) = self.image(number);
        let value_bytes = match self.values {
            ValueEncoding::F32 => 4 * u64::from(nnz),
            ValueEncoding::F64 => 8 * u64::from(nnz),
            ValueEncoding::Integer | ValueEncoding::Dictionary | ValueEncoding::Decimal => 0,
        };
        let mut sections = vec![
            (SectionKind::Shape, 4 * self.dims.len() as u64),
            (SectionKind::Tiles, u64::from(tiles) * record_bytes(self.dims.len()) as u64),
            (SectionKind::Columns, units * column::bytes(1) as u64),
        ];
        if value_bytes > 0 {
            sections.push((SectionKind::Values, value_bytes));
        }
        let order = u8::try_from(self.dims.len()).expect("at most 8 modes");
        let codes =
            Format::blco(IndexEncoding::Tiled).record().chunk_codes(Version::NEWEST, self.values as u8);
        ChunkHeader::of_sections(Version::NEWEST, order, nnz, codes, &sections)
    }

    pub(super) fn image_bytes(&self, number: u32, units: u64) -> u64 {
        u64::from(self.header(number, units).image_bytes).next_multiple_of(IMAGE_ALIGN)
    }

    /// The most bytes of the result. In the target mode's column, all tiles together pass each row once.
    fn result_bytes_max(&self) -> u64 {
        let target = most_units(u64::from(self.rows - 1), self.tiles.into());
        let of_image = |i| self.image_bytes(i, u64::from(self.image(i).0) * self.rest_units);
        let images: u64 = (0..self.images()).map(of_image).sum();
        let rounding = u64::from(self.images()) * (IMAGE_ALIGN + ALIGN as u64);
        images + target * column::bytes(1) as u64 + rounding + self.empty_bytes()
    }

    /// Bytes of the bits for empty rows.
    pub(super) fn empty_bytes(&self) -> u64 {
        u64::from(self.rows.div_ceil(32)) * 4
    }
}

/// Bits of the indices of a mode of `dim` rows.
fn bits_of(dim: u32) -> u32 {
    width(u64::from(dim - 1))
}

/// The number of digits of a row of a mode of `dim` rows, and the bits of each. With `padded`, positions without a nonzero get a row after the
/// last row.
pub(super) fn digits_of(dim: u32, padded: bool) -> (u32, u32) {
    let bits = if padded { width(u64::from(dim)) } else { bits_of(dim) };
    let digits = bits.div_ceil(DIGIT_BITS).max(1);
    (digits, bits.div_ceil(digits).max(1))
}

/// The most units of a tile's columns without that of `mode`: a column is at most as wide as its mode.
fn rest_units(dims: &[u32], mode: usize, values: ValueEncoding, (low, high): (f64, f64)) -> u64 {
    let of_values = match values {
        ValueEncoding::Integer => width(integer(high).abs_diff(integer(low))),
        _ => 0,
    };
    let others = dims.iter().enumerate().filter(|(m, _)| *m != mode);
    u64::from(others.map(|(_, &dim)| bits_of(dim)).sum::<u32>() + of_values)
}

/// Fails if the sorting kernels do not read chunks as they are on the device.
pub(in crate::backend::cuda) fn check_layouts(manifest: &Manifest) -> Result<()> {
    let is_read =
        |partition: &Partition| partition.format.layout() == Layout::TILED || is_expanded(&partition.format);
    if manifest.partitions.iter().all(is_read) {
        return Ok(());
    }
    Err(Error::request("mode-sorted copies are not built of `raw` stores"))
}

/// The integer next to `v` toward 0, at most 2^53 from it: no integer value lies between.
fn integer(v: f64) -> i64 {
    const LARGEST: f64 = (1u64 << 53) as f64;
    #[expect(clippy::cast_possible_truncation, reason = "inside the range that f64 and i64 share exactly")]
    let integer = v.clamp(-LARGEST, LARGEST) as i64;
    integer
}

/// The largest sum of the widths of `tiles` numbers whose sum is at most `rows`.
fn most_units(rows: u64, tiles: u64) -> u64 {
    // The first bit of a number costs 1, the second 1 more, and each further bit twice as much as the one before: the cheapest are chosen
    // first.
    let (mut left, mut units, mut cost) = (rows, 0, 1);
    for bit in 0..u32::BITS {
        let wider = tiles.min(left / cost);
        units += wider;
        left -= wider * cost;
        if wider < tiles {
            break;
        }
        cost = 1 << bit;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with every choice of a few small numbers.
    #[test]
    fn no_numbers_of_that_sum_are_wider() {
        for rows in 0..40u64 {
            for tiles in 1..4u32 {
                let choices = (rows + 1).pow(tiles);
                let digits = |choice: u64| (0..tiles).map(move |t| choice / (rows + 1).pow(t) % (rows + 1));
                let fitting = (0..choices).filter(|&c| digits(c).sum::<u64>() <= rows);
                let widest = fitting.map(|c| digits(c).map(width).sum::<u32>()).max();
                assert_eq!(widest.map(u64::from), Some(most_units(rows, tiles.into())), "{rows} {tiles}");
            }
        }
    }
}
