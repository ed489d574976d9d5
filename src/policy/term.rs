//! Term of a grant or a suspension: its period, its author and its reason.

use crate::time::{Timestamp, format_duration};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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

/// Time for which an exception lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Length {
    For(Duration),
    UntilReleased,
}

/// Word for [`Length::UntilReleased`] in the configuration and in texts for programs.
pub const UNTIL_RELEASED: &str = "until-released";

impl Length {
    /// Returns the end of an exception that begins now.
    pub fn end(self, now: Timestamp) -> Timestamp {
        match self {
            Self::For(time) => now.after(time).min(Timestamp::END_OF_9999),
            Self::UntilReleased => Timestamp::END_OF_9999,
        }
    }
}

/// Text of the configuration: `1d`, `until-released`.
impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(time) => f.write_str(&format_duration(*time)),
            Self::UntilReleased => f.write_str(UNTIL_RELEASED),
        }
    }
}

impl Term {
    /// Returns the time that is left; `None` if only a command ends the exception.
    pub fn left(&self, now: Timestamp) -> Option<Duration> {
        (self.until < Timestamp::END_OF_9999).then(|| self.until.since(now))
    }

    pub fn holds(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Returns whether the term has certainly ended. `doubt` is `None` if the clock is certainly right. Otherwise only
    /// a term that began at `doubt` or later can have certainly ended.
    pub fn has_ended(&self, now: Timestamp, doubt: Option<Timestamp>) -> bool {
        !self.holds(now) && doubt.is_none_or(|doubt| self.since >= doubt)
    }
}
