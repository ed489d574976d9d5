//! Connection to an upstream: sends the commands and octets of messages, and matches replies to commands.
//!
//! [`handshake`] has the start of a connection, [`envelope`] has the commands MAIL and RCPT of a message, and [`wire`]
//! sends and reads octets.

pub mod envelope;
mod handshake;
mod wire;

pub(super) use handshake::{Handshake, Next};
pub(super) use wire::Wire;

use crate::metrics::{Counted, Part, ReplyStage};
use crate::relay::client::Client;
use crate::relay::client_identity::Announcer;
use crate::relay::connection_slots::Slot;
use crate::relay::error::RelayError;
use crate::relay::tls::NoTlsReason;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use crate::smtp::upstream_answer::Answer;
use envelope::Envelope;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A connection to an upstream, after the handshake.
pub struct Connection {
    wire: Wire,
    data_timeout: Duration,
    offered: Extensions,
    no_tls: Option<NoTlsReason>,
    announcer: Arc<Announcer>,
    /// The client that the handshake announced or logged in, if any.
    client: Option<Client>,
    /// True if clients log in to this upstream with their own passwords. If so, the connection carries mail of only one
    /// client, even if that client has not logged in.
    is_of_login: bool,
    state: State,
    opened: Instant,
    /// True if the upstream has replied at least once in the present transaction, which proves that the connection is
    /// not dead.
    is_proven: bool,
    /// True if the upstream refused DATA in this transaction. If so, DATA is not sent again, because the refusal was
    /// perhaps a late reply to an earlier command. In that case the next reply would not belong to the next command.
    has_refused_data: bool,
    /// Number of transactions that were begun on this connection.
    messages: u32,
    /// The connection's slot, while it carries mail of a client.
    slot: Option<Slot>,
    counted: Counted,
}

/// Parts of a connection whose handshake has just ended.
pub struct Established {
    pub wire: Wire,
    /// Timeout of sending a message: within this time the upstream must accept at least one further octet.
    pub data_timeout: Duration,
    pub offered: Extensions,
    /// The reason why the connection has no TLS; `None` if it has TLS.
    pub no_tls: Option<NoTlsReason>,
    pub announcer: Arc<Announcer>,
    /// The client that the handshake announced or logged in, if any.
    pub client: Option<Client>,
    /// True if clients log in to this upstream with their own passwords.
    pub is_of_login: bool,
    /// Guard that counts the connection until it is dropped.
    pub counted: Counted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No transaction has begun.
    Idle,
    /// MAIL was sent.
    Transaction,
    /// DATA was answered with 354.
    Message,
}

/// Timeout for the reply to RSET on a connection that was idle. It is short, because a firewall has perhaps dropped the
/// connection.
const RSET_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for the reply to QUIT, and for a reply that the upstream perhaps sent before it closed the connection.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

impl Connection {
    pub fn new(established: Established) -> Self {
        let Established { wire, data_timeout, offered, no_tls, announcer, client, is_of_login, counted } = established;
        Self {
            wire,
            data_timeout,
            offered,
            no_tls,
            announcer,
            client,
            is_of_login,
            state: State::Idle,
            opened: Instant::now(),
            is_proven: false,
            has_refused_data: false,
            messages: 0,
            slot: None,
            counted,
        }
    }

    /// Marks the connection as in use, with this slot.
    pub fn occupy(&mut self, slot: Slot) {
        self.slot = Some(slot);
    }

    /// Returns a channel whose value becomes true when this session must give up the connection for another client.
    /// `None` if the connection has no slot.
    pub fn revoked(&self) -> Option<watch::Receiver<bool>> {
        self.slot.as_ref().map(Slot::revoked)
    }

    /// Marks the connection as not in use, and returns its slot.
    pub fn vacate(&mut self) -> Option<Slot> {
        self.slot.take()
    }

    /// Returns the extensions that the upstream offered at the end of the handshake.
    pub fn offered(&self) -> Extensions {
        self.offered
    }

    /// Returns the reason why the connection has no TLS; `None` if it has TLS.
    pub fn no_tls(&self) -> Option<&NoTlsReason> {
        self.no_tls.as_ref()
    }

    pub fn age(&self, now: Instant) -> Duration {
        now.duration_since(self.opened)
    }

    /// Returns the number of transactions that were begun on this connection.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Returns whether the upstream has replied in the present transaction.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Returns whether a message has begun and has not ended yet.
    pub fn in_message(&self) -> bool {
        self.state == State::Message
    }

    /// Returns whether the connection is open and the upstream has sent no unexpected octets. Does not wait.
    pub async fn is_quiet(&mut self) -> bool {
        self.wire.is_quiet().await.unwrap_or(false)
    }

    /// Returns whether the connection is allowed to carry mail of this client. This is not allowed if the handshake
    /// announced another client by XCLIENT, or logged in as another client.
    pub fn speaks_for(&self, client: &Client) -> bool {
        let is_same_client = self.client.as_ref().is_some_and(|known| known.is_like(client));
        is_same_client || !(self.is_of_login || self.announcer.is_for_one(&self.offered))
    }

