//! A client's octets: plain or TLS, read into the session's input with a time-out.

use crate::session;
use crate::smtp::line::Input;
use rustls::ProtocolVersion;
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
pub struct Client(Stream);

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// A handshake failed.
    Closed,
}

/// What a read brought.
pub enum Read {
    Some,
    Gone,
    TimedOut,
}

/// Octets of commands read at once: a run of a few hundred. While nothing comes, a client has a buffer of the first size only.
const FIRST_READ: usize = 1024;
pub const MOST_READ: usize = 16 * 1024;

impl Client {
    pub fn new(tcp: TcpStream) -> Self {
        Self(Stream::Plain(tcp))
    }

    /// Reads what there is, up to `most` octets or a few more, waiting for the first of them.
    pub async fn read(&mut self, input: &mut Input, most: usize, patience: Duration) -> Read {
        let space = input.space(FIRST_READ.min(most));
        match tokio::time::timeout(patience, self.read_once(space)).await {
            Ok(Ok(0) | Err(_)) => return Read::Gone,
            Ok(Ok(_)) => {}
            Err(_) => return Read::TimedOut,
        }
        while input.unused().len() < most {
            // Only what is there already: a pipelined run is taken as one.
            let space = input.space(most);
            let mut read = pin!(self.read_once(space));
            let more = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
            if !matches!(more, Poll::Ready(Ok(1..))) {
                break;
            }
        }
        Read::Some
    }

    async fn read_once(&mut self, space: &mut Vec<u8>) -> io::Result<usize> {
        match &mut self.0 {
            Stream::Plain(tcp) => tcp.read_buf(space).await,
            Stream::Tls(tls) => tls.read_buf(space).await,
            Stream::Closed => Ok(0),
        }
    }

    /// Writes everything; a client that does not read is given up after `patience`.
    pub async fn write(&mut self, bytes: &[u8], patience: Duration) -> io::Result<()> {
        let write = async {
            match &mut self.0 {
                Stream::Plain(tcp) => tcp.write_all(bytes).await,
                Stream::Tls(tls) => {
                    tls.write_all(bytes).await?;
                    tls.flush().await
                }
                Stream::Closed => Err(io::ErrorKind::NotConnected.into()),
            }
        };
        tokio::time::timeout(patience, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Begins TLS on a plain connection. After an error there is no connection.
    pub async fn secure(&mut self, acceptor: TlsAcceptor, patience: Duration) -> io::Result<session::Tls> {
        let Stream::Plain(tcp) = std::mem::replace(&mut self.0, Stream::Closed) else {
            return Err(io::Error::other("TLS is in use already"));
        };
        let accepted = tokio::time::timeout(patience, acceptor.accept(tcp)).await;
        let stream = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let (_, connection) = stream.get_ref();
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2".to_owned(),
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3".to_owned(),
            other => format!("{other:?}"),
        };
        let suite = connection.negotiated_cipher_suite();
        // The names of RFC 8446 and RFC 5289; rustls writes TLS13_ for the former's TLS_.
        let name = suite.and_then(|suite| suite.suite().as_str()).unwrap_or("unknown");
        let cipher = name.replacen("TLS13_", "TLS_", 1);
        self.0 = Stream::Tls(Box::new(stream));
        Ok(session::Tls { version, cipher })
    }

    /// Ends the connection: the last words arrive, whatever the client is still sending. `patience` is how long the client may take
    /// to read them, and as long again to stop sending.
    pub async fn close(&mut self, patience: Duration) {
        let shutdown = async {
            match &mut self.0 {
                Stream::Plain(tcp) => tcp.shutdown().await,
                Stream::Tls(tls) => tls.shutdown().await,
                Stream::Closed => Ok(()),
            }
        };
        let _ = tokio::time::timeout(patience, shutdown).await;
        let tcp = match &mut self.0 {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_mut().0,
            Stream::Closed => return,
        };
        // Closing with octets unread resets the connection, which takes the reply away from a client that has not read it yet.
        let unread = async {
            let mut space = [0; 1024];
            while matches!(tcp.read(&mut space).await, Ok(1..)) {}
        };
        let _ = tokio::time::timeout(patience, unread).await;
    }
}
