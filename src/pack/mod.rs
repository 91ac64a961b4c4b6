//! The packer: coordinates to a published store. [`pack`] is the main path; read it first.
//!
//! What it writes depends on the tensor and [`PackOptions`] alone. `runs` linearizes batches and sorts; where the dims
//! are not declared, `stage` keeps the batches until they are known. Then nonzeros pass through two parts as slices in
//! linear order: `combine` settles duplicates, [`Cutter`] makes chunks of any format.

mod budget;
mod combine;
mod journal;
mod merge;
mod plan;
mod runs;
mod scratch;
mod sort;
mod spill;
mod stage;
mod sum;

pub use budget::MEMORY_MIN;
pub use plan::{PackPlan, plan};
pub use scratch::SpillReport;
pub use sum::Summer;

use crate::coo::{Batch, Extent, Source};
use crate::encoding::{IndexEncoding, LeafRule};
use crate::error::{Error, Result};
use crate::format::{self, BuiltChunk, Cutter, GROUP_NNZ};
use crate::linear::{BitLayout, Key, Wide};
use crate::shape::{ModeOrder, Shape};
use crate::store::{Codec, Format, Manifest, Published, Staging, partial_path};
use crate::sys::{SPILL_PREFIX, Sys};
use budget::Budget;
use combine::Combiner;
use journal::Journal;
use runs::{Runs, Sorted};
use scratch::Scratch;
use serde::Serialize;
use stage::Stage;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// What to do with nonzeros that have the same coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplicates {
    /// Add them up, in the total order of their values, starting from the first.
    Sum,
    /// Keep each.
    Keep,
    /// Refuse the input.
    Error,
}

/// A format, or what can be said of it before the tensor's order is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatOption {
    /// All of it.
    Known(Format),
    /// HOCFS with the slices of `main_mode`, from 0; the mode before it is the leaves'.
    Hocfs {
        /// The main mode.
        main_mode: usize,
        /// How leaves are laid out.
        leaf: LeafRule,
    },
}

impl FormatOption {
    /// The format for tensors of `order`.
    pub fn resolve(self, order: usize) -> Result<Format> {
        match self {
            Self::Known(format) => Ok(format),
            Self::Hocfs { main_mode, leaf } if main_mode < order => {
                Ok(Format::Hocfs { levels: ModeOrder::rotated(order, main_mode), leaf })
            }
            Self::Hocfs { main_mode, .. } => {
                Err(Error::request(format!("main mode {}: the tensor has modes 1 to {order}", main_mode + 1)))
            }
        }
    }

    /// Bytes that an open chunk takes while it grows.
    fn open_chunk_bytes(self, chunk_bytes: u64) -> u64 {
        match self {
            Self::Known(Format::Blco(_)) => format::blco::open_chunk_bytes(chunk_bytes),
            Self::Known(Format::Hocfs { .. }) | Self::Hocfs { .. } => {
                format::hocfs::open_chunk_bytes(chunk_bytes)
            }
        }
    }
}

/// What to write and where.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The store's directory.
    pub target: PathBuf,
    /// Replace a store that is there, and discard an unfinished one.
    pub replace: bool,
    /// Continue with what a killed job has left, if there is anything.
    pub resume: bool,
    /// What chunks are to hold.
    pub format: FormatOption,
    /// How payloads are stored.
    pub codec: Codec,
    /// The bound on a chunk's image, bytes, from `store::CHUNK_BYTES_MIN` to `CHUNK_BYTES_MAX`.
    pub chunk_bytes: u64,
    /// What to do with duplicates.
    pub duplicates: Duplicates,
    /// Bytes of memory to take, whatever the tensor's size. Less than [`MEMORY_MIN`] is exceeded, but spills small
    /// tensors, for tests. Does not change the store.
    pub memory: u64,
    /// Where temporary files go; beside the store without it.
    pub temp_dir: Option<PathBuf>,
    /// The contents of `provenance.json`.
    pub provenance: String,
}

