//! The manifest's statistics, gathered from tiles in order (formats-spec/container.md, "Statistics"). Modes and the
//! tree are counted in parallel.

use super::gathered::{MULTIPLIER, SortedTile, of_total_key, total_key};
use crate::encoding::TILE_NNZ;
use crate::shape::{ModeOrder, ORDER_MAX};
use rayon::prelude::*;

/// The number of group sizes for which distinct indices are counted: 512 times powers of two.
pub const GROUP_SIZES: usize = 8;
/// Entries of the histogram of fibers' lengths.
pub const FIBER_LENGTHS: usize = 32;

/// Statistics of a partition that plans use without opening chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStatistics {
    /// Nonzeros of the groups in which distinct indices were counted.
    pub sampled: u64,
    /// For trees: nodes of each level.
    pub nodes: [u64; ORDER_MAX],
    /// For trees: the number of fibers with 2^k to 2^(k+1) - 1 nonzeros.
    pub fiber_lengths: [u64; FIBER_LENGTHS],
    /// For each mode: distinct indices in groups of 512 * 2^k nonzeros, summed over groups.
    pub distinct: Vec<[u64; GROUP_SIZES]>,
}

/// Row counters per mode. Rows with equal remainders share a counter.
const ROW_BUCKETS: usize = 1 << 16;

/// The most parts in which the rows of a mode are counted in parallel. Each takes [`ROW_BUCKETS`] counters.
const ROW_PARTS_MAX: usize = 4;

/// Nonzeros of the largest group in which distinct indices are counted.
const GROUP_NNZ: usize = TILE_NNZ << (GROUP_SIZES - 1);
/// One in this many groups is sampled.
const GROUPS_EACH: u64 = 8;

/// The manifest's statistics, gathered from tiles in order.
#[derive(Debug)]
pub struct Statistics {
    nnz: u64,
    hash: u64,
    sum_squares: Neumaier,
    /// Smallest and largest value, as keys.
    value_keys: [i64; 2],
    tree: Option<TreeCounts>,
    modes: Vec<ModeCounts>,
}

impl Statistics {
    /// Empty statistics. With an order of modes, a tree is counted too.
    #[must_use]
    pub fn new(order: usize, levels: Option<&ModeOrder>) -> Self {
        Self {
            nnz: 0,
            hash: 0,
            sum_squares: Neumaier::default(),
            value_keys: [f64::INFINITY, f64::NEG_INFINITY].map(total_key),
            tree: levels.map(TreeCounts::new),
            modes: (0..order).map(|mode| ModeCounts::new(mode, order)).collect(),
        }
    }

    /// Adds the next tiles.
    pub fn add<'t>(&mut self, tiles: impl Iterator<Item = &'t SortedTile> + Clone + Sync) {
        let Self { nnz, hash, sum_squares, value_keys: [low, high], tree, modes } = self;
        let before = *nnz;
        let of_tree = || tree.iter_mut().for_each(|tree| tiles.clone().for_each(|tile| tree.add(tile)));
        let of_modes = || modes.par_iter_mut().for_each(|mode| mode.add(before, &tiles));
        rayon::join(of_modes, of_tree);
        for tile in tiles {
            *nnz += tile.values.len() as u64;
            *hash = hash.wrapping_add(tile.hash);
            sum_squares.add(tile.sum_squares);
            *low = tile.value_keys[0].min(*low);
            *high = tile.value_keys[1].max(*high);
        }
    }

    /// Nonzeros so far.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// The hash of all nonzeros so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The statistics that plans use.
    #[must_use]
    pub fn of_partition(&self) -> PartitionStatistics {
        let modes: Vec<Samples> = self.modes.iter().map(|mode| mode.samples.closed()).collect();
        let (nodes, fiber_lengths) = self.tree.as_ref().map_or(([0; _], [0; _]), TreeCounts::finish);
        let distinct = modes.iter().map(|mode| mode.distinct).collect();
        PartitionStatistics { sampled: modes[0].sampled, nodes, fiber_lengths, distinct }
    }

    /// The same, continuing the sum of squares of the cover's earlier partitions.
    #[must_use]
    pub(super) fn following(self, squares: Neumaier) -> Self {
        Self { sum_squares: squares, ..self }
    }
}

/// What manifests record about all nonzeros: those of cover 0, partition after partition.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    nnz: u64,
    hash: u64,
    sum_squares: Neumaier,
    /// Smallest and largest value, as keys.
    value_keys: Option<[i64; 2]>,
    /// Row counters of each mode.
    rows: Vec<Vec<u64>>,
}

