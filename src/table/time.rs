//! Time in tables: parsing, and bins.
//!
//! Time is kept as *civil seconds*: the time that a clock in the table's time zone shows, as seconds since
//! 1970-01-01T00:00 on that clock. A date without an offset already is that. A date with an offset, and a number
//! (seconds, milliseconds, microseconds or nanoseconds since 1970 in UTC), is converted. Time zones are compiled in, so
//! a store does not depend on the machine.

use crate::error::{Error, Result};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime, ISOWeekDate, Weekday};
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::{Offset, TimeZone};

const DAY: i64 = 86_400;
/// 1969-12-29 was a Monday.
const MONDAY: i64 = 3;
static PARSER: DateTimeParser = DateTimeParser::new();

/// What time is put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBins {
    /// A calendar year: `2024`.
    Year,
    /// A month: `2024-03`.
    Month,
    /// An ISO 8601 week: `2024-W09`.
    Week,
    /// A day: `2024-03-05`.
    Day,
    /// An hour: `2024-03-05T14`.
    Hour,
    /// A minute: `2024-03-05T14:30`.
    Minute,
    /// The hour of the day: `00` to `23`.
    HourOfDay,
    /// The day of the week: `Mon` to `Sun`.
    DayOfWeek,
    /// The month of the year: `Jan` to `Dec`.
    MonthOfYear,
}

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl TimeBins {
    /// All of them, by the names that command lines have.
    pub const ALL: [(&str, Self); 9] = [
        ("year", Self::Year),
        ("month", Self::Month),
        ("week", Self::Week),
        ("day", Self::Day),
        ("hour", Self::Hour),
        ("minute", Self::Minute),
        ("hour-of-day", Self::HourOfDay),
        ("day-of-week", Self::DayOfWeek),
        ("month-of-year", Self::MonthOfYear),
    ];

    /// How many bins a cycle has; `None` for what is no cycle.
    #[must_use]
    pub fn cycle(self) -> Option<u32> {
        match self {
            Self::HourOfDay => Some(24),
            Self::DayOfWeek => Some(7),
            Self::MonthOfYear => Some(12),
            _ => None,
        }
    }

    /// The number of the bin that holds these civil seconds: of a cycle from 0, otherwise consecutive over all time.
    #[must_use]
    pub fn bin(self, civil: i64) -> i64 {
        let day = civil.div_euclid(DAY);
        match self {
            Self::Minute => civil.div_euclid(60),
            Self::Hour => civil.div_euclid(3600),
            Self::Day => day,
            Self::Week => (day + MONDAY).div_euclid(7),
            Self::HourOfDay => civil.rem_euclid(DAY) / 3600,
            Self::DayOfWeek => (day + MONDAY).rem_euclid(7),
            Self::Year => date(day).year().into(),
            Self::Month => i64::from(date(day).year()) * 12 + i64::from(date(day).month()) - 1,
            Self::MonthOfYear => i64::from(date(day).month()) - 1,
        }
    }

    /// The label of a bin.
    #[must_use]
    pub fn label(self, bin: i64) -> String {
        let entry = |names: &[&str]| {
            usize::try_from(bin)
                .ok()
                .and_then(|at| names.get(at))
                .map_or_else(String::new, |&name| name.into())
        };
        match self {
            Self::Year => year(bin),
            Self::Month => format!("{}-{:02}", year(bin.div_euclid(12)), bin.rem_euclid(12) + 1),
            Self::Week => {
                let week = ISOWeekDate::from(date(bin * 7 - MONDAY));
                format!("{}-W{:02}", year(week.year().into()), week.week())
            }
            Self::Day => day_label(bin),
            Self::Hour => format!("{}T{:02}", day_label(bin.div_euclid(24)), bin.rem_euclid(24)),
            Self::Minute => {
                let (hour, minute) = (bin.div_euclid(60), bin.rem_euclid(60));
                format!("{}:{minute:02}", Self::Hour.label(hour))
            }
            Self::HourOfDay => format!("{bin:02}"),
            Self::DayOfWeek => entry(&WEEKDAYS),
            Self::MonthOfYear => entry(&MONTHS),
        }
    }
}

/// A year of at least four digits.
fn year(year: i64) -> String {
    if year < 0 { format!("-{:04}", -year) } else { format!("{year:04}") }
}

