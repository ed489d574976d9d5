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
        let refusal = match &mut self.transaction {
            None if !mail_gathered => Reply::new(503, "5.5.1 Say MAIL first"),
            None if gathered >= self.options.max_recipients => too_many(self.options.max_recipients),
            None => return Gathered::Rcpt(rcpt),
            Some(transaction) => {
                let refusal = match &transaction.upstream {
                    _ if transaction.accepted + gathered >= self.options.max_recipients => {
                        too_many(self.options.max_recipients)
                    }
                    Upstream::Refused(reply) => reply.clone(),
                    Upstream::Lost => upstream_away(),
                    Upstream::Unaware | Upstream::Aware => return Gathered::Rcpt(rcpt),
                };
                transaction.asked += 1;
                refusal
            }
        };
        Gathered::Reply(refusal)
    }
}

fn too_many(limit: usize) -> Reply {
    Reply::new(452, format!("4.5.3 A message has at most {limit} recipients here; send the rest in another"))
}

/// What the client is told when the upstream is of no use: try again, nothing is lost.
pub(super) fn upstream_away() -> Reply {
    Reply::new(451, "4.4.1 The mail server behind this one does not answer; try again later")
}
