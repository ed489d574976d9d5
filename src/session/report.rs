//! Reports by mail: the report address, to which others send outcomes of deliveries, and the results of such mails.

use crate::policy::address::AddressNormalizer;
use crate::smtp::envelope::Rcpt;
use crate::smtp::reply::Reply;

/// Address of the mails that tell outcomes of deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportAddress {
    /// The form in which limits compare addresses.
    normal: Box<str>,
}

/// Result of a mail to the report address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportResult {
    /// The outcomes have been handed in. Perhaps none of them is of a message that Weir knows.
    Counted,
    /// The mail is neither a delivery status notification nor a complaint.
    NoReport,
    /// The report names no message.
    NoMessage,
    /// Too many reports arrive at once.
    TooMany,
    /// The outcomes could not be stored.
    Unavailable,
}

impl ReportAddress {
    pub fn new(address: &str) -> Self {
        Self { normal: AddressNormalizer::default().address(address).into() }
    }

    /// Returns whether this is the recipient.
    pub(super) fn is(&self, rcpt: &Rcpt) -> bool {
        *AddressNormalizer::default().address(&rcpt.recipient.text()) == *self.normal
    }
}

impl ReportResult {
    /// Returns the reply to the mail. `id` is the id of the session.
    pub(super) fn reply(self, id: &str) -> Reply {
        match self {
            // The reply does not say how many outcomes were counted: anyone can send a report, and could so ask to
            // whom a user has written.
            Self::Counted => Reply::new(250, format!("2.0.0 Report taken ({id})")),
            Self::NoReport => {
                let text =
                    "5.6.0 This address takes only delivery status notifications, and complaints in the format ARF";
                Reply::new(554, format!("{text} ({id})"))
            }
            Self::NoMessage => {
                let text = "5.6.0 The report returns no headers with a queue id or a Message-ID";
                Reply::new(554, format!("{text} ({id})"))
            }
            Self::TooMany => Reply::new(451, format!("4.3.2 Too many reports at once; try again later ({id})")),
            Self::Unavailable => {
                Reply::new(451, format!("4.3.0 The report cannot be counted now; try again later ({id})"))
            }
        }
    }

    /// Returns whether the client should send the mail again.
    pub(super) fn is_temporary(self) -> bool {
        matches!(self, Self::TooMany | Self::Unavailable)
    }
}
