//! Options for tables and labels, and their part of reports.

use super::outputs::ends_in;
use super::told;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::labels::{LabelKind, ModeInfo, NewLabels};
use crate::sys::{Sys, behind_links, directory};
use crate::table::csv::CsvOptions;
use crate::table::{Nulls, TableOptions, labels_of_files, parse_modes, parse_names};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Options of tables, and labels for coordinate text.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of tables")]
pub struct TableArgs {
    /// Columns that become modes, by name or number, such as user,title,timestamp:month. Bins of time: :year :month :week :day :hour
    /// :minute, and cyclic :hour-of-day :day-of-week :month-of-year. Bins of numbers: :bins=N :quantiles=N :log2. Types: :text :number
    /// :time. A backslash escapes , and : in names
    #[arg(long, value_name = "COLUMNS")]
    modes: Option<String>,
    /// Column of values [default: each row counts 1]
    #[arg(long, value_name = "COLUMN")]
    value: Option<String>,
    /// Rows with an empty field: count them and fail, or drop them [default: error]
    #[arg(long, value_enum, value_name = "error|drop", hide_possible_values = true)]
    nulls: Option<NullsArg>,
    /// Time zone of bins of time, such as Europe/Zurich [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Character between fields, or tab [default: detected]
    #[arg(long, value_name = "CHAR", value_parser = character)]
    delimiter: Option<u8>,
    /// Character that quotes fields, or none [default: "]
    #[arg(long, value_name = "CHAR", value_parser = quote)]
    quote: Option<Quote>,
    /// Whether the first line names the columns [default: detected]
    #[arg(long, value_name = "yes|no", value_parser = super::one_of([("yes", true), ("no", false)]), hide_possible_values = true)]
    header: Option<bool>,
    /// Give labels the indices that they have in this store. New labels get the next indices
    #[arg(long, value_name = "STORE")]
    labels_from: Option<PathBuf>,
    /// Mode names of coordinate text, in order
    #[arg(long, value_name = "NAMES", conflicts_with = "modes")]
    mode_names: Option<String>,
    /// Labels of a mode of coordinate text: a file with one label per line
    #[arg(long, value_name = "MODE=FILE", conflicts_with = "modes")]
    labels: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum NullsArg {
    Error,
    Drop,
}

/// The character that quotes fields, if there is one.
#[derive(Clone, Copy, Debug)]
struct Quote(Option<u8>);

fn character(text: &str) -> std::result::Result<u8, String> {
    match text.as_bytes() {
        _ if matches!(text, "tab" | "\\t") => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | b'"') => Ok(*byte),
        _ => Err("give one character, or tab".into()),
    }
}

fn quote(text: &str) -> std::result::Result<Quote, String> {
    match text.as_bytes() {
        b"none" => Ok(Quote(None)),
        [byte] if byte.is_ascii_punctuation() => Ok(Quote(Some(*byte))),
        _ => Err("give one character, or none".into()),
    }
}

/// Endings of tables that are text.
const TEXTS: [&str; 3] = ["csv", "tsv", "tab"];
/// Endings of JSON Lines.
const JSON: [&str; 3] = ["jsonl", "ndjson", "json"];
/// Endings of tables that are not text.
const COLUMNS: [&str; 6] = ["parquet", "pq", "arrow", "arrows", "feather", "ipc"];

/// The name of `path` without an ending that says how it is compressed.
fn uncompressed(path: &Path) -> PathBuf {
    let packed = ["gz", "zst", "zstd"].iter().any(|end| ends_in(path, end));
    if packed { path.with_extension("") } else { path.to_path_buf() }
}

impl TableArgs {
    /// Whether `input` is a table: by its name, or because modes are named.
    pub fn is_table(&self, input: &Path) -> bool {
        let name = uncompressed(input);
        let is = |ends: &[&str]| ends.iter().any(|end| ends_in(&name, end));
        is(&TEXTS) || is(&JSON) || is(&COLUMNS) || self.modes.is_some() && !is(&["tns", "coo", "npz"])
    }

