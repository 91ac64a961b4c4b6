//! Tables in columns of Arrow types: Parquet files, Arrow IPC files and streams, and batches from the caller.
//!
//! A field becomes the text that CSV would hold, except that numbers and times that become values and bins skip the
//! text. A table therefore gives the same store in every form.

mod cells;
mod ipc;
mod parquet;

use super::options::{TableOptions, find_column};
use super::piece::{PIECE_BYTES, Piece, PieceFault, Row, Rules};
use super::time::Moment;
use crate::coo::tns::{OpenedFile, TextInput};
use crate::error::{Error, Result};
use crate::sys::{File, Sys, contained};
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::SchemaRef;
use cells::Cells;
use ipc::{IpcFile, IpcStream};
use jiff::tz::TimeZone;
use parquet::ParquetRows;
use std::path::Path;
use std::sync::Arc;

/// What an Arrow stream begins with.
pub const STREAM_MAGIC: [u8; 4] = [0xff; 4];
const PARQUET_MAGIC: &[u8] = b"PAR1";
const ARROW_MAGIC: &[u8] = b"ARROW1";
const FEATHER_1_MAGIC: &[u8] = b"FEA1";
/// Rows of a piece.
const ROWS_MIN: usize = 256;
const ROWS_MAX: usize = 1 << 14;

/// Opens `path` if it is a Parquet file or an Arrow file; an error if its name says so and its first bytes do not.
pub fn open_file(sys: &Sys, path: &Path) -> Result<Option<OpenedFile>> {
    // Standard input, and what can be read only once, is no such file.
    if path == Path::new("-") || !path.metadata().is_ok_and(|facts| facts.is_file()) {
        return Ok(None);
    }
    let file = sys.open(path, false)?;
    let mut head = [0; ARROW_MAGIC.len()];
    let read = file.read_at(&mut head, 0)?;
    let head = &head[..read];
    if head.starts_with(PARQUET_MAGIC) || head.starts_with(ARROW_MAGIC) {
        let state = file.state()?;
        return Ok(Some((file, state)));
    }
    let named = |ends: &[&str]| {
        let end = path.extension().and_then(|end| end.to_str());
        end.is_some_and(|end| ends.iter().any(|named| end.eq_ignore_ascii_case(named)))
    };
    let wrong = |what: &str| Err(Error::input(path.display().to_string(), what));
    if head.starts_with(FEATHER_1_MAGIC) {
        return wrong("is a Feather file of version 1; write it as version 2, or as Parquet");
    }
    if named(&["parquet", "pq"]) {
        return wrong(
            "does not begin as a Parquet file does; fetch or write it again, or give CSV a name that ends in .csv",
        );
    }
    if named(&["arrow", "arrows", "feather", "ipc"]) && !head.starts_with(&STREAM_MAGIC) {
        return wrong("begins neither as an Arrow file nor as a stream; fetch or write it again");
    }
    Ok(None)
}

/// Where batches come from.
enum Batches {
    Parquet(ParquetRows),
    File(IpcFile),
    Stream(IpcStream),
    Given(Box<dyn Iterator<Item = Result<RecordBatch>> + Send>),
}

/// A table in columns, read piece by piece.
pub struct ArrowRows {
    name: String,
    schema: SchemaRef,
    batches: Batches,
    decoder_bytes: u64,
    /// The columns of the batches, by their place in the schema; ascending.
    wanted: Arc<[usize]>,
    /// What is left of a batch.
    rest: Option<RecordBatch>,
}

