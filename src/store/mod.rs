//! The container: a directory with one manifest and its chunk files, published whole or not at all
//! (formats-spec/container.md). It handles bytes, checksums and durability; `format` knows what chunks
//! contain.

mod file;
pub mod labels;
mod load;
pub mod manifest;
mod parts;
mod publish;
mod summary;
mod view;

pub use crate::chunk::{ChunkCodes, ChunkHeader, ImageWriter, SectionKind, Version};
pub use crate::format::{Format, Formats, PartitionStatistics};
pub use crate::publish::partial_path;
pub use file::{LoneReader, read_provenance};
pub use load::{DecodeScratch, LoadTimes};
pub use manifest::{ChunkEntry, Codec, Manifest, PartOf, Partition};
pub(crate) use parts::parts_in;
pub use parts::{PARTS_MAX, Whole, digest_of, part_name};
pub use publish::{Published, Staging};
pub use summary::StoreSummary;
use view::Place;

use crate::error::{Error, Result};
use crate::publish as publishing;
use crate::sys::{Dir, PAGE, Sys};
use manifest::{PREAMBLE_BYTES, WRONG_MAGIC};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The smallest bound on a chunk's image: enough for a tile of eight modes with any values.
pub const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// The largest bound on a chunk's image.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// The longest chunk file or image: the largest bound, plus room for a codec that does not compress.
const FILE_BYTES_MAX: u64 = CHUNK_BYTES_MAX + (CHUNK_BYTES_MAX >> 4);
/// The longest manifest.
const MANIFEST_BYTES_MAX: u64 = i32::MAX as u64;

/// Bytes per chunk in an open store's list.
const ENTRY_BYTES: u64 = size_of::<ChunkEntry>() as u64;
/// The fewest bytes per chunk in a manifest: those of version 1.
const LISTED_BYTES: u64 = 136;
/// Bytes that a pass records per chunk.
const PASS_BYTES: u64 = 400;

/// The manifest's file name.
pub(crate) const MANIFEST: &str = "manifest";
/// The provenance file, which is not part of the store's identity.
const PROVENANCE: &str = "provenance.json";
/// The file name of chunk `number`.
pub(crate) fn chunk_name(number: usize) -> String {
    format!("chunk-{number:06}.bin")
}

/// Whether `name` is a valid file name inside a store.
fn is_part(name: &str) -> bool {
    let number = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".bin"));
    let is_number = |digits: &str| digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
    let is_mode = |digits: &str| digits.len() == 1 && ("0".."8").contains(&digits);
    name == MANIFEST
        || name == PROVENANCE
        || number("chunk-").is_some_and(is_number)
        || number("labels-").is_some_and(is_mode)
}

/// Whether `dir` holds a store, that is, contains a manifest. Fails if `dir` cannot be read.
pub(crate) fn holds_manifest(dir: &Path) -> Result<bool> {
    let at = dir.join(MANIFEST);
    match at.metadata() {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(Error::io(&at, "inspect")(e)),
        found => Ok(found.is_ok_and(|found| found.is_file())),
    }
}

/// Whether `dir` holds chunk 0. A store does even if its manifest is lost.
fn holds_chunks(dir: &Dir) -> Result<bool> {
    Ok(dir.file_bytes(&chunk_name(0))?.is_some())
}

/// Opens the directory of the store at `path`, and shares it. If it is in the directory of a divided tensor, that is shared too, as all parts
/// are replaced together.
fn open_dir(sys: &Sys, path: &Path) -> Result<(Dir, Option<Dir>)> {
    /// How often names may change while they are inspected.
    const TRIES: usize = 100;
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let is_part = real.file_name().and_then(|name| parts::part_of_name(name.to_str()?)).is_some();
    let Some(around) = real.parent().filter(|_| is_part) else {
        return Ok((publishing::open(sys, path)?, None));
    };
    for _ in 1..TRIES {
        // A directory that others own may not be readable; then they replace it.
        let shared = publishing::open(sys, around).ok();
        let dir = publishing::open(sys, path)?;
        if shared.as_ref().is_none_or(|shared| shared.is_at(around)) {
            return Ok((dir, shared));
        }
    }
    Ok((publishing::open(sys, path)?, None))
}

