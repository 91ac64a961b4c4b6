//! How passes use several GPUs, as plans and reports state it: data, present in every build.
//!
//! Each device has a range of the store's chunks and its own plan ([`DevicePlan`]) for passes over these. At the end of
//! a pass their results are added up; each device adds the rows that it owns.

use crate::backend::plan::{DevicePlan, ModeSeconds};
use crate::stream::{PassReport, Plan};
use serde::Serialize;
use std::ops::Range;

/// Bytes of memory in which a device gathers what others send it, at most.
const SCRATCH_BYTES_MAX: u64 = 64 << 20;

/// How rows of sums and factors get from device to device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Exchange {
    /// By NCCL's collectives.
    Nccl,
    /// By copies straight from device to device, and a kernel that adds.
    PeerCopies,
    /// The same, where some copies go through the host.
    ThroughHost,
}

impl Exchange {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL",
            Self::PeerCopies => "copies between devices",
            Self::ThroughHost => "copies through the host",
        }
    }
}

/// How devices exchange rows, and how much.
#[derive(Clone, Debug, Serialize)]
pub struct ExchangePlan {
    /// How.
    pub by: Exchange,
    /// What serves, or why nothing better does.
    pub why: String,
    /// Bytes that each device receives in a pass, on average; of a decomposition in one of each mode.
    pub bytes: u64,
    /// Bytes of memory on each device in which they wait to be added up.
    pub scratch_bytes: u64,
}

/// What passes use of one of several devices.
#[derive(Clone, Debug, Serialize)]
pub struct DevicePart {
    /// Its chunks of the store.
    pub chunks: Range<usize>,
    /// Their nonzeros.
    pub nnz: u64,
    /// Seconds that one of several passes over them is expected to take: what chunks were divided by.
    pub seconds: f64,
    /// What brings them: workers, buffers, chunks that stay in host memory.
    pub host: Plan,
    /// How the device is used.
    pub device: DevicePlan,
}

/// How several devices divide the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Divide {
    /// As is expected to take the least time; a plan says why.
    #[default]
    Auto,
    /// By ranges of each mode's rows. Every device holds all chunks, sorts them by rows and keeps those of its own; nothing is added up.
    Rows,
    /// By chunks: every device has some of them, and sums are added up after each pass.
    Chunks,
}

impl Exchange {
    /// Bytes per second that a device receives while all exchange rows. NCCL's rate is that of two H100
    /// (benches/runs/2026-11-25-two-gpus); the others are assumed.
    #[must_use]
    pub fn bytes_per_second(self) -> f64 {
        match self {
            Self::Nccl => 2.8e11,
            Self::PeerCopies => 1.5e11,
            Self::ThroughHost => 2.0e10,
        }
    }
}

/// Devices that compute together: some on each of several machines.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    /// Machines.
    pub machines: usize,
    /// Devices of each.
    pub devices: usize,
    /// How those of one machine exchange rows.
    pub by: Exchange,
    /// Bytes per second that a machine receives from the others.
    pub link: f64,
}

/// Seconds of a step of an exchange between machines, whatever its bytes; each machine has a step with every other. Assumed.
const STEP_SECONDS: f64 = 5e-6;

impl Together {
    /// Devices of one machine.
    #[must_use]
    pub fn on_one_machine(devices: usize, by: Exchange) -> Self {
        Self { machines: 1, devices, by, link: f64::INFINITY }
    }

    /// All devices.
    #[must_use]
    pub fn members(&self) -> usize {
        self.machines * self.devices
    }

    /// Seconds in which rows of `bytes` get from all devices to their owners, or back: within machines and between them. Devices of one
    /// machine add up first, so that each row crosses its link once.
    #[must_use]
    pub fn exchanged(&self, bytes: f64) -> [f64; 2] {
        let others = |members: usize| 1.0 - 1.0 / members as f64;
        let steps = (self.machines - 1) as f64 * STEP_SECONDS;
        [
            bytes * others(self.devices) / self.by.bytes_per_second(),
            bytes * others(self.machines) / self.link + steps,
        ]
    }
}

