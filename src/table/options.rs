//! Options of a table: which columns are modes, which one holds the values, and how they are processed.

use super::csv::CsvOptions;
use super::number::{self, NumberBins};
use super::time::TimeBins;
use crate::error::{Error, Result};
use crate::store::labels::LabelKind;
use std::path::PathBuf;
use std::str::FromStr;

/// What becomes of a mode's column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// Each of its labels gets an index; what they are is found out.
    #[default]
    Labels,
    /// The same, and they are of this kind.
    Kind(LabelKind),
    /// It is time, put into bins.
    Time(TimeBins),
    /// It is numbers, put into bins.
    Number(NumberBins),
    /// A column of numbers, put into this many bins with about equal numbers of rows.
    Quantiles(u32),
}

/// A mode of a table: a column, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMode {
    /// The column's name, or its number from 1.
    pub column: String,
    /// What becomes of it.
    pub treatment: Treatment,
    /// The mode's name.
    pub name: String,
}

/// What becomes of rows without a label or value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nulls {
    /// They are counted, and an error.
    #[default]
    Error,
    /// They are left out.
    Drop,
}

/// How a table is read.
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    /// The modes.
    pub modes: Vec<TableMode>,
    /// The column of the values; without one every row counts 1.
    pub value: Option<String>,
    /// What becomes of rows without a label or value.
    pub nulls: Nulls,
    /// The time zone whose clock bins of time follow; UTC without one.
    pub timezone: Option<String>,
    /// How the text is written.
    pub csv: CsvOptions,
    /// An older store, whose labels keep their indices.
    pub labels_from: Option<PathBuf>,
    /// Where temporary files go.
    pub temp_dir: PathBuf,
    /// Bytes of memory to take.
    pub memory: u64,
}

/// `text` up to the first `at` that no backslash stands before, unescaped, and what follows.
fn cut(text: &str, at: char) -> (String, Option<&str>) {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((place, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, escaped)) if escaped == ',' || escaped == ':' || escaped == '\\' => {
                    out.push(escaped);
                }
                Some((_, other)) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            _ if c == at => return (out, Some(&text[place + c.len_utf8()..])),
            _ => out.push(c),
        }
    }
    (out, None)
}

/// `text` divided at every `,` that no backslash stands before; nothing is unescaped.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == ',' && !escaped {
            parts.push(&text[start..at]);
            start = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(&text[start..]);
    parts
}

/// Column names of a list such as `user,title`, unescaped.
#[must_use]
pub fn parse_names(text: &str) -> Vec<String> {
    parts(text).into_iter().map(|part| cut(part, '\0').0).collect()
}

/// A list of modes: `user,title,timestamp:month`. A backslash escapes `,` and `:` in names.
///
/// # Errors
///
/// [`Error::Request`] for what columns cannot become, and for a mode that is named twice.
pub fn parse_modes(text: &str) -> Result<Vec<TableMode>> {
    let mut modes: Vec<TableMode> = parts(text).into_iter().map(str::parse).collect::<Result<_>>()?;
    // Several modes of one column have different names.
    let columns: Vec<String> = modes.iter().map(|mode| mode.column.clone()).collect();
    for mode in &mut modes {
        if columns.iter().filter(|column| **column == mode.column).count() == 1 {
            mode.name.clone_from(&mode.column);
        }
    }
    for (at, mode) in modes.iter().enumerate() {
        if modes[..at].iter().any(|other| other.name == mode.name) {
            return Err(Error::request(format!("`modes`: {:?} is named twice", mode.name)));
        }
    }
    Ok(modes)
}

impl FromStr for TableMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (column, suffix) = cut(text, ':');
        if column.is_empty() {
            return Err(Error::request(
                "`modes`: a name is missing; give columns as in user,title,timestamp:month",
            ));
        }
        let treatment = suffix.map_or(Ok(Treatment::Labels), |suffix| parse_treatment(&column, suffix))?;
        let name = match suffix {
            Some(suffix) if !matches!(treatment, Treatment::Kind(_)) => format!("{column}:{suffix}"),
            _ => column.clone(),
        };
        Ok(Self { column, treatment, name })
    }
}

