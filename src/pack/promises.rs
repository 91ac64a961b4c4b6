//! Checks that a source hands over what [`Source`] promises. Nothing after the packer checks again.

use crate::coo::{Batch, Extent, Source};
use crate::error::{Error, Result};

/// What a source has handed over so far.
#[derive(Debug)]
pub struct Promises {
    source: String,
    declared: Option<Vec<u32>>,
    /// The largest index of each mode.
    largest: Vec<u32>,
}

impl Promises {
    /// Of a source that has handed over nothing; `None` if it looks itself.
    pub fn of(source: &mut dyn Source) -> Result<Option<Self>> {
        if source.is_checked() {
            return Ok(None);
        }
        let declared = source.declared()?.map(|shape| shape.dims().to_vec());
        Ok(Some(Self { source: source.name(), declared, largest: Vec::new() }))
    }

    /// Looks at the next batch.
    pub fn check(&mut self, batch: &Batch) -> Result<()> {
        let largest = &mut self.largest;
        let order = if largest.is_empty() { batch.order() } else { largest.len() };
        let wrong = |what: String| Err(Error::input(&self.source, what));
        if batch.indices.len() != order * batch.nnz() {
            let (indices, nnz) = (batch.indices.len(), batch.nnz());
            return wrong(format!("{indices} indices of {nnz} nonzeros of order {order}"));
        }
        if let Some(value) = batch.values.iter().find(|value| !value.is_finite()) {
            return wrong(format!("the value {value}: values are finite"));
        }
        largest.resize(order, 0);
        for row in batch.indices.chunks_exact(order.max(1)) {
            largest.iter_mut().zip(row).for_each(|(most, &index)| *most = index.max(*most));
        }
        match &self.declared {
            Some(dims) => self.within(dims),
            None => Ok(()),
        }
    }

    /// Looks at what it says of all of it.
    pub fn finish(&self, extent: &Extent) -> Result<()> {
        if self.largest.is_empty() { Ok(()) } else { self.within(&extent.dims) }
    }

    /// An error unless there is a dim for each mode, which is more than its largest index.
    fn within<T: Copy + Into<u64> + std::fmt::Debug>(&self, dims: &[T]) -> Result<()> {
        let largest = &self.largest;
        let inside = |(&most, &dim): (&u32, &T)| u64::from(most) < dim.into();
        if largest.len() == dims.len() && largest.iter().zip(dims).all(inside) {
            return Ok(());
        }
        let largest: Vec<u64> = largest.iter().map(|&index| u64::from(index) + 1).collect();
        Err(Error::input(&self.source, format!("indices up to {largest:?} of dims {dims:?}")))
    }
}
