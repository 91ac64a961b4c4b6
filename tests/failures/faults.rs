//! Establishes what failing system calls do, for every n-th call: a run ends with that error and
//! with all its threads joined; packing ends with that error and leaves nothing behind, or (once the store
//! has its name) a whole store, and packing again succeeds. Interrupted and short reads and writes change
//! nothing.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/ttv.rs"]
mod runner;

use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::dense::{Matrix, load_factors, mode_file, seeded_factors};
use blco::internals::error::{Error, Result};
use blco::internals::pack::PackOptions;
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use blco::internals::sys::fault::{Call, Fault, Faults};
use common::{KINDS, Kind, SMALL_CHUNKS, Tensor, bits, identity, options, pack, packed, run, tree, values};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads are counted, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Calls `attempt` with a handle whose n-th call of kind `call` fails by `fault`, for n from 0 until there is no
/// such call. The last attempt, which does not fail, is included.
fn for_every_call(call: Option<Call>, fault: Fault, mut attempt: impl FnMut(u64, &Sys, &Faults)) -> u64 {
    for nth in 0.. {
        let faults = Arc::new(Faults::new(call, nth, fault));
        attempt(nth, &Sys::with_faults(Arc::clone(&faults)), &faults);
        no_thread_is_left();
        if !faults.struck() {
            return nth;
        }
    }
    unreachable!("calls end")
}

/// The system's error number at the end of the chain.
fn errno(error: &Error) -> Option<i32> {
    let mut link: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = link {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        link = error.source();
    }
    None
}

/// Every thread that `Sys` starts is named `read-…` or `check-…`. A joined one may stay in the list for a moment.
fn no_thread_is_left() {
    let start = Instant::now();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|t| std::fs::read_to_string(t.unwrap().path().join("comm")).ok());
        let left: Vec<String> =
            names.filter(|name| name.starts_with("read-") || name.starts_with("check-")).collect();
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "threads are left: {left:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

const MODES: [usize; 3] = [0, 1, 2];

fn tensor() -> Tensor {
    Tensor::random(&[60, 50, 40], 30_000, 1, values::fraction)
}

/// Opens and runs through `sys`, factors included.
fn open_and_run(sys: &Sys, path: &Path) -> Result<Vec<(usize, Vec<u64>)>> {
    run_opened(&Store::open(sys, path)?)
}

/// The same without the page cache.
fn open_and_run_directly(sys: &Sys, path: &Path) -> Result<Vec<(usize, Vec<u64>)>> {
    run_opened(&Store::open(sys, path)?.with_direct_reads(true))
}

/// One of the two.
type Run = fn(&Sys, &Path) -> Result<Vec<(usize, Vec<u64>)>>;

fn run_opened(store: &Store) -> Result<Vec<(usize, Vec<u64>)>> {
    let sys = store.sys();
    let factors: Vec<Matrix<f64>> = seeded_factors(sys, &store.manifest().shape, 4, 1)?;
    run(store, &factors, &MODES).map(|results| bits(&results))
}

#[test]
fn every_failing_call_ends_a_run_with_its_error() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let path = dir.path().join(format!("{kind:?}"));
        let chunks = packed(&tensor(), &options(&path, kind, SMALL_CHUNKS)).manifest().chunks.len() as u64;
        assert!(chunks >= 4, "{chunks} chunks");
        let wanted = open_and_run(&Sys::default(), &path).unwrap();
        for (direct, open_and_run) in [(false, open_and_run as Run), (true, open_and_run_directly)] {
            for call in [Some(Call::Read), Some(Call::Open), Some(Call::Spawn), Some(Call::Allocate), None] {
                let what = format!("{kind:?}, direct {direct}, {call:?}");
                let calls = for_every_call(call, Fault::Errno(libc::EIO), |nth, sys, faults| {
                    match open_and_run(sys, &path) {
                        Err(error) => {
                            assert!(faults.struck(), "{what}: {error}");
                            assert_eq!(errno(&error), Some(libc::EIO), "{what} {nth}: {error}");
                        }
                        Ok(results) => {
                            assert!(!faults.struck(), "{what} {nth} failed and nobody noticed");
                            assert!(results == wanted);
                        }
                    }
                });
                match call {
                    // If a file system cannot read directly, every chunk is opened twice.
                    Some(Call::Open) if direct && calls == 2 * chunks + 2 => {}
                    Some(Call::Open) => {
                        assert_eq!(calls, chunks + 2, "the directory, the manifest and every chunk");
                    }
                    Some(Call::Read) => {
                        assert_eq!(calls, chunks + 3, "the manifest, twice and to its end, and every chunk");
                    }
                    Some(Call::Spawn) => assert_eq!(calls, if direct { 4 } else { 2 }, "two workers"),
                    _ => assert!(calls > 0),
                }
            }
        }
    }
}

