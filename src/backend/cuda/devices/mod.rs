//! What several devices do together: [`Group`]. Each has a backend of its own, over its own chunks; at the end of a pass their sums are
//! added up, in a pass of several modes for each mode.
//!
//! **Owners.** A device owns a range of each mode's rows. The others' sums of these come to it, pieces at a time, into a scratch memory
//! with a slot for each device; a kernel adds the slots up in the devices' order. Every device does so for its own rows at the same time, so
//! that all links between devices are busy. Where NCCL is installed, its reduce-scatter takes the place of copies and kernel. What is new of
//! a factor goes the other way: from the owner of its rows to all.
//!
//! All sums that are exchanged are in f64, whatever the precision of the factors: rounding them is left to the owner.
//!
//! **Several processes.** A group may be of one device of each of several processes; NCCL connects them. Each calls what follows with its
//! own memory alone, at the same time.
//!
//! **By rows.** If all devices hold all chunks, a mode can be divided by ranges of rows instead ([`Share`](crate::backend::plan::Share)):
//! each device then has all of its rows' sums, and nothing is added up.

mod team;

pub use team::{Team, TeamMember, of_gpu};

use super::driver::nccl::Nccl;
use super::driver::{Device, Event, Kernel, Memory, Priority, Stream};
use super::kernels::embedded_ptx;
use crate::backend::devices::{Exchange, ExchangePlan, owned};
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;

/// A device of a group.
#[derive(Debug)]
struct Member {
    stream: Stream,
    /// When its own sums are ready to be read.
    ready: Event,
    /// A slot for each device's sums of some of the rows that it owns.
    scratch: Memory,
    /// Adds up sums in f64 into sums in f64, or into results in f32.
    add: Kernel,
    add_and_round: Kernel,
}

impl Member {
    fn new(device: &Arc<Device>, scratch_bytes: u64) -> Result<Self> {
        let names = ["finish_f64", "finish_f32"];
        let module = device.module(&embedded_ptx(&names))?;
        Ok(Self {
            stream: device.stream(Priority::Highest)?,
            ready: device.event(false)?,
            scratch: device.memory(usize::try_from(scratch_bytes).unwrap_or(usize::MAX))?,
            add: module.kernel(names[0])?,
            add_and_round: module.kernel(names[1])?,
        })
    }
}

/// What a pass has left of a mode on a device.
#[derive(Clone, Copy, Debug)]
pub struct Partial<'m> {
    /// `copies` matrices in f64 to add up.
    pub sums: &'m Memory,
    /// How many.
    pub copies: u32,
    /// Where rounded results in f32 go, if they do.
    pub rounded: Option<&'m Memory>,
}

/// Devices that add up their sums and hand each other rows.
#[derive(Debug)]
pub struct Group {
    // Dropped first: its work is in the members' streams.
    nccl: Option<Nccl>,
    /// The devices of this process.
    members: Vec<Member>,
    /// The number of the first of them among all devices, and how many these are.
    first: usize,
    count: usize,
    plan: ExchangePlan,
    notes: Vec<String>,
}

/// How devices would exchange rows, without NCCL where it is not installed.
pub fn exchange(devices: &[Arc<Device>]) -> Result<(Exchange, String)> {
    let why = match Nccl::find() {
        Ok(nccl) => return Ok((Exchange::Nccl, nccl.name())),
        Err(why) => why,
    };
    by_copies(devices, &why)
}

fn by_copies(devices: &[Arc<Device>], why: &str) -> Result<(Exchange, String)> {
    let mut straight = true;
    for (to, from) in devices.iter().flat_map(|to| devices.iter().map(move |from| (to, from))) {
        if !Arc::ptr_eq(to, from) {
            straight &= to.reach(from)?;
        }
    }
    let what = "copies between devices and a kernel that adds";
    Ok(if straight {
        (Exchange::PeerCopies, format!("{why}: {what}"))
    } else {
        (
            Exchange::ThroughHost,
            format!("{why}: {what}; some devices do not reach each other, their copies go through the host"),
        )
    })
}

impl Group {
    /// Of `devices`, for exchanges by `plan`. NCCL that does not start is a note: copies serve.
    pub fn new(devices: &[Arc<Device>], plan: &ExchangePlan) -> Result<Self> {
        let (mut plan, mut notes, mut nccl) = (plan.clone(), Vec::new(), None);
        if plan.by == Exchange::Nccl {
            let found = Nccl::find().and_then(|mut nccl| nccl.connect(devices).map(|()| nccl));
            match found {
                Ok(connected) => nccl = Some(connected),
                Err(why) => {
                    notes.push(format!("{why}: sums go from device to device by copies"));
                    (plan.by, plan.why) = by_copies(devices, &why)?;
                }
            }
        } else {
            by_copies(devices, "")?;
        }
        let members = devices.iter().map(|device| Member::new(device, plan.scratch_bytes));
        let members = members.collect::<Result<_>>()?;
        Ok(Self { nccl, members, first: 0, count: devices.len(), plan, notes })
    }

    /// Of `device`, the `number`-th of `count`, and those of other processes, which `nccl` connects.
    pub fn across(device: &Arc<Device>, nccl: Nccl, (number, count): (usize, usize)) -> Result<Self> {
        let plan = ExchangePlan { by: Exchange::Nccl, why: nccl.name(), bytes: 0, scratch_bytes: 0 };
        let members = vec![Member::new(device, plan.scratch_bytes)?];
        Ok(Self { nccl: Some(nccl), members, first: number, count, plan, notes: Vec::new() })
    }

