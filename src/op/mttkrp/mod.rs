//! MTTKRP, the matricized tensor times Khatri-Rao product (Nguyen et al., ICS 2022, section 2.3): for mode m,
//! `M[i_m, :] += value * product over k != m of A_k[i_k, :]` for every nonzero, `M` being `dims[m]` x rank.
//!
//! Any set of modes is computed in one pass. On the host the result depends only on the store's nonzeros, the factors
//! and the precision: not on threads, workers, the chunk size, the other modes computed, or the machine's vector width
//! (no operations are fused).
//!
//! **Order of additions.** Nonzeros are processed in groups of `GROUP_TILES` tiles, cut by position in the store. A
//! mode with a short result is accumulated in `group::COPIES` copies: group g adds to copy g modulo that number, in
//! linear order, and the copies are added in order at the end. In a longer mode whose rows repeat within groups, by the
//! manifest's statistics, a group adds up its contribution to each row in linear order, and groups are added to the
//! result in order. In other modes each row is added up in linear order, in pieces if it is long (module `lists`).
//! Products are in the precision of the factors, in the order that `kernel` states. Sums are always in f64, so that f32
//! results keep the small terms of long rows.
//!
//! **Threads.** A thread takes the next group, decodes its tiles, adds up its contributions, and adds these to the results
//! as soon as the previous group has been added (module `queue`), while they are still in its cache. For modes with lists, all threads
//! sort and add up each complete stretch of nonzeros.

mod costs;
mod covers;
#[cfg(feature = "cuda")]
pub mod cuda;
mod group;
mod kernel;
pub(super) mod lists;
mod mode_sorted;
mod path;
mod queue;
pub(super) mod rows;

pub use costs::Costs;
pub use covers::{ByCover, Served, served, serving, serving_bytes, serving_view};
pub use group::Strategy;
pub(crate) use kernel::{LINE_BYTES, PastCaches, prefetch};
pub use mode_sorted::{TakeSums, segment_rows};

use crate::backend::device::DeviceOrder;
use crate::backend::host::{HostOp, TileRoom, Tiles, Vectors, computing_bytes};
use crate::dense::{Matrix, MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::shape::ModeOrder;
use crate::store::{Manifest, Store};
use crate::sys::Sys;
use crate::sys::sync::{Mutex, at_once};
use group::{COPIES, Commit, Group, GroupWork, Inputs, Tables};
use lists::Stretch;
use mode_sorted::{Gathered, ModeSorted, Rooms};
use queue::{OrderedCommit, Shift, TileSource, WorkQueue, Workspace};
use rayon::prelude::*;
use rows::{AlignedRows, OwnRows};
use std::sync::{Arc, PoisonError};

/// Tiles of a group. Groups are cut by position in the store.
const GROUP_TILES: usize = 8;
/// Nonzeros of a whole group.
const GROUP_NNZ: usize = GROUP_TILES * TILE_NNZ;

/// The result of a mode, with the mode, from 0.
pub type ModeMatrix<T> = (usize, Matrix<T>);

/// MTTKRP of some modes on the host.
#[derive(Debug)]
pub struct Mttkrp<'a, T: Clone> {
    factors: Factors<'a, T>,
    results: Vec<Accumulator<'a>>,
    scratch: Scratch<T>,
}

/// The storage of factors.
#[derive(Debug)]
enum Factors<'a, T> {
    /// Lent by the caller.
    Lent(Vec<MatrixRef<'a, T>>),
    /// Owned here; they change between passes.
    Own(Vec<Matrix<T>>),
}

/// Memory besides factors and results.
#[derive(Debug)]
struct Scratch<T: Clone> {
    rank: usize,
    /// The distance between rows in slots and copies, in elements.
    stride: usize,
    vectors: Vectors,
    modes: Vec<(usize, Strategy)>,
    /// The strategy of each mode of a tensor when modes are computed one at a time.
    in_turn: Vec<Strategy>,
    /// Whether all modes are computed, in order and together.
    all: bool,
    /// Waiting nonzeros, if modes have lists.
    stretch: Option<Stretch>,
    /// Whether products of a single mode are in f64 whatever the factors are in.
    wide: bool,
    /// The rows that are computed if modes are computed one at a time.
    own: OwnRows,
    /// The factors of modes with copies, aligned, if all modes are computed.
    aligned: Vec<AlignedRows<T>>,
    /// Copies of the results of short modes, by mode in each. A group in work alone locks one.
    copies: Vec<Mutex<Vec<AlignedRows<f64>>>>,
    /// One per concurrent thread. All are here between batches, except the open one.
    workspaces: Vec<Workspace<T>>,
    /// Holds an incomplete group, which continues with the next batch.
    open: Option<Workspace<T>>,
    kept: Kept,
    /// The largest rank that mode-sorted copies serve.
    kept_rank: usize,
    /// The factors of modes with few rows relative to the tensor's nonzeros, with each row at the start of a cache
    /// line, if there are mode-sorted copies.
    lines: Vec<AlignedRows<T>>,
    /// For each partition, the order of modes of the tree along which its nonzeros are added up.
    trees: Vec<Option<ModeOrder>>,
    /// The current partition.
    part: usize,
    /// Takes the sums of the current pass.
    taker: Option<Arc<dyn TakeSums<T>>>,
}

