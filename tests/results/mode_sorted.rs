//! Establishes that passes from mode-sorted copies give the same bits as passes over chunks, and read no chunk: for every strategy of a mode's
//! sums, orders 3 to 6, formats and chunks, ranks, precisions and vectors, for any number of threads, with hot rows and short modes, all modes at once and one at a
//! time.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, bits, options, packed, run, values};
use crate::lists::tensor;
use blco::internals::backend::host::{HostBackend, Vectors};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::op::mttkrp::{ModeSortedDemand, Mttkrp, Strategy, strategies};
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use blco::{Device, DeviceOrder, Engine, Modes};
use std::ops::Range;

const THREADS: [usize; 7] = [1, 2, 3, 5, 8, 16, 64];

/// Rows of the first mode have a half, a quarter and an eighth of all nonzeros. In other modes, about a hundred rows have three quarters. If the last mode has two rows, one has four fifths.
fn skewed(dims: &[u64], nnz: usize) -> Tensor {
    let mut tensor = Tensor::random(dims, nnz, 7, values::fraction);
    for (i, row) in tensor.indices.chunks_exact_mut(dims.len()).enumerate() {
        row[0] = match i % 8 {
            0..4 => 77,
            4..6 => 3,
            6 => 4,
            _ => row[0],
        };
        if i % 4 < 3 {
            row[1..].iter_mut().for_each(|index| *index %= 500);
        }
        if dims.ends_with(&[2]) {
            row[dims.len() - 1] = u32::from(i % 5 == 0);
        }
    }
    tensor
}

/// The bits of two passes with copies; the first is over chunks.
fn passes<T: Real>(store: &Store, factors: &[Matrix<T>], threads: usize, vectors: Vectors) -> [Vec<u64>; 2] {
    let modes: Vec<usize> = (0..factors.len()).collect();
    let plan = plan(store, 0, &Limits { threads, ..Limits::default() }).unwrap();
    store.sys().pool(threads).unwrap().install(|| {
        let mttkrp = || Mttkrp::new(store, factors, &modes, threads).unwrap().with_vectors(vectors);
        [1, 2].map(|times| {
            let op = mttkrp().keep_mode_sorted(store).unwrap();
            let mut backend = HostBackend::for_threads(store, op, threads).unwrap();
            let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
            for pass in 0..times {
                backend.op().reset();
                let report = executor.pass(&mut backend, &|_| ()).unwrap();
                assert_eq!((report.bytes == 0, report.nnz), (pass > 0, store.manifest().nnz));
            }
            let mut results = Vec::new();
            drop(backend.try_map(|op| {
                results = op.finish();
                Ok(())
            }));
            bits(&results).into_iter().flat_map(|(_, bits)| bits).collect()
        })
    })
}

fn check<T: Real>(tensor: &Tensor, rank: usize, threads: &[usize], ways: &[Strategy]) {
    let dir = tempfile::tempdir().unwrap();
    for kind in [Kind::Tiled, Kind::HocfsCsr] {
        let target = dir.path().join(format!("{kind:?}"));
        let store = packed(tensor, &options(&target, kind, SMALL_CHUNKS));
        let modes: Vec<usize> = (0..tensor.order()).collect();
        let found = strategies(store.manifest(), &modes, rank);
        assert!(ways.iter().all(|way| found.contains(way)), "{found:?}");
        assert!(store.manifest().chunks.len() > 1);
        let factors: Vec<Matrix<T>> =
            seeded_factors(&Sys::default(), &store.manifest().shape, rank, 5).unwrap();
        let results = bits(&run(&store, &factors, &modes).unwrap());
        let wanted: Vec<u64> = results.into_iter().flat_map(|(_, bits)| bits).collect();
        for &threads in threads {
            for (pass, found) in passes(&store, &factors, threads, Vectors::Widest).iter().enumerate() {
                assert!(*found == wanted, "{kind:?}, rank {rank}, {threads} threads, pass {pass}");
            }
        }
        for vectors in [Vectors::Avx2, Vectors::Baseline] {
            assert!(passes(&store, &factors, 2, vectors)[1] == wanted, "{kind:?}, rank {rank}, {vectors:?}");
        }
    }
}

