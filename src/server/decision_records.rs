//! Records of decisions, from the records of a session and from policy's verdicts, for the hub of decisions.

use crate::decisions::{Audience, DecisionRecord, Hub, MismatchRecord, Outcome, RecordSource, RefusalSummary};
use crate::policy::request::{Event, PolicyRequest};
use crate::policy::verdict::{Ruling, Suspended, Verdict};
use crate::session::{self, Mismatch, Record, Refused, RefusedBy, RefusedSender, WouldRefuse};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;

/// Refusal of an event, as the client is told.
struct Refusal<'a> {
    decided: &'a session::DecidedEvent,
    outcome: Outcome,
    /// Name of the limit whose refusal the reply states.
    limit: Option<&'a str>,
    reply: &'a Reply,
    reference: &'a str,
    suspended: Option<&'a Suspended>,
    mismatch: Option<&'a Mismatch>,
}

/// Offers a record of a session to the hub, if it is about a refusal by Weir. `session` is the session's name.
pub fn offer(hub: &Hub, session: &str, record: &Record) {
    if let Record::LimitExceeded { hit, would_refuse: Some(would_refuse), .. } = record {
        return offer_would_be(hub, session, &hit.limit, would_refuse);
    }
    let Some(refusal) = Refusal::from_record(record) else { return };
    let Refusal { decided, outcome, limit, reply, reference, suspended, mismatch } = refusal;
    let summary = RefusalSummary {
        time: decided.time,
        outcome,
        stage: decided.stage(),
        limit,
        user: decided.facts.user.as_deref(),
        authenticated: decided.facts.authenticated,
        client: decided.facts.client,
        reference,
    };
    hub.offer(&summary, || {
        let mut record = DecisionRecord::refused(source(session, decided), outcome, limit, reply, reference);
        record.mismatch = mismatch.map(mismatch_record);
        match suspended {
            Some(suspended) => record.with_suspension(suspended),
            None => record,
        }
    });
}

/// Offers the record of an event that a limit in shadow or soft mode would have refused.
fn offer_would_be(hub: &Hub, session: &str, limit: &str, would_refuse: &WouldRefuse) {
    let WouldRefuse { reference, decided } = would_refuse;
    let summary = RefusalSummary {
        time: decided.time,
        outcome: Outcome::WouldRefuse,
        stage: decided.stage(),
        limit: Some(limit),
        user: decided.facts.user.as_deref(),
        authenticated: decided.facts.authenticated,
        client: decided.facts.client,
        reference,
    };
    hub.offer_would_be(&summary, || DecisionRecord::would_refuse(source(session, decided), limit));
}

fn source<'a>(session: &'a str, decided: &'a session::DecidedEvent) -> RecordSource<'a> {
    let session::DecidedEvent { time, facts, event, delay, evaluations } = decided;
    RecordSource { time: *time, session, facts, event, delay: *delay, evaluations }
}

/// Gives the records of the accepted events of a request to their audience. `verdicts` has a verdict for each event of
/// the request.
pub fn give_accepted(
    hub: &Hub,
    audience: Audience,
    session: &str,
    time: Timestamp,
    asked: &PolicyRequest,
    verdicts: &[Verdict],
) {
    if audience.is_empty() {
        return;
    }
    let accepted = |(event, verdict): &(&Event, &Verdict)| {
        // A rejection by the upstream is no decision of Weir.
        matches!(verdict.ruling, Ruling::Pass) && event.stage().is_some()
    };
    for (event, Verdict { delay, evaluations, .. }) in asked.events.iter().zip(verdicts).filter(accepted) {
        let (facts, delay) = (&asked.facts, *delay);
        let source = RecordSource { time, session, facts, event, delay, evaluations };
        hub.give(audience, || DecisionRecord::accepted(source));
    }
}

impl<'a> Refusal<'a> {
    /// Returns the refusal that a session has recorded; `None` if the record is not about a refusal by Weir.
    fn from_record(record: &'a Record) -> Option<Self> {
        match record {
            Record::Refused { refused: Refused { reply, by, .. }, .. } => match by {
                RefusedBy::Limit { refusal, reference, decided } => {
                    let limit = Some(&*refusal.limit);
                    Some(Self { limit, ..Self::new(decided, Outcome::Refused, reply, reference) })
                }
                RefusedBy::Suspension { suspended, reference, decided } => {
                    let suspended = Some(&**suspended);
                    Some(Self { suspended, ..Self::new(decided, Outcome::Suspended, reply, reference) })
                }
                RefusedBy::Upstream | RefusedBy::Away(_) => None,
            },
            Record::SenderMismatch { mismatch, refused: Some(refused), .. } => {
                let RefusedSender { reply, reference, decided } = &**refused;
                let mismatch = Some(mismatch);
                Some(Self { mismatch, ..Self::new(decided, Outcome::SenderMismatch, reply, reference) })
            }
            _ => None,
        }
    }

    fn new(decided: &'a session::DecidedEvent, outcome: Outcome, reply: &'a Reply, reference: &'a str) -> Self {
        Self { decided, outcome, limit: None, reply, reference, suspended: None, mismatch: None }
    }
}

fn mismatch_record(mismatch: &Mismatch) -> MismatchRecord {
    MismatchRecord { part: mismatch.part.name().to_owned(), address: mismatch.address().map(str::to_owned) }
}
