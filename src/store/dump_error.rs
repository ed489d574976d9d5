//! Error of the commands on a state file, and on the budgets in Redis.

use super::file::{self, CopyError, OpenError};
use super::shared::{BulkError, SharedBulk, Skipped};
use std::fmt;
use std::path::{Path, PathBuf};

/// Error of an operation on all budgets.
#[derive(Debug)]
pub enum DumpError {
    Open(OpenError),
    Sqlite(PathBuf, rusqlite::Error),
    Copy(PathBuf, CopyError),
    /// The budgets in Redis cannot be read or written.
    Shared(BulkError),
    /// Some budgets could not be read; the other budgets were read.
    Damaged {
        path: PathBuf,
        reason: String,
    },
    /// Some budgets in Redis could not be read. The first value is the servers. The other budgets were read.
    Skipped(String, Skipped),
    /// The input with the lines to load cannot be read.
    Input(std::io::Error),
    /// A line of the input is wrong. The values are the number of the line, the expected content (such as "a budget"),
    /// and the reason why the line is wrong.
    Line(u64, &'static str, String),
    Output(std::io::Error),
    /// The file in which budgets wait on their way to Redis cannot be written or read.
    Spool(std::io::Error),
    /// The copy cannot be written, or a file with its name exists already.
    Target(PathBuf, std::io::Error),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => write!(f, "{error}"),
            Self::Sqlite(path, error) => write!(f, "state file {}: {}", path.display(), file::describe(error)),
            Self::Copy(path, error) => write!(f, "state file {}: {error}", path.display()),
            Self::Damaged { path, reason } => {
                write!(f, "state file {}: it is damaged, and some budgets are missing: {reason}", path.display())
            }
            Self::Shared(error) => write!(f, "{error}"),
            Self::Skipped(servers, skipped) => write!(f, "Redis {servers}: {skipped}"),
            Self::Input(error) => write!(f, "cannot read the input: {error}"),
            Self::Line(number, what, why) => write!(f, "line {number} is not {what}: {why}; nothing was loaded"),
            Self::Output(error) => write!(f, "standard output: {error}"),
            Self::Spool(error) => write!(f, "temporary file in the folder of the state file: {error}"),
            Self::Target(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for DumpError {}

impl From<OpenError> for DumpError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

impl From<BulkError> for DumpError {
    fn from(error: BulkError) -> Self {
        Self::Shared(error)
    }
}

impl DumpError {
    /// Returns the error for what an enumeration of the budgets in Redis has left out, if anything.
    pub fn of_skipped(shared: &SharedBulk, skipped: Skipped) -> Option<Self> {
        (skipped != Skipped::default()).then(|| Self::Skipped(shared.servers(), skipped))
    }

    /// Returns the error for a damaged entry of the journal.
    pub fn damaged_entry(path: &Path, place: &str) -> Self {
        Self::Damaged { path: path.to_owned(), reason: format!("the entry of its journal {place}") }
    }
}
