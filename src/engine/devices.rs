//! Several GPUs: which ones are used, and the part of a store that each gets.

use super::demand::Demand;
use super::gpu::{self, Gpu};
use super::{Engine, machine};
use crate::backend::device::{DeviceLimits, staging_bytes};
use crate::backend::devices::{
    DevicePart, DevicesPlan, Divide, ExchangePlan, ModeDivision, cut, scratch_bytes,
};
use crate::backend::plan::{DevicePlan, RowCost, Share};
use crate::dense::Real;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::{Limits, Plan, program_bytes, too_little};
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
            None => self.options().device_number,
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
        let divide = self.divide(limits)?;
        if divide == Divide::Rows {
            return self.plan_rows::<T>(store, demand, numbers, limits).map(|plan| (plan, Vec::new()));
        }
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
        let modes: Vec<_> = demand.modes.iter().map(|&mode| division(mode, Divide::Chunks)).collect();
        let exchange = exchange::<T>(&gpus, store, demand, &modes, scratch_bytes)?;
        let parts = self.host_parts(store, best.unwrap_or_default(), demand)?;
        Ok((DevicesPlan { parts, exchange, modes }, notes))
    }

    /// How several GPUs divide the work, as the options say.
    fn divide(&self, limits: &DeviceLimits) -> Result<Divide> {
        match self.options().divide {
            Divide::Chunks if limits.deterministic => Err(Error::request(
                "`deterministic` results of several GPUs come from ranges of rows: each row is added up by one GPU; take `Divide::Rows`",
            )),
            _ if limits.deterministic => Ok(Divide::Rows),
            divide => Ok(divide),
        }
    }

    /// Plans passes that divide every mode by rows.
    fn plan_rows<T: Real>(
        &self,
        store: &Store,
        demand: &Demand<'_>,
        numbers: &[usize],
        limits: &DeviceLimits,
    ) -> Result<DevicesPlan> {
        let (gpus, count) = (self.gpus(numbers)?, numbers.len());
        let limits = DeviceLimits { host_memory: limits.host_memory / count as u64, ..*limits };
        let (nnz, cost) =
            (of_chunks(store), RowCost::of(store.manifest().shape.order(), demand.starts.is_some()));
        let rates: Vec<f64> = gpus.iter().map(|gpu| memory_rate(gpu::memory_rate(gpu))).collect();
        let total: f64 = rates.iter().sum();
        let end = |number: usize| rates[..number].iter().sum::<f64>() / total;
        let shares: Vec<f64> = rates.iter().map(|rate| rate / total).collect();
        let all = 0..nnz.len();
        let part = |(number, (gpu, chunks)): (usize, (&Gpu, Range<usize>))| -> Result<Part> {
            let to = if number + 1 == count { 1.0 } else { end(number + 1) };
            let share = Share { from: end(number), to, cost, by_rows: demand.modes.to_vec(), chunks };
            let plan = gpu::plan_part::<T>(gpu, store, demand, &limits, (0, Some(share)))?;
            let seconds = pass_seconds::<T>(&plan, store, demand) * shares[number];
            Ok(Part { chunks: all.clone(), store: store.of_chunks(all.clone()), plan, seconds })
        };
        let parts = gpus.iter().zip(cut(&nnz, &shares)).enumerate().map(part).collect::<Result<Vec<_>>>()?;
        let modes: Vec<_> = demand.modes.iter().map(|&mode| division(mode, Divide::Rows)).collect();
        let exchange = exchange::<T>(&gpus, store, demand, &modes, 0)?;
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
        let workers =
            options.workers.map_or((self.threads() / count).clamp(2, 4), |all| (all / count).max(1));
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
        let direct = made.iter().any(|part| part.host.direct_reads) || reads_past(store, operation, &limits);
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
fn division(mode: usize, by: Divide) -> ModeDivision {
    ModeDivision { mode: mode + 1, by, why: String::new() }
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

fn of_chunks(store: &Store) -> Vec<u64> {
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
    link.seconds.max(rows / memory_rate(plan.device.memory_bytes_per_second))
}

/// Bytes per second that a device's memory moves, if the driver reports it; it does so for no device or for all.
fn memory_rate(reported: f64) -> f64 {
    if reported > 0.0 && reported.is_finite() { reported } else { 3.35e12 }
}
