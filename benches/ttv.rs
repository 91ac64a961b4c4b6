//! TTV against a plain loop over coordinates: `cargo bench --bench ttv -- INPUT ... [--runs N] [--threads N] [--chunk-bytes N]`.
//!
//! Of a tensor's text, for each mode, a store whose leaves it has; an input that is a directory is such a store already. Taking turns: a plain loop over the same nonzeros in memory, as coordinates and
//! values in the store's own order, which adds to the element that it is at and begins another where a fiber ends (the best case for a loop: it neither sorts
//! nor searches), by one thread and by as many as TTV has, each with a part of the fibers; a pass over the store's files in the
//! page cache, read, verified, decoded; and a later pass, over chunks that are kept in memory. Elements stay in memory; no text is written. Prints a
//! Markdown table, medians of N, with the share of the rate at which as many threads copy memory. Record it under benches/runs/.

#![expect(clippy::print_stdout, reason = "a report")]
#![expect(clippy::unwrap_used, reason = "a bench has nobody to tell")]

#[expect(dead_code, reason = "what MTTKRP is measured with")]
mod common;

use blco::internals::backend::host::{HostBackend, HostOp};
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::coo::{Batch, Source};
use blco::internals::dense::Matrix;
use blco::internals::encoding::LeafRule;
use blco::internals::format::DecodedTile;
use blco::internals::op::export::EachTile;
use blco::internals::op::ttv::Streamed;
use blco::internals::pack::{FormatOption, PackOptions, pack};
use blco::internals::store::Store;
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use common::{copy, median};
use rayon::prelude::*;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes that copies are measured with: more than any cache here.
const COPIED: usize = 512 << 20;

/// Each of the four as seconds on the clock and of processors (all threads'), these in brackets. "Times" are the seconds of a loop over TTV's.
const HEAD: &str = "\
| mode | elements | nonzeros an element | bytes a nonzero | loop, 1 thread | loop, all threads | TTV, files | TTV, kept | \
times loop 1: files | kept | times loop all: files | kept | M nonzeros, M fibers a processor second, kept | GB/s moved, files | of a copy's |\n\
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Seconds on the clock, and of processors.
#[derive(Clone, Copy, Default)]
struct Seconds {
    clock: f64,
    processors: f64,
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.4} ({:.4})", self.clock, self.processors)
    }
}

/// What `work` takes.
fn seconds(work: &mut dyn FnMut()) -> Seconds {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, before) = (Instant::now(), used());
    work();
    Seconds { clock: start.elapsed().as_secs_f64(), processors: used() - before }
}

fn pass<O: HostOp>(store: &Store, op: &mut O, threads: usize) {
    let mut backend = HostBackend::new(store, op).unwrap();
    let plan = plan(store, 0, &Limits { threads, ..Limits::default() }).unwrap();
    Executor::new(store, &plan, &mut backend).unwrap().pass(&mut backend, &|_| {}).unwrap();
}

/// The nonzeros of a store, in its order.
fn coordinates(store: &Store, threads: usize) -> Batch {
    let mut all = Batch::default();
    let mut gather = EachTile(|tile: &DecodedTile<'_>| {
        all.indices.extend((0..tile.nnz).flat_map(|i| (0..tile.order()).map(move |m| tile.column(m)[i])));
        all.values.extend_from_slice(tile.values);
        Ok(())
    });
    pass(store, &mut gather, threads);
    all
}

/// The loop: elements of the tensor times `vector` along `mode`, of nonzeros whose fibers along it lie together.
fn plain<const N: usize>(indices: &[u32], values: &[f64], mode: usize, vector: &[f64], out: &mut Vec<f64>) {
    out.clear();
    let (rows, _) = indices.as_chunks::<N>();
    let mut last: Option<&[u32; N]> = None;
    for (at, value) in rows.iter().zip(values) {
        let product = value * vector[at[mode] as usize];
        let same = last.is_some_and(|last| (0..N).all(|m| m == mode || at[m] == last[m]));
        match out.last_mut() {
            Some(sum) if same => *sum += product,
            _ => out.push(product),
        }
        last = Some(at);
    }
}

/// The loop by threads: each has a part of the nonzeros, cut where a fiber ends, and elements of its own.
fn plain_parts(all: &Batch, order: usize, mode: usize, vector: &[f64], outs: &mut [Vec<f64>]) {
    let (nnz, parts) = (all.values.len(), outs.len());
    let row = |i: usize| &all.indices[i * order..][..order];
    let cut = |part: usize| {
        let mut at = nnz * part / parts;
        while at > 0 && at < nnz && (0..order).all(|m| m == mode || row(at)[m] == row(at - 1)[m]) {
            at += 1;
        }
        at
    };
    let run = match order {
        2 => plain::<2>,
        3 => plain::<3>,
        4 => plain::<4>,
        5 => plain::<5>,
        _ => panic!("orders 2 to 5"),
    };
    outs.par_iter_mut().enumerate().for_each(|(part, out)| {
        let (from, to) = (cut(part), cut(part + 1));
        // Lengths of neighbours would share a cache line.
        let mut mine = std::mem::take(out);
        run(&all.indices[from * order..to * order], &all.values[from..to], mode, vector, &mut mine);
        *out = mine;
    });
}

/// Medians of `runs` runs of each, taking turns, after one that brings memory and files into the caches.
fn turns<const N: usize>(runs: usize, mut each: [&mut dyn FnMut(); N]) -> [Seconds; N] {
    let mut all = [const { Vec::new() }; N];
    for run in 0..=runs {
        for (work, all) in each.iter_mut().zip(&mut all) {
            let taken = seconds(work);
            all.extend((run > 0).then_some(taken));
        }
    }
    all.map(|all| {
        let part = |of: fn(&Seconds) -> f64| median(all.iter().map(of).collect());
        Seconds { clock: part(|s| s.clock), processors: part(|s| s.processors) }
    })
}