impl<T: Clone> Scratch<T> {
    /// The rows whose nonzeros are taken from tiles, except for lists. Where one partition's tree ends and another's begins, which nodes
    /// meet depends on all nonzeros: these are all multiplied then, and other rows' sums discarded.
    fn own_in_tiles(&self) -> OwnRows {
        if self.trees.len() > 1 && has_trees(&self.trees) { OwnRows::ALL } else { self.own }
    }
}

/// What later passes keep of a store.
#[derive(Debug)]
enum Kept {
    Nothing,
    /// Copies are built from these at the end of the pass.
    Gathered(Gathered),
    /// Copies for the computed modes, or for all modes if they are computed one at a time.
    ModeSorted(Vec<ModeSorted>, Rooms),
}

impl Kept {
    /// Discards the rest of a pass that ended early.
    fn begin(&mut self) {
        if let Self::Gathered(gathered) = self {
            gathered.clear();
        }
    }
}

/// The growing sums of one mode.
#[derive(Debug)]
struct Accumulator<'a> {
    mode: usize,
    rows: usize,
    /// `rows` x rank numbers, then room that this mode does not use.
    sums: Sums<'a>,
}

/// Memory for sums.
#[derive(Debug)]
pub enum Sums<'a> {
    /// Allocated here.
    Own(Vec<f64>),
    /// Lent by the caller.
    Lent(&'a mut [f64]),
}

impl Sums<'_> {
    fn as_mut(&mut self) -> &mut [f64] {
        match self {
            Self::Own(sums) => sums,
            Self::Lent(sums) => sums,
        }
    }

    /// The sums, if they were allocated here.
    #[must_use]
    pub fn into_vec(self) -> Vec<f64> {
        match self {
            Self::Own(sums) => sums,
            Self::Lent(_) => Vec::new(),
        }
    }
}

impl<T: Real> Factors<'_, T> {
    fn views(&self) -> Vec<MatrixRef<'_, T>> {
        match self {
            Self::Lent(factors) => factors.clone(),
            Self::Own(factors) => factors.iter().map(MatrixRef::from).collect(),
        }
    }

    /// The owned factors.
    fn own(&mut self) -> &mut Vec<Matrix<T>> {
        match self {
            Self::Own(factors) => factors,
            Self::Lent(_) => unreachable!("only an alternating operation changes its factors"),
        }
    }
}

/// Memory besides factors and results.
struct MttkrpMemory {
    workspaces: usize,
    rank: usize,
    stride: usize,
    /// The most slots of each computed mode.
    slots: Vec<usize>,
    /// The most rows of its copies.
    copied: Vec<usize>,
    all: bool,
    /// Order and nonzeros of a tensor, if modes have lists.
    listed: Option<(usize, u64)>,
    /// For each partition, the order of modes if its nonzeros form a tree.
    trees: Vec<Option<ModeOrder>>,
    order: usize,
}

/// For each partition, the order of modes of the tree along which its nonzeros are added up.
fn trees(manifest: &Manifest) -> Vec<Option<ModeOrder>> {
    manifest.partitions.iter().map(|partition| partition.format.traversal()).collect()
}

/// Whether there are trees.
fn has_trees(trees: &[Option<ModeOrder>]) -> bool {
    trees.iter().any(Option::is_some)
}

impl MttkrpMemory {
    /// For `modes` of a store, from 0, factors in `T`.
    fn new<T>(manifest: &Manifest, modes: &[usize], rank: usize, threads: usize) -> Self {
        // At most as many as copies, so that no two groups in progress share a copy.
        let workspaces = threads.min(COPIES);
        let strategies = strategies(manifest, modes, rank);
        let (dims, order) = (manifest.shape.dims(), manifest.shape.order());
        let of = |strategy| {
            let rows = modes.iter().map(|&m| dims[m] as usize).zip(&strategies);
            rows.map(move |(rows, &of_mode)| if of_mode == strategy { rows } else { 0 })
        };
        let has_lists = strategies.contains(&Strategy::Lists);
        Self {
            workspaces,
            rank,
            stride: kernel::stride::<T>(rank),
            slots: of(Strategy::Slots).map(|rows| rows.min(GROUP_NNZ)).collect(),
            copied: of(Strategy::Copies).collect(),
            all: modes.iter().copied().eq(0..order) && !has_lists && !has_trees(&trees(manifest)),
            listed: has_lists.then_some((order, manifest.nnz)),
            trees: trees(manifest),
            order,
        }
    }

    /// For any single mode of a store at a time.
    fn for_any<T>(manifest: &Manifest, rank: usize, threads: usize) -> Self {
        let each = |mode| Self::new::<T>(manifest, &[mode], rank, threads);
        let most = |a: Self, b: Self| {
            let (slots, copied) = (a.slots[0].max(b.slots[0]), a.copied[0].max(b.copied[0]));
            Self { slots: vec![slots], copied: vec![copied], all: false, listed: a.listed.or(b.listed), ..a }
        };
        (0..manifest.shape.order()).map(each).reduce(most).expect("a shape has modes")
    }

