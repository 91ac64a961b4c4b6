//! The linear index: bit layout, scatter (coordinates to linear index), gather (back), and BLCO's
//! re-encoding (Nguyen et al., ICS 2022, sections 4.1 and 4.2; formats-spec/blco.md).

mod tables;

pub use tables::{Key, Linearizer, Wide};

use std::cmp::Ordering;

use crate::shape::{ModeOrder, ORDER_MAX, Shape};

/// Bits of a linear index that address inside a BLCO block of a store.
pub const BLOCK_BITS: u32 = 64;

/// A nonzero inside the packer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Nonzero<K> {
    /// Its linear index.
    pub linear: K,
    /// Its value.
    pub value: f64,
}

impl<K: Key> Nonzero<K> {
    /// The sort order of stores: by linear index, then by the total order of values.
    #[inline]
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        self.linear.cmp(&other.linear).then_with(|| self.value.total_cmp(&other.value))
    }
}

/// The mode that each bit of the linear index belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitLayout {
    order: usize,
    bit_modes: Vec<u8>,
}

impl BitLayout {
    /// Interleaves the modes of `shape` from bit 0 up, round robin, shorter modes first.
    #[must_use]
    pub fn new(shape: &Shape) -> Self {
        let mut visit: Vec<usize> = (0..shape.order()).collect();
        visit.sort_by_key(|&m| (shape.dims()[m], m));
        let total = shape.linear_bits() as usize;
        let mut bit_modes = Vec::with_capacity(total);
        let mut round = 0;
        while bit_modes.len() < total {
            let round_modes = visit.iter().filter(|&&m| round < shape.bits(m));
            bit_modes.extend(round_modes.map(|&m| u8::try_from(m).expect("at most 8 modes")));
            round += 1;
        }
        Self { order: shape.order(), bit_modes }
    }

    /// Places the bits of each mode side by side, those of the first of `modes` highest. This sorts by the first
    /// mode's index, then by the next one's. Modes that are not listed have no bits; their indices are read back as 0.
    #[must_use]
    pub fn concatenated(shape: &Shape, modes: &ModeOrder) -> Self {
        let bits = |&mode: &u8| std::iter::repeat_n(mode, shape.bits(mode.into()) as usize);
        Self { order: shape.order(), bit_modes: modes.modes().iter().rev().flat_map(bits).collect() }
    }

    /// The number of modes.
    #[must_use]
    pub fn order(&self) -> usize {
        self.order
    }

    /// For each linear bit from bit 0 up, its mode. The j-th entry of a mode is that mode's bit j.
    #[must_use]
    pub fn bit_modes(&self) -> &[u8] {
        &self.bit_modes
    }

    /// The number of bits of the linear index.
    #[must_use]
    pub fn bits(&self) -> u32 {
        u32::try_from(self.bit_modes.len()).expect("at most 128 bits")
    }

    /// `(linear bit, mode, bit of the mode)` for every linear bit.
    pub(crate) fn assignments(&self) -> impl Iterator<Item = (u32, usize, u32)> + '_ {
        let mut used = [0; ORDER_MAX];
        self.bit_modes.iter().zip(0..).map(move |(&mode, bit)| {
            let mode = usize::from(mode);
            used[mode] += 1;
            (bit, mode, used[mode] - 1)
        })
    }
}

/// BLCO's index inside a block: each mode's bits below `block_bits` are contiguous, mode 0 lowest, and a
/// shift and a mask decode it.
#[derive(Clone, Debug)]
pub struct Reencoding {
    block_bits: u32,
    shift: [u32; ORDER_MAX],
    kept: [u32; ORDER_MAX],
    upper: Linearizer<u128>,
}

