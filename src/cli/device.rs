//! Plans of a GPU, as text.

use super::report::{ReportHead, kept_text, memory_text, shown};
use crate::backend::plan::{DevicePlan, ModePlan, Place};
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
    device.modes.iter().enumerate().filter(|(_, mode)| !mode.why.is_empty()).map(line).collect()
}
