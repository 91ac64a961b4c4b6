//! FROSTT text: one nonzero per line, its indices, then its value.
//!
//! [`TnsReader`] is the principal type. Text flows through three parts:
//!
//! ```text
//! decode (gzip, zstd, plain) -> pieces (whole lines) -> parse (in parallel) -> batches, in file order
//! \____________ a thread of its own ______________/    \__ the caller's rayon pool __/
//! ```
//!
//! With four or more threads, there is no reading thread for an uncompressed file: each thread reads the ranges that it parses.
//!
//! A file may contain:
//!
//! * Fields separated by any white space (space, tab, VT, FF, CR), so CRLF too. `#` starts a comment, on its
//!   own line or after data. Blank lines are skipped. The last line may lack its newline. A byte order mark
//!   at the beginning is skipped.
//! * Indices: whole numbers from 1 (or from 0, by [`ReadOptions::index_base`]) that make dims of at most
//!   2^32 - 1. Values: finite decimal numbers, read to the nearest f64; one written as an integer must be
//!   exact in f64, and only a zero may be read as zero.
//! * Lines end in LF. A file whose lines end in CR alone is refused: it would be one line.
//! * Or a Matrix Market file: coordinates of a general matrix of real numbers or integers.
//! * Optionally a header before the first row: that of the Tensor Toolbox (`sptensor`, order, dims, nnz, each
//!   on its line; the nnz must hold), or two lines, the order and the dims. Without one the order is that of
//!   the first row and the dims are the largest indices met.

mod decode;
mod header;
mod parse;
mod pieces;
mod ranges;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use decode::OpenedFile;
pub use decode::TextInput;
pub use write::{TnsWriter, append_row, decimal, row_bytes_max, text_of};

use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::{Error, Result};
use crate::shape::{ORDER_MAX, ORDER_MIN, Shape};
use crate::sys::sync::{Receiver, Sender, bounded, scope};
use crate::sys::{File, FileState, Sys};
use header::TextHeader;
use parse::{Declared, Parsed, Rules};
use pieces::{Pieces, TextPiece};
use ranges::{Ranges, TextRange};
use rayon::prelude::*;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// Bytes of text that are read at once and parsed by one task.
const PIECE_BYTES: usize = 1 << 19;
/// Pieces per compute thread and group. At the end of a group, threads wait for at most one piece.
const PIECES_PER_THREAD: usize = 4;
/// The fewest compute threads that read an uncompressed file themselves. With fewer, a thread that reads ahead is as fast.
const THREADS_READ: usize = 4;
/// Bytes of text outside a group and the group being read: three pieces.
const OTHER_BYTES: u64 = 3 * PIECE_BYTES as u64;
/// Bytes per piece of a group: its text, that of a piece of the next group, and a batch with 16 bytes for every 6 of
/// text.
const GROUPED_BYTES: u64 = (2 * PIECE_BYTES + 16 * PIECE_BYTES / 6) as u64;

/// The number of the first index of every mode in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexBase {
    /// Indices start at 0.
    Zero,
    /// Indices start at 1, as in all FROSTT files.
    #[default]
    One,
}

/// `0` or `1`.
impl FromStr for IndexBase {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "0" => Ok(Self::Zero),
            "1" => Ok(Self::One),
            _ => Err(Error::request(format!("index base {text:?} is not supported; give 0 or 1"))),
        }
    }
}

/// How to read a file of coordinate text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The number of the first index.
    pub index_base: IndexBase,
    /// The dims, mode 1 first. They take precedence over a header and the largest indices.
    pub dims: Option<Vec<u64>>,
    /// Whether rows hold only indices; each value is then 1.
    pub no_values: bool,
}

/// As options of a command line.
impl fmt::Display for ReadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = match self.index_base {
            IndexBase::Zero => 0,
            IndexBase::One => 1,
        };
        write!(f, "--index-base {base}")?;
        if let Some(dims) = &self.dims {
            let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
            write!(f, " --dims {}", dims.join(","))?;
        }
        if self.no_values { f.write_str(" --no-values") } else { Ok(()) }
    }
}

