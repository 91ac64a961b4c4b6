//! `blco-cpd`.

use super::components::{components_csv, shown_modes};
use super::cpd_command::CheckpointCommand;
use super::cpd_ranks::{self, Ranks, decompose_each};
use super::cpd_report::{self, CpdReport};
use super::engine::{EngineArgs, host_engine};
use super::forecast::{self, ForecastArgs};
use super::outputs::{Outputs, ends_in, refuse_dash_for_directory, refuse_standard_output};
use super::progress::Bar;
use super::{Common, Program, Report, agreed_rank, machine, options_of};
use crate::decomp::checkpoint::{Checkpointer, Identity};
use crate::decomp::score::{self, Pair, Score, score};
use crate::decomp::{CpWatch, CpWatchers, Init, Iteration, LAMBDA_FILE, Model, Problem};
use crate::dense::{Precision, Real, factors_rank, load_factors, mode_file};
use crate::engine::{Cp, Engine};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::{program_bytes, too_little};
use crate::sys::{File, Sys};
use clap::{Args, Parser};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The help of --kernel; other operations have other kernels.
const KERNEL: &str = "GPU kernel, for measurements: tiles, lanes, columns and batch, as in t4l16c2b4, or t4l16c1b4s for split columns";

/// The message if neither a store nor results are named.
const NOTHING_ASKED: &str =
    "name a store to decompose, or compare two results with --score DIR1 DIR2; --help says more";

/// Decomposes a store: CP by alternating least squares
///
/// Approximates the tensor by R components. Each component has a weight (lambda) and, for every mode, a column of length one with a
/// number per row. Rows that have large numbers in the same component belong together.
///
/// An iteration makes one pass over the store per mode. On the CPU, results have the same bits for any number of threads and any chunk
/// size, and after --resume; on a GPU with --deterministic.
#[derive(Debug, Parser)]
#[command(
    mut_arg("kernel", |a| a.help(KERNEL).long_help(KERNEL)),
    name = "blco-cpd",
    version,
    after_help = "Examples:\n  blco-cpd movies.blco                                  # movies.cp: factors, components.csv, report.html\n  \
                  blco-cpd movies.blco --rank 16 --output A             # the same in A\n  \
                  blco-cpd movies.blco --rank 16 --starts 5 --nonneg\n  \
                  blco-cpd movies.blco --max-iters 200 --checkpoint C   # if interrupted: blco-cpd --resume C\n  \
                  blco-cpd movies.blco --ranks 2..12                    # which rank?\n  \
                  blco-cpd movies.blco --factors A --tol 1e-6           # starts from A\n  \
                  blco-cpd movies.blco --no-output --report movies.html # the page alone\n  \
                  blco-cpd --score A B                                  # how well two results agree"
)]
pub struct Cpd {
    /// The store
    #[arg(conflicts_with = "score")]
    store: Option<PathBuf>,
    /// Print the factor match score of two results instead: 1 if all components agree
    #[arg(long, num_args = 2, value_names = ["DIR1", "DIR2"], conflicts_with_all = options_of::<CpArgs>())]
    score: Option<Vec<PathBuf>>,
    #[command(flatten)]
    common: Common,
    // These have headings of their own, which apply to everything below.
    #[command(flatten)]
    cp: CpArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What only a decomposition takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of a decomposition")]
struct CpArgs {
    /// Number of components [default: 16, or as in --factors]
    #[arg(short, long, value_name = "R", value_parser = rank)]
    rank: Option<u32>,
    /// Decompose with each rank from A to B, compare the ranks on the page, and keep the largest whose stability is at least 0.9
    #[arg(long, value_name = "A..B", value_parser = cpd_ranks::ranks, conflicts_with_all = ["rank", "factors", "checkpoint", "resume"])]
    ranks: Option<Ranks>,
    /// Start from the factors mode-1.npy, mode-2.npy, … in this directory: f8 or f4, dims x rank
    #[arg(long, value_name = "DIR", conflicts_with_all = ["seed", "starts"])]
    factors: Option<PathBuf>,
    /// Seed of the random initial factors [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Start N times, with consecutive seeds, and keep the best fit [default: 1, or 3 with --ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    starts: Option<u32>,
    /// Stop after N iterations
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    max_iters: u32,
    /// Stop when the fit changes by less than T; 0 runs all iterations
    #[arg(long, value_name = "T", default_value = "1e-5", value_parser = not_negative)]
    tol: f64,
    /// Ridge term: add X to the diagonal of the Hadamard product of the Gram matrices
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = not_negative)]
    ridge: f64,
    /// Keep factors nonnegative (HALS)
    #[arg(long)]
    nonneg: bool,
    /// Write the result to this directory: report.html, components.csv, report.json, lambda.npy, mode-1.npy, … [default: the store's
    /// name with .cp, in the working directory]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write no result
    #[arg(long, conflicts_with = "output")]
    no_output: bool,
    /// Labels listed per component and mode, in components.csv and on the page
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    top: u32,
    /// Also write the page to this file
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    report: Option<PathBuf>,
    /// Replace existing results and pages
    #[arg(long)]
    force: bool,
    /// Keep a checkpoint in this directory, for --resume
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Iterations between checkpoints
    #[arg(long, value_name = "N", default_value_t = 10, requires = "checkpoint", value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Continue from the checkpoint in DIR, with the options of the command that made it. Options given beside it override these:
    /// --max-iters, --tol and where to compute may differ
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "absent, alone, with a directory")]
    resume: Option<Option<PathBuf>>,
    /// Print the memory, bytes and passes that the run needs, and exit
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    forecast: ForecastArgs,
}

