//! The prepared sessions of an open store, kept between calls: the second call for the same modes and rank costs what its pass does.

use crate::call::{Stop, TICK, Work};
use blco::{Error, ExecutionPlan, Modes, MttkrpSession, Real, Result, Store};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a session is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub modes: Vec<usize>,
    pub rank: usize,
    /// How many calls its plan counts on.
    pub calls: u32,
}

/// A session, with the handle that stops it.
#[derive(Debug)]
pub struct Prepared<T: Real> {
    pub session: MttkrpSession<T>,
    work: Work,
}

#[derive(Debug)]
struct Slot<T: Real> {
    key: Key,
    /// `None` while a call uses it.
    prepared: Option<Prepared<T>>,
}

/// Sessions of one precision, the one that was used last at the end.
#[derive(Debug)]
pub struct Sessions<T: Real> {
    slots: Mutex<Vec<Slot<T>>>,
    given_back: Condvar,
    most: usize,
}

impl<T: Real> Sessions<T> {
    /// Room for `most` sessions.
    pub fn new(most: usize) -> Self {
        Self { slots: Mutex::default(), given_back: Condvar::new(), most }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot<T>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of all that no call uses.
    pub fn release(&self) {
        let mut slots = self.slots();
        let (idle, busy): (Vec<_>, Vec<_>) = slots.drain(..).partition(|slot| slot.prepared.is_some());
        *slots = busy;
        // What they hold goes when others may look again.
        drop(slots);
        drop(idle);
    }

    /// What each session uses, by now.
    pub fn plans(&self) -> Vec<ExecutionPlan> {
        self.slots().iter().filter_map(|slot| Some(slot.prepared.as_ref()?.session.plan().clone())).collect()
    }

    /// Runs `compute` with the session for `key`, which is prepared now if there is none. A call for the same waits for one that uses
    /// it. A session whose call fails goes.
    pub fn with<R>(
        &self,
        key: &Key,
        engine: &blco::Engine,
        store: &Store,
        stop: &Stop,
        compute: impl FnOnce(&mut MttkrpSession<T>) -> Result<R>,
    ) -> Result<R> {
        let found = self.take(key, stop)?;
        let mut lent = Lent { sessions: self, key, prepared: found };
        if lent.prepared.is_none() {
            lent.prepared = Some(self.prepare(key, engine, store, stop)?);
        }
        let prepared = lent.prepared.as_mut().expect("found or prepared");
        stop.covers(&prepared.work);
        let computed = compute(&mut prepared.session);
        if computed.is_err() {
            lent.prepared = None;
        }
        computed
    }

    /// The session for `key`, or a place for one.
    fn take(&self, key: &Key, stop: &Stop) -> Result<Option<Prepared<T>>> {
        let mut slots = self.slots();
        loop {
            match slots.iter().position(|slot| slot.key == *key) {
                Some(at) if slots[at].prepared.is_some() => {
                    let mut slot = slots.remove(at);
                    let prepared = slot.prepared.take();
                    slots.push(slot);
                    return Ok(prepared);
                }
                Some(_) => {
                    let waited = self.given_back.wait_timeout(slots, TICK);
                    slots = waited.unwrap_or_else(PoisonError::into_inner).0;
                    stop.check()?;
                }
                None => {
                    slots.push(Slot { key: key.clone(), prepared: None });
                    let excess = slots.len().saturating_sub(self.most);
                    let oldest = (0..slots.len()).filter(|&at| slots[at].prepared.is_some()).take(excess);
                    let oldest: Vec<usize> = oldest.collect();
                    let gone: Vec<_> = oldest.into_iter().rev().map(|at| slots.remove(at)).collect();
                    drop(slots);
                    drop(gone);
                    return Ok(None);
                }
            }
        }
    }

    /// A new session. Where others leave it no room, these go.
    fn prepare(&self, key: &Key, engine: &blco::Engine, store: &Store, stop: &Stop) -> Result<Prepared<T>> {
        let work = Work::on(engine);
        stop.covers(&work);
        let prepare = || prepare(&work.engine, store, key);
        let has_idle = || self.slots().iter().any(|slot| slot.prepared.is_some());
        let session = match prepare() {
            Err(Error::Request(_) | Error::Resource { .. } | Error::Device { .. }) if has_idle() => {
                self.release();
                prepare()?
            }
            prepared => prepared?,
        };
        Ok(Prepared { session, work })
    }
}

/// A session that nobody keeps.
pub fn prepare<T: Real>(engine: &blco::Engine, store: &Store, key: &Key) -> Result<MttkrpSession<T>> {
    let modes = Modes::Only(&key.modes);
    let plan = engine.plan_mttkrp::<T>(store, key.rank, modes, key.calls)?;
    engine.prepare_mttkrp::<T>(store, key.rank, modes, plan)
}

/// A session that a call uses, and its place, which goes if it is not given back.
struct Lent<'a, T: Real> {
    sessions: &'a Sessions<T>,
    key: &'a Key,
    prepared: Option<Prepared<T>>,
}

impl<T: Real> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut slots = self.sessions.slots();
        let at = slots.iter().rposition(|slot| slot.key == *self.key && slot.prepared.is_none());
        match (at, self.prepared.take()) {
            (Some(at), Some(prepared)) => slots[at].prepared = Some(prepared),
            (Some(at), None) => drop(slots.remove(at)),
            (None, _) => {}
        }
        drop(slots);
        self.sessions.given_back.notify_all();
    }
}
