//! The header of a factor's NumPy file. It is read here, strictly and without recursion: of all that NumPy can write, a
//! factor is one array of f8 or f4, and a header may come from anywhere.

use crate::error::{Error, Result};
use crate::sys::File;
use std::result::Result as StdResult;

const MAGIC: &[u8] = b"\x93NUMPY";
/// No header is longer; a factor's has about a hundred bytes.
const BYTES_MAX: usize = 4096;

/// What a file has to hold instead.
const WANTED: &str = "factors and vectors hold f8 or f4: convert it with astype('f8')";

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The axes' lengths.
    pub shape: Vec<u64>,
    /// Whether the first axis runs fastest.
    pub fortran: bool,
    /// Bytes of a number: 8 or 4.
    pub width: usize,
    /// Whether a number's first byte is its highest.
    pub big_endian: bool,
    /// Bytes of the header: where the numbers begin.
    pub bytes: usize,
}

impl Header {
    /// Reads the header of `file`; [`Error::Input`] unless it is that of an array of f8 or f4.
    pub fn read(file: &File) -> Result<Self> {
        let mut bytes = [0; BYTES_MAX];
        let read = file.read_at(&mut bytes, 0)?;
        parse(&bytes[..read]).map_err(|what| Error::input(file.path().display().to_string(), what))
    }

    /// The number that [`Header::width`] bytes hold.
    pub fn number(&self, bytes: &[u8]) -> f64 {
        let byte = |i: usize| bytes[if self.big_endian { self.width - 1 - i } else { i }];
        match self.width {
            8 => f64::from_le_bytes(std::array::from_fn(byte)),
            _ => f32::from_le_bytes(std::array::from_fn(byte)).into(),
        }
    }
}

fn parse(bytes: &[u8]) -> StdResult<Header, String> {
    let not = |what: &str| format!("not a NumPy file: {what}");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| not("wrong magic at byte 0"))?;
    let (start, length) = match *rest {
        [1, 0, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [2 | 3, 0, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        [major, minor, ..] if !(1..=3).contains(&major) || minor != 0 => {
            return Err(not(&format!("version {major}.{minor} is unknown")));
        }
        _ => return Err(not("its header is cut off")),
    };
    if length > BYTES_MAX - start {
        return Err(not(&format!("its header has {length} bytes; a factor's or vector's has about 100")));
    }
    let text = bytes.get(start..start + length).ok_or_else(|| not("its header is cut off"))?;
    let text = std::str::from_utf8(text).map_err(|_| not("its header is not text"))?;
    let (descr, fortran, shape) = dictionary(text)?.ok_or_else(|| not("its header is not well formed"))?;
    let (big_endian, width) = match descr {
        "<f8" | "=f8" => (false, 8),
        "<f4" | "=f4" => (false, 4),
        ">f8" => (true, 8),
        ">f4" => (true, 4),
        _ => return Err(format!("holds '{descr}'; {WANTED}")),
    };
    Ok(Header { shape, fortran, width, big_endian, bytes: start + length })
}

/// Type, whether the first axis runs fastest, shape.
type NpyFacts<'a> = (&'a str, bool, Vec<u64>);

/// Parses `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }`, keys in any order; `None` for anything else.
fn dictionary(text: &str) -> StdResult<Option<NpyFacts<'_>>, String> {
    let mut scan = NpyScan(text);
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    let mut more = scan.take('{');
    while more && !scan.take('}') {
        match (scan.quoted(), scan.take(':')) {
            (Some("descr"), true) if scan.take('[') => {
                return Err(format!("holds a structure; {WANTED}"));
            }
            (Some("descr"), true) => descr = scan.quoted(),
            (Some("fortran_order"), true) => fortran = scan.boolean(),
            (Some("shape"), true) => shape = scan.tuple(),
            _ => return Ok(None),
        }
        more = scan.take(',');
        if !more && !scan.take('}') {
            return Ok(None);
        }
    }
    let whole = scan.0.trim_ascii().is_empty();
    Ok(descr.zip(fortran).zip(shape).filter(|_| whole).map(|((d, f), s)| (d, f, s)))
}

