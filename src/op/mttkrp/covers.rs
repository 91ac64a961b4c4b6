//! MTTKRP from several covers: each mode uses the cover that serves it best, all in one pass over these covers'
//! chunks.

use super::{ModeMatrix, Mttkrp, Strategy, Sums, host_bytes, trees};
use crate::backend::host::{HostOp, Tiles, Vectors};
use crate::dense::{MatrixRef, Real};
use crate::error::Result;
use crate::format::ChunkView;
use crate::shape::ModeOrder;
use crate::store::{Manifest, Store};
use crate::sys::Sys;
use serde::Serialize;

/// The covers that serve `modes`, from 0, in ascending order, each with its modes.
#[must_use]
pub fn serving(whole: &Manifest, modes: &[usize]) -> Vec<(u32, Vec<usize>)> {
    let mut covers: Vec<(u32, Vec<usize>)> = Vec::new();
    for &mode in modes {
        let cover = whole.cover_for(mode);
        match covers.iter_mut().find(|(known, _)| *known == cover) {
            Some((_, modes)) => modes.push(mode),
            None => covers.push((cover, vec![mode])),
        }
    }
    covers.sort_unstable_by_key(|(cover, _)| *cover);
    covers
}

/// The view of `store` for a pass over `modes`, from 0: the covers that serve them.
#[must_use]
pub fn serving_view(store: &Store, modes: &[usize]) -> Store {
    let covers: Vec<u32> = serving(store.whole(), modes).into_iter().map(|(cover, _)| cover).collect();
    store.view(&covers)
}

/// How a mode is computed on the host, and from what.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// The mode, from 1.
    pub mode: usize,
    /// The cover.
    pub cover: u32,
    /// For each of the cover's partitions, the order of modes, from 1, of the tree along which sums are added up; empty
    /// if nonzeros are multiplied separately.
    pub trees: Vec<Vec<usize>>,
    /// How threads share the mode's sums.
    pub strategy: Strategy,
}

/// The same for each of `modes`, from 0, in order.
#[must_use]
pub fn served(whole: &Manifest, modes: &[usize], rank: usize) -> Vec<Served> {
    let of_mode = |&mode: &usize| {
        let cover = whole.cover_for(mode);
        let own = whole.select(&whole.cover(cover));
        let from_one = |levels: ModeOrder| levels.modes().iter().map(|&m| usize::from(m) + 1).collect();
        let strategy = Strategy::of(&own, mode, rank);
        let trees = if strategy == Strategy::Lists { Vec::new() } else { trees(&own) };
        let trees = trees.into_iter().flatten().map(from_one).collect();
        Served { mode: mode + 1, cover, trees, strategy }
    };
    modes.iter().map(of_mode).collect()
}

/// Bytes that MTTKRP of `modes` holds on the host, factors and results included.
#[must_use]
pub fn serving_bytes<T: Real>(whole: &Manifest, modes: &[usize], rank: usize, threads: usize) -> u64 {
    let rows: u64 = whole.shape.dims().iter().map(|&dim| u64::from(dim)).sum();
    let factors = rows * rank as u64 * size_of::<T>() as u64;
    let each = serving(whole, modes).into_iter().map(|(cover, modes)| {
        // All operations share the factors.
        host_bytes::<T>(&whole.select(&whole.cover(cover)), &modes, rank, threads) - factors
    });
    factors + each.sum::<u64>()
}

/// The operation.
#[derive(Debug)]
pub struct ByCover<'a, T: Clone> {
    /// The modes in the order of the results.
    modes: Vec<usize>,
    ops: Vec<Mttkrp<'a, T>>,
    /// For each partition of the view, its operation and its number there.
    parts: Vec<(usize, usize)>,
    /// The operation that is active now.
    now: usize,
}

