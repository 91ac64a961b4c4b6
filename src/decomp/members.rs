//! Decompositions and MTTKRP by several processes. Process 0 conducts: it runs the whole program, and before each step tells the
//! others, which serve, what to do ([`Order`]). Every process has its share of the chunks, or all, and all factors. Starts,
//! iterations, checkpoints and outputs are process 0's alone, so nothing of them depends on the number of processes.

use super::collective::Collective;
use super::cp_als::AlsBackend;
use super::extended::Double;
use super::update::{Gram, Rule};
use crate::backend::Squares;
use crate::backend::device::KernelReport;
use crate::backend::plan::DevicePlan;
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use crate::members::Group;
use crate::store::Store;
use crate::stream::PassReport;
use bytemuck::{cast_slice, cast_slice_mut};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;

/// An order of process 0 to the others. Numbers follow in separate messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Take the factors that follow.
    Factors,
    /// Compute the sums of a mode.
    Pass {
        /// From 0.
        mode: usize,
        /// See [`AlsBackend::mttkrp`].
        wide: bool,
    },
    /// Make the factor from the sums, by the rule that follows in parts of these lengths.
    Update {
        /// From 0.
        mode: usize,
        /// One for a linear rule.
        lengths: Vec<usize>,
    },
    /// Add up the sums of the last pass in process 0.
    Sums,
}

/// Passes over a process's share of the store, on its CPU or its GPU.
pub trait Share<T: Real>: AlsBackend<T> + Debug + Send {
    /// A pass: the sums of `mode` are those of this process's chunks.
    fn pass(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport>;

    /// Adds up, over all processes, the sums of the mode that was computed last. Returns memory for all of its sums, and which of them are
    /// those of this process. The ranges of all processes, in their order, follow each other. The caller leaves the memory zero.
    fn reduced(&mut self) -> Result<(&mut [f64], Range<usize>)>;

    /// The use of a GPU now, and what is smaller than planned.
    fn used(&self) -> Option<(&DevicePlan, &[String])> {
        None
    }

    /// The kernels in use there.
    fn kernels(&mut self) -> Option<KernelReport> {
        None
    }
}

/// A process's share of the store, and all factors.
#[derive(Debug)]
pub struct MembersAls<T: Real> {
    als: Box<dyn Share<T>>,
    group: Group,
    dims: Vec<usize>,
    rank: usize,
    /// The sum of squares that all first passes together check, unless each has all chunks.
    squares: Option<Squares>,
}

impl<T: Real> MembersAls<T> {
    /// For this process's `share` of `store` and factors of `rank` columns. `passes` makes what computes; it gets the sum of squares that
    /// a first pass checks, and how to reach the other processes.
    pub fn new(
        (store, share): (&Store, &Store),
        rank: usize,
        group: &Group,
        passes: impl FnOnce(Squares, Box<dyn Collective>) -> Result<Box<dyn Share<T>>>,
    ) -> Result<Self> {
        let squares = Squares::of(store);
        let has_all = share.manifest().nnz == store.manifest().nnz;
        let own = if has_all { squares.clone() } else { squares.part() };
        let als = passes(own, Box::new(group.clone()))?;
        let dims = store.manifest().shape.dims().iter().map(|&dim| dim as usize).collect();
        Ok(Self { als, group: group.clone(), dims, rank, squares: (!has_all).then_some(squares) })
    }

    /// The use of this process's GPU now, and what is smaller than planned.
    #[must_use]
    pub fn used(&self) -> Option<(&DevicePlan, &[String])> {
        self.als.used()
    }

    /// The kernels in use there.
    pub fn kernels(&mut self) -> Option<KernelReport> {
        self.als.kernels()
    }

    /// Sends an order to the others.
    fn tell(&self, order: &Order) -> Result<()> {
        tell(&self.group, order)
    }