    /// How sums and rows get from device to device.
    #[must_use]
    pub fn plan(&self) -> &ExchangePlan {
        &self.plan
    }

    /// Where that is not as planned.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The rows of `rows` that each device owns.
    #[must_use]
    pub fn owned(&self, rows: usize) -> Vec<Range<usize>> {
        owned(rows, self.count)
    }

    /// Adds up what a pass has left of some modes on each device, those of this process given, each mode with its rows of `rank` columns: of
    /// the rows that a device owns, its sums become those of all, or, rounded, its results. What its sums hold of other rows means nothing
    /// afterwards. No device is at work.
    pub fn reduce_scatter(&mut self, modes: &[(Vec<Partial<'_>>, usize)], rank: usize) -> Result<()> {
        let started = modes.iter().try_for_each(|(partials, rows)| {
            let owned = self.owned(*rows);
            let owned: Vec<_> = owned.into_iter().map(|own| own.start * rank..own.end * rank).collect();
            self.start_reducing(partials, &owned, rows * rank)
        });
        self.finish(started)
    }

    fn start_reducing(
        &mut self,
        partials: &[Partial<'_>],
        owned: &[Range<usize>],
        elements: usize,
    ) -> Result<()> {
        let Self { nccl, members, first, .. } = self;
        for (member, partial) in members.iter().zip(partials) {
            if partial.copies > 1 {
                let sums = (partial.sums, 0);
                member.stream.launch_finish_at(&member.add, sums, partial.copies, elements, sums)?;
            }
            member.ready.record(&member.stream)?;
        }
        if let Some(nccl) = nccl {
            let taking: Vec<_> = members.iter().zip(partials).map(|(m, p)| (p.sums, &m.stream)).collect();
            nccl.reduce_scatter(&taking, owned, elements)?;
        } else {
            for (number, own) in owned.iter().enumerate() {
                add_up(members, partials, number, own.clone())?;
            }
        }
        for ((member, partial), own) in members.iter().zip(partials).zip(&owned[*first..]) {
            if let (Some(rounded), false) = (partial.rounded, own.is_empty()) {
                let (from, to) = (own.start * size_of::<f64>(), own.start * size_of::<f32>());
                let (sums, result) = ((partial.sums, from), (rounded, to));
                member.stream.launch_finish_at(&member.add_and_round, sums, 1, own.len(), result)?;
            }
        }
        Ok(())
    }

    /// Brings the rows of a matrix, `row_bytes` bytes each, from the device that owns them to all: device i owns `rows[i]`, which follow
    /// each other. `matrices` are those of this process. No device is at work.
    pub fn gather(&mut self, matrices: &[&Memory], rows: &[Range<usize>], row_bytes: usize) -> Result<()> {
        let owned: Vec<Range<usize>> =
            rows.iter().map(|own| own.start * row_bytes..own.end * row_bytes).collect();
        let started = self.start_gathering(matrices, &owned);
        self.finish(started)
    }

    fn start_gathering(&mut self, matrices: &[&Memory], owned: &[Range<usize>]) -> Result<()> {
        let Self { nccl, members, .. } = self;
        if let Some(nccl) = nccl {
            let taking: Vec<_> =
                members.iter().zip(matrices).map(|(m, matrix)| (*matrix, &m.stream)).collect();
            return nccl.all_gather(&taking, owned);
        }
        for (to, member) in members.iter().enumerate() {
            for from in others(to, members.len()) {
                let own = owned[from].clone();
                let (source, target) = ((matrices[from], own.start), (matrices[to], own.start));
                member.stream.copy_from(source, target, own.len())?;
            }
        }
        Ok(())
    }

    /// Waits for all that was started, also where a part of it could not be: what it uses may go afterwards.
    fn finish(&self, started: Result<()>) -> Result<()> {
        let ended: Vec<Result<()>> = self.members.iter().map(|member| member.stream.synchronize()).collect();
        started.and(ended.into_iter().collect())
    }
}

/// The other devices, from the next one on, so that not all ask the same one first.
fn others(number: usize, members: usize) -> impl Iterator<Item = usize> {
    (1..members).map(move |next| (number + next) % members)
}

/// Starts adding up all devices' sums `own` on device `number`, as many at a time as its scratch memory has room for.
fn add_up(members: &[Member], partials: &[Partial<'_>], number: usize, own: Range<usize>) -> Result<()> {
    const BYTES: usize = size_of::<f64>();
    let Member { stream, scratch, add, .. } = &members[number];
    let slot = usize::try_from(scratch.bytes()).unwrap_or(usize::MAX) / (members.len() * BYTES);
    for other in others(number, members.len()) {
        stream.wait(&members[other].ready)?;
    }
    for from in own.clone().step_by(slot.max(1)) {
        let piece = slot.min(own.end - from);
        for other in others(number, members.len()).chain([number]) {
            let target = (scratch, other * piece * BYTES);
            stream.copy_from((partials[other].sums, from * BYTES), target, piece * BYTES)?;
        }
        let copies = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let result = (partials[number].sums, from * BYTES);
        stream.launch_finish_at(add, (scratch, 0), copies, piece, result)?;
    }
    Ok(())
}
