//! The packer: coordinates to a published store. [`pack`] is the main path; read it first.
//!
//! The output depends only on the tensor and [`PackOptions`]. `resume` opens the job's directory. `runs` linearizes and
//! sorts batches; if the dims are not declared, `stage` keeps the batches until they are known. Then, for each
//! partition of the store, nonzeros pass in the partition's order (`orders`; `leaves` says which, where each goes to one)
//! through two stages: `combine` merges duplicates, and [`Cutter`] makes chunks of any format.

mod budget;
mod combine;
mod external_sum;
mod journal;
mod leading;
mod leaves;
mod merge;
mod options;
mod orders;
mod plan;
mod promises;
mod report;
mod resort;
mod resume;
mod runs;
mod scratch;
mod slices;
mod sort;
mod spill;
mod spilled;
mod split;
mod stage;

pub use budget::{MEMORY_MIN, memory_least, scan_bytes, threads_within};
pub use external_sum::{ExternalSum, ExternalSumMemory};
pub use options::{CHUNK_BYTES, Duplicates, FormatOption, PackOptions};
pub use plan::{PackPlan, plan};
pub use report::{PackReport, PackSeconds, PackWatch};
pub use scratch::{SpillReport, passing_dir};

use crate::coo::{Batch, Extent, Source};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::{
    BuiltChunk, ClosedChunk, Cutter, Neumaier, PartitionPlan, Scheme, Statistics, Takes, Totals,
};
use crate::linear::{BitLayout, Key, Nonzero, Wide};
use crate::shape::Shape;
use crate::store::{ChunkEntry, Format, Manifest, PartOf, Partition, Staging, Store, Version, partial_path};
use crate::sys::Sys;
use budget::Budget;
use combine::Combiner;
use orders::Orders;
use promises::Promises;
use rayon::prelude::*;
use resume::{Beginning, Complete, Prepared, prepare};
use runs::{Runs, SortedRuns};
use scratch::ScratchDir;
use slices::SliceFilter;
use stage::StagedBatches;
use std::time::Instant;

/// Packs `source` into a store: drain, linearize and sort, settle duplicates, cut, publish.
///
/// An error leaves nothing behind. Runs on the current rayon pool.
pub fn pack(
    sys: &Sys,
    source: &mut dyn Source,
    options: &PackOptions,
    watch: PackWatch<'_>,
) -> Result<PackReport> {
    options.check()?;
    let start = Instant::now();
    let budget = Budget::of(source, options)?;
    plan(sys, source, options)?.check()?;
    let Prepared { staging, scratch, extent, job: identity } = match prepare(sys, source, options)? {
        Beginning::Ready(prepared) => *prepared,
        Beginning::Complete(job, stores) => {
            let (input_nnz, duplicates_summed, duplicates_kept) = (job.input_nnz, job.summed, job.kept);
            let bytes = stores.iter().map(Store::bytes).sum::<Result<u64>>()?;
            let manifests = stores.iter().map(Store::whole);
            let report = PackReport::new(&options.target, job.digest, manifests, bytes);
            return Ok(PackReport {
                was_complete: true,
                input_nnz,
                duplicates_summed,
                duplicates_kept,
                ..report
            });
        }
    };
    let input_read = extent.is_none();
    let declared = if input_read { source.declared()? } else { None };
    let (input, shape) = if let Some(shape) = declared {
        (PackInput::Direct(scratch), shape)
    } else {
        let resumed_nnz = scratch.report().resumed_nnz;
        let mut stage = StagedBatches::new(sys, budget, scratch);
        // One that is known was noted by the job that this one continues: a journal says it once.
        let extent = if let Some(extent) = extent {
            extent
        } else {
            let extent = drain(sys, source, resumed_nnz, watch, |batch| {
                // Now, not when all of it has been read.
                options.format.check_order(batch.order())?;
                stage.push(batch)
            })?;
            stage.drained(&extent)?;
            extent
        };
        let shape = Shape::new(&extent.dims).map_err(|e| Error::input(source.name(), e.to_string()))?;
        (PackInput::Staged(stage, extent), shape)
    };
    if let Some(labels) = &options.labels {
        labels.check(shape.dims(), &source.name())?;
    }
    let scheme = options.format.resolve(&shape)?;
    if options.parts > 1 && scheme.partitions.len() > 1 {
        let what = "`parts`: only a store of one partition is divided, in one order of its nonzeros";
        return Err(Error::request(format!("{what}: give another format, or `trees` one")));
    }
    for PartitionPlan { format, .. } in &scheme.partitions {
        if options.formats.read(&format.record(), shape.order()) != Ok(format.clone()) {
            let what = "is not one that this engine reads; register it by `EngineBuilder::format`";
            return Err(Error::request(format!("format {}: {what}", format.name())));
        }
    }
    let layout = scheme.bit_layout(&shape);
    let job =
        PackJob { sys, options, budget, watch, shape: &shape, scheme, layout: &layout, start, identity };
    let mut report = if layout.bits() <= u64::BITS {
        job.write::<u64>(input, source, staging)?
    } else {
        job.write::<Wide>(input, source, staging)?
    };
    (report.input_read, report.seconds.total) = (input_read, start.elapsed().as_secs_f64());
    Ok(report)
}