    /// Follows an order of process 0.
    pub fn obey(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Factors => {
                let sized = |&rows: &usize| {
                    Matrix::from_rows(rows, self.rank, vec![T::nearest(0.0); rows * self.rank])
                };
                let factors = self.dims.iter().map(sized).collect();
                self.share_factors(factors)
            }
            Order::Pass { mode, wide } => self.pass(mode, wide, &|_| ()).map(drop),
            Order::Update { mode, lengths } => {
                let mut parts: Vec<Vec<f64>> = lengths.iter().map(|&length| vec![0.0; length]).collect();
                parts.iter_mut().try_for_each(|part| self.group.broadcast(cast_slice_mut(part)))?;
                self.als.update(mode, &rule_of(parts)?).map(drop)
            }
            Order::Sums => self.collect().map(drop),
        }
    }

    fn share_factors(&mut self, mut factors: Vec<Matrix<T>>) -> Result<()> {
        for factor in &mut factors {
            self.group.broadcast(cast_slice_mut(factor.data_mut()))?;
        }
        self.als.set_factors(factors)
    }

    fn pass(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<PassReport> {
        let group = &self.group;
        let passed = self.als.pass(mode, wide, &|nnz| {
            group.works(true);
            progress(nnz);
        })?;
        group.works(false);
        if let Some(squares) = self.squares.take() {
            squares.check_total(self.group.all_numbers(&[squares.total()])?.iter().sum())?;
        }
        Ok(passed)
    }

    /// The sums of the last pass over all processes, in process 0; the others' are zero afterwards.
    fn collect(&mut self) -> Result<Vec<f64>> {
        let group = self.group.clone();
        let (sums, own) = self.als.reduced()?;
        group.collect(cast_slice_mut(sums), own.start * size_of::<f64>()..own.end * size_of::<f64>())?;
        let all = if group.number() == 0 { sums.to_vec() } else { Vec::new() };
        sums.fill(0.0);
        Ok(all)
    }

    /// MTTKRP of `mode` with the current factors, in one pass of all processes.
    pub fn mttkrp_of(
        &mut self,
        mode: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(PassReport, Vec<f64>)> {
        self.tell(&Order::Pass { mode, wide: false })?;
        let passed = self.pass(mode, false, progress)?;
        self.tell(&Order::Sums)?;
        Ok((passed, self.collect()?))
    }
}

/// Sends an order, or another message that the others understand.
pub fn tell(group: &Group, order: &impl Serialize) -> Result<()> {
    let mut bytes =
        serde_json::to_vec(order).map_err(|e| Error::request(format!("an order cannot be sent: {e}")))?;
    group.broadcast_vec(&mut bytes)
}

fn rule_of(parts: Vec<Vec<f64>>) -> Result<Rule> {
    let mut parts = parts.into_iter();
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some(matrix), None, ..] => Ok(Rule::Linear { matrix }),
        [Some(gram), Some(of_sums), Some(of_old), Some(of_new)] => {
            Ok(Rule::NonNegative { gram, of_sums, of_old, of_new })
        }
        _ => Err(Error::request("processes run different versions of this program")),
    }
}

/// For process 0. Each call is one of all processes.
impl<T: Real> AlsBackend<T> for MembersAls<T> {
    fn set_factors(&mut self, factors: Vec<Matrix<T>>) -> Result<()> {
        self.tell(&Order::Factors)?;
        self.share_factors(factors)
    }

    fn factors(&mut self) -> Result<Cow<'_, [Matrix<T>]>> {
        self.als.factors()
    }

    fn take(&mut self) -> Result<Vec<Matrix<T>>> {
        self.als.take()
    }

    fn mttkrp(&mut self, mode: usize, wide: bool, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        self.tell(&Order::Pass { mode, wide })?;
        self.pass(mode, wide, progress).map(drop)
    }

    fn update(&mut self, mode: usize, rule: &Rule) -> Result<Gram> {
        let parts: Vec<&[f64]> = match rule {
            Rule::Linear { matrix } => vec![matrix],
            Rule::NonNegative { gram, of_sums, of_old, of_new } => vec![gram, of_sums, of_old, of_new],
        };
        self.tell(&Order::Update { mode, lengths: parts.iter().map(|part| part.len()).collect() })?;
        for part in parts {
            let mut bytes = cast_slice::<f64, u8>(part).to_vec();
            self.group.broadcast(&mut bytes)?;
        }
        self.als.update(mode, rule)
    }

    fn extended_gram(&mut self, mode: usize) -> Result<Vec<Double>> {
        self.als.extended_gram(mode)
    }
}
