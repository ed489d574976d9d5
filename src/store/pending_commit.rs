//! Commit that a caller of the store waits for.

use super::commit_queue::Commit;
use crate::metrics::{GaugeGuard, StateMetrics};

/// Handle with which a caller waits until its charges are durable. The writer commits charges in their order, so a
/// caller that has several handles need only wait for the last one.
#[derive(Debug)]
#[must_use]
pub struct PendingCommit {
    commit: Commit,
    _waiting: GaugeGuard,
}

impl PendingCommit {
    pub(super) fn new(commit: Commit, metrics: &StateMetrics) -> Self {
        Self { commit, _waiting: GaugeGuard::new(&metrics.transactions_waiting) }
    }

    /// Waits for a commit, if there is one: until the charges are durable, or until the store gives up because the disk
    /// is slow or fails. Returns true if the charges are durable.
    pub async fn done(commit: Option<Self>) -> bool {
        match commit {
            Some(pending) => pending.commit.done().await,
            None => true,
        }
    }
}
