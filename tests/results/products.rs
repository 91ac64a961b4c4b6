//! Establishes that SpTTM, SpTTMc, TTV along several modes, norms and inner products equal their definitions, for every order,
//! mode, precision and kind of store, and have the same bits whatever the chunks, threads and memory.

use crate::common::{
    KINDS, KINDS_OF_SEVERAL, Kind, SMALL_CHUNKS, Tensor, all_kinds, options, packed, values,
};
use blco::internals::backend::host::{HostBackend, HostOp, Vectors};
use blco::internals::dense::{Matrix, MatrixRef, Precision, Real, seeded_factors};
use blco::internals::engine::{Device, Engine, Modes};
use blco::internals::linear::Wide;
use blco::internals::op::oracle;
use blco::internals::op::ttm::{FiberRows, Fibers, Oracle, Sorted, is_in_order, serving_view, sorts_fibers};
use blco::internals::op::ttv::{Along, Merged};
use blco::internals::pack::Duplicates;
use blco::internals::random::Counter;
use blco::internals::shape::Shape;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::path::Path;

/// An engine on the CPU.
fn engine(threads: usize) -> Engine {
    Engine::builder().device(Device::Cpu).threads(threads).build().unwrap()
}

fn pass<O: HostOp>(store: &Store, op: &mut O) {
    let mut backend = HostBackend::new(store, op).unwrap();
    let plan = plan(store, 0, &Limits { workers: Some(2), ..Limits::default() }).unwrap();
    Executor::new(store, &plan, &mut backend).unwrap().pass(&mut backend, &|_| ()).unwrap();
}

/// The same number, to the bit.
fn same(found: Result<f64, blco::Error>, wanted: f64) {
    let found = found.unwrap();
    assert!(found.to_bits() == wanted.to_bits(), "{found:?}, not {wanted:?}");
}

/// A matrix with numbers of both signs.
fn matrix<T: Real>(rows: u64, rank: usize, seed: u64) -> Matrix<T> {
    let (random, rows) = (Counter::new(seed, 78), usize::try_from(rows).unwrap());
    let number = |i| T::nearest(random.unit(i as u64) * 2.0 - 1.0);
    Matrix::from_rows(rows, rank, (0..rows * rank).map(number).collect())
}

fn factors<T: Real>(tensor: &Tensor, ranks: &[usize]) -> Vec<Matrix<T>> {
    let modes = tensor.dims.iter().zip(ranks).enumerate();
    modes.map(|(m, (&dim, &rank))| matrix(dim, rank, m as u64)).collect()
}

/// Ranks that differ by mode.
fn ranks(order: usize) -> Vec<usize> {
    [3, 2, 4, 1, 2, 3, 1, 2][..order].to_vec()
}

fn bits<T: Real>(numbers: &[T]) -> Vec<u64> {
    numbers.iter().map(|x| x.widen().to_bits()).collect()
}

/// Tensors of every order, with values of several kinds.
fn tensors() -> Vec<Tensor> {
    vec![
        Tensor::random(&[300, 400], 20_000, 1, values::fraction),
        Tensor::random(&[70, 500, 90], 30_000, 2, values::integer),
        Tensor::random(&[20, 30, 10, 40], 20_000, 3, values::single),
        Tensor::random(&[9, 1, 8, 11, 30], 9000, 4, values::few),
        Tensor::random(&[5, 4, 6, 3, 7, 9], 4000, 5, values::fraction),
        Tensor::random(&[3, 4, 2, 5, 3, 4, 6], 3000, 6, values::fraction),
        Tensor::random(&[3, 4, 2, 5, 3, 4, 2, 6], 3000, 7, values::with_zeros),
    ]
}

/// All that have one partition, and every other one of those of several: which, turns with the tensor's order.
fn kinds(order: usize, odd: bool) -> impl Iterator<Item = Kind> {
    let first = (order + usize::from(odd)) % 2;
    KINDS.into_iter().chain(KINDS_OF_SEVERAL.into_iter().skip(first).step_by(2))
}

/// Fibers in ascending order, each once, with whole rows.
fn hold(order: usize, rank: usize, found: &Fibers<impl Real>, what: &str) {
    assert_eq!(found.values.len() % rank, 0, "{what}");
    assert_eq!(found.coordinates.len(), found.values.len() / rank * (order - 1), "{what}");
    let rows: Vec<&[u32]> = found.coordinates.chunks_exact(order - 1).collect();
    assert!(rows.is_sorted_by(|a, b| a < b), "{what}: in order, each once");
}

