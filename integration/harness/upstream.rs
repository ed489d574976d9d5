//! Upstream that fails at a chosen stage, and keeps the messages that it has acknowledged.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Greeting,
    Ehlo,
    StartTls,
    Rset,
    Xforward,
    Mail,
    Rcpt,
    Data,
    /// After the first line of the message.
    Body,
    /// After the final dot.
    End,
}

/// Fault at a stage, instead of the right reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Closes the connection.
    Cut,
    /// Sends no reply. The connection stays open until [`Upstream::cut_silent`], or until the client closes it.
    Silence,
    /// Sends this reply.
    Say(&'static str),
    /// Sends this reply and closes the connection.
    SayAndClose(&'static str),
    /// Ends the connection with a TCP reset.
    Reset,
    /// Sends a text that is no valid reply.
    Garbage,
}

const GARBAGE: [&str; 10] = [
    "what?",
    "25",
    "2500 ok",
    "250-one\r\n451 other",
    "999 beyond",
    " 250 ok",
    "\u{0}\u{1}\u{fffd}",
    "",
    "250-never ends",
    "\u{16}\u{3}\u{1}",
];

#[derive(Default)]
struct Shared {
    fault: Option<(Stage, Fault)>,
    /// The fault happens at random: on average once in this number of replies at the stage.
    odds: u64,
    /// Number of replies at the stage before the fault can happen.
    spared: u64,
    random: u64,
    /// Extensions in the reply to EHLO.
    offers: Vec<&'static str>,
    /// Replies to AUTH and to the client's next lines. The upstream reads a next line only after the reply 334.
    login: Vec<&'static str>,
    acknowledged: Vec<Vec<u8>>,
    /// Octets of the messages whose connection ended before the final dot.
    unfinished: Vec<Vec<u8>>,
    commands: Vec<String>,
    connections: usize,
    /// Connections: the maximum that is served at the same time (0: no maximum), the number served now, and the number
    /// refused.
    max_served: usize,
    served: usize,
    refused: usize,
    held: Vec<TcpStream>,
    /// Open connections, by their number.
    open: HashMap<usize, TcpStream>,
}

pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl Upstream {
    pub fn start() -> Self {
        Self::start_on("127.0.0.1:0")
    }

    /// Starts the upstream on an address of this machine.
    pub fn start_on(address: &str) -> Self {
        Self::start_with(TcpListener::bind(address).unwrap())
    }

    /// Starts an upstream on each of these addresses of this machine, all on the same port. Returns the upstreams and
    /// the port.
    pub fn start_at_one_port<const COUNT: usize>(hosts: [&str; COUNT]) -> ([Self; COUNT], u16) {
        loop {
            let mut port = 0;
            // If the port of the first upstream is in use at another address, try another port.
            let listeners: Vec<TcpListener> = hosts
                .iter()
                .map_while(|host| {
                    let listener = TcpListener::bind((*host, port)).ok()?;
                    port = listener.local_addr().ok()?.port();
                    Some(listener)
                })
                .collect();
            if let Ok(listeners) = <[TcpListener; COUNT]>::try_from(listeners) {
                return (listeners.map(Self::start_with), port);
            }
        }
    }

    fn start_with(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let shared =
            Shared { offers: vec!["PIPELINING", "8BITMIME"], random: 0x9E37_79B9_7F4A_7C15, ..Shared::default() };
        let shared = Arc::new(Mutex::new(shared));
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = accepting.clone();
                stream.set_nodelay(true).unwrap();
                let (number, is_served) = {
                    let mut shared = shared.lock().unwrap();
                    shared.connections += 1;
                    let number = shared.connections;
                    shared.open.insert(number, stream.try_clone().unwrap());
                    let is_served = shared.max_served == 0 || shared.served < shared.max_served;
                    *(if is_served { &mut shared.served } else { &mut shared.refused }) += 1;
                    (number, is_served)
                };
                std::thread::spawn(move || {
                    match is_served {
                        true => converse(stream, &shared),
                        false => say(&mut { stream }, "421 4.7.0 Too many connections from your address"),
                    };
                    let mut shared = shared.lock().unwrap();
                    shared.served -= usize::from(is_served);
                    shared.open.remove(&number);
                });
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn fail(&self, fault: Option<(Stage, Fault)>) {
        let mut shared = self.shared.lock().unwrap();
        (shared.fault, shared.odds, shared.spared) = (fault, 1, 0);
    }

    /// Makes the upstream fail at this stage after this number of right replies at the stage.
    pub fn fail_after(&self, replies: u64, stage: Stage, fault: Fault) {
        let mut shared = self.shared.lock().unwrap();
        (shared.fault, shared.odds, shared.spared) = (Some((stage, fault)), 1, replies);
    }

    /// Makes the upstream fail at this stage at random, on average once in `odds` times.
    pub fn fail_once_in(&self, odds: u64, stage: Stage, fault: Fault) {
        let mut shared = self.shared.lock().unwrap();
        (shared.fault, shared.odds, shared.spared) = (Some((stage, fault)), odds, 0);
    }

    /// Sets the extensions in the reply to EHLO.
    pub fn offer(&self, extensions: &[&'static str]) {
        self.shared.lock().unwrap().offers = extensions.to_vec();
    }

    /// Sets the replies to AUTH and to the client's next lines. Without these replies, the upstream answers AUTH with
    /// 250, which does not mean success (RFC 4954 §6).
    pub fn answer_login(&self, replies: &[&'static str]) {
        self.shared.lock().unwrap().login = replies.to_vec();
    }

    /// Returns the acknowledged messages, still with stuffed dots.
    pub fn acknowledged(&self) -> Vec<Vec<u8>> {
        self.shared.lock().unwrap().acknowledged.clone()
    }

    /// Returns the octets of each message whose connection ended before the final dot.
    pub fn unfinished(&self) -> Vec<Vec<u8>> {
        self.shared.lock().unwrap().unfinished.clone()
    }

    pub fn forget(&self) {
        self.shared.lock().unwrap().acknowledged.clear();
    }

    pub fn commands(&self) -> Vec<String> {
        self.shared.lock().unwrap().commands.clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.lock().unwrap().connections
    }

    /// From now on, serves at most `connections` connections at the same time, and refuses further connections with
    /// 421.
    pub fn serve_at_most(&self, connections: usize) {
        self.shared.lock().unwrap().max_served = connections;
    }

    /// Returns the number of connections that were refused above the maximum.
    pub fn refused(&self) -> usize {
        self.shared.lock().unwrap().refused
    }

    /// Closes all connections.
    pub fn cut_all(&self) {
        for (_, stream) in self.shared.lock().unwrap().open.drain() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes the connections on which the upstream is silent.
    pub fn cut_silent(&self) {
        self.shared.lock().unwrap().held.clear();
    }
}

impl Shared {
    fn random(&mut self, below: u64) -> u64 {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Returns the fault at this stage, if it happens now.
    fn fault_at(&mut self, stage: Stage) -> Option<Fault> {
        let (_, fault) = self.fault.filter(|(at, _)| *at == stage)?;
        if self.spared > 0 {
            self.spared -= 1;
            return None;
        }
        let garbage = GARBAGE[self.random(GARBAGE.len() as u64) as usize];
        let fault = match fault {
            Fault::Garbage if garbage.starts_with("250-") => Fault::SayAndClose(garbage),
            Fault::Garbage => Fault::Say(garbage),
            fault => fault,
        };
        (self.random(self.odds) == 0).then_some(fault)
    }
}

/// Sends the reply to one command: the right reply, or the reply of the fault. Returns true if it was the right reply,
/// and `None` if the connection has ended.
fn answer(stage: Stage, right: &str, stream: &mut TcpStream, shared: &Mutex<Shared>) -> Option<bool> {
    let fault = shared.lock().unwrap().fault_at(stage);
    answer_with(fault, right, stream, shared)
}

fn answer_with(fault: Option<Fault>, right: &str, stream: &mut TcpStream, shared: &Mutex<Shared>) -> Option<bool> {
    let (text, goes_on) = match fault {
        None => (right, true),
        Some(Fault::Say(text)) => (text, true),
        Some(Fault::SayAndClose(text)) => (text, false),
        Some(Fault::Cut) => return None,
        Some(Fault::Reset) => {
            let _ = socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
            return None;
        }
        Some(Fault::Silence) => {
            // Only this copy keeps the connection open, until the test closes it.
            shared.lock().unwrap().held.push(stream.try_clone().unwrap());
            return None;
        }
        Some(Fault::Garbage) => unreachable!(),
    };
    say(stream, text)?;
    goes_on.then_some(fault.is_none())
}

fn say(stream: &mut TcpStream, text: &str) -> Option<()> {
    stream.write_all(format!("{text}\r\n").as_bytes()).ok()
}

fn converse(mut stream: TcpStream, shared: &Mutex<Shared>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    answer(Stage::Greeting, "220 upstream", &mut stream, shared)?;
    let mut mail = false;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        shared.lock().unwrap().commands.push(line.trim_end().to_owned());
        let verb: String = line.chars().take(4).collect();
        match verb.to_ascii_uppercase().as_str() {
            "EHLO" | "HELO" => {
                let offers: String =
                    shared.lock().unwrap().offers.iter().map(|line| format!("250-{line}\r\n")).collect();
                answer(Stage::Ehlo, &format!("250-upstream\r\n{offers}250 HELP"), &mut stream, shared)
            }
            "STAR" => answer(Stage::StartTls, "220 2.0.0 Go on", &mut stream, shared),
            "XFOR" => answer(Stage::Xforward, "250 2.0.0 Ok", &mut stream, shared),
            "MAIL" => {
                mail = answer(Stage::Mail, "250 2.1.0 Ok", &mut stream, shared)?;
                Some(mail)
            }
            "RCPT" | "DATA" if !mail => say(&mut stream, "503 5.5.1 Say MAIL first").map(|()| false),
            "RCPT" => answer(Stage::Rcpt, "250 2.1.5 Ok", &mut stream, shared),
            "DATA" => match answer(Stage::Data, "354 Go on", &mut stream, shared)? {
                true => receive(&mut lines, &mut stream, shared),
                false => Some(false),
            },
            "RSET" => answer(Stage::Rset, "250 2.0.0 Ok", &mut stream, shared),
            "AUTH" if !shared.lock().unwrap().login.is_empty() => log_in(&mut lines, &mut stream, shared),
            "QUIT" => {
                say(&mut stream, "221 2.0.0 Bye");
                return None;
            }
            _ => say(&mut stream, "250 2.0.0 Ok").map(|()| true),
        }?;
    }
}

fn log_in(lines: &mut BufReader<TcpStream>, stream: &mut TcpStream, shared: &Mutex<Shared>) -> Option<bool> {
    let replies = shared.lock().unwrap().login.clone();
    for reply in replies {
        say(stream, reply)?;
        if !reply.starts_with("334") {
            return Some(true);
        }
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        shared.lock().unwrap().commands.push(line.trim_end().to_owned());
    }
    None
}

fn receive(lines: &mut BufReader<TcpStream>, stream: &mut TcpStream, shared: &Mutex<Shared>) -> Option<bool> {
    let mut message = Vec::new();
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            shared.lock().unwrap().unfinished.push(message);
            return None;
        }
        if line == b".\r\n" {
            break;
        }
        message.extend_from_slice(&line);
        let fault = shared.lock().unwrap().fault_at(Stage::Body);
        if fault.is_some() {
            answer_with(fault, "", stream, shared)?;
            // A reply in the middle of a message cannot mean that the message is accepted.
            return None;
        }
    }
    let fault = {
        // Store the message before the reply is sent, because a test that has read the reply must find the message.
        let mut shared = shared.lock().unwrap();
        let fault = shared.fault_at(Stage::End);
        if fault.is_none_or(is_positive) {
            shared.acknowledged.push(message);
        }
        fault
    };
    answer_with(fault, "250 2.0.0 Queued", stream, shared)
}

fn is_positive(fault: Fault) -> bool {
    let is_reply = |text: &str| text.starts_with('2') && text.get(3..4) == Some(" ");
    matches!(fault, Fault::Say(text) | Fault::SayAndClose(text) if is_reply(text))
}
