//! `blco-run --op ttm`.

use super::ttv::temporary_parent;
use super::ttv_report::check_text;
use super::{Run, parse_modes};
use crate::backend::plan::{DevicePlan, RangesPlan};
use crate::cli::outputs::{Outputs, check_temp_dir, refuse_dash_for_directory};
use crate::cli::progress::Bar;
use crate::cli::report::{ReportHead, kept_text, median, memory_text, pass_text, stages_text};
use crate::cli::{Report, agreed_rank, counted, machine};
use crate::dense::{Matrix, Real, RowsFile, factor_axes};
use crate::engine::{Engine, TtmOutcome, TtmPlan, TtmRequest, Way};
use crate::error::{Error, Result};
use crate::op::oracle::Comparison;
use crate::op::ttm::Oracle;
use crate::pack::SpillReport;
use crate::store::Store;
use crate::stream::PassReport;
use crate::sys::Sys;
use bytesize::ByteSize;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The files of a result: coordinates of the fibers, and their rows.
const FILES: [&str; 2] = ["coords.npy", "values.npy"];

/// The JSON report of a run.
#[derive(Debug, Serialize)]
struct TtmReport {
    #[serde(flatten)]
    head: ReportHead,
    op: &'static str,
    mode: usize,
    /// Columns of the matrix.
    rank: usize,
    /// Whether fibers come in the store's order; otherwise what is sorted first.
    streamed: bool,
    sorted: Option<&'static str>,
    fibers: u64,
    spilled: SpillReport,
    /// Seconds of merging or, on a GPU, sorting nonzeros, computing and writing, after the pass.
    merge_seconds: f64,
    passes: Vec<PassReport>,
    check: Option<Comparison>,
}

impl TtmReport {
    fn new<T: Real>(store: &Store, request: &TtmRequest, plan: &TtmPlan) -> Self {
        Self {
            head: ReportHead::new::<T>(store, &plan.uses),
            op: "ttm",
            mode: request.mode + 1,
            rank: request.rank,
            streamed: plan.way == Way::Streamed,
            sorted: plan.way.sorted(),
            fibers: 0,
            spilled: SpillReport::default(),
            merge_seconds: 0.0,
            passes: Vec::new(),
            check: None,
        }
    }

    fn what(&self) -> String {
        let how = self.sorted.map_or("streamed".into(), |what| format!("{what} sorted"));
        format!("ttm along mode {}, rank {}, {how}", self.mode, self.rank)
    }

    fn plan_text(&self) -> String {
        let memory = memory_text(&self.head.plan, "matrix, nonzeros and fibers", "buffers");
        let what = format!("{}, on {}", self.what(), self.head.place);
        self.head.plan_text(&what, &memory, self.head.reads_text())
            + &self.head.device.as_ref().map(device_text).unwrap_or_default()
            + &self.ranges_text()
            + &self.head.notes_text()
    }

    /// What `--plan` says about several passes.
    fn ranges_text(&self) -> String {
        let ranges = self.head.device.as_ref().and_then(|device| device.ranges.as_ref());
        let Some(RangesPlan { nonzeros, passes, why }) = ranges else { return String::new() };
        let kept = kept_text(&self.head.plan);
        format!(
            "  passes  at least {passes}, {kept}: one counts, each other takes fibers with up to {nonzeros} nonzeros; {why}\n"
        )
    }

    fn text(&self) -> String {
        let (head, pass) = (&self.head, median(&self.passes));
        let more = match (self.streamed, self.spilled.runs) {
            _ if head.device.is_some() => format!("  sorted and computed in {:.4} s\n", self.merge_seconds),
            (true, _) => String::new(),
            (_, 0) => format!("  merged and computed in {:.4} s, in memory\n", self.merge_seconds),
            (_, runs) => {
                let peak = ByteSize(self.spilled.bytes_peak);
                let seconds = self.merge_seconds;
                format!("  merged and computed in {seconds:.4} s, {runs} runs, {peak} of temporary files\n")
            }
        };
        let check = self.check.as_ref().map(check_text).unwrap_or_default();
        let (title, passes) = (head.title(&self.what()), pass_text(&self.passes));
        let fibers = self.fibers;
        format!(
            "{title}: {fibers} fibers\n{passes}; {}\n{more}{check}{}",
            stages_text(pass),
            head.notes_text()
        )
    }
}

/// What `--plan` says about the GPU's memory.
fn device_text(device: &DevicePlan) -> String {
    format!(
        "  device  {} = matrix, nonzeros and fibers {} + {} of {}\n",
        ByteSize(device.memory_bytes),
        ByteSize(device.operation_bytes),
        counted(device.lanes.count, "lane"),
        ByteSize(device.lanes.image_bytes + device.lanes.staging_bytes),
    )
}

