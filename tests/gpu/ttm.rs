//! Establishes, on whatever CUDA device there is or else on the mock driver, that SpTTM on it has the bits of the host, which equal the
//! definition: orders 2 to 8, every kind of store, both precisions, chunks, lanes and windows of every size, in one pass and in several;
//! and that the plan falls back to the CPU if the device is too small.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, all_kinds, options, packed, values};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::plan::again;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device};
use blco::internals::backend::device::DeviceLimits;
use blco::internals::backend::plan::Shortfall;
use blco::internals::dense::{Matrix, Real};
use blco::internals::engine::{Device as Where, Engine};
use blco::internals::error::Result;
use blco::internals::op::ttm::cuda::{DeviceTtm, WINDOW_BYTES, operation};
use blco::internals::op::ttm::{FiberSink, Fibers, Oracle};
use blco::internals::pack::{Duplicates, PackOptions};
use blco::internals::shape::Shape;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, PassReport, plan};
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::sync::Arc;

fn matrix<T: Real>(rows: u64, rank: usize) -> Matrix<T> {
    Matrix::seeded(&Sys::default(), usize::try_from(rows).unwrap(), rank, 0, 9).unwrap()
}

/// How the device is used.
#[derive(Clone, Copy, Debug)]
struct Way {
    lanes: usize,
    window_bytes: u64,
    /// Nonzeros at a time, if the device does not hold all.
    at_a_time: Option<u64>,
}

impl Way {
    const LARGE: Self = Self { lanes: 3, window_bytes: WINDOW_BYTES, at_a_time: None };
    const SMALL: Self = Self { lanes: 1, window_bytes: 1, at_a_time: None };

    fn in_ranges(self, nonzeros: u64) -> Self {
        Self { at_a_time: Some(nonzeros), ..self }
    }
}

/// The fibers, and the reports of the passes.
fn run_passes<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    mode: usize,
    matrix: &Matrix<T>,
    way: Way,
) -> Result<(Fibers<T>, Vec<PassReport>)> {
    let limits = DeviceLimits { lanes: Some(way.lanes), passes: 1, ..DeviceLimits::default() };
    let multiprocessors = device.facts.multiprocessors;
    let operation = operation::<T>(store.manifest(), mode, matrix.columns(), multiprocessors);
    let mut device_plan = plan_device(device, store, operation.clone(), &limits)?;
    if let Some(nonzeros) = way.at_a_time {
        let limits = DeviceLimits { memory: Some(device_plan.bytes_for(nonzeros)), ..limits };
        device_plan = plan_device(device, store, operation, &limits)?;
        let planned = device_plan.ranges.as_ref().unwrap().nonzeros;
        assert!(planned >= nonzeros, "{planned} nonzeros at a time, not {nonzeros}");
        device_plan = again(store, &device_plan, Shortfall::Nonzeros(nonzeros))?;
    }
    let op = DeviceTtm::new(device, store, mode, matrix.into(), &device_plan, way.window_bytes)?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let plan = plan(store, 0, &Limits::default())?;
    let mut executor = Executor::new(store, &plan, &mut backend)?;
    assert!(backend.notes().is_empty(), "{:?}", backend.notes());
    let mut all = Fibers { coordinates: Vec::new(), values: Vec::new() };
    let mut put = |pieces: &[(&[u32], &[T])]| {
        for (coordinates, values) in pieces {
            all.coordinates.extend_from_slice(coordinates);
            all.values.extend_from_slice(values);
        }
        Ok(())
    };
    let mut sink: FiberSink<'_, T> = &mut put;
    let (mut count, mut passes) = (0, Vec::new());
    while passes.is_empty() || backend.op().needs_pass() {
        passes.push(executor.pass(&mut backend, &|_| ())?);
        count += backend.op().finish(Some(&mut sink))?;
    }
    assert_eq!(count * matrix.columns() as u64, all.values.len() as u64);
    if way.at_a_time.is_none() {
        assert_eq!(backend.op().finish(None)?, count, "again, counted");
    }
    Ok((all, passes))
}

