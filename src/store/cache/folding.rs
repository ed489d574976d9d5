//! The cache's part of folding: gives changed budgets to the writer. The writer writes ("folds") these
//! budgets into the table of the state file.

use super::{BudgetCache, SHARDS, Stage, shard_of};
use crate::policy::budgets::Budget;
use crate::store::hashed_key::HashedKey;

impl BudgetCache {
    /// Returns whether a budget's row in the table has all its changes.
    pub fn is_folded(&self, hashed_key: &HashedKey) -> bool {
        let shard = self.lock(shard_of(hashed_key.order));
        shard.budgets.get(&hashed_key.key).is_none_or(|slot| slot.stage == Stage::Folded)
    }

    /// Returns the list of the changed budgets of a shard, sorted, and empties this list. The writer folds the returned
    /// budgets.
    pub fn take_changed(&self, shard: usize) -> Vec<HashedKey> {
        let mut changed = std::mem::take(&mut self.lock(shard).changed);
        changed.sort_unstable();
        changed
    }

    /// Returns whether any budget has changes that are not in the table.
    pub fn has_changed(&self) -> bool {
        (0..SHARDS).any(|index| !self.lock(index).changed.is_empty())
    }

    /// Returns a copy of a changed budget and marks the budget as being folded. `None` if the budget is not in memory
    /// or has no unfolded change.
    pub fn begin_fold(&self, hashed_key: &HashedKey) -> Option<Budget> {
        let mut shard = self.lock(shard_of(hashed_key.order));
        let slot = shard.budgets.get_mut(&hashed_key.key).filter(|slot| slot.stage == Stage::Changed)?;
        let budget = slot.budget.clone()?;
        slot.stage = Stage::Folding;
        Some(budget)
    }

    /// Ends the folding of these budgets. If their rows were written, `done` is the queue's epoch, and the budgets are
    /// marked as folded. If `done` is `None`, writing failed, and the budgets are marked as changed again.
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
                // The budget has changed since `begin_fold` and will be folded again.
                (Stage::Changed | Stage::Folded | Stage::Unread | Stage::Volatile, _) => {}
            }
        }
    }

    /// Puts budgets back into the lists of changed budgets, because they were taken to be folded, but were not folded.
    pub fn put_back(&self, hashed_keys: impl Iterator<Item = HashedKey>) {
        hashed_keys.for_each(|hashed_key| self.lock(shard_of(hashed_key.order)).changed.push(hashed_key));
    }
}
