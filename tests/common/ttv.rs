//! TTV on the host, in the way that suits the store.

#![allow(dead_code, reason = "every test uses a part")]

use blco::internals::backend::host::{HostBackend, HostOp, Vectors};
use blco::internals::coo::Batch;
use blco::internals::dense::Real;
use blco::internals::error::Result;
use blco::internals::linear::Wide;
use blco::internals::op::ttv::{Merged, Sink, Streamed, streams};
use blco::internals::random::Counter;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use std::path::Path;

/// Numbers in [-1, 1).
pub fn vector<T: Real>(dim: u64, seed: u64) -> Vec<T> {
    let random = Counter::new(seed, 77);
    (0..dim).map(|i| T::nearest(random.unit(i) * 2.0 - 1.0)).collect()
}

fn pass<O: HostOp>(store: &Store, op: &mut O, workers: usize) -> Result<()> {
    let mut backend = HostBackend::new(store, op)?;
    let plan = plan(store, 0, &Limits { workers: Some(workers), ..Limits::default() })?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ()).map(drop)
}

/// TTV along the leaves' mode of trees.
pub fn streamed<T: Real>(
    store: &Store,
    x: &[T],
    vectors: Vectors,
    workers: usize,
    sink: Sink<'_>,
) -> Result<u64> {
    let mut op = Streamed::new(store, x, Some(sink))?.with_vectors(vectors);
    pass(store, &mut op, workers)?;
    op.finish().map(|(elements, _)| elements)
}

/// TTV along `mode`, with at most `memory` bytes for partial results and the others in files in `runs`. Returns the number of elements
/// that `sink` got.
pub fn ttv<T: Real>(
    store: &Store,
    mode: usize,
    x: &[T],
    (memory, runs): (u64, &Path),
    workers: usize,
    sink: Sink<'_>,
) -> Result<u64> {
    if streams(store.manifest(), mode) {
        return streamed(store, x, Vectors::Widest, workers, sink);
    }
    let shape = &store.manifest().shape;
    let tensor = (shape, store.manifest().nnz);
    let mut op = Merged::<T, Wide>::new(store.sys(), tensor, &[(mode, x)], memory, runs);
    pass(store, &mut op, workers)?;
    op.finish(sink).map(|(elements, _)| elements)
}

/// The elements of batches: coordinates without the mode of the vector, and values.
pub fn elements(batches: Vec<Batch>, order: usize) -> impl Iterator<Item = (Vec<u32>, f64)> {
    batches.into_iter().flat_map(move |batch| {
        let rows: Vec<Vec<u32>> = batch.indices.chunks_exact(order - 1).map(<[u32]>::to_vec).collect();
        rows.into_iter().zip(batch.values)
    })
}
