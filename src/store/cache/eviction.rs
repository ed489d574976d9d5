//! Eviction: drops budgets from memory when budgets take too much memory, and drops slots without a budget.

use super::{BudgetCache, SHARDS, Stage, octets};
use std::sync::atomic::Ordering;

/// Maximum memory for budgets, in octets. While budgets take more memory, budgets that are in the table are dropped
/// from memory.
const MAX_OCTETS: usize = 160 << 20;

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
            lost += self.sweep(index, self.octets() > 2 * MAX_OCTETS, may_lose);
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
            // A hash map does not shrink by itself.
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
                // Budgets whose changes are not in the table must stay in memory while the file can be written.
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
        // Count the dropped budgets before the lock is released. If the loader reads one of these budgets again, it
        // must see that its snapshot may be out of date.
        self.dropped.fetch_add(before - shard.budgets.len(), Ordering::Release);
        lost
    }

    /// Returns the number of budgets dropped since the start. A snapshot of the file that began before the last drop
    /// may be out of date.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Acquire)
    }

    /// Returns whether the budgets take more memory than permitted.
    pub fn is_crowded(&self) -> bool {
        self.octets() > MAX_OCTETS
    }
}
