//! Establishes, on a CUDA device or else on the mock driver that `BLCO_MOCK_CUDA` names, that MTTKRP on it agrees with the oracle within the derived bound: orders 2 to 8 and more than
//! 64 linear bits, every value encoding, both index encodings and trees, both precisions, ranks 1 to 128, 1 to 8 lanes, small
//! and large chunks, resident, partly resident and streamed. `BLCO_DEVICE_FULL=1` takes every combination, and the
//! tensors in the directory `BLCO_DATA` too.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::abi::SHARE;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::nvrtc::Nvrtc;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device, plan::again};
use blco::internals::backend::device::{DeviceLimits, DeviceOrder, KernelSource, MttkrpVariant};
use blco::internals::backend::plan::{Reads, Shortfall};
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::dense::{Matrix, Precision, Real, seeded_factors};
use blco::internals::encoding::IndexEncoding;
use blco::internals::format::Layout;
use blco::internals::op::mttkrp::cuda::{DeviceMttkrp, operation};
use blco::internals::op::mttkrp::{ModeMatrix, serving_view};
use blco::internals::op::oracle::{self, OracleMode};
use blco::internals::store::{Format, Store};
use blco::internals::stream::{Executor, Limits, PassReport, plan};
use blco::internals::sys::Sys;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The part of a store that stays on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    Streamed,
    Half,
    All,
    /// All, in mode-sorted copies unless the store is `raw`.
    Sorted,
    /// The same from the first pass on, with the same bits in every run.
    Deterministic,
    /// None, but streamed from host memory in mode-sorted copies, which are built in parts.
    Kept,
}

const RESIDENCIES: [Residency; 6] = [
    Residency::Streamed,
    Residency::Half,
    Residency::All,
    Residency::Sorted,
    Residency::Deterministic,
    Residency::Kept,
];

fn is_full() -> bool {
    std::env::var_os("BLCO_DEVICE_FULL").is_some()
}

/// Whether copies of a store are built.
fn is_sorted(store: &Store) -> bool {
    store.manifest().format().layout() != Layout::RAW
}

/// Whether a chunk is of a layout.
fn has(store: &Store, layout: Layout) -> bool {
    let of = |number| &store.manifest().partitions[store.part_of(number)].format;
    (0..store.manifest().chunks.len()).any(|number| of(number).layout() == layout)
}

/// Whether kernels can read chunks as they lie; those of coordinates beside trees are converted.
fn can_lie(store: &Store) -> bool {
    has(store, Layout::TREE) || has(store, Layout::SEGMENTS)
}

/// Whether many slots may hold no nonzero.
fn is_padded(store: &Store) -> bool {
    store.manifest().partitions.iter().any(|partition| partition.format.slots_max(8) > 9)
}

/// Whether copies in host memory are built: if one cover serves all modes.
fn kept(store: &Store, residency: Residency) -> bool {
    let manifest = store.manifest();
    let is_one = |mode| store.chunks_for(mode) == (0..manifest.chunks.len());
    residency == Residency::Kept && is_sorted(store) && (0..manifest.shape.order()).all(is_one)
}

