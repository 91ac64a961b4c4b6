//! What `blco-cpd` reports: as JSON, as text, as a page of HTML.

use super::counted;
use super::device;
use super::engine::{backend_text, kept_text, memory_text};
use crate::backend::device::{DevicePlan, KernelReport};
use crate::decomp::report::{Page, html, number};
use crate::decomp::{Decomposition, Iteration, Settings, StartReport, Stop};
use crate::dense::Precision;
use crate::dense::Real;
use crate::engine::ExecutionPlan;
use crate::store::Store;
use crate::stream::Plan;
use bytesize::ByteSize;
use serde::Serialize;
use std::path::PathBuf;

/// What a decomposition reports as JSON.
#[derive(Debug, Serialize)]
pub struct CpdReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    pub store: PathBuf,
    pub digest: String,
    pub dims: Vec<u32>,
    pub nnz: u64,
    pub backend: &'static str,
    /// Why not on a GPU, what was less than planned.
    pub notes: Vec<String>,
    pub precision: Precision,
    pub settings: Settings,
    pub max_iters: u32,
    pub tol: f64,
    pub plan: Plan,
    pub device: Option<DevicePlan>,
    pub kernels: Option<KernelReport>,
    /// The start and the iteration of the checkpoint that was continued.
    pub resumed: Option<(u32, usize)>,
    pub starts: Vec<StartReport>,
    /// The best start, from 1.
    pub best: u32,
    pub stop: Option<Stop>,
    pub fit: f64,
    pub lambda: Vec<f64>,
    /// Of the best start.
    pub iterations: Vec<Iteration>,
}

impl CpdReport {
    /// Before anything is computed; `asked` is the most iterations and the tolerance.
    pub fn new<T: Real>(store: &Store, settings: Settings, asked: (u32, f64), plan: &ExecutionPlan) -> Self {
        Self {
            store: store.path().to_path_buf(),
            digest: format!("{:016x}", store.id()),
            dims: store.manifest().shape.dims().to_vec(),
            nnz: store.manifest().nnz,
            backend: if plan.device.is_some() { "cuda" } else { "cpu" },
            notes: plan.notes.clone(),
            precision: T::PRECISION,
            settings,
            max_iters: asked.0,
            tol: asked.1,
            plan: plan.host.clone(),
            device: plan.device.clone(),
            kernels: None,
            resumed: None,
            starts: Vec::new(),
            best: 0,
            stop: None,
            fit: 0.0,
            lambda: Vec::new(),
            iterations: Vec::new(),
        }
    }

    /// Adds what came of it.
    pub fn fill<T>(&mut self, outcome: &Decomposition<T>) {
        let best = outcome.starts.iter().find(|s| s.start as usize == outcome.best + 1);
        self.resumed = outcome.resumed;
        self.starts.clone_from(&outcome.starts);
        self.best = u32::try_from(outcome.best + 1).unwrap_or(0);
        self.stop = best.map(|best| best.stop);
        self.fit = outcome.als.fit();
        self.lambda = outcome.model.lambda.data().to_vec();
        self.iterations = outcome.als.history().to_vec();
        let singular: usize = self.iterations.iter().map(|i| i.pseudo_inverses).sum();
        if singular > 0 {
            self.notes.push(format!(
                "{singular} updates used a pseudo-inverse: components depend on each other; a smaller --rank or a --ridge \
                 avoids that"
            ));
        }
        let Some(last) = self.iterations.last() else { return };
        if last.vanished > 0 {
            let all = last.vanished == self.settings.rank;
            let which = if all { "all".to_owned() } else { last.vanished.to_string() };
            let advice = if all { "; try --precision f64, another start or a smaller --ridge" } else { "" };
            self.notes.push(format!("{which} components have vanished{advice}"));
        }
        if 1.0 - last.fit < last.fit_floor {
            let floor = last.fit_floor;
            self.notes.push(format!("the fit is 1 within what rounding lets it tell: {floor:.1e}"));
        }
    }
}

