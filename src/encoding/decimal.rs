//! Decimals: values that are integers divided by a power of ten (formats-spec/encodings.md, "Value encodings"; after ALP: Afroozeh,
//! Kuffo and Boncz, SIGMOD 2024).
//!
//! Up to 2^50, an integer i and its quotient i / 10^e represent the intended decimal number exactly: no other integer
//! has the same quotient, i is the integer nearest to the quotient times 10^e in f64, and one division restores the
//! value's bits.

use super::width;

/// Largest power of ten.
pub const EXPONENT_MAX: usize = 10;
/// The number of exponents.
pub const EXPONENTS: usize = EXPONENT_MAX + 1;
/// The most exceptions in a tile.
pub const TILE_EXCEPTIONS_MAX: usize = 64;
/// Largest magnitude of an integer.
pub const DECIMAL_MAX: i64 = 1 << 50;
/// The widest column of a tile, in bits.
pub const DECIMAL_WIDTH_MAX: u32 = 52;

/// Powers of ten, exact.
const POWERS: [f64; EXPONENTS] = {
    let mut powers = [1.0; EXPONENTS];
    let mut e = 1;
    while e < EXPONENTS {
        powers[e] = 10.0 * powers[e - 1];
        e += 1;
    }
    powers
};
/// Integers up to this magnitude are decimal at every exponent.
const SMALL: i64 = DECIMAL_MAX / 10_i64.pow(10);
const _: () = assert!(EXPONENT_MAX == 10);

/// Adding this to a number of at most 51 bits rounds it to an integer.
const SHIFT: f64 = (3_u64 << 51) as f64;

/// The divisor at exponent `e`.
#[must_use]
pub fn power(e: usize) -> f64 {
    POWERS[e]
}

/// The integer i for which i / 10^e has exactly the bits of `value`.
#[must_use]
pub fn as_decimal(value: f64, e: usize) -> Option<i64> {
    let scaled = value * POWERS[e];
    if scaled.abs() > DECIMAL_MAX as f64 {
        return None;
    }
    // The addition drops all fractional bits; the subtraction leaves the nearest integer.
    let rounded = (scaled + SHIFT) - SHIFT;
    let same = (rounded / POWERS[e]).to_bits() == value.to_bits();
    #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 51 bits")]
    same.then_some(rounded as i64)
}

/// The smallest and the largest of `values` if there are some and all are integers that are decimal at every exponent.
#[must_use]
pub fn small_integers(values: &[f64]) -> Option<(i64, i64)> {
    /// Values looked at together, each lane for itself, so that the compiler uses vectors.
    const LANES: usize = 8;
    let first = *values.first()?;
    let (mut low, mut high, mut small, mut zeros) =
        ([first; LANES], [first; LANES], [true; LANES], [0; LANES]);
    #[expect(clippy::float_cmp, reason = "exactness is the question")]
    let mut look = |lane: usize, v: f64| {
        // What the addition drops is the fraction.
        small[lane] &= (v + SHIFT) - SHIFT == v;
        zeros[lane] |= if v == 0.0 { v.to_bits() } else { 0 };
        low[lane] = if v < low[lane] { v } else { low[lane] };
        high[lane] = if v > high[lane] { v } else { high[lane] };
    };
    let (lanes, rest) = values.as_chunks::<LANES>();
    for values in lanes {
        (0..LANES).for_each(|lane| look(lane, values[lane]));
    }
    rest.iter().enumerate().for_each(|(lane, &value)| look(lane, value));
    let low = low.into_iter().fold(first, f64::min);
    let high = high.into_iter().fold(first, f64::max);
    // -0.0 is not an integer.
    let all = small == [true; LANES] && zeros == [0; LANES];
    let inside = -(SMALL as f64) <= low && high <= SMALL as f64;
    #[expect(clippy::cast_possible_truncation, reason = "small integers")]
    (all && inside).then_some((low as i64, high as i64))
}

