//! Protects the interface: a client of the library that uses only public items, checked against its own loop.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use blco::{
    Batch, Cancel, Codec, Cp, Device, DeviceOrder, Engine, Error, Extent, Format, FormatOption, HostOp,
    IndexEncoding, Iteration, LeafRule, LevelOrder, Matrix, MatrixRef, Modes, PackOptions, ReadOptions,
    Source, Stop, Store, Tiles,
};
use std::fmt::Write as _;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A tensor in the client's memory: some nonzeros of a rank-one tensor.
struct Mine {
    indices: Vec<u32>,
    values: Vec<f64>,
}

const DIMS: [u32; 4] = [60, 50, 40, 30];
const RANK: usize = 5;
const COLUMNS: u32 = 5;

impl Mine {
    fn new(nnz: u32) -> Self {
        let index = |i: u32, dim: u32| (i.wrapping_mul(2_654_435_761) >> 7).wrapping_mul(dim + 7) % dim;
        let row = |i: u32| DIMS.map(|dim| index(i.wrapping_mul(dim), dim));
        let mut rows: Vec<_> = (0..nnz).map(row).collect();
        rows.sort_unstable();
        rows.dedup();
        let value = |row: &[u32; 4]| row.iter().map(|&i| 1.0 + f64::from(i % 3)).product();
        Self { values: rows.iter().map(value).collect(), indices: rows.concat() }
    }

    fn rows(&self) -> impl Iterator<Item = (&[u32], f64)> {
        self.indices.chunks_exact(DIMS.len()).zip(self.values.iter().copied())
    }
}

impl Source for Mine {
    fn name(&self) -> String {
        "a client's tensor".into()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> blco::Result<()>) -> blco::Result<Extent> {
        sink(Batch { indices: self.indices.clone(), values: self.values.clone() })?;
        Ok(Extent { dims: DIMS.map(u64::from).to_vec(), nnz: self.values.len() as u64 })
    }
}

fn packed(engine: &Engine, dir: &Path, tensor: &mut Mine) -> Store {
    let report = engine.pack(tensor, &PackOptions::new(dir.join("mine.blco"))).unwrap();
    engine.open(report.store).unwrap()
}

/// Numbers that are exact in f32, in the client's memory.
fn numbers(salt: u32) -> Vec<Vec<f64>> {
    let number = |i: u32| f64::from((i.wrapping_mul(40_503) ^ salt) % 16) - 7.5;
    DIMS.iter().map(|&dim| (0..dim * COLUMNS).map(number).collect()).collect()
}

fn views<T>(numbers: &[Vec<T>]) -> Vec<MatrixRef<'_, T>> {
    numbers
        .iter()
        .zip(&DIMS)
        .map(|(data, dim)| MatrixRef::from_rows(*dim as usize, RANK, &data[..]))
        .collect()
}

/// MTTKRP by its definition.
fn naive(tensor: &Mine, factors: &[Vec<f64>], mode: usize) -> Vec<f64> {
    let mut sums = vec![0.0; DIMS[mode] as usize * RANK];
    for (row, value) in tensor.rows() {
        for r in 0..RANK {
            let others = (0..DIMS.len()).filter(|&m| m != mode);
            let product: f64 = others.map(|m| factors[m][row[m] as usize * RANK + r]).product();
            sums[row[mode] as usize * RANK + r] += value * product;
        }
    }
    sums
}

/// Whole numbers and halves: every order of additions gives the same sum.
fn is_close(found: &[f64], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= tolerance * largest, "{a} {b}");
    }
}

