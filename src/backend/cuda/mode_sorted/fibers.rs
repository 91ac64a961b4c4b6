//! The fibers of resident chunks along a mode, the *leaf* mode (kernels/fibers.cuh), as two lists of images.
//!
//! A fiber is all nonzeros that are equal in all other modes. What MTTKRP and SpTTMc of these modes need of a fiber is the sum of its
//! values times the rows of the leaf mode's factor, the same for each of them. So these *fiber sums* are computed once, from the first list, which is
//! a matrix: a nonzero has its fiber's number and its leaf. Then an entry for each fiber, of the second list, serves in place of its
//! nonzeros: its value is 1, its index in the leaf mode is the fiber's number, and the fiber sums take the place of the leaf mode's
//! factor. (Sums that several modes share are what dimension trees keep: Kaya and Ucar, SIAM J. Sci. Comput. 40, 2018.)

use super::super::abi::{DIGIT_BITS, FIBER_REGISTERS, TILE_THREADS};
use super::plan::Source;
use super::{BuildInput, BuildJob, CopyPlan, SortedCopy, bytes, narrow};
use crate::backend::cuda::driver::{Device, Kernel};
use crate::backend::cuda::kernels::embedded_ptx;
use crate::encoding::values::ValueEncoding;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The fibers along a mode.
#[derive(Debug)]
pub struct FiberLists {
    /// How many there are.
    pub count: u32,
    /// All nonzeros as a matrix, sorted by fiber. Fibers are its rows: mode [`fiber_mode`].
    pub nonzeros: SortedCopy,
    /// An entry for each fiber, in order of its number.
    pub entries: SortedCopy,
    /// Bytes of device memory that finding them was to take at most, the lists included.
    pub peak_bytes: u64,
    /// Device time.
    pub seconds: f64,
}

/// Which mode of the matrix of nonzeros has fibers as its rows: modes keep their order.
#[must_use]
pub fn fiber_mode(leaf: usize) -> usize {
    usize::from(leaf == 0)
}

/// The dims of the entries: the leaf mode has a row for each fiber.
#[must_use]
pub fn entry_dims(dims: &[u32], leaf: usize, count: u32) -> Vec<u32> {
    let dims = dims.iter().enumerate();
    dims.map(|(mode, &dim)| if mode == leaf { count } else { dim }).collect()
}

/// Names of the kernels that find fibers, besides those that sort.
pub const FIBER_KERNELS: [&str; 4] = ["build_estimate", "build_next_keys", "build_begins", "build_number"];

/// These, loaded.
#[derive(Debug)]
pub struct FiberKernels {
    estimate: Kernel,
    next_keys: Kernel,
    begins: Kernel,
    number: Kernel,
}

