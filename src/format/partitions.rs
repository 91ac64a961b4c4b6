//! Partitions and covers: how a tensor becomes a list of partitions, and what the partitions of a store can be.
//!
//! A **partition** is a sequence of nonzeros in one sort order and layout, cut into chunks. A **cover** is a set of
//! partitions that holds every nonzero once (formats-spec/container.md). A format with several partitions defines three
//! things: the partitions that it makes of a tensor ([`Scheme`]), those that it accepts in a manifest
//! ([`ChunkFormat::check_among`](super::ChunkFormat::check_among)), and the cover from which a mode is computed best
//! ([`ChunkFormat::distance`](super::ChunkFormat::distance)). Nothing else depends on the number of partitions: a pass
//! reads one cover, or several one after the other, as one sequence of chunks.

use super::{Checked, Format};
use crate::linear::BitLayout;
use crate::shape::{ModeOrder, Shape};

/// What a manifest records about a partition, as far as other partitions depend on it.
#[derive(Clone, Debug)]
pub struct PartitionRecord {
    /// Its format.
    pub format: Format,
    /// Bit m is set if results of mode m can be computed from it.
    pub targets: u32,
    /// Bit c is set if it belongs to cover c.
    pub covers: u32,
}

/// The bits of all modes of a tensor of `order`.
#[must_use]
pub fn all_modes(order: usize) -> u32 {
    (1 << order) - 1
}

/// Fails unless the partition at index `at` is the store's only one and serves all modes.
pub(super) fn check_alone(all: &[PartitionRecord], order: usize) -> Checked<()> {
    match all {
        [one] if one.covers == 1 && one.targets == all_modes(order) => Ok(()),
        [_] => Err("covers"),
        _ => Err("partitions of the format"),
    }
}

/// Fails unless the partition at index `at` is a cover on its own.
pub(super) fn check_own_cover(all: &[PartitionRecord], at: usize) -> Checked<()> {
    let covers = all[at].covers;
    let shared = all.iter().enumerate().any(|(other, record)| other != at && record.covers & covers != 0);
    if covers.is_power_of_two() && !shared { Ok(()) } else { Err("covers of the format") }
}

/// The nonzeros that a partition takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// All.
    All,
    /// Those of slices of one kind.
    Slices(SliceKind),
    /// Nonzeros assigned to the tree of this leaf mode.
    Leaf(usize),
}

/// Kinds of slices, by their fibers (Nisa et al., IPDPS 2019, section V).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SliceKind {
    /// One nonzero.
    Single,
    /// Several fibers, each of one nonzero, and few enough that a packer can look ahead to the slice's end.
    Singletons,
    /// Any other.
    Fibers,
}

/// A partition to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPlan {
    /// The format of its chunks.
    pub format: Format,
    /// Bit m is set if results of mode m can be computed from it.
    pub targets: u32,
    /// Bit c is set if it belongs to cover c.
    pub covers: u32,
    /// The nonzeros that it takes.
    pub takes: Takes,
}

/// The partitions of a tensor, in the store's order. Partitions without nonzeros are left out of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// At least one.
    pub partitions: Vec<PartitionPlan>,
}

impl Scheme {
    /// One partition, which serves all modes.
    #[must_use]
    pub fn whole(format: Format, order: usize) -> Self {
        let plan = PartitionPlan { format, targets: all_modes(order), covers: 1, takes: Takes::All };
        Self { partitions: vec![plan] }
    }

    /// A cover for each of `formats`. A single cover serves all modes; of several, each serves its own mode.
    #[must_use]
    pub fn covers(formats: Vec<Format>, order: usize) -> Self {
        let alone = formats.len() == 1;
        let plan = |(cover, format): (u32, Format)| PartitionPlan {
            targets: if alone { all_modes(order) } else { format.target_alone() },
            format,
            covers: 1 << cover,
            takes: Takes::All,
        };
        Self { partitions: (0..).zip(formats).map(plan).collect() }
    }

