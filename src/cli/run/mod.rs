//! `blco-run`: MTTKRP. Each other operation has its own file.

mod check;
mod compare;
mod mttkrp_report;
mod numbers;
mod ttm;
mod ttmc;
mod ttv;
mod ttv_report;

use crate::cli::engine::EngineArgs;
use crate::cli::forecast::{self, ForecastArgs};
use crate::cli::outputs::{Outputs, refuse_dash_for_directory, refuse_standard_output};
use crate::cli::pack::TextArgs;
use crate::cli::progress::Bar;
use crate::cli::report::modes_text;
use crate::cli::{Common, Program, Report, agreed_rank, one_of};
use crate::coo::Source;
use crate::dense::{
    FactorView, Matrix, Precision, Real, factors_rank, load_factors, mode_file, seeded_factors,
};
use crate::engine::{Engine, MttkrpSession, chain};
use crate::error::{Error, Result};
use crate::op::mttkrp::ModeMatrix;
use crate::op::oracle::{self, Comparison, OracleMode};
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::Span;
use crate::sys::{File, Sys};
use crate::table::parse_names;
use check::Checked;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Id, Parser};
use compare::CompareArgs;
use mttkrp_report::{RunReport, plan_text, text};
use rayon::prelude::*;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Computes an operation on a store, one chunk at a time
///
/// mttkrp: the matricized tensor times Khatri-Rao product, for every mode in one pass over the store.
/// ttv: the tensor times a vector along one or more modes. The result is sparse; along all modes it is a number.
/// ttm: the tensor times a matrix along one mode. The result is semi-sparse, one row per fiber.
/// ttmc: the tensor times a matrix along all modes but one, as in Tucker decompositions.
/// norm: the Frobenius norm. inner: the inner product with another store.
///
/// Without --factors, --vector or --matrix, seeded random numbers are used. On the CPU, results have the same bits for any number of
/// threads and any chunk size. ttm has the same bits on a GPU, which reads the store in several passes if it does not hold all nonzeros. norm
/// and inner run on the CPU.
#[derive(Debug, Parser)]
#[command(
    name = "blco-run",
    version,
    after_help = "Examples:\n  blco-run movies.blco --modes all                     # rank 16, seeded factors, a report\n  \
                  blco-run movies.blco --modes 1,3 --factors A --output M\n  \
                  blco-run movies.blco --modes all --check movies.tns  # compare with a naive loop\n  \
                  blco-run movies.blco --modes all --rank 64 --plan    # memory and bytes, without running\n  \
                  blco-run movies.blco --plan --nodes 16 --devices-per-node 8 --link 50GB/s  # seconds on other machines\n  \
                  blco-run movies-3.hocfs --op ttv --modes 2 --vector x.npy --output Y\n  \
                  blco-run movies.blco --op ttv --modes 1 --output - | head\n  \
                  blco-run movies.blco --op ttv --modes 1,3 --vector x.npy --vector z.npy --output Y\n  \
                  blco-run movies.blco --op ttm --modes 2 --matrix U.npy --output Y\n  \
                  blco-run movies.blco --op ttmc --modes all --ranks 8,4,2 --output Y\n  \
                  blco-run movies.blco --op inner --with other.hocfs\n  \
                  blco-run movies.blco --compare blco,csf,mmcsf --repeat 5"
)]
pub struct Run {
    /// The store
    store: PathBuf,
    /// The operation
    #[arg(long, default_value = "mttkrp", value_parser = one_of(OPERATIONS))]
    op: OpArg,
    /// Modes to compute: all, or a list of names or of numbers from 1, such as 1,3. ttv and ttm require a list
    #[arg(long, default_value = "all")]
    modes: String,
    /// Seed of random factors, matrices and vectors [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Write results to this directory: mode-1.npy, mode-2.npy, …; for ttm coords.npy and values.npy; for ttv result.tns. With -, ttv
    /// writes text to standard output
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace existing results and trace files
    #[arg(long)]
    force: bool,
    /// Run the computation N times, to measure it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Write a timeline of the last pass to this file, as JSON for tools/timeline.py
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    trace: Option<PathBuf>,
    /// Print the memory, bytes and passes that the run needs, and exit
    #[arg(long)]
    plan: bool,
    /// Compare the results with those of a naive loop over this coordinate text. The exit status is 1 if they differ
    #[arg(long, value_name = "INPUT", conflicts_with = "plan")]
    check: Option<PathBuf>,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    common: Common,
    // Headings apply to everything below, so these groups come last.
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    factors: FactorsArgs,
    #[command(flatten)]
    ttv: TtvArgs,
    #[command(flatten)]
    ttm: TtmArgs,
    #[command(flatten)]
    spill: SpillArgs,
    #[command(flatten)]
    ttmc: TtmcArgs,
    #[command(flatten)]
    inner: InnerArgs,
    #[command(flatten)]
    compare: CompareArgs,
    #[command(flatten)]
    forecast: ForecastArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpArg {
    Mttkrp,
    Ttv,
    Ttm,
    Ttmc,
    Norm,
    Inner,
}

/// The values of `--op`.
const OPERATIONS: [(&str, OpArg); 6] = [
    ("mttkrp", OpArg::Mttkrp),
    ("ttv", OpArg::Ttv),
    ("ttm", OpArg::Ttm),
    ("ttmc", OpArg::Ttmc),
    ("norm", OpArg::Norm),
    ("inner", OpArg::Inner),
];

/// Options of some operations, with the operations.
fn options_of_some() -> [(Option<Id>, &'static [OpArg]); 9] {
    [
        (ForecastArgs::group_id(), &[OpArg::Mttkrp]),
        (CompareArgs::group_id(), &[OpArg::Mttkrp]),
        (RankArgs::group_id(), &[OpArg::Mttkrp, OpArg::Ttm]),
        (FactorsArgs::group_id(), &[OpArg::Mttkrp, OpArg::Ttmc]),
        (TtvArgs::group_id(), &[OpArg::Ttv]),
        (TtmArgs::group_id(), &[OpArg::Ttm]),
        (SpillArgs::group_id(), &[OpArg::Ttv, OpArg::Ttm]),
        (TtmcArgs::group_id(), &[OpArg::Ttmc]),
        (InnerArgs::group_id(), &[OpArg::Inner]),
    ]
}

/// Common options that these operations do not have.
const NOT_TAKEN: [(OpArg, &[&str]); 5] = [
    (OpArg::Ttv, &["devices", "divide"]),
    (OpArg::Ttm, &["repeat", "devices", "divide"]),
    (OpArg::Ttmc, &["devices", "divide"]),
    (OpArg::Norm, &["modes", "seed", "output", "repeat", "trace", "check", "devices", "divide"]),
    (OpArg::Inner, &["modes", "seed", "output", "repeat", "trace", "check", "devices", "divide"]),
];

/// Options of MTTKRP and TTM.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op mttkrp and ttm")]
struct RankArgs {
    /// Columns of the factors or the matrix [default: 16, or as in --factors or --matrix]
    #[arg(short, long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    rank: Option<u32>,
}

/// Options of MTTKRP and TTMc.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op mttkrp and ttmc")]
struct FactorsArgs {
    /// Read the factors mode-1.npy, mode-2.npy, … from this directory: f8 or f4, dims x rank. For ttmc, ranks may differ
    #[arg(long, value_name = "DIR", conflicts_with = "seed")]
    factors: Option<PathBuf>,
}

/// Options of TTV.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op ttv")]
struct TtvArgs {
    /// Read the vector from this file: f8 or f4, one number per index. For several modes, repeat the option in the order of --modes
    #[arg(long, value_name = "FILE.npy", conflicts_with = "seed")]
    vector: Vec<PathBuf>,
}

/// Options of TTM.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op ttm")]
struct TtmArgs {
    /// Read the matrix from this file: f8 or f4, one row per index of the mode
    #[arg(long, value_name = "FILE.npy", conflicts_with = "seed")]
    matrix: Option<PathBuf>,
}

/// Options of TTV and TTM.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op ttv and ttm")]
struct SpillArgs {
    /// Directory for temporary files [default: beside the results, else the system's]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
}

/// Options of TTMc.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op ttmc")]
struct TtmcArgs {
    /// Columns of the random factors, one number per mode [default: 8 for each]
    #[arg(long, value_name = "R,R,…", conflicts_with = "factors", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: Vec<u32>,
}

/// Options of the inner product.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --op inner")]
struct InnerArgs {
    /// The other store, in any format, with the same dims
    #[arg(long, value_name = "STORE")]
    with: Option<PathBuf>,
}

/// The modes of `store`, from 0, that `text` names or numbers.
fn parse_modes(text: &str, store: &Store) -> Result<Vec<usize>> {
    let order = store.dims().len();
    if text == "all" {
        return Ok((0..order).collect());
    }
    let mut modes = Vec::new();
    for part in parse_names(text) {
        let named = store.modes_info().and_then(|info| info.mode(&part));
        match named.map_or_else(|| part.trim().parse(), |mode| Ok(mode + 1)) {
            Ok(mode) if (1..=order).contains(&mode) && !modes.contains(&(mode - 1)) => modes.push(mode - 1),
            Ok(mode) if (1..=order).contains(&mode) => {
                return Err(Error::request(format!("--modes {text}: names mode {mode} twice")));
            }
            _ => {
                let what =
                    format!("--modes {text}: {part:?} is not a mode of this store; give all, or modes");
                let names: Vec<&str> = (0..order).filter_map(|mode| store.mode_name(mode)).collect();
                let or_names =
                    if names.is_empty() { String::new() } else { format!(", or names: {}", names.join(",")) };
                return Err(Error::request(format!("{what} from 1 to {order} such as 1,{order}{or_names}")));
            }
        }
    }
    Ok(modes)
}

impl Program for Run {
    fn common(&self) -> &Common {
        &self.common
    }

    /// Refuses options that the operation does not have, and checks that modes are given if it needs them.
    fn check(matches: &ArgMatches) -> Result<()> {
        let Some(&(name, op)) = OPERATIONS.iter().find(|(_, op)| matches.get_one("op") == Some(op)) else {
            return Ok(());
        };
        let is_given = |option: &str| matches.value_source(option) == Some(ValueSource::CommandLine);
        let of_others = options_of_some().into_iter().filter(|(_, takes)| !takes.contains(&op));
        let mut groups = of_others.filter_map(|(group, _)| group);
        let of_group = groups.find_map(|group| matches.get_one::<Id>(group.as_str())).map(Id::as_str);
        let not_taken = NOT_TAKEN.iter().filter(|(of, _)| *of == op).flat_map(|(_, options)| *options);
        let of_all = not_taken.copied().find(|option| is_given(option));
        if let Some(option) = of_group.or(of_all) {
            let option = option.replace('_', "-");
            return Err(Error::request(format!("--{option} is not an option of --op {name}")));
        }
        if matches!(op, OpArg::Ttv | OpArg::Ttm) && !is_given("modes") {
            let modes = if op == OpArg::Ttv { "modes: give them" } else { "one mode: give it" };
            return Err(Error::request(format!(
                "--op {name} goes along {modes} with --modes, such as --modes 1"
            )));
        }
        if op == OpArg::Inner && !is_given("with") {
            return Err(Error::request("--op inner: name the other store with --with"));
        }
        Ok(())
    }

    fn serve(&self, sys: &Sys) -> Result<()> {
        if self.op != OpArg::Mttkrp || self.compare.is_given() {
            return Err(Error::request(
                "several processes compute --op mttkrp alone; run one process for this",
            ));
        }
        self.engine.engine(sys, self.common, &Bar::new(true))?.serve(&self.store)
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        refuse_standard_output("--trace", self.trace.as_deref())?;
        if let (None, Some(option)) = (&self.check, self.text.given()) {
            let what = "describes coordinate text, which only --check reads; leave it out, or give --check";
            return Err(Error::request(format!("{option} {what}")));
        }
        let progress = Bar::new(self.common.quiet || self.common.json);
        let engine = self.engine.engine(sys, self.common, &progress)?;
        engine.install(|| match (self.op, self.engine.precision) {
            (OpArg::Mttkrp, precision) if self.compare.is_given() => match precision {
                Precision::F64 => compare::run::<f64>(self, sys, &engine, &progress),
                Precision::F32 => compare::run::<f32>(self, sys, &engine, &progress),
            },
            (OpArg::Mttkrp, Precision::F64) => self.mttkrp::<f64>(sys, &engine, &progress),
            (OpArg::Mttkrp, Precision::F32) => self.mttkrp::<f32>(sys, &engine, &progress),
            (OpArg::Ttv, Precision::F64) => ttv::run::<f64>(self, sys, &engine, &progress),
            (OpArg::Ttv, Precision::F32) => ttv::run::<f32>(self, sys, &engine, &progress),
            (OpArg::Ttm, Precision::F64) => ttm::run::<f64>(self, sys, &engine, &progress),
            (OpArg::Ttm, Precision::F32) => ttm::run::<f32>(self, sys, &engine, &progress),
            (OpArg::Ttmc, Precision::F64) => ttmc::run::<f64>(self, sys, &engine, &progress),
            (OpArg::Ttmc, Precision::F32) => ttmc::run::<f32>(self, sys, &engine, &progress),
            (OpArg::Norm, _) => numbers::norm(self, &engine, &progress),
            (OpArg::Inner, _) => numbers::inner(self, &engine, &progress),
        })
    }
}

impl Run {
    /// Opens, plans, streams, checks, writes.
    fn mttkrp<T: Real>(&self, sys: &Sys, engine: &Engine, progress: &Bar) -> Result<Report> {
        refuse_dash_for_directory("--output", self.output.as_deref(), "results are files")?;
        let store = engine.open_together(&self.store)?;
        let shape = store.manifest().shape.clone();
        let modes = parse_modes(&self.modes, &store)?;
        let rank = match &self.factors.factors {
            Some(dir) => agreed_rank(self.rank.rank, dir, factors_rank(sys, dir, &shape)?)?,
            None => self.rank.rank.unwrap_or(16) as usize,
        };
        let mut to_check = self.to_check(sys)?;
        let mut demand = engine.mttkrp_demand::<T>(&store, &modes, rank, self.repeat);
        if let Some(text) = &mut to_check {
            demand =
                demand.checked::<T>(&shape, oracle::host_bytes(&shape, &modes, rank) + text.hold(engine));
        }
        if let Some(machines) = self.forecast.machines(self.engine.backend)? {
            let numbers: Vec<usize> = modes.iter().map(|mode| mode + 1).collect();
            let what = ("mttkrp", &*format!("mttkrp of {}, rank {rank}", modes_text(&numbers)));
            return forecast::report::<Self, T>(engine, &store, &demand, &machines, what);
        }
        let plan = engine.plan::<T>(&store, &demand)?;
        self.engine.check_kernel("MTTKRP", plan.is_on_gpu())?;
        let mut report = RunReport::new::<T>(engine, &store, &modes, rank, &plan);
        if self.plan {
            return Report::new::<Self>(plan_text(&report), &report);
        }
        let names = modes.iter().map(|&m| mode_file(m));
        let outputs = self.outputs(sys, self.output.as_deref(), names)?;
        let factors = match &self.factors.factors {
            Some(dir) => load_factors::<T>(sys, dir, &shape)?,
            None => seeded_factors(sys, &shape, rank, self.seed.unwrap_or(0))?,
        };
        let mut session = MttkrpSession::new(engine, &store, modes, rank, plan)?;
        let views: Vec<FactorView<'_, T>> = factors.iter().map(Into::into).collect();
        let results = session.repeat(&views, self.repeat)?;
        progress.end();
        report.passes = session.passes().to_vec();
        report.devices_pass = session.devices_pass().cloned();
        report.kernels = session.kernels();
        let (spans, used) = (session.spans().to_vec(), session.into_plan());
        let chain = chain(&used);
        report.head.used(used);
        report.head.notes.extend(beyond(&results));
        if let Some(source) = &mut to_check {
            let check = Self::compare(source, &shape, &factors, &results, chain)?;
            if check.iter().any(|c| !c.holds) {
                report.head.notes.extend(source.differs(store.manifest()));
            }
            report.check = Some(check);
        }
        let write = |i: usize, file: &File| results[i].1.write(file);
        outputs.publish(write, |trace| write_trace(trace, &spans))?;
        let mut out = Report::new::<Self>(text(&report), &report)?;
        out.failed = report.check.iter().flatten().any(|c| !c.holds);
        Ok(out)
    }

    /// The text of --check.
    fn to_check(&self, sys: &Sys) -> Result<Option<Checked>> {
        self.check.as_ref().map(|input| Checked::open(sys, input, self.text.options())).transpose()
    }

    /// Prepares to write files of these names in `dir`, and the trace.
    fn outputs(&self, sys: &Sys, dir: Option<&Path>, names: impl Iterator<Item = String>) -> Result<Outputs> {
        Outputs::create(sys, dir, names, self.trace.as_deref(), self.force)
    }

    /// Compares with a naive loop over `source`.
    fn compare<T: Real>(
        source: &mut dyn Source,
        shape: &Shape,
        factors: &[Matrix<T>],
        results: &[ModeMatrix<T>],
        chain: u32,
    ) -> Result<Vec<Comparison>> {
        let modes: Vec<usize> = results.iter().map(|(mode, _)| *mode).collect();
        let oracle = oracle::mttkrp(source, factors, &modes)?;
        let compare =
            |(o, (_, result)): (&OracleMode, &ModeMatrix<T>)| o.compare(result, shape.order(), chain);
        Ok(oracle.iter().zip(results).map(compare).collect())
    }
}

/// A note if results are not finite.
fn beyond<T: Real>(results: &[ModeMatrix<T>]) -> Option<String> {
    let is_beyond = |result: &&ModeMatrix<T>| result.1.data().par_iter().any(|x| !x.widen().is_finite());
    let modes: Vec<String> =
        results.iter().filter(is_beyond).map(|(mode, _)| (mode + 1).to_string()).collect();
    let way = match T::PRECISION {
        Precision::F32 => "take --precision f64",
        Precision::F64 => "take smaller factors or values",
    };
    let what = if modes.len() == 1 { "mode" } else { "modes" };
    let (modes, name) = (modes.join(", "), T::PRECISION.name());
    let note = || format!("results of {what} {modes} overflow {name}; {way}");
    (!modes.is_empty()).then(note)
}

/// Writes the timeline.
fn write_trace(file: &File, spans: &[Span]) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(file.path(), "write")(e);
    let mut out = std::io::BufWriter::new(file);
    serde_json::to_writer(&mut out, spans).map_err(|e| failed(e.into()))?;
    // Dropping the writer would lose its error.
    out.flush().map_err(failed)
}
