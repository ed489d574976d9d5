//! Decision of policy on a request of a session, with its records.

use super::decision_records;
use super::services::Server;
use crate::decisions::Audience;
use crate::policy::budgets::SessionCounters;
use crate::policy::request::PolicyRequest;
use crate::store::Decided;
use crate::time::Timestamp;

/// Asks the store, and gives the records of accepted events to their audience. There are no verdicts if the store is
/// unavailable.
pub async fn decide(
    server: &Server,
    session: &str,
    audience: Audience,
    now: Timestamp,
    asked: &PolicyRequest,
    counters: &mut SessionCounters,
) -> Decided {
    let decided = server.store.decide(now, asked, counters).await.unwrap_or_default();
    decision_records::give_accepted(&server.decisions, audience, session, now, asked, &decided.verdicts);
    decided
}
