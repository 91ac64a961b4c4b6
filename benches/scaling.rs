//! How the CPU engine scales: `cargo bench --bench scaling -- [--threads 1,2,4] [--kind NAME] [--divide N] [--rank R] [--runs N] [--dir DIR]
//! [--svg FILE] [--json FILE]`.
//!
//! Five kinds of tensors are generated ([`KINDS`]; `--divide 10` takes a tenth of their nonzeros): short modes, modes of some thousand rows, long
//! fibers, order 4 with a short mode, modes of millions of rows without reuse. For each number of threads (powers of two up to all, by default): text to
//! store, verification, MTTKRP of all modes and of each (f64, passes of a session after those that its plan builds copies in, medians), and an
//! iteration of CP-ALS; beside them what the machine itself copies and reads in random rows. Prints Markdown; `--svg` draws the parallel
//! efficiency (seconds with the fewest threads, over those with n, over how many more n are), `--json` keeps all figures. Record it under
//! benches/runs/.

#![expect(clippy::print_stdout, reason = "a report")]
#![expect(clippy::unwrap_used, reason = "a bench has nobody to tell")]

#[expect(dead_code, reason = "some of it is for other benches")]
mod common;

use blco::internals::coo::Source;
use blco::internals::coo::generate::{GenerateSpec, Generator, Skew, Values};
use blco::internals::coo::tns::TnsWriter;
use blco::internals::sys::Sys;
use blco::{Cp, Device, Engine, Matrix, Modes, PackOptions, ReadOptions, Store};
use common::{LARGE, copy, median, rows};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name, dims, nonzeros and skew of each kind, of each mode or of all.
const KINDS: [(&str, &[u64], u64, &[f64]); 5] = [
    ("uber-like", &[183, 24, 1140, 1717], 3_300_000, &[1.0, 1.0, 2.0, 2.0]),
    ("nell2-like", &[12_092, 9_184, 28_818], 20_000_000, &[2.0]),
    ("git-log-like", &[2_500, 120_000, 40_000, 260], 6_000_000, &[3.0, 2.5, 3.0, 1.5]),
    ("nips-like", &[2_482, 2_862, 14_036, 17], 3_100_000, &[1.5, 1.5, 2.0, 1.0]),
    ("delicious-like", &[532_924, 17_262_471, 2_480_308, 1_443], 20_000_000, &[2.0, 2.0, 2.0, 1.5]),
];

/// Milliseconds by what was measured, in the order of `threads`.
type Figures = BTreeMap<String, Vec<f64>>;

struct Settings {
    threads: Vec<usize>,
    kind: Option<String>,
    divide: u64,
    rank: usize,
    runs: usize,
    dir: PathBuf,
    svg: Option<PathBuf>,
    json: Option<PathBuf>,
}

fn settings() -> Settings {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < all).collect();
    threads.push(all);
    let (dir, rank, runs) = (std::env::temp_dir(), 32, 7);
    let mut settings = Settings { threads, kind: None, divide: 1, rank, runs, dir, svg: None, json: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} takes a value"));
        match argument.as_str() {
            "--bench" => {}
            "--threads" => settings.threads = value().split(',').map(|n| n.parse().unwrap()).collect(),
            "--kind" => settings.kind = Some(value()),
            "--divide" => settings.divide = value().parse().unwrap(),
            "--rank" => settings.rank = value().parse().unwrap(),
            "--runs" => settings.runs = value().parse().unwrap(),
            "--dir" => settings.dir = value().into(),
            "--svg" => settings.svg = Some(value().into()),
            "--json" => settings.json = Some(value().into()),
            other => panic!("{other}: not an option; see the beginning of benches/scaling.rs"),
        }
    }
    settings
}

