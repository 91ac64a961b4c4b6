//! How long passes would take on other machines than this one: many of one kind, each with some GPUs or with its processors.
//!
//! It is the model by which GPUs of this machine divide their work (`engine::devices`), with a second step of every exchange between
//! machines. A GPU's plan for its part says what stays on it. Nothing is measured but the link to a GPU, if there is one; other rates are those of
//! the driver or assumed, and the forecast states them.

use super::demand::Demand;
use super::devices::{
    LOADED_PER_SECOND, Updating, division, forecasts, loading, matrix_bytes, of_chunks, updating,
};
use super::{Device, Engine, gpu, machine};
use crate::backend::device::{DeviceLimits, DeviceOrder, Facts};
use crate::backend::devices::{Divide, Exchange, ModeDivision, ModeForecast, Together, cut, fastest};
use crate::backend::plan::{DevicePlan, ModeSeconds, RowCost, Share};
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::op::mttkrp::{Costs, ModeSortedDemand};
use crate::store::Store;
use serde::Serialize;
use std::ops::Range;

/// Machines of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Machines {
    /// How many.
    pub count: usize,
    /// GPUs of each; 0 if they compute on their processors.
    pub devices: usize,
    /// Bytes per second that each receives from the others; `None` if one machine alone is meant.
    pub link: Option<f64>,
}

/// The most machines of a forecast.
pub const MACHINES_MAX: usize = 1 << 16;
/// Machines pay as long as twice as many take at least this part of the time off.
const PAYS: f64 = 0.1;

/// Seconds that an exchange between GPUs of one machine takes besides its bytes: launches, waiting (two H100,
/// benches/runs/2026-11-25-two-gpus).
const MEETING: f64 = 3e-4;
/// Bytes per second to a GPU, and to all of a machine together (four H200), assumed.
const LINK: f64 = 5.5e10;
const LINKS: f64 = 1.56e11;
/// Bytes per second that a thread and a machine move in memory (benches/runs/2026-11-25-sixteen-cores).
const THREAD_MEMORY: f64 = 1.4e10;
const HOST_MEMORY: f64 = 8.4e10;

/// The rates of a forecast, in bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct Rates {
    /// What computes: the name of a GPU, or threads.
    pub of: String,
    /// Whether the GPU is assumed, because this machine has none.
    pub assumed: bool,
    /// The memory of a GPU, or of a machine that computes on its processors.
    pub memory: f64,
    /// From a machine's memory to each of its GPUs, if all copy; 0 without GPUs.
    pub copy: f64,
    /// From the other GPUs of a machine to each; 0 without.
    pub reduction: f64,
    /// From the other machines to each; 0 if not given.
    pub exchange: f64,
    /// Reading and checking files, for each GPU or machine.
    pub read: f64,
}

/// Seconds of a later pass or iteration, by stage. Reading, copying and computing take place at the same time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Stages {
    /// Reading what memory does not keep.
    pub read: f64,
    /// Copying to GPUs what they do not keep.
    pub copy: f64,
    /// Computing.
    pub kernel: f64,
    /// Exchanging rows within machines.
    pub reduction: f64,
    /// Exchanging rows between machines.
    pub exchange: f64,
    /// Updating factors.
    pub update: f64,
}

impl Stages {
    /// Names and seconds.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 6] {
        let Self { read, copy, kernel, reduction, exchange, update } = *self;
        [
            ("read", read),
            ("copy", copy),
            ("kernel", kernel),
            ("reduction", reduction),
            ("exchange", exchange),
            ("update", update),
        ]
    }

    fn seconds(&self) -> f64 {
        self.read.max(self.copy).max(self.kernel) + self.reduction + self.exchange + self.update
    }

    fn binds(&self) -> &'static str {
        self.named().into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| name)
    }
}

/// What a number of machines takes.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Machines.
    pub machines: usize,
    /// GPUs or machines that have chunks.
    pub at_work: usize,
    /// Seconds of each pass or iteration but the first.
    pub seconds: f64,
    /// Seconds that the first takes longer: reading the store, sorting nonzeros.
    pub first_seconds: f64,
    /// The stages.
    pub stages: Stages,
    /// The stage that takes longest.
    pub binds: &'static str,
    /// Bytes that each machine receives from the others in a pass or iteration.
    pub exchanged_bytes: f64,
    /// How each mode is divided.
    pub modes: Vec<ModeDivision>,
}

