//! An upstream that fails at the stage it is told to, and keeps what it has acknowledged.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Greeting,
    Ehlo,
    Xforward,
    Mail,
    Rcpt,
    Data,
    /// After the first line of the message.
    Body,
    /// After the final dot.
    End,
}

/// What happens at a stage instead of the right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is cut.
    Cut,
    /// Nothing is said, until the client closes.
    Silence,
    /// This is said.
    Say(&'static str),
    /// This is said, and the connection is closed.
    SayAndClose(&'static str),
}

#[derive(Default)]
struct Shared {
    fault: Option<(Stage, Fault)>,
    /// What EHLO announces.
    offers: Vec<&'static str>,
    acknowledged: Vec<Vec<u8>>,
    commands: Vec<String>,
    connections: usize,
    held: Vec<TcpStream>,
}

pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl Upstream {
    pub fn start() -> Self {
        Self::start_on("127.0.0.1:0")
    }

    /// Starts it on an address of this machine.
    pub fn start_on(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared { offers: vec!["PIPELINING", "8BITMIME"], ..Shared::default() };
        let shared = Arc::new(Mutex::new(shared));
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = accepting.clone();
                shared.lock().unwrap().connections += 1;
                std::thread::spawn(move || converse(stream, &shared));
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn fail(&self, fault: Option<(Stage, Fault)>) {
        self.shared.lock().unwrap().fault = fault;
    }

    /// What it offers from now on.
    pub fn offer(&self, extensions: &[&'static str]) {
        self.shared.lock().unwrap().offers = extensions.to_vec();
    }

    /// Messages that were acknowledged, dots still stuffed.
    pub fn acknowledged(&self) -> Vec<Vec<u8>> {
        self.shared.lock().unwrap().acknowledged.clone()
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

    /// Cuts the connections on which it was silent.
    pub fn cut_silent(&self) {
        self.shared.lock().unwrap().held.clear();
    }
}

/// The answer to one command: the right one, or the fault's. `None`: the connection is over.
fn answer(stage: Stage, right: &str, stream: &mut TcpStream, shared: &Mutex<Shared>) -> Option<bool> {
    let fault = shared.lock().unwrap().fault.filter(|(at, _)| *at == stage).map(|(_, fault)| fault);
    let (text, goes_on) = match fault {
        None => (right, true),
        Some(Fault::Say(text)) => (text, true),
        Some(Fault::SayAndClose(text)) => (text, false),
        Some(Fault::Cut) => return None,
        Some(Fault::Silence) => {
            // The shared copy alone keeps the connection open.
            shared.lock().unwrap().held.push(stream.try_clone().unwrap());
            return None;
        }
    };
    say(stream, text)?;
    goes_on.then_some(fault.is_none())
}

/// In one piece: two small writes in a row wait for an acknowledgement in between.
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
            "QUIT" => {
                say(&mut stream, "221 2.0.0 Bye");
                return None;
            }
            _ => say(&mut stream, "250 2.0.0 Ok").map(|()| true),
        }?;
    }
}

fn receive(lines: &mut BufReader<TcpStream>, stream: &mut TcpStream, shared: &Mutex<Shared>) -> Option<bool> {
    let mut message = Vec::new();
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        if line == b".\r\n" {
            break;
        }
        message.extend_from_slice(&line);
        let fault = shared.lock().unwrap().fault;
        if fault.is_some_and(|(stage, _)| stage == Stage::Body) {
            answer(Stage::Body, "", stream, shared)?;
        }
    }
    {
        // Known to the test before the client can hear of it.
        let mut shared = shared.lock().unwrap();
        if shared.fault.is_none_or(|(stage, fault)| stage != Stage::End || is_positive(fault)) {
            shared.acknowledged.push(message);
        }
    }
    answer(Stage::End, "250 2.0.0 Queued", stream, shared)
}

fn is_positive(fault: Fault) -> bool {
    matches!(fault, Fault::Say(text) | Fault::SayAndClose(text) if text.starts_with('2'))
}
