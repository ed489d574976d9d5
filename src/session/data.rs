//! DATA and the message.

use super::rcpt::upstream_away;
use super::record::{Delivery, Record};
use super::run::Gathered;
use super::{Session, State, Step, Upstream};
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
    /// The client stopped sending in mid-message.
    ClientSilent,
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
        if let Some(transaction) = state.transaction.take() {
            let delivery = Delivery {
                from: transaction.mail.sender.to_string(),
                asked: transaction.asked,
                accepted: transaction.accepted,
                size,
                reply: reply.clone(),
                ending,
                duration: now.since(transaction.began),
            };
            state.record(Record::Message(delivery));
        }
        if let Some(reply) = reply {
            state.reply(&reply);
        }
        if last { Step::Close(session) } else { Step::Next(session) }
    }
}

impl State {
    /// What the client is told, if it can be told anything, and whether that is the last word.
    fn final_reply(&self, ending: &Ending) -> (Option<Reply>, bool) {
        let hostname = &self.options.hostname;
        let limit = self.options.max_message_size;
        match ending {
            // 421 would close this session, 3yz would have the client go on: from an upstream both mean "not taken".
            Ending::Answered(reply) if reply.code() == 421 || reply.code() / 100 == 3 => {
                (Some(reply.recoded(451, "4.3.2")), false)
            }
            Ending::Answered(reply) => (Some(reply.clone().enhanced()), false),
            Ending::TooLarge => {
                (Some(Reply::new(552, format!("5.3.4 The message is too large; the limit is {limit} octets"))), false)
            }
            Ending::Endless => (
                Some(Reply::new(552, format!("5.3.4 The message is far too large; the limit is {limit} octets"))),
                true,
            ),
            // The end of the message is in doubt, and so is everything after it.
            Ending::Ambiguous(what) => {
                (Some(Reply::new(550, format!("5.6.11 The message contains {}", what.name()))), true)
            }
            Ending::Away(_) => (Some(upstream_away()), false),
            Ending::ClientGone => (None, true),
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
            None => Reply::new(503, "5.5.1 Say MAIL first"),
            Some(transaction) if matches!(transaction.upstream, Upstream::Lost) => upstream_away(),
            Some(transaction) if transaction.accepted == 0 => Reply::new(554, "5.5.1 No valid recipients"),
            Some(_) => {
                state.gather(Gathered::Data);
                return self.ask();
            }
        };
        state.gather(Gathered::Reply(refusal));
        state.answer_run();
        Step::Next(self)
    }
}
