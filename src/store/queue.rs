//! What waits for the writer: changes to be committed together, who waits for them, and errands.

use super::hashed_key::{HashedKey, HashedKeyRef};
use super::journal::{Entry, Seen};
use crate::policy::{Budget, Change};
use crate::time::Timestamp;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// The lock guards everything here. It is held to append the changes of a decision, by the writer to take them, and by whoever looks
/// after those that wait; never over an `.await` or a write to disk. Whoever holds a shard of the memory may take it, not the other way
/// round.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes whoever looks after those that wait.
    watch: Condvar,
    /// Octets of the changes that wait: to look at without the lock.
    octets: AtomicUsize,
    /// Wakes whoever waits for room.
    room: Notify,
}

/// When all that an act has changed is durable.
pub struct Commit(Option<oneshot::Receiver<()>>);

impl Commit {
    /// It never will be: nobody is there to write it, or it may not be written.
    pub const NEVER: Self = Self(None);

    /// Waits until it is. False: it is not, and may never be.
    pub async fn done(self) -> bool {
        match self.0 {
            Some(committed) => committed.await.is_ok(),
            None => false,
        }
    }
}

#[derive(Default)]
struct Inner {
    /// Changes to commit together, of how many acts, and those that wait for it.
    entry: Entry,
    acts: usize,
    waiting: Waiting,
    /// Those that wait for what was taken last, and of how many acts that was.
    taken: Waiting,
    acts_taken: usize,
    /// How many had come when that was durable.
    acts_since: usize,
    errands: Vec<Errand>,
    /// Counts the times that changes were lost before they came into the file. What was written of a filter before that is no base
    /// for what is learnt later.
    epoch: u64,
    /// The writer is to look what there is to fold.
    stirred: bool,
    /// The writer sleeps until so many acts wait for it, or for an errand; 0: it is awake.
    wanted: usize,
    /// Whoever looks after those that wait sleeps, as nobody does.
    unwatched: bool,
    stopping: bool,
    /// The writer has ended: nobody is left to wait for.
    ended: bool,
}

/// Acts that wait for one commit. If this is dropped they hear that it will not come.
#[derive(Default)]
pub struct Waiting {
    /// When the first of them came.
    since: Option<Instant>,
    /// When each began.
    acts: Vec<(Instant, oneshot::Sender<()>)>,
}

/// What the writer does beside commits.
pub enum Errand {
    /// Removes budgets that have not changed since.
    Forget(Vec<(HashedKey, Timestamp)>),
    /// Brings the last pages of the write-ahead log home, so that it can begin anew.
    Checkpoint,
    /// Notes that these limits are in force now, as of then.
    Note(Vec<String>, Timestamp),
    /// Forgets that there were these limits.
    Drop(Vec<String>),
    /// Forgets what was done about exceptions before then.
    Prune(Timestamp),
    /// There is something in the book of exceptions.
    PendingExceptions,
}

/// What the writer is to do next.
pub struct Work {
    pub entry: Entry,
    /// Another one than before: changes were lost meanwhile.
    pub epoch: u64,
    pub errands: Vec<Errand>,
    /// Nothing came for a while.
    pub idle: bool,
    /// After this there is nothing more.
    pub stop: bool,
}

/// The epoch of what has never been written: no queue comes to it.
pub const NEVER: u64 = u64::MAX;

/// So many octets of changes may wait before acts have to wait for room; and so many before they are given up, since the writer has
/// been stuck for long, and memory must not fill.
const MAX_WAITING: usize = 16 << 20;
const TOO_MANY: usize = 4 * MAX_WAITING;