/// Reads FROSTT text in pieces, uncompressed or compressed by gzip or zstd (detected by content).
///
/// Batches arrive in file order, one per piece of text, and do not depend on the number of threads. Peak memory
/// with `T` compute threads is at most `8 T + 3` pieces of 512 KiB of text, plus the batches of `4 T` pieces, at
/// most 1.4 MiB each, plus zstd's window. [`Source::limit`] reduces the number of pieces in memory.
///
/// Bad input gives one [`Error::Input`] whose place is the file and its first bad line, or only the file. The same
/// goes for a regular file that changes between [`TnsReader::open`] and the end of [`Source::drain`].
#[derive(Debug)]
pub struct TnsReader {
    sys: Sys,
    name: String,
    options: ReadOptions,
    /// The input, until reading starts.
    input: Option<TextInput>,
    /// The part already read to learn the dims, until it is drained.
    begun: Option<Begun>,
    plain: bool,
    /// Memory of the decoder.
    decoder_bytes: u64,
    /// The most pieces in a group.
    group_max: usize,
    piece_bytes: usize,
    /// For a regular file, the file and its state when it was opened.
    file: Option<(File, FileState)>,
    /// Whether all values so far could be indices of one more mode.
    values_like_indices: bool,
}

#[doc(hidden)]
impl TnsReader {
    /// Opens `path`, or standard input if it is `-`, and detects its compression.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for invalid dims; [`Error::Input`] for a missing file, a directory or an
    /// unsupported compression; otherwise the system's error.
    pub fn open(sys: &Sys, path: &Path, options: ReadOptions) -> Result<Self> {
        check_dims(&options)?;
        let (name, input, file) = TextInput::open(sys, path)?;
        Ok(Self { file, ..Self::of_input(sys, input, &name, options) })
    }

    /// Reads `text`, which messages call `name`.
    ///
    /// # Errors
    ///
    /// Like [`TnsReader::open`].
    pub fn from_read(
        sys: &Sys,
        text: Box<dyn Read + Send>,
        name: &str,
        options: ReadOptions,
    ) -> Result<Self> {
        check_dims(&options)?;
        Ok(Self::of_input(sys, TextInput::sniff(text, name)?, name, options))
    }

    fn of_input(sys: &Sys, input: TextInput, name: &str, options: ReadOptions) -> Self {
        Self {
            sys: sys.clone(),
            name: name.to_string(),
            options,
            plain: input.is_plain(),
            decoder_bytes: input.decoder_bytes(),
            group_max: usize::MAX,
            input: Some(input),
            begun: None,
            piece_bytes: PIECE_BYTES,
            file: None,
            values_like_indices: false,
        }
    }

    /// Whether the drained text could hold three indices per row and no values: it has no header, and each row is two
    /// indices and a whole number that does not exceed the largest index.
    #[must_use]
    pub fn values_like_indices(&self) -> bool {
        self.values_like_indices
    }

    /// Reads up to the first row.
    fn begin(&mut self) -> Result<Begun> {
        if let Some(begun) = self.begun.take() {
            return Ok(begun);
        }
        let input = self.input.take();
        let input = input.ok_or_else(|| Error::request(format!("{} was already read", self.name)))?;
        let mut pieces = Pieces::new(self.sys.clone(), input, self.piece_bytes);
        let head = header::read(&mut pieces, &self.name, &self.options)?;
        Ok(Begun { pieces, head })
    }
}

fn check_dims(options: &ReadOptions) -> Result<()> {
    let Some(dims) = &options.dims else { return Ok(()) };
    Shape::new(dims).map(drop).map_err(|e| Error::request(format!("`dims`: {e}")))
}

/// An input after its header.
#[derive(Debug)]
struct Begun {
    pieces: Pieces,
    /// The header, and the piece that begins with the first row; `None` if there is no row.
    head: Option<(TextHeader, TextPiece)>,
}

/// Estimates the size of uncompressed text from its length and first lines of data.
fn estimate(file: &File, has_values: bool) -> Result<Option<Size>> {
    let mut head = vec![0; 1 << 18];
    let read = file.read_at(&mut head, 0)?;
    let bytes = file.metadata()?.len();
    let fields = |line: &[u8]| line.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty()).count();
    let whole = head[..read].split_inclusive(|&b| b == b'\n').filter(|line| !line.starts_with(b"#"));
    // Header lines have fewer fields than rows. The last line may be truncated.
    let rows: Vec<(usize, usize)> = whole.map(|line| (fields(line), line.len())).collect();
    let Some(most) = rows.iter().map(|row| row.0).max().filter(|&n| n >= ORDER_MIN + usize::from(has_values))
    else {
        return Ok(None);
    };
    let (count, length) =
        rows.iter().filter(|row| row.0 == most).fold((0, 0), |(n, sum), row| (n + 1, sum + row.1 as u64));
    Ok(Some(Size { nnz: (bytes * count).div_ceil(length.max(1)), order: most - usize::from(has_values) }))
}