/// A note if the model must be nonnegative and the tensor has negative values.
fn negative_values(nonneg: bool, smallest: f64) -> Option<String> {
    let what = "a model without negative numbers cannot fit those; leave out --nonneg, or shift the values";
    (nonneg && smallest < 0.0).then(|| format!("the tensor has negative values, down to {smallest}: {what}"))
}

/// The largest rank of a decomposition.
const RANK_MAX: u32 = 1 << 14;

fn rank(text: &str) -> std::result::Result<u32, String> {
    if text.contains("..") {
        return Err(format!("give one rank, or compare several with --ranks {text}"));
    }
    let rank = text.parse().ok().filter(|rank| (1..=RANK_MAX).contains(rank));
    rank.ok_or_else(|| format!("give a whole number from 1 to {RANK_MAX}"))
}

fn not_negative(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x),
        _ => Err("give a number that is not negative, such as 1e-5".into()),
    }
}

impl Program for Cpd {
    fn common(&self) -> &Common {
        &self.common
    }

    fn serve(&self, sys: &Sys) -> Result<()> {
        let store = self.store.as_ref();
        let store = store.ok_or_else(|| Error::request("several processes decompose a store: name it"))?;
        self.engine.engine(sys, self.common, &Bar::new(true))?.serve(store)
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        refuse_standard_output("--report", self.cp.report.as_deref())?;
        refuse_dash_for_directory("--output", self.cp.output.as_deref(), "results are files")?;
        refuse_dash_for_directory("--checkpoint", self.cp.checkpoint.as_deref(), "checkpoints are files")?;
        if let (None, Some(Some(dir))) = (&self.store, &self.cp.resume) {
            let command = CheckpointCommand::read(sys, dir)?;
            let dir = std::path::absolute(dir).map_err(Error::io(dir, "find"))?;
            let cpd: Self = command.again(&dir)?;
            return cpd.run_command(sys, Some(command));
        }
        self.run_command(sys, None)
    }
}

impl Cpd {
    /// Runs the command; with `recorded`, continues from the checkpoint of that command.
    fn run_command(&self, sys: &Sys, recorded: Option<CheckpointCommand>) -> Result<Report> {
        let progress = Bar::new(self.common.quiet || self.common.json);
        let Some(store) = &self.store else {
            let dirs = self.score.as_ref().ok_or_else(|| Error::request(NOTHING_ASKED))?;
            let engine = host_engine(sys, self.common, self.engine.memory, &progress)?;
            return engine.install(|| compare(sys, dirs, self.engine.memory, engine.threads()));
        };
        let engine = self.engine.engine(sys, self.common, &progress)?;
        engine.install(|| match self.engine.precision {
            Precision::F64 => self.decompose::<f64>(sys, store, &engine, &progress, recorded),
            Precision::F32 => self.decompose::<f32>(sys, store, &engine, &progress, recorded),
        })
    }

