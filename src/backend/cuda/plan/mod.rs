//! Plans the GPU resources of passes before anything is allocated, from a request, the device's facts and a store's manifest. (Manifests of
//! version 1 lack statistics, so headers and some chunks are read too.)

mod choose;
mod host_copies;
mod room;

use super::driver::Device;
use super::expand::{self, resident_bytes};
use super::mode_sorted::check_layouts;
use crate::backend::device::{DeviceLimits, DeviceOrder, Facts};
use crate::backend::plan::{
    BuildPlan, DevicePlan, DeviceRequest, FibersPlan, Gathers, ImageSet, Images, LANES_SHARE, LanesPlan,
    LinkPlan, ModeSeconds, Operation, Place, RangesPlan, Reads, Residence, Room, Shortfall,
};
use crate::error::{Error, Result};
use crate::store::Store;
use bytesize::ByteSize;
use choose::{AlongFibers, Choice, Rates, Samples};
use host_copies::{HostRoom, Planner};
use room::LANES;
use std::sync::Arc;

/// Factors, sums and results of more bytes than this do not stay in an L2 cache.
const CACHED_BYTES: u64 = 64 << 20;

/// Plans passes over `store` on `device` for `operation`.
pub fn plan(
    device: &Arc<Device>,
    store: &Store,
    operation: Operation,
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    let room = Room::of(device, store, limits)?;
    let request = DeviceRequest { operation, limits: *limits, room, shortfalls: Vec::new() };
    make(&device.facts, store, &request)
}

/// The same on an empty device of these facts, with a link of this rate.
pub fn plan_like(
    (facts, link): (&Facts, f64),
    store: &Store,
    operation: Operation,
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    let room = Room::new(facts.total_bytes, link, store, limits);
    make(facts, store, &DeviceRequest { operation, limits: *limits, room, shortfalls: Vec::new() })
}

/// Bytes per second that the link to `device` moves in copies of a chunk's size.
pub fn link_rate(device: &Arc<Device>, store: &Store) -> Result<f64> {
    Ok(Room::of(device, store, &DeviceLimits::default())?.link_bytes_per_second)
}

/// Estimates the times of each mode of `operation`, if one device has all of `store`.
pub fn seconds(facts: &Facts, store: &Store, operation: &Operation) -> Result<Vec<ModeSeconds>> {
    let (samples, rates) = (Samples::new(store, operation)?, Rates::of(facts));
    Ok(operation.modes.iter().map(|&mode| rates.of_store(store, operation, &samples, mode)).collect())
}

/// Makes the plan that replaces `plan` after `shortfall`.
pub fn again(store: &Store, plan: &DevicePlan, shortfall: Shortfall) -> Result<DevicePlan> {
    let mut request = DeviceRequest::clone(&plan.request);
    if matches!(shortfall, Shortfall::NoFibers(_)) {
        request.shortfalls.retain(|known| !matches!(known, Shortfall::Fibers(_)));
    }
    request.shortfalls.push(shortfall);
    let made = make(&plan.device, store, &request)?;
    Ok(if made.as_they_lie { made.with_reasons_of(plan) } else { made })
}

/// Plans a request. The same request, device and store give the same plan. If kernels can read chunks as they lie, they do unless copies are
/// built, which takes nonzeros, converting them once pays, or many slots may hold none.
fn make(facts: &Facts, store: &Store, request: &DeviceRequest) -> Result<DevicePlan> {
    if request.operation.reads != Reads::Either {
        return make_with(facts, store, request);
    }
    let with = |reads| {
        let mut request = request.clone();
        request.operation.reads = reads;
        make_with(facts, store, &request)
    };
    let converted = with(Reads::Nonzeros);
    let sorts =
        |plan: &DevicePlan| plan.copies().next().is_some() || plan.counts_fibers || plan.loads_first();
    // Nonzeros are what was asked for.
    let must_sort = request.limits.deterministic
        || request.operation.share.is_some()
        || !matches!(request.limits.order, DeviceOrder::Auto | DeviceOrder::Store);
    let can_lie = expand::can_lie(store) && expand::are_mostly_nonzeros(store);
    match converted {
        Ok(plan) if sorts(&plan) || is_converted_once(store, &request.operation, &plan) => Ok(plan),
        converted if must_sort || !can_lie => converted,
        converted => {
            let plan = with(Reads::AsTheyLie)?;
            // It says why there are no copies.
            Ok(if let Ok(converted) = converted { plan.with_reasons_of(&converted) } else { plan })
        }
    }
}