fn parse_treatment(column: &str, suffix: &str) -> Result<Treatment> {
    let unknown = || {
        let names = TimeBins::ALL.map(|(name, _)| format!(":{name}")).join(" ");
        let what = format!(
            "{suffix:?} is nothing that a column can become; there are {names} :bins=N :quantiles=N :log2 :text :number :time"
        );
        Error::request(format!("`modes` {column}:{suffix}: {what}; a colon in a name is written \\:"))
    };
    if let Some((_, bins)) = TimeBins::ALL.iter().find(|(name, _)| *name == suffix) {
        return Ok(Treatment::Time(*bins));
    }
    let count = |digits: &str| {
        let count = digits.parse().map_err(|_| unknown())?;
        number::check_bins(count).map(|()| count)
    };
    match suffix.split_once('=') {
        Some(("bins", digits)) => Ok(Treatment::Number(NumberBins::Equal(count(digits)?))),
        Some(("quantiles", digits)) => Ok(Treatment::Quantiles(count(digits)?)),
        _ => match suffix {
            "log2" => Ok(Treatment::Number(NumberBins::Log2)),
            "text" => Ok(Treatment::Kind(LabelKind::Text)),
            "number" => Ok(Treatment::Kind(LabelKind::Number)),
            "time" => Ok(Treatment::Kind(LabelKind::Time)),
            _ => Err(unknown()),
        },
    }
}

/// The column called `wanted`, or of that number from 1, among `columns` with `names`.
pub fn find_column(wanted: &str, names: Option<&[String]>, columns: usize, table: &str) -> Result<usize> {
    let wrong = |what: String| Err(Error::input(table, what));
    if let Some(names) = names {
        let mut found = names.iter().enumerate().filter(|(_, name)| *name == wanted).map(|(at, _)| at);
        match (found.next(), found.next()) {
            (Some(at), None) => return Ok(at),
            (Some(a), Some(b)) => {
                let (a, b) = (a + 1, b + 1);
                return wrong(format!(
                    "columns {a} and {b} are both called {wanted:?}; name one by its number"
                ));
            }
            _ => {}
        }
    }
    match wanted.parse::<usize>() {
        Ok(number) if (1..=columns).contains(&number) => return Ok(number - 1),
        Ok(number) if names.is_none() => {
            return wrong(format!("there is no column {number}; there are {columns}"));
        }
        _ => {}
    }
    match names {
        Some(names) => {
            let close = names.iter().find(|name| name.trim().eq_ignore_ascii_case(wanted.trim()));
            let hint = close.map_or_else(String::new, |close| format!("; is {close:?} meant?"));
            let only = if columns == 1 { "; remove lines above the header, or give --delimiter" } else { "" };
            wrong(format!("there is no column {wanted:?}{hint}; the columns are {}{only}", listed(names)))
        }
        None => wrong(format!(
            "there is no column {wanted:?}: the first line holds values, not names; name columns by numbers from 1 to {columns}, or give --header yes"
        )),
    }
}

/// Names as they are given on a command line.
pub fn listed(names: &[String]) -> String {
    names
        .iter()
        .map(|name| name.replace('\\', "\\\\").replace(',', "\\,").replace(':', "\\:"))
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_commas_and_colons() {
        let modes = parse_modes("a\\,b,c\\:d:day,\\\\,x:bins=20,x:text").unwrap();
        let names: Vec<&str> = modes.iter().map(|mode| &mode.column[..]).collect();
        assert_eq!(names, ["a,b", "c:d", "\\", "x", "x"]);
        assert_eq!(modes[1].treatment, Treatment::Time(TimeBins::Day));
        assert_eq!(modes[3].treatment, Treatment::Number(NumberBins::Equal(20)));
        assert_eq!(modes[4].name, "x");
        for (wrong, word) in [
            ("a,", "missing"),
            ("a:fortnight", ":week"),
            ("a:bins=0", "at least 1"),
            ("a,a", "twice"),
            ("a:bins=x", "\\:"),
        ] {
            assert!(parse_modes(wrong).unwrap_err().to_string().contains(word), "{wrong}");
        }
    }
}
