//! An out-of-core engine for sparse tensors. (Map to be written last.)
#![allow(dead_code, reason = "skeleton")]

pub mod backend;
pub mod cli;
pub mod coo;
pub mod dense;
pub mod encoding;
pub mod error;
pub mod format;
pub mod linear;
pub mod op;
pub mod pack;
pub mod random;
pub mod shape;
pub mod store;
pub mod stream;
pub mod sys;
