//! A table that has been read, as indexed nonzeros and information about its modes.

use super::dictionary::{Dictionary, index_of};
use super::input::TableInput;
use super::number::NumberRange;
use super::options::{TableMode, TableOptions, Treatment};
use super::piece::Range;
use super::read::{Frame, ReadColumn, ReadMemory, ReadTable, read};
use super::scratch::{SPOOL_BYTES, Scratch};
use super::time::{Clock, TimeBins, parts_of_a_second};
use crate::coo::tns::{OpenedFile, file_identity};
use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::{Error, Result};
use crate::shape::{DIM_MAX, Shape};
use crate::store::Store;
use crate::store::labels::{LabelKind, LabelWriter, ModeInfo, ModesInfo, NewLabels};
use crate::sys::{File, SpillDir, Sys};
use jiff::tz::TimeZone;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Memory of a frame while it becomes a batch, in frames: the allocator keeps as many bytes again after they are freed.
const FRAMES_HELD: u64 = 4;
/// Frames that each thread makes into batches before the batches are handed on.
const BATCHED: usize = 8;

/// How a mode's column becomes indices.
#[derive(Debug)]
enum ModeIndex {
    /// By the dictionary, whose numbers these are.
    Labels(Dictionary),
    /// By bins of time, of which the first is this.
    Times { bins: TimeBins, low: i64, scale: Option<i64> },
    /// By bins of numbers.
    Numbers(NumberRange),
}

/// A table's nonzeros: a [`Source`] for [`Engine::pack`](crate::Engine::pack), with labels for each mode.
#[derive(Debug)]
pub struct Table {
    sys: Sys,
    name: String,
    zone: TimeZone,
    modes: Vec<ModeIndex>,
    frames: Vec<Frame>,
    has_values: bool,
    rows: u64,
    dropped: u64,
    epoch_labels: u64,
    labels_seconds: f64,
    dims: Vec<u64>,
    labels: Arc<NewLabels>,
    scratch: Scratch,
    /// Frames that are made into batches at once.
    group: usize,
    identity: Option<String>,
}

impl Table {
    /// Reads the table `path`, or standard input where it is `-`, on the current rayon pool; `older` is the store whose labels
    /// keep their indices. `watch` receives the number of rows.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for what is no table: file, line, row, column and what to do.
    pub(crate) fn read(
        sys: &Sys,
        path: &Path,
        options: &TableOptions,
        older: Option<&Store>,
        watch: &(dyn Fn(u64) + Sync),
    ) -> Result<Self> {
        let (name, input, file) = TableInput::open(sys, path, options)?;
        Self::take_in(sys, name, input, file.as_ref(), options, older, watch)
    }

    /// The same for batches from the caller.
    #[cfg(feature = "arrow")]
    pub(crate) fn of_batches(
        sys: &Sys,
        name: &str,
        batches: impl arrow_array::RecordBatchReader + Send + 'static,
        options: &TableOptions,
        older: Option<&Store>,
        watch: &(dyn Fn(u64) + Sync),
    ) -> Result<Self> {
        let rows = super::arrow::ArrowRows::given(name, batches, options)?;
        Self::take_in(sys, name.to_owned(), TableInput::Arrow(Box::new(rows)), None, options, older, watch)
    }

    fn take_in(
        sys: &Sys,
        name: String,
        input: TableInput,
        file: Option<&OpenedFile>,
        options: &TableOptions,
        older: Option<&Store>,
        watch: &(dyn Fn(u64) + Sync),
    ) -> Result<Self> {
        let threads = rayon::current_num_threads();
        let memory = ReadMemory::new(options.memory, input.decoder_bytes(), threads, &name)?;
        let scratch = Scratch::new(sys, &options.temp_dir, memory.kept);
        let read = read(sys, input, &name, options, memory, &scratch, watch);
        if matches!(read, Ok(_) | Err(Error::Input { .. }))
            && let Some((file, state)) = file
        {
            file.check_unchanged(state)?;
        }
        let read = read?;
        let identity = identity(file, options)?;
        Self::index(sys, name, read, options, older, scratch, identity)
    }

