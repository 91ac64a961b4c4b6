//! The length of an image, updated node by node, so that a format can cut when a chunk is full.

use super::Tree;
use super::record::{HEAD_BYTES, RECORD_BYTES};
use crate::chunk::{ALIGN, Version};
use crate::encoding::decimal::DecimalTile;
use crate::encoding::values::{Costs, TileValues, as_integer};
use crate::encoding::{TILE_NNZ, column, width};

/// Sections of an image, at most.
pub(super) const SECTIONS: usize = 4;

/// Bytes of an image's COLUMNS and VALUES sections with these columns and values.
pub(super) fn section_bytes(columns: u64, section: u64) -> u64 {
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN as u64);
    aligned(columns) + aligned(section)
}

/// Bytes of an image of `order` levels besides COLUMNS and VALUES.
pub(super) fn other_bytes(version: Version, order: usize, tiles: u64, slices: u64) -> u64 {
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN as u64);
    let levels = HEAD_BYTES as u64 + RECORD_BYTES as u64 * tiles + 4 * slices.div_ceil(32);
    version.header_bytes(SECTIONS) as u64 + aligned(4 * order as u64) + aligned(levels)
}

/// The tile being filled, and the column widths of earlier tiles.
#[derive(Clone, Debug, Default)]
struct LevelMeter {
    /// Nodes.
    nodes: u64,
    widths: u64,
    low: u32,
    high: u32,
    /// For inner levels: the tile's first and last start, and the smallest difference between starts.
    base: u32,
    last: u32,
    stride: u32,
}

impl LevelMeter {
    fn in_tile(&self) -> u64 {
        self.nodes % TILE_NNZ as u64
    }

    /// Width of the columns of the current tile.
    fn tile_widths(&self) -> u64 {
        let distances = (self.nodes.max(1) - 1) % TILE_NNZ as u64;
        let furthest = u64::from(self.last - self.base) - u64::from(self.stride) * distances;
        u64::from(width((self.high - self.low).into()) + width(furthest))
    }

    fn add(&mut self, index: u32, start: u32) {
        if self.in_tile() == 0 {
            self.widths += if self.nodes == 0 { 0 } else { self.tile_widths() };
            (self.low, self.high) = (index, index);
            (self.base, self.last, self.stride) = (start, start, 0);
        } else {
            let distance = start - self.last;
            self.stride = if self.in_tile() == 1 { distance } else { self.stride.min(distance) };
            (self.low, self.high, self.last) = (self.low.min(index), self.high.max(index), start);
        }
        self.nodes += 1;
    }

    fn tiles(&self) -> u64 {
        self.nodes.div_ceil(TILE_NNZ as u64)
    }
}

/// The values of the tile being filled, and the costs of earlier tiles.
#[derive(Clone, Debug)]
struct ValueMeter {
    closed: Costs,
    /// The exponents at which earlier values can be decimal.
    exponents: u32,
    decimals: DecimalTile,
    nnz: usize,
    low: i64,
    high: i64,
    integer: bool,
    f32_exact: bool,
    /// Whether a value that is not an integer, or not exact in f32, has occurred. Then all of the chunk's values
    /// may take more room.
    fraction: bool,
    double: bool,
}

impl ValueMeter {
    fn new(version: Version) -> Self {
        let closed = Costs::new(version.has_decimals());
        Self {
            closed,
            exponents: closed.exponents(),
            decimals: DecimalTile::default(),
            nnz: 0,
            low: i64::MAX,
            high: i64::MIN,
            integer: true,
            f32_exact: true,
            fraction: false,
            double: false,
        }
    }

    /// While this stays the same, the size of earlier values stays bounded.
    fn kind(&self) -> (bool, bool, u32) {
        let exponents = if self.fraction { self.exponents & self.decimals.possible() } else { 0 };
        (self.fraction, self.double, exponents)
    }

