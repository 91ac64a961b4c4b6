//! The inner loops over the nonzeros of one tile. [`all_modes`] loads a nonzero's rows once and adds to a row of every
//! mode; [`one_mode`] adds to a row of one. Each has one body, specialized by order, rank (8, 16, 32, 64
//! or any) and precision. Vectors are explicit ([`Lanes`](crate::dense::Lanes)), because the compiler turned loops over
//! rows into shuffles and vectors of varying widths. Products and sums are separate operations, so every vector width
//! gives the same bits.
//!
//! The product for mode m is `(value * a_0 * ... * a_(m-1)) * (a_(n-1) * ... * a_(m+1))`, each bracket from left to
//! right, so that modes share partial products: 8 multiplications for four modes instead of 12.

use crate::dense::Real;
use crate::shape::ORDER_MAX;
use pulp::{Simd, WithSimd};

/// Bytes of a cache line and of the widest vector.
pub const LINE_BYTES: usize = 64;

/// The inputs for all modes of a tile.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a, T> {
    pub values: &'a [f64],
    /// The distance between rows, in elements, in factors and sums: [`stride`].
    pub stride: usize,
    /// The place of each nonzero's rows in factors and sums, by mode.
    pub places: [&'a [u32]; ORDER_MAX],
    pub factors: [&'a [T]; ORDER_MAX],
}

/// The inputs for one mode of a tile.
#[derive(Clone, Copy, Debug)]
pub struct Single<'a, T> {
    pub values: &'a [f64],
    pub rank: usize,
    /// The distance between rows of sums, in elements: [`stride`] or the rank.
    pub stride: usize,
    /// The place of each nonzero's row of sums.
    pub places: &'a [u32],
    /// Index columns and whole factors of the other modes, ascending, rows of `rank`.
    pub columns: [&'a [u32]; ORDER_MAX],
    pub factors: [&'a [T]; ORDER_MAX],
    /// How many of them precede the mode.
    pub before: usize,
    pub others: usize,
}

/// The distance between rows, in elements, of factors in `T` at `rank` and of their sums. Rows of factors are whole
/// vectors.
pub fn stride<T>(rank: usize) -> usize {
    rank.next_multiple_of(LINE_BYTES / size_of::<T>())
}

/// Whether vectors have one number, which means that the machine's are not used. Bodies are not specialized then.
const fn is_scalar<T: Real, S: Simd>() -> bool {
    size_of::<T::Vector<S>>() == size_of::<T>()
}

/// Runs a body as a function of its own. Compiled into their callers, bodies became functions so large that these took
/// minutes to compile.
#[inline(never)]
fn apart<S: Simd, B: WithSimd>(simd: S, body: B) -> B::Output {
    simd.vectorize(body)
}

/// Stands for any number of modes before, which is then not a constant of the body.
const ANY: usize = usize::MAX;

/// The first `length` of each of the first `count` columns: with equal lengths, one comparison checks an index of all.
#[inline(always)]
fn of_length<'a>(columns: &[&'a [u32]; ORDER_MAX], count: usize, length: usize) -> [&'a [u32]; ORDER_MAX] {
    let mut first: [&[u32]; ORDER_MAX] = [&[]; ORDER_MAX];
    for (first, column) in first.iter_mut().zip(columns).take(count) {
        *first = &column[..length];
    }
    first
}

/// Whether loops over rows of `rank` elements know their length.
pub const fn has_body(rank: usize) -> bool {
    matches!(rank, 8 | 16 | 32 | 64)
}

/// The columns that loops over row runs compute at `rank`, if they know how many: see `runs_by_rank`.
pub const fn columns_of_runs(rank: usize) -> Option<usize> {
    match rank {
        8..=32 | 41..=64 => Some(rank.next_power_of_two()),
        _ => None,
    }
}

