//! A run of pipelined commands: asked of policy in one question, of the upstream in another, answered in order.

use super::data::Body;
use super::rcpt::upstream_away;
use super::record::{By, Record, Refused, Stage};
use super::{Session, State, Step, Upstream};
use crate::policy::event::{Asked, Event};
use crate::policy::verdict::{Refusal, Verdict};
use crate::smtp::command::{Mail, Rcpt};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;

/// A command of the run, as far as it has come.
pub(super) enum Gathered {
    /// MAIL, to be asked of policy.
    Mail(Mail),
    /// RCPT, to be asked of policy, then of the upstream.
    Rcpt(Rcpt),
    /// DATA, to be asked of policy, then of the upstream; always alone, since it depends on what was said to the recipients.
    Data,
    /// Answered already.
    Reply(Reply),
}

impl Gathered {
    pub(super) fn is_mail(&self) -> bool {
        matches!(self, Self::Mail(_))
    }

    pub(super) fn is_rcpt(&self) -> bool {
        matches!(self, Self::Rcpt(_))
    }

    pub(super) fn is_answered(&self) -> bool {
        matches!(self, Self::Reply(_))
    }

    fn event(&self) -> Option<Event> {
        match self {
            Self::Mail(_) => Some(Event::Mail),
            Self::Rcpt(_) => Some(Event::Recipient),
            Self::Data => Some(Event::Message),
            Self::Reply(_) => None,
        }
    }
}

/// Does policy let these events pass?
pub struct Admit {
    session: Session,
    asked: Asked,
}

impl Admit {
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Takes one verdict an event, in order. `now` is the time of the decision.
    pub fn answer(self, verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        let Self { mut session, .. } = self;
        let mut verdicts = verdicts.into_iter();
        let mut passed = false;
        for gathered in std::mem::take(&mut session.0.run) {
            let gathered = match gathered {
                Gathered::Reply(reply) => Gathered::Reply(reply),
                // A verdict that is missing is no leave.
                asked => session.0.judge(asked, verdicts.next().unwrap_or(Verdict::Void), now),
            };
            passed |= !gathered.is_answered();
            session.0.run.push(gathered);
        }
        if passed {
            return Step::Relay(Relay(session));
        }
        session.0.answer_run();
        Step::Next(session)
    }
}

/// What does the upstream say to these commands?
pub struct Relay(Session);

/// What to ask the upstream.
pub enum Request<'a> {
    /// MAIL, unless it has been sent, and these recipients: one answer a recipient is expected.
    Envelope { mail: Option<&'a Mail>, recipients: Vec<&'a Rcpt> },
    /// DATA: one answer.
    Data,
}

/// The upstream's answer to one command.
#[derive(Clone, Debug)]
pub enum Answer {
    Reply(Reply),
    /// It refused MAIL, and so the recipient.
    MailRefused(Reply),
    /// It cannot be reached, does not answer or is not understood: for this reason.
    Away(String),
}

impl Relay {
    pub fn request(&self) -> Request<'_> {
        let State { run, transaction, .. } = &*self.0.0;
        let recipients: Vec<&Rcpt> = run
            .iter()
            .filter_map(|gathered| if let Gathered::Rcpt(rcpt) = gathered { Some(rcpt) } else { None })
            .collect();
        if recipients.is_empty() {
            return Request::Data;
        }
        let unaware = transaction.as_ref().filter(|transaction| matches!(transaction.upstream, Upstream::Unaware));
        Request::Envelope { mail: unaware.map(|transaction| &transaction.mail), recipients }
    }

    /// Takes one answer a recipient, in order, or the one to DATA.
    pub fn answer(self, answers: Vec<Answer>) -> Step {
        let mut session = self.0;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Answer::Away("no answer".to_owned()));
        let run = std::mem::take(&mut session.0.run);
        for gathered in run {
            let reply = match gathered {
                Gathered::Reply(reply) => reply,
                Gathered::Rcpt(rcpt) => session.0.recipient_answered(&rcpt, next()),
                Gathered::Data => match next() {
                    Answer::Reply(reply) if reply.code() == 354 => return Body::begin(session),
                    answer => session.0.data_refused(answer),
                },
                // MAIL was answered when policy had spoken.
                Gathered::Mail(_) => continue,
            };
            session.0.run.push(Gathered::Reply(reply));
        }
        session.0.answer_run();
        Step::Next(session)
    }
}

impl Session {
    /// Asks policy about the run.
    pub(super) fn ask(mut self) -> Step {
        let events: Vec<Event> = self.0.run.iter().filter_map(Gathered::event).collect();
        if events.is_empty() {
            self.0.answer_run();
            return Step::Next(self);
        }
        let asked = Asked { facts: self.0.facts(), events };
        Step::Admit(Admit { session: self, asked })
    }
}

