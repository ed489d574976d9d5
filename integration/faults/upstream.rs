//! Upstreams that fail at random at every stage. One common record contains the accepted messages of all upstreams.
//!
//! An upstream has accepted a message when it writes the reply 250 to the final dot. It adds the message to the record
//! before it writes this reply.

use super::message::{Token, token_in};
use super::random::Random;
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Greeting,
    Ehlo,
    Rset,
    Mail,
    Rcpt,
    Data,
    /// In the middle of the message.
    Body,
    /// After the final dot, instead of the reply.
    End,
    /// After the reply to the final dot.
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Close,
    Reset,
    Silence,
    Refuse4,
    Refuse5,
    /// Replies 421 and closes the connection.
    ShutDown,
    Garbage,
    /// Sends the beginning of the right reply, and closes the connection.
    Partial,
    /// Sends a reply that belongs to no command.
    Extra,
}

/// Faults of each stage, and their frequency: cases in a thousand.
const FAULTS: [(Stage, u64, &[Fault]); 9] = {
    use Fault::{Close, Extra, Garbage, Partial, Refuse4, Refuse5, Reset, ShutDown, Silence};
    const REPLY: &[Fault] = &[Close, Reset, Silence, Refuse4, Refuse5, ShutDown, Garbage, Partial];
    [
        (Stage::Greeting, 100, REPLY),
        (Stage::Ehlo, 80, REPLY),
        (Stage::Rset, 80, REPLY),
        (Stage::Mail, 100, REPLY),
        (Stage::Rcpt, 60, REPLY),
        (Stage::Data, 90, REPLY),
        (Stage::Body, 100, &[Close, Reset, Silence, Refuse4, ShutDown, Garbage]),
        (Stage::End, 300, REPLY),
        (Stage::After, 200, &[Close, Reset, ShutDown, Extra]),
    ]
};

const GARBAGE: [&str; 10] = [
    "what?\r\n",
    "25\r\n",
    "2500 ok\r\n",
    "250-one\r\n451 other\r\n",
    "999 beyond\r\n",
    " 250 ok\r\n",
    "\u{0}\u{1}\u{fffd}\r\n",
    "\r\n",
    "250-never ends\r\n",
    "\u{16}\u{3}\u{1}\r\n",
];

/// Maximum time for which a silent upstream waits until Weir closes the connection. It is longer than any timeout of
/// the configuration.
const MAX_SILENCE: Duration = Duration::from_secs(8);

/// A message that was accepted.
pub struct Accepted {
    pub token: Option<Token>,
    pub recipients: Vec<String>,
    /// Text of the message, without stuffed dots.
    pub octets: Vec<u8>,
    /// True if the upstream reset the connection right after the reply, so that the reply is perhaps lost.
    pub is_unsure: bool,
}

#[derive(Default)]
struct Record {
    accepted: Vec<Accepted>,
    faults: BTreeMap<(Stage, Fault), u64>,
    /// Events of a message, for the report.
    events: HashMap<Token, Vec<String>>,
}

/// Shared state of all upstreams.
pub struct Upstreams {
    seed: u64,
    record: Mutex<Record>,
    connections: AtomicU64,
    faults: AtomicU64,
}

impl Upstreams {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { seed, record: Mutex::default(), connections: AtomicU64::new(0), faults: AtomicU64::new(0) })
    }

    /// Starts one more upstream; returns its address.
    pub fn start(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let all = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let all = all.clone();
                let number = all.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || Connection::new(stream, number, &all)?.converse());
            }
        });
        address
    }

    /// Returns the number of faults since the start.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Returns the number of each fault at each stage.
    pub fn kinds(&self) -> BTreeMap<(Stage, Fault), u64> {
        self.record.lock().unwrap().faults.clone()
    }

    /// Returns the messages accepted since the last call, and the events of each message.
    pub fn take(&self) -> (Vec<Accepted>, HashMap<Token, Vec<String>>) {
        let mut record = self.record.lock().unwrap();
        (std::mem::take(&mut record.accepted), std::mem::take(&mut record.events))
    }
}

struct Connection<'a> {
    all: &'a Upstreams,
    number: u64,
    input: BufReader<TcpStream>,
    output: TcpStream,
    /// Times that the connection has reached each stage since the start of the current message. Before the first message,
    /// since the start of the connection.
    reached: BTreeMap<Stage, u64>,
    token: Option<Token>,
    in_mail: bool,
    recipients: Vec<String>,
}

/// Result of a step; `None` if the connection ends.
type StepResult<T = ()> = Option<T>;

