//! What chunks are on the device. Segments and coordinates become `tiled` images there (kernels/expand.cuh), behind the copy, so
//! that every kernel reads them. Trees do too, unless the plan says that kernels read them as they lie. Such an image is not packed: 4
//! bytes for each index and 8 for the value of a nonzero, in device memory only.

use super::abi::{ExpandArgs, TILE_THREADS};
use super::driver::{Device, Kernel, Stream};
use super::fault::Fault;
use super::kernels::embedded_ptx;
use crate::backend::plan::Trees;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::shape::ORDER_MAX;
use crate::store::{ChunkHeader, Format, Store, Version};
use std::sync::Arc;

/// The kernels, and the layouts that they read.
pub const KERNELS: [&str; 3] = ["expand_tree", "expand_segments", "expand_coordinates"];
const LAYOUTS: [Layout; 3] = [Layout::TREE, Layout::SEGMENTS, Layout::COORDINATES];

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
pub(super) fn is_expanded(format: &Format) -> bool {
    LAYOUTS.contains(&format.layout())
}

/// Whether chunk `number` is.
fn expands(store: &Store, number: usize) -> bool {
    is_expanded(&store.manifest().partitions[store.part_of(number)].format)
}

/// Whether all chunks of a store are trees.
pub(super) fn are_trees(store: &Store) -> bool {
    store.manifest().partitions.iter().all(|partition| partition.format.layout() == Layout::TREE)
}

/// Bytes that chunk `number` takes on the device when kernels read it.
pub(super) fn bytes_there(store: &Store, number: usize, trees: Trees) -> u64 {
    let (manifest, entry) = (store.manifest(), &store.manifest().chunks[number]);
    if trees != Trees::AsTheyLie && expands(store, number) {
        ExpandLayout::new(entry.nnz, manifest.shape.order() as u64).bytes
    } else {
        entry.image_bytes
    }
}

/// What images on the device are aligned to, in bytes.
const IMAGE_ALIGN: u64 = 256;

/// Bytes that chunk `number` takes among the resident ones.
pub(super) fn resident_bytes(store: &Store, number: usize, trees: Trees) -> u64 {
    bytes_there(store, number, trees).next_multiple_of(IMAGE_ALIGN)
}

/// Thread blocks that chunk `number` gets.
pub(super) fn blocks_there(store: &Store, number: usize, trees: Trees, tiles_per_block: u32) -> u32 {
    let nnz = store.manifest().chunks[number].nnz;
    let format = &store.manifest().partitions[store.part_of(number)].format;
    // Slots of a tree also hold padding.
    blocks_of(if trees == Trees::AsTheyLie { format.slots_max(nnz) } else { nnz }, tiles_per_block)
}

/// Thread blocks that this many nonzeros get.
pub(super) fn blocks_of(nnz: u64, tiles_per_block: u32) -> u32 {
    let nnz_per_block = TILE_NNZ as u64 * u64::from(tiles_per_block);
    u32::try_from(nnz.div_ceil(nnz_per_block)).expect("a chunk has at most 2^28 nonzeros")
}

/// Bytes of a buffer in which chunks of a store wait for that; 0 where they need not.
pub(super) fn staging_bytes(store: &Store, trees: Trees) -> u64 {
    if trees == Trees::AsTheyLie {
        return 0;
    }
    let manifest = store.manifest();
    let expanded = manifest.chunks.iter().enumerate().filter(|(number, _)| expands(store, *number));
    expanded.map(|(_, chunk)| chunk.image_bytes).max().unwrap_or(0)
}

/// Makes `tiled` images of chunks of other layouts.
#[derive(Debug)]
pub(super) struct Expander {
    kernels: [Kernel; LAYOUTS.len()],
    fault: Fault,
    store: Store,
}

/// Warps of a thread block; each takes a tile of a tree or of segments.
const WARPS: u32 = TILE_THREADS / 32;
/// Thread blocks of a launch on segments, at most: each counts the segments before its own.
const SEGMENT_BLOCKS: u32 = 512;

impl Expander {
    /// For the chunks of a store some of which are of other layouts.
    pub fn new(device: &Arc<Device>, store: &Store) -> Result<Self> {
        let manifest = store.manifest();
        let long = (0..manifest.chunks.len())
            .find(|&n| bytes_there(store, n, Trees::Converted) > u64::from(u32::MAX));
        if let Some(number) = long {
            return Err(Error::request(format!(
                "chunk {} is too long for a GPU once it is nonzeros: take `Device::Cpu`, or pack with smaller `chunk_bytes`",
                store.number_of(number)
            )));
        }
        let module = device.module(&embedded_ptx(&KERNELS))?;
        let [tree, segments, coordinates] = KERNELS.map(|name| module.kernel(name));
        let kernels = [tree?, segments?, coordinates?];
        Ok(Self { kernels, fault: Fault::new(device)?, store: store.clone() })
    }

    /// A pass begins; nothing is under way.
    pub fn begin(&mut self) -> Result<()> {
        self.fault.clear()
    }

    /// Makes the image of chunk `number`, which lies at address `from`, at `image`; nothing where kernels read it as it is.
    pub fn launch(
        &self,
        stream: &Stream,
        number: usize,
        header: &ChunkHeader,
        from: u64,
        image: u64,
    ) -> Result<()> {
        let manifest = self.store.manifest();
        let format = &manifest.partitions[self.store.part_of(number)].format;
        let kernel = LAYOUTS.iter().position(|&layout| layout == format.layout());
        let kernel = kernel.expect("what kernels read as it lies needs no image");
        let (shape, mut dims) = (&manifest.shape, [1; ORDER_MAX]);
        dims[..shape.order()].copy_from_slice(shape.dims());
        let layout = ExpandLayout::new(header.nnz.into(), shape.order() as u64);
        let at = |offset: u64| u32::try_from(offset).expect("images are shorter than 4 GiB");
        let arguments = ExpandArgs {
            from,
            image,
            fault: self.fault.address(),
            number: u32::try_from(number).unwrap_or(u32::MAX),
            order: u32::try_from(shape.order()).unwrap_or(0),
            tiles_at: at(layout.tiles_at),
            columns_at: at(layout.columns_at),
            values_at: at(layout.values_at),
            product: format.product_modes(),
            dims,
        };
        let tiles = blocks_of(format.slots_max(header.nnz.into()), 1);
        let blocks = match format.layout() {
            Layout::TREE => tiles.div_ceil(WARPS),
            Layout::SEGMENTS => tiles.div_ceil(WARPS).min(SEGMENT_BLOCKS),
            _ => tiles,
        };
        stream.launch(&self.kernels[kernel], blocks, TILE_THREADS, &arguments)
    }

    /// The smallest number of a chunk in which a number was out of range. All work is done when this is asked.
    pub fn damaged_chunk(&self) -> Result<Option<u32>> {
        self.fault.chunk()
    }
}
