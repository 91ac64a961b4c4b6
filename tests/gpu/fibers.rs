//! Establishes, on a CUDA device or else on the mock driver, that MTTKRP and SpTTMc agree with the oracle if sums of fibers serve modes:
//! orders 3 to 8, fibers along each mode, both precisions, stores of one partition and of several; in a decomposition, whose factors
//! change, also with products in f64; and that copies serve where sums have no room.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::abi::SHARE;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device};
use blco::internals::backend::device::{DeviceLimits, DeviceOrder, KernelSource};
use blco::internals::backend::plan::{DevicePlan, Operation, Shortfall};
use blco::internals::dense::{FactorView, Matrix, Real};
use blco::internals::op::mttkrp::ModeMatrix;
use blco::internals::op::mttkrp::cuda::{DeviceMttkrp, alternating_operation, operation, ttmc_operation};
use blco::internals::op::oracle::{self, OracleMode};
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::collections::HashSet;
use std::sync::Arc;

const PASSES: u32 = 3;

/// A tensor whose fibers along `leaf` have several nonzeros each, one of them many.
fn with_fibers(dims: &[u64], fibers: usize, leaf: usize, seed: u64) -> Tensor {
    let of_fibers = Tensor::random(dims, fibers, seed, values::integer);
    let mut tensor = Tensor { dims: dims.to_vec(), ..Tensor::default() };
    for (fiber, (index, value)) in of_fibers.rows().enumerate() {
        let nnz = if fiber == 7 { 900 } else { 2 + fiber as u64 % 9 };
        for i in 0..nnz.min(dims[leaf]) {
            let mut index = index.to_vec();
            index[leaf] = u32::try_from((u64::from(index[leaf]) + i) % dims[leaf]).unwrap();
            tensor.indices.extend(index);
            tensor.values.push(value + i as f64);
        }
    }
    tensor
}

/// Factors of these ranks.
fn seeded<T: Real>(tensor: &Tensor, ranks: &[usize], seed: u64) -> Vec<Matrix<T>> {
    let rows = tensor.dims.iter().map(|&dim| usize::try_from(dim).unwrap());
    let of_mode = |(mode, (rows, &rank))| Matrix::seeded(&Sys::default(), rows, rank, mode, seed).unwrap();
    rows.zip(ranks).enumerate().map(of_mode).collect()
}

/// The fibers along `leaf`.
fn count(tensor: &Tensor, leaf: usize) -> usize {
    let other = |index: &[u32]| [&index[..leaf], &index[leaf + 1..]].concat();
    tensor.rows().map(|(index, _)| other(index)).collect::<HashSet<_>>().len()
}

fn limits(order: DeviceOrder, memory: Option<u64>) -> DeviceLimits {
    DeviceLimits { passes: PASSES, order, memory, ..DeviceLimits::default() }
}

/// A backend after a few passes.
fn passed<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    device_plan: &DevicePlan,
    op: DeviceMttkrp<T>,
) -> CudaBackend<DeviceMttkrp<T>> {
    let limits = Limits { passes: PASSES, held: device_plan.held_chunks(), ..Limits::default() };
    let plan = plan(store, 0, &limits).unwrap();
    let mut backend = CudaBackend::new(device, store, device_plan, op).unwrap();
    let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
    for _ in 0..PASSES {
        executor.pass(&mut backend, &|_| ()).unwrap();
    }
    backend
}

fn compare<T: Real>(what: &str, order: usize, oracle: &[OracleMode], results: &[ModeMatrix<T>]) {
    for (expected, (mode, result)) in oracle.iter().zip(results) {
        let comparison = expected.compare(result, order, SHARE);
        assert!(comparison.holds, "{what}: mode {}: {:.2} of the bound", mode + 1, comparison.worst);
    }
}

