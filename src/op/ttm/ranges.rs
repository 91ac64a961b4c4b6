//! Ranges of fibers whose nonzeros fit on a device.
//!
//! The key of a fiber is the leading bits of its indices, one behind the other, at most 64: keys ascend with the fibers. A pass counts the
//! nonzeros in bins of keys. A bin with more nonzeros than fit is divided into bins of its own, which another pass counts. Ranges
//! are as many consecutive bins as fit; none divides a fiber.

use crate::shape::{ORDER_MAX, Shape};

/// Bins of a pass, as a power of two, at most.
const BINS_BITS: u32 = 18;

/// The bits of each mode in a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyBits {
    /// How many.
    pub bits: [u32; ORDER_MAX],
    /// Its last bits that a key leaves out.
    pub dropped: [u32; ORDER_MAX],
    /// Bits of a key.
    pub all: u32,
}

impl KeyBits {
    /// Of fibers along `mode`, from 0.
    #[must_use]
    pub fn new(shape: &Shape, mode: usize) -> Self {
        let mut key = Self { bits: [0; ORDER_MAX], dropped: [0; ORDER_MAX], all: 0 };
        for m in (0..shape.order()).filter(|&m| m != mode) {
            key.bits[m] = shape.bits(m).min(u64::BITS - key.all);
            key.dropped[m] = shape.bits(m) - key.bits[m];
            key.all += key.bits[m];
        }
        key
    }
}

/// Consecutive keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub low: u64,
    /// The last.
    pub high: u64,
    /// Nonzeros of their fibers.
    pub nnz: u64,
}

/// Keys whose nonzeros are counted in bins of 2^`shift` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bins {
    /// The first key.
    pub low: u64,
    /// The last key.
    pub high: u64,
    /// See above.
    pub shift: u32,
}

/// Counts of bins, of which some have been looked at.
#[derive(Debug)]
struct Counted {
    /// The next bin's first key.
    next: u64,
    shift: u32,
    counts: std::vec::IntoIter<u64>,
}

/// The ranges so far, in order, and what is yet to come.
#[derive(Debug)]
pub struct Cut {
    /// Nonzeros of a range, at most.
    room: u64,
    bins_bits: u32,
    /// What the next pass counts: the first key, and how many of a key's last bits differ.
    open: Option<(u64, u32)>,
    /// Bins behind the ranges, those of the largest first.
    counted: Vec<Counted>,
    ranges: Vec<Range>,
}

/// Keys that differ in the last `bits` bits of `low`, which are zeros.
fn last_of(low: u64, bits: u32) -> u64 {
    low | u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0)
}

/// The number of bins, as a power of two, for the keys of this many nonzeros.
#[must_use]
pub fn bins_bits(key: &KeyBits, nnz: u64) -> u32 {
    // Of a few nonzeros each, where there are few.
    BINS_BITS.min(key.all).min((u64::BITS - nnz.leading_zeros()).saturating_sub(2))
}

impl Cut {
    /// Of keys of `key` bits, into ranges of at most `room` nonzeros, with 2^`bins_bits` bins.
    #[must_use]
    pub fn new(key: u32, bins_bits: u32, room: u64) -> Self {
        Self { room, bins_bits, open: Some((0, key)), counted: Vec::new(), ranges: Vec::new() }
    }

    /// What the next pass counts; `None` if all ranges are known.
    #[must_use]
    pub fn bins(&self) -> Option<Bins> {
        let (low, bits) = self.open?;
        Some(Bins { low, high: last_of(low, bits), shift: bits.saturating_sub(self.bins_bits) })
    }

    /// Takes the counts of [`Cut::bins`]: adds each bin to the last range or begins another, up to a bin that must be divided.
    ///
    /// # Errors
    ///
    /// The nonzeros of a key that do not fit.
    pub fn put(&mut self, counts: Vec<u64>) -> Result<(), u64> {
        let Some(Bins { low, shift, .. }) = self.bins() else { return Ok(()) };
        self.open = None;
        self.counted.push(Counted { next: low, shift, counts: counts.into_iter() });
        while let Some(Counted { next, shift, counts }) = self.counted.last_mut() {
            let (low, shift) = (*next, *shift);
            let Some(nnz) = counts.next() else {
                self.counted.pop();
                continue;
            };
            // Behind the last key, it is not read again.
            *next = low.wrapping_add(1 << shift);
            let high = last_of(low, shift);
            match self.ranges.last_mut() {
                _ if nnz == 0 => {}
                _ if nnz > self.room && shift == 0 => return Err(nnz),
                _ if nnz > self.room => {
                    self.open = Some((low, shift));
                    break;
                }
                Some(range) if range.nnz + nnz <= self.room => {
                    (range.high, range.nnz) = (high, range.nnz + nnz);
                }
                _ => self.ranges.push(Range { low, high, nnz }),
            }
        }
        Ok(())
    }

