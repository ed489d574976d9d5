//! Queue of the writer: changes to be committed together, the transactions that wait for them, and jobs.

use super::hashed_key::{HashedKey, HashedKeyRef};
use super::journal::{Entry, Seen};
use crate::policy::budgets::{Budget, Change};
use crate::time::Timestamp;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Queue of the writer. The lock guards all of it. It is held by a transaction to append its changes, by the writer to
/// take them, and by the watcher; never over an `.await` or a write to disk. The holder of a cache shard may take the
/// lock, not the other way round.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes the watcher, which frees transactions from a writer that hangs.
    stall_watch: Condvar,
    /// Octets of the pending changes, readable without the lock.
    octets: AtomicUsize,
    /// Wakes transactions that wait for room.
    room: Notify,
}

/// Waits until all changes of a transaction are durable.
pub struct Commit(Option<oneshot::Receiver<()>>);

impl Commit {
    /// The changes never become durable: no writer runs, or they must not be written.
    pub const NEVER: Self = Self(None);

    /// Waits for the commit. Returns false if the changes are not durable, and may never be.
    pub async fn done(self) -> bool {
        match self.0 {
            Some(committed) => committed.await.is_ok(),
            None => false,
        }
    }
}

#[derive(Default)]
struct Inner {
    /// Changes to commit together, the number of their transactions, and the transactions that wait.
    entry: Entry,
    transactions: usize,
    waiting: Waiting,
    /// Transactions that wait for the entry taken last, and their number.
    taken: Waiting,
    taken_transactions: usize,
    /// Number of transactions that had come when that entry was durable.
    transactions_since: usize,
    jobs: Vec<WriterJob>,
    /// Counts the times that changes were lost before they reached the file. Values learnt later cannot build on a
    /// filter written in an earlier epoch.
    epoch: u64,
    /// The writer has to look for changed budgets to fold.
    is_catch_up_requested: bool,
    /// Number of waiting transactions that wakes the sleeping writer; a job wakes the writer, too. 0: the writer is
    /// awake.
    wanted_transactions: usize,
    /// The watcher sleeps, because no transaction waits.
    is_watcher_asleep: bool,
    stopping: bool,
    /// The writer has ended: transactions must not wait.
    ended: bool,
}

/// Transactions that wait for one commit. Dropping this tells them that the commit will not come.
#[derive(Default)]
pub struct Waiting {
    /// Time when the first of them came.
    since: Option<Instant>,
    /// Start of each transaction, and its channel.
    transactions: Vec<(Instant, oneshot::Sender<()>)>,
}

/// Work of the writer beside commits.
pub enum WriterJob {
    /// Deletes budgets that have not changed since these times.
    DeleteBudgets(Vec<(HashedKey, Timestamp)>),
    /// Checkpoints the last pages of the write-ahead log, so that the log can be reset.
    Checkpoint,
    /// Records that these limits are in force at this time.
    RecordKinds(Vec<String>, Timestamp),
    /// Deletes the records of these limits.
    DeleteKinds(Vec<String>),
    /// Deletes audit records older than this.
    PruneAudit(Timestamp),
    /// Writes the pending exceptions.
    WriteExceptions,
}

/// Work that the writer has taken.
pub struct Work {
    pub entry: Entry,
    /// Differs from the epoch before if changes were lost meanwhile.
    pub epoch: u64,
    pub jobs: Vec<WriterJob>,
    /// Nothing came for a while.
    pub idle: bool,
    /// The writer must end after this.
    pub stop: bool,
}

/// Epoch of a filter that was never written: no queue reaches it.
pub const NEVER_WRITTEN: u64 = u64::MAX;

/// Octets of pending changes from which transactions wait for room; and octets from which the changes are discarded,
/// because the writer has been stuck for long and memory must not fill.
const MAX_PENDING_OCTETS: usize = 16 << 20;
const MAX_STUCK_OCTETS: usize = 4 * MAX_PENDING_OCTETS;

/// Group commit: a commit costs about the same for many transactions as for one. If some came during the last commit,
/// the writer waits for so many, but no longer than this and the lateness of a timer.
const MAX_GATHERED: usize = 16;
const GATHER_TIME: Duration = Duration::from_micros(30);

/// Appends the changes of one transaction.
pub struct Appending<'a> {
    queue: &'a Queue,
    inner: MutexGuard<'a, Inner>,
}

