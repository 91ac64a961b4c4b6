//! Holds a table's rows and labels until all of it has been read: extents of bytes with checksums, in memory as far as
//! they fit, then in one temporary file.

use crate::error::{Error, Result};
use crate::sys::{File, SpillDir, SpillOwner, Sys, spill_name};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Where extents are kept.
#[derive(Debug)]
pub struct Scratch {
    sys: Sys,
    parent: PathBuf,
    made: Mutex<Option<(Arc<SpillDir>, Arc<File>)>>,
    /// Where the file ends.
    end: AtomicU64,
    /// Bytes that are kept in memory.
    kept: AtomicU64,
    /// Bytes that may still be kept in memory.
    room: AtomicU64,
}

/// Some bytes.
#[derive(Debug)]
pub enum Extent {
    /// In memory.
    Kept(Vec<u8>),
    /// In the file.
    Filed {
        /// Where.
        at: u64,
        /// How many.
        bytes: usize,
        /// Their checksum.
        checksum: u64,
    },
}

impl Scratch {
    /// Keeps `room` bytes in memory, and more in a directory that is made in `parent` when it is needed.
    pub fn new(sys: &Sys, parent: &Path, room: u64) -> Self {
        Self {
            sys: sys.clone(),
            parent: parent.to_path_buf(),
            made: Mutex::new(None),
            end: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            room: AtomicU64::new(room),
        }
    }

    /// The directory and its file, created if they do not exist yet.
    fn made(&self) -> Result<(Arc<SpillDir>, Arc<File>)> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*made {
            return Ok(made.clone());
        }
        self.sys.remove_abandoned_spill_dirs(&self.parent, |_, dir| dir.owner().resumed_from.is_some());
        let dir = self.sys.make_spill_dir(&self.parent.join(spill_name()), &SpillOwner::new(None))?;
        let file = dir.create("table")?;
        Ok(made.insert((Arc::new(dir), Arc::new(file))).clone())
    }

    /// A new file of its own, and the directory that must be kept as long as it.
    pub fn create(&self, name: &str) -> Result<(Arc<SpillDir>, File)> {
        let (dir, _) = self.made()?;
        let file = dir.create(name)?;
        Ok((dir, file))
    }

    /// Bytes in memory.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Keeps `bytes`.
    pub fn put(&self, bytes: &[u8]) -> Result<Extent> {
        let length = bytes.len() as u64;
        let take = |room: u64| room.checked_sub(length);
        if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            self.kept.fetch_add(length, Ordering::Relaxed);
            return Ok(Extent::Kept(bytes.to_vec()));
        }
        let (_, file) = self.made()?;
        let at = self.end.fetch_add(length, Ordering::Relaxed);
        file.write_all_at(bytes, at)?;
        Ok(Extent::Filed { at, bytes: bytes.len(), checksum: xxh3_64(bytes) })
    }

    /// Reads `extent` into `buffer`.
    pub fn read(&self, extent: &Extent, buffer: &mut Vec<u8>) -> Result<()> {
        match extent {
            Extent::Kept(bytes) => bytes.clone_into(buffer),
            Extent::Filed { at, bytes, checksum } => {
                let (_, file) = self.made()?;
                buffer.resize(*bytes, 0);
                if file.read_at(buffer, *at)? != *bytes || xxh3_64(buffer) != *checksum {
                    let what = format!("corrupt: checksum at byte {at}; check the disk, and pack again");
                    return Err(Error::unusable(file.path(), what));
                }
            }
        }
        Ok(())
    }
}

/// Bytes that are written one after the other, and read so again.
#[derive(Debug, Default)]
pub struct Spool {
    open: Vec<u8>,
    closed: Vec<Extent>,
}

/// Bytes of a spool's extents: what each that is written or read holds in memory.
pub const SPOOL_BYTES: usize = 32 << 10;

impl Spool {
    /// Adds what `append` appends, whole in one extent.
    pub fn push(&mut self, scratch: &Scratch, append: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        append(&mut self.open);
        if self.open.len() >= SPOOL_BYTES { self.close(scratch) } else { Ok(()) }
    }

    /// Writes what waits.
    pub fn close(&mut self, scratch: &Scratch) -> Result<()> {
        if !self.open.is_empty() {
            self.closed.push(scratch.put(&self.open)?);
            self.open.clear();
        }
        Ok(())
    }

    /// No more comes.
    pub fn finish(&mut self, scratch: &Scratch) -> Result<()> {
        self.close(scratch)?;
        self.open = Vec::new();
        Ok(())
    }

    /// The extents.
    pub fn extents(&self) -> &[Extent] {
        &self.closed
    }
}
