//! Cache of budgets in memory.

mod eviction;
mod folding;
mod unread;

use super::commit_queue::{Commit, NEVER_WRITTEN, Queue};
use super::hashed_key::{HashedKey, HashedKeyRef};
use crate::policy::budgets::{Budget, Change, Key, Loaded};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Cache of budgets, in many shards. A decision locks the shards that it needs, in ascending order. It holds no lock
/// over an `.await` or over access to the disk. Decisions on one budget wait for each other; decisions on different
/// budgets hardly ever do.
pub struct BudgetCache {
    shards: Box<[Mutex<Shard>]>,
    /// Approximate memory that the budgets take.
    octets: AtomicUsize,
    /// Time of the latest decision, in microseconds; `i64::MIN` before the first.
    latest: AtomicI64,
    /// Number of budgets dropped so far.
    dropped: AtomicUsize,
    /// Shard that the next sweep for room looks at.
    sweep_at: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    budgets: HashMap<Key, Slot, foldhash::fast::RandomState>,
    /// Budgets changed since the writer last took this list to fold them.
    changed: Vec<HashedKey>,
    /// Budgets that the loader is reading, with the transactions that wait for them.
    loading: HashMap<Key, Vec<oneshot::Sender<()>>>,
    /// Budgets whose row could not be read.
    unread: Vec<HashedKey>,
    /// Number of slots added without a budget, counted anew each time such slots are dropped.
    empty: usize,
}

struct Slot {
    budget: Option<Budget>,
    stage: Stage,
    /// A transaction has used the budget since the last sweep for room.
    recently_used: bool,
    /// Epoch in which the filter was last written or read: see [`Queue::epoch`].
    written_epoch: u64,
}

/// How far a budget is on its way into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The row in the file equals the budget.
    Folded,
    /// The writer is writing the row.
    Folding,
    Changed,
    /// The row could not be read. The budget counts from zero, in memory alone, until the row can be read and both can
    /// be added.
    Unread,
    /// The budget counts present things, such as sessions; no file keeps it.
    Volatile,
}

/// Outcome of a transaction.
pub enum Transacted<R> {
    /// No durable budget was changed: there is nothing to wait for.
    Unchanged(R),
    Changed(R, Commit),
    /// Nothing was done, because the change could not have become durable.
    Refused,
    /// Some budgets are not in memory. The caller has those of `to_load` read; the loader is reading the others
    /// already. `waits` has one receiver for each.
    NotLoaded {
        to_load: Vec<HashedKey>,
        waits: Vec<oneshot::Receiver<()>>,
    },
}

/// Number of shards: a power of two, so large that two decisions seldom meet.
pub const SHARDS: usize = 256;

/// Memory of a budget beside its key and its filter, in octets: the slot, its entry in the map, and the allocator's
/// overhead.
const SLOT_OVERHEAD_OCTETS: usize = 112;

/// Maximum time that the clock of decisions may be ahead of a transaction that has not waited; if it is further ahead,
/// the wall clock was set back.
const MAX_REORDERING: Duration = Duration::from_secs(10);

impl Default for BudgetCache {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            octets: AtomicUsize::new(0),
            latest: AtomicI64::new(i64::MIN),
            dropped: AtomicUsize::new(0),
            sweep_at: AtomicUsize::new(0),
        }
    }
}

/// The locked shards of a transaction.
struct LockedShards<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl LockedShards<'_> {
    fn shard(&mut self, hashed_key: HashedKeyRef<'_>) -> Option<&mut Shard> {
        let index = shard_of(hashed_key.order);
        let at = self.0.iter().position(|(held, _)| *held == index)?;
        Some(&mut self.0[at].1)
    }

    fn slot(&mut self, hashed_key: HashedKeyRef<'_>) -> Option<&mut Slot> {
        self.shard(hashed_key)?.budgets.get_mut(hashed_key.key.as_str())
    }
}

/// Returns the shard of a hash. Each shard holds a range of the order.
fn shard_of(order: i64) -> usize {
    const SHIFT: u32 = u64::BITS - SHARDS.trailing_zeros();
    (order.cast_unsigned() >> SHIFT) as usize
}

