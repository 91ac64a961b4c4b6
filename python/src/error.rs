//! The engine's errors as exceptions, with the same text.

use blco::Error;
use pyo3::create_exception;
use pyo3::exceptions::{
    PyException, PyFileExistsError, PyFileNotFoundError, PyKeyboardInterrupt, PyMemoryError, PyOSError,
    PyPermissionError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use std::io::ErrorKind;
use std::path::Path;

create_exception!(
    blco,
    CorruptStoreError,
    PyException,
    "A file of a store is damaged, or is not what it should be.\n\n``blco-info STORE --repair NEW`` saves what is intact."
);
create_exception!(blco, DeviceError, PyRuntimeError, "The GPU or its driver refused.");

/// Names in the engine's messages, and what they are called in Python.
const NAMES: [(&str, &str); 3] =
    [("`Device::Cpu`", "`device=\"cpu\"`"), ("`dims`", "`shape`"), ("`target`", "`store`")];

/// The exception of `error`.
pub fn exception(error: &Error) -> PyErr {
    let text = NAMES.iter().fold(error.to_string(), |text, (name, here)| text.replace(name, here));
    match error {
        Error::Corrupt { .. } => CorruptStoreError::new_err(text),
        Error::Io { source, .. } | Error::Resource { source, .. } => of_system(source, text),
        Error::Device { out_of_memory: true, .. } => PyMemoryError::new_err(text),
        Error::Device { .. } => DeviceError::new_err(text),
        Error::Cancelled => PyKeyboardInterrupt::new_err(text),
        // Wrong input and requests; and what a later engine may add.
        _ => PyValueError::new_err(text),
    }
}

/// The same, where the error may be that nothing is at `path`.
pub fn exception_about(error: &Error, path: &Path) -> PyErr {
    match error {
        Error::Request(_) | Error::Input { .. } if !path.exists() => {
            PyFileNotFoundError::new_err(error.to_string())
        }
        _ => exception(error),
    }
}

/// An error of the operating system, with its number. The text stays the engine's: an `OSError` that is given a number and a
/// file name would make one of its own.
fn of_system(source: &std::io::Error, text: String) -> PyErr {
    let error = match source.kind() {
        ErrorKind::OutOfMemory => return PyMemoryError::new_err(text),
        ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        ErrorKind::PermissionDenied => PyPermissionError::new_err(text),
        ErrorKind::AlreadyExists => PyFileExistsError::new_err(text),
        _ => PyOSError::new_err(text),
    };
    if let Some(code) = source.raw_os_error() {
        // Without it the exception is still the right one.
        let _ = Python::attach(|py| error.value(py).setattr("errno", code));
    }
    error
}
