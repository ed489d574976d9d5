//! Outcomes of deliveries: attributes them to the senders of the messages, and charges limits.

use super::services::Server;
use crate::clock;
use crate::outcomes::{Kind, Outcome};
use crate::policy::budgets::SessionCounters;
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::store::{Attribution, OutcomeQuery, SentMessage};
use crate::time::Timestamp;
use std::sync::Arc;

/// Outcome as a party has given it to Weir.
pub struct GivenOutcome {
    pub outcome: Outcome,
    /// Name of the upstream, if it is known.
    pub upstream: Option<String>,
    /// True if anyone can have written the outcome: its recipient must be one of the message.
    pub is_of_report: bool,
}

/// Number of outcomes by result.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomeCounts {
    pub attributed: u64,
    /// Outcomes that had been counted before.
    pub repeated: u64,
    /// Outcomes of no message that Weir knows.
    pub unknown: u64,
}

impl Server {
    /// Counts outcomes. Returns an error with the reason if nothing was counted; then the outcomes can be given again.
    pub async fn count_outcomes(&self, given: Vec<GivenOutcome>) -> Result<OutcomeCounts, String> {
        let _permit = self.outcome_permits.count().await?;
        let now = clock::now();
        let kinds: Vec<_> = given.iter().map(|given| given.outcome.kind).collect();
        let queries: Vec<_> = given.into_iter().map(|given| query(given, now)).collect();
        let found = self.store.attribute(queries).await?;
        let (mut counts, metrics) = (OutcomeCounts::default(), &self.metrics.outcomes);
        for (kind, attribution) in kinds.into_iter().zip(found) {
            match attribution {
                Attribution::To { message, recipient } => {
                    counts.attributed += 1;
                    metrics.attributed.with_label_values(&[kind.name()]).inc();
                    if let Some(event) = event(kind, recipient.map(Into::into)) {
                        self.charge_outcome(&message, event).await;
                    }
                }
                Attribution::Repeated => {
                    counts.repeated += 1;
                    metrics.repeated.inc();
                }
                Attribution::Unknown => {
                    counts.unknown += 1;
                    metrics.unknown.with_label_values(&[kind.name()]).inc();
                }
            }
        }
        Ok(counts)
    }

    /// Charges the limits that apply to the sender of the message. Limits refuse the mail that follows; a suspension, a
    /// notice and suspicion begin at once.
    async fn charge_outcome(&self, message: &SentMessage, event: Event) {
        let SentMessage { user, client, sender, listener, .. } = message;
        let location = self.store.policy().locations.find(*client);
        let mut facts = Facts {
            listener: Some(Arc::from(&**listener)),
            client: Some(*client),
            location,
            user: user.as_deref().map(Arc::from),
            authenticated: user.is_some(),
            sender: Some(Arc::from(&**sender)),
            ..Facts::default()
        };
        if let (Some(accounts), Some(user)) = (&self.accounts, user) {
            facts.has_account = accounts.has(user).await;
            facts.groups = accounts.groups(user).await;
        }
        let request = PolicyRequest { facts, events: vec![event], ..PolicyRequest::default() };
        let admitted = self.store.admit(clock::now(), &request, &mut SessionCounters::default()).await;
        for verdict in admitted.unwrap_or_default().verdicts {
            self.report_outcome(message, location, verdict);
        }
    }
}

/// Returns the event that limits charge.
fn event(kind: Kind, recipient: Option<Arc<str>>) -> Option<Event> {
    match kind {
        Kind::Bounced => Some(Event::Bounced(recipient)),
        Kind::Complained => Some(Event::Complained(recipient)),
        Kind::Sent | Kind::Deferred | Kind::Expired => None,
    }
}

fn query(given: GivenOutcome, now: Timestamp) -> OutcomeQuery {
    let GivenOutcome {
        outcome: Outcome { kind, queue_ids, message_id, recipient, other_name, at },
        upstream,
        is_of_report,
    } = given;
    let message_id = message_id.map(|id| format!("<{}>", id.trim().trim_start_matches('<').trim_end_matches('>')));
    // An outcome is not of the future, whatever its clock says.
    let at = at.map_or(now, |at| at.min(now));
    OutcomeQuery { kind: kind.name(), queue_ids, message_id, upstream, recipient, other_name, at, is_of_report }
}
