//! Sparse tensors of exactly low rank: sums of outer products of sparse columns.
//!
//! Let `s` be the seed. Component `r` (from 0) of `rank` has a column in each mode `m` of dim `D`, with `S` nonzero
//! entries, its **support**. Entry `j` (from 0):
//!
//! * **Index**: `low + floor(u * (high - low))`, with `low = floor(j * D / S)`, `high = floor((j + 1) * D / S)` and `u = unit(r * S + j)` of stream
//!   `192 + m` under `s` ([`crate::random`]): the entries lie in different parts of the mode.
//! * **Value**: `0.5 + unit(r * S + j)` of stream `256 + m`.
//!
//! The tensor's nonzeros are all products of a component's entries. Nonzero `i` belongs to component `floor(i / P)`,
//! where `P` is the product of the supports; the digits of `i mod P` in mixed radix, last mode fastest, select the
//! entries. Its value is their product, in the order of the modes and from 1.0. A coordinate that several components
//! share occurs once per component. The element is the sum, which packing computes by default.

use super::Batch;
use crate::error::{Error, Result};
use crate::random::Counter;
use crate::shape::Shape;
use std::ops::Range;

const INDEX_STREAM: u64 = 192;
const VALUE_STREAM: u64 = 256;

/// A tensor of exactly low rank, checked.
#[derive(Clone, Debug)]
pub struct LowRank {
    shape: Shape,
    rank: u64,
    support: Vec<u64>,
    seed: u64,
}

impl LowRank {
    /// A model of `rank` components on `shape`, with `support[m]` entries in each column of mode `m`.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for a rank of 0, a support of 0 or larger than the dim, a number of supports other than the
    /// order, or more than 2^53 nonzeros.
    pub fn new(shape: &Shape, rank: u32, support: &[u64], seed: u64) -> Result<Self> {
        if rank == 0 {
            return Err(Error::request("a rank must be at least 1"));
        }
        if support.len() != shape.order() {
            let what = format!("{} supports for {} modes; give one for each", support.len(), shape.order());
            return Err(Error::request(what));
        }
        for (m, (&s, &dim)) in support.iter().zip(shape.dims()).enumerate() {
            if s == 0 || s > dim.into() {
                return Err(Error::request(format!("mode {} has dim {dim}; its support is {s}", m + 1)));
            }
        }
        let nnz = support.iter().try_fold(u64::from(rank), |n, &s| n.checked_mul(s));
        if nnz.is_none_or(|n| n > 1 << 53) {
            return Err(Error::request("more than 2^53 nonzeros; give smaller supports"));
        }
        Ok(Self { shape: shape.clone(), rank: rank.into(), support: support.to_vec(), seed })
    }

