//! Establishes, on a CUDA device or else on the mock driver that `BLCO_MOCK_CUDA` names, that a decomposition on it
//! agrees with the definition and the host: orders 3 to 5, ranks in each kernel's range and beyond, both precisions,
//! a ridge, HALS; with chunks streamed, partly resident, resident and sorted by the target's rows; and that deterministic runs agree
//! to the bit, also from checkpoints.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::mttkrp::Residency;
use crate::naive::{Dense, Planted, job, naive_iteration, on_host, rows};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::plan as plan_device;
use blco::internals::backend::device::{DeviceLimits, DeviceOrder, KernelSource};
use blco::internals::decomp::cuda::{DeviceAls, operation};
use blco::internals::decomp::{CpJob, Decomposition, Init, Settings, run};
use blco::internals::dense::{Matrix, Precision, Real, seeded_factors};
use blco::internals::op::mttkrp::cuda::DeviceMttkrp;
use blco::internals::store::Store;
use blco::internals::stream::{Limits, plan};
use blco::internals::sys::Sys;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where kernels come from: compiled for f32 if NVRTC is installed, with other tiles per thread block than embedded kernels have.
fn kernels(precision: Precision) -> KernelSource {
    let compile = (precision == Precision::F64).then_some(false);
    KernelSource { compile, ..KernelSource::default() }
}

fn prepared<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    Settings { rank, nonneg, .. }: Settings,
    residency: Residency,
) -> DeviceAls<T> {
    let manifest = store.manifest();
    let operation = operation::<T>(&manifest.shape, rank, device.facts.multiprocessors as usize);
    let images: u64 = manifest.chunks.iter().map(|c| c.image_bytes.next_multiple_of(256)).sum();
    let largest = manifest.chunks.iter().map(|c| c.image_bytes).max().unwrap();
    let sorted = matches!(residency, Residency::Sorted | Residency::Deterministic);
    let passes = if residency == Residency::Streamed { 1 } else { 9 };
    let memory = (residency == Residency::Half).then_some(operation.bytes + 2 * largest + images / 2);
    let kept = residency == Residency::Kept;
    let order = match residency {
        Residency::Kept => DeviceOrder::Host,
        _ if sorted => DeviceOrder::Target,
        _ => DeviceOrder::Store,
    };
    let host_memory = if kept { u64::MAX } else { 0 };
    let deterministic = residency == Residency::Deterministic;
    let limits = DeviceLimits { memory, lanes: Some(2), host_memory, passes, order, deterministic };
    let device_plan = plan_device(device, store, operation, &limits).unwrap();
    let chunks = manifest.chunks.len();
    let (resident, _) = device_plan.resident();
    match residency {
        Residency::Streamed | Residency::Kept => assert_eq!(resident, 0),
        Residency::Half => assert!(resident > 0 && resident < chunks),
        _ => assert_eq!(resident, chunks),
    }
    let limits = Limits { passes, held: device_plan.held_chunks(), ..Limits::default() };
    let plan = plan(store, 0, &limits).unwrap();
    assert_eq!(device_plan.copies().count(), if sorted || kept { manifest.shape.order() } else { 0 });
    let op =
        DeviceMttkrp::alternating(device, store, rank, &device_plan.kernels(&kernels(T::PRECISION))).unwrap();
    DeviceAls::new(device, store, (&plan, &device_plan), op, rank, nonneg).unwrap()
}

fn on_device<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    job: &mut CpJob<'_>,
    store: &Store,
    init: Init<T>,
    residency: Residency,
) -> Decomposition<T> {
    let mut place = prepared(device, store, job.settings, residency);
    let outcome = run(job, init, &mut place, &|_| ()).unwrap();
    let (plan, notes) = place.allocated();
    assert!(notes.is_empty() && plan.shortfalls.is_empty(), "{notes:?}");
    outcome
}

fn store_at(dir: &Path, tensor: &Tensor) -> Store {
    packed(tensor, &options(&dir.join("s"), Kind::Tiled, SMALL_CHUNKS))
}

