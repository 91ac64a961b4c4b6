//! Plans of a GPU, as text.

use super::counted;
use super::report::{ReportHead, kept_text, memory_text, shown};
use crate::backend::devices::{DevicePart, DevicesPass, DevicesPlan, Divide, ModeDivision};
use crate::backend::plan::{DevicePlan, ModePlan, Place};
use crate::stream::PassReport;
use bytesize::ByteSize;

/// The text of `--plan` on a GPU. `passes` says how many passes the operation makes.
pub fn plan_text(head: &ReportHead, device: &DevicePlan, what: &str, passes: &str) -> String {
    let (plan, (resident, resident_bytes)) = (&head.plan, device.resident());
    let held = match device.host_bytes {
        0 => "factors and results",
        _ => "factors, results and sorted nonzeros",
    };
    format!(
        "{}\n  device  {} = factors, sums and results {} + {} lanes of {} + {} \
         of {} chunks that stay, {} + sorted copies {}\n  host    {} + {}\n  a pass  {} in {} chunks, {passes}; over the link ({}/s) {} in the first, {} in later ones: \
         {:.4} s at least\n{}",
        head.title(what),
        ByteSize(device.memory_bytes),
        ByteSize(device.operation_bytes),
        device.lanes.count,
        ByteSize(device.lanes.bytes_of(1)),
        resident,
        plan.chunks,
        ByteSize(resident_bytes),
        ByteSize(device.copies_bytes),
        memory_text(plan, held, "pinned buffers"),
        kept_text(plan),
        ByteSize(plan.file_bytes),
        plan.chunks,
        shown(device.link_bytes_per_second),
        ByteSize(device.first_pass.bytes),
        ByteSize(device.later_pass.bytes),
        device.later_pass.seconds,
        modes_text(device),
    )
}

/// The text of `--plan` for several GPUs: a line for each, then the host, and how sums are added up.
pub fn several_text(head: &ReportHead, devices: &DevicesPlan, what: &str, passes: &str) -> String {
    let plan = &head.plan;
    let part = |part: &DevicePart| {
        let (device, (resident, _)) = (&part.device, part.device.resident());
        let sorted = device.copies().count();
        format!(
            "  GPU {}   {} of {} free: chunks {} to {}, {} nonzeros, of which {} stay; {} sorted copies, {} lanes; over the link ({}/s) {} in \
             the first pass, {} in later ones; {:.4} s a pass at least\n",
            device.device.number,
            ByteSize(device.memory_bytes),
            ByteSize(device.free_bytes),
            part.chunks.start,
            part.chunks.end - 1,
            part.nnz,
            counted(resident, "chunk"),
            sorted,
            device.lanes.count,
            shown(device.link_bytes_per_second),
            ByteSize(device.first_pass.bytes),
            ByteSize(device.later_pass.bytes),
            part.seconds,
        )
    };
    let parts: String = devices.parts.iter().map(part).collect();
    let exchange = &devices.exchange;
    format!(
        "{}\n{parts}{}  sums    by {}: {} to each GPU in a pass ({})\n  host    {} + {}\n  a pass  {} in {} chunks, {passes}\n{}",
        head.title(what),
        devices.modes.iter().map(division_text).collect::<String>(),
        exchange.by.name(),
        ByteSize(exchange.bytes),
        exchange.why,
        memory_text(plan, "factors and results", "pinned buffers"),
        kept_text(plan),
        ByteSize(plan.file_bytes),
        plan.chunks,
        head.notes_text(),
    )
}

/// The line of a mode: how it is divided, and why.
pub fn division_text(ModeDivision { mode, by, why }: &ModeDivision) -> String {
    let by = if *by == Divide::Rows { "rows" } else { "chunks" };
    let why = if why.is_empty() { String::new() } else { format!("; {why}") };
    format!("  divided mode {mode}: by {by}{why}\n")
}

/// What each of several GPUs did in the last pass.
pub fn pass_text(plan: &DevicesPlan, pass: &DevicesPass) -> String {
    let part = |(part, pass): (&DevicePart, &PassReport)| {
        let (number, device) = (part.device.device.number, pass.device.unwrap_or_default());
        format!(
            "  GPU {number}: {} nonzeros in {:.4} s: kernels {:.4} s, copies {:.4} s of {}\n",
            part.nnz,
            pass.seconds,
            device.kernel_seconds,
            device.copy_seconds,
            ByteSize(device.copied_bytes),
        )
    };
    let parts: String = plan.parts.iter().zip(&pass.parts).map(part).collect();
    format!("{parts}  sums added up by {} in {:.4} s\n", plan.exchange.by.name(), pass.exchange_seconds)
}

/// One line for each mode that had a choice: which order of nonzeros serves it.
fn modes_text(device: &DevicePlan) -> String {
    let line = |(part, mode): (usize, &ModePlan)| {
        let which = match device.copy(part) {
            Some(Place::Host) => "sorted by row, streamed from host memory",
            Some(_) => "sorted by row",
            None => "the store's",
        };
        let since = if device.deterministic { "" } else { ", from the second pass on" };
        format!("  order   mode {}: {which}{since}; {}\n", mode.mode, mode.why)
    };
    let chunks =
        if device.as_they_lie { "  chunks  of trees and segments are read as they lie\n" } else { "" };
    let modes = device.modes.iter().enumerate().filter(|(_, mode)| !mode.why.is_empty()).map(line);
    std::iter::once(chunks.to_owned()).chain(modes).collect()
}
