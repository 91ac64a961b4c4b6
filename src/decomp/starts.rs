//! How the starts of a decomposition went.

use super::cp_als::Als;
use crate::dense::Matrix;
use serde::{Deserialize, Serialize};

/// Why iterations ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stop {
    /// The fit changed by less than the tolerance.
    Tolerance,
    /// The maximum number of iterations was reached.
    Iterations,
    /// The caller wanted no more.
    Caller,
}

/// How a start went.
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
    /// Why it ended.
    pub stop: Stop,
    /// Seconds of its iterations.
    #[serde(default)]
    pub seconds: f64,
    /// How well its components match those of the best start before it: the mean over matched pairs of the product over the
    /// modes of the cosines of their columns, from 0 to 1. `None` for the first.
    #[serde(default)]
    pub agreement: Option<f64>,
}

/// A start as far as it has come: the best, or the present one.
pub(super) struct Start<T> {
    pub number: u32,
    pub als: Als,
    pub factors: Vec<Matrix<T>>,
}