impl Queue {
    /// Begins to append a transaction's changes; `None` if the writer has ended.
    pub fn append(&self) -> Option<Appending<'_>> {
        let inner = self.lock();
        (!inner.ended).then_some(Appending { queue: self, inner })
    }

    /// Returns whether there is room for more changes.
    pub fn has_room(&self) -> bool {
        self.octets.load(Ordering::Relaxed) <= MAX_PENDING_OCTETS
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        while !self.has_room() {
            let room = self.room.notified();
            if !self.has_room() {
                room.await;
            }
        }
    }

    /// Has the writer fold all changed budgets, whose changes are not in the journal.
    pub fn request_catch_up(&self) {
        let mut inner = self.lock();
        inner.epoch += 1;
        inner.is_catch_up_requested = true;
        self.wake(inner);
    }

    /// Returns the epoch in which a filter read now counts as written.
    pub fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Queues a job for the writer.
    pub fn send_job(&self, job: WriterJob) {
        let mut inner = self.lock();
        if !inner.ended {
            inner.jobs.push(job);
            self.wake(inner);
        }
    }

    /// Waits for changes and jobs, for at most `patience`. Later changes go into `empty`.
    pub fn take(&self, patience: Duration, empty: Entry) -> Work {
        let mut inner = self.lock();
        // Transactions that came during the last commit show that the writer is behind. Wait for as many again as came
        // and as the commit answered, since a session that was answered may ask again in a moment; more cannot be
        // expected.
        let wanted_transactions = match std::mem::take(&mut inner.transactions_since) {
            0 => 0,
            transactions => MAX_GATHERED.min(transactions + inner.taken_transactions),
        };
        let (inner, idle) = self.sleep(inner, 1, patience);
        let (mut inner, _) = self.sleep(inner, wanted_transactions, GATHER_TIME);
        inner.is_catch_up_requested = false;
        inner.taken_transactions = std::mem::take(&mut inner.transactions);
        let next = Waiting { since: None, transactions: Vec::with_capacity(inner.waiting.transactions.len()) };
        inner.taken = std::mem::replace(&mut inner.waiting, next);
        self.release_room();
        Work {
            idle,
            entry: std::mem::replace(&mut inner.entry, empty),
            epoch: inner.epoch,
            jobs: std::mem::take(&mut inner.jobs),
            stop: inner.stopping,
        }
    }

    /// Sleeps until so many transactions wait for the writer, or it has other work. Returns true if neither came within
    /// `patience`.
    fn sleep<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        wanted_transactions: usize,
        patience: Duration,
    ) -> (MutexGuard<'a, Inner>, bool) {
        let waits = |inner: &mut Inner| {
            inner.wanted_transactions = wanted_transactions;
            !inner.is_due()
        };
        let slept = self.work.wait_timeout_while(inner, patience, waits);
        let (mut inner, slept) = slept.unwrap_or_else(PoisonError::into_inner);
        inner.wanted_transactions = 0;
        (inner, slept.timed_out())
    }

    /// Tells the transactions of the taken entry that they are durable. `observe` gets the time that each still waiting
    /// transaction took.
    pub fn complete(&self, observe: impl FnMut(Duration)) {
        let mut inner = self.lock();
        inner.transactions_since = inner.transactions;
        let taken = std::mem::take(&mut inner.taken);
        drop(inner);
        taken.observe(observe).for_each(|answer| _ = answer.send(()));
    }

    /// Waits until a transaction has waited for `patience`, because commits hang, and returns all that wait. `None`:
    /// the writer has ended.
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
                return Some([std::mem::take(&mut inner.taken), std::mem::take(&mut inner.waiting)]);
            }
            inner = self.stall_watch.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Discards the taken entry, which could not be written, and the changes since, which build on it. Frees all that
    /// wait.
    pub fn discard(&self) {
        let inner = &mut *self.lock();
        inner.taken = Waiting::default();
        inner.discard();
        self.release_room();
    }

    /// Frees all that wait, now and later, because the writer has ended.
    pub fn close(&self) {
        let inner = &mut *self.lock();
        inner.ended = true;
        inner.taken = Waiting::default();
        inner.discard();
        self.release_room();
        self.stall_watch.notify_one();
    }

    /// Has the writer end after it has committed all changes.
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

    /// Wakes the writer if it sleeps until this.
    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let is_asleep = inner.wanted_transactions > 0 && inner.is_due();
        if is_asleep {
            inner.wanted_transactions = 0;
        }
        // The woken writer takes the lock.
        drop(inner);
        // Notifying is a system call.
        if is_asleep {
            self.work.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Returns the transactions that still wait, and observes how long each has taken.
    fn observe(self, mut observe: impl FnMut(Duration)) -> impl Iterator<Item = oneshot::Sender<()>> {
        let now = Instant::now();
        let waits = self.transactions.into_iter().filter(|(_, answer)| !answer.is_closed());
        waits.map(move |(began, answer)| {
            observe(now - began);
            answer
        })
    }

    /// Tells the transactions that their commit will not come.
    pub fn cancel(self, observe: impl FnMut(Duration)) {
        self.observe(observe).for_each(drop);
    }
}

impl Inner {
    /// Returns whether the writer has to wake up.
    fn is_due(&self) -> bool {
        self.transactions >= self.wanted_transactions
            || !self.jobs.is_empty()
            || self.is_catch_up_requested
            || self.stopping
    }

    fn discard(&mut self) {
        self.entry = Entry::default();
        self.transactions = 0;
        self.waiting = Waiting::default();
        self.epoch += 1;
    }
}

impl Appending<'_> {
    /// Appends a budget. `written` is the epoch in which its filter was last written or read.
    pub fn push(&mut self, hashed_key: HashedKeyRef<'_>, budget: &Budget, change: &Change, written: &mut u64) {
        let seen = match change.turned || *written != self.inner.epoch {
            true => Seen::Whole,
            false => Seen::Learnt(&change.learnt),
        };
        *written = self.inner.epoch;
        self.inner.entry.push(hashed_key.key, budget, seen);
    }

    /// Wakes the writer. The returned [`Commit`] waits until all changes of this transaction are durable.
    pub fn finish(mut self, began: Instant) -> Commit {
        let octets = self.inner.entry.octets();
        if octets > MAX_STUCK_OCTETS {
            self.inner.discard();
            self.queue.release_room();
            return Commit::NEVER;
        }
        self.queue.octets.store(octets, Ordering::Relaxed);
        let (answer, commit) = oneshot::channel();
        self.inner.transactions += 1;
        self.inner.waiting.since.get_or_insert_with(Instant::now);
        self.inner.waiting.transactions.push((began, answer));
        if std::mem::take(&mut self.inner.is_watcher_asleep) {
            self.queue.stall_watch.notify_one();
        }
        self.queue.wake(self.inner);
        Commit(Some(commit))
    }
}
