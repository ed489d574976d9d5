//! Progress of a fold pass through the changed budgets.

use crate::store::cache::SHARDS;
use crate::store::core::Core;
use crate::store::hashed_key::HashedKey;

/// A fold pass. The writer writes all changed budgets to the table, and then deletes the part of the journal that
/// is older than the pass.
pub struct Pass {
    /// Changed budgets of the current cache shard that are still to be folded, in reverse order.
    pub hashed_keys: Vec<HashedKey>,
    /// Index of the next cache shard.
    pub shard: usize,
    /// Number of the part of the journal that ended when the pass began.
    pub part: u64,
    /// Octets of the journal when the pass began.
    pub octets: usize,
    /// Epoch of the queue that was noticed last when the pass began, if changes that were lost before it were missing in
    /// the file at that time; otherwise `None`.
    pub behind: Option<u64>,
    /// Approximate octets that the pass has written to the table so far.
    pub written: usize,
    /// Budgets that could not be written because their pages are damaged.
    pub damaged: Vec<HashedKey>,
    /// The last error of these budgets.
    pub fault: Option<String>,
}

impl Pass {
    pub fn new(part: u64, octets: usize, behind: Option<u64>) -> Self {
        Self { hashed_keys: Vec::new(), shard: 0, part, octets, behind, written: 0, damaged: Vec::new(), fault: None }
    }

    pub fn next(&mut self, core: &Core) -> Option<HashedKey> {
        while self.hashed_keys.is_empty() && self.shard < SHARDS {
            self.hashed_keys = core.cache.changed(self.shard);
            self.hashed_keys.reverse();
            self.shard += 1;
        }
        self.hashed_keys.pop()
    }

    pub fn is_folded(&self) -> bool {
        self.hashed_keys.is_empty() && self.shard == SHARDS
    }
}
