//! `--ranks`: decomposes with each rank of a range and keeps one model.

use crate::decomp::{Decomposition, StartReport, Stop, stability};
use crate::error::Result;
use serde::Serialize;

/// The default number of starts per rank. Stability needs at least two.
pub const STARTS: u32 = 3;
/// A model with this stability or more counts as stable.
const STABLE: f64 = 0.9;

/// Ranks from the least to the greatest.
#[derive(Clone, Copy, Debug)]
pub struct Ranks(pub u32, pub u32);

/// Parses `2..12`, which includes both.
pub fn ranks(text: &str) -> std::result::Result<Ranks, String> {
    let ends = text.split_once("..").map(|(low, high)| (low.parse(), high.trim_start_matches('=').parse()));
    match ends {
        Some((Ok(low), Ok(high))) if 0 < low && low < high && high <= 1 << 14 => Ok(Ranks(low, high)),
        _ => Err("give the least and the greatest rank, such as 2..12".into()),
    }
}

/// The result for a rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The rank.
    pub rank: usize,
    /// The fit of its best start.
    pub fit: f64,
    /// How well the components of its starts match, over all pairs of them; `None` for one start.
    pub stability: Option<f64>,
    /// Iterations of the best start.
    pub iterations: usize,
    /// Why the best start ended.
    pub stop: Option<Stop>,
    /// Total time of its starts in seconds.
    pub seconds: f64,
    /// Whether its model is the one that is written.
    pub kept: bool,
}

impl RankReport {
    fn new<T>(rank: usize, outcome: &Decomposition<T>) -> Self {
        let of = |start: &&StartReport| start.start as usize == outcome.best + 1;
        Self {
            rank,
            fit: outcome.fit(),
            stability: stability(&outcome.starts),
            iterations: outcome.als.history().len(),
            stop: outcome.starts.iter().find(of).map(|start| start.stop),
            seconds: outcome.starts.iter().map(|start| start.seconds).sum(),
            kept: false,
        }
    }

    /// One for tests.
    #[cfg(test)]
    pub fn example(rank: usize) -> Self {
        let stability = Some(1.0 / rank as f64);
        Self { rank, fit: 0.5, stability, iterations: 1, stop: None, seconds: 0.0, kept: rank == 1 }
    }

    /// Whether the model of this rank is kept rather than that of `other`, a smaller one.
    fn is_better(&self, other: &Self) -> bool {
        match (self.stability, other.stability) {
            (Some(this), Some(other)) => this >= STABLE || this > other,
            _ => true,
        }
    }
}

/// Calls `decompose` for each rank. Returns a report per rank, and the rank and result to keep.
pub fn decompose_each<T>(
    Ranks(low, high): Ranks,
    mut decompose: impl FnMut(usize) -> Result<Decomposition<T>>,
) -> Result<(Vec<RankReport>, usize, Decomposition<T>)> {
    let mut reports: Vec<RankReport> = Vec::new();
    let first = decompose(low as usize)?;
    reports.push(RankReport::new(low as usize, &first));
    let mut kept = (0, first);
    for rank in low + 1..=high {
        let outcome = decompose(rank as usize)?;
        let report = RankReport::new(rank as usize, &outcome);
        if report.is_better(&reports[kept.0]) {
            kept = (reports.len(), outcome);
        }
        reports.push(report);
    }
    reports[kept.0].kept = true;
    let rank = reports[kept.0].rank;
    Ok((reports, rank, kept.1))
}

/// Why this rank's model was kept.
pub fn why(reports: &[RankReport]) -> String {
    let Some(kept) = reports.iter().find(|report| report.kept) else { return String::new() };
    let rank = kept.rank;
    match kept.stability {
        None => format!("rank {rank} is kept, the largest; with --starts 3 stability decides"),
        Some(x) if x >= STABLE => {
            format!(
                "rank {rank} is kept, the largest whose stability is {STABLE} or more; --rank takes another"
            )
        }
        Some(_) => {
            format!("rank {rank} is kept, the most stable; none reaches {STABLE}; --rank takes another")
        }
    }
}

/// The table of ranks as text, one line per rank.
pub fn text(reports: &[RankReport], tol: f64) -> String {
    let line = |report: &RankReport| {
        let RankReport { rank, fit, stability, iterations, seconds, .. } = report;
        let stability = stability.map_or_else(|| "-".into(), |x| format!("{x:.4}"));
        let mark = if report.kept { '*' } else { ' ' };
        let stop = stop_text(report.stop, tol);
        format!(
            "{mark} {rank:5} {:>10} {stability:>10} {iterations:>6} {seconds:>9.3} s  {stop}\n",
            number(*fit)
        )
    };
    let lines: String = reports.iter().map(line).collect();
    format!("   rank        fit  stability  iters      time\n{lines}  {}\n", why(reports))
}

/// Why iterations ended.
pub fn stop_text(stop: Option<Stop>, tol: f64) -> String {
    match stop {
        Some(Stop::Caller) => "stopped by the caller".to_owned(),
        Some(Stop::Tolerance) => format!("converged: the fit changes by less than {tol:e}"),
        _ => "stopped at --max-iters, not converged".to_owned(),
    }
}

/// Formats a number for people, with an exponent if it is very large or small.
pub fn number(x: f64) -> String {
    let size = x.abs();
    if size == 0.0 || (1e-4..1e7).contains(&size) { format!("{x:.5}") } else { format!("{x:.4e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ranges() {
        assert!(matches!(ranks("2..12"), Ok(Ranks(2, 12))));
        assert!(matches!(ranks("1..=3"), Ok(Ranks(1, 3))));
        for wrong in ["", "3", "0..2", "4..4", "5..2", "1..99999", "a..b", "-1..2"] {
            assert!(ranks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_largest_stable_rank_is_better() {
        let report = |rank, stability| RankReport { stability, ..RankReport::example(rank) };
        assert!(report(3, Some(0.91)).is_better(&report(2, Some(1.0))));
        assert!(!report(4, Some(0.8)).is_better(&report(2, Some(0.85))));
        assert!(report(4, Some(0.86)).is_better(&report(2, Some(0.85))));
        assert!(!report(4, Some(0.86)).is_better(&report(2, Some(0.95))));
        assert!(report(4, None).is_better(&report(2, None)));
    }
}
