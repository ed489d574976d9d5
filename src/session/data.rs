//! DATA and BDAT: the message, whole or in pieces.

use super::message_outcome::MessageOutcome;
use super::pipeline::PendingCommand;
use super::record::{Delivery, Record};
use super::replies::{no_transaction, stopping, timed_out, undecided, upstream_away};
use super::transaction::{Transaction, Upstream};
use super::{Session, State, Step};
use crate::policy::request::Asked;
use crate::policy::event::{Event, Stage};
use crate::policy::session_counters::SessionCounters;
use crate::policy::verdict::{Ruling, Verdict};
use crate::smtp::command;
use crate::smtp::reply::Reply;
use crate::smtp::trace::Received;
use crate::time::{Timestamp, format_duration};

/// The client and the upstream wait for the message: the reply to DATA is written.
pub struct Body(Session);

/// The client sends a piece of the message, for which the upstream waits (RFC 3030 §2).
pub struct Chunk {
    session: Session,
    chunk: command::Chunk,
    first: bool,
}

/// What is so much larger than a message may be is not even thrown away: the session ends.
const FAR_TOO_LARGE: u64 = 2;

impl Session {
    /// What policy is asked when a message of so many octets has come, before its last line goes on.
    pub fn ask_end(&mut self, size: u64) -> (Asked, &mut SessionCounters) {
        let state = &mut *self.0;
        let mut facts = state.facts(None);
        let mut declared = Vec::new();
        if let Some(transaction) = &mut state.transaction {
            facts.recipients.clone_from(&transaction.recipients);
            declared = transaction.charges.iter().filter(|charged| charged.until.is_of_size()).cloned().collect();
        }
        (Asked { facts, events: vec![Event::End { size: Some(size) }], declared }, &mut state.ledger)
    }

    /// Takes the verdict on it; where there is none, the client is to come again. The error is how the message ends.
    pub fn judge_end(&mut self, verdict: Option<Verdict>) -> Result<(), MessageOutcome> {
        let Some(mut verdict) = verdict else { return Err(MessageOutcome::Undecided) };
        self.0.routed(&mut verdict);
        self.0.remark(&mut verdict, Stage::End);
        let Verdict { ruling, charges, trued_up, .. } = verdict;
        // Where the limit does not hold any more, the charge waits for the upstream's answer like others.
        if let Some(transaction) = &mut self.0.transaction {
            transaction.charges.retain(|charged| !(charged.until.is_of_size() && trued_up.contains(&charged.key)));
        }
        self.0.keep_charges(charges);
        match ruling {
            Ruling::Refuse(refusal) => Err(MessageOutcome::OverLimit(refusal)),
            Ruling::Suspended(suspended) => Err(MessageOutcome::Suspended(suspended)),
            Ruling::Pass | Ruling::Skipped => Ok(()),
        }
    }
}

impl Body {
    pub(super) fn begin(mut session: Session) -> Step {
        session.0.reply(&Reply::new(354, "End with a line of one dot"));
        Step::Body(Self(session))
    }

    pub fn session(&mut self) -> &mut Session {
        &mut self.0
    }

    /// The largest message taken, in octets.
    pub fn max_size(&self) -> u64 {
        self.0.0.max_message_size()
    }

    /// Whether a message of so many octets is not even worth to be thrown away.
    pub fn is_far_too_large(&self, size: u64) -> bool {
        self.0.0.is_far_too_large(size)
    }

    /// The header line that goes before the message.
    pub fn received(&self, now: Timestamp) -> String {
        self.0.0.received(now)
    }

    /// Takes how the message ended and its size in octets.
    pub fn answer(self, ending: MessageOutcome, size: u64, now: Timestamp) -> Step {
        self.0.message_ended(ending, size, now)
    }
}

impl Chunk {
    pub(super) fn begin(mut session: Session, chunk: command::Chunk) -> Step {
        let transaction = session.0.transaction.as_mut();
        let first = transaction.is_some_and(|transaction| {
            let first = transaction.chunked.is_none();
            transaction.chunked = Some(transaction.chunked.unwrap_or(0) + chunk.size);
            first
        });
        Step::Chunk(Self { session, chunk, first })
    }

    /// The session, which may have something to say first.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Its octets.
    pub fn size(&self) -> u64 {
        self.chunk.size
    }

    /// Whether the message begins with it.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Whether the message ends with it.
    pub fn is_last(&self) -> bool {
        self.chunk.last
    }

    /// The header line that goes before the message.
    pub fn received(&self, now: Timestamp) -> String {
        self.session.0.received(now)
    }

    /// The piece is taken, and is not the last.
    pub fn taken(mut self) -> Step {
        self.session.0.reply(&Reply::new(250, format!("2.0.0 {} octets", self.chunk.size)));
        Step::Next(self.session)
    }

