//! Establishes, on a CUDA device or else on the mock driver that `BLCO_MOCK_CUDA` names, that TTV along the leaves' mode
//! of trees equals a naive sum on it, in the promised order, and that its bits depend on neither kernel, chunks nor lanes. If
//! no fiber is longer than a segment, bits equal the host's.

use crate::common::{SMALL_CHUNKS, Tensor, packed, values};
use crate::elements::{Elements, bits, check_order, compare};
use crate::on_a_device::on_a_device;
use crate::runner::vector;
use blco::internals::backend::cuda::abi::TTV_SEGMENT;
use blco::internals::backend::cuda::driver::Device;
use blco::internals::backend::cuda::{CudaBackend, plan as plan_device};
use blco::internals::backend::device::{DeviceLimits, TtvVariant};
use blco::internals::coo::Batch;
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::dense::Real;
use blco::internals::encoding::LeafRule;
use blco::internals::error::Result;
use blco::internals::op::ttv::Oracle;
use blco::internals::op::ttv::cuda::{DeviceTtv, operation};
use blco::internals::pack::{FormatOption, PackOptions};
use blco::internals::random::Counter;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, PassReport, plan};
use blco::internals::sys::Sys;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const VARIANTS: [TtvVariant; 2] = [TtvVariant::Balanced, TtvVariant::TwoLevel];

/// A store with main mode 0, whose leaves' mode is the last.
fn trees(tensor: &Tensor, dir: &Path, leaf: LeafRule, chunk_bytes: u64) -> Store {
    let format = FormatOption::Hocfs { main_mode: 0, leaf };
    let target = dir.join(format!("{leaf:?}-{chunk_bytes}"));
    packed(tensor, &PackOptions { format, chunk_bytes, ..PackOptions::new(target) })
}

/// Elements along `mode`, the leaves', of the last of `passes` passes on the device, and its report.
fn run<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    store: &Store,
    mode: usize,
    x: &[T],
    variant: TtvVariant,
    lanes: usize,
    passes: u32,
) -> Result<(Elements, PassReport)> {
    let order = store.manifest().shape.order();
    let limits = DeviceLimits { lanes: Some(lanes), passes, ..DeviceLimits::default() };
    let device_plan = plan_device(device, store, operation::<T>(store.manifest(), mode), &limits)?;
    let plan = plan(store, 0, &Limits { passes, ..Limits::default() })?;
    let mut found = Elements::new();
    let mut sink = |batches| {
        found.extend(crate::runner::elements(batches, order));
        Ok(())
    };
    let op = DeviceTtv::new(device, store, x, variant, Some(&mut sink))?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let mut executor = Executor::new(store, &plan, &mut backend)?;
    let mut report = PassReport::default();
    for pass in 1..=passes {
        backend.op().reset(pass == passes);
        report = executor.pass(&mut backend, &|_| ())?;
    }
    assert!(backend.notes().is_empty());
    let elements = backend.op().finish()?;
    drop((executor, backend));
    assert_eq!(elements, found.len() as u64);
    Ok((found, report))
}

fn on_host<T: Real>(store: &Store, x: &[T]) -> Elements {
    let mode = store.manifest().shape.order() - 1;
    let mut found = Elements::new();
    let no_runs = (0, Path::new(""));
    crate::runner::ttv(store, mode, x, no_runs, 2, &mut |batches| {
        found.extend(crate::runner::elements(batches, mode + 1));
        Ok(())
    })
    .unwrap();
    found
}

/// The longest fiber.
fn longest(tensor: &Tensor) -> usize {
    let order = tensor.order();
    let mut fibers: Vec<&[u32]> = tensor.rows().map(|(row, _)| &row[..order - 1]).collect();
    fibers.sort_unstable();
    fibers.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap()
}

