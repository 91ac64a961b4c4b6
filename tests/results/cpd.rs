//! Establishes that CP-ALS on the host follows its definition, order by order and iteration by iteration, and that its report is
//! correct; that threads, workers, chunks and checkpoints do not change a bit; and how it
//! ends if numbers overflow or the disk fails.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::naive::{Dense, naive_iteration, rows};
use blco::internals::decomp::checkpoint::{Checkpointer, Identity};
use blco::internals::decomp::host::{HostAls, host_bytes};
use blco::internals::decomp::update::Rule;
use blco::internals::decomp::{AlsBackend, CpJob, Decomposition, Init, Model, Problem, Settings, Stop, run};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::error::{Error, Result};
use blco::internals::op::mttkrp::{Mttkrp, strategies};
use blco::internals::store::Store;
use blco::internals::stream::{Limits, plan};
use blco::internals::sys::Sys;
use blco::internals::sys::fault::{Call, Fault, Faults};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// The options of a test besides the store.
#[derive(Clone)]
struct Ask<T> {
    settings: Settings,
    init: Init<T>,
    tol: f64,
    max_iters: usize,
    threads: usize,
    memory: Option<u64>,
    checkpoint: Option<(std::path::PathBuf, usize, bool)>,
}

fn ask<T>(rank: usize, init: Init<T>, max_iters: usize) -> Ask<T> {
    let settings = Settings { rank, ridge: 0.0, nonneg: false };
    Ask { settings, init, tol: 0.0, max_iters, threads: 2, memory: None, checkpoint: None }
}

fn seeded<T>(seed: u64) -> Init<T> {
    Init::Seeded { seed, starts: 1 }
}

fn decompose<T: Real>(store: &Store, ask: Ask<T>) -> Result<Decomposition<T>> {
    let (sys, shape, rank) = (store.sys(), &store.manifest().shape, ask.settings.rank);
    let open = |(dir, every, resume): (std::path::PathBuf, usize, bool)| {
        let identity = Identity::from([("rank".to_owned(), rank.to_string())]);
        Checkpointer::open(sys, &dir, every, identity, resume)
    };
    let mut job = CpJob {
        sys,
        shape,
        problem: Problem::of(store.manifest())?,
        settings: ask.settings,
        tol: ask.tol,
        max_iters: ask.max_iters,
        checkpoint: ask.checkpoint.map(open).transpose()?,
    };
    let limits = Limits { threads: ask.threads, memory: ask.memory, passes: 9, ..Limits::default() };
    let plan = plan(store, host_bytes::<T>(store.manifest(), rank, limits.threads), &limits)?;
    sys.pool(ask.threads)?.install(|| {
        let op = Mttkrp::alternating(store, rank, ask.threads)?;
        let mut place = HostAls::new(store, &plan, op)?;
        run(&mut job, ask.init, &mut place, &|_| ())
    })
}

fn store_of(tensor: &Tensor, kind: Kind) -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = packed(tensor, &options(&dir.path().join("s"), kind, SMALL_CHUNKS));
    (dir, store)
}

/// Dims for orders 3 to 5 that are small enough for the definition.
const SHAPES: [&[u64]; 3] = [&[9, 8, 7], &[7, 5, 6, 4], &[5, 4, 3, 6, 4]];

/// The bits of a model.
fn bits<T: Real>(model: &Model<T>) -> Vec<u64> {
    let factors = model.factors.iter().flat_map(|f| f.data().iter().map(|x| x.widen().to_bits()));
    model.lambda.data().iter().map(|l| l.to_bits()).chain(factors).collect()
}

#[test]
fn models_are_those_of_the_definition() {
    for (dims, kind) in SHAPES.into_iter().zip(crate::common::KINDS) {
        let tensor = Tensor::random(dims, 150, 3, values::fraction);
        let (_dir, store) = store_of(&tensor, kind);
        let dense = Dense::of(&tensor);
        for (rank, ridge) in [(3, 0.0), (4, 0.5)] {
            let initial = seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, rank, 7).unwrap();
            let mut factors: Vec<_> = initial.iter().map(rows).collect();
            for iterations in 1..=5 {
                naive_iteration(&dense, &mut factors, ridge);
                let wanted = Dense::of_factors(&factors, &vec![1.0; rank]);
                let mut ask = ask(rank, Init::Given(initial.clone()), iterations);
                ask.settings.ridge = ridge;
                let outcome = decompose(&store, ask).unwrap();
                let model = Dense::of_model(&outcome.model);
                let distance = model.distance(&wanted);
                assert!(distance < 1e-20, "{dims:?}, rank {rank}, iteration {iterations}: {distance:e}");
                let residual = model.values.iter().zip(&dense.values).map(|(a, b)| (a - b) * (a - b));
                let fit = 1.0 - (residual.sum::<f64>() / dense.square()).sqrt();
                assert!((outcome.als.fit() - fit).abs() < 1e-12, "{} {fit}", outcome.als.fit());
            }
        }
    }
}

