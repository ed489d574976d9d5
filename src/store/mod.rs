//! The state of budgets: cached in memory, and durable in SQLite before any reply that depends on it.
//!
//! [`Store::admit`] is one transaction: read the budgets that are not in memory ([`loader`]), decide and store
//! ([`cache`]), commit ([`queue`], [`writer`]). The [`maintenance`] thread looks after the file; [`health`] knows its
//! present errors.

pub mod audit;
mod cache;
pub mod dump;
mod file;
mod hashed_key;
mod health;
mod journal;
pub mod jsonl;
mod loader;
mod maintenance;
mod new_budgets;
mod pending_exceptions;
mod queue;
mod schema;
mod session_slots;
mod writer;

use crate::metrics::Metrics;
use crate::policy::event::Asked;
use crate::policy::key::{Key, KeyRef};
use crate::policy::limit::{Count, Limit};
use crate::policy::session_counters::SessionCounters;
use crate::policy::verdict::RefundableCharge;
use crate::policy::verdict::Verdict;
use crate::policy::{self, Budget, Loaded, Plan, Policy};
use crate::time::{Timestamp, format_duration};
use cache::{BudgetCache, Transacted};
use file::File;
pub use file::OpenError;
use hashed_key::{HashedKey, HashedKeyRef};
use health::{Attempt, HealthMonitor};
use loader::Loader;
pub use maintenance::KEEP;
use maintenance::MaintenanceThread;
use new_budgets::{Excess, NewBudgets};
pub use pending_exceptions::Kept;
use pending_exceptions::PendingExceptions;
use queue::{Queue, WriterJob};
pub use session_slots::SessionSlots;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;
use tokio::time::timeout;
use writer::{COMMIT_TIMEOUT, Writer};

/// Options of the store: the `[state]` section of the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
    pub on_failure: OnFailure,
}

/// The kind of failure that an acknowledged charge survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Any end of the process, even a sudden one.
    Process,
    /// A power cut, too. Costs one fsync for each commit.
    Power,
}

/// Behaviour while the state file cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Limits go on counting in memory.
    Allow,
    /// Commands that a limit counts are deferred.
    Defer,
}

/// Store of the budgets of all limits.
pub struct Store {
    core: Arc<Core>,
    loader: Loader,
    writer: Writer,
    maintenance: MaintenanceThread,
}

/// State shared by the threads of a store.
struct Core {
    options: Options,
    policy: RwLock<Arc<Policy>>,
    cache: BudgetCache,
    queue: Queue,
    pending_exceptions: PendingExceptions,
    new_budgets: NewBudgets,
    health: HealthMonitor,
    metrics: Arc<Metrics>,
    /// Device and inode of the file and of its write-ahead log when it was opened; empty until the file could be
    /// opened.
    identity: OnceLock<Option<[(u64, u64); 2]>>,
    /// Approximate octets written to the write-ahead log: the maintenance thread checkpoints by this.
    wal_written: AtomicUsize,
    /// The write-ahead log is too long: readers of the file must end their transactions soon, so that the log can be
    /// reset.
    is_wal_long: AtomicBool,
    /// Do not truncate the write-ahead log on reset: the load will refill it.
    keep_wal: AtomicBool,
    /// Held while the writer or the loader sets or clears [`Attempt::CatchUp`], so that a request cannot be lost in
    /// between.
    catch_up_lock: Mutex<()>,
    /// Time before which no stored time can be compared with now, in microseconds: see [`Store::set_clock_doubt`].
    /// `i64::MIN`: the clock is certain.
    clock_doubt: AtomicI64,
    /// The loader has not answered in time: no transaction waits for the loader until it answers.
    is_loader_stuck: AtomicBool,
}

/// Health of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// The state file has an error: limits go on, but their counts may not be durable.
    Degraded(String),
}

/// Reason for degraded health after the disk has recovered.
const CATCHING_UP: &str = "what was counted meanwhile is still to be written";

