//! The dense update on the host: computes a mode's new factor from its MTTKRP.
//!
//! **One pass.** Each row of the sums is read once, and zeroed where the next pass adds to it. The factor's row is written once, and
//! everything else that the iteration needs of the new factor (its Gram matrix, its products with the sums) is added up
//! at the same time. Columns are not normalized: they keep their length, and [`super::Als`] accounts for it in rank x
//! rank matrices. No second pass over a factor is needed.
//!
//! **Tiny numbers.** Columns have a length near one, and numbers far below what rounding leaves of it count as zero. Otherwise rows of hypersparse
//! tensors go through numbers so small that their products are subnormal, which processors multiply slowly: for some
//! iterations, updates took three to four times as long, and passes half as long again.
//!
//! **In the pass.** Where MTTKRP hands over sums a segment at a time ([`RowsUpdate`]), new rows are made while these are in a core's
//! cache: large sums are neither written to memory nor read from it, and products overlap the pass's wait for memory.
//!
//! **Order of additions.** Rows are divided into parts by their number and the rank alone, and parts of long modes into segments. Blocks of
//! rows are added up within a segment, segments in order within a part, and the parts in order. The result therefore does not depend on threads or on the number of members
//! of a [`Collective`]. Matrix products are those of [`super::products`] or faer's, on one thread each; their last bits
//! depend on whether the machine fuses operations.

use super::collective::{Collective, add, sum};
use super::products::{Product, is_small};
use crate::dense::{Matrix, Real};
use crate::error::Result;
use crate::op::mttkrp::{LINE_BYTES, PastCaches, TakeSums, prefetch, segment_rows};
use crate::sys::sync::{Mutex, MutexGuard};
use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Numbers that vector instructions process together.
const LANES: usize = 8;
/// Rows of a block. A few blocks fit in the L1 cache.
const ROWS: usize = 128;
/// Rows that are updated together, for small ranks: those of the block behind are fetched from memory meanwhile.
const STEP: usize = 16;
/// The most parts.
const PARTS: usize = 64;
/// The largest rank of an update in the pass: products of longer rows take longer than reading sums.
const SEGMENTS_RANK: usize = 64;
/// The least number of a nonnegative factor whose columns have a length near one. So no column becomes zero, from which
/// it could not recover. It stands for zero.
pub const FLOOR: f64 = f64::EPSILON;
/// The most sweeps of HALS over a row.
const SWEEPS: usize = 50;
/// Sweeps end when one changes the row by less than this, relative to the first one's change.
const SWEEP: f64 = 0.01;

/// How rows `a` of a new factor follow from rows `m` of the sums. Matrices are rank x rank, the rest has rank numbers.
#[derive(Clone, Debug)]
pub enum Rule {
    /// `a = m matrix`.
    Linear {
        /// The matrix.
        matrix: Vec<f64>,
    },
    /// Hierarchical alternating least squares: each column in turn takes its best nonnegative values while the others are fixed. A row whose
    /// sums are zero is best zero, which [`FLOOR`] stands for.
    NonNegative {
        /// Inner products of the other modes' columns, with the ridge.
        gram: Vec<f64>,
        /// The multipliers of the columns of the sums.
        of_sums: Vec<f64>,
        /// The same for those of the old factor.
        of_old: Vec<f64>,
        /// The same for those of the result, before it is stored.
        of_new: Vec<f64>,
    },
}

/// Facts about a new factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    /// Inner products of its columns, rank x rank.
    pub gram: Vec<f64>,
    /// For each column, its inner product with the same column of the sums.
    pub inner: Vec<f64>,
}

impl Gram {
    /// From `gram`, then `inner`.
    pub(super) fn of_numbers(mut gram: Vec<f64>, rank: usize) -> Self {
        let inner = gram.split_off(rank * rank);
        Self { gram, inner }
    }