/// Whether chunks that all stay on the device are better converted, once. A thread block that reads a tree finds the nodes above its leaves in
/// every pass; if it then computes one mode only, that takes longer than what the tree saves, unless rows are long Kronecker products (by count of instructions).
/// Segments are no slower than what they become (docs/performance.md).
fn is_converted_once(store: &Store, operation: &Operation, plan: &DevicePlan) -> bool {
    /// Columns of a product beside which finding nodes takes little.
    const LONG_ROW: usize = 128;
    let is_long = operation.factor_columns.is_some() && operation.rank >= LONG_ROW;
    let chunks: Vec<_> = operation.modes.iter().map(|&mode| store.chunks_for(mode)).collect();
    let shared = chunks.iter().enumerate().any(|(n, own)| chunks[..n].contains(own));
    plan.resident().0 == store.manifest().chunks.len()
        && expand::too_long(store, Reads::Nonzeros).is_none()
        && !expand::are_segments(store)
        && !is_long
        && (operation.alternating || !shared)
}

/// The same if the request says what is read of trees and segments.
fn make_with(facts: &Facts, store: &Store, request: &DeviceRequest) -> Result<DevicePlan> {
    let mut draft = Draft::new(facts, store, request)?;
    request.shortfalls.iter().try_for_each(|shortfall| draft.apply(shortfall))?;
    draft.check_gathered()?;
    draft.check_sorted()?;
    Ok(draft.finish())
}

/// An unfinished plan.
struct Draft<'a> {
    facts: &'a Facts,
    store: &'a Store,
    request: &'a DeviceRequest,
    /// The order that the request allows.
    which: DeviceOrder,
    lanes: LanesPlan,
    /// Nonzeros at a time, if the operation gathers them.
    gathered: u64,
    /// The number of first chunks that stay on the device.
    resident: usize,
    resident_bytes: u64,
    /// The choice for each part.
    choices: Vec<Choice>,
    build: Option<BuildPlan>,
    fibers: Option<FibersPlan>,
    counts_fibers: bool,
    rows_per_nonzero: Option<f64>,
}

impl<'a> Draft<'a> {
    fn new(facts: &'a Facts, store: &'a Store, request: &'a DeviceRequest) -> Result<Self> {
        let DeviceRequest { operation, limits, room, .. } = request;
        let which = match limits.order {
            DeviceOrder::Store | DeviceOrder::Host if limits.deterministic => {
                return Err(Error::request(
                    "deterministic results on a GPU come from nonzeros that are sorted there",
                ));
            }
            _ if limits.deterministic || operation.share.is_some() => DeviceOrder::Target,
            which => which,
        };
        choose::check(which, store.manifest())?;
        let lanes = LanesPlan {
            count: room.lanes,
            image_bytes: longest(store, operation),
            staging_bytes: expand::staging_bytes(store, operation.reads),
            result_bytes: operation.result_bytes.unwrap_or(0),
        };
        let choices = operation.modes.iter().map(|&mode| Choice::none(store, mode, "")).collect();
        let (resident, resident_bytes, build, rows_per_nonzero) = (0, 0, None, None);
        let mut draft = Self {
            facts,
            store,
            request,
            which,
            lanes,
            gathered: 0,
            resident,
            resident_bytes,
            choices,
            build,
            fibers: None,
            counts_fibers: false,
            rows_per_nonzero,
        };
        if operation.result_bytes.is_none()
            && ((limits.passes > 1 && which != DeviceOrder::Host) || draft.loads_first())
        {
            draft.make_resident();
        }
        match operation.gathers {
            Some(gathers) => draft.fit_gathered(gathers)?,
            None => draft.fit_lanes()?,
        }
        if operation.result_bytes.is_none() {
            draft.consider_copies()?;
        }
        Ok(draft)
    }

    /// Whether the first pass only loads chunks.
    fn loads_first(&self) -> bool {
        self.request.limits.deterministic || self.request.operation.share.is_some()
    }

    fn chunks(&self) -> usize {
        self.store.manifest().chunks.len()
    }

    /// Bytes of the images of chunks from `first` on.
    fn image_bytes(&self, first: usize) -> u64 {
        self.store.manifest().chunks[first..].iter().map(|chunk| chunk.image_bytes).sum()
    }

    /// Bytes that chunk `number` takes if it stays.
    fn resident_bytes_of(&self, number: usize) -> u64 {
        resident_bytes(self.store, number, self.request.operation.reads)
    }