/// Results of the second pass on the device (of the first if everything is streamed), and its report.
fn run<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    factors: &[Matrix<T>],
    kernels: &KernelSource,
    lanes: usize,
    residency: Residency,
) -> (Vec<ModeMatrix<T>>, PassReport) {
    let manifest = store.manifest();
    let (shape, rank) = (&manifest.shape, factors[0].columns());
    let modes: Vec<usize> = (0..shape.order()).collect();
    let mut operation = operation::<T>(shape, &modes, rank);
    if is_padded(store) && residency == Residency::Streamed {
        // Plans convert these.
        operation.reads = Reads::AsTheyLie;
    }
    // Fewer lanes than chunks, because more would hold all chunks.
    let lanes =
        if residency == Residency::Half { lanes.min(manifest.chunks.len() / 2).max(1) } else { lanes };
    let deterministic = residency == Residency::Deterministic;
    let passes = if residency == Residency::Streamed || deterministic { 1 } else { 2 };
    let (sorted, kept) = (residency == Residency::Sorted && is_sorted(store), kept(store, residency));
    let host_memory = if kept { u64::MAX } else { 0 };
    let unlimited = |passes, order| {
        let limits =
            DeviceLimits { lanes: Some(lanes), passes, order, host_memory, ..DeviceLimits::default() };
        plan_device(device, store, operation.clone(), &limits).unwrap()
    };
    let memory = match residency {
        Residency::Half => {
            let (streamed, resident) = (unlimited(1, DeviceOrder::Store), unlimited(2, DeviceOrder::Store));
            Some(operation.bytes + streamed.lanes.bytes_of(lanes) + resident.resident().1 / 2)
        }
        // Less memory than sorting everything at once needs. Some chunks of trees are most of their store.
        Residency::Kept if kept && manifest.chunks.len() > 3 => {
            let whole = unlimited(2, DeviceOrder::Host);
            let is_in_parts = |memory: &u64| {
                let limits = DeviceLimits {
                    memory: Some(*memory),
                    lanes: Some(lanes),
                    passes: 2,
                    order: DeviceOrder::Host,
                    host_memory,
                    ..DeviceLimits::default()
                };
                let plan = plan_device(device, store, operation.clone(), &limits);
                plan.is_ok_and(|plan| plan.build.is_some_and(|build| build.groups.len() > 1))
            };
            let less = |part: u64| whole.memory_bytes - whole.copies_bytes / part;
            let found = [3, 4, 6, 12].map(less).into_iter().find(is_in_parts);
            assert!(found.is_some() || manifest.format().layout() != Layout::TILED);
            found
        }
        _ => None,
    };
    let order = match residency {
        _ if sorted => DeviceOrder::Target,
        _ if kept => DeviceOrder::Host,
        _ if deterministic => DeviceOrder::Auto,
        _ => DeviceOrder::Store,
    };
    let limits = DeviceLimits { memory, lanes: Some(lanes), host_memory, passes, order, deterministic };
    let mut device_plan = plan_device(device, store, operation.clone(), &limits).unwrap();
    if lanes.is_multiple_of(2) && !deterministic {
        // A mode that stays in the store's order beside others that do not.
        device_plan = again(store, &device_plan, Shortfall::NoCopy(1, "for this test".into())).unwrap();
    }
    if memory.is_some() && kept {
        assert!(device_plan.build.as_ref().unwrap().groups.len() > 1);
    }
    let targets = device_plan.copies().count();
    match residency {
        Residency::Streamed => assert_eq!(device_plan.as_they_lie, can_lie(store)),
        Residency::Half => assert_eq!(device_plan.as_they_lie, can_lie(store) && !is_padded(store)),
        // Copies are built of nonzeros.
        _ if targets > 0 => assert!(!device_plan.as_they_lie),
        // Trees that stay are converted once if each serves one mode.
        Residency::All => {
            let serve_all = store.chunks_for(0) == store.chunks_for(1);
            let trees_lie = has(store, Layout::TREE) && !is_padded(store) && serve_all;
            assert_eq!(device_plan.as_they_lie, trees_lie || has(store, Layout::SEGMENTS));
        }
        _ => {}
    }
    let limits = Limits { passes, held: device_plan.held_chunks(), ..Limits::default() };
    let plan = plan(store, 0, &limits).unwrap();
    let op = DeviceMttkrp::new(device, store, factors, &modes, &device_plan.kernels(kernels)).unwrap();
    let mut backend = CudaBackend::new(device, store, &device_plan, op).unwrap();
    assert!(backend.notes().is_empty());
    let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
    let mut pass = |number: u32| {
        let what = || {
            format!("{}: {residency:?}, {lanes} lanes, {kernels:?}, pass {number}", store.path().display())
        };
        executor.pass(&mut backend, &|_| ()).unwrap_or_else(|e| panic!("{}: {e}", what()))
    };
    // If the first pass builds copies to keep, its own results are in the store's order.
    let reports: Vec<PassReport> = (0..passes).map(&mut pass).collect();
    let report = *reports.last().unwrap();
    assert!(backend.notes().is_empty(), "{:?}", backend.notes());
    assert_eq!(backend.plan().copies().count(), targets);
    assert!(targets + usize::from(!deterministic) >= modes.len() || !(sorted || deterministic || kept));
    let built = |report: &PassReport| report.device.unwrap().build_seconds > 0.0;
    assert_eq!(reports.iter().any(built), targets > 0);
    (backend.op().results(store.sys()).unwrap(), report)
}

