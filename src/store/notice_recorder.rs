//! Handle that records notices and episodes, and the read of those in the state file.

use super::Store;
use super::core::{COMMIT_TIMEOUT, Core};
use super::database_job::DatabaseJob;
use super::file::{self, File};
use super::notices::{EpisodeRow, NoticeKey, NoticeRow, StoredNotices};
use std::sync::Arc;
use std::time::Duration;

/// Handle that records changes of notices and episodes. No function waits for the state file, except
/// [`NoticeRecorder::is_written`].
#[derive(Clone)]
pub struct NoticeRecorder(Arc<Core>);

impl NoticeRecorder {
    /// Adds rows of notices, with new names. Returns a number for [`NoticeRecorder::is_written`].
    pub fn add(&self, rows: impl IntoIterator<Item = NoticeRow>) -> u64 {
        let change = self.0.notices.add(rows);
        self.write();
        change
    }

    /// Deletes the row of a notice.
    pub fn remove(&self, key: &NoticeKey) {
        self.0.notices.remove(key);
        self.write();
    }

    /// Adds or replaces an episode.
    pub fn set_episode(&self, row: EpisodeRow) {
        self.0.notices.set_episode(row);
        self.write();
    }

    pub fn remove_episode(&self, name: &str) {
        self.0.notices.remove_episode(name);
        self.write();
    }

    /// Waits until the change of this number is in the state file, for at most `timeout`. Returns whether it is.
    pub async fn is_written(&self, change: u64, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.0.notices.written(change)).await.is_ok()
    }

    fn write(&self) {
        self.0.jobs.send(DatabaseJob::WriteNotices);
    }
}

impl Store {
    /// Returns a handle that records notices and episodes.
    pub fn notice_recorder(&self) -> NoticeRecorder {
        NoticeRecorder(self.core.clone())
    }

    /// Reads the notices and episodes in the state file. Returns an error with the reason if the file cannot be read.
    pub async fn stored_notices(&self) -> Result<StoredNotices, String> {
        let read = |file: &File| file.notices().map_err(|error| file::describe(&error));
        self.read_file(&self.core.admin_reads, COMMIT_TIMEOUT, read).await
    }
}