fn write_text(path: &Path, dims: &[u64], nnz: u64, skew: &[f64]) {
    let skew = skew.iter().cycle().take(dims.len()).map(|a| a.to_string().parse::<Skew>().unwrap());
    let spec = GenerateSpec {
        dims: dims.to_vec(),
        nnz,
        skew: skew.collect(),
        values: Values::Integers { lo: 1, hi: 99 },
        seed: 1,
        ..GenerateSpec::default()
    };
    let mut writer = TnsWriter::new(BufWriter::new(std::fs::File::create(path).unwrap()));
    let mut generator = Generator::new(&Sys::default(), spec).unwrap();
    let mut write = |batch| {
        writer.write_batch(&batch).unwrap();
        Ok(())
    };
    generator.drain(&mut write).unwrap();
    writer.finish().unwrap();
}

/// Median milliseconds of a pass, when the session has made what its plan keeps.
fn mttkrp(engine: &Engine, store: &Store, rank: usize, modes: Modes<'_>, runs: usize) -> f64 {
    let factor = |&dim: &u32| Matrix::from_rows(dim as usize, rank, vec![0.5; dim as usize * rank]);
    let factors: Vec<Matrix<f64>> = store.dims().iter().map(factor).collect();
    let plan = engine.plan_mttkrp::<f64>(store, rank, modes, 100).unwrap();
    let mut session = engine.prepare_mttkrp::<f64>(store, rank, modes, plan).unwrap();
    let mut pass = || {
        session.mttkrp(&factors).unwrap();
        session.passes().iter().map(|pass| 1e3 * pass.seconds).sum()
    };
    pass();
    pass();
    median((0..runs).map(|_| pass()).collect())
}

/// Everything about one tensor, with each number of threads.
fn kind(settings: &Settings, dims: &[u64], text: &Path, figures: &mut Figures) {
    let target = text.with_extension("blco");
    for &threads in &settings.threads {
        let engine = Engine::builder().device(Device::Cpu).threads(threads).build().unwrap();
        let mut put = |what: &str, figure: f64| figures.entry(what.into()).or_default().push(figure);
        let packs = (0..settings.runs.min(3)).map(|_| {
            let mut source = engine.read_text(text, ReadOptions::default()).unwrap();
            let options = PackOptions { replace: true, ..PackOptions::new(target.clone()) };
            1e3 * engine.pack(&mut source, &options).unwrap().seconds.total
        });
        put("text to store", median(packs.collect()));
        let store = engine.open(&target).unwrap();
        let verified = (0..settings.runs.min(3)).map(|_| {
            let start = Instant::now();
            engine.verify(&store).unwrap();
            1e3 * start.elapsed().as_secs_f64()
        });
        put("verify", median(verified.collect()));
        put("MTTKRP, all modes", mttkrp(&engine, &store, settings.rank, Modes::All, settings.runs));
        for mode in 0..dims.len() {
            let modes = Modes::Only(&[mode]);
            put(
                &format!("MTTKRP, mode {}", mode + 1),
                mttkrp(&engine, &store, settings.rank, modes, settings.runs),
            );
        }
        let cp = Cp::rank(settings.rank).tol(0.0).max_iters(u32::try_from(settings.runs).unwrap() + 2);
        let decomposition = engine.cp_als::<f64>(&store, &cp).unwrap();
        let iterations = &decomposition.als.history()[2..];
        let of = |seconds: fn(&blco::Iteration) -> f64| {
            median(iterations.iter().map(|i| 1e3 * seconds(i)).collect())
        };
        put("CP-ALS iteration", of(|i| i.seconds));
        put("CP-ALS, its passes", of(|i| i.mttkrp_seconds));
    }
}

fn print(title: &str, settings: &Settings, figures: &Figures) {
    println!("\n## {title}\n");
    let row = |what: &str, cells: Vec<String>| println!("| {what} | {} |", cells.join(" | "));
    row("milliseconds with threads", settings.threads.iter().map(usize::to_string).collect());
    row("---", vec!["---".into(); settings.threads.len()]);
    for (what, all) in figures {
        row(what, all.iter().map(|figure| format!("{figure:.1}")).collect());
    }
}

