//! The extension module `blco._blco`: what the Python package `blco` is made of. It moves arrays in and out without copies where that is
//! possible, runs the engine on threads of its own while the interpreter's lock is free, and maps errors to exceptions. Everything
//! that Python says as well stands in python/blco.
//!
//! | file | holds |
//! |---|---|
//! | `call` | one call of the engine: the calling thread looks after signals and progress, another one works |
//! | `process` | what belongs to the process that made it |
//! | `choices` | what an engine is made of |
//! | `arrays` | NumPy arrays as columns, values, factors, and back |
//! | `options` | the options of a pack, from keywords |
//! | `source` | tensors in arrays, and in batches that Python hands over one by one |
//! | `products` | MTTKRP, TTV, `SpTTM` and `SpTTMc` of an open store |
//! | `engine`, `store`, `packer`, `batches` | the classes |
//! | `arrow` | nonzeros as an Arrow C stream |
//! | `open` | an open store with its engine and sessions |
//! | `ranks` | several processes, through mpi4py |
//! | `sessions` | prepared sessions of an open store, kept between calls |

#![allow(clippy::needless_pass_by_value, reason = "arguments of Python functions arrive by value")]

mod arrays;
mod arrow;
mod batches;
mod call;
mod choices;
mod engine;
mod error;
mod open;
mod options;
mod packer;
mod process;
mod products;
mod ranks;
mod sessions;
mod source;
mod store;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: blco::LargeBlocks = blco::LargeBlocks;

#[pymodule]
mod _blco {
    #[pymodule_export]
    use super::batches::Batches;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::error::{CorruptStoreError, DeviceError};
    #[pymodule_export]
    use super::packer::Packer;
    #[pymodule_export]
    use super::store::Store;
}
