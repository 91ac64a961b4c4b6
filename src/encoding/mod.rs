//! Index and value encodings: how numbers are stored in a chunk (formats-spec/encodings.md). This module
//! knows no files and no formats.

pub mod column;
pub mod decimal;
pub mod tile;
pub mod values;

use serde::Serialize;

/// Nonzeros in a tile.
pub const TILE_NNZ: usize = 512;

/// How the indices of a store's nonzeros are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
#[non_exhaustive]
pub enum IndexEncoding {
    /// The BLCO paper's layout: keys, BLCO blocks, 64-bit re-encoded indices.
    Raw = 1,
    /// Packed columns in tiles.
    Tiled = 2,
}

impl IndexEncoding {
    /// The encoding with this code.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Raw, Self::Tiled].into_iter().find(|&e| e as u32 == code)
    }
}

/// How a packer lays out the leaves of a slice in a tree (formats-spec/hocfs.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
#[non_exhaustive]
pub enum LeafRule {
    /// Fibers one after another, without padding.
    Csr = 1,
    /// Fibers padded to the longest of their slice, if that at most doubles the slice.
    Ell = 2,
    /// Padded if that costs at most one slot in eight.
    Auto = 3,
}

impl LeafRule {
    /// The rule with this code.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Csr, Self::Ell, Self::Auto].into_iter().find(|&e| e as u32 == code)
    }

    /// The name that users see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Csr => "csr",
            Self::Ell => "ell",
            Self::Auto => "auto",
        }
    }

    /// The most slots that `nnz` nonzeros can take.
    #[must_use]
    pub fn slots_max(self, nnz: u64) -> u64 {
        match self {
            Self::Csr => nnz,
            Self::Ell => nnz.saturating_mul(2),
            Self::Auto => nnz.saturating_mul(9) / 8,
        }
    }
}

/// The number of bits that `x` needs: 0 for 0.
#[must_use]
pub fn width(x: u64) -> u32 {
    u64::BITS - x.leading_zeros()
}
