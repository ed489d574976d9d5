//! Request to policy: events of a session, with all that is known of them.

use super::event::Event;
use super::facts::Facts;
use super::verdict::RefundableCharge;

/// Events to be decided together, in order: a run of pipelined commands.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub facts: Facts,
    pub events: Vec<Event>,
    /// What was charged for a declared size, where the true one is to be charged instead.
    pub declared: Vec<RefundableCharge>,
}
