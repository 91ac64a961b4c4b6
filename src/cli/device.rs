//! What programs say of a GPU.

use super::report::{ReportHead, kept_text, memory_text, shown};
use crate::backend::device::{DevicePlan, ModeOrder};
use bytesize::ByteSize;

/// What `--plan` prints of `what` is to be done to a store; `passes` says how many that takes.
pub fn plan_text(head: &ReportHead, device: &DevicePlan, what: &str, passes: &str) -> String {
    let plan = &head.plan;
    let held = match device.host_bytes() {
        0 => "factors and results",
        _ => "factors, results and sorted nonzeros",
    };
    format!(
        "{}\n  device  {} = factors, sums and results {} + {} lanes of {} + {} \
         of {} chunks that stay, {} + orders {}\n  host    {} + {}\n  a pass  {} in {} chunks, {passes}; over the link ({}/s) {} in the first, {} in later ones: \
         {:.4} s at least\n{}",
        head.title(what),
        ByteSize(device.memory_bytes),
        ByteSize(device.operation_bytes),
        device.lanes,
        ByteSize(device.lane_bytes + device.staging_bytes),
        device.resident_chunks,
        plan.chunks,
        ByteSize(device.resident_bytes),
        ByteSize(device.derived_bytes),
        memory_text(plan, held, "pinned buffers"),
        kept_text(plan),
        ByteSize(plan.file_bytes),
        plan.chunks,
        shown(device.link_bytes_per_second),
        ByteSize(device.first_pass_bytes),
        ByteSize(device.later_pass_bytes),
        device.later_pass_copy_seconds,
        orders_text(device),
    )
}

/// Which order serves each mode, a line each.
fn orders_text(device: &DevicePlan) -> String {
    let line = |order: &ModeOrder| {
        let which = match (order.target, order.in_host_memory) {
            (true, true) => "sorted by row, streamed from host memory",
            (true, false) => "sorted by row",
            (false, _) => "the store's",
        };
        let since = if device.deterministic { "" } else { ", from the second pass on" };
        format!("  order   mode {}: {which}{since}; {}\n", order.mode, order.why)
    };
    device.orders.iter().map(line).collect()
}
