//! Nonzeros as an Arrow C stream: a column for each mode, with its labels as a dictionary, and one of values.

use crate::batches::Reading;
use crate::error::exception;
use crate::process::OfProcess;
use arrow_array::builder::LargeStringBuilder;
use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, DictionaryArray, Float64Array, StructArray, UInt32Array};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use blco::{Batch, Store};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::ffi::{ArrayIterator, to_stream_pycapsule};
use std::sync::Arc;

/// The record batches of `store`, which `engine` reads while they are consumed. Every batch refers to the same labels.
pub fn stream<'py>(
    py: Python<'py>,
    engine: &blco::Engine,
    store: &Store,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let columns = py.detach(|| Columns::of(store)).map_err(|error| exception(&error))?;
    let reading = OfProcess::new(Reading::start(engine, store, Vec::new())?);
    let field = Field::new_struct("", columns.fields.clone(), false);
    let batches = std::iter::from_fn(move || {
        let batch = Python::attach(|py| {
            py.check_signals()?;
            reading.get()?.next(py)
        });
        let batch = batch.map_err(|error| ArrowError::ExternalError(Box::new(error)));
        batch.and_then(|batch| batch.map(|batch| columns.array(batch)).transpose()).transpose()
    });
    Ok(to_stream_pycapsule(py, Box::new(ArrayIterator::new(batches, field.into())), requested_schema)?)
}

/// What all batches have in common.
struct Columns {
    fields: Fields,
    /// The labels of each mode that has any.
    labels: Vec<Option<ArrayRef>>,
}

impl Columns {
    fn of(store: &Store) -> blco::Result<Self> {
        let order = store.dims().len();
        let labels = (0..order).map(|mode| labels(store, mode)).collect::<blco::Result<Vec<_>>>()?;
        let field = |(mode, labels): (usize, &Option<ArrayRef>)| {
            let name = store.mode_name(mode).map_or_else(|| format!("mode {mode}"), str::to_owned);
            let kind = match labels {
                Some(_) => DataType::Dictionary(DataType::UInt32.into(), DataType::LargeUtf8.into()),
                None => DataType::UInt32,
            };
            Field::new(name, kind, false)
        };
        let named = store.modes_info().map(|info| &info.value_name[..]).filter(|name| !name.is_empty());
        let value = Field::new(named.unwrap_or("value"), DataType::Float64, false);
        Ok(Self { fields: labels.iter().enumerate().map(field).chain([value]).collect(), labels })
    }

    fn array(&self, batch: Batch) -> Result<ArrayRef, ArrowError> {
        let order = self.labels.len();
        let column = |(mode, labels): (usize, &Option<ArrayRef>)| -> Result<ArrayRef, ArrowError> {
            let indices = batch.indices.iter().skip(mode).step_by(order).copied();
            let indices = UInt32Array::from_iter_values(indices);
            Ok(match labels {
                Some(labels) => Arc::new(DictionaryArray::<UInt32Type>::try_new(indices, labels.clone())?),
                None => Arc::new(indices),
            })
        };
        let columns = self.labels.iter().enumerate().map(column);
        let mut columns = columns.collect::<Result<Vec<_>, _>>()?;
        columns.push(Arc::new(Float64Array::from(batch.values)));
        Ok(Arc::new(StructArray::try_new(self.fields.clone(), columns, None)?))
    }
}

/// The labels of a mode, in the order of its indices.
fn labels(store: &Store, mode: usize) -> blco::Result<Option<ArrayRef>> {
    let Some(mut labels) = store.labels(mode)? else { return Ok(None) };
    let mut found = LargeStringBuilder::new();
    labels.for_each(|_, label| {
        found.append_value(label);
        Ok(true)
    })?;
    Ok(Some(Arc::new(found.finish())))
}
