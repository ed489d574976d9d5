//! Cache of budgets in memory.

mod eviction;
mod folding;
mod records;
mod shard;
mod slot;
mod unread;
mod volatile;

use super::commit_queue::{Commit, NEVER_WRITTEN, Queue};
use super::hashed_key::{HashedKey, HashedKeyRef};
use crate::engine::State;
use crate::policy::budgets::{Budget, Change, KeyRef, Loaded};
use crate::time::Timestamp;
use shard::Shard;
use slot::{SlotMut, SlotRef, Stage};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Cache of budgets, divided into many shards with one lock each. A transaction (one decision on budgets) locks the
/// shards of its budgets, in ascending order. The transaction holds no lock during an `.await` or an access to the
/// disk. Transactions on the same budget wait for each other. Transactions on different budgets wait for each other
/// only if two of their budgets are in the same shard.
pub struct BudgetCache {
    shards: Box<[Mutex<Shard>]>,
    /// Memory for budgets, in octets. While budgets take more memory, budgets that are in the table are dropped from
    /// memory.
    max_octets: usize,
    /// Memory that all budgets take, in octets.
    octets: AtomicUsize,
    /// True if changed budgets take much memory: see [`BudgetCache::must_fold`].
    must_fold: AtomicBool,
    /// Latest time at which a transaction ran, in microseconds since 1970; `i64::MIN` before the first transaction.
    latest: AtomicI64,
    /// Number of budgets dropped from memory since the start.
    dropped: AtomicUsize,
    /// Index of the shard with which eviction continues when memory is needed again.
    sweep_at: AtomicUsize,
}

/// Result of [`BudgetCache::transact`].
pub enum Transacted<R> {
    /// No budget of the file was changed, so the caller need not wait for a commit.
    Unchanged(R),
    Changed(R, Commit),
    /// The transaction was not run, because its changes could not become durable.
    Refused,
    /// The transaction was not run, because some budgets are not in memory. The caller asks the loader to read the
    /// budgets in `to_load`. The loader is already reading the other missing budgets. `waits` has one receiver for each
    /// missing budget.
    NotLoaded {
        to_load: Vec<HashedKey>,
        waits: Vec<oneshot::Receiver<()>>,
    },
}

/// Number of shards, a power of two. The number is so large that two transactions on different budgets seldom need the
/// same shard.
pub const SHARDS: usize = 256;

/// Maximum time by which the latest transaction can be later than a transaction that has not waited. A larger
/// difference means that the wall clock was set back.
const MAX_REORDERING: Duration = Duration::from_secs(10);

/// Number of budgets up to which a transaction hashes their keys and locks their shards without allocating memory.
pub const USUAL_KEYS: usize = 8;

/// The shards that a transaction has locked, each with its index.
struct LockedShards<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); USUAL_KEYS]>);

/// Place of a budget in locked shards. It is valid until a budget is inserted or dropped.
#[derive(Clone, Copy)]
struct SlotPlace {
    /// Index in [`LockedShards`].
    shard: usize,
    /// Index in the hash table of the shard.
    bucket: usize,
}

impl LockedShards<'_> {
    fn shard(&mut self, hashed_key: HashedKeyRef<'_>) -> Option<&mut Shard> {
        let at = self.position(hashed_key)?;
        Some(&mut self.0[at].1)
    }

    fn position(&self, hashed_key: HashedKeyRef<'_>) -> Option<usize> {
        let index = shard_of(hashed_key.order);
        self.0.iter().position(|(held, _)| *held == index)
    }

    /// Returns the places of these budgets; `None` if one of them is not in memory.
    fn places(&self, hashed_keys: &[HashedKeyRef<'_>]) -> Option<SmallVec<[SlotPlace; USUAL_KEYS]>> {
        let place = |hashed_key: &HashedKeyRef<'_>| {
            let shard = self.position(*hashed_key)?;
            Some(SlotPlace { shard, bucket: self.0[shard].1.bucket(*hashed_key)? })
        };
        hashed_keys.iter().map(place).collect()
    }

    fn edit<R>(
        &mut self,
        SlotPlace { shard, bucket }: SlotPlace,
        act: impl FnOnce(&mut SlotMut<'_>) -> R,
    ) -> Option<R> {
        self.0[shard].1.edit_in(bucket, act)
    }
}

/// Returns the index of the shard for a hash. Each shard contains a range of hashes.
fn shard_of(order: i64) -> usize {
    const SHIFT: u32 = u64::BITS - SHARDS.trailing_zeros();
    (order.cast_unsigned() >> SHIFT) as usize
}

