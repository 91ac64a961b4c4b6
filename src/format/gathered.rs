//! A tile's nonzeros in coordinates, and their hash (formats-spec/container.md, "Nonzeros, partitions, covers").

use crate::encoding::TILE_NNZ;
use crate::linear::{Key, Linearizer, Nonzero};
use crate::shape::ORDER_MAX;

/// A tile's nonzeros in coordinates.
#[derive(Debug, Default)]
pub struct GatheredTile {
    /// One column of [`TILE_NNZ`] for each mode; slots without a nonzero hold 0.
    pub indices: Vec<u32>,
    /// The values, in the store's order.
    pub values: Vec<f64>,
    /// Their nonzeros' hash.
    pub hash: u64,
}

impl GatheredTile {
    /// Takes the coordinates of up to [`TILE_NNZ`] nonzeros of `order` modes.
    pub fn gather<K: Key>(&mut self, linearizer: &Linearizer<K>, order: usize, nonzeros: &[Nonzero<K>]) {
        let Self { indices, values, hash } = self;
        *hash = 0;
        indices.clear();
        indices.resize(order * TILE_NNZ, 0);
        for (i, nonzero) in nonzeros.iter().enumerate() {
            let at = linearizer.gather(nonzero.linear);
            *hash = hash.wrapping_add(hash_of(&at[..order], nonzero.value));
            for (m, index) in at.into_iter().enumerate().take(order) {
                indices[m * TILE_NNZ + i] = index;
            }
        }
        values.clear();
        values.extend(nonzeros.iter().map(|n| n.value));
    }

    /// The indices of `mode`.
    pub fn column(&self, mode: usize) -> &[u32] {
        &self.indices[mode * TILE_NNZ..][..self.values.len()]
    }
}

/// What numbers are multiplied by where their bits are mixed.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a nonzero's indices, and behind them its value's bits, are multiplied by in its hash.
const FACTORS: [u64; ORDER_MAX + 1] = {
    let mut factors = [0; ORDER_MAX + 1];
    let mut j = 0;
    while j <= ORDER_MAX {
        factors[j] = mix((j as u64 + 1).wrapping_mul(MULTIPLIER)) | 1;
        j += 1;
    }
    factors
};

/// Mixes the bits of a number: that of `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
const fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The hash of a nonzero; those of many are added up.
#[inline(always)]
fn hash_of(at: &[u32], value: f64) -> u64 {
    let start = MULTIPLIER.wrapping_add(value.to_bits().wrapping_mul(FACTORS[ORDER_MAX]));
    let indices = at.iter().zip(&FACTORS);
    mix(indices.fold(start, |sum, (&index, &factor)| sum.wrapping_add(u64::from(index).wrapping_mul(factor))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (That the numbers are those of the specification, the vectors tell.)
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
