//! TTV along the leaf mode of a tree: fiber after fiber, with elements written in order.

use super::Sink;
use super::fibers::AddFibers;
use super::neighbours::NOTHING;
use super::result_writer::{FiberEnds, ResultWriter, TASK_FIBERS, group_fibers, handed_bytes};
use crate::backend::host::{HostOp, Tiles, Vectors, computing_bytes};
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::TreeView;
use crate::store::{Manifest, Store};
use rayon::prelude::*;
use std::time::{Duration, Instant};

/// The operation.
pub struct Streamed<'a, 's, T> {
    vector: &'a [T],
    vectors: pulp::Arch,
    /// Sums of some of a chunk's fibers.
    sums: Vec<f64>,
    writer: ResultWriter<'s>,
    /// Seconds of computing and of handing over, per chunk.
    steps: Vec<[f64; 2]>,
}

/// Bytes of memory for a store on `threads` threads, vector included.
#[must_use]
pub fn host_bytes<T: Real>(manifest: &Manifest, mode: usize, threads: usize) -> u64 {
    let vector = u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64;
    let sums = (group_fibers(threads) * size_of::<f64>()) as u64;
    vector + sums + handed_bytes(manifest, &[mode], group_fibers(threads)) + computing_bytes(threads)
}

impl<'a, 's, T: Real> Streamed<'a, 's, T> {
    /// TTV of `store`. `vector` has as many elements as the leaf mode has indices. Elements go to `sink`; without one
    /// they are only counted. Runs on the current rayon pool.
    pub fn new(store: &Store, vector: &'a [T], sink: Option<Sink<'s>>) -> Result<Self> {
        let (sys, manifest) = (store.sys(), store.manifest());
        let levels = manifest.format().tree_levels();
        let levels = levels.ok_or_else(|| Error::request("elements stream out of trees alone"))?;
        Ok(Self {
            vector,
            vectors: Vectors::Widest.arch(),
            sums: sys.vec(0.0, group_fibers(rayon::current_num_threads()))?,
            writer: ResultWriter::new(&levels, sink),
            steps: sys.vec([0.0; 2], 0)?,
        })
    }

    /// The same with narrower vector instructions.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors.arch();
        self
    }

    /// Prepares for another pass. Elements are handed over if it is the `last`.
    pub fn reset(&mut self, last: bool) {
        self.writer.reset(last);
        self.steps.clear();
    }

    /// Hands over the last element. Returns the number of all elements, and the seconds of computing and handing
    /// over for each chunk.
    pub fn finish(&mut self) -> Result<(u64, Vec<[f64; 2]>)> {
        Ok((self.writer.finish::<T>()?, std::mem::take(&mut self.steps)))
    }

    /// The sums of `fibers` fibers of a chunk from `first` on. The first one's starts at `before`.
    fn compute(&mut self, view: &TreeView<'_>, first: usize, fibers: usize, before: f64) -> Result<()> {
        let Self { vector, vectors, sums, .. } = self;
        let tasks = sums[..fibers].par_chunks_mut(TASK_FIBERS).enumerate();
        tasks.try_for_each(|(task, sums)| {
            let before = if task == 0 { before } else { NOTHING };
            let first_tile = (first + task * TASK_FIBERS) / TILE_NNZ;
            AddFibers { view, first_tile, vector, before, sums }.run(*vectors)
        })
    }
}

impl<T: Real> HostOp for Streamed<'_, '_, T> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        let view = chunk.tree().ok_or_else(|| Error::request("elements stream out of trees alone"))?;
        let (start, mut computing) = (Instant::now(), Duration::ZERO);
        let ends = FiberEnds::of(view)?;
        let mut before = self.writer.carried(&ends).unwrap_or(NOTHING);
        for first in (0..ends.fibers).step_by(self.sums.len()) {
            let begun = Instant::now();
            let fibers = self.sums.len().min(ends.fibers - first);
            self.compute(view, first, fibers, std::mem::replace(&mut before, NOTHING))?;
            computing += begun.elapsed();
            self.writer.put_group::<T, f64>(&ends, Some(view), first, &self.sums[..fibers])?;
        }
        let handing = start.elapsed().saturating_sub(computing);
        self.steps.push([computing, handing].map(|step| step.as_secs_f64()));
        Ok(())
    }

    fn takes_tiles(&self) -> bool {
        false
    }

    fn batch(&mut self, _: &Tiles<'_>) -> Result<()> {
        Ok(())
    }
}
