//! Connection to an upstream: sends the commands of a message and matches replies to commands.
//!
//! [`handshake`] is its start, [`envelope`] the commands of a message; a [`wire`] carries its octets.

pub mod envelope;
mod handshake;
mod wire;

pub(super) use handshake::{Handshake, Next};
pub(super) use wire::Wire;

use crate::metrics::Counted;
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
    /// The client that the handshake announced or logged in.
    client: Option<Client>,
    /// Clients log in to this upstream with their own passwords: the connection serves one client, logged in or not.
    is_of_login: bool,
    state: State,
    opened: Instant,
    /// The upstream has answered at least once in the current transaction.
    is_proven: bool,
    /// The upstream refused DATA. If the refusal was a stray reply, the next reply does not belong to the next command.
    has_refused_data: bool,
    /// Number of transactions begun on this connection.
    messages: u32,
    /// Held while a client's mail uses the connection.
    slot: Option<Slot>,
    _counted: Counted,
}

/// The parts of a connection that has just finished its handshake.
pub struct Established {
    pub wire: Wire,
    /// How long the upstream may go without accepting any octet of a message.
    pub data_timeout: Duration,
    pub offered: Extensions,
    /// The reason why there is no TLS; `None` if there is.
    pub no_tls: Option<NoTlsReason>,
    pub announcer: Arc<Announcer>,
    /// The client that the handshake announced or logged in.
    pub client: Option<Client>,
    /// Clients log in to this upstream with their own passwords.
    pub is_of_login: bool,
    /// Counts the connection until it is dropped.
    pub counted: Counted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No transaction.
    Idle,
    /// MAIL was sent.
    Transaction,
    /// DATA was answered with 354.
    Message,
}

/// Time for the reply to RSET on an idle connection: a firewall may have dropped the connection.
const RSET_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for a reply that the upstream may have sent before it hung up, and for the reply to QUIT.
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
            _counted: counted,
        }
    }

    /// Marks the connection as in use, in this slot.
    pub fn occupy(&mut self, slot: Slot) {
        self.slot = Some(slot);
    }

    /// Returns a channel that turns true when another client needs the slot; `None` while the connection is idle.
    pub fn revoked(&self) -> Option<watch::Receiver<bool>> {
        self.slot.as_ref().map(Slot::revoked)
    }

    /// Marks the connection as idle; returns its slot.
    pub fn vacate(&mut self) -> Option<Slot> {
        self.slot.take()
    }

    /// Returns the extensions in the reply to EHLO.
    pub fn offered(&self) -> Extensions {
        self.offered
    }

    /// Returns why the connection has no TLS; `None` if it has.
    pub fn no_tls(&self) -> Option<&NoTlsReason> {
        self.no_tls.as_ref()
    }

    pub fn age(&self, now: Instant) -> Duration {
        now.duration_since(self.opened)
    }

    /// Returns the number of transactions begun on this connection.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Returns whether the upstream has answered in the current transaction.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Returns whether the upstream waits for the rest of a message.
    pub fn in_message(&self) -> bool {
        self.state == State::Message
    }

    /// Returns whether the upstream has neither sent anything nor hung up. Does not wait.
    pub async fn is_quiet(&mut self) -> bool {
        self.wire.is_quiet().await.unwrap_or(false)
    }

    /// Returns whether the connection may carry mail of this client. It may not if its handshake announced another
    /// client by XCLIENT or logged in as another client.
    pub fn speaks_for(&self, client: &Client) -> bool {
        let is_same_client = self.client.as_ref().is_some_and(|known| known.is_like(client));
        is_same_client || !(self.is_of_login || self.announcer.is_for_one(&self.offered))
    }

    /// Sends MAIL (if given) and recipients of this client; returns one answer for each recipient. A used connection
    /// begins with RSET.
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
        while !envelope.is_done() {
            if let Some(text) = envelope.next_write() {
                self.wire.send(text.as_bytes()).await?;
            }
            let timeout = if self.is_proven { self.wire.timeout } else { self.wire.timeout.min(RSET_TIMEOUT) };
            let reply = self.wire.reply_within(timeout).await?;
            self.is_proven = true;
            envelope.reply(reply)?;
        }
        if let Some(reply) = envelope.xforward_reply() {
            self.announcer.note_reply(reply);
        }
        Ok(envelope.into_answers())
    }

    /// Ends a transaction whose message has not begun.
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

    /// Sends DATA; returns 354 or the refusal.
    pub async fn data(&mut self) -> Result<Reply, RelayError> {
        if self.has_refused_data {
            return Err(RelayError::Closed);
        }
        self.wire.check_quiet().await?;
        self.wire.send(b"DATA\r\n").await?;
        let reply = self.wire.reply().await?;
        match reply.code() {
            354 => self.state = State::Message,
            421 => return Err(RelayError::Refused(reply)),
            400.. => self.has_refused_data = true,
            // After an unexpected success, each further reply may belong to the command before.
            _ => return Err(RelayError::Unexpected(reply)),
        }
        Ok(reply)
    }

    /// Sends octets of the message. If the upstream replies meanwhile, that reply is the error.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RelayError> {
        match self.wire.send_unless_answered(bytes, self.data_timeout).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.early_reply(self.wire.timeout).await?),
            // Waiting for a reply would take the same time again.
            Err(RelayError::Timeout) => Err(RelayError::Timeout),
            // The upstream may have sent the reason before it hung up.
            Err(error) => Err(self.early_reply(LAST_REPLY_TIMEOUT).await.unwrap_or(error)),
        }
    }

    /// Ends the message: sends the final dot and returns the reply, if it comes within `timeout`. A reply that came
    /// before the final dot is no acknowledgement.
    pub async fn end(&mut self, timeout: Duration) -> Result<Reply, RelayError> {
        self.write(b".\r\n").await?;
        let reply = self.wire.reply_within(timeout).await?;
        self.state = State::Idle;
        match reply.code() {
            421 => Err(RelayError::Refused(reply)),
            300..400 => Err(RelayError::Unexpected(reply)),
            _ => Ok(reply),
        }
    }

    /// Sends QUIT and closes. In mid-message the connection is cut instead, so that the upstream does not accept
    /// half a message.
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

    /// Reads the reply that the upstream sent in mid-message.
    async fn early_reply(&mut self, timeout: Duration) -> Result<RelayError, RelayError> {
        let reply = self.wire.reply_within(timeout).await?;
        Ok(if reply.code() >= 400 { RelayError::Refused(reply) } else { RelayError::Unexpected(reply) })
    }
}
