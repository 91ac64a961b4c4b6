//! Value encodings: all lossless; a chunk uses the smallest that holds its values
//! (formats-spec/encodings.md).

use super::column::{self, Numbers};
use super::decimal::{self, DecimalTile, EXPONENTS};
use super::{TILE_NNZ, width};

/// How a chunk's values are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ValueEncoding {
    /// A column per tile: integers relative to a base.
    Integer = 1,
    /// A section of `f32`, exact.
    F32 = 2,
    /// A section of `f64`.
    F64 = 3,
    /// A section of distinct values, and a column of entry numbers per tile.
    Dictionary = 4,
    /// A column per tile: integers relative to a base, divided by a power of ten. A section holds the values that are
    /// not decimal.
    Decimal = 5,
}

impl ValueEncoding {
    /// All encodings.
    pub const ALL: [Self; 5] = [Self::Integer, Self::F32, Self::F64, Self::Dictionary, Self::Decimal];

    /// The encoding with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&e| e as u8 == code)
    }

    /// Whether an image has a VALUES section.
    #[must_use]
    pub fn has_section(self) -> bool {
        self != Self::Integer
    }

    /// The name that users see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Dictionary => "dictionary",
            Self::Decimal => "decimal",
        }
    }
}

/// Integers converted together.
const LANES: usize = 16;

/// The most entries in a dictionary.
pub const DICTIONARY_MAX: usize = 65536;

/// Integers up to this magnitude are exact in f64.
const INTEGER_MAX: f64 = (1u64 << 53) as f64;

/// `value` as an integer; `None` unless it is one from -2^53 to 2^53 and not -0.0.
#[must_use]
pub fn as_integer(value: f64) -> Option<i64> {
    let inside = value.abs() <= INTEGER_MAX && (value != 0.0 || value.is_sign_positive());
    #[expect(clippy::cast_possible_truncation, reason = "inside the range that f64 and i64 share exactly")]
    let integer = if inside { value as i64 } else { return None };
    #[expect(clippy::float_cmp, reason = "exactness is the question")]
    let exact = integer as f64 == value;
    exact.then_some(integer)
}

/// The encoding chosen for a chunk's values, with what its tiles share.
#[derive(Clone, Debug, PartialEq)]
pub enum ChosenValues {
    /// [`ValueEncoding::Integer`].
    Integer,
    /// [`ValueEncoding::F32`].
    F32,
    /// [`ValueEncoding::F64`].
    F64,
    /// [`ValueEncoding::Dictionary`]: the distinct values, in total order.
    Dictionary(Vec<f64>),
    /// [`ValueEncoding::Decimal`]: the exponent.
    Decimal(usize),
}

impl ChosenValues {
    /// The encoding without its parameters.
    #[must_use]
    pub fn encoding(&self) -> ValueEncoding {
        match self {
            Self::Integer => ValueEncoding::Integer,
            Self::F32 => ValueEncoding::F32,
            Self::F64 => ValueEncoding::F64,
            Self::Dictionary(_) => ValueEncoding::Dictionary,
            Self::Decimal(_) => ValueEncoding::Decimal,
        }
    }

    /// Base and width of a tile's value column.
    #[must_use]
    pub fn column_of(&self, values: &[f64]) -> (i64, u32) {
        match self {
            Self::Integer => TileValues::integers(values).expect("chosen because all are integers"),
            Self::Dictionary(entries) => (0, dictionary_width(entries.len())),
            Self::Decimal(e) => {
                let tile = DecimalTile::of(values).at(*e).expect("chosen because there are few exceptions");
                (tile.base, tile.width)
            }
            Self::F32 | Self::F64 => (0, 0),
        }
    }

    /// Appends a tile's value column with this base and width.
    pub fn pack(&self, values: &[f64], base: i64, width: u32, out: &mut Vec<u8>) {
        match self {
            Self::Integer => {
                pack_column(
                    values.iter().map(|&v| as_integer(v).map_or(0, |i| i.abs_diff(base))),
                    width,
                    out,
                );
            }
            Self::Dictionary(entries) => {
                let entry = |v: &f64| entries.binary_search_by(|e| e.total_cmp(v)).map_or(0, |at| at as u64);
                pack_column(values.iter().map(entry), width, out);
            }
            Self::Decimal(e) => {
                let number = |&v: &f64| decimal::as_decimal(v, *e).map_or(0, |i| i.abs_diff(base));
                pack_column(values.iter().map(number), width, out);
            }
            Self::F32 | Self::F64 => {}
        }
    }
}