/// Seconds that a mode is expected to take in each later pass, by how it is divided.
#[derive(Clone, Copy, Debug)]
pub struct ModeForecast {
    /// By rows.
    pub rows: f64,
    /// By chunks, each device's in the store's order.
    pub in_store_order: f64,
    /// By chunks, in the faster order.
    pub chunks: f64,
    /// What adding up sums takes of the two before, within machines and between them.
    pub sums: [f64; 2],
    /// On one device.
    pub one: f64,
    /// Sorting all nonzeros on each device, once, beyond sorting a part of them.
    pub once: f64,
}

impl ModeForecast {
    /// From the seconds on one device. Sums take `sum_bytes`. The longest row has the fraction `longest` of the nonzeros, which no range of
    /// rows can divide; the device with most chunks has the fraction `largest` of them.
    #[must_use]
    pub fn new(
        seconds: &ModeSeconds,
        together: &Together,
        (longest, largest): (f64, f64),
        sum_bytes: f64,
    ) -> Self {
        let part = 1.0 / together.members() as f64;
        let sums = together.exchanged(sum_bytes);
        let added = seconds.cleared + sums.iter().sum::<f64>();
        Self {
            rows: seconds.sorted * part.max(longest) + seconds.written * part,
            in_store_order: seconds.in_store_order * largest + added,
            chunks: seconds.in_store_order.min(seconds.sorted) * largest + added,
            sums,
            one: seconds.on_one(),
            once: seconds.built * (1.0 - part),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let ms = |seconds: f64| seconds * 1e3;
        let Self { rows, chunks, sums, one, .. } = *self;
        let (rows, chunks, sums, one) = (ms(rows), ms(chunks), ms(sums.iter().sum()), ms(one));
        format!(
            "{rows:.2} ms a pass by rows; {chunks:.2} by chunks, of which sums {sums:.2}; {one:.2} on one GPU"
        )
    }
}

/// How several devices are expected to take the least time for `passes` passes: the modes (by their places) that they divide by rows, and the
/// seconds of a pass. Rows take `once` seconds more in the first pass, to load all chunks on each device, of which each pass has its part. No
/// mode: by chunks.
#[must_use]
pub fn fastest(modes: &[ModeForecast], passes: u32, once: f64) -> (Vec<usize>, f64) {
    let by_rows: Vec<usize> =
        (0..modes.len()).filter(|&at| modes[at].rows < modes[at].in_store_order).collect();
    let mixed: f64 = modes.iter().map(|mode| mode.rows.min(mode.in_store_order)).sum();
    let sorting: f64 = by_rows.iter().map(|&at| modes[at].once).sum();
    let mixed = mixed + (once + sorting) / f64::from(passes.max(1));
    let chunks: f64 = modes.iter().map(|mode| mode.chunks).sum();
    if !by_rows.is_empty() && mixed < chunks { (by_rows, mixed) } else { (Vec::new(), chunks) }
}

/// How the devices divide a mode.
#[derive(Clone, Debug, Serialize)]
pub struct ModeDivision {
    /// The mode, from 1.
    pub mode: usize,
    /// How.
    pub by: Divide,
    /// Why, in one line; empty if there was no choice.
    pub why: String,
}

/// What passes use of several devices.
#[derive(Clone, Debug, Serialize)]
pub struct DevicesPlan {
    /// Each one's part, in the order in which they were named, which is that of additions.
    pub parts: Vec<DevicePart>,
    /// How their sums are added up.
    pub exchange: ExchangePlan,
    /// How they divide each mode.
    pub modes: Vec<ModeDivision>,
}

impl DevicesPlan {
    /// Whether all devices hold all chunks, because some mode is divided by rows.
    pub(crate) fn shares(&self) -> bool {
        self.modes.iter().any(|mode| mode.by == Divide::Rows)
    }
}

/// How a pass on several devices went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DevicesPass {
    /// Each device's, in the plan's order.
    pub parts: Vec<PassReport>,
    /// Seconds in which sums were added up over the devices, after the last of them was done.
    pub exchange_seconds: f64,
}

