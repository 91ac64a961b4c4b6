//! TTV along the leaf mode of a tree on a GPU (kernels/ttv.cuh). Sums of fibers are copied back chunk by chunk; their
//! coordinates are in the host's copy of the tree.
//!
//! **Order of additions.** Products are in the precision of the vector. A fiber's nonzeros, counted from its first in
//! the store, are cut into segments of [`TTV_SEGMENT`]. A segment is added up in f64 in the store's order; then the
//! segments are added up. Results therefore have the same bits for every kernel and any chunks and lanes, and the
//! host's bits if no fiber is longer than a segment.

use super::result_writer::{FiberEnds, ResultWriter, group_fibers, handed_bytes};
use super::{Sink, fibers_max};
use crate::backend::cuda::abi::{TTV_SEGMENT, TtvArgs};
use crate::backend::cuda::driver::{Device, Memory, Stream};
use crate::backend::cuda::fault::Fault;
use crate::backend::cuda::ttv::{TtvKernels, windows};
use crate::backend::cuda::{DeviceOp, Launch, Look};
use crate::backend::device::TtvVariant;
use crate::backend::plan::{Operation, Reads};
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::{Leaves, Nodes, PADDING, TreeView};
use crate::store::{Manifest, Store};
use bytemuck::Pod;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most slots per nonzero in a chunk that the leaf rules allow.
const SLOTS_PER_NONZERO: u64 = 2;
/// Numbers in a carry.
const CARRY: usize = 2;

/// What a worker records about a chunk.
#[derive(Clone, Copy, Debug)]
pub struct ChunkNote {
    ends: FiberEnds,
    slices: u32,
    /// Slots without the padding after the last nonzero.
    end: u32,
    /// Slots of the last fiber in this chunk, without the padding after its last nonzero.
    last_slots: u64,
}

/// The device memory and work of TTV for chunks as long as those of a store.
#[must_use]
pub fn operation<T: Real>(manifest: &Manifest, mode: usize) -> Operation {
    let vector = u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64;
    let windows = windows(SLOTS_PER_NONZERO * fibers_max(manifest));
    let window_bytes = (2 * size_of::<f64>() + size_of::<u32>()) as u64;
    Operation {
        bytes: vector + windows * window_bytes,
        result_bytes: Some(fibers_max(manifest) * size_of::<T>() as u64),
        modes: vec![mode],
        rank: 1,
        factor_columns: None,
        precision: T::PRECISION,
        sorted_bytes: |_, _| 0,
        takes_fibers: false,
        alternating: false,
        reads: Reads::AsTheyLie,
        share: None,
        gathers: None,
    }
}

/// Bytes of host memory for a store on `threads` threads, without lanes: the vector, and elements being handed over.
#[must_use]
pub fn beside_device_bytes<T: Real>(manifest: &Manifest, mode: usize, threads: usize) -> u64 {
    let vector = u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64;
    vector + handed_bytes(manifest, &[mode], group_fibers(threads))
}

/// A fiber that may continue in the next chunk, and its slots so far, without the padding after its last
/// nonzero.
#[derive(Clone, Copy, Debug)]
struct Unfinished {
    ends: FiberEnds,
    slots: u64,
}

/// The workers' records, by chunk.
struct Notes(Mutex<Vec<Option<ChunkNote>>>);

impl Notes {
    fn all(&self) -> MutexGuard<'_, Vec<Option<ChunkNote>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, chunk: usize) -> ChunkNote {
        self.all()[chunk].expect("a worker has looked at each chunk that it has loaded")
    }
}

/// The operation.
pub struct DeviceTtv<'s, T> {
    kernels: TtvKernels,
    vector: Memory,
    parts: Memory,
    owners: Memory,
    /// Two carries, which alternate between chunks: one is read, the other written.
    carries: Memory,
    fault: Fault,
    order: u32,
    launched: u64,
    unfinished: Option<Unfinished>,
    writer: ResultWriter<'s>,
    notes: Arc<Notes>,
    marker: std::marker::PhantomData<T>,
}

impl<'s, T: Real + Pod> DeviceTtv<'s, T> {
    /// TTV of `store`. `vector` has as many elements as the leaf mode has indices. Elements go to `sink`; without one
    /// they are only counted.
    pub fn new(
        device: &Arc<Device>,
        store: &Store,
        vector: &[T],
        variant: TtvVariant,
        sink: Option<Sink<'s>>,
    ) -> Result<Self> {
        let manifest = store.manifest();
        let levels = manifest.format().tree_levels();
        let levels = levels.ok_or_else(|| Error::request("elements stream out of trees alone"))?;
        let windows =
            usize::try_from(windows(SLOTS_PER_NONZERO * fibers_max(manifest))).unwrap_or(usize::MAX);
        let mut on_device = device.memory(size_of_val(vector))?;
        on_device.write(vector)?;
        Ok(Self {
            kernels: TtvKernels::load(device, T::PRECISION, variant)?,
            vector: on_device,
            // For a damaged chunk, memory that no kernel has written is read too.
            parts: device.zeros(windows.saturating_mul(2 * size_of::<f64>()))?,
            owners: device.memory(windows.saturating_mul(size_of::<u32>()))?,
            carries: device.zeros(2 * CARRY * size_of::<f64>())?,
            fault: Fault::new(device)?,
            order: u32::try_from(manifest.shape.order()).unwrap_or(0),
            launched: 0,
            unfinished: None,
            writer: ResultWriter::new(&levels, sink),
            notes: Arc::new(Notes(Mutex::new(store.sys().vec(None, manifest.chunks.len())?))),
            marker: std::marker::PhantomData,
        })
    }