/// Length, time and a hash of three samples of a file.
pub(crate) fn file_identity(file: &File) -> Result<String> {
    const SAMPLE: usize = 1 << 16;
    let facts = file.metadata()?;
    let mut sample = vec![0; SAMPLE];
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    for at in [0, facts.len() / 2, facts.len().saturating_sub(SAMPLE as u64)] {
        let read = file.read_at(&mut sample, at)?;
        hash.update(&sample[..read]);
    }
    let changed = facts.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    let nanos = changed.unwrap_or_default().as_nanos();
    Ok(format!("{} bytes, changed at {nanos} ns, samples {:016x}", facts.len(), hash.digest()))
}

impl Source for TnsReader {
    fn is_checked(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> Result<Option<Size>> {
        match &self.file {
            Some((file, _)) if self.plain => estimate(file, !self.options.no_values),
            _ => Ok(None),
        }
    }

    fn identity(&self) -> Result<Option<String>> {
        let Some((file, _)) = &self.file else { return Ok(None) };
        Ok(Some(format!("{}, read with {}", file_identity(file)?, self.options)))
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        let begun = self.begin()?;
        let dims = begun.head.as_ref().and_then(|(head, _)| head.dims.as_deref());
        let shape = dims.map(Shape::new).transpose().map_err(|e| Error::input(&self.name, e.to_string()));
        self.begun = Some(begun);
        shape
    }

    fn memory(&self, threads: usize) -> SourceMemory {
        let others = self.decoder_bytes + OTHER_BYTES;
        let most = others + GROUPED_BYTES * (PIECES_PER_THREAD * threads) as u64;
        let help = "the input compressed again with a smaller window (zstd without --long and --ultra) or piped \
                    decompressed through -";
        SourceMemory {
            least: others + GROUPED_BYTES,
            most,
            help: if self.decoder_bytes > others / 2 { help } else { "" },
        }
    }

    fn limit(&mut self, bytes: u64) {
        let pieces = bytes.saturating_sub(self.decoder_bytes + OTHER_BYTES) / GROUPED_BYTES;
        self.group_max = usize::try_from(pieces).unwrap_or(usize::MAX).max(1);
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let drained = self.hand_over(sink);
        // If the file changed, that explains why its text is wrong.
        if matches!(drained, Ok(_) | Err(Error::Input { .. }))
            && let Some((file, opened)) = &self.file
        {
            file.check_unchanged(opened)?;
        }
        drained
    }
}

impl TnsReader {
    /// Hands every batch to `sink`.
    fn hand_over(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let Begun { pieces, head } = self.begin()?;
        let Some((head, first)) = head else { return Err(no_nonzeros(&self.name)) };
        let mut tally = TextTally::new(&self.name, &head);
        let group_len = (PIECES_PER_THREAD * rayon::current_num_threads()).min(self.group_max);
        let in_ranges = self.plain && group_len >= PIECES_PER_THREAD * THREADS_READ;
        if let (true, Some((file, _)), Some(at)) = (in_ranges, &self.file, pieces.next_at()) {
            let ranges = Ranges::new(file, at, self.piece_bytes)?;
            for item in parse_group(&self.sys, &head.rules, vec![Ok(first)]) {
                tally.take(item?.1, sink)?;
            }
            read_ranges(&self.sys, ranges, group_len, &head.rules, |parsed| tally.take(parsed, sink))?;
            self.values_like_indices = tally.values_like_indices();
            return tally.extent(&head);
        }
        scope(|scope| {
            // Both channels are local, so returning ends the reading thread before it is joined.
            let (full_sender, full) = bounded(group_len);
            let (empty, empty_receiver) = bounded(2 * group_len + 2);
            self.sys.spawn(scope, "read-text".into(), move || {
                read_pieces(pieces, &full_sender, &empty_receiver);
            })?;
            let mut incoming = std::iter::once(Ok(first)).chain(full.iter());
            loop {
                self.sys.check_cancelled()?;
                let group: Vec<_> = incoming.by_ref().take(group_len).collect();
                if group.is_empty() {
                    return Ok(());
                }
                for item in parse_group(&self.sys, &head.rules, group) {
                    let (buffer, parsed) = item?;
                    tally.take(parsed, sink)?;
                    // The channel is full only if the reading thread has ended and needs no more buffers.
                    let _ = empty.try_send(buffer);
                }
            }
        })?;
        self.values_like_indices = tally.values_like_indices();
        tally.extent(&head)
    }
}

/// Reads and parses ranges of a file, a group at a time in parallel, and passes the results to `take` in order.
fn read_ranges(
    sys: &Sys,
    mut ranges: Ranges<'_>,
    group_len: usize,
    rules: &Rules,
    mut take: impl FnMut(Parsed) -> Result<()>,
) -> Result<()> {
    let (file, mut buffers) = (ranges.file(), Vec::new());
    loop {
        sys.check_cancelled()?;
        let group = ranges.by_ref().take(group_len);
        let group: Vec<_> = group.map(|range| (range, buffers.pop().unwrap_or_default())).collect();
        if group.is_empty() {
            return Ok(());
        }
        let read = |(range, buffer): (TextRange, Vec<u8>)| {
            let piece = range.read(sys, file, buffer)?;
            let parsed = parse::parse(sys, rules, piece.text())?;
            Ok((piece.into_buffer(), parsed))
        };
        let parsed: Vec<Result<_>> = group.into_par_iter().map(read).collect();
        for item in parsed {
            let (buffer, parsed) = item?;
            take(parsed)?;
            buffers.push(buffer);
        }
    }
}

/// The reading thread: sends pieces until the input ends or fails, or the receiver is gone.
fn read_pieces(mut pieces: Pieces, full: &Sender<Result<TextPiece>>, empty: &Receiver<Vec<u8>>) {
    while let Some(item) = pieces.next(empty.try_recv().unwrap_or_default()).transpose() {
        let last = item.is_err();
        if full.send(item).is_err() || last {
            return;
        }
    }
}

/// Parses the pieces of a group in parallel. The results keep their order and return the buffers.
fn parse_group(sys: &Sys, rules: &Rules, group: Vec<Result<TextPiece>>) -> Vec<Result<(Vec<u8>, Parsed)>> {
    group
        .into_par_iter()
        .map(|piece| {
            let piece = piece?;
            let parsed = parse::parse(sys, rules, piece.text())?;
            Ok((piece.into_buffer(), parsed))
        })
        .collect()
}

fn no_nonzeros(name: &str) -> Error {
    Error::input(name, "no nonzeros; give a file with at least one row of indices and a value")
}

/// What has been handed over so far.
struct TextTally<'a> {
    name: &'a str,
    lines: u64,
    nnz: u64,
    maxima: [u32; ORDER_MAX],
    /// The largest value while all are whole numbers from 1 up in rows of two indices; otherwise infinite.
    largest_whole: f64,
}

