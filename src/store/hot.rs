//! Budgets in memory.

use super::place::Place;
use super::queue::Queue;
use crate::policy::key::Key;
use crate::policy::{Budget, Change, Loaded};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Budgets in memory, each in one of many shards. A decision holds the locks of the shards that it needs, in ascending order, and
/// never over an `.await` or anything on disk: decisions on one budget wait for each other, those on others hardly ever do.
pub struct Hot {
    shards: Box<[Mutex<Shard>]>,
    /// What the budgets take in memory, about.
    octets: AtomicUsize,
    /// When the latest decision was taken: microseconds.
    latest: AtomicI64,
    /// How many budgets were dropped so far.
    dropped: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    budgets: HashMap<Key, Slot, foldhash::fast::RandomState>,
    /// Budgets that have changed since they were last given to be folded.
    changed: Vec<Place>,
    /// Budgets that are being read from the file, and who waits for them.
    loading: HashMap<Key, Vec<oneshot::Sender<()>>>,
    /// Budgets of which the file could not be asked.
    unread: Vec<Place>,
}

struct Slot {
    budget: Option<Budget>,
    stage: Stage,
    /// It was of use since the last look for room.
    used: bool,
    /// See [`Queue::epoch`].
    written: u32,
}

/// How far a budget has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its row in the file says the same.
    Folded,
    /// Its row is being written.
    Folding,
    Changed,
    /// Its row could not be read. It counts from nothing and in memory alone, lest the file's history be overwritten.
    Unread,
}

/// What came of an act.
pub enum Acted<R> {
    /// Nothing was changed, or nobody is there to write it: there is nothing to wait for.
    Free(R),
    /// Something was changed: it is durable when the receiver hears.
    Changed(R, oneshot::Receiver<()>),
    /// Budgets must be read first: those of `read` by whoever gets this, the others are being read. Each receiver hears of one.
    Missing { read: Vec<Place>, waits: Vec<oneshot::Receiver<()>> },
}

/// Shards: a power of two, so many that two decisions seldom meet.
pub const SHARDS: usize = 256;

/// What budgets may take in memory; beyond that those that are folded are dropped.
const MAX_OCTETS: usize = 160 << 20;

/// What a budget takes beside its key and its filter: the slot, its place in the map, and what the allocator needs.
const OVERHEAD: usize = 112;

/// How much later than it began a decision may come.
const MAX_LAG: Duration = Duration::from_secs(10);

impl Default for Hot {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            octets: AtomicUsize::new(0),
            latest: AtomicI64::new(i64::MIN),
            dropped: AtomicUsize::new(0),
        }
    }
}

/// The shards of a question, locked.
struct Held<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl Held<'_> {
    fn shard(&mut self, place: &Place) -> Option<&mut Shard> {
        let index = shard_of(place);
        let at = self.0.iter().position(|(held, _)| *held == index)?;
        Some(&mut self.0[at].1)
    }

    fn slot(&mut self, place: &Place) -> Option<&mut Slot> {
        self.shard(place)?.budgets.get_mut(&place.key)
    }
}

/// A shard holds a stretch of the order.
fn shard_of(place: &Place) -> usize {
    const SHIFT: u32 = u64::BITS - SHARDS.trailing_zeros();
    (place.order.cast_unsigned() >> SHIFT) as usize
}

impl Hot {
    /// Acts on these budgets, if they are all here, keeps what has changed, and has it written. Without `wait` nobody waits for that.
    ///
    /// Acts wait for each other, and for the file: one may come after others that began later. It is done at the time of the latest,
    /// as time that has passed must not pass again. A clock that was set back by more than that is believed.
    pub fn act<R>(
        &self,
        now: Timestamp,
        places: &[Place],
        queue: &Queue,
        wait: bool,
        act: impl FnOnce(Timestamp, &mut Loaded) -> R,
    ) -> Acted<R> {
        let mut held = self.hold(places);
        let (read, waits) = held.missing(places);
        if !waits.is_empty() {
            return Acted::Missing { read, waits };
        }
        let now = self.time(now);
        let mut freed = 0;
        let take = |place| held.slot(place).and_then(|slot| slot.budget.take()).inspect(|b| freed += filter_octets(b));
        let mut loaded: Loaded = places.iter().map(take).collect();
        let answer = act(now, &mut loaded);
        let (mut changes, mut taken) = (Vec::with_capacity(places.len()), 0);
        for (place, after) in places.iter().zip(loaded.into_slots()) {
            let Some(slot) = held.slot(place) else { continue };
            slot.used = true;
            slot.budget = after.budget;
            taken += slot.budget.as_ref().map_or(0, filter_octets);
            changes.extend(after.change.map(|change| (place, change)));
        }
        if taken != freed {
            self.octets.fetch_add(taken.wrapping_sub(freed), Ordering::Relaxed);
        }
        match write(&mut held, changes, queue, wait) {
            Some(commit) => Acted::Changed(answer, commit),
            None => Acted::Free(answer),
        }
    }

