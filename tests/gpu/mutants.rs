//! Establishes, on a CUDA device or else on the mock driver that `BLCO_MOCK_CUDA` names, that false stores
//! (fuzz/stores) have the same effect on a device as on the host: those that every reader accepts give MTTKRP, SpTTMc and TTV the
//! same results within the derived bounds, and those that are refused when their chunks are read are refused there too, by SpTTM as well. If nonzeros are outside
//! the range of values, which a verifier refuses, a device may refuse the store when it sorts copies.
//!
//! `BLCO_MUTANTS=2000` sets the number of mutants, of which at least 300 must be accepted. `BLCO_SEED=7` takes others.

use crate::common::Tensor;
use crate::on_a_device::on_a_device;
use crate::stores::agree::{
    Elements, Held, Judgement, check, check_mttkrp, check_ttv, factors, judge, modes, vector,
};
use crate::stores::{Seeded, bases, mutant};
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device};
use blco::internals::backend::device::{DeviceLimits, DeviceOrder, KernelSource, TtvVariant};
use blco::internals::backend::plan::Reads;
use blco::internals::dense::Matrix;
use blco::internals::encoding::IndexEncoding;
use blco::internals::error::Result;
use blco::internals::format::Layout;
use blco::internals::op::mttkrp::cuda::{self as mttkrp_on_gpu, DeviceMttkrp};
use blco::internals::op::oracle;
use blco::internals::op::ttm::cuda::{self as ttm_on_gpu, DeviceTtm, WINDOW_BYTES};
use blco::internals::op::ttv::cuda::{self as ttv_on_gpu, DeviceTtv};
use blco::internals::op::ttv::streams;
use blco::internals::store::{Format, Store};
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::sync::Arc;

const VARIANTS: [TtvVariant; 2] = [TtvVariant::Balanced, TtvVariant::TwoLevel];
const ORDERS: [DeviceOrder; 3] = [DeviceOrder::Store, DeviceOrder::Target, DeviceOrder::Fibers];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// MTTKRP or SpTTMc of all modes, of the second of two passes, of chunks as they lie or as the plan has it.
fn products(
    device: &Arc<Device>,
    store: &Store,
    factors: &[Matrix<f64>],
    order: DeviceOrder,
    (is_kronecker, as_they_lie): (bool, bool),
) -> Result<Vec<(usize, Matrix<f64>)>> {
    let shape = &store.manifest().shape;
    let (modes, ranks): (Vec<usize>, Vec<usize>) = factors.iter().map(Matrix::columns).enumerate().unzip();
    let mut operation = if is_kronecker {
        mttkrp_on_gpu::ttmc_operation::<f64>(shape, &modes, &ranks)
    } else {
        mttkrp_on_gpu::operation::<f64>(shape, &modes, ranks[0])
    };
    if as_they_lie {
        operation.reads = Reads::AsTheyLie;
    }
    let limits = DeviceLimits { lanes: Some(2), passes: 2, order, ..DeviceLimits::default() };
    let device_plan = plan_device(device, store, operation, &limits)?;
    let limits = Limits { passes: 2, held: device_plan.held_chunks(), ..Limits::default() };
    let plan = plan(store, 0, &limits)?;
    let kernels = device_plan.kernels(&KernelSource::default());
    let mut op = if is_kronecker {
        DeviceMttkrp::ttmc(device, store, &ranks, &modes, &kernels)?
    } else {
        DeviceMttkrp::prepare(device, store, ranks[0], &modes, &kernels)?
    };
    op.put(factors)?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let mut executor = Executor::new(store, &plan, &mut backend)?;
    executor.pass(&mut backend, &|_| ())?;
    executor.pass(&mut backend, &|_| ())?;
    backend.op().results(store.sys())
}

/// SpTTM along a mode, in one pass; how many fibers there are.
fn ttm(device: &Arc<Device>, store: &Store, mode: usize) -> Result<u64> {
    let dim = usize::try_from(store.manifest().shape.dims()[mode]).unwrap();
    let matrix = Matrix::<f64>::seeded(store.sys(), dim, 2, mode, 5)?;
    let operation = ttm_on_gpu::operation::<f64>(store.manifest(), mode, 2, device.facts.multiprocessors);
    let limits = DeviceLimits { lanes: Some(2), passes: 1, ..DeviceLimits::default() };
    let device_plan = plan_device(device, store, operation, &limits)?;
    let op = DeviceTtm::new(device, store, mode, (&matrix).into(), &device_plan, WINDOW_BYTES)?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let plan = plan(store, 0, &Limits::default())?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ())?;
    backend.op().finish(None)
}

