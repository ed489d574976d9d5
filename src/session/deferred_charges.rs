//! What is charged and given back after the fact: when it is known what became of what was let through.

use crate::policy::event::Event;
use crate::policy::facts::Facts;
use crate::policy::request::Asked;
use crate::policy::verdict::RefundableCharge;
use std::sync::Arc;

/// What there is to charge and to give back.
#[derive(Debug, Default)]
pub struct DeferredCharges {
    /// To be charged; nothing of it is refused.
    pub events: Vec<Asked>,
    pub back: Vec<RefundableCharge>,
}

impl DeferredCharges {
    pub(super) fn give_back(&mut self, charges: Vec<RefundableCharge>) {
        self.back.extend(charges);
    }

    /// The message was not sent.
    pub(super) fn give_back_unsent(&mut self, charges: Vec<RefundableCharge>) {
        self.back.extend(charges.into_iter().filter(|charged| charged.until.is_given_back_unsent()));
    }

    /// The upstream has refused something for good.
    pub(super) fn reject(&mut self, facts: Facts, recipient: Option<Arc<str>>) {
        let rejected = Event::Rejected(recipient);
        match self.events.last_mut().filter(|asked| asked.facts == facts) {
            Some(asked) => asked.events.push(rejected),
            None => self.events.push(Asked { facts, events: vec![rejected], declared: Vec::new() }),
        }
    }
}
