//! Planning the memory of a GPU, before anything is allocated.

use super::choose::{self, Operation, Sample};
use super::driver::Device;
use super::expand;
use super::host_orders::{HostRoom, Planner};
use super::resident::resident_bytes;
use super::room::{LANES, Room};
use crate::backend::device::{DeviceLimits, DeviceOrder, DevicePlan};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::store::Store;
use std::sync::Arc;

/// Factors, sums and results of more bytes do not stay in an L2 cache.
const CACHED_BYTES: u64 = 64 << 20;
/// Bytes of the longest chunk on the device.
fn longest(store: &Store) -> u64 {
    (0..store.manifest().chunks.len()).map(|number| expand::bytes_there(store, number)).max().unwrap_or(0)
}

/// Plans passes over `store` on `device` for `operation`.
pub fn plan(
    device: &Arc<Device>,
    store: &Store,
    operation: &Operation<'_>,
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    let which = match limits.order {
        DeviceOrder::Store | DeviceOrder::Host if limits.deterministic => {
            return Err(Error::request(
                "deterministic results on a GPU come from nonzeros that are sorted there",
            ));
        }
        _ if limits.deterministic => DeviceOrder::Target,
        which => which,
    };
    choose::check(which, store.manifest())?;
    let all: u64 = store.manifest().chunks.iter().map(|c| c.image_bytes).sum();
    let there = Room::of(device, store, limits)?;
    let mut plan = DevicePlan {
        device: device.facts.clone(),
        free_bytes: there.free_bytes,
        link_bytes_per_second: there.link_bytes_per_second,
        operation_bytes: operation.bytes,
        lanes: there.lanes,
        lane_bytes: longest(store),
        staging_bytes: expand::staging_bytes(store),
        resident_chunks: 0,
        resident_bytes: 0,
        rows_per_nonzero: None,
        orders: Vec::new(),
        host_orders: None,
        deterministic: limits.deterministic,
        derived_bytes: 0,
        order_room_bytes: 0,
        memory_bytes: 0,
        first_pass_bytes: all,
        later_pass_bytes: all,
        later_pass_copy_seconds: 0.0,
    };
    let bound = there.bound;
    if (limits.passes > 1 && which != DeviceOrder::Host) || limits.deterministic {
        plan.make_resident(store, bound);
    }
    plan.lanes = there.fit(
        plan.lanes,
        |lanes| plan.bytes_with(lanes),
        &[("factors and results", plan.operation_bytes), ("a chunk", plan.lane_bytes + plan.staging_bytes)],
        &["fewer modes at a time", "a smaller rank", "`f32`"],
    )?;
    let orders = plan.resident_chunks == store.manifest().chunks.len()
        && (limits.passes > 1 || limits.deterministic)
        && which != DeviceOrder::Store;
    let tiled = store.manifest().format().layout() == Layout::TILED;
    let large = operation.bytes > CACHED_BYTES;
    let later = limits.passes > 1 && !limits.deterministic && which != DeviceOrder::Store;
    let kept = later && limits.host_memory > 0 && plan.resident_chunks < store.manifest().chunks.len();
    if tiled && (orders || kept || large) {
        let sample = Sample::new(store)?;
        plan.rows_per_nonzero = large.then(|| sample.mean_rows_per_nonzero());
        if orders {
            plan.order_room_bytes = bound - plan.bytes();
            let room = plan.order_room_bytes;
            plan.orders =
                choose::choose(&device.facts, store, &sample, operation, which, limits.passes, room)?;
        }
        if kept {
            plan.consider_host_orders(store, &sample, operation, which, limits, bound)?;
        }
    }
    plan.check_sorted(store)?;
    plan.settle();
    Ok(plan)
}

impl DevicePlan {
    fn bytes(&self) -> u64 {
        self.bytes_with(self.lanes)
    }

    fn bytes_with(&self, lanes: usize) -> u64 {
        let lane = self.lane_bytes.saturating_add(self.staging_bytes);
        let lanes = lane.saturating_mul(lanes as u64);
        self.operation_bytes
            .saturating_add(lanes)
            .saturating_add(self.resident_bytes)
            .saturating_add(self.derived_bytes)
    }

    /// Keeps all chunks where they fit, otherwise as many of the first as lanes leave room for.
    fn make_resident(&mut self, store: &Store, bound: u64) {
        let chunks = store.manifest().chunks.len();
        let sizes = |n| resident_bytes(store, n);
        let all: u64 = (0..chunks).map(sizes).sum();
        let staging = self.staging_bytes.saturating_mul(self.lanes as u64);
        if self.operation_bytes.saturating_add(all).saturating_add(staging) <= bound {
            (self.resident_chunks, self.resident_bytes) = (chunks, all);
            (self.lane_bytes, self.later_pass_bytes) = (0, 0);
            return;
        }
        self.hold_first(store, bound);
    }

    /// Keeps as many of the first chunks as there is room for beside all else.
    fn hold_first(&mut self, store: &Store, bound: u64) {
        for number in self.resident_chunks..store.manifest().chunks.len() {
            if self.bytes() + resident_bytes(store, number) > bound {
                break;
            }
            self.hold(store, number);
        }
    }

