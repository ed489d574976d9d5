//! A connection to the upstream: carries what the dialogue says, and keeps replies in step with commands.

use super::Fault;
use super::dialogue::{Answered, Envelope};
use super::opening::{Next, Opening};
use super::tls::Tls;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::{Reader, Reply};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

/// A connection to an upstream, past its opening.
pub struct Connection {
    wire: Wire,
    offered: Extensions,
    state: State,
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

/// Octets to and fro, and replies out of them.
struct Wire {
    stream: Box<dyn Stream>,
    /// How long the upstream may take for one reply, or to take what is sent.
    patience: Duration,
    reader: Reader,
    /// Octets that were read and are not used yet.
    unused: Vec<u8>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// How long what an upstream said before it hung up may be on its way.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Octets read at once: a few replies.
const READ: usize = 4096;

impl Connection {
    /// Connects within `connect_timeout` and goes through the opening, TLS and login included. `patience` is the time-out of each answer.
    pub async fn open(
        address: SocketAddr,
        connect_timeout: Duration,
        patience: Duration,
        mut opening: Opening,
        tls: Option<&Tls>,
    ) -> Result<Self, Fault> {
        let connected = tokio::time::timeout(connect_timeout, TcpStream::connect(address)).await;
        let tcp = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        // One of several addresses, perhaps.
        let away = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{address}: {error}"));
        let tcp = tcp.map_err(|error| Fault::Unreachable(away(error)))?;
        // Commands and final dots are small and waited for.
        tcp.set_nodelay(true).map_err(Fault::Io)?;
        let mut wire = Wire::new(Box::new(tcp), patience);
        let mut next = opening.reply(wire.reply().await?);
        loop {
            match next {
                Next::Send(line) => {
                    wire.reader.expect_extensions();
                    wire.send(line.as_bytes()).await?;
                    next = opening.reply(wire.reply().await?);
                }
                Next::Handshake => {
                    let Some(tls) = tls else { return Err(Fault::NoTls) };
                    wire = wire.secure(tls).await?;
                    next = opening.secured();
                }
                Next::Ready(offered) => return Ok(Self { wire, offered, state: State::Idle }),
                Next::Failed(fault) => return Err(fault),
            }
        }
    }

    /// What it said to EHLO.
    pub fn offered(&self) -> Extensions {
        self.offered
    }

    /// Sends MAIL, if given, and recipients; one answer a recipient. A fault comes with the number of commands answered before it.
    pub async fn envelope(
        &mut self,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
    ) -> Result<Vec<Answered>, (Fault, usize)> {
        if self.state == State::Message {
            // It waits for the rest of a message that the client has given up.
            return Err((Fault::Closed, 0));
        }
        let reset = mail.is_some() && self.state == State::Transaction;
        let mut envelope = Envelope::new(mail, recipients, reset, &self.offered);
        self.wire.check_quiet().await.map_err(|fault| (fault, 0))?;
        self.state = State::Transaction;
        while !envelope.is_done() {
            let replied = envelope.replied();
            if let Some(text) = envelope.next_write() {
                self.wire.send(text.as_bytes()).await.map_err(|fault| (fault, replied))?;
            }
            let reply = self.wire.reply().await.map_err(|fault| (fault, replied))?;
            envelope.reply(reply).map_err(|fault| (fault, replied))?;
        }
        Ok(envelope.into_answers())
    }

    /// Asks to begin the message: 354, or why not.
    pub async fn data(&mut self) -> Result<Reply, Fault> {
        self.wire.check_quiet().await?;
        self.wire.send(b"DATA\r\n").await?;
        let reply = self.wire.reply().await?;
        match reply.code() {
            354 => self.state = State::Message,
            421 => return Err(Fault::Refused(reply)),
            400.. => {}
            // Whoever takes DATA for something else may be one reply behind from here on.
            _ => return Err(Fault::Unexpected(reply)),
        }
        Ok(reply)
    }

    /// Passes octets of the message on, unless the upstream speaks meanwhile: then its word counts.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self.wire.send_unless_spoken_to(bytes).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.early_reply(self.wire.patience).await?),
            // It has been waited for long enough.
            Err(Fault::Silent) => Err(Fault::Silent),
            // It may have said why before it hung up.
            Err(fault) => Err(self.early_reply(LAST_WORDS).await.unwrap_or(fault)),
        }
    }

