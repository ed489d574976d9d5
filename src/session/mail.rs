//! MAIL.

use super::pipeline::PendingCommand;
use super::replies::no_hello;
use super::transaction::Transaction;
use super::{Security, State};
use crate::smtp::envelope::Mail;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::sync::Arc;

impl State {
    /// Whether MAIL may come now; policy is asked afterwards.
    pub(super) fn check_mail(&self, mail: Mail) -> PendingCommand {
        let fault = if self.hello.is_none() {
            no_hello()
        } else if self.transaction.is_some() {
            Reply::new(503, "5.5.1 A transaction is under way already")
        } else if self.must_log_in() && self.options.tls == Security::StartTls && self.tls.is_none() {
            Reply::new(530, "5.7.0 Say STARTTLS first, then log in")
        } else if self.must_log_in() {
            Reply::new(530, "5.7.0 Authentication required")
        } else if let Some(name) = mail.beyond(&self.announced) {
            Reply::new(555, format!("5.5.4 MAIL parameter {name} is not offered here"))
        } else if !mail.smtp_utf8 && !mail.sender.is_ascii() {
            // RFC 6531 §3.5.
            Reply::new(550, "5.6.7 An address beyond ASCII needs SMTPUTF8")
        } else if mail.size.is_some_and(|size| size > self.max_message_size()) {
            let (id, limit) = (&self.id, self.max_message_size());
            let text = format!("5.3.4 A message of this size is not taken; the limit is {limit} octets ({id})");
            return PendingCommand::Answered(Reply::new(552, text));
        } else {
            return PendingCommand::Mail(mail);
        };
        PendingCommand::Fault(fault)
    }

    pub(super) fn must_log_in(&self) -> bool {
        self.user.is_none() && self.options.must_log_in(self.client)
    }

    /// Begins a transaction; `route` is the upstream that is to have it, as far as is said at MAIL.
    pub(super) fn begin(&mut self, mail: Mail, route: Option<Arc<str>>, now: Timestamp) -> Reply {
        let detour = self.take_detour(&mail.sender.to_string());
        let route = route.or(detour);
        self.transaction = Some(Transaction::new(mail, route, now));
        Reply::new(250, "2.1.0 Sender ok")
    }
}
