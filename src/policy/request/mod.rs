//! Request to policy: a run of events, with the facts about the session.

mod event;
mod event_kinds;
mod facts;
mod location;
mod novelty;

pub use super::address::NULL_SENDER;
pub use event::{Event, Stage};
pub use event_kinds::EventKinds;
pub use facts::Facts;
pub use location::{Asn, Country, Location};
pub use novelty::{LoginTrait, Novelty};

use crate::policy::budgets::RefundableCharge;
use std::sync::Arc;

/// Run of pipelined events, which must be decided together and in order.
#[derive(Clone, Debug, Default)]
pub struct PolicyRequest {
    pub facts: Facts,
    pub events: Vec<Event>,
    /// Charges for the declared size of the message. At the end of the message, the charge for the true size replaces
    /// them.
    pub declared: Vec<RefundableCharge>,
    /// True if the verdicts on accepted events must contain the numbers of each limit. The verdict on a refused event
    /// always contains them.
    pub wants_evaluations: bool,
}

impl PolicyRequest {
    /// Returns the request by which memories learn the recipients of a delivered message.
    pub fn delivered(facts: Facts, recipients: impl Iterator<Item = Arc<str>>) -> Self {
        Self { facts, events: recipients.map(Event::Delivered).collect(), ..Self::default() }
    }
}
