//! Chooses the modes with mode-sorted copies in host memory, and plans their resources.

use super::choose::{self, Choice, Rates, Samples, values};
use crate::backend::cuda::expand::resident_bytes;
use crate::backend::cuda::mode_sorted::CopyPlan;
use crate::backend::device::Facts;
use crate::backend::plan::{BuildPlan, ModePlan, ModeSeconds, Operation, Place};
use crate::error::Result;
use crate::store::Store;
use std::ops::Range;

/// Nonzeros of an image, unless the store's chunks have more. Launching one of this size takes far less time than computing it.
const IMAGE_NNZ: u64 = 1 << 22;
/// An image has at most this many times the nonzeros of the longest chunk, so that lanes do not grow much.
const IMAGE_CHUNKS: u64 = 4;
/// The most nonzeros that are sorted at a time.
const GROUP_NNZ_MAX: u64 = 1 << 31;
/// The measured speed of allocating, pinning and filling host memory, in bytes per second.
const KEPT_BYTES_PER_SECOND: f64 = 4e9;
/// `auto` uses copies if they are expected to take at most this part of the time: the model's error can be that large.
const CLEARLY_BETTER: f64 = 0.75;

/// The available room, and the plan to improve on.
#[derive(Clone, Copy, Debug)]
pub struct HostRoom {
    /// Bytes of device memory, lanes included.
    pub device_bytes: u64,
    /// Lanes.
    pub lanes: u64,
    /// Bytes that each lane has in any case: for an image, and besides.
    pub lane_bytes: u64,
    pub staging_bytes: u64,
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Speed of the link in bytes per second.
    pub link_bytes_per_second: f64,
    /// Bytes of the store that would otherwise cross the link in each later pass.
    pub later_pass_bytes: u64,
    /// The number of passes; for each mode, if modes alternate.
    pub passes: u32,
}

/// A mode that a copy in host memory could serve.
struct Candidate {
    mode: usize,
    seconds: ModeSeconds,
    /// Time of the work on its sorted nonzeros.
    sorted: f64,
    /// Time to build the copy and move it to host memory.
    once: f64,
    /// The most bytes of its images.
    bytes: u64,
}

/// A set of candidates: bit c stands for candidate c.
type Chosen = usize;

/// Plans a request on a store of which one cover is read.
pub struct Planner<'a> {
    pub facts: &'a Facts,
    pub store: &'a Store,
    pub samples: &'a Samples,
    pub operation: &'a Operation,
    pub room: HostRoom,
}