impl<'a> Connection<'a> {
    fn new(stream: TcpStream, number: u64, all: &'a Upstreams) -> StepResult<Self> {
        stream.set_nodelay(true).ok()?;
        // This timeout ends every thread.
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let input = BufReader::new(stream.try_clone().ok()?);
        let (reached, recipients) = (BTreeMap::new(), Vec::new());
        Some(Self { all, number, input, output: stream, reached, token: None, in_mail: false, recipients })
    }

    fn converse(mut self) -> StepResult {
        self.answer(Stage::Greeting, "220 upstream.example\r\n")?;
        loop {
            let line = self.line()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            match line.get(..4).unwrap_or_default() {
                "EHLO" | "HELO" => {
                    self.answer(Stage::Ehlo, "250-upstream.example\r\n250-PIPELINING\r\n250 8BITMIME\r\n").map(drop)
                }
                "MAIL" => self.mail(&line),
                "RCPT" => self.rcpt(&line),
                "DATA" => self.data(),
                "RSET" => {
                    self.in_mail = false;
                    self.answer(Stage::Rset, "250 2.0.0 Ok\r\n").map(drop)
                }
                "QUIT" => {
                    self.say("221 2.0.0 Bye\r\n");
                    None
                }
                _ => self.say("250 2.0.0 Ok\r\n"),
            }?;
        }
    }

    fn mail(&mut self, line: &str) -> StepResult {
        let address = line.split_once('<')?.1.split_once('>')?.0;
        (self.token, self.in_mail) = (token_in(address), false);
        (self.reached, self.recipients) = (BTreeMap::new(), Vec::new());
        self.in_mail = self.answer(Stage::Mail, "250 2.1.0 Ok\r\n")?;
        Some(())
    }

    fn rcpt(&mut self, line: &str) -> StepResult {
        if !self.in_mail {
            return self.say("503 5.5.1 MAIL first\r\n");
        }
        let address = line.split_once('<')?.1.split_once('>')?.0;
        if self.answer(Stage::Rcpt, "250 2.1.5 Ok\r\n")? {
            self.recipients.push(address.to_owned());
        }
        Some(())
    }

    fn data(&mut self) -> StepResult {
        if !self.in_mail || self.recipients.is_empty() {
            return self.say("503 5.5.1 RCPT first\r\n");
        }
        self.in_mail = false;
        if !self.answer(Stage::Data, "354 Go on\r\n")? {
            return Some(());
        }
        let octets = self.body()?;
        let fault = self.draw(Stage::End);
        let after = if fault.is_none() { self.draw(Stage::After) } else { None };
        if fault == Some(Fault::Silence) {
            self.pause(900);
        } else if fault.is_none() {
            self.be_slow(Stage::End);
        }
        if fault.is_some() {
            return self.fail(Stage::End, fault?, "250 2.0.0 Queued\r\n").map(drop);
        }
        let is_unsure = after == Some(Fault::Reset);
        let accepted = Accepted { token: self.token, recipients: self.recipients.clone(), octets, is_unsure };
        self.note("accepted");
        self.all.record.lock().unwrap().accepted.push(accepted);
        self.say_in_pieces("250 2.0.0 Queued\r\n")?;
        match after {
            None => Some(()),
            Some(Fault::Extra) => {
                self.count(Stage::After, Fault::Extra);
                self.say("250 2.0.0 Nobody asked\r\n")
            }
            Some(fault) => self.fail(Stage::After, fault, "").map(drop),
        }
    }

    /// Reads a message. Returns `None` if a fault happens before the message's end, or if Weir closes the connection.
    fn body(&mut self) -> StepResult<Vec<u8>> {
        let mut octets = Vec::new();
        let mut random = self.random(Stage::Body, 0);
        let fault = self.draw(Stage::Body);
        // In a long message, the fault can also happen late.
        let latest = random.one_of(&[2, 8, 400]);
        let at_line = random.below(latest);
        for number in 0.. {
            if number == at_line {
                match fault {
                    None if random.per_mille(30) => self.pause(800),
                    None => {}
                    Some(Fault::Silence) => {
                        self.count(Stage::Body, Fault::Silence);
                        self.pause(1500);
                        return None;
                    }
                    // A reply in the middle of a message cannot mean that the message is accepted. Close the connection
                    // after it.
                    Some(fault) => {
                        self.fail(Stage::Body, fault, "")?;
                        return None;
                    }
                }
            }
            let line = self.line()?;
            if line == b".\r\n" {
                break;
            }
            octets.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
        }
        Some(octets)
    }