    /// Whether threads decode the tiles of their groups. (Lists take the tiles of all.)
    fn decodes(&self) -> bool {
        self.listed.is_none()
    }

    /// The number of levels, if nonzeros form a tree.
    fn levels(&self) -> Option<usize> {
        has_trees(&self.trees).then_some(self.order)
    }

    fn bytes<T: Real>(&self) -> u64 {
        let copied: usize = self.copied.iter().map(|rows| rows * self.stride).sum();
        let aligned = if self.all { copied * size_of::<T>() } else { 0 };
        let workspace = Group::bytes(&self.slots, self.stride, self.levels())
            + Tables::<T>::bytes(&self.slots, self.stride, self.all)
            + if self.decodes() { TileRoom::bytes(self.order, GROUP_TILES) } else { 0 };
        let workspaces = self.workspaces as u64 * workspace + computing_bytes(self.workspaces);
        let lists = self.listed.map_or(0, |(order, nnz)| Stretch::bytes(order, nnz, self.rank));
        workspaces + lists + (COPIES * copied * size_of::<f64>() + aligned) as u64
    }
}

/// Elements of each mode's factor that is copied to cache lines for mode-sorted copies; 0 if its rows would not align
/// with them, or if there are many.
fn lines(manifest: &Manifest, rank: usize, element: usize) -> Vec<usize> {
    /// With at least this many nonzeros per row, copying a factor costs little.
    const NNZ_PER_ROW: u64 = 32;
    let fits = (rank * element).is_multiple_of(LINE_BYTES);
    let elements = |&dim: &u32| {
        if fits && u64::from(dim) * NNZ_PER_ROW <= manifest.nnz { dim as usize * rank } else { 0 }
    };
    manifest.shape.dims().iter().map(elements).collect()
}

/// The requirements of mode-sorted copies.
#[derive(Clone, Copy, Debug)]
pub struct ModeSortedDemand {
    /// Bytes of the copies and what they are built from; `None` if there are too many nonzeros.
    pub bytes: Option<u64>,
    /// What passes take with and without them.
    pub costs: Costs,
}

impl ModeSortedDemand {
    /// Whether `passes` passes should have copies, if there is room for them, and why.
    #[must_use]
    pub fn wanted(&self, passes: u32, order: DeviceOrder) -> (bool, &'static str) {
        match order {
            DeviceOrder::Store => (false, "the store's order was asked for"),
            _ if self.bytes.is_none() => (false, "they are for less than 2^32 nonzeros, and not for trees"),
            DeviceOrder::Auto if self.costs.pays_from().is_none_or(|from| passes < from) => {
                (false, "they would take longer")
            }
            DeviceOrder::Auto => (true, "they save time"),
            _ => (true, "they were asked for"),
        }
    }

    /// For copies of `modes`, from 0, with factors in `T`. With `alternating`, each pass computes one mode.
    #[must_use]
    pub fn new<T>(
        manifest: &Manifest,
        modes: &[usize],
        rank: usize,
        threads: usize,
        alternating: bool,
    ) -> Self {
        let lines: usize =
            lines(manifest, rank, size_of::<T>()).iter().map(|n| n * size_of::<T>() + LINE_BYTES).sum();
        let bytes = mode_sorted::bytes(manifest.shape.dims(), modes.len(), manifest.nnz, rank, threads);
        let costs = Costs::new::<T>(manifest, modes, rank, threads, alternating);
        // Adding up along trees gives other bits.
        let bytes = bytes.filter(|_| !has_trees(&trees(manifest)));
        Self { bytes: bytes.map(|bytes| bytes.saturating_add(lines as u64)), costs }
    }
}

/// How each of `modes` is computed.
#[must_use]
pub fn strategies(manifest: &Manifest, modes: &[usize], rank: usize) -> Vec<Strategy> {
    modes.iter().map(|&m| Strategy::of(manifest, m, rank)).collect()
}

/// Bytes that [`Mttkrp::alternating`] holds: all factors, the largest sums, and the groups' memory.
#[must_use]
pub fn alternating_bytes<T: Real>(manifest: &Manifest, rank: usize, threads: usize) -> u64 {
    let elements = |&dim: &u32| u64::from(dim) * rank as u64;
    let factors: u64 = manifest.shape.dims().iter().map(elements).sum();
    let sums = manifest.shape.dims().iter().map(elements).max();
    let room = MttkrpMemory::for_any::<T>(manifest, rank, threads);
    factors * size_of::<T>() as u64 + sums.unwrap_or(0) * size_of::<f64>() as u64 + room.bytes::<T>()
}

