//! TTV along any mode of any store: products, added up in the packer's runs.

use super::result_writer::handed_bytes;
use super::{Sink, check_finite};
use crate::backend::host::{HostOp, Tiles};
use crate::coo::Batch;
use crate::dense::Real;
use crate::error::Result;
use crate::format::{DecodedTile, PENDING_NNZ};
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use crate::pack::{ExternalSum, SpillReport};
use crate::shape::{ModeOrder, Shape};
use crate::store::Manifest;
use crate::sys::Sys;
use rayon::prelude::*;
use std::path::Path;

/// Elements of a batch that is handed over.
const BATCH_ELEMENTS: usize = 1 << 13;

/// The operation; `K` holds the linear index of the modes that are left.
#[derive(Debug)]
pub struct Merged<'a, T, K> {
    vector: &'a [T],
    mode: usize,
    layout: BitLayout,
    sum: ExternalSum<K>,
}

/// The layout by which elements are sorted: the modes but `mode`, in order.
#[must_use]
pub fn layout(shape: &Shape, mode: usize) -> BitLayout {
    let rest: Vec<usize> = (0..shape.order()).filter(|&m| m != mode).collect();
    BitLayout::concatenated(shape, &ModeOrder::new(&rest).expect("modes of a shape, each once"))
}

/// Bytes that elements of TTV along `mode` take as they are handed over.
#[must_use]
pub fn merged_handed_bytes(manifest: &Manifest, mode: usize) -> u64 {
    handed_bytes(manifest, mode, PENDING_NNZ)
}

impl<'a, T: Real, K: Key> Merged<'a, T, K> {
    /// TTV along `mode`, from 0, of a tensor of `shape` with at most `nnz` nonzeros; `vector` has as many elements as the mode has
    /// indices. Sums take at most `memory` bytes; what exceeds them goes to files in a directory in `temporary`. Runs on the current
    /// rayon pool.
    #[must_use]
    pub fn new(
        sys: &Sys,
        (shape, nnz): (&Shape, u64),
        mode: usize,
        vector: &'a [T],
        memory: u64,
        temporary: &Path,
    ) -> Self {
        let layout = layout(shape, mode);
        let sum = ExternalSum::new(sys, &layout, nnz, memory, temporary);
        Self { vector, mode, layout, sum }
    }

    /// Hands all elements to `sink`, in order. Their number, and what went to files.
    pub fn finish(self, sink: Sink<'_>) -> Result<(u64, SpillReport)> {
        let Self { mode, layout, sum, .. } = self;
        let linearizer = Linearizer::<K>::new(&layout);
        let order = layout.order();
        let batch = |part: &[Nonzero<K>]| {
            let mut batch = Batch::default();
            for element in part {
                let at = linearizer.gather(element.linear);
                batch.indices.extend((0..order).filter(|&m| m != mode).map(|m| at[m]));
                batch.values.push(T::nearest(element.value).widen());
            }
            check_finite(&batch, order - 1).map(|()| batch)
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

/// The products of one tile. One that exceeds all numbers makes its element do so, whatever else is added: runs hold numbers only.
fn products<T: Real>(tile: &DecodedTile<'_>, mode: usize, vector: &[T]) -> Result<Batch> {
    let order = tile.order();
    let mut indices = vec![0; tile.nnz * order];
    for m in 0..order {
        let places = indices[m..].iter_mut().step_by(order);
        places.zip(tile.column(m)).for_each(|(place, &index)| *place = index);
    }
    let product = |(&index, &value): (&u32, &f64)| (T::nearest(value) * vector[index as usize]).widen();
    let values: Vec<f64> = tile.column(mode).iter().zip(tile.values).map(product).collect();
    if let Some(bad) = values.iter().position(|product| !product.is_finite()) {
        let mut at = indices[bad * order..][..order].to_vec();
        at.remove(mode);
        check_finite(&Batch { indices: at, values: vec![values[bad]] }, order - 1)?;
    }
    Ok(Batch { indices, values })
}

impl<T: Real, K: Key> HostOp for Merged<'_, T, K> {
    fn batch(&mut self, tiles: &Tiles<'_>) -> Result<()> {
        let (mode, vector) = (self.mode, self.vector);
        let batches: Result<Vec<Batch>> =
            (0..tiles.tiles()).into_par_iter().map(|t| products(&tiles.tile(t), mode, vector)).collect();
        batches?.into_iter().try_for_each(|batch| self.sum.push(batch))
    }
}
