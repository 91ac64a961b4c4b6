//! Rows of text to coordinates. A fast path handles nearly all lines; a careful path accepts the rest or says
//! what is wrong.

use super::pieces::LINE_BYTES_MAX;
use crate::coo::Batch;
use crate::error::Result;
use crate::shape::{DIM_MAX, ORDER_MAX};
use crate::sys::Sys;
use memchr::{memchr, memchr_iter};
use std::result::Result as StdResult;

/// The most digits of an index on the fast path: those of 2^32.
const INDEX_DIGITS_MAX: usize = 10;
/// The most digits of an integer value on the fast path: always exact in f64.
const VALUE_DIGITS_MAX: usize = 15;
/// The most characters of a field in a message.
const QUOTED_CHARS_MAX: usize = 40;

/// Who declared the dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    Not,
    ByHeader,
    ByUser,
}

/// What every row must satisfy.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) order: usize,
    /// The first index: 0 or 1.
    pub(super) base: u32,
    /// Each index, counted from 0, is below its mode's limit: the declared dim, else 2^32 - 1.
    pub(super) limits: [u32; ORDER_MAX],
    pub(super) declared: Declared,
    /// Whether a value follows the indices. Without one, a row counts 1.
    pub(super) has_values: bool,
}

impl Rules {
    /// Fields of a row.
    fn fields(&self) -> usize {
        self.order + usize::from(self.has_values)
    }
}

/// The contents of a piece.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) batch: Batch,
    /// The largest index of each mode, from 0.
    pub(super) maxima: [u32; ORDER_MAX],
    /// Lines read. With `bad`, the last of them is the bad one.
    pub(super) lines: u64,
    /// What is wrong with the first bad line.
    pub(super) bad: Option<String>,
}

/// Parses whole lines, up to the first bad one.
pub(super) fn parse(sys: &Sys, rules: &Rules, text: &[u8]) -> Result<Parsed> {
    // A row takes a newline and at least two bytes per field.
    let n_rows_max = memchr_iter(b'\n', text).count().min(text.len() / (2 * rules.fields()) + 1);
    let mut indices = sys.vec(0u32, n_rows_max * rules.order)?;
    let mut values = sys.vec(0f64, n_rows_max)?;
    indices.clear();
    values.clear();
    let mut parsed = Parsed { batch: Batch { indices, values }, ..Parsed::default() };
    match rules.order {
        2 => rows::<2>(rules, text, &mut parsed),
        3 => rows::<3>(rules, text, &mut parsed),
        4 => rows::<4>(rules, text, &mut parsed),
        5 => rows::<5>(rules, text, &mut parsed),
        6 => rows::<6>(rules, text, &mut parsed),
        7 => rows::<7>(rules, text, &mut parsed),
        _ => rows::<8>(rules, text, &mut parsed),
    }
    // Lines without a nonzero were counted too, so release the excess: callers that keep batches budget by
    // nonzeros.
    let Batch { indices, values } = &mut parsed.batch;
    if values.len() < values.capacity() / 2 {
        indices.shrink_to_fit();
        values.shrink_to_fit();
    }
    Ok(parsed)
}

fn rows<const N: usize>(rules: &Rules, mut text: &[u8], parsed: &mut Parsed) {
    let limits: [u32; N] = std::array::from_fn(|m| rules.limits[m]);
    let mut maxima = [0; N];
    while !text.is_empty() {
        parsed.lines += 1;
        let mut take = |row: [u32; N], value| {
            for (max, index) in maxima.iter_mut().zip(row) {
                *max = index.max(*max);
            }
            parsed.batch.indices.extend_from_slice(&row);
            parsed.batch.values.push(value);
        };
        match fast_row(text, u64::from(rules.base), &limits, rules.has_values) {
            Some((row, value, len)) if len <= LINE_BYTES_MAX => {
                take(row, value);
                text = &text[len + 1..];
            }
            _ => {
                let len = memchr(b'\n', text).unwrap_or(text.len());
                match careful_row(&text[..len], rules) {
                    Ok(None) => {}
                    Ok(Some((row, value))) => take(std::array::from_fn(|m| row[m]), value),
                    Err(what) => {
                        parsed.bad = Some(what);
                        return;
                    }
                }
                text = text.get(len + 1..).unwrap_or_default();
            }
        }
    }
    parsed.maxima[..N].copy_from_slice(&maxima);
}