    /// Gives all labels their indices.
    fn index(
        sys: &Sys,
        name: String,
        read: ReadTable,
        options: &TableOptions,
        older: Option<&Store>,
        scratch: Scratch,
        identity: Option<String>,
    ) -> Result<Self> {
        let start = Instant::now();
        let ReadTable { rules, columns, frames, rows, dropped, epoch_labels } = read;
        let layout = Layout::new(&columns, rules.value.is_some());
        let merging = Merging {
            sys,
            name: &name,
            scratch: &scratch,
            zone: &rules.zone,
            frames: &frames,
            rows,
            older,
            memory: options.memory,
        };
        let made = columns.into_par_iter().enumerate().map(|(at, column)| {
            let offset = layout.offset(at);
            merging.mode(at, &options.modes[at], column, offset)
        });
        let made: Vec<MadeMode> = made.collect::<Result<_>>()?;
        let (mut modes, mut infos, mut files, mut dims, mut keeps) = (vec![], vec![], vec![], vec![], None);
        for MadeMode { index, info, file, dim, dir } in made {
            modes.push(index);
            infos.push(info);
            files.push(Some((file, dim)));
            dims.push(dim);
            keeps = Some(dir);
        }
        Shape::new(&dims).map_err(|e| Error::input(&name, e.to_string()))?;
        let value_name = rules.value.map_or_else(String::new, |at| rules.names[at].clone());
        let info = ModesInfo { value_name, modes: infos };
        let labels = Arc::new(NewLabels { info, files, lost: Vec::new(), keeps });
        Ok(Self {
            sys: sys.clone(),
            name,
            zone: rules.zone,
            modes,
            frames,
            has_values: rules.value.is_some(),
            rows,
            dropped,
            epoch_labels,
            labels_seconds: start.elapsed().as_secs_f64(),
            dims,
            labels,
            scratch,
            group: usize::MAX,
            identity,
        })
    }

    /// What a store is to say of the modes: for [`PackOptions`](crate::PackOptions).
    #[must_use]
    pub fn labels(&self) -> Arc<NewLabels> {
        Arc::clone(&self.labels)
    }

    /// Rows that are kept: its nonzeros.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Seconds in which labels got their indices, after all rows had been read.
    #[must_use]
    pub fn labels_seconds(&self) -> f64 {
        self.labels_seconds
    }

    /// Rows that were left out because a label or the value is not there.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether a column holds values; otherwise each row counts 1.
    #[must_use]
    pub fn has_values(&self) -> bool {
        self.has_values
    }

    /// Bytes of a row as it waits.
    fn row_bytes(&self) -> usize {
        Layout::of(self.modes.iter().map(|mode| matches!(mode, ModeIndex::Labels(_))), self.has_values)
            .row_bytes
    }

    /// Bytes that a frame takes while it becomes a batch.
    fn frame_bytes(&self) -> u64 {
        let rows = self.frames.iter().map(|frame| frame.rows).max().unwrap_or(0);
        (rows * (self.row_bytes() + 4 * self.modes.len() + 8)) as u64
    }

    /// Bytes of indices by numbers, of an epoch, and of rows that are kept in memory.
    fn held_bytes(&self) -> u64 {
        4 * self.epoch_labels + self.scratch.kept_bytes()
    }

