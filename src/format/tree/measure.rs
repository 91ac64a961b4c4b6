//! The length of an image, updated node by node, so that a format can cut when a chunk is full.

use super::Tree;
use super::record::{HEAD_BYTES, RECORD_BYTES};
use crate::chunk::{ALIGN, Version};
use crate::encoding::decimal::{self, DecimalTile};
use crate::encoding::values::{Costs, TileValues, as_integer};
use crate::encoding::{TILE_NNZ, column, width};
use crate::format::{aligned, value_cost};

/// Sections of an image, at most.
pub(super) const SECTIONS: usize = 4;

/// Bytes of an image of `order` levels besides COLUMNS and VALUES.
pub(super) fn other_bytes(version: Version, order: usize, tiles: u64, slices: u64) -> u64 {
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

    /// Adds nodes with these indices and starts; leaves have no starts.
    fn extend(&mut self, mut indices: &[u32], mut starts: &[u32]) {
        while let Some(&index) = indices.first() {
            if self.in_tile() == 0 {
                self.widths += if self.nodes == 0 { 0 } else { self.tile_widths() };
                (self.low, self.high) = (index, index);
                let start = starts.first().copied();
                (self.base, self.last) = (start.unwrap_or(0), start.unwrap_or(0));
                self.stride = if start.is_some() { u32::MAX } else { 0 };
            }
            let room = usize::try_from(TILE_NNZ as u64 - self.in_tile()).unwrap_or(TILE_NNZ);
            let (some, rest) = indices.split_at(indices.len().min(room));
            let range = |(low, high): (u32, u32), &index: &u32| (low.min(index), high.max(index));
            (self.low, self.high) = some.iter().fold((self.low, self.high), range);
            if let Some((&first, &last)) = starts.first().zip(starts.get(some.len() - 1)) {
                // The first of a tile has no distance.
                let to_first = if self.in_tile() == 0 { u32::MAX } else { first - self.last };
                let distances = starts[..some.len()].windows(2).map(|pair| pair[1] - pair[0]);
                self.stride = distances.fold(self.stride.min(to_first), u32::min);
                (self.last, starts) = (last, &starts[some.len()..]);
            }
            self.nodes += some.len() as u64;
            indices = rest;
        }
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

    /// Adds values. Equal to adding them one by one.
    fn extend(&mut self, mut values: &[f64]) {
        while !values.is_empty() {
            if self.nnz == TILE_NNZ {
                self.closed = self.costs();
                self.exponents = self.closed.exponents();
                self.nnz = 0;
            }
            if self.nnz == 0 {
                self.decimals = DecimalTile::default();
                (self.low, self.high, self.integer, self.f32_exact) = (i64::MAX, i64::MIN, true, true);
            }
            let (some, rest) = values.split_at(values.len().min(TILE_NNZ - self.nnz));
            if self.closed.are_f64() {
                // Nothing but their number matters any more.
            } else if let Some((low, high)) = decimal::small_integers(some) {
                // f32 holds them exactly.
                (self.low, self.high) = (self.low.min(low), self.high.max(high));
                self.decimals.add_small(low, high);
            } else {
                for &value in some {
                    self.add(value);
                }
            }
            self.nnz += some.len();
            values = rest;
        }
    }

    fn add(&mut self, value: f64) {
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
        meter.values.extend(&tree.values);
        meter.follow(tree);
        meter
    }

    /// Accounts for what [`Tree::push`] has added to `tree`. Returns true if earlier values may now take more room.
    pub fn pushed(&mut self, tree: &Tree) -> bool {
        let kind = self.values.kind();
        self.values.extend(&tree.values[tree.nnz() - 1..]);
        self.follow(tree);
        kind != self.values.kind()
    }

    /// Adds nonzeros to `tree` by [`Tree::extend`], and accounts for them, unless earlier values may then take more room; returns
    /// false in that case and leaves both as they are.
    pub fn extend(&mut self, tree: &mut Tree, columns: &[&[u32]], values: &[f64]) -> bool {
        let mut after = self.values.clone();
        after.extend(values);
        if after.kind() != self.values.kind() {
            return false;
        }
        self.values = after;
        tree.extend(columns, values);
        self.follow(tree);
        true
    }

    /// Accounts for the nodes of `tree` that it does not know of.
    fn follow(&mut self, tree: &Tree) {
        let inner = tree.levels.iter().map(|level| (&level.indices[..], &level.starts[..]));
        let levels = inner.chain([(&tree.leaves[..], &[][..])]);
        for (meter, (indices, starts)) in self.levels.iter_mut().zip(levels) {
            let known = usize::try_from(meter.nodes).unwrap_or(usize::MAX);
            meter.extend(&indices[known..], starts.get(known..).unwrap_or_default());
        }
    }

    /// Bytes of the image, not counting a dictionary of values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let widths: u64 = self.levels.iter().map(|level| level.widths + level.tile_widths()).sum();
        let columns = widths * column::bytes(1) as u64;
        let cost = self.values.costs().cheapest(value_cost(columns)).1;
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