    /// `gram`, then `inner`.
    pub(super) fn numbers(self) -> Vec<f64> {
        [self.gram, self.inner].concat()
    }

    /// The sums of a factor's parts. The upper triangle stands for the lower.
    fn of(sums: Vec<f64>, rank: usize) -> Self {
        let Self { mut gram, inner } = Self::of_numbers(sums, rank);
        for (r, q) in (0..rank).flat_map(|r| (0..r).map(move |q| (r, q))) {
            gram[r * rank + q] = gram[q * rank + r];
        }
        Self { gram, inner }
    }
}

/// Parts of a factor's rows. A function of its shape alone.
pub(super) fn parts(rows: usize, rank: usize) -> usize {
    (rows / (4 * rank).max(256)).clamp(1, PARTS)
}

/// Numbers of a part; the last may have fewer.
pub(super) fn part_numbers(rows: usize, rank: usize) -> usize {
    let of_part = rows.div_ceil(parts(rows, rank));
    if has_segments(rows, rank) {
        of_part.next_multiple_of(segment_rows(rank)) * rank
    } else {
        of_part * rank
    }
}

/// Whether parts have several segments. A function of the shape alone.
fn has_segments(rows: usize, rank: usize) -> bool {
    rank <= SEGMENTS_RANK && rows > PARTS * segment_rows(rank)
}

/// Numbers of a segment; the last of a part may have fewer.
fn segment_numbers(rows: usize, rank: usize) -> usize {
    if has_segments(rows, rank) { segment_rows(rank) * rank } else { part_numbers(rows, rank) }
}

/// Bytes that an update or [`super::extended::gram`] holds.
#[must_use]
pub fn host_bytes(rows: usize, rank: usize) -> u64 {
    let segments = if has_segments(rows, rank) { rows.div_ceil(segment_rows(rank)) } else { 0 };
    let of_parts = parts(rows, rank) * ((rank + rank.max(ROWS) + 2) * rank + ROWS);
    ((of_parts + segments * (rank + 1) * rank) * size_of::<f64>()) as u64
}

/// Makes `factor` from the members' `sums`, which have its shape, by `rule`. With `zeroes`, sums are zero afterwards.
///
/// The factor is rounded to `T`, and the Gram matrix is that of the rounded factor.
pub fn update<T: Real>(
    sums: &mut [f64],
    factor: &mut Matrix<T>,
    rule: &Rule,
    zeroes: bool,
    members: &mut dyn Collective,
) -> Result<Gram> {
    let (factor_rows, rank) = (factor.rows(), factor.columns());
    let chunk = part_numbers(factor_rows, rank);
    let parts = members.owned(sums.len().div_ceil(chunk));
    let [from, to] = [parts.start, parts.end].map(|part| (part * chunk).min(sums.len()));
    members.reduce_scatter(sums, from..to)?;
    let rows = factor.data_mut()[from..to].par_chunks_mut(chunk);
    let parts = sums[from..to].par_chunks_mut(chunk).zip(rows).with_max_len(1);
    let segment = segment_numbers(factor_rows, rank);
    let part = |(sums, rows): (&mut [f64], &mut [T])| {
        let segments = sums.chunks_mut(segment).zip(rows.chunks_mut(segment));
        sum(segments.map(|(sums, rows)| Segment::updated(rank, rule, sums, rows, zeroes)), rank * (rank + 1))
    };
    let parts = parts.map(part).collect();
    let bytes = from * size_of::<T>()..to * size_of::<T>();
    members.gather(bytemuck::cast_slice_mut(factor.data_mut()), bytes)?;
    Ok(Gram::of(members.all_reduce(parts, rank * (rank + 1))?, rank))
}

