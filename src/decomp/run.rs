//! The main path of a decomposition: starts, iterations, checkpoints.

use super::checkpoint::{Checkpointer, Expected, Saved};
use super::cp_als::{Als, AlsBackend, Iteration, Problem, Settings};
use super::score::matched;
use super::starts::{Start, StartReport, Stop};
use super::update::{FLOOR, gram};
use super::{Model, check_non_negative};
use crate::dense::{Matrix, Real, seeded_factors};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::store::Manifest;
use crate::sys::Sys;
use std::ops::ControlFlow;

/// Initial factors.
#[derive(Clone, Debug)]
pub enum Init<T> {
    /// Given factors.
    Given(Vec<Matrix<T>>),
    /// Seeded factors, in [0, 1): start k, from 0, has seed `seed + k`.
    Seeded {
        /// The seed of the first start.
        seed: u64,
        /// The number of starts.
        starts: u32,
    },
}

/// A request for a decomposition.
#[derive(Debug)]
pub struct CpJob<'a> {
    /// The handle to the system.
    pub sys: &'a Sys,
    /// The tensor's shape.
    pub shape: &'a Shape,
    /// The facts of the tensor that iterations need.
    pub problem: Problem,
    /// The options of iterations.
    pub settings: Settings,
    /// Stop after an iteration, from the second on, that changes the fit by less; 0 runs all iterations.
    pub tol: f64,
    /// The most iterations of each start.
    pub max_iters: usize,
    /// The checkpoints to write.
    pub checkpoint: Option<Checkpointer>,
}

/// An observer of a decomposition.
#[derive(Clone, Copy)]
pub struct CpWatchers<'a> {
    /// Gets the position, while passes run.
    pub progress: &'a (dyn Fn(&CpWatch<'_>) + Sync),
    /// Gets each finished iteration with its start, from 0; `Break` ends that start and all later ones.
    pub iteration: &'a (dyn Fn(u32, &Iteration) -> Result<ControlFlow<()>> + Sync),
}

impl std::fmt::Debug for CpWatchers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpWatchers").finish_non_exhaustive()
    }
}

impl<'a> CpWatchers<'a> {
    /// An observer of positions only.
    #[must_use]
    pub fn progress(progress: &'a (dyn Fn(&CpWatch<'_>) + Sync)) -> Self {
        Self { progress, iteration: &|_, _| Ok(ControlFlow::Continue(())) }
    }
}

/// The result of a decomposition.
#[derive(Clone, Debug)]
pub struct Decomposition<T> {
    /// The best start's model.
    pub model: Model<T>,
    /// Its iterations.
    pub als: Als,
    /// Its number, from 0.
    pub best: usize,
    /// All starts.
    pub starts: Vec<StartReport>,
    /// The iteration that this run continued, of that start, both from 1.
    pub resumed: Option<(u32, usize)>,
}

impl<T> Decomposition<T> {
    /// The share of the tensor's norm that the model explains: 1 - |X - model| / |X|.
    #[must_use]
    pub fn fit(&self) -> f64 {
        self.als.fit()
    }
}

/// The position of a decomposition, for progress.
#[derive(Clone, Copy, Debug)]
pub struct CpWatch<'a> {
    /// The start, from 0.
    pub start: u32,
    /// The last finished iteration.
    pub last: Option<&'a Iteration>,
    /// The mode being computed, from 0.
    pub mode: usize,
    /// Nonzeros that its pass has done.
    pub nnz: u64,
}

impl Problem {
    /// The problem of the store that `manifest` describes; an error if no fit is defined for it.
    pub fn of(manifest: &Manifest) -> Result<Self> {
        if manifest.may_repeat {
            let what = "coordinates may repeat in this store, so that its norm is not known; pack with";
            return Err(Error::request(format!("{what} `Duplicates::Sum`")));
        }
        let norm = manifest.sum_squares.sqrt();
        if norm == 0.0 {
            return Err(Error::request(
                "all values of this store are zero, or too small to be squared: there is nothing to decompose",
            ));
        }
        if !norm.is_finite() {
            return Err(Error::request(
                "this store has values that are not finite, or too large to be squared",
            ));
        }
        Ok(Self { order: manifest.shape.order(), norm })
    }
}

impl<T: Real> Init<T> {
    fn starts(&self) -> u32 {
        match self {
            Self::Given(_) => 1,
            Self::Seeded { starts, .. } => *starts,
        }
    }

    fn seed(&self, start: u32) -> Option<u64> {
        match self {
            Self::Given(_) => None,
            Self::Seeded { seed, .. } => Some(seed.wrapping_add(start.into())),
        }
    }

    /// The factors of a start. Given factors are moved out once.
    fn factors(&mut self, job: &CpJob<'_>, start: u32) -> Result<Vec<Matrix<T>>> {
        let factors = match self {
            Self::Given(factors) => std::mem::take(factors),
            Self::Seeded { seed, .. } => {
                let seed = seed.wrapping_add(start.into());
                seeded_factors(job.sys, job.shape, job.settings.rank, seed)?
            }
        };
        if job.settings.nonneg {
            check_non_negative(&factors)?;
        }
        Ok(factors)
    }
}

