//! A summary of a store's manifest, as data.

use super::Store;
use crate::error::Result;
use serde::Serialize;

/// A store at a glance, from its manifest alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreSummary {
    /// The store id, 16 hexadecimal digits.
    pub digest: String,
    /// The version of the container.
    pub version: u32,
    /// The format.
    pub format: &'static str,
    /// How the format encodes indices.
    pub encoding: &'static str,
    /// The level of zstd; `None` if chunks are not compressed.
    pub zstd_level: Option<i32>,
    /// Indices of each mode.
    pub dims: Vec<u32>,
    /// Nonzeros.
    pub nnz: u64,
    /// Chunks.
    pub chunks: usize,
    /// Bytes of manifest and chunks.
    pub bytes: u64,
    /// Whether coordinates may repeat.
    pub duplicates_may_occur: bool,
    /// The square root of the sum of squared values; `None` if the squares are too large or too small for
    /// f64.
    pub norm: Option<f64>,
    /// The smallest value.
    pub value_min: f64,
    /// The largest value.
    pub value_max: f64,
    /// For each mode, an upper bound on the nonzeros of a row.
    pub longest_row_bounds: Vec<u64>,
}

impl Store {
    /// Summarizes the manifest.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the manifest no longer exists.
    pub fn summary(&self) -> Result<StoreSummary> {
        let m = &*self.manifest;
        Ok(StoreSummary {
            digest: format!("{:016x}", self.id),
            version: m.version as u32,
            format: m.format().name(),
            encoding: m.format().encoding(),
            zstd_level: m.codec.level(),
            dims: self.dims().to_vec(),
            nnz: m.nnz,
            chunks: m.chunks.len(),
            bytes: self.bytes()?,
            duplicates_may_occur: m.may_repeat,
            norm: m.norm(),
            value_min: m.value_min,
            value_max: m.value_max,
            longest_row_bounds: m.longest_row_bounds.clone(),
        })
    }
}
