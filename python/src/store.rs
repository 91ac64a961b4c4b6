//! The class `Store`: an open store, and what is computed from it.

use crate::arrays::{Arrays, DeviceAt, PyFactors, array2};
use crate::arrow;
use crate::batches::Batches;
use crate::call::{Caller, Work, json, run};
use crate::choices::Choices;
use crate::error::exception;
use crate::open::{Kept, Open};
use crate::process::OfProcess;
use crate::products::{Product, Results};
use crate::sessions::Sessions;
use blco::{Cp, Decomposition, Error, Iteration, Matrix};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Threads that decode ahead for an iterator.
const READERS: usize = 2;

/// An open store.
#[pyclass(frozen, module = "blco._blco")]
#[derive(Debug)]
pub struct Store {
    open: OfProcess<Open>,
}

impl Store {
    /// `store` on `engine`. Each session takes the memory that the engine may: if that is bounded, one at a time.
    pub fn new(engine: &blco::Engine, choices: &Choices, store: blco::Store) -> Self {
        let most = if choices.memory.is_some() { 1 } else { store.dims().len() + 1 };
        let (f64, f32) = (Sessions::new(most), Sessions::new(most));
        let (engine, choices) = (engine.clone(), choices.clone());
        Self { open: OfProcess::new(Open { engine, choices, store, f64, f32 }) }
    }
}

#[pymethods]
impl Store {
    /// The directory.
    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.open.get()?.store.path().to_path_buf())
    }

    /// What each mode is called; nothing where the store says nothing of its modes.
    #[getter]
    fn mode_names(&self) -> PyResult<Option<Vec<String>>> {
        let info = self.open.get()?.store.modes_info();
        Ok(info.map(|info| info.modes.iter().map(|mode| mode.name.clone()).collect()))
    }

    /// All labels of a mode, from 0; nothing where it has none.
    fn labels(&self, py: Python<'_>, mode: usize) -> PyResult<Option<Vec<String>>> {
        let open = self.open.get()?;
        py.detach(|| {
            let Some(mut labels) = open.store.labels(mode)? else { return Ok(None) };
            let mut found = Vec::new();
            labels.for_each(|_, label| {
                found.push(label.to_owned());
                Ok(true)
            })?;
            Ok(Some(found))
        })
        .map_err(|error: Error| exception(&error))
    }

    /// Indices of each mode.
    #[getter]
    fn shape(&self) -> PyResult<Vec<u32>> {
        Ok(self.open.get()?.store.dims().to_vec())
    }

    /// Nonzeros.
    #[getter]
    fn nnz(&self) -> PyResult<u64> {
        Ok(self.open.get()?.store.nnz())
    }

    /// What the manifest says, as JSON.
    fn summary(&self) -> PyResult<String> {
        json(&self.open.get()?.store.summary().map_err(|error| exception(&error))?)
    }

    /// What a pass over all nonzeros counts, as JSON.
    #[pyo3(signature = (progress = None))]
    fn inspect(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<String> {
        json(&self.open.get()?.work(py, progress.as_ref(), blco::Engine::inspect)?)
    }

    /// Checks every byte.
    #[pyo3(signature = (progress = None))]
    fn verify(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        self.open.get()?.work(py, progress.as_ref(), |engine, store| engine.verify(store).map(drop))
    }

    /// Nonzeros within ranges, one for each mode, or all.
    #[pyo3(signature = (ranges = None))]
    fn read(&self, ranges: Option<Vec<(u32, u32)>>) -> PyResult<Batches> {
        let open = self.open.get()?;
        let ranges = ranges.unwrap_or_default().into_iter().map(|(from, to)| from..to).collect();
        Batches::new(&open.choices.aside(READERS)?, &open.store, ranges)
    }

    /// All nonzeros as an Arrow C stream of record batches, read as it is consumed.
    #[pyo3(signature = (requested_schema = None))]
    fn arrow_stream<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let open = self.open.get()?;
        arrow::stream(py, &open.choices.aside(READERS)?, &open.store, requested_schema)
    }

    /// MTTKRP of `modes` with factors of one precision, into memory of a GPU if `out` says where.
    #[pyo3(signature = (factors, modes, *, single, calls, out = None, progress = None))]
    fn mttkrp<'py>(
        &self,
        py: Python<'py>,
        factors: Vec<Bound<'py, PyAny>>,
        modes: Vec<usize>,
        single: bool,
        calls: u32,
        out: Option<Vec<DeviceAt>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Results<'py>> {
        let call = Product { open: self.open.get()?, modes, progress: progress.as_ref() };
        if single {
            call.mttkrp::<f32>(py, &factors, calls, out)
        } else {
            call.mttkrp::<f64>(py, &factors, calls, out)
        }
    }

    /// `SpTTMc` of `modes`.
    #[pyo3(signature = (factors, modes, *, single, progress = None))]
    fn ttmc<'py>(
        &self,
        py: Python<'py>,
        factors: Vec<Bound<'py, PyAny>>,
        modes: Vec<usize>,
        single: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Results<'py>> {
        let call = Product { open: self.open.get()?, modes, progress: progress.as_ref() };
        if single { call.ttmc::<f32>(py, &factors) } else { call.ttmc::<f64>(py, &factors) }
    }

    /// `SpTTM` along a mode: indices of the fibers and their rows.
    #[pyo3(signature = (matrix, mode, *, single, progress = None))]
    fn ttm<'py>(
        &self,
        py: Python<'py>,
        matrix: Bound<'py, PyAny>,
        mode: usize,
        single: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let call = Product { open: self.open.get()?, modes: vec![mode], progress: progress.as_ref() };
        if single { call.ttm::<f32>(py, matrix) } else { call.ttm::<f64>(py, matrix) }
    }

    /// The Frobenius norm, from a pass.
    #[pyo3(signature = (progress = None))]
    fn norm(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<f64> {
        self.open.get()?.work(py, progress.as_ref(), blco::Engine::norm)
    }

    /// The inner product with another store of the same shape.
    #[pyo3(signature = (other, progress = None))]
    fn inner(&self, py: Python<'_>, other: &Self, progress: Option<Py<PyAny>>) -> PyResult<f64> {
        let other = other.open.get()?;
        self.open.get()?.work(py, progress.as_ref(), |engine, store| engine.inner(store, &other.store))
    }

    /// On rank 0: if this is a part of a tensor, all parts as one store, once the other ranks serve. Nothing for any other store.
    fn united(&self, py: Python<'_>) -> PyResult<Option<Self>> {
        let open = self.open.get()?;
        let united = open.work(py, None, blco::Engine::unite)?;
        Ok(united.map(|store| Self::new(&open.engine, &open.choices, store)))
    }

    /// On a rank but 0: does what rank 0's call needs, until that ends.
    fn serve(&self, py: Python<'_>) -> PyResult<()> {
        self.open.get()?.work(py, None, |engine, store| engine.serve(store.path()))
    }

    /// On rank 0: the others have served.
    fn end_serving(&self, py: Python<'_>) -> PyResult<()> {
        self.open.get()?.work(py, None, |engine, _| engine.end_serving())
    }

    /// What the sessions that are kept use, as JSON.
    fn plans(&self) -> PyResult<String> {
        let open = self.open.get()?;
        json(&open.f64.plans().into_iter().chain(open.f32.plans()).collect::<Vec<_>>())
    }

    /// Lets go of the sessions that are kept.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.get()?;
        py.detach(|| {
            open.f64.release();
            open.f32.release();
        });
        Ok(())
    }

    /// TTV along ascending modes: indices and values of the result.
    #[pyo3(signature = (vectors, modes, *, single, progress = None))]
    fn ttv<'py>(
        &self,
        py: Python<'py>,
        vectors: Vec<Bound<'py, PyAny>>,
        modes: Vec<usize>,
        single: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Arrays<'py>> {
        let call = Product { open: self.open.get()?, modes, progress: progress.as_ref() };
        if single { call.ttv::<f32>(py, &vectors) } else { call.ttv::<f64>(py, &vectors) }
    }

    /// CP-ALS in float64 or float32.
    #[pyo3(signature = (rank, *, single, nonneg, ridge, tol, max_iters, seed, starts, init = None, callback = None, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn cp<'py>(
        &self,
        py: Python<'py>,
        rank: usize,
        single: bool,
        nonneg: bool,
        ridge: f64,
        tol: f64,
        max_iters: u32,
        seed: u64,
        starts: u32,
        init: Option<Vec<Bound<'py, PyAny>>>,
        callback: Option<Py<PyAny>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let open = self.open.get()?;
        let cp =
            Cp::rank(rank).nonneg(nonneg).ridge(ridge).tol(tol).max_iters(max_iters).starts(seed, starts);
        if single {
            decompose::<f32>(py, open, &cp, init, callback, progress.as_ref())
        } else {
            decompose::<f64>(py, open, &cp, init, callback, progress.as_ref())
        }
    }
}