    /// The nonzeros of a frame, whose bytes these are.
    fn batch(&self, rows: usize, bytes: &[u8], indices: &[Option<Vec<Vec<u32>>>]) -> Result<Batch> {
        let order = self.modes.len();
        let mut batch = Batch { indices: self.sys.vec(0, rows * order)?, values: Vec::new() };
        let mut rest = bytes;
        for (at, mode) in self.modes.iter().enumerate() {
            let width = if matches!(mode, ModeIndex::Labels(_)) { 4 } else { 8 };
            let (column, behind) = rest.split_at(rows * width);
            rest = behind;
            let out = batch.indices[at..].iter_mut().step_by(order);
            match (mode, &indices[at]) {
                (ModeIndex::Labels(_), Some(indices)) => {
                    let numbers = column.as_chunks::<4>().0.iter().map(|n| u32::from_le_bytes(*n));
                    out.zip(numbers).for_each(|(out, number)| *out = index_of(indices, number));
                }
                (ModeIndex::Times { bins, low, scale }, _) => {
                    let mut clock = Clock::new(&self.zone);
                    for (out, time) in out.zip(column.as_chunks::<8>().0) {
                        let bin = bin(*bins, *scale, &mut clock, i64::from_le_bytes(*time));
                        *out = u32::try_from(bin.unwrap_or(*low) - low).unwrap_or(0);
                    }
                }
                (ModeIndex::Numbers(range), _) => {
                    let numbers = column.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x));
                    out.zip(numbers).for_each(|(out, x)| *out = range.bin(x));
                }
                (ModeIndex::Labels(_), None) => {}
            }
        }
        batch.values = if self.has_values {
            rest.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x)).collect()
        } else {
            self.sys.vec(1.0, rows)?
        };
        Ok(batch)
    }
}

/// What tells a table's file and the way in which it is read from others.
fn identity(file: Option<&OpenedFile>, options: &TableOptions) -> Result<Option<String>> {
    let Some((file, _)) = file else { return Ok(None) };
    let TableOptions { modes, value, nulls, timezone, csv, labels_from, .. } = options;
    let options = format!("{modes:?} {value:?} {nulls:?} {timezone:?} {csv:?} {labels_from:?}");
    Ok(Some(format!("{}, read with {options}", file_identity(file)?)))
}

/// The bin of a time: `scale` parts of a second make up its unit if it is a number.
fn bin(bins: TimeBins, scale: Option<i64>, clock: &mut Clock<'_>, time: i64) -> Option<i64> {
    let time = super::time::decided(time, scale.is_some());
    let civil = match scale {
        Some(parts) => clock.civil(time.div_euclid(parts))?,
        None => time,
    };
    Some(bins.bin(civil))
}

/// Where the columns of a frame lie.
struct Layout {
    widths: Vec<usize>,
    row_bytes: usize,
}

impl Layout {
    fn new(columns: &[ReadColumn], has_values: bool) -> Self {
        Self::of(columns.iter().map(|column| matches!(column, ReadColumn::Labels(_))), has_values)
    }

    fn of(are_labels: impl Iterator<Item = bool>, has_values: bool) -> Self {
        let widths: Vec<usize> = are_labels.map(|labels| if labels { 4 } else { 8 }).collect();
        let row_bytes = widths.iter().sum::<usize>() + if has_values { 8 } else { 0 };
        Self { widths, row_bytes }
    }

    /// Bytes of a row before its column `at`.
    fn offset(&self, at: usize) -> usize {
        self.widths[..at].iter().sum()
    }
}

/// What making modes takes.
struct Merging<'a> {
    sys: &'a Sys,
    name: &'a str,
    scratch: &'a Scratch,
    zone: &'a TimeZone,
    frames: &'a [Frame],
    rows: u64,
    older: Option<&'a Store>,
    memory: u64,
}

/// A mode with its labels.
struct MadeMode {
    index: ModeIndex,
    info: ModeInfo,
    file: File,
    dim: u64,
    dir: Arc<SpillDir>,
}