#[test]
fn copies_give_the_bits_of_chunks_where_rows_meet_again() {
    use Strategy::{Copies, Slots};
    let third = skewed(&[20_000, 9000, 60], 60_000);
    check::<f64>(&third, 32, &THREADS, &[Slots, Copies]);
    check::<f64>(&third, 37, &[3], &[Slots, Copies]);
    check::<f32>(&third, 40, &[5], &[Slots, Copies]);
    let fourth = skewed(&[9000, 300, 17_000, 2], 50_000);
    check::<f64>(&fourth, 16, &[2, 16], &[Slots, Copies]);
    check::<f32>(&fourth, 64, &[2, 16], &[Slots, Copies]);
    // First and last columns, which overlap.
    for rank in [9, 12, 18, 31, 50] {
        check::<f64>(&fourth, rank, &[2], &[Copies]);
        check::<f32>(&fourth, rank, &[2], &[Copies]);
    }
}

#[test]
fn copies_give_the_bits_of_chunks_for_any_number_of_modes() {
    use Strategy::{Copies, Lists, Slots};
    let second = skewed(&[20_000, 4000], 80_000);
    check::<f64>(&second, 32, &[3], &[Lists, Copies]);
    check::<f32>(&second, 64, &[2], &[Lists, Copies]);
    check::<f64>(&second, 5, &[2], &[Copies]);
    check::<f64>(&skewed(&[9000, 300, 400, 5, 2], 40_000), 32, &[3], &[Slots, Copies]);
    let sixth = skewed(&[9000, 6, 70, 300, 4, 2], 40_000);
    check::<f64>(&sixth, 32, &[3], &[Slots, Copies]);
    check::<f32>(&sixth, 7, &[3], &[Copies]);
    check::<f64>(&skewed(&[9000, 6, 7, 30, 4, 3, 2], 20_000), 16, &[2], &[Copies]);
    check::<f32>(&skewed(&[9000, 6, 3, 3, 30, 4, 3, 2], 20_000), 32, &[2], &[Slots, Copies]);
}

/// Several stretches; a row of each long mode has an eighth of the nonzeros, and one a fortieth.
#[test]
fn copies_give_the_bits_of_chunks_where_rows_seldom_meet() {
    use Strategy::{Copies, Lists};
    let tensor = tensor();
    let dir = tempfile::tempdir().unwrap();
    let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, 1 << 20));
    assert_eq!(strategies(store.manifest(), &[0, 1, 2], 64), [Lists, Lists, Copies]);
    let factors: Vec<Matrix<f64>> = seeded_factors(&Sys::default(), &store.manifest().shape, 64, 5).unwrap();
    let results = bits(&run(&store, &factors, &[0, 1, 2]).unwrap());
    let wanted: Vec<u64> = results.into_iter().flat_map(|(_, bits)| bits).collect();
    for threads in [2, 16] {
        assert!(passes(&store, &factors, threads, Vectors::Widest)[1] == wanted, "{threads} threads");
    }
}

/// The bits of eight passes of `op` on two threads, one mode at a time, in both kinds of products.
fn one_mode_at_a_time(store: &Store, op: Mttkrp<'static, f32>) -> Vec<Vec<u64>> {
    let plan = plan(store, 0, &Limits::default()).unwrap();
    let mut backend = HostBackend::for_threads(store, op, 2).unwrap();
    let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
    backend.op().put(seeded_factors::<f32>(&Sys::default(), &store.manifest().shape, 32, 5).unwrap());
    let passes = (0..8).map(|pass| {
        backend.op().aim(pass % store.dims().len(), pass < 6);
        executor.pass(&mut backend, &|_| ()).unwrap();
        let (sums, _) = backend.op().sums_and_factor();
        let found: Vec<u64> = sums.iter().map(|x| x.to_bits()).collect();
        sums.fill(0.0);
        found
    });
    passes.collect()
}