fn day_label(day: i64) -> String {
    let date = date(day);
    format!("{}-{:02}-{:02}", year(date.year().into()), date.month(), date.day())
}

/// The date of a day counted from 1970-01-01; the first or last date for what is beyond them.
fn date(day: i64) -> Date {
    let seconds = day.saturating_mul(DAY).saturating_add(DAY / 2);
    let end = if day < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Offset::UTC.to_datetime(Timestamp::from_second(seconds).unwrap_or(end)).date()
}

/// What a field says of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A date, in civil seconds, and nanoseconds.
    Civil(i64, u32),
    /// A number whose unit the whole column tells.
    Number(i64),
}

/// Civil seconds of a date and time.
fn civil(at: DateTime) -> Option<(i64, u32)> {
    let stamp = Offset::UTC.to_timestamp(at).ok()?;
    // Before 1970 a fraction is counted down from the second above.
    let nanos = i64::from(stamp.subsec_nanosecond());
    let seconds = stamp.as_second() + nanos.div_euclid(1_000_000_000);
    Some((seconds, u32::try_from(nanos.rem_euclid(1_000_000_000)).ok()?))
}

/// What `text` says of time, on a clock in `zone`; `None` if it is no time.
#[must_use]
pub fn parse(text: &[u8], zone: &TimeZone) -> Option<Moment> {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if !digits.is_empty() && digits.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
        return parse_digits(text, digits);
    }
    if let Some((seconds, nanos)) = parse_plain(text) {
        return Some(Moment::Civil(seconds, nanos));
    }
    if text.len() < 7 || text.len() > 64 {
        return None;
    }
    let behind = &text[8.min(text.len())..];
    let has_offset = behind.iter().any(|b| matches!(b, b'Z' | b'z' | b'+'))
        || behind
            .iter()
            .position(|b| matches!(b, b'T' | b't' | b' '))
            .is_some_and(|at| behind[at..].contains(&b'-'));
    let at = if has_offset {
        let stamp = PARSER.parse_timestamp(text).ok()?;
        zone.to_datetime(stamp)
    } else {
        PARSER.parse_datetime(text).ok().or_else(|| parse_label(text))?
    };
    civil(at).map(|(seconds, nanos)| Moment::Civil(seconds, nanos))
}

/// The commonest way to write a time, in little time: `2024-03-05T14:30:00`, or with a space.
fn parse_plain(text: &[u8]) -> Option<(i64, u32)> {
    let text: &[u8; 19] = text.try_into().ok()?;
    let [_, _, _, _, b'-', _, _, b'-', _, _, b'T' | b' ', _, _, b':', _, _, b':', _, _] = text else {
        return None;
    };
    let number = |at: usize, digits: usize| {
        text[at..at + digits]
            .iter()
            .try_fold(0i16, |all, b| b.is_ascii_digit().then(|| 10 * all + i16::from(b - b'0')))
    };
    let two = |at: usize| number(at, 2).and_then(|n| i8::try_from(n).ok());
    civil(DateTime::new(number(0, 4)?, two(5)?, two(8)?, two(11)?, two(14)?, two(17)?, 0).ok()?)
}

/// A year of four digits, a date of eight, or a number.
fn parse_digits(text: &[u8], digits: &[u8]) -> Option<Moment> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<i64>().ok();
    if digits.len() == text.len() && !digits.contains(&b'.') {
        let date = match digits.len() {
            4 => Date::new(i16::try_from(number(digits)?).ok()?, 1, 1).ok(),
            8 => PARSER.parse_date(digits).ok(),
            _ => None,
        };
        if let Some(date) = date {
            return civil(date.at(0, 0, 0, 0)).map(|(seconds, nanos)| Moment::Civil(seconds, nanos));
        }
    }
    let (whole, fraction) = match text.iter().position(|&b| b == b'.') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b""[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let below = text.starts_with(b"-") && fraction.iter().any(|&b| b != b'0');
    let number = number(whole)?.checked_sub(below.into())?;
    (number >= i64::MIN + UNDECIDED).then_some(Moment::Number(number))
}

/// Digits that may be a year, or a date, or a number are less than this.
const UNDECIDED: i64 = 100_000_000;

