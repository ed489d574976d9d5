//! Batch of pipelined commands: one question to policy, then one question to the upstream, then the replies in order.

use super::data::begin_message;
use super::pending_command::PendingCommand;
use super::record::{DecidedEvent, Refused, RefusedBy};
use super::replies::{no_transaction, undecided, upstream_away};
use super::state::State;
use super::step::{Relay, Session, Step};
use super::transaction::Upstream;
use crate::policy::budgets::{RefundWhen, RefundableCharge};
use crate::policy::request::{Event, Facts, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::reply::Reply;
use crate::smtp::upstream_answer::Answer;
use crate::time::Timestamp;
use std::mem::take;
use std::sync::Arc;

/// Request to the upstream.
pub enum Request<'a> {
    /// These recipients, and MAIL before them unless the upstream has got MAIL already. Expects one answer per
    /// recipient.
    Envelope {
        mail: Option<&'a Mail>,
        recipients: Vec<&'a Rcpt>,
        /// The upstream that a limit has chosen, if any.
        route: Option<&'a Arc<str>>,
    },
    /// DATA. Expects one answer.
    Data,
}

impl Relay {
    pub fn request(&self) -> Request<'_> {
        let State { batch, transaction, .. } = &*self.0.0;
        let recipients: Vec<&Rcpt> = batch.iter().filter_map(PendingCommand::rcpt).collect();
        if recipients.is_empty() {
            return Request::Data;
        }
        let unaware = transaction.as_ref().filter(|transaction| matches!(transaction.upstream, Upstream::Unaware));
        let route = transaction.as_ref().and_then(|transaction| transaction.route.as_ref());
        Request::Envelope { mail: unaware.map(|transaction| &transaction.mail), recipients, route }
    }

    /// The session whose commands these are.
    pub fn session(&self) -> &Session {
        &self.0
    }

    /// The session, for changes.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.0
    }

    /// Ends the session because the client has gone. Refunds the charges of the batch.
    pub fn client_gone(self) -> Step {
        self.0.client_gone()
    }

    /// Ends the session because the server stops and cannot wait for the upstream.
    pub fn stopping(self) -> Step {
        self.0.shut_down()
    }

    /// Applies the upstream's answers: one answer per recipient of the request, in order, or the answer to DATA.
    pub fn answer(self, answers: Vec<Answer>) -> Step {
        let mut session = self.0;
        let mut answers = answers.into_iter();
        // Log an envelope-wide failure once, not once per recipient.
        let mut recorded = false;
        for pending in take(&mut session.0.batch) {
            if pending.is_answered() {
                session.0.batch.push(pending);
                continue;
            }
            let missing = || Answer::Away { reason: "no answer".to_owned(), words: None };
            let answer = answers.next().unwrap_or_else(missing);
            let reply = match (pending, answer) {
                (PendingCommand::Data, Answer::Reply(reply)) if reply.code() == 354 => {
                    return begin_message(session);
                }
                (PendingCommand::Rcpt(rcpt, charges), answer) => {
                    session.0.recipient_answered(&rcpt, charges, answer, &mut recorded)
                }
                (_, answer) => session.0.data_refused(answer),
            };
            session.0.batch.push(PendingCommand::Answered(reply));
        }
        session.0.answer_batch();
        Step::Next(session)
    }
}

impl Session {
    /// Asks policy about the batch if it contains a command that policy has to decide.
    pub(super) fn ask(mut self) -> Step {
        if !self.0.has_questions() {
            self.0.answer_batch();
            return Step::Next(self);
        }
        self.ask_batch()
    }

    /// Asks the upstream about the commands that are not answered yet.
    pub(super) fn relay_or_answer(mut self) -> Step {
        match self.0.batch.iter().all(PendingCommand::is_answered) {
            true => self.0.answer_batch(),
            // The command is DATA: a RCPT of a report is answered as soon as policy has decided.
            false if self.0.takes_report() => return self.begin_report(),
            false => return Step::Relay(Relay(self)),
        }
        Step::Next(self)
    }
}

impl State {
    /// Adds a command to the batch.
    pub(super) fn push(&mut self, pending: PendingCommand) {
        self.batch.push(pending);
    }

