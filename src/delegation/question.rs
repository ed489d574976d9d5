//! Questions that a request leads to, one after another: about the connection, the login, the envelope, the message and
//! its size.

use super::action::Action;
use super::attributes::{Attributes, ProtocolState};
use super::options::LastStage;
use super::pending::{Pending, occasion, true_up};
use super::smtp_session::{KnownUser, SmtpSession};
use crate::groups::Groups;
use crate::policy::budgets::{RefundWhen, RefundableCharge, SessionCounters};
use crate::policy::request::{Event, EventKinds, Facts, Novelty, PolicyRequest};
use crate::policy::verdict::{Ruling, Verdict};
use crate::session::{DecidedEvent, MessageOutcome, Record};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::mem::take;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Next thing that a request needs from the driver.
pub enum Step {
    /// Look up facts about the user.
    LookUp(Box<UserLookup>),
    /// Ask policy.
    Ask(Box<Question>),
    /// Wait before the answer.
    Delay(Delayed),
    /// Answer with this action.
    Answer(Box<SmtpSession>, Action),
}

/// Question to policy.
pub struct Question {
    pending: Pending,
    asked: PolicyRequest,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Connect,
    Login,
    Command,
    /// MAIL and a recipient, or one of them.
    Envelope,
    Message,
    End,
}

/// Question to the accounts: facts about a user.
pub struct UserLookup {
    pending: Pending,
    user: Arc<str>,
    known: KnownUser,
}

/// Verdicts whose answer is delayed.
pub struct Delayed {
    question: Box<Question>,
    verdicts: Vec<Verdict>,
    now: Timestamp,
    time: Duration,
}

/// Maximum sum of the delays of one request. Postfix waits 100 s for an answer (smtpd_policy_service_timeout).
const MAX_DELAY: Duration = Duration::from_secs(90);

impl SmtpSession {
    /// Takes a request, and returns the next step. `decided_kinds`: kinds of events about which policy has to be asked;
    /// all other events are admitted.
    pub fn request(
        mut self: Box<Self>,
        attributes: Arc<Attributes>,
        decided_kinds: EventKinds,
        now: Timestamp,
    ) -> Step {
        self.note(&attributes, now);
        let (is_stage_admitted, recipient, delayed) = (false, None, Duration::ZERO);
        Pending { session: self, attributes, decided_kinds, is_stage_admitted, recipient, delayed }.advance(now)
    }
}

impl Pending {
    /// Returns the next question, or the answer if everything is decided.
    fn advance(self, now: Timestamp) -> Step {
        let state = self.attributes.state.unwrap_or(ProtocolState::Other);
        if state == ProtocolState::Other || self.session.has_passed(&self.attributes) {
            return self.answer(now);
        }
        if !self.session.is_connected {
            let facts = |pending: &Self| pending.session.facts(None);
            return self.ask(Purpose::Connect, vec![Event::Connect], facts, now);
        }
        if let Some(user) = self.attributes.user.clone().filter(|user| self.session.user.as_ref() != Some(user)) {
            return Step::LookUp(Box::new(UserLookup { pending: self, user, known: KnownUser::default() }));
        }
        match state {
            ProtocolState::Command if !self.is_stage_admitted => {
                let facts = |pending: &Self| Facts { sender: None, ..pending.facts() };
                self.ask(Purpose::Command, vec![Event::Command], facts, now)
            }
            ProtocolState::Mail | ProtocolState::Rcpt => self.advance_envelope(state, now),
            ProtocolState::Data | ProtocolState::EndOfMessage => self.advance_message(state, now),
            _ => self.answer(now),
        }
    }

    /// Asks about MAIL and a recipient. If RCPT is the last stage, the first recipient also counts the message.
    fn advance_envelope(self, state: ProtocolState, now: Timestamp) -> Step {
        let is_rcpt = state == ProtocolState::Rcpt;
        let max = self.session.options.max_recipients;
        let recipient = self.attributes.recipient.clone().filter(|_| is_rcpt);
        let Some(message) = &self.session.message else { return self.answer(now) };
        let is_new = |recipient: &Arc<str>| self.recipient.is_none() && !message.has(recipient);
        let recipient = recipient.filter(is_new);
        if recipient.is_some() && message.recipients.len() >= max {
            let text = format!("4.5.3 A message has at most {max} recipients here; send the rest in another");
            return Step::Answer(self.session, Action::Refuse(Reply::new(452, text)));
        }
        let mail = (!message.is_mail_admitted).then_some(Event::Mail);
        let events: Vec<Event> = mail.into_iter().chain(recipient.map(Event::Recipient)).collect();
        if !events.is_empty() {
            return self.ask(Purpose::Envelope, events, Self::facts, now);
        }
        match is_rcpt && !message.is_admitted && self.session.last_stage() == LastStage::Rcpt {
            true => self.ask(Purpose::Message, vec![Event::Message], Self::message_facts, now),
            false => self.answer(now),
        }
    }

