//! Exact sums of f64, rounded once at the end: the result is the number nearest to the exact sum, so it depends neither
//! on the order of additions nor on threads and chunks.
//!
//! The method is Neal's ("Fast exact summation using small and large superaccumulators", 2015): an integer per exponent
//! adds up the significands. Here it has 128 bits, so it does not overflow before 2^74 numbers.

/// The number of exponents.
const EXPONENTS: usize = 2048;
/// Stored bits of a significand.
const STORED: u32 = 52;
/// Bits of a limb.
const LIMB: usize = 32;
/// Limbs for sums of 2^74 numbers, and some more.
const LIMBS: usize = (EXPONENTS + 53 + 75).div_ceil(LIMB) + 1;
/// The biased exponent of infinities and NaN.
const BEYOND: usize = EXPONENTS - 1;

/// A sum.
#[derive(Clone, Debug)]
pub struct ExactSum {
    /// The sum of significands per exponent.
    of_exponents: Vec<i128>,
    /// Whether a number was not finite.
    beyond: bool,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self { of_exponents: vec![0; EXPONENTS], beyond: false }
    }
}

impl ExactSum {
    /// Bytes that one takes.
    pub const BYTES: u64 = (EXPONENTS * size_of::<i128>()) as u64;

    /// Adds `x`.
    #[inline]
    pub fn add(&mut self, x: f64) {
        let bits = x.to_bits();
        let exponent = (bits >> STORED) as usize % EXPONENTS;
        let stored = bits & ((1 << STORED) - 1);
        let significand = if exponent == 0 { stored } else { stored | 1 << STORED };
        let significand = i128::from(significand);
        self.beyond |= exponent == BEYOND;
        self.of_exponents[exponent] += if x.is_sign_negative() { -significand } else { significand };
    }

    /// Adds all of another sum.
    pub fn add_all(&mut self, other: &Self) {
        self.beyond |= other.beyond;
        self.of_exponents.iter_mut().zip(&other.of_exponents).for_each(|(sum, x)| *sum += x);
    }

    /// The number nearest to the sum; ties go to even. NaN if a number was not finite.
    #[must_use]
    pub fn total(&self) -> f64 {
        if self.beyond {
            return f64::NAN;
        }
        let mut limbs = [0i64; LIMBS];
        for (exponent, &sum) in self.of_exponents.iter().enumerate().filter(|(_, sum)| **sum != 0) {
            // Exponents 0 and 1 have the same unit, that of subnormal numbers.
            let bit = exponent.saturating_sub(1);
            let (mut magnitude, mut limb) = (sum.unsigned_abs(), bit / LIMB);
            // The first piece starts inside a limb, at bit `bit % LIMB`; the others fill limbs from their
            // start.
            let mut room = LIMB - bit % LIMB;
            let mut shift = bit % LIMB;
            while magnitude > 0 {
                #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits")]
                let piece = ((magnitude & ((1 << room) - 1)) as i64) << shift;
                limbs[limb] += if sum < 0 { -piece } else { piece };
                magnitude >>= room;
                (limb, room, shift) = (limb + 1, LIMB, 0);
            }
        }
        carry(&mut limbs);
        let negative = limbs[LIMBS - 1] < 0;
        if negative {
            for limb in &mut limbs {
                *limb = -*limb;
            }
            carry(&mut limbs);
        }
        let rounded = round(&limbs);
        if negative { -rounded } else { rounded }
    }
}

/// Normalizes all limbs except the last to 32 bits.
fn carry(limbs: &mut [i64; LIMBS]) {
    for i in 0..LIMBS - 1 {
        let over = limbs[i] >> LIMB;
        limbs[i] -= over << LIMB;
        limbs[i + 1] += over;
    }
}

/// The number nearest to nonnegative limbs. Bit 0 is the smallest positive number.
fn round(limbs: &[i64; LIMBS]) -> f64 {
    let bit = |i: usize| (limbs[i / LIMB] >> (i % LIMB)).cast_unsigned() & 1;
    let Some(top) = (0..LIMBS * LIMB).rev().find(|&i| bit(i) == 1) else { return 0.0 };
    let lowest = top.saturating_sub(STORED as usize);
    let significand = (lowest..=top).rev().fold(0, |bits, i| bits << 1 | bit(i));
    let half = lowest > 0 && bit(lowest - 1) == 1;
    let more = lowest > 1 && (0..lowest - 1).any(|i| bit(i) == 1);
    let up = u64::from(half && (more || significand & 1 == 1));
    // The significand's leading bit adds 1 to the exponent, and so does a carry out of it.
    let bits = ((lowest as u64) << STORED) + significand + up;
    f64::from_bits(bits.min(f64::INFINITY.to_bits()))
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums are exact")]
mod tests {
    use super::*;
    use crate::random::Counter;

    fn sum(numbers: &[f64]) -> f64 {
        let (mut sum, mut other) = (ExactSum::default(), ExactSum::default());
        for (i, &x) in numbers.iter().enumerate() {
            if i % 3 == 0 { other.add(x) } else { sum.add(x) }
        }
        sum.add_all(&other);
        sum.total()
    }

    /// A single number of any exponent is unchanged; two give the processor's rounded sum.
    #[test]
    fn one_and_two_numbers_are_rounded_as_the_processor_does() {
        let random = Counter::new(3, 5);
        for i in 0..20_000 {
            let [a, b] = [0, 1].map(|k| f64::from_bits(random.bits(2 * i + k)));
            if a.is_finite() {
                assert_eq!(sum(&[a]), a, "{a:e}");
            }
            // Exponents close to each other, so that both numbers matter.
            let b = f64::from_bits(a.to_bits() ^ (b.to_bits() & (1 << 63 | 0x3F << 52 | 0xF_FFFF_FFFF_FFFF)));
            if a.is_finite() && b.is_finite() {
                assert_eq!(sum(&[a, b]), a + b, "{a:e} + {b:e}");
            }
        }
        for x in [0.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, f64::from_bits(1), -f64::from_bits(3)] {
            assert_eq!(sum(&[x]), x);
        }
    }

    #[test]
    fn what_cancels_leaves_what_is_left() {
        assert_eq!(sum(&[1e300, 1.0, -1e300, 1e-300]), 1.0);
        assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX, -f64::MAX, 5e-324]), 5e-324);
        assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0]), 1.0);
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0, f64::from_bits(1)]), 1.0 + f64::EPSILON);
        assert!(sum(&[f64::INFINITY, 1.0]).is_nan() && sum(&[f64::NAN]).is_nan());
    }

    /// Integers are added up exactly, in any order.
    #[test]
    fn many_numbers_in_any_order() {
        let random = Counter::new(4, 6);
        let integers: Vec<i64> = (0..5000).map(|i| random.bits(i).cast_signed() >> 12).collect();
        let mut numbers: Vec<f64> = integers.iter().map(|&x| x as f64).collect();
        let wanted: i128 = integers.iter().map(|&x| i128::from(x)).sum();
        assert_eq!(sum(&numbers), wanted as f64);
        let scaled: Vec<f64> = numbers.iter().map(|x| x * 2f64.powi(-1060)).collect();
        assert_eq!(sum(&scaled), wanted as f64 * 2f64.powi(-1060));
        numbers.reverse();
        assert_eq!(sum(&numbers), wanted as f64);
    }
}
