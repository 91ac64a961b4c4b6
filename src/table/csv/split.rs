//! Text to records and fields: RFC 4180, with any delimiter. A quote is one only where a field begins.

use memchr::{memchr, memchr2, memrchr};

/// How text is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// What separates fields.
    pub delimiter: u8,
    /// What fields that hold delimiters, quotes or newlines begin and end with.
    pub quote: Option<u8>,
}

/// A field of a record, where it lies in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first byte, behind the quote if it has one.
    pub start: usize,
    /// Behind its last byte.
    pub end: usize,
    /// Whether it is in quotes.
    pub quoted: bool,
    /// Whether two quotes in it stand for one.
    pub doubled: bool,
}

/// What is wrong with a record: in which field, from 0, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field.
    pub field: usize,
    /// What is wrong.
    pub what: String,
}

impl Dialect {
    /// A field on each line.
    pub const LINES: Self = Self { delimiter: b'\n', quote: None };

    /// Takes the record that begins at `at` of `text` apart into `fields`; where the next one begins. Text ends with a newline,
    /// unless it was cut inside a record.
    pub fn split(self, text: &[u8], mut at: usize, fields: &mut Vec<Field>) -> Result<usize, Fault> {
        fields.clear();
        loop {
            let fault = |what: &str| Err(Fault { field: fields.len(), what: what.to_owned() });
            let (field, end) = if self.quote.is_some() && text.get(at) == self.quote.as_ref() {
                let quote = text[at];
                let Some((close, doubled)) = closing(text, at + 1, quote) else {
                    return fault(
                        "a quote opens here and is not closed; close it, or give --quote none to take quotes as they are",
                    );
                };
                let behind = close + 1 + usize::from(text[close + 1..].starts_with(b"\r\n"));
                match text.get(behind) {
                    Some(&b) if b == self.delimiter || b == b'\n' => {}
                    None => {}
                    Some(_) => {
                        return fault(
                            "text stands behind a closing quote; write two quotes for one inside of a field, or give --quote none",
                        );
                    }
                }
                (Field { start: at + 1, end: close, quoted: true, doubled }, behind)
            } else {
                let end = memchr2(self.delimiter, b'\n', &text[at..]).map_or(text.len(), |end| at + end);
                let ends_line = text.get(end) != Some(&self.delimiter);
                let cut = usize::from(ends_line && end > at && text[end - 1] == b'\r');
                (Field { start: at, end: end - cut, quoted: false, doubled: false }, end)
            };
            fields.push(field);
            at = end + 1;
            if text.get(end) != Some(&self.delimiter) {
                return Ok(at.min(text.len()));
            }
        }
    }

    /// The end of the last whole record of `text`, which begins with a record; `None` if there is none.
    #[must_use]
    pub fn last_end(self, text: &[u8]) -> Option<usize> {
        let Some(quote) = self.quote.filter(|&quote| memchr(quote, text).is_some()) else {
            return memrchr(b'\n', text).map(|at| at + 1);
        };
        let (mut at, mut last) = (0, None);
        while let Some(found) = memchr(quote, &text[at..]) {
            let open = at + found;
            last = memrchr(b'\n', &text[at..open]).map(|newline| at + newline + 1).or(last);
            let begins = open == 0 || text[open - 1] == self.delimiter || text[open - 1] == b'\n';
            if !begins {
                at = open + 1;
                continue;
            }
            let Some((close, _)) = closing(text, open + 1, quote) else { return last };
            at = close + 1;
        }
        memrchr(b'\n', &text[at..]).map(|newline| at + newline + 1).or(last)
    }
}

impl Field {
    /// Its bytes, which are put together in `buffer` if two quotes in it stand for one.
    pub fn bytes<'a>(&self, text: &'a [u8], quote: Option<u8>, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        let raw = &text[self.start..self.end];
        let (true, Some(quote)) = (self.doubled, quote) else { return raw };
        buffer.clear();
        let mut rest = raw;
        while let Some(at) = memchr(quote, rest) {
            buffer.extend_from_slice(&rest[..=at]);
            rest = &rest[(at + 2).min(rest.len())..];
        }
        buffer.extend_from_slice(rest);
        buffer
    }

    /// Whether it holds nothing, and does not say so by quotes.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.start == self.end && !self.quoted
    }
}

/// Where the field whose quote opened before `at` closes, and whether it holds double quotes.
fn closing(text: &[u8], mut at: usize, quote: u8) -> Option<(usize, bool)> {
    let mut doubled = false;
    loop {
        let found = at + memchr(quote, text.get(at..)?)?;
        if text.get(found + 1) != Some(&quote) {
            return Some((found, doubled));
        }
        doubled = true;
        at = found + 2;
    }
}

/// The field `text` as CSV has it, appended to `out`.
pub fn append_field(text: &str, delimiter: u8, out: &mut Vec<u8>) {
    let plain = |b: u8| b != delimiter && !matches!(b, b'"' | b'\n' | b'\r');
    if !text.is_empty() && text.bytes().all(plain) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for part in text.split_inclusive('"') {
        out.extend_from_slice(part.as_bytes());
        if part.ends_with('"') {
            out.push(b'"');
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMA: Dialect = Dialect { delimiter: b',', quote: Some(b'"') };

    fn records(text: &str) -> Result<Vec<Vec<String>>, Fault> {
        let (mut at, mut fields, mut all) = (0, Vec::new(), Vec::new());
        while at < text.len() {
            at = COMMA.split(text.as_bytes(), at, &mut fields)?;
            let mut buffer = Vec::new();
            let text = |field: &Field| {
                String::from_utf8(field.bytes(text.as_bytes(), COMMA.quote, &mut buffer).to_vec()).unwrap()
            };
            all.push(fields.iter().map(text).collect());
        }
        Ok(all)
    }

    #[test]
    fn quotes_are_those_of_rfc_4180() {
        let text = "a,\"b \"\"x\"\", c\",\r\n\"line\nline\",5\" disk,\"\"\n";
        assert_eq!(records(text).unwrap(), [vec!["a", "b \"x\", c", ""], vec!["line\nline", "5\" disk", ""]]);
        assert!(records("a,\"b\nc\n").unwrap_err().what.contains("not closed"));
        assert_eq!(records("a,\"b\"c\n").unwrap_err().field, 1);
        let mut fields = Vec::new();
        COMMA.split(b"\"\",\n", 0, &mut fields).unwrap();
        assert_eq!(fields.iter().map(Field::is_null).collect::<Vec<_>>(), [false, true]);
    }

    proptest! {
        /// What is written is read again, and records end where the cutter says.
        #[test]
        fn fields_come_back(rows in proptest::collection::vec(proptest::collection::vec("[ab,\"\n\r é]{0,6}", 2..4), 1..6)) {
            let mut text = Vec::new();
            let mut ends = vec![0];
            for row in &rows {
                for (at, field) in row.iter().enumerate() {
                    if at > 0 { text.push(b','); }
                    append_field(field, b',', &mut text);
                }
                text.push(b'\n');
                ends.push(text.len());
            }
            prop_assert_eq!(records(std::str::from_utf8(&text).unwrap()).unwrap(), rows);
            for cut in 0..=text.len() {
                // Inside of a field two quotes may be cut apart: then what is left looks closed, but no record ends there.
                let last = ends.iter().rfind(|&&end| end <= cut).copied().filter(|&end| end > 0);
                prop_assert_eq!(COMMA.last_end(&text[..cut]), last, "{}", cut);
            }
        }
    }
}