/// Mode-sorted copies serve other ranks than the one that they were built for, also if a mode's order of additions
/// depends on the rank.
#[test]
fn what_is_kept_serves_other_ranks() {
    const MOST: usize = 12;
    let tensor = Tensor::random(&[20_000, 30, 40], 30_000, 1, values::fraction);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let all: Vec<usize> = (0..3).collect();
    assert_ne!(strategies(store.manifest(), &all, MOST), strategies(store.manifest(), &all, 4));
    let limits = Limits { threads: 2, passes: 9, ..Limits::default() };
    let plan = plan(&store, host_bytes::<f64>(store.manifest(), MOST, 2), &limits).unwrap();
    for sorted in [false, true] {
        let pool = store.sys().pool(2).unwrap();
        let mut place = pool.install(|| {
            let op = Mttkrp::<f64>::alternating(&store, MOST, 2).unwrap();
            HostAls::new(&store, &plan, if sorted { op.keep_mode_sorted(&store).unwrap() } else { op })
                .unwrap()
        });
        for rank in [5, 7, MOST, 9, 4] {
            let wanted = decompose(&store, ask::<f64>(rank, seeded(2), 3)).unwrap();
            let mut job = crate::naive::job(&store, ask::<f64>(rank, seeded(2), 3).settings, 3, None);
            let (found, used) = pool.install(|| {
                let mut place = place.with_rank(&store, rank, 2).unwrap();
                (run(&mut job, seeded(2), &mut place, &|_| ()).unwrap(), place)
            });
            place = used;
            assert!(bits(&found.model) == bits(&wanted.model), "rank {rank}, sorted {sorted}");
        }
    }
}

/// With mode-sorted copies, factors of long modes are made in the passes: the same bits. One row has a third of the nonzeros, a segment of
/// rows another third.
#[test]
fn factors_made_in_the_pass_have_the_same_bits() {
    fn check<T: Real>(store: &Store, rank: usize, nonneg: bool, all_threads: &[usize]) {
        let asked = ask::<T>(rank, seeded(3), 3);
        let asked = Ask { settings: Settings { nonneg, ..asked.settings }, ..asked };
        let wanted = bits(&decompose(store, asked.clone()).unwrap().model);
        for &threads in all_threads {
            let limits = Limits { threads, passes: 9, ..Limits::default() };
            let plan = plan(store, host_bytes::<T>(store.manifest(), rank, threads), &limits).unwrap();
            store.sys().pool(threads).unwrap().install(|| {
                let op = Mttkrp::alternating(store, rank, threads).unwrap().keep_mode_sorted(store).unwrap();
                let mut place = HostAls::new(store, &plan, op).unwrap();
                let mut job = crate::naive::job(store, asked.settings, 3, None);
                let found = run(&mut job, asked.init.clone(), &mut place, &|_| ()).unwrap();
                assert!(bits(&found.model) == wanted, "rank {rank}, {threads} threads");
                place.set_factors(found.model.factors).unwrap();
                let rule = Rule::Linear { matrix: vec![0.5; rank * rank] };
                let mut is_made =
                    |mode| place.mttkrp_with_update(mode, false, &rule, &|_| ()).unwrap().is_some();
                assert_eq!([0, 1, 2].map(&mut is_made), [true, false, false]);
            });
        }
    }
    let mut tensor = Tensor::random(&[270_000, 300, 400], 60_000, 1, values::fraction);
    for (i, at) in tensor.indices.chunks_exact_mut(3).enumerate() {
        at[0] = [at[0], 5000 + at[0] % 1000, 8000][i % 3];
    }
    // A row whose nonzeros are zero.
    tensor.indices[0] = 7;
    tensor.values[0] = 0.0;
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    check::<f64>(&store, 64, false, &[1, 2, 5]);
    check::<f64>(&store, 16, true, &[3]);
    check::<f32>(&store, 31, false, &[3]);
    check::<f32>(&store, 32, false, &[3]);
}