impl BudgetCache {
    /// Runs `act` on these budgets if all are in memory, stores the changes and queues them for the writer. With
    /// `has_to_be_durable`, a transaction on a budget whose row could not be read is refused.
    ///
    /// `now` is the time at which the transaction `began`. Transactions wait for each other and for the file, so one
    /// may run after others that began later. It then runs at the time of the latest decision, because budgets must not
    /// see time go back. If that time is ahead by more than the wait and [`MAX_REORDERING`], the clock was set back,
    /// and the transaction runs at `now`.
    pub fn transact<R>(
        &self,
        (now, began): (Timestamp, Instant),
        hashed_keys: &[HashedKeyRef<'_>],
        queue: &Queue,
        has_to_be_durable: bool,
        act: impl FnOnce(Timestamp, &mut Loaded) -> R,
    ) -> Transacted<R> {
        let mut held = self.lock_shards(hashed_keys);
        let (to_load, waits) = self.not_loaded(&mut held, hashed_keys);
        if !waits.is_empty() {
            return Transacted::NotLoaded { to_load, waits };
        }
        if has_to_be_durable && held.has_unread(hashed_keys) {
            return Transacted::Refused;
        }
        let now = self.decision_time(now, began);
        let (mut freed, mut unread) = (0, Vec::new());
        let take = |(n, hashed_key): (usize, &HashedKeyRef<'_>)| {
            let slot = held.slot(*hashed_key)?;
            unread.extend((slot.stage == Stage::Unread).then_some(n));
            slot.budget.take().inspect(|budget| freed += filter_octets(budget))
        };
        let mut loaded: Loaded = hashed_keys.iter().enumerate().map(take).collect();
        unread.into_iter().for_each(|index| loaded.set_unread(index));
        let answer = act(now, &mut loaded);
        let (mut changes, mut taken, mut is_free) = (Vec::with_capacity(hashed_keys.len()), 0, true);
        for (&hashed_key, after) in hashed_keys.iter().zip(loaded.into_slots()) {
            let Some(slot) = held.slot(hashed_key) else { continue };
            slot.recently_used = true;
            slot.budget = after.budget;
            taken += slot.budget.as_ref().map_or(0, filter_octets);
            if let Some(change) = after.change {
                is_free &= slot.stage == Stage::Volatile;
                changes.push((hashed_key, change));
            }
        }
        if taken != freed {
            self.octets.fetch_add(taken.wrapping_sub(freed), Ordering::Relaxed);
        }
        match is_free {
            true => Transacted::Unchanged(answer),
            false => Transacted::Changed(answer, queue_changes(&mut held, changes, queue, began)),
        }
    }

    /// Returns a copy of a budget; `None` if the key is not in memory.
    pub fn peek(&self, hashed_key: HashedKeyRef<'_>) -> Option<Option<Budget>> {
        self.lock(shard_of(hashed_key.order)).budgets.get(hashed_key.key.as_str()).map(|slot| slot.budget.clone())
    }

    /// Returns the budgets that the caller has to have read, and a receiver for each budget that is not in memory.
    fn not_loaded(
        &self,
        held: &mut LockedShards<'_>,
        hashed_keys: &[HashedKeyRef<'_>],
    ) -> (Vec<HashedKey>, Vec<oneshot::Receiver<()>>) {
        let (mut to_load, mut waits) = (Vec::new(), Vec::new());
        for hashed_key in hashed_keys {
            let Some(shard) = held.shard(*hashed_key) else { continue };
            if shard.budgets.contains_key(hashed_key.key.as_str()) {
                continue;
            }
            let hashed_key = hashed_key.owned();
            // No file keeps volatile budgets.
            if hashed_key.key.is_volatile() {
                let slot =
                    Slot { budget: None, stage: Stage::Volatile, recently_used: true, written_epoch: NEVER_WRITTEN };
                self.put(shard, hashed_key, slot);
                continue;
            }
            let (done, wait) = oneshot::channel();
            waits.push(wait);
            let others = shard.loading.entry(hashed_key.key.clone()).or_insert_with(|| {
                to_load.push(hashed_key);
                Vec::new()
            });
            others.push(done);
        }
        (to_load, waits)
    }

    /// Subtracts one from a volatile budget.
    pub fn release(&self, hashed_key: HashedKeyRef<'_>) {
        let mut shard = self.lock(shard_of(hashed_key.order));
        let Some(slot) = shard.budgets.get_mut(hashed_key.key.as_str()) else { return };
        slot.budget = slot.budget.take().filter(|budget| budget.state.level > 1.0).map(|mut budget| {
            budget.state.level -= 1.0;
            budget
        });
        if slot.budget.is_none()
            && slot.stage == Stage::Volatile
            && let Some((key, slot)) = shard.budgets.remove_entry(hashed_key.key.as_str())
        {
            self.octets.fetch_sub(octets(&key, &slot), Ordering::Relaxed);
        }
    }

    /// Inserts budgets that were read from the file and wakes the transactions that wait for them. `epoch` is the
    /// queue's when the read began. Returns rows that were loaded after their waiters had timed out.
    pub fn insert(&self, read: Vec<(HashedKey, Option<Budget>)>, epoch: u64) -> Vec<(HashedKey, Option<Budget>)> {
        let mut late = Vec::new();
        for (hashed_key, budget) in read {
            let mut shard = self.lock(shard_of(hashed_key.order));
            // Dropping the senders wakes the waiters.
            shard.loading.remove(&hashed_key.key);
            if shard.budgets.contains_key(&hashed_key.key) {
                late.push((hashed_key, budget));
            } else {
                self.put(
                    &mut shard,
                    hashed_key,
                    Slot { budget, stage: Stage::Folded, recently_used: true, written_epoch: epoch },
                );
            }
        }
        late
    }

    fn octets(&self) -> usize {
        self.octets.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).budgets.len()).sum()
    }

