//! Budgets in memory, and the changes that wait for the writer.

use super::Health;
use crate::policy::key::Key;
use crate::policy::verdict::Verdict;
use crate::policy::{Budget, Loaded};
use crate::time::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The lock guards everything here. It is held for a decision, by the writer to take a batch, and never over an `.await` or a write
/// to disk.
#[derive(Default)]
pub struct Hot {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    work: Condvar,
}

struct Inner {
    /// When the latest decision was taken.
    latest: Timestamp,
    budgets: HashMap<Key, Entry>,
    /// What the budgets take in memory, about.
    bytes: usize,
    /// Budgets whose state in the file could not be read. They count from nothing, in memory alone, lest the file's history be
    /// overwritten.
    unread: HashSet<Key>,
    /// Counts the times budgets were dropped from memory: a load that began before may hold stale states.
    evictions: u64,
    /// Number of the batch that gathers changes now.
    batch: u64,
    /// All batches up to this one are folded into the budgets table.
    folded: u64,
    changes: HashMap<Key, Budget>,
    waiting: Vec<oneshot::Sender<()>>,
    /// What is wrong with the file now, by what was tried.
    troubles: BTreeMap<Attempt, String>,
    stopping: bool,
    /// The writer has ended: nobody is left to wait for.
    ended: bool,
}

struct Entry {
    budget: Option<Budget>,
    /// The batch of the last change; 0: unchanged since it was loaded.
    batch: u64,
}

/// What is done with the file, each of which may fail and succeed again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    Append,
    Fold,
    Load,
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
    pub changes: HashMap<Key, Budget>,
    pub waiting: Vec<oneshot::Sender<()>>,
}

/// What the writer is to do next.
pub enum Work {
    Commit(Batch),
    /// Nothing came for a while: time to fold, or to try again.
    Idle,
    Stop,
}

/// What budgets may take in memory; beyond that those that are folded are dropped.
const MAX_BYTES: usize = 64 << 20;

/// What a budget takes beside its key and its filter: the entry, its place in the map, and what the allocator needs.
const OVERHEAD: usize = 160;

/// How much later than it began a decision may come.
const MAX_LAG: Duration = Duration::from_secs(10);

impl Default for Inner {
    fn default() -> Self {
        Self {
            latest: Timestamp::from_micros(i64::MIN),
            budgets: HashMap::new(),
            bytes: 0,
            unread: HashSet::new(),
            evictions: 0,
            batch: 1,
            folded: 0,
            changes: HashMap::new(),
            waiting: Vec::new(),
            troubles: BTreeMap::new(),
            stopping: false,
            ended: false,
        }
    }
}

impl Hot {
    /// Decides on these budgets, if they are all here, and keeps what the decision charged.
    ///
    /// Decisions wait for each other, and for loads: one may come after others that began later. It is taken at the time of the
    /// latest, as time that has passed must not pass again. A clock that was set back by more than that is believed.
    pub fn decide(
        &self,
        now: Timestamp,
        keys: &[Key],
        decide: impl FnOnce(Timestamp, &mut Loaded) -> Vec<Verdict>,
    ) -> Decided {
        let inner = &mut *self.lock();
        let now = if inner.latest.since(now) < MAX_LAG { now.max(inner.latest) } else { now };
        inner.latest = now;
        let missing: Vec<Key> = keys.iter().filter(|key| !inner.budgets.contains_key(key)).cloned().collect();
        if !missing.is_empty() {
            return Decided::Missing { keys: missing, evictions: inner.evictions };
        }
        let mut loaded: Loaded =
            keys.iter().map(|key| inner.budgets.get(key).and_then(|entry| entry.budget.clone())).collect();
        let verdicts = decide(now, &mut loaded);
        let mut charged = false;
        for (place, budget) in loaded.into_changed() {
            let key = &keys[place];
            inner.set(key, Entry { budget: Some(budget.clone()), batch: inner.batch });
            if !inner.unread.contains(key) {
                inner.changes.insert(key.clone(), budget);
                charged = true;
            }
        }
        if !charged || inner.ended {
            return Decided::Free(verdicts);
        }
        let (committed, commit) = oneshot::channel();
        inner.waiting.push(committed);
        self.work.notify_one();
        Decided::Charged(verdicts, commit)
    }

