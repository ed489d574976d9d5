//! Queue of changes to be committed together, and of the transactions that wait for this commit. A transaction is one
//! decision on budgets, with its charges or refunds; many transactions share one commit.
//!
//! The first session that needs the commit takes the queued changes and appends them itself ([`Queue::take_now`]).
//! Before that, the session lets other sessions run, if this is worth it ([`Queue::gather`]). If another commit runs
//! meanwhile, or if this one would take long, the session leaves it to the journal writer ([`Queue::take`]). A session
//! with a thread of its own also makes short commits that were left while it committed ([`Work::end_and_take_left`]).

use super::append_turn::AppendTurn;
use super::file::JournalAppender;
use super::hashed_key::HashedKeyRef;
use super::journal::{Entry, Seen};
use crate::policy::budgets::{Budget, Change};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// Queue of changes. One lock guards the whole queue. A transaction holds the lock while it appends its changes. A
/// session or the writer holds the lock while it takes the changes. The watcher thread holds the lock while it looks for
/// transactions that have waited too long. The lock is never held during an `.await` or a write to disk. A thread that
/// holds the lock of a cache shard is allowed to take the queue's lock. A thread that holds the queue's lock must not
/// take the lock of a shard.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    /// Wakes the journal writer.
    work: Notify,
    /// Wakes the watcher thread, which ends the waiting of transactions if a commit hangs.
    stall_watch: Condvar,
    /// Octets of the changes in the queue; can be read without the lock.
    octets: AtomicUsize,
    /// True if a session that needs a commit first lets other sessions run.
    gathers: AtomicBool,
    /// Wakes the transactions that wait for room in the queue.
    room: Notify,
}

/// Handle with which a transaction waits until its changes are durable.
#[derive(Debug)]
pub struct Commit {
    /// Number of the entry that contains the changes.
    entry: u64,
    /// `None` if the changes will not become durable now.
    committed: Option<oneshot::Receiver<()>>,
}

impl Commit {
    /// Commit of changes that will not become durable now: the writer has ended, or a changed budget must not be
    /// written.
    pub const NEVER: Self = Self { entry: 0, committed: None };

    pub fn is_never(&self) -> bool {
        self.committed.is_none()
    }

    /// Returns whether the changes are durable: see [`Self::done`]. `None` if the commit has not ended. Must not be
    /// called again after it has returned the outcome.
    pub fn outcome(&mut self) -> Option<bool> {
        match self.committed.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(())) => Some(true),
            Some(Err(TryRecvError::Empty)) => None,
            Some(Err(TryRecvError::Closed)) | None => Some(false),
        }
    }

    /// Waits for the commit. Returns true if the changes are durable. Returns false if they are not durable, and
    /// perhaps never will be.
    pub async fn done(&mut self) -> bool {
        match &mut self.committed {
            Some(committed) => committed.await.is_ok(),
            None => false,
        }
    }

    /// Waits like [`Commit::done`], in a thread in which no task of the async runtime runs.
    pub fn wait(self) -> bool {
        self.committed.is_some_and(|committed| committed.blocking_recv().is_ok())
    }
}

#[derive(Default)]
struct Inner {
    /// Changes that the next commit writes.
    entry: Entry,
    /// Number of entries that were taken before.
    number: u64,
    /// Transactions that made changes in `entry`.
    waiting: Waiting,
    /// Transactions that wait for the commit of the entry that was taken last.
    taken: Waiting,
    /// True while taken changes are being committed. Perhaps none of their transactions waits any more.
    is_committing: bool,
    /// True if no session begins the commit of `entry`: the journal writer makes it, or the session that commits at
    /// present makes it next.
    is_left: bool,
    /// The turn to append; `None` before the writer starts, and while a session or the writer has it.
    turn: Option<AppendTurn>,
    /// The journal, from the time when it was opened until the writer takes it.
    appender: Option<JournalAppender>,
    /// Number of times that changes were lost before they were written to the file. If a budget's filter was last
    /// written in an earlier epoch, the file may lack some of the filter's values. The whole filter must then be
    /// written, not only the newly learnt values.
    epoch: u64,
    /// Number of commits in a row that had few transactions.
    small_commits: u32,
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
    /// Time when the first of them began to wait; `None` if none waits yet.
    since: Option<Instant>,
    /// For each transaction, the channel that reports the commit to it.
    transactions: Vec<oneshot::Sender<()>>,
    /// Channel that reports the commit to the database writer, if it waits, too.
    database_writer: Option<oneshot::Sender<()>>,
}