impl<T: Real> ByCover<'static, T> {
    /// See [`Mttkrp::prepare`]. Also returns the view of `store` that a pass must read.
    pub fn prepare(store: &Store, rank: usize, modes: &[usize], threads: usize) -> Result<(Store, Self)> {
        let serving = serving(store.whole(), modes);
        let view = serving_view(store, modes);
        let (mut ops, mut parts) = (Vec::with_capacity(serving.len()), Vec::new());
        for (number, (cover, modes)) in serving.iter().enumerate() {
            let own = store.view(&[*cover]);
            parts.extend((0..own.manifest().partitions.len()).map(|part| (number, part)));
            ops.push(Mttkrp::prepare(&own, rank, modes, threads)?);
        }
        Ok((view, Self { modes: modes.to_vec(), ops, parts, now: 0 }))
    }

    /// See [`Mttkrp::keep_mode_sorted`].
    pub fn keep_mode_sorted(mut self, store: &Store) -> Result<Self> {
        let keep = |op: Mttkrp<'static, T>| op.keep_mode_sorted(store);
        self.ops = self.ops.into_iter().map(keep).collect::<Result<_>>()?;
        Ok(self)
    }

    /// See [`Mttkrp::with_vectors`].
    #[must_use]
    pub fn with_vectors(mut self, vectors: Vectors) -> Self {
        self.ops = self.ops.into_iter().map(|op| op.with_vectors(vectors)).collect();
        self
    }

    /// See [`Mttkrp::own_sums`].
    pub fn own_sums(&self, sys: &Sys) -> Result<Vec<Sums<'static>>> {
        let mut each =
            self.ops.iter().map(|op| op.own_sums(sys).map(Vec::into_iter)).collect::<Result<Vec<_>>>()?;
        let next = |op: usize| each[op].next().unwrap_or(Sums::Own(Vec::new()));
        Ok(self.op_of_modes().into_iter().map(next).collect())
    }
}

impl<'a, T: Real> ByCover<'a, T> {
    /// The operation of each mode.
    fn op_of_modes(&self) -> Vec<usize> {
        let has = |op: &Mttkrp<'a, T>, mode: usize| op.scratch.modes.iter().any(|(own, _)| *own == mode);
        let find = |&mode: &usize| self.ops.iter().position(|op| has(op, mode)).unwrap_or(0);
        self.modes.iter().map(find).collect()
    }

    /// See [`Mttkrp::lend`].
    #[must_use]
    pub fn lend<'b>(self, factors: &[MatrixRef<'b, T>], sums: Vec<Sums<'b>>) -> ByCover<'b, T> {
        let mut of_ops: Vec<Vec<Sums<'b>>> = self.ops.iter().map(|_| Vec::new()).collect();
        self.op_of_modes().into_iter().zip(sums).for_each(|(op, sums)| of_ops[op].push(sums));
        let Self { modes, ops, parts, .. } = self;
        let ops = ops.into_iter().zip(of_ops).map(|(op, sums)| op.lend(factors.to_vec(), sums)).collect();
        ByCover { modes, ops, parts, now: 0 }
    }

    /// See [`Mttkrp::take`].
    #[must_use]
    pub fn take(self) -> (Vec<(usize, Sums<'a>)>, ByCover<'static, T>) {
        let Self { modes, ops, parts, .. } = self;
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for op in ops {
            let (sums, op) = op.take();
            taken.extend(sums);
            left.push(op);
        }
        taken.sort_by_key(|(mode, _)| modes.iter().position(|wanted| wanted == mode));
        (taken, ByCover { modes, ops: left, parts, now: 0 })
    }

    /// See [`Mttkrp::reset`].
    pub fn reset(&mut self) {
        self.ops.iter_mut().for_each(Mttkrp::reset);
    }

    /// See [`Mttkrp::finish`].
    #[must_use]
    pub fn finish(self) -> Vec<ModeMatrix<T>> {
        let modes = self.modes;
        let mut all: Vec<ModeMatrix<T>> = self.ops.into_iter().flat_map(Mttkrp::finish).collect();
        all.sort_by_key(|(mode, _)| modes.iter().position(|wanted| wanted == mode));
        all
    }
}

impl<T: Real> HostOp for ByCover<'_, T> {
    fn part(&mut self, part: usize) -> Result<()> {
        let (op, part) = self.parts[part];
        self.now = op;
        self.ops[op].part(part)
    }

    fn takes_tiles(&self) -> bool {
        self.ops[self.now].takes_tiles()
    }

    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        self.ops[self.now].chunk(chunk)
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        self.ops[self.now].batch(batch)
    }

    fn holds_store(&self) -> bool {
        self.ops.iter().all(HostOp::holds_store)
    }

    fn end(&mut self) -> Result<()> {
        self.ops.iter_mut().try_for_each(HostOp::end)
    }
}
