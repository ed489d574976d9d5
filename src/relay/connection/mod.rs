//! Connection to an upstream: sends the commands and octets of messages, and matches replies to commands.
//!
//! [`handshake`] is the start of a connection, [`envelope`] has the commands MAIL and RCPT of a message; a [`wire`]
//! sends and reads octets.

pub mod envelope;
mod handshake;
mod wire;

pub(super) use handshake::{Handshake, Next};
pub(super) use wire::Wire;

use crate::metrics::{Counted, Part};
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
    /// Whether clients log in to this upstream with their own passwords. Then the connection carries mail of only one
    /// client, whether it has logged in or not.
    is_of_login: bool,
    state: State,
    opened: Instant,
    /// Whether the upstream has replied at least once in the present transaction, so that the connection is not dead.
    is_proven: bool,
    /// Whether the upstream refused DATA in this transaction. Then DATA is not sent again: the refusal may have been a
    /// late reply to an earlier command, so that the next reply would not belong to the next command.
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
    /// Timeout if the upstream accepts no further octet of a message.
    pub data_timeout: Duration,
    pub offered: Extensions,
    /// The reason why the connection has no TLS; `None` if it has TLS.
    pub no_tls: Option<NoTlsReason>,
    pub announcer: Arc<Announcer>,
    /// The client that the handshake announced or logged in, if any.
    pub client: Option<Client>,
    /// Whether clients log in to this upstream with their own passwords.
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

/// Timeout for the reply to RSET on a connection that was idle. It is short, as a firewall may have dropped the
/// connection.
const RSET_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for a reply that the upstream may have sent before it closed the connection, and for the reply to QUIT.
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

    /// Returns a channel whose value becomes true when the connection must be given up for another client. `None` if
    /// the connection has no slot.
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

    /// Returns whether a message has begun and not ended.
    pub fn in_message(&self) -> bool {
        self.state == State::Message
    }

    /// Returns whether the upstream has neither sent anything unasked nor closed the connection. Does not wait.
    pub async fn is_quiet(&mut self) -> bool {
        self.wire.is_quiet().await.unwrap_or(false)
    }

    /// Returns whether the connection may carry mail of this client. It may not if the handshake announced another
    /// client by XCLIENT, or logged another client in.
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
        match reply.code() {
            354 => self.state = State::Message,
            421 => return Err(RelayError::Refused(reply)),
            400.. => self.has_refused_data = true,
            // A positive reply other than 354 is not a reply to DATA: it may belong to an earlier command, and so may
            // all later replies.
            _ => return Err(RelayError::Unexpected(reply)),
        }
        Ok(reply)
    }

    /// Sends octets of the message. If the upstream replies before the end of the message, its reply is returned as the
    /// error.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RelayError> {
        match self.wire.send_unless_answered(bytes, self.data_timeout).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.early_reply(self.wire.timeout).await?),
            // Do not also wait for a reply: that would take the same time again.
            Err(RelayError::Timeout) => Err(RelayError::Timeout),
            // The upstream may have sent a reply with the reason before it closed the connection.
            Err(error) => Err(self.early_reply(LAST_REPLY_TIMEOUT).await.unwrap_or(error)),
        }
    }

    /// Ends the message: sends the final dot and returns the upstream's reply to it, if it arrives within `timeout`. If
    /// a reply arrived before the final dot was sent, it is returned as an error: it does not accept the message.
    pub async fn end(&mut self, timeout: Duration) -> Result<Reply, RelayError> {
        self.write(b".\r\n").await?;
        let began = Instant::now();
        let reply = self.wire.reply_within(timeout).await?;
        self.counted.observe_reply(Part::End, began.elapsed());
        self.state = State::Idle;
        match reply.code() {
            421 => Err(RelayError::Refused(reply)),
            300..400 => Err(RelayError::Unexpected(reply)),
            _ => Ok(reply),
        }
    }

    /// Sends QUIT and closes the connection. If a message has begun and not ended, closes without QUIT, so that the
    /// upstream does not accept an incomplete message.
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
