//! MTTKRP, the matricized tensor times Khatri-Rao product (Nguyen et al., ICS 2022, section 2.3): for mode m,
//! `M[i_m, :] += value * product over k != m of A_k[i_k, :]` for every nonzero, `M` being `dims[m]` x rank.
//!
//! Any set of modes is computed from one pass. On the host the result depends on the store's nonzeros, the
//! factors and the precision alone: not on threads, workers or the chunk size, and not on the machine's vector
//! width (nothing is fused).
//!
//! **Order of additions.** A mode whose result is short is accumulated in [`COPIES`] copies: tile t adds to
//! copy t mod [`COPIES`], in linear order, and the copies are added in order at the end. A longer mode's
//! rows are accumulated in linear order directly. Products are in the precision of the factors, value first,
//! then the modes in ascending order; sums are in f64 always, so that f32 results do not lose the small
//! terms of long rows.

#[cfg(feature = "cuda")]
pub mod cuda;
mod kernel;

use crate::backend::host::{Batch, HostOp};
use crate::dense::{Matrix, Real};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use crate::shape::Shape;
use crate::sys::Sys;
use rayon::prelude::*;
use std::borrow::Cow;

/// The result of a mode, with the mode, from 0.
pub type ModeMatrix<T> = (usize, Matrix<T>);

/// Copies of the result of a short mode.
pub const COPIES: usize = 8;
/// The largest result, in bytes, that is accumulated in copies.
const COPY_BYTES_MAX: u64 = 1 << 20;
/// One in this many nonzeros of a batch is looked at to part its rows evenly.
const SAMPLE: usize = 32;

/// MTTKRP of some modes on the host.
#[derive(Debug)]
pub struct Mttkrp<'a, T: Clone> {
    factors: Cow<'a, [Matrix<T>]>,
    rank: usize,
    threads: usize,
    simd: pulp::Arch,
    results: Vec<Accumulator>,
    sample: Vec<u32>,
}

/// The sums of one mode while they grow.
#[derive(Debug)]
struct Accumulator {
    mode: usize,
    rows: usize,
    copies: usize,
    /// `copies` matrices of `rows` x rank, one behind the other, then room that this mode does not need.
    sums: Vec<f64>,
    /// Rows at which a batch is parted between tasks, when there is one copy: parts + 1 of them.
    cuts: Vec<usize>,
}

/// The sums of a mode after a pass.
#[derive(Debug)]
pub struct Sums<'s> {
    /// `copies` matrices, one behind the other.
    sums: &'s mut [f64],
    copies: usize,
}

impl<'s> Sums<'s> {
    /// One matrix, row after row: the copies added up in order. The others are zero afterwards.
    #[must_use]
    pub fn fold(self) -> &'s mut [f64] {
        let one = self.sums.len() / self.copies;
        let (first, others) = self.sums.split_at_mut(one);
        for other in others.chunks_exact_mut(one) {
            first.par_iter_mut().zip(other).for_each(|(a, b)| *a += std::mem::take(b));
        }
        first
    }
}

/// The part of one mode's sums that one task adds to.
struct Task<'a> {
    mode: usize,
    /// Tiles whose number is `copy` modulo `copies`.
    copy: usize,
    copies: usize,
    /// Rows `first_row` and on, as many as `sums` holds.
    first_row: usize,
    sums: &'a mut [f64],
}

/// Copies of the sums of a mode of `rows` rows. A function of the shape and the rank alone.
fn copies(rows: usize, rank: usize) -> usize {
    let bytes = (rows as u64).saturating_mul(rank as u64).saturating_mul(8);
    if bytes <= COPY_BYTES_MAX { COPIES } else { 1 }
}

/// Bytes that [`Mttkrp::alternating`] holds: all factors and the largest sums.
#[must_use]
pub fn alternating_bytes<T: Real>(shape: &Shape, rank: usize) -> u64 {
    let elements = |&dim: &u32| u64::from(dim) * rank as u64;
    let factors: u64 = shape.dims().iter().map(elements).sum();
    let sums = shape.dims().iter().map(|d| elements(d) * copies(*d as usize, rank) as u64).max();
    factors * size_of::<T>() as u64 + sums.unwrap_or(0) * size_of::<f64>() as u64
}