    /// Takes in budgets that were read from the file, and wakes whoever waits for them. `epoch` is that of the queue.
    pub fn insert(&self, read: impl Iterator<Item = (Place, Option<Budget>)>, epoch: u32) {
        for (place, budget) in read {
            let mut shard = self.lock(shard_of(&place));
            // Dropping them wakes those who wait.
            shard.loading.remove(&place.key);
            if !shard.budgets.contains_key(&place.key) {
                self.put(&mut shard, place, Slot { budget, stage: Stage::Folded, used: true, written: epoch });
                continue;
            }
            // Whoever waited did so for too long, and went on without.
            drop(shard);
            self.merge(&place, budget, epoch);
        }
    }

    /// Takes in budgets of which the file cannot be asked, and wakes whoever waits for them.
    pub fn insert_unread(&self, places: &[Place]) {
        for place in places {
            let mut shard = self.lock(shard_of(place));
            shard.loading.remove(&place.key);
            if !shard.budgets.contains_key(&place.key) {
                shard.unread.push(place.clone());
                self.put(
                    &mut shard,
                    place.clone(),
                    Slot { budget: None, stage: Stage::Unread, used: true, written: 0 },
                );
            }
        }
    }

    /// Budgets that could not be read, to be tried again.
    pub fn unread(&self) -> Vec<Place> {
        (0..SHARDS).flat_map(|index| self.lock(index).unread.clone()).collect()
    }

    /// A budget that could not be read has been, or stands in the journal. Of what the file has and what was counted meanwhile the
    /// greater counts.
    pub fn merge(&self, place: &Place, stored: Option<Budget>, epoch: u32) {
        let shard = &mut *self.lock(shard_of(place));
        shard.unread.retain(|unread| unread != place);
        let Some(slot) = shard.budgets.get_mut(&place.key).filter(|slot| slot.stage == Stage::Unread) else { return };
        let before = octets(&place.key, slot);
        let counted = slot.budget.take();
        let level = |budget: &Option<Budget>| budget.as_ref().map_or(-1.0, |budget| budget.state.level);
        slot.stage = Stage::Folded;
        if level(&counted) > level(&stored) {
            slot.budget = counted;
            slot.stage = Stage::Changed;
            shard.changed.push(place.clone());
        } else {
            (slot.budget, slot.written) = (stored, epoch);
        }
        self.octets.fetch_add(octets(&place.key, slot).wrapping_sub(before), Ordering::Relaxed);
    }

    /// Takes in a budget from the journal: its row in the file is older.
    pub fn replay(&self, place: Place, budget: Budget, epoch: u32) {
        let mut shard = self.lock(shard_of(&place));
        if !shard.budgets.contains_key(&place.key) {
            shard.changed.push(place.clone());
            let slot = Slot { budget: Some(budget), stage: Stage::Changed, used: false, written: epoch };
            return self.put(&mut shard, place, slot);
        }
        drop(shard);
        self.merge(&place, Some(budget), epoch);
    }

    /// The budgets of a shard that are to be folded, in order.
    pub fn take_changed(&self, shard: usize) -> Vec<Place> {
        let mut changed = std::mem::take(&mut self.lock(shard).changed);
        changed.sort_unstable();
        changed
    }

    /// Whether anything is to be folded.
    pub fn has_changed(&self) -> bool {
        (0..SHARDS).any(|index| !self.lock(index).changed.is_empty())
    }

    /// A budget as it is to be folded, unless it has been dropped.
    pub fn begin_fold(&self, place: &Place) -> Option<Budget> {
        let mut shard = self.lock(shard_of(place));
        let slot = shard.budgets.get_mut(&place.key).filter(|slot| slot.stage == Stage::Changed)?;
        slot.stage = Stage::Folding;
        slot.budget.clone()
    }

