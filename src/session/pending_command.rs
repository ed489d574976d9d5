//! Pipelined command and its progress: first policy decides on it, then the upstream, then the client gets the reply.

use crate::policy::budgets::RefundableCharge;
use crate::policy::request::Event;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::reply::Reply;

/// A command of the batch and its progress.
pub(super) enum PendingCommand {
    /// MAIL, on which policy has to decide.
    Mail(Mail),
    /// RCPT, on which policy has to decide, then the upstream. Also holds the charges for the recipient, because they
    /// perhaps have to be refunded.
    Rcpt(Rcpt, Vec<RefundableCharge>),
    /// RCPT with the report address, on which policy alone has to decide.
    Report(Rcpt),
    /// DATA or the first BDAT, on which policy has to decide, then the upstream. It is always alone in its batch,
    /// because it depends on the replies to the recipients.
    Data,
    /// Command whose reply is decided.
    Answered(Reply),
    /// Command whose reply is decided, because the command is the client's own error of syntax or order.
    Fault(Reply),
}

impl PendingCommand {
    pub fn mail(&self) -> Option<&Mail> {
        if let Self::Mail(mail) = self { Some(mail) } else { None }
    }

    pub fn is_mail(&self) -> bool {
        self.mail().is_some()
    }

    pub fn rcpt(&self) -> Option<&Rcpt> {
        if let Self::Rcpt(rcpt, _) | Self::Report(rcpt) = self { Some(rcpt) } else { None }
    }

    pub fn is_rcpt(&self) -> bool {
        self.rcpt().is_some()
    }

    pub fn is_answered(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Fault(_))
    }

    /// Returns the event about which the session asks policy. `counts_commands`: the session asks policy about answered
    /// commands, too.
    pub fn event(&self, counts_commands: bool) -> Option<Event> {
        match self {
            Self::Mail(_) => Some(Event::Mail),
            Self::Rcpt(rcpt, _) | Self::Report(rcpt) => Some(Event::Recipient(rcpt.recipient.text())),
            Self::Data => Some(Event::Message),
            Self::Answered(_) | Self::Fault(_) => counts_commands.then_some(Event::Command),
        }
    }
}