/// TTV along the leaves' mode.
fn ttv(device: &Arc<Device>, store: &Store, mode: usize, x: &[f64], variant: TtvVariant) -> Result<Elements> {
    let order = store.manifest().shape.order();
    let demand = ttv_on_gpu::operation::<f64>(store.manifest(), mode);
    let limits = DeviceLimits { lanes: Some(2), passes: 1, ..DeviceLimits::default() };
    let device_plan = plan_device(device, store, demand, &limits)?;
    let plan = plan(store, 0, &Limits::default())?;
    let mut found = Elements::new();
    let mut sink = |batches| {
        found.extend(crate::runner::elements(batches, order));
        Ok(())
    };
    let op = DeviceTtv::new(device, store, x, variant, Some(&mut sink))?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let mut executor = Executor::new(store, &plan, &mut backend)?;
    executor.pass(&mut backend, &|_| ())?;
    backend.op().finish()?;
    drop((executor, backend));
    Ok(found)
}

/// Whether this error reports a store's false range of values, and a nonzero is outside of it.
fn refuses_the_range(error: Option<&str>, store: &Store, read: Option<&Tensor>) -> bool {
    let range = store.manifest().value_min..=store.manifest().value_max;
    error.is_some_and(|e| e.ends_with("/manifest: corrupt: value min and max are not those of the nonzeros"))
        && read.is_some_and(|tensor| tensor.values.iter().any(|value| !range.contains(value)))
}

/// Runs a store on the device, with the host's verdict.
fn compare(device: &Arc<Device>, store: &Store, turn: usize, judgement: &Judgement) -> Held {
    let alike = |what: &str, error: Option<String>| match (&judgement.read, error) {
        (Ok(_), Some(e)) => Err(format!("{what} refuses on the device what the host takes: {e}")),
        (Err(why), None) => Err(format!("{what} takes on the device what the host refuses: {why}")),
        _ => Ok(()),
    };
    let read = judgement.read.as_ref().ok();
    let tiled = store.format() == Format::blco(IndexEncoding::Tiled);
    let order = if tiled { ORDERS[turn % 3] } else { DeviceOrder::Store };
    let factors = factors(store);
    let layout = |number| store.manifest().partitions[store.part_of(number)].format.layout();
    let can_lie = (0..store.manifest().chunks.len())
        .any(|number| [Layout::TREE, Layout::SEGMENTS].contains(&layout(number)));
    let as_they_lie = can_lie && !turn.is_multiple_of(4);
    let results = products(device, store, &factors, order, (false, as_they_lie));
    let error = results.as_ref().err().map(ToString::to_string);
    let sorts = order != DeviceOrder::Store;
    if !(sorts && refuses_the_range(error.as_deref(), store, read)) {
        alike("MTTKRP", error)?;
    }
    if let (Some(tensor), Ok(results)) = (read, results) {
        check_mttkrp(tensor, &factors, &results)?;
    }
    if as_they_lie {
        let results = products(device, store, &factors, order, (true, true));
        alike("SpTTMc", results.as_ref().err().map(ToString::to_string))?;
        if let (Some(tensor), Ok(results)) = (read, results) {
            check(tensor, &results, "SpTTMc", |modes| oracle::ttmc(&mut { tensor }, &factors, modes))?;
        }
        let found = ttm(device, store, turn % factors.len());
        alike("SpTTM", found.as_ref().err().map(ToString::to_string))?;
    }
    for mode in modes(store).into_iter().filter(|&mode| streams(store.manifest(), mode)) {
        let x = vector(store, mode);
        let found = ttv(device, store, mode, &x, VARIANTS[turn % 2]);
        alike("TTV", found.as_ref().err().map(ToString::to_string))?;
        if let (Some(tensor), Ok(found)) = (read, found) {
            check_ttv(tensor, mode, &x, found)?;
        }
    }
    Ok(())
}

#[test]
fn mutants_run_on_a_device_as_on_the_host() {
    on_a_device(module_path!(), "mutants_run_on_a_device_as_on_the_host", mutants);
}

fn mutants(device: &Arc<Device>) {
    let (seed, count) = (number("BLCO_SEED").unwrap_or(1), number("BLCO_MUTANTS").unwrap_or(60));
    let (bases, dir) = (bases(), tempfile::tempdir().unwrap());
    let (mut accepted, mut refused, mut turn) = (0, 0, 0);
    for number in 0..count {
        let lying = mutant(&bases, &mut Seeded::new(seed, number));
        let at = dir.path().join("store");
        std::fs::create_dir(&at).unwrap();
        lying.write(&at);
        let what = || format!("mutant {number} of seed {seed}: {}", lying.story.join("; "));
        let judgement = judge(&at).unwrap_or_else(|e| panic!("{}: {e}", what()));
        // Faults that the manifest shows never reach a device.
        if let Ok(store) = Store::open(&Sys::default(), &at) {
            let read = judgement.read.as_ref().ok();
            let huge = read.is_some_and(|tensor| tensor.values.iter().any(|v| v.abs() > 1e300));
            if !huge {
                compare(device, &store, turn, &judgement).unwrap_or_else(|e| panic!("{}: {e}", what()));
                turn += 1;
                *(if read.is_some() { &mut accepted } else { &mut refused }) += 1;
            }
        }
        std::fs::remove_dir_all(&at).unwrap();
    }
    eprintln!("{accepted} accepted and {refused} refused mutants of {count} on the device");
    assert!(accepted >= count / 7 && refused > 0, "{accepted} accepted, {refused} refused of {count}");
}