    /// Takes how the message ended with this piece, or before its time, and its size in octets.
    pub fn answer(self, ending: MessageOutcome, size: u64, now: Timestamp) -> Step {
        self.session.message_ended(ending, size, now)
    }
}

impl State {
    fn is_far_too_large(&self, size: u64) -> bool {
        size / FAR_TOO_LARGE > self.max_message_size()
    }

    fn received(&self, now: Timestamp) -> String {
        let hello = self.hello.as_ref();
        Received {
            helo: hello.map_or("unknown", |hello| &hello.name),
            client: self.client,
            by: &self.options.hostname,
            extended: hello.is_some_and(|hello| hello.extended),
            utf8: self.transaction.as_ref().is_some_and(|transaction| transaction.mail.smtp_utf8),
            tls: self.tls.as_ref().map(|tls| (tls.version.as_str(), tls.cipher.as_str())),
            user: self.user.as_deref(),
            id: &self.id,
            date: &now.rfc5322(),
        }
        .to_line()
    }

    /// Has the octets of a piece thrown away that is not wanted. What the message would be without it nobody knows, so the
    /// transaction has ended, and the pieces behind it are not wanted either (RFC 3030 §2).
    pub(super) fn drop_chunk(&mut self, chunk: command::Chunk) {
        self.abandon(self.now);
        // One that would take for ever is not waited for.
        self.closing |= self.is_far_too_large(chunk.size);
        self.unwanted = chunk.size;
    }

    /// Forgets the transaction, if there is one, and records it.
    pub(super) fn end_transaction(&mut self, ending: MessageOutcome, size: u64, reply: Option<Reply>, now: Timestamp) {
        let facts = self.facts(None);
        self.ledger.end_message();
        if let Some(Transaction { mail, began, asked, recipients, charges, .. }) = self.transaction.take() {
            let (from, duration, accepted) = (mail.sender.to_string(), now.since(began), recipients.len());
            match &ending {
                MessageOutcome::Answered(reply) if reply.is_positive() => {}
                MessageOutcome::Answered(reply) if reply.code() >= 500 => {
                    self.settlement.give_back_unsent(charges);
                    self.settlement.reject(facts, None);
                }
                _ => self.settlement.give_back_unsent(charges),
            }
            self.records.push(Record::Message(Delivery { from, asked, accepted, size, reply, ending, duration }));
        }
    }

    /// Ends a transaction that gets no message. Its recipients may have been charged: whoever asks where a budget went finds it.
    pub(super) fn abandon(&mut self, now: Timestamp) {
        if self.transaction.as_ref().is_some_and(|transaction| transaction.asked > 0) {
            self.end_transaction(MessageOutcome::Abandoned, 0, None, now);
        }
        if let Some(transaction) = self.transaction.take() {
            self.ledger.end_message();
            self.settlement.give_back_unsent(transaction.charges);
        }
    }

    /// What the client is told, if it can be told anything, and whether that is the last word.
    fn final_reply(&self, ending: &MessageOutcome) -> (Option<Reply>, bool) {
        let (id, limit) = (&self.id, self.max_message_size());
        match ending {
            // 421 would close this session; from an upstream it means "not taken".
            MessageOutcome::Answered(reply) if reply.code() == 421 => (Some(reply.recoded(451, "4.3.2")), false),
            MessageOutcome::Answered(reply) => (Some(reply.enhanced()), false),
            MessageOutcome::TooLarge => (
                Some(Reply::new(552, format!("5.3.4 The message is too large; the limit is {limit} octets ({id})"))),
                false,
            ),
            MessageOutcome::Endless => (
                Some(Reply::new(
                    552,
                    format!("5.3.4 The message is far too large; the limit is {limit} octets ({id})"),
                )),
                true,
            ),
            MessageOutcome::Loop => {
                let text =
                    format!("5.4.6 The message has passed through too many servers: it goes round in a circle ({id})");
                (Some(Reply::new(554, text)), false)
            }
            // The end of the message is not in doubt, so the session goes on.
            MessageOutcome::Continuation => {
                let text = format!(
                    "5.6.0 The message begins with white space, which would continue the header line before it ({id})"
                );
                (Some(Reply::new(550, text)), false)
            }
            // The end of the message is in doubt, and so is everything after it.
            MessageOutcome::Ambiguous(what) => {
                (Some(Reply::new(550, format!("5.6.11 The message contains {} ({id})", what.name()))), true)
            }
            MessageOutcome::OverLimit(_) | MessageOutcome::Suspended(_) => (None, false),
            MessageOutcome::Undecided => (Some(undecided()), false),
            MessageOutcome::Away(_) => (Some(upstream_away(id, None)), false),
            MessageOutcome::ClientGone | MessageOutcome::Abandoned => (None, true),
            MessageOutcome::Stopping => (Some(stopping(&self.options.hostname, self.is_evicted)), true),
            MessageOutcome::ClientSilent => (Some(timed_out(&self.options.hostname)), true),
            MessageOutcome::TooSlow(rate) => {
                let host = &self.options.hostname;
                let text = format!("4.4.2 {host} The message came too slowly: below {rate} octets a second ({id})");
                (Some(Reply::new(421, text)), true)
            }
            MessageOutcome::Revoked => {
                let host = &self.options.hostname;
                let text = format!(
                    "4.3.2 {host} This message takes long while others wait for the mail server; try again later ({id})"
                );
                (Some(Reply::new(421, text)), true)
            }
            MessageOutcome::TooLong(time) => {
                let (host, time) = (&self.options.hostname, format_duration(*time));
                let text = format!("4.4.2 {host} The message took too long: more than {time} ({id})");
                (Some(Reply::new(421, text)), true)
            }
        }
    }
}

