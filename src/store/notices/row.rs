//! Rows of the tables of notices and episodes.

use crate::time::Timestamp;

/// Name of a row in the table of notices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoticeKey {
    /// ID of the notice.
    pub id: String,
    /// Target of the delivery, such as `webhook` or `mail postmaster@example.org`.
    pub target: String,
}

/// Notice that is to be delivered to one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeRow {
    pub key: NoticeKey,
    /// Name of the notification in the configuration.
    pub notify: String,
    /// Time when the notice was made.
    pub at: Timestamp,
    /// The notice, as JSON.
    pub body: String,
}

/// Open episode of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpisodeRow {
    /// Notification, limit and key of the budget, separated by U+001E.
    pub name: String,
    /// The episode, as JSON.
    pub body: String,
}

impl NoticeRow {
    /// Returns the approximate octets of the row in memory and in the file.
    pub fn octets(&self) -> usize {
        /// Octets of the time and of the row's overhead.
        const OVERHEAD: usize = 64;
        OVERHEAD + self.key.id.len() + self.key.target.len() + self.notify.len() + self.body.len()
    }
}

/// Notices and episodes that the state file has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredNotices {
    pub notices: Vec<NoticeRow>,
    pub episodes: Vec<EpisodeRow>,
}