fn decompose<'py, T: Kept>(
    py: Python<'py>,
    open: &Open,
    cp: &Cp,
    init: Option<Vec<Bound<'py, PyAny>>>,
    callback: Option<Py<PyAny>>,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    // The engine changes the factors, so that it takes a copy.
    let given = init.map(|init| -> PyResult<Vec<Matrix<T>>> {
        let held = PyFactors::<T>::of(&init)?;
        let copy = |view: blco::MatrixRef<'_, T>| {
            Matrix::from_rows(view.rows(), view.columns(), view.data().to_vec())
        };
        Ok(held.on_host()?.into_iter().map(copy).collect())
    });
    let given = given.transpose()?;
    let work = Work::on(&open.engine);
    let found = run(py, progress, |caller| {
        caller.stop.covers(&work);
        let each = |start, iteration: &Iteration| match &callback {
            Some(callback) => follow(caller, callback, start, iteration),
            None => Ok(ControlFlow::Continue(())),
        };
        work.engine.cp_als_each::<T>(&open.store, cp, given, &each)
    })?;
    let Decomposition { model, als, best, starts, .. } = found;
    let report = PyDict::new(py);
    report.set_item("iterations", json(&als.history())?)?;
    report.set_item("starts", json(&starts)?)?;
    report.set_item("best", best)?;
    report.set_item("weights", numpy::IntoPyArray::into_pyarray(model.lambda.into_vec(), py))?;
    let factors: Vec<_> = model.factors.into_iter().map(|factor| array2(py, factor)).collect();
    report.set_item("factors", factors)?;
    Ok(report)
}

/// Tells Python of an iteration, on the thread that called. False ends the decomposition.
fn follow(
    caller: &Caller<'_>,
    callback: &Py<PyAny>,
    start: u32,
    iteration: &Iteration,
) -> blco::Result<ControlFlow<()>> {
    let said = serde_json::to_string(iteration).map_err(|error| Error::request(error.to_string()))?;
    let callback = Python::attach(|py| callback.clone_ref(py));
    let goes_on = caller.run(move |py| {
        let answer = callback.call1(py, (start, said))?;
        if answer.is_none(py) { Ok(true) } else { answer.is_truthy(py) }
    })?;
    Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
}