#[test]
fn single_precision_is_near() {
    let tensor = Tensor::random(&[20, 30, 40], 3000, 4, values::integer);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let wide = decompose(&store, ask::<f64>(5, seeded(1), 5)).unwrap();
    let narrow = decompose(&store, ask::<f32>(5, seeded(1), 5)).unwrap();
    let distance = Dense::of_model(&narrow.model).distance(&Dense::of_model(&wide.model));
    assert!(distance < 1e-9, "{distance:e}");
    assert!(narrow.als.history()[4].fit_floor > 1e3 * wide.als.history()[4].fit_floor);
}

/// Columns have length one, weights descend.
#[test]
fn models_are_normalised() {
    let tensor = Tensor::random(&[20, 30, 40], 3000, 4, values::integer);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    for nonneg in [false, true] {
        let mut ask = ask::<f64>(6, seeded(1), 4);
        ask.settings.nonneg = nonneg;
        let model = decompose(&store, ask).unwrap().model;
        assert!(model.lambda.data().is_sorted_by(|a, b| a >= b));
        for factor in &model.factors {
            for r in 0..6 {
                let square: f64 = (0..factor.rows()).map(|i| factor.row(i)[r].powi(2)).sum();
                assert!((square - 1.0).abs() < 1e-12, "{square}");
            }
            assert!(!nonneg || factor.data().iter().all(|&x| x >= 0.0));
        }
        assert!(!nonneg || model.factors.iter().any(|f| f.data().contains(&0.0)));
    }
}

#[test]
fn threads_memory_and_chunks_do_not_change_a_bit() {
    let tensor = Tensor::random(&[300, 3000, 20], 20_000, 5, values::fraction);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let dir = tempfile::tempdir().unwrap();
    let whole = packed(&tensor, &options(&dir.path().join("s"), Kind::TiledZstd, 8 << 20));
    assert!(store.manifest().chunks.len() > 2 && whole.manifest().chunks.len() == 1);
    for nonneg in [false, true] {
        let of = |store: &Store, threads: usize, memory: Option<u64>| {
            let ask = ask::<f64>(50, seeded(2), 3);
            let settings = Settings { nonneg, ..ask.settings };
            bits(&decompose(store, Ask { settings, threads, memory, ..ask }).unwrap().model)
        };
        let wanted = of(&store, 1, None);
        assert_eq!(of(&store, 3, None), wanted);
        assert_eq!(of(&whole, 2, None), wanted);
        // All chunks kept in memory, some, none.
        let bytes = host_bytes::<f64>(store.manifest(), 50, 2);
        let kept = |memory: Option<u64>| {
            let limits = Limits { threads: 2, memory, passes: 9, ..Limits::default() };
            plan(&store, bytes, &limits).unwrap().kept.len()
        };
        let chunks = store.manifest().chunks.len();
        let none = plan(&store, bytes, &Limits { threads: 2, ..Limits::default() }).unwrap().least_bytes();
        let mut budgets = (1..64).map(|k| none + k * (SMALL_CHUNKS / 2));
        let some = budgets.find(|&b| (1..chunks).contains(&kept(Some(b)))).unwrap();
        assert_eq!((kept(Some(none)), kept(None)), (0, chunks));
        assert_eq!(of(&store, 2, Some(some)), wanted);
        assert_eq!(of(&store, 2, Some(none)), wanted);
    }
}

