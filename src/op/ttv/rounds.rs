//! For any machine: fibers are added up in rounds. The first round adds the first product of every fiber, the second
//! the second product of those with two, and so on. Nothing branches on lengths, and sums of different fibers do not
//! depend on each other.

use super::neighbours::{AddUp, Fibers, NOTHING};
use crate::encoding::TILE_NNZ;

/// Products of a fiber that are added in rounds; the rest are added fiber by fiber.
const ROUNDS: usize = 4;
/// Long fibers that are added up in parallel: within one fiber, each addition waits for the previous one.
const ABREAST: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct Rounds;

impl AddUp for Rounds {
    #[inline(always)]
    fn add_up(self, fibers: &Fibers<'_>, sums: &mut [f64]) {
        let Fibers { products, bounds, .. } = *fibers;
        // `at` begins a tile. The remainder replaces a bounds check; all places are inside.
        let product = |start: u32, k: usize| products[(start as usize + k) % TILE_NNZ];
        let (mut longer, mut count) = ([0u16; TILE_NNZ], 0);
        for ((fiber, sum), bounds) in (0u16..).zip(&mut *sums).zip(bounds.windows(2)) {
            *sum = product(bounds[0], 0);
            longer[count % TILE_NNZ] = fiber;
            count += usize::from(bounds[1] - bounds[0] > 1);
        }
        for done in 1..ROUNDS {
            let round = count;
            count = 0;
            for i in 0..round {
                let fiber = longer[i % TILE_NNZ];
                let bounds = &bounds[usize::from(fiber)..][..2];
                sums[usize::from(fiber)] += product(bounds[0], done);
                longer[count % TILE_NNZ] = fiber;
                count += usize::from((bounds[1] - bounds[0]) as usize > done + 1);
            }
        }
        add_rest(fibers, sums, &longer[..count], ROUNDS);
    }
}

/// Overwrites `sums` with the sums of all fibers, some at a time.
#[inline(always)]
pub(super) fn add_all(fibers: &Fibers<'_>, sums: &mut [f64]) {
    let mut all = [0u16; TILE_NNZ];
    all.iter_mut().zip(0..).for_each(|(fiber, number)| *fiber = number);
    sums.fill(NOTHING);
    add_rest(fibers, sums, &all[..sums.len()], 0);
}

/// Adds all products except the first `done` to the sums of the fibers `longer`, which have more.
#[inline(always)]
pub(super) fn add_rest(fibers: &Fibers<'_>, sums: &mut [f64], longer: &[u16], done: usize) {
    for group in longer.chunks(ABREAST) {
        add_abreast(fibers, sums, group, done);
    }
}

/// The same for at most [`ABREAST`] fibers.
#[inline(always)]
fn add_abreast(fibers: &Fibers<'_>, sums: &mut [f64], group: &[u16], mut done: usize) {
    if let Ok(group) = <[u16; ABREAST]>::try_from(group) {
        let rests = group.map(|fiber| fibers.rest(usize::from(fiber), done));
        let mut totals = group.map(|fiber| sums[usize::from(fiber)]);
        let shortest = rests.map(<[f64]>::len).into_iter().fold(TILE_NNZ, usize::min);
        for k in 0..shortest {
            for (total, rest) in totals.iter_mut().zip(rests) {
                *total += rest[k];
            }
        }
        group.iter().zip(totals).for_each(|(&fiber, total)| sums[usize::from(fiber)] = total);
        done += shortest;
    }
    for &fiber in group {
        let sum = &mut sums[usize::from(fiber)];
        *sum = fibers.rest(usize::from(fiber), done).iter().fold(*sum, |sum, product| sum + product);
    }
}