/// A commit costs about the same for many acts as for one: where some have come during the last one, the writer waits for so many, but
/// no longer than this, and what a timer is late.
const GATHERED: usize = 16;
const GATHERING: Duration = Duration::from_micros(30);

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

    /// Whether there is room for more changes.
    pub fn has_room(&self) -> bool {
        self.octets.load(Ordering::Relaxed) <= MAX_WAITING
    }

    /// Waits until there is.
    pub async fn room(&self) {
        while !self.has_room() {
            let room = self.room.notified();
            if !self.has_room() {
                room.await;
            }
        }
    }

    /// Has the writer bring everything home that has changed, though it is not in the journal.
    pub fn stir(&self) {
        let mut inner = self.lock();
        inner.epoch += 1;
        inner.stirred = true;
        self.wake(inner);
    }

    /// The epoch in which a filter that is read now counts as written.
    pub fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Gives the writer an errand.
    pub fn send(&self, errand: Errand) {
        let mut inner = self.lock();
        if !inner.ended {
            inner.errands.push(errand);
            self.wake(inner);
        }
    }

    /// Waits for changes and errands, for at most `patience`. The next ones are gathered in `empty`.
    pub fn take(&self, patience: Duration, empty: Entry) -> Work {
        let mut inner = self.lock();
        // What has come during a commit says that the writer is behind, and whoever was answered by that may be back in a moment. Of
        // more than these nobody knows.
        let wanted = match std::mem::take(&mut inner.acts_since) {
            0 => 0,
            acts => GATHERED.min(acts + inner.acts_taken),
        };
        let (inner, idle) = self.sleep(inner, 1, patience);
        let (mut inner, _) = self.sleep(inner, wanted, GATHERING);
        inner.stirred = false;
        inner.acts_taken = std::mem::take(&mut inner.acts);
        let next = Waiting { since: None, acts: Vec::with_capacity(inner.waiting.acts.len()) };
        inner.taken = std::mem::replace(&mut inner.waiting, next);
        self.empty();
        Work {
            idle,
            entry: std::mem::replace(&mut inner.entry, empty),
            epoch: inner.epoch,
            errands: std::mem::take(&mut inner.errands),
            stop: inner.stopping,
        }
    }

    /// Waits until so many acts wait for the writer, or it has something else to do. True: neither came within `patience`.
    fn sleep<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        wanted: usize,
        patience: Duration,
    ) -> (MutexGuard<'a, Inner>, bool) {
        let waits = |inner: &mut Inner| {
            inner.wanted = wanted;
            !inner.is_due()
        };
        let slept = self.work.wait_timeout_while(inner, patience, waits);
        let (mut inner, slept) = slept.unwrap_or_else(PoisonError::into_inner);
        inner.wanted = 0;
        (inner, slept.timed_out())
    }

    /// What was taken is durable. `tell` hears how long it took each act that waits for that.
    pub fn answer(&self, tell: impl FnMut(Duration)) {
        let mut inner = self.lock();
        inner.acts_since = inner.acts;
        let taken = std::mem::take(&mut inner.taken);
        drop(inner);
        taken.tell(tell).for_each(|answer| _ = answer.send(()));
    }

    /// Waits until an act has waited for so long, and returns all that do: commits hang. `None`: there is no writer any more.
    pub fn watch(&self, patience: Duration) -> Option<[Waiting; 2]> {
        let mut inner = self.lock();
        loop {
            if inner.ended {
                return None;
            }
            let oldest = inner.taken.since.or(inner.waiting.since);
            inner.unwatched = oldest.is_none();
            let Some(since) = oldest else {
                inner = self.watch.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Some([std::mem::take(&mut inner.taken), std::mem::take(&mut inner.waiting)]);
            }
            inner = self.watch.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was taken could not be written, and what came since builds on it: nobody waits for it any more.
    pub fn lose(&self) {
        let inner = &mut *self.lock();
        inner.taken = Waiting::default();
        inner.lose();
        self.empty();
    }

    /// The writer has ended: whoever waits for it, or would, goes on.
    pub fn end(&self) {
        let inner = &mut *self.lock();
        inner.ended = true;
        inner.taken = Waiting::default();
        inner.lose();
        self.empty();
        self.watch.notify_one();
    }

    /// Has the writer end after it has committed everything.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopping = true;
        self.wake(inner);
    }

    fn empty(&self) {
        if self.octets.swap(0, Ordering::Relaxed) > MAX_WAITING {
            self.room.notify_waiters();
        }
    }

    /// Wakes the writer, if this is what it sleeps for.
    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let is_asleep = inner.wanted > 0 && inner.is_due();
        if is_asleep {
            inner.wanted = 0;
        }
        // It then wants the lock.
        drop(inner);
        // A system call.
        if is_asleep {
            self.work.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Whoever still waits, and how long each has.
    fn tell(self, mut tell: impl FnMut(Duration)) -> impl Iterator<Item = oneshot::Sender<()>> {
        let now = Instant::now();
        let waits = self.acts.into_iter().filter(|(_, answer)| !answer.is_closed());
        waits.map(move |(began, answer)| {
            tell(now - began);
            answer
        })
    }

    /// They wait in vain, and hear that now.
    pub fn free(self, tell: impl FnMut(Duration)) {
        self.tell(tell).for_each(drop);
    }
}

impl Inner {
    /// Whether there is what the writer sleeps for.
    fn is_due(&self) -> bool {
        self.acts >= self.wanted || !self.errands.is_empty() || self.stirred || self.stopping
    }

    fn lose(&mut self) {
        self.entry = Entry::default();
        self.acts = 0;
        self.waiting = Waiting::default();
        self.epoch += 1;
    }
}

impl Appending<'_> {
    /// Appends a budget. `written` is the epoch in which its filter was last written, or read.
    pub fn push(&mut self, place: HashedKeyRef<'_>, budget: &Budget, change: &Change, written: &mut u64) {
        let seen = match change.turned || *written != self.inner.epoch {
            true => Seen::Whole,
            false => Seen::Learnt(&change.learnt),
        };
        *written = self.inner.epoch;
        self.inner.entry.push(place.key, budget, seen);
    }

    /// Wakes the writer, which has something to commit now. The answer says when all that this act has appended is durable.
    pub fn finish(mut self, began: Instant) -> Commit {
        let octets = self.inner.entry.octets();
        if octets > TOO_MANY {
            self.inner.lose();
            self.queue.empty();
            return Commit::NEVER;
        }
        self.queue.octets.store(octets, Ordering::Relaxed);
        let (answer, commit) = oneshot::channel();
        self.inner.acts += 1;
        self.inner.waiting.since.get_or_insert_with(Instant::now);
        self.inner.waiting.acts.push((began, answer));
        if std::mem::take(&mut self.inner.unwatched) {
            self.queue.watch.notify_one();
        }
        self.queue.wake(self.inner);
        Commit(Some(commit))
    }
}
