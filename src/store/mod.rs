//! Store of the budgets. Budgets are cached in memory. A change is in an SQLite file before the client gets a reply
//! that depends on the change.
//!
//! [`Store::admit`] is one transaction. It reads the budgets that are not in memory ([`loader`]), decides and changes
//! the budgets in memory ([`cache`]), and waits for the commit ([`commit_queue`], [`writer`]). A commit appends to the
//! file's journal. Later the changed budgets are written ("folded") into the file's table. The [`maintenance`] thread
//! checkpoints and checks the file. The module [`health`] keeps the present errors of the file.

mod append_turn;
pub mod audit;
mod budget_rows;
mod cache;
mod commit_queue;
mod core;
mod database_job;
mod decision;
pub mod dump;
mod dump_error;
mod exceptions;
mod file;
mod file_reads;
mod hashed_key;
mod health;
mod job_queue;
mod journal;
mod journal_damage;
pub mod jsonl;
mod loader;
mod login_expiry;
mod login_history;
mod logins;
mod maintenance;
mod maintenance_pause;
mod new_budgets;
mod notice_recorder;
mod notices;
mod options;
mod outcomes;
mod pace;
mod pending_commit;
mod pending_exceptions;
mod policy_in_force;
mod queue_ids;
mod recovery;
mod refusal_history;
mod refusals;
mod scan;
mod schema;
mod session_slots;
mod shared;
mod shared_writer;
mod sharing;
mod suspicion;
mod transaction;
pub mod transfer;
mod wal_checkpoint;
mod whole_file;
mod writer;

pub use self::core::{KEEP, Replaced};
pub use dump_error::DumpError;
pub use file::OpenError;
pub use health::Health;
pub use login_history::{LoginKey, LoginRow};
pub use notice_recorder::NoticeRecorder;
pub use notices::{EpisodeRow, NoticeKey, NoticeRow, StoredNotices};
pub use options::{BUDGET_OCTETS, Durability, OnFailure, Options};
pub use outcomes::{Attribution, OutcomeQuery};
pub use pending_commit::PendingCommit;
pub use pending_exceptions::Kept;
pub use policy_in_force::PolicyGuard;
pub use queue_ids::{AddressHash, MAX_RECIPIENTS, Marks, OutcomeOptions, QueueIdKey, SentMessage};
pub use refusal_history::{FoundRefusal, MissingRefusal, RefusalRecorder};
pub use refusals::{
    Evidence, Filter as RefusalFilter, OwnerEvidence, Refusal, RefusalGroup, RefusalOptions, RefusalRow,
};
pub use scan::FoundBudgets;
pub use session_slots::SessionSlots;
pub use shared::{BulkError, SharedBulk, SharedOptions, Topology, check_url};
pub use shared_writer::{SharedWriter, Written};

use self::core::{COMMIT_TIMEOUT, Core, slow_disk};
use crate::metrics::{GaugeGuard, Metrics};
use crate::policy::budgets::{Budget, Key, KeyRef, Loaded, RefundableCharge, SessionCounters};
use crate::policy::limit::Count;
use crate::policy::request::PolicyRequest;
use crate::policy::verdict::Verdict;
use crate::policy::{self, Learnt, Lessons, Plan, Policy};
use crate::time::Timestamp;
use cache::{Transacted, USUAL_KEYS};
use decision::Decision;
use hashed_key::{HashedKey, HashedKeyRef};
use health::Attempt;
use loader::Loader;
use maintenance::MaintenanceThread;
use sharing::Sender;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;
use tokio::time::timeout;
use transaction::Transaction;
use writer::{Writer, commit_now};

/// Store of the budgets of all limits.
pub struct Store {
    core: Arc<Core>,
    loader: Loader,
    writer: Writer,
    maintenance: MaintenanceThread,
    /// Task that sends the changes of shared budgets.
    sender: Option<Sender>,
}

/// Decisions about a list of events.
#[derive(Debug, Default)]
pub struct Decided {
    /// One verdict for each event, in the order of the events.
    pub verdicts: Vec<Verdict>,
    /// Slots of limits such as "3 at once" that the session got in this decision; `None` if the session got no slot.
    pub slots: Option<SessionSlots>,
    /// Commit of the charges; `None` if there is nothing to wait for.
    pub commit: Option<PendingCommit>,
}

