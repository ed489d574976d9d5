//! Volatile budgets: counters of things that exist at present, such as open sessions. They are never in a file.

use super::{BudgetCache, Slot, Stage};
use crate::policy::budgets::Loaded;
use crate::store::commit_queue::NEVER_WRITTEN;
use crate::store::hashed_key::HashedKeyRef;
use crate::time::Timestamp;
use std::time::Instant;

impl BudgetCache {
    /// Runs `act` on these volatile budgets, for a transaction whose other budgets are shared with other nodes. The time
    /// is that of [`BudgetCache::transact`].
    pub fn run_volatile<R>(
        &self,
        (now, began): (Timestamp, Instant),
        hashed_keys: &[HashedKeyRef<'_>],
        act: impl FnOnce(Timestamp, &mut Loaded) -> R,
    ) -> R {
        let mut held = self.lock_shards(hashed_keys);
        for hashed_key in hashed_keys {
            let Some(shard) = held.shard(*hashed_key) else { continue };
            if !shard.budgets.contains_key(hashed_key.key.as_str()) {
                let slot =
                    Slot { budget: None, stage: Stage::Volatile, recently_used: true, written_epoch: NEVER_WRITTEN };
                self.put(shard, hashed_key.owned(), slot);
            }
        }
        let now = self.decision_time(now, began);
        let take = |hashed_key: &HashedKeyRef<'_>| held.slot(*hashed_key)?.budget.take();
        let mut loaded: Loaded = hashed_keys.iter().map(take).collect();
        let answer = act(now, &mut loaded);
        for (hashed_key, after) in hashed_keys.iter().zip(loaded.into_slots()) {
            if let Some(slot) = held.slot(*hashed_key) {
                (slot.budget, slot.recently_used) = (after.budget, true);
            }
        }
        answer
    }
}
