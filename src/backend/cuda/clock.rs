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
    /// How many of them have been looked at, and the times of those of chunks.
    looked_at: usize,
    spans: Vec<Span>,
}

impl EventClock {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let base = device.event(true)?;
        Ok(Self { base, events: Vec::new(), used: 0, marks: Vec::new(), looked_at: 0, spans: Vec::new() })
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
        (self.used, self.looked_at) = (0, 0);
        self.marks.clear();
        self.spans.clear();
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

    /// Reads the times of what is done, while a pass goes on: asking for them takes as long as submitting the work. All pairs so far have
    /// been recorded.
    pub(super) fn look(&mut self) -> Result<()> {
        while let Some(&(.., chunk)) = self.marks.get(self.looked_at) {
            if chunk.is_some() {
                if !self.events[2 * self.looked_at + 1].is_done()? {
                    break;
                }
                self.spans.push(self.span(self.looked_at)?);
            }
            self.looked_at += 1;
        }
        Ok(())
    }

    /// When something that is done went on.
    fn span(&self, mark: usize) -> Result<Span> {
        let (stage, lane, chunk) = self.marks[mark];
        let at = |event: usize| self.events[event].seconds_since(&self.base);
        Ok(Span { stage, lane, chunk, start: at(2 * mark)?, end: at(2 * mark + 1)? })
    }

    /// When it all went on. Waits for each end, those of single chunks first: most of it is read while the last ones are under way.
    pub(super) fn read(&mut self, spans: &mut Vec<Span>, pass: &mut DevicePass) -> Result<()> {
        let first = spans.len();
        spans.append(&mut self.spans);
        let is_of_chunk = |mark: &usize| self.marks[*mark].2.is_some();
        let of_chunks = (self.looked_at..self.marks.len()).filter(is_of_chunk);
        for mark in of_chunks.chain((0..self.marks.len()).filter(|mark| !is_of_chunk(mark))) {
            self.events[2 * mark + 1].synchronize()?;
            spans.push(self.span(mark)?);
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