/// The progress of a test: `turn` advances the cheap axes unless every combination is taken.
#[derive(Debug, Default)]
struct Tally {
    turn: usize,
    runs: usize,
    /// Runs in which some chunks stayed on the device and others did not.
    partly: usize,
    /// The directory of compiled kernels.
    cache: Option<PathBuf>,
}

/// Variants that are never chosen by default, all tested if NVRTC is installed.
const VARIANTS: [&str; 8] =
    ["t1l16c2b4", "t2l16c2b4", "t4l16c1b8s", "t4l16c2b2", "t4l8c4b4", "t1l4c8b1", "t2l8c8b1", "t2l8c1b2s"];

impl Tally {
    /// Embedded kernels, compiled ones, and other variants, in turn.
    fn kernels(&self, device: &Device, precision: Precision, order: usize) -> KernelSource {
        let (compile, cache) = (self.runs.is_multiple_of(2).then_some(false), self.cache.clone());
        let mut variant = None;
        if self.runs % 16 == 3
            && Nvrtc::find(device.facts.driver_version, device.facts.capability, None).is_ok()
        {
            let mut of_turn: Vec<MttkrpVariant> = VARIANTS.iter().map(|name| name.parse().unwrap()).collect();
            of_turn.rotate_left(self.runs / 16 % VARIANTS.len());
            variant = of_turn.into_iter().find(|v| v.suits(precision, order).is_ok());
        }
        // As if rows rarely repeated: sweeps over long ranks are split, by embedded kernels and compiled ones.
        let rows_per_nonzero = (self.runs % 4 >= 2).then_some(1.0);
        KernelSource { compile, cache, variant, rows_per_nonzero, as_they_lie: false }
    }
}

/// Compares every way to run `store` with the oracle.
fn agrees<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    factors: &[Matrix<T>],
    oracle: &[OracleMode],
    tally: &mut Tally,
) {
    let order = store.manifest().shape.order();
    let chunks = store.manifest().chunks.len();
    let only = std::env::var("BLCO_RESIDENCY").ok();
    for residency in RESIDENCIES {
        if only.as_ref().is_some_and(|only| *only != format!("{residency:?}")) {
            continue;
        }
        if residency == Residency::Deterministic && !is_sorted(store) {
            continue;
        }
        tally.turn += 1;
        let all = [1, 2, 3, 4, 8];
        let lanes = if is_full() && order == 3 { &all[..] } else { &all[tally.turn % all.len()..][..1] };
        for &lanes in lanes {
            let kernels = tally.kernels(device, T::PRECISION, order);
            let (results, report) = run(device, store, factors, &kernels, lanes, residency);
            let what = format!("{}: {residency:?}, {lanes} lanes", store.path().display());
            let held = report.device.unwrap().resident_chunks;
            match residency {
                Residency::Streamed => assert_eq!(held, 0, "{what}"),
                Residency::Kept if kept(store, residency) => {
                    assert_eq!(held, 0, "{what}");
                    assert!(report.device.unwrap().copied_chunks >= order - 1, "{what}");
                }
                Residency::Half => tally.partly += usize::from(0 < held && held < chunks),
                // They exist after the first pass.
                Residency::Deterministic if report.device.unwrap().copied_chunks > 0 => {
                    assert_eq!(report.device.unwrap().copied_chunks, chunks, "{what}");
                }
                _ => assert_eq!(held, chunks, "{what}"),
            }
            tally.runs += 1;
            assert_eq!(report.nnz, store.manifest().nnz, "{what}");
            for (expected, (mode, result)) in oracle.iter().zip(&results) {
                let comparison = expected.compare(result, order, SHARE);
                let rank = result.columns();
                assert!(
                    comparison.holds,
                    "{what}: mode {}, rank {rank}, {:?}: {:.2} of the bound",
                    mode + 1,
                    T::PRECISION,
                    comparison.worst
                );
            }
        }
    }
}

