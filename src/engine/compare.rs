//! One tensor in several formats, with a store in each.

use super::{Engine, repacking};
use crate::coo::Source;
use crate::error::{Error, Result};
use crate::format::Scheme;
use crate::op::fibers::{CountFibers, PartitionFibers};
use crate::pack::{FormatOption, PackOptions, passing_dir};
use crate::store::{Store, holds_manifest};
use crate::sys::SpillDir;
use std::path::{Path, PathBuf};

/// A tensor's store in one of the formats.
#[derive(Debug)]
pub(crate) struct InFormat {
    pub name: &'static str,
    /// The store.
    pub store: Store,
    /// Seconds that packing took; `None` if the store existed.
    pub build_seconds: Option<f64>,
}

/// The place where stores for a comparison are packed.
#[derive(Debug)]
pub(crate) enum Shelter {
    /// A temporary directory, removed when this is dropped.
    Passing(SpillDir),
    /// A directory of the user's, where stores are kept and used again.
    Kept(PathBuf),
}

impl Shelter {
    fn path(&self) -> &Path {
        match self {
            Self::Passing(dir) => dir.path(),
            Self::Kept(path) => path,
        }
    }
}

impl Engine {
    /// A place for stores: `keep`, which is created if necessary, or a temporary directory in `parent`.
    pub(crate) fn shelter(&self, keep: Option<&Path>, parent: &Path) -> Result<Shelter> {
        let sys = self.sys();
        match keep {
            None => Ok(Shelter::Passing(passing_dir(sys, parent)?)),
            Some(dir) if dir.is_dir() => Ok(Shelter::Kept(dir.to_path_buf())),
            Some(dir) => {
                sys.publish(|| sys.create_dir(dir))?;
                Ok(Shelter::Kept(dir.to_path_buf()))
            }
        }
    }

    /// Packs `source` into a `blco` store for a comparison.
    pub(crate) fn sheltered(&self, source: &mut (impl Source + Send), shelter: &Shelter) -> Result<Store> {
        let target = shelter.path().join("input.blco");
        self.pack(source, &PackOptions::new(target.clone()))?;
        self.open(&target)
    }

    /// `store` in the format `name`, one of [`FormatOption::COMPARED`]: the store itself if it has that format, otherwise one in `shelter`,
    /// which is packed if it does not exist.
    pub(crate) fn in_format(&self, store: &Store, name: &'static str, shelter: &Shelter) -> Result<InFormat> {
        let (format, shape) = (FormatOption::compared(name), &store.whole().shape);
        let scheme = format.resolve(shape)?;
        let is_so = |store: &Store| Scheme::recorded(&store.whole().records()) == scheme;
        if is_so(store) {
            return Ok(InFormat { name, store: store.clone(), build_seconds: None });
        }
        let target = shelter.path().join(format!("{name}.blco"));
        if holds_manifest(&target)? {
            let there = self.open(&target)?;
            let equal = there.dims() == store.dims()
                && there.manifest().nnz == store.manifest().nnz
                && there.whole().hash() == store.whole().hash();
            if !equal || !is_so(&there) {
                let what = "holds another tensor or format; name another directory to keep stores in";
                return Err(Error::request(format!("{}: {what}", target.display())));
            }
            return Ok(InFormat { name, store: there, build_seconds: None });
        }
        let options = PackOptions { format, ..PackOptions::new(target.clone()) };
        let (mut source, options) = repacking(store.clone(), options, false)?;
        let build_seconds = Some(self.pack(&mut source, &options)?.seconds.total);
        Ok(InFormat { name, store: self.open(&target)?, build_seconds })
    }

    /// Slices, fibers and index bytes of all partitions of a store, from one pass.
    pub(crate) fn count_fibers(&self, store: &Store) -> Result<Vec<PartitionFibers>> {
        let view = store.partitions();
        let plan = self.plan_stream(&view, [0, 0])?;
        let mut count = CountFibers::new(&view);
        self.install(|| self.stream_by(&view, &mut count, &plan, "counting"))?;
        Ok(count.finish())
    }
}
