//! One call of the engine. The thread that Python called from gives the interpreter's lock back and waits for another one that works;
//! while it waits it looks after signals, so that Ctrl-C ends the call within a tenth of a second, and shows progress.

use crate::error::exception;
use blco::{Cancel, Engine, Error, Progress, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often the calling thread looks up.
pub const TICK: Duration = Duration::from_millis(50);

/// How far an operation is: written by any thread, read by the calling one.
#[derive(Debug, Default)]
pub struct Meter {
    what: Mutex<&'static str>,
    done: AtomicU64,
    /// `u64::MAX` if it is not known.
    total: AtomicU64,
}

impl Meter {
    fn set(&self, at: Progress) {
        *self.what.lock().unwrap_or_else(PoisonError::into_inner) = at.what;
        self.done.store(at.done, Ordering::Relaxed);
        self.total.store(at.total.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> (&'static str, u64, Option<u64>) {
        let total = self.total.load(Ordering::Relaxed);
        let what = *self.what.lock().unwrap_or_else(PoisonError::into_inner);
        (what, self.done.load(Ordering::Relaxed), (total != u64::MAX).then_some(total))
    }
}

/// An engine's handle for one piece of work: stopped and watched apart from all others.
#[derive(Clone, Debug)]
pub struct Work {
    pub engine: Engine,
    pub meter: Arc<Meter>,
}

impl Work {
    pub fn on(engine: &Engine) -> Self {
        let meter = Arc::<Meter>::default();
        let shown = Arc::clone(&meter);
        Self { engine: engine.separate(move |at| shown.set(at)), meter }
    }
}

/// What stops a call: the handles of the work that it has begun.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: AtomicBool,
    at_work: Mutex<Option<(Cancel, Arc<Meter>)>>,
}

impl Stop {
    fn at_work(&self) -> std::sync::MutexGuard<'_, Option<(Cancel, Arc<Meter>)>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `work` is what this call does.
    pub fn covers(&self, work: &Work) {
        let cancel = work.engine.cancel_handle();
        let mut at_work = self.at_work();
        if self.stopped.load(Ordering::Relaxed) {
            cancel.cancel();
        }
        *at_work = Some((cancel, Arc::clone(&work.meter)));
    }

    pub fn stop(&self) {
        let at_work = self.at_work();
        self.stopped.store(true, Ordering::Relaxed);
        if let Some((cancel, _)) = &*at_work {
            cancel.cancel();
        }
    }

    /// [`Error::Cancelled`] once it has been stopped.
    pub fn check(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn progress(&self) -> Option<(&'static str, u64, Option<u64>)> {
        self.at_work().as_ref().map(|(_, meter)| meter.get())
    }
}

/// Something that the working thread has the calling one do, with the interpreter's lock.
type Errand = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

enum Message<T> {
    Errand(Errand),
    Done(thread::Result<Result<T>>),
}

/// What the working thread knows of the call.
pub struct Caller<'a> {
    pub stop: &'a Stop,
    send: &'a (dyn Fn(Errand) + Sync),
}

impl Caller<'_> {
    /// Has the calling thread run `errand`; an exception there ends the call, and is an error here.
    pub fn run<R: Send + 'static>(
        &self,
        errand: impl FnOnce(Python<'_>) -> PyResult<R> + Send + 'static,
    ) -> Result<R> {
        let (reply, replied) = bounded(1);
        (self.send)(Box::new(move |py| {
            // Nobody waits if the call has ended meanwhile.
            let _ = reply.send(errand(py)?);
            Ok(())
        }));
        // What Python does now may need this thread of the engine's: it works on, instead of waiting.
        loop {
            match replied.try_recv() {
                Ok(reply) => return Ok(reply),
                Err(TryRecvError::Disconnected) => return Err(Error::Cancelled),
                Err(TryRecvError::Empty) if rayon::yield_now() == Some(rayon::Yield::Executed) => {}
                Err(TryRecvError::Empty) => match replied.recv_timeout(Duration::from_millis(1)) {
                    Ok(reply) => return Ok(reply),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Err(Error::Cancelled),
                },
            }
        }
    }
}

/// Runs `work` on a thread of its own. `progress` is a Python function of what is being done, nonzeros done and of how many, or none.
///
/// Whatever Python raises meanwhile, in a signal's handler, in `progress` or in an errand, stops the work and is raised here
/// once it has ended.
pub fn call<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Caller<'_>) -> Result<T> + Send,
) -> PyResult<Result<T>> {
    let stop = &Stop::default();
    let (sender, receiver) = bounded::<Message<T>>(1);
    let looked_after = py.detach(|| {
        thread::scope(|scope| {
            let work = move || {
                let errands = sender.clone();
                let send = |errand: Errand| drop(errands.send(Message::Errand(errand)));
                let caller = Caller { stop, send: &send };
                let done = catch_unwind(AssertUnwindSafe(|| work(&caller)));
                drop(sender.send(Message::Done(done)));
            };
            let started = thread::Builder::new().name("blco-call".into()).spawn_scoped(scope, work);
            started.map_err(|source| Error::Resource { action: "start a thread", source })?;
            Ok(look_after(&receiver, stop, progress))
        })
    });
    let (done, raised) = looked_after.map_err(|error| exception(&error))?;
    match (done, raised) {
        (Err(panic), _) => resume_unwind(panic),
        (_, Some(raised)) => Err(raised),
        (Ok(done), None) => Ok(done),
    }
}