/// The definition, after each of five iterations.
#[test]
fn models_are_those_of_the_definition() {
    on_a_device(module_path!(), "models_are_those_of_the_definition", |device| {
        for dims in [&[9, 8, 7][..], &[7, 5, 6, 4], &[5, 4, 3, 6, 4]] {
            let tensor = Tensor::random(dims, 150, 3, values::fraction);
            let dir = tempfile::tempdir().unwrap();
            let store = store_at(dir.path(), &tensor);
            let dense = Dense::of(&tensor);
            let initial = seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, 4, 7).unwrap();
            let mut factors: Vec<_> = initial.iter().map(rows).collect();
            for iterations in 1..=5 {
                naive_iteration(&dense, &mut factors, 0.5);
                let wanted = Dense::of_factors(&factors, &[1.0; 4]);
                let settings = Settings { rank: 4, ridge: 0.5, nonneg: false };
                let (mut job, init) = (job(&store, settings, iterations, None), Init::Given(initial.clone()));
                let outcome = on_device(device, &mut job, &store, init, Residency::All);
                let distance = Dense::of_model(&outcome.model).distance(&wanted);
                assert!(distance < 1e-20, "{dims:?}, iteration {iterations}: {distance:e}");
            }
        }
    });
}

/// Ranks on both sides of each kernel's limit give the host's model, wherever chunks are.
#[test]
fn models_are_those_of_the_host() {
    fn check<T: Real + bytemuck::Pod>(
        device: &Arc<Device>,
        store: &Store,
        settings: Settings,
        at: Residency,
        bound: f64,
    ) {
        let init = || -> Init<T> {
            Init::Given(seeded_factors(&Sys::default(), &store.manifest().shape, settings.rank, 3).unwrap())
        };
        let mut job = job(store, settings, 3, None);
        let got = on_device(device, &mut job, store, init(), at);
        let wanted = on_host(store, settings, init(), 3);
        let distance = Dense::of_model(&got.model).distance(&Dense::of_model(&wanted.model));
        assert!(distance < bound, "{settings:?} {at:?}: {distance:e}");
        assert!((got.als.fit() - wanted.als.fit()).abs() < bound.sqrt(), "{settings:?} {at:?}");
    }
    on_a_device(module_path!(), "models_are_those_of_the_host", |device| {
        let tensor = Tensor::random(&[30, 300, 17], 40_000, 3, values::fraction);
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &tensor);
        let residencies =
            [Residency::Streamed, Residency::Half, Residency::All, Residency::Sorted, Residency::Kept];
        for (i, rank) in [1, 16, 17, 32, 33, 64, 65].into_iter().enumerate() {
            let at = residencies[i % 5];
            for nonneg in [false, true] {
                let settings = Settings { rank, ridge: 1e-3, nonneg };
                check::<f64>(device, &store, settings, at, 1e-16);
                check::<f32>(device, &store, settings, residencies[(i + 1) % 5], 1e-8);
            }
        }
        for at in residencies {
            check::<f64>(device, &store, Settings { rank: 5, ridge: 0.0, nonneg: false }, at, 1e-16);
        }
    });
}

/// A rank for which a thread block of HALS holds few rows, on a tensor with even fewer.
#[test]
fn large_ranks_have_hals() {
    on_a_device(module_path!(), "large_ranks_have_hals", |device| {
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &Tensor::random(&[3, 4, 5], 40, 3, values::integer));
        let settings = Settings { rank: 1100, ridge: 0.5, nonneg: true };
        let init =
            || Init::Given(seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, 1100, 3).unwrap());
        let mut job = job(&store, settings, 1, None);
        let got = on_device(device, &mut job, &store, init(), Residency::All);
        let wanted = on_host(&store, settings, init(), 1);
        let distance = Dense::of_model(&got.model).distance(&Dense::of_model(&wanted.model));
        assert!(distance < 1e-16, "{distance:e}");
    });
}

/// Equal columns, columns of zeros and a rank beyond every dim: pseudo-inverses, the host's model, no NaN.
#[test]
fn dependent_components_do_no_harm() {
    on_a_device(module_path!(), "dependent_components_do_no_harm", |device| {
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &Tensor::random(&[4, 3, 5], 40, 4, values::fraction));
        let same = |rows: usize| Matrix::from_rows(rows, 3, [0.5, 0.5, 0.0].repeat(rows));
        let equal: Vec<Matrix<f64>> = [4, 3, 5].map(same).to_vec();
        let wide = seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, 20, 3).unwrap();
        for (factors, nonneg) in [(&equal, false), (&equal, true), (&wide, false), (&wide, true)] {
            let settings = Settings { rank: factors[0].columns(), ridge: 0.0, nonneg };
            let init = || Init::Given(factors.clone());
            let got = on_device(device, &mut job(&store, settings, 3, None), &store, init(), Residency::All);
            let wanted = on_host(&store, settings, init(), 3);
            let numbers = got.model.factors.iter().flat_map(Matrix::data);
            assert!(numbers.chain(got.model.lambda.data()).all(|x| x.is_finite()));
            let inverses =
                |o: &Decomposition<f64>| o.als.history().iter().map(|i| i.pseudo_inverses).sum::<usize>();
            assert_eq!((inverses(&got) > 0, inverses(&got)), (!nonneg, inverses(&wanted)));
            let distance = Dense::of_model(&got.model).distance(&Dense::of_model(&wanted.model));
            assert!(distance < 1e-12, "{settings:?}: {distance:e}");
        }
    });
}