    /// A given option of tables.
    pub fn of_tables(&self) -> Option<&'static str> {
        let given = [
            (self.modes.is_some(), "--modes"),
            (self.value.is_some(), "--value"),
            (self.nulls.is_some(), "--nulls"),
            (self.timezone.is_some(), "--timezone"),
            (self.delimiter.is_some(), "--delimiter"),
            (self.quote.is_some(), "--quote"),
            (self.header.is_some(), "--header"),
            (self.labels_from.is_some(), "--labels-from"),
        ];
        given.iter().find(|(given, _)| *given).map(|(_, option)| *option)
    }

    /// A given option of coordinate text.
    pub fn of_text(&self) -> Option<&'static str> {
        self.mode_names.as_ref().map(|_| "--mode-names").or(self.labels.first().map(|_| "--labels"))
    }

    /// The options for reading the table `input`; temporary files go to `temp_dir`.
    pub fn options(&self, input: &Path, temp_dir: PathBuf) -> Result<TableOptions> {
        let by_name = ends_in(&uncompressed(input), "csv");
        let tabs = !by_name && TEXTS.iter().any(|end| ends_in(&uncompressed(input), end));
        let csv = CsvOptions {
            delimiter: self.delimiter.or(tabs.then_some(b'\t')),
            quote: self.quote.map(|Quote(quote)| quote),
            header: self.header,
        };
        Ok(TableOptions {
            modes: self.modes.as_deref().map_or(Ok(Vec::new()), parse_modes)?,
            value: self.value.clone(),
            nulls: match self.nulls {
                Some(NullsArg::Drop) => Nulls::Drop,
                _ => Nulls::Error,
            },
            timezone: self.timezone.clone(),
            csv,
            labels_from: self.labels_from.clone(),
            temp_dir,
            memory: 0,
        })
    }

    /// Names and labels of coordinate text; `None` if none are given.
    pub fn labels(&self, sys: &Sys, temp_dir: &Path) -> Result<Option<NewLabels>> {
        if self.of_text().is_none() {
            return Ok(None);
        }
        let Some(names) = self.mode_names.as_deref().map(parse_names) else {
            return Err(Error::request("--labels: name all modes too, as in --mode-names user,title,month"));
        };
        let file = |text: &String| {
            let (mode, file) = text.rsplit_once('=').ok_or_else(|| {
                Error::request(format!("--labels {text}: give a mode and a file, as in title=titles.txt"))
            })?;
            Ok((find_mode("--labels", mode, names.len(), |at| Some(&names[at]))?, PathBuf::from(file)))
        };
        let files: Vec<(usize, PathBuf)> = self.labels.iter().map(file).collect::<Result<_>>()?;
        labels_of_files(sys, &names, &files, temp_dir).map(Some)
    }
}

/// The directory for temporary files of a job that writes `target`.
pub fn temp_dir(given: Option<&Path>, target: &Path) -> Result<PathBuf> {
    Ok(match given {
        Some(dir) => dir.to_path_buf(),
        None => directory(&behind_links(target)?).to_path_buf(),
    })
}

/// The mode, from 0, that `text` names or numbers from 1, of `order` modes with these names.
pub fn find_mode<'a>(
    option: &str,
    text: &str,
    order: usize,
    name: impl Fn(usize) -> Option<&'a String>,
) -> Result<usize> {
    let wanted = text;
    let named = (0..order).find(|&mode| name(mode).is_some_and(|name| !name.is_empty() && name == wanted));
    let numbered =
        || text.parse::<usize>().ok().filter(|number| (1..=order).contains(number)).map(|number| number - 1);
    named.or_else(numbered).ok_or_else(|| {
        let names: Vec<String> = (0..order)
            .map(|mode| name(mode).filter(|name| !name.is_empty()).cloned().unwrap_or((mode + 1).to_string()))
            .collect();
        Error::request(format!(
            "{option}: there is no mode {text:?}; there are {}",
            crate::table::listed(&names)
        ))
    })
}