/// Opens, plans, streams, writes.
pub(super) fn run<T: Real>(run: &Run, sys: &Sys, engine: &Engine, progress: &Bar) -> Result<Report> {
    refuse_dash_for_directory("--output", run.output.as_deref(), "results are files")?;
    let store = engine.open(&run.store)?;
    let manifest = store.manifest();
    let &[mode] = &parse_modes(&run.modes, &store)?[..] else {
        return Err(Error::request("--op ttm goes along one mode: give it with --modes, such as --modes 1"));
    };
    check_temp_dir("--temp-dir", run.spill.temp_dir.as_deref())?;
    let dim = manifest.shape.dims()[mode] as usize;
    let rank = match &run.ttm.matrix {
        Some(path) => agreed_rank(run.rank.rank, path, rank_of(sys, path, mode, dim)?)?,
        None => run.rank.rank.unwrap_or(16) as usize,
    };
    let mut to_check = run.to_check(sys)?;
    let request = TtmRequest {
        mode,
        rank,
        checked: to_check.as_mut().map(|text| text.hold(engine)),
        temporary: temporary_parent(run),
        memory_min: machine::memory_min(),
    };
    let plan = engine.settle_ttm::<T>(&store, &request)?;
    run.engine.check_kernel("SpTTM", false)?;
    let mut report = TtmReport::new::<T>(&store, &request, &plan);
    if run.plan {
        return Report::new::<Run>(report.plan_text(), &report);
    }
    let matrix = match &run.ttm.matrix {
        Some(path) => Matrix::<T>::load_exact(sys, path, dim, rank)?,
        None => Matrix::seeded(sys, dim, rank, mode, run.seed.unwrap_or(0))?,
    };
    let outputs = run.outputs(sys, run.output.as_deref(), FILES.iter().map(ToString::to_string))?;
    let mut oracle = match &mut to_check {
        Some(source) => Some(Oracle::new(source, (&manifest.shape, manifest.nnz), mode, &matrix)?),
        None => None,
    };
    let mut writer = FibersFiles::of(&outputs, manifest.shape.order(), rank);
    let mut sink = |pieces: &[(&[u32], &[T])]| {
        if let Some(oracle) = &mut oracle {
            for &piece in pieces {
                oracle.compare(piece);
            }
        }
        writer.as_mut().map_or(Ok(()), |writer| writer.write(pieces))
    };
    let TtmOutcome { delivered, spilled, merge_seconds, passes, spans, uses } =
        engine.run_ttm(&store, &request, plan, (&matrix).into(), Some(&mut sink))?;
    progress.end();
    writer.map_or(Ok(()), FibersFiles::finish)?;
    report.head.used(uses);
    report.check = oracle.map(Oracle::finish);
    if let (Some(text), Some(false)) = (&to_check, report.check.as_ref().map(|check| check.holds)) {
        report.head.notes.extend(text.differs(manifest));
    }
    if !delivered.finite {
        let precision = T::PRECISION.name();
        report.head.notes.push(format!("the result overflows {precision}"));
    }
    outputs.publish(|_, _| Ok(()), |trace| super::write_trace(trace, &spans))?;
    let report = TtmReport { fibers: delivered.fibers, spilled, merge_seconds, passes, ..report };
    let mut out = Report::new::<Run>(report.text(), &report)?;
    out.failed = report.check.as_ref().is_some_and(|check| !check.holds);
    Ok(out)
}

/// Columns of the matrix in `path`, which must have a row for each of the `dim` indices of `mode`.
fn rank_of(sys: &Sys, path: &Path, mode: usize, dim: usize) -> Result<usize> {
    let [rows, columns] = factor_axes(sys.open(path, false)?)?;
    if rows != dim as u64 {
        let what = format!("is {rows} x {columns}; a matrix for mode {} has {dim} rows", mode + 1);
        return Err(Error::input(path.display().to_string(), what));
    }
    match usize::try_from(columns) {
        Ok(rank) if rank <= 1 << 20 => Ok(rank),
        _ => Err(Error::input(
            path.display().to_string(),
            format!("has {columns} columns; at most 2^20 are supported"),
        )),
    }
}

/// The two files of a result, while fibers arrive.
struct FibersFiles<'a, T> {
    coordinates: RowsFile<'a, u32>,
    values: RowsFile<'a, T>,
    /// Their names for messages.
    names: [PathBuf; 2],
}

impl<'a, T: Real> FibersFiles<'a, T> {
    /// `None` if no result is written.
    fn of(outputs: &'a Outputs, order: usize, rank: usize) -> Option<Self> {
        let mut files = outputs.named();
        let ((coordinates, first), (values, second)) = files.next().zip(files.next())?;
        Some(Self {
            coordinates: RowsFile::new(coordinates, order - 1),
            values: RowsFile::new(values, rank),
            names: [first, second],
        })
    }

    /// Both files at once, as a file system writes one piece of a file after the other.
    fn write(&mut self, pieces: &[(&[u32], &[T])]) -> Result<()> {
        let (coordinates, values): (Vec<_>, Vec<_>) = pieces.iter().copied().unzip();
        let (first, second) =
            rayon::join(|| self.coordinates.append(&coordinates), || self.values.append(&values));
        first.map_err(|e| e.about(&self.names[0]))?;
        second.map_err(|e| e.about(&self.names[1]))
    }

    fn finish(self) -> Result<()> {
        self.coordinates.finish().map_err(|e| e.about(&self.names[0]))?;
        self.values.finish().map_err(|e| e.about(&self.names[1]))
    }
}