    /// These are folded; or they could not be, and have to be once more.
    pub fn end_fold(&self, rows: &[(Place, Budget)], done: bool) {
        for (place, _) in rows {
            let shard = &mut *self.lock(shard_of(place));
            let Some(slot) = shard.budgets.get_mut(&place.key) else { continue };
            match slot.stage {
                Stage::Folding if done => slot.stage = Stage::Folded,
                Stage::Folding => {
                    slot.stage = Stage::Changed;
                    shard.changed.push(place.clone());
                }
                // It has changed meanwhile, and is to be folded again as it is.
                Stage::Changed | Stage::Folded | Stage::Unread => {}
            }
        }
    }

    /// These were taken to be folded, and were not.
    pub fn put_back(&self, places: impl Iterator<Item = Place>) {
        places.for_each(|place| self.lock(shard_of(&place)).changed.push(place));
    }

    /// Drops budgets that were not of use lately until there is room, beginning with the shard `hand`. How many were dropped that
    /// the file does not have: none, unless there is no room at all for what cannot be written.
    pub fn make_room(&self, hand: &mut usize) -> usize {
        let mut lost = 0;
        // Twice around: what was of use is spared once.
        for _ in 0..2 * SHARDS {
            if self.octets() <= MAX_OCTETS {
                break;
            }
            lost += self.sweep(*hand, self.octets() > 2 * MAX_OCTETS);
            *hand = (*hand + 1) % SHARDS;
        }
        lost
    }

    fn sweep(&self, index: usize, everything: bool) -> usize {
        let shard = &mut *self.lock(index);
        let (mut dropped, mut lost) = (0, 0);
        let before = shard.budgets.len();
        shard.budgets.retain(|key, slot| {
            let keep = std::mem::take(&mut slot.used) || (slot.stage != Stage::Folded && !everything);
            if !keep {
                dropped += octets(key, slot);
                lost += usize::from(slot.stage != Stage::Folded);
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

    /// The time at which a decision is taken, whose budgets are held.
    fn time(&self, now: Timestamp) -> Timestamp {
        let latest = Timestamp::from_micros(self.latest.fetch_max(now.micros(), Ordering::Relaxed));
        if latest.since(now) < MAX_LAG {
            return now.max(latest);
        }
        self.latest.store(now.micros(), Ordering::Relaxed);
        now
    }

    fn put(&self, shard: &mut Shard, place: Place, slot: Slot) {
        self.octets.fetch_add(octets(&place.key, &slot), Ordering::Relaxed);
        if let Some(before) = shard.budgets.insert(place.key.clone(), slot) {
            self.octets.fetch_sub(octets(&place.key, &before), Ordering::Relaxed);
        }
    }

    fn hold(&self, places: &[Place]) -> Held<'_> {
        let mut indices: Vec<usize> = places.iter().map(shard_of).collect();
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
    /// What has to be read before an act, and all that has to be waited for.
    fn missing(&mut self, places: &[Place]) -> (Vec<Place>, Vec<oneshot::Receiver<()>>) {
        let (mut read, mut waits) = (Vec::new(), Vec::new());
        for place in places {
            let Some(shard) = self.shard(place) else { continue };
            if shard.budgets.contains_key(&place.key) {
                continue;
            }
            let (done, wait) = oneshot::channel();
            waits.push(wait);
            let others = shard.loading.entry(place.key.clone()).or_insert_with(|| {
                read.push(place.clone());
                Vec::new()
            });
            others.push(done);
        }
        (read, waits)
    }
}

/// Notes that these budgets have changed, and has them written. `None`: there is nothing to wait for.
fn write(
    held: &mut Held<'_>,
    changes: Vec<(&Place, Change)>,
    queue: &Queue,
    wait: bool,
) -> Option<oneshot::Receiver<()>> {
    if changes.is_empty() {
        return None;
    }
    let mut appending = queue.append();
    let mut appended = false;
    for (place, change) in changes {
        let Some(shard) = held.shard(place) else { continue };
        let Some(slot) = shard.budgets.get_mut(&place.key) else { continue };
        match slot.stage {
            Stage::Unread => continue,
            Stage::Changed => {}
            Stage::Folded | Stage::Folding => {
                slot.stage = Stage::Changed;
                shard.changed.push(place.clone());
            }
        }
        if let (Some(appending), Some(budget)) = (&mut appending, &slot.budget) {
            appending.push(place, budget, &change, &mut slot.written);
            appended = true;
        }
    }
    appending.filter(|_| appended).and_then(|appending| appending.finish(wait))
}

fn filter_octets(budget: &Budget) -> usize {
    budget.seen.as_ref().map_or(0, |seen| seen.octets())
}

fn octets(key: &Key, slot: &Slot) -> usize {
    OVERHEAD + key.as_str().len() + slot.budget.as_ref().map_or(0, filter_octets)
}