fn check_as<T: Real + bytemuck::Pod>(device: &Arc<Device>, name: &str, tensor: &Tensor) {
    let dir = tempfile::tempdir().unwrap();
    let mode = tensor.order() - 1;
    let x = vector::<T>(tensor.dims[mode], 1);
    let mut wanted: Option<Elements> = None;
    let mut lanes = [1, 3, 2, 5, 4, 8].into_iter().cycle();
    for chunk_bytes in [SMALL_CHUNKS, 16 << 20] {
        for leaf in [LeafRule::Csr, LeafRule::Ell] {
            let store = trees(tensor, dir.path(), leaf, chunk_bytes);
            for variant in VARIANTS {
                let (lanes, passes) =
                    (lanes.next().unwrap(), if variant == TtvVariant::Balanced { 2 } else { 1 });
                let what =
                    format!("{name}, {leaf:?}, {chunk_bytes}, {variant}, {lanes} lanes, {:?}", T::PRECISION);
                let (found, report) = run(device, &store, mode, &x, variant, lanes, passes).unwrap();
                compare(&found, tensor, mode, &x, &what);
                check_order(&found, &store, mode, &what);
                let wanted = wanted.get_or_insert_with(|| found.clone());
                assert!(bits(&found) == bits(wanted), "{what}: bits");
                let pass = report.device.unwrap();
                assert_eq!(pass.copied_chunks, store.manifest().chunks.len(), "{what}");
                assert!(pass.returned_bytes >= (found.len() * size_of::<T>()) as u64, "{what}");
                if longest(tensor) <= TTV_SEGMENT as usize {
                    assert!(bits(&found) == bits(&on_host(&store, &x)), "{what}: not as on the host");
                }
            }
        }
    }
}

/// Both leaf codes, chunks small and large, both kernels, lanes in turn, both precisions.
fn check(device: &Arc<Device>, name: &str, tensor: &Tensor) {
    check_as::<f64>(device, name, tensor);
    check_as::<f32>(device, name, tensor);
}

#[test]
fn every_order_and_every_kind_of_values() {
    on_a_device(module_path!(), "every_order_and_every_kind_of_values", |device| {
        check(device, "order 2", &Tensor::random(&[300, 400], 20_000, 1, values::fraction));
        check(device, "order 3", &Tensor::random(&[70, 500, 90], 15_000, 2, values::integer));
        check(device, "decimals", &Tensor::random(&[60, 400, 90], 15_000, 2, values::decimal));
        check(device, "order 4", &Tensor::random(&[20, 30, 10, 40], 15_000, 3, values::single));
        check(device, "order 5", &Tensor::random(&[9, 1, 8, 11, 30], 12_000, 4, values::few));
        check(device, "order 6", &Tensor::random(&[9, 3, 8, 2, 5, 600], 9_000, 4, values::wide_integer));
        check(device, "order 7", &Tensor::random(&[3, 3, 1, 2, 5, 4, 90], 9_000, 4, values::one));
        check(device, "order 8", &Tensor::random(&[3, 4, 2, 5, 3, 4, 2, 6], 9000, 5, values::with_zeros));
    });
}

#[test]
fn the_shapes_that_are_hard() {
    on_a_device(module_path!(), "the_shapes_that_are_hard", |device| {
        let million = Tensor::random(&[4_000_000, 20, 30], 3000, 6, values::fraction);
        check(device, "millions of empty slices", &million);
        let slice = Tensor::random(&[1, 700, 900], 30_000, 7, values::fraction);
        check(device, "one slice holds everything", &slice);
        let fiber = Tensor::random(&[1, 1, 900_000], 40_000, 8, values::fraction);
        check(device, "one fiber holds everything", &fiber);
        check(
            device,
            "two fibers hold everything",
            &Tensor::random(&[2, 1, 900_000], 40_000, 8, values::single),
        );
        let rows: Vec<([u32; 3], f64)> =
            (0..20_000).map(|i| ([i, i * 7 % 20_011, i], f64::from(i))).collect();
        check(device, "fibers of length one", &Tensor::of([20_000, 20_011, 20_000], &rows));
        check(device, "one nonzero", &Tensor::of([5, 6, 7], &[([4, 0, 6], -2.0)]));
        check(
            device,
            "negative zeros",
            &Tensor::of([2, 1, 2], &[([0, 0, 0], -0.0), ([1, 0, 0], -0.0), ([1, 0, 1], 0.0)]),
        );
    });
}

