//! Records of decisions, and their readers: the decision log, the event stream of the API, and the store of refusals.
//!
//! [`DecisionRecord`] contains everything that explains a decision later, also the facts with which policy can be asked
//! again. [`Hub`] gives each record to the sinks and readers that want it, and builds no record that none of them
//! wants.

mod decision_log;
mod hub;
mod json;
mod limit;
mod record;
mod request;
mod suspicion;

pub use decision_log::{DecisionLog, Options, Output};
pub use hub::{Audience, Hub, MAX_WAITING, Reader, Received, RefusalSummary, Sink};
pub use json::json_line;
pub use limit::{ExceptionRecord, LimitRecord};
pub use record::{DecisionRecord, MismatchRecord, Outcome, RecordSource, ReplyRecord};
pub use suspicion::{SignRecord, SuspicionRecord};

#[cfg(test)]
mod tests;