/// The number that four or eight digits are, if they are no date.
#[must_use]
pub fn digits(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii();
    let may_be_date = matches!(text.len(), 4 | 8) && text.iter().all(u8::is_ascii_digit);
    may_be_date.then(|| text.iter().fold(0, |all, b| 10 * all + i64::from(b - b'0')))
}

/// How such a number waits until all rows are known: below all other times.
#[must_use]
pub fn undecided(number: i64) -> i64 {
    i64::MIN + number
}

/// A time that may have waited: now it is known whether the column holds numbers.
#[must_use]
pub fn decided(time: i64, is_number: bool) -> i64 {
    let digits = time.wrapping_sub(i64::MIN);
    if !(0..UNDECIDED).contains(&digits) {
        return time;
    }
    let (year, month, day) =
        if digits < 10_000 { (digits, 1, 1) } else { (digits / 10_000, digits / 100 % 100, digits % 100) };
    let date = || {
        let (month, day) = (i8::try_from(month).ok()?, i8::try_from(day).ok()?);
        civil(Date::new(i16::try_from(year).ok()?, month, day).ok()?.at(0, 0, 0, 0))
    };
    if is_number { digits } else { date().map_or(digits, |(seconds, _)| seconds) }
}

/// The labels of bins: `2024-03`, `2024-W09`, `2024-03-05T14`.
fn parse_label(text: &[u8]) -> Option<DateTime> {
    let text = std::str::from_utf8(text).ok()?;
    let number = |digits: &str| {
        (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(digits)?.parse().ok()
    };
    if let Some((day, hour)) = text.split_once(['T', 't', ' ']) {
        let date: Date = PARSER.parse_date(day).ok()?;
        let hour: i8 = number(hour)?;
        return (hour < 24).then(|| date.at(hour, 0, 0, 0));
    }
    let (year, rest) = text.get(1..)?.split_once('-').map(|(year, rest)| (&text[..=year.len()], rest))?;
    let year: i16 = year.parse().ok()?;
    let date = match rest.strip_prefix(['W', 'w']) {
        Some(week) => ISOWeekDate::new(year, number(week)?, Weekday::Monday).ok()?.date(),
        None => Date::new(year, number(rest)?, 1).ok()?,
    };
    Some(date.at(0, 0, 0, 0))
}

/// The unit of a column's numbers, as parts of a second: by their size, for seconds of the next three thousand years.
#[must_use]
pub fn parts_of_a_second(low: i64, high: i64) -> i64 {
    match low.unsigned_abs().max(high.unsigned_abs()) {
        0..100_000_000_000 => 1,
        100_000_000_000..100_000_000_000_000 => 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000_000,
        _ => 1_000_000_000,
    }
}

/// Converts seconds in UTC to civil seconds of a zone; remembers the last stretch without a change of offset.
#[derive(Clone, Debug)]
pub struct Clock<'a> {
    zone: &'a TimeZone,
    from: i64,
    to: i64,
    offset: i64,
}

impl<'a> Clock<'a> {
    /// A clock in `zone`.
    #[must_use]
    pub fn new(zone: &'a TimeZone) -> Self {
        Self { zone, from: 0, to: 0, offset: 0 }
    }

    /// What it shows `seconds` after 1970 in UTC; `None` outside of the years -9999 to 9999.
    pub fn civil(&mut self, seconds: i64) -> Option<i64> {
        if !(self.from..self.to).contains(&seconds) {
            let stamp = Timestamp::from_second(seconds).ok()?;
            self.offset = self.zone.to_offset(stamp).seconds().into();
            self.to = self.zone.following(stamp).next().map_or(i64::MAX, |t| t.timestamp().as_second());
            // `preceding` leaves out a change at this very second.
            self.from = seconds;
        }
        Some(seconds + self.offset)
    }
}