/// Fibers of all lengths around those of segments and tiles, in every order of lengths, with chunk ends at every place.
#[test]
fn fibers_of_every_length() {
    on_a_device(module_path!(), "fibers_of_every_length", |device| {
        let random = Counter::new(3, 1);
        let lengths =
            [1, 2, 127, 128, 129, 255, 256, 257, 383, 384, 385, 511, 512, 513, 640, 1024, 1025, 3000];
        let mut rows = Vec::new();
        for fiber in 0..140u32 {
            let length = lengths[usize::try_from(random.bits(fiber.into()) % lengths.len() as u64).unwrap()];
            let value = |i: u32| random.unit(u64::from(fiber) << 20 | u64::from(i)) - 0.5;
            rows.extend((0..length).map(|i| ([fiber / 7, fiber % 7, i], value(i))));
        }
        check(device, "fibers of every length", &Tensor::of([20, 7, 3000], &rows));
    });
}

/// The tensors in the directory `BLCO_DATA`, along every mode, with both leaf codes, kernels and precisions: in turn, or with `BLCO_DEVICE_FULL=1` each
/// with each. The largest one with `BLCO_LARGE=1`.
#[test]
fn real_tensors_agree_with_the_oracle() {
    let Some(data) = std::env::var_os("BLCO_DATA") else {
        eprintln!("skipped: BLCO_DATA names no directory");
        return;
    };
    on_a_device(module_path!(), "real_tensors_agree_with_the_oracle", |device| {
        for path in tensors_in(Path::new(&data)) {
            eprintln!("{}", path.display());
            let mut reader = TnsReader::open(&Sys::default(), &path, ReadOptions::default()).unwrap();
            let tensor = Tensor::read(&mut reader).unwrap();
            (0..tensor.order()).for_each(|mode| check_real(device, &tensor, mode));
        }
    });
}

/// Text files in a directory and its subdirectories, except those that count from 0.
fn tensors_in(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let (below, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        let text = name.ends_with(".tns") || name.ends_with(".tns.zst");
        text && !name.contains("zero") && (is_set("BLCO_LARGE") || !name.starts_with("gitlog"))
    };
    let mut found: Vec<_> = files.into_iter().filter(wanted).collect();
    found.extend(below.iter().flat_map(|below| tensors_in(below)));
    found.sort();
    found
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

fn check_real(device: &Arc<Device>, tensor: &Tensor, mode: usize) {
    let dir = tempfile::tempdir().unwrap();
    // Each precision has a kernel, the other leaf code the other one.
    for (leaf, kernel) in [(LeafRule::Csr, 0), (LeafRule::Ell, 1)] {
        // The leaves' mode is the one before the main mode.
        let format = FormatOption::Hocfs { main_mode: (mode + 1) % tensor.order(), leaf };
        let target = dir.path().join(format!("{leaf:?}"));
        let store = packed(tensor, &PackOptions { format, chunk_bytes: 1 << 20, ..PackOptions::new(target) });
        let variants = |kernel: usize| {
            if is_set("BLCO_DEVICE_FULL") { &VARIANTS[..] } else { std::slice::from_ref(&VARIANTS[kernel]) }
        };
        check_store::<f64>(device, tensor, &store, mode, variants(kernel));
        check_store::<f32>(device, tensor, &store, mode, variants(1 - kernel));
    }
}

fn check_store<T: Real + bytemuck::Pod>(
    device: &Arc<Device>,
    tensor: &Tensor,
    store: &Store,
    mode: usize,
    variants: &[TtvVariant],
) {
    let x = vector::<T>(tensor.dims[mode], 1);
    for &variant in variants {
        let (found, _) = run(device, store, mode, &x, variant, 3, 1).unwrap();
        let mut oracle = Oracle::new(&mut { tensor }, &store.manifest().shape, &[(mode, &x[..])]).unwrap();
        let (indices, values): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        oracle.compare(&Batch { indices: indices.concat(), values }).unwrap();
        let comparison = oracle.finish().unwrap();
        assert!(
            comparison.holds,
            "{}, {variant}, {:?}: {comparison:?}",
            store.path().display(),
            T::PRECISION
        );
    }
}

/// Passes that count elements.
fn counted(device: &Arc<Device>, store: &Store, x: &[f64], variant: TtvVariant) -> Result<u64> {
    let mode = store.manifest().shape.order() - 1;
    let operation = operation::<f64>(store.manifest(), mode);
    let device_plan = plan_device(device, store, operation, &DeviceLimits::default())?;
    let op = DeviceTtv::new(device, store, x, variant, None)?;
    let mut backend = CudaBackend::new(device, store, &device_plan, op)?;
    let plan = plan(store, 0, &Limits::default())?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ())?;
    backend.op().finish()
}