/// The row at the start of `text` and the length of its line; `None` for anything that needs the careful
/// path.
#[inline]
fn fast_row<const N: usize>(
    text: &[u8],
    base: u64,
    limits: &[u32; N],
    has_values: bool,
) -> Option<([u32; N], f64, usize)> {
    let mut row = [0; N];
    let mut at = 0;
    for m in 0..N {
        at = skip_blanks(text, at);
        let (number, end) = digits(text, at);
        // An index below the base wraps, and is above every limit.
        let index = number.wrapping_sub(base);
        let n_digits = end - at;
        if n_digits == 0
            || n_digits > INDEX_DIGITS_MAX
            || index >= u64::from(limits[m])
            || !(is_blank(*text.get(end)?) || !has_values && text[end] == b'\n')
        {
            return None;
        }
        row[m] = u32::try_from(index).ok()?;
        at = end;
    }
    at = skip_blanks(text, at);
    let (value, end) = if has_values { fast_value(text, at)? } else { (1.0, at) };
    at = skip_blanks(text, end);
    (*text.get(at)? == b'\n').then_some((row, value, at))
}

/// The number at `at` and where it ends. The caller checks that a blank or newline follows.
#[inline]
fn fast_value(text: &[u8], at: usize) -> Option<(f64, usize)> {
    let negative = *text.get(at)? == b'-';
    let first = at + usize::from(negative);
    let (number, end) = digits(text, first);
    if end - first > VALUE_DIGITS_MAX {
        return None;
    }
    let next = *text.get(end)?;
    if matches!(next, b'.' | b'e' | b'E') {
        let (value, len) = fast_float2::parse_partial::<f64, _>(&text[at..]).ok()?;
        let after = *text.get(at + len)?;
        let holds = value.is_finite() && !underflows(value, &text[first..at + len]);
        return (holds && (is_blank(after) || after == b'\n')).then_some((value, at + len));
    }
    if end == first || !(is_blank(next) || next == b'\n') {
        return None;
    }
    let value = number as f64;
    Some((if negative { -value } else { value }, end))
}

/// Whether `number`, parsed from the unsigned decimal `text`, is zero although `text` is not.
#[inline]
fn underflows(number: f64, text: &[u8]) -> bool {
    let mut digits = text.iter().take_while(|b| !matches!(b, b'e' | b'E'));
    number == 0.0 && digits.any(|b| matches!(b, b'1'..=b'9'))
}

/// The digits from `at` on as a number modulo 2^64, and where they end.
#[inline]
fn digits(text: &[u8], at: usize) -> (u64, usize) {
    let Some(word) = text.get(at..).and_then(|rest| rest.first_chunk()) else {
        return more_digits(0, text, at);
    };
    match leading_digits(u64::from_le_bytes(*word)) {
        (number, 8) => more_digits(number, text, at + 8),
        (number, n) => (number, at + n as usize),
    }
}

/// The digits at the beginning of eight bytes of text, the first byte lowest, as a number, and how many they are. All at once:
/// a loop that ends after a varying number of digits is mispredicted for most fields.
#[inline]
fn leading_digits(word: u64) -> (u64, u32) {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let values = word ^ (EACH * u64::from(b'0'));
    // The highest bit of a byte is set where its value exceeds 9. A carry only reaches bytes behind such a byte.
    let others = (values.wrapping_add(EACH * 0x76) | values) & (EACH * 0x80);
    let n = others.trailing_zeros() / 8;
    // Zeros go before the digits, in place of what follows them.
    let values = values.checked_shl(u64::BITS - 8 * n).unwrap_or(0);
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff, n)
}

/// Continues `number` with the digits from `at` on.
#[inline]
fn more_digits(mut number: u64, text: &[u8], at: usize) -> (u64, usize) {
    let mut end = at;
    while let Some(digit) = text.get(end).map(|b| b.wrapping_sub(b'0')).filter(|&d| d < 10) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        end += 1;
    }
    (number, end)
}

#[inline]
fn skip_blanks(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|&b| is_blank(b)) {
        at += 1;
    }
    at
}

/// White space inside a line: space, tab, VT, FF, CR.
#[inline]
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | b'\r')
}

/// The part of a line before a comment.
fn data(line: &[u8]) -> &[u8] {
    &line[..memchr(b'#', line).unwrap_or(line.len())]
}

