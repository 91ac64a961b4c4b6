//! For AVX-512: fibers of a few products, whatever their lengths. A bit per product of a tile marks where fibers begin.
//! A *window* is 64 products in eight vectors. In the first round, each product gets its right neighbor added if that
//! belongs to the same fiber; in the second round, the neighbor's neighbor, and so on. The places where fibers begin
//! then hold the sums of their first products, in order, and are compressed. Longer fibers are added up one by one.

use super::neighbours::{Fibers, ROOM};
use super::rounds::add_rest;
use crate::encoding::TILE_NNZ;
use std::arch::x86_64::__m512d;

/// Products of a vector.
const LANES: usize = 8;
/// Products of a window, one bit of a word each.
const WINDOW: usize = 64;
/// The most products of a fiber that are added in parallel.
const ROUNDS: usize = 8;

const _: () = assert!(ROUNDS <= ROOM && LANES <= ROOM, "a window may end behind the tile");

/// Overwrites `sums` with the sums of all fibers.
#[inline(always)]
pub(super) fn add_up(simd: pulp::x86::V4, fibers: &Fibers<'_>, sums: &mut [f64]) {
    let (&[first, ..], &[.., last]) = (fibers.bounds, fibers.bounds) else { return };
    let begins = Begins::of(simd, fibers);
    let (mut longer, mut count) = ([0u16; TILE_NNZ], 0);
    let mut out = [0.0; TILE_NNZ + LANES];
    let mut done = 0;
    let (first, last) = ((first - fibers.at) as usize, (last - fibers.at) as usize);
    for window in first / WINDOW..last.div_ceil(WINDOW) {
        let begin = begins.of_fibers(window, last);
        let products = &fibers.products[window * WINDOW..];
        let (found, mut long) = add_window(simd, products, begins.from(window), begin);
        let before = done;
        for (lane, sums) in (0..).step_by(LANES).zip(found) {
            #[expect(clippy::cast_possible_truncation, reason = "eight bits of 64")]
            let lanes = (begin >> lane) as u8;
            let together = simd.avx512f._mm512_maskz_compress_pd(lanes, sums);
            *out[done..].first_chunk_mut::<LANES>().expect("room for a vector") = bytemuck::cast(together);
            done += lanes.count_ones() as usize;
        }
        while long != 0 {
            let lower = begin & ((1 << long.trailing_zeros()) - 1);
            #[expect(clippy::cast_possible_truncation, reason = "at most 512")]
            let fiber = (before + lower.count_ones() as usize) as u16;
            longer[count % TILE_NNZ] = fiber;
            count += 1;
            long &= long - 1;
        }
    }
    sums.copy_from_slice(&out[..sums.len()]);
    add_rest(fibers, sums, &longer[..count], ROUNDS);
}

/// A bit per product of a tile, set where a fiber begins and where the last fiber ends.
struct Begins([u64; TILE_NNZ / WINDOW + 2]);

impl Begins {
    #[inline(always)]
    fn of(simd: pulp::x86::V4, fibers: &Fibers<'_>) -> Self {
        let mut bytes = [[0u8; WINDOW]; TILE_NNZ / WINDOW + 2];
        let flags = bytes.as_flattened_mut();
        for &bound in fibers.bounds {
            // `at` begins a tile.
            flags[bound as usize % TILE_NNZ] = 1;
        }
        let last = fibers.bounds[fibers.bounds.len() - 1] - fibers.at;
        if last as usize == TILE_NNZ {
            flags[0] = u8::from(fibers.bounds[0] == fibers.at);
            flags[TILE_NNZ] = 1;
        }
        // No closures: their bodies would not be compiled for these vectors.
        let mut bits = [0; TILE_NNZ / WINDOW + 2];
        for (bits, bytes) in bits.iter_mut().zip(bytes) {
            let bytes = bytemuck::cast(bytes);
            *bits = simd.avx512bw._mm512_test_epi8_mask(bytes, bytes);
        }
        Self(bits)
    }

    /// The bits of a window, with the next window's above them.
    #[inline(always)]
    fn from(&self, window: usize) -> u128 {
        u128::from(self.0[window]) | u128::from(self.0[window + 1]) << WINDOW
    }

    /// The bits of a window where fibers begin that end at or before `last`.
    #[inline(always)]
    fn of_fibers(&self, window: usize, last: usize) -> u64 {
        let bits = self.0[window];
        if last / WINDOW == window { bits & !(1 << (last % WINDOW)) } else { bits }
    }
}

/// The sums of at most [`ROUNDS`] products of each fiber that begins in a window, at the bits of `begin`; other places
/// hold arbitrary numbers. Also returns the places of fibers with more products. `begins` holds the bits of the window
/// and the next one.
#[inline(always)]
fn add_window(
    simd: pulp::x86::V4,
    products: &[f64],
    begins: u128,
    begin: u64,
) -> ([__m512d; WINDOW / LANES], u64) {
    let simd = simd.avx512f;
    let mut sums = vectors(products);
    let mut goes_on = u64::MAX;
    for k in 1..=ROUNDS {
        #[expect(clippy::cast_possible_truncation, reason = "the lower 64 bits")]
        let next = (begins >> k) as u64;
        goes_on &= !next;
        if goes_on & begin == 0 {
            return (sums, 0);
        }
        if k < ROUNDS {
            for (lane, (sum, product)) in
                (0..).step_by(LANES).zip(sums.iter_mut().zip(vectors(&products[k..])))
            {
                #[expect(clippy::cast_possible_truncation, reason = "eight bits of 64")]
                let lanes = (goes_on >> lane) as u8;
                *sum = simd._mm512_mask_add_pd(*sum, lanes, *sum, product);
            }
        }
    }
    (sums, goes_on & begin)
}

/// The products of the first window.
#[inline(always)]
fn vectors(products: &[f64]) -> [__m512d; WINDOW / LANES] {
    bytemuck::cast(*products.first_chunk::<WINDOW>().expect("room for a window"))
}