/// Bytes that MTTKRP of `modes` holds on the host, factors and results included.
#[must_use]
pub fn host_bytes<T: Real>(manifest: &Manifest, modes: &[usize], rank: usize, threads: usize) -> u64 {
    let shape = &manifest.shape;
    let matrix = |m: usize, element: usize| u64::from(shape.dims()[m]) * rank as u64 * element as u64;
    let factors: u64 = (0..shape.order()).map(|m| matrix(m, size_of::<T>())).sum();
    let converted = |m: usize| if size_of::<T>() == 8 { 0 } else { matrix(m, size_of::<T>()) };
    let room = MttkrpMemory::new::<T>(manifest, modes, rank, threads);
    factors + modes.iter().map(|&m| matrix(m, 8) + converted(m)).sum::<u64>() + room.bytes::<T>()
}

impl<'a, T: Real> Mttkrp<'a, T> {
    /// MTTKRP of `modes`, from 0, with `factors[m]` `dims[m]` x rank; runs on the current pool of `threads`.
    pub fn new(store: &Store, factors: &'a [Matrix<T>], modes: &[usize], threads: usize) -> Result<Self> {
        let made = Mttkrp::prepare(store, factors[0].columns(), modes, threads)?;
        let sums = made.own_sums(store.sys())?;
        Ok(made.lend(factors.iter().map(MatrixRef::from).collect(), sums))
    }