/// The fields of a line, without its comment.
pub(super) fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    data(line).split(|&b| is_blank(b)).filter(|field| !field.is_empty())
}

/// Fails if a line exceeds the length limit.
pub(super) fn too_long(line: &[u8]) -> StdResult<(), String> {
    if line.len() <= LINE_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "the line is longer than {LINE_BYTES_MAX} bytes; is this text with one nonzero on each line?"
    ))
}

/// Fails if a line's data contains bytes that are not text.
pub(super) fn not_text(line: &[u8]) -> StdResult<(), String> {
    let data = data(line);
    let control = data.iter().position(|&b| b.is_ascii_control() && !is_blank(b));
    let position = control.or_else(|| std::str::from_utf8(data).err().map(|e| e.valid_up_to()));
    match position.and_then(|p| data.get(p).map(|b| (p, b))) {
        None => Ok(()),
        Some((position, byte)) => Err(format!(
            "byte {} of the line is 0x{byte:02x}, which is not text; give a text file, \
             plain or compressed by gzip or zstd",
            position + 1
        )),
    }
}

/// A field as shown in messages: escaped, and truncated if long.
pub(super) fn quoted(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    let mut shown: String = text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// Parses any line: a row, `None` if it has no data, or what is wrong with it.
fn careful_row(line: &[u8], rules: &Rules) -> StdResult<Option<([u32; ORDER_MAX], f64)>, String> {
    too_long(line)?;
    let n_fields = fields(line).count();
    if n_fields == 0 {
        return Ok(None);
    }
    not_text(line)?;
    if n_fields != rules.fields() {
        return Err(wrong_count(line, n_fields, rules));
    }
    let mut row = [0; ORDER_MAX];
    let mut fields = fields(line);
    for (mode, index) in row.iter_mut().enumerate().take(rules.order) {
        *index = careful_index(fields.next().unwrap_or_default(), mode, rules)?;
    }
    let value = if rules.has_values { careful_value(fields.next().unwrap_or_default())? } else { 1.0 };
    Ok(Some((row, value)))
}

fn wrong_count(line: &[u8], n_fields: usize, rules: &Rules) -> String {
    let (order, n_expected) = (rules.order, rules.fields());
    let like = match rules.declared {
        Declared::Not => ", as in the first row",
        Declared::ByHeader => ", as the header says",
        Declared::ByUser => ", as `dims` says",
    };
    let which = if n_fields < n_expected { "a short row" } else { "a long row" };
    let plural = if n_fields == 1 { "" } else { "s" };
    let hint = match separator(line) {
        Some(name) => format!("separate the fields by spaces, not {name}"),
        None if n_fields == order && rules.declared != Declared::Not => {
            "correct the row, or pass `no_values` if rows hold indices alone".into()
        }
        None if rules.declared == Declared::ByUser => {
            "correct the row, give one dim per mode with `dims`, or start a comment with #".into()
        }
        None => "correct the row, or start a comment with #".into(),
    };
    let value = if rules.has_values { " and a value" } else { " alone (`no_values`)" };
    format!(
        "{which}: {n_fields} field{plural} where {n_expected} are expected, {order} indices{value}{like}; {hint}"
    )
}

/// The name, in the plural, of a separator in the line that is not white space.
pub(super) fn separator(line: &[u8]) -> Option<&'static str> {
    let data = data(line);
    [(b',', "commas"), (b';', "semicolons"), (b'|', "bars")]
        .into_iter()
        .find(|(byte, _)| data.contains(byte))
        .map(|(_, name)| name)
}

