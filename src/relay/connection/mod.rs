//! A connection to the upstream: carries what the dialogue says, and keeps replies in step with commands.
//!
//! It begins as [`handshake`] says, goes on as [`dialogue`] says, and its octets go over a [`wire`].

pub mod dialogue;
mod handshake;
mod wire;

pub(super) use handshake::Handshake;

use crate::metrics::Counted;
use crate::relay::RelayError;
use crate::relay::client::Client;
use crate::relay::client_identity::Announcer;
use crate::relay::tls::Plain;
use crate::relay::upstream::{Connector, Slot};
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use dialogue::{Answered, Envelope};
use handshake::Next;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use wire::Wire;

/// A connection to an upstream, past its opening.
pub struct Connection {
    wire: Wire,
    data_patience: Duration,
    offered: Extensions,
    plain: Option<Plain>,
    announcer: Arc<Announcer>,
    /// The client that its opening told of or logged in.
    client: Option<Client>,
    /// It logged in as that client, or did not where another might.
    is_of_login: bool,
    state: State,
    opened: Instant,
    /// The upstream has answered since it was taken up for its transaction.
    is_proven: bool,
    /// It refused DATA. Were the refusal a stray reply, the next one would not be that to the next command.
    has_refused_data: bool,
    /// Messages that were begun over it.
    messages: u32,
    /// While it is in use for a client's mail.
    slot: Option<Slot>,
    _counted: Counted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is under way.
    Idle,
    /// MAIL was sent.
    Transaction,
    /// DATA was answered with 354.
    Message,
}

/// How long an upstream may take to answer RSET on a connection that has waited: a firewall may have forgotten it.
const RSET_PATIENCE: Duration = Duration::from_secs(5);

/// How long what an upstream said before it hung up may be on its way.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Connection {
    /// Connects to one address and goes through the opening, TLS and login included; `client` is whom it may tell of or log in.
    pub async fn open(
        connector: &Connector,
        address: SocketAddr,
        mut opening: Handshake,
        client: Option<&Client>,
    ) -> Result<Self, RelayError> {
        let (tcp, counted) = connector.tcp(address).await?;
        let mut wire = Wire::new(tcp, connector.patience());
        if opening.is_within_tls() {
            wire = wire.secure(connector.tls()).await?;
        }
        let mut next = opening.reply(wire.reply().await?);
        loop {
            match next {
                Next::Send(line) => {
                    wire.reader.expect_extensions();
                    wire.send(line.as_bytes()).await?;
                    next = opening.reply(wire.reply().await?);
                }
                Next::Handshake => {
                    // What came unasked before it is an attempt to put words into the upstream's mouth (CVE-2011-0411).
                    wire.check_quiet().await?;
                    wire = wire.secure(connector.tls()).await?;
                    next = opening.secured();
                }
                Next::Derive(salting) => next = opening.keys(&connector.derive(salting).await?),
                Next::Ready(offered) => {
                    return Ok(Self {
                        wire,
                        data_patience: connector.data_patience(),
                        offered,
                        plain: opening.plain(),
                        announcer: connector.announcer().clone(),
                        client: client.cloned(),
                        is_of_login: connector.options().wants_credentials(),
                        state: State::Idle,
                        opened: Instant::now(),
                        is_proven: false,
                        has_refused_data: false,
                        messages: 0,
                        slot: None,
                        _counted: counted,
                    });
                }
                Next::Failed(fault) => return Err(fault),
            }
        }
    }

    /// It is in use from now on, in this slot.
    pub fn occupy(&mut self, slot: Slot) {
        self.slot = Some(slot);
    }

    /// Turns true when its slot is wanted back for another client.
    pub fn revoked(&self) -> Option<watch::Receiver<bool>> {
        self.slot.as_ref().map(Slot::revoked)
    }

    /// It is in use no more.
    pub fn vacate(&mut self) -> Option<Slot> {
        self.slot.take()
    }

    /// What it said to EHLO.
    pub fn offered(&self) -> Extensions {
        self.offered
    }

    /// Why it has no TLS; `None`, if it has.
    pub fn plain(&self) -> Option<&Plain> {
        self.plain.as_ref()
    }

    pub fn age(&self, now: Instant) -> Duration {
        now.duration_since(self.opened)
    }

    /// How many transactions were begun over it.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether the upstream has answered since the connection was taken up for its transaction.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Whether it waits for the rest of a message.
    pub fn in_message(&self) -> bool {
        self.state == State::Message
    }

    /// Whether the upstream has neither spoken nor hung up meanwhile. Does not wait.
    pub async fn is_quiet(&mut self) -> bool {
        self.wire.is_quiet().await.unwrap_or(false)
    }

    /// Whether it may carry mail of this client. One that was opened for somebody else may not, if it told of him by XCLIENT or logged
    /// in as he did.
    pub fn speaks_for(&self, client: &Client) -> bool {
        let is_his = self.client.as_ref().is_some_and(|his| his.is_like(client));
        is_his || !(self.is_of_login || self.announcer.is_for_one(&self.offered))
    }

    /// Sends MAIL of this client, if given, and recipients; one answer a recipient. A connection that was used before begins with RSET.
    pub async fn envelope(
        &mut self,
        client: &Client,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
    ) -> Result<Vec<Answered>, RelayError> {
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
            let patience = if self.is_proven { self.wire.patience } else { self.wire.patience.min(RSET_PATIENCE) };
            let reply = self.wire.reply_within(patience).await?;
            self.is_proven = true;
            envelope.reply(reply)?;
        }
        if let Some(reply) = envelope.announced() {
            self.announcer.heard(reply);
        }
        Ok(envelope.into_answers())
    }

    /// Ends a transaction before its message has begun.
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

    /// Asks to begin the message: 354, or why not.
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
            // Whoever takes DATA for something else may be one reply behind from here on.
            _ => return Err(RelayError::Unexpected(reply)),
        }
        Ok(reply)
    }

    /// Passes octets of the message on, unless the upstream speaks meanwhile: then its word counts.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RelayError> {
        match self.wire.send_unless_spoken_to(bytes, self.data_patience).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.early_reply(self.wire.patience).await?),
            // It has been waited for long enough.
            Err(RelayError::Silent) => Err(RelayError::Silent),
            // It may have said why before it hung up.
            Err(fault) => Err(self.early_reply(LAST_WORDS).await.unwrap_or(fault)),
        }
    }

    /// Ends the message: the final dot, and what the upstream says to it within `patience`. A reply that came before the final dot
    /// is no acknowledgement.
    pub async fn end(&mut self, patience: Duration) -> Result<Reply, RelayError> {
        self.write(b".\r\n").await?;
        let reply = self.wire.reply_within(patience).await?;
        self.state = State::Idle;
        match reply.code() {
            421 => Err(RelayError::Refused(reply)),
            300..400 => Err(RelayError::Unexpected(reply)),
            _ => Ok(reply),
        }
    }

    /// Takes leave of the upstream. In mid-message the connection is cut instead, so that no half message counts.
    pub async fn quit(mut self) {
        if self.state == State::Message {
            return;
        }
        let quit = async {
            self.wire.send(b"QUIT\r\n").await?;
            self.wire.reply().await
        };
        let _ = tokio::time::timeout(LAST_WORDS, quit).await;
    }

    /// What the upstream said in mid-message.
    async fn early_reply(&mut self, patience: Duration) -> Result<RelayError, RelayError> {
        let reply = self.wire.reply_within(patience).await?;
        Ok(if reply.code() >= 400 { RelayError::Refused(reply) } else { RelayError::Unexpected(reply) })
    }
}
