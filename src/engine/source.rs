//! Sources of whoever calls, held to what [`Source`] promises: nobody behind them looks again.

use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::{Error, Result};
use crate::shape::Shape;

/// A source whose batches are looked at, unless it does that itself.
pub(super) struct Checked<'a, S>(pub &'a mut S);

impl<S: Source> Source for Checked<'_, S> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn identity(&self) -> Result<Option<String>> {
        self.0.identity()
    }

    fn size(&self) -> Result<Option<Size>> {
        self.0.size()
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        self.0.declared()
    }

    fn memory(&self, threads: usize) -> SourceMemory {
        self.0.memory(threads)
    }

    fn limit(&mut self, bytes: u64) {
        self.0.limit(bytes);
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        if self.0.is_checked() {
            return self.0.drain(sink);
        }
        let name = self.0.name();
        let wrong = |what: String| Error::input(name.clone(), what);
        let declared = self.0.declared()?.map(|shape| shape.dims().to_vec());
        // The largest index of each mode.
        let mut largest: Vec<u32> = Vec::new();
        let extent = self.0.drain(&mut |batch| {
            let order = if largest.is_empty() { batch.order() } else { largest.len() };
            if batch.indices.len() != order * batch.nnz() {
                let (indices, nnz) = (batch.indices.len(), batch.nnz());
                return Err(wrong(format!("{indices} indices of {nnz} nonzeros of order {order}")));
            }
            if let Some(value) = batch.values.iter().find(|value| !value.is_finite()) {
                return Err(wrong(format!("the value {value}: values are finite")));
            }
            largest.resize(order, 0);
            for row in batch.indices.chunks_exact(order.max(1)) {
                largest.iter_mut().zip(row).for_each(|(most, &index)| *most = index.max(*most));
            }
            match &declared {
                Some(dims) if !within(&largest, dims.iter().map(|&dim| dim.into())) => {
                    Err(wrong(format!("indices up to {largest:?}, from 0, of dims {dims:?}")))
                }
                _ => sink(batch),
            }
        })?;
        if !largest.is_empty() && !within(&largest, extent.dims.iter().copied()) {
            return Err(wrong(format!("indices up to {largest:?}, from 0, of dims {:?}", extent.dims)));
        }
        Ok(extent)
    }
}

/// Whether there is a dim for each mode, which is more than its largest index.
fn within(largest: &[u32], dims: impl ExactSizeIterator<Item = u64>) -> bool {
    largest.len() == dims.len() && largest.iter().zip(dims).all(|(&most, dim)| u64::from(most) < dim)
}
