//! Members that are MPI's processes, on one machine or many.
//!
//! **Failures.** A member that fails calls [`Mpi::abort`], and MPI ends all others. One that was killed is noticed by MPI's
//! launcher. One that hangs, or whose machine is lost, is noticed by the next member: each sends the next
//! one a heartbeat, which says whether it works and how far it has come.
//!
//! **Threads.** Calls come from the computing thread and from the one of the heartbeat. A lock serializes them; none blocks,
//! so that neither waits for the other. A wait looks again and again, with pauses that get longer: members that wait leave
//! the processor to those that work. Bytes move while MPI is called, though, and pauses would slow them down. So both sides of a large
//! transfer first tell each other that they are there, with pauses, and then look without pauses.

#![expect(
    unsafe_code,
    reason = "MPI's handles are not for several threads; here a lock serializes all calls"
)]

use super::Links;
use crate::error::{Error, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, Scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Source};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a message at most: MPI counts in 31 bits.
const MESSAGE_BYTES: usize = 1 << 30;
/// Transfers from this many bytes on are large.
const LARGE: usize = 64 << 10;
/// The longest pause between two looks.
const PAUSE: Duration = Duration::from_micros(500);
/// How long it looks without pauses: answers to short messages come sooner than the shortest pause ends.
const EAGER: Duration = Duration::from_micros(100);

/// What MPI gave us.
struct Handles {
    universe: Option<Universe>,
    /// For everything but heartbeats, and for these.
    world: SimpleCommunicator,
    beats: SimpleCommunicator,
}

// SAFETY: MPI is initialized for serialized calls from any thread, and `Mpi::with` makes all of them under one lock.
unsafe impl Send for Handles {}

