//! The lines before the first row: comments and headers. They determine the order.

use super::parse::{Declared, Rules, fields, not_text, quoted, separator, too_long};
use super::pieces::{Pieces, TextPiece};
use super::{IndexBase, ReadOptions};
use crate::error::{Error, Result};
use crate::shape::{DIM_MAX, ORDER_MAX, ORDER_MIN, Shape};
use memchr::memchr;
use std::result::Result as StdResult;

/// How a Matrix Market file begins.
const MARKET: &[u8] = b"%%MatrixMarket";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Headers of the Tensor Toolbox for other kinds of data.
const OTHER_TOOLBOX: [&[u8]; 8] =
    [b"tensor", b"matrix", b"ktensor", b"ttensor", b"sptenmat", b"tenmat", b"symtensor", b"symktensor"];

/// What the header determines.
#[derive(Debug)]
pub(super) struct TextHeader {
    pub(super) rules: Rules,
    /// The dims, from the user or the header.
    pub(super) dims: Option<Vec<u64>>,
    /// The count of nonzeros that the header declares.
    pub(super) nnz: Option<u64>,
    /// Lines before the first row.
    pub(super) lines: u64,
}

/// What the next line with data must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// A header's first line, or a row.
    Anything,
    Order,
    Dims,
    Nnz,
    /// Rows, columns and nnz of a Matrix Market file, after its comments.
    Market,
    Row,
}

/// Reads up to the first row and returns it at the beginning of a piece; `None` if there is no row.
pub(super) fn read(
    pieces: &mut Pieces,
    name: &str,
    options: &ReadOptions,
) -> Result<Option<(TextHeader, TextPiece)>> {
    let mut scan =
        HeaderScan { options, expect: Expect::Anything, toolbox: false, order: None, dims: None, nnz: None };
    let mut lines = 0;
    let mut buffer = Vec::new();
    while let Some(mut piece) = pieces.next(buffer)? {
        if lines == 0 && piece.text().starts_with(BYTE_ORDER_MARK) {
            piece.skip(BYTE_ORDER_MARK.len());
        }
        while let Some(end) = memchr(b'\n', piece.text()) {
            let place = |what| Error::input(format!("{name}:{}", lines + 1), what);
            if scan.is_row(&piece.text()[..end]).map_err(place)? {
                let head = scan.head(lines).map_err(place)?;
                return Ok(Some((head, piece)));
            }
            piece.skip(end + 1);
            lines += 1;
        }
        buffer = piece.into_buffer();
    }
    Ok(None)
}

/// The state of the scan.
struct HeaderScan<'a> {
    options: &'a ReadOptions,
    expect: Expect,
    /// Whether it is the toolbox's header, which has a line for the nnz.
    toolbox: bool,
    order: Option<usize>,
    dims: Option<Vec<u64>>,
    nnz: Option<u64>,
}

