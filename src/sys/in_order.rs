//! Work that the threads of a pool do in any order, and whose results are taken in the order in which it was given.

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use rayon::{ScopeFifo, Yield};
use std::collections::VecDeque;
use std::time::Duration;

/// How long a thread without other work sleeps before it looks for some again.
const WAIT: Duration = Duration::from_micros(50);

/// Work in progress. No thread waits at the end of a group, unlike with parallel iterators.
pub struct InOrder<'a, 'scope, T> {
    scope: &'a ScopeFifo<'scope>,
    results: VecDeque<Receiver<T>>,
}

impl<T> std::fmt::Debug for InOrder<'_, '_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InOrder").field("results", &self.results.len()).finish_non_exhaustive()
    }
}

impl<'a, 'scope, T: Send + 'scope> InOrder<'a, 'scope, T> {
    /// No work yet; `scope` ends after all of it.
    #[must_use]
    pub fn new(scope: &'a ScopeFifo<'scope>) -> Self {
        Self { scope, results: VecDeque::new() }
    }

    /// The number of results that have not been taken.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.results.len()
    }

    /// Gives `work` to the pool.
    pub fn give(&mut self, work: impl FnOnce() -> T + Send + 'scope) {
        let (done, result) = bounded(1);
        // Nobody waits for the result after an error.
        self.scope.spawn_fifo(move |_| drop(done.send(work())));
        self.results.push_back(result);
    }

    /// The next result; `None` if there is none. While waiting for it, this thread does other work of the pool.
    pub fn take(&mut self) -> Option<T> {
        let result = self.results.pop_front()?;
        loop {
            let wait = if result.is_empty() && rayon::yield_now() != Some(Yield::Executed) {
                WAIT
            } else {
                Duration::ZERO
            };
            match result.recv_timeout(wait) {
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Timeout) => {}
                // It panicked, and so will the scope.
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any number of threads, from inside and from outside the pool.
    #[test]
    fn results_come_in_order() {
        let run = || {
            let mut taken = Vec::new();
            rayon::in_place_scope_fifo(|scope| {
                let mut work = InOrder::new(scope);
                for i in 0..100u64 {
                    work.give(move || {
                        std::thread::sleep(Duration::from_micros(i * 7919 % 200));
                        i
                    });
                    if work.waiting() > 8 {
                        taken.extend(work.take());
                    }
                }
                taken.extend(std::iter::from_fn(|| work.take()));
            });
            assert!(taken.into_iter().eq(0..100));
        };
        run();
        for threads in [1, 2, 5] {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
        }
    }
}