fn run<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    mode: usize,
    matrix: &Matrix<T>,
    way: Way,
) -> Result<Fibers<T>> {
    Ok(run_passes(device, store, mode, matrix, way)?.0)
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
        let ways = [Way::LARGE, Way::SMALL];
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
                let found = run(device, &store, mode, &matrix, Way::LARGE).unwrap();
                for way in [Way::SMALL, Way::LARGE.in_ranges(1000), Way::SMALL.in_ranges(2500)] {
                    let again = run(device, &store, mode, &matrix, way).unwrap();
                    assert!(bits(&found) == bits(&again), "{kind:?}, mode {mode}, {way:?}");
                }
                let shape = Shape::new(&tensor.dims).unwrap();
                let mut oracle = Oracle::new(&mut { &tensor }, (&shape, 0), mode, &matrix).unwrap();
                oracle.compare(found.as_slices());
                assert!(oracle.finish().holds, "{kind:?}, mode {mode}");
            }
        }
    });
}

/// The nonzeros of the longest fiber.
fn longest(fibers: &Fibers<f64>, tensor: &Tensor, mode: usize) -> u64 {
    let others = tensor.order() - 1;
    let mut lengths: BTreeMap<&[u32], u64> =
        fibers.coordinates.chunks(others).map(|fiber| (fiber, 0)).collect();
    for (index, _) in tensor.rows() {
        let fiber: Vec<u32> = (0..=others).filter(|&m| m != mode).map(|m| index[m]).collect();
        *lengths.get_mut(&fiber[..]).unwrap() += 1;
    }
    lengths.into_values().max().unwrap()
}

/// Ranges of fibers: of few and many nonzeros, of every order, kind of store and mode, inside and beyond the first mode, in windows of
/// one tile and of all, of keys that do not hold all bits of a fiber.
#[test]
fn several_passes_have_the_bits_of_one() {
    on_a_device(module_path!(), "several_passes_have_the_bits_of_one", |device| {
        let skewed = Tensor {
            indices: Tensor::random(&[40, 40, 40], 6000, 3, values::one)
                .indices
                .into_iter()
                .map(|i| i * i / 40 * i / 40)
                .collect(),
            ..Tensor::random(&[40, 40, 40], 6000, 3, values::fraction)
        };
        let tensors = [
            Tensor::random(&[300, 400], 4000, 1, values::fraction),
            Tensor::random(&[2, 500, 9], 6000, 2, values::integer),
            skewed,
            Tensor::random(&[20, 30, 10, 40], 3000, 3, values::single),
            Tensor::random(&[9, 1, 8, 11, 30], 3000, 4, values::few),
            Tensor::random(&[5, 4, 6, 3, 7, 9], 3000, 5, values::decimal),
            Tensor::random(&[700, 513, 1024, 600, 900, 514, 800, 1000], 3000, 6, values::fraction),
        ];
        let host = Engine::builder().device(Where::Cpu).threads(2).build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (turn, tensor) in tensors.iter().enumerate() {
            for (n, kind) in all_kinds().enumerate() {
                // Of one tensor, all kinds; formats take turns with the others.
                if turn != 2 && (n + turn) % 6 != 0 {
                    continue;
                }
                let store = packed(
                    tensor,
                    &options(&dir.path().join(format!("{turn}-{kind:?}")), kind, SMALL_CHUNKS),
                );
                let nnz = store.manifest().nnz;
                for mode in 0..tensor.order() {
                    let matrix = matrix::<f64>(tensor.dims[mode], [1, 3, 16, 33][(n + mode) % 4]);
                    let what = format!("{}, mode {mode}", store.path().display());
                    let wanted = host.ttm(&store, mode, &matrix).unwrap();
                    let least = longest(&wanted, tensor, mode).max(512);
                    let way = [Way::LARGE, Way::SMALL][(n + mode) % 2]
                        .in_ranges([nnz / 5, nnz / 2 + 7][usize::midpoint(n, mode) % 2].max(least));
                    let (found, passes) = run_passes(device, &store, mode, &matrix, way).unwrap();
                    assert!(found.coordinates == wanted.coordinates, "{what}, {way:?}: coordinates");
                    assert!(bits(&found) == bits(&wanted), "{what}, {way:?}: bits");
                    let ranges = nnz.div_ceil(way.at_a_time.unwrap());
                    assert!(
                        passes.len() as u64 > ranges && ranges > 1,
                        "{what}, {way:?}: {} passes",
                        passes.len()
                    );
                }
            }
        }
    });
}

