//! Versions of the container.

use crate::error::{Error, Result};
use std::path::Path;

/// Bytes of the part of a chunk header that has the same length in all chunks.
pub const FIXED_BYTES: usize = 128;
/// Alignment of sections and images, in bytes.
pub const ALIGN: usize = 128;

/// A version of the container. New stores use the newest. Older stores are still read and verified, by their own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum Version {
    /// formats-spec/container-1.md.
    One = 1,
    /// formats-spec/container.md.
    Two = 2,
}

impl Version {
    /// The version of new stores.
    pub const NEWEST: Self = Self::Two;

    /// The version that a file of a store names. The file's checksum has been verified.
    pub(crate) fn of_file(code: u32, path: &Path, rule: &'static str) -> Result<Self> {
        match code {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            _ => {
                let newest = Self::NEWEST as u32;
                let what = format!(
                    "format version {code}; this program reads versions 1 to {newest}: use a newer one, or pack again"
                );
                Err(Error::unusable(path, what).breaks(rule))
            }
        }
    }

    /// Whether values can be decimals.
    #[must_use]
    pub const fn has_decimals(self) -> bool {
        matches!(self, Self::Two)
    }

    /// Bytes of a chunk header with `sections` sections.
    #[must_use]
    pub const fn header_bytes(self, sections: usize) -> usize {
        match self {
            Self::One => FIXED_BYTES,
            Self::Two => FIXED_BYTES + (16 * sections).next_multiple_of(ALIGN),
        }
    }
}