/// From every iteration of every start, in both precisions.
#[test]
fn resumed_runs_end_the_same() {
    fn check<T: Real>(nonneg: bool) {
        let tensor = Tensor::random(&[40, 50, 60], 5000, 6, values::integer);
        let (_dir, store) = store_of(&tensor, Kind::Tiled);
        let mut wanted = ask::<T>(5, Init::Seeded { seed: 3, starts: 2 }, 6);
        wanted.settings.nonneg = nonneg;
        let whole = decompose(&store, wanted.clone()).unwrap();
        // Ends at the k-th write of a checkpoint, as if the program had been killed there.
        for k in 0..12 {
            let dir = tempfile::tempdir().unwrap();
            let at = |resume| Some((dir.path().join("c"), 1, resume));
            // The first gets a free name; each later one exchanges names with the one before.
            let (call, nth) = if k == 0 { (Call::Rename, 0) } else { (Call::Exchange, k - 1) };
            let faults = Faults::new(Some(call), nth, Fault::Errno(libc::EIO));
            let sys = Sys::with_faults(Arc::new(faults));
            let broken = Store::open(&sys, store.path()).unwrap();
            let ended = decompose(&broken, Ask { checkpoint: at(false), ..wanted.clone() });
            assert!(matches!(ended, Err(Error::Io { .. })), "{k}");
            assert!(!dir.path().join("c/next").exists());
            let resumed = decompose(&store, Ask { checkpoint: at(k > 0), ..wanted.clone() }).unwrap();
            assert_eq!(bits(&resumed.model), bits(&whole.model), "checkpoint {k}");
            assert_eq!(resumed.als.history().len(), 6);
            let fits = |o: &Decomposition<T>| o.starts.iter().map(|s| s.fit.to_bits()).collect::<Vec<_>>();
            assert_eq!(fits(&resumed), fits(&whole));
            let place = k.checked_sub(1).map(|k| (u32::try_from(k / 6 + 1).unwrap(), k % 6 + 1));
            assert_eq!(resumed.resumed.map(|(s, i)| (s, i as u64)), place);
        }
    }
    check::<f64>(false);
    check::<f32>(true);
}

/// Every failing call of a run with checkpoints ends it with that error and leaves the last checkpoint usable.
#[test]
fn failures_while_a_checkpoint_is_written_leave_the_last_one() {
    let tensor = Tensor::random(&[10, 12, 14], 500, 6, values::integer);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let wanted = decompose(&store, ask::<f64>(3, seeded(3), 4)).unwrap();
    let first = tempfile::tempdir().unwrap();
    let at = |dir: &TempDir, resume| Some((dir.path().join("c"), 1, resume));
    decompose(&store, Ask { checkpoint: at(&first, false), ..ask::<f64>(3, seeded(3), 2) }).unwrap();
    let mut failed = 0;
    for call in [Call::Open, Call::Write, Call::Sync, Call::Rename, Call::Remove, Call::Allocate] {
        for nth in 0.. {
            let dir = tempfile::tempdir().unwrap();
            copy(first.path(), dir.path());
            let faults = Arc::new(Faults::new(Some(call), nth, Fault::Errno(libc::ENOSPC)));
            let sys = Sys::with_faults(Arc::clone(&faults));
            let last = ask::<f64>(3, seeded(3), 4);
            let result = Store::open(&sys, store.path())
                .and_then(|store| decompose(&store, Ask { checkpoint: at(&dir, true), ..last.clone() }));
            if sys.fault_is_due() {
                break;
            }
            failed += 1;
            let message = result.unwrap_err().to_string();
            assert!(message.contains("no space left"), "{call:?} {nth}: {message}");
            let resumed = decompose(&store, Ask { checkpoint: at(&dir, true), ..last }).unwrap();
            assert_eq!(bits(&resumed.model), bits(&wanted.model), "{call:?} {nth}");
        }
    }
    assert!(failed > 60, "{failed}");
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) {
    for (name, contents) in crate::common::tree(from) {
        match contents {
            None => std::fs::create_dir_all(to.join(name)).unwrap(),
            Some(contents) => {
                std::fs::create_dir_all(to.join(&name).parent().unwrap()).unwrap();
                std::fs::write(to.join(name), contents).unwrap();
            }
        }
    }
}

#[test]
fn checkpoints_of_something_else_are_refused() {
    let tensor = Tensor::random(&[10, 12, 14], 500, 6, values::integer);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let dir = tempfile::tempdir().unwrap();
    let at = |resume| Some((dir.path().join("c"), 1, resume));
    let says = |ask: Ask<f64>| decompose(&store, ask).unwrap_err().to_string();
    let none = says(Ask { checkpoint: at(true), ..ask(3, seeded(3), 2) });
    assert!(none.contains("holds no checkpoint to resume"), "{none}");
    decompose(&store, Ask { checkpoint: at(false), ..ask::<f64>(3, seeded(3), 2) }).unwrap();
    let there = says(Ask { checkpoint: at(false), ..ask(3, seeded(3), 2) });
    assert!(there.contains("`resume` continues it"), "{there}");
    let other = says(Ask { checkpoint: at(true), ..ask(4, seeded(3), 2) });
    assert!(other.contains("its rank is 3, that of this command is 4"), "{other}");
    let path = dir.path().join("c/current/checkpoint.json");
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    let cut = says(Ask { checkpoint: at(true), ..ask(3, seeded(3), 2) });
    assert!(cut.contains("not a checkpoint"), "{cut}");
}

