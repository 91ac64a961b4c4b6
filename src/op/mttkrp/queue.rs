//! Distributes the groups of a batch or a chunk to threads. A thread gets one of the next groups and a workspace. It
//! adds the group's sums to the results as soon as the previous groups have been added ([`OrderedCommit`]), while they
//! are in its cache, and only then takes another group. Groups in progress are fewer than [`COPIES`] apart, so no two
//! share a copy, and each copy gets its groups in order. If all modes have copies, each copy gets its groups in order
//! without that, and a thread stays with a copy for some groups.

use super::group::{COPIES, Commit, Group, GroupWork, Inputs, Strategy, Tables};
use super::rows::AlignedRows;
use super::{GROUP_NNZ, GROUP_TILES};
use crate::backend::host::{TileRoom, Tiles};
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::sys::sync::{AtomicU64, Condvar, LOOKS, Mutex, MutexGuard, Ordering, spin_loop};
use std::ops::Range;
use std::sync::PoisonError;

/// A thread's workspace.
#[derive(Debug)]
pub struct Workspace<T> {
    pub group: Group,
    pub tables: Tables<T>,
    /// Where the thread decodes the group's tiles, if it does.
    pub room: Option<TileRoom>,
}

/// The tiles of which groups are made.
#[derive(Clone, Copy, Debug)]
pub enum TileSource<'s> {
    Decoded(&'s Tiles<'s>),
    /// Each thread decodes those of its groups.
    Chunk(&'s ChunkView<'s>, pulp::Arch),
}

impl TileSource<'_> {
    fn first_tile(self) -> u64 {
        match self {
            Self::Decoded(tiles) => tiles.first_tile,
            Self::Chunk(view, _) => view.first_tile(),
        }
    }

    fn tiles(self) -> usize {
        match self {
            Self::Decoded(tiles) => tiles.tiles(),
            Self::Chunk(view, _) => view.tiles(),
        }
    }

    /// The groups that have tiles here.
    pub fn groups(self) -> Range<u64> {
        let (first, tiles) = (self.first_tile(), GROUP_TILES as u64);
        first / tiles..(first + self.tiles() as u64).div_ceil(tiles)
    }

    /// The tiles here of group `number`.
    fn of_group(self, number: u64) -> Range<usize> {
        #[expect(clippy::cast_possible_truncation, reason = "at most the tiles that are here")]
        let at = |tile: u64| (tile.saturating_sub(self.first_tile()) as usize).min(self.tiles());
        at(number * GROUP_TILES as u64)..at((number + 1) * GROUP_TILES as u64)
    }
}

/// Locks a mutex whose poisoning does not matter: a panic ends the pass.
fn lock<X>(mutex: &Mutex<X>) -> MutexGuard<'_, X> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Distributes groups.
#[derive(Debug)]
pub struct WorkQueue<'s, T> {
    next: Next,
    workspaces: &'s mut Vec<Workspace<T>>,
    /// The workspace of an incomplete group: of the first group until it is taken, of the last once it is returned.
    open: &'s mut Option<Workspace<T>>,
}

/// Which group a thread takes next.
#[derive(Debug)]
enum Next {
    InOrder(InOrder),
    ByCopy(ByCopy),
}

/// Groups in progress follow each other. A thread gets the one whose copy it used before, if it is free; otherwise the
/// first.
#[derive(Debug)]
struct InOrder {
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
}

impl InOrder {
    fn take(&mut self) -> Option<u64> {
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
        Some(start + ahead)
    }
}

/// Nothing is added to results in order. A thread takes several groups of one copy, which stays in its cache.
#[derive(Debug)]
struct ByCopy {
    end: u64,
    /// The next group of each copy.
    next: [u64; COPIES],
    /// Whether a thread works on a group of the copy.
    is_taken: [bool; COPIES],
}

impl ByCopy {
    /// How many groups a copy may be ahead of another that no thread works on.
    const AHEAD: u64 = 8;

    fn new(groups: Range<u64>) -> Self {
        let mut next = [0; COPIES];
        (groups.start..).take(COPIES).for_each(|group| next[Self::copy(group)] = group);
        Self { end: groups.end, next, is_taken: [false; COPIES] }
    }

    fn copy(group: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than COPIES")]
        let copy = (group % COPIES as u64) as usize;
        copy
    }

    /// For a thread whose previous group was `previous`.
    fn take(&mut self, previous: Option<u64>) -> Option<u64> {
        let previous = previous.map(Self::copy);
        if let Some(copy) = previous {
            self.is_taken[copy] = false;
        }
        // The last group, which may be incomplete, comes last.
        let last = self.end.checked_sub(1)?;
        let free = |&copy: &usize| !self.is_taken[copy] && self.next[copy] < last;
        let behind = (0..COPIES).filter(free).min_by_key(|&copy| self.next[copy]);
        let ahead = |copy: usize| self.next[copy] + Self::AHEAD * COPIES as u64;
        let stays = |copy: &usize| behind.is_some_and(|behind| self.next[*copy] < last.min(ahead(behind)));
        let is_last = self.next.iter().all(|&next| next >= last) && self.next[Self::copy(last)] == last;
        let ends = || Some(Self::copy(last)).filter(|&copy| is_last && !self.is_taken[copy]);
        let copy = previous.filter(stays).or(behind).or_else(ends)?;
        self.is_taken[copy] = true;
        self.next[copy] += COPIES as u64;
        Some(self.next[copy] - COPIES as u64)
    }
}