#[test]
fn sums_are_those_of_the_definition() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(2).build().unwrap();
    let mut tensor = Mine::new(20_000);
    let store = packed(&engine, dir.path(), &mut tensor);
    assert_eq!((store.dims(), store.nnz()), (&DIMS[..], tensor.values.len() as u64));
    let factors = numbers(1);
    for (mode, sums) in engine.mttkrp(&store, views(&factors), Modes::All).unwrap() {
        is_close(&sums.into_vec(), &naive(&tensor, &factors, mode), 1e-12);
    }
    // Some modes, other factors in each call, into the client's memory, in both precisions.
    let modes = Modes::Only(&[3, 1]);
    let plan = engine.plan_mttkrp::<f64>(&store, RANK, modes, 3).unwrap();
    assert!(serde_json::to_value(&plan).unwrap()["host"]["memory_bytes"].as_u64().unwrap() > 0);
    let mut session = engine.prepare_mttkrp::<f64>(&store, RANK, modes, plan).unwrap();
    let plan = engine.plan_mttkrp::<f32>(&store, RANK, modes, 3).unwrap();
    let mut single = engine.prepare_mttkrp::<f32>(&store, RANK, modes, plan).unwrap();
    let mut results = [3, 1].map(|mode: usize| vec![7.0; DIMS[mode] as usize * RANK]);
    for salt in 2..5 {
        let factors = numbers(salt);
        let [a, b] = &mut results;
        session.mttkrp_into(views(&factors), &mut [a, b]).unwrap();
        #[expect(clippy::cast_possible_truncation, reason = "they are few")]
        let narrow: Vec<Vec<f32>> =
            factors.iter().map(|factor| factor.iter().map(|&x| x as f32).collect()).collect();
        let mut rounded = [3, 1].map(|mode: usize| vec![7.0f32; DIMS[mode] as usize * RANK]);
        let [a, b] = &mut rounded;
        single.mttkrp_into(views(&narrow), &mut [a, b]).unwrap();
        for ((mode, found), rounded) in [3, 1].into_iter().zip(&results).zip(rounded) {
            let expected = naive(&tensor, &factors, mode);
            is_close(found, &expected, 1e-12);
            is_close(&rounded.iter().map(|&x| x.into()).collect::<Vec<f64>>(), &expected, 1e-5);
        }
        let owned = session.mttkrp(views(&factors)).unwrap();
        assert!(owned.iter().zip(&results).all(|((_, sums), result)| sums.data() == result));
    }
}

#[test]
fn what_packing_takes_is_known_beforehand_and_kept_to() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(2).memory(100 << 20).build().unwrap();
    let options = PackOptions::new(dir.path().join("mine.blco"));
    let plan = engine.plan_pack(&mut Mine::new(1000), &options).unwrap();
    assert_eq!((plan.memory_bytes, plan.nnz, plan.threads), (100 << 20, None, 2));
    assert!(plan.memory_least_bytes <= plan.memory_bytes && plan.check().is_ok());
    assert!(!options.target.exists());
    let little = Engine::builder().threads(2).memory(1 << 20).build().unwrap();
    for refused in [
        little.plan_pack(&mut Mine::new(1000), &options).map(drop),
        little.pack(&mut Mine::new(1000), &options).map(drop),
        little.salvage(dir.path()).map(drop),
    ] {
        let said = refused.unwrap_err().to_string();
        assert_eq!(said, "`memory` 1.0 MiB: packing takes at least 64.0 MiB; raise it");
    }
}

#[test]
fn what_is_intact_of_a_damaged_store_is_packed_again() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(2).build().unwrap();
    let options = PackOptions {
        chunk_bytes: 64 << 10,
        format: FormatOption::Known(Format::blco(IndexEncoding::Raw)),
        ..PackOptions::new(dir.path().join("old.blco"))
    };
    let all = 0..30_000u32;
    let indices = all.clone().flat_map(|i| [i % 60, i / 60 % 50, i / 3000, 0]).collect();
    let mut many = Mine { indices, values: all.map(|i| f64::from(i % 7)).collect() };
    let old = engine.pack(&mut many, &options).unwrap();
    assert!(old.chunks > 2);
    let save = |name: &str| {
        let mut salvage = engine.salvage(&old.store).unwrap();
        let options = salvage.options(PackOptions::new(dir.path().join(name)));
        let saved = engine.pack(&mut salvage, &options).unwrap();
        (saved, salvage.findings().clone())
    };
    // Without its manifest, the store is recovered unchanged.
    std::fs::remove_file(old.store.join("manifest")).unwrap();
    let (saved, findings) = save("whole.blco");
    assert_eq!((saved.digest, findings.nnz), (old.digest.clone(), old.nnz));
    std::fs::write(old.store.join("chunk-000001.bin"), "lost").unwrap();
    let (saved, findings) = save("rest.blco");
    assert_eq!((saved.nnz, findings.chunks), (findings.nnz, old.chunks as u64 - 1));
    assert!(saved.nnz < old.nnz && findings.losses[0].first_chunk == 1, "{findings:?}");
    assert!(engine.salvage(dir.path().join("none")).is_err());
}

