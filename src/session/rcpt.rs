//! RCPT.

use super::run::Gathered;
use super::{State, Upstream};
use crate::smtp::command::Rcpt;
use crate::smtp::reply::Reply;

impl State {
    /// Whether RCPT may come now; policy and the upstream are asked afterwards.
    pub(super) fn check_rcpt(&mut self, rcpt: Rcpt) -> Gathered {
        let gathered = self.run.iter().filter(|gathered| gathered.is_rcpt()).count();
        let mail_gathered = self.run.iter().any(Gathered::is_mail);
        let limit = self.options.max_recipients;
        let Some(transaction) = &mut self.transaction else {
            return match mail_gathered {
                false => Gathered::Fault(Reply::new(503, "5.5.1 Say MAIL first")),
                true if gathered >= limit => Gathered::Answered(too_many(&self.id, limit)),
                true => Gathered::Rcpt(rcpt),
            };
        };
        let refusal = match &transaction.upstream {
            _ if transaction.accepted + gathered >= limit => too_many(&self.id, limit),
            Upstream::Refused(reply) => reply.clone(),
            Upstream::Lost => upstream_away(&self.id, None),
            Upstream::Unaware | Upstream::Aware => return Gathered::Rcpt(rcpt),
        };
        transaction.asked += 1;
        Gathered::Answered(refusal)
    }
}

fn too_many(id: &str, limit: usize) -> Reply {
    Reply::new(452, format!("4.5.3 A message has at most {limit} recipients here; send the rest in another ({id})"))
}

/// What the client is told when the upstream is of no use: try again, nothing is lost. In the upstream's own words, if it had some.
/// The session's id is the reference under which the log says why.
pub(super) fn upstream_away(id: &str, words: Option<Reply>) -> Reply {
    match words {
        Some(words) => words.recoded(451, "4.3.2"),
        None => {
            Reply::new(451, format!("4.4.1 The mail server behind this one does not answer; try again later ({id})"))
        }
    }
}
