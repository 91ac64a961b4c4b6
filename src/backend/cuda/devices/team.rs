//! Backends on several devices, each with an executor over its own chunks, that run at the same time: a thread for each.

use crate::backend::cuda::driver::{Device, Pinned};
use crate::backend::cuda::{CudaBackend, DeviceOp};
use crate::backend::devices::{DevicePart, DevicesPlan};
use crate::backend::plan::DevicePlan;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::{Executor, PassReport, Span};
use crate::sys::Sys;
use crate::sys::sync::scope;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A device at work on its chunks.
#[derive(Debug)]
pub struct TeamMember<O> {
    // Dropped first: its buffers are the backend's.
    executor: Executor<Pinned>,
    /// The device's backend.
    pub backend: CudaBackend<O>,
    /// Which device.
    pub device: Arc<Device>,
}

/// All of them.
#[derive(Debug)]
pub struct Team<O> {
    members: Vec<TeamMember<O>>,
    sys: Sys,
    /// How many members load each chunk.
    copies: u64,
    /// Has the others stop where one has failed.
    stop: Arc<AtomicBool>,
}

impl<O: DeviceOp + Send> Team<O> {
    /// Takes what `plan` says on each of `devices`; `make` makes the operation on a device, for its part of the store.
    pub fn new(
        devices: &[Arc<Device>],
        store: &Store,
        plan: &DevicesPlan,
        make: impl Fn(&Arc<Device>, &Store, &DevicePlan) -> Result<CudaBackend<O>> + Sync,
    ) -> Result<Self> {
        let (sys, stop) = (store.sys().clone(), Arc::<AtomicBool>::default());
        let of_parts = sys.with_stop(Arc::clone(&stop));
        let member = |(device, part): (&Arc<Device>, &DevicePart)| {
            let own = store.of_chunks(part.chunks.clone()).with_direct_reads(part.host.direct_reads);
            let own = own.with_sys(&of_parts);
            let mut backend = make(device, &own, &part.device)?;
            let executor = Executor::new(&own, &part.host, &mut backend)?;
            Ok(TeamMember { executor, backend, device: Arc::clone(device) })
        };
        let numbers: Vec<usize> = devices.iter().map(|device| device.facts.number).collect();
        let members = at_once(&sys, &stop, &numbers, devices.iter().zip(&plan.parts).collect(), member)?;
        let copies = if plan.shares() { plan.parts.len() as u64 } else { 1 };
        Ok(Self { members, sys, copies, stop })
    }

    /// The members, in the plan's order.
    pub fn members(&mut self) -> &mut [TeamMember<O>] {
        &mut self.members
    }

    /// Runs this on all members at once. The first error in time is returned; the others stop at their next chunk.
    pub fn each<R: Send>(
        &mut self,
        work: impl Fn(usize, &mut TeamMember<O>) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let numbers: Vec<usize> = self.members.iter().map(|member| member.device.facts.number).collect();
        let members = self.members.iter_mut().enumerate().collect();
        at_once(&self.sys, &self.stop, &numbers, members, |(number, member)| work(number, member))
    }

    /// Has each device do a pass over its chunks. `progress` gets the nonzeros that all have done.
    pub fn pass(&mut self, progress: &(dyn Fn(u64) + Sync)) -> Result<Vec<PassReport>> {
        let copies = self.copies;
        let done: Vec<AtomicU64> = self.members.iter().map(|_| AtomicU64::new(0)).collect();
        self.each(|number, TeamMember { executor, backend, .. }| {
            let tell = |nnz| {
                done[number].store(nnz, Ordering::Relaxed);
                progress(done.iter().map(|done| done.load(Ordering::Relaxed)).sum::<u64>() / copies);
            };
            executor.pass(backend, &tell)
        })
    }

    /// What went on when in the last pass of device `number`.
    #[must_use]
    pub fn spans(&self, number: usize) -> &[Span] {
        self.members[number].executor.spans()
    }

    /// `plan` as it was used in the end, and where that was less than planned.
    #[must_use]
    pub fn used(&self, plan: &DevicesPlan) -> (DevicesPlan, Vec<String>) {
        let (mut plan, mut notes) = (plan.clone(), Vec::new());
        for (member, part) in self.members.iter().zip(&mut plan.parts) {
            part.device = member.backend.plan().clone();
            let number = member.device.facts.number;
            notes.extend(member.backend.notes().iter().map(|note| format!("GPU {number}: {note}")));
        }
        (plan, notes)
    }
}

/// Does `work` on all of `items` at once, a thread for each GPU of these `numbers`; an error stops the others.
fn at_once<I: Send, R: Send>(
    sys: &Sys,
    stop: &AtomicBool,
    numbers: &[usize],
    items: Vec<I>,
    work: impl Fn(I) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    stop.store(false, Ordering::Relaxed);
    let first = Mutex::new(None);
    let fail = |error: Error| {
        // Those who are stopped by it come later.
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        stop.store(true, Ordering::Relaxed);
    };
    let results: Vec<Option<R>> = scope(|scope| {
        let mut threads = Vec::with_capacity(items.len());
        for (item, &number) in items.into_iter().zip(numbers) {
            let (work, fail) = (&work, &fail);
            let body = move || work(item).map_err(|error| fail(of_gpu(number, error))).ok();
            match sys.spawn(scope, format!("gpu-{number}"), body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    fail(error);
                    break;
                }
            }
        }
        let join = |thread: crate::sys::sync::ScopedJoinHandle<'_, Option<R>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// The error, with the number of the GPU where it is a GPU's.
#[must_use]
pub fn of_gpu(number: usize, error: Error) -> Error {
    match error {
        Error::Device { action, what, out_of_memory } => {
            Error::Device { action, what: format!("{what} (GPU {number})"), out_of_memory }
        }
        error => error,
    }
}