    /// Returns the time of the latest decision; `None` before the first.
    pub fn latest(&self) -> Option<Timestamp> {
        Some(self.latest.load(Ordering::Relaxed)).filter(|at| *at != i64::MIN).map(Timestamp::from_micros)
    }

    /// Returns the time at which a transaction runs. The caller holds the locks of its budgets.
    fn decision_time(&self, now: Timestamp, began: Instant) -> Timestamp {
        let latest = Timestamp::from_micros(self.latest.fetch_max(now.micros(), Ordering::Relaxed));
        let ahead = latest.since(now);
        // In most cases no second clock has to be read.
        if ahead < MAX_REORDERING || ahead < MAX_REORDERING + began.elapsed() {
            return now.max(latest);
        }
        self.latest.store(now.micros(), Ordering::Relaxed);
        now
    }

    fn put(&self, shard: &mut Shard, hashed_key: HashedKey, slot: Slot) {
        self.octets.fetch_add(octets(&hashed_key.key, &slot), Ordering::Relaxed);
        shard.empty += usize::from(slot.budget.is_none());
        if let Some(before) = shard.budgets.insert(hashed_key.key.clone(), slot) {
            self.octets.fetch_sub(octets(&hashed_key.key, &before), Ordering::Relaxed);
        }
    }

    fn lock_shards(&self, hashed_keys: &[HashedKeyRef<'_>]) -> LockedShards<'_> {
        let mut indices: Vec<usize> = hashed_keys.iter().map(|hashed_key| shard_of(hashed_key.order)).collect();
        indices.sort_unstable();
        indices.dedup();
        LockedShards(indices.into_iter().map(|index| (index, self.lock(index))).collect())
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        // The lock is poisoned only if a fault of Weir's own panics in a decision: that one budget then begins anew.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockedShards<'_> {
    fn has_unread(&mut self, hashed_keys: &[HashedKeyRef<'_>]) -> bool {
        hashed_keys.iter().any(|hashed_key| self.slot(*hashed_key).is_some_and(|slot| slot.stage == Stage::Unread))
    }
}

/// Marks these budgets as changed and queues the changes for the writer.
fn queue_changes(
    held: &mut LockedShards<'_>,
    changes: Vec<(HashedKeyRef<'_>, Change)>,
    queue: &Queue,
    began: Instant,
) -> Commit {
    let mut appending = queue.append();
    let (mut any, mut all) = (false, true);
    for (hashed_key, change) in changes {
        let Some(shard) = held.shard(hashed_key) else { continue };
        let Some(slot) = shard.budgets.get_mut(hashed_key.key.as_str()) else { continue };
        match slot.stage {
            Stage::Unread => {
                all = false;
                continue;
            }
            Stage::Volatile => continue,
            Stage::Changed | Stage::Folded | Stage::Folding => {}
        }
        let before = std::mem::replace(&mut slot.stage, Stage::Changed);
        if let (Some(appending), Some(budget)) = (&mut appending, &slot.budget) {
            appending.push(hashed_key, budget, &change, &mut slot.written_epoch);
            any = true;
        }
        if before != Stage::Changed
            // Share the map's key instead of another copy.
            && let Some((key, _)) = shard.budgets.get_key_value(hashed_key.key.as_str())
        {
            shard.changed.push(HashedKey { order: hashed_key.order, key: key.clone() });
        }
    }
    match appending {
        Some(appending) if any => {
            let commit = appending.finish(began);
            // An unread budget is in memory alone, so the transaction as a whole is not durable.
            if all { commit } else { Commit::NEVER }
        }
        Some(_) | None => Commit::NEVER,
    }
}

fn filter_octets(budget: &Budget) -> usize {
    budget.seen.as_ref().map_or(0, |seen| seen.octets())
}

fn octets(key: &Key, slot: &Slot) -> usize {
    SLOT_OVERHEAD_OCTETS + key.as_str().len() + slot.budget.as_ref().map_or(0, filter_octets)
}
