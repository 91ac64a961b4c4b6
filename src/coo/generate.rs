//! Synthetic tensors that anyone can reproduce from this text.
//!
//! Let `s` be the seed, `order` the number of modes and [`Counter`] the random number generator; its
//! documentation defines a number by seed, stream and position. Nonzero `i` (from 0) is:
//!
//! * **Index of mode `m`** (from 0): `min(floor(dim * skewed(u)), dim - 1)` with `u = unit(i)` of stream `m`
//!   under `s`. `skewed(u)` is `u`, `u * sqrt(u)`, `u * u`, `(u * u) * sqrt(u)` or `(u * u) * u` for skew 1,
//!   1.5, 2, 2.5 or 3: the larger the skew, the more nonzeros share the low indices.
//! * **Value**, from stream `order` under `s`:
//!   * `1`: one.
//!   * `lo..hi`: `min(lo + floor(u * (hi - lo + 1)), hi)` with `u = unit(i)`: integers, both ends included.
//!   * `uniform`: `((bits(i) >> 12) + 0.5) * 2^-52`: in (0, 1), both ends excluded.
//! * **Value with a planted rank `R`**, whatever [`Values`] says: the sum over `r` in `0..R`, in that order
//!   and from 0.0, of the product over the modes, in their order and from 1.0, of `a_m(i_m, r)`, where
//!   `a_m(j, r) = unit(j * R + r)` of stream `64 + m` under `s` and `i_m` counts from 0. A nonzero whose
//!   coordinates repeat repeats its value too.
//!
//! * **With a support**, `R` defines the whole tensor: see [`super::low_rank`].
//!
//! Coordinates may repeat, and duplicates are kept. All arithmetic is f64 and rounded after each operation as
//! IEEE 754 requires, without fused operations, so every platform produces the same bits.

use crate::coo::low_rank::LowRank;
use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::{Error, Result};
use crate::random::Counter;
use crate::shape::Shape;
use crate::sys::Sys;
use rayon::prelude::*;
use std::str::FromStr;

/// Nonzeros in each batch except the last.
pub const BATCH_NNZ: u64 = 1 << 16;
/// Batches per compute thread and group.
const BATCHES_PER_THREAD: u64 = 2;
/// The first stream of the planted factors; mode `m` has stream `64 + m`.
const PLANTED_STREAM: u64 = 64;
/// Integers up to this magnitude, and spans of them, are exact in f64.
const INTEGER_MAX: i64 = 1 << 53;

/// How unevenly the indices of a mode are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skew {
    /// Skew 1: uniform.
    #[default]
    One,
    /// Skew 1.5.
    OneAndHalf,
    /// Skew 2.
    Two,
    /// Skew 2.5.
    TwoAndHalf,
    /// Skew 3.
    Three,
}

impl Skew {
    /// `u` to the power of the skew, using only correctly rounded operations.
    fn apply(self, u: f64) -> f64 {
        match self {
            Self::One => u,
            Self::OneAndHalf => u * u.sqrt(),
            Self::Two => u * u,
            Self::TwoAndHalf => (u * u) * u.sqrt(),
            Self::Three => (u * u) * u,
        }
    }
}

/// `1`, `1.5`, `2`, `2.5` or `3`.
impl FromStr for Skew {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "1" => Ok(Self::One),
            "1.5" => Ok(Self::OneAndHalf),
            "2" => Ok(Self::Two),
            "2.5" => Ok(Self::TwoAndHalf),
            "3" => Ok(Self::Three),
            _ => Err(Error::request(format!("skew {text:?} is not supported; give 1, 1.5, 2, 2.5 or 3"))),
        }
    }
}

/// The values of nonzeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// All 1.
    #[default]
    Ones,
    /// Integers, both ends included, at most 2^53 in magnitude and at most 2^53 of them.
    Integers {
        /// The smallest.
        lo: i64,
        /// The largest.
        hi: i64,
    },
    /// Uniform in (0, 1), never exactly 0.
    Uniform,
}

