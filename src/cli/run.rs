//! `blco-run`.

use super::outputs::Results;
use super::pack::TextArgs;
use super::progress::Progress;
use super::{Common, Program, Report, machine, on_pool, size};
use crate::backend::host::{HostBackend, decoded_bytes};
use crate::coo::tns::TnsReader;
use crate::dense::{Matrix, Precision, Real, load_factors, seeded_factors};
use crate::error::{Error, Result};
use crate::op::mttkrp::{ModeMatrix, Mttkrp, host_bytes};
use crate::op::oracle::{self, Comparison};
use crate::shape::Shape;
use crate::store::Store;
use crate::stream::{Executor, Limits, PassReport, Plan, plan};
use crate::sys::Sys;
use bytesize::ByteSize;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Streams a store and computes an operation on its modes
///
/// MTTKRP: for each mode m, M[`i_m`, :] += value * product over the other modes k of `A_k`[`i_k`, :]. All modes are
/// computed from one pass over the store. Results on the CPU are bit-identical for any number of threads and workers
/// and any chunk size.
#[derive(Debug, Parser)]
#[command(
    name = "blco-run",
    version,
    after_help = "Examples:\n  blco-run movies.blco --modes all                     # rank 16, seeded factors, a report\n  \
                  blco-run movies.blco --modes 1,3 --factors A --output M\n  \
                  blco-run movies.blco --modes all --check movies.tns  # compare with a naive loop\n  \
                  blco-run movies.blco --modes all --rank 64 --plan    # memory and bytes, without running"
)]
pub struct Run {
    /// The store
    store: PathBuf,
    /// The operation
    #[arg(long, value_enum, default_value_t = OpArg::Mttkrp)]
    op: OpArg,
    /// Modes, from 1: all, or a list such as 1,3
    #[arg(long, default_value = "all")]
    modes: String,
    /// Columns of seeded factors [default: 16]
    #[arg(long, value_name = "R", conflicts_with = "factors", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    rank: Option<u32>,
    /// Read factors mode-1.npy, mode-2.npy, … (f8 or f4, dims x rank) from here
    #[arg(long, value_name = "DIR", conflicts_with = "seed")]
    factors: Option<PathBuf>,
    /// Seed of generated factors [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Write results mode-1.npy, … here
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Where to compute
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    backend: BackendArg,
    /// Precision of factors, products and results
    #[arg(long, value_enum, default_value_t = PrecisionArg::F64)]
    precision: PrecisionArg,
    /// Reading threads [default: as many as compute threads, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// Take at most this much memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Passes over the store
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print memory, bytes and passes, and run nothing
    #[arg(long)]
    plan: bool,
    /// Compare the results with a naive loop over this coordinate text; exit status 1 if they differ
    #[arg(long, value_name = "INPUT", conflicts_with = "plan")]
    check: Option<PathBuf>,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OpArg {
    Mttkrp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    Auto,
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PrecisionArg {
    F64,
    F32,
}

/// What a run reports as JSON.
#[derive(Debug, Serialize)]
struct RunReport {
    store: PathBuf,
    digest: String,
    op: &'static str,
    backend: &'static str,
    precision: Precision,
    dims: Vec<u32>,
    nnz: u64,
    modes: Vec<usize>,
    rank: usize,
    plan: Plan,
    passes: Vec<PassReport>,
    check: Option<Vec<Comparison>>,
}

/// The modes that `text` names, from 0.
fn parse_modes(text: &str, order: usize) -> Result<Vec<usize>> {
    if text == "all" {
        return Ok((0..order).collect());
    }
    let mut modes = Vec::new();
    for part in text.split(',') {
        match part.trim().parse::<usize>() {
            Ok(mode) if (1..=order).contains(&mode) && !modes.contains(&(mode - 1)) => modes.push(mode - 1),
            Ok(mode) if (1..=order).contains(&mode) => {
                return Err(Error::request(format!("--modes {text}: names mode {mode} twice")));
            }
            _ => {
                let what =
                    format!("--modes {text}: {part:?} is not a mode of this store; give all, or modes");
                return Err(Error::request(format!("{what} from 1 to {order} such as 1,{order}")));
            }
        }
    }
    Ok(modes)
}

impl Program for Run {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        if self.backend == BackendArg::Cuda {
            return Err(Error::request("--backend cuda: this version has no CUDA backend; use auto or cpu"));
        }
        on_pool(sys, self.common.threads, |threads| match self.precision {
            PrecisionArg::F64 => self.mttkrp::<f64>(sys, threads),
            PrecisionArg::F32 => self.mttkrp::<f32>(sys, threads),
        })
    }
}

impl Run {
    /// Opens, plans, streams, checks, writes.
    fn mttkrp<T: Real>(&self, sys: &Sys, threads: usize) -> Result<Report> {
        let store = Store::open(sys, &self.store)?;
        let shape = store.manifest().shape.clone();
        let modes = parse_modes(&self.modes, shape.order())?;
        let given = match &self.factors {
            Some(dir) => Some(load_factors::<T>(sys, dir, &shape)?),
            None => None,
        };
        let rank = given.as_ref().map_or(self.rank.unwrap_or(16) as usize, |f| f[0].columns());
        let plan = self.make_plan::<T>(&store, &modes, rank, threads)?;
        let store = store.with_direct_reads(plan.direct_reads);
        let mut report = self.empty_report::<T>(&store, modes.clone(), rank, plan);
        if self.plan {
            return Report::new::<Self>(plan_text(&report), &report);
        }
        let outputs = Results::create(sys, self.output.as_deref(), &modes)?;
        let factors = given.map_or_else(|| seeded_factors(sys, &shape, rank, self.seed.unwrap_or(0)), Ok)?;
        let (results, passes) = self.stream(sys, &store, &report.plan, &factors, &modes)?;
        report.passes = passes;
        if let Some(input) = &self.check {
            report.check = Some(self.check(sys, input, &shape, &factors, &results)?);
        }
        outputs.publish(&results)?;
        let mut out = Report::new::<Self>(run_text(&report), &report)?;
        out.failed = report.check.iter().flatten().any(|c| !c.holds);
        Ok(out)
    }