/// How long passes or iterations would take.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// Machines that were asked for.
    pub machines: usize,
    /// GPUs of each; 0 for processors.
    pub devices_per_machine: usize,
    /// What it is computed from.
    pub rates: Rates,
    /// For 1, 2, 4, … machines, until more do not pay, and for the number asked for.
    pub counts: Vec<Estimate>,
    /// The most machines that pay: twice as many take less than a tenth of the time off. `None` without a link.
    pub pays_up_to: Option<usize>,
    /// Remarks.
    pub notes: Vec<String>,
}

impl Forecast {
    /// The estimate for the machines that were asked for.
    #[must_use]
    pub fn asked(&self) -> &Estimate {
        self.counts.iter().find(|at| at.machines == self.machines).unwrap_or(&self.counts[0])
    }
}

/// What every count of machines has in common.
struct Model<'a> {
    engine: &'a Engine,
    store: &'a Store,
    demand: &'a Demand<'a>,
    machines: Machines,
    seconds: Vec<ModeSeconds>,
    facts: Option<Facts>,
    by: Exchange,
    rates: Rates,
}

impl Engine {
    /// Predicts the time of passes over `store` on machines of one kind, by stage, and how many of them pay.
    pub(crate) fn forecast<T: Real>(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        machines: &Machines,
    ) -> Result<Forecast> {
        // Processors multiply out each nonzero of one cover, as in a plan.
        let flat = (machines.devices == 0).then(|| self.options().on_cpu(store));
        let model = Model::new::<T>(self, flat.as_ref().unwrap_or(store), demand, *machines)?;
        let mut notes = Vec::new();
        if machines.devices > 0 && machines.count > 1 {
            notes.push(
                "this version computes on the GPUs of one machine, or on the processors of several".into(),
            );
        }
        let mut counts = vec![model.at::<T>(1)?];
        let mut pays_up_to = None;
        while machines.link.is_some()
            && (pays_up_to.is_none() || counts[counts.len() - 1].machines * 2 <= machines.count)
        {
            let last = &counts[counts.len() - 1];
            let (machines, before) = (last.machines, last.seconds);
            if machines >= MACHINES_MAX {
                break;
            }
            let next = model.at::<T>(2 * machines)?;
            if pays_up_to.is_none() && next.seconds > (1.0 - PAYS) * before {
                pays_up_to = Some(machines);
            }
            counts.push(next);
        }
        if !counts.iter().any(|at| at.machines == machines.count) {
            counts.push(model.at::<T>(machines.count)?);
            counts.sort_by_key(|at| at.machines);
        }
        let asked = counts.iter().find(|at| at.machines == machines.count).map_or(0, |at| at.at_work);
        let members = machines.count * machines.devices.max(1);
        if asked < members {
            let what = if machines.devices > 0 { "GPUs" } else { "machines" };
            notes.push(format!(
                "the store has chunks for {asked} of {members} {what}; pack it with smaller `chunk_bytes`"
            ));
        }
        let pays_up_to = pays_up_to.or(machines.link.map(|_| MACHINES_MAX));
        let (count, devices_per_machine, rates) = (machines.count, machines.devices, model.rates);
        Ok(Forecast { machines: count, devices_per_machine, rates, counts, pays_up_to, notes })
    }
}

impl<'a> Model<'a> {
    fn new<T: Real>(
        engine: &'a Engine,
        store: &'a Store,
        demand: &'a Demand<'a>,
        machines: Machines,
    ) -> Result<Self> {
        if machines.count > 1 && machines.link.is_none() {
            return Err(Error::request("several machines need the rate of the `link` between them"));
        }
        let exchange = machines.link.unwrap_or(0.0);
        let threads = engine.threads();
        if machines.devices == 0 {
            let memory = HOST_MEMORY.min(THREAD_MEMORY * threads as f64);
            let of = format!("{threads} threads, assumed");
            let (copy, reduction, read) = (0.0, 0.0, LOADED_PER_SECOND.min(memory));
            let rates = Rates { of, assumed: true, memory, copy, reduction, exchange, read };
            // What processors take is estimated for all modes ([`Model::on_host`]), and they do not divide rows.
            let seconds = vec![ModeSeconds::default(); demand.modes.len()];
            let (facts, by) = (None, Exchange::Nccl);
            return Ok(Self { engine, store, demand, machines, seconds, facts, by, rates });
        }
        let is_here = engine.options().device != Device::Cpu && gpu::is_installed();
        let own = if is_here { Some(engine.gpu()?) } else { None };
        let facts = own.as_ref().map_or_else(Facts::assumed, |gpu| gpu.facts.clone());
        let link = own.as_ref().map_or(Ok(LINK), |gpu| gpu::link_rate(gpu, store))?;
        let others = if is_here { gpu::count()?.min(machines.devices) } else { 1 };
        let by = match others {
            1 => Exchange::Nccl,
            _ => gpu::exchange(&engine.gpus(&(0..others).collect::<Vec<_>>())?)?.0,
        };
        let rates = Rates {
            of: facts.name.clone(),
            assumed: own.is_none(),
            memory: facts.memory_rate(),
            copy: link.min(LINKS / machines.devices as f64),
            reduction: by.bytes_per_second(),
            exchange,
            read: LOADED_PER_SECOND,
        };
        let seconds = gpu::seconds::<T>(&facts, store, demand)?;
        Ok(Self { engine, store, demand, machines, seconds, facts: Some(facts), by, rates })
    }