fn check(device: &Arc<Device>, name: &str, tensor: &Tensor, ranks: &[usize], tally: &mut Tally) {
    let dir = tempfile::tempdir().unwrap();
    let mut stores = Vec::new();
    // Coordinates beside trees, trees of several sort orders, segments; of one cover and of several.
    let family = [
        Kind::Hbcsf,
        Kind::FcooMttkrp,
        Kind::Mmcsf,
        Kind::FcooTtm,
        Kind::FcooRoot,
        Kind::HbcsfRoot,
        Kind::CsfAll,
    ];
    let taken = if is_full() { &family[..] } else { &family[tally.turn % family.len()..][..1] };
    let of_family = taken.iter().map(|&kind| (kind, SMALL_CHUNKS));
    let kinds = [
        (Kind::Tiled, SMALL_CHUNKS),
        (Kind::Tiled, 16 << 20),
        (Kind::Raw, SMALL_CHUNKS),
        (Kind::Raw, 16 << 20),
        (Kind::HocfsCsr, SMALL_CHUNKS),
        (Kind::HocfsEll, 16 << 20),
        (Kind::TiledZstd, SMALL_CHUNKS),
    ];
    let modes: Vec<usize> = (0..tensor.order()).collect();
    for (kind, chunk_bytes) in kinds.into_iter().chain(of_family) {
        let target = dir.path().join(format!("{name}-{kind:?}-{chunk_bytes}"));
        stores.push(serving_view(&packed(tensor, &options(&target, kind, chunk_bytes)), &modes));
    }
    for (n, &rank) in ranks.iter().enumerate() {
        tally.turn += 1;
        let mut of = |precision: usize| {
            let modes: Vec<usize> = (0..tensor.order()).collect();
            let shape = &stores[0].manifest().shape;
            let mut source = tensor;
            if precision == 0 {
                let factors = seeded_factors::<f64>(&Sys::default(), shape, rank, 3).unwrap();
                let oracle = oracle::mttkrp(&mut source, &factors, &modes).unwrap();
                for store in &stores {
                    agrees(device, store, &factors, &oracle, tally);
                }
            } else {
                let factors = seeded_factors::<f32>(&Sys::default(), shape, rank, 3).unwrap();
                let oracle = oracle::mttkrp(&mut source, &factors, &modes).unwrap();
                for store in &stores {
                    agrees(device, store, &factors, &oracle, tally);
                }
            }
        };
        if is_full() {
            of(0);
            of(1);
        } else {
            of(n % 2);
        }
    }
}

/// A tensor with frequent rows, as in real ones.
fn skewed(dims: &[u64], nnz: usize, seed: u64, value: fn(u64) -> f64) -> Tensor {
    let mut tensor = Tensor::random(dims, nnz, seed, value);
    let order = dims.len();
    for (i, row) in tensor.indices.chunks_exact_mut(order).enumerate() {
        if i % 3 == 0 {
            row[i / 3 % order] = 0;
        }
    }
    tensor
}

#[test]
fn every_order_and_value_encoding_agrees_with_the_oracle() {
    on_a_device(
        module_path!(),
        "every_order_and_value_encoding_agrees_with_the_oracle",
        every_order_and_value_encoding,
    );
}