/// A tile's values at one exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileDecimals {
    /// Smallest integer; 0 if all values are exceptions.
    pub base: i64,
    /// Width of the others minus the base.
    pub width: u32,
    /// Values that are not decimal.
    pub exceptions: u32,
}

/// The values of a tile that is being filled, at every exponent.
#[derive(Clone, Copy, Debug)]
pub struct DecimalTile {
    /// Range of the integers that are decimal at every exponent; empty if the first exceeds the second.
    small: (i64, i64),
    /// Range of the others at each exponent.
    others: [Option<(i64, i64)>; EXPONENTS],
    exceptions: [u32; EXPONENTS],
    /// Values that are decimal at no exponent.
    never: u32,
    /// Bit e is set if exponent e does not have too many exceptions.
    possible: u32,
}

impl Default for DecimalTile {
    fn default() -> Self {
        Self {
            small: (i64::MAX, i64::MIN),
            others: [None; EXPONENTS],
            exceptions: [0; EXPONENTS],
            never: 0,
            possible: (1 << EXPONENTS) - 1,
        }
    }
}

fn extend(range: &mut Option<(i64, i64)>, i: i64) {
    *range = Some(range.map_or((i, i), |(low, high)| (low.min(i), high.max(i))));
}

impl DecimalTile {
    /// The decimals of integers in a range; `None` if some may not be decimal at every exponent.
    #[must_use]
    pub fn of_integers(low: i64, high: i64) -> Option<Self> {
        let small = -SMALL <= low && high <= SMALL;
        small.then(|| Self { small: (low, high), ..Self::default() })
    }

