//! Cache of budgets in memory.

use super::hashed_key::{HashedKey, HashedKeyRef};
use super::queue::{Commit, NEVER_WRITTEN, Queue};
use crate::policy::key::Key;
use crate::policy::{Budget, Change, Loaded};
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

/// Memory for budgets, in octets; above it, folded budgets are dropped.
const MAX_OCTETS: usize = 160 << 20;

/// Slots without a budget in one shard before unused ones are dropped: some megabytes in all shards. Such a slot
/// remains of a key that was only asked for.
const MAX_EMPTY_SLOTS: usize = 64;

/// Memory of a budget beside its key and its filter, in octets: the slot, its entry in the map, and the allocator's
/// overhead.
const SLOT_OVERHEAD_OCTETS: usize = 112;

/// Time by which a decision may come later than it began.
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
    /// Transactions wait for each other and for the file, so one may run after others that began later. It runs at the
    /// time of the latest decision, because time that has passed must not pass again. `now` is the time at which the
    /// transaction `began`. If the clock was set back by more than the wait and [`MAX_REORDERING`], the earlier time is
    /// believed.
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

    /// Inserts unread budgets, unless they are in memory, and wakes the transactions that wait for them.
    pub fn insert_unread<'a>(&self, hashed_keys: impl IntoIterator<Item = HashedKeyRef<'a>>) {
        for hashed_key in hashed_keys {
            let mut shard = self.lock(shard_of(hashed_key.order));
            shard.loading.remove(hashed_key.key.as_str());
            if !shard.budgets.contains_key(hashed_key.key.as_str()) {
                let hashed_key = hashed_key.owned();
                shard.unread.push(hashed_key.clone());
                let slot =
                    Slot { budget: None, stage: Stage::Unread, recently_used: true, written_epoch: NEVER_WRITTEN };
                self.put(&mut shard, hashed_key, slot);
            }
        }
    }

    /// Takes the unread budgets of a shard, for the loader to read again.
    pub fn take_unread(&self, shard: usize) -> Vec<HashedKey> {
        std::mem::take(&mut self.lock(shard).unread)
    }

    /// Puts back budgets that could not be read again.
    pub fn put_back_unread(&self, hashed_keys: Vec<HashedKey>) {
        hashed_keys.into_iter().for_each(|hashed_key| self.lock(shard_of(hashed_key.order)).unread.push(hashed_key));
    }

    /// Returns whether any unread budget has counted something.
    pub fn has_counted_unread(&self) -> bool {
        let is_counted = |slot: &Slot| slot.stage == Stage::Unread && slot.budget.is_some();
        (0..SHARDS).any(|index| self.lock(index).budgets.values().any(is_counted))
    }

    pub fn has_unread(&self) -> bool {
        (0..SHARDS).any(|index| !self.lock(index).unread.is_empty())
    }

    /// Adds the stored budget to what an unread budget has counted in memory. `stored` comes from the table or from the
    /// journal. Returns true if the sum has to be written.
    pub fn merge(
        &self,
        hashed_key: &HashedKey,
        stored: Option<Budget>,
        epoch: u64,
        combine: impl FnOnce(Budget, Budget) -> Budget,
    ) -> bool {
        let shard = &mut *self.lock(shard_of(hashed_key.order));
        let slot = shard.budgets.get_mut(&hashed_key.key).filter(|slot| slot.stage == Stage::Unread);
        let Some(slot) = slot else { return false };
        let before = octets(&hashed_key.key, slot);
        let counted = slot.budget.take();
        let is_changed = counted.is_some();
        slot.stage = if is_changed { Stage::Changed } else { Stage::Folded };
        // Later increments may build on a filter read from the file, but not on one that has learnt in memory alone.
        slot.written_epoch = if is_changed { NEVER_WRITTEN } else { epoch };
        slot.budget = match (stored, counted) {
            (Some(stored), Some(counted)) => Some(combine(stored, counted)),
            (stored, counted) => stored.or(counted),
        };
        if is_changed {
            shard.changed.push(hashed_key.clone());
        }
        self.octets.fetch_add(octets(&hashed_key.key, slot).wrapping_sub(before), Ordering::Relaxed);
        is_changed
    }

    /// Inserts a budget from the journal, which is newer than its row in the file.
    pub fn replay(
        &self,
        hashed_key: HashedKey,
        budget: Budget,
        epoch: u64,
        combine: impl FnOnce(Budget, Budget) -> Budget,
    ) {
        let mut shard = self.lock(shard_of(hashed_key.order));
        if !shard.budgets.contains_key(&hashed_key.key) {
            shard.changed.push(hashed_key.clone());
            let slot = Slot { budget: Some(budget), stage: Stage::Changed, recently_used: false, written_epoch: epoch };
            return self.put(&mut shard, hashed_key, slot);
        }
        drop(shard);
        // A transaction asked for this budget before the file could be opened.
        if !self.merge(&hashed_key, Some(budget), epoch, combine) {
            let shard = &mut *self.lock(shard_of(hashed_key.order));
            if let Some(slot) = shard.budgets.get_mut(&hashed_key.key).filter(|slot| slot.stage == Stage::Folded) {
                slot.stage = Stage::Changed;
                shard.changed.push(hashed_key);
            }
        }
    }

    /// Returns whether the row of a budget could not be read.
    pub fn is_unread(&self, hashed_key: &HashedKey) -> bool {
        self.lock(shard_of(hashed_key.order))
            .budgets
            .get(&hashed_key.key)
            .is_some_and(|slot| slot.stage == Stage::Unread)
    }

    /// Returns whether the row of a budget has all its changes.
    pub fn is_folded(&self, hashed_key: &HashedKey) -> bool {
        let shard = self.lock(shard_of(hashed_key.order));
        shard.budgets.get(&hashed_key.key).is_none_or(|slot| slot.stage == Stage::Folded)
    }

    /// Takes the changed budgets of a shard, in order, for the writer to fold.
    pub fn take_changed(&self, shard: usize) -> Vec<HashedKey> {
        let mut changed = std::mem::take(&mut self.lock(shard).changed);
        changed.sort_unstable();
        changed
    }

    /// Returns whether any budget has to be folded.
    pub fn has_changed(&self) -> bool {
        (0..SHARDS).any(|index| !self.lock(index).changed.is_empty())
    }

    /// Returns a changed budget and marks it as being folded; `None` if it is no longer in memory.
    pub fn begin_fold(&self, hashed_key: &HashedKey) -> Option<Budget> {
        let mut shard = self.lock(shard_of(hashed_key.order));
        let slot = shard.budgets.get_mut(&hashed_key.key).filter(|slot| slot.stage == Stage::Changed)?;
        let budget = slot.budget.clone()?;
        slot.stage = Stage::Folding;
        Some(budget)
    }

    /// Marks budgets as folded in the epoch `done`; with `None` they could not be folded and are marked as changed.
    pub fn end_fold(&self, rows: &[(HashedKey, Budget)], done: Option<u64>) {
        for (hashed_key, _) in rows {
            let shard = &mut *self.lock(shard_of(hashed_key.order));
            let Some(slot) = shard.budgets.get_mut(&hashed_key.key) else { continue };
            match (slot.stage, done) {
                (Stage::Folding, Some(epoch)) => (slot.stage, slot.written_epoch) = (Stage::Folded, epoch),
                (Stage::Folding, None) => {
                    slot.stage = Stage::Changed;
                    shard.changed.push(hashed_key.clone());
                }
                // The budget changed meanwhile and will be folded again.
                (Stage::Changed | Stage::Folded | Stage::Unread | Stage::Volatile, _) => {}
            }
        }
    }

    /// Puts back budgets that were taken to be folded and were not.
    pub fn put_back(&self, hashed_keys: impl Iterator<Item = HashedKey>) {
        hashed_keys.for_each(|hashed_key| self.lock(shard_of(hashed_key.order)).changed.push(hashed_key));
    }

    /// Drops budgets not used recently until there is room. If that is not enough, drops unread budgets and, with
    /// `may_lose`, budgets that cannot be written. Returns the number of both.
    pub fn make_room(&self, may_lose: bool) -> usize {
        let mut lost = 0;
        // One round over the shards spares budgets used since the last sweep.
        for _ in 0..SHARDS {
            if !self.is_crowded() {
                break;
            }
            let index = self.sweep_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
            lost += self.sweep(index, self.octets() > 2 * MAX_OCTETS, may_lose);
        }
        lost
    }

    /// Drops slots without a budget that were not used recently, in shards that have many. Nothing is lost, and no
    /// snapshot of the file becomes out of date: such a budget is not in the file either.
    pub fn drop_empty(&self) {
        for index in 0..SHARDS {
            let shard = &mut *self.lock(index);
            if shard.empty <= MAX_EMPTY_SLOTS {
                continue;
            }
            let (mut dropped, mut empty) = (0, 0);
            shard.budgets.retain(|key, slot| {
                if slot.budget.is_some() || !matches!(slot.stage, Stage::Folded | Stage::Volatile) {
                    return true;
                }
                let keep = std::mem::take(&mut slot.recently_used);
                empty += usize::from(keep);
                dropped += if keep { 0 } else { octets(key, slot) };
                keep
            });
            shard.empty = empty;
            // A map does not free memory by itself.
            if shard.budgets.capacity() > 4 * shard.budgets.len() {
                shard.budgets.shrink_to(2 * shard.budgets.len());
            }
            self.octets.fetch_sub(dropped, Ordering::Relaxed);
        }
    }

    fn sweep(&self, index: usize, is_urgent: bool, may_lose: bool) -> usize {
        let shard = &mut *self.lock(index);
        let (mut dropped, mut lost) = (0, 0);
        let before = shard.budgets.len();
        shard.budgets.retain(|key, slot| {
            let is_needed = match slot.stage {
                Stage::Folded => false,
                Stage::Unread => !is_urgent,
                Stage::Volatile => slot.budget.is_some(),
                // While the file can be written these budgets must stay.
                Stage::Changed | Stage::Folding => !(is_urgent && may_lose),
            };
            let keep = std::mem::take(&mut slot.recently_used) || is_needed;
            if !keep {
                dropped += octets(key, slot);
                lost += usize::from(!matches!(slot.stage, Stage::Folded | Stage::Volatile));
            }
            keep
        });
        if lost > 0 {
            let budgets = &shard.budgets;
            shard.unread.retain(|hashed_key| budgets.contains_key(&hashed_key.key));
            shard.changed.retain(|hashed_key| budgets.contains_key(&hashed_key.key));
        }
        self.octets.fetch_sub(dropped, Ordering::Relaxed);
        // Count before the lock is released: a reader that misses a budget must see that some were dropped.
        self.dropped.fetch_add(before - shard.budgets.len(), Ordering::Release);
        lost
    }

    /// Returns the number of budgets dropped so far. A snapshot of the file that is older than the last drop may be out
    /// of date.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Acquire)
    }

    /// Returns whether the budgets exceed their memory.
    pub fn is_crowded(&self) -> bool {
        self.octets() > MAX_OCTETS
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
