//! What waits for the writer: changes to be committed together, who waits for them, and errands.

use super::entry::{Entry, Seen};
use super::place::Place;
use crate::policy::{Budget, Change};
use crate::time::Timestamp;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The lock guards everything here. It is held to append the changes of a decision, and by the writer to take them; never over an
/// `.await` or a write to disk. Whoever holds a shard of the memory may take it, not the other way round.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    work: Condvar,
}

#[derive(Default)]
struct Inner {
    batch: Batch,
    errands: Vec<Errand>,
    /// Counts the times that changes were lost before they came into the file. What was written of a filter before that is no base
    /// for what is learnt later.
    epoch: u32,
    asleep: bool,
    stopping: bool,
    /// The writer has ended: nobody is left to wait for.
    ended: bool,
}

/// Changes to commit together, and who waits for them.
#[derive(Default)]
pub struct Batch {
    pub entry: Entry,
    pub waiting: Vec<oneshot::Sender<()>>,
}

/// What the writer does beside commits.
pub enum Errand {
    /// Removes budgets that have not changed since.
    Forget(Vec<(Place, Timestamp)>),
    /// Brings the last pages of the write-ahead log home, so that it can begin anew.
    Checkpoint,
    /// Notes that these limits are in force now, as of then.
    Note(Vec<String>, Timestamp),
    /// Forgets that there were these limits.
    Drop(Vec<String>),
}

/// What the writer is to do next.
pub struct Work {
    pub batch: Batch,
    /// Another one than before: changes were lost meanwhile.
    pub epoch: u32,
    pub errands: Vec<Errand>,
    /// After this there is nothing more.
    pub stop: bool,
}

/// Changes that may wait: octets. A writer that lets more gather has been stuck for long, and memory must not fill.
const MAX_WAITING: usize = 16 << 20;

/// Appends the changes of one decision.
pub struct Appending<'a> {
    queue: &'a Queue,
    inner: MutexGuard<'a, Inner>,
}

impl Queue {
    /// Begins to append a decision's changes; `None` if there is no writer.
    pub fn append(&self) -> Option<Appending<'_>> {
        let inner = self.lock();
        (!inner.ended).then_some(Appending { queue: self, inner })
    }

    /// The epoch in which a filter that is read now counts as written.
    pub fn epoch(&self) -> u32 {
        self.lock().epoch
    }

    /// Gives the writer an errand.
    pub fn send(&self, errand: Errand) {
        let inner = &mut *self.lock();
        inner.errands.push(errand);
        self.wake(inner);
    }

    /// Waits for changes and errands, for at most `patience`.
    pub fn take(&self, patience: Duration) -> Work {
        let idle = |inner: &mut Inner| {
            let idle = inner.batch.entry.records() == 0 && inner.errands.is_empty() && !inner.stopping;
            inner.asleep = idle;
            idle
        };
        let waited = self.work.wait_timeout_while(self.lock(), patience, idle);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.asleep = false;
        Work {
            batch: std::mem::take(&mut inner.batch),
            epoch: inner.epoch,
            errands: std::mem::take(&mut inner.errands),
            stop: inner.stopping,
        }
    }

    /// What was taken could not be written, and what came since builds on it: nobody waits for it any more.
    pub fn lose(&self) {
        self.lock().lose();
    }

    /// The writer has ended: whoever waits for it, or would, goes on.
    pub fn end(&self) {
        let inner = &mut *self.lock();
        inner.ended = true;
        inner.lose();
    }

    /// Has the writer end after it has committed everything.
    pub fn stop(&self) {
        let inner = &mut *self.lock();
        inner.stopping = true;
        self.wake(inner);
    }

    fn wake(&self, inner: &mut Inner) {
        // Waking costs a system call.
        if std::mem::take(&mut inner.asleep) {
            self.work.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn lose(&mut self) {
        self.batch = Batch::default();
        self.epoch += 1;
    }
}

impl Appending<'_> {
    /// Appends a budget. `written` is the epoch in which its filter was last written, or read.
    pub fn push(&mut self, place: &Place, budget: &Budget, change: &Change, written: &mut u32) {
        let seen = match change.turned || *written != self.inner.epoch {
            true => Seen::Whole,
            false => Seen::Learnt(&change.learnt),
        };
        *written = self.inner.epoch;
        self.inner.batch.entry.push(&place.key, budget, seen);
    }

    /// Wakes the writer. The receiver hears when all that was appended is durable, or never will be.
    pub fn finish(mut self, wait: bool) -> Option<oneshot::Receiver<()>> {
        if self.inner.batch.entry.octets() > MAX_WAITING {
            self.inner.lose();
            return None;
        }
        let commit = wait.then(|| {
            let (committed, commit) = oneshot::channel();
            self.inner.batch.waiting.push(committed);
            commit
        });
        self.queue.wake(&mut self.inner);
        commit
    }
}