    fn line(&mut self) -> StepResult<Vec<u8>> {
        let mut line = Vec::new();
        let read = self.input.read_until(b'\n', &mut line).ok()?;
        (read > 0 && line.ends_with(b"\r\n")).then_some(line)
    }

    /// Sends the right reply, or makes a fault instead. Returns true if it sent the right reply.
    fn answer(&mut self, stage: Stage, right: &str) -> StepResult<bool> {
        match self.draw(stage) {
            Some(fault) => self.fail(stage, fault, right),
            None => {
                self.be_slow(stage);
                self.say_in_pieces(right)?;
                Some(true)
            }
        }
    }

    fn fail(&mut self, stage: Stage, fault: Fault, right: &str) -> StepResult<bool> {
        self.count(stage, fault);
        let mut random = self.random(stage, 1);
        match fault {
            Fault::Close => return None,
            Fault::Reset => {
                let _ = socket2::SockRef::from(&self.output).set_linger(Some(Duration::ZERO));
                return None;
            }
            // After the final dot, Weir waits for the reply longer than a test can wait. So the caller has already been
            // silent for a short time, and the connection ends here.
            Fault::Silence if stage == Stage::End => return None,
            Fault::Silence => {
                self.wait_for_close();
                return None;
            }
            Fault::Refuse4 => self.say("451 4.3.0 Not now\r\n")?,
            Fault::Refuse5 => self.say("550 5.7.1 Not here\r\n")?,
            Fault::ShutDown => {
                self.say("421 4.3.2 Shutting down\r\n");
                return None;
            }
            Fault::Garbage => {
                let garbage = random.one_of(&GARBAGE);
                self.say(garbage)?;
                if garbage.starts_with("250-never") {
                    return None;
                }
            }
            Fault::Partial => {
                let half = random.below(right.len() as u64 - 1) as usize;
                self.say(&right[..half]);
                return None;
            }
            Fault::Extra => unreachable!(),
        }
        Some(false)
    }

    fn say(&mut self, text: &str) -> StepResult {
        self.output.write_all(text.as_bytes()).ok()
    }

    /// Sends a reply, sometimes in two segments.
    fn say_in_pieces(&mut self, text: &str) -> StepResult {
        let mut random = self.random(Stage::After, 2 + self.recipients.len() as u64);
        if !random.per_mille(50) {
            return self.say(text);
        }
        let (one, other) = text.split_at(random.below(text.len() as u64) as usize);
        self.say(one)?;
        std::thread::sleep(Duration::from_millis(random.below(20)));
        self.say(other)
    }

    /// Sometimes waits before a right reply, but for less time than any timeout.
    fn be_slow(&mut self, stage: Stage) {
        if self.random(stage, 3).per_mille(30) {
            self.pause(150);
        }
    }

    fn pause(&mut self, most: u64) {
        let mut random = self.random(Stage::After, 4);
        std::thread::sleep(Duration::from_millis(10 + random.below(most)));
    }

    fn wait_for_close(&mut self) {
        let _ = self.output.set_read_timeout(Some(MAX_SILENCE));
        let mut space = [0; 4096];
        loop {
            match self.input.read(&mut space) {
                Ok(0) => return,
                Err(error) if error.kind() != ErrorKind::Interrupted => return,
                _ => {}
            }
        }
    }

    /// Draws the fault at this stage; `None` means no fault.
    fn draw(&mut self, stage: Stage) -> Option<Fault> {
        *self.reached.entry(stage).or_default() += 1;
        let (_, cases, faults) = FAULTS.into_iter().find(|(at, ..)| *at == stage)?;
        let mut random = self.random(stage, 5);
        random.per_mille(cases).then(|| random.one_of(faults))
    }

    /// Returns the stream of random numbers for this stage and purpose. Each message has its own streams; before its
    /// first message, each connection has its own streams.
    fn random(&self, stage: Stage, purpose: u64) -> Random {
        let times = self.reached.get(&stage).copied().unwrap_or_default();
        // A message that Weir sends again over another connection gets other faults.
        let name = self.token.map_or(self.number, |token| token ^ (self.number % 3) << 60);
        Random::new(self.all.seed, &[2, name, stage as u64, times, purpose])
    }

    fn count(&self, stage: Stage, fault: Fault) {
        self.all.faults.fetch_add(1, Ordering::Relaxed);
        *self.all.record.lock().unwrap().faults.entry((stage, fault)).or_default() += 1;
        self.note(&format!("{stage:?} {fault:?}"));
    }

    fn note(&self, what: &str) {
        let Some(token) = self.token else { return };
        let line = format!("upstream connection {}: {what}", self.number);
        self.all.record.lock().unwrap().events.entry(token).or_default().push(line);
    }
}
