//! SpTTM, on the CPU or a GPU.

use super::gpu::{self, Gpu};
use super::{Device, Engine, ExecutionPlan};
use crate::backend::device::DeviceLimits;
use crate::backend::host::{HostBackend, HostOp, computing_bytes, decoded_bytes};
use crate::backend::plan::RangesPlan;
use crate::dense::{MatrixRef, Real};
use crate::error::{Error, Result};
use crate::linear::{Key, Wide};
use crate::op::ttm::{
    Delivered, FiberRows, FiberSink, Fibers, Sorted, SortedFibers, fibers_bytes, is_in_order, matrix_bytes,
    oracle_bytes, serving_view, sorted_fibers_bytes, sorts_fibers,
};
use crate::pack::{ExternalSumMemory, SpillReport};
use crate::store::Store;
#[cfg(feature = "cuda")]
use crate::stream::Executor;
use crate::stream::{Limits, PassReport, Span};
use std::path::PathBuf;
use std::time::Instant;

/// Passes of a GPU, at most, if the user has not asked for one. A guess: the CPU sorts nonzeros meanwhile.
const PASSES_OF_AUTO: u64 = 16;

/// A request for SpTTM.
#[derive(Clone, Debug)]
pub(crate) struct TtmRequest {
    /// The mode, from 0.
    pub mode: usize,
    /// Columns of the matrix.
    pub rank: usize,
    /// Bytes for reading the data of a check, if there is one.
    pub checked: Option<u64>,
    /// The directory for directories of temporary files.
    pub temporary: PathBuf,
    /// The least memory for nonzeros, for tests.
    pub memory_min: Option<u64>,
}

/// How fibers come into order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// They come in the store's order.
    Streamed,
    /// They are sorted. Their nonzeros stay in the order in which they come, in this many bytes.
    Fibers(u64),
    /// Nonzeros are sorted, within this many bytes on the CPU.
    Nonzeros(u64),
}

impl Way {
    /// What is sorted.
    pub fn sorted(self) -> Option<&'static str> {
        match self {
            Self::Streamed => None,
            Self::Fibers(_) => Some("fibers"),
            Self::Nonzeros(_) => Some("nonzeros"),
        }
    }
}

/// The plan of an SpTTM.
#[derive(Clone, Debug)]
pub(crate) struct TtmPlan {
    pub uses: ExecutionPlan,
    pub way: Way,
}

/// The outcome of an SpTTM.
pub(crate) struct TtmOutcome {
    pub delivered: Delivered,
    pub spilled: SpillReport,
    /// Seconds after the pass, for sorting nonzeros, computing and delivering; 0 if fibers stream on the CPU.
    pub merge_seconds: f64,
    pub passes: Vec<PassReport>,
    pub spans: Vec<Span>,
    pub uses: ExecutionPlan,
}

