//! The class `Engine`: where to compute. It opens stores and packs what Python holds.

use crate::arrays::{Coordinates, PyColumn, PyValues};
use crate::call::{Work, json, run};
use crate::choices::Choices;
use crate::error::{exception, exception_about};
use crate::options::{choice, pack_options};
use crate::packer::Packer;
use crate::process::OfProcess;
use crate::ranks::Ranks;
use crate::source::ArraySource;
use crate::store::Store;
use blco::{Device, Error, IndexBase, Nulls, ReadOptions, TableOptions, parse_modes};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PyRecordBatchReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where to compute: device, threads and memory. Its threads serve every store that it has opened.
#[pyclass(frozen, module = "blco._blco")]
#[derive(Debug)]
pub struct Engine {
    engine: OfProcess<blco::Engine>,
    choices: Choices,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, device = "auto", device_number = None, device_memory = None, threads = None, memory = None, temp_dir = None, deterministic = false, pin_threads = false, ranks = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        device: &str,
        device_number: Option<usize>,
        device_memory: Option<u64>,
        threads: Option<usize>,
        memory: Option<u64>,
        temp_dir: Option<PathBuf>,
        deterministic: bool,
        pin_threads: bool,
        ranks: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let devices = [("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda", Device::Cuda)];
        let device = choice("device", device, &devices)?;
        let choices = Choices {
            device,
            device_number,
            device_memory,
            threads,
            memory,
            temp_dir,
            deterministic,
            pin_threads,
        };
        let mut builder = choices.builder();
        if let Some(ranks) = ranks {
            builder = builder.links(Arc::new(Ranks::new(&ranks)?));
        }
        let engine = builder.build().map_err(|error| exception(&error))?;
        Ok(Self { engine: OfProcess::new(engine), choices })
    }

    /// Compute threads.
    #[getter]
    fn threads(&self) -> PyResult<usize> {
        Ok(self.engine.get()?.threads())
    }

    /// Opens the store at `path`.
    fn open(&self, path: PathBuf) -> PyResult<Store> {
        let engine = self.engine.get()?;
        let store = engine.open(&path).map_err(|error| exception_about(&error, &path))?;
        Ok(Store::new(engine, &self.choices, store))
    }

    /// Packs coordinate text; returns the report as JSON.
    #[pyo3(signature = (path, target, options, *, shape = None, index_base = 1, progress = None))]
    fn pack_text(
        &self,
        py: Python<'_>,
        path: PathBuf,
        target: PathBuf,
        options: &Bound<'_, PyDict>,
        shape: Option<Vec<u64>>,
        index_base: u32,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let options = pack_options(target, &path.display().to_string(), options)?;
        let index_base = if index_base == 0 { IndexBase::Zero } else { IndexBase::One };
        let read = ReadOptions { index_base, dims: shape, ..ReadOptions::default() };
        let work = Work::on(self.engine.get()?);
        let mut source =
            work.engine.read_text(&path, read).map_err(|error| exception_about(&error, &path))?;
        let report = run(py, progress.as_ref(), |caller| {
            caller.stop.covers(&work);
            work.engine.pack(&mut source, &options)
        })?;
        json(&report)
    }

    /// Packs a table, whose labels become indices: a file, or what has an Arrow C stream. Returns the report as JSON.
    #[pyo3(signature = (source, name, target, options, *, modes, value = None, nulls = "error", timezone = None, labels_from = None, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn pack_table(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        name: &str,
        target: PathBuf,
        options: &Bound<'_, PyDict>,
        modes: &str,
        value: Option<String>,
        nulls: &str,
        timezone: Option<String>,
        labels_from: Option<PathBuf>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let mut options = pack_options(target.clone(), name, options)?;
        let beside = target.parent().filter(|dir| !dir.as_os_str().is_empty());
        let read = TableOptions {
            modes: parse_modes(modes).map_err(|error| exception(&error))?,
            value,
            nulls: choice("nulls", nulls, &[("error", Nulls::Error), ("drop", Nulls::Drop)])?,
            timezone,
            labels_from,
            temp_dir: options
                .temp_dir
                .clone()
                .unwrap_or_else(|| beside.unwrap_or(Path::new(".")).to_path_buf()),
            // Without a bound the engine finds one.
            memory: if options.memory == u64::MAX { 0 } else { options.memory },
            ..TableOptions::default()
        };
        let path: Option<PathBuf> = source.extract().ok();
        if let Some(path) = path.as_ref().filter(|path| !path.exists()) {
            let error = Error::input(path.display().to_string(), "no such file; check the path");
            return Err(exception_about(&error, path));
        }
        let mut batches = match &path {
            Some(_) => None,
            None => Some(contained(name, || source.extract::<PyRecordBatchReader>()?.into_reader())?),
        };
        // Batches of Python's wait for its lock: on threads of its own, which nobody else needs.
        let engine = if batches.is_some() {
            self.choices.aside(self.engine.get()?.threads())?
        } else {
            self.engine.get()?.clone()
        };
        let work = Work::on(&engine);
        let report = run(py, progress.as_ref(), |caller| {
            caller.stop.covers(&work);
            let mut table = match (&path, batches.take()) {
                (Some(path), _) => work.engine.read_table(path, &read)?,
                (_, Some(batches)) => work.engine.read_batches(name, batches, &read)?,
                (None, None) => return Err(Error::Cancelled),
            };
            options.labels = Some(table.labels());
            let report = work.engine.pack(&mut table, &options)?;
            Ok((report, table.dropped()))
        })?;
        let (report, dropped) = report;
        let mut told =
            serde_json::to_value(report).map_err(|error| PyValueError::new_err(error.to_string()))?;
        told["rows_dropped"] = dropped.into();
        json(&told)
    }

    /// Packs a tensor in arrays: indices of each mode, and values.
    #[pyo3(signature = (columns, values, target, options, *, name, shape = None, index_base = 0, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn pack_arrays(
        &self,
        py: Python<'_>,
        columns: Vec<Bound<'_, PyAny>>,
        values: &Bound<'_, PyAny>,
        target: PathBuf,
        options: &Bound<'_, PyDict>,
        name: &str,
        shape: Option<Vec<u64>>,
        index_base: u32,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let options = pack_options(target, name, options)?;
        let columns = columns.iter().map(PyColumn::of).collect::<PyResult<Vec<_>>>()?;
        let values = PyValues::of(values)?;
        let columns = columns.iter().map(PyColumn::view).collect();
        let tensor = Coordinates { columns, values: values.view(), base: index_base, name };
        let work = Work::on(self.engine.get()?);
        let report = run(py, progress.as_ref(), move |caller| {
            caller.stop.covers(&work);
            let mut source = ArraySource::new(tensor, shape)?;
            work.engine.pack(&mut source, &options)
        })?;
        json(&report)
    }

    /// Begins to pack what will be appended.
    #[pyo3(signature = (target, options, *, name, shape = None, index_base = 0))]
    fn packer(
        &self,
        target: PathBuf,
        options: &Bound<'_, PyDict>,
        name: &str,
        shape: Option<Vec<u64>>,
        index_base: u32,
    ) -> PyResult<Packer> {
        let options = pack_options(target, name, options)?;
        let threads = self.engine.get()?.threads();
        Packer::new(&self.choices.aside(threads)?, options, shape, index_base)
    }
}

/// What `read` makes of an Arrow C stream; an exception if its decoder panics, as it does on some damaged schemas.
fn contained<T>(name: &str, read: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let what = "its Arrow schema is damaged; make the table again";
        Err(exception(&Error::input(name, what)))
    })
}