/// Drains `source`, held to its promises, but for its first `skip` nonzeros, into `sink`.
fn drain(
    sys: &Sys,
    source: &mut dyn Source,
    mut skip: u64,
    watch: PackWatch<'_>,
    mut sink: impl FnMut(Batch) -> Result<()>,
) -> Result<Extent> {
    let mut promises = Promises::of(source)?;
    let mut done = 0;
    let extent = source.drain(&mut |mut batch| {
        promises.iter_mut().try_for_each(|promises| promises.check(&batch))?;
        done += batch.nnz() as u64;
        let skipped = batch.nnz().min(usize::try_from(skip).unwrap_or(usize::MAX));
        if skipped > 0 {
            let order = batch.order();
            batch.indices.drain(..skipped * order);
            batch.values.drain(..skipped);
            skip -= skipped as u64;
        }
        // Nothing is left of it: it is not to be held either.
        if batch.nnz() > 0 {
            sink(batch)?;
        }
        watch("reading", done, None);
        sys.check_cancelled()
    })?;
    promises.iter().try_for_each(|promises| promises.finish(&extent))?;
    Ok(extent)
}

/// What has to be sorted.
#[expect(clippy::large_enum_variant, reason = "a job has one, and moves it once")]
enum PackInput {
    /// The source, whose dims are declared, and what an earlier job has made of it.
    Direct(ScratchDir),
    /// What was kept and staged of a source of this extent.
    Staged(StagedBatches, Extent),
}

/// One packing job once the shape is known.
struct PackJob<'a> {
    sys: &'a Sys,
    options: &'a PackOptions,
    budget: Budget,
    watch: PackWatch<'a>,
    shape: &'a Shape,
    scheme: Scheme,
    /// What the first partition is sorted by.
    layout: &'a BitLayout,
    start: Instant,
    /// What the journal says that it is.
    identity: journal::Job,
}