/// The mode of `store`, from 0, that `text` names or numbers.
pub fn mode_of(option: &str, text: &str, store: &Store) -> Result<usize> {
    let info = store.modes_info();
    find_mode(option, text, store.dims().len(), |mode| Some(&info?.modes[mode].name))
}

/// The report about a mode with a name or labels.
#[derive(Debug, Serialize)]
pub struct ModeReport {
    /// From 1.
    pub mode: usize,
    /// Its name.
    pub name: String,
    /// The kind of its labels.
    pub kind: LabelKind,
    /// Whether they are consecutive steps of a range.
    pub steps: bool,
    /// The number of indices.
    pub dim: u32,
    /// The first labels, and the last if there are more.
    pub labels: Vec<String>,
    /// The last label.
    pub last: Option<String>,
    /// Why its labels cannot be read.
    pub problem: Option<String>,
}

/// The number of labels shown per mode.
const SHOWN: u32 = 5;

/// The reports about the modes of `store`; none if it has neither names nor labels.
pub fn mode_reports(store: &Store) -> Result<Vec<ModeReport>> {
    let Some(info) = store.modes_info() else { return Ok(Vec::new()) };
    let report = |(mode, info): (usize, &ModeInfo)| {
        let dim = store.dims()[mode];
        let (labels, last, problem) = match shown_labels(store, mode) {
            Ok((labels, last)) => (labels, last, None),
            Err(error @ Error::Corrupt { .. }) => (Vec::new(), None, Some(told(&error))),
            Err(error) => return Err(error),
        };
        let (name, kind, steps) = (info.name.clone(), info.kind, info.steps);
        Ok(ModeReport { mode: mode + 1, name, kind, steps, dim, labels, last, problem })
    };
    info.modes.iter().enumerate().map(report).collect()
}

/// The first labels of a mode, and the last if there are more.
fn shown_labels(store: &Store, mode: usize) -> Result<(Vec<String>, Option<String>)> {
    let dim = store.dims()[mode];
    let Some(labels) = &mut store.labels(mode)? else { return Ok((Vec::new(), None)) };
    let first =
        (0..dim.min(SHOWN)).map(|index| labels.get(index).map(str::to_owned)).collect::<Result<_>>()?;
    let last = if dim > SHOWN { Some(labels.get(dim - 1)?.to_owned()) } else { None };
    Ok((first, last))
}

/// The modes for people, a line for each.
pub fn modes_text(reports: &[ModeReport]) -> String {
    let line = |report: &ModeReport| {
        let ModeReport { mode, name, kind, dim, labels, last, problem, .. } = report;
        let what = match (kind, report.steps) {
            (LabelKind::None, _) => "indices",
            (LabelKind::Text, _) => "labels",
            (LabelKind::Number, false) => "numbers",
            (LabelKind::Number, true) => "bins",
            (LabelKind::Time, false) => "times",
            (LabelKind::Time, true) => "bins of time",
            (LabelKind::Cyclic, _) => "in a cycle",
        };
        // Singular.
        let what = if *dim == 1 { what.replacen('s', "", 1).replace("indice", "index") } else { what.into() };
        let mut shown: Vec<String> = labels.iter().map(|label| short(label)).collect();
        if let Some(last) = last {
            shown.extend(["…".into(), short(last)]);
        }
        shown.extend(problem.iter().map(|problem| format!("DAMAGED: {problem}")));
        let colon = if shown.is_empty() { "" } else { ": " };
        let name = if name.is_empty() { String::new() } else { format!("{}, ", short(name)) };
        format!("  mode {mode}    {name}{dim} {what}{colon}{}\n", shown.join(", "))
    };
    reports.iter().map(line).collect()
}

/// A label in a line of text.
pub fn short(label: &str) -> String {
    const SHOWN: usize = 32;
    let plain: String =
        label.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(SHOWN).collect();
    match (label.chars().count() > SHOWN, label.is_empty()) {
        (true, _) => format!("{plain}…"),
        (_, true) => "\"\"".into(),
        _ => plain,
    }
}