    /// The decimals of `values`.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut tile = Self::default();
        for &value in values {
            tile.add(value);
        }
        tile
    }

    /// Adds the next value.
    #[inline]
    pub fn add(&mut self, value: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "what is lost makes it another number")]
        let whole = value as i64;
        if (whole as f64).to_bits() == value.to_bits() {
            self.add_integer(whole, value);
        } else {
            self.add_other(value);
        }
    }

    /// Adds the next values, which [`small_integers`] found to be from `low` to `high`.
    pub fn add_small(&mut self, low: i64, high: i64) {
        self.small = (self.small.0.min(low), self.small.1.max(high));
    }

    /// Adds the next value, which is the integer `i`.
    #[inline]
    pub fn add_integer(&mut self, i: i64, value: f64) {
        if (-SMALL..=SMALL).contains(&i) {
            self.small = (self.small.0.min(i), self.small.1.max(i));
        } else {
            self.add_other(value);
        }
    }

    fn add_other(&mut self, value: f64) {
        if self.never as usize > TILE_EXCEPTIONS_MAX {
            return;
        }
        // A value that is decimal at one exponent is decimal at all larger ones, unless its integer becomes
        // too large.
        let fits = |e: &usize| (value * POWERS[*e]).abs() <= DECIMAL_MAX as f64;
        let largest = (0..EXPONENTS).rev().find(fits);
        let Some((largest, mut i)) = largest.and_then(|e| Some((e, as_decimal(value, e)?))) else {
            self.never += 1;
            (0..EXPONENTS).for_each(|e| self.look(e));
            return;
        };
        let mut e = largest;
        loop {
            extend(&mut self.others[e], i);
            if e == 0 || i % 10 != 0 {
                break;
            }
            (e, i) = (e - 1, i / 10);
        }
        let without = (0..e).chain(largest + 1..EXPONENTS);
        without.for_each(|e| {
            self.exceptions[e] += 1;
            self.look(e);
        });
    }

    /// Marks exponent `e` as impossible if it has too many exceptions.
    fn look(&mut self, e: usize) {
        if (self.exceptions[e] + self.never) as usize > TILE_EXCEPTIONS_MAX {
            self.possible &= !(1 << e);
        }
    }

    /// The tile at exponent `e`; `None` if it has too many exceptions.
    #[must_use]
    pub fn at(&self, e: usize) -> Option<TileDecimals> {
        let exceptions = self.exceptions[e] + self.never;
        if self.possible >> e & 1 == 0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 51 bits")]
        let scale = |i: i64| i * POWERS[e] as i64;
        let mut all = self.others[e];
        if self.small.0 <= self.small.1 {
            extend(&mut all, scale(self.small.0));
            extend(&mut all, scale(self.small.1));
        }
        let (low, high) = all.unwrap_or_default();
        Some(TileDecimals { base: low, width: width(low.abs_diff(high)), exceptions })
    }

    /// Bit e is set if exponent e does not have too many exceptions.
    #[must_use]
    pub fn possible(&self) -> u32 {
        self.possible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, applied to each exponent separately.
    fn by_definition(values: &[f64], e: usize) -> Option<TileDecimals> {
        let integers: Vec<i64> = values.iter().filter_map(|&v| as_decimal(v, e)).collect();
        let exceptions = values.len() - integers.len();
        let (low, high) = (integers.iter().min().unwrap_or(&0), integers.iter().max().unwrap_or(&0));
        let tile = TileDecimals {
            base: *low,
            width: width(low.abs_diff(*high)),
            exceptions: exceptions.try_into().unwrap(),
        };
        (exceptions <= TILE_EXCEPTIONS_MAX).then_some(tile)
    }

    #[test]
    fn small_integers_are_those_of_the_definition() {
        let most = SMALL as f64;
        let odd =
            [0.5, -0.0, most + 1.0, -most - 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-300, 1e300];
        for count in [1usize, 3, 8, 9, 250, 256] {
            let mut values: Vec<f64> = (0..count).map(|i| (i * 37 % 101) as f64 - 50.0).collect();
            values[count / 2] = most;
            values[0] = -most;
            let high = if count > 1 { SMALL } else { -SMALL };
            assert_eq!(small_integers(&values), Some((-SMALL, high)));
            for (at, odd) in (0..count).flat_map(|at| odd.map(|odd| (at, odd))) {
                let before = std::mem::replace(&mut values[at], odd);
                assert_eq!(small_integers(&values), None, "{odd} at {at} of {count}");
                values[at] = before;
            }
        }
        assert_eq!(small_integers(&[]), None);
    }

    #[test]
    fn decimals_come_back_by_one_division() {
        for e in 0..EXPONENTS {
            for i in [0, 1, -1, 7, 123_456, -999_999_999, 314_159_265_358, DECIMAL_MAX, 1 - DECIMAL_MAX] {
                let value = i as f64 / power(e);
                assert_eq!(as_decimal(value, e), Some(i), "{i} / 10^{e}");
            }
        }
        for value in [-0.0, 0.1 + 0.2, 1e300, 1.0 / 3.0, f64::MIN_POSITIVE, 2e15] {
            assert!((0..EXPONENTS).all(|e| as_decimal(value, e).is_none()), "{value}");
        }
        assert_eq!((0..EXPONENTS).find(|&e| as_decimal(19.99, e).is_some()), Some(2));
    }

    #[test]
    fn tiles_are_what_their_values_say() {
        let mixed = |i: u32| match i % 7 {
            0 => f64::from(i),
            1 => f64::from(i) / 8.0,
            2 => -f64::from(i) / 1000.0,
            3 => 123_456_789.0 + f64::from(i),
            4 => f64::from(i) * 1e13,
            5 if i.is_multiple_of(3) => 1.0 / f64::from(i),
            _ => f64::from(i % 50) / 100.0,
        };
        for values in [
            (0..512).map(mixed).collect::<Vec<_>>(),
            (0..100).map(|i| f64::from(i) / 1e3).collect(),
            (0..512).map(f64::from).collect(),
            vec![1.0 / 3.0; 64],
            vec![1.0 / 3.0; 65],
            vec![-0.0, 0.0, 5e-11, 1e15],
        ] {
            let tile = DecimalTile::of(&values);
            let possible = tile.possible();
            for e in 0..EXPONENTS {
                assert_eq!(tile.at(e), by_definition(&values, e), "10^{e}");
                assert_eq!(possible >> e & 1 == 1, tile.at(e).is_some());
            }
        }
    }
}
