//! `blco-run --op norm` and `--op inner`: one number.

use super::Run;
use crate::cli::Report;
use crate::cli::progress::Bar;
use crate::cli::report::{ReportHead, median, memory_text, pass_text, stages_text};
use crate::engine::{Engine, ExecutionPlan, NumberOutcome};
use crate::error::Result;
use crate::store::Store;
use crate::stream::PassReport;
use serde::Serialize;

/// The JSON report of a run.
#[derive(Debug, Serialize)]
struct NumberReport {
    #[serde(flatten)]
    head: ReportHead,
    op: &'static str,
    /// The other store of an inner product.
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<String>,
    /// The number of passes over each store.
    expected_passes: u64,
    /// The norm from the values of a pass, or the inner product; null before the pass.
    result: Option<f64>,
    /// The norm from the sum of squares in the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<f64>,
    passes: Vec<PassReport>,
}

impl NumberReport {
    fn new(store: &Store, op: &'static str, plan: &ExecutionPlan, expected_passes: u64) -> Self {
        Self {
            // Squares and products are in f64, whatever the precision of factors.
            head: ReportHead::new::<f64>(store, plan),
            op,
            with: None,
            expected_passes,
            result: None,
            recorded: None,
            passes: Vec::new(),
        }
    }

    fn what(&self) -> String {
        let with = self.with.as_ref().map(|with| format!(" with {with}"));
        format!("{}{}", self.op, with.unwrap_or_default())
    }

    fn plan_text(&self) -> String {
        let memory = memory_text(&self.head.plan, "sums and nonzeros", "buffers");
        let what = format!("{}, on {}", self.what(), self.head.place);
        let passes = match self.expected_passes {
            1 => "one pass".to_owned(),
            passes => format!("{passes} passes"),
        };
        let passes = format!(", {passes} over each store{}", self.head.reads_text());
        self.head.plan_text(&what, &memory, &passes) + &self.head.notes_text()
    }

    fn text(&self) -> String {
        let result = self.result.unwrap_or(f64::NAN);
        let recorded =
            self.recorded.map(|recorded| format!("; by the manifest {recorded:?}")).unwrap_or_default();
        let title = self.head.title(&self.what());
        let (passes, stages) = (pass_text(&self.passes), stages_text(median(&self.passes)));
        format!("{title}: {result:?}{recorded}\n{passes}; {stages}\n{}", self.head.notes_text())
    }

    fn finish(mut self, outcome: NumberOutcome) -> Result<Report> {
        self.result = Some(outcome.number);
        self.passes = outcome.passes;
        Report::new::<Run>(self.text(), &self)
    }
}

/// The norm, by a pass and by the manifest.
pub(super) fn norm(run: &Run, engine: &Engine, progress: &Bar) -> Result<Report> {
    let store = engine.open(&run.store)?;
    let plan = engine.plan_norm(&store)?;
    run.engine.check_kernel("norm", false)?;
    let mut report = NumberReport::new(&store, "norm", &plan, 1);
    report.recorded = Some(store.manifest().sum_squares.sqrt());
    if run.plan {
        return Report::new::<Run>(report.plan_text(), &report);
    }
    let outcome = engine.run_norm(&store, &plan)?;
    progress.end();
    report.finish(outcome)
}

/// The inner product with another store.
pub(super) fn inner(run: &Run, engine: &Engine, progress: &Bar) -> Result<Report> {
    let store = engine.open(&run.store)?;
    let with = run.inner.with.as_ref().expect("checked with the other options");
    let other = engine.open(with)?;
    let plan = engine.settle_inner(&store, &other)?;
    run.engine.check_kernel("inner", false)?;
    let mut report = NumberReport::new(&store, "inner", &plan.uses, plan.passes);
    report.with = Some(with.display().to_string());
    if run.plan {
        return Report::new::<Run>(report.plan_text(), &report);
    }
    let outcome = engine.run_inner([&store, &other], &plan)?;
    progress.end();
    report.finish(outcome)
}