impl Engine {
    /// Multiplies every fiber of a store along `mode`, from 0, by `matrix`, which has one row for each index of the mode. The result is
    /// semi-sparse and in memory; its fibers are in ascending order of the other modes. [`Engine::ttm_to`] delivers it in pieces. A GPU
    /// gives the same bits, unless coordinates repeat. If it does not hold all nonzeros, it reads the store in several passes.
    ///
    /// ```
    /// # use blco::{Engine, Matrix, PackOptions, ReadOptions};
    /// # fn main() -> blco::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (text, path) = (dir.path().join("movies.tns"), dir.path().join("movies.blco"));
    /// # std::fs::write(&text, "1 1 1 5\n2 1 3 3\n2 2 1 1\n2 2 2 4\n").unwrap();
    /// # let engine = Engine::new()?;
    /// # engine.pack(&mut engine.read_text(&text, ReadOptions::default())?, &PackOptions::new(path.clone()))?;
    /// let store = engine.open(&path)?; // 2 x 2 x 3
    /// let matrix = Matrix::from_rows(3, 2, vec![1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    /// let fibers = engine.ttm(&store, 2, &matrix)?;
    /// assert_eq!(fibers.coordinates, [0, 0, 1, 0, 1, 1]); // (1, 1, :), (2, 1, :), (2, 2, :)
    /// assert_eq!(fibers.values, [5.0, 50.0, 9.0, 90.0, 9.0, 90.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for a mode that the tensor does not have, or a matrix with another number of rows; errors of reading the store.
    pub fn ttm<'m, T: Real>(
        &self,
        store: &Store,
        mode: usize,
        matrix: impl Into<MatrixRef<'m, T>>,
    ) -> Result<Fibers<T>> {
        let sys = self.sys();
        let mut all = Fibers { coordinates: Vec::new(), values: Vec::new() };
        self.ttm_to(store, mode, matrix, &mut |pieces| {
            for (coordinates, values) in pieces {
                let lengths = [all.coordinates.len() + coordinates.len(), all.values.len() + values.len()];
                sys.reserve(&mut all.coordinates, lengths[0], usize::MAX)?;
                sys.reserve(&mut all.values, lengths[1], usize::MAX)?;
                all.coordinates.extend_from_slice(coordinates);
                all.values.extend_from_slice(values);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Like [`Engine::ttm`], for results larger than memory: `sink` gets the fibers in order. Returns their number. Stores with trees
    /// whose leaves are this mode, and whose other modes ascend, stream. If only the leaves are this mode, fibers are sorted first if
    /// memory holds the nonzeros. Nonzeros of other stores are sorted first, on a GPU or in temporary files if memory is short.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::ttm`], and errors of `sink`.
    pub fn ttm_to<'m, T: Real>(
        &self,
        store: &Store,
        mode: usize,
        matrix: impl Into<MatrixRef<'m, T>>,
        sink: FiberSink<'_, T>,
    ) -> Result<u64> {
        let matrix = matrix.into();
        let request = self.ttm_request(store, mode, matrix.columns())?;
        let (rows, dim) = (matrix.rows(), store.manifest().shape.dims()[mode]);
        if rows != dim as usize {
            return Err(Error::request(format!(
                "a matrix of {rows} rows along mode {}, which has {dim}",
                mode + 1
            )));
        }
        let plan = self.settle_ttm::<T>(store, &request)?;
        Ok(self.run_ttm(store, &request, plan, matrix, Some(sink))?.delivered.fibers)
    }

    /// Plans SpTTM along `mode`, from 0, with a matrix of `rank` columns in the precision `T`. The plan counts the part of the result that
    /// is in memory at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] if memory is too small.
    pub fn plan_ttm<T: Real>(&self, store: &Store, mode: usize, rank: usize) -> Result<ExecutionPlan> {
        Ok(self.settle_ttm::<T>(store, &self.ttm_request(store, mode, rank)?)?.uses)
    }

    fn ttm_request(&self, store: &Store, mode: usize, rank: usize) -> Result<TtmRequest> {
        super::mttkrp::check_modes(&[mode], store.manifest().shape.order())?;
        super::mttkrp::check_rank(rank)?;
        let temporary = self.options().temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        Ok(TtmRequest { mode, rank, checked: None, temporary, memory_min: None })
    }

    /// Plans it, with memory for sorting.
    pub(crate) fn settle_ttm<T: Real>(&self, store: &Store, request: &TtmRequest) -> Result<TtmPlan> {
        let &TtmRequest { mode, rank, checked, .. } = request;
        let (manifest, threads) = (store.manifest(), self.threads());
        let order = manifest.shape.order();
        let matrix = matrix_bytes::<T>(manifest, mode, rank);
        let fibers = fibers_bytes(manifest, rank, threads);
        let oracle = checked.map_or(0, |_| oracle_bytes(manifest.nnz));
        let held =
            matrix.saturating_add(computing_bytes(threads) + decoded_bytes(order, 1)).saturating_add(oracle);
        let reading = matrix.saturating_add(oracle).saturating_add(checked.unwrap_or(0));
        let auto = self.options().device == Device::Auto;
        let find = |gpu: &Gpu, limits: &DeviceLimits| {
            let plan = gpu::plan_ttm::<T>(gpu, store, (mode, rank), limits)?;
            match &plan.ranges {
                Some(RangesPlan { passes, why, .. }) if auto && *passes > PASSES_OF_AUTO => {
                    let what = format!("at least {passes} passes, since {why}; `Device::Cuda` makes them");
                    Err(Error::request(what))
                }
                _ => Ok(plan),
            }
        };
        let (device, notes) = self.choose(1, find)?;
        let passes = device.as_ref().and_then(|plan| plan.ranges.as_ref()).map_or(1, |ranges| ranges.passes);
        let serving = serving_view(store, mode);
        let (way, passing, afterwards, store) = if let Some(device) = &device {
            let windows = gpu::ttm_windows_bytes::<T>(manifest, (mode, rank), device);
            let held = matrix.saturating_add(oracle).saturating_add(windows);
            let passing = held + computing_bytes(threads) + decoded_bytes(order, 1) + device.host_bytes;
            let way = if is_in_order(manifest, mode) { Way::Streamed } else { Way::Nonzeros(0) };
            (way, passing, held.max(reading), store)
        } else {
            let held = held.saturating_add(fibers);
            let way = self.ttm_way(&serving, request, held)?;
            let [coming, afterwards] = match way {
                Way::Streamed => [0, 0],
                Way::Fibers(bytes) => [bytes; 2],
                Way::Nonzeros(bytes) => {
                    ExternalSumMemory::new(&manifest.shape, manifest.nnz, threads).taken(bytes)
                }
            };
            let afterwards = matrix.saturating_add(oracle).saturating_add(fibers).saturating_add(afterwards);
            (way, held.saturating_add(coming), afterwards.max(reading), &serving)
        };
        let limits = Limits {
            afterwards,
            less: "take fewer columns",
            ..self.limits(u32::try_from(passes).unwrap_or(u32::MAX))
        };
        let host = self.plan_host(store, passing, &limits)?;
        let uses = ExecutionPlan { host, device, notes, devices: None, mode_sorted: None, made_for: None };
        Ok(TtmPlan { uses, way })
    }

    /// How the CPU brings fibers into order, beside `held` bytes.
    fn ttm_way(&self, store: &Store, request: &TtmRequest, held: u64) -> Result<Way> {
        let manifest = store.manifest();
        if is_in_order(manifest, request.mode) {
            return Ok(Way::Streamed);
        }
        // The other half is for the workers' buffers.
        let room = self.room(store, held)? / 2;
        let of_fibers = if manifest.shape.linear_bits() <= u64::BITS {
            sorted_fibers_bytes::<u64>(manifest)
        } else {
            sorted_fibers_bytes::<Wide>(manifest)
        };
        if let Some(bytes) = of_fibers.filter(|bytes| *bytes <= room && sorts_fibers(manifest, request.mode))
        {
            return Ok(Way::Fibers(bytes));
        }
        let takes = ExternalSumMemory::new(&manifest.shape, manifest.nnz, self.threads());
        let least = request.memory_min.unwrap_or_else(|| takes.least());
        Ok(Way::Nonzeros(room.max(least)))
    }

    /// Runs it by `plan`. Fibers go to `sink`; without one they are counted.
    pub(crate) fn run_ttm<T: Real>(
        &self,
        store: &Store,
        request: &TtmRequest,
        plan: TtmPlan,
        matrix: MatrixRef<'_, T>,
        sink: Option<FiberSink<'_, T>>,
    ) -> Result<TtmOutcome> {
        let store = &store.clone().with_direct_reads(plan.uses.host.direct_reads).with_sys(self.sys());
        #[cfg(feature = "cuda")]
        if plan.uses.device.is_some() {
            return self.install(|| self.ttm_on_gpu(store, request, plan.uses, matrix, sink));
        }
        let (store, vectors) = (&serving_view(store, request.mode), self.options().vectors);
        let (shape, sys) = (&store.manifest().shape, self.sys());
        let rows = FiberRows::new(sys, shape.order(), matrix, sink).with_vectors(vectors);
        self.install(|| match plan.way {
            Way::Streamed => {
                let ran =
                    self.ttm_pass(store, plan, rows, |rows| Ok((rows.finish()?, SpillReport::default())))?;
                Ok(TtmOutcome { merge_seconds: 0.0, ..ran })
            }
            _ if shape.linear_bits() <= u64::BITS => self.ttm_sorted::<T, u64>(store, request, plan, rows),
            _ => self.ttm_sorted::<T, Wide>(store, request, plan, rows),
        })
    }

    /// Sorts, then computes.
    fn ttm_sorted<T: Real, K: Key>(
        &self,
        store: &Store,
        request: &TtmRequest,
        plan: TtmPlan,
        rows: FiberRows<'_, '_, T>,
    ) -> Result<TtmOutcome> {
        let (sys, mode, way) = (self.sys(), request.mode, plan.way);
        let (shape, nnz) = (&store.manifest().shape, store.manifest().nnz);
        if let Way::Nonzeros(sorting) = way {
            let op = Sorted::<K>::new(sys, (shape, nnz), mode, sorting, &request.temporary);
            return self.ttm_pass(store, plan, op, |op| op.finish(rows));
        }
        let op = SortedFibers::<T, K>::new(sys, store.manifest(), mode, rows);
        self.ttm_pass(store, plan, op, |op| Ok((op.finish()?, SpillReport::default())))
    }

    /// The pass on the CPU, after which `finish` computes what is left.
    fn ttm_pass<O: HostOp>(
        &self,
        store: &Store,
        plan: TtmPlan,
        mut op: O,
        finish: impl FnOnce(O) -> Result<(Delivered, SpillReport)>,
    ) -> Result<TtmOutcome> {
        let mut backend = HostBackend::new(store, &mut op)?;
        let (passes, spans) = self.passes((store, 1), &plan.uses.host, &mut backend, |_, _| ())?;
        drop(backend);
        let start = Instant::now();
        let (delivered, spilled) = finish(op)?;
        let merge_seconds = start.elapsed().as_secs_f64();
        Ok(TtmOutcome { delivered, spilled, merge_seconds, passes, spans, uses: plan.uses })
    }

    /// The same on a GPU. What was allocated there takes the place of the plan.
    #[cfg(feature = "cuda")]
    fn ttm_on_gpu<T: Real>(
        &self,
        store: &Store,
        request: &TtmRequest,
        mut uses: ExecutionPlan,
        matrix: MatrixRef<'_, T>,
        sink: Option<FiberSink<'_, T>>,
    ) -> Result<TtmOutcome> {
        use crate::backend::cuda::{CudaBackend, plan::again};
        use crate::backend::plan::Shortfall;
        use crate::op::ttm::are_finite;
        use crate::op::ttm::cuda::{DeviceTtm, WINDOW_BYTES};
        use rayon::prelude::*;
        let gpu = &self.gpu()?;
        let mut planned = uses.device.take().expect("planned for a GPU");
        let op = loop {
            match DeviceTtm::new(gpu, store, request.mode, matrix, &planned, WINDOW_BYTES) {
                Err(e @ Error::Device { out_of_memory: true, .. }) => {
                    let nonzeros = planned.ranges.as_ref().map_or(store.manifest().nnz, |r| r.nonzeros) / 2;
                    planned = again(store, &planned, Shortfall::Nonzeros(nonzeros)).map_err(|_| e)?;
                }
                made => break made?,
            }
        };
        if let (Some(ranges), false) = (&planned.ranges, planned.shortfalls.is_empty()) {
            uses.notes.push(format!("device memory for {} nonzeros at a time only", ranges.nonzeros));
        }
        let mut backend = CudaBackend::new(gpu, store, &planned, op)?;
        let mut executor = Executor::new(store, &uses.host, &mut backend)?;
        let (mut passes, mut merge_seconds) = (Vec::new(), 0.0);
        let mut delivered = Delivered { fibers: 0, finite: true };
        let finite = &mut delivered.finite;
        let mut checked = sink.map(|sink| {
            move |pieces: &[(&[u32], &[T])]| {
                *finite &= pieces.par_iter().all(|(_, values)| are_finite(values));
                sink(pieces)
            }
        });
        let total = Some(store.manifest().nnz);
        loop {
            passes.push(executor.pass(&mut backend, &|done| self.tell("computing", done, total))?);
            let start = Instant::now();
            let mut sink = checked.as_mut().map(|sink| sink as FiberSink<'_, T>);
            delivered.fibers += backend.op().finish(sink.as_mut())?;
            merge_seconds += start.elapsed().as_secs_f64();
            if !backend.op().needs_pass() {
                break;
            }
        }
        uses.device = Some(backend.plan().clone());
        uses.notes.extend_from_slice(backend.notes());
        let (spilled, spans) = (SpillReport::default(), executor.spans().to_vec());
        Ok(TtmOutcome { delivered, spilled, merge_seconds, passes, spans, uses })
    }

    /// The note about operations that run only on the CPU, if a GPU was requested.
    pub(super) fn notes_of_cpu(&self) -> Vec<String> {
        let asked = self.options().device == Device::Cuda;
        asked.then(|| "on the CPU: this operation has no kernels for a GPU".to_owned()).into_iter().collect()
    }
}
