//! The class `Packer`: a store that is packed while Python appends to it.

use crate::arrays::{Coordinates, PyColumn, PyValues};
use crate::call::{Work, json, receive, run, send};
use crate::error::exception;
use crate::process::OfProcess;
use crate::source::{Appended, AppendedSource, BATCH_NNZ, WAITING};
use blco::{Batch, Error, PackOptions, PackReport, Result, Shape};
use crossbeam_channel::{Receiver, Sender, bounded};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Packs what is appended, within the memory that it may take. Not for several threads at once.
#[pyclass(module = "blco._blco")]
#[derive(Debug)]
pub struct Packer {
    packing: OfProcess<Option<Packing>>,
    /// Appended, not sent yet.
    open: Batch,
    order: Option<usize>,
    base: u32,
    nnz: u64,
}

/// The thread that packs.
#[derive(Debug)]
struct Packing {
    work: Work,
    sender: Sender<Appended>,
    done: Receiver<Result<PackReport>>,
}

/// A packer that is dropped leaves nothing: the thread finds that nobody sends any more.
impl Drop for Packing {
    fn drop(&mut self) {
        self.work.engine.cancel_handle().cancel();
    }
}

impl Packer {
    pub fn new(
        engine: &blco::Engine,
        options: PackOptions,
        shape: Option<Vec<u64>>,
        base: u32,
    ) -> PyResult<Self> {
        let shape = shape.map(|dims| Shape::new(&dims)).transpose().map_err(|error| exception(&error))?;
        let order = shape.as_ref().map(|shape| shape.dims().len());
        let work = Work::on(engine);
        let (sender, received) = bounded(WAITING);
        let (report, done) = bounded(1);
        let mut source = AppendedSource { received, shape };
        let packs = work.engine.clone();
        let pack = move || drop(report.send(packs.pack(&mut source, &options)));
        let started = std::thread::Builder::new().name("blco-pack".into()).spawn(pack);
        started.map_err(|source| exception(&Error::Resource { action: "start a thread", source }))?;
        let packing = Packing { work, sender, done };
        let packing = OfProcess::new(Some(packing));
        Ok(Self { packing, open: Batch::default(), order, base, nnz: 0 })
    }

    fn packing(&mut self) -> PyResult<&mut Packing> {
        let packing = self.packing.get_mut()?.as_mut();
        packing.ok_or_else(|| PyRuntimeError::new_err("the packer is closed"))
    }

    /// Sends a batch; the packer's error if it has ended.
    fn send(&mut self, py: Python<'_>, message: Appended) -> PyResult<()> {
        let sender = self.packing()?.sender.clone();
        if send(py, &sender, message)? {
            return Ok(());
        }
        let done = self.packing()?.done.clone();
        self.packing.get_mut()?.take();
        Err(match receive(py, &done)? {
            Some(Err(error)) => exception(&error),
            _ => PyRuntimeError::new_err("packing has ended"),
        })
    }
}

#[pymethods]
impl Packer {
    /// Appends nonzeros: indices of each mode, and values.
    #[pyo3(signature = (columns, values, name))]
    fn append(
        &mut self,
        py: Python<'_>,
        columns: Vec<Bound<'_, PyAny>>,
        values: &Bound<'_, PyAny>,
        name: &str,
    ) -> PyResult<()> {
        let columns = columns.iter().map(PyColumn::of).collect::<PyResult<Vec<_>>>()?;
        let values = PyValues::of(values)?;
        let columns: Vec<_> = columns.iter().map(PyColumn::view).collect();
        let order = *self.order.get_or_insert(columns.len());
        if order != columns.len() {
            let what = format!("{name}: order {}, the tensor has order {order}", columns.len());
            return Err(PyValueError::new_err(what));
        }
        let base = self.base;
        let tensor = Coordinates { columns, values: values.view(), base, name };
        tensor.check().map_err(|error| exception(&error))?;
        self.packing()?;
        for from in (0..tensor.nnz()).step_by(BATCH_NNZ) {
            let to = tensor.nnz().min(from + BATCH_NNZ);
            let batch = py.detach(|| tensor.dims(from, to).and_then(|_| tensor.batch(from, to)));
            let batch = batch.map_err(|error| exception(&error))?;
            self.nnz += batch.values.len() as u64;
            if self.open.values.is_empty() {
                self.open = batch;
            } else {
                self.open.indices.extend(batch.indices);
                self.open.values.extend(batch.values);
            }
            if self.open.values.len() >= BATCH_NNZ {
                let full = std::mem::take(&mut self.open);
                self.send(py, Appended::Batch(full))?;
            }
        }
        Ok(())
    }

    /// Nonzeros appended.
    #[getter]
    fn nnz(&self) -> u64 {
        self.nnz
    }

    /// Packs the rest and gives the store its name; returns the report as JSON.
    #[pyo3(signature = (progress = None))]
    fn finish(&mut self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<String> {
        if !self.open.values.is_empty() {
            let rest = std::mem::take(&mut self.open);
            self.send(py, Appended::Batch(rest))?;
        }
        self.send(py, Appended::End)?;
        let packing = self.packing.get_mut()?.take().expect("it took the end");
        let report = run(py, progress.as_ref(), |caller| {
            caller.stop.covers(&packing.work);
            let ended = || Err(Error::request("packing has ended without a report"));
            packing.done.recv().unwrap_or_else(|_| ended())
        })?;
        json(&report)
    }

    /// Stops; nothing is left. Returns when that is so.
    fn abort(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(packing) = self.packing.get_mut()?.take() else { return Ok(()) };
        let done = packing.done.clone();
        drop(packing);
        receive(py, &done).map(drop)
    }
}
