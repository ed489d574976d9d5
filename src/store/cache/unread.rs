//! Unread budgets: budgets whose rows in the table could not be read. An unread budget counts from zero, in memory
//! only. When its row can be read, the count is added to the row.

use super::{BudgetCache, SHARDS, SlotMut, Stage, shard_of};
use crate::policy::budgets::Budget;
use crate::store::commit_queue::NEVER_WRITTEN;
use crate::store::hashed_key::{HashedKey, HashedKeyRef};
use std::sync::atomic::Ordering;

impl BudgetCache {
    /// Inserts these keys as unread budgets, unless the keys are in memory. Wakes the transactions that wait for the
    /// keys.
    pub fn insert_unread<'a>(&self, hashed_keys: impl IntoIterator<Item = HashedKeyRef<'a>>) {
        for hashed_key in hashed_keys {
            let mut shard = self.lock(shard_of(hashed_key.order));
            shard.loading.remove(hashed_key.key.as_str());
            if !shard.contains(hashed_key) {
                let octets = shard.insert(hashed_key, None, Stage::Unread, NEVER_WRITTEN, true);
                self.octets.fetch_add(octets, Ordering::Relaxed);
            }
        }
    }

    /// Returns the unread budgets of a shard. The loader tries to read them again.
    pub fn unread(&self, shard: usize) -> Vec<HashedKey> {
        let shard = self.lock(shard);
        if shard.has_unread() { shard.keys_at(Stage::Unread) } else { Vec::new() }
    }

    /// Returns whether any unread budget has counted something.
    pub fn has_counted_unread(&self) -> bool {
        let mut is_counted = false;
        for index in (0..SHARDS).filter(|index| self.lock(*index).has_unread()) {
            self.lock(index).for_each(|_, slot| is_counted |= slot.stage == Stage::Unread && slot.has_budget());
        }
        is_counted
    }

    pub fn has_unread(&self) -> bool {
        (0..SHARDS).any(|index| self.lock(index).has_unread())
    }

    /// Adds a budget read from the file (table or journal) to what the unread budget has counted in memory. Returns
    /// true if the unread budget has counted anything, so that the sum must be written.
    pub fn merge(
        &self,
        hashed_key: &HashedKey,
        stored: Option<Budget>,
        epoch: u64,
        combine: impl FnOnce(Budget, Budget) -> Budget,
    ) -> bool {
        let merge = |slot: &mut SlotMut<'_>| {
            if slot.stage != Stage::Unread {
                return false;
            }
            let before = slot.octets();
            let counted = slot.take();
            let is_changed = counted.is_some();
            slot.stage = if is_changed { Stage::Changed } else { Stage::Folded };
            // If the filter equals the filter in the file, later journal records need only its new values. If the filter
            // has learnt values in memory only, the next record must contain the whole filter.
            slot.written_epoch = if is_changed { NEVER_WRITTEN } else { epoch };
            slot.put(match (stored, counted) {
                (Some(stored), Some(counted)) => Some(combine(stored, counted)),
                (stored, counted) => stored.or(counted),
            });
            self.octets.fetch_add(slot.octets().wrapping_sub(before), Ordering::Relaxed);
            is_changed
        };
        self.lock(shard_of(hashed_key.order)).edit(hashed_key.borrowed(), merge) == Some(true)
    }

    /// Inserts a budget from the journal, in which the budget is newer than in the table.
    pub fn replay(
        &self,
        hashed_key: HashedKey,
        budget: Budget,
        epoch: u64,
        combine: impl FnOnce(Budget, Budget) -> Budget,
    ) {
        let mut shard = self.lock(shard_of(hashed_key.order));
        if !shard.contains(hashed_key.borrowed()) {
            let octets = shard.insert(hashed_key.borrowed(), Some(budget), Stage::Changed, epoch, false);
            self.octets.fetch_add(octets, Ordering::Relaxed);
            return;
        }
        drop(shard);
        // A transaction needed this budget before the file could be opened, so the budget is in memory as unread.
        if !self.merge(&hashed_key, Some(budget), epoch, combine) {
            let change = |slot: &mut SlotMut<'_>| {
                if slot.stage == Stage::Folded {
                    slot.stage = Stage::Changed;
                }
            };
            self.lock(shard_of(hashed_key.order)).edit(hashed_key.borrowed(), change);
        }
    }

    /// Returns whether the row of a budget could not be read.
    pub fn is_unread(&self, hashed_key: &HashedKey) -> bool {
        let shard = self.lock(shard_of(hashed_key.order));
        shard.get(hashed_key.borrowed()).is_some_and(|slot| slot.stage == Stage::Unread)
    }
}
