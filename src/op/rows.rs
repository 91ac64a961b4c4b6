//! Counts the nonzeros of every row of every mode, in several passes if memory is small.
//!
//! The rows of all modes are numbered consecutively, and each pass counts those for which there are counters. A mode
//! with far more rows than the store has nonzeros is counted in a hash table of its nonempty rows.

use crate::error::Result;
use crate::shape::Shape;
use crate::sys::Sys;
use std::collections::HashMap;

/// Rows of modes with more rows than this are not counted.
const COUNTED_ROWS_MAX: u32 = 1 << 28;
/// Bytes of a counter.
const COUNTER_BYTES: u64 = size_of::<u32>() as u64;
/// Bytes per nonempty row, in a table that has just grown.
const OCCURRING_BYTES: u64 = 32;
/// The fewest counters.
const COUNTERS_MIN: u64 = 1 << 18;

/// The counts of a mode.
#[derive(Clone, Copy, Debug, Default)]
struct RowTally {
    rows: u64,
    longest: u32,
}

impl RowTally {
    fn add<'a>(&mut self, counts: impl Iterator<Item = &'a u32>) {
        for &count in counts.filter(|&&count| count > 0) {
            self.rows += 1;
            self.longest = self.longest.max(count);
        }
    }
}

/// How a mode is counted.
#[derive(Debug)]
enum Way {
    /// With counters. Its rows begin at this number.
    Counters(u64),
    /// In a table of its nonempty rows, in the first pass.
    Occurring(HashMap<u32, u32>),
    /// Not at all.
    Never,
}

/// The counters.
#[derive(Debug)]
pub(super) struct RowCounts {
    dims: Vec<u32>,
    ways: Vec<Way>,
    tallies: Vec<RowTally>,
    /// Counters for the rows from `first` on, out of `all`.
    counters: Vec<u32>,
    first: u64,
    all: u64,
}

/// Whether a table of nonempty rows is much smaller than counters for all rows.
fn is_sparse(dim: u32, nnz: u64) -> bool {
    nnz.saturating_mul(2 * OCCURRING_BYTES) < u64::from(dim) * COUNTER_BYTES
}

/// The number of rows with counters, and the bytes of tables.
fn extent(shape: &Shape, nnz: u64, room: u64) -> (u64, u64) {
    let counted = || shape.dims().iter().filter(|&&dim| dim <= COUNTED_ROWS_MAX);
    let sparse = counted().filter(|&&dim| is_sparse(dim, nnz)).count() as u64;
    let tables = sparse.saturating_mul(nnz).saturating_mul(OCCURRING_BYTES);
    let rows = |sparse_too: bool| -> u64 {
        counted().filter(|&&dim| sparse_too || !is_sparse(dim, nnz)).map(|&dim| u64::from(dim)).sum()
    };
    if tables > room / 2 { (rows(true), 0) } else { (rows(false), tables) }
}

fn counters(rows: u64, tables: u64, room: u64) -> u64 {
    rows.min((room.saturating_sub(tables) / COUNTER_BYTES).max(COUNTERS_MIN))
}

impl RowCounts {
    /// Bytes of memory for counting within `room`, or more if `room` is less than the fewest counters need.
    pub fn host_bytes(shape: &Shape, nnz: u64, room: u64) -> u64 {
        let (rows, tables) = extent(shape, nnz, room);
        tables + counters(rows, tables, room) * COUNTER_BYTES
    }

    /// Counters for a store of `nnz` nonzeros. Fails if memory is short.
    pub fn new(sys: &Sys, shape: &Shape, nnz: u64, room: u64) -> Result<Self> {
        let (all, tables) = extent(shape, nnz, room);
        let mut next = 0;
        let mut way = |&dim: &u32| {
            if dim > COUNTED_ROWS_MAX {
                return Way::Never;
            }
            if tables > 0 && is_sparse(dim, nnz) {
                return Way::Occurring(HashMap::new());
            }
            let first = next;
            next += u64::from(dim);
            Way::Counters(first)
        };
        let ways: Vec<Way> = shape.dims().iter().map(&mut way).collect();
        let counters = usize::try_from(counters(all, tables, room)).unwrap_or(usize::MAX);
        Ok(Self {
            dims: shape.dims().to_vec(),
            tallies: vec![RowTally::default(); ways.len()],
            ways,
            counters: sys.vec(0, counters)?,
            first: 0,
            all,
        })
    }