impl State {
    pub(super) fn gather(&mut self, gathered: Gathered) {
        self.run.push(gathered);
    }

    /// Writes the replies of a run that is answered throughout.
    pub(super) fn answer_run(&mut self) {
        for gathered in std::mem::take(&mut self.run) {
            let Gathered::Reply(reply) = gathered else { continue };
            if !is_clients_fault(&reply) {
                self.reply(&reply);
            } else if self.refuse(&reply) {
                break;
            }
        }
    }

    fn judge(&mut self, gathered: Gathered, verdict: Verdict, now: Timestamp) -> Gathered {
        if gathered.is_rcpt()
            && let Some(transaction) = &mut self.transaction
        {
            transaction.asked += 1;
        }
        match (verdict, gathered) {
            (Verdict::Pass, Gathered::Mail(mail)) => Gathered::Reply(self.begin(mail, now)),
            (Verdict::Pass, gathered) => gathered,
            (Verdict::Void, _) => Gathered::Reply(Reply::new(503, "5.5.1 Say MAIL first")),
            (Verdict::Refuse(refusal), gathered) => Gathered::Reply(self.refused(&gathered, refusal)),
        }
    }

    /// The reply to whoever is over a limit, and the record of it.
    fn refused(&mut self, gathered: &Gathered, refusal: Refusal) -> Reply {
        let reference = self.next_reference();
        let text = refusal.text(&reference);
        let reply = match gathered {
            _ if refusal.fits_later() => Reply::new(450, format!("4.7.1 {text}")),
            // RFC 5321 §4.5.3.1.10: 452 for recipients, so that the message may go to fewer.
            Gathered::Rcpt(_) => Reply::new(452, format!("4.5.3 {text}")),
            _ => Reply::new(552, format!("5.3.4 {text}")),
        };
        let (stage, from, to) = match gathered {
            Gathered::Mail(mail) => (Stage::Mail, Some(mail.sender.to_string()), None),
            Gathered::Rcpt(rcpt) => (Stage::Rcpt, self.sender(), Some(rcpt.recipient.to_string())),
            Gathered::Data | Gathered::Reply(_) => (Stage::Data, self.sender(), None),
        };
        self.record(Record::Refused(Refused {
            stage,
            from,
            to,
            reply: reply.clone(),
            by: By::Limit { refusal, reference },
        }));
        reply
    }

    fn recipient_answered(&mut self, rcpt: &Rcpt, answer: Answer) -> Reply {
        let (reply, by, upstream) = match answer {
            Answer::Reply(reply) => (reply.enhanced(), By::Upstream, Upstream::Aware),
            Answer::MailRefused(reply) => {
                let reply = reply.enhanced();
                (reply.clone(), By::Upstream, Upstream::Refused(reply))
            }
            Answer::Away(reason) => (upstream_away(), By::Away(reason), Upstream::Lost),
        };
        if let Some(transaction) = &mut self.transaction {
            transaction.accepted += usize::from(reply.is_positive());
            transaction.upstream = upstream;
        }
        if !reply.is_positive() {
            let (from, to) = (self.sender(), Some(rcpt.recipient.to_string()));
            self.record(Record::Refused(Refused { stage: Stage::Rcpt, from, to, reply: reply.clone(), by }));
        }
        reply
    }

    /// The reply to DATA when the upstream does not want the message, or says what cannot be.
    fn data_refused(&mut self, answer: Answer) -> Reply {
        let (reply, by) = match answer {
            Answer::Reply(reply) if reply.code() >= 400 => (reply.enhanced(), By::Upstream),
            // A success here is nonsense: nothing has been sent yet.
            Answer::Reply(reply) | Answer::MailRefused(reply) => {
                (upstream_away(), By::Away(format!("it answered DATA with {reply}")))
            }
            Answer::Away(reason) => (upstream_away(), By::Away(reason)),
        };
        if let (Some(transaction), By::Away(_)) = (&mut self.transaction, &by) {
            transaction.upstream = Upstream::Lost;
        }
        let from = self.sender();
        self.record(Record::Refused(Refused { stage: Stage::Data, from, to: None, reply: reply.clone(), by }));
        reply
    }

    pub(super) fn sender(&self) -> Option<String> {
        self.transaction.as_ref().map(|transaction| transaction.mail.sender.to_string())
    }
}

/// Errors of syntax and order count against the session; an unknown recipient or a full budget does not.
fn is_clients_fault(reply: &Reply) -> bool {
    matches!(reply.code(), 500..=504 | 555)
}