/// Changes that were taken from the queue, with the turn to append them. If this value is dropped before the commit has
/// ended ([`Work::end`], [`Work::end_and_take_left`]), the changes are discarded.
pub struct Work<'a> {
    queue: &'a Queue,
    pub turn: AppendTurn,
    pub entry: Entry,
    /// Time when the changes were taken.
    pub began: Instant,
    /// Epoch of the queue. The epoch has grown if changes were lost since work was last taken.
    pub epoch: u64,
    /// True if the writer must end after this work.
    pub stop: bool,
    has_ended: bool,
}

/// Marks a filter that was never written to the file: no queue reaches this epoch.
pub const NEVER_WRITTEN: u64 = u64::MAX;

/// Maximum octets of changes in the queue. If the queue has more, new transactions wait for room.
const MAX_PENDING_OCTETS: usize = 16 << 20;
/// Octets of changes in the queue above which all these changes are discarded. In this case a commit has hung for a long
/// time, and the queue must not fill the memory.
const MAX_STUCK_OCTETS: usize = 4 * MAX_PENDING_OCTETS;

/// Maximum octets of an entry whose commit is short.
const SHORT_OCTETS: usize = 256 << 10;

/// Number of transactions from which on a commit is not small.
const SEVERAL: usize = 3;

/// Number of small commits, one after the other, after which a session lets others run only before every
/// [`GATHER_EVERY`]th commit. Under few sessions, letting others run costs more than another commit.
const MAX_SMALL_COMMITS: u32 = 8;
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
        let (entry, waiting) = match inner.entry.records() {
            0 if inner.is_committing => (inner.number - 1, &mut inner.taken),
            0 => return None,
            _ => (inner.number, &mut inner.waiting),
        };
        let (answer, committed) = oneshot::channel();
        waiting.database_writer = Some(answer);
        Some(Commit { entry, committed: Some(committed) })
    }

    /// Gives the turn to append to the first that needs it.
    pub fn give_turn(&self, turn: AppendTurn) {
        let mut inner = self.lock();
        inner.turn = Some(turn);
        self.wake(inner);
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

    /// Lets the sessions run that are ready, so that one commit contains the changes of all of them, if recent commits
    /// show that there are some. Returns whether the changes are durable; `None` if the commit has not ended.
    pub async fn gather(&self, commit: &mut Commit) -> Option<bool> {
        if !self.gathers.load(Ordering::Relaxed) {
            return commit.outcome();
        }
        // A task that only yields can hang with its thread, if another session's commit hangs there. It must therefore
        // also wait for the commit, so that the watcher thread can wake it.
        tokio::select! {
            biased;
            is_durable = commit.done() => Some(is_durable),
            () = tokio::task::yield_now() => None,
        }
    }

    /// Takes the changes for a session that waits for this commit, if no other commit runs, and if this one is short.
    /// Otherwise leaves the changes. Takes nothing if the changes of this commit were taken before. `is_allowed` is false
    /// if the journal writer has to commit.
    pub fn take_now(&self, commit: &Commit, is_allowed: bool) -> Option<Work<'_>> {
        let mut inner = self.lock();
        if inner.number != commit.entry || inner.entry.records() == 0 {
            return None;
        }
        if is_allowed && !inner.is_left && inner.is_commit_short() {
            return self.take_work(&mut inner);
        }
        inner.waiting.since.get_or_insert_with(Instant::now);
        self.watch(&mut inner);
        self.leave(inner);
        None
    }

    /// Leaves the queued changes to the journal writer. No session begins their commit; only a session that commits at
    /// present can take them next.
    pub fn leave_to_writer(&self) {
        self.leave(self.lock());
    }

    fn leave(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.is_left = inner.entry.records() > 0;
        self.wake(inner);
    }

    /// Waits for changes that are left to the journal writer, for at most `patience`, and takes all changes. Returns
    /// whether none were left to it during that time, although sessions have perhaps committed. The work is `None` if a
    /// session commits at present.
    pub async fn take(&self, patience: Duration) -> (bool, Option<Work<'_>>) {
        let is_idle = timeout(patience, self.due()).await.is_err();
        let mut inner = self.lock();
        inner.is_writer_asleep = false;
        (is_idle, self.take_work(&mut inner))
    }

    fn take_work(&self, inner: &mut Inner) -> Option<Work<'_>> {
        let mut turn = inner.turn.take()?;
        turn.appender = inner.appender.take().or(turn.appender);
        inner.is_left = false;
        let began = Instant::now();
        let transactions = Vec::with_capacity(inner.waiting.transactions.len());
        inner.taken = std::mem::replace(&mut inner.waiting, Waiting { transactions, ..Waiting::default() });
        if !inner.taken.transactions.is_empty() {
            inner.taken.since.get_or_insert(began);
            self.watch(inner);
        }
        let is_small = inner.taken.transactions.len() < SEVERAL;
        inner.small_commits = if is_small { inner.small_commits.wrapping_add(1) } else { 0 };
        let gathers = inner.small_commits < MAX_SMALL_COMMITS || inner.small_commits.is_multiple_of(GATHER_EVERY);
        self.gathers.store(gathers, Ordering::Relaxed);
        let entry = std::mem::replace(&mut inner.entry, std::mem::take(&mut turn.spare));
        inner.is_committing = entry.records() > 0;
        inner.number += u64::from(inner.is_committing);
        self.release_room();
        Some(Work { queue: self, turn, entry, began, epoch: inner.epoch, stop: inner.stopping, has_ended: false })
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

    /// Makes the watcher thread look after those who wait.
    fn watch(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.is_watcher_asleep) {
            self.stall_watch.notify_one();
        }
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

    /// Records that the writer has ended. All transactions that wait, now or later, are told that there will be no
    /// commit.
    pub fn close(&self) {
        let inner = &mut *self.lock();
        inner.ended = true;
        (inner.turn, inner.taken) = (None, Waiting::default());
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

    /// Wakes the writer if it waits for work, and there is some.
    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let is_asleep = inner.is_due() && std::mem::take(&mut inner.is_writer_asleep);
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

/// Returns whether the commit of this entry takes only microseconds, if the disk does not hang.
fn is_short(entry: &Entry) -> bool {
    entry.octets() <= SHORT_OCTETS
}

impl<'a> Work<'a> {
    /// Returns whether the commit takes only microseconds, if the disk does not hang.
    pub fn is_short(&self) -> bool {
        is_short(&self.entry)
    }

    /// Ends the commit, and tells those who wait for it whether their changes are durable. If they are not, also
    /// discards the changes made meanwhile, because these may contain only the values learnt since then.
    pub fn end(mut self, is_durable: bool) {
        self.give_back(is_durable, false);
    }

    /// Ends a commit that has succeeded, and takes the changes that were left meanwhile, if their commit is short.
    pub fn end_and_take_left(mut self) -> Option<Self> {
        self.give_back(true, true)
    }

    /// Gives the turn back to the queue, unless `may_take` is true and changes were left whose commit is short. Returns
    /// these changes with the turn.
    fn give_back(&mut self, is_durable: bool, may_take: bool) -> Option<Self> {
        self.has_ended = true;
        let (mut turn, mut spare) = (std::mem::take(&mut self.turn), std::mem::take(&mut self.entry));
        spare.clear();
        turn.spare = spare;
        let mut inner = self.queue.lock();
        let taken = std::mem::take(&mut inner.taken);
        inner.is_committing = false;
        if !is_durable {
            inner.discard();
            self.queue.release_room();
        }
        inner.turn = Some(turn).filter(|_| !inner.ended);
        let takes = may_take && inner.is_left && inner.is_commit_short();
        let left = if takes { self.queue.take_work(&mut inner) } else { None };
        self.queue.wake(inner);
        if is_durable {
            taken.tell();
        }
        left
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.give_back(false, false);
        }
    }
}

