//! The options of the packer.

use crate::encoding::{IndexEncoding, LeafRule};
use crate::error::{Error, Result};
use crate::format::fcoo::{self, FcooFor};
use crate::format::mmcsf::{self, Assign};
use crate::format::{self, PartitionRecord, Scheme, Trees, all_modes, bcsf, csf, hbcsf};
use crate::shape::{ModeOrder, Shape};
use crate::store::labels::NewLabels;
use crate::store::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Codec, Format, Formats, Manifest, PARTS_MAX, PartOf};
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

/// A format, or what can be said of it before the tensor's shape is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatOption {
    /// All of it: one partition.
    Known(Format),
    /// HOCFS with the slices of `main_mode`, from 0; the mode before it is the leaves'.
    Hocfs {
        /// The main mode.
        main_mode: usize,
        /// How leaves are laid out.
        leaf: LeafRule,
    },
    /// CSF.
    Csf {
        /// Which trees there are.
        trees: Trees,
    },
    /// B-CSF.
    Bcsf {
        /// Which trees there are.
        trees: Trees,
        /// The most leaves of a fiber that a worker takes, at least 1.
        fiber_split: u32,
    },
    /// HB-CSF.
    Hbcsf {
        /// Which main modes there are.
        trees: Trees,
        /// The most leaves of a fiber that a worker takes, at least 1.
        fiber_split: u32,
    },
    /// MM-CSF.
    Mmcsf {
        /// How nonzeros are assigned to trees.
        assign: Assign,
    },
    /// F-COO.
    Fcoo {
        /// For which operation.
        operation: FcooFor,
        /// For which modes there is a partition.
        trees: Trees,
        /// Nonzeros of a thread, which share a start flag, at most 65,536; 0 stands for 8.
        thread_nnz: u32,
    },
    /// The partitions of a store that is there.
    #[doc(hidden)]
    Partitions(Scheme),
}

impl FormatOption {
    /// The formats that are compared with each other, by name.
    pub(crate) const COMPARED: [&str; 8] =
        ["blco", "hocfs", "csf", "csf-one", "bcsf", "hbcsf", "mmcsf", "fcoo"];

    /// What one of [`FormatOption::COMPARED`] is, with the options that it has by default.
    #[must_use]
    pub(crate) fn compared(name: &str) -> Self {
        let (trees, fiber_split) = (Trees::All, bcsf::FIBER_SPLIT);
        match name {
            "hocfs" => Self::Hocfs { main_mode: 0, leaf: LeafRule::Auto },
            "csf" => Self::Csf { trees },
            "csf-one" => Self::Csf { trees: Trees::One },
            "bcsf" => Self::Bcsf { trees, fiber_split },
            "hbcsf" => Self::Hbcsf { trees, fiber_split },
            "mmcsf" => Self::Mmcsf { assign: Assign::Either },
            "fcoo" => Self::Fcoo { operation: FcooFor::Mttkrp, trees, thread_nnz: 0 },
            _ => Self::Known(Format::blco(IndexEncoding::Tiled)),
        }
    }

    /// The format that a store has.
    #[must_use]
    pub(crate) fn of_store(manifest: &Manifest) -> Self {
        Self::recorded(&manifest.records(), manifest.shape.order())
    }

    fn recorded(records: &[PartitionRecord], order: usize) -> Self {
        let scheme = Scheme::recorded(records);
        let format = scheme.format();
        if scheme.assigns() {
            // Any leaf mode may get some; how they were assigned no store says.
            Self::Mmcsf { assign: Assign::Either }
        } else if scheme == Scheme::whole(format.clone(), order) {
            Self::Known(format.clone())
        } else {
            Self::Partitions(scheme)
        }
    }

