//! TTV, on the CPU or a GPU.

use super::{Engine, ExecutionPlan};
#[cfg(feature = "cuda")]
use crate::backend::device::DeviceLimits;
use crate::backend::device::TtvVariant;
use crate::backend::host::{HostBackend, computing_bytes, decoded_bytes};
use crate::coo::Batch;
use crate::dense::{Precision, Real};
use crate::error::{Error, Result};
use crate::linear::{Key, Wide};
use crate::op::inner::sums_bytes;
use crate::op::ttv::{Along, Merged, Scalar, Sink, Streamed};
use crate::op::ttv::{merged_handed_bytes, merged_layout, streamed_bytes, streamed_mode};
use crate::pack::{ExternalSumMemory, SpillReport};
use crate::store::{Manifest, Store};
use crate::stream::{Backend, Limits, PassReport, Pipeline, Plan, Span, Stage, StepSeconds};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The most bytes that each nonzero adds to the oracle of a check, and the least that suffice.
const CHECK_BYTES_MIN: u64 = 4 << 20;
const CHECK_BYTES: u64 = 320;
/// Bytes that the allocator keeps per thread, of elements that stream to the oracle.
const KEPT_BYTES: u64 = 32 << 10;

/// A request for TTV.
#[derive(Clone, Debug)]
pub(crate) struct TtvRequest {
    /// The modes, from 0, ascending.
    pub modes: Vec<usize>,
    /// The number of passes. Elements of the last are delivered.
    pub passes: u32,
    /// Bytes for reading the data of a check, if there is one.
    pub checked: Option<u64>,
    /// The directory for directories of temporary files.
    pub temporary: PathBuf,
    /// The least memory for partial results, for tests.
    pub memory_min: Option<u64>,
}

/// The plan of a TTV.
#[derive(Clone, Debug)]
pub(crate) struct TtvPlan {
    pub uses: ExecutionPlan,
    /// The GPU's kernel.
    pub kernel: Option<TtvVariant>,
    pub shares: Shares,
}

/// The outcome of a TTV.
pub(crate) struct TtvOutcome {
    pub elements: u64,
    pub spilled: SpillReport,
    /// Seconds after the pass, for adding up partial results and delivering them.
    pub merge_seconds: f64,
    pub pipeline: Option<Pipeline>,
    pub passes: Vec<PassReport>,
    pub spans: Vec<Span>,
    /// What was used.
    pub uses: ExecutionPlan,
}

/// Bytes for data that grows with the elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shares {
    /// Partial results, if elements do not stream.
    pub merging: u64,
    /// The oracle of a check.
    pub checking: u64,
    /// Both during a pass, at most what all elements need.
    passing: u64,
    /// The oracle before the pass, and both after it.
    before: u64,
    afterwards: u64,
}

impl Shares {
    /// Parts of the limit, or else of half the available memory, beside a pass that holds `held` bytes; at least what suffices.
    fn of(engine: &Engine, store: &Store, request: &TtvRequest, held: u64) -> Result<Self> {
        let (nnz, threads) = (store.manifest().nnz, engine.threads());
        // Nothing grows with the elements if they stream, or if the result is a number.
        let streams = way_of(store.manifest(), &request.modes) != Way::Merged;
        let takes = ExternalSumMemory::new(&store.manifest().shape, nnz, threads);
        let room = engine.room(store, held)?;
        let least = request.memory_min.unwrap_or_else(|| takes.least());
        // What one can have if the other gets its minimum.
        let beside = room.saturating_sub(if streams { 0 } else { least });
        let checks = request.checked.is_some();
        let checking = if checks { (room / 4).min(beside).max(CHECK_BYTES_MIN) } else { 0 };
        let merging = if streams { 0 } else { (room.saturating_sub(checking) / 2).max(least) };
        let taken =
            |bytes: u64, of_nonzero: u64| bytes.min(nnz.saturating_mul(of_nonzero).saturating_add(1 << 20));
        let [coming, summing] = if streams { [0, 0] } else { takes.taken(merging) };
        let [half, all] = [checking / 2, checking].map(|bytes| taken(bytes, CHECK_BYTES));
        // Merged elements come after the pass.
        let passing = if streams { all + all.min(KEPT_BYTES * threads as u64) } else { coming + half };
        let afterwards = summing + all;
        Ok(Self { merging, checking, passing, before: half, afterwards })
    }
}

/// How elements are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the store's trees, in order.
    Streamed,
    /// By merging partial results.
    Merged,
    /// There is one element, without coordinates.
    Scalar,
}

