//! The common part of the reports of programs that stream a store.

use super::{counted, in_options, nonzeros};
use crate::backend::devices::DevicesPlan;
use crate::backend::plan::{DevicePlan, FibersPlan};
use crate::dense::{Precision, Real};
use crate::engine::{ExecutionPlan, ModeSortedPlan};
use crate::store::Store;
use crate::stream::{PassReport, Plan};
use bytesize::ByteSize;
use serde::Serialize;
use std::path::PathBuf;

/// The notes of a plan, and one more.
fn notes(plan: &ExecutionPlan, more: Option<&String>) -> Vec<String> {
    plan.notes.iter().map(|note| in_options(note)).chain(more.cloned()).collect()
}

/// The note if `store` is a part of a tensor whose other parts are not there.
fn part_alone(store: &Store) -> Option<String> {
    let part = store.whole().part.as_ref().filter(|part| part.nnz > store.nnz())?;
    let of = format!("part {} of {} of a tensor with {}", part.number + 1, part.parts, nonzeros(part.nnz));
    Some(format!("the store is {of}; this is computed from the part alone"))
}

/// The beginning of a report.
#[derive(Debug, Serialize)]
pub struct ReportHead {
    #[serde(serialize_with = "crate::sys::shown_path")]
    pub store: PathBuf,
    pub digest: String,
    pub backend: &'static str,
    /// Why the GPU is not used, and what was smaller than planned.
    pub notes: Vec<String>,
    pub precision: Precision,
    pub dims: Vec<u32>,
    pub nnz: u64,
    pub plan: Plan,
    /// Mode-sorted copies in host memory, if several passes run on the CPU.
    pub mode_sorted: Option<ModeSortedPlan>,
    pub device: Option<DevicePlan>,
    /// The same for several GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<DevicesPlan>,
    /// The first plan of the GPU, if less memory was available in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<DevicePlan>,
    /// The GPU's name, or the CPU with its threads.
    #[serde(skip)]
    pub place: String,
    /// The note if the store is a part of a tensor, and alone.
    #[serde(skip)]
    alone: Option<String>,
}

impl ReportHead {
    /// The report of a run on `store` by `plan` that has not begun.
    pub fn new<T: Real>(store: &Store, plan: &ExecutionPlan) -> Self {
        let (manifest, device) = (store.manifest(), plan.device.as_ref());
        let on_cpu = || match &plan.devices {
            None => format!("the CPU with {}", counted(plan.host.threads, "thread")),
            Some(devices) => names(devices),
        };
        let alone = part_alone(store);
        Self {
            store: store.path().to_path_buf(),
            digest: format!("{:016x}", store.id()),
            backend: if plan.is_on_gpu() { "cuda" } else { "cpu" },
            notes: notes(plan, alone.as_ref()),
            precision: T::PRECISION,
            dims: manifest.shape.dims().to_vec(),
            nnz: manifest.nnz,
            plan: plan.host.clone(),
            mode_sorted: plan.mode_sorted.clone(),
            device: device.cloned(),
            devices: plan.devices.clone(),
            planned: None,
            place: device.map_or_else(on_cpu, |plan| plan.device.name.clone()),
            alone,
        }
    }

    /// Records what was used in the end, beside the plan if a note says that they differ.
    pub fn used(&mut self, plan: ExecutionPlan) {
        let notes = notes(&plan, self.alone.as_ref());
        let planned = std::mem::replace(&mut self.device, plan.device);
        self.devices = plan.devices;
        self.planned = if notes == self.notes { None } else { planned };
        self.notes = notes;
    }

    /// What `--plan` prints for every operation: the work and device, host memory, and what a pass reads, followed by `more`.
    pub fn plan_text(&self, what: &str, memory: &str, passes: &str) -> String {
        let (bytes, chunks) = (ByteSize(self.plan.file_bytes), counted(self.plan.chunks, "chunk"));
        format!(
            "{}: {what}\n  memory  {memory}\n  a pass  {bytes} in {chunks}{passes}\n",
            self.store.display()
        )
    }