/// Runs a body with order and rank as constants: see [`has_body`].
macro_rules! by_rank {
    ($body:ident, [$($modes:tt),*], $rank:expr, $simd:ident, $fields:tt) => {
        match $rank {
            8 => apart($simd, $body::<T, $($modes,)* 8> $fields),
            16 => apart($simd, $body::<T, $($modes,)* 16> $fields),
            32 => apart($simd, $body::<T, $($modes,)* 32> $fields),
            64 => apart($simd, $body::<T, $($modes,)* 64> $fields),
            _ => apart($simd, $body::<T, $($modes,)* 0> $fields),
        }
    };
}

/// Adds every nonzero to its row of `sums` in every mode.
#[inline(always)]
pub fn all_modes<T: Real, S: Simd>(simd: S, tile: &Shared<'_, T>, sums: &mut [&mut [f64]]) {
    if const { is_scalar::<T, S>() } {
        return apart(simd, All::<T, 0, 0> { tile, sums });
    }
    match sums.len() {
        2 => by_rank!(All, [2], tile.stride, simd, { tile, sums }),
        3 => by_rank!(All, [3], tile.stride, simd, { tile, sums }),
        4 => by_rank!(All, [4], tile.stride, simd, { tile, sums }),
        5 => by_rank!(All, [5], tile.stride, simd, { tile, sums }),
        6 => by_rank!(All, [6], tile.stride, simd, { tile, sums }),
        7 => by_rank!(All, [7], tile.stride, simd, { tile, sums }),
        _ => by_rank!(All, [8], tile.stride, simd, { tile, sums }),
    }
}

/// Adds every nonzero to its row of `sums`.
#[inline(always)]
pub fn one_mode<T: Real, S: Simd>(simd: S, tile: &Single<'_, T>, sums: &mut [f64]) {
    if const { is_scalar::<T, S>() } {
        return apart(simd, One::<T, 0, 0, 0> { tile, sums });
    }
    // Bodies with a constant rank know the stride.
    let rank = if tile.stride == stride::<T>(tile.rank) { tile.rank } else { 0 };
    match (tile.others, tile.before) {
        // A product of two numbers has the same bits in either order.
        (1, _) => by_rank!(One, [1, 1], rank, simd, { tile, sums }),
        (2, 0) => by_rank!(One, [2, 0], rank, simd, { tile, sums }),
        (2, 1) => by_rank!(One, [2, 1], rank, simd, { tile, sums }),
        (2, 2) => by_rank!(One, [2, 2], rank, simd, { tile, sums }),
        (3, 0) => by_rank!(One, [3, 0], rank, simd, { tile, sums }),
        (3, 1) => by_rank!(One, [3, 1], rank, simd, { tile, sums }),
        (3, 2) => by_rank!(One, [3, 2], rank, simd, { tile, sums }),
        (3, 3) => by_rank!(One, [3, 3], rank, simd, { tile, sums }),
        (4, _) => by_rank!(One, [4, ANY], rank, simd, { tile, sums }),
        (5, _) => by_rank!(One, [5, ANY], rank, simd, { tile, sums }),
        (6, _) => by_rank!(One, [6, ANY], rank, simd, { tile, sums }),
        (7, _) => by_rank!(One, [7, ANY], rank, simd, { tile, sums }),
        _ => by_rank!(One, [0, 0], rank, simd, { tile, sums }),
    }
}

/// Like [`one_mode`], with products in f64 whatever the factors are in: the value times each mode's number in
/// turn.
#[inline(always)]
pub fn one_mode_wide<T: Real>(tile: &Single<'_, T>, sums: &mut [f64]) {
    const LANES: usize = 8;
    let Single { rank, stride, others, .. } = *tile;
    let columns = tile.columns.map(|column| column.get(..tile.values.len()).unwrap_or(&[]));
    for (i, (&value, &place)) in tile.values.iter().zip(tile.places).enumerate() {
        let mut rows: [&[T]; ORDER_MAX] = [&[]; ORDER_MAX];
        for k in 0..others {
            rows[k] = row::<T, 0>(tile.factors[k], columns[k][i], rank);
        }
        let sum = &mut sums[place as usize * stride..][..rank];
        for (at, sum) in sum.chunks_mut(LANES).enumerate() {
            let mut products = [value; LANES];
            for row in &rows[..others] {
                let numbers = row[at * LANES..].iter().take(sum.len());
                products.iter_mut().zip(numbers).for_each(|(p, x)| *p *= x.widen());
            }
            sum.iter_mut().zip(products).for_each(|(s, p)| *s += p);
        }
    }
}

