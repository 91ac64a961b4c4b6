//! MTTKRP, the matricized tensor times Khatri-Rao product (Nguyen et al., ICS 2022, section 2.3): for mode m,
//! `M[i_m, :] += value * product over k != m of A_k[i_k, :]` for every nonzero, `M` being `dims[m]` x rank.
//!
//! Any set of modes is computed from one pass. On the host the result depends on the store's nonzeros, the
//! factors and the precision alone: not on threads, workers or the chunk size, nor on what other modes are computed, and not on the machine's vector
//! width (nothing is fused).
//!
//! **Order of additions.** Nonzeros are worked on in groups of `group::GROUP_TILES` tiles, cut by position in the store. A mode whose result is short is
//! accumulated in `group::COPIES` copies: group g adds to copy g modulo that, in linear order, and the copies are added in order at the end. In a longer mode a group
//! adds up what each row gets from it, in linear order, and groups are added to the result in order. Products are in the precision of the factors, in the order that
//! `kernel` states; sums are in f64 always, so that f32 results do not lose the small terms of long rows.
//!
//! **Threads.** Groups are parted between threads; then the rows of every result are, each thread adding what all groups have for its rows.

#[cfg(feature = "cuda")]
pub mod cuda;
mod group;
mod kernel;
mod slots;

pub use group::Strategy;

use crate::backend::host::{Batch, HostOp, Vectors};
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::sys::Sys;
use group::{COPIES, Commit, GROUP_NNZ, GROUP_TILES, Group, Inputs, Scratch, Work};
use rayon::prelude::*;
use slots::Rows;
use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

/// The result of a mode, with the mode, from 0.
pub type ModeMatrix<T> = (usize, Matrix<T>);

/// One in this many rows that groups have met is looked at to part rows evenly.
const SAMPLE: usize = 16;

/// MTTKRP of some modes on the host.
#[derive(Debug)]
pub struct Mttkrp<'a, T: Clone> {
    factors: Cow<'a, [Matrix<T>]>,
    rank: usize,
    /// Elements from one row to the next in slots and copies.
    stride: usize,
    threads: usize,
    vectors: Vectors,
    results: Vec<Accumulator>,
    modes: Vec<(usize, Strategy)>,
    /// Whether they are all modes, in order.
    all: bool,
    /// The factors of modes with copies, aligned, when all modes are computed.
    aligned: Vec<Rows<T>>,
    groups: Vec<Group>,
    /// Copies of the results of short modes, by mode in each. A group in work alone locks one.
    copies: Vec<Mutex<Vec<Rows<f64>>>>,
    /// Whether the first group is not whole yet: it goes on with the next batch.
    open: bool,
    /// One for each thread, which alone locks it.
    scratch: Vec<Mutex<Scratch<T>>>,
    sample: Vec<u32>,
}

/// The sums of one mode while they grow.
#[derive(Debug)]
struct Accumulator {
    mode: usize,
    rows: usize,
    /// `rows` x rank, then room that this mode does not need.
    sums: Vec<f64>,
    /// Rows at which they are parted between threads: parts + 1 of them.
    cuts: Vec<usize>,
}

/// The memory that is taken apart from factors and results.
struct Room {
    groups: usize,
    threads: usize,
    rank: usize,
    stride: usize,
    /// The most slots of each mode that is computed.
    slots: Vec<usize>,
    /// The most rows of its copies.
    copied: Vec<usize>,
    all: bool,
}

impl Room {
    /// For modes of `rows` rows each, factors in `T`.
    fn new<T>(rows: &[usize], rank: usize, all: bool, threads: usize) -> Self {
        // As many as there are copies, so that no two in work share one.
        let groups = if threads == 1 { 1 } else { COPIES };
        let of = |strategy| {
            let rows_of = move |&rows: &usize| if Strategy::of(rows, rank) == strategy { rows } else { 0 };
            rows.iter().map(rows_of)
        };
        let slots = of(Strategy::Slots).map(|rows| rows.min(GROUP_NNZ)).collect();
        Self {
            groups,
            threads,
            rank,
            stride: kernel::stride::<T>(rank),
            slots,
            copied: of(Strategy::Copies).collect(),
            all,
        }
    }

    /// For any one mode of `shape` at a time.
    fn for_any<T>(shape: &Shape, rank: usize, threads: usize) -> Self {
        let each = |dim: &u32| Self::new::<T>(&[*dim as usize], rank, false, threads);
        let most = |a: Self, b: Self| {
            let (slots, copied) = (a.slots[0].max(b.slots[0]), a.copied[0].max(b.copied[0]));
            Self { slots: vec![slots], copied: vec![copied], ..a }
        };
        shape.dims().iter().map(each).reduce(most).expect("a shape has modes")
    }