/// As several processes compute: each its own rows. The other rows' sums are zero.
#[test]
fn own_rows_have_the_bits_of_all() {
    let (short, long) = (skewed(&[20_000, 50, 9000, 2], 60_000), tensor());
    let kinds =
        [(&short, Kind::Tiled), (&long, Kind::Tiled), (&short, Kind::HocfsCsr), (&short, Kind::Mmcsf)];
    for (tensor, kind) in kinds {
        let dir = tempfile::tempdir().unwrap();
        let store = &packed(tensor, &options(&dir.path().join("s"), kind, SMALL_CHUNKS));
        store.sys().pool(2).unwrap().install(|| {
            let alternating = || Mttkrp::alternating(store, 32, 2).unwrap();
            let wanted = one_mode_at_a_time(store, alternating());
            for keep in if kind == Kind::Tiled { &[false, true][..] } else { &[false] } {
                let own = [0, 1].map(|number| {
                    let op = alternating().with_own_rows(number, 2);
                    one_mode_at_a_time(store, if *keep { op.keep_mode_sorted(store).unwrap() } else { op })
                });
                for (pass, wanted) in wanted.iter().enumerate() {
                    for (row, wanted) in wanted.chunks_exact(32).enumerate() {
                        let mut found = own.each_ref().map(|of| &of[pass][row * 32..][..32]).to_vec();
                        found.retain(|sums| sums.iter().any(|&x| x != 0));
                        assert!(found.len() <= 1, "{kind:?}, pass {pass}: row {row} has several owners");
                        assert!(
                            found.concat() == wanted || wanted.iter().all(|&x| x == 0),
                            "{kind:?}, {pass}, {row}"
                        );
                    }
                }
            }
        });
    }
}

/// As several processes compute: each its own chunks. They begin at any tile of a group, those of trees also inside a tile.
#[test]
fn shares_add_up_wherever_they_begin() {
    let tensor = skewed(&[20_000, 50, 9000, 2], 60_000);
    for kind in [Kind::Tiled, Kind::HocfsCsr, Kind::Mmcsf] {
        let dir = tempfile::tempdir().unwrap();
        let store = &packed(&tensor, &options(&dir.path().join("s"), kind, SMALL_CHUNKS));
        let chunks = &store.manifest().chunks;
        let starts = |share: &Range<usize>| !chunks[share.start].first_nonzero.is_multiple_of(4096);
        let shares = [0, 1, 2].map(|k| k * chunks.len() / 3..(k + 1) * chunks.len() / 3);
        assert!(shares.iter().any(starts), "{kind:?}: all shares begin with a group");
        for threads in [1, 3] {
            store.sys().pool(threads).unwrap().install(|| {
                let of = |store: &Store| {
                    one_mode_at_a_time(store, Mttkrp::alternating(store, 32, threads).unwrap())
                };
                let (whole, parts) = (of(store), shares.clone().map(|share| of(&store.of_chunks(share))));
                for (pass, whole) in whole.iter().enumerate() {
                    for (at, &whole) in whole.iter().enumerate() {
                        let whole = f64::from_bits(whole);
                        let sum: f64 = parts.iter().map(|part| f64::from_bits(part[pass][at])).sum();
                        assert!(
                            (sum - whole).abs() <= 1e-9 * whole.abs().max(1.0),
                            "{kind:?}, {pass}, {at}: {sum}, {whole}"
                        );
                    }
                }
            });
        }
    }
}