impl FiberKernels {
    /// Loads them from the embedded PTX.
    pub fn load(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&embedded_ptx(&FIBER_KERNELS))?;
        let [estimate, next_keys, begins, number] = FIBER_KERNELS.map(|name| module.kernel(name));
        Ok(Self { estimate: estimate?, next_keys: next_keys?, begins: begins?, number: number? })
    }

    /// Estimates how many fibers there are along each mode, within some percent.
    pub fn estimate(&self, input: BuildInput<'_>) -> Result<Vec<u64>> {
        let BuildInput { device, kernels, plan, .. } = input;
        let order = plan.dims.len();
        let mut job = BuildJob::new(input)?;
        let rows = device.memory(4 * plan.positions_end as usize)?;
        let mut all = vec![0u32; order * FIBER_REGISTERS as usize];
        let mut registers = device.memory(size_of_val(&all[..]))?;
        (job.arguments.rows, job.arguments.registers) = (rows.address(), registers.address());
        job.run(|job| {
            job.stream.fill(&mut registers, 0)?;
            job.stream.launch(&kernels.keys, plan.source_tiles, TILE_THREADS, &job.arguments)?;
            job.stream.launch(&self.estimate, plan.source_tiles, TILE_THREADS, &job.arguments)
        })?;
        job.check()?;
        registers.read(&mut all)?;
        Ok(all.chunks_exact(FIBER_REGISTERS as usize).map(count_of).collect())
    }

    /// Finds the fibers along `leaf`. `beside` says how many bytes more this many fibers take, which `room` has to hold with what is built.
    ///
    /// An [`Error::Request`] if it does not; otherwise the errors of [`super::build`].
    pub fn along(
        &self,
        input: BuildInput<'_>,
        leaf: usize,
        (room, beside): (u64, impl Fn(u32) -> u64),
    ) -> Result<FiberLists> {
        let BuildInput { device, kernels, store, plan, .. } = input;
        let short = |needed: u64| {
            if needed <= room {
                return Ok(());
            }
            Err(Error::request(format!("fibers take {needed} bytes of device memory, {room} are left")))
        };
        let (dims, column) = (&plan.dims, 4 * u64::from(plan.positions_end));
        let others: Vec<usize> = (0..dims.len()).rev().filter(|&mode| mode != leaf).collect();
        let counts = (4 * u64::from(plan.sort_blocks + 1)) << DIGIT_BITS;
        let sorting = plan.tile_bytes() + counts + 4 * column;
        short(sorting)?;
        let mut job = BuildJob::new(input)?;
        let (rows, positions) = job.sort(&others, Some(&self.next_keys))?;
        let counts = device.memory(bytes(4 * u64::from(plan.tiles)))?;
        let total = device.memory(size_of::<u32>())?;
        (job.arguments.rows, job.arguments.positions) = (rows.address(), positions.address());
        (job.arguments.offsets, job.arguments.leaf) = (counts.address(), narrow(leaf));
        job.run(|job| {
            job.stream.launch(&self.begins, plan.tiles, TILE_THREADS, &job.arguments)?;
            kernels.sort.scan(job.stream, counts.address(), total.address(), plan.tiles, plan.tiles)
        })?;
        job.check()?;
        let mut count = [0];
        total.read(&mut count)?;
        let [count] = count;
        let range = (store.manifest().value_min, store.manifest().value_max);
        let mut of_matrix = [count; 2];
        of_matrix[1 - fiber_mode(leaf)] = dims[leaf];
        let image_nnz = plan.image_nnz();
        let of_nonzeros = Source { dims: &of_matrix, nnz: &[plan.nnz.into()], values: plan.values, range };
        let of_nonzeros = CopyPlan::of(&device.facts, &of_nonzeros, fiber_mode(leaf), image_nnz)?;
        let of_entries = entry_dims(dims, leaf, count);
        let of_entries = Source {
            dims: &of_entries,
            nnz: &[count.into()],
            values: ValueEncoding::Integer,
            range: (1.0, 1.0),
        };
        let of_entries = CopyPlan::of(&device.facts, &of_entries, leaf, image_nnz)?;
        let lists: u64 =
            [&of_nonzeros, &of_entries].map(|plan| plan.pack_bytes + plan.result_bytes_max).iter().sum();
        let found = plan.tile_bytes() + 2 * column + 4 * u64::from(plan.tiles) + 8 * u64::from(count) + lists;
        short(found + beside(count))?;
        let firsts = device.memory(bytes(8 * u64::from(count)))?;
        (job.arguments.firsts, job.arguments.fibers) = (firsts.address(), count);
        job.run(|job| job.stream.launch(&self.number, plan.tiles, TILE_THREADS, &job.arguments))?;
        let fiber = others.iter().copied().min().unwrap_or(0);
        (job.arguments.mode, job.arguments.kept) = (narrow(fiber), 1 << fiber | 1 << leaf);
        let nonzeros = job.write(&of_nonzeros)?;
        (job.arguments.rows, job.arguments.positions) =
            (firsts.address() + 4 * u64::from(count), firsts.address());
        (job.arguments.mode, job.arguments.kept) = (narrow(leaf), (1 << dims.len()) - 1);
        (job.arguments.value_encoding, job.arguments.ones) = (ValueEncoding::Integer as u32, 1);
        let entries = job.write(&of_entries)?;
        Ok(FiberLists { count, nonzeros, entries, peak_bytes: sorting.max(found), seconds: job.clock.all()? })
    }
}

/// The number of different hashes that registers have seen (Flajolet et al., 2007, figure 3).
fn count_of(registers: &[u32]) -> u64 {
    let (all, zero) = (registers.len() as f64, registers.iter().filter(|&&r| r == 0).count());
    let sum: f64 = registers.iter().map(|&r| 0.5f64.powi(r.cast_signed())).sum();
    let estimate = 0.7213 / (1.0 + 1.079 / all) * all * all / sum;
    let few = estimate <= 2.5 * all && zero > 0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, below 2^64")]
    let count = (if few { all * (all / zero as f64).ln() } else { estimate }) as u64;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts from hashes of a generator.
    #[test]
    fn counts_are_estimated_within_a_tenth() {
        for wanted in [1u64, 20, 900, 3000, 200_000] {
            let mut registers = vec![0; FIBER_REGISTERS as usize];
            for i in 0..wanted {
                let hash = xxhash_rust::xxh3::xxh3_64(&i.to_le_bytes());
                let kept: &mut u32 =
                    &mut registers[usize::try_from(hash % u64::from(FIBER_REGISTERS)).unwrap()];
                *kept = (*kept).max((hash | 1).leading_zeros() + 1);
            }
            let found = count_of(&registers);
            assert!((found as f64 / wanted as f64 - 1.0).abs() < 0.1, "{found} of {wanted}");
        }
    }
}
