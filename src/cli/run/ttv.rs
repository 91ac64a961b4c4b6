//! `blco-run --op ttv`.

use super::report::{Checked, Head};
use super::ttv_device::{self, Passes, PipelinePlan};
use super::ttv_report::{TtvReport, empty_report, plan_text, text};
use super::{Run, held_to, parse_modes, refuse};
use crate::backend::host::{HostBackend, HostOp, computing_bytes, decoded_bytes};
use crate::cli::device::{Device, Real, TtvVariant};
use crate::cli::engine::{BackendArg, ChosenBackend, open_store};
use crate::cli::outputs::{Outputs, check_temp_dir, is_standard_output};
use crate::cli::{Report, STDOUT, machine, refuse_json_beside_output};
use crate::coo::Batch;
use crate::coo::tns::{TnsReader, text_of};
use crate::dense::{Matrix, Precision};
use crate::error::{Error, Result};
use crate::linear::Wide;
use crate::op::ttv::{Merged, Oracle, OracleRoom, Sink, Streamed};
use crate::op::ttv::{merged_handed_bytes, merged_layout, streamed_bytes, streams};
use crate::pack::{SpillReport, SummerMemory};
use crate::store::Store;
use crate::stream::{Executor, Limits, PassReport, Pipeline, Plan, Span, Stage, StepSeconds, plan};
use crate::sys::{PageBuf, Sys, directory};
use rayon::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The result's file name.
const RESULT: &str = "result.tns";
/// What each nonzero adds to the oracle of `--check`, at most, and the least that serves for that.
const CHECK_BYTES_MIN: u64 = 4 << 20;
const CHECK_BYTES: u64 = 320;
/// What the allocator keeps for each thread of elements that stream to the oracle.
const KEPT_BYTES: u64 = 32 << 10;

/// What came out of the passes.
struct Outcome {
    elements: u64,
    spilled: SpillReport,
    merge_seconds: f64,
    pipeline: Option<Pipeline>,
    passes: Vec<PassReport>,
    spans: Vec<Span>,
}