impl Values {
    fn check(self) -> Result<()> {
        let Self::Integers { lo, hi } = self else {
            return Ok(());
        };
        if lo > hi {
            return Err(Error::request(format!(
                "values {lo}..{hi} are an empty range; give the smaller end first"
            )));
        }
        let exact = -INTEGER_MAX..=INTEGER_MAX;
        if !exact.contains(&lo) || !exact.contains(&hi) || hi - lo >= INTEGER_MAX {
            return Err(Error::request(format!(
                "values {lo}..{hi} are not all exact in f64; keep both ends and their distance below 2^53"
            )));
        }
        Ok(())
    }

    /// The value at position `i` of `stream`.
    fn at(self, stream: Counter, i: u64) -> f64 {
        match self {
            Self::Ones => 1.0,
            Self::Integers { lo, hi } => {
                let (lo, hi, count) = (lo as f64, hi as f64, (hi - lo + 1) as f64);
                (lo + (stream.unit(i) * count).floor()).min(hi)
            }
            Self::Uniform => ((stream.bits(i) >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64),
        }
    }
}

/// `1`, a range of integers like `1..5` (both ends included), or `uniform`.
impl FromStr for Values {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            || Error::request(format!("values {text:?} are not known; give 1, LO..HI (1..5) or uniform"));
        let values = match text {
            "1" => Self::Ones,
            "uniform" => Self::Uniform,
            _ => {
                let (lo, hi) = text.split_once("..").ok_or_else(wrong)?;
                let end = |end: &str| end.parse::<i64>().map_err(|_| wrong());
                Self::Integers { lo: end(lo)?, hi: end(hi)? }
            }
        };
        values.check()?;
        Ok(values)
    }
}

/// Everything that determines a generated tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerateSpec {
    /// The dims, mode 1 first.
    pub dims: Vec<u64>,
    /// Nonzeros, duplicates counted each time. Determined by the support if there is one.
    pub nnz: u64,
    /// The skew of each mode; empty means skew 1 for all.
    pub skew: Vec<Skew>,
    /// The values, unless a rank is planted.
    pub values: Values,
    /// The seed.
    pub seed: u64,
    /// The rank of the model that gives the values.
    pub planted_rank: Option<u32>,
    /// The number of nonzero entries of that model's columns, for each mode. With it, the tensor is the whole model:
    /// every element of the model that is not zero is a nonzero, and there are no others.
    pub support: Option<Vec<u64>>,
}

/// Generates the tensor of a [`GenerateSpec`], as the module's documentation defines it.
///
/// Batches of [`BATCH_NNZ`] nonzeros are generated in parallel on the caller's rayon pool and handed over in
/// order. Memory is constant: two batches per compute thread.
#[derive(Debug)]
pub struct Generator {
    sys: Sys,
    spec: GenerateSpec,
    shape: Shape,
    low_rank: Option<LowRank>,
    /// The most batches in a group.
    group_max: u64,
}

impl Generator {
    /// Bytes of a batch.
    fn batch_bytes(&self) -> u64 {
        BATCH_NNZ * (4 * self.spec.dims.len() as u64 + 8)
    }

    /// Checks `spec`.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for invalid dims, no nonzeros, a number of skews other than 0 and the order, a
    /// range of values that is empty or not exact, or a planted rank of 0.
    pub fn new(sys: &Sys, mut spec: GenerateSpec) -> Result<Self> {
        let shape = Shape::new(&spec.dims)?;
        let low_rank = match &spec.support {
            Some(support) => Some(LowRank::new(&shape, spec.planted_rank.unwrap_or(0), support, spec.seed)?),
            None => None,
        };
        spec.nnz = low_rank.as_ref().map_or(spec.nnz, LowRank::nnz);
        if spec.nnz == 0 {
            return Err(Error::request("a tensor needs at least one nonzero; raise `nnz`"));
        }
        if spec.skew.is_empty() {
            spec.skew = vec![Skew::One; shape.order()];
        }
        if spec.skew.len() != shape.order() {
            return Err(Error::request(format!(
                "{} skews for {} modes; give one for each mode, or one for all",
                spec.skew.len(),
                shape.order()
            )));
        }
        spec.values.check()?;
        if spec.planted_rank == Some(0) {
            return Err(Error::request("a planted rank must be at least 1"));
        }
        Ok(Self { sys: sys.clone(), spec, shape, low_rank, group_max: u64::MAX })
    }

