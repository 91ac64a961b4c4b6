//! What chunks are on the device. Trees, segments and coordinates become `tiled` images there (kernels/expand.cuh), behind the copy, so that
//! every kernel reads them. Such an image is not packed: 4 bytes for each index and 8 for the value of a nonzero, in device memory only. If
//! the plan says that kernels read trees and segments as they lie, such a chunk is its image; behind the sections of segments, their number
//! before each tile is written. Coordinates beside trees (`hbcsf`) become `tiled` images then too.

use super::abi::{ExpandArgs, SORT_THREADS, TILE_THREADS};
use super::driver::{Device, Kernel, Stream};
use super::fault::Fault;
use super::kernels::{KernelLayout, embedded_ptx};
use crate::backend::plan::Reads;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::shape::ORDER_MAX;
use crate::store::{ChunkHeader, Format, Store, Version};
use std::sync::Arc;

/// The kernels that make `tiled` images, and the layouts that they read.
pub const KERNELS: [&str; 3] = ["expand_tree", "expand_segments", "expand_coordinates"];
const LAYOUTS: [Layout; 3] = [Layout::TREE, Layout::SEGMENTS, Layout::COORDINATES];
/// The kernel that counts segments.
pub const COUNT: &str = "count_segments";

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

/// What is done with a chunk behind its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Nothing,
    /// Segments before each tile are counted.
    Count,
    /// A `tiled` image is made, at another place.
    Expand,
}

/// The layout of chunks of a format when kernels read them.
fn layout(format: &Format, reads: Reads) -> KernelLayout {
    match (format.layout(), reads == Reads::AsTheyLie) {
        (Layout::RAW, _) => KernelLayout::Raw,
        (Layout::TREE, true) => KernelLayout::Tree,
        (Layout::SEGMENTS, true) => KernelLayout::Segments,
        _ => KernelLayout::Tiled,
    }
}

fn format_of(store: &Store, number: usize) -> &Format {
    &store.manifest().partitions[store.part_of(number)].format
}

/// The layout of chunk `number` when kernels read it.
#[must_use]
pub fn layout_there(store: &Store, number: usize, reads: Reads) -> KernelLayout {
    layout(format_of(store, number), reads)
}

/// The layouts of all chunks of a store when kernels read them, at least one, `tiled` last.
#[must_use]
pub fn layouts_there(store: &Store, reads: Reads) -> Vec<KernelLayout> {
    let mut found = Vec::new();
    for number in 0..store.manifest().chunks.len() {
        let layout = layout_there(store, number, reads);
        if !found.contains(&layout) {
            found.push(layout);
        }
    }
    if found.is_empty() {
        found.push(layout(store.manifest().format(), reads));
    }
    found.sort_by_key(|layout| *layout == KernelLayout::Tiled);
    found
}

/// What is done with chunk `number`.
pub(super) fn work(store: &Store, number: usize, reads: Reads) -> Work {
    let format = format_of(store, number);
    match layout(format, reads) {
        KernelLayout::Segments => Work::Count,
        KernelLayout::Tiled if is_expanded(format) => Work::Expand,
        _ => Work::Nothing,
    }
}

/// Whether an image is made of chunk `number` behind its copy.
#[must_use]
pub fn is_made(store: &Store, number: usize, reads: Reads) -> bool {
    work(store, number, reads) == Work::Expand
}

/// Whether a store has chunks that kernels can read as they lie.
pub(super) fn can_lie(store: &Store) -> bool {
    layouts_there(store, Reads::AsTheyLie)[0].is_as_packed()
}

/// Whether all chunks of a store are segments.
pub(super) fn are_segments(store: &Store) -> bool {
    layouts_there(store, Reads::AsTheyLie) == [KernelLayout::Segments]
}

/// Whether slots without a nonzero, for which kernels work too, are at most an eighth as many as nonzeros.
pub(super) fn are_mostly_nonzeros(store: &Store) -> bool {
    store.manifest().partitions.iter().all(|partition| partition.format.slots_max(8) <= 9)
}

/// Bytes that chunk `number` takes on the device when kernels read it.
pub(super) fn bytes_there(store: &Store, number: usize, reads: Reads) -> u64 {
    let (manifest, entry) = (store.manifest(), &store.manifest().chunks[number]);
    match work(store, number, reads) {
        Work::Nothing => entry.image_bytes,
        Work::Count => {
            let counts = entry.nnz.div_ceil(TILE_NNZ as u64) * size_of::<u32>() as u64;
            entry.image_bytes.next_multiple_of(size_of::<u32>() as u64) + counts
        }
        Work::Expand => ExpandLayout::new(entry.nnz, manifest.shape.order() as u64).bytes,
    }
}

/// The first chunk that is too long for the `tiled` image that it becomes.
pub(super) fn too_long(store: &Store, reads: Reads) -> Option<usize> {
    let is_long = |&number: &usize| {
        is_made(store, number, reads) && bytes_there(store, number, reads) > u64::from(u32::MAX)
    };
    (0..store.manifest().chunks.len()).find(is_long)
}