/// Two columns that differ little in every mode: Gram matrices in twice the digits, the host's fits.
#[test]
fn nearly_dependent_components_have_the_fits_of_the_host() {
    on_a_device(module_path!(), "nearly_dependent_components_have_the_fits_of_the_host", |device| {
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &Tensor::random(&[300, 20, 25], 3000, 4, values::fraction));
        for rank in [3, 70] {
            let mut factors =
                seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, rank, 3).unwrap();
            for factor in &mut factors {
                let rows = factor.data_mut().chunks_exact_mut(rank);
                rows.enumerate().for_each(|(i, row)| row[1] = row[0] + 1e-6 * (i as f64).sin());
            }
            let settings = Settings { rank, ridge: 0.0, nonneg: false };
            let init = || Init::Given(factors.clone());
            let wanted = on_host(&store, settings, init(), 2);
            let got = on_device(device, &mut job(&store, settings, 2, None), &store, init(), Residency::All);
            for (a, b) in got.als.history().iter().zip(wanted.als.history()) {
                assert!(b.condition > 1e10 && b.pseudo_inverses == 0, "{rank}: {b:?}");
                assert!((a.fit - b.fit).abs() < 1e-8, "{rank}: {} {}", a.fit, b.fit);
            }
        }
    });
}

/// Pairs of components that nearly cancel: errors of products in f32 would be as large as the difference. All encodings and
/// formats, orders 3 to 6, nonzeros in each order and place; thread blocks of two and four tiles.
#[test]
fn f32_has_the_fits_of_f64_where_components_cancel() {
    let shapes: [(&[u64], &[usize]); 4] = [
        (&[66, 3300, 23], &[9, 20, 9]),
        (&[66, 11, 3300, 23], &[6, 5, 9, 6]),
        (&[66, 11, 300, 725, 23], &[4, 3, 5, 5, 4]),
        (&[3, 66, 11, 300, 1725, 23], &[2, 4, 3, 5, 5, 3]),
    ];
    on_a_device(module_path!(), "f32_has_the_fits_of_f64_where_components_cancel", |device| {
        for (i, (dims, support)) in shapes.into_iter().enumerate() {
            let planted = Planted::new(dims, 6, support, 1e-4, true);
            let dir = tempfile::tempdir().unwrap();
            let kinds = [Kind::Tiled, Kind::Raw, Kind::HocfsCsr];
            let stores = kinds.map(|kind| {
                packed(&planted.tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS))
            });
            let settings = Settings { rank: 6, ridge: 0.0, nonneg: false };
            let wanted = on_host(&stores[0], settings, Init::Given(planted.wide()), 4);
            let ways = [
                (0, Residency::All),
                (1, Residency::Streamed),
                (0, Residency::Sorted),
                (2, Residency::All),
                (0, Residency::Deterministic),
                (0, Residency::Kept),
            ];
            for (store, at) in ways.into_iter().skip(i % 2).step_by(2).chain([ways[0], ways[2]]) {
                let init = Init::Given(planted.factors.clone());
                let mut job = job(&stores[store], settings, 4, None);
                let got = on_device(device, &mut job, &stores[store], init, at);
                for (a, b) in got.als.history().iter().zip(wanted.als.history()) {
                    let off = (a.fit - b.fit).abs();
                    assert!(b.condition > 1e7 && off < 1e-5, "{dims:?} {at:?}: {:e}, {off:e}", b.condition);
                }
            }
        }
    });
}

