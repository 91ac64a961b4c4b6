//! Takes a table in: all of its rows, with labels as numbers, wait in scratch when this is done.

use super::csv::{CsvPieces, Dialect, Sniffed, sniff};
use super::dictionary::{Dictionary, PieceLabels, Wanted};
use super::input::{Pieces, RawPiece, TableInput};
use super::json;
use super::options::{Nulls, TableOptions, Treatment, find_column, listed};
use super::piece::{
    NullCount, PIECE_BYTES, Piece, PieceColumn, PieceFault, Range, Rules, TimeFacts, Written, mixed_times,
};
use super::scratch::{Extent, Scratch};
use super::time;
use crate::error::{Error, Result};
use crate::store::labels::LabelKind;
use crate::sys::Sys;
use crate::sys::sync::{Receiver, Sender, bounded, scope};
use rayon::prelude::*;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Pieces of a group for each thread.
const PIECES_PER_THREAD: usize = 16;
/// Bytes that a piece of a group takes: its text, and that of a piece of the next group.
const GROUPED_BYTES: u64 = 5 * PIECE_BYTES as u64 / 2;

/// Rows that wait: how many there are, in which epoch, and their columns one behind the other.
#[derive(Debug)]
pub struct Frame {
    /// Rows.
    pub rows: usize,
    /// The epoch whose numbers they hold.
    pub epoch: usize,
    /// For each mode numbers of labels (u32), times (i64) or numbers (f64), then values (f64).
    pub extent: Extent,
}

/// A mode's column, when all rows have been read.
#[derive(Debug)]
pub enum ReadColumn {
    /// Labels.
    Labels(Dictionary),
    /// Times.
    Times(TimeFacts),
    /// Numbers, from which to which.
    Numbers(Option<Range<f64>>),
}

/// A table that has been read.
#[derive(Debug)]
pub struct ReadTable {
    /// How it was read.
    pub rules: Rules,
    /// The modes' columns.
    pub columns: Vec<ReadColumn>,
    /// The rows.
    pub frames: Vec<Frame>,
    /// Rows that are kept.
    pub rows: u64,
    /// Rows that were left out.
    pub dropped: u64,
    /// The most labels of an epoch, in all columns.
    pub epoch_labels: u64,
}

/// How many pieces are in a group, and what the tables of labels may take.
#[derive(Clone, Copy, Debug)]
pub struct ReadMemory {
    group: usize,
    tables: u64,
    /// What rows and runs may take until they go to a file.
    pub kept: u64,
}

impl ReadMemory {
    /// Of `memory` bytes, where decoding takes `decoder`; an error where that is too little.
    pub fn new(memory: u64, decoder: u64, threads: usize, name: &str) -> Result<Self> {
        /// The program, and each thread.
        const PROGRAM_BYTES: u64 = 10 << 20;
        const THREAD_BYTES: u64 = 2 << 20;
        const TABLES_MIN: u64 = 8 << 20;
        let fixed = PROGRAM_BYTES + THREAD_BYTES * threads as u64 + decoder + 2 * PIECE_BYTES as u64;
        let room = memory.saturating_sub(fixed);
        let group = usize::try_from(room / 5 / GROUPED_BYTES).unwrap_or(usize::MAX);
        let group = group.clamp(1, PIECES_PER_THREAD * threads);
        let room = room.saturating_sub(group as u64 * GROUPED_BYTES);
        if room < TABLES_MIN && memory >= crate::pack::MEMORY_MIN {
            let least = bytesize::ByteSize(
                (fixed + GROUPED_BYTES * 5 / 4 + TABLES_MIN * 5 / 4).next_multiple_of(1 << 20),
            );
            let given = bytesize::ByteSize(memory);
            return Err(Error::request(format!(
                "`memory` {given} is too little: reading {name} takes at least {least}"
            )));
        }
        // Tables grow by doubling, and are sorted beside an order of theirs.
        Ok(Self { group, tables: room * 2 / 5, kept: room / 5 })
    }
}

