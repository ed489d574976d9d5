//! Client connection, plain or TLS. Reads into the session's input, and writes to the client, both with a timeout.

use crate::session;
use crate::smtp::line::Input;
use crate::timer::Timer;
use rustls::ProtocolVersion;
use rustls::pki_types::CertificateDer;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A client's connection.
pub struct Client {
    stream: Stream,
    /// Limits the time of each read and of each write.
    timer: Timer,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// A handshake failed, so there is no connection.
    Closed,
}

/// Result of a read.
pub enum Read {
    Some,
    Gone,
    TimedOut,
}

/// Octets of the buffer of a client that is silent or sends little.
const FIRST_READ: usize = 512;

/// Room in the buffer for which a read is worth its system call. Most commands need no more.
const MIN_ROOM: usize = 64;

/// Maximum number of octets of commands to read at once: enough for several batches.
pub const MAX_READ: usize = 16 * 1024;

/// Returns the buffer for the next octets. It grows by `more` octets if its room is used up.
fn next_space(input: &mut Input, more: usize) -> &mut Vec<u8> {
    let more = if input.has_room(MIN_ROOM) { 0 } else { more };
    input.space(more)
}

impl Stream {
    async fn read_once(&mut self, space: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read_buf(space).await,
            Self::Tls(tls) => tls.read_buf(space).await,
            Self::Closed => Ok(0),
        }
    }
}

impl Client {
    pub fn new(tcp: TcpStream) -> Self {
        Self { stream: Stream::Plain(tcp), timer: Timer::default() }
    }

    /// Waits for input, then reads octets that have arrived already, until the input has at least `max` octets.
    pub async fn read(&mut self, input: &mut Input, max: usize, timeout: Duration) -> Read {
        let space = next_space(input, FIRST_READ.min(max));
        match self.timer.limit(timeout, self.stream.read_once(space)).await {
            Some(Ok(0) | Err(_)) => return Read::Gone,
            Some(Ok(_)) => {}
            None => return Read::TimedOut,
        }
        while input.unused().len() < max {
            // Poll once for octets that have arrived already, so that pipelined commands form one batch. The buffer
            // doubles while they fill it. Most clients send one command at a time, and need only the first buffer.
            let more = input.unused().len().clamp(FIRST_READ, max);
            let space = next_space(input, more);
            let mut read = pin!(self.stream.read_once(space));
            let more = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
            if !matches!(more, Poll::Ready(Ok(1..))) {
                break;
            }
        }
        Read::Some
    }

    /// Writes all octets. Fails if the client has not read them within `timeout`.
    pub async fn write(&mut self, bytes: &[u8], timeout: Duration) -> io::Result<()> {
        let write = async {
            match &mut self.stream {
                Stream::Plain(tcp) => tcp.write_all(bytes).await,
                Stream::Tls(tls) => {
                    tls.write_all(bytes).await?;
                    tls.flush().await
                }
                Stream::Closed => Err(io::ErrorKind::NotConnected.into()),
            }
        };
        self.timer.limit(timeout, write).await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Performs the TLS handshake on a plain connection. After an error there is no connection.
    pub async fn secure(&mut self, acceptor: TlsAcceptor, timeout: Duration) -> io::Result<session::Tls> {
        let Stream::Plain(tcp) = std::mem::replace(&mut self.stream, Stream::Closed) else {
            return Err(io::Error::other("TLS is in use already"));
        };
        let accepted = self.timer.limit(timeout, acceptor.accept(tcp)).await;
        let stream = accepted.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        let (_, connection) = stream.get_ref();
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2".into(),
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3".into(),
            other => format!("{other:?}").into(),
        };
        let suite = connection.negotiated_cipher_suite();
        // Use the names of RFC 8446 and RFC 5289. Where RFC 8446 writes `TLS_`, rustls writes `TLS13_`.
        let name = suite.and_then(|suite| suite.suite().as_str()).unwrap_or("unknown");
        let cipher = name.replacen("TLS13_", "TLS_", 1);
        self.stream = Stream::Tls(Box::new(stream));
        Ok(session::Tls { version, cipher })
    }

    /// Returns the certificates that the client sent in the TLS handshake, its own certificate first.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        match &self.stream {
            Stream::Tls(tls) => tls.get_ref().1.peer_certificates().unwrap_or_default(),
            Stream::Plain(_) | Stream::Closed => &[],
        }
    }

    /// Closes the connection so that the last reply arrives even if the client is still sending. The client has
    /// `timeout` to read the reply, and then another `timeout` to stop sending.
    pub async fn close(&mut self, timeout: Duration) {
        let shutdown = async {
            match &mut self.stream {
                Stream::Plain(tcp) => tcp.shutdown().await,
                Stream::Tls(tls) => tls.shutdown().await,
                Stream::Closed => Ok(()),
            }
        };
        self.timer.limit(timeout, shutdown).await;
        let tcp = match &mut self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_mut().0,
            Stream::Closed => return,
        };
        // Closing a socket with unread octets resets the connection, and a client that has not read the reply yet loses
        // it. So read them first.
        let unread = async {
            let mut space = [0; 1024];
            while matches!(tcp.read(&mut space).await, Ok(1..)) {}
        };
        self.timer.limit(timeout, unread).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn the_buffer_grows_only_while_octets_fill_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut client, mut input) = (Client::new(listener.accept().await.unwrap().0), Input::default());
        peer.write_all(b"NOOP\r\n").await.unwrap();
        client.read(&mut input, MAX_READ, Duration::from_secs(60)).await;
        assert_eq!(input.unused(), b"NOOP\r\n");
        assert!(!input.has_room(FIRST_READ));
        peer.write_all(b"NO").await.unwrap();
        client.read(&mut input, MAX_READ, Duration::from_secs(60)).await;
        assert!(input.has_room(MIN_ROOM) && !input.has_room(FIRST_READ));
        peer.write_all(b"OP\r\n").await.unwrap();
        let batch = b"NOOP\r\n".repeat(2 * MAX_READ / 6);
        peer.write_all(&batch).await.unwrap();
        while input.unused().len() < MAX_READ {
            client.read(&mut input, MAX_READ, Duration::from_secs(60)).await;
        }
        assert!(input.unused().len() < 2 * MAX_READ && batch.starts_with(input.unused()));
    }
}