/// Fibers by the definition: the sum of each number of a row, the sum of absolute values, and the number of terms.
fn naive<T: Real>(
    tensor: &Tensor,
    mode: usize,
    matrix: &Matrix<T>,
) -> BTreeMap<Vec<u32>, (Vec<f64>, Vec<f64>, f64)> {
    let mut fibers = BTreeMap::new();
    let zeros = || vec![0.0; matrix.columns()];
    for (row, value) in tensor.rows() {
        let mut at = row.to_vec();
        let numbers = matrix.row(at.remove(mode) as usize);
        let fiber = fibers.entry(at).or_insert_with(|| (zeros(), zeros(), 0.0));
        for (r, x) in numbers.iter().enumerate() {
            fiber.0[r] += value * x.widen();
            fiber.1[r] += (value * x.widen()).abs();
        }
        fiber.2 += 1.0;
    }
    fibers
}

fn compare<T: Real>(tensor: &Tensor, mode: usize, matrix: &Matrix<T>, found: &Fibers<T>, what: &str) {
    hold(tensor.order(), matrix.columns(), found, what);
    let wanted = naive(tensor, mode, matrix);
    let coordinates: Vec<u32> = wanted.keys().flatten().copied().collect();
    assert!(found.coordinates == coordinates, "{what}: coordinates");
    for (row, (at, (sums, absolute, n))) in found.values.chunks_exact(matrix.columns()).zip(&wanted) {
        for ((x, sum), absolute) in row.iter().zip(sums).zip(absolute) {
            // Value, product and result are rounded to the precision; the matrix is given in it.
            let bound = absolute * (T::ROUNDOFF * 4.0 + f64::EPSILON / 2.0 * (n + 2.0));
            assert!((x.widen() - sum).abs() <= bound, "{what}: {at:?} is {x:?}, not {sum}");
        }
    }
    let shape = Shape::new(&tensor.dims).unwrap();
    let mut oracle = Oracle::new(&mut { tensor }, (&shape, 0), mode, matrix).unwrap();
    oracle.compare(found.as_slices());
    let comparison = oracle.finish();
    assert!(comparison.holds && comparison.worst <= 1.0, "{what}: {comparison:?}");
}

/// SpTTM without memory for nonzeros, which all go to files. Returns whether all values were said to be finite, too.
fn spilled<T: Real>(store: &Store, mode: usize, matrix: &Matrix<T>, vectors: Vectors) -> (Fibers<T>, bool) {
    let (manifest, dir) = (store.manifest(), tempfile::tempdir().unwrap());
    let mut all = Fibers { coordinates: Vec::new(), values: Vec::new() };
    let mut sink = |pieces: &[(&[u32], &[T])]| {
        for (coordinates, values) in pieces {
            all.coordinates.extend_from_slice(coordinates);
            all.values.extend_from_slice(values);
        }
        Ok(())
    };
    let order = manifest.shape.order();
    let rows =
        FiberRows::new(store.sys(), order, MatrixRef::from(matrix), Some(&mut sink)).with_vectors(vectors);
    let tensor = (&manifest.shape, manifest.nnz);
    let mut op = Sorted::<Wide>::new(store.sys(), tensor, mode, 0, dir.path());
    pass(store, &mut op);
    let (delivered, _) = op.finish(rows).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    (all, delivered.finite)
}

