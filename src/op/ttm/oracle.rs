//! The oracle of SpTTM: the definition, one nonzero after the other in f64, directly from a source of coordinates. It
//! shares no code with stores, decoding, sorted runs or kernels.
//!
//! Each column of the result is a TTV ([`crate::op::ttv`]), which gives the bound: `(4 roundoff + (n + 2) 2^-53) S + 3
//! n least`, where S is the same sum over absolute values and n the number of nonzeros in the fiber.

use crate::coo::Source;
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::op::oracle::Comparison;
use crate::shape::Shape;
use crate::sys::Sys;

/// A nonzero, or the sum of all with its coordinates.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The number of its fiber among all fibers of the shape.
    fiber: u128,
    /// Its index along the mode.
    leaf: u32,
    /// The number of nonzeros in the sum.
    added: u32,
    value: f64,
    /// The sum over absolute values.
    absolute: f64,
}

/// Compares fibers, which arrive in order, with the definition.
#[derive(Debug)]
pub struct Oracle<'a, T> {
    matrix: &'a Matrix<T>,
    /// The dims of the other modes.
    dims: Vec<u32>,
    entries: Vec<Entry>,
    /// The number of entries whose fibers have arrived.
    done: usize,
    comparison: Comparison,
}

/// Room for entries of a store of `nnz` nonzeros, so that text with more rarely has to be added up.
fn room(nnz: u64) -> u64 {
    const MORE_MIN: u64 = 1 << 16;
    nnz.saturating_add(MORE_MIN.max(nnz / 4))
}

/// Bytes of memory for a store of `nnz` nonzeros.
#[must_use]
pub fn oracle_bytes(nnz: u64) -> u64 {
    room(nnz).saturating_mul(size_of::<Entry>() as u64)
}

/// Sorts entries and adds up those that share all coordinates.
fn add_up(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by_key(|entry| (entry.fiber, entry.leaf));
    entries.dedup_by(|next, entry| {
        let same = (entry.fiber, entry.leaf) == (next.fiber, next.leaf);
        if same {
            entry.value += next.value;
            entry.absolute += next.absolute;
            entry.added += next.added;
        }
        same
    });
}

/// The number of a fiber.
fn place(dims: &[u32], at: impl Iterator<Item = u32>) -> u128 {
    dims.iter().zip(at).fold(0, |place, (&dim, index)| place * u128::from(dim) + u128::from(index))
}

impl<'a, T: Real> Oracle<'a, T> {
    /// Reads the source's nonzeros, at about `nnz` coordinates, which must be inside `shape`, for SpTTM along `mode`, from 0.
    pub fn new(
        source: &mut dyn Source,
        (shape, nnz): (&Shape, u64),
        mode: usize,
        matrix: &'a Matrix<T>,
    ) -> Result<Self> {
        let all = shape.dims();
        let others: Vec<usize> = (0..all.len()).filter(|&m| m != mode).collect();
        let dims: Vec<u32> = others.iter().map(|&m| all[m]).collect();
        let mut entries: Vec<Entry> = Vec::new();
        let room = usize::try_from(room(nnz)).unwrap_or(usize::MAX);
        // A separate handle: injected failures do not reach it, but a lack of memory is an error.
        let sys = Sys::default();
        sys.reserve(&mut entries, room, room)?;
        let name = source.name();
        source.drain(&mut |batch| {
            if batch.indices.len() != all.len() * batch.values.len() {
                return Err(Error::input(&name, format!("is not of order {}, as the store is", all.len())));
            }
            if entries.len() + batch.values.len() > entries.capacity() {
                add_up(&mut entries);
            }
            let needed = entries.len() + batch.values.len();
            sys.reserve(&mut entries, needed, usize::MAX)?;
            for (at, &value) in batch.indices.chunks_exact(all.len()).zip(&batch.values) {
                if let Some(m) = (0..all.len()).find(|&m| at[m] >= all[m]) {
                    let index = u64::from(at[m]) + 1;
                    let what = format!("index {index} of mode {} is outside the store's dims", m + 1);
                    return Err(Error::input(&name, what));
                }
                let fiber = place(&dims, others.iter().map(|&m| at[m]));
                entries.push(Entry { fiber, leaf: at[mode], added: 1, value, absolute: value.abs() });
            }
            Ok(())
        })?;
        add_up(&mut entries);
        let comparison = Comparison { mode: mode + 1, worst: 0.0, largest_error: 0.0, holds: true };
        Ok(Self { matrix, dims, entries, done: 0, comparison })
    }

    /// Compares the next fibers. One that is unexpected, repeated or out of order fails.
    pub fn compare(&mut self, (coordinates, values): (&[u32], &[T])) {
        let rows = values.chunks_exact(self.matrix.columns());
        for (at, row) in coordinates.chunks_exact(self.dims.len()).zip(rows) {
            let fiber = place(&self.dims, at.iter().copied());
            let left = &self.entries[self.done..];
            let of_fiber = &left[..left.iter().take_while(|entry| entry.fiber == fiber).count()];
            self.comparison.holds &= !of_fiber.is_empty();
            for (column, &found) in row.iter().enumerate() {
                let (mut sum, mut absolute) = (0.0, 0.0);
                for entry in of_fiber {
                    let x = self.matrix.row(entry.leaf as usize)[column].widen();
                    sum += entry.value * x;
                    absolute += entry.absolute * x.abs();
                }
                let n: f64 = of_fiber.iter().map(|entry| f64::from(entry.added)).sum();
                let in_f64 = f64::EPSILON / 2.0 * (n + 2.0);
                let bound = absolute * (4.0 * T::ROUNDOFF + in_f64) + 3.0 * n * T::LEAST;
                self.comparison.add(found.widen() - sum, bound);
            }
            self.done += of_fiber.len();
        }
    }

    /// The comparison of all fibers. A missing one fails.
    #[must_use]
    pub fn finish(self) -> Comparison {
        let holds = self.comparison.holds && self.done == self.entries.len();
        let worst = if holds { self.comparison.worst } else { self.comparison.worst.max(1.0) };
        Comparison { worst, holds, ..self.comparison }
    }
}