impl Reencoding {
    /// The re-encoding for blocks of `block_bits` bits, at most 64.
    ///
    /// # Panics
    /// If `block_bits` is 0 or above 64.
    #[must_use]
    pub fn new(layout: &BitLayout, block_bits: u32) -> Self {
        assert!((1..=64).contains(&block_bits), "an index inside a block has 1 to 64 bits");
        let mut kept = [0; ORDER_MAX];
        for (bit, mode, _) in layout.assignments() {
            kept[mode] += u32::from(bit < block_bits);
        }
        let mut shift = [0; ORDER_MAX];
        for m in 1..ORDER_MAX {
            shift[m] = shift[m - 1] + kept[m - 1];
        }
        Self { block_bits, shift, kept, upper: Linearizer::new(layout) }
    }

    /// The key of the BLCO block that holds the linear index.
    #[must_use]
    pub fn key(&self, linear: u128) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "a linear index has at most 128 bits, blocks 64")]
        let key = (linear >> self.block_bits) as u64;
        key
    }

    /// The index inside the block of the nonzero at `coordinates`.
    #[must_use]
    pub fn encode(&self, coordinates: &[u32]) -> u64 {
        let parts = coordinates.iter().zip(self.kept.iter().zip(&self.shift));
        parts.map(|(&i, (&kept, &shift))| mask(u64::from(i), kept).wrapping_shl(shift)).fold(0, |a, b| a | b)
    }

    /// A mask of the bits that an index inside a block can use.
    #[must_use]
    pub fn used_bits(&self) -> u64 {
        mask(u64::MAX, self.kept.iter().sum())
    }

    /// The upper bits of each mode's index, taken from `key`, in place.
    #[must_use]
    pub fn upper(&self, key: u64) -> [u32; ORDER_MAX] {
        self.upper.gather(u128::from(key) << self.block_bits)
    }

    /// The index of `mode`, with `upper` from [`Reencoding::upper`].
    #[must_use]
    pub fn decode(&self, index: u64, upper: &[u32; ORDER_MAX], mode: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a mode keeps at most 32 bits")]
        let lower = mask(index.wrapping_shr(self.shift[mode]), self.kept[mode]) as u32;
        lower | upper[mode]
    }
}