/// Opens, plans, streams, writes.
pub(super) fn run<T: Real>(run: &Run, sys: &Sys, threads: usize) -> Result<Report> {
    let store = open_store(sys, &run.store, run.engine.memory, threads, true)?;
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
    let ChosenBackend { mut device, notes } = choose_backend::<T>(run, &store, mode)?;
    let kernel = run.engine.ttv_kernel()?;
    run.engine.refuse_on_cpu(device.is_none())?;
    let mut text_to_check =
        run.check.as_ref().map(|input| TnsReader::open(sys, input, run.text.options())).transpose()?;
    let reading = text_to_check.as_mut().map_or(0, |text| held_to(text, threads, run.engine.memory));
    let (plan, shares) =
        make_plan::<T>(run, &store, mode, threads, device.as_ref().map(|(_, plan)| plan), reading)?;
    let mut report = TtvReport {
        device: device.as_ref().map(|(_, plan)| plan.clone()),
        kernel: device.as_ref().map(|(device, _)| ttv_device::kernel(device, kernel)),
        ..empty_report(&store, Head::new::<T>(&store, "ttv", device.is_some(), notes), mode, plan)
    };
    if run.plan {
        return Report::new::<Run>(plan_text(&report), &report);
    }
    let store = store.with_direct_reads(report.plan.direct_reads);
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
    let job = Job {
        run,
        sys,
        store: &store,
        plan: &report.plan,
        mode,
        vector: vector.data(),
        merging: shares.merging,
    };
    let compute = |sink: Option<Sink<'_>>| match (&mut device, report.kernel) {
        (Some(device), Some(kernel)) => job.on_device(device, kernel, &mut report.head.notes, sink),
        _ if streamed => job.streamed(sink),
        _ => job.merged(sink),
    };
    let outcome = match &mut text_to_check {
        None if to_stdout => write_to(std::io::stdout(), compute)?,
        None => write(&outputs, compute)?,
        Some(text) => {
            let mut source = Checked::new(text);
            let room = OracleRoom {
                elements: store.manifest().nnz,
                memory: shares.checking,
                overflow: temporary_parent(run),
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
    report.elements = outcome.elements;
    report.spilled = outcome.spilled;
    report.merge_seconds = outcome.merge_seconds;
    report.pipeline = outcome.pipeline;
    let measured = |pass: &PassReport| pass.device.map_or(pass.seconds, |device| device.device_seconds);
    report.pipeline_measured_seconds = report.pipeline.and(outcome.passes.last().map(measured));
    report.device = device.map(|(_, plan)| plan);
    report.passes = outcome.passes;
    let mut out = Report::new::<Run>(text(&report), &report)?;
    out.failed = report.check.as_ref().is_some_and(|check| !check.holds);
    Ok(out)
}

/// Has `oracle` see all elements before `sink` gets them.
fn compare(
    oracle: &mut Oracle,
    mut sink: Option<Sink<'_>>,
    compute: impl FnOnce(Option<Sink<'_>>) -> Result<Outcome>,
) -> Result<Outcome> {
    compute(Some(&mut |batches: Vec<Batch>| {
        batches.iter().try_for_each(|batch| oracle.compare(batch))?;
        sink.as_mut().map_or(Ok(()), |sink| sink(batches))
    }))
}

/// The GPU where elements stream out of the store, and it is to be used; and why not.
fn choose_backend<T: Real>(run: &Run, store: &Store, mode: usize) -> Result<ChosenBackend<PipelinePlan>> {
    if streams(store.manifest(), mode) {
        return run.engine.choose(run.repeat, |request| ttv_device::find::<T>(request, store, mode));
    }
    let why =
        "on the CPU: products and partial results of a mode that does not stream are made and merged there";
    let asked = run.engine.backend == BackendArg::Cuda;
    Ok(ChosenBackend { device: None, notes: asked.then(|| why.to_owned()).into_iter().collect() })
}

/// Bytes that what grows with the elements may take.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    /// Partial results, where elements do not stream.
    merging: u64,
    /// The oracle of `--check`.
    checking: u64,
    /// Both during a pass, but for what even all elements do not take.
    passing: u64,
    /// The same of the oracle before the pass, and of both afterwards.
    before: u64,
    afterwards: u64,
}

impl Shares {
    /// Of what is allowed, or of half of what is there, beside a pass in which `held` bytes are held: parts of it, at least what serves.
    fn of(run: &Run, store: &Store, streams: bool, held: u64, threads: usize) -> Result<Self> {
        let nnz = store.manifest().nnz;
        let takes = SummerMemory::new(&store.manifest().shape, nnz, threads);
        let pass = plan(store, held, &Limits { threads, ..Limits::default() })?.least_bytes();
        let memory = run.engine.memory.unwrap_or_else(|| machine::available_memory() / 2);
        let room = memory.saturating_sub(pass);
        let least = machine::memory_min().unwrap_or_else(|| takes.least());
        // What is left to one where the other takes its least.
        let beside = room.saturating_sub(if streams { 0 } else { least });
        let checking = if run.check.is_some() { (room / 4).min(beside).max(CHECK_BYTES_MIN) } else { 0 };
        let merging = if streams { 0 } else { (room.saturating_sub(checking) / 2).max(least) };
        let taken =
            |bytes: u64, of_nonzero: u64| bytes.min(nnz.saturating_mul(of_nonzero).saturating_add(1 << 20));
        let [coming, summing] = if streams { [0, 0] } else { takes.taken(merging) };
        let [half, all] = [checking / 2, checking].map(|bytes| taken(bytes, CHECK_BYTES));
        // Merged elements come when the pass has ended.
        let passing = if streams { all + all.min(KEPT_BYTES * threads as u64) } else { coming + half };
        let afterwards = summing + all;
        Ok(Self { merging, checking, passing, before: half, afterwards })
    }
}

fn make_plan<T: Real>(
    run: &Run,
    store: &Store,
    mode: usize,
    threads: usize,
    device: Option<&PipelinePlan>,
    reading: u64,
) -> Result<(Plan, Shares)> {
    let manifest = store.manifest();
    let order = manifest.shape.order();
    let vector = u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64;
    let streams = streams(manifest, mode);
    let held = if let Some(device) = device {
        ttv_device::host_bytes::<T>(store, mode, threads, device)
    } else if streams {
        streamed_bytes::<T>(manifest, mode, threads)
    } else {
        vector + computing_bytes(threads)
    };
    let held = held + decoded_bytes(order);
    let shares = Shares::of(run, store, streams, held, threads)?;
    let bytes = held + shares.passing;
    // Of all that it holds, only the vector gets smaller.
    let halves = T::PRECISION == Precision::F64 && vector > bytes / 2;
    let less = if halves { "take --precision f32" } else { "" };
    // The text of --check is read before the pass, not afterwards: no buffers are there either.
    let handed = if streams { 0 } else { merged_handed_bytes(manifest, mode) };
    let afterwards = vector + (reading + shares.before).max(handed + shares.afterwards);
    let limits = Limits { afterwards, less, ..run.engine.limits(threads, run.repeat) };
    let mut plan = plan(store, bytes, &limits)?;
    plan.direct_reads |= run.engine.direct;
    Ok((plan, shares))
}

/// Where directories for temporary files are made: beside the results' directory, unless another is named.
fn temporary_parent(run: &Run) -> PathBuf {
    let output = run.output.as_deref().filter(|&dir| !is_standard_output(Some(dir)));
    let beside = run.temp_dir.as_deref().or(output.map(directory));
    beside.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// One run.
struct Job<'a, T> {
    run: &'a Run,
    sys: &'a Sys,
    store: &'a Store,
    plan: &'a Plan,
    mode: usize,
    vector: &'a [T],
    /// Bytes that partial results may take.
    merging: u64,
}

impl<T: Real> Job<'_, T> {
    /// Streams elements out of the last pass.
    fn streamed(&self, sink: Option<Sink<'_>>) -> Result<Outcome> {
        let mut op = Streamed::new(self.store, self.vector, sink)?.with_vectors(machine::vectors()?);
        let mut passes = Vec::new();
        let mut backend = HostBackend::new(self.store, &mut op)?;
        let mut executor = Executor::new(self.store, self.plan, &mut backend)?;
        for pass in 1..=self.run.repeat {
            backend.op().reset(pass == self.run.repeat);
            passes.push(self.pass(&mut executor, &mut backend)?);
        }
        let spans = executor.spans().to_vec();
        drop((executor, backend));
        let (elements, steps) = op.finish()?;
        let pipeline = Some(pipeline(&spans, &steps));
        Ok(Outcome { elements, spilled: SpillReport::default(), merge_seconds: 0.0, pipeline, passes, spans })
    }

    /// The same on a GPU. What was allocated there takes the place of the plan.
    fn on_device(
        &self,
        (device, device_plan): &mut (Device, PipelinePlan),
        kernel: TtvVariant,
        notes: &mut Vec<String>,
        sink: Option<Sink<'_>>,
    ) -> Result<Outcome> {
        let Self { store, plan, vector, .. } = *self;
        let progress = self.run.progress();
        let total = Some(store.manifest().nnz);
        let passes = Passes { store, plan, vector, repeat: self.run.repeat };
        let ran = passes.run((device, device_plan), kernel, sink, &|done| {
            progress.show("computing", done, total);
        })?;
        *device_plan = ran.plan;
        notes.extend(ran.notes);
        Ok(Outcome {
            elements: ran.elements,
            spilled: SpillReport::default(),
            merge_seconds: 0.0,
            pipeline: Some(device_pipeline(&ran.spans, plan.chunks)),
            passes: ran.passes,
            spans: ran.spans,
        })
    }

    /// Adds up partial results in runs of what fits.
    fn merged(&self, sink: Option<Sink<'_>>) -> Result<Outcome> {
        let layout = merged_layout(&self.store.manifest().shape, self.mode);
        if layout.bits() <= u64::BITS { self.merged_by::<u64>(sink) } else { self.merged_by::<Wide>(sink) }
    }

    fn merged_by<K: crate::linear::Key>(&self, sink: Option<Sink<'_>>) -> Result<Outcome> {
        let shape = &self.store.manifest().shape;
        let output = self.run.output.as_deref().filter(|&dir| !is_standard_output(Some(dir)));
        let beside = self.run.temp_dir.as_deref().or(output.map(directory));
        let temporary = beside.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let mut op = Merged::<T, K>::new(
            self.sys,
            (shape, self.store.manifest().nnz),
            self.mode,
            self.vector,
            self.merging,
            &temporary,
        );
        let mut backend = HostBackend::new(self.store, &mut op)?;
        let mut executor = Executor::new(self.store, self.plan, &mut backend)?;
        let passes = vec![self.pass(&mut executor, &mut backend)?];
        let spans = executor.spans().to_vec();
        drop((executor, backend));
        let start = std::time::Instant::now();
        let (elements, spilled) = match sink {
            Some(sink) => op.finish(sink)?,
            None => op.finish(&mut |_| Ok(()))?,
        };
        let merge_seconds = start.elapsed().as_secs_f64();
        Ok(Outcome { elements, spilled, merge_seconds, pipeline: None, passes, spans })
    }

    fn pass<O: HostOp>(
        &self,
        executor: &mut Executor<PageBuf>,
        backend: &mut HostBackend<O>,
    ) -> Result<PassReport> {
        let progress = self.run.progress();
        let total = Some(self.store.manifest().nnz);
        executor.pass(backend, &|done| progress.show("computing", done, total))
    }
}

/// The steps of every chunk: reading and verifying by the workers, computing and handing over by the operation.
fn pipeline(spans: &[Span], steps: &[[f64; 2]]) -> Pipeline {
    let mut chunks: Vec<StepSeconds> = steps.iter().map(|&[compute, out]| [0.0, compute, out]).collect();
    for span in spans.iter().filter(|span| matches!(span.stage, Stage::Read | Stage::Verify)) {
        if let Some(chunk) = span.chunk.and_then(|chunk| chunks.get_mut(chunk)) {
            chunk[0] += span.end - span.start;
        }
    }
    Pipeline::of(&chunks)
}

/// The steps of every chunk on a GPU: copying it there, kernels, copying back what came out.
fn device_pipeline(spans: &[Span], chunks: usize) -> Pipeline {
    let mut steps: Vec<StepSeconds> = vec![[0.0; 3]; chunks];
    for span in spans {
        let step = match span.stage {
            Stage::Copy => 0,
            Stage::Kernel => 1,
            Stage::Return => 2,
            Stage::Read | Stage::Verify | Stage::Compute => continue,
        };
        if let Some(chunk) = span.chunk.and_then(|chunk| steps.get_mut(chunk)) {
            chunk[step] += span.end - span.start;
        }
    }
    Pipeline::of(&steps)
}

/// An error where what --check says would go into the text that `-` writes to standard output.
fn refuse_check_beside_output(checks: bool) -> Result<()> {
    let what = "--check tells what it found on standard output, where - writes the result: use one";
    if checks { Err(Error::request(what)) } else { Ok(()) }
}

/// Runs `run` with a sink that writes text, formatted in parallel, to `out`.
fn write_to(
    mut out: impl Write + Send,
    run: impl FnOnce(Option<Sink<'_>>) -> Result<Outcome>,
) -> Result<Outcome> {
    let failed = || Error::io(STDOUT, "write");
    let outcome = run(Some(&mut |batches: Vec<Batch>| {
        let texts: Vec<Vec<u8>> = batches.par_iter().map(text_of).collect();
        texts.iter().try_for_each(|text| out.write_all(text)).map_err(failed())
    }))?;
    out.flush().map_err(failed())?;
    Ok(outcome)
}

/// Runs `run` with a sink that writes text, formatted in parallel, to the one file of `outputs`; without a file only runs.
fn write(outputs: &Outputs, run: impl FnOnce(Option<Sink<'_>>) -> Result<Outcome>) -> Result<Outcome> {
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
