//! The streams and buffers through which chunks come to the device, and the streams on which they are launched.

use super::clock::EventClock;
use super::driver::{Device, Event, Memory, Stream};
use crate::backend::plan::LanesPlan;
use crate::error::{Error, Result};
use crate::stream::Stage;
use std::sync::Arc;

/// A copy stream with its device buffer.
#[derive(Debug)]
pub(super) struct CopyLane {
    pub(super) copy: Stream,
    /// `None` where all chunks are resident.
    pub(super) memory: Option<Memory>,
    /// Where trees wait until they are nonzeros; `None` for other formats.
    pub(super) staging: Option<Memory>,
    /// When the kernel is done with what the buffer holds.
    pub(super) used: Option<Arc<Event>>,
}

/// All lanes, which take turns.
#[derive(Debug)]
pub(super) struct CopyLanes {
    pub(super) all: Vec<CopyLane>,
    next: usize,
    /// Copies of this pass.
    copies: usize,
    /// When the copy before is made, while that is the lanes' first.
    first_copy: Option<Arc<Event>>,
}

impl CopyLanes {
    /// As many as there is memory for, at least one.
    pub(super) fn new(device: &Arc<Device>, plan: &LanesPlan, notes: &mut Vec<String>) -> Result<Self> {
        let room = |bytes: u64| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            (bytes > 0).then(|| device.memory(bytes)).transpose()
        };
        let all = as_many(plan.count, notes, || {
            let (memory, staging) = (room(plan.image_bytes)?, room(plan.staging_bytes)?);
            Ok(CopyLane { copy: device.stream(true)?, memory, staging, used: None })
        })?;
        Ok(Self { all, next: 0, copies: 0, first_copy: None })
    }

    /// Begins a pass, whose copies come after `base`: nothing is under way.
    pub(super) fn begin(&mut self, base: &Event) -> Result<()> {
        (self.copies, self.first_copy) = (0, None);
        for lane in &mut self.all {
            lane.used = None;
            lane.copy.wait(base)?;
        }
        Ok(())
    }

    /// Starts a copy of chunk or image `number` on the next lane, whose buffer is free then: the lane, and what is to be recorded behind
    /// the copy.
    pub(super) fn start(&mut self, clock: &mut EventClock, number: usize) -> Result<(usize, Arc<Event>)> {
        let at = self.next;
        self.next = (at + 1) % self.all.len();
        self.copies += 1;
        let first = self.copies < self.all.len();
        let lane = &mut self.all[at];
        if let Some(used) = lane.used.take() {
            lane.copy.wait(&used)?;
        }
        // Later copies wait for kernels, which go in order; the first ones would overtake each other.
        if let Some(before) = self.first_copy.take() {
            lane.copy.wait(&before)?;
        }
        let (start, copied) = clock.pair(Stage::Copy, at, Some(number));
        if first {
            self.first_copy = Some(Arc::clone(&copied));
        }
        start.record(&lane.copy)?;
        Ok((at, copied))
    }
}

/// As many of `wanted` lanes as there is memory for, at least one; a note where those are fewer.
pub(super) fn as_many<L>(
    wanted: usize,
    notes: &mut Vec<String>,
    mut make: impl FnMut() -> Result<L>,
) -> Result<Vec<L>> {
    let mut lanes = Vec::with_capacity(wanted);
    while lanes.len() < wanted {
        let lacking = match make() {
            Err(Error::Device { out_of_memory: true, .. }) if !lanes.is_empty() => "device",
            Err(Error::Resource { .. }) if !lanes.is_empty() => "host",
            made => {
                lanes.push(made?);
                continue;
            }
        };
        notes.push(format!("{lacking} memory for {} of {wanted} lanes only", lanes.len()));
        break;
    }
    Ok(lanes)
}

/// The streams on which streamed chunks are launched, in turn.
#[derive(Debug)]
pub(super) struct LaunchTurns {
    pub(super) streams: [Stream; 2],
    /// When their launches are done.
    pub(super) done: [Event; 2],
    pub(super) next: usize,
}

impl LaunchTurns {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self {
            streams: [device.stream(true)?, device.stream(true)?],
            done: [device.event(false)?, device.event(false)?],
            next: 0,
        })
    }
}