impl std::fmt::Debug for ArrowRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrowRows")
            .field("name", &self.name)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl ArrowRows {
    fn new(name: &str, schema: SchemaRef, batches: Batches, options: &TableOptions) -> Result<Self> {
        options.csv.refuse(name)?;
        let mut rows = Self {
            name: name.to_owned(),
            schema,
            batches,
            decoder_bytes: 0,
            wanted: Arc::new([]),
            rest: None,
        };
        let names = rows.names();
        let wanted = options.modes.iter().map(|mode| &mode.column).chain(&options.value);
        // What is not found is an error when it is taken.
        let wanted = wanted.filter_map(|column| find_column(column, Some(&names), names.len(), name).ok());
        rows.want(wanted);
        rows.decoder_bytes = match &rows.batches {
            Batches::Parquet(parquet) => parquet.decoder_bytes(&rows.wanted),
            Batches::File(file) => file.decoder_bytes(),
            Batches::Stream(stream) => stream.decoder_bytes(),
            Batches::Given(_) => 0,
        };
        Ok(rows)
    }

    /// Of a Parquet or Arrow file.
    pub fn of_file(name: &str, file: File, options: &TableOptions) -> Result<Self> {
        let mut head = [0; PARQUET_MAGIC.len()];
        if file.read_at(&mut head, 0)? == head.len() && head == PARQUET_MAGIC {
            let (schema, parquet) = guarded(name, || ParquetRows::open(name, file))?;
            return Self::new(name, schema, Batches::Parquet(parquet), options);
        }
        let (schema, file) = guarded(name, || IpcFile::open(name, file))?;
        Self::new(name, schema, Batches::File(file), options)
    }

    /// Of an Arrow stream.
    pub fn of_stream(name: &str, text: TextInput, options: &TableOptions) -> Result<Self> {
        let (schema, stream) = guarded(name, || IpcStream::open(name, text, options.memory))?;
        Self::new(name, schema, Batches::Stream(stream), options)
    }

    /// For batches from the caller.
    pub fn given(
        name: &str,
        batches: impl RecordBatchReader + Send + 'static,
        options: &TableOptions,
    ) -> Result<Self> {
        let schema = batches.schema();
        let place = name.to_owned();
        let batches =
            batches.map(move |batch| batch.map_err(|error| Error::input(&place, error.to_string())));
        Self::new(name, schema, Batches::Given(Box::new(batches)), options)
    }

    /// The names of the columns.
    pub fn names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Bytes of memory that reading takes.
    pub fn decoder_bytes(&self) -> u64 {
        self.decoder_bytes
    }

    fn want(&mut self, columns: impl Iterator<Item = usize>) {
        let mut wanted: Vec<usize> = columns.collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.wanted = wanted.into();
    }

    /// Only these columns are read. Fails if one holds something that is not a label, number or time.
    pub fn take_only(&mut self, columns: impl Iterator<Item = usize>) -> Result<()> {
        self.want(columns);
        for &column in &*self.wanted {
            let field = self.schema.field(column);
            if let Some(what) = cells::refusal(field.data_type()) {
                return Err(Error::input(&self.name, format!("column {:?} {what}", field.name())));
            }
        }
        match &mut self.batches {
            Batches::Parquet(parquet) => guarded(&self.name, || parquet.take_only(&self.wanted)),
            Batches::File(file) => {
                file.take_only(&self.wanted);
                Ok(())
            }
            Batches::Stream(_) | Batches::Given(_) => Ok(()),
        }
    }

    /// The next rows.
    pub fn next(&mut self) -> Result<Option<ArrowPiece>> {
        let batch = loop {
            let batch = match self.rest.take() {
                Some(rest) => rest,
                None => match self.batch()? {
                    Some(batch) => batch,
                    None => return Ok(None),
                },
            };
            if batch.num_rows() > 0 {
                break batch;
            }
        };
        let rows = batch.num_rows();
        let piece = piece_rows(batch.get_array_memory_size() as u64, rows as u64).min(rows);
        if piece < rows {
            self.rest = Some(batch.slice(piece, rows - piece));
        }
        Ok(Some(ArrowPiece { batch: batch.slice(0, piece), wanted: Arc::clone(&self.wanted) }))
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        let batch = match &mut self.batches {
            Batches::Parquet(parquet) => return guarded(&self.name, || parquet.next()),
            Batches::File(file) => return guarded(&self.name, || file.next()),
            Batches::Stream(stream) => guarded(&self.name, || stream.next())?,
            Batches::Given(batches) => guarded(&self.name, || batches.next().transpose())?,
        };
        let Some(batch) = batch else { return Ok(None) };
        batch.project(&self.wanted).map(Some).map_err(|error| damaged(&self.name, &error))
    }
}

/// Rows of a piece, where `rows` rows take `bytes`.
fn piece_rows(bytes: u64, rows: u64) -> usize {
    let piece = (PIECE_BYTES as u64).saturating_mul(rows.max(1)) / bytes.max(1);
    usize::try_from(piece).unwrap_or(usize::MAX).clamp(ROWS_MIN, ROWS_MAX)
}

/// What `decode` makes of the file `name`; an error if its decoder panics, as some do on damaged files.
fn guarded<T>(name: &str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    contained(decode).unwrap_or_else(|told| Err(damaged(name, &told)))
}