/// The rest of a header's text; white space before a token is skipped.
struct NpyScan<'a>(&'a str);

impl<'a> NpyScan<'a> {
    fn take(&mut self, token: char) -> bool {
        let rest = self.0.trim_ascii_start().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// What stands between quotes of either kind.
    fn quoted(&mut self) -> Option<&'a str> {
        let quote = if self.take('\'') { '\'' } else { self.take('"').then_some('"')? };
        let (text, rest) = self.0.split_once(quote)?;
        self.0 = rest;
        Some(text)
    }

    fn boolean(&mut self) -> Option<bool> {
        let text = self.0.trim_ascii_start();
        let (rest, value) = match (text.strip_prefix("True"), text.strip_prefix("False")) {
            (Some(rest), _) => (rest, true),
            (_, Some(rest)) => (rest, false),
            _ => return None,
        };
        self.0 = rest;
        Some(value)
    }

    /// `(3, 2)`, `(3,)`, `()`; an `L` behind a number is an old Python's.
    fn tuple(&mut self) -> Option<Vec<u64>> {
        self.take('(').then_some(())?;
        let (text, rest) = self.0.split_once(')')?;
        self.0 = rest;
        let text = text.trim_ascii();
        let numbers = text.strip_suffix(',').unwrap_or(text).split(',').map(str::trim_ascii);
        let number = |text: &str| {
            let digits = text.strip_suffix('L').unwrap_or(text);
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        if text.is_empty() { Some(Vec::new()) } else { numbers.map(number).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [MAGIC, &[version, 0], length, text.as_bytes()].concat()
    }

    #[test]
    fn headers_of_every_version_and_style_are_read() {
        let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }    \n";
        let wanted = |bytes| Header { shape: vec![3, 2], fortran: false, width: 8, big_endian: false, bytes };
        assert_eq!(parse(&file(1, text)).unwrap(), wanted(10 + text.len()));
        assert_eq!(parse(&file(2, text)).unwrap(), wanted(12 + text.len()));
        let text = "{\"shape\":(3L,2L),\"fortran_order\":True,\"descr\":\">f4\"}";
        let header = parse(&file(3, text)).unwrap();
        assert_eq!((header.shape.as_slice(), header.fortran, header.width), (&[3, 2][..], true, 4));
        assert!(header.big_endian);
        assert_eq!(header.number(&1.5f32.to_be_bytes()).to_bits(), 1.5f64.to_bits());
        for (shape, axes) in [("()", 0), ("(7,)", 1), ("(1,2,3)", 3)] {
            let text = format!("{{'descr':'<f8','fortran_order':False,'shape':{shape}}}");
            assert_eq!(parse(&file(1, &text)).unwrap().shape.len(), axes);
        }
    }

    /// Found by fuzzing: no memory is spent on what a header announces, and no time on what it nests.
    #[test]
    fn hostile_headers_are_refused_at_once() {
        let mut long = file(2, "{}");
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&long).unwrap_err().contains("4294967295 bytes"));
        let nested = format!("{{'descr': {}, ", "[".repeat(2000));
        assert!(parse(&file(1, &nested)).unwrap_err().contains("holds a structure"));
        let nested = format!("{{'shape': {}", "(".repeat(2000));
        assert!(parse(&file(1, &nested)).unwrap_err().contains("not well formed"));
    }

    #[test]
    fn anything_else_is_refused() {
        let good = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }";
        let said = |text: &str| parse(&file(1, text)).unwrap_err();
        assert!(said(&good.replace("<f8", "<i8")).contains("holds '<i8'; factors and vectors hold f8 or f4"));
        let wrong =
            [("2), }", "2), } x"), ("2), }", "2)"), ("False", "0"), ("shape", "size"), (", 2", ", -2")];
        for (what, with) in wrong {
            assert!(said(&good.replace(what, with)).contains("not well formed"), "{with}");
        }
        assert!(parse(b"\x93NUMPX\x01\0").unwrap_err().contains("wrong magic"));
        assert!(parse(b"\x93NUMPY\x04\0\0\0").unwrap_err().contains("version 4.0"));
        for length in 0..good.len() {
            let bytes = file(1, good);
            assert!(parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
