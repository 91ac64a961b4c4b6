//! MM-CSF, mixed-mode compressed sparse fibers (Nisa, Li, Sukumaran-Rajam, Rawat, Krishnamoorthy and Sadayappan, "An
//! efficient mixed-mode representation of sparse tensors", SC 2019, section 4; formats-spec/formats.md). Each nonzero
//! is in one tree: the one whose leaf mode is the mode of its longest fiber.

use super::partitions::{PartitionRecord, all_modes, by_dims};
use super::trees::{TreeKind, TreeOf};
use super::{Checked, FiberCounts, Format, PartitionPlan, Scheme, Takes};
use crate::linear::BitLayout;
use crate::shape::{ModeOrder, Shape};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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
    /// By the lengths of the whole tensor's fibers.
    Static,
}

impl Assign {
    /// The name that users see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Static => "static",
        }
    }
}

/// Mixes a fiber's key. The standard hasher resists chosen keys that collide, but takes several times as long.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, x: u64) {
        let z = (self.0 ^ x).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = (z ^ z >> 31).wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(29);
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves of a 128-bit number")]
    fn write_u128(&mut self, x: u128) {
        self.write_u64(x as u64);
        self.write_u64((x >> 64) as u64);
    }
}

/// Lengths of the fibers of one mode, keyed by the linear index without the mode's bits.
type Lengths = HashMap<u128, u32, BuildHasherDefault<Mixer>>;

/// Assigns nonzeros to leaf modes. All nonzeros are counted first, then each is assigned, in the same order; the result
/// depends on the order. Nonzeros with equal coordinates count once and stay together.
#[derive(Debug)]
pub struct Assigner {
    assign: Assign,
    /// Masks of a linear index that clear the mode's bits.
    masks: Vec<u128>,
    fibers: Vec<Lengths>,
    /// The modes, sorted by the average length of their fibers, longest first.
    ranked: Vec<usize>,
}

impl Assigner {
    /// For nonzeros whose linear indices use `layout`.
    #[must_use]
    pub fn new(layout: &BitLayout, assign: Assign) -> Self {
        let bits = |mode: usize| {
            let own = layout.bit_modes().iter().zip(0u32..).filter(|(of, _)| usize::from(**of) == mode);
            own.fold(0u128, |bits, (_, bit)| bits | 1 << bit)
        };
        let masks: Vec<u128> = (0..layout.order()).map(|mode| !bits(mode)).collect();
        Self { assign, fibers: vec![Lengths::default(); masks.len()], masks, ranked: Vec::new() }
    }

    /// Counts a nonzero.
    pub fn count(&mut self, linear: u128) {
        for (lengths, mask) in self.fibers.iter_mut().zip(&self.masks) {
            *lengths.entry(linear & mask).or_insert(0) += 1;
        }
    }

    /// Bytes that the counts take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // A slot holds a key, a count and a byte; a growing table also keeps the previous one.
        let each = |lengths: &Lengths| (lengths.capacity() as u64 * 8 / 7).next_power_of_two() * 33;
        self.fibers.iter().map(each).sum::<u64>() * 3 / 2
    }

    /// Ends counting.
    pub fn counted(&mut self) {
        // All modes have the same nonzeros, so fewer fibers means longer ones.
        self.ranked = (0..self.fibers.len()).collect();
        self.ranked.sort_by_key(|&mode| (self.fibers[mode].len(), mode));
    }

    /// The leaf mode of the next nonzero: that of its longest fiber. On ties, the mode with the longest fibers on
    /// average, then the lower mode.
    pub fn choose(&mut self, linear: u128) -> usize {
        let length =
            |&mode: &usize| self.fibers[mode].get(&(linear & self.masks[mode])).copied().unwrap_or(0);
        let mut chosen = self.ranked.first().copied().unwrap_or(0);
        for mode in self.ranked.iter().skip(1) {
            if length(mode) > length(&chosen) {
                chosen = *mode;
            }
        }
        if self.assign == Assign::Dynamic {
            for (mode, (lengths, mask)) in self.fibers.iter_mut().zip(&self.masks).enumerate() {
                if mode != chosen
                    && let Some(left) = lengths.get_mut(&(linear & mask))
                {
                    *left = left.saturating_sub(1);
                }
            }
        }
        chosen
    }
}
