//! MTTKRP along a tree. Nonzeros sorted in an order of modes are a walk over the tree of their indices, and what a
//! node's nonzeros share is computed once.
//!
//! For the mode at level t, the rows of the levels above are multiplied once per node (`above`), and sums are added up
//! from the leaves to level t (`below`): a leaf reads one row, a fiber is multiplied once. (Smith et al., "SPLATT",
//! IPDPS 2015, section IV, for the root; Nisa et al., SC 2019, section 5, for inner levels and leaves.) The walk is
//! recognized in the columns of tiles, so it works with every layout that has this sort order.
//!
//! **Order of additions.** Leaves are added to their fiber's sum in order, fibers to their parent's, up to level t,
//! whose sum is added to the row. A node split between groups is a node in each: a group's sums start at zero. A
//! nonzero therefore takes part in fewer additions than its row has nonzeros. The product of a leaf is in the precision
//! of the factors (in f64 with `wide`); all others are in f64.

use super::kernel::prefetch;
use super::rows::{AHEAD, AlignedRows};
use crate::dense::{MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::DecodedTile;
use crate::shape::{ModeOrder, ORDER_MAX};
use crate::sys::Sys;
use pulp::Simd;

/// Factors with more bytes than this have rows that are prefetched: a core's cache may not hold them.
const FAR_BYTES: usize = 1 << 20;

/// The state of a group's walk for one mode.
#[derive(Debug)]
pub struct Path {
    /// The order of modes that it follows; `None` if no node is open.
    levels: Option<ModeOrder>,
    /// The index of the open node of each level above the leaves.
    at: [u32; ORDER_MAX],
    /// The place of the row of the open node at the mode's level.
    place: u32,
    /// Whether the open fiber has a sum that is not added to what is above yet: it may go on in the next tile.
    waits: bool,
    /// For each level, the sum below its open node; 0 above the mode's level.
    below: AlignedRows<f64>,
    /// For each level above the mode's, the product of the rows of its open node and its ancestors.
    above: AlignedRows<f64>,
}

/// The inputs of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Walked<'a, T> {
    pub levels: ModeOrder,
    /// The mode that is computed.
    pub mode: usize,
    pub factors: &'a [MatrixRef<'a, T>],
    pub rank: usize,
    /// The distance between rows of sums, in elements.
    pub stride: usize,
    pub wide: bool,
}

/// The same by level.
struct Levels<'a, T> {
    /// The level of the mode, and that of fibers.
    target: usize,
    fibers: usize,
    factors: [&'a [T]; ORDER_MAX],
    columns: [&'a [u32]; ORDER_MAX],
    rank: usize,
    stride: usize,
    wide: bool,
}

impl<'a, T: Real> Levels<'a, T> {
    /// Of `walked`, and of a tile's columns.
    #[inline(always)]
    fn new(walked: &Walked<'a, T>, column: impl Fn(usize) -> &'a [u32]) -> Self {
        let Walked { levels, mode, factors: of_modes, rank, stride, wide } = *walked;
        let modes = levels.modes();
        let target = modes.iter().position(|&at| usize::from(at) == mode).expect("an order names all modes");
        let (mut factors, mut columns) = ([&[][..]; ORDER_MAX], [&[][..]; ORDER_MAX]);
        for (level, &mode) in modes.iter().enumerate() {
            (factors[level], columns[level]) = (of_modes[usize::from(mode)].data(), column(mode.into()));
        }
        Self { target, fibers: modes.len() - 2, factors, columns, rank, stride, wide }
    }

    #[inline(always)]
    fn row(&self, level: usize, index: u32) -> &'a [T] {
        &self.factors[level][index as usize * self.rank..][..self.rank]
    }
}

impl Path {
    /// For tensors of `order` with rows of `stride` elements; empty unless `is_used`.
    pub fn new(sys: &Sys, order: usize, stride: usize, is_used: bool) -> Result<Self> {
        let elements = if is_used { order * stride } else { 0 };
        let (mut below, mut above) = (AlignedRows::new(sys, elements)?, AlignedRows::new(sys, elements)?);
        below.grow(elements);
        above.grow(elements);
        Ok(Self { levels: None, at: [0; ORDER_MAX], place: 0, waits: false, below, above })
    }