fn way_of(manifest: &Manifest, modes: &[usize]) -> Way {
    match () {
        () if streamed_mode(manifest, modes).is_some() => Way::Streamed,
        () if modes.len() == manifest.shape.order() => Way::Scalar,
        () => Way::Merged,
    }
}

impl Engine {
    /// Multiplies a store's tensor by a vector along each of some modes. `along` has modes, from 0, ascending, each with one number per
    /// index. The result is a sparse tensor of the other modes; `sink` gets its elements in batches, in order. Returns their number. Along
    /// all modes the result is one element without coordinates.
    ///
    /// From a `hocfs` store along the mode before its main mode, elements stream. Otherwise products are added up in sorted runs, in
    /// temporary files if memory is short.
    ///
    /// ```
    /// # use blco::{Engine, PackOptions, ReadOptions};
    /// # fn main() -> blco::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (text, path) = (dir.path().join("movies.tns"), dir.path().join("movies.blco"));
    /// # std::fs::write(&text, "1 1 1 5\n2 1 3 3\n2 2 1 1\n3 2 2 4\n").unwrap();
    /// # let engine = Engine::new()?;
    /// # engine.pack(&mut engine.read_text(&text, ReadOptions::default())?, &PackOptions::new(path.clone()))?;
    /// let store = engine.open(&path)?; // 3 x 2 x 3
    /// let (x, y) = ([1.0, 10.0], [1.0, 1.0, 0.5]);
    /// engine.ttv(&store, &[(1, &x), (2, &y)], &mut |batches| {
    ///     for batch in &batches {
    ///         println!("{:?} {:?}", batch.indices, batch.values); // [0, 1, 2] [5.0, 11.5, 40.0]
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for modes that the tensor does not have or that do not ascend, and for vectors of other lengths; errors of
    /// reading the store and of `sink`.
    pub fn ttv<T: Real>(&self, store: &Store, along: &[(usize, &[T])], sink: Sink<'_>) -> Result<u64> {
        let dims = store.manifest().shape.dims();
        let wrong =
            |&&(mode, vector): &&Along<'_, T>| dims.get(mode).is_none_or(|&dim| dim as usize != vector.len());
        if let Some((mode, vector)) = along.iter().find(wrong) {
            let (numbers, number) = (vector.len(), mode.saturating_add(1));
            let has = dims.get(*mode).map_or("the tensor lacks".into(), |dim| format!("has {dim} indices"));
            let what = format!("a vector of {numbers} numbers along mode {number}, which {has}");
            return Err(Error::request(what));
        }
        let modes: Vec<usize> = along.iter().map(|&(mode, _)| mode).collect();
        if modes.is_empty() || !modes.is_sorted_by(|a, b| a < b) {
            return Err(Error::request("TTV goes along modes in ascending order, at least one"));
        }
        let temporary = self.options().temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        let request = TtvRequest { modes, passes: 1, checked: None, temporary, memory_min: None };
        let plan = self.plan_ttv::<T>(store, &request)?;
        Ok(self.run_ttv(store, &request, plan, along, Some(sink))?.elements)
    }