/// A fiber whose sum overflows in its last column is noticed wherever it lies; one whose sum is too large only for a while is finite.
#[test]
fn ttm_says_whether_values_are_finite() {
    const LARGE: f64 = 3e38;
    let short = [1; 1500];
    for lengths in [&[600, 3, 400, 21, 512, 700, 3, 1][..], &[512, 512, 512], &short] {
        let fibers = if lengths.len() > 8 {
            vec![0, 1, 300, 508, 509, 511, 512, 1498, 1499]
        } else {
            (0..lengths.len()).collect()
        };
        for large in fibers {
            for (values, finite) in
                [([1.0, 1.0, 1.0], true), ([LARGE, LARGE, 1.0], false), ([LARGE, LARGE, -LARGE], true)]
            {
                let rows = lengths.iter().enumerate().flat_map(|(fiber, &length)| {
                    let length = if fiber == large { length.max(3) } else { length };
                    (0..length).map(move |leaf| {
                        let value = match leaf {
                            _ if fiber != large => 1.0,
                            0 | 1 => values[leaf],
                            _ if leaf + 1 == length => values[2],
                            _ => 1.0,
                        };
                        ([u32::try_from(fiber).unwrap(), u32::try_from(leaf).unwrap()], value)
                    })
                });
                let tensor = Tensor::of([lengths.len() as u64, 700], &rows.collect::<Vec<_>>());
                let dir = tempfile::tempdir().unwrap();
                let store = packed(&tensor, &options(&dir.path().join("t"), Kind::Raw, SMALL_CHUNKS));
                let matrix = Matrix::from_rows(
                    700,
                    20,
                    (0..700 * 20).map(|i| f32::from(u8::from(i % 20 == 19))).collect(),
                );
                let (all, said) = spilled(&store, 1, &matrix, Vectors::Widest);
                assert_eq!(
                    all.values.iter().all(|x| x.is_finite()),
                    finite,
                    "{large} of {} fibers",
                    lengths.len()
                );
                assert_eq!(said, finite, "{large} of {} fibers", lengths.len());
            }
        }
    }
}

/// Every order, mode, kind of store and precision; formats give the same bits, and so do files.
fn check_ttm<T: Real>(precision: &str) {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine(2));
    for tensor in tensors() {
        // Packing adds up repeated coordinates of each.
        let mut wanted: Vec<Option<Fibers<T>>> = vec![None; tensor.order()];
        for kind in kinds(tensor.order(), T::PRECISION == Precision::F32) {
            let target = dir.path().join(format!("{}-{kind:?}", tensor.order()));
            let store = packed(&tensor, &options(&target, kind, SMALL_CHUNKS));
            for (mode, wanted) in wanted.iter_mut().enumerate() {
                let what = format!("order {}, {kind:?}, mode {mode}, {precision}", tensor.order());
                let matrix = matrix::<T>(tensor.dims[mode], [1, 20, 8, 32, 45][mode % 5], 3);
                let found = engine.ttm(&store, mode, &matrix).unwrap();
                match wanted {
                    None => {
                        compare(&tensor, mode, &matrix, &found, &what);
                        let (narrow, _) = spilled(&store, mode, &matrix, Vectors::Baseline);
                        assert!(narrow == found, "{what}: from files, with narrow vectors");
                        *wanted = Some(found);
                    }
                    Some(wanted) => {
                        assert!(bits(&found.values) == bits(&wanted.values), "{what}");
                        assert!(found.coordinates == wanted.coordinates, "{what}");
                    }
                }
            }
            std::fs::remove_dir_all(&target).unwrap();
        }
    }
}

#[test]
fn ttm_equals_the_definition_in_f64() {
    check_ttm::<f64>("f64");
}

#[test]
fn ttm_equals_the_definition_in_f32() {
    check_ttm::<f32>("f32");
}

/// Difficult fibers: one that holds everything, across chunks and tiles; fibers of one nonzero; a single nonzero.
#[test]
fn ttm_of_hard_shapes_does_not_depend_on_chunks_or_threads() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<([u32; 3], f64)> = (0..20_000).map(|i| ([i, i * 7 % 20_011, i], f64::from(i))).collect();
    let tensors = [
        ("one fiber", Tensor::random(&[1, 1, 90_000], 30_000, 8, values::fraction)),
        ("two long fibers", Tensor::random(&[2, 1, 40_000], 50_000, 9, values::fraction)),
        ("long and short", Tensor::random(&[3, 5, 40_000], 60_000, 10, values::fraction)),
        ("fibers of one", Tensor::of([20_000, 20_011, 20_000], &rows)),
        ("one nonzero", Tensor::of([5, 6, 7], &[([4, 0, 6], -2.0)])),
    ];
    for (name, tensor) in &tensors {
        for mode in 0..3 {
            let matrix = matrix::<f64>(tensor.dims[mode], [4, 41, 18][mode], 5);
            let mut wanted: Option<Fibers<f64>> = None;
            for (kind, chunk_bytes) in [
                (Kind::HocfsCsr, SMALL_CHUNKS),
                (Kind::HocfsCsr, 16 << 20),
                (Kind::HocfsEll, 200 << 10),
                (Kind::CsfOne, SMALL_CHUNKS),
                (Kind::BcsfRoot, SMALL_CHUNKS),
                (Kind::BcsfRoot, 16 << 20),
                (Kind::Tiled, SMALL_CHUNKS),
            ] {
                let target = dir.path().join(format!("{name}-{mode}-{kind:?}-{chunk_bytes}"));
                let store = packed(tensor, &options(&target, kind, chunk_bytes));
                assert!(kind != Kind::HocfsCsr || is_in_order(store.manifest(), 2));
                for threads in [1, 2, 5] {
                    let what = format!("{name}, mode {mode}, {kind:?}, {threads} threads");
                    let found = engine(threads).ttm(&store, mode, &matrix).unwrap();
                    match &wanted {
                        None => {
                            compare(tensor, mode, &matrix, &found, &what);
                            wanted = Some(found);
                        }
                        Some(wanted) => assert!(bits(&found.values) == bits(&wanted.values), "{what}"),
                    }
                }
            }
        }
    }
}