/// Reads the table `input`, called `name`.
pub fn read(
    sys: &Sys,
    input: TableInput,
    name: &str,
    options: &TableOptions,
    memory: ReadMemory,
    scratch: &Scratch,
    watch: &(dyn Fn(u64) + Sync),
) -> Result<ReadTable> {
    let wanted: Vec<&str> =
        options.modes.iter().map(|mode| &mode.column[..]).chain(options.value.as_deref()).collect();
    let (mut pieces, written, names, columns) = match input {
        TableInput::Text(text) => {
            let mut pieces = CsvPieces::new(sys, text, PIECE_BYTES);
            let head = pieces.head()?;
            let (dialect, written, names, columns) = if json::is_json(head) {
                options.csv.refuse(name)?;
                let names = json::columns(head, name)?;
                let columns = names.len();
                (Dialect::LINES, Written::JsonLines, Some(names), columns)
            } else {
                let Sniffed { dialect, names, columns } = sniff(options.csv, head, &wanted, name)?;
                (dialect, Written::Csv { dialect, has_header: names.is_some() }, names, columns)
            };
            pieces.divide_by(dialect);
            (Pieces::Text(pieces), Some(written), names, columns)
        }
        #[cfg(feature = "arrow")]
        TableInput::Arrow(rows) => {
            let names = rows.names();
            let columns = names.len();
            (Pieces::Arrow(rows), None, Some(names), columns)
        }
    };
    let numbers = || (1..=columns).map(|n| n.to_string()).collect();
    if options.modes.is_empty() {
        let names = names.unwrap_or_else(numbers);
        let what = format!(
            "say which columns are modes, and which holds values: --modes A,B,… --value C; the columns are {}",
            listed(&names)
        );
        return Err(Error::input(name, what));
    }
    let column = |wanted: &str| find_column(wanted, names.as_deref(), columns, name);
    let modes = options.modes.iter().map(|mode| Ok((column(&mode.column)?, mode.treatment)));
    let zone = time::zone(options.timezone.as_deref().unwrap_or("UTC"))?;
    let rules = Rules {
        written,
        modes: modes.collect::<Result<_>>()?,
        value: options.value.as_deref().map(column).transpose()?,
        names: names.unwrap_or_else(numbers),
        nulls: options.nulls,
        zone,
        seed: RandomState::new().build_hasher().finish(),
    };
    pieces.take_only(rules.modes.iter().map(|&(column, _)| column).chain(rules.value))?;
    let mut intake = Intake::new(sys, name, rules, memory, scratch);
    intake.read_all(pieces, watch)?;
    intake.finish()
}

/// What has been read.
struct Intake<'a> {
    sys: &'a Sys,
    name: &'a str,
    rules: Rules,
    memory: ReadMemory,
    scratch: &'a Scratch,
    columns: Vec<ReadColumn>,
    frames: Vec<Frame>,
    /// Pieces whose memory is used again.
    spare: Mutex<Vec<Piece>>,
    epoch: usize,
    epoch_labels: u64,
    /// Rows and lines, the header's too.
    rows: u64,
    lines: u64,
    kept: u64,
    dropped: u64,
    nulls: Vec<NullCount>,
}

impl<'a> Intake<'a> {
    fn new(sys: &'a Sys, name: &'a str, rules: Rules, memory: ReadMemory, scratch: &'a Scratch) -> Self {
        let column = |&(_, treatment): &(usize, Treatment)| {
            let labels = |kind, quantiles| {
                ReadColumn::Labels(Dictionary::new(Wanted { kind, quantiles }, &rules.zone))
            };
            match treatment {
                Treatment::Labels => labels(None, None),
                Treatment::Kind(kind) => labels(Some(kind), None),
                Treatment::Quantiles(count) => labels(Some(LabelKind::Number), Some(count)),
                Treatment::Time(_) => ReadColumn::Times(TimeFacts::default()),
                Treatment::Number(_) => ReadColumn::Numbers(None),
            }
        };
        let columns = rules.modes.iter().map(column).collect();
        let nulls = vec![NullCount::default(); rules.modes.len() + 1];
        Self {
            sys,
            name,
            rules,
            memory,
            scratch,
            columns,
            frames: Vec::new(),
            spare: Mutex::default(),
            epoch: 0,
            epoch_labels: 0,
            rows: 0,
            lines: 0,
            kept: 0,
            dropped: 0,
            nulls,
        }
    }

    fn read_all(&mut self, pieces: Pieces, watch: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let (sys, group) = (self.sys, self.memory.group);
        scope(|scope| {
            let (full_sender, full) = bounded(group);
            let (empty, empty_receiver) = bounded(2 * group + 2);
            sys.spawn(scope, "read-table".into(), move || {
                read_pieces(pieces, &full_sender, &empty_receiver);
            })?;
            let mut incoming = full.iter();
            let mut skip = self.rules.written.is_some_and(Written::has_header);
            loop {
                sys.check_cancelled()?;
                let mut group: Vec<Result<RawPiece>> = incoming.by_ref().take(group).collect();
                let failure = group.iter().position(Result::is_err).map(|at| group.split_off(at));
                let group: Vec<RawPiece> = group.into_iter().flatten().collect();
                if group.is_empty() {
                    return failure.into_iter().flatten().find_map(Result::err).map_or(Ok(()), Err);
                }
                self.take(&group, skip)?;
                skip = false;
                watch(self.kept);
                for piece in group {
                    // The channel is full only if the reading thread has ended and needs no more buffers.
                    let _ = empty.try_send(piece.into_buffer());
                }
                if let Some(failure) = failure.into_iter().flatten().find_map(Result::err) {
                    return Err(failure);
                }
            }
        })
    }

