//! Establishes that processes with a GPU each compute together what one CPU does, within rounding: MTTKRP and decompositions, in both
//! precisions, from several formats, with NCCL and without; and what they refuse. Threads stand for processes. On the mock driver, which has three
//! GPUs.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::on_a_device::{is_on_the_mock, on_the_mock};
use blco::internals::dense::seeded_factors;
use blco::internals::members::threads;
use blco::internals::sys::Sys;
use blco::{Cp, Device, Engine, ExecutionPlan, Links, Matrix, Modes, Real, Result, Store};
use std::path::Path;
use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

const GPUS: usize = 3;
const RANK: usize = 6;

/// Runs this test's function in a process whose driver has three GPUs; with `nccl`, it also finds the mock NCCL.
fn with_gpus(name: &str, nccl: bool, more: &[(&str, &str)], test: impl FnOnce()) {
    if is_on_the_mock() {
        return test();
    }
    let Some(mock) = std::env::var_os("BLCO_MOCK_CUDA") else {
        eprintln!("skipped: no mock driver");
        return;
    };
    let mock = mock.to_str().unwrap();
    let path = if nccl { format!("{mock}:{mock}/nccl") } else { mock.into() };
    let gpus = GPUS.to_string();
    let env = [&[("BLCO_MOCK_DEVICES", &gpus[..]), ("LD_LIBRARY_PATH", &path)], more].concat();
    let output = on_the_mock(module_path!(), name, &env);
    let (text, said) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success() && said.contains("ok. 1 passed"), "{said}\n{text}");
}