impl Totals {
    /// Adds the next partition. Its sum of squares continues [`Totals::squares`].
    pub fn add(&mut self, partition: Statistics) {
        self.nnz += partition.nnz;
        self.hash = self.hash.wrapping_add(partition.hash);
        self.sum_squares = partition.sum_squares;
        let [low, high] = partition.value_keys;
        let [least, most] = self.value_keys.unwrap_or([low, high]);
        self.value_keys = Some([low.min(least), high.max(most)]);
        let rows = partition.modes.into_iter().map(ModeCounts::rows);
        if self.rows.is_empty() {
            self.rows = rows.collect();
        } else {
            let pairs = self.rows.iter_mut().zip(rows);
            pairs.for_each(|(all, rows)| all.iter_mut().zip(rows).for_each(|(all, row)| *all += row));
        }
    }

    /// Bytes of memory for a tensor of `order`.
    #[must_use]
    pub fn host_bytes(order: usize) -> u64 {
        (order * ROW_BUCKETS * size_of::<u64>()) as u64
    }

    /// Nonzeros so far.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// Their hash.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The running sum of the squared values.
    #[must_use]
    pub fn squares(&self) -> Neumaier {
        self.sum_squares
    }

    /// The sum of the squared values.
    #[must_use]
    pub fn sum_squares(&self) -> f64 {
        self.sum_squares.total()
    }

    /// The smallest value.
    #[must_use]
    pub fn value_min(&self) -> f64 {
        self.value_keys.map_or(f64::INFINITY, |keys| of_total_key(keys[0]))
    }

    /// The largest value.
    #[must_use]
    pub fn value_max(&self) -> f64 {
        self.value_keys.map_or(f64::NEG_INFINITY, |keys| of_total_key(keys[1]))
    }

    /// For each mode, an upper bound on the nonzeros of a row.
    #[must_use]
    pub fn longest_row_bounds(&self) -> Vec<u64> {
        self.rows.iter().map(|rows| rows.iter().copied().max().unwrap_or(0)).collect()
    }
}

/// Counts of one mode: row counters, and distinct indices in groups of nonzeros.
#[derive(Clone, Debug)]
struct ModeCounts {
    mode: usize,
    /// Counters for each part of the tiles.
    rows: Vec<Vec<u64>>,
    samples: Samples,
}

/// Distinct indices in some groups of nonzeros.
#[derive(Clone, Debug, Default)]
struct Samples {
    sampled: u64,
    /// The indices of the open sampled group.
    open: Vec<u32>,
    /// For each hash, the index met last and its position in the group plus one.
    met: Vec<u64>,
    distinct: [u64; GROUP_SIZES],
}

impl ModeCounts {
    /// For one of `order` modes that are counted on the current pool.
    fn new(mode: usize, order: usize) -> Self {
        let parts = (rayon::current_num_threads() / order).clamp(1, ROW_PARTS_MAX);
        Self { mode, rows: vec![vec![0; ROW_BUCKETS]; parts], samples: Samples::default() }
    }

    /// The row counters.
    fn rows(self) -> Vec<u64> {
        let add = |mut all: Vec<u64>, part: Vec<u64>| {
            all.iter_mut().zip(part).for_each(|(all, row)| *all += row);
            all
        };
        self.rows.into_iter().reduce(add).unwrap_or_default()
    }

    /// Adds tiles that follow `nnz` nonzeros.
    fn add<'t>(&mut self, mut nnz: u64, tiles: &(impl Iterator<Item = &'t SortedTile> + Clone + Sync)) {
        let Self { mode, rows, samples } = self;
        let parts = rows.len();
        let count = || {
            rows.par_iter_mut().enumerate().with_max_len(1).for_each(|(part, rows)| {
                let indices = tiles.clone().skip(part).step_by(parts).flat_map(|tile| tile.column(*mode));
                indices.for_each(|&index| rows[index as usize % ROW_BUCKETS] += 1);
            });
        };
        let sample = || {
            for tile in tiles.clone() {
                let (column, group) = (tile.column(*mode), nnz / GROUP_NNZ as u64);
                nnz += column.len() as u64;
                if group.is_multiple_of(GROUPS_EACH) {
                    samples.open.extend_from_slice(column);
                    if nnz.is_multiple_of(GROUP_NNZ as u64) {
                        samples.close();
                    }
                }
            }
        };
        rayon::join(count, sample);
    }
}

impl Samples {
    /// Counts the open group.
    fn close(&mut self) {
        self.sampled += self.open.len() as u64;
        let counts = distinct(&self.open, &mut self.met);
        self.distinct.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
        self.open.clear();
    }

    /// A copy in which the open group has been counted.
    fn closed(&self) -> Self {
        let mut closed = self.clone();
        closed.close();
        closed
    }
}