impl PackJob<'_> {
    /// Sorts by a linear index of type `K` and writes the store.
    fn write<K: Key>(
        &self,
        input: PackInput,
        source: &mut dyn Source,
        staging: Staging,
    ) -> Result<PackReport> {
        let mut clock = LapClock(self.start);
        let mut seconds = PackSeconds::default();
        let (runs, input_nnz) = match input {
            PackInput::Direct(scratch) => {
                let resumed_nnz = scratch.report().resumed_nnz;
                let dims: Vec<u64> = self.shape.dims().iter().map(|&dim| dim.into()).collect();
                scratch.check_runs::<K>(&dims, self.layout)?;
                let mut runs = Runs::<K>::new(self.sys, self.budget, scratch, self.layout);
                let extent = drain(self.sys, source, resumed_nnz, self.watch, |batch| runs.push(batch))?;
                runs.drained(&extent)?;
                seconds.read = clock.lap();
                (runs, extent.nnz)
            }
            PackInput::Staged(stage, extent) => {
                seconds.read = clock.lap();
                (stage.into_runs(&extent, self.layout, self.watch)?, extent.nnz)
            }
        };
        (self.watch)("sorting", 0, Some(input_nnz));
        let temporary = self.options.temp_dir.clone().unwrap_or_else(|| staging.partial().to_path_buf());
        let mut orders = Orders::new(self.sys, self.budget, temporary, runs.sort()?, self.layout);
        seconds.sort = clock.lap();

        let mut staging = staging;
        let cut = self.cut_all(&mut orders, &mut staging, input_nnz).map_err(|e| match e {
            Error::Request(what) => Error::input(source.name(), what),
            other => other,
        })?;
        let (Cut { manifests, summed, kept }, spilled) = (cut, orders.spilled());
        seconds.write = clock.lap();

        let labels = self.options.labels.as_deref();
        let published = staging.publish(&manifests, self.options.provenance.as_bytes(), labels, |id| {
            Complete { job: self.identity.clone(), digest: format!("{id:016x}"), input_nnz, summed, kept }
        })?;
        // Only now, so that a job that is killed while it publishes can be resumed; and before the journal goes.
        drop(orders);
        drop(staging);
        seconds.publish = clock.lap();
        let (digest, bytes) = (format!("{:016x}", published.id), published.bytes);
        Ok(PackReport {
            input_nnz,
            duplicates_summed: summed,
            duplicates_kept: kept,
            spilled,
            seconds,
            ..PackReport::new(&self.options.target, digest, manifests.iter(), bytes)
        })
    }

    /// An error where a registered format has built a chunk that no reader takes, behind one of `before` nonzeros.
    fn check_built(&self, format: &Format, chunk: &BuiltChunk, before: u64) -> Result<()> {
        let header = &chunk.header;
        let codes = format.record().chunk_codes(Version::NEWEST, header.codes.value_encoding);
        let right = header.codes == codes
            && format.has_value_encoding(header.codes.value_encoding)
            && usize::from(header.order) == self.shape.order()
            && header.nnz as usize == chunk.ranges.nnz
            && (!format.cuts_at_tiles() || before.is_multiple_of(TILE_NNZ as u64))
            && chunk.image.len() as u64 <= self.options.chunk_bytes;
        let what =
            "has built a chunk that is not as it says, cut inside a tile, or longer than `chunk_bytes`";
        if right { Ok(()) } else { Err(Error::request(format!("format {} {what}", format.name()))) }
    }

    fn cutter<K: Key>(&self, format: &Format) -> Cutter<K> {
        let cutter = Cutter::new(Version::NEWEST, self.shape, format, self.options.chunk_bytes);
        cutter.in_groups_of(self.budget.group_nnz())
    }

    /// Takes a chunk that is cut; writes those that wait if there are enough.
    fn take(
        &self,
        format: &Format,
        chunk: ClosedChunk,
        closed: &mut Vec<ClosedChunk>,
        staging: &mut Staging,
    ) -> Result<()> {
        closed.push(chunk);
        if closed.len() < self.budget.chunks_at_once() { Ok(()) } else { self.add(format, closed, staging) }
    }

    /// Builds chunks that are cut, and writes them, in parallel.
    fn add(&self, format: &Format, closed: &mut Vec<ClosedChunk>, staging: &mut Staging) -> Result<()> {
        let built: Vec<BuiltChunk> = closed.par_drain(..).map(ClosedChunk::build).collect();
        let mut before = staging.of_partition().last().map_or(0, |last| last.nnz);
        for chunk in &built {
            self.check_built(format, chunk, before)?;
            before = chunk.header.nnz.into();
        }
        staging.add(built)
    }

    /// Cuts every partition of the store, or every part, from all nonzeros in its order.
    fn cut_all<K: Key>(&self, orders: &mut Orders<K>, staging: &mut Staging, total: u64) -> Result<Cut> {
        if self.options.parts > 1 {
            return self.cut_parts(orders, staging, total);
        }
        let (mut totals, mut partitions) = (Totals::default(), Vec::new());
        let mut duplicates = [0; 2];
        if self.scheme.assigns() {
            let by_leaf: Vec<BitLayout> =
                self.scheme.partitions.iter().map(|plan| plan.format.bit_layout(self.shape)).collect();
            let done = orders.assign(self.options.format.assign(), &by_leaf, total, self.watch)?;
            self.check_total(done, total)?;
        }
        for (number, plan) in self.scheme.partitions.iter().enumerate() {
            let layout = plan.format.bit_layout(self.shape);
            let sorted = match plan.takes {
                Takes::Leaf(leaf) => orders.assigned(&layout, leaf)?,
                Takes::All | Takes::Slices(_) => orders.by(&layout)?,
            };
            staging.begin_partition();
            let mut combiner = self.combiner(&layout);
            let statistics = self.cut(sorted, plan, &mut combiner, staging, (total, &totals))?;
            // Of nonzeros that are assigned each partition sees its own.
            if number == 0 || self.scheme.assigns() {
                duplicates[0] += combiner.summed();
                duplicates[1] += combiner.kept();
            }
            if statistics.nnz() == 0 {
                continue;
            }
            partitions.push(partition(plan, staging, &statistics));
            if plan.covers & 1 != 0 {
                totals.add(statistics);
            }
        }
        if totals.nnz() == 0 {
            return Err(Error::request("no nonzeros"));
        }
        let manifest = self.manifest(&totals, partitions, staging.entries(), self.options.part.clone());
        let [summed, kept] = duplicates;
        Ok(Cut { manifests: vec![manifest], summed, kept })
    }

    /// Cuts the only partition into parts, each a store of its own. Part k of n ends with the coordinates of nonzero k N / n of the N that
    /// were read, in order, so that no coordinates are in two parts.
    fn cut_parts<K: Key>(&self, orders: &mut Orders<K>, staging: &mut Staging, total: u64) -> Result<Cut> {
        let (plan, parts) = (&self.scheme.partitions[0], self.options.parts);
        let layout = plan.format.bit_layout(self.shape);
        let mut combiner = self.combiner(&layout);
        let end = |part: u32| {
            u64::try_from(u128::from(total) * u128::from(part + 1) / u128::from(parts)).unwrap_or(total)
        };
        let mut manifests: Vec<Manifest> = Vec::new();
        staging.begin_part(0, parts)?;
        let mut cutting = Cutting::new(self, &plan.format, staging, Neumaier::default());
        // Nonzeros that have come; the last of the part, once they are enough.
        let (mut done, mut last): (u64, Option<K>) = (0, None);
        orders.by(&layout)?.for_each_slice(|mut slice| {
            while !slice.is_empty() {
                let part = u32::try_from(manifests.len()).unwrap_or(u32::MAX);
                let most = usize::try_from(end(part).saturating_sub(done).max(1)).unwrap_or(usize::MAX);
                let taken = match last {
                    Some(last) => slice.partition_point(|nonzero| nonzero.linear <= last),
                    None => most.min(slice.len()),
                };
                let (now, rest) = slice.split_at(taken);
                combiner.push(now, |settled, _| {
                    self.sys.check_cancelled()?;
                    cutting.push(settled)
                })?;
                done += taken as u64;
                (self.watch)("writing", done, Some(total));
                if last.is_some() && !rest.is_empty() {
                    combiner.finish(|settled| cutting.push(settled))?;
                    manifests.push(cutting.end_part(plan)?);
                    cutting.staging.begin_part(part + 1, parts)?;
                    last = None;
                } else if part + 1 < parts && done >= end(part) {
                    last = now.last().map(|nonzero| nonzero.linear).or(last);
                }
                slice = rest;
            }
            Ok(())
        })?;
        self.check_total(done, total)?;
        combiner.finish(|settled| cutting.push(settled))?;
        manifests.push(cutting.end_part(plan)?);
        if manifests.len() < parts as usize {
            let what = "the tensor has too few nonzeros with different coordinates; give fewer";
            return Err(Error::request(format!("`parts` {parts}: {what}")));
        }
        let nnz = manifests.iter().map(|part| part.nnz).sum();
        let hash = manifests.iter().filter_map(Manifest::hash).fold(0, u64::wrapping_add);
        for part in manifests.iter_mut().filter_map(|manifest| manifest.part.as_mut()) {
            (part.nnz, part.hash) = (nnz, hash);
        }
        Ok(Cut { manifests, summed: combiner.summed(), kept: combiner.kept() })
    }

    fn combiner<K: Key>(&self, layout: &BitLayout) -> Combiner<K> {
        Combiner::new(layout, self.options.duplicates).in_parts_of(self.budget.group_nnz())
    }

    /// The manifest of a store, or a part, of these partitions and chunks.
    fn manifest(
        &self,
        totals: &Totals,
        partitions: Vec<Partition>,
        chunks: &[ChunkEntry],
        part: Option<PartOf>,
    ) -> Manifest {
        Manifest {
            version: Version::NEWEST,
            shape: self.shape.clone(),
            codec: self.options.codec,
            may_repeat: self.options.duplicates == Duplicates::Keep,
            chunk_bytes: self.options.chunk_bytes,
            nnz: totals.nnz(),
            sum_squares: totals.sum_squares(),
            value_min: totals.value_min(),
            value_max: totals.value_max(),
            longest_row_bounds: totals.longest_row_bounds(),
            partitions,
            chunks: chunks.to_vec(),
            part,
            modes: self.options.labels.as_ref().map(|labels| labels.info.clone()),
        }
    }

    /// Settles duplicates and cuts what a partition takes into chunks. `total` nonzeros come; `before` are in the cover already.
    fn cut<K: Key>(
        &self,
        sorted: &SortedRuns<K>,
        plan: &PartitionPlan,
        combiner: &mut Combiner<K>,
        staging: &mut Staging,
        (total, before): (u64, &Totals),
    ) -> Result<Statistics> {
        let squares = if plan.covers & 1 != 0 { before.squares() } else { Neumaier::default() };
        let mut cutting = Cutting::new(self, &plan.format, staging, squares);
        let mut filter = SliceFilter::of(plan, self.shape);
        let mut take = |settled: &[Nonzero<K>]| match &mut filter {
            None => cutting.push(settled),
            Some(filter) => filter.push(settled, &mut |some| cutting.push(some)),
        };
        let mut done = 0;
        sorted.for_each_slice(|slice| {
            combiner.push(slice, |settled, taken| {
                self.sys.check_cancelled()?;
                take(settled)?;
                done += taken as u64;
                (self.watch)("writing", done, Some(total));
                Ok(())
            })
        })?;
        if !matches!(plan.takes, Takes::Leaf(_)) {
            self.check_total(done, total)?;
        }
        combiner.finish(&mut take)?;
        if let Some(filter) = &mut filter {
            filter.finish(&mut |some| cutting.push(some))?;
        }
        cutting.finish()
    }

    /// An error unless all nonzeros have come.
    fn check_total(&self, done: u64, total: u64) -> Result<()> {
        if done == total {
            return Ok(());
        }
        let what = format!("temporary files hold {done} of {total} nonzeros; pack again with `replace`");
        Err(Error::unusable(partial_path(&self.options.target), what))
    }
}