impl<'a> TextTally<'a> {
    fn new(name: &'a str, head: &TextHeader) -> Self {
        let rules = &head.rules;
        let may_lack = rules.order == 2 && rules.has_values && rules.declared == Declared::Not;
        let largest_whole = if may_lack { 0.0 } else { f64::INFINITY };
        Self { name, lines: head.lines, nnz: 0, maxima: [0; ORDER_MAX], largest_whole }
    }

    fn take(&mut self, parsed: Parsed, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<()> {
        if let Some(what) = parsed.bad {
            return Err(Error::input(format!("{}:{}", self.name, self.lines + parsed.lines), what));
        }
        self.lines += parsed.lines;
        self.nnz += parsed.batch.nnz() as u64;
        for (all, piece) in self.maxima.iter_mut().zip(parsed.maxima) {
            *all = piece.max(*all);
        }
        if self.largest_whole < f64::INFINITY {
            let whole =
                |&value: &f64| if value >= 1.0 && value.fract() == 0.0 { value } else { f64::INFINITY };
            self.largest_whole = parsed.batch.values.iter().map(whole).fold(self.largest_whole, f64::max);
        }
        if parsed.batch.nnz() > 0 { sink(parsed.batch) } else { Ok(()) }
    }

    /// Whether each value could be an index, that is, does not exceed the largest index.
    fn values_like_indices(&self) -> bool {
        let largest = self.maxima.iter().max().map_or(0.0, |&index| f64::from(index) + 1.0);
        self.largest_whole <= largest
    }

    fn extent(self, head: &TextHeader) -> Result<Extent> {
        if self.nnz == 0 {
            return Err(no_nonzeros(self.name));
        }
        if let Some(declared) = head.nnz.filter(|&declared| declared != self.nnz) {
            let what = format!(
                "the header declares {declared} nonzeros but {} rows follow; \
                 fetch the whole file, or correct the header",
                self.nnz
            );
            return Err(Error::input(self.name, what));
        }
        let dims = head.dims.clone().unwrap_or_else(|| {
            self.maxima[..head.rules.order].iter().map(|&largest| u64::from(largest) + 1).collect()
        });
        Shape::new(&dims).map_err(|e| Error::input(self.name, e.to_string()))?;
        Ok(Extent { dims, nnz: self.nnz })
    }
}