/// Numbers that only kernels read: in the middle of the columns, after workers have checked the ends. Whatever they are,
/// nothing outside the chunk and the vector is read or written (the mock would end the process).
#[test]
fn numbers_that_only_kernels_read_are_found_there() {
    on_a_device(module_path!(), "numbers_that_only_kernels_read_are_found_there", |device| {
        let tensor = Tensor::random(&[100, 90, 800], 20_000, 1, values::few);
        let x = vector::<f64>(800, 1);
        let mut found = 0;
        for leaf in [LeafRule::Csr, LeafRule::Ell] {
            for turn in 0..12u64 {
                let dir = tempfile::tempdir().unwrap();
                let store = trees(&tensor, dir.path(), leaf, 16 << 20);
                let random = Counter::new(turn, 5);
                let damaged = crate::common::with_columns(&store, |columns| {
                    let (from, to) = (columns.len() / 8, columns.len() / 8 * 7);
                    let at = from + usize::try_from(random.bits(0)).unwrap_or(0) % (to - from);
                    let bytes = if turn == 0 { 64 } else { (columns.len() / 16).min(to - at) };
                    for (i, byte) in columns[at..at + bytes].iter_mut().enumerate() {
                        *byte = if turn % 2 == 0 { 0xff } else { random.bits(i as u64 + 1).to_le_bytes()[0] };
                    }
                });
                match counted(device, &damaged, &x, VARIANTS[usize::from(turn % 3 == 0)]) {
                    Ok(_) => {}
                    Err(e) => {
                        assert!(e.to_string().contains("chunk 0: corrupt: "), "{e}");
                        found +=
                            usize::from(e.to_string().ends_with("chunk 0: corrupt: a number out of range"));
                    }
                }
            }
        }
        assert!(found >= 12, "{found} of 24 found by kernels");
    });
}

/// A chunk with correct checksums and false numbers is an error, and nothing outside the vector is read.
#[test]
fn numbers_out_of_range_are_found_on_the_device() {
    on_a_device(module_path!(), "numbers_out_of_range_are_found_on_the_device", |device| {
        for (n, leaf) in [LeafRule::Csr, LeafRule::Ell].into_iter().enumerate() {
            for variant in VARIANTS {
                let dir = tempfile::tempdir().unwrap();
                let tensor = Tensor::random(&[100, 90, 800], 5000, n as u64, values::one);
                let damaged =
                    crate::common::with_largest_numbers(&trees(&tensor, dir.path(), leaf, 16 << 20));
                let x = vector::<f64>(800, 1);
                let error = run(device, &damaged, 2, &x, variant, 2, 1).unwrap_err().to_string();
                assert!(error.contains("corrupt") && error.contains("out of range"), "{error}");
            }
        }
    });
}
