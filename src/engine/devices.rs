//! Several GPUs: which ones are used, and the part of a store that each gets.

use super::demand::Demand;
use super::gpu::{self, Gpu};
use super::{Engine, machine};
use crate::backend::device::{DeviceLimits, DeviceOrder, staging_bytes};
use crate::backend::devices::{
    DevicePart, DevicesPlan, Divide, ExchangePlan, ModeDivision, ModeForecast, Together, cut, fastest,
    scratch_bytes,
};
use crate::backend::plan::{DevicePlan, ModeSeconds, RowCost, Share};
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::{Limits, Plan, default_workers, program_bytes, too_little};
use std::ops::Range;

/// Which GPUs compute together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSet {
    /// All that the driver shows to this process.
    All,
    /// The GPUs with these numbers, from 0. Their sums are added in this order.
    Only(Vec<usize>),
}

/// Bytes of chunks that a device loads per second in a first pass: reading, checking and copying.
pub(super) const LOADED_PER_SECOND: f64 = 5e9;
/// One of several GPUs computes if it is expected to take less than this share of the time: its results still pass through the exchange of
/// several, and forecasts err.
const ONE: f64 = 0.75;
/// How many times chunks are divided again, by the predicted times of passes over the parts.
const ROUNDS: usize = 4;
/// Parts whose seconds differ by no more than this count as equal.
const EQUAL: f64 = 1.05;

/// A device with its part of a store.
struct Part {
    chunks: Range<usize>,
    store: Store,
    plan: DevicePlan,
    seconds: f64,
}

impl Engine {
    /// The numbers of the GPUs that compute, if there are several.
    pub(crate) fn several(&self) -> Result<Option<Vec<usize>>> {
        let numbers = match &self.options().devices {
            None => return Ok(None),
            Some(DeviceSet::All) => (0..gpu::count()?).collect(),
            Some(DeviceSet::Only(numbers)) => numbers.clone(),
        };
        if let Some((_, &twice)) = numbers.iter().enumerate().find(|(i, n)| numbers[..*i].contains(n)) {
            return Err(Error::request(format!("GPU {twice} is named twice among `devices`")));
        }
        Ok((numbers.len() > 1).then_some(numbers))
    }

    /// The number of the GPU that computes, if there is only one.
    pub(crate) fn device_number(&self) -> usize {
        match &self.options().devices {
            Some(DeviceSet::Only(numbers)) if numbers.len() == 1 => numbers[0],
            Some(_) => 0,
            // Each process of a machine has one of its own.
            None => self.options().device_number + self.members().map_or(0, |group| group.on_machine().0),
        }
    }

    /// An error if several GPUs are requested, because this operation uses only one.
    pub(crate) fn refuse_several(&self) -> Result<()> {
        match self.several()? {
            None => Ok(()),
            Some(_) => Err(Error::request(
                "several GPUs compute MTTKRP and CP decompositions; name one of them with `device` for this operation",
            )),
        }
    }

    /// Plans passes on the GPUs with these numbers, for an operation on factors. Chunks are divided so that passes over them take the same
    /// time on each.
    pub(super) fn plan_devices<T: Real>(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        numbers: &[usize],
        limits: &DeviceLimits,
    ) -> Result<(DevicesPlan, Vec<String>)> {
        let modes = |by| demand.modes.iter().map(|&mode| division(mode, by)).collect::<Vec<_>>();
        match self.divide()? {
            Divide::Rows => {
                let plan = self.plan_rows::<T>(store, demand, numbers, limits, modes(Divide::Rows))?;
                Ok((plan, Vec::new()))
            }
            Divide::Auto
                if demand.passes > 1
                    && matches!(
                        limits.order,
                        DeviceOrder::Auto | DeviceOrder::Target | DeviceOrder::Fibers
                    ) =>
            {
                self.plan_fastest::<T>(store, demand, numbers, limits)
            }
            _ => self.plan_chunks::<T>(store, demand, numbers, limits, modes(Divide::Chunks)),
        }
    }