    /// Asks about the message at DATA or END-OF-MESSAGE.
    fn advance_message(self, state: ProtocolState, now: Timestamp) -> Step {
        let Some(message) = &self.session.message else { return self.answer(now) };
        if !message.is_mail_admitted {
            return self.ask(Purpose::Envelope, vec![Event::Mail], Self::facts, now);
        }
        if !message.is_admitted {
            return self.ask(Purpose::Message, vec![Event::Message], Self::message_facts, now);
        }
        match state == ProtocolState::EndOfMessage && !self.is_stage_admitted {
            true => {
                let event = Event::End { size: Some(self.attributes.size.unwrap_or(0)) };
                self.ask(Purpose::End, vec![event], Self::message_facts, now)
            }
            false => self.answer(now),
        }
    }

    /// Asks policy about events, or admits them if policy need not be asked.
    fn ask(mut self, purpose: Purpose, events: Vec<Event>, facts: impl FnOnce(&Self) -> Facts, now: Timestamp) -> Step {
        if !self.decided_kinds.has_any(EventKinds::of(&events)) {
            match purpose {
                Purpose::Login => {
                    let facts = facts(&self);
                    self.logged_in(facts);
                }
                _ => events.iter().for_each(|event| self.admitted(event, Vec::new())),
            }
            return self.advance(now);
        }
        let facts = facts(&self);
        let charges = self.session.message.iter().flat_map(|message| &message.charges);
        let declared = match purpose {
            Purpose::End => charges.filter(|charged| charged.until.is_of_size()).cloned().collect(),
            _ => Vec::new(),
        };
        let asked = PolicyRequest { facts, events, declared, ..PolicyRequest::default() };
        Step::Ask(Box::new(Question { pending: self, asked, purpose }))
    }

    /// Ends a request whose events are admitted.
    fn answer(mut self, now: Timestamp) -> Step {
        let state = self.attributes.state.unwrap_or(ProtocolState::Other);
        let last = self.session.last_stage();
        let Some(message) = &mut self.session.message else { return Step::Answer(self.session, Action::Dunno) };
        let route = message.route.clone();
        let added = self.recipient.take().map(|(recipient, charges)| {
            message.charges.extend(charges);
            message.add(recipient.clone());
            recipient
        });
        match (state, last) {
            (ProtocolState::Rcpt, LastStage::Rcpt) => self.settle(added),
            (ProtocolState::Data, LastStage::Data) if !message.is_settled => {
                let recipients = message.recipients.clone();
                self.settle(recipients);
            }
            (ProtocolState::EndOfMessage, _) if self.is_stage_admitted => {
                if !message.is_settled {
                    let recipients = message.recipients.clone();
                    self.settle(recipients);
                }
                self.session.finish_message(MessageOutcome::Passed, self.attributes.size.unwrap_or(0), now);
            }
            _ => {}
        }
        Step::Answer(self.session, route.map_or(Action::Dunno, Action::Hold))
    }

    /// Settles the message at the last stage at which Postfix asks. Memories learn these recipients.
    fn settle(&mut self, recipients: impl IntoIterator<Item = Arc<str>>) {
        self.session.settle();
        if self.decided_kinds.has_any(EventKinds::DELIVERED) {
            let facts = self.facts();
            self.session.deferred.deliver(facts, recipients.into_iter());
        }
    }

    /// Ends a request that is refused, or that cannot be decided. The recipient of this request is not admitted.
    fn refuse(mut self, action: Action, outcome: Option<MessageOutcome>, now: Timestamp) -> Step {
        self.give_back_recipient();
        if let (Some(ProtocolState::EndOfMessage), Some(outcome)) = (self.attributes.state, outcome) {
            self.session.finish_message(outcome, self.attributes.size.unwrap_or(0), now);
        }
        Step::Answer(self.session, action)
    }
}

impl UserLookup {
    pub fn user(&self) -> &Arc<str> {
        &self.user
    }

    pub fn client(&self) -> IpAddr {
        self.pending.session.client()
    }

    /// Takes the groups of the user, and whether the client is in a login network of the user.
    pub fn set(&mut self, groups: Groups, registered_network: Option<bool>) {
        (self.known.groups, self.known.registered_network) = (groups, registered_network);
    }

    /// Returns the facts of the login, for its novelty.
    pub fn facts(&self) -> Facts {
        let Self { pending, user, known } = self;
        Facts {
            user: Some(user.clone()),
            authenticated: true,
            has_account: true,
            groups: known.groups.clone(),
            registered_network: known.registered_network,
            sender: None,
            size: None,
            ..pending.facts()
        }
    }

    /// Goes on to the question about the login. `facts`: those of the login. `novelty`: properties of the login that are
    /// new for the user.
    pub fn answer(self, facts: Facts, novelty: Novelty, now: Timestamp) -> Step {
        let facts = Facts { novelty, ..facts };
        let Self { mut pending, known, .. } = self;
        let known = KnownUser { novelty, ..known };
        pending.session.known_user = known;
        pending.ask(Purpose::Login, vec![Event::Login], |_| facts, now)
    }
}

