//! Salvage: the nonzeros of a damaged store's intact chunks, as a source for the packer. Every chunk file of the
//! directory is examined independently, so no manifest is needed; if there is one, it shows what is lost.
//!
//! Nonzeros are in the store's order. Neither they nor the findings depend on threads.

mod examine;
mod reconcile;

use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::{Error, Result};
use crate::pack::{Duplicates, FormatOption, PackOptions};
use crate::shape::Shape;
use crate::store::labels::NewLabels;
use crate::store::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, ChunkHeader, Codec, Formats, MANIFEST, Manifest, Store,
};
use crate::store::{chunk_name, holds_manifest};
use crate::sys::Sys;
use bytesize::ByteSize;
use examine::{Contents, Examined, Examiner};
pub use examine::{batch_bytes, batches, damage};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The zstd level if none is known.
const ZSTD_LEVEL: i32 = 3;

/// A sequence of lost chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The number of the first.
    pub first_chunk: u64,
    /// The number of the last; `None` if the store's last chunk is unknown, or if it is unknown whether any is
    /// lost.
    pub last_chunk: Option<u64>,
    /// Position in the store of the first lost nonzero, from 0.
    pub first_nonzero: u64,
    /// Lost nonzeros; `None` if `last_chunk` is.
    pub nnz: Option<u64>,
    /// Why.
    pub reason: String,
}

/// An unused chunk file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusedFile {
    /// Its name.
    pub file: String,
    /// Why.
    pub reason: String,
}

/// A chunk file that has another chunk's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MisplacedFile {
    /// Its name.
    pub file: String,
    /// The number of the chunk in it.
    pub chunk: u32,
}

impl MisplacedFile {
    fn new(used: &Used<'_>) -> Option<Self> {
        let (file, chunk) = (used.file.to_owned(), used.header.number);
        (file != chunk_name(chunk as usize)).then_some(Self { file, chunk })
    }
}

/// The findings in a store's directory.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// Why the manifest cannot be read; `None` if it can.
    pub manifest_problem: Option<String>,
    /// The store's id: the manifest's, or the one that the chunks agree on.
    #[serde(skip)]
    pub id: u64,
    /// Chunks that are intact.
    #[serde(rename = "chunks_intact")]
    pub chunks: u64,
    /// Nonzeros in them.
    #[serde(rename = "nnz_salvaged")]
    pub nnz: u64,
    /// What is lost, in the store's order.
    pub losses: Vec<Loss>,
    /// Unused chunk files: damaged, or not of this store.
    #[serde(rename = "unused_files")]
    pub unused: Vec<UnusedFile>,
    /// Used chunk files with another chunk's name, in the store's order.
    #[serde(rename = "misplaced_files")]
    pub misplaced: Vec<MisplacedFile>,
}

impl Findings {
    /// The number of lost chunks; `None` if unknown.
    #[must_use]
    pub fn chunks_lost(&self) -> Option<u64> {
        self.losses.iter().map(|loss| Some(loss.last_chunk? - loss.first_chunk + 1)).sum()
    }

    /// The number of lost nonzeros; `None` if unknown.
    #[must_use]
    pub fn nnz_lost(&self) -> Option<u64> {
        self.losses.iter().map(|loss| loss.nnz).sum()
    }
}

/// The intact chunks of a store, found by [`Engine::salvage`](crate::Engine::salvage): a [`Source`] of their nonzeros,
/// in the store's order. The result depends only on the files.
pub struct Salvage {
    store: PathBuf,
    examiner: Examiner,
    shape: Shape,
    /// How to pack them, except for the target.
    options: PackOptions,
    chunks: Vec<(PathBuf, ChunkHeader)>,
    findings: Findings,
}

