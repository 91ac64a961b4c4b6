//! The inputs of plans.

use crate::op::mttkrp::ModeSortedDemand;

/// What an operation needs from a machine.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Its modes, from 0.
    pub modes: &'a [usize],
    /// Columns of its factors.
    pub rank: usize,
    /// How often each mode will be computed.
    pub passes: u32,
    /// The memory that mode-sorted copies would need in addition on the CPU, and the time that they would save.
    pub mode_sorted: ModeSortedDemand,
    /// Bytes of host memory that it holds if it runs on the CPU.
    pub on_cpu: u64,
    /// The same if it runs on a GPU.
    pub beside_gpu: u64,
    /// Bytes that are held after the passes, if these are more.
    pub afterwards: u64,
    /// The starts of a decomposition. Its passes compute one mode each, in turn, and factors change in between.
    pub starts: Option<u32>,
}
