//! Packed columns: [`TILE_NNZ`] numbers of one width, in 16 interleaved lanes of 32-bit words (8 lanes of
//! 64-bit words above 32 bits), after the layout of `FastLanes` (Afroozeh and Boncz, VLDB 2023). One shift
//! and one mask unpack a whole vector, and any number can be read alone.

use super::TILE_NNZ;

/// Lanes of a column of at most 32 bits.
const LANES32: usize = 16;
/// Lanes of a wider column.
const LANES64: usize = 8;

/// Bytes of a column of numbers of `width` bits.
#[must_use]
pub const fn bytes(width: u32) -> usize {
    width as usize * (TILE_NNZ / 8)
}

/// A tile's worth of numbers.
pub type Numbers<T> = [T; TILE_NNZ];

/// Implements packing and unpacking for one word type.
macro_rules! column {
    ($word:ty, $lanes:expr, $pack:ident, $unpack:ident) => {
        /// Appends the column of `numbers`, each less than `2^width`, to `out`.
        ///
        /// # Panics
        /// If `width` exceeds the word's.
        pub fn $pack(numbers: &Numbers<$word>, width: u32, out: &mut Vec<u8>) {
            const BITS: u32 = <$word>::BITS;
            assert!(width <= BITS, "a column is no wider than its words");
            let mut words = [0 as $word; TILE_NNZ];
            for (p, position) in (0..).zip(numbers.chunks_exact($lanes)) {
                let bit: u32 = p * width;
                let (k, shift) = ((bit / BITS) as usize, bit % BITS);
                for (lane, &number) in position.iter().enumerate() {
                    debug_assert!(width == BITS || number >> width == 0, "a number fits its column");
                    if width > 0 {
                        words[$lanes * k + lane] |= number << shift;
                        if shift + width > BITS {
                            words[$lanes * (k + 1) + lane] |= number >> (BITS - shift);
                        }
                    }
                }
            }
            out.extend(words[..$lanes * width as usize].iter().flat_map(|w| w.to_le_bytes()));
        }

        /// Unpacks a column of `width` bits from its words into `out`, adding `base` (wrapping).
        ///
        /// # Panics
        /// If `words` is shorter than the column.
        #[inline(always)]
        pub fn $unpack(words: &[$word], width: u32, base: $word, out: &mut Numbers<$word>) {
            const BITS: u32 = <$word>::BITS;
            if width == 0 {
                out.fill(base);
                return;
            }
            let words = &words[..$lanes * width as usize];
            let mask = <$word>::MAX >> (BITS - width);
            for (p, position) in (0..).zip(out.as_chunks_mut::<$lanes>().0) {
                let bit: u32 = p * width;
                let (k, shift) = ((bit / BITS) as usize, bit % BITS);
                // Load and store whole vectors by value: the compiler would not vectorize single words.
                let mut numbers: [$word; $lanes] = *words[$lanes * k..].first_chunk().expect("a word a lane");
                for number in &mut numbers {
                    *number >>= shift;
                }
                if shift + width > BITS {
                    let high: [$word; $lanes] =
                        *words[$lanes * (k + 1)..].first_chunk().expect("a word a lane");
                    for (number, high) in numbers.iter_mut().zip(high) {
                        *number |= high << (BITS - shift);
                    }
                }
                *position = numbers.map(|number| (number & mask).wrapping_add(base));
            }
        }
    };
}

column!(u32, LANES32, pack32, unpack32);
column!(u64, LANES64, pack64, unpack64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    #[test]
    fn every_width_round_trips_and_has_its_size() {
        for width in 0..=64u32 {
            let random = Counter::new(1, width.into());
            let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
            let numbers: Numbers<u64> = std::array::from_fn(|i| random.bits(i as u64) & mask);
            let mut packed = Vec::new();
            let mut back = [0; TILE_NNZ];
            pack64(&numbers, width, &mut packed);
            assert_eq!(packed.len(), bytes(width));
            unpack64(&words(&packed, u64::from_le_bytes), width, 5, &mut back);
            assert_eq!(back, numbers.map(|n| n.wrapping_add(5)));
            if width <= 32 {
                let numbers = numbers.map(|n| u32::try_from(n).unwrap());
                let mut back = [0; TILE_NNZ];
                packed.clear();
                pack32(&numbers, width, &mut packed);
                assert_eq!(packed.len(), bytes(width));
                unpack32(&words(&packed, u32::from_le_bytes), width, 7, &mut back);
                assert_eq!(back, numbers.map(|n| n.wrapping_add(7)));
            }
        }
    }

    fn words<const N: usize, T>(bytes: &[u8], word: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.chunks_exact(N).map(|b| word(b.try_into().unwrap())).collect()
    }

    /// The formula of formats-spec/encodings.md, number by number.
    #[test]
    fn layout_is_the_specification() {
        let width = 5;
        let numbers: Numbers<u32> = std::array::from_fn(|i| u32::try_from(i * 7 % 32).unwrap());
        let mut packed = Vec::new();
        pack32(&numbers, width, &mut packed);
        let word = words(&packed, u32::from_le_bytes);
        for (i, &number) in numbers.iter().enumerate() {
            let (lane, b) = (i % 16, u32::try_from(i / 16).unwrap() * width);
            let (k, s) = ((b / 32) as usize, b % 32);
            let mut got = word[16 * k + lane] >> s;
            if s + width > 32 {
                got |= word[16 * (k + 1) + lane] << (32 - s);
            }
            assert_eq!(got & 31, number);
        }
    }
}
