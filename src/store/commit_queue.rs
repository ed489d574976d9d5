//! Queue of the journal writer: changes to be committed together, and the transactions that wait for this commit. A
//! transaction is one decision on budgets, with its charges or refunds; many transactions share one commit.

use super::file::JournalAppender;
use super::hashed_key::HashedKeyRef;
use super::journal::{Entry, Seen};
use crate::policy::budgets::{Budget, Change};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// Queue of the writer. One lock guards the whole queue. A transaction holds the lock while it appends its
/// changes. The writer holds the lock while it takes the changes. The watcher thread holds the lock while it looks for
/// transactions that have waited too long. The lock is never held during an `.await` or a write to disk. A thread that
/// holds the lock of a cache shard is allowed to take the queue's lock. A thread that holds the queue's lock must not
/// take the lock of a shard.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    work: Notify,
    /// Wakes the watcher thread, which ends the waiting of transactions if the writer hangs.
    stall_watch: Condvar,
    /// Octets of the changes in the queue; can be read without the lock.
    octets: AtomicUsize,
    /// Wakes the transactions that wait for room in the queue.
    room: Notify,
}

/// Handle with which a transaction waits until its changes are durable.
#[derive(Debug)]
pub struct Commit(Option<oneshot::Receiver<()>>);

impl Commit {
    /// Commit of changes that will not become durable now: the writer has ended, or a changed budget must not be
    /// written.
    pub const NEVER: Self = Self(None);

    pub fn is_never(&self) -> bool {
        self.0.is_none()
    }

    /// Waits for the commit. Returns true if the changes are durable. Returns false if they are not durable, and
    /// perhaps never will be.
    pub async fn done(self) -> bool {
        match self.0 {
            Some(committed) => committed.await.is_ok(),
            None => false,
        }
    }

    /// Waits like [`Commit::done`], in a thread that is not of the async runtime.
    pub fn wait(self) -> bool {
        self.0.is_some_and(|committed| committed.blocking_recv().is_ok())
    }
}

#[derive(Default)]
struct Inner {
    /// Changes that the next commit writes.
    entry: Entry,
    /// Transactions that made changes in `entry` and still wait for the commit.
    waiting: Waiting,
    /// Transactions that wait for the commit of the entry that the writer took last.
    taken: Waiting,
    /// True from the time when the writer takes changes until it has committed or discarded them.
    is_committing: bool,
    /// The journal, from the time when it was opened until the writer takes it.
    appender: Option<JournalAppender>,
    /// Number of times that changes were lost before they were written to the file. If a budget's filter was last
    /// written in an earlier epoch, the file may lack some of the filter's values. The whole filter must then be
    /// written, not only the newly learnt values.
    epoch: u64,
    /// Commits since the last one for which the writer let ready sessions run, and the number of such commits in a row
    /// for which no session had further changes.
    commits_since_gathering: u32,
    vain_gatherings: u32,
    /// True if the writer waits for work.
    is_writer_asleep: bool,
    /// True if the watcher thread sleeps, because no transaction waits.
    is_watcher_asleep: bool,
    stopping: bool,
    /// The writer has ended: transactions must not wait for it.
    ended: bool,
}

/// Those who wait for the same commit. If this value is dropped, they are told that there will be no commit.
#[derive(Default)]
pub struct Waiting {
    /// Time when the first of these transactions began to wait.
    since: Option<Instant>,
    /// For each transaction, the time when it began, and the channel that reports the commit to it.
    transactions: Vec<(Instant, oneshot::Sender<()>)>,
    /// Channel that reports the commit to the database writer, if it waits, too.
    database_writer: Option<oneshot::Sender<()>>,
}

/// Work that the writer has taken from the queue.
pub struct Work {
    pub entry: Entry,
    /// Epoch of the queue. The epoch has grown if changes were lost since work was last taken.
    pub epoch: u64,
    /// The journal, if it was opened since work was last taken.
    pub appender: Option<JournalAppender>,
    /// True if no new work arrived during the whole time that the writer was willing to wait.
    pub idle: bool,
    /// True if the writer must end after this work.
    pub stop: bool,
}

/// Marks a filter that was never written to the file: no queue reaches this epoch.
pub const NEVER_WRITTEN: u64 = u64::MAX;

/// Maximum octets of changes in the queue. If the queue has more, new transactions wait for room.
const MAX_PENDING_OCTETS: usize = 16 << 20;
/// Octets of changes in the queue above which all these changes are discarded. In this case the writer has hung for a
/// long time, and the queue must not fill the memory.
const MAX_STUCK_OCTETS: usize = 4 * MAX_PENDING_OCTETS;