/// Row `place` of a table with rows of `length` elements (equal to `LENGTH` unless that is 0). One comparison checks
/// that the row exists.
#[inline(always)]
fn row<T, const LENGTH: usize>(table: &[T], place: u32, length: usize) -> &[T] {
    let place = place as usize;
    if LENGTH > 0 { &table.as_chunks::<LENGTH>().0[place] } else { &table[place * length..][..length] }
}

/// The same, mutable.
#[inline(always)]
fn row_mut<T, const LENGTH: usize>(table: &mut [T], place: u32, length: usize) -> &mut [T] {
    let place = place as usize;
    if LENGTH > 0 {
        &mut table.as_chunks_mut::<LENGTH>().0[place]
    } else {
        &mut table[place * length..][..length]
    }
}

/// The body of [`all_modes`].
struct All<'a, 's, T, const ORDER: usize, const RANK: usize> {
    tile: &'a Shared<'a, T>,
    sums: &'a mut [&'s mut [f64]],
}

impl<T: Real, const ORDER: usize, const RANK: usize> WithSimd for All<'_, '_, T, ORDER, RANK> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tile, sums } = self;
        let stride = if RANK > 0 { RANK } else { tile.stride };
        let order = if ORDER > 0 { ORDER } else { sums.len() };
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let places = of_length(&tile.places, order, tile.values.len());
        for (i, &value) in tile.values.iter().enumerate() {
            let value = T::splat(simd, T::nearest(value));
            let mut rows: [&[T::Vector<S>]; ORDER_MAX] = [&[]; ORDER_MAX];
            let mut row_sums: [&mut [f64]; ORDER_MAX] = std::array::from_fn(|_| &mut [][..]);
            for (m, (row_sums, sums)) in row_sums.iter_mut().zip(&mut *sums).enumerate().take(order) {
                rows[m] = T::vectors::<S>(row::<T, RANK>(tile.factors[m], places[m][i], stride));
                *row_sums = row_mut::<f64, RANK>(sums, places[m][i], stride);
            }
            for at in 0..stride / lanes {
                // The products of the later modes, and of the value and the earlier modes.
                let mut behind = [value; ORDER_MAX];
                behind[order - 2] = rows[order - 1][at];
                for m in (1..order - 1).rev() {
                    behind[m - 1] = T::times(simd, behind[m], rows[m][at]);
                }
                let mut before = value;
                for m in 0..order {
                    let product = if m + 1 < order { T::times(simd, before, behind[m]) } else { before };
                    T::add_to(simd, product, &mut row_sums[m][at * lanes..]);
                    if m + 1 < order {
                        before = T::times(simd, before, rows[m][at]);
                    }
                }
            }
        }
    }
}

/// The body of [`one_mode`].
struct One<'a, T, const OTHERS: usize, const BEFORE: usize, const RANK: usize> {
    tile: &'a Single<'a, T>,
    sums: &'a mut [f64],
}

impl<T: Real, const OTHERS: usize, const BEFORE: usize, const RANK: usize> WithSimd
    for One<'_, T, OTHERS, BEFORE, RANK>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tile, sums } = self;
        let rank = if RANK > 0 { RANK } else { tile.rank };
        let stride = if RANK > 0 { stride::<T>(RANK) } else { tile.stride };
        let others = if OTHERS > 0 { OTHERS } else { tile.others };
        let split = if OTHERS > 0 && BEFORE != ANY { BEFORE } else { tile.before };
        let columns = of_length(&tile.columns, others, tile.values.len());
        for (i, (&value, &place)) in tile.values.iter().zip(tile.places).enumerate() {
            let value = T::nearest(value);
            let mut rows: [&[T]; ORDER_MAX] = [&[]; ORDER_MAX];
            for k in 0..others {
                rows[k] = row::<T, RANK>(tile.factors[k], columns[k][i], rank);
            }
            add_product(
                simd,
                value,
                &rows[..others],
                split,
                rank,
                &mut sums[place as usize * stride..][..stride],
            );
        }
    }
}

