//! The CUDA backend.

mod cache;
pub mod kernels;
pub mod nvrtc;
