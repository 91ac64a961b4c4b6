//! Backends: where the work on chunks is done.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod devices;
pub mod host;
pub mod plan;
mod squares;

pub use squares::Squares;
