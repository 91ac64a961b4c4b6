//! Sorts batches that fit in memory. Every nonzero goes into the bucket of the leading bits of its linear index; a bucket is small enough
//! to be sorted in a core's cache.

use super::merge::spread;
use super::sort::sort;
use super::split::split;
use crate::coo::Batch;
use crate::error::Result;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::sys::Sys;
use rayon::prelude::*;
use std::slice::IterMut;

/// The fewest threads that use buckets. With fewer, clearing fresh memory costs more than this way of sorting saves.
pub const THREADS_MIN: usize = 4;
/// The number of nonzeros in a bucket, roughly. They fit a core's cache.
const BUCKET_NNZ: usize = 1 << 13;
/// The most buckets. Their write positions fit a core's cache.
const BUCKETS_MAX: usize = 1 << 12;
/// The most bytes of a bucket that is sorted by copying; larger buckets are sorted in place.
const COPIED_BYTES: usize = 1 << 20;

/// Sorts the `nnz` nonzeros of `batches` by linear index, then by the total order of the values. Each batch is freed after its nonzeros
/// have been copied.
pub fn sort_batches<K: Key>(
    sys: &Sys,
    batches: Vec<Batch>,
    nnz: usize,
    layout: &BitLayout,
) -> Result<Vec<Nonzero<K>>> {
    let linearizer = Linearizer::<K>::new(layout);
    let buckets_log = (nnz / BUCKET_NNZ).clamp(1, BUCKETS_MAX).ilog2().min(layout.bits());
    let shift = layout.bits() - buckets_log;
    let mut nonzeros = sys.par_vec(nnz, |_| Nonzero::default())?;
    let groups = groups(batches, nnz / (2 * rayon::current_num_threads()));
    let counted = groups.par_iter().map(|group| count(group, &linearizer, shift, 1 << buckets_log));
    let counted: Vec<Vec<usize>> = counted.collect();

    // Each bucket has a slice for every group, so that threads write without waiting for each other.
    let lengths = (0..1 << buckets_log).flat_map(|bucket| counted.iter().map(move |counts| counts[bucket]));
    let mut targets: Vec<Vec<IterMut<'_, Nonzero<K>>>> = Vec::new();
    targets.resize_with(groups.len(), || Vec::with_capacity(1 << buckets_log));
    for (i, slice) in split(&mut nonzeros, lengths).into_iter().enumerate() {
        targets[i % groups.len()].push(slice.iter_mut());
    }
    groups.into_par_iter().zip(targets).for_each(|(group, mut targets)| {
        for batch in group {
            for_each(&batch, &linearizer, |nonzero| {
                *targets[bucket(&nonzero, shift)].next().expect("counted before") = nonzero;
            });
        }
    });
    sys.check_cancelled()?;

    let lengths = (0..1 << buckets_log).map(|bucket| counted.iter().map(|counts| counts[bucket]).sum());
    split(&mut nonzeros, lengths).into_par_iter().with_max_len(1).for_each_init(
        Scratch::default,
        |scratch, bucket| {
            if size_of_val(bucket) <= COPIED_BYTES { scratch.sort(bucket) } else { sort(bucket) }
        },
    );
    Ok(nonzeros)
}

/// Cuts batches into groups of about `nnz` nonzeros.
fn groups(batches: Vec<Batch>, nnz: usize) -> Vec<Vec<Batch>> {
    let (mut groups, mut open, mut open_nnz) = (Vec::new(), Vec::new(), 0);
    for batch in batches {
        open_nnz += batch.nnz();
        open.push(batch);
        if open_nnz >= nnz {
            groups.push(std::mem::take(&mut open));
            open_nnz = 0;
        }
    }
    groups.push(open);
    groups
}

fn for_each<K: Key>(batch: &Batch, linearizer: &Linearizer<K>, mut take: impl FnMut(Nonzero<K>)) {
    for (row, &value) in batch.indices.chunks_exact(batch.order().max(1)).zip(&batch.values) {
        take(Nonzero { linear: linearizer.scatter(row), value });
    }
}

