//! RCPT, and the bounds of the envelope.

use super::pending_command::PendingCommand;
use super::replies::{no_transaction, upstream_away};
use super::state::State;
use super::transaction::Upstream;
use crate::smtp::envelope::Rcpt;
use crate::smtp::reply::Reply;

/// Number of octets that is multiplied by the maximum number of recipients to get the maximum size of an envelope. A
/// typical address has 30 octets, and its ORCPT parameter has 40 octets. Both can be much longer (RFC 5321 §4.5.3.1,
/// RFC 3461 §4.2), but in practice not for all recipients of a large message.
const OCTETS_PER_RECIPIENT: usize = 256;

/// Lower bound of the maximum size of an envelope, in octets: enough for 100 recipients of the maximum length (RFC 5321
/// §4.5.3.1.8).
const MIN_ENVELOPE_OCTETS: usize = 100 * 1024;

impl State {
    /// Checks whether RCPT is allowed now. The session asks policy and the upstream afterwards.
    pub(super) fn check_rcpt(&mut self, rcpt: Rcpt) -> PendingCommand {
        let in_batch = self.batch.iter().filter(|pending| pending.is_rcpt()).count();
        let mail_in_batch = || self.batch.iter().find_map(PendingCommand::mail);
        let Some(mail) = self.transaction.as_ref().map(|transaction| &transaction.mail).or_else(mail_in_batch) else {
            // Perhaps this recipient follows a refused MAIL, and the client has sent it before it got that reply.
            return self.refuse_rcpt(no_transaction());
        };
        if !rcpt.is_ascii() && !mail.smtp_utf8 {
            // RFC 6531 §3.5.
            return PendingCommand::Fault(Reply::new(553, "5.6.7 An address beyond ASCII needs SMTPUTF8 at MAIL"));
        }
        if let Some(name) = rcpt.unsupported(&self.announced) {
            return PendingCommand::Fault(Reply::new(555, format!("5.5.4 RCPT parameter {name} is not offered here")));
        }
        let is_report = self.is_report_address(&rcpt);
        if let Some(refusal) = self.refuse_beside_report(is_report) {
            return refusal;
        }
        if self.error_limits.exceeds_refusals() {
            return self.refuse_rcpt(Reply::new(
                452,
                "4.5.3 Too many recipients have been refused; send the message to the others",
            ));
        }
        let limit = self.max_recipients();
        let accepted = self.transaction.as_ref().map_or(0, |transaction| transaction.recipients.len());
        let is_too_long = self.envelope_octets() + rcpt.octets() > self.max_envelope_octets();
        let pending = if is_report { PendingCommand::Report(rcpt) } else { PendingCommand::Rcpt(rcpt, Vec::new()) };
        let Some(transaction) = &mut self.transaction else {
            return match in_batch >= limit {
                true => self.refuse_rcpt(too_many_recipients(&self.id, limit)),
                false if is_too_long => self.refuse_rcpt(envelope_too_long(&self.id)),
                false => pending,
            };
        };
        // The limits have charged DATA for the recipients before it, but not for further recipients.
        if transaction.message_charged && transaction.chunked.is_none() {
            return PendingCommand::Fault(Reply::new(503, "5.5.1 DATA has been said already; say it again, or RSET"));
        }
        if transaction.chunked.is_some() {
            return PendingCommand::Fault(Reply::new(503, "5.5.1 The message has begun already"));
        }
        let refusal = match &transaction.upstream {
            _ if accepted + in_batch >= limit => too_many_recipients(&self.id, limit),
            _ if is_too_long => envelope_too_long(&self.id),
            _ if is_report => return pending,
            Upstream::Refused(reply) => reply.clone(),
            Upstream::Lost => upstream_away(&self.id, None),
            Upstream::Unaware | Upstream::Aware | Upstream::Report => return pending,
        };
        transaction.asked += 1;
        self.refuse_rcpt(refusal)
    }

    /// Refuses a recipient without asking policy or the upstream. Counts the refusal, so that a client cannot send such
    /// recipients without end.
    pub(super) fn refuse_rcpt(&mut self, reply: Reply) -> PendingCommand {
        self.error_limits.count_refusal();
        PendingCommand::Answered(reply)
    }

    /// Returns the octets of the recipients that are accepted or pending.
    fn envelope_octets(&self) -> usize {
        let accepted = self.transaction.as_ref().map_or(0, |transaction| transaction.octets);
        accepted + self.batch.iter().filter_map(PendingCommand::rcpt).map(Rcpt::octets).sum::<usize>()
    }

    /// Returns the maximum octets of the recipients, which are kept in memory until the message begins.
    fn max_envelope_octets(&self) -> usize {
        self.max_recipients().saturating_mul(OCTETS_PER_RECIPIENT).max(MIN_ENVELOPE_OCTETS)
    }
}

fn envelope_too_long(id: &str) -> Reply {
    Reply::new(
        452,
        format!(
            "4.5.3 The recipients and their parameters are too long for one message; send the rest in another ({id})"
        ),
    )
}

fn too_many_recipients(id: &str, limit: usize) -> Reply {
    Reply::new(452, format!("4.5.3 A message has at most {limit} recipients here; send the rest in another ({id})"))
}