impl Waiting {
    /// Takes the transactions out. The database writer waits on.
    fn take_transactions(&mut self) -> Self {
        Self { since: self.since.take(), transactions: std::mem::take(&mut self.transactions), database_writer: None }
    }

    /// Tells all that the changes are durable. If one no longer waits, that is no error.
    fn tell(self) {
        self.transactions.into_iter().chain(self.database_writer).for_each(|answer| _ = answer.send(()));
    }
}

impl Inner {
    /// Returns whether there is work for the writer.
    fn is_due(&self) -> bool {
        self.turn.is_some() && (self.is_left || self.appender.is_some() || self.stopping)
    }

    /// Returns whether a session may commit, because the commit is short and the journal writer has nothing else to do.
    fn is_commit_short(&self) -> bool {
        let is_fast = |turn: &AppendTurn| turn.is_fast() && turn.epoch == self.epoch;
        let is_free = self.turn.as_ref().is_some_and(is_fast) && self.appender.is_none() && !self.stopping;
        is_free && is_short(&self.entry)
    }

    fn discard(&mut self) {
        self.entry = Entry::default();
        self.waiting = Waiting::default();
        self.is_left = false;
        self.number += 1;
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

    /// Ends the appending. With the returned [`Commit`] the caller waits until all changes of this transaction are
    /// durable. If no other transaction waits for a commit earlier, the caller takes the changes then.
    pub fn finish(mut self) -> Commit {
        let octets = self.inner.entry.octets();
        if octets > MAX_STUCK_OCTETS {
            self.inner.discard();
            self.queue.release_room();
            return Commit::NEVER;
        }
        self.queue.octets.store(octets, Ordering::Relaxed);
        let (answer, committed) = oneshot::channel();
        let commit = Commit { entry: self.inner.number, committed: Some(committed) };
        self.inner.waiting.transactions.push(answer);
        if octets > SHORT_OCTETS {
            self.queue.leave(self.inner);
        }
        commit
    }
}