/// What one tile's values would cost as integers, as f32 and as decimals.
#[derive(Clone, Copy, Debug, Default)]
pub struct TileValues {
    /// Base and width as integers, if all values are integers.
    pub integer: Option<(i64, u32)>,
    /// Whether f32 holds all values exactly.
    pub f32_exact: bool,
    /// As decimals.
    pub decimals: DecimalTile,
}

impl TileValues {
    /// Measures the values of one tile.
    #[must_use]
    pub fn new(values: &[f64]) -> Self {
        let range = Self::range(values);
        let integer = range.map(|(low, high)| (low, width(low.abs_diff(high))));
        let of_integers = range.and_then(|(low, high)| DecimalTile::of_integers(low, high));
        #[expect(clippy::cast_possible_truncation, reason = "exactness is the question")]
        let f32_exact = values.iter().all(|&v| f64::from(v as f32).to_bits() == v.to_bits());
        let decimals = of_integers.unwrap_or_else(|| DecimalTile::of(values));
        Self { integer, f32_exact, decimals }
    }

    /// The smallest and the largest integer, if all values are integers.
    fn range(values: &[f64]) -> Option<(i64, i64)> {
        values.iter().try_fold((i64::MAX, i64::MIN), |(low, high), &v| {
            as_integer(v).map(|i| (low.min(i), high.max(i)))
        })
    }

    /// Base and width as integers, if all values are integers.
    #[must_use]
    pub fn integers(values: &[f64]) -> Option<(i64, u32)> {
        Self::range(values).map(|(low, high)| (low, width(low.abs_diff(high))))
    }
}

/// The cost of decimals at one exponent.
#[derive(Clone, Copy, Debug, Default)]
struct DecimalCost {
    /// Bytes of the columns.
    columns: u64,
    exceptions: u64,
}

/// The cost of a chunk's values in each encoding, updated tile by tile.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    integer: Option<u64>,
    f32_exact: bool,
    /// Per exponent; `None` if a tile has too many exceptions or decimals are not allowed.
    decimals: [Option<DecimalCost>; EXPONENTS],
    nnz: u64,
}

impl Costs {
    /// The costs of no values. Version 1 of the container never uses `decimal`.
    #[must_use]
    pub fn new(decimal: bool) -> Self {
        let decimals = [decimal.then(DecimalCost::default); EXPONENTS];
        Self { integer: Some(0), f32_exact: true, decimals, nnz: 0 }
    }

    /// Bit e is set if the values can be decimal at exponent e.
    #[must_use]
    pub fn exponents(&self) -> u32 {
        (0..EXPONENTS).filter(|&e| self.decimals[e].is_some()).map(|e| 1 << e).sum()
    }

    /// The costs with one more tile of `nnz` nonzeros.
    #[must_use]
    pub fn with(self, tile: &TileValues, nnz: usize) -> Self {
        let column = tile.integer.map(|(_, width)| column::bytes(width) as u64);
        Self {
            integer: self.integer.zip(column).map(|(sum, column)| sum + column),
            f32_exact: self.f32_exact && tile.f32_exact,
            decimals: std::array::from_fn(|e| {
                let (sum, tile) = self.decimals[e].zip(tile.decimals.at(e))?;
                let columns = sum.columns + column::bytes(tile.width) as u64;
                Some(DecimalCost { columns, exceptions: sum.exceptions + u64::from(tile.exceptions) })
            }),
            nnz: self.nnz + nnz as u64,
        }
    }

    /// Whether the values, and any with others, can only be f64 or entries of a dictionary.
    #[must_use]
    pub fn are_f64(&self) -> bool {
        self.integer.is_none() && !self.f32_exact && self.decimals.iter().all(Option::is_none)
    }

    /// All encodings except the dictionary that can hold the values, with their sizes.
    fn candidates(&self) -> impl Iterator<Item = (ChosenValues, ValueBytes)> {
        let bytes = |columns, section| ValueBytes { columns, section };
        let integer = self.integer.map(|columns| (ChosenValues::Integer, bytes(columns, 0)));
        let single = self.f32_exact.then_some((ChosenValues::F32, bytes(0, 4 * self.nnz)));
        let decimals = self.decimals.into_iter().enumerate().filter_map(move |(e, decimal)| {
            let DecimalCost { columns, exceptions } = decimal?;
            Some((ChosenValues::Decimal(e), bytes(columns, exceptions_bytes(exceptions))))
        });
        let double = (ChosenValues::F64, bytes(0, 8 * self.nnz));
        integer.into_iter().chain(single).chain(decimals).chain([double])
    }

