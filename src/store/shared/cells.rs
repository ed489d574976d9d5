//! Copies of shared budgets in this node's memory, and the changes that are on their way to Redis.
//!
//! A transaction runs on the copies at once. Its changes join a group: all changed budgets that depend on each other.
//! The groups of one batch travel to Redis together, while the next batch is collected. Redis changes the budgets of a
//! group only if all of them still have the versions that the group expects. If another node was faster, the copies are
//! corrected, and the transactions of the group run again. So the transactions of one node on one budget never compete
//! with each other.

mod batch;
mod leases;
mod reading;
mod settling;

pub use batch::{Batch, FilterWrite, Outcome, Part, Reply, SentCell};
pub use reading::{ReadBudget, ReadFilter, Wanted};

use super::names::{Namer, Names};
use super::value::FilterExtent;
use crate::engine::lease::{Lease, Terms};
use crate::engine::{Receipt, State};
use crate::policy::budgets::{Budget, Change, Key, KeyRef, Loaded, Slot};
use crate::policy::{Lifetime, Policy};
use crate::time::Timestamp;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Copies of shared budgets. One lock guards them. It is held while a transaction decides, and never during an `.await`.
/// A thread that holds the lock of a cache shard is allowed to take this lock.
pub struct Cells {
    inner: Mutex<Inner>,
    /// Wakes the task that sends batches.
    pub work: Notify,
}

struct Inner {
    namer: Namer,
    max_age: Duration,
    cells: HashMap<Key, Cell, RandomState>,
    lifetimes: HashMap<String, Lifetime>,
    /// Budgets of which this node takes leases.
    leased: HashMap<Key, Terms, RandomState>,
    /// Groups of the batch that is being collected. A group that was merged into another one is empty.
    collecting: Vec<Group>,
    /// Groups of the batch that is on its way.
    flying: Vec<Group>,
    /// Budgets that are being read, each with the channels of the transactions that wait for it.
    loading: HashMap<Key, Vec<oneshot::Sender<()>>, RandomState>,
    /// True while Redis cannot be used. Transactions then change the copies only.
    is_away: bool,
    /// Number of cells at which unused ones are dropped.
    sweep_at: usize,
}

/// Copy of a shared budget.
struct Cell {
    names: Arc<Names>,
    lifetime: Lifetime,
    /// State that Redis had when this node last heard of it.
    confirmed: Confirmed,
    /// State with the changes of this node that Redis has not confirmed.
    working: Option<Budget>,
    /// Changes since the confirmed state, or since the state that is on its way. `None`: there are none.
    change: Option<Change>,
    /// Time when Redis last had the confirmed state; `None` if the budget must be read first.
    read_at: Option<Instant>,
    /// Index of the group in the batch that is being collected.
    group: Option<usize>,
    /// Index of the group in the batch that is on its way.
    flight: Option<usize>,
    /// Part of the budget that Redis does not have yet: it is added to the state that Redis has.
    owed: Option<Budget>,
    /// Charge that Redis has, and that is to be refunded: its transaction failed because of another budget.
    refund: Option<Receipt>,
    /// State right after this node has added or refunded what it owes, before the transactions since.
    paid: Option<State>,
    recently_used: bool,
    /// Terms of the leases; `None` if this node takes none of this budget, and has none.
    terms: Option<Terms>,
    lease: Option<Lease>,
    /// Version with which the bucket of the lease began.
    lease_began: u64,
    /// Amount that the changes since the confirmed state, or since the state that is on its way, have charged. Only for a
    /// budget with terms.
    pending: f64,
    /// True if the rest of the lease is to be returned.
    returns: bool,
    /// Time when the lease was last used.
    lease_used_at: Option<Instant>,
}