/// Bytes that MTTKRP of `modes` holds on the host, factors and results included.
#[must_use]
pub fn host_bytes<T: Real>(shape: &Shape, modes: &[usize], rank: usize) -> u64 {
    let matrix = |m: usize, element: usize| u64::from(shape.dims()[m]) * rank as u64 * element as u64;
    let factors: u64 = (0..shape.order()).map(|m| matrix(m, size_of::<T>())).sum();
    let sums = |m: usize| matrix(m, 8) * copies(shape.dims()[m] as usize, rank) as u64;
    let converted = |m: usize| if size_of::<T>() == 8 { 0 } else { matrix(m, size_of::<T>()) };
    factors + modes.iter().map(|&m| sums(m) + converted(m)).sum::<u64>()
}

impl<'a, T: Real> Mttkrp<'a, T> {
    /// MTTKRP of `modes`, from 0, with `factors[m]` `dims[m]` x rank; runs on the current pool of `threads`.
    pub fn new(sys: &Sys, factors: &'a [Matrix<T>], modes: &[usize], threads: usize) -> Result<Self> {
        let rank = factors[0].columns();
        let accumulator = |&mode: &usize| {
            let rows = factors[mode].rows();
            let copies = copies(rows, rank);
            let cuts = Vec::with_capacity(threads + 1);
            Ok(Accumulator { mode, rows, copies, sums: sys.vec(0.0, copies * rows * rank)?, cuts })
        };
        if let Some(mode) = modes.iter().find(|&&m| m >= factors.len()) {
            return Err(Error::request(format!("mode {} of a tensor of order {}", mode + 1, factors.len())));
        }
        let results = modes.iter().map(accumulator).collect::<Result<_>>()?;
        let factors = Cow::Borrowed(factors);
        Ok(Self { factors, rank, threads, simd: pulp::Arch::new(), results, sample: Vec::new() })
    }

    /// MTTKRP of one mode at a time, which [`Mttkrp::aim`] names, with factors that change between passes; it has
    /// none until [`Mttkrp::put`].
    pub fn alternating(sys: &Sys, shape: &Shape, rank: usize, threads: usize) -> Result<Mttkrp<'static, T>> {
        let room = shape.dims().iter().map(|&d| copies(d as usize, rank) * d as usize * rank).max();
        let sums = sys.vec(0.0, room.unwrap_or(0))?;
        let results = vec![Accumulator { mode: 0, rows: 0, copies: 1, sums, cuts: Vec::new() }];
        let (factors, simd) = (Cow::Owned(Vec::new()), pulp::Arch::new());
        Ok(Mttkrp { factors, rank, threads, simd, results, sample: Vec::new() })
    }

    /// Takes `factors` of the shape and rank that this was made for and returns those that it had.
    pub fn put(&mut self, factors: Vec<Matrix<T>>) -> Vec<Matrix<T>> {
        std::mem::replace(self.factors.to_mut(), factors)
    }

    /// The factors.
    #[must_use]
    pub fn factors(&self) -> &[Matrix<T>] {
        &self.factors
    }

    /// The next pass computes `mode`. The sums must be zero, as whoever took them left them.
    pub fn aim(&mut self, mode: usize) {
        let rows = self.factors[mode].rows();
        let result = &mut self.results[0];
        (result.mode, result.rows, result.copies) = (mode, rows, copies(rows, self.rank));
    }

    /// The sums of the mode that [`Mttkrp::aim`] named, to be left zero, and the mode's factor, which may change.
    pub fn sums_and_factor(&mut self) -> (Sums<'_>, &mut Matrix<T>) {
        let result = &mut self.results[0];
        let (copies, factor) = (result.copies, &mut self.factors.to_mut()[result.mode]);
        (Sums { sums: result.sums_mut(self.rank), copies }, factor)
    }

    /// Sets all sums to zero, for another pass.
    pub fn reset(&mut self) {
        for result in &mut self.results {
            result.sums.par_iter_mut().for_each(|x| *x = 0.0);
        }
    }

    /// The results so far, with their modes: copies added up in order, rounded to `T`.
    #[must_use]
    pub fn finish(self) -> Vec<ModeMatrix<T>> {
        let rank = self.rank;
        let finish = |mut result: Accumulator| {
            let copies = result.copies;
            let one = Sums { sums: result.sums_mut(rank), copies }.fold().len();
            result.sums.truncate(one);
            (result.mode, Matrix::from_rows(result.rows, rank, T::from_f64s(result.sums)))
        };
        self.results.into_iter().map(finish).collect()
    }
}

impl<T: Real> HostOp for Mttkrp<'_, T> {
    fn batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let (rank, threads, factors, simd) = (self.rank, self.threads, &*self.factors, self.simd);
        let mut tasks = Vec::with_capacity(self.results.len() * COPIES.max(threads));
        for result in &mut self.results {
            if result.copies == 1 {
                part_rows(batch, result, threads, &mut self.sample);
            }
            result.tasks(rank, &mut tasks);
        }
        let tasks = tasks.into_par_iter().with_max_len(1);
        tasks.for_each(|task| simd.dispatch(Run { task, batch, factors, rank }));
        Ok(())
    }
}

