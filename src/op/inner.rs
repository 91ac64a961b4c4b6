//! The Frobenius norm of a tensor, and the inner product of two tensors: the sum of squares of all nonzeros, and of
//! products of values with equal coordinates.
//!
//! Squares and products are rounded to f64. Their sums are exact ([`super::exact`]) and rounded once, so results depend
//! only on the nonzeros: not on formats, chunks, threads or memory.
//!
//! The inner product is linear in either tensor, and each is the sum of its parts. A [`Part`] of the first, as large as
//! memory allows, is sorted by coordinates, and the second streams past it. No files are written. Repeated coordinates
//! count each time.

use super::exact::ExactSum;
use super::rows_of;
use crate::backend::host::{HostOp, Tiles};
use crate::error::Result;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::shape::{ModeOrder, Shape};
use crate::sys::Sys;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// A sum that several threads add to.
#[derive(Debug)]
pub(super) struct SharedSum(Vec<Mutex<ExactSum>>);

impl SharedSum {
    pub fn new() -> Self {
        Self((0..rayon::current_num_threads()).map(|_| Mutex::default()).collect())
    }

    /// Adds `numbers` to this thread's part.
    pub fn add(&self, numbers: impl Iterator<Item = f64>) {
        let part = rayon::current_thread_index().unwrap_or(0) % self.0.len();
        let mut part = self.0[part].lock().unwrap_or_else(PoisonError::into_inner);
        numbers.for_each(|x| part.add(x));
    }

    pub fn total(self) -> f64 {
        let mut sum = ExactSum::default();
        for part in self.0 {
            sum.add_all(&part.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        sum.total()
    }
}

/// Bytes of such a sum for `threads` threads.
#[must_use]
pub fn sums_bytes(threads: usize) -> u64 {
    ExactSum::BYTES * (threads as u64 + 1)
}

/// The sum of the squares of all values.
#[derive(Debug)]
pub struct Norm(SharedSum);

impl Norm {
    /// An empty sum. Runs on the current rayon pool.
    #[must_use]
    pub fn new() -> Self {
        Self(SharedSum::new())
    }

    /// The sum.
    #[must_use]
    pub fn sum_squares(self) -> f64 {
        self.0.total()
    }
}

impl Default for Norm {
    fn default() -> Self {
        Self::new()
    }
}

impl HostOp for Norm {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let sum = &self.0;
        let add = |t: usize| sum.add(batch.tile(t).values.iter().map(|value| value * value));
        (0..batch.tiles()).into_par_iter().for_each(add);
        Ok(())
    }
}

/// The layout by which nonzeros are found: all modes, ascending.
#[must_use]
pub fn layout(shape: &Shape) -> BitLayout {
    let modes: Vec<usize> = (0..shape.order()).collect();
    BitLayout::concatenated(shape, &ModeOrder::new(&modes).expect("modes of a shape, each once"))
}

/// Nonzeros of a store from a given one on, as many as fit. As an operation, it collects those of a pass.
#[derive(Debug)]
pub struct Part<K> {
    linearizer: Linearizer<K>,
    /// Nonzeros of the pass before the first.
    skipped: u64,
    nonzeros: Vec<Nonzero<K>>,
    room: usize,
}

impl<K: Key> Part<K> {
    /// Room for `room` nonzeros of tensors of `shape`.
    pub fn new(sys: &Sys, shape: &Shape, room: usize) -> Result<Self> {
        let mut nonzeros = Vec::new();
        sys.reserve(&mut nonzeros, room, room)?;
        Ok(Self { linearizer: Linearizer::new(&layout(shape)), skipped: 0, nonzeros, room })
    }

    /// Makes it ready for a pass of which it takes the nonzeros from number `from` on.
    pub fn start(&mut self, from: u64) {
        self.nonzeros.clear();
        self.skipped = from;
    }