/// What a manifest says of the partition that was cut last.
fn partition(plan: &PartitionPlan, staging: &Staging, statistics: &Statistics) -> Partition {
    Partition {
        format: plan.format.clone(),
        targets: plan.targets,
        covers: plan.covers,
        chunks: staging.of_partition().len() as u64,
        nnz: statistics.nnz(),
        hash: Some(statistics.hash()),
        statistics: Some(statistics.of_partition()),
    }
}

/// Cuts settled nonzeros into the chunks of a partition, and writes them.
struct Cutting<'a, K> {
    job: &'a PackJob<'a>,
    format: &'a Format,
    staging: &'a mut Staging,
    cutter: Cutter<K>,
    /// Chunks that wait for others, to be built in parallel.
    closed: Vec<ClosedChunk>,
}

impl<'a, K: Key> Cutting<'a, K> {
    /// `squares` are those of the cover so far.
    fn new(job: &'a PackJob<'a>, format: &'a Format, staging: &'a mut Staging, squares: Neumaier) -> Self {
        let cutter = job.cutter(format).following(squares);
        Self { job, format, staging, cutter, closed: Vec::new() }
    }

    fn push(&mut self, settled: &[Nonzero<K>]) -> Result<()> {
        let Self { job, format, staging, cutter, closed } = self;
        cutter.push(settled, &mut |chunk| job.take(format, chunk, closed, staging))
    }

