//! TTV along the leaves' mode of a tree: fiber after fiber, elements out in order.

use super::fibers::AddFibers;
use super::neighbours::NOTHING;
use super::outlet::{Ends, Outlet, TASK_TILES};
use super::{Sink, fibers_max};
use crate::backend::host::{Batch as Tiles, HostOp, Vectors};
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::TreeView;
use crate::store::{Format, Manifest, Store};
use rayon::prelude::*;
use std::time::Instant;

/// The operation.
pub struct Streamed<'a, 's, T> {
    vector: &'a [T],
    vectors: pulp::Arch,
    /// Sums of a chunk's fibers.
    sums: Vec<f64>,
    outlet: Outlet<'s>,
    /// Seconds of computing and of handing over, for each chunk.
    steps: Vec<[f64; 2]>,
}

/// Bytes that it holds for a store, the vector included.
#[must_use]
pub fn host_bytes<T: Real>(manifest: &Manifest, mode: usize) -> u64 {
    // A chunk's sums, and its elements as they are handed over.
    let elements = fibers_max(manifest) * (2 * 8 + 4 * (manifest.shape.order() as u64 - 1));
    u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64 + elements
}

impl<'a, 's, T: Real> Streamed<'a, 's, T> {
    /// TTV of `store`, whose leaves' mode has as many indices as `vector` elements. Elements go to `sink`; without one
    /// they are counted.
    pub fn new(store: &Store, vector: &'a [T], sink: Option<Sink<'s>>) -> Result<Self> {
        let (sys, manifest) = (store.sys(), store.manifest());
        let Format::Hocfs { levels, .. } = manifest.format else {
            return Err(Error::request("elements stream out of hocfs stores alone"));
        };
        Ok(Self {
            vector,
            vectors: Vectors::Widest.arch(),
            sums: sys.vec(0.0, usize::try_from(fibers_max(manifest)).unwrap_or(usize::MAX))?,
            outlet: Outlet::new(&levels, sink),
            steps: sys.vec([0.0; 2], 0)?,
        })
    }

    /// The same, with other vector instructions than the widest.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors.arch();
        self
    }

    /// Forgets what came out, for another pass, of which elements are handed over where it is the `last`.
    pub fn reset(&mut self, last: bool) {
        self.outlet.reset(last);
        self.steps.clear();
    }

    /// Hands over the last element. The number of all of them, and the seconds of each chunk's computing and handing
    /// over.
    pub fn finish(&mut self) -> Result<(u64, Vec<[f64; 2]>)> {
        Ok((self.outlet.finish::<T>()?, std::mem::take(&mut self.steps)))
    }

    /// The sums of all fibers of a chunk, the first of which goes on with what is carried.
    fn compute(&mut self, view: &TreeView<'_>, ends: &Ends) -> Result<()> {
        let before = self.outlet.carried(ends).unwrap_or(NOTHING);
        let fibers = ends.fibers;
        let Self { vector, vectors, sums, .. } = self;
        let tasks = sums[..fibers].par_chunks_mut(TASK_TILES * TILE_NNZ).enumerate();
        tasks.try_for_each(|(task, sums)| {
            let before = if task == 0 { before } else { NOTHING };
            AddFibers { view, first_tile: task * TASK_TILES, vector, before, sums }.run(*vectors)
        })
    }
}

impl<T: Real> HostOp for Streamed<'_, '_, T> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        let ChunkView::Tree(view) = chunk else {
            return Err(Error::request("elements stream out of trees alone"));
        };
        let start = Instant::now();
        let ends = Ends::of(view)?;
        self.compute(view, &ends)?;
        let computed = start.elapsed();
        self.outlet.put::<T, f64>(&ends, Some(view), &self.sums[..ends.fibers])?;
        self.steps.push([computed, start.elapsed().saturating_sub(computed)].map(|step| step.as_secs_f64()));
        Ok(())
    }

    fn takes_tiles(&self) -> bool {
        false
    }

    fn batch(&mut self, _: &Tiles<'_>) -> Result<()> {
        Ok(())
    }
}
