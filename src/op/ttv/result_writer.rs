//! Hands over elements, in order, from the chunks of a store of trees.

use super::{Sink, check_finite};
use crate::coo::Batch;
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::tree::{Nodes, TreeView, walk};
use crate::shape::{ModeOrder, ORDER_MAX};
use crate::store::Manifest;
use rayon::prelude::*;

/// Fibers per task: eight tiles.
pub(super) const TASK_FIBERS: usize = 8 * TILE_NNZ;
/// The most bytes of a value in text, with its separator.
const VALUE_TEXT_BYTES: u64 = 25;

/// Fibers that are handed over at once, with some tasks for each of `threads`. The memory of elements therefore does
/// not depend on their number.
pub(super) fn group_fibers(threads: usize) -> usize {
    (2 * threads).max(4) * TASK_FIBERS
}

/// Bytes of `elements` elements of TTV along `modes` while they are handed over: batches, and a sink's text.
#[must_use]
pub(super) fn handed_bytes(manifest: &Manifest, modes: &[usize], elements: usize) -> u64 {
    let dims =
        manifest.shape.dims().iter().enumerate().filter(|(m, _)| !modes.contains(m)).map(|(_, &dim)| dim);
    // An index, its digits, and its separator.
    let index = |dim: u32| 4 + u64::from(dim.ilog10()) + 1 + 1;
    let element = 8 + VALUE_TEXT_BYTES + dims.map(index).sum::<u64>();
    element * manifest.nnz.min(elements as u64)
}

/// The coordinates of a fiber, level by level.
pub(super) type Path = [u32; ORDER_MAX];

/// The first and last fibers of a chunk, which other chunks may share.
#[derive(Clone, Copy, Debug)]
pub(super) struct FiberEnds {
    /// The number of fibers.
    pub fibers: usize,
    pub first: Path,
    pub last: Path,
}

impl FiberEnds {
    pub fn of(view: &TreeView<'_>) -> Result<Self> {
        let fibers = view.level_nodes(view.order() - 2);
        Ok(Self { fibers, first: path(view, 0)?, last: path(view, fibers - 1)? })
    }
}

/// The last fiber of a chunk, which may continue in the next one, and its sum.
#[derive(Clone, Copy, Debug)]
struct Open {
    path: Path,
    sum: f64,
}

/// Receives the sums of fibers, chunk after chunk, and hands over complete elements.
pub(super) struct ResultWriter<'s> {
    levels: ModeOrder,
    open: Option<Open>,
    sink: Option<Sink<'s>>,
    /// Whether this pass hands over elements.
    last: bool,
    elements: u64,
}

impl<'s> ResultWriter<'s> {
    /// For trees with these levels. Without a sink, elements are counted.
    pub fn new(levels: &ModeOrder, sink: Option<Sink<'s>>) -> Self {
        Self { levels: *levels, open: None, sink, last: true, elements: 0 }
    }

    /// Prepares for another pass. Elements are handed over if it is the `last`.
    pub fn reset(&mut self, last: bool) {
        self.last = last;
        self.open = None;
        self.elements = 0;
    }

    /// Whether elements are handed over, in which case [`ResultWriter::put`] needs the chunk's view.
    pub fn hands_over(&self) -> bool {
        self.last && self.sink.is_some()
    }

    /// The sum that the first fiber of a chunk continues, if it does.
    pub fn carried(&self, ends: &FiberEnds) -> Option<f64> {
        self.open.filter(|open| open.path == ends.first).map(|open| open.sum)
    }

    /// Hands over all elements of a chunk, with these `sums` of its fibers, except the last. Before them, hands over
    /// the open one if it is now complete.
    #[cfg(feature = "cuda")]
    pub fn put<T: Real, S: Real>(
        &mut self,
        ends: &FiberEnds,
        view: Option<&TreeView<'_>>,
        sums: &[S],
    ) -> Result<()> {
        let group = group_fibers(rayon::current_num_threads());
        let mut groups = sums.chunks(group).enumerate();
        groups.try_for_each(|(i, sums)| self.put_group::<T, S>(ends, view, i * group, sums))
    }

