//! Factors in host memory, passes on the host backend.
//!
//! On one machine a decomposition is independent of threads, workers and chunks, to the bit: MTTKRP is, and so is the update.
//! Machines with other vector instructions may differ in the last bits, which the matrix products of the update depend on.

use super::collective::{Collective, Local};
use super::cp_als::AlsBackend;
use super::extended::{self, Double};
use super::members::Share;
use super::update::{self, Gram, RowsUpdate, Rule};
use crate::backend::Squares;
use crate::backend::host::{HostBackend, HostOp};
use crate::dense::{Matrix, Real};
use crate::error::Result;
use crate::op::mttkrp::{Mttkrp, alternating_bytes};
use crate::store::{Manifest, Store};
use crate::stream::{Executor, PassReport, Plan};
use crate::sys::PageBuf;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Passes and factors on the host, on the current rayon pool. Chunks that the plan keeps stay from pass to pass.
#[derive(Debug)]
pub struct HostAls<T: Real> {
    backend: HostBackend<Mttkrp<'static, T>>,
    executor: Executor<PageBuf>,
    members: Box<dyn Collective>,
    /// Of each mode, whether its factor has been updated since it was given.
    settled: Vec<bool>,
}

/// Bytes that a decomposition holds on the host, decoded tiles and what [`super::solve::host_bytes`] counts not included.
#[must_use]
pub fn host_bytes<T: Real>(manifest: &Manifest, rank: usize, threads: usize) -> u64 {
    let update = manifest.shape.dims().iter().map(|&d| update::host_bytes(d as usize, rank)).max();
    alternating_bytes::<T>(manifest, rank, threads) + update.unwrap_or(0)
}

impl<T: Real> HostAls<T> {
    /// A backend for a decomposition of `store` by `plan`; `op` is one of [`Mttkrp::alternating`].
    pub fn new(store: &Store, plan: &Plan, op: Mttkrp<'static, T>) -> Result<Self> {
        Self::among(store, plan, op, Squares::of(store), Box::new(Local))
    }

    /// The same for one of several members, which has the chunks of `store`; `squares` get theirs.
    pub fn among(
        store: &Store,
        plan: &Plan,
        op: Mttkrp<'static, T>,
        squares: Squares,
        members: Box<dyn Collective>,
    ) -> Result<Self> {
        let mut backend = HostBackend::for_threads(store, op, plan.threads)?.with_squares(squares);
        let executor = Executor::new(store, plan, &mut backend)?;
        let settled = vec![false; store.manifest().shape.order()];
        Ok(Self { backend, executor, members, settled })
    }

    /// The same for factors of another rank, at most that of the first: [`Mttkrp::with_rank`].
    pub fn with_rank(self, store: &Store, rank: usize, threads: usize) -> Result<Self> {
        let backend = self.backend.try_map(|op| op.with_rank(store, rank, threads))?;
        Ok(Self { backend, ..self })
    }
}

impl<T: Real> Share<T> for HostAls<T> {
    fn pass(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport> {
        self.backend.op().aim(mode, wide);
        self.executor.pass(&mut self.backend, progress)
    }

    fn reduced(&mut self) -> Result<(&mut [f64], Range<usize>)> {
        let sums = self.backend.op().sums_and_factor().0;
        let own = self.members.owned(sums.len());
        self.members.reduce_scatter(sums, own.clone())?;
        Ok((sums, own))
    }
}

impl<T: Real> AlsBackend<T> for HostAls<T> {
    fn set_factors(&mut self, factors: Vec<Matrix<T>>) -> Result<()> {
        self.settled.fill(false);
        self.backend.op().put(factors);
        Ok(())
    }

    fn factors(&mut self) -> Result<Cow<'_, [Matrix<T>]>> {
        Ok(Cow::Borrowed(self.backend.op().factors()))
    }

    fn take(&mut self) -> Result<Vec<Matrix<T>>> {
        Ok(self.backend.op().put(Vec::new()))
    }

    fn mttkrp(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        self.pass(mode, wide, progress).map(drop)
    }

    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram> {
        let op = self.backend.op();
        // Passes from mode-sorted copies set sums; those over chunks add to them.
        let zeroes = !op.holds_store();
        let (sums, factor) = op.sums_and_factor();
        self.settled[mode] = true;
        update::update(sums, factor, rule, zeroes, &mut *self.members)
    }

    fn mttkrp_with_update(
        &mut self,
        mode: usize,
        wide: bool,
        rule: &Rule,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<Gram>> {
        let op = self.backend.op();
        if !self.members.is_alone() || !op.has_segments(mode) {
            return Ok(None);
        }
        let factor = &op.factors()[mode];
        let Some(rows) = RowsUpdate::new(rule, factor.rows(), factor.columns(), self.settled[mode]) else {
            return Ok(None);
        };
        let rows = Arc::new(rows);
        op.aim(mode, wide);
        op.hand_over(rows.clone());
        self.settled[mode] = true;
        self.executor.pass(&mut self.backend, progress)?;
        Ok(Some(rows.gram()))
    }

    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>> {
        Ok(extended::gram(&self.backend.op().factors()[mode]))
    }
}