/// The Gram matrix of `factor`, added up as [`update`] does.
#[must_use]
pub fn gram<T: Real>(factor: &Matrix<T>) -> Vec<f64> {
    let (rows, rank) = (factor.rows(), factor.columns());
    let (part, segment) = (part_numbers(rows, rank), segment_numbers(rows, rank));
    let of_part =
        |rows: &[T]| sum(rows.chunks(segment).map(|rows| Segment::measured(rank, rows)), rank * (rank + 1));
    let parts: Vec<_> = factor.data().par_chunks(part).with_max_len(1).map(of_part).collect();
    Gram::of(sum(parts, rank * (rank + 1)), rank).gram
}

/// An update in the pass, on the host, of one member alone: takes MTTKRP's sums and makes the factor's rows of them.
#[derive(Debug)]
pub struct RowsUpdate {
    rule: Rule,
    rank: usize,
    /// Whether an earlier update has set rows without nonzeros.
    is_settled: bool,
    /// Whether the mode's sums would exceed the caches.
    is_large: bool,
    /// Segments of a part.
    of_part: usize,
    parts: Vec<Mutex<PartSums>>,
}

/// What [`Segment`] adds up, of the first segments of a part.
#[derive(Debug, Default)]
struct PartSums {
    sums: Vec<f64>,
    /// Their number, and what came before its turn.
    segments: usize,
    waiting: BTreeMap<usize, Vec<f64>>,
}

impl PartSums {
    fn add(&mut self, segment: usize, sums: Vec<f64>) {
        self.waiting.insert(segment, sums);
        while let Some(next) = self.waiting.remove(&self.segments) {
            let sums = std::mem::take(&mut self.sums);
            self.sums = if self.segments == 0 { next } else { add(sums, next) };
            self.segments += 1;
        }
    }
}

impl RowsUpdate {
    /// By `rule`, of a factor of `rows` rows; nothing if it is not in segments. `is_settled` tells that rows without nonzeros are
    /// those of an earlier update, by the same kind of rule.
    #[must_use]
    pub fn new(rule: &Rule, rows: usize, rank: usize, is_settled: bool) -> Option<Self> {
        if !has_segments(rows, rank) {
            return None;
        }
        let (part, segment) = (part_numbers(rows, rank) / rank, segment_rows(rank));
        let parts = (0..rows.div_ceil(part)).map(|_| Mutex::default()).collect();
        let is_large = rows * rank * size_of::<f64>() > PastCaches::FROM_BYTES;
        Some(Self { rule: rule.clone(), rank, is_settled, is_large, of_part: part / segment, parts })
    }

    /// The facts about the new factor, once all segments were taken.
    #[must_use]
    pub fn gram(&self) -> Gram {
        let parts = self.parts.iter().map(|part| std::mem::take(&mut locked(part).sums));
        Gram::of(sum(parts, self.rank * (self.rank + 1)), self.rank)
    }
}

impl<T: Real> TakeSums<T> for RowsUpdate {
    fn take(&self, segment: usize, sums: &mut [f64], filled: &[u64], factor: &mut [T]) {
        let mut made = Segment::new(self.rank);
        made.filled = Some((filled, self.is_settled));
        made.is_large = self.is_large;
        made.update(&self.rule, sums, factor, false);
        locked(&self.parts[segment / self.of_part]).add(segment % self.of_part, made.gram);
    }
}

fn locked(part: &Mutex<PartSums>) -> MutexGuard<'_, PartSums> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sums of a segment's rows.
struct Segment<'a> {
    rank: usize,
    /// Inner products of the columns, rank x rank, in the upper triangle, and of the columns with those of the sums.
    gram: Vec<f64>,
    /// [`ROWS`] rows.
    block: Vec<f64>,
    /// The beginnings of the block's rows in the segment.
    starts: Vec<usize>,
    /// The beginnings of the block's columns.
    columns: Vec<usize>,
    /// A bit for each row that has nonzeros, if known, and whether an earlier update has set the others.
    filled: Option<(&'a [u64], bool)>,
    /// Whether the mode's sums would exceed the caches.
    is_large: bool,
}

