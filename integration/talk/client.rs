//! SMTP client of a policy talk. The client has a name in the script, and its own client address for Weir.

use super::transcript::Transcript;
use crate::harness::{Client, Process};
use base64::Engine as _;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

/// SMTP client of a talk.
pub struct TalkClient {
    pub name: String,
    pub connection: Client,
    pub transcript: Transcript,
    address: IpAddr,
    /// Octets of the script's lines that the client has not yet sent.
    pub unsent: String,
    /// Number of commands whose replies the client has not yet read.
    pub unread: usize,
    /// Time of the last send, and of the last reply.
    pub sent_at: Instant,
    pub reply_at: Instant,
}

impl TalkClient {
    /// Connects from `address` if that is a loopback address. Otherwise connects from 127.0.0.1 and gives `address` to
    /// Weir by XCLIENT. The next reply is Weir's greeting, or its refusal of the client.
    pub fn connect(
        name: &str,
        address: IpAddr,
        (weir, listener): (&Process, &str),
        transcript: &Transcript,
    ) -> Result<Self, String> {
        let listening = weir.address(listener);
        let (connection, is_known) = match address {
            IpAddr::V4(own) if own.is_loopback() => (Client::try_connect_from(own, listening).unwrap(), true),
            _ => (Client::connect_silently(listening), false),
        };
        let mut client = Self {
            name: name.to_owned(),
            connection,
            transcript: transcript.clone(),
            address,
            unsent: String::new(),
            unread: 1,
            sent_at: Instant::now(),
            reply_at: Instant::now(),
        };
        if !is_known {
            client.expect("220")?;
            client.say(&format!("XCLIENT ADDR={address}"));
            client.send();
        }
        Ok(client)
    }

    /// Reads the greeting and says EHLO.
    pub fn greet(&mut self) -> Result<(), String> {
        self.expect("220")?;
        self.ask(&format!("EHLO {}.example", self.name), "250")
    }

    /// Adds a line to the unsent octets, and counts one more unread reply.
    pub fn say(&mut self, line: &str) {
        self.transcript.said(&self.name, line);
        self.unsent += &format!("{line}\r\n");
        self.unread += 1;
    }

    /// Sends the unsent lines in one write.
    pub fn send(&mut self) {
        let unsent = std::mem::take(&mut self.unsent);
        if !unsent.is_empty() {
            self.sent_at = Instant::now();
            self.connection.send(unsent.as_bytes());
        }
    }

    /// Sends the unsent lines, and reads the next reply.
    pub fn read_reply(&mut self) -> Result<String, String> {
        self.send();
        self.unread = self.unread.checked_sub(1).ok_or("no reply is due")?;
        let reply = self.connection.try_reply().map_err(|error| format!("no reply: {error}"))?;
        self.reply_at = Instant::now();
        self.transcript.heard(&self.name, &reply);
        Ok(reply)
    }

    pub fn expect(&mut self, reply: &str) -> Result<(), String> {
        let got = self.read_reply()?;
        if got.starts_with(reply) { Ok(()) } else { Err(format!("expected {reply}, got: {got}")) }
    }

    pub fn ask(&mut self, line: &str, reply: &str) -> Result<(), String> {
        self.say(line);
        self.expect(reply).map_err(|why| format!("{line}: {why}"))
    }

    pub fn log_in(&mut self, user: &str, password: &str) -> Result<(), String> {
        let response = base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{password}"));
        self.say(&format!("AUTH PLAIN {response}"));
        self.send();
        Ok(())
    }

    /// Does STARTTLS, then XCLIENT and EHLO again, because Weir forgets the address of XCLIENT after STARTTLS.
    pub fn secure(&mut self, certificate: &Path) -> Result<(), String> {
        self.ask("STARTTLS", "220")?;
        self.connection.secure(certificate);
        if !self.address.is_loopback() {
            self.ask(&format!("XCLIENT ADDR={}", self.address), "220")?;
        }
        self.ask(&format!("EHLO {}.example", self.name), "250")
    }

    /// Plays the line `mails SENDER: RECIPIENT RECIPIENT`: sends MAIL and RCPT. If `is_sent`, also sends the message.
    pub fn mail(&mut self, words: &str, is_sent: bool) -> Result<(), String> {
        let (_, words) = words.split_once(' ').unwrap_or_default();
        let (sender, recipients) = words.split_once(':').ok_or("mails SENDER: RECIPIENT RECIPIENT")?;
        self.ask(&format!("MAIL FROM:<{sender}>"), "250")?;
        for recipient in recipients.split_whitespace().flat_map(addresses) {
            self.ask(&format!("RCPT TO:<{recipient}>"), "250")?;
        }
        if is_sent {
            self.ask("DATA", "354")?;
            self.ask("Subject: hello\r\n\r\nhello\r\n.", "250")?;
        }
        Ok(())
    }

    /// Checks that the client has read all replies, and that Weir has closed the connection.
    pub fn end(mut self) -> Result<(), String> {
        match self.unread {
            0 if self.connection.is_closed() => Ok(()),
            _ => Err("a reply is left over".to_owned()),
        }
    }
}

/// Expands `1..3@d` to the addresses 1@d, 2@d and 3@d.
fn addresses(word: &str) -> Vec<String> {
    let range = word.split_once("..").and_then(|(first, rest)| Some((first, rest.split_once('@')?)));
    let numbers = |(first, (last, domain)): (&str, (&str, &str))| {
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some((first..=last).map(|n| format!("{n}@{domain}")).collect())
    };
    range.and_then(numbers).unwrap_or_else(|| vec![word.to_owned()])
}

/// Returns a message body of this many octets, in lines of 50 octets with CRLF.
pub fn body(octets: usize) -> String {
    let line = |length: usize| format!("{}\r\n", "x".repeat(length - 2));
    let (lines, rest) = (octets / 50, octets % 50);
    // A rest of one octet is too short for a line with CRLF: add the octet to the last line.
    match rest {
        0 | 2.. => line(50).repeat(lines) + &if rest > 0 { line(rest) } else { String::new() },
        1 => line(50).repeat(lines - 1) + &line(51),
    }
}
