//! The report of `blco-cpd`: as JSON, as text and as an HTML page.

use super::components::ShownMode;
use super::cpd_ranks::{self, RankReport, number, stop_text};
use super::device;
use super::model_page::html;
use super::report::{ReportHead, kept_text, memory_text};
use crate::backend::device::KernelReport;
use crate::decomp::{Decomposition, Iteration, Settings, StartReport, Stop, stability};
use crate::dense::Real;
use crate::engine::{Cp, ExecutionPlan};
use crate::error::Result;
use crate::store::Store;
use serde::Serialize;

/// The JSON report of a decomposition.
#[derive(Debug, Serialize)]
pub struct CpdReport {
    /// The version of docs/report.md.
    schema: u32,
    #[serde(flatten)]
    pub head: ReportHead,
    pub settings: Settings,
    pub max_iters: u32,
    pub tol: f64,
    pub kernels: Option<KernelReport>,
    /// With `--ranks`, the result for each rank. All other fields describe the kept rank.
    pub ranks: Option<Vec<RankReport>>,
    #[serde(flatten)]
    found: Found,
}

/// The outcome.
#[derive(Debug, Default, Serialize)]
struct Found {
    /// The start and iteration of the checkpoint from which the run continued.
    resumed: Option<(u32, usize)>,
    starts: Vec<StartReport>,
    /// How well the components of starts match on average, from 0 to 1.
    stability: Option<f64>,
    /// The best start, from 1.
    best: u32,
    stop: Option<Stop>,
    fit: f64,
    lambda: Vec<f64>,
    /// The iterations of the best start.
    iterations: Vec<Iteration>,
}

impl CpdReport {
    /// A report before anything is computed.
    pub fn new<T: Real>(store: &Store, cp: &Cp, plan: &ExecutionPlan) -> Self {
        let &Cp { settings, max_iters, tol, .. } = cp;
        let head = ReportHead::new::<T>(store, plan);
        Self {
            schema: 2,
            head,
            settings,
            max_iters,
            tol,
            kernels: None,
            ranks: None,
            found: Found::default(),
        }
    }

    /// Adds the outcome.
    pub fn fill<T>(&mut self, outcome: &Decomposition<T>) {
        let best = outcome.starts.iter().find(|s| s.start as usize == outcome.best + 1);
        self.found = Found {
            resumed: outcome.resumed,
            starts: outcome.starts.clone(),
            stability: stability(&outcome.starts),
            best: u32::try_from(outcome.best + 1).unwrap_or(0),
            stop: best.map(|best| best.stop),
            fit: outcome.als.fit(),
            lambda: outcome.model.lambda.data().to_vec(),
            iterations: outcome.als.history().to_vec(),
        };
        let singular: usize = self.found.iterations.iter().map(|i| i.pseudo_inverses).sum();
        if singular > 0 {
            self.head.notes.push(format!(
                "{singular} updates used a pseudo-inverse: components depend on each other; a smaller --rank or a --ridge \
                 avoids that"
            ));
        }
        let Some(last) = self.found.iterations.last() else { return };
        if last.vanished > 0 {
            let all = last.vanished == self.settings.rank;
            let which = if all { "all".to_owned() } else { last.vanished.to_string() };
            let advice = if all { "; try --precision f64, another start or a smaller --ridge" } else { "" };
            self.head.notes.push(format!("{which} components have vanished{advice}"));
        }
        if 1.0 - last.fit < last.fit_floor {
            let floor = last.fit_floor;
            self.head.notes.push(format!("the fit is 1 within what rounding lets it tell: {floor:.1e}"));
        }
    }
}