impl PackOptions {
    /// The defaults for a store at `target`: tiled, no codec, chunks of 8 MiB, duplicates summed.
    #[must_use]
    pub fn new(target: PathBuf) -> Self {
        Self {
            target,
            replace: false,
            resume: false,
            format: FormatOption::Known(Format::Blco(IndexEncoding::Tiled)),
            codec: Codec::None,
            chunk_bytes: 8 << 20,
            duplicates: Duplicates::Sum,
            memory: u64::MAX,
            temp_dir: None,
            provenance: "{}\n".into(),
        }
    }
}

impl PackOptions {
    /// The options that decide the store's bytes.
    fn decisive(&self) -> String {
        let Self { format, codec, chunk_bytes, duplicates, .. } = self;
        format!("{format:?}, codec {codec:?}, chunks of {chunk_bytes} bytes, duplicates {duplicates:?}")
    }
}

/// The phases of packing, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading and parsing the source.
    Read,
    /// Linearizing and sorting.
    Sort,
    /// Encoding and writing chunks.
    Write,
}

/// Called with the phase, the nonzeros that it has done, and how many it will do where that is known.
pub type Watch<'a> = &'a (dyn Fn(Phase, u64, Option<u64>) + Sync);

/// What was packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackReport {
    /// The store.
    pub store: PathBuf,
    /// The digest, 16 hexadecimal digits.
    pub digest: String,
    /// The shape.
    pub dims: Vec<u32>,
    /// Bits of the linear index.
    pub linear_bits: u32,
    /// Nonzeros that the source handed over.
    pub input_nnz: u64,
    /// Nonzeros in the store.
    pub nnz: u64,
    /// Nonzeros that were added to one with the same coordinates.
    pub duplicates_summed: u64,
    /// Nonzeros kept though one with the same coordinates is there.
    pub duplicates_kept: u64,
    /// The format.
    pub format: &'static str,
    /// How indices are encoded in it.
    pub encoding: &'static str,
    /// Chunks.
    pub chunks: usize,
    /// Bytes of manifest and chunks.
    pub bytes: u64,
    /// Bytes for each nonzero.
    pub bytes_per_nnz: f64,
    /// What went to temporary files.
    pub spilled: SpillReport,
    /// Seconds of the phases and in all.
    pub seconds: PackSeconds,
}

/// Seconds of the phases.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PackSeconds {
    /// Reading and parsing; where the dims are declared, linearizing and all runs that do not stay in memory too.
    pub read: f64,
    /// Linearizing and sorting.
    pub sort: f64,
    /// Encoding and writing.
    pub write: f64,
    /// Making everything durable and renaming.
    pub publish: f64,
    /// All of it.
    pub total: f64,
}

/// Packs `source` into a store: drain, linearize and sort, settle duplicates, cut, publish.
///
/// An error leaves nothing behind. Runs on the current rayon pool.
pub fn pack(
    sys: &Sys,
    source: &mut dyn Source,
    options: &PackOptions,
    watch: Watch<'_>,
) -> Result<PackReport> {
    let start = Instant::now();
    let budget = Budget::of(options);
    plan(sys, source, options)?.check()?;
    let Prepared { staging, scratch, extent } = prepare(sys, source, options)?;
    let declared = if extent.is_none() { source.declared()? } else { None };
    let (input, shape) = if let Some(shape) = declared {
        (Input::Direct(scratch), shape)
    } else {
        let resumed_nnz = scratch.report().resumed_nnz;
        let mut stage = Stage::new(sys, budget, scratch);
        let extent = match extent {
            Some(extent) => extent,
            None => drain(sys, source, resumed_nnz, watch, |batch| stage.push(batch))?,
        };
        stage.drained(&extent)?;
        let shape = Shape::new(&extent.dims).map_err(|e| Error::input(source.name(), e.to_string()))?;
        (Input::Staged(stage, extent), shape)
    };
    let format = options.format.resolve(shape.order())?;
    let layout = format.bit_layout(&shape);
    let job = Job { sys, options, budget, watch, shape: &shape, format, layout: &layout, start };
    let written = if layout.bits() <= u64::BITS {
        job.write::<u64>(input, source, staging)?
    } else {
        job.write::<Wide>(input, source, staging)?
    };
    let mut seconds = written.seconds;
    seconds.total = start.elapsed().as_secs_f64();
    Ok(PackReport {
        store: options.target.clone(),
        digest: format!("{:016x}", written.published.id),
        dims: shape.dims().to_vec(),
        linear_bits: layout.bits(),
        input_nnz: written.input_nnz,
        nnz: written.nnz,
        duplicates_summed: written.summed,
        duplicates_kept: written.kept,
        format: format.name(),
        encoding: format.encoding_name(),
        spilled: written.spilled,
        chunks: written.published.chunks,
        bytes: written.published.bytes,
        bytes_per_nnz: written.published.bytes as f64 / written.nnz as f64,
        seconds,
    })
}

