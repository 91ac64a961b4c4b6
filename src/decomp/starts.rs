//! Reports of the starts of a decomposition.

use super::cp_als::Als;
use crate::dense::Matrix;
use serde::{Deserialize, Serialize};

/// The reason why iterations ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stop {
    /// The fit changed by less than the tolerance.
    Tolerance,
    /// The maximum number of iterations was reached.
    Iterations,
    /// The caller ended it.
    Caller,
}

/// The report of a start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartReport {
    /// Its number, from 1.
    pub start: u32,
    /// Its seed; `None` for given factors.
    pub seed: Option<u64>,
    /// Iterations.
    pub iterations: usize,
    /// The last fit.
    pub fit: f64,
    /// The reason why it ended.
    pub stop: Stop,
    /// Seconds of its iterations.
    #[serde(default)]
    pub seconds: f64,
    /// How well its components match those of the starts before it, on average: the mean over matched pairs of the product over
    /// the modes of the cosines of their columns, from 0 to 1. `None` for the first.
    #[serde(default)]
    pub agreement: Option<f64>,
}

/// How well the components of starts match: the mean over all pairs of starts. `None` for one start.
#[must_use]
pub fn stability(starts: &[StartReport]) -> Option<f64> {
    let pairs = starts.len() * starts.len().saturating_sub(1) / 2;
    let of = |(before, start): (usize, &StartReport)| Some(start.agreement? * before as f64);
    (pairs > 0).then(|| starts.iter().enumerate().filter_map(of).sum::<f64>() / pairs as f64)
}

/// A start with its iterations so far.
pub(super) struct Start<T> {
    pub number: u32,
    pub als: Als,
    pub factors: Vec<Matrix<T>>,
}
