//! The streams and buffers through which chunks come to the device, and the streams on which they are launched.

use super::clock::EventClock;
use super::driver::{Device, Event, Memory, Pinned, Priority, Stream};
use crate::backend::plan::LanesPlan;
use crate::error::{Error, Result};
use crate::stream::Stage;
use crate::sys::Sys;
use std::sync::Arc;

/// A device buffer with the stream of what follows the copy into it.
#[derive(Debug)]
pub(super) struct CopyLane {
    /// Counts segments in the buffer, or makes the image there of what is staged; copies results from the device.
    pub(super) stream: Stream,
    /// `None` where all chunks are resident.
    pub(super) memory: Option<Memory>,
    /// Where chunks wait until they are nonzeros; `None` if kernels read all as they lie.
    pub(super) staging: Option<Memory>,
    /// When the chunk there is nonzeros, or its segments are counted.
    pub(super) expanded: Option<Arc<Event>>,
    /// When what the buffer holds is not needed any more.
    pub(super) used: Option<Arc<Event>>,
    /// `None` where results stay on the device until the pass ends.
    pub(super) out: Option<LaneResults>,
}

/// Where a chunk's results go.
#[derive(Debug)]
pub(super) struct LaneResults {
    pub(super) memory: Memory,
    /// Where they come to on the host; `None` while they do.
    pub(super) arrived: Option<Pinned>,
}

/// All lanes, which take turns.
#[derive(Debug)]
pub(super) struct CopyLanes {
    pub(super) all: Vec<CopyLane>,
    /// All copies to the device. Side by side they would take longer (docs/performance.md).
    pub(super) copies: Stream,
    next: usize,
}

impl CopyLanes {
    /// Creates as many lanes as memory allows, at least one; adds a note if there are fewer than planned.
    pub(super) fn new(
        device: &Arc<Device>,
        sys: &Sys,
        plan: &LanesPlan,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let mut all = Vec::with_capacity(plan.count);
        while all.len() < plan.count {
            let lacking = match CopyLane::new(device, sys, plan) {
                Err(Error::Device { out_of_memory: true, .. }) if !all.is_empty() => "device",
                Err(Error::Resource { .. }) if !all.is_empty() => "host",
                made => {
                    all.push(made?);
                    continue;
                }
            };
            notes.push(format!("{lacking} memory for {} of {} lanes only", all.len(), plan.count));
            break;
        }
        Ok(Self { all, copies: device.stream(Priority::Highest)?, next: 0 })
    }

    /// Begins a pass, whose copies come after `base`: nothing is under way.
    pub(super) fn begin(&mut self, base: &Event) -> Result<()> {
        self.copies.wait(base)?;
        for lane in &mut self.all {
            (lane.used, lane.expanded) = (None, None);
            lane.stream.wait(base)?;
        }
        Ok(())
    }

    /// All streams.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.all.iter().map(|lane| &lane.stream).chain([&self.copies])
    }

    /// Starts a copy of chunk or image `number` into the next lane's buffer, or its place for what is `staged`. Returns the lane, and the
    /// event to record after the copy.
    pub(super) fn start(
        &mut self,
        clock: &mut EventClock,
        number: usize,
        staged: bool,
    ) -> Result<(usize, Arc<Event>)> {
        let at = self.next;
        self.next = (at + 1) % self.all.len();
        let lane = &self.all[at];
        let free = if staged { &lane.expanded } else { &lane.used };
        free.as_ref().map_or(Ok(()), |free| self.copies.wait(free))?;
        let (start, copied) = clock.pair(Stage::Copy, at, Some(number));
        start.record(&self.copies)?;
        Ok((at, copied))
    }
}

impl CopyLane {
    /// Lets what follows on the stream wait for a copy and, if that is `staged`, until kernels are done with what the buffer holds.
    pub(super) fn follows(&self, copied: &Event, staged: bool) -> Result<()> {
        self.stream.wait(copied)?;
        self.used.as_ref().filter(|_| staged).map_or(Ok(()), |used| self.stream.wait(used))
    }

    fn new(device: &Arc<Device>, sys: &Sys, plan: &LanesPlan) -> Result<Self> {
        let bytes =
            |bytes: u64| Some(usize::try_from(bytes).unwrap_or(usize::MAX)).filter(|&bytes| bytes > 0);
        let room = |of: u64| bytes(of).map(|bytes| device.memory(bytes)).transpose();
        let (memory, staging) = (room(plan.image_bytes)?, room(plan.staging_bytes)?);
        let results = |bytes| {
            // Of a damaged chunk, what no kernel has written is read all the same.
            let (memory, arrived) = (device.zeros(bytes)?, Some(device.pinned(sys, bytes)?));
            Ok(LaneResults { memory, arrived })
        };
        let out = bytes(plan.result_bytes).map(results).transpose()?;
        Ok(Self {
            stream: device.stream(Priority::Highest)?,
            memory,
            staging,
            expanded: None,
            used: None,
            out,
        })
    }
}

/// The streams on which streamed chunks are launched, in turn.
#[derive(Debug)]
pub(super) struct LaunchTurns {
    pub(super) streams: Vec<Stream>,
    /// When their launches are done.
    pub(super) done: Vec<Event>,
    pub(super) next: usize,
}

impl LaunchTurns {
    /// One stream where chunks are launched `in_order`: each behind the one before.
    pub(super) fn new(device: &Arc<Device>, in_order: bool) -> Result<Self> {
        let turns = 0..if in_order { 1 } else { 2 };
        let streams = turns.clone().map(|_| device.stream(Priority::Middle)).collect::<Result<_>>()?;
        let done = turns.map(|_| device.event(false)).collect::<Result<_>>()?;
        Ok(Self { streams, done, next: 0 })
    }
}
