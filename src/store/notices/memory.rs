//! Changes of notices and episodes that are not in the state file yet.

use super::row::{EpisodeRow, NoticeKey, NoticeRow};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time after which the writer is asked again to write changes: it ignores jobs while the state file cannot be written.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Maximum changes of each table that wait to be written. While the state file cannot be written, further changes are
/// only in the memory of their owner: after a restart, Weir then sends a notice again, or does not send it.
const MAX_PENDING: usize = 20_000;

/// Maximum changes of each table in one commit: other commits wait for it.
const MAX_BATCH: usize = 500;

/// Changes in memory.
pub struct NoticeMemory {
    /// The lock is confined to this file. It is never held across `.await` or an access to the disk.
    inner: Mutex<Inner>,
    /// Number of the last change that is in the file, together with all changes before it.
    written: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    /// New rows, and `None` for rows to delete.
    notices: BTreeMap<NoticeKey, Change<NoticeRow>>,
    episodes: BTreeMap<String, Change<EpisodeRow>>,
    /// Number of the last change.
    last: u64,
    asked: Option<Instant>,
}

struct Change<R> {
    row: Option<R>,
    /// True if the file certainly has no row of this name: a deletion then leaves nothing to write.
    is_new: bool,
}

/// Changes that the writer writes in one transaction.
pub struct Batch {
    pub notices: Vec<(NoticeKey, Option<NoticeRow>)>,
    pub episodes: Vec<(String, Option<EpisodeRow>)>,
    /// Number of the last change that this batch includes, together with all changes before it; `None` if the batch
    /// does not have all changes.
    last: Option<u64>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.episodes.is_empty()
    }
}

impl Default for NoticeMemory {
    fn default() -> Self {
        Self { inner: Mutex::default(), written: watch::Sender::new(0) }
    }
}

impl NoticeMemory {
    /// Adds rows of notices. Each name is added only once. Returns the number of the change.
    pub fn add(&self, rows: impl IntoIterator<Item = NoticeRow>) -> u64 {
        let mut inner = self.lock();
        for row in rows {
            let change = Change { row: Some(row.clone()), is_new: true };
            put(&mut inner.notices, row.key, change);
        }
        inner.next()
    }

    /// Deletes the row of a notice.
    pub fn remove(&self, key: &NoticeKey) {
        let mut inner = self.lock();
        match inner.notices.get(key) {
            Some(Change { row: Some(_), is_new: true }) => drop(inner.notices.remove(key)),
            _ => put(&mut inner.notices, key.clone(), Change { row: None, is_new: false }),
        }
        inner.next();
    }

    /// Adds or replaces an episode.
    pub fn set_episode(&self, row: EpisodeRow) {
        let mut inner = self.lock();
        put(&mut inner.episodes, row.name.clone(), Change { row: Some(row), is_new: false });
        inner.next();
    }

    pub fn remove_episode(&self, name: &str) {
        let mut inner = self.lock();
        put(&mut inner.episodes, name.to_owned(), Change { row: None, is_new: false });
        inner.next();
    }

    /// Waits until the change of this number is in the file, together with all changes before it.
    pub async fn written(&self, change: u64) {
        // This fails only if the sender is dropped, and `self` owns the sender.
        let _ = self.written.subscribe().wait_for(|written| *written >= change).await;
    }

    /// Returns whether the writer has to be asked again to write changes.
    pub fn is_due(&self) -> bool {
        let mut inner = self.lock();
        let is_due = inner.is_pending() && inner.asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN_AFTER);
        if is_due {
            inner.asked = Some(Instant::now());
        }
        is_due
    }

    /// Returns whether any change waits to be written.
    pub fn is_pending(&self) -> bool {
        self.lock().is_pending()
    }

    /// Takes changes to write. The caller must then call [`NoticeMemory::end_batch`].
    pub fn take(&self) -> Batch {
        let mut inner = self.lock();
        let notices = take(&mut inner.notices);
        let episodes = take(&mut inner.episodes);
        let last = Some(inner.last).filter(|_| !inner.is_pending());
        Batch { notices, episodes, last }
    }

    /// Ends the writing of a batch. If the batch is not in the file, its changes are written later, unless there are
    /// newer changes of the same rows.
    pub fn end_batch(&self, batch: Batch, is_written: bool) {
        let mut inner = self.lock();
        if is_written {
            inner.asked = None;
            if let Some(last) = batch.last {
                self.written.send_replace(last);
            }
            return;
        }
        inner.asked = Some(Instant::now());
        put_back(&mut inner.notices, batch.notices);
        put_back(&mut inner.episodes, batch.episodes);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn is_pending(&self) -> bool {
        !self.notices.is_empty() || !self.episodes.is_empty()
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn put<K: Ord, R>(changes: &mut BTreeMap<K, Change<R>>, key: K, change: Change<R>) {
    if changes.len() < MAX_PENDING || changes.contains_key(&key) {
        changes.insert(key, change);
    }
}

fn take<K: Ord, R>(changes: &mut BTreeMap<K, Change<R>>) -> Vec<(K, Option<R>)> {
    let count = changes.len().min(MAX_BATCH);
    (0..count).map_while(|_| changes.pop_first()).map(|(key, change)| (key, change.row)).collect()
}

fn put_back<K: Ord, R>(changes: &mut BTreeMap<K, Change<R>>, batch: Vec<(K, Option<R>)>) {
    for (key, row) in batch {
        // The transaction has perhaps been committed although its outcome is an error.
        changes.entry(key).or_insert(Change { row, is_new: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn row(id: &str) -> NoticeRow {
        let key = NoticeKey { id: id.to_owned(), target: "webhook".to_owned() };
        NoticeRow { key, notify: "n".to_owned(), at: Timestamp::from_micros(0), body: "{}".to_owned() }
    }

    #[test]
    fn a_notice_that_is_delivered_before_it_is_written_leaves_nothing_to_write() {
        let memory = NoticeMemory::default();
        memory.add([row("a")]);
        memory.remove(&row("a").key);
        assert!(memory.take().is_empty());
    }

    #[test]
    fn a_batch_that_fails_is_written_later_unless_its_rows_have_changed() {
        let memory = NoticeMemory::default();
        memory.add([row("a"), row("b")]);
        let batch = memory.take();
        assert_eq!(batch.notices.len(), 2);
        memory.remove(&row("a").key);
        memory.end_batch(batch, false);
        let batch = memory.take();
        let rows: Vec<bool> = batch.notices.iter().map(|(_, row)| row.is_some()).collect();
        assert_eq!(rows, [false, true], "the file perhaps has the first row, so it is deleted");
    }

    #[tokio::test]
    async fn a_change_is_written_when_the_batch_with_it_is_in_the_file() {
        let memory = NoticeMemory::default();
        let change = memory.add([row("a")]);
        let batch = memory.take();
        let waits = memory.written(change);
        tokio::pin!(waits);
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut waits).await.is_err());
        memory.end_batch(batch, true);
        waits.await;
    }
}
