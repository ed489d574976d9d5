//! The cache's part of folding: gives changed budgets to the writer. The writer writes ("folds") these
//! budgets into the table of the state file.

use super::{BudgetCache, SHARDS, SlotMut, Stage, shard_of};
use crate::policy::budgets::Budget;
use crate::store::commit_queue::{Commit, Queue};
use crate::store::hashed_key::HashedKey;

impl BudgetCache {
    /// Returns whether a budget's row in the table has all its changes.
    pub fn is_folded(&self, hashed_key: &HashedKey) -> bool {
        let shard = self.lock(shard_of(hashed_key.order));
        shard.get(hashed_key.borrowed()).is_none_or(|slot| slot.stage == Stage::Folded)
    }

    /// Returns the changed budgets of a shard, sorted.
    pub fn changed(&self, shard: usize) -> Vec<HashedKey> {
        let shard = self.lock(shard);
        if shard.has_changed() { shard.keys_at(Stage::Changed) } else { Vec::new() }
    }

    /// Returns whether any budget has changes that are not in the table and are not being folded.
    pub fn has_changed(&self) -> bool {
        (0..SHARDS).any(|index| self.lock(index).has_changed())
    }

    /// Returns a copy of a changed budget and marks the budget as being folded. `None` if the budget is not in memory
    /// or has no unfolded change.
    pub fn begin_fold(&self, hashed_key: &HashedKey) -> Option<Budget> {
        let begin = |slot: &mut SlotMut<'_>| {
            if slot.stage != Stage::Changed {
                return None;
            }
            let budget = slot.budget();
            // A budget is lost if a bug in Weir causes a panic during a decision.
            slot.stage = if budget.is_some() { Stage::Folding } else { Stage::Folded };
            budget
        };
        self.lock(shard_of(hashed_key.order)).edit(hashed_key.borrowed(), begin)?
    }

    /// Ends the folding of these budgets. If their rows were written, `done` is the queue's epoch, and the budgets are
    /// marked as folded. If `done` is `None`, writing failed, and the budgets are marked as changed again.
    pub fn end_fold(&self, rows: &[(HashedKey, Budget)], done: Option<u64>) {
        for (hashed_key, _) in rows {
            let end = |slot: &mut SlotMut<'_>| match (slot.stage, done) {
                (Stage::Folding, Some(epoch)) => (slot.stage, slot.written_epoch) = (Stage::Folded, epoch),
                (Stage::Folding, None) => slot.stage = Stage::Changed,
                // The budget has changed since `begin_fold` and will be folded again.
                (Stage::Changed | Stage::Folded | Stage::Unread | Stage::Volatile, _) => {}
            };
            self.lock(shard_of(hashed_key.order)).edit(hashed_key.borrowed(), end);
        }
    }

    /// Appends a changed budget to the queue again, in its present state. The lock of the shard is held
    /// meanwhile: in the journal, older states of this budget come before it, and newer states come after it. `None` if
    /// the budget has no unfolded change. Otherwise returns the commit.
    pub fn append_again(&self, hashed_key: &HashedKey, queue: &Queue) -> Option<Commit> {
        let append = |slot: &mut SlotMut<'_>| {
            let budget = slot.budget().filter(|_| slot.stage == Stage::Changed)?;
            let Some(mut appending) = queue.append() else { return Some(Commit::NEVER) };
            appending.push_whole(hashed_key.borrowed(), &budget, &mut slot.written_epoch);
            Some(appending.finish())
        };
        self.lock(shard_of(hashed_key.order)).edit(hashed_key.borrowed(), append)?
    }
}
