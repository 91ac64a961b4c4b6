//! Times of a pass's activities on the device.

use super::driver::{Device, Event, Stream};
use crate::error::Result;
use crate::stream::{DevicePass, Span, Stage};
use std::sync::Arc;

/// Times what goes on in a pass, with events made beforehand.
#[derive(Debug)]
pub(super) struct EventClock {
    /// The pass's zero.
    pub(super) base: Event,
    events: Vec<Arc<Event>>,
    used: usize,
    /// What each pair of events stands around.
    marks: Vec<(Stage, usize, Option<usize>)>,
}

impl EventClock {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self { base: device.event(true)?, events: Vec::new(), used: 0, marks: Vec::new() })
    }

    /// Creates events until there are enough for this many pairs in a pass.
    pub(super) fn reserve(&mut self, device: &Arc<Device>, pairs: usize) -> Result<()> {
        while self.events.len() < 2 * pairs {
            self.events.push(Arc::new(device.event(true)?));
        }
        Ok(())
    }

    /// Starts from zero, now: nothing is under way on `idle`.
    pub(super) fn begin(&mut self, idle: &Stream) -> Result<()> {
        self.used = 0;
        self.marks.clear();
        self.base.record(idle)
    }

    /// The events around something.
    pub(super) fn pair(
        &mut self,
        stage: Stage,
        lane: usize,
        chunk: Option<usize>,
    ) -> (Arc<Event>, Arc<Event>) {
        self.marks.push((stage, lane, chunk));
        self.used += 2;
        (Arc::clone(&self.events[self.used - 2]), Arc::clone(&self.events[self.used - 1]))
    }

    /// Marks begin and end of what `start` starts on `stream`, and gives the end.
    pub(super) fn time(
        &mut self,
        stage: Stage,
        lane: usize,
        chunk: Option<usize>,
        stream: &Stream,
        start: impl FnOnce() -> Result<()>,
    ) -> Result<Arc<Event>> {
        let (begin, end) = self.pair(stage, lane, chunk);
        begin.record(stream)?;
        start()?;
        end.record(stream)?;
        Ok(end)
    }

    /// When it all went on. Waits for each end, those of single chunks first: most of it is read while the last ones are under way.
    pub(super) fn read(&self, spans: &mut Vec<Span>, pass: &mut DevicePass) -> Result<()> {
        let first = spans.len();
        let timed = || self.marks.iter().zip(self.events.chunks_exact(2));
        let (of_chunks, of_all) =
            (timed().filter(|(m, _)| m.2.is_some()), timed().filter(|(m, _)| m.2.is_none()));
        for (&(stage, lane, chunk), pair) in of_chunks.chain(of_all) {
            pair[1].synchronize()?;
            let (start, end) = (pair[0].seconds_since(&self.base)?, pair[1].seconds_since(&self.base)?);
            spans.push(Span { stage, lane, chunk, start, end });
        }
        let of = |stage| spans[first..].iter().filter(move |s| s.stage == stage).map(|s| (s.start, s.end));
        pass.copy_seconds = covered(of(Stage::Copy).collect());
        pass.kernel_seconds = covered(of(Stage::Kernel).collect());
        let either = covered(of(Stage::Copy).chain(of(Stage::Kernel)).collect());
        pass.return_seconds = covered(of(Stage::Return).collect());
        pass.overlap_seconds = pass.copy_seconds + pass.kernel_seconds - either;
        Ok(())
    }
}

/// The length of the union of some intervals.
fn covered(mut intervals: Vec<(f64, f64)>) -> f64 {
    intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut reached) = (0.0, f64::NEG_INFINITY);
    for (start, end) in intervals {
        sum += (end - start.max(reached)).max(0.0);
        reached = reached.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_intervals_count_once() {
        assert!((covered(vec![(3.0, 4.0), (0.0, 2.0), (1.0, 2.5), (3.25, 3.5)]) - 3.5).abs() < 1e-12);
        assert!(covered(Vec::new()).abs() < 1e-12);
    }
}
