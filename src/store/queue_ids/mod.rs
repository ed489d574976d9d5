//! Queue ids under which upstreams have queued messages, with the sender of each message: by these ids, outcomes of
//! deliveries are attributed.

mod memory;
mod row;

pub use memory::{Batch, QueueIdMemory};
pub use row::{AddressHash, MAX_RECIPIENTS, Marks, QueueIdKey, SentMessage};

use std::time::Duration;

/// Bounds of the stored queue ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeOptions {
    /// Time for which a queue id is kept.
    pub keep: Duration,
    /// Maximum number of queue ids. The oldest ones are deleted first.
    pub max_messages: u64,
}
