//! Charges and refunds that follow later than the verdict on a command: when the upstream has answered, or when the
//! transaction has ended.

use crate::policy::budgets::RefundableCharge;
use crate::policy::request::{Event, Facts, PolicyRequest};
use std::sync::Arc;

/// Charges and refunds that the session has collected, and that its driver has to apply.
#[derive(Debug, Default)]
pub struct DeferredCharges {
    /// Events to charge. The driver ignores the verdicts on these events, because the events have already happened.
    pub events: Vec<PolicyRequest>,
    pub refunds: Vec<RefundableCharge>,
}

impl DeferredCharges {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.refunds.is_empty()
    }

    /// Adds refunds.
    pub fn refund(&mut self, charges: Vec<RefundableCharge>) {
        self.refunds.extend(charges);
    }

    /// Refunds those charges of a message that must be refunded if the message is not sent.
    pub fn refund_unsent(&mut self, charges: Vec<RefundableCharge>) {
        self.refunds.extend(charges.into_iter().filter(|charged| charged.until.is_given_back_unsent()));
    }

    /// Records that the upstream has accepted the message for these recipients.
    pub fn deliver(&mut self, facts: Facts, recipients: impl Iterator<Item = Arc<str>>) {
        self.events.push(PolicyRequest::delivered(facts, recipients));
    }

    /// Charges a permanent rejection by the upstream: the rejection of a recipient, or of the message.
    pub(super) fn reject(&mut self, facts: Facts, recipient: Option<Arc<str>>) {
        let rejected = Event::Rejected(recipient);
        match self.events.last_mut().filter(|asked| asked.facts == facts) {
            Some(asked) => asked.events.push(rejected),
            None => self.events.push(PolicyRequest { facts, events: vec![rejected], ..PolicyRequest::default() }),
        }
    }
}
