//! A fold pass: its progress through the changed budgets.

use crate::store::cache::SHARDS;
use crate::store::core::Core;
use crate::store::hashed_key::HashedKey;

/// A fold pass: writes all changed budgets to their table, then deletes the journal entries that are covered.
pub struct Pass {
    /// Keys of the current shard that are still to be folded, in reverse order.
    pub hashed_keys: Vec<HashedKey>,
    /// Index of the next shard.
    pub shard: usize,
    /// Last entry of the journal when the pass began, and the octets of the journal then.
    pub last_entry: i64,
    pub octets: usize,
    /// Epoch in which changes were last lost before the pass began; `None` if none were.
    pub behind: Option<u64>,
    /// Approximate octets written so far.
    pub written: usize,
    /// Budgets whose pages are damaged, and the error.
    pub damaged: Vec<HashedKey>,
    pub fault: Option<String>,
}

impl Pass {
    pub fn new(last_entry: i64, octets: usize, behind: Option<u64>) -> Self {
        Self {
            hashed_keys: Vec::new(),
            shard: 0,
            last_entry,
            octets,
            behind,
            written: 0,
            damaged: Vec::new(),
            fault: None,
        }
    }

    pub fn next(&mut self, core: &Core) -> Option<HashedKey> {
        while self.hashed_keys.is_empty() && self.shard < SHARDS {
            self.hashed_keys = core.cache.take_changed(self.shard);
            self.hashed_keys.reverse();
            self.shard += 1;
        }
        self.hashed_keys.pop()
    }

    pub fn is_folded(&self) -> bool {
        self.hashed_keys.is_empty() && self.shard == SHARDS
    }
}