/// The report as a page of HTML.
pub fn page<T: Real>(report: &CpdReport, outcome: &Decomposition<T>, modes: &[ShownMode]) -> Result<String> {
    let CpdReport { head, found, .. } = report;
    let dims: Vec<String> = head.dims.iter().map(u32::to_string).collect();
    let seconds: f64 = found.iterations.iter().map(|i| i.seconds).sum();
    let start = |s: &StartReport| match s.seed {
        Some(seed) => format!("seed {seed}: {:.6}", s.fit),
        None => format!("given factors: {:.6}", s.fit),
    };
    let starts: Vec<String> = found.starts.iter().map(start).collect();
    let mut facts = vec![
        ("command", super::command_line()),
        ("store", head.store.display().to_string()),
        ("digest", head.digest.clone()),
        ("shape", format!("{}, {}", dims.join(" x "), super::nonzeros(head.nnz))),
        ("fit", format!("{:.6} after {} iterations, {seconds:.3} s", found.fit, found.iterations.len())),
        ("end", stop_text(report.found.stop, report.tol)),
        ("computed", format!("in {}, on {}", head.precision.name(), head.place)),
        ("starts", starts.join(", ")),
    ];
    if let Some(stability) = stability(&found.starts) {
        let what = "the mean match of components over all pairs of starts; 1 is identical";
        facts.push(("stability", format!("{stability:.4}, {what}")));
    }
    if let Some(ranks) = &report.ranks {
        facts.push(("rank", cpd_ranks::why(ranks)));
    }
    facts.extend(head.notes.iter().map(|note| ("note", note.clone())));
    let store = head.store.file_name().unwrap_or_default().to_string_lossy();
    let title = format!("{store}: CP of rank {}", report.settings.rank);
    html(
        &title,
        &facts,
        report.ranks.as_deref().unwrap_or_default(),
        &found.iterations,
        &outcome.model,
        modes,
    )
}

/// What `--plan` prints.
pub fn plan_text(report: &CpdReport) -> String {
    let head = &report.head;
    let what = format!("CP of rank {}", report.settings.rank);
    let passes = format!("an iteration takes {} passes", head.dims.len());
    if let Some(device) = &head.device {
        return device::plan_text(head, device, &what, &passes);
    }
    if let Some(devices) = &head.devices {
        return device::several_text(head, devices, &what, &passes);
    }
    let memory = memory_text(&head.plan, "factors, sums and decoded tiles", "buffers");
    let (memory, passes) =
        (format!("{memory} + {}", kept_text(&head.plan)), format!("; {passes}{}", head.reads_text()));
    head.plan_text(&format!("{what}, on the CPU"), &memory, &passes) + &head.mode_sorted_text()
}

/// The report for people.
pub fn text(report: &CpdReport) -> String {
    let CpdReport { head, found, .. } = report;
    let seconds = |of: fn(&Iteration) -> f64| found.iterations.iter().map(of).sum::<f64>();
    let mut text = format!(
        "{}\n  fit {:.6}, {} iterations; {}\n  {:.4} s: passes {:.4}, updates {:.4}, rank x rank algebra {:.4}\n",
        head.title(&format!("CP of rank {}, {}", report.settings.rank, head.precision.name())),
        found.fit,
        found.iterations.len(),
        stop_text(report.found.stop, report.tol),
        seconds(|i| i.seconds),
        seconds(|i| i.mttkrp_seconds),
        seconds(|i| i.update_seconds),
        seconds(|i| i.solve_seconds),
    );
    if let Some(stability) = stability(&found.starts) {
        let fits: Vec<String> = found.starts.iter().map(|s| format!("{:.6}", s.fit)).collect();
        let total: f64 = found.starts.iter().map(|start| start.seconds).sum();
        text = format!(
            "{text}  best of {} starts, in {total:.4} s, with fits {}; their components match to {stability:.3}, over all pairs\n",
            fits.len(),
            fits.join(", ")
        );
    }
    if let Some(ranks) = &report.ranks {
        text += &cpd_ranks::text(ranks, report.tol);
    }
    let shown: Vec<String> = found.lambda.iter().take(8).map(|&l| number(l)).collect();
    let more = if found.lambda.len() > 8 { ", …" } else { "" };
    text + &format!("  lambda {}{more}\n{}", shown.join(", "), head.notes_text())
}