impl HeaderScan<'_> {
    /// Parses a line of the header. Returns true if it is a row instead.
    fn is_row(&mut self, line: &[u8]) -> StdResult<bool, String> {
        if ends_in_cr_alone(line) {
            return Err("lines end in CR alone; make line feeds of them: tr '\\r' '\\n'".into());
        }
        too_long(line)?;
        let n_fields = fields(line).count();
        let Some(first) = fields(line).next() else {
            return Ok(false);
        };
        not_text(line)?;
        if self.expect == Expect::Anything
            && first.get(..MARKET.len()).is_some_and(|word| word.eq_ignore_ascii_case(MARKET))
        {
            check_market(line, self.options.no_values)?;
            (self.expect, self.toolbox) = (Expect::Market, true);
            return Ok(false);
        }
        match self.expect {
            Expect::Market if first.starts_with(b"%") => {}
            Expect::Market => self.read_market(line)?,
            Expect::Row if n_fields == 1 && !self.toolbox && whole_number(first, "a count").is_ok() => {
                let what = "looks like a count of nonzeros, which a header of order and dims does not have";
                return Err(format!("{} {what}; remove the line", quoted(first)));
            }
            Expect::Row => return Ok(true),
            Expect::Anything if n_fields > 1 => {
                self.order = Some(n_fields - usize::from(!self.options.no_values));
                return Ok(true);
            }
            Expect::Anything if first.eq_ignore_ascii_case(b"sptensor") => {
                self.toolbox = true;
                self.expect = Expect::Order;
            }
            Expect::Anything if OTHER_TOOLBOX.iter().any(|word| first.eq_ignore_ascii_case(word)) => {
                return Err(format!(
                    "{} announces another kind of Tensor Toolbox data; only sparse tensors in coordinates \
                     are read: export an sptensor",
                    quoted(first)
                ));
            }
            Expect::Anything | Expect::Order => {
                self.order = Some(self.read_order(line)?);
                self.expect = Expect::Dims;
            }
            Expect::Dims => {
                self.dims = Some(self.read_dims(line)?);
                self.expect = if self.toolbox { Expect::Nnz } else { Expect::Row };
            }
            Expect::Nnz => {
                if n_fields > 1 {
                    return Err(format!(
                        "{n_fields} fields where the header's count of nonzeros stands alone; \
                         correct the header"
                    ));
                }
                self.nnz = Some(whole_number(first, "the header's count of nonzeros")?);
                self.expect = Expect::Row;
            }
        }
        Ok(false)
    }

    /// Parses the line with rows, columns and nnz.
    fn read_market(&mut self, line: &[u8]) -> StdResult<(), String> {
        let numbers = fields(line).map(|field| whole_number(field, "a number of rows, columns or nonzeros"));
        let numbers = numbers.collect::<StdResult<Vec<_>, _>>()?;
        let [rows, columns, nnz] = numbers[..] else {
            return Err("rows, columns and the number of nonzeros belong here; correct the header".into());
        };
        if let Some(given) = self.options.dims.as_ref().map(Vec::len).filter(|&given| given != 2) {
            return Err(format!("a matrix has two dims; `dims` gives {given}"));
        }
        if self.options.dims.is_none() {
            Shape::new(&[rows, columns]).map_err(|e| format!("the header's dims cannot be used: {e}"))?;
        }
        (self.order, self.dims, self.nnz) = (Some(2), Some(vec![rows, columns]), Some(nnz));
        self.expect = Expect::Row;
        Ok(())
    }

    fn read_order(&self, line: &[u8]) -> StdResult<usize, String> {
        let mut order = None;
        for field in fields(line) {
            if order.is_some() {
                return Err(
                    "more than one field where the header's order stands alone; correct the header".into()
                );
            }
            if let (Expect::Anything, Some(name)) = (self.expect, separator(field)) {
                return Err(format!(
                    "{} is one field; separate the fields by spaces, not {name}, or read it as a table: rename it to .csv, or name its columns with `modes`",
                    quoted(field)
                ));
            }
            let number = whole_number(field, "the header's order");
            order = Some(if self.expect == Expect::Anything {
                number.map_err(|_| {
                    let what = "is neither a header nor a row: give indices and a value, separated by spaces, or read a table with `modes`";
                    format!("{} {what}", quoted(field))
                })?
            } else {
                number?
            });
        }
        // Too large for usize is as wrong as usize::MAX.
        let order = usize::try_from(order.unwrap_or(0)).unwrap_or(usize::MAX);
        check_order(order, "the header declares")?;
        if let Some(given) = self.options.dims.as_ref().map(Vec::len).filter(|&given| given != order) {
            return Err(format!(
                "the header declares order {order} but `dims` gives {given} dims; give one dim for each mode"
            ));
        }
        Ok(order)
    }

    fn read_dims(&self, line: &[u8]) -> StdResult<Vec<u64>, String> {
        let order = self.order.unwrap_or(0);
        let n_fields = fields(line).count();
        if n_fields != order {
            return Err(format!(
                "the header declares order {order} but this line holds {n_fields} dims; correct the header"
            ));
        }
        let dims = fields(line)
            .map(|field| whole_number(field, "a dim of the header"))
            .collect::<StdResult<Vec<_>, _>>()?;
        if self.options.dims.is_none() {
            Shape::new(&dims).map_err(|e| format!("the header's dims cannot be used: {e}"))?;
        }
        Ok(dims)
    }

    /// The header, once the first row has been found.
    fn head(self, lines: u64) -> StdResult<TextHeader, String> {
        let given = self.options.dims.clone();
        let declared = match (&given, &self.dims) {
            (Some(_), _) => Declared::ByUser,
            (None, Some(_)) => Declared::ByHeader,
            (None, None) => Declared::Not,
        };
        let dims = given.or(self.dims);
        let order = dims.as_ref().map(Vec::len).or(self.order).unwrap_or(0);
        if order == 1 && dims.is_none() {
            return Err(format!(
                "the first row has one index and a value, and a tensor has {ORDER_MIN} to {ORDER_MAX} modes; \
                 if rows hold indices and no value, pass `no_values`"
            ));
        }
        check_order(order, "the first row has")?;
        let mut limits = [u32::MAX; ORDER_MAX];
        for (limit, dim) in limits.iter_mut().zip(dims.iter().flatten()) {
            *limit = u32::try_from(*dim).unwrap_or(u32::MAX);
        }
        let base = match self.options.index_base {
            IndexBase::Zero => 0,
            IndexBase::One => 1,
        };
        let rules = Rules { order, base, limits, declared, has_values: !self.options.no_values };
        Ok(TextHeader { rules, dims, nnz: self.nnz, lines })
    }
}

