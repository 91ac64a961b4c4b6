//! MTTKRP's passes by several processes: one pass for each mode. Process 0 gets its sums.

use super::{Passes, Results};
use crate::backend::device::KernelReport;
use crate::backend::plan::DevicePlan;
use crate::decomp::AlsBackend;
use crate::decomp::members::MembersAls;
use crate::dense::{FactorView, Matrix, Real, in_device_memory};
use crate::error::Result;
use crate::op::mttkrp::ModeMatrix;
use crate::store::Store;
use crate::stream::{PassReport, Span};

/// Passes of all processes.
#[derive(Debug)]
pub struct OnProcesses<T: Real> {
    als: MembersAls<T>,
    dims: Vec<usize>,
    modes: Vec<usize>,
    rank: usize,
}

impl<T: Real> OnProcesses<T> {
    pub fn new(als: MembersAls<T>, store: &Store, modes: &[usize], rank: usize) -> Self {
        let dims = store.dims().iter().map(|&dim| dim as usize).collect();
        Self { als, dims, modes: modes.to_vec(), rank }
    }
}

impl<T: Real> Passes<T> for OnProcesses<T> {
    fn compute(
        &mut self,
        factors: &[FactorView<'_, T>],
        times: u32,
        results: Results<'_, '_, T>,
        passes: &mut Vec<PassReport>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<ModeMatrix<T>>> {
        let results = match results {
            Results::Owned => None,
            Results::OnHost(results) => Some(results),
            Results::OnDevice(_) => return Err(in_device_memory()),
        };
        let own = |(factor, &rows): (&FactorView<'_, T>, &usize)| {
            Ok(Matrix::from_rows(rows, self.rank, factor.on_host()?.data().to_vec()))
        };
        let factors = factors.iter().zip(&self.dims).map(own).collect::<Result<_>>()?;
        self.als.set_factors(factors)?;
        let mut computed = Vec::new();
        for _ in 0..times {
            computed.clear();
            for &mode in &self.modes {
                let (pass, sums) = self.als.mttkrp_of(mode, progress)?;
                passes.push(pass);
                computed.push((mode, Matrix::from_rows(self.dims[mode], self.rank, T::from_f64s(sums))));
            }
        }
        let Some(results) = results else { return Ok(computed) };
        results.iter_mut().zip(&computed).for_each(|(to, (_, from))| to.copy_from_slice(from.data()));
        Ok(Vec::new())
    }

    fn spans(&self) -> &[Span] {
        &[]
    }

    fn used(&self) -> Option<(&DevicePlan, &[String])> {
        self.als.used()
    }

    fn kernels(&mut self) -> Option<KernelReport> {
        self.als.kernels()
    }
}
