//! Threads, locks, atomics and channels of the code that tests/model.rs model-checks. They come from `std`, `rayon` and
//! `crossbeam-channel`; with the feature `model`, from shuttle, which schedules the threads at each of them.

#[cfg(feature = "model")]
mod model;

#[cfg(feature = "model")]
pub use model::*;
#[cfg(not(feature = "model"))]
pub use plain::*;

#[cfg(not(feature = "model"))]
mod plain {
    pub use crossbeam_channel::{Receiver, Sender, bounded};
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub use std::sync::{Condvar, Mutex, MutexGuard};
    pub use std::thread::{Scope, ScopedJoinHandle, scope};
    pub use std::thread_local;

    use rayon::prelude::*;

    /// How often a thread polls before it sleeps: waking up takes some microseconds.
    pub const LOOKS: u32 = 2000;

    /// Marks a point between two removals where another thread may run. The real system needs no help.
    pub fn pause() {}

    /// Starts a named thread.
    pub fn spawn<'scope, T: Send + 'scope>(
        scope: &'scope Scope<'scope, '_>,
        name: String,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
        std::thread::Builder::new().name(name).spawn_scoped(scope, body)
    }

    /// Runs `work` on up to `threads` threads of the current pool at once, and returns when all have
    /// finished.
    pub fn at_once(threads: usize, work: impl Fn() + Sync) {
        (0..threads).into_par_iter().with_max_len(1).for_each(|_| work());
    }
}