fn every_order_and_value_encoding(device: &Arc<Device>) {
    let nnz = if is_full() { 30_000 } else { 5_000 };
    let cases: [(&str, &[u64], fn(u64) -> f64); 10] = [
        ("order-2", &[300, 7000], values::integer),
        ("order-3", &[50, 4000, 7], values::single),
        ("order-4", &[91, 24, 885, 141], values::one),
        ("order-5", &[20, 30, 40, 50, 60], values::few),
        ("order-6", &[9, 8, 7, 60, 50, 40], values::fraction),
        ("order-7", &[9, 8, 7, 6, 50, 40, 30], values::wide_integer),
        ("order-8", &[9, 8, 7, 6, 5, 40, 30, 20], values::with_zeros),
        ("decimals", &[60, 70, 3000], values::decimal),
        ("one-row", &[1, 6000, 1], values::integer),
        // 17 bits of key over 5 modes.
        ("81-bits", &[200_000, 120_000, 70_000, 65_000, 40_000], values::few),
    ];
    let ranks: &[usize] = if is_full() { &[1, 7, 8, 16, 17, 32, 33, 64, 128] } else { &[5, 33] };
    let tally = for_each(&cases, &|(name, dims, value), tally| {
        let tensor = skewed(dims, nnz, 11, *value);
        let ranks = if *name == "81-bits" { &ranks[..2] } else { ranks };
        check(device, name, &tensor, ranks, tally);
    });
    assert!(tally.partly > 0 || std::env::var_os("BLCO_RESIDENCY").is_some());
}

