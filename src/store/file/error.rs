//! Errors of the state file.

use crate::store::schema::{self, SchemaError};
use std::fmt;
use std::path::{Path, PathBuf};

/// Error of opening the state file.
#[derive(Debug)]
pub enum OpenError {
    /// Another Weir process is using the file.
    InUse(PathBuf),
    Io(PathBuf, std::io::Error),
    /// The file is the database of another program.
    Foreign(PathBuf),
    /// The database is empty, and was opened only for reading.
    Empty(PathBuf),
    /// A newer version of Weir has written the file.
    Newer {
        path: PathBuf,
        version: i64,
    },
    /// An older version of Weir has written the file, and this operation does not migrate it.
    Older {
        path: PathBuf,
        version: i64,
    },
    Sqlite(PathBuf, rusqlite::Error),
    Thread(std::io::Error),
    /// The secret for budgets that nodes share cannot be read; the reason names the file.
    Secret(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "state file {}: another Weir is using it", path.display()),
            Self::Io(path, error) => write!(f, "state file {}: {error}", path.display()),
            Self::Empty(path) => write!(f, "state file {}: it is empty", path.display()),
            Self::Foreign(path) => write!(f, "state file {}: it is not Weir's", path.display()),
            Self::Newer { path, version } => write!(
                f,
                "state file {}: it has version {version}, made by a newer Weir; this one knows up to {}",
                path.display(),
                schema::VERSION
            ),
            Self::Older { path, version } => write!(
                f,
                "state file {}: it has version {version}, made by an older Weir; started once, this one brings it up to date",
                path.display()
            ),
            Self::Sqlite(path, error) => write!(f, "state file {}: {}", path.display(), describe(error)),
            Self::Thread(error) => write!(f, "cannot start a thread for the state: {error}"),
            Self::Secret(why) => write!(f, "secret-file of [state]: {why}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Error of copying the state file.
#[derive(Debug)]
pub enum CopyError {
    Sqlite(rusqlite::Error),
    /// The journal cannot be read.
    Journal(std::io::Error),
    /// A Weir process folded the journal during each attempt.
    Busy,
}

impl From<rusqlite::Error> for CopyError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<std::io::Error> for CopyError {
    fn from(error: std::io::Error) -> Self {
        Self::Journal(error)
    }
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => f.write_str(&describe(error)),
            Self::Journal(error) => write!(f, "its journal: {error}"),
            Self::Busy => f.write_str("it changes too fast to be copied; try again"),
        }
    }
}

impl OpenError {
    pub fn of(path: &Path, unfit: SchemaError) -> Self {
        let path = path.to_owned();
        match unfit {
            SchemaError::Foreign => Self::Foreign(path),
            SchemaError::Newer(version) => Self::Newer { path, version },
            SchemaError::Sqlite(error) => Self::Sqlite(path, error),
        }
    }
}

/// Advice to the administrator, for errors of a damaged file.
pub const ADVICE: &str =
    "to make it anew: save what can be read with `weir state dump`, stop Weir, move the file away with its -wal";

/// Returns SQLite's message. If the file is damaged, adds advice to the administrator.
pub fn describe(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => {
            format!("{error}; {ADVICE}")
        }
        _ => error.to_string(),
    }
}

/// Returns the message of an error of the journal.
pub fn describe_journal(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::StorageFull => "the journal: the disk is full".to_owned(),
        _ => format!("the journal: {error}"),
    }
}

/// Returns whether the error means that a page of the file is damaged. Other pages may be intact.
pub fn is_page_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt)
}