/// The time zone called `name`.
pub fn zone(name: &str) -> Result<TimeZone> {
    if name.eq_ignore_ascii_case("utc") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|_| {
        let what = "is no time zone; give a name such as Europe/Zurich or America/New_York";
        Error::request(format!("`timezone` {name:?} {what}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, zone_name: &str) -> i64 {
        match parse(text.as_bytes(), &zone(zone_name).unwrap()) {
            Some(Moment::Civil(seconds, _)) => seconds,
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Labels as calendars have them; bins without a gap; each label is the time of its bin's beginning again.
    #[test]
    fn bins_have_the_calendars_labels() {
        let cases = [
            (
                "2024-02-29T23:59:59",
                ["2024", "2024-02", "2024-W09", "2024-02-29", "2024-02-29T23", "2024-02-29T23:59"],
            ),
            (
                "1969-12-31 23:59:59.5",
                ["1969", "1969-12", "1970-W01", "1969-12-31", "1969-12-31T23", "1969-12-31T23:59"],
            ),
            (
                "2021-01-03",
                ["2021", "2021-01", "2020-W53", "2021-01-03", "2021-01-03T00", "2021-01-03T00:00"],
            ),
            (
                "1900-03-01T12:30Z",
                ["1900", "1900-03", "1900-W09", "1900-03-01", "1900-03-01T12", "1900-03-01T12:30"],
            ),
            ("20240301", ["2024", "2024-03", "2024-W09", "2024-03-01", "2024-03-01T00", "2024-03-01T00:00"]),
        ];
        for (text, labels) in cases {
            let civil = at(text, "UTC");
            for ((name, bins), label) in TimeBins::ALL.iter().zip(labels) {
                let bin = bins.bin(civil);
                assert_eq!(bins.label(bin), label, "{text} {name}");
                let again = at(label, "UTC");
                assert_eq!((bins.bin(again), bins.bin(again - 1)), (bin, bin - 1), "{label}");
            }
        }
        let cyclic = |text: &str, bins: TimeBins| bins.label(bins.bin(at(text, "UTC")));
        assert_eq!(cyclic("1969-07-20T20:17:40Z", TimeBins::DayOfWeek), "Sun");
        assert_eq!(cyclic("1969-07-20T20:17:40Z", TimeBins::HourOfDay), "20");
        assert_eq!(cyclic("2024-02-29", TimeBins::MonthOfYear), "Feb");
    }

    #[test]
    fn clocks_show_the_zones_time() {
        let (zurich, mut seen) = (zone("Europe/Zurich").unwrap(), Vec::new());
        let mut clock = Clock::new(&zurich);
        // The last second of winter time in 2024, the first of summer time; the other way; before clocks were set to zones.
        for instant in
            [1_711_846_799, 1_711_846_800, 1_729_990_799, 1_729_990_800, -3_000_000_000, 1_711_846_799]
        {
            seen.push(TimeBins::Minute.label(TimeBins::Minute.bin(clock.civil(instant).unwrap())));
        }
        let shown = ["2024-03-31T01:59", "2024-03-31T03:00", "2024-10-27T02:59", "2024-10-27T02:00"];
        assert_eq!(seen[..4], shown);
        assert_eq!(seen[5], shown[0]);
        assert_eq!(at("2024-07-01T00:30:00+05:30", "Europe/Zurich"), at("2024-06-30 21:00", "UTC"));
        assert!(zone("Mars/Olympus").unwrap_err().to_string().contains("no time zone"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "yesterday",
            "2023-02-29",
            "2024-13-01",
            "03/15/2024",
            "2024-03-05T25:00",
            "12:30",
            "1e9",
            "--5",
            "2024-W54",
        ] {
            assert_eq!(parse(text.as_bytes(), &TimeZone::UTC), None, "{text}");
        }
        let number = |text: &str| parse(text.as_bytes(), &TimeZone::UTC);
        assert_eq!(number("964982703"), Some(Moment::Number(964_982_703)));
        assert_eq!(number("-1.5"), Some(Moment::Number(-2)));
        assert_eq!(number("1999"), Some(Moment::Civil(915_148_800, 0)));
        for text in ["1999", "0999", "19991231", "00010101"] {
            let digits = digits(text.as_bytes()).unwrap();
            assert_eq!(decided(undecided(digits), true), text.parse::<i64>().unwrap());
            assert_eq!(decided(undecided(digits), false), at(text, "UTC"), "{text}");
        }
        assert_eq!((decided(-5, true), decided(i64::MAX, false)), (-5, i64::MAX));
        assert_eq!(number(&i64::MIN.to_string()), None);
        assert_eq!(parts_of_a_second(0, 964_982_703), 1);
        assert_eq!(parts_of_a_second(0, 1_425_941_529_000), 1_000);
        assert_eq!(parts_of_a_second(-1_425_941_529_000_000_000, 0), 1_000_000_000);
    }
}
