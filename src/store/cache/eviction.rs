//! Eviction: drops budgets from memory when they exceed their memory, and slots that have no budget.

use super::{BudgetCache, SHARDS, Stage, octets};
use std::sync::atomic::Ordering;

/// Memory for budgets, in octets; above it, folded budgets are dropped.
const MAX_OCTETS: usize = 160 << 20;

/// Slots without a budget in one shard before unused ones are dropped: some megabytes in all shards. Such a slot
/// remains of a key that was only asked for.
const MAX_EMPTY_SLOTS: usize = 64;

impl BudgetCache {
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
}
