//! Outcomes of deliveries: reads them from the log of a smart host, and from reports in mails (DSN, ARF).

mod delivery_log;
mod links;
mod report;

pub use delivery_log::DeliveryLog;
pub use report::{MAX_REPORT, ReportError, parse_report};

use crate::time::Timestamp;

/// Outcome of a message for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub kind: Kind,
    /// Queue ids that the message can have had at the smart host.
    pub queue_ids: Vec<String>,
    pub message_id: Option<String>,
    pub recipient: Option<String>,
    /// Other name of the recipient. The original recipient of a DSN is not a recipient of the message, if a client that is
    /// itself a mail server named it in ORCPT (RFC 3461 §4.2), as after an alias.
    pub other_name: Option<String>,
    /// `None`: now.
    pub at: Option<Timestamp>,
}

/// Kind of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sent,
    Deferred,
    Bounced,
    Expired,
    Complained,
}

impl Kind {
    /// Returns the word in the API, in metrics and in the state file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Deferred => "deferred",
            Self::Bounced => "bounced",
            Self::Expired => "expired",
            Self::Complained => "complained",
        }
    }
}
