//! Transaction of a report: Weir itself takes the mail to the report address, and asks no upstream about it.

use super::data::begin_message;
use super::pending_command::PendingCommand;
use super::state::State;
use super::step::{Session, Step};
use super::transaction::Upstream;
use crate::policy::budgets::RefundableCharge;
use crate::smtp::envelope::Rcpt;
use crate::smtp::reply::Reply;

impl Session {
    /// Returns whether the message is a report: it goes to no upstream.
    pub fn takes_report(&self) -> bool {
        self.0.takes_report()
    }

    /// Lets the client send the report.
    pub(super) fn begin_report(mut self) -> Step {
        self.0.batch.clear();
        begin_message(self)
    }
}

impl State {
    pub(super) fn takes_report(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| matches!(transaction.upstream, Upstream::Report))
    }

    pub(super) fn is_report_address(&self, rcpt: &Rcpt) -> bool {
        self.options.report_address.as_ref().is_some_and(|address| address.is(rcpt))
    }

    /// Returns the refusal of a recipient that the transaction cannot have because of reports: a message is either a
    /// report or goes to the upstream, so that one reply can tell its outcome.
    pub(super) fn refuse_beside_report(&mut self, is_report: bool) -> Option<PendingCommand> {
        self.options.report_address.as_ref()?;
        // MAIL needs no login, because the recipient is perhaps the report address.
        if let Some(reply) = self.login_demand().filter(|_| !is_report) {
            return Some(PendingCommand::Fault(reply));
        }
        let accepted = self.transaction.as_ref().filter(|transaction| !transaction.recipients.is_empty());
        let is_beside_accepted =
            accepted.is_some_and(|transaction| matches!(transaction.upstream, Upstream::Report) != is_report);
        let is_beside_pending = self.batch.iter().any(|pending| match pending {
            PendingCommand::Report(_) => !is_report,
            PendingCommand::Rcpt(..) => is_report,
            _ => false,
        });
        let refusal = || Reply::new(452, "4.5.3 A report goes to the report address alone; send it separately");
        (is_beside_accepted || is_beside_pending).then(|| self.refuse_rcpt(refusal()))
    }

    /// Accepts the report address as the recipient. Returns the reply.
    pub(super) fn accept_report_address(&mut self, rcpt: &Rcpt, charges: Vec<RefundableCharge>) -> Reply {
        if let Some(transaction) = &mut self.transaction {
            transaction.upstream = Upstream::Report;
            transaction.recipients.push(rcpt.recipient.text());
            transaction.octets += rcpt.octets();
            transaction.charges.extend(charges);
        }
        Reply::new(250, "2.1.5 Recipient ok")
    }
}