    /// Plans passes as they are expected to take the least time.
    fn plan_fastest<T: Real>(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        numbers: &[usize],
        limits: &DeviceLimits,
    ) -> Result<(DevicesPlan, Vec<String>)> {
        let (gpus, count) = (self.gpus(numbers)?, numbers.len());
        let together = Together::on_one_machine(count, gpu::exchange(&gpus)?.0);
        let seconds = gpu::seconds::<T>(&gpus[0].facts, store, demand)?;
        let modes = forecasts(store, demand, &seconds, &together, 1.0 / count as f64);
        let (by_rows, seconds) = fastest(&modes, demand.passes, loading(store, count));
        let divisions = |by_rows: &[usize]| {
            let division = |(at, &mode): (usize, &usize)| {
                let by = if by_rows.contains(&at) { Divide::Rows } else { Divide::Chunks };
                ModeDivision { why: modes[at].text(), ..division(mode, by) }
            };
            demand.modes.iter().enumerate().map(division).collect::<Vec<_>>()
        };
        let updated = |together: &Together| {
            let Updating { update, gathered } =
                updating::<T>(store, demand, together, gpus[0].facts.memory_rate());
            update + gathered.iter().sum::<f64>()
        };
        let more = updated(&together) - updated(&Together::on_one_machine(1, together.by));
        let one: f64 = modes.iter().map(|mode| mode.one).sum();
        if one < ONE * (seconds + more) {
            let (plan, mut notes) =
                self.plan_chunks::<T>(store, demand, &numbers[..1], limits, divisions(&[]))?;
            let ms = |seconds: f64| seconds * 1e3;
            notes.push(format!(
                "one of {count} GPUs computes: {:.2} ms a pass, {:.2} ms on all; `divide` makes all compute",
                ms(one),
                ms(seconds + more)
            ));
            return Ok((plan, notes));
        }
        if !by_rows.is_empty() {
            match self.plan_rows::<T>(store, demand, numbers, limits, divisions(&by_rows)) {
                Ok(plan) => return Ok((plan, Vec::new())),
                // They have no room for all chunks.
                Err(Error::Request(why)) => {
                    let (plan, mut notes) =
                        self.plan_chunks::<T>(store, demand, numbers, limits, divisions(&[]))?;
                    notes.push(format!("rows are not divided: {why}"));
                    return Ok((plan, notes));
                }
                Err(error) => return Err(error),
            }
        }
        self.plan_chunks::<T>(store, demand, numbers, limits, divisions(&[]))
    }

    /// Plans passes that divide chunks.
    fn plan_chunks<T: Real>(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        numbers: &[usize],
        limits: &DeviceLimits,
        modes: Vec<ModeDivision>,
    ) -> Result<(DevicesPlan, Vec<String>)> {
        let (nnz, mut notes) = (of_chunks(store), Vec::new());
        let count = numbers.len().min(nnz.len());
        if count < numbers.len() {
            let what =
                format!("the store has {} chunks, which keep {count} of {} GPUs", nnz.len(), numbers.len());
            notes.push(format!("{what} at work; pack it with smaller `chunk_bytes`"));
        }
        let gpus = self.gpus(&numbers[..count])?;
        let rows = demand.modes.iter().map(|&mode| store.manifest().shape.dims()[mode] as usize);
        let scratch_bytes =
            rows.clone().map(|rows| scratch_bytes(rows, demand.rank, count)).max().unwrap_or(0);
        let limits = DeviceLimits { host_memory: limits.host_memory / count as u64, ..*limits };
        let plan_part = |(gpu, chunks): (&Gpu, Range<usize>)| -> Result<Part> {
            let part = store.of_chunks(chunks.clone());
            let plan = gpu::plan_part::<T>(gpu, &part, demand, &limits, (scratch_bytes, None))?;
            let seconds = pass_seconds::<T>(&plan, &part, demand);
            Ok(Part { chunks, store: part, plan, seconds })
        };
        let mut shares = vec![1.0 / count as f64; count];
        let mut best: Option<Vec<Part>> = None;
        let longest = |parts: &[Part]| parts.iter().map(|part| part.seconds).fold(0.0, f64::max);
        let mut before = Vec::new();
        for _ in 0..ROUNDS {
            let ranges = cut(&nnz, &shares);
            if ranges == before {
                break;
            }
            let parts = gpus.iter().zip(ranges.clone()).map(plan_part).collect::<Result<Vec<_>>>()?;
            before = ranges;
            let rates: Vec<f64> =
                parts.iter().map(|part| part.store.manifest().nnz as f64 / part.seconds.max(1e-12)).collect();
            shares = rates.iter().map(|rate| rate / rates.iter().sum::<f64>()).collect();
            let least = parts.iter().map(|part| part.seconds).fold(f64::INFINITY, f64::min);
            let is_equal = longest(&parts) <= EQUAL * least;
            if best.as_ref().is_none_or(|best| longest(&parts) < longest(best)) {
                best = Some(parts);
            }
            if is_equal {
                break;
            }
        }
        let exchange = exchange::<T>(&gpus, store, demand, &modes, scratch_bytes)?;
        let parts = self.host_parts(store, best.unwrap_or_default(), demand)?;
        Ok((DevicesPlan { parts, exchange, modes }, notes))
    }

