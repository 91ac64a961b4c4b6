//! TTV on whatever there is.

use super::{Engine, ExecutionPlan};
#[cfg(feature = "cuda")]
use crate::backend::device::DeviceLimits;
use crate::backend::device::TtvVariant;
use crate::backend::host::{HostBackend, computing_bytes, decoded_bytes};
use crate::dense::{Precision, Real};
use crate::error::{Error, Result};
use crate::linear::{Key, Wide};
use crate::op::ttv::{Merged, Sink, Streamed};
use crate::op::ttv::{merged_handed_bytes, merged_layout, streamed_bytes, streams};
use crate::pack::{ExternalSumMemory, SpillReport};
use crate::store::Store;
use crate::stream::{Backend, Executor, Limits, PassReport, Pipeline, Plan, Span, Stage, StepSeconds};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What each nonzero adds to the oracle of a check, at most, and the least that serves for that.
const CHECK_BYTES_MIN: u64 = 4 << 20;
const CHECK_BYTES: u64 = 320;
/// What the allocator keeps for each thread of elements that stream to the oracle.
const KEPT_BYTES: u64 = 32 << 10;

/// TTV to be made.
#[derive(Clone, Debug)]
pub(crate) struct TtvRequest {
    /// The mode, from 0.
    pub mode: usize,
    /// Passes, of which the last one's elements are handed over.
    pub passes: u32,
    /// Bytes that reading takes what the results are checked with, if they are.
    pub checked: Option<u64>,
    /// Where directories for temporary files are made.
    pub temporary: PathBuf,
    /// The least that partial results are given, for tests.
    pub memory_min: Option<u64>,
}

/// What it will use.
#[derive(Clone, Debug)]
pub(crate) struct TtvPlan {
    pub uses: ExecutionPlan,
    /// The GPU's kernel.
    pub kernel: Option<TtvVariant>,
    pub shares: Shares,
}

/// What came of it.
pub(crate) struct TtvOutcome {
    pub elements: u64,
    pub spilled: SpillReport,
    /// Seconds of adding up partial results and handing them over, after the pass.
    pub merge_seconds: f64,
    pub pipeline: Option<Pipeline>,
    pub passes: Vec<PassReport>,
    pub spans: Vec<Span>,
    /// What was used.
    pub uses: ExecutionPlan,
}

/// Bytes that what grows with the elements may take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shares {
    /// Partial results, where elements do not stream.
    pub merging: u64,
    /// The oracle of a check.
    pub checking: u64,
    /// Both during a pass, but for what even all elements do not take.
    passing: u64,
    /// The same of the oracle before the pass, and of both afterwards.
    before: u64,
    afterwards: u64,
}

