//! What `blco-run --op ttv` reports: as JSON and as text.

use super::report::{ReportHead, median, median_of, share_of_bound, stages_text};
use crate::backend::device::{PipelinePlan, TtvVariant};
use crate::cli::counted;
use crate::cli::engine::{backend_text, memory_text};
use crate::engine::TtvPlan;
use crate::op::oracle::Comparison;
use crate::op::ttv::streams;
use crate::pack::SpillReport;
use crate::store::Store;
use crate::stream::{PassReport, Pipeline, Plan};
use bytesize::ByteSize;
use serde::Serialize;

/// What a run reports as JSON.
#[derive(Debug, Serialize)]
pub struct TtvReport {
    #[serde(flatten)]
    pub head: ReportHead,
    pub mode: usize,
    /// Whether elements come in the store's order, with no partial results.
    pub streamed: bool,
    pub plan: Plan,
    pub device: Option<PipelinePlan>,
    /// The GPU's kernel.
    pub kernel: Option<TtvVariant>,
    pub elements: u64,
    pub spilled: SpillReport,
    /// Seconds of adding up partial results and handing them over, after the pass.
    pub merge_seconds: f64,
    /// Of the streamed chunks' steps.
    pub pipeline: Option<Pipeline>,
    /// Of the same pass: what they took. On a GPU, by its clock.
    pub pipeline_measured_seconds: Option<f64>,
    pub passes: Vec<PassReport>,
    pub check: Option<Comparison>,
}

/// The report of a run that has not begun.
pub fn empty_report(store: &Store, head: ReportHead, mode: usize, plan: &TtvPlan) -> TtvReport {
    TtvReport {
        head,
        mode: mode + 1,
        streamed: streams(store.manifest(), mode),
        plan: plan.uses.host.clone(),
        device: plan.uses.device.clone(),
        kernel: plan.kernel,
        elements: 0,
        spilled: SpillReport::default(),
        merge_seconds: 0.0,
        pipeline: None,
        pipeline_measured_seconds: None,
        passes: Vec::new(),
        check: None,
    }
}

/// What `--plan` prints.
pub fn plan_text(report: &TtvReport) -> String {
    let plan = &report.plan;
    let mut text = format!(
        "{}: ttv along mode {}, {}, on {}\n  memory  {}\n  a pass  {} in {}\n",
        report.head.store.display(),
        report.mode,
        how(report),
        backend(report),
        memory_text(plan, "vector and results", "buffers"),
        ByteSize(plan.file_bytes),
        counted(plan.chunks, "chunk"),
    );
    if let Some(device) = &report.device {
        text.push_str(&device_text(device));
    }
    text.push_str(&report.head.notes_text());
    text
}

/// What `--plan` prints of the device.
fn device_text(plan: &PipelinePlan) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with two digits")]
    let link = plan.link_bytes_per_second as u64;
    format!(
        "  device  {} = vector and parts of sums {} + {} lanes of {} and results of at most {}; over the link ({}/s) {} in a pass: {:.4} s \
         at least\n",
        ByteSize(plan.memory_bytes),
        ByteSize(plan.operation_bytes),
        plan.lanes,
        ByteSize(plan.image_bytes),
        ByteSize(plan.result_bytes),
        ByteSize(link),
        ByteSize(plan.copied_bytes),
        plan.copy_seconds,
    )
}

/// Where it runs.
fn backend(report: &TtvReport) -> String {
    backend_text(report.device.as_ref().map(|plan| &*plan.device.name), report.plan.threads)
}

fn how(report: &TtvReport) -> &'static str {
    if report.streamed { "streamed" } else { "partial results merged" }
}

/// The report for people: the median pass.
pub fn text(report: &TtvReport) -> String {
    let pass = median(&report.passes);
    let mut text = format!(
        "{}: ttv along mode {}, {}, on {}: {} elements\n  {:.4} s a pass{}: {:.1} M nonzeros/s, {} read; {}{}\n",
        report.head.store.display(),
        report.mode,
        how(report),
        backend(report),
        report.elements,
        pass.seconds,
        median_of(&report.passes),
        pass.nnz_per_second / 1e6,
        ByteSize(pass.bytes),
        stages_text(pass),
        pass.device.as_ref().map_or_else(String::new, |device| format!(
            ", results {:.4} s: {}",
            device.return_seconds,
            ByteSize(device.returned_bytes)
        )),
    );
    if let Some(pipeline) = &report.pipeline {
        let last = report.pipeline_measured_seconds.unwrap_or_default();
        let line = format!(
            "  in, compute and out one after the other (T_s) {:.4} s, overlapped (T_p) {:.4} s, measured {last:.4} s\n",
            pipeline.sequential_seconds, pipeline.pipelined_seconds
        );
        text.push_str(&line);
    } else {
        let spilled = match report.spilled.runs {
            0 => "in memory".to_owned(),
            runs => format!("{runs} runs, {} of temporary files", ByteSize(report.spilled.bytes_peak)),
        };
        text.push_str(&merge_text(report.merge_seconds, &spilled));
    }
    if let Some(check) = &report.check {
        let verdict = if check.holds { "ok" } else { "DIFFERS" };
        let (error, worst) = (check.largest_error, share_of_bound(check.worst));
        let line = format!(
            "  compared with the oracle: largest error {error:.2e}, {worst} of its bound: {verdict}\n"
        );
        text.push_str(&line);
    }
    text.push_str(&report.head.notes_text());
    text
}

fn merge_text(seconds: f64, spilled: &str) -> String {
    format!("  added up in {seconds:.4} s, {spilled}\n")
}
