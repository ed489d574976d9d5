//! SMTP client of the benchmark: sequential sessions, and sessions that pipeline many recipients.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Recipients of each pipelined message.
const RECIPIENTS: usize = 50;

/// Timeout of each reply.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Times of a session.
#[derive(Clone, Copy)]
pub struct Latency {
    /// Time until the reply to RCPT.
    pub rcpt: Duration,
    /// Time from the connection to the reply to QUIT.
    pub session: Duration,
}

struct Client {
    stream: BufReader<TcpStream>,
    /// The reply to EHLO.
    capabilities: String,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut client = Self { stream: BufReader::new(stream), capabilities: String::new() };
        client.reply("220");
        client.capabilities = client.command("EHLO bench.example\r\n", "250");
        client
    }

    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Reads a reply, which must have this code. Returns all its lines.
    fn reply(&mut self, code: &str) -> String {
        let mut reply = String::new();
        loop {
            let begin = reply.len();
            let octets = self.stream.read_line(&mut reply).unwrap();
            assert!(octets > 0 && reply[begin..].starts_with(code), "{code} expected, but received: {reply:?}");
            if reply.as_bytes().get(begin + 3) != Some(&b'-') {
                return reply;
            }
        }
    }

    fn command(&mut self, text: &str, code: &str) -> String {
        self.send(text);
        self.reply(code)
    }
}

/// Returns a message of 2 kB with its final dot.
fn message() -> String {
    format!("Subject: benchmark\r\n\r\n{}.\r\n", format!("{}\r\n", "x".repeat(76)).repeat(25))
}

pub fn announces_pipelining(address: SocketAddr) -> bool {
    Client::connect(address).capabilities.contains("PIPELINING")
}

/// Sends one message in one session, and waits for each reply.
pub fn session(address: SocketAddr) -> Latency {
    let message = message();
    let began = Instant::now();
    let mut client = Client::connect(address);
    client.command("MAIL FROM:<a@bench.example>\r\n", "250");
    let asked = Instant::now();
    client.command("RCPT TO:<b@dest.example>\r\n", "250");
    let rcpt = asked.elapsed();
    client.command("DATA\r\n", "354");
    client.command(&message, "250");
    client.command("QUIT\r\n", "221");
    Latency { rcpt, session: began.elapsed() }
}

/// Sends messages in one session. MAIL, all RCPT and DATA of a message are pipelined in one write.
pub fn pipeline(address: SocketAddr, messages: usize) {
    let mut client = Client::connect(address);
    let recipients: String = (0..RECIPIENTS).map(|n| format!("RCPT TO:<{n}b@dest.example>\r\n")).collect();
    let envelope = format!("MAIL FROM:<a@bench.example>\r\n{recipients}DATA\r\n");
    let message = message();
    for _ in 0..messages {
        client.send(&envelope);
        for _ in 0..=RECIPIENTS {
            client.reply("250");
        }
        client.reply("354");
        client.command(&message, "250");
    }
    client.command("QUIT\r\n", "221");
}