/// Trees whose root is the first of the other modes: their fibers are sorted slice by slice, with one slice, slices of several chunks and
/// chunks of several slices, and with coordinates that repeat.
#[test]
fn ttm_by_slices_has_the_bits_of_sorted_nonzeros() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [
        ([1, 30, 20, 4000], 60_000, Duplicates::Sum),
        ([3, 9, 4, 40], 8000, Duplicates::Keep),
        ([70, 8, 5, 900], 50_000, Duplicates::Keep),
        ([2, 90, 40, 50_000], 90_000, Duplicates::Sum),
    ];
    for (dims, nnz, duplicates) in tensors {
        let tensor = Tensor::random(&dims, nnz, 12, values::fraction);
        let (matrix, mut stores) = (matrix::<f64>(dims[3], 5, 7), 0);
        for kind in all_kinds() {
            let target = dir.path().join(format!("{}-{kind:?}", dims[0]));
            let mut options = options(&target, kind, SMALL_CHUNKS);
            options.duplicates = duplicates;
            let store = packed(&tensor, &options);
            let view = serving_view(&store, 3);
            let manifest = view.manifest();
            let root = manifest.format().tree_levels().map(|levels| levels.mode(0));
            if root != Some(0) || !sorts_fibers(manifest, 3) || is_in_order(manifest, 3) {
                continue;
            }
            let (wanted, _) = spilled(&store, 3, &matrix, Vectors::Widest);
            if stores == 0 {
                compare(&tensor, 3, &matrix, &wanted, &format!("{dims:?}, {kind:?}"));
            }
            stores += 1;
            for threads in [1, 2, 5] {
                let found = engine(threads).ttm(&store, 3, &matrix).unwrap();
                assert!(found == wanted, "{dims:?}, {kind:?}, {threads} threads");
            }
        }
        assert!(stores > 0, "{dims:?}");
    }
}

/// Coordinates that repeat in a store count each time, in every operation.
#[test]
fn repeated_coordinates_count_each_time() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine(2));
    let tensor = Tensor::random(&[6, 7, 8], 5000, 10, values::integer);
    let other = Tensor::random(&[6, 7, 8], 700, 11, values::integer);
    let mut dense = BTreeMap::new();
    tensor.rows().for_each(|(row, value)| *dense.entry(row.to_vec()).or_insert(0.0) += value);
    let inner: f64 = other.rows().map(|(row, value)| value * dense.get(row).unwrap_or(&0.0)).sum();
    let squares: f64 = tensor.rows().map(|(_, value)| value * value).sum();
    let mut fibers_sorted = 0;
    for kind in all_kinds() {
        let pack = |tensor: &Tensor, name: &str| {
            let mut options = options(&dir.path().join(format!("{kind:?}-{name}")), kind, SMALL_CHUNKS);
            options.duplicates = Duplicates::Keep;
            packed(tensor, &options)
        };
        let (store, other) = (pack(&tensor, "a"), pack(&other, "b"));
        for mode in 0..3 {
            let matrix = matrix::<f64>(tensor.dims[mode], 3, 6);
            let found = engine.ttm(&store, mode, &matrix).unwrap();
            compare(&tensor, mode, &matrix, &found, &format!("{kind:?}, mode {mode}"));
            // The same bits whether memory allows to sort the fibers alone.
            let view = serving_view(&store, mode);
            if sorts_fibers(view.manifest(), mode) && !is_in_order(view.manifest(), mode) {
                assert!(spilled(&store, mode, &matrix, Vectors::Widest).0 == found, "{kind:?}, mode {mode}");
                fibers_sorted += 1;
            }
        }
        check_ttmc_of::<f64>(&engine, &store, &tensor, &format!("{kind:?}"));
        same(engine.inner(&store, &other), inner);
        same(engine.inner(&other, &store), inner);
        same(engine.norm(&store), squares.sqrt());
    }
    assert!(fibers_sorted > 2, "{fibers_sorted} results");
}

