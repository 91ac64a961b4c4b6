//! Single passes over all nonzeros on the CPU: callers' operations, text, verification.

use super::Engine;
use crate::backend::host::{HostBackend, HostOp, decoded_bytes};
use crate::coo::Batch;
use crate::error::Result;
use crate::op::export::{WRITER_BYTES, WriteText};
use crate::op::inspect::{Inspect, StoreStatistics};
use crate::op::read::ReadBatches;
use crate::op::verify::{Verify, verify};
use crate::store::Store;
use crate::stream::{Backend, Executor, Limits, PassReport, Plan, Span};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

impl Engine {
    /// Streams a store once through `op`, on the CPU: every nonzero, in the store's order, decoded by this engine's threads. `op` holds
    /// `op_bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) if memory is too small; errors of reading the store and of `op`.
    pub fn stream(&self, store: &Store, op: &mut (impl HostOp + Send), op_bytes: u64) -> Result<PassReport> {
        let plan = self.plan_stream(store, [op_bytes, 0])?;
        self.install(|| self.stream_by(store, op, &plan, "computing"))
    }

    /// Calls `sink` with the store's nonzeros in batches of coordinates, in the store's order: those within `ranges`, one per mode, or all
    /// if `ranges` is empty. Chunks without such nonzeros are not read. `sink` runs on a thread of this engine.
    ///
    /// # Errors
    ///
    /// [`Error::Request`](crate::Error::Request) for ranges outside the tensor; errors of reading the store and of `sink`.
    pub fn read(
        &self,
        store: &Store,
        ranges: &[Range<u32>],
        sink: &mut (dyn FnMut(Batch) -> Result<()> + Send),
    ) -> Result<PassReport> {
        let mut read = ReadBatches::new(store.manifest(), ranges, sink)?;
        let plan = self.plan_stream(store, [ReadBatches::host_bytes(store.dims().len()), 0])?;
        self.install(|| self.stream_by(store, &mut read, &plan, "reading"))
    }

    /// Counts what the manifest does not record: rows, explicit zeros, value encodings of chunks. Makes one pass over all nonzeros, or
    /// several if memory cannot hold a counter for each row.
    ///
    /// # Errors
    ///
    /// What reading the store gives.
    pub fn inspect(&self, store: &Store) -> Result<StoreStatistics> {
        let (manifest, order) = (store.manifest(), store.dims().len());
        let room = self.room(store, decoded_bytes(order, 1))?;
        let plan = self.plan_stream(store, [Inspect::host_bytes(&manifest.shape, manifest.nnz, room), 0])?;
        let mut inspect = Inspect::within(self.sys(), &manifest.shape, manifest.nnz, room)?;
        loop {
            self.install(|| self.stream_by(store, &mut inspect, &plan, "reading"))?;
            if !inspect.goes_on() {
                return Ok(inspect.finish().0);
            }
        }
    }

    /// Writes a store's nonzeros to `out` as coordinate text, in the store's order: one line each, with indices from 1 and the value with
    /// the fewest digits that give the same bits.
    ///
    /// # Errors
    ///
    /// What reading the store and writing give.
    pub fn write_text(&self, store: &Store, out: impl Write + Send) -> Result<PassReport> {
        let mut text = WriteText::new(out, Path::new("the text"));
        let report = self.stream(store, &mut text, WRITER_BYTES)?;
        text.finish()?;
        Ok(report)
    }

    /// Verifies a store: decodes each partition, encodes it again and compares. Order, ranges, encodings, chunk boundaries and statistics
    /// must be those that packing makes.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`](crate::Error::Corrupt) with the first difference; what reading the store gives.
    pub fn verify(&self, store: &Store) -> Result<PassReport> {
        let mut report: Option<PassReport> = None;
        self.install(|| {
            verify(store, |part, op| {
                let plan = self.plan_stream(part, [Verify::host_bytes(part)?, 0])?;
                let pass = self.stream_by(part, op, &plan, "verifying")?;
                report = Some(report.map_or(pass, |report| report.followed_by(&pass)));
                Ok(())
            })
        })?;
        Ok(report.unwrap_or_default())
    }

    /// Plans a pass for an operation that holds these bytes during the pass, and after it.
    pub(crate) fn plan_stream(&self, store: &Store, [passing, afterwards]: [u64; 2]) -> Result<Plan> {
        let bytes = passing.saturating_add(decoded_bytes(store.manifest().shape.order(), 1));
        self.plan_host(store, bytes, &Limits { afterwards, ..self.limits(1) })
    }

    /// Streams `store` once through `op`, by `plan`, on the current pool. `what` names the step for progress.
    pub(crate) fn stream_by(
        &self,
        store: &Store,
        op: &mut impl HostOp,
        plan: &Plan,
        what: &'static str,
    ) -> Result<PassReport> {
        let store = &store.clone().with_sys(self.sys());
        let mut backend = HostBackend::new(store, op)?;
        let mut executor = Executor::new(store, plan, &mut backend)?;
        let total = Some(store.manifest().nnz);
        executor.pass(&mut backend, &|done| self.tell(what, done, total))
    }

    /// Streams `store` N times to `backend`, on the current pool. Before each pass, `reset` gets whether it is the last. Returns a report
    /// of each pass, and the timeline of the last.
    pub(super) fn passes<B: Backend>(
        &self,
        (store, passes): (&Store, u32),
        plan: &Plan,
        backend: &mut B,
        mut reset: impl FnMut(&mut B, bool),
    ) -> Result<(Vec<PassReport>, Vec<Span>)> {
        let mut executor = Executor::new(store, plan, backend)?;
        let (mut reports, total) = (Vec::new(), Some(store.manifest().nnz));
        for pass in 1..=passes {
            reset(backend, pass == passes);
            reports.push(executor.pass(backend, &|done| self.tell("computing", done, total))?);
        }
        Ok((reports, executor.spans().to_vec()))
    }
}
