//! The reports of `blco-run` about MTTKRP, as JSON and as text.

use crate::backend::device::KernelReport;
use crate::backend::devices::DevicesPass;
use crate::cli::report::{
    ReportHead, median, memory_text, modes_text, pass_text, share_of_bound, stages_text,
};
use crate::cli::{counted, device};
use crate::dense::Real;
use crate::engine::{Engine, ExecutionPlan};
use crate::op::mttkrp::{Served, Strategy, served};
use crate::op::oracle::Comparison;
use crate::store::Store;
use crate::stream::PassReport;
use serde::Serialize;

/// The JSON report of a run.
#[derive(Debug, Serialize)]
pub struct RunReport {
    #[serde(flatten)]
    pub head: ReportHead,
    pub op: &'static str,
    pub modes: Vec<usize>,
    pub rank: usize,
    /// How threads avoid conflicts in each mode's sums, on the CPU.
    pub strategies: Vec<Strategy>,
    /// The cover that each mode is computed from, on the CPU.
    pub served: Vec<Served>,
    pub kernels: Option<KernelReport>,
    pub passes: Vec<PassReport>,
    /// Reports of the last pass on each of several GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices_pass: Option<DevicesPass>,
    pub check: Option<Vec<Comparison>>,
}

impl RunReport {
    /// The report of a run that has not begun; modes from 0.
    pub fn new<T: Real>(
        engine: &Engine,
        store: &Store,
        modes: &[usize],
        rank: usize,
        plan: &ExecutionPlan,
    ) -> Self {
        let on_cpu = || engine.options().on_cpu(store);
        let served = if plan.is_on_gpu() { Vec::new() } else { served(on_cpu().whole(), modes, rank) };
        Self {
            head: ReportHead::new::<T>(store, plan),
            op: "mttkrp",
            modes: modes.iter().map(|m| m + 1).collect(),
            rank,
            strategies: served.iter().map(|served| served.strategy).collect(),
            served,
            kernels: None,
            passes: Vec::new(),
            devices_pass: None,
            check: None,
        }
    }

    fn what(&self) -> String {
        format!("mttkrp of {}, rank {}", modes_text(&self.modes), self.rank)
    }
}

/// What `--plan` prints.
pub fn plan_text(report: &RunReport) -> String {
    let (head, passes) = (&report.head, "one pass for all modes");
    if let Some(device) = &head.device {
        return device::plan_text(head, device, &report.what(), passes);
    }
    if let Some(devices) = &head.devices {
        return device::several_text(head, devices, &report.what(), passes);
    }
    let memory = memory_text(&head.plan, "factors, results and decoded tiles", "buffers");
    let what = format!("{}, on the CPU", report.what());
    let passes = format!(", {passes}{}", head.reads_text());
    let from = |served: &Served| match &served.trees[..] {
        [] => String::new(),
        [tree] => format!(" along the tree {}", shown(tree)),
        trees => format!(" along {} trees", trees.len()),
    };
    let sum = |served: &Served| format!("mode {} in {}{}", served.mode, served.strategy.name(), from(served));
    let sums: Vec<String> = report.served.iter().map(sum).collect();
    head.plan_text(&what, &memory, &passes)
        + &format!("  sums    {}\n{}", sums.join(", "), head.mode_sorted_text())
}

/// The modes of a tree's levels.
fn shown(tree: &[usize]) -> String {
    tree.iter().map(ToString::to_string).collect::<Vec<_>>().join("-")
}

/// The report for people: the median pass, stages, the check.
pub fn text(report: &RunReport) -> String {
    let (head, pass) = (&report.head, median(&report.passes));
    let mut text = format!(
        "{}\n{}\n  {}; {}: read {:.4}, verify {:.4}, decode {:.4}, waited {:.4} s\n{}",
        head.title(&format!("{}, {}", report.what(), head.precision.name())),
        pass_text(&report.passes),
        stages_text(pass),
        counted(head.plan.workers, "worker"),
        pass.read_seconds,
        pass.verify_seconds,
        pass.decode_seconds,
        pass.worker_stall_seconds,
        head.notes_text(),
    );
    if let (Some(plan), Some(pass)) = (&head.devices, &report.devices_pass) {
        text += &device::pass_text(plan, pass);
    }
    if let Some(check) = &report.check {
        text += &check_table(check, &head.dims);
    }
    text
}

/// What a check found about the results of some modes.
pub fn check_table(check: &[Comparison], dims: &[u32]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["mode", "rows", "largest error", "of its bound", ""]);
    for c in check {
        table.add_row([
            c.mode.to_string(),
            dims[c.mode - 1].to_string(),
            format!("{:.2e}", c.largest_error),
            share_of_bound(c.worst),
            if c.holds { "ok".into() } else { "DIFFERS".to_owned() },
        ]);
    }
    format!("compared with the oracle:\n{table}\n")
}