    /// Its bytes; `order` is 0 if it is not used.
    pub fn bytes(order: usize, stride: usize) -> u64 {
        2 * AlignedRows::<f64>::bytes(order * stride)
    }

    /// Discards the rest of a pass that ended early.
    pub fn forget(&mut self) {
        if self.levels.take().is_some() {
            self.below.data_mut().fill(0.0);
            self.waits = false;
        }
    }

    /// Continues along the nonzeros of `tile`, whose rows of `sums` are at `places`.
    #[inline(always)]
    pub fn walk<T: Real, S: Simd>(
        &mut self,
        simd: S,
        walked: &Walked<'_, T>,
        tile: &DecodedTile<'_>,
        places: &[u32],
        sums: &mut [f64],
    ) {
        if self.levels.is_some_and(|levels| levels != walked.levels) {
            self.close(walked.factors, walked, sums);
        }
        let nnz = tile.nnz;
        let is_open = self.levels.replace(walked.levels).is_some();
        let walked = &Levels::new(walked, |mode| tile.column(mode));
        let &Levels { target, fibers, .. } = walked;
        let firsts = self.firsts(walked, is_open, nnz);
        let (indices, factor) = (walked.columns[fibers + 1], walked.factors[fibers + 1]);
        let is_far = |level: &usize| *level != target && size_of_val(walked.factors[*level]) > FAR_BYTES;
        let leaves_ahead = if is_far(&(fibers + 1)) { &indices[..nnz] } else { &[] };
        let nodes_ahead = (0..=fibers).any(|level| is_far(&level));
        for &index in leaves_ahead.iter().take(AHEAD) {
            prefetch(&factor[index as usize * walked.rank..][..walked.rank]);
        }
        let (mut i, mut fetched) = (0, 0);
        while i < nnz {
            let first = usize::from(firsts[i]);
            if first <= fibers {
                if i > 0 || is_open {
                    self.leave(walked, first.max(target), sums);
                }
                self.enter(walked, first, i, places[i]);
            }
            let run = firsts[i + 1..nnz].iter().take_while(|&&first| usize::from(first) > fibers).count();
            let of = i..i + 1 + run;
            if nodes_ahead {
                let end = (of.end + AHEAD).min(nnz);
                for (k, &first) in (fetched..).zip(&firsts[fetched..end]) {
                    for level in (usize::from(first)..=fibers).filter(is_far) {
                        prefetch(walked.row(level, walked.columns[level][k]));
                    }
                }
                fetched = end;
            }
            let ahead = leaves_ahead.get(i + AHEAD..).unwrap_or(&[]);
            let leaves =
                Leaves { values: &tile.values[of.clone()], indices: &indices[of.clone()], ahead, factor };
            if target > fibers {
                let product = &self.above.data()[fibers * walked.stride..][..walked.rank];
                for (&value, &place) in leaves.values.iter().zip(&places[of.clone()]) {
                    add_times(simd, &mut sums[place as usize * walked.stride..], product, value);
                }
            } else {
                self.fiber(simd, walked, &leaves, of.end < nnz, sums);
            }
            i = of.end;
        }
    }

    /// Adds leaves of the open fiber to its sum, and where it `ends` that to what is above.
    #[inline(always)]
    fn fiber<T: Real, S: Simd>(
        &mut self,
        simd: S,
        walked: &Levels<'_, T>,
        leaves: &Leaves<'_, T>,
        ends: bool,
        sums: &mut [f64],
    ) {
        let (rank, mut at) = (walked.rank, 0);
        while rank - at >= 32 {
            self.columns::<T, S, 32>(simd, walked, leaves, (at, 32), ends, sums);
            at += 32;
        }
        if rank - at >= 16 {
            self.columns::<T, S, 16>(simd, walked, leaves, (at, 16), ends, sums);
            at += 16;
        }
        if rank - at >= 8 {
            self.columns::<T, S, 8>(simd, walked, leaves, (at, 8), ends, sums);
            at += 8;
        }
        if rank > at {
            self.columns::<T, S, 8>(simd, walked, leaves, (at, rank - at), ends, sums);
        }
        self.waits = !ends;
    }