impl Merging<'_> {
    /// Makes mode `at` of its column, which lies at `offset` in a row.
    fn mode(&self, at: usize, mode: &TableMode, column: ReadColumn, offset: usize) -> Result<MadeMode> {
        let (dir, file) = self.scratch.create(&format!("labels-{at}"))?;
        let mut writer = LabelWriter::new(file);
        let (index, kind, steps) = match (column, mode.treatment) {
            (ReadColumn::Labels(dictionary), Treatment::Quantiles(count)) => {
                self.no_older(mode)?;
                (self.quantiles(dictionary, count, &mut writer)?, LabelKind::Number, true)
            }
            (ReadColumn::Labels(dictionary), _) => {
                let (index, kind) = self.dictionary(dictionary, mode, &mut writer)?;
                (index, kind, false)
            }
            (ReadColumn::Times(facts), Treatment::Time(bins)) => {
                let (is_number, range) = facts.decided();
                let index = self.times(bins, is_number, range, offset, mode, &mut writer)?;
                let cyclic = bins.cycle().is_some();
                (index, if cyclic { LabelKind::Cyclic } else { LabelKind::Time }, !cyclic)
            }
            (ReadColumn::Numbers(Some(range)), Treatment::Number(bins)) => {
                self.no_older(mode)?;
                let range = NumberRange::new(bins, range.low, range.high);
                (0..range.count()).try_for_each(|bin| writer.push(&range.label(bin)))?;
                (ModeIndex::Numbers(range), LabelKind::Number, true)
            }
            _ => return Err(Error::input(self.name, format!("mode {:?} has no rows", mode.name))),
        };
        let dim = writer.labels();
        let (facts, file) = writer.finish()?;
        let info = ModeInfo { name: mode.name.clone(), kind, steps, file: Some(facts) };
        Ok(MadeMode { index, info, file, dim, dir })
    }

    fn no_older(&self, mode: &TableMode) -> Result<()> {
        let what = "`labels_from` keeps labels and bins of time, not bins of numbers; pack all rows together";
        if self.older.is_some() {
            Err(Error::request(format!("mode {:?}: {what}", mode.name)))
        } else {
            Ok(())
        }
    }

    /// The older store's mode of the same name, from 0.
    fn old_mode(&self, mode: &TableMode) -> Result<Option<(&Store, usize, ModeInfo)>> {
        let Some(store) = self.older else { return Ok(None) };
        let path = store.path().display();
        let info = store.modes_info().ok_or_else(|| {
            Error::request(format!("{path}: has no labels; give a store that was packed from a table"))
        })?;
        let at = info.mode(&mode.name).ok_or_else(|| {
            let names: Vec<&str> = info.modes.iter().map(|mode| &mode.name[..]).collect();
            Error::request(format!("{path}: has no mode {:?}; it has {}", mode.name, names.join(", ")))
        })?;
        Ok(Some((store, at, info.modes[at].clone())))
    }

    /// Merges a dictionary.
    fn dictionary(
        &self,
        mut dictionary: Dictionary,
        mode: &TableMode,
        writer: &mut LabelWriter,
    ) -> Result<(ModeIndex, LabelKind)> {
        /// Labels that are sorted at once, of an older store.
        const LABELS: usize = 1 << 16;
        if let Some((store, at, info)) = self.old_mode(mode)? {
            if info.file.is_none() || info.steps || info.kind == LabelKind::Cyclic {
                return Err(other_bins(store, &info));
            }
            let (mut some, mut first) = (Vec::new(), 0);
            let scratch = self.scratch;
            if let Some(mut labels) = store.labels(at)? {
                labels.for_each(|index, label| {
                    writer.push(label)?;
                    some.push(label.to_owned());
                    if some.len() == LABELS {
                        dictionary.push_old(&some, info.kind, first, scratch)?;
                        (first, some) = (index + 1, Vec::new());
                    }
                    Ok(true)
                })?;
            }
            dictionary.push_old(&some, info.kind, first, scratch)?;
        }
        self.check_runs(&dictionary)?;
        let old = u64::from(dictionary.old());
        let kind = dictionary.merge(self.scratch, |index, text, _| {
            self.sys.check_cancelled()?;
            let text =
                std::str::from_utf8(text).map_err(|_| Error::input(self.name, "a label is not UTF-8"))?;
            writer.push(text)?;
            Ok(u32::try_from(old + index).unwrap_or(u32::MAX))
        })?;
        Ok((ModeIndex::Labels(dictionary), kind))
    }

    /// An error where runs are too many to be merged at once.
    fn check_runs(&self, dictionary: &Dictionary) -> Result<()> {
        let least = dictionary.runs() as u64 * 3 * SPOOL_BYTES as u64;
        if self.memory >= crate::pack::MEMORY_MIN && least > self.memory / 2 {
            let [given, least] = [self.memory, 2 * least].map(bytesize::ByteSize);
            let what = format!(
                "`memory` {given} is too little: merging the labels of {} takes at least {least}",
                self.name
            );
            return Err(Error::request(what));
        }
        Ok(())
    }

    /// Bins of about as many rows each; equal numbers are in the same one.
    fn quantiles(
        &self,
        mut dictionary: Dictionary,
        count: u32,
        writer: &mut LabelWriter,
    ) -> Result<ModeIndex> {
        self.check_runs(&dictionary)?;
        let (mut below, mut open): (u64, Option<(u64, [String; 2])>) = (0, None);
        let mut bins = 0u32;
        let label = |[low, high]: &[String; 2]| format!("[{low}, {high}]");
        dictionary.merge(self.scratch, |_, text, times| {
            let text = String::from_utf8_lossy(text).trim().to_owned();
            let bin = u64::try_from(u128::from(below) * u128::from(count) / u128::from(self.rows.max(1)))
                .unwrap_or(0);
            below += times;
            match &mut open {
                Some((last, ends)) if *last == bin => ends[1] = text,
                open => {
                    if let Some((_, ends)) = open.replace((bin, [text.clone(), text])) {
                        writer.push(&label(&ends))?;
                        bins += 1;
                    }
                }
            }
            Ok(bins)
        })?;
        if let Some((_, ends)) = open {
            writer.push(&label(&ends))?;
        }
        Ok(ModeIndex::Labels(dictionary))
    }

    /// Bins of time over the whole range.
    fn times(
        &self,
        bins: TimeBins,
        is_number: bool,
        range: Option<Range<i64>>,
        offset: usize,
        mode: &TableMode,
        writer: &mut LabelWriter,
    ) -> Result<ModeIndex> {
        let Some(range) = range else { return Err(Error::input(self.name, "no rows")) };
        let scale = is_number.then(|| parts_of_a_second(range.low, range.high));
        let mut clock = Clock::new(self.zone);
        let mut ends = [range.low, range.high].map(|time| bin(bins, scale, &mut clock, time));
        // A clock that is set back shows less after more.
        if is_number && *self.zone != TimeZone::UTC {
            let found = self.bin_range(bins, scale, offset)?;
            ends = [found.map(|range| range.low), found.map(|range| range.high)];
        }
        let [Some(mut low), Some(mut high)] = ends else {
            let what = format!(
                "column {:?}: a time outside of the years -9999 to 9999; correct it, or leave the row out",
                mode.column
            );
            return Err(Error::input(self.name, what));
        };
        if let Some(count) = bins.cycle() {
            if let Some((store, at, info)) = self.old_mode(mode)?
                && (info.kind != LabelKind::Cyclic || store.dims()[at] != count)
            {
                return Err(other_bins(store, &info));
            }
            (low, high) = (0, i64::from(count) - 1);
        } else if let Some((store, at, info)) = self.old_mode(mode)? {
            let old = Self::old_bins(bins, store, at, &info)?;
            if low < old.low {
                let path = store.path().display();
                let (first, found) = (bins.label(old.low), bins.label(low));
                let what = format!(
                    "column {:?}: {found} is before {first}, where mode {:?} of {path} begins; pack all rows together",
                    mode.column, mode.name
                );
                return Err(Error::input(self.name, what));
            }
            (low, high) = (old.low, high.max(old.high));
        }
        if high - low >= DIM_MAX.cast_signed() {
            return Err(Error::input(
                self.name,
                format!("column {:?}: more than {DIM_MAX} bins; take longer ones", mode.column),
            ));
        }
        (low..=high).try_for_each(|bin| writer.push(&bins.label(bin)))?;
        Ok(ModeIndex::Times { bins, low, scale })
    }

    /// The first and last bin of all rows.
    fn bin_range(&self, bins: TimeBins, scale: Option<i64>, offset: usize) -> Result<Option<Range<i64>>> {
        let (mut clock, mut buffer, mut range) = (Clock::new(self.zone), Vec::new(), None);
        for frame in self.frames {
            self.sys.check_cancelled()?;
            self.scratch.read(&frame.extent, &mut buffer)?;
            for time in &buffer[offset * frame.rows..].as_chunks::<8>().0[..frame.rows] {
                match bin(bins, scale, &mut clock, i64::from_le_bytes(*time)) {
                    Some(bin) => Range::add(&mut range, bin),
                    None => return Ok(None),
                }
            }
        }
        Ok(range)
    }

    /// The bins that an older store's mode has.
    fn old_bins(bins: TimeBins, store: &Store, at: usize, info: &ModeInfo) -> Result<Range<i64>> {
        let first = match store.labels(at)? {
            Some(mut labels) if info.steps && info.kind == LabelKind::Time => Some(labels.get(0)?.to_owned()),
            _ => None,
        };
        let parsed = first.as_deref().and_then(|label| super::time::parse(label.as_bytes(), &TimeZone::UTC));
        match (parsed, first) {
            (Some(super::time::Moment::Civil(seconds, _)), Some(first))
                if bins.label(bins.bin(seconds)) == first =>
            {
                let low = bins.bin(seconds);
                Ok(Range { low, high: low + i64::from(store.dims()[at]) - 1 })
            }
            _ => Err(other_bins(store, info)),
        }
    }
}