    fn bytes(&self) -> u64 {
        self.bytes_with(self.lanes.count)
    }

    fn bytes_with(&self, lanes: usize) -> u64 {
        let held = self.operation_bytes().saturating_add(self.lanes.bytes_of(lanes));
        held.saturating_add(self.resident_bytes).saturating_add(self.copies_bytes())
    }

    /// Bytes that the operation holds, with what it gathers.
    fn operation_bytes(&self) -> u64 {
        let operation = &self.request.operation;
        let gathered = operation.gathers.map_or(0, |gathers| gathers.bytes(self.gathered));
        operation.bytes.saturating_add(gathered)
    }

    /// The most bytes of device memory that copies take, including while the last one is built.
    fn copies_bytes(&self) -> u64 {
        let Some(build) = &self.build else { return 0 };
        if self.has(Place::Host) {
            return build.gathered_bytes + build.room_bytes + choose::held(&self.request.operation, build);
        }
        let (mut held, mut peak) = (0, 0);
        for Choice { mode, place } in &self.choices {
            if *place == Some(Place::Device) {
                peak = peak.max(held + mode.peak_bytes);
                held += mode.copy_bytes;
            }
        }
        peak + self.fibers.as_ref().map_or(0, |fibers| fibers.bytes)
    }

    /// Whether there are copies in this place.
    fn has(&self, place: Place) -> bool {
        self.choices.iter().any(|choice| choice.place == Some(place))
    }

    /// Keeps all chunks if they fit, otherwise as many of the first as the lanes leave room for.
    fn make_resident(&mut self) {
        let bound = self.request.room.bound;
        let all: u64 = (0..self.chunks()).map(|number| self.resident_bytes_of(number)).sum();
        let staging = self.lanes.staging_bytes.saturating_mul(self.lanes.count as u64);
        if self.request.operation.bytes.saturating_add(all).saturating_add(staging) <= bound {
            (self.resident, self.resident_bytes) = (self.chunks(), all);
            self.lanes.image_bytes = 0;
            return;
        }
        self.hold_first(bound);
    }

    /// Keeps as many of the first chunks as fit beside everything else.
    fn hold_first(&mut self, bound: u64) {
        while self.resident < self.chunks() {
            let bytes = self.resident_bytes_of(self.resident);
            if self.bytes() + bytes > bound {
                break;
            }
            (self.resident, self.resident_bytes) = (self.resident + 1, self.resident_bytes + bytes);
        }
    }

    fn fit_lanes(&mut self) -> Result<()> {
        let Operation { bytes, result_bytes, .. } = self.request.operation;
        let chunk = ("a chunk", self.lanes.image_bytes + self.lanes.staging_bytes);
        let with = |lanes| self.bytes_with(lanes);
        let wanted = self.lanes.count;
        self.lanes.count = if let Some(result_bytes) = result_bytes {
            let parts = [("the operation", bytes), chunk, ("its results", result_bytes)];
            self.request.room.fit(wanted, with, &parts, &[])
        } else {
            let instead = ["fewer modes at a time", "a smaller rank", "`f32`"];
            self.request.room.fit(wanted, with, &[("factors and results", bytes), chunk], &instead)
        }?;
        Ok(())
    }

    /// Gathers all nonzeros if they fit, otherwise as many at a time as fit beside the lanes.
    fn fit_gathered(&mut self, gathers: Gathers) -> Result<()> {
        let DeviceRequest { operation, room, .. } = self.request;
        let (lanes, wanted) = (self.lanes, self.lanes.count);
        let beside = |count| room.bound.checked_sub(operation.bytes.saturating_add(lanes.bytes_of(count)));
        let fitting = |count| gathers.fitting(beside(count)?);
        let all = (1..=wanted).rev().find(|&count| fitting(count) == Some(gathers.nnz));
        let some = beside(0).unwrap_or(0) / LANES_SHARE;
        let few = (1..=wanted).rev().find(|&count| lanes.bytes_of(count) <= some);
        let found = all.into_iter().chain(few).chain([1]).find_map(|count| Some((count, fitting(count)?)));
        if let Some((count, nonzeros)) = found {
            (self.lanes.count, self.gathered) = (count, nonzeros);
            return Ok(());
        }
        let least = gathers.least_bytes();
        let chunk = ("a chunk", lanes.image_bytes + lanes.staging_bytes);
        let parts = [("the matrix and fibers", operation.bytes), chunk, ("nonzeros", least)];
        let with = |count| operation.bytes.saturating_add(lanes.bytes_of(count)).saturating_add(least);
        room.fit(1, with, &parts, &["fewer columns", "`f32`"]).map(drop)
    }