    /// How several GPUs divide the work, as the options say.
    pub(super) fn divide(&self) -> Result<Divide> {
        let deterministic = self.options().deterministic;
        match self.options().divide {
            Divide::Chunks if deterministic => Err(Error::request(
                "`deterministic` results of several GPUs come from ranges of rows: each row is added up by one GPU; take `Divide::Rows`",
            )),
            _ if deterministic => Ok(Divide::Rows),
            divide => Ok(divide),
        }
    }

    /// Plans passes that divide some modes by rows.
    fn plan_rows<T: Real>(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        numbers: &[usize],
        limits: &DeviceLimits,
        modes: Vec<ModeDivision>,
    ) -> Result<DevicesPlan> {
        let (gpus, count) = (self.gpus(numbers)?, numbers.len());
        let limits = DeviceLimits { host_memory: limits.host_memory / count as u64, ..*limits };
        let (nnz, cost) =
            (of_chunks(store), RowCost::of(store.manifest().shape.order(), demand.starts.is_some()));
        let rates: Vec<f64> = gpus.iter().map(|gpu| gpu.facts.memory_rate()).collect();
        let total: f64 = rates.iter().sum();
        let end = |number: usize| rates[..number].iter().sum::<f64>() / total;
        let shares: Vec<f64> = rates.iter().map(|rate| rate / total).collect();
        let all = 0..nnz.len();
        let by = |by| modes.iter().filter(move |mode| mode.by == by).map(|mode| mode.mode - 1);
        let by_rows: Vec<usize> = by(Divide::Rows).collect();
        let added = by(Divide::Chunks).map(|mode| store.manifest().shape.dims()[mode] as usize);
        let scratch = added.map(|rows| scratch_bytes(rows, demand.rank, count)).max().unwrap_or(0);
        let part = |(number, (gpu, chunks)): (usize, (&Gpu, Range<usize>))| -> Result<Part> {
            let to = if number + 1 == count { 1.0 } else { end(number + 1) };
            let share = Share { from: end(number), to, cost, by_rows: by_rows.clone(), chunks };
            let plan = gpu::plan_part::<T>(gpu, store, demand, &limits, (scratch, Some(share)))?;
            let seconds = pass_seconds::<T>(&plan, store, demand) * shares[number];
            Ok(Part { chunks: all.clone(), store: store.of_chunks(all.clone()), plan, seconds })
        };
        let parts = gpus.iter().zip(cut(&nnz, &shares)).enumerate().map(part).collect::<Result<Vec<_>>>()?;
        let exchange = exchange::<T>(&gpus, store, demand, &modes, scratch)?;
        Ok(DevicesPlan { parts: self.host_parts(store, parts, demand)?, exchange, modes })
    }