/// From sorted nonzeros every run gives the same bits, also if it continues from a checkpoint.
#[test]
fn deterministic_runs_resume_to_the_same_bits() {
    fn check<T: Real + bytemuck::Pod>(device: &Arc<Device>, nonneg: bool) {
        let tensor = Tensor::random(&[30, 300, 17], 20_000, 3, values::integer);
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &tensor);
        let settings = Settings { rank: 6, ridge: 0.0, nonneg };
        let run = |iterations: usize, checkpoint: Option<(PathBuf, bool)>| {
            let init = Init::<T>::Seeded { seed: 3, starts: 1 };
            let mut job = job(&store, settings, iterations, checkpoint);
            let model = on_device(device, &mut job, &store, init, Residency::Deterministic).model;
            let bits = model.factors.iter().flat_map(Matrix::data).map(|x| x.widen().to_bits());
            (bits.collect::<Vec<u64>>(), model.lambda)
        };
        let whole = run(4, None);
        for done in 1..=3 {
            let place = dir.path().join(format!("s{done}"));
            run(done, Some((place.clone(), false)));
            assert_eq!(run(4, Some((place, true))), whole, "{done}");
        }
    }
    on_a_device(module_path!(), "deterministic_runs_resume_to_the_same_bits", |device| {
        check::<f64>(device, false);
        check::<f32>(device, true);
    });
}

/// A store's data on the device, and copies in host memory, serve decompositions of other ranks and signs, without the store's files.
#[test]
fn what_is_kept_serves_other_ranks() {
    fn check<T: Real + bytemuck::Pod>(device: &Arc<Device>, at: Residency, bound: f64) {
        let tensor = Tensor::random(&[30, 300, 17], 40_000, 3, values::fraction);
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &tensor);
        let wanted = [(40, false), (7, false), (7, true), (17, false), (40, true)].map(|(rank, nonneg)| {
            let settings = Settings { rank, ridge: 1e-3, nonneg };
            let init = Init::<T>::Seeded { seed: 3, starts: 1 };
            (settings, on_device(device, &mut job(&store, settings, 2, None), &store, init, at).model)
        });
        let mut place = prepared::<T>(device, &store, wanted[0].0, at);
        for (i, (settings, wanted)) in wanted.into_iter().enumerate() {
            let init = Init::Seeded { seed: 3, starts: 1 };
            place = place.with_rank(settings.rank, settings.nonneg, &kernels(T::PRECISION)).unwrap();
            let got = run(&mut job(&store, settings, 2, None), init, &mut place, &|_| ()).unwrap().model;
            let distance = Dense::of_model(&got).distance(&Dense::of_model(&wanted));
            assert!(distance < bound, "{settings:?} {at:?}: {distance:e}");
            if at == Residency::Deterministic {
                assert!(got == wanted, "{settings:?}");
            }
            if i == 0 && at != Residency::Half {
                std::fs::remove_file(store.chunk_path(0)).unwrap();
            }
        }
    }
    on_a_device(module_path!(), "what_is_kept_serves_other_ranks", |device| {
        for at in [Residency::Half, Residency::All, Residency::Kept] {
            check::<f64>(device, at, 1e-16);
        }
        check::<f32>(device, Residency::Sorted, 1e-8);
        check::<f64>(device, Residency::Deterministic, 1e-16);
        check::<f32>(device, Residency::Deterministic, 1e-8);
    });
}

/// HALS is refused for a rank whose rows do not fit in a thread block.
#[test]
fn the_largest_ranks_have_no_hals() {
    on_a_device(module_path!(), "the_largest_ranks_have_no_hals", |device| {
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path(), &Tensor::random(&[4, 5, 6], 40, 3, values::one));
        let plan = plan(&store, 0, &Limits::default()).unwrap();
        let multiprocessors = device.facts.multiprocessors as usize;
        let operation = operation::<f64>(&store.manifest().shape, 4097, multiprocessors);
        let limits = DeviceLimits {
            memory: None,
            lanes: Some(1),
            host_memory: 0,
            passes: 1,
            order: DeviceOrder::Store,
            deterministic: false,
        };
        let device_plan = plan_device(device, &store, operation, &limits).unwrap();
        let kernels = KernelSource { compile: Some(false), ..KernelSource::default() };
        let op = DeviceMttkrp::<f64>::alternating(device, &store, 4097, &kernels).unwrap();
        let refused = DeviceAls::new(device, &store, (&plan, &device_plan), op, 4097, true);
        assert!(refused.unwrap_err().to_string().contains("`Device::Cpu`"));
    });
}