/// Consequences of replacing the limits.
pub struct Replaced {
    /// The former limits. Commands under way are still decided by them. Dropping the last reference may take long.
    pub former: Arc<Policy>,
    /// The former limits that are no longer in force or now mean something else: see
    /// [`Limit::kinds`](crate::policy::limit::Limit::kinds). Their budgets are kept for [`KEEP`].
    pub gone: Vec<String>,
    /// The grants without effect under the new limits, each with the reason.
    pub inert: Vec<String>,
}

/// Decisions about a list of events.
#[derive(Debug, Default)]
pub struct Admitted {
    /// One verdict for each event, in order.
    pub verdicts: Vec<Verdict>,
    /// Slots of limits "N at once" that the session now holds; `None` if it holds none.
    pub slots: Option<SessionSlots>,
}

/// Error: the state cannot be kept, and the configuration says that mail waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Store {
    /// Opens the state file, replays its journal and starts the threads.
    ///
    /// If the file cannot be used, limits are kept in memory and the writer tries again, because mail must flow. The
    /// exception is a file that another Weir is using: that is an error.
    pub fn open(options: &Options, policy: Policy, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let core = Arc::new(Core {
            options: options.clone(),
            policy: RwLock::new(Arc::new(policy)),
            cache: BudgetCache::default(),
            queue: Queue::default(),
            pending_exceptions: PendingExceptions::default(),
            new_budgets: NewBudgets::default(),
            health: HealthMonitor::new(metrics.clone()),
            metrics,
            identity: OnceLock::new(),
            wal_written: AtomicUsize::new(0),
            is_wal_long: AtomicBool::new(false),
            keep_wal: AtomicBool::new(true),
            catch_up_lock: Mutex::default(),
            clock_doubt: AtomicI64::new(i64::MIN),
            is_loader_stuck: AtomicBool::new(false),
        });
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
        Ok(Self { core, loader, writer, maintenance })
    }

    /// Decides a list of events at `now` and charges those that pass, in one transaction. On return the charges are
    /// durable, unless the store is degraded. The wait for the file is bounded: not much more than a second.
    ///
    /// `counters` has the counters of the session itself.
    pub async fn admit(
        &self,
        now: Timestamp,
        asked: &Asked,
        counters: &mut SessionCounters,
    ) -> Result<Admitted, Unavailable> {
        let policy = self.core.policy();
        let mut shared = HashSet::new();
        // The closure must not own the slots: dropping them takes locks that are held while the closure runs.
        let mut slots = SessionSlots::none(&self.core);
        let verdicts = loop {
            let plan = Plan::with_shared(&policy, asked, now, Some(&shared));
            if plan.keys().len() == 0 {
                break policy::decide(&policy, now, asked, &plan, &mut Loaded::default(), counters);
            }
            let decide = |now, loaded: &mut Loaded| {
                let unknown = plan.unknown(&policy, loaded);
                self.core.new_budgets.reserve(&unknown, policy.max_new_budgets, now)?;
                let mut verdicts = policy::decide(&policy, now, asked, &plan, loaded, counters);
                self.core.new_budgets.give_back(unknown.iter().filter(|unknown| !loaded.has(unknown.place)));
                slots.own(verdicts.iter_mut().flat_map(|verdict| verdict.held.drain(..)));
                Ok(verdicts)
            };
            match self.transact(now, plan.keys(), decide).await? {
                Ok(verdicts) => break verdicts,
                Err(excess) => shared.extend(self.core.share(excess, &policy)),
            }
        };
        let verdicts = self.apply_suspensions(verdicts, now).await?;
        Ok(Admitted { verdicts, slots: Some(slots).filter(|slots| !slots.is_empty()) })
    }

    /// Begins the suspensions that these verdicts order, before any reply tells of them.
    async fn apply_suspensions(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Result<Vec<Verdict>, Unavailable> {
        let begun: Vec<_> = verdicts.iter().flat_map(|verdict| &verdict.suspensions).cloned().collect();
        if begun.is_empty() {
            return Ok(verdicts);
        }
        let is_durable = self.core.suspend(&begun, now).await;
        let is_good = is_durable || self.core.options.on_failure == OnFailure::Allow;
        if is_good { Ok(verdicts) } else { Err(Unavailable) }
    }

    /// Returns whether any limit counts this.
    pub fn counts(&self, count: Count) -> bool {
        self.core.policy().counts(count)
    }

    /// Refunds charges in one transaction, as durable as the charges.
    pub async fn give_back(&self, now: Timestamp, charges: &[RefundableCharge]) -> Result<(), Unavailable> {
        let mut keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let give_back = |_, loaded: &mut Loaded| policy::give_back(charges, &keys, loaded);
        self.transact(now, keys.iter().map(Key::borrowed), give_back).await
    }

    /// Returns copies of these budgets at present. Changes nothing and caches nothing. The error says why a budget
    /// could not be read.
    pub async fn look(&self, keys: &[Key]) -> Result<Vec<Option<Budget>>, String> {
        let hashed_keys: Vec<HashedKeyRef<'_>> = keys.iter().map(|key| HashedKey::of(key.borrowed())).collect();
        let mut found: Vec<Option<Option<Budget>>> =
            hashed_keys.iter().map(|hashed_key| self.core.cache.peek(*hashed_key)).collect();
        // No file keeps volatile budgets.
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

    /// Returns the limits in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.core.policy()
    }

    /// Replaces the limits. Budgets of limits that stay keep their history.
    pub fn set_policy(&self, policy: Policy) -> Replaced {
        self.core.set_policy(policy)
    }

    pub fn health(&self) -> Health {
        self.core.health.current()
    }

    /// Commits the remaining changes, folds the journal and closes the file. Takes at most some seconds, even if the
    /// disk hangs.
    pub async fn close(self) {
        let Self { core, loader, maintenance, writer } = self;
        // Joining threads blocks.
        let end = move || {
            // The writer ends last, because it has to write the last budgets that the loader reads.
            let (maintenance, loader) = (maintenance.stop(), loader.stop());
            wait_for(&[maintenance, loader]);
            wait_for(&[writer.stop()]);
            if let Health::Degraded(reason) = core.health.current() {
                tracing::error!(reason, "stopping with the state degraded: what the file does not have is lost");
            }
        };
        let _ = tokio::task::spawn_blocking(end).await;
    }

    /// Runs `act` on these budgets, after reading those that are not in memory.
    async fn transact<R>(
        &self,
        now: Timestamp,
        keys: impl Iterator<Item = KeyRef<'_>>,
        mut act: impl FnMut(Timestamp, &mut Loaded) -> R,
    ) -> Result<R, Unavailable> {
        let hashed_keys: Vec<HashedKeyRef<'_>> = keys.map(HashedKey::of).collect();
        let Core { cache, queue, health, options, .. } = &*self.core;
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
                Transacted::Unchanged(answer) => return Ok(answer),
                Transacted::Refused => return Err(Unavailable),
                // Do not wait while the file cannot be written.
                Transacted::Changed(answer, _) if health.is_write_failing() && !has_to_be_durable => return Ok(answer),
                Transacted::Changed(answer, commit) => {
                    let is_good = commit.done().await || !has_to_be_durable;
                    return if is_good { Ok(answer) } else { Err(Unavailable) };
                }
                // The budgets were loaded and dropped again for want of room, several times.
                Transacted::NotLoaded { .. } if began.elapsed() > 5 * COMMIT_TIMEOUT => {
                    cache.insert_unread(hashed_keys.iter().copied())
                }
                Transacted::NotLoaded { to_load, waits } => self.load(&hashed_keys, to_load, waits).await,
            }
        }
    }

    /// Has budgets read and waits for them. A budget that is not read in time counts from zero.
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

