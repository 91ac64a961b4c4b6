//! What the backend asks of an operation.

use super::abi::Chunk;
use super::driver::{Memory, Stream};
use crate::dense::Precision;
use crate::error::Result;

/// The chunks of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Thread blocks in all, for one part.
    pub blocks: u32,
    /// Address and length of a list of [`Chunk`]s on the device; 0 where `one` is the only chunk.
    pub chunks: (u64, u32),
    /// The only chunk.
    pub one: Chunk,
    /// Which nonzeros they hold.
    pub nonzeros: Nonzeros,
}

/// Which nonzeros a launch works on, in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonzeros {
    /// Some, in the store's order.
    InStoreOrder,
    /// All, in order of the part's target rows: each row is met once.
    Sorted,
    /// Some, in order of the part's target rows; other launches, one after the other, work on the rest.
    SortedPart,
}

/// What the CUDA backend asks of an operation.
pub trait DeviceOp {
    /// Independent parts, each of which works on every chunk.
    fn parts(&self) -> usize;

    /// Whether the next pass computes a part; at least one it does.
    fn is_active(&self, _part: usize) -> bool {
        true
    }

    /// Bytes of device memory that a part takes besides to work on so many sorted nonzeros.
    fn sorted_bytes(&self, nnz: u64) -> u64;

    /// Makes a part ready for launches on sorted nonzeros with at most so many thread blocks.
    fn sort(&mut self, part: usize, blocks: u32) -> Result<()>;

    /// Clears the results of a part. With `empty`, this pass has one launch, of [`Nonzeros::Sorted`], in which rows have no nonzeros
    /// whose bits are set there: bit r % 32 of 32-bit word r / 32.
    fn begin(&mut self, part: usize, empty: Option<&Memory>, stream: &Stream) -> Result<()>;

    /// Starts the work of some parts (one, where nonzeros are sorted) on some chunks.
    fn launch(&self, parts: &[usize], stream: &Stream, work: &Launch) -> Result<()>;

    /// Starts what completes a part's results when all chunks are done; `written`: by one launch of [`Nonzeros::Sorted`].
    fn finish(&mut self, part: usize, written: bool, stream: &Stream) -> Result<()>;

    /// The precision of factors and products.
    fn precision(&self) -> Precision;

    /// Tiles of a chunk that a thread block takes.
    fn tiles_per_block(&self, sorted: bool) -> u32;

    /// Bytes of device memory that all parts ask for to work on a nonzero, besides its tile.
    fn bytes_per_nonzero(&self) -> f64;

    /// The smallest [`Chunk::number`] of one in which a number was out of range. All work is done when this is asked.
    fn damaged_chunk(&self) -> Result<Option<u32>>;
}
