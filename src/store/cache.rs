//! Budgets in memory.

use super::hashed_key::{HashedKey, HashedKeyRef};
use super::queue::{Commit, NEVER, Queue};
use crate::policy::key::Key;
use crate::policy::{Budget, Change, Loaded};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Budgets in memory, each in one of many shards. A decision holds the locks of the shards that it needs, in ascending order, and
/// never over an `.await` or anything on disk: decisions on one budget wait for each other, those on others hardly ever do.
pub struct BudgetCache {
    shards: Box<[Mutex<Shard>]>,
    /// What the budgets take in memory, about.
    octets: AtomicUsize,
    /// When the latest decision was taken: microseconds.
    latest: AtomicI64,
    /// How many budgets were dropped so far.
    dropped: AtomicUsize,
    /// The shard where to look for room next.
    hand: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    budgets: HashMap<Key, Slot, foldhash::fast::RandomState>,
    /// Budgets that have changed since they were last given to be folded.
    changed: Vec<HashedKey>,
    /// Budgets that are being read from the file, and who waits for them.
    loading: HashMap<Key, Vec<oneshot::Sender<()>>>,
    /// Budgets of which the file could not be asked.
    unread: Vec<HashedKey>,
    /// Slots that came without a budget since those were last dropped that still had none.
    empty: usize,
}

struct Slot {
    budget: Option<Budget>,
    stage: Stage,
    /// It was of use since the last look for room.
    used: bool,
    /// See [`Queue::epoch`].
    written: u64,
}

/// How far a budget has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its row in the file says the same.
    Folded,
    /// Its row is being written.
    AddressNormalizer,
    Changed,
    /// Its row could not be read. It counts from nothing and in memory alone until it can be, and both can be added.
    Unread,
    /// It counts what is there at the moment, and no file keeps it.
    Volatile,
}

/// What came of an act.
pub enum Acted<R> {
    /// Nothing was changed: there is nothing to wait for.
    Free(R),
    Changed(R, Commit),
    /// Nothing was done: it could not have become durable.
    Refused,
    /// Budgets must be read first: those of `read` by whoever gets this, the others are being read. Each receiver hears of one.
    Missing {
        read: Vec<HashedKey>,
        waits: Vec<oneshot::Receiver<()>>,
    },
}

/// Shards: a power of two, so many that two decisions seldom meet.
pub const SHARDS: usize = 256;

/// What budgets may take in memory; beyond that those that are folded are dropped.
const MAX_OCTETS: usize = 160 << 20;

/// Slots without a budget in a shard, whose keys were only asked for, before unused ones are dropped: some megabytes in all shards.
const MAX_EMPTY: usize = 64;

/// What a budget takes beside its key and its filter: the slot, its place in the map, and what the allocator needs.
const OVERHEAD: usize = 112;

/// How much later than it began a decision may come.
const MAX_LAG: Duration = Duration::from_secs(10);

impl Default for BudgetCache {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            octets: AtomicUsize::new(0),
            latest: AtomicI64::new(i64::MIN),
            dropped: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
        }
    }
}

/// The shards of a question, locked.
struct Held<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl Held<'_> {
    fn shard(&mut self, place: HashedKeyRef<'_>) -> Option<&mut Shard> {
        let index = shard_of(place.order);
        let at = self.0.iter().position(|(held, _)| *held == index)?;
        Some(&mut self.0[at].1)
    }

    fn slot(&mut self, place: HashedKeyRef<'_>) -> Option<&mut Slot> {
        self.shard(place)?.budgets.get_mut(place.key.as_str())
    }
}

/// A shard holds a stretch of the order.
fn shard_of(order: i64) -> usize {
    const SHIFT: u32 = u64::BITS - SHARDS.trailing_zeros();
    (order.cast_unsigned() >> SHIFT) as usize
}

