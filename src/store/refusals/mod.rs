//! Records of refusals of the last days, so that `weir why` can explain a reference.
//!
//! No reply waits for a record to be written. The writer writes the records of about two seconds in one batch.
//! In a flood, records are coalesced: see [`coalescer`]. The table in the state file is a ring, bounded by the age and
//! the octets of its records. The table also has what limits in shadow or soft mode would have refused: see
//! [`evidence`].

mod coalescer;
mod evidence;
mod group;
pub mod jsonl;
mod memory;
mod row;

pub use evidence::{Evidence, EvidenceRow, OwnerEvidence};
pub use group::RefusalGroup;
pub use memory::{COMMIT_OCTETS, RefusalMemory};
pub use row::{Filter, Refusal, RefusalRow};

use std::time::Duration;

/// Bounds of the stored records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalOptions {
    /// Time for which a record is kept. Zero: no record is stored.
    pub keep: Duration,
    /// Maximum octets of all records. The oldest records are deleted first.
    pub max_octets: u64,
}

impl Default for RefusalOptions {
    fn default() -> Self {
        Self { keep: Duration::from_secs(14 * 86_400), max_octets: 64 << 20 }
    }
}
