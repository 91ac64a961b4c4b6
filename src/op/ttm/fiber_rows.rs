//! Turns nonzeros in the order of the fibers into rows of fibers.

use super::kernel::AddTile;
use super::tile_rows::{Nonzeros, TileRows};
use super::{Delivered, FiberSink, are_finite, tiles_at_once};
use crate::backend::host::{HostOp, Tiles, Vectors};
use crate::dense::{MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::FiberTile;
use crate::sys::Sys;
use rayon::prelude::*;
use std::ops::Range;

/// What a thread decodes into.
type Scratch<N> = (<N as Nonzeros>::Recent, FiberTile);

/// A fiber that the next nonzeros may continue.
#[derive(Debug)]
struct OpenFiber {
    coordinates: Vec<u32>,
    /// The sum of whole tiles, and that of the last tile.
    total: Vec<f64>,
    of_tile: Vec<f64>,
}

impl OpenFiber {
    fn row(&self) -> impl Iterator<Item = f64> {
        self.total.iter().zip(&self.of_tile).map(|(total, of_tile)| total + of_tile)
    }

    /// The next nonzero begins another tile.
    fn end_tile(&mut self) {
        self.total.iter_mut().zip(&mut self.of_tile).for_each(|(sum, x)| *sum += std::mem::take(x));
    }
}

/// The operation for a store that [`is_in_order`](super::is_in_order). For other stores it gets the output of
/// [`SortedFibers`](super::SortedFibers) or [`Sorted`](super::Sorted).
pub struct FiberRows<'a, 's, T> {
    sys: Sys,
    matrix: MatrixRef<'a, T>,
    order: usize,
    vectors: Vectors,
    /// Nonzeros so far.
    nnz: u64,
    /// Those that are computed at once.
    tiles: Vec<TileRows<T>>,
    open: Option<OpenFiber>,
    sink: Option<FiberSink<'s, T>>,
    delivered: Delivered,
}

impl<'a, 's, T: Real> FiberRows<'a, 's, T> {
    /// SpTTM along a mode of a tensor of `order`. `matrix` has a row per index of the mode. Fibers go to `sink`; without one they are
    /// only counted. Runs on the current rayon pool.
    #[must_use]
    pub fn new(sys: &Sys, order: usize, matrix: MatrixRef<'a, T>, sink: Option<FiberSink<'s, T>>) -> Self {
        let (sys, vectors) = (sys.clone(), Vectors::Widest);
        let (tiles, delivered) = (Vec::new(), Delivered { fibers: 0, finite: true });
        Self { sys, matrix, order, vectors, nnz: 0, tiles, open: None, sink, delivered }
    }

    /// The same with narrower vector instructions; results are the same.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors;
        self
    }

    /// Takes the next `nnz` nonzeros.
    pub(super) fn put(&mut self, nnz: usize, nonzeros: &impl Nonzeros) -> Result<()> {
        let threads = rayon::current_num_threads();
        let at_once = tiles_at_once(self.order, self.matrix.columns(), threads);
        let mut ranges = Vec::with_capacity(at_once);
        // Kept for all tiles: to clear some 60 KB for each group of them takes a tenth of the time.
        let mut scratch: Vec<_> =
            (0..threads.min(nnz.div_ceil(TILE_NNZ) + 1)).map(|_| Box::default()).collect();
        let mut from = 0;
        while from < nnz {
            #[expect(clippy::cast_possible_truncation, reason = "less than a tile")]
            let begun = (self.nnz % TILE_NNZ as u64) as usize;
            let mut to = from + TILE_NNZ - begun;
            ranges.clear();
            while from < nnz && ranges.len() < at_once {
                ranges.push(from..to.min(nnz));
                (from, to) = (to.min(nnz), to + TILE_NNZ);
            }
            self.put_tiles(&ranges, nonzeros, &mut scratch)?;
        }
        Ok(())
    }

    /// Takes nonzeros in ranges that are each inside one tile.
    fn put_tiles<N: Nonzeros>(
        &mut self,
        ranges: &[Range<usize>],
        nonzeros: &N,
        of_threads: &mut [Box<Scratch<N>>],
    ) -> Result<()> {
        self.sys.check_cancelled()?;
        let (matrix, others, arch) = (self.matrix, self.order - 1, self.vectors.arch());
        while self.tiles.len() < ranges.len() {
            self.tiles.push(TileRows::new(&self.sys, [others, matrix.columns()])?);
        }
        // A tile that has begun is continued number by number.
        let goes_on = !self.nnz.is_multiple_of(TILE_NNZ as u64);
        let open = self.open.as_ref().filter(|_| goes_on);
        let open = open.map(|open| (&open.coordinates[..], &open.of_tile[..]));
        let each = ranges.len().div_ceil(of_threads.len());
        let tiles = self.tiles[..ranges.len()].par_chunks_mut(each).zip(ranges.par_chunks(each));
        tiles.zip(of_threads).enumerate().try_for_each(|(part, ((tiles, ranges), scratch))| {
            let (recent, tile) = &mut **scratch;
            let mut open = open.filter(|_| part == 0);
            tiles.iter_mut().zip(ranges).try_for_each(|(rows, range)| {
                let (begun, range) = (open.take(), range.clone());
                arch.dispatch(AddTile { matrix, others, nonzeros, range, begun, recent, tile, rows })
            })
        })?;
        let carried = self.join(ranges.len(), goes_on);
        let tiles = &self.tiles[..ranges.len()];
        self.nnz += tiles.iter().map(|tile| tile.nnz as u64).sum::<u64>();
        let complete = tiles.iter().map(|tile| tile.complete as u64).sum::<u64>();
        self.delivered.fibers += complete + u64::from(carried.is_some());
        self.delivered.finite &= tiles.iter().all(|tile| tile.is_finite(others));
        self.delivered.finite &= carried.as_ref().is_none_or(|(_, row)| are_finite(row));
        let Some(sink) = &mut self.sink else { return Ok(()) };
        let rank = matrix.columns();
        let before = carried.iter().map(|(coordinates, row)| (&coordinates[..], &row[..]));
        let of_tiles = tiles.iter().filter(|tile| tile.complete > 0);
        let of_tiles = of_tiles
            .map(|tile| (&tile.coordinates[..tile.complete * others], &tile.rows[..tile.complete * rank]));
        let pieces: Vec<(&[u32], &[T])> = before.chain(of_tiles).collect();
        if pieces.is_empty() { Ok(()) } else { sink(&pieces) }
    }

    /// Joins the first `count` tiles to each other and to what came before, and sets which of their fibers are complete. The first
    /// tile `goes_on` if it has begun before. Returns the fiber that was open, if it ends before these tiles.
    fn join(&mut self, count: usize, goes_on: bool) -> Option<(Vec<u32>, Vec<T>)> {
        let others = self.order - 1;
        let mut carried = None;
        for i in 0..count {
            let (before, tiles) = self.tiles.split_at_mut(i);
            let tile = &mut tiles[0];
            let fibers = tile.fibers(others);
            let mut continues = false;
            if let Some(open) = &mut self.open {
                if i > 0 || !goes_on {
                    open.end_tile();
                }
                continues = tile.coordinates.starts_with(&open.coordinates);
                if continues {
                    open.of_tile.copy_from_slice(&tile.ends[0]);
                    let row = tile.rows.iter_mut().zip(open.row());
                    row.for_each(|(x, sum)| *x = T::nearest(sum));
                } else if let Some(before) = before.last_mut() {
                    before.complete(others, open.row());
                } else {
                    carried = Some((open.coordinates.clone(), open.row().map(T::nearest).collect()));
                }
            }
            tile.complete = fibers - 1;
            if continues && fibers == 1 {
                continue;
            }
            let last = &tile.coordinates[tile.complete * others..];
            let open = self.open.get_or_insert_with(|| OpenFiber {
                coordinates: vec![0; others],
                total: Vec::new(),
                of_tile: vec![0.0; tile.ends[1].len()],
            });
            open.coordinates.copy_from_slice(last);
            open.total.clear();
            open.total.resize(open.of_tile.len(), 0.0);
            open.of_tile.copy_from_slice(&tile.ends[1]);
        }
        carried
    }

    /// Hands over the last fiber. Returns how many there are and whether all values are finite.
    pub fn finish(mut self) -> Result<Delivered> {
        if let Some(open) = self.open.take() {
            let values: Vec<T> = open.row().map(T::nearest).collect();
            self.delivered.fibers += 1;
            self.delivered.finite &= are_finite(&values);
            if let Some(sink) = &mut self.sink {
                sink(&[(&open.coordinates, &values)])?;
            }
        }
        Ok(self.delivered)
    }
}

impl<T: Real> HostOp for FiberRows<'_, '_, T> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        let view = chunk.tree().ok_or_else(|| Error::request("fibers stream out of trees alone"))?;
        self.put(view.nnz(), view)
    }

    fn takes_tiles(&self) -> bool {
        false
    }

    fn batch(&mut self, _: &Tiles<'_>) -> Result<()> {
        Ok(())
    }
}