impl Segment<'_> {
    fn new(rank: usize) -> Self {
        let (gram, block) = (vec![0.0; rank * (rank + 1)], vec![0.0; ROWS * rank]);
        let (starts, columns) = (Vec::with_capacity(ROWS), (0..rank).collect());
        Self { rank, gram, block, starts, columns, filled: None, is_large: false }
    }

    /// Makes `rows` from `sums`. Returns what it adds up.
    fn updated<T: Real>(
        rank: usize,
        rule: &Rule,
        sums: &mut [f64],
        rows: &mut [T],
        zeroes: bool,
    ) -> Vec<f64> {
        let mut segment = Self::new(rank);
        segment.update(rule, sums, rows, zeroes);
        segment.gram
    }

    /// The same of rows as they are, without sums.
    fn measured<T: Real>(rank: usize, rows: &[T]) -> Vec<f64> {
        let mut segment = Self::new(rank);
        segment.measure(rows);
        segment.gram
    }

    fn update<T: Real>(&mut self, rule: &Rule, sums: &mut [f64], rows: &mut [T], zeroes: bool) {
        let (rank, simd) = (self.rank, pulp::Arch::new());
        let is_linear = matches!(rule, Rule::Linear { .. });
        // What becomes of rows whose sums are zero, if they are not computed.
        let rest = (!is_linear || is_small(rank)).then_some(T::nearest(if is_linear { 0.0 } else { FLOOR }));
        let (block, step) = (ROWS * rank, if is_small(rank) { STEP } else { ROWS } * rank);
        let settled = self.filled.filter(|(_, is_settled)| *is_settled && rest.is_some());
        // Rows are whole cache lines, and nothing reads them before they are written: they need not come to the caches.
        let lines = size_of_val(&rows[..rank]).is_multiple_of(LINE_BYTES);
        let past = settled.is_some() && is_linear && self.is_large && lines;
        let fetched = if past { 0 } else { rows.len() };
        // Numbers of the block's new rows.
        let mut n = 0;
        for at in (0..rows.len()).step_by(step) {
            let ahead = (at + block).min(fetched)..(at + block + step).min(fetched);
            if let Some((filled, _)) = settled {
                let filled = ahead.step_by(rank).filter(|at| has(filled, at / rank));
                filled.for_each(|at| prefetch(&rows[at..][..rank]));
            } else {
                prefetch(&sums[ahead.clone()]);
                prefetch(&rows[ahead]);
            }
            let end = (at + step).min(rows.len());
            let (sums, rows) = (&mut sums[at..end], &mut rows[at..end]);
            let is_computed = |start: &usize| match self.filled {
                _ if rest.is_none() => true,
                Some((filled, _)) => has(filled, (at + start) / rank),
                None => sums[*start..][..rank].iter().any(|&x| x != 0.0),
            };
            self.starts.clear();
            self.starts.extend((0..rows.len()).step_by(rank).filter(is_computed));
            let starts = &self.starts[..];
            let new = &mut self.block[n..][..starts.len() * rank];
            n += new.len();
            match rule {
                Rule::Linear { matrix } if is_small(rank) => {
                    let (a, b) = (&*sums, matrix);
                    simd.dispatch(Product { rank, a, rows: starts, step: 1, b, c: new, adds_upper: false });
                }
                Rule::Linear { matrix } => {
                    let matrix = MatRef::from_row_major_slice(matrix, rank, rank);
                    let sums = MatRef::from_row_major_slice(sums, rows.len() / rank, rank);
                    let new = MatMut::from_row_major_slice_mut(new, rows.len() / rank, rank);
                    matmul(new, Accum::Replace, sums, matrix, 1.0, Par::Seq);
                }
                Rule::NonNegative { gram, of_sums, of_old, of_new } => {
                    let scales = [of_sums, of_old, of_new].map(|s| &s[..rank]);
                    simd.dispatch(Descend { sums, rows, starts, gram, scales, new });
                }
            }
            let inner = &mut self.gram[rank * rank..];
            let rest = if settled.is_some() { None } else { rest };
            simd.dispatch(StoreRows { sums, rows, starts, new, inner, zeroes, rest, past });
            if (at + step).is_multiple_of(block) {
                self.add_gram(n);
                n = 0;
            }
        }
        self.add_gram(n);
    }

    fn measure<T: Real>(&mut self, rows: &[T]) {
        for rows in rows.chunks(ROWS * self.rank) {
            self.block.iter_mut().zip(rows).for_each(|(new, a)| *new = a.widen());
            self.add_gram(rows.len());
        }
    }

    /// Adds the products of the columns of the rows in the first `n` numbers of the block.
    fn add_gram(&mut self, n: usize) {
        let rank = self.rank;
        if n == 0 {
            return;
        }
        if is_small(rank) {
            let (x, c, rows) = (&self.block[..n], &mut self.gram[..rank * rank], &self.columns);
            let product = Product { rank, a: x, rows, step: rank, b: x, c, adds_upper: true };
            return pulp::Arch::new().dispatch(product);
        }
        let rows = MatRef::from_row_major_slice(&self.block[..n], n / self.rank, self.rank);
        triangular::matmul(
            MatMut::from_row_major_slice_mut(&mut self.gram[..self.rank * self.rank], self.rank, self.rank),
            BlockStructure::TriangularUpper,
            Accum::Add,
            rows.transpose(),
            BlockStructure::Rectangular,
            rows,
            BlockStructure::Rectangular,
            1.0,
            Par::Seq,
        );
    }
}