/// One mode at a time, as a decomposition computes them, in both kinds of products.
#[test]
fn copies_give_the_bits_of_chunks_one_mode_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = skewed(&[20_000, 50, 9000, 2], 60_000);
    let store = &packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
    store.sys().pool(2).unwrap().install(|| {
        let alternating = || Mttkrp::alternating(store, 32, 2).unwrap();
        let all = |op| one_mode_at_a_time(store, op);
        let (chunks, copies) = (all(alternating()), all(alternating().keep_mode_sorted(store).unwrap()));
        assert!(chunks[0] != chunks[4 + 2], "modes differ");
        for (pass, (chunks, copies)) in chunks.iter().zip(&copies).enumerate() {
            assert!(chunks == copies, "pass {pass}");
        }
    });
}

/// With all modes at once, modes share loads of rows: copies pay later or not at all where that helps as much.
#[test]
fn copies_are_left_where_short_modes_share_loads() {
    let slots = 9000;
    let pays = |dims: &[u64], rank, alternating| {
        let dir = tempfile::tempdir().unwrap();
        let store = packed(&skewed(dims, 20_000), &options(&dir.path().join("s"), Kind::Tiled, 1 << 20));
        let modes: Vec<usize> = (0..dims.len()).collect();
        assert!(!strategies(store.manifest(), &modes, 32).contains(&Strategy::Lists), "{dims:?}");
        let of = ModeSortedDemand::new::<f64>(store.manifest(), &modes, rank, 2, alternating);
        of.costs.pays_from().unwrap_or(u32::MAX)
    };
    let never: [&[u64]; 3] =
        [&[100, 20, 50, 40, 30], &[100, 50, 40, 50, 30, 20], &[100, 40, 30, 20, 10, 8, 7, 6]];
    for dims in never {
        assert_eq!(pays(dims, 32, false), u32::MAX, "{dims:?}");
        assert!(pays(dims, 32, true) < 30, "{dims:?}: one mode at a time shares nothing");
    }
    assert!(pays(&[100, 50, 40], 32, false) > 30, "all are short");
    assert!(pays(&[slots, slots, 40], 32, false) < 20, "a third is short");
    assert!(pays(&[slots, slots, slots], 32, false) < pays(&[slots, slots, 40], 32, false), "none is short");
    assert!(pays(&[slots, slots, slots], 8, false) > 30, "all are short at this rank");
}

/// Costs are numbers, also of the smallest tensors.
#[test]
fn costs_of_any_tensor_are_positive() {
    let all: [&[u64]; 5] = [&[1, 1], &[1, 70_000], &[1, 1, 1], &[30_000, 1, 2], &[1, 2, 1, 3, 1, 2, 1, 2]];
    for (dims, nnz) in all.into_iter().flat_map(|dims| [(dims, 1), (dims, 5000)]) {
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::random(dims, nnz, 7, values::fraction);
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, 1 << 20));
        let modes: Vec<usize> = (0..dims.len()).collect();
        for (rank, alternating) in [(1, false), (1, true), (32, false), (1 << 20, true)] {
            let of = ModeSortedDemand::new::<f32>(store.manifest(), &modes, rank, 1, alternating).costs;
            for cost in [of.in_store_order, of.from_copies, of.building] {
                assert!(cost > 0.0 && cost.is_finite(), "{dims:?}, rank {rank}: {of:?}");
            }
        }
    }
}

