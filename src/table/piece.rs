//! A piece of a table, taken apart by one thread: for each mode labels with their hashes, times or numbers; values; and the
//! first thing that is wrong.

use super::csv::{Dialect, Fault, Field, RECORD_BYTES_MAX};
use super::number::{NumberBins, parse_value};
use super::options::{Nulls, Treatment};
use super::time::{self, Moment};
use super::{number, shown};
use crate::store::labels::{LABEL_BYTES_MAX, LabelKind};
use jiff::tz::TimeZone;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a table that are divided into fields at once. They fit a core's cache together with these fields.
pub const PIECE_BYTES: usize = 1 << 17;

/// How a table's text is written.
#[derive(Clone, Copy, Debug)]
pub enum Written {
    /// Records of fields.
    Csv {
        /// How they are divided.
        dialect: Dialect,
        /// Whether the first one names the columns.
        has_header: bool,
    },
    /// An object on each line.
    JsonLines,
}

impl Written {
    /// Whether the text begins with the names of the columns.
    pub fn has_header(self) -> bool {
        matches!(self, Self::Csv { has_header: true, .. })
    }
}

/// What rows are made into.
#[derive(Debug)]
pub struct Rules {
    /// How the text is written, if the table is text.
    pub written: Option<Written>,
    /// Names of the columns, from the header or numbers.
    pub names: Vec<String>,
    /// For each mode its column and what becomes of it.
    pub modes: Vec<(usize, Treatment)>,
    /// The column of the values.
    pub value: Option<usize>,
    /// What becomes of rows without a label or value.
    pub nulls: Nulls,
    /// Whose clock time follows.
    pub zone: TimeZone,
    /// Of labels' hashes.
    pub seed: u64,
}

/// Numbers from the least to the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range<T> {
    /// The least.
    pub low: T,
    /// The greatest.
    pub high: T,
}

impl<T: PartialOrd + Copy> Range<T> {
    /// Both ranges and what lies between.
    pub fn join(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(Self {
                low: if b.low < a.low { b.low } else { a.low },
                high: if b.high > a.high { b.high } else { a.high },
            }),
            (a, b) => a.or(b),
        }
    }

    /// With `x`.
    pub fn add(range: &mut Option<Self>, x: T) {
        *range = Self::join(*range, Some(Self { low: x, high: x }));
    }
}

/// Facts about a column of times.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeFacts {
    /// Whether the values are numbers. `None` if all are digits that may be a date or a number.
    pub numbers: Option<bool>,
    /// The range of the values that are certainly times, or certainly numbers.
    range: Option<Range<i64>>,
    /// The range of digits that may be a date or a number: read as dates, and read as numbers.
    undecided: [Option<Range<i64>>; 2],
}

impl TimeFacts {
    /// The facts of two parts together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            numbers: self.numbers.or(other.numbers),
            range: Range::join(self.range, other.range),
            undecided: [0, 1].map(|as_what| Range::join(self.undecided[as_what], other.undecided[as_what])),
        }
    }

    /// Whether the values are numbers, and their range. Digits that may be dates are dates, unless another value is a number.
    #[must_use]
    pub fn decided(self) -> (bool, Option<Range<i64>>) {
        let are_numbers = self.numbers == Some(true);
        (are_numbers, Range::join(self.range, self.undecided[usize::from(are_numbers)]))
    }
}

/// A column of a piece.
#[derive(Debug)]
pub enum PieceColumn {
    /// The labels' texts, one after the other, and for each label its end, hash and number.
    Labels {
        /// Their bytes.
        bytes: Vec<u8>,
        /// Where each ends.
        ends: Vec<u32>,
        /// Of each.
        hashes: Vec<u64>,
        /// The number of each label.
        numbers: Vec<u32>,
    },
    /// Civil seconds, or numbers, or what [`time::undecided`] makes of digits that may be either.
    Times {
        /// Of each row.
        times: Vec<i64>,
        /// Facts about the values.
        facts: TimeFacts,
    },
    /// Numbers.
    Numbers {
        /// Of each row.
        numbers: Vec<f64>,
        /// From the least to the greatest.
        range: Option<Range<f64>>,
    },
}

/// Where something is wrong: a row and a line of the piece, from 0; a column; and what is wrong.
#[derive(Clone, Debug)]
pub struct PieceFault {
    /// Rows before it.
    pub row: u64,
    /// Lines before it.
    pub line: u64,
    /// The column.
    pub column: Option<usize>,
    /// What is wrong and what to do.
    pub what: String,
}

