//! Bytes to text: recognises the compression by its magic bytes and names what is wrong with a stream.

use crate::error::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufReader, Cursor, Read};

/// Bytes of compressed input that are read at once.
const COMPRESSED_BYTES: usize = 1 << 18;
/// Bytes that decide the compression: as long as the longest magic.
const MAGIC_BYTES: usize = 6;

/// How an input is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Decoded text, and what to call it in messages.
pub(super) struct Input {
    name: String,
    compression: Compression,
    text: Box<dyn Read + Send>,
}

impl Input {
    /// Reads the first bytes of `raw` and puts the right decoder in front of it.
    pub(super) fn sniff(raw: Box<dyn Read + Send>, name: &str) -> Result<Self> {
        let mut raw = Retry(raw);
        let mut magic = Vec::with_capacity(MAGIC_BYTES);
        raw.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut magic).map_err(Error::io(name, "read"))?;
        let compression = recognise(&magic).map_err(|kind| {
            Error::input(name, format!("is {kind}; only plain, gzip and zstd text is read: unpack it first"))
        })?;
        let raw = Cursor::new(magic).chain(raw);
        let buffered = |raw| BufReader::with_capacity(COMPRESSED_BYTES, raw);
        let text: Box<dyn Read + Send> = match compression {
            Compression::None => Box::new(raw),
            Compression::Gzip => Box::new(MultiGzDecoder::new(buffered(raw))),
            Compression::Zstd => {
                let decoder = zstd::Decoder::with_buffer(buffered(raw));
                Box::new(
                    decoder.map_err(|source| Error::Resource { action: "start a zstd decoder", source })?,
                )
            }
        };
        Ok(Self { name: name.to_string(), compression, text })
    }

    /// Whether the text is not compressed.
    pub(super) fn is_plain(&self) -> bool {
        self.compression == Compression::None
    }

    /// Fills `buf` and returns the bytes read, fewer only at the end of the text, and what went wrong after
    /// them.
    pub(super) fn fill(&mut self, buf: &mut [u8]) -> (usize, Option<Error>) {
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

    /// The system's errors carry its number; a decoder's do not.
    fn error(&self, source: io::Error) -> Error {
        let kind = match self.compression {
            Compression::Gzip if source.raw_os_error().is_none() => "gzip",
            Compression::Zstd if source.raw_os_error().is_none() => "zstd",
            _ => return Error::io(&self.name, "read")(source),
        };
        let what = if source.kind() == io::ErrorKind::UnexpectedEof {
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

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("name", &self.name)
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}

/// The compression that the first bytes tell, or the name of a kind of file that is not read.
fn recognise(magic: &[u8]) -> std::result::Result<Compression, &'static str> {
    match magic {
        [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
        // A frame, or a skippable frame before one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Err("compressed by bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Err("compressed by xz"),
        [b'P', b'K', 3, 4, ..] => Err("a zip archive"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Err("compressed by lz4"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err("UTF-16 text"),
        _ => Ok(Compression::None),
    }
}

/// Retries interrupted reads, which decoders pass on in the middle of their work.
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
