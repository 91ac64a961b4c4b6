//! The packer's progress and report.

use super::SpillReport;
use crate::store::Manifest;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Called with what is being done ("reading", "sorting", "assigning", "writing"), the nonzeros that it has done, and how many it
/// will do where that is known.
pub type PackWatch<'a> = &'a (dyn Fn(&'static str, u64, Option<u64>) + Sync);

/// What was packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackReport {
    /// The store, or the directory of the parts.
    #[serde(serialize_with = "crate::sys::shown_path")]
    pub store: PathBuf,
    /// The digest, 16 hexadecimal digits.
    pub digest: String,
    /// The shape.
    pub dims: Vec<u32>,
    /// Bits of the linear index.
    pub linear_bits: u32,
    /// Whether the input was read: not where the job that this one continued had read all of it.
    pub input_read: bool,
    /// Whether the job that this one was to continue had published the store already: nothing was left to do but to clean up.
    pub was_complete: bool,
    /// Nonzeros that the source handed over, to this job or to the one that it continued.
    pub input_nnz: u64,
    /// Nonzeros in the store, or in all parts.
    pub nnz: u64,
    /// The number of parts; 1 for one store.
    pub parts: usize,
    /// Nonzeros that were added to one with the same coordinates.
    pub duplicates_summed: u64,
    /// Nonzeros kept though one with the same coordinates is there.
    pub duplicates_kept: u64,
    /// The format.
    pub format: &'static str,
    /// How indices are encoded in it.
    pub encoding: &'static str,
    /// Chunks.
    pub chunks: usize,
    /// Bytes of manifests and chunks.
    pub bytes: u64,
    /// Bytes for each nonzero.
    pub bytes_per_nnz: f64,
    /// What went to temporary files.
    pub spilled: SpillReport,
    /// Seconds of the phases and in all.
    pub seconds: PackSeconds,
}

/// Seconds of the phases.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PackSeconds {
    /// Reading and parsing; where the dims are declared, linearizing and all runs that do not stay in memory too.
    pub read: f64,
    /// Linearizing and sorting.
    pub sort: f64,
    /// Encoding and writing.
    pub write: f64,
    /// Making everything durable and renaming.
    pub publish: f64,
    /// All of it.
    pub total: f64,
}

impl PackReport {
    /// On a store whose manifest this is, or a divided tensor whose parts have these; of how it was made nothing yet.
    pub(super) fn new<'a>(
        store: &Path,
        digest: String,
        manifests: impl ExactSizeIterator<Item = &'a Manifest> + Clone,
        bytes: u64,
    ) -> Self {
        let manifest = manifests.clone().next().expect("a store");
        let nnz = manifests.clone().map(|manifest| manifest.nnz).sum();
        Self {
            store: store.to_path_buf(),
            digest,
            dims: manifest.shape.dims().to_vec(),
            linear_bits: manifest.format().bit_layout(&manifest.shape).bits(),
            input_read: false,
            was_complete: false,
            input_nnz: 0,
            nnz,
            parts: manifests.len(),
            duplicates_summed: 0,
            duplicates_kept: 0,
            format: manifest.format().name(),
            encoding: manifest.format().encoding(),
            chunks: manifests.map(|manifest| manifest.chunks.len()).sum(),
            bytes,
            bytes_per_nnz: bytes as f64 / nnz as f64,
            spilled: SpillReport::default(),
            seconds: PackSeconds::default(),
        }
    }
}
