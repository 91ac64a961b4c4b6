//! Model checking: shuttle runs the code of the executor and its workers, of MTTKRP's ordered commits and of the registry of
//! temporary files under many schedules, at random and by priorities with few changes (PCT). A schedule that fails
//! is printed, and `shuttle::replay` runs it again.
//!
//!     cargo test --no-default-features --features model --test model                     # some hundred schedules each
//!     BLCO_SCHEDULES=100000 cargo test --no-default-features --features model --test model
//!
//! Threads, locks, atomics and channels are shuttle's (`blco::internals::sys::sync`); a channel, the removal of a directory and rayon's threads
//! have replacements there. Each test names the changes of the code that it has caught.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

mod common;

use blco::internals::dense::Matrix;
use blco::internals::error::{Error, Result};
use blco::internals::store::Store;
use blco::internals::stream::{Backend, Executor, Free, Inspector, Limits, LoadedChunk, Plan, plan};
use blco::internals::sys::sync::{AtomicBool, AtomicU64, Ordering};
use blco::internals::sys::{PageBuf, Sys, Temporary};
use common::{Kind, SMALL_CHUNKS, Tensor, bits, options, packed, plan_run, run_planned, values};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// Runs `body` under this number of schedules of each kind.
fn check(body: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("BLCO_SCHEDULES").map_or(300, |text| text.parse().unwrap());
    let body = Arc::new(body);
    let again = Arc::clone(&body);
    run_by(RandomScheduler::new_from_seed(1, schedules), move || again());
    run_by(PctScheduler::new_from_seed(2, 3, schedules), move || body());
}

/// Runs `body` once, for code that needs the locks but no schedules.
fn once(body: impl Fn() + Send + Sync + 'static) {
    run_by(RandomScheduler::new_from_seed(0, 1), body);
}

fn run_by(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(scheduler, config).run(body);
}

/// From now on, rayon does this thread's work (packing, decoding) in this thread, because its threads are not shuttle's.
fn without_other_threads() {
    drop(rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap());
}

const DIMS: [usize; 3] = [40_000, 70_000, 9];

/// A store of some chunks and groups in its own directory. Two modes are added up in slots, the last in copies. Many groups meet
/// each row of the first and the last, so that bits depend on the order of additions.
fn small_store(kind: Kind) -> tempfile::TempDir {
    without_other_threads();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    once(move || {
        let mut tensor = Tensor::random(&[400, 70_000, 9], 30_000, 1, values::fraction);
        tensor.dims = DIMS.map(|dim| dim as u64).to_vec();
        tensor.indices.iter_mut().step_by(3).for_each(|row| *row *= 97);
        let store = packed(&tensor, &options(&path, kind, SMALL_CHUNKS));
        assert!(store.manifest().chunks.len() >= 3, "{} chunks", store.manifest().chunks.len());
    });
    dir
}

fn open(dir: &Path) -> Store {
    Store::open(&Sys::default(), &dir.join("s")).unwrap()
}

// -- MTTKRP on the host ----------------------------------------------------------------------------------------------------

/// Groups are added to results in order, on any thread: the same bits under every schedule. Caught: a group that is added
/// without waiting for its turn (other bits); a turn that is passed on without waking waiting threads (deadlock). Alone, the
/// last mode has no turns. Caught: a copy that two threads add groups to at once (other bits).
#[test]
fn groups_are_added_in_order() {
    let dir = small_store(Kind::Tiled);
    let wanted = Arc::new(std::sync::Mutex::new(None));
    let compute = move |threads| {
        let store = open(dir.path());
        let column = |rows: usize| Matrix::from_rows(rows, 1, (1..=rows).map(|i| 1.0 / i as f64).collect());
        [&[0, 1, 2][..], &[2]].map(|modes| {
            let plan = plan_run::<f64>(&store, modes, 1, threads, Some(2), None);
            bits(&run_planned(&store, &DIMS.map(column), modes, &plan).unwrap())
        })
    };
    let compute = Arc::new(compute);
    let (alone, kept) = (Arc::clone(&compute), Arc::clone(&wanted));
    once(move || *kept.lock().unwrap() = Some(alone(1)));
    check(move || assert!(Some(compute(3)) == *wanted.lock().unwrap(), "other bits"));
}

