//! Connection to Dovecot's socket `auth-client`: one request at a time.

use super::protocol::{self, Failure, Line, MAX_LINE, Malformed, Peer};
use crate::groups::Groups;
use crate::smtp::mechanism::{Mechanism, Mechanisms};
use crate::smtp::sasl::Response;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Address of Dovecot's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// Maximum time to connect, with the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for a reply. Dovecot delays the reply to a failed login by 2 seconds, and PAM by some seconds more.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time to send a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum lines of a handshake.
const MAX_HANDSHAKE: usize = 100;

/// Reason why Dovecot does not answer.
#[derive(Debug)]
pub enum DovecotError {
    Unreachable(std::io::Error),
    Timeout,
    Closed,
    Io(std::io::Error),
    /// Dovecot's protocol has this other major version.
    Version(String),
    Malformed(&'static str),
    /// Dovecot no longer has the mechanism of the login.
    Mechanism,
    /// Dovecot reports that it cannot check the login now.
    Temporary,
}

/// Dovecot's answer to a message of the client.
pub enum Answer {
    Challenge(Vec<u8>),
    Right { user: Arc<str>, groups: Groups, last: Option<Vec<u8>> },
    Failed(Failure),
}

/// A connection after the handshake.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    mechanisms: Mechanisms,
    /// Id of the last request.
    id: u32,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection {
    pub async fn open(address: &Address) -> Result<Self, DovecotError> {
        timeout(CONNECT_TIMEOUT, Self::connect(address)).await.unwrap_or(Err(DovecotError::Timeout))
    }

    async fn connect(address: &Address) -> Result<Self, DovecotError> {
        let stream: Box<dyn Stream> = match address {
            Address::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(DovecotError::Unreachable)?),
            Address::Tcp { host, port } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(DovecotError::Unreachable)?;
                let _ = tcp.set_nodelay(true);
                Box::new(tcp)
            }
        };
        let mut this = Self { stream: BufReader::new(stream), mechanisms: Mechanisms::default(), id: 0 };
        this.send(&protocol::handshake(std::process::id())).await?;
        this.read_handshake().await?;
        Ok(this)
    }

    async fn read_handshake(&mut self) -> Result<(), DovecotError> {
        let mut mechanisms = Vec::new();
        for n in 0..MAX_HANDSHAKE {
            match self.read_line().await? {
                Line::Version { major } if &*major == "1" => {}
                Line::Version { major } => return Err(DovecotError::Version(major.escape_debug().take(20).collect())),
                _ if n == 0 => return Err(DovecotError::Malformed("it does not begin with its version")),
                Line::Mechanism(mechanism) => mechanisms.push(mechanism),
                Line::Done => {
                    self.mechanisms = Mechanisms::new(mechanisms);
                    return Ok(());
                }
                Line::Other => {}
                Line::Continue { .. } | Line::Ok { .. } | Line::Fail { .. } => {
                    return Err(DovecotError::Malformed("it answers before it is asked"));
                }
            }
        }
        Err(DovecotError::Malformed("its handshake has no end"))
    }

    /// Returns the mechanisms that Dovecot offers, without those that Weir must not offer.
    pub fn mechanisms(&self) -> &Mechanisms {
        &self.mechanisms
    }

    /// Begins a request with the client's first message, if there is one.
    pub async fn begin(
        &mut self,
        mechanism: &Mechanism,
        peer: &Peer<'_>,
        response: Option<&Response>,
    ) -> Result<Answer, DovecotError> {
        if self.mechanisms.find(mechanism.name()).is_none() {
            return Err(DovecotError::Mechanism);
        }
        self.id = self.id.wrapping_add(1);
        let line = protocol::auth(self.id, mechanism, peer, response);
        self.ask(line).await
    }

    /// Continues the request with the client's answer to a challenge.
    pub async fn advance(&mut self, response: &Response) -> Result<Answer, DovecotError> {
        self.ask(protocol::continuation(self.id, response)).await
    }

    /// Cancels the request, whose challenge the client does not answer. Dovecot does not reply.
    pub async fn cancel(&mut self) -> Result<(), DovecotError> {
        let line = protocol::cancellation(self.id);
        timeout(CANCEL_TIMEOUT, self.send(&line)).await.unwrap_or(Err(DovecotError::Timeout))
    }

    async fn ask(&mut self, line: Option<String>) -> Result<Answer, DovecotError> {
        // Dovecot would close the connection.
        let Some(line) = line else { return Ok(Answer::Failed(Failure::Wrong)) };
        let answer = async {
            self.send(&line).await?;
            self.read_answer().await
        };
        timeout(REPLY_TIMEOUT, answer).await.unwrap_or(Err(DovecotError::Timeout))
    }

    async fn read_answer(&mut self) -> Result<Answer, DovecotError> {
        loop {
            let (id, answer) = match self.read_line().await? {
                Line::Continue { id, challenge } => (id, Answer::Challenge(challenge)),
                Line::Ok { id, user, groups, last } => (id, Answer::Right { user, groups, last }),
                Line::Fail { id, failure } => (id, Answer::Failed(failure)),
                _ => continue,
            };
            return if id == self.id { Ok(answer) } else { Err(DovecotError::Malformed("it answers another request")) };
        }
    }

    async fn send(&mut self, text: &str) -> Result<(), DovecotError> {
        self.stream.write_all(text.as_bytes()).await.map_err(lost)
    }

    /// Reads a line of at most [`MAX_LINE`] octets.
    async fn read_line(&mut self) -> Result<Line, DovecotError> {
        let mut line = Vec::new();
        loop {
            let read = self.stream.fill_buf().await.map_err(lost)?;
            if read.is_empty() {
                return Err(DovecotError::Closed);
            }
            let end = memchr::memchr(b'\n', read);
            let (text, _) = read.split_at(end.unwrap_or(read.len()));
            line.extend_from_slice(text);
            let used = text.len() + usize::from(end.is_some());
            self.stream.consume(used);
            if line.len() > MAX_LINE {
                return Err(DovecotError::Malformed("a line is too long"));
            }
            if end.is_some() {
                return protocol::parse(&line).map_err(|Malformed(why)| DovecotError::Malformed(why));
            }
        }
    }
}

