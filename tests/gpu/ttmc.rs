//! Establishes, on a CUDA device or else on the mock driver, that SpTTMc on it agrees with the oracle within the derived bound:
//! orders 2 to 8, ranks that differ by mode, both precisions, stores of one partition and of several, streamed, resident, and from
//! mode-sorted copies.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::abi::SHARE;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::kernels::Matrices;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device};
use blco::internals::backend::device::{DeviceLimits, DeviceOrder, KernelSource};
use blco::internals::dense::{FactorView, Matrix, Real};
use blco::internals::format::Layout;
use blco::internals::op::mttkrp::cuda::{DeviceMttkrp, ttmc_operation};
use blco::internals::op::mttkrp::serving_view;
use blco::internals::op::oracle;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::sync::Arc;

/// How nonzeros are read: passes, sort order, whether bits must be the same in every run.
const WAYS: [(u32, DeviceOrder, bool); 4] = [
    (1, DeviceOrder::Store, false),
    (2, DeviceOrder::Store, false),
    (2, DeviceOrder::Target, false),
    (1, DeviceOrder::Auto, true),
];

fn run<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    factors: &[Matrix<T>],
    modes: &[usize],
    (passes, order, deterministic): (u32, DeviceOrder, bool),
    compile: Option<bool>,
) -> Vec<(usize, Matrix<T>)> {
    let ranks: Vec<usize> = factors.iter().map(Matrix::columns).collect();
    let operation = ttmc_operation::<T>(&store.manifest().shape, modes, &ranks);
    let limits = DeviceLimits { passes, order, deterministic, ..DeviceLimits::default() };
    let device_plan = plan_device(device, store, operation, &limits).unwrap();
    assert_eq!(device_plan.copies().count() == modes.len(), order == DeviceOrder::Target || deterministic);
    let limits = Limits { passes, held: device_plan.held_chunks(), ..Limits::default() };
    let plan = plan(store, 0, &limits).unwrap();
    let kernels = device_plan.kernels(&KernelSource { compile, ..KernelSource::default() });
    let lies = matches!(store.format().layout(), Layout::TREE | Layout::SEGMENTS);
    // Trees that stay are converted once if each serves one mode, unless rows are long.
    let widest = ranks.iter().product::<usize>() / ranks.iter().min().unwrap();
    let serve_one = lies && store.format().product_modes() == 0 && store.chunks_for(0) != store.chunks_for(1);
    let once = passes > 1 && serve_one && widest < 128;
    let as_they_lie = lies && order == DeviceOrder::Store && !once;
    assert_eq!(device_plan.as_they_lie, as_they_lie, "{}", store.path().display());
    let mut op = DeviceMttkrp::ttmc(device, store, &ranks, modes, &kernels).unwrap();
    op.put(factors.iter().map(|factor| FactorView::Host(factor.into()))).unwrap();
    let mut backend = CudaBackend::new(device, store, &device_plan, op).unwrap();
    let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
    for _ in 0..passes {
        executor.pass(&mut backend, &|_| ()).unwrap();
    }
    assert!(backend.notes().is_empty(), "{:?}", backend.notes());
    backend.op().results(store.sys()).unwrap()
}

fn agrees<T: Real + bytemuck::Pod>(device: &Arc<Device>, tensor: &Tensor, stores: &[Store], turn: usize) {
    let order = tensor.order();
    let ranks = match turn % 3 {
        // Rows too wide for sums of fibers beside a tree.
        0 if order == 2 => &[5, 150][..],
        // What threads take of a row is whole, a part, or several times that.
        0 if order <= 4 => &[8, 10, 5, 16][..order],
        1 if order <= 4 => &[11, 2, 17, 9][..order],
        _ => &[3, 5, 4, 1, 2, 3, 1, 2][..order],
    };
    let sys = Sys::default();
    let seeded = |(mode, (&dim, &rank)): (usize, (&u64, &usize))| {
        Matrix::<T>::seeded(&sys, usize::try_from(dim).unwrap(), rank, mode, 9).unwrap()
    };
    let factors: Vec<Matrix<T>> = tensor.dims.iter().zip(ranks).enumerate().map(seeded).collect();
    let modes: Vec<usize> = (0..order).collect();
    let expected = oracle::ttmc(&mut { tensor }, &factors, &modes).unwrap();
    for (n, store) in stores.iter().enumerate() {
        let store = &serving_view(store, &modes);
        for (way, &(passes, sorted, deterministic)) in WAYS.iter().enumerate() {
            let sorts = sorted == DeviceOrder::Target || deterministic;
            if (sorts && store.format().layout() == Layout::RAW) || (way + n + turn).is_multiple_of(2) {
                continue;
            }
            let what = format!("{}: order {order}, {sorted:?}, {deterministic}", store.path().display());
            // Compiled where that is possible, or not.
            let compile = (n + turn).is_multiple_of(3).then_some(false);
            let results = run(device, store, &factors, &modes, (passes, sorted, deterministic), compile);
            assert_eq!(results.len(), order, "{what}");
            for (expected, (mode, result)) in expected.iter().zip(&results) {
                let comparison = expected.compare(result, order, SHARE);
                assert!(comparison.holds, "{what}: mode {}: {:.2}", mode + 1, comparison.worst);
            }
            if deterministic {
                let again = run(device, store, &factors, &modes, (passes, sorted, deterministic), compile);
                assert_eq!(again, results, "{what}: bits");
            }
        }
    }
}

