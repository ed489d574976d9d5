//! The state of budgets: cached in memory, and durable in SQLite before any reply that depends on it.
//!
//! [`Store::admit`] is one transaction: read the budgets that are not in memory ([`loader`]), decide and store
//! ([`cache`]), commit ([`queue`], [`writer`]). The [`maintenance`] thread looks after the file; [`health`] knows its
//! present errors.

pub mod audit;
mod cache;
mod commit_queue;
mod core;
pub mod dump;
mod exceptions;
mod file;
mod hashed_key;
mod health;
mod journal;
pub mod jsonl;
mod loader;
mod maintenance;
mod new_budgets;
mod options;
mod pending_exceptions;
mod recovery;
mod schema;
mod session_slots;
mod writer;

pub use self::core::{KEEP, Replaced};
pub use file::OpenError;
pub use health::Health;
pub use options::{Durability, OnFailure, Options};
pub use pending_exceptions::Kept;
pub use session_slots::SessionSlots;

use self::core::{COMMIT_TIMEOUT, Core, slow_disk};
use crate::metrics::Metrics;
use crate::policy::budgets::{Budget, Key, KeyRef, Loaded, RefundableCharge, SessionCounters};
use crate::policy::limit::Count;
use crate::policy::request::PolicyRequest;
use crate::policy::verdict::Verdict;
use crate::policy::{self, Plan, Policy};
use crate::time::Timestamp;
use cache::Transacted;
use hashed_key::{HashedKey, HashedKeyRef};
use health::Attempt;
use loader::Loader;
use maintenance::MaintenanceThread;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;
use tokio::time::timeout;
use writer::Writer;

/// Store of the budgets of all limits.
pub struct Store {
    core: Arc<Core>,
    loader: Loader,
    writer: Writer,
    maintenance: MaintenanceThread,
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
        let core = Arc::new(Core::new(options, policy, metrics));
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
        asked: &PolicyRequest,
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
                let unknown = plan.new_budgets(&policy, loaded);
                self.core.new_budgets.reserve(&unknown, policy.max_new_budgets, now)?;
                let mut verdicts = policy::decide(&policy, now, asked, &plan, loaded, counters);
                self.core.new_budgets.give_back(unknown.iter().filter(|unknown| !loaded.has(unknown.index)));
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
        let give_back = |_, loaded: &mut Loaded| loaded.give_back(charges, &keys);
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

    /// Sets whether `now` may turn out to be wrong, and since when the clock has not jumped; `None`: the clock is
    /// certain. In doubt the store decides as always, and deletes nothing for its age.
    pub fn set_clock_doubt(&self, doubt: Option<Timestamp>) {
        self.core.clock_doubt.store(doubt.map_or(i64::MIN, Timestamp::micros), Ordering::Relaxed);
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

/// Waits until threads have ended, but not for ever: they may hang in a disk.
fn wait_for(threads: &[JoinHandle<()>]) {
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Time that the shutdown waits for the threads that read, and as long again for the writer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