/// A flipped bit on the disk is reported and not used.
#[test]
fn damaged_checkpoints_are_refused() {
    let tensor = Tensor::random(&[10, 12, 14], 500, 6, values::integer);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let dir = tempfile::tempdir().unwrap();
    let resumed = |dir: &Path| {
        decompose(&store, Ask { checkpoint: Some((dir.join("c"), 1, true)), ..ask::<f64>(3, seeded(3), 2) })
    };
    let ask = Ask { checkpoint: Some((dir.path().join("c"), 1, false)), ..ask::<f64>(3, seeded(3), 2) };
    decompose(&store, ask).unwrap();
    let numbers = |outcome: &Decomposition<f64>| {
        outcome.model.factors.iter().map(|f| f.data().to_vec()).collect::<Vec<_>>()
    };
    let wanted = numbers(&resumed(dir.path()).unwrap());
    let mut refused = 0;
    for (name, whole) in crate::common::tree(&dir.path().join("c/current")) {
        let Some(whole) = whole else { continue };
        let path = dir.path().join("c/current").join(&name);
        // The headers of matrices are NumPy's, padding included.
        let first = if name.extension().is_some_and(|end| end == "npy") { 128 } else { 0 };
        for at in (first..whole.len()).step_by(23) {
            let mut other = whole.clone();
            other[at] ^= 1;
            std::fs::write(&path, other).unwrap();
            match resumed(dir.path()) {
                Err(e) => assert!(e.to_string().contains(&*dir.path().to_string_lossy()), "{e}"),
                // The last digit of a number may be one too many.
                Ok(outcome) => {
                    assert!(first == 0 && numbers(&outcome) == wanted, "{}, byte {at}", name.display());
                    continue;
                }
            }
            refused += 1;
        }
        std::fs::write(&path, whole).unwrap();
    }
    assert!(refused > 60, "{refused}");
}

#[test]
fn iterations_end_when_the_fit_does_not_change() {
    let tensor = Tensor::random(&[20, 30, 40], 3000, 4, values::integer);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    let outcome = decompose(&store, Ask { tol: 1e-3, ..ask::<f64>(4, seeded(1), 200) }).unwrap();
    let changes: Vec<f64> = outcome.als.history().iter().map(|i| i.change).collect();
    assert_eq!(outcome.starts[0].stop, Stop::Tolerance);
    let (last, before) = changes.split_last().unwrap();
    assert!(*last < 1e-3 && before[1..].iter().all(|&c| c >= 1e-3), "{changes:?}");
    let all = decompose(&store, ask::<f64>(4, seeded(1), 200)).unwrap();
    assert_eq!((all.als.history().len(), all.starts[0].stop), (200, Stop::Iterations));
}

/// Ranks beyond every dim, equal and zero columns, a matrix: pseudo-inverses are reported, and no number is NaN.
#[test]
fn dependent_components_do_no_harm() {
    let finite = |outcome: &Decomposition<f64>| {
        let all = outcome.model.factors.iter().all(|f| f.data().iter().all(|x| x.is_finite()));
        all && outcome.model.lambda.data().iter().all(|l| l.is_finite()) && outcome.als.fit().is_finite()
    };
    let matrix = Tensor::random(&[6, 5], 20, 4, values::integer);
    let (_dir, store) = store_of(&matrix, Kind::Tiled);
    let outcome = decompose(&store, ask::<f64>(12, seeded(1), 8)).unwrap();
    assert!(finite(&outcome) && outcome.als.fit() > 1.0 - 1e-6, "{}", outcome.als.fit());
    assert!(outcome.als.history().iter().all(|i| i.pseudo_inverses > 0));
    let tensor = Tensor::random(&[4, 3, 5], 40, 4, values::fraction);
    let (_dir, store) = store_of(&tensor, Kind::Tiled);
    for nonneg in [false, true] {
        let mut wide = ask::<f64>(70, seeded(1), 8);
        wide.settings.nonneg = nonneg;
        assert!(finite(&decompose(&store, wide).unwrap()));
        let dims = [4, 3, 5];
        let same = |rows: usize| Matrix::from_rows(rows, 3, [0.5, 0.5, 0.0].repeat(rows));
        let mut equal = ask::<f64>(3, Init::Given(dims.map(same).to_vec()), 4);
        equal.settings.nonneg = nonneg;
        let outcome = decompose(&store, equal).unwrap();
        assert!(finite(&outcome), "{nonneg}");
        assert!(nonneg || outcome.als.history().iter().all(|i| i.pseudo_inverses == 3 && i.vanished == 1));
    }
}

