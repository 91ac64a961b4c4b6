//! Numbers in tables: keys that sort decimal numbers of any size exactly, and bins of equal width or by powers of two.

use crate::error::{Error, Result};

/// Digits and exponents beyond this are no numbers of tables.
const DIGITS_MAX: usize = 1 << 10;

/// Appends bytes that sort as the decimal number `text` does among others, equal for equal numbers; false, and nothing
/// appended, if it is none. Exact: identifiers of 19 digits stay apart.
pub fn append_key(text: &[u8], key: &mut Vec<u8>) -> bool {
    /// Exponents are kept above zero.
    const BIAS: i64 = 1 << 31;
    let Some(parsed) = Decimal::parse(text) else { return false };
    let digits = parsed.digits();
    let Some(first) = digits.clone().position(|digit| digit != b'0') else {
        key.push(1);
        return true;
    };
    let start = key.len();
    key.push(if parsed.negative { 0 } else { 2 });
    let length = |digits: usize| i64::try_from(digits).unwrap_or(i64::MAX);
    let exponent = length(parsed.whole.len()) - length(first) + parsed.exponent;
    key.extend(u32::try_from(exponent + BIAS).unwrap_or(u32::MAX).to_be_bytes());
    key.extend(digits.skip(first));
    let zeros = key.iter().rev().take_while(|&&digit| digit == b'0').count();
    key.truncate(key.len() - zeros.min(key.len() - start - 5));
    // Ends below every digit, so that 0.1 sorts before 0.11; turned around for negative numbers.
    key.push(0);
    if parsed.negative {
        key[start + 1..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    true
}

/// The parts of a decimal number.
struct Decimal<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> Decimal<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let negative = text.first() == Some(&b'-');
        let body = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
        let (number, exponent) = match body.iter().position(|b| matches!(b, b'e' | b'E')) {
            Some(at) => (&body[..at], Some(&body[at + 1..])),
            None => (body, None),
        };
        let (whole, fraction) = match number.iter().position(|&b| b == b'.') {
            Some(at) => (&number[..at], &number[at + 1..]),
            None => (number, &b""[..]),
        };
        let are_digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        let fits = are_digits(whole)
            && are_digits(fraction)
            && (1..=DIGITS_MAX).contains(&(whole.len() + fraction.len()));
        let exponent = match exponent {
            None => 0,
            Some(text) => {
                let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
                let plain = are_digits(digits) && (1..=6).contains(&digits.len());
                plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()?
            }
        };
        fits.then_some(Self { negative, whole, fraction, exponent })
    }

    fn digits(&self) -> impl Iterator<Item = u8> + Clone + use<'a> {
        self.whole.iter().chain(self.fraction).copied()
    }
}

/// What numbers are put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberBins {
    /// This many bins of equal width.
    Equal(u32),
    /// Powers of two: from 1 to below 2, from 2 to below 4.
    Log2,
}

/// Bins of one column.
#[derive(Clone, Copy, Debug)]
pub struct NumberRange {
    bins: NumberBins,
    low: f64,
    high: f64,
}

impl NumberRange {
    /// The bins of numbers from `low` to `high`.
    #[must_use]
    pub fn new(bins: NumberBins, low: f64, high: f64) -> Self {
        Self { bins, low, high }
    }

    /// How many bins there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self.bins {
            NumberBins::Equal(_) if self.low >= self.high => 1,
            NumberBins::Equal(count) => count,
            NumberBins::Log2 => u32::try_from(exponent(self.high) - exponent(self.low) + 1).unwrap_or(1),
        }
    }

    /// The bin of `x`, which is in the range.
    #[must_use]
    pub fn bin(&self, x: f64) -> u32 {
        let last = self.count() - 1;
        match self.bins {
            NumberBins::Equal(count) => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
                let bin = self.place(x, count) as u32;
                bin.min(last)
            }
            NumberBins::Log2 => u32::try_from(exponent(x) - exponent(self.low)).unwrap_or(0).min(last),
        }
    }

    /// Where `x` lies among `count` bins. Halves, so that no difference of finite numbers overflows.
    fn place(&self, x: f64, count: u32) -> f64 {
        if self.low >= self.high {
            return 0.0;
        }
        (x / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0) * f64::from(count)
    }

    /// The label of a bin: an interval, closed below, and the last of equal width above too.
    #[must_use]
    pub fn label(&self, bin: u32) -> String {
        match self.bins {
            NumberBins::Equal(_) if self.low >= self.high => format!("[{}, {}]", self.low, self.high),
            NumberBins::Equal(count) => {
                let edge = |at: u32| {
                    let part = f64::from(at) / f64::from(count);
                    if at == count { self.high } else { self.low * (1.0 - part) + self.high * part }
                };
                let end = if bin + 1 == count { ']' } else { ')' };
                format!("[{}, {}{end}", edge(bin), edge(bin + 1))
            }
            NumberBins::Log2 => {
                let low = exponent(self.low) + i32::try_from(bin).unwrap_or(0);
                format!("[{}, {})", power(low), power(low + 1))
            }
        }
    }
}

