//! What the caller of the packer chooses.

use crate::encoding::{IndexEncoding, LeafRule};
use crate::error::{Error, Result};
use crate::format;
use crate::shape::ModeOrder;
use crate::store::labels::NewLabels;
use crate::store::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Codec, Format, Formats};
use bytesize::ByteSize;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// What to do with nonzeros that have the same coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Duplicates {
    /// Add them up, in the total order of their values, starting from the first.
    Sum,
    /// The mean of their values.
    Mean,
    /// The least of their values.
    Min,
    /// The greatest of their values.
    Max,
    /// How many there are, whatever their values.
    Count,
    /// Keep each.
    Keep,
    /// Refuse the input.
    Error,
}

impl Duplicates {
    /// All of them, by the names that command lines have.
    pub const ALL: [(&str, Self); 7] = [
        ("sum", Self::Sum),
        ("mean", Self::Mean),
        ("min", Self::Min),
        ("max", Self::Max),
        ("count", Self::Count),
        ("keep", Self::Keep),
        ("error", Self::Error),
    ];

    /// Its name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

/// A format, or what can be said of it before the tensor's order is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatOption {
    /// All of it.
    Known(Format),
    /// HOCFS with the slices of `main_mode`, from 0; the mode before it is the leaves'.
    Hocfs {
        /// The main mode.
        main_mode: usize,
        /// How leaves are laid out.
        leaf: LeafRule,
    },
}

impl FormatOption {
    /// The format for tensors of `order`.
    pub fn resolve(&self, order: usize) -> Result<Format> {
        match self {
            Self::Known(format) => match format.record().levels.map(|levels| levels.modes().len()) {
                Some(levels) if levels != order => {
                    Err(Error::request(format!("{levels} levels for a tensor of order {order}")))
                }
                _ => Ok(format.clone()),
            },
            Self::Hocfs { main_mode, leaf } if *main_mode < order => {
                Ok(Format::hocfs(ModeOrder::rotated(order, *main_mode), *leaf))
            }
            Self::Hocfs { main_mode, .. } => {
                Err(Error::request(format!("main mode {}: the tensor has modes 1 to {order}", main_mode + 1)))
            }
        }
    }

    /// Bytes that an open chunk takes while it grows.
    pub(super) fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        match self {
            Self::Known(format) => format.open_chunk_bytes(chunk_bytes),
            Self::Hocfs { .. } => format::hocfs::open_chunk_bytes(chunk_bytes),
        }
    }
}

/// What a chunk's image takes at most unless it is said, bytes.
pub const CHUNK_BYTES: u64 = 8 << 20;

/// What to write and where.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The store's directory.
    pub target: PathBuf,
    /// Replace a store that is there, and discard an unfinished one.
    pub replace: bool,
    /// Continue with what a killed job has left, if there is anything.
    pub resume: bool,
    /// What chunks are to hold.
    pub format: FormatOption,
    /// How payloads are stored.
    pub codec: Codec,
    /// The bound on a chunk's image, bytes, from 64 KiB to 1 GiB.
    pub chunk_bytes: u64,
    /// What to do with duplicates.
    pub duplicates: Duplicates,
    /// Bytes of memory to take, whatever the tensor's size; `u64::MAX`, the default, for what the engine may. Less than 64 MiB is
    /// exceeded, but spills small tensors, for tests. Does not change the store.
    pub memory: u64,
    /// The directory where temporary files go; beside the store without it.
    pub temp_dir: Option<PathBuf>,
    /// The contents of `provenance.json`.
    pub provenance: String,
    /// Names, kinds and labels of the modes.
    pub labels: Option<Arc<NewLabels>>,
    /// The formats that a store which is there may be of: the engine's.
    #[doc(hidden)]
    pub formats: Formats,
}

impl PackOptions {
    /// The defaults for a store at `target`: tiled, no codec, chunks of 8 MiB, duplicates summed.
    #[must_use]
    pub fn new(target: PathBuf) -> Self {
        Self {
            target,
            replace: false,
            resume: false,
            format: FormatOption::Known(Format::blco(IndexEncoding::Tiled)),
            codec: Codec::None,
            chunk_bytes: CHUNK_BYTES,
            duplicates: Duplicates::Sum,
            memory: u64::MAX,
            temp_dir: None,
            provenance: "{}\n".into(),
            labels: None,
            formats: Formats::default(),
        }
    }

    /// An error where no store can be so.
    pub(crate) fn check(&self) -> Result<()> {
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes) {
            let [given, least, most] = [self.chunk_bytes, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX].map(ByteSize);
            return Err(Error::request(format!("`chunk_bytes` {given}: give {least} to {most}")));
        }
        if let Some(dir) = self.temp_dir.as_deref().filter(|dir| !dir.is_dir()) {
            let what = "is no directory; make it, or name another";
            return Err(Error::request(format!("`temp_dir` {}: {what}", dir.display())));
        }
        match self.codec {
            Codec::Zstd(level) if !(1..=22).contains(&level) => {
                Err(Error::request(format!("zstd level {level}: give 1 to 22")))
            }
            _ => Ok(()),
        }
    }

    /// The options that decide the store's bytes, as a command line has them.
    pub(super) fn decisive(&self) -> String {
        let format = match &self.format {
            FormatOption::Known(format) => format.options(),
            FormatOption::Hocfs { main_mode, leaf } => {
                format!("--format hocfs --main-mode {} --slice {}", main_mode + 1, leaf.name())
            }
        };
        let codec = match self.codec {
            Codec::None => String::new(),
            Codec::Zstd(level) => format!(" --zstd {level}"),
        };
        let duplicates = self.duplicates.name();
        format!("{format}{codec} --chunk-bytes {} --duplicates {duplicates}", self.chunk_bytes)
    }
}
