//! The one error type: variants by what the caller can do about them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong outside the program itself. A panic is a bug; an `Error` is the world.
///
/// Each prints as one line: where, what, and what to do. Options stand between backticks under the names that they have in this library;
/// `zstd` is the codec's level. [`Error::Io`] gives the system's reason in words; its number is in `source`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input is wrong: correct it, or pass the option that the message names.
    #[error("{place}: {what}")]
    Input {
        /// File and line, `movies.tns:17`, or only the file.
        place: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The options are wrong, or do not fit the input.
    #[error("{0}")]
    Request(String),
    /// A file is damaged, or is not of the expected kind.
    #[error("{path}: {what}{}", named(*rule))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in the file.
        what: String,
        /// The kind of damage.
        damage: Damage,
        /// The rule of formats-spec/container.md that the store breaks, if there is one.
        rule: Option<&'static str>,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {}{}", reason(source), remedy(source, path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// A verb: "read", "create", "sync".
        action: &'static str,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The system is out of threads or memory.
    #[error("cannot {action}: {}", reason(source))]
    Resource {
        /// A verb and its object: "start a thread".
        action: &'static str,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The GPU or its driver refused.
    #[error("the GPU cannot {action}: {what}")]
    Device {
        /// A verb and its object: "allocate device memory".
        action: &'static str,
        /// The driver's own words.
        what: String,
        /// Whether a smaller request might succeed.
        out_of_memory: bool,
    },
    /// The user asked to stop. Temporary files are removed.
    #[error("interrupted; no result was written")]
    Cancelled,
}

/// Kinds of damage, by what to do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// A file of a store lost what was written to it. The intact part can be salvaged.
    OfStore,
    /// Anything else: another version or kind of file, a file that changes while it is read, or a file that belongs to no store.
    Other,
}

/// A rule's name as messages show it.
fn named(rule: Option<&str>) -> String {
    rule.map_or_else(String::new, |rule| format!(" ({rule})"))
}

/// The system's reason in its own words, without the number of the error.
pub(crate) fn reason(source: &std::io::Error) -> String {
    let text = source.to_string();
    let words = text.split(" (os error ").next().unwrap_or_default();
    let mut chars = words.chars();
    let first = chars.next().map(|c| c.to_lowercase().to_string());
    match (first, chars.as_str()) {
        // "I/O error" and other abbreviations stay as they are.
        (_, rest) if rest.starts_with(|c: char| !c.is_lowercase() && c != ' ') => words.to_owned(),
        (first, rest) => first.unwrap_or_default() + rest,
    }
}

/// What to do about a refusal of the system, if that is known.
fn remedy(source: &std::io::Error, path: &Path) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory if path.starts_with("~") => {
            "; take ~ out of the quotes"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => "; check the path",
        ErrorKind::AlreadyExists => "; name another",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room, or write elsewhere",
        ErrorKind::FileTooLarge => "; raise the limit (ulimit -f), or write elsewhere",
        ErrorKind::PermissionDenied => "; check its permissions and those of its directory",
        ErrorKind::ReadOnlyFilesystem => "; write elsewhere",
        _ => "",
    }
}

impl Error {
    /// An [`Error::Input`] at `place`.
    pub fn input(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Input { place: place.into(), what: what.into() }
    }

    /// An [`Error::Request`].
    pub fn request(what: impl Into<String>) -> Self {
        Self::Request(what.into())
    }

    /// An [`Error::Corrupt`] with [`Damage::OfStore`]: the file `path` of a store lost what was written to it.
    pub fn corrupt(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
            damage: Damage::OfStore,
            rule: None,
        }
    }

    /// An [`Error::Corrupt`] with [`Damage::Other`]: `path` is not the file that it should be.
    pub fn unusable(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
            damage: Damage::Other,
            rule: None,
        }
    }

    /// The same error, naming the rule that a store's file breaks.
    #[must_use]
    pub fn breaks(mut self, broken: &'static str) -> Self {
        if let Self::Corrupt { rule, .. } = &mut self {
            *rule = Some(broken);
        }
        self
    }

    /// The rule that a store's file breaks, if the error names one.
    pub(crate) fn rule(&self) -> Option<&'static str> {
        if let Self::Corrupt { rule, .. } = self { *rule } else { None }
    }

    /// The same error about `path`, the name that the user knows, instead of a temporary file's.
    #[must_use]
    pub fn about(self, path: &Path) -> Self {
        match self {
            Self::Io { action, source, .. } => Self::Io { path: path.to_path_buf(), action, source },
            other => other,
        }
    }

    /// Wraps a system error with the file and the verb.
    pub fn io(path: impl AsRef<Path>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { path, action, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_words_without_numbers() {
        let shown =
            |number| Error::io("t.tns", "read")(std::io::Error::from_raw_os_error(number)).to_string();
        assert_eq!(
            shown(libc::EACCES),
            "cannot read t.tns: permission denied; check its permissions and those of its directory"
        );
        assert_eq!(
            shown(libc::ENOSPC),
            "cannot read t.tns: no space left on device; make room, or write elsewhere"
        );
        assert_eq!(shown(libc::EIO), "cannot read t.tns: input/output error");
        for number in 1..140 {
            assert!(!shown(number).contains("os error"), "{}", shown(number));
        }
        let own = std::io::Error::other("I/O of its own kind");
        assert_eq!(reason(&own), "I/O of its own kind");
    }
}