/// The report as a page of HTML.
pub fn page<T: Real>(report: &CpdReport, outcome: &Decomposition<T>) -> String {
    let store = report.store.file_name().unwrap_or_default().to_string_lossy();
    let dims: Vec<String> = report.dims.iter().map(u32::to_string).collect();
    let seconds: f64 = report.iterations.iter().map(|i| i.seconds).sum();
    let mut facts = vec![
        ("store", report.store.display().to_string()),
        ("digest", report.digest.clone()),
        ("shape", format!("{}, {} nonzeros", dims.join(" x "), report.nnz)),
        ("fit", format!("{:.8} after {} iterations, {seconds:.3} s", report.fit, report.iterations.len())),
        ("stopped because", stop_text(report)),
        ("computed", format!("in {}, on {}", report.precision.name(), place_name(report))),
    ];
    let starts = report.starts.iter();
    let start = |s: &StartReport| match s.seed {
        Some(seed) => format!("seed {seed}: {:.6}", s.fit),
        None => format!("given factors: {:.6}", s.fit),
    };
    facts.push(("starts", starts.map(start).collect::<Vec<_>>().join(", ")));
    facts.extend(report.notes.iter().map(|note| ("note", note.clone())));
    let title = format!("{store}: CP of rank {}", report.settings.rank);
    html(&Page { title: &title, facts: &facts, iterations: &report.iterations, model: &outcome.model })
}

fn place_name(report: &CpdReport) -> String {
    backend_text(report.device.as_ref().map(|plan| &*plan.device.name), report.plan.threads)
}

fn stop_text(report: &CpdReport) -> String {
    match report.stop {
        Some(Stop::Tolerance) => format!("the fit changes by less than {:e}", report.tol),
        _ => "as many iterations as allowed".to_owned(),
    }
}

/// What `--plan` prints.
pub fn plan_text(report: &CpdReport) -> String {
    let plan = &report.plan;
    let what = format!("CP of rank {}", report.settings.rank);
    let passes = format!("an iteration takes {} passes", report.dims.len());
    if let Some(device) = &report.device {
        return device::plan_text(&report.store, &what, &passes, plan, device);
    }
    format!(
        "{}: {what}, on the CPU\n  memory  {} + {}\n  a pass  {} in {}; {passes}{}\n",
        report.store.display(),
        memory_text(plan, "factors, sums and decoded tiles", "buffers"),
        kept_text(plan),
        ByteSize(plan.file_bytes),
        counted(plan.chunks, "chunk"),
        if plan.direct_reads { ", read past the page cache" } else { "" },
    )
}

/// The report for people.
pub fn text(report: &CpdReport) -> String {
    let seconds = |of: fn(&Iteration) -> f64| report.iterations.iter().map(of).sum::<f64>();
    let mut text = format!(
        "{}: CP of rank {}, {}, on {}\n  fit {:.6} after {} iterations ({})\n  {:.4} s: passes {:.4}, updates {:.4}, rank x rank algebra \
         {:.4}\n",
        report.store.display(),
        report.settings.rank,
        report.precision.name(),
        place_name(report),
        report.fit,
        report.iterations.len(),
        stop_text(report),
        seconds(|i| i.seconds),
        seconds(|i| i.mttkrp_seconds),
        seconds(|i| i.update_seconds),
        seconds(|i| i.solve_seconds),
    );
    if report.starts.len() > 1 {
        let fits: Vec<String> = report.starts.iter().map(|s| format!("{:.6}", s.fit)).collect();
        text = format!("{text}  best of {} starts, with fits {}\n", fits.len(), fits.join(", "));
    }
    let shown: Vec<String> = report.lambda.iter().take(8).map(|&l| number(l)).collect();
    let more = if report.lambda.len() > 8 { ", …" } else { "" };
    text = format!("{text}  lambda {}{more}\n", shown.join(", "));
    for note in &report.notes {
        text.extend(["  note: ", note, "\n"]);
    }
    text
}