    /// Plans TTV with vectors in the precision `T`.
    pub(crate) fn plan_ttv<T: Real>(&self, store: &Store, request: &TtvRequest) -> Result<TtvPlan> {
        let (manifest, modes, threads) = (store.manifest(), &request.modes[..], self.threads());
        let way = way_of(manifest, modes);
        let streams = way == Way::Streamed;
        let mode = modes[0];
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
        let numbers: u64 = modes.iter().map(|&mode| u64::from(manifest.shape.dims()[mode])).sum();
        let vector = numbers * size_of::<T>() as u64;
        let held = match &device {
            #[cfg(feature = "cuda")]
            Some(device) => {
                crate::op::ttv::cuda::beside_device_bytes::<T>(manifest, mode, threads) + device.host_bytes
            }
            _ if streams => streamed_bytes::<T>(manifest, mode, threads),
            _ if way == Way::Scalar => vector + computing_bytes(threads) + sums_bytes(threads),
            _ => vector + computing_bytes(threads),
        };
        let held = held + decoded_bytes(manifest.shape.order(), 1);
        let shares = Shares::of(self, store, request, held)?;
        let bytes = held + shares.passing;
        // Only the vector can be made smaller.
        let halves = T::PRECISION == Precision::F64 && vector > bytes / 2;
        let less = if halves { "take `f32`" } else { "" };
        // The data of a check is read before the pass, when there are no buffers either.
        let handed = if way == Way::Merged { merged_handed_bytes(manifest, modes) } else { 0 };
        let reading = request.checked.unwrap_or(0) + shares.before;
        let afterwards = vector + reading.max(handed + shares.afterwards);
        let limits = Limits { afterwards, less, ..self.limits(request.passes) };
        let host = self.plan_host(store, bytes, &limits)?;
        Ok(TtvPlan {
            uses: ExecutionPlan { host, device, devices: None, notes, mode_sorted: None, made_for: None },
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
        along: &[Along<'_, T>],
        sink: Option<Sink<'_>>,
    ) -> Result<TtvOutcome> {
        let store = &store.clone().with_direct_reads(plan.uses.host.direct_reads).with_sys(self.sys());
        let run = TtvRun { engine: self, store, request, along };
        let way = way_of(store.manifest(), &request.modes);
        self.install(|| match plan.uses.device {
            #[cfg(feature = "cuda")]
            Some(_) => run.on_gpu(plan, sink),
            _ if way == Way::Streamed => run.streamed(plan, sink),
            _ if way == Way::Scalar => run.scalar(plan, sink),
            _ => {
                let layout = merged_layout(&store.manifest().shape, &request.modes);
                if layout.bits() <= u64::BITS {
                    run.merged::<u64>(plan, sink)
                } else {
                    run.merged::<Wide>(plan, sink)
                }
            }
        })
    }
}

struct TtvRun<'a, T> {
    engine: &'a Engine,
    store: &'a Store,
    request: &'a TtvRequest,
    along: &'a [Along<'a, T>],
}

impl<T: Real> TtvRun<'_, T> {
    /// Delivers elements during the last pass.
    fn streamed(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        let op =
            Streamed::new(self.store, self.along[0].1, sink)?.with_vectors(self.engine.options().vectors);
        let mut backend = HostBackend::new(self.store, op)?;
        let (passes, spans) =
            self.passes(&plan.uses.host, &mut backend, |backend, last| backend.op().reset(last))?;
        let (elements, steps) = backend.op().finish()?;
        let pipeline = Some(pipeline(&spans, &steps));
        let (spilled, uses) = (SpillReport::default(), plan.uses);
        Ok(TtvOutcome { elements, spilled, merge_seconds: 0.0, pipeline, passes, spans, uses })
    }

    /// The same on a GPU. The plan of what was allocated there replaces the first one.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        use crate::backend::cuda::CudaBackend;
        use crate::op::ttv::cuda::DeviceTtv;
        let (mut uses, gpu) = (plan.uses, &self.engine.gpu()?);
        let planned = uses.device.as_ref().expect("planned for a GPU");
        let op = DeviceTtv::new(gpu, self.store, self.along[0].1, plan.kernel.unwrap_or_default(), sink)?;
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

    /// Adds up partial results, in runs that fit in memory.
    fn merged<K: Key>(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        let manifest = self.store.manifest();
        let tensor = (&manifest.shape, manifest.nnz);
        let temporary: &Path = &self.request.temporary;
        let merging = plan.shares.merging;
        let mut op = Merged::<T, K>::new(self.engine.sys(), tensor, self.along, merging, temporary);
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

    /// The result is one number.
    fn scalar(&self, plan: TtvPlan, sink: Option<Sink<'_>>) -> Result<TtvOutcome> {
        let mut op = Scalar::new(self.along);
        let mut backend = HostBackend::new(self.store, &mut op)?;
        let (passes, spans) = self.passes(&plan.uses.host, &mut backend, |_, _| ())?;
        drop(backend);
        let result = op.finish()?;
        if let Some(sink) = sink {
            sink(vec![Batch { indices: Vec::new(), values: vec![result] }])?;
        }
        let (spilled, uses) = (SpillReport::default(), plan.uses);
        Ok(TtvOutcome { elements: 1, spilled, merge_seconds: 0.0, pipeline: None, passes, spans, uses })
    }

    fn passes<B: Backend>(
        &self,
        plan: &Plan,
        backend: &mut B,
        reset: impl FnMut(&mut B, bool),
    ) -> Result<(Vec<PassReport>, Vec<Span>)> {
        self.engine.passes((self.store, self.request.passes), plan, backend, reset)
    }
}

/// The steps of every chunk: workers read and verify; the operation computes and delivers.
fn pipeline(spans: &[Span], steps: &[[f64; 2]]) -> Pipeline {
    let mut chunks: Vec<StepSeconds> = steps.iter().map(|&[compute, out]| [0.0, compute, out]).collect();
    for span in spans.iter().filter(|span| matches!(span.stage, Stage::Read | Stage::Verify)) {
        if let Some(chunk) = span.chunk.and_then(|chunk| chunks.get_mut(chunk)) {
            chunk[0] += span.end - span.start;
        }
    }
    Pipeline::of(&chunks)
}

/// The steps of every chunk on a GPU: copying it there, kernels, copying results back.
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
