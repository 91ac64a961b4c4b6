//! What chunks are on the device. Trees become `tiled` images there (kernels/expand.cuh), behind the copy, so that every kernel
//! reads them. Such an image is not packed: 4 bytes for each index and 8 for the value of a nonzero, in device memory only.

use super::abi::{ExpandArgs, TILE, TILE_THREADS};
use super::driver::{Device, Kernel, Stream};
use super::fault::Fault;
use super::kernels::embedded_ptx;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::store::{ChunkHeader, Format, Store, Version};
use std::sync::Arc;

/// The kernel.
pub const KERNEL: &str = "expand_tree";

/// What sections are aligned to, in bytes.
const ALIGN: u64 = 64;
/// Bytes of the header that the kernel writes, which is of version 1.
const HEADER_BYTES: u64 = Version::One.header_bytes(3) as u64;

/// Where the sections of an image begin, and how long it is.
struct ExpandLayout {
    tiles_at: u64,
    columns_at: u64,
    values_at: u64,
    bytes: u64,
}

impl ExpandLayout {
    fn new(nnz: u64, order: u64) -> Self {
        let tiles = nnz.div_ceil(TILE_NNZ as u64);
        let tiles_at = HEADER_BYTES;
        let columns_at = (tiles_at + tiles * (16 + 8 * order)).next_multiple_of(ALIGN);
        let values_at = columns_at + tiles * order * (TILE_NNZ * size_of::<u32>()) as u64;
        Self { tiles_at, columns_at, values_at, bytes: values_at + nnz * size_of::<f64>() as u64 }
    }
}

/// Whether chunks of a format are copied as they lie in their files, but used in another form.
fn is_expanded(format: &Format) -> bool {
    format.layout() == Layout::TREE
}

/// Bytes that chunk `number` takes on the device when kernels read it.
pub(super) fn bytes_there(store: &Store, number: usize) -> u64 {
    let (manifest, entry) = (store.manifest(), &store.manifest().chunks[number]);
    if is_expanded(manifest.format()) {
        ExpandLayout::new(entry.nnz, manifest.shape.order() as u64).bytes
    } else {
        entry.image_bytes
    }
}

/// What images on the device are aligned to, in bytes.
const IMAGE_ALIGN: u64 = 256;

/// Bytes that chunk `number` takes among the resident ones.
pub(super) fn resident_bytes(store: &Store, number: usize) -> u64 {
    bytes_there(store, number).next_multiple_of(IMAGE_ALIGN)
}

/// Thread blocks that a chunk gets.
pub(super) fn blocks_of(nnz: u64, tiles_per_block: u32) -> u32 {
    let nnz_per_block = TILE_NNZ as u64 * u64::from(tiles_per_block);
    u32::try_from(nnz.div_ceil(nnz_per_block)).expect("a chunk has at most 2^28 nonzeros")
}

/// Bytes of a buffer in which chunks of a store wait for that; 0 where they need not.
pub(super) fn staging_bytes(store: &Store) -> u64 {
    let manifest = store.manifest();
    let images = manifest.chunks.iter().map(|chunk| chunk.image_bytes);
    if is_expanded(manifest.format()) { images.max().unwrap_or(0) } else { 0 }
}

/// Makes `tiled` images of trees.
#[derive(Debug)]
pub(super) struct Expander {
    kernel: Kernel,
    fault: Fault,
    order: u32,
}

impl Expander {
    /// For the chunks of a store of trees.
    pub fn new(device: &Arc<Device>, store: &Store) -> Result<Self> {
        let manifest = store.manifest();
        let long = (0..manifest.chunks.len()).find(|&n| bytes_there(store, n) > u64::from(u32::MAX));
        if let Some(number) = long {
            return Err(Error::request(format!(
                "chunk {number} is too long for a GPU once its tree is nonzeros: take `Device::Cpu`, or pack with smaller `chunk_bytes`"
            )));
        }
        Ok(Self {
            kernel: device.module(&embedded_ptx(&[KERNEL]))?.kernel(KERNEL)?,
            fault: Fault::new(device)?,
            order: u32::try_from(manifest.shape.order()).unwrap_or(0),
        })
    }

    /// A pass begins; nothing is under way.
    pub fn begin(&mut self) -> Result<()> {
        self.fault.clear()
    }

    /// Makes the image of the tree at address `tree` at `image`.
    pub fn launch(&self, stream: &Stream, header: &ChunkHeader, tree: u64, image: u64) -> Result<()> {
        let layout = ExpandLayout::new(header.nnz.into(), self.order.into());
        let at = |offset: u64| u32::try_from(offset).expect("images are shorter than 4 GiB");
        let arguments = ExpandArgs {
            tree,
            image,
            fault: self.fault.address(),
            number: header.number,
            order: self.order,
            tiles_at: at(layout.tiles_at),
            columns_at: at(layout.columns_at),
            values_at: at(layout.values_at),
            unused: 0,
        };
        let tiles = header.nnz.div_ceil(TILE);
        stream.launch(&self.kernel, tiles, TILE_THREADS, &arguments)
    }

    /// The smallest number of a chunk in which a number was out of range. All work is done when this is asked.
    pub fn damaged_chunk(&self) -> Result<Option<u32>> {
        self.fault.chunk()
    }
}
