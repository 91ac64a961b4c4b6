//! Packing of text, tables, other sources, and the intact part of damaged stores, within the memory bound.

use super::{Engine, machine, start};
use crate::coo::Source;
use crate::coo::tns::{ReadOptions, TnsReader};
use crate::error::{Error, Result};
use crate::op::reread::StoreSource;
use crate::op::salvage::Salvage;
use crate::pack::{
    CHUNK_BYTES, Duplicates, MEMORY_MIN, PackOptions, PackPlan, PackReport, memory_least, pack, plan,
    scan_bytes, threads_within,
};
use crate::store::Store;
use crate::store::labels::NewLabels;
use crate::sys::Sys;
use crate::table::{Table, TableOptions};
use bytesize::ByteSize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Engine {
    /// Opens coordinate text, plain or compressed by gzip or zstd, as a source for [`Engine::pack`]. `-` is standard input.
    ///
    /// # Errors
    ///
    /// [`Error::Input`](crate::Error::Input) if there is no such file; [`Error::Request`](crate::Error::Request) for invalid dims.
    pub fn read_text(&self, path: impl AsRef<Path>, options: ReadOptions) -> Result<TnsReader> {
        TnsReader::open(self.sys(), path.as_ref(), options)
    }

    /// Reads a table, text plain or compressed by gzip or zstd, Parquet or Arrow IPC, as a source for [`Engine::pack`]. Its labels go into
    /// [`PackOptions::labels`]. `-` is standard input. Without `options.memory`, reading uses as much memory as packing.
    ///
    /// # Errors
    ///
    /// [`Error::Input`](crate::Error::Input) if the input is not a table, with line, row, column and what to do;
    /// [`Error::Request`](crate::Error::Request) if memory is too small.
    pub fn read_table(&self, path: impl AsRef<Path>, options: &TableOptions) -> Result<Table> {
        let path = path.as_ref();
        self.reading(options, |options, older, watch| Table::read(self.sys(), path, options, older, watch))
    }

    /// The same for a table that arrives in batches of Arrow columns; messages call it `name`.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::read_table`], and errors of the batches' reader.
    #[cfg(feature = "arrow")]
    pub fn read_batches(
        &self,
        name: &str,
        batches: impl arrow_array::RecordBatchReader + Send + 'static,
        options: &TableOptions,
    ) -> Result<Table> {
        self.reading(options, |options, older, watch| {
            Table::of_batches(self.sys(), name, batches, options, older, watch)
        })
    }

    /// Calls `read`, which reads a table, with its memory limit.
    fn reading(
        &self,
        options: &TableOptions,
        read: impl FnOnce(&TableOptions, Option<&Store>, &(dyn Fn(u64) + Sync)) -> Result<Table> + Send,
    ) -> Result<Table> {
        let mut options = options.clone();
        if options.memory == 0 {
            options.memory = self.packing_memory()?;
        }
        let older = options.labels_from.as_deref().map(|store| self.open(store)).transpose()?;
        self.install(|| read(&options, older.as_ref(), &|rows| self.tell("reading", rows, None)))
    }

    /// Packs a tensor into a new store. `options.memory` bounds the packer; without it, the engine's bound does, or half of the available
    /// memory. Fewer threads work if memory is short.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) if the target exists and may not be replaced, or memory is too small;
    /// [`Error::Input`](crate::Error::Input) if the input is not a tensor; errors of the source.
    pub fn pack(&self, source: &mut (impl Source + Send), options: &PackOptions) -> Result<PackReport> {
        self.packing(source, options, |sys, source, options| {
            pack(sys, source, options, &|what, done, total| self.tell(what, done, total))
        })
    }

    /// The memory, temporary files and disk space that [`Engine::pack`] would use. Changes nothing, and reads at most the first lines of
    /// the source.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) if memory is too small; errors of the source.
    pub fn plan_pack(&self, source: &mut (impl Source + Send), options: &PackOptions) -> Result<PackPlan> {
        self.packing(source, options, plan)
    }

    /// Reads every chunk file of a store that may be damaged, with or without its manifest. Returns a source of all intact nonzeros, for
    /// [`Engine::pack`] with [`Salvage::options`].
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) if there is no store, or memory is too small for a chunk or for packing;
    /// [`Error::Corrupt`](crate::Error::Corrupt) if no chunk is intact.
    pub fn salvage(&self, store: impl AsRef<Path>) -> Result<Salvage> {
        let (store, memory) = (store.as_ref(), self.packing_memory()?);
        let watch = |done, total| self.tell("checking", done, total);
        let scan =
            || Salvage::scan(self.sys(), self.formats(), store, CHUNK_BYTES, scan_bytes(memory), &watch);
        let salvage = self.install(scan)?;
        let options = salvage.options(PackOptions::new(PathBuf::new()));
        let least = memory_least(&salvage, &options, 1);
        if self.options().memory.is_some() && (MEMORY_MIN..least).contains(&memory) {
            let (given, chunk) = (ByteSize(memory), ByteSize(options.chunk_bytes));
            let least = ByteSize(least.next_multiple_of(1 << 20));
            let what =
                format!("`memory` {given} is too little: its chunks of up to {chunk} take at least {least}");
            return Err(Error::request(format!("{}: {what}", store.display())));
        }
        Ok(salvage)
    }

    /// Calls `work`, which packs `source`, with its memory limit, on the threads that fit in it.
    fn packing<T: Send>(
        &self,
        source: &mut (impl Source + Send),
        options: &PackOptions,
        work: impl FnOnce(&Sys, &mut dyn Source, &PackOptions) -> Result<T> + Send,
    ) -> Result<T> {
        options.check()?;
        let mut options = options.clone();
        options.formats = self.formats().clone();
        if options.memory == u64::MAX {
            options.memory = self.packing_memory()?;
            if self.options().memory.is_none() {
                options.memory = options.memory.max(memory_least(source, &options, 1));
            }
        }
        let threads = threads_within(source, &options, self.threads());
        let work = || work(self.sys(), source, &options);
        if threads == self.threads() {
            self.install(work)
        } else {
            start(self.sys(), &self.inner.options, threads)?.install(work)
        }
    }

    /// The memory limit of packing: this engine's limit, or half of the available memory.
    fn packing_memory(&self) -> Result<u64> {
        let least = self.options().packing_memory_min.unwrap_or(MEMORY_MIN);
        match self.options().memory {
            None => Ok((machine::available_memory() / 2).max(MEMORY_MIN)),
            Some(memory) if memory >= least => Ok(memory),
            Some(memory) => {
                let (given, least) = (ByteSize(memory), ByteSize(least));
                Err(Error::request(format!("`memory` {given}: packing takes at least {least}; raise it")))
            }
        }
    }
}

/// The arguments with which [`Engine::pack`] packs `store` again: its nonzeros, and `options` with its labels. Repeated coordinates
/// stay, unless `combine` asks to combine them as `options` say.
///
/// # Errors
///
/// [`Error::Corrupt`](crate::Error::Corrupt) if its labels are damaged; errors of reading them.
pub(crate) fn repacking(
    store: Store,
    options: PackOptions,
    combine: bool,
) -> Result<(StoreSource, PackOptions)> {
    let labels = NewLabels::of(&store)?;
    if let Some(mode) = labels.as_ref().and_then(|labels| labels.lost.first()) {
        let what = format!("the labels of mode {} are damaged; blco-info --repair leaves them out", mode + 1);
        return Err(Error::unusable(store.path(), what));
    }
    let source = StoreSource::new(store);
    let keeps = !combine && source.may_repeat();
    let duplicates = if keeps { Duplicates::Keep } else { options.duplicates };
    Ok((source, PackOptions { duplicates, labels: labels.map(Arc::new), ..options }))
}
