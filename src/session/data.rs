//! DATA and BDAT: the message, whole or in pieces.

use super::message_outcome::MessageOutcome;
use super::pending_command::PendingCommand;
use super::record::{DecidedEvent, Delivery, Record};
use super::replies::{no_transaction, stopping, timed_out, undecided, upstream_away};
use super::state::State;
use super::step::{Body, Chunk, Session, Step};
use super::transaction::{Transaction, Upstream};
use crate::policy::budgets::SessionCounters;
use crate::policy::request::{Event, PolicyRequest, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::smtp::command;
use crate::smtp::reply::Reply;
use crate::smtp::trace::Received;
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// Multiple of the maximum size beyond which the session ends. Weir does not read and discard the rest of such a
/// message.
const FAR_TOO_LARGE: u64 = 2;

impl Session {
    /// Returns the request that asks policy about a complete message of `size` octets before its last line is
    /// forwarded.
    pub fn end_request(&mut self, size: u64) -> (PolicyRequest, &mut SessionCounters) {
        let state = &mut *self.0;
        let facts = state.message_facts();
        let charges = state.transaction.iter().flat_map(|transaction| &transaction.charges);
        let declared = charges.filter(|charged| charged.until.is_of_size()).cloned().collect();
        let events = vec![Event::End { size: Some(size) }];
        let asked = PolicyRequest { facts, events, declared, ..PolicyRequest::default() };
        (asked, &mut state.session_counters)
    }

    /// Stores the message's `Message-ID`, for the record.
    pub fn note_message_id(&mut self, message_id: Option<String>) {
        if let Some(transaction) = &mut self.0.transaction {
            transaction.message_id = message_id;
        }
    }

    /// Applies policy's verdict on the complete message. Without a verdict the client gets a temporary failure. If the
    /// message must not be forwarded, returns its outcome as the error.
    ///
    /// `asked` is the request that policy decided at the time `now`.
    pub fn apply_end_verdict(
        &mut self,
        asked: &PolicyRequest,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> Result<(), MessageOutcome> {
        let Some(mut verdict) = verdict else { return Err(MessageOutcome::Undecided) };
        self.0.note_route(&mut verdict);
        let event = || asked.events.first().cloned().unwrap_or(Event::End { size: None });
        let decided = || DecidedEvent::unmeasured(now, asked.facts.clone(), event(), Duration::ZERO);
        self.0.record_verdict(&mut verdict, Stage::End, decided);
        let Verdict { ruling, charges, trued_up, evaluations, .. } = verdict;
        // Remove the charges that the charges for the true size have replaced. If a limit no longer applies, its charge
        // stays until the upstream has answered, like other charges.
        if let Some(transaction) = &mut self.0.transaction {
            transaction.charges.retain(|charged| !(charged.until.is_of_size() && trued_up.contains(&charged.key)));
            transaction.evaluations = evaluations;
        }
        self.0.keep_charges(charges);
        match ruling {
            Ruling::Refuse(refusal) => Err(MessageOutcome::OverLimit(refusal)),
            Ruling::Suspended(suspended) => Err(MessageOutcome::Suspended(suspended)),
            Ruling::Pass | Ruling::Skipped => Ok(()),
        }
    }
}

/// Lets the client send the message, or the first piece of it.
pub(super) fn begin_message(mut session: Session) -> Step {
    match session.0.chunk.take() {
        Some(chunk) => Chunk::begin(session, chunk),
        None => Body::begin(session),
    }
}

impl Body {
    fn begin(mut session: Session) -> Step {
        session.0.reply(&Reply::new(354, "End with a line of one dot"));
        Step::Body(Self(session))
    }

    pub fn session(&mut self) -> &mut Session {
        &mut self.0
    }

    /// Returns the maximum size of a message, in octets.
    pub fn max_size(&self) -> u64 {
        self.0.0.max_message_size()
    }

    /// Returns whether a message of `size` octets is so large that the session should end, because Weir does not read
    /// and discard the rest of the message.
    pub fn is_far_too_large(&self, size: u64) -> bool {
        self.0.0.is_far_too_large(size)
    }

    /// Returns the `Received:` line that Weir adds above the message.
    pub fn received(&self, now: Timestamp) -> String {
        self.0.0.received(now)
    }

    /// Ends the message. Takes the message's outcome and its size in octets.
    pub fn answer(self, outcome: MessageOutcome, size: u64, now: Timestamp) -> Step {
        self.0.message_ended(outcome, size, now)
    }
}

impl Chunk {
    fn begin(mut session: Session, chunk: command::Chunk) -> Step {
        let transaction = session.0.transaction.as_mut();
        let first = transaction.is_some_and(|transaction| {
            let first = transaction.chunked.is_none();
            transaction.chunked = Some(transaction.chunked.unwrap_or(0) + chunk.size);
            first
        });
        Step::Chunk(Self { session, chunk, first })
    }

    /// Returns the session. It perhaps has output, which the driver sends before it forwards the piece.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Returns the size of the piece, in octets.
    pub fn size(&self) -> u64 {
        self.chunk.size
    }

    /// Returns whether the piece is the message's first.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Returns whether the piece is the message's last.
    pub fn is_last(&self) -> bool {
        self.chunk.last
    }

    /// Returns the `Received:` line that Weir adds above the message.
    pub fn received(&self, now: Timestamp) -> String {
        self.session.0.received(now)
    }

    /// Replies to a piece that has been forwarded and is not the last.
    pub fn taken(mut self) -> Step {
        self.session.0.reply(&Reply::new(250, format!("2.0.0 {} octets", self.chunk.size)));
        Step::Next(self.session)
    }

    /// Ends the message, after its last piece or earlier. Takes the message's outcome and its size in octets.
    pub fn answer(self, outcome: MessageOutcome, size: u64, now: Timestamp) -> Step {
        self.session.message_ended(outcome, size, now)
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
            tls: self.tls.as_ref().map(|tls| (&*tls.version, tls.cipher.as_str())),
            user: self.user.as_deref(),
            id: &self.id,
            date: &now.rfc5322(),
        }
        .to_line()
    }

    /// Discards the octets of a refused piece. The message is incomplete without this piece, so the transaction ends,
    /// and the pieces after it are refused, too (RFC 3030 §2).
    pub(super) fn drop_chunk(&mut self, chunk: command::Chunk) {
        self.abandon(self.now);
        // Weir ends the session instead of reading and discarding a piece that is far too large.
        self.closing |= self.is_far_too_large(chunk.size);
        self.discard = chunk.size;
    }

    /// Ends the transaction, if there is one, and records its outcome.
    pub(super) fn end_transaction(&mut self, outcome: MessageOutcome, size: u64, reply: Option<Reply>, now: Timestamp) {
        let facts = self.facts(None);
        self.session_counters.end_message();
        if let Some(Transaction { mail, began, asked, recipients, charges, message_id, .. }) = self.transaction.take() {
            match &outcome {
                MessageOutcome::Answered(reply) if reply.is_positive() => {
                    self.deferred_charges.deliver(facts, recipients.iter().cloned());
                }
                MessageOutcome::Answered(reply) if reply.code() >= 500 => {
                    self.deferred_charges.refund_unsent(charges);
                    self.deferred_charges.reject(facts, None);
                }
                // A mail that is no report stays charged, as Weir has read all of it.
                MessageOutcome::Report(result) if !result.is_temporary() => {}
                _ => self.deferred_charges.refund_unsent(charges),
            }
            self.recorder.push(Record::Message(Delivery {
                from: mail.sender.text(),
                asked,
                recipients,
                message_id,
                helo: self.hello.as_ref().map(|hello| hello.name.clone()),
                tls: self.tls.as_ref().map(|tls| tls.version.clone()),
                mechanism: self.mechanism.clone().filter(|_| self.user.is_some()),
                size,
                reply,
                outcome,
                duration: now.since(began),
            }));
        }
    }

    /// Ends a transaction in which no message is sent. Records the transaction if the client had sent RCPT. In that
    /// case limits have perhaps charged recipients, and the log then shows what has used the budget.
    pub(super) fn abandon(&mut self, now: Timestamp) {
        if let Some(transaction) = self.transaction.as_ref().filter(|transaction| transaction.asked > 0) {
            let is_lost = matches!(transaction.upstream, Upstream::Lost);
            let outcome = if is_lost { MessageOutcome::LostBefore } else { MessageOutcome::Abandoned };
            self.end_transaction(outcome, 0, None, now);
        }
        if let Some(transaction) = self.transaction.take() {
            self.session_counters.end_message();
            self.deferred_charges.refund_unsent(transaction.charges);
        }
    }

    /// Returns the reply to the client, if there is a reply for this outcome, and whether the session ends after the
    /// reply.
    fn final_reply(&self, outcome: &MessageOutcome) -> (Option<Reply>, bool) {
        let (id, limit) = (&self.id, self.max_message_size());
        match outcome {
            // Do not pass on a reply 421, because it would end this session. From an upstream, a 421 only means that
            // the message was not accepted.
            MessageOutcome::Answered(reply) if reply.code() == 421 => (Some(reply.recoded(451, "4.3.2")), false),
            MessageOutcome::Answered(reply) => (Some(reply.enhanced()), false),
            MessageOutcome::Report(result) => (Some(result.reply(id)), false),
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
            // It is certain where the message ends, so the session continues.
            MessageOutcome::Continuation => {
                let text = format!(
                    "5.6.0 The message begins with white space, which would continue the header line before it ({id})"
                );
                (Some(Reply::new(550, text)), false)
            }
            // It is uncertain where the message ends, and so which of the octets after it are commands.
            MessageOutcome::Ambiguous(ambiguity) => {
                (Some(Reply::new(550, format!("5.6.11 The message contains {} ({id})", ambiguity.name()))), true)
            }
            MessageOutcome::OverLimit(_) | MessageOutcome::Suspended(_) | MessageOutcome::SenderMismatch(_) => {
                (None, false)
            }
            // Only a session of Postfix has this outcome, and Postfix replies itself.
            MessageOutcome::Passed => (None, false),
            MessageOutcome::Undecided => (Some(undecided()), false),
            MessageOutcome::Away(_) => (Some(upstream_away(id, None)), false),
            MessageOutcome::ClientGone | MessageOutcome::LostBefore | MessageOutcome::Abandoned => (None, true),
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
            _ => state.refuse_message().map(PendingCommand::Answered),
        };
        match refusal {
            None => self.ask_for_message(),
            Some(refusal) => {
                state.push(refusal);
                // A limit on commands counts this one, too.
                self.ask()
            }
        }
    }

    pub(super) fn bdat(mut self, chunk: command::Chunk) -> Step {
        let state = &mut *self.0;
        let so_far = state.transaction.as_ref().and_then(|transaction| transaction.chunked);
        if so_far.is_some_and(|_| chunk.size == 0 && !chunk.last) {
            state.error_limits.count_idle_command();
        }
        let is_too_large = so_far.unwrap_or(0).saturating_add(chunk.size) > state.max_message_size();
        let mut refusal = state.refuse_message();
        if refusal.is_none() && is_too_large {
            // The client gets the reply after it has sent the piece.
            refusal = state.final_reply(&MessageOutcome::TooLarge).0;
            state.end_transaction(MessageOutcome::TooLarge, so_far.unwrap_or(0), None, state.now);
        }
        match refusal {
            None if so_far.is_some() => Chunk::begin(self, chunk),
            None => {
                state.chunk = Some(chunk);
                self.ask_for_message()
            }
            Some(refusal) => {
                state.chunk = Some(chunk);
                state.push(PendingCommand::Answered(refusal));
                state.answer_batch();
                Step::Next(self)
            }
        }
    }

    /// Asks policy, then the upstream, whether to accept the message.
    fn ask_for_message(mut self) -> Step {
        let is_charged = self.0.transaction.as_ref().is_some_and(|transaction| transaction.message_charged);
        self.0.push(PendingCommand::Data);
        // A repeated DATA after the upstream's refusal belongs to the same message, so only the upstream is asked
        // again.
        if is_charged { self.relay_or_answer() } else { self.ask() }
    }

    /// Ends the session because the message did not come in time. `outcome` is [`MessageOutcome::TooSlow`],
    /// [`MessageOutcome::TooLong`] or [`MessageOutcome::Revoked`].
    pub fn message_overdue(self, outcome: MessageOutcome) -> Step {
        let size = self.0.transaction.as_ref().and_then(|transaction| transaction.chunked).unwrap_or(0);
        let now = self.0.now;
        self.message_ended(outcome, size, now)
    }

    fn message_ended(mut self, outcome: MessageOutcome, size: u64, now: Timestamp) -> Step {
        let state = &mut *self.0;
        // The message may have taken minutes since the last command, and a reference names the time of the refusal.
        state.now = now;
        let (reply, last) = match &outcome {
            MessageOutcome::OverLimit(refusal) => {
                let (from, decided) = (state.sender(), state.decided_end(size, now));
                (Some(state.refused((**refusal).clone(), decided, (from, None))), false)
            }
            MessageOutcome::Suspended(suspended) => {
                let (from, decided) = (state.sender(), state.decided_end(size, now));
                (Some(state.suspended((**suspended).clone(), decided, (from, None))), false)
            }
            MessageOutcome::SenderMismatch(mismatch) => {
                let decided = state.decided_end(size, now);
                (Some(state.refuse_sender((**mismatch).clone(), decided)), false)
            }
            outcome => state.final_reply(outcome),
        };
        if reply.as_ref().is_some_and(Reply::is_positive) {
            state.error_limits.reset();
        }
        if matches!(&outcome, MessageOutcome::Answered(reply) if reply.is_positive()) {
            state.end_next_route();
        }
        state.end_transaction(outcome, size, reply.clone(), now);
        if let Some(reply) = reply {
            state.reply(&reply);
        }
        match self.0.closing {
            _ if last => self.close(),
            // The next step closes the session.
            true => Step::Next(self),
            false => Step::MessageEnded(self),
        }
    }
}

impl State {
    /// Refuses DATA or BDAT if no message is allowed now, and returns the reply. Counts an idle command and no error of the
    /// client, because the client has perhaps sent the command before it got the refusal of MAIL, of the recipients, or
    /// of an earlier piece.
    fn refuse_message(&mut self) -> Option<Reply> {
        let refusal = match &self.transaction {
            None => no_transaction(),
            Some(Transaction { upstream: Upstream::Lost, .. }) => upstream_away(&self.id, None),
            Some(transaction) if transaction.recipients.is_empty() => Reply::new(554, "5.5.1 No valid recipients"),
            Some(_) => return None,
        };
        self.error_limits.count_idle_command();
        Some(refusal)
    }
}