/// Of milliseconds: how much of the additional threads is put to use, by the place among `threads`.
fn efficiency(threads: &[usize], figures: &[f64]) -> Vec<(f64, f64)> {
    let of = |(n, t): (&usize, &f64)| figures[0] / t * threads[0] as f64 / *n as f64;
    (0u32..).map(f64::from).zip(threads.iter().zip(figures).map(of)).collect()
}

/// A panel for each thing measured, a line for each tensor, and the machine's.
fn draw(path: &Path, settings: &Settings, machine: &Figures, all: &[(&str, Figures)]) {
    const PANELS: [&str; 4] = ["MTTKRP, all modes", "CP-ALS iteration", "text to store", "verify"];
    let root = SVGBackend::new(path, (1120, 840)).into_drawing_area();
    root.fill(&WHITE).unwrap();
    let most = settings.threads.len();
    // Labels between two places say nothing.
    let label = |place: &f64| {
        let threads = (0u32..).zip(&settings.threads).find(|(at, _)| (f64::from(*at) - place).abs() < 1e-6);
        threads.map(|(_, n)| n.to_string()).unwrap_or_default()
    };
    for (area, what) in root.split_evenly((2, 2)).iter().zip(PANELS) {
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{what}: parallel efficiency"), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(44)
            .build_cartesian_2d(0.0..(most - 1).max(1) as f64, 0.0..1.25)
            .unwrap();
        let mesh = &mut chart.configure_mesh();
        mesh.x_desc("threads").x_labels(most).x_label_formatter(&label).max_light_lines(0).draw().unwrap();
        let lines = all.iter().map(|(name, figures)| (*name, &figures[what], false));
        let limits = machine.iter().map(|(name, figures)| (name.as_str(), figures, true));
        for (i, (name, figures, limit)) in lines.chain(limits).enumerate() {
            let color = if limit {
                BLACK.mix(if i % 2 == 0 { 0.35 } else { 0.7 })
            } else {
                Palette99::pick(i).mix(1.0)
            };
            let style = color.stroke_width(if limit { 1 } else { 2 });
            let line = efficiency(&settings.threads, figures);
            let legend = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style);
            chart.draw_series(LineSeries::new(line, style)).unwrap().label(name).legend(legend);
        }
        let labels = &mut chart.configure_series_labels();
        labels.position(SeriesLabelPosition::LowerLeft).background_style(WHITE.mix(0.8)).draw().unwrap();
    }
    root.present().unwrap();
}

fn main() {
    let settings = settings();
    let mut machine = Figures::new();
    for &threads in &settings.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // As milliseconds for a fixed amount, as everything else.
        let mut put = |what: &str, figure: f64| machine.entry(what.into()).or_default().push(figure);
        put("the machine: copying 100 GB", 1e5 / copy(&pool, LARGE, settings.runs));
        put(
            "the machine: reading 100 M random rows of 128 bytes",
            1e5 / rows::<16>(&pool, LARGE, settings.runs),
        );
    }
    print("The machine", &settings, &machine);
    let dir = tempfile::tempdir_in(&settings.dir).unwrap();
    let mut all = Vec::new();
    for (name, dims, nnz, skew) in KINDS {
        if settings.kind.as_ref().is_some_and(|kind| kind != name) {
            continue;
        }
        let (text, nnz) = (dir.path().join(name).with_extension("tns"), nnz / settings.divide);
        write_text(&text, dims, nnz, skew);
        let mut figures = Figures::new();
        kind(&settings, dims, &text, &mut figures);
        std::fs::remove_file(&text).unwrap();
        print(
            &format!("{name}: {dims:?}, skew {skew:?}, {nnz} nonzeros, rank {}", settings.rank),
            &settings,
            &figures,
        );
        all.push((name, figures));
    }
    if let Some(path) = &settings.svg {
        draw(path, &settings, &machine, &all);
    }
    if let Some(path) = &settings.json {
        let threads = &settings.threads;
        let figures = serde_json::json!({ "threads": threads, "machine": machine, "milliseconds": BTreeMap::from_iter(all) });
        std::fs::write(path, serde_json::to_string_pretty(&figures).unwrap()).unwrap();
    }
}