#[test]
fn interrupted_and_short_transfers_change_no_result() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let shape = packed(&tensor(), &options(&store, Kind::Tiled, SMALL_CHUNKS)).manifest().shape.clone();
    let wanted = open_and_run(&Sys::default(), &store).unwrap();
    let factors: Vec<Matrix<f64>> = seeded_factors(&Sys::default(), &shape, 7, 3).unwrap();
    for fault in [Fault::Errno(libc::EINTR), Fault::Short] {
        for run in [open_and_run as Run, open_and_run_directly] {
            let calls = for_every_call(Some(Call::Read), fault, |nth, sys, _| {
                assert!(run(sys, &store).unwrap() == wanted, "{fault:?}, read {nth}");
            });
            assert!(calls > 4);
        }
        for_every_call(Some(Call::Write), fault, |nth, sys, _| {
            let dir = tempfile::tempdir().unwrap();
            for (mode, factor) in factors.iter().enumerate() {
                factor.write(&sys.create(&dir.path().join(mode_file(mode))).unwrap()).unwrap();
            }
            let back = load_factors::<f64>(&Sys::default(), dir.path(), &shape).unwrap();
            assert!(back == factors, "{fault:?}, write {nth}");
            for_every_call(Some(Call::Read), fault, |nth, sys, _| {
                let back = load_factors::<f64>(sys, dir.path(), &shape).unwrap();
                assert!(back == factors, "{fault:?}, read {nth}");
            });
        });
    }
}

/// TTV along `mode` through `sys`, in the way that suits the store; temporary files go to `runs`.
fn open_and_ttv(sys: &Sys, path: &Path, mode: usize, runs: &Path) -> Result<Vec<u64>> {
    let store = Store::open(sys, path)?;
    let vector: Vec<f64> = (0..store.manifest().shape.dims()[mode]).map(|i| f64::from(i) - 3.5).collect();
    let (order, mut found) = (store.manifest().shape.order(), Vec::new());
    runner::ttv(&store, mode, &vector, (0, runs), 2, &mut |batches| {
        for (at, value) in runner::elements(batches, order) {
            found.extend(at.into_iter().map(u64::from).chain([value.to_bits()]));
        }
        Ok(())
    })?;
    Ok(found)
}

/// The same for TTV, streamed and with partial results in files, which are removed.
#[test]
fn every_failing_call_ends_ttv_with_its_error() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (path, runs) = (dir.path().join("store"), dir.path().join("runs"));
    packed(&tensor(), &options(&path, Kind::HocfsCsr, SMALL_CHUNKS));
    std::fs::create_dir(&runs).unwrap();
    for mode in [2, 0] {
        let wanted = open_and_ttv(&Sys::default(), &path, mode, &runs).unwrap();
        for call in [Call::Read, Call::Open, Call::Write, Call::Spawn, Call::Allocate] {
            for_every_call(Some(call), Fault::Errno(libc::EIO), |nth, sys, faults| {
                match open_and_ttv(sys, &path, mode, &runs) {
                    Err(error) => {
                        assert!(faults.struck(), "mode {mode}: {error}");
                        assert_eq!(errno(&error), Some(libc::EIO), "mode {mode}, {call:?} {nth}: {error}");
                    }
                    Ok(found) => {
                        assert!(!faults.struck(), "mode {mode}: {call:?} {nth} failed and nobody noticed");
                        assert!(found == wanted);
                    }
                }
                assert_eq!(
                    runs.read_dir().unwrap().count(),
                    0,
                    "mode {mode}: {call:?} {nth}: temporary files are left"
                );
            });
        }
    }
}

