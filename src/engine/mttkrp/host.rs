//! MTTKRP's passes on the CPU.

use super::{Passes, Results};
use crate::backend::host::HostBackend;
use crate::dense::{FactorView, Matrix, Real, in_device_memory};
use crate::engine::{Engine, ExecutionPlan};
use crate::error::{Error, Result};
use crate::op::mttkrp::{ByCover, ModeMatrix, Sums};
use crate::store::Store;
use crate::stream::{Executor, PassReport, Span};
use crate::sys::{PageBuf, Sys};

/// Passes on the CPU.
#[derive(Debug)]
pub struct OnHost<T: Real> {
    sys: Sys,
    rank: usize,
    /// `None` after a call has failed.
    backend: Option<HostBackend<ByCover<'static, T>>>,
    executor: Executor<PageBuf>,
}

impl<T: Real> OnHost<T> {
    pub fn new(
        engine: &Engine,
        store: &Store,
        modes: &[usize],
        rank: usize,
        plan: &ExecutionPlan,
    ) -> Result<Self> {
        let (sys, vectors) = (engine.sys().clone(), engine.options().vectors);
        let threads = plan.host.threads;
        let (store, op) = ByCover::prepare(store, rank, modes, threads)?;
        let mut op = op.with_vectors(vectors);
        if plan.has_mode_sorted() {
            op = op.keep_mode_sorted(&store)?;
        }
        let mut backend = HostBackend::for_threads(&store, op, threads)?.with_vectors(vectors);
        let executor = Executor::new(&store, &plan.host, &mut backend)?;
        Ok(Self { sys, rank, backend: Some(backend), executor })
    }
}

impl<T: Real> Passes<T> for OnHost<T> {
    fn compute(
        &mut self,
        factors: &[FactorView<'_, T>],
        times: u32,
        results: Results<'_, '_, T>,
        passes: &mut Vec<PassReport>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<ModeMatrix<T>>> {
        self.sys.check_cancelled()?;
        let factors = factors.iter().map(|factor| factor.on_host()).collect::<Result<Vec<_>>>()?;
        let results = match results {
            Results::Owned => None,
            Results::OnHost(results) => Some(results),
            Results::OnDevice(_) => return Err(in_device_memory()),
        };
        let backend =
            self.backend.take().ok_or_else(|| Error::request("an earlier call failed; prepare again"))?;
        let is_given = results.is_some();
        // Sums grow in the caller's memory unless they must be rounded.
        let (mut lent, mut rounded) = (Vec::new(), Vec::new());
        for result in results.into_iter().flatten() {
            match T::as_f64s(result) {
                Ok(sums) => lent.push(Sums::Lent(sums)),
                Err(result) => rounded.push(result),
            }
        }
        let are_zero = lent.is_empty();
        let mut backend = backend.try_map(|op| {
            let sums = if lent.is_empty() { op.own_sums(&self.sys)? } else { lent };
            Ok(op.lend(&factors, sums))
        })?;
        for pass in 0..times {
            if pass > 0 || !are_zero {
                backend.op().reset();
            }
            passes.push(self.executor.pass(&mut backend, progress)?);
        }
        let mut sums = Vec::new();
        self.backend = Some(backend.try_map(|op| {
            let (taken, op) = op.take();
            sums = taken.into_iter().map(|(mode, sums)| (mode, sums.into_vec())).collect();
            Ok(op)
        })?);
        for ((_, sums), result) in sums.iter().zip(rounded) {
            result.iter_mut().zip(sums).for_each(|(to, &from)| *to = T::nearest(from));
        }
        if is_given {
            return Ok(Vec::new());
        }
        let matrix = |(mode, sums): (usize, Vec<f64>)| {
            let rows = sums.len() / self.rank;
            (mode, Matrix::from_rows(rows, self.rank, T::from_f64s(sums)))
        };
        Ok(sums.into_iter().map(matrix).collect())
    }

    fn spans(&self) -> &[Span] {
        self.executor.spans()
    }
}
