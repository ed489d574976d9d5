//! Eviction: drops budgets from memory when budgets take too much memory, and drops slots without a budget.

use super::{BudgetCache, SHARDS, Stage};
use std::sync::atomic::Ordering;

/// Share of the memory for budgets that changed budgets can take before they are folded. The rest is for the changes
/// during the folding.
const MAX_CHANGED_SHARE: f64 = 0.5;

/// Maximum number of slots without a budget in a shard. If a shard has more such slots, the slots that were not used
/// recently are dropped. This limits the memory of such slots, in all shards together, to some megabytes. A slot
/// without a budget is left after a key was looked up and not charged.
const MAX_EMPTY_SLOTS: usize = 64;

impl BudgetCache {
    /// Drops budgets that are in the table and were not used recently, until there is room. If budgets take more than
    /// twice the permitted memory, this function also drops budgets that could not be read. If `may_lose` is true, it
    /// then also drops changed budgets that cannot be written. Returns the number of budgets whose changes are lost.
    pub fn make_room(&self, may_lose: bool) -> usize {
        let mut lost = 0;
        // One round over all shards drops no budget that was used since the previous round.
        for _ in 0..SHARDS {
            if !self.is_crowded() {
                break;
            }
            let index = self.sweep_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
            lost += self.sweep(index, self.octets() > 2 * self.max_octets, may_lose);
        }
        lost
    }

    /// Drops slots without a budget that were not used recently, in shards that have many such slots. Nothing is lost.
    /// The loader's snapshot of the file stays correct, because these keys have no budget in the file either.
    pub fn drop_empty(&self) {
        for index in 0..SHARDS {
            let shard = &mut *self.lock(index);
            if shard.empty <= MAX_EMPTY_SLOTS {
                continue;
            }
            let mut empty = 0;
            let dropped = shard.retain(|slot| {
                if slot.has_budget() || !matches!(slot.stage, Stage::Folded | Stage::Volatile) {
                    return true;
                }
                let keep = std::mem::take(&mut slot.recently_used);
                empty += usize::from(keep);
                keep
            });
            shard.empty = empty;
            shard.shrink();
            self.octets.fetch_sub(dropped, Ordering::Relaxed);
        }
    }

    fn sweep(&self, index: usize, is_urgent: bool, may_lose: bool) -> usize {
        let shard = &mut *self.lock(index);
        let (mut lost, before) = (0, shard.len());
        let dropped = shard.retain(|slot| {
            let is_needed = match slot.stage {
                Stage::Folded => false,
                Stage::Unread => !is_urgent,
                Stage::Volatile => slot.has_budget(),
                // Budgets whose changes are not in the table must stay in memory while the file can be written.
                Stage::Changed | Stage::Folding => !(is_urgent && may_lose),
            };
            let keep = std::mem::take(&mut slot.recently_used) || is_needed;
            lost += usize::from(!keep && !matches!(slot.stage, Stage::Folded | Stage::Volatile));
            keep
        });
        shard.shrink();
        self.octets.fetch_sub(dropped, Ordering::Relaxed);
        // Count the dropped budgets before the lock is released. If the loader reads one of these budgets again, it
        // must see that its snapshot may be out of date.
        self.dropped.fetch_add(before - shard.len(), Ordering::Release);
        lost
    }

    /// Returns the number of budgets dropped since the start. A snapshot of the file that began before the last drop
    /// may be out of date.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Acquire)
    }

    /// Checks whether changed budgets take so much memory that they must be folded: only folded budgets can be dropped.
    /// If most budgets are folded, folding can wait, so that one row contains many changes.
    pub fn check_changed(&self) {
        let counts = (0..SHARDS).map(|index| self.lock(index).counts());
        let (all, changed) = counts.fold((0, 0), |sums, counts| (sums.0 + counts.0, sums.1 + counts.1));
        let share = changed as f64 / all.max(1) as f64;
        let must_fold = share * self.octets() as f64 > MAX_CHANGED_SHARE * self.max_octets as f64;
        self.must_fold.store(must_fold, Ordering::Relaxed);
    }

    /// Returns the result of the last [`BudgetCache::check_changed`].
    pub fn must_fold(&self) -> bool {
        self.must_fold.load(Ordering::Relaxed)
    }

    /// Returns whether the budgets take more memory than permitted.
    pub fn is_crowded(&self) -> bool {
        self.octets() > self.max_octets
    }
}