/// The rows of `rows` that each of `members` devices owns: equal numbers, with the remainder for the last.
#[must_use]
pub fn owned(rows: usize, members: usize) -> Vec<Range<usize>> {
    let each = rows / members;
    let end = |member: usize| if member + 1 == members { rows } else { (member + 1) * each };
    (0..members).map(|member| member * each..end(member)).collect()
}

/// Bytes of memory in which a device gathers what others send it of sums of `rows` rows.
#[must_use]
pub fn scratch_bytes(rows: usize, rank: usize, members: usize) -> u64 {
    let most = owned(rows, members).iter().map(Range::len).max().unwrap_or(0);
    let all = (most * rank * members * size_of::<f64>()) as u64;
    // A slot for each device, of a number at least.
    all.clamp((members * size_of::<f64>()) as u64, SCRATCH_BYTES_MAX)
}

/// Cuts chunks with these numbers of nonzeros into consecutive parts whose nonzeros are as close to `shares` (which add
/// up to 1) as chunks allow. No part is empty if there are enough chunks.
#[must_use]
pub fn cut(nnz: &[u64], shares: &[f64]) -> Vec<Range<usize>> {
    let total: u64 = nnz.iter().sum();
    let (mut parts, mut from, mut before, mut wanted) = (Vec::with_capacity(shares.len()), 0, 0u64, 0.0);
    for (number, share) in shares.iter().enumerate() {
        wanted += share * total as f64;
        let behind = shares.len() - number - 1;
        let mut end = from;
        // As long as half of the next chunk belongs here, and those behind get one each.
        while end < nnz.len().saturating_sub(behind)
            && (behind == 0 || end == from || before as f64 + nnz[end] as f64 / 2.0 <= wanted)
        {
            before += nnz[end];
            end += 1;
        }
        parts.push(from..end);
        from = end;
    }
    parts
}