/// Drains `source`, but for its first `skip` nonzeros, into `sink`.
fn drain(
    sys: &Sys,
    source: &mut dyn Source,
    mut skip: u64,
    watch: Watch<'_>,
    mut sink: impl FnMut(Batch) -> Result<()>,
) -> Result<Extent> {
    let mut done = 0;
    source.drain(&mut |mut batch| {
        done += batch.nnz() as u64;
        let skipped = batch.nnz().min(usize::try_from(skip).unwrap_or(usize::MAX));
        if skipped > 0 {
            let order = batch.indices.len() / batch.nnz();
            batch.indices.drain(..skipped * order);
            batch.values.drain(..skipped);
            skip -= skipped as u64;
        }
        // Nothing is left of it: it is not to be held either.
        if batch.nnz() > 0 {
            sink(batch)?;
        }
        watch(Phase::Read, done, None);
        sys.check_cancelled()
    })
}

/// What there is to be sorted.
enum Input {
    /// The source, whose dims are declared, and what an earlier job has made of it.
    Direct(Scratch),
    /// What was kept and staged of a source of this extent.
    Staged(Stage, Extent),
}

/// A job that is ready to read its input.
struct Prepared {
    staging: Staging,
    scratch: Scratch,
    /// The input's extent, where an earlier job has read all of it.
    extent: Option<Extent>,
}

/// Opens the directory of the job, and with it what a killed job left, if this one is to resume it.
fn prepare(sys: &Sys, source: &dyn Source, options: &PackOptions) -> Result<Prepared> {
    let partial = partial_path(&options.target);
    let identity = source.identity()?;
    let spill_name = format!("{SPILL_PREFIX}{:016x}", xxh3_64(partial.as_os_str().as_encoded_bytes()));
    let job = journal::Job {
        version: journal::VERSION,
        input: source.name(),
        identity,
        options: options.decisive(),
        spill_dir: options.temp_dir.as_deref().unwrap_or(&partial).join(spill_name),
    };
    let left = Journal::read(sys, &partial)?.filter(|(_, finished, _)| finished.nnz() > 0);
    let left = match left {
        Some((old, finished, _)) if !finished.is_in(&old.spill_dir) => {
            gone(&old, options.resume)?;
            None
        }
        left => left,
    };
    let resumed = match left {
        Some((old, finished, bytes)) if options.resume => {
            same_job(&old, &job, &finished)?;
            Some((old.spill_dir, finished, bytes))
        }
        Some((old, finished, _)) if !options.replace => return Err(unfinished(&partial, &old, &finished)),
        _ => None,
    };
    let resume = resumed.is_some();
    let staging = Staging::create(sys, &options.target, options.replace, resume, options.codec)?;
    let (spill_dir, finished, journal) = if let Some((dir, finished, bytes)) = resumed {
        (dir, finished, Journal::resume(sys, staging.partial(), bytes)?)
    } else {
        let journal = Journal::create(sys, staging.partial(), &job)?;
        (job.spill_dir, journal::Finished::default(), journal)
    };
    let scratch = Scratch::new(sys, spill_dir, journal, &finished);
    Ok(Prepared { staging, scratch, extent: finished.extent })
}

