//! The groups of a batch between threads. A thread is given the next group and a workspace to work at; what the group adds up, the thread adds to the results when
//! the groups before have ([`OrderedCommit`]), while it is still in the thread's cache, and only then takes another group. So groups in work lie closer together
//! than there are workspaces, at most [`COPIES`]: no two share a copy, and each copy gets its groups in order.

use super::group::{COPIES, Commit, Group, GroupWork, Inputs, Strategy, Tables};
use super::rows::AlignedRows;
use super::{GROUP_NNZ, GROUP_TILES};
use crate::dense::Real;
use crate::sys::sync::{AtomicU64, Condvar, LOOKS, Mutex, MutexGuard, Ordering, spin_loop};
use std::ops::Range;
use std::sync::PoisonError;

/// What a thread works at: its group's slots and what it needs beside them.
pub type Workspace<T> = (Group, Tables<T>);

/// Locks what no panic leaves half done: a panic ends the pass.
fn lock<X>(mutex: &Mutex<X>) -> MutexGuard<'_, X> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives out groups, in order.
#[derive(Debug)]
pub struct WorkQueue<'s, T> {
    /// The numbers of those that are still to be given.
    pub groups: Range<u64>,
    pub workspaces: &'s mut Vec<Workspace<T>>,
    /// The workspace of a group that is not whole: of the first, until that is given; of the last, when it is back.
    pub open: &'s mut Option<Workspace<T>>,
}

impl<T: Real> WorkQueue<'_, T> {
    fn take(&mut self) -> Option<Workspace<T>> {
        let number = self.groups.next()?;
        self.open.take().or_else(|| {
            let mut workspace = self.workspaces.pop().expect("threads have a workspace each");
            workspace.0.begin(number);
            Some(workspace)
        })
    }

    fn put_back(&mut self, workspace: Workspace<T>) {
        if workspace.0.nnz == GROUP_NNZ {
            self.workspaces.push(workspace);
        } else {
            *self.open = Some(workspace);
        }
    }
}

/// Lets groups at a result in order.
#[derive(Debug)]
pub struct OrderedCommit<'s> {
    /// The group whose turn it is, and the result's sums.
    state: Mutex<(u64, &'s mut [f64])>,
    passed: Condvar,
    /// The same group, for those who look without the lock.
    shown: AtomicU64,
}

/// Nobody's turn any more: a thread has panicked.
const NOBODY: u64 = u64::MAX;

impl<'s> OrderedCommit<'s> {
    /// First that of group `first`.
    pub fn new(first: u64, sums: &'s mut [f64]) -> Self {
        Self { state: Mutex::new((first, sums)), passed: Condvar::new(), shown: AtomicU64::new(first) }
    }

    /// Waits for the turn of group `number`, adds to the sums and passes it on.
    fn take(&self, number: u64, add: impl FnOnce(&mut [f64])) {
        for _ in 0..LOOKS {
            if self.shown.load(Ordering::Relaxed) == number {
                break;
            }
            spin_loop();
        }
        let waits = |state: &mut (u64, &mut [f64])| state.0 != number && state.0 != NOBODY;
        let state = self.passed.wait_while(lock(&self.state), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        assert!(state.0 == number, "no other thread has panicked");
        add(state.1);
        state.0 += 1;
        self.shown.store(state.0, Ordering::Relaxed);
        self.passed.notify_all();
    }
}

/// Ends all commits when its thread panics, so that nobody waits for it.
struct Guard<'a, 's>(&'a [OrderedCommit<'s>]);

impl Drop for Guard<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for turn in self.0 {
                lock(&turn.state).0 = NOBODY;
                turn.passed.notify_all();
            }
        }
    }
}

/// All that threads share while they work on a batch.
#[derive(Debug)]
pub struct Shift<'s, T> {
    pub inputs: Inputs<'s, T>,
    pub copies: &'s [Mutex<Vec<AlignedRows<f64>>>],
    pub queue: Mutex<WorkQueue<'s, T>>,
    /// By mode that is computed.
    pub commits: Vec<OrderedCommit<'s>>,
    /// What groups are worked on with, and what adds them to results.
    pub vectors: [pulp::Arch; 2],
}

impl<T: Real> Shift<'_, T> {
    /// Takes groups until there are none.
    pub fn work(&self) {
        let _guard = Guard(&self.commits);
        let take = || lock(&self.queue).take();
        while let Some(mut workspace) = take() {
            let (group, tables) = &mut workspace;
            group.tiles = self.tiles(group.number);
            #[expect(clippy::cast_possible_truncation, reason = "less than COPIES")]
            let copy = &self.copies[(group.number % COPIES as u64) as usize];
            self.vectors[0].dispatch(GroupWork { group, copy: &mut lock(copy), tables, inputs: self.inputs });
            if group.nnz == GROUP_NNZ {
                self.add_to_results(group);
            }
            lock(&self.queue).put_back(workspace);
        }
    }

    /// The tiles of group `number` that are in the batch.
    fn tiles(&self, number: u64) -> Range<usize> {
        let batch = self.inputs.batch;
        #[expect(clippy::cast_possible_truncation, reason = "at most a batch's tiles")]
        let at = |tile: u64| (tile.saturating_sub(batch.first_tile) as usize).min(batch.tiles());
        at(number * GROUP_TILES as u64)..at((number + 1) * GROUP_TILES as u64)
    }

    fn add_to_results(&self, group: &Group) {
        let Inputs { rank, stride, modes, .. } = self.inputs;
        for (mode, (turn, (_, strategy))) in self.commits.iter().zip(modes).enumerate() {
            // The turn passes where there are copies too: it keeps groups in work near one another.
            turn.take(group.number, |sums| {
                if *strategy == Strategy::Slots {
                    self.vectors[1].dispatch(Commit { group, mode, rank, stride, sums });
                }
            });
        }
    }
}