/// Packs text to a store, through `sys` alone.
fn pack_file(sys: &Sys, input: &Path, options: &PackOptions) -> Result<()> {
    let mut reader = TnsReader::open(sys, input, ReadOptions::default())?;
    pack(sys, &mut reader, options).map(drop)
}

/// Packs with every call failing in turn; with `replace`, over a store of another tensor.
fn pack_with_every_call_failing(code: i32, replace: bool, kind: Kind) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let input = dir.path().join("tensor.tns");
    std::fs::write(&input, tensor().text()).unwrap();
    let mut pack_options = options(&out.join("store"), kind, SMALL_CHUNKS);
    let store = pack_options.target.clone();
    pack_file(&Sys::default(), &input, &pack_options).unwrap();
    let wanted = identity(&store);
    assert!(wanted.len() > 3, "several chunks");
    std::fs::remove_dir_all(&store).unwrap();

    pack_options.replace = replace;
    let mut complete_after_error = 0;
    let calls = for_every_call(None, Fault::Errno(code), |nth, sys, faults| {
        if replace {
            packed(&Tensor::of([2, 2], &[([1, 1], 4.0)]), &options(&store, Kind::Tiled, SMALL_CHUNKS));
        }
        let before = tree(&out);
        let result = pack_file(sys, &input, &pack_options);
        let after = tree(&out);
        match result {
            Ok(()) => assert!(!faults.struck(), "call {nth} failed and nobody noticed"),
            Err(error) => {
                assert!(faults.struck(), "{error}");
                assert_eq!(errno(&error), Some(code), "call {nth}: {error}");
                if after != before {
                    complete_after_error += 1;
                }
            }
        }
        if after != before {
            assert!(identity(&store) == wanted, "call {nth}: a store that is there is whole");
            assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1, "call {nth}: nothing is beside it");
            open_and_run(&Sys::default(), &store).unwrap();
            std::fs::remove_dir_all(&store).unwrap();
        }
        pack_file(&Sys::default(), &input, &PackOptions { replace: true, ..pack_options.clone() }).unwrap();
        assert!(identity(&store) == wanted, "call {nth}: packing again");
        std::fs::remove_dir_all(&store).unwrap();
    });
    assert!(calls > 20, "{calls} calls");
    // In the directory of the new name and, before the old store is removed, in the directory of its last name.
    let after = if replace { 2 } else { 1 };
    assert_eq!(complete_after_error, after, "only making names durable comes after the rename");
}

#[test]
fn every_failing_call_ends_packing_and_leaves_nothing() {
    pack_with_every_call_failing(libc::EIO, false, Kind::Tiled);
    pack_with_every_call_failing(libc::ENOSPC, false, Kind::TiledZstd);
    pack_with_every_call_failing(libc::EIO, false, Kind::HocfsEll);
}

#[test]
fn every_failing_call_leaves_the_store_that_was_to_be_replaced() {
    pack_with_every_call_failing(libc::EIO, true, Kind::Raw);
    pack_with_every_call_failing(libc::ENOSPC, true, Kind::Tiled);
}

#[test]
fn interrupted_and_short_transfers_do_not_change_a_store() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("tensor.tns");
    std::fs::write(&input, tensor().text()).unwrap();
    let options = options(&dir.path().join("store"), Kind::Tiled, SMALL_CHUNKS);
    let mut wanted = None;
    for call in [Call::Read, Call::Write] {
        for fault in [Fault::Errno(libc::EINTR), Fault::Short] {
            let calls = for_every_call(Some(call), fault, |nth, sys, _| {
                pack_file(sys, &input, &options).unwrap();
                let files = identity(&options.target);
                assert!(*wanted.get_or_insert_with(|| files.clone()) == files, "{call:?} {nth} {fault:?}");
                std::fs::remove_dir_all(&options.target).unwrap();
            });
            assert!(calls >= 3, "{call:?}: {calls} calls");
        }
    }
}
