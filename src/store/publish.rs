//! Publication: chunks and manifest are written and synced in `STORE.partial/store`, which is then renamed to the
//! store's name.

use super::labels::{self, NewLabels};
use super::manifest::{ChunkEntry, Codec, Manifest};
use super::parts::{digest_of, part_name, part_of_name};
use super::{MANIFEST, PROVENANCE, chunk_name, holds_manifest, is_part};
use crate::chunk::ChunkHeader;
use crate::error::{Error, Result};
use crate::format::BuiltChunk;
use crate::publish::{Found, Kind, Partial, first_foreign};
use crate::sys::{SPILL_PREFIX, Sys, behind_links, directory, each_name};
use rayon::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Stores, as a kind of thing that programs make and replace.
static STORE: Kind = Kind {
    name: "store",
    marker: MANIFEST,
    exists: "a store already exists; replace it with `replace`, or name another with `target`",
    look,
    beside: &["journal", SPILL_PREFIX],
};

fn look(sys: &Sys, path: &Path) -> Result<Found> {
    if !holds_manifest(path)? {
        return look_at_parts(sys, path);
    }
    let foreign = first_foreign(path, |name| name.to_str().is_some_and(is_part))?;
    Ok(foreign.map_or(Found::Made, |name| {
        Found::Other(format!(
            "holds {name:?}, which is no part of a store; move that, or name another output"
        ))
    }))
}

/// The same if `path` may be a divided tensor: a directory with parts and nothing else.
fn look_at_parts(sys: &Sys, path: &Path) -> Result<Found> {
    let other = |what: String| Ok(Found::Other(format!("{what}; name another output")));
    let (mut parts, mut foreign) = (Vec::new(), None);
    if path.is_dir() {
        let listed = each_name(path, |name| {
            if name.to_str().is_some_and(|name| part_of_name(name).is_some()) {
                parts.push(path.join(name));
            } else if foreign.is_none() {
                foreign = Some(name.to_string_lossy().into_owned());
            }
            true
        });
        listed.map_err(Error::io(path, "read"))?;
    }
    if parts.is_empty() {
        return other("exists and is not a store".into());
    }
    if let Some(name) = foreign {
        return other(format!("holds {name:?}, which is no part of a tensor"));
    }
    for part in &parts {
        let name = part.file_name().unwrap_or_default();
        if !holds_manifest(part)? {
            return other(format!("holds {}, which is not a store", name.display()));
        }
        if let Found::Other(what) = look(sys, part)? {
            return Ok(Found::Other(format!("its {} {what}", name.display())));
        }
    }
    Ok(Found::Made)
}

/// A store being written, in `STORE.partial/store`, or the stores of a tensor's parts in directories there. The packer may keep its own files
/// beside it. Dropping it removes `STORE.partial` and everything inside.
#[derive(Debug)]
pub struct Staging {
    sys: Sys,
    partial: Partial,
    codec: Codec,
    /// At least one; chunks are added to the last.
    stores: Vec<Staged>,
}

/// A store being written.
#[derive(Debug, Default)]
struct Staged {
    /// The directory in `STORE.partial/store`, for a part.
    dir: Option<String>,
    headers: Vec<ChunkHeader>,
    entries: Vec<ChunkEntry>,
    /// The partition being written, and its first chunk.
    partition: u32,
    begun: usize,
}

/// What was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The store id, or the digest of a divided tensor.
    pub id: u64,
    /// Bytes of manifests and chunks.
    pub bytes: u64,
}

impl Staging {
    /// Prepares to write a store at `target`, or at the target of that symbolic link. An existing store there is an
    /// error unless `replace` is set; anything else there is always an error. Removes what a killed packer left under
    /// the temporary name; with `resume`, removes only its chunks.
    pub fn create(sys: &Sys, target: &Path, replace: bool, resume: bool, codec: Codec) -> Result<Self> {
        if directory(&behind_links(target)?).join(MANIFEST).is_file() {
            let what = "would lie inside another store; name another output";
            return Err(Error::request(format!("{}: {what}", target.display())));
        }
        let partial = Partial::create(sys, &STORE, target, replace, resume)?;
        partial.create_dir()?;
        Ok(Self { sys: sys.clone(), partial, codec, stores: vec![Staged::default()] })
    }