/// Fields without a label or value, of one column.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullCount {
    /// How many.
    pub count: u64,
    /// Rows and lines before the first.
    pub first: Option<(u64, u64)>,
}

/// What is in a piece.
#[derive(Debug)]
pub struct Piece {
    /// Rows, those that are left out too.
    pub rows: u64,
    /// Lines.
    pub lines: u64,
    /// Rows that are kept.
    pub kept: usize,
    /// Each mode.
    pub columns: Vec<PieceColumn>,
    /// Values, if a column holds them.
    pub values: Vec<f64>,
    /// For each mode, and the values, what is not there.
    pub nulls: Vec<NullCount>,
    /// Rows that are left out.
    pub dropped: u64,
    /// The first thing that is wrong.
    pub fault: Option<PieceFault>,
    /// Its rows, encoded for the temporary file.
    pub encoded: Vec<u8>,
}

impl Piece {
    /// An empty piece.
    pub fn new(rules: &Rules) -> Self {
        let column = |&(_, treatment): &(usize, Treatment)| match treatment {
            Treatment::Labels | Treatment::Kind(_) | Treatment::Quantiles(_) => {
                PieceColumn::Labels { bytes: vec![], ends: vec![], hashes: vec![], numbers: vec![] }
            }
            Treatment::Time(_) => PieceColumn::Times { times: Vec::new(), facts: TimeFacts::default() },
            Treatment::Number(_) => PieceColumn::Numbers { numbers: Vec::new(), range: None },
        };
        Self {
            rows: 0,
            lines: 0,
            kept: 0,
            columns: rules.modes.iter().map(column).collect(),
            values: Vec::new(),
            nulls: vec![NullCount::default(); rules.modes.len() + 1],
            dropped: 0,
            fault: None,
            encoded: Vec::new(),
        }
    }

    /// Removes all rows. The memory is kept for other rows, since used memory costs less than new memory.
    pub fn clear(&mut self) {
        for column in &mut self.columns {
            match column {
                PieceColumn::Labels { bytes, ends, hashes, numbers } => {
                    bytes.clear();
                    ends.clear();
                    hashes.clear();
                    numbers.clear();
                }
                PieceColumn::Times { times, facts } => {
                    times.clear();
                    *facts = TimeFacts::default();
                }
                PieceColumn::Numbers { numbers, range } => {
                    numbers.clear();
                    *range = None;
                }
            }
        }
        self.values.clear();
        self.nulls.fill(NullCount::default());
        (self.rows, self.lines, self.kept, self.dropped, self.fault) = (0, 0, 0, 0, None);
    }

    /// The facts about its columns, without the rows.
    pub fn known(&mut self) -> Self {
        let column = |column: &PieceColumn| match *column {
            PieceColumn::Labels { .. } => {
                PieceColumn::Labels { bytes: vec![], ends: vec![], hashes: vec![], numbers: vec![] }
            }
            PieceColumn::Times { facts, .. } => PieceColumn::Times { times: vec![], facts },
            PieceColumn::Numbers { range, .. } => PieceColumn::Numbers { numbers: vec![], range },
        };
        Self {
            columns: self.columns.iter().map(column).collect(),
            values: vec![],
            nulls: self.nulls.clone(),
            fault: self.fault.take(),
            encoded: vec![],
            ..*self
        }
    }
}

/// A row as its table holds it. Columns are counted from 0.
pub trait Row {
    /// Whether the column holds nothing.
    fn is_null(&self, column: usize) -> bool;
    /// What the column holds, as text; `buffer` may hold it.
    fn text<'a>(&'a self, column: usize, buffer: &'a mut Vec<u8>) -> &'a [u8];
    /// The number that the column holds, unless it holds text, as all columns of a text do.
    fn number(&self, _column: usize) -> Option<f64> {
        None
    }
    /// The time that the column holds, unless it holds text or numbers; on a clock in `zone`.
    fn moment(&self, _column: usize, _zone: &TimeZone) -> Option<Moment> {
        None
    }
}

/// A record of a text.
struct Record<'a> {
    text: &'a [u8],
    fields: &'a [Field],
    quote: Option<u8>,
}

impl Row for Record<'_> {
    fn is_null(&self, column: usize) -> bool {
        self.fields[column].is_null()
    }

    fn text<'a>(&'a self, column: usize, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        self.fields[column].bytes(self.text, self.quote, buffer)
    }
}