    /// The same of `length` columns, at most `N`, from `at` on: their sum is in registers.
    #[inline(always)]
    fn columns<T: Real, S: Simd, const N: usize>(
        &mut self,
        simd: S,
        walked: &Levels<'_, T>,
        leaves: &Leaves<'_, T>,
        (at, length): (usize, usize),
        ends: bool,
        sums: &mut [f64],
    ) {
        let &Levels { target, fibers, stride, .. } = walked;
        let (up, below) = self.below.data_mut().split_at_mut(fibers * stride);
        let below = &mut below[at..][..length];
        let mut sum = [0.0; N];
        let sum = &mut sum[..length];
        if self.waits {
            sum.copy_from_slice(below);
            below.fill(0.0);
        }
        if walked.wide {
            leaves.add_wide(walked.rank, at, sum);
        } else {
            leaves.add(simd, walked.rank, at, sum);
        }
        if !ends {
            below.copy_from_slice(sum);
        } else if target < fibers {
            let mut room = [0.0; N];
            let row = &walked.row(fibers, self.at[fibers])[at..][..length];
            let row = T::widened(row, &mut room[..length]);
            add_products(simd, &mut up[(fibers - 1) * stride + at..][..length], sum, row);
        } else {
            let total = &mut sums[self.place as usize * stride + at..][..length];
            if fibers == 0 {
                total.iter_mut().zip(sum).for_each(|(total, x)| *total += *x);
            } else {
                add_products(simd, total, sum, &self.above.data()[(fibers - 1) * stride + at..][..length]);
            }
        }
    }

    /// For each nonzero, the first level at which it differs from the previous one; the leaf level if none
    /// does.
    #[inline(always)]
    fn firsts<T: Real>(&self, walked: &Levels<'_, T>, is_open: bool, nnz: usize) -> [u8; TILE_NNZ] {
        let fibers = walked.fibers;
        let mut firsts = [u8::MAX; TILE_NNZ];
        let mut first = usize::from(u8::MAX);
        for level in (0..=fibers).rev() {
            let column = &walked.columns[level][..nnz];
            #[expect(clippy::cast_possible_truncation, reason = "at most 8 levels")]
            let number = level as u8;
            for ((first, before), index) in firsts[1..].iter_mut().zip(column).zip(&column[1..]) {
                *first = if before == index { *first } else { number };
            }
            if !is_open || column[0] != self.at[level] {
                first = level;
            }
        }
        firsts[0] = u8::try_from(first).unwrap_or(u8::MAX);
        firsts
    }

    /// Closes the nodes of all levels from the fibers' up to `last`, which is at or below the mode's.
    #[inline(always)]
    fn leave<T: Real>(&mut self, walked: &Levels<'_, T>, last: usize, sums: &mut [f64]) {
        let &Levels { target, stride, rank, .. } = walked;
        // The sums of fibers that ended in a tile were added there.
        let ends = walked.fibers + usize::from(self.waits);
        for level in (last..ends).rev() {
            if level == target {
                let sum = &mut sums[self.place as usize * stride..][..rank];
                let below = &mut self.below.data_mut()[level * stride..][..rank];
                if level == 0 {
                    sum.iter_mut().zip(below).for_each(|(sum, x)| *sum += std::mem::take(x));
                } else {
                    let above = &self.above.data()[(level - 1) * stride..][..rank];
                    for ((sum, x), product) in sum.iter_mut().zip(below).zip(above) {
                        *sum += std::mem::take(x) * product;
                    }
                }
            } else {
                let row = walked.row(level, self.at[level]);
                let (up, below) = self.below.data_mut()[(level - 1) * stride..].split_at_mut(stride);
                for ((sum, x), factor) in up[..rank].iter_mut().zip(&mut below[..rank]).zip(row) {
                    *sum += std::mem::take(x) * factor.widen();
                }
            }
        }
        self.waits = false;
    }

    /// Opens the nodes of nonzero `i` in all levels from `first` to the fibers'.
    #[inline(always)]
    fn enter<T: Real>(&mut self, walked: &Levels<'_, T>, first: usize, i: usize, place: u32) {
        let &Levels { target, stride, rank, .. } = walked;
        for level in first..=walked.fibers {
            self.at[level] = walked.columns[level][i];
            if level < target {
                let row = walked.row(level, self.at[level]);
                let (before, above) = self.above.data_mut().split_at_mut(level * stride);
                let above = &mut above[..rank];
                if level == 0 {
                    above.iter_mut().zip(row).for_each(|(product, factor)| *product = factor.widen());
                } else {
                    let before = &before[(level - 1) * stride..][..rank];
                    for ((product, x), factor) in above.iter_mut().zip(before).zip(row) {
                        *product = x * factor.widen();
                    }
                }
            } else if level == target {
                self.place = place;
            }
        }
    }

