//! The turn to append to the journal. One session, or the journal writer, has the turn while it commits.

use super::file::JournalAppender;
use super::journal::Entry;
use std::time::{Duration, Instant};

/// The turn to append to the journal.
#[derive(Default)]
pub struct AppendTurn {
    /// `None` until the state file is open.
    pub appender: Option<JournalAppender>,
    /// Epoch of the queue that the journal writer has noticed last.
    pub epoch: u64,
    /// Time that the last commit took.
    pub last_commit: Duration,
    /// Time of the last commit, if it failed.
    pub failed_at: Option<Instant>,
    /// Empty entry whose buffer is used again.
    pub spare: Entry,
}

/// Time of a commit after which the disk is perhaps about to hang. Sessions then leave commits to the journal writer,
/// until a commit is faster.
const SLOW: Duration = Duration::from_millis(10);

/// Time after which a commit that failed is tried again.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

impl AppendTurn {
    pub fn new(appender: Option<JournalAppender>) -> Self {
        Self { appender, ..Self::default() }
    }

    /// Returns whether the next commit is expected to succeed within microseconds, if the entry is short.
    pub fn is_fast(&self) -> bool {
        self.appender.is_some() && self.failed_at.is_none() && self.last_commit < SLOW
    }

    pub fn may_retry(&self) -> bool {
        self.failed_at.is_none_or(|at| at.elapsed() >= RETRY_AFTER)
    }
}
