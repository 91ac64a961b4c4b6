//! The resources of packing, computed beforehand: memory, temporary files, the store.

use super::PackOptions;
use super::budget::{Budget, memory_least};
use crate::coo::{Size, Source};
use crate::error::{Error, Result};
use crate::linear::Wide;
use crate::shape::Shape;
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
    /// The least that would do on one thread.
    pub memory_least_bytes: u64,
    /// Threads that work.
    pub threads: usize,
    /// Nonzeros of the input: exact, or estimated from its first lines.
    pub nnz: Option<u64>,
    /// Whether everything is sorted in memory.
    pub in_memory: Option<bool>,
    /// Runs on disk, about.
    pub runs: Option<u64>,
    /// Bytes of temporary files at one time, about.
    pub temporary_bytes: Option<u64>,
    /// Where they go.
    #[serde(serialize_with = "crate::sys::shown_path")]
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

/// What sorting takes of the disk.
struct Estimate {
    runs: u64,
    temporary_bytes: u64,
}

impl Estimate {
    fn new(in_memory: bool, nnz: u64, run_nnz: u64, bytes_per_nnz: u64) -> Self {
        if in_memory {
            return Self { runs: 0, temporary_bytes: 0 };
        }
        Self { runs: nnz.div_ceil(run_nnz), temporary_bytes: nnz.saturating_mul(bytes_per_nnz) }
    }

    /// Where the dims are not declared: packed coordinates take about two bytes a mode, values and checksums the rest.
    fn staged(budget: &Budget, size: &Size) -> Self {
        let kept = budget.keeps(size.nnz, size.order);
        Self::new(kept, size.nnz, budget.staged_nnz(), 2 * size.order as u64 + 4)
    }

    /// Where they are declared: packed differences take the bits that a run's length leaves of a linear index.
    fn direct<K>(budget: &Budget, size: &Size, shape: &Shape) -> Self {
        let run_nnz = budget.run_nnz::<K>();
        let nnz = usize::try_from(size.nnz).unwrap_or(usize::MAX);
        let fits = nnz <= run_nnz && budget.writes_from_memory::<K>(nnz);
        let bits = (shape.linear_bits() + 4).saturating_sub(run_nnz.min(nnz).max(1).ilog2());
        Self::new(fits, size.nnz, run_nnz as u64, u64::from(bits.div_ceil(8)) + 4)
    }
}

/// Plans packing `source` with `options` on the current rayon pool.
pub fn plan(sys: &Sys, source: &mut dyn Source, options: &PackOptions) -> Result<PackPlan> {
    let budget = Budget::of(source, options)?;
    let threads = rayon::current_num_threads();
    let size = source.size()?;
    let declared = source.declared()?;
    let estimate = size.map(|size| match &declared {
        None => Estimate::staged(&budget, &size),
        Some(shape) if shape.linear_bits() <= u64::BITS => Estimate::direct::<u64>(&budget, &size, shape),
        Some(shape) => Estimate::direct::<Wide>(&budget, &size, shape),
    });
    // Nonzeros that are sorted again stay in the order in which they came, too.
    let kept = if options.format.sorts_again() { 2 } else { 1 };
    let copies = size.map_or(1, |size| options.format.copies(size.order));
    let partial = partial_path(&options.target);
    let temporary_dir = existing(options.temp_dir.as_deref().unwrap_or(&partial));
    Ok(PackPlan {
        memory_bytes: options.memory,
        memory_least_bytes: memory_least(source, options, 1),
        threads,
        nnz: size.map(|s| s.nnz),
        in_memory: estimate.as_ref().map(|e| e.runs == 0),
        runs: estimate.as_ref().map(|e| e.runs),
        temporary_bytes: estimate.as_ref().map(|e| e.temporary_bytes.saturating_mul(kept)),
        temporary_free_bytes: sys.free_bytes(&temporary_dir)?,
        temporary_dir,
        store_bytes_max: size.map(|s| s.nnz.saturating_mul(17 * copies).saturating_add(1 << 20)),
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
        "{}: temporary files need about {}, {} is free; give another `temp_dir`, or more `memory`",
        dir.display(),
        ByteSize(needed),
        ByteSize(free)
    ))
}