impl BudgetCache {
    /// Creates an empty cache. `max_octets` is the memory for budgets, in octets.
    pub fn new(max_octets: usize) -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            max_octets,
            octets: AtomicUsize::new(0),
            must_fold: AtomicBool::new(false),
            latest: AtomicI64::new(i64::MIN),
            dropped: AtomicUsize::new(0),
            sweep_at: AtomicUsize::new(0),
        }
    }

    /// Runs `act` on these budgets if all of them are in memory, stores the changed budgets, and appends the changes to
    /// the queue. If `has_to_be_durable` is true and the row of one of the budgets could not be read, the
    /// transaction is refused.
    ///
    /// `now` is the time when the transaction began. `began` is the same moment on the monotonic clock. A transaction
    /// may have to wait for other transactions and for the file. It can therefore run after transactions that began
    /// later. In this case it runs at the latest time at which a transaction ran, because time must not go back for a
    /// budget. If that latest time is after `now` by more than the wait plus [`MAX_REORDERING`], the clock was set
    /// back, and the transaction runs at `now`.
    pub fn transact<R>(
        &self,
        (now, began): (Timestamp, Instant),
        hashed_keys: &[HashedKeyRef<'_>],
        queue: &Queue,
        has_to_be_durable: bool,
        act: impl FnOnce(Timestamp, &mut Loaded) -> R,
    ) -> Transacted<R> {
        let mut held = self.lock_shards(hashed_keys);
        let places = match held.places(hashed_keys) {
            Some(places) => places,
            None => {
                let (to_load, waits) = self.not_loaded(&mut held, hashed_keys);
                // The volatile budgets are in memory now.
                let Some(places) = held.places(hashed_keys) else {
                    return Transacted::NotLoaded { to_load, waits };
                };
                places
            }
        };
        if has_to_be_durable && held.has_unread(&places) {
            return Transacted::Refused;
        }
        let now = self.decision_time(now, began);
        let (mut freed, mut unread) = (0, Vec::new());
        let take = |(n, place): (usize, &SlotPlace)| {
            held.edit(*place, |slot| {
                unread.extend((slot.stage == Stage::Unread).then_some(n));
                freed += slot.octets();
                slot.take()
            })?
        };
        let mut loaded: Loaded = places.iter().enumerate().map(take).collect();
        unread.into_iter().for_each(|index| loaded.set_unread(index));
        let answer = act(now, &mut loaded);
        let (mut changes, mut taken, mut is_free) = (Vec::with_capacity(hashed_keys.len()), 0, true);
        for ((&hashed_key, &place), after) in hashed_keys.iter().zip(&places).zip(loaded.into_slots()) {
            let is_changed = after.change.is_some();
            let budget = after.budget.as_ref().filter(|_| is_changed).cloned();
            let put = |slot: &mut SlotMut<'_>| {
                slot.recently_used = true;
                if is_changed {
                    slot.put(after.budget)
                } else {
                    slot.put_back(after.budget)
                }
                taken += slot.octets();
                slot.stage
            };
            let Some(stage) = held.edit(place, put) else { continue };
            if let Some(change) = after.change {
                is_free &= stage == Stage::Volatile;
                changes.push(Changed { hashed_key, place, budget, change });
            }
        }
        if taken != freed {
            self.octets.fetch_add(taken.wrapping_sub(freed), Ordering::Relaxed);
        }
        match is_free {
            true => Transacted::Unchanged(answer),
            false => Transacted::Changed(answer, queue_changes(&mut held, changes, queue)),
        }
    }

    /// Returns a copy of a budget. The outer `None` means that the key is not in memory. The inner `None` means that
    /// the key has no budget.
    pub fn peek(&self, hashed_key: HashedKeyRef<'_>) -> Option<Option<Budget>> {
        self.lock(shard_of(hashed_key.order)).get(hashed_key).map(SlotRef::budget)
    }

    /// Returns the budgets that the loader must be asked to read. Also returns a receiver for each budget that is not
    /// in memory.
    fn not_loaded(
        &self,
        held: &mut LockedShards<'_>,
        hashed_keys: &[HashedKeyRef<'_>],
    ) -> (Vec<HashedKey>, Vec<oneshot::Receiver<()>>) {
        let (mut to_load, mut waits) = (Vec::new(), Vec::new());
        for &hashed_key in hashed_keys {
            let Some(shard) = held.shard(hashed_key) else { continue };
            if shard.contains(hashed_key) {
                continue;
            }
            // A volatile budget is never in the file.
            if hashed_key.key.is_volatile() {
                let octets = shard.insert(hashed_key, None, Stage::Volatile, NEVER_WRITTEN, true);
                self.octets.fetch_add(octets, Ordering::Relaxed);
                continue;
            }
            let hashed_key = hashed_key.owned();
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

    /// Subtracts 1 from the level of a volatile budget, for example when a session ends.
    pub fn release(&self, hashed_key: HashedKeyRef<'_>) {
        let mut shard = self.lock(shard_of(hashed_key.order));
        let release = |slot: &mut SlotMut<'_>| {
            let before = slot.octets();
            slot.put(slot.budget().filter(|budget| budget.state.level > 1.0).map(|mut budget| {
                budget.state.level -= 1.0;
                budget
            }));
            (slot.octets().wrapping_sub(before), slot.stage == Stage::Volatile && !slot.has_budget())
        };
        let Some((taken, is_over)) = shard.edit(hashed_key, release) else { return };
        let freed = if is_over { shard.remove(hashed_key) } else { 0 };
        self.octets.fetch_add(taken.wrapping_sub(freed), Ordering::Relaxed);
    }

    /// Inserts budgets that were read from the file, and wakes the transactions that wait for them. `epoch` is the
    /// queue's epoch when the read began. Returns the budgets that were read too late: their transactions have stopped
    /// waiting, and count in memory only.
    pub fn insert(&self, read: Vec<(HashedKey, Option<Budget>)>, epoch: u64) -> Vec<(HashedKey, Option<Budget>)> {
        let mut late = Vec::new();
        for (hashed_key, budget) in read {
            let mut shard = self.lock(shard_of(hashed_key.order));
            // Dropping the senders wakes the waiting transactions.
            shard.loading.remove(&hashed_key.key);
            if shard.contains(hashed_key.borrowed()) {
                late.push((hashed_key, budget));
            } else {
                let octets = shard.insert(hashed_key.borrowed(), budget, Stage::Folded, epoch, true);
                self.octets.fetch_add(octets, Ordering::Relaxed);
            }
        }
        late
    }

    /// Calls `take` with the key of each budget in memory.
    pub fn for_each_key(&self, mut take: impl FnMut(KeyRef<'_>)) {
        for index in 0..SHARDS {
            self.lock(index).for_each(|key, slot| {
                if slot.has_budget() {
                    take(key);
                }
            });
        }
    }

    /// Calls `take` with each budget in memory that is in the shard at this index, below [`SHARDS`]. No decision on these
    /// budgets can be made meanwhile.
    pub fn for_each_in_shard(&self, index: usize, mut take: impl FnMut(KeyRef<'_>, State)) {
        self.lock(index).for_each(|key, slot| {
            if let Some(state) = slot.state() {
                take(key, state);
            }
        });
    }

    /// Returns the memory that the budgets take, in octets.
    pub fn octets(&self) -> usize {
        self.octets.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).len()).sum()
    }

    /// Returns the latest time at which a transaction ran; `None` before the first transaction.
    pub fn latest(&self) -> Option<Timestamp> {
        Some(self.latest.load(Ordering::Relaxed)).filter(|at| *at != i64::MIN).map(Timestamp::from_micros)
    }

    /// Returns the time at which a transaction must run: see [`BudgetCache::transact`]. The caller holds the locks of
    /// the transaction's budgets.
    fn decision_time(&self, now: Timestamp, began: Instant) -> Timestamp {
        let latest = Timestamp::from_micros(self.latest.fetch_max(now.micros(), Ordering::Relaxed));
        let ahead = latest.since(now);
        // The first condition is almost always true, so that the other clock need not be read.
        if ahead < MAX_REORDERING || ahead < MAX_REORDERING + began.elapsed() {
            return now.max(latest);
        }
        self.latest.store(now.micros(), Ordering::Relaxed);
        now
    }

    fn lock_shards(&self, hashed_keys: &[HashedKeyRef<'_>]) -> LockedShards<'_> {
        let mut indices: SmallVec<[usize; USUAL_KEYS]> =
            hashed_keys.iter().map(|hashed_key| shard_of(hashed_key.order)).collect();
        indices.sort_unstable();
        indices.dedup();
        LockedShards(indices.into_iter().map(|index| (index, self.lock(index))).collect())
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        // The lock is poisoned only if a bug in Weir causes a panic during a decision. The budgets of that decision
        // then begin from zero.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockedShards<'_> {
    fn has_unread(&mut self, places: &[SlotPlace]) -> bool {
        places.iter().any(|place| self.edit(*place, |slot| slot.stage == Stage::Unread) == Some(true))
    }
}

/// Budget that a transaction has changed.
struct Changed<'a> {
    hashed_key: HashedKeyRef<'a>,
    place: SlotPlace,
    budget: Option<Budget>,
    change: Change,
}

/// Marks these budgets as changed and appends the changes to the queue.
fn queue_changes(held: &mut LockedShards<'_>, changes: Vec<Changed<'_>>, queue: &Queue) -> Commit {
    let mut appending = queue.append();
    let (mut any, mut all) = (false, true);
    for Changed { hashed_key, place, budget, change } in changes {
        let append = |slot: &mut SlotMut<'_>| {
            let Some(budget) = &budget else { return };
            match slot.stage {
                Stage::Unread => return all = false,
                Stage::Volatile => return,
                Stage::Changed | Stage::Folded | Stage::Folding => slot.stage = Stage::Changed,
            }
            if let Some(appending) = &mut appending {
                appending.push(hashed_key, budget, &change, &mut slot.written_epoch);
                any = true;
            }
        };
        held.edit(place, append);
    }
    match appending {
        Some(appending) if any => {
            let commit = appending.finish();
            // A change of an unread budget is not written, so the transaction as a whole is not durable.
            if all { commit } else { Commit::NEVER }
        }
        Some(_) | None => Commit::NEVER,
    }
}
