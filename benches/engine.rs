//! The engine against the machine that it runs on: `cargo bench --bench engine -- [INPUT.tns ...] [--runs N] [--rank R]`.
//!
//! Prints a Markdown report: memory bandwidth and random row reads with one and all threads, then, for each tensor
//! (one that it generates if none is given), packing and MTTKRP, medians of N. Record it under benches/runs/.

#![expect(clippy::print_stdout, reason = "a report")]
#![expect(clippy::unwrap_used, reason = "a bench has nobody to tell")]

mod common;

use blco::internals::coo::Source;
use blco::internals::coo::generate::{GenerateSpec, Generator, Skew, Values};
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::dense::Real;
use blco::internals::pack::{PackOptions, PackReport, pack};
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use common::{LARGE, SMALL, copy, median, passes, rows};
use std::path::{Path, PathBuf};

fn machine(runs: usize) {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    println!("| machine | one thread | {all} threads |\n|---|---|---|");
    let pools = [1, all].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap());
    let row = |name: &str, measure: &dyn Fn(&rayon::ThreadPool) -> f64| {
        println!("| {name} | {:.1} | {:.1} |", measure(&pools[0]), measure(&pools[1]));
    };
    row("copy 1.3 GB, GB/s", &|pool| copy(pool, LARGE, runs));
    row("copy 34 MB, GB/s", &|pool| copy(pool, SMALL, runs));
    row("random 128-byte rows of 1.3 GB, M/s", &|pool| rows::<16>(pool, LARGE, runs));
    row("random 128-byte rows of 34 MB, M/s", &|pool| rows::<16>(pool, SMALL, runs));
}

fn source(sys: &Sys, input: Option<&Path>) -> Box<dyn Source + Send> {
    let spec = GenerateSpec {
        dims: vec![183, 24, 1140, 1717],
        nnz: 3_300_000,
        skew: vec![Skew::One, Skew::One, Skew::Two, Skew::Two],
        values: Values::Integers { lo: 1, hi: 5 },
        ..GenerateSpec::default()
    };
    match input {
        Some(path) => Box::new(TnsReader::open(sys, path, ReadOptions::default()).unwrap()),
        None => Box::new(Generator::new(sys, spec).unwrap()),
    }
}

fn packing(sys: &Sys, input: Option<&Path>, target: &Path, threads: usize, runs: usize) -> PackReport {
    let pool = sys.pool(threads).unwrap();
    let options = PackOptions { replace: true, ..PackOptions::new(target.to_path_buf()) };
    let mut reports: Vec<PackReport> = (0..runs)
        .map(|_| {
            let mut source = source(sys, input);
            pool.install(|| pack(sys, &mut *source, &options, &|_, _, _| {}).unwrap())
        })
        .collect();
    reports.sort_by(|a, b| a.seconds.total.total_cmp(&b.seconds.total));
    reports.swap_remove(runs / 2)
}

/// Median seconds of a pass that computes `modes`.
fn running<T: Real>(store: &Store, modes: &[usize], rank: usize, threads: usize, runs: usize) -> f64 {
    median(passes::<T>(store, modes, rank, threads, false, runs))
}

fn tensor(sys: &Sys, input: Option<&Path>, rank: usize, runs: usize) {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("bench.blco");
    let report = packing(sys, input, &target, all, runs.min(3));
    let name = input.map_or("generated, uber-like".into(), |p| p.file_name().unwrap().to_string_lossy());
    let s = &report.seconds;
    println!("\n## {name}: {:?}, {} nonzeros\n", report.dims, report.nnz);
    println!(
        "Text to store with {all} threads: {:.3} s (read {:.3}, sort {:.3}, write {:.3}, publish {:.3}), {:.1} M nonzeros/s, \
         {:.3} bytes a nonzero.\n",
        s.total,
        s.read,
        s.sort,
        s.write,
        s.publish,
        report.input_nnz as f64 / s.total / 1e6,
        report.bytes_per_nnz
    );
    let store = Store::open(sys, &target).unwrap();
    let every: Vec<usize> = (0..report.dims.len()).collect();
    println!(
        "| rank {rank}, seconds a pass | f64, 1 thread | f64, {all} threads | f32, 1 thread | f32, {all} threads |"
    );
    println!("|---|---|---|---|---|");
    let row = |name: String, modes: &[usize]| {
        println!(
            "| {name} | {:.4} | {:.4} | {:.4} | {:.4} |",
            running::<f64>(&store, modes, rank, 1, runs),
            running::<f64>(&store, modes, rank, all, runs),
            running::<f32>(&store, modes, rank, 1, runs),
            running::<f32>(&store, modes, rank, all, runs),
        );
    };
    row("all modes, one pass".into(), &every);
    for &mode in &every {
        row(format!("mode {}", mode + 1), &[mode]);
    }
}

fn main() {
    let (mut inputs, mut runs, mut rank) = (Vec::new(), 5, 32);
    let mut machine_only = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--machine" => machine_only = true,
            "--runs" => runs = arguments.next().unwrap().parse().unwrap(),
            "--rank" => rank = arguments.next().unwrap().parse().unwrap(),
            path => inputs.push(PathBuf::from(path)),
        }
    }
    machine(runs);
    if machine_only {
        return;
    }
    let sys = Sys::default();
    if inputs.is_empty() {
        tensor(&sys, None, rank, runs);
    }
    for input in &inputs {
        tensor(&sys, Some(input), rank, runs);
    }
}
