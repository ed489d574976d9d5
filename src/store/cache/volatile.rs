//! Volatile budgets: counters of things that exist at present, such as open sessions. They are never in a file.

use super::{BudgetCache, SlotPlace, Stage};
use crate::policy::budgets::Loaded;
use crate::store::commit_queue::NEVER_WRITTEN;
use crate::store::hashed_key::HashedKeyRef;
use crate::time::Timestamp;
use std::sync::atomic::Ordering;
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
        for &hashed_key in hashed_keys {
            if let Some(shard) = held.shard(hashed_key).filter(|shard| !shard.contains(hashed_key)) {
                let octets = shard.insert(hashed_key, None, Stage::Volatile, NEVER_WRITTEN, true);
                self.octets.fetch_add(octets, Ordering::Relaxed);
            }
        }
        // All these budgets are in memory now.
        let places = held.places(hashed_keys).unwrap_or_default();
        let now = self.decision_time(now, began);
        let mut freed = 0;
        let take = |place: &SlotPlace| {
            held.edit(*place, |slot| {
                freed += slot.octets();
                slot.take()
            })?
        };
        let mut loaded: Loaded = places.iter().map(take).collect();
        let answer = act(now, &mut loaded);
        let mut taken = 0;
        for (place, after) in places.iter().zip(loaded.into_slots()) {
            held.edit(*place, |slot| {
                slot.recently_used = true;
                slot.put(after.budget);
                taken += slot.octets();
            });
        }
        self.octets.fetch_add(taken.wrapping_sub(freed), Ordering::Relaxed);
        answer
    }
}