/// Stores the rows `new` in `rows` where `starts` says, rounded, with tiny numbers as zero, and leaves them so. Adds
/// the products of `new` with the sums to `inner`.
struct StoreRows<'a, T> {
    sums: &'a mut [f64],
    rows: &'a mut [T],
    starts: &'a [usize],
    new: &'a mut [f64],
    inner: &'a mut [f64],
    zeroes: bool,
    /// What all numbers of other rows become, unless they are that already.
    rest: Option<T>,
    /// Whether rows are stored past the caches.
    past: bool,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<T: Real> pulp::WithSimd for StoreRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { sums, rows, starts, new, inner, zeroes, rest, past } = self;
        let stores = past.then(PastCaches::begin);
        let fill = |rows: &mut [T]| rest.iter().for_each(|&x| fill(rows, x));
        let rank = inner.len();
        let mut at = 0;
        for (&start, new) in starts.iter().zip(new.chunks_exact_mut(rank)) {
            fill(&mut rows[at..start]);
            at = start + rank;
            let (m, a) = (&mut sums[start..at], &mut rows[start..at]);
            let mut room = [T::nearest(0.0); SEGMENTS_RANK];
            let nearest = if stores.is_some() { &mut room[..rank] } else { &mut *a };
            for (((m, nearest), new), inner) in m.iter().zip(nearest).zip(new).zip(&mut *inner) {
                *nearest = T::nearest(if new.abs() < T::TINY { 0.0 } else { *new });
                *new = nearest.widen();
                *inner += m * *new;
            }
            if let Some(stores) = &stores {
                stores.copy(&room[..rank], a);
            }
            if zeroes {
                m.fill(0.0);
            }
        }
        fill(&mut rows[at..]);
    }
}

/// Sets all numbers of `rows` to `x`. Memory is written only if they are not: rows without nonzeros stay as the first update leaves them.
#[inline(always)]
fn fill<T: Real>(rows: &mut [T], x: T) {
    if rows.iter().any(|y| *y != x) {
        rows.fill(x);
    }
}

/// Whether bit `row` is set.
#[inline(always)]
fn has(bits: &[u64], row: usize) -> bool {
    bits[row / 64] >> (row % 64) & 1 == 1
}