/// State that Redis has confirmed. The budget lacks its filter.
#[derive(Clone, Debug, Default)]
pub struct Confirmed {
    /// 0: Redis has no such budget.
    pub version: u64,
    pub budget: Option<Budget>,
    pub filter: Option<FilterExtent>,
    /// See [`Stored::began`](super::value::Stored::began).
    pub began: u64,
    /// Rests of leases that nodes have returned. They count as charged.
    pub returned: Option<Lease>,
}

/// Budgets that must change together, and the transactions that wait for the change.
#[derive(Default)]
struct Group {
    cells: Vec<Key>,
    waiting: Vec<oneshot::Sender<Outcome>>,
    /// Amounts that the transactions have charged to leases of this node, without changing the budgets in Redis.
    spent: Vec<(Key, f64)>,
}

/// Result of [`Cells::run`].
pub enum Ran<R> {
    /// The transaction has run. Its answer is valid if all these outcomes are [`Outcome::Valid`].
    Done(R, Vec<oneshot::Receiver<Outcome>>),
    /// The transaction has run, and its changes are in the memory of this node only.
    InMemory(R),
    /// The transaction must run again when these budgets have been read. If it has run, it changed no budget.
    NotLoaded { to_load: Vec<Key>, waits: Vec<oneshot::Receiver<()>> },
}

/// Maximum time by which another node's clock may be ahead of this node's. A budget's time does not go back because of
/// such a difference. If the time of a budget is further in the future, the clock that wrote it was wrong.
const MAX_SKEW: Duration = Duration::from_secs(60);

/// Number of cells from which on unused cells are dropped.
const MAX_CELLS: usize = 200_000;

impl Cells {
    /// `max_age`: see [`SharedOptions::max_age`](super::SharedOptions).
    pub fn new(namer: Namer, max_age: Duration, policy: &Policy) -> Self {
        let inner = Inner {
            namer,
            max_age,
            cells: HashMap::default(),
            lifetimes: lifetimes(policy),
            leased: leases::terms(policy),
            collecting: Vec::new(),
            flying: Vec::new(),
            loading: HashMap::default(),
            is_away: true,
            sweep_at: MAX_CELLS,
        };
        Self { inner: Mutex::new(inner), work: Notify::new() }
    }

