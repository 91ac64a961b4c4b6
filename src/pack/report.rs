//! What the packer tells: how far it is, what it did.

use super::resume::Complete;
use super::{PackOptions, SpillReport};
use crate::error::Result;
use crate::store::Store;
use serde::Serialize;
use std::path::PathBuf;

/// The phases of packing, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading and parsing the source.
    Read,
    /// Linearizing and sorting.
    Sort,
    /// Encoding and writing chunks.
    Write,
}

/// Called with the phase, the nonzeros that it has done, and how many it will do where that is known.
pub type PackWatch<'a> = &'a (dyn Fn(Phase, u64, Option<u64>) + Sync);

/// What was packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackReport {
    /// The store.
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
    /// Nonzeros in the store.
    pub nnz: u64,
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
    /// Bytes of manifest and chunks.
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

/// The report on a store that an earlier job has published.
pub(super) fn of_complete(options: &PackOptions, job: &Complete, store: &Store) -> Result<PackReport> {
    let (manifest, bytes) = (store.manifest(), store.bytes()?);
    Ok(PackReport {
        store: options.target.clone(),
        digest: job.digest.clone(),
        dims: manifest.shape.dims().to_vec(),
        linear_bits: manifest.format.bit_layout(&manifest.shape).bits(),
        input_read: false,
        was_complete: true,
        input_nnz: job.input_nnz,
        nnz: manifest.nnz,
        duplicates_summed: job.summed,
        duplicates_kept: job.kept,
        format: manifest.format.name(),
        encoding: manifest.format.encoding_name(),
        chunks: manifest.chunks.len(),
        bytes,
        bytes_per_nnz: bytes as f64 / manifest.nnz as f64,
        spilled: SpillReport::default(),
        seconds: PackSeconds::default(),
    })
}