/// The client's operation: the number of nonzeros of each row of a mode.
struct RowCounts {
    mode: usize,
    counts: Vec<u64>,
}

impl HostOp for RowCounts {
    fn batch(&mut self, tiles: &Tiles<'_>) -> blco::Result<()> {
        for t in 0..tiles.tiles() {
            for &row in tiles.tile(t).column(self.mode) {
                self.counts[row as usize] += 1;
            }
        }
        Ok(())
    }
}

#[test]
fn an_operation_of_ones_own_sees_every_nonzero() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(2).build().unwrap();
    let mut tensor = Mine::new(30_000);
    let store = packed(&engine, dir.path(), &mut tensor);
    for (mode, dim) in DIMS.into_iter().enumerate() {
        let mut expected = vec![0; dim as usize];
        tensor.rows().for_each(|(row, _)| expected[row[mode] as usize] += 1);
        let mut found = RowCounts { mode, counts: vec![0; dim as usize] };
        let pass = engine.stream(&store, &mut found, 8 * u64::from(dim)).unwrap();
        assert_eq!((found.counts, pass.nnz), (expected, store.nnz()));
    }
}

#[test]
fn text_is_packed_and_decomposed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().device(Device::Cpu).threads(1).memory(200 << 20).build().unwrap();
    let mut lines = String::new();
    for (row, value) in Mine::new(u32::MAX >> 16).rows() {
        let row: Vec<String> = row.iter().map(|i| (i + 1).to_string()).collect();
        writeln!(lines, "{} {value}", row.join(" ")).unwrap();
    }
    let (text, path) = (dir.path().join("mine.tns"), dir.path().join("mine.blco"));
    std::fs::write(&text, lines).unwrap();
    let mut source = engine.read_text(&text, ReadOptions::default()).unwrap();
    engine.pack(&mut source, &PackOptions::new(path.clone())).unwrap();
    let store = engine.open(&path).unwrap();
    let cp = Cp::rank(2).tol(0.0).max_iters(4).nonneg(true);
    let found = engine.cp_als::<f64>(&store, &cp).unwrap();
    assert_eq!(found.model.factors.len(), DIMS.len());
    assert_eq!(found.als.history().len(), 4);
    assert!((0.0..=1.0).contains(&found.fit()), "{}", found.fit());
    // The same from the client's factors, which equal the seeded ones of the best start.
    let factors: Vec<Matrix<f64>> = found.model.factors.clone();
    let on = engine.cp_als_with(&store, &cp, factors).unwrap();
    assert!(on.fit() >= found.fit() - 1e-3, "{} {}", on.fit(), found.fit());
    // A fiber times ones is its sum.
    let ones = vec![1.0; DIMS[2] as usize];
    let mut sum = 0.0;
    let mut take = |batches: Vec<Batch>| {
        sum += batches.iter().flat_map(|batch| &batch.values).sum::<f64>();
        Ok(())
    };
    let elements = engine.ttv(&store, &[(2, &ones)], &mut take).unwrap();
    let all: f64 = Mine::new(u32::MAX >> 16).values.iter().sum();
    assert!(elements > 0 && (sum - all).abs() < 1e-9 * all, "{elements} {sum} {all}");
}

