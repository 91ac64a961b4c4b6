//! What a partition's chunks hold: the format, with what it was told, as manifests record it (formats-spec/container.md).

use super::chunk::ChunkCodes;
use super::version::Version;
use crate::encoding::values::ValueEncoding;
use crate::encoding::{IndexEncoding, LeafRule};
use crate::linear::BitLayout;
use crate::shape::{ModeOrder, ORDER_MAX, Shape};

/// The layout's code of chunks that hold trees.
pub const TREE_CODE: u8 = 3;
/// Codes of formats.
const BLCO_CODE: u32 = 1;
const HOCFS_CODE: u32 = 2;

/// A format. Which order nonzeros are in, and how a chunk's sections are to be read, follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Blocked linearized coordinates, the modes' bits interleaved (formats-spec/blco.md).
    Blco(IndexEncoding),
    /// A compressed tree, slices of the main mode first (formats-spec/hocfs.md).
    Hocfs {
        /// The mode of each level, the main mode first.
        levels: ModeOrder,
        /// How leaves are laid out.
        leaf: LeafRule,
    },
}

/// What a manifest says of a partition's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionCodes {
    pub format: u32,
    pub layout: u32,
    /// The mode of each level, 255 beyond the last; all 255 where the order is interleaved.
    pub levels: [u8; ORDER_MAX],
    pub parameters: Vec<u8>,
}

impl Format {
    /// The layout of the linear index that nonzeros are sorted by.
    #[must_use]
    pub fn bit_layout(&self, shape: &Shape) -> BitLayout {
        match self {
            Self::Blco(_) => BitLayout::new(shape),
            Self::Hocfs { levels, .. } => BitLayout::concatenated(shape, levels),
        }
    }

    /// The name that users see.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Blco(_) => "blco",
            Self::Hocfs { .. } => "hocfs",
        }
    }

    /// How indices are encoded, as users see it.
    #[must_use]
    pub fn encoding_name(&self) -> &'static str {
        match self {
            Self::Blco(IndexEncoding::Raw) => "raw",
            Self::Blco(IndexEncoding::Tiled) => "tiled",
            Self::Hocfs { leaf, .. } => leaf.name(),
        }
    }

    /// The code of the layout in chunks' headers.
    #[must_use]
    pub fn layout_code(&self) -> u8 {
        match self {
            Self::Blco(encoding) => *encoding as u8,
            Self::Hocfs { .. } => TREE_CODE,
        }
    }

    /// Whether chunks hold whole tiles, cut by position in the store.
    #[must_use]
    pub fn cuts_at_tiles(&self) -> bool {
        matches!(self, Self::Blco(_))
    }

    /// Whether stores of a format of this code can be read.
    pub(super) fn is_known(code: u32) -> bool {
        [BLCO_CODE, HOCFS_CODE].contains(&code)
    }

    /// The code that stores hold.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Blco(_) => BLCO_CODE,
            Self::Hocfs { .. } => HOCFS_CODE,
        }
    }

    /// Whether its chunks may have the value encoding of this code.
    pub(super) fn has_value_encoding(&self, code: u8) -> bool {
        match self {
            Self::Blco(IndexEncoding::Raw) => code == ValueEncoding::F64 as u8,
            _ => ValueEncoding::from_code(code).is_some(),
        }
    }

    /// What chunks' headers say of it.
    #[must_use]
    pub fn chunk_codes(&self, version: Version, value_encoding: u8) -> ChunkCodes {
        let format = if version == Version::One { 0 } else { self.code() };
        ChunkCodes { format, layout: self.layout_code(), value_encoding }
    }

    pub(super) fn codes(&self) -> PartitionCodes {
        let (levels, parameters) = match self {
            Self::Blco(_) => ([u8::MAX; ORDER_MAX], Vec::new()),
            Self::Hocfs { levels, leaf } => {
                let level = |l: usize| levels.modes().get(l).copied().unwrap_or(u8::MAX);
                let parameters = u64::from(*leaf as u32).to_le_bytes();
                (std::array::from_fn(level), parameters.to_vec())
            }
        };
        PartitionCodes { format: self.code(), layout: self.layout_code().into(), levels, parameters }
    }

    /// The format of these codes, for tensors of `order`.
    pub(super) fn from_codes(codes: &PartitionCodes, order: usize) -> Result<Self, &'static str> {
        let format = match codes.format {
            BLCO_CODE => Self::Blco(IndexEncoding::from_code(codes.layout).ok_or("unknown layout")?),
            HOCFS_CODE => {
                let parameters =
                    codes.parameters.as_slice().try_into().map_err(|_| "parameters of a partition")?;
                let leaf = u32::try_from(u64::from_le_bytes(parameters)).map_err(|_| "unknown leaf rule")?;
                let within = |level: usize| if level < order { codes.levels[level] } else { 0 };
                Self::tree(leaf, std::array::from_fn(within), order)?
            }
            _ => return Err("unknown format"),
        };
        if format.codes() == *codes {
            Ok(format)
        } else {
            Err("layout, order of modes or parameters of a partition")
        }
    }

    /// The HOCFS format of a leaf rule's code and the modes of levels, as archives and chunks hold them.
    pub fn tree(leaf_rule: u32, levels: [u8; ORDER_MAX], order: usize) -> Result<Self, &'static str> {
        let leaf = LeafRule::from_code(leaf_rule).ok_or("unknown leaf rule")?;
        let modes: Vec<usize> = levels[..order].iter().map(|&mode| mode.into()).collect();
        let known = modes.iter().all(|&mode| mode < order) && levels[order..].iter().all(|&mode| mode == 0);
        let levels = ModeOrder::new(&modes).filter(|_| known).ok_or("modes of levels")?;
        Ok(Self::Hocfs { levels, leaf })
    }
}

/// The mode of each level, 0 beyond the last.
#[must_use]
pub fn level_bytes(levels: &ModeOrder) -> [u8; ORDER_MAX] {
    std::array::from_fn(|level| levels.modes().get(level).copied().unwrap_or(0))
}

/// Whether a chunk's header may hold this code of a layout.
pub(super) fn is_layout_code(code: u8) -> bool {
    code == TREE_CODE || IndexEncoding::from_code(code.into()).is_some()
}
