//! Distributes the groups of a batch to threads. A thread gets one of the next groups and a workspace. It adds the
//! group's sums to the results as soon as the previous groups have been added ([`OrderedCommit`]), while they are in
//! its cache, and only then takes another group. Groups in progress are fewer than [`COPIES`] apart, so no two share a
//! copy, and each copy gets its groups in order.

use super::group::{COPIES, Commit, Group, GroupWork, Inputs, Strategy, Tables};
use super::rows::AlignedRows;
use super::{GROUP_NNZ, GROUP_TILES};
use crate::dense::Real;
use crate::sys::sync::{AtomicU64, Condvar, LOOKS, Mutex, MutexGuard, Ordering, spin_loop};
use std::ops::Range;
use std::sync::PoisonError;

/// A thread's workspace: its group's slots and tables.
pub type Workspace<T> = (Group, Tables<T>);

/// Locks a mutex whose poisoning does not matter: a panic ends the pass.
fn lock<X>(mutex: &Mutex<X>) -> MutexGuard<'_, X> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Distributes groups. Of the next groups, a thread gets the one whose copy it used before, if it is free; otherwise
/// the first.
#[derive(Debug)]
pub struct WorkQueue<'s, T> {
    /// The numbers of the remaining groups, some of which may be taken.
    groups: Range<u64>,
    /// Bit k is set if group `groups.start + k` is taken. Never the first.
    taken: u64,
    /// All groups before this one are done.
    done: u64,
    /// The most threads that work at once.
    threads: u64,
    /// The number of threads that have arrived.
    here: u64,
    workspaces: &'s mut Vec<Workspace<T>>,
    /// The workspace of an incomplete group: of the first group until it is taken, of the last once it is returned.
    open: &'s mut Option<Workspace<T>>,
}

impl<'s, T: Real> WorkQueue<'s, T> {
    /// Distributes `groups`.
    pub fn new(
        groups: Range<u64>,
        workspaces: &'s mut Vec<Workspace<T>>,
        open: &'s mut Option<Workspace<T>>,
    ) -> Self {
        let threads = (workspaces.len() + usize::from(open.is_some())) as u64;
        Self { done: groups.start, groups, taken: 0, threads, here: 0, workspaces, open }
    }

    fn take(&mut self) -> Option<Workspace<T>> {
        let Range { start, end } = self.groups;
        if start == end {
            return None;
        }
        let ahead = rayon::current_thread_index().map_or(0, |thread| {
            let (thread, threads) = (thread as u64 % self.threads, self.threads);
            (thread + threads - start % threads) % threads
        });
        // Fewer groups are taken out of turn than threads are here, so one thread is left for the first. Groups in
        // progress have different copies. The last group, which may be incomplete, comes last.
        let before = (start + self.here).min(end - 1).min(self.done + COPIES as u64);
        let is_free = self.taken >> ahead & 1 == 0 && start + ahead < before;
        let ahead = if is_free { ahead } else { 0 };
        self.taken |= 1 << ahead;
        let gone = self.taken.trailing_ones();
        self.groups.start += u64::from(gone);
        self.taken = self.taken.checked_shr(gone).unwrap_or(0);
        let number = start + ahead;
        self.open.take_if(|(group, _)| group.number == number).or_else(|| {
            let mut workspace = self.workspaces.pop().expect("threads have a workspace each");
            workspace.0.begin(number);
            Some(workspace)
        })
    }

    fn put_back(&mut self, workspace: Workspace<T>) {
        if workspace.0.nnz == GROUP_NNZ {
            self.done = self.done.max(workspace.0.number + 1);
            self.workspaces.push(workspace);
        } else {
            *self.open = Some(workspace);
        }
    }
}

/// Admits groups to a result in order, separately for each range of its rows, so that groups follow one another through
/// the result.
#[derive(Debug)]
pub struct OrderedCommit<'s> {
    /// Rows of each range but the last.
    pub rows: usize,
    turns: Vec<Turn<'s>>,
}

/// Admits groups to some rows of a result in order.
#[derive(Debug)]
#[repr(align(128))]
struct Turn<'s> {
    state: Mutex<Rows<'s>>,
    passed: Condvar,
    /// The group whose turn it is, for polling without the lock.
    shown: AtomicU64,
}

