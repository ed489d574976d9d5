//! A run of pipelined commands: asked of policy in one question, of the upstream in another, answered in order.

use super::data::{Body, Chunk};
use super::record::{Refused, RefusedBy};
use super::replies::{no_transaction, undecided, upstream_away};
use super::transaction::Upstream;
use super::{Session, State, Step};
use crate::policy::event::{Event, Stage};
use crate::policy::verdict::{RefundWhen, RefundableCharge, Ruling, Verdict};
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::sync::Arc;

/// A command of the run, as far as it has come.
pub(super) enum PendingCommand {
    /// MAIL, to be asked of policy.
    Mail(Mail),
    /// RCPT, to be asked of policy, then of the upstream; with what was charged for it and may have to be given back.
    Rcpt(Rcpt, Vec<RefundableCharge>),
    /// DATA or the first BDAT, to be asked of policy, then of the upstream; always alone, since it depends on what was said to the recipients.
    Data,
    /// Answered already.
    Answered(Reply),
    /// Answered already, and the client's own fault: an error of syntax or order.
    Fault(Reply),
}

impl PendingCommand {
    pub(super) fn mail(&self) -> Option<&Mail> {
        if let Self::Mail(mail) = self { Some(mail) } else { None }
    }

    pub(super) fn is_mail(&self) -> bool {
        self.mail().is_some()
    }

    pub(super) fn rcpt(&self) -> Option<&Rcpt> {
        if let Self::Rcpt(rcpt, _) = self { Some(rcpt) } else { None }
    }

    pub(super) fn is_rcpt(&self) -> bool {
        self.rcpt().is_some()
    }

    pub(super) fn is_answered(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Fault(_))
    }

    fn stage(&self) -> Stage {
        match self {
            Self::Mail(_) => Stage::Mail,
            Self::Rcpt(..) => Stage::Rcpt,
            Self::Data => Stage::Data,
            Self::Answered(_) | Self::Fault(_) => Stage::Command,
        }
    }

    /// What policy is asked about it; `counts_commands` is whether it is asked about what is answered already, too.
    pub(super) fn event(&self, counts_commands: bool) -> Option<Event> {
        match self {
            Self::Mail(_) => Some(Event::Mail),
            Self::Rcpt(rcpt, _) => Some(Event::Recipient(rcpt.recipient.to_string().into())),
            Self::Data => Some(Event::Message),
            Self::Answered(_) | Self::Fault(_) => counts_commands.then_some(Event::Command),
        }
    }
}

/// What does the upstream say to these commands?
pub struct Relay(Session);

/// What to ask the upstream.
pub enum Request<'a> {
    /// MAIL, unless it has been sent, and these recipients: one answer a recipient is expected.
    Envelope {
        mail: Option<&'a Mail>,
        recipients: Vec<&'a Rcpt>,
        /// The upstream that is to have it, if it matters.
        route: Option<&'a Arc<str>>,
    },
    /// DATA: one answer.
    Data,
}

/// The upstream's answer to one command.
#[derive(Clone, Debug)]
pub enum Answer {
    Reply(Reply),
    /// It refused MAIL, and so the recipient.
    MailRefused(Reply),
    /// It cannot be reached, does not answer or is not understood, for this reason; or it closes the connection, in these words.
    Away {
        reason: String,
        words: Option<Reply>,
    },
}