    /// The lines of `--plan` about mode-sorted copies, with the reason, if there was a choice.
    pub fn mode_sorted_text(&self) -> String {
        let Some(copies) = &self.mode_sorted else { return String::new() };
        let ModeSortedPlan { built, bytes, pays_from, pass, building, why } = copies;
        let bytes = ByteSize(*bytes);
        let what = match built {
            true => {
                format!("mode-sorted copies from the second pass on, {bytes} with what they are built from")
            }
            false => format!("the store's, without mode-sorted copies ({bytes})"),
        };
        let worth = if let (Some(pass), Some(building)) = (pass, building) {
            let pay = pays_from.map_or("never pay".to_owned(), |passes| format!("pay from {passes} on"));
            format!(
                "  copies  by estimate, a pass from them takes {pass:.2} of the time, and building them that of {building:.1} passes: they {pay}\n"
            )
        } else {
            String::new()
        };
        format!("  order   {what}: {why}\n{worth}")
    }

    /// What `--plan` says about reading the store.
    pub fn reads_text(&self) -> &'static str {
        if self.plan.direct_reads { ", read past the page cache" } else { "" }
    }

    /// The line about the work and its device.
    pub fn title(&self, what: &str) -> String {
        format!("{}: {what}, on {}", self.store.display(), self.place)
    }

    /// A line for sums of fibers, and one for each note.
    pub fn notes_text(&self) -> String {
        let fibers = self.device.as_ref().and_then(|device| device.fibers.as_ref());
        let fibers = fibers.map(|FibersPlan { mode, fibers, .. }| {
            format!("  sums of about {fibers} fibers along mode {mode} serve the other modes\n")
        });
        let notes = self.notes.iter().map(|note| format!("  note: {note}\n"));
        fibers.into_iter().chain(notes).collect()
    }
}

/// The names of several GPUs, each once with its numbers.
fn names(devices: &DevicesPlan) -> String {
    let mut names: Vec<(&str, Vec<String>)> = Vec::new();
    for part in &devices.parts {
        let (name, number) = (&part.device.device.name[..], part.device.device.number.to_string());
        match names.iter_mut().find(|(of, _)| *of == name) {
            Some((_, numbers)) => numbers.push(number),
            None => names.push((name, vec![number])),
        }
    }
    let each = |(name, numbers): &(&str, Vec<String>)| format!("{name} ({})", numbers.join(", "));
    names.iter().map(each).collect::<Vec<_>>().join(" and ")
}

/// What `--plan` says about host memory: bytes of the operation, and the workers' `buffers`.
pub fn memory_text(plan: &Plan, held: &str, buffers: &str) -> String {
    format!(
        "{} = program {} + {held} {} + {} x {} {buffers} of {}",
        ByteSize(plan.memory_bytes),
        ByteSize(plan.program_bytes),
        ByteSize(plan.operation_bytes),
        counted(plan.workers, "worker"),
        plan.buffers_per_worker,
        ByteSize(plan.buffer_bytes as u64),
    )
}

/// What `--plan` says about chunks that stay in host memory.
pub fn kept_text(plan: &Plan) -> String {
    format!("{} kept, {}", counted(plan.kept.len(), "chunk"), ByteSize(plan.kept_bytes))
}

/// The median pass, its rate, and the bytes that it read.
pub fn pass_text(passes: &[PassReport]) -> String {
    let (pass, of) = (median(passes), passes.len());
    let of = if of > 1 { format!(" (median of {of})") } else { String::new() };
    let (rate, read) = (rate_text(pass.nnz_per_second), ByteSize(pass.bytes));
    format!("  {:.4} s a pass{of}: {rate} nonzeros/s, {read} read", pass.seconds)
}

/// A rate in thousands or millions per second if it is that large: `950`, `31.2 k`, `48.6 M`.
fn rate_text(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.1} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

/// `mode 1`, `modes 1, 3`: modes counted from 1.
pub fn modes_text(modes: &[usize]) -> String {
    format!("mode{} {}", if modes.len() == 1 { "" } else { "s" }, numbers_text(modes))
}

/// `4, 4, 8`.
pub fn numbers_text(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The median pass by time; of an even number, the shorter of the two.
pub fn median(passes: &[PassReport]) -> &PassReport {
    let mut by_time: Vec<&PassReport> = passes.iter().collect();
    by_time.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    by_time[(by_time.len() - 1) / 2]
}

/// The time of a pass by stage, without its workers.
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
        shown(device.copied_bytes as f64 / device.copy_seconds.max(1e-9)),
        device.resident_chunks,
        device.overlap_seconds,
    )
}

/// An error divided by its bound, readable for large errors too.
pub fn share_of_bound(part: f64) -> String {
    if part < 1e4 { format!("{part:.4}") } else { format!("{part:.1e}") }
}

/// Bytes a second, for people.
pub fn shown(bytes_per_second: f64) -> ByteSize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with two digits")]
    ByteSize(bytes_per_second as u64)
}