impl<'s, T: Real> WorkQueue<'s, T> {
    /// Distributes `groups`; with `in_order`, close together.
    pub fn new(
        groups: Range<u64>,
        in_order: bool,
        workspaces: &'s mut Vec<Workspace<T>>,
        open: &'s mut Option<Workspace<T>>,
    ) -> Self {
        let threads = (workspaces.len() + usize::from(open.is_some())) as u64;
        let next = if in_order {
            Next::InOrder(InOrder { done: groups.start, groups, taken: 0, threads, here: 0 })
        } else {
            Next::ByCopy(ByCopy::new(groups))
        };
        Self { next, workspaces, open }
    }

    /// Takes note of another thread.
    fn arrive(&mut self) {
        if let Next::InOrder(next) = &mut self.next {
            next.here += 1;
        }
    }

    /// A group for a thread whose previous one was `previous`.
    fn take(&mut self, previous: Option<u64>) -> Option<Workspace<T>> {
        let number = match &mut self.next {
            Next::InOrder(next) => next.take(),
            Next::ByCopy(next) => next.take(previous),
        }?;
        self.open.take_if(|open| open.group.number == number).or_else(|| {
            let mut workspace = self.workspaces.pop().expect("threads have a workspace each");
            workspace.group.begin(number);
            Some(workspace)
        })
    }

    fn put_back(&mut self, workspace: Workspace<T>) {
        if workspace.group.nnz == GROUP_NNZ {
            if let Next::InOrder(next) = &mut self.next {
                next.done = next.done.max(workspace.group.number + 1);
            }
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

/// What threads share while they process tiles.
#[derive(Debug)]
pub struct Shift<'s, T> {
    pub tiles: TileSource<'s>,
    pub inputs: Inputs<'s, T>,
    pub copies: &'s [Mutex<Vec<AlignedRows<f64>>>],
    pub queue: Mutex<WorkQueue<'s, T>>,
    /// By computed mode, if any has slots.
    pub commits: Vec<OrderedCommit<'s>>,
    /// The instruction sets for processing groups and for adding them to results.
    pub vectors: [pulp::Arch; 2],
    /// What went wrong. Groups that come afterwards are passed over.
    pub failed: Mutex<Option<Error>>,
}

impl<T: Real> Shift<'_, T> {
    /// Takes groups until none are left.
    pub fn work(&self) {
        let _guard = Guard(&self.commits);
        lock(&self.queue).arrive();
        let mut previous = None;
        let take = |previous| lock(&self.queue).take(previous);
        while let Some(mut workspace) = take(previous) {
            previous = Some(workspace.group.number);
            let has_failed = lock(&self.failed).is_some();
            let worked = if has_failed { Ok(()) } else { self.add_up(&mut workspace) };
            let group = &mut workspace.group;
            if let Err(error) = worked {
                lock(&self.failed).get_or_insert(error);
            }
            if lock(&self.failed).is_some() {
                // Later groups wait for this one's turn.
                group.begin(group.number);
                group.nnz = GROUP_NNZ;
            }
            if group.nnz == GROUP_NNZ {
                self.add_to_results(group);
            }
            lock(&self.queue).put_back(workspace);
        }
    }

    /// Adds up what the tiles of a workspace's group contribute.
    fn add_up(&self, workspace: &mut Workspace<T>) -> Result<()> {
        let Workspace { group, tables, room } = workspace;
        let own = self.tiles.of_group(group.number);
        let decoded;
        let (tiles, own) = match (self.tiles, room) {
            (TileSource::Decoded(tiles), _) => (tiles, own),
            (TileSource::Chunk(view, vectors), Some(room)) => {
                decoded = room.decode(view, own.clone(), vectors)?;
                (&decoded, 0..own.len())
            }
            (TileSource::Chunk(..), None) => unreachable!("workspaces have rooms where chunks are decoded"),
        };
        group.tiles = own;
        let copy = &mut *lock(&self.copies[ByCopy::copy(group.number)]);
        self.vectors[0].dispatch(GroupWork { group, copy, tables, tiles, inputs: self.inputs });
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that end their groups in any order: each copy's groups come in order, one at a time, and the last of all comes when
    /// no other is left.
    #[test]
    fn copies_get_their_groups_in_order() {
        for groups in [0..1, 5..6, 0..16, 3..20, 7..40, 0..806] {
            for threads in [1, 2, 3, 16] {
                let mut queue = ByCopy::new(groups.clone());
                let mut working: Vec<Option<u64>> = vec![None; threads];
                let (mut next, mut taken, mut turn) = (queue.next, 0, 0);
                let mut idle = 0;
                while idle < threads {
                    // A thread leaves where it gets nothing.
                    turn = (turn * 5 + 3) % threads.max(7);
                    let Some(thread) =
                        (0..threads).map(|t| (turn + t) % threads).find(|&t| working[t] != Some(u64::MAX))
                    else {
                        break;
                    };
                    let Some(group) = queue.take(working[thread]) else {
                        (working[thread], idle) = (Some(u64::MAX), idle + 1);
                        continue;
                    };
                    let copy = ByCopy::copy(group);
                    assert_eq!(group, next[copy], "{groups:?}, {threads} threads");
                    let others = (0..threads).filter(|&other| other != thread).filter_map(|t| working[t]);
                    let mut others = others.filter(|&other| other != u64::MAX);
                    assert!(others.all(|other| ByCopy::copy(other) != copy), "{groups:?}, {threads} threads");
                    next[copy] += COPIES as u64;
                    taken += 1;
                    assert_eq!(
                        group == groups.end - 1,
                        taken == groups.end - groups.start,
                        "the last comes last"
                    );
                    working[thread] = Some(group);
                }
                assert_eq!(taken, groups.end - groups.start, "{groups:?}, {threads} threads");
            }
        }
    }
}
