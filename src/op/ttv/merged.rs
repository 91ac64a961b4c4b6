//! TTV along any but all modes of any store: products, added up in the packer's runs.

use super::result_writer::handed_bytes;
use super::{Along, Sink, check_finite, modes_left, values_times};
use crate::backend::host::{HostOp, Tiles};
use crate::coo::Batch;
use crate::dense::Real;
use crate::error::Result;
use crate::format::{DecodedTile, PENDING_NNZ};
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::op::rows_of;
use crate::pack::{ExternalSum, SpillReport};
use crate::shape::{ModeOrder, Shape};
use crate::store::Manifest;
use crate::sys::Sys;
use rayon::prelude::*;
use std::path::Path;

/// Elements of a batch.
const BATCH_ELEMENTS: usize = 1 << 13;

/// The operation. `K` holds the linear index of the remaining modes.
#[derive(Debug)]
pub struct Merged<'a, T, K> {
    along: Vec<Along<'a, T>>,
    /// The remaining modes.
    left: Vec<usize>,
    layout: BitLayout,
    sum: ExternalSum<K>,
}

/// The layout by which elements are sorted: the modes except `modes`, in order.
#[must_use]
pub fn layout(shape: &Shape, modes: &[usize]) -> BitLayout {
    let left = modes_left(shape.order(), modes);
    BitLayout::concatenated(shape, &ModeOrder::new(&left).expect("modes of a shape, each once"))
}

/// Bytes of elements of TTV along `modes` while they are handed over.
#[must_use]
pub fn merged_handed_bytes(manifest: &Manifest, modes: &[usize]) -> u64 {
    handed_bytes(manifest, modes, PENDING_NNZ)
}

impl<'a, T: Real, K: Key> Merged<'a, T, K> {
    /// TTV along some, not all, modes of a tensor of `shape` with at most `nnz` nonzeros. Sums take at most `memory`
    /// bytes; the rest goes to files in a directory in `temporary`. Runs on the current rayon pool.
    #[must_use]
    pub fn new(
        sys: &Sys,
        (shape, nnz): (&Shape, u64),
        along: &[Along<'a, T>],
        memory: u64,
        temporary: &Path,
    ) -> Self {
        let modes: Vec<usize> = along.iter().map(|&(mode, _)| mode).collect();
        let layout = layout(shape, &modes);
        let sum = ExternalSum::new(sys, &layout, nnz, memory, temporary);
        Self { along: along.to_vec(), left: modes_left(shape.order(), &modes), layout, sum }
    }

    /// Passes all elements to `sink`, in order. Returns their number and what was written to files.
    pub fn finish(self, sink: Sink<'_>) -> Result<(u64, SpillReport)> {
        let Self { left, layout, sum, .. } = self;
        let linearizer = Linearizer::<K>::new(&layout);
        let batch = |part: &[Nonzero<K>]| {
            let mut batch = Batch::default();
            for element in part {
                let at = linearizer.gather(element.linear);
                batch.indices.extend(left.iter().map(|&m| at[m]));
                batch.values.push(T::nearest(element.value).widen());
            }
            check_finite(&batch, left.len()).map(|()| batch)
        };
        let mut elements = 0;
        let spilled = sum.finish(|sums| {
            elements += sums.len() as u64;
            let batches: Result<Vec<Batch>> = sums.par_chunks(BATCH_ELEMENTS).map(batch).collect();
            sink(batches?)
        })?;
        Ok((elements, spilled))
    }
}

/// The products of one tile. An infinite product makes its element infinite whatever else is added, because runs hold
/// only finite numbers.
fn products<T: Real>(tile: &DecodedTile<'_>, along: &[Along<'_, T>], left: &[usize]) -> Result<Batch> {
    let (order, indices) = (tile.order(), rows_of(tile));
    let values: Vec<f64> = values_times(tile, along).map(Real::widen).collect();
    if let Some(bad) = values.iter().position(|product| !product.is_finite()) {
        let row = &indices[bad * order..][..order];
        let at = left.iter().map(|&m| row[m]).collect();
        check_finite(&Batch { indices: at, values: vec![values[bad]] }, left.len())?;
    }
    Ok(Batch { indices, values })
}

impl<T: Real, K: Key> HostOp for Merged<'_, T, K> {
    fn batch(&mut self, tiles: &Tiles<'_>) -> Result<()> {
        let (along, left) = (&self.along, &self.left);
        let batches: Result<Vec<Batch>> =
            (0..tiles.tiles()).into_par_iter().map(|t| products(&tiles.tile(t), along, left)).collect();
        batches?.into_iter().try_for_each(|batch| self.sum.push(batch))
    }
}