    /// Ends the message: the final dot, and what the upstream says to it within `patience`. A reply that came before the final dot
    /// is no acknowledgement.
    pub async fn end(&mut self, patience: Duration) -> Result<Reply, Fault> {
        self.write(b".\r\n").await?;
        let reply = self.wire.reply_within(patience).await?;
        self.state = State::Idle;
        match reply.code() {
            421 => Err(Fault::Refused(reply)),
            300..400 => Err(Fault::Unexpected(reply)),
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
    async fn early_reply(&mut self, patience: Duration) -> Result<Fault, Fault> {
        let reply = self.wire.reply_within(patience).await?;
        Ok(if reply.code() >= 400 { Fault::Refused(reply) } else { Fault::Unexpected(reply) })
    }
}

impl Wire {
    fn new(stream: Box<dyn Stream>, patience: Duration) -> Self {
        Self { stream, patience, reader: Reader::default(), unused: Vec::new() }
    }

    /// Begins TLS. What came unasked before it is an attempt to put words into the upstream's mouth (CVE-2011-0411).
    async fn secure(mut self, tls: &Tls) -> Result<Self, Fault> {
        self.check_quiet().await?;
        let stream = tls.secure(self.stream).await.map_err(Fault::Tls)?;
        Ok(Self::new(Box::new(stream), self.patience))
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let sent = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        let sent = tokio::time::timeout(self.patience, sent).await.map_err(|_| Fault::Silent)?;
        sent.map_err(Fault::Io)
    }

    /// Sends octets, listening at the same time; false if the upstream began to speak.
    async fn send_unless_spoken_to(&mut self, bytes: &[u8]) -> Result<bool, Fault> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if !self.is_quiet().await? {
                return Ok(false);
            }
            let mut space = [0; 512];
            let mut heard = ReadBuf::new(&mut space);
            let stream = &mut self.stream;
            let progress = poll_fn(|context| {
                if let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(context, rest) {
                    return Poll::Ready(written);
                }
                Pin::new(&mut *stream).poll_read(context, &mut heard).map_ok(|()| 0)
            });
            let progress = tokio::time::timeout(self.patience, progress).await.map_err(|_| Fault::Silent)?;
            let written = progress.map_err(Fault::Io)?;
            if written == 0 {
                self.unused.extend_from_slice(heard.filled());
                return if heard.filled().is_empty() { Err(Fault::Closed) } else { Ok(false) };
            }
            rest = &rest[written..];
        }
        self.send(&[]).await.map(|()| true)
    }

    async fn reply(&mut self) -> Result<Reply, Fault> {
        self.reply_within(self.patience).await
    }

    async fn reply_within(&mut self, patience: Duration) -> Result<Reply, Fault> {
        tokio::time::timeout(patience, self.next_reply()).await.unwrap_or(Err(Fault::Silent))
    }

    async fn next_reply(&mut self) -> Result<Reply, Fault> {
        loop {
            let (used, reply) = self.reader.read(&self.unused).map_err(Fault::Garbage)?;
            self.unused.drain(..used);
            if let Some(reply) = reply {
                return Ok(reply);
            }
            self.unused.reserve(READ);
            match self.stream.read_buf(&mut self.unused).await {
                Ok(0) => return Err(Fault::Closed),
                Ok(_) => {}
                Err(error) => return Err(Fault::Io(error)),
            }
        }
    }

    /// Before a command nothing may be waiting to be read: it would be taken for the reply.
    async fn check_quiet(&mut self) -> Result<(), Fault> {
        if self.is_quiet().await? {
            return Ok(());
        }
        let reply = self.reply().await?;
        if reply.code() == 421 { Err(Fault::Refused(reply)) } else { Err(Fault::Unexpected(reply)) }
    }

    /// Whether the upstream has said nothing unasked. Reads what is there without waiting.
    async fn is_quiet(&mut self) -> Result<bool, Fault> {
        if !self.unused.is_empty() || self.reader.is_inside() {
            return Ok(false);
        }
        let mut space = [0; 512];
        let mut buffer = ReadBuf::new(&mut space);
        let read = poll_fn(|context| match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => Poll::Ready(None),
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        });
        match read.await {
            None => Ok(true),
            Some(Err(error)) => Err(Fault::Io(error)),
            Some(Ok(())) if buffer.filled().is_empty() => Err(Fault::Closed),
            Some(Ok(())) => {
                self.unused.extend_from_slice(buffer.filled());
                Ok(false)
            }
        }
    }
}
