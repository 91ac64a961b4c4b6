//! A worker: loads its chunks, in order, into its own buffers.
//!
//! Through the page cache, a worker is one thread, which verifies each piece of a file while it is in a core's caches.
//! If files are read directly, it is two threads, so that the disk never waits for a core: the reader reads a file into
//! the next free buffer while the checker verifies, decodes and inspects the previous one. Either way, chunks and the
//! first error arrive in order.

use super::{Inspector, LoadedChunk, Owner};
use crate::error::Result;
use crate::store::{ChunkHeader, DecodeScratch, LoadTimes, Store};
use crate::sys::Sys;
use crate::sys::sync::{Receiver, Scope, ScopedJoinHandle, Sender, bounded};
use std::time::{Duration, Instant};

/// A chunk with the times of its worker's steps, or an error.
pub(super) type Message<B> = Result<(LoadedChunk<B>, Steps)>;

/// The times of a worker's steps for a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// How long it waited for a buffer.
    pub stall: Duration,
    /// When reading began.
    pub read: Instant,
    /// When verifying began.
    pub verify: Instant,
    /// How long the steps took.
    pub times: LoadTimes,
}

/// What a worker owns.
pub(super) struct Worker<B> {
    pub number: usize,
    /// The chunks that it loads. Kept chunks come with their buffers.
    pub chunks: Vec<(usize, Option<B>)>,
    /// Its own buffers.
    pub buffers: Vec<B>,
    pub inspect: Option<Inspector>,
}

/// Both ends of the channels between the caller and one worker.
pub(super) struct Line<'scope, B> {
    pub full: Receiver<Message<B>>,
    pub empty: Sender<B>,
    /// The number of its own buffers that the backend holds.
    pub at_work: usize,
    reader: ScopedJoinHandle<'scope, Vec<B>>,
    checker: Option<ScopedJoinHandle<'scope, ()>>,
}

/// A chunk being loaded, and its buffer.
struct Coming<B> {
    number: usize,
    buffer: B,
    owner: Owner,
    /// How long the worker waited for the buffer.
    stall: Duration,
    /// When it got the buffer.
    start: Instant,
}

/// A worker's chunks and its free buffers.
struct WorkerTurns<B> {
    worker: usize,
    chunks: Vec<(usize, Option<B>)>,
    free: Receiver<B>,
}

/// Verifies chunks that have been read and hands them over.
struct Checker<'scope, B> {
    store: &'scope Store,
    scratch: DecodeScratch,
    inspect: Option<Inspector>,
    full: Sender<Message<B>>,
}

/// Starts a worker and hands it its buffers.
pub(super) fn start<'scope, B: Send + AsMut<[u8]> + 'scope>(
    sys: &Sys,
    scope: &'scope Scope<'scope, '_>,
    store: &'scope Store,
    worker: Worker<B>,
) -> Result<Line<'scope, B>> {
    let Worker { number: worker, chunks, buffers, inspect } = worker;
    let room = buffers.len();
    let (full_sender, full) = bounded(room);
    let (empty, free) = bounded(room);
    for buffer in buffers {
        // The channel has room for every buffer, and its receiver still exists.
        drop(empty.send(buffer));
    }
    let turns = WorkerTurns { worker, chunks, free };
    let mut checker = Checker { store, scratch: store.scratch()?, inspect, full: full_sender };
    let reader = format!("read-{worker}");
    if !store.reads_directly() {
        let reader = sys.spawn(scope, reader, move || turns.each(|coming| checker.load(coming)))?;
        return Ok(Line { full, empty, at_work: 0, reader, checker: None });
    }
    let (read_sender, read) = bounded(room);
    let check = move || while read.recv().is_ok_and(|read| checker.check(read)) {};
    let checker = sys.spawn(scope, format!("check-{worker}"), check)?;
    let read = move |mut coming: Coming<B>| {
        let read = store.read(coming.number, coming.buffer.as_mut());
        let (seconds, failed) = (coming.start.elapsed(), read.is_err());
        read_sender.send(read.map(|()| (coming, seconds))).is_ok() && !failed
    };
    let reader = sys.spawn(scope, reader, move || turns.each(read))?;
    Ok(Line { full, empty, at_work: 0, reader, checker: Some(checker) })
}

impl<B> Line<'_, B> {
    /// The worker's buffers. Called after it has loaded its last chunk and the backend holds none.
    pub(super) fn collect(self) -> Vec<B> {
        drop(self.empty);
        let buffers = self.reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let checked = self.checker.map_or(Ok(()), ScopedJoinHandle::join);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        buffers
    }
}

impl<B> WorkerTurns<B> {
    /// Calls `bring` for each chunk, in order, as soon as it has a buffer, until it returns false. Returns the worker's
    /// buffers once they are all back, or none if the pass ended early.
    fn each(self, mut bring: impl FnMut(Coming<B>) -> bool) -> Vec<B> {
        for (number, kept) in self.chunks {
            let waiting = Instant::now();
            let (buffer, owner) = match kept {
                Some(buffer) => (buffer, Owner::Chunk(number)),
                // A closed channel means that the pass has ended early; there is nothing more to do.
                None => match self.free.recv() {
                    Ok(buffer) => (buffer, Owner::Worker(self.worker)),
                    Err(_) => return Vec::new(),
                },
            };
            let start = Instant::now();
            if !bring(Coming { number, buffer, owner, stall: start - waiting, start }) {
                return Vec::new();
            }
        }
        // Closing the channel tells a caller that waits for another chunk that there is none.
        drop(bring);
        self.free.into_iter().collect()
    }
}

impl<B: AsMut<[u8]>> Checker<'_, B> {
    /// Reads and checks a chunk. Returns false if the worker should stop.
    fn load(&mut self, mut coming: Coming<B>) -> bool {
        let loaded = self.store.load(coming.number, coming.buffer.as_mut(), &mut self.scratch);
        let message = loaded.and_then(|(header, times)| {
            let verify = coming.start + times.read;
            self.inspected(coming, header, verify, times)
        });
        self.hand_over(message)
    }

    /// Checks a chunk that the reader has read. Returns false if the worker should stop.
    fn check(&mut self, read: Result<(Coming<B>, Duration)>) -> bool {
        let verify = Instant::now();
        let message = read.and_then(|(mut coming, read)| {
            let (header, times) =
                self.store.check(coming.number, coming.buffer.as_mut(), &mut self.scratch)?;
            self.inspected(coming, header, verify, LoadTimes { read, ..times })
        });
        self.hand_over(message)
    }

    /// Verified chunks are passed to the backend's inspector. Returns the message for the caller.
    fn inspected(
        &self,
        coming: Coming<B>,
        header: ChunkHeader,
        verify: Instant,
        mut times: LoadTimes,
    ) -> Message<B> {
        let Coming { mut buffer, owner, stall, start: read, .. } = coming;
        if let Some(inspect) = &self.inspect {
            inspect(&header, &buffer.as_mut()[..header.image_bytes as usize])?;
        }
        times.verify = verify.elapsed().saturating_sub(times.decode);
        Ok((LoadedChunk { header, buffer, owner }, Steps { stall, read, verify, times }))
    }

    /// Sends the message. Returns false after an error, or if the pass has ended early.
    fn hand_over(&self, message: Message<B>) -> bool {
        let failed = message.is_err();
        self.full.send(message).is_ok() && !failed
    }
}