    /// Counts some indices of `mode`.
    #[inline]
    pub fn count(&mut self, mode: usize, indices: &[u32]) {
        match &mut self.ways[mode] {
            Way::Counters(begin) => {
                // Rows of other passes wrap to large numbers or lie after the counters.
                let shift = begin.wrapping_sub(self.first);
                for &row in indices {
                    let at = usize::try_from(shift.wrapping_add(row.into())).unwrap_or(usize::MAX);
                    if let Some(count) = self.counters.get_mut(at) {
                        *count = count.saturating_add(1);
                    }
                }
            }
            Way::Occurring(table) if self.first == 0 => {
                for &row in indices {
                    let count = table.entry(row).or_insert(0);
                    *count = count.saturating_add(1);
                }
            }
            Way::Occurring(_) | Way::Never => {}
        }
    }

    /// Records a pass's counts. Returns whether another pass must count remaining rows.
    pub fn goes_on(&mut self) -> bool {
        let end = self.first + self.counters.len() as u64;
        for ((tally, way), &dim) in self.tallies.iter_mut().zip(&mut self.ways).zip(&self.dims) {
            match way {
                Way::Counters(begin) => {
                    let inside =
                        |row: u64| usize::try_from(row.clamp(self.first, end) - self.first).unwrap_or(0);
                    tally.add(self.counters[inside(*begin)..inside(*begin + u64::from(dim))].iter());
                }
                Way::Occurring(table) => tally.add(std::mem::take(table).values()),
                Way::Never => {}
            }
        }
        self.counters.fill(0);
        self.first = end;
        end < self.all
    }

    /// For each mode, after the last pass: the nonempty rows, and the most nonzeros of a row; `None` if they were not
    /// counted.
    pub fn found(&self) -> Vec<Option<(u64, u64)>> {
        let found = |(way, tally): (&Way, &RowTally)| {
            (!matches!(way, Way::Never)).then(|| (tally.rows, tally.longest.into()))
        };
        self.ways.iter().zip(&self.tallies).map(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and longest rows of three modes are the same for any memory and number of passes.
    #[test]
    fn counts_do_not_depend_on_memory() {
        let shape = Shape::new(&[700_000, 9, 1 << 22]).unwrap();
        let nnz = 90_000u32;
        let columns: [Vec<u32>; 3] = [
            (0..nnz).map(|i| i * 7919 % 700_000 / 3 * 3).collect(),
            (0..nnz).map(|i| i % 7).collect(),
            (0..nnz).map(|i| i % 5 * 1_000_000).collect(),
        ];
        let wanted: Vec<_> = columns
            .iter()
            .map(|column| {
                let mut counts = HashMap::new();
                for &row in column {
                    *counts.entry(row).or_insert(0u64) += 1;
                }
                Some((counts.len() as u64, *counts.values().max().unwrap()))
            })
            .collect();
        let counted = |room: u64, nnz_said: u64| {
            let mut rows = RowCounts::new(&Sys::default(), &shape, nnz_said, room).unwrap();
            assert!(RowCounts::host_bytes(&shape, nnz_said, room) >= rows.counters.len() as u64 * 4);
            let mut passes = 0;
            loop {
                columns.iter().enumerate().for_each(|(mode, column)| rows.count(mode, column));
                passes += 1;
                if !rows.goes_on() {
                    break (rows.found(), passes);
                }
            }
        };
        assert_eq!(counted(1 << 30, nnz.into()), (wanted.clone(), 1));
        // Memory for the table of the last mode's rows, and counters for a third of the first one's.
        assert_eq!(counted(6 << 20, nnz.into()), (wanted.clone(), 1));
        assert_eq!(counted(0, 10), (wanted.clone(), 19));
        let one = Shape::new(&[1 << 28; 4]).unwrap();
        assert!(RowCounts::host_bytes(&one, 1, u64::MAX) < 1 << 10);
    }
}