/// This process among MPI's.
pub struct Mpi {
    number: usize,
    count: usize,
    on_machine: (usize, usize),
    /// Never dropped: `finish` ends MPI.
    handles: Mutex<ManuallyDrop<Handles>>,
    /// How often this member has said that it works.
    steps: AtomicU64,
    works: AtomicBool,
    /// Whether the heart has stopped.
    finished: AtomicBool,
    timeout: Duration,
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mpi")
            .field("number", &self.number)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Mpi {
    /// Initializes MPI, once in a process. After `timeout` without a sign of the member before this one, or in which that
    /// one works and does not get on, `lost` is called with the error; then all end.
    pub fn start(timeout: Duration, lost: impl Fn(&Error) + Send + 'static) -> Result<Arc<Self>> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| Error::request("MPI was initialized before"))?;
        if threading < Threading::Serialized {
            return Err(Error::request("this MPI serves one thread only; use one built for several"));
        }
        let world = universe.world();
        let unsigned = |n: i32| usize::try_from(n).unwrap_or(0);
        let (number, count, beats) = (unsigned(world.rank()), unsigned(world.size()), world.duplicate());
        let machine = world.split_shared(world.rank());
        let on_machine = (unsigned(machine.rank()), unsigned(machine.size()));
        let handles = Mutex::new(ManuallyDrop::new(Handles { universe: Some(universe), world, beats }));
        let (steps, works, finished) = Default::default();
        let mpi = Arc::new(Self { number, count, on_machine, handles, steps, works, finished, timeout });
        if count > 1 {
            let heart = Arc::clone(&mpi);
            let failed = |source| Error::Resource { action: "start a thread", source };
            std::thread::Builder::new()
                .name("heartbeat".into())
                .spawn(move || heart.beat(&lost))
                .map_err(failed)?;
        }
        Ok(mpi)
    }

    fn with<R>(&self, call: impl FnOnce(&mut Handles) -> R) -> R {
        call(&mut self.handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends all members, this one included, with exit status `status`.
    pub fn abort(&self, status: i32) -> ! {
        self.with(|handles| handles.world.abort(status))
    }

    /// Ends MPI when all members have come here.
    pub fn finish(&self) {
        // A barrier that does not block: twice along the ring. What fails here has ended by itself.
        let (next, before) = ((self.number + 1) % self.count, (self.number + self.count - 1) % self.count);
        for _ in 0..if self.count > 1 { 2 } else { 0 } {
            let mut token = [0];
            let receive = |token: &mut [u8]| drop(self.exchange(None, Some((before, token))));
            if self.number > 0 {
                receive(&mut token);
            }
            drop(self.exchange(Some((next, &[0])), None));
            if self.number == 0 {
                receive(&mut token);
            }
        }
        self.finished.store(true, Ordering::Relaxed);
        self.with(|handles| drop(handles.universe.take()));
    }

    /// Sends signs of life to the next member, and looks for those of the one before.
    fn beat(&self, lost: &dyn Fn(&Error)) {
        let (next, before) = ((self.number + 1) % self.count, (self.number + self.count - 1) % self.count);
        let pause = (self.timeout / 10).min(Duration::from_secs(1));
        let (mut seen, mut moved, mut last) = (Instant::now(), Instant::now(), 0);
        loop {
            std::thread::sleep(pause);
            if self.finished.load(Ordering::Relaxed) {
                return;
            }
            let sign = [self.steps.load(Ordering::Relaxed), self.works.load(Ordering::Relaxed).into()];
            let got = self.with(|handles| {
                // After the end of MPI no call may be made.
                handles.universe.as_ref()?;
                // Messages of this size do not wait for their receiver.
                handles.beats.process_at_rank(rank(next)).send(&sign[..]);
                let mut got = None;
                let source = handles.beats.process_at_rank(rank(before));
                while source.immediate_probe().is_some() {
                    let mut sign = [0u64; 2];
                    source.receive_into(&mut sign[..]);
                    got = Some(sign);
                }
                Some(got)
            });
            let Some(got) = got else { return };
            let now = Instant::now();
            if let Some([steps, works]) = got {
                seen = now;
                if works == 0 || steps != last {
                    moved = now;
                }
                last = steps;
            }
            let what = if now - seen > self.timeout {
                "has given no sign of life"
            } else if now - moved > self.timeout {
                "works and does not get on"
            } else {
                continue;
            };
            lost(&Error::request(format!("process {before} {what} for {} s", self.timeout.as_secs_f64())));
            self.abort(2);
        }
    }

    /// Sends bytes to members and receives from members. Waits, with pauses or without.
    fn transfer(&self, sends: &[(usize, &[u8])], receives: Vec<(usize, &mut [u8])>, pauses: bool) {
        mpi::request::scope(|scope| {
            let mut requests = Vec::new();
            for (to, bytes) in sends {
                for part in bytes.chunks(MESSAGE_BYTES) {
                    requests.push(self.with(|handles| {
                        handles.world.process_at_rank(rank(*to)).immediate_send(scope, part)
                    }));
                }
            }
            let mut awaited = Vec::new();
            for (from, bytes) in receives {
                for part in bytes.chunks_mut(MESSAGE_BYTES) {
                    awaited.push(self.with(|handles| {
                        handles.world.process_at_rank(rank(from)).immediate_receive_into(scope, part)
                    }));
                }
            }
            awaited.into_iter().chain(requests).for_each(|request| self.wait(request, pauses));
        });
    }

    /// Waits until this request is done.
    fn wait<'a, S: Scope<'a>>(&self, mut request: Request<'a, [u8], S>, pauses: bool) {
        let (begun, mut pause) = (Instant::now(), Duration::ZERO);
        loop {
            request = match self.with(|_| request.test()) {
                Ok(_) => return,
                Err(request) => request,
            };
            if !pauses || begun.elapsed() < EAGER {
                std::thread::yield_now();
                continue;
            }
            pause = (pause + Duration::from_micros(5)).min(PAUSE);
            std::thread::sleep(pause);
        }
    }
}

/// What MPI calls the number of a process.
fn rank(member: usize) -> i32 {
    i32::try_from(member).unwrap_or(i32::MAX)
}

impl Links for Mpi {
    fn number(&self) -> usize {
        self.number
    }

    fn count(&self) -> usize {
        self.count
    }

    fn on_machine(&self) -> (usize, usize) {
        self.on_machine
    }

    fn exchange(&self, send: Option<(usize, &[u8])>, receive: Option<(usize, &mut [u8])>) -> Result<()> {
        let works = self.works.swap(false, Ordering::Relaxed);
        let sizes = send.iter().map(|(to, bytes)| (*to, bytes.len()));
        let sizes = sizes.chain(receive.iter().map(|(from, bytes)| (*from, bytes.len())));
        let large: Vec<usize> =
            sizes.filter(|(_, bytes)| *bytes >= LARGE).map(|(member, _)| member).collect();
        let mut there = vec![0; large.len()];
        let from = large.iter().copied().zip(there.chunks_mut(1)).collect();
        self.transfer(&large.iter().map(|&member| (member, &[0][..])).collect::<Vec<_>>(), from, true);
        self.transfer(send.as_slice(), receive.into_iter().collect(), large.is_empty());
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.works.store(works, Ordering::Relaxed);
        Ok(())
    }

    fn works(&self, works: bool) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.works.store(works, Ordering::Relaxed);
    }
}