/// [`descend`] for each row.
struct Descend<'a, T> {
    sums: &'a [f64],
    rows: &'a [T],
    starts: &'a [usize],
    gram: &'a [f64],
    scales: [&'a [f64]; 3],
    new: &'a mut [f64],
}

impl<T: Real> pulp::WithSimd for Descend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let rank = self.scales[0].len();
        for (&start, new) in self.starts.iter().zip(self.new.chunks_exact_mut(rank)) {
            let (m, a) = (&self.sums[start..][..rank], &self.rows[start..][..rank]);
            descend(m, a, self.gram, self.scales, new);
        }
    }
}

/// The inner product of two rows.
#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut lanes, mut a, mut b) = ([0.0; LANES], a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in (&mut a).zip(&mut b) {
        lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += a * b);
    }
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f64>() + rest
}

/// HALS of a row: `m` of the sums, `a` of the old factor, and the multipliers of each and of the result. Sweeps over
/// the columns end when one changes the row by less than [`SWEEP`] of the first one's change (Gillis and Glineur,
/// Neural Computation 24, 2012, section 4.2): the pass costs far more than the sweeps.
#[inline(always)]
fn descend<T: Real>(m: &[f64], a: &[T], gram: &[f64], scales: [&[f64]; 3], new: &mut [f64]) {
    let (rank, [of_sums, of_old, of_new]) = (new.len(), scales);
    // A row whose sums are zero is best zero, and begins there.
    let has_sums = m.iter().any(|&x| x != 0.0);
    for (new, (a, s)) in new.iter_mut().zip(a.iter().zip(of_old)) {
        *new = if has_sums { a.widen() * s } else { 0.0 };
    }
    let mut first = 0.0;
    for sweep in 0..SWEEPS {
        let mut change = 0.0;
        for (r, (m, s)) in m.iter().zip(of_sums).enumerate() {
            let gram = &gram[r * rank..][..rank];
            // A given column of zeros, about which nothing is known.
            let better = if gram[r] > 0.0 { new[r] + (m * s - dot(gram, new)) / gram[r] } else { 0.0 };
            let x = better.max(0.0);
            change += (x - new[r]) * (x - new[r]);
            new[r] = x;
        }
        if sweep == 0 {
            first = change;
        }
        if change <= SWEEP * SWEEP * first {
            break;
        }
    }
    new.iter_mut().zip(of_new).for_each(|(new, s)| *new = (*new * s).max(FLOOR));
}

#[cfg(test)]
mod tests {
    use super::super::collective::Local;
    use super::*;
    use crate::random::Counter;

    fn random(n: usize, stream: u64) -> Vec<f64> {
        (0..n as u64).map(|i| Counter::new(5, stream).unit(i) - 0.5).collect()
    }

    /// Ranks around the lanes, rows around blocks and parts.
    #[test]
    fn a_linear_update_is_a_product_with_its_gram() {
        for (rows, rank) in [(1, 1), (7, 3), (33, 8), (100, 9), (2000, 16), (2000, 17)] {
            let (mut m, w) = (random(rows * rank, 0), random(rank * rank, 1));
            // Rows without nonzeros.
            m.chunks_mut(rank).skip(1).step_by(3).for_each(|row| row.fill(0.0));
            m.chunks_mut(rank).skip(500).take(2 * ROWS).for_each(|row| row.fill(0.0));
            let (mut sums, mut factor) =
                (m.clone(), Matrix::from_rows(rows, rank, vec![f64::NAN; rows * rank]));
            let got = update(&mut sums, &mut factor, &Rule::Linear { matrix: w.clone() }, true, &mut Local)
                .unwrap();
            assert!(sums.iter().all(|&x| x == 0.0));
            let wanted =
                |i: usize, r: usize| (0..rank).map(|k| m[i * rank + k] * w[k * rank + r]).sum::<f64>();
            let tolerance = 4.0 * rows as f64 * rank as f64 * f64::EPSILON;
            for i in 0..rows {
                (0..rank).for_each(|r| assert!((factor.row(i)[r] - wanted(i, r)).abs() <= tolerance));
            }
            for r in 0..rank {
                let inner: f64 = (0..rows).map(|i| m[i * rank + r] * factor.row(i)[r]).sum();
                assert!((got.inner[r] - inner).abs() <= tolerance);
                for q in 0..rank {
                    let dot: f64 = (0..rows).map(|i| factor.row(i)[r] * factor.row(i)[q]).sum();
                    assert!((got.gram[r * rank + q] - dot).abs() <= tolerance, "{rows} x {rank}");
                }
            }
            assert_eq!(gram(&factor), got.gram);
        }
    }