    /// MTTKRP of `modes`, from 0, of a store, with everything that `threads` threads of the current pool need
    /// except factors of `rank` columns and memory for results: see [`Mttkrp::lend`].
    pub fn prepare(
        store: &Store,
        rank: usize,
        modes: &[usize],
        threads: usize,
    ) -> Result<Mttkrp<'static, T>> {
        let (sys, manifest) = (store.sys(), store.manifest());
        let dims = manifest.shape.dims();
        if let Some(mode) = modes.iter().find(|&&m| m >= dims.len()) {
            return Err(Error::request(format!("mode {} of a tensor of order {}", mode + 1, dims.len())));
        }
        let accumulator =
            |&mode: &usize| Accumulator { mode, rows: dims[mode] as usize, sums: Sums::Own(Vec::new()) };
        let room = MttkrpMemory::new::<T>(manifest, modes, rank, threads);
        let results: Vec<Accumulator<'_>> = modes.iter().map(accumulator).collect();
        let of_modes = strategies(manifest, modes, rank);
        let mut mttkrp = Mttkrp::with_room(sys, Factors::Lent(Vec::new()), results, of_modes, &room)?;
        if room.all {
            let aligned = |rows: &usize| AlignedRows::new(sys, rows * room.stride);
            mttkrp.scratch.aligned = room.copied.iter().map(aligned).collect::<Result<_>>()?;
        }
        Ok(mttkrp)
    }

    /// Zeros for the results of each mode.
    pub fn own_sums(&self, sys: &Sys) -> Result<Vec<Sums<'static>>> {
        let rank = self.scratch.rank;
        let zeros = |result: &Accumulator<'_>| Ok(Sums::Own(sys.par_vec(result.rows * rank, |_| 0.0)?));
        self.results.par_iter().map(zeros).collect()
    }

    /// The same with other factors and other memory for each mode's results. Call [`Mttkrp::reset`] unless that memory
    /// is zero.
    #[must_use]
    pub fn lend<'b>(mut self, factors: Vec<MatrixRef<'b, T>>, sums: Vec<Sums<'b>>) -> Mttkrp<'b, T> {
        let Scratch { stride, modes, aligned, stretch, kept, .. } = &mut self.scratch;
        stretch.iter_mut().for_each(Stretch::clear);
        kept.begin();
        let aligned = aligned.par_iter_mut().zip(&factors).zip(modes);
        aligned.filter(|(_, (_, strategy))| *strategy == Strategy::Copies).for_each(
            |((aligned, factor), _)| {
                aligned.copy_from(*factor, *stride);
            },
        );
        let accumulator = |(Accumulator { mode, rows, .. }, sums): (Accumulator<'_>, Sums<'b>)| Accumulator {
            mode,
            rows,
            sums,
        };
        let results = self.results.into_iter().zip(sums).map(accumulator).collect();
        Mttkrp { factors: Factors::Lent(factors), results, scratch: self.scratch }
    }

    /// The results so far, with their modes, and the operation without them.
    #[must_use]
    pub fn take(self) -> (Vec<(usize, Sums<'a>)>, Mttkrp<'static, T>) {
        let (mut results, mut taken) = (Vec::new(), Vec::new());
        for Accumulator { mode, rows, sums } in self.results {
            taken.push((mode, sums));
            results.push(Accumulator { mode, rows, sums: Sums::Own(Vec::new()) });
        }
        (taken, Mttkrp { factors: Factors::Lent(Vec::new()), results, scratch: self.scratch })
    }

    fn with_room(
        sys: &Sys,
        factors: Factors<'a, T>,
        results: Vec<Accumulator<'a>>,
        strategies: Vec<Strategy>,
        room: &MttkrpMemory,
    ) -> Result<Self> {
        let (rank, stride) = (room.rank, room.stride);
        let workspace = |_| -> Result<_> {
            let group = Group::new(sys, &room.slots, stride, room.levels())?;
            let tables = Tables::new(sys, &room.slots, stride, room.all)?;
            let room = room.decodes().then(|| TileRoom::new(sys, room.order, GROUP_TILES)).transpose()?;
            Ok(Workspace { group, tables, room })
        };
        let copy = |&rows: &usize| {
            let mut sums = AlignedRows::new(sys, rows * stride)?;
            sums.grow(rows * stride);
            Ok(sums)
        };
        let copies = |_| Ok(Mutex::new(room.copied.iter().map(copy).collect::<Result<_>>()?));
        let scratch = Scratch {
            rank,
            stride,
            vectors: Vectors::Widest,
            modes: results.iter().map(|result| result.mode).zip(strategies).collect(),
            in_turn: Vec::new(),
            all: room.all,
            stretch: room.listed.map(|(order, nnz)| Stretch::new(sys, order, nnz, rank)).transpose()?,
            wide: false,
            own: OwnRows::ALL,
            aligned: Vec::new(),
            copies: (0..COPIES).map(copies).collect::<Result<_>>()?,
            workspaces: (0..room.workspaces).map(workspace).collect::<Result<_>>()?,
            open: None,
            kept: Kept::Nothing,
            kept_rank: rank,
            lines: Vec::new(),
            trees: room.trees.clone(),
            part: 0,
            taker: None,
        };
        Ok(Self { factors, results, scratch })
    }

    /// Makes the first pass build mode-sorted copies, which later passes use. The results are the same.
    ///
    /// Adding up along trees gives other bits, so such stores are read again in each pass.
    pub fn keep_mode_sorted(self, store: &Store) -> Result<Self> {
        if has_trees(&self.scratch.trees) {
            return Ok(self);
        }
        let (dims, nnz) = (store.manifest().shape.dims(), store.manifest().nnz);
        let gathered = Gathered::new(store.sys(), dims, nnz, self.scratch.own)?;
        self.with_kept(store, Kept::Gathered(gathered))
    }

    /// The same with these copies or their source.
    fn with_kept(mut self, store: &Store, kept: Kept) -> Result<Self> {
        let lines = lines(store.manifest(), self.scratch.rank, size_of::<T>()).into_iter();
        let line = |elements| AlignedRows::new(store.sys(), elements);
        self.scratch.lines = lines.map(line).collect::<Result<_>>()?;
        self.scratch.kept = kept;
        Ok(self)
    }

    /// MTTKRP of one mode at a time, selected by [`Mttkrp::aim`], with factors that change between passes. It has
    /// none until [`Mttkrp::put`].
    pub fn alternating(store: &Store, rank: usize, threads: usize) -> Result<Mttkrp<'static, T>> {
        let (sys, manifest) = (store.sys(), store.manifest());
        let rows = manifest.shape.dims().iter().map(|&dim| dim as usize).max().expect("a shape has modes");
        let sums = Sums::Own(sys.par_vec(rows * rank, |_| 0.0)?);
        let results = vec![Accumulator { mode: 0, rows: 0, sums }];
        let room = MttkrpMemory::for_any::<T>(manifest, rank, threads);
        let all: Vec<usize> = (0..manifest.shape.order()).collect();
        let in_turn = strategies(manifest, &all, rank);
        let mut mttkrp =
            Mttkrp::with_room(sys, Factors::Own(Vec::new()), results, in_turn[..1].to_vec(), &room)?;
        mttkrp.scratch.in_turn = in_turn;
        Ok(mttkrp)
    }

    /// Computes only a part of each mode's rows, with the same bits; the others' sums are zero. All `count` operations on the same
    /// store, from number 0, compute each row once. Call it before [`Mttkrp::keep_mode_sorted`].
    #[must_use]
    pub fn with_own_rows(self, number: usize, count: usize) -> Self {
        self.with_own(OwnRows::new(number, count))
    }

    fn with_own(mut self, own: OwnRows) -> Self {
        self.scratch.own = own;
        self.scratch.stretch.iter_mut().for_each(|stretch| stretch.own = own);
        self
    }

    /// One of [`Mttkrp::alternating`] for factors of another rank, at most that of the first. Mode-sorted copies stay
    /// unless a mode's order of additions depends on the rank; then the next pass builds them again.
    pub fn with_rank(self, store: &Store, rank: usize, threads: usize) -> Result<Mttkrp<'static, T>> {
        let Scratch { vectors, own, .. } = self.scratch;
        let (kept, kept_rank, in_turn) = self.into_kept();
        let mut made = Mttkrp::alternating(store, rank, threads)?.with_vectors(vectors).with_own(own);
        made.scratch.kept_rank = kept_rank;
        match kept {
            Kept::Nothing => Ok(made),
            Kept::ModeSorted(copies, _) if made.scratch.in_turn != in_turn => {
                drop(copies);
                made.keep_mode_sorted(store)
            }
            kept => made.with_kept(store, kept),
        }
    }

    /// What is kept of the store, and for which rank and strategies. Everything else is dropped.
    fn into_kept(self) -> (Kept, usize, Vec<Strategy>) {
        (self.scratch.kept, self.scratch.kept_rank, self.scratch.in_turn)
    }

    /// The same with narrower vector instructions; results are the same.
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.scratch.vectors = vectors;
        self
    }

    /// Takes `factors` of the prepared shape and rank, and returns the previous ones.
    pub fn put(&mut self, factors: Vec<Matrix<T>>) -> Vec<Matrix<T>> {
        std::mem::replace(self.factors.own(), factors)
    }

    /// The factors of an alternating operation.
    #[must_use]
    pub fn factors(&mut self) -> &[Matrix<T>] {
        self.factors.own()
    }

    /// Selects `mode` for the next pass; with `wide`, products are in f64. The sums must be zero unless
    /// the operation holds mode-sorted copies.
    pub fn aim(&mut self, mode: usize, wide: bool) {
        let rows = self.factors.own()[mode].rows();
        let (result, scratch) = (&mut self.results[0], &mut self.scratch);
        (result.mode, result.rows) = (mode, rows);
        scratch.wide = wide;
        scratch.modes[0] = (mode, scratch.in_turn[mode]);
        scratch.kept.begin();
        scratch.stretch.iter_mut().for_each(Stretch::clear);
        scratch.taker = None;
    }

    /// Whether sums of `mode` can be taken a segment at a time: mode-sorted copies are there, and the result has several segments.
    #[must_use]
    pub fn has_segments(&mut self, mode: usize) -> bool {
        let (rows, of_segment) = (self.factors()[mode].rows(), segment_rows(self.scratch.rank));
        let Kept::ModeSorted(copies, _) = &self.scratch.kept else { return false };
        rows > of_segment && copies[mode].fits_segments(of_segment)
    }

    /// Hands the sums of the next pass to `taker`, if [`Mttkrp::has_segments`] of its mode. They are not stored; [`Mttkrp::sums_and_factor`]'s
    /// are unspecified then.
    pub fn hand_over(&mut self, taker: Arc<dyn TakeSums<T>>) {
        self.scratch.taker = Some(taker);
    }

    /// The sums of the mode selected by [`Mttkrp::aim`], `dims[mode]` x rank, which the caller must leave as the next pass
    /// needs them, and the mode's factor, which may change.
    pub fn sums_and_factor(&mut self) -> (&mut [f64], &mut Matrix<T>) {
        let result = &mut self.results[0];
        let factor = &mut self.factors.own()[result.mode];
        (result.sums_mut(self.scratch.rank), factor)
    }

    /// Zeroes the sums before another pass.
    pub fn reset(&mut self) {
        self.scratch.stretch.iter_mut().for_each(Stretch::clear);
        let is_made = matches!(self.scratch.kept, Kept::ModeSorted(..));
        for (result, (_, strategy)) in self.results.iter_mut().zip(&self.scratch.modes) {
            if *strategy != Strategy::Copies && !is_made {
                result.sums.as_mut().par_iter_mut().for_each(|x| *x = 0.0);
            }
        }
    }

    /// The results so far, with their modes, rounded to `T`.
    #[must_use]
    pub fn finish(self) -> Vec<ModeMatrix<T>> {
        let rank = self.scratch.rank;
        let matrix = |(mode, sums): (usize, Sums<'_>)| {
            let sums = sums.into_vec();
            (mode, Matrix::from_rows(sums.len() / rank, rank, T::from_f64s(sums)))
        };
        self.take().0.into_iter().map(matrix).collect()
    }
}