// -- The executor and its workers ------------------------------------------------------------------------------------------

/// A backend that holds chunks for a while, as a GPU does, and then checks that no one has written to their buffers.
struct Holding {
    sys: Sys,
    held: VecDeque<(LoadedChunk<PageBuf>, Vec<u8>)>,
    /// The numbers of the chunks that arrived.
    came: Vec<u32>,
    inspected: Arc<AtomicU64>,
    inspect: Inspector,
}

impl Holding {
    fn new(sys: &Sys) -> Self {
        let inspected = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&inspected);
        let inspect: Inspector = Arc::new(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        Self { sys: sys.clone(), held: VecDeque::new(), came: Vec::new(), inspected, inspect }
    }

    /// All threads of a pass have ended: each had a share of the inspector.
    fn check_alone(&self) {
        assert_eq!(Arc::strong_count(&self.inspect), 1, "a worker has outlived its pass");
    }
}

impl Backend for Holding {
    type Buffer = PageBuf;

    fn buffer(&mut self, bytes: usize) -> Result<PageBuf> {
        self.sys.page_buf(bytes)
    }

    fn inspector(&self) -> Option<Inspector> {
        Some(Arc::clone(&self.inspect))
    }

    fn submit(&mut self, chunk: LoadedChunk<PageBuf>) -> Result<()> {
        self.came.push(chunk.header.number);
        let image = chunk.buffer[..chunk.header.image_bytes as usize].to_vec();
        self.held.push_back((chunk, image));
        Ok(())
    }

    fn take_free(&mut self, wait: bool) -> Result<Option<Free<PageBuf>>> {
        if self.held.is_empty() || !wait && thread_rng().r#gen() {
            return Ok(None);
        }
        let next = thread_rng().gen_range(0..self.held.len());
        let (chunk, image) = self.held.remove(next).unwrap();
        assert!(chunk.buffer[..image.len()] == image[..], "a buffer was filled while the backend held it");
        Ok(Some(Free { buffer: chunk.buffer, owner: chunk.owner }))
    }
}

/// The options of passes.
#[derive(Clone, Copy, Debug)]
struct Way {
    workers: usize,
    buffers: usize,
    direct: bool,
    /// One of this number of chunks is kept in memory between passes.
    kept: Option<usize>,
}

const WAYS: [Way; 4] = [
    Way { workers: 1, buffers: 1, direct: false, kept: None },
    Way { workers: 2, buffers: 2, direct: false, kept: Some(2) },
    Way { workers: 2, buffers: 2, direct: true, kept: None },
    Way { workers: 3, buffers: 1, direct: true, kept: Some(1) },
];

impl Way {
    fn open(self, dir: &Path, sys: &Sys) -> (Store, Plan) {
        let store = Store::open(sys, &dir.join("s")).unwrap().with_direct_reads(self.direct);
        let limits = Limits { workers: Some(self.workers), ..Limits::default() };
        let mut plan = plan(&store, 0, &limits).unwrap();
        plan.buffers_per_worker = self.buffers;
        plan.kept = self.kept.map_or_else(Vec::new, |n| (0..plan.chunks).step_by(n).collect());
        (store, plan)
    }
}

/// Under each way's schedules.
fn in_every_way(kind: Kind, spoil: impl Fn(&Path), body: impl Fn(&Path, Way) + Send + Sync + 'static) {
    let dir = Arc::new(small_store(kind));
    spoil(&dir.path().join("s"));
    let body = Arc::new(body);
    for way in WAYS {
        let (dir, body) = (Arc::clone(&dir), Arc::clone(&body));
        check(move || body(dir.path(), way));
    }
}

/// Every chunk arrives once, in order, in a buffer that is used nowhere else, in each of two passes, and no thread outlives its pass.
/// Caught: a caller that waits for a worker without a buffer before it has waited for the backend; a buffer that is not given back;
/// a worker that waits for requests after its last chunk (deadlocks); workers that are not asked in turn (another order).
#[test]
fn passes_bring_every_chunk_in_order() {
    in_every_way(
        Kind::TiledZstd,
        |_| (),
        |dir, way| {
            let sys = Sys::default();
            let (store, plan) = way.open(dir, &sys);
            let mut backend = Holding::new(&sys);
            let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
            for _ in 0..2 {
                backend.came.clear();
                executor.pass(&mut backend, &|_| ()).unwrap();
                backend.check_alone();
                let all: Vec<u32> = (0..).take(plan.chunks).collect();
                assert_eq!(backend.came, all, "{way:?}");
                assert!(backend.held.is_empty(), "a chunk was not taken back");
            }
            let loaded = 2 * plan.chunks - plan.kept.len();
            assert_eq!(backend.inspected.load(Ordering::Relaxed), loaded as u64, "{way:?}");
        },
    );
}

