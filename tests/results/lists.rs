//! Establishes that modes whose rows rarely repeat (lists by blocks of rows) give the oracle's results, and the same bits for any
//! number of threads, chunk size, memory and set of modes: over several stretches, with rows that have many of a stretch's nonzeros, alone in their range of rows and
//! not, beside short modes, in both precisions.

use crate::common::{Kind, Tensor, bits, options, packed, plan_run, run, run_planned, values};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::op::mttkrp::{Strategy, strategies};
use blco::internals::op::oracle;
use blco::internals::store::Store;
use blco::internals::sys::Sys;

/// Three stretches, and a part of one: a row of each long mode has an eighth of them, and one a fortieth.
pub fn tensor() -> Tensor {
    let mut tensor = Tensor::random(&[7000, 400_000, 5], 850_000, 6, values::fraction);
    for (i, row) in tensor.indices.chunks_exact_mut(3).enumerate() {
        match i % 40 {
            0..5 => row[0] = 77,
            5..10 => row[1] = 123_456,
            10 => row[0] = 6999,
            11 => row[1] = 123_457,
            _ => {}
        }
    }
    tensor
}

fn check<T: Real>(tensor: &Tensor, stores: &[Store], rank: usize) {
    let (sys, manifest) = (Sys::default(), stores[0].manifest());
    let found = strategies(manifest, &[0, 1, 2], rank);
    assert_eq!(
        found,
        [Strategy::Lists, Strategy::Lists, Strategy::Copies],
        "{:?}",
        manifest.partitions[0].statistics
    );
    let factors: Vec<Matrix<T>> = seeded_factors(&sys, &manifest.shape, rank, 5).unwrap();
    let run = |store: &Store, threads, modes: &[usize]| {
        let plan = plan_run::<T>(store, modes, rank, threads, Some(2), None);
        sys.pool(threads).unwrap().install(|| run_planned(store, &factors, modes, &plan)).unwrap()
    };
    let results = run(&stores[0], 2, &[0, 1, 2]);
    let oracle = oracle::mttkrp(&mut { tensor }, &factors, &[0, 1, 2]).unwrap();
    for (oracle, (_, result)) in oracle.iter().zip(&results) {
        let comparison = oracle.compare(result, 3, 1);
        assert!(comparison.holds, "rank {rank}, {:?}: {comparison:?}", T::PRECISION);
    }
    let wanted = bits(&results);
    for (store, threads) in stores.iter().cycle().zip([1, 3, 5, 8, 16, 64]) {
        assert!(bits(&run(store, threads, &[0, 1, 2])) == wanted, "rank {rank}, {threads} threads");
    }
    for (mode, wanted) in wanted.iter().enumerate() {
        assert!(bits(&run(&stores[1], 2, &[mode]))[0] == *wanted, "rank {rank}, mode {mode} alone");
    }
}

/// One stretch and nothing after it.
#[test]
fn stretches_end_with_the_tensor() {
    let nnz = 1 << 18;
    let indices = (0..nnz).flat_map(|i| [i * 7919 % 40_000, i]).collect();
    let tensor = Tensor { dims: vec![40_000, u64::from(nnz)], indices, values: vec![0.7; nnz as usize] };
    let dir = tempfile::tempdir().unwrap();
    let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, 1 << 20));
    assert_eq!(strategies(store.manifest(), &[0, 1], 9), [Strategy::Lists; 2]);
    let factors: Vec<Matrix<f64>> = seeded_factors(&Sys::default(), &store.manifest().shape, 9, 5).unwrap();
    let results = run(&store, &factors, &[0, 1]).unwrap();
    for (oracle, (_, result)) in
        oracle::mttkrp(&mut { &tensor }, &factors, &[0, 1]).unwrap().iter().zip(&results)
    {
        assert!(oracle.compare(result, 2, 1).holds);
    }
}

#[test]
fn rows_that_seldom_meet_again_have_one_writer() {
    let (dir, tensor) = (tempfile::tempdir().unwrap(), tensor());
    let stores = [64 << 10, 1 << 20, 64 << 20].map(|chunk_bytes| {
        packed(&tensor, &options(&dir.path().join(chunk_bytes.to_string()), Kind::Tiled, chunk_bytes))
    });
    let chunks = stores.each_ref().map(|store| store.manifest().chunks.len());
    assert!(chunks[0] > chunks[1] && chunks[1] > chunks[2] && chunks[2] == 1, "{chunks:?}");
    check::<f64>(&tensor, &stores, 64);
    check::<f64>(&tensor, &stores, 41);
    check::<f32>(&tensor, &stores, 40);
}