impl<T: Real> Mttkrp<'_, T> {
    /// Keeps a batch's nonzeros for modes with lists, and adds up each complete stretch.
    fn collect(&mut self, batch: &Tiles<'_>) {
        let mut from = 0;
        while from < batch.tiles() {
            let Some(stretch) = &mut self.scratch.stretch else { return };
            let (next, is_whole) = stretch.take(batch, from);
            from = next;
            if is_whole {
                self.add_lists();
            }
        }
    }

    /// Adds the waiting nonzeros to the modes with lists.
    fn add_lists(&mut self) {
        let Scratch { rank, vectors, wide, modes, stretch: Some(stretch), .. } = &mut self.scratch else {
            return;
        };
        let factors = &self.factors.views();
        let inputs = lists::Inputs { factors, rank: *rank, wide: *wide, vectors: vectors.narrow().arch() };
        for (result, &(mode, strategy)) in self.results.iter_mut().zip(&*modes) {
            if strategy == Strategy::Lists {
                stretch.add(mode, inputs, result.sums_mut(*rank));
            }
        }
        stretch.clear();
    }
}

impl<T: Real> Mttkrp<'_, T> {
    /// Sorts the gathered nonzeros.
    fn build_mode_sorted(&mut self) -> Result<()> {
        let scratch = &mut self.scratch;
        let Kept::Gathered(gathered) = &scratch.kept else { return Ok(()) };
        if !gathered.is_whole() {
            // The store's chunks do not have the number of nonzeros in its manifest.
            scratch.kept = Kept::Nothing;
            return Ok(());
        }
        let modes: Vec<(usize, Strategy)> = if scratch.in_turn.is_empty() {
            scratch.modes.clone()
        } else {
            (0..).zip(scratch.in_turn.iter().copied()).collect()
        };
        let copies = ModeSorted::build(gathered, &modes, scratch.kept_rank)?;
        scratch.kept = Kept::ModeSorted(copies, Rooms::new(gathered.sys(), scratch.kept_rank)?);
        Ok(())
    }

    /// Computes the results from mode-sorted copies.
    fn compute_from_mode_sorted(&mut self) -> Result<()> {
        let Self { factors, results, scratch } = self;
        let Scratch {
            rank,
            vectors,
            wide,
            modes,
            in_turn,
            lines,
            taker,
            kept: Kept::ModeSorted(copies, rooms),
            ..
        } = scratch
        else {
            return Ok(());
        };
        let (rank, mode, taker) = (*rank, modes[0].0, taker.take());
        // No mode's copies read its own factor.
        let mut target = taker
            .as_ref()
            .map(|_| std::mem::replace(&mut factors.own()[mode], Matrix::from_rows(0, rank, Vec::new())));
        let mut views = factors.views();
        for (factor, lines) in views.iter_mut().zip(lines) {
            if lines.has_room_for(factor.data()) && !rows::is_aligned(factor.data()) {
                lines.copy_all(factor.data());
                *factor = MatrixRef::from_rows(factor.rows(), factor.columns(), lines.data());
            }
        }
        // Rows that are shorter than the widest vector.
        let vectors = if rank * size_of::<T>() < LINE_BYTES { vectors.narrow() } else { *vectors };
        let inputs = lists::Inputs { factors: &views, rank, wide: *wide, vectors: vectors.arch() };
        let computed = if let (Some(taker), Some(target)) = (taker, &mut target) {
            let (sums, factor) = (results[0].sums_mut(rank), target.data_mut());
            mode_sorted::compute_segments(&mut copies[mode], inputs, sums, factor, &*taker, rooms)
        } else {
            let mut of_modes: Vec<&mut ModeSorted> =
                if in_turn.is_empty() { copies.iter_mut().collect() } else { vec![&mut copies[mode]] };
            let mut sums: Vec<&mut [f64]> = results.iter_mut().map(|result| result.sums_mut(rank)).collect();
            mode_sorted::compute(&mut of_modes, inputs, &mut sums, rooms)
        };
        if let Some(target) = target {
            factors.own()[mode] = target;
        }
        computed
    }
}