impl Shares {
    /// Of what is allowed, or of half of what is there, beside a pass in which `held` bytes are held: parts of it, at least what serves.
    fn of(engine: &Engine, store: &Store, request: &TtvRequest, held: u64) -> Result<Self> {
        let (nnz, threads) = (store.manifest().nnz, engine.threads());
        let streams = streams(store.manifest(), request.mode);
        let takes = ExternalSumMemory::new(&store.manifest().shape, nnz, threads);
        let room = engine.room(store, held)?;
        let least = request.memory_min.unwrap_or_else(|| takes.least());
        // What is left to one where the other takes its least.
        let beside = room.saturating_sub(if streams { 0 } else { least });
        let checks = request.checked.is_some();
        let checking = if checks { (room / 4).min(beside).max(CHECK_BYTES_MIN) } else { 0 };
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

impl Engine {
    /// Every fiber of a store along `mode`, from 0, times a vector of as many numbers as the mode has indices: a sparse tensor of one
    /// order less, whose elements `sink` gets in batches, in order; returns how many. Elements of a `hocfs` store along the mode before
    /// its main mode stream out of it; otherwise products are added up in sorted runs, in temporary files where memory is short.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for a mode that the tensor does not have and a vector of another length; what reading the store and
    /// `sink` give.
    pub fn ttv<T: Real>(&self, store: &Store, mode: usize, vector: &[T], sink: Sink<'_>) -> Result<u64> {
        let dims = store.manifest().shape.dims();
        if dims.get(mode).is_none_or(|&dim| dim as usize != vector.len()) {
            let (numbers, mode) = (vector.len(), mode.saturating_add(1));
            let what = format!("a vector of {numbers} numbers along mode {mode} of dims {dims:?}");
            return Err(Error::request(what));
        }
        let temporary = self.options().temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        let request = TtvRequest { mode, passes: 1, checked: None, temporary, memory_min: None };
        let plan = self.plan_ttv::<T>(store, &request)?;
        Ok(self.run_ttv(store, &request, plan, vector, Some(sink))?.elements)
    }

    /// Plans TTV with a vector in the precision `T`.
    pub(crate) fn plan_ttv<T: Real>(&self, store: &Store, request: &TtvRequest) -> Result<TtvPlan> {
        let (manifest, mode, threads) = (store.manifest(), request.mode, self.threads());
        let streams = streams(manifest, mode);
        let (device, notes) = if streams {
            #[cfg(feature = "cuda")]
            let find = |gpu: &super::gpu::Gpu, limits: &DeviceLimits| {
                let DeviceLimits { memory, lanes, passes, .. } = *limits;
                let limits = DeviceLimits { memory, lanes, passes, ..DeviceLimits::default() };
                let operation = crate::op::ttv::cuda::operation::<T>(manifest, mode);
                crate::backend::cuda::plan(gpu, store, operation, &limits)
            };
            #[cfg(not(feature = "cuda"))]
            let find = |_: &super::gpu::Gpu, _: &_| super::gpu::none();
            self.choose(request.passes, find)?
        } else {
            let why = "on the CPU: products and partial results of a mode that does not stream are made and merged there";
            let asked = self.options().device == super::Device::Cuda;
            (None, asked.then(|| why.to_owned()).into_iter().collect())
        };
        let kernel = device.as_ref().map(|_| self.options().ttv_kernel.unwrap_or_default());
        let vector = u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64;
        let held = match &device {
            #[cfg(feature = "cuda")]
            Some(device) => {
                crate::op::ttv::cuda::beside_device_bytes::<T>(manifest, mode, threads) + device.host_bytes
            }
            _ if streams => streamed_bytes::<T>(manifest, mode, threads),
            _ => vector + computing_bytes(threads),
        };
        let held = held + decoded_bytes(manifest.shape.order(), 1);
        let shares = Shares::of(self, store, request, held)?;
        let bytes = held + shares.passing;
        // Of all that it holds, only the vector gets smaller.
        let halves = T::PRECISION == Precision::F64 && vector > bytes / 2;
        let less = if halves { "take `f32`" } else { "" };
        // What it is checked with is read before the pass, not afterwards: no buffers are there either.
        let handed = if streams { 0 } else { merged_handed_bytes(manifest, mode) };
        let reading = request.checked.unwrap_or(0) + shares.before;
        let afterwards = vector + reading.max(handed + shares.afterwards);
        let limits = Limits { afterwards, less, ..self.limits(request.passes) };
        let host = self.plan_host(store, bytes, &limits)?;
        Ok(TtvPlan {
            uses: ExecutionPlan { host, device, notes, mode_sorted: None, made_for: None },
            kernel,
            shares,
        })
    }

    /// Runs it by `plan`. Elements go to `sink`; without one they are counted.
    pub(crate) fn run_ttv<T: Real>(
        &self,
        store: &Store,
        request: &TtvRequest,
        plan: TtvPlan,
        vector: &[T],
        sink: Option<Sink<'_>>,
    ) -> Result<TtvOutcome> {
        let store = &store.clone().with_direct_reads(plan.uses.host.direct_reads).with_sys(self.sys());
        let run = TtvRun { engine: self, store, request, vector };
        let streamed = streams(store.manifest(), request.mode);
        self.install(|| match plan.uses.device {
            #[cfg(feature = "cuda")]
            Some(_) => run.on_gpu(plan, sink),
            _ if streamed => run.streamed(plan, sink),
            _ => {
                let layout = merged_layout(&store.manifest().shape, request.mode);
                if layout.bits() <= u64::BITS {
                    run.merged::<u64>(plan, sink)
                } else {
                    run.merged::<Wide>(plan, sink)
                }
            }
        })
    }
}

/// One run.
struct TtvRun<'a, T> {
    engine: &'a Engine,
    store: &'a Store,
    request: &'a TtvRequest,
    vector: &'a [T],
}

impl<T: Real> TtvRun<'_, T> {
    /// Streams elements out of the last pass.
    fn streamed(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        let op = Streamed::new(self.store, self.vector, sink)?.with_vectors(self.engine.options().vectors);
        let mut backend = HostBackend::new(self.store, op)?;
        let (passes, spans) =
            self.passes(&plan.uses.host, &mut backend, |backend, last| backend.op().reset(last))?;
        let (elements, steps) = backend.op().finish()?;
        let pipeline = Some(pipeline(&spans, &steps));
        let (spilled, uses) = (SpillReport::default(), plan.uses);
        Ok(TtvOutcome { elements, spilled, merge_seconds: 0.0, pipeline, passes, spans, uses })
    }

