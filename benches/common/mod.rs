//! What benches share: medians, passes of MTTKRP on the CPU, and the machine's own limits.

use blco::internals::backend::host::HostBackend;
use blco::internals::dense::{Real, seeded_factors};
use blco::internals::op::mttkrp::Mttkrp;
use blco::internals::random::Counter;
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of the tables that the machine is measured with: more than any cache here.
pub const LARGE: usize = 1300 << 20;
/// Bytes of tables that fit a shared cache.
pub const SMALL: usize = 34 << 20;

/// The median.
pub fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Median seconds of `runs` runs.
pub fn timed(runs: usize, mut work: impl FnMut()) -> f64 {
    let once = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    median((0..runs).map(|_| once(&mut work)).collect())
}

/// Seconds of each pass over `store`, after one that is not counted; with `kept`, chunks stay in memory.
pub fn passes<T: Real>(
    store: &Store,
    modes: &[usize],
    rank: usize,
    threads: usize,
    kept: bool,
    runs: usize,
) -> Vec<f64> {
    let sys = store.sys();
    sys.pool(threads).unwrap().install(|| {
        let factors = seeded_factors::<T>(sys, &store.manifest().shape, rank, 0).unwrap();
        let mut mttkrp = Mttkrp::new(store, &factors, modes, threads).unwrap();
        let limits = Limits { threads, passes: if kept { 2 } else { 1 }, ..Limits::default() };
        let plan = plan(store, 0, &limits).unwrap();
        let mut backend = HostBackend::new(store, &mut mttkrp).unwrap();
        let mut executor = Executor::new(store, &plan, &mut backend).unwrap();
        let mut pass = || {
            backend.op().reset();
            executor.pass(&mut backend, &|_| {}).unwrap().seconds
        };
        pass();
        (0..runs).map(|_| pass()).collect()
    })
}

/// GB/s of copying `bytes`, read and written bytes both counted.
pub fn copy(pool: &rayon::ThreadPool, bytes: usize, runs: usize) -> f64 {
    let from = vec![1u64; bytes / 16];
    let mut to = vec![0u64; bytes / 16];
    let part = from.len().div_ceil(pool.current_num_threads());
    let seconds = timed(runs, || {
        pool.install(|| {
            to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(t, f)| t.copy_from_slice(f));
        });
        black_box(&to);
    });
    2.0 * (to.len() * 8) as f64 / seconds / 1e9
}

/// Millions of random rows of `ROW` times 8 bytes read a second, from a table of `bytes`.
pub fn rows<const ROW: usize>(pool: &rayon::ThreadPool, bytes: usize, runs: usize) -> f64 {
    const READS: usize = 4 << 20;
    let table = vec![1.0f64; bytes / 8];
    let count = (table.len() / ROW) as u64;
    let threads = pool.current_num_threads();
    let seconds = timed(runs, || {
        let sums: Vec<f64> = pool.install(|| {
            let walk = |thread: usize| {
                let stream = Counter::new(1, thread as u64);
                let mut sum = [0.0; ROW];
                for i in 0..(READS / threads) as u64 {
                    let row = usize::try_from(stream.bits(i) % count).unwrap() * ROW;
                    sum.iter_mut().zip(&table[row..row + ROW]).for_each(|(s, x)| *s += x);
                }
                sum[0]
            };
            (0..threads).into_par_iter().with_max_len(1).map(walk).collect()
        });
        black_box(sums);
    });
    READS as f64 / seconds / 1e6
}