    fn make_plan<T: Real>(
        &self,
        store: &Store,
        modes: &[usize],
        rank: usize,
        threads: usize,
    ) -> Result<Plan> {
        let shape = &store.manifest().shape;
        let limits = Limits {
            memory: self.memory,
            threads,
            workers: self.workers.map(usize::from),
            available: machine::available_memory(),
        };
        plan(store, host_bytes::<T>(shape, modes, rank) + decoded_bytes(shape.order()), &limits)
    }

    /// The passes: results of the last, and how each went.
    fn stream<T: Real>(
        &self,
        sys: &Sys,
        store: &Store,
        plan: &Plan,
        factors: &[Matrix<T>],
        modes: &[usize],
    ) -> Result<(Vec<ModeMatrix<T>>, Vec<PassReport>)> {
        let progress = Progress::new(self.common.quiet || self.common.json);
        let mut mttkrp = Mttkrp::new(sys, factors, modes, plan.threads)?;
        let mut passes = Vec::new();
        let mut backend = HostBackend::new(store, &mut mttkrp)?;
        let mut executor = Executor::new(store, plan, &mut backend)?;
        let total = Some(store.manifest().nnz);
        for _ in 0..self.repeat {
            backend.op().reset();
            passes.push(executor.pass(&mut backend, &|done| progress.show("computing", done, total))?);
        }
        Ok((mttkrp.finish(), passes))
    }

    fn check<T: Real>(
        &self,
        sys: &Sys,
        input: &std::path::Path,
        shape: &Shape,
        factors: &[Matrix<T>],
        results: &[ModeMatrix<T>],
    ) -> Result<Vec<Comparison>> {
        let mut source = TnsReader::open(sys, input, self.text.options())?;
        let modes: Vec<usize> = results.iter().map(|(mode, _)| *mode).collect();
        let oracle = oracle::mttkrp(&mut source, factors, &modes)?;
        Ok(oracle.iter().zip(results).map(|(o, (_, result))| o.compare(result, shape.order())).collect())
    }

    fn empty_report<T: Real>(&self, store: &Store, modes: Vec<usize>, rank: usize, plan: Plan) -> RunReport {
        RunReport {
            store: self.store.clone(),
            digest: format!("{:016x}", store.id()),
            op: "mttkrp",
            backend: "cpu",
            precision: T::PRECISION,
            dims: store.manifest().shape.dims().to_vec(),
            nnz: store.manifest().nnz,
            modes: modes.into_iter().map(|m| m + 1).collect(),
            rank,
            plan,
            passes: Vec::new(),
            check: None,
        }
    }
}

fn plan_text(report: &RunReport) -> String {
    let plan = &report.plan;
    format!(
        "{}: mttkrp of modes {:?}, rank {}, on the CPU\n  memory  {} = factors, results and decoded tiles {} + {} \
         workers x {} buffers of {}\n  a pass  {} in {} chunks, one pass for all modes{}\n",
        report.store.display(),
        report.modes,
        report.rank,
        ByteSize(plan.memory_bytes),
        ByteSize(plan.operation_bytes),
        plan.workers,
        plan.buffers_per_worker,
        ByteSize(plan.buffer_bytes as u64),
        ByteSize(plan.file_bytes),
        plan.chunks,
        if plan.direct_reads { ", read past the page cache" } else { "" },
    )
}

/// The report for people: the median pass, stages, the check.
fn run_text(report: &RunReport) -> String {
    let mut by_time: Vec<&PassReport> = report.passes.iter().collect();
    by_time.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let pass = by_time[(by_time.len() - 1) / 2];
    let precision = match report.precision {
        Precision::F64 => "f64",
        Precision::F32 => "f32",
    };
    let mut text = format!(
        "{}: mttkrp of modes {:?}, rank {}, {precision}, on the CPU with {} threads\n  {:.4} s a pass{}: {:.1} M nonzeros/s, \
         {} read\n  compute {:.4} s, waited for data {:.4} s; {} workers: read {:.4}, verify {:.4}, decode {:.4}, \
         waited {:.4} s\n",
        report.store.display(),
        report.modes,
        report.rank,
        report.plan.threads,
        pass.seconds,
        if by_time.len() > 1 { format!(" (median of {})", by_time.len()) } else { String::new() },
        pass.nnz_per_second / 1e6,
        ByteSize(pass.bytes),
        pass.compute_seconds,
        pass.compute_stall_seconds,
        report.plan.workers,
        pass.read_seconds,
        pass.verify_seconds,
        pass.decode_seconds,
        pass.worker_stall_seconds,
    );
    if let Some(check) = &report.check {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
        table.set_header(["mode", "rows", "largest error", "of its bound", ""]);
        for c in check {
            table.add_row([
                c.mode.to_string(),
                report.dims[c.mode - 1].to_string(),
                format!("{:.2e}", c.largest_error),
                format!("{:.4}", c.worst),
                if c.holds { "ok".into() } else { "DIFFERS".to_owned() },
            ]);
        }
        text.push_str("compared with the oracle:\n");
        text.push_str(&table.to_string());
        text.push('\n');
    }
    text
}
