//! Establishes, on whatever CUDA device there is or else on the mock driver, that SpTTM on it has the bits of the host, which equal the
//! definition: orders 2 to 8, every kind of store, both precisions, chunks, lanes and windows of every size; and that the plan falls
//! back to the CPU if the device is too small.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, all_kinds, options, packed, values};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device};
use blco::internals::backend::device::DeviceLimits;
use blco::internals::dense::{Matrix, Real};
use blco::internals::engine::{Device as Where, Engine};
use blco::internals::error::Result;
use blco::internals::op::ttm::cuda::{DeviceTtm, WINDOW_BYTES, operation};
use blco::internals::op::ttm::{Fibers, Oracle};
use blco::internals::pack::{Duplicates, PackOptions};
use blco::internals::shape::Shape;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::sync::Arc;

fn matrix<T: Real>(rows: u64, rank: usize) -> Matrix<T> {
    Matrix::seeded(&Sys::default(), usize::try_from(rows).unwrap(), rank, 0, 9).unwrap()
}

fn run<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    mode: usize,
    matrix: &Matrix<T>,
    (lanes, window_bytes): (usize, u64),
) -> Result<Fibers<T>> {
    let limits = DeviceLimits { lanes: Some(lanes), passes: 1, ..DeviceLimits::default() };
    let multiprocessors = device.facts.multiprocessors;
    let operation = operation::<T>(store.manifest(), mode, matrix.columns(), multiprocessors)?;
    let device_plan = plan_device(device, store, operation, &limits)?;
    let op = DeviceTtm::new(device, store, mode, matrix.into(), window_bytes)?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let plan = plan(store, 0, &Limits::default())?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ())?;
    assert!(backend.notes().is_empty(), "{:?}", backend.notes());
    let mut all = Fibers { coordinates: Vec::new(), values: Vec::new() };
    let count = backend.op().finish(Some(&mut |pieces| {
        for (coordinates, values) in pieces {
            all.coordinates.extend_from_slice(coordinates);
            all.values.extend_from_slice(values);
        }
        Ok(())
    }))?;
    assert_eq!(count * matrix.columns() as u64, all.values.len() as u64);
    assert_eq!(backend.op().finish(None)?, count, "again, counted");
    Ok(all)
}

fn bits<T: Real>(fibers: &Fibers<T>) -> Vec<u64> {
    fibers.values.iter().map(|x| x.widen().to_bits()).collect()
}

/// A store along all modes, each with the host's bits.
fn agrees<T: Real + bytemuck::Pod>(device: &Arc<Device>, tensor: &Tensor, store: &Store, rank: usize) {
    let host = Engine::builder().device(Where::Cpu).threads(2).build().unwrap();
    for mode in 0..tensor.order() {
        let matrix = matrix::<T>(tensor.dims[mode], rank);
        let what = format!("{}, mode {mode}, rank {rank}, {:?}", store.path().display(), T::PRECISION);
        let wanted = host.ttm(store, mode, &matrix).unwrap();
        let ways = [(3, WINDOW_BYTES), (1, 1)];
        for (n, way) in ways.into_iter().enumerate().take(if mode == 1 { 2 } else { 1 }) {
            let found = run(device, store, mode, &matrix, way).unwrap();
            assert!(found.coordinates == wanted.coordinates, "{what}, {way:?}: coordinates");
            assert!(bits(&found) == bits(&wanted), "{what}, {way:?}: bits");
            if n == 0 && mode == 0 {
                let shape = Shape::new(&tensor.dims).unwrap();
                let mut oracle = Oracle::new(&mut { tensor }, (&shape, 0), mode, &matrix).unwrap();
                oracle.compare(found.as_slices());
                let comparison = oracle.finish();
                assert!(comparison.holds && comparison.worst <= 1.0, "{what}: {comparison:?}");
            }
        }
    }
}

#[test]
fn every_order_and_kind_of_store_has_the_bits_of_the_host() {
    on_a_device(module_path!(), "every_order_and_kind_of_store_has_the_bits_of_the_host", |device| {
        let tensors = [
            Tensor::random(&[300, 400], 4000, 1, values::fraction),
            Tensor::random(&[70, 500, 9], 9000, 2, values::integer),
            Tensor::random(&[20, 30, 10, 40], 3000, 3, values::single),
            Tensor::random(&[9, 1, 8, 11, 30], 3000, 4, values::few),
            Tensor::random(&[5, 4, 6, 3, 7, 9], 2000, 5, values::decimal),
            Tensor::random(&[3, 4, 2, 5, 3, 4, 6], 1000, 6, values::fraction),
            Tensor::random(&[3, 4, 2, 5, 3, 4, 2, 6], 1000, 7, values::with_zeros),
        ];
        let dir = tempfile::tempdir().unwrap();
        for (turn, tensor) in tensors.iter().enumerate() {
            for (n, kind) in all_kinds().enumerate() {
                // Formats take turns with orders, ranks and precisions.
                if tensor.order() != 3 && (n + turn) % 4 != 0 {
                    continue;
                }
                let target = dir.path().join(format!("{turn}-{kind:?}"));
                let store = packed(tensor, &options(&target, kind, SMALL_CHUNKS));
                let rank = [1, 3, 16, 33][(n + turn) % 4];
                if (n / 3 + turn).is_multiple_of(2) {
                    agrees::<f64>(device, tensor, &store, rank);
                } else {
                    agrees::<f32>(device, tensor, &store, rank);
                }
            }
        }
    });
}

