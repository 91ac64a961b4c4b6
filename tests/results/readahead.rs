//! Establishes how reading without the page cache works, with two threads per worker: a chunk is read while the one before is
//! checked, whenever a backend returns buffers. Results, errors and their order equal those of reading through the cache, for
//! any number of workers and buffers, with and without kept chunks. A cancelled pass ends.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, bits, options, packed, values};
use blco::internals::backend::host::HostBackend;
use blco::internals::dense::{Matrix, seeded_factors};
use blco::internals::error::{Error, Result};
use blco::internals::op::mttkrp::Mttkrp;
use blco::internals::store::Store;
use blco::internals::stream::{Backend, Executor, Free, Inspector, Limits, LoadedChunk, Plan, Stage, plan};
use blco::internals::sys::fault::{Call, Fault, Faults};
use blco::internals::sys::{PageBuf, Sys};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longer than any step that makes progress.
const FOREVER: Duration = Duration::from_mins(1);
/// Without a codec, and with one.
const CODECS: [Kind; 2] = [Kind::Tiled, Kind::TiledZstd];

/// A store of several chunks in its own directory.
struct Place {
    dir: tempfile::TempDir,
    chunks: usize,
}

impl Place {
    fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::random(&[60, 50, 40], 40_000, 1, values::fraction);
        let store = packed(&tensor, &options(&dir.path().join("store"), kind, SMALL_CHUNKS));
        let chunks = store.manifest().chunks.len();
        assert!(chunks >= 5, "{kind:?}: {chunks} chunks");
        Self { dir, chunks }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open(&self, sys: &Sys, direct: bool) -> Store {
        Store::open(sys, &self.path()).unwrap().with_direct_reads(direct)
    }
}

/// One worker with `buffers` buffers.
fn lone_worker(store: &Store, buffers: usize) -> Plan {
    let limits = Limits { workers: Some(1), ..Limits::default() };
    Plan { buffers_per_worker: buffers, ..plan(store, 0, &limits).unwrap() }
}

/// A backend that does nothing; `inspect` sees chunks.
struct Idle {
    sys: Sys,
    inspect: Inspector,
    /// Whether it returns a buffer only when a worker waits for one, as a slow backend does.
    late: bool,
    held: VecDeque<Free<PageBuf>>,
    numbers: Vec<u32>,
}

impl Idle {
    fn new(inspect: impl Fn(usize) -> Result<()> + Send + Sync + 'static, late: bool) -> Self {
        let inspect: Inspector = Arc::new(move |header, _| inspect(header.number as usize));
        Self { sys: Sys::default(), inspect, late, held: VecDeque::new(), numbers: Vec::new() }
    }
}

impl Backend for Idle {
    type Buffer = PageBuf;

    fn buffer(&mut self, bytes: usize) -> Result<PageBuf> {
        self.sys.page_buf(bytes)
    }

    fn inspector(&self) -> Option<Inspector> {
        Some(Arc::clone(&self.inspect))
    }

    fn submit(&mut self, chunk: LoadedChunk<PageBuf>) -> Result<()> {
        self.numbers.push(chunk.header.number);
        self.held.push_back(Free { buffer: chunk.buffer, owner: chunk.owner });
        Ok(())
    }

    fn take_free(&mut self, wait: bool) -> Result<Option<Free<PageBuf>>> {
        Ok(if self.late && !wait { None } else { self.held.pop_front() })
    }
}

/// Each chunk's check lasts until reading the next one has begun, however late the backend returns buffers.
#[test]
fn a_chunk_is_read_while_the_one_before_is_checked() {
    for (kind, late) in CODECS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let place = Place::new(kind);
        let reads = Arc::new(Faults::new(Some(Call::Read), u64::MAX, Fault::Short));
        let store = place.open(&Sys::with_faults(Arc::clone(&reads)), true);
        let (before, chunks) = (Arc::new(AtomicU64::new(0)), place.chunks);
        let (counter, of_earlier) = (Arc::clone(&reads), Arc::clone(&before));
        let inspect = move |number: usize| {
            let (wanted, start) =
                (of_earlier.load(Ordering::Relaxed) + (number as u64 + 2).min(chunks as u64), Instant::now());
            while counter.seen() < wanted {
                assert!(
                    start.elapsed() < FOREVER,
                    "chunk {} is not read before chunk {number} is checked",
                    number + 1
                );
                std::thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        };
        let mut backend = Idle::new(inspect, late);
        let mut executor = Executor::new(&store, &lone_worker(&store, 2), &mut backend).unwrap();
        for _ in 0..2 {
            backend.numbers.clear();
            before.store(reads.seen(), Ordering::Relaxed);
            let report = executor.pass(&mut backend, &|_| ()).unwrap();
            assert!(backend.numbers.iter().map(|&n| n as usize).eq(0..chunks), "{:?}", backend.numbers);
            assert_eq!((report.chunks, report.nnz), (chunks, store.manifest().nnz));
        }
        // The timeline of the pass.
        let of = |stage| executor.spans().iter().filter(move |span| span.stage == stage);
        for (read, verify) in of(Stage::Read).skip(1).zip(of(Stage::Verify)) {
            assert!(read.start < verify.end, "{kind:?}: {read:?} {verify:?}");
            assert!(read.end > read.start && verify.end > verify.start);
        }
    }
}

/// Each mode's result as bits.
type Results = Vec<(usize, Vec<u64>)>;

