//! Bytes to text: detects the compression by its magic bytes, and describes defects of a stream.

use crate::error::{Error, Result};
use crate::sys::{File, FileState, Sys};
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// Bytes of compressed input per read.
const COMPRESSED_BYTES: usize = 1 << 18;
/// Bytes that determine the compression: the length of the longest magic.
const MAGIC_BYTES: usize = 8;
/// Bytes that also include a zstd frame's header after pzstd's skippable frame.
const HEAD_BYTES: usize = 32;
/// Memory of zstd's decoder besides the window and its input buffer.
const DECODER_BYTES: u64 = 1 << 20;
/// The window that every zstd frame may use, whatever the first one uses: that of all levels except the ultra
/// ones.
const WINDOW_BYTES: u64 = 8 << 20;
/// The largest window that is accepted, as by the zstd program without `--long=28` or more.
const WINDOW_BYTES_MAX: u64 = 1 << 27;

/// Kinds of files that are not text.
const PARQUET: &str = "a Parquet file";
const ARROW: &str = "an Arrow file";
const UTF_16: &str = "UTF-16 text";
const NUMPY: &str = "a NumPy array";
const MATLAB: &str = "a MATLAB file";
const HDF5: &str = "an HDF5 file, perhaps MATLAB's";
const ZIP: &str = "a zip archive";
const OLD_SHEET: &str = "an old Excel workbook";

/// How an input is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A regular file, and its state when it was opened.
pub(crate) type OpenedFile = (File, FileState);

/// Decoded text, and its name in messages.
pub struct TextInput {
    name: String,
    compression: Compression,
    /// The largest accepted window of a zstd frame.
    window_bytes: u64,
    text: Box<dyn Read + Send>,
}

impl TextInput {
    /// Opens `path`, or standard input if it is `-`. Returns its name in messages, its text, and, for a regular file,
    /// the file with its state.
    pub(crate) fn open(sys: &Sys, path: &Path) -> Result<(String, Self, Option<OpenedFile>)> {
        if path == Path::new("-") {
            let name = "standard input".to_owned();
            return Ok((name.clone(), Self::sniff(Box::new(io::stdin()), &name)?, None));
        }
        let name = path.display().to_string();
        let file = sys.open(path, false).map_err(|error| match error {
            Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                let tilde = if path.starts_with("~") { "take ~ out of the quotes" } else { "check the path" };
                Error::input(&name, format!("no such file; {tilde}"))
            }
            other => other,
        })?;
        let facts = file.metadata()?;
        if facts.is_dir() {
            return Err(Error::input(name, "is a directory; give a file"));
        }
        let regular = if facts.is_file() { Some((file.duplicate()?, file.state()?)) } else { None };
        let input = Self::sniff(Box::new(file), &name)?;
        Ok((name, input, regular))
    }

    /// Reads the first bytes of `raw` and selects the decoder.
    pub(super) fn sniff(raw: Box<dyn Read + Send>, name: &str) -> Result<Self> {
        let mut raw = Retry(raw);
        let mut head = Vec::with_capacity(HEAD_BYTES);
        raw.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(Error::io(name, "read"))?;
        let compression = recognise(&head[..head.len().min(MAGIC_BYTES)]).map_err(|kind| {
            let way = match kind {
                PARQUET | ARROW if cfg!(feature = "arrow") => {
                    "give it to blco-pack as a file, uncompressed, with --modes"
                }
                PARQUET | ARROW => "write it as CSV first",
                UTF_16 => "convert it first: iconv -f UTF-16 -t UTF-8",
                NUMPY => "write rows of indices and a value, as numpy.savetxt does, or pack the array in Python: blco.pack",
                MATLAB | HDF5 => "write its nonzeros as rows of indices and a value, as MATLAB's writematrix does",
                OLD_SHEET => "save it as CSV first",
                ZIP if is_sheet(name) => "save the spreadsheet as CSV first",
                ZIP => "unpack it first; name a NumPy archive .npz",
                _ => "unpack it first",
            };
            Error::input(name, format!("is {kind}, where text is expected (plain, gzip or zstd): {way}"))
        })?;
        let window_bytes = match compression {
            Compression::Zstd => first_window(&head).clamp(WINDOW_BYTES, WINDOW_BYTES_MAX),
            Compression::None | Compression::Gzip => 0,
        };
        let raw = Cursor::new(head).chain(raw);
        let buffered = |raw| BufReader::with_capacity(COMPRESSED_BYTES, raw);
        let text: Box<dyn Read + Send> = match compression {
            Compression::None => Box::new(raw),
            Compression::Gzip => Box::new(Members(Some(GzDecoder::new(buffered(raw))))),
            Compression::Zstd => {
                let failed = |source| Error::Resource { action: "start a zstd decoder", source };
                let mut decoder = zstd::Decoder::with_buffer(buffered(raw)).map_err(failed)?;
                decoder.window_log_max(window_bytes.next_power_of_two().ilog2()).map_err(failed)?;
                Box::new(decoder)
            }
        };
        Ok(Self { name: name.to_string(), compression, window_bytes, text })
    }

    /// Bytes of memory that decoding takes.
    pub(crate) fn decoder_bytes(&self) -> u64 {
        if self.is_plain() { 0 } else { self.window_bytes + DECODER_BYTES }
    }

    /// Whether the text is not compressed.
    pub(super) fn is_plain(&self) -> bool {
        self.compression == Compression::None
    }

    /// Whether the text begins with `magic`. The text can still be read from its beginning.
    #[cfg(feature = "arrow")]
    pub(crate) fn begins_with(&mut self, magic: &[u8]) -> bool {
        let (mut head, mut failure) = (Vec::new(), None);
        while head.len() < magic.len() && failure.is_none() {
            let mut rest = vec![0; magic.len() - head.len()];
            match self.text.read(&mut rest) {
                Ok(0) => break,
                Ok(n) => head.extend_from_slice(&rest[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => failure = Some(e),
            }
        }
        let begins = head == magic;
        let rest = std::mem::replace(&mut self.text, Box::new(io::empty()));
        self.text = Box::new(Cursor::new(head).chain(Failing(failure)).chain(rest));
        begins
    }

    /// Fills `buf`. Returns the number of bytes read, which is smaller only at the end of the text, and the
    /// error that followed them.
    pub(crate) fn fill(&mut self, buf: &mut [u8]) -> (usize, Option<Error>) {
        let mut done = 0;
        while done < buf.len() {
            match self.text.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (done, Some(self.error(e))),
            }
        }
        (done, None)
    }

    /// The system's errors have a number; a decoder's do not.
    fn error(&self, source: io::Error) -> Error {
        let kind = match self.compression {
            Compression::Gzip if source.raw_os_error().is_none() => "gzip",
            Compression::Zstd if source.raw_os_error().is_none() => "zstd",
            _ => return Error::io(&self.name, "read")(source),
        };
        let what = if self.compression == Compression::Zstd && source.to_string().contains("too much memory")
        {
            let window = bytesize::ByteSize(self.window_bytes);
            format!(
                "a zstd frame has a window of more than {window}; compress the file again without --long and \
                 --ultra, or pipe it decompressed through -"
            )
        } else if is_trailing(&source) {
            format!("{TRAILING}; remove them, or fetch or compress the file again")
        } else if source.kind() == io::ErrorKind::UnexpectedEof {
            format!("the {kind} data is cut short; fetch the whole file again")
        } else {
            format!(
                "the {kind} data is damaged, or something else follows it ({source}); \
                 fetch or compress the file again"
            )
        };
        Error::input(&self.name, what)
    }
}