/// The lowest `bits` bits of `x`. A shift by 64, for a mode without bits after 64 others, leaves none.
fn mask(x: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { x & (u64::MAX >> (64 - bits)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The worked example of formats-spec/blco.md: Figure 6 of the paper, with its one error corrected.
    #[test]
    fn worked_example() {
        let shape = Shape::new(&[4, 4, 4]).unwrap();
        let layout = BitLayout::new(&shape);
        assert_eq!(layout.bit_modes(), [0, 1, 2, 0, 1, 2]);
        let linearizer = Linearizer::<u64>::new(&layout);
        let reencoding = Reencoding::new(&layout, 5);
        let table: [([u32; 3], u64, u64, u64); 12] = [
            ([1, 1, 1], 0, 0, 0),
            ([1, 1, 2], 4, 0, 16),
            ([2, 1, 2], 5, 0, 17),
            ([4, 2, 1], 11, 0, 7),
            ([3, 1, 2], 12, 0, 18),
            ([4, 2, 2], 15, 0, 23),
            ([2, 1, 3], 33, 1, 1),
            ([1, 3, 3], 48, 1, 8),
            ([4, 3, 3], 57, 1, 11),
            ([4, 3, 4], 61, 1, 27),
            ([3, 4, 4], 62, 1, 30),
            ([4, 4, 4], 63, 1, 31),
        ];
        for (from_one, linear, key, reencoded) in table {
            let at = from_one.map(|i| i - 1);
            assert_eq!(linearizer.scatter(&at), linear);
            assert_eq!(linearizer.gather(linear)[..3], at);
            assert_eq!(reencoding.key(linear.into()), key);
            assert_eq!(reencoding.encode(&at), reencoded);
            let upper = reencoding.upper(key);
            for (m, &i) in at.iter().enumerate() {
                assert_eq!(reencoding.decode(reencoded, &upper, m), i);
            }
        }
    }

    #[test]
    fn shorter_modes_come_first_and_drop_out() {
        let layout = BitLayout::new(&Shape::new(&[9, 2, 1, 5, 3]).unwrap());
        assert_eq!(layout.bit_modes(), [1, 4, 3, 0, 4, 3, 0, 3, 0, 0]);
    }

    /// Sorting by the index sorts by the modes in order; modes that are not listed do not matter.
    #[test]
    fn concatenated_bits_sort_by_one_mode_after_the_other() {
        let shape = Shape::new(&[5, 1, 300, 2]).unwrap();
        let modes = ModeOrder::rotated(4, 2);
        assert_eq!(modes.modes(), [2, 3, 0, 1]);
        let layout = BitLayout::concatenated(&shape, &modes);
        assert_eq!(layout.bit_modes(), [0, 0, 0, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        let linearizer = Linearizer::<u64>::new(&layout);
        assert_eq!(linearizer.scatter(&[4, 0, 299, 1]), 299 << 4 | 1 << 3 | 4);
        assert_eq!(linearizer.gather(299 << 4 | 1 << 3 | 4)[..4], [4, 0, 299, 1]);
        let two = BitLayout::concatenated(&shape, &ModeOrder::new(&[3, 0]).unwrap());
        let linearizer = Linearizer::<u64>::new(&two);
        assert_eq!(linearizer.scatter(&[4, 0, 299, 1]), 1 << 3 | 4);
        assert_eq!(linearizer.gather(1 << 3 | 4)[..4], [4, 0, 0, 1]);
        assert!(ModeOrder::new(&[0, 0]).is_none() && ModeOrder::new(&[8]).is_none());
    }

    /// The definition bit by bit, for comparison with the tables.
    fn scatter_by_bits(layout: &BitLayout, at: &[u32]) -> u128 {
        layout.assignments().map(|(bit, mode, j)| u128::from(at[mode] >> j & 1) << bit).sum()
    }

    proptest! {
        #[test]
        fn tables_agree_with_the_definition(
            widths in prop::collection::vec(0u32..=32, 2..=8),
            seed in any::<u64>(),
            block_bits in 1u32..=64,
        ) {
            prop_assume!(widths.iter().sum::<u32>() <= 128);
            let dims: Vec<u64> = widths.iter().map(|&w| (1u64 << w).min(crate::shape::DIM_MAX)).collect();
            let shape = Shape::new(&dims).unwrap();
            let layout = BitLayout::new(&shape);
            let wide = Linearizer::<u128>::new(&layout);
            let packed = Linearizer::<Wide>::new(&layout);
            let narrow = (layout.bits() <= 64).then(|| Linearizer::<u64>::new(&layout));
            let reencoding = Reencoding::new(&layout, block_bits);
            let random = crate::random::Counter::new(seed, 0);
            for n in 0..20u64 {
                let at: Vec<u32> = dims
                    .iter()
                    .enumerate()
                    .map(|(m, &d)| u32::try_from(random.bits(n * 8 + m as u64) % d).unwrap())
                    .collect();
                let linear = scatter_by_bits(&layout, &at);
                prop_assert_eq!(wide.scatter(&at), linear);
                prop_assert_eq!(packed.scatter(&at).widen(), linear);
                prop_assert_eq!(&wide.gather(linear)[..at.len()], &at[..]);
                if let Some(narrow) = &narrow {
                    prop_assert_eq!(u128::from(narrow.scatter(&at)), linear);
                    prop_assert_eq!(&narrow.gather(narrow.scatter(&at))[..at.len()], &at[..]);
                }
                if layout.bits() <= block_bits + 64 {
                    let (key, index) = (reencoding.key(linear), reencoding.encode(&at));
                    let upper = reencoding.upper(key);
                    for (m, &i) in at.iter().enumerate() {
                        prop_assert_eq!(reencoding.decode(index, &upper, m), i);
                    }
                }
            }
        }
    }
}