/// Fails if the first line of a Matrix Market file announces an unsupported kind.
fn check_market(line: &[u8], no_values: bool) -> StdResult<(), String> {
    let words: Vec<String> =
        fields(line).skip(1).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let only = "only coordinate matrices of real numbers or integers, general, are read";
    match (word(0), word(1), word(2), word(3)) {
        ("matrix", "coordinate", "real" | "integer" | "double", "general") => Ok(()),
        ("matrix", "coordinate", "pattern", "general") if no_values => Ok(()),
        ("matrix", "coordinate", "pattern", "general") => {
            Err("a pattern has no values; pass `no_values`, with which each row counts 1".into())
        }
        ("matrix", "coordinate", _, "symmetric" | "skew-symmetric" | "hermitian") => {
            Err(format!("half of a {} matrix is left out: {only}; write all of it", word(3)))
        }
        ("matrix", "array", ..) => {
            Err(format!("an array is a dense matrix: {only}; write the nonzeros as coordinates"))
        }
        _ => Err(format!("{:?}: {only}; export it as one of those", words.join(" "))),
    }
}

/// Whether the line contains a carriage return, which ends lines in some old files.
fn ends_in_cr_alone(line: &[u8]) -> bool {
    memchr(b'\r', line).is_some_and(|at| line[at..].iter().any(|&b| !b.is_ascii_whitespace()))
}

fn check_order(order: usize, who: &str) -> StdResult<(), String> {
    if (ORDER_MIN..=ORDER_MAX).contains(&order) {
        return Ok(());
    }
    Err(format!(
        "{who} order {order}; give a tensor of order {ORDER_MIN} to {ORDER_MAX}, as rows of that many indices \
         and a value"
    ))
}

/// A number of a header. [`Shape`] checks dims above 2^32 - 1.
fn whole_number(field: &[u8], what: &str) -> StdResult<u64, String> {
    let number = std::str::from_utf8(field).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    number.and_then(|text| text.parse().ok()).ok_or_else(|| {
        format!("{} is not {what}; give a whole number (at most {DIM_MAX} for a dim)", quoted(field))
    })
}