/// Runs `test` on each case: one after the other with one tally, or, if every combination is taken, all at the same
/// time. Returns the tally of all.
fn for_each<C: Sync>(cases: &[C], test: &(dyn Fn(&C, &mut Tally) + Sync)) -> Tally {
    let cache = tempfile::tempdir().unwrap();
    let new = || Tally { cache: Some(cache.path().to_path_buf()), ..Tally::default() };
    let mut all = new();
    if is_full() {
        let tallies: Vec<Tally> = std::thread::scope(|scope| {
            let start = |case| {
                scope.spawn(move || {
                    let mut tally = new();
                    test(case, &mut tally);
                    tally
                })
            };
            let threads: Vec<_> = cases.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        all.runs = tallies.iter().map(|tally| tally.runs).sum();
        all.partly = tallies.iter().map(|tally| tally.partly).sum();
    } else {
        for case in cases {
            test(case, &mut all);
        }
    }
    eprintln!("{all:?}");
    all
}

/// Segments as they lie, streamed and with some chunks that stay, of one product mode and of all but one.
fn segments_in<T: Real + bytemuck::Pod>(device: &Arc<Device>) {
    let all: [&[u64]; 5] = [
        &[300, 7000],
        &[50, 4000, 7],
        &[91, 24, 885, 141],
        &[20, 30, 40, 50, 60],
        &[9, 8, 7, 6, 5, 40, 30, 20],
    ];
    let mut tally = Tally::default();
    for dims in all {
        let tensor = skewed(dims, 5000, 7, values::few);
        for kind in [Kind::FcooMttkrp, Kind::FcooTtm] {
            let dir = tempfile::tempdir().unwrap();
            let modes: Vec<usize> = (0..dims.len()).collect();
            let store = serving_view(
                &packed(&tensor, &options(&dir.path().join("store"), kind, SMALL_CHUNKS)),
                &modes,
            );
            let factors = seeded_factors::<T>(&Sys::default(), &store.manifest().shape, 17, 3).unwrap();
            let oracle = oracle::mttkrp(&mut &tensor, &factors, &modes).unwrap();
            for residency in [Residency::Streamed, Residency::Half] {
                tally.runs += 1;
                let kernels = tally.kernels(device, T::PRECISION, dims.len());
                let (results, _) = run(device, &store, &factors, &kernels, 2, residency);
                for (expected, (mode, result)) in oracle.iter().zip(&results) {
                    let comparison = expected.compare(result, dims.len(), SHARE);
                    assert!(comparison.holds, "{dims:?} {kind:?} {residency:?} mode {}", mode + 1);
                }
            }
        }
    }
}

#[test]
fn segments_of_every_kind_agree_with_the_oracle() {
    on_a_device(module_path!(), "segments_of_every_kind_agree_with_the_oracle", |device| {
        segments_in::<f64>(device);
        segments_in::<f32>(device);
    });
}

/// Slots without a nonzero, more of them than a tile has, take the row of their own fiber's nonzero: all others are infinite.
fn padding_is_of_its_fiber_in<T: Real + bytemuck::Pod>(device: &Arc<Device>) {
    const RANK: usize = 20;
    let (own, fiber) = (7, 5);
    let long = (0..11).filter(|&j| j != fiber).flat_map(|j| (100..1600).map(move |k| [0, j, k]));
    let rows: Vec<_> = long.chain([[0, fiber, own]]).map(|at| (at, 1.0)).collect();
    let tensor = Tensor::of([2, 12, 1600], &rows);
    let dir = tempfile::tempdir().unwrap();
    let store = packed(&tensor, &options(&dir.path().join("store"), Kind::HocfsZstd, 16 << 20));
    let mut factors = seeded_factors::<T>(&Sys::default(), &store.manifest().shape, RANK, 3).unwrap();
    for (row, of_row) in factors[2].data_mut().chunks_exact_mut(RANK).enumerate() {
        if row != own as usize {
            of_row.fill(T::nearest(f64::INFINITY));
        }
    }
    let kernels = Tally::default().kernels(device, T::PRECISION, 3);
    let (results, _) = run(device, &store, &factors, &kernels, 1, Residency::All);
    let of = |m: usize, row: u32, c: usize| factors[m].data()[row as usize * RANK + c].widen();
    let result = results[1].1.data();
    for c in 0..RANK {
        let found = result[fiber as usize * RANK + c].widen();
        assert!((found - of(0, 0, c) * of(2, own, c)).abs() < 1e-6, "column {c}: {found}");
        assert!(!result[c].widen().is_finite());
    }
}

#[test]
fn padding_is_of_its_fiber() {
    on_a_device(module_path!(), "padding_is_of_its_fiber", |device| {
        padding_is_of_its_fiber_in::<f64>(device);
        padding_is_of_its_fiber_in::<f32>(device);
    });
}

#[test]
fn real_tensors_agree_with_the_oracle() {
    let Some(data) = std::env::var_os("BLCO_DATA") else {
        eprintln!("skipped: BLCO_DATA names no directory");
        return;
    };
    on_a_device(module_path!(), "real_tensors_agree_with_the_oracle", |device| {
        real_tensors(device, Path::new(&data));
    });
}

fn real_tensors(device: &Arc<Device>, data: &Path) {
    let paths: Vec<PathBuf> = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).collect();
    for_each(&paths, &|path, tally| {
        let mut reader = TnsReader::open(&Sys::default(), path, ReadOptions::default()).unwrap();
        let tensor = Tensor::read(&mut reader).unwrap();
        let ranks: &[usize] = if tensor.nnz() > 1_000_000 { &[16, 32] } else { &[1, 7, 32, 128] };
        eprintln!("{}", path.display());
        check(device, "real", &tensor, ranks, tally);
    });
}

/// Sorted on the device: whatever the chunks and lanes are. In host memory: with the same plan. Either way however threads take turns; with a
/// mode of three rows and fibers that many share.
#[test]
fn deterministic_results_have_the_same_bits() {
    on_a_device(module_path!(), "deterministic_results_have_the_same_bits", |device| {
        bits_are_the_same::<f64>(device, 33);
        bits_are_the_same::<f32>(device, 32);
    });
}

fn bits_are_the_same<T: Real + bytemuck::Pod>(device: &Arc<Device>, rank: usize) {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[3, 700, 90_000], 20_000, 5, values::fraction);
    let embedded = KernelSource { compile: Some(false), ..KernelSource::default() };
    let mut expected: Option<Vec<Vec<u8>>> = None;
    for (chunk_bytes, lanes) in [(SMALL_CHUNKS, 1), (SMALL_CHUNKS, 3), (16 << 20, 2)] {
        let target = dir.path().join(format!("{chunk_bytes}-{lanes}"));
        let store = packed(&tensor, &options(&target, Kind::Tiled, chunk_bytes));
        let factors = seeded_factors::<T>(store.sys(), &store.manifest().shape, rank, 3).unwrap();
        let (results, _) = run(device, &store, &factors, &embedded, lanes, Residency::Deterministic);
        let bits: Vec<Vec<u8>> =
            results.iter().map(|(_, m)| bytemuck::cast_slice(m.data()).to_vec()).collect();
        assert!(*expected.get_or_insert_with(|| bits.clone()) == bits, "{chunk_bytes}, {lanes} lanes");
    }
    let store = Store::open(&Sys::default(), &dir.path().join(format!("{SMALL_CHUNKS}-3"))).unwrap();
    let factors = seeded_factors::<T>(store.sys(), &store.manifest().shape, rank, 3).unwrap();
    let kept = || run(device, &store, &factors, &embedded, 3, Residency::Kept).0;
    for ((mode, one), (_, other)) in kept().iter().zip(&kept()) {
        assert!(one.data() == other.data(), "mode {}", mode + 1);
    }
}