    /// Nonzeros; shared coordinates count once per component.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.rank * self.per_component()
    }

    fn per_component(&self) -> u64 {
        self.support.iter().product()
    }

    /// Entry `j` of column `r` of `mode`: index and value.
    fn entry(&self, mode: usize, r: u64, j: u64) -> (u32, f64) {
        let (dim, support) = (u64::from(self.shape.dims()[mode]), self.support[mode]);
        let (low, high) = (j * dim / support, (j + 1) * dim / support);
        let stream = |first: u64| Counter::new(self.seed, first + mode as u64);
        let u = stream(INDEX_STREAM).unit(r * support + j);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below 2^32; rounds down"
        )]
        let inside = (u * (high - low) as f64) as u64;
        let index = (low + inside).min(high - 1);
        let value = 0.5 + stream(VALUE_STREAM).unit(r * support + j);
        (u32::try_from(index).expect("an index is below its dim"), value)
    }

    /// The entries of all columns of `mode`: row, column, value.
    pub fn entries(&self, mode: usize) -> impl Iterator<Item = (u32, usize, f64)> + '_ {
        let support = self.support[mode];
        (0..self.rank * support).map(move |i| {
            let (row, value) = self.entry(mode, i / support, i % support);
            (row, usize::try_from(i / support).expect("a rank fits 32 bits"), value)
        })
    }

    /// The entries whose row is in `rows`.
    pub fn entries_in(
        &self,
        mode: usize,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = (u32, usize, f64)> + '_ {
        let (dim, support) = (u64::from(self.shape.dims()[mode]), self.support[mode]);
        let rows = rows.start as u64..rows.end as u64;
        // Entry j lies in part j of `support` equal parts of the mode.
        let first = (rows.start * support / dim).saturating_sub(1);
        let end = (rows.end * support / dim + 2).min(support);
        let all = (0..self.rank).flat_map(move |r| (first..end).map(move |j| (r, j)));
        let entry = move |(r, j): (u64, u64)| {
            let (row, value) = self.entry(mode, r, j);
            (row, usize::try_from(r).expect("a rank fits 32 bits"), value)
        };
        all.map(entry).filter(move |&(row, ..)| rows.contains(&row.into()))
    }

    /// Fills `batch` with the nonzeros from number `first` on.
    pub(super) fn fill(&self, first: u64, batch: &mut Batch) {
        let per = self.per_component();
        let rows = batch.indices.chunks_exact_mut(self.shape.order());
        for ((row, value), i) in rows.zip(&mut batch.values).zip(first..) {
            let mut rest = i % per;
            let mut entries = [0.0; crate::shape::ORDER_MAX];
            for m in (0..self.shape.order()).rev() {
                (row[m], entries[m]) = self.entry(m, i / per, rest % self.support[m]);
                rest /= self.support[m];
            }
            *value = entries[..self.shape.order()].iter().fold(1.0, |p, x| p * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The nonzeros add up to the product of the columns, everywhere.
    #[test]
    fn nonzeros_are_the_model() {
        let shape = Shape::new(&[7, 5, 6]).unwrap();
        let tensor = LowRank::new(&shape, 3, &[3, 5, 2], 11).unwrap();
        assert_eq!(tensor.nnz(), 90);
        let mut batch = Batch { indices: vec![0; 90 * 3], values: vec![0.0; 90] };
        tensor.fill(0, &mut batch);
        let mut found: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
        for (row, value) in batch.indices.chunks_exact(3).zip(&batch.values) {
            *found.entry(row.to_vec()).or_default() += value;
        }
        let column = |m: usize, r: usize, i: u32| -> f64 {
            tensor.entries(m).filter(|e| (e.0, e.1) == (i, r)).map(|e| e.2).sum()
        };
        for i in 0..7 {
            for j in 0..5 {
                for k in 0..6 {
                    let wanted: f64 =
                        (0..3).map(|r| column(0, r, i) * column(1, r, j) * column(2, r, k)).sum();
                    let got = found.get(&vec![i, j, k]).copied().unwrap_or(0.0);
                    assert!((got - wanted).abs() < 1e-12, "{got} {wanted}");
                }
            }
        }
        for mode in 0..3 {
            let all = || tensor.entries(mode);
            for (from, to) in [(0, 1), (1, 4), (2, 5), (4, 7)] {
                let inside = |row: u32| (from..to).contains(&(row as usize));
                let wanted: Vec<_> = all().filter(|&(row, ..)| inside(row)).collect();
                assert_eq!(tensor.entries_in(mode, &(from..to)).collect::<Vec<_>>(), wanted);
            }
        }
        // Any part can be made alone.
        let mut tail = Batch { indices: vec![0; 20 * 3], values: vec![0.0; 20] };
        tensor.fill(70, &mut tail);
        assert_eq!((&tail.indices[..], &tail.values[..]), (&batch.indices[210..], &batch.values[70..]));
    }

    #[test]
    fn wrong_supports_are_refused() {
        let shape = Shape::new(&[7, 5]).unwrap();
        for (rank, support, fragment) in [
            (0, vec![1, 1], "at least 1"),
            (1, vec![1], "1 supports for 2 modes"),
            (1, vec![8, 1], "mode 1 has dim 7; its support is 8"),
            (1, vec![1, 0], "its support is 0"),
        ] {
            let message = LowRank::new(&shape, rank, &support, 0).unwrap_err().to_string();
            assert!(message.contains(fragment), "{message}");
        }
    }
}