    /// The estimate for `count` machines.
    fn at<T: Real>(&self, count: usize) -> Result<Estimate> {
        let (store, demand) = (self.store, self.demand);
        let devices = self.machines.devices.max(1);
        let link = if self.rates.exchange > 0.0 { self.rates.exchange } else { f64::INFINITY };
        let together = Together { machines: count, devices, by: self.by, link };
        let members = together.members();
        // What is divided follows from the same numbers as in a plan.
        let modes = forecasts(store, demand, &self.seconds, &together, 1.0 / members as f64);
        let meeting = if devices > 1 { MEETING } else { 0.0 };
        let (divide, order) = (self.engine.divide()?, self.engine.options().device_order);
        let by_rows = match divide {
            _ if self.facts.is_none() || members == 1 => Vec::new(),
            Divide::Rows => (0..modes.len()).collect(),
            Divide::Auto
                if demand.passes > 1
                    && matches!(order, DeviceOrder::Auto | DeviceOrder::Target | DeviceOrder::Fibers) =>
            {
                fastest(&modes, demand.passes, loading(store, members)).0
            }
            _ => Vec::new(),
        };
        let nnz = of_chunks(store);
        let parts = cut(&nnz, &vec![1.0 / members as f64; members]);
        let largest = parts.iter().max_by_key(|part| nnz[(*part).clone()].iter().sum::<u64>());
        let largest = largest.cloned().unwrap_or(0..0);
        let seconds: Vec<_> = self.seconds.iter().map(ModeSeconds::at_least).collect();
        let part = nnz[largest.clone()].iter().sum::<u64>() as f64 / store.manifest().nnz.max(1) as f64;
        let expected = forecasts(store, demand, &seconds, &together, part);
        let (plan, by_rows) = match self.plan::<T>(&by_rows, &together, &largest) {
            Err(Error::Request(_)) if !by_rows.is_empty() && divide == Divide::Auto => {
                (self.plan::<T>(&[], &together, &largest)?, Vec::new())
            }
            plan => (plan?, by_rows),
        };
        let mut stages = self.kept(plan.as_ref(), &largest, devices);
        // Chunks that do not stay are computed from as they are.
        let streams = order == DeviceOrder::Store
            || plan.as_ref().is_some_and(|plan| plan.later_pass.bytes > 0 && !plan.streams_copies());
        let (mut exchanged, mut division_of) = (0.0, Vec::new());
        let between = 1.0 - 1.0 / count as f64;
        for (at, &mode) in demand.modes.iter().enumerate() {
            let sums = matrix_bytes::<f64>(store, demand, mode);
            let by = if by_rows.contains(&at) { Divide::Rows } else { Divide::Chunks };
            let ModeForecast { rows, chunks, in_store_order, one, sums: [within, others], .. } = expected[at];
            stages.kernel += match by {
                Divide::Rows => rows,
                _ if streams || !by_rows.is_empty() => in_store_order - within - others,
                _ if members == 1 => one,
                _ => chunks - within - others,
            };
            if by == Divide::Chunks {
                stages.reduction += within + meeting;
                stages.exchange += others;
                exchanged += sums * between;
            }
            let why = if self.facts.is_some() { modes[at].text() } else { String::new() };
            division_of.push(ModeDivision { why, ..division(mode, by) });
            if demand.starts.is_some() {
                exchanged += matrix_bytes::<T>(store, demand, mode) * between;
                stages.reduction += meeting;
            } else {
                // The first machine gets the results.
                stages.exchange += sums * between / link;
            }
        }
        let host = self.facts.is_none().then(|| self.on_host::<T>(count, &largest));
        if let Some(OnHost { pass, has_copies, .. }) = host {
            stages.kernel = pass;
            if has_copies {
                // No chunk is needed again.
                stages.read = 0.0;
            }
        }
        let memory = self.rates.memory;
        let Updating { update, gathered } = updating::<T>(store, demand, &together, memory);
        stages.update = update;
        stages.reduction += gathered[0];
        stages.exchange += gathered[1];
        let image = |range: &Range<usize>| {
            store.manifest().chunks[range.clone()].iter().map(|chunk| chunk.image_bytes).sum::<u64>() as f64
        };
        let (read, built) = match by_rows.len() {
            0 => (image(&largest), host.map_or(0.0, |host| host.built)),
            _ => (image(&(0..nnz.len())), by_rows.iter().map(|&at| self.seconds[at].built).sum()),
        };
        Ok(Estimate {
            machines: count,
            at_work: if by_rows.is_empty() { members.min(nnz.len()) } else { members },
            seconds: stages.seconds(),
            first_seconds: read / self.rates.read + built,
            binds: stages.binds(),
            stages,
            exchanged_bytes: exchanged,
            modes: division_of,
        })
    }