    /// Takes orders in host memory, instead of chunks that stay on the device, where these are expected to be better.
    fn consider_host_orders(
        &mut self,
        store: &Store,
        sample: &Sample,
        operation: &Operation<'_>,
        which: DeviceOrder,
        limits: &DeviceLimits,
        bound: u64,
    ) -> Result<()> {
        let room = HostRoom {
            device_bytes: bound - self.operation_bytes,
            lanes: limits.lanes.unwrap_or(LANES) as u64,
            lane_bytes: longest(store),
            host_bytes: limits.host_memory,
            link_bytes_per_second: self.link_bytes_per_second,
            later_pass_bytes: self.later_pass_bytes,
            passes: limits.passes,
        };
        let planner = Planner { facts: &self.device, store, sample, operation, room };
        let (orders, kept) = planner.choose(matches!(which, DeviceOrder::Target | DeviceOrder::Host))?;
        self.orders = orders;
        let Some(kept) = kept else {
            return match &self.orders[..] {
                [order, ..] if which == DeviceOrder::Host => {
                    Err(Error::request(format!("no nonzeros are sorted: {}", order.why)))
                }
                _ => Ok(()),
            };
        };
        (self.resident_chunks, self.resident_bytes) = (0, 0);
        self.lanes = limits.lanes.unwrap_or(LANES);
        self.lane_bytes = longest(store).max(kept.image_bytes);
        self.host_orders = Some(kept);
        Ok(())
    }

    /// Leaves mode `part` in the store's order, after all, because of `why`: passes need chunks again. Without any mode in another
    /// order, as many of the first ones are to stay on the device as there is room for in what sorting was to take.
    pub(super) fn give_up_host_order(&mut self, store: &Store, part: usize, why: &str) {
        let order = &mut self.orders[part];
        (order.target, order.in_host_memory) = (false, false);
        order.why = format!("mode {} stays in the store's order: {why}", order.mode);
        let left = self.orders.iter().filter(|order| order.in_host_memory);
        let (count, bytes) = left.fold((0, 0), |(count, bytes), order| (count + 1, bytes + order.bytes));
        if let (Some(kept), true) = (&mut self.host_orders, count > 0) {
            (kept.with_chunks, kept.host_bytes) = (true, bytes);
        } else if let Some(kept) = self.host_orders.take() {
            // What the operation has for sorted nonzeros it keeps.
            let bound = self.memory_bytes - kept.device_bytes + kept.gathered_bytes + kept.derive_bytes;
            self.derived_bytes = 0;
            self.later_pass_bytes = self.first_pass_bytes;
            self.hold_first(store, bound);
        }
        self.settle();
    }

    /// An error where results are to be deterministic and not all modes can be sorted.
    pub(super) fn check_sorted(&self, store: &Store) -> Result<()> {
        if !self.deterministic {
            return Ok(());
        }
        let chunks = store.manifest().chunks.len();
        let why = match self.orders.iter().find(|order| !order.target) {
            _ if self.resident_chunks < chunks => {
                format!("{} of {chunks} chunks have room on the device", self.resident_chunks)
            }
            Some(order) => format!("mode {}: {}", order.mode, order.why),
            None => return Ok(()),
        };
        Err(Error::request(format!(
            "deterministic results on a GPU come from nonzeros that stay there, sorted for each mode; {why}: take fewer modes at a \
             time, a smaller rank, or `Device::Cpu`"
        )))
    }

    fn hold(&mut self, store: &Store, number: usize) {
        self.resident_chunks = number + 1;
        self.resident_bytes += resident_bytes(store, number);
        self.later_pass_bytes -= store.manifest().chunks[number].image_bytes;
    }

    /// Holds the first `chunks` chunks only, fewer than before.
    pub(super) fn shrink(&mut self, store: &Store, chunks: usize) {
        let images = || store.manifest().chunks.iter().map(|c| c.image_bytes);
        (self.resident_chunks, self.resident_bytes) = (0, 0);
        self.later_pass_bytes = images().sum();
        self.lane_bytes = self.lane_bytes.max(longest(store));
        // Orders are derived from all chunks.
        self.orders.clear();
        (0..chunks).for_each(|number| self.hold(store, number));
        self.settle();
    }

    /// Sets what follows from the rest.
    fn settle(&mut self) {
        if let Some(kept) = &self.host_orders {
            self.derived_bytes = kept.device_bytes;
            self.later_pass_bytes =
                kept.host_bytes + if kept.with_chunks { self.first_pass_bytes } else { 0 };
            self.memory_bytes = self.bytes();
            self.later_pass_copy_seconds = self.later_pass_bytes as f64 / self.link_bytes_per_second;
            return;
        }
        let (mut held, mut peak) = (0, 0);
        for order in self.orders.iter().filter(|order| order.target) {
            peak = peak.max(held + order.peak_bytes);
            held += order.bytes;
        }
        self.derived_bytes = peak;
        self.memory_bytes = self.bytes();
        self.later_pass_copy_seconds = self.later_pass_bytes as f64 / self.link_bytes_per_second;
    }
}