/// When a plan has copies, and a session's calls with them, with other factors in each call and results in the caller's memory.
#[test]
fn sessions_compute_from_copies_where_these_pay() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = skewed(&[20_000, 9000, 60], 60_000);
    let target = dir.path().join("s");
    packed(&tensor, &options(&target, Kind::Tiled, SMALL_CHUNKS));
    let engine = Engine::builder().device(Device::Cpu).threads(2).build().unwrap();
    let store = engine.open(&target).unwrap();
    let plan = |modes, calls| engine.plan_mttkrp::<f64>(&store, 32, modes, calls).unwrap();
    let built = |modes, calls| plan(modes, calls).mode_sorted().is_some_and(|plan| plan.built);
    assert!(plan(Modes::All, 1).mode_sorted().is_none());
    for modes in [Modes::All, Modes::Only(&[2])] {
        let copies = plan(modes, 2).mode_sorted().unwrap().clone();
        let from = copies.pays_from.unwrap();
        let (pass, building) = (copies.pass.unwrap(), copies.building.unwrap());
        assert!(from > 2 && pass < 1.0 && !copies.built, "{copies:?}");
        assert!(!built(modes, from - 1) && built(modes, from), "{copies:?}");
        // A pass more or less decides.
        let with = |passes: f64| 1.0 + building + (passes - 1.0) * pass;
        assert!(with(f64::from(from)) <= f64::from(from), "{copies:?}");
        assert!(with(f64::from(from - 1)) > f64::from(from - 1), "{copies:?}");
    }
    assert!(built(Modes::All, 60));
    let mut session = engine.prepare_mttkrp::<f64>(&store, 32, Modes::All, plan(Modes::All, 60)).unwrap();
    for seed in [1, 2, 2, 3] {
        let factors: Vec<Matrix<f64>> =
            seeded_factors(&Sys::default(), &store.manifest().shape, 32, seed).unwrap();
        let wanted = bits(&engine.mttkrp(&store, &factors, Modes::All).unwrap());
        assert!(bits(&session.mttkrp(&factors).unwrap()) == wanted, "seed {seed}");
        assert_eq!(session.passes()[0].bytes == 0, seed > 1);
        let mut results: Vec<Vec<f64>> = store.dims().iter().map(|&d| vec![7.0; d as usize * 32]).collect();
        session
            .mttkrp_into(&factors, &mut results.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())
            .unwrap();
        for (result, (_, wanted)) in results.iter().zip(&wanted) {
            assert!(result.iter().map(|x| x.to_bits()).eq(wanted.iter().copied()), "seed {seed}");
        }
    }
}

/// Stores with trees, also with one for each mode, are computed nonzero by nonzero, so copies, threads and other modes change no bits. Along
/// trees, if these are asked for, results agree.
#[test]
fn stores_with_trees_have_copies_too() {
    let tensor = skewed(&[20_000, 9000, 60], 60_000);
    for kind in [Kind::CsfAll, Kind::CsfOne, Kind::Hbcsf, Kind::Mmcsf, Kind::FcooMttkrp] {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("s");
        packed(&tensor, &options(&target, kind, SMALL_CHUNKS));
        let engine = |threads, order| {
            Engine::builder().device(Device::Cpu).threads(threads).device_order(order).build().unwrap()
        };
        let one = engine(1, DeviceOrder::Auto);
        let store = one.open(&target).unwrap();
        let factors: Vec<Matrix<f64>> =
            seeded_factors(&Sys::default(), &store.manifest().shape, 32, 3).unwrap();
        let wanted = one.mttkrp(&store, &factors, Modes::All).unwrap();
        for threads in [2, 5] {
            let engine = engine(threads, DeviceOrder::Auto);
            let plan = engine.plan_mttkrp::<f64>(&store, 32, Modes::All, 40).unwrap();
            assert!(plan.mode_sorted().unwrap().built, "{kind:?}");
            let mut session = engine.prepare_mttkrp::<f64>(&store, 32, Modes::All, plan).unwrap();
            for pass in 0..3 {
                assert!(
                    bits(&session.mttkrp(&factors).unwrap()) == bits(&wanted),
                    "{kind:?}, {threads} threads"
                );
                assert_eq!(session.passes()[0].bytes == 0, pass > 0);
            }
            let alone = engine.mttkrp(&store, &factors, Modes::Only(&[1])).unwrap();
            assert!(bits(&alone) == bits(&wanted[1..2]), "{kind:?}, {threads} threads, a mode alone");
        }
        let along = engine(2, DeviceOrder::Store).mttkrp(&store, &factors, Modes::All).unwrap();
        for ((_, wanted), (mode, found)) in wanted.iter().zip(&along) {
            let largest = wanted.data().iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-11 * largest;
            assert!(wanted.data().iter().zip(found.data()).all(near), "{kind:?}, mode {mode} along trees");
        }
    }
}