/// All modes' results of one pass, and of two.
fn run_twice(store: &Store, factors: &[Matrix<f64>], plan: &Plan) -> Result<[Results; 2]> {
    let pass = |plan: &Plan, passes: usize| {
        let mut mttkrp = Mttkrp::new(store, factors, &[0, 1, 2], 2)?;
        let mut backend = HostBackend::new(store, &mut mttkrp)?;
        let mut executor = Executor::new(store, plan, &mut backend)?;
        for _ in 0..passes {
            executor.pass(&mut backend, &|_| ())?;
        }
        Ok(bits(&mttkrp.finish()))
    };
    Ok([pass(plan, 1)?, pass(plan, 2)?])
}

#[test]
fn results_are_those_of_reading_through_the_cache() {
    for kind in CODECS {
        let place = Place::new(kind);
        let cached = place.open(&Sys::default(), false);
        let factors = seeded_factors(cached.sys(), &cached.manifest().shape, 4, 1).unwrap();
        let wanted = run_twice(&cached, &factors, &lone_worker(&cached, 2)).unwrap();
        let direct = place.open(&Sys::default(), true);
        for (workers, buffers) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (4, 3)] {
            for kept in [0, 2, place.chunks] {
                let plan = Plan { workers, kept: (0..kept).collect(), ..lone_worker(&direct, buffers) };
                let found = run_twice(&direct, &factors, &plan).unwrap();
                assert!(found == wanted, "{kind:?}: {workers} workers, {buffers} buffers, {kept} kept");
            }
        }
    }
}

/// Runs of 1 to 3 workers: the error.
fn errors(place: &Place, direct: bool) -> Vec<String> {
    let run = |workers| {
        let store = place.open(&Sys::default(), direct);
        let plan = Plan { workers, ..lone_worker(&store, 2) };
        let mut backend = Idle::new(|_| Ok(()), false);
        let mut executor = Executor::new(&store, &plan, &mut backend)?;
        executor.pass(&mut backend, &|_| ())
    };
    (1..=3).map(|workers| run(workers).unwrap_err().to_string()).collect()
}

/// One kind of damage to a file.
type Damage = fn(&Path, &[u8]);

/// Whatever the damage, and whatever follows it, the first in the order of chunks is reported, in the same words.
#[test]
fn damage_is_told_as_when_reading_through_the_cache() {
    let flipped = |path: &Path, whole: &[u8], at: usize| {
        let mut file = whole.to_vec();
        file[at] ^= 1;
        std::fs::write(path, file).unwrap();
    };
    for kind in CODECS {
        let place = Place::new(kind);
        let chunk = |number| Store::chunk_path_in(&place.path(), number);
        let whole: Vec<Vec<u8>> = (0..place.chunks).map(|n| std::fs::read(chunk(n)).unwrap()).collect();
        let cut: Damage = |path, whole| std::fs::write(path, &whole[..whole.len() - 4096]).unwrap();
        let gone: Damage = |path, _| std::fs::remove_file(path).unwrap();
        for at in [0, 41, 130, usize::MAX] {
            for behind in [cut, gone] {
                flipped(&chunk(2), &whole[2], at.min(whole[2].len() - 1));
                behind(&chunk(3), &whole[3]);
                let [cached, direct] = [false, true].map(|direct| errors(&place, direct));
                assert_eq!(cached, direct);
                assert!(direct.iter().all(|error| error.contains("chunk-000002")), "byte {at}: {direct:?}");
                // The reader finds this damage, while the chunk before may still be checked.
                std::fs::write(chunk(2), &whole[2]).unwrap();
                let [cached, direct] = [false, true].map(|direct| errors(&place, direct));
                assert_eq!(cached, direct);
                assert!(direct.iter().all(|error| error.contains("chunk-000003")), "{direct:?}");
                std::fs::write(chunk(3), &whole[3]).unwrap();
            }
        }
    }
}

/// An inspector's error ends the pass, and so does a cancellation, at any chunk.
#[test]
fn a_refused_chunk_and_a_request_to_stop_end_the_pass() {
    let place = Place::new(Kind::Tiled);
    for (direct, at) in
        [false, true].into_iter().flat_map(|direct| (0..place.chunks).map(move |at| (direct, at)))
    {
        let store = place.open(&Sys::default(), direct);
        let refuse = move |n| if n >= at { Err(Error::request(format!("chunk {n}"))) } else { Ok(()) };
        let mut backend = Idle::new(refuse, false);
        let mut executor = Executor::new(&store, &lone_worker(&store, 2), &mut backend).unwrap();
        let error = executor.pass(&mut backend, &|_| ()).unwrap_err();
        assert_eq!(error.to_string(), format!("chunk {at}"));
        let error = executor.pass(&mut backend, &|_| ()).unwrap_err();
        assert!(error.to_string().contains("an earlier pass failed"), "{error}");

        let store = place.open(&Sys::default(), direct);
        let stop = store.sys().cancel_flag();
        let mut backend = Idle::new(|_| Ok(()), true);
        let mut executor = Executor::new(&store, &lone_worker(&store, 2), &mut backend).unwrap();
        let first = store.manifest().chunks[at].first_nonzero;
        stop.store(at == 0, Ordering::Relaxed);
        let result = executor.pass(&mut backend, &|done| stop.store(done >= first, Ordering::Relaxed));
        assert!(matches!(result, Err(Error::Cancelled)), "chunk {at}: {result:?}");
        assert_eq!(backend.numbers.len(), at, "{:?}", backend.numbers);
    }
}