/// If fibers come in the store's order, passes bring only chunks with nonzeros of their range.
#[test]
fn ranges_of_a_store_in_order_bring_its_chunks_about_once() {
    on_a_device(module_path!(), "ranges_of_a_store_in_order_bring_its_chunks_about_once", |device| {
        let tensor = Tensor::random(&[90, 300, 40], 60_000, 1, values::fraction);
        let dir = tempfile::tempdir().unwrap();
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::HocfsCsr, SMALL_CHUNKS));
        let (chunks, matrix) = (store.manifest().chunks.len(), matrix::<f64>(40, 3));
        let way = Way::LARGE.in_ranges(9000);
        let (found, passes) = run_passes(device, &store, 2, &matrix, way).unwrap();
        assert!(bits(&found) == bits(&run(device, &store, 2, &matrix, Way::LARGE).unwrap()));
        let brought: Vec<usize> =
            passes.iter().map(|pass| pass.device.as_ref().unwrap().copied_chunks).collect();
        assert!(brought[0] == chunks && chunks > 5, "{brought:?} of {chunks}");
        assert!(brought[1..].iter().sum::<usize>() < chunks + passes.len(), "{brought:?} of {chunks}");
        // In any other order, every pass brings all.
        let (_, passes) = run_passes(device, &store, 1, &self::matrix::<f64>(300, 3), way).unwrap();
        assert!(passes.iter().all(|pass| pass.device.as_ref().unwrap().copied_chunks == chunks));
    });
}

/// Bytes of device memory that a refusal names.
fn named(refusal: &str) -> u64 {
    let (size, _) = refusal.strip_prefix("needs ").unwrap().split_once(" of device memory").unwrap();
    parse_size::parse_size(size).unwrap()
}

/// A fiber that does not fit is refused, with the memory that does.
#[test]
fn a_fiber_is_not_divided() {
    on_a_device(module_path!(), "a_fiber_is_not_divided", |device| {
        let mut tensor = Tensor::random(&[50, 60, 9000], 20_000, 2, values::fraction);
        for (i, index) in tensor.indices.chunks_exact_mut(3).enumerate().take(5000) {
            index.copy_from_slice(&[17, 18, u32::try_from(i).unwrap()]);
        }
        let dir = tempfile::tempdir().unwrap();
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let matrix = matrix::<f64>(9000, 2);
        let one = run(device, &store, 2, &matrix, Way::LARGE).unwrap();
        let refused = run(device, &store, 2, &matrix, Way::LARGE.in_ranges(3000)).unwrap_err().to_string();
        assert!(refused.contains("nonzeros of a fiber") && refused.contains("room for 3000"), "{refused}");
        let engine = |memory| Engine::builder().device(Where::Cuda).device_memory(memory).build().unwrap();
        let enough = engine(named(&refused));
        let plan = enough.plan_ttm::<f64>(&store, 2, 2).unwrap();
        assert!(plan.device().unwrap().ranges.is_some(), "{plan:?}");
        assert!(enough.ttm(&store, 2, &matrix).unwrap() == one);
    });
}

/// A device that does not hold all nonzeros makes several passes; if they are too many, or it does not hold some, the CPU computes. What a
/// refusal names is enough.
#[test]
fn what_does_not_fit_takes_more_passes_or_the_cpu() {
    on_a_device(module_path!(), "what_does_not_fit_takes_more_passes_or_the_cpu", |_| {
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
        let plan = large.plan_ttm::<f64>(&store, 1, 8).unwrap();
        let device = plan.device().unwrap();
        assert!(device.ranges.is_none(), "{device:?}");
        let wanted = large.ttm(&store, 1, &matrix).unwrap();
        assert!(small.ttm(&store, 1, &matrix).unwrap() == wanted);
        let memories = [
            (named(&refused), None),
            (device.bytes_for(512), Some(false)),
            (device.bytes_for(2000), Some(true)),
        ];
        for (memory, is_auto) in memories {
            let engine_of = |device| engine(device, memory);
            let plan = engine_of(Where::Cuda).plan_ttm::<f64>(&store, 1, 8).unwrap();
            let device = plan.device().unwrap();
            let ranges = device.ranges.as_ref().unwrap();
            assert!(device.memory_bytes <= memory && ranges.passes > 2, "{device:?}");
            assert!(ranges.why.contains(&format!("all {} nonzeros", store.manifest().nnz)), "{}", ranges.why);
            assert!(engine_of(Where::Cuda).ttm(&store, 1, &matrix).unwrap() == wanted);
            let auto = engine_of(Where::Auto).plan_ttm::<f64>(&store, 1, 8).unwrap();
            assert!(auto.device().is_some() || auto.notes()[0].contains("passes"), "{:?}", auto.notes());
            assert!(is_auto.is_none_or(|is_auto| is_auto == auto.device().is_some()), "{ranges:?}");
        }
    });
}