/// Error: the state file cannot be written or read, and the configuration defers mail in this case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Store {
    /// Opens the state file, replays its journal, and starts the store's threads and, in the current async runtime, the
    /// writer.
    ///
    /// If the file cannot be used, the store still opens, because mail must be accepted. Budgets are then kept in
    /// memory, and the writer tries to open the file again. An error is returned only if another Weir process is using
    /// the file.
    pub fn open(options: &Options, policy: Policy, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let core = Arc::new(Core::new(options, policy, metrics)?);
        let file = match core.open() {
            Ok(opened) => Some(opened),
            Err(error @ OpenError::InUse(_)) => return Err(error),
            Err(error) => {
                core.health.record(Attempt::Open, Err(error.to_string()));
                None
            }
        };
        let writer = Writer::start(core.clone(), file).map_err(OpenError::Thread)?;
        let loader = Loader::start(core.clone()).map_err(OpenError::Thread)?;
        let maintenance = MaintenanceThread::start(core.clone()).map_err(OpenError::Thread)?;
        let sender = core.shared.is_some().then(|| Sender::start(core.clone()));
        Ok(Self { core, loader, writer, maintenance, sender })
    }

    /// Decides on a list of events at `now`, and charges the budgets: [`Self::decide`]. On return the charges are
    /// durable, unless the store is degraded.
    pub async fn admit(
        &self,
        now: Timestamp,
        asked: &PolicyRequest,
        counters: &mut SessionCounters,
    ) -> Result<Decided, Unavailable> {
        let mut decided = self.decide(now, asked, counters).await?;
        self.commit(decided.commit.take()).await;
        Ok(decided)
    }

    /// Decides on a list of events at `now` and charges the budgets, in one transaction. Before a client gets a reply
    /// that depends on the decision, the caller must wait for the commit that is returned. Meanwhile the caller may
    /// already ask the upstream, as long as nothing is delivered. If the disk is slow, the call takes about a second, and
    /// some seconds at most. For the commit see [`Store::commit`].
    ///
    /// `counters` are the counters of the session and of its transaction, which are not stored.
    pub async fn decide(
        &self,
        now: Timestamp,
        asked: &PolicyRequest,
        counters: &mut SessionCounters,
    ) -> Result<Decided, Unavailable> {
        let policy = self.core.policy();
        let mut shared = HashSet::new();
        let (verdicts, slots, commit) = loop {
            let plan = Plan::with_shared(&policy, asked, now, Some(&shared));
            if plan.keys().len() == 0 {
                let verdicts = policy::decide(&policy, now, asked, &plan, &mut Loaded::default(), counters);
                break (verdicts, None, None);
            }
            let mut decision = Decision::new(&self.core, &policy, asked, &plan, counters);
            match self.change(now, plan.keys(), &mut decision).await? {
                (Ok(verdicts), commit) => break (verdicts, decision.slots, commit),
                (Err(excess), _) => shared.extend(self.core.share(excess, &policy)),
            }
        };
        let verdicts = self.apply_suspensions(verdicts, now).await?;
        Ok(Decided { verdicts, slots, commit })
    }

    /// Commits charges, if there are any: waits until they are durable, or until the store gives up because the disk is
    /// slow or fails. Returns true if the charges are durable.
    ///
    /// The calling task itself appends the charges to the journal if no other task does so at present. If the disk
    /// begins to hang at this moment, this one task hangs, too. A task that must not hang first calls
    /// [`Store::leave_to_writer`].
    pub async fn commit(&self, pending: Option<PendingCommit>) -> bool {
        let Some(PendingCommit { mut commit, decided_in }) = pending else { return true };
        let began = Instant::now();
        let mut outcome = commit.outcome();
        if outcome.is_none() {
            outcome = self.core.queue.gather(&mut commit).await;
        }
        if outcome.is_none() {
            commit_now(&self.core, &commit, 1);
            outcome = commit.outcome();
        }
        let is_durable = match outcome {
            Some(is_durable) => is_durable,
            None => {
                let _waiting = GaugeGuard::new(&self.core.metrics.state.transactions_waiting);
                commit.done().await
            }
        };
        self.observe_transaction(decided_in + began.elapsed());
        is_durable
    }

    /// Commits charges like [`Store::commit`], for a caller that has a thread of its own, in which no task of the async
    /// runtime runs.
    pub fn commit_in_thread(&self, pending: Option<PendingCommit>) -> bool {
        let Some(PendingCommit { mut commit, decided_in }) = pending else { return true };
        let began = Instant::now();
        let mut outcome = commit.outcome();
        if outcome.is_none() {
            let is_fast = commit_now(&self.core, &commit, MAX_COMMITS);
            outcome = commit.outcome();
            // Mostly another thread commits at this moment. Sleeping, and being woken perhaps on another processor, would
            // take longer.
            while outcome.is_none() && is_fast && began.elapsed() < YIELD_TIME {
                std::thread::yield_now();
                outcome = commit.outcome();
            }
        }
        let is_durable = outcome.unwrap_or_else(|| {
            let _waiting = GaugeGuard::new(&self.core.metrics.state.transactions_waiting);
            commit.wait()
        });
        self.observe_transaction(decided_in + began.elapsed());
        is_durable
    }

    fn observe_transaction(&self, time: Duration) {
        self.core.metrics.state.transaction_seconds.observe(time.as_secs_f64());
    }

    /// Makes the journal writer commit the charges made so far, so that no session hangs if the disk does.
    pub fn leave_to_writer(&self) {
        self.core.queue.leave_to_writer();
    }

    /// Begins the suspensions that these verdicts demand. A client gets a reply that mentions the suspensions only
    /// after this.
    async fn apply_suspensions(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Result<Vec<Verdict>, Unavailable> {
        let begun: Vec<_> = verdicts.iter().flat_map(|verdict| &verdict.suspensions).cloned().collect();
        if begun.is_empty() {
            return Ok(verdicts);
        }
        let is_durable = self.core.suspend(&begun, now).await;
        let is_good = is_durable || self.core.options.on_failure == OnFailure::Allow;
        if is_good { Ok(verdicts) } else { Err(Unavailable) }
    }

    /// Returns whether any limit in force counts this quantity.
    pub fn counts(&self, count: Count) -> bool {
        self.core.policy().counts(count)
    }

    /// Refunds charges in one transaction. On return the refund is durable, unless the store is degraded.
    pub async fn give_back(&self, now: Timestamp, charges: &[RefundableCharge]) -> Result<(), Unavailable> {
        let mut keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut give_back = |_, loaded: &mut Loaded| loaded.give_back(charges, &keys);
        let ((), commit) = self.change(now, keys.iter().map(Key::borrowed), &mut give_back).await?;
        // Perhaps the upstream has accepted the rest of the message. Even if the disk hangs, the client must get the reply.
        self.leave_to_writer();
        self.commit(commit).await;
        Ok(())
    }

    /// Makes memories learn recipients of the past. On return the recipients are durable, unless the store is degraded.
    pub async fn teach(&self, now: Timestamp, lessons: &Lessons) -> Result<Vec<Learnt>, Unavailable> {
        let mut learnt = Vec::new();
        for keys in lessons.parts() {
            let learn = |_, loaded: &mut Loaded| lessons.learn(&keys, loaded);
            learnt.extend(self.transact(now, keys.iter().map(Key::borrowed), learn).await?);
        }
        Ok(learnt)
    }

    /// Returns copies of these budgets in their present state, without changing or caching anything. Returns an error
    /// with the reason if a budget could not be read.
    pub async fn look(&self, keys: &[Key]) -> Result<Vec<Option<Budget>>, String> {
        if let Some(shared) = &self.core.shared {
            return Ok(sharing::look(&self.core, shared, keys).await);
        }
        let hashed_keys: Vec<HashedKeyRef<'_>> = keys.iter().map(|key| HashedKey::of(key.borrowed())).collect();
        let mut found: Vec<Option<Option<Budget>>> =
            hashed_keys.iter().map(|hashed_key| self.core.cache.peek(*hashed_key)).collect();
        // A volatile budget is never in the file.
        let is_in_file = |hashed_key: &&HashedKeyRef<'_>| !hashed_key.key.is_volatile();
        let missing =
            hashed_keys.iter().zip(&found).filter(|(_, known)| known.is_none()).map(|(hashed_key, _)| hashed_key);
        let missing: Vec<HashedKey> = missing.filter(is_in_file).map(|hashed_key| hashed_key.owned()).collect();
        if !missing.is_empty() {
            if !self.core.is_open() {
                return Err("budgets cannot be read: the state file is not open".to_owned());
            }
            let path = self.core.options.path.clone();
            let read = tokio::task::spawn_blocking(move || file::read_budgets(&path, &missing)).await;
            let mut read = read.map_err(|error| error.to_string())??.into_iter();
            for (hashed_key, known) in hashed_keys.iter().zip(&mut found).filter(|(_, known)| known.is_none()) {
                *known = if is_in_file(&hashed_key) { read.next() } else { None };
            }
        }
        Ok(found.into_iter().map(Option::flatten).collect())
    }

    /// Returns the amount of this node's lease of a shared budget that is not spent; `None` if this node takes no lease of
    /// this budget.
    pub fn rest_of_lease(&self, key: &Key, now: Timestamp) -> Option<f64> {
        self.core.shared.as_ref()?.cells.rest_of_lease(key.borrowed(), now)
    }

    /// Returns the maximum time that a session waits for the nodes that share the budgets; `None` if none do.
    pub fn deadline(&self) -> Option<Duration> {
        self.core.shared.as_ref().map(|shared| shared.options.deadline)
    }

    /// Returns the limits in force.
    pub fn policy(&self) -> PolicyGuard {
        self.core.policy()
    }

    /// Tells the nodes that share budgets with this one to read their configuration again.
    pub fn share_reload(&self) {
        if let Some(shared) = &self.core.shared {
            shared.reloads.send();
        }
    }

    /// Waits until another node was told to read its configuration again. Never ends if no node shares budgets with
    /// this one.
    pub async fn reload_of_another_node(&self) {
        match &self.core.shared {
            Some(shared) => shared.reloads.asked.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Replaces the policy. If a limit is also in the new policy, its budgets are kept.
    pub fn set_policy(&self, policy: Policy) -> Replaced {
        self.core.set_policy(policy)
    }

    pub fn health(&self) -> Health {
        self.core.health.current()
    }

    /// Sets whether the clock may be wrong. `doubt` is `None` if the clock is certain. Otherwise, `doubt` is the time
    /// when Weir's steady clock started or last followed a jump. While the clock may be wrong, the store decides as
    /// usual, but deletes no old data, and ends only exceptions that began at `doubt` or later.
    pub fn set_clock_doubt(&self, doubt: Option<Timestamp>) {
        self.core.clock_doubt.store(doubt.map_or(i64::MIN, Timestamp::micros), Ordering::Relaxed);
    }

    /// Commits the remaining changes, folds the journal into the table and closes the file. This takes at most some
    /// seconds, even if the disk hangs.
    pub async fn close(self) {
        let Self { core, loader, maintenance, writer, sender } = self;
        if let Some(sender) = sender {
            let _ = timeout(SHUTDOWN_TIMEOUT, sender.stop()).await;
        }
        // The writer ends last. The reason is that the loader may still add stored budgets to the counts in memory, and
        // the writer must write the sums. Waiting for threads blocks, so it must not run on the async runtime's
        // threads.
        let (maintenance, loader) = (maintenance.stop(), loader.stop());
        let _ = tokio::task::spawn_blocking(move || wait_for(&[maintenance, loader])).await;
        let _ = timeout(SHUTDOWN_TIMEOUT, writer.stop()).await;
        if let Health::Degraded(reason) = core.health.current() {
            tracing::error!(reason, "stopping while the state is degraded: changes that are not in the file are lost");
        }
    }

    /// Reads the budgets that are not in memory, runs `act` on all these budgets, and waits for the commit of the
    /// changes.
    async fn transact<R>(
        &self,
        now: Timestamp,
        keys: impl Iterator<Item = KeyRef<'_>>,
        mut act: impl FnMut(Timestamp, &mut Loaded) -> R,
    ) -> Result<R, Unavailable> {
        let (answer, commit) = self.change(now, keys, &mut act).await?;
        self.commit(commit).await;
        Ok(answer)
    }

    /// Reads the budgets that are not in memory, and runs a transaction on all these budgets. Also returns the commit of
    /// the changes. Waits for the commit if the configuration defers mail whose charges cannot be written, because the
    /// answer then depends on the commit's success.
    async fn change<T: Transaction>(
        &self,
        now: Timestamp,
        keys: impl Iterator<Item = KeyRef<'_>>,
        transaction: &mut T,
    ) -> Result<(T::Answer, Option<PendingCommit>), Unavailable> {
        let hashed_keys: SmallVec<[HashedKeyRef<'_>; USUAL_KEYS]> = keys.map(HashedKey::of).collect();
        if let Some(shared) = &self.core.shared {
            return Ok((sharing::transact(&self.core, shared, now, &hashed_keys, transaction).await?, None));
        }
        let Core { cache, queue, health, options, .. } = &*self.core;
        let mut act = |now, loaded: &mut Loaded| transaction.run(now, loaded);
        let has_to_be_durable = options.on_failure == OnFailure::Defer;
        let began = Instant::now();
        loop {
            let is_writing = !health.is_write_failing();
            if !is_writing && has_to_be_durable {
                return Err(Unavailable);
            }
            if is_writing && !queue.has_room() && timeout(COMMIT_TIMEOUT, queue.room()).await.is_err() {
                health.record(Attempt::Append, Err(slow_disk("no room for changes")));
                continue;
            }
            match cache.transact((now, began), &hashed_keys, queue, has_to_be_durable, &mut act) {
                Transacted::Unchanged(answer) => return Ok((answer, None)),
                Transacted::Refused => return Err(Unavailable),
                // While the file cannot be written, do not wait for the commit. If the change will not become durable,
                // there is no commit, but the session still waits for its earlier charges.
                Transacted::Changed(answer, commit)
                    if (health.is_write_failing() || commit.is_never()) && !has_to_be_durable =>
                {
                    queue.leave_to_writer();
                    return Ok((answer, None));
                }
                Transacted::Changed(answer, commit) => {
                    let commit = PendingCommit { commit, decided_in: began.elapsed() };
                    if !has_to_be_durable {
                        return Ok((answer, Some(commit)));
                    }
                    let is_durable = self.commit(Some(commit)).await;
                    return if is_durable { Ok((answer, None)) } else { Err(Unavailable) };
                }
                // The budgets were never all in memory at the same time: for lack of memory, some budgets were dropped
                // again before the others were loaded. After this time, the transaction counts without the file.
                Transacted::NotLoaded { .. } if began.elapsed() > 5 * COMMIT_TIMEOUT => {
                    cache.insert_unread(hashed_keys.iter().copied())
                }
                Transacted::NotLoaded { to_load, waits } => self.load(&hashed_keys, to_load, waits).await,
            }
        }
    }

    /// Asks the loader to read budgets and waits for them. A budget that is not read in time counts from zero.
    async fn load(&self, hashed_keys: &[HashedKeyRef<'_>], to_load: Vec<HashedKey>, waits: Vec<Receiver<()>>) {
        let all = async {
            for wait in waits {
                // The loader drops the sender when the budget is read.
                let _ = wait.await;
            }
        };
        let is_asked =
            !self.core.is_loader_stuck.load(Ordering::Relaxed) && (to_load.is_empty() || self.loader.read(to_load));
        if !is_asked || timeout(COMMIT_TIMEOUT, all).await.is_err() {
            self.core.is_loader_stuck.store(true, Ordering::Relaxed);
            self.core.health.record(Attempt::Load, Err(slow_disk("budgets could not be read")));
            self.core.cache.insert_unread(hashed_keys.iter().copied());
            self.core.make_room();
        }
    }
}

/// Waits until the threads have ended, for at most [`SHUTDOWN_TIMEOUT`], because a thread may hang in an access to the
/// disk.
fn wait_for(threads: &[JoinHandle<()>]) {
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Time for which the shutdown waits until the loader and maintenance threads end. Afterwards, the shutdown waits for
/// at most the same time until the writer ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which a caller with a thread of its own only lets other threads run, before it sleeps until its commit ends.
/// It is several times as long as a short commit.
const YIELD_TIME: Duration = Duration::from_micros(50);

/// Maximum number of commits that a caller with a thread of its own makes, one after the other: its own, and those that
/// other callers have left meanwhile.
const MAX_COMMITS: usize = 4;

#[cfg(test)]
mod tests;
