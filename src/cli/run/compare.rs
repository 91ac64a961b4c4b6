//! `blco-run --compare`: MTTKRP from one tensor in several formats. Each mode is computed alone and all in one pass, checked and timed in one
//! process.

use super::{Run, parse_modes};
use crate::cli::progress::Bar;
use crate::cli::report::{ReportHead, median, share_of_bound};
use crate::cli::{Report, agreed_rank, nonzeros};
use crate::coo::Source;
use crate::dense::{FactorView, Matrix, Precision, Real, factors_rank, load_factors, seeded_factors};
use crate::engine::compare::InFormat;
use crate::engine::{Demand, Engine, MttkrpSession, chain};
use crate::error::{Error, Result};
use crate::op::oracle::{self, Comparison, OracleMode};
use crate::op::reread::StoreSource;
use crate::pack::FormatOption;
use crate::store::Store;
use crate::sys::Sys;
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use std::path::PathBuf;

/// Options for comparing formats.
#[derive(Debug, Args)]
#[command(next_help_heading = "Comparing formats")]
pub(super) struct CompareArgs {
    /// Compute MTTKRP from the tensor in each of these formats and compare bytes, times and results: all, or a list of blco, hocfs, csf,
    /// csf-one, bcsf, hbcsf, mmcsf and fcoo. For formats other than the store's, the tensor is packed into a temporary directory
    #[arg(long, value_name = "all|LIST", value_parser = formats, conflicts_with_all = ["output", "check", "plan", "trace", "with"])]
    compare: Option<Formats>,
    /// Keep the stores of --compare in this directory, and reuse stores found there
    #[arg(long, value_name = "DIR", requires = "compare")]
    keep: Option<PathBuf>,
}

/// The value of `--compare`.
#[derive(Clone, Debug)]
struct Formats(Vec<&'static str>);

fn formats(given: &str) -> std::result::Result<Formats, String> {
    if given == "all" {
        return Ok(Formats(FormatOption::COMPARED.to_vec()));
    }
    let mut names: Vec<&'static str> = Vec::new();
    for part in given.split(',').map(str::trim) {
        match FormatOption::COMPARED.iter().find(|name| **name == part) {
            Some(name) if names.contains(name) => return Err(format!("names {part} twice")),
            Some(name) => names.push(name),
            None => {
                return Err(format!(
                    "{part:?} is not one of {}; or give all",
                    FormatOption::COMPARED.join(", ")
                ));
            }
        }
    }
    Ok(Formats(names))
}

impl CompareArgs {
    /// Whether `--compare` was given.
    pub(super) fn is_given(&self) -> bool {
        self.compare.is_some()
    }
}

/// The JSON report.
#[derive(Debug, Serialize)]
struct CompareReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    op: &'static str,
    precision: Precision,
    rank: usize,
    dims: Vec<u32>,
    nnz: u64,
    modes: Vec<usize>,
    formats: Vec<FormatReport>,
}

/// A format.
#[derive(Debug, Serialize)]
struct FormatReport {
    format: &'static str,
    /// Bytes of the store.
    bytes: u64,
    /// Seconds of packing; `None` for an existing store.
    build_seconds: Option<f64>,
    /// The device that computed.
    backend: Option<&'static str>,
    device: Option<String>,
    /// Each mode alone, and the check of its result.
    modes: Vec<ModeReport>,
    /// A pass over all modes.
    all_seconds: Option<f64>,
    /// Why no GPU was used.
    notes: Vec<String>,
}

/// A mode alone.
#[derive(Debug, Serialize)]
struct ModeReport {
    seconds: f64,
    check: Comparison,
}

/// The inputs that all formats share, and the oracle's results.
struct Subject<'a, T: Real> {
    engine: &'a Engine,
    modes: Vec<usize>,
    rank: usize,
    repeat: u32,
    factors: Vec<Matrix<T>>,
    oracle: Vec<OracleMode>,
    /// Memory of the oracle in bytes.
    held: u64,
}

/// Packs missing stores, computes from each format in turn, and checks.
pub(super) fn run<T: Real>(run: &Run, sys: &Sys, engine: &Engine, progress: &Bar) -> Result<Report> {
    let store = engine.open(&run.store)?;
    let shape = store.manifest().shape.clone();
    let modes = parse_modes(&run.modes, &store)?;
    let rank = match &run.factors.factors {
        Some(dir) => agreed_rank(run.rank.rank, dir, factors_rank(sys, dir, &shape)?)?,
        None => run.rank.rank.unwrap_or(16) as usize,
    };
    // Refuses what cannot be computed, before packing anything.
    let held = oracle::host_bytes(&shape, &modes, rank);
    let mut source = StoreSource::new(store.clone());
    let reading = source.memory(engine.threads()).most;
    plan::<T>(engine, &store, &modes, (rank, run.repeat), (held, reading))?;
    let wanted = run.compare.compare.as_ref().map_or(&[][..], |formats| &formats.0);
    let shelter = engine.shelter(run.compare.keep.as_deref(), &std::env::temp_dir())?;
    let stores = wanted.iter().map(|name| engine.in_format(&store, name, &shelter));
    let stores: Vec<InFormat> = stores.collect::<Result<_>>()?;
    let factors = match &run.factors.factors {
        Some(dir) => load_factors::<T>(sys, dir, &shape)?,
        None => seeded_factors(sys, &shape, rank, run.seed.unwrap_or(0))?,
    };
    let oracle = oracle::mttkrp(&mut source, &factors, &modes)?;
    let subject = Subject { engine, modes, rank, repeat: run.repeat, factors, oracle, held };
    let formats = stores.iter().map(|found| subject.measured(found)).collect::<Result<Vec<_>>>()?;
    progress.end();
    let report = CompareReport {
        store: run.store.clone(),
        op: "mttkrp",
        precision: T::PRECISION,
        rank,
        dims: shape.dims().to_vec(),
        nnz: store.manifest().nnz,
        modes: subject.modes.iter().map(|mode| mode + 1).collect(),
        formats,
    };
    let mut out = Report::new::<Run>(report.text(), &report)?;
    let checks = report.formats.iter().flat_map(|format| &format.modes);
    out.failed = checks.into_iter().any(|mode| !mode.check.holds);
    Ok(out)
}

