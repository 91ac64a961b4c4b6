//! Sorting nonzeros in place and in parallel, into the order of stores.

use crate::linear::{Key, Nonzero};
use rayon::prelude::*;
use rdst::{RadixKey, RadixSort};

/// Sorts by linear index, then by the total order of the values, on the current rayon pool.
pub fn sort<K: Key>(nonzeros: &mut [Nonzero<K>]) {
    nonzeros.radix_sort_builder().with_low_mem_tuner().sort();
    let equal = |a: &Nonzero<K>, b: &Nonzero<K>| a.linear == b.linear;
    let repeated = nonzeros.par_chunk_by_mut(equal).filter(|group| group.len() > 1);
    repeated.for_each(|group| group.sort_unstable_by(|a, b| a.value.total_cmp(&b.value)));
}

/// Radix by the bytes of the linear index.
impl<K: Key> RadixKey for Nonzero<K> {
    const LEVELS: usize = K::BYTES;

    #[inline]
    fn get_level(&self, level: usize) -> u8 {
        self.linear.byte(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Wide;
    use crate::random::Counter;

    fn check<K: Key>(bits: u32) {
        for (nnz, distinct) in [(0u64, 1), (1, 1), (1000, 1), (5000, 40), (200_000, u128::MAX)] {
            let random = Counter::new(nnz, 0);
            let linear = |i: u64| {
                let wide = u128::from(random.bits(i)) << 64 | u128::from(random.bits(!i));
                K::narrow((wide % distinct) & (u128::MAX >> (128 - bits)))
            };
            let value = |i: u64| [0.0, -0.0, 1.5, -3.0, 1e300][usize::try_from(random.bits(i) % 5).unwrap()];
            let mut sorted: Vec<_> =
                (0..nnz).map(|i| Nonzero { linear: linear(i), value: value(i) }).collect();
            let mut expected = sorted.clone();
            sort(&mut sorted);
            expected.sort_by(Nonzero::order);
            let bits = |n: &Nonzero<K>| (n.linear.widen(), n.value.to_bits());
            assert!(sorted.iter().map(bits).eq(expected.iter().map(bits)), "{nnz} nonzeros");
        }
    }

    #[test]
    fn sorts_like_the_standard_library() {
        check::<u64>(64);
        check::<u64>(33);
        check::<Wide>(128);
        check::<Wide>(65);
    }
}