    /// Plans the host memory of each part. All parts get the same share of the limit.
    fn host_parts(&self, store: &Store, parts: Vec<Part>, demand: &Demand<'_>) -> Result<Vec<DevicePart>> {
        let (options, count) = (self.options(), parts.len());
        let limits = self.limits(demand.passes);
        let operation = beside(demand, count) + parts.iter().map(|part| part.plan.host_bytes).sum::<u64>();
        let common = program_bytes(self.threads()).saturating_add(operation);
        let least: u64 = parts
            .iter()
            .map(|part| {
                let worker = part.store.buffer_bytes() + part.store.scratch_bytes();
                part.store.held_bytes() + program_bytes(1) - program_bytes(0) + worker as u64
            })
            .sum();
        let bound = limits.memory.unwrap_or(limits.available);
        let least = common.saturating_add(least).max(program_bytes(self.threads()) + demand.afterwards);
        if least > bound {
            let of_which = format!(", for {count} GPUs");
            return Err(too_little(least, bound, limits.memory.is_some(), &of_which, "take fewer GPUs"));
        }
        let share = |bytes: u64| common + bytes.saturating_sub(common) / count as u64;
        let direct = reads_past(store, operation, &limits);
        let by_default = || default_workers(self.threads() / count, direct);
        let workers = options.workers.map_or_else(by_default, |all| (all / count).max(1));
        let part = |Part { chunks, store: own, plan, seconds }: Part| {
            let limits = Limits {
                memory: limits.memory.map(share),
                available: share(limits.available),
                workers: Some(workers),
                held: plan.held_chunks(),
                ..limits
            };
            let host = self.plan_host(&own, operation, &limits)?;
            Ok(DevicePart { chunks, nnz: own.manifest().nnz, seconds, host, device: plan })
        };
        let mut made = parts.into_iter().map(part).collect::<Result<Vec<DevicePart>>>()?;
        // All parts are read in the same way, with or without the page cache.
        let direct = direct || made.iter().any(|part| part.host.direct_reads);
        for part in &mut made {
            part.host.direct_reads = direct;
        }
        Ok(made)
    }

    /// The host memory of all parts together.
    pub(super) fn host_of_all(&self, plan: &DevicesPlan, demand: &Demand<'_>) -> Result<Plan> {
        let hosts = || plan.parts.iter().map(|part| &part.host);
        let program = program_bytes(self.threads());
        let Some(first) = hosts().next() else {
            return Err(Error::request("no GPU has a part of the store"));
        };
        let program_bytes = program + hosts().map(|host| host.program_bytes - program).sum::<u64>();
        let passes = hosts()
            .map(|host| host.memory_bytes - host.program_bytes - host.operation_bytes)
            .fold(first.operation_bytes, u64::saturating_add);
        let kept = plan.parts.iter().flat_map(|part| {
            let start = part.chunks.start;
            part.host.kept.iter().map(move |number| start + number)
        });
        Ok(Plan {
            workers: hosts().map(|host| host.workers).sum(),
            buffers_per_worker: hosts().map(|host| host.buffers_per_worker).max().unwrap_or(0),
            buffer_bytes: hosts().map(|host| host.buffer_bytes).max().unwrap_or(0),
            scratch_bytes: hosts().map(|host| host.scratch_bytes).max().unwrap_or(0),
            program_bytes,
            kept: kept.collect(),
            kept_bytes: hosts().map(|host| host.kept_bytes).sum(),
            afterwards_bytes: demand.afterwards,
            memory_bytes: program_bytes.saturating_add(passes.max(demand.afterwards)),
            file_bytes: hosts().map(|host| host.file_bytes).sum(),
            chunks: hosts().map(|host| host.chunks).sum(),
            ..first.clone()
        })
    }

    /// The host memory that copies may use besides everything else.
    pub(super) fn host_room(&self) -> u64 {
        self.options().memory.unwrap_or_else(|| machine::available_memory() / 2)
    }
}

/// `mode`, from 0, divided in the only way that there is.
pub(super) fn division(mode: usize, by: Divide) -> ModeDivision {
    ModeDivision { mode: mode + 1, by, why: String::new() }
}

/// The forecast of each mode, from the seconds on one device. The device with most chunks has the fraction `largest` of the nonzeros.
pub(super) fn forecasts(
    store: &Store,
    demand: &Demand<'_>,
    seconds: &[ModeSeconds],
    together: &Together,
    largest: f64,
) -> Vec<ModeForecast> {
    let manifest = store.manifest();
    let mode = |(&mode, seconds): (&usize, &ModeSeconds)| {
        let longest = (manifest.longest_row_bounds[mode] as f64 / manifest.nnz.max(1) as f64).min(1.0);
        let sum_bytes = matrix_bytes::<f64>(store, demand, mode);
        ModeForecast::new(seconds, together, (longest, largest), sum_bytes)
    };
    demand.modes.iter().zip(seconds).map(mode).collect()
}

