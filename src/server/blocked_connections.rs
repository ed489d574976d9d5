//! Blocked connections: charges the limits that apply to their clients.

use super::services::Server;
use crate::clock;
use crate::egress::BlockedConnection;
use crate::policy::budgets::SessionCounters;
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::store::{PendingCommit, Unavailable};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Number of blocked connections by result.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockedCounts {
    pub counted: u64,
    /// Connections that were blocked too long ago.
    pub too_old: u64,
}

/// Maximum age of a connection that counts. Limits count a connection when they learn of it, so a log of many days
/// would otherwise count as a scan.
const MAX_AGE: Duration = Duration::from_secs(3_600);

impl Server {
    /// Counts blocked connections. On return the charges are durable. After an error, some connections may have been
    /// counted.
    pub async fn count_blocked(&self, blocked: &[BlockedConnection]) -> Result<BlockedCounts, Unavailable> {
        let (mut counts, now) = (BlockedCounts::default(), clock::now());
        let mut by_client: BTreeMap<IpAddr, Vec<Event>> = BTreeMap::new();
        for one in blocked {
            if one.at.is_some_and(|at| now.since(at) > MAX_AGE) {
                counts.too_old += 1;
                continue;
            }
            by_client.entry(one.client).or_default().push(Event::Blocked(one.destination));
        }
        let mut commits = Vec::with_capacity(by_client.len());
        for (client, events) in by_client {
            let count = events.len() as u64;
            commits.push(self.charge_blocked(client, events).await?);
            counts.counted += count;
            self.metrics.egress.blocked_connections.inc_by(count);
        }
        // One commit of the state file has the charges of many clients.
        for commit in commits {
            self.store.commit(commit).await;
        }
        Ok(counts)
    }

    /// Charges the limits that apply to the client. Limits refuse the mail that follows; a suspension and a notice
    /// begin at once.
    async fn charge_blocked(&self, client: IpAddr, events: Vec<Event>) -> Result<Option<PendingCommit>, Unavailable> {
        let location = self.store.policy().locations.find(client);
        let facts = Facts { client: Some(client), location, ..Facts::default() };
        let request = PolicyRequest { facts, events, ..PolicyRequest::default() };
        let mut decided = self.store.decide(clock::now(), &request, &mut SessionCounters::default()).await?;
        for verdict in decided.verdicts {
            self.report_blocked(client, location, verdict);
        }
        Ok(decided.commit.take())
    }
}