/// Adds a value times rows, of which `split` precede the mode, to a row of sums.
#[inline(always)]
fn add_product<T: Real, S: Simd>(
    simd: S,
    value: T,
    rows: &[&[T]],
    split: usize,
    rank: usize,
    sum: &mut [f64],
) {
    let (others, lanes) = (rows.len(), size_of::<T::Vector<S>>() / size_of::<T>());
    let mut wide: [&[T::Vector<S>]; ORDER_MAX] = [&[]; ORDER_MAX];
    wide.iter_mut().zip(rows).for_each(|(wide, row)| *wide = T::vectors::<S>(row));
    let vectors = rank / lanes;
    for at in 0..vectors {
        let mut before = T::splat(simd, value);
        for row in &wide[..split] {
            before = T::times(simd, before, row[at]);
        }
        if split < others {
            let behind = wide[split..others - 1].iter().rev();
            let behind = behind.fold(wide[others - 1][at], |p, row| T::times(simd, p, row[at]));
            before = T::times(simd, before, behind);
        }
        T::add_to(simd, before, &mut sum[at * lanes..]);
    }
    for r in vectors * lanes..rank {
        let mut product = rows[..split].iter().fold(value, |p, row| p * row[r]);
        if split < others {
            let behind = rows[split..others - 1].iter().rev();
            product = product * behind.fold(rows[others - 1][r], |p, row| p * row[r]);
        }
        sum[r] += product.widen();
    }
}

/// Consecutive nonzeros of a list that belong to one row.
#[derive(Clone, Copy, Debug)]
pub struct RowRun {
    /// Their row, relative to the first of its block.
    pub row: u32,
    pub nnz: u32,
    /// Whether they are first added up from zero and then added to the row; otherwise each is added to the
    /// row.
    pub apart: bool,
}

/// The inputs of runs.
#[derive(Clone, Copy, Debug)]
pub struct RunList<'a, T> {
    pub list: &'a [RowRun],
    /// The nonzeros of all runs.
    pub values: &'a [f64],
    pub rank: usize,
    /// Index columns and whole factors of the other modes, ascending, rows of `rank`.
    pub columns: [&'a [u32]; ORDER_MAX],
    pub factors: [&'a [T]; ORDER_MAX],
    /// Whether a factor's rows are prefetched, because they may not be in a core's cache.
    pub far: [bool; ORDER_MAX],
    /// How many of them precede the mode.
    pub before: usize,
    pub others: usize,
}

/// Prefetches a row that will be used soon.
#[inline(always)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "a hint, which reads nothing and cannot fail")
)]
pub fn prefetch<T: Copy>(row: &[T]) {
    for line in row.chunks(LINE_BYTES / size_of::<T>()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address is allowed.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(line[0]);
    }
}

/// Stores that neither read what memory has there nor leave it in the caches: for what is read again only after more bytes than the
/// caches hold.
#[derive(Debug)]
pub struct PastCaches(());

impl PastCaches {
    /// A result of more bytes is stored so.
    pub const FROM_BYTES: usize = 64 << 20;

    /// Begins such stores. Other threads may not see them before the result is dropped.
    #[inline(always)]
    pub fn begin() -> Self {
        Self(())
    }

    /// Copies `from` to `to`, which has its length.
    #[inline(always)]
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "the instruction takes an address"))]
    #[expect(clippy::unused_self, reason = "stores end where it is dropped")]
    pub fn copy<T: bytemuck::Pod>(&self, from: &[T], to: &mut [T]) {
        assert_eq!(from.len(), to.len(), "what is copied has the room's length");
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            const BYTES: usize = size_of::<__m128i>();
            let (from, to): (&[u8], &mut [u8]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
            if to.as_ptr().addr().is_multiple_of(BYTES) {
                let (from, from_rest) = from.as_chunks::<BYTES>();
                let (to, to_rest) = to.as_chunks_mut::<BYTES>();
                for (from, to) in from.iter().zip(to) {
                    // SAFETY: both are arrays of the vector's size, and `to` begins at a multiple of it.
                    unsafe {
                        let vector = _mm_loadu_si128(from.as_ptr().cast());
                        _mm_stream_si128(to.as_mut_ptr().cast(), vector);
                    }
                }
                return to_rest.copy_from_slice(from_rest);
            }
        }
        to.copy_from_slice(from);
    }
}