/// An open store. Its manifest has been read and checked; chunks are checked as they are read. It keeps reading the
/// same files even if another store takes its name. A clone is another handle to the same store.
///
/// For a store with several partitions, a `Store` is a *view*: the chunks of its first cover, or of the covers given to
/// [`Store::view`], in order, as if there were no others.
#[derive(Clone, Debug)]
pub struct Store {
    sys: Sys,
    path: Arc<Path>,
    dir: Arc<Dir>,
    /// The directory of the divided tensor that it is a part of, which stays while this lives.
    _around: Option<Arc<Dir>>,
    /// The manifest of all partitions.
    whole: Arc<Manifest>,
    /// The manifest of the partitions that this view reads.
    manifest: Arc<Manifest>,
    places: Arc<[Place]>,
    /// The digest of what this is a share of.
    id: u64,
    /// The store id, which its chunks have.
    stamp: u64,
    direct: bool,
}

impl Store {
    /// Indices of each mode.
    #[must_use]
    pub fn dims(&self) -> &[u32] {
        self.manifest.shape.dims()
    }

    /// The format of its chunks.
    #[must_use]
    pub fn format(&self) -> Format {
        self.manifest.format().clone()
    }

    /// Nonzeros.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.manifest.nnz
    }

    /// The store id, which is also its digest; of a part that several processes compute from, that of all parts.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[doc(hidden)]
impl Store {
    /// Opens the store at `path` with this program's formats, and checks its manifest.
    pub fn open(sys: &Sys, path: &Path) -> Result<Self> {
        Self::open_if(sys, &Formats::default(), path, |_| Ok(()))
    }

    /// Like [`Store::open`], with `formats`. `fits` is called with the manifest's length in bytes and can refuse it;
    /// reading the manifest takes [`Store::opening_bytes`].
    pub fn open_if(
        sys: &Sys,
        formats: &Formats,
        path: &Path,
        fits: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Self> {
        let at = path.join(MANIFEST);
        let none = || {
            let what = if path.is_file() { "a file, not a store" } else { "no store here" };
            let beside = path.with_extension("blco");
            let parts = parts_in(path).ok().and_then(|parts| parts.first().copied());
            let hint = match (path.parent(), parts) {
                (Some(parent), _) if path.ends_with(MANIFEST) => {
                    format!("name its directory, {}", parent.display())
                }
                (_, Some((number, parts))) => {
                    let one = path.join(part_name(number, parts));
                    let one = one.display();
                    format!("a tensor in parts: name one, as {one}, or start {parts} processes with MPI")
                }
                _ if beside != path && beside.join(MANIFEST).is_file() => {
                    format!("did you mean {}?", beside.display())
                }
                _ => "make one from a table or text with blco-pack".into(),
            };
            Error::request(format!("{}: {what}; {hint}", path.display()))
        };
        let (dir, around) = open_dir(sys, path).map_err(|error| match error {
            Error::Io { source, .. }
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                none()
            }
            other => other,
        })?;
        let Some(bytes) = dir.file_bytes(MANIFEST)? else {
            if holds_chunks(&dir)? {
                return Err(Error::corrupt(&at, if dir.has(MANIFEST) { "not a file" } else { "missing" }));
            }
            return Err(none());
        };
        if bytes > MANIFEST_BYTES_MAX {
            return Err(Error::unusable(&at, format!("{bytes} bytes; no manifest is that long")));
        }
        // Check the magic and the limit before allocating memory for the stated length.
        let (file, had_chunks) = (dir.file(MANIFEST, false)?, holds_chunks(&dir)?);
        let mut preamble = [0; PREAMBLE_BYTES];
        let read = file.read_at(&mut preamble, 0)?;
        let foreign = |error| match error {
            // Chunks beside it show that this file was a manifest.
            Error::Corrupt { what, .. } if what == WRONG_MAGIC && had_chunks => {
                Error::corrupt(&at, what).breaks("manifest-magic")
            }
            other => other,
        };
        manifest::check_preamble(&preamble[..read], bytes, &at).map_err(foreign)?;
        fits(bytes)?;
        #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
        let mut buffer = sys.page_buf(bytes as usize + 1)?;
        let read = file.read_at(&mut buffer, 0)?;
        let (manifest, id) = Manifest::decode_of(formats, &buffer[..read], &at).map_err(foreign)?;
        let (path, dir, whole) = (path.into(), Arc::new(dir), Arc::new(manifest));
        let (manifest, places) = (Arc::clone(&whole), [].into());
        let (sys, around) = (sys.clone(), around.map(Arc::new));
        let store =
            Self { sys, path, dir, _around: around, whole, manifest, places, id, stamp: id, direct: false };
        Ok(store.view(&[0]))
    }