    /// The format that a store has whose manifest is lost, by what chunks tell of its partitions, at least one.
    #[must_use]
    pub(crate) fn of_partitions(mut formats: Vec<(u32, &Format)>, order: usize) -> Self {
        formats.sort_by_key(|(number, _)| *number);
        formats.dedup_by_key(|(number, _)| *number);
        let mut keys: Vec<u32> = Vec::new();
        let mut record = |format: &Format| {
            let key = format.cover_key();
            let cover = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            });
            PartitionRecord { format: format.clone(), targets: 0, covers: 1 << cover }
        };
        let mut records: Vec<PartitionRecord> =
            formats.into_iter().map(|(_, format)| record(format)).collect();
        let covers = keys.len();
        for record in &mut records {
            record.targets = if covers == 1 { all_modes(order) } else { record.format.target_alone() };
        }
        Self::recorded(&records, order)
    }

    /// An error where no tensor of `order` can be so.
    pub fn check_order(&self, order: usize) -> Result<()> {
        let refused = match self {
            Self::Known(format) => return check_levels(format, order),
            Self::Partitions(scheme) => return check_levels(scheme.format(), order),
            Self::Hocfs { main_mode, .. } => (*main_mode >= order)
                .then(|| format!("main mode {}: the tensor has modes 1 to {order}", main_mode + 1)),
            Self::Csf { trees } | Self::Bcsf { trees, .. } | Self::Hbcsf { trees, .. } => {
                trees.refusal(order)
            }
            Self::Fcoo { trees, thread_nnz, .. } => {
                trees.refusal(order).or((*thread_nnz > fcoo::THREAD_NNZ_MAX)
                    .then(|| format!("`thread_nnz` {thread_nnz}: at most {}", fcoo::THREAD_NNZ_MAX)))
            }
            Self::Mmcsf { .. } => None,
        };
        refused.map_or(Ok(()), |what| Err(Error::request(what)))
    }

    /// The partitions of tensors of `shape`.
    pub fn resolve(&self, shape: &Shape) -> Result<Scheme> {
        let order = shape.order();
        self.check_order(order)?;
        Ok(match self {
            Self::Known(format) => Scheme::whole(format.clone(), order),
            Self::Partitions(scheme) => scheme.clone(),
            Self::Hocfs { main_mode, leaf } => {
                Scheme::whole(Format::hocfs(ModeOrder::rotated(order, *main_mode), *leaf), order)
            }
            Self::Csf { trees } => csf::scheme(shape, *trees),
            Self::Bcsf { trees, fiber_split } => bcsf::scheme(shape, *trees, *fiber_split),
            Self::Hbcsf { trees, fiber_split } => hbcsf::scheme(shape, *trees, *fiber_split),
            Self::Mmcsf { .. } => mmcsf::scheme(shape),
            Self::Fcoo { operation, trees, thread_nnz } => {
                fcoo::scheme(shape, *operation, *trees, *thread_nnz)
            }
        })
    }

    /// Bytes that an open chunk takes while it grows.
    pub(super) fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        match self {
            Self::Known(format) => format.open_chunk_bytes(chunk_bytes),
            Self::Partitions(scheme) => {
                let each = scheme.partitions.iter().map(|plan| plan.format.open_chunk_bytes(chunk_bytes));
                each.max().unwrap_or(0)
            }
            Self::Fcoo { .. } => fcoo::open_chunk_bytes(chunk_bytes),
            _ => format::tree::open_chunk_bytes(chunk_bytes),
        }
    }

    /// How nonzeros are assigned to partitions.
    pub(super) fn assign(&self) -> Assign {
        if let Self::Mmcsf { assign } = self { *assign } else { Assign::Dynamic }
    }

    /// How often the store of a tensor of `order` holds every nonzero.
    pub(super) fn copies(&self, order: usize) -> u64 {
        match self {
            Self::Csf { trees: Trees::All }
            | Self::Bcsf { trees: Trees::All, .. }
            | Self::Hbcsf { trees: Trees::All, .. }
            | Self::Fcoo { trees: Trees::All, .. } => order as u64,
            Self::Partitions(scheme) => {
                let covers = scheme.partitions.iter().fold(0u32, |covers, plan| covers | plan.covers);
                covers.count_ones().into()
            }
            _ => 1,
        }
    }

    /// Whether nonzeros are sorted more than once.
    pub(super) fn sorts_again(&self) -> bool {
        match self {
            Self::Known(_) | Self::Hocfs { .. } => false,
            Self::Csf { trees }
            | Self::Bcsf { trees, .. }
            | Self::Hbcsf { trees, .. }
            | Self::Fcoo { trees, .. } => *trees == Trees::All,
            Self::Mmcsf { .. } => true,
            Self::Partitions(scheme) => scheme.partitions.len() > 1,
        }
    }

    /// As a command line has it.
    fn text(&self) -> String {
        match self {
            Self::Known(format) => format.options(),
            Self::Hocfs { main_mode, leaf } => {
                format!("--format hocfs --main-mode {} --slice {}", main_mode + 1, leaf.name())
            }
            Self::Csf { trees } => format!("--format csf --trees {}", trees.name()),
            Self::Bcsf { trees, fiber_split } => {
                format!("--format bcsf --trees {} --fiber-split {fiber_split}", trees.name())
            }
            Self::Hbcsf { trees, fiber_split } => {
                format!("--format hbcsf --trees {} --fiber-split {fiber_split}", trees.name())
            }
            Self::Mmcsf { assign } => {
                let assign = assign.name().map_or_else(String::new, |name| format!(" --assign {name}"));
                format!("--format mmcsf{assign}")
            }
            Self::Fcoo { operation, trees, thread_nnz } => {
                let operation = if *operation == FcooFor::Ttm { "ttm" } else { "mttkrp" };
                let trees = trees.name();
                format!("--format fcoo --for {operation} --trees {trees} --thread-nnz {thread_nnz}")
            }
            Self::Partitions(scheme) => {
                let each = scheme.partitions.iter().map(|plan| plan.format.options());
                each.collect::<Vec<_>>().join(" + ")
            }
        }
    }
}

