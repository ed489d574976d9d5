//! A client's octets: plain or TLS, read into the session's input with a time-out.

use crate::session;
use crate::smtp::line::Input;
use rustls::ProtocolVersion;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A client's connection.
pub enum Client {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What a read brought.
pub enum Read {
    Some,
    Gone,
    TimedOut,
}

impl Client {
    /// Reads once, at most `room` octets or a few more.
    pub async fn read(&mut self, input: &mut Input, room: usize, patience: Duration) -> Read {
        let space = input.space(room);
        let read = async {
            match self {
                Self::Plain(tcp) => tcp.read_buf(space).await,
                Self::Tls(tls) => tls.read_buf(space).await,
            }
        };
        match tokio::time::timeout(patience, read).await {
            Ok(Ok(0) | Err(_)) => Read::Gone,
            Ok(Ok(_)) => Read::Some,
            Err(_) => Read::TimedOut,
        }
    }

    /// Writes everything; a client that does not read is given up after `patience`.
    pub async fn write(&mut self, bytes: &[u8], patience: Duration) -> io::Result<()> {
        let write = async {
            match self {
                Self::Plain(tcp) => tcp.write_all(bytes).await,
                Self::Tls(tls) => {
                    tls.write_all(bytes).await?;
                    tls.flush().await
                }
            }
        };
        tokio::time::timeout(patience, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Begins TLS on a plain connection.
    pub async fn secure(self, acceptor: TlsAcceptor, patience: Duration) -> io::Result<(Self, session::Tls)> {
        let Self::Plain(tcp) = self else { return Err(io::Error::other("TLS is in use already")) };
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
        Ok((Self::Tls(Box::new(stream)), session::Tls { version, cipher }))
    }

    /// Ends the connection: the last words arrive, whatever the client is still sending.
    pub async fn close(&mut self) {
        let patience = Duration::from_secs(2);
        let shutdown = async {
            match self {
                Self::Plain(tcp) => tcp.shutdown().await,
                Self::Tls(tls) => tls.shutdown().await,
            }
        };
        let _ = tokio::time::timeout(patience, shutdown).await;
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_mut().0,
        };
        // Closing with octets unread resets the connection, which takes the reply away from a client that has not read it yet.
        let unread = async {
            let mut space = [0; 1024];
            while matches!(tcp.read(&mut space).await, Ok(1..)) {}
        };
        let _ = tokio::time::timeout(patience, unread).await;
    }
}
