//! What belongs to the process that made it: engines have threads, which a forked process does not get.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::fmt;

/// A value that only the process that made it uses and drops. In a forked one it is left alone: its locks may be held by
/// threads that are not there.
pub struct OfProcess<T> {
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// The value; an exception in a forked process.
    pub fn get(&self) -> PyResult<&T> {
        let here = std::process::id() == self.process;
        self.value.as_ref().filter(|_| here).ok_or_else(|| forked(self.process))
    }

    /// The value, to be changed.
    pub fn get_mut(&mut self) -> PyResult<&mut T> {
        let here = std::process::id() == self.process;
        self.value.as_mut().filter(|_| here).ok_or_else(|| forked(self.process))
    }
}

fn forked(process: u32) -> PyErr {
    let what = "the compute threads of an engine do not survive a fork";
    let remedy = "open the store again in this process, or start processes by `spawn` or `forkserver`";
    PyRuntimeError::new_err(format!("made in process {process}, used in a forked one: {what}; {remedy}"))
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            std::mem::forget(self.value.take());
        }
    }
}

impl<T> fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfProcess").field("process", &self.process).finish_non_exhaustive()
    }
}
