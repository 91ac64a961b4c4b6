//! What `blco-run` reports of MTTKRP: as JSON and as text.

use crate::cli::counted;
use crate::cli::device::{self, DevicePlan, KernelReport, Real};
use crate::cli::engine::{Place, memory_text, place_text};
use crate::dense::Precision;
use crate::op::mttkrp::{Strategy, strategies};
use crate::op::oracle::Comparison;
use crate::store::Store;
use crate::stream::{PassReport, Plan};
use bytesize::ByteSize;
use serde::Serialize;
use std::path::PathBuf;

/// What a run reports as JSON.
#[derive(Debug, Serialize)]
pub struct RunReport {
    pub store: PathBuf,
    pub digest: String,
    pub op: &'static str,
    pub backend: &'static str,
    /// Why not on a GPU, what was less than planned.
    pub notes: Vec<String>,
    pub precision: Precision,
    pub dims: Vec<u32>,
    pub nnz: u64,
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
    pub fn new<T: Real>(store: &Store, modes: Vec<usize>, rank: usize, plan: Plan, place: &Place) -> Self {
        let shape = &store.manifest().shape;
        let on_cpu = if place.device.is_some() { Vec::new() } else { strategies(shape, &modes, rank) };
        Self {
            strategies: on_cpu,
            store: store.path().to_path_buf(),
            digest: format!("{:016x}", store.id()),
            op: "mttkrp",
            backend: if place.device.is_some() { "cuda" } else { "cpu" },
            notes: place.notes.clone(),
            precision: T::PRECISION,
            dims: shape.dims().to_vec(),
            nnz: store.manifest().nnz,
            modes: modes.into_iter().map(|m| m + 1).collect(),
            rank,
            plan,
            device: place.device.as_ref().map(|(_, plan)| plan.clone()),
            kernels: None,
            passes: Vec::new(),
            check: None,
        }
    }

    /// The longest chain of additions in the precision of the factors.
    pub fn chain(&self) -> u32 {
        if self.device.is_some() { device::CHAIN } else { 1 }
    }
}

/// What `--plan` prints.
pub fn plan_text(report: &RunReport) -> String {
    let plan = &report.plan;
    let what = format!("mttkrp of modes {:?}, rank {}", report.modes, report.rank);
    if let Some(device) = &report.device {
        return device::plan_text(&report.store, &what, "one pass for all modes", plan, device);
    }
    format!(
        "{}: {what}, on the CPU\n  memory  {}\n  a pass  {} in {}, one pass for all modes{}\n  sums    {}\n",
        report.store.display(),
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

/// Where the time of a pass went, but for its workers.
pub fn stages_text(pass: &PassReport) -> String {
    let stall = pass.compute_stall_seconds;
    let Some(device) = &pass.device else {
        return format!("compute {:.4} s, waited for data {stall:.4} s", pass.compute_seconds);
    };
    format!(
        "kernels {:.4} s (asking for {:.0} % of what device memory moves, caches included), copies {:.4} s ({:.0} % of the link: {} in {} chunks at {}/s, {} \
         chunks there already), both at once {:.4} s, waited for data {stall:.4} s",
        device.kernel_seconds,
        100.0 * device.memory_share,
        device.copy_seconds,
        100.0 * device.link_share,
        ByteSize(device.copied_bytes),
        device.copied_chunks,
        rate(device.copied_bytes, device.copy_seconds),
        device.resident_chunks,
        device.overlap_seconds,
    )
}

/// The report for people: the median pass, stages, the check.
pub fn text(report: &RunReport) -> String {
    let mut by_time: Vec<&PassReport> = report.passes.iter().collect();
    by_time.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let pass = by_time[(by_time.len() - 1) / 2];
    let precision = report.precision.name();
    let mut text = format!(
        "{}: mttkrp of modes {:?}, rank {}, {precision}, on {}\n  {:.4} s a pass{}: {:.1} M nonzeros/s, {} read\n  {}; {}: \
         read {:.4}, verify {:.4}, decode {:.4}, waited {:.4} s\n",
        report.store.display(),
        report.modes,
        report.rank,
        place_text(report.device.as_ref().map(device::name), report.plan.threads),
        pass.seconds,
        if by_time.len() > 1 { format!(" (median of {})", by_time.len()) } else { String::new() },
        pass.nnz_per_second / 1e6,
        ByteSize(pass.bytes),
        stages_text(pass),
        counted(report.plan.workers, "worker"),
        pass.read_seconds,
        pass.verify_seconds,
        pass.decode_seconds,
        pass.worker_stall_seconds,
    );
    for note in &report.notes {
        text.extend(["  note: ", note, "\n"]);
    }
    if let Some(check) = &report.check {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
        table.set_header(["mode", "rows", "largest error", "of its bound", ""]);
        for c in check {
            table.add_row([
                c.mode.to_string(),
                report.dims[c.mode - 1].to_string(),
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

/// An error as a part of its bound, readable for errors far beyond it too.
pub fn share_of_bound(part: f64) -> String {
    if part < 1e4 { format!("{part:.4}") } else { format!("{part:.1e}") }
}

/// Bytes a second.
fn rate(bytes: u64, seconds: f64) -> ByteSize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with two digits")]
    ByteSize((bytes as f64 / seconds.max(1e-9)) as u64)
}
