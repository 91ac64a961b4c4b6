//! Scatter and gather through byte tables, which need no particular instruction set.

use super::BitLayout;
use crate::shape::ORDER_MAX;
use std::cmp::Ordering;
use std::ops::BitOr;

/// A linear index: `u64` if 64 bits suffice, otherwise [`Wide`], or `u128` if memory does not matter.
pub trait Key: Copy + Ord + BitOr<Output = Self> + Default + std::fmt::Debug + Send + Sync + 'static {
    /// Bytes of the type.
    const BYTES: usize;
    /// The lowest bits of `wide`.
    fn narrow(wide: u128) -> Self;
    /// The same number with 128 bits.
    fn widen(self) -> u128;
    /// Byte `i`, the least significant first.
    fn byte(self, i: usize) -> u8;
}

impl Key for u64 {
    const BYTES: usize = 8;
    #[expect(clippy::cast_possible_truncation, reason = "the caller knows that 64 bits hold it")]
    fn narrow(wide: u128) -> Self {
        wide as Self
    }
    fn widen(self) -> u128 {
        self.into()
    }
    #[inline]
    fn byte(self, i: usize) -> u8 {
        self.to_le_bytes()[i]
    }
}

impl Key for u128 {
    const BYTES: usize = 16;
    fn narrow(wide: u128) -> Self {
        wide
    }
    fn widen(self) -> u128 {
        self
    }
    #[inline]
    fn byte(self, i: usize) -> u8 {
        self.to_le_bytes()[i]
    }
}

/// A linear index of up to 128 bits in two words. A nonzero then takes 24 bytes instead of 32 with `u128`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wide {
    low: u64,
    high: u64,
}

impl Ord for Wide {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.widen().cmp(&other.widen())
    }
}

impl PartialOrd for Wide {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl BitOr for Wide {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self { low: self.low | other.low, high: self.high | other.high }
    }
}

impl Key for Wide {
    const BYTES: usize = 16;
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    #[inline]
    fn narrow(wide: u128) -> Self {
        Self { low: wide as u64, high: (wide >> 64) as u64 }
    }
    #[inline]
    fn widen(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
    #[inline]
    fn byte(self, i: usize) -> u8 {
        let word = if i < 8 { self.low } else { self.high };
        word.to_le_bytes()[i % 8]
    }
}

/// Converts coordinates to linear indices and back.
#[derive(Clone, Debug)]
pub struct Linearizer<K> {
    order: usize,
    /// For each mode and each byte of its index, the scattered bits of the byte's 256 values.
    scatter: Vec<[[K; 256]; 4]>,
    /// For each byte of the linear index, what its 256 values contribute to each mode.
    gather: Vec<[[u32; ORDER_MAX]; 256]>,
}

impl<K: Key> Linearizer<K> {
    /// Builds the tables for `layout`.
    ///
    /// # Panics If `K` is too narrow for the linear index.
    #[must_use]
    pub fn new(layout: &BitLayout) -> Self {
        assert!(layout.bits() as usize <= K::BYTES * 8, "the key type holds the linear index");
        let mut scatter = vec![[[K::default(); 256]; 4]; layout.order()];
        let mut gather = vec![[[0; ORDER_MAX]; 256]; layout.bits().div_ceil(8) as usize];
        for (bit, mode, mode_bit) in layout.assignments() {
            let to = K::narrow(1u128 << bit);
            for (byte, entry) in scatter[mode][mode_bit as usize / 8].iter_mut().enumerate() {
                if byte >> (mode_bit % 8) & 1 == 1 {
                    *entry = *entry | to;
                }
            }
            for (byte, entry) in gather[bit as usize / 8].iter_mut().enumerate() {
                if byte >> (bit % 8) & 1 == 1 {
                    entry[mode] |= 1 << mode_bit;
                }
            }
        }
        Self { order: layout.order(), scatter, gather }
    }

    /// The linear index of a nonzero. Its coordinates must be inside the dims.
    #[must_use]
    pub fn scatter(&self, coordinates: &[u32]) -> K {
        debug_assert_eq!(coordinates.len(), self.order);
        let mut linear = K::default();
        for (table, index) in self.scatter.iter().zip(coordinates) {
            for (byte, part) in index.to_le_bytes().into_iter().zip(table) {
                linear = linear | part[usize::from(byte)];
            }
        }
        linear
    }

    /// The coordinates of a linear index; 0 for modes without bits.
    #[must_use]
    pub fn gather(&self, linear: K) -> [u32; ORDER_MAX] {
        let mut at = [0; ORDER_MAX];
        for (byte, table) in linear.widen().to_le_bytes().into_iter().zip(&self.gather) {
            for (a, part) in at.iter_mut().zip(&table[usize::from(byte)]) {
                *a |= part;
            }
        }
        at
    }
}