    /// The scheme that produced the partitions of a store.
    #[must_use]
    pub fn recorded(partitions: &[PartitionRecord]) -> Self {
        let plan = |record: &PartitionRecord| PartitionPlan {
            format: record.format.clone(),
            targets: record.targets,
            covers: record.covers,
            takes: record.format.takes(),
        };
        let mut partitions: Vec<PartitionPlan> = partitions.iter().map(plan).collect();
        let mut known: Vec<PartitionPlan> = Vec::new();
        partitions.retain(|plan| {
            let is_new = !known.contains(plan);
            known.push(plan.clone());
            is_new
        });
        // Partitions that took no nonzeros then may take some now.
        let absent: Vec<PartitionPlan> =
            partitions.iter().flat_map(|plan| plan.format.beside(plan)).collect();
        for plan in absent {
            let is_there = |other: &PartitionPlan| (other.covers, other.takes) == (plan.covers, plan.takes);
            if !partitions.iter().any(is_there) {
                partitions.push(plan);
            }
        }
        partitions.sort_by_key(|plan| (plan.covers.trailing_zeros(), plan.takes));
        Self { partitions }
    }

    /// The format of the first partition, which gives the store's format its name.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.partitions[0].format
    }

    /// Whether nonzeros are assigned to partitions.
    #[must_use]
    pub fn assigns(&self) -> bool {
        self.partitions.iter().any(|plan| matches!(plan.takes, Takes::Leaf(_)))
    }

    /// The layout of the linear index for the first sort: that of the first partition or, if nonzeros are assigned to
    /// partitions, the interleaved one, in whose order they are assigned.
    #[must_use]
    pub fn bit_layout(&self, shape: &Shape) -> BitLayout {
        if self.assigns() { BitLayout::new(shape) } else { self.format().bit_layout(shape) }
    }
}

/// The modes at the roots of trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trees {
    /// One tree for each mode.
    All,
    /// One tree for all modes, rooted at the shortest.
    One,
    /// One tree for all modes, rooted at this one, counted from 0.
    Root(usize),
}

impl Trees {
    /// The order of modes of each tree: the root, then the others by ascending dims.
    #[must_use]
    pub fn orders(self, shape: &Shape) -> Vec<ModeOrder> {
        let rooted = |root: usize| rooted(shape, &[root]);
        match self {
            Self::All => (0..shape.order()).map(rooted).collect(),
            Self::One => vec![rooted(by_dims(shape, &[])[0])],
            Self::Root(root) => vec![rooted(root)],
        }
    }

    /// Why it does not suit tensors of `order`; `None` if it does.
    #[must_use]
    pub fn refusal(self, order: usize) -> Option<String> {
        let Self::Root(root) = self else { return None };
        (root >= order).then(|| format!("tree of mode {}: the tensor has modes 1 to {order}", root + 1))
    }

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::All => "all".into(),
            Self::One => "one".into(),
            Self::Root(root) => (root + 1).to_string(),
        }
    }
}

/// The modes except `without`, by ascending dims; on ties, the lower mode first.
#[must_use]
pub fn by_dims(shape: &Shape, without: &[usize]) -> Vec<usize> {
    let mut modes: Vec<usize> = (0..shape.order()).filter(|mode| !without.contains(mode)).collect();
    modes.sort_by_key(|&mode| (shape.dims()[mode], mode));
    modes
}

/// `first`, then the other modes by ascending dims.
#[must_use]
pub fn rooted(shape: &Shape, first: &[usize]) -> ModeOrder {
    let modes: Vec<usize> = first.iter().copied().chain(by_dims(shape, first)).collect();
    ModeOrder::new(&modes).expect("each mode once")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_rooted_and_the_modes_below_ascend_by_dims() {
        let shape = Shape::new(&[12, 600, 40, 12]).unwrap();
        let modes = |trees: Trees| -> Vec<Vec<u8>> {
            trees.orders(&shape).iter().map(|order| order.modes().to_vec()).collect()
        };
        let all = [[0, 3, 2, 1], [1, 0, 3, 2], [2, 0, 3, 1], [3, 0, 2, 1]].map(Vec::from);
        assert_eq!(modes(Trees::All), all);
        assert_eq!(modes(Trees::One), [[0, 3, 2, 1].to_vec()]);
        assert_eq!(modes(Trees::Root(2)), [all[2].clone()]);
        assert!(Trees::Root(4).refusal(4).unwrap().contains("mode 5"));
    }
}
