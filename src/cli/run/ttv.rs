//! `blco-run --op ttv`.

use super::report::{Checked, ReportHead};
use super::ttv_report::{empty_report, plan_text, text};
use super::{Run, held_to, parse_modes, refuse};
use crate::cli::outputs::{Outputs, check_temp_dir, is_standard_output};
use crate::cli::progress::Bar;
use crate::cli::{Report, STDOUT, machine, refuse_json_beside_output};
use crate::coo::Batch;
use crate::coo::tns::{TnsReader, text_of};
use crate::dense::{Matrix, Real};
use crate::engine::{Engine, TtvOutcome, TtvRequest};
use crate::error::{Error, Result};
use crate::op::ttv::{Oracle, OracleRoom, Sink, streams};
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
    let &[mode] = &parse_modes(&run.modes, manifest.shape.order())?[..] else {
        return Err(Error::request("--op ttv goes along one mode: give it with --modes, such as --modes 1"));
    };
    refuse("ttv", &[(run.rank.is_some(), "--rank"), (run.factors.is_some(), "--factors")])?;
    check_temp_dir("--temp-dir", run.temp_dir.as_deref())?;
    let streamed = streams(manifest, mode);
    if !streamed && run.repeat > 1 {
        let what = format!("--repeat: TTV along mode {} of this store runs once", mode + 1);
        return Err(Error::request(format!("{what}; leave it out")));
    }
    run.engine.refuse_mttkrp_kernel()?;
    run.engine.refuse_on_cpu(false)?;
    let mut text_to_check =
        run.check.as_ref().map(|input| TnsReader::open(sys, input, run.text.options())).transpose()?;
    let request = TtvRequest {
        mode,
        passes: run.repeat,
        checked: text_to_check.as_mut().map(|text| held_to(text, engine)),
        temporary: temporary_parent(run),
        memory_min: machine::memory_min(),
    };
    let plan = engine.plan_ttv::<T>(&store, &request)?;
    run.engine.refuse_on_cpu(plan.uses.device.is_none())?;
    let head = ReportHead::new::<T>(&store, "ttv", plan.uses.device.is_some(), plan.uses.notes.clone());
    let mut report = empty_report(&store, head, mode, &plan);
    if run.plan {
        return Report::new::<Run>(plan_text(&report), &report);
    }
    let dim = report.head.dims[mode] as usize;
    let vector = match &run.vector {
        Some(path) => Matrix::<T>::load_vector(sys, path, dim)?,
        None => Matrix::seeded(sys, dim, 1, mode, run.seed.unwrap_or(0))?,
    };
    let to_stdout = is_standard_output(run.output.as_deref());
    if to_stdout {
        refuse_json_beside_output(run.common)?;
        refuse_check_beside_output(run.check.is_some())?;
    }
    let dir = run.output.as_deref().filter(|_| !to_stdout);
    let outputs = run.outputs(sys, dir, std::iter::once(RESULT.to_owned()))?;
    let (checking, noted) = (plan.shares.checking, report.head.notes.len());
    let compute = |sink: Option<Sink<'_>>| {
        let outcome = engine.run_ttv(&store, &request, plan, vector.data(), sink);
        progress.end();
        outcome
    };
    let outcome = match &mut text_to_check {
        None if to_stdout => write_to(std::io::stdout(), compute)?,
        None => write(&outputs, compute)?,
        Some(text) => {
            let mut source = Checked::new(text);
            let room = OracleRoom {
                elements: store.manifest().nnz,
                memory: checking,
                overflow: request.temporary.clone(),
            };
            let shape = &store.manifest().shape;
            let mut oracle = Oracle::within(sys, &mut source, shape, mode, vector.data(), &room)?;
            let outcome = write(&outputs, |sink| compare(&mut oracle, sink, compute))?;
            let check = oracle.finish()?;
            if !check.holds {
                report.head.notes.extend(source.differs(store.manifest()));
            }
            report.check = Some(check);
            outcome
        }
    };
    outputs.publish(|_, _| Ok(()), |trace| super::write_trace(trace, &outcome.spans))?;
    if to_stdout {
        return Ok(Report { text: String::new(), json: serde_json::Value::Null, failed: false });
    }
    let differing = std::mem::take(&mut report.head.notes).split_off(noted);
    report.head.notes = outcome.uses.notes.into_iter().chain(differing).collect();
    report.elements = outcome.elements;
    report.spilled = outcome.spilled;
    report.merge_seconds = outcome.merge_seconds;
    report.pipeline = outcome.pipeline;
    let measured = |pass: &PassReport| pass.device.map_or(pass.seconds, |device| device.device_seconds);
    report.pipeline_measured_seconds = report.pipeline.and(outcome.passes.last().map(measured));
    report.device = outcome.uses.device;
    report.passes = outcome.passes;
    let mut out = Report::new::<Run>(text(&report), &report)?;
    out.failed = report.check.as_ref().is_some_and(|check| !check.holds);
    Ok(out)
}

/// Has `oracle` see all elements before `sink` gets them.
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

/// Where directories for temporary files are made: beside the results' directory, unless another is named.
fn temporary_parent(run: &Run) -> PathBuf {
    let output = run.output.as_deref().filter(|&dir| !is_standard_output(Some(dir)));
    let beside = run.temp_dir.as_deref().or(output.map(directory));
    beside.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// An error where what --check says would go into the text that `-` writes to standard output.
fn refuse_check_beside_output(checks: bool) -> Result<()> {
    let what = "--check tells what it found on standard output, where - writes the result: use one";
    if checks { Err(Error::request(what)) } else { Ok(()) }
}

/// Runs `run` with a sink that writes text, formatted in parallel, to `out`.
fn write_to(
    mut out: impl Write + Send,
    run: impl FnOnce(Option<Sink<'_>>) -> Result<TtvOutcome>,
) -> Result<TtvOutcome> {
    let failed = || Error::io(STDOUT, "write");
    let outcome = run(Some(&mut |batches: Vec<Batch>| {
        let texts: Vec<Vec<u8>> = batches.par_iter().map(text_of).collect();
        texts.iter().try_for_each(|text| out.write_all(text)).map_err(failed())
    }))?;
    out.flush().map_err(failed())?;
    Ok(outcome)
}

/// Runs `run` with a sink that writes text, formatted in parallel, to the one file of `outputs`; without a file only runs.
fn write(outputs: &Outputs, run: impl FnOnce(Option<Sink<'_>>) -> Result<TtvOutcome>) -> Result<TtvOutcome> {
    let Some((file, target)) = outputs.first() else { return run(None) };
    let mut at = 0;
    run(Some(&mut |batches: Vec<Batch>| {
        let texts: Vec<Vec<u8>> = batches.par_iter().map(text_of).collect();
        texts.iter().try_for_each(|text| {
            file.write_all_at(text, at).map_err(|e| e.about(&target))?;
            at += text.len() as u64;
            Ok(())
        })
    }))
}
