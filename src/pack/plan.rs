//! What packing will take, before it begins: memory, temporary files, the store.

use super::PackOptions;
use super::budget::Budget;
use crate::coo::{Size, Source};
use crate::error::{Error, Result};
use crate::linear::Nonzero;
use crate::store::partial_path;
use crate::sys::Sys;
use bytesize::ByteSize;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What a packing job will take. Sizes that depend on the input are `None` where it cannot be known without reading
/// it, as with compressed text and pipes.
#[derive(Clone, Debug, Serialize)]
pub struct PackPlan {
    /// The memory budget, bytes.
    pub memory_bytes: u64,
    /// Nonzeros of the input: exact, or estimated from its first lines.
    pub nnz: Option<u64>,
    /// Whether everything is sorted in memory.
    pub in_memory: Option<bool>,
    /// Runs on disk, about.
    pub runs: Option<u64>,
    /// Bytes of temporary files at one time, about.
    pub temporary_bytes: Option<u64>,
    /// Where they go.
    pub temporary_dir: PathBuf,
    /// Bytes that are free there.
    pub temporary_free_bytes: u64,
    /// Bytes of the store, at most.
    pub store_bytes_max: Option<u64>,
    /// Bytes that are free where it goes.
    pub store_free_bytes: u64,
}

/// The nearest directory above `path` that exists.
fn existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|p| p.is_dir()).map(Path::to_path_buf);
    found.filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| PathBuf::from("."))
}

/// Plans packing `source` with `options` on the current rayon pool.
pub fn plan(sys: &Sys, source: &dyn Source, options: &PackOptions) -> Result<PackPlan> {
    let budget = Budget::new(options.memory, rayon::current_num_threads(), options.chunk_bytes);
    let size = source.size()?;
    let fits = |s: &Size| budget.in_memory(s.nnz, s.order, size_of::<Nonzero<u64>>());
    let spills = |s: &Size, amount: u64| if fits(s) { 0 } else { amount };
    let run_nnz = budget.run_nnz(size_of::<Nonzero<u128>>());
    let partial = partial_path(&options.target);
    let temporary_dir = existing(options.temp_dir.as_deref().unwrap_or(&partial));
    Ok(PackPlan {
        memory_bytes: options.memory,
        nnz: size.map(|s| s.nnz),
        in_memory: size.as_ref().map(fits),
        runs: size.as_ref().map(|s| spills(s, s.nnz.div_ceil(run_nnz))),
        // Packed coordinates take about two bytes a mode, values and checksums the rest.
        temporary_bytes: size.as_ref().map(|s| spills(s, s.nnz.saturating_mul(2 * s.order as u64 + 4))),
        temporary_free_bytes: sys.free_bytes(&temporary_dir)?,
        temporary_dir,
        store_bytes_max: size.map(|s| s.nnz.saturating_mul(17).saturating_add(1 << 20)),
        store_free_bytes: sys.free_bytes(&existing(&partial))?,
    })
}

impl PackPlan {
    /// An error if the temporary files will not fit.
    pub fn check(&self) -> Result<()> {
        match self.temporary_bytes {
            Some(bytes) if bytes > self.temporary_free_bytes => {
                Err(no_room(bytes, self.temporary_free_bytes, &self.temporary_dir))
            }
            _ => Ok(()),
        }
    }
}

/// The error of a disk that is too small.
pub(super) fn no_room(needed: u64, free: u64, dir: &Path) -> Error {
    Error::request(format!(
        "{}: temporary files need about {}, {} is free; give another --temp-dir, or more --memory",
        dir.display(),
        ByteSize(needed),
        ByteSize(free)
    ))
}