/// What came of the work, and what Python raised meanwhile.
type LookedAfter<T> = (thread::Result<Result<T>>, Option<PyErr>);

fn look_after<T>(
    receiver: &Receiver<Message<T>>,
    stop: &Stop,
    progress: Option<&Py<PyAny>>,
) -> LookedAfter<T> {
    let mut raised = None;
    loop {
        let errand = match receiver.recv_timeout(TICK) {
            Ok(Message::Done(done)) => return (done, raised),
            Ok(Message::Errand(errand)) => Some(errand),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the working thread says that it is done"),
        };
        // A stopped call runs no errands: dropped, they are an error for who waits for them.
        if raised.is_some() {
            continue;
        }
        let seen = Python::attach(|py| {
            errand.map_or(Ok(()), |errand| errand(py))?;
            // After errands too: what Python calls need not look after signals by itself, and errands may follow one another.
            py.check_signals()?;
            show(py, stop, progress)
        });
        if let Err(error) = seen {
            stop.stop();
            raised = Some(error);
        }
    }
}

fn show(py: Python<'_>, stop: &Stop, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    match (progress, stop.progress()) {
        (Some(progress), Some(at)) => progress.call1(py, at).map(drop),
        _ => Ok(()),
    }
}

/// Runs `work` and maps its error.
pub fn run<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Caller<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    call(py, progress, work)?.map_err(|error| exception(&error))
}

/// A report for Python, as JSON.
pub fn json(report: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(report).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Sends `item` and looks after signals while there is no room for it. False if nobody receives any more.
pub fn send<T: Send>(py: Python<'_>, sender: &Sender<T>, item: T) -> PyResult<bool> {
    use crossbeam_channel::SendTimeoutError;
    let mut item = item;
    loop {
        match py.detach(|| sender.send_timeout(item, TICK)) {
            Ok(()) => return Ok(true),
            Err(SendTimeoutError::Disconnected(_)) => return Ok(false),
            Err(SendTimeoutError::Timeout(unsent)) => item = unsent,
        }
        py.check_signals()?;
    }
}

/// Receives an item, the same way. `None` once all have been received and nobody sends any more.
pub fn receive<T: Send>(py: Python<'_>, receiver: &Receiver<T>) -> PyResult<Option<T>> {
    loop {
        match py.detach(|| receiver.recv_timeout(TICK)) {
            Ok(item) => return Ok(Some(item)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
    }
}
