//! Files that appear whole or not at all: written under a temporary name, renamed last.

use crate::dense::{Real, mode_file};
use crate::error::{Error, Result};
use crate::op::mttkrp::ModeMatrix;
use crate::sys::{File, Sys, Temporary};
use std::path::{Path, PathBuf};

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
    /// `replace`.
    pub fn create(sys: &Sys, target: &Path, replace: bool) -> Result<Self> {
        let shown = target.display();
        if target.is_dir() {
            return Err(Error::request(format!("{shown}: is a directory; name a file")));
        }
        if target.exists() && !target.is_file() {
            return Err(Error::request(format!(
                "{shown}: is not a regular file; name one, or use - for text"
            )));
        }
        if !replace && target.symlink_metadata().is_ok() {
            return Err(Error::request(format!("{shown}: is there already; --force replaces it")));
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".partial-{}", std::process::id()));
        let partial = target.with_file_name(name);
        let file = sys.create(&partial).map_err(|e| e.about(target))?;
        let partial = Temporary::at(sys, partial);
        Ok(Self { sys: sys.clone(), file, target: target.to_path_buf(), partial })
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
        self.rename()
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

/// `DIR/mode-1.npy` … for results; nothing without a directory. Dropped before [`Results::publish`], it leaves
/// nothing, the directory included where it made that.
#[derive(Debug)]
pub struct Results {
    files: Vec<(usize, Pending)>,
    made: Option<PathBuf>,
}

impl Results {
    /// Prepares to write results of `modes`, from 0, creating the directory where it is missing and replacing
    /// results that are there.
    pub fn create(sys: &Sys, dir: Option<&Path>, modes: &[usize]) -> Result<Self> {
        let mut results = Self { files: Vec::new(), made: None };
        let Some(dir) = dir else { return Ok(results) };
        if !dir.is_dir() {
            sys.create_dir(dir)?;
            results.made = Some(dir.to_path_buf());
        }
        for &mode in modes {
            results.files.push((mode, Pending::create(sys, &dir.join(mode_file(mode)), true)?));
        }
        Ok(results)
    }

    /// Writes all results, then gives all of them their names. If that fails, those that replaced nothing go again.
    pub fn publish<T: Real>(mut self, results: &[ModeMatrix<T>]) -> Result<()> {
        for (mode, pending) in &self.files {
            let result = results.iter().find(|(m, _)| m == mode);
            result.map_or(Ok(()), |(_, matrix)| matrix.write(pending.file()))?;
        }
        self.files.iter().try_for_each(|(_, pending)| pending.sync())?;
        let mut named = Vec::with_capacity(self.files.len());
        for (_, pending) in std::mem::take(&mut self.files) {
            let (sys, target) = (pending.sys.clone(), pending.target.clone());
            let replaces = target.symlink_metadata().is_ok();
            pending.rename()?;
            if !replaces {
                named.push(Temporary::at(&sys, target));
            }
        }
        named.into_iter().for_each(Temporary::renamed);
        Ok(())
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.files.clear();
        if let Some(dir) = &self.made {
            // Fails, as it should, where results are in it.
            drop(std::fs::remove_dir(dir));
        }
    }
}