impl Salvage {
    /// Examines everything in `store`, down to each nonzero. Fails if no chunk is intact, or if a chunk needs more
    /// than `memory` bytes. A single chunk without a manifest says little about the bound on chunks; `chunk_bytes` is
    /// used then. `watch` is called with the number of nonzeros examined and, if known, their total.
    pub fn scan(
        sys: &Sys,
        formats: &Formats,
        store: &Path,
        chunk_bytes: u64,
        memory: u64,
        watch: &dyn Fn(u64, Option<u64>),
    ) -> Result<Self> {
        let (manifest, manifest_problem) = match open(sys, formats, store, memory)? {
            // Everything that the manifest lists, in any cover.
            Ok(opened) => (Some(opened.partitions()), None),
            Err(problem) => (None, Some(problem)),
        };
        let files = chunk_files(store)?;
        if manifest.is_none() && files.is_empty() {
            // Reports that there is no store, or what is wrong with its manifest.
            Store::open_if(sys, formats, store, |_| Ok(()))?;
        }
        let total = manifest.as_ref().map(|store| store.whole().nnz);
        let refuse = |header: &ChunkHeader| manifest.as_ref().and_then(|store| foreign(store, header));
        let mut examiner = Examiner::new(sys, formats, manifest.as_ref(), memory)?;
        let mut examined = Vec::with_capacity(files.len());
        let mut done = 0;
        for file in files {
            sys.check_cancelled()?;
            let one = as_recorded(manifest.as_ref(), examiner.examine(store, file, &refuse)?);
            done += one.header.as_ref().map_or(0, |header| u64::from(header.nnz));
            examined.push(one);
            watch(done, total);
        }
        let sorted = match &manifest {
            Some(store) => reconcile::by_manifest(store.whole(), &examined),
            None => reconcile::by_headers(&examined),
        };
        let used: Vec<_> = sorted.used.iter().filter_map(|&i| Used::new(&examined[i])).collect();
        let Some(first) = used.first() else { return Err(nothing(store, &examined)) };
        let options = match &manifest {
            Some(store) => PackOptions { labels: NewLabels::of(store)?.map(Arc::new), ..known(store, &used) },
            None => guess(first, &used, &sorted.losses, &examined, chunk_bytes),
        };
        let findings = Findings {
            manifest_problem,
            id: first.header.store_id,
            chunks: used.len() as u64,
            nnz: used.iter().map(|u| u64::from(u.header.nnz)).sum(),
            losses: sorted.losses,
            unused: sorted.unused,
            misplaced: used.iter().filter_map(MisplacedFile::new).collect(),
        };
        let chunks = used.iter().map(|u| (store.join(u.file), u.header.clone())).collect();
        let shape = first.contents.shape.clone();
        Ok(Self { store: store.to_path_buf(), examiner, shape, options, chunks, findings })
    }

    /// What was found.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Sets the format, codec, chunk size and duplicates of `options` so that packing an undamaged store reproduces it.
    /// Without a manifest, the bound on a chunk's image is the smallest power of two that allows the chunks, zstd's
    /// level is a guess, and duplicates are refused unless some occur.
    #[must_use]
    pub fn options(&self, options: PackOptions) -> PackOptions {
        let PackOptions { format, codec, chunk_bytes, duplicates, part, labels, .. } = self.options.clone();
        PackOptions { format, codec, chunk_bytes, duplicates, part, labels, ..options }
    }
}

/// Reads and checks the chunks a second time.
impl Source for Salvage {
    fn is_checked(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.store.display().to_string()
    }

    fn size(&self) -> Result<Option<Size>> {
        Ok(Some(Size { nnz: self.findings.nnz, order: self.shape.order() }))
    }

    fn memory(&self, _threads: usize) -> SourceMemory {
        let bytes = self.examiner.host_bytes() + batch_bytes(self.shape.order());
        SourceMemory { least: bytes, most: bytes, help: "" }
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        for (path, header) in &self.chunks {
            let (shape, _) = self.examiner.batches(path, header, sink)?;
            if shape != self.shape {
                return Err(Error::unusable(path, "changes while it is read"));
            }
        }
        self.examiner.release()?;
        let dims = self.shape.dims().iter().map(|&dim| dim.into()).collect();
        Ok(Extent { dims, nnz: self.findings.nnz })
    }
}

/// An examined file that is intact.
struct Used<'a> {
    file: &'a str,
    header: &'a ChunkHeader,
    contents: &'a Contents,
}

impl<'a> Used<'a> {
    fn new(examined: &'a Examined) -> Option<Self> {
        let (header, contents) = (examined.header.as_ref()?, examined.contents.as_ref().ok()?);
        Some(Self { file: &examined.file, header, contents })
    }
}

/// The store, or what is wrong with its manifest. Fails if `store` is not a directory, or if its manifest needs more
/// than `memory` bytes.
fn open(
    sys: &Sys,
    formats: &Formats,
    store: &Path,
    memory: u64,
) -> Result<std::result::Result<Store, String>> {
    let manifest = store.join(MANIFEST);
    holds_manifest(store)?;
    if store.is_dir() && manifest.symlink_metadata().is_err() {
        return Ok(Err("missing".into()));
    }
    if store.is_dir() && !manifest.is_file() {
        return Ok(Err("not a file".into()));
    }
    let fits = |bytes: u64| {
        let takes = Store::opening_bytes(bytes);
        let what = format!("takes {} of memory, more than `memory` leaves: raise it", ByteSize(takes));
        if takes <= memory { Ok(()) } else { Err(Error::request(format!("{}: {what}", manifest.display()))) }
    };
    match Store::open_if(sys, formats, store, fits) {
        Ok(store) => Ok(Ok(store)),
        Err(error) => damage(error).map(Err),
    }
}