/// Divides a piece's text into fields in `piece`, which is empty, up to the first error.
pub fn parse(rules: &Rules, dialect: Dialect, text: &[u8], piece: &mut Piece) {
    // Checked at once: each field then is, too.
    let valid = std::str::from_utf8(text).map_or_else(|e| e.valid_up_to(), str::len);
    let (mut at, mut fields, mut buffer) = (0, Vec::new(), Vec::new());
    while at < text.len() {
        let next = dialect.split(text, at, &mut fields);
        let record = match next {
            Ok(next) => next,
            Err(Fault { field, what }) => {
                // A quote opens on the line where its field begins.
                let before = fields.last().map_or(at, |last: &Field| last.end);
                let lines = count_lines(&text[at..before]);
                piece.fault = Some(PieceFault {
                    row: piece.rows,
                    line: piece.lines + lines,
                    column: Some(field),
                    what,
                });
                return;
            }
        };
        let blank =
            fields.len() == 1 && fields[0].is_null() && (rules.names.len() > 1 || text[at..].len() <= 1);
        if !blank {
            let row = Record { text, fields: &fields, quote: dialect.quote };
            let checked = check_record(rules, &row, (at, record), valid)
                .and_then(|()| piece.push(rules, &row, &mut buffer));
            if let Err((column, what)) = checked {
                piece.fault = Some(PieceFault { row: piece.rows, line: piece.lines, column, what });
                return;
            }
            piece.rows += 1;
        }
        // Only records with quotes contain further newlines.
        let quoted = fields.iter().any(|field| field.quoted);
        piece.lines += if quoted { count_lines(&text[at..record]) } else { 1 };
        at = record;
    }
}

fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

/// A column, if one is at fault, and what is wrong.
pub type Wrong = (Option<usize>, String);

/// What a whole record must be: `at` is where it begins and where the next one does.
fn check_record(rules: &Rules, record: &Record<'_>, at: (usize, usize), valid: usize) -> Result<(), Wrong> {
    let Record { text, fields, .. } = *record;
    let has_header = rules.written.is_some_and(Written::has_header);
    if at.1 > valid {
        let column = fields.iter().position(|field| field.end > valid).unwrap_or(fields.len() - 1);
        return Err((Some(column), super::NOT_UTF_8.into()));
    }
    if at.1 - at.0 > RECORD_BYTES_MAX {
        let what = "a row of more than 16 MiB; a quote may not be closed: close it, or give --quote none";
        return Err((None, what.into()));
    }
    let (there, wanted) = (fields.len(), rules.names.len());
    if there != wanted {
        let of = if has_header { "the header" } else { "the first row" };
        let fields = |n: usize| format!("{n} field{}", if n == 1 { "" } else { "s" });
        let way = if there > wanted && record.fields[wanted..].iter().all(Field::is_null) {
            "remove the delimiters at the ends of lines, or add them to the header"
        } else if there > wanted {
            "quote fields that hold the delimiter"
        } else {
            "complete the row, or remove it"
        };
        return Err((None, format!("has {}, {of} has {wanted}; {way}", fields(there))));
    }
    let repeats = has_header
        && fields
            .iter()
            .zip(&rules.names)
            .all(|(field, name)| text[field.start..field.end] == *name.as_bytes());
    if repeats {
        return Err((None, "repeats the header; remove the line".into()));
    }
    Ok(())
}

impl Piece {
    /// Adds a row.
    pub fn push(&mut self, rules: &Rules, row: &impl Row, buffer: &mut Vec<u8>) -> Result<(), Wrong> {
        let mut is_whole = true;
        let columns = rules.modes.iter().map(|&(column, _)| column).chain(rules.value);
        for (at, column) in columns.enumerate() {
            if row.is_null(column) {
                let null = &mut self.nulls[at];
                null.count += 1;
                null.first.get_or_insert((self.rows, self.lines));
                is_whole = false;
            }
        }
        if !is_whole {
            self.dropped += 1;
            return Ok(());
        }
        for mode in 0..rules.modes.len() {
            self.push_field(rules, row, mode, buffer)?;
        }
        if let Some(column) = rules.value {
            self.push_value(row, column, buffer)?;
        }
        self.kept += 1;
        Ok(())
    }

    /// Adds a row's field to the column of `mode`.
    pub fn push_field(
        &mut self,
        rules: &Rules,
        row: &impl Row,
        mode: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        let (column, treatment) = rules.modes[mode];
        push_field(rules, row, column, treatment, &mut self.columns[mode], buffer)
    }

