//! Queue ids of delivered messages: stores them, so that outcomes of deliveries can be attributed.

use crate::clock;
use crate::queue_id;
use crate::session::{Delivery, MessageOutcome, Record};
use crate::store::{AddressHash, MAX_RECIPIENTS, Marks, QueueIdKey, SentMessage, Store};
use crate::time::Timestamp;
use std::net::IpAddr;

/// Sender of messages, as a session knows it.
pub struct Origin<'a> {
    pub user: Option<&'a str>,
    pub client: IpAddr,
    /// Name of the listener.
    pub listener: &'a str,
    /// Name of the upstream.
    pub upstream: &'a str,
}

/// Stores the queue ids of delivered messages, if the configuration has `[outcomes]`.
pub fn record(store: &Store, records: &[Record], origin: &Origin<'_>) {
    if store.outcome_options().is_none() {
        return;
    }
    for record in records {
        if let Record::Message(delivery) = record
            && let MessageOutcome::Answered(reply) = &delivery.outcome
            && reply.is_positive()
            && let Some(queue_id) = queue_id::of_reply(&reply.to_string())
        {
            store.record_queue_id(message(delivery, queue_id, origin, clock::now()));
        }
    }
}

fn message(delivery: &Delivery, queue_id: &str, origin: &Origin<'_>, now: Timestamp) -> SentMessage {
    let Origin { user, client, listener, upstream } = *origin;
    SentMessage {
        key: QueueIdKey { queue_id: queue_id.into(), upstream: upstream.into(), at: now },
        message_id: delivery.message_id.as_deref().map(Into::into),
        user: user.map(Into::into),
        client,
        sender: (*delivery.from).into(),
        listener: listener.into(),
        recipients: delivery.recipients.iter().take(MAX_RECIPIENTS).map(|to| AddressHash::of(to)).collect(),
        marks: Marks::default(),
    }
}