    /// The low-rank model, if it is the whole tensor.
    #[must_use]
    pub fn low_rank(&self) -> Option<&LowRank> {
        self.low_rank.as_ref()
    }

    /// Batch number `number`, from 0.
    fn batch(&self, number: u64) -> Result<Batch> {
        let first = number * BATCH_NNZ;
        let len = BATCH_NNZ.min(self.spec.nnz - first);
        let order = self.shape.order();
        #[expect(clippy::cast_possible_truncation, reason = "at most BATCH_NNZ")]
        let rows = len as usize;
        let mut batch = Batch { indices: self.sys.vec(0, rows * order)?, values: self.sys.vec(0.0, rows)? };
        if let Some(low_rank) = &self.low_rank {
            low_rank.fill(first, &mut batch);
            return Ok(batch);
        }
        for (m, (&dim, skew)) in self.shape.dims().iter().zip(&self.spec.skew).enumerate() {
            let stream = Counter::new(self.spec.seed, m as u64);
            for (row, i) in batch.indices.chunks_exact_mut(order).zip(first..) {
                row[m] = index(dim, skew.apply(stream.unit(i)));
            }
        }
        let stream = Counter::new(self.spec.seed, order as u64);
        let factors: Vec<_> =
            (0..order as u64).map(|m| Counter::new(self.spec.seed, PLANTED_STREAM + m)).collect();
        for ((row, value), i) in batch.indices.chunks_exact(order).zip(&mut batch.values).zip(first..) {
            *value = match self.spec.planted_rank {
                Some(rank) => planted(&factors, row, u64::from(rank)),
                None => self.spec.values.at(stream, i),
            };
        }
        Ok(batch)
    }
}

/// The index at fraction `part`, in [0, 1], of a mode with `dim` indices.
fn index(dim: u32, part: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to dim; rounds down")]
    let index = (f64::from(dim) * part) as u32;
    index.min(dim - 1)
}

/// The element at `row` of the model of `rank` components with these factors.
fn planted(factors: &[Counter], row: &[u32], rank: u64) -> f64 {
    let component = |r: u64| {
        factors
            .iter()
            .zip(row)
            .fold(1.0, |product, (factor, &j)| product * factor.unit(u64::from(j) * rank + r))
    };
    (0..rank).fold(0.0, |sum, r| sum + component(r))
}

impl Source for Generator {
    fn is_checked(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "generated tensor".into()
    }

    fn size(&self) -> Result<Option<Size>> {
        Ok(Some(Size { nnz: self.spec.nnz, order: self.spec.dims.len() }))
    }

    fn identity(&self) -> Result<Option<String>> {
        Ok(Some(format!("{:?}", self.spec)))
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        Ok(Some(self.shape.clone()))
    }

    fn memory(&self, threads: usize) -> SourceMemory {
        let batch = self.batch_bytes();
        SourceMemory { least: batch, most: BATCHES_PER_THREAD * threads as u64 * batch, help: "" }
    }

    fn limit(&mut self, bytes: u64) {
        self.group_max = (bytes / self.batch_bytes()).max(1);
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let n_batches = self.spec.nnz.div_ceil(BATCH_NNZ);
        let group_len = (BATCHES_PER_THREAD * rayon::current_num_threads() as u64).min(self.group_max);
        let mut next = 0;
        while next < n_batches {
            self.sys.check_cancelled()?;
            let end = n_batches.min(next + group_len);
            let group: Vec<u64> = (next..end).collect();
            let batches: Vec<_> = group.into_par_iter().map(|number| self.batch(number)).collect();
            for batch in batches {
                sink(batch?)?;
            }
            next = end;
        }
        Ok(Extent { dims: self.spec.dims.clone(), nnz: self.spec.nnz })
    }
}

#[cfg(test)]
#[expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the bits are what is promised; casts of small numbers"
)]
mod tests {
    use super::*;

    fn spec(dims: &[u64], nnz: u64) -> GenerateSpec {
        GenerateSpec { dims: dims.to_vec(), nnz, seed: 7, ..GenerateSpec::default() }
    }

