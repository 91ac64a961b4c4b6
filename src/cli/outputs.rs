//! Files that appear whole or not at all: written under a temporary name, renamed last.

use crate::error::{Error, Result};
use crate::store::MANIFEST;
use crate::sys::{File, Sys, Temporary, behind_links, directory};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether the name of `path` ends in `.end`, in capitals or not.
pub fn ends_in(path: &Path, end: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(end))
}

/// Endings of compressed data, and what makes it.
const COMPRESSORS: [(&str, &str); 4] = [("gz", "gzip"), ("zst", "zstd"), ("bz2", "bzip2"), ("xz", "xz")];

/// An error where a tensor cannot be written to `path`, or would not be what that name says.
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

/// Endings of what is no coordinate text.
const NO_TEXT: [&str; 5] = ["npz", "npy", "blco", "hocfs", "mtx"];

/// An error where coordinate text is to be written to `path`, and that name says that something else is there.
pub fn check_text_name(path: &Path) -> Result<()> {
    let Some(end) = NO_TEXT.iter().find(|end| ends_in(path, end)) else { return Ok(()) };
    let what = format!("would be coordinate text, which .{end} is not; name another, such as .tns");
    Err(Error::request(format!("{}: {what}", path.display())))
}

/// An error where `dir`, where an option has temporary files go, is no directory: not only when the first of them is written.
pub fn check_temp_dir(option: &str, dir: Option<&Path>) -> Result<()> {
    match dir {
        Some(dir) if !dir.is_dir() => {
            let what = "is no directory; make it, or name another";
            Err(Error::request(format!("{option} {}: {what}", dir.display())))
        }
        _ => Ok(()),
    }
}

/// Whether `path` is -, which means standard output.
pub fn is_standard_output(path: Option<&Path>) -> bool {
    path == Some(Path::new("-"))
}

/// An error where `path`, a file that an option names, is -, which means standard output elsewhere.
pub fn refuse_standard_output(option: &str, path: Option<&Path>) -> Result<()> {
    refuse_dash(option, path, "is written to a file; name one")
}

/// An error where `path`, a directory that an option names, is -, which means standard output elsewhere. `what`: why
/// it is a directory.
pub fn refuse_dash_for_directory(option: &str, path: Option<&Path>, what: &str) -> Result<()> {
    refuse_dash(option, path, &format!("{what} in a directory; name one"))
}

fn refuse_dash(option: &str, path: Option<&Path>, why: &str) -> Result<()> {
    if is_standard_output(path) { Err(Error::request(format!("{option} -: {why}"))) } else { Ok(()) }
}

/// One output file that is not there yet. Dropped before [`Pending::publish`], it leaves nothing.
#[derive(Debug)]
pub struct Pending {
    sys: Sys,
    file: File,
    target: PathBuf,
    partial: Temporary,
}

impl Pending {
    /// Prepares to write `target`: an error now if that cannot work. A file that is there is an error unless
    /// `replace`. Where it is a symbolic link, what that leads to is replaced.
    pub fn create(sys: &Sys, target: &Path, replace: bool) -> Result<Self> {
        let shown = target.display();
        if target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(Error::request(format!("{shown}: is a directory; name a file")));
        }
        if target.exists() && !target.is_file() {
            return Err(Error::request(format!("{shown}: is not a regular file; name one")));
        }
        if !replace && target.symlink_metadata().is_ok() {
            return Err(Error::request(format!("{shown}: is there already; --force replaces it")));
        }
        let target = &behind_links(target)?;
        let mut prefix = OsString::from(".");
        prefix.push(target.file_name().unwrap_or_default());
        prefix.push(".partial-");
        remove_abandoned(sys, target, &prefix);
        let (file, partial) = create_locked(sys, target, &prefix)?;
        Ok(Self { sys: sys.clone(), file, target: target.clone(), partial })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that it will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the contents durable and gives them their name.
    pub fn publish(self) -> Result<()> {
        self.sync()?;
        name(vec![self])
    }

    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| e.about(&self.target))
    }

    fn rename(self) -> Result<()> {
        self.sys.rename(self.partial.path(), &self.target)?;
        self.partial.renamed();
        Ok(())
    }
}

