//! MM-CSF, mixed-mode compressed sparse fibers (Nisa, Li, Sukumaran-Rajam, Rawat, Krishnamoorthy and Sadayappan, "An
//! efficient mixed-mode representation of sparse tensors", SC 2019, section 4; formats-spec/formats.md). Each nonzero
//! is in one tree: the one whose leaf mode is the mode of its longest fiber.

use super::partitions::{PartitionRecord, all_modes, by_dims};
use super::trees::{TreeKind, TreeOf};
use super::{Checked, FiberCounts, Format, PartitionPlan, Scheme, Takes};
use crate::linear::{Key, Nonzero};
use crate::shape::{ModeOrder, Shape};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Mmcsf;

impl TreeKind for Mmcsf {
    const CODE: u32 = 6;
    const NAME: &'static str = "mmcsf";

    fn read(parameters: &[u8]) -> Checked<Self> {
        if parameters.is_empty() { Ok(Self) } else { Err("parameters of a partition") }
    }

    fn of_chunk() -> Self {
        Self
    }

    fn parameters(&self) -> Vec<u8> {
        Vec::new()
    }

    fn check_among(all: &[PartitionRecord], at: usize) -> Checked<()> {
        let leaf = |record: &PartitionRecord| record.format.record().levels.map(|levels| levels.last());
        let twice =
            all.iter().enumerate().any(|(other, record)| other != at && leaf(record) == leaf(&all[at]));
        if all[at].covers == 1 && !twice { Ok(()) } else { Err("covers of the format") }
    }

    fn cover_key(_: &ModeOrder) -> u32 {
        0
    }

    fn takes(levels: &ModeOrder) -> Takes {
        Takes::Leaf(levels.last())
    }

    /// A fiber has its indices in all modes above and a pointer (section 5: 3 F + M words of a tensor of order 3).
    fn paper_index_bytes(counts: &FiberCounts) -> u64 {
        4 * ((counts.nodes.len() as u64 + 1) * counts.fibers() + counts.nnz)
    }
}

/// The partitions of a tensor of `shape`: a tree per leaf mode, with the modes above it by ascending dims.
#[must_use]
pub fn scheme(shape: &Shape) -> Scheme {
    let order = shape.order();
    let plan = |leaf: usize| {
        let modes: Vec<usize> = by_dims(shape, &[leaf]).into_iter().chain([leaf]).collect();
        let levels = ModeOrder::new(&modes).expect("each mode once");
        let format = Format::new(TreeOf { levels, kind: Mmcsf });
        PartitionPlan { format, targets: all_modes(order), covers: 1, takes: Takes::Leaf(leaf) }
    };
    Scheme { partitions: (0..order).map(plan).collect() }
}

/// How nonzeros are assigned to leaf modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Assign {
    /// By the remaining lengths of fibers, nonzero by nonzero: assigning one shortens its other fibers.
    Dynamic,
    /// By the lengths of the whole tensor's fibers, which takes no more memory than sorting.
    Static,
    /// Dynamic where memory is enough for it, otherwise static: for stores of which no option says it.
    Either,
}

impl Assign {
    /// The name that users see, of what they can choose.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Dynamic => Some("dynamic"),
            Self::Static => Some("static"),
            Self::Either => None,
        }
    }
}

/// The fibers of one mode, and in which of them each nonzero is.
#[derive(Debug)]
pub struct Fibers {
    /// The fiber of each nonzero, by the nonzero's number.
    of: Vec<AtomicU32>,
    /// For each fiber, its nonzeros; for dynamic lengths, those that are not assigned to another mode. Equal coordinates count once.
    lengths: Vec<AtomicU32>,
}

impl Fibers {
    /// Bytes for `nnz` nonzeros, at most.
    #[must_use]
    pub fn host_bytes(nnz: u64) -> u64 {
        nnz.saturating_mul(2 * size_of::<u32>() as u64)
    }