    /// Takes a group of pieces in; `skip`: the first begins with the header.
    fn take(&mut self, group: &[RawPiece], skip: bool) -> Result<()> {
        let header = if skip { self.header(&group[0])? } else { 0 };
        let (rules, columns, scratch, epoch) = (&self.rules, &self.columns, self.scratch, self.epoch);
        let take = |(at, raw): (usize, &RawPiece)| {
            let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut piece = spare.unwrap_or_else(|| Piece::new(rules));
            piece.clear();
            raw.parse(rules, if at == 0 { header } else { 0 }, &mut piece);
            let mut frame = None;
            if piece.fault.is_none() && piece.kept > 0 {
                number(&mut piece, columns);
                encode(&mut piece);
                frame = Some(Frame { rows: piece.kept, epoch, extent: scratch.put(&piece.encoded)? });
            }
            let known = piece.known();
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
            Ok((known, frame))
        };
        let taken: Vec<Result<(Piece, Option<Frame>)>> = group.par_iter().enumerate().map(take).collect();
        for piece in taken {
            let (piece, frame) = piece?;
            self.check(&piece)?;
            self.frames.extend(frame);
        }
        let tables: u64 = self.dictionaries().map(Dictionary::bytes).sum();
        let is_full = self.dictionaries().any(Dictionary::is_full);
        if tables > self.memory.tables || is_full { self.seal() } else { Ok(()) }
    }

    /// Where the header of a text ends that begins with `piece`.
    fn header(&mut self, piece: &RawPiece) -> Result<usize> {
        let (RawPiece::Text(piece), Some(Written::Csv { dialect, .. })) = (piece, self.rules.written) else {
            return Ok(0);
        };
        let (text, mut fields, mut at, mut lines) = (piece.text(), Vec::new(), 0, 0);
        // Blank lines may stand above it.
        loop {
            let next = dialect.split(text, at, &mut fields);
            let next =
                next.map_err(|fault| Error::input(format!("{}:{}", self.name, lines + 1), fault.what))?;
            lines += memchr::memchr_iter(b'\n', &text[at..next]).count() as u64;
            at = next;
            if fields.len() > 1 || !fields[0].is_null() || next >= text.len() {
                break;
            }
        }
        self.lines = lines;
        Ok(at)
    }

    fn dictionaries(&mut self) -> impl Iterator<Item = &mut Dictionary> {
        self.columns.iter_mut().filter_map(|column| match column {
            ReadColumn::Labels(dictionary) => Some(dictionary),
            _ => None,
        })
    }

    /// Ends an epoch.
    fn seal(&mut self) -> Result<()> {
        let scratch = self.scratch;
        let mut labels = 0;
        for dictionary in self.dictionaries() {
            labels += dictionary.seal(scratch)?.iter().map(|&n| u64::from(n)).sum::<u64>();
        }
        self.epoch_labels = self.epoch_labels.max(labels);
        self.epoch += 1;
        Ok(())
    }

    /// Takes note of a piece; an error if something is wrong with it.
    fn check(&mut self, piece: &Piece) -> Result<()> {
        for (all, nulls) in self.nulls.iter_mut().zip(&piece.nulls) {
            all.count += nulls.count;
            let first = nulls.first.map(|(row, line)| (self.rows + row, self.lines + line));
            all.first = all.first.or(first);
        }
        for (at, (all, column)) in self.columns.iter_mut().zip(&piece.columns).enumerate() {
            match (all, column) {
                (ReadColumn::Times(all), PieceColumn::Times { facts, .. }) => {
                    if let (Some(all), Some(numbers)) = (all.numbers, facts.numbers)
                        && all != numbers
                    {
                        let column = Some(self.rules.modes[at].0);
                        let what = mixed_times(numbers);
                        return Err(self.fault(&PieceFault { row: 0, line: 0, column, what }));
                    }
                    *all = all.and(*facts);
                }
                (ReadColumn::Numbers(all), PieceColumn::Numbers { range, .. }) => {
                    *all = Range::join(*all, *range);
                }
                _ => {}
            }
        }
        if let Some(fault) = &piece.fault {
            return Err(self.fault(fault));
        }
        self.rows += piece.rows;
        self.lines += piece.lines;
        self.kept += piece.kept as u64;
        self.dropped += piece.dropped;
        Ok(())
    }

