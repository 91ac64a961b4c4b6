//! Without declared dims, the linear index is unknown until the last nonzero has been read. Until then batches are
//! kept as they arrive. If they exceed the budget, they are staged on disk, in a file per future run.

use super::PackWatch;
use super::budget::Budget;
use super::leading::THREADS_MIN;
use super::runs::Runs;
use super::scratch::ScratchDir;
use super::spill::{STAGE_NNZ, SpillWriter, stage_frame};
use super::spilled::STAGED;
use crate::coo::{Batch, Extent};
use crate::error::{Error, Result};
use crate::linear::{BitLayout, Key};
use crate::sys::Sys;
use rayon::prelude::*;

/// Batches as they came.
#[derive(Debug)]
pub struct StagedBatches {
    sys: Sys,
    budget: Budget,
    scratch: ScratchDir,
    order: usize,
    batches: Vec<Batch>,
    kept_nnz: u64,
    open: Option<SpillWriter>,
}

impl StagedBatches {
    /// Nothing but what `scratch` holds from an earlier job.
    pub fn new(sys: &Sys, budget: Budget, scratch: ScratchDir) -> Self {
        Self { sys: sys.clone(), budget, scratch, order: 0, batches: Vec::new(), kept_nnz: 0, open: None }
    }

    /// Takes the next batch.
    pub fn push(&mut self, batch: Batch) -> Result<()> {
        if batch.nnz() == 0 {
            return Ok(());
        }
        self.order = batch.order();
        self.kept_nnz += batch.nnz() as u64;
        self.batches.push(batch);
        let room = if self.scratch.is_empty() && self.open.is_none() {
            self.budget.keeps(self.kept_nnz, self.order)
        } else {
            self.kept_nnz < self.budget.stage_nnz(self.order)
        };
        if room { Ok(()) } else { self.spill() }
    }

    /// Moves the kept batches to disk: packed in parallel, written in order.
    fn spill(&mut self) -> Result<()> {
        let order = self.order;
        let mut kept = std::mem::take(&mut self.batches).into_iter();
        loop {
            let batches: Vec<Batch> = kept.by_ref().take(self.budget.batches_at_once()).collect();
            if batches.is_empty() {
                break;
            }
            let frames: Vec<Vec<Vec<u8>>> = batches
                .par_iter()
                .map(|batch| {
                    let parts = batch.indices.chunks(STAGE_NNZ * order).zip(batch.values.chunks(STAGE_NNZ));
                    parts.map(|(indices, values)| stage_frame(indices, values, order)).collect()
                })
                .collect();
            frames.iter().flatten().try_for_each(|frame| self.write(frame))?;
        }
        self.kept_nnz = 0;
        Ok(())
    }

    /// Appends a frame to the open file.
    fn write(&mut self, frame: &[u8]) -> Result<()> {
        let file_nnz = self.budget.staged_nnz();
        let mut writer = if let Some(writer) = self.open.take() {
            writer
        } else {
            self.scratch.check_room(file_nnz)?;
            self.scratch.create(STAGED)?
        };
        writer.write(frame)?;
        if writer.nnz() + STAGE_NNZ as u64 > file_nnz {
            return self.scratch.add_staged(writer.finish());
        }
        self.open = Some(writer);
        Ok(())
    }

    /// Takes note that the input has been read to its end.
    pub fn drained(&mut self, extent: &Extent) -> Result<()> {
        if self.scratch.is_empty() && self.open.is_none() {
            return Ok(());
        }
        self.spill()?;
        self.open.take().map_or(Ok(()), |writer| self.scratch.add_staged(writer.finish()))?;
        self.scratch.drained(extent)
    }

    /// Everything, linearized now that the dims are known. Staged files become runs, and are removed.
    pub fn into_runs<K: Key>(
        mut self,
        extent: &Extent,
        layout: &BitLayout,
        watch: PackWatch<'_>,
    ) -> Result<Runs<K>> {
        let staged = std::mem::take(&mut self.scratch.staged);
        let mut done: u64 = self.scratch.runs.iter().map(|run| run.nnz).sum();
        let largest = staged.iter().map(|file| file.nnz).max().unwrap_or(self.kept_nnz);
        let room = self.budget.run_nnz::<K>() as u64;
        if !staged.is_empty() && largest > room.max(self.budget.staged_nnz()) {
            let what =
                "the unfinished pack had more memory than this one, and its temporary files take as much";
            let what = format!("{what}; give the same `memory` and `threads`, or start again with `replace`");
            return Err(Error::request(format!("`resume`: {what}")));
        }
        let largest =
            usize::try_from(largest).map_err(|_| Error::request("a run exceeds the address space"))?;
        self.scratch.check_runs::<K>(&extent.dims, layout)?;
        let in_memory = self.scratch.is_empty() && staged.is_empty() && largest > 0;
        let in_buckets = in_memory && rayon::current_num_threads() >= THREADS_MIN;
        let mut runs = Runs::new(&self.sys, self.budget, self.scratch, layout);
        if in_buckets {
            runs.take_all(self.batches, largest, layout)?;
            return Ok(runs);
        }
        runs.hold(largest);
        self.batches.into_iter().try_for_each(|batch| runs.push(batch))?;
        let mut from = Vec::new();
        for file in staged {
            self.sys.check_cancelled()?;
            if !runs.holds(file.nnz) {
                runs.spill(std::mem::take(&mut from))?;
            }
            let mut reader = runs.open_staged(&file)?;
            while let Some(batch) = reader.read_stage(&extent.dims)? {
                runs.push(batch)?;
            }
            done += file.nnz;
            from.push(file);
            watch("sorting", done, Some(extent.nnz));
        }
        if !from.is_empty() {
            runs.spill(from)?;
        }
        Ok(runs)
    }
}