impl<T: Real> Mttkrp<'_, T> {
    /// Closes the open nodes of an incomplete group.
    fn close_open_group(&mut self) {
        let factors = &self.factors.views();
        let Scratch { rank, stride, vectors, modes, wide, own, copies, open, trees, part, .. } =
            &mut self.scratch;
        let (Some(Workspace { group, tables, .. }), tree @ Some(_)) = (open, trees[*part]) else { return };
        group.tiles = 0..0;
        let tiles = &Tiles::none(factors.len());
        let (rank, stride, wide, own) = (*rank, *stride, *wide, *own);
        let (aligned, all, ends) = (&[][..], false, true);
        let inputs = Inputs { factors, aligned, rank, stride, modes, all, wide, tree, ends, own };
        #[expect(clippy::cast_possible_truncation, reason = "less than COPIES")]
        let copy = copies[(group.number % COPIES as u64) as usize].get_mut();
        let copy = copy.unwrap_or_else(PoisonError::into_inner);
        vectors.arch().dispatch(GroupWork { group, copy, tables, tiles, inputs });
    }
}

impl<T: Real> Mttkrp<'_, T> {
    /// Whether threads decode the tiles of their groups.
    fn decodes(&self) -> bool {
        let Scratch { workspaces, open, kept, .. } = &self.scratch;
        let has_room = workspaces.iter().chain(open).all(|workspace| workspace.room.is_some());
        has_room && !matches!(kept, Kept::Gathered(_))
    }

    /// Adds the nonzeros of tiles to the modes with copies or slots.
    fn add_groups(&mut self, tiles: TileSource<'_>) -> Result<()> {
        let groups = tiles.groups();
        // Left by a pass that ended early.
        let tree = self.scratch.trees[self.scratch.part];
        let own = self.scratch.own_in_tiles();
        let Scratch { rank, stride, vectors, modes, all, wide, aligned, copies, workspaces, open, .. } =
            &mut self.scratch;
        workspaces.extend(open.take_if(|open| open.group.number != groups.start));
        // A single mode reads factor rows unaligned, and then every load of a wider vector would cross a cache line.
        let vectors = [if *all { *vectors } else { vectors.narrow() }, *vectors].map(Vectors::arch);
        let (rank, stride, all, wide) = (*rank, *stride, *all, *wide);
        let factors = &self.factors.views();
        let ends = false;
        let inputs = Inputs { factors, aligned, rank, stride, modes, all, wide, tree, ends, own };
        let first = groups.start;
        let threads = workspaces.len() + usize::from(open.is_some());
        let in_order = modes.iter().any(|&(_, strategy)| strategy == Strategy::Slots);
        let results = self.results.iter_mut().zip(&*modes).filter(|_| in_order);
        let commits = results.map(|(result, &(_, strategy))| {
            let adding = if strategy == Strategy::Slots { threads } else { 1 };
            OrderedCommit::new(first, result.sums_mut(rank), rank, adding)
        });
        let commits = commits.collect();
        let queue = Mutex::new(WorkQueue::new(groups, in_order, workspaces, open));
        let failed = Mutex::new(None);
        let shift = Shift { tiles, inputs, copies, queue, commits, vectors, failed };
        at_once(threads, || shift.work());
        shift.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl<T: Real> HostOp for Mttkrp<'_, T> {
    fn part(&mut self, part: usize) -> Result<()> {
        self.scratch.part = part;
        Ok(())
    }

    fn holds_store(&self) -> bool {
        matches!(self.scratch.kept, Kept::ModeSorted(..))
    }

    fn takes_tiles(&self) -> bool {
        !self.decodes()
    }

    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        if self.decodes() && !self.holds_store() {
            self.add_groups(TileSource::Chunk(chunk, self.scratch.vectors.arch()))?;
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        if self.decodes() {
            return Ok(());
        }
        match &mut self.scratch.kept {
            Kept::Nothing => {}
            Kept::Gathered(gathered) => gathered.take(batch),
            Kept::ModeSorted(..) => return Ok(()),
        }
        let is_listed = |&&(_, strategy): &&(usize, Strategy)| strategy == Strategy::Lists;
        let listed = self.scratch.modes.iter().filter(is_listed).count();
        if listed > 0 {
            self.collect(batch);
        }
        if listed == self.scratch.modes.len() {
            return Ok(());
        }
        self.add_groups(TileSource::Decoded(batch))
    }

    /// Adds the last group of the store, which may be incomplete. Sums of modes with copies become the sums of the
    /// copies, which are zeroed.
    fn end(&mut self) -> Result<()> {
        if self.holds_store() {
            return self.compute_from_mode_sorted();
        }
        self.add_lists();
        self.close_open_group();
        let scratch = &mut self.scratch;
        let (rank, stride) = (scratch.rank, scratch.stride);
        if let Some(mut workspace) = scratch.open.take() {
            for (mode, result) in self.results.iter_mut().enumerate() {
                if scratch.modes[mode].1 == Strategy::Slots {
                    workspace.group.modes[mode].sort(result.rows, 1);
                    let (group, sums) = (&workspace.group, result.sums_mut(rank));
                    let all = Commit { group, mode, range: 0, first_row: 0, rank, stride, sums };
                    scratch.vectors.arch().dispatch(all);
                }
            }
            scratch.workspaces.push(workspace);
        }
        for (k, result) in self.results.iter_mut().enumerate() {
            if scratch.modes[k].1 == Strategy::Copies {
                let mut copies = scratch.copies.iter_mut();
                let copies = std::array::from_fn(|_| {
                    let copy = copies.next().expect("as many as there are");
                    let copy = &mut copy.get_mut().unwrap_or_else(PoisonError::into_inner)[k];
                    &mut copy.data_mut()[..result.rows * stride]
                });
                add_up(result.sums_mut(rank), copies, rank, stride);
            }
        }
        let own = scratch.own;
        if !own.is_all() && scratch.own_in_tiles().is_all() {
            let rows = (0..).zip(self.results[0].sums_mut(rank).chunks_exact_mut(rank));
            rows.filter(|&(row, _)| !own.has(row)).for_each(|(_, sums)| sums.fill(0.0));
        }
        self.build_mode_sorted()
    }
}

