//! What the class `Store` holds, and everything that computes from it works with.

use crate::call::{Work, run};
use crate::choices::Choices;
use crate::sessions::Sessions;
use blco::Real;
use numpy::Element;
use pyo3::prelude::*;

/// The store, the engine that computes, and the sessions that are kept.
#[derive(Debug)]
pub struct Open {
    pub engine: blco::Engine,
    pub choices: Choices,
    pub store: blco::Store,
    pub f64: Sessions<f64>,
    pub f32: Sessions<f32>,
}

impl Open {
    /// Runs `work` on a handle of the engine that is stopped and watched apart.
    pub fn work<T: Send>(
        &self,
        py: Python<'_>,
        progress: Option<&Py<PyAny>>,
        compute: impl FnOnce(&blco::Engine, &blco::Store) -> blco::Result<T> + Send,
    ) -> PyResult<T> {
        let work = Work::on(&self.engine);
        run(py, progress, |caller| {
            caller.stop.covers(&work);
            compute(&work.engine, &self.store)
        })
    }
}

/// A precision, with the sessions that are kept for it.
pub trait Kept: Real + Element {
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
