//! Stream of octets to and from an upstream, with the parser for replies.

use crate::relay::error::RelayError;
use crate::relay::tls::Tls;
use crate::smtp::reply::{Reader, Reply};
use crate::timer::Timer;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// A stream, with or without TLS, and the replies that arrive on it.
pub struct Wire {
    replies: Replies,
    /// Timeout for one reply, and for one call that sends octets.
    pub timeout: Duration,
    timer: Timer,
}

/// Replies of an upstream.
struct Replies {
    stream: Box<dyn Stream>,
    reader: Reader,
    /// Octets that were read. The first `used` octets are parsed already.
    bytes: Vec<u8>,
    used: usize,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Number of octets to read at once, enough for a few replies.
const READ: usize = 4096;

impl Wire {
    pub fn new(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, timeout: Duration) -> Self {
        let replies = Replies { stream: Box::new(stream), reader: Reader::default(), bytes: Vec::new(), used: 0 };
        Self { replies, timeout, timer: Timer::default() }
    }

    /// Establishes TLS on the stream.
    pub async fn secure(self, tls: Option<&Tls>) -> Result<Self, RelayError> {
        let tls = tls.ok_or(RelayError::NoTls)?;
        let stream = tls.secure(self.replies.stream).await.map_err(RelayError::Tls)?;
        Ok(Self::new(stream, self.timeout))
    }

    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), RelayError> {
        let stream = &mut self.replies.stream;
        let sent = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        let sent = self.timer.limit(self.timeout, sent).await.ok_or(RelayError::Timeout)?;
        sent.map_err(RelayError::Io)
    }

    /// Sends octets, and watches for a reply at the same time. Returns false, and stops sending, if the upstream has
    /// begun to reply. The upstream must accept at least one more octet within each `timeout`.
    pub async fn send_unless_answered(&mut self, bytes: &[u8], timeout: Duration) -> Result<bool, RelayError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if !self.is_quiet().await? {
                return Ok(false);
            }
            let mut space = [0; 512];
            let mut heard = ReadBuf::new(&mut space);
            let stream = &mut self.replies.stream;
            let progress = poll_fn(|context| {
                if let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(context, rest) {
                    return Poll::Ready(written);
                }
                Pin::new(&mut *stream).poll_read(context, &mut heard).map_ok(|()| 0)
            });
            let progress = self.timer.limit(timeout, progress).await.ok_or(RelayError::Timeout)?;
            let written = progress.map_err(RelayError::Io)?;
            if written == 0 {
                self.replies.bytes.extend_from_slice(heard.filled());
                return if heard.filled().is_empty() { Err(RelayError::Closed) } else { Ok(false) };
            }
            rest = &rest[written..];
        }
        let flushed = self.timer.limit(timeout, self.replies.stream.flush()).await.ok_or(RelayError::Timeout)?;
        flushed.map_err(RelayError::Io).map(|()| true)
    }

    /// Makes the next reply one to EHLO: see [`Reader::expect_extensions`].
    pub fn expect_extensions(&mut self) {
        self.replies.reader.expect_extensions();
    }

    pub async fn reply(&mut self) -> Result<Reply, RelayError> {
        self.reply_within(self.timeout).await
    }

    pub async fn reply_within(&mut self, timeout: Duration) -> Result<Reply, RelayError> {
        // Replies to pipelined commands arrive together, and most of them need no timer.
        if let Some(reply) = self.replies.parse()? {
            return Ok(reply);
        }
        self.timer.limit(timeout, self.replies.next()).await.unwrap_or(Err(RelayError::Timeout))
    }

    /// Returns an error if the upstream has sent octets before the next command, because Weir would take them for the
    /// reply to that command.
    pub async fn check_quiet(&mut self) -> Result<(), RelayError> {
        if self.is_quiet().await? {
            return Ok(());
        }
        let reply = self.reply().await?;
        if reply.code() == 421 { Err(RelayError::Refused(reply)) } else { Err(RelayError::Unexpected(reply)) }
    }

    /// Returns whether the upstream has sent no unexpected octets. Reads octets that have already arrived, without
    /// waiting.
    pub async fn is_quiet(&mut self) -> Result<bool, RelayError> {
        self.replies.is_quiet().await
    }
}

impl Replies {
    /// Waits for the next reply.
    async fn next(&mut self) -> Result<Reply, RelayError> {
        loop {
            if let Some(reply) = self.parse()? {
                return Ok(reply);
            }
            self.bytes.reserve(READ);
            match self.stream.read_buf(&mut self.bytes).await {
                Ok(0) => return Err(RelayError::Closed),
                Ok(_) => {}
                Err(error) => return Err(RelayError::Io(error)),
            }
        }
    }

    /// Parses the octets that were read. Returns the next reply, if all of it was read.
    fn parse(&mut self) -> Result<Option<Reply>, RelayError> {
        let (used, reply) = self.reader.read(&self.bytes[self.used..]).map_err(RelayError::Garbage)?;
        self.used += used;
        if self.used == self.bytes.len() {
            self.bytes.clear();
            self.used = 0;
        }
        Ok(reply)
    }

    /// Returns whether no octet of a reply has arrived. Reads octets that have already arrived, without waiting.
    async fn is_quiet(&mut self) -> Result<bool, RelayError> {
        if !self.bytes.is_empty() || self.reader.is_inside() {
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
            Some(Err(error)) => Err(RelayError::Io(error)),
            Some(Ok(())) if buffer.filled().is_empty() => Err(RelayError::Closed),
            Some(Ok(())) => {
                self.bytes.extend_from_slice(buffer.filled());
                Ok(false)
            }
        }
    }
}