fn lost(error: std::io::Error) -> DovecotError {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => DovecotError::Closed,
        _ => DovecotError::Io(error),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl fmt::Display for DovecotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "it cannot be reached: {error}"),
            Self::Timeout => f.write_str("it does not answer"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Io(error) => write!(f, "the connection broke: {error}"),
            Self::Version(major) => write!(f, "its protocol has version {major}, and Weir speaks version 1"),
            Self::Malformed(why) => write!(f, "this is not Dovecot's protocol: {why}"),
            Self::Mechanism => f.write_str("it no longer has the mechanism of the login"),
            Self::Temporary => f.write_str("it reports a temporary failure; its own log says more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixListener;

    const HANDSHAKE: &str = "VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\tx\nDONE\n";

    fn peer() -> Peer<'static> {
        Peer { address: "192.0.2.7".parse().unwrap(), local: None, session: "s", is_encrypted: true }
    }

    /// Begins a login by PLAIN at a server that sends this text at once, and then closes the connection.
    async fn log_in(text: &[u8]) -> Result<Answer, DovecotError> {
        let folder = tempfile::tempdir().unwrap();
        let path: &Path = &folder.path().join("socket");
        let listener = UnixListener::bind(path).unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The client does not read all of an endless line.
            let _ = stream.write_all(text).await;
            let _ = stream.shutdown().await;
            let mut request = vec![0; 100];
            while !request.starts_with(b"AUTH") && stream.read(&mut request).await.is_ok_and(|count| count > 0) {}
        };
        let log_in = async {
            let mut connection = Connection::open(&Address::Unix(path.to_owned())).await?;
            let plain = Mechanism::new("PLAIN").unwrap();
            connection.begin(&plain, &peer(), Some(&Response(b"\0a\0b".to_vec()))).await
        };
        tokio::join!(serve, log_in).1
    }

    #[tokio::test]
    async fn what_is_not_dovecots_protocol_is_named() {
        let answer = |line: &str| format!("{HANDSHAKE}{line}").into_bytes();
        for (text, expected) in [
            (b"VERSION\t2\t0\nDONE\n".to_vec(), "its protocol has version 2, and Weir speaks version 1"),
            (b"+OK POP3 ready\n".to_vec(), "it does not begin with its version"),
            ("VERSION\t1\t0\n".repeat(101).into_bytes(), "its handshake has no end"),
            (vec![b'x'; MAX_LINE + 1], "a line is too long"),
            (b"VERSION\t1\t2\nMECH\tPL".to_vec(), "it closed the connection"),
            (b"VERSION\t1\t2\nMECH\tCRAM-MD5\nDONE\n".to_vec(), "it no longer has the mechanism"),
            (answer("OK\t2\tuser=a\n"), "it answers another request"),
            (answer("OK\t1\tuser=a b\n"), "a login has no valid user name"),
            (answer("CONT\t1\t?\n"), "a challenge is not base64"),
            (answer(""), "it closed the connection"),
        ] {
            let error = log_in(&text).await.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let gone = Connection::open(&Address::Unix("/no/such/socket".into())).await.err();
        assert!(matches!(gone, Some(DovecotError::Unreachable(_))));
    }

    #[tokio::test]
    async fn lines_that_weir_does_not_need_are_ignored() {
        let text = format!("{HANDSHAKE}NEW\tcommand\nOK\t1\tuser=a\n");
        assert!(matches!(log_in(text.as_bytes()).await, Ok(Answer::Right { .. })));
    }
}
