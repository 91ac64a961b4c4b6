//! `blco-run --op ttmc`.

use super::mttkrp_report::check_table;
use super::{Run, beyond, parse_modes};
use crate::backend::device::KernelReport;
use crate::cli::device;
use crate::cli::outputs::refuse_dash_for_directory;
use crate::cli::progress::Bar;
use crate::cli::report::{ReportHead, median, memory_text, modes_text, numbers_text, pass_text, stages_text};
use crate::cli::{Report, counted};
use crate::dense::{Matrix, MatrixRef, Real, factors_ranks, load_ranked_factors, mode_file};
use crate::engine::{Engine, ExecutionPlan, TtmcRequest, chain};
use crate::error::{Error, Result};
use crate::op::oracle::{self, Comparison};
use crate::op::ttmc::width;
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::PassReport;
use crate::sys::{File, Sys};
use serde::Serialize;

/// The JSON report of a run.
#[derive(Debug, Serialize)]
struct TtmcReport {
    #[serde(flatten)]
    head: ReportHead,
    op: &'static str,
    modes: Vec<usize>,
    ranks: Vec<usize>,
    /// Columns of each mode's result.
    widths: Vec<usize>,
    kernels: Option<KernelReport>,
    passes: Vec<PassReport>,
    check: Option<Vec<Comparison>>,
}

impl TtmcReport {
    fn new<T: Real>(store: &Store, request: &TtmcRequest, plan: &ExecutionPlan) -> Self {
        let TtmcRequest { modes, ranks, .. } = request;
        Self {
            head: ReportHead::new::<T>(store, plan),
            op: "ttmc",
            modes: modes.iter().map(|m| m + 1).collect(),
            ranks: ranks.clone(),
            widths: modes.iter().filter_map(|&m| width(ranks, m)).collect(),
            kernels: None,
            passes: Vec::new(),
            check: None,
        }
    }

    fn what(&self) -> String {
        format!("ttmc of {}, ranks {}", modes_text(&self.modes), numbers_text(&self.ranks))
    }

    fn plan_text(&self) -> String {
        let passes = "one pass for all modes";
        let plan = if let Some(device) = &self.head.device {
            device::plan_text(&self.head, device, &self.what(), passes)
        } else {
            let memory = memory_text(&self.head.plan, "factors, results and lists", "buffers");
            let passes = format!(", {passes}{}", self.head.reads_text());
            self.head.plan_text(&format!("{}, on {}", self.what(), self.head.place), &memory, &passes)
        };
        let widths: Vec<String> = self
            .modes
            .iter()
            .zip(&self.widths)
            .map(|(&m, width)| format!("mode {m} {} x {width}", self.head.dims[m - 1]))
            .collect();
        format!("{plan}  results {}\n{}", widths.join(", "), self.head.notes_text())
    }

    fn text(&self) -> String {
        let title = self.head.title(&format!("{}, {}", self.what(), self.head.precision.name()));
        let stages = stages_text(median(&self.passes));
        let check = self.check.as_ref().map(|check| check_table(check, &self.head.dims)).unwrap_or_default();
        format!("{title}\n{}\n  {stages}\n{}{check}", pass_text(&self.passes), self.head.notes_text())
    }
}

/// Opens, plans, streams, checks, writes.
pub(super) fn run<T: Real>(run: &Run, sys: &Sys, engine: &Engine, progress: &Bar) -> Result<Report> {
    refuse_dash_for_directory("--output", run.output.as_deref(), "results are files")?;
    let store = engine.open(&run.store)?;
    let shape = store.manifest().shape.clone();
    let modes = parse_modes(&run.modes, &store)?;
    let ranks = ranks(run, sys, &shape)?;
    let mut to_check = run.to_check(sys)?;
    let checked = to_check
        .as_mut()
        .map(|text| oracle::ttmc_bytes(&shape, &modes, &ranks).saturating_add(text.hold(engine)));
    let request = TtmcRequest { modes, ranks, passes: run.repeat, checked };
    let plan = engine.settle_ttmc::<T>(&store, &request)?;
    run.engine.check_kernel("SpTTMc", plan.is_on_gpu())?;
    let mut report = TtmcReport::new::<T>(&store, &request, &plan);
    if run.plan {
        return Report::new::<Run>(report.plan_text(), &report);
    }
    let names = request.modes.iter().map(|&m| mode_file(m));
    let outputs = run.outputs(sys, run.output.as_deref(), names)?;
    let seeded = |(mode, (&dim, &rank)): (usize, (&u32, &usize))| {
        Matrix::seeded(sys, dim as usize, rank, mode, run.seed.unwrap_or(0))
    };
    let factors: Vec<Matrix<T>> = match &run.factors.factors {
        Some(dir) => load_ranked_factors(sys, dir, &shape, &request.ranks)?,
        None => shape.dims().iter().zip(&request.ranks).enumerate().map(seeded).collect::<Result<_>>()?,
    };
    let views: Vec<MatrixRef<'_, T>> = factors.iter().map(Into::into).collect();
    let outcome = engine.run_ttmc(&store, &request, &plan, &views)?;
    progress.end();
    (report.passes, report.kernels) = (outcome.passes, outcome.kernels);
    report.head.used(outcome.plan);
    report.head.notes.extend(beyond(&outcome.results));
    if let Some(source) = &mut to_check {
        let oracle = oracle::ttmc(source, &factors, &request.modes)?;
        let results = oracle.iter().zip(&outcome.results);
        let check: Vec<Comparison> =
            results.map(|(o, (_, result))| o.compare(result, shape.order(), chain(&plan))).collect();
        if check.iter().any(|c| !c.holds) {
            report.head.notes.extend(source.differs(store.manifest()));
        }
        report.check = Some(check);
    }
    let write = |i: usize, file: &File| outcome.results[i].1.write(file);
    outputs.publish(write, |trace| super::write_trace(trace, &outcome.spans))?;
    let mut out = Report::new::<Run>(report.text(), &report)?;
    out.failed = report.check.iter().flatten().any(|c| !c.holds);
    Ok(out)
}

/// The rank of each mode's factor.
fn ranks(run: &Run, sys: &Sys, shape: &Shape) -> Result<Vec<usize>> {
    let (order, given) = (shape.order(), &run.ttmc.ranks);
    match &run.factors.factors {
        Some(dir) => factors_ranks(sys, dir, shape),
        None if given.is_empty() => Ok(vec![8; order]),
        None if given.len() == order => Ok(given.iter().map(|&rank| rank as usize).collect()),
        None => {
            let what = format!(
                "--ranks has {}; this store has {order} modes, give one for each",
                counted(given.len(), "number")
            );
            Err(Error::request(what))
        }
    }
}