    /// The ranges so far, in order.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts sorted keys until all ranges are known. Returns them, and the passes.
    fn cut(keys: &[u64], (bits, bins_bits): (u32, u32), room: u64) -> Result<(Vec<Range>, usize), u64> {
        let (mut cut, mut passes) = (Cut::new(bits, bins_bits, room), 0);
        while let Some(Bins { low, high, shift }) = cut.bins() {
            let mut counts = vec![0; 1 << bins_bits];
            for key in keys.iter().filter(|&&key| (low..=high).contains(&key)) {
                counts[usize::try_from((key - low) >> shift).unwrap()] += 1;
            }
            cut.put(counts)?;
            passes += 1;
        }
        Ok((cut.ranges, passes))
    }

    fn check(keys: &[u64], bits: (u32, u32), room: u64) -> (Vec<Range>, usize) {
        let (ranges, passes) = cut(keys, bits, room).unwrap();
        let mut before = None;
        for range in &ranges {
            let inside = keys.iter().filter(|&&key| (range.low..=range.high).contains(&key)).count();
            assert!(inside as u64 == range.nnz && range.nnz <= room && range.nnz > 0, "{range:?}");
            assert!(before < Some(range.low), "{ranges:?}");
            before = Some(range.high);
        }
        assert_eq!(ranges.iter().map(|range| range.nnz).sum::<u64>(), keys.len() as u64);
        let pairs = ranges.windows(2).filter(|pair| pair[0].nnz + pair[1].nnz <= room).count();
        assert_eq!(pairs, 0, "ranges that fit together: {ranges:?}");
        (ranges, passes)
    }

    #[test]
    fn ranges_hold_every_key_once_and_as_many_as_fit() {
        let even: Vec<u64> = (0..1000).collect();
        let (ranges, passes) = check(&even, (10, 4), 128);
        assert_eq!((ranges.len(), passes), (8, 1));
        let (ranges, passes) = check(&even, (10, 4), 200);
        assert_eq!((ranges.len(), passes), (6, 1));
        // A bin has more than fit: its keys are counted again.
        let (ranges, passes) = check(&even, (10, 4), 50);
        assert_eq!((ranges.len(), passes), (21, 16));
        let skewed: Vec<u64> = (0..500).chain([1 << 40, (1 << 63) + 5, u64::MAX, u64::MAX]).collect();
        for (bins, room) in [(18, 100), (4, 100), (4, 499), (4, 2), (1, 7), (18, 504)] {
            check(&skewed, (64, bins), room);
        }
        assert_eq!(check(&skewed, (64, 4), 504).0.len(), 1);
        assert_eq!(check(&[], (64, 4), 1).0, []);
        assert_eq!(check(&[0, 0, 0], (0, 0), 3).0, [Range { low: 0, high: 0, nnz: 3 }]);
    }

    #[test]
    fn a_key_that_does_not_fit_is_refused() {
        let keys = [0, 1, 7, 7, 7, 9];
        assert_eq!(cut(&keys, (64, 3), 2), Err(3));
        assert_eq!(check(&keys, (64, 3), 3).0.len(), 3);
    }

    #[test]
    fn keys_hold_the_leading_bits_of_the_other_modes() {
        let key = KeyBits::new(&Shape::new(&[1 << 31, 5, 1, 1 << 20, 1 << 31]).unwrap(), 1);
        assert_eq!(
            (&key.bits[..5], &key.dropped[..5], key.all),
            (&[31, 0, 0, 20, 13][..], &[0, 0, 0, 0, 18][..], 64)
        );
        assert_eq!((bins_bits(&key, 1 << 40), bins_bits(&key, 1000)), (18, 8));
        let short = KeyBits::new(&Shape::new(&[3, 1 << 30]).unwrap(), 1);
        assert_eq!((short.all, bins_bits(&short, 1 << 40)), (2, 2));
    }
}
