//! Changed budgets on their way into the table of the state file.

use super::{BudgetCache, SHARDS, Stage, shard_of};
use crate::policy::budgets::Budget;
use crate::store::hashed_key::HashedKey;

impl BudgetCache {
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
}
