//! Unread budgets: budgets whose rows in the table could not be read. An unread budget counts from zero, in memory
//! only. When its row can be read, the count is added to the row.

use super::{BudgetCache, SHARDS, Slot, Stage, octets, shard_of};
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
            if !shard.budgets.contains_key(hashed_key.key.as_str()) {
                let hashed_key = hashed_key.owned();
                shard.unread.push(hashed_key.clone());
                let slot =
                    Slot { budget: None, stage: Stage::Unread, recently_used: true, written_epoch: NEVER_WRITTEN };
                self.put(&mut shard, hashed_key, slot);
            }
        }
    }

    /// Returns the list of the unread budgets of a shard, and empties this list. The loader tries to read the returned
    /// budgets again.
    pub fn take_unread(&self, shard: usize) -> Vec<HashedKey> {
        std::mem::take(&mut self.lock(shard).unread)
    }

    /// Puts budgets back into the lists of unread budgets, because they still could not be read.
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

    /// Adds a budget read from the file (table or journal) to what the unread budget has counted in memory. Returns
    /// true if the unread budget has counted anything, so that the sum must be written.
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
        // If the filter equals the filter in the file, later journal records need only its new values. If the filter
        // has learnt values in memory only, the next record must contain the whole filter.
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

    /// Inserts a budget from the journal, in which the budget is newer than in the table.
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
        // A transaction needed this budget before the file could be opened, so the budget is in memory as unread.
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
}