/// The plan of `repeat` passes over `modes`. `held` bytes stay allocated; `reading` more were allocated before the passes.
fn plan<T: Real>(
    engine: &Engine,
    store: &Store,
    modes: &[usize],
    (rank, repeat): (usize, u32),
    (held, reading): (u64, u64),
) -> Result<crate::engine::ExecutionPlan> {
    let shape = &store.manifest().shape;
    let demand = engine.mttkrp_demand::<T>(store, modes, rank, repeat);
    let demand = demand.checked::<T>(shape, held + reading);
    let (on_cpu, beside_gpu) = (demand.on_cpu + held, demand.beside_gpu + held);
    engine.plan::<T>(store, &Demand { on_cpu, beside_gpu, ..demand })
}

impl<T: Real> Subject<'_, T> {
    /// Computes from a store in one of the formats.
    fn measured(&self, found: &InFormat) -> Result<FormatReport> {
        let mut report = FormatReport {
            format: found.name,
            bytes: found.store.bytes()?,
            build_seconds: found.build_seconds,
            backend: None,
            device: None,
            modes: Vec::with_capacity(self.modes.len()),
            all_seconds: None,
            notes: Vec::new(),
        };
        let store = &found.store;
        for mode in &self.modes {
            let seconds = self.pass(store, std::slice::from_ref(mode), &mut report, true)?;
            debug_assert_eq!(report.modes.last().map(|mode| mode.seconds), Some(seconds));
        }
        if self.modes.len() > 1 {
            report.all_seconds = Some(self.pass(store, &self.modes, &mut report, false)?);
        }
        Ok(report)
    }

    /// The median time of a pass over `modes`, in seconds. Records in `report` where it ran and how results compare; adds an entry per mode
    /// if `lists`.
    fn pass(&self, store: &Store, modes: &[usize], report: &mut FormatReport, lists: bool) -> Result<f64> {
        let Self { engine, rank, repeat, held, .. } = *self;
        let plan = plan::<T>(engine, store, modes, (rank, repeat), (held, 0))?;
        let head = ReportHead::new::<T>(store, &plan);
        (report.backend, report.device, report.notes) = (Some(head.backend), Some(head.place), head.notes);
        let mut session = MttkrpSession::new(engine, store, modes.to_vec(), rank, plan)?;
        let views: Vec<FactorView<'_, T>> = self.factors.iter().map(Into::into).collect();
        let results = session.repeat(&views, repeat)?;
        let seconds = median(session.passes()).seconds;
        let chain = chain(&session.into_plan());
        for (mode, result) in &results {
            let oracle = self.oracle.iter().find(|oracle| oracle.mode() == *mode);
            let oracle = oracle.ok_or_else(|| Error::request("the oracle lacks a mode"))?;
            let check = oracle.compare(result, store.dims().len(), chain);
            match report.modes.iter_mut().find(|of| of.check.mode == check.mode) {
                Some(of) if !check.holds => of.check = check,
                None if lists => report.modes.push(ModeReport { seconds, check }),
                _ => {}
            }
        }
        Ok(seconds)
    }
}

impl CompareReport {
    fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let heads = ["format", "bytes a nonzero", "packed in"].map(str::to_owned);
        let modes = self.modes.iter().map(|mode| format!("mode {mode}"));
        table.set_header(
            heads.into_iter().chain(modes).chain(["all", "error of its bound", ""].map(str::to_owned)),
        );
        let mut notes: Vec<String> = Vec::new();
        for format in &self.formats {
            let note = |note: &String| format!("  note: {}: {note}\n", format.format);
            notes.extend(format.notes.iter().map(note));
            let or_dash = |x: Option<String>| x.unwrap_or_else(|| "-".into());
            let each = format!("{:.3}", format.bytes as f64 / self.nnz as f64);
            let built = format.build_seconds.map(|s| format!("{s:.2} s"));
            let ms = |s: f64| format!("{:.3} ms", 1e3 * s);
            let seconds = self
                .modes
                .iter()
                .enumerate()
                .map(|(i, _)| or_dash(format.modes.get(i).map(|m| ms(m.seconds))));
            let worst = format.modes.iter().map(|mode| mode.check.worst).reduce(f64::max);
            let holds = format.modes.iter().all(|mode| mode.check.holds);
            let verdict = match worst {
                Some(_) if holds => "ok",
                Some(_) => "DIFFERS",
                None => "",
            };
            let row = [format.format.to_owned(), each, or_dash(built)].into_iter().chain(seconds);
            let all =
                [or_dash(format.all_seconds.map(ms)), or_dash(worst.map(share_of_bound)), verdict.to_owned()];
            table.add_row(row.chain(all));
        }
        let device = self.formats.iter().find_map(|format| format.device.clone()).unwrap_or_default();
        let (store, nnz, precision) = (self.store.display(), nonzeros(self.nnz), self.precision.name());
        let what = format!("mttkrp, rank {}, {precision}, on {device}", self.rank);
        format!("{store}: {nnz}, {what}; checked against the oracle\n{table}\n{}", notes.concat())
    }
}