    /// The cheapest encoding except the dictionary, according to `cost`, and its cost.
    #[must_use]
    pub fn cheapest(&self, cost: impl Fn(ValueBytes) -> u64) -> (ChosenValues, u64) {
        let costed = self.candidates().map(|(chosen, bytes)| (chosen, cost(bytes)));
        costed.min_by_key(|&(_, cost)| cost).unwrap_or((ChosenValues::F64, u64::MAX))
    }

    /// The cheapest encoding, according to `cost`, of `count` values: those of `values` and repetitions of them. On
    /// ties, the first of integer, dictionary, f32, decimal, f64.
    #[must_use]
    pub fn choose<'v>(
        &self,
        values: impl IntoIterator<Item = &'v f64>,
        count: usize,
        cost: impl Fn(ValueBytes) -> u64,
    ) -> ChosenValues {
        let (chosen, least) = self.cheapest(&cost);
        let wins = |c: u64| if chosen == ChosenValues::Integer { c < least } else { c <= least };
        let tiles = count.div_ceil(TILE_NNZ) as u64;
        let dictionary_cost = |entries: usize| {
            let columns = tiles * column::bytes(dictionary_width(entries)) as u64;
            cost(ValueBytes { columns, section: 8 * entries as u64 })
        };
        dictionary(values, |entries| wins(dictionary_cost(entries))).map_or(chosen, ChosenValues::Dictionary)
    }
}

/// Bytes of a chunk's values in one encoding.
#[derive(Clone, Copy, Debug)]
pub struct ValueBytes {
    /// In value columns.
    pub columns: u64,
    /// In the VALUES section.
    pub section: u64,
}

/// Bytes of the VALUES section of decimals with this many exceptions.
#[must_use]
pub fn exceptions_bytes(exceptions: u64) -> u64 {
    8 + 12 * exceptions
}

/// The width of the entry numbers of a dictionary.
#[must_use]
pub fn dictionary_width(entries: usize) -> u32 {
    width(entries.saturating_sub(1) as u64)
}