impl Planner<'_> {
    /// Chooses the modes with which all passes together should take the least time, if that is clearly less. With `forced`, chooses as many
    /// modes as fit in host memory. If nothing is built, the choices say why.
    pub fn choose(&self, forced: bool) -> Result<(Vec<Choice>, Option<BuildPlan>)> {
        let Some(build) = self.groups()? else {
            return Ok((self.refused("the device has no room to sort a chunk"), None));
        };
        let candidates = self.candidates(&build)?;
        let bytes = |choice: Chosen| chosen(&candidates, choice).map(|c| c.bytes).sum::<u64>();
        let all = (1 << candidates.len()) - 1;
        // If chunks are needed as well, they must stay in host memory: a pass that reads files is slower than any copy.
        let held = |choice: Chosen| if choice == all { 0 } else { self.all_bytes() };
        let fitting = (1..=all).filter(|&choice| bytes(choice) + held(choice) <= self.room.host_bytes);
        let seconds = |choice: Chosen| self.seconds(&candidates, choice);
        let best = if forced {
            fitting.max_by_key(|choice| choice.count_ones())
        } else {
            fitting.min_by(|&a, &b| seconds(a).total_cmp(&seconds(b)))
        };
        let Some(best) = best else {
            return Ok((self.refused("host memory has no room for sorted nonzeros"), None));
        };
        let (pass, without) = (self.pass_seconds(&candidates, best), self.pass_seconds(&candidates, 0));
        let why = format!(
            "sorted in {} of chunks and streamed from host memory, all modes are expected to take {:.2} ms a pass instead of {:.2}, and \
             sorting {:.0} ms once",
            counted(build.groups.len()),
            pass * 1e3,
            without * 1e3,
            chosen(&candidates, best).map(|c| c.once).sum::<f64>() * 1e3,
        );
        if !forced && (seconds(best) > seconds(0) || pass > CLEARLY_BETTER * without) {
            return Ok((self.refused(&why), None));
        }
        let peak_bytes = build.gathered_bytes + build.room_bytes + choose::held(self.operation, &build);
        let choices = candidates.iter().enumerate().map(|(c, candidate)| {
            let serves = best >> c & 1 == 1;
            let mode = ModePlan {
                saved_seconds: candidate.seconds.in_store_order + candidate.seconds.cleared
                    - candidate.sorted,
                build_seconds: candidate.once,
                copy_bytes: candidate.bytes,
                peak_bytes,
                ..self.mode(candidate.mode, if serves { &why } else { "streamed as it is" })
            };
            Choice { mode, place: serves.then_some(Place::Host) }
        });
        Ok((choices.collect(), Some(build)))
    }

    fn mode(&self, mode: usize, why: &str) -> ModePlan {
        let sample = self.samples.of(self.store, mode);
        ModePlan {
            rows_per_nonzero: sample.rows_per_nonzero[mode],
            ..Choice::none(self.store, mode, why).mode
        }
    }

    /// Leaves all modes in the store's order.
    fn refused(&self, why: &str) -> Vec<Choice> {
        let modes = self.operation.modes.iter();
        modes.map(|&mode| Choice { mode: self.mode(mode, why), place: None }).collect()
    }

    /// Divides chunks into groups that are sorted together, as large as fits. `None` if not even one chunk fits.
    fn groups(&self) -> Result<Option<BuildPlan>> {
        let chunks = &self.store.manifest().chunks;
        let longest = chunks.iter().map(|c| c.nnz).max().unwrap_or(0);
        let image_nnz = longest.max(IMAGE_NNZ.min(IMAGE_CHUNKS * longest));
        let mut build = BuildPlan {
            groups: Vec::new(),
            values: values(self.store, self.operation.precision)?,
            image_nnz: u32::try_from(image_nnz).unwrap_or(u32::MAX),
            image_bytes: 0,
            gathered_bytes: 0,
            room_bytes: 0,
        };
        while build.groups.last().is_none_or(|group| group.end < chunks.len()) {
            let first = build.groups.last().map_or(0, |group| group.end);
            let (mut end, mut too_far, mut longer) = (first, chunks.len() + 1, None);
            while too_far - end > 1 {
                let middle = usize::midpoint(end, too_far);
                match self.with_group(&build, first..middle)? {
                    None => too_far = middle,
                    fitting => (end, longer) = (middle, fitting),
                }
            }
            let Some(longer) = longer else { return Ok(None) };
            build = longer;
        }
        Ok(Some(build))
    }

    /// A plan with one more group; `None` if it does not fit.
    fn with_group(&self, build: &BuildPlan, group: Range<usize>) -> Result<Option<BuildPlan>> {
        let nnz: u64 = self.store.manifest().chunks[group.clone()].iter().map(|c| c.nnz).sum();
        if nnz > GROUP_NNZ_MAX {
            return Ok(None);
        }
        let gathered =
            group.clone().map(|number| resident_bytes(self.store, number, self.operation.reads)).sum();
        let mut build = build.clone();
        build.groups.push(group);
        build.gathered_bytes = build.gathered_bytes.max(gathered);
        for &mode in &self.operation.modes {
            let copy = self.copy(&build, build.groups.len() - 1, mode)?;
            build.image_bytes = build.image_bytes.max(copy.image_bytes_max);
            build.room_bytes = build.room_bytes.max(copy.peak_bytes());
        }
        let of_lane = self.room.lane_bytes.max(build.image_bytes) + self.room.staging_bytes;
        let lanes = self.room.lanes * of_lane;
        let held = choose::held(self.operation, &build);
        let bytes = lanes + build.gathered_bytes + build.room_bytes + held;
        Ok((bytes <= self.room.device_bytes).then_some(build))
    }

    /// The plan for building a group's copy, sorted by row of `mode`.
    fn copy(&self, build: &BuildPlan, group: usize, mode: usize) -> Result<CopyPlan> {
        CopyPlan::of_group(self.facts, self.store.manifest(), build, group, mode)
    }

    fn candidates(&self, build: &BuildPlan) -> Result<Vec<Candidate>> {
        let (manifest, rates) = (self.store.manifest(), Rates::of(self.facts));
        let candidate = |&mode: &usize| {
            let (tensor, sample) = ((&manifest.shape, manifest.nnz), self.samples.of(self.store, mode));
            let seconds = rates.of_mode(tensor, self.operation, sample, mode);
            let (mut bytes, mut updates) = (0, 0.0);
            for group in 0..build.groups.len() {
                let copy = self.copy(build, group, mode)?;
                bytes += copy.result_bytes_max;
                // The most rows that this number of nonzeros can have, if they are spread evenly.
                let rows = f64::from(manifest.shape.dims()[mode]);
                updates += rows * -f64::exp_m1(-f64::from(copy.nnz()) / rows);
            }
            let sorted = seconds.sorted + updates * seconds.update + seconds.cleared;
            let once = rates.build(tensor, mode) + bytes as f64 / KEPT_BYTES_PER_SECOND;
            Ok(Candidate { mode, seconds, sorted, once, bytes })
        };
        self.operation.modes.iter().map(candidate).collect()
    }

    /// Seconds of all passes with the chosen candidates.
    fn seconds(&self, candidates: &[Candidate], choice: Chosen) -> f64 {
        let once: f64 = chosen(candidates, choice).map(|c| c.once).sum();
        once + f64::from(self.room.passes.saturating_sub(1)) * self.pass_seconds(candidates, choice)
    }

    /// Seconds of a later pass over all modes: of the work or of the link, whichever takes longer.
    fn pass_seconds(&self, candidates: &[Candidate], choice: Chosen) -> f64 {
        let link = |bytes: u64| bytes as f64 / self.room.link_bytes_per_second;
        // With sorted nonzeros in host memory, no chunk stays on the device.
        let chunks = if choice == 0 { self.room.later_pass_bytes } else { self.all_bytes() };
        let is_chosen = |c: usize| choice >> c & 1 == 1;
        let work = |c: usize| {
            let Candidate { seconds, sorted, .. } = &candidates[c];
            if is_chosen(c) { *sorted } else { seconds.in_store_order + seconds.cleared }
        };
        let copy = |c: usize| if is_chosen(c) { link(candidates[c].bytes) } else { link(chunks) };
        let each = || 0..candidates.len();
        if self.operation.alternating {
            return each().map(|c| work(c).max(copy(c))).sum();
        }
        let shared = if each().all(is_chosen) { 0.0 } else { link(chunks) };
        let copies = shared + each().filter(|&c| is_chosen(c)).map(copy).sum::<f64>();
        each().map(work).sum::<f64>().max(copies)
    }

    fn all_bytes(&self) -> u64 {
        self.store.manifest().chunks.iter().map(|c| c.image_bytes).sum()
    }
}

fn counted(groups: usize) -> String {
    if groups == 1 { "one group".into() } else { format!("{groups} groups") }
}

fn chosen(candidates: &[Candidate], choice: Chosen) -> impl Iterator<Item = &Candidate> {
    candidates.iter().enumerate().filter(move |(c, _)| choice >> c & 1 == 1).map(|(_, candidate)| candidate)
}
