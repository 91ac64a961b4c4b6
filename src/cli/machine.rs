//! Environment variables for tests, and facts about the machine.

use super::size;
use crate::backend::host::Vectors;
use crate::error::{Error, Result};

pub use crate::engine::machine::{available_memory, processors};

/// The least memory for sorting, by `BLCO_MEMORY_MIN`. Tests set it to 0, so that small tensors spill.
pub fn memory_min() -> Option<u64> {
    std::env::var("BLCO_MEMORY_MIN").ok().and_then(|text| size(&text).ok())
}

/// The vector instructions that `BLCO_VECTORS` selects: `avx2`, or `baseline` for those that every machine of the architecture has. The
/// default is the widest.
pub fn vectors() -> Result<Vectors> {
    match std::env::var("BLCO_VECTORS").as_deref() {
        Err(_) => Ok(Vectors::Widest),
        Ok("avx2") => Ok(Vectors::Avx2),
        Ok("baseline") => Ok(Vectors::Baseline),
        Ok(other) => Err(Error::request(format!("BLCO_VECTORS={other}: give avx2 or baseline"))),
    }
}
