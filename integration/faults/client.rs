//! Client that makes faults at random: one session with up to three messages.

use super::message::{MAX_MESSAGES_PER_SESSION, Message, Token};
use super::random::Random;
use super::wire::{End, Leave, Wire};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// One message, with all that its client knows about the message.
pub struct Sent {
    pub token: Token,
    pub client: Ipv4Addr,
    /// Reply to the end of the message, or to the command that failed before the message. `None` if the client read no
    /// such reply.
    pub told: Option<String>,
    /// Recipients that got 250.
    pub accepted: Vec<String>,
    /// Number of recipients that the client named.
    pub asked: usize,
    /// True if the client sent the end of the message, and did not change the octets of [`Message`].
    pub is_whole: bool,
}

pub struct Session {
    wire: Wire,
    random: Random,
    seed: u64,
    number: u64,
    client: Ipv4Addr,
    pub sent: Vec<Sent>,
    /// Number of faults of this client.
    pub faults: u64,
}

/// Time longer than the command and data timeouts of the configuration.
const STALL: Duration = Duration::from_millis(2600);

impl Session {
    pub fn connect(seed: u64, number: u64, client: Ipv4Addr, address: SocketAddr) -> std::io::Result<Self> {
        let random = Random::new(seed, &[3, number]);
        let wire = Wire::connect(client, address)?;
        Ok(Self { wire, random, seed, number, client, sent: Vec::new(), faults: 0 })
    }

    /// Runs the whole session; returns the messages, the number of faults and the transcript.
    pub fn run(mut self) -> (Vec<Sent>, u64, String) {
        let end = self.dialogue();
        if end.is_ok() && self.random.per_mille(500) {
            let _ = self.wire.send(b"QUIT\r\n").and_then(|()| self.wire.reply());
        }
        self.wire.note("C: (is gone)");
        (self.sent, self.faults, self.wire.transcript)
    }

    fn dialogue(&mut self) -> Result<(), End> {
        self.leave_by_chance(15)?;
        if !self.wire.reply()?.starts_with("220") {
            return Err(End::Lost);
        }
        self.command("EHLO client.example")?;
        self.wire.reply()?;
        for n in 0..1 + self.random.below(MAX_MESSAGES_PER_SESSION) {
            self.transaction(self.number * MAX_MESSAGES_PER_SESSION + n)?;
        }
        Ok(())
    }

    fn transaction(&mut self, token: Token) -> Result<(), End> {
        let message = Message::new(self.seed, token);
        let client = self.client;
        self.sent.push(Sent { token, client, told: None, accepted: Vec::new(), asked: 0, is_whole: false });
        if self.random.per_mille(20) {
            self.talk_nonsense()?;
        }
        let by_chunks = self.random.per_mille(350);
        let is_pipelined = self.random.per_mille(500);
        let may_go_on = if is_pipelined {
            self.envelope_at_once(&message, !by_chunks)?
        } else {
            self.envelope(&message, !by_chunks)?
        };
        if !may_go_on {
            return self.reset();
        }
        if by_chunks { self.chunks(&message) } else { self.data(&message) }
    }

    fn this(&mut self) -> &mut Sent {
        self.sent.last_mut().unwrap()
    }

    /// Sends the envelope; returns true if the client can now send the message.
    fn envelope(&mut self, message: &Message, with_data: bool) -> Result<bool, End> {
        self.command(&format!("MAIL FROM:<{}>", message.sender()))?;
        let reply = self.wire.reply()?;
        if !reply.starts_with("250") {
            self.this().told = Some(reply);
            return Ok(false);
        }
        for recipient in &message.recipients {
            self.this().asked += 1;
            self.command(&format!("RCPT TO:<{recipient}>"))?;
            self.hear_recipient(recipient)?;
        }
        if self.this().accepted.is_empty() || self.random.per_mille(30) {
            return Ok(false);
        }
        if with_data {
            self.command("DATA")?;
            return self.hear_data();
        }
        Ok(true)
    }

