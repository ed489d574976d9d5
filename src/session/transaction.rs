//! State of a mail transaction: its sender, recipients and charges, from MAIL to the end of the message.

use crate::policy::budgets::RefundableCharge;
use crate::policy::verdict::Evaluation;
use crate::smtp::envelope::Mail;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::sync::Arc;

/// A transaction that policy has admitted.
pub(super) struct Transaction {
    pub mail: Mail,
    /// The upstream that a limit's action has chosen for the message, if any.
    pub route: Option<Arc<str>>,
    /// Time at which MAIL was accepted.
    pub began: Timestamp,
    /// Number of RCPT commands about which the session asked policy or the upstream, accepted or not.
    pub asked: usize,
    /// The recipients that were accepted.
    pub recipients: Vec<Arc<str>>,
    /// Octets of the accepted recipients and their parameters.
    pub octets: usize,
    /// Charges that perhaps have to be refunded when the transaction ends.
    pub charges: Vec<RefundableCharge>,
    /// True if DATA has been charged. A second DATA is not charged again.
    pub message_charged: bool,
    /// Octets received by BDAT so far; `None` before the first BDAT.
    pub chunked: Option<u64>,
    /// The message's `Message-ID`, as far as it is known.
    pub message_id: Option<String>,
    /// Numbers that the limits measured at the end of the message, if a limit refuses the message.
    pub evaluations: Vec<Evaluation>,
    pub upstream: Upstream,
}

/// State of the transaction at the upstream.
pub(super) enum Upstream {
    /// MAIL has not been sent to the upstream. Weir sends it together with the first recipient.
    Unaware,
    /// The upstream accepted MAIL.
    Aware,
    /// The upstream refused MAIL: this reply answers every recipient.
    Refused(Reply),
    /// The upstream's connection was lost within the transaction.
    Lost,
    /// The recipient is the report address: the message goes to no upstream.
    Report,
}

impl Transaction {
    /// Begins a transaction, without recipients.
    pub fn new(mail: Mail, route: Option<Arc<str>>, now: Timestamp) -> Self {
        Self {
            mail,
            route,
            began: now,
            asked: 0,
            recipients: Vec::new(),
            octets: 0,
            charges: Vec::new(),
            message_charged: false,
            chunked: None,
            message_id: None,
            evaluations: Vec::new(),
            upstream: Upstream::Unaware,
        }
    }
}
