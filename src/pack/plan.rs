//! The resources of packing, computed beforehand: memory, temporary files, the store.

use super::budget::{Budget, assigning_bytes, memory_least};
use super::{FormatOption, PackOptions};
use crate::coo::{Size, Source};
use crate::error::{Error, Result};
use crate::format::mmcsf::Assign;
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
    /// Runs in the first order; 0 where memory holds all nonzeros.
    runs: u64,
    /// Bytes on disk of all nonzeros once.
    copy_bytes: u64,
    /// Runs in which lengths of fibers are sorted; 0 where memory holds the fibers.
    runs_of_fibers: u64,
}

impl Estimate {
    /// `K` holds a linear index.
    fn new<K>(budget: &Budget, size: &Size, in_memory: bool, run_nnz: u64, bytes_per_nnz: u64) -> Self {
        let beside = budget.beside_sorted::<K>(in_memory, size.nnz);
        let holds_fibers = assigning_bytes::<K>(size.order, size.nnz) <= beside.assigning(Assign::Static);
        Self {
            runs: if in_memory { 0 } else { size.nnz.div_ceil(run_nnz) },
            copy_bytes: size.nnz.saturating_mul(bytes_per_nnz),
            runs_of_fibers: if holds_fibers {
                0
            } else {
                size.nnz.div_ceil(beside.half().run_nnz::<K>() as u64)
            },
        }
    }

    /// Runs, and bytes on disk at one time.
    fn on_disk(&self, format: &FormatOption) -> (u64, u64) {
        let first = u64::from(self.runs > 0);
        // Nonzeros that are sorted again stay in the order in which they came, too; lengths of fibers pass from one order to the next.
        let (runs, again) = match format {
            FormatOption::Mmcsf { assign } if *assign != Assign::Dynamic && self.runs_of_fibers > 0 => {
                (self.runs.max(self.runs_of_fibers), 2)
            }
            _ => (self.runs, first * u64::from(format.sorts_again())),
        };
        (runs, self.copy_bytes.saturating_mul(first + again))
    }

    /// Where the dims are not declared: packed coordinates take about two bytes a mode, values and checksums the rest.
    fn staged(budget: &Budget, size: &Size) -> Self {
        let kept = budget.keeps(size.nnz, size.order);
        Self::new::<u64>(budget, size, kept, budget.staged_nnz(), 2 * size.order as u64 + 4)
    }

    /// Where they are declared: packed differences take the bits that a run's length leaves of a linear index.
    fn direct<K>(budget: &Budget, size: &Size, shape: &Shape) -> Self {
        let run_nnz = budget.run_nnz::<K>();
        let nnz = usize::try_from(size.nnz).unwrap_or(usize::MAX);
        let fits = nnz <= run_nnz && budget.writes_from_memory::<K>(nnz);
        let bits = (shape.linear_bits() + 4).saturating_sub(run_nnz.min(nnz).max(1).ilog2());
        Self::new::<K>(budget, size, fits, run_nnz as u64, u64::from(bits.div_ceil(8)) + 4)
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
    let on_disk = estimate.as_ref().map(|estimate| estimate.on_disk(&options.format));
    let copies = size.map_or(1, |size| options.format.copies(size.order));
    let partial = partial_path(&options.target);
    let temporary_dir = existing(options.temp_dir.as_deref().unwrap_or(&partial));
    Ok(PackPlan {
        memory_bytes: options.memory,
        memory_least_bytes: memory_least(source, options, 1),
        threads,
        nnz: size.map(|s| s.nnz),
        in_memory: on_disk.map(|(runs, _)| runs == 0),
        runs: on_disk.map(|(runs, _)| runs),
        temporary_bytes: on_disk.map(|(_, bytes)| bytes),
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