/// The index in `field`, counted from 0.
fn careful_index(field: &[u8], mode: usize, rules: &Rules) -> StdResult<u32, String> {
    let shown = quoted(field);
    let m = mode + 1;
    let body = field.strip_prefix(b"+").unwrap_or(field);
    if body.is_empty() || !body.iter().all(u8::is_ascii_digit) {
        let number = fast_float2::parse::<f64, _>(body).ok().filter(|n| n.is_finite());
        return Err(match number {
            Some(_) if field.starts_with(b"-") => {
                format!("index {shown} of mode {m} is negative; indices count from {}", rules.base)
            }
            Some(number) if number.fract() == 0.0 && number < f64::from(u32::MAX) => format!(
                "index {shown} of mode {m} has a point or exponent; write whole numbers, here {number:.0}"
            ),
            Some(_) => format!(
                "index {shown} of mode {m} is not a whole number; indices come first in a row, the value last"
            ),
            None => match separator(field) {
                Some(name) => format!("{shown} is one field; separate the fields by spaces, not {name}"),
                None => format!(
                    "{shown} is not a number, but the index of mode {m} belongs here; start headers and comments with #"
                ),
            },
        });
    }
    let significant = significant(body);
    let (number, _) = digits(significant, 0);
    let base = u64::from(rules.base);
    // The largest index makes a dim of DIM_MAX.
    let largest = DIM_MAX - 1 + base;
    if significant.len() > INDEX_DIGITS_MAX || number > largest {
        return Err(format!(
            "index {shown} of mode {m} is above {largest}, the largest supported; renumber the mode"
        ));
    }
    let Some(index) = number.checked_sub(base) else {
        return Err(format!(
            "index 0 of mode {m}, but indices count from 1; if the file counts from 0, pass `index_base` 0"
        ));
    };
    let dim = rules.limits[mode];
    u32::try_from(index).ok().filter(|&index| index < dim).ok_or_else(|| {
        let hint = match rules.declared {
            Declared::ByUser => "that `dims` gives; correct the row, or give a larger dim with `dims`",
            _ => "that the header declares; correct the row, or override the header with `dims`",
        };
        let base_hint = if rules.base == 0 && index == u64::from(dim) {
            " (if the file counts from 1, drop `index_base` 0)"
        } else {
            ""
        };
        format!("index {number} of mode {m} is beyond the dim {dim} {hint}{base_hint}")
    })
}

/// The value in `field`.
fn careful_value(field: &[u8]) -> StdResult<f64, String> {
    let shown = quoted(field);
    let unsigned = field.strip_prefix(b"+").or_else(|| field.strip_prefix(b"-")).unwrap_or(field);
    let word = || {
        if field.contains(&b',') {
            return format!("{shown} is not a number; write values with a decimal point, not a comma");
        }
        format!("{shown} is not a number, but the value belongs here; start comments with #")
    };
    if !unsigned.first().is_some_and(|b| b.is_ascii_digit() || *b == b'.') {
        let is_special = [&b"nan"[..], b"inf", b"infinity"].iter().any(|w| unsigned.eq_ignore_ascii_case(w));
        return Err(if is_special {
            format!("the value {shown} is not finite; remove the row or correct it")
        } else {
            word()
        });
    }
    let magnitude: f64 = fast_float2::parse(unsigned).map_err(|_| word())?;
    if !magnitude.is_finite() {
        return Err(format!("the value {shown} overflows: it is beyond the range of f64; scale the values"));
    }
    if underflows(magnitude, unsigned) {
        return Err(format!(
            "the value {shown} underflows: f64 holds nothing between it and 0; scale the values, or write 0"
        ));
    }
    if unsigned.iter().all(u8::is_ascii_digit) {
        let significant = significant(unsigned);
        if significant.len() > VALUE_DIGITS_MAX && format!("{magnitude:.0}").as_bytes() != significant {
            return Err(format!(
                "the integer {shown} is not exact in f64; write it with a point (`.0`) to have it rounded"
            ));
        }
    }
    Ok(if field.starts_with(b"-") { -magnitude } else { magnitude })
}

/// The digits without leading zeros.
fn significant(digits: &[u8]) -> &[u8] {
    &digits[digits.iter().position(|&b| b != b'0').unwrap_or(digits.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of 0 to 25 digits, at every distance from the end of the text, before every byte.
    #[test]
    fn digits_are_read_as_one_by_one() {
        let all = b"0987612345678901234567890";
        for n in 0..=all.len() {
            for after in 0..=u8::MAX {
                for behind in [0, 1, 6, 7, 8, 20] {
                    let mut text = b"x ".to_vec();
                    text.extend_from_slice(&all[..n]);
                    text.extend(std::iter::repeat_n(after, behind));
                    assert_eq!(
                        digits(&text, 2),
                        more_digits(0, &text, 2),
                        "{n} digits before {behind} of {after}"
                    );
                }
            }
        }
        assert_eq!(digits(b"12345678 9", 0), (12_345_678, 8));
        assert_eq!(digits(b"1234567 89", 0), (1_234_567, 7));
    }
}