    /// The directory of checkpoints, and whether to continue from it.
    fn checkpoint(&self) -> Result<Option<(&Path, bool)>> {
        let (dir, resume) = (self.cp.checkpoint.as_deref(), self.cp.resume.as_ref());
        match (dir, resume.and_then(Option::as_deref)) {
            (Some(dir), Some(other)) if dir != other => {
                let what = "--checkpoint and --resume name different directories; leave one out";
                Err(Error::request(what))
            }
            (Some(dir), _) => Ok(Some((dir, resume.is_some()))),
            (None, Some(dir)) => Ok(Some((dir, true))),
            (None, None) if resume.is_some() => {
                Err(Error::request("--resume: name the checkpoint's directory, as in blco-cpd --resume DIR"))
            }
            (None, None) => Ok(None),
        }
    }

    /// The number of starts.
    fn starts(&self) -> u32 {
        self.cp.starts.unwrap_or(if self.cp.ranks.is_some() { cpd_ranks::STARTS } else { 1 })
    }

    /// Opens, plans, iterates, writes.
    fn decompose<T: Real>(
        &self,
        sys: &Sys,
        path: &Path,
        engine: &Engine,
        progress: &Bar,
        recorded: Option<CheckpointCommand>,
    ) -> Result<Report> {
        let args = &self.cp;
        let kept_at = self.checkpoint()?;
        let store = engine.open_together(path)?;
        Problem::of(store.manifest())?;
        let shape = store.manifest().shape.clone();
        let rank = match &args.factors {
            Some(dir) => agreed_rank(args.rank, dir, factors_rank(sys, dir, &shape)?)?,
            None => args.ranks.map_or(args.rank.unwrap_or(16), |ranks| ranks.1) as usize,
        };
        let seed = args.seed.unwrap_or(0);
        let cp = Cp::rank(rank).ridge(args.ridge).nonneg(args.nonneg).tol(args.tol);
        let cp = cp.max_iters(args.max_iters).starts(seed, self.starts());
        // With several ranks, the model that is kept is in memory beside those of the starts.
        let roomy = cp.starts(seed, self.starts().saturating_add(args.ranks.is_some().into()));
        if let Some(machines) = args.forecast.machines(self.engine.backend)? {
            let modes: Vec<usize> = (0..shape.order()).collect();
            let demand = engine.cp_demand::<T>(&store, &roomy, &modes)?;
            let what = ("cp", &*format!("an iteration of CP of rank {rank}"));
            return forecast::report::<Self, T>(engine, &store, &demand, &machines, what);
        }
        let plan = engine.plan_cp_als::<T>(&store, &roomy)?;
        self.engine.check_kernel("MTTKRP", plan.is_on_gpu())?;
        let mut report = CpdReport::new::<T>(&store, &cp, &plan);
        let unfit = negative_values(args.nonneg, store.manifest().value_min);
        report.head.notes.extend(unfit.clone());
        if args.plan {
            return Report::new::<Self>(cpd_report::plan_text(&report), &report);
        }
        let files = [LAMBDA_FILE, "report.json", "components.csv", "report.html"];
        let names = (0..shape.order()).map(mode_file).chain(files.map(str::to_owned));
        let default = default_output(path);
        let output = if args.no_output { None } else { Some(args.output.as_deref().unwrap_or(&default)) };
        let page = args.report.as_deref();
        let outputs = Outputs::create(sys, output, names, page, args.force)?;
        let identity = self.identity::<T>(&report);
        let open = |(dir, resume)| Checkpointer::open(sys, dir, args.every as usize, identity, resume);
        let checkpoint = kept_at.map(open).transpose()?;
        if let Some((dir, _)) = kept_at {
            let command = recorded.or_else(|| CheckpointCommand::here(dir));
            command.iter().try_for_each(|command| command.write(sys, dir))?;
            super::continue_with(dir, command.is_some());
        }
        let init = match &args.factors {
            Some(dir) => Init::Given(load_factors::<T>(sys, dir, &shape)?),
            None => Init::Seeded { seed, starts: self.starts() },
        };
        let mut session = engine.prepare_cp_als::<T>(&store, &roomy, plan)?;
        let outcome = if let Some(ranks) = args.ranks {
            let decompose = |rank| {
                let watch = |at: &CpWatch<'_>| self.show(progress, &store, Some(rank), at);
                let init = Init::Seeded { seed, starts: self.starts() };
                let ended = |start, last: &Iteration| Ok(self.ended(progress, Some(rank), start, last));
                let watchers = CpWatchers { progress: &watch, iteration: &ended };
                session.decompose(&cp.with_rank(rank), init, None, watchers)
            };
            let (ranks, rank, outcome) = decompose_each(ranks, decompose)?;
            report.settings.rank = rank;
            report.ranks = Some(ranks);
            outcome
        } else {
            let watch = |at: &CpWatch<'_>| self.show(progress, &store, None, at);
            let ended = |start, last: &Iteration| Ok(self.ended(progress, None, start, last));
            session.decompose(&cp, init, checkpoint, CpWatchers { progress: &watch, iteration: &ended })?
        };
        progress.end();
        let (used, kernels) = session.into_plan();
        report.head.used(used);
        report.head.notes.extend(unfit);
        report.kernels = kernels;
        report.fill(&outcome);
        let mut out = Report::new::<Self>(cpd_report::text(&report), &report)?;
        let modes = shown_modes(&store, &outcome.model, args.top as usize)?;
        let page =
            |file: &File| file.write_all_at(cpd_report::page(&report, &outcome, &modes)?.as_bytes(), 0);
        let order = shape.order();
        let write = |i: usize, file: &File| match (outcome.model.factors.get(i), i.saturating_sub(order)) {
            (Some(factor), _) => factor.write(file),
            (_, 0) => outcome.model.lambda.write_vector(file),
            (_, 1) => write_json(file, &out.json),
            (_, 2) => file.write_all_at(&components_csv(&outcome.model, &modes), 0),
            _ => page(file),
        };
        outputs.publish(write, page)?;
        if let Some(output) = output {
            let line = format!("  {}: components.csv, report.html, factors\n", output.display());
            out.text.push_str(&line);
        }
        Ok(out)
    }