    /// Prepares for another pass. Elements are handed over if it is the `last`.
    pub fn reset(&mut self, last: bool) {
        self.writer.reset(last);
    }

    /// Hands over the last element. Returns the number of all elements.
    pub fn finish(&mut self) -> Result<u64> {
        self.writer.finish::<T>()
    }

    /// The address of the carry that the next launched chunk reads or, if `written`, writes.
    fn carry(&self, written: bool) -> u64 {
        let at = (self.launched + u64::from(written)) % 2;
        self.carries.address() + at * (CARRY * size_of::<f64>()) as u64
    }
}

/// How the chunk of `view` connects to the previous and next ones.
fn note(view: &TreeView<'_>) -> Result<ChunkNote> {
    let (order, ends) = (view.order(), FiberEnds::of(view)?);
    let leaf = order - 1;
    let (mut nodes, mut leaves) = (Nodes::default(), Leaves::default());
    let last = ends.fibers - 1;
    view.nodes(order - 2, last / TILE_NNZ, &mut nodes)?;
    let start = nodes.starts[last % TILE_NNZ] as usize;
    let tile = (0..view.tiles_of(leaf)).rev().find(|&tile| view.nonzeros_of(tile) > 0).unwrap_or(0);
    view.leaves(tile, &mut leaves)?;
    let last_leaf = leaves.indices[..leaves.len].iter().rposition(|&index| index != PADDING);
    let end = last_leaf.map_or(0, |slot| tile * TILE_NNZ + slot + 1);
    // With padding between leaves, which a verifier refuses, there are more slots than nonzeros. The number of slots
    // matters here.
    let last_slots = end.checked_sub(start).filter(|&slots| slots > 0);
    let last_slots = last_slots.ok_or_else(|| view.damaged(leaf, tile))?;
    let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let slices = narrow(view.level_nodes(0));
    Ok(ChunkNote { ends, slices, end: narrow(end), last_slots: last_slots as u64 })
}

fn tree<'v, 'a>(view: &'v ChunkView<'a>) -> Result<&'v TreeView<'a>> {
    view.tree().ok_or_else(|| Error::request("elements stream out of trees alone"))
}

impl<T: Real + Pod> DeviceOp for DeviceTtv<'_, T> {
    fn as_they_lie(&self) -> bool {
        true
    }

    fn look(&self) -> Option<Look> {
        let notes = Arc::clone(&self.notes);
        Some(Arc::new(move |header, view| {
            let note = note(tree(view)?)?;
            notes.all()[header.number as usize] = Some(note);
            Ok(())
        }))
    }

    fn begin(&mut self, _part: usize, _empty: Option<&Memory>, _stream: &Stream) -> Result<()> {
        self.unfinished = None;
        self.launched = 0;
        self.fault.clear()
    }

    fn launch(&mut self, _parts: &[usize], stream: &Stream, work: &Launch) -> Result<usize> {
        let ChunkNote { ends, slices, end, last_slots } = self.notes.of(work.one.number as usize);
        let goes_on = self.unfinished.filter(|fiber| fiber.ends.last == ends.first);
        let carried = goes_on.map_or(0, |fiber| (fiber.slots - 1) % u64::from(TTV_SEGMENT) + 1);
        let arguments = TtvArgs {
            image: work.one.image,
            vector: self.vector.address(),
            sums: work.results,
            parts: self.parts.address(),
            owners: self.owners.address(),
            carry_in: self.carry(false),
            carry_out: self.carry(true),
            fault: self.fault.address(),
            number: work.one.number,
            order: self.order,
            end,
            carried: u32::try_from(carried).unwrap_or(0),
        };
        let fibers = u32::try_from(ends.fibers).unwrap_or(u32::MAX);
        self.kernels.launch(stream, slices, fibers, &arguments)?;
        self.launched += 1;
        let before = goes_on.filter(|_| ends.fibers == 1).map_or(0, |fiber| fiber.slots);
        self.unfinished = Some(Unfinished { ends, slots: before + last_slots });
        Ok(ends.fibers * size_of::<T>())
    }

    fn takes_views(&self) -> bool {
        self.writer.hands_over()
    }

    fn take(&mut self, number: usize, view: Option<&ChunkView<'_>>, results: &[u8]) -> Result<()> {
        let view = view.map(tree).transpose()?;
        self.writer.put::<T, T>(&self.notes.of(number).ends, view, bytemuck::cast_slice(results))
    }

    fn damaged_chunk(&self) -> Result<Option<u32>> {
        self.fault.chunk()
    }
}
