//! A tile's nonzeros as coordinates, and their hash (formats-spec/container.md, "Nonzeros, partitions, covers").

use crate::encoding::TILE_NNZ;
use crate::linear::{Key, Linearizer, Nonzero};
use crate::shape::ORDER_MAX;

/// Up to [`TILE_NNZ`] nonzeros in a format's order, in coordinates.
#[derive(Debug, Default)]
pub struct SortedTile {
    /// One column of [`TILE_NNZ`] for each mode; slots without a nonzero hold 0.
    pub indices: Vec<u32>,
    /// The values.
    pub values: Vec<f64>,
    /// Smallest index of each mode.
    pub low: [u32; ORDER_MAX],
    /// Largest index of each mode.
    pub high: [u32; ORDER_MAX],
    /// Linear indices of the first and the last nonzero.
    pub linear: [u128; 2],
    /// The sum of the nonzeros' hashes.
    pub hash: u64,
    /// The sum of the values' squares, in order.
    pub(super) sum_squares: f64,
    /// Smallest and largest value, as [`total_key`]s.
    pub(super) value_keys: [i64; 2],
}

impl SortedTile {
    /// Takes the coordinates of up to [`TILE_NNZ`] nonzeros of `order` modes.
    pub(super) fn gather<K: Key>(
        &mut self,
        linearizer: &Linearizer<K>,
        order: usize,
        nonzeros: &[Nonzero<K>],
    ) {
        let Self { indices, values, .. } = self;
        indices.clear();
        indices.resize(order * TILE_NNZ, 0);
        for (i, nonzero) in nonzeros.iter().enumerate() {
            for (m, index) in linearizer.gather(nonzero.linear).into_iter().enumerate().take(order) {
                indices[m * TILE_NNZ + i] = index;
            }
        }
        values.clear();
        values.extend(nonzeros.iter().map(|n| n.value));
        let linear = |n: Option<&Nonzero<K>>| n.map_or(0, |n| n.linear.widen());
        self.linear = [linear(nonzeros.first()), linear(nonzeros.last())];
        (self.low, self.high) = ([0; ORDER_MAX], [0; ORDER_MAX]);
        for m in 0..order {
            self.low[m] = self.column(m).iter().copied().min().unwrap_or(0);
            self.high[m] = self.column(m).iter().copied().max().unwrap_or(0);
        }
        self.hash = self.hash();
        self.sum_squares = self.values.iter().fold(0.0, |sum, v| sum + v * v);
        let keys = || self.values.iter().map(|&v| total_key(v));
        self.value_keys = [keys().min().unwrap_or(i64::MAX), keys().max().unwrap_or(i64::MIN)];
    }

    /// The indices of `mode`.
    #[must_use]
    pub fn column(&self, mode: usize) -> &[u32] {
        &self.indices[mode * TILE_NNZ..][..self.values.len()]
    }

    /// The number of modes.
    #[must_use]
    pub fn order(&self) -> usize {
        self.indices.len() / TILE_NNZ
    }

    /// Hashes column by column, so that the compiler vectorizes it.
    fn hash(&self) -> u64 {
        let mut sums = [0u64; TILE_NNZ];
        for (sum, value) in sums.iter_mut().zip(&self.values) {
            *sum = start_of(*value);
        }
        for (m, factor) in FACTORS.iter().enumerate().take(self.order()) {
            for (sum, &index) in sums.iter_mut().zip(self.column(m)) {
                *sum = sum.wrapping_add(u64::from(index).wrapping_mul(*factor));
            }
        }
        sums[..self.values.len()].iter().map(|&sum| mix(sum)).fold(0, u64::wrapping_add)
    }
}

/// An integer in the order of [`f64::total_cmp`], which vectors can compare.
pub(super) fn total_key(value: f64) -> i64 {
    flipped(value.to_bits().cast_signed())
}

/// The value of a [`total_key`].
pub(super) fn of_total_key(key: i64) -> f64 {
    f64::from_bits(flipped(key).cast_unsigned())
}

/// Flips all bits of negative numbers except the sign. Applied twice, it restores the number.
fn flipped(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// The multiplier for mixing bits.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The multipliers of a nonzero's indices and, after them, of its value's bits.
const FACTORS: [u64; ORDER_MAX + 1] = {
    let mut factors = [0; ORDER_MAX + 1];
    let mut j = 0;
    while j <= ORDER_MAX {
        factors[j] = mix((j as u64 + 1).wrapping_mul(MULTIPLIER)) | 1;
        j += 1;
    }
    factors
};

/// Mixes the bits of a number as `SplitMix64` does (Steele, Lea and Flood, OOPSLA 2014).
const fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The start of a nonzero's hash.
#[inline(always)]
fn start_of(value: f64) -> u64 {
    MULTIPLIER.wrapping_add(value.to_bits().wrapping_mul(FACTORS[ORDER_MAX]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(at: &[u32], value: f64) -> u64 {
        let mut tile = SortedTile { values: vec![value], ..SortedTile::default() };
        tile.indices.resize(at.len() * TILE_NNZ, 0);
        at.iter().enumerate().for_each(|(m, &index)| tile.indices[m * TILE_NNZ] = index);
        tile.hash()
    }

    /// The test vectors check that the numbers are those of the specification.
    #[test]
    fn a_hash_does_not_depend_on_order() {
        let all = [([1u32, 2, 3], 1.5), ([0, 0, 0], -0.0), ([7, u32::MAX, 9], 1e300)];
        let sum = |order: [usize; 3]| {
            order.map(|i| hash_of(&all[i].0, all[i].1)).into_iter().fold(0, u64::wrapping_add)
        };
        assert_eq!(sum([0, 1, 2]), sum([2, 0, 1]));
        assert_ne!(hash_of(&[0, 1], 2.0), hash_of(&[1, 0], 2.0));
        assert_ne!(hash_of(&[0, 1], 0.0), hash_of(&[0, 1], -0.0));
    }
}
