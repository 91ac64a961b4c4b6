//! Nonzeros tile by tile, and the rows of a tile's fibers.

use super::are_finite;
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::encoding::column::Numbers;
use crate::error::Result;
use crate::format::tree::{FiberTile, Recent, TreeView};
use crate::linear::{Key, Linearizer};
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use std::ops::Range;

/// The coordinates of a linear index, not inlined: a loop that is compiled for wide vectors would gather the tables' entries mode by mode
/// from as many rows as a key has bytes, which takes several times as long as adding up the rows.
#[inline(never)]
pub(super) fn coordinates<K: Key>(linearizer: &Linearizer<K>, linear: K) -> [u32; ORDER_MAX] {
    linearizer.gather(linear)
}

/// Nonzeros in the order of the fibers.
pub(super) trait Nonzeros: Sync {
    /// What a call leaves for the next one.
    type Recent: Default + Send;

    /// Puts those in `range`, at least one and a tile at most, into `tile`. The indices of its fibers are those of the other modes, ascending.
    fn fill(&self, range: Range<usize>, recent: &mut Self::Recent, tile: &mut FiberTile) -> Result<()>;
}

/// A chunk's nonzeros.
impl Nonzeros for TreeView<'_> {
    type Recent = Recent;

    #[inline(always)]
    fn fill(&self, range: Range<usize>, recent: &mut Recent, tile: &mut FiberTile) -> Result<()> {
        self.fibers(range, recent, tile)
    }
}

/// The fibers of a tile.
#[derive(Debug)]
pub(super) struct TileRows<T> {
    /// Nonzeros.
    pub nnz: usize,
    /// Indices of each fiber in the other modes.
    pub coordinates: Vec<u32>,
    /// A row for each fiber.
    pub rows: Vec<T>,
    /// The sums of the first and the last fiber, which other tiles may continue.
    pub ends: [Vec<f64>; 2],
    /// The number of complete fibers. They are the first ones.
    pub complete: usize,
    /// Whether all values of the rows between the first and the last are finite.
    pub finite: bool,
}

impl<T: Real> TileRows<T> {
    /// None, with room for as many as a tile can have.
    pub fn new(sys: &Sys, [others, rank]: [usize; 2]) -> Result<Self> {
        let (mut coordinates, mut rows) = (Vec::new(), Vec::new());
        sys.reserve(&mut coordinates, TILE_NNZ * others, TILE_NNZ * others)?;
        sys.reserve(&mut rows, TILE_NNZ * rank, TILE_NNZ * rank)?;
        Ok(Self {
            nnz: 0,
            coordinates,
            rows,
            ends: [vec![0.0; rank], vec![0.0; rank]],
            complete: 0,
            finite: true,
        })
    }

    /// Takes the coordinates of the fibers of `tile`, each in `others` modes. The first one continues the one that has `begun` if that
    /// is the same.
    #[inline(always)]
    pub fn begin(&mut self, tile: &FiberTile, [others, rank]: [usize; 2], begun: Option<(&[u32], &[f64])>) {
        self.coordinates.resize(tile.fibers * others, 0);
        // Compiled with the number of modes as a constant.
        match others {
            1 => interleave::<1>(tile, &mut self.coordinates),
            2 => interleave::<2>(tile, &mut self.coordinates),
            3 => interleave::<3>(tile, &mut self.coordinates),
            4 => interleave::<4>(tile, &mut self.coordinates),
            5 => interleave::<5>(tile, &mut self.coordinates),
            6 => interleave::<6>(tile, &mut self.coordinates),
            7 => interleave::<7>(tile, &mut self.coordinates),
            _ => unreachable!("a tensor has at most 8 modes"),
        }
        self.rows.resize(tile.fibers * rank, T::nearest(0.0));
        let first = &mut self.ends[0];
        first.clear();
        if let Some((_, sum)) = begun.filter(|(at, _)| self.coordinates.starts_with(at)) {
            first.extend_from_slice(sum);
        }
        first.resize(rank, 0.0);
        (self.nnz, self.complete) = (tile.nnz, 0);
    }

    /// How many there are, each with indices in `others` modes.
    pub fn fibers(&self, others: usize) -> usize {
        self.coordinates.len() / others
    }

    /// Whether all values of the complete fibers are finite.
    pub fn is_finite(&self, others: usize) -> bool {
        let rank = self.ends[1].len();
        let row = |fiber: usize| are_finite(&self.rows[fiber * rank..][..rank]);
        self.finite
            && (self.complete == 0 || row(0))
            && (self.complete < self.fibers(others) || row(self.complete - 1))
    }

    /// Completes the last fiber, which has this row.
    pub fn complete(&mut self, others: usize, row: impl Iterator<Item = f64>) {
        self.complete = self.fibers(others);
        let rank = self.ends[1].len();
        let last = self.rows.len() - rank;
        self.rows[last..].iter_mut().zip(row).for_each(|(x, sum)| *x = T::nearest(sum));
    }
}

/// The indices of the fibers of a tile in `OTHERS` modes, fiber by fiber.
#[inline(always)]
fn interleave<const OTHERS: usize>(tile: &FiberTile, coordinates: &mut [u32]) {
    let columns: [&Numbers<u32>; OTHERS] = std::array::from_fn(|k| &tile.indices[k]);
    for (fiber, coordinates) in coordinates.as_chunks_mut::<OTHERS>().0.iter_mut().enumerate() {
        *coordinates = columns.map(|column| column[fiber % TILE_NNZ]);
    }
}
