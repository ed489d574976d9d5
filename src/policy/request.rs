//! Request to policy: a run of events, with the facts about the session.

use super::event::Event;
use super::facts::Facts;
use super::verdict::RefundableCharge;

/// Run of pipelined events, to be decided together and in order.
#[derive(Clone, Debug, Default)]
pub struct PolicyRequest {
    pub facts: Facts,
    pub events: Vec<Event>,
    /// Charges for a declared size that the true size replaces.
    pub declared: Vec<RefundableCharge>,
}