    /// Fails if shortfalls leave room for too few nonzeros at a time.
    fn check_gathered(&self) -> Result<()> {
        match self.request.operation.gathers {
            Some(gathers) if self.gathered < gathers.least() => Err(Error::request(format!(
                "there is device memory for {} nonzeros at a time",
                self.gathered
            ))),
            _ => Ok(()),
        }
    }

    /// The ranges in which nonzeros are gathered, if not all have room.
    fn ranges(&self) -> Option<RangesPlan> {
        let (gathers, nonzeros) = (self.request.operation.gathers?, self.gathered);
        let (nnz, bound) = (gathers.nnz, ByteSize(self.request.room.bound));
        let why =
            format!("all {nnz} nonzeros take {} on the device, of {bound}", ByteSize(gathers.bytes(nnz)));
        let passes = 1 + nnz.div_ceil(nonzeros.max(1));
        (nonzeros < nnz).then_some(RangesPlan { nonzeros, passes, why })
    }

    /// Chooses what serves each mode.
    fn consider_copies(&mut self) -> Result<()> {
        let DeviceRequest { operation, limits, room, .. } = self.request;
        let (store, which) = (self.store, self.which);
        let more = limits.passes > 1 && which != DeviceOrder::Store;
        let all_there = self.resident == self.chunks();
        let on_device = all_there && (more || self.loads_first());
        let on_host = more && !self.loads_first() && limits.host_memory > 0 && !all_there;
        let large = operation.bytes > CACHED_BYTES;
        if operation.reads == Reads::AsTheyLie {
            // Copies are built of nonzeros.
            return Ok(());
        }
        if check_layouts(store.manifest()).is_err() || !(on_device || on_host || large) {
            return Ok(());
        }
        let samples = Samples::new(store, operation)?;
        self.rows_per_nonzero = large.then(|| samples.mean_rows_per_nonzero());
        if on_device {
            let left = room.bound - self.bytes();
            (self.choices, self.build) =
                choose::choose(self.facts, store, &samples, operation, which, limits.passes, left)?;
            self.counts_fibers =
                more && self.may_have_fibers(left) && self.along_fibers(&samples).is_worth_counting();
        }
        // Groups are of all chunks.
        let is_one = operation.modes.iter().all(|&mode| store.chunks_for(mode) == (0..self.chunks()));
        if on_host && is_one {
            self.consider_host_copies(&samples)?;
        }
        Ok(())
    }

    /// Chooses copies in host memory instead of resident chunks if they are expected to be better.
    fn consider_host_copies(&mut self, samples: &Samples) -> Result<()> {
        let DeviceRequest { operation, limits, room, .. } = self.request;
        let there = HostRoom {
            device_bytes: room.bound - operation.bytes,
            lanes: limits.lanes.unwrap_or(LANES) as u64,
            lane_bytes: longest(self.store, operation),
            staging_bytes: self.lanes.staging_bytes,
            host_bytes: limits.host_memory,
            link_bytes_per_second: room.link_bytes_per_second,
            later_pass_bytes: self.image_bytes(self.resident),
            passes: limits.passes,
        };
        let planner = Planner { facts: self.facts, store: self.store, samples, operation, room: there };
        let forced = self.which != DeviceOrder::Auto;
        (self.choices, self.build) = planner.choose(forced)?;
        let Some(build) = &self.build else {
            return match &self.choices[..] {
                [choice, ..] if self.which == DeviceOrder::Host => {
                    Err(Error::request(format!("no nonzeros are sorted: {}", choice.mode.why)))
                }
                _ => Ok(()),
            };
        };
        (self.resident, self.resident_bytes) = (0, 0);
        self.lanes.count = limits.lanes.unwrap_or(LANES);
        self.lanes.image_bytes = longest(self.store, operation).max(build.image_bytes);
        Ok(())
    }

    /// Whether sums of fibers may serve. They change the last bits of results, so what is the same in every run, or computed by several
    /// devices, has none.
    fn may_have_fibers(&self, room: u64) -> bool {
        /// What sorting takes.
        const BYTES_PER_NONZERO: u64 = 16;
        let (operation, store) = (&self.request.operation, self.store);
        let nnz = store.manifest().nnz;
        let one =
            |modes: &[usize]| modes.iter().all(|&mode| store.chunks_for(mode) == store.chunks_for(modes[0]));
        matches!(self.which, DeviceOrder::Auto | DeviceOrder::Fibers)
            && operation.takes_fibers
            && u32::try_from(nnz).is_ok()
            && nnz * BYTES_PER_NONZERO <= room
            && store.manifest().shape.order() > 2
            && one(&operation.modes)
    }