    fn envelope_at_once(&mut self, message: &Message, with_data: bool) -> Result<bool, End> {
        let mut lines = format!("MAIL FROM:<{}> SIZE={}\r\n", message.sender(), message.octets.len());
        for recipient in &message.recipients {
            lines.push_str(&format!("RCPT TO:<{recipient}>\r\n"));
        }
        if with_data {
            lines.push_str("DATA\r\n");
        }
        self.this().asked = message.recipients.len();
        self.line(lines.as_bytes())?;
        let mail = self.wire.reply()?;
        for recipient in &message.recipients {
            self.hear_recipient(recipient)?;
        }
        if with_data {
            return self.hear_data();
        }
        if !mail.starts_with("250") {
            self.this().told = Some(mail);
            return Ok(false);
        }
        Ok(!self.this().accepted.is_empty())
    }

    fn hear_recipient(&mut self, recipient: &str) -> Result<(), End> {
        let reply = self.wire.reply()?;
        if reply.starts_with("250") {
            self.this().accepted.push(recipient.to_owned());
        }
        Ok(())
    }

    fn hear_data(&mut self) -> Result<bool, End> {
        let reply = self.wire.reply()?;
        if reply.starts_with("354") {
            return Ok(true);
        }
        self.this().told = Some(reply);
        Ok(false)
    }

    fn data(&mut self, message: &Message) -> Result<(), End> {
        let mut octets = message.stuffed();
        let is_spoiled = self.random.per_mille(20);
        if is_spoiled {
            self.faults += 1;
            let at = self.random.below(octets.len() as u64) as usize;
            // Two parsers could read these octets as different messages, so Weir must not send a message with them to
            // an upstream.
            let foreign = self.random.one_of(&["x\ny", "x\ry", "\u{0}", "x\n.\ny", "x\n.\r\ny", "x\r\n.\ny"]);
            octets.splice(at..at, foreign.bytes());
            self.wire.note(&format!("C: (will send {} at {at})", foreign.escape_debug()));
        }
        self.in_pieces(&octets)?;
        if self.random.per_mille(20) {
            self.wire.send(b".\r")?;
            self.leave_by_chance(1000)?;
        }
        self.this().is_whole = !is_spoiled;
        let end: &[u8] = if self.random.per_mille(50) { b".\r\nNOOP\r\n" } else { b".\r\n" };
        let sent = self.wire.send(end);
        self.hear_end(sent)?;
        if end.len() > 3 { self.wire.reply().map(drop) } else { Ok(()) }
    }

    fn chunks(&mut self, message: &Message) -> Result<(), End> {
        let mut rest = &message.octets[..];
        let together = self.random.per_mille(300);
        let mut pending = 0;
        for _ in 0..self.random.below(3) {
            let (chunk, others) = rest.split_at(self.random.below(rest.len() as u64 + 1) as usize);
            rest = others;
            self.chunk(chunk, "")?;
            pending += 1;
            while pending > 0 && !together {
                pending -= 1;
                self.hear_chunk()?;
            }
        }
        self.this().is_whole = true;
        let sent = self.chunk(rest, " LAST");
        for _ in 0..pending {
            self.hear_chunk()?;
        }
        self.hear_end(sent)
    }

    fn chunk(&mut self, octets: &[u8], last: &str) -> Result<(), End> {
        // While this chunk is sent, the message counts as incomplete. The former value is restored before the last
        // octet is sent, because Weir can accept the message as soon as it gets that octet.
        let is_whole = std::mem::take(&mut self.this().is_whole);
        self.wire.send(format!("BDAT {}{last}\r\n", octets.len()).as_bytes())?;
        if octets.is_empty() {
            self.this().is_whole = is_whole;
            return Ok(());
        }
        let (octets, end) = octets.split_at(octets.len() - 1);
        self.in_pieces(octets)?;
        self.this().is_whole = is_whole;
        self.wire.send(end)
    }

