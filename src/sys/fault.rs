//! Injected failures: make the n-th call through a [`Sys`](super::Sys) fail.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kinds of calls made through a `Sys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// Opening or creating a file or a directory.
    Open,
    /// One read system call.
    Read,
    /// One write system call.
    Write,
    /// Syncing a file or a directory.
    Sync,
    /// A rename.
    Rename,
    /// Swapping two names.
    Exchange,
    /// Removing a tree.
    Remove,
    /// Starting a thread or the pool.
    Spawn,
    /// Allocating a buffer whose size depends on the data.
    Allocate,
}

/// What happens to the selected call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error number.
    Errno(i32),
    /// It transfers fewer bytes than requested (reads and writes only).
    Short,
}

/// Which call fails, and how.
#[derive(Debug)]
pub struct Faults {
    only: Option<Call>,
    /// `None` for every call.
    nth: Option<u64>,
    fault: Fault,
    seen: AtomicU64,
}

impl Faults {
    /// Fails call number `nth` (from 0) among those of kind `only`, or among all calls.
    #[must_use]
    pub fn new(only: Option<Call>, nth: u64, fault: Fault) -> Self {
        Self { only, nth: Some(nth), fault, seen: AtomicU64::new(0) }
    }

    /// Fails every call of kind `only`, as on a system without it.
    #[must_use]
    pub fn every(only: Call, fault: Fault) -> Self {
        Self { only: Some(only), nth: None, fault, seen: AtomicU64::new(0) }
    }

    /// Calls of the selected kind so far.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Whether the selected call has occurred.
    #[must_use]
    pub fn struck(&self) -> bool {
        self.seen() > self.nth.unwrap_or(0)
    }

    pub(super) fn strike(&self, call: Call) -> Option<Fault> {
        if self.only.is_some_and(|only| only != call) {
            return None;
        }
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        self.nth.is_none_or(|nth| number == nth).then_some(self.fault)
    }
}