/// SpTTMc of all modes and of each, against the oracle.
fn check_ttmc_of<T: Real>(engine: &Engine, store: &Store, tensor: &Tensor, what: &str) -> Vec<Vec<u64>> {
    let order = tensor.order();
    let factors = factors::<T>(tensor, &ranks(order));
    let modes: Vec<usize> = (0..order).collect();
    let oracle = oracle::ttmc(&mut { tensor }, &factors, &modes).unwrap();
    let all = engine.ttmc(store, &factors, Modes::All).unwrap();
    for ((oracle, (mode, result)), &m) in oracle.iter().zip(&all).zip(&modes) {
        assert_eq!(*mode, m);
        let comparison = oracle.compare(result, order, 1);
        assert!(comparison.holds, "{what}, mode {m}: {comparison:?}");
        let alone = engine.ttmc(store, &factors, Modes::Only(&[m])).unwrap();
        assert!(bits(alone[0].1.data()) == bits(result.data()), "{what}, mode {m}: alone");
    }
    all.iter().map(|(_, result)| bits(result.data())).collect()
}

#[test]
fn ttmc_equals_the_definition() {
    let dir = tempfile::tempdir().unwrap();
    let (two, five) = (engine(2), engine(5));
    for tensor in tensors() {
        for (turn, kind) in all_kinds().enumerate() {
            let mut wanted: Option<Vec<Vec<u64>>> = None;
            // Other formats than those of one partition take turns with chunks and precisions.
            let turns = turn >= KINDS.len();
            let chunks = [SMALL_CHUNKS, 16 << 20];
            for chunk_bytes in chunks.into_iter().take(if turns { 1 } else { 2 }) {
                let target = dir.path().join(format!("{}-{kind:?}-{chunk_bytes}", tensor.order()));
                let store = packed(&tensor, &options(&target, kind, chunk_bytes));
                let what = format!("order {}, {kind:?}", tensor.order());
                let found = check_ttmc_of::<f64>(&two, &store, &tensor, &what);
                let wanted = wanted.get_or_insert_with(|| found.clone());
                assert!(found == *wanted, "{what}: chunks of {chunk_bytes} bytes");
                let factors = factors::<f64>(&tensor, &ranks(tensor.order()));
                let threads = five.ttmc(&store, &factors, Modes::All).unwrap();
                let threads: Vec<Vec<u64>> = threads.iter().map(|(_, result)| bits(result.data())).collect();
                assert!(threads == *wanted, "{what}: five threads");
                if !turns || (turn + tensor.order()).is_multiple_of(2) {
                    check_ttmc_of::<f32>(&two, &store, &tensor, &format!("{what}, f32"));
                }
                std::fs::remove_dir_all(&target).unwrap();
            }
        }
    }
}

/// Several stretches, rows of many pieces, ranks that vectors do not divide; one and three threads.
#[test]
fn ttmc_of_long_rows_does_not_depend_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[3, 700, 4000], 600_000, 12, values::fraction);
    let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, 1 << 20));
    let factors = factors::<f64>(&tensor, &[2, 5, 3]);
    let oracle = oracle::ttmc(&mut { &tensor }, &factors, &[0, 1, 2]).unwrap();
    let results = [1, 3].map(|threads| engine(threads).ttmc(&store, &factors, Modes::All).unwrap());
    for (oracle, ((mode, one), (_, three))) in oracle.iter().zip(results[0].iter().zip(&results[1])) {
        assert!(oracle.compare(one, 3, 1).holds && one == three, "mode {mode}");
    }
}