impl DevicesPass {
    /// The report of a pass of all devices over `nnz` nonzeros that took `seconds` in all: counts are sums, what a device's seconds are is
    /// the longest.
    #[must_use]
    pub fn as_one(&self, nnz: u64, seconds: f64) -> PassReport {
        let mut all = PassReport::default();
        for part in &self.parts {
            all.chunks += part.chunks;
            all.bytes += part.bytes;
            all.read_seconds += part.read_seconds;
            all.verify_seconds += part.verify_seconds;
            all.decode_seconds += part.decode_seconds;
            all.worker_stall_seconds += part.worker_stall_seconds;
            all.readers_busy += part.readers_busy / self.parts.len() as f64;
            all.compute_seconds = all.compute_seconds.max(part.compute_seconds);
            all.compute_stall_seconds = all.compute_stall_seconds.max(part.compute_stall_seconds);
            let Some(one) = part.device else { continue };
            let sum = all.device.get_or_insert_default();
            sum.copied_chunks += one.copied_chunks;
            sum.copied_bytes += one.copied_bytes;
            sum.resident_chunks += one.resident_chunks;
            sum.returned_bytes += one.returned_bytes;
            sum.link_share += one.link_share / self.parts.len() as f64;
            sum.memory_share += one.memory_share / self.parts.len() as f64;
            for (most, one) in [
                (&mut sum.build_seconds, one.build_seconds),
                (&mut sum.device_seconds, one.device_seconds),
                (&mut sum.copy_seconds, one.copy_seconds),
                (&mut sum.kernel_seconds, one.kernel_seconds),
                (&mut sum.overlap_seconds, one.overlap_seconds),
                (&mut sum.return_seconds, one.return_seconds),
            ] {
                *most = most.max(one);
            }
        }
        (all.nnz, all.seconds) = (nnz, seconds);
        all.nnz_per_second = all.nnz as f64 / seconds.max(1e-9);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_one_owner_each() {
        for (rows, members) in [(0, 3), (2, 3), (3, 3), (10, 3), (11, 4), (1 << 20, 7), (5, 1)] {
            let owned = owned(rows, members);
            assert_eq!(owned.len(), members);
            assert!(owned.iter().flat_map(Clone::clone).eq(0..rows), "{owned:?}");
            let each = rows / members;
            assert!(owned[..members - 1].iter().all(|own| own.len() == each), "{owned:?}");
        }
    }

    #[test]
    fn chunks_are_cut_by_shares() {
        let equal = vec![10; 12];
        assert_eq!(cut(&equal, &[1.0 / 3.0; 3]), [0..4, 4..8, 8..12]);
        assert_eq!(cut(&equal, &[0.5, 0.25, 0.25]), [0..6, 6..9, 9..12]);
        // A device that is expected to do almost nothing still gets a chunk, and the last one gets the
        // remainder.
        assert_eq!(cut(&equal, &[0.0, 0.99, 0.01]), [0..1, 1..11, 11..12]);
        assert_eq!(cut(&[5, 5], &[0.5, 0.5]), [0..1, 1..2]);
        assert_eq!(cut(&[100, 1, 1, 1], &[0.5, 0.5]), [0..1, 1..4]);
        for shares in [vec![0.2, 0.3, 0.5], vec![0.9, 0.05, 0.05], vec![0.25; 4]] {
            let nnz: Vec<u64> = (0..17).map(|i| 1 + i * 7 % 5).collect();
            let parts = cut(&nnz, &shares);
            assert!(parts.iter().flat_map(Clone::clone).eq(0..17), "{parts:?}");
            assert!(parts.iter().all(|part| !part.is_empty()), "{parts:?}");
        }
    }

    /// Sums of millions of rows cost more than the rows of a copy, and those of few rows do not; a row with most nonzeros cannot be divided.
    #[test]
    fn modes_are_divided_by_what_takes_less() {
        let seconds = ModeSeconds {
            in_store_order: 4.0,
            sorted: 6.0,
            update: 0.0,
            cleared: 0.5,
            written: 0.2,
            built: 30.0,
            least: 0.0,
            least_sorted: None,
        };
        let four = Together::on_one_machine(4, Exchange::Nccl);
        let mode = |longest, sum_bytes| ModeForecast::new(&seconds, &four, (longest, 0.25), sum_bytes);
        let (long, short, hot) = (mode(0.01, 2.8e12), mode(0.01, 0.0), mode(0.9, 0.0));
        assert_eq!(fastest(&[long, short, hot], 100, 1.0).0, [0]);
        assert_eq!(fastest(&[short, hot], 100, 1.0).0, [0; 0]);
        assert_eq!(fastest(&[long], 2, 1.0).0, [0; 0]);
        assert!((fastest(&[long], 100, 1.0).1 - (6.0 / 4.0 + 0.05 + (1.0 + 22.5) / 100.0)).abs() < 1e-12);
        assert!((long.sums[0] - 7.5).abs() < 1e-12 && (long.one - 4.5).abs() < 1e-12);
    }

    /// The rows of a machine cross its link once, however many devices it has; one machine has nothing to send.
    #[test]
    fn machines_exchange_what_their_devices_have_added_up() {
        let together = |machines, devices| Together { machines, devices, by: Exchange::Nccl, link: 5e10 };
        let [within, between] = together(1, 4).exchanged(2.8e11);
        assert!((within - 0.75).abs() < 1e-12 && between.abs() < 1e-12);
        let at = |machines, devices| together(machines, devices).exchanged(1e10).map(f64::to_bits);
        for machines in [2, 4, 8, 16, 1024] {
            let [more, less] = [machines, machines / 2].map(|count| together(count, 8).exchanged(1e10)[1]);
            assert!(more > less && at(machines, 8)[0] == at(1, 8)[0] && at(machines, 1)[0] == 0);
            assert_eq!(at(machines, 8)[1], at(machines, 1)[1]);
        }
    }

    #[test]
    fn scratch_has_a_slot_for_each_device() {
        assert_eq!(scratch_bytes(10, 4, 2), 5 * 4 * 2 * 8);
        assert_eq!(scratch_bytes(1, 1, 3), 3 * 8);
        assert_eq!(scratch_bytes(100_000_000, 32, 2), SCRATCH_BYTES_MAX);
    }
}