    /// The plan of the GPU with most nonzeros; `None` without GPUs.
    fn plan<T: Real>(
        &self,
        by_rows: &[usize],
        together: &Together,
        chunks: &Range<usize>,
    ) -> Result<Option<DevicePlan>> {
        let Some(facts) = &self.facts else { return Ok(None) };
        let (demand, options) = (self.demand, self.engine.options());
        let limits = DeviceLimits {
            memory: options.device_memory,
            lanes: options.lanes,
            host_memory: 0,
            passes: demand.passes,
            order: options.device_order,
            deterministic: false,
        };
        let like = (facts, self.rates.copy);
        if by_rows.is_empty() {
            return gpu::plan_like::<T>(like, &self.store.of_chunks(chunks.clone()), demand, &limits, None)
                .map(Some);
        }
        let share = Share {
            from: 0.0,
            to: 1.0 / together.members() as f64,
            cost: RowCost::of(self.store.manifest().shape.order(), demand.starts.is_some()),
            by_rows: by_rows.iter().map(|&at| demand.modes[at]).collect(),
            chunks: chunks.clone(),
        };
        gpu::plan_like::<T>(like, self.store, demand, &limits, Some(share)).map(Some)
    }

    /// What a later pass or iteration copies and reads, because GPUs and memory do not keep it.
    fn kept(&self, plan: Option<&DevicePlan>, chunks: &Range<usize>, devices: usize) -> Stages {
        let memory = self.engine.options().memory.unwrap_or_else(machine::available_memory) as f64;
        // Passes of a decomposition, and of processes, compute one mode each.
        let alone = self.demand.starts.is_some() || plan.is_none();
        let times = if alone { self.demand.modes.len() as f64 } else { 1.0 };
        let later = match plan {
            Some(plan) => plan.later_pass.bytes as f64,
            None => self.store.manifest().chunks[chunks.clone()]
                .iter()
                .map(|chunk| chunk.image_bytes)
                .sum::<u64>() as f64,
        };
        let copy = if plan.is_some() { later * times / self.rates.copy } else { 0.0 };
        let held = self.demand.beside_gpu.max(if plan.is_some() { 0 } else { self.demand.on_cpu }) as f64;
        let read = (later * devices as f64 - (memory - held).max(0.0)).max(0.0) / devices as f64;
        Stages { read: read * times / self.rates.read, copy, ..Stages::default() }
    }

    /// What the processors of the machine with `chunks` take, if there are `count` machines: by the rule of a plan.
    fn on_host<T: Real>(&self, count: usize, chunks: &Range<usize>) -> OnHost {
        let (demand, options, threads) = (self.demand, self.engine.options(), self.engine.threads());
        let share = self.store.of_chunks(chunks.clone());
        let manifest = share.manifest();
        // Processes compute one mode in a pass, and those of MTTKRP keep no copies.
        let alone = demand.starts.is_some() || count > 1;
        let copies = ModeSortedDemand::new::<T>(manifest, demand.modes, demand.rank, threads, alone);
        let memory = self.engine.memory_with_copies(machine::available_memory());
        let fits = |bytes: u64| demand.on_cpu.saturating_add(bytes) <= memory;
        let has_copies = (demand.starts.is_some() || count == 1)
            && demand.passes > 1
            && copies.wanted(demand.passes, options.device_order).0
            && copies.bytes.is_some_and(fits);
        let costs = copies.costs;
        let (pass, built) =
            if has_copies { (costs.from_copies, costs.building) } else { (costs.in_store_order, 0.0) };
        let [pass, built] = [pass, built].map(|cost| Costs::seconds(cost, manifest.nnz, threads));
        OnHost { pass, built, has_copies }
    }
}

/// Estimated seconds on the processors of a machine.
#[derive(Clone, Copy)]
struct OnHost {
    /// Of a pass that is not the first, or an iteration.
    pass: f64,
    /// Of building copies in the first.
    built: f64,
    /// Whether there are copies.
    has_copies: bool,
}