impl Drop for PastCaches {
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "orders stores, and cannot fail"))]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// How many nonzeros ahead rows are prefetched.
const FETCHED: usize = 12;

/// Runs the body of runs for an order: with the rank as a constant ([`has_body`]), in two halves, which may overlap ([`columns_of_runs`]), or for any rank.
macro_rules! runs_by_rank {
    ([$($modes:tt),*], $list:expr, $simd:ident, $fields:tt) => {
        match $list.rank {
            8 => apart($simd, Runs::<T, $($modes,)* 8, 0> $fields),
            16 => apart($simd, Runs::<T, $($modes,)* 16, 0> $fields),
            32 => apart($simd, Runs::<T, $($modes,)* 32, 0> $fields),
            64 => apart($simd, Runs::<T, $($modes,)* 64, 0> $fields),
            9..=15 if lanes::<T, S>() <= 8 => apart($simd, Runs::<T, $($modes,)* 0, 8> $fields),
            17..=31 => apart($simd, Runs::<T, $($modes,)* 0, 16> $fields),
            41..=63 => apart($simd, Runs::<T, $($modes,)* 0, 32> $fields),
            _ => apart($simd, Runs::<T, $($modes,)* 0, 0> $fields),
        }
    };
}

/// The numbers of a vector.
const fn lanes<T: Real, S: Simd>() -> usize {
    size_of::<T::Vector<S>>() / size_of::<T>()
}

/// Adds runs to their rows of `sums`. With `each`, sets row i to the sum of run i, from zero.
#[inline(always)]
pub fn runs<T: Real, S: Simd>(simd: S, list: &RunList<'_, T>, each: bool, sums: &mut [f64]) {
    if const { is_scalar::<T, S>() } {
        return apart(simd, Runs::<T, 0, 0, 0, 0> { list, each, sums });
    }
    match (list.others, list.before) {
        (1, _) => runs_by_rank!([1, 1], list, simd, { list, each, sums }),
        (2, 0) => runs_by_rank!([2, 0], list, simd, { list, each, sums }),
        (2, 1) => runs_by_rank!([2, 1], list, simd, { list, each, sums }),
        (2, 2) => runs_by_rank!([2, 2], list, simd, { list, each, sums }),
        (3, 0) => runs_by_rank!([3, 0], list, simd, { list, each, sums }),
        (3, 1) => runs_by_rank!([3, 1], list, simd, { list, each, sums }),
        (3, 2) => runs_by_rank!([3, 2], list, simd, { list, each, sums }),
        (3, 3) => runs_by_rank!([3, 3], list, simd, { list, each, sums }),
        (4, 0) => runs_by_rank!([4, 0], list, simd, { list, each, sums }),
        (4, 1) => runs_by_rank!([4, 1], list, simd, { list, each, sums }),
        (4, 2) => runs_by_rank!([4, 2], list, simd, { list, each, sums }),
        (4, 3) => runs_by_rank!([4, 3], list, simd, { list, each, sums }),
        (4, 4) => runs_by_rank!([4, 4], list, simd, { list, each, sums }),
        (5, _) => runs_by_rank!([5, ANY], list, simd, { list, each, sums }),
        (6, _) => runs_by_rank!([6, ANY], list, simd, { list, each, sums }),
        (7, _) => runs_by_rank!([7, ANY], list, simd, { list, each, sums }),
        _ => runs_by_rank!([0, 0], list, simd, { list, each, sums }),
    }
}

/// The body of [`runs`]. It knows the rank if `RANK` is not 0. If `HALF` is not 0, the rank is from `HALF` to twice `HALF`, and the first and the last
/// `HALF` columns are computed at once: columns in both are computed twice, and there are no columns beyond whole vectors.
struct Runs<'a, T, const OTHERS: usize, const BEFORE: usize, const RANK: usize, const HALF: usize> {
    list: &'a RunList<'a, T>,
    each: bool,
    sums: &'a mut [f64],
}