/// If others have taken device memory since all chunks were planned to stay there, lanes get the rest first.
#[test]
fn lanes_come_before_chunks_that_stay() {
    on_a_device(module_path!(), "lanes_come_before_chunks_that_stay", |device| {
        // A real device allocates whole megabytes.
        if device.facts.name != "Mock device" {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::random(&[90, 700, 40], 30_000, 1, values::fraction);
        for kind in [Kind::Tiled, Kind::HocfsCsr] {
            let store = packed(&tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
            assert!(store.manifest().chunks.len() > 3, "{} chunks", store.manifest().chunks.len());
            for chunks in 1..=store.manifest().chunks.len() as u64 {
                runs_in_what_is_left(device, &store, &tensor, chunks);
            }
        }
    });
}

/// Two passes, with memory for only some chunks after planning.
fn runs_in_what_is_left(device: &Arc<Device>, store: &Store, mut tensor: &Tensor, chunks: u64) {
    let shape = &store.manifest().shape;
    let factors = seeded_factors::<f64>(store.sys(), shape, 4, 3).unwrap();
    let modes = [0, 1, 2];
    let operation = operation::<f64>(shape, &modes, 4);
    let asked = |passes| DeviceLimits {
        passes,
        lanes: Some(1),
        order: DeviceOrder::Store,
        ..DeviceLimits::default()
    };
    let chunk = plan_device(device, store, operation.clone(), &asked(1)).unwrap();
    let device_plan = plan_device(device, store, operation.clone(), &asked(2)).unwrap();
    let (resident, _) = device_plan.resident();
    assert_eq!((resident, device_plan.lanes.image_bytes), (store.manifest().chunks.len(), 0));
    let embedded = KernelSource { compile: Some(false), ..KernelSource::default() };
    let op = DeviceMttkrp::new(device, store, &factors, &modes, &device_plan.kernels(&embedded)).unwrap();
    let left = chunks * chunk.lanes.image_bytes + chunk.lanes.staging_bytes + (4 << 10);
    let taken = device.memory(usize::try_from(device.free_bytes().unwrap() - left).unwrap()).unwrap();
    let mut backend = CudaBackend::new(device, store, &device_plan, op).unwrap();
    let (there, notes) = (backend.plan().resident().0, backend.notes().join("; "));
    assert!(there > 0 || chunks < 2, "{chunks}: {notes}");
    assert!(there == resident || notes.contains("device memory"), "{chunks}: {there}");
    let limits = Limits { passes: 2, held: backend.plan().held_chunks(), ..Limits::default() };
    let plan = plan(store, 0, &limits).unwrap();
    let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
    for _ in 0..2 {
        executor.pass(&mut backend, &|_| ()).unwrap();
    }
    drop((executor, taken));
    let oracle = oracle::mttkrp(&mut tensor, &factors, &modes).unwrap();
    for (expected, (mode, result)) in oracle.iter().zip(&backend.op().results(store.sys()).unwrap()) {
        assert!(expected.compare(result, 3, SHARE).holds, "mode {mode}, {chunks} chunks");
    }
}

/// A chunk with correct checksums and false numbers is an error, and reads nothing outside the factors.
#[test]
fn numbers_out_of_range_are_found_on_the_device() {
    on_a_device(
        module_path!(),
        "numbers_out_of_range_are_found_on_the_device",
        numbers_out_of_range_are_found,
    );
}

fn numbers_out_of_range_are_found(device: &Arc<Device>) {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[1000, 900, 800], 5000, 5, values::one);
    for kind in [Kind::Tiled, Kind::HocfsCsr, Kind::HocfsEll] {
        let store = packed(&tensor, &options(&dir.path().join(format!("{kind:?}")), kind, 16 << 20));
        let padded = kind == Kind::HocfsEll;
        assert_eq!(error_of_damaged(device, &store, &crate::common::with_largest_numbers), !padded);
        if kind == Kind::Tiled {
            continue;
        }
        // Each part of the columns alone: levels, leaves, starts of children.
        let mut on_device = 0;
        for part in 0..16 {
            let store =
                packed(&tensor, &options(&dir.path().join(format!("{kind:?}-{part}")), kind, 16 << 20));
            let damage = |store: &Store| {
                crate::common::with_columns(store, |columns| {
                    let bytes = columns.len() / 16;
                    columns[part * bytes..][..bytes].fill(0xff);
                })
            };
            on_device += usize::from(error_of_damaged(device, &store, &damage));
        }
        eprintln!("{kind:?}: {on_device} of 16 parts on the device");
        assert!(if padded { on_device > 0 } else { on_device == 16 }, "{kind:?}: {on_device} of 16");
    }
}

/// MTTKRP of a store of one chunk ends with the error of a number out of range where its numbers are damaged after passes have been
/// planned: two passes, or such as sort it in the first. Whether the device found it, or else who reads the chunk and looks for
/// fibers that begin with padding, and names the tile.
fn error_of_damaged(device: &Arc<Device>, sound: &Store, damage: &dyn Fn(&Store) -> Store) -> bool {
    let factors: Vec<Matrix<f64>> = seeded_factors(&Sys::default(), &sound.manifest().shape, 8, 1).unwrap();
    let modes = [0, 1, 2];
    let operation = operation::<f64>(&sound.manifest().shape, &modes, 8);
    let tiled = sound.format() == Format::blco(IndexEncoding::Tiled);
    let order = if tiled { DeviceOrder::Host } else { DeviceOrder::Auto };
    let sorted = DeviceLimits { passes: 2, order, host_memory: u64::MAX, ..DeviceLimits::default() };
    let plans =
        [DeviceLimits::default(), sorted].map(|l| plan_device(device, sound, operation.clone(), &l).unwrap());
    let damaged = damage(sound);
    let found = plans.map(|device_plan| {
        assert_eq!(device_plan.streams_copies(), tiled && device_plan.copies().count() == 3);
        let kernels = device_plan.kernels(&KernelSource::default());
        let op = DeviceMttkrp::new(device, &damaged, &factors, &modes, &kernels).unwrap();
        let mut backend = CudaBackend::new(device, &damaged, &device_plan, op).unwrap();
        let plan = plan(&damaged, 0, &Limits::default()).unwrap();
        let mut executor = Executor::new(&damaged, &plan, &mut backend).unwrap();
        let error = executor.pass(&mut backend, &|_| ()).unwrap_err().to_string();
        let (_, what) = error.split_once("chunk 0: corrupt: ").unwrap_or_else(|| panic!("{error}"));
        let on_device = what == "a number out of range";
        let in_fibers = what.starts_with("level 1, tile ") || what.starts_with("level 2, tile ");
        assert!(on_device || in_fibers && what.contains(": a number out of range"), "{error}");
        on_device
    });
    assert_eq!(found[0], found[1]);
    found[0]
}