/// Seconds of loading the chunks of the others, as every one of `count` devices does if it computes some rows.
pub(super) fn loading(store: &Store, count: usize) -> f64 {
    let bytes: u64 = store.manifest().chunks.iter().map(|chunk| chunk.image_bytes).sum();
    bytes as f64 * (1.0 - 1.0 / count as f64) / LOADED_PER_SECOND
}

/// Seconds of an iteration's updates.
pub(super) struct Updating {
    /// Each device updates the rows that it owns.
    pub update: f64,
    /// It gathers those of the others, within machines and between them.
    pub gathered: [f64; 2],
}

/// The updates of an iteration of a decomposition, if `demand` is one.
pub(super) fn updating<T: Real>(
    store: &Store,
    demand: &Demand<'_>,
    together: &Together,
    memory_rate: f64,
) -> Updating {
    if demand.starts.is_none() {
        return Updating { update: 0.0, gathered: [0.0; 2] };
    }
    let each = |&mode: &usize| matrix_bytes::<T>(store, demand, mode);
    let update = 4.0 * demand.modes.iter().map(each).sum::<f64>() / memory_rate / together.members() as f64;
    let gathered = demand.modes.iter().map(|mode| together.exchanged(each(mode)));
    let gathered = gathered.fold([0.0; 2], |[within, between], [a, b]| [within + a, between + b]);
    Updating { update, gathered }
}

/// Bytes of a row of `T` for each row of a mode, from 0.
pub(super) fn matrix_bytes<T>(store: &Store, demand: &Demand<'_>, mode: usize) -> f64 {
    f64::from(store.manifest().shape.dims()[mode]) * (demand.rank * size_of::<T>()) as f64
}

/// How `gpus` exchange rows of modes that are divided so.
fn exchange<T: Real>(
    gpus: &[Gpu],
    store: &Store,
    demand: &Demand<'_>,
    modes: &[ModeDivision],
    scratch_bytes: u64,
) -> Result<ExchangePlan> {
    let (by, why) = gpu::exchange(gpus)?;
    let elements =
        |mode: &ModeDivision| u64::from(store.manifest().shape.dims()[mode.mode - 1]) * demand.rank as u64;
    let added = modes.iter().filter(|mode| mode.by != Divide::Rows).map(elements).sum::<u64>();
    // Of a decomposition rows of the factors come back besides.
    let returned = if demand.starts.is_some() { modes.iter().map(elements).sum() } else { 0 };
    let all = added * size_of::<f64>() as u64 + returned * size_of::<T>() as u64;
    let bytes = all / gpus.len() as u64 * (gpus.len() as u64 - 1);
    Ok(ExchangePlan { by, why, bytes, scratch_bytes })
}

pub(super) fn of_chunks(store: &Store) -> Vec<u64> {
    store.manifest().chunks.iter().map(|chunk| chunk.nnz).collect()
}

/// Whether files are read without the page cache, because it could not hold all of them.
fn reads_past(store: &Store, operation: u64, limits: &Limits) -> bool {
    let bytes: u64 = store.manifest().chunks.iter().map(|chunk| chunk.file_bytes).sum();
    bytes.saturating_add(operation) > limits.available
}

/// Bytes of host memory for this number of GPUs. Each transfers factors and results through its own buffers.
pub(super) fn beside(demand: &Demand<'_>, devices: usize) -> u64 {
    demand.beside_gpu + staging_bytes(demand.beside_gpu) * (devices as u64).saturating_sub(1)
}

/// A lower bound for the seconds of a later pass over a device's part, from the speed of its link and memory. Parts are compared
/// by this number.
fn pass_seconds<T>(plan: &DevicePlan, part: &Store, demand: &Demand<'_>) -> f64 {
    let link = if demand.passes > 1 { plan.later_pass } else { plan.first_pass };
    let order = part.manifest().shape.order();
    let modes = if demand.starts.is_some() { 1 } else { demand.modes.len() };
    let rows = part.manifest().nnz as f64 * (modes * (order - 1) * demand.rank * size_of::<T>()) as f64;
    link.seconds.max(rows / plan.device.memory_rate())
}