impl<T: Real, const OTHERS: usize, const BEFORE: usize, const RANK: usize, const HALF: usize> WithSimd
    for Runs<'_, T, OTHERS, BEFORE, RANK, HALF>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { list, each, sums } = self;
        let rank = if RANK > 0 { RANK } else { list.rank };
        let others = if OTHERS > 0 { OTHERS } else { list.others };
        let split = if OTHERS > 0 && BEFORE != ANY { BEFORE } else { list.before };
        let (values, factors) = (list.values, list.factors);
        let columns = of_length(&list.columns, others, values.len());
        let mut ahead = [&[][..]; ORDER_MAX];
        for k in 0..others {
            ahead[k] = if list.far[k] { columns[k].get(FETCHED..).unwrap_or(&[]) } else { &[] };
        }
        let (mut few, mut more, mut many) = ([0.0; 64], [0.0; 32], Vec::new());
        let apart: &mut [f64] = if RANK > 0 {
            &mut few[..RANK]
        } else if HALF > 0 {
            &mut few[..HALF]
        } else {
            many.resize(rank, 0.0);
            &mut many
        };
        let last: &mut [f64] = &mut more[..HALF];
        // Where the last columns begin.
        let last_at = if HALF > 0 { rank - HALF } else { 0 };
        let mut at = 0;
        for (number, run) in (0u32..).zip(list.list) {
            let sum = row_mut::<f64, RANK>(sums, if each { number } else { run.row }, rank);
            if run.apart || each {
                apart.fill(0.0);
                last.fill(0.0);
            } else if HALF > 0 {
                apart.copy_from_slice(&sum[..HALF]);
                last.copy_from_slice(&sum[last_at..][..HALF]);
            } else {
                apart.copy_from_slice(sum);
            }
            let end = at + run.nnz as usize;
            assert!(end <= values.len(), "runs have as many nonzeros as there are");
            for i in at..end {
                let mut rows: [&[T]; ORDER_MAX] = [&[]; ORDER_MAX];
                let mut last_of_rows: [&[T]; ORDER_MAX] = [&[]; ORDER_MAX];
                for k in 0..others {
                    if let Some(&index) = ahead[k].get(i) {
                        prefetch(row::<T, RANK>(factors[k], index, rank));
                    }
                    rows[k] = row::<T, RANK>(factors[k], columns[k][i], rank);
                    if HALF > 0 {
                        last_of_rows[k] = &rows[k][last_at..][..HALF];
                        rows[k] = &rows[k][..HALF];
                    }
                }
                let value = T::nearest(values[i]);
                let width = if HALF > 0 { HALF } else { rank };
                add_product(simd, value, &rows[..others], split, width, apart);
                if HALF > 0 {
                    add_product(simd, value, &last_of_rows[..others], split, HALF, last);
                }
            }
            let (first, behind) = if HALF > 0 { sum.split_at_mut(HALF) } else { (sum, &mut [][..]) };
            let last = &last[HALF - behind.len()..];
            if run.apart && !each {
                first.iter_mut().zip(&*apart).for_each(|(sum, x)| *sum += x);
                behind.iter_mut().zip(last).for_each(|(sum, x)| *sum += x);
            } else {
                first.copy_from_slice(apart);
                behind.copy_from_slice(last);
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_past_the_caches_arrives_whole() {
        let from: Vec<f32> = (0..100u8).map(f32::from).collect();
        for (begin, length) in (0..8).flat_map(|begin| (0..80).map(move |length| (begin, length))) {
            let mut to = vec![-1.0; 100];
            PastCaches::begin().copy(&from[3..][..length], &mut to[begin..][..length]);
            let wanted = [&[-1.0].repeat(begin), &from[3..][..length], &[-1.0].repeat(100 - begin - length)];
            assert_eq!(to, wanted.concat(), "{length} from {begin} on");
        }
    }
}