impl BudgetCache {
    /// Acts on these budgets, if they are all here, keeps what has changed, and has it written. Where that has to be
    /// durable, nothing is done on budgets of which the file could not be asked.
    ///
    /// Acts wait for each other, and for the file: one may come after others that began later. It is done at the time of the latest,
    /// as time that has passed must not pass again. `now` was when it `began`; a clock that was set back by more than that, and some
    /// seconds, is believed.
    pub fn act<R>(
        &self,
        (now, began): (Timestamp, Instant),
        places: &[HashedKeyRef<'_>],
        queue: &Queue,
        has_to_be_durable: bool,
        act: impl FnOnce(Timestamp, &mut Loaded) -> R,
    ) -> Acted<R> {
        let mut held = self.hold(places);
        let (read, waits) = self.missing(&mut held, places);
        if !waits.is_empty() {
            return Acted::Missing { read, waits };
        }
        if has_to_be_durable && held.has_unread(places) {
            return Acted::Refused;
        }
        let now = self.time(now, began);
        let (mut freed, mut unread) = (0, Vec::new());
        let take = |(n, place): (usize, &HashedKeyRef<'_>)| {
            let slot = held.slot(*place)?;
            unread.extend((slot.stage == Stage::Unread).then_some(n));
            slot.budget.take().inspect(|budget| freed += filter_octets(budget))
        };
        let mut loaded: Loaded = places.iter().enumerate().map(take).collect();
        unread.into_iter().for_each(|place| loaded.set_unread(place));
        let answer = act(now, &mut loaded);
        let (mut changes, mut taken, mut is_free) = (Vec::with_capacity(places.len()), 0, true);
        for (&place, after) in places.iter().zip(loaded.into_slots()) {
            let Some(slot) = held.slot(place) else { continue };
            slot.used = true;
            slot.budget = after.budget;
            taken += slot.budget.as_ref().map_or(0, filter_octets);
            if let Some(change) = after.change {
                is_free &= slot.stage == Stage::Volatile;
                changes.push((place, change));
            }
        }
        if taken != freed {
            self.octets.fetch_add(taken.wrapping_sub(freed), Ordering::Relaxed);
        }
        match is_free {
            true => Acted::Free(answer),
            false => Acted::Changed(answer, write(&mut held, changes, queue, began)),
        }
    }

    /// A budget as it is at the moment; `None` if it is not here.
    pub fn peek(&self, place: HashedKeyRef<'_>) -> Option<Option<Budget>> {
        self.lock(shard_of(place.order)).budgets.get(place.key.as_str()).map(|slot| slot.budget.clone())
    }

    /// What has to be read before an act, and all that has to be waited for.
    fn missing(
        &self,
        held: &mut Held<'_>,
        places: &[HashedKeyRef<'_>],
    ) -> (Vec<HashedKey>, Vec<oneshot::Receiver<()>>) {
        let (mut read, mut waits) = (Vec::new(), Vec::new());
        for place in places {
            let Some(shard) = held.shard(*place) else { continue };
            if shard.budgets.contains_key(place.key.as_str()) {
                continue;
            }
            let place = place.owned();
            // Of what is counted while it is there no file tells.
            if place.key.is_volatile() {
                let slot = Slot { budget: None, stage: Stage::Volatile, used: true, written: NEVER };
                self.put(shard, place, slot);
                continue;
            }
            let (done, wait) = oneshot::channel();
            waits.push(wait);
            let others = shard.loading.entry(place.key.clone()).or_insert_with(|| {
                read.push(place);
                Vec::new()
            });
            others.push(done);
        }
        (read, waits)
    }

    /// One less is there of what a volatile budget counts.
    pub fn release(&self, place: HashedKeyRef<'_>) {
        let mut shard = self.lock(shard_of(place.order));
        let Some(slot) = shard.budgets.get_mut(place.key.as_str()) else { return };
        slot.budget = slot.budget.take().filter(|budget| budget.state.level > 1.0).map(|mut budget| {
            budget.state.level -= 1.0;
            budget
        });
        if slot.budget.is_none()
            && slot.stage == Stage::Volatile
            && let Some((key, slot)) = shard.budgets.remove_entry(place.key.as_str())
        {
            self.octets.fetch_sub(octets(&key, &slot), Ordering::Relaxed);
        }
    }

    /// Takes in budgets that were read from the file, and wakes whoever waits for them. `epoch` is that of the queue. Those that come
    /// too late, as whoever waited went on without, are left over.
    pub fn insert(&self, read: Vec<(HashedKey, Option<Budget>)>, epoch: u64) -> Vec<(HashedKey, Option<Budget>)> {
        let mut late = Vec::new();
        for (place, budget) in read {
            let mut shard = self.lock(shard_of(place.order));
            // Dropping them wakes those who wait.
            shard.loading.remove(&place.key);
            if shard.budgets.contains_key(&place.key) {
                late.push((place, budget));
            } else {
                self.put(&mut shard, place, Slot { budget, stage: Stage::Folded, used: true, written: epoch });
            }
        }
        late
    }

    /// Takes in budgets of which the file cannot be asked, unless they are here, and wakes whoever waits for them.
    pub fn insert_unread<'a>(&self, places: impl IntoIterator<Item = HashedKeyRef<'a>>) {
        for place in places {
            let mut shard = self.lock(shard_of(place.order));
            shard.loading.remove(place.key.as_str());
            if !shard.budgets.contains_key(place.key.as_str()) {
                let place = place.owned();
                shard.unread.push(place.clone());
                let slot = Slot { budget: None, stage: Stage::Unread, used: true, written: NEVER };
                self.put(&mut shard, place, slot);
            }
        }
    }

    /// Budgets of a shard that could not be read, to be tried again.
    pub fn take_unread(&self, shard: usize) -> Vec<HashedKey> {
        std::mem::take(&mut self.lock(shard).unread)
    }

    /// These could not be read again.
    pub fn put_back_unread(&self, places: Vec<HashedKey>) {
        places.into_iter().for_each(|place| self.lock(shard_of(place.order)).unread.push(place));
    }

    /// Whether anything was counted of which the file could not be asked.
    pub fn has_counted_unread(&self) -> bool {
        let is_counted = |slot: &Slot| slot.stage == Stage::Unread && slot.budget.is_some();
        (0..SHARDS).any(|index| self.lock(index).budgets.values().any(is_counted))
    }

    pub fn has_unread(&self) -> bool {
        (0..SHARDS).any(|index| !self.lock(index).unread.is_empty())
    }

    /// A budget of which the file could not be asked has been read, or stands in the journal. What was counted meanwhile is added to
    /// it. True: it has to be written.
    pub fn merge(
        &self,
        place: &HashedKey,
        stored: Option<Budget>,
        epoch: u64,
        combine: impl FnOnce(Budget, Budget) -> Budget,
    ) -> bool {
        let shard = &mut *self.lock(shard_of(place.order));
        let slot = shard.budgets.get_mut(&place.key).filter(|slot| slot.stage == Stage::Unread);
        let Some(slot) = slot else { return false };
        let before = octets(&place.key, slot);
        let counted = slot.budget.take();
        let is_changed = counted.is_some();
        slot.stage = if is_changed { Stage::Changed } else { Stage::Folded };
        // What is read is a base for what is learnt later, what was counted beside it is not.
        slot.written = if is_changed { NEVER } else { epoch };
        slot.budget = match (stored, counted) {
            (Some(stored), Some(counted)) => Some(combine(stored, counted)),
            (stored, counted) => stored.or(counted),
        };
        if is_changed {
            shard.changed.push(place.clone());
        }
        self.octets.fetch_add(octets(&place.key, slot).wrapping_sub(before), Ordering::Relaxed);
        is_changed
    }

    /// Takes in a budget from the journal, whose row in the file is older.
    pub fn replay(&self, place: HashedKey, budget: Budget, epoch: u64, combine: impl FnOnce(Budget, Budget) -> Budget) {
        let mut shard = self.lock(shard_of(place.order));
        if !shard.budgets.contains_key(&place.key) {
            shard.changed.push(place.clone());
            let slot = Slot { budget: Some(budget), stage: Stage::Changed, used: false, written: epoch };
            return self.put(&mut shard, place, slot);
        }
        drop(shard);
        // It was asked for before the file could be opened.
        if !self.merge(&place, Some(budget), epoch, combine) {
            let shard = &mut *self.lock(shard_of(place.order));
            if let Some(slot) = shard.budgets.get_mut(&place.key).filter(|slot| slot.stage == Stage::Folded) {
                slot.stage = Stage::Changed;
                shard.changed.push(place);
            }
        }
    }

    /// Whether the file could not be asked for a budget.
    pub fn is_unread(&self, place: &HashedKey) -> bool {
        self.lock(shard_of(place.order)).budgets.get(&place.key).is_some_and(|slot| slot.stage == Stage::Unread)
    }

    /// Whether a budget has no changes that are not in its row.
    pub fn is_folded(&self, place: &HashedKey) -> bool {
        let shard = self.lock(shard_of(place.order));
        shard.budgets.get(&place.key).is_none_or(|slot| slot.stage == Stage::Folded)
    }

    /// The budgets of a shard that are to be folded, in order.
    pub fn take_changed(&self, shard: usize) -> Vec<HashedKey> {
        let mut changed = std::mem::take(&mut self.lock(shard).changed);
        changed.sort_unstable();
        changed
    }

    /// Whether anything is to be folded.
    pub fn has_changed(&self) -> bool {
        (0..SHARDS).any(|index| !self.lock(index).changed.is_empty())
    }

    /// A budget as it is to be folded, unless it has been dropped.
    pub fn begin_fold(&self, place: &HashedKey) -> Option<Budget> {
        let mut shard = self.lock(shard_of(place.order));
        let slot = shard.budgets.get_mut(&place.key).filter(|slot| slot.stage == Stage::Changed)?;
        let budget = slot.budget.clone()?;
        slot.stage = Stage::AddressNormalizer;
        Some(budget)
    }

    /// These are folded, in this epoch; or they could not be, and have to be once more.
    pub fn end_fold(&self, rows: &[(HashedKey, Budget)], done: Option<u64>) {
        for (place, _) in rows {
            let shard = &mut *self.lock(shard_of(place.order));
            let Some(slot) = shard.budgets.get_mut(&place.key) else { continue };
            match (slot.stage, done) {
                (Stage::AddressNormalizer, Some(epoch)) => (slot.stage, slot.written) = (Stage::Folded, epoch),
                (Stage::AddressNormalizer, None) => {
                    slot.stage = Stage::Changed;
                    shard.changed.push(place.clone());
                }
                // It has changed meanwhile, and is to be folded again as it is.
                (Stage::Changed | Stage::Folded | Stage::Unread | Stage::Volatile, _) => {}
            }
        }
    }

    /// These were taken to be folded, and were not.
    pub fn put_back(&self, places: impl Iterator<Item = HashedKey>) {
        places.for_each(|place| self.lock(shard_of(place.order)).changed.push(place));
    }

    /// Drops budgets that were not of use lately until there is room. If nothing else helps, also those of which the file could not be
    /// asked, and with `may_lose` those that cannot be written: how many of both.
    pub fn make_room(&self, may_lose: bool) -> usize {
        let mut lost = 0;
        // Once around: what was of use since the last time is spared.
        for _ in 0..SHARDS {
            if !self.is_crowded() {
                break;
            }
            let index = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            lost += self.sweep(index, self.octets() > 2 * MAX_OCTETS, may_lose);
        }
        lost
    }

    /// Drops slots that have no budget and were not of use lately, where there are many. Nothing is lost by that, and no look at the file
    /// is out of date, as such a budget is not in the file either.
    pub fn drop_empty(&self) {
        for index in 0..SHARDS {
            let shard = &mut *self.lock(index);
            if shard.empty <= MAX_EMPTY {
                continue;
            }
            let (mut dropped, mut empty) = (0, 0);
            shard.budgets.retain(|key, slot| {
                if slot.budget.is_some() || !matches!(slot.stage, Stage::Folded | Stage::Volatile) {
                    return true;
                }
                let keep = std::mem::take(&mut slot.used);
                empty += usize::from(keep);
                dropped += if keep { 0 } else { octets(key, slot) };
                keep
            });
            shard.empty = empty;
            // A map keeps the room that it once needed.
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
                // As long as they can be written they are not lost.
                Stage::Changed | Stage::AddressNormalizer => !(is_urgent && may_lose),
            };
            let keep = std::mem::take(&mut slot.used) || is_needed;
            if !keep {
                dropped += octets(key, slot);
                lost += usize::from(!matches!(slot.stage, Stage::Folded | Stage::Volatile));
            }
            keep
        });
        if lost > 0 {
            let budgets = &shard.budgets;
            shard.unread.retain(|place| budgets.contains_key(&place.key));
            shard.changed.retain(|place| budgets.contains_key(&place.key));
        }
        self.octets.fetch_sub(dropped, Ordering::Relaxed);
        // Before the lock is released: whoever finds a budget missing must see that it was.
        self.dropped.fetch_add(before - shard.budgets.len(), Ordering::Release);
        lost
    }

    /// How many budgets were dropped so far: a look at the file that is older than the last of them may be out of date.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Acquire)
    }

    /// Whether there is more than there is room for.
    pub fn is_crowded(&self) -> bool {
        self.octets() > MAX_OCTETS
    }

    fn octets(&self) -> usize {
        self.octets.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).budgets.len()).sum()
    }

    /// When the latest decision was taken; `None` before the first.
    pub fn latest(&self) -> Option<Timestamp> {
        Some(self.latest.load(Ordering::Relaxed)).filter(|at| *at != i64::MIN).map(Timestamp::from_micros)
    }

    /// The time at which an act is done, whose budgets are held.
    fn time(&self, now: Timestamp, began: Instant) -> Timestamp {
        let latest = Timestamp::from_micros(self.latest.fetch_max(now.micros(), Ordering::Relaxed));
        let ahead = latest.since(now);
        // Most are answered without a look at another clock.
        if ahead < MAX_LAG || ahead < MAX_LAG + began.elapsed() {
            return now.max(latest);
        }
        self.latest.store(now.micros(), Ordering::Relaxed);
        now
    }

    fn put(&self, shard: &mut Shard, place: HashedKey, slot: Slot) {
        self.octets.fetch_add(octets(&place.key, &slot), Ordering::Relaxed);
        shard.empty += usize::from(slot.budget.is_none());
        if let Some(before) = shard.budgets.insert(place.key.clone(), slot) {
            self.octets.fetch_sub(octets(&place.key, &before), Ordering::Relaxed);
        }
    }

    fn hold(&self, places: &[HashedKeyRef<'_>]) -> Held<'_> {
        let mut indices: Vec<usize> = places.iter().map(|place| shard_of(place.order)).collect();
        indices.sort_unstable();
        indices.dedup();
        Held(indices.into_iter().map(|index| (index, self.lock(index))).collect())
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        // Nothing panics while it is held, but for a fault of ours in a decision: then that one budget begins anew.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held<'_> {
    fn has_unread(&mut self, places: &[HashedKeyRef<'_>]) -> bool {
        places.iter().any(|place| self.slot(*place).is_some_and(|slot| slot.stage == Stage::Unread))
    }
}

/// Notes that these budgets have changed, and has them written.
fn write(held: &mut Held<'_>, changes: Vec<(HashedKeyRef<'_>, Change)>, queue: &Queue, began: Instant) -> Commit {
    let mut appending = queue.append();
    let (mut any, mut all) = (false, true);
    for (place, change) in changes {
        let Some(shard) = held.shard(place) else { continue };
        let Some(slot) = shard.budgets.get_mut(place.key.as_str()) else { continue };
        match slot.stage {
            Stage::Unread => {
                all = false;
                continue;
            }
            Stage::Volatile => continue,
            Stage::Changed | Stage::Folded | Stage::AddressNormalizer => {}
        }
        let before = std::mem::replace(&mut slot.stage, Stage::Changed);
        if let (Some(appending), Some(budget)) = (&mut appending, &slot.budget) {
            appending.push(place, budget, &change, &mut slot.written);
            any = true;
        }
        if before != Stage::Changed
            // The key that is kept here already, instead of one more.
            && let Some((key, _)) = shard.budgets.get_key_value(place.key.as_str())
        {
            shard.changed.push(HashedKey { order: place.order, key: key.clone() });
        }
    }
    match appending {
        Some(appending) if any => {
            let commit = appending.finish(began);
            // What is in memory alone is not durable whatever becomes of the rest.
            if all { commit } else { Commit::NEVER }
        }
        Some(_) | None => Commit::NEVER,
    }
}

fn filter_octets(budget: &Budget) -> usize {
    budget.seen.as_ref().map_or(0, |seen| seen.octets())
}

fn octets(key: &Key, slot: &Slot) -> usize {
    OVERHEAD + key.as_str().len() + slot.budget.as_ref().map_or(0, filter_octets)
}