impl Question {
    /// Returns the request to policy, and the counters of the session.
    pub fn asked(&mut self) -> (&PolicyRequest, &mut SessionCounters) {
        (&self.asked, &mut self.pending.session.counters)
    }

    /// Makes policy return the numbers of each limit also for events that pass.
    pub fn want_evaluations(&mut self) {
        self.asked.wants_evaluations = true;
    }

    pub fn session(&self) -> &SmtpSession {
        &self.pending.session
    }

    /// Applies policy's verdicts: one per event, in order; none if the store does not answer. `now` is the time of the
    /// decision.
    pub fn answer(mut self: Box<Self>, mut verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        if verdicts.len() < self.asked.events.len() {
            return self.pending.refuse(Action::Undecided, Some(MessageOutcome::Undecided), now);
        }
        let Self { pending, asked, .. } = &mut *self;
        for (event, verdict) in asked.events.iter().zip(&mut verdicts) {
            let (Some(stage), delay) = (event.stage(), verdict.delay) else { continue };
            let decided = || DecidedEvent::unmeasured(now, asked.facts.clone(), event.clone(), delay);
            let SmtpSession { recorder, .. } = &mut *pending.session;
            let occasion = occasion(&asked.facts, now);
            recorder.record_verdict(verdict, stage, occasion, decided);
        }
        let time: Duration = verdicts.iter().map(|verdict| verdict.delay).sum();
        let time = time.min(MAX_DELAY.saturating_sub(pending.delayed));
        // The reply to the end of a message is never delayed: a client that gives up would send the message again.
        let is_end = pending.attributes.state == Some(ProtocolState::EndOfMessage);
        if time.is_zero() || is_end {
            return self.apply(verdicts, now);
        }
        pending.delayed += time;
        Step::Delay(Delayed { question: self, verdicts, now, time })
    }

    fn apply(self, mut verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        // Postfix still waits, so charges that would be refunded only if it left are no longer refundable.
        let is_kept = |charged: &RefundableCharge| charged.until != RefundWhen::Heard;
        verdicts.iter_mut().for_each(|verdict| verdict.charges.retain(is_kept));
        let Self { mut pending, asked, purpose } = self;
        let mut refused = None;
        for (event, mut verdict) in asked.events.iter().zip(verdicts) {
            if let Some(message) = &mut pending.session.message {
                message.route = verdict.route.take().or(message.route.take());
                if purpose == Purpose::End {
                    true_up(message, &mut verdict);
                }
            }
            match take(&mut verdict.ruling) {
                Ruling::Pass if purpose == Purpose::Login => pending.logged_in(asked.facts.clone()),
                Ruling::Pass => pending.admitted(event, verdict.charges),
                // MAIL was refused, and the answer to its RCPT is that refusal.
                Ruling::Skipped => {}
                Ruling::Refuse(refusal) => {
                    let decided = DecidedEvent::new(now, &asked.facts, event.clone(), &mut verdict);
                    pending.session.deferred.refund(verdict.charges);
                    let outcome = MessageOutcome::OverLimit(refusal.clone());
                    let occasion = occasion(&asked.facts, now);
                    let (parties, hostname) = (pending.parties(event), pending.session.options.hostname.clone());
                    let (reply, _) = pending.session.recorder.refused(*refusal, decided, parties, occasion, &hostname);
                    refused.get_or_insert((reply, outcome));
                }
                Ruling::Suspended(suspended) => {
                    let decided = DecidedEvent::new(now, &asked.facts, event.clone(), &mut verdict);
                    let outcome = MessageOutcome::Suspended(suspended.clone());
                    let occasion = occasion(&asked.facts, now);
                    let parties = pending.parties(event);
                    let reply = pending.session.recorder.suspended(*suspended, decided, parties, occasion);
                    refused.get_or_insert((reply, outcome));
                }
            }
        }
        match refused {
            Some((reply, outcome)) => {
                let outcome = matches!(purpose, Purpose::Message | Purpose::End).then_some(outcome);
                pending.refuse(Action::Refuse(reply), outcome, now)
            }
            None => pending.advance(now),
        }
    }
}

impl Delayed {
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Carries out the verdicts after the delay. `decided_kinds`: kinds of events about which policy has to be asked now.
    pub fn elapsed(mut self, decided_kinds: EventKinds) -> Step {
        self.question.pending.decided_kinds = decided_kinds;
        self.question.apply(self.verdicts, self.now)
    }

    /// Ends the request because Postfix left during the delay, or because Weir stops. Refunds the charges of the delayed
    /// events: Postfix asks again, or its client sends the message again.
    pub fn broken_off(self, is_client_gone: bool) -> Box<SmtpSession> {
        let mut pending = self.question.pending;
        pending.give_back_recipient();
        let mut session = pending.session;
        if is_client_gone {
            session.recorder.push(Record::LeftDuringDelay { delay: self.time });
        }
        self.verdicts.into_iter().for_each(|verdict| session.deferred.refund(verdict.charges));
        session
    }
}
