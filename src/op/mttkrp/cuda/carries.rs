//! Rows that thread blocks share on sorted nonzeros: their sums are carried out and added up in groups, level by level.

use crate::backend::cuda::Launch;
use crate::backend::cuda::abi::{self, FixUpArgs, MttkrpArgs, ROW_THREADS, SORTED_TILES, TILE_THREADS};
use crate::backend::cuda::driver::{Device, Kernel, Memory, Stream};
use crate::backend::cuda::mode_sorted::Stretch;
use crate::error::Result;
use std::sync::Arc;

/// Rows at the limits of stretches of sorted nonzeros, which can continue in the next stretch, and their
/// sums.
#[derive(Debug)]
pub(super) struct CarryOut {
    rows: Memory,
    sums: Memory,
}

impl CarryOut {
    /// Of `count` limits, behind as many zeros of a row before the first one of `stretch` as there can be in its group.
    fn new(device: &Arc<Device>, count: u64, rank: usize, stretch: Option<&Stretch>) -> Result<Self> {
        let zeros = before(stretch);
        let count = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(zeros);
        let (rows, sums) = (count * size_of::<u32>(), count.saturating_mul(rank * size_of::<f64>()));
        let mut made = Self { rows: device.memory(rows)?, sums: device.memory(sums)? };
        if let Some(stretch) = stretch {
            made.rows.write_at(0, &vec![stretch.rows.start.saturating_sub(1); zeros])?;
            made.sums.write_at(0, &vec![0.0; zeros * rank])?;
        }
        Ok(made)
    }

    /// Of `blocks` thread blocks, in turn with those that they are added up to.
    pub fn levels(
        device: &Arc<Device>,
        blocks: u32,
        rank: usize,
        stretch: Option<&Stretch>,
    ) -> Result<[Self; 2]> {
        let all = 2 * u64::from(blocks);
        let of = |count| Self::new(device, count, rank, stretch);
        Ok([of(all)?, of(left_of(all + before(stretch) as u64))?])
    }
}

/// Carry-outs that stand for those of other devices, before a device's own: a group of them.
fn before(stretch: Option<&Stretch>) -> usize {
    stretch.map_or(0, |_| abi::FIX_UP as usize)
}

/// The carry-outs that remain after `carries` are added up: two per warp.
fn left_of(carries: u64) -> u64 {
    2 * carries.div_ceil(abi::FIX_UP.into())
}

/// Bytes of device memory for `nnz` sorted nonzeros besides the nonzeros: their thread blocks' carry-outs.
pub(super) fn sorted_bytes(nnz: u64, rank: usize) -> u64 {
    let blocks = nnz.div_ceil(u64::from(SORTED_TILES * abi::TILE));
    let carries = 2 * blocks;
    (carries + left_of(carries) + 2 + 2 * u64::from(abi::FIX_UP)) * (4 + 8 * rank as u64)
}

/// Launches `kernel` on sorted nonzeros, and adds up the carry-outs of its thread blocks level by level by `fix_up`.
pub(super) fn launch_rows(
    [kernel, fix_up]: [&Kernel; 2],
    carries: &[CarryOut; 2],
    stretch: Option<&Stretch>,
    stream: &Stream,
    work: &Launch,
    mut arguments: MttkrpArgs,
) -> Result<()> {
    let (mut from, mut to) = (&carries[0], &carries[1]);
    let zeros = before(stretch) as u64;
    let row_bytes = u64::from(arguments.rank) * size_of::<f64>() as u64;
    let rows = |carries: &CarryOut, at: u64| carries.rows.address() + at * size_of::<u32>() as u64;
    let sums = |carries: &CarryOut, at: u64| carries.sums.address() + at * row_bytes;
    (arguments.carry_rows, arguments.carry_sums) = (rows(from, zeros), sums(from, zeros));
    stream.launch(kernel, work.blocks, TILE_THREADS * SORTED_TILES, &arguments)?;
    let mut left = 2 * u64::from(work.blocks);
    // Those of all devices before this one's.
    let mut ahead = stretch.map_or(0, |stretch| 2 * u64::from(stretch.tiles.start / SORTED_TILES));
    loop {
        let of_group = ahead % u64::from(abi::FIX_UP);
        left += of_group;
        let arguments = FixUpArgs {
            rows: rows(from, zeros - of_group),
            sums: sums(from, zeros - of_group),
            carry_rows: rows(to, zeros),
            carry_sums: sums(to, zeros),
            result: arguments.targets[0].sums,
            count: u32::try_from(left).unwrap_or(u32::MAX),
            rank: arguments.rank,
            add: arguments.add,
            unused: 0,
        };
        ahead = 2 * (ahead / u64::from(abi::FIX_UP));
        let groups = left.div_ceil(abi::FIX_UP.into());
        stream.launch(fix_up, warps(groups), ROW_THREADS, &arguments)?;
        if groups == 1 {
            return Ok(());
        }
        left = left_of(left);
        (from, to) = (to, from);
    }
}

/// Thread blocks of [`ROW_THREADS`] threads for `count` warps.
pub(super) fn warps(count: u64) -> u32 {
    u32::try_from(count.div_ceil(u64::from(ROW_THREADS / 32))).unwrap_or(u32::MAX)
}
