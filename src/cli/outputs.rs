//! Files that appear whole or not at all: written under a temporary name, renamed last.

use crate::dense::{Matrix, Real, mode_file};
use crate::error::{Error, Result};
use crate::sys::{File, Sys};
use std::path::{Path, PathBuf};

/// One output file that is not there yet. Dropped before [`Pending::publish`], it leaves nothing.
#[derive(Debug)]
pub struct Pending {
    sys: Sys,
    file: File,
    target: PathBuf,
    partial: PathBuf,
    published: bool,
}

impl Pending {
    /// Prepares to write `target`: an error now if that cannot work. A file that is there is an error unless
    /// `replace`.
    pub fn create(sys: &Sys, target: &Path, replace: bool) -> Result<Self> {
        let shown = target.display();
        if target.is_dir() {
            return Err(Error::request(format!("{shown}: is a directory; name a file")));
        }
        if !replace && target.symlink_metadata().is_ok() {
            return Err(Error::request(format!("{shown}: is there already; --force replaces it")));
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".partial-{}", std::process::id()));
        let partial = target.with_file_name(name);
        let file = sys.create(&partial)?;
        Ok(Self { sys: sys.clone(), file, target: target.to_path_buf(), partial, published: false })
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
    pub fn publish(mut self) -> Result<()> {
        self.file.sync()?;
        self.sys.rename(&self.partial, &self.target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.published {
            // Whoever dropped it has an error of their own to tell.
            drop(std::fs::remove_file(&self.partial));
        }
    }
}

/// `DIR/mode-1.npy` … for results; nothing without a directory.
#[derive(Debug)]
pub struct Results {
    files: Vec<(usize, Pending)>,
}

impl Results {
    /// Prepares to write results of `modes`, from 0, creating the directory where it is missing and replacing
    /// results that are there.
    pub fn create(sys: &Sys, dir: Option<&Path>, modes: &[usize]) -> Result<Self> {
        let Some(dir) = dir else { return Ok(Self { files: Vec::new() }) };
        if !dir.is_dir() {
            sys.create_dir(dir)?;
        }
        let pending = |&mode: &usize| Ok((mode, Pending::create(sys, &dir.join(mode_file(mode)), true)?));
        Ok(Self { files: modes.iter().map(pending).collect::<Result<_>>()? })
    }

    /// Writes all results, then gives all of them their names.
    pub fn publish<T: Real>(self, results: &[(usize, Matrix<T>)]) -> Result<()> {
        for (mode, pending) in &self.files {
            let result = results.iter().find(|(m, _)| m == mode);
            result.map_or(Ok(()), |(_, matrix)| matrix.write(pending.file()))?;
        }
        self.files.into_iter().try_for_each(|(_, pending)| pending.publish())
    }
}