/// What process 0 makes of a store with `count` processes on one machine.
fn together<R: Send>(
    count: usize,
    store: &Path,
    options: (Device, bool),
    work: impl Fn(&Engine, &Store) -> Result<R> + Sync,
) -> Result<R> {
    let run = |links: Arc<dyn Links>| -> Result<Option<R>> {
        let number = links.number();
        let builder = Engine::builder().device(options.0).deterministic(options.1).compile_kernels(false);
        let engine = builder.threads(1).links(links).build()?;
        if number > 0 {
            return engine.serve(store).map(|()| None);
        }
        let made = work(&engine, &engine.open(store)?)?;
        engine.end_serving().map(|()| Some(made))
    };
    let ended: Vec<Result<Option<R>>> = scope(|scope| {
        let run = &run;
        let members = threads::links(count, Duration::from_mins(1));
        let started: Vec<_> = members.into_iter().map(|links| scope.spawn(move || run(links))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut made = None;
    for end in ended {
        made = made.or(end?);
    }
    Ok(made.expect("process 0 made it"))
}

fn close<T: Real>(wanted: &Matrix<T>, found: &Matrix<T>, bound: f64) {
    let pairs = || wanted.data().iter().zip(found.data()).map(|(a, b)| (a.widen(), b.widen()));
    let largest = pairs().fold(0.0, |largest: f64, (a, _)| largest.max(a.abs()));
    let apart = pairs().fold(0.0, |apart: f64, (a, b)| apart.max((a - b).abs()));
    assert!(
        wanted.data().len() == found.data().len() && apart <= bound * largest,
        "{apart:e} of {largest:e}"
    );
}

fn check<T: Real>(tensor: &Tensor, kind: Kind, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shape = packed(tensor, &options(&path, kind, SMALL_CHUNKS)).manifest().shape.clone();
    let factors: Vec<Matrix<T>> = seeded_factors(&Sys::default(), &shape, RANK, 1).unwrap();
    let one = Engine::builder().device(Device::Cpu).threads(2).build().unwrap();
    let whole = one.open(&path).unwrap();
    let bound = if size_of::<T>() == 8 { 1e-12 } else { 1e-4 };
    let is_on_gpu = |plan: &ExecutionPlan| assert!(plan.device().is_some(), "{:?}", plan.notes());
    for modes in [Modes::All, Modes::Only(&[2, 0])] {
        let wanted = one.mttkrp(&whole, &factors, modes).unwrap();
        let found = together(count, &path, (Device::Cuda, false), |engine, store| {
            let plan = engine.plan_mttkrp::<T>(store, RANK, modes, 3)?;
            let mut session = engine.prepare_mttkrp::<T>(store, RANK, modes, plan)?;
            is_on_gpu(session.plan());
            session.mttkrp(&factors)?;
            session.mttkrp(&factors)
        });
        for ((mode, wanted), (of, found)) in wanted.iter().zip(&found.unwrap()) {
            assert_eq!(mode, of);
            close(wanted, found, bound);
        }
    }
    for nonneg in [false, true] {
        let cp = Cp::rank(4).max_iters(5).tol(0.0).nonneg(nonneg);
        let wanted = one.cp_als::<T>(&whole, &cp).unwrap();
        let found = together(count, &path, (Device::Cuda, false), |engine, store| {
            is_on_gpu(&engine.plan_cp_als::<T>(store, &cp)?);
            engine.cp_als::<T>(store, &cp)
        });
        let apart = (wanted.fit() - found.unwrap().fit()).abs();
        assert!(apart <= bound, "fits differ by {apart:e}");
    }
}

fn check_all() {
    // Modes with several copies of their sums, and a long one.
    let tensor = Tensor::random(&[60, 900, 17], 30_000, 3, values::fraction);
    for (count, kind) in [(2, Kind::Tiled), (3, Kind::Raw), (3, Kind::CsfAll)] {
        check::<f64>(&tensor, kind, count);
        check::<f32>(&tensor, kind, count);
    }
    check::<f64>(&Tensor::random(&[40, 30, 20, 300], 30_000, 4, values::fraction), Kind::Tiled, 3);
}

#[test]
fn they_compute_what_one_does() {
    with_gpus("they_compute_what_one_does", false, &[], check_all);
}

/// A mode of two rows leaves two of three processes without any.
#[test]
fn they_compute_what_one_does_by_nccl() {
    with_gpus("they_compute_what_one_does_by_nccl", true, &[], || {
        check_all();
        check::<f32>(&Tensor::random(&[2, 700, 90], 30_000, 5, values::fraction), Kind::Tiled, 3);
    });
}

/// The notes and the fit of a decomposition by three processes.
fn decomposed(path: &Path) -> Result<(String, f64)> {
    let cp = Cp::rank(4).max_iters(3).tol(0.0);
    together(3, path, (Device::Cuda, false), |engine, store| {
        let mut session = engine.prepare_cp_als::<f64>(store, &cp, engine.plan_cp_als::<f64>(store, &cp)?)?;
        let fit = session.cp_als(&cp)?.fit();
        Ok((session.plan().notes().join("; "), fit))
    })
}

fn small(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("s");
    let tensor = Tensor::random(&[60, 900, 17], 30_000, 3, values::fraction);
    packed(&tensor, &options(&path, Kind::Tiled, SMALL_CHUNKS));
    path
}

#[test]
fn nccl_serves_where_it_is() {
    with_gpus("nccl_serves_where_it_is", true, &[], || {
        let dir = tempfile::tempdir().unwrap();
        let (notes, _) = decomposed(&small(dir.path())).unwrap();
        assert!(notes.contains("NCCL 2.27.3 exchanges") && !notes.contains("MPI"), "{notes}");
    });
}

/// Call `call` of NCCL fails while it starts.
fn without_a_start(name: &str, call: &str, why: &str) {
    with_gpus(name, true, &[("BLCO_MOCK_NCCL_FAIL", call)], || {
        let dir = tempfile::tempdir().unwrap();
        let (notes, _) = decomposed(&small(dir.path())).unwrap();
        assert!(notes.contains(why) && notes.contains("pass through the host and MPI"), "{notes}");
    });
}

#[test]
fn without_an_id_sums_go_through_the_host() {
    without_a_start("without_an_id_sums_go_through_the_host", "1", "NCCL 2.27.3 does not start");
}

#[test]
fn without_a_connection_sums_go_through_the_host() {
    let name = "without_a_connection_sums_go_through_the_host";
    without_a_start(name, "3", "NCCL 2.27.3 does not connect processes: internal error");
}

/// A collective that fails, in one process.
#[test]
fn failures_of_nccl_end_all() {
    with_gpus("failures_of_nccl_end_all", true, &[("BLCO_MOCK_NCCL_FAIL", "12")], || {
        let dir = tempfile::tempdir().unwrap();
        let error = decomposed(&small(dir.path())).unwrap_err().to_string();
        assert!(error.contains("internal error"), "{error}");
    });
}

#[test]
fn each_has_a_gpu_of_its_own() {
    with_gpus("each_has_a_gpu_of_its_own", false, &[], || {
        let dir = tempfile::tempdir().unwrap();
        let path = small(dir.path());
        let plan = |count, options| {
            together(count, &path, options, |engine, store| engine.plan_cp_als::<f64>(store, &Cp::rank(4)))
        };
        let said = |result: Result<ExecutionPlan>| result.map(drop).unwrap_err().to_string();
        let too_few = said(plan(GPUS + 1, (Device::Cuda, false)));
        assert!(too_few.starts_with("this machine has 3 GPUs for 4 processes"), "{too_few}");
        let exact = said(plan(2, (Device::Cuda, true)));
        assert!(exact.contains("no `deterministic` results"), "{exact}");
        // Without being asked for one, they compute on CPUs.
        for (count, deterministic) in [(GPUS + 1, false), (2, true)] {
            let plan = plan(count, (Device::Auto, deterministic)).unwrap();
            assert!(plan.device().is_none());
        }
        let plan = plan(2, (Device::Auto, false)).unwrap();
        let notes = plan.notes().join("; ");
        assert!(plan.device().is_some() && notes.contains("each on a GPU of its own"), "{notes}");
    });
}
