//! `blco-run --op ttv`.

use super::ttv_report::{TtvReport, named, plan_text, text};
use super::{Run, parse_modes};
use crate::cli::outputs::{Outputs, check_temp_dir, is_standard_output};
use crate::cli::progress::Bar;
use crate::cli::{Report, STDOUT, counted, machine, refuse_json_beside_output};
use crate::coo::Batch;
use crate::coo::tns::text_of;
use crate::dense::{Matrix, Real};
use crate::engine::{Engine, TtvOutcome, TtvRequest};
use crate::error::{Error, Result};
use crate::op::ttv::{Along, Oracle, OracleRoom, Sink, streamed_mode};
use crate::stream::PassReport;
use crate::sys::{Sys, directory};
use rayon::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The result's file name.
const RESULT: &str = "result.tns";

/// Opens, plans, streams, writes.
pub(super) fn run<T: Real>(run: &Run, sys: &Sys, engine: &Engine, progress: &Bar) -> Result<Report> {
    let store = engine.open(&run.store)?;
    let manifest = store.manifest();
    let along = parse_modes(&run.modes, &store)?;
    let mut modes = along.clone();
    modes.sort_unstable();
    check_temp_dir("--temp-dir", run.spill.temp_dir.as_deref())?;
    if streamed_mode(manifest, &modes).is_none() && run.repeat > 1 {
        let what = format!("--repeat: TTV along {} of this store runs once", named(&modes));
        return Err(Error::request(format!("{what}; leave it out")));
    }
    let files = run.ttv.vector.len();
    if files > 0 && files != along.len() {
        let vectors = counted(files, "vector");
        let what =
            format!("--vector: {vectors} for --modes {}; give one for each mode, in that order", run.modes);
        return Err(Error::request(what));
    }
    let mut to_check = run.to_check(sys)?;
    let request = TtvRequest {
        modes,
        passes: run.repeat,
        checked: to_check.as_mut().map(|text| text.hold(engine)),
        temporary: temporary_parent(run),
        memory_min: machine::memory_min(),
    };
    let plan = engine.plan_ttv::<T>(&store, &request)?;
    run.engine.check_kernel("TTV", plan.uses.device.is_some())?;
    let mut report = TtvReport::new::<T>(&store, &request.modes, &plan);
    if run.plan {
        return Report::new::<Run>(plan_text(&report), &report);
    }
    let vector = |&mode: &usize| {
        let dim = report.head.dims[mode] as usize;
        let file = along.iter().position(|&m| m == mode).and_then(|at| run.ttv.vector.get(at));
        match file {
            Some(path) => Matrix::<T>::load_vector(sys, path, dim),
            None => Matrix::seeded(sys, dim, 1, mode, run.seed.unwrap_or(0)),
        }
    };
    let vectors: Vec<Matrix<T>> = request.modes.iter().map(vector).collect::<Result<_>>()?;
    let along: Vec<Along<'_, T>> =
        request.modes.iter().zip(&vectors).map(|(&mode, vector)| (mode, vector.data())).collect();
    let is_stdout = is_standard_output(run.output.as_deref());
    if is_stdout {
        refuse_json_beside_output(run.common)?;
        if run.check.is_some() {
            let what = "--check tells what it found on standard output, where - writes the result: use one";
            return Err(Error::request(what));
        }
    }
    let dir = run.output.as_deref().filter(|_| !is_stdout);
    let outputs = run.outputs(sys, dir, std::iter::once(RESULT.to_owned()))?;
    let checking = plan.shares.checking;
    let compute = |sink: Option<Sink<'_>>| {
        let outcome = engine.run_ttv(&store, &request, plan, &along, sink);
        progress.end();
        outcome
    };
    let mut differing = Vec::new();
    let outcome = match &mut to_check {
        None if is_stdout => to_stdout(compute)?,
        None => to_file(&outputs, compute)?,
        Some(source) => {
            let room = OracleRoom {
                elements: store.manifest().nnz,
                memory: checking,
                overflow: request.temporary.clone(),
            };
            let shape = &store.manifest().shape;
            let mut oracle = Oracle::within(sys, source, shape, &along, &room)?;
            let outcome = to_file(&outputs, |sink| compare(&mut oracle, sink, compute))?;
            let check = oracle.finish()?;
            if !check.holds {
                differing = source.differs(store.manifest());
            }
            report.check = Some(check);
            outcome
        }
    };
    outputs.publish(|_, _| Ok(()), |trace| super::write_trace(trace, &outcome.spans))?;
    if is_stdout {
        return Ok(Report { text: String::new(), json: serde_json::Value::Null, failed: false });
    }
    report.head.used(outcome.uses);
    report.head.notes.extend(differing);
    report.elements = outcome.elements;
    report.spilled = outcome.spilled;
    report.merge_seconds = outcome.merge_seconds;
    report.pipeline = outcome.pipeline;
    let measured = |pass: &PassReport| pass.device.map_or(pass.seconds, |device| device.device_seconds);
    report.pipeline_measured_seconds = report.pipeline.and(outcome.passes.last().map(measured));
    report.passes = outcome.passes;
    let mut out = Report::new::<Run>(text(&report), &report)?;
    out.failed = report.check.as_ref().is_some_and(|check| !check.holds);
    Ok(out)
}

/// Shows all elements to `oracle` before `sink` gets them.
fn compare(
    oracle: &mut Oracle,
    mut sink: Option<Sink<'_>>,
    compute: impl FnOnce(Option<Sink<'_>>) -> Result<TtvOutcome>,
) -> Result<TtvOutcome> {
    compute(Some(&mut |batches: Vec<Batch>| {
        batches.iter().try_for_each(|batch| oracle.compare(batch))?;
        sink.as_mut().map_or(Ok(()), |sink| sink(batches))
    }))
}

/// The directory for directories of temporary files: beside the results' directory, unless another is named.
pub(super) fn temporary_parent(run: &Run) -> PathBuf {
    let output = run.output.as_deref().filter(|&dir| !is_standard_output(Some(dir)));
    let beside = run.spill.temp_dir.as_deref().or(output.map(directory));
    beside.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// Runs `run` with a sink that formats elements as text, in parallel, and gives it to `write`.
fn with_text(
    mut write: impl FnMut(&[u8]) -> Result<()> + Send,
    run: impl FnOnce(Option<Sink<'_>>) -> Result<TtvOutcome>,
) -> Result<TtvOutcome> {
    run(Some(&mut |batches: Vec<Batch>| {
        let texts: Vec<Vec<u8>> = batches.par_iter().map(text_of).collect();
        texts.iter().try_for_each(|text| write(text))
    }))
}

/// The same, to standard output.
fn to_stdout(run: impl FnOnce(Option<Sink<'_>>) -> Result<TtvOutcome>) -> Result<TtvOutcome> {
    let (mut out, failed) = (std::io::stdout(), || Error::io(STDOUT, "write"));
    let outcome = with_text(|text| out.write_all(text).map_err(failed()), run)?;
    out.flush().map_err(failed())?;
    Ok(outcome)
}

/// The same, to the file of `outputs`; without a file, only runs.
fn to_file(
    outputs: &Outputs,
    run: impl FnOnce(Option<Sink<'_>>) -> Result<TtvOutcome>,
) -> Result<TtvOutcome> {
    let Some((file, target)) = outputs.first() else { return run(None) };
    let mut at = 0;
    let write = |text: &[u8]| {
        file.write_all_at(text, at).map_err(|e| e.about(&target))?;
        at += text.len() as u64;
        Ok(())
    };
    with_text(write, run)
}
