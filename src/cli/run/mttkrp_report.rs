//! What `blco-run` reports of MTTKRP: as JSON and as text.

use super::report::{ReportHead, median, median_of, share_of_bound, stages_text};
use crate::backend::device::{DevicePlan, KernelReport};
use crate::cli::counted;
use crate::cli::device;
use crate::cli::engine::{backend_text, memory_text};
use crate::dense::Real;
use crate::engine::ExecutionPlan;
use crate::op::mttkrp::{Strategy, strategies};
use crate::op::oracle::Comparison;
use crate::store::Store;
use crate::stream::{PassReport, Plan};
use bytesize::ByteSize;
use serde::Serialize;

/// What a run reports as JSON.
#[derive(Debug, Serialize)]
pub struct RunReport {
    #[serde(flatten)]
    pub head: ReportHead,
    pub modes: Vec<usize>,
    pub rank: usize,
    pub plan: Plan,
    /// How each mode's sums are kept apart between threads, on the CPU.
    pub strategies: Vec<Strategy>,
    pub device: Option<DevicePlan>,
    pub kernels: Option<KernelReport>,
    pub passes: Vec<PassReport>,
    pub check: Option<Vec<Comparison>>,
}

impl RunReport {
    /// Of a run that has not begun; modes from 0.
    pub fn new<T: Real>(store: &Store, modes: Vec<usize>, rank: usize, plan: &ExecutionPlan) -> Self {
        let shape = &store.manifest().shape;
        let on_cpu = if plan.device.is_some() { Vec::new() } else { strategies(shape, &modes, rank) };
        Self {
            strategies: on_cpu,
            head: ReportHead::new::<T>(store, "mttkrp", plan.device.is_some(), plan.notes.clone()),
            modes: modes.into_iter().map(|m| m + 1).collect(),
            rank,
            plan: plan.host.clone(),
            device: plan.device.clone(),
            kernels: None,
            passes: Vec::new(),
            check: None,
        }
    }
}

/// What `--plan` prints.
pub fn plan_text(report: &RunReport) -> String {
    let plan = &report.plan;
    let what = format!("mttkrp of modes {:?}, rank {}", report.modes, report.rank);
    if let Some(device) = &report.device {
        return device::plan_text(&report.head.store, &what, "one pass for all modes", plan, device);
    }
    format!(
        "{}: {what}, on the CPU\n  memory  {}\n  a pass  {} in {}, one pass for all modes{}\n  sums    {}\n",
        report.head.store.display(),
        memory_text(plan, "factors, results and decoded tiles", "buffers"),
        ByteSize(plan.file_bytes),
        counted(plan.chunks, "chunk"),
        if plan.direct_reads { ", read past the page cache" } else { "" },
        sums_text(report),
    )
}

/// How each mode's sums are kept apart between threads.
fn sums_text(report: &RunReport) -> String {
    let modes = report.modes.iter().zip(&report.strategies);
    let each: Vec<String> = modes.map(|(mode, s)| format!("mode {mode} in {}", s.name())).collect();
    each.join(", ")
}

/// The report for people: the median pass, stages, the check.
pub fn text(report: &RunReport) -> String {
    let pass = median(&report.passes);
    let precision = report.head.precision.name();
    let mut text = format!(
        "{}: mttkrp of modes {:?}, rank {}, {precision}, on {}\n  {:.4} s a pass{}: {:.1} M nonzeros/s, {} read\n  {}; {}: \
         read {:.4}, verify {:.4}, decode {:.4}, waited {:.4} s\n",
        report.head.store.display(),
        report.modes,
        report.rank,
        backend_text(report.device.as_ref().map(|plan| &*plan.device.name), report.plan.threads),
        pass.seconds,
        median_of(&report.passes),
        pass.nnz_per_second / 1e6,
        ByteSize(pass.bytes),
        stages_text(pass),
        counted(report.plan.workers, "worker"),
        pass.read_seconds,
        pass.verify_seconds,
        pass.decode_seconds,
        pass.worker_stall_seconds,
    );
    text.push_str(&report.head.notes_text());
    if let Some(check) = &report.check {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
        table.set_header(["mode", "rows", "largest error", "of its bound", ""]);
        for c in check {
            table.add_row([
                c.mode.to_string(),
                report.head.dims[c.mode - 1].to_string(),
                format!("{:.2e}", c.largest_error),
                share_of_bound(c.worst),
                if c.holds { "ok".into() } else { "DIFFERS".to_owned() },
            ]);
        }
        text.push_str("compared with the oracle:\n");
        text.push_str(&table.to_string());
        text.push('\n');
    }
    text
}