    fn finish(mut self) -> Result<Statistics> {
        self.end()
    }

    /// Ends the partition. What follows is another.
    fn end(&mut self) -> Result<Statistics> {
        let Self { job, format, staging, cutter, closed } = self;
        let cutter = std::mem::replace(cutter, job.cutter(format));
        let statistics = cutter.finish(&mut |chunk| job.take(format, chunk, closed, staging))?;
        job.add(format, closed, staging)?;
        Ok(statistics)
    }

    /// Ends a part, whose manifest does not yet know the whole.
    fn end_part(&mut self, plan: &PartitionPlan) -> Result<Manifest> {
        let statistics = self.end()?;
        if statistics.nnz() == 0 {
            return Err(Error::request("no nonzeros"));
        }
        let partition = partition(plan, self.staging, &statistics);
        let mut totals = Totals::default();
        totals.add(statistics);
        let chunks = self.staging.entries();
        let [first, last] = [&chunks[0], &chunks[chunks.len() - 1]];
        let (number, parts) = (self.staging.parts() - 1, self.job.options.parts);
        let (from, to) = (first.first_linear, last.last_linear);
        let part = PartOf { number, parts, nnz: 0, hash: 0, from, to };
        Ok(self.job.manifest(&totals, vec![partition], chunks, Some(part)))
    }
}