    /// Sums of fibers as passes with these choices would have them.
    fn along_fibers<'s>(&'s self, samples: &'s Samples) -> AlongFibers<'s> {
        let DeviceRequest { operation, limits, .. } = self.request;
        let (rates, asked) = (Rates::of(self.facts), self.which == DeviceOrder::Fibers);
        let (choices, passes) = (&self.choices[..], limits.passes);
        AlongFibers { rates, store: self.store, samples, operation, choices, passes, asked }
    }

    /// Lets sums of fibers serve if that is expected to pay, and if they have room.
    fn serve_along_fibers(&mut self, counts: &[u64]) -> Result<()> {
        self.counts_fibers = false;
        let samples = Samples::new(self.store, &self.request.operation)?;
        let Some(fibers) = self.along_fibers(&samples).best(counts) else { return Ok(()) };
        let before = self.choices.clone();
        let why = format!(
            "about {} fibers along mode {}: their sums serve the other modes, a pass takes {:.2} ms less, once {:.1} ms to find them",
            fibers.fibers,
            fibers.mode,
            fibers.saved_seconds * 1e3,
            fibers.build_seconds * 1e3
        );
        for choice in self.choices.iter_mut().filter(|choice| choice.mode.mode != fibers.mode) {
            (choice.place, choice.mode.why) = (Some(Place::Device), why.clone());
        }
        self.fibers = Some(fibers);
        if self.bytes() > self.request.room.bound {
            (self.choices, self.fibers) = (before, None);
        }
        Ok(())
    }

    /// Applies a shortfall.
    fn apply(&mut self, shortfall: &Shortfall) -> Result<()> {
        match shortfall {
            Shortfall::Lanes(count) => self.lanes.count = self.lanes.count.min(*count),
            Shortfall::Resident(chunks) => {
                self.resident = self.resident.min(*chunks);
                // Fibers are those of all nonzeros.
                self.counts_fibers = false;
                self.resident_bytes = (0..self.resident).map(|n| self.resident_bytes_of(n)).sum();
                let longest = longest(self.store, &self.request.operation);
                self.lanes.image_bytes = self.lanes.image_bytes.max(longest);
                if self.has(Place::Device) {
                    // Copies in host memory are built from all chunks.
                    self.build = None;
                    for choice in &mut self.choices {
                        let mode = choice.mode.mode - 1;
                        *choice = Choice::none(self.store, mode, "not all chunks stay on the device");
                    }
                }
            }
            Shortfall::Nonzeros(nonzeros) => self.gathered = self.gathered.min(*nonzeros),
            Shortfall::NoCopy(mode, why) => self.give_up(*mode, why),
            Shortfall::Fibers(counts) => self.serve_along_fibers(counts)?,
            Shortfall::NoFibers(_) => self.counts_fibers = false,
        }
        Ok(())
    }

    /// Gives up the copy of `mode`, from 1, and leaves it in the store's order. If no copy in host memory is left, the memory planned for
    /// building keeps as many of the first chunks on the device as fit.
    fn give_up(&mut self, mode: usize, why: &str) {
        let streamed = self.has(Place::Host);
        for choice in self.choices.iter_mut().filter(|choice| choice.mode.mode == mode) {
            choice.place = None;
            choice.mode.why = format!("mode {mode} stays in the store's order: {why}");
        }
        if streamed
            && !self.has(Place::Host)
            && let Some(build) = self.build.take()
        {
            // The operation keeps its memory for sorted nonzeros.
            self.hold_first(self.bytes() + build.gathered_bytes + build.room_bytes);
        }
    }

    /// Fails if results must be deterministic and not all modes can be sorted.
    fn check_sorted(&self) -> Result<()> {
        if !self.loads_first() {
            return Ok(());
        }
        let share = self.request.operation.share.as_ref();
        let is_sorted =
            |choice: &&Choice| share.is_none_or(|share| share.by_rows.contains(&(choice.mode.mode - 1)));
        let chunks = self.chunks();
        let why = match self.choices.iter().filter(is_sorted).find(|choice| choice.place.is_none()) {
            _ if self.resident < chunks => {
                format!("{} of {chunks} chunks have room on the device", self.resident)
            }
            Some(Choice { mode, .. }) => format!("mode {}: {}", mode.mode, mode.why),
            None => return Ok(()),
        };
        if !self.request.limits.deterministic {
            return Err(Error::request(format!(
                "every GPU that computes some rows holds all nonzeros; {why}"
            )));
        }
        Err(Error::request(format!(
            "deterministic results on a GPU come from nonzeros that stay there, sorted for each mode; {why}: take fewer modes at a \
             time, a smaller rank, or `Device::Cpu`"
        )))
    }