    /// Sends MAIL, if given, and recipients for this client. Returns one answer for each recipient, in their order. If
    /// the connection was used before, RSET is sent before MAIL.
    pub async fn envelope(
        &mut self,
        client: &Client,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
    ) -> Result<Vec<Answer>, RelayError> {
        let reset = mail.is_some() && self.messages > 0;
        let envelope = Envelope::new(mail, recipients, reset, &self.offered);
        let mut envelope = envelope.announcing(self.announcer.before_mail(client, &self.offered));
        self.wire.check_quiet().await?;
        self.state = State::Transaction;
        self.messages += u32::from(mail.is_some());
        self.has_refused_data &= mail.is_none();
        self.is_proven = !reset;
        let began = Instant::now();
        while !envelope.is_done() {
            if let Some(text) = envelope.next_write() {
                self.wire.send(text.as_bytes()).await?;
            }
            let timeout = if self.is_proven { self.wire.timeout } else { self.wire.timeout.min(RSET_TIMEOUT) };
            let reply = self.wire.reply_within(timeout).await?;
            self.is_proven = true;
            if let Some(stage) = envelope.awaited() {
                self.counted.count_reply(stage, reply.code());
            }
            envelope.reply(reply)?;
        }
        self.counted.observe_reply(Part::Envelope, began.elapsed());
        if let Some(reply) = envelope.xforward_reply() {
            self.announcer.note_reply(reply);
        }
        Ok(envelope.into_answers())
    }

    /// Ends a transaction whose message has not begun, with RSET.
    pub async fn reset(&mut self) -> Result<(), RelayError> {
        if self.state == State::Transaction {
            self.wire.check_quiet().await?;
            self.wire.send(b"RSET\r\n").await?;
            let reply = self.wire.reply().await?;
            if !reply.is_positive() {
                return Err(RelayError::Unexpected(reply));
            }
            self.state = State::Idle;
        }
        Ok(())
    }

    /// Sends DATA. Returns the reply: 354, or a refusal.
    pub async fn data(&mut self) -> Result<Reply, RelayError> {
        if self.has_refused_data {
            return Err(RelayError::Closed);
        }
        self.wire.check_quiet().await?;
        let began = Instant::now();
        self.wire.send(b"DATA\r\n").await?;
        let reply = self.wire.reply().await?;
        self.counted.observe_reply(Part::Data, began.elapsed());
        self.counted.count_reply(ReplyStage::Data, reply.code());
        match reply.code() {
            354 => self.state = State::Message,
            421 => return Err(RelayError::Refused(reply)),
            400.. => self.has_refused_data = true,
            // A positive reply other than 354 is not a reply to DATA. It perhaps belongs to an earlier command, and
            // then each later reply would belong to the wrong command, too.
            _ => return Err(RelayError::Unexpected(reply)),
        }
        Ok(reply)
    }

    /// Sends octets of the message. If the upstream replies before the end of the message, returns that reply as the
    /// error.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RelayError> {
        match self.wire.send_unless_answered(bytes, self.data_timeout).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.early_reply(self.wire.timeout).await?),
            // Do not wait for a reply after the timeout, because that would take the same time again.
            Err(RelayError::Timeout) => Err(RelayError::Timeout),
            // The upstream has perhaps sent a reply with the reason before it closed the connection.
            Err(error) => Err(self.early_reply(LAST_REPLY_TIMEOUT).await.unwrap_or(error)),
        }
    }

    /// Ends the message: sends its last octets with the final dot, and returns the upstream's reply, if it arrives within
    /// `timeout`. A reply that arrived before the final dot was sent is returned as an error, because such a reply does
    /// not accept the message.
    pub async fn end(&mut self, mut last: Vec<u8>, timeout: Duration) -> Result<Reply, RelayError> {
        last.extend_from_slice(b".\r\n");
        self.write(&last).await?;
        let began = Instant::now();
        let reply = self.wire.reply_within(timeout).await?;
        self.counted.observe_reply(Part::End, began.elapsed());
        self.counted.count_reply(ReplyStage::End, reply.code());
        self.state = State::Idle;
        match reply.code() {
            421 => Err(RelayError::Refused(reply)),
            300..400 => Err(RelayError::Unexpected(reply)),
            _ => Ok(reply),
        }
    }

    /// Sends QUIT and closes the connection. If a message has begun and has not ended, closes the connection without
    /// QUIT, so that the upstream does not accept an incomplete message.
    pub async fn quit(mut self) {
        if self.state == State::Message {
            return;
        }
        let quit = async {
            self.wire.send(b"QUIT\r\n").await?;
            self.wire.reply().await
        };
        let _ = tokio::time::timeout(LAST_REPLY_TIMEOUT, quit).await;
    }

    /// Reads a reply that the upstream sent before the end of the message, and returns it as an error.
    async fn early_reply(&mut self, timeout: Duration) -> Result<RelayError, RelayError> {
        let reply = self.wire.reply_within(timeout).await?;
        Ok(if reply.code() >= 400 { RelayError::Refused(reply) } else { RelayError::Unexpected(reply) })
    }
}