    /// Runs `act` on these budgets, if they are in memory. The transaction began at `now`; `began` is the same moment on
    /// the monotonic clock.
    pub fn run<R>(
        &self,
        (now, began): (Timestamp, Instant),
        keys: &[KeyRef<'_>],
        act: impl FnOnce(Timestamp, &mut Loaded) -> R,
    ) -> Ran<R> {
        let inner = &mut *self.lock();
        let mut missing = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            if !inner.is_away && inner.cells.get(key.text()).is_none_or(|cell| cell.read_at.is_none()) {
                missing.push(index);
            }
        }
        if !missing.is_empty() {
            return inner.not_loaded(keys, &missing);
        }
        let now = inner.decision_time(now, keys);
        let before = inner.before_lease(keys, now);
        let mut loaded: Loaded = keys.iter().map(|key| inner.cell(*key).working.take()).collect();
        if inner.is_away {
            let unread = |(index, key): (usize, &KeyRef<'_>)| inner.cell(*key).read_at.is_none().then_some(index);
            let unread: Vec<usize> = keys.iter().enumerate().filter_map(unread).collect();
            unread.into_iter().for_each(|index| loaded.set_unread(index));
        }
        let answer = act(now, &mut loaded);
        let mut changed = inner.keep(keys, loaded.into_slots());
        if inner.is_away {
            return if changed.is_empty() { Ran::Done(answer, Vec::new()) } else { Ran::InMemory(answer) };
        }
        let spent = inner.spend(keys, &before, &mut changed, (now, began));
        let is_changed = |index: &usize| changed.contains(index) || spent.iter().any(|(other, _)| other == index);
        let uncertain =
            |index: &usize| !is_changed(index) && inner.cells[keys[*index].text()].is_uncertain(began, inner.max_age);
        let uncertain: Vec<usize> = (0..keys.len()).filter(uncertain).collect();
        if changed.is_empty() && spent.is_empty() {
            let old: Vec<usize> =
                uncertain.iter().copied().filter(|index| inner.cells[keys[*index].text()].is_settled()).collect();
            if !old.is_empty() {
                return inner.not_loaded(keys, &old);
            }
            return Ran::Done(answer, inner.wait_for(keys, &uncertain));
        }
        if changed.is_empty() && uncertain.is_empty() {
            return Ran::Done(answer, Vec::new());
        }
        let group = inner.join(changed.iter().chain(&uncertain).map(|index| keys[*index]));
        let (sender, receiver) = oneshot::channel();
        inner.collecting[group].spent.extend(spent.into_iter().map(|(index, amount)| (keys[index].owned(), amount)));
        inner.collecting[group].waiting.push(sender);
        self.work.notify_one();
        Ran::Done(answer, vec![receiver])
    }

    /// Makes the next transaction on these budgets compare them with those of Redis.
    pub fn expire(&self, keys: &[Key]) {
        let inner = &mut *self.lock();
        for key in keys {
            if let Some(cell) = inner.cells.get_mut(key).filter(|cell| cell.is_settled()) {
                cell.read_at = cell.read_at.and_then(|read_at| read_at.checked_sub(2 * inner.max_age));
            }
        }
    }

    /// Returns a copy of a budget, if this node has one that is not too old.
    pub fn peek(&self, key: KeyRef<'_>) -> Option<Option<Budget>> {
        let inner = self.lock();
        let cell = inner.cells.get(key.text()).filter(|cell| cell.read_at.is_some())?;
        Some(cell.working.clone())
    }

    /// Calls `take` with the key and the state of each budget in memory.
    pub fn for_each(&self, mut take: impl FnMut(KeyRef<'_>, State)) {
        for (key, cell) in &self.lock().cells {
            if let Some(budget) = &cell.working {
                take(key.borrowed(), budget.state);
            }
        }
    }

    pub fn is_away(&self) -> bool {
        self.lock().is_away
    }

    /// Returns whether changes wait for the next batch.
    pub fn is_collecting(&self) -> bool {
        !self.lock().collecting.is_empty()
    }

    /// Returns whether this node has counted something that Redis does not have yet.
    pub fn owes(&self) -> bool {
        self.lock().cells.values().any(|cell| cell.owes() || cell.change.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The lock is poisoned only if a bug in Weir causes a panic during a decision. The budgets of that decision
        // then begin from zero, until they are read again.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns the cell of a key; creates it if there is none.
    #[expect(clippy::expect_used, reason = "the cell is in the map, or was just inserted")]
    fn cell(&mut self, key: KeyRef<'_>) -> &mut Cell {
        if !self.cells.contains_key(key.text()) {
            self.sweep();
            let owned = key.owned();
            let lifetime = self.lifetimes.get(&owned.kind()).copied().unwrap_or(Lifetime::UNKNOWN);
            let terms = self.leased.get(&owned).copied();
            self.cells.insert(owned, Cell { terms, ..Cell::new(self.namer.names(key), lifetime) });
        }
        self.cells.get_mut(key.text()).expect("the cell was inserted")
    }

    /// Stores the budgets after a transaction. Returns the indices of the budgets that the transaction changed.
    fn keep(&mut self, keys: &[KeyRef<'_>], slots: impl Iterator<Item = Slot>) -> Vec<usize> {
        let mut changed = Vec::new();
        for (index, (key, slot)) in keys.iter().zip(slots).enumerate() {
            let cell = self.cell(*key);
            cell.recently_used = true;
            cell.working = slot.budget;
            if let Some(change) = slot.change {
                cell.change.get_or_insert_default().extend(change);
                changed.push(index);
            }
        }
        changed
    }

    /// Returns the time at which a transaction on these budgets runs. Another node's clock can be ahead.
    fn decision_time(&self, now: Timestamp, keys: &[KeyRef<'_>]) -> Timestamp {
        let time = |key: &KeyRef<'_>| Some(self.cells.get(key.text())?.working.as_ref()?.state.at);
        let ahead = |time: &Timestamp| *time > now && time.since(now) <= MAX_SKEW;
        keys.iter().filter_map(time).filter(ahead).max().unwrap_or(now)
    }

    /// Makes transactions wait for the reading of these budgets.
    fn not_loaded<R>(&mut self, keys: &[KeyRef<'_>], indices: &[usize]) -> Ran<R> {
        let (mut to_load, mut waits) = (Vec::new(), Vec::new());
        for key in indices.iter().map(|index| keys[*index].owned()) {
            let (sender, receiver) = oneshot::channel();
            let waiting = self.loading.entry(key.clone()).or_insert_with(|| {
                to_load.push(key);
                Vec::new()
            });
            waiting.push(sender);
            waits.push(receiver);
        }
        Ran::NotLoaded { to_load, waits }
    }

    /// Makes a transaction that changed nothing wait for the groups that may still change what it has seen.
    fn wait_for(&mut self, keys: &[KeyRef<'_>], indices: &[usize]) -> Vec<oneshot::Receiver<Outcome>> {
        let mut receivers = Vec::new();
        for key in indices.iter().map(|index| keys[*index]) {
            let Some(cell) = self.cells.get(key.text()) else { continue };
            let group = match (cell.group, cell.flight) {
                (Some(group), _) => &mut self.collecting[group],
                (None, Some(group)) => &mut self.flying[group],
                (None, None) => continue,
            };
            let (sender, receiver) = oneshot::channel();
            group.waiting.push(sender);
            receivers.push(receiver);
        }
        receivers
    }

    /// Drops cells that were not used recently and that Redis has, if there are many cells.
    fn sweep(&mut self) {
        if self.cells.len() < self.sweep_at {
            return;
        }
        let is_kept = |cell: &mut Cell| std::mem::take(&mut cell.recently_used) || cell.lease.is_some();
        self.cells.retain(|_, cell| is_kept(cell) || !cell.is_settled());
        self.sweep_at = MAX_CELLS.max(self.cells.len() + MAX_CELLS / 4);
    }
}

impl Cell {
    fn new(names: Names, lifetime: Lifetime) -> Self {
        Self {
            names: Arc::new(names),
            lifetime,
            confirmed: Confirmed::default(),
            working: None,
            change: None,
            read_at: None,
            group: None,
            flight: None,
            owed: None,
            refund: None,
            paid: None,
            recently_used: true,
            terms: None,
            lease: None,
            lease_began: 0,
            pending: 0.0,
            returns: false,
            lease_used_at: None,
        }
    }

    /// Returns whether Redis has all that this node has counted.
    fn is_settled(&self) -> bool {
        self.group.is_none() && self.flight.is_none() && self.change.is_none() && !self.owes()
    }

    /// Returns whether the budget in Redis has to be changed, without a transaction.
    fn owes(&self) -> bool {
        self.owed.is_some() || self.refund.is_some()
    }

    /// Returns whether Redis may have another state than the copy.
    /// `began`: the time when the transaction that uses the copy began.
    fn is_uncertain(&self, began: Instant, max_age: Duration) -> bool {
        !self.is_settled() || self.read_at.is_none_or(|read_at| read_at + max_age < began)
    }

    /// Makes transactions read the budget before they use it again.
    fn unload(&mut self) {
        (self.working, self.change, self.read_at) = (None, None, None);
    }
}

fn lifetimes(policy: &Policy) -> HashMap<String, Lifetime> {
    policy.stored_kinds().map(|(kind, stored)| (kind, stored.lifetime())).collect()
}

#[cfg(test)]
mod tests;
