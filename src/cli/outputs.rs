//! Files and directories of results. They appear whole or not at all ([`crate::publish`]).

use crate::error::{Error, Result};
use crate::publish::{Found, Kind, MARKER, Marker, Partial, first_foreign};
use crate::store::MANIFEST;
use crate::sys::{File, Sys, directory};
use std::path::{Path, PathBuf};

/// Whether the name of `path` ends in `.end`, in upper or lower case.
pub fn ends_in(path: &Path, end: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(end))
}

/// Endings of compressed data, with the program that makes it.
const COMPRESSORS: [(&str, &str); 4] = [("gz", "gzip"), ("zst", "zstd"), ("bz2", "bzip2"), ("xz", "xz")];

/// An error if a tensor cannot be written to `path`, or would be of another kind than the name says.
pub fn check_tensor_name(path: &Path) -> Result<()> {
    let shown = path.display();
    if let Some((_, compressor)) = COMPRESSORS.iter().find(|(end, _)| ends_in(path, end)) {
        let what = format!("would not be compressed; write to - and pipe that through {compressor}");
        return Err(Error::request(format!("{shown}: {what}, or name another")));
    }
    if path.exists() && !path.is_file() && !path.is_dir() {
        let what = "is not a regular file; name one, or use - for text";
        return Err(Error::request(format!("{shown}: {what}")));
    }
    Ok(())
}

/// Endings of coordinate text.
const TEXT: [&str; 3] = ["tns", "coo", "txt"];

/// An error if coordinate text would be written to `path` and its ending is not one of text. A name without an ending is accepted.
pub fn check_text_name(path: &Path, others: &str) -> Result<()> {
    let Some(end) = path.extension() else { return Ok(()) };
    if path == Path::new("-") || TEXT.iter().any(|known| ends_in(path, known)) {
        return Ok(());
    }
    let end = end.to_string_lossy();
    let order = if end == "blco" { "; the store comes first, then the output" } else { "" };
    let what = format!(".{end} is not an ending of coordinate text; end it in .tns{others}{order}");
    Err(Error::request(format!("{}: {what}", path.display())))
}

/// An error if `dir`, a directory for temporary files, is not a directory. Checked early, not when the first file is written.
pub fn check_temp_dir(option: &str, dir: Option<&Path>) -> Result<()> {
    match dir {
        Some(dir) if !dir.is_dir() => {
            let what = "is not a directory; create it, or name another";
            Err(Error::request(format!("{option} {}: {what}", dir.display())))
        }
        _ => Ok(()),
    }
}

/// Whether `path` is -, which means standard output.
pub fn is_standard_output(path: Option<&Path>) -> bool {
    path == Some(Path::new("-"))
}

/// An error if `path`, a file that an option names, is -.
pub fn refuse_standard_output(option: &str, path: Option<&Path>) -> Result<()> {
    refuse_dash(option, path, "is written to a file; name one")
}

/// An error if `path`, a directory that an option names, is -. `what` says why it is a directory.
pub fn refuse_dash_for_directory(option: &str, path: Option<&Path>, what: &str) -> Result<()> {
    refuse_dash(option, path, &format!("{what} in a directory; name one"))
}

fn refuse_dash(option: &str, path: Option<&Path>, why: &str) -> Result<()> {
    if is_standard_output(path) { Err(Error::request(format!("{option} -: {why}"))) } else { Ok(()) }
}

/// Single files that programs make and replace.
static FILE: Kind = Kind {
    name: "file",
    marker: "",
    exists: "already exists; replace it with --force",
    look: |_, path| {
        let found = path.symlink_metadata().map_err(Error::io(path, "inspect"))?;
        Ok(match (found.is_file(), found.is_dir()) {
            (true, _) => Found::Made,
            (_, true) => Found::Other("is a directory; name a file".into()),
            _ => Found::Other("is not a regular file; name one".into()),
        })
    },
    beside: &[],
};

/// Directories of results that programs make and replace.
static RESULT: Kind = Kind {
    name: "result",
    marker: MARKER,
    exists: "results already exist; replace them with --force",
    look: look_at_result,
    beside: &[],
};

fn look_at_result(sys: &Sys, path: &Path) -> Result<Found> {
    let other = |what: &str| Ok(Found::Other(format!("{what}; name another directory")));
    if !path.is_dir() {
        return other("is not a directory");
    }
    if path.join(MANIFEST).exists() {
        return other("is a store");
    }
    let marker = Marker::read(sys, path, &RESULT)?;
    let files = marker.as_ref().map_or(&[][..], |marker| &marker.files);
    let is_part = |name: &str| name == MARKER && marker.is_some() || files.iter().any(|file| file == name);
    match first_foreign(path, |name| name.to_str().is_some_and(is_part))? {
        None if marker.is_some() => Ok(Found::Made),
        None => Ok(Found::Empty),
        Some(name) => other(&format!("holds {name:?}, which is no result of these programs")),
    }
}

/// One output file that does not exist yet. Dropped before [`Pending::publish`], it leaves nothing.
#[derive(Debug)]
pub struct Pending {
    partial: Partial,
    file: File,
}