    fn bytes<T: Real>(&self) -> u64 {
        let copied: usize = self.copied.iter().map(|rows| rows * self.stride).sum();
        let aligned = if self.all { copied * size_of::<T>() } else { 0 };
        self.groups as u64 * Group::bytes(&self.slots, self.stride)
            + self.threads as u64 * Scratch::<T>::bytes(&self.slots, self.stride, self.all)
            + (COPIES * copied * size_of::<f64>() + aligned) as u64
    }
}

/// Whether `modes` are all of a tensor of `order`, in order.
fn are_all(modes: &[usize], order: usize) -> bool {
    modes.iter().copied().eq(0..order)
}

/// How each of `modes` is computed.
#[must_use]
pub fn strategies(shape: &Shape, modes: &[usize], rank: usize) -> Vec<Strategy> {
    modes.iter().map(|&m| Strategy::of(shape.dims()[m] as usize, rank)).collect()
}

/// Bytes that [`Mttkrp::alternating`] holds: all factors, the largest sums, and what groups need.
#[must_use]
pub fn alternating_bytes<T: Real>(shape: &Shape, rank: usize, threads: usize) -> u64 {
    let elements = |&dim: &u32| u64::from(dim) * rank as u64;
    let factors: u64 = shape.dims().iter().map(elements).sum();
    let sums = shape.dims().iter().map(elements).max();
    let room = Room::for_any::<T>(shape, rank, threads);
    factors * size_of::<T>() as u64 + sums.unwrap_or(0) * size_of::<f64>() as u64 + room.bytes::<T>()
}

/// Bytes that MTTKRP of `modes` holds on the host, factors and results included.
#[must_use]
pub fn host_bytes<T: Real>(shape: &Shape, modes: &[usize], rank: usize, threads: usize) -> u64 {
    let matrix = |m: usize, element: usize| u64::from(shape.dims()[m]) * rank as u64 * element as u64;
    let factors: u64 = (0..shape.order()).map(|m| matrix(m, size_of::<T>())).sum();
    let converted = |m: usize| if size_of::<T>() == 8 { 0 } else { matrix(m, size_of::<T>()) };
    let rows: Vec<usize> = modes.iter().map(|&m| shape.dims()[m] as usize).collect();
    let room = Room::new::<T>(&rows, rank, are_all(modes, shape.order()), threads);
    factors + modes.iter().map(|&m| matrix(m, 8) + converted(m)).sum::<u64>() + room.bytes::<T>()
}

impl<'a, T: Real> Mttkrp<'a, T> {
    /// MTTKRP of `modes`, from 0, with `factors[m]` `dims[m]` x rank; runs on the current pool of `threads`.
    pub fn new(sys: &Sys, factors: &'a [Matrix<T>], modes: &[usize], threads: usize) -> Result<Self> {
        let rank = factors[0].columns();
        if let Some(mode) = modes.iter().find(|&&m| m >= factors.len()) {
            return Err(Error::request(format!("mode {} of a tensor of order {}", mode + 1, factors.len())));
        }
        let accumulator = |&mode: &usize| {
            let rows = factors[mode].rows();
            let cuts = Vec::with_capacity(threads + 1);
            Ok(Accumulator { mode, rows, sums: sys.vec(0.0, rows * rank)?, cuts })
        };
        let results = modes.iter().map(accumulator).collect::<Result<_>>()?;
        let rows: Vec<usize> = modes.iter().map(|&m| factors[m].rows()).collect();
        let room = Room::new::<T>(&rows, rank, are_all(modes, factors.len()), threads);
        let mut mttkrp = Self::with_room(sys, Cow::Borrowed(factors), results, &room)?;
        if room.all {
            let stride = room.stride;
            let aligned = |(factor, &(_, strategy)): (&Matrix<T>, &(usize, Strategy))| match strategy {
                Strategy::Copies => Rows::of(sys, factor, stride),
                Strategy::Slots => Rows::new(sys, 0),
            };
            mttkrp.aligned = factors.iter().zip(&mttkrp.modes).map(aligned).collect::<Result<_>>()?;
        }
        Ok(mttkrp)
    }

