//! Replacements for the system and other crates while shuttle checks.

pub use shuttle::hint::spin_loop;
pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
pub use shuttle::thread::{Scope, ScopedJoinHandle, scope, yield_now as pause};
pub use shuttle::thread_local;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

/// Each poll is a step of the schedule; a few suffice.
pub const LOOKS: u32 = 2;

/// Starts a thread.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    _name: String,
    body: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    Ok(scope.spawn(body))
}

/// Has `threads` threads work at once.
pub fn at_once(threads: usize, work: impl Fn() + Sync) {
    scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

/// A channel as crossbeam's.
struct Channel<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    room: usize,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// How many messages were sent and received.
    sent: u64,
    received: u64,
    has_sender: bool,
    has_receiver: bool,
}

/// The sender of a channel. A channel has one.
pub struct Sender<T>(Arc<Channel<T>>);

/// There is no message, and there may never be one.
#[derive(Debug)]
pub struct NoMessage;

/// The receiver of a channel. A channel has one.
pub struct Receiver<T>(Arc<Channel<T>>);

/// A channel with room for `room` messages. With none, a sender waits until its message is taken.
#[must_use]
pub fn bounded<T>(room: usize) -> (Sender<T>, Receiver<T>) {
    let state =
        State { waiting: VecDeque::new(), sent: 0, received: 0, has_sender: true, has_receiver: true };
    let channel = Arc::new(Channel { state: Mutex::new(state), changed: Condvar::new(), room });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Channel<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `waits` is true, and returns the state.
    fn wait_while(&self, waits: impl Fn(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        let state = self.changed.wait_while(self.lock(), |state| waits(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, close: impl FnOnce(&mut State<T>)) {
        // Drop the remaining messages after unlocking.
        let left = {
            let mut state = self.lock();
            close(&mut state);
            if state.has_receiver { VecDeque::new() } else { std::mem::take(&mut state.waiting) }
        };
        self.changed.notify_all();
        drop(left);
    }
}

impl<T> Sender<T> {
    /// Sends as soon as there is room. Returns the message if there is no receiver.
    pub fn send(&self, message: T) -> Result<(), T> {
        let full = |state: &State<T>| state.has_receiver && state.waiting.len() >= self.0.room.max(1);
        let mut state = self.0.wait_while(full);
        if !state.has_receiver {
            return Err(message);
        }
        state.waiting.push_back(message);
        state.sent += 1;
        let number = state.sent;
        drop(state);
        self.0.changed.notify_all();
        if self.0.room == 0 {
            drop(self.0.wait_while(|state| state.has_receiver && state.received < number));
        }
        Ok(())
    }

    /// Sends if there is room.
    pub fn try_send(&self, message: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if !state.has_receiver || state.waiting.len() >= self.0.room {
            return Err(message);
        }
        state.waiting.push_back(message);
        state.sent += 1;
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Waits for the next message; an error if none will come.
    pub fn recv(&self) -> Result<T, NoMessage> {
        let mut state = self.0.wait_while(|state| state.has_sender && state.waiting.is_empty());
        self.take(&mut state)
    }

    /// The next message, if there is one.
    pub fn try_recv(&self) -> Result<T, NoMessage> {
        self.take(&mut self.0.lock())
    }

    fn take(&self, state: &mut State<T>) -> Result<T, NoMessage> {
        let message = state.waiting.pop_front().ok_or(NoMessage)?;
        state.received += 1;
        self.0.changed.notify_all();
        Ok(message)
    }

    /// Whether no message is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().waiting.is_empty()
    }

    /// All messages, as they come.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }
}

/// All messages of a receiver, as they come.
pub struct Messages<T>(Receiver<T>);

impl<T> Iterator for Messages<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = Messages<T>;

    fn into_iter(self) -> Messages<T> {
        Messages(self)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.close(|state| state.has_sender = false);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.close(|state| state.has_receiver = false);
    }
}
