//! Activity of a sender: sums up a session's records for the list of top senders.

use crate::policy::address::AddressNormalizer;
use crate::policy::matching::Widths;
use crate::policy::request::Stage;
use crate::session::{Delivery, MessageOutcome, Record, Refused, RefusedBy};
use crate::time::Timestamp;
use crate::top::{Amounts, LastRefusal, SenderKind, TopSenders};
use std::net::IpAddr;

/// Counts a batch of a session's records for its sender: the user, or the client's network if there is no login. All
/// spellings of a user have one entry, as they have the same budgets.
pub fn count(
    top: &TopSenders,
    records: &[Record],
    user: Option<&str>,
    client: IpAddr,
    normalizer: &AddressNormalizer,
    now: Timestamp,
) {
    let (mut amounts, mut last_refusal) = (Amounts::default(), None);
    for record in records {
        match record {
            Record::Message(delivery) => add_message(delivery, &mut amounts, &mut last_refusal, now),
            Record::Refused { refused, .. } => {
                let Some(refusal) = last_refusal_of(refused, now) else { continue };
                amounts.refusals += 1;
                last_refusal = Some(refusal);
            }
            Record::SenderMismatch { refused: Some(refused), .. } => {
                amounts.refusals += 1;
                let (by, reference) = ("sender-mismatch".into(), Some(refused.reference.as_str().into()));
                last_refusal = Some(LastRefusal {
                    at: now,
                    by,
                    stage: refused.decided.event.stage().unwrap_or(Stage::Mail).name(),
                    reference,
                });
            }
            _ => {}
        }
    }
    if amounts == Amounts::default() {
        return;
    }
    let (kind, name) = match user {
        Some(user) => (SenderKind::User, normalizer.user(user)),
        None => (SenderKind::Client, Widths::USUAL.network(client).into()),
    };
    top.add((kind, &name), now, &amounts, last_refusal);
}

/// Counts a message that the upstream has answered. A message that Weir refused has a record of its own for the refusal.
fn add_message(delivery: &Delivery, amounts: &mut Amounts, last_refusal: &mut Option<LastRefusal>, now: Timestamp) {
    match &delivery.outcome {
        MessageOutcome::Passed => add_sent(delivery, amounts),
        MessageOutcome::Answered(reply) if reply.is_positive() => add_sent(delivery, amounts),
        MessageOutcome::Answered(_) => {
            amounts.refusals += 1;
            *last_refusal =
                Some(LastRefusal { at: now, by: UPSTREAM.into(), stage: Stage::End.name(), reference: None });
        }
        _ => {}
    }
}

fn add_sent(delivery: &Delivery, amounts: &mut Amounts) {
    amounts.messages += 1;
    amounts.recipients += delivery.recipients.len() as u64;
    amounts.octets += delivery.size;
}

/// Returns the refusal; `None` if the sender has no part in it, because the upstream was unavailable.
fn last_refusal_of(refused: &Refused, now: Timestamp) -> Option<LastRefusal> {
    let (by, reference) = match &refused.by {
        RefusedBy::Limit { refusal, reference, .. } => (refusal.limit.clone(), Some(reference)),
        RefusedBy::Suspension { reference, .. } => ("suspended".into(), Some(reference)),
        RefusedBy::Upstream => (UPSTREAM.into(), None),
        RefusedBy::Away(_) => return None,
    };
    let reference = reference.map(|reference| reference.as_str().into());
    Some(LastRefusal { at: now, by, stage: refused.stage.name(), reference })
}

const UPSTREAM: &str = "upstream";