impl Relay {
    pub fn request(&self) -> Request<'_> {
        let State { run, transaction, .. } = &*self.0.0;
        let recipients: Vec<&Rcpt> = run.iter().filter_map(PendingCommand::rcpt).collect();
        if recipients.is_empty() {
            return Request::Data;
        }
        let unaware = transaction.as_ref().filter(|transaction| matches!(transaction.upstream, Upstream::Unaware));
        let route = transaction.as_ref().and_then(|transaction| transaction.route.as_ref());
        Request::Envelope { mail: unaware.map(|transaction| &transaction.mail), recipients, route }
    }

    /// Whose commands they are.
    pub fn session(&self) -> &Session {
        &self.0
    }

    /// The same, to note something in it.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.0
    }

    /// The server stops, and cannot wait for the upstream.
    pub fn stopping(self) -> Step {
        self.0.shut_down()
    }

    /// Takes one answer a recipient, in order, or the one to DATA.
    pub fn answer(self, answers: Vec<Answer>) -> Step {
        let mut session = self.0;
        let mut answers = answers.into_iter();
        // What befalls the whole envelope is one event for the log, however many recipients hear of it.
        let mut recorded = false;
        for gathered in std::mem::take(&mut session.0.run) {
            if gathered.is_answered() {
                session.0.run.push(gathered);
                continue;
            }
            let missing = || Answer::Away { reason: "no answer".to_owned(), words: None };
            let answer = answers.next().unwrap_or_else(missing);
            let reply = match (gathered, answer) {
                (PendingCommand::Data, Answer::Reply(reply)) if reply.code() == 354 => {
                    return match session.0.chunk.take() {
                        Some(chunk) => Chunk::begin(session, chunk),
                        None => Body::begin(session),
                    };
                }
                (PendingCommand::Rcpt(rcpt, charges), answer) => {
                    session.0.recipient_answered(&rcpt, charges, answer, &mut recorded)
                }
                (_, answer) => session.0.data_refused(answer),
            };
            session.0.run.push(PendingCommand::Answered(reply));
        }
        session.0.answer_run();
        Step::Next(session)
    }
}

impl Session {
    /// Asks policy about the run.
    pub(super) fn ask(mut self) -> Step {
        if !self.0.has_questions() {
            self.0.answer_run();
            return Step::Next(self);
        }
        self.ask_run()
    }

    /// Asks the upstream about what is not answered yet.
    pub(super) fn relay_or_answer(mut self) -> Step {
        if !self.0.run.iter().all(PendingCommand::is_answered) {
            return Step::Relay(Relay(self));
        }
        self.0.answer_run();
        Step::Next(self)
    }
}

impl State {
    pub(super) fn gather(&mut self, gathered: PendingCommand) {
        self.run.push(gathered);
    }