    /// Ends the walk: adds the open node's sum to its row.
    #[inline(always)]
    pub fn close<T: Real>(&mut self, factors: &[MatrixRef<'_, T>], walked: &Walked<'_, T>, sums: &mut [f64]) {
        let Some(levels) = self.levels.take() else { return };
        let walked = Levels::new(&Walked { levels, factors, ..*walked }, |_| &[]);
        if walked.target <= walked.fibers {
            self.leave(&walked, walked.target, sums);
        }
    }
}

/// Adds each of `x` times its number of `by` to its number of `total`. (Left to the compiler, numbers went one by one.)
#[inline(always)]
fn add_products<S: Simd>(simd: S, total: &mut [f64], x: &[f64], by: &[f64]) {
    let (x, by) = (&x[..total.len()], &by[..total.len()]);
    let (vectors, rest) = S::as_mut_simd_f64s(total);
    let ((x, x_rest), (by, by_rest)) = (S::as_simd_f64s(x), S::as_simd_f64s(by));
    for ((total, &x), &by) in vectors.iter_mut().zip(x).zip(by) {
        *total = simd.add_f64s(*total, simd.mul_f64s(x, by));
    }
    rest.iter_mut().zip(x_rest).zip(by_rest).for_each(|((total, x), by)| *total += x * by);
}

/// Adds each of `x` times `by` to the first numbers of `total`.
#[inline(always)]
fn add_times<S: Simd>(simd: S, total: &mut [f64], x: &[f64], by: f64) {
    let (vectors, rest) = S::as_mut_simd_f64s(&mut total[..x.len()]);
    let ((x, x_rest), splat) = (S::as_simd_f64s(x), simd.splat_f64s(by));
    for (total, &x) in vectors.iter_mut().zip(x) {
        *total = simd.add_f64s(*total, simd.mul_f64s(splat, x));
    }
    rest.iter_mut().zip(x_rest).for_each(|(total, x)| *total += by * x);
}

/// Leaves of a fiber, and the factor of their mode.
#[derive(Clone, Copy, Debug)]
struct Leaves<'a, T> {
    values: &'a [f64],
    indices: &'a [u32],
    /// The indices of the leaves to prefetch meanwhile, if the factor is far.
    ahead: &'a [u32],
    factor: &'a [T],
}

impl<T: Real> Leaves<'_, T> {
    /// Prefetches `length` columns from `at` on of the leaf that comes [`AHEAD`] leaves after leaf `i`.
    #[inline(always)]
    fn fetch(&self, i: usize, rank: usize, at: usize, length: usize) {
        if let Some(&next) = self.ahead.get(i) {
            prefetch(&self.factor[next as usize * rank + at..][..length]);
        }
    }

    /// Adds each value times the columns of its row from `at` on to `sum`.
    #[inline(always)]
    fn add<S: Simd>(&self, simd: S, rank: usize, at: usize, sum: &mut [f64]) {
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let vectors = sum.len() / lanes;
        for (i, (&value, &index)) in self.values.iter().zip(self.indices).enumerate() {
            self.fetch(i, rank, at, sum.len());
            let row = &self.factor[index as usize * rank + at..][..sum.len()];
            let (value, wide) = (T::nearest(value), T::vectors::<S>(row));
            let splat = T::splat(simd, value);
            for at in 0..vectors {
                T::add_to(simd, T::times(simd, splat, wide[at]), &mut sum[at * lanes..]);
            }
            for r in vectors * lanes..sum.len() {
                sum[r] += (value * row[r]).widen();
            }
        }
    }

    /// The same with products in f64.
    #[inline(always)]
    fn add_wide(&self, rank: usize, at: usize, sum: &mut [f64]) {
        for (i, (&value, &index)) in self.values.iter().zip(self.indices).enumerate() {
            self.fetch(i, rank, at, sum.len());
            let row = &self.factor[index as usize * rank + at..][..sum.len()];
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += value * x.widen());
        }
    }
}
