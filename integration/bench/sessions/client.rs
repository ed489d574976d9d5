//! Clients that need little memory and CPU: thousands of them share two threads.

use super::harness::Site;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

pub struct Client<S> {
    stream: S,
    unread: Vec<u8>,
}

/// Way of sending a message.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// The client sends each command after the reply to the previous command.
    Stepwise,
    /// MAIL, RCPT and DATA in one write.
    Pipelined,
    /// MAIL, RCPT and two BDAT chunks in one write.
    Chunked,
}

impl Shape {
    /// Returns the shape of message `n`: each shape is used for a third of the messages.
    pub fn nth(n: u64) -> Self {
        [Self::Stepwise, Self::Pipelined, Self::Chunked][(n % 3) as usize]
    }
}

/// Raises the limit of open files to the maximum that this process is permitted, which must be `least` or more.
pub fn raise_file_limit(least: u64) {
    let limit = getrlimit(Resource::Nofile);
    assert!(limit.maximum.is_none_or(|most| most >= least), "ulimit -Hn is {:?}", limit.maximum);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// Connects from the client's own address: for Weir, each address is a different client, and ports do not run out.
pub async fn connect(client: u32, address: SocketAddr) -> TcpStream {
    let source = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + client);
    connect_from(source, address).await.unwrap()
}

/// Connects from this address.
pub async fn connect_from(source: Ipv4Addr, address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((source, 0)))?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns a TLS configuration that trusts the site's certificate.
pub fn trust(site: &Site) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(site.path("certificate.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// Returns the first octets that a TLS client sends: a whole ClientHello.
pub fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut hello = Vec::new();
    ClientConnection::new(config.clone(), name()).unwrap().write_tls(&mut hello).unwrap();
    hello
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, unread: Vec::new() }
    }

    pub fn into_stream(self) -> S {
        self.stream
    }

    pub async fn send(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Reads a reply, which must begin with `code`.
    pub async fn expect(&mut self, code: &str) {
        loop {
            let line = self.line().await;
            assert!(line.starts_with(code.as_bytes()), "expected {code}: {}", String::from_utf8_lossy(&line));
            if line.get(3) != Some(&b'-') {
                return;
            }
        }
    }

    pub async fn say(&mut self, line: &str, code: &str) {
        self.send(format!("{line}\r\n").as_bytes()).await;
        self.expect(code).await;
    }

    /// Sends a message of alice until Weir replies 250; returns the duration.
    pub async fn deliver(&mut self, id: u64, shape: Shape) -> Duration {
        self.deliver_from("alice@example.org", id, shape).await
    }

    /// Sends a message of this sender until Weir replies 250; returns the duration.
    pub async fn deliver_from(&mut self, sender: &str, id: u64, shape: Shape) -> Duration {
        let began = Instant::now();
        let message = message(id);
        let (mail, rcpt) = (format!("MAIL FROM:<{sender}>"), "RCPT TO:<bob@example.net>");
        match shape {
            Shape::Stepwise => {
                self.say(&mail, "250").await;
                self.say(rcpt, "250").await;
                self.say("DATA", "354").await;
                self.send(format!("{message}.\r\n").as_bytes()).await;
            }
            Shape::Pipelined => {
                self.send(format!("{mail}\r\n{rcpt}\r\nDATA\r\n").as_bytes()).await;
                for code in ["250", "250", "354"] {
                    self.expect(code).await;
                }
                self.send(format!("{message}.\r\n").as_bytes()).await;
            }
            Shape::Chunked => {
                let (one, two) = message.split_at(message.len() / 2);
                let (size, rest) = (one.len(), two.len());
                let all = format!("{mail}\r\n{rcpt}\r\nBDAT {size}\r\n{one}BDAT {rest} LAST\r\n{two}");
                self.send(all.as_bytes()).await;
                for _ in ["MAIL", "RCPT", "BDAT"] {
                    self.expect("250").await;
                }
            }
        }
        self.expect("250").await;
        began.elapsed()
    }

    async fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.unread.iter().position(|octet| *octet == b'\n') {
                return self.unread.drain(..=end).collect();
            }
            assert!(self.stream.read_buf(&mut self.unread).await.unwrap() > 0, "Weir has closed the connection");
        }
    }
}

/// Returns a message of 2 kB.
fn message(id: u64) -> String {
    let line = "Sixty-two octets of text, as in most lines that people write.\r\n";
    format!("Message-ID: <{id}@bench.example>\r\nSubject: a message\r\n\r\n{}", line.repeat(32))
}
