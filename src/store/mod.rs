//! Where the state of budgets lives: hot in memory, durable in SQLite before any reply that depends on it.
//!
//! [`Store::admit`] is the one act of a stage: read what is not in memory ([`loader`]), decide and keep ([`cache`]), commit ([`queue`],
//! [`writer`]). The [`maintenance`] looks after the file; what is wrong with it is in [`health`].

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
use cache::{Acted, BudgetCache};
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
use queue::{Errand, Queue};
pub use session_slots::SessionSlots;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;
use tokio::time::timeout;
use writer::{PATIENCE, Writer};

/// Where and how to keep state.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
    pub on_failure: OnFailure,
}

/// What an acknowledged charge survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however sudden.
    Process,
    /// The end of the power, too: one fsync a commit.
    Power,
}

/// What to do while the state cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Limits go on in memory.
    Allow,
    /// What limits would decide has to wait.
    Defer,
}

/// The budgets of all limits.
pub struct Store {
    core: Arc<Core>,
    loader: Loader,
    writer: Writer,
    keeper: MaintenanceThread,
}

/// What the threads of a store share.
struct Core {
    options: Options,
    policy: RwLock<Arc<Policy>>,
    hot: BudgetCache,
    queue: Queue,
    book: PendingExceptions,
    newcomers: NewBudgets,
    troubles: HealthMonitor,
    metrics: Arc<Metrics>,
    /// What tells the open file from others; empty as long as it could not be opened.
    identity: OnceLock<Option<[(u64, u64); 2]>>,
    /// Octets written to the write-ahead log, about: for whoever brings it home.
    written: AtomicUsize,
    /// Whoever reads the file is to let go of it soon, so that its write-ahead log can begin anew.
    log_is_long: AtomicBool,
    /// The log is to keep its length when it begins anew, as it is soon as long again.
    keep_log: AtomicBool,
    /// Held while it is noted that something is to be caught up with, or that nothing is.
    stirring: Mutex<()>,
    /// The time before which nothing can be compared with now, in microseconds: see [`Store::set_clock_doubt`]. `i64::MIN`: none.
    clock_doubt: AtomicI64,
    /// The loader has not answered for long: nobody waits for it until it does.
    is_loader_stuck: AtomicBool,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// Something is wrong with the state file: limits go on, but what they count may not be durable.
    Degraded(String),
}

/// Why all is not well yet when the disk is.
const CATCHING_UP: &str = "what was counted meanwhile is still to be written";

/// What other limits have taken the place of.
pub struct Replaced {
    /// Commands under way are still decided by these. Dropping the last of them may take long.
    pub former: Arc<Policy>,
    /// Which of them are no longer in force, or mean something else: see [`Limit::kind`](crate::policy::limit::Limit::kind). Their
    /// budgets are kept for [`KEEP`].
    pub gone: Vec<String>,
    /// Which grants have no effect now, and why.
    pub inert: Vec<String>,
}

/// What was decided about a run of events.
#[derive(Debug, Default)]
pub struct Admitted {
    /// One for each event, in order.
    pub verdicts: Vec<Verdict>,
    /// The slots of limits "N at once" that the session has from now on; `None` without any.
    pub slots: Option<SessionSlots>,
}