    /// Brings what has come into order. How many there are.
    pub fn sort(&mut self) -> u64 {
        self.nonzeros.par_sort_unstable_by_key(|nonzero| nonzero.linear);
        self.nonzeros.len() as u64
    }
}

impl<K: Key> HostOp for Part<K> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        // Of each tile the nonzeros behind those that are skipped, as far as there is room.
        let mut wanted = Vec::with_capacity(batch.tiles());
        let filled = self.nonzeros.len();
        let mut room = self.room - filled;
        for t in 0..batch.tiles() {
            let nnz = batch.tile(t).nnz;
            let skipped = usize::try_from(self.skipped).unwrap_or(usize::MAX).min(nnz);
            self.skipped -= skipped as u64;
            let taken = (nnz - skipped).min(room);
            room -= taken;
            wanted.push(skipped..skipped + taken);
        }
        self.nonzeros.resize(self.room - room, Nonzero::default());
        let mut rest = &mut self.nonzeros[filled..];
        let mut work = Vec::with_capacity(wanted.len());
        for (t, range) in wanted.into_iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let (nonzeros, behind) = rest.split_at_mut(range.len());
            rest = behind;
            work.push((t, range, nonzeros));
        }
        let linearizer = &self.linearizer;
        work.into_par_iter().for_each(|(t, range, nonzeros)| {
            let tile = batch.tile(t);
            let rows = rows_of(&tile);
            let found = rows.chunks_exact(tile.order()).zip(tile.values).skip(range.start);
            for (nonzero, (row, &value)) in nonzeros.iter_mut().zip(found) {
                *nonzero = Nonzero { linear: linearizer.scatter(row), value };
            }
        });
        Ok(())
    }
}

/// The inner product of a sorted [`Part`] of one tensor and of another that streams past it.
#[derive(Debug)]
pub struct Inner(SharedSum);

impl Inner {
    /// None yet. Runs on the current rayon pool.
    #[must_use]
    pub fn new() -> Self {
        Self(SharedSum::new())
    }

    /// The operation on the other tensor, whose sum this one takes.
    #[must_use]
    pub fn with<'a, K: Key>(&'a self, part: &'a Part<K>) -> impl HostOp + 'a {
        Pass { inner: self, part }
    }

    /// The sum over all parts.
    #[must_use]
    pub fn total(self) -> f64 {
        self.0.total()
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self::new()
    }
}

struct Pass<'a, K> {
    inner: &'a Inner,
    part: &'a Part<K>,
}

impl<K: Key> HostOp for Pass<'_, K> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let (sum, Part { linearizer, nonzeros, .. }) = (&self.inner.0, self.part);
        (0..batch.tiles()).into_par_iter().for_each(|t| {
            let tile = batch.tile(t);
            let rows = rows_of(&tile);
            let mut near = 0;
            let products = rows.chunks_exact(tile.order()).zip(tile.values).flat_map(|(row, value)| {
                let linear = linearizer.scatter(row);
                near = find(nonzeros, linear, near);
                let found = nonzeros[near..].iter().take_while(move |other| other.linear == linear);
                found.map(move |other| value * other.value)
            });
            sum.add(products);
        });
        Ok(())
    }
}

/// The first of `sorted` that is not before `linear`, looked for from `near` on, at twice the distance in each step: nonzeros that follow one another in a store
/// are often near each other here too.
fn find<K: Key>(sorted: &[Nonzero<K>], linear: K, near: usize) -> usize {
    let is_before = |at: usize| sorted.get(at).is_some_and(|nonzero| nonzero.linear < linear);
    let (mut low, mut high, mut step) = (near, near, 1);
    if is_before(near) {
        while is_before(high) {
            (low, high, step) = (high + 1, (high + step).min(sorted.len()), step * 2);
        }
    } else {
        while low > 0 && !is_before(low - 1) {
            (high, low, step) = (low, low.saturating_sub(step), step * 2);
        }
    }
    low + sorted[low..high].partition_point(|nonzero| nonzero.linear < linear)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From wherever the search starts it finds what a search of all finds.
    #[test]
    fn searches_find_the_first_from_anywhere() {
        let keys = [1, 1, 4, 4, 4, 9, 10, 30, 31, 31, 70];
        let sorted = keys.map(|linear: u64| Nonzero { linear, value: 0.0 });
        for linear in 0..80 {
            let wanted = sorted.partition_point(|nonzero| nonzero.linear < linear);
            for near in 0..=sorted.len() {
                assert_eq!(find(&sorted, linear, near), wanted, "{linear} from {near}");
            }
        }
        assert_eq!(find::<u64>(&[], 3, 0), 0);
    }
}