    fn add(&mut self, value: f64) {
        if self.nnz == TILE_NNZ {
            self.closed = self.costs();
            self.exponents = self.closed.exponents();
            self.nnz = 0;
        }
        if self.nnz == 0 {
            self.decimals = DecimalTile::default();
            (self.low, self.high, self.integer, self.f32_exact) = (i64::MAX, i64::MIN, true, true);
        }
        if let Some(i) = as_integer(value) {
            (self.low, self.high) = (self.low.min(i), self.high.max(i));
            self.decimals.add_integer(i, value);
        } else {
            (self.integer, self.fraction) = (false, true);
            self.decimals.add(value);
        }
        #[expect(clippy::cast_possible_truncation, reason = "exactness is the question")]
        let single = f64::from(value as f32);
        self.f32_exact &= single.to_bits() == value.to_bits();
        self.double |= !self.f32_exact;
        self.nnz += 1;
    }

    fn costs(&self) -> Costs {
        if self.nnz == 0 {
            return self.closed;
        }
        let integer = self.integer.then(|| (self.low, width(self.low.abs_diff(self.high))));
        let tile = TileValues { integer, f32_exact: self.f32_exact, decimals: self.decimals };
        self.closed.with(&tile, self.nnz)
    }
}

/// The image length of a tree whose slices have no padding.
#[derive(Clone, Debug)]
pub struct Meter {
    version: Version,
    levels: Vec<LevelMeter>,
    values: ValueMeter,
}

impl Meter {
    /// Of the empty tree.
    #[must_use]
    pub fn new(version: Version, order: usize) -> Self {
        Self { version, levels: vec![LevelMeter::default(); order], values: ValueMeter::new(version) }
    }

    /// Of `tree`.
    #[must_use]
    pub fn of(version: Version, tree: &Tree) -> Self {
        let mut meter = Self::new(version, tree.order());
        for (meter, level) in meter.levels.iter_mut().zip(&tree.levels) {
            level.indices.iter().zip(&level.starts).for_each(|(&index, &start)| meter.add(index, start));
        }
        let leaves = &mut meter.levels[tree.levels.len()];
        tree.leaves.iter().for_each(|&index| leaves.add(index, 0));
        tree.values.iter().for_each(|&value| meter.values.add(value));
        meter
    }

    /// Accounts for what [`Tree::push`], which returned `first`, has added to `tree`. Returns true if earlier values
    /// may now take more room.
    pub fn pushed(&mut self, tree: &Tree, first: usize) -> bool {
        let kind = self.values.kind();
        let inner = tree.levels.len();
        for (meter, level) in self.levels[first..inner].iter_mut().zip(&tree.levels[first..]) {
            if let (Some(&index), Some(&start)) = (level.indices.last(), level.starts.last()) {
                meter.add(index, start);
            }
        }
        if let (Some(&index), Some(&value)) = (tree.leaves.last(), tree.values.last()) {
            self.levels[inner].add(index, 0);
            self.values.add(value);
        }
        kind != self.values.kind()
    }

    /// Bytes of the image, not counting a dictionary of values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let widths: u64 = self.levels.iter().map(|level| level.widths + level.tile_widths()).sum();
        let columns = widths * column::bytes(1) as u64;
        let cost = self.values.costs().cheapest(|v| section_bytes(columns + v.columns, v.section)).1;
        let tiles = self.levels.iter().map(LevelMeter::tiles).sum();
        other_bytes(self.version, self.levels.len(), tiles, self.levels[0].nodes) + cost
    }

    /// How many nonzeros can be added before the image can exceed `bytes_max`, unless [`Meter::pushed`] returns true; 0
    /// if unknown.
    #[must_use]
    pub fn room(&self, bytes_max: u64) -> usize {
        // The widest possible tile: record, indices, and starts or values of 64 bits; codes of its slices.
        let tile = (RECORD_BYTES + 12 * TILE_NNZ + TILE_NNZ / 8) as u64 * self.levels.len() as u64;
        // Tiles being filled can become that wide, and sizes are rounded up.
        let tiles = bytes_max.saturating_sub(self.bytes() + 4 * ALIGN as u64) / tile;
        let nnz = tiles.saturating_sub(2) * TILE_NNZ as u64;
        usize::try_from(nnz).unwrap_or(usize::MAX)
    }
}
