//! Sink of decisions that stores the records of refusals, and of what limits in shadow or soft mode would have refused.

use crate::decisions::{DecisionRecord, Outcome, RefusalSummary, Sink};
use crate::reference::{Reference, Refusee, SENDER_MISMATCH, SUSPENDED};
use crate::store::{Refusal, RefusalGroup, RefusalRecorder};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Sink that stores refusals.
pub struct RefusalSink(pub RefusalRecorder);

impl Sink for RefusalSink {
    fn takes(&self, refusal: &RefusalSummary<'_>) -> bool {
        let reference = refusal.reference.parse::<Reference>();
        reference.is_ok_and(|reference| self.0.count(&group_of_summary(refusal), &reference))
    }

    fn take(&self, record: &Arc<DecisionRecord>) {
        let reference = record.reference.as_deref().and_then(|reference| reference.parse().ok());
        let Some(reference) = reference else { return };
        let user = record.user.as_deref();
        let owner = refusee(user.filter(|_| record.authenticated), record.client);
        let cause = cause(record.outcome, record.limit.as_deref());
        let group = RefusalGroup { is_shadow: false, cause, stage: record.stage.name(), owner };
        self.add(&group, &reference, record);
    }

    fn takes_would_be(&self, refusal: &RefusalSummary<'_>) -> bool {
        self.takes(refusal)
    }

    fn take_would_be(&self, refusal: &RefusalSummary<'_>, record: &DecisionRecord) {
        let Ok(reference) = refusal.reference.parse() else { return };
        self.add(&group_of_summary(refusal), &reference, record);
    }
}

impl RefusalSink {
    fn add(&self, group: &RefusalGroup<'_>, reference: &Reference, record: &DecisionRecord) {
        let Ok(body) = serde_json::to_string(record) else { return };
        let refusal = Refusal {
            is_shadow: group.is_shadow,
            owner: Some(group.owner.text()),
            user: record.user.clone(),
            client: record.client.map(|client| client.to_string()),
            limit: record.limit.clone(),
            body,
        };
        self.0.add(group, reference, refusal);
    }
}

fn group_of_summary<'a>(refusal: &RefusalSummary<'a>) -> RefusalGroup<'a> {
    let RefusalSummary { outcome, stage, limit, user, authenticated, client, .. } = *refusal;
    let is_shadow = outcome == Outcome::WouldRefuse;
    let owner = refusee(user.filter(|_| authenticated), client);
    RefusalGroup { is_shadow, cause: cause(outcome, limit), stage: stage.name(), owner }
}

fn cause(outcome: Outcome, limit: Option<&str>) -> &str {
    match outcome {
        Outcome::Suspended => SUSPENDED,
        Outcome::SenderMismatch => SENDER_MISMATCH,
        Outcome::Accepted | Outcome::Refused | Outcome::WouldRefuse => limit.unwrap_or_default(),
    }
}

/// Returns the user who has logged in, or else the client.
fn refusee(user: Option<&str>, client: Option<IpAddr>) -> Refusee<'_> {
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    user.map_or_else(|| Refusee::Client(client.unwrap_or(unknown)), Refusee::User)
}
