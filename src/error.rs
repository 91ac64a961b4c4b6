//! The one error type: variants by what the caller can do about them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong outside the program itself. A panic is a bug; an `Error` is the world.
///
/// Each prints as one line: where, what, and what to do. An option that it names stands between backticks, under the name that it has in
/// this library; `zstd` is the codec's level.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input text or array is wrong: mend the input, or give the option that the hint names.
    #[error("{place}: {what}")]
    Input {
        /// File and line, `movies.tns:17`, or only the file.
        place: String,
        /// What is wrong and what to do.
        what: String,
    },
    /// The request cannot be carried out: change the options.
    #[error("{0}")]
    Request(String),
    /// A file is damaged, or is not what it should be.
    #[error("{path}: {what}{}", named(*rule))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not hold, and where in the file.
        what: String,
        /// What kind of damage it is.
        damage: Damage,
        /// The rule of formats-spec/container.md that the store breaks, where it is one of those.
        rule: Option<&'static str>,
    },
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}{}", remedy(source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// A verb: "read", "create", "sync".
        action: &'static str,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The system has no more threads or memory.
    #[error("cannot {action}: {source}")]
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
        /// Whether less might do.
        out_of_memory: bool,
    },
    /// The user asked to stop; everything temporary is gone.
    #[error("interrupted; no result was written")]
    Cancelled,
}

/// Kinds of damage, by what can be done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// A file of a store, in the store's directory, has lost what was written to it: what is intact can be salvaged.
    OfStore,
    /// The file is of another version or kind, it changes while it is read, or no store is concerned.
    Other,
}

/// How messages name a rule.
fn named(rule: Option<&str>) -> String {
    rule.map_or_else(String::new, |rule| format!(" ({rule})"))
}

/// What to do about a refusal of the system, where that is known.
fn remedy(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "; check the path",
        ErrorKind::AlreadyExists => "; name another",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room, or write elsewhere",
        ErrorKind::FileTooLarge => "; raise the limit (ulimit -f), or write elsewhere",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "; check who may do that there",
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

    /// An [`Error::Corrupt`] about the file `path` of a store, which has lost what was written: [`Damage::OfStore`].
    pub fn corrupt(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
            damage: Damage::OfStore,
            rule: None,
        }
    }

    /// An [`Error::Corrupt`] about a file that is not what it should be for another reason: [`Damage::Other`].
    pub fn unusable(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
            damage: Damage::Other,
            rule: None,
        }
    }

    /// The same error, where a store's file breaks this rule.
    #[must_use]
    pub fn breaks(mut self, broken: &'static str) -> Self {
        if let Self::Corrupt { rule, .. } = &mut self {
            *rule = Some(broken);
        }
        self
    }

    /// The rule that a store's file breaks, where this says so.
    pub(crate) fn rule(&self) -> Option<&'static str> {
        if let Self::Corrupt { rule, .. } = self { *rule } else { None }
    }

    /// The same error about `path`, the name that the user knows, where it was about a temporary one.
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