/// An error unless `new` would do what `old` did, on the same input.
fn same_job(old: &journal::Job, new: &journal::Job, finished: &journal::Finished) -> Result<()> {
    if old.version != new.version {
        let what = "the unfinished pack was begun by another version of this program";
        return Err(Error::request(format!("--resume: {what}; start again with --force")));
    }
    if old.options != new.options {
        let what = format!("the unfinished pack had other options ({})", old.options);
        return Err(Error::request(format!("--resume: {what}; give the same, or start again with --force")));
    }
    let unreadable = new.identity.is_none() && finished.extent.is_none();
    if unreadable || new.identity.is_some() && old.identity != new.identity {
        let now = new.identity.as_deref().unwrap_or("read from a pipe, which cannot be read again");
        let then = old.identity.as_deref().unwrap_or("read from a pipe");
        let what = format!("the input is not what the unfinished pack read: it was {then}, it is {now}");
        return Err(Error::input(&new.input, format!("{what}; start again with --force")));
    }
    Ok(())
}

/// A job was killed while it removed its temporary files: there is nothing to resume.
fn gone(old: &journal::Job, resume: bool) -> Result<()> {
    if !resume {
        return Ok(());
    }
    let dir = old.spill_dir.display();
    let what = format!("temporary files of the unfinished pack are not in {dir} any more");
    Err(Error::request(format!("--resume: {what}; without --resume it starts again")))
}

/// What to say about what a killed job has left.
fn unfinished(partial: &Path, old: &journal::Job, finished: &journal::Finished) -> Error {
    let read = if finished.extent.is_some() { "all" } else { "part" };
    Error::request(format!(
        "{}: an unfinished pack of {} is here: {read} of its input read, {} nonzeros in {} runs and {} staged files \
         ({} bytes); --resume continues it, --force starts again",
        partial.display(),
        old.input,
        finished.nnz(),
        finished.runs.len(),
        finished.staged.len(),
        finished.bytes(),
    ))
}

/// One packing job once the shape is known.
struct Job<'a> {
    sys: &'a Sys,
    options: &'a PackOptions,
    budget: Budget,
    watch: Watch<'a>,
    shape: &'a Shape,
    format: Format,
    layout: &'a BitLayout,
    start: Instant,
}

/// What a job wrote.
struct Written {
    published: Published,
    input_nnz: u64,
    nnz: u64,
    summed: u64,
    kept: u64,
    spilled: SpillReport,
    seconds: PackSeconds,
}