/// Of two damaged chunks the first in order is reported, whichever worker is faster, and all threads have ended. Caught: a caller that
/// takes chunks from any worker that has one.
#[test]
fn the_first_error_in_order_wins() {
    let spoil = |store: &Path| {
        for number in [1, 2] {
            let path = store.join(format!("chunk-{number:06}.bin"));
            let mut file = std::fs::read(&path).unwrap();
            file[5000] ^= 1;
            std::fs::write(&path, file).unwrap();
        }
    };
    in_every_way(Kind::Tiled, spoil, |dir, way| {
        let sys = Sys::default();
        let (store, plan) = way.open(dir, &sys);
        let mut backend = Holding::new(&sys);
        let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
        let error = executor.pass(&mut backend, &|_| ()).unwrap_err();
        backend.check_alone();
        assert!(error.to_string().contains("chunk-000001.bin"), "{way:?}: {error}");
        assert_eq!(backend.came, [0], "{way:?}");
        assert!(
            matches!(executor.pass(&mut backend, &|_| ()), Err(Error::Request(_))),
            "it has lost buffers"
        );
    });
}

/// A pass that is cancelled at any moment ends, with all its threads. Caught: channels that stay open while the pass waits for its
/// threads (deadlock).
#[test]
fn a_pass_that_is_cancelled_ends() {
    in_every_way(
        Kind::Tiled,
        |_| (),
        |dir, way| {
            let sys = Sys::default();
            let (store, plan) = way.open(dir, &sys);
            let mut backend = Holding::new(&sys);
            let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
            let flag: Arc<AtomicBool> = sys.cancel_flag();
            let canceller = shuttle::thread::spawn(move || flag.store(true, Ordering::Relaxed));
            let ended = executor.pass(&mut backend, &|_| ());
            backend.check_alone();
            assert!(matches!(ended, Ok(_) | Err(Error::Cancelled)), "{way:?}: {ended:?}");
            canceller.join().unwrap();
        },
    );
}

// -- Temporary files and publication ---------------------------------------------------------------------------------------

/// Writes a temporary file and gives it its name.
fn write_and_publish(sys: &Sys, dir: &Path) -> Result<()> {
    let path = dir.join("partial");
    let remove = |sys: &Sys, path: &Path| drop(sys.remove_tree(path));
    let partial = Temporary::made(sys, &path, remove, || sys.create_dir(&path))?;
    for name in ["a", "b"] {
        sys.create(&partial.path().join(name))?.write_all_at(b"whole", 0)?;
    }
    sys.publish(|| sys.rename(partial.path(), &dir.join("result")))?;
    partial.renamed();
    Ok(())
}

/// If a program ends during its work, the published result is whole or absent, and nothing temporary is left: the
/// work can create nothing more. Caught: a publication that does not wait for the removal (half a result).
#[test]
fn ending_at_once_leaves_a_whole_result_or_nothing() {
    check(|| {
        let dir = tempfile::tempdir().unwrap();
        let (sys, at) = (Sys::default(), dir.path().to_path_buf());
        let worker = {
            let (sys, at) = (sys.clone(), at.clone());
            shuttle::thread::spawn(move || write_and_publish(&sys, &at))
        };
        sys.abandon();
        let names = |dir: &Path| -> Vec<_> {
            let mut names: Vec<_> = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        // The program would have ended now. The work need not notice.
        let has_result = match &names(&at)[..] {
            [] => false,
            [result] if result == "result" => names(&at.join("result")) == ["a", "b"],
            left => panic!("left {left:?}"),
        };
        let published = worker.join().unwrap();
        assert_eq!(has_result, published.is_ok(), "{published:?}");
    });
}
