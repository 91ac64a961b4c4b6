//! Publication: chunks and manifest are written and synced in `STORE.partial/store`, which is then renamed to the
//! store's name.

use super::labels::{self, NewLabels};
use super::manifest::{ChunkEntry, Codec, Manifest};
use super::{MANIFEST, PROVENANCE, chunk_name, holds_manifest, is_part};
use crate::chunk::ChunkHeader;
use crate::error::{Error, Result};
use crate::format::BuiltChunk;
use crate::publish::{Found, Kind, Partial, first_foreign};
use crate::sys::{SPILL_PREFIX, Sys, behind_links, directory};
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

fn look(_: &Sys, path: &Path) -> Result<Found> {
    if !holds_manifest(path)? {
        return Ok(Found::Other("exists and is not a store; name another output".into()));
    }
    let foreign = first_foreign(path, |name| name.to_str().is_some_and(is_part))?;
    Ok(foreign.map_or(Found::Made, |name| {
        Found::Other(format!(
            "holds {name:?}, which is no part of a store; move that, or name another output"
        ))
    }))
}

/// A store being written, in `STORE.partial/store`. The packer may keep its own files beside it. Dropping it removes
/// `STORE.partial` and everything inside.
#[derive(Debug)]
pub struct Staging {
    sys: Sys,
    partial: Partial,
    codec: Codec,
    headers: Vec<ChunkHeader>,
    entries: Vec<ChunkEntry>,
    /// The partition being written, and its first chunk.
    partition: u32,
    begun: usize,
}

/// What was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The store id.
    pub id: u64,
    /// Bytes of manifest and chunks.
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
        let (headers, entries) = (Vec::new(), Vec::new());
        Ok(Self { sys: sys.clone(), partial, codec, headers, entries, partition: 0, begun: 0 })
    }

    /// Removes the temporary files that a killed packer left while writing the store at `target`, which is
    /// published.
    pub fn clean_up(sys: &Sys, target: &Path) -> Result<()> {
        Partial::clean_up(sys, &STORE, target)
    }

    /// Starts the next partition. A partition that gets no chunks is omitted.
    pub fn begin_partition(&mut self) {
        self.partition += u32::from(self.entries.len() > self.begun);
        self.begun = self.entries.len();
    }

    /// The chunks written so far in the current partition.
    #[must_use]
    pub fn of_partition(&self) -> &[ChunkEntry] {
        &self.entries[self.begun..]
    }

    /// Writes the next chunks, in parallel.
    pub fn add(&mut self, mut chunks: Vec<BuiltChunk>) -> Result<()> {
        let mut first_nonzero = self.of_partition().last().map_or(0, |e| e.first_nonzero + e.nnz);
        for (chunk, number) in chunks.iter_mut().zip(self.headers.len()..) {
            chunk.header.number = u32::try_from(number)
                .map_err(|_| Error::request("more than 2^32 chunks; use a larger `chunk_bytes`"))?;
            chunk.header.partition = self.partition;
            chunk.header.first_nonzero = first_nonzero;
            first_nonzero += u64::from(chunk.header.nnz);
        }
        let written = chunks.into_par_iter().map(|chunk| self.write(chunk));
        let written: Vec<(ChunkHeader, ChunkEntry)> = written.collect::<Result<_>>()?;
        for (header, entry) in written {
            self.headers.push(header);
            self.entries.push(entry);
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
        let file = self.sys.create(&self.file(&chunk_name(header.number as usize)))?;
        file.write_all_at(&image, 0)?;
        Ok((header, entry))
    }

    /// The temporary directory, where the packer may keep `journal` and directories for temporary files.
    #[must_use]
    pub fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// The chunks so far, as the manifest lists them.
    #[must_use]
    pub fn entries(&self) -> &[ChunkEntry] {
        &self.entries
    }

    /// The current path of the store's file `name`.
    fn file(&self, name: &str) -> PathBuf {
        self.partial.new_one().join(name)
    }

    /// Stamps the chunks with the store id, syncs everything, and renames the store to its name. Other files in
    /// the temporary directory stay until this is dropped. `job`, computed from the store id, is recorded for
    /// [`crate::publish::finished`].
    pub fn publish<J: Serialize>(
        &mut self,
        manifest: &Manifest,
        provenance: &[u8],
        labels: Option<&NewLabels>,
        job: impl FnOnce(u64) -> J,
    ) -> Result<Published> {
        let (bytes, id) = manifest.encode();
        let headers = std::mem::take(&mut self.headers);
        headers.into_par_iter().enumerate().try_for_each(|(number, mut header)| {
            self.sys.check_cancelled()?;
            header.store_id = id;
            let file = self.sys.open_existing(&self.file(&chunk_name(number)))?;
            file.write_all_at(&header.encode(), 0)?;
            file.sync()
        })?;
        for mode in 0..labels.map_or(0, |labels| labels.files.len()) {
            if let Some(labels) = labels.filter(|labels| labels.files[mode].is_some()) {
                let file = self.sys.create(&self.file(&labels::file_name(mode)))?;
                labels.copy(mode, &file)?;
                file.sync()?;
            }
        }
        for (name, contents) in [(MANIFEST, &bytes[..]), (PROVENANCE, provenance)] {
            let file = self.sys.create(&self.file(name))?;
            file.write_all_at(contents, 0)?;
            file.sync()?;
        }
        self.partial.prepare(&job(id))?;
        self.partial.publish()?;
        let chunk_bytes: u64 = self.entries.iter().map(|e| e.file_bytes).sum();
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