/// What was cut.
struct Cut {
    /// Of the store, or of each part.
    manifests: Vec<Manifest>,
    /// Nonzeros that were added to one with the same coordinates.
    summed: u64,
    /// Nonzeros kept beside one with the same coordinates.
    kept: u64,
}

/// Measures one phase after the other.
struct LapClock(Instant);

impl LapClock {
    /// Seconds since the last lap.
    fn lap(&mut self) -> f64 {
        let last = std::mem::replace(&mut self.0, Instant::now());
        (self.0 - last).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Trees;
    use crate::format::mmcsf::Assign;

    /// Ten batches of three nonzeros, of which it says that they are this many.
    struct Batches(u64);

    impl Source for Batches {
        fn name(&self) -> String {
            "batches".into()
        }

        fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
            for i in 0..10u32 {
                sink(Batch { indices: vec![i; 6], values: vec![f64::from(i); 3] })?;
            }
            Ok(Extent { dims: vec![10, 10], nnz: self.0 })
        }
    }

    /// Where nonzeros are assigned to partitions as well.
    #[test]
    fn a_source_that_is_wrong_about_its_nonzeros_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let assign = Assign::Dynamic;
        for format in [FormatOption::Csf { trees: Trees::All }, FormatOption::Mmcsf { assign }] {
            for said in [29, 30, 31] {
                let target = dir.path().join(said.to_string());
                let options = PackOptions { format: format.clone(), ..PackOptions::new(target) };
                let packed = pack(&Sys::default(), &mut Batches(said), &options, &|_, _, _| {});
                assert_eq!(packed.is_ok(), said == 30, "{format:?}, {said}: {:?}", packed.err());
                std::fs::remove_dir_all(dir.path()).unwrap();
                std::fs::create_dir(dir.path()).unwrap();
            }
        }
    }

    /// What a resumed job has in its files already is not held in memory again.
    #[test]
    fn skipped_batches_are_not_handed_on() {
        let mut seen = Vec::new();
        let extent = drain(&Sys::default(), &mut Batches(30), 25, &|_, _, _| {}, |batch| {
            seen.push((batch.indices.clone(), batch.values.clone()));
            Ok(())
        });
        assert_eq!(extent.unwrap().nnz, 30);
        assert_eq!(seen, [(vec![8; 4], vec![8.0; 2]), (vec![9; 6], vec![9.0; 3])]);
    }
}