/// Packs a tensor so that `mode` is the leaves'.
fn packed(sys: &Sys, input: &Path, mode: usize, order: usize, chunk_bytes: Option<u64>, target: &Path) {
    let format = FormatOption::Hocfs { main_mode: (mode + 1) % order, leaf: LeafRule::Auto };
    let mut options = PackOptions { format, ..PackOptions::new(target.to_path_buf()) };
    options.chunk_bytes = chunk_bytes.unwrap_or(options.chunk_bytes);
    let mut source = TnsReader::open(sys, input, ReadOptions::default()).unwrap();
    pack(sys, &mut source, &options, &|_, _, _| {}).unwrap();
}

/// One row of the table: the leaves' mode of a store. `rate` is that of copies, in GB/s.
fn row(sys: &Sys, store: &Path, threads: usize, runs: usize, rate: f64) {
    let store = Store::open(sys, store).unwrap();
    let manifest = store.manifest();
    let levels = manifest.format().tree_levels().expect("a store of trees");
    let (order, mode) = (manifest.shape.order(), levels.last());
    let (nnz, bytes) = (manifest.nnz, manifest.chunks.iter().map(|chunk| chunk.file_bytes).sum::<u64>());
    let vector = Matrix::<f64>::seeded(sys, manifest.shape.dims()[mode] as usize, 1, mode, 0).unwrap();
    let (vector, all) = (vector.data(), coordinates(&store, threads));
    let (mut one, mut several) = (vec![Vec::new()], vec![Vec::new(); threads]);
    let limits = |passes| Limits { threads, passes, ..Limits::default() };
    let plans = [1, 100].map(|passes| plan(&store, 0, &limits(passes)).unwrap());
    let mut ops = [(); 2].map(|()| Streamed::new(&store, vector, None).unwrap());
    let [cached, kept] = &mut ops;
    let mut backends = [cached, kept].map(|op| HostBackend::new(&store, op).unwrap());
    let [first, second] = &mut backends;
    let mut cached = Executor::new(&store, &plans[0], first).unwrap();
    let mut kept = Executor::new(&store, &plans[1], second).unwrap();
    let (mut elements, mut again) = (0, 0);
    let [loop_one, loop_all, ours_cached, ours_kept] = turns(
        runs,
        [
            &mut || plain_parts(&all, order, mode, vector, black_box(&mut one)),
            &mut || plain_parts(&all, order, mode, vector, black_box(&mut several)),
            &mut || {
                first.op().reset(true);
                cached.pass(first, &|_| {}).unwrap();
                elements = first.op().finish().unwrap().0;
            },
            &mut || {
                second.op().reset(true);
                kept.pass(second, &|_| {}).unwrap();
                again = second.op().finish().unwrap().0;
            },
        ],
    );
    let found = [one[0].len() as u64, several.iter().map(|out| out.len() as u64).sum(), again];
    assert_eq!(found, [elements; 3], "all find the same fibers");
    // Read once: images, and the copy of them from the page cache; written once: elements.
    let moved = (3 * bytes + 8 * elements) as f64 / ours_cached.clock / 1e9;
    let times = |of: Seconds, by: Seconds| {
        format!("{:.2} ({:.2})", of.clock / by.clock, of.processors / by.processors)
    };
    println!(
        "| {} | {elements} | {:.2} | {:.3} | {loop_one} | {loop_all} | {ours_cached} | {ours_kept} | {} | {} | {} | {} | {:.0}, {:.0} | {:.1} | {:.0} % |",
        mode + 1,
        nnz as f64 / elements as f64,
        bytes as f64 / nnz as f64,
        times(loop_one, ours_cached),
        times(loop_one, ours_kept),
        times(loop_all, ours_cached),
        times(loop_all, ours_kept),
        nnz as f64 / ours_kept.processors / 1e6,
        elements as f64 / ours_kept.processors / 1e6,
        moved,
        100.0 * moved / rate,
    );
}

/// The order of a tensor in text.
fn order_of(sys: &Sys, input: &Path) -> usize {
    let mut source = TnsReader::open(sys, input, ReadOptions::default()).unwrap();
    Source::size(&source)
        .unwrap()
        .map_or_else(|| Source::drain(&mut source, &mut |_| Ok(())).unwrap().dims.len(), |size| size.order)
}

fn main() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut inputs, mut runs, mut threads, mut chunk_bytes) = (Vec::new(), 7, all, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--runs" => runs = arguments.next().unwrap().parse().unwrap(),
            "--chunk-bytes" => chunk_bytes = Some(arguments.next().unwrap().parse().unwrap()),
            "--threads" => threads = arguments.next().unwrap().parse().unwrap(),
            path => inputs.push(PathBuf::from(path)),
        }
    }
    let sys = Sys::default();
    for input in &inputs {
        let pool = sys.pool(threads).unwrap();
        pool.install(|| {
            let rate = copy(&pool, COPIED, runs);
            let name = input.file_name().unwrap().to_string_lossy();
            println!("\n## {name}, {threads} threads, which copy {rate:.1} GB/s\n");
            println!("{HEAD}");
            if input.is_dir() {
                return row(&sys, input, threads, runs, rate);
            }
            let order = order_of(&sys, input);
            for mode in 0..order {
                let dir = tempfile::tempdir().unwrap();
                let target = dir.path().join("bench.hocfs");
                packed(&sys, input, mode, order, chunk_bytes, &target);
                row(&sys, &target, threads, runs, rate);
            }
        });
    }
}