    /// Bytes of memory needed to open a store with a manifest of `bytes` bytes: the file and the list of
    /// chunks.
    #[must_use]
    pub fn opening_bytes(bytes: u64) -> u64 {
        2 * bytes
    }

    /// Bytes of memory per pass for the chunks of a store whose manifest has `bytes` bytes.
    #[must_use]
    pub fn listed_bytes(bytes: u64) -> u64 {
        bytes / LISTED_BYTES * (ENTRY_BYTES + PASS_BYTES)
    }

    /// Bytes of memory per pass for this store's chunks: the manifest's list, the executor's records and its spans.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let listed =
            if Arc::ptr_eq(&self.whole, &self.manifest) { 0 } else { self.whole.chunks.len() as u64 };
        self.manifest.chunks.len() as u64 * (ENTRY_BYTES + PASS_BYTES) + listed * ENTRY_BYTES
    }

    /// Reads chunks past the page cache from now on. Meant for stores larger than the cache.
    #[must_use]
    pub fn with_direct_reads(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Reads through another system handle from now on.
    #[must_use]
    pub fn with_sys(mut self, sys: &Sys) -> Self {
        self.sys = sys.clone();
        self
    }

    /// Whether chunks are read past the page cache.
    #[must_use]
    pub fn reads_directly(&self) -> bool {
        self.direct
    }

    /// The manifest of this view.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest of the whole store, with all partitions.
    #[must_use]
    pub fn whole(&self) -> &Manifest {
        &self.whole
    }

    /// The system handle that it reads through.
    #[must_use]
    pub fn sys(&self) -> &Sys {
        &self.sys
    }

    /// The file of chunk `number`.
    #[must_use]
    pub fn chunk_path(&self, number: usize) -> PathBuf {
        self.path.join(self.file_name(number))
    }

    /// The file of chunk `number`, counted over the whole store in `directory`.
    #[must_use]
    pub fn chunk_path_in(directory: &Path, number: usize) -> PathBuf {
        directory.join(chunk_name(number))
    }

    /// Bytes that suffice for any chunk of the store, as a file or as an image.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        (0..self.manifest.chunks.len()).map(|n| self.chunk_buffer_bytes(n)).max().unwrap_or(0)
    }

    /// Bytes that suffice for chunk `number`, as a file or as an image.
    #[must_use]
    pub fn chunk_buffer_bytes(&self, number: usize) -> usize {
        let entry = &self.manifest.chunks[number];
        usize::try_from(entry.file_bytes.max(entry.image_bytes))
            .map_or(usize::MAX, |b| b.next_multiple_of(PAGE))
    }

    /// Checks that long chunk files have the lengths in the manifest, before memory for these lengths is allocated.
    pub(crate) fn check_long_chunks(&self) -> Result<()> {
        /// Smaller buffers need no check.
        const LONG: u64 = 32 << 20;
        for (number, entry) in self.manifest.chunks.iter().enumerate() {
            if entry.file_bytes.max(entry.image_bytes) > LONG {
                let path = self.chunk_path(number);
                let bytes = self.dir.file_bytes(&self.file_name(number))?.unwrap_or(0);
                let holds = if self.manifest.codec == Codec::None { bytes } else { file::frame_holds(bytes) };
                if bytes != entry.file_bytes || entry.image_bytes > holds {
                    let what = format!("corrupt: {bytes} bytes cannot hold what the manifest says");
                    return Err(Error::corrupt(path, what).breaks("chunk-length"));
                }
            }
        }
        Ok(())
    }

    /// Bytes of the store's files except provenance: manifest and chunks.
    pub fn bytes(&self) -> Result<u64> {
        let manifest = self.dir.file_bytes(MANIFEST)?;
        let manifest = manifest.ok_or_else(|| Error::corrupt(self.path.join(MANIFEST), "missing"))?;
        let chunks = self.whole.chunks.iter().map(|c| c.file_bytes).sum::<u64>();
        Ok(manifest + chunks + self.whole.label_bytes())
    }
}