impl Job<'_> {
    /// Sorts by a linear index of type `K` and writes the store.
    fn write<K: Key>(&self, input: Input, source: &mut dyn Source, staging: Staging) -> Result<Written> {
        let mut clock = Clock(self.start);
        let mut seconds = PackSeconds::default();
        let (runs, input_nnz) = match input {
            Input::Direct(scratch) => {
                let resumed_nnz = scratch.report().resumed_nnz;
                let mut runs = Runs::<K>::new(self.sys, self.budget, scratch, self.layout);
                let extent = drain(self.sys, source, resumed_nnz, self.watch, |batch| runs.push(batch))?;
                runs.drained(&extent)?;
                seconds.read = clock.lap();
                (runs, extent.nnz)
            }
            Input::Staged(stage, extent) => {
                seconds.read = clock.lap();
                (stage.into_runs(&extent, self.layout, self.watch)?, extent.nnz)
            }
        };
        (self.watch)(Phase::Sort, 0, Some(input_nnz));
        let sorted = runs.sort()?;
        let spilled = sorted.spilled();
        seconds.sort = clock.lap();

        let mut combiner = Combiner::new(self.layout, self.options.duplicates);
        let mut staging = staging;
        let manifest = self.cut(&sorted, &mut combiner, &mut staging, input_nnz).map_err(|e| match e {
            Error::Request(what) => Error::input(source.name(), what),
            other => other,
        })?;
        seconds.write = clock.lap();

        let published = staging.publish(&manifest, self.options.provenance.as_bytes())?;
        // Only now, so that a job that is killed while it publishes can be resumed; and before the journal goes.
        drop(sorted);
        drop(staging);
        seconds.publish = clock.lap();
        Ok(Written {
            published,
            input_nnz,
            nnz: manifest.nnz,
            summed: combiner.summed(),
            kept: combiner.kept(),
            spilled,
            seconds,
        })
    }

    /// Settles duplicates and cuts everything into chunks.
    fn cut<K: Key>(
        &self,
        sorted: &Sorted<K>,
        combiner: &mut Combiner<K>,
        staging: &mut Staging,
        total: u64,
    ) -> Result<Manifest> {
        let mut cutter = Cutter::new(self.shape, &self.format, self.options.chunk_bytes);
        let mut store = |chunk: BuiltChunk| staging.add(chunk.header, chunk.image, chunk.entry);
        let mut done = 0;
        sorted.for_each_slice(|slice| {
            slice.chunks(GROUP_NNZ).try_for_each(|part| {
                self.sys.check_cancelled()?;
                cutter.push(combiner.push(part)?, &mut store)?;
                done += part.len() as u64;
                (self.watch)(Phase::Write, done, Some(total));
                Ok(())
            })
        })?;
        if done != total {
            let what = format!("temporary files hold {done} of {total} nonzeros; pack again with --force");
            return Err(Error::corrupt(partial_path(&self.options.target), what));
        }
        cutter.push(combiner.finish(), &mut store)?;
        let statistics = cutter.finish(&mut store)?;
        if statistics.nnz() == 0 {
            return Err(Error::request("no nonzeros"));
        }
        Ok(Manifest {
            shape: self.shape.clone(),
            format: self.format,
            codec: self.options.codec,
            may_repeat: self.options.duplicates == Duplicates::Keep,
            chunk_bytes: self.options.chunk_bytes,
            nnz: statistics.nnz(),
            sum_squares: statistics.sum_squares(),
            value_min: statistics.value_min(),
            value_max: statistics.value_max(),
            longest_row_bounds: statistics.longest_row_bounds(),
            chunks: staging.entries().to_vec(),
        })
    }
}

/// Measures one phase after the other.
struct Clock(Instant);

impl Clock {
    /// Seconds since the last lap.
    fn lap(&mut self) -> f64 {
        let last = std::mem::replace(&mut self.0, Instant::now());
        (self.0 - last).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten batches of three nonzeros.
    struct Batches;

    impl Source for Batches {
        fn name(&self) -> String {
            "batches".into()
        }

        fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
            for i in 0..10u32 {
                sink(Batch { indices: vec![i; 6], values: vec![f64::from(i); 3] })?;
            }
            Ok(Extent { dims: vec![10, 10], nnz: 30 })
        }
    }

    /// What a resumed job has in its files already is not held in memory again.
    #[test]
    fn skipped_batches_are_not_handed_on() {
        let mut seen = Vec::new();
        let extent = drain(&Sys::default(), &mut Batches, 25, &|_, _, _| {}, |batch| {
            seen.push((batch.indices.clone(), batch.values.clone()));
            Ok(())
        });
        assert_eq!(extent.unwrap().nnz, 30);
        assert_eq!(seen, [(vec![8; 4], vec![8.0; 2]), (vec![9; 6], vec![9.0; 3])]);
    }

    #[test]
    fn a_journal_of_another_version_is_not_resumed() {
        let job = |version| journal::Job {
            version,
            input: "t.tns".into(),
            identity: Some("1".into()),
            options: String::new(),
            spill_dir: "spill".into(),
        };
        let finished = journal::Finished::default();
        let now = journal::VERSION;
        assert!(same_job(&job(now), &job(now), &finished).is_ok());
        let refused = same_job(&job(now - 1), &job(now), &finished).unwrap_err().to_string();
        assert!(refused.contains("another version"), "{refused}");
    }
}
