//! Files that must not change while they are read.

use super::File;
use crate::error::{Error, Result};
use std::os::unix::fs::MetadataExt;

/// A file's identity, length, and time of last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    device: u64,
    number: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    written: [i64; 2],
}

impl FileState {
    fn of(facts: &std::fs::Metadata) -> Self {
        Self {
            device: facts.dev(),
            number: facts.ino(),
            bytes: facts.len(),
            written: [facts.mtime(), facts.mtime_nsec()],
        }
    }

    /// Describes how `now` differs; `None` if it does not.
    fn change(&self, now: &Self) -> Option<String> {
        let lengths = format!("it had {} bytes and has {}", self.bytes, now.bytes);
        if (now.device, now.number) != (self.device, self.number) {
            Some("replaced by another file".to_owned())
        } else if now.bytes < self.bytes {
            Some(format!("cut short ({lengths})"))
        } else if now.bytes > self.bytes {
            Some(format!("appended to ({lengths})"))
        } else {
            (now.written != self.written).then(|| "written to".to_owned())
        }
    }
}

impl File {
    /// The file's state now.
    pub fn state(&self) -> Result<FileState> {
        Ok(FileState::of(&self.metadata()?))
    }

    /// [`Error::Input`] if the file has changed since the state `since`, or if its path now names another file. A
    /// change within one tick of the file system's clock that keeps the length goes unnoticed.
    pub fn check_unchanged(&self, since: &FileState) -> Result<()> {
        let now = self.state()?;
        // Without a name it can still be read to its end.
        let named = self.path().metadata().ok().map(|facts| FileState::of(&facts));
        let Some(change) = since.change(&now).or_else(|| since.change(&named?)) else { return Ok(()) };
        let what = format!("was {change} while it was read; start again once nothing writes it");
        Err(Error::input(self.path().display().to_string(), what))
    }
}

#[cfg(test)]
mod tests {
    use crate::sys::Sys;
    use std::io::Write;

    #[test]
    fn every_kind_of_change_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("t.tns"), dir.path().join("other"));
        let append = || std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        let touch = || append().set_modified(std::time::UNIX_EPOCH).unwrap();
        let changes: [(&dyn Fn(), &str); 5] = [
            (&|| append().write_all(b"2 2 2\n").unwrap(), "appended to (it had 6 bytes and has 12)"),
            (&|| append().set_len(2).unwrap(), "cut short (it had 6 bytes and has 2)"),
            (&touch, "written to"),
            (&|| std::fs::rename(&other, &path).unwrap(), "replaced by another file"),
            (&|| std::fs::remove_file(&path).unwrap(), ""),
        ];
        for (change, said) in changes {
            std::fs::write(&path, "1 1 1\n").unwrap();
            std::fs::write(&other, "1 1 1\n").unwrap();
            let file = Sys::default().open(&path, false).unwrap();
            let state = file.state().unwrap();
            file.check_unchanged(&state).unwrap();
            change();
            match file.check_unchanged(&state) {
                Ok(()) => assert_eq!(said, "", "a file without a name is read to its end"),
                Err(error) => {
                    let wanted = format!("t.tns: was {said} while it was read; start again");
                    assert!(!said.is_empty() && error.to_string().contains(&wanted), "{error}");
                }
            }
        }
    }
}