/// Gives files their names, durably. If that fails, those that replaced nothing go again.
fn name(files: Vec<Pending>) -> Result<()> {
    let Some(sys) = files.first().map(|pending| pending.sys.clone()) else { return Ok(()) };
    // The last name given in each directory.
    let mut last = BTreeMap::new();
    for file in &files {
        last.insert(directory(&file.target).to_path_buf(), file.target.clone());
    }
    sys.publish(|| {
        let mut named = Vec::with_capacity(files.len());
        for pending in files {
            let target = pending.target.clone();
            let replaces = target.symlink_metadata().is_ok();
            pending.rename()?;
            if !replaces {
                named.push(Temporary::at(&sys, target));
            }
        }
        last.values().try_for_each(|target| sys.sync_name(target))?;
        named.into_iter().for_each(Temporary::renamed);
        Ok(())
    })
}

/// Creates a file beside `target` whose name begins with `prefix`, and locks it: nobody will think that it is abandoned. (Nobody does
/// where files cannot be locked.)
fn create_locked(sys: &Sys, target: &Path, prefix: &OsStr) -> Result<(File, Temporary)> {
    // No name is used twice: who has found a file by its name can take it for another otherwise.
    static MADE: AtomicU64 = AtomicU64::new(0);
    loop {
        let mut name = prefix.to_os_string();
        name.push(format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        let path = target.with_file_name(name);
        let file = sys.create(&path).map_err(|e| e.about(target))?;
        let partial = Temporary::at(sys, path);
        // Otherwise another program has found it before it was locked, and removes it.
        if file.try_lock().unwrap_or(true) && partial.path().exists() {
            return Ok((file, partial));
        }
    }
}

/// Removes files beside `target` whose names begin with `prefix` and that nobody has locked: what killed programs left.
/// Quietly: they are in nobody's way.
fn remove_abandoned(sys: &Sys, target: &Path, prefix: &OsStr) {
    let Ok(entries) = directory(target).read_dir() else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default();
        // It stays locked until it is gone: who makes it at this moment sees that.
        if name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            && let Ok(file) = sys.open(&path, false)
            && file.try_lock().unwrap_or(false)
        {
            drop(sys.remove_file(&path));
        }
    }
}

/// Files of a directory that appear together, and at most one elsewhere; nothing without them. Dropped before [`Outputs::publish`], it leaves
/// nothing, the directory included where it made that.
#[derive(Debug)]
pub struct Outputs {
    files: Vec<Pending>,
    made: Option<PathBuf>,
}

impl Outputs {
    /// Prepares to write files of these names, creating the directory where it is missing and replacing files that are
    /// there.
    pub fn create(sys: &Sys, dir: Option<&Path>, names: impl Iterator<Item = String>) -> Result<Self> {
        let mut outputs = Self { files: Vec::new(), made: None };
        let Some(dir) = dir else { return Ok(outputs) };
        if dir.join(MANIFEST).exists() {
            return Err(Error::request(format!("{}: is a store; name another directory", dir.display())));
        }
        if !dir.is_dir() {
            sys.create_dir(dir)?;
            outputs.made = Some(dir.to_path_buf());
        }
        for name in names {
            outputs.files.push(Pending::create(sys, &dir.join(name), true)?);
        }
        Ok(outputs)
    }

    /// The same with the file `path`, the last, which replaces one that is there.
    pub fn and(mut self, sys: &Sys, path: Option<&Path>) -> Result<Self> {
        self.files.extend(path.map(|path| Pending::create(sys, path, true)).transpose()?);
        Ok(self)
    }

    /// The first file, for what is written as it comes; `None` where there are no files.
    pub fn first(&self) -> Option<&Pending> {
        self.files.first()
    }

    /// Has `write` write each file by its number, then gives all of them their names. If that fails, those that replaced
    /// nothing go again.
    pub fn publish(mut self, write: impl Fn(usize, &File) -> Result<()>) -> Result<()> {
        self.files.iter().enumerate().try_for_each(|(i, pending)| write(i, pending.file()))?;
        self.files.iter().try_for_each(Pending::sync)?;
        name(std::mem::take(&mut self.files))
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.files.clear();
        if let Some(dir) = &self.made {
            // Fails, as it should, where results are in it.
            drop(std::fs::remove_dir(dir));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nobody_takes_a_file_away_that_is_being_made() {
        let dir = tempfile::tempdir().unwrap();
        let (sys, target, done) = (Sys::default(), dir.path().join("result"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    remove_abandoned(&sys, &target, OsStr::new(".result.partial-"));
                }
            });
            for _ in 0..500 {
                let made = Pending::create(&sys, &target, true).and_then(Pending::publish);
                if made.is_err() {
                    done.store(true, Ordering::Relaxed);
                }
                made.unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