/// With factors of one column each, it is MTTKRP of rank 1.
#[test]
fn ttmc_of_rank_one_is_mttkrp() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine(2));
    let tensor = Tensor::random(&[40, 50, 60], 20_000, 13, values::integer);
    let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
    // Whole numbers: no sum is rounded.
    let twos: Vec<Matrix<f64>> = [40, 50, 60].map(|dim| Matrix::from_rows(dim, 1, vec![2.0; dim])).to_vec();
    let (a, b) = (engine.ttmc(&store, &twos, Modes::All), engine.mttkrp(&store, &twos, Modes::All));
    assert_eq!(a.unwrap(), b.unwrap());
}

/// TTV along all sets of modes: the same as one after the other by the definition, from memory and from files.
#[test]
fn ttv_along_several_modes() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine(2));
    for tensor in tensors() {
        let order = tensor.order();
        for (turn, kind) in all_kinds().enumerate() {
            let target = dir.path().join(format!("{order}-{kind:?}"));
            let store = packed(&tensor, &options(&target, kind, SMALL_CHUNKS));
            // These with all sets, the others in turns.
            let with_all = order <= 5 && [Kind::Tiled, Kind::HocfsCsr, Kind::HocfsEll].contains(&kind);
            let step = if with_all { 1 } else { 15.min((1 << order) - 1) };
            for set in (1u32..1 << order).skip(turn % step).step_by(step) {
                let modes: Vec<usize> = (0..order).filter(|m| set >> m & 1 == 1).collect();
                check_ttv::<f64>(&engine, &store, &tensor, &modes);
                if set % 3 == 0 {
                    check_ttv::<f32>(&engine, &store, &tensor, &modes);
                }
            }
        }
    }
}

fn check_ttv<T: Real>(engine: &Engine, store: &Store, tensor: &Tensor, modes: &[usize]) {
    let vectors: Vec<Matrix<T>> = modes.iter().map(|&m| matrix(tensor.dims[m], 1, m as u64)).collect();
    let along: Vec<Along<'_, T>> = modes.iter().zip(&vectors).map(|(&m, v)| (m, v.data())).collect();
    let left = tensor.order() - modes.len();
    let mut found = Vec::new();
    let mut sink = |batches: Vec<blco::Batch>| {
        for batch in batches {
            for (i, &value) in batch.values.iter().enumerate() {
                found.push((batch.indices[i * left..][..left].to_vec(), value));
            }
        }
        Ok(())
    };
    let elements = engine.ttv(store, &along, &mut sink).unwrap();
    assert_eq!(elements, found.len() as u64);
    let mut wanted: BTreeMap<Vec<u32>, (f64, f64, f64)> = BTreeMap::new();
    for (row, value) in tensor.rows() {
        let at = (0..row.len()).filter(|m| !modes.contains(m)).map(|m| row[m]).collect();
        let numbers = along.iter().map(|&(m, vector)| vector[row[m] as usize].widen());
        let product = numbers.fold(value, |product, x| product * x);
        let sum = wanted.entry(at).or_default();
        *sum = (sum.0 + product, sum.1 + product.abs(), sum.2 + 1.0);
    }
    if modes.len() != 1 {
        assert!(found.iter().map(|element| &element.0).eq(wanted.keys()), "{modes:?}: coordinates, in order");
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    for ((at, value), (wanted, (sum, absolute, n))) in found.iter().zip(&wanted) {
        let roundings = T::ROUNDOFF * (2.0 + 2.0 * modes.len() as f64) + f64::EPSILON / 2.0 * (n + 2.0);
        assert!(
            at == wanted && (value - sum).abs() <= absolute * roundings,
            "{modes:?}: {at:?} is {value}, not {sum}"
        );
    }
    if left == 0 {
        return;
    }
    let (dir, mut spilled) = (tempfile::tempdir().unwrap(), Vec::new());
    let tensor = (&store.manifest().shape, store.manifest().nnz);
    let mut op = Merged::<T, Wide>::new(store.sys(), tensor, &along, 0, dir.path());
    pass(store, &mut op);
    let mut sink = |batches: Vec<blco::Batch>| {
        spilled.extend(batches.iter().flat_map(|batch| bits(&batch.values)));
        Ok(())
    };
    op.finish(&mut sink).unwrap();
    let merged: Vec<u64> = found.iter().map(|element| element.1.to_bits()).collect();
    assert!(modes.len() == 1 || spilled == merged, "{modes:?}: from files");
}

/// Norms and inner products equal exact sums, whatever the formats, threads and memory.
#[test]
fn norms_and_inner_products_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    let a = Tensor::random(&[900, 400, 60], 200_000, 14, values::integer);
    let b = Tensor::random(&[900, 400, 60], 260_000, 15, values::integer);
    let sums = |tensor: &Tensor| {
        let mut sums: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
        tensor.rows().for_each(|(row, value)| *sums.entry(row.to_vec()).or_default() += value);
        sums
    };
    let (of_a, of_b) = (sums(&a), sums(&b));
    // Whole numbers: no sum is rounded.
    let inner: f64 = of_a.iter().map(|(at, value)| value * of_b.get(at).unwrap_or(&0.0)).sum();
    let norm = of_a.values().map(|value| value * value).sum::<f64>().sqrt();
    let pack = |tensor, kind: Kind, name: &str| {
        packed(tensor, &options(&dir.path().join(format!("{name}-{kind:?}")), kind, SMALL_CHUNKS))
    };
    let kinds = [Kind::Tiled, Kind::HocfsCsr, Kind::HocfsEll, Kind::Hbcsf, Kind::FcooTtm];
    let (stores, others) = (kinds.map(|kind| pack(&a, kind, "a")), kinds.map(|kind| pack(&b, kind, "b")));
    for engine in [engine(1), engine(3)] {
        for (n, store) in stores.iter().enumerate() {
            same(engine.norm(store), norm);
            for other in others.iter().take(if n < 3 { 3 } else { 1 }) {
                same(engine.inner(store, other), inner);
                same(engine.inner(other, store), inner);
            }
        }
    }
    // The least memory: the smaller tensor is held in parts, and the larger one streams past each.
    let within = |memory: u64| {
        let engine = Engine::builder().device(Device::Cpu).threads(1).memory(memory).build().unwrap();
        engine.inner(&stores[0], &others[1])
    };
    let least = (4 << 20..64 << 20).step_by(1 << 18).find(|&memory| within(memory).is_ok());
    same(within(least.unwrap()), inner);
}

