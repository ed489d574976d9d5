//! Budgets in memory, and the changes that wait for the writer.

use super::Health;
use crate::engine::ewma::State;
use crate::policy::Loaded;
use crate::policy::key::Key;
use crate::policy::verdict::Verdict;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The lock guards everything here. It is held for a decision (about a microsecond), by the writer to take a batch, and never over
/// an `.await` or a write to disk.
#[derive(Default)]
pub struct Hot {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    work: Condvar,
}

struct Inner {
    budgets: HashMap<Key, Entry>,
    /// Counts the times budgets were dropped from memory: a load that began before may hold stale states.
    evictions: u64,
    /// Number of the batch that gathers changes now.
    batch: u64,
    /// All batches up to this one are folded into the budgets table.
    folded: u64,
    changes: HashMap<Key, State>,
    waiting: Vec<oneshot::Sender<()>>,
    health: Health,
    stopping: bool,
}

struct Entry {
    state: Option<State>,
    /// The batch of the last change; 0: unchanged since it was loaded.
    batch: u64,
}

/// What came of a decision.
pub enum Decided {
    /// Nothing was charged: there is nothing to wait for.
    Free(Vec<Verdict>),
    /// Something was charged: it is durable when the receiver hears.
    Charged(Vec<Verdict>, oneshot::Receiver<()>),
    /// Budgets must be loaded first.
    Missing { keys: Vec<Key>, evictions: u64 },
}

/// Changes to commit together, and who waits for them.
pub struct Batch {
    pub number: u64,
    pub changes: HashMap<Key, State>,
    pub waiting: Vec<oneshot::Sender<()>>,
}

/// What the writer is to do next.
pub enum Work {
    Commit(Batch),
    /// Nothing came for a while: time to fold, or to try again.
    Idle,
    Stop,
}

/// Budgets kept in memory; beyond that those that are folded are dropped. At some 200 octets each: 20 MB.
const MAX_BUDGETS: usize = 100_000;

impl Default for Inner {
    fn default() -> Self {
        Self {
            budgets: HashMap::new(),
            evictions: 0,
            batch: 1,
            folded: 0,
            changes: HashMap::new(),
            waiting: Vec::new(),
            health: Health::Good,
            stopping: false,
        }
    }
}

impl Hot {
    /// Decides on these budgets, if they are all here, and keeps what the decision charged.
    pub fn decide(&self, keys: &[Key], decide: impl FnOnce(&mut Loaded) -> Vec<Verdict>) -> Decided {
        let inner = &mut *self.lock();
        let missing: Vec<Key> = keys.iter().filter(|key| !inner.budgets.contains_key(key)).cloned().collect();
        if !missing.is_empty() {
            return Decided::Missing { keys: missing, evictions: inner.evictions };
        }
        let mut loaded = Loaded::default();
        for key in keys {
            loaded.insert(key.clone(), inner.budgets.get(key).and_then(|entry| entry.state));
        }
        let verdicts = decide(&mut loaded);
        let mut charged = false;
        for (key, state) in loaded.into_changed() {
            inner.budgets.insert(key.clone(), Entry { state: Some(state), batch: inner.batch });
            inner.changes.insert(key, state);
            charged = true;
        }
        if !charged {
            return Decided::Free(verdicts);
        }
        let (committed, commit) = oneshot::channel();
        inner.waiting.push(committed);
        self.work.notify_one();
        Decided::Charged(verdicts, commit)
    }

    /// Takes in loaded budgets, unless some were dropped since the load began: theirs may be among them, and newer in the file.
    pub fn insert(&self, loaded: impl Iterator<Item = (Key, Option<State>)>, evictions: u64) {
        let inner = &mut *self.lock();
        if inner.evictions != evictions {
            return;
        }
        for (key, state) in loaded {
            inner.budgets.entry(key).or_insert(Entry { state, batch: 0 });
        }
        if inner.budgets.len() > MAX_BUDGETS {
            inner.make_room();
        }
    }

    pub fn health(&self) -> Health {
        self.lock().health.clone()
    }

    pub fn len(&self) -> usize {
        self.lock().budgets.len()
    }

    /// Says that limits are kept in memory alone from now on; logged once.
    pub fn degrade(&self, reason: String) {
        let health = &mut self.lock().health;
        if *health == Health::Good {
            tracing::error!(reason, "state degraded: limits are kept in memory alone");
        }
        *health = Health::Degraded(reason);
    }

    /// Says that the file is in order again.
    pub fn recover(&self) {
        let health = &mut self.lock().health;
        if *health != Health::Good {
            tracing::info!("state recovered: everything is in the file again");
        }
        *health = Health::Good;
    }

    /// Waits for changes, for at most `patience`.
    pub fn next_work(&self, patience: Duration) -> Work {
        let idle = |inner: &mut Inner| inner.changes.is_empty() && !inner.stopping;
        let waited = self.work.wait_timeout_while(self.lock(), patience, idle);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !inner.changes.is_empty() {
            let batch = Batch {
                number: inner.batch,
                changes: std::mem::take(&mut inner.changes),
                waiting: std::mem::take(&mut inner.waiting),
            };
            inner.batch += 1;
            return Work::Commit(batch);
        }
        if inner.stopping { Work::Stop } else { Work::Idle }
    }

    /// Everything up to this batch is in the budgets table.
    pub fn folded(&self, batch: u64) {
        let inner = &mut *self.lock();
        inner.folded = batch;
        if inner.budgets.len() > MAX_BUDGETS {
            inner.make_room();
        }
    }

    /// Has the writer end after it has committed everything.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while deciding leaves the map whole: entries are replaced one by one.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Drops half of what may be dropped: budgets whose state is in the budgets table.
    fn make_room(&mut self) {
        let folded = self.folded;
        let mut keep = false;
        self.budgets.retain(|_, entry| {
            keep = !keep;
            keep || entry.batch > folded
        });
        self.evictions += 1;
    }
}