/// The names of the chunk files in `store`, in order.
fn chunk_files(store: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(store).map_err(Error::io(store, "read"))? {
        let name = entry.map_err(Error::io(store, "read"))?.file_name();
        let is_chunk = |n: &&str| n.strip_prefix("chunk-").and_then(|n| n.strip_suffix(".bin")).is_some();
        names.extend(name.to_str().filter(is_chunk).map(str::to_owned));
    }
    names.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    Ok(names)
}

/// Why a chunk with this header is not in the manifest.
fn foreign(store: &Store, header: &ChunkHeader) -> Option<String> {
    if header.store_id != store.id() {
        return Some(format!("a chunk of another store, {:016x}", header.store_id));
    }
    let number = header.number as usize;
    let known =
        number < store.manifest().chunks.len() && store.check_identity(header, number, Path::new("")).is_ok();
    (!known).then(|| format!("says that it is chunk {number} of this store, which the manifest denies"))
}

/// Refuses a chunk whose dims differ from the manifest's, if there is one.
fn as_recorded(store: Option<&Store>, examined: Examined) -> Examined {
    let (Ok(contents), Some(store)) = (&examined.contents, store) else { return examined };
    let manifest = store.manifest();
    if contents.shape == manifest.shape {
        return examined;
    }
    Examined { contents: Err("corrupt: SHAPE section differs from the manifest".into()), ..examined }
}

/// Whether a coordinate repeats, inside a chunk or between adjacent ones.
fn repeats(used: &[Used<'_>]) -> bool {
    let borders = used.windows(2).any(|pair| pair[0].contents.last == pair[1].contents.first);
    borders || used.iter().any(|u| u.contents.repeats)
}

/// The options for the findings, with or without repeated coordinates.
fn options(format: FormatOption, codec: Codec, chunk_bytes: u64, may_repeat: bool) -> PackOptions {
    let duplicates = if may_repeat { Duplicates::Keep } else { Duplicates::Error };
    PackOptions { format, codec, chunk_bytes, duplicates, ..PackOptions::new(PathBuf::new()) }
}

/// The options recorded in the manifest.
fn known(store: &Store, used: &[Used<'_>]) -> PackOptions {
    let Manifest { codec, chunk_bytes, may_repeat, .. } = *store.manifest();
    let format = FormatOption::of_store(store.whole());
    let part = store.whole().part.clone();
    PackOptions { part, ..options(format, codec, chunk_bytes, may_repeat || repeats(used)) }
}

/// The options suggested by the chunks, of which `first` is the first. All chunks except a store's last one are nearly
/// as large as the bound allows, in bytes or nonzeros, and the bound is usually a power of two.
/// bound allows, which usually is a power of two.
fn guess(
    first: &Used<'_>,
    used: &[Used<'_>],
    losses: &[Loss],
    examined: &[Examined],
    chunk_bytes: u64,
) -> PackOptions {
    let format = first.contents.format.clone();
    let headers = examined.iter().filter_map(|e| e.header.as_ref());
    let same = headers.filter(|h| h.store_id == first.header.store_id);
    let least = same.map(|h| format.chunk_bytes_least(h.nnz, h.image_bytes)).max().unwrap_or(0);
    let bound = least.next_power_of_two().clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
    let single = used.len() == 1 && losses.iter().all(|loss| loss.last_chunk.is_none());
    let codec = if first.header.codec == 0 { Codec::None } else { Codec::Zstd(ZSTD_LEVEL) };
    let headers =
        examined.iter().filter(|e| e.header.as_ref().is_some_and(|h| h.store_id == first.header.store_id));
    let formats =
        headers.filter_map(|e| Some((e.header.as_ref()?.partition, &e.contents.as_ref().ok()?.format)));
    let format = FormatOption::of_partitions(formats.collect(), first.contents.shape.order());
    options(format, codec, if single { bound.max(chunk_bytes) } else { bound }, repeats(used))
}

/// The error if no chunk is intact.
fn nothing(store: &Path, examined: &[Examined]) -> Error {
    let first = examined.iter().find_map(|e| Some((&e.file, e.contents.as_ref().err()?)));
    let what = match first {
        None => "it has no chunk files".into(),
        Some((file, reason)) if examined.len() == 1 => format!("{file}: {reason}"),
        Some((file, reason)) => {
            format!("none of {} chunk files is intact; the first, {file}: {reason}", examined.len())
        }
    };
    Error::unusable(store, format!("nothing can be salvaged: {what}"))
}