    /// Writes the replies of the batch. If the last command of the batch is a refused BDAT, the replies wait until all
    /// octets of that piece have arrived.
    pub(super) fn answer_batch(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.drop_chunk(chunk);
            if !self.closing {
                return self.replies_after_discard = take(&mut self.batch);
            }
        }
        for pending in take(&mut self.batch) {
            match pending {
                PendingCommand::Answered(reply) => self.reply(&reply),
                PendingCommand::Fault(reply) => {
                    if self.refuse(&reply) {
                        break;
                    }
                }
                // This function is called only when all commands are answered. If a command is not answered by mistake,
                // the client still gets a reply.
                PendingCommand::Mail(_)
                | PendingCommand::Rcpt(..)
                | PendingCommand::Report(_)
                | PendingCommand::Data => self.reply(&undecided()),
            }
        }
        self.check_error_limits();
    }

    /// Returns whether the session has to ask policy about at least one command of the batch.
    pub(super) fn has_questions(&self) -> bool {
        !self.batch.iter().all(PendingCommand::is_answered) || (self.counts_commands && !self.batch.is_empty())
    }

    /// Applies a verdict to a command. `facts` are the facts that policy saw. `answer` has the command's event and the
    /// verdict on it. A refused command gets its reply; a RCPT or DATA that passes will be sent to the
    /// upstream.
    pub(super) fn apply_verdict(
        &mut self,
        pending: PendingCommand,
        facts: &Facts,
        answer: Option<(Event, Verdict)>,
        now: Timestamp,
    ) -> PendingCommand {
        if pending.is_rcpt()
            && let Some(transaction) = &mut self.transaction
        {
            transaction.asked += 1;
        }
        let Some((event, mut verdict)) = answer else {
            return if pending.is_answered() { pending } else { PendingCommand::Answered(undecided()) };
        };
        if !pending.is_mail() {
            self.note_route(&mut verdict);
        }
        let (ruling, charges, route) = (take(&mut verdict.ruling), take(&mut verdict.charges), verdict.route.take());
        match (ruling, pending) {
            (Ruling::Pass, PendingCommand::Mail(mail)) => {
                let reply = self.begin(mail, route, now);
                self.keep_charges(charges);
                PendingCommand::Answered(reply)
            }
            (Ruling::Pass, PendingCommand::Rcpt(rcpt, _)) => PendingCommand::Rcpt(rcpt, charges),
            (Ruling::Pass, PendingCommand::Report(rcpt)) => {
                PendingCommand::Answered(self.accept_report_address(&rcpt, charges))
            }
            (Ruling::Pass, pending) => {
                if let (PendingCommand::Data, Some(transaction)) = (&pending, &mut self.transaction) {
                    transaction.message_charged = true;
                }
                self.keep_charges(charges);
                pending
            }
            (Ruling::Skipped, _) => {
                self.error_limits.count_refusal();
                PendingCommand::Answered(no_transaction())
            }
            (Ruling::Refuse(refusal), pending) => {
                // Limits in shadow mode have charged the event. Refund these charges, because another limit refuses the
                // event.
                self.deferred_charges.refund(charges);
                let parties = self.parties(&pending);
                let decided = DecidedEvent::new(now, facts, event, &mut verdict);
                PendingCommand::Answered(self.refused(*refusal, decided, parties))
            }
            (Ruling::Suspended(suspended), pending) => {
                let parties = self.parties(&pending);
                let decided = DecidedEvent::new(now, facts, event, &mut verdict);
                PendingCommand::Answered(self.suspended(*suspended, decided, parties))
            }
        }
    }

    /// Returns the sender and the recipient of a command.
    fn parties(&self, pending: &PendingCommand) -> (Option<String>, Option<String>) {
        match pending {
            PendingCommand::Mail(mail) => (Some(mail.sender.to_string()), None),
            PendingCommand::Rcpt(rcpt, _) | PendingCommand::Report(rcpt) => {
                (self.sender(), Some(rcpt.recipient.to_string()))
            }
            _ => (self.sender(), None),
        }
    }

    /// Applies the upstream's answer to a recipient. Returns the reply to the client.
    fn recipient_answered(
        &mut self,
        rcpt: &Rcpt,
        charges: Vec<RefundableCharge>,
        answer: Answer,
        recorded: &mut bool,
    ) -> Reply {
        let is_envelope_wide = !matches!(answer, Answer::Reply(_));
        let (stage, reply, by, upstream) = match answer {
            Answer::Reply(reply) => (Stage::Rcpt, reply.enhanced(), RefusedBy::Upstream, Upstream::Aware),
            Answer::MailRefused(reply) => {
                let reply = reply.enhanced();
                (Stage::Mail, reply.clone(), RefusedBy::Upstream, Upstream::Refused(reply))
            }
            Answer::Away { reason, words } => {
                (Stage::Rcpt, upstream_away(&self.id, words), RefusedBy::Away(reason), Upstream::Lost)
            }
        };
        if let Some(transaction) = &mut self.transaction {
            transaction.upstream = upstream;
        }
        let is_recorded = is_envelope_wide && *recorded;
        match &mut self.transaction {
            Some(transaction) if reply.is_positive() => {
                transaction.recipients.push(rcpt.recipient.text());
                transaction.octets += rcpt.octets();
                transaction.charges.extend(charges);
            }
            _ => {
                self.error_limits.count_refusal();
                // Keep the charges for the message, because other recipients perhaps still get the message.
                let (of_message, of_recipient) =
                    charges.into_iter().partition(|charged| charged.until == RefundWhen::MessageSent);
                self.keep_charges(of_message);
                self.deferred_charges.refund(of_recipient);
                // A refused MAIL counts once, not once per recipient.
                if (500..600).contains(&reply.code()) && !is_recorded {
                    let rejected = (stage == Stage::Rcpt).then(|| rcpt.recipient.text());
                    self.deferred_charges.reject(self.facts(None), rejected);
                }
            }
        }
        if !reply.is_positive() && !is_recorded {
            let (from, to) = (self.sender(), Some(rcpt.recipient.to_string()));
            self.recorder.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
            *recorded |= is_envelope_wide;
        }
        reply
    }

    /// Returns the reply to the client's DATA if the upstream refuses the message, or answers DATA with an impossible
    /// code.
    fn data_refused(&mut self, answer: Answer) -> Reply {
        let (reply, by) = match answer {
            Answer::Reply(reply) if reply.code() >= 400 => {
                if reply.code() >= 500 {
                    self.deferred_charges.reject(self.facts(None), None);
                }
                (reply.enhanced(), RefusedBy::Upstream)
            }
            // A success is impossible here: the message has not been sent yet.
            Answer::Reply(reply) | Answer::MailRefused(reply) => {
                (upstream_away(&self.id, None), RefusedBy::Away(format!("it answered DATA with {reply}")))
            }
            Answer::Away { reason, words } => (upstream_away(&self.id, words), RefusedBy::Away(reason)),
        };
        if let (Some(transaction), RefusedBy::Away(_)) = (&mut self.transaction, &by) {
            transaction.upstream = Upstream::Lost;
        }
        self.error_limits.count_idle_command();
        let from = self.sender();
        self.recorder.record_refusal(Refused { stage: Stage::Data, from, to: None, reply: reply.clone(), by });
        reply
    }
}