/// A session computes the same as single decompositions, and reads the store once.
#[test]
fn decompositions_share_what_is_kept() {
    for order in [DeviceOrder::Auto, DeviceOrder::Store] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::builder().device(Device::Cpu).device_order(order).threads(2).build().unwrap();
        let store = packed(&engine, dir.path(), &mut Mine::new(30_000));
        let most = Cp::rank(5).starts(0, 2).max_iters(9);
        let cps = [most, Cp::rank(2), Cp::rank(5).nonneg(true), Cp::rank(3).starts(7, 2), most];
        let cps = cps.map(|cp| cp.max_iters(9));
        let wanted = cps.map(|cp| engine.cp_als::<f64>(&store, &cp).unwrap().model);
        let plan = engine.plan_cp_als::<f64>(&store, &most).unwrap();
        let mut session = engine.prepare_cp_als::<f64>(&store, &most, plan).unwrap();
        for (cp, wanted) in cps.iter().zip(&wanted) {
            assert!(session.cp_als(cp).unwrap().model == *wanted, "{order:?} {cp:?}");
            let _ = std::fs::remove_file(store.path().join("chunk-000000.bin"));
        }
        let factors = || wanted[0].factors.clone();
        let on = session.cp_als_with(&most, factors()).unwrap();
        assert!(on.fit() > 0.0 && on.starts.len() == 1);
        // A request without room is refused, and the session goes on.
        for cp in [Cp::rank(6), Cp::rank(2).starts(0, 3), Cp::rank(0)] {
            assert!(session.cp_als(&cp).is_err(), "{cp:?}");
        }
        assert!(session.cp_als_with(&Cp::rank(4), factors()).is_err());
        assert!(session.cp_als(&most).unwrap().model == wanted[0]);
        assert!(session.plan().host().memory_bytes > 0);
        // A failure ends it.
        engine.cancel_handle().cancel();
        assert!(matches!(session.cp_als(&most), Err(Error::Cancelled)));
        engine.cancel_handle().reset();
        let said = session.cp_als(&most).unwrap_err().to_string();
        assert_eq!(said, "an earlier call failed; prepare again");
    }
}

#[test]
fn what_is_asked_wrongly_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(1).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(2000));
    let factors = numbers(0);
    let told = |result: blco::Result<Vec<(usize, Matrix<f64>)>>| result.unwrap_err().to_string();
    assert!(told(engine.mttkrp(&store, &views(&factors)[..3], Modes::All)).contains("3 factors"));
    let mut swapped = views(&factors);
    swapped.swap(0, 1);
    assert!(told(engine.mttkrp(&store, swapped, Modes::All)).contains("factor of mode 1 is 50 x 5"));
    for modes in [&[4][..], &[1, 1], &[]] {
        assert!(told(engine.mttkrp(&store, views(&factors), Modes::Only(modes))).contains("modes ["));
    }
    let none: [MatrixRef<'_, f64>; 0] = [];
    assert!(told(engine.mttkrp(&store, none, Modes::All)).contains("0 factors"));
    let missing = engine.open(dir.path().join("none")).unwrap_err();
    assert!(matches!(missing, Error::Request(_)), "{missing}");
    let again = engine.pack(&mut Mine::new(10), &PackOptions::new(store.path().to_path_buf()));
    assert!(again.unwrap_err().to_string().contains("mine.blco"));
    let little = Engine::builder().threads(1).memory(1 << 20).build().unwrap();
    assert!(told(little.mttkrp(&store, views(&factors), Modes::All)).contains("at least"));
    assert!(engine.ttv(&store, &[(4, &[1.0])], &mut |_| Ok(())).is_err());
}

