//! The manifest's statistics, gathered tile by tile in order (formats-spec/container.md, "Statistics").

use super::cut::GatheredTile;

/// Row counters of each mode: rows that are equal modulo this share one.
const ROW_BUCKETS: usize = 1 << 16;

/// The manifest's statistics, gathered tile by tile in order.
#[derive(Debug)]
pub struct Statistics {
    nnz: u64,
    sum_squares: Neumaier,
    value_min: f64,
    value_max: f64,
    rows: Vec<Vec<u64>>,
}

impl Statistics {
    /// Nothing gathered yet.
    #[must_use]
    pub fn new(order: usize) -> Self {
        Self {
            nnz: 0,
            sum_squares: Neumaier::default(),
            value_min: f64::INFINITY,
            value_max: f64::NEG_INFINITY,
            rows: vec![vec![0; ROW_BUCKETS]; order],
        }
    }

    /// Adds the next tile.
    pub fn add(&mut self, tile: &GatheredTile) {
        let values = &tile.values;
        self.nnz += values.len() as u64;
        self.sum_squares.add(values.iter().fold(0.0, |sum, v| sum + v * v));
        for &v in values {
            self.value_min = if v.total_cmp(&self.value_min).is_lt() { v } else { self.value_min };
            self.value_max = if v.total_cmp(&self.value_max).is_gt() { v } else { self.value_max };
        }
        for (mode, rows) in self.rows.iter_mut().enumerate() {
            for index in tile.column(mode) {
                rows[*index as usize % ROW_BUCKETS] += 1;
            }
        }
    }

    /// Nonzeros so far.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.nnz
    }

    /// The sum of the values' squares.
    #[must_use]
    pub fn sum_squares(&self) -> f64 {
        self.sum_squares.total()
    }

    /// The smallest value.
    #[must_use]
    pub fn value_min(&self) -> f64 {
        self.value_min
    }

    /// The largest value.
    #[must_use]
    pub fn value_max(&self) -> f64 {
        self.value_max
    }

    /// For each mode a number of nonzeros that no row exceeds.
    #[must_use]
    pub fn longest_row_bounds(&self) -> Vec<u64> {
        self.rows.iter().map(|rows| rows.iter().copied().max().unwrap_or(0)).collect()
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

    /// The sum; infinity where it overflowed.
    #[must_use]
    pub fn total(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.lost } else { f64::INFINITY }
    }
}
