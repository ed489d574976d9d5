//! Honest client on 127.0.0.1: one thread logs in repeatedly, another thread sends one message after the other.

use super::client;
use super::harness::{PASSWORD, Site};
use base64::Engine as _;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Error, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Timeout of each step: ten times the bound of a login.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause between two logins. At five logins a second, no password check waits for the previous check.
const BETWEEN_LOGINS: Duration = Duration::from_millis(200);

/// Pause between two messages, so that the machine is not busy before the attack.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(5);

/// Messages per session.
const MESSAGES_OF_A_SESSION: u32 = 100;

/// Durations of all attempts of one kind, sorted. `None` is a failure and sorts last.
#[derive(Default)]
pub struct Times(Vec<Option<Duration>>);

/// Results of the honest client in one phase.
#[derive(Default)]
pub struct Seen {
    pub logins: Times,
    pub messages: Times,
    /// Text of the last failure.
    pub failure: Option<String>,
}

impl Times {
    fn new(mut times: Vec<Option<Duration>>) -> Self {
        times.sort_by_key(|time| time.unwrap_or(Duration::MAX));
        Self(times)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn failures(&self) -> usize {
        self.0.iter().filter(|time| time.is_none()).count()
    }

    /// Returns a percentile: the duration that this share of the attempts did not exceed. Returns `None` if the attempt
    /// with this duration failed, or if there was no attempt.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let at = ((self.0.len() as f64 * share) as usize).min(self.0.len().checked_sub(1)?);
        self.0[at]
    }

    pub fn max(&self) -> Option<Duration> {
        self.percentile(1.0)
    }
}

/// Access of the client to Weir.
#[derive(Clone)]
pub struct Honest {
    address: SocketAddr,
    trust: Arc<ClientConfig>,
    /// Users that log in, one after the other; the list is repeated.
    users: Arc<[String]>,
    /// Number of logins so far.
    next: Arc<AtomicUsize>,
}

impl Honest {
    pub fn new(site: &Site, address: SocketAddr, users: Vec<String>) -> Self {
        Self { address, trust: client::trust(site), users: users.into(), next: Arc::default() }
    }

    fn next_user(&self) -> &str {
        &self.users[self.next.fetch_add(1, Ordering::Relaxed) % self.users.len()]
    }

    /// Logs in and sends messages, each in its own thread, until `ended` is set. Both threads finish their current
    /// step.
    pub fn run(&self, ended: &AtomicBool) -> Seen {
        std::thread::scope(|scope| {
            let logins = scope.spawn(|| self.log_in_repeatedly(ended));
            let (messages, failed) = self.send_repeatedly(ended);
            let (logins, login_failed) = logins.join().unwrap();
            Seen { logins: Times::new(logins), messages: Times::new(messages), failure: failed.or(login_failed) }
        })
    }

    fn log_in_repeatedly(&self, ended: &AtomicBool) -> (Vec<Option<Duration>>, Option<String>) {
        let (mut times, mut failure) = (Vec::new(), None);
        while !ended.load(Ordering::Relaxed) {
            let began = Instant::now();
            match Session::log_in(self, self.next_user()) {
                Ok(mut session) => {
                    times.push(Some(began.elapsed()));
                    let _ = session.say("QUIT", "221");
                }
                Err(error) => {
                    times.push(None);
                    failure = Some(format!("login: {}", words(&error)));
                }
            }
            std::thread::sleep(BETWEEN_LOGINS);
        }
        (times, failure)
    }

    /// Sends messages. A session that fails, or cannot be opened, counts as one failed message.
    fn send_repeatedly(&self, ended: &AtomicBool) -> (Vec<Option<Duration>>, Option<String>) {
        let (mut times, mut failure) = (Vec::new(), None);
        while !ended.load(Ordering::Relaxed) {
            if let Err(error) = self.send_in_one_session(ended, &mut times) {
                times.push(None);
                failure = Some(format!("message: {}", words(&error)));
                std::thread::sleep(BETWEEN_LOGINS);
            }
        }
        (times, failure)
    }

    fn send_in_one_session(&self, ended: &AtomicBool, times: &mut Vec<Option<Duration>>) -> Result<(), Error> {
        let mut session = Session::log_in(self, "alice")?;
        for _ in 0..MESSAGES_OF_A_SESSION {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let began = Instant::now();
            session.send_message()?;
            times.push(Some(began.elapsed()));
            std::thread::sleep(BETWEEN_MESSAGES);
        }
        session.say("QUIT", "221")
    }
}

fn words(error: &Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => format!("no answer after {PATIENCE:?}"),
        _ => error.to_string(),
    }
}

/// A session within TLS, after a login. Its methods return errors and do not panic, because errors under attack are
/// counted.
struct Session {
    stream: StreamOwned<ClientConnection, TcpStream>,
    unread: Vec<u8>,
}

impl Session {
    /// Connects, does STARTTLS, and logs in.
    fn log_in(honest: &Honest, user: &str) -> Result<Self, Error> {
        let tcp = TcpStream::connect_timeout(&honest.address, PATIENCE)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        tcp.set_nodelay(true)?;
        let connection = ClientConnection::new(honest.trust.clone(), client::name()).map_err(Error::other)?;
        let mut session = Self { stream: StreamOwned::new(connection, tcp), unread: Vec::new() };
        session.expect("220", Self::read_plain)?;
        for (line, code) in [("EHLO honest.example\r\n", "250"), ("STARTTLS\r\n", "220")] {
            session.stream.sock.write_all(line.as_bytes())?;
            session.expect(code, Self::read_plain)?;
        }
        session.say("EHLO honest.example", "250")?;
        let response = base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{PASSWORD}"));
        session.say(&format!("AUTH PLAIN {response}"), "235")?;
        Ok(session)
    }

    fn send_message(&mut self) -> Result<(), Error> {
        self.say("MAIL FROM:<alice@example.org>", "250")?;
        self.say("RCPT TO:<bob@example.net>", "250")?;
        self.say("DATA", "354")?;
        let text = "Sixty-two octets of text, as in most lines that people write.\r\n".repeat(32);
        self.say(&format!("Subject: a message\r\n\r\n{text}."), "250")
    }

    fn say(&mut self, line: &str, code: &str) -> Result<(), Error> {
        self.stream.write_all(format!("{line}\r\n").as_bytes())?;
        self.expect(code, Self::read_tls)
    }

    /// Reads a reply, whose first line must begin with `code`.
    fn expect(&mut self, code: &str, read: fn(&mut Self, &mut [u8]) -> Result<usize, Error>) -> Result<(), Error> {
        loop {
            if let Some(end) = self.unread.iter().position(|octet| *octet == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                if !line.starts_with(code.as_bytes()) {
                    return Err(Error::other(String::from_utf8_lossy(&line).trim().to_owned()));
                }
                if line.get(3) != Some(&b'-') {
                    return Ok(());
                }
                continue;
            }
            let mut space = [0; 4096];
            let octets = read(self, &mut space)?;
            if octets == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.extend_from_slice(&space[..octets]);
        }
    }

    fn read_plain(&mut self, space: &mut [u8]) -> Result<usize, Error> {
        self.stream.sock.read(space)
    }

    fn read_tls(&mut self, space: &mut [u8]) -> Result<usize, Error> {
        self.stream.read(space)
    }
}
