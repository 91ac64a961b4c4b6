//! Products of an open store with vectors and matrices: MTTKRP, TTV, `SpTTM`, `SpTTMc`.

use crate::arrays::{Arrays, DeviceAt, PyFactors, array2, batch_arrays, device_matrix, fiber_arrays};
use crate::call::{Work, run};
use crate::error::exception;
use crate::open::{Kept, Open};
use crate::sessions::{Key, prepare};
use blco::{Batch, DeviceMatrix, Matrix, Modes, MttkrpSession};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Results, with their modes.
pub type Results<'py> = Vec<(usize, Bound<'py, PyAny>)>;

/// One call.
pub struct Product<'a> {
    pub open: &'a Open,
    pub modes: Vec<usize>,
    pub progress: Option<&'a Py<PyAny>>,
}

impl Product<'_> {
    /// By a session that is kept, unless this is the only call. There are no results if `out` says where a GPU's memory takes them.
    pub fn mttkrp<'py, T: Kept>(
        self,
        py: Python<'py>,
        factors: &[Bound<'py, PyAny>],
        calls: u32,
        out: Option<Vec<DeviceAt>>,
    ) -> PyResult<Results<'py>> {
        let Self { open, modes, progress } = self;
        let held = PyFactors::<T>::of(factors)?;
        let views = held.views()?;
        let out: Option<Vec<DeviceMatrix<T>>> = out.map(|out| out.into_iter().map(device_matrix).collect());
        let rank = open.engine.check_factors(&open.store, &views).map_err(|error| exception(&error))?;
        let key = Key { modes, rank, calls };
        let compute = |session: &mut MttkrpSession<T>| match &out {
            Some(out) => session.mttkrp_on_device(&views, out).map(|()| Vec::new()),
            None => session.mttkrp(&views),
        };
        let results = run(py, progress, |caller| {
            if calls == 1 {
                let work = Work::on(&open.engine);
                caller.stop.covers(&work);
                return compute(&mut prepare(&work.engine, &open.store, &key)?);
            }
            T::sessions(open).with(&key, &open.engine, &open.store, caller.stop, compute)
        })?;
        Ok(arrays(py, results))
    }

    pub fn ttmc<'py, T: Kept>(
        self,
        py: Python<'py>,
        factors: &[Bound<'py, PyAny>],
    ) -> PyResult<Results<'py>> {
        let held = PyFactors::<T>::of(factors)?;
        let (views, modes) = (held.on_host()?, &self.modes);
        let results = self
            .open
            .work(py, self.progress, |engine, store| engine.ttmc(store, views, Modes::Only(modes)))?;
        Ok(arrays(py, results))
    }

    pub fn ttm<'py, T: Kept>(
        self,
        py: Python<'py>,
        matrix: Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let held = PyFactors::<T>::of(&[matrix])?;
        let (matrix, mode) = (held.on_host()?[0], self.modes[0]);
        let fibers = self.open.work(py, self.progress, |engine, store| engine.ttm(store, mode, matrix))?;
        let order = self.open.store.dims().len();
        let (indices, rows) = fiber_arrays(py, fibers, order, matrix.columns());
        Ok((indices.into_any(), rows.into_any()))
    }

    pub fn ttv<'py, T: Kept>(self, py: Python<'py>, vectors: &[Bound<'py, PyAny>]) -> PyResult<Arrays<'py>> {
        let what = "vectors are NumPy arrays of one axis, all of float64 or all of float32";
        let one = |vector: &Bound<'py, PyAny>| vector.extract().map_err(|_| PyTypeError::new_err(what));
        let held = vectors.iter().map(one).collect::<PyResult<Vec<PyReadonlyArray1<'py, T>>>>()?;
        let mut along = Vec::with_capacity(held.len());
        for (&mode, vector) in self.modes.iter().zip(&held) {
            along.push((mode, vector.as_slice()?));
        }
        let result = self.open.work(py, self.progress, |engine, store| {
            let mut result = Batch::default();
            let mut take = |batches: Vec<Batch>| {
                for batch in batches {
                    result.indices.extend(batch.indices);
                    result.values.extend(batch.values);
                }
                Ok(())
            };
            engine.ttv(store, &along, &mut take)?;
            Ok(result)
        })?;
        Ok(batch_arrays(py, result, self.open.store.dims().len() - along.len()))
    }
}

/// Matrices as arrays, without a copy.
fn arrays<T: Kept>(py: Python<'_>, results: Vec<(usize, Matrix<T>)>) -> Results<'_> {
    results.into_iter().map(|(mode, sums)| (mode, array2(py, sums).into_any())).collect()
}
