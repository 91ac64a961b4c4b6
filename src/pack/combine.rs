//! Duplicates: nonzeros in linear order in, settled nonzeros in linear order out.

use super::Duplicates;
use crate::error::{Error, Result};
use crate::linear::{BitLayout, Key, Linearizer};

/// Settles duplicates in a stream of nonzeros in linear order.
#[derive(Debug)]
pub struct Combiner<K> {
    duplicates: Duplicates,
    linearizer: Linearizer<K>,
    order: usize,
    /// The nonzero that the next ones may still belong to.
    open: Option<(K, f64)>,
    settled: Vec<(K, f64)>,
    summed: u64,
    kept: u64,
}

impl<K: Key> Combiner<K> {
    pub fn new(layout: &BitLayout, duplicates: Duplicates) -> Self {
        Self {
            duplicates,
            linearizer: Linearizer::new(layout),
            order: layout.order(),
            open: None,
            settled: Vec::new(),
            summed: 0,
            kept: 0,
        }
    }

    /// Nonzeros that were added to another.
    pub fn summed(&self) -> u64 {
        self.summed
    }

    /// Nonzeros kept beside another with the same coordinates.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Takes the next nonzeros and returns those that are settled by now.
    pub fn push(&mut self, sorted: &[(K, f64)]) -> Result<&[(K, f64)]> {
        self.settled.clear();
        for &(key, value) in sorted {
            match &mut self.open {
                Some((open, sum)) if *open == key => match self.duplicates {
                    Duplicates::Sum => {
                        *sum += value;
                        self.summed += 1;
                        if !sum.is_finite() {
                            return Err(self.refuse(key, "the values given for it add up to infinity"));
                        }
                    }
                    Duplicates::Keep => {
                        self.kept += 1;
                        self.settled.push((key, std::mem::replace(sum, value)));
                    }
                    Duplicates::Error => {
                        let what = "it occurs more than once; --duplicates sum adds up, keep keeps each";
                        return Err(self.refuse(key, what));
                    }
                },
                open => self.settled.extend(open.replace((key, value))),
            }
        }
        Ok(&self.settled)
    }

    /// The last nonzero, once no more come.
    pub fn finish(&mut self) -> &[(K, f64)] {
        self.settled.clear();
        self.settled.extend(self.open.take());
        &self.settled
    }

    fn refuse(&self, key: K, what: &str) -> Error {
        let at = self.linearizer.gather(key);
        let indices: Vec<String> = at[..self.order].iter().map(|i| (u64::from(*i) + 1).to_string()).collect();
        Error::request(format!("the nonzero at ({}), counted from 1: {what}", indices.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn combine(duplicates: Duplicates, sorted: &[(u64, f64)]) -> Result<Vec<(u64, f64)>> {
        let layout = BitLayout::new(&Shape::new(&[16, 16]).unwrap());
        let mut combiner = Combiner::new(&layout, duplicates);
        let mut out = Vec::new();
        for slice in sorted.chunks(2) {
            out.extend_from_slice(combiner.push(slice)?);
        }
        out.extend_from_slice(combiner.finish());
        Ok(out)
    }

    #[test]
    fn duplicates_meet_across_slices() {
        let sorted = [(1, 1.0), (3, -2.0), (3, 0.5), (3, 4.0), (9, 1.0)];
        assert_eq!(combine(Duplicates::Sum, &sorted).unwrap(), [(1, 1.0), (3, 2.5), (9, 1.0)]);
        assert_eq!(combine(Duplicates::Keep, &sorted).unwrap(), sorted);
        let message = combine(Duplicates::Error, &sorted).unwrap_err().to_string();
        assert!(message.contains("(2, 2), counted from 1"), "{message}");
    }

    #[test]
    fn negative_zero_survives_and_overflow_does_not() {
        let sum = combine(Duplicates::Sum, &[(0, -0.0), (1, -0.0), (1, -0.0)]).unwrap();
        assert!(sum.iter().all(|n| n.1.to_bits() == (-0.0f64).to_bits()));
        assert!(combine(Duplicates::Sum, &[(1, f64::MAX), (1, f64::MAX)]).is_err());
    }
}
