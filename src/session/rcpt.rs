//! RCPT.

use super::pipeline::PendingCommand;
use super::State;
use super::replies::{no_transaction, upstream_away};
use super::transaction::Upstream;
use crate::smtp::envelope::Rcpt;
use crate::smtp::reply::Reply;

/// Octets of an envelope for each recipient that a message may have: an address takes some 30, and its ORCPT 40. Addresses and
/// parameters may be far longer than that (RFC 5321 §4.5.3.1, RFC 3461 §4.2), but not all of a thousand are.
const OCTETS_PER_RECIPIENT: usize = 256;

/// An envelope may have so many octets whatever the number of its recipients: a hundred of the longest (RFC 5321 §4.5.3.1.8).
const LEAST_MAX_OCTETS: usize = 100 * 1024;

impl State {
    /// Whether RCPT may come now; policy and the upstream are asked afterwards.
    pub(super) fn check_rcpt(&mut self, rcpt: Rcpt) -> PendingCommand {
        let gathered = self.run.iter().filter(|gathered| gathered.is_rcpt()).count();
        let gathered_mail = || self.run.iter().find_map(PendingCommand::mail);
        let Some(mail) = self.transaction.as_ref().map(|transaction| &transaction.mail).or_else(gathered_mail) else {
            return PendingCommand::Fault(no_transaction());
        };
        if !rcpt.is_ascii() && !mail.smtp_utf8 {
            // RFC 6531 §3.5.
            return PendingCommand::Fault(Reply::new(553, "5.6.7 An address beyond ASCII needs SMTPUTF8 at MAIL"));
        }
        if let Some(name) = rcpt.beyond(&self.announced) {
            return PendingCommand::Fault(Reply::new(555, format!("5.5.4 RCPT parameter {name} is not offered here")));
        }
        if self.patience.is_tired_of_refusals() {
            return self.refuse_rcpt(Reply::new(
                452,
                "4.5.3 Too many recipients have been refused; send the message to the others",
            ));
        }
        let limit = self.max_recipients();
        let accepted = self.transaction.as_ref().map_or(0, |transaction| transaction.recipients.len());
        let is_too_long = self.envelope_octets() + rcpt.octets() > self.max_envelope_octets();
        let Some(transaction) = &mut self.transaction else {
            return match gathered >= limit {
                true => self.refuse_rcpt(too_many(&self.id, limit)),
                false if is_too_long => self.refuse_rcpt(too_long(&self.id)),
                false => PendingCommand::Rcpt(rcpt, Vec::new()),
            };
        };
        // What has been charged for the message would not be for them.
        if transaction.message_charged && transaction.chunked.is_none() {
            return PendingCommand::Fault(Reply::new(503, "5.5.1 DATA has been said already; say it again, or RSET"));
        }
        if transaction.chunked.is_some() {
            return PendingCommand::Fault(Reply::new(503, "5.5.1 The message has begun already"));
        }
        let refusal = match &transaction.upstream {
            _ if accepted + gathered >= limit => too_many(&self.id, limit),
            _ if is_too_long => too_long(&self.id),
            Upstream::Refused(reply) => reply.clone(),
            Upstream::Lost => upstream_away(&self.id, None),
            Upstream::Unaware | Upstream::Aware => return PendingCommand::Rcpt(rcpt, Vec::new()),
        };
        transaction.asked += 1;
        self.refuse_rcpt(refusal)
    }

    /// A recipient that nobody is asked about counts as refused, so that a client cannot go on with such recipients for ever.
    fn refuse_rcpt(&mut self, reply: Reply) -> PendingCommand {
        self.patience.count_refusal();
        PendingCommand::Answered(reply)
    }

    /// Octets of the recipients that are accepted or in question.
    fn envelope_octets(&self) -> usize {
        let accepted = self.transaction.as_ref().map_or(0, |transaction| transaction.octets);
        accepted + self.run.iter().filter_map(PendingCommand::rcpt).map(Rcpt::octets).sum::<usize>()
    }

    /// The most that there may be: they are kept until the message begins.
    fn max_envelope_octets(&self) -> usize {
        self.max_recipients().saturating_mul(OCTETS_PER_RECIPIENT).max(LEAST_MAX_OCTETS)
    }
}

fn too_long(id: &str) -> Reply {
    Reply::new(
        452,
        format!(
            "4.5.3 The recipients and their parameters are too long for one message; send the rest in another ({id})"
        ),
    )
}

fn too_many(id: &str, limit: usize) -> Reply {
    Reply::new(452, format!("4.5.3 A message has at most {limit} recipients here; send the rest in another ({id})"))
}