/// The state cannot be kept, and mail is to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Store {
    /// Opens the state file, replays its journal and starts the threads.
    ///
    /// If the file cannot be used, limits are kept in memory and it is tried again, as mail has to flow; unless another Weir is using
    /// it.
    pub fn open(options: &Options, policy: Policy, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let core = Arc::new(Core {
            options: options.clone(),
            policy: RwLock::new(Arc::new(policy)),
            hot: BudgetCache::default(),
            queue: Queue::default(),
            book: PendingExceptions::default(),
            newcomers: NewBudgets::default(),
            troubles: HealthMonitor::new(metrics.clone()),
            metrics,
            identity: OnceLock::new(),
            written: AtomicUsize::new(0),
            log_is_long: AtomicBool::new(false),
            keep_log: AtomicBool::new(true),
            stirring: Mutex::default(),
            clock_doubt: AtomicI64::new(i64::MIN),
            is_loader_stuck: AtomicBool::new(false),
        });
        let file = match core.open() {
            Ok(opened) => Some(opened),
            Err(error @ OpenError::InUse(_)) => return Err(error),
            Err(error) => {
                core.troubles.note(Attempt::Open, Err(error.to_string()));
                None
            }
        };
        let writer = Writer::start(core.clone(), file).map_err(OpenError::Thread)?;
        let loader = Loader::start(core.clone()).map_err(OpenError::Thread)?;
        let keeper = MaintenanceThread::start(core.clone()).map_err(OpenError::Thread)?;
        Ok(Self { core, loader, writer, keeper })
    }

    /// Decides a run of events at `now` and charges what passes, as one act. When this returns, the charges are durable, unless the
    /// store is degraded. Nobody waits for the file for much longer than a second.
    ///
    /// `ledger` is what the session counts by itself.
    pub async fn admit(
        &self,
        now: Timestamp,
        asked: &Asked,
        ledger: &mut SessionCounters,
    ) -> Result<Admitted, Unavailable> {
        let policy = self.core.policy();
        let mut shared = HashSet::new();
        // Owned here and not by the closure: dropping it takes locks that are held while the closure runs.
        let mut slots = SessionSlots::none(&self.core);
        let verdicts = loop {
            let question = Plan::with_shared(&policy, asked, now, Some(&shared));
            if question.keys().len() == 0 {
                break policy::decide(&policy, now, asked, &question, &mut Loaded::default(), ledger);
            }
            let decide = |now, loaded: &mut Loaded| {
                let unknown = question.unknown(&policy, loaded);
                self.core.newcomers.reserve(&unknown, policy.max_new_budgets, now)?;
                let mut verdicts = policy::decide(&policy, now, asked, &question, loaded, ledger);
                self.core.newcomers.give_back(unknown.iter().filter(|unknown| !loaded.has(unknown.place)));
                slots.own(verdicts.iter_mut().flat_map(|verdict| verdict.held.drain(..)));
                Ok(verdicts)
            };
            match self.act(now, question.keys(), decide).await? {
                Ok(verdicts) => break verdicts,
                Err(excess) => shared.extend(self.core.share(excess, &policy)),
            }
        };
        let verdicts = self.suspend_by(verdicts, now).await?;
        Ok(Admitted { verdicts, slots: Some(slots).filter(|slots| !slots.is_empty()) })
    }

    /// Suspends whom these verdicts say, before anybody hears of it.
    async fn suspend_by(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Result<Vec<Verdict>, Unavailable> {
        let begun: Vec<_> = verdicts.iter().flat_map(|verdict| &verdict.suspensions).cloned().collect();
        if begun.is_empty() {
            return Ok(verdicts);
        }
        let is_durable = self.core.suspend(&begun, now).await;
        let is_good = is_durable || self.core.options.on_failure == OnFailure::Allow;
        if is_good { Ok(verdicts) } else { Err(Unavailable) }
    }

    /// Whether any limit counts this.
    pub fn counts(&self, count: Count) -> bool {
        self.core.policy().counts(count)
    }

    /// Gives back charges, as one act, durable like them.
    pub async fn give_back(&self, now: Timestamp, charges: &[RefundableCharge]) -> Result<(), Unavailable> {
        let mut keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let give_back = |_, loaded: &mut Loaded| policy::give_back(charges, &keys, loaded);
        self.act(now, keys.iter().map(Key::borrowed), give_back).await
    }

    /// These budgets as they are at the moment, copied: nothing is changed by that, nor kept in memory. The error says why one of
    /// them is not known.
    pub async fn look(&self, keys: &[Key]) -> Result<Vec<Option<Budget>>, String> {
        let places: Vec<HashedKeyRef<'_>> = keys.iter().map(|key| HashedKey::of(key.borrowed())).collect();
        let mut found: Vec<Option<Option<Budget>>> = places.iter().map(|place| self.core.hot.peek(*place)).collect();
        // What no file keeps is nowhere else.
        let is_elsewhere = |place: &&HashedKeyRef<'_>| !place.key.is_volatile();
        let missing = places.iter().zip(&found).filter(|(_, known)| known.is_none()).map(|(place, _)| place);
        let missing: Vec<HashedKey> = missing.filter(is_elsewhere).map(|place| place.owned()).collect();
        if !missing.is_empty() {
            if !self.core.is_open() {
                return Err("budgets cannot be read: the state file is not open".to_owned());
            }
            let path = self.core.options.path.clone();
            let read = tokio::task::spawn_blocking(move || file::look(&path, &missing)).await;
            let mut read = read.map_err(|error| error.to_string())??.into_iter();
            for (place, known) in places.iter().zip(&mut found).filter(|(_, known)| known.is_none()) {
                *known = if is_elsewhere(&place) { read.next() } else { None };
            }
        }
        Ok(found.into_iter().map(Option::flatten).collect())
    }

    /// The limits in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.core.policy()
    }

    /// From now on these limits hold. Budgets of limits that stay keep their history.
    pub fn set_policy(&self, policy: Policy) -> Replaced {
        self.core.set_policy(policy)
    }

    pub fn health(&self) -> Health {
        self.core.troubles.health()
    }

    /// Commits what is left, folds the journal and closes the file: within some seconds, whatever the disk does.
    pub async fn close(self) {
        let Self { core, loader, keeper, writer } = self;
        // Waiting for threads blocks.
        let end = move || {
            // What the loader can still read has to be written.
            let (keeper, loader) = (keeper.stop(), loader.stop());
            wait_for(&[keeper, loader]);
            wait_for(&[writer.stop()]);
            if let Health::Degraded(reason) = core.troubles.health() {
                tracing::error!(reason, "stopping with the state degraded: what the file does not have is lost");
            }
        };
        let _ = tokio::task::spawn_blocking(end).await;
    }

    /// Does something with these budgets, which are read first if need be.
    async fn act<R>(
        &self,
        now: Timestamp,
        keys: impl Iterator<Item = KeyRef<'_>>,
        mut act: impl FnMut(Timestamp, &mut Loaded) -> R,
    ) -> Result<R, Unavailable> {
        let places: Vec<HashedKeyRef<'_>> = keys.map(HashedKey::of).collect();
        let Core { hot, queue, troubles, options, .. } = &*self.core;
        let has_to_be_durable = options.on_failure == OnFailure::Defer;
        let began = Instant::now();
        loop {
            let is_writing = !troubles.with_writing();
            if !is_writing && has_to_be_durable {
                return Err(Unavailable);
            }
            if is_writing && !queue.has_room() && timeout(PATIENCE, queue.room()).await.is_err() {
                troubles.note(Attempt::Append, Err(slow("no room for changes")));
                continue;
            }
            match hot.act((now, began), &places, queue, has_to_be_durable, &mut act) {
                Acted::Free(answer) => return Ok(answer),
                Acted::Refused => return Err(Unavailable),
                // While it cannot be written nobody waits.
                Acted::Changed(answer, _) if troubles.with_writing() && !has_to_be_durable => return Ok(answer),
                Acted::Changed(answer, commit) => {
                    let is_good = commit.done().await || !has_to_be_durable;
                    return if is_good { Ok(answer) } else { Err(Unavailable) };
                }
                // Loaded, and dropped again for want of room, time after time.
                Acted::Missing { .. } if began.elapsed() > 5 * PATIENCE => hot.insert_unread(places.iter().copied()),
                Acted::Missing { read, waits } => self.load(&places, read, waits).await,
            }
        }
    }

    /// Has budgets read, and waits until they are. What does not come in time counts from nothing.
    async fn load(&self, places: &[HashedKeyRef<'_>], read: Vec<HashedKey>, waits: Vec<Receiver<()>>) {
        let all = async {
            for wait in waits {
                // Dropped when it is read.
                let _ = wait.await;
            }
        };
        let is_asked =
            !self.core.is_loader_stuck.load(Ordering::Relaxed) && (read.is_empty() || self.loader.read(read));
        if !is_asked || timeout(PATIENCE, all).await.is_err() {
            self.core.is_loader_stuck.store(true, Ordering::Relaxed);
            self.core.troubles.note(Attempt::Load, Err(slow("budgets could not be read")));
            self.core.hot.insert_unread(places.iter().copied());
            self.core.make_room();
        }
    }
}