    /// Rows of numbers below what rounding leaves of others become zero.
    #[test]
    fn tiny_numbers_become_zero() {
        fn check<T: Real>() {
            let rank = 8;
            let (mut sums, mut factor) =
                (vec![1.0; 2 * rank], Matrix::from_rows(2, rank, vec![T::nearest(1.0); 2 * rank]));
            sums[rank..].fill(0.9 * T::TINY);
            let identity = (0..rank * rank).map(|i| if i % (rank + 1) == 0 { 1.0 } else { 0.0 }).collect();
            update(&mut sums, &mut factor, &Rule::Linear { matrix: identity }, false, &mut Local).unwrap();
            let wanted = [T::nearest(1.0), T::nearest(0.0)].map(|x| vec![x; rank]).concat();
            assert_eq!(factor.data(), wanted);
        }
        check::<f64>();
        check::<f32>();
    }

    #[test]
    fn threads_do_not_matter() {
        let (rows, rank) = (5000, 11);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (mut sums, mut factor) =
                (random(rows * rank, 0), Matrix::<f32>::from_rows(rows, rank, vec![0.0; rows * rank]));
            let rule = Rule::Linear { matrix: random(rank * rank, 1) };
            (pool.install(|| update(&mut sums, &mut factor, &rule, true, &mut Local)).unwrap(), factor)
        };
        assert_eq!(run(1), run(3));
    }

    /// After many sweeps no column can be improved: if a number is positive, the slope is zero; if it is zero, the
    /// slope points down.
    #[test]
    fn hals_ends_where_nothing_can_be_bettered() {
        let (rows, rank) = (40, 5);
        let basis = random(9 * rank, 2);
        let gram: Vec<f64> = (0..rank * rank)
            .map(|i| (0..9).map(|k| basis[k * rank + i / rank] * basis[k * rank + i % rank]).sum())
            .collect();
        let mut m = random(rows * rank, 0);
        m[..rank].fill(0.0);
        let ones = vec![1.0; rank];
        let (of_sums, of_old, of_new) = (vec![2.0; rank], ones.clone(), ones);
        let rule = Rule::NonNegative { gram: gram.clone(), of_sums, of_old, of_new };
        let mut factor = Matrix::from_rows(rows, rank, vec![0.5; rows * rank]);
        update(&mut m.clone(), &mut factor, &rule, true, &mut Local).unwrap();
        assert!(factor.row(0).iter().all(|&x| x == FLOOR), "a row whose sums are zero");
        (0..3000).for_each(|_| drop(update(&mut m.clone(), &mut factor, &rule, true, &mut Local)));
        for i in 0..rows {
            for r in 0..rank {
                let a = factor.row(i);
                let slope = 2.0 * m[i * rank + r] - (0..rank).map(|k| a[k] * gram[k * rank + r]).sum::<f64>();
                assert!(
                    a[r] >= FLOOR && slope < 1e-9 && (a[r] <= FLOOR || slope > -1e-9),
                    "{} {slope}",
                    a[r]
                );
            }
        }
        assert!(factor.data().contains(&FLOOR));
    }
}
