//! JSON Lines: an object on each line. Its members are the columns; those of an object inside are named by their path,
//! `request.path`. Text, numbers and booleans are fields as in CSV, `null` and a member that is missing are nulls, and a list is
//! its text. The columns are the members that the first 256 KiB have; a member that appears later is none.

use super::NOT_UTF_8;
use super::csv::RECORD_BYTES_MAX;
use super::piece::{Piece, PieceFault, Row, Rules, Wrong};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// Whether a text that begins with `head` is JSON.
pub fn is_json(head: &[u8]) -> bool {
    matches!(head.trim_ascii_start(), [b'{', ..] | [b'[', b'{' | b'\n' | b'\r' | b' ', ..])
}

/// The names of the members in `head`, the first bytes of the table `name`, in order of appearance.
pub fn columns(head: &[u8], name: &str) -> Result<Vec<String>> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    // The last line may be cut.
    let end = memchr::memrchr(b'\n', head).unwrap_or(head.len());
    for (number, line) in head[..end].split(|&b| b == b'\n').enumerate() {
        let read = if line.trim_ascii().is_empty() {
            Ok(())
        } else {
            each_member(
                line,
                |_| true,
                |path, _| {
                    if seen.insert(path.to_owned()) {
                        names.push(path.to_owned());
                    }
                },
            )
        };
        if read.is_err() {
            if names.is_empty() {
                let what = "is JSON, but not an object on each line (JSON Lines); convert it, for example: jq -c '.[]'";
                return Err(Error::input(format!("{name}:{}", number + 1), what));
            }
            // It is read again, with all rows, and told then.
            break;
        }
    }
    Ok(names)
}

/// Reads the rows of `text`, whole lines, into `piece`, which is empty, up to the first error.
pub fn parse(rules: &Rules, text: &[u8], piece: &mut Piece) {
    let wanted: Vec<(usize, &str)> = rules
        .modes
        .iter()
        .map(|&(column, _)| column)
        .chain(rules.value)
        .map(|column| (column, &rules.names[column][..]))
        .collect();
    let (mut cells, mut buffer): (Vec<Option<Cow<str>>>, _) = (vec![None; rules.names.len()], Vec::new());
    for line in text.split_inclusive(|&b| b == b'\n') {
        if !line.trim_ascii().is_empty() {
            cells.fill(None);
            let row = read_row(&wanted, line, &mut cells)
                .and_then(|()| piece.push(rules, &Cells(&cells), &mut buffer));
            if let Err((column, what)) = row {
                piece.fault = Some(PieceFault { row: piece.rows, line: piece.lines, column, what });
                return;
            }
            piece.rows += 1;
        }
        piece.lines += 1;
    }
}

/// The members of `line` that are `wanted`, in the cells of their columns.
fn read_row<'a>(
    wanted: &[(usize, &str)],
    line: &'a [u8],
    cells: &mut [Option<Cow<'a, str>>],
) -> std::result::Result<(), Wrong> {
    let mut wrong = None;
    let is_above = |path: &str| wanted.iter().any(|(_, name)| name.starts_with(path));
    let read = each_member(line, is_above, |path, json| {
        for &(column, _) in wanted.iter().filter(|(_, name)| *name == path) {
            match cell(json) {
                Ok(cell) => cells[column] = cell,
                Err(e) => {
                    wrong = Some((Some(column), format!("is no text: {}; correct it", what(&e))));
                }
            }
        }
    });
    read.map_err(|what| (None, what)).and(wrong.map_or(Ok(()), Err))
}

/// What a member holds.
fn cell(json: &str) -> serde_json::Result<Option<Cow<'_, str>>> {
    match json.as_bytes()[0] {
        b'"' => serde_json::from_str(json).map(|Text(text)| Some(text)),
        b'n' => Ok(None),
        _ => Ok(Some(json.into())),
    }
}

/// Calls `each` with the path and the JSON of every member of the object `line`, and of objects inside if `enters` says so of their path,
/// which ends with a dot. An error says what is wrong.
fn each_member<'a>(
    line: &'a [u8],
    enters: impl Fn(&str) -> bool,
    mut each: impl FnMut(&str, &'a str),
) -> std::result::Result<(), String> {
    if line.len() > RECORD_BYTES_MAX {
        return Err("a row of more than 16 MiB; end each object with a line feed".into());
    }
    let text = std::str::from_utf8(line.trim_ascii_end()).map_err(|_| NOT_UTF_8)?;
    let mut path = String::new();
    Members { path: &mut path, enters: &enters, each: &mut each }.read(text).map_err(|e| no_object(&e))
}

/// What is wrong, without where: each line is read by itself.
fn what(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

fn no_object(error: &serde_json::Error) -> String {
    let at = if error.column() == 0 { String::new() } else { format!(" at byte {}", error.column()) };
    format!("is no JSON object: {}{at}; correct the line, or remove it", what(error))
}

/// JSON text, without a copy where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads an object whose members' paths begin with `path`.
struct Members<'s, E, F> {
    path: &'s mut String,
    enters: &'s E,
    each: &'s mut F,
}

impl<'a, E: Fn(&str) -> bool, F: FnMut(&str, &'a str)> Members<'_, E, F> {
    fn read(self, json: &'a str) -> serde_json::Result<()> {
        let mut from = serde_json::Deserializer::from_str(json);
        self.deserialize(&mut from)?;
        from.end()
    }
}

impl<'a, E: Fn(&str) -> bool, F: FnMut(&str, &'a str)> DeserializeSeed<'a> for Members<'_, E, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'a, E: Fn(&str) -> bool, F: FnMut(&str, &'a str)> Visitor<'a> for Members<'_, E, F> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> std::result::Result<(), A::Error> {
        let Self { path, enters, each } = self;
        let above = path.len();
        while let Some(Text(name)) = members.next_key()? {
            let json = members.next_value::<&'a RawValue>()?.get();
            path.push_str(&name);
            let leaf = path.len();
            path.push('.');
            if !json.starts_with('{') {
                each(&path[..leaf], json);
            } else if enters(path) {
                let inside = Members { path: &mut *path, enters, each: &mut *each };
                inside.read(json).map_err(serde::de::Error::custom)?;
            }
            path.truncate(above);
        }
        Ok(())
    }
}

/// A row.
struct Cells<'a>(&'a [Option<Cow<'a, str>>]);

impl Row for Cells<'_> {
    fn is_null(&self, column: usize) -> bool {
        self.0[column].is_none()
    }

    fn text<'a>(&'a self, column: usize, _: &'a mut Vec<u8>) -> &'a [u8] {
        self.0[column].as_deref().unwrap_or_default().as_bytes()
    }
}