impl CpJob<'_> {
    /// The decomposition that a checkpoint must belong to.
    fn expected(&self) -> Expected<'_> {
        Expected { sys: self.sys, shape: self.shape, problem: self.problem, settings: self.settings }
    }

    fn stop(&self, als: &Als) -> Option<Stop> {
        let done = als.history().len();
        let change = als.history().last().map_or(f64::INFINITY, |last| last.change);
        match done {
            2.. if change < self.tol => Some(Stop::Tolerance),
            _ if done >= self.max_iters => Some(Stop::Iterations),
            _ => None,
        }
    }
}

/// How well the components of two starts match, without regard to weights.
fn agreement<T: Real>(a: &mut Start<T>, b: &mut Start<T>) -> f64 {
    let model = |start: &mut Start<T>| {
        let lambda = start.als.lambda.clone();
        Model {
            lambda: Matrix::from_rows(lambda.len(), 1, lambda),
            factors: std::mem::take(&mut start.factors),
        }
    };
    let models = [model(a), model(b)];
    let score = matched(&models[0], &models[1], false).score;
    let [of_a, of_b] = models;
    (a.factors, b.factors) = (of_a.factors, of_b.factors);
    score
}

/// Decomposes from each start in turn and keeps the model with the best fit; the first, if several are equal.
///
/// The result depends on the tensor, the job, the initial factors and the determinism of the [`AlsBackend`]. A checkpoint at any
/// iteration does not change it.
pub fn run<T: Real>(
    job: &mut CpJob<'_>,
    init: Init<T>,
    backend: &mut impl AlsBackend<T>,
    watch: &(dyn Fn(&CpWatch<'_>) + Sync),
) -> Result<Decomposition<T>> {
    run_watched(job, init, backend, CpWatchers::progress(watch))
}

/// The same for a caller who can end it after any iteration. The result is then the best model so far.
pub fn run_watched<T: Real>(
    job: &mut CpJob<'_>,
    mut init: Init<T>,
    backend: &mut impl AlsBackend<T>,
    watchers: CpWatchers<'_>,
) -> Result<Decomposition<T>> {
    let saved = match &job.checkpoint {
        Some(checkpoint) => checkpoint.load::<T>(&job.expected())?,
        None => None,
    };
    let (mut saved, mut starts, mut models) = match saved {
        Some(Saved { current, finished, models }) => (Some(current), finished, models),
        None => (None, Vec::new(), Vec::new()),
    };
    let resumed = saved.as_ref().map(|s| (s.number + 1, s.als.history().len()));
    for start in resumed.map_or(0, |(start, _)| start - 1)..init.starts() {
        let (mut als, factors) = if let Some(saved) = saved.take() {
            (saved.als, saved.factors)
        } else {
            let factors = init.factors(job, start)?;
            (Als::new(job.problem, job.settings, factors.iter().map(gram).collect()), factors)
        };
        backend.set_factors(factors)?;
        let mut asked = ControlFlow::Continue(());
        let stop = loop {
            if let Some(stop) = job.stop(&als) {
                break stop;
            }
            if asked.is_break() {
                break Stop::Caller;
            }
            let last = als.history().last().cloned();
            als.iterate(backend, &|step| {
                (watchers.progress)(&CpWatch { start, last: last.as_ref(), mode: step.mode, nnz: step.nnz });
            })?;
            if let Some(last) = als.history().last() {
                asked = (watchers.iteration)(start, last)?;
            }
            let ended = job.stop(&als).is_some() || asked.is_break();
            if let Some(checkpoint) = job.checkpoint.as_mut().filter(|c| ended || c.is_due(&als)) {
                checkpoint.save(start, &als, &backend.factors()?, &starts, &models)?;
            }
        };
        let iterations = als.history().len();
        let mut ended = Start { number: start, als, factors: backend.take()? };
        let agreements: Vec<f64> = models.iter_mut().map(|model| agreement(model, &mut ended)).collect();
        let agreement =
            (!agreements.is_empty()).then(|| agreements.iter().sum::<f64>() / agreements.len() as f64);
        let Start { als, .. } = &ended;
        starts.push(StartReport {
            start: start + 1,
            seed: init.seed(start),
            iterations,
            fit: als.fit(),
            stop,
            seconds: als.history().iter().map(|iteration| iteration.seconds).sum(),
            agreement,
        });
        models.push(ended);
        if asked.is_break() {
            break;
        }
    }
    let best =
        models.into_iter().reduce(|best, next| if next.als.fit() > best.als.fit() { next } else { best });
    let Some(Start { number, als, factors }) = best else {
        return Err(Error::request("no start: give at least one"));
    };
    let zero = if job.settings.nonneg { FLOOR } else { 0.0 };
    let model = Model::new(&als.lambda, factors, &als.columns, zero);
    Ok(Decomposition { model, als, best: number as usize, starts, resumed })
}