fn bucket<K: Key>(nonzero: &Nonzero<K>, shift: u32) -> usize {
    nonzero.linear.widen().checked_shr(shift).unwrap_or(0) as usize
}

/// The number of nonzeros that a group puts into each bucket.
fn count<K: Key>(group: &[Batch], linearizer: &Linearizer<K>, shift: u32, buckets: usize) -> Vec<usize> {
    let mut counts = vec![0; buckets];
    for batch in group {
        for_each(batch, linearizer, |nonzero| counts[bucket(&nonzero, shift)] += 1);
    }
    counts
}

/// A thread's buffers for sorting buckets.
#[derive(Debug)]
struct Scratch<K> {
    copy: Vec<Nonzero<K>>,
    ends: Vec<usize>,
}

impl<K> Default for Scratch<K> {
    fn default() -> Self {
        Self { copy: Vec::new(), ends: Vec::new() }
    }
}

impl<K: Key> Scratch<K> {
    fn sort(&mut self, nonzeros: &mut [Nonzero<K>]) {
        self.copy.clear();
        self.copy.extend_from_slice(nonzeros);
        let linear = || self.copy.iter().map(|nonzero| nonzero.linear);
        if let Some((low, high)) = linear().min().zip(linear().max()) {
            spread(&[&self.copy], [low.widen(), high.widen()], nonzeros, &mut self.ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Wide;
    use crate::random::Counter;
    use crate::shape::Shape;

    /// Compares with the standard library's sort: buckets of all lengths, clustered coordinates, and one that repeats so often that its
    /// bucket is sorted in place.
    fn check<K: Key>(dims: &[u64], nnz: u64, crowd: u64) {
        let layout = BitLayout::new(&Shape::new(dims).unwrap());
        let linearizer = Linearizer::<K>::new(&layout);
        let random: Vec<Counter> = (0..=dims.len() as u64).map(|stream| Counter::new(5, stream)).collect();
        let index = |i: u64, m: usize| {
            let within = if i.is_multiple_of(crowd) { 1 } else { dims[m] };
            u32::try_from(random[m].bits(i) % within).unwrap()
        };
        let batch = |from: u64| {
            let rows = || from..(from + 1777).min(nnz);
            let indices = rows().flat_map(|i| (0..dims.len()).map(move |m| (i, m))).map(|(i, m)| index(i, m));
            let values = rows()
                .map(|i| [0.0, -0.0, 1.5, -3.0][usize::try_from(random[dims.len()].bits(i) % 4).unwrap()]);
            Batch { indices: indices.collect(), values: values.collect() }
        };
        let batches: Vec<Batch> = (0..nnz).step_by(1777).map(batch).collect();
        let mut expected: Vec<Nonzero<K>> = Vec::new();
        for batch in &batches {
            for_each(batch, &linearizer, |nonzero| expected.push(nonzero));
        }
        expected.sort_by(Nonzero::order);
        let sorted = sort_batches::<K>(&Sys::default(), batches, expected.len(), &layout).unwrap();
        let bits = |n: &Nonzero<K>| (n.linear.widen(), n.value.to_bits());
        assert!(sorted.iter().map(bits).eq(expected.iter().map(bits)), "{dims:?}, {nnz} nonzeros");
    }

    #[test]
    fn batches_are_sorted_like_the_standard_library_does() {
        check::<u64>(&[1, 1], 3000, 7);
        check::<u64>(&[12_000, 9000, 28_000], 10, 7);
        check::<u64>(&[12_000, 9000, 28_000], 300_000, 7);
        check::<u64>(&[3, 1 << 31, 1 << 31], 100_000, 2);
        check::<Wide>(&[1 << 31, 1 << 31, 1 << 31, 1 << 31], 200_000, 2);
    }
}
