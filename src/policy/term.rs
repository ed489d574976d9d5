//! Term of a grant or a suspension: its period, its author and its reason.

use crate::time::Timestamp;
use std::fmt;
use std::sync::Arc;

/// Period of validity, author and reason of an exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub since: Timestamp,
    pub until: Timestamp,
    pub by: By,
    pub reason: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Limit of this name.
    Limit(Arc<str>),
    /// Administrator, with the name that was given in the command.
    Administrator(Arc<str>),
}

impl By {
    /// Parses the stored form, which is the same as the displayed form.
    pub fn from_stored(text: &str) -> Self {
        match text.strip_prefix(LIMIT) {
            Some(limit) => Self::Limit(limit.into()),
            None => Self::Administrator(text.into()),
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => write!(f, "{LIMIT}{limit}"),
            Self::Administrator(name) => f.write_str(name),
        }
    }
}

/// Prefix that distinguishes a limit's name from an administrator's name, which contains no space.
const LIMIT: &str = "limit ";

impl Term {
    pub fn holds(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Returns whether the term has certainly ended. `doubt` is `None` if the clock is certainly right. Otherwise only
    /// a term that began at `doubt` or later can have certainly ended.
    pub fn has_ended(&self, now: Timestamp, doubt: Option<Timestamp>) -> bool {
        !self.holds(now) && doubt.is_none_or(|doubt| self.since >= doubt)
    }
}
