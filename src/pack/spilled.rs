//! Temporary files as the journal lists them.

use crate::encoding::TILE_NNZ;
use serde::{Deserialize, Serialize};

/// Bytes of a frame before its payload.
pub const FRAME_HEADER: usize = 16;

/// A finished temporary file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpilledFile {
    /// Its name in the spill directory.
    pub name: String,
    /// Its nonzeros.
    pub nnz: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Of all its frames.
    pub checksum: u64,
}

impl SpilledFile {
    /// The number in the name of a file of this `kind`.
    pub fn number(&self, kind: &str) -> Option<u32> {
        let number: u32 = self.name.strip_prefix(kind)?.strip_prefix('-')?.parse().ok()?;
        (self.name == file_name(kind, number)).then_some(number)
    }

    /// Whether a file with this many nonzeros can have its number of bytes: a tile takes more than 16.
    pub fn is_plausible(&self) -> bool {
        let nnz_max = self.bytes.saturating_mul(TILE_NNZ as u64 / 16);
        (1..=nnz_max).contains(&self.nnz) && self.bytes > FRAME_HEADER as u64
    }
}

/// The name of temporary file `number`.
pub fn file_name(kind: &str, number: u32) -> String {
    format!("{kind}-{number}")
}

/// The names of temporary files begin so.
pub const STAGED: &str = "staged";
pub const RUN: &str = "run";
