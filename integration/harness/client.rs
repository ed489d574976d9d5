//! SMTP client of a test. It sends and receives line by line or octet by octet.

use super::{PASSWORD, PATIENCE, Process};
use base64::Engine as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub struct Client {
    stream: Stream,
    unread: Vec<u8>,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Changing,
}

/// Certificate of a client and its key, in PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// Returns the TLS settings of a client that trusts this certificate, and shows its own, if it has one.
pub fn client_config(certificate: &Path, identity: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    Arc::new(match identity {
        None => config.with_no_client_auth(),
        Some(Identity { certificate, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

/// Returns the command AUTH PLAIN with this login.
pub fn auth_plain(user: &str, password: &str) -> String {
    let response = base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{password}"));
    format!("AUTH PLAIN {response}")
}

impl Client {
    /// Connects and reads the greeting.
    pub fn connect(address: SocketAddr) -> Self {
        let mut client = Self::connect_silently(address);
        client.expect("220");
        client
    }

    /// Connects and reads nothing.
    pub fn connect_silently(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: Stream::Plain(stream), unread: Vec::new() }
    }

    /// Connects from the address `source` of this machine, and reads the greeting.
    pub fn connect_from(source: Ipv4Addr, address: SocketAddr) -> Self {
        let mut client = Self::try_connect_from(source, address).unwrap();
        client.expect("220");
        client
    }

    /// Connects from the address `source` of this machine, and reads nothing.
    pub fn try_connect_from(source: Ipv4Addr, address: SocketAddr) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((source, 0)).into())?;
        socket.connect(&address.into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: Stream::Plain(stream), unread: Vec::new() })
    }

    /// Connects and says EHLO.
    pub fn greeted(address: SocketAddr) -> Self {
        let mut client = Self::connect(address);
        client.say("EHLO client.example", "250");
        client
    }

    /// Connects to the listener `s` and says EHLO.
    pub fn greeted_by(weir: &Process) -> Self {
        Self::greeted(weir.address("s"))
    }

    /// Connects to the listener `s`, says EHLO, and begins a transaction.
    pub fn in_transaction(weir: &Process) -> Self {
        let mut client = Self::greeted_by(weir);
        client.begin_transaction();
        client
    }

    /// Connects, says EHLO and logs in as `user` in plain text.
    pub fn logged_in(address: SocketAddr, user: &str) -> Self {
        let mut client = Self::greeted(address);
        client.log_in(user, PASSWORD);
        client
    }

    /// Sends MAIL and RCPT, which must be accepted.
    pub fn begin_transaction(&mut self) {
        self.say("MAIL FROM:<a@example.org>", "250");
        self.say("RCPT TO:<b@example.net>", "250");
    }

    /// Sends a message. Returns the reply to RCPT if this reply is not 250, otherwise the reply to the message.
    pub fn try_message(&mut self) -> String {
        self.say("MAIL FROM:<a@example.org>", "250");
        let reply = self.ask("RCPT TO:<b@example.net>");
        if !reply.starts_with("250") {
            return reply;
        }
        self.say("DATA", "354");
        self.ask("hello\r\n.")
    }

    /// Says EHLO and sends a message, which must be accepted.
    pub fn send_message(&mut self) {
        for (line, reply) in [
            ("EHLO client.example", "250"),
            ("MAIL FROM:<a@example.org>", "250"),
            ("RCPT TO:<b@example.net>", "250"),
            ("DATA", "354"),
            ("hello\r\n.", "250"),
        ] {
            self.say(line, reply);
        }
    }

    pub fn log_in(&mut self, user: &str, password: &str) {
        let reply = self.try_log_in(user, password);
        assert!(reply.starts_with("235"), "{user}: {reply}");
    }

    /// Sends AUTH PLAIN; returns the reply.
    pub fn try_log_in(&mut self, user: &str, password: &str) -> String {
        self.ask(&auth_plain(user, password))
    }

    /// Makes the connection end with a TCP reset when the client is dropped.
    pub fn reset_when_dropped(&mut self) {
        if let Stream::Plain(stream) = &self.stream {
            socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Stream::Changing => unreachable!(),
        }
    }

    /// Sends a line; returns the whole reply.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes());
        self.reply()
    }

    /// Sends a line; returns the whole reply, or an error if the connection has ended.
    pub fn try_ask(&mut self, line: &str) -> std::io::Result<String> {
        self.try_send(format!("{line}\r\n").as_bytes())?;
        self.try_reply()
    }

    /// Sends a line and expects a reply with this beginning.
    pub fn say(&mut self, line: &str, reply: &str) -> String {
        let got = self.ask(line);
        assert!(got.starts_with(reply), "{line}: expected {reply}, got {got}");
        got
    }

    /// Expects a reply with this beginning.
    pub fn expect(&mut self, reply: &str) -> String {
        let got = self.reply();
        assert!(got.starts_with(reply), "expected {reply}, got {got}");
        got
    }

    /// Reads a reply; returns its lines joined by line feeds.
    pub fn reply(&mut self) -> String {
        self.try_reply().expect("a reply")
    }

    /// Reads a reply. Returns an error if the connection has ended, or if no reply arrived in time.
    pub fn try_reply(&mut self) -> std::io::Result<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.line()?;
            let last = line.as_bytes().get(3) != Some(&b'-');
            lines.push(line);
            if last {
                return Ok(lines.join("\n"));
            }
        }
    }

    /// Returns true if no octet arrives within this time.
    pub fn is_silent(&mut self, time: Duration) -> bool {
        let Stream::Plain(stream) = &self.stream else { panic!("only for plain text") };
        stream.set_read_timeout(Some(time)).unwrap();
        let heard = stream.peek(&mut [0]);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        heard.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Closes the connection for sending. The client can still read.
    pub fn close_its_side(&self) {
        let Stream::Plain(stream) = &self.stream else { panic!("TLS has words of its own for that") };
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Returns true if the server closes the connection before it sends a further line.
    pub fn is_closed(&mut self) -> bool {
        self.line().is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
    }

    /// Performs the TLS handshake. The client trusts this certificate.
    pub fn secure(&mut self, certificate: &Path) {
        self.secure_as(certificate, None);
    }

    /// Performs the TLS handshake. The client trusts this certificate, and shows its own, if it has one.
    pub fn secure_as(&mut self, certificate: &Path, identity: Option<&Identity>) {
        self.secure_with(&client_config(certificate, identity));
    }

    /// Performs the TLS handshake. Clients with the same configuration resume their sessions.
    pub fn secure_with(&mut self, config: &Arc<ClientConfig>) {
        let Stream::Plain(tcp) = std::mem::replace(&mut self.stream, Stream::Changing) else { panic!("TLS twice") };
        let connection = ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
        let mut stream = StreamOwned::new(connection, tcp);
        stream.conn.complete_io(&mut stream.sock).unwrap();
        self.stream = Stream::Tls(Box::new(stream));
    }

    /// Returns whether the TLS session is that of an earlier connection.
    pub fn is_resumed(&self) -> bool {
        let Stream::Tls(stream) = &self.stream else { panic!("only for TLS") };
        stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn line(&mut self) -> std::io::Result<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            let mut space = [0; 4096];
            let read = match &mut self.stream {
                Stream::Plain(stream) => stream.read(&mut space)?,
                Stream::Tls(stream) => stream.read(&mut space)?,
                Stream::Changing => unreachable!(),
            };
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.extend_from_slice(&space[..read]);
        }
    }
}
