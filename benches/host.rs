//! MTTKRP on the CPU against the machine: `cargo bench --bench host -- STORE ... [--runs N] [--rank R] [--json FILE]`.
//!
//! Prints, and with `--json` records for `tools/compare_runs.py`, seconds: the machine's limits; every set of modes in both precisions with one and all
//! threads, in rounds, so that all of them meet the same neighbours; a pass that reads a warm store against one whose chunks are kept in memory, alternating; a
//! pass past the page cache against reading the same files so with as many readers, alternating.

#![expect(clippy::print_stdout, reason = "a report")]
#![expect(clippy::unwrap_used, reason = "a bench has nobody to tell")]

mod common;

use blco::internals::store::Store;
use blco::internals::stream::{Limits, plan};
use blco::internals::sys::Sys;
use common::{LARGE, SMALL, copy, median, passes, rows};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A file's bytes that a reader of the comparison asks for at once: what a worker asks for, a chunk.
const REQUEST: usize = 16 << 20;

/// What is recorded: for each name, the seconds (or rates) of all runs.
type Record = Map<String, Value>;

/// Seconds of reading all chunk files past the page cache, with `readers` threads, a file each at a time.
fn direct_read(sys: &Sys, store: &Store, readers: usize) -> f64 {
    let files = std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_chunk = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bin");
    let chunks: Vec<PathBuf> = files.filter(is_chunk).collect();
    let chunks = &chunks;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..readers {
            scope.spawn(move || {
                let mut buffer = sys.page_buf(REQUEST).unwrap();
                for path in chunks.iter().skip(reader).step_by(readers) {
                    let file = sys.open(path, true).unwrap();
                    let mut at = 0;
                    loop {
                        let read = file.read_at(&mut buffer, at).unwrap();
                        at += read as u64;
                        if read < buffer.len() {
                            break;
                        }
                    }
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

fn add(record: &mut Record, name: &str, seconds: Vec<f64>) {
    let entry = record.entry(name).or_insert_with(|| json!([]));
    entry.as_array_mut().unwrap().extend(seconds.into_iter().map(Value::from));
}

fn machine(runs: usize, all: usize, record: &mut Record) {
    for threads in [1, all] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut rate = |name: &str, rate: f64| add(record, &format!("{name}, {threads} threads"), vec![rate]);
        rate("copy 1.3 GB, GB/s", copy(&pool, LARGE, runs));
        rate("copy 34 MB, GB/s", copy(&pool, SMALL, runs));
        rate("random 128-byte rows of 1.3 GB, M/s", rows::<16>(&pool, LARGE, runs));
        rate("random 128-byte rows of 34 MB, M/s", rows::<16>(&pool, SMALL, runs));
        rate("random 256-byte rows of 1.3 GB, M/s", rows::<32>(&pool, LARGE, runs));
        rate("random 256-byte rows of 34 MB, M/s", rows::<32>(&pool, SMALL, runs));
    }
}

fn tensor(path: &Path, rank: usize, runs: usize, all: usize, record: &mut Record) {
    let sys = Sys::default();
    let store = Store::open(&sys, path).unwrap();
    let order = store.manifest().shape.order();
    let name = path.file_name().unwrap().to_string_lossy();
    let each = (0..order).map(|m| (format!("mode {}", m + 1), vec![m]));
    let sets: Vec<_> = std::iter::once(("all modes".to_owned(), (0..order).collect())).chain(each).collect();
    for _ in 0..runs {
        for (set, modes) in &sets {
            for threads in [1, all] {
                let name = |precision| format!("{name}: {set}, {precision}, {threads} threads, s");
                add(record, &name("f64"), passes::<f64>(&store, modes, rank, threads, false, 3));
                add(record, &name("f32"), passes::<f32>(&store, modes, rank, threads, false, 3));
            }
        }
    }
    let direct = Store::open(&sys, path).unwrap().with_direct_reads(true);
    let every = &sets[0].1;
    let readers = plan(&store, 0, &Limits { threads: all, ..Limits::default() }).unwrap().workers;
    for _ in 0..10 {
        let mut add = |what: &str, seconds| add(record, &format!("{name}: {what}, s"), seconds);
        add("streamed from a warm store", passes::<f64>(&store, every, rank, all, false, 3));
        add("kept in memory", passes::<f64>(&store, every, rank, all, true, 3));
        add("past the page cache", passes::<f64>(&direct, every, rank, all, false, 3));
        add("files read past the page cache", vec![direct_read(&sys, &store, readers)]);
    }
}

fn main() {
    let (mut stores, mut runs, mut rank, mut json) = (Vec::new(), 5, 32, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--runs" => runs = arguments.next().unwrap().parse().unwrap(),
            "--rank" => rank = arguments.next().unwrap().parse().unwrap(),
            "--json" => json = arguments.next(),
            path => stores.push(PathBuf::from(path)),
        }
    }
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let mut record = Record::new();
    machine(runs, all, &mut record);
    for store in &stores {
        tensor(store, rank, runs, all, &mut record);
    }
    println!("| rank {rank} | median | least |\n|---|---|---|");
    for (name, runs) in &record {
        let runs: Vec<f64> = runs.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        let least = runs.iter().copied().fold(f64::INFINITY, f64::min);
        println!("| {name} | {:.4} | {least:.4} |", median(runs));
    }
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap()).unwrap();
    }
}
