//! Backends: where the work on chunks is done.

pub mod host;