impl Pending {
    /// Prepares to write `target`, and fails early if that cannot work. An existing file is an error unless `replace` is set. If the
    /// target is a symbolic link, the file that it points to is replaced.
    pub fn create(sys: &Sys, target: &Path, replace: bool) -> Result<Self> {
        if target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(Error::request(format!("{}: is a directory; name a file", target.display())));
        }
        let partial = Partial::create(sys, &FILE, target, replace, false)?;
        let file = partial.create_file()?;
        Ok(Self { partial, file })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that it will have.
    pub fn target(&self) -> &Path {
        self.partial.target()
    }

    /// Makes the contents durable and gives them their name.
    pub fn publish(self) -> Result<()> {
        self.prepare()?;
        self.partial.publish()
    }

    fn prepare(&self) -> Result<()> {
        self.file.sync().map_err(|e| e.about(self.target()))?;
        self.partial.prepare(&())
    }
}

/// Files of a directory that appear together, with at most one other file, in the directory or elsewhere. It may also hold no
/// files. Dropped before [`Outputs::publish`], it leaves nothing.
#[derive(Debug, Default)]
pub struct Outputs {
    // Closed before the directory is removed, which needs a file descriptor.
    files: Vec<File>,
    /// The other file, if it is in the directory.
    inside: Option<File>,
    result: Option<Partial>,
    /// The other file, if it is elsewhere.
    alone: Option<Pending>,
}

impl Outputs {
    /// Prepares to write files of these names in `dir`, and `other`, a file. `dir` must be absent, empty or, with `replace`, an earlier
    /// result. Fails early.
    pub fn create(
        sys: &Sys,
        dir: Option<&Path>,
        names: impl Iterator<Item = String>,
        other: Option<&Path>,
        replace: bool,
    ) -> Result<Self> {
        let alone = |path: &Path| Pending::create(sys, path, replace);
        let Some(dir) = dir else {
            return Ok(Self { alone: other.map(alone).transpose()?, ..Self::default() });
        };
        let mut names: Vec<String> = names.collect();
        let own = names.len();
        let inside = other.filter(|path| is_in(path, dir)).and_then(Path::file_name);
        if let Some(name) = inside {
            let name = name.to_string_lossy().into_owned();
            if names.contains(&name) || name == MARKER {
                let what = "is the name of a result; name another file";
                return Err(Error::request(format!("{}: {what}", dir.join(name).display())));
            }
            names.push(name);
        }
        let partial = Partial::create(sys, &RESULT, dir, replace, false)?;
        partial.create_dir()?;
        Marker::new(&RESULT, names.clone()).write(sys, &partial.new_one()).map_err(|e| e.about(dir))?;
        let create = |name: &String| {
            let made = sys.create(&partial.new_one().join(name));
            made.map_err(|e| e.about(&dir.join(name)))
        };
        let mut files = names.iter().map(create).collect::<Result<Vec<_>>>()?;
        let inside = files.split_off(own).pop();
        let alone = other.filter(|_| inside.is_none()).map(alone).transpose()?;
        Ok(Self { result: Some(partial), files, inside, alone })
    }

    /// The first file of the directory and its name, for results that stream; `None` without a directory.
    pub fn first(&self) -> Option<(&File, PathBuf)> {
        self.named().next()
    }

    /// The files of the directory and their names; none without a directory.
    pub fn named(&self) -> impl Iterator<Item = (&File, PathBuf)> {
        let named = |file| Some((file, self.result.as_ref()?.target().join(File::path(file).file_name()?)));
        self.files.iter().filter_map(named)
    }

    /// Lets `write` write each file of the directory by its number, and `write_other` the other file. Then gives the directory
    /// its name, and the other file.
    pub fn publish(
        self,
        write: impl Fn(usize, &File) -> Result<()>,
        write_other: impl FnOnce(&File) -> Result<()>,
    ) -> Result<()> {
        let target = self.result.as_ref().map(|partial| partial.target().to_path_buf());
        let about = |e: Error, file: &File| match (&target, file.path().file_name()) {
            (Some(dir), Some(name)) => e.about(&dir.join(name)),
            _ => e,
        };
        self.files.iter().enumerate().try_for_each(|(i, file)| write(i, file).map_err(|e| about(e, file)))?;
        match (&self.inside, &self.alone) {
            (Some(file), _) => write_other(file).map_err(|e| about(e, file))?,
            (None, Some(pending)) => {
                write_other(pending.file()).map_err(|e| e.about(pending.target()))?;
            }
            (None, None) => {}
        }
        self.files.iter().chain(&self.inside).try_for_each(|file| file.sync().map_err(|e| about(e, file)))?;
        self.result.iter().try_for_each(|partial| partial.prepare(&()))?;
        self.alone.iter().try_for_each(Pending::prepare)?;
        self.result.iter().chain(self.alone.iter().map(|alone| &alone.partial)).try_for_each(Partial::publish)
    }
}

/// Whether the file `path` would be in the directory `dir`. Neither needs to exist.
fn is_in(path: &Path, dir: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    whole(directory(path)) == whole(dir)
}