/// The distinct values in total order, if a dictionary with that many entries is `worth` it.
fn dictionary<'v>(
    values: impl IntoIterator<Item = &'v f64>,
    worth: impl Fn(usize) -> bool,
) -> Option<Vec<f64>> {
    // Most values have occurred recently, so a slot per hash holds the last value with it. No value equals this NaN.
    const MET: usize = 256;
    let mut met = [u64::MAX; MET];
    let mut seen = std::collections::HashSet::new();
    for value in values {
        let bits = value.to_bits();
        let last = &mut met[(bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % MET];
        if *last == bits {
            continue;
        }
        *last = bits;
        let grown = seen.insert(bits);
        if grown && (seen.len() > DICTIONARY_MAX || !worth(seen.len())) {
            return None;
        }
    }
    let mut entries: Vec<f64> = seen.into_iter().map(f64::from_bits).collect();
    entries.sort_unstable_by(f64::total_cmp);
    Some(entries)
}

fn pack_column(numbers: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    let mut wide: Numbers<u64> = [0; TILE_NNZ];
    for (slot, number) in wide.iter_mut().zip(numbers) {
        *slot = number;
    }
    if width <= u32::BITS {
        #[expect(clippy::cast_possible_truncation, reason = "the width is at most 32")]
        column::pack32(&wide.map(|n| n as u32), width, out);
    } else {
        column::pack64(&wide, width, out);
    }
}

/// Unpacks a value column of at most 64 bits, given as 32-bit words, to numbers.
fn unpack_column(words: &[u32], width: u32, out: &mut Numbers<u64>) {
    if width <= u32::BITS {
        let mut narrow = [0; TILE_NNZ];
        column::unpack32(words, width, 0, &mut narrow);
        *out = narrow.map(u64::from);
    } else {
        let mut wide = [0; TILE_NNZ];
        for (w, pair) in wide.iter_mut().zip(words.chunks_exact(2)) {
            *w = u64::from(pair[0]) | u64::from(pair[1]) << 32;
        }
        column::unpack64(&wide, width, 0, out);
    }
}

/// Unpacks a tile's integers; slots without a nonzero hold the base.
#[inline(always)]
pub fn unpack_integers(words: &[u32], base: i64, width: u32, out: &mut Numbers<f64>) {
    if width <= 31 && i32::try_from(base).is_ok_and(|b| b.unsigned_abs() < 1 << 30) && width < 30 {
        // The common case is counts. 32-bit integers convert to f64 one vector at a time.
        #[expect(clippy::cast_possible_truncation, reason = "base is an i32")]
        let base = base as i32;
        // In place: the integers lie in the first half and are converted from last to first.
        let words_out: &mut [u32] = bytemuck::cast_slice_mut(out);
        column::unpack32(words, width, 0, words_out.first_chunk_mut().expect("two words a number"));
        for i in (0..TILE_NNZ / LANES).rev() {
            let narrow: [u32; LANES] =
                *bytemuck::cast_slice(out)[i * LANES..].first_chunk().expect("inside the first half");
            for (o, n) in out[i * LANES..][..LANES].iter_mut().zip(narrow) {
                *o = f64::from(n.cast_signed() + base);
            }
        }
        return;
    }
    let mut wide = [0; TILE_NNZ];
    unpack_column(words, width, &mut wide);
    for (o, n) in out.iter_mut().zip(wide) {
        *o = base.wrapping_add_unsigned(n) as f64;
    }
}

/// Unpacks a tile's entry numbers, as many as `out` has room for, and looks them up. Returns false if one is outside
/// the dictionary.
#[must_use]
pub fn unpack_entries(words: &[u32], dictionary: &[f64], out: &mut [f64]) -> bool {
    let mut entries = [0; TILE_NNZ];
    unpack_column(words, dictionary_width(dictionary.len()), &mut entries);
    out.iter_mut().zip(entries).all(|(o, entry)| {
        let value = usize::try_from(entry).ok().and_then(|e| dictionary.get(e));
        value.is_some_and(|&v| {
            *o = v;
            true
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(values: &[f64]) -> ValueEncoding {
        let tiles = values.chunks(TILE_NNZ);
        let costs = tiles.fold(Costs::new(true), |c, t| c.with(&TileValues::new(t), t.len()));
        costs.choose(values, values.len(), |b| b.columns + b.section).encoding()
    }

    #[test]
    fn integers_are_what_f64_holds_exactly() {
        let limit = INTEGER_MAX;
        assert_eq!(as_integer(limit), Some(1 << 53));
        assert_eq!(as_integer(-limit), Some(-(1 << 53)));
        assert_eq!(as_integer(limit + 2.0), None);
        assert_eq!(as_integer(0.0), Some(0));
        assert_eq!(as_integer(-0.0), None);
        assert_eq!(as_integer(0.5), None);
    }

    #[test]
    fn the_smallest_encoding_is_taken() {
        let many: Vec<f64> = (0..5000).map(f64::from).collect();
        assert_eq!(chosen(&many), ValueEncoding::Integer);
        assert_eq!(chosen(&many.iter().map(|v| v + 0.5).collect::<Vec<_>>()), ValueEncoding::Decimal);
        assert_eq!(chosen(&many.iter().map(|v| v + 0.1).collect::<Vec<_>>()), ValueEncoding::Decimal);
        assert_eq!(chosen(&many.iter().map(|v| 1.0 / (v + 3.0)).collect::<Vec<_>>()), ValueEncoding::F64);
        let single = |i: u16| f64::from(1.0 / (f32::from(i) + 3.0));
        assert_eq!(chosen(&(0..5000).map(single).collect::<Vec<_>>()), ValueEncoding::F32);
        let two: Vec<f64> = (0..5000).map(|i| if i % 2 == 0 { 0.1 } else { -0.0 }).collect();
        assert_eq!(chosen(&two), ValueEncoding::Dictionary);
        assert_eq!(chosen(&[7.0; 3]), ValueEncoding::Integer);
        assert_eq!(chosen(&[0.1; 600]), ValueEncoding::Dictionary);
    }

    #[test]
    fn integers_of_every_width_and_sign_come_back() {
        for width in 0..=54u32 {
            for base in [0, 3, -(1i64 << 53), i32::MIN.into(), i32::MAX.into()] {
                let top = base.saturating_add_unsigned((1u64 << width) - 1).min(1 << 53);
                let values: Vec<f64> =
                    (0..512i64).map(|i| (base + i % 7).min(top) as f64).chain([top as f64]).collect();
                let values = &values[1..];
                let (low, w) = TileValues::new(values).integer.unwrap();
                let mut packed = Vec::new();
                ChosenValues::Integer.pack(values, low, w, &mut packed);
                let words: Vec<u32> =
                    packed.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
                let mut back = [0.0; TILE_NNZ];
                unpack_integers(&words, low, w, &mut back);
                assert_eq!(&back[..], values);
            }
        }
    }
}
