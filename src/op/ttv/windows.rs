//! For AVX-512, by the lengths of fibers. If most have one product, adjacent fibers whose products lie in a *window* of
//! two vectors are added up in parallel: one instruction extracts the first product of each from the window, the next
//! one the second products of those with two, and so on. A fiber longer than a window is added up alone. For medium
//! lengths see [`marks`]. Long fibers are added up a few at a time, product by product.

use super::neighbours::{AddUp, Fibers, NOTHING, ROOM};
use super::{marks, rounds};
use crate::encoding::TILE_NNZ;
use std::arch::x86_64::{__m256i, __m512d, __m512i, _MM_HINT_T0};

/// The most fibers in parallel.
const ABREAST: usize = 8;
/// Words of a cache line.
const LINE_WORDS: usize = 16;
/// Products of a window, which may begin at a tile's last product.
const WINDOW: usize = ROOM;
/// Rounds that are always executed, because they cost less than a mispredicted branch.
const ROUNDS: usize = 3;
/// Average products of two fibers above which marks are faster than windows.
const SHORT_TWO: usize = 3;
/// Average products of a fiber above which adding fiber by fiber is faster than marks.
const LONG: usize = 12;

impl AddUp for pulp::x86::V4 {
    #[inline(always)]
    fn add_up(self, fibers: &Fibers<'_>, sums: &mut [f64]) {
        let (&[first, ..], &[.., last]) = (fibers.bounds, fibers.bounds) else { return };
        let products = (last - first) as usize;
        if products > LONG * sums.len() {
            rounds::add_all(fibers, sums);
        } else if 2 * products > SHORT_TWO * sums.len() {
            marks::add_up(self, fibers, sums);
        } else {
            add_windows(self, fibers, sums);
        }
    }

    #[inline(always)]
    fn fetch(self, words: &[u32]) {
        for line in words.chunks(LINE_WORDS) {
            self.sse._mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
    }
}

/// Adds window after window.
#[inline(always)]
fn add_windows(simd: pulp::x86::V4, fibers: &Fibers<'_>, sums: &mut [f64]) {
    let mut done = 0;
    while let (Some(bounds), Some(sums)) =
        (fibers.bounds[done..].first_chunk(), sums[done..].first_chunk_mut())
    {
        let first = (bounds[0] - fibers.at) as usize % TILE_NNZ;
        let window = fibers.products[first..].first_chunk().expect("room for a window");
        if (bounds[ABREAST] - bounds[0]) as usize <= WINDOW {
            // Store first, so that the next windows need not wait for the count.
            *sums = add_window(simd, window, bounds).0;
            done += ABREAST;
            continue;
        }
        let inside;
        (*sums, inside) = add_window(simd, window, bounds);
        if inside == 0 {
            sums[0] = fibers.rest(done, 0).iter().fold(NOTHING, |sum, product| sum + product);
        }
        done += inside.max(1);
    }
    for (fiber, sum) in sums.iter_mut().enumerate().skip(done) {
        *sum = fibers.rest(fiber, 0).iter().fold(NOTHING, |sum, product| sum + product);
    }
}

/// The sums of the first fibers whose products all lie in `window`, which begins with those of the first fiber,
/// and the number of these fibers. Further sums are arbitrary.
#[inline(always)]
fn add_window(
    simd: pulp::x86::V4,
    window: &[f64; WINDOW],
    bounds: &[u32; ABREAST + 1],
) -> ([f64; ABREAST], usize) {
    let [low, high]: [__m512d; 2] = bytemuck::cast(*window);
    let first = simd.avx._mm256_set1_epi32(bounds[0].cast_signed());
    let places = |bounds: Option<&[u32; ABREAST]>| -> __m512i {
        let bounds: __m256i = bytemuck::cast(*bounds.expect("one bound more than fibers"));
        simd.avx512f._mm512_cvtepu32_epi64(simd.avx2._mm256_sub_epi32(bounds, first))
    };
    let (mut at, ends) = (places(bounds.first_chunk()), places(bounds.last_chunk()));
    let simd = simd.avx512f;
    #[expect(clippy::cast_possible_wrap, reason = "16")]
    let window = simd._mm512_set1_epi64(WINDOW as i64);
    let inside = simd._mm512_cmple_epu64_mask(ends, window);
    let ends = simd._mm512_maskz_mov_epi64(inside, ends);
    let one = simd._mm512_set1_epi64(1);
    let mut sums = simd._mm512_permutex2var_pd(low, at, high);
    let mut round = || {
        at = simd._mm512_add_epi64(at, one);
        let longer = simd._mm512_cmplt_epu64_mask(at, ends);
        let products = simd._mm512_permutex2var_pd(low, at, high);
        sums = simd._mm512_mask_add_pd(sums, longer, sums, products);
        longer
    };
    for _ in 1..ROUNDS {
        round();
    }
    while round() != 0 {}
    (bytemuck::cast(sums), inside.count_ones() as usize)
}