    /// The same for a group of a chunk's fibers from `first` on, which begins a tile.
    pub fn put_group<T: Real, S: Real>(
        &mut self,
        ends: &FiberEnds,
        view: Option<&TreeView<'_>>,
        first: usize,
        sums: &[S],
    ) -> Result<()> {
        let mut closed = None;
        if first == 0 {
            let continues = self.carried(ends).is_some();
            closed = self.open.take().filter(|_| !continues);
            self.elements += ends.fibers as u64 - u64::from(continues);
        }
        let is_last = first + sums.len() == ends.fibers;
        let hands_over = self.hands_over();
        if let (Some(sink), Some(view), true) = (&mut self.sink, view, hands_over) {
            let closed: Result<Vec<Batch>> =
                closed.iter().map(|open| element::<T>(&self.levels, open)).collect();
            let mut batches = closed?;
            let tasks = sums[..sums.len() - usize::from(is_last)].par_chunks(TASK_FIBERS).enumerate();
            let rest: Result<Vec<Batch>> =
                tasks.map(|(task, sums)| elements::<T, S>(view, first + task * TASK_FIBERS, sums)).collect();
            batches.extend(rest?);
            sink(batches)?;
        }
        if is_last {
            self.open = Some(Open { path: ends.last, sum: sums[sums.len() - 1].widen() });
        }
        Ok(())
    }

    /// Hands over the last element. Returns the number of all elements.
    pub fn finish<T: Real>(&mut self) -> Result<u64> {
        if let (Some(open), Some(sink)) = (self.open.take(), &mut self.sink) {
            sink(vec![element::<T>(&self.levels, &open)?])?;
        }
        Ok(self.elements)
    }
}

/// The coordinates of a fiber, level by level.
fn path(view: &TreeView<'_>, fiber: usize) -> Result<Path> {
    let level = view.order() - 2;
    let (mut path, mut nodes) = ([0; ORDER_MAX], Nodes::default());
    walk(view, level, fiber)?.go(view, fiber, &mut path)?;
    view.nodes(level, fiber / TILE_NNZ, &mut nodes)?;
    path[level] = nodes.indices[fiber % TILE_NNZ];
    Ok(path)
}

/// Appends the coordinates of a fiber in the order of the modes, without the leaf mode.
fn put_row(levels: &ModeOrder, path: &Path, out: &mut Vec<u32>) {
    let modes = levels.modes();
    let mut row = [0; ORDER_MAX];
    for (&mode, &index) in modes.iter().zip(path) {
        row[usize::from(mode)] = index;
    }
    out.extend((0..modes.len()).filter(|&m| m != levels.last()).map(|m| row[m]));
}

/// The element of a complete fiber.
fn element<T: Real>(levels: &ModeOrder, open: &Open) -> Result<Batch> {
    let mut batch = Batch { indices: Vec::new(), values: vec![T::nearest(open.sum).widen()] };
    put_row(levels, &open.path, &mut batch.indices);
    check_finite(&batch, levels.modes().len() - 1).map(|()| batch)
}

/// The elements of the fibers from `first` on with these sums. `first` begins a tile.
fn elements<T: Real, S: Real>(view: &TreeView<'_>, first: usize, sums: &[S]) -> Result<Batch> {
    let level = view.order() - 2;
    let mut batch = Batch {
        indices: Vec::with_capacity(sums.len() * (view.order() - 1)),
        values: sums.iter().map(|sum| T::nearest(sum.widen()).widen()).collect(),
    };
    let (mut path, mut nodes) = ([0; ORDER_MAX], Nodes::default());
    let mut walk = walk(view, level, first)?;
    for i in 0..sums.len() {
        if i.is_multiple_of(TILE_NNZ) {
            view.nodes(level, (first + i) / TILE_NNZ, &mut nodes)?;
        }
        walk.go(view, first + i, &mut path)?;
        path[level] = nodes.indices[i % TILE_NNZ];
        put_row(view.levels(), &path, &mut batch.indices);
    }
    check_finite(&batch, view.order() - 1).map(|()| batch)
}
