//! TTV against a plain loop over coordinates: `cargo bench --bench ttv -- INPUT.tns ... [--runs N] [--threads N]`.
//!
//! For each mode, a store whose leaves it has: seconds of a pass over the store in the page cache, and of a loop over
//! the same nonzeros as arrays of indices and values in the same order, which writes an element where a fiber ends. The
//! two take turns. Prints a Markdown table, medians of N. Record it under benches/runs/.

#![expect(clippy::print_stdout, reason = "a report")]
#![expect(clippy::unwrap_used, reason = "a bench has nobody to tell")]

use blco::backend::host::{HostBackend, HostOp};
use blco::coo::Batch;
use blco::coo::tns::{ReadOptions, TnsReader};
use blco::dense::Matrix;
use blco::encoding::LeafRule;
use blco::format::DecodedTile;
use blco::op::export::EachTile;
use blco::op::ttv::Streamed;
use blco::pack::{FormatOption, PackOptions, pack};
use blco::store::Store;
use blco::stream::{Executor, Limits, plan};
use blco::sys::Sys;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
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
fn plain(all: &Batch, order: usize, mode: usize, vector: &[f64], out: &mut Vec<f64>) {
    out.clear();
    let mut last: &[u32] = &[];
    for (at, value) in all.indices.chunks_exact(order).zip(&all.values) {
        let product = value * vector[at[mode] as usize];
        let same = !last.is_empty() && (0..order).all(|m| m == mode || at[m] == last[m]);
        match out.last_mut() {
            Some(sum) if same => *sum += product,
            _ => out.push(product),
        }
        last = at;
    }
}

/// One mode's row of the table.
fn mode(sys: &Sys, input: &Path, mode: usize, order: usize, threads: usize, runs: usize) {
    let dir = tempfile::tempdir().unwrap();
    let format = FormatOption::Hocfs { main_mode: (mode + 1) % order, leaf: LeafRule::Auto };
    let options = PackOptions { format, ..PackOptions::new(dir.path().join("bench.hocfs")) };
    let mut source = TnsReader::open(sys, input, ReadOptions::default()).unwrap();
    let report = pack(sys, &mut source, &options, &|_, _, _| {}).unwrap();
    let store = Store::open(sys, &options.target).unwrap();
    let vector = Matrix::<f64>::seeded(sys, report.dims[mode] as usize, 1, mode, 0).unwrap();
    let all = coordinates(&store, threads);
    let mut out = Vec::new();
    let mut op = Streamed::new(&store, vector.data(), None).unwrap();
    let mut backend = HostBackend::new(&store, &mut op).unwrap();
    let plan = plan(&store, 0, &Limits { threads, ..Limits::default() }).unwrap();
    let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
    let (mut ours, mut theirs, mut elements) = (Vec::new(), Vec::new(), 0);
    for _ in 0..=runs {
        let start = Instant::now();
        plain(&all, order, mode, vector.data(), &mut out);
        black_box(&out);
        theirs.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        backend.op().reset(true);
        executor.pass(&mut backend, &|_| {}).unwrap();
        elements = backend.op().finish().unwrap().0;
        ours.push(start.elapsed().as_secs_f64());
    }
    assert_eq!(elements, out.len() as u64, "both find the same fibers");
    // The first of each brings memory and files into the caches.
    let (ours, theirs) = (median(ours.split_off(1)), median(theirs.split_off(1)));
    // Read once: images, and the copy of them from the page cache; written once: elements.
    let moved = 3 * report.bytes + 8 * elements;
    println!(
        "| {} | {elements} | {:.2} | {:.3} | {theirs:.4} | {ours:.4} | {:.2} | {:.1} |",
        mode + 1,
        report.nnz as f64 / elements as f64,
        report.bytes_per_nnz,
        theirs / ours,
        moved as f64 / ours / 1e9,
    );
}

fn main() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut inputs, mut runs, mut threads) = (Vec::new(), 7, all);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--runs" => runs = arguments.next().unwrap().parse().unwrap(),
            "--threads" => threads = arguments.next().unwrap().parse().unwrap(),
            path => inputs.push(PathBuf::from(path)),
        }
    }
    let sys = Sys::default();
    for input in &inputs {
        let order = {
            let mut source = TnsReader::open(&sys, input, ReadOptions::default()).unwrap();
            blco::coo::Source::size(&source).unwrap().map_or_else(
                || blco::coo::Source::drain(&mut source, &mut |_| Ok(())).unwrap().dims.len(),
                |size| size.order,
            )
        };
        println!("\n## {}, {threads} threads\n", input.file_name().unwrap().to_string_lossy());
        println!(
            "| mode | elements | nonzeros an element | bytes a nonzero | plain loop, s | TTV, s | times | GB/s moved |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        sys.pool(threads).unwrap().install(|| {
            (0..order).for_each(|m| mode(&sys, input, m, order, threads, runs));
        });
    }
}
