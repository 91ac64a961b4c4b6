//! The GPU of an engine. Without the feature `cuda` there is none, and no other module depends on that.

use super::demand::Demand;
use crate::backend::device::{DeviceLimits, Facts};
use crate::backend::devices::Exchange;
use crate::backend::plan::{DevicePlan, ModeSeconds, Share};
use crate::dense::Real;
use crate::error::Result;
use crate::shape::Shape;
use crate::store::{Manifest, Store};
use std::time::Duration;

#[cfg(feature = "cuda")]
pub(crate) use crate::backend::cuda::driver::is_installed;

/// An open GPU.
#[cfg(feature = "cuda")]
pub(crate) type Gpu = std::sync::Arc<crate::backend::cuda::driver::Device>;

/// There is no GPU.
#[cfg(not(feature = "cuda"))]
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub facts: Facts,
}

/// The error for a requested GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn none<T>() -> Result<T> {
    Err(crate::error::Error::request("this program was built without CUDA (feature `cuda`)"))
}

/// The longest chain of additions in the precision of the factors.
#[cfg(feature = "cuda")]
pub(crate) const CHAIN: u32 = crate::backend::cuda::abi::SHARE;
#[cfg(not(feature = "cuda"))]
pub(crate) const CHAIN: u32 = 1;

#[cfg(not(feature = "cuda"))]
pub(crate) fn is_installed() -> bool {
    false
}

