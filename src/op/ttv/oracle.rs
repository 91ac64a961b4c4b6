//! The oracle of TTV: the definition, one nonzero after the other in f64, directly from a source of coordinates. It
//! shares no code with stores, decoding or sorted runs. Records that do not fit in memory go to a file
//! ([`super::bins`]).
//!
//! The bound is derived. An element may differ from the oracle's by `((2 + 2 k) roundoff + (n + 2) 2^-53) S + (2 + k) n
//! least`, where S is the same sum over absolute values, n the number of products and k the number of vectors. Value,
//! vectors, products and result are rounded to the precision; sums are in f64. The last term is for subnormal numbers,
//! as in [`crate::op::oracle`]: value, products and, once, the result may each be off by half of the smallest positive
//! number, and the oracle's by the other half.

use super::bins::{BinRecord, Bins, Overflow};
use super::{Along, modes_left};
use crate::coo::{Batch, Source};
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::op::oracle::Comparison;
use crate::shape::Shape;
use crate::sys::Sys;
use std::path::PathBuf;

/// The memory of an oracle.
#[derive(Clone, Debug)]
pub struct OracleRoom {
    /// The most elements.
    pub elements: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// The parent of a private directory for the overflow file. It is created on demand and removed with the
    /// oracle.
    pub overflow: PathBuf,
}

impl Default for OracleRoom {
    /// No limits, so that no file is needed.
    fn default() -> Self {
        Self { elements: 0, memory: u64::MAX, overflow: PathBuf::new() }
    }
}

/// All elements by the definition, and those received.
#[derive(Debug)]
pub struct Oracle {
    /// The dims of the remaining modes.
    dims: Vec<u32>,
    roundoff: f64,
    least: f64,
    modes: Vec<usize>,
    wanted: Bins,
    found: Bins,
    overflow: Overflow,
}

/// The number of an element among all coordinates, of which a shape has at most 2^128.
fn place(dims: &[u32], at: impl Iterator<Item = u32>) -> u128 {
    dims.iter().zip(at).fold(0, |place, (&dim, index)| place * u128::from(dim) + u128::from(index))
}