    fn with_room(
        sys: &Sys,
        factors: Cow<'a, [Matrix<T>]>,
        results: Vec<Accumulator>,
        room: &Room,
    ) -> Result<Self> {
        let (rank, stride) = (room.rank, room.stride);
        let scratch = |_| Scratch::new(sys, &room.slots, stride, room.all).map(Mutex::new);
        let copy = |&rows: &usize| {
            let mut sums = Rows::new(sys, rows * stride)?;
            sums.grow(rows * stride);
            Ok(sums)
        };
        let copies = |_| Ok(Mutex::new(room.copied.iter().map(copy).collect::<Result<_>>()?));
        Ok(Self {
            factors,
            rank,
            stride,
            threads: room.threads,
            vectors: Vectors::Widest,
            modes: results.iter().map(|r| (r.mode, Strategy::of(r.rows, rank))).collect(),
            results,
            all: room.all,
            aligned: Vec::new(),
            groups: (0..room.groups).map(|_| Group::new(sys, &room.slots, stride)).collect::<Result<_>>()?,
            copies: (0..COPIES).map(copies).collect::<Result<_>>()?,
            open: false,
            scratch: (0..room.threads).map(scratch).collect::<Result<_>>()?,
            sample: Vec::new(),
        })
    }

    /// MTTKRP of one mode at a time, which [`Mttkrp::aim`] names, with factors that change between passes; it has
    /// none until [`Mttkrp::put`].
    pub fn alternating(sys: &Sys, shape: &Shape, rank: usize, threads: usize) -> Result<Mttkrp<'static, T>> {
        let rows = shape.dims().iter().map(|&dim| dim as usize).max().expect("a shape has modes");
        let sums = sys.vec(0.0, rows * rank)?;
        let results = vec![Accumulator { mode: 0, rows: 0, sums, cuts: Vec::new() }];
        let room = Room::for_any::<T>(shape, rank, threads);
        Mttkrp::with_room(sys, Cow::Owned(Vec::new()), results, &room)
    }

    /// The same with other vector instructions than the widest; results are the same.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors;
        self
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
        (result.mode, result.rows) = (mode, rows);
        self.modes[0] = (mode, Strategy::of(rows, self.rank));
        self.open = false;
    }

    /// The sums of the mode that [`Mttkrp::aim`] named, `dims[mode]` x rank, to be left zero, and the mode's factor, which may change.
    pub fn sums_and_factor(&mut self) -> (&mut [f64], &mut Matrix<T>) {
        self.close();
        let result = &mut self.results[0];
        let factor = &mut self.factors.to_mut()[result.mode];
        (result.sums_mut(self.rank), factor)
    }

    /// Sets all sums to zero, for another pass.
    pub fn reset(&mut self) {
        self.open = false;
        for result in &mut self.results {
            result.sums.par_iter_mut().for_each(|x| *x = 0.0);
        }
        for copy in &mut self.copies {
            let copy = copy.get_mut().unwrap_or_else(PoisonError::into_inner);
            for sums in copy {
                sums.data_mut().fill(0.0);
            }
        }
    }

    /// The results so far, with their modes, rounded to `T`.
    #[must_use]
    pub fn finish(mut self) -> Vec<ModeMatrix<T>> {
        self.close();
        let rank = self.rank;
        let finish = |result: Accumulator| {
            (result.mode, Matrix::from_rows(result.rows, rank, T::from_f64s(result.sums)))
        };
        self.results.into_iter().map(finish).collect()
    }

    /// Adds the group that is not whole, the store's last, and the copies, which are zero afterwards.
    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            self.commit(1);
        }
        let (rank, stride) = (self.rank, self.stride);
        for (k, result) in self.results.iter_mut().enumerate() {
            if self.modes[k].1 == Strategy::Slots {
                continue;
            }
            let elements = result.rows * stride;
            for copy in &mut self.copies {
                let copy = &mut copy.get_mut().unwrap_or_else(PoisonError::into_inner)[k];
                let rows = copy.data_mut()[..elements].par_chunks_exact_mut(stride);
                let add = |(sum, copied): (&mut [f64], &mut [f64])| {
                    sum.iter_mut().zip(copied).for_each(|(s, x)| *s += std::mem::take(x));
                };
                result.sums.par_chunks_exact_mut(rank).zip(rows).with_min_len(64).for_each(add);
            }
        }
    }

    /// Gives the tiles of `batch` from `t` on to groups, as many as there are; where the tiles end that they took, and how many groups did.
    fn deal(&mut self, batch: &Batch<'_>, mut t: usize) -> (usize, usize) {
        let mut dealt = 0;
        while t < batch.tiles() && dealt < self.groups.len() {
            let number = (batch.first_tile + t as u64) / GROUP_TILES as u64;
            let group = &mut self.groups[dealt];
            let goes_on = self.open && dealt == 0 && group.number == number;
            if !goes_on {
                group.begin(number);
            }
            let of_group = |t: &usize| (batch.first_tile + *t as u64) / GROUP_TILES as u64 == number;
            let end = (t..batch.tiles()).find(|t| !of_group(t)).unwrap_or(batch.tiles());
            group.tiles = t..end;
            (t, dealt) = (end, dealt + 1);
        }
        (t, dealt)
    }

    /// Computes the first `count` groups.
    fn work(&mut self, batch: &Batch<'_>, count: usize) {
        let (factors, modes) = (&*self.factors, &*self.modes);
        // One mode reads factors' rows as they lie, not aligned: every load of a wider vector would cross a cache line.
        let narrow = !self.all && self.vectors == Vectors::Widest;
        let vectors = if narrow { Vectors::Avx2 } else { self.vectors }.arch();
        let (rank, stride, all) = (self.rank, self.stride, self.all);
        let inputs = Inputs { batch, factors, aligned: &self.aligned, rank, stride, modes, all };
        let (scratches, copies) = (&self.scratch, &self.copies);
        let work = |group: &mut Group| {
            let thread = rayon::current_thread_index().unwrap_or(0) % scratches.len();
            let mut scratch = scratches[thread].lock().unwrap_or_else(PoisonError::into_inner);
            #[expect(clippy::cast_possible_truncation, reason = "less than COPIES")]
            let copy = (group.number % COPIES as u64) as usize;
            let mut copy = copies[copy].lock().unwrap_or_else(PoisonError::into_inner);
            vectors.dispatch(Work { group, copy: &mut copy, scratch: &mut scratch, inputs });
        };
        self.groups[..count].par_iter_mut().with_max_len(1).for_each(work);
    }

    /// Adds the first `count` groups to the results.
    fn commit(&mut self, count: usize) {
        let (vectors, groups) = (self.vectors.arch(), &self.groups[..count]);
        let (rank, stride) = (self.rank, self.stride);
        let mut tasks = Vec::with_capacity(self.results.len() * self.threads);
        for (mode, result) in self.results.iter_mut().enumerate() {
            if self.modes[mode].1 == Strategy::Copies {
                continue;
            }
            result.part_rows(groups, mode, self.threads, &mut self.sample);
            let task = |first_row, sums| Commit { groups, mode, rank, stride, first_row, sums };
            result.tasks(rank, task, &mut tasks);
        }
        tasks.into_par_iter().with_max_len(1).for_each(|task| vectors.dispatch(task));
    }
}