/// An error where a format's levels are not those of a tensor of `order`.
fn check_levels(format: &Format, order: usize) -> Result<()> {
    match format.record().levels.map(|levels| levels.modes().len()) {
        Some(levels) if levels != order => {
            Err(Error::request(format!("{levels} levels for a tensor of order {order}")))
        }
        _ => Ok(()),
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
    /// The number of parts that the tensor is divided into, of about the same number of nonzeros: each is a store in the target's
    /// directory. 1, the default, makes one store. More take a format of one partition; at most 4096.
    pub parts: u32,
    /// Bytes of memory to take, whatever the tensor's size; `u64::MAX`, the default, for what the engine may. Less than 64 MiB is
    /// exceeded, but spills small tensors, for tests. Does not change the store.
    pub memory: u64,
    /// The directory where temporary files go; beside the store without it.
    pub temp_dir: Option<PathBuf>,
    /// The contents of `provenance.json`.
    pub provenance: String,
    /// Which part of a tensor the store is, for one that is repaired.
    #[doc(hidden)]
    pub part: Option<PartOf>,
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
            parts: 1,
            memory: u64::MAX,
            temp_dir: None,
            provenance: "{}\n".into(),
            part: None,
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
        if !(1..=PARTS_MAX).contains(&self.parts) {
            return Err(Error::request(format!("`parts` {}: give 1 to {PARTS_MAX}", self.parts)));
        }
        if let Some(dir) = self.temp_dir.as_deref().filter(|dir| !dir.is_dir()) {
            let what = "is not a directory; create it, or name another";
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
        let format = self.format.text();
        let codec = match self.codec {
            Codec::None => String::new(),
            Codec::Zstd(level) => format!(" --zstd {level}"),
        };
        let duplicates = self.duplicates.name();
        let parts = if self.parts > 1 { format!(" --split {}", self.parts) } else { String::new() };
        format!("{format}{codec} --chunk-bytes {} --duplicates {duplicates}{parts}", self.chunk_bytes)
    }
}