    /// What must agree with a checkpoint to continue from it.
    fn identity<T: Real>(&self, report: &CpdReport) -> Identity {
        let cp = &self.cp;
        let start = match &cp.factors {
            Some(_) => "given factors".to_owned(),
            None => format!("seed {} with {} starts", cp.seed.unwrap_or(0), self.starts()),
        };
        let precision = T::PRECISION.name().to_owned();
        Identity::from([
            ("store digest".into(), report.head.digest.clone()),
            ("precision".into(), precision),
            ("rank".into(), report.settings.rank.to_string()),
            ("ridge".into(), format!("{:e}", cp.ridge)),
            ("sign".into(), if cp.nonneg { "--nonneg" } else { "any" }.into()),
            ("start".into(), start),
        ])
    }

    /// Shows where a decomposition is, on one bar for the whole run.
    fn show(&self, progress: &Bar, store: &Store, rank: Option<usize>, at: &CpWatch<'_>) {
        let (nnz, order) = (store.manifest().nnz, store.manifest().shape.order() as u64);
        let part = (at.mode as u64 * nnz + at.nnz) as f64 / (order * nnz) as f64;
        self.reach(progress, rank, at.start, at.last, part);
    }

    /// Keeps a line about an iteration that has ended.
    fn ended(&self, progress: &Bar, rank: Option<usize>, start: u32, last: &Iteration) -> ControlFlow<()> {
        let Iteration { iteration, fit, change, seconds, .. } = last;
        progress.iterated(|| {
            let which = self.which(rank, start);
            format!("{which}iteration {iteration}: fit {fit:.6}, change {change:.1e}, {seconds:.2} s")
        });
        self.reach(progress, rank, start, Some(last), 0.0);
        ControlFlow::Continue(())
    }