/// Opens the GPU with this number, for which threads wait as long as `timeout` says.
#[cfg(feature = "cuda")]
pub(super) fn open(number: usize, timeout: Option<Duration>) -> Result<Gpu> {
    let gpu = crate::backend::cuda::driver::Device::open(number)?;
    if let Some(timeout) = timeout {
        gpu.set_patience(timeout);
    }
    Ok(gpu)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn open(_number: usize, _timeout: Option<Duration>) -> Result<Gpu> {
    none()
}

/// The number of GPUs.
#[cfg(feature = "cuda")]
pub(super) fn count() -> Result<usize> {
    crate::backend::cuda::driver::Device::count()
}

#[cfg(not(feature = "cuda"))]
pub(super) fn count() -> Result<usize> {
    none()
}

/// How rows are transferred between devices, and why.
#[cfg(feature = "cuda")]
pub(super) fn exchange(gpus: &[Gpu]) -> Result<(Exchange, String)> {
    crate::backend::cuda::devices::exchange(gpus)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn exchange(_gpus: &[Gpu]) -> Result<(Exchange, String)> {
    none()
}

/// Plans an operation on factors on a GPU.
pub(super) fn plan<T: Real>(
    gpu: &Gpu,
    store: &Store,
    demand: &Demand<'_>,
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    plan_part::<T>(gpu, store, demand, limits, (0, None))
}

/// The same of one of several GPUs, which takes `more` bytes of its memory for what others send, and has a share of the rows if all hold
/// all chunks.
#[cfg(feature = "cuda")]
pub(super) fn plan_part<T: Real>(
    gpu: &Gpu,
    store: &Store,
    demand: &Demand<'_>,
    limits: &DeviceLimits,
    (more, share): (u64, Option<Share>),
) -> Result<DevicePlan> {
    check_formats(store)?;
    let mut operation = operation::<T>(&gpu.facts, store, demand);
    operation.bytes += more;
    operation.share = share;
    crate::backend::cuda::plan(gpu, store, operation, limits)
}

#[cfg(feature = "cuda")]
fn operation<T: Real>(facts: &Facts, store: &Store, demand: &Demand<'_>) -> crate::backend::plan::Operation {
    use crate::{decomp, op};
    let Demand { modes, rank, starts, .. } = *demand;
    let shape = &store.manifest().shape;
    if starts.is_some() {
        decomp::cuda::operation::<T>(shape, rank, facts.multiprocessors as usize)
    } else {
        op::mttkrp::cuda::operation::<T>(shape, modes, rank)
    }
}

/// Plans the passes of one of several processes, over its share of a store.
#[cfg(feature = "cuda")]
pub(super) fn plan_share<T: Real>(
    gpu: &Gpu,
    share: &Store,
    demand: &Demand<'_>,
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    check_formats(share)?;
    // Whether or not NCCL connects the processes in the end: what it computes on the device in addition is small.
    let operation = match demand.starts {
        Some(_) => operation::<T>(&gpu.facts, share, demand),
        None => crate::decomp::hybrid::operation::<T>(&share.manifest().shape, demand.rank),
    };
    crate::backend::cuda::plan(gpu, share, operation, limits)
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn plan_share<T: Real>(
    _: &Gpu,
    _: &Store,
    _: &Demand<'_>,
    _: &DeviceLimits,
) -> Result<DevicePlan> {
    none()
}

/// For people: how GPUs of several processes exchange sums and rows.
#[cfg(feature = "cuda")]
pub(super) fn exchange_of_processes() -> String {
    crate::decomp::linked::exchange()
}

#[cfg(not(feature = "cuda"))]
pub(super) fn exchange_of_processes() -> String {
    String::new()
}

/// Bytes that such passes hold on the host beside factors.
#[cfg(feature = "cuda")]
pub(super) fn share_bytes(shape: &Shape, rank: usize) -> u64 {
    crate::decomp::hybrid::host_bytes(shape, rank)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn share_bytes(_: &Shape, _: usize) -> u64 {
    0
}

/// Estimated times of each mode, if a GPU has all of `store`.
#[cfg(feature = "cuda")]
pub(super) fn seconds<T: Real>(
    facts: &Facts,
    store: &Store,
    demand: &Demand<'_>,
) -> Result<Vec<ModeSeconds>> {
    check_formats(store)?;
    crate::backend::cuda::plan::seconds(facts, store, &operation::<T>(facts, store, demand))
}

/// Plans an operation on factors, or a share of it, on an empty GPU like this one, of this machine or another.
#[cfg(feature = "cuda")]
pub(super) fn plan_like<T: Real>(
    (facts, link): (&Facts, f64),
    store: &Store,
    demand: &Demand<'_>,
    limits: &DeviceLimits,
    share: Option<Share>,
) -> Result<DevicePlan> {
    let mut operation = operation::<T>(facts, store, demand);
    operation.share = share;
    crate::backend::cuda::plan::plan_like((facts, link), store, operation, limits)
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn plan_like<T: Real>(
    _: (&Facts, f64),
    _: &Store,
    _: &Demand<'_>,
    _: &DeviceLimits,
    _: Option<Share>,
) -> Result<DevicePlan> {
    none()
}

/// Bytes per second that the link to a GPU moves.
#[cfg(feature = "cuda")]
pub(super) fn link_rate(gpu: &Gpu, store: &Store) -> Result<f64> {
    crate::backend::cuda::plan::link_rate(gpu, store)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn link_rate(_: &Gpu, _: &Store) -> Result<f64> {
    none()
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn seconds<T: Real>(_: &Facts, _: &Store, _: &Demand<'_>) -> Result<Vec<ModeSeconds>> {
    none()
}

/// An error unless kernels can read all chunks of `store`.
#[cfg(feature = "cuda")]
fn check_formats(store: &Store) -> Result<()> {
    use crate::error::Error;
    use crate::format::{Format, Layout};
    let is_private = |format: &&Format| format.layout().0 >= Layout::PRIVATE.0;
    let private = store.manifest().partitions.iter().map(|partition| &partition.format).find(is_private);
    private.map_or(Ok(()), |format| {
        let what = "no kernel reads its chunks; take `Device::Cpu`";
        Err(Error::request(format!("format {}: {what}", format.name())))
    })
}

/// Plans what SpTTM along a mode uses of a GPU, with a matrix of a rank.
#[cfg(feature = "cuda")]
pub(super) fn plan_ttm<T: Real>(
    gpu: &Gpu,
    store: &Store,
    (mode, rank): (usize, usize),
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    check_formats(store)?;
    let DeviceLimits { memory, lanes, passes, .. } = *limits;
    let limits = DeviceLimits { memory, lanes, passes, ..DeviceLimits::default() };
    let operation =
        crate::op::ttm::cuda::operation::<T>(store.manifest(), mode, rank, gpu.facts.multiprocessors);
    crate::backend::cuda::plan(gpu, store, operation, &limits)
}

/// Bytes of host memory for fibers on their way from a GPU, by a plan for it.
#[cfg(feature = "cuda")]
pub(super) fn ttm_windows_bytes<T: Real>(
    manifest: &Manifest,
    (mode, rank): (usize, usize),
    plan: &DevicePlan,
) -> u64 {
    crate::op::ttm::cuda::beside_device_bytes::<T>(manifest, mode, rank, plan)
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn ttm_windows_bytes<T: Real>(_: &Manifest, _: (usize, usize), _: &DevicePlan) -> u64 {
    0
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn plan_ttm<T: Real>(
    _: &Gpu,
    _: &Store,
    _: (usize, usize),
    _: &DeviceLimits,
) -> Result<DevicePlan> {
    none()
}

/// Plans SpTTMc of `modes` on a GPU, with factors of `ranks` columns.
#[cfg(feature = "cuda")]
pub(super) fn plan_ttmc<T: Real>(
    gpu: &Gpu,
    store: &Store,
    (modes, ranks): (&[usize], &[usize]),
    limits: &DeviceLimits,
) -> Result<DevicePlan> {
    check_formats(store)?;
    let operation = crate::op::mttkrp::cuda::ttmc_operation::<T>(&store.manifest().shape, modes, ranks);
    crate::backend::cuda::plan(gpu, store, operation, limits)
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn plan_ttmc<T: Real>(
    _: &Gpu,
    _: &Store,
    _: (&[usize], &[usize]),
    _: &DeviceLimits,
) -> Result<DevicePlan> {
    none()
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::extra_unused_type_parameters, reason = "as it is with a GPU")]
pub(super) fn plan_part<T: Real>(
    _: &Gpu,
    _: &Store,
    _: &Demand<'_>,
    _: &DeviceLimits,
    _: (u64, Option<Share>),
) -> Result<DevicePlan> {
    none()
}
