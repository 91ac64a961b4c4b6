//! A counter-based generator: number `i` of stream `stream` under `seed`, with no state, so that any
//! part of a generated tensor or factor can be made by anybody, anywhere, in any order.
//!
//! `hash = mix(mix(mix(seed + G) + stream * G) + i * G)` in wrapping 64-bit arithmetic, where `mix` is the
//! finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) and `G = 0x9E3779B97F4A7C15`. All operations
//! on floats here are exact or correctly rounded by IEEE 754, so every platform gives the same bits.

const G: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One stream of numbers, addressed by counter.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    key: u64,
}

impl Counter {
    /// Stream `stream` under `seed`.
    #[must_use]
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self { key: mix(mix(seed.wrapping_add(G)).wrapping_add(stream.wrapping_mul(G))) }
    }

    /// 64 random bits at position `i`.
    #[must_use]
    pub const fn bits(self, i: u64) -> u64 {
        mix(self.key.wrapping_add(i.wrapping_mul(G)))
    }

    /// A multiple of 2^-53 in [0, 1): the upper 53 bits at position `i`.
    #[must_use]
    pub fn unit(self, i: u64) -> f64 {
        (self.bits(i) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_output_is_splitmix64() {
        // mix(G) is the first output of SplitMix64 from state 0, a published test value.
        assert_eq!(mix(G), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn units_are_uniform_enough() {
        let stream = Counter::new(7, 3);
        let mean = (0..10_000).map(|i| stream.unit(i)).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert_ne!(Counter::new(7, 2).bits(0), stream.bits(0));
        assert_ne!(Counter::new(8, 3).bits(0), stream.bits(0));
    }
}