    /// Starts the store of part `number`, from 0, of `parts`. Chunks written from now on are its own.
    pub fn begin_part(&mut self, number: u32, parts: u32) -> Result<()> {
        let dir = part_name(number, parts);
        self.sys.create_dir(&self.partial.new_one().join(&dir))?;
        // Before the first part, nothing has been written.
        self.stores.retain(|store| store.dir.is_some());
        self.stores.push(Staged { dir: Some(dir), ..Staged::default() });
        Ok(())
    }

    /// The parts begun so far.
    #[must_use]
    pub fn parts(&self) -> u32 {
        let parts = self.stores.iter().filter(|store| store.dir.is_some()).count();
        u32::try_from(parts).unwrap_or(u32::MAX)
    }

    fn last(&self) -> &Staged {
        &self.stores[self.stores.len() - 1]
    }

    fn last_mut(&mut self) -> &mut Staged {
        let last = self.stores.len() - 1;
        &mut self.stores[last]
    }

    /// Removes the temporary files that a killed packer left while writing the store at `target`, which is
    /// published.
    pub fn clean_up(sys: &Sys, target: &Path) -> Result<()> {
        Partial::clean_up(sys, &STORE, target)
    }

    /// Starts the next partition. A partition that gets no chunks is omitted.
    pub fn begin_partition(&mut self) {
        let store = self.last_mut();
        store.partition += u32::from(store.entries.len() > store.begun);
        store.begun = store.entries.len();
    }

    /// The chunks written so far in the current partition.
    #[must_use]
    pub fn of_partition(&self) -> &[ChunkEntry] {
        &self.last().entries[self.last().begun..]
    }

    /// Writes the next chunks, in parallel.
    pub fn add(&mut self, mut chunks: Vec<BuiltChunk>) -> Result<()> {
        let mut first_nonzero = self.of_partition().last().map_or(0, |e| e.first_nonzero + e.nnz);
        let (store, written) = (self.last(), self.last().headers.len());
        for (chunk, number) in chunks.iter_mut().zip(written..) {
            chunk.header.number = u32::try_from(number)
                .map_err(|_| Error::request("more than 2^32 chunks; use a larger `chunk_bytes`"))?;
            chunk.header.partition = store.partition;
            chunk.header.first_nonzero = first_nonzero;
            first_nonzero += u64::from(chunk.header.nnz);
        }
        let written = chunks.into_par_iter().map(|chunk| self.write(chunk));
        let written: Vec<(ChunkHeader, ChunkEntry)> = written.collect::<Result<_>>()?;
        let store = self.last_mut();
        for (header, entry) in written {
            store.headers.push(header);
            store.entries.push(entry);
        }
        Ok(())
    }

    /// Writes one numbered chunk.
    fn write(&self, chunk: BuiltChunk) -> Result<(ChunkHeader, ChunkEntry)> {
        let BuiltChunk { mut header, mut image, ranges } = chunk;
        let mut entry = ChunkEntry::of(&ranges);
        header.codec = self.codec.code();
        let start = header.header_bytes();
        entry.image_bytes = image.len() as u64;
        if let Codec::Zstd(level) = self.codec {
            let payload = zstd::bulk::compress(&image[start..], level)
                .map_err(|source| Error::Resource { action: "compress a chunk", source })?;
            image.truncate(start);
            image.extend_from_slice(&payload);
        }
        header.stored_bytes = u32::try_from(image.len() - start)
            .map_err(|_| Error::request("a chunk exceeds 4 GiB; use a smaller `chunk_bytes`"))?;
        header.payload_checksum = xxh3_64(&image[start..]);
        entry.first_nonzero = header.first_nonzero;
        entry.nnz = header.nnz.into();
        entry.file_bytes = header.file_bytes();
        entry.payload_checksum = header.payload_checksum;
        entry.value_encoding = Some(header.codes.value_encoding);
        image.resize(image.len().next_multiple_of(crate::sys::PAGE), 0);
        let file = self.sys.create(&self.file(self.last(), &chunk_name(header.number as usize)))?;
        file.write_all_at(&image, 0)?;
        Ok((header, entry))
    }