/// One nonzero, dims of one, equal values, values whose squares nearly overflow or vanish, ranks beyond all dims, a ridge beyond all
/// numbers: every number of a result is finite, in f32 too unless the report says otherwise.
#[test]
fn every_number_of_a_result_is_finite() {
    fn check<T: Real>(store: &Store, settings: Settings) -> Result<()> {
        let outcome = decompose(store, Ask { settings, ..ask::<T>(settings.rank, seeded(1), 5) })?;
        let factors = outcome.model.factors.iter().flat_map(|f| f.data().iter().map(|x| x.widen()));
        let numbers = outcome.model.lambda.data().iter().copied().chain(factors);
        let told = outcome.als.history().iter().flat_map(|i| [i.fit, i.change, i.fit_floor, i.condition]);
        assert!(numbers.chain(told).all(f64::is_finite), "{settings:?}");
        Ok(())
    }
    let random = |scale: f64| Tensor::random(&[6, 5, 7], 60, 4, move |bits| values::fraction(bits) * scale);
    let tensors = [
        Tensor::of([1, 1, 1], &[([0, 0, 0], -3.5)]),
        Tensor::of([4, 1, 9], &[([3, 0, 8], 1e-3)]),
        Tensor::random(&[6, 5], 20, 4, values::one),
        random(1e-150),
        random(1e150),
        Tensor::random(&[6, 5, 7], 60, 4, |bits| if bits % 5 == 0 { 1e150 } else { 1e-150 }),
    ];
    for tensor in tensors {
        let (_dir, store) = store_of(&tensor, Kind::Tiled);
        for (rank, ridge) in [(1, 0.0), (3, 0.0), (3, 1e300), (70, 0.0), (70, 1e-300)] {
            for nonneg in [false, true] {
                let settings = Settings { rank, ridge, nonneg };
                check::<f64>(&store, settings).unwrap();
                if let Err(e) = check::<f32>(&store, settings) {
                    assert!(e.to_string().contains("`f64`"), "{e}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_decomposed_is_told() {
    let says = |tensor: &Tensor, init: Init<f64>, nonneg: bool| {
        let (_dir, store) = store_of(tensor, Kind::Tiled);
        let ask = ask(2, init, 2);
        let settings = Settings { nonneg, ..ask.settings };
        decompose(&store, Ask { settings, ..ask }).unwrap_err().to_string()
    };
    let zeros = Tensor::of([2, 2], &[([0, 0], 0.0), ([1, 1], -0.0)]);
    assert!(says(&zeros, seeded(0), false).contains("all values of this store are zero"));
    let tiny = Tensor::of([2, 2], &[([0, 0], 1e-200), ([1, 1], 1e-170)]);
    assert!(says(&tiny, seeded(0), false).contains("too small to be squared"));
    let huge = Tensor::of([2, 2], &[([0, 0], 1e200), ([1, 1], 1.0)]);
    assert!(says(&huge, seeded(0), false).contains("not finite, or too large"));
    let good = Tensor::of([2, 2], &[([0, 0], 2.0), ([1, 1], 1.0)]);
    let negative = vec![Matrix::from_rows(2, 2, vec![1.0, 0.5, -0.5, 1.0]); 2];
    assert!(says(&good, Init::Given(negative), true).contains("row 2 of mode 1's initial factor holds -0.5"));
    let dir = tempfile::tempdir().unwrap();
    let mut kept = options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS);
    kept.duplicates = blco::internals::pack::Duplicates::Keep;
    let store = packed(&good, &kept);
    let message = decompose(&store, ask::<f64>(2, seeded(0), 2)).unwrap_err().to_string();
    assert!(message.contains("`Duplicates::Sum`"), "{message}");
}