    /// Takes in loaded budgets, unless some were dropped since the load began: theirs may be among them, and newer in the file.
    pub fn insert(&self, loaded: impl Iterator<Item = (Key, Option<Budget>)>, evictions: u64) {
        let inner = &mut *self.lock();
        if inner.evictions != evictions {
            return;
        }
        for (key, budget) in loaded {
            if !inner.budgets.contains_key(&key) {
                inner.set(&key, Entry { budget, batch: 0 });
            }
        }
        inner.make_room();
    }

    /// Takes in budgets that could not be loaded, for this reason. True: the store is degraded.
    pub fn insert_unread(&self, keys: Vec<Key>, reason: String) -> bool {
        let inner = &mut *self.lock();
        for key in keys {
            if !inner.budgets.contains_key(&key) {
                inner.set(&key, Entry { budget: None, batch: 0 });
                inner.unread.insert(key);
            }
        }
        inner.note(Attempt::Load, Err(reason))
    }

    /// Budgets that could not be loaded, to be tried again.
    pub fn unread(&self) -> Vec<Key> {
        self.lock().unread.iter().cloned().collect()
    }

    /// A budget that could not be loaded has been: what the file has counts. Where it has nothing, what was counted meanwhile does,
    /// and is to be written.
    pub fn loaded(&self, key: &Key, stored: Option<Budget>) {
        let inner = &mut *self.lock();
        if !inner.unread.remove(key) {
            return;
        }
        let counted = inner.budgets.get_mut(key).and_then(|entry| entry.budget.take());
        match (stored, counted) {
            (Some(stored), _) => inner.set(key, Entry { budget: Some(stored), batch: 0 }),
            (None, Some(counted)) => {
                inner.changes.insert(key.clone(), counted.clone());
                inner.set(key, Entry { budget: Some(counted), batch: inner.batch });
                self.work.notify_one();
            }
            (None, None) => {}
        }
    }

    pub fn health(&self) -> Health {
        let troubles = &self.lock().troubles;
        if troubles.is_empty() {
            return Health::Good;
        }
        Health::Degraded(troubles.values().cloned().collect::<Vec<_>>().join("; "))
    }

    pub fn len(&self) -> usize {
        self.lock().budgets.len()
    }

    /// Notes how an attempt on the file went. The first failure and the last success are logged; true while any trouble is left.
    pub fn note(&self, attempt: Attempt, outcome: Result<(), String>) -> bool {
        self.lock().note(attempt, outcome)
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
        inner.make_room();
    }

    /// The writer has ended: whoever waits for it, or would, goes on.
    pub fn writer_ended(&self) {
        let inner = &mut *self.lock();
        inner.ended = true;
        inner.waiting.clear();
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
    fn note(&mut self, attempt: Attempt, outcome: Result<(), String>) -> bool {
        let troubles = &mut self.troubles;
        let was_good = troubles.is_empty();
        match outcome {
            // As long as a budget is unread, the trouble is not over.
            Ok(()) if attempt == Attempt::Load && !self.unread.is_empty() => {}
            Ok(()) => drop(troubles.remove(&attempt)),
            Err(reason) => {
                if was_good {
                    tracing::error!(reason, "state degraded: limits are kept in memory alone");
                }
                troubles.insert(attempt, reason);
            }
        }
        if !was_good && troubles.is_empty() {
            tracing::info!("state recovered: everything is in the file again");
        }
        !troubles.is_empty()
    }

    fn set(&mut self, key: &Key, entry: Entry) {
        self.bytes += size(key, &entry);
        if let Some(before) = self.budgets.insert(key.clone(), entry) {
            self.bytes -= size(key, &before);
        }
    }

    /// Drops half of what may be dropped, where there is too much: budgets whose state is in the budgets table.
    fn make_room(&mut self) {
        if self.bytes <= MAX_BYTES {
            return;
        }
        let (folded, unread, before) = (self.folded, &self.unread, self.budgets.len());
        let (mut keep, mut bytes) = (false, 0);
        self.budgets.retain(|key, entry| {
            keep = !keep;
            let kept = keep || entry.batch > folded || unread.contains(key);
            bytes += if kept { size(key, entry) } else { 0 };
            kept
        });
        self.bytes = bytes;
        // A load under way is void only if something was dropped.
        self.evictions += u64::from(self.budgets.len() < before);
    }
}

fn size(key: &Key, entry: &Entry) -> usize {
    let seen = entry.budget.as_ref().and_then(|budget| budget.seen.as_ref());
    OVERHEAD + key.as_str().len() + seen.map_or(0, |seen| seen.octets())
}