#[test]
fn what_is_no_tensor_is_not_packed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(1).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(2000));
    let options = PackOptions { replace: true, ..PackOptions::new(store.path().to_path_buf()) };
    let pack = |change: &dyn Fn(&mut Mine), options: &PackOptions| {
        let mut tensor = Mine::new(2000);
        change(&mut tensor);
        engine.pack(&mut tensor, options).unwrap_err().to_string()
    };
    let said = pack(&|tensor| tensor.values[7] = f64::NAN, &options);
    assert!(said.contains("a client's tensor: the value NaN"), "{said}");
    let said = pack(&|tensor| tensor.indices[5] = DIMS[1], &options);
    assert!(said.contains("indices up to"), "{said}");
    let said = pack(&|tensor| tensor.indices.truncate(7), &options);
    assert!(said.contains("nonzeros of order"), "{said}");
    for codec in [Codec::Zstd(0), Codec::Zstd(-3), Codec::Zstd(23)] {
        let said = pack(&|_| (), &PackOptions { codec, ..options.clone() });
        assert!(said.contains("give 1 to 22"), "{said}");
    }
    for chunk_bytes in [0, 1000, u64::MAX] {
        let said = pack(&|_| (), &PackOptions { chunk_bytes, ..options.clone() });
        assert!(said.contains("`chunk_bytes`") && said.contains("give 64.0 KiB to 1.0 GiB"), "{said}");
    }
    let said = pack(&|_| (), &PackOptions { temp_dir: Some(dir.path().join("none")), ..options.clone() });
    assert!(said.contains("none: is not a directory"), "{said}");
    let levels = LevelOrder::new(&[0, 1, 2]).unwrap();
    let format = FormatOption::Known(Format::hocfs(levels, LeafRule::Auto));
    let said = pack(&|_| (), &PackOptions { format, ..options });
    assert!(said.contains("3 levels for a tensor of order 4"), "{said}");
    // The old store is unchanged.
    assert_eq!(engine.open(store.path()).unwrap().id(), store.id());
}

#[test]
fn a_plan_serves_what_it_was_made_for() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(1).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(2000));
    let plan = || engine.plan_mttkrp::<f64>(&store, RANK, Modes::Only(&[0, 1]), 2).unwrap();
    assert!(engine.prepare_mttkrp::<f64>(&store, RANK, Modes::Only(&[0, 1]), plan()).is_ok());
    for modes in [Modes::All, Modes::Only(&[1, 0]), Modes::Only(&[0])] {
        assert!(engine.prepare_mttkrp::<f64>(&store, RANK, modes, plan()).is_err());
    }
    assert!(engine.prepare_mttkrp::<f64>(&store, RANK + 1, Modes::Only(&[0, 1]), plan()).is_err());
    assert!(engine.prepare_mttkrp::<f32>(&store, RANK, Modes::Only(&[0, 1]), plan()).is_err());
    let other = engine.pack(&mut Mine::new(1000), &PackOptions::new(dir.path().join("other.blco"))).unwrap();
    let other = engine.open(other.store).unwrap();
    assert!(engine.prepare_mttkrp::<f64>(&other, RANK, Modes::Only(&[0, 1]), plan()).is_err());
    assert!(engine.plan_mttkrp::<f64>(&store, 0, Modes::All, 1).is_err());
    // Plans of a decomposition, of another one, of MTTKRP.
    let cp = Cp::rank(RANK).starts(0, 2);
    let of = |cp: &Cp| engine.plan_cp_als::<f64>(&store, cp).unwrap();
    assert!(engine.prepare_cp_als::<f64>(&store, &cp, of(&cp)).is_ok());
    assert!(engine.prepare_cp_als::<f64>(&store, &cp.starts(0, 3), of(&cp)).is_err());
    assert!(engine.prepare_cp_als::<f64>(&store, &Cp::rank(RANK + 1).starts(0, 2), of(&cp)).is_err());
    let all = engine.plan_mttkrp::<f64>(&store, RANK, Modes::All, 2).unwrap();
    assert!(engine.prepare_cp_als::<f64>(&store, &cp, all).is_err());
    assert!(engine.prepare_mttkrp::<f64>(&store, RANK, Modes::All, of(&cp)).is_err());
    for cp in [Cp::rank(0), Cp::rank(usize::MAX), Cp::rank(1).ridge(-2.0), Cp::rank(1).tol(f64::NAN)] {
        assert!(engine.cp_als::<f64>(&store, &cp).is_err(), "{cp:?}");
    }
}

