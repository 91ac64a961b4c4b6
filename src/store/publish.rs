//! Publication: chunks and manifest are written and synced in `STORE.partial/store`, then renamed, so that a
//! store is there whole or not at all.

use super::chunk::{ChunkHeader, HEADER_BYTES};
use super::manifest::{ChunkEntry, Codec, Manifest};
use super::{MANIFEST, PROVENANCE, chunk_name, holds_manifest};
use crate::error::{Error, Result};
use crate::sys::{File, SPILL_PREFIX, Sys, Temporary, behind_links, directory};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The store's directory inside the partial one.
const STORE: &str = "store";

/// A store that is being written, in `STORE.partial/store`; the packer may keep files of its own beside it. Dropped, it
/// removes `STORE.partial` and all that is in it.
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

/// The name under which the store `target` is written: beside the store that it leads to, where it is a symbolic link.
#[must_use]
pub fn partial_path(target: &Path) -> PathBuf {
    // Where a link leads nowhere, nothing is written: `Staging::create` says so.
    let target = &behind_links(target).unwrap_or_else(|_| target.to_path_buf());
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    directory(target).join(name)
}

impl Staging {
    /// Prepares to write a store at `target`, or where that symbolic link leads to. An existing store there is an error unless
    /// `replace`; anything else there always is. What a killed packer left under the temporary name is removed; with
    /// `resume` only its chunks are.
    pub fn create(sys: &Sys, target: &Path, replace: bool, resume: bool, codec: Codec) -> Result<Self> {
        let shown = target.display();
        let target = &behind_links(target)?;
        if target.symlink_metadata().is_ok() {
            if !holds_manifest(target)? {
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
        if directory(target).join(MANIFEST).is_file() {
            let what = "would lie inside another store; name another output";
            return Err(Error::request(format!("{shown}: {what}")));
        }
        let (partial, lock) = take(sys, target)?;
        if !resume {
            empty(sys, partial.path())?;
        }
        let store = partial.path().join(STORE);
        if store.symlink_metadata().is_ok() {
            sys.remove_tree(&store)?;
        }
        sys.create_dir(&store)?;
        Ok(Self {
            sys: sys.clone(),
            target: target.clone(),
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
        let file = self.sys.create(&self.file(&chunk_name(number)))?;
        file.write_all_at(&image, 0)?;
        self.headers.push(header);
        self.entries.push(entry);
        Ok(())
    }

    /// The directory that goes with this, where the packer may keep `journal` and directories for temporary files.
    #[must_use]
    pub fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// The chunks so far, for the manifest.
    #[must_use]
    pub fn entries(&self) -> &[ChunkEntry] {
        &self.entries
    }

    /// Where the file `name` of the store is for now.
    fn file(&self, name: &str) -> PathBuf {
        self.partial.path().join(STORE).join(name)
    }

    /// Stamps the chunks with the store id, makes everything durable, and renames the store into place. What else is
    /// in the directory that goes with this stays until this is dropped.
    pub fn publish(&mut self, manifest: &Manifest, provenance: &[u8]) -> Result<Published> {
        let (bytes, id) = manifest.encode()?;
        for (number, mut header) in std::mem::take(&mut self.headers).into_iter().enumerate() {
            self.sys.check_cancelled()?;
            header.store_id = id;
            let file = self.sys.open_existing(&self.file(&chunk_name(number)))?;
            file.write_all_at(&header.encode(), 0)?;
            file.sync()?;
        }
        for (name, contents) in [(MANIFEST, &bytes[..]), (PROVENANCE, provenance)] {
            let file = self.sys.create(&self.file(name))?;
            file.write_all_at(contents, 0)?;
            file.sync()?;
        }
        let store = self.partial.path().join(STORE);
        self.sys.sync_dir(&store)?;
        self.sys.check_cancelled()?;
        self.sys.publish(|| {
            if self.replace && self.target.symlink_metadata().is_ok() {
                self.sys.exchange(&store, &self.target)
            } else {
                self.sys.rename(&store, &self.target)
            }
        })?;
        self.sys.sync_name(&self.target)?;
        let chunk_bytes: u64 = self.entries.iter().map(|e| e.file_bytes).sum();
        Ok(Published { id, bytes: bytes.len() as u64 + chunk_bytes, chunks: self.entries.len() })
    }
}

/// The directory of the unfinished store `target`, locked: made, or what a killed packer left. Whoever has it is in charge of it.
fn take(sys: &Sys, target: &Path) -> Result<(Temporary, File)> {
    let partial = partial_path(target);
    let is = |error: &Error, kind| matches!(error, Error::Io { source, .. } if source.kind() == kind);
    loop {
        let left = partial.symlink_metadata().is_ok();
        if !left {
            match sys.create_dir(&partial) {
                // Another packer was faster.
                Err(e) if is(&e, ErrorKind::AlreadyExists) => continue,
                made => made.map_err(|e| e.about(target))?,
            }
        }
        let made = (!left).then(|| Temporary::at(sys, partial.clone()));
        let lock = match sys.open_dir(&partial) {
            // Another packer had it, and is done.
            Err(e) if is(&e, ErrorKind::NotFound) => {
                made.into_iter().for_each(Temporary::renamed);
                continue;
            }
            opened => opened?,
        };
        let locked = lock.try_lock()?;
        if locked && lock.is_at(&partial) {
            check_ours(&partial)?;
            return Ok((made.unwrap_or_else(|| Temporary::at(sys, partial)), lock));
        }
        made.into_iter().for_each(Temporary::renamed);
        if !locked {
            return Err(busy(target));
        }
    }
}

/// Removes what is in a directory.
fn empty(sys: &Sys, dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir, "read"))? {
        let path = entry.map_err(Error::io(dir, "read"))?.path();
        if path.is_dir() && !path.is_symlink() { sys.remove_tree(&path) } else { sys.remove_file(&path) }?;
    }
    Ok(())
}

/// Of zstd's levels from 1 on (lib/compress/clevels.h of its release 1.5): the logarithms of the window and of the entries,
/// of 4 bytes, of its two tables. A test holds them against what zstd takes.
const LEVELS: [[u32; 3]; 22] = [
    [19, 13, 14],
    [20, 15, 16],
    [21, 16, 17],
    [21, 18, 18],
    [21, 18, 19],
    [21, 18, 19],
    [21, 19, 20],
    [21, 19, 20],
    [22, 20, 21],
    [22, 21, 22],
    [22, 21, 22],
    [22, 22, 23],
    [22, 22, 22],
    [22, 22, 23],
    [22, 23, 23],
    [22, 22, 22],
    [23, 23, 22],
    [23, 23, 22],
    [23, 24, 22],
    [25, 25, 23],
    [26, 26, 24],
    [27, 27, 25],
];

impl Codec {
    /// Bytes of memory that compressing an image of at most `chunk_bytes` takes: zstd's tables, which it makes no larger
    /// than what it compresses, the rest of its state, and what comes out.
    #[must_use]
    pub fn encoder_bytes(self, chunk_bytes: u64) -> u64 {
        let Self::Zstd(level) = self else { return 0 };
        let level = usize::try_from(level).unwrap_or(1).clamp(1, LEVELS.len());
        let [window, chain, hash] = LEVELS[level - 1];
        let window = window.min(chunk_bytes.next_power_of_two().ilog2());
        let tables = (4 << chain.min(window + 1)) + (5 << hash.min(window + 1));
        tables + (3 << 20) + zstd::zstd_safe::compress_bound(usize::try_from(chunk_bytes).unwrap_or(0)) as u64
    }
}

fn busy(target: &Path) -> Error {
    Error::request(format!("{}: another program writes this store now", target.display()))
}

/// An error if something is in `partial` that no packer writes.
fn check_ours(partial: &Path) -> Result<()> {
    let ours = |name: &str| name == STORE || name == "journal" || name.starts_with(SPILL_PREFIX);
    for entry in std::fs::read_dir(partial).map_err(Error::io(partial, "read"))? {
        let name = entry.map_err(Error::io(partial, "read"))?.file_name();
        if !name.to_str().is_some_and(ours) {
            let what = "is in the way and not an unfinished store; move it or remove it";
            return Err(Error::request(format!("{}: {what}", partial.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// zstd's own count of what its state takes.
    #[test]
    fn a_codec_takes_what_it_says() {
        for bytes in [1usize << 16, 1 << 18, 1 << 20, 3 << 20, 8 << 20] {
            let (image, mut out) = (vec![0u8; bytes], Vec::with_capacity(bytes));
            for level in 1..=22 {
                let mut context = zstd::zstd_safe::CCtx::create();
                let parameter = zstd::zstd_safe::CParameter::CompressionLevel(level);
                context.set_parameter(parameter).unwrap();
                context.compress2(&mut out, &image).unwrap();
                let state = Codec::Zstd(level).encoder_bytes(bytes as u64) - bytes as u64;
                let took = context.sizeof() as u64;
                assert!(took <= state, "level {level}, {bytes} bytes: {took} of {state}");
                assert!(state <= 2 * took + (4 << 20), "level {level}, {bytes} bytes: {took} of {state}");
            }
        }
    }
}
