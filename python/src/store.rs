//! The class `Store`: an open store, and what is computed from it.

use crate::arrays::{Arrays, PyFactors, array2, batch_arrays};
use crate::batches::Batches;
use crate::call::{Caller, Work, run};
use crate::engine::{Choices, json};
use crate::error::exception;
use crate::process::OfProcess;
use crate::sessions::{Key, Sessions};
use blco::{Batch, Cp, Decomposition, Error, FactorView, Iteration, Matrix, Modes, Real};
use numpy::{Element, PyReadonlyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
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

#[derive(Debug)]
pub struct Open {
    engine: blco::Engine,
    choices: Choices,
    store: blco::Store,
    f64: Sessions<f64>,
    f32: Sessions<f32>,
}

/// A precision, with the sessions that are kept for it.
trait Kept: Real + Element {
    fn sessions(open: &Open) -> &Sessions<Self>;
}

impl Kept for f64 {
    fn sessions(open: &Open) -> &Sessions<Self> {
        &open.f64
    }
}

impl Kept for f32 {
    fn sessions(open: &Open) -> &Sessions<Self> {
        &open.f32
    }
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

/// Results of MTTKRP, with their modes.
type Results<'py> = Vec<(usize, Bound<'py, PyAny>)>;

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
        let open = self.open.get()?;
        let work = Work::on(&open.engine);
        json(&run(py, progress.as_ref(), |caller| {
            caller.stop.covers(&work);
            work.engine.inspect(&open.store)
        })?)
    }

    /// Checks every byte.
    #[pyo3(signature = (progress = None))]
    fn verify(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let open = self.open.get()?;
        let work = Work::on(&open.engine);
        run(py, progress.as_ref(), |caller| {
            caller.stop.covers(&work);
            work.engine.verify(&open.store).map(drop)
        })
    }

    /// Nonzeros within ranges, one for each mode, or all.
    #[pyo3(signature = (ranges = None))]
    fn read(&self, ranges: Option<Vec<(u32, u32)>>) -> PyResult<Batches> {
        let open = self.open.get()?;
        let ranges = ranges.unwrap_or_default().into_iter().map(|(from, to)| from..to).collect();
        Batches::new(&open.choices.aside(READERS)?, &open.store, ranges)
    }

    /// MTTKRP of `modes` with factors of one precision.
    #[pyo3(signature = (factors, modes, *, calls, progress = None))]
    fn mttkrp<'py>(
        &self,
        py: Python<'py>,
        factors: Vec<Bound<'py, PyAny>>,
        modes: Vec<usize>,
        calls: u32,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Results<'py>> {
        let open = self.open.get()?;
        if let Ok(factors) = PyFactors::<f64>::of(&factors) {
            mttkrp(py, open, &factors, modes, calls, progress.as_ref())
        } else {
            let what = "factors are NumPy arrays of two axes, all of float64 or all of float32";
            let factors = PyFactors::<f32>::of(&factors).map_err(|_| PyTypeError::new_err(what))?;
            mttkrp(py, open, &factors, modes, calls, progress.as_ref())
        }
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

    /// TTV: indices and values of the result, of one order less.
    #[pyo3(signature = (vector, mode, progress = None))]
    fn ttv<'py>(
        &self,
        py: Python<'py>,
        vector: &Bound<'py, PyAny>,
        mode: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Arrays<'py>> {
        let open = self.open.get()?;
        if let Ok(vector) = vector.extract::<PyReadonlyArray1<'py, f64>>() {
            ttv(py, open, vector.as_slice()?, mode, progress.as_ref())
        } else {
            let what = "the vector is a NumPy array of one axis, of float64 or float32";
            let vector: PyReadonlyArray1<'py, f32> =
                vector.extract().map_err(|_| PyTypeError::new_err(what))?;
            ttv(py, open, vector.as_slice()?, mode, progress.as_ref())
        }
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

fn mttkrp<'py, T: Kept>(
    py: Python<'py>,
    open: &Open,
    factors: &PyFactors<'py, T>,
    modes: Vec<usize>,
    calls: u32,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Results<'py>> {
    let views = factors.views()?;
    let factors: Vec<_> = views.iter().map(FactorView::from).collect();
    let rank = open.engine.check_factors(&open.store, &factors).map_err(|error| exception(&error))?;
    let key = Key { modes, rank, calls };
    let results = run(py, progress, |caller| {
        if calls == 1 {
            let work = Work::on(&open.engine);
            caller.stop.covers(&work);
            return work.engine.mttkrp(&open.store, &views, Modes::Only(&key.modes));
        }
        T::sessions(open).with(&key, &open.engine, &open.store, caller.stop, |session| session.mttkrp(&views))
    })?;
    Ok(results.into_iter().map(|(mode, sums)| (mode, array2(py, sums).into_any())).collect())
}

fn ttv<'py, T: Real>(
    py: Python<'py>,
    open: &Open,
    vector: &[T],
    mode: usize,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Arrays<'py>> {
    let work = Work::on(&open.engine);
    let result = run(py, progress, |caller| {
        caller.stop.covers(&work);
        let mut result = Batch::default();
        let mut take = |batches: Vec<Batch>| {
            for batch in batches {
                result.indices.extend(batch.indices);
                result.values.extend(batch.values);
            }
            Ok(())
        };
        work.engine.ttv(&open.store, &[(mode, vector)], &mut take)?;
        Ok(result)
    })?;
    Ok(batch_arrays(py, result, open.store.dims().len() - 1))
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
        Ok(held.views()?.into_iter().map(copy).collect())
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
