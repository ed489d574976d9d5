//! Queue ids and marks that are not in the state file yet.

use super::row::{QueueIdKey, SentMessage};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time after which the writer is asked again to write: it ignores jobs while the state file cannot be written.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Maximum messages, and maximum marks, that wait to be written: some MB. Further messages are dropped, and their
/// outcomes match no user.
const MAX_PENDING: usize = 20_000;

/// Maximum rows of each kind in one commit: other commits wait for it.
const MAX_BATCH: usize = 500;

/// Messages and marks in memory.
pub struct QueueIdMemory {
    /// The lock is confined to this file. It is never held across `.await` or an access to the disk.
    inner: Mutex<Inner>,
    /// Number of the last addition that is in the file, together with all before it.
    written: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    messages: VecDeque<SentMessage>,
    marks: VecDeque<(QueueIdKey, u64)>,
    /// Number of the last addition.
    last: u64,
    asked: Option<Instant>,
}

/// Additions that the writer writes in one transaction.
pub struct Batch {
    pub messages: Vec<SentMessage>,
    pub marks: Vec<(QueueIdKey, u64)>,
    /// Number of the last addition, if the batch has all that were waiting.
    last: Option<u64>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.marks.is_empty()
    }
}

impl Default for QueueIdMemory {
    fn default() -> Self {
        Self { inner: Mutex::default(), written: watch::Sender::new(0) }
    }
}

impl QueueIdMemory {
    /// Adds a message. Returns false if it was dropped.
    pub fn add(&self, message: SentMessage) -> bool {
        let mut inner = self.lock();
        let has_room = inner.messages.len() < MAX_PENDING;
        if has_room {
            inner.last += 1;
            inner.messages.push_back(message);
        }
        has_room
    }

    /// Adds marks of counted outcomes. Returns false, and adds none, if there is no room.
    pub fn mark(&self, marks: Vec<(QueueIdKey, u64)>) -> bool {
        let mut inner = self.lock();
        let has_room = inner.marks.len() + marks.len() <= MAX_PENDING;
        if has_room && !marks.is_empty() {
            inner.last += 1;
            inner.marks.extend(marks);
        }
        has_room
    }

    /// Withdraws marks that could not be written in time, so that their outcomes can be given again. A mark that the
    /// writer has taken for a batch at this moment stays.
    pub fn withdraw(&self, marks: &BTreeSet<(QueueIdKey, u64)>) {
        self.lock().marks.retain(|mark| !marks.contains(mark));
    }

    /// Waits until everything that has been added is in the file.
    pub async fn written(&self) {
        let last = self.lock().last;
        // This fails only if the sender is dropped, and `self` owns the sender.
        let _ = self.written.subscribe().wait_for(|written| *written >= last).await;
    }

    /// Returns whether the writer has to be asked to write.
    pub fn is_due(&self) -> bool {
        let mut inner = self.lock();
        let is_due = inner.is_pending() && inner.asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN_AFTER);
        if is_due {
            inner.asked = Some(Instant::now());
        }
        is_due
    }

    /// Returns whether anything waits to be written.
    pub fn is_pending(&self) -> bool {
        self.lock().is_pending()
    }

    /// Takes additions to write. The caller must then call [`QueueIdMemory::end_batch`].
    pub fn take(&self) -> Batch {
        let mut inner = self.lock();
        let (messages, marks) = (inner.messages.len().min(MAX_BATCH), inner.marks.len().min(MAX_BATCH));
        let messages = inner.messages.drain(..messages).collect();
        // A mark is written after its message, which is in the file when an outcome of it is counted.
        let marks = inner.marks.drain(..marks).collect();
        let last = Some(inner.last).filter(|_| !inner.is_pending());
        Batch { messages, marks, last }
    }

    /// Ends the writing of a batch. If the batch is not in the file, it is written later.
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
        batch.messages.into_iter().rev().for_each(|message| inner.messages.push_front(message));
        batch.marks.into_iter().rev().for_each(|mark| inner.marks.push_front(mark));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn is_pending(&self) -> bool {
        !self.messages.is_empty() || !self.marks.is_empty()
    }
}