    fn generate(spec: GenerateSpec, threads: usize) -> (Vec<u32>, Vec<f64>, Vec<usize>) {
        let sys = Sys::default();
        let (mut indices, mut values, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        let wanted = Extent { dims: spec.dims.clone(), nnz: spec.nnz };
        let mut generator = Generator::new(&sys, spec).unwrap();
        let extent = sys.pool(threads).unwrap().install(|| {
            generator.drain(&mut |batch| {
                sizes.push(batch.nnz());
                indices.extend(batch.indices);
                values.extend(batch.values);
                Ok(())
            })
        });
        assert_eq!(extent.unwrap(), wanted);
        (indices, values, sizes)
    }

    /// Computes every nonzero one at a time, as the module's documentation defines it.
    fn from_the_text(spec: &GenerateSpec) -> (Vec<u32>, Vec<f64>) {
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        let order = spec.dims.len() as u64;
        for i in 0..spec.nnz {
            let mut row = Vec::new();
            for m in 0..order {
                let u = Counter::new(spec.seed, m).unit(i);
                let s = match spec.skew[m as usize] {
                    Skew::One => u,
                    Skew::OneAndHalf => u * u.sqrt(),
                    Skew::Two => u * u,
                    Skew::TwoAndHalf => (u * u) * u.sqrt(),
                    Skew::Three => (u * u) * u,
                };
                let dim = spec.dims[m as usize];
                row.push(((dim as f64 * s).floor() as u64).min(dim - 1) as u32);
            }
            let stream = Counter::new(spec.seed, order);
            let value = match (spec.planted_rank, spec.values) {
                (Some(rank), _) => {
                    let mut sum = 0.0;
                    for r in 0..u64::from(rank) {
                        let mut product = 1.0;
                        for m in 0..order {
                            let at = u64::from(row[m as usize]) * u64::from(rank) + r;
                            product *= Counter::new(spec.seed, 64 + m).unit(at);
                        }
                        sum += product;
                    }
                    sum
                }
                (None, Values::Ones) => 1.0,
                (None, Values::Integers { lo, hi }) => {
                    lo as f64 + (stream.unit(i) * (hi - lo + 1) as f64).floor()
                }
                (None, Values::Uniform) => ((stream.bits(i) >> 12) as f64 + 0.5) / 2f64.powi(52),
            };
            indices.extend(row);
            values.push(value);
        }
        (indices, values)
    }

    #[test]
    fn is_what_the_text_says() {
        let skew = vec![Skew::One, Skew::OneAndHalf, Skew::Two, Skew::TwoAndHalf, Skew::Three];
        let base = GenerateSpec { skew, ..spec(&[5, 1, u64::from(u32::MAX), 1717, 30], 3000) };
        for values in [Values::Ones, Values::Integers { lo: -3, hi: 4 }, Values::Uniform] {
            for planted_rank in [None, Some(1), Some(3)] {
                let spec = GenerateSpec { values, planted_rank, ..base.clone() };
                let (indices, made, _) = generate(spec.clone(), 1);
                assert_eq!((indices, made), from_the_text(&spec), "{values:?} {planted_rank:?}");
            }
        }
    }

    #[test]
    fn batches_do_not_depend_on_threads() {
        let spec = GenerateSpec { values: Values::Uniform, ..spec(&[100, 200, 300], 10 * BATCH_NNZ + 1) };
        let (indices, values, sizes) = generate(spec.clone(), 1);
        assert_eq!(sizes.len(), 11);
        assert_eq!(sizes[10], 1);
        assert!(sizes[..10].iter().all(|&n| n as u64 == BATCH_NNZ));
        assert_eq!(generate(spec, 3), (indices, values, sizes));
    }

    #[test]
    fn values_keep_their_ranges() {
        let ints = GenerateSpec { values: Values::Integers { lo: 1, hi: 5 }, ..spec(&[2, 2], 5000) };
        let (_, values, _) = generate(ints, 2);
        for wanted in 1..=5 {
            let n = values.iter().filter(|&&v| v == f64::from(wanted)).count();
            assert!((800..1200).contains(&n), "{wanted}: {n}");
        }
        let uniform = GenerateSpec { values: Values::Uniform, ..spec(&[2, 2], 5000) };
        assert!(generate(uniform, 2).1.iter().all(|&v| v > 0.0 && v < 1.0));
        // The smallest result of the formula.
        assert_eq!((0.0 + 0.5) * 2f64.powi(-52), 2f64.powi(-53));
        assert_eq!((((1u64 << 52) - 1) as f64 + 0.5) * 2f64.powi(-52), 1.0 - 2f64.powi(-53));
    }

    #[test]
    fn skew_crowds_the_low_indices() {
        let share = |skew| {
            let spec = GenerateSpec { skew: vec![skew; 2], ..spec(&[1000, 1000], 4000) };
            generate(spec, 2).0.iter().filter(|&&i| i < 100).count()
        };
        let shares: Vec<_> =
            [Skew::One, Skew::OneAndHalf, Skew::Two, Skew::TwoAndHalf, Skew::Three].map(share).to_vec();
        assert!(shares.is_sorted() && shares[0] < 1000 && shares[4] > 3000, "{shares:?}");
    }

    #[test]
    fn indices_stay_below_the_dim() {
        for dim in [1, 2, 3, u32::MAX] {
            assert_eq!(index(dim, 1.0), dim - 1);
            assert_eq!(index(dim, 1.0 - 2f64.powi(-53)), dim - 1);
            assert_eq!(index(dim, 0.0), 0);
        }
    }

    #[test]
    fn words_of_the_command_line() {
        for (text, skew) in [("1", Skew::One), ("1.5", Skew::OneAndHalf), ("2", Skew::Two)] {
            assert_eq!(text.parse::<Skew>().unwrap(), skew);
        }
        assert_eq!("2.5".parse::<Skew>().unwrap(), Skew::TwoAndHalf);
        assert_eq!("3".parse::<Skew>().unwrap(), Skew::Three);
        assert_eq!("1".parse::<Values>().unwrap(), Values::Ones);
        assert_eq!("uniform".parse::<Values>().unwrap(), Values::Uniform);
        assert_eq!("1..5".parse::<Values>().unwrap(), Values::Integers { lo: 1, hi: 5 });
        assert_eq!("-5..-5".parse::<Values>().unwrap(), Values::Integers { lo: -5, hi: -5 });
        for (text, fragment) in [
            ("", "give 1, LO..HI"),
            ("2", "give 1, LO..HI"),
            ("1..", "give 1, LO..HI"),
            ("1..x", "give 1, LO..HI"),
            ("1..5.5", "give 1, LO..HI"),
            ("5..1", "smaller end first"),
            ("0..9007199254740993", "2^53"),
            ("-9007199254740992..9007199254740992", "2^53"),
            ("-9223372036854775808..9223372036854775807", "2^53"),
        ] {
            let message = text.parse::<Values>().unwrap_err().to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
        assert!("4".parse::<Skew>().unwrap_err().to_string().contains("2.5 or 3"));
    }

    #[test]
    fn wrong_specs_are_refused() {
        let good = spec(&[2, 3], 4);
        for (bad, fragment) in [
            (GenerateSpec { dims: vec![2], ..good.clone() }, "order 1"),
            (GenerateSpec { dims: vec![2, 0], ..good.clone() }, "dim 0"),
            (GenerateSpec { nnz: 0, ..good.clone() }, "at least one nonzero"),
            (GenerateSpec { skew: vec![Skew::One; 3], ..good.clone() }, "3 skews for 2 modes"),
            (GenerateSpec { values: Values::Integers { lo: 2, hi: 1 }, ..good.clone() }, "smaller end"),
            (GenerateSpec { planted_rank: Some(0), ..good.clone() }, "at least 1"),
        ] {
            let message = Generator::new(&Sys::default(), bad).unwrap_err().to_string();
            assert!(message.contains(fragment), "{message}");
        }
    }

    #[test]
    fn a_refusing_sink_ends_it() {
        let mut generator = Generator::new(&Sys::default(), spec(&[2, 3], 100 * BATCH_NNZ)).unwrap();
        let mut calls = 0;
        let result = generator.drain(&mut |_| {
            calls += 1;
            if calls == 3 { Err(Error::Cancelled) } else { Ok(()) }
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(calls, 3);
    }
}