impl Oracle {
    /// Computes TTV of the source's nonzeros along some modes. Their coordinates must be inside `shape`.
    pub fn new<T: Real>(source: &mut dyn Source, shape: &Shape, along: &[Along<'_, T>]) -> Result<Self> {
        Self::within(&Sys::default(), source, shape, along, &OracleRoom::default())
    }

    /// The same within limits.
    pub fn within<T: Real>(
        sys: &Sys,
        source: &mut dyn Source,
        shape: &Shape,
        along: &[Along<'_, T>],
        room: &OracleRoom,
    ) -> Result<Self> {
        let all = shape.dims();
        let modes: Vec<usize> = along.iter().map(|&(mode, _)| mode).collect();
        let left = modes_left(all.len(), &modes);
        let dims: Vec<u32> = left.iter().map(|&m| all[m]).collect();
        let bins = || Bins::new(room.elements, room.memory / 2);
        let (mut wanted, found, mut overflow) = (bins(), bins(), Overflow::new(sys, room.overflow.clone()));
        let name = source.name();
        source.drain(&mut |batch| {
            if batch.indices.len() != all.len() * batch.values.len() {
                return Err(Error::input(&name, format!("is not of order {}, as the store is", all.len())));
            }
            for (at, &value) in batch.indices.chunks_exact(all.len()).zip(&batch.values) {
                if let Some(m) = (0..all.len()).find(|&m| at[m] >= all[m]) {
                    let what = format!(
                        "index {} of mode {} is outside the store's dims",
                        u64::from(at[m]) + 1,
                        m + 1
                    );
                    return Err(Error::input(&name, what));
                }
                let number = |&(mode, vector): &Along<'_, T>| vector[at[mode] as usize].widen();
                let product = along.iter().map(number).fold(value, |product, x| product * x);
                let place = place(&dims, left.iter().map(|&m| at[m]));
                wanted.push(BinRecord::new(place, product), &mut overflow)?;
            }
            Ok(())
        })?;
        wanted.end(&mut overflow)?;
        Ok(Self { dims, roundoff: T::ROUNDOFF, least: T::LEAST, modes, wanted, found, overflow })
    }

    /// Records elements for [`Oracle::finish`].
    pub fn compare(&mut self, batch: &Batch) -> Result<()> {
        let left = self.dims.len();
        for (i, &value) in batch.values.iter().enumerate() {
            let at = &batch.indices[i * left..][..left];
            let record = BinRecord::new(place(&self.dims, at.iter().copied()), value);
            self.found.push(record, &mut self.overflow)?;
        }
        Ok(())
    }

    /// Compares all elements. One that is missing, unexpected or repeated fails.
    pub fn finish(mut self) -> Result<Comparison> {
        self.found.end(&mut self.overflow)?;
        let mut comparison =
            Comparison { mode: self.modes[0] + 1, worst: 0.0, largest_error: 0.0, holds: true };
        for bin in 0..self.wanted.count() {
            let wanted = self.wanted.take(bin, &self.overflow)?;
            let found = self.found.take(bin, &self.overflow)?;
            let same = wanted.len() == found.len()
                && wanted.iter().zip(&found).all(|(w, f)| w.place() == f.place() && f.added == 1);
            if !same {
                (comparison.holds, comparison.worst) = (false, f64::INFINITY);
            }
            let mut expected = wanted.iter().peekable();
            for element in &found {
                while expected.next_if(|wanted| wanted.place() < element.place()).is_some() {}
                if let Some(wanted) = expected.next_if(|wanted| wanted.place() == element.place()) {
                    self.compare_one(&mut comparison, wanted, element.sum);
                }
            }
        }
        Ok(comparison)
    }

    fn compare_one(&self, comparison: &mut Comparison, wanted: &BinRecord, value: f64) {
        let (in_f64, vectors) = (f64::EPSILON / 2.0 * (wanted.added + 2) as f64, self.modes.len() as f64);
        let subnormal = (2.0 + vectors) * wanted.added as f64 * self.least;
        let bound = wanted.absolute * ((2.0 + 2.0 * vectors) * self.roundoff + in_f64) + subnormal;
        comparison.add(value - wanted.sum, bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coo::Extent;

    struct Rows(Vec<([u32; 3], f64)>);

    impl Source for Rows {
        fn name(&self) -> String {
            "rows".into()
        }

        fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
            let indices = self.0.iter().flat_map(|row| row.0).collect();
            sink(Batch { indices, values: self.0.iter().map(|row| row.1).collect() })?;
            Ok(Extent { dims: vec![2, 3, 4], nnz: self.0.len() as u64 })
        }
    }

    /// The bound holds for f32 roundings of subnormal numbers, and a smaller one would not.
    #[test]
    fn roundings_of_subnormal_numbers_hold() {
        let least = f32::from_bits(1);
        let value = 2.4 * f64::from(least);
        let mut rows = Rows(vec![([0, 1, 0], value), ([0, 1, 1], value)]);
        let vector = [0.7f32, 0.8, 0.0, 0.0];
        let sum: f64 = vector[..2].iter().map(|x| f64::from(f32::nearest(value) * x)).sum();
        let mut holds = |sum: f64| {
            let shape = Shape::new(&[2, 3, 4]).unwrap();
            let mut oracle = Oracle::new(&mut rows, &shape, &[(2, &vector)]).unwrap();
            oracle.compare(&Batch { indices: vec![0, 1], values: vec![f32::nearest(sum).widen()] }).unwrap();
            oracle.finish().unwrap().holds
        };
        assert!(holds(sum) && !holds(sum + 7.0 * f64::from(least)));
    }

    #[test]
    fn what_is_missing_wrong_too_much_or_twice_fails() {
        let shape = Shape::new(&[2, 3, 4]).unwrap();
        let mut rows = Rows(vec![([0, 1, 0], 2.0), ([0, 1, 3], 1.0), ([1, 2, 2], -1.0)]);
        let vector = [1.0, 1.0, 3.0, 0.5];
        let mut holds = |indices: &[u32], values: &[f64]| {
            let mut oracle = Oracle::new(&mut rows, &shape, &[(2, &vector)]).unwrap();
            oracle.compare(&Batch { indices: indices.to_vec(), values: values.to_vec() }).unwrap();
            oracle.finish().unwrap().holds
        };
        assert!(holds(&[0, 1, 1, 2], &[2.5, -3.0]));
        assert!(holds(&[1, 2, 0, 1], &[-3.0, 2.5 + 1e-15]));
        assert!(!holds(&[0, 1, 1, 2], &[2.5, -3.0 - 1e-14]));
        assert!(!holds(&[0, 1, 1, 2], &[2.5, f64::NAN]));
        assert!(!holds(&[0, 1], &[2.5]));
        assert!(!holds(&[0, 1, 1, 2, 0, 0], &[2.5, -3.0, 0.0]));
        assert!(!holds(&[0, 1, 1, 2, 0, 1], &[2.5, -3.0, 2.5]));
        let small = Shape::new(&[2, 3, 3]).unwrap();
        let outside = Oracle::new(&mut rows, &small, &[(2, &vector)]).unwrap_err().to_string();
        assert!(outside.contains("index 4 of mode 3 is outside"), "{outside}");
    }
}