    /// The store's chunks and the copies, as sets.
    fn sets(&self) -> Vec<ImageSet> {
        let (device, all) = (self.facts.number, 0..self.chunks());
        let modes = |chosen: &dyn Fn(&Choice) -> bool| {
            self.choices.iter().filter(|choice| chosen(choice)).map(|choice| choice.mode.mode).collect()
        };
        let sorted_first = self.loads_first();
        let parts = [
            (0..self.resident, Place::Device, self.resident_bytes),
            (self.resident..all.end, Place::Store, self.image_bytes(self.resident)),
        ];
        let parts = parts.into_iter().filter(|(images, ..)| !images.is_empty());
        let residence = parts.map(|(images, place, bytes)| Residence { images: Some(images), place, bytes });
        let chunks = ImageSet {
            images: Images::Chunks,
            device,
            residence: residence.collect(),
            first_pass: modes(&|choice| !sorted_first || choice.place.is_none()),
            later_passes: modes(&|choice| choice.place.is_none()),
        };
        let copy = |Choice { mode, place }: &Choice| {
            let residence = vec![Residence { images: None, place: (*place)?, bytes: mode.copy_bytes }];
            let modes = vec![mode.mode];
            let first_pass = if sorted_first { modes.clone() } else { Vec::new() };
            let images = Images::SortedBy(mode.mode);
            Some(ImageSet { images, device, residence, first_pass, later_passes: modes })
        };
        std::iter::once(chunks).chain(self.choices.iter().filter_map(copy)).collect()
    }

    /// Bytes of the chunks that a later pass loads: those of modes in the store's order that do not stay.
    fn later_bytes(&self) -> u64 {
        let in_order = || self.choices.iter().filter(|choice| choice.place.is_none());
        let is_brought = |number: &usize| in_order().any(|choice| choice.mode.chunks.contains(number));
        let chunks = &self.store.manifest().chunks;
        (self.resident..self.chunks()).filter(is_brought).map(|number| chunks[number].image_bytes).sum()
    }

    /// The plan.
    fn finish(self) -> DevicePlan {
        let request = self.request;
        let rate = request.room.link_bytes_per_second;
        let link = |bytes: u64| LinkPlan { bytes, seconds: bytes as f64 / rate };
        let streamed = self.choices.iter().filter(|choice| choice.place == Some(Place::Host));
        let copied: u64 = streamed.map(|choice| choice.mode.copy_bytes).sum();
        let chunks = self.later_bytes();
        let mut modes: Vec<_> = self.choices.iter().map(|choice| choice.mode.clone()).collect();
        let sorted = self.choices.iter().zip(&mut modes).filter(|(choice, _)| choice.place.is_some());
        sorted.enumerate().for_each(|(copy, (_, mode))| mode.set = copy + 1);
        DevicePlan {
            device: self.facts.clone(),
            free_bytes: request.room.free_bytes,
            link_bytes_per_second: rate,
            operation_bytes: self.operation_bytes(),
            ranges: self.ranges(),
            lanes: self.lanes,
            sets: self.sets(),
            modes,
            copies_bytes: self.copies_bytes(),
            rows_per_nonzero: self.rows_per_nonzero,
            as_they_lie: request.operation.reads == Reads::AsTheyLie && expand::can_lie(self.store),
            deterministic: request.limits.deterministic,
            memory_bytes: self.bytes(),
            host_bytes: copied + self.lanes.result_bytes.saturating_mul(self.lanes.count as u64),
            first_pass: link(self.image_bytes(0)),
            later_pass: link(copied + chunks),
            shortfalls: request.shortfalls.clone(),
            build: self.build,
            fibers: self.fibers,
            counts_fibers: self.counts_fibers,
            request: Box::new(request.clone()),
        }
    }
}

/// Bytes of the longest chunk on the device.
fn longest(store: &Store, operation: &Operation) -> u64 {
    let chunks = &store.manifest().chunks;
    let bytes = |number: usize| expand::bytes_there(store, number, operation.reads);
    (0..chunks.len()).map(bytes).max().unwrap_or(0)
}
