//! Establishes that MTTKRP gives the same bits with the widest vectors of the machine, with AVX2 and with neither, and that these agree with the
//! oracle: for short modes (copies of the result), long ones whose rows repeat, near one another and far apart (slots), and long ones
//! whose rows rarely do (lists), all modes at once and one at a time, in both precisions.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, bits, options, packed, plan_run, values};
use blco::internals::backend::host::{HostBackend, Vectors};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::op::mttkrp::{Mttkrp, Strategy, strategies};
use blco::internals::op::oracle;
use blco::internals::shape::Shape;
use blco::internals::store::Store;
use blco::internals::stream::Executor;
use blco::internals::sys::Sys;

const VECTORS: [Vectors; 3] = [Vectors::Widest, Vectors::Avx2, Vectors::Baseline];

fn run<T: Real>(
    store: &Store,
    factors: &[Matrix<T>],
    modes: &[usize],
    threads: usize,
    vectors: Vectors,
) -> Vec<(usize, Matrix<T>)> {
    let plan = plan_run::<T>(store, modes, factors[0].columns(), threads, Some(2), None);
    store.sys().pool(threads).unwrap().install(|| {
        let mut mttkrp = Mttkrp::new(store, factors, modes, threads).unwrap().with_vectors(vectors);
        let mut backend = HostBackend::new(store, &mut mttkrp).unwrap().with_vectors(vectors);
        Executor::new(store, &plan, &mut backend).unwrap().pass(&mut backend, &|_| ()).unwrap();
        mttkrp.finish()
    })
}

/// All instructions, threads and sets of modes against the oracle and against one another.
fn check<T: Real>(tensor: &Tensor, store: &Store, rank: usize) {
    let (sys, order) = (Sys::default(), tensor.order());
    let shape = Shape::new(&tensor.dims).unwrap();
    let modes: Vec<usize> = (0..order).collect();
    let factors: Vec<Matrix<T>> = seeded_factors(&sys, &shape, rank, 3).unwrap();
    let wanted = run(store, &factors, &modes, 1, Vectors::Widest);
    let oracle = oracle::mttkrp(&mut { tensor }, &factors, &modes).unwrap();
    for (oracle, (_, result)) in oracle.iter().zip(&wanted) {
        let comparison = oracle.compare(result, order, 1);
        assert!(comparison.holds, "{:?}, rank {rank}, {:?}: {comparison:?}", tensor.dims, T::PRECISION);
    }
    let wanted = bits(&wanted);
    for vectors in VECTORS {
        for threads in [1, 3] {
            let all = bits(&run(store, &factors, &modes, threads, vectors));
            assert!(all == wanted, "{:?}, rank {rank}, {vectors:?}, {threads} threads", tensor.dims);
        }
        for &mode in &modes {
            let one = bits(&run(store, &factors, &[mode], 2, vectors));
            assert!(one[0] == wanted[mode], "{:?}, rank {rank}, {vectors:?}, mode {mode}", tensor.dims);
        }
    }
}

#[test]
fn every_instruction_set_gives_the_oracles_results() {
    // Long modes with many and with few nonzeros near one another; orders with and without their own loop.
    let shapes: [&[u64]; 5] =
        [&[40_000, 30], &[300_000, 17, 40_000], &[50, 60, 40_000, 9], &[20, 41_000, 7, 9, 5], &[30, 20, 10]];
    for (n, dims) in shapes.into_iter().enumerate() {
        let mut tensor = Tensor::random(dims, 30_000, 40 + n as u64, values::fraction);
        // In the long modes of every second tensor, few rows have nonzeros.
        let apart = if n == 1 { 50 } else { 1 };
        if n % 2 == 1 {
            for row in tensor.indices.chunks_exact_mut(dims.len()) {
                let long = row.iter_mut().zip(dims).filter(|(_, dim)| **dim >= 20_000);
                long.for_each(|(index, _)| *index = *index % 400 * apart);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        for kind in [Kind::Tiled, Kind::HocfsCsr] {
            let target = dir.path().join(format!("{kind:?}"));
            let store = packed(&tensor, &options(&target, kind, SMALL_CHUNKS));
            for rank in [8, 9, 16, 32, 64] {
                check::<f64>(&tensor, &store, rank);
                check::<f32>(&tensor, &store, rank);
            }
        }
        let modes: Vec<usize> = (0..dims.len()).collect();
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let found = strategies(store.manifest(), &modes, 9);
        let long = [Strategy::Lists, Strategy::Slots][n % 2];
        let long = |dim: &u64| if *dim < 20_000 { Strategy::Copies } else { long };
        assert_eq!(found, dims.iter().map(long).collect::<Vec<_>>());
    }
}