impl Session {
    pub(super) fn data(mut self) -> Step {
        let state = &mut *self.0;
        let refusal = match &state.transaction {
            Some(transaction) if transaction.chunked.is_some() => {
                Some(PendingCommand::Fault(Reply::new(503, "5.5.1 The message has begun with BDAT")))
            }
            _ => state.not_yet(),
        };
        match refusal {
            None => self.ask_for_message(),
            Some(refusal) => {
                state.gather(refusal);
                state.answer_run();
                Step::Next(self)
            }
        }
    }

    pub(super) fn bdat(mut self, chunk: command::Chunk) -> Step {
        let state = &mut *self.0;
        let so_far = state.transaction.as_ref().and_then(|transaction| transaction.chunked);
        if so_far.is_some_and(|_| chunk.size == 0 && !chunk.last) {
            state.patience.count_idle_command();
        }
        let is_too_large = so_far.unwrap_or(0).saturating_add(chunk.size) > state.max_message_size();
        let refusal = match state.not_yet() {
            // It is not the client's fault alone: pieces may be on their way when one is refused.
            Some(PendingCommand::Fault(reply)) => {
                state.patience.count_idle_command();
                Some(PendingCommand::Answered(reply))
            }
            None if is_too_large => {
                // The client hears it when it has sent the piece, if it does.
                let reply = state.final_reply(&MessageOutcome::TooLarge).0;
                state.end_transaction(MessageOutcome::TooLarge, so_far.unwrap_or(0), None, state.now);
                reply.map(PendingCommand::Answered)
            }
            other => other,
        };
        match refusal {
            None if so_far.is_some() => Chunk::begin(self, chunk),
            None => {
                state.chunk = Some(chunk);
                self.ask_for_message()
            }
            Some(refusal) => {
                state.chunk = Some(chunk);
                state.gather(refusal);
                state.answer_run();
                Step::Next(self)
            }
        }
    }

    /// Asks policy, then the upstream, whether the message may come.
    fn ask_for_message(mut self) -> Step {
        let is_charged = self.0.transaction.as_ref().is_some_and(|transaction| transaction.message_charged);
        self.0.gather(PendingCommand::Data);
        // The upstream that refused DATA is asked again: it is still one message.
        if is_charged { self.relay_or_answer() } else { self.ask() }
    }

    /// Ends the session because the message is not there in time: as [`MessageOutcome::TooSlow`], [`MessageOutcome::TooLong`] or [`MessageOutcome::Revoked`] says.
    pub fn message_overdue(self, ending: MessageOutcome) -> Step {
        let size = self.0.transaction.as_ref().and_then(|transaction| transaction.chunked).unwrap_or(0);
        let now = self.0.now;
        self.message_ended(ending, size, now)
    }

    fn message_ended(mut self, ending: MessageOutcome, size: u64, now: Timestamp) -> Step {
        let state = &mut *self.0;
        let (reply, last) = match &ending {
            MessageOutcome::OverLimit(refusal) => {
                let from = state.sender();
                (Some(state.refused((**refusal).clone(), Stage::End, from, None)), false)
            }
            MessageOutcome::Suspended(suspended) => {
                let from = state.sender();
                (Some(state.suspended((**suspended).clone(), Stage::End, from, None)), false)
            }
            ending => state.final_reply(ending),
        };
        if reply.as_ref().is_some_and(Reply::is_positive) {
            state.patience.renew();
            state.end_detour();
        }
        state.end_transaction(ending, size, reply.clone(), now);
        if let Some(reply) = reply {
            state.reply(&reply);
        }
        if last { self.close() } else { Step::Next(self) }
    }
}

impl State {
    /// Why a message cannot come now, if it cannot.
    fn not_yet(&self) -> Option<PendingCommand> {
        match &self.transaction {
            None => Some(PendingCommand::Fault(no_transaction())),
            Some(Transaction { upstream: Upstream::Lost, .. }) => {
                Some(PendingCommand::Answered(upstream_away(&self.id, None)))
            }
            Some(transaction) if transaction.recipients.is_empty() => {
                Some(PendingCommand::Fault(Reply::new(554, "5.5.1 No valid recipients")))
            }
            Some(_) => None,
        }
    }
}
