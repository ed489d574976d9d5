//! MAIL, and the upstream that a limit has chosen for the message.

use super::next_route::NextRoute;
use super::options::Security;
use super::pending_command::PendingCommand;
use super::replies::no_hello;
use super::state::State;
use super::transaction::Transaction;
use crate::policy::verdict::Verdict;
use crate::smtp::envelope::Mail;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::sync::Arc;

impl State {
    /// Checks whether MAIL is allowed now. The session asks policy afterwards.
    pub(super) fn check_mail(&mut self, mail: Mail) -> PendingCommand {
        let fault = if self.hello.is_none() {
            no_hello()
        } else if self.transaction.is_some() {
            Reply::new(503, "5.5.1 A transaction is under way already")
        } else if let Some(reply) = self.login_demand().filter(|_| self.options.report_address.is_none()) {
            reply
        } else if let Some(name) = mail.unsupported(&self.announced) {
            Reply::new(555, format!("5.5.4 MAIL parameter {name} is not offered here"))
        } else if !mail.smtp_utf8 && !mail.sender.is_ascii() {
            // RFC 6531 §3.5.
            Reply::new(550, "5.6.7 An address beyond ASCII needs SMTPUTF8")
        } else if mail.size.is_some_and(|size| size > self.max_message_size()) {
            let (id, limit) = (&self.id, self.max_message_size());
            let text = format!("5.3.4 The message is too large; the limit is {limit} octets ({id})");
            return PendingCommand::Answered(Reply::new(552, text));
        } else if let Some(reply) = self.check_envelope_sender(&mail) {
            return PendingCommand::Answered(reply);
        } else {
            return PendingCommand::Mail(mail);
        };
        PendingCommand::Fault(fault)
    }

    /// Returns the reply to a client that must log in first.
    pub(super) fn login_demand(&self) -> Option<Reply> {
        let needs_tls = self.options.tls == Security::StartTls && self.tls.is_none();
        self.must_log_in().then(|| match needs_tls {
            true => Reply::new(530, "5.7.0 Say STARTTLS first, then log in"),
            false => Reply::new(530, "5.7.0 Authentication required"),
        })
    }

    /// Begins a transaction. `route` is the upstream that a limit has chosen at MAIL, if any.
    pub(super) fn begin(&mut self, mail: Mail, route: Option<Arc<str>>, now: Timestamp) -> Reply {
        let next_route = self.take_next_route(&mail.sender.text());
        let route = route.or(next_route);
        self.transaction = Some(Transaction::new(mail, route, now));
        Reply::new(250, "2.1.0 Sender ok")
    }

    /// Stores the upstream that a limit has chosen for the next transaction.
    pub(super) fn note_route(&mut self, verdict: &mut Verdict) {
        if let Some(upstream) = verdict.route.take() {
            let owner = self.sender().map(|sender| (sender, self.user.clone()));
            self.next_route = Some(NextRoute::new(upstream, owner));
        }
    }

    /// Called at MAIL. Returns the upstream that a limit chose before this MAIL for mail of this sender, if there is one.
    fn take_next_route(&mut self, sender: &str) -> Option<Arc<str>> {
        self.next_route.as_mut()?.take(sender, self.user.as_ref())
    }

    /// Removes the route after the upstream has accepted a message on this route, unless a limit has chosen a route
    /// again. If the message was not accepted, the client will send it again, so the route stays.
    pub(super) fn end_next_route(&mut self) {
        self.next_route.take_if(|route| route.is_taken());
    }
}