    /// Writes the replies of a run that is answered throughout; to a piece of a message when its octets have come.
    pub(super) fn answer_run(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.drop_chunk(chunk);
            if !self.closing {
                return self.owed = std::mem::take(&mut self.run);
            }
        }
        for gathered in std::mem::take(&mut self.run) {
            match gathered {
                PendingCommand::Answered(reply) => self.reply(&reply),
                PendingCommand::Fault(reply) => {
                    if self.refuse(&reply) {
                        break;
                    }
                }
                // Nobody calls this with a question open; should it happen, the client is not left waiting.
                PendingCommand::Mail(_) | PendingCommand::Rcpt(..) | PendingCommand::Data => self.reply(&undecided()),
            }
        }
        self.check_patience();
    }

    /// Whether anything of the run is to be asked of policy.
    pub(super) fn has_questions(&self) -> bool {
        !self.run.iter().all(PendingCommand::is_answered) || (self.counts_commands && !self.run.is_empty())
    }

    /// The reply to what policy does not let pass; what it lets pass goes on to the upstream.
    pub(super) fn judge(
        &mut self,
        gathered: PendingCommand,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> PendingCommand {
        if gathered.is_rcpt()
            && let Some(transaction) = &mut self.transaction
        {
            transaction.asked += 1;
        }
        let Some(mut verdict) = verdict else {
            return if gathered.is_answered() { gathered } else { PendingCommand::Answered(undecided()) };
        };
        let stage = gathered.stage();
        if !gathered.is_mail() {
            self.routed(&mut verdict);
        }
        let Verdict { ruling, charges, route, .. } = verdict;
        match (ruling, gathered) {
            (Ruling::Pass, PendingCommand::Mail(mail)) => {
                let reply = self.begin(mail, route, now);
                self.keep_charges(charges);
                PendingCommand::Answered(reply)
            }
            (Ruling::Pass, PendingCommand::Rcpt(rcpt, _)) => PendingCommand::Rcpt(rcpt, charges),
            (Ruling::Pass, gathered) => {
                if let (PendingCommand::Data, Some(transaction)) = (&gathered, &mut self.transaction) {
                    transaction.message_charged = true;
                }
                self.keep_charges(charges);
                gathered
            }
            (Ruling::Skipped, _) => {
                self.patience.count_refusal();
                PendingCommand::Answered(no_transaction())
            }
            (Ruling::Refuse(refusal), gathered) => {
                // Of limits in shadow, for which it would have happened.
                self.settlement.give_back(charges);
                let (from, to) = self.parties(&gathered);
                PendingCommand::Answered(self.refused(*refusal, stage, from, to))
            }
            (Ruling::Suspended(suspended), gathered) => {
                let (from, to) = self.parties(&gathered);
                PendingCommand::Answered(self.suspended(*suspended, stage, from, to))
            }
        }
    }

    /// Sender and recipient of a command.
    fn parties(&self, gathered: &PendingCommand) -> (Option<String>, Option<String>) {
        match gathered {
            PendingCommand::Mail(mail) => (Some(mail.sender.to_string()), None),
            PendingCommand::Rcpt(rcpt, _) => (self.sender(), Some(rcpt.recipient.to_string())),
            _ => (self.sender(), None),
        }
    }

    /// What may have to be given back when the transaction ends.
    pub(super) fn keep_charges(&mut self, charges: Vec<RefundableCharge>) {
        if let Some(transaction) = &mut self.transaction {
            transaction.charges.extend(charges);
        }
    }

    fn recipient_answered(
        &mut self,
        rcpt: &Rcpt,
        charges: Vec<RefundableCharge>,
        answer: Answer,
        recorded: &mut bool,
    ) -> Reply {
        let is_of_all = !matches!(answer, Answer::Reply(_));
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
        let has_its_line = is_of_all && *recorded;
        match &mut self.transaction {
            Some(transaction) if reply.is_positive() => {
                transaction.recipients.push(rcpt.recipient.to_string().into());
                transaction.octets += rcpt.octets();
                transaction.charges.extend(charges);
            }
            _ => {
                self.patience.count_refusal();
                // Other recipients may still get the message.
                let (of_message, of_recipient) =
                    charges.into_iter().partition(|charged| charged.until == RefundWhen::MessageSent);
                self.keep_charges(of_message);
                self.settlement.give_back(of_recipient);
                // MAIL is refused once, however many recipients hear of it.
                if (500..600).contains(&reply.code()) && !has_its_line {
                    let rejected = (stage == Stage::Rcpt).then(|| rcpt.recipient.to_string().into());
                    self.settlement.reject(self.facts(None), rejected);
                }
            }
        }
        if !reply.is_positive() && !has_its_line {
            let (from, to) = (self.sender(), Some(rcpt.recipient.to_string()));
            self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
            *recorded |= is_of_all;
        }
        reply
    }

    /// The reply to DATA when the upstream does not want the message, or says what cannot be.
    fn data_refused(&mut self, answer: Answer) -> Reply {
        let (reply, by) = match answer {
            Answer::Reply(reply) if reply.code() >= 400 => {
                if reply.code() >= 500 {
                    self.settlement.reject(self.facts(None), None);
                }
                (reply.enhanced(), RefusedBy::Upstream)
            }
            // A success here is nonsense: nothing has been sent yet.
            Answer::Reply(reply) | Answer::MailRefused(reply) => {
                (upstream_away(&self.id, None), RefusedBy::Away(format!("it answered DATA with {reply}")))
            }
            Answer::Away { reason, words } => (upstream_away(&self.id, words), RefusedBy::Away(reason)),
        };
        if let (Some(transaction), RefusedBy::Away(_)) = (&mut self.transaction, &by) {
            transaction.upstream = Upstream::Lost;
        }
        self.patience.count_idle_command();
        let from = self.sender();
        self.record_refusal(Refused { stage: Stage::Data, from, to: None, reply: reply.clone(), by });
        reply
    }

    pub(super) fn sender(&self) -> Option<String> {
        self.transaction.as_ref().map(|transaction| transaction.mail.sender.to_string())
    }
}