#[test]
fn an_engine_can_be_stopped_and_watched() {
    let dir = tempfile::tempdir().unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&done);
    let watch = move |at: blco::Progress| seen.store(at.done, Ordering::Relaxed);
    let engine = Engine::builder().threads(1).progress(watch).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(2000));
    let (factors, cancel): (_, Cancel) = (numbers(0), engine.cancel_handle());
    engine.mttkrp(&store, views(&factors), Modes::All).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), store.nnz());
    cancel.cancel();
    let ended = engine.mttkrp(&store, views(&factors), Modes::All);
    assert!(matches!(ended, Err(Error::Cancelled)));
    cancel.reset();
    engine.mttkrp(&store, views(&factors), Modes::All).unwrap();
    // A session that was stopped before it began goes on. Another engine's work on this store has its own handle.
    let plan = engine.plan_mttkrp::<f64>(&store, RANK, Modes::All, 2).unwrap();
    let mut session = engine.prepare_mttkrp::<f64>(&store, RANK, Modes::All, plan).unwrap();
    let other = Engine::builder().threads(1).build().unwrap();
    cancel.cancel();
    assert!(matches!(session.mttkrp(views(&factors)), Err(Error::Cancelled)));
    other.mttkrp(&store, views(&factors), Modes::All).unwrap();
    cancel.reset();
    session.mttkrp(views(&factors)).unwrap();
}

#[test]
fn handles_to_the_same_threads_are_stopped_and_watched_apart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(1).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(2000));
    let done = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&done);
    let apart = engine.separate(move |at| seen.store(at.done, Ordering::Relaxed));
    let factors = numbers(0);
    apart.cancel_handle().cancel();
    engine.mttkrp(&store, views(&factors), Modes::All).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 0);
    assert!(matches!(apart.mttkrp(&store, views(&factors), Modes::All), Err(Error::Cancelled)));
    apart.cancel_handle().reset();
    engine.cancel_handle().cancel();
    apart.mttkrp(&store, views(&factors), Modes::All).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), store.nnz());
}

#[test]
fn a_decomposition_is_followed_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().device(Device::Cpu).threads(1).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(20_000));
    let cp = Cp::rank(2).tol(0.0).max_iters(3).starts(5, 2);
    let seen = Mutex::new(Vec::new());
    let follow = |start: u32, iteration: &Iteration| {
        seen.lock().unwrap().push((start, iteration.iteration, iteration.fit));
        Ok(ControlFlow::Continue(()))
    };
    let found = engine.cp_als_each::<f64>(&store, &cp, None, &follow).unwrap();
    let seen = seen.into_inner().unwrap();
    let order: Vec<_> = seen.iter().map(|&(start, iteration, _)| (start, iteration)).collect();
    assert_eq!(order, [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]);
    assert_eq!(found.fit().to_bits(), seen[found.best * 3 + 2].2.to_bits());
    // An observer changes nothing.
    assert_eq!(engine.cp_als::<f64>(&store, &cp).unwrap().model, found.model);
    let until = |start: u32, iteration: &Iteration| {
        Ok(if (start, iteration.iteration) == (1, 2) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    };
    let ended = engine.cp_als_each::<f64>(&store, &Cp::starts(cp, 5, 9), None, &until).unwrap();
    let starts: Vec<_> = ended.starts.iter().map(|start| (start.iterations, start.stop)).collect();
    assert_eq!(starts, [(3, Stop::Iterations), (2, Stop::Caller)]);
    let fails = |_: u32, _: &Iteration| Err(Error::Request("the client's".into()));
    let said = engine.cp_als_each::<f64>(&store, &cp, None, &fails).unwrap_err().to_string();
    assert_eq!(said, "the client's");
}