/// What images on the device are aligned to, in bytes.
const IMAGE_ALIGN: u64 = 256;

/// Bytes that chunk `number` takes among the resident ones.
pub(super) fn resident_bytes(store: &Store, number: usize, reads: Reads) -> u64 {
    bytes_there(store, number, reads).next_multiple_of(IMAGE_ALIGN)
}

/// Thread blocks that chunk `number` gets.
pub(super) fn blocks_there(store: &Store, number: usize, reads: Reads, tiles_per_block: u32) -> u32 {
    let (nnz, format) = (store.manifest().chunks[number].nnz, format_of(store, number));
    // Slots of a tree also hold padding.
    let is_tree = layout(format, reads) == KernelLayout::Tree;
    blocks_of(if is_tree { format.slots_max(nnz) } else { nnz }, tiles_per_block)
}

/// Thread blocks that this many nonzeros get.
pub(super) fn blocks_of(nnz: u64, tiles_per_block: u32) -> u32 {
    let nnz_per_block = TILE_NNZ as u64 * u64::from(tiles_per_block);
    u32::try_from(nnz.div_ceil(nnz_per_block)).expect("a chunk has at most 2^28 nonzeros")
}

/// Bytes of a buffer in which chunks of a store wait for that; 0 where they need not.
pub(super) fn staging_bytes(store: &Store, reads: Reads) -> u64 {
    let chunks = store.manifest().chunks.iter().enumerate();
    let expanded = chunks.filter(|(number, _)| is_made(store, *number, reads));
    expanded.map(|(_, chunk)| chunk.image_bytes).max().unwrap_or(0)
}

/// Makes `tiled` images of chunks of other layouts, or counts segments.
#[derive(Debug)]
pub(super) struct Expander {
    /// One for each layout.
    kernels: [Kernel; LAYOUTS.len()],
    count: Kernel,
    reads: Reads,
    fault: Fault,
    store: Store,
}

/// Warps of a thread block; each takes a tile of a tree or of segments.
const WARPS: u32 = TILE_THREADS / 32;
/// Thread blocks of a launch on segments, at most: each counts the segments before its own.
const SEGMENT_BLOCKS: u32 = 512;

impl Expander {
    /// For the chunks of a store; nothing if none takes work.
    pub fn new(device: &Arc<Device>, store: &Store, reads: Reads) -> Result<Option<Self>> {
        let mut chunks = 0..store.manifest().chunks.len();
        if chunks.all(|number| work(store, number, reads) == Work::Nothing) {
            return Ok(None);
        }
        if let Some(number) = too_long(store, reads) {
            return Err(Error::request(format!(
                "chunk {} is too long for a GPU once it is nonzeros: take `Device::Cpu`, or pack with smaller `chunk_bytes`",
                store.number_of(number)
            )));
        }
        let [tree, segments, coordinates] = KERNELS;
        let module = device.module(&embedded_ptx(&[tree, segments, coordinates, COUNT]))?;
        let kernels = [module.kernel(tree)?, module.kernel(segments)?, module.kernel(coordinates)?];
        let (count, fault) = (module.kernel(COUNT)?, Fault::new(device)?);
        Ok(Some(Self { kernels, count, reads, fault, store: store.clone() }))
    }

    /// A pass begins; nothing is under way.
    pub fn begin(&mut self) -> Result<()> {
        self.fault.clear()
    }

    /// Makes the image of chunk `number`, which lies at address `from`, at `image`, or counts the segments of the one there.
    pub fn launch(
        &self,
        stream: &Stream,
        number: usize,
        header: &ChunkHeader,
        from: u64,
        image: u64,
    ) -> Result<()> {
        let (manifest, format) = (self.store.manifest(), format_of(&self.store, number));
        let (shape, mut dims) = (&manifest.shape, [1; ORDER_MAX]);
        dims[..shape.order()].copy_from_slice(shape.dims());
        let mut arguments = ExpandArgs {
            from,
            image,
            fault: self.fault.address(),
            number: u32::try_from(number).unwrap_or(u32::MAX),
            order: u32::try_from(shape.order()).unwrap_or(0),
            product: format.product_modes(),
            dims,
            ..ExpandArgs::default()
        };
        if work(&self.store, number, self.reads) == Work::Count {
            return stream.launch(&self.count, 1, SORT_THREADS, &arguments);
        }
        let kernel = LAYOUTS.iter().position(|&layout| layout == format.layout());
        let kernel = kernel.expect("what kernels read as it lies needs no image");
        let layout = ExpandLayout::new(header.nnz.into(), shape.order() as u64);
        let at = |offset: u64| u32::try_from(offset).expect("images are shorter than 4 GiB");
        arguments.tiles_at = at(layout.tiles_at);
        arguments.columns_at = at(layout.columns_at);
        arguments.values_at = at(layout.values_at);
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