    /// Of nonzeros that are sorted with the mode's bits of the linear index, `leaf_bits`, lowest: a fiber's are consecutive. The
    /// value of a nonzero is its number, from 0, in the order in which nonzeros will be assigned.
    ///
    /// # Panics
    /// If there are 2^32 nonzeros or more, or a number is not less than how many there are.
    #[must_use]
    pub fn of<K: Key>(sorted: &[Nonzero<K>], leaf_bits: u32) -> Self {
        assert!(u32::try_from(sorted.len()).is_ok(), "fewer than 2^32 nonzeros");
        let key = |nonzero: &Nonzero<K>| nonzero.linear.widen().checked_shr(leaf_bits).unwrap_or(0);
        let begins = |at: usize| at == 0 || key(&sorted[at - 1]) != key(&sorted[at]);
        let zeros = |count: usize| (0..count).into_par_iter().map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        // Parts number their fibers from that of the part before on.
        let part = sorted.len().div_ceil(4 * rayon::current_num_threads()).max(1);
        let parts: Vec<Range<usize>> =
            (0..sorted.len()).step_by(part).map(|from| from..sorted.len().min(from + part)).collect();
        let begin = |part: &Range<usize>| part.clone().filter(|&at| begins(at)).count();
        let mut before: Vec<usize> = parts.par_iter().map(begin).collect();
        let mut fibers = 0;
        for before in &mut before {
            fibers += std::mem::replace(before, fibers);
        }
        let (of, lengths) = (zeros(sorted.len()), zeros(fibers));
        parts.into_par_iter().zip(before).for_each(|(part, before)| {
            // Of the nonzeros so far, the fibers and the length of the last in this part.
            let (mut fibers, mut length) = (before, 0);
            for at in part {
                if begins(at) {
                    fibers += 1;
                    if length > 0 {
                        lengths[fibers - 2].fetch_add(std::mem::take(&mut length), Relaxed);
                    }
                }
                length += u32::from(at == 0 || sorted[at - 1].linear != sorted[at].linear);
                let fiber = u32::try_from(fibers - 1).expect("fewer than 2^32 nonzeros");
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a nonzero's number"
                )]
                of[sorted[at].value as usize].store(fiber, Relaxed);
            }
            lengths[fibers - 1].fetch_add(length, Relaxed);
        });
        Self { of, lengths }
    }

    /// The fiber of a nonzero.
    fn at(&self, number: usize) -> usize {
        self.of[number].load(Relaxed) as usize
    }

    /// Its length.
    fn length(&self, number: usize) -> u32 {
        self.lengths[self.at(number)].load(Relaxed)
    }

    /// Takes the nonzero out of it.
    fn shorten(&mut self, number: usize) {
        let fiber = self.at(number);
        *self.lengths[fiber].get_mut() -= 1;
    }
}

/// Nonzeros whose fibers' lengths are loaded together.
const TOUCHED: usize = 64;

/// Assigns nonzeros to leaf modes one after the other; the result depends on their order. Nonzeros with equal coordinates
/// are consecutive, count once and stay together.
#[derive(Debug)]
pub struct Assigner {
    assign: Assign,
    /// By mode.
    fibers: Vec<Fibers>,
    /// The modes, sorted by the average length of their fibers, longest first.
    ranked: Vec<usize>,
    /// The leaf mode of the last nonzero.
    last: usize,
}

impl Assigner {
    /// For nonzeros in these fibers of each mode.
    #[must_use]
    pub fn new(assign: Assign, fibers: Vec<Fibers>) -> Self {
        // All modes have the same nonzeros, so fewer fibers means longer ones.
        let mut ranked: Vec<usize> = (0..fibers.len()).collect();
        ranked.sort_by_key(|&mode| (fibers[mode].lengths.len(), mode));
        Self { assign, fibers, ranked, last: 0 }
    }

    /// The leaf modes of the nonzeros with these numbers, after those of all before them: those of their longest fibers. On
    /// ties, the mode with the longest fibers on average, then the lower mode.
    pub fn choose(&mut self, numbers: Range<usize>, leaves: &mut Vec<u8>) {
        for from in numbers.clone().step_by(TOUCHED) {
            let some = from..numbers.end.min(from + TOUCHED);
            // Lengths are all over memory: to wait for some of them at once is several times as fast.
            let touch = |number: usize| self.fibers.iter().map(move |fibers| fibers.length(number));
            std::hint::black_box(some.clone().flat_map(touch).fold(0, u32::wrapping_add));
            leaves.extend(some.map(|number| u8::try_from(self.next(number)).expect("at most 8 modes")));
        }
    }

    /// The leaf mode of the next nonzero, which has this number.
    fn next(&mut self, number: usize) -> usize {
        let same = |fibers: &Fibers| fibers.at(number) == fibers.at(number - 1);
        if number > 0 && self.fibers.iter().all(same) {
            return self.last;
        }
        let lengths = self.ranked.iter().map(|&mode| (mode, self.fibers[mode].length(number)));
        let longer = |one: (usize, u32), other: (usize, u32)| if other.1 > one.1 { other } else { one };
        self.last = lengths.reduce(longer).map_or(0, |(mode, _)| mode);
        if self.assign != Assign::Static {
            let others = self.fibers.iter_mut().enumerate().filter(|(mode, _)| *mode != self.last);
            others.for_each(|(_, fibers)| fibers.shorten(number));
        }
        self.last
    }
}