/// Fibers of one nonzero, of many tiles, of all lengths, that end where tiles do; windows of one tile; one nonzero.
#[test]
fn the_shapes_that_are_hard() {
    on_a_device(module_path!(), "the_shapes_that_are_hard", |device| {
        let rows: Vec<([u32; 3], f64)> = (0..1500).map(|i| ([i, i * 7 % 3001, i], f64::from(i))).collect();
        let tiles: Vec<([u32; 3], f64)> = (0..4096).map(|i| ([i / 512, 0, i % 512], f64::from(i))).collect();
        let lengths = [1, 2, 511, 512, 513, 1024, 1025, 3, 1536];
        let of_length = |(i, &length): (usize, &u32)| {
            let fiber = u32::try_from(i).unwrap();
            (0..length).map(move |k| ([fiber, 1, k], f64::from(k) - 0.3)).collect::<Vec<_>>()
        };
        let uneven: Vec<([u32; 3], f64)> = lengths.iter().enumerate().flat_map(of_length).collect();
        let tensors = [
            ("one fiber", Tensor::random(&[1, 1, 90_000], 5000, 8, values::fraction)),
            ("long and short", Tensor::random(&[3, 5, 4000], 5000, 10, values::fraction)),
            ("fibers of one", Tensor::of([3000, 3001, 3000], &rows)),
            ("fibers that are tiles", Tensor::of([8, 1, 512], &tiles)),
            ("fibers of many lengths", Tensor::of([9, 2, 1536], &uneven)),
            ("one nonzero", Tensor::of([5, 6, 7], &[([4, 0, 6], -2.0)])),
            (
                "more than 64 bits",
                Tensor::random(&[700, 513, 1024, 600, 900, 514, 800, 1000], 900, 3, values::one),
            ),
        ];
        let dir = tempfile::tempdir().unwrap();
        for (name, tensor) in &tensors {
            for kind in [Kind::Tiled, Kind::HocfsCsr, Kind::MmcsfStatic] {
                let target = dir.path().join(format!("{name}-{kind:?}"));
                let store = packed(tensor, &options(&target, kind, SMALL_CHUNKS));
                agrees::<f64>(device, tensor, &store, 5);
            }
        }
    });
}

/// Coordinates that repeat count each time, with the same bits in every run.
#[test]
fn repeated_coordinates_count_each_time() {
    on_a_device(module_path!(), "repeated_coordinates_count_each_time", |device| {
        let tensor = Tensor::random(&[6, 7, 8], 5000, 10, values::integer);
        let dir = tempfile::tempdir().unwrap();
        for kind in [Kind::Tiled, Kind::CsfAll, Kind::Mmcsf] {
            let options = PackOptions {
                duplicates: Duplicates::Keep,
                ..options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS)
            };
            let store = packed(&tensor, &options);
            for mode in 0..3 {
                let matrix = matrix::<f64>(tensor.dims[mode], 4);
                let found = run(device, &store, mode, &matrix, (3, WINDOW_BYTES)).unwrap();
                let again = run(device, &store, mode, &matrix, (1, 1)).unwrap();
                assert!(bits(&found) == bits(&again), "{kind:?}, mode {mode}");
                let shape = Shape::new(&tensor.dims).unwrap();
                let mut oracle = Oracle::new(&mut { &tensor }, (&shape, 0), mode, &matrix).unwrap();
                oracle.compare(found.as_slices());
                assert!(oracle.finish().holds, "{kind:?}, mode {mode}");
            }
        }
    });
}

/// A device that does not hold all nonzeros: the plan says what would do, and computes on the CPU.
#[test]
fn what_does_not_fit_is_computed_on_the_cpu() {
    on_a_device(module_path!(), "what_does_not_fit_is_computed_on_the_cpu", |_| {
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::random(&[70, 500, 9], 9000, 2, values::fraction);
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let matrix = matrix::<f64>(500, 8);
        let engine = |device, memory| Engine::builder().device(device).device_memory(memory).build().unwrap();
        let small = engine(Where::Auto, 1 << 18);
        let plan = small.plan_ttm::<f64>(&store, 1, 8).unwrap();
        assert!(
            plan.device().is_none() && plan.notes()[0].contains("of device memory"),
            "{:?}",
            plan.notes()
        );
        let refused = engine(Where::Cuda, 1 << 18).plan_ttm::<f64>(&store, 1, 8).unwrap_err().to_string();
        assert!(refused.contains("needs") && refused.lines().count() == 1, "{refused}");
        let large = engine(Where::Auto, 1 << 30);
        assert!(large.plan_ttm::<f64>(&store, 1, 8).unwrap().device().is_some());
        let [found, wanted] = [large, small].map(|engine| engine.ttm(&store, 1, &matrix).unwrap());
        assert!(found == wanted);
    });
}