/// The error where an older store's mode was made otherwise than the new one.
fn other_bins(store: &Store, info: &ModeInfo) -> Error {
    let what = format!("mode {:?} has other bins, or none; give the same as it was packed with", info.name);
    Error::request(format!("{}: {what}", store.path().display()))
}

impl Source for Table {
    fn is_checked(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn identity(&self) -> Result<Option<String>> {
        Ok(self.identity.clone())
    }

    fn size(&self) -> Result<Option<Size>> {
        Ok(Some(Size { nnz: self.rows, order: self.modes.len() }))
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        Shape::new(&self.dims).map(Some)
    }

    fn memory(&self, threads: usize) -> SourceMemory {
        let (held, frame) = (self.held_bytes(), self.frame_bytes());
        let help = "fewer labels in memory: a smaller `memory` while the table is read";
        let help = if held > 8 * frame { help } else { "" };
        SourceMemory {
            least: held + FRAMES_HELD * frame,
            most: held + FRAMES_HELD * frame * (BATCHED * threads) as u64,
            help,
        }
    }

    fn limit(&mut self, bytes: u64) {
        let group = bytes.saturating_sub(self.held_bytes()) / (FRAMES_HELD * self.frame_bytes()).max(1);
        self.group = usize::try_from(group).unwrap_or(usize::MAX).max(1);
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let group = self.group.min(BATCHED * rayon::current_num_threads());
        let mut indices: Vec<Option<Vec<Vec<u32>>>> = self.modes.iter().map(|_| None).collect();
        let mut epoch = usize::MAX;
        for frames in self.frames.chunk_by(|a, b| a.epoch == b.epoch).flat_map(|frames| frames.chunks(group))
        {
            self.sys.check_cancelled()?;
            if frames[0].epoch != epoch {
                epoch = frames[0].epoch;
                for (indices, mode) in indices.iter_mut().zip(&self.modes) {
                    *indices = None;
                    if let ModeIndex::Labels(dictionary) = mode {
                        *indices = Some(dictionary.indices(epoch, &self.scratch)?);
                    }
                }
            }
            let batch = |frame: &Frame| {
                let mut buffer = Vec::new();
                self.scratch.read(&frame.extent, &mut buffer)?;
                self.batch(frame.rows, &buffer, &indices)
            };
            let batches: Vec<Result<Batch>> = frames.par_iter().map(batch).collect();
            batches.into_iter().try_for_each(|batch| sink(batch?))?;
        }
        Ok(Extent { dims: self.dims.clone(), nnz: self.rows })
    }
}
