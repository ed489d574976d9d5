//! Deferred charges and refunds of a session.

use super::services::Server;
use crate::clock;
use crate::policy::budgets::{RefundableCharge, SessionCounters};
use crate::policy::request::{EventKinds, PolicyRequest};
use crate::session::DeferredCharges;
use crate::store::{PendingCommit, Unavailable};
use std::sync::Arc;
use tokio::time::timeout;

/// Applies charges and refunds, except charges for events that no limit and no memory is about. Returns the commit of the
/// charges, for which the caller waits before its next reply. If the store is unavailable, they are lost, as they are after
/// a crash, and nothing is refunded.
///
/// If other nodes share the budgets and change them all the time, this ends after the store's deadline, and the charges
/// and refunds follow.
pub async fn apply(server: &Arc<Server>, mut charges: DeferredCharges) -> Option<PendingCommit> {
    if !charges.events.is_empty() {
        let decided = server.store.policy().decided_kinds();
        charges.events.retain(|asked| decided.has_any(EventKinds::of(&asked.events)));
    }
    if charges.is_empty() {
        return None;
    }
    // The future is boxed, because it is large, and a part of the future of every session, which is mostly idle.
    let Some(deadline) = server.store.deadline() else { return Box::pin(apply_all(server, charges)).await };
    let server = server.clone();
    let applying = tokio::spawn(async move { apply_all(&server, charges).await });
    // A task that is not awaited goes on.
    timeout(deadline, applying).await.ok()?.ok()?
}

/// A refund does not wait for an event whose budgets other nodes change all the time.
async fn apply_all(server: &Server, DeferredCharges { events, refunds }: DeferredCharges) -> Option<PendingCommit> {
    let (commit, ()) = tokio::join!(charge(server, events), refund(server, refunds));
    if commit.is_some() {
        // Perhaps the upstream has accepted a message. Even if the disk hangs, the client must get the reply.
        server.store.leave_to_writer();
    }
    commit
}

async fn charge(server: &Server, events: Vec<PolicyRequest>) -> Option<PendingCommit> {
    let mut commit = None;
    for asked in events {
        let decided = server.store.decide(clock::now(), &asked, &mut SessionCounters::default()).await;
        commit = decided.unwrap_or_default().commit.or(commit);
    }
    commit
}

async fn refund(server: &Server, refunds: Vec<RefundableCharge>) {
    if !refunds.is_empty() {
        let _: Result<(), Unavailable> = server.store.give_back(clock::now(), &refunds).await;
    }
}
