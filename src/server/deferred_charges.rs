//! Deferred charges and refunds of a session.

use super::services::Server;
use crate::clock;
use crate::policy::budgets::SessionCounters;
use crate::session::DeferredCharges;
use crate::store::{PendingCommit, Unavailable};

/// Applies charges and refunds. Returns the commit of the charges, for which the caller waits before its next reply. If
/// the store is unavailable, they are lost, as they are after a crash, and nothing is refunded.
pub async fn apply(server: &Server, charges: DeferredCharges) -> Option<PendingCommit> {
    let DeferredCharges { events, refunds } = charges;
    let has_memories = server.store.policy().has_memories();
    let mut commit = None;
    for asked in events {
        if !has_memories && asked.is_of_deliveries() {
            continue;
        }
        let decided = server.store.decide(clock::now(), &asked, &mut SessionCounters::default()).await;
        commit = decided.unwrap_or_default().commit.or(commit);
    }
    if !refunds.is_empty() {
        let _: Result<(), Unavailable> = server.store.give_back(clock::now(), &refunds).await;
    }
    commit
}
