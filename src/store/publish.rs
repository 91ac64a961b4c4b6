//! Publication: chunks and manifest are written and synced under `STORE.partial`, then renamed, so that a
//! store is there whole or not at all.

use super::chunk::{ChunkHeader, HEADER_BYTES};
use super::manifest::{ChunkEntry, Codec, Manifest};
use super::{MANIFEST, PROVENANCE, chunk_name};
use crate::error::{Error, Result};
use crate::sys::{File, SPILL_PREFIX, Sys, Temporary};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// A store that is being written. Dropped before [`Staging::publish`] has succeeded, it removes itself.
#[derive(Debug)]
pub struct Staging {
    sys: Sys,
    target: PathBuf,
    partial: Temporary,
    replace: bool,
    codec: Codec,
    headers: Vec<ChunkHeader>,
    entries: Vec<ChunkEntry>,
    /// The partial store's directory, locked while this process writes.
    _lock: File,
}

/// What was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The store id.
    pub id: u64,
    /// Bytes of manifest and chunks.
    pub bytes: u64,
    /// Chunks.
    pub chunks: usize,
}

/// The directory that a new name in `path`'s place belongs to.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Staging {
    /// Prepares to write a store at `target`. An existing store there is an error unless `replace`;
    /// anything else there always is. What a killed packer left is removed.
    pub fn create(sys: &Sys, target: &Path, replace: bool, codec: Codec) -> Result<Self> {
        let shown = target.display();
        if target.symlink_metadata().is_ok() {
            if !target.join(MANIFEST).is_file() {
                return Err(Error::request(format!(
                    "{shown}: exists and is not a store; name another output"
                )));
            }
            if !replace {
                return Err(Error::request(format!(
                    "{shown}: a store is there already; --force replaces it, -o names another"
                )));
            }
        }
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = parent(target).join(name);
        clear_stale(sys, &partial)?;
        sys.create_dir(&partial).map_err(|e| e.about(target))?;
        let partial = Temporary::at(sys, partial);
        let lock = sys.open_dir(partial.path())?;
        if !lock.try_lock()? {
            return Err(busy(target));
        }
        Ok(Self {
            sys: sys.clone(),
            target: target.to_path_buf(),
            partial,
            replace,
            codec,
            headers: Vec::new(),
            entries: Vec::new(),
            _lock: lock,
        })
    }

    /// Writes the next chunk. `header` and `image` come from the format; `entry` holds the linear and row
    /// ranges, everything else in it is filled in here.
    pub fn add(&mut self, mut header: ChunkHeader, mut image: Vec<u8>, mut entry: ChunkEntry) -> Result<()> {
        let number = self.headers.len();
        header.number = u32::try_from(number)
            .map_err(|_| Error::request("more than 2^32 chunks; use a larger --chunk-bytes"))?;
        header.first_nonzero = self.entries.last().map_or(0, |e| e.first_nonzero + e.nnz);
        header.codec = self.codec.code();
        entry.image_bytes = image.len() as u64;
        if let Codec::Zstd(level) = self.codec {
            let payload = zstd::bulk::compress(&image[HEADER_BYTES..], level)
                .map_err(|source| Error::Resource { action: "compress a chunk", source })?;
            image.truncate(HEADER_BYTES);
            image.extend_from_slice(&payload);
        }
        header.stored_bytes = u32::try_from(image.len() - HEADER_BYTES)
            .map_err(|_| Error::request("a chunk exceeds 4 GiB; use a smaller --chunk-bytes"))?;
        header.payload_checksum = xxh3_64(&image[HEADER_BYTES..]);
        entry.first_nonzero = header.first_nonzero;
        entry.nnz = header.nnz.into();
        entry.file_bytes = header.file_bytes();
        entry.payload_checksum = header.payload_checksum;
        image.resize(image.len().next_multiple_of(crate::sys::PAGE), 0);
        let file = self.sys.create(&self.partial.path().join(chunk_name(number)))?;
        file.write_all_at(&image, 0)?;
        self.headers.push(header);
        self.entries.push(entry);
        Ok(())
    }

    /// The directory under its temporary name. Nothing else may be in it when it is published.
    #[must_use]
    pub fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// The chunks so far, for the manifest.
    #[must_use]
    pub fn entries(&self) -> &[ChunkEntry] {
        &self.entries
    }

    /// Stamps the chunks with the store id, makes everything durable, and renames the store into place.
    pub fn publish(mut self, manifest: &Manifest, provenance: &[u8]) -> Result<Published> {
        let (bytes, id) = manifest.encode()?;
        for (number, header) in self.headers.iter_mut().enumerate() {
            header.store_id = id;
            let file = self.sys.open_existing(&self.partial.path().join(chunk_name(number)))?;
            file.write_all_at(&header.encode(), 0)?;
            file.sync()?;
        }
        for (name, contents) in [(MANIFEST, &bytes[..]), (PROVENANCE, provenance)] {
            let file = self.sys.create(&self.partial.path().join(name))?;
            file.write_all_at(contents, 0)?;
            file.sync()?;
        }
        self.sys.sync_dir(self.partial.path())?;
        if self.replace && self.target.symlink_metadata().is_ok() {
            // Locked, so that nobody takes the old store for a killed packer's while it is removed.
            let old = self.sys.open_dir(&self.target)?;
            if !old.try_lock()? {
                return Err(busy(&self.target));
            }
            self.sys.exchange(self.partial.path(), &self.target)?;
            self.partial.remove();
        } else {
            self.sys.rename(self.partial.path(), &self.target)?;
            self.partial.renamed();
        }
        self.sys.sync_dir(parent(&self.target))?;
        let chunk_bytes: u64 = self.entries.iter().map(|e| e.file_bytes).sum();
        Ok(Published { id, bytes: bytes.len() as u64 + chunk_bytes, chunks: self.entries.len() })
    }
}

fn busy(target: &Path) -> Error {
    Error::request(format!("{}: another program writes this store now", target.display()))
}

/// Removes what a killed packer left at `partial`: an unfinished store, or one that was replaced. An error if
/// a live one holds it, or if something is in it that no packer writes.
fn clear_stale(sys: &Sys, partial: &Path) -> Result<()> {
    if partial.symlink_metadata().is_err() {
        return Ok(());
    }
    let ours = |name: &str| {
        name == MANIFEST
            || name == PROVENANCE
            || name.starts_with(SPILL_PREFIX)
            || name.strip_prefix("chunk-").is_some_and(|rest| rest.strip_suffix(".bin").is_some())
    };
    let entries = std::fs::read_dir(partial).map_err(Error::io(partial, "read"))?;
    for entry in entries {
        let name = entry.map_err(Error::io(partial, "read"))?.file_name();
        if !name.to_str().is_some_and(ours) {
            let what = "is in the way and not an unfinished store; move it or remove it";
            return Err(Error::request(format!("{}: {what}", partial.display())));
        }
    }
    if !sys.open_dir(partial)?.try_lock()? {
        return Err(busy(&partial.with_extension("")));
    }
    sys.remove_tree(partial)
}