/// Arguments that do not fit an operation are an error of one line.
#[test]
fn what_does_not_fit_is_refused() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine(1));
    let tensor = Tensor::of([5, 6, 7], &[([4, 0, 6], -2.0), ([1, 1, 1], f64::MAX)]);
    let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
    let other = Tensor::of([5, 6, 8], &[([4, 0, 7], -2.0)]);
    let other = packed(&other, &options(&dir.path().join("o"), Kind::Tiled, SMALL_CHUNKS));
    let refused = |result: Result<(), blco::Error>, wanted: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(wanted) && message.lines().count() == 1, "{message}");
    };
    let square = |rows| matrix::<f64>(rows, 2, 1);
    refused(engine.ttm(&store, 2, &square(6)).map(drop), "a matrix of 6 rows along mode 3, which has 7");
    refused(engine.ttm(&store, 3, &square(7)).map(drop), "modes [4] of a tensor of order 3");
    let factors = factors::<f64>(&tensor, &[2, 3, 4]);
    refused(engine.ttmc(&store, &factors[..2], Modes::All).map(drop), "2 factors for a tensor of order 3");
    let wrong = [square(5), square(6), square(6)];
    refused(engine.ttmc(&store, &wrong, Modes::All).map(drop), "factor of mode 3 has 6 rows, not 7");
    let wide = [1 << 19, 1 << 19, 1 << 19];
    refused(engine.plan_ttmc::<f64>(&store, &wide, Modes::All).map(drop), "needs at least");
    refused(engine.inner(&store, &other).map(drop), "has dims 5 x 6 x 8");
    refused(engine.norm(&store).map(drop), "the norm exceeds all numbers");
    let (x, y) = ([1.0; 6], [1.0; 7]);
    let sink = &mut |_| Ok(());
    refused(engine.ttv(&store, &[(2, &y), (1, &x)], sink).map(drop), "ascending order");
    refused(engine.ttv::<f64>(&store, &[], sink).map(drop), "at least one");
    refused(engine.ttv(&store, &[(1, &y)], sink).map(drop), "7 numbers along mode 2");
    let seeded = seeded_factors::<f32>(&Sys::default(), &store.manifest().shape, 1, 0).unwrap();
    let along: Vec<Along<'_, f32>> = seeded.iter().enumerate().map(|(m, v)| (m, v.data())).collect();
    refused(engine.ttv(&store, &along, sink).map(drop), "exceeds all numbers");
    assert!(!Path::new("s").exists());
}