/// The largest e with 2^e at most `x`, a positive number.
fn exponent(x: f64) -> i32 {
    let biased = |x: f64| i32::try_from(x.to_bits() >> 52 & 0x7ff).unwrap_or(0) - 1023;
    if x.is_normal() { biased(x) } else { biased(x * 2f64.powi(64)) - 64 }
}

/// 2^e, as text.
fn power(e: i32) -> String {
    let x = 2f64.powi(e);
    if (1e-5..1e16).contains(&x) { x.to_string() } else { format!("{x:e}") }
}

/// A finite number, or why it is none, and what to do.
pub fn parse_value(text: &[u8]) -> std::result::Result<f64, String> {
    let trimmed = text.trim_ascii();
    match fast_float2::parse::<f64, _>(trimmed) {
        Ok(x) if x.is_finite() => return Ok(x),
        Ok(_) => {
            return Err(
                "is not a finite number; leave the field empty and give --nulls drop, or correct it".into()
            );
        }
        Err(_) => {}
    }
    let way = match trimmed {
        b"NA" | b"N/A" | b"na" | b"null" | b"NULL" | b"None" | b"\\N" | b"-" | b"?" => {
            "; leave a missing value's field empty and give --nulls drop"
        }
        _ if trimmed.contains(&b',') => "; write a decimal point, and no separators of thousands",
        _ => "; correct it, or name another column",
    };
    Err(format!("is not a number{way}"))
}

/// An error unless `count` bins are possible.
pub fn check_bins(count: u32) -> Result<()> {
    if count == 0 { Err(Error::request("0 bins; give at least 1")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Vec<u8> {
        let mut key = Vec::new();
        assert!(append_key(text.as_bytes(), &mut key), "{text}");
        key
    }

    #[test]
    fn keys_sort_as_numbers_do() {
        let ascending = [
            "-1e400",
            "-18446744073709551617",
            "-18446744073709551616",
            "-11",
            "-10",
            "-9.5",
            "-1",
            "-0.11",
            "-0.1",
            "-1e-7",
            "0",
            "1e-300",
            "0.001",
            "0.1",
            "0.11",
            "1",
            "1.5",
            "2",
            "9",
            "10",
            "11",
            "100",
            "9007199254740992",
            "9007199254740993",
            "1e400",
        ];
        for (at, a) in ascending.iter().enumerate() {
            for (other, b) in ascending.iter().enumerate() {
                assert_eq!(key(a).cmp(&key(b)), at.cmp(&other), "{a} {b}");
            }
        }
        for equal in
            [["1", "1.0"], ["0", "-0.00"], ["10", "1e1"], ["007", "7"], ["-0.5", "-5E-1"], ["100", "1e+02"]]
        {
            assert_eq!(key(equal[0]), key(equal[1]), "{equal:?}");
        }
        for none in ["", "-", ".", "1e", "0x10", "1 2", "nan", "1_000", "inf", "1e1234567"] {
            assert!(!append_key(none.as_bytes(), &mut Vec::new()), "{none}");
        }
    }

    #[test]
    fn bins_cover_their_range() {
        let range = NumberRange::new(NumberBins::Equal(4), 0.5, 4.5);
        assert_eq!([0.5, 1.49, 1.5, 4.4, 4.5].map(|x| range.bin(x)), [0, 0, 1, 3, 3]);
        assert_eq!((range.label(0), range.label(3)), ("[0.5, 1.5)".into(), "[3.5, 4.5]".into()));
        let all = NumberRange::new(NumberBins::Equal(3), -f64::MAX, f64::MAX);
        assert_eq!([-f64::MAX, 0.0, f64::MAX].map(|x| all.bin(x)), [0, 1, 2]);
        assert_eq!(NumberRange::new(NumberBins::Equal(9), 2.0, 2.0).count(), 1);
        let log = NumberRange::new(NumberBins::Log2, 0.3, 9.0);
        assert_eq!((log.count(), [0.3, 0.5, 1.0, 7.9, 8.0].map(|x| log.bin(x))), (6, [0, 1, 2, 4, 5]));
        assert_eq!((log.label(0), log.label(5)), ("[0.25, 0.5)".into(), "[8, 16)".into()));
        assert_eq!(exponent(5e-324), -1074);
    }

    #[test]
    fn values_are_finite_numbers() {
        assert_eq!(parse_value(b" 3.5 "), Ok(3.5));
        for (text, word) in [
            ("3,5", "decimal point"),
            ("NA", "--nulls drop"),
            ("inf", "finite"),
            ("abc", "not a number"),
            ("", ""),
        ] {
            assert!(parse_value(text.as_bytes()).unwrap_err().contains(word), "{text}");
        }
    }
}