    /// The same on a GPU. What was allocated there takes the place of the plan.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        use crate::backend::cuda::CudaBackend;
        use crate::op::ttv::cuda::DeviceTtv;
        let (mut uses, gpu) = (plan.uses, &self.engine.gpu()?);
        let planned = uses.device.as_ref().expect("planned for a GPU");
        let op = DeviceTtv::new(gpu, self.store, self.vector, plan.kernel.unwrap_or_default(), sink)?;
        let mut backend = CudaBackend::new(gpu, self.store, planned, op)?;
        let (passes, spans) =
            self.passes(&uses.host, &mut backend, |backend, last| backend.op().reset(last))?;
        uses.device = Some(backend.plan().clone());
        uses.notes.extend_from_slice(backend.notes());
        Ok(TtvOutcome {
            elements: backend.op().finish()?,
            spilled: SpillReport::default(),
            merge_seconds: 0.0,
            pipeline: Some(device_pipeline(&spans, uses.host.chunks)),
            passes,
            spans,
            uses,
        })
    }

    /// Adds up partial results in runs of what fits.
    fn merged<K: Key>(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        let (manifest, mode) = (self.store.manifest(), self.request.mode);
        let tensor = (&manifest.shape, manifest.nnz);
        let temporary: &Path = &self.request.temporary;
        let merging = plan.shares.merging;
        let mut op = Merged::<T, K>::new(self.engine.sys(), tensor, mode, self.vector, merging, temporary);
        let mut backend = HostBackend::new(self.store, &mut op)?;
        let (passes, spans) = self.passes(&plan.uses.host, &mut backend, |_, _| ())?;
        drop(backend);
        let start = Instant::now();
        let (elements, spilled) = match sink {
            Some(sink) => op.finish(sink)?,
            None => op.finish(&mut |_| Ok(()))?,
        };
        let merge_seconds = start.elapsed().as_secs_f64();
        let uses = plan.uses;
        Ok(TtvOutcome { elements, spilled, merge_seconds, pipeline: None, passes, spans, uses })
    }

    /// Streams the store as often as is asked for; `reset` is told before each pass whether it is the last.
    fn passes<B: Backend>(
        &self,
        plan: &Plan,
        backend: &mut B,
        reset: impl Fn(&mut B, bool),
    ) -> Result<(Vec<PassReport>, Vec<Span>)> {
        let mut executor = Executor::new(self.store, plan, backend)?;
        let mut passes = Vec::new();
        for pass in 1..=self.request.passes {
            reset(backend, pass == self.request.passes);
            passes.push(executor.pass(backend, &|done| self.tell(done))?);
        }
        Ok((passes, executor.spans().to_vec()))
    }

    fn tell(&self, done: u64) {
        self.engine.tell("computing", done, Some(self.store.manifest().nnz));
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
#[cfg(feature = "cuda")]
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
