//! DATA and the message.

use super::rcpt::upstream_away;
use super::record::{Delivery, Record};
use super::run::Gathered;
use super::{Session, State, Step, Transaction, Upstream};
use crate::smtp::line::Ambiguity;
use crate::smtp::reply::Reply;
use crate::smtp::trace::Received;
use crate::time::Timestamp;

/// The client and the upstream wait for the message: the reply to DATA is written.
pub struct Body(Session);

/// How the message ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// The upstream has the whole message and says this, or said this before it had it.
    Answered(Reply),
    /// It was larger than allowed, and is thrown away.
    TooLarge,
    /// It was larger still, and the client does not stop.
    Endless,
    /// It contained what servers could disagree on.
    Ambiguous(Ambiguity),
    /// The upstream went away, for this reason.
    Away(String),
    /// The client went away in mid-message.
    ClientGone,
    /// The client stopped sending in mid-message, or sends next to nothing.
    ClientSilent,
    /// The server stops and cannot wait for the rest.
    Stopping,
    /// The client never sent it: it began anew, or left.
    Abandoned,
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
        self.0.0.options.max_message_size
    }

    /// The header line that goes before the message.
    pub fn received(&self, now: Timestamp) -> String {
        let state = &*self.0.0;
        let hello = state.hello.as_ref();
        Received {
            helo: hello.map_or("unknown", |hello| &hello.name),
            client: state.client,
            by: &state.options.hostname,
            extended: hello.is_some_and(|hello| hello.extended),
            tls: state.tls.as_ref().map(|tls| (tls.version.as_str(), tls.cipher.as_str())),
            user: state.user.as_deref(),
            id: &state.id,
            date: &now.rfc5322(),
        }
        .to_line()
    }

    /// Takes how the message ended and its size in octets.
    pub fn answer(self, ending: Ending, size: u64, now: Timestamp) -> Step {
        let mut session = self.0;
        let state = &mut *session.0;
        let (reply, last) = state.final_reply(&ending);
        if reply.as_ref().is_some_and(Reply::is_positive) {
            // Whoever gets messages through is a client worth keeping.
            (state.errors, state.unproductive) = (0, 0);
        }
        state.end_transaction(ending, size, reply.clone(), now);
        if let Some(reply) = reply {
            state.reply(&reply);
        }
        if last { Step::Close(session) } else { Step::Next(session) }
    }
}

impl State {
    /// Forgets the transaction, if there is one, and records it.
    fn end_transaction(&mut self, ending: Ending, size: u64, reply: Option<Reply>, now: Timestamp) {
        if let Some(Transaction { mail, began, asked, accepted, .. }) = self.transaction.take() {
            let (from, duration) = (mail.sender.to_string(), now.since(began));
            self.record(Record::Message(Delivery { from, asked, accepted, size, reply, ending, duration }));
        }
    }

    /// Ends a transaction that gets no message. Its recipients may have been charged: whoever asks where a budget went finds it.
    pub(super) fn abandon(&mut self, now: Timestamp) {
        if self.transaction.as_ref().is_some_and(|transaction| transaction.asked > 0) {
            self.end_transaction(Ending::Abandoned, 0, None, now);
        }
        self.transaction = None;
    }

    /// What the client is told, if it can be told anything, and whether that is the last word.
    fn final_reply(&self, ending: &Ending) -> (Option<Reply>, bool) {
        let (id, hostname) = (&self.id, &self.options.hostname);
        let limit = self.options.max_message_size;
        match ending {
            // 421 would close this session; from an upstream it means "not taken".
            Ending::Answered(reply) if reply.code() == 421 => (Some(reply.recoded(451, "4.3.2")), false),
            Ending::Answered(reply) => (Some(reply.enhanced()), false),
            Ending::TooLarge => (
                Some(Reply::new(552, format!("5.3.4 The message is too large; the limit is {limit} octets ({id})"))),
                false,
            ),
            Ending::Endless => (
                Some(Reply::new(
                    552,
                    format!("5.3.4 The message is far too large; the limit is {limit} octets ({id})"),
                )),
                true,
            ),
            // The end of the message is in doubt, and so is everything after it.
            Ending::Ambiguous(what) => {
                (Some(Reply::new(550, format!("5.6.11 The message contains {} ({id})", what.name()))), true)
            }
            Ending::Away(_) => (Some(upstream_away(id, None)), false),
            Ending::ClientGone | Ending::Abandoned => (None, true),
            Ending::Stopping => (Some(self.stopping()), true),
            Ending::ClientSilent => {
                (Some(Reply::new(421, format!("4.4.2 {hostname} Nothing heard for too long"))), true)
            }
        }
    }
}

impl Session {
    pub(super) fn data(mut self) -> Step {
        let state = &mut *self.0;
        let refusal = match &state.transaction {
            None => Gathered::Fault(Reply::new(503, "5.5.1 Say MAIL first")),
            Some(transaction) => match &transaction.upstream {
                Upstream::Lost => Gathered::Answered(upstream_away(&state.id, None)),
                _ if transaction.accepted == 0 => Gathered::Fault(Reply::new(554, "5.5.1 No valid recipients")),
                _ if transaction.message_charged => {
                    // The upstream refused DATA and is asked again: it is still one message.
                    state.gather(Gathered::Data);
                    return self.relay_or_answer();
                }
                _ => {
                    state.gather(Gathered::Data);
                    return self.ask();
                }
            },
        };
        state.gather(refusal);
        state.answer_run();
        Step::Next(self)
    }
}