#[test]
fn every_order_agrees_with_the_oracle() {
    on_a_device(module_path!(), "every_order_agrees_with_the_oracle", |device| {
        let tensors = [
            Tensor::random(&[300, 400], 9000, 1, values::fraction),
            Tensor::random(&[70, 500, 9], 9000, 2, values::integer),
            Tensor::random(&[20, 30, 10, 40], 6000, 3, values::single),
            Tensor::random(&[9, 1, 8, 11, 30], 5000, 4, values::few),
            Tensor::random(&[5, 4, 6, 3, 7, 9], 3000, 5, values::decimal),
            Tensor::random(&[3, 4, 2, 5, 3, 4, 6], 2000, 6, values::fraction),
            Tensor::random(&[3, 4, 2, 5, 3, 4, 2, 6], 2000, 7, values::with_zeros),
            // Long fibers.
            Tensor::random(&[30, 20, 600], 20_000, 8, values::fraction),
            Tensor::random(&[7, 50, 6, 40], 9000, 9, values::fraction),
        ];
        for (turn, tensor) in tensors.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let kinds = [Kind::Tiled, Kind::Raw, Kind::CsfAll, Kind::Mmcsf, Kind::Hbcsf, Kind::FcooMttkrp];
            let store =
                |kind| packed(tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
            let stores: Vec<Store> = kinds.map(store).into_iter().collect();
            if turn.is_multiple_of(2) {
                agrees::<f64>(device, tensor, &stores, turn);
            } else {
                agrees::<f32>(device, tensor, &stores, turn);
            }
        }
    });
}

/// Sorted nonzeros whose factors have columns enough for tensor cores, of widths that fill their blocks and that do not.
fn agrees_by_matrices<T: Real + bytemuck::Pod>(device: &Arc<Device>, tensor: &Tensor, ranks: &[usize]) {
    let sys = Sys::default();
    let seeded = |(mode, (&dim, &rank)): (usize, (&u64, &usize))| {
        Matrix::<T>::seeded(&sys, usize::try_from(dim).unwrap(), rank, mode, 9).unwrap()
    };
    let factors: Vec<Matrix<T>> = tensor.dims.iter().zip(ranks).enumerate().map(seeded).collect();
    let modes: Vec<usize> = (0..ranks.len()).collect();
    let expected = oracle::ttmc(&mut { tensor }, &factors, &modes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = packed(tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
    for compile in [None, Some(false)] {
        let operation = DeviceMttkrp::<T>::ttmc(
            device,
            &store,
            ranks,
            &modes,
            &KernelSource { compile, ..KernelSource::default() },
        );
        let name = operation.unwrap().kernels().name.clone();
        assert_eq!(name.contains(", sorted m"), Matrices::suit(&device.facts), "{name}");
        for way in [(2, DeviceOrder::Target, false), (1, DeviceOrder::Auto, true)] {
            let results = run(device, &store, &factors, &modes, way, compile);
            for (expected, (mode, result)) in expected.iter().zip(&results) {
                let comparison = expected.compare(result, ranks.len(), SHARE);
                assert!(comparison.holds, "{name}, {ranks:?}: mode {}: {:.2}", mode + 1, comparison.worst);
            }
            if way.2 {
                let again = run(device, &store, &factors, &modes, way, compile);
                assert_eq!(again, results, "{name}, {ranks:?}: bits");
            }
        }
    }
}

#[test]
fn products_of_matrices_agree_with_the_oracle() {
    on_a_device(module_path!(), "products_of_matrices_agree_with_the_oracle", |device| {
        // Rows of one nonzero and of many; last tiles that are not full.
        let of_order = |order: usize, nnz, values: fn(u64) -> f64| {
            Tensor::random(&[90, 40, 17, 30, 5, 3, 4, 2][..order], nnz, order as u64, values)
        };
        let of_3 = of_order(3, 3000, values::fraction);
        for ranks in [[16, 16, 16], [20, 24, 19]] {
            agrees_by_matrices::<f64>(device, &of_3, &ranks);
        }
        for ranks in [[12, 16, 9], [33, 32, 12]] {
            agrees_by_matrices::<f32>(device, &of_3, &ranks);
        }
        let short_rows = Tensor::random(&[5000, 40, 3000], 2000, 1, values::integer);
        agrees_by_matrices::<f32>(device, &short_rows, &[16, 10, 16]);
        let of_4 = of_order(4, 2000, values::single);
        agrees_by_matrices::<f64>(device, &of_4, &[8, 8, 8, 8]);
        agrees_by_matrices::<f32>(device, &of_4, &[7, 8, 6, 8]);
        agrees_by_matrices::<f32>(device, &of_order(5, 1500, values::fraction), &[4, 4, 4, 8, 8]);
        agrees_by_matrices::<f64>(device, &of_order(6, 1000, values::decimal), &[2, 2, 2, 4, 8, 8]);
        agrees_by_matrices::<f64>(device, &of_order(8, 1000, values::few), &[1, 1, 1, 2, 2, 4, 8, 8]);
    });
}

#[test]
fn results_with_too_many_columns_are_refused() {
    on_a_device(module_path!(), "results_with_too_many_columns_are_refused", |device| {
        let tensor = Tensor::random(&[7, 5, 9], 100, 8, values::fraction);
        let dir = tempfile::tempdir().unwrap();
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let made = |ranks: [usize; 3]| {
            DeviceMttkrp::<f64>::ttmc(device, &store, &ranks, &[0], &KernelSource::default())
        };
        let refused = made([1, 1 << 14, (1 << 14) + 1]).unwrap_err().to_string();
        assert!(refused.contains("268451840 columns; a GPU computes up to 268435456"), "{refused}");
        made([1, 1 << 4, 1 << 4]).unwrap();
    });
}