fn agrees<T: Real + bytemuck::Pod>(device: &Arc<Device>, tensor: &Tensor, leaf: usize, turn: usize) {
    let (order, sys, dir) = (tensor.order(), Sys::default(), tempfile::tempdir().unwrap());
    let modes: Vec<usize> = (0..order).collect();
    let ranks: Vec<usize> = modes.iter().map(|mode| [3, 5, 2, 1, 2, 3, 1, 2][(mode + turn) % 8]).collect();
    let rank = [7, 16, 40][turn % 3];
    let (factors, of_ttmc) = (seeded::<T>(tensor, &vec![rank; order], 9), seeded::<T>(tensor, &ranks, 9));
    let expected = oracle::mttkrp(&mut { tensor }, &factors, &modes).unwrap();
    let expected_ttmc = oracle::ttmc(&mut { tensor }, &of_ttmc, &modes).unwrap();
    for kind in [Kind::Tiled, Kind::HocfsCsr, Kind::Mmcsf, Kind::CsfAll] {
        let what = format!("{kind:?}, order {order}, fibers along {leaf}");
        let store = packed(tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
        let store = &store.flat();
        let shape = &store.manifest().shape;
        let planned = |operation: Operation| {
            plan_device(device, store, operation, &limits(DeviceOrder::Fibers, None)).unwrap()
        };
        let kernels =
            KernelSource { compile: turn.is_multiple_of(2).then_some(false), ..KernelSource::default() };
        let device_plan = planned(operation::<T>(shape, &modes, rank));
        let op = DeviceMttkrp::new(device, store, &factors, &modes, &device_plan.kernels(&kernels)).unwrap();
        let mut backend = passed(device, store, &device_plan, op);
        compare(&what, order, &expected, &backend.op().results(&sys).unwrap());
        let fibers = backend.plan().fibers.clone().unwrap_or_else(|| panic!("{what}"));
        let wanted = count(tensor, leaf) as f64;
        assert_eq!(fibers.mode, leaf + 1, "{what}");
        assert!((fibers.fibers as f64 / wanted - 1.0).abs() < 0.15, "{what}: {} of {wanted}", fibers.fibers);
        assert!(backend.notes().is_empty(), "{what}: {:?}", backend.notes());

        let device_plan = planned(ttmc_operation::<T>(shape, &modes, &ranks));
        let kernels = device_plan.kernels(&kernels);
        let mut op = DeviceMttkrp::ttmc(device, store, &ranks, &modes, &kernels).unwrap();
        op.put(of_ttmc.iter().map(|factor| FactorView::Host(factor.into()))).unwrap();
        let mut backend = passed(device, store, &device_plan, op);
        assert!(backend.plan().fibers.is_some() && backend.notes().is_empty(), "{what}");
        compare(&format!("SpTTMc, {what}"), order, &expected_ttmc, &backend.op().results(&sys).unwrap());
    }
}

#[test]
fn every_order_agrees_with_the_oracle() {
    on_a_device(module_path!(), "every_order_agrees_with_the_oracle", |device| {
        let cases: [(&[u64], usize, usize); 9] = [
            (&[50, 40, 2000], 900, 2),
            (&[1000, 70, 33], 800, 0),
            (&[30, 1200, 300], 700, 1),
            (&[20, 30, 40, 900], 800, 3),
            (&[20, 900, 30, 40], 800, 1),
            (&[8, 9, 7, 10, 300], 500, 4),
            (&[300, 5, 4, 6, 3, 7], 400, 0),
            (&[3, 4, 2, 200, 3, 4, 6], 300, 3),
            (&[3, 4, 2, 5, 3, 4, 2, 100], 300, 7),
        ];
        for (turn, &(dims, fibers, leaf)) in cases.iter().enumerate() {
            let tensor = with_fibers(dims, fibers, leaf, turn as u64);
            if turn.is_multiple_of(2) {
                agrees::<f64>(device, &tensor, leaf, turn);
            } else {
                agrees::<f32>(device, &tensor, leaf, turn);
            }
        }
    });
}

/// One mode at a time, as decompositions compute: sums are those of the factor that the leaf mode has now. Passes with products in f64 take
/// none.
#[test]
fn sums_follow_the_factors() {
    on_a_device(module_path!(), "sums_follow_the_factors", |device| {
        let (tensor, dir) = (with_fibers(&[60, 700, 25], 800, 1, 3), tempfile::tempdir().unwrap());
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let shape = &store.manifest().shape;
        for rank in [12, 5] {
            let kernels = KernelSource::default();
            let op = DeviceMttkrp::<f32>::alternating(device, &store, 12, &kernels).unwrap();
            let operation = alternating_operation::<f32>(shape, 12, 0);
            let device_plan =
                plan_device(device, &store, operation, &limits(DeviceOrder::Fibers, None)).unwrap();
            let limits = Limits { passes: 20, held: device_plan.held_chunks(), ..Limits::default() };
            let plan = plan(&store, 0, &limits).unwrap();
            let mut backend = CudaBackend::new(device, &store, &device_plan, op).unwrap();
            let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
            let seeded = |rank, seed| seeded::<f32>(&tensor, &[rank; 3], seed);
            if rank == 12 {
                backend.op().put(seeded(12, 1).iter().map(|f| FactorView::Host(f.into()))).unwrap();
                for _ in 0..2 {
                    executor.pass(&mut backend, &|_| ()).unwrap();
                }
                assert!(backend.plan().fibers.is_some());
            }
            backend.remake(|op| op.set_rank(&store, rank, &kernels)).unwrap();
            for seed in 2..5 {
                let factors = seeded(rank, seed);
                // All at once, or the one of the fibers' mode after the others.
                backend.op().put(factors.iter().map(|f| FactorView::Host(f.into()))).unwrap();
                if seed == 4 {
                    backend.op().put_factor(1, &seeded(rank, 9)[1]).unwrap();
                    for mode in [0, 1, 2] {
                        backend.op().aim(mode, false).unwrap();
                        executor.pass(&mut backend, &|_| ()).unwrap();
                    }
                    backend.op().put_factor(1, &factors[1]).unwrap();
                }
                let oracle = oracle::mttkrp(&mut { &tensor }, &factors, &[0, 1, 2]).unwrap();
                for (mode, wide) in [(0, false), (0, true), (1, true), (2, false), (1, false), (2, true)] {
                    backend.op().aim(mode, wide).unwrap();
                    executor.pass(&mut backend, &|_| ()).unwrap();
                    let rows = usize::try_from(tensor.dims[mode]).unwrap();
                    let what = format!("rank {rank}, seed {seed}, mode {mode}, {wide}");
                    let mut sums = vec![0f32; rows * rank];
                    if backend.op().update(mode).rounded {
                        backend.op().read_rounded(mode, &mut sums).unwrap();
                    } else {
                        let mut of_f64 = vec![0.0; rows * rank];
                        backend.op().read_sums(mode, &mut of_f64).unwrap();
                        sums.iter_mut().zip(of_f64).for_each(|(sum, x)| *sum = f32::nearest(x));
                    }
                    let comparison = oracle[mode].compare(&Matrix::from_rows(rows, rank, sums), 3, SHARE);
                    assert!(comparison.holds, "{what}: {:.2}", comparison.worst);
                }
            }
        }
    });
}

/// Plans take sums where they pay, and without room for them copies serve, or the store's order.
#[test]
fn without_room_for_sums_other_copies_serve() {
    on_a_device(module_path!(), "without_room_for_sums_other_copies_serve", |device| {
        let (tensor, dir, sys) =
            (with_fibers(&[50, 40, 2000], 900, 2, 5), tempfile::tempdir().unwrap(), Sys::default());
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let (shape, modes, rank) = (&store.manifest().shape, [0, 1, 2], 16);
        let factors = seeded::<f64>(&tensor, &[rank; 3], 1);
        let oracle = oracle::mttkrp(&mut { &tensor }, &factors, &modes).unwrap();
        let planned = |order, memory| {
            plan_device(device, &store, operation::<f64>(shape, &modes, rank), &limits(order, memory))
        };
        let whole = planned(DeviceOrder::Fibers, None).unwrap();
        let (mut with, mut without) = (0, 0);
        for part in 0..40 {
            let memory = whole.memory_bytes + whole.copies_bytes - whole.copies_bytes * part / 20;
            let Ok(device_plan) = planned(DeviceOrder::Fibers, Some(memory)) else { break };
            let op = DeviceMttkrp::new(device, &store, &factors, &modes, &KernelSource::default()).unwrap();
            let mut backend = passed(device, &store, &device_plan, op);
            compare("short of memory", 3, &oracle, &backend.op().results(&sys).unwrap());
            let short = backend.plan().shortfalls.iter().any(|s| matches!(s, Shortfall::NoFibers(_)));
            assert!(!short || backend.plan().fibers.is_none());
            if backend.plan().fibers.is_some() { with += 1 } else { without += 1 }
        }
        assert!(with > 0 && without > 0, "{with} with sums, {without} without");
        // So few nonzeros take longer to sort than sums save.
        let op = DeviceMttkrp::new(device, &store, &factors, &modes, &KernelSource::default()).unwrap();
        let backend = passed(device, &store, &planned(DeviceOrder::Auto, None).unwrap(), op);
        assert!(backend.plan().fibers.is_none());
    });
}
