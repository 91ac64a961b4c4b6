//! Turns nonzeros in the order of the fibers into rows of fibers.

use super::kernel::AddTile;
use super::tile_fibers::TileFibers;
use super::{FiberSink, Fibers, tiles_at_once};
use crate::backend::host::{HostOp, Tiles, Vectors};
use crate::dense::{MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::sys::Sys;
use rayon::prelude::*;
use std::ops::Range;

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
}

/// The operation for a store that [`is_in_order`](super::is_in_order). For other stores it gets the output of
/// [`Sorted`](super::Sorted).
pub struct FiberRows<'a, 's, T> {
    sys: Sys,
    matrix: MatrixRef<'a, T>,
    mode: usize,
    order: usize,
    vectors: Vectors,
    /// Nonzeros so far.
    nnz: u64,
    open: Option<OpenFiber>,
    sink: Option<FiberSink<'s, T>>,
    fibers: u64,
}

impl<'a, 's, T: Real> FiberRows<'a, 's, T> {
    /// SpTTM along `mode`, from 0, of a tensor of `order`. `matrix` has a row per index of the mode. Fibers go to
    /// `sink`; without one they are only counted. Runs on the current rayon pool.
    #[must_use]
    pub fn new(
        sys: &Sys,
        (order, mode): (usize, usize),
        matrix: MatrixRef<'a, T>,
        sink: Option<FiberSink<'s, T>>,
    ) -> Self {
        let (sys, vectors) = (sys.clone(), Vectors::Widest);
        Self { sys, matrix, mode, order, vectors, nnz: 0, open: None, sink, fibers: 0 }
    }

    /// The same with narrower vector instructions; results are the same.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors;
        self
    }

    /// Takes the next `nnz` nonzeros. `fibers` returns those of a range of them inside one tile.
    pub(super) fn put(
        &mut self,
        nnz: usize,
        fibers: impl Fn(Range<usize>) -> TileFibers + Sync,
    ) -> Result<()> {
        let mut ranges = Vec::with_capacity(nnz / TILE_NNZ + 2);
        let mut from = 0;
        while from < nnz {
            #[expect(clippy::cast_possible_truncation, reason = "less than a tile")]
            let begun = ((self.nnz + from as u64) % TILE_NNZ as u64) as usize;
            let to = nnz.min(from + TILE_NNZ - begun);
            ranges.push(from..to);
            from = to;
        }
        for ranges in ranges.chunks(self.at_once()) {
            let fibers = |range: &Range<usize>| fibers(range.clone());
            self.put_tiles(ranges, fibers)?;
        }
        Ok(())
    }

    fn at_once(&self) -> usize {
        tiles_at_once(self.order, self.matrix.columns(), rayon::current_num_threads())
    }

    /// Takes nonzeros in ranges that are each inside one tile.
    fn put_tiles<R: Sync>(&mut self, ranges: &[R], fibers: impl Fn(&R) -> TileFibers + Sync) -> Result<()> {
        self.sys.check_cancelled()?;
        let (matrix, rank, vectors) = (self.matrix, self.matrix.columns(), self.vectors);
        // A tile that has begun is continued number by number.
        let goes_on = !self.nnz.is_multiple_of(TILE_NNZ as u64);
        let open = self.open.as_ref().filter(|_| goes_on);
        let computed = ranges.par_iter().enumerate().map(|(i, range)| {
            let mut tile = fibers(range);
            tile.sums.resize(tile.starts.len() * rank, 0.0);
            if let Some(open) = open.filter(|open| i == 0 && tile.coordinates.starts_with(&open.coordinates))
            {
                tile.sums[..rank].copy_from_slice(&open.of_tile);
            }
            vectors.arch().dispatch(AddTile { matrix, tile: &mut tile });
            tile
        });
        let tiles: Vec<TileFibers> = computed.collect();
        let mut out = Vec::with_capacity(tiles.len());
        for (i, tile) in tiles.into_iter().enumerate() {
            self.nnz += tile.values.len() as u64;
            self.join(tile, goes_on && i == 0, &mut out);
        }
        out.retain(|fibers| !fibers.coordinates.is_empty());
        let others = self.order - 1;
        self.fibers += out.iter().map(|fibers| (fibers.coordinates.len() / others) as u64).sum::<u64>();
        match &mut self.sink {
            Some(sink) if !out.is_empty() => {
                let rounded =
                    |Fibers { coordinates, values }| Fibers { coordinates, values: T::from_f64s(values) };
                let rounded: Vec<Fibers<T>> = out.into_par_iter().map(rounded).collect();
                sink(&rounded.iter().map(Fibers::as_slices).collect::<Vec<_>>())
            }
            _ => Ok(()),
        }
    }

    /// Joins the fibers of a tile to the previous ones. `out` receives those that are complete. With `begun`, the tile
    /// has begun before.
    fn join(&mut self, tile: TileFibers, begun: bool, out: &mut Vec<Fibers<f64>>) {
        let (rank, others) = (self.matrix.columns(), self.order - 1);
        let TileFibers { mut coordinates, mut sums, .. } = tile;
        let fibers = coordinates.len() / others;
        if fibers == 0 {
            return;
        }
        if let Some(open) = &mut self.open {
            if !begun {
                open.total.iter_mut().zip(&mut open.of_tile).for_each(|(sum, x)| *sum += std::mem::take(x));
            }
            if open.coordinates == coordinates[..others] {
                open.of_tile.copy_from_slice(&sums[..rank]);
                if fibers == 1 {
                    return;
                }
                sums.iter_mut().zip(open.row()).for_each(|(sum, x)| *sum = x);
            } else {
                out.push(Fibers { coordinates: open.coordinates.clone(), values: open.row().collect() });
            }
        }
        let last = OpenFiber {
            of_tile: sums.split_off((fibers - 1) * rank),
            coordinates: coordinates.split_off((fibers - 1) * others),
            total: vec![0.0; rank],
        };
        self.open = Some(last);
        out.push(Fibers { coordinates, values: sums });
    }

    /// Hands over the last fiber. Returns the number of all fibers.
    pub fn finish(mut self) -> Result<u64> {
        if let Some(open) = self.open.take() {
            self.fibers += 1;
            if let Some(sink) = &mut self.sink {
                let values = T::from_f64s(open.row().collect());
                sink(&[(&open.coordinates, &values)])?;
            }
        }
        Ok(self.fibers)
    }
}

impl<T: Real> HostOp for FiberRows<'_, '_, T> {
    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        let tiles: Vec<usize> = (0..batch.tiles()).collect();
        let mode = self.mode;
        for tiles in tiles.chunks(self.at_once()) {
            self.put_tiles(tiles, |&t| TileFibers::of_tile(&batch.tile(t), mode))?;
        }
        Ok(())
    }
}