#[test]
fn nonzeros_are_read_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(2).build().unwrap();
    let all = 0..120_000u32;
    let indices = all.clone().flat_map(|i| [i % 60, i / 60 % 50, i / 3000, i % 30]).collect();
    let mut tensor = Mine { indices, values: all.map(|i| f64::from(i % 7)).collect() };
    let options = PackOptions {
        chunk_bytes: 64 << 10,
        format: FormatOption::Known(Format::blco(IndexEncoding::Raw)),
        ..PackOptions::new(dir.path().join("mine.blco"))
    };
    let report = engine.pack(&mut tensor, &options).unwrap();
    assert!(report.chunks > 3);
    let store = engine.open(&report.store).unwrap();
    let read = |ranges: &[Range<u32>]| {
        let mut rows: Vec<(Vec<u32>, u64)> = Vec::new();
        let mut take = |batch: Batch| {
            let indices = batch.indices.chunks_exact(DIMS.len()).map(<[u32]>::to_vec);
            rows.extend(indices.zip(batch.values.iter().map(|value| value.to_bits())));
            Ok(())
        };
        let pass = engine.read(&store, ranges, &mut take).unwrap();
        rows.sort_unstable();
        (rows, pass.bytes)
    };
    let expected = |ranges: &[Range<u32>]| {
        let within = |row: &[u32]| row.iter().zip(ranges).all(|(index, range)| range.contains(index));
        let rows = tensor.rows().filter(|(row, _)| within(row));
        let mut rows: Vec<_> = rows.map(|(row, value)| (row.to_vec(), value.to_bits())).collect();
        rows.sort_unstable();
        rows
    };
    let whole = DIMS.map(|dim| 0..dim);
    for ranges in [&[][..], &whole, &[0..60, 3..4, 7..40, 0..30], &[0..60, 5..5, 0..40, 0..30]] {
        assert_eq!(read(ranges).0, expected(if ranges.is_empty() { &whole } else { ranges }));
    }
    // Chunks without such nonzeros are not read.
    let corner = [0..2, 0..2, 0..2, 0..2];
    let ((rows, bytes), (_, all)) = (read(&corner), read(&[]));
    assert!(rows == expected(&corner) && !rows.is_empty() && bytes < all / 2, "{bytes} {all}");
    for wrong in [&whole[..3], &[0..61, 0..50, 0..40, 0..30]] {
        assert!(engine.read(&store, wrong, &mut |_| Ok(())).is_err());
    }
    let mut stop = |_| Err(Error::Cancelled);
    assert!(matches!(engine.read(&store, &[], &mut stop), Err(Error::Cancelled)));
}

#[test]
fn a_store_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(1).build().unwrap();
    let mut tensor = Mine::new(20_000);
    let store = packed(&engine, dir.path(), &mut tensor);
    let summary = store.summary().unwrap();
    let squares: f64 = tensor.values.iter().map(|x| x * x).sum();
    assert!((summary.norm.unwrap() - squares.sqrt()).abs() < 1e-9 * squares.sqrt());
    assert_eq!((summary.nnz, &summary.dims[..], summary.format), (store.nnz(), &DIMS[..], "blco"));
    let found = engine.inspect(&store).unwrap();
    for (mode, dim) in DIMS.into_iter().enumerate() {
        let mut counts = vec![0; dim as usize];
        tensor.rows().for_each(|(row, _)| counts[row[mode] as usize] += 1);
        let mode = &found.modes[mode];
        assert_eq!(mode.longest_row, counts.iter().max().copied());
        assert_eq!(mode.rows, Some(counts.iter().filter(|&&count| count > 0).count() as u64));
    }
}

/// The time of a session's call besides its passes. (docs/performance.md has numbers of a release build.)
#[test]
fn a_session_adds_little_to_its_passes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder().threads(2).build().unwrap();
    let store = packed(&engine, dir.path(), &mut Mine::new(5000));
    let factors = numbers(0);
    let plan = engine.plan_mttkrp::<f64>(&store, RANK, Modes::All, 20).unwrap();
    let mut session = engine.prepare_mttkrp::<f64>(&store, RANK, Modes::All, plan).unwrap();
    let mut beside: Vec<Duration> = (0..20)
        .map(|_| {
            let start = Instant::now();
            session.mttkrp(views(&factors)).unwrap();
            start.elapsed().saturating_sub(Duration::from_secs_f64(session.passes()[0].seconds))
        })
        .collect();
    beside.sort_unstable();
    assert!(beside[0] < Duration::from_millis(2), "{beside:?}");
}
