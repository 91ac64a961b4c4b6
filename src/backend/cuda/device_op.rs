//! What the backend asks of an operation.

use super::abi::Chunk;
use super::driver::{Memory, Stream};
use super::kernels::KernelLayout;
use super::mode_sorted::Stretch;
use crate::error::Result;
use crate::format::ChunkView;
use crate::store::ChunkHeader;
use std::sync::Arc;

/// What an operation does with a chunk on the worker that has loaded it.
pub type Look = Arc<dyn Fn(&ChunkHeader, &ChunkView<'_>) -> Result<()> + Send + Sync>;

/// The chunks of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Thread blocks in all, for one part.
    pub blocks: u32,
    /// Address and length of a list of [`Chunk`]s on the device; 0 where `one` is the only chunk.
    pub chunks: (u64, u32),
    /// The only chunk.
    pub one: Chunk,
    /// Their layout.
    pub layout: KernelLayout,
    /// Which nonzeros they hold.
    pub nonzeros: Nonzeros,
    /// Address to which the chunk's results go, if they leave the device before the pass ends.
    pub results: u64,
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
///
/// Results stay on the device until the pass ends, or leave it chunk by chunk: its
/// [`Operation::result_bytes`](crate::backend::plan::Operation::result_bytes) say which. In the second case chunks are launched
/// one behind the other, and the operation has one part and no mode-sorted copies.
pub trait DeviceOp {
    /// Independent parts, each of which works on every chunk of the cover that serves its mode.
    fn parts(&self) -> usize {
        1
    }

    /// Whether the next pass computes a part; at least one is computed.
    fn is_active(&self, _part: usize) -> bool {
        true
    }

    /// Whether its kernels read trees and segments as they lie. They do if the plan says so.
    fn as_they_lie(&self) -> bool {
        false
    }

    /// Whether chunks are launched one behind the other, also if results stay on the device.
    fn in_order(&self) -> bool {
        false
    }

    /// Whether the next pass needs chunk `number`, in the view.
    fn needs(&self, _number: usize) -> bool {
        true
    }

    /// What workers do with each chunk, if anything.
    fn look(&self) -> Option<Look> {
        None
    }

    /// Bytes of device memory that a part takes besides to work on `nnz` sorted nonzeros.
    fn sorted_bytes(&self, _nnz: u64) -> u64 {
        0
    }

    /// Makes a part ready for launches on sorted nonzeros with at most `blocks` thread blocks; with `stretch`, on these of them; or, `along_fibers`, on
    /// an entry for each fiber.
    fn sort(
        &mut self,
        _part: usize,
        _blocks: u32,
        _stretch: Option<&Stretch>,
        _along_fibers: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// Bytes of device memory for the sums of `count` fibers along mode `leaf`, of `nnz` nonzeros, if they can serve the operation
    /// ([`super::mode_sorted::FiberKernels`]).
    fn fiber_bytes(&self, _leaf: usize, _count: u32, _nnz: u64) -> Option<u64> {
        None
    }

    /// Makes room for them, given their number and that of their nonzeros, for launches with `blocks` thread blocks.
    /// [`DeviceOp::sort`] says which parts take them.
    fn take_fibers(&mut self, _leaf: usize, _count: (u32, u64), _blocks: u32) -> Result<()> {
        Ok(())
    }

    /// Whether the next pass can take sums of fibers; what needs them is computed in the store's order otherwise.
    fn can_take_fibers(&self) -> bool {
        true
    }

    /// Whether the sums have to be computed before the next pass takes them.
    fn needs_fiber_sums(&self) -> bool {
        false
    }

    /// Computes them.
    fn launch_fibers(&mut self, _stream: &Stream, _work: &Launch) -> Result<()> {
        Ok(())
    }

    /// Clears the results of a part. With `empty`, this pass has one launch, of [`Nonzeros::Sorted`], in which rows have no nonzeros
    /// whose bits are set there: bit r % 32 of 32-bit word r / 32.
    fn begin(&mut self, part: usize, empty: Option<&Memory>, stream: &Stream) -> Result<()>;

    /// Starts the work of some parts (one, where nonzeros are sorted) on some chunks. Gives the bytes that will be at
    /// [`Launch::results`].
    fn launch(&mut self, parts: &[usize], stream: &Stream, work: &Launch) -> Result<usize>;

    /// Starts what completes a part's results when all chunks are done; `written`: by one launch of [`Nonzeros::Sorted`].
    fn finish(&mut self, _part: usize, _written: bool, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    /// Whether [`DeviceOp::take`] gets views of the images in this pass, whose buffers are then held until results have come.
    fn takes_views(&self) -> bool {
        false
    }

    /// Takes the results of chunk `number`, the next in order.
    fn take(&mut self, _number: usize, _view: Option<&ChunkView<'_>>, _results: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Tiles of a chunk of this layout, in the store's order, that a thread block takes.
    fn tiles_per_block(&self, _layout: KernelLayout) -> u32 {
        1
    }

    /// Bytes of device memory that all parts ask for to work on a nonzero, besides its tile.
    fn bytes_per_nonzero(&self) -> f64 {
        0.0
    }

    /// The smallest [`Chunk::number`] of one in which a number was out of range. All work is done when this is asked.
    fn damaged_chunk(&self) -> Result<Option<u32>>;
}