/// Rows of a result.
#[derive(Debug)]
struct Rows<'s> {
    /// The group whose turn it is.
    group: u64,
    /// The number of threads that sleep until the turn changes.
    sleepers: usize,
    sums: &'s mut [f64],
}

/// No group's turn anymore: a thread has panicked.
const NOBODY: u64 = u64::MAX;

/// The number of ranges of a result's rows for `threads` threads. With two threads, more ranges do not reduce
/// waiting.
fn ranges(threads: usize) -> usize {
    (threads * threads / 4).clamp(1, 64)
}

impl<'s> OrderedCommit<'s> {
    /// Starts with the turn of group `first`. `threads` threads add to `sums`, whose rows have `rank` numbers.
    pub fn new(first: u64, sums: &'s mut [f64], rank: usize, threads: usize) -> Self {
        let rows = (sums.len() / rank).div_ceil(ranges(threads));
        let turn = |sums| Turn {
            state: Mutex::new(Rows { group: first, sleepers: 0, sums }),
            passed: Condvar::new(),
            shown: AtomicU64::new(first),
        };
        Self { rows, turns: sums.chunks_mut(rows * rank).map(turn).collect() }
    }
}

impl Turn<'_> {
    /// Waits for the turn of group `number`, runs `add` on the sums and passes the turn on.
    fn take(&self, number: u64, add: impl FnOnce(&mut [f64])) {
        for _ in 0..LOOKS {
            if self.shown.load(Ordering::Relaxed) == number {
                break;
            }
            spin_loop();
        }
        let mut rows = lock(&self.state);
        rows.sleepers += 1;
        let waits = |rows: &mut Rows<'_>| rows.group != number && rows.group != NOBODY;
        rows = self.passed.wait_while(rows, waits).unwrap_or_else(PoisonError::into_inner);
        rows.sleepers -= 1;
        assert!(rows.group == number, "no other thread has panicked");
        add(rows.sums);
        rows.group += 1;
        self.shown.store(rows.group, Ordering::Relaxed);
        // A wakeup is a system call even if no thread sleeps.
        if rows.sleepers > 0 {
            self.passed.notify_all();
        }
    }
}

/// Ends all commits if its thread panics, so that no thread waits for it.
struct Guard<'a, 's>(&'a [OrderedCommit<'s>]);

impl Drop for Guard<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for turn in self.0.iter().flat_map(|commit| &commit.turns) {
                lock(&turn.state).group = NOBODY;
                turn.passed.notify_all();
            }
        }
    }
}

/// What threads share while they process a batch.
#[derive(Debug)]
pub struct Shift<'s, T> {
    pub inputs: Inputs<'s, T>,
    pub copies: &'s [Mutex<Vec<AlignedRows<f64>>>],
    pub queue: Mutex<WorkQueue<'s, T>>,
    /// By computed mode.
    pub commits: Vec<OrderedCommit<'s>>,
    /// The instruction sets for processing groups and for adding them to results.
    pub vectors: [pulp::Arch; 2],
}

impl<T: Real> Shift<'_, T> {
    /// Takes groups until none are left.
    pub fn work(&self) {
        let _guard = Guard(&self.commits);
        lock(&self.queue).here += 1;
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

    fn add_to_results(&self, group: &mut Group) {
        let Inputs { rank, stride, modes, .. } = self.inputs;
        for (mode, (commit, (_, strategy))) in self.commits.iter().zip(modes).enumerate() {
            let has_slots = *strategy == Strategy::Slots;
            if has_slots {
                group.modes[mode].sort(commit.rows, commit.turns.len());
            }
            let group = &*group;
            for (range, turn) in commit.turns.iter().enumerate() {
                // The turn passes even for modes with copies: that keeps groups in progress close together.
                turn.take(group.number, |sums| {
                    if has_slots {
                        #[expect(clippy::cast_possible_truncation, reason = "a row")]
                        let first_row = (range * commit.rows) as u32;
                        self.vectors[1].dispatch(Commit {
                            group,
                            mode,
                            range,
                            first_row,
                            rank,
                            stride,
                            sums,
                        });
                    }
                });
            }
        }
    }
}