fn slow(what: &str) -> String {
    format!("the disk is slow: {what} within {}", format_duration(PATIENCE))
}

/// Waits until threads have ended, but not for ever: they may hang in a disk.
fn wait_for(threads: &[JoinHandle<()>]) {
    let deadline = Instant::now() + LAST_PATIENCE;
    while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How long the end waits for threads that read, and as long for the one that writes.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

impl Core {
    /// Opens the file and takes in what a former process left in its journal: with that, its octets.
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
        for (place, budget) in replayed.0 {
            let key = place.key.clone();
            self.hot.replay(place, budget, epoch, |stored, counted| policy::combine(&policy, &key, stored, counted));
        }
        self.tell_gone(known.into_iter().map(|(kind, _)| kind));
        self.take_in_exceptions(&file);
        let _ = self.identity.set(file::identity(&self.options.path));
        Ok((file, octets))
    }

    /// Drops budgets from memory where there is no more room.
    fn make_room(&self) {
        let lost = self.hot.make_room(self.troubles.with_writing());
        match lost {
            0 if self.hot.is_crowded() => {}
            0 => self.troubles.note(Attempt::Hold, Ok(())),
            _ => {
                let reason = format!("memory is full: {lost} budgets that could not be written or read were dropped");
                self.troubles.note(Attempt::Hold, Err(reason));
            }
        }
    }

    /// Has everything written that has changed in memory alone. Until that is done, all is not well.
    fn catch_up(&self) {
        let _stirring = self.stirring.lock().unwrap_or_else(PoisonError::into_inner);
        self.troubles.note(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
        self.queue.stir();
    }

    fn clock_doubt(&self) -> Option<Timestamp> {
        Some(self.clock_doubt.load(Ordering::Relaxed)).filter(|at| *at != i64::MIN).map(Timestamp::from_micros)
    }

    /// Reports new keys that have to share a budget, and returns them.
    fn share(&self, excess: Vec<Excess>, policy: &Policy) -> impl Iterator<Item = Key> {
        for Excess { limit, is_news, .. } in &excess {
            self.metrics.new_budgets_shared.with_label_values(&[limit]).inc();
            if *is_news {
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
        let mut place = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        policy.exceptions = place.exceptions.clone();
        let policy = Arc::new(policy);
        let former = std::mem::replace(&mut *place, policy.clone());
        drop(place);
        let kinds: Vec<String> = former.limits.iter().flat_map(Limit::kinds).collect();
        // A kind keeps the time that the last walk noted if the present one may be wrong: its budgets would go too early.
        if let Some(now) = self.hot.latest().filter(|_| self.clock_doubt().is_none()) {
            self.queue.send(Errand::Note(kinds.clone(), now));
        }
        Replaced { former, gone: self.tell_gone(kinds.into_iter()), inert: pending_exceptions::tell_inert(&policy) }
    }

    /// Says which of these limits are no longer in force, or mean something else, and returns them.
    fn tell_gone(&self, former: impl Iterator<Item = String>) -> Vec<String> {
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