    /// The temporary directory, where the packer may keep `journal` and directories for temporary files.
    #[must_use]
    pub fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// The chunks so far, as the manifest lists them; of the last part if there are parts.
    #[must_use]
    pub fn entries(&self) -> &[ChunkEntry] {
        &self.last().entries
    }

    /// The directory in which a store is written.
    fn dir_of(&self, store: &Staged) -> PathBuf {
        let new = self.partial.new_one();
        store.dir.as_ref().map_or_else(|| new.clone(), |dir| new.join(dir))
    }

    /// The current path of a store's file `name`.
    fn file(&self, store: &Staged, name: &str) -> PathBuf {
        self.dir_of(store).join(name)
    }

    /// Stamps the chunks with the store id, syncs everything, and renames the store, or the directory of all parts, to its name. There is
    /// a manifest for each part, in order. Other files in the temporary directory stay until this is dropped. `job`, computed from the
    /// store id, is recorded for [`crate::publish::finished`].
    pub fn publish<J: Serialize>(
        &self,
        manifests: &[Manifest],
        provenance: &[u8],
        labels: Option<&NewLabels>,
        job: impl FnOnce(u64) -> J,
    ) -> Result<Published> {
        assert_eq!(manifests.len(), self.stores.len(), "each store has a manifest");
        let stores = self.stores.iter().zip(manifests);
        let finished = stores
            .map(|(store, manifest)| self.finish(store, manifest, provenance, labels))
            .collect::<Result<Vec<Published>>>()?;
        let id = digest_of(&finished.iter().map(|store| store.id).collect::<Vec<u64>>());
        self.partial.prepare(&job(id))?;
        self.partial.publish()?;
        Ok(Published { id, bytes: finished.iter().map(|store| store.bytes).sum() })
    }

    /// Stamps the chunks of a store, writes its other files, and syncs all of them.
    fn finish(
        &self,
        store: &Staged,
        manifest: &Manifest,
        provenance: &[u8],
        labels: Option<&NewLabels>,
    ) -> Result<Published> {
        let (bytes, id) = manifest.encode();
        store.headers.par_iter().enumerate().try_for_each(|(number, header)| {
            self.sys.check_cancelled()?;
            let mut header = header.clone();
            header.store_id = id;
            let file = self.sys.open_existing(&self.file(store, &chunk_name(number)))?;
            file.write_all_at(&header.encode(), 0)?;
            file.sync()
        })?;
        for mode in 0..labels.map_or(0, |labels| labels.files.len()) {
            if let Some(labels) = labels.filter(|labels| labels.files[mode].is_some()) {
                let file = self.sys.create(&self.file(store, &labels::file_name(mode)))?;
                labels.copy(mode, &file)?;
                file.sync()?;
            }
        }
        for (name, contents) in [(MANIFEST, &bytes[..]), (PROVENANCE, provenance)] {
            let file = self.sys.create(&self.file(store, name))?;
            file.write_all_at(contents, 0)?;
            file.sync()?;
        }
        if store.dir.is_some() {
            self.sys.sync_dir(&self.dir_of(store))?;
        }
        let chunk_bytes: u64 = store.entries.iter().map(|e| e.file_bytes).sum();
        Ok(Published { id, bytes: bytes.len() as u64 + chunk_bytes + manifest.label_bytes() })
    }
}

/// For zstd's levels from 1 up (lib/compress/clevels.h, release 1.5): the base-2 logarithms of the window size and of
/// the number of 4-byte entries in each of its two tables. A test compares them with what zstd uses.
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
    /// Bytes of memory needed to compress an image of at most `chunk_bytes`: zstd's tables, which are no larger than
    /// its input, the rest of its state, and the output.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with zstd's own count of its state.
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