    fn hear_chunk(&mut self) -> Result<(), End> {
        let reply = self.wire.reply()?;
        if reply.starts_with("250") {
            return Ok(());
        }
        self.this().told = Some(reply);
        Err(End::Lost)
    }

    /// Reads the reply to the end of the message, unless the client leaves before the reply.
    fn hear_end(&mut self, sent: Result<(), End>) -> Result<(), End> {
        if sent.is_ok() {
            self.leave_by_chance(40)?;
            if self.random.per_mille(20) {
                self.faults += 1;
                self.wire.half_close();
            }
        }
        // Weir can have sent a reply even if the client's write failed.
        let reply = self.wire.reply()?;
        self.this().told = Some(reply);
        sent
    }

    /// Sends a part of a message. At random, the client leaves or stalls in the middle of the part.
    fn in_pieces(&mut self, octets: &[u8]) -> Result<(), End> {
        let (one, other) = octets.split_at(self.random.below(octets.len() as u64 + 1) as usize);
        let sent = self.line_of_message(one);
        if sent.is_ok() {
            self.leave_by_chance(50)?;
            if self.random.per_mille(8) {
                self.stall();
            }
        }
        match sent.and_then(|()| self.line_of_message(other)) {
            Err(End::Lost) => {
                // Read the reply in which Weir perhaps gave the reason.
                let reply = self.wire.reply()?;
                self.this().told = Some(reply);
                Err(End::Lost)
            }
            outcome => outcome,
        }
    }

    fn line_of_message(&mut self, octets: &[u8]) -> Result<(), End> {
        if self.random.per_mille(100) { self.wire.drip(octets, &mut self.random) } else { self.wire.send(octets) }
    }

    fn reset(&mut self) -> Result<(), End> {
        self.command("RSET")?;
        self.wire.reply().map(drop)
    }

    fn talk_nonsense(&mut self) -> Result<(), End> {
        self.faults += 1;
        let long = "x".repeat(3000);
        let nonsense = ["XYZZY", "MAIL", "RCPT TO:<", "BDAT 1 2 3 4", "DATA", "\u{1}\u{2}\u{fffd}", "VRFY bob", &long];
        let nonsense = self.random.one_of(&nonsense);
        self.line(format!("{nonsense}\r\n").as_bytes())?;
        self.wire.reply().map(drop)
    }

    fn command(&mut self, text: &str) -> Result<(), End> {
        self.line(format!("{text}\r\n").as_bytes())
    }

    /// Sends one or more commands. At random, the client leaves before, within or after them.
    fn line(&mut self, octets: &[u8]) -> Result<(), End> {
        if self.random.per_mille(10) {
            let part = self.random.below(octets.len() as u64 - 1) as usize;
            self.wire.send(&octets[..part])?;
            self.leave_by_chance(1000)?;
        }
        if self.random.per_mille(3) {
            let (one, other) = octets.split_at(1);
            self.wire.send(one)?;
            self.stall();
            return self.wire.send(other);
        }
        if self.random.per_mille(50) {
            self.wire.drip(octets, &mut self.random)?;
        } else {
            self.wire.send(octets)?;
        }
        self.leave_by_chance(15)
    }

    /// Sends nothing until Weir closes the connection.
    fn stall(&mut self) {
        self.faults += 1;
        self.wire.note("C: (stalls)");
        std::thread::sleep(STALL);
    }

    /// Leaves with a probability of `cases` in a thousand. In half of these cases the client first waits a little, so
    /// that it leaves while Weir works on the command.
    fn leave_by_chance(&mut self, cases: u64) -> Result<(), End> {
        if !self.random.per_mille(cases) {
            return Ok(());
        }
        self.faults += 1;
        if self.random.per_mille(500) {
            std::thread::sleep(Duration::from_millis(self.random.below(80)));
        }
        let how = self.random.one_of(&[Leave::Fin, Leave::Fin, Leave::Reset, Leave::Reset, Leave::HalfClose]);
        Err(self.wire.leave(how))
    }
}