/// The error about a file that is not what it should be.
fn damaged(name: &str, error: &dyn std::fmt::Display) -> Error {
    let told = error.to_string().replace('\n', " ");
    let told = told.strip_prefix("Parquet error: ").unwrap_or(&told);
    Error::input(name, format!("is damaged or not whole ({told}); fetch or write it again"))
}

/// Some rows.
#[derive(Debug)]
pub struct ArrowPiece {
    batch: RecordBatch,
    /// The place in the table of each of the batch's columns, ascending.
    wanted: Arc<[usize]>,
}

impl ArrowPiece {
    /// Takes it apart into `piece`, which is empty, up to the first thing that is wrong.
    pub fn parse(&self, rules: &Rules, piece: &mut Piece) {
        let rows = self.batch.num_rows();
        let cells: Option<Vec<Cells<'_>>> =
            self.batch.columns().iter().map(|column| Cells::of(column.as_ref())).collect();
        let (Some(cells), mut buffer) = (cells, Vec::new()) else {
            let what = "a batch's columns are not those of the schema; write the file again".to_owned();
            piece.fault = Some(PieceFault { row: 0, line: 0, column: None, what });
            return;
        };
        if self.parse_whole(rules, &cells, piece).is_some() {
            return;
        }
        piece.clear();
        for at in 0..rows {
            let row = ArrowRow { cells: &cells, wanted: &self.wanted, at };
            let pushed = row.check_text().and_then(|()| piece.push(rules, &row, &mut buffer));
            if let Err((column, what)) = pushed {
                piece.fault = Some(PieceFault { row: piece.rows, line: 0, column, what });
                return;
            }
            piece.rows += 1;
        }
    }

    /// The same column by column, which is faster; `None` if something is missing or wrong.
    fn parse_whole(&self, rules: &Rules, cells: &[Cells<'_>], piece: &mut Piece) -> Option<()> {
        let (rows, mut buffer) = (self.batch.num_rows(), Vec::new());
        if !cells.iter().all(|cells| cells.are_whole(rows)) {
            return None;
        }
        let field = |column: usize| {
            let cells = &cells[self.wanted.partition_point(|&wanted| wanted < column)];
            move |at| ArrowField { cells, at }
        };
        for (mode, &(column, _)) in rules.modes.iter().enumerate() {
            let field = field(column);
            (0..rows).try_for_each(|at| piece.push_field(rules, &field(at), mode, &mut buffer)).ok()?;
        }
        if let Some(column) = rules.value {
            let field = field(column);
            (0..rows).try_for_each(|at| piece.push_value(&field(at), column, &mut buffer)).ok()?;
        }
        (piece.rows, piece.kept) = (rows as u64, rows);
        Some(())
    }
}

/// A field of a piece, whatever its column.
struct ArrowField<'a> {
    cells: &'a Cells<'a>,
    at: usize,
}

impl Row for ArrowField<'_> {
    fn is_null(&self, _: usize) -> bool {
        self.cells.is_null(self.at)
    }

    fn text<'a>(&'a self, _: usize, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        self.cells.text(self.at, buffer)
    }

    fn number(&self, _: usize) -> Option<f64> {
        self.cells.number(self.at)
    }

    fn moment(&self, _: usize, zone: &TimeZone) -> Option<Moment> {
        self.cells.moment(self.at, zone)
    }
}

/// A row of a piece.
struct ArrowRow<'a> {
    cells: &'a [Cells<'a>],
    wanted: &'a [usize],
    at: usize,
}

impl ArrowRow<'_> {
    fn cells(&self, column: usize) -> &Cells<'_> {
        &self.cells[self.wanted.partition_point(|&wanted| wanted < column)]
    }

    /// An error if bytes without a type are not text.
    fn check_text(&self) -> std::result::Result<(), super::piece::Wrong> {
        match self.cells.iter().position(|cells| !cells.is_text(self.at)) {
            Some(column) => {
                let what = "is not UTF-8; write the column as text, or name another one";
                Err((Some(self.wanted[column]), what.into()))
            }
            None => Ok(()),
        }
    }
}

impl Row for ArrowRow<'_> {
    fn is_null(&self, column: usize) -> bool {
        self.cells(column).is_null(self.at)
    }

    fn text<'a>(&'a self, column: usize, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        self.cells(column).text(self.at, buffer)
    }

    fn number(&self, column: usize) -> Option<f64> {
        self.cells(column).number(self.at)
    }

    fn moment(&self, column: usize, zone: &TimeZone) -> Option<Moment> {
        self.cells(column).moment(self.at, zone)
    }
}
