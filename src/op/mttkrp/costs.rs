//! What MTTKRP takes on the host: a pass in the store's order, one from mode-sorted copies, and building these. A plan compares them.
//!
//! A cost is a sum of parts, such as reading a factor's rows from beyond a core's cache. Each part is a quantity from the manifest, times a
//! time that was fitted to measurements: 33 tensors of orders 3 to 8, each mode alone and all together, ranks 8 to 64, on two machines with 1 to
//! 16 threads ([record](../../../benches/runs/2026-11-28-plans/README.md)). Machines and numbers of threads scale passes in both orders by nearly the
//! same, at most a quarter apart; building is scaled for the number of threads. A plan compares, so it measures nothing, and does not change from run to run.

use super::kernel::{LINE_BYTES, columns_of_runs, has_body};
use super::{GROUP_TILES, Strategy, lists::CACHED_BYTES, strategies};
use crate::encoding::TILE_NNZ;
use crate::format::GROUP_SIZES;
use crate::store::Manifest;

/// Costs for each nonzero of a store, in nanoseconds of one of the threads of the machine that they were measured on. Only ratios count.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A pass in the store's order.
    pub in_store_order: f64,
    /// A pass from copies.
    pub from_copies: f64,
    /// What the first pass takes longer if it builds them.
    pub building: f64,
}

/// Factor rows of this many bytes are the unit of what is multiplied and read.
const ROW_BYTES: f64 = 256.0;

/// The size of groups, as [`Manifest::distinct`] counts them, in which a core's cache still has a row that it read.
const CACHED: usize = GROUP_SIZES - 1;
/// The same for the groups that sums are made for.
const SUMMED: usize = GROUP_TILES.ilog2() as usize;

impl Costs {
    /// For passes that compute `modes`, from 0, with `threads` threads; one mode each if they are `alternating`.
    #[must_use]
    pub fn new<T>(
        manifest: &Manifest,
        modes: &[usize],
        rank: usize,
        threads: usize,
        alternating: bool,
    ) -> Self {
        let shape = &manifest.shape;
        let (order, of_modes) = (shape.order() as f64, strategies(manifest, modes, rank));
        let row = (rank * size_of::<T>()) as f64 / ROW_BYTES;
        let distinct = |mode: usize, size: usize| {
            // What skewed tensors have, where the manifest does not say.
            let most = f64::from(shape.dims()[mode]) / (TILE_NNZ << size) as f64;
            manifest.distinct(mode, size).unwrap_or((most / 2.0).min(0.25))
        };
        // Rows of mode `m` that come from beyond a core's cache.
        let far = |m: usize| {
            let bytes = shape.dims()[m] as usize * rank * size_of::<T>();
            if bytes > CACHED_BYTES { distinct(m, CACHED) } else { 0.0 }
        };
        let all_far: f64 = (0..shape.order()).map(far).sum();
        let of_far = 30.0 + 30.0 * row;
        // Products of single modes: loops that do not know the rank take longer, and so do columns beyond whole vectors.
        let any_rank = if has_body(rank) {
            0.0
        } else {
            6.0 + 0.7 * (rank % (LINE_BYTES / size_of::<T>())) as f64 * (order - 1.0)
        };
        let (of_runs, columns) = columns_of_runs(rank).map_or((any_rank, rank), |columns| (0.0, columns));
        let computed = (columns * size_of::<T>()) as f64 / ROW_BYTES;
        // Modes that are computed together share the rows that they read.
        let shares = !alternating
            && modes.iter().copied().eq(0..shape.order())
            && !of_modes.contains(&Strategy::Lists);
        let of_all = if shares { order * (2.5 + 5.5 * row) + of_far * all_far } else { 0.0 };
        let mut costs = Self { in_store_order: of_all, from_copies: 0.0, building: 20.0 };
        for (&mode, strategy) in modes.iter().zip(of_modes) {
            let (far, other_far) = (far(mode), all_far - far(mode));
            if !shares {
                // From order 5 on, bodies do not know the place of the mode.
                let any_place = if order >= 5.0 { 23.0 } else { 0.0 };
                let multiplied = any_place + 4.2 * order * row;
                costs.in_store_order += if strategy == Strategy::Lists { 0.0 } else { multiplied };
                costs.in_store_order += any_rank + of_far * other_far;
            }
            costs.in_store_order += match strategy {
                Strategy::Copies => 0.0,
                Strategy::Slots => 9.0 * row + (35.0 + 40.0 * row) * distinct(mode, SUMMED),
                Strategy::Lists => 16.0 * order * row + 13.0 * row * far,
            };
            // Each run of a row costs something.
            costs.from_copies += match strategy {
                Strategy::Copies | Strategy::Slots => 14.0 * distinct(mode, SUMMED),
                Strategy::Lists => 6.5 * distinct(mode, CACHED),
            };
            // From order 6 on in copies.
            let any_place = if order >= 6.0 { 13.0 } else { 0.0 };
            costs.from_copies +=
                2.0 + any_place + of_runs + 2.7 * computed * (order - 1.0) + 39.0 * row * other_far;
            costs.building += 55.0 + 8.0 * order;
        }
        // Threads wait for each other while the system provides memory.
        costs.building *= 0.8 + threads.min(16) as f64 / 20.0;
        costs
    }

    /// The seconds that `cost` takes for `nnz` nonzeros on the machine that was measured.
    #[must_use]
    pub fn seconds(cost: f64, nnz: u64, threads: usize) -> f64 {
        // With more than four threads, each gets less of what they share.
        let shared = 1.0 + (threads.clamp(4, 16) - 4) as f64 / 32.0;
        cost * 1e-9 * nnz as f64 / threads as f64 * shared
    }

    /// The fewest passes that do not take more time with copies, the first included; `None` if no number does.
    #[must_use]
    pub fn pays_from(&self) -> Option<u32> {
        let saved = self.in_store_order - self.from_copies;
        let passes = 1.0 + self.building / saved;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        let passes = (saved > 0.0 && passes < f64::from(u32::MAX)).then(|| passes.ceil() as u32);
        passes
    }
}
