//! Establishes that MTTKRP through the whole of packing, stores and the executor equals the oracle, a naive
//! f64 loop over the coordinates, within the derived bound: for shapes of every order and their limits, all
//! kinds of values, every encoding, ranks on and off the specialised ones, and both precisions; that any
//! subset of modes gives the bits of the run of all modes; and that coordinates at the limits come back.

use crate::common::{
    KINDS, Kind, SMALL_CHUNKS, Tensor, all_kinds, bits, exported, options, packed, plan_run, run,
    run_by_cover, values,
};
use blco::internals::backend::host::HostBackend;
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::encoding::values::ValueEncoding;
use blco::internals::linear::{BLOCK_BITS, BitLayout, Linearizer, Reencoding};
use blco::internals::op::mttkrp::Mttkrp;
use blco::internals::op::oracle;
use blco::internals::shape::{DIM_MAX, Shape};
use blco::internals::store::Store;
use blco::internals::stream::Executor;
use blco::internals::sys::Sys;
use std::collections::BTreeSet;

const RANKS: [usize; 7] = [1, 7, 8, 16, 32, 33, 64];

/// Compares stores of every kind of `tensor` with the oracle, all modes in one run.
fn check(name: &str, tensor: &Tensor, ranks: &[usize]) -> Vec<Store> {
    let dir = tempfile::tempdir().unwrap();
    let store = |kind| packed(tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
    let stores: Vec<Store> = all_kinds().map(store).collect();
    for &rank in ranks {
        check_rank::<f64>(name, tensor, &stores, rank);
        check_rank::<f32>(name, tensor, &stores, rank);
    }
    check_subsets(name, tensor.order(), &stores[1]);
    check_subsets(name, tensor.order(), &stores[6]);
    // The directory is removed; the caller can still read the manifests.
    stores
}

fn check_rank<T: Real>(name: &str, tensor: &Tensor, stores: &[Store], rank: usize) {
    let order = tensor.order();
    let shape = Shape::new(&tensor.dims).unwrap();
    let modes: Vec<usize> = (0..order).collect();
    let factors: Vec<Matrix<T>> = seeded_factors(&Sys::default(), &shape, rank, 5).unwrap();
    let wanted = oracle::mttkrp(&mut { tensor }, &factors, &modes).unwrap();
    for (store, kind) in stores.iter().zip(all_kinds()) {
        let first = run(store, &factors, &modes).unwrap();
        let covers = store.whole().covers();
        let best = (covers > 1).then(|| run_by_cover(store, &factors, &modes, 2).unwrap());
        for (results, from) in [(Some(first), "the first cover"), (best, "the best covers")] {
            let Some(results) = results else { continue };
            assert_eq!(results.len(), order);
            for (oracle, (mode, result)) in wanted.iter().zip(&results) {
                assert_eq!((oracle.mode(), result.columns()), (*mode, rank));
                let comparison = oracle.compare(result, order, 1);
                let precision = T::PRECISION;
                let what =
                    || format!("{name}, {kind:?} from {from}, rank {rank}, {precision:?}: {comparison:?}");
                assert!(comparison.holds, "{}", what());
            }
        }
    }
}

/// Each mode alone, and the first with the last in the other order, give the bits of all modes together.
fn check_subsets(name: &str, order: usize, store: &Store) {
    let modes: Vec<usize> = (0..order).collect();
    let factors: Vec<Matrix<f64>> = seeded_factors(&Sys::default(), &store.manifest().shape, 7, 1).unwrap();
    let all = bits(&run(store, &factors, &modes).unwrap());
    let subsets = modes.iter().map(|&m| vec![m]).chain([vec![order - 1, 0]]);
    for subset in subsets {
        let some = bits(&run(store, &factors, &subset).unwrap());
        let wanted: Vec<_> = subset.iter().map(|&m| all[m].clone()).collect();
        assert!(some == wanted, "{name}: modes {subset:?} differ from the run of all");
    }
}

/// Rounding near the precision's least number is allowed and occurs: in f64 first, then in f32.
#[test]
fn subnormal_values_are_within_the_bound() {
    for scale in [1e-322, 1e-310, 1e-44, 1e-40] {
        let mut tensor = Tensor::random(&[40, 9, 200], 5000, 3, values::fraction);
        tensor.values.iter_mut().for_each(|value| *value *= scale);
        check(&format!("values of {scale:e}"), &tensor, &[7]);
    }
}

#[test]
fn every_order_and_every_kind_of_values() {
    type Case = (&'static str, &'static [u64], usize, fn(u64) -> f64, ValueEncoding);
    let cases: [Case; 8] = [
        ("order 2, fractions", &[70, 300], 3000, values::fraction, ValueEncoding::F64),
        ("order 3, integers", &[40, 9, 200], 5000, values::integer, ValueEncoding::Integer),
        ("order 3, wide integers", &[40, 9, 200], 2000, values::wide_integer, ValueEncoding::Integer),
        ("order 4, few values", &[50, 7, 33, 64], 4000, values::few, ValueEncoding::Dictionary),
        ("order 3, decimals", &[60, 70, 90], 5000, values::decimal, ValueEncoding::Decimal),
        ("order 5, ones", &[11, 30, 5, 17, 90], 4000, values::one, ValueEncoding::Integer),
        ("order 5, singles", &[30, 30, 30, 30, 30], 3000, values::single, ValueEncoding::F32),
        (
            "order 8, zeros among integers",
            &[4, 9, 3, 17, 2, 5, 33, 8],
            3000,
            values::with_zeros,
            ValueEncoding::Integer,
        ),
    ];
    let mut met = BTreeSet::new();
    for (seed, (name, dims, nnz, value, encoding)) in (1u64..).zip(cases) {
        // Distinct coordinates, so that sums do not leave the kind of values.
        let mut tensor = Tensor::random(dims, nnz, seed, value);
        distinct(&mut tensor);
        check(name, &tensor, &RANKS);
        let dir = tempfile::tempdir().unwrap();
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let mut buffer = Sys::default().page_buf(store.buffer_bytes()).unwrap();
        for number in 0..store.manifest().chunks.len() {
            let (header, _) = store.load(number, &mut buffer, &mut store.scratch().unwrap()).unwrap();
            assert_eq!(header.codes.value_encoding, encoding as u8, "{name}, chunk {number}");
        }
        met.insert(encoding);
    }
    assert_eq!(met.len(), ValueEncoding::ALL.len(), "every value encoding was met");
}

/// Keeps the first of the nonzeros that share coordinates.
fn distinct(tensor: &mut Tensor) {
    let mut seen = BTreeSet::new();
    let all = std::mem::take(tensor);
    tensor.dims.clone_from(&all.dims);
    for (row, value) in all.rows() {
        if seen.insert(row.to_vec()) {
            tensor.indices.extend(row);
            tensor.values.push(value);
        }
    }
}

#[test]
fn dims_of_one_and_one_nonzero() {
    check("1 x 1", &Tensor::of([1, 1], &[([0, 0], -2.5)]), &RANKS);
    check("dims of 1 around", &Tensor::random(&[1, 50, 1, 70, 1], 900, 3, values::fraction), &RANKS);
    check(
        "dims of 1, order 8",
        &Tensor::random(&[1, 1, 1, 1, 1, 1, 1, 600], 300, 4, values::integer),
        &RANKS,
    );
    check("one nonzero", &Tensor::of([300, 20, 70], &[([299, 0, 69], 0.1)]), &RANKS);
    check("one zero", &Tensor::of([3, 2, 7], &[([1, 1, 6], -0.0)]), &RANKS);
}

#[test]
fn every_nonzero_in_one_row_and_duplicates() {
    let mut tensor = Tensor::random(&[400, 60, 90], 4000, 8, values::fraction);
    tensor.indices.chunks_exact_mut(3).for_each(|row| row[0] = 123);
    check("one row", &tensor, &RANKS);
    let tensor = Tensor::random(&[6, 5, 4], 5000, 9, values::fraction);
    let stores = check("duplicates", &tensor, &RANKS);
    assert_eq!(stores[0].manifest().nnz, 120, "duplicates were summed");
}

#[test]
fn more_nonzeros_than_a_chunk() {
    let tensor = Tensor::random(&[900, 800, 70], 30_000, 10, values::fraction);
    for store in check("several chunks", &tensor, &[7, 16, 64]) {
        assert!(store.manifest().chunks.len() > 2, "{} chunks", store.manifest().chunks.len());
    }
    let tensor = Tensor::random(&[60, 50, 40], 3000, 11, values::integer);
    check("rank 512", &tensor, &[512]);
}

/// The keys of the BLCO blocks of a tensor's nonzeros.
fn keys(tensor: &Tensor) -> BTreeSet<u64> {
    let layout = BitLayout::new(&Shape::new(&tensor.dims).unwrap());
    let linearizer = Linearizer::<u128>::new(&layout);
    let reencoding = Reencoding::new(&layout, BLOCK_BITS);
    tensor.rows().map(|(row, _)| reencoding.key(linearizer.scatter(row))).collect()
}

/// Adds nonzeros in the first and the last corner.
fn with_corners(mut tensor: Tensor) -> Tensor {
    let last: Vec<u32> = tensor.dims.iter().map(|&d| u32::try_from(d - 1).unwrap()).collect();
    tensor.indices.extend(std::iter::repeat_n(0, last.len()).chain(last));
    tensor.values.extend([3.0, -5.5]);
    tensor
}

#[test]
fn exactly_64_linear_bits() {
    let dims = [256; 8];
    assert_eq!(Shape::new(&dims).unwrap().linear_bits(), 64);
    let corner = Tensor::of(dims, &[([255; 8], 7.5)]);
    check("64 bits, one nonzero for the one key", &corner, &RANKS);
    check("64 bits", &with_corners(Tensor::random(&dims, 700, 12, values::fraction)), &RANKS);
}

#[test]
fn exactly_65_linear_bits() {
    let dims = [256, 256, 256, 512, 256, 256, 256, 256];
    assert_eq!(Shape::new(&dims).unwrap().linear_bits(), 65);
    let two = with_corners(Tensor::of(dims, &[]));
    assert_eq!(keys(&two).len(), 2);
    check("65 bits, one nonzero for each key", &two, &RANKS);
    let many = with_corners(Tensor::random(&dims, 700, 13, values::integer));
    assert_eq!(keys(&many).len(), 2);
    check("65 bits", &many, &RANKS);
}

#[test]
fn exactly_128_linear_bits() {
    let dims = [65536; 8];
    assert_eq!(Shape::new(&dims).unwrap().linear_bits(), 128);
    let tensor = with_corners(Tensor::random(&dims, 700, 14, values::few));
    assert_eq!(keys(&tensor).len(), tensor.nnz(), "one nonzero for each key");
    // The factors of larger ranks take gigabytes.
    check("128 bits", &tensor, &[1, 7, 16]);
}

#[test]
fn coordinates_at_the_limits_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let longest = [DIM_MAX; 4];
    let tensors = [
        with_corners(Tensor::random(&longest, 1500, 15, values::wide_integer)),
        with_corners(Tensor::random(&[DIM_MAX, 1, 2, DIM_MAX], 1500, 16, values::few)),
        with_corners(Tensor::random(&[DIM_MAX, DIM_MAX], 1500, 17, values::single)),
    ];
    for (n, tensor) in tensors.iter().enumerate() {
        for kind in KINDS {
            let store =
                packed(tensor, &options(&dir.path().join(format!("{n}-{kind:?}")), kind, SMALL_CHUNKS));
            let back = exported(&store).unwrap();
            assert_eq!(back.dims, tensor.dims);
            assert!(back.sorted() == tensor.sorted(), "{:?} as {kind:?}", tensor.dims);
        }
    }
}

/// The same executor, buffers and sums again: nothing remains of the earlier pass.
#[test]
fn passes_do_not_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[500, 300, 20], 20_000, 18, values::fraction);
    for kind in KINDS {
        let store = packed(&tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
        let factors: Vec<Matrix<f64>> =
            seeded_factors(&Sys::default(), &store.manifest().shape, 9, 1).unwrap();
        let modes = [2, 0, 1];
        let once = bits(&run(&store, &factors, &modes).unwrap());
        let plan = plan_run::<f64>(&store, &modes, 9, 2, Some(3), None);
        let mut mttkrp = Mttkrp::new(&store, &factors, &modes, 2).unwrap();
        let mut backend = HostBackend::new(&store, &mut mttkrp).unwrap();
        let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
        for _ in 0..3 {
            backend.op().reset();
            let report = executor.pass(&mut backend, &|_| ()).unwrap();
            assert_eq!((report.nnz, report.chunks), (store.manifest().nnz, store.manifest().chunks.len()));
        }
        assert!(bits(&mttkrp.finish()) == once, "{kind:?}");
    }
}
