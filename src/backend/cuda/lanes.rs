//! The streams and buffers through which chunks come to the device, and the streams on which they are launched.

use super::driver::{Device, Event, Memory, Stream};
use super::plan::DevicePlan;
use crate::error::{Error, Result};
use std::sync::Arc;

/// A copy stream with its device buffer.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) copy: Stream,
    /// `None` where all chunks are resident.
    pub(super) memory: Option<Memory>,
    /// Where trees wait until they are nonzeros; `None` for other formats.
    pub(super) staging: Option<Memory>,
    /// When the kernel is done with what the buffer holds.
    pub(super) used: Option<Arc<Event>>,
}

/// As many lanes as there is memory for, at least one.
pub(super) fn make_lanes(
    device: &Arc<Device>,
    plan: &DevicePlan,
    notes: &mut Vec<String>,
) -> Result<Vec<Lane>> {
    let room = |bytes: u64| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        (bytes > 0).then(|| device.memory(bytes)).transpose()
    };
    let buffers = || Ok((room(plan.lane_bytes)?, room(plan.staging_bytes)?));
    let mut lanes = Vec::with_capacity(plan.lanes);
    for _ in 0..plan.lanes {
        let (memory, staging) = match buffers() {
            Err(Error::Device { out_of_memory: true, .. }) if !lanes.is_empty() => {
                notes.push(format!("device memory for {} of {} lanes only", lanes.len(), plan.lanes));
                break;
            }
            other => other?,
        };
        lanes.push(Lane { copy: device.stream(true)?, memory, staging, used: None });
    }
    Ok(lanes)
}

/// The streams on which streamed chunks are launched, in turn.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) streams: [Stream; 2],
    /// When their launches are done.
    pub(super) done: [Event; 2],
    pub(super) next: usize,
}

impl Turns {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self {
            streams: [device.stream(true)?, device.stream(true)?],
            done: [device.event(false)?, device.event(false)?],
            next: 0,
        })
    }
}