fn slow_disk(what: &str) -> String {
    format!("the disk is slow: {what} within {}", format_duration(COMMIT_TIMEOUT))
}

/// Waits until threads have ended, but not for ever: they may hang in a disk.
fn wait_for(threads: &[JoinHandle<()>]) {
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Time that the shutdown waits for the threads that read, and as long again for the writer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

impl Core {
    /// Opens the file and inserts the budgets that a former process left in the journal. Returns the file and the
    /// octets of its journal.
    fn open(&self) -> Result<(File, usize), OpenError> {
        let file = File::open(&self.options)?;
        let sqlite = |error| OpenError::Sqlite(self.options.path.clone(), error);
        let known = file.kinds().map_err(sqlite)?;
        let (replayed, damaged, octets) = file.replay().map_err(sqlite)?;
        for seq in damaged {
            tracing::error!(
                entry = seq,
                "an entry of the state file's journal is damaged: some of its charges are lost"
            );
        }
        let (epoch, policy) = (self.queue.epoch(), self.policy());
        for (hashed_key, budget) in replayed.0 {
            let key = hashed_key.key.clone();
            self.cache
                .replay(hashed_key, budget, epoch, |stored, counted| policy::combine(&policy, &key, stored, counted));
        }
        self.warn_removed_limits(known.into_iter().map(|(kind, _)| kind));
        self.load_exceptions(&file);
        let _ = self.identity.set(file::identity(&self.options.path));
        Ok((file, octets))
    }

    /// Drops budgets from memory if there is no room.
    fn make_room(&self) {
        let lost = self.cache.make_room(self.health.is_write_failing());
        match lost {
            0 if self.cache.is_crowded() => {}
            0 => self.health.record(Attempt::HoldInMemory, Ok(())),
            _ => {
                let reason = format!("memory is full: {lost} budgets that could not be written or read were dropped");
                self.health.record(Attempt::HoldInMemory, Err(reason));
            }
        }
    }

    /// Has the writer write everything that changed in memory alone. Health stays degraded until that is done.
    fn catch_up(&self) {
        let _catch_up = self.catch_up_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.health.record(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
        self.queue.request_catch_up();
    }

    fn clock_doubt(&self) -> Option<Timestamp> {
        Some(self.clock_doubt.load(Ordering::Relaxed)).filter(|at| *at != i64::MIN).map(Timestamp::from_micros)
    }

    /// Counts and logs new keys that have to share a budget, and returns them.
    fn share(&self, excess: Vec<Excess>, policy: &Policy) -> impl Iterator<Item = Key> {
        for Excess { limit, is_to_be_logged, .. } in &excess {
            self.metrics.new_budgets_shared.with_label_values(&[limit]).inc();
            if *is_to_be_logged {
                let max_new_budgets = policy.max_new_budgets.0;
                tracing::warn!(
                    %limit,
                    max_new_budgets,
                    "more than max-new-budgets new clients, senders or recipients in an hour: further ones share one budget"
                );
            }
        }
        excess.into_iter().map(|excess| excess.key)
    }

    fn is_open(&self) -> bool {
        self.identity.get().is_some()
    }

    fn identity(&self) -> Option<[(u64, u64); 2]> {
        self.identity.get().copied().flatten()
    }

    fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_policy(&self, mut policy: Policy) -> Replaced {
        let mut slot = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        policy.exceptions = slot.exceptions.clone();
        let policy = Arc::new(policy);
        let former = std::mem::replace(&mut *slot, policy.clone());
        drop(slot);
        let kinds: Vec<String> = former.limits.iter().flat_map(Limit::kinds).collect();
        // If the present time may be wrong, a kind keeps the time that the last walk recorded: a time too early would
        // delete its budgets too early.
        if let Some(now) = self.cache.latest().filter(|_| self.clock_doubt().is_none()) {
            self.queue.send_job(WriterJob::RecordKinds(kinds.clone(), now));
        }
        Replaced {
            former,
            gone: self.warn_removed_limits(kinds.into_iter()),
            inert: pending_exceptions::warn_inert_grants(&policy),
        }
    }

    /// Logs and returns the limits that are no longer in force or now mean something else.
    fn warn_removed_limits(&self, former: impl Iterator<Item = String>) -> Vec<String> {
        let in_force: HashSet<String> = self.policy().limits.iter().flat_map(Limit::kinds).collect();
        let gone: Vec<String> = former.filter(|kind| !in_force.contains(kind)).collect();
        for limit in &gone {
            let keep = format_duration(maintenance::KEEP);
            tracing::warn!(limit, "no such limit any more: its budgets are kept for {keep}, if it comes back");
        }
        gone
    }
}

#[cfg(test)]
mod tests;