/// Distinct numbers in groups of 512 * 2^k of at most [`GROUP_NNZ`], summed for each k. An index counts in every group
/// that is so small that it has not occurred in it before.
fn distinct(indices: &[u32], met: &mut Vec<u64>) -> [u64; GROUP_SIZES] {
    let slots = (2 * indices.len()).next_power_of_two();
    met.clear();
    met.resize(slots, 0);
    // Entry k: the number of indices that are new in groups of the k smallest sizes and no others.
    let mut new_in = [0u64; GROUP_SIZES + 1];
    for (&index, at) in indices.iter().zip(0u64..) {
        let mut slot = (u64::from(index).wrapping_mul(MULTIPLIER) >> 32) as usize % slots;
        while met[slot] != 0 && met[slot] >> 32 != u64::from(index) {
            slot = (slot + 1) % slots;
        }
        let last = (met[slot] & u64::from(u32::MAX)).checked_sub(1);
        let apart = |last: u64| u64::BITS - ((last ^ at) / TILE_NNZ as u64).leading_zeros();
        new_in[last.map_or(GROUP_SIZES, |last| apart(last) as usize)] += 1;
        met[slot] = u64::from(index) << 32 | (at + 1);
    }
    std::array::from_fn(|size| new_in[size + 1..].iter().sum())
}

/// A tree's nodes and fibers, regardless of chunks.
#[derive(Clone, Debug)]
struct TreeCounts {
    levels: ModeOrder,
    last: Option<[u32; ORDER_MAX]>,
    nodes: [u64; ORDER_MAX],
    /// Nonzeros of the open fiber.
    fiber: u64,
    lengths: [u64; FIBER_LENGTHS],
}

impl TreeCounts {
    fn new(levels: &ModeOrder) -> Self {
        Self { levels: *levels, last: None, nodes: [0; _], fiber: 0, lengths: [0; _] }
    }

    fn add(&mut self, tile: &SortedTile) {
        let (order, nnz) = (self.levels.modes().len(), tile.values.len());
        // For each nonzero, the first level at which it differs from the previous one; the leaf level if none
        // does.
        let mut firsts = [u8::MAX; TILE_NNZ];
        for (&mode, level) in self.levels.modes()[..order - 1].iter().zip(0u8..8).rev() {
            let column = &tile.column(mode.into())[..nnz];
            for ((first, before), index) in firsts[1..].iter_mut().zip(column).zip(&column[1..]) {
                *first = if before == index { *first } else { level };
            }
        }
        let path = |i: usize| {
            std::array::from_fn(|l| self.levels.modes().get(l).map_or(0, |&m| tile.column(m.into())[i]))
        };
        let start: [u32; ORDER_MAX] = path(0);
        let differs = |last: [u32; ORDER_MAX]| (0..order - 1).position(|l| last[l] != start[l]);
        let first = self.last.map_or(Some(0), differs).unwrap_or(order - 1);
        let last = path(nnz - 1);
        firsts[0] = u8::try_from(first).expect("at most 8 levels");
        self.last = Some(last);
        let mut begun = [0; ORDER_MAX];
        for &first in &firsts[..nnz] {
            let first = usize::from(first).min(order - 1);
            begun[first] += 1;
            if first < order - 1 {
                Self::count(&mut self.lengths, self.fiber);
                self.fiber = 0;
            }
            self.fiber += 1;
        }
        // A new node at one level implies new nodes at all levels below.
        let mut nodes = 0;
        for (all, begun) in self.nodes[..order].iter_mut().zip(begun) {
            nodes += begun;
            *all += nodes;
        }
    }

    fn count(lengths: &mut [u64; FIBER_LENGTHS], fiber: u64) {
        if fiber > 0 {
            lengths[(fiber.ilog2() as usize).min(FIBER_LENGTHS - 1)] += 1;
        }
    }

    fn finish(&self) -> ([u64; ORDER_MAX], [u64; FIBER_LENGTHS]) {
        let mut lengths = self.lengths;
        Self::count(&mut lengths, self.fiber);
        (self.nodes, lengths)
    }
}

/// Neumaier's compensated sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Neumaier {
    sum: f64,
    lost: f64,
}

impl Neumaier {
    /// Adds a number.
    pub fn add(&mut self, x: f64) {
        let sum = self.sum + x;
        self.lost += if self.sum.abs() >= x.abs() { (self.sum - sum) + x } else { (x - sum) + self.sum };
        self.sum = sum;
    }

    /// The sum; infinity if it overflowed.
    #[must_use]
    pub fn total(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.lost } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Compares with sets, for groups of every size, with indices that repeat at short and long distances.
    #[test]
    fn distinct_indices_are_counted_in_groups_of_every_size() {
        let index =
            |i: u32| if i.is_multiple_of(3) { i % 700 } else { (i.wrapping_mul(2_654_435_761) >> 12) % 9000 };
        for nnz in [1, 511, 512, 513, 5000, 65_536] {
            let indices: Vec<u32> = (0..nnz).map(index).collect();
            let found = distinct(&indices, &mut vec![7; 3]);
            for (size, count) in found.into_iter().enumerate() {
                let groups = indices.chunks(TILE_NNZ << size);
                let expected: usize = groups.map(|group| group.iter().collect::<HashSet<_>>().len()).sum();
                assert_eq!(count, expected as u64, "{nnz} nonzeros, groups of {}", TILE_NNZ << size);
            }
        }
    }
}