impl Accumulator {
    /// All copies.
    fn sums_mut(&mut self, rank: usize) -> &mut [f64] {
        &mut self.sums[..self.copies * self.rows * rank]
    }

    /// Appends the tasks of this mode: one for each copy, or for each part of the rows.
    fn tasks<'s>(&'s mut self, rank: usize, tasks: &mut Vec<Task<'s>>) {
        let (mode, copies) = (self.mode, self.copies);
        let (one, all) = (self.rows * rank, self.copies * self.rows * rank);
        if copies > 1 {
            let parts = self.sums[..all].chunks_exact_mut(one).enumerate();
            tasks.extend(parts.map(|(copy, sums)| Task { mode, copy, copies, first_row: 0, sums }));
            return;
        }
        let mut rest = &mut self.sums[..all];
        for cut in self.cuts.windows(2) {
            let (sums, behind) = std::mem::take(&mut rest).split_at_mut((cut[1] - cut[0]) * rank);
            tasks.push(Task { mode, copy: 0, copies: 1, first_row: cut[0], sums });
            rest = behind;
        }
    }
}

/// Cuts the rows into a part for each thread, even by a sample of the batch's nonzeros. Parts do not change
/// what is computed: every row belongs to one task, which takes its nonzeros in order.
fn part_rows(batch: &Batch<'_>, result: &mut Accumulator, threads: usize, sample: &mut Vec<u32>) {
    result.cuts.clear();
    result.cuts.push(0);
    if threads > 1 {
        sample.clear();
        for t in 0..batch.tiles() {
            sample.extend(batch.tile(t).column(result.mode).iter().step_by(SAMPLE));
        }
        sample.sort_unstable();
        let cuts = (1..threads).map(|p| sample.get(p * sample.len() / threads).map_or(0, |&r| r as usize));
        result.cuts.extend(cuts);
    }
    result.cuts.push(result.rows);
}

/// A task with what it works on.
struct Run<'a, 's, T> {
    task: Task<'s>,
    batch: &'a Batch<'a>,
    factors: &'a [Matrix<T>],
    rank: usize,
}

/// Compiled for the vectors that the machine has; not a closure, for the reason that stands in `backend::host`.
impl<T: Real> pulp::WithSimd for Run<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, _: S) {
        self.task.run(self.batch, self.factors, self.rank);
    }
}

impl Task<'_> {
    /// Adds what the batch's nonzeros contribute to the task's part.
    #[inline(always)]
    fn run<T: Real>(&mut self, batch: &Batch<'_>, factors: &[Matrix<T>], rank: usize) {
        let rows = self.first_row..self.first_row + self.sums.len() / rank;
        if rows.is_empty() {
            return;
        }
        let mut listed = [0u16; TILE_NNZ];
        for t in 0..batch.tiles() {
            if (batch.first_tile + t as u64) % self.copies as u64 != self.copy as u64 {
                continue;
            }
            let tile = batch.tile(t);
            let (low, high) = (tile.low[self.mode] as usize, tile.high[self.mode] as usize);
            if rows.contains(&low) && rows.contains(&high) {
                self.add(&tile, factors, rank, None);
            } else if low < rows.end && high >= rows.start {
                let n = list_inside(&tile, self.mode, &rows, &mut listed);
                self.add(&tile, factors, rank, Some(&listed[..n]));
            }
        }
    }

    #[inline(always)]
    fn add<T: Real>(
        &mut self,
        tile: &DecodedTile<'_>,
        factors: &[Matrix<T>],
        rank: usize,
        listed: Option<&[u16]>,
    ) {
        let target = kernel::Target { mode: self.mode, first_row: self.first_row, rank };
        kernel::add_tile(tile, factors, target, listed, self.sums);
    }
}

/// Lists the nonzeros of a tile whose row of `mode` is inside `rows`, without a branch for each.
#[inline(always)]
fn list_inside(
    tile: &DecodedTile<'_>,
    mode: usize,
    rows: &std::ops::Range<usize>,
    listed: &mut [u16; TILE_NNZ],
) -> usize {
    let mut n = 0;
    for (i, &row) in (0u16..).zip(tile.column(mode)) {
        listed[n] = i;
        n += usize::from(rows.contains(&(row as usize)));
    }
    n
}
