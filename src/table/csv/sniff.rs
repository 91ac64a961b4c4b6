//! Detects the delimiter, the quotes, and whether there is a header from a table's first lines.

use super::HEAD_BYTES;
use super::split::{Dialect, Field};
use crate::error::{Error, Result};

/// Delimiters that are looked for, the likelier first.
const DELIMITERS: [u8; 4] = [b',', b'\t', b';', b'|'];
/// Records that are looked at.
const RECORDS: usize = 200;

/// What is said of how a table is written; `None` is found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsvOptions {
    /// What separates fields.
    pub delimiter: Option<u8>,
    /// What quotes them; `Some(None)`: nothing does.
    pub quote: Option<Option<u8>>,
    /// Whether the first record names the columns.
    pub header: Option<bool>,
}

impl CsvOptions {
    /// Refuses them for the table `name`, which is no such text.
    pub fn refuse(self, name: &str) -> Result<()> {
        if self == Self::default() {
            return Ok(());
        }
        let what = "`delimiter`, `quote` and `header` are options of CSV, and this is none";
        Err(Error::request(format!("{name}: {what}")))
    }
}

/// How a table is written.
#[derive(Clone, Debug)]
pub struct Sniffed {
    /// How text is divided.
    pub dialect: Dialect,
    /// The names of the columns; `None` where the first record has none.
    pub names: Option<Vec<String>>,
    /// How many columns there are.
    pub columns: usize,
}

/// Some records of `head`, the first bytes of a table; whole ones, unless `head` is cut off in the first.
fn sample(dialect: Dialect, head: &[u8]) -> Vec<Vec<Field>> {
    let end = dialect.last_end(head).unwrap_or(head.len());
    let (mut at, mut records) = (0, Vec::new());
    while at < end && records.len() < RECORDS {
        let mut fields = Vec::new();
        match dialect.split(&head[..end], at, &mut fields) {
            Ok(next) => at = next,
            Err(_) => break,
        }
        if fields.len() > 1 || !fields[0].is_null() {
            records.push(fields);
        }
    }
    records
}

/// How well a delimiter explains a sample: records with as many fields as the first, and these.
fn score(records: &[Vec<Field>]) -> (usize, usize) {
    let first = records.first().map_or(0, Vec::len);
    let alike = records.iter().filter(|record| record.len() == first).count();
    if first < 2 { (0, 0) } else { (1000 * alike / records.len().max(1), first) }
}

/// Finds out how the table that begins with `head` is written. `wanted` are names of columns that are asked for.
pub fn sniff(options: CsvOptions, head: &[u8], wanted: &[&str], name: &str) -> Result<Sniffed> {
    if head.is_empty() {
        return Err(Error::input(name, "is empty; give a table with a header and at least one row"));
    }
    let first_line = head.split(|&b| b == b'\n').next().unwrap_or_default();
    if let Some(at) = memchr::memchr(b'\r', first_line)
        && first_line[at..].iter().any(|&b| !b.is_ascii_whitespace())
        && !first_line.contains(&b'"')
    {
        let what = "lines end in CR alone; make line feeds of them: tr '\\r' '\\n'";
        return Err(Error::input(format!("{name}:1"), what));
    }
    if first_line.contains(&0) {
        let what = "is no text: it holds a byte 0; convert UTF-16 (iconv -f UTF-16 -t UTF-8), or give a .csv or .tsv file";
        return Err(Error::input(format!("{name}:1"), what));
    }
    // A byte order mark has been taken away.
    if first_line.len() + 3 >= HEAD_BYTES {
        let what = "a first line of more than 256 KiB; leave out columns, or end lines with line feeds";
        return Err(Error::input(format!("{name}:1"), what));
    }
    if first_line.starts_with(b"sep=") {
        let what = "is a line for Excel, above the names of the columns; remove it";
        return Err(Error::input(format!("{name}:1"), what));
    }
    let quote = options.quote.unwrap_or(Some(b'"'));
    let candidates = options.delimiter.map_or(DELIMITERS.to_vec(), |delimiter| vec![delimiter]);
    let best = candidates
        .into_iter()
        .rev()
        .max_by_key(|&delimiter| score(&sample(Dialect { delimiter, quote }, head)));
    let dialect = Dialect { delimiter: best.unwrap_or(b','), quote };
    let records = sample(dialect, head);
    let Some(first) = records.first() else {
        let mut fields = Vec::new();
        let what = match dialect.split(head, 0, &mut fields) {
            Err(fault) => fault.what,
            Ok(_) => "holds blank lines alone; give a header and at least one row".into(),
        };
        return Err(Error::input(format!("{name}:1"), what));
    };
    let text = |field: &Field| {
        let mut buffer = Vec::new();
        String::from_utf8_lossy(field.bytes(head, quote, &mut buffer)).into_owned()
    };
    let names: Vec<String> = first.iter().map(text).collect();
    let is_header = options.header.unwrap_or_else(|| is_header(&names, &records[1..], wanted, &text));
    let columns = first.len();
    Ok(Sniffed { dialect, names: is_header.then_some(names), columns })
}

/// Whether `first` are names: all that are asked for are among them, or it holds no number and something below it does, or it is
/// text like everything below it and none of it repeats.
fn is_header(
    first: &[String],
    rest: &[Vec<Field>],
    wanted: &[&str],
    text: &impl Fn(&Field) -> String,
) -> bool {
    let is_value =
        |text: &str| text.trim().parse::<f64>().is_ok() || text.starts_with(|c: char| c.is_ascii_digit());
    if !wanted.is_empty() && wanted.iter().all(|name| first.iter().any(|first| first == name)) {
        return true;
    }
    if first.iter().any(|name| is_value(name) || name.is_empty()) {
        return false;
    }
    let has_values = rest.iter().any(|record| record.iter().any(|field| is_value(&text(field))));
    let repeats = |name: &String| rest.iter().any(|record| record.iter().any(|field| text(field) == *name));
    has_values || !first.iter().any(repeats)
}
