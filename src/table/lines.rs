//! Labels of coordinate text: files with one label on each line, and names.

use super::scratch::Scratch;
use crate::coo::tns::TextInput;
use crate::error::{Error, Result};
use crate::store::labels::{LABEL_BYTES_MAX, LabelKind, LabelWriter, ModeInfo, ModesInfo, NewLabels};
use crate::sys::Sys;
use memchr::memchr;
use std::path::{Path, PathBuf};

/// Bytes of a file of labels that are read at once.
const PIECE_BYTES: usize = 1 << 18;

/// What a store is to say of modes with these `names`, in order, of which some have labels in files, by their number from 0.
/// Copies go to a directory in `temp_dir`.
pub fn labels_of_files(
    sys: &Sys,
    names: &[String],
    files: &[(usize, PathBuf)],
    temp_dir: &Path,
) -> Result<NewLabels> {
    let scratch = Scratch::new(sys, temp_dir, 0);
    let modes = names.iter().map(|name| ModeInfo { name: name.clone(), ..ModeInfo::default() }).collect();
    let mut labels = NewLabels {
        info: ModesInfo { value_name: String::new(), modes },
        files: names.iter().map(|_| None).collect(),
        lost: Vec::new(),
        keeps: None,
    };
    for (mode, path) in files {
        let (dir, file) = scratch.create(&format!("labels-{mode}"))?;
        let mut writer = LabelWriter::new(file);
        each_line(sys, path, |line| writer.push(line).map_err(|e| e.to_string()))?;
        let count = writer.labels();
        let (facts, file) = writer.finish()?;
        let info = &mut labels.info.modes[*mode];
        (info.kind, info.file) = (LabelKind::Text, Some(facts));
        labels.files[*mode] = Some((file, count));
        labels.keeps = Some(dir);
    }
    Ok(labels)
}

/// Calls `each` with every line of a text, without what ends it.
fn each_line(
    sys: &Sys,
    path: &Path,
    mut each: impl FnMut(&str) -> std::result::Result<(), String>,
) -> Result<()> {
    let (name, mut input, _) = TextInput::open(sys, path)?;
    let (mut buffer, mut length, mut lines) = (sys.vec(0, PIECE_BYTES)?, 0, 0);
    loop {
        let (read, failure) = input.fill(&mut buffer[length..]);
        let ended = read < buffer.len() - length;
        length += read;
        let mut start = 0;
        while start < length {
            let end = match memchr(b'\n', &buffer[start..length]) {
                Some(end) => start + end,
                None if ended && failure.is_none() => length,
                None => break,
            };
            lines += 1;
            let wrong = |what: &str| Error::input(format!("{name}:{lines}"), what);
            let line = buffer[start..end].strip_suffix(b"\r").unwrap_or(&buffer[start..end]);
            each(std::str::from_utf8(line).map_err(|_| wrong(super::NOT_UTF_8))?)
                .map_err(|what| wrong(&what))?;
            start = end + 1;
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if ended {
            return Ok(());
        }
        buffer.copy_within(start.min(length)..length, 0);
        length -= start.min(length);
        if length == buffer.len() {
            if length > LABEL_BYTES_MAX {
                let what = format!("a label of more than {LABEL_BYTES_MAX} bytes; shorten it");
                return Err(Error::input(format!("{name}:{}", lines + 1), what));
            }
            buffer.resize(2 * length, 0);
        }
    }
}