    /// The error about a row.
    fn fault(&self, fault: &PieceFault) -> Error {
        let row = self.rows + fault.row + 1;
        let place = match self.rules.written {
            Some(_) => format!("{}:{}", self.name, self.lines + fault.line + 1),
            None => self.name.to_owned(),
        };
        let column = fault
            .column
            .and_then(|at| self.rules.names.get(at))
            .map_or_else(String::new, |name| format!(", column {}", super::shown(name.as_bytes())));
        Error::input(place, format!("row {row}{column}: {}", fault.what))
    }

    fn finish(mut self) -> Result<ReadTable> {
        self.spare = Mutex::default();
        let missing: u64 = self.nulls.iter().map(|null| null.count).sum();
        if missing > 0 && self.rules.nulls == Nulls::Error {
            return Err(self.missing());
        }
        if self.kept == 0 {
            let what = if self.rows > 0 {
                "every row lacks a label or a value; name other columns"
            } else if self.rules.written.is_some_and(Written::has_header) {
                "holds no rows below its header; give at least one"
            } else {
                "holds no rows; give at least one"
            };
            return Err(Error::input(self.name, what));
        }
        self.seal()?;
        Ok(ReadTable {
            rules: self.rules,
            columns: self.columns,
            frames: self.frames,
            rows: self.kept,
            dropped: self.dropped,
            epoch_labels: self.epoch_labels,
        })
    }

    /// The error that counts what is not there.
    fn missing(&self) -> Error {
        let columns = self.rules.modes.iter().map(|&(column, _)| column).chain(self.rules.value);
        let count = |(column, null): (usize, &NullCount)| {
            let (row, line) = null.first.map_or((0, 0), |(row, line)| (row + 1, line + 1));
            let name = super::shown(self.rules.names[column].as_bytes());
            let line = self.rules.written.map_or_else(String::new, |_| format!(" (line {line})"));
            format!("column {name} lacks {}, the first in row {row}{line}", null.count)
        };
        let counts: Vec<String> =
            columns.zip(&self.nulls).filter(|(_, null)| null.count > 0).map(count).collect();
        let what = "--nulls drop leaves these rows out";
        Error::input(
            self.name,
            format!("{} of {} rows are incomplete: {}; {what}", self.dropped, self.rows, counts.join(", ")),
        )
    }
}

/// Numbers a piece's labels.
fn number(piece: &mut Piece, columns: &[ReadColumn]) {
    for (all, column) in columns.iter().zip(&mut piece.columns) {
        if let (ReadColumn::Labels(dictionary), PieceColumn::Labels { bytes, ends, hashes, numbers }) =
            (all, column)
        {
            dictionary.number(PieceLabels { bytes, ends, hashes }, numbers);
        }
    }
}

/// Encodes a piece's rows for the temporary file.
fn encode(piece: &mut Piece) {
    let out = &mut piece.encoded;
    out.clear();
    for column in &piece.columns {
        match column {
            PieceColumn::Labels { numbers, .. } => append(out, numbers.iter().map(|x| x.to_le_bytes())),
            PieceColumn::Times { times, .. } => append(out, times.iter().map(|x| x.to_le_bytes())),
            PieceColumn::Numbers { numbers, .. } => append(out, numbers.iter().map(|x| x.to_le_bytes())),
        }
    }
    append(out, piece.values.iter().map(|x| x.to_le_bytes()));
}

/// Appends `items`, whose number is known.
fn append<const N: usize>(out: &mut Vec<u8>, items: impl ExactSizeIterator<Item = [u8; N]>) {
    let start = out.len();
    out.resize(start + N * items.len(), 0);
    for (out, item) in out[start..].as_chunks_mut().0.iter_mut().zip(items) {
        *out = item;
    }
}

/// The reading thread: sends pieces until the input ends or fails, or the receiver is gone.
fn read_pieces(mut pieces: Pieces, full: &Sender<Result<RawPiece>>, empty: &Receiver<Vec<u8>>) {
    while let Some(item) = pieces.next(empty.try_recv().unwrap_or_default()).transpose() {
        let last = item.is_err();
        if full.send(item).is_err() || last {
            return;
        }
    }
}
