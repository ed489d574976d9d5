//! Commit that a caller of the store waits for.

use super::commit_queue::Commit;
use std::time::Duration;

/// Charges that become durable with a commit: see [`Store::commit`](super::Store::commit). Commits have the order of the
/// charges, so a caller that has several of these values need only wait for the last one. If no caller waits, the
/// journal writer commits the charges after about a second.
#[derive(Debug)]
#[must_use]
pub struct PendingCommit {
    pub(super) commit: Commit,
    /// Time that the decision on the charges took.
    pub(super) decided_in: Duration,
}