impl std::fmt::Debug for TextInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextInput")
            .field("name", &self.name)
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}

/// The window of the zstd frame at the start of `head`, from its header; the largest window if a long
/// skippable frame hides the header.
fn first_window(head: &[u8]) -> u64 {
    let field = |at: usize, bytes: usize| {
        let there = head.get(at..at + bytes).unwrap_or_default();
        there.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
    };
    if head.len() < 6 {
        return WINDOW_BYTES_MAX;
    }
    if head[0] != 0x28 {
        let skipped = usize::try_from(8 + field(4, 4)).unwrap_or(usize::MAX);
        return head.get(skipped..).map_or(WINDOW_BYTES_MAX, first_window);
    }
    let descriptor = field(4, 1);
    if descriptor & 1 << 5 == 0 {
        let (exponent, mantissa) = (field(5, 1) >> 3, field(5, 1) & 7);
        let base = 1u64 << (10 + exponent);
        return base + base / 8 * mantissa;
    }
    // A single segment: the window is as long as the contents. Their length follows the dictionary's number.
    let at = 5 + [0, 1, 2, 4][usize::from(head[4] & 3)];
    match descriptor >> 6 {
        0 => field(at, 1),
        1 => field(at, 2) + 256,
        2 => field(at, 4),
        _ => field(at, 8),
    }
}

/// The compression indicated by the first bytes, or the name of an unsupported kind of file.
fn recognise(magic: &[u8]) -> std::result::Result<Compression, &'static str> {
    match magic {
        [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
        // A frame, or a skippable frame before one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Err("compressed by bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Err("compressed by xz"),
        [b'P', b'K', 3, 4, ..] => Err(ZIP),
        [0xd0, 0xcf, 0x11, 0xe0, ..] => Err(OLD_SHEET),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Err(NUMPY),
        [b'M', b'A', b'T', b'L', b'A', b'B', b' ', ..] => Err(MATLAB),
        [0x89, b'H', b'D', b'F', ..] => Err(HDF5),
        [0x04, 0x22, 0x4d, 0x18, ..] => Err("compressed by lz4"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err(UTF_16),
        [b'P', b'A', b'R', b'1', ..] => Err(PARQUET),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Err(ARROW),
        _ => Ok(Compression::None),
    }
}

/// Whether a zip archive of this name is a spreadsheet.
fn is_sheet(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str()).unwrap_or_default();
    ["xlsx", "xlsm", "ods", "numbers"].iter().any(|sheet| end.eq_ignore_ascii_case(sheet))
}

/// The message for other bytes after a gzip member.
const TRAILING: &str = "other bytes follow the gzip data";

fn is_trailing(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|told| told.to_string() == TRAILING)
}

/// The text of all members of gzip data. flate2's own multi-member decoder reports trailing bytes as a truncated
/// member.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let read = decoder.read(buf)?;
            if read > 0 || buf.is_empty() {
                return Ok(read);
            }
            let next = decoder.get_mut().fill_buf()?.first().copied();
            let raw = self.0.take().map(GzDecoder::into_inner);
            match next {
                Some(0x1f) => self.0 = raw.map(GzDecoder::new),
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, TRAILING)),
                None => {}
            }
        }
        Ok(0)
    }
}

/// Fails once, if it has a failure, and ends.
#[cfg(feature = "arrow")]
struct Failing(Option<io::Error>);

#[cfg(feature = "arrow")]
impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// Retries interrupted reads, which decoders would return in the middle of their work.
struct Retry<R>(R);

impl<R: Read> Read for Retry<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buf) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}
