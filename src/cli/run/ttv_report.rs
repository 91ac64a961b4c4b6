//! The reports of `blco-run --op ttv`, as JSON and as text.

use crate::backend::device::TtvVariant;
use crate::backend::plan::DevicePlan;
use crate::cli::report::{
    ReportHead, median, memory_text, modes_text, pass_text, share_of_bound, shown, stages_text,
};
use crate::dense::Real;
use crate::engine::TtvPlan;
use crate::op::oracle::Comparison;
use crate::op::ttv::streamed_mode;
use crate::pack::SpillReport;
use crate::store::Store;
use crate::stream::{PassReport, Pipeline};
use bytesize::ByteSize;
use serde::Serialize;

/// The JSON report of a run.
#[derive(Debug, Serialize)]
pub struct TtvReport {
    #[serde(flatten)]
    pub head: ReportHead,
    pub op: &'static str,
    pub modes: Vec<usize>,
    /// The mode, if there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<usize>,
    /// Whether elements come in the store's order, with no partial results.
    pub streamed: bool,
    /// The GPU's kernel.
    pub kernel: Option<TtvVariant>,
    pub elements: u64,
    pub spilled: SpillReport,
    /// Seconds after the pass, for adding up partial results and delivering them.
    pub merge_seconds: f64,
    /// Seconds of the streamed chunks' steps.
    pub pipeline: Option<Pipeline>,
    /// The steps of the same pass, in seconds. On a GPU, by its clock.
    pub pipeline_measured_seconds: Option<f64>,
    pub passes: Vec<PassReport>,
    pub check: Option<Comparison>,
}

impl TtvReport {
    /// The report of a run along `modes`, from 0, that has not begun.
    pub fn new<T: Real>(store: &Store, modes: &[usize], plan: &TtvPlan) -> Self {
        Self {
            head: ReportHead::new::<T>(store, &plan.uses),
            op: "ttv",
            modes: modes.iter().map(|mode| mode + 1).collect(),
            mode: if let &[mode] = modes { Some(mode + 1) } else { None },
            streamed: streamed_mode(store.manifest(), modes).is_some(),
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

    fn what(&self) -> String {
        let how = match () {
            () if self.streamed => "streamed",
            () if self.modes.len() == self.head.dims.len() => "one number",
            () => "partial results merged",
        };
        let modes: Vec<usize> = self.modes.iter().map(|mode| mode - 1).collect();
        format!("ttv along {}, {how}", named(&modes))
    }
}

/// `mode 1`, `modes 1, 3`, from modes counted from 0.
pub fn named(modes: &[usize]) -> String {
    modes_text(&modes.iter().map(|mode| mode + 1).collect::<Vec<_>>())
}

/// What `--plan` prints.
pub fn plan_text(report: &TtvReport) -> String {
    let head = &report.head;
    let memory = memory_text(&head.plan, "vector and results", "buffers");
    let what = format!("{}, on {}", report.what(), head.place);
    let device = head.device.as_ref().map(device_text).unwrap_or_default();
    head.plan_text(&what, &memory, "") + &device + &head.notes_text()
}

/// What `--plan` prints about the device.
fn device_text(plan: &DevicePlan) -> String {
    format!(
        "  device  {} = vector and parts of sums {} + {} lanes of {} and results of at most {}; over the link ({}/s) {} in a pass: {:.4} s \
         at least\n",
        ByteSize(plan.memory_bytes),
        ByteSize(plan.operation_bytes),
        plan.lanes.count,
        ByteSize(plan.lanes.image_bytes),
        ByteSize(plan.lanes.result_bytes),
        shown(plan.link_bytes_per_second),
        ByteSize(plan.later_pass.bytes),
        plan.later_pass.seconds,
    )
}

/// The report for people: the median pass.
pub fn text(report: &TtvReport) -> String {
    let (head, pass) = (&report.head, median(&report.passes));
    let returned = pass.device.as_ref().map(|device| {
        format!(", results {:.4} s: {}", device.return_seconds, ByteSize(device.returned_bytes))
    });
    let (title, stages) = (head.title(&report.what()), stages_text(pass) + &returned.unwrap_or_default());
    let more = match (&report.pipeline, report.spilled.runs) {
        (Some(steps), _) => format!(
            "  in, compute and out one after the other (T_s) {:.4} s, overlapped (T_p) {:.4} s, measured {:.4} s\n",
            steps.sequential_seconds,
            steps.pipelined_seconds,
            report.pipeline_measured_seconds.unwrap_or_default(),
        ),
        (None, 0) if report.modes.len() == head.dims.len() => String::new(),
        (None, 0) => format!("  added up in {:.4} s, in memory\n", report.merge_seconds),
        (None, runs) => {
            let peak = ByteSize(report.spilled.bytes_peak);
            format!("  added up in {:.4} s, {runs} runs, {peak} of temporary files\n", report.merge_seconds)
        }
    };
    let (elements, passes) = (report.elements, pass_text(&report.passes));
    let check = report.check.as_ref().map(check_text).unwrap_or_default();
    let elements = if elements == 1 { "1 element".to_owned() } else { format!("{elements} elements") };
    format!("{title}: {elements}\n{passes}; {stages}\n{more}{check}{}", head.notes_text())
}

/// What a check found about a result that is one number.
pub fn check_text(check: &Comparison) -> String {
    let verdict = if check.holds { "ok" } else { "DIFFERS" };
    let (error, worst) = (check.largest_error, share_of_bound(check.worst));
    format!("  compared with the oracle: largest error {error:.2e}, {worst} of its bound: {verdict}\n")
}