/// Number of gatherings in vain, one after the other, after which the writer lets ready sessions run only before every
/// [`GATHER_EVERY`]th commit. Letting others run wakes another thread of the runtime, which costs more than a small
/// commit, and under few sessions there are no others.
const MAX_VAIN_GATHERINGS: u32 = 8;
const GATHER_EVERY: u32 = 16;

/// Holds the queue's lock while the changes of one transaction are appended.
pub struct Appending<'a> {
    queue: &'a Queue,
    inner: MutexGuard<'a, Inner>,
}

impl Queue {
    /// Begins to append a transaction's changes. `None` if the writer has ended.
    pub fn append(&self) -> Option<Appending<'_>> {
        let inner = self.lock();
        (!inner.ended).then_some(Appending { queue: self, inner })
    }

    /// Returns whether the queue has room for more changes.
    pub fn has_room(&self) -> bool {
        self.octets.load(Ordering::Relaxed) <= MAX_PENDING_OCTETS
    }

    /// Waits until the queue has room for more changes.
    pub async fn room(&self) {
        while !self.has_room() {
            let room = self.room.notified();
            if !self.has_room() {
                room.await;
            }
        }
    }

    /// Returns the commit of all changes that are not in the journal yet; `None` if there are none. The database writer
    /// alone waits for it.
    pub fn pending(&self) -> Option<Commit> {
        let inner = &mut *self.lock();
        let waiting = match inner.entry.records() {
            0 if inner.is_committing => &mut inner.taken,
            0 => return None,
            _ => &mut inner.waiting,
        };
        let (answer, commit) = oneshot::channel();
        waiting.database_writer = Some(answer);
        Some(Commit(Some(commit)))
    }

    /// Records that changes in memory are not in the file.
    pub fn begin_epoch(&self) {
        self.lock().epoch += 1;
    }

    /// Gives the opened journal to the writer.
    pub fn hand_over(&self, appender: JournalAppender) {
        let mut inner = self.lock();
        inner.appender = Some(appender);
        self.wake(inner);
    }

    /// Returns the present epoch. A filter that is read from the file now counts as written in this epoch.
    pub fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Waits for changes, for at most `patience`, and takes them. `empty` becomes the entry for later changes.
    pub async fn take(&self, patience: Duration, empty: Entry) -> Work {
        let idle = timeout(patience, self.due()).await.is_err();
        let before = self.lock().before_gathering();
        if let Some(before) = before {
            // First let the sessions run that are ready, so that one commit contains the changes of all of them. They
            // then do not hang with this thread if the commit hangs.
            tokio::task::yield_now().await;
            self.lock().gathered(before);
        }
        let inner = &mut *self.lock();
        inner.is_writer_asleep = false;
        let transactions = Vec::with_capacity(inner.waiting.transactions.len());
        inner.taken = std::mem::replace(&mut inner.waiting, Waiting { transactions, ..Waiting::default() });
        inner.is_committing = inner.entry.records() > 0;
        self.release_room();
        Work {
            idle,
            entry: std::mem::replace(&mut inner.entry, empty),
            epoch: inner.epoch,
            appender: inner.appender.take(),
            stop: inner.stopping,
        }
    }

    /// Waits until there is work for the writer.
    async fn due(&self) {
        while !self.is_due() {
            self.work.notified().await;
        }
    }

    /// Returns whether there is work for the writer. If not, the next work wakes the writer.
    fn is_due(&self) -> bool {
        let mut inner = self.lock();
        inner.is_writer_asleep = !inner.is_due();
        !inner.is_writer_asleep
    }

    /// Tells the transactions of the entry that was taken last that their changes are durable. Calls `observe` for each
    /// transaction that still waits, with the time since the transaction began.
    pub fn complete(&self, observe: impl FnMut(Duration)) {
        let taken = self.lock().end_commit();
        taken.observe(observe).for_each(|answer| _ = answer.send(()));
    }

    /// Waits until a transaction has waited for `patience`, because a commit hangs. Then returns all transactions that
    /// wait. `None` if the writer has ended.
    pub fn wait_for_stall(&self, patience: Duration) -> Option<[Waiting; 2]> {
        let mut inner = self.lock();
        loop {
            if inner.ended {
                return None;
            }
            let oldest = inner.taken.since.or(inner.waiting.since);
            inner.is_watcher_asleep = oldest.is_none();
            let Some(since) = oldest else {
                inner = self.stall_watch.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Some([inner.taken.take_transactions(), inner.waiting.take_transactions()]);
            }
            inner = self.stall_watch.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Discards the changes in the queue. This is necessary if the entry that was taken last could not be written,
    /// because later changes may contain only the values learnt since that entry. Tells all waiting transactions that
    /// there will be no commit.
    pub fn discard(&self) {
        let inner = &mut *self.lock();
        inner.end_commit();
        inner.discard();
        self.release_room();
    }

    /// Records that the writer has ended. All transactions that wait, now or later, are told that there will be no
    /// commit.
    pub fn close(&self) {
        let inner = &mut *self.lock();
        inner.ended = true;
        inner.end_commit();
        // The changes are not lost: they are still in memory, and the database writer folds them before it ends.
        (inner.entry, inner.waiting) = (Entry::default(), Waiting::default());
        self.release_room();
        self.stall_watch.notify_one();
    }

    /// Makes the writer end after it has committed all changes.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopping = true;
        self.wake(inner);
    }

    fn release_room(&self) {
        if self.octets.swap(0, Ordering::Relaxed) > MAX_PENDING_OCTETS {
            self.room.notify_waiters();
        }
    }

    /// Wakes the writer if it waits for work.
    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let is_asleep = std::mem::take(&mut inner.is_writer_asleep);
        // Release the lock first, because the woken writer takes the lock.
        drop(inner);
        if is_asleep {
            self.work.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Takes the transactions out. The database writer waits on.
    fn take_transactions(&mut self) -> Self {
        Self { since: self.since.take(), transactions: std::mem::take(&mut self.transactions), database_writer: None }
    }

    /// Returns the channels of all that still wait. Calls `observe` for each transaction of them, with
    /// the time since the transaction began.
    fn observe(self, mut observe: impl FnMut(Duration)) -> impl Iterator<Item = oneshot::Sender<()>> {
        let now = Instant::now();
        let waits = self.transactions.into_iter().filter(|(_, answer)| !answer.is_closed());
        let answers = waits.map(move |(began, answer)| {
            observe(now - began);
            answer
        });
        answers.chain(self.database_writer)
    }

    /// Tells the transactions that there will be no commit.
    pub fn cancel(self, observe: impl FnMut(Duration)) {
        self.observe(observe).for_each(drop);
    }
}

impl Inner {
    /// Returns whether there is work for the writer.
    fn is_due(&self) -> bool {
        self.entry.records() > 0 || self.appender.is_some() || self.stopping
    }

    /// Returns the number of waiting transactions if the writer has to let ready sessions run before this commit.
    fn before_gathering(&mut self) -> Option<usize> {
        self.commits_since_gathering += 1;
        let is_due = self.vain_gatherings < MAX_VAIN_GATHERINGS || self.commits_since_gathering >= GATHER_EVERY;
        is_due.then_some(self.waiting.transactions.len())
    }

    /// Records that the ready sessions have run. `before` is the number of transactions that waited before.
    fn gathered(&mut self, before: usize) {
        let is_vain = self.waiting.transactions.len() <= before;
        self.vain_gatherings = if is_vain { self.vain_gatherings.saturating_add(1) } else { 0 };
        self.commits_since_gathering = 0;
    }

    /// Records that the taken changes were committed or discarded. Returns those who wait for that.
    fn end_commit(&mut self) -> Waiting {
        self.is_committing = false;
        std::mem::take(&mut self.taken)
    }

    fn discard(&mut self) {
        self.entry = Entry::default();
        self.waiting = Waiting::default();
        self.epoch += 1;
    }
}

impl Appending<'_> {
    /// Appends the changed state of a budget. `written` is the epoch in which the budget's filter was last written or
    /// read. This function sets `written` to the present epoch.
    pub fn push(&mut self, hashed_key: HashedKeyRef<'_>, budget: &Budget, change: &Change, written: &mut u64) {
        let seen = match change.turned || *written != self.inner.epoch {
            true => Seen::Whole,
            false => Seen::Learnt(&change.learnt),
        };
        *written = self.inner.epoch;
        self.inner.entry.push(hashed_key.key, budget, seen);
    }

    /// Appends a budget that has changed before, with its whole filter.
    pub fn push_whole(&mut self, hashed_key: HashedKeyRef<'_>, budget: &Budget, written: &mut u64) {
        *written = self.inner.epoch;
        self.inner.entry.push(hashed_key.key, budget, Seen::Whole);
    }

    /// Ends the appending and wakes the writer. With the returned [`Commit`] the caller waits until all changes of this
    /// transaction are durable.
    pub fn finish(mut self, began: Instant) -> Commit {
        let octets = self.inner.entry.octets();
        if octets > MAX_STUCK_OCTETS {
            self.inner.discard();
            self.queue.release_room();
            return Commit::NEVER;
        }
        self.queue.octets.store(octets, Ordering::Relaxed);
        let (answer, commit) = oneshot::channel();
        self.inner.waiting.since.get_or_insert_with(Instant::now);
        self.inner.waiting.transactions.push((began, answer));
        if std::mem::take(&mut self.inner.is_watcher_asleep) {
            self.queue.stall_watch.notify_one();
        }
        self.queue.wake(self.inner);
        Commit(Some(commit))
    }
}
