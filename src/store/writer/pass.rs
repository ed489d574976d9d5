//! Progress of a fold pass through the changed budgets.

use crate::store::cache::SHARDS;
use crate::store::core::Core;
use crate::store::hashed_key::HashedKey;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A fold pass. The database writer writes all changed budgets to the table, and then deletes the part of the journal that
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
    pub missing_epoch: Option<u64>,
    /// Number of rows that are folded in the next transaction, unless the pass has to catch up with commits.
    pub slice_rows: usize,
    /// Approximate octets that the pass has written to the table so far.
    pub written: usize,
    /// Budgets that could not be written because their pages are damaged.
    pub damaged: Vec<HashedKey>,
    /// The last error of these budgets.
    pub fault: Option<String>,
}

/// Bounds for the number of rows that are folded in one transaction. Within these bounds, it takes about
/// [`SLICE_TIME`], because administrators' commands wait for it.
const SLICE_ROWS: RangeInclusive<usize> = 64..=2_000;
const SLICE_TIME: Duration = Duration::from_millis(10);

impl Pass {
    pub fn new(part: u64, octets: usize, missing_epoch: Option<u64>) -> Self {
        Self {
            hashed_keys: Vec::new(),
            shard: 0,
            part,
            octets,
            missing_epoch,
            slice_rows: *SLICE_ROWS.start(),
            written: 0,
            damaged: Vec::new(),
            fault: None,
        }
    }

    /// Adapts the number of rows of the next transaction to the time that the last one has taken.
    pub fn adapt_slice(&mut self, time: Duration) {
        let rows = if time > SLICE_TIME { self.slice_rows / 2 } else { self.slice_rows * 2 };
        self.slice_rows = rows.clamp(*SLICE_ROWS.start(), *SLICE_ROWS.end());
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