    /// Which of several ranks and starts.
    fn which(&self, rank: Option<usize>, start: u32) -> String {
        let rank = rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
        let starts = self.starts();
        if starts > 1 { format!("{rank}start {} of {starts}, ", start + 1) } else { rank }
    }

    /// Shows that of the iteration after `last` this part has been made. The bar is full when all iterations that are allowed have been
    /// made; at the next start it leaps over those that were not needed.
    fn reach(&self, progress: &Bar, rank: Option<usize>, start: u32, last: Option<&Iteration>, part: f64) {
        let (ranks, max) = (self.cp.ranks.unwrap_or(Ranks(0, 0)), f64::from(self.cp.max_iters));
        let starts = f64::from(self.starts());
        let before = (rank.unwrap_or(0) as f64 - f64::from(ranks.0)) * starts + f64::from(start);
        let iteration = last.map_or(0, |last| last.iteration);
        let made = before * max + iteration as f64;
        let allowed = (f64::from(ranks.1 - ranks.0) + 1.0) * starts * max;
        let next = (iteration + 1).min(self.cp.max_iters as usize);
        let mut what = format!("{}iteration {next} of {}", self.which(rank, start), self.cp.max_iters);
        if let Some(last) = last {
            let left = Duration::try_from_secs_f64(last.seconds * (allowed - made)).unwrap_or(Duration::MAX);
            let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
            what = format!("{what}, fit {:.6}, change {:.1e}, {left} left at most", last.fit, last.change);
        }
        progress.iterate(&what, (made + part) / allowed);
    }
}

/// `movies.cp` for `data/movies.blco`.
fn default_output(store: &Path) -> PathBuf {
    let named = std::path::absolute(store).unwrap_or_else(|_| store.to_path_buf());
    let name = PathBuf::from(named.file_name().unwrap_or_default());
    let is_store = ["blco", "hocfs"].iter().any(|end| ends_in(&name, end));
    let mut stem = if is_store { name.with_extension("").into_os_string() } else { name.into_os_string() };
    stem.push(".cp");
    stem.into()
}

/// The score of the models in two directories.
fn compare(sys: &Sys, dirs: &[PathBuf], memory: Option<u64>, threads: usize) -> Result<Report> {
    let sizes: Vec<(u64, u64)> =
        dirs.iter().map(|dir| Model::bytes_and_rank(sys, dir)).collect::<Result<_>>()?;
    let models = sizes.iter().fold(0u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
    let ranks = sizes.iter().fold(1u64, |product, (_, rank)| product.saturating_mul(*rank));
    let least = program_bytes(threads).saturating_add(score::host_bytes(models, ranks));
    let bound = memory.unwrap_or_else(machine::available_memory);
    if least > bound {
        let of_which = format!(", of which the models take {}", bytesize::ByteSize(models));
        return Err(too_little(least, bound, memory.is_some(), &of_which, ""));
    }
    let models: Vec<Model<f64>> = dirs.iter().map(|dir| Model::load(sys, dir)).collect::<Result<_>>()?;
    let score: Score = score(&models[0], &models[1])
        .map_err(|e| Error::request(format!("{} and {}: {e}", dirs[0].display(), dirs[1].display())))?;
    let line = |pair: &Pair| format!("  {:4} {:4}  {:.6}\n", pair.a, pair.b, pair.score);
    let lines: String = score.pairs.iter().map(line).collect();
    Report::new::<Cpd>(format!("score {:.6}\n{lines}", score.score), &score)
}

fn write_json(file: &File, json: &serde_json::Value) -> Result<()> {
    file.write_all_at(format!("{json:#}\n").as_bytes(), 0)
}