impl<T: Real> HostOp for Mttkrp<'_, T> {
    fn batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut t = 0;
        while t < batch.tiles() {
            let (end, count) = self.deal(batch, t);
            self.work(batch, count);
            // Only the last group can be part of one: there its nonzeros end, for now.
            let whole = self.groups[count - 1].nnz == GROUP_NNZ;
            self.commit(if whole { count } else { count - 1 });
            if !whole {
                self.groups.swap(0, count - 1);
            }
            (self.open, t) = (!whole, end);
        }
        Ok(())
    }
}

impl Accumulator {
    fn sums_mut(&mut self, rank: usize) -> &mut [f64] {
        &mut self.sums[..self.rows * rank]
    }

    /// Cuts the rows into a part for each thread, even by a sample of those that groups have met. Parts do not change what is computed.
    fn part_rows(&mut self, groups: &[Group], mode: usize, threads: usize, sample: &mut Vec<u32>) {
        self.cuts.clear();
        self.cuts.push(0);
        if threads > 1 {
            sample.clear();
            for group in groups {
                sample.extend(group.modes[mode].rows.iter().step_by(SAMPLE));
            }
            sample.sort_unstable();
            let cut = |p: usize| sample.get(p * sample.len() / threads).map_or(0, |&r| r as usize);
            self.cuts.extend((1..threads).map(cut));
        }
        self.cuts.push(self.rows);
    }

    /// Appends a task for each part.
    fn tasks<'s>(
        &'s mut self,
        rank: usize,
        task: impl Fn(usize, &'s mut [f64]) -> Commit<'s>,
        tasks: &mut Vec<Commit<'s>>,
    ) {
        let mut rest = &mut self.sums[..self.rows * rank];
        for cut in self.cuts.windows(2) {
            let (sums, behind) = std::mem::take(&mut rest).split_at_mut((cut[1] - cut[0]) * rank);
            tasks.push(task(cut[0], sums));
            rest = behind;
        }
    }
}