/// Sets `sums` to the sum of `copies`, added in order, and zeroes these. Rows of `sums` have `rank` numbers, those of
/// copies `stride`.
fn add_up(sums: &mut [f64], mut copies: [&mut [f64]; COPIES], rank: usize, stride: usize) {
    /// Rows that one thread adds up.
    const ROWS: usize = 128;
    let rows = sums.len() / rank;
    if rows > ROWS {
        let half = rows / 2;
        let (sums, others) = sums.split_at_mut(half * rank);
        let mut halves = copies.map(|copy| copy.split_at_mut(half * stride));
        let first = halves.each_mut().map(|(first, _)| std::mem::take(first));
        let second = halves.map(|(_, second)| second);
        rayon::join(|| add_up(sums, first, rank, stride), || add_up(others, second, rank, stride));
        return;
    }
    for (row, sums) in sums.chunks_exact_mut(rank).enumerate() {
        sums.fill(0.0);
        for copy in &mut copies {
            for (sum, x) in sums.iter_mut().zip(&mut copy[row * stride..]) {
                *sum += std::mem::take(x);
            }
        }
    }
}

impl Accumulator<'_> {
    fn sums_mut(&mut self, rank: usize) -> &mut [f64] {
        &mut self.sums.as_mut()[..self.rows * rank]
    }
}