    /// Adds a row's value.
    pub fn push_value(&mut self, row: &impl Row, column: usize, buffer: &mut Vec<u8>) -> Result<(), Wrong> {
        self.values.push(number_of(row, column, buffer)?);
        Ok(())
    }
}

/// Adds a row's field to its column.
fn push_field(
    rules: &Rules,
    row: &impl Row,
    column: usize,
    treatment: Treatment,
    out: &mut PieceColumn,
    buffer: &mut Vec<u8>,
) -> Result<(), Wrong> {
    match out {
        PieceColumn::Labels { bytes, ends, hashes, .. } => {
            let field = row.text(column, buffer);
            check_label(field, treatment, rules).map_err(|what| wrong(column, field, &what))?;
            bytes.extend_from_slice(field);
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            hashes.push(xxh3_64_with_seed(field, rules.seed));
        }
        PieceColumn::Times { times, facts } => {
            let moment = row.moment(column, &rules.zone);
            let digits = if moment.is_none() { time::digits(row.text(column, buffer)) } else { None };
            let moment = moment.or_else(|| time::parse(row.text(column, buffer), &rules.zone));
            let (time, is_number) = match moment {
                Some(Moment::Civil(seconds, _)) => (seconds, false),
                Some(Moment::Number(number)) => (number, true),
                None => {
                    let field = row.text(column, buffer);
                    return Err(wrong(column, field, &no_time(field)));
                }
            };
            if let (Some(number), false) = (digits, is_number) {
                Range::add(&mut facts.undecided[0], time);
                Range::add(&mut facts.undecided[1], number);
                times.push(time::undecided(number));
                return Ok(());
            }
            if *facts.numbers.get_or_insert(is_number) != is_number {
                return Err(wrong(column, row.text(column, buffer), &mixed_times(is_number)));
            }
            times.push(time);
            Range::add(&mut facts.range, time);
        }
        PieceColumn::Numbers { numbers, range } => {
            let x = number_of(row, column, buffer)?;
            if treatment == Treatment::Number(NumberBins::Log2) && x <= 0.0 {
                let what = "has no logarithm; use :bins=N, or leave out rows that are not above 0";
                return Err(wrong(column, row.text(column, buffer), what));
            }
            numbers.push(x);
            Range::add(range, x);
        }
    }
    Ok(())
}

/// The number in a column.
fn number_of(row: &impl Row, column: usize, buffer: &mut Vec<u8>) -> Result<f64, Wrong> {
    if let Some(x) = row.number(column).filter(|x| x.is_finite()) {
        return Ok(x);
    }
    let field = row.text(column, buffer);
    parse_value(field).map_err(|what| wrong(column, field, &what))
}

fn wrong(column: usize, field: &[u8], what: &str) -> Wrong {
    (Some(column), format!("{} {what}", shown(field)))
}

/// The message for a date among numbers, or the reverse.
pub fn mixed_times(is_number: bool) -> String {
    let (this, others) = if is_number { ("a number", "dates") } else { ("a date", "numbers") };
    format!("is {this}, and rows above hold {others}; write all alike")
}

fn no_time(field: &[u8]) -> String {
    let slashes = field.contains(&b'/') || memchr::memchr_iter(b'.', field).count() > 1;
    let way = if slashes { "; write dates as 2024-03-05, year first" } else { "" };
    format!(
        "is no date or time{way}; dates look like 2024-03-05, 2024-03-05 14:30:00 or 2024-03-05T14:30:00Z, or are seconds since 1970"
    )
}

fn check_label(field: &[u8], treatment: Treatment, rules: &Rules) -> Result<(), String> {
    if field.len() > LABEL_BYTES_MAX {
        return Err(format!("is longer than {LABEL_BYTES_MAX} bytes; shorten it, or leave the column out"));
    }
    let is_number = || number::append_key(field.trim_ascii(), &mut Vec::new());
    let good = match treatment {
        Treatment::Kind(LabelKind::Number) | Treatment::Quantiles(_) => is_number(),
        Treatment::Kind(LabelKind::Time) => {
            matches!(time::parse(field, &rules.zone), Some(Moment::Civil(..)))
        }
        _ => true,
    };
    match (good, treatment) {
        (true, _) => Ok(()),
        (false, Treatment::Kind(LabelKind::Time)) => Err(no_time(field)),
        (false, _) => {
            Err("is not a number; correct it, or use the column without :number or :quantiles".into())
        }
    }
}
