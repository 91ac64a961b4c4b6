//! The inputs of plans.

use crate::op::mttkrp::ModeSortedDemand;

/// What an operation asks of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Its modes, from 0.
    pub modes: &'a [usize],
    /// Columns of its factors.
    pub rank: usize,
    /// How often each mode will be computed.
    pub passes: u32,
    /// What mode-sorted copies would take besides, and save, on the CPU.
    pub mode_sorted: ModeSortedDemand,
    /// Bytes of host memory that it holds where it runs on the CPU.
    pub on_cpu: u64,
    /// The same where it runs on a GPU.
    pub beside_gpu: u64,
    /// Bytes that are held when the passes have ended, where those are more.
    pub afterwards: u64,
    /// Of a decomposition, in which a pass computes one of the modes, each in turn, and factors change in between: its starts.
    pub starts: Option<u32>,
}
