//! What a store's chunks hold: the format, with what it was told, as manifests record it (formats-spec/container.md).

use crate::encoding::{IndexEncoding, LeafRule};
use crate::linear::{BLOCK_BITS, BitLayout};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};

/// The index encoding code of chunks that hold trees.
pub const TREE_CODE: u8 = 3;

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

/// The fields of an archive that tell formats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Codes {
    pub format: u32,
    pub index_encoding: u32,
    pub block_bits: u32,
    pub leaf_rule: u32,
    /// Byte l is the mode of level l.
    pub level_modes: u64,
}

impl Codes {
    /// The codes of formats.
    pub const KNOWN: [u32; 2] = [1, 2];
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

    /// The code of the index encoding in chunks' headers.
    #[must_use]
    pub fn index_code(&self) -> u8 {
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

    pub(super) fn codes(&self) -> Codes {
        let index_encoding = self.index_code().into();
        match self {
            Self::Blco(_) => {
                Codes { format: 1, index_encoding, block_bits: BLOCK_BITS, leaf_rule: 0, level_modes: 0 }
            }
            Self::Hocfs { levels, leaf } => Codes {
                format: 2,
                index_encoding,
                block_bits: 0,
                leaf_rule: *leaf as u32,
                level_modes: u64::from_le_bytes(level_bytes(levels)),
            },
        }
    }

    /// The format of these codes, for tensors of `order`.
    pub(super) fn from_codes(codes: Codes, order: usize) -> Result<Self, &'static str> {
        let format = match codes.format {
            1 => Self::Blco(IndexEncoding::from_code(codes.index_encoding).ok_or("unknown index encoding")?),
            2 => Self::tree(codes.leaf_rule, codes.level_modes.to_le_bytes(), order)?,
            _ => return Err("unknown format; a newer program may read it"),
        };
        let theirs = format.codes();
        if theirs.index_encoding != codes.index_encoding {
            return Err("unknown index encoding");
        }
        if theirs.block_bits != codes.block_bits {
            return Err("field block bits");
        }
        if theirs != codes {
            return Err("reserved fields of the archive");
        }
        Ok(format)
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

/// Whether a chunk's header may hold this code of an index encoding.
pub(super) fn is_index_code(code: u8) -> bool {
    code == TREE_CODE || IndexEncoding::from_code(code.into()).is_some()
}
