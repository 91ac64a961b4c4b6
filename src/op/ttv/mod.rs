//! TTV, a sparse tensor times a vector along one mode (Li et al., TKDD 2019, sections 4.3 and 6.1): for mode m, `y[i
//! without i_m] = sum over i_m of value * x[i_m]`, a sparse tensor of one order less. Every nonempty fiber gives an
//! element, even if it is zero.
//!
//! * Along the leaf mode of a tree, [`Streamed`]: each slice is a sparse matrix times the vector, every fiber an
//!   element. Elements are written in the store's order while the next chunk is read (the paper's step 3.3).
//! * Along any other mode, along several modes, and for BLCO stores, [`Merged`]: each nonzero gives a product. Products
//!   of one element are added up in the packer's runs, on disk if memory is short. Elements are in the order of the
//!   remaining modes.
//! * Along all modes, [`Scalar`]: one number, the exact sum of the products, rounded once.
//!
//! **Order of additions.** Products are in the precision of the vector, sums in f64. [`Streamed`] adds in the store's
//! order; [`Merged`] in the total order of the products, starting from the first. Results depend only on the store's
//! nonzeros, the vector and the precision: not on chunks, threads, workers, lanes or memory.

mod bins;
#[cfg(feature = "cuda")]
pub mod cuda;
mod fibers;
#[cfg(target_arch = "x86_64")]
mod marks;
mod merged;
mod neighbours;
mod oracle;
mod result_writer;
mod rounds;
mod scalar;
mod streamed;
#[cfg(target_arch = "x86_64")]
mod windows;

pub use merged::{Merged, layout as merged_layout, merged_handed_bytes};
pub use oracle::{Oracle, OracleRoom};
pub use scalar::Scalar;
pub use streamed::{Streamed, host_bytes as streamed_bytes};

use crate::coo::Batch;
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use crate::store::Manifest;

/// Receives elements in order: batches of values with coordinates in the remaining modes.
pub type Sink<'a> = &'a mut (dyn FnMut(Vec<Batch>) -> Result<()> + Send);

/// A mode, from 0, and its vector, with one number per index.
pub type Along<'a, T> = (usize, &'a [T]);

/// Whether [`Streamed`] can compute TTV along `mode`, from 0.
#[must_use]
pub fn streams(manifest: &Manifest, mode: usize) -> bool {
    let is_one = manifest.partitions.len() == 1;
    is_one && manifest.format().tree_levels().is_some_and(|levels| levels.last() == mode)
}

/// The mode for [`Streamed`], if `modes` is one that it can compute.
#[must_use]
pub fn streamed_mode(manifest: &Manifest, modes: &[usize]) -> Option<usize> {
    modes.first().copied().filter(|&mode| modes.len() == 1 && streams(manifest, mode))
}

/// The modes of a tensor of `order` except `modes`, ascending.
fn modes_left(order: usize, modes: &[usize]) -> Vec<usize> {
    (0..order).filter(|m| !modes.contains(m)).collect()
}

/// Each value of a tile times the vectors' numbers at its indices, in turn.
fn values_times<T: Real>(tile: &DecodedTile<'_>, along: &[Along<'_, T>]) -> impl Iterator<Item = T> {
    tile.values.iter().enumerate().map(|(i, &value)| {
        let number = |&(mode, vector): &Along<'_, T>| vector[tile.column(mode)[i] as usize];
        along.iter().map(number).fold(T::nearest(value), |product, x| product * x)
    })
}

/// The most fibers in a chunk: each has a nonzero, and a tile of them takes a record of the image.
#[cfg(feature = "cuda")]
fn fibers_max(manifest: &Manifest) -> u64 {
    let tile = crate::encoding::TILE_NNZ as u64;
    let of_chunk = |chunk: &crate::store::ChunkEntry| {
        chunk.nnz.min(chunk.image_bytes / crate::format::tree::RECORD_BYTES as u64 * tile)
    };
    manifest.chunks.iter().map(of_chunk).max().unwrap_or(0)
}

/// Fails if an element is not finite, since text could not hold it.
fn check_finite(batch: &Batch, order: usize) -> Result<()> {
    let Some(bad) = batch.values.iter().position(|v| !v.is_finite()) else { return Ok(()) };
    if order == 0 {
        return Err(Error::request("the result exceeds all numbers"));
    }
    let at: Vec<String> =
        batch.indices[bad * order..][..order].iter().map(|&i| (u64::from(i) + 1).to_string()).collect();
    Err(Error::request(format!("the result at ({}), counted from 1, exceeds all numbers", at.join(", "))))
}
