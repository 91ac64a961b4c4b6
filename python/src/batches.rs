//! The class `Batches`: an iterator over a store's nonzeros, which another thread reads ahead.

use crate::arrays::{Arrays, batch_arrays};
use crate::call::{Work, receive};
use crate::error::exception;
use crate::process::OfProcess;
use blco::{Batch, Cancel, Error, Result};
use crossbeam_channel::{Receiver, bounded};
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::Mutex;

/// Batches that are read ahead.
const AHEAD: usize = 2;

/// Yields nonzeros as pairs of arrays: indices (uint32, nonzeros x modes) and values (float64).
#[pyclass(frozen, module = "blco._blco")]
#[derive(Debug)]
pub struct Batches {
    reading: OfProcess<Reading>,
    order: usize,
}

/// A thread that reads ahead.
#[derive(Debug)]
pub struct Reading {
    batches: Mutex<Option<Receiver<Result<Batch>>>>,
    cancel: Cancel,
}

/// An iterator that is dropped stops the thread that reads for it.
impl Drop for Reading {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Reading {
    /// Begins to read the nonzeros of `store` within `ranges`, one for each mode, or all.
    pub fn start(engine: &blco::Engine, store: &blco::Store, ranges: Vec<Range<u32>>) -> PyResult<Self> {
        let work = Work::on(engine);
        let cancel = work.engine.cancel_handle();
        let (sender, receiver) = bounded(AHEAD);
        let store = store.clone();
        let read = move || {
            let mut send = |batch| sender.send(Ok(batch)).map_err(|_| Error::Cancelled);
            if let Err(error) = work.engine.read(&store, &ranges, &mut send) {
                // Nobody waits for the error if the iterator is gone.
                let _ = sender.send(Err(error));
            }
        };
        let started = std::thread::Builder::new().name("blco-read".into()).spawn(read);
        started.map_err(|source| exception(&Error::Resource { action: "start a thread", source }))?;
        Ok(Self { batches: Mutex::new(Some(receiver)), cancel })
    }

    /// The next batch; looks after signals while it waits.
    pub fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let batches = self.batches.lock().ok().and_then(|batches| batches.clone());
        let Some(batches) = batches else { return Ok(None) };
        receive(py, &batches)?.transpose().map_err(|error| exception(&error))
    }
}

impl Batches {
    pub fn new(engine: &blco::Engine, store: &blco::Store, ranges: Vec<Range<u32>>) -> PyResult<Self> {
        let reading = Reading::start(engine, store, ranges)?;
        Ok(Self { reading: OfProcess::new(reading), order: store.dims().len() })
    }
}

#[pymethods]
impl Batches {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Arrays<'py>>> {
        let batch = self.reading.get()?.next(py)?;
        Ok(batch.map(|batch| batch_arrays(py, batch, self.order)))
    }

    /// Stops reading.
    fn close(&self) -> PyResult<()> {
        let reading = self.reading.get()?;
        reading.cancel.cancel();
        if let Ok(mut batches) = reading.batches.lock() {
            *batches = None;
        }
        Ok(())
    }
}
